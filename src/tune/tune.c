/* Names and values of what is searched over. */
#include "dhelix/tune.h"
#include "base/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/schedule.h"
#include "strategy/strategy.h"
#include "train/recipe.h"
#include "tune/tuner.h"

static const struct {
    const char *name, *setting;
} dims[DH_N_TUNE_DIM] = {
#define X(id, column, setting, doc) {column, setting},
    DH_TUNE_DIM_LIST(X)
#undef X
};

static const char *const items[DH_N_TUNE_ITEM] = {
#define X(id, name, doc) name,
    DH_TUNE_ITEM_LIST(X)
#undef X
};

static const char *const simulated_items[] = {
#define X(id, name, doc) name,
    DH_TUNE_SIMULATED_LIST(X)
#undef X
};

static const char *const recompute_names[] = {"none", "selective", "full", "attention"};
static const char *const truth_names[] = {"false", "true"};
static const char *const cp_linear_names[] = {
    [DH_CP_LINEAR_LASP2] = "lasp2", [DH_CP_LINEAR_LASP1] = "lasp1"};

/* By value of DH_TUNE_SPLIT. */
static const char *const splits[TUNE_N_SPLITS] = {
    "*",    "*,-1",    "*,-2",    "*,-3",    "-1,*", "-1,*,-1", "-1,*,-2", "-1,*,-3",
    "-2,*", "-2,*,-1", "-2,*,-2", "-2,*,-3", "-3,*", "-3,*,-1", "-3,*,-2", "-3,*,-3"};

const char *tune_split_text(const dh_tune_config *config)
{
    const int64_t split = config->at[DH_TUNE_SPLIT];
    return split > 0 ? splits[split] : NULL;
}

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

const char *dh_tune_item_name(dh_tune_item item)
{
    return items[item];
}

const char *dh_tune_simulated_name(dh_tune_simulated item)
{
    return simulated_items[item];
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
    else if (dim == DH_TUNE_CP_LINEAR)
        snprintf(buf, cap, "%s", value < 0 ? "-" : cp_linear_names[value]);
    else if (dim > DH_TUNE_CP_LINEAR && value < 0)
        snprintf(buf, cap, "the job's");
    else if (dim == DH_TUNE_SPLIT)
        snprintf(buf, cap, "%s", value == 0 ? "even" : splits[value]);
    else if (dim == DH_TUNE_SEQUENCE || dim == DH_TUNE_POST)
        snprintf(buf, cap, "%s", truth_names[value]);
    else if (dim == DH_TUNE_FUSE && value == 0)
        snprintf(buf, cap, "off");
    else if (dim == DH_TUNE_BUCKET && value <= 0)
        snprintf(buf, cap, "%s", value == 0 ? "auto" : "the job's");
    else
        snprintf(buf, cap, "%lld", (long long)value);
    return buf;
}

/* Layers that are left over go to the middle stages, since the ends have more to do. */
static dh_status print_split(dh_ctx *ctx, int64_t n_layers, int32_t n_chunks, dh_str *out)
{
    int64_t *counts = calloc((size_t)n_chunks, sizeof *counts);
    dh_status st = counts ? dh_layer_split(ctx, n_layers, n_chunks, "", counts) : DH_ENOMEM;
    for (int32_t i = 0; st == DH_OK && i < n_chunks; i++)
        dh_str_printf(out, "%s%lld", i ? "," : "", (long long)counts[i]);
    free(counts);
    return out->failed ? DH_ENOMEM : st;
}

dh_status tune_split_layers(dh_ctx *ctx, dh_arena *arena, int64_t n_chunks, dh_job *job)
{
    const int64_t n_layers = job->model.n_layers;
    const bool none = !*job->layer_split || strcmp(job->layer_split, "*") == 0;
    dh_str text = DH_STR_INIT;
    if (!none || n_layers % (job->pp * job->vpp) == 0 || n_chunks > n_layers) return DH_OK;
    dh_status st = print_split(ctx, n_layers, (int32_t)n_chunks, &text);
    if (st == DH_OK && !(job->layer_split = dh_arena_strdup(arena, text.text))) st = DH_ENOMEM;
    dh_str_fini(&text);
    return st == DH_ENOMEM ? dh_no_memory(ctx) : st;
}

/* The number whose split of so many layers is the text's; -1: none. */
int64_t tune_split_of(int64_t n_layers, int64_t n_chunks, const char *text)
{
    enum { MOST = 4096 };
    int64_t wanted[MOST], counts[MOST];
    dh_ctx quiet = DH_CTX_INIT;
    if (n_chunks > MOST ||
        dh_layer_split(&quiet, n_layers, (int32_t)n_chunks, text, wanted) != DH_OK)
        return -1;
    for (int64_t i = 0; i < TUNE_N_SPLITS; i++) {
        dh_ctx_reset(&quiet);
        if (dh_layer_split(&quiet, n_layers, (int32_t)n_chunks, splits[i], counts) == DH_OK &&
            memcmp(wanted, counts, (size_t)n_chunks * sizeof *counts) == 0)
            return i;
    }
    return -1;
}

dh_status tune_system_of(dh_ctx *ctx, const tuner *t, int64_t recompute, tune_system *system)
{
    dh_job job = *t->job;
    job.recompute = (dh_recompute)recompute;
    return dh_job_system(ctx, &job, &system->row, &system->said);
}

static dh_fuse fuse_of(int64_t pieces)
{
    int fuse = DH_FUSE_OFF;
    while (fuse + 1 < DH_N_FUSE && dh_fuse_pieces((dh_fuse)fuse) < pieces) fuse++;
    return (dh_fuse)fuse;
}

/* A size that is no whole number of MB is the job's own, which no search is over. */
void tune_share_out(const dh_tune_config *config, dh_job *job)
{
    const int64_t bucket = config->at[DH_TUNE_BUCKET];
    const dh_sharing sharing = dh_sharing_of(config->at[DH_TUNE_ZERO]);
    job->zero = config->at[DH_TUNE_ZERO];
    if (!sharing.gradients) job->gradient_sync = DH_GRADIENT_SYNC_LAST; /* as the degree has it */
    if (!sharing.parameters) job->regather = DH_REGATHER_MICRO;
    if (bucket >= 0) job->bucket_mb = (double)bucket;
    if (config->at[DH_TUNE_FUSE] >= 0) job->fuse = fuse_of(config->at[DH_TUNE_FUSE]);
    if (config->at[DH_TUNE_POST] >= 0) job->post_validation = config->at[DH_TUNE_POST] > 0;
}

dh_status dh_tune_apply(dh_ctx *ctx, const dh_tune_config *config, dh_job *job)
{
    DH_NEEDS(ctx, config);
    DH_NEEDS(ctx, job);
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
    tune_share_out(config, job);
    if (at[DH_TUNE_CP_LINEAR] >= 0) job->cp_linear = (dh_cp_linear)at[DH_TUNE_CP_LINEAR];
    if (at[DH_TUNE_SEQUENCE] >= 0) job->sequence_parallel = at[DH_TUNE_SEQUENCE] > 0;
    if (at[DH_TUNE_SPLIT] >= 0) {
        const char *split = tune_split_text(config);
        job->layer_split = dh_arena_strdup(job->arena, split ? split : "");
        if (!job->layer_split) return dh_no_memory(ctx);
    }
    job->nodes = job->ranks_per_node = 0;
    job->schedule = dh_arena_strdup(job->arena, dh_schedule_rows(&n)[at[DH_TUNE_SCHEDULE]]->name);
    job->strategy = dh_arena_strdup(job->arena, dh_strategies(&n)[at[DH_TUNE_STRATEGY]].name);
    if (!job->schedule || !job->strategy) return dh_no_memory(ctx);
    const dh_schedule_row *row = dh_schedule_rows(&n)[at[DH_TUNE_SCHEDULE]];
    const int64_t n_chunks = row->n_chunks == 2 ? 2 * job->pp : job->pp * job->vpp;
    if (!row->planned) job->max_activations = 0, job->wgrad_share = 0; /* of others */
    DH_TRY(tune_split_layers(ctx, job->arena, n_chunks, job));
    return dh_job_check(ctx, job);
}
