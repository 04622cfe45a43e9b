/* Latent attention: shapes out of the graph, pointers out of the call, as run/cpu/glue_latent.c. */
#include "run/cuda/glue.h"

static const dh_tensor *tensor_of(const dh_call *c, uint32_t id)
{
    return &c->graph->tensors.at[id];
}

/* By rows of heads that have `times` D columns each. */
static dh_latent sizes_of(const dh_call *c, const dh_tensor *rows, int64_t times)
{
    const dh_dims *d = &c->graph->dims;
    return (dh_latent){.N = rows->shape[0],
                       .H = rows->shape[1] / (times * d->head_dim),
                       .D = d->head_dim,
                       .R = d->rope_dim,
                       .V = d->v_dim,
                       .pairs = d->rope_pairs != 0};
}

/* Angles for every position the program can see. */
size_t dh_cuda_image_latent(const dh_graph *g, const dh_op *op)
{
    return (size_t)(g->dims.max_seq * g->dims.rope_dim) * sizeof(float);
}

void dh_cuda_write_latent(const dh_graph *g, const dh_op *op, void *image)
{
    dh_k_rope_table(&g->dims.rope, g->dims.max_seq, g->dims.rope_dim, image);
}

void dh_cuda_run_latent_pack(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *qkv = tensor_of(c, c->op->out[0]);
    const dh_latent l = sizes_of(c, qkv, 3);
    dh_cuda_latent_pack(stream, &l, qkv->dtype, c->in[0], c->in[1], c->in[2], c->kernel, c->in[3],
                        c->out[0]);
}

void dh_cuda_run_latent_pack_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dqkv = tensor_of(c, c->op->in[0]);
    const dh_latent l = sizes_of(c, dqkv, 3);
    dh_cuda_latent_pack_bwd(stream, &l, dqkv->dtype, c->in[0], c->kernel, c->in[1], c->out[0],
                            c->out[1], c->out[2]);
}

void dh_cuda_run_latent_cut(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *o = tensor_of(c, c->op->in[0]);
    const dh_latent l = sizes_of(c, o, 1);
    dh_cuda_latent_cut(stream, &l, o->dtype, c->in[0], c->out[0]);
}

void dh_cuda_run_latent_cut_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dout = tensor_of(c, c->op->out[0]);
    const dh_latent l = sizes_of(c, dout, 1);
    dh_cuda_latent_cut_bwd(stream, &l, dout->dtype, c->in[0], c->out[0]);
}
