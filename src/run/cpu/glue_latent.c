/* Latent attention: shapes out of the graph, pointers out of the call. */
#include <stdlib.h>

#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

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
dh_status dh_cpu_prepare_latent(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                unsigned accumulate, void **state)
{
    const dh_dims *d = &g->dims;
    float *table = malloc((size_t)(d->max_seq * d->rope_dim) * sizeof *table);
    if (!table) return dh_no_memory(ctx);
    dh_k_rope_table(&d->rope, d->max_seq, d->rope_dim, table);
    *state = table;
    return DH_OK;
}

dh_status dh_cpu_run_latent_pack(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *qkv = tensor_of(c, c->op->out[0]);
    const dh_latent l = sizes_of(c, qkv, 3);
    dh_k_latent_pack(&l, qkv->dtype, c->in[0], c->in[1], c->in[2], c->kernel, c->in[3], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_latent_pack_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dqkv = tensor_of(c, c->op->in[0]);
    const dh_latent l = sizes_of(c, dqkv, 3);
    dh_k_latent_pack_bwd(&l, dqkv->dtype, c->in[0], c->kernel, c->in[1], c->out[0], c->out[1],
                         c->out[2]);
    return DH_OK;
}

dh_status dh_cpu_run_latent_cut(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *o = tensor_of(c, c->op->in[0]);
    const dh_latent l = sizes_of(c, o, 1);
    dh_k_latent_cut(&l, o->dtype, c->in[0], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_latent_cut_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dout = tensor_of(c, c->op->out[0]);
    const dh_latent l = sizes_of(c, dout, 1);
    dh_k_latent_cut_bwd(&l, dout->dtype, c->in[0], c->out[0]);
    return DH_OK;
}
