/* The suites of this folder over the kernels of src/run/cuda, compiled for the host: included
 * before a suite (CMakeLists.txt), it makes a call of dh_k_f one of dh_cuda_f on no stream, with
 * scratch that is checked for writes behind it. */
#ifndef CUDA_CALLS_H
#define CUDA_CALLS_H

#include "kernel_test.h"
#include "run/cuda/kernels.h"

/* Runs `call` with `ws` in scope. */
#define WITH_SCRATCH(bytes, call)                                                                  \
    do {                                                                                           \
        const size_t scratch_bytes = (bytes);                                                      \
        void *ws = scratch_new(scratch_bytes);                                                     \
        call;                                                                                      \
        scratch_free(ws, scratch_bytes);                                                           \
    } while (0)

/* Seed and step are read where the device has them. */
typedef struct cuda_drop {
    dh_scalars scalars;
    dh_cuda_dropout drop;
} cuda_drop;

static inline const dh_cuda_dropout *cuda_drop_of(const dh_dropout *drop, cuda_drop *d)
{
    if (!drop) return NULL;
    d->scalars = (dh_scalars){.seed = drop->seed, .step = (int64_t)drop->step};
    d->drop = (dh_cuda_dropout){.prob = drop->prob,
                                .site = drop->site,
                                .scalars = &d->scalars,
                                .row_sample = drop->row_sample,
                                .row_pos = drop->row_pos};
    return &d->drop;
}

/* ---- norms ----------------------------------------------------------------------------------- */

#define dh_k_norm_fwd(...) dh_cuda_norm_fwd(NULL, __VA_ARGS__)
#define dh_k_norm_dgrad(...) dh_cuda_norm_dgrad(NULL, __VA_ARGS__)
#define dh_k_head_norm_fwd(...) dh_cuda_head_norm_fwd(NULL, __VA_ARGS__)
#define dh_k_head_norm_dgrad(...) dh_cuda_head_norm_dgrad(NULL, __VA_ARGS__)
#define dh_k_head_norm_wgrad_workspace dh_cuda_head_norm_wgrad_workspace
#define dh_k_head_norm_wgrad(...) dh_cuda_head_norm_wgrad(NULL, __VA_ARGS__)

static inline void cuda_norm_wgrad(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C,
                                   const void *dy, const void *x, const float *stats, float *dw,
                                   float *db, bool accumulate)
{
    (void)kind;
    WITH_SCRATCH(dh_cuda_columns_workspace(N, C),
                 dh_cuda_norm_wgrad(NULL, dtype, N, C, dy, x, stats, dw, db, accumulate, ws));
}
#define dh_k_norm_wgrad cuda_norm_wgrad

static inline void cuda_bias_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dy, float *db,
                                  bool accumulate)
{
    WITH_SCRATCH(dh_cuda_columns_workspace(N, C),
                 dh_cuda_bias_grad(NULL, dtype, N, C, dy, db, accumulate, ws));
}
#define dh_k_bias_grad cuda_bias_grad

/* ---- dropout, residual, activations -------------------------------------------------------------
 */

static inline void cuda_residual(dh_dtype dtype, int64_t N, int64_t C, const void *x, const void *p,
                                 const float *bias, const dh_dropout *drop, void *out)
{
    cuda_drop d;
    dh_cuda_residual(NULL, dtype, N, C, x, p, bias, cuda_drop_of(drop, &d), out);
}
#define dh_k_residual cuda_residual

static inline void cuda_dropout_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dout,
                                     const dh_dropout *drop, void *dp)
{
    cuda_drop d;
    dh_cuda_dropout_grad(NULL, dtype, N, C, dout, cuda_drop_of(drop, &d), dp);
}
#define dh_k_dropout_grad cuda_dropout_grad

#define dh_k_gelu_fwd(...) dh_cuda_gelu_fwd(NULL, __VA_ARGS__)
#define dh_k_gelu_bwd(...) dh_cuda_gelu_bwd(NULL, __VA_ARGS__)
#define dh_k_swiglu_fwd(...) dh_cuda_swiglu_fwd(NULL, __VA_ARGS__)
#define dh_k_swiglu_bwd(...) dh_cuda_swiglu_bwd(NULL, __VA_ARGS__)
#define dh_k_rope(...) dh_cuda_rope(NULL, __VA_ARGS__)

/* ---- attention --------------------------------------------------------------------------------
 */

static inline size_t cuda_attn_fwd_workspace(const dh_attn_shape *s)
{
    return 0;
}
#define dh_k_attn_fwd_workspace cuda_attn_fwd_workspace

static inline void cuda_attn_fwd(const dh_attn_shape *s, const void *q, const void *k,
                                 const void *v, void *o, float *lse, void *ws)
{
    dh_cuda_attn_fwd(NULL, s, q, k, v, o, lse);
}
#define dh_k_attn_fwd cuda_attn_fwd
#define dh_k_attn_merge(...) dh_cuda_attn_merge(NULL, __VA_ARGS__)
#define dh_k_attn_bwd_workspace dh_cuda_attn_bwd_workspace
#define dh_k_attn_bwd(...) dh_cuda_attn_bwd(NULL, __VA_ARGS__)

/* ---- embedding --------------------------------------------------------------------------------
 */

static inline void cuda_embed_fwd(dh_dtype dtype, int64_t N, int64_t C, const int32_t *tokens,
                                  const int32_t *row_pos, const void *wte, int64_t v0, int64_t v1,
                                  const void *wpe, const dh_dropout *drop, void *x)
{
    cuda_drop d;
    dh_cuda_embed_fwd(NULL, dtype, N, C, tokens, row_pos, wte, v0, v1, wpe, cuda_drop_of(drop, &d),
                      x);
}
#define dh_k_embed_fwd cuda_embed_fwd

static inline void cuda_embed_bwd(dh_dtype dtype, int64_t N, int64_t C, const void *dx,
                                  const int32_t *tokens, const int32_t *row_pos,
                                  const dh_dropout *drop, int64_t v0, int64_t v1, int64_t n_pos,
                                  float *dwte, float *dwpe, bool accumulate)
{
    cuda_drop d;
    WITH_SCRATCH(dh_cuda_embed_bwd_workspace(N),
                 dh_cuda_embed_bwd(NULL, dtype, N, C, dx, tokens, row_pos, cuda_drop_of(drop, &d),
                                   v0, v1, n_pos, dwte, dwpe, accumulate, ws));
}
#define dh_k_embed_bwd cuda_embed_bwd

/* ---- cross-entropy ----------------------------------------------------------------------------
 */

#define dh_k_ce_stats(...) dh_cuda_ce_stats(NULL, __VA_ARGS__)
#define dh_k_ce_merge(...) dh_cuda_ce_merge(NULL, __VA_ARGS__)
#define dh_k_ce_loss(...) dh_cuda_ce_loss(NULL, __VA_ARGS__)
#define dh_k_ce_grad(dtype, ...) dh_cuda_ce_grad(NULL, dtype, dtype, NULL, __VA_ARGS__)

/* ---- whole arrays, optimizer --------------------------------------------------------------------
 */

static inline double cuda_sum(int64_t n, const float *x)
{
    double sum;
    dh_cuda_sum(NULL, n, x, &sum);
    return sum;
}
#define dh_k_sum cuda_sum

static inline void cuda_sqsum(int64_t n, const float *x, double *digits)
{
    WITH_SCRATCH(dh_cuda_sqsum_workspace(n), dh_cuda_sqsum(NULL, n, x, digits, ws));
}
#define dh_k_sqsum cuda_sqsum
#define dh_k_exact_sum(...) dh_cuda_exact_sum(NULL, __VA_ARGS__)

static inline int64_t cuda_first_nonfinite(dh_dtype dtype, int64_t n, const void *x)
{
    int64_t first;
    dh_cuda_first_nonfinite(NULL, dtype, n, x, &first);
    return first;
}
#define dh_k_first_nonfinite cuda_first_nonfinite

#define dh_k_cast(...) dh_cuda_cast(NULL, __VA_ARGS__)
#define dh_k_cast_rows(...) dh_cuda_cast_rows(NULL, __VA_ARGS__)
#define dh_k_add(...) dh_cuda_add(NULL, __VA_ARGS__)
#define dh_k_scale(...) dh_cuda_scale(NULL, __VA_ARGS__)
#define dh_k_copy(...) dh_cuda_copy(NULL, __VA_ARGS__)
#define dh_k_zero(...) dh_cuda_zero(NULL, __VA_ARGS__)

static inline void cuda_adamw(const dh_adamw *opt, int64_t n, const float *g, float *p, float *m,
                              float *v, dh_bf16 *copy)
{
    const dh_scalars scalars = {.step = opt->step - 1,
                                .lr = opt->lr,
                                .beta1 = opt->beta1,
                                .beta2 = opt->beta2,
                                .eps = opt->eps,
                                .weight_decay = opt->weight_decay};
    const double norm[2] = {1, opt->grad_scale};
    dh_cuda_adamw(NULL, &scalars, norm, true, n, g, p, m, v, copy, NULL);
}
#define dh_k_adamw cuda_adamw

/* ---- mixture of experts
 * --------------------------------------------------------------------------- */

#define dh_k_router_fwd(...) dh_cuda_router_fwd(NULL, __VA_ARGS__)
#define dh_k_router_deal(N, E, top_k, experts) dh_cuda_router_deal(NULL, N, E, top_k, NULL, experts)
#define dh_k_router_bwd(...) dh_cuda_router_bwd(NULL, __VA_ARGS__)
#define dh_k_router_sums(...) dh_cuda_router_sums(NULL, __VA_ARGS__)
#define dh_k_moe_order(...) dh_cuda_moe_order(NULL, __VA_ARGS__)
#define dh_k_moe_count(...) dh_cuda_moe_count(NULL, __VA_ARGS__)
#define dh_k_moe_offsets(...) dh_cuda_moe_offsets(NULL, __VA_ARGS__)
#define dh_k_moe_permute(...) dh_cuda_moe_permute(NULL, __VA_ARGS__)
#define dh_k_moe_unpermute(...) dh_cuda_moe_unpermute(NULL, __VA_ARGS__)
#define dh_k_moe_unpermute_bwd(...) dh_cuda_moe_unpermute_bwd(NULL, __VA_ARGS__)

/* CUDA's needs no plan: one is its description. */
static inline dh_status cuda_grouped_create(dh_ctx *ctx, const dh_grouped_desc *desc,
                                            dh_grouped **grouped)
{
    dh_grouped_desc *copy = malloc(sizeof *copy);
    assert_non_null(copy);
    *copy = *desc;
    *grouped = (dh_grouped *)(void *)copy;
    return DH_OK;
}

static inline dh_status cuda_grouped_run(dh_ctx *ctx, const dh_grouped *grouped, int64_t n_runs,
                                         const int64_t *offsets, const void *a, const void *b,
                                         void *c, void *ws)
{
    const void *desc = grouped;
    dh_cuda_grouped(NULL, desc, n_runs, offsets, a, b, c);
    return DH_OK;
}

static inline size_t cuda_grouped_workspace(const dh_grouped *grouped)
{
    return 0;
}
#define dh_grouped_create cuda_grouped_create
#define dh_grouped_run cuda_grouped_run
#define dh_grouped_workspace cuda_grouped_workspace
#define dh_grouped_destroy free

/* ---- families' own ------------------------------------------------------------------------------
 */

#define dh_k_router_groups_fwd(...) dh_cuda_router_groups_fwd(NULL, __VA_ARGS__)
#define dh_k_router_groups_bwd(...) dh_cuda_router_groups_bwd(NULL, __VA_ARGS__)
#define dh_k_router_load(...) dh_cuda_router_load(NULL, __VA_ARGS__)
#define dh_k_router_groups_sums(...) dh_cuda_router_groups_sums(NULL, __VA_ARGS__)
#define dh_k_latent_pack(...) dh_cuda_latent_pack(NULL, __VA_ARGS__)
#define dh_k_latent_pack_bwd(...) dh_cuda_latent_pack_bwd(NULL, __VA_ARGS__)
#define dh_k_latent_cut(...) dh_cuda_latent_cut(NULL, __VA_ARGS__)
#define dh_k_latent_cut_bwd(...) dh_cuda_latent_cut_bwd(NULL, __VA_ARGS__)
#define dh_k_feature_map_fwd(...) dh_cuda_feature_map_fwd(NULL, __VA_ARGS__)
#define dh_k_feature_map_bwd(...) dh_cuda_feature_map_bwd(NULL, __VA_ARGS__)
#define dh_k_linear_workspace dh_cuda_linear_workspace
#define dh_k_linear_fwd(s, qkv, state, o, ws) dh_cuda_linear_fwd(NULL, s, qkv, state, NULL, o, ws)
#define dh_k_linear_bwd(...) dh_cuda_linear_bwd(NULL, __VA_ARGS__)
#define dh_k_linear_state(s, qkv, m, ws) dh_cuda_linear_state(NULL, s, NULL, qkv, m)
#define dh_k_linear_state_grad(s, dout, qkv, dm, ws) dh_cuda_linear_state(NULL, s, dout, qkv, dm)
#define dh_k_linear_join(s, own, qkv, before, o, ws)                                               \
    dh_cuda_linear_join(NULL, s, own, qkv, before, o)
#define dh_k_linear_join_bwd(s, own, dout, qkv, before, behind, dqkv, ws)                          \
    dh_cuda_linear_join_bwd(NULL, s, own, dout, qkv, before, behind, dqkv)

#endif
