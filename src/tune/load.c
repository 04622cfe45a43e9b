/* The job of a search: what the search decides is set aside, what overrides say of it stays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/needs.h"
#include "dhelix/tune.h"

static const char *const reset[] = {
    "ranks=auto",
    "parallel.dp=auto",
    "parallel.tp=1",
    "parallel.cp=1",
    "parallel.pp=1",
    "parallel.ep=1",
    "parallel.virtual_stages=1",
    "parallel.layer_split=*", /* no search is refused for layers that do not divide */
    "parallel.cp_linear=lasp2",
    "parallel.schedule=1f1b",
    "train.micro_batch=auto",
    "strategy=sequential",
    "topology.nodes=auto",
    "topology.ranks_per_node=auto"};

static unsigned fixed_by(const char *const *overrides, size_t n)
{
    unsigned fixed = 0;
    char key[64];
    for (size_t i = 0; i < n; i++) {
        const char *text = overrides[i];
        const size_t length = strcspn(text, "=");
        snprintf(key, sizeof key, "%.*s", (int)length, text);
        const dh_tune_dim dim = dh_tune_dim_of(key);
        if (dim == DH_N_TUNE_DIM || !text[length]) continue;
        fixed &= ~(1u << dim); /* a later one wins */
        if (strcmp(text + length + 1, "auto") != 0) fixed |= 1u << dim;
    }
    return fixed;
}

/* Expert parallelism uses data-parallel ranks, which the search has yet to find. */
static const char *room_for_experts(const char *const *overrides, size_t n, char *buf, size_t cap)
{
    static const char key[] = "parallel.ep=";
    const char *found = NULL;
    for (size_t i = 0; i < n; i++)
        if (strncmp(overrides[i], key, sizeof key - 1) == 0) found = overrides[i];
    if (!found) return NULL;
    snprintf(buf, cap, "parallel.dp=%s", found + sizeof key - 1);
    return buf;
}

dh_status dh_tune_load(dh_ctx *ctx, const char *path, const char *const *overrides,
                       size_t n_overrides, dh_job **job, unsigned *fixed)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, fixed);
    DH_NEEDS_LIST(ctx, overrides, n_overrides);
    const size_t n_reset = DH_COUNTOF(reset);
    char dp[64];
    const char *experts = room_for_experts(overrides, n_overrides, dp, sizeof dp);
    const char **all = calloc(n_reset + n_overrides + 1, sizeof *all);
    if (!all) return dh_no_memory(ctx);
    size_t n = n_reset;
    memcpy(all, reset, sizeof reset);
    if (experts) all[n++] = experts;
    for (size_t i = 0; i < n_overrides; i++)
        if (strcmp(overrides[i], "strategy=auto") != 0) all[n++] = overrides[i];
    const dh_status st = dh_job_load(ctx, path, all, n, job);
    free(all);
    if (st == DH_OK) *fixed = fixed_by(overrides, n_overrides);
    return st;
}

/* With two more overrides at most. */
static dh_status load_with(dh_ctx *ctx, const char *path, const char *const *overrides, size_t n,
                           const char *const *more, size_t n_more, dh_job **job)
{
    const char **all = calloc(n + n_more + 1, sizeof *all);
    if (!all) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) all[i] = overrides[i];
    for (size_t i = 0; i < n_more; i++) all[n + i] = more[i];
    const dh_status st = dh_job_load(ctx, path, all, n + n_more, job);
    free(all);
    return st;
}

dh_status dh_tune_load_given(dh_ctx *ctx, const char *path, const char *const *overrides,
                             size_t n_overrides, int64_t devices, dh_job **job, char *refused,
                             size_t n)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, refused);
    DH_NEEDS_LIST(ctx, overrides, n_overrides);
    char ranks[48];
    const char *const more[] = {ranks, "parallel.dp=auto"};
    snprintf(ranks, sizeof ranks, "ranks=%lld", (long long)devices);
    *refused = '\0';
    dh_status st = load_with(ctx, path, overrides, n_overrides, more, devices > 0, job);
    if (st == DH_OK || devices == 0 || st == DH_ENOMEM) return st;
    dh_ctx_reset(ctx);
    st = load_with(ctx, path, overrides, n_overrides, more, 2, job);
    if (st == DH_OK || st == DH_ENOMEM) return st;
    snprintf(refused, n, "%s", ctx->message);
    dh_ctx_reset(ctx);
    *job = NULL;
    return DH_OK;
}
