/* dhelix profile: measure a job's operators, alone and in pairs, and keep what they took. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "describe/profiled.h"
#include "dhelix/train.h"

typedef struct profile_args {
    const char *out, *matrix;
    int64_t samples, ranks;
    double seconds;
    dh_cli_list traces;
} profile_args;

static const dh_cli_option options[] = {
    {.name = "out",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(profile_args, out),
     .value = "FILE",
     .doc = "profile to write, for the setting `profile`; default: the place where runs of such a "
            "job find it"},
    {.name = "samples",
     .kind = DH_CLI_INT,
     .offset = offsetof(profile_args, samples),
     .value = "N",
     .min = 1,
     .max = 10000,
     .doc = "number of times that every operator and pair runs on each rank (default: 11)"},
    {.name = "seconds",
     .kind = DH_CLI_REAL,
     .offset = offsetof(profile_args, seconds),
     .value = "S",
     .min = 0.001,
     .max = 1e6,
     .doc = "begin no sample after this time, once there are 3 of each (default: 60)"},
    {.name = "import",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(profile_args, matrix),
     .value = "CSV",
     .doc = "measure nothing: read overlap effectiveness from a matrix whose rows are forward "
            "operators and columns backward operators"},
    {.name = "from-trace",
     .kind = DH_CLI_TAIL,
     .offset = offsetof(profile_args, traces),
     .value = "FILE...",
     .doc = "measure nothing: read times from PyTorch profiler (Kineto) traces of the same model, "
            "one or more ranks, or from our own traces; operators without a match are listed"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(profile_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "ranks of the run; the same as --set ranks=N"},
};

/* ---- as text ------------------------------------------------------------------------------ */

static void print_ops(dh_str *out, const dh_profile *p)
{
    static const struct {
        const char *heading;
        dh_cli_column_kind kind;
    } columns[] = {{"#", DH_CLI_COLUMN_RIGHT},        {"operator", DH_CLI_COLUMN_LEFT},
                   {"stream", DH_CLI_COLUMN_LEFT},    {"in", DH_CLI_COLUMN_LEFT},
                   {"alone", DH_CLI_COLUMN_RIGHT},    {"spread", DH_CLI_COLUMN_RIGHT},
                   {"estimate", DH_CLI_COLUMN_RIGHT}, {"source", DH_CLI_COLUMN_LEFT}};
    dh_cli_table table;
    char text[32];
    dh_cli_table_begin(&table);
    for (size_t i = 0; i < DH_COUNTOF(columns); i++)
        dh_cli_table_column(&table, columns[i].heading, columns[i].kind);
    for (size_t i = 0; i < p->ops.n; i++) {
        const dh_profile_op *op = &p->ops.at[i];
        const int64_t ns[] = {op->solo_ns, op->spread_ns, op->estimate_ns};
        dh_cli_table_cell(&table, "%zu", i + 1);
        dh_cli_table_cell(&table, "%s", op->label);
        dh_cli_table_cell(&table, "%s", dh_stream_name(op->stream));
        dh_cli_table_cell(&table, "%s%s", op->forward ? "f" : "-", op->backward ? "b" : "-");
        for (size_t k = 0; k < DH_COUNTOF(ns); k++)
            dh_cli_table_cell(&table, "%s", dh_format_ns(text, sizeof text, (double)ns[k]));
        dh_cli_table_cell(&table, "%s", dh_pair_source_name(op->source));
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* Of a pair as it stands in the table; false where nothing is known. */
static bool oef_of(const dh_profile *p, uint32_t f, uint32_t b, double *oef)
{
    uint32_t at = dh_profile_find_pair(p, f, b);
    if (at == DH_NONE) at = dh_profile_find_pair(p, b, f);
    if (at == DH_NONE) return false;
    const dh_profile_pair *pair = &p->pairs.at[at];
    *oef = dh_oef(p->ops.at[f].solo_ns, p->ops.at[b].solo_ns, DH_MAX(pair->a_ns, pair->b_ns));
    return true;
}

/* "0.93", "-1.20!" where it is unusual; what is not known says why. */
static void add_cell(dh_cli_table *table, const dh_profile *p, uint32_t f, uint32_t b,
                     int *n_unusual)
{
    double oef;
    if (!oef_of(p, f, b, &oef)) {
        dh_cli_table_cell(table, p->ops.at[f].stream == p->ops.at[b].stream ? ". " : "? ");
        return;
    }
    *n_unusual += dh_oef_unusual(oef);
    dh_cli_table_cell(table, "%.2f%s", oef, dh_oef_unusual(oef) ? "!" : " ");
}

enum { LABEL_WIDTH = 24, CELL_WIDTH = 8 }; /* columns of the matrix; a cell has the gap before it */

/* As many backward operators as fit a line, from *next on, which moves behind them. */
static void print_part(dh_str *out, const dh_profile *p, uint32_t *next, int *n_unusual)
{
    char headings[DH_CLI_TABLE_COLUMNS][16];
    uint32_t shown[DH_CLI_TABLE_COLUMNS];
    const size_t room = (size_t)((dh_cli_columns() - 5 - LABEL_WIDTH) / CELL_WIDTH);
    const size_t most = DH_MAX(DH_MIN(room, DH_CLI_TABLE_COLUMNS - 2), (size_t)1);
    size_t n = 0;
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "#", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "forward", DH_CLI_COLUMN_LEFT);
    for (; *next < p->ops.n && n < most; ++*next) {
        if (!p->ops.at[*next].backward) continue;
        snprintf(headings[n], sizeof headings[n], "%u ", *next + 1);
        dh_cli_table_column(&table, headings[n], DH_CLI_COLUMN_RIGHT);
        shown[n++] = *next;
    }
    for (uint32_t f = 0; f < p->ops.n; f++) {
        if (!p->ops.at[f].forward) continue;
        dh_cli_table_cell(&table, "%u", f + 1);
        dh_cli_table_cell(&table, "%.*s", LABEL_WIDTH, p->ops.at[f].label);
        for (size_t k = 0; k < n; k++) add_cell(&table, p, f, shown[k], n_unusual);
    }
    dh_str_printf(out, "\n");
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void print_matrix(dh_str *out, const dh_profile *p)
{
    int n_unusual = 0;
    uint32_t n_left = 0;
    for (uint32_t b = 0; b < p->ops.n; b++) n_left += p->ops.at[b].backward;
    dh_str_printf(out, "\noverlap effectiveness: rows forward, columns backward, by number\n");
    for (uint32_t next = 0; next < p->ops.n && n_left > 0;) {
        print_part(out, p, &next, &n_unusual);
        n_left = 0;
        for (uint32_t b = next; b < p->ops.n; b++) n_left += p->ops.at[b].backward;
    }
    dh_str_wrap(
        out,
        "1: the shorter is hidden; 0: nothing gained; below: contention; \".\": one stream, "
        "one after the other",
        0, dh_cli_columns());
    if (n_unusual > 0) dh_str_printf(out, "\"!\": outside [-1, 1]: %d\n", n_unusual);
}

static void print_list(dh_str *out, const char *title, const char *const *at, size_t n)
{
    if (n > 0) dh_str_printf(out, "\n%s\n", title);
    for (size_t i = 0; i < n; i++) {
        dh_str_printf(out, "  ");
        dh_str_wrap(out, at[i], 4, dh_cli_columns());
    }
}

static void print_unmatched(dh_str *out, const dh_traced *t)
{
    print_list(out, "operators of the job that no trace has; estimated:", t->operators.at,
               t->operators.n);
    print_list(out, "in the traces, but nothing of the job:", t->measurements.at,
               t->measurements.n);
}

static dh_status print_text(dh_ctx *ctx, const dh_profiled *profiled)
{
    const dh_profile *p = profiled->profile;
    char launch[32], event[32];
    dh_str out = DH_STR_INIT;
    print_ops(&out, p);
    if (p->pairs.n > 0) print_matrix(&out, p);
    dh_str_printf(&out, "\n%zu classes of operators, %zu pairs, %.1f s\n", p->ops.n, p->pairs.n,
                  profiled->seconds);
    if (p->launch_ns > 0)
        dh_str_printf(&out, "between instructions %s, after another stream %s\n",
                      dh_format_ns(launch, sizeof launch, (double)p->launch_ns),
                      dh_format_ns(event, sizeof event, (double)p->event_ns));
    if (profiled->from_traces) print_unmatched(&out, &profiled->traced);
    dh_str_printf(&out, "profile  %s\n", profiled->path.text);
    return dh_cli_print_str(ctx, &out);
}

static dh_status print_json(dh_ctx *ctx, const dh_profiled *profiled)
{
    json_t *document;
    DH_TRY(dh_profiled_json(ctx, profiled, &document));
    return dh_cli_print_json(ctx, document);
}

/* ---- the command ---------------------------------------------------------------------------- */

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const profile_args *a = args;
    const bool measures = !a->matrix && a->traces.n == 0;
    dh_job *job;
    if (a->matrix && a->traces.n > 0)
        return dh_cli_misuse(ctx, cli, "--import and --from-trace: one of them");
    if (!measures && (a->samples || a->seconds > 0))
        return dh_cli_misuse(ctx, cli, "%s measures nothing: leave --samples and --seconds away",
                             a->matrix ? "--import" : "--from-trace");
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks ? a->ranks : dh_launched_ranks(),
                           &job));
    const dh_describe_profile_options how = {.out = a->out,
                                             .samples = a->samples,
                                             .seconds = a->seconds,
                                             .matrix = a->matrix,
                                             .traces = a->traces.at,
                                             .n_traces = a->traces.n,
                                             .progress = !cli->quiet,
                                             .stop = measures ? dh_cli_end_at_signals(cli->quiet)
                                                              : NULL};
    dh_profiled profiled;
    dh_status st = dh_profiled_make(ctx, job, &how, &profiled);
    if (st == DH_OK && profiled.profile && cli->json)
        st = print_json(ctx, &profiled);
    else if (st == DH_OK && profiled.profile && !cli->quiet)
        st = print_text(ctx, &profiled);
    dh_profiled_fini(&profiled);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_profile = {
    .name = "profile",
    .doc = "measure a job's operators, alone and in pairs, for the order of later runs",
    .usage = "JOB",
    .notes =
        "Operators run on the job's ranks (threads or processes) and links, with the job's\n"
        "sizes and data. The measured model has one layer for each pipeline stage. It has the\n"
        "operators of every strategy, whichever the job names; with tensor parallelism these\n"
        "include parts of GEMMs and their transfers. For every pair of a forward and a\n"
        "backward operator on different streams the profile keeps both completion times.\n"
        "\n"
        "The profile carries a signature: processor, threads, type, mesh, links, versions.\n"
        "Runs with the same signature find it (setting `profile: auto`). When the job names a\n"
        "file that does not match, the run is refused, and the message says what differs. The\n"
        "profile lies in profiles/ of data.cache where the job sets that, else of\n"
        "$XDG_CACHE_HOME/dhelix or ~/.cache/dhelix. What a file of the same signature has of\n"
        "other models is kept.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(profile_args),
    .run = run};
