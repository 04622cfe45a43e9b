/* dhelix tune: which mesh, micro-batch, recomputation, schedule and strategy are fastest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "cli/cli.h"
#include "cli/switched.h"
#include "cli/tuned.h"
#include "config/settings.h"
#include "plan/schedule.h"

typedef struct tune_args {
    const char *cluster, *memory, *strategies, *schedules, *zeros, *buckets, *sequences, *fusions,
        *posts, *write, *lengths;
    int64_t devices, top, verify, threads;
    double within;
} tune_args;

static const tune_args defaults = {.top = 10, .verify = 8};

static const dh_cli_option options[] = {
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, cluster),
     .value = "NAME|FILE",
     .doc = "hardware to plan for: a name of `dhelix list clusters` or a file; default: this "
            "machine's costs"},
    {.name = "devices",
     .kind = DH_CLI_INT,
     .offset = offsetof(tune_args, devices),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "number of devices; default: the job's ranks"},
    {.name = "memory",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, memory),
     .value = "SIZE",
     .doc = "memory of a device, as 80GB or 74.5GiB; default: the cluster's"},
    {.name = "strategies",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, strategies),
     .value = "all|A,B",
     .doc = "strategies to search (`dhelix list strategies`)"},
    {.name = "schedules",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, schedules),
     .value = "all|A,B",
     .doc = "schedules to search (`dhelix list schedules`); strategies with two strands have "
            "schedules of their own"},
    {.name = "zero",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, zeros),
     .value = "all|0,1,..",
     .doc = "degrees of parallel.zero to search; default: the job's"},
    {.name = "buckets",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, buckets),
     .value = "MB,MB",
     .doc = "sizes of parallel.bucket_mb to search, auto among them; default: the job's"},
    {.name = "sequence",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, sequences),
     .value = "all|true|false",
     .doc = "values of parallel.sequence to search: tokens split over tensor-parallel ranks, or "
            "whole; default: the job's"},
    {.name = "fuse",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, fusions),
     .value = "all|off,1,..",
     .doc = "values of optimizer.fuse to search where parallel.zero is 1 or 2; default: the job's"},
    {.name = "post-validation",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, posts),
     .value = "all|true|false",
     .doc = "values of optimizer.post_validation to search where there are pipeline stages; "
            "default: the job's"},
    {.name = "top",
     .kind = DH_CLI_INT,
     .offset = offsetof(tune_args, top),
     .value = "N",
     .min = 1,
     .max = 10000,
     .doc = "number of configurations to show; default: 10"},
    {.name = "verify",
     .kind = DH_CLI_INT,
     .offset = offsetof(tune_args, verify),
     .value = "N",
     .min = 0,
     .max = 1000,
     .doc = "number of best estimates to simulate; they are then ranked by simulation; 0: no "
            "simulation; default: 8"},
    {.name = "within",
     .kind = DH_CLI_REAL,
     .offset = offsetof(tune_args, within),
     .value = "X",
     .min = 1,
     .max = 1e9,
     .doc = "leave a configuration out of the estimates when its GEMMs, attention and rings alone "
            "take over X times the best step of the first strategy; only their number is printed; "
            "default: 1.5 above 20000 configurations, otherwise everything is estimated"},
    {.name = "threads",
     .kind = DH_CLI_INT,
     .offset = offsetof(tune_args, threads),
     .value = "N",
     .min = 1,
     .max = 1024,
     .doc = "threads that estimate; at most 8 of them simulate; default: one per core. The result "
            "does not depend on it"},
    {.name = "lengths",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(tune_args, lengths),
     .value = "FILE|data",
     .doc = "search groups of documents by length instead, with a mesh for each group "
            "(data.packing: group). FILE has the number of tokens of one document per line, or a "
            "histogram (length and count, or low, high and count); data: the job's data"},
    {.name = "write",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(tune_args, write),
     .value = "FILE",
     .doc = "write the best configuration as a job file"},
};

/* ---- the job -------------------------------------------------------------------------------- */

/* The job as it stands, also for its ranks where the command line does not say how many. */
static dh_status find_given(dh_ctx *ctx, dh_cli *cli, const tune_args *a, dh_job **job,
                            char *refused, size_t cap)
{
    DH_TRY(dh_tune_load_given(ctx, cli->args.at[0], cli->set.at, cli->set.n, a->devices, job,
                              refused, cap));
    const dh_status st = *job ? dh_cli_check_job_files(ctx, cli, *job) : DH_OK;
    if (st != DH_OK) dh_job_destroy(*job);
    return st;
}

/* ---- memory --------------------------------------------------------------------------------- */

static dh_status read_memory(dh_ctx *ctx, dh_cli *cli, const char *text, double *bytes)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"GiB", 1073741824.0},    {"GB", 1e9}, {"MiB", 1048576.0}, {"MB", 1e6},
                 {"TiB", 1099511627776.0}, {"TB", 1e12}};
    char number[32];
    *bytes = 0;
    for (size_t i = 0; text && i < DH_COUNTOF(units); i++) {
        const size_t n = strlen(text), unit = strlen(units[i].name);
        if (n <= unit || strcmp(text + n - unit, units[i].name) != 0) continue;
        snprintf(number, sizeof number, "%.*s", (int)DH_MIN(n - unit, sizeof number - 1), text);
        if (!dh_parse_f64(number, bytes) || !(*bytes > 0)) break;
        *bytes *= units[i].bytes;
        return DH_OK;
    }
    if (!text) return DH_OK;
    return dh_cli_misuse(ctx, cli,
                         "--memory %s: a size above 0 with its unit is wanted, as in "
                         "80GB or 74.5GiB",
                         text);
}

/* ---- result --------------------------------------------------------------------------------- */

/* A job file with a line of how it was found. */
static dh_status write_job(dh_ctx *ctx, const char *path, const dh_job *job, const dh_str *line)
{
    char *text = NULL;
    dh_str out = DH_STR_INIT;
    DH_TRY(dh_job_print_changes(ctx, job, path, &text));
    dh_str_printf(&out, "# %s\n%s", line->text ? line->text : "", text);
    free(text);
    const dh_status st = out.failed || line->failed
                             ? dh_no_memory(ctx)
                             : dh_file_write_atomic(ctx, path, out.text, out.len);
    dh_str_fini(&out);
    return st;
}

/* The search divides layers as evenly as can be; where they divide, nothing has to be said. */
static void drop_split(dh_job *job)
{
    const dh_schedule_row *row;
    dh_ctx quiet = DH_CTX_INIT;
    if (strcmp(job->layer_split, "*") != 0 ||
        dh_schedule_find(&quiet, job->schedule, &row) != DH_OK)
        return;
    const int64_t n_chunks = job->pp * DH_MAX((int64_t)row->n_chunks, job->vpp);
    if (job->model.n_layers % n_chunks == 0) job->layer_split = dh_arena_strdup(job->arena, "");
}

static dh_status write_best(dh_ctx *ctx, const char *path, const dh_tuned *tuned, dh_job *job)
{
    const dh_tune *t = tuned->tune;
    char step[32];
    dh_str line = DH_STR_INIT;
    if (t->n_rows == 0 || !t->rows[0].fits)
        return dh_fail(ctx, DH_EINVAL, "--write %s: no configuration fits", path);
    const dh_tune_row *best = &t->rows[0];
    DH_TRY(dh_tune_apply(ctx, &best->config, job));
    drop_split(job);
    if (!job->layer_split) return dh_no_memory(ctx);
    dh_format_ns(step, sizeof step,
                 best->simulated_ns > 0 ? (double)best->simulated_ns : best->step_ns);
    dh_str_printf(&line, "dhelix tune, %lld devices, %s: %s a step %s", (long long)tuned->devices,
                  t->costs, step, best->simulated_ns > 0 ? "simulated" : "estimated");
    const dh_status st = write_job(ctx, path, job, &line);
    dh_str_fini(&line);
    return st;
}

static dh_status report(dh_ctx *ctx, const dh_cli *cli, const dh_tuned *tuned)
{
    dh_str out = DH_STR_INIT;
    if (cli->json) return dh_cli_print_json(ctx, dh_tuned_json(tuned));
    dh_tuned_print(tuned, &out);
    return dh_cli_print_str(ctx, &out);
}

static void say_rate(const dh_cli *cli, const dh_tune *t)
{
    const double n =
        (double)(t->n_fit + t->n_too_large + t->n_refused + t->n_left_out + t->n_behind);
    const double s = (double)t->search_ns * 1e-9;
    if (!cli->quiet)
        dh_fprintf(stderr, "%.0f configurations in %.2f s: %.0f a second\n", n, s, n / s);
}

static dh_status search(dh_ctx *ctx, const dh_cli *cli, const tune_args *a,
                        const dh_tune_options *how, dh_job *job)
{
    dh_tune *tune;
    DH_TRY(dh_tune_search(ctx, job, how, &tune));
    const dh_tuned tuned = dh_tuned_of(job, how, tune);
    say_rate(cli, tune);
    dh_status st = report(ctx, cli, &tuned);
    if (st == DH_OK && a->write) st = write_best(ctx, a->write, &tuned, job);
    dh_tune_destroy(tune);
    return st;
}

/* ---- by length ------------------------------------------------------------------------------ */

static dh_status write_plan(dh_ctx *ctx, const char *path, const dh_length_plan *best)
{
    dh_str line = DH_STR_INIT;
    if (!best->fits) return dh_fail(ctx, DH_EINVAL, "--write %s: no plan fits", path);
    dh_str_printf(&line, "dhelix tune --lengths: %.0f tokens/s simulated",
                  best->switched.tokens / (best->switched.step_ns * 1e-9));
    const dh_status st = write_job(ctx, path, best->job, &line);
    dh_str_fini(&line);
    return st;
}

static dh_status report_plans(dh_ctx *ctx, const dh_cli *cli, const dh_length_plans *plans)
{
    dh_str out = DH_STR_INIT;
    if (cli->json) return dh_cli_print_json(ctx, dh_length_plans_json(plans));
    dh_length_plans_print(plans, &out);
    return dh_cli_print_str(ctx, &out);
}

static dh_status search_lengths(dh_ctx *ctx, dh_cli *cli, const tune_args *a,
                                const dh_tune_options *how, dh_job *job)
{
    dh_length_plans plans;
    const dh_length_options lengths = {.cluster = how->cluster,
                                       .memory_bytes = dh_tune_device_bytes(how),
                                       .lengths =
                                           strcmp(a->lengths, "data") == 0 ? NULL : a->lengths,
                                       .strategies = a->strategies,
                                       .fixed_strategy = how->fixed >> DH_TUNE_STRATEGY & 1,
                                       .fixed_schedule = how->fixed >> DH_TUNE_SCHEDULE & 1,
                                       .fixed_recompute = how->fixed >> DH_TUNE_RECOMPUTE & 1};
    if (a->schedules)
        return dh_cli_misuse(ctx, cli,
                             "--lengths tries the job's schedule and a few others, not those of a "
                             "list: --set parallel.schedule=NAME keeps it to one");
    job->ranks = how->devices;
    job->dp = job->micro_batch = job->nodes = job->ranks_per_node = 0;
    DH_TRY(dh_job_check(ctx, job));
    dh_status st = dh_tune_lengths(ctx, job, &lengths, &plans);
    if (st == DH_OK) st = report_plans(ctx, cli, &plans);
    if (st == DH_OK && a->write) st = write_plan(ctx, a->write, &plans.plans[0]);
    dh_length_plans_fini(&plans);
    return st;
}

/* The job as a search takes it; that by length decides about packing itself. */
static dh_status load_job(dh_ctx *ctx, const dh_cli *cli, const tune_args *a, dh_job **job,
                          unsigned *fixed)
{
    const size_t n = cli->set.n;
    if (!a->lengths) return dh_tune_load(ctx, cli->args.at[0], cli->set.at, n, job, fixed);
    const char **all = calloc(n + 2, sizeof *all);
    if (!all) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) all[i] = cli->set.at[i];
    all[n] = "data.packing=pack";
    all[n + 1] = "switch.groups=";
    const dh_status st = dh_tune_load(ctx, cli->args.at[0], all, n + 2, job, fixed);
    free(all);
    return st;
}

/* A search takes minutes: whether its result can be written is known before. */
static dh_status check_write(dh_ctx *ctx, const char *path)
{
    dh_temporary probe = DH_TEMPORARY_NONE;
    dh_ctx inner = DH_CTX_INIT;
    if (!path) return DH_OK;
    const dh_status st = dh_temporary_file(&inner, path, &probe);
    dh_temporary_drop(&probe);
    if (st == DH_OK) return st;
    if (st == DH_ENOMEM) return dh_no_memory(ctx);
    return dh_fail(
        ctx, st, "--write %s cannot be written: its folder is not there, or takes no files", path);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const tune_args *a = args;
    dh_cluster *cluster = NULL;
    dh_job *job = NULL, *given;
    char refused[sizeof ctx->message];
    unsigned fixed = 0;
    double memory_bytes;
    DH_TRY(read_memory(ctx, cli, a->memory, &memory_bytes));
    DH_TRY(check_write(ctx, a->write));
    DH_TRY(find_given(ctx, cli, a, &given, refused, sizeof refused));
    dh_status st = load_job(ctx, cli, a, &job, &fixed);
    if (st == DH_OK) st = dh_cli_check_job_files(ctx, cli, job);
    if (st == DH_OK && a->cluster) st = dh_cluster_find(ctx, a->cluster, &cluster);
    dh_tune_options how = {.cluster = cluster,
                           .devices = a->devices > 0 ? a->devices : given->ranks,
                           .given = given,
                           .given_refused = *refused ? refused : NULL,
                           .memory_bytes = memory_bytes,
                           .fixed = fixed,
                           .strategies = a->strategies,
                           .schedules = a->schedules,
                           .zeros = a->zeros,
                           .buckets = a->buckets,
                           .sequences = a->sequences,
                           .fusions = a->fusions,
                           .posts = a->posts,
                           .n_rows = (size_t)a->top,
                           .n_simulated = (size_t)a->verify,
                           .within = a->within,
                           .n_threads = a->threads,
                           .quiet = cli->quiet};
    dh_cli_end_at_signals(cli->quiet);
    if (st == DH_OK)
        st = a->lengths ? search_lengths(ctx, cli, a, &how, job) : search(ctx, cli, a, &how, job);
    dh_cluster_destroy(cluster);
    dh_job_destroy(given);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_tune = {
    .name = "tune",
    .doc = "find the fastest mesh, micro-batch, recomputation, schedule and strategy",
    .usage = "JOB",
    .notes =
        "The search replaces the mesh, micro-batch, recomputation, schedule and strategy of the\n"
        "job file. A value given by --set stays fixed (--set parallel.tp=8). Other settings stay\n"
        "as in the job unless an option above names values for them. With linear attention on\n"
        "context-parallel ranks, both values of parallel.cp_linear are tried.\n"
        "\n"
        "The first row is the job as given. Memory is judged as the job's system needs it. The\n"
        "best configurations are also tried with fewer layers in the first and last stages.\n"
        "\n"
        "Every possible configuration is estimated. The best ones are simulated as `dhelix\n"
        "simulate` does it, and both figures are shown. Memory is that of the rank that needs\n"
        "most.\n"
        "\n"
        "A second table says why other values were not chosen: for each single value, the best\n"
        "configuration with it and what it costs. Simulated steps are compared with simulated\n"
        "steps, estimates with estimates.\n"
        "\n"
        "With --lengths the output has one row per number of groups: the best lengths and meshes,\n"
        "simulated with the cost of switching, and whether grouping pays. Meshes are compared\n"
        "with the job's strategy and schedule. The best ones are also tried with other\n"
        "strategies, and with recomputation where memory does not suffice.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(tune_args),
    .defaults = &defaults,
    .run = run};
