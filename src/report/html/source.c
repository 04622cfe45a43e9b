/* Every source becomes a run folder: a file stands for the file of a folder that has such content,
 * and a job is simulated into a temporary folder. So each figure has one reader. */
#include "report/html/source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "config/shipped.h"
#include "costs/cluster.h"
#include "describe/layer.h"
#include "report/html/figure.h"
#include "train/inputs.h"
#include "train/run.h"
#include "train/simulation.h"

/* ---- documents ------------------------------------------------------------------------------- */

/* Rows of results that are named: each name is compared with all others. */
enum { MOST_ROWS = 1024 };

/* Whether two rows of results have the same text under this key. */
static bool repeats(const json_t *rows, const char *key)
{
    const size_t n = json_array_size(rows);
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
    for (size_t i = 0; values && i < json_array_size(rows); i++)
        json_array_append_new(values, name_of_step(json_array_get(rows, i), with_schedule));
    return as_table("strategy", values, json_incref(rows));
}

static const json_t *settings_of(const json_t *rows, size_t i)
{
    return json_object_get(json_array_get(rows, i), "settings");
}

static void add_unlike(const json_t *keys, const json_t *other, json_t *differing)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)keys, key, value)
    {
        const bool same = json_equal(value, json_object_get(other, key));
        if (!same) json_object_set_new(differing, key, json_true());
    }
}

/* An object whose keys are the settings in which rows differ. */
static json_t *differing_settings(const json_t *rows)
{
    json_t *differing = json_object();
    for (size_t i = 1; i < json_array_size(rows); i++) {
        add_unlike(settings_of(rows, 0), settings_of(rows, i), differing);
        add_unlike(settings_of(rows, i), settings_of(rows, 0), differing);
    }
    return differing;
}

/* "1: tp 8, pp 4": the rank of a configuration, and those settings. */
static json_t *name_of_configuration(const json_t *row, size_t i, const json_t *differing)
{
    const char *key;
    const json_t *value;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%zu", i + 1);
    const char *between = ": ";
    json_object_foreach(json_object_get(row, "settings"), key, value)
    {
        if (!json_object_get(differing, key)) continue;
        const char *dot = strrchr(key, '.');
        char *shown = dh_json_print(value, JSON_ENCODE_ANY);
        const size_t n = shown ? strlen(shown) : 0;
        const bool quoted = n > 1 && shown[0] == '"';
        dh_str_printf(&text, "%s%s %.*s", between, dot ? dot + 1 : key, (int)(quoted ? n - 2 : n),
                      shown ? shown + quoted : "");
        free(shown);
        between = ", ";
    }
    if (!json_object_get(row, "simulated_ms")) dh_str_printf(&text, "%sestimated", between);
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
    json_t *values = json_array(), *cells = json_array(), *differing = differing_settings(rows);
    for (size_t i = 0; values && cells && i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        json_array_append_new(values, name_of_configuration(row, i, differing));
        json_array_append_new(cells, cell_of_configuration(row));
    }
    json_decref(differing);
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
    {"steps", "summary.json", FROM_SUMMARY, unchanged}, /* of one rank: without times */
};

static dh_status open_document(dh_ctx *ctx, figured_run *run)
{
    json_t *document;
    DH_TRY(dh_html_json(ctx, run->folder.path, &document));
    size_t i = 0;
    while (i < DH_COUNTOF(documents) && !json_object_get(document, documents[i].key)) i++;
    const bool known = i < DH_COUNTOF(documents), kept = known && documents[i].convert;
    const bool named = kept && documents[i].convert != unchanged;
    const size_t n = named ? json_array_size(json_object_get(document, documents[i].key)) : 0;
    if (known) {
        run->folder.only = documents[i].only;
        run->from = documents[i].from;
    }
    if (kept && n <= MOST_ROWS) run->folder.document = documents[i].convert(document);
    json_decref(document);
    if (!known)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s: no figure is drawn from this JSON document: a trace, a profile, "
                       "summary.json, table.json, or what simulate, tune or --table print as JSON "
                       "is wanted",
                       run->folder.path);
    if (n > MOST_ROWS)
        return dh_fail(ctx, DH_EFORMAT, "%s: %zu rows; at most %d are drawn", run->folder.path, n,
                       MOST_ROWS);
    const bool short_of = kept && (!run->folder.document || !dh_json_is_whole());
    return short_of ? dh_no_memory(ctx) : DH_OK;
}

/* ---- what is read ---------------------------------------------------------------------------- */

/* Folders are no file that a figure could replace. */
static dh_status add_input(dh_ctx *ctx, void *inputs, const char *setting, const char *path)
{
    (void)setting;
    dh_path_list *list = inputs;
    if (dh_path_is_dir(path)) return DH_OK;
    return dh_path_list_push(list, strdup(path)) ? DH_OK : dh_no_memory(ctx);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Operators of a layer that take at least this share of their strand, or as long as its longest where
 * none does. TUNING: at 2 % the matrix of Llama 3 70B on 8 tensor-parallel ranks has its GEMMs,
 * attention and transfers, and fits a page. */
static const double least_share = 0.02;

/* The large operators of a strand. */
typedef struct side {
    const dh_slot_op **ops; /* [n] */
    const char **names;     /* [n], no two alike */
    uint32_t n;
} side;

static bool has_name(const side *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0) return true;
    return false;
}

/* "linear d.fc2.w"; operators that were cut repeat theirs: "linear d.fc2.w 2". NULL: no memory */
static const char *name_operator(const dh_slot_op *op, const side *s, dh_arena *arena)
{
    const uint32_t out = op->at.op->out[0];
    const char *type = dh_op_info_of(op->at.op->type)->name;
    const char *first =
        out == DH_NONE ? type
                       : dh_arena_printf(arena, "%s %s", type, op->at.graph->tensors.at[out].name);
    const char *name = first;
    for (int k = 2; name && has_name(s, name); k++)
        name = dh_arena_printf(arena, "%s %d", first, k);
    return name;
}

static dh_status find_large(dh_ctx *ctx, const dh_slot_strand *strand, dh_arena *arena, side *s)
{
    double sum = 0, longest = 0;
    for (uint32_t i = 0; i < strand->n; i++) {
        sum += strand->ops[i].ns;
        longest = fmax(longest, strand->ops[i].ns);
    }
    const double least = fmax(fmin(least_share * sum, longest), 1);
    s->ops = DH_NEW_N(arena, const dh_slot_op *, strand->n + 1);
    s->names = DH_NEW_N(arena, const char *, strand->n + 1);
    if (!s->ops || !s->names) return dh_no_memory(ctx);
    for (uint32_t i = 0; i < strand->n; i++) {
        if (strand->ops[i].ns < least) continue;
        const char *name = name_operator(&strand->ops[i], s, arena);
        if (!name) return dh_no_memory(ctx);
        s->ops[s->n] = &strand->ops[i];
        s->names[s->n++] = name;
    }
    return DH_OK;
}

static void put_pairs(const dh_costs *costs, const side *f, const side *b, dh_str *csv)
{
    dh_str_printf(csv, "forward");
    for (uint32_t k = 0; k < b->n; k++) dh_str_printf(csv, ",%s", b->names[k]);
    for (uint32_t i = 0; i < f->n; i++) {
        dh_str_printf(csv, "\n%s", f->names[i]);
        for (uint32_t k = 0; k < b->n; k++) {
            const dh_slot_op *x = f->ops[i], *y = b->ops[k];
            const dh_pair_time t = dh_costs_together(costs, &x->at, &y->at);
            dh_str_printf(csv, ",%.4f",
                          dh_oef((int64_t)x->ns, (int64_t)y->ns, DH_MAX(t.f_ns, t.b_ns)));
        }
    }
    dh_str_printf(csv, "\n");
}

/* oef.csv of the job's own costs: operators of a layer's forward and of its backward. */
static dh_status write_pairs(dh_ctx *ctx, const dh_layer_plan *l, const char *dir)
{
    side f = {0}, b = {0};
    DH_TRY(find_large(ctx, &l->slot->strand[0], l->arena, &f));
    DH_TRY(find_large(ctx, &l->slot->strand[1], l->arena, &b));
    if (f.n == 0 || b.n == 0) return DH_OK;
    dh_str csv = DH_STR_INIT;
    put_pairs(l->costs, &f, &b, &csv);
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
    const bool paired = !options->figures || figure_is_listed(options->figures, "pairs");
    const dh_train_simulation placed = {.sim = {.placed = true}};
    dh_resolved *resolved;
    dh_sim *sim = NULL;
    DH_TRY(dh_job_resolve(ctx, job, &how, &resolved));
    dh_status st = dh_train_simulate(ctx, resolved, &placed, &sim);
    if (st == DH_OK) st = dh_train_write_simulated(ctx, resolved, sim, dir, few);
    if (st == DH_OK && paired && !resolved->profile) st = add_pairs(ctx, resolved, dir);
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
    dh_status st = dh_job_each_input(ctx, job, add_input, run->inputs);
    if (st == DH_OK) st = make_folder(ctx, run);
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

static dh_status open_validation(dh_ctx *ctx, const dh_validation_table *table,
                                 const dh_cluster *cluster, figured_run *run)
{
    run->steps = dh_validation_steps_create();
    run->from = FROM_VALIDATION;
    run->data = json_pack("{ss}", "name", table->name);
    if (!run->steps || !run->data) return dh_no_memory(ctx);
    return dh_validate(ctx, table, cluster ? cluster->path : NULL, run->steps, &run->validation);
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
        return open_validation(ctx, table, options->cluster, run);
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

/* Of a folder that was made here people know the job, not the path. */
static void say_job(dh_ctx *ctx, const figured_run *run)
{
    const size_t n = strlen(run->made.path) + 1; /* with the slash after it */
    for (char *at = ctx->message; (at = strstr(at, run->made.path)) && at[n - 1] == '/';)
        memmove(at, at + n, strlen(at + n) + 1);
    dh_ctx_while(ctx, "drawing %s", run->folder.name);
}

dh_status figured_source_open(dh_ctx *ctx, const char *source, const dh_figures_options *options,
                              dh_path_list *inputs, figured_run *run)
{
    enum { DEFAULT_MAX_RANKS = 64 };
    *run = (figured_run){.made = DH_TEMPORARY_NONE, .from = FROM_RUN, .inputs = inputs};
    run->folder.path = source;
    run->folder.max_ranks = options->max_ranks ? options->max_ranks : DEFAULT_MAX_RANKS;
    DH_TRY(add_input(ctx, inputs, "source", source));
    if (options->cluster) DH_TRY(add_input(ctx, inputs, "cluster", options->cluster->path));
    DH_TRY(find(ctx, options, run));
    if (run->validation) return DH_OK;
    dh_status st = read_run(ctx, run);
    if (run->made.path) {
        if (st != DH_OK) say_job(ctx, run);
        return st;
    }
    const dh_job *job = run->folder.job;
    if (st == DH_OK && job) st = dh_job_each_input(ctx, job, add_input, inputs);
    return st;
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
