/* Reorder: operators by rows move before the all-gather of what they read, onto each rank's rows.
 *
 * CoCoNet's second rewrite. An all-gather waits until somebody needs all rows. Operators that
 * compute a row from a row do not: residual connection, dropout, norm, activation, their input
 * gradients. They therefore work on the rank's own rows:
 *
 *     y = all_gather(own)                    z.own = residual(rows of x, own)
 *     z = residual(x, y)            =>       z = all_gather(z.own)       only if z is read whole
 *
 * Legal where every other operand by rows is such a slice too, or is the same on all ranks of the
 * group, so that its rows can be taken. Operands without rows (a norm's weight) must be the same on
 * all ranks. An input counts as the same on all unless one of its axes is one that ranks split
 * (heads, ffn, vocab, experts).
 *
 * In a job the gather of what leaves a block moves on into the next one, which is rewritten alike:
 * blocks pass slices to each other (dh_pass.slices_stream). Sums over rows (gradients of a norm's
 * weight, of a bias) are then parts, which the step adds over the ranks with the other gradients.
 * From plain tensor parallelism this and `split` so make what Korthikanti et al. (arXiv 2205.05198)
 * call sequence parallelism. Tensors that the backward needs whole are gathered again there
 * (argument regather), so that activations are kept as slices.
 *
 * In a program of its own an operator that updates in place (adamw) moves too. It updates the
 * rank's rows of parameters and moments, which are then gathered. With the argument `sharded` the
 * moments stay with the rank that updates them (the paper's asSlice).
 *
 * Source: Jangda et al., ASPLOS 2022 (arXiv 2105.05720), section 3.2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

enum { REGATHER, SHARDED }; /* arguments */

/* ---- state ----------------------------------------------------------------------------------- */

/* Facts about a tensor. */
typedef struct known {
    uint32_t own;   /* the rank's rows of it, DH_NONE */
    int32_t group;  /* over which; of `own` */
    bool whole;     /* all rows are there, too */
    dh_phase phase; /* in which they came, and which the gather belongs to */
    uint32_t again; /* all rows, gathered for weight gradients; DH_NONE */
    uint64_t same;  /* bit g: the same on all ranks of group g */
    bool read;      /* by an operator of the graph as it was */
    bool updated;   /* in its place: it is left, whoever reads it */
    bool moment;    /* nobody does but who updates it */
} known;

typedef struct mover {
    rewrite to;
    const dh_pass_work *work;
    bool alone; /* a program of its own: what it is given and leaves stays whole */
    DH_VEC(known) at;
    known none; /* where there is no memory for one more */
} mover;

static const dh_tensor *tensor(const mover *m, uint32_t id)
{
    return rewrite_tensor(&m->to, id);
}

/* Tensors that were added since are known too. */
static known *of(mover *m, uint32_t id)
{
    while (m->at.n < m->to.graph->tensors.n) {
        const known fresh = {.own = DH_NONE, .group = -1, .again = DH_NONE, .whole = true};
        if (!dh_vec_push(&m->at, fresh)) {
            m->to.failed = true;
            m->none = fresh;
            return &m->none;
        }
    }
    return &m->at.at[id];
}

static uint64_t same_at_first(const dh_tensor *t)
{
    for (int a = 0; a < t->ndim; a++)
        if (dh_axis_is_split(t->axis[a])) return 0;
    return UINT64_MAX;
}

_Static_assert((int)DH_N_GROUPS <= 64, "a bit a group");

static int64_t members(const mover *m, int32_t group)
{
    return dh_mesh_group_size(&m->work->spec->mesh, (dh_group_kind)group);
}

static int64_t place(const mover *m, int32_t group)
{
    if (!m->alone) return m->work->rank.shard.tp_rank;
    return dh_mesh_group_index(&m->work->spec->mesh, (dh_group_kind)group, m->work->rank.rank);
}

/* ---- slices and wholes ----------------------------------------------------------------------- */

/* A tensor for the rank's rows of another. */
static uint32_t add_own(mover *m, uint32_t like, int32_t group)
{
    if (m->to.failed) return DH_NONE;
    dh_tensor t = rewrite_like(&m->to, like);
    t.shape[0] /= members(m, group);
    rewrite_name(&t, "%.18s.own", t.name);
    const uint32_t id = rewrite_add(&m->to, &t);
    if (m->to.failed) return DH_NONE;
    known *k = of(m, like);
    k->own = id;
    k->group = group;
    k->whole = false;
    return id;
}

static void push_gather(mover *m, uint32_t from, uint32_t to, int32_t group, dh_phase phase)
{
    rewrite_push_op(&m->to, DH_OP_ALL_GATHER, phase, group, REWRITE_IDS(from), REWRITE_IDS(to));
}

/* All rows once more, for weight gradients of what the forward had gathered. */
static uint32_t gather_again(mover *m, uint32_t id)
{
    if (of(m, id)->again != DH_NONE) return of(m, id)->again;
    dh_tensor t = rewrite_like(&m->to, id);
    const uint32_t again = rewrite_add(&m->to, &t);
    if (m->to.failed) return id;
    push_gather(m, of(m, id)->own, again, of(m, id)->group, DH_PHASE_W);
    of(m, id)->again = again;
    return again;
}

/* An operand of an operator that wants all rows. */
static uint32_t whole(mover *m, uint32_t id, dh_phase phase)
{
    if (id == DH_NONE) return id;
    const uint32_t storage = dh_graph_storage(m->to.graph, id);
    known *k = of(m, storage);
    if (k->own == DH_NONE) return id;
    if (!k->whole) {
        push_gather(m, k->own, storage, k->group, phase);
        k->whole = true;
        k->phase = phase;
    } else if (id == storage && phase == DH_PHASE_W && k->phase == DH_PHASE_F &&
               m->work->args[REGATHER]) {
        return gather_again(m, id);
    }
    return id;
}

/* The rank's rows of an operand, which is a slice or the same on all. */
static uint32_t slice(mover *m, uint32_t id, int32_t group)
{
    if (id == DH_NONE || m->to.failed) return id;
    if (of(m, id)->own != DH_NONE) return of(m, id)->own;
    const int64_t n = tensor(m, id)->shape[0] / members(m, group);
    char name[sizeof tensor(m, id)->name];
    snprintf(name, sizeof name, "%.18s.own", tensor(m, id)->name);
    return rewrite_rows(&m->to, id, name, place(m, group) * n, n);
}

/* ---- what may move --------------------------------------------------------------------------- */

static int32_t group_of(mover *m, const dh_op *op, const rewrite_row_op *row)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->in[k] != DH_NONE && (row->in >> k & 1) && of(m, op->in[k])->own != DH_NONE)
            return of(m, op->in[k])->group;
    return -1;
}

static const char *why_not_rows(mover *m, uint32_t id, int32_t group)
{
    const dh_tensor *t = tensor(m, id);
    const known *k = of(m, id);
    if (k->own != DH_NONE)
        return k->group == group ? NULL : "operands are slices over different groups";
    if (t->base != DH_NONE) return "an operand is part of something larger";
    if (t->shape[0] % members(m, group)) return "rows of an operand do not divide by the ranks";
    if (!(k->same >> group & 1)) return "an operand by rows is not the same on all ranks";
    if (!m->alone && t->kind != DH_TENSOR_INPUT) return "an operand by rows is whole";
    return NULL;
}

/* Why an update cannot move: it takes the rank's rows of operands that all ranks have alike. */
static const char *why_not_update(mover *m, uint32_t id, int32_t group)
{
    if (!m->alone) return "it updates what persists";
    return why_not_rows(m, id, group);
}

static const char *why_not_result(const mover *m, uint32_t id, int32_t group)
{
    const dh_tensor *t = tensor(m, id);
    if (t->base != DH_NONE) return "it writes a part of something larger";
    if (t->kind != DH_TENSOR_ACT) return "its result is no passing value";
    return t->shape[0] % members(m, group) ? "its rows do not divide by the ranks" : NULL;
}

/* NULL: the operator can work on slices. */
static const char *why_not(mover *m, const dh_op *op, const rewrite_row_op *row, int32_t group)
{
    const dh_op_info *info = dh_op_info_of(op->type);
    if (row->sums && m->alone) return "it is a sum over all rows";
    for (int k = 0; k < info->n_in; k++) {
        const uint32_t id = op->in[k];
        if (id == DH_NONE) continue;
        const char *why = NULL;
        if (row->in >> k & 1)
            why = why_not_rows(m, id, group);
        else if (!(of(m, dh_graph_storage(m->to.graph, id))->same >> group & 1))
            why = "an operand for all rows is not the same on all ranks";
        if (why) return why;
    }
    for (int k = 0; k < info->n_out; k++) {
        if (op->out[k] == DH_NONE || row->sums) continue;
        if (!(row->out >> k & 1)) return "it keeps what it overwrites";
        const char *why = rewrite_updates(op, k) ? why_not_update(m, op->out[k], group)
                                                 : why_not_result(m, op->out[k], group);
        if (why) return why;
    }
    return NULL;
}

/* ---- operators ------------------------------------------------------------------------------- */

/* A collective makes its result the same on all ranks of its group. Operators that move data to
 * other ranks make no result the same. */
static uint64_t same_after(mover *m, const dh_op *op)
{
    const dh_op_info *info = dh_op_info_of(op->type);
    uint64_t same = UINT64_MAX;
    for (int k = 0; k < info->n_in; k++)
        if (op->in[k] != DH_NONE) same &= of(m, dh_graph_storage(m->to.graph, op->in[k]))->same;
    if (info->resource != DH_RES_COMM) return same;
    const bool everywhere = op->type == DH_OP_ALL_GATHER || op->type == DH_OP_ALL_REDUCE;
    return everywhere ? same | UINT64_C(1) << op->group : 0;
}

static void note_outputs(mover *m, const dh_op *op, uint64_t same)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->out[k] == DH_NONE) continue;
        known *base = of(m, dh_graph_storage(m->to.graph, op->out[k]));
        /* Written in parts it is the same on all where all parts are. */
        base->same = tensor(m, op->out[k])->base == DH_NONE ? same : base->same & same;
    }
}

/* It is put off until somebody wants all rows. */
static bool put_off(mover *m, const dh_op *op)
{
    if (op->type != DH_OP_ALL_GATHER || op->parts > 1) return false;
    if (!m->alone && op->group != DH_GROUP_TP) return false;
    const dh_tensor *x = tensor(m, op->in[0]), *y = tensor(m, op->out[0]);
    if (x->kind != DH_TENSOR_ACT || x->base != DH_NONE || y->kind != DH_TENSOR_ACT ||
        y->base != DH_NONE || of(m, op->in[0])->own != DH_NONE)
        return false;
    known *k = of(m, op->out[0]);
    k->own = op->in[0];
    k->group = op->group;
    k->whole = false;
    return true;
}

static void keep(mover *m, const dh_op *op)
{
    dh_op copy = *op;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) copy.in[k] = whole(m, op->in[k], op->phase);
    rewrite_push(&m->to, &copy);
}

/* The rank's rows of what an operator updates, which from there on are what is known of it. */
static uint32_t update_own(mover *m, uint32_t id, int32_t group, bool moment)
{
    const uint32_t own = slice(m, id, group);
    if (m->to.failed) return id;
    known *k = of(m, id);
    k->own = own;
    k->group = group;
    k->whole = false;
    k->updated = true;
    k->moment = moment;
    return own;
}

static void move(mover *m, const dh_op *op, const rewrite_row_op *row, int32_t group)
{
    dh_op copy = *op;
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        copy.in[k] = row->in >> k & 1 ? slice(m, op->in[k], group) : whole(m, op->in[k], op->phase);
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if ((row->out >> k & 1) && op->out[k] != DH_NONE)
            copy.out[k] = rewrite_updates(op, k)
                              ? update_own(m, op->out[k], group, row->moments >> k & 1)
                              : add_own(m, op->out[k], group);
    rewrite_push(&m->to, &copy);
    if (m->work->report) m->work->report->n_places++;
}

static void leave(mover *m, const dh_op *op, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "%s -> %s", dh_op_info_of(op->type)->name,
             op->out[0] == DH_NONE ? "-" : tensor(m, op->out[0])->name);
    m->to.failed |= !dh_pass_leave(m->work->report, what, why);
}

static void rewrite_op(mover *m, const dh_op *op)
{
    const rewrite_row_op *row = rewrite_row_op_of(op->type);
    const uint64_t same = same_after(m, op);
    note_outputs(m, op, same);
    if (put_off(m, op)) return;
    const int32_t group = row->in ? group_of(m, op, row) : -1;
    const char *why = group < 0 ? NULL : why_not(m, op, row, group);
    if (why) leave(m, op, why);
    if (group < 0 || why)
        keep(m, op);
    else
        move(m, op, row, group);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* The input of a block of a job comes as slices. */
static void enter_sliced(mover *m, uint32_t *end)
{
    if (*end == DH_NONE || m->to.failed) return;
    of(m, *end)->same = UINT64_MAX;
    *end = add_own(m, *end, DH_GROUP_TP);
}

/* And leaves as such. */
static dh_status leave_sliced(dh_ctx *ctx, mover *m, uint32_t *end)
{
    if (*end == DH_NONE || m->to.failed) return DH_OK;
    if (of(m, *end)->own == DH_NONE)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "pass reorder: %s leaves its block whole, and the next one takes slices: "
                       "leave the pass out",
                       tensor(m, *end)->name);
    *end = of(m, *end)->own;
    return DH_OK;
}

static void note_reads(mover *m)
{
    const dh_graph *g = m->to.graph;
    for (uint32_t i = 0; i < g->tensors.n; i++) of(m, i)->same = same_at_first(&g->tensors.at[i]);
    for (size_t i = 0; i < g->ops.n; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++)
            if (g->ops.at[i].in[k] != DH_NONE)
                of(m, dh_graph_storage(g, g->ops.at[i].in[k]))->read = true;
}

/* A program of its own leaves whole tensors: its ends, and tensors without a reader. */
static void finish_alone(mover *m, size_t n)
{
    const dh_graph *g = m->to.graph;
    for (uint32_t i = 0; i < n && !m->to.failed; i++) {
        const known k = *of(m, i);
        if (k.moment && m->work->args[SHARDED]) continue;
        if (k.updated || !k.read || i == g->x_out || i == g->dx_in || i == g->loss_dx)
            whole(m, i, DH_PHASE_F);
    }
}

static dh_status finish(dh_ctx *ctx, mover *m, size_t n)
{
    dh_graph *g = m->to.graph;
    if (m->alone) {
        finish_alone(m, n);
        return DH_OK;
    }
    DH_TRY(leave_sliced(ctx, m, &g->x_out));
    DH_TRY(leave_sliced(ctx, m, &g->dx_in));
    if (g->loss_dx != DH_NONE && of(m, g->loss_dx)->own != DH_NONE)
        g->loss_dx = of(m, g->loss_dx)->own;
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status apply(dh_ctx *ctx, const dh_pass_work *work)
{
    dh_graph *g = work->graph;
    if (g->kind == DH_BLOCK_DATA) return DH_OK;
    mover m = {.to = {.graph = g}, .work = work, .alone = !work->spec->build.model};
    const size_t n = g->tensors.n;
    note_reads(&m);
    if (!m.alone) {
        enter_sliced(&m, &g->x_in);
        enter_sliced(&m, &g->dx_out);
    }
    for (size_t i = 0; i < g->ops.n && !m.to.failed; i++) {
        const dh_op op = g->ops.at[i];
        rewrite_op(&m, &op);
    }
    dh_status st = m.to.failed ? DH_OK : finish(ctx, &m, n);
    st = rewrite_end(ctx, &m.to, st, "reordering operators");
    dh_vec_fini(&m.at);
    return st;
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (!spec->build.model) return NULL;
    bool splits = false;
    for (int64_t i = 0; i < spec->passes.n; i++)
        splits |= spec->passes.at[i].pass == &dh_pass_row_split;
    const char *why = dh_pass_row_split.applicable(spec, args);
    if (why) return why;
    if (!splits) return "no pass split before it: all-reduces cannot be moved";
    if (spec->build.mode == DH_MODE_DECODE) return "a token is no rows to split";
    if (spec->build.model->n_experts > 0) return "operators of experts are not moved";
    if (spec->build.model->lora.rank > 0)
        return "gradients that come through adapters have all rows on every rank (lora.rank)";
    return spec->build.batch * spec->build.seq % spec->mesh.tp
               ? "tokens of a micro-batch do not divide by parallel.tp"
               : NULL;
}

const dh_pass dh_pass_row_reorder = {
    .name = "reorder",
    .doc = "moves operators by rows before all-gathers, onto slices, over blocks too: plain "
           "tensor parallelism becomes sequence parallelism (CoCoNet, arXiv 2105.05720, 3.2)",
    .place = DH_PASS_AFTER_GRADIENTS,
    .params = {{.name = "regather",
                .doc = "what weight gradients need whole is gathered again, and kept as slices",
                .kind = DH_PASS_FLAG,
                .fallback = 1},
               {.name = "sharded",
                .doc = "of a program of its own: moments stay with the rank that updates them",
                .kind = DH_PASS_FLAG}},
    .slices_stream = true,
    .takes_same = true,
    .applicable = applicable,
    .apply = apply};
