/* Every source becomes a run folder: a file stands for the file of a folder that has such content,
 * and a job is simulated into a temporary folder. So each figure has one reader. */
#include "report/html/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "config/shipped.h"
#include "describe/layer.h"
#include "train/run.h"
#include "train/simulation.h"

/* ---- documents ------------------------------------------------------------------------------- */

/* Rows of results that are named: each name is compared with all others. A document with more is
 * refused as a table without values. */
enum { MOST_ROWS = 1024 };

static size_t count_rows(const json_t *rows)
{
    const size_t n = json_array_size(rows);
    return n <= MOST_ROWS ? n : 0;
}

/* Whether two rows of results have the same text under this key. */
static bool repeats(const json_t *rows, const char *key)
{
    const size_t n = count_rows(rows);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_object_get(json_array_get(rows, i), key),
                           json_object_get(json_array_get(rows, k), key)))
                return true;
    return false;
}

/* "dhelix", or "dhelix, dhelix-w" where strategies have rows with several schedules. */
static json_t *name_of_step(const json_t *row, bool with_schedule)
{
    const char *strategy = json_string_value(json_object_get(row, "strategy"));
    const char *schedule = json_string_value(json_object_get(row, "schedule"));
    if (!strategy) strategy = "?";
    if (!with_schedule || !schedule) return json_string(strategy);
    return json_sprintf("%s, %s", strategy, schedule);
}

/* A table of one setting: takes both arrays. */
static json_t *as_table(const char *key, json_t *values, json_t *cells)
{
    return json_pack("{s[{ss so}] so}", "settings", "key", key, "values", values, "cells", cells);
}

/* Steps that `simulate --strategies` compares: cells already. */
static json_t *table_of_strategies(const json_t *document)
{
    json_t *rows = json_object_get(document, "strategies"), *values = json_array();
    const bool with_schedule = repeats(rows, "strategy");
    for (size_t i = 0; values && i < count_rows(rows); i++)
        json_array_append_new(values, name_of_step(json_array_get(rows, i), with_schedule));
    return as_table("strategy", values, json_incref(rows));
}

/* "1: tp 8, pp 4": the rank of a configuration, and the settings in which those listed differ. */
static json_t *name_of_configuration(const json_t *rows, size_t i)
{
    const char *key;
    const json_t *value, *first = json_object_get(json_array_get(rows, 0), "settings");
    const json_t *own = json_object_get(json_array_get(rows, i), "settings");
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%zu", i + 1);
    const char *between = ": ";
    json_object_foreach((json_t *)own, key, value)
    {
        bool differs = false;
        for (size_t k = 0; k < json_array_size(rows); k++)
            differs |= !json_equal(
                json_object_get(first, key),
                json_object_get(json_object_get(json_array_get(rows, k), "settings"), key));
        if (!differs) continue;
        const char *dot = strrchr(key, '.');
        char *shown = dh_json_print(value, JSON_ENCODE_ANY);
        const size_t n = shown ? strlen(shown) : 0;
        const bool quoted = n > 1 && shown[0] == '"';
        dh_str_printf(&text, "%s%s %.*s", between, dot ? dot + 1 : key, (int)(quoted ? n - 2 : n),
                      shown ? shown + quoted : "");
        free(shown);
        between = ", ";
    }
    if (!json_object_get(json_array_get(rows, i), "simulated_ms"))
        dh_str_printf(&text, "%sestimated", between);
    return dh_json_of_text(&text);
}

static json_t *cell_of_configuration(const json_t *row)
{
    json_t *cell = json_object(), *ms = json_object_get(row, "simulated_ms");
    json_t *bytes = json_object_get(row, "simulated_peak_bytes");
    if (!ms) ms = json_object_get(row, "estimated_ms");
    if (!bytes) bytes = json_object_get(json_object_get(row, "estimated_bytes"), "peak");
    if (cell && ms) json_object_set(cell, "step_ms", ms);
    if (cell && bytes) json_object_set(cell, "peak_bytes", bytes);
    if (cell && json_object_get(row, "fits"))
        json_object_set(cell, "fits", json_object_get(row, "fits"));
    return cell;
}

/* The ranking of `tune`. */
static json_t *table_of_ranking(const json_t *document)
{
    const json_t *rows = json_object_get(document, "ranked");
    json_t *values = json_array(), *cells = json_array();
    for (size_t i = 0; values && cells && i < count_rows(rows); i++) {
        json_array_append_new(values, name_of_configuration(rows, i));
        json_array_append_new(cells, cell_of_configuration(json_array_get(rows, i)));
    }
    return as_table("configuration", values, cells);
}

static json_t *unchanged(const json_t *document)
{
    return json_incref((json_t *)document);
}

/* A document with this key stands for the file of a run folder. */
static const struct {
    const char *key, *only;
    unsigned from;
    json_t *(*convert)(const json_t *document);
} documents[] = {
    {"traceEvents", "trace-rank0.json", FROM_TRACE, unchanged},
    {"cells", "table.json", FROM_TABLE, unchanged},
    {"strategies", "table.json", FROM_TABLE | FROM_SUMMARY, table_of_strategies},
    {"ranked", "table.json", FROM_TABLE, table_of_ranking},
    {"times", "summary.json", FROM_SUMMARY, unchanged},
    {"profile", "profile.json", FROM_PAIRS, NULL},
};

static dh_status open_document(dh_ctx *ctx, figured_run *run)
{
    json_t *document;
    DH_TRY(dh_html_json(ctx, run->folder.path, &document));
    size_t i = 0;
    while (i < DH_COUNTOF(documents) && !json_object_get(document, documents[i].key)) i++;
    const bool known = i < DH_COUNTOF(documents), kept = known && documents[i].convert;
    if (known) {
        run->folder.only = documents[i].only;
        run->from = documents[i].from;
    }
    if (kept) run->folder.document = documents[i].convert(document);
    json_decref(document);
    if (!known)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s: no figure is drawn from this JSON document: a trace, a profile, "
                       "summary.json, table.json, or what simulate, tune or --table print as JSON "
                       "is wanted",
                       run->folder.path);
    const bool short_of = kept && (!run->folder.document || !dh_json_is_whole());
    return short_of ? dh_no_memory(ctx) : DH_OK;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Operators of a layer that take at least this share of their strand. TUNING: at 2 % the matrix of
 * Llama 3 70B on 8 tensor-parallel ranks has its GEMMs, attention and transfers, and fits a page. */
static const double least_share = 0.02;

static bool is_large(const dh_slot_strand *s, uint32_t i)
{
    double sum = 0;
    for (uint32_t k = 0; k < s->n; k++) sum += s->ops[k].ns;
    return s->ops[i].ns >= least_share * sum && s->ops[i].ns >= 1;
}

static void put_operator(const dh_slot_op *op, dh_str *csv)
{
    const uint32_t out = op->at.op->out[0];
    dh_str_printf(csv, "%s %s", dh_op_info_of(op->at.op->type)->name,
                  out == DH_NONE ? "" : op->at.graph->tensors.at[out].name);
}

/* oef.csv of the job's own costs: operators of a layer's forward and of its backward. */
static dh_status write_pairs(dh_ctx *ctx, const dh_layer_plan *l, const char *dir)
{
    const dh_slot_strand *f = &l->slot->strand[0], *b = &l->slot->strand[1];
    dh_str csv = DH_STR_INIT;
    dh_str_printf(&csv, "forward");
    for (uint32_t k = 0; k < b->n; k++) {
        if (!is_large(b, k)) continue;
        dh_str_printf(&csv, ",");
        put_operator(&b->ops[k], &csv);
    }
    dh_str_printf(&csv, "\n");
    for (uint32_t i = 0; i < f->n; i++) {
        if (!is_large(f, i)) continue;
        put_operator(&f->ops[i], &csv);
        for (uint32_t k = 0; k < b->n; k++) {
            if (!is_large(b, k)) continue;
            const dh_pair_time t = dh_costs_together(l->costs, &f->ops[i].at, &b->ops[k].at);
            dh_str_printf(
                &csv, ",%.4f",
                dh_oef((int64_t)f->ops[i].ns, (int64_t)b->ops[k].ns, DH_MAX(t.f_ns, t.b_ns)));
        }
        dh_str_printf(&csv, "\n");
    }
    const dh_status st = dh_file_write_in(ctx, dir, "oef.csv", &csv);
    dh_str_fini(&csv);
    return st;
}

static dh_status add_pairs(dh_ctx *ctx, const dh_resolved *job, const char *dir)
{
    dh_layer_plan l;
    dh_status st = dh_layer_plan_open(ctx, job, NULL, NULL, &l);
    if (st == DH_OK) st = write_pairs(ctx, &l, dir);
    dh_layer_plan_close(&l);
    return st;
}

static dh_status simulate(dh_ctx *ctx, const dh_job *job, const dh_figures_options *options,
                          const char *dir)
{
    const dh_resolve_options how = {.cluster = options->cluster, .quiet = true};
    const bool few = options->max_ranks == 0;
    const dh_train_simulation placed = {.sim = {.placed = true}};
    dh_resolved *resolved;
    dh_sim *sim = NULL;
    DH_TRY(dh_job_resolve(ctx, job, &how, &resolved));
    dh_status st = dh_train_simulate(ctx, resolved, &placed, &sim);
    if (st == DH_OK) st = dh_train_write_simulated(ctx, resolved, sim, dir, few);
    if (st == DH_OK && !resolved->profile) st = add_pairs(ctx, resolved, dir);
    dh_sim_destroy(sim);
    dh_resolved_destroy(resolved);
    return st;
}

/* A folder that a later call of the same process may make too. */
static dh_status make_folder(dh_ctx *ctx, figured_run *run)
{
    const char *where = getenv("TMPDIR");
    dh_str stem = DH_STR_INIT;
    dh_str_printf(&stem, "%s/dhelix-figures", where && *where ? where : "/tmp");
    const dh_status st =
        stem.failed ? dh_no_memory(ctx) : dh_temporary_dir(ctx, stem.text, &run->made);
    dh_str_fini(&stem);
    return st;
}

/* Without a model, or with programs by document length, only the schedule is known. */
static dh_status open_job(dh_ctx *ctx, const dh_figures_options *options, figured_run *run)
{
    dh_job *job;
    const char *source = run->folder.path;
    DH_TRY(dh_job_load(ctx, source, options->overrides, options->n_overrides, &job));
    const bool whole = !dh_job_has_stage_times(job) && job->packing != DH_PACKING_GROUP;
    dh_status st = make_folder(ctx, run);
    if (st == DH_OK) {
        run->folder.name = source;
        run->folder.path = run->made.path;
        run->from = whole ? FROM_SUMMARY | FROM_TRACE | FROM_JOB | FROM_PAIRS : FROM_JOB;
        st = whole ? simulate(ctx, job, options, run->made.path)
                   : dh_run_write_job(ctx, job, run->made.path);
    }
    dh_job_destroy(job);
    if (st != DH_OK) dh_ctx_while(ctx, "drawing %s", source);
    return st;
}

/* ---- published tables ------------------------------------------------------------------------ */

static dh_status open_validation(dh_ctx *ctx, const dh_validation_table *table, figured_run *run)
{
    run->steps = dh_validation_steps_create();
    run->from = FROM_VALIDATION;
    run->data = json_pack("{ss}", "name", table->name);
    if (!run->steps || !run->data) return dh_no_memory(ctx);
    return dh_validate(ctx, table, NULL, run->steps, &run->validation);
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Files whose names tell what they have. */
static const struct {
    const char *ending, *only;
    unsigned from;
} endings[] = {{".jsonl", "metrics.jsonl", FROM_METRICS}, {".csv", "oef.csv", FROM_PAIRS}};

static bool ends(const char *text, const char *ending)
{
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static dh_status open_file(dh_ctx *ctx, const dh_figures_options *options, figured_run *run)
{
    const char *path = run->folder.path;
    for (size_t i = 0; i < DH_COUNTOF(endings); i++) {
        if (!ends(path, endings[i].ending)) continue;
        run->folder.only = endings[i].only;
        run->from = endings[i].from;
        return DH_OK;
    }
    const bool job = ends(path, ".yaml") || ends(path, ".yml");
    return job ? open_job(ctx, options, run) : open_document(ctx, run);
}

static dh_status find(dh_ctx *ctx, const dh_figures_options *options, figured_run *run)
{
    const char *source = run->folder.path;
    const dh_validation_table *table;
    dh_ctx quiet = DH_CTX_INIT;
    if (dh_path_is_dir(source)) return DH_OK;
    if (dh_path_exists(source)) return open_file(ctx, options, run);
    if (dh_shipped_job_find(source)) return open_job(ctx, options, run);
    if (dh_validation_find(&quiet, source, &table) == DH_OK)
        return open_validation(ctx, table, run);
    return dh_fail(ctx, DH_EMISSING,
                   "%s is not a folder, a file, a job of `dhelix list jobs` or a table of `dhelix "
                   "list tables`; a run folder is what `dhelix train` writes to the job's `out`",
                   source);
}

static dh_status read_run(dh_ctx *ctx, figured_run *run)
{
    json_out out = {.comma = false};
    json_error_t why;
    run->folder.traces = &run->traces;
    run->folder.data = json_object();
    dh_status st = run->folder.data ? dh_html_run_read(ctx, &run->folder, &out) : dh_no_memory(ctx);
    if (st == DH_OK && out.text.failed) st = dh_no_memory(ctx);
    if (st == DH_OK) st = dh_json_read(ctx, out.text.text, out.text.len, 0, &why, &run->data);
    if (st == DH_OK && !run->data)
        st = dh_fail(ctx, DH_EFORMAT, "%s: %s", run->folder.path, why.text);
    if (st == DH_OK && json_object_update(run->data, run->folder.data) != 0) st = dh_no_memory(ctx);
    if (st == DH_OK && run->traces.ranks.n) st = traces_kinds(ctx, &run->traces, &run->kinds);
    dh_str_fini(&out.text);
    return st;
}

dh_status figured_source_open(dh_ctx *ctx, const char *source, const dh_figures_options *options,
                              figured_run *run)
{
    enum { DEFAULT_MAX_RANKS = 64 };
    *run = (figured_run){.made = DH_TEMPORARY_NONE, .from = FROM_RUN};
    run->folder.path = source;
    run->folder.max_ranks = options->max_ranks ? options->max_ranks : DEFAULT_MAX_RANKS;
    DH_TRY(find(ctx, options, run));
    return run->validation ? DH_OK : read_run(ctx, run);
}

void figured_source_close(figured_run *run)
{
    dh_job_destroy(run->folder.job);
    json_decref(run->folder.data);
    json_decref(run->folder.document);
    traces_fini(&run->traces);
    json_decref(run->kinds);
    json_decref(run->data);
    dh_validation_destroy(run->validation);
    dh_validation_steps_destroy(run->steps);
    dh_temporary_drop(&run->made);
}
