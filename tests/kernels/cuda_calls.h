/* The suites of this folder over the kernels of src/run/cuda, compiled for the host: included
 * before a suite (CMakeLists.txt), it makes a call of dh_k_f one of dh_cuda_f on no stream, with
 * scratch that is checked for writes behind it. */
#ifndef CUDA_CALLS_H
#define CUDA_CALLS_H

#include "kernel_test.h"
#include "launch.h"
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

#define dh_k_norm_fwd(...) LAUNCH(dh_cuda_norm_fwd, __VA_ARGS__)
#define dh_k_norm_dgrad(...) LAUNCH(dh_cuda_norm_dgrad, __VA_ARGS__)
#define dh_k_head_norm_fwd(...) LAUNCH(dh_cuda_head_norm_fwd, __VA_ARGS__)
#define dh_k_head_norm_dgrad(...) LAUNCH(dh_cuda_head_norm_dgrad, __VA_ARGS__)
#define dh_k_head_norm_wgrad_workspace dh_cuda_head_norm_wgrad_workspace
#define dh_k_head_norm_wgrad(...) LAUNCH(dh_cuda_head_norm_wgrad, __VA_ARGS__)

static inline void cuda_norm_wgrad(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C,
                                   const void *dy, const void *x, const float *stats, float *dw,
                                   float *db, bool accumulate)
{
    (void)kind;
    WITH_SCRATCH(dh_cuda_columns_workspace(N, C),
                 LAUNCH(dh_cuda_norm_wgrad, dtype, N, C, dy, x, stats, dw, db, accumulate, ws));
}
#define dh_k_norm_wgrad cuda_norm_wgrad

static inline void cuda_bias_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dy, float *db,
                                  bool accumulate)
{
    WITH_SCRATCH(dh_cuda_columns_workspace(N, C),
                 LAUNCH(dh_cuda_bias_grad, dtype, N, C, dy, db, accumulate, ws));
}
#define dh_k_bias_grad cuda_bias_grad

/* ---- dropout, residual, activations -------------------------------------------------------------
 */

static inline void cuda_residual(dh_dtype dtype, int64_t N, int64_t C, const void *x, const void *p,
                                 const float *bias, const dh_dropout *drop, void *out)
{
    cuda_drop d;
    LAUNCH(dh_cuda_residual, dtype, N, C, x, p, bias, cuda_drop_of(drop, &d), out);
}
#define dh_k_residual cuda_residual

static inline void cuda_dropout_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dout,
                                     const dh_dropout *drop, void *dp)
{
    cuda_drop d;
    LAUNCH(dh_cuda_dropout_grad, dtype, N, C, dout, cuda_drop_of(drop, &d), dp);
}
#define dh_k_dropout_grad cuda_dropout_grad

#define dh_k_gelu_fwd(...) LAUNCH(dh_cuda_gelu_fwd, __VA_ARGS__)
#define dh_k_gelu_bwd(...) LAUNCH(dh_cuda_gelu_bwd, __VA_ARGS__)
#define dh_k_swiglu_fwd(...) LAUNCH(dh_cuda_swiglu_fwd, __VA_ARGS__)
#define dh_k_swiglu_bwd(...) LAUNCH(dh_cuda_swiglu_bwd, __VA_ARGS__)
#define dh_k_rope(...) LAUNCH(dh_cuda_rope, __VA_ARGS__)

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
    LAUNCH(dh_cuda_attn_fwd, s, q, k, v, o, lse);
}
#define dh_k_attn_fwd cuda_attn_fwd
#define dh_k_attn_merge(...) LAUNCH(dh_cuda_attn_merge, __VA_ARGS__)
#define dh_k_attn_bwd_workspace dh_cuda_attn_bwd_workspace
#define dh_k_attn_bwd(...) LAUNCH(dh_cuda_attn_bwd, __VA_ARGS__)

/* ---- embedding --------------------------------------------------------------------------------
 */

static inline void cuda_embed_fwd(dh_dtype dtype, int64_t N, int64_t C, const int32_t *tokens,
                                  const int32_t *row_pos, const void *wte, int64_t v0, int64_t v1,
                                  const void *wpe, const dh_dropout *drop, void *x)
{
    cuda_drop d;
    LAUNCH(dh_cuda_embed_fwd, dtype, N, C, tokens, row_pos, wte, v0, v1, wpe,
           cuda_drop_of(drop, &d), x);
}
#define dh_k_embed_fwd cuda_embed_fwd

static inline void cuda_embed_bwd(dh_dtype dtype, int64_t N, int64_t C, const void *dx,
                                  const int32_t *tokens, const int32_t *row_pos,
                                  const dh_dropout *drop, int64_t v0, int64_t v1, int64_t n_pos,
                                  float *dwte, float *dwpe, bool accumulate)
{
    cuda_drop d;
    WITH_SCRATCH(dh_cuda_embed_bwd_workspace(N),
                 LAUNCH(dh_cuda_embed_bwd, dtype, N, C, dx, tokens, row_pos, cuda_drop_of(drop, &d),
                        v0, v1, n_pos, dwte, dwpe, accumulate, ws));
}
#define dh_k_embed_bwd cuda_embed_bwd

/* ---- cross-entropy ----------------------------------------------------------------------------
 */

#define dh_k_ce_stats(...) LAUNCH(dh_cuda_ce_stats, __VA_ARGS__)
#define dh_k_ce_merge(...) LAUNCH(dh_cuda_ce_merge, __VA_ARGS__)
#define dh_k_ce_loss(...) LAUNCH(dh_cuda_ce_loss, __VA_ARGS__)
#define dh_k_ce_grad(dtype, ...) LAUNCH(dh_cuda_ce_grad, dtype, dtype, NULL, __VA_ARGS__)

/* ---- whole arrays, optimizer --------------------------------------------------------------------
 */

static inline double cuda_sum(int64_t n, const float *x)
{
    double sum;
    LAUNCH(dh_cuda_sum, n, x, &sum);
    return sum;
}
#define dh_k_sum cuda_sum

static inline void cuda_sqsum(int64_t n, const float *x, double *digits)
{
    WITH_SCRATCH(dh_cuda_sqsum_workspace(n), LAUNCH(dh_cuda_sqsum, n, x, digits, ws));
}
#define dh_k_sqsum cuda_sqsum
#define dh_k_exact_sum(...) LAUNCH(dh_cuda_exact_sum, __VA_ARGS__)

static inline int64_t cuda_first_nonfinite(dh_dtype dtype, int64_t n, const void *x)
{
    int64_t first;
    LAUNCH(dh_cuda_first_nonfinite, dtype, n, x, &first);
    return first;
}
#define dh_k_first_nonfinite cuda_first_nonfinite

#define dh_k_cast(...) LAUNCH(dh_cuda_cast, __VA_ARGS__)
#define dh_k_cast_rows(...) LAUNCH(dh_cuda_cast_rows, __VA_ARGS__)
#define dh_k_add(...) LAUNCH(dh_cuda_add, __VA_ARGS__)
#define dh_k_scale(...) LAUNCH(dh_cuda_scale, __VA_ARGS__)
#define dh_k_copy(...) LAUNCH(dh_cuda_copy, __VA_ARGS__)
#define dh_k_zero(...) LAUNCH(dh_cuda_zero, __VA_ARGS__)

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
    LAUNCH(dh_cuda_adamw, &scalars, norm, true, n, g, p, m, v, copy, NULL);
}
#define dh_k_adamw cuda_adamw

/* ---- mixture of experts
 * --------------------------------------------------------------------------- */

#define dh_k_router_fwd(...) LAUNCH(dh_cuda_router_fwd, __VA_ARGS__)
#define dh_k_router_deal(N, E, top_k, experts)                                                     \
    LAUNCH(dh_cuda_router_deal, N, E, top_k, NULL, experts)
#define dh_k_router_bwd(...) LAUNCH(dh_cuda_router_bwd, __VA_ARGS__)
#define dh_k_router_sums(...) LAUNCH(dh_cuda_router_sums, __VA_ARGS__)
#define dh_k_moe_order(...) LAUNCH(dh_cuda_moe_order, __VA_ARGS__)
#define dh_k_moe_count(...) LAUNCH(dh_cuda_moe_count, __VA_ARGS__)
#define dh_k_moe_offsets(...) LAUNCH(dh_cuda_moe_offsets, __VA_ARGS__)
#define dh_k_moe_nodes(...) LAUNCH(dh_cuda_moe_nodes, __VA_ARGS__)
#define dh_k_moe_node_order(...) LAUNCH(dh_cuda_moe_node_order, __VA_ARGS__)
#define dh_k_moe_permute(...) LAUNCH(dh_cuda_moe_permute, __VA_ARGS__)
#define dh_k_moe_unpermute(...) LAUNCH(dh_cuda_moe_unpermute, __VA_ARGS__)
#define dh_k_moe_unpermute_bwd(...) LAUNCH(dh_cuda_moe_unpermute_bwd, __VA_ARGS__)

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
    const dh_grouped_desc *desc = (const dh_grouped_desc *)(const void *)grouped;
    LAUNCH(dh_cuda_grouped, desc, n_runs, offsets, a, b, c);
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

#define dh_k_router_groups_fwd(...) LAUNCH(dh_cuda_router_groups_fwd, __VA_ARGS__)
#define dh_k_router_groups_bwd(...) LAUNCH(dh_cuda_router_groups_bwd, __VA_ARGS__)
#define dh_k_router_load(...) LAUNCH(dh_cuda_router_load, __VA_ARGS__)
#define dh_k_router_groups_sums(...) LAUNCH(dh_cuda_router_groups_sums, __VA_ARGS__)
#define dh_k_latent_pack(...) LAUNCH(dh_cuda_latent_pack, __VA_ARGS__)
#define dh_k_latent_pack_bwd(...) LAUNCH(dh_cuda_latent_pack_bwd, __VA_ARGS__)
#define dh_k_latent_cut(...) LAUNCH(dh_cuda_latent_cut, __VA_ARGS__)
#define dh_k_latent_cut_bwd(...) LAUNCH(dh_cuda_latent_cut_bwd, __VA_ARGS__)
#define dh_k_feature_map_fwd(...) LAUNCH(dh_cuda_feature_map_fwd, __VA_ARGS__)
#define dh_k_feature_map_bwd(...) LAUNCH(dh_cuda_feature_map_bwd, __VA_ARGS__)
#define dh_k_linear_workspace dh_cuda_linear_workspace
#define dh_k_linear_fwd(s, qkv, state, o, ws) LAUNCH(dh_cuda_linear_fwd, s, qkv, state, NULL, o, ws)
#define dh_k_linear_bwd(...) LAUNCH(dh_cuda_linear_bwd, __VA_ARGS__)
#define dh_k_linear_state(s, qkv, m, ws) LAUNCH(dh_cuda_linear_state, s, NULL, qkv, m)
#define dh_k_linear_state_grad(s, dout, qkv, dm, ws) LAUNCH(dh_cuda_linear_state, s, dout, qkv, dm)
#define dh_k_linear_join(s, own, qkv, before, o, ws)                                               \
    LAUNCH(dh_cuda_linear_join, s, own, qkv, before, o)
#define dh_k_linear_join_bwd(s, own, dout, qkv, before, behind, dqkv, ws)                          \
    LAUNCH(dh_cuda_linear_join_bwd, s, own, dout, qkv, before, behind, dqkv)

#endif
