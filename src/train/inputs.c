/* Which files a job reads, and whether an output would change one of them. */
#include "train/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "data/expand.h"
#include "train/recipe.h"
#include "train/trained.h"

/* ---- one output, one input ------------------------------------------------------------------ */

/* Files of a run folder, by the first part of their names. Reports are drawn of them. */
static bool is_of_run(const char *name)
{
    static const char *const starts[] = {"job.yaml",   "metrics.jsonl", "summary.json",
                                         "saved.json", "experts.json",  "profile.json",
                                         "table.json", "oef.csv",       "config.json",
                                         "trace-rank", DH_TOKENIZER_DIR};
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

bool dh_output_spoils(const char *out, const char *in, bool whole)
{
    if (same_file(in, out)) return true;
    char *from = realpath(in, NULL), *to = realpath(out, NULL);
    const bool part =
        from && to && !(dh_path_is_dir(from) && dh_path_is_dir(to)) && is_part(from, to, whole);
    free(from);
    free(to);
    return part;
}

dh_status dh_output_check(dh_ctx *ctx, const char *out, const char *in, bool whole)
{
    if (!out || !in || !dh_output_spoils(out, in, whole)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s is read, and writing %s would overwrite it: give the output another name",
                   in, out);
}

dh_status dh_output_check_no_run(dh_ctx *ctx, const char *dir)
{
    DIR *entries = opendir(dir);
    dh_status st = DH_OK;
    for (struct dirent *e; st == DH_OK && entries && (e = readdir(entries));)
        if (is_of_run(e->d_name))
            st = dh_fail(ctx, DH_EINVAL,
                         "%s holds %s of a run, and writing there would overwrite such files: "
                         "give another folder, such as %s/figures",
                         dir, e->d_name, dir);
    if (entries) closedir(entries);
    return st;
}

/* ---- a job's inputs ------------------------------------------------------------------------- */

/* Texts that are not there are the reader's to say. */
dh_status dh_each_text(dh_ctx *ctx, const char *setting, const char *name, dh_input_fn fn,
                       void *user)
{
    dh_path_list list = {0};
    dh_ctx missing = DH_CTX_INIT;
    dh_status st = fn(ctx, user, setting, name);
    const dh_status found = dh_data_expand(&missing, name, &list);
    if (st == DH_OK && found == DH_ENOMEM) st = dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && found == DH_OK && i < list.paths.n; i++)
        st = fn(ctx, user, setting, list.paths.at[i]);
    dh_path_list_fini(&list);
    return st;
}

dh_status dh_job_each_input(dh_ctx *ctx, const dh_job *job, dh_input_fn fn, void *user)
{
    static const char gpt2[] = "gpt2:";
    const char *tokenizer = job->tokenizer;
    if (tokenizer && strncmp(tokenizer, gpt2, sizeof gpt2 - 1) == 0) tokenizer += sizeof gpt2 - 1;
    const struct {
        const char *setting, *path;
    } files[] = {{"data.tokenizer", tokenizer},
                 {"train.init_from", job->init_from},
                 {"lora.init_from", job->lora_init_from},
                 {"parallel.schedule", job->schedule},
                 {"overlap.policy", dh_job_order_file(job) ? job->overlap_policy : NULL},
                 {"moe.recorded", job->moe_recorded},
                 {"model", job->model_spec},
                 {"profile", job->profile}};
    for (size_t i = 0; i < DH_COUNTOF(files); i++)
        if (files[i].path && *files[i].path) DH_TRY(fn(ctx, user, files[i].setting, files[i].path));
    for (size_t i = 0; i < job->n_train_files; i++)
        DH_TRY(dh_each_text(ctx, "data.train", job->train_files[i], fn, user));
    for (size_t i = 0; i < job->n_val_files; i++)
        DH_TRY(dh_each_text(ctx, "data.val", job->val_files[i], fn, user));
    return DH_OK;
}

/* ---- a run's folder ------------------------------------------------------------------------- */

typedef struct run_folder {
    const char *dir; /* as the job names it */
    char *real;      /* NULL: it is not there yet */
    bool fresh;
} run_folder;

/* The run has copied these files to its folder itself. */
static bool is_own_copy(const char *setting, const char *name)
{
    static const char tokenizer[] = DH_TOKENIZER_DIR;
    return (strcmp(setting, "data.tokenizer") == 0 &&
            strncmp(name, tokenizer, sizeof tokenizer - 1) == 0) ||
           (strcmp(setting, "profile") == 0 && strcmp(name, "profile.json") == 0) ||
           (strcmp(setting, "moe.recorded") == 0 && strcmp(name, "experts.json") == 0);
}

/* name: of an input below the folder */
static dh_status check_below(dh_ctx *ctx, const run_folder *r, const char *setting,
                             const char *path, const char *name)
{
    static const char checkpoints[] = "checkpoints/";
    if (r->fresh)
        return dh_fail(ctx, DH_EINVAL,
                       "%s: %s lies in the run folder %s, which --fresh puts aside: set another "
                       "`out`",
                       setting, path, r->dir);
    if (strncmp(name, checkpoints, sizeof checkpoints - 1) == 0)
        return dh_fail(ctx, DH_EINVAL,
                       "%s: %s is a checkpoint of the run folder %s, and the run in it would "
                       "delete it: set another `out`",
                       setting, path, r->dir);
    if (strchr(name, '/') || !is_of_run(name) || is_own_copy(setting, name)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s: %s is read, and the run in the folder %s would overwrite it: set another "
                   "`out`",
                   setting, path, r->dir);
}

static dh_status check_input(dh_ctx *ctx, void *user, const char *setting, const char *path)
{
    const run_folder *r = user;
    const bool same = same_file(path, r->dir);
    if (same && (r->fresh || strcmp(setting, "moe.recorded") != 0))
        return dh_fail(ctx, DH_EINVAL,
                       "`out` is %s, which %s reads, and the run would overwrite it: set another "
                       "`out`",
                       r->dir, setting);
    char *real = same ? NULL : realpath(path, NULL);
    const char *name = real ? below(real, r->real) : NULL;
    dh_status st = name ? check_below(ctx, r, setting, path, name) : DH_OK;
    free(real);
    return st;
}

dh_status dh_run_check_inputs(dh_ctx *ctx, const dh_job *job, bool fresh)
{
    run_folder r = {.dir = job->out_dir, .real = realpath(job->out_dir, NULL), .fresh = fresh};
    if (!r.real && errno != ENOMEM) return DH_OK; /* the folder is not there yet */
    dh_status st = r.real ? dh_job_each_input(ctx, job, check_input, &r) : dh_no_memory(ctx);
    free(r.real);
    return st;
}
