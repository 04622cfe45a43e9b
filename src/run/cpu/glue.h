/* Joins graph operators to CPU kernels: one row per operator type. */
#ifndef DH_RUN_CPU_GLUE_H
#define DH_RUN_CPU_GLUE_H

#include "run/exec/device.h"

typedef struct dh_cpu_kernel {
    /* Scratch bytes; NULL: none. */
    size_t (*workspace)(const dh_graph *graph, const dh_op *op);
    /* Made once per operator and accumulate mask (GEMM primitives, tables); may be NULL. */
    dh_status (*prepare)(dh_ctx *ctx, const dh_graph *graph, const dh_op *op, unsigned accumulate,
                         void **state);
    void (*release)(void *state);
    dh_status (*run)(dh_ctx *ctx, const dh_call *call);
} dh_cpu_kernel;

/* NULL when the cpu device has no kernel for the type. */
const dh_cpu_kernel *dh_cpu_kernel_of(dh_op_type type);

/* ---- products of 8 bits (glue_fp8.c) ------------------------------------------------------- */

/* Scratch for both operands rounded, where dh_op_fp8 says so; else 0. */
size_t dh_cpu_fp8_bytes(const dh_graph *g, const dh_op *op);
/* A product's first two operands: as they are, or rounded into scratch, which moves on behind them.
 * Of experts' rows those of their runs alone. */
void dh_cpu_fp8_operands(const dh_call *c, const void *operands[2], char **work);

/* ---- ring attention (glue_cp.c): functions of rows in kernels.def ---------------------- */

dh_status dh_cpu_run_kv_pack(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_qkv_join(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_prepare_ring(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                              void **state);
size_t dh_cpu_ws_ring_attn(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_run_ring_attn(dh_ctx *ctx, const dh_call *c);
size_t dh_cpu_ws_ring_attn_grad(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_run_ring_attn_grad(dh_ctx *ctx, const dh_call *c);

/* ---- linear attention (glue_linear.c) -------------------------------------------------------- */

size_t dh_cpu_ws_linear_attn(const dh_graph *g, const dh_op *op); /* for all of them */
dh_status dh_cpu_run_linear_attn(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_cached(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_attn_grad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_state(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_state_grad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_before(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_pass(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_join(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_linear_join_grad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_feature_map(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_feature_map_grad(dh_ctx *ctx, const dh_call *c);
size_t dh_cpu_ws_head_rms(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_run_head_rms(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_head_rms_grad(dh_ctx *ctx, const dh_call *c);

/* ---- what Gemma has (glue_gemma.c) ------------------------------------------------------- */

/* Weights of a norm as it multiplies by them: w, or 1 + w in scratch of as many floats, which are
 * passed on. */
const float *dh_cpu_norm_weights(const dh_call *c, const float *w, int64_t n, float **work);
size_t dh_cpu_ws_norm(const dh_graph *g, const dh_op *op);
size_t dh_cpu_ws_head_norm(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_run_scale(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_softcap(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_softcap_grad(dh_ctx *ctx, const dh_call *c);

/* ---- norms and rotations of heads (glue_heads.c) --------------------------------------------- */

dh_status dh_cpu_run_head_norm(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_head_norm_dgrad(dh_ctx *ctx, const dh_call *c);
size_t dh_cpu_ws_head_norm_wgrad(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_run_head_norm_wgrad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_qk_squares(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_qk_norm(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_qk_norm_dots(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_qk_norm_dgrad(dh_ctx *ctx, const dh_call *c);
size_t dh_cpu_ws_qk_norm_wgrad(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_run_qk_norm_wgrad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_prepare_rope(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                              void **state);
dh_status dh_cpu_run_rope(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_rope_grad(dh_ctx *ctx, const dh_call *c);

/* ---- shares of a sum over ranks (glue_shares.c) ------------------------------------------- */

dh_status dh_cpu_run_sum_shares(dh_ctx *ctx, const dh_call *c);

/* ---- columns (glue_columns.c) ------------------------------------------------------------- */

dh_status dh_cpu_run_join_columns(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_split_columns(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_take_columns(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_put_columns(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_adapt(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_adapt_grad(dh_ctx *ctx, const dh_call *c);

/* ---- latent attention (glue_latent.c) ----------------------------------------------------- */

dh_status dh_cpu_prepare_latent(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                unsigned accumulate, void **state);
dh_status dh_cpu_run_latent_pack(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_latent_pack_grad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_latent_cut(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_latent_cut_grad(dh_ctx *ctx, const dh_call *c);

/* ---- mixture of experts (glue_moe.c) ----------------------------------------------------- */

dh_status dh_cpu_run_router(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_router_sums(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_router_aux(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_router_grad(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_router_load(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_balance(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_stay(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_moe_order(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_moe_offsets(dh_ctx *ctx, const dh_call *c);
/* The result of moe_offsets.
 * errors    DH_EINVAL more rows come than the operator has room for */
dh_status dh_cpu_check_room(dh_ctx *ctx, const dh_op *op, int64_t n_rows);
dh_status dh_cpu_run_moe_nodes(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_moe_node_order(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_moe_permute(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_moe_unpermute(dh_ctx *ctx, const dh_call *c);
dh_status dh_cpu_run_moe_unpermute_grad(dh_ctx *ctx, const dh_call *c);
size_t dh_cpu_ws_grouped(const dh_graph *g, const dh_op *op);
dh_status dh_cpu_prepare_grouped(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                 unsigned accumulate, void **state);
void dh_cpu_release_grouped(void *state);
dh_status dh_cpu_run_grouped(dh_ctx *ctx, const dh_call *c);

#endif
