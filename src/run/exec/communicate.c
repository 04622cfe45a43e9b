/* Communication operators on streams: counts and types out of the graph, one call each.
 *
 * A communicator's calls block, and read and write memory of the host. So the command is a function
 * of the host, which the device runs where it may sleep. Where the slab is no memory of the host,
 * the operands go through such memory. Communication of devices by themselves is in links.c. */
#include <string.h>

#include "run/exec/internal.h"

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
    int n_blocks;           /* of runs */
    int by;                 /* places that a shift goes on */
    const int64_t *lengths; /* of messages: to the members, from the members */
    dh_comm_xfer *xfers;    /* room for them */
    const dh_part_hook *progress;
    dh_dtype wire;    /* type in which values of the three collectives travel; 0: their own */
    dh_bf16 *rounded; /* room for them in that type */
} transfer;

/* ---- rounded values --------------------------------------------------------------------------
 *
 * A member's values are rounded to the nearest even, the communicator adds them in float32 in the
 * order of the group and rounds the sum, and the result is widened. So all worlds give the same
 * bits. The calls are made in place, in `rounded`. */

static void round_values(const void *from, dh_bf16 *to, int64_t n)
{
    const float *x = from;
    for (int64_t i = 0; i < n; i++) to[i] = dh_f32_to_bf16(x[i]);
}

static void widen_values(const dh_bf16 *from, void *to, int64_t n)
{
    float *y = to;
    for (int64_t i = 0; i < n; i++) y[i] = dh_bf16_to_f32(from[i]);
}

static dh_bf16 *own_slice(const transfer *t, int64_t n)
{
    return t->rounded + dh_comm_group_index(t->group) * n;
}

static dh_status all_gather_rounded(dh_ctx *ctx, const transfer *t)
{
    const int64_t n = dh_tensor_elements(t->in);
    dh_bf16 *own = own_slice(t, n);
    round_values(t->send, own, n);
    DH_TRY(dh_comm_all_gather(ctx, t->group, own, t->rounded, n, t->wire));
    widen_values(t->rounded, t->recv, dh_tensor_elements(t->out));
    return DH_OK;
}

static dh_status reduce_scatter_rounded(dh_ctx *ctx, const transfer *t)
{
    const int64_t n = dh_tensor_elements(t->out);
    dh_bf16 *own = own_slice(t, n);
    round_values(t->send, t->rounded, dh_tensor_elements(t->in));
    DH_TRY(dh_comm_reduce_scatter(ctx, t->group, t->rounded, own, n, t->wire, DH_REDUCE_SUM));
    widen_values(own, t->recv, n);
    return DH_OK;
}

static dh_status all_reduce_rounded(dh_ctx *ctx, const transfer *t)
{
    const int64_t n = dh_tensor_elements(t->in);
    round_values(t->send, t->rounded, n);
    DH_TRY(dh_comm_all_reduce(ctx, t->group, t->rounded, t->rounded, n, t->wire, DH_REDUCE_SUM));
    widen_values(t->rounded, t->recv, n);
    return DH_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static dh_status all_gather(dh_ctx *ctx, const transfer *t)
{
    if (t->wire != DH_F32) return all_gather_rounded(ctx, t);
    return dh_comm_all_gather_parts(ctx, t->group, t->send, t->recv, dh_tensor_elements(t->in),
                                    t->in->dtype, t->progress);
}

static dh_status reduce_scatter(dh_ctx *ctx, const transfer *t)
{
    if (t->wire != DH_F32) return reduce_scatter_rounded(ctx, t);
    return dh_comm_reduce_scatter_parts(ctx, t->group, t->send, t->recv, dh_tensor_elements(t->out),
                                        t->out->dtype, DH_REDUCE_SUM, t->progress);
}

static dh_status all_reduce(dh_ctx *ctx, const transfer *t)
{
    if (t->wire != DH_F32) return all_reduce_rounded(ctx, t);
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
    const int64_t in_block = (t->n_offsets - 1) / t->n_blocks;
    const int64_t runs = in_block / dh_comm_group_size(t->group);
    memset((char *)t->recv + (size_t)used * row, 0, (size_t)(t->out->shape[0] - used) * row);
    for (int64_t at = 0; at < t->n_offsets - 1; at += in_block)
        DH_TRY(dh_comm_all_to_all_rows(ctx, t->group, t->send, from + at, t->recv, to + at, runs,
                                       width, t->out->dtype));
    return DH_OK;
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

/* All at once: those that go each way share the wire, and no order of them can be wrong. */
static dh_status messages(dh_ctx *ctx, const transfer *t)
{
    const int n = dh_comm_group_size(t->group);
    const dh_dtype dtype = t->in ? t->in->dtype : t->out ? t->out->dtype : DH_F32;
    const size_t item = dh_dtype_bytes(dtype);
    char *at[2] = {(char *)(uintptr_t)t->send, t->recv};
    size_t n_xfers = 0;
    for (int i = 0; i < 2 * n; i++) {
        const int64_t count = t->lengths[i];
        if (count == 0) continue;
        const dh_comm_direction way = i < n ? DH_XFER_SEND : DH_XFER_RECV;
        t->xfers[n_xfers++] = (dh_comm_xfer){way, i % n, 0, dtype, count, at[i / n]};
        at[i / n] += (size_t)count * item;
    }
    return dh_comm_batch(ctx, t->group, t->xfers, n_xfers);
}

static dh_status ring_exchange(dh_ctx *ctx, const transfer *t)
{
    const int n = dh_comm_group_size(t->group), me = dh_comm_group_index(t->group);
    return dh_comm_exchange(ctx, t->group, t->send, (me + 1) % n, t->recv, (me + n - 1) % n,
                            dh_tensor_elements(t->in), t->in->dtype, 0);
}

static dh_status shift(dh_ctx *ctx, const transfer *t)
{
    const int n = dh_comm_group_size(t->group), me = dh_comm_group_index(t->group);
    return dh_comm_exchange(ctx, t->group, t->send, (me + t->by) % n, t->recv, (me + n - t->by) % n,
                            dh_tensor_elements(t->in), t->in->dtype, 0);
}

static dh_status ring_exchange_both(dh_ctx *ctx, const transfer *t)
{
    const int n = dh_comm_group_size(t->group), me = dh_comm_group_index(t->group);
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    const dh_dtype dtype = t->in->dtype;
    const int64_t count = dh_tensor_elements(t->in);
    /* With two ranks, both ways lead to the same one: tags tell them apart. */
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
    [DH_OP_SHIFT] = shift,
    [DH_OP_MESSAGES] = messages,
    [DH_OP_SEND] = send,
    [DH_OP_RECV] = recv,
};

/* Argument of the command's function. */
typedef struct job {
    dh_exec *exec;
    uint32_t instr;
    bool in_transit;
    dh_call here;        /* the call between the copies, on memory of the host */
    dh_comm_xfer *xfers; /* of messages */
} job;

static dh_status make_call(dh_ctx *ctx, const job *j, dh_comm_group *group, const dh_block *block,
                           const dh_call *c)
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
                  .n_blocks = DH_MAX(op->blocks, 1),
                  .by = op->by,
                  .lengths = j->xfers ? &j->exec->program->lengths.at[block->lengths0] : NULL,
                  .xfers = j->xfers,
                  .progress = &c->progress,
                  .wire = (dh_dtype)op->wire,
                  .rounded = c->work};
    return calls[op->type](ctx, &t);
}

/* ---- commands ------------------------------------------------------------------------------- */

static dh_status run_job(dh_ctx *ctx, void *user, const dh_call *call)
{
    const job *j = user;
    const dh_exec *e = j->exec;
    dh_comm_group *group = e->groups[call->op->group];
    const dh_block *block = &e->program->blocks.at[e->program->instrs.at[j->instr].block];
    dh_call here = j->in_transit ? j->here : *call;
    here.progress = call->progress;
    const dh_status st = make_call(ctx, j, group, block, &here);
    e->met_ns[j->instr] = dh_comm_group_times(group).arrived_ns;
    return st;
}

static size_t aligned(uint64_t n_bytes)
{
    return (size_t)((n_bytes + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN);
}

/* Bytes of operand k, inputs first; 0: absent. */
static uint64_t operand_bytes(const dh_exec *e, uint32_t instr, int k)
{
    const dh_operand *o = dh_instr_operand(e->program, &e->program->instrs.at[instr], k);
    return o->buffer == DH_NONE ? 0 : o->n_bytes;
}

/* Operands side by side in the stream's transit memory. They are fetched before the call, and
 * copied back after it, the first output first. A device that is told of its parts may copy them
 * one by one. */
static dh_status go_through_transit(dh_ctx *ctx, const dh_exec *e, job *j,
                                    dh_stream_command *command)
{
    const dh_call *c = command->call;
    const dh_op_info *info = dh_op_info_of(c->op->type);
    char *transit = e->transit[command->stream];
    dh_copy *fetches = DH_NEW_N(e->arena, dh_copy, DH_MAX_OPERANDS),
            *copies = DH_NEW_N(e->arena, dh_copy, DH_MAX_OPERANDS);
    if (!fetches || !copies) return dh_no_memory(ctx);
    j->in_transit = true;
    j->here = *c;
    command->fetches = fetches;
    command->copies = copies;
    for (int k = 0; k < info->n_in; k++) {
        if (!c->in[k]) continue;
        const uint64_t n_bytes = operand_bytes(e, command->id, k);
        fetches[command->n_fetches++] = (dh_copy){transit, c->in[k], n_bytes};
        j->here.in[k] = transit;
        transit += aligned(n_bytes);
    }
    for (int k = 0; k < info->n_out; k++) {
        if (!c->out[k]) continue;
        const uint64_t n_bytes = operand_bytes(e, command->id, info->n_in + k);
        copies[command->n_copies++] = (dh_copy){c->out[k], transit, n_bytes};
        j->here.out[k] = transit;
        transit += aligned(n_bytes);
    }
    if (dh_op_rounded_bytes(c->graph, c->op) > 0) j->here.work = transit;
    return DH_OK;
}

dh_status dh_exec_add_transfer(dh_ctx *ctx, dh_exec *e, dh_stream_command *command)
{
    job *j = DH_NEW(e->arena, job);
    if (!j) return dh_no_memory(ctx);
    j->exec = e;
    j->instr = command->id;
    const dh_op *op = command->call->op;
    if (op->type == DH_OP_MESSAGES) {
        const int64_t n = dh_mesh_group_size(&e->program->mesh, (dh_group_kind)op->group);
        j->xfers = DH_NEW_N(e->arena, dh_comm_xfer, 2 * n);
        if (!j->xfers) return dh_no_memory(ctx);
    }
    command->host = run_job;
    command->host_user = j;
    return e->device->slab_is_host ? DH_OK : go_through_transit(ctx, e, j, command);
}

dh_status dh_exec_add_transit(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    size_t n_bytes[DH_N_STREAM] = {0};
    if (e->device->slab_is_host) return DH_OK;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_op_info *info = dh_op_info_of(dh_instr_op(p, &p->instrs.at[i])->type);
        size_t sum = 0, *most = &n_bytes[p->instrs.at[i].stream];
        if (info->resource != DH_RES_COMM) continue;
        if (e->links[dh_instr_op(p, &p->instrs.at[i])->group]) continue;
        for (int k = 0; k < info->n_in + info->n_out; k++) sum += aligned(operand_bytes(e, i, k));
        sum += aligned((uint64_t)dh_op_rounded_bytes(dh_instr_graph(p, &p->instrs.at[i]),
                                                     dh_instr_op(p, &p->instrs.at[i])));
        *most = DH_MAX(*most, sum);
    }
    for (int s = 0; s < DH_N_STREAM; s++)
        if (n_bytes[s] && !(e->transit[s] = dh_exec_host_memory(e, n_bytes[s])))
            return dh_no_memory(ctx);
    return DH_OK;
}
