/* Communication operators as calls that the device's streams make themselves (dh_devlinks). The
 * host waits only for the lengths of rows that data decide.
 *
 * Except for the three collectives, all are transfers made at once. If links tell of no parts, an
 * all-gather in parts is as many groups of transfers: a piece from each member in turn, own pieces
 * first. A reduce-scatter then comes as a whole, and its parts are told of at its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "costs/link_sms.h"
#include "run/exec/internal.h"

/* Argument of an instruction's enqueue. */
typedef struct job {
    dh_exec *exec;
    uint32_t instr;
    const dh_devlinks *by;
    dh_devlink *link;
    dh_comm_group *group;
    const dh_block *block;
    int n, me;              /* of the group */
    dh_comm_xfer *xfers;    /* [2 n] */
    const int64_t *rows[2]; /* all_to_all_rows: offsets of what goes and comes, on the host */
    int64_t n_offsets;
} job;

typedef struct operands {
    const dh_tensor *in, *out; /* of operand 0; NULL: absent */
    const dh_call *call;
    void *stream;
} operands;

/* ---- calls ----------------------------------------------------------------------------------- */

/* pieces: of each member's slice, which are told of where that is in equal ones. */
static dh_status collective(dh_ctx *ctx, const job *j, const operands *o, dh_devlink_kind kind,
                            const dh_tensor *counted, uint32_t pieces)
{
    const bool in_parts =
        j->by->tells_parts && pieces > 0 && dh_tensor_elements(counted) % pieces == 0;
    const dh_devlink_call call = {.kind = kind,
                                  .dtype = counted->dtype,
                                  .count = dh_tensor_elements(counted),
                                  .send = o->call->in[0],
                                  .recv = o->call->out[0],
                                  .progress = in_parts ? &o->call->progress : NULL};
    const int64_t whole = call.count * (int64_t)dh_dtype_bytes(call.dtype);
    dh_comm_add_sent(j->group, kind == DH_DEVLINK_ALL_REDUCE ? 2 * (whole - whole / j->n)
                                                             : (j->n - 1) * whole);
    return j->by->call(ctx, j->link, o->stream, &call);
}

/* The same for values that travel in another type, in place in the call's scratch. There a member
 * begins and ends with all values, or with its own slice. */
static dh_status rounded(dh_ctx *ctx, const job *j, const operands *o, dh_devlink_kind kind)
{
    const dh_dtype wire = (dh_dtype)o->call->op->wire;
    const int64_t n_in = dh_tensor_elements(o->in), n_out = dh_tensor_elements(o->out);
    const int64_t n_slice = DH_MIN(n_in, n_out);
    char *all = o->call->work, *own = all + (size_t)(j->me * n_slice) * dh_dtype_bytes(wire);
    void *from = n_in < n_out ? own : all, *to = n_out < n_in ? own : all;
    const dh_devlink_call call = {
        .kind = kind, .dtype = wire, .count = n_slice, .send = from, .recv = to};
    const int64_t slice = n_slice * (int64_t)dh_dtype_bytes(wire);
    j->by->cast(o->stream, n_in, o->in->dtype, o->call->in[0], wire, from);
    dh_comm_add_sent(j->group, kind == DH_DEVLINK_ALL_REDUCE ? 2 * (slice - slice / j->n)
                                                             : (j->n - 1) * slice);
    DH_TRY(j->by->call(ctx, j->link, o->stream, &call));
    j->by->cast(o->stream, n_out, wire, to, o->out->dtype, o->call->out[0]);
    return DH_OK;
}

static dh_status transfer_in(dh_ctx *ctx, const job *j, const operands *o, dh_dtype dtype, size_t n,
                             int steps)
{
    const dh_devlink_call call = {.kind = DH_DEVLINK_TRANSFERS,
                                  .dtype = dtype,
                                  .xfers = j->xfers,
                                  .n_xfers = n,
                                  .steps = steps};
    for (size_t i = 0; i < n; i++)
        if (j->xfers[i].direction == DH_XFER_SEND && j->xfers[i].peer != j->me)
            dh_comm_add_sent(j->group, j->xfers[i].count * (int64_t)dh_dtype_bytes(dtype));
    return j->by->call(ctx, j->link, o->stream, &call);
}

static dh_status transfer(dh_ctx *ctx, const job *j, const operands *o, dh_dtype dtype, size_t n)
{
    return transfer_in(ctx, j, o, dtype, n, 1);
}

static dh_comm_xfer send_to(int peer, const void *at, int64_t count)
{
    return (dh_comm_xfer){
        .direction = DH_XFER_SEND, .peer = peer, .count = count, .buf = (void *)(uintptr_t)at};
}

static dh_comm_xfer recv_from(int peer, void *at, int64_t count)
{
    return (dh_comm_xfer){.direction = DH_XFER_RECV, .peer = peer, .count = count, .buf = at};
}

/* In step k of a ring the piece goes to the k-th member before, and comes from the k-th behind. */
static dh_status all_gather_parts(dh_ctx *ctx, const job *j, const operands *o)
{
    const uint32_t n_parts = o->call->progress.n, each = n_parts / (uint32_t)j->n;
    const int64_t n = dh_tensor_elements(o->in), piece = n / each;
    const size_t item = dh_dtype_bytes(o->in->dtype);
    for (uint32_t part = 0; part < n_parts; part++) {
        const int step = (int)(part / each), from = (j->me + step) % j->n;
        const size_t at = part % each * (size_t)piece * item;
        j->xfers[0] =
            send_to((j->me + j->n - step) % j->n, (const char *)o->call->in[0] + at, piece);
        j->xfers[1] =
            recv_from(from, (char *)o->call->out[0] + (size_t)(from * n) * item + at, piece);
        DH_TRY(transfer(ctx, j, o, o->in->dtype, 2));
        dh_part_tell(&o->call->progress, part);
    }
    return DH_OK;
}

static dh_status all_gather(dh_ctx *ctx, const job *j, const operands *o)
{
    const uint32_t n_parts = o->call->progress.n;
    if (o->call->op->wire != DH_F32) return rounded(ctx, j, o, DH_DEVLINK_ALL_GATHER);
    const bool in_place = o->call->in[0] == (const char *)o->call->out[0] +
                                                (size_t)j->me * (size_t)dh_tensor_bytes(o->in);
    const bool in_parts = n_parts > 1 && n_parts % (uint32_t)j->n == 0;
    if (in_parts && !in_place && !j->by->tells_parts) return all_gather_parts(ctx, j, o);
    return collective(ctx, j, o, DH_DEVLINK_ALL_GATHER, o->in,
                      in_parts ? n_parts / (uint32_t)j->n : 0);
}

static dh_status reduce_scatter(dh_ctx *ctx, const job *j, const operands *o)
{
    const uint32_t n_parts = o->call->progress.n;
    if (o->call->op->wire != DH_F32) return rounded(ctx, j, o, DH_DEVLINK_REDUCE_SCATTER);
    return collective(ctx, j, o, DH_DEVLINK_REDUCE_SCATTER, o->out, n_parts > 1 ? n_parts : 0);
}

static dh_status all_reduce(dh_ctx *ctx, const job *j, const operands *o)
{
    if (o->call->op->wire != DH_F32) return rounded(ctx, j, o, DH_DEVLINK_ALL_REDUCE);
    return collective(ctx, j, o, DH_DEVLINK_ALL_REDUCE, o->in, 0);
}

static dh_status all_to_all(dh_ctx *ctx, const job *j, const operands *o)
{
    const int64_t count = dh_tensor_elements(o->in) / j->n;
    const size_t n_bytes = (size_t)count * dh_dtype_bytes(o->in->dtype);
    for (int i = 0; i < j->n; i++) {
        const size_t at = (size_t)i * n_bytes;
        dh_comm_xfer *two = &j->xfers[2 * (size_t)i];
        two[0] = send_to(i, (const char *)o->call->in[0] + at, count);
        two[1] = recv_from(i, (char *)o->call->out[0] + at, count);
    }
    return transfer_in(ctx, j, o, o->in->dtype, 2 * (size_t)j->n, j->n - 1);
}

/* A share of the runs for each member, the first of which begins at run0. */
static dh_status exchange_shares(dh_ctx *ctx, const job *j, const operands *o, int64_t run0,
                                 int64_t runs)
{
    const int64_t width = dh_tensor_elements(o->out) / o->out->shape[0];
    const size_t row = (size_t)width * dh_dtype_bytes(o->out->dtype);
    const char *send = o->call->in[0];
    char *recv = o->call->out[0];
    size_t n = 0;
    for (int i = 0; i < j->n; i++) {
        const int64_t *from = j->rows[0] + run0 + i * runs, *to = j->rows[1] + run0 + i * runs;
        if (from[runs] > from[0])
            j->xfers[n++] =
                send_to(i, send + (size_t)from[0] * row, (from[runs] - from[0]) * width);
        if (to[runs] > to[0])
            j->xfers[n++] = recv_from(i, recv + (size_t)to[0] * row, (to[runs] - to[0]) * width);
    }
    return transfer_in(ctx, j, o, o->out->dtype, n, j->n - 1);
}

/* Rows that nobody sends are made zeros, as communicate.c does. */
static dh_status all_to_all_rows(dh_ctx *ctx, const job *j, const operands *o)
{
    const int64_t n_rows = o->out->shape[0], used = j->rows[1][j->n_offsets - 1];
    const int64_t in_block = (j->n_offsets - 1) / DH_MAX(o->call->op->blocks, 1);
    const size_t row = (size_t)dh_tensor_bytes(o->out) / (size_t)n_rows;
    DH_TRY(j->by->zero(ctx, o->stream, (char *)o->call->out[0] + (size_t)used * row,
                       (size_t)(n_rows - used) * row));
    for (int64_t run = 0; run < j->n_offsets - 1; run += in_block)
        DH_TRY(exchange_shares(ctx, j, o, run, in_block / j->n));
    return DH_OK;
}

static dh_status send(dh_ctx *ctx, const job *j, const operands *o)
{
    j->xfers[0] = send_to(j->block->peer, o->call->in[0], dh_tensor_elements(o->in));
    return transfer(ctx, j, o, o->in->dtype, 1);
}

static dh_status recv(dh_ctx *ctx, const job *j, const operands *o)
{
    j->xfers[0] = recv_from(j->block->peer, o->call->out[0], dh_tensor_elements(o->out));
    return transfer(ctx, j, o, o->out->dtype, 1);
}

static dh_status go_round(dh_ctx *ctx, const job *j, const operands *o, int by)
{
    const int64_t n = dh_tensor_elements(o->in);
    j->xfers[0] = send_to((j->me + by) % j->n, o->call->in[0], n);
    j->xfers[1] = recv_from((j->me + j->n - by) % j->n, o->call->out[0], n);
    return transfer(ctx, j, o, o->in->dtype, 2);
}

static dh_status ring_exchange(dh_ctx *ctx, const job *j, const operands *o)
{
    return go_round(ctx, j, o, 1);
}

static dh_status shift(dh_ctx *ctx, const job *j, const operands *o)
{
    return go_round(ctx, j, o, o->call->op->by);
}

/* With two ranks, both ways lead to the same one: the forward transfer is first at both ends. */
static dh_status ring_exchange_both(dh_ctx *ctx, const job *j, const operands *o)
{
    const int next = (j->me + 1) % j->n, previous = (j->me + j->n - 1) % j->n;
    const int64_t n = dh_tensor_elements(o->in);
    j->xfers[0] = send_to(next, o->call->in[0], n);
    j->xfers[1] = send_to(previous, o->call->in[1], n);
    j->xfers[2] = recv_from(previous, o->call->out[0], n);
    j->xfers[3] = recv_from(next, o->call->out[1], n);
    return transfer(ctx, j, o, o->in->dtype, 4);
}

static dh_status messages(dh_ctx *ctx, const job *j, const operands *o)
{
    const int64_t *lengths = &j->exec->program->lengths.at[j->block->lengths0];
    const dh_dtype dtype = o->in ? o->in->dtype : o->out ? o->out->dtype : DH_F32;
    const size_t item = dh_dtype_bytes(dtype);
    const char *from = o->call->in[0];
    char *to = o->call->out[0];
    size_t n = 0;
    for (int i = 0; i < j->n; i++) {
        /* cppcheck-suppress objectIndex ; lengths points into an array */
        const int64_t sent = lengths[i], received = lengths[j->n + i];
        if (sent > 0) j->xfers[n++] = send_to(i, from, sent);
        if (received > 0) j->xfers[n++] = recv_from(i, to, received);
        from += (size_t)sent * item;
        to += (size_t)received * item;
    }
    return transfer(ctx, j, o, dtype, n);
}

static dh_status (*const calls[DH_N_OP_TYPE])(dh_ctx *, const job *, const operands *) = {
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

static dh_status enqueue(dh_ctx *ctx, void *user, const dh_call *call, void *stream)
{
    const job *j = user;
    const dh_tensor *tensors = call->graph->tensors.at;
    const dh_op *op = call->op;
    const operands o = {.in = op->in[0] == DH_NONE ? NULL : &tensors[op->in[0]],
                        .out = op->out[0] == DH_NONE ? NULL : &tensors[op->out[0]],
                        .call = call,
                        .stream = stream};
    return calls[op->type](ctx, j, &o);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Lengths that are data have to be known on the host. */
static dh_status fetch_offsets(dh_ctx *ctx, dh_exec *e, job *j, dh_stream_command *command)
{
    const dh_call *c = command->call;
    j->n_offsets = c->graph->tensors.at[c->op->in[1]].shape[0];
    const size_t n_bytes = (size_t)j->n_offsets * sizeof(int64_t);
    int64_t *at = dh_exec_host_memory(e, 2 * n_bytes);
    dh_copy *fetches = DH_NEW_N(e->arena, dh_copy, 2);
    if (!at || !fetches) return dh_no_memory(ctx);
    for (int k = 0; k < 2; k++) {
        j->rows[k] = at + k * j->n_offsets;
        fetches[k] = (dh_copy){at + k * j->n_offsets, c->in[k + 1], n_bytes};
    }
    command->fetches = fetches;
    command->n_fetches = 2;
    return DH_OK;
}

dh_status dh_exec_add_link_call(dh_ctx *ctx, dh_exec *e, dh_stream_command *command)
{
    const dh_op *op = command->call->op;
    dh_comm_group *group = e->groups[op->group];
    job *j = DH_NEW(e->arena, job);
    if (!j) return dh_no_memory(ctx);
    *j = (job){.exec = e,
               .instr = command->id,
               .by = e->linked_by[op->group],
               .link = e->links[op->group],
               .group = group,
               .block = &e->program->blocks.at[e->program->instrs.at[command->id].block],
               .n = dh_comm_group_size(group),
               .me = dh_comm_group_index(group)};
    j->xfers = DH_NEW_N(e->arena, dh_comm_xfer, DH_MAX(2 * j->n, 4));
    if (!j->xfers) return dh_no_memory(ctx);
    command->enqueue = enqueue;
    command->uncaptured = j->by->uncaptured;
    command->host_user = j;
    return op->type == DH_OP_ALL_TO_ALL_ROWS ? fetch_offsets(ctx, e, j, command) : DH_OK;
}

/* ---- links ----------------------------------------------------------------------------------- */

static bool holds(const dh_comm_config *config, dh_stream stream)
{
    return config->link_sms && config->link_sms[stream] > 0;
}

static int sms_of(const dh_comm_config *config, dh_stream stream)
{
    if (holds(config, stream)) return config->link_sms[stream];
    return dh_link_sms_full(dh_stream_engine(stream));
}

static bool is_wanted(const dh_comm_config *config, const dh_devlinks *row)
{
    return config->links == DH_LINKS_AUTO || config->links == row->kind;
}

/* Calls that would not take the time that the job gives its links are none of them. */
static dh_status create_by(dh_ctx *ctx, dh_exec *e, const dh_devlinks *row,
                           const dh_devlink_spec *spec, dh_group_kind kind, char *why, size_t cap)
{
    if (dh_comm_pace_on(spec->pace) && !row->paces) {
        snprintf(why, cap,
                 "links.%s is paced, which its calls cannot be: parallel.gpu_comm: device or host, "
                 "or links.* at 0",
                 dh_engine_name(spec->wire));
        return DH_OK;
    }
    DH_TRY(row->create(ctx, e->slab, spec, &e->links[kind], why, cap));
    if (e->links[kind]) e->linked_by[kind] = row;
    return DH_OK;
}

static dh_status create_link(dh_ctx *ctx, dh_exec *e, dh_group_kind kind, dh_stream stream)
{
    const dh_comm_config *config = dh_comm_config_of(e->comm);
    const dh_engine wire = dh_stream_engine(stream);
    const int sms = sms_of(config, stream);
    char why[200] = "";
    const dh_devlink_spec spec = {.name = dh_group_name(kind),
                                  .comm = e->comm,
                                  .group = e->groups[kind],
                                  .n = dh_comm_group_size(e->groups[kind]),
                                  .rank = (int)e->program->rank,
                                  .stream = stream,
                                  .wire = wire,
                                  .pace = config->pace[wire],
                                  .sms = sms,
                                  .holds = holds(config, stream),
                                  .spares = sms < dh_link_sms_full(wire)};
    for (size_t i = 0; e->device->links[i] && !e->links[kind]; i++)
        if (is_wanted(config, e->device->links[i]))
            DH_TRY(create_by(ctx, e, e->device->links[i], &spec, kind, why, sizeof why));
    if (e->links[kind] || config->links == DH_LINKS_AUTO) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED, "no communicator of %s: %s",
                   dh_device_links(e->device, config->links)->name, why);
}

/* That of a group's operators. */
static dh_stream stream_of(const dh_exec *e, int kind)
{
    const dh_program *p = e->program;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (dh_op_info_of(op->type)->resource == DH_RES_COMM && (int)op->group == kind)
            return (dh_stream)p->instrs.at[i].stream;
    }
    return dh_group_is_link((dh_group_kind)kind)
               ? dh_stream_of_group((dh_group_kind)kind, &p->mesh, p->rank)
               : DH_STREAM_LOCAL;
}

dh_status dh_exec_create_links(dh_ctx *ctx, dh_exec *e)
{
    if (!e->comm) return DH_OK;
    const dh_comm_links wanted = dh_comm_config_of(e->comm)->links;
    const bool by_name = wanted == DH_LINKS_NCCL || wanted == DH_LINKS_DEVICE;
    if (by_name && !dh_device_links(e->device, wanted))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "device %s has no communicator of its own%s in this build; "
                       "parallel.gpu_comm: auto or host",
                       e->device->name, e->device->links ? " of that kind" : "");
    if (wanted == DH_LINKS_NEVER || !e->device->links) return DH_OK;
    for (int kind = 0; kind < DH_N_GROUPS; kind++)
        if (e->groups[kind] && dh_comm_group_size(e->groups[kind]) > 1)
            DH_TRY(create_link(ctx, e, (dh_group_kind)kind, stream_of(e, kind)));
    return DH_OK;
}

void dh_exec_destroy_links(dh_exec *e)
{
    for (int kind = 0; kind < DH_N_GROUPS; kind++)
        if (e->links[kind]) e->linked_by[kind]->destroy(e->links[kind]);
}

bool dh_exec_has_links(const dh_exec *e)
{
    for (int kind = 0; kind < DH_N_GROUPS; kind++)
        if (e->links[kind]) return true;
    return false;
}

void dh_exec_abort_links(const dh_exec *e)
{
    for (int kind = 0; kind < DH_N_GROUPS; kind++)
        if (e->links[kind]) e->linked_by[kind]->abort(e->links[kind]);
}

/* A device's stream waits for ever, so who waits for it looks after the others. */
dh_status dh_exec_waiting(dh_ctx *ctx, void *user, uint32_t stream, int64_t waited_ns)
{
    const dh_exec *e = user;
    dh_status st = dh_comm_check(ctx, e->comm);
    for (int kind = 0; st == DH_OK && kind < DH_N_GROUPS; kind++)
        if (e->links[kind]) st = e->linked_by[kind]->check(ctx, e->links[kind]);
    if (st == DH_OK && waited_ns > dh_comm_timeout_ns(e->comm)) {
        st =
            dh_fail(ctx, DH_ECOMM, "rank %d waited %.3g s for its %s stream", (int)e->program->rank,
                    (double)waited_ns * 1e-9, dh_stream_name((dh_stream)stream));
        dh_comm_abort(e->comm, ctx->message);
    }
    if (st != DH_OK) dh_exec_abort_links(e);
    return st;
}
