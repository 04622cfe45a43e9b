/* Communications of a step, told apart by what they carry. */
#include <math.h>
#include <stdlib.h>

#include "report/cargo.h"

static const char *const cargo_names[DH_N_CARGO] = {[DH_CARGO_LAYERS] = "layers",
                                                    [DH_CARGO_STAGES] = "stages",
                                                    [DH_CARGO_GRADIENTS] = "gradients",
                                                    [DH_CARGO_NORM] = "norm",
                                                    [DH_CARGO_PARAMETERS] = "parameters"};

const char *dh_cargo_name(dh_cargo cargo)
{
    return (unsigned)cargo < DH_N_CARGO ? cargo_names[cargo] : "?";
}

dh_cargo dh_instr_cargo(const dh_program *p, uint32_t instr)
{
    const dh_instr *i = &p->instrs.at[instr];
    const dh_op_type type = dh_instr_op(p, i)->type;
    if (dh_op_info_of(type)->resource != DH_RES_COMM) return DH_N_CARGO;
    switch (dh_instr_graph(p, i)->kind) {
    case DH_BLOCK_LINK:
        return DH_CARGO_STAGES;
    case DH_BLOCK_GRADS:
        return DH_CARGO_GRADIENTS;
    case DH_BLOCK_GATHER:
        return DH_CARGO_PARAMETERS;
    case DH_BLOCK_OPT:
        return type == DH_OP_ALL_GATHER ? DH_CARGO_PARAMETERS : DH_CARGO_NORM;
    default:
        return DH_CARGO_LAYERS;
    }
}

/* ---- bytes -------------------------------------------------------------------------------- */

/* The larger side: what a gather ends with, and a reduction begins with. An exchange's second
 * operand is only what it comes after. */
static double whole_bytes(const dh_graph *g, const dh_op *op)
{
    int64_t in = 0, out = 0;
    if (op->type == DH_OP_RING_EXCHANGE) return (double)dh_tensor_bytes(&g->tensors.at[op->out[0]]);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        in += dh_op_travel_bytes(g, op, op->in[k]);
        out += dh_op_travel_bytes(g, op, op->out[k]);
    }
    return (double)DH_MAX(in, out);
}

static double sent_share(const dh_mesh *mesh, const dh_op *op)
{
    const double n = (double)dh_mesh_group_size(mesh, (dh_group_kind)op->group);
    switch (op->type) {
    case DH_OP_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case DH_OP_ALL_GATHER:
    case DH_OP_REDUCE_SCATTER:
    case DH_OP_ALL_TO_ALL:
    case DH_OP_ALL_TO_ALL_ROWS:
        return (n - 1) / n;
    default:
        return op->type != DH_OP_RECV;
    }
}

double dh_instr_sent_bytes(const dh_program *p, uint32_t instr)
{
    const dh_op *op = dh_instr_op(p, &p->instrs.at[instr]);
    return whole_bytes(dh_instr_graph(p, &p->instrs.at[instr]), op) * sent_share(&p->mesh, op);
}

/* ---- sums ---------------------------------------------------------------------------------- */

int64_t dh_haul_hidden_ns(const dh_haul *haul)
{
    return llround(haul->alone_ns) - dh_haul_exposed_ns(haul);
}

int64_t dh_haul_exposed_ns(const dh_haul *haul)
{
    int64_t ns = 0;
    for (int k = 0; k < DH_N_EXPOSURE; k++) ns += haul->times.exposed_by_ns[k];
    return ns;
}

dh_exposure dh_haul_cause(const dh_haul *haul)
{
    int most = 0;
    for (int k = 1; k < DH_N_EXPOSURE; k++)
        if (haul->times.exposed_by_ns[k] > haul->times.exposed_by_ns[most]) most = k;
    return (dh_exposure)most;
}

void dh_haul_add(dh_haul *sum, const dh_haul *one)
{
    sum->n += one->n;
    sum->n_bytes += one->n_bytes;
    for (int e = 0; e < DH_N_ENGINE; e++) sum->sent_bytes[e] += one->sent_bytes[e];
    sum->alone_ns += one->alone_ns;
    sum->ns += one->ns;
    for (int k = 0; k < DH_N_PHASE; k++) sum->times.beside_ns[k] += one->times.beside_ns[k];
    for (int k = 0; k < DH_N_EXPOSURE; k++)
        sum->times.exposed_by_ns[k] += one->times.exposed_by_ns[k];
}

/* ---- one communication --------------------------------------------------------------------- */

typedef struct reader {
    dh_ctx *ctx;
    const dh_program *program;
    const dh_span *spans;
    const double *alone_ns;   /* by instruction */
    dh_transfer_times *times; /* by instruction */
    dh_cargo_list *list;
} reader;

static bool communicates(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

static dh_haul haul_of(const reader *r, uint32_t id)
{
    const dh_program *p = r->program;
    const dh_instr *i = &p->instrs.at[id];
    dh_haul haul = {.n = 1,
                    .n_bytes = whole_bytes(dh_instr_graph(p, i), dh_instr_op(p, i)),
                    .alone_ns = r->alone_ns[id],
                    .ns = r->spans[id].end_ns - r->spans[id].met_ns,
                    .times = r->times[id]};
    haul.sent_bytes[dh_stream_engine((dh_stream)i->stream)] = dh_instr_sent_bytes(p, id);
    return haul;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* The flat whose gradients or parameters an operator shares; DH_NONE: none. In a transfer in stages
 * one side may be a value on its way. */
static uint32_t flat_of(const dh_program *p, const dh_instr *i)
{
    const dh_op *op = dh_instr_op(p, i);
    const dh_op_info *info = dh_op_info_of(op->type);
    if (op->flat != DH_NONE) return op->flat;
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        const uint32_t buffer = dh_instr_operand(p, i, k)->buffer;
        if (buffer != DH_NONE && dh_buffer_is_of_flat(p->buffers.at[buffer].kind))
            return p->buffers.at[buffer].owner;
    }
    return DH_NONE;
}

static dh_cargo_row row_of(const reader *r, uint32_t id, dh_cargo cargo, int32_t mb,
                           const dh_haul *haul)
{
    const dh_program *p = r->program;
    const dh_instr *i = &p->instrs.at[id];
    const dh_op *op = dh_instr_op(p, i);
    const uint32_t flat = flat_of(p, i);
    dh_cargo_row row = {.cargo = cargo,
                        .type = op->type,
                        .group = (dh_group_kind)op->group,
                        .phase = DH_PHASE_OPT,
                        .mb = -1,
                        .first_block = DH_NONE,
                        .last_block = DH_NONE,
                        .start_ns = r->spans[id].start_ns,
                        .end_ns = r->spans[id].end_ns,
                        .haul = *haul};
    if (dh_instr_graph(p, i)->kind == DH_BLOCK_GATHER) {
        row.phase = op->phase;
        row.mb = i->mb;
    } else if (cargo == DH_CARGO_GRADIENTS && mb >= 0) {
        row.phase = DH_PHASE_B;
        row.mb = mb;
    }
    if (flat != DH_NONE) {
        row.first_block = p->flats.at[flat].first_block;
        row.last_block = p->flats.at[flat].last_block;
    }
    return row;
}

/* Blocks of one virtual stage have neighbouring numbers, those of a layer's experts between. */
static bool are_alike(const dh_cargo_row *a, const dh_cargo_row *b)
{
    enum { NEXT = 2 };
    if (a->cargo != b->cargo || a->type != b->type || a->group != b->group || a->mb != b->mb ||
        a->phase != b->phase)
        return false;
    if (a->first_block == DH_NONE || b->first_block == DH_NONE)
        return a->first_block == b->first_block;
    return a->first_block <= b->last_block + NEXT && b->first_block <= a->last_block + NEXT;
}

static dh_status add_row(const reader *r, uint32_t id, dh_cargo cargo, int32_t mb,
                         const dh_haul *haul)
{
    const dh_cargo_row row = row_of(r, id, cargo, mb, haul);
    for (size_t i = r->list->rows.n; i-- > 0;) {
        dh_cargo_row *like = &r->list->rows.at[i];
        if (!are_alike(like, &row)) continue;
        like->first_block = DH_MIN(like->first_block, row.first_block);
        like->last_block = DH_MAX(like->last_block, row.last_block);
        like->end_ns = DH_MAX(like->end_ns, row.end_ns);
        dh_haul_add(&like->haul, haul);
        return DH_OK;
    }
    return dh_vec_push(&r->list->rows, row) ? DH_OK : dh_no_memory(r->ctx);
}

/* ---- entry ----------------------------------------------------------------------------------- */

typedef struct started {
    int64_t start_ns;
    uint32_t instr;
} started;

static int by_start(const void *x, const void *y)
{
    const started *a = x, *b = y;
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns ? -1 : 1;
    return a->instr < b->instr ? -1 : 1;
}

/* List transfers of gradients or parameters in the order of time; the others are summed up. */
static size_t read_each(const reader *r, started *order)
{
    size_t n = 0;
    for (uint32_t id = 0; id < r->program->instrs.n; id++) {
        const dh_cargo cargo = dh_instr_cargo(r->program, id);
        if (cargo == DH_N_CARGO) continue;
        const dh_haul haul = haul_of(r, id);
        dh_haul_add(&r->list->all[cargo], &haul);
        if (cargo >= DH_CARGO_GRADIENTS) order[n++] = (started){r->spans[id].start_ns, id};
    }
    if (n > 0) qsort(order, n, sizeof *order, by_start);
    return n;
}

/* Computation runs in the order of its instructions, so that the last backward that has begun is
 * found on the way. */
static dh_status list_rows(const reader *r, const started *order, size_t n)
{
    const dh_program *p = r->program;
    int32_t mb = -1;
    uint32_t next = 0;
    for (size_t k = 0; k < n; k++) {
        for (; next < p->instrs.n; next++) {
            const started begun = {r->spans[next].start_ns, next};
            const dh_op *op = dh_instr_op(p, &p->instrs.at[next]);
            if (communicates(op)) continue;
            if (by_start(&begun, &order[k]) > 0) break;
            const bool backward = op->phase == DH_PHASE_B || op->phase == DH_PHASE_W;
            if (backward && p->instrs.at[next].mb >= 0) mb = p->instrs.at[next].mb;
        }
        const uint32_t id = order[k].instr;
        const dh_haul haul = haul_of(r, id);
        DH_TRY(add_row(r, id, dh_instr_cargo(p, id), mb, &haul));
    }
    return DH_OK;
}

dh_status dh_cargo_read(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                        const double *alone_ns, dh_cargo_list *list)
{
    reader r = {.ctx = ctx, .program = program, .spans = spans, .alone_ns = alone_ns, .list = list};
    started *order = calloc(program->instrs.n + 1, sizeof *order);
    r.times = calloc(program->instrs.n + 1, sizeof *r.times);
    *list = (dh_cargo_list){.rows = {0}};
    dh_status st = r.times && order ? dh_timeline_transfers(ctx, program, spans, alone_ns, r.times)
                                    : dh_no_memory(ctx);
    if (st == DH_OK) st = list_rows(&r, order, read_each(&r, order));
    free(order);
    free(r.times);
    return st;
}

void dh_cargo_list_fini(dh_cargo_list *list)
{
    dh_vec_fini(&list->rows);
}
