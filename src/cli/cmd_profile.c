/* dhelix profile: measure a job's operators, alone and in pairs, and keep what they took. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "cli/cli.h"
#include "dhelix/train.h"
#include "train/profiling.h"

typedef struct profile_args {
    const char *out, *matrix;
    int64_t samples, ranks;
    double seconds;
} profile_args;

static const dh_cli_option options[] = {
    {.name = "out",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(profile_args, out),
     .value = "FILE",
     .doc = "where the profile goes, for the setting `profile`; by default where runs of such a "
            "job find it"},
    {.name = "samples",
     .kind = DH_CLI_INT,
     .offset = offsetof(profile_args, samples),
     .value = "N",
     .min = 1,
     .max = 10000,
     .doc = "times that every operator and pair is run on each rank (default 11)"},
    {.name = "seconds",
     .kind = DH_CLI_REAL,
     .offset = offsetof(profile_args, seconds),
     .value = "S",
     .min = 0.001,
     .max = 1e6,
     .doc = "begin no further sample after this time, once there are 3 (default 60)"},
    {.name = "import",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(profile_args, matrix),
     .value = "CSV",
     .doc = "measure nothing: overlap effectiveness from a matrix, rows forward, columns backward"},
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
    char solo[32], spread[32], estimate[32];
    dh_str_printf(out, "  #  %-30s %-8s %-4s %10s %10s %10s  %s\n", "operator", "stream", "in",
                  "alone", "spread", "estimate", "source");
    for (size_t i = 0; i < p->ops.n; i++) {
        const dh_profile_op *op = &p->ops.at[i];
        dh_str_printf(out, "%3zu  %-30s %-8s %s%s   %10s %10s %10s  %s\n", i + 1, op->label,
                      dh_stream_name(op->stream), op->forward ? "f" : "-", op->backward ? "b" : "-",
                      dh_format_ns(solo, sizeof solo, (double)op->solo_ns),
                      dh_format_ns(spread, sizeof spread, (double)op->spread_ns),
                      dh_format_ns(estimate, sizeof estimate, (double)op->estimate_ns),
                      dh_pair_source_name(op->source));
    }
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

static void print_cell(dh_str *out, const dh_profile *p, uint32_t f, uint32_t b, int *n_unusual)
{
    double oef;
    if (oef_of(p, f, b, &oef)) {
        *n_unusual += dh_oef_unusual(oef);
        dh_str_printf(out, " %5.2f%s", oef, dh_oef_unusual(oef) ? "!" : " ");
    } else {
        dh_str_printf(out, " %5s ", p->ops.at[f].stream == p->ops.at[b].stream ? "." : "?");
    }
}

static void print_row(dh_str *out, const dh_profile *p, uint32_t f, int *n_unusual)
{
    dh_str_printf(out, "%3u  %-26.26s", f + 1, p->ops.at[f].label);
    for (uint32_t b = 0; b < p->ops.n; b++)
        if (p->ops.at[b].backward) print_cell(out, p, f, b, n_unusual);
    dh_str_printf(out, "\n");
}

static void print_matrix(dh_str *out, const dh_profile *p)
{
    int n_unusual = 0;
    dh_str_printf(out, "\noverlap effectiveness: rows forward, columns backward, by number\n%31s",
                  "");
    for (uint32_t b = 0; b < p->ops.n; b++)
        if (p->ops.at[b].backward) dh_str_printf(out, " %5u ", b + 1);
    dh_str_printf(out, "\n");
    for (uint32_t f = 0; f < p->ops.n; f++)
        if (p->ops.at[f].forward) print_row(out, p, f, &n_unusual);
    dh_str_printf(out, "1: the shorter is hidden; 0: nothing gained; below: contention; \".\": one "
                       "stream, one after the other\n");
    if (n_unusual > 0)
        dh_str_printf(out, "\"!\": outside [-1, 1]; kept, but look again: %d\n", n_unusual);
}

static dh_status print_text(dh_ctx *ctx, const dh_profile *p, const char *path, double seconds)
{
    char launch[32], event[32];
    dh_str out = DH_STR_INIT;
    print_ops(&out, p);
    if (p->pairs.n > 0) print_matrix(&out, p);
    dh_str_printf(&out, "\n%zu classes of operators, %zu pairs, %.1f s\n", p->ops.n, p->pairs.n,
                  seconds);
    if (p->launch_ns > 0)
        dh_str_printf(&out, "between instructions %s, after another stream %s\n",
                      dh_format_ns(launch, sizeof launch, (double)p->launch_ns),
                      dh_format_ns(event, sizeof event, (double)p->event_ns));
    dh_str_printf(&out, "profile  %s\n", path);
    return dh_cli_print_str(ctx, &out);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static dh_status print_json(dh_ctx *ctx, const dh_profile *p, const char *path, double seconds)
{
    dh_str text = DH_STR_INIT;
    DH_TRY(dh_profile_print(ctx, p, &text));
    json_t *content;
    dh_status st = dh_json_read(ctx, text.text, text.len, 0, NULL, &content);
    dh_str_fini(&text);
    DH_TRY(st);
    return dh_cli_print_json(
        ctx, json_pack("{ss sf so}", "file", path, "seconds", seconds, "content", content));
}

/* ---- the command ---------------------------------------------------------------------------- */

static dh_status import(dh_ctx *ctx, dh_job *job, const char *csv, dh_profile **profile)
{
    dh_oef_matrix *matrix;
    DH_TRY(dh_oef_matrix_read(ctx, csv, &matrix));
    dh_status st = dh_profile_import(ctx, job, matrix, csv, profile);
    dh_oef_matrix_destroy(matrix);
    return st;
}

static dh_status make(dh_ctx *ctx, const dh_cli *cli, const profile_args *a, dh_job *job,
                      dh_profile **profile)
{
    const dh_profile_options how = {.quiet = cli->quiet,
                                    .samples = a->samples,
                                    .seconds = a->seconds,
                                    .stop = dh_cli_catch_signals()};
    return a->matrix ? import(ctx, job, a->matrix, profile)
                     : dh_profile_measure(ctx, job, &how, profile);
}

static dh_status store(dh_ctx *ctx, const dh_cli *cli, const profile_args *a, const dh_job *job,
                       const dh_profile *profile, double seconds)
{
    dh_str path = DH_STR_INIT;
    if (a->out) dh_str_printf(&path, "%s", a->out);
    dh_status st = a->out ? DH_OK : dh_profile_place(ctx, job, profile, &path);
    if (st == DH_OK) st = dh_profile_store(ctx, profile, path.text);
    if (st == DH_OK && cli->json) st = print_json(ctx, profile, path.text, seconds);
    if (st == DH_OK && !cli->json && !cli->quiet) st = print_text(ctx, profile, path.text, seconds);
    dh_str_fini(&path);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const profile_args *a = args;
    const int64_t start_ns = dh_now_ns();
    dh_job *job;
    dh_profile *profile = NULL;
    if (a->matrix && (a->samples || a->seconds > 0))
        return dh_cli_misuse(ctx, cli,
                             "--import measures nothing: leave --samples and --seconds "
                             "away");
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks ? a->ranks : dh_launched_ranks(),
                           &job));
    dh_status st = make(ctx, cli, a, job, &profile);
    if (st == DH_OK && profile) /* one process of several has it */
        st = store(ctx, cli, a, job, profile, (double)(dh_now_ns() - start_ns) * 1e-9);
    dh_profile_destroy(profile);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_profile = {
    .name = "profile",
    .doc = "measure a job's operators, alone and side by side, for later runs to be ordered by",
    .usage = "JOB",
    .notes =
        "Operators run on the job's ranks, threads or processes, and on its links, with the job's\n"
        "sizes and data, in a model of one layer a pipeline stage: those that any strategy has,\n"
        "whichever the job names, so also parts of GEMMs and their transfers with tensor\n"
        "parallelism. Both completion times of every pair of a forward and a backward operator\n"
        "on different streams are kept.\n"
        "\n"
        "The profile carries a signature: processor, threads, type, mesh, links, versions. Runs\n"
        "with the same signature find it by themselves (setting `profile: auto`); a file named\n"
        "there that does not match is refused with what differs. It lies in profiles/ of\n"
        "data.cache where the job sets that, else of $XDG_CACHE_HOME/dhelix or ~/.cache/dhelix.\n"
        "What a file of the same signature knows of other models is kept.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(profile_args),
    .run = run};
