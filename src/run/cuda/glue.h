/* What joins graph operators to kernels for CUDA: one row per operator type (kernels.def). */
#ifndef DH_RUN_CUDA_GLUE_H
#define DH_RUN_CUDA_GLUE_H

#include "run/cuda/kernels.h"
#include "run/exec/device.h"

typedef struct dh_cuda_kernel {
    /* Scratch bytes; NULL: none. */
    size_t (*workspace)(const dh_graph *graph, const dh_op *op);
    /* What the kernel reads beside its operands, the same in every step (angles, positions): how
     * many bytes, and their values, written by the host and copied to the device once. NULL: none.
     */
    size_t (*image_bytes)(const dh_graph *graph, const dh_op *op);
    void (*image_write)(const dh_graph *graph, const dh_op *op, void *image);
    /* call->kernel is the image, on the device. */
    void (*run)(dh_cuda_stream stream, const dh_call *call);
} dh_cuda_kernel;

/* NULL when there is none for the type: products of dense matrices, which are the device's own, and
 * moe_offsets, whose bound has to be told to the host. */
const dh_cuda_kernel *dh_cuda_kernel_of(dh_op_type type);

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

#endif
