/* Names and values of what is searched over. */
#include "dhelix/tune.h"

#include <stdio.h>
#include <string.h>

#include "dhelix/schedule.h"
#include "dhelix/strategy.h"

static const struct {
    const char *name, *setting;
} dims[DH_N_TUNE_DIM] = {
#define X(id, column, setting, doc) {column, setting},
    DH_TUNE_DIM_LIST(X)
#undef X
};

static const char *const parts[DH_N_TUNE_PART] = {
#define X(id, name, doc) name,
    DH_TUNE_PART_LIST(X)
#undef X
};

static const char *const recompute_names[] = {"none", "selective", "full"};

const char *dh_tune_dim_name(dh_tune_dim dim)
{
    return dims[dim].name;
}

const char *dh_tune_dim_setting(dh_tune_dim dim)
{
    return dims[dim].setting;
}

dh_tune_dim dh_tune_dim_of(const char *setting)
{
    int d = 0;
    while (d < DH_N_TUNE_DIM && strcmp(dims[d].setting, setting) != 0) d++;
    return (dh_tune_dim)d;
}

const char *dh_tune_part_name(dh_tune_part part)
{
    return parts[part];
}

const char *dh_tune_value(dh_tune_dim dim, int64_t value, char *buf, size_t cap)
{
    size_t n;
    if (dim == DH_TUNE_SCHEDULE)
        snprintf(buf, cap, "%s", dh_schedule_rows(&n)[value]->name);
    else if (dim == DH_TUNE_STRATEGY)
        snprintf(buf, cap, "%s", dh_strategies(&n)[value].name);
    else if (dim == DH_TUNE_RECOMPUTE)
        snprintf(buf, cap, "%s", recompute_names[value]);
    else
        snprintf(buf, cap, "%lld", (long long)value);
    return buf;
}

dh_status dh_tune_apply(dh_ctx *ctx, const dh_tune_config *config, dh_job *job)
{
    size_t n;
    const int64_t *at = config->at;
    job->tp = at[DH_TUNE_TP];
    job->cp = at[DH_TUNE_CP];
    job->pp = at[DH_TUNE_PP];
    job->ep = at[DH_TUNE_EP];
    job->dp = at[DH_TUNE_DP];
    job->ranks = job->dp * job->tp * job->cp * job->pp;
    job->vpp = at[DH_TUNE_STAGES];
    job->micro_batch = at[DH_TUNE_MICRO_BATCH];
    job->recompute = (dh_recompute)at[DH_TUNE_RECOMPUTE];
    job->nodes = job->ranks_per_node = 0;
    job->schedule = dh_arena_strdup(job->arena, dh_schedule_rows(&n)[at[DH_TUNE_SCHEDULE]]->name);
    job->strategy = dh_arena_strdup(job->arena, dh_strategies(&n)[at[DH_TUNE_STRATEGY]].name);
    if (!job->schedule || !job->strategy)
        return dh_fail(ctx, DH_ENOMEM, "out of memory applying a configuration");
    return dh_job_check(ctx, job);
}
