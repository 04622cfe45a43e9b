/* dhelix train: a job from its first step to its last. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "describe/trained.h"
#include "dhelix/train.h"

typedef struct train_args {
    bool fresh;
    int64_t ranks;
} train_args;

static const dh_cli_option options[] = {
    {.name = "fresh",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(train_args, fresh),
     .doc = "start anew; an existing run folder is kept as OUT.1, OUT.2, ..."},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(train_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "ranks of the run; the same as --set ranks=N"},
};

/* Planned and used memory are the same number, unless something is wrong. */
static void print_memory(dh_str *out, const dh_train_result *r)
{
    char planned[32], used[32];
    dh_format_bytes(planned, sizeof planned, (double)r->slab_planned);
    dh_format_bytes(used, sizeof used, (double)r->slab_peak);
    if (r->slab_planned == r->slab_peak)
        dh_str_printf(out, "memory      %s planned = used at most\n", planned);
    else
        dh_str_printf(
            out, "memory      %s planned, %s used at most (%" PRIu64 " and %" PRIu64 " bytes)\n",
            planned, used, r->slab_planned, r->slab_peak);
}

static dh_status print_result(dh_ctx *ctx, const dh_job *job, const dh_train_result *r)
{
    dh_str out = DH_STR_INIT;
    dh_str_printf(&out, "steps       %lld", (long long)r->steps);
    if (r->resumed_at > 0) dh_str_printf(&out, ", continued from %lld", (long long)r->resumed_at);
    dh_str_printf(&out, "\n");
    if (dh_trained_any(r)) dh_str_printf(&out, "loss        %.4f\n", r->loss);
    if (isfinite(r->val_loss)) dh_str_printf(&out, "validation  %.4f\n", r->val_loss);
    if (r->tokens_per_s > 0) dh_str_printf(&out, "speed       %.0f tokens/s\n", r->tokens_per_s);
    if (isfinite(r->hidden_share))
        dh_str_printf(&out, "transfers   %.0f %% hidden; the rest is %.1f %% of a step\n",
                      1e2 * r->hidden_share, 1e2 * r->exposed_share);
    if (dh_trained_any(r)) print_memory(&out, r);
    dh_str_printf(&out, "metrics     %s/metrics.jsonl\n", job->out_dir);
    if (*r->checkpoint) dh_str_printf(&out, "checkpoint  %s\n", r->checkpoint);
    dh_str_printf(&out, "drawing     dhelix report %s\n", job->out_dir);
    return dh_cli_print_str(ctx, &out);
}

/* From here on there is something to save. */
static void catch_signals(void *unused)
{
    (void)unused;
    dh_cli_catch_signals();
}

static dh_status train(dh_ctx *ctx, dh_cli *cli, const train_args *a, dh_job *job)
{
    /* A reader of the output that goes away does not end the training, nor does a limit on file
     * sizes without a message. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    dh_train_options how = {.quiet = cli->quiet,
                            .fresh = a->fresh,
                            .stop = dh_cli_end_at_signals(cli->quiet),
                            .on_start = catch_signals};
    dh_train_result result;
    dh_cli_end_with_launcher();
    DH_TRY(dh_train(ctx, job, &how, &result));
    if (!result.primary) return DH_OK;
    if (cli->json) return dh_cli_print_json(ctx, dh_trained_json(job, &result));
    return cli->quiet ? DH_OK : print_result(ctx, job, &result);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const train_args *a = args;
    dh_job *job;
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks ? a->ranks : dh_launched_ranks(),
                           &job));
    dh_status st = dh_cli_check_run_folder(ctx, cli, job);
    if (st == DH_OK) st = train(ctx, cli, a, job);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_train = {
    .name = "train",
    .doc = "train the model of a job file, or continue its run",
    .usage = "JOB",
    .notes = "The run folder (setting `out`) gets metrics.jsonl, summary.json and checkpoints/.\n"
             "The same command continues an interrupted run from its newest checkpoint, with the\n"
             "same bits as if it had not been interrupted. One run at a time holds a folder.\n"
             "\n"
             "SIGINT, SIGTERM, SIGHUP or SIGUSR1 makes a run finish its step, write a checkpoint\n"
             "and end with exit code 130. Before the first step the run ends at once. A signal\n"
             "cuts a validation short, and the continued run makes the whole validation again. A\n"
             "second signal ends the run at once.\n"
             "\n"
             "A run whose checkpoints are all damaged, or cannot be read, does not start over.\n"
             "Only --fresh does that.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(train_args),
    .run = run};
