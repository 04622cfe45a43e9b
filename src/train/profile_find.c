/* Profiles on disk: where they lie, which one a job goes by, and matrices from elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/load.h"
#include "train/profile.h"
#include "train/profiling.h"
#include "train/recipe.h"

/* ---- places -------------------------------------------------------------------------------- */

static dh_status folder_of(dh_ctx *ctx, const dh_job *job, dh_str *path)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (job->data_cache && *job->data_cache)
        dh_str_printf(path, "%s/profiles", job->data_cache);
    else if (cache && *cache == '/')
        dh_str_printf(path, "%s/dhelix/profiles", cache);
    else if (home && *home == '/')
        dh_str_printf(path, "%s/.cache/dhelix/profiles", home);
    else
        return dh_fail(ctx, DH_EMISSING,
                       "there is no place for profiles: set data.cache, or HOME, or give a file");
    return path->failed ? dh_no_memory(ctx) : DH_OK;
}

dh_status dh_profile_place(dh_ctx *ctx, const dh_job *job, const dh_profile *profile, dh_str *path)
{
    DH_TRY(folder_of(ctx, job, path));
    dh_str_printf(path, "/%016llx.json",
                  (unsigned long long)dh_profile_facts_hash(profile->facts.at, profile->facts.n));
    return path->failed ? dh_no_memory(ctx) : DH_OK;
}

/* ---- fitting ------------------------------------------------------------------------------- */

static dh_status check_facts(dh_ctx *ctx, const dh_profile *here, const dh_profile *profile)
{
    return dh_profile_check(ctx, profile, here->facts.at, here->facts.n);
}

static void count_class(const dh_probe_class *cls, const dh_profile *profile,
                        dh_profile_cover *cover)
{
    if (!cls->forward && !cls->backward) return;
    const bool known = dh_profile_find_op(profile, cls->key) != DH_NONE;
    cover->n_ops++;
    cover->n_known += known;
    if (!known && !cover->missing[0])
        snprintf(cover->missing, sizeof cover->missing, "%s (%s)", cls->label, cls->key);
}

static dh_status count_list(dh_ctx *ctx, const dh_job *job, const dh_pass_list *passes,
                            const dh_profile *profile, dh_profile_cover *cover)
{
    dh_probe_job probe;
    dh_stage_programs stages = {0};
    dh_status st = dh_probe_job_init(ctx, job, passes, &probe);
    if (st == DH_OK) st = dh_stage_programs_build(ctx, &probe, &stages);
    for (size_t s = 0; s < stages.n; s++)
        for (size_t c = 0; c < stages.at[s]->probe_classes.n; c++)
            count_class(&stages.at[s]->probe_classes.at[c], profile, cover);
    dh_stage_programs_fini(&stages);
    dh_probe_job_fini(&probe);
    return st;
}

/* How many of the operators of the job's strategy, or of all that it may become, the profile
 * knows, and the first that it does not. */
static dh_status count_known(dh_ctx *ctx, const dh_job *job, const dh_profile *profile,
                             dh_profile_cover *cover)
{
    dh_probe_lists lists;
    dh_job jobs[DH_MOST_PROBE_JOBS];
    const int n_jobs = dh_probe_jobs(job, jobs);
    *cover = (dh_profile_cover){0};
    DH_TRY(dh_probe_lists_find(ctx, job, false, &lists));
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < lists.n; i++)
        for (int k = 0; st == DH_OK && k < n_jobs; k++)
            st = count_list(ctx, &jobs[k], &lists.at[i], profile, cover);
    dh_vec_fini(&lists);
    return st;
}

static dh_status read_named(dh_ctx *ctx, const dh_job *job, const dh_profile *here,
                            dh_profile **profile)
{
    dh_profile *p;
    dh_profile_cover cover;
    DH_TRY(dh_profile_read(ctx, job->profile, &p));
    dh_status st = check_facts(ctx, here, p);
    if (st == DH_OK) st = count_known(ctx, job, p, &cover);
    if (st == DH_OK && cover.n_known < cover.n_ops)
        st = dh_fail(ctx, DH_EINVAL,
                     "profile %s was not made for this job: it has times of %zu of its %zu classes "
                     "of operators, and none of %s; `dhelix profile JOB --out %s` adds them",
                     p->name, cover.n_known, cover.n_ops, cover.missing, job->profile);
    if (st == DH_OK)
        *profile = p;
    else
        dh_profile_destroy(p);
    return st;
}

/* *good: NULL, with a warning, where the file is of no use. */
static dh_status read_if_good(dh_ctx *ctx, const char *path, const dh_profile *here,
                              dh_profile **good)
{
    dh_ctx attempt = dh_ctx_like(ctx);
    dh_profile *p = NULL;
    dh_status st = dh_profile_read(&attempt, path, &p);
    if (st == DH_OK) st = check_facts(&attempt, here, p);
    *good = st == DH_OK ? p : NULL;
    if (st == DH_OK) return DH_OK;
    dh_profile_destroy(p);
    if (st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", attempt.message);
    dh_log(DH_LOG_WARN, "not used: %s", attempt.message);
    return DH_OK;
}

/* A profile at the job's place is used as far as it goes. If it is unusable, that is no failure. */
static dh_status read_own(dh_ctx *ctx, const dh_job *job, const dh_profile *here,
                          dh_profile **profile, dh_profile_cover *cover)
{
    dh_ctx nowhere = DH_CTX_INIT;
    dh_str path = DH_STR_INIT;
    dh_profile *p = NULL;
    dh_status st = DH_OK;
    if (dh_profile_place(&nowhere, job, here, &path) == DH_OK && dh_path_exists(path.text))
        st = read_if_good(ctx, path.text, here, &p);
    dh_str_fini(&path);
    if (st == DH_OK && p) st = count_known(ctx, job, p, cover);
    if (st == DH_OK && cover->n_known > 0)
        *profile = p;
    else
        dh_profile_destroy(p);
    return st;
}

dh_status dh_profile_is_complete(dh_ctx *ctx, const dh_job *job, bool *complete)
{
    dh_profile *here, *p = NULL;
    dh_profile_cover cover = {0};
    DH_TRY(dh_profile_of_job(ctx, job, "here", &here));
    dh_status st = read_own(ctx, job, here, &p, &cover);
    *complete = p && cover.n_known == cover.n_ops;
    dh_profile_destroy(p);
    dh_profile_destroy(here);
    return st;
}

dh_status dh_profile_find(dh_ctx *ctx, const dh_job *job, dh_profile **profile)
{
    dh_profile *here;
    dh_profile_cover cover = {0};
    const bool own = strcmp(job->profile, "auto") == 0 || strcmp(job->profile, "measure") == 0;
    *profile = NULL;
    if (strcmp(job->profile, "none") == 0) return DH_OK;
    DH_TRY(dh_profile_of_job(ctx, job, "here", &here));
    dh_status st =
        own ? read_own(ctx, job, here, profile, &cover) : read_named(ctx, job, here, profile);
    dh_profile_destroy(here);
    return st;
}

dh_status dh_job_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs **costs,
                       dh_profile **profile)
{
    const dh_costs *estimates;
    *profile = NULL;
    DH_TRY(dh_job_estimates(ctx, arena, job, &estimates));
    *costs = estimates;
    DH_TRY(dh_profile_find(ctx, job, profile));
    if (*profile) DH_TRY(dh_profile_costs(ctx, arena, *profile, estimates, costs));
    return dh_job_load_costs(ctx, arena, job, *costs, costs);
}

/* ---- storing ------------------------------------------------------------------------------- */

static dh_status create_parent(dh_ctx *ctx, const char *path)
{
    const char *slash = strrchr(path, '/');
    dh_str folder = DH_STR_INIT;
    if (!slash || slash == path) return DH_OK;
    dh_str_append(&folder, path, (size_t)(slash - path));
    dh_status st = folder.failed ? dh_no_memory(ctx) : dh_dir_create(ctx, folder.text);
    dh_str_fini(&folder);
    return st;
}

/* An existing file of the same facts keeps its entries, except those that are known anew. A file
 * that cannot be read for other reasons than its content is not replaced. */
dh_status dh_profile_store(dh_ctx *ctx, const dh_profile *profile, const char *path)
{
    dh_ctx old = DH_CTX_INIT;
    dh_profile *kept = NULL;
    DH_TRY(create_parent(ctx, path));
    if (dh_path_exists(path) && dh_profile_read(&old, path, &kept) == DH_OK)
        dh_profile_merge(&old, kept, profile);
    const bool merged = kept && old.status == DH_OK;
    dh_status st;
    if (old.status == DH_ENOMEM || old.status == DH_EIO) {
        st = dh_fail(ctx, old.status, "%s", old.message);
    } else {
        if (old.status != DH_OK) dh_log(DH_LOG_WARN, "%s is replaced: %s", path, old.message);
        st = dh_profile_write(ctx, merged ? kept : profile, path);
    }
    dh_profile_destroy(kept);
    return st;
}
