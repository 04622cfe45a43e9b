/* Graph operators and their kernels for CUDA: one row per operator type (kernels.def). */
#ifndef DH_RUN_CUDA_GLUE_H
#define DH_RUN_CUDA_GLUE_H

#include "run/cuda/kernels.h"
#include "run/exec/device.h"

typedef struct dh_cuda_kernel {
    /* Scratch bytes; NULL: none. */
    size_t (*workspace)(const dh_graph *graph, const dh_op *op);
    /* Bytes of the operator's constant data, such as angles and positions. The kernel reads them in
     * addition to its operands. image_write fills them on the host, and they are copied to the
     * device once. NULL: none. */
    size_t (*image_bytes)(const dh_graph *graph, const dh_op *op);
    void (*image_write)(const dh_graph *graph, const dh_op *op, void *image);
    /* call->kernel is the image, on the device. NULL: product is there. */
    void (*run)(dh_cuda_stream stream, const dh_call *call);
    /* Products of dense matrices, planned once; call->kernel is the plan. */
    dh_status (*prepare)(dh_ctx *ctx, const dh_graph *graph, const dh_op *op, unsigned accumulate,
                         void **plan);
    void (*release)(void *plan);
    dh_status (*product)(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *call);
    /* Whether what the kernel found may be gone on with: a value at an address of the device, which
     * the host waits for. NULL: nothing has to be looked at. */
    const int64_t *(*found_at)(const dh_call *call);
    dh_status (*check)(dh_ctx *ctx, const dh_op *op, int64_t found);
} dh_cuda_kernel;

/* NULL when there is none for the type. */
const dh_cuda_kernel *dh_cuda_kernel_of(dh_op_type type);

/* ---- products of dense matrices (products.c) ---------------------------------------------- */

size_t dh_cuda_ws_product(const dh_graph *g, const dh_op *op);
dh_status dh_cuda_prepare_product(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                  unsigned accumulate, void **state);
void dh_cuda_release_product(void *state);
dh_status dh_cuda_run_product(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c);
dh_status dh_cuda_prepare_gelu(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                               void **state);
dh_status dh_cuda_run_gelu(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c);

/* Of a part of an operator's scratch, so that the next one begins where kernels like it. */
static inline size_t dh_cuda_aligned(size_t n_bytes)
{
    return (n_bytes + 255) / 256 * 256;
}

/* ---- products of experts (glue_grouped.c) -------------------------------------------------- */

size_t dh_cuda_ws_grouped(const dh_graph *g, const dh_op *op);
void dh_cuda_run_grouped(dh_cuda_stream stream, const dh_call *c);

/* ---- attention (glue_attn.c): functions of rows in kernels.def ---------------------------- */

size_t dh_cuda_image_rope(const dh_graph *g, const dh_op *op);
void dh_cuda_write_rope(const dh_graph *g, const dh_op *op, void *image);
void dh_cuda_run_rope(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_rope_grad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_attn(dh_cuda_stream stream, const dh_call *c);
size_t dh_cuda_ws_attn_grad(const dh_graph *g, const dh_op *op);
void dh_cuda_run_attn_grad(dh_cuda_stream stream, const dh_call *c);
size_t dh_cuda_ws_attn_cached(const dh_graph *g, const dh_op *op);
void dh_cuda_run_attn_cached(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_kv_pack(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_qkv_join(dh_cuda_stream stream, const dh_call *c);
size_t dh_cuda_image_ring(const dh_graph *g, const dh_op *op);
void dh_cuda_write_ring(const dh_graph *g, const dh_op *op, void *image);
size_t dh_cuda_ws_ring_attn(const dh_graph *g, const dh_op *op);
void dh_cuda_run_ring_attn(dh_cuda_stream stream, const dh_call *c);
size_t dh_cuda_ws_ring_attn_grad(const dh_graph *g, const dh_op *op);
void dh_cuda_run_ring_attn_grad(dh_cuda_stream stream, const dh_call *c);

/* ---- norms (glue_heads.c) -------------------------------------------------------------------- */

/* Weights of a norm, or 1 + them where the model says so: n floats of *work, which moves behind
 * them. */
const float *dh_cuda_norm_weights(dh_cuda_stream stream, const dh_call *c, const float *w,
                                  int64_t n, float **work);
size_t dh_cuda_ws_norm(const dh_graph *g, const dh_op *op);
size_t dh_cuda_ws_head_norm(const dh_graph *g, const dh_op *op);
size_t dh_cuda_ws_head_norm_wgrad(const dh_graph *g, const dh_op *op);
size_t dh_cuda_ws_qk_norm_wgrad(const dh_graph *g, const dh_op *op);
size_t dh_cuda_ws_head_rms(const dh_graph *g, const dh_op *op);
void dh_cuda_run_head_norm(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_head_norm_dgrad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_head_norm_wgrad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_qk_squares(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_qk_norm(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_qk_norm_dots(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_qk_norm_dgrad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_qk_norm_wgrad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_head_rms(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_head_rms_grad(dh_cuda_stream stream, const dh_call *c);

/* ---- linear attention (glue_linear.c) ---------------------------------------------------------
 */

size_t dh_cuda_ws_linear_attn(const dh_graph *g, const dh_op *op);
void dh_cuda_run_linear_attn(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_attn_grad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_cached(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_state(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_state_grad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_before(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_pass(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_join(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_linear_join_grad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_feature_map(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_feature_map_grad(dh_cuda_stream stream, const dh_call *c);

/* ---- latent attention (glue_latent.c) ---------------------------------------------------------
 */

size_t dh_cuda_image_latent(const dh_graph *g, const dh_op *op);
void dh_cuda_write_latent(const dh_graph *g, const dh_op *op, void *image);
void dh_cuda_run_latent_pack(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_latent_pack_grad(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_latent_cut(dh_cuda_stream stream, const dh_call *c);
void dh_cuda_run_latent_cut_grad(dh_cuda_stream stream, const dh_call *c);

#endif
