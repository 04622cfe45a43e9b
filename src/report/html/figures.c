/* Figures from what the page has: the same readers, the same JSON object, the same traces. */
#include "report/html/figures.h"
#include "base/json_text.h"
#include "base/needs.h"
#include "report/html/figure.h"
#include "train/inputs.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_MAX_RANKS = 64 };

/* Names of files, and what to do where there is nothing to draw. `each`: a figure for each run. */
static const struct {
    const char *name;
    bool each;
    bool (*draw)(const figured_run *runs, size_t n, dh_figure *f);
    const char *missing;
} rows[] = {
    {"loss", false, figure_metric, "no metrics.jsonl: training writes it"},
    {"learning-rate", false, figure_metric, "metrics.jsonl has none"},
    {"gradient-norm", false, figure_metric, "metrics.jsonl has none"},
    {"tokens-per-second", false, figure_metric, "metrics.jsonl has none"},
    {"load-balancing-loss", false, figure_metric, "metrics.jsonl has none: no experts"},
    {"time", false, figure_time, "no times in summary.json: only runs on several ranks have them"},
    {"timeline", true, figure_timeline, "no trace: --set trace.step=N"},
    {"layer", true, figure_layer, "no trace in which a layer's forward and a backward ran at once"},
    {"schedule", true, figure_schedule, "no trace of micro-batches: --set trace.step=N"},
    {"plan", true, figure_plan, "no schedule: job.yaml is absent, or its schedule cannot be made"},
    {"memory", true, figure_memory, "no memory in a trace: --set trace.step=N"},
    {"pairs", true, figure_pairs, "no profile.json with pairs and no oef.csv: dhelix profile"},
    {"table", true, figure_table, "no table.json: dhelix simulate --table KEY=V1,V2 --out RUN"},
};

/* ---- making ---------------------------------------------------------------------------------- */

static dh_status read_run(dh_ctx *ctx, const char *path, int64_t max_ranks, figured_run *run)
{
    json_out out = {.comma = false};
    json_error_t why;
    run->folder = (dh_run_folder){
        .path = path, .traces = &run->traces, .data = json_object(), .max_ranks = max_ranks};
    dh_status st = run->folder.data ? dh_html_run_read(ctx, &run->folder, &out) : dh_no_memory(ctx);
    if (st == DH_OK && out.text.failed) st = dh_no_memory(ctx);
    if (st == DH_OK) st = dh_json_read(ctx, out.text.text, out.text.len, 0, &why, &run->data);
    if (st == DH_OK && !run->data) st = dh_fail(ctx, DH_EFORMAT, "%s: %s", path, why.text);
    if (st == DH_OK && json_object_update(run->data, run->folder.data) != 0) st = dh_no_memory(ctx);
    if (st == DH_OK && run->traces.ranks.n) st = traces_kinds(ctx, &run->traces, &run->kinds);
    dh_str_fini(&out.text);
    return st;
}

static void free_run(figured_run *run)
{
    dh_job_destroy(run->folder.job);
    json_decref(run->folder.data);
    traces_fini(&run->traces);
    json_decref(run->kinds);
    json_decref(run->data);
}

static const char *name_of(const figured_run *run)
{
    return json_string_value(json_object_get(run->data, "name"));
}

/* Ends of paths, where that leaves runs different. */
static void label_runs(figured_run *runs, size_t n)
{
    bool same = false;
    for (size_t i = 0; i < n; i++) {
        const char *slash = strrchr(name_of(&runs[i]), '/');
        runs[i].label = slash && slash[1] ? slash + 1 : name_of(&runs[i]);
        for (size_t k = 0; k < i; k++) same |= strcmp(runs[i].label, runs[k].label) == 0;
    }
    for (size_t i = 0; same && i < n; i++) runs[i].label = name_of(&runs[i]);
}

static dh_status make_one(dh_ctx *ctx, size_t row, const figured_run *runs, size_t n,
                          const char *end, dh_figures *figures)
{
    dh_figure f = {.svg = DH_STR_INIT};
    snprintf(f.name, sizeof f.name, "%s%s", rows[row].name, end);
    if (!rows[row].draw(runs, n, &f) && !f.why[0])
        snprintf(f.why, sizeof f.why, "%s", rows[row].missing);
    if (!f.svg.failed && !f.csv.failed && dh_vec_push(figures, f)) return DH_OK;
    dh_str_fini(&f.svg);
    dh_str_fini(&f.csv);
    return dh_no_memory(ctx);
}

static dh_status make_all(dh_ctx *ctx, const figured_run *runs, size_t n, dh_figures *figures)
{
    for (size_t row = 0; row < DH_COUNTOF(rows); row++) {
        if (!rows[row].each) DH_TRY(make_one(ctx, row, runs, n, "", figures));
        for (size_t i = 0; rows[row].each && i < n; i++) {
            char end[16] = "";
            if (n > 1) snprintf(end, sizeof end, "-%d", (int)i + 1);
            DH_TRY(make_one(ctx, row, &runs[i], 1, end, figures));
        }
    }
    return dh_json_is_whole() ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_figures_make(dh_ctx *ctx, const char *const *runs, size_t n, int64_t max_ranks,
                          dh_figures *figures)
{
    figured_run own[DH_REPORT_MAX_RUNS] = {0};
    *figures = (dh_figures){0};
    DH_NEEDS_LIST(ctx, runs, n);
    if (n < 1 || n > DH_REPORT_MAX_RUNS)
        return dh_fail(ctx, DH_EINVAL, "figures of %zu runs: 1 to %d", n, DH_REPORT_MAX_RUNS);
    dh_status st = DH_OK;
    dh_json_is_whole(); /* forgets documents that were made before */
    for (size_t i = 0; st == DH_OK && i < n; i++)
        st = read_run(ctx, runs[i], max_ranks ? max_ranks : DEFAULT_MAX_RANKS, &own[i]);
    if (st == DH_OK) label_runs(own, n);
    if (st == DH_OK) st = make_all(ctx, own, n, figures);
    for (size_t i = 0; i < n; i++) free_run(&own[i]);
    if (st != DH_OK) dh_figures_fini(figures);
    return st;
}

void dh_figures_fini(dh_figures *figures)
{
    for (size_t i = 0; i < figures->n; i++) {
        dh_str_fini(&figures->at[i].svg);
        dh_str_fini(&figures->at[i].csv);
    }
    dh_vec_fini(figures);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Of a figure that is not drawn: whether a call before has left one. */
static dh_status say_left(dh_ctx *ctx, const char *dir, dh_figure *f)
{
    const size_t n = strlen(f->why);
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s.svg", dir, f->name);
    const dh_status st = path.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && dh_path_exists(path.text))
        snprintf(f->why + n, sizeof f->why - n, "; %s.svg is of an earlier call", f->name);
    dh_str_fini(&path);
    return st;
}

static dh_status put(dh_ctx *ctx, const char *dir, const dh_figure *f)
{
    char name[sizeof f->name + 4];
    snprintf(name, sizeof name, "%s.svg", f->name);
    DH_TRY(dh_file_write_in(ctx, dir, name, &f->svg));
    snprintf(name, sizeof name, "%s.csv", f->name);
    return dh_file_write_in(ctx, dir, name, &f->csv);
}

/* Names of figures as CSV files are also files of a run, but not those of its folders. */
dh_status dh_figures_write(dh_ctx *ctx, dh_figures *figures, const char *dir)
{
    DH_TRY(dh_output_check_no_run(ctx, dir));
    DH_TRY(dh_dir_create(ctx, dir));
    for (size_t i = 0; i < figures->n; i++) {
        dh_figure *f = &figures->at[i];
        DH_TRY(f->why[0] ? say_left(ctx, dir, f) : put(ctx, dir, f));
    }
    return DH_OK;
}
