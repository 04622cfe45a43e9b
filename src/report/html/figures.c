/* Figures from what the page has: the same readers, the same JSON object, the same traces. */
#include "report/html/figures.h"
#include "base/json_text.h"
#include "base/needs.h"
#include "costs/cluster.h"
#include "report/html/figure.h"
#include "train/inputs.h"

#include <stdio.h>
#include <string.h>

/* Names of files, and what to do where there is nothing to draw. from: any of these kinds of data
 * may have it. each: a figure for each run. */
static const struct {
    const char *name;
    unsigned from;
    bool each;
    bool (*draw)(const figured_run *runs, size_t n, dh_figure *f);
    const char *missing;
} rows[] = {
    {"loss", FROM_METRICS, false, figure_metric, "no metrics.jsonl: training writes it"},
    {"learning-rate", FROM_METRICS, false, figure_metric, "no metrics.jsonl: training writes it"},
    {"gradient-norm", FROM_METRICS, false, figure_metric, "no metrics.jsonl: training writes it"},
    {"tokens-per-second", FROM_METRICS, false, figure_metric,
     "no metrics.jsonl: training writes it"},
    {"load-balancing-loss", FROM_METRICS, false, figure_metric,
     "no metrics.jsonl: training writes it"},
    {"time", FROM_SUMMARY, false, figure_time,
     "no times in summary.json: only runs on several ranks have them"},
    {"timeline", FROM_TRACE, true, figure_timeline, "no trace: --set trace.step=N"},
    {"layer", FROM_TRACE, true, figure_layer,
     "no trace in which a layer's forward and a backward ran at once"},
    {"schedule", FROM_TRACE, true, figure_schedule,
     "no trace of micro-batches: --set trace.step=N"},
    {"plan", FROM_JOB, true, figure_plan,
     "no schedule: job.yaml is absent, or its schedule cannot be made"},
    {"memory", FROM_TRACE, true, figure_memory, "no memory in a trace: --set trace.step=N"},
    {"pairs", FROM_PAIRS, true, figure_pairs,
     "no profile.json with pairs and no oef.csv: dhelix profile"},
    {"table", FROM_TABLE, true, figure_table,
     "no table.json: dhelix simulate --table KEY=V1,V2 --out RUN"},
    {"validation", FROM_VALIDATION, true, figure_validation, "the source is no published table"},
};

/* ---- making ---------------------------------------------------------------------------------- */

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

bool figure_is_listed(const char *names, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ','), at += at != NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || !at[n])) return true;
    return false;
}

static dh_status check_names(dh_ctx *ctx, const char *names)
{
    const char *known[DH_COUNTOF(rows)];
    char name[64];
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) known[i] = rows[i].name;
    for (const char *at = names; at; at = strchr(at, ','), at += at != NULL) {
        snprintf(name, sizeof name, "%.*s", (int)DH_MIN(strcspn(at, ","), sizeof name - 1), at);
        bool found = false;
        for (size_t i = 0; i < DH_COUNTOF(rows); i++) found |= strcmp(name, known[i]) == 0;
        if (found) continue;
        const char *near = dh_nearest(name, known, DH_COUNTOF(known));
        return dh_fail(ctx, DH_EINVAL, "there is no figure \"%s\"; %s%s", name,
                       near ? "did you mean "
                            : "there are loss, time, timeline, schedule, table "
                              "and others",
                       near ? near : "");
    }
    return DH_OK;
}

/* A figure that was asked for by name is listed also where the source cannot have it. */
static bool is_wanted(const char *names, size_t row, unsigned from)
{
    return names ? figure_is_listed(names, rows[row].name) : (rows[row].from & from) != 0;
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

/* One at least of the figures first to end - 1 is drawn. what: for people */
static dh_status check_drawn(dh_ctx *ctx, const char *what, const dh_figures *figures, size_t first,
                             size_t end)
{
    for (size_t i = first; i < end; i++)
        if (!figures->at[i].why[0]) return DH_OK;
    return dh_fail(ctx, DH_EMISSING, "%s: there is nothing to draw: %s", what,
                   figures->at[first].why);
}

static dh_status make_all(dh_ctx *ctx, const figured_run *runs, size_t n, const char *names,
                          dh_figures *figures)
{
    unsigned from = 0;
    size_t first[DH_COUNTOF(rows) + 1];
    for (size_t i = 0; i < n; i++) from |= runs[i].from;
    for (size_t row = 0; row < DH_COUNTOF(rows); row++) {
        first[row] = figures->n;
        if (!is_wanted(names, row, from)) continue;
        if (!rows[row].each) DH_TRY(make_one(ctx, row, runs, n, "", figures));
        for (size_t i = 0; rows[row].each && i < n; i++) {
            char end[16] = "";
            if (n > 1) snprintf(end, sizeof end, "-%d", (int)i + 1);
            if (is_wanted(names, row, runs[i].from))
                DH_TRY(make_one(ctx, row, &runs[i], 1, end, figures));
        }
    }
    first[DH_COUNTOF(rows)] = figures->n;
    if (!dh_json_is_whole()) return dh_no_memory(ctx);
    if (!names)
        return check_drawn(ctx, n > 1 ? "the sources" : runs[0].label, figures, 0, figures->n);
    for (size_t row = 0; row < DH_COUNTOF(rows); row++)
        if (is_wanted(names, row, from))
            DH_TRY(check_drawn(ctx, rows[row].name, figures, first[row], first[row + 1]));
    return DH_OK;
}

/* What would change nothing is a mistake. */
static dh_status check_options(dh_ctx *ctx, const figured_run *runs, size_t n,
                               const dh_figures_options *options)
{
    bool job = false, table = false;
    for (size_t i = 0; i < n; i++) {
        job |= runs[i].made.path != NULL;
        table |= runs[i].validation != NULL;
    }
    if (options->n_overrides && !job)
        return dh_fail(ctx, DH_EINVAL, "%s: settings are for jobs, and no source is a job",
                       options->overrides[0]);
    if (options->cluster && !job && !table)
        return dh_fail(ctx, DH_EINVAL,
                       "cluster %s: a cluster is for jobs and published tables, and no source is "
                       "one",
                       options->cluster->name);
    return DH_OK;
}

dh_status dh_figures_make(dh_ctx *ctx, const char *const *sources, size_t n,
                          const dh_figures_options *options, dh_figures *figures)
{
    figured_run own[DH_REPORT_MAX_RUNS] = {0};
    *figures = (dh_figures){0};
    DH_NEEDS_LIST(ctx, sources, n);
    DH_OR_DEFAULTS(dh_figures_options, options);
    if (n < 1 || n > DH_REPORT_MAX_RUNS || options->max_ranks < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "figures of %zu sources and %lld ranks: 1 to %d sources, and 0 ranks or "
                       "more",
                       n, (long long)options->max_ranks, DH_REPORT_MAX_RUNS);
    DH_TRY(check_names(ctx, options->figures));
    dh_status st = DH_OK;
    size_t n_opened = 0;
    dh_json_is_whole(); /* forgets documents that were made before */
    while (st == DH_OK && n_opened < n) {
        st = figured_source_open(ctx, sources[n_opened], options, &figures->inputs, &own[n_opened]);
        n_opened++;
    }
    if (st == DH_OK) st = check_options(ctx, own, n, options);
    if (st == DH_OK) label_runs(own, n);
    if (st == DH_OK) st = make_all(ctx, own, n, options->figures, figures);
    for (size_t i = 0; i < n_opened; i++) figured_source_close(&own[i]);
    if (st != DH_OK) dh_figures_fini(figures);
    return st;
}

void dh_figures_fini(dh_figures *figures)
{
    for (size_t i = 0; i < figures->n; i++) {
        dh_str_fini(&figures->at[i].svg);
        dh_str_fini(&figures->at[i].csv);
    }
    dh_str_fini(&figures->folder);
    dh_path_list_fini(&figures->inputs);
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

/* A file that is to be written is no folder, and none that the figures were drawn from. */
static dh_status check_file(dh_ctx *ctx, const dh_figures *figures, const char *file)
{
    if (dh_path_is_dir(file))
        return dh_fail(ctx, DH_EINVAL, "%s is a folder, and a figure's file would have its name",
                       file);
    if (!dh_path_exists(file)) return DH_OK;
    for (size_t i = 0; i < figures->inputs.paths.n; i++)
        DH_TRY(dh_output_check(ctx, file, figures->inputs.paths.at[i], false));
    return DH_OK;
}

static dh_status check_files(dh_ctx *ctx, const dh_figures *figures, const char *name, bool pdf)
{
    static const char *const endings[] = {"svg", "csv", "pdf"};
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < DH_COUNTOF(endings) - !pdf; i++) {
        dh_str file = DH_STR_INIT;
        dh_str_printf(&file, "%s/%s.%s", figures->folder.text, name, endings[i]);
        st = file.failed ? dh_no_memory(ctx) : check_file(ctx, figures, file.text);
        dh_str_fini(&file);
    }
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

/* The only figure that is drawn, for an output that is one file. */
static dh_status find_only(dh_ctx *ctx, dh_figures *figures, const char *file, dh_figure **only)
{
    dh_str names = DH_STR_INIT;
    size_t n = 0;
    for (size_t i = 0; i < figures->n; i++) {
        dh_figure *f = &figures->at[i];
        if (f->why[0]) continue;
        dh_str_printf(&names, "%s%s", n ? ", " : "", f->name);
        if (n++ == 0) *only = f;
    }
    dh_status st = DH_OK;
    if (names.failed)
        st = dh_no_memory(ctx);
    else if (n > 1)
        st = dh_fail(ctx, DH_EINVAL,
                     "%s is one file, and there are %zu figures (%s): name one, or "
                     "give a folder",
                     file, n, names.text);
    dh_str_fini(&names);
    return st;
}

/* FOLDER/NAME.svg: the figure gets the name. */
static dh_status name_file(dh_ctx *ctx, dh_figures *figures, const char *file, dh_figure **only)
{
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    const size_t n = strlen(name) - strlen(".svg"), room = sizeof figures->at[0].name;
    if (dh_path_is_dir(file))
        return dh_fail(ctx, DH_EINVAL, "%s is a folder: name a file, or %s/ to write into it", file,
                       file);
    DH_TRY(find_only(ctx, figures, file, only));
    if (n < 1 || n >= room)
        return dh_fail(ctx, DH_EINVAL, "%s: a name of 1 to %zu bytes before .svg is wanted", file,
                       room - 1);
    snprintf((*only)->name, room, "%.*s", (int)n, name);
    dh_str_printf(&figures->folder, "%.*s", slash ? (int)(slash - file) + (slash == file) : 1,
                  slash ? file : ".");
    return DH_OK;
}

/* Names of figures as CSV files are also files of a run, but not those of its folders. */
dh_status dh_figures_write(dh_ctx *ctx, dh_figures *figures, const char *out, bool pdf)
{
    const size_t n = strlen(out);
    dh_figure *only = NULL;
    dh_str_clear(&figures->folder);
    if (n >= 4 && strcmp(out + n - 4, ".svg") == 0)
        DH_TRY(name_file(ctx, figures, out, &only));
    else
        dh_str_printf(&figures->folder, "%s", out);
    const char *dir = figures->folder.text;
    if (figures->folder.failed) return dh_no_memory(ctx);
    DH_TRY(dh_output_check_no_run(ctx, dir));
    for (size_t i = 0; i < figures->n; i++)
        if (!figures->at[i].why[0]) DH_TRY(check_files(ctx, figures, figures->at[i].name, pdf));
    DH_TRY(dh_dir_create(ctx, dir));
    for (size_t i = 0; i < figures->n; i++) {
        dh_figure *f = &figures->at[i];
        if (f->why[0])
            DH_TRY(only ? DH_OK : say_left(ctx, dir, f));
        else
            DH_TRY(put(ctx, dir, f));
    }
    return DH_OK;
}

/* ---- for callers ----------------------------------------------------------------------------- */

dh_status dh_figures_check_json(dh_ctx *ctx, const char *out)
{
    size_t at;
    if (dh_json_can_hold(out, &at)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "the name of the output is not UTF-8 (byte %zu), as JSON is",
                   at + 1);
}

json_t *dh_figures_json(const dh_figures *figures, const char *out)
{
    json_t *drawn = json_array(), *missing = json_object();
    for (size_t i = 0; i < figures->n; i++) {
        const dh_figure *f = &figures->at[i];
        if (f->why[0])
            json_object_set_new(missing, f->name, json_string(f->why));
        else
            json_array_append_new(drawn, json_string(f->name));
    }
    return json_pack("{ss so so}", "out", out, "figures", drawn, "missing", missing);
}

dh_status dh_report_figures(dh_ctx *ctx, const char *const *sources, size_t n,
                            const dh_figures_options *options, const char *out, dh_str *json)
{
    dh_figures figures;
    DH_NEEDS_LIST(ctx, sources, n);
    DH_NEEDS(ctx, out);
    DH_NEEDS(ctx, json);
    DH_TRY(dh_figures_check_json(ctx, out));
    DH_TRY(dh_figures_make(ctx, sources, n, options, &figures));
    dh_status st = dh_figures_write(ctx, &figures, out, false);
    if (st == DH_OK) st = dh_json_append(ctx, dh_figures_json(&figures, out), json);
    dh_figures_fini(&figures);
    return st;
}
