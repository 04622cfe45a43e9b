/* A command does not write over a file that it reads (train/inputs.h says when it would). */
#include <string.h>

#include "cli/cli.h"
#include "train/inputs.h"

/* A word, or the value of KEY=VALUE. */
static dh_status check_word(dh_ctx *ctx, const char *out, const char *word)
{
    const char *value = word ? strchr(word, '=') : NULL;
    DH_TRY(dh_output_check(ctx, out, word, false));
    return value ? dh_output_check(ctx, out, value + 1, false) : DH_OK;
}

static dh_status check_list(dh_ctx *ctx, const char *out, const dh_cli_list *list)
{
    for (size_t i = 0; i < list->n; i++) DH_TRY(check_word(ctx, out, list->at[i]));
    return DH_OK;
}

static dh_status check_words(dh_ctx *ctx, const dh_cli *cli, const char *out, const void *job)
{
    (void)job;
    DH_TRY(check_list(ctx, out, &cli->args)); /* options of --set are in the job */
    for (size_t i = 0; i < cli->command->n_options; i++) {
        const dh_cli_option *o = &cli->command->options[i];
        const void *at = (const char *)cli->options + o->offset;
        if (o->writes) continue;
        if (o->kind == DH_CLI_TEXT) DH_TRY(check_word(ctx, out, *(const char *const *)at));
        if (o->kind == DH_CLI_LIST || o->kind == DH_CLI_TAIL) DH_TRY(check_list(ctx, out, at));
    }
    return DH_OK;
}

typedef struct job_output {
    const dh_cli *cli;
    const char *out;
} job_output;

/* Measuring more keeps what a profile already has, so a profile may be its own output. */
static dh_status check_input(dh_ctx *ctx, void *user, const char *setting, const char *path)
{
    const job_output *o = user;
    if (o->cli->command == &dh_command_profile && strcmp(setting, "profile") == 0) return DH_OK;
    return dh_output_check(ctx, o->out, path, false);
}

static dh_status check_job(dh_ctx *ctx, const dh_cli *cli, const char *out, const void *job)
{
    job_output o = {cli, out};
    return dh_job_each_input(ctx, job, check_input, &o);
}

typedef dh_status (*check_fn)(dh_ctx *ctx, const dh_cli *cli, const char *out, const void *of);

static dh_status each_output(dh_ctx *ctx, const dh_cli *cli, check_fn check, const void *of)
{
    for (size_t i = 0; cli->options && i < cli->command->n_options; i++) {
        const dh_cli_option *o = &cli->command->options[i];
        if (!o->writes) continue;
        const char *out = *(const char *const *)((const char *)cli->options + o->offset);
        if (out) DH_TRY(check(ctx, cli, out, of));
    }
    return DH_OK;
}

dh_status dh_cli_check_outputs(dh_ctx *ctx, const dh_cli *cli)
{
    return each_output(ctx, cli, check_words, NULL);
}

dh_status dh_cli_check_job_files(dh_ctx *ctx, const dh_cli *cli, const dh_job *job)
{
    return each_output(ctx, cli, check_job, job);
}

static bool holds_run(const char *dir)
{
    static const char *const names[] = {"metrics.jsonl", "summary.json", "checkpoints", "lock"};
    bool there = false;
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        dh_str path = DH_STR_INIT;
        dh_str_printf(&path, "%s/%s", dir, names[i]);
        there |= !path.failed && dh_path_exists(path.text);
        dh_str_fini(&path);
    }
    return there;
}

dh_status dh_cli_check_run_folder(dh_ctx *ctx, const dh_cli *cli, const dh_job *job)
{
    if (holds_run(job->out_dir)) return DH_OK; /* its job.yaml is the run's own */
    return dh_output_check(ctx, job->out_dir, cli->args.at[0], false);
}
