/* A command does not write over a file that it reads. Files are compared by device and inode, not
 * by name: links do not hide them. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

/* Files of a run folder, by the first part of their names: reports are drawn of them. */
static bool is_of_run(const char *name)
{
    static const char *const starts[] = {"job.yaml",     "metrics.jsonl", "summary.json",
                                         "profile.json", "table.json",    "oef.csv",
                                         "config.json",  "trace-rank",    "tokenizer"};
    for (size_t i = 0; i < DH_COUNTOF(starts); i++)
        if (strncmp(name, starts[i], strlen(starts[i])) == 0) return true;
    return false;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino &&
           (S_ISREG(x.st_mode) || S_ISDIR(x.st_mode));
}

/* The rest of a path after the folder that it lies in; NULL: it lies elsewhere. */
static const char *below(const char *path, const char *dir)
{
    const size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

static bool is_part(const char *in, const char *out, bool whole)
{
    const char *name = below(out, in);
    if (name) return strchr(name, '/') || is_of_run(name); /* in a folder that is read */
    name = below(in, out);
    return name && (whole || (!strchr(name, '/') && is_of_run(name)));
}

static bool spoils(const char *in, const char *out, bool whole)
{
    if (same_file(in, out)) return true;
    char *from = realpath(in, NULL), *to = realpath(out, NULL);
    const bool part =
        from && to && !(dh_path_is_dir(from) && dh_path_is_dir(to)) && is_part(from, to, whole);
    free(from);
    free(to);
    return part;
}

dh_status dh_cli_check_output(dh_ctx *ctx, const char *out, const char *in, bool whole)
{
    if (!out || !in || !spoils(in, out, whole)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s is read, and writing %s would overwrite it: give the output another name",
                   in, out);
}

/* A word, or the value of KEY=VALUE. */
static dh_status check_word(dh_ctx *ctx, const char *out, const char *word)
{
    const char *value = word ? strchr(word, '=') : NULL;
    DH_TRY(dh_cli_check_output(ctx, out, word, false));
    return value ? dh_cli_check_output(ctx, out, value + 1, false) : DH_OK;
}

static dh_status check_list(dh_ctx *ctx, const char *out, const dh_cli_list *list)
{
    for (size_t i = 0; i < list->n; i++) DH_TRY(check_word(ctx, out, list->at[i]));
    return DH_OK;
}

static dh_status check_words(dh_ctx *ctx, const dh_cli *cli, const char *out, const void *job)
{
    (void)job;
    DH_TRY(check_list(ctx, out, &cli->args));
    DH_TRY(check_list(ctx, out, &cli->set));
    for (size_t i = 0; i < cli->command->n_options; i++) {
        const dh_cli_option *o = &cli->command->options[i];
        const void *at = (const char *)cli->options + o->offset;
        if (o->writes) continue;
        if (o->kind == DH_CLI_TEXT) DH_TRY(check_word(ctx, out, *(const char *const *)at));
        if (o->kind == DH_CLI_LIST || o->kind == DH_CLI_TAIL) DH_TRY(check_list(ctx, out, at));
    }
    return DH_OK;
}

static dh_status check_job(dh_ctx *ctx, const dh_cli *cli, const char *out, const void *of)
{
    const dh_job *job = of;
    const char *const files[] = {job->init_from, job->lora_init_from, job->schedule,
                                 job->moe_recorded, job->tokenizer};
    (void)cli;
    for (size_t i = 0; i < DH_COUNTOF(files); i++)
        DH_TRY(dh_cli_check_output(ctx, out, files[i], false));
    for (size_t i = 0; i < job->n_train_files; i++)
        DH_TRY(dh_cli_check_output(ctx, out, job->train_files[i], false));
    for (size_t i = 0; i < job->n_val_files; i++)
        DH_TRY(dh_cli_check_output(ctx, out, job->val_files[i], false));
    return DH_OK;
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
