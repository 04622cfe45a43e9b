/* Communication operators: counts and types out of the graph, one call each. */
#include "run/cpu/exec.h"

#include <string.h>

#include "run/cpu/glue.h"

typedef struct transfer {
    dh_comm_group *group;
    const dh_block *block;
    const dh_tensor *in, *out; /* of operand 0; NULL where there is none */
    const void *send;
    void *recv;
    const void *const *operands; /* inputs: second and third are a ring's other way back, or offsets
                                  * of runs of rows */
    void *const *results;
    int64_t n_offsets;
    const dh_part_hook *progress;
} transfer;

static dh_status all_gather(dh_ctx *ctx, const transfer *t)
{
    return dh_comm_all_gather_parts(ctx, t->group, t->send, t->recv, dh_tensor_elements(t->in),
                                    t->in->dtype, t->progress);
}

static dh_status reduce_scatter(dh_ctx *ctx, const transfer *t)
{
    return dh_comm_reduce_scatter_parts(ctx, t->group, t->send, t->recv, dh_tensor_elements(t->out),
                                        t->out->dtype, DH_REDUCE_SUM, t->progress);
}

static dh_status all_reduce(dh_ctx *ctx, const transfer *t)
{
    return dh_comm_all_reduce(ctx, t->group, t->send, t->recv, dh_tensor_elements(t->in),
                              t->in->dtype, DH_REDUCE_SUM);
}

static dh_status all_to_all(dh_ctx *ctx, const transfer *t)
{
    int64_t n = dh_tensor_elements(t->in) / dh_comm_group_size(t->group);
    return dh_comm_all_to_all(ctx, t->group, t->send, t->recv, n, t->in->dtype);
}

/* Rows that nobody sends are made zeros: what reads whole tensors finds numbers. */
static dh_status all_to_all_rows(dh_ctx *ctx, const transfer *t)
{
    const int64_t width = dh_tensor_elements(t->out) / t->out->shape[0];
    const size_t row = (size_t)width * dh_dtype_bytes(t->out->dtype);
    const int64_t *from = t->operands[1], *to = t->operands[2], used = to[t->n_offsets - 1];
    memset((char *)t->recv + (size_t)used * row, 0, (size_t)(t->out->shape[0] - used) * row);
    return dh_comm_all_to_all_rows(ctx, t->group, t->send, from, t->recv, to,
                                   (t->n_offsets - 1) / dh_comm_group_size(t->group), width,
                                   t->out->dtype);
}

static dh_status send(dh_ctx *ctx, const transfer *t)
{
    return dh_comm_send(ctx, t->group, t->send, dh_tensor_elements(t->in), t->in->dtype,
                        t->block->peer, t->block->tag);
}

static dh_status recv(dh_ctx *ctx, const transfer *t)
{
    return dh_comm_recv(ctx, t->group, t->recv, dh_tensor_elements(t->out), t->out->dtype,
                        t->block->peer, t->block->tag);
}

static dh_status ring_exchange(dh_ctx *ctx, const transfer *t)
{
    const int n = dh_comm_group_size(t->group), me = dh_comm_group_index(t->group);
    return dh_comm_exchange(ctx, t->group, t->send, (me + 1) % n, t->recv, (me + n - 1) % n,
                            dh_tensor_elements(t->in), t->in->dtype, 0);
}

static dh_status ring_exchange_both(dh_ctx *ctx, const transfer *t)
{
    const int n = dh_comm_group_size(t->group), me = dh_comm_group_index(t->group);
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    const dh_dtype dtype = t->in->dtype;
    const int64_t count = dh_tensor_elements(t->in);
    /* Of two ranks both ways lead to the same one: tags tell them apart. */
    const dh_comm_xfer xfers[] = {
        {DH_XFER_SEND, next, 0, dtype, count, (void *)(uintptr_t)t->send},
        {DH_XFER_SEND, previous, 1, dtype, count, (void *)(uintptr_t)t->operands[1]},
        {DH_XFER_RECV, previous, 0, dtype, count, t->recv},
        {DH_XFER_RECV, next, 1, dtype, count, t->results[1]},
    };
    return dh_comm_batch(ctx, t->group, xfers, DH_COUNTOF(xfers));
}

static dh_status (*const calls[DH_N_OP_TYPE])(dh_ctx *, const transfer *) = {
    [DH_OP_ALL_GATHER] = all_gather,
    [DH_OP_REDUCE_SCATTER] = reduce_scatter,
    [DH_OP_ALL_REDUCE] = all_reduce,
    [DH_OP_ALL_TO_ALL] = all_to_all,
    [DH_OP_ALL_TO_ALL_ROWS] = all_to_all_rows,
    [DH_OP_RING_EXCHANGE] = ring_exchange,
    [DH_OP_RING_EXCHANGE_BOTH] = ring_exchange_both,
    [DH_OP_SEND] = send,
    [DH_OP_RECV] = recv,
};

bool dh_cpu_can_communicate(dh_op_type type)
{
    return calls[type] != NULL;
}

dh_status dh_cpu_communicate(dh_ctx *ctx, dh_comm_group *group, const dh_block *block,
                             const dh_cpu_call *c)
{
    const dh_op *op = c->op;
    const dh_tensor *tensors = c->graph->tensors.at;
    transfer t = {.group = group,
                  .block = block,
                  .in = op->in[0] == DH_NONE ? NULL : &tensors[op->in[0]],
                  .out = op->out[0] == DH_NONE ? NULL : &tensors[op->out[0]],
                  .send = c->in[0],
                  .recv = c->out[0],
                  .operands = c->in,
                  .results = c->out,
                  .n_offsets = op->in[1] == DH_NONE ? 0 : tensors[op->in[1]].shape[0],
                  .progress = &c->progress};
    return calls[op->type](ctx, &t);
}
