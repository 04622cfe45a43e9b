/* Joint replay: do the programs of all ranks end, and does every communication meet
 * its partners?
 *
 * A communication blocks its stream until all members of its group have, at the head
 * of the same stream, a call on that group; all then complete together. A transfer
 * between stages blocks both ends likewise. That is the strictest thing a
 * communicator may do: one that buffers small messages only ends sooner.
 *
 * The order of steps does not matter. Stepping one instruction never blocks another that was ready:
 * streams only advance, and a meeting has one set of partners. So every order ends in the same
 * state and makes the same meetings, and one replay speaks for all. Cost: O(instructions * waits +
 * members). */
#include "program/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/stop.h"
#include "program/replay.h"

/* Elements of either operand:
 *   NONE      none
 *   ONE       the number that members agree on
 *   ALL       this number for every member
 *   ROOM      room for a number that is known only when it runs; the same for all
 *   LENGTHS   the lengths of the rank's messages */
typedef enum extent { NONE, ONE, ALL, ROOM, LENGTHS } extent;
typedef struct call_row {
    extent in, out;
    bool between_two;
    int n_more; /* further operands of the same extents, either side */
} call_row;
static const call_row call_rows[DH_N_OP_TYPE] = {
    [DH_OP_ALL_GATHER] = {ONE, ALL, false, 0},
    [DH_OP_REDUCE_SCATTER] = {ALL, ONE, false, 0},
    [DH_OP_ALL_REDUCE] = {ONE, ONE, false, 0},
    [DH_OP_ALL_TO_ALL] = {ALL, ALL, false, 0},
    [DH_OP_RING_EXCHANGE] = {ONE, ONE, false, 0}, /* a ring of such transfers needs all at once */
    [DH_OP_ALL_TO_ALL_ROWS] = {ROOM, ONE, false, 0},
    [DH_OP_RING_EXCHANGE_BOTH] = {ONE, ONE, false, 1},
    [DH_OP_SHIFT] = {ONE, ONE, false, 0},
    [DH_OP_SCATTER_STEP] = {ONE, ONE, false, 0},
    [DH_OP_MESSAGES] = {LENGTHS, LENGTHS, false, 0},
    [DH_OP_SEND] = {ONE, NONE, true, 0},
    [DH_OP_RECV] = {NONE, ONE, true, 0},
};

/* A call, and what it is about. */
typedef struct call {
    dh_op_type type;
    dh_group_kind group;
    dh_dtype dtype;
    int64_t n;         /* elements */
    int64_t room;      /* elements of an input of its own size, else 0 */
    int64_t n_runs;    /* of rows that offsets cut, else 0 */
    uint32_t n_parts;  /* that the output comes in */
    int32_t by;        /* places that a shift goes on, else 0 */
    int32_t n_blocks;  /* that n_runs are, each shared out over all members; 0: one */
    int32_t peer, tag; /* between two; else -1 */
    int32_t mb;
    int64_t stage;             /* the caller's stage in the pipeline */
    uint32_t block, op, param; /* op 0 in the optimizer, whose operators differ by rank */
} call;

typedef struct node {
    dh_replay replay;
    bool arrived[DH_N_STREAM]; /* the head has made its call and waits for partners */
    bool queued;
    uint32_t user[DH_N_GROUPS]; /* first instruction on a group, DH_NONE */
} node;

/* Calls of one group that wait for the rest of it. */
typedef struct meeting {
    uint32_t n_members, n_here; /* nodes; n_members 0: not yet counted */
    uint32_t first_node, first_instr;
    int64_t n_done;
} meeting;

typedef struct joint {
    dh_ctx *ctx;
    const dh_program *const *programs; /* by node */
    const dh_mesh *mesh;
    const uint32_t *node_of; /* by rank; NULL: the rank itself */
    uint32_t n;
    node *nodes;
    meeting *meetings; /* [DH_N_GROUPS][n], by node of the group's first member */
    uint32_t *queue;   /* nodes that may have become able to step; a stack */
    size_t n_queue;
    uint32_t *seen; /* scratch of count_members, by node */
    uint32_t mark;
} joint;

#define TEXT 256

static const char *describe(const joint *j, uint32_t node_id, uint32_t instr, char *buf)
{
    return dh_instr_describe(j->programs[node_id], instr, buf, TEXT);
}

static const dh_op *op_of(const joint *j, uint32_t node_id, uint32_t instr)
{
    const dh_program *p = j->programs[node_id];
    return dh_instr_op(p, &p->instrs.at[instr]);
}

static uint32_t partner(const joint *j, uint32_t node_id, dh_group_kind group, int64_t member)
{
    int64_t rank = dh_mesh_group_member(j->mesh, group, j->programs[node_id]->rank, member);
    return j->node_of ? j->node_of[rank] : (uint32_t)rank;
}

static bool communicates(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static bool is_messages(const dh_op *op)
{
    return call_rows[op->type].in == LENGTHS;
}

/* Of messages: elements to the group's member (or from it). */
static int64_t length_of(const joint *j, uint32_t node_id, uint32_t instr, bool from,
                         int64_t member)
{
    const dh_program *p = j->programs[node_id];
    const int64_t n = dh_mesh_group_size(j->mesh, (dh_group_kind)op_of(j, node_id, instr)->group);
    return p->lengths
        .at[p->blocks.at[p->instrs.at[instr].block].lengths0 + (from ? n : 0) + member];
}

static int64_t total_of(const joint *j, uint32_t node_id, uint32_t instr, bool from)
{
    const int64_t n = dh_mesh_group_size(j->mesh, (dh_group_kind)op_of(j, node_id, instr)->group);
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += length_of(j, node_id, instr, from, i);
    return total;
}

/* Messages are about their block. Its number of operators is the rank's own. */
static call messages_of(const joint *j, uint32_t node_id, uint32_t instr)
{
    const dh_program *p = j->programs[node_id];
    const dh_instr *i = &p->instrs.at[instr];
    const dh_op *op = dh_instr_op(p, i);
    return (call){.type = op->type,
                  .group = (dh_group_kind)op->group,
                  .dtype = dh_instr_graph(p, i)->dtype,
                  .n_parts = 1,
                  .peer = -1,
                  .tag = -1,
                  .mb = i->mb,
                  .block = i->block,
                  .param = op->flat};
}

static call call_of(const joint *j, uint32_t node_id, uint32_t instr)
{
    const dh_program *p = j->programs[node_id];
    const dh_instr *i = &p->instrs.at[instr];
    const dh_graph *g = dh_instr_graph(p, i);
    const dh_op *op = dh_instr_op(p, i);
    const call_row *row = &call_rows[op->type];
    if (is_messages(op)) return messages_of(j, node_id, instr);
    const dh_tensor *t = &g->tensors.at[row->out == ONE ? op->out[0] : op->in[0]];
    call c = {.type = op->type,
              .group = (dh_group_kind)op->group,
              .dtype = t->dtype,
              .n = dh_tensor_elements(t),
              .n_parts = dh_op_n_parts(op),
              .by = op->by,
              .n_blocks = op->blocks,
              .peer = -1,
              .tag = -1,
              .mb = i->mb,
              .stage = dh_mesh_coord(j->mesh, p->rank).pp,
              .block = i->block,
              .op = g->kind == DH_BLOCK_OPT ? 0 : i->op,
              .param = op->flat};
    if (row->in == ROOM) {
        c.room = dh_tensor_elements(&g->tensors.at[op->in[0]]);
        c.n_runs = g->tensors.at[op->in[1]].shape[0] - 1;
    }
    if (row->in == ALL && row->out == ALL) c.n /= dh_mesh_group_size(j->mesh, c.group);
    if (row->between_two) {
        c.peer = p->blocks.at[i->block].peer;
        c.tag = p->blocks.at[i->block].tag;
    }
    return c;
}

/* The extent of operand k, from the graph, against the call and the operand's bytes. */
static bool operand_fits(const joint *j, uint32_t node_id, uint32_t instr, const call *c, bool out,
                         int k)
{
    const dh_program *p = j->programs[node_id];
    const dh_instr *i = &p->instrs.at[instr];
    const dh_op *op = dh_instr_op(p, i);
    const extent want = out ? call_rows[op->type].out : call_rows[op->type].in;
    if (want == NONE) return true;
    const uint32_t id = out ? op->out[k] : op->in[k];
    const int64_t total = want == LENGTHS ? total_of(j, node_id, instr, out) : 0;
    if (want == LENGTHS && total == 0) return id == DH_NONE;
    if (id == DH_NONE) return false;
    const dh_tensor *t = &dh_instr_graph(p, i)->tensors.at[id];
    const int64_t members = want == ALL ? dh_mesh_group_size(j->mesh, c->group) : 1;
    const int64_t n = want == LENGTHS ? total : want == ROOM ? c->room : c->n * members;
    const dh_operand *o = dh_instr_operand(p, i, k + (out ? dh_op_info_of(op->type)->n_in : 0));
    return t->dtype == c->dtype && dh_tensor_elements(t) == n &&
           o->n_bytes == (uint64_t)dh_tensor_bytes(t);
}

/* Offsets of runs of rows, as many runs for every member; rows are of one length. */
static bool offsets_fit(const joint *j, uint32_t node_id, uint32_t instr, const call *c)
{
    const dh_program *p = j->programs[node_id];
    const dh_op *op = op_of(j, node_id, instr);
    const dh_graph *g = dh_instr_graph(p, &p->instrs.at[instr]);
    if (call_rows[op->type].in != ROOM) return true;
    const dh_tensor *x = &g->tensors.at[op->in[0]], *y = &g->tensors.at[op->out[0]];
    if (c->room / x->shape[0] != c->n / y->shape[0]) return false;
    for (int k = 1; k <= 2; k++) {
        const dh_tensor *t = &g->tensors.at[op->in[k]];
        const dh_operand *o = dh_instr_operand(p, &p->instrs.at[instr], k);
        if (t->dtype != DH_I64 || dh_tensor_elements(t) != c->n_runs + 1 || c->n_runs < 1 ||
            c->n_runs % (dh_mesh_group_size(j->mesh, c->group) * DH_MAX(c->n_blocks, 1)) ||
            o->n_bytes != (uint64_t)dh_tensor_bytes(t))
            return false;
    }
    return true;
}

static bool operands_fit(const joint *j, uint32_t node_id, uint32_t instr, const call *c)
{
    const int n = 1 + call_rows[c->type].n_more;
    for (int k = 0; k < n; k++)
        if (!operand_fits(j, node_id, instr, c, false, k) ||
            !operand_fits(j, node_id, instr, c, true, k))
            return false;
    return true;
}

static dh_status check_group(const joint *j, uint32_t node_id, uint32_t instr)
{
    const dh_op *op = op_of(j, node_id, instr);
    const int64_t rank = j->programs[node_id]->rank;
    char a[TEXT];
    if (op->group < 0 || op->group >= DH_N_GROUPS)
        return dh_fail(j->ctx, DH_EVERIFY, "%s names no group", describe(j, node_id, instr, a));
    if (dh_mesh_group_index(j->mesh, (dh_group_kind)op->group, rank) < 0)
        return dh_fail(j->ctx, DH_EVERIFY, "%s: the rank has no part in group %s",
                       describe(j, node_id, instr, a), dh_group_name((dh_group_kind)op->group));
    return DH_OK;
}

static dh_status check_peer(const joint *j, uint32_t node_id, uint32_t instr, const call *c)
{
    const int64_t size = dh_mesh_group_size(j->mesh, c->group);
    const int64_t own = dh_mesh_group_index(j->mesh, c->group, j->programs[node_id]->rank);
    char a[TEXT];
    if (c->peer < 0 || c->peer >= size || c->peer == own)
        return dh_fail(j->ctx, DH_EVERIFY,
                       "%s names peer %d; the rank is member %" PRId64 " of %" PRId64
                       " of group %s",
                       describe(j, node_id, instr, a), c->peer, own, size, dh_group_name(c->group));
    return DH_OK;
}

/* All calls on a group come from one stream: their order is then that of the stream. */
static dh_status check_stream(joint *j, uint32_t node_id, uint32_t instr, const call *c)
{
    const dh_program *p = j->programs[node_id];
    uint32_t *user = &j->nodes[node_id].user[c->group];
    char a[TEXT], b[TEXT];
    if (*user == DH_NONE) *user = instr;
    if (p->instrs.at[*user].stream == p->instrs.at[instr].stream) return DH_OK;
    return dh_fail(
        j->ctx, DH_EVERIFY, "%s and %s use group %s from two streams: their order is not known",
        describe(j, node_id, *user, a), describe(j, node_id, instr, b), dh_group_name(c->group));
}

/* The order in which communicators work: an all-gather begins with the rank's own rows, which are
 * as many parts as everybody's, others with the first ones. */
static dh_status check_parts(const joint *j, uint32_t node_id, uint32_t instr, const call *c)
{
    const dh_op *op = op_of(j, node_id, instr);
    const int64_t size = dh_mesh_group_size(j->mesh, c->group), each = c->n_parts / size;
    const int64_t index = dh_mesh_group_index(j->mesh, c->group, j->programs[node_id]->rank);
    const bool gathers = op->type == DH_OP_ALL_GATHER, even = !gathers || c->n_parts % size == 0;
    const int64_t first = gathers ? index * each : 0;
    char a[TEXT];
    if (c->n_parts == 1 || (even && op->part0 == first)) return DH_OK;
    if (!even)
        return dh_fail(j->ctx, DH_EVERIFY,
                       "%s is in %u parts, which are not as many for each of the %" PRId64
                       " members of group %s",
                       describe(j, node_id, instr, a), c->n_parts, size, dh_group_name(c->group));
    return dh_fail(j->ctx, DH_EVERIFY,
                   "%s begins with part %d; the communicator does with %" PRId64,
                   describe(j, node_id, instr, a), op->part0, first);
}

/* To itself a rank sends nothing, and whoever went round the group would be another member. */
static dh_status check_shift(const joint *j, uint32_t node_id, uint32_t instr, const call *c)
{
    const int64_t size = dh_mesh_group_size(j->mesh, c->group);
    char a[TEXT];
    const bool shifts = c->type == DH_OP_SHIFT || c->type == DH_OP_SCATTER_STEP;
    if (!shifts || (c->by > 0 && c->by < size)) return DH_OK;
    return dh_fail(j->ctx, DH_EVERIFY,
                   "%s goes on by %d places; among the %" PRId64 " members of group %s it can be 1 "
                   "to %" PRId64,
                   describe(j, node_id, instr, a), c->by, size, dh_group_name(c->group), size - 1);
}

/* Lengths that there are, none below 0, and nothing to the rank itself. */
static dh_status check_lengths(const joint *j, uint32_t node_id, uint32_t instr)
{
    const dh_program *p = j->programs[node_id];
    const dh_op *op = op_of(j, node_id, instr);
    const dh_group_kind group = (dh_group_kind)op->group;
    const int64_t size = dh_mesh_group_size(j->mesh, group);
    const int64_t own = dh_mesh_group_index(j->mesh, group, p->rank);
    const uint32_t at = p->blocks.at[p->instrs.at[instr].block].lengths0;
    char a[TEXT];
    if (!is_messages(op)) return DH_OK;
    bool fits = at + 2 * (size_t)size <= p->lengths.n;
    for (int64_t i = 0; fits && i < 2 * size; i++)
        fits = p->lengths.at[at + i] >= 0 && (i % size != own || p->lengths.at[at + i] == 0);
    if (fits) return DH_OK;
    return dh_fail(j->ctx, DH_EVERIFY,
                   "%s has no lengths of messages to and from the %" PRId64
                   " members of group %s, or one to itself",
                   describe(j, node_id, instr, a), size, dh_group_name(group));
}

static dh_status check_call(joint *j, uint32_t node_id, uint32_t instr)
{
    const dh_op *op = op_of(j, node_id, instr);
    const call_row *row = &call_rows[op->type];
    char a[TEXT];
    DH_CHECK(row->in != NONE || row->out != NONE, "%s has no row in call_rows",
             dh_op_info_of(op->type)->name);
    DH_TRY(check_group(j, node_id, instr));
    DH_TRY(check_lengths(j, node_id, instr));
    if (!is_messages(op) && op->in[0] == DH_NONE && op->out[0] == DH_NONE)
        return dh_fail(j->ctx, DH_EVERIFY, "%s has no operand", describe(j, node_id, instr, a));
    const call c = call_of(j, node_id, instr);
    if (row->between_two) DH_TRY(check_peer(j, node_id, instr, &c));
    if (is_messages(op) && !operands_fit(j, node_id, instr, &c))
        return dh_fail(j->ctx, DH_EVERIFY,
                       "%s: its operands are not the %" PRId64 " elements that it sends and the "
                       "%" PRId64 " that come",
                       describe(j, node_id, instr, a), total_of(j, node_id, instr, false),
                       total_of(j, node_id, instr, true));
    if (!operands_fit(j, node_id, instr, &c) || !offsets_fit(j, node_id, instr, &c))
        return dh_fail(j->ctx, DH_EVERIFY,
                       "%s: its operands do not fit a call on %" PRId64 " elements of %s and the "
                       "%" PRId64 " members of group %s",
                       describe(j, node_id, instr, a), c.n, dh_dtype_name(c.dtype),
                       dh_mesh_group_size(j->mesh, c.group), dh_group_name(c.group));
    DH_TRY(check_parts(j, node_id, instr, &c));
    DH_TRY(check_shift(j, node_id, instr, &c));
    return check_stream(j, node_id, instr, &c);
}

/* A link is node-local for all its members or for none: they use one stream. */
static dh_status check_links(const joint *j, uint32_t node_id)
{
    for (int g = 0; g < DH_N_GROUPS; g++) {
        const uint32_t mine = j->nodes[node_id].user[g];
        if (mine == DH_NONE) continue;
        const uint32_t first = partner(j, node_id, (dh_group_kind)g, 0);
        const uint32_t theirs = j->nodes[first].user[g];
        char a[TEXT], b[TEXT];
        if (theirs != DH_NONE && j->programs[first]->instrs.at[theirs].stream !=
                                     j->programs[node_id]->instrs.at[mine].stream)
            return dh_fail(j->ctx, DH_EVERIFY,
                           "%s and %s use one group, %s, from different streams",
                           describe(j, first, theirs, a), describe(j, node_id, mine, b),
                           dh_group_name((dh_group_kind)g));
    }
    return DH_OK;
}

static dh_status check_calls(joint *j)
{
    for (uint32_t k = 0; k < j->n; k++)
        for (uint32_t i = 0; i < j->programs[k]->instrs.n; i++)
            if (communicates(op_of(j, k, i))) DH_TRY(check_call(j, k, i));
    for (uint32_t k = 0; k < j->n; k++) DH_TRY(check_links(j, k));
    return DH_OK;
}

/* Partners make the same call about the same thing. Calls of equal size are still told apart by
 * micro-batch. Within a stage, whose ranks hold the same blocks, block and operator tell them apart
 * too. */
static bool agree(const call *a, const call *b)
{
    if (a->n != b->n || a->room != b->room || a->n_runs != b->n_runs || a->dtype != b->dtype ||
        a->tag != b->tag || a->mb != b->mb || a->n_parts != b->n_parts || a->by != b->by ||
        a->n_blocks != b->n_blocks)
        return false;
    if (call_rows[a->type].between_two) return call_rows[b->type].between_two;
    if (a->type != b->type) return false;
    return a->stage != b->stage || (a->block == b->block && a->op == b->op && a->param == b->param);
}

/* ---- meetings ------------------------------------------------------------------------------- */

static void enqueue(joint *j, uint32_t node_id)
{
    if (j->nodes[node_id].queued) return;
    j->nodes[node_id].queued = true;
    j->queue[j->n_queue++] = node_id;
}

static void complete(joint *j, uint32_t node_id, int stream)
{
    node *k = &j->nodes[node_id];
    k->arrived[stream] = false;
    dh_replay_step(&k->replay, stream);
    enqueue(j, node_id);
}

static const char *describe_call(const call *c, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, "%s of %" PRId64 " %s", dh_op_info_of(c->type)->name, c->n,
                     dh_dtype_name(c->dtype));
    if (n < 0 || (size_t)n >= cap) return buf;
    if (c->tag >= 0) snprintf(buf + n, cap - (size_t)n, " with tag %d", c->tag);
    if (c->room > 0)
        snprintf(buf + n, cap - (size_t)n, " out of %" PRId64 " in %" PRId64 " runs, %d blocks",
                 c->room, c->n_runs, DH_MAX(c->n_blocks, 1));
    if (c->n_parts > 1) snprintf(buf + n, cap - (size_t)n, " in %u parts", c->n_parts);
    return buf;
}

static dh_status mismatch(const joint *j, const char *where, uint32_t node_a, uint32_t instr_a,
                          uint32_t node_b, uint32_t instr_b)
{
    const call ca = call_of(j, node_a, instr_a), cb = call_of(j, node_b, instr_b);
    char a[TEXT], b[TEXT], ta[96], tb[96];
    return dh_fail(j->ctx, DH_EVERIFY, "%s do not fit together: %s is %s, %s is %s", where,
                   describe(j, node_a, instr_a, a), describe_call(&ca, ta, sizeof ta),
                   describe(j, node_b, instr_b, b), describe_call(&cb, tb, sizeof tb));
}

/* Several members of a group may be of one class: they are one node. */
static uint32_t count_members(joint *j, uint32_t node_id, dh_group_kind group)
{
    const int64_t size = dh_mesh_group_size(j->mesh, group);
    if (!j->node_of) return (uint32_t)size;
    uint32_t n = 0;
    j->mark++;
    for (int64_t i = 0; i < size; i++) {
        uint32_t *seen = &j->seen[partner(j, node_id, group, i)];
        n += *seen != j->mark;
        *seen = j->mark;
    }
    return n;
}

static meeting *meeting_of(const joint *j, uint32_t node_id, dh_group_kind group)
{
    return &j->meetings[(size_t)group * j->n + partner(j, node_id, group, 0)];
}

static dh_status other_call(const joint *j, const meeting *m, dh_group_kind group, uint32_t node_id,
                            uint32_t instr)
{
    char where[96];
    snprintf(where, sizeof where, "calls number %" PRId64 " on group %s", m->n_done + 1,
             dh_group_name(group));
    return mismatch(j, where, m->first_node, m->first_instr, node_id, instr);
}

/* A member sends as much as the other one takes; all are at the head of their stream. */
static dh_status check_messages(const joint *j, uint32_t node_id, int stream, const call *c)
{
    const int64_t size = dh_mesh_group_size(j->mesh, c->group);
    char ta[TEXT], tb[TEXT];
    for (int64_t a = 0; a < size; a++)
        for (int64_t b = 0; b < size; b++) {
            const uint32_t from = partner(j, node_id, c->group, a);
            const uint32_t to = partner(j, node_id, c->group, b);
            const uint32_t sends = dh_replay_head(&j->nodes[from].replay, stream);
            const uint32_t takes = dh_replay_head(&j->nodes[to].replay, stream);
            const int64_t sent = length_of(j, from, sends, false, b);
            const int64_t taken = length_of(j, to, takes, true, a);
            if (sent != taken)
                return dh_fail(j->ctx, DH_EVERIFY,
                               "messages on group %s do not fit together: %s sends rank %" PRId64
                               " %" PRId64 " elements, %s takes %" PRId64,
                               dh_group_name(c->group), describe(j, from, sends, ta),
                               j->programs[to]->rank, sent, describe(j, to, takes, tb), taken);
        }
    return DH_OK;
}

static dh_status join_group(joint *j, uint32_t node_id, int stream, uint32_t instr)
{
    const call mine = call_of(j, node_id, instr);
    meeting *m = meeting_of(j, node_id, mine.group);
    if (m->n_members == 0) m->n_members = count_members(j, node_id, mine.group);
    if (m->n_here == 0) {
        m->first_node = node_id;
        m->first_instr = instr;
    } else {
        const call first = call_of(j, m->first_node, m->first_instr);
        if (!agree(&first, &mine)) return other_call(j, m, mine.group, node_id, instr);
    }
    if (++m->n_here < m->n_members) return DH_OK;
    const int64_t size = dh_mesh_group_size(j->mesh, mine.group);
    if (call_rows[mine.type].in == LENGTHS) DH_TRY(check_messages(j, node_id, stream, &mine));
    for (int64_t i = 0; i < size; i++) {
        uint32_t member = partner(j, node_id, mine.group, i);
        if (j->nodes[member].arrived[stream]) complete(j, member, stream);
    }
    m->n_here = 0;
    m->n_done++;
    return DH_OK;
}

static dh_status join_peer(joint *j, uint32_t node_id, int stream, uint32_t instr)
{
    const call mine = call_of(j, node_id, instr);
    const uint32_t other = partner(j, node_id, mine.group, mine.peer);
    if (!j->nodes[other].arrived[stream]) return DH_OK;
    const uint32_t head = dh_replay_head(&j->nodes[other].replay, stream);
    const call theirs = call_of(j, other, head);
    if (!call_rows[theirs.type].between_two || theirs.type == mine.type ||
        theirs.group != mine.group || partner(j, other, theirs.group, theirs.peer) != node_id)
        return DH_OK; /* the peer is busy elsewhere; for ever, if this is a deadlock */
    if (!agree(&theirs, &mine))
        return mismatch(j, "the two ends of a transfer", other, head, node_id, instr);
    complete(j, other, stream);
    complete(j, node_id, stream);
    return DH_OK;
}

/* ---- replay --------------------------------------------------------------------------------- */

static bool is_ready(node *k, int stream)
{
    return dh_replay_head(&k->replay, stream) != DH_NONE && !k->arrived[stream] &&
           dh_replay_blocker(&k->replay, stream) == DH_NONE;
}

static dh_status step(joint *j, uint32_t node_id, int stream)
{
    node *k = &j->nodes[node_id];
    const uint32_t head = dh_replay_head(&k->replay, stream);
    const dh_op *op = op_of(j, node_id, head);
    if (!communicates(op)) {
        dh_replay_step(&k->replay, stream);
        return DH_OK;
    }
    k->arrived[stream] = true;
    return call_rows[op->type].between_two ? join_peer(j, node_id, stream, head)
                                           : join_group(j, node_id, stream, head);
}

/* Until all its streams are blocked or have ended. */
static dh_status advance(joint *j, uint32_t node_id)
{
    node *k = &j->nodes[node_id];
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < DH_N_STREAM; s++)
            while (is_ready(k, s)) {
                DH_TRY(step(j, node_id, s));
                moved = true;
            }
    }
    return DH_OK;
}

/* ---- deadlocks ----------------------------------------------------------------------------- */

/* One blocked stream of a node, and what it waits for. */
typedef struct place {
    uint32_t node;
    int stream;
} place;

static bool is_stuck(const joint *j, place at)
{
    return dh_replay_head(&j->nodes[at.node].replay, at.stream) != DH_NONE;
}

/* A member of the head's group that has not come to the meeting. */
static uint32_t absent_member(const joint *j, place at, const call *c)
{
    if (call_rows[c->type].between_two) return partner(j, at.node, c->group, c->peer);
    const int64_t size = dh_mesh_group_size(j->mesh, c->group);
    for (int64_t i = 0; i < size; i++) {
        uint32_t member = partner(j, at.node, c->group, i);
        const node *k = &j->nodes[member];
        if (!k->arrived[at.stream]) return member;
        const call theirs = call_of(j, member, dh_replay_head(&k->replay, at.stream));
        if (call_rows[theirs.type].between_two || theirs.group != c->group) return member;
    }
    return at.node; /* not reached: the meeting would have completed */
}

/* Where what the stream waits for is held up. */
static place blocked_by(const joint *j, place at)
{
    dh_replay *r = &j->nodes[at.node].replay;
    const uint32_t wait = dh_replay_blocker(r, at.stream);
    if (wait != DH_NONE) return (place){at.node, j->programs[at.node]->instrs.at[wait].stream};
    const call c = call_of(j, at.node, dh_replay_head(r, at.stream));
    return (place){absent_member(j, at, &c), at.stream};
}

static void print_link(const joint *j, place from, place to, bool again, dh_str *out)
{
    char text[TEXT];
    const uint32_t wait = dh_replay_blocker(&j->nodes[from.node].replay, from.stream);
    const uint32_t next = dh_replay_head(&j->nodes[to.node].replay, to.stream);
    const int64_t rank = j->programs[to.node]->rank;
    if (wait != DH_NONE && wait != next)
        dh_str_printf(out, " waits for instruction %u behind", wait);
    else if (wait != DH_NONE)
        dh_str_printf(out, " waits for");
    else if (next == DH_NONE)
        dh_str_printf(out, " waits for rank %" PRId64 ", whose %s stream has ended", rank,
                      dh_stream_name((dh_stream)to.stream));
    else
        dh_str_printf(out, " waits for rank %" PRId64 ", which is at", rank);
    if (next == DH_NONE) return;
    if (again)
        dh_str_printf(out, " instruction %u, the first named here", next);
    else
        dh_str_printf(out, " %s, which", describe(j, to.node, next, text));
}

/* Follows what blocks what: into a cycle, or to a stream that has ended too early. */
static dh_status report_deadlock(const joint *j, place at)
{
    enum { MOST_LINKS = 12 }; /* more do not fit a message */
    const size_t n_places = (size_t)j->n * DH_N_STREAM;
    place start = at;
    size_t length = 0;
    for (size_t i = 0; i < n_places && is_stuck(j, start); i++) start = blocked_by(j, start);
    const bool cycle = is_stuck(j, start);
    if (cycle) { /* after as many links as there are places, start is on the cycle */
        place p = start;
        do {
            p = blocked_by(j, p);
            length++;
        } while (p.node != start.node || p.stream != start.stream);
    } else {
        for (place p = start = at; is_stuck(j, p); p = blocked_by(j, p)) length++;
        for (; length > MOST_LINKS; length--) start = blocked_by(j, start);
    }
    char text[TEXT];
    dh_str out = DH_STR_INIT;
    dh_str_printf(
        &out, "deadlock: %s",
        describe(j, start.node, dh_replay_head(&j->nodes[start.node].replay, start.stream), text));
    place p = start;
    for (size_t i = 0; i < length && i < MOST_LINKS; i++) {
        place next = blocked_by(j, p);
        print_link(j, p, next, cycle && i + 1 == length, &out);
        p = next;
    }
    if (length > MOST_LINKS) dh_str_printf(&out, " waits ... (a cycle of %zu)", length);
    dh_status st = dh_fail(j->ctx, DH_EVERIFY, "%s", out.text ? out.text : "deadlock");
    dh_str_fini(&out);
    return st;
}

static dh_status check_ended(const joint *j)
{
    for (uint32_t k = 0; k < j->n; k++)
        for (int s = 0; s < DH_N_STREAM; s++)
            if (is_stuck(j, (place){k, s})) return report_deadlock(j, (place){k, s});
    return DH_OK;
}

/* ---- entry --------------------------------------------------------------------------------- */

static dh_status replay(joint *j)
{
    j->nodes = calloc(j->n, sizeof *j->nodes);
    j->meetings = calloc((size_t)j->n * DH_N_GROUPS, sizeof *j->meetings);
    j->queue = calloc(j->n, sizeof *j->queue);
    j->seen = calloc(j->n, sizeof *j->seen);
    if (!j->nodes || !j->meetings || !j->queue || !j->seen) return dh_no_memory(j->ctx);
    for (uint32_t k = 0; k < j->n; k++) {
        memset(j->nodes[k].user, 0xff, sizeof j->nodes[k].user);
        DH_TRY(dh_replay_init(j->ctx, &j->nodes[k].replay, j->programs[k]));
    }
    DH_TRY(check_calls(j));
    for (uint32_t k = j->n; k-- > 0;) enqueue(j, k);
    while (j->n_queue) {
        uint32_t next = j->queue[--j->n_queue];
        j->nodes[next].queued = false;
        DH_TRY(dh_heed_stop(j->ctx, "the programs of all ranks were verified together"));
        DH_TRY(advance(j, next));
    }
    return check_ended(j);
}

dh_status dh_ranks_replay(dh_ctx *ctx, const dh_program *const *programs, size_t n,
                          const uint32_t *class_of)
{
    if (n == 0) return DH_OK;
    joint j = {.ctx = ctx,
               .programs = programs,
               .mesh = &programs[0]->mesh,
               .node_of = class_of,
               .n = (uint32_t)n};
    dh_status st = replay(&j);
    for (uint32_t k = 0; j.nodes && k < j.n; k++) dh_replay_fini(&j.nodes[k].replay);
    free(j.nodes);
    free(j.meetings);
    free(j.queue);
    free(j.seen);
    return st;
}

dh_status dh_programs_replay(dh_ctx *ctx, const dh_program *const *programs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const dh_program *p = programs[i];
        if (p->rank != (int64_t)i || p->mesh.ranks != (int64_t)n ||
            !dh_mesh_equal(&p->mesh, &programs[0]->mesh))
            return dh_fail(ctx, DH_EINVAL,
                           "program %zu of %zu is that of rank %" PRId64 " of %" PRId64
                           "; all ranks of one mesh are wanted, in order",
                           i, n, p->rank, p->mesh.ranks);
    }
    return dh_ranks_replay(ctx, programs, n, NULL);
}

dh_status dh_programs_verify(dh_ctx *ctx, const dh_program *const *programs, size_t n)
{
    for (size_t i = 0; i < n; i++) DH_TRY(dh_program_verify(ctx, programs[i]));
    return dh_programs_replay(ctx, programs, n);
}
