/* Slots: what each operator of two strands must follow. */
#include "strategy/slot.h"

#include <stdlib.h>
#include <string.h>

/* ---- dependences -------------------------------------------------------------------------- */

/* One access to some rows of a tensor. */
typedef struct row_access {
    uint32_t op;
    bool writes;
    int64_t row0, row1;
} row_access;
typedef DH_VEC(row_access) access_list;

/* The accesses of a strand so far. Places are the tensors of every block, then the inputs of the
 * micro-batch and the persistent states, which all blocks share. */
typedef struct tracker {
    const dh_slot_item *items;
    size_t n_items;
    bool forward;
    const dh_graph **graphs; /* [n_blocks] */
    size_t *place0;          /* [n_blocks + 1] */
    size_t n_blocks;
    access_list *at;
    size_t n_places;
    DH_VEC(uint32_t) preds;
    DH_VEC(uint32_t) parts;  /* of each: the part that is wanted, DH_NONE */
    bool in_parts;           /* of any of them */
    DH_VEC(uint32_t) uses;   /* places, operator after operator */
    dh_slot_tensor *tensors; /* [n_places]; no bytes: none of the strand's own */
    bool *seen;              /* [n_places] */
    bool failed;
} tracker;

enum { SHARED_PLACES = (int)DH_N_INPUT + (int)DH_N_STATE };

static bool reduces(const dh_slot_item *item)
{
    return item->graph->kind == DH_BLOCK_GRADS;
}

static bool is_forward(const dh_slot_item *items, size_t n)
{
    return n > 0 && items->graph->ops.at[items->op].phase == DH_PHASE_F;
}

static bool tracker_init(tracker *t, const dh_slot_item *items, size_t n)
{
    *t = (tracker){.items = items, .n_items = n, .forward = is_forward(items, n)};
    for (size_t i = 0; i < n; i++) t->n_blocks = DH_MAX(t->n_blocks, (size_t)items[i].block + 1);
    t->graphs = calloc(t->n_blocks + 1, sizeof *t->graphs);
    t->place0 = calloc(t->n_blocks + 1, sizeof *t->place0);
    if (!t->graphs || !t->place0) return false;
    for (size_t i = 0; i < n; i++)
        if (!reduces(&items[i])) t->graphs[items[i].block] = items[i].graph;
    for (size_t b = 0; b < t->n_blocks; b++)
        t->place0[b + 1] = t->place0[b] + (t->graphs[b] ? t->graphs[b]->tensors.n : 0);
    t->n_places = t->place0[t->n_blocks] + SHARED_PLACES;
    t->at = calloc(t->n_places, sizeof *t->at);
    t->tensors = calloc(t->n_places, sizeof *t->tensors);
    t->seen = calloc(t->n_places, sizeof *t->seen);
    return t->at && t->tensors && t->seen;
}

static void tracker_fini(tracker *t)
{
    for (size_t i = 0; t->at && i < t->n_places; i++) dh_vec_fini(&t->at[i]);
    free(t->at);
    free(t->place0);
    free(t->graphs);
    free(t->tensors);
    free(t->seen);
    dh_vec_fini(&t->preds);
    dh_vec_fini(&t->parts);
    dh_vec_fini(&t->uses);
}

/* The tensor by which the strand enters a block, and leaves it. */
static uint32_t entering(const tracker *t, const dh_graph *g)
{
    return t->forward ? g->x_in : g->dx_out;
}

static uint32_t leaving(const tracker *t, const dh_graph *g)
{
    return t->forward ? g->x_out : g->dx_in;
}

static size_t place_of(const tracker *t, size_t block, uint32_t tensor)
{
    const dh_tensor *x = &t->graphs[block]->tensors.at[tensor];
    if (x->kind == DH_TENSOR_INPUT) return t->place0[t->n_blocks] + x->which;
    if (x->kind == DH_TENSOR_STATE) return t->place0[t->n_blocks] + DH_N_INPUT + x->which;
    const uint32_t root = x->base == DH_NONE ? tensor : x->base;
    if (root == entering(t, t->graphs[block]))
        for (size_t b = block; b-- > 0;) { /* blocks without such a tensor lie between: data */
            const uint32_t from = t->graphs[b] ? leaving(t, t->graphs[b]) : DH_NONE;
            if (from != DH_NONE) return t->place0[b] + from;
        }
    return t->place0[block] + root;
}

/* If several parts of one operator are wanted, the last counts; DH_NONE is all of it. */
static void add_pred(tracker *t, size_t first, uint32_t pred, uint32_t part)
{
    t->in_parts |= part != DH_NONE;
    for (size_t i = first; i < t->preds.n; i++)
        if (t->preds.at[i] == pred) {
            t->parts.at[i] = DH_MAX(t->parts.at[i], part);
            return;
        }
    /* The part first: each operator that counts has one, also where memory runs out. */
    if (!dh_vec_push(&t->parts, part) || !dh_vec_push(&t->preds, pred)) t->failed = true;
}

/* The part of what an access wrote after which another one may read it. */
static uint32_t part_wanted(const tracker *t, const row_access *was, const row_access *now,
                            int64_t n_rows)
{
    if (!was->writes || now->writes) return DH_NONE;
    const dh_slot_item *item = &t->items[was->op];
    const dh_op *op = &item->graph->ops.at[item->op];
    const uint32_t n_parts = dh_op_n_parts(op);
    if (n_parts == 1) return DH_NONE;
    const int64_t end = DH_MIN(was->row1, n_rows);
    const uint32_t part = dh_op_part_of(op, end - was->row0, DH_MAX(now->row0 - was->row0, 0),
                                        DH_MIN(now->row1, end) - was->row0);
    return part + 1 < n_parts ? part : DH_NONE;
}

static void touch(tracker *t, size_t first, uint32_t op, size_t block, uint32_t tensor, bool writes)
{
    const dh_tensor *x = &t->graphs[block]->tensors.at[tensor];
    if (x->kind == DH_TENSOR_PARAM || x->kind == DH_TENSOR_RANGE) return;
    row_access now = {.op = op, .writes = writes, .row0 = 0, .row1 = INT64_MAX};
    if (x->base != DH_NONE) {
        now.row0 = x->row0;
        now.row1 = x->row0 + x->shape[0];
    }
    const uint32_t root = x->base == DH_NONE ? tensor : x->base;
    const int64_t n_rows = t->graphs[block]->tensors.at[root].shape[0];
    access_list *list = &t->at[place_of(t, block, tensor)];
    for (size_t i = 0; i < list->n; i++) {
        const row_access *was = &list->at[i];
        const bool apart = was->row1 <= now.row0 || now.row1 <= was->row0;
        if (apart || was->op == op || !(was->writes || writes)) continue;
        add_pred(t, first, was->op, part_wanted(t, was, &now, n_rows));
    }
    if (!dh_vec_push(list, now)) t->failed = true;
}

/* Note a tensor that the operator uses. If its first use only reads, it was there before. */
static void use(tracker *t, size_t first, size_t block, uint32_t tensor, bool writes)
{
    const dh_graph *g = t->graphs[block];
    const dh_tensor *x = &g->tensors.at[tensor];
    if (x->kind != DH_TENSOR_ACT) return;
    const size_t place = place_of(t, block, tensor);
    if (!t->seen[place]) {
        const uint32_t root = x->base == DH_NONE ? tensor : x->base;
        t->seen[place] = true;
        t->tensors[place].n_bytes = dh_tensor_bytes(&g->tensors.at[root]);
        t->tensors[place].before = !writes;
    }
    for (size_t i = first; i < t->uses.n; i++)
        if (t->uses.at[i] == place) return;
    if (!dh_vec_push(&t->uses, (uint32_t)place)) t->failed = true;
}

/* Phases of a graph that come after those in the slot read what the strand must leave. */
static void keep_for_later(tracker *t)
{
    for (size_t b = 0; b < t->n_blocks; b++) {
        const dh_graph *g = t->graphs[b];
        dh_phase last = DH_PHASE_F;
        for (size_t i = 0; i < t->n_items; i++)
            if (t->items[i].block == b && !reduces(&t->items[i]))
                last = DH_MAX(last, g->ops.at[t->items[i].op].phase);
        for (uint32_t i = 0; g && i < g->ops.n; i++)
            for (int k = 0; g->ops.at[i].phase > last && k < DH_MAX_OPERANDS; k++)
                if (g->ops.at[i].in[k] != DH_NONE)
                    t->tensors[place_of(t, b, g->ops.at[i].in[k])].beyond = true;
    }
}

static void track(tracker *t, uint32_t i)
{
    const dh_slot_item *item = &t->items[i];
    const size_t first = t->preds.n;
    for (uint32_t k = 0; k < item->n_after; k++) add_pred(t, first, item->after[k], DH_NONE);
    if (reduces(item)) return;
    const dh_op *op = &item->graph->ops.at[item->op];
    const size_t first_use = t->uses.n;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->in[k] != DH_NONE) use(t, first_use, item->block, op->in[k], false);
        if (op->out[k] != DH_NONE) use(t, first_use, item->block, op->out[k], true);
    }
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->in[k] != DH_NONE) touch(t, first, i, item->block, op->in[k], false);
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->out[k] != DH_NONE) touch(t, first, i, item->block, op->out[k], true);
}

/* ---- strands ------------------------------------------------------------------------------- */

static dh_slot_op describe(const dh_costs *costs, const dh_mesh *mesh, int64_t rank,
                           const dh_slot_item *item)
{
    const dh_cost_op at = {item->graph, &item->graph->ops.at[item->op], mesh, rank};
    return (dh_slot_op){.at = at,
                        .ns = costs->solo(costs->self, &at).ns,
                        .stream = dh_cost_stream(&at),
                        .block = item->block,
                        .wgrad = at.op->phase == DH_PHASE_W && !reduces(item),
                        .reduces = reduces(item),
                        .work_bytes = item->work_bytes,
                        .after_f = item->after_f};
}

static void *copy_of(dh_arena *arena, const void *from, size_t n, size_t size)
{
    char *to = DH_NEW_N(arena, char, n *size + 1);
    if (to && n) memcpy(to, from, n * size);
    return to;
}

static bool fill_strand(dh_arena *arena, const dh_costs *costs, const dh_mesh *mesh, int64_t rank,
                        tracker *t, dh_slot_strand *strand)
{
    const size_t n = t->n_items;
    dh_slot_op *ops = DH_NEW_N(arena, dh_slot_op, n + 1);
    for (size_t i = 0; ops && i < n; i++) {
        const size_t first_pred = t->preds.n, first_use = t->uses.n;
        ops[i] = describe(costs, mesh, rank, &t->items[i]);
        track(t, (uint32_t)i);
        ops[i].n_preds = (uint32_t)(t->preds.n - first_pred);
        ops[i].n_uses = (uint32_t)(t->uses.n - first_use);
    }
    keep_for_later(t);
    uint32_t *preds = copy_of(arena, t->preds.at, t->preds.n, sizeof *preds);
    uint32_t *parts = copy_of(arena, t->parts.at, t->parts.n, sizeof *parts);
    uint32_t *uses = copy_of(arena, t->uses.at, t->uses.n, sizeof *uses);
    dh_slot_tensor *tensors = copy_of(arena, t->tensors, t->n_places, sizeof *tensors);
    if (!ops || !preds || !parts || !uses || !tensors || t->failed) return false;
    for (size_t i = 0; i < n; i++) {
        ops[i].preds = preds;
        if (t->in_parts) ops[i].pred_parts = parts;
        ops[i].uses = uses;
        preds += ops[i].n_preds;
        parts += ops[i].n_preds;
        uses += ops[i].n_uses;
    }
    *strand =
        (dh_slot_strand){ops, (uint32_t)n, (uint32_t)t->n_blocks, tensors, (uint32_t)t->n_places};
    return true;
}

dh_status dh_slot_build(dh_ctx *ctx, dh_arena *arena, const dh_costs *costs, const dh_mesh *mesh,
                        int64_t rank, const dh_slot_items strands[2], dh_slot **slot)
{
    dh_slot *s = DH_NEW(arena, dh_slot);
    bool ok = s != NULL;
    if (ok) *s = (dh_slot){.costs = costs};
    for (int k = 0; ok && k < 2; k++) {
        tracker t;
        ok = tracker_init(&t, strands[k].at, strands[k].n) &&
             fill_strand(arena, costs, mesh, rank, &t, &s->strand[k]);
        tracker_fini(&t);
    }
    if (!ok) return dh_no_memory(ctx);
    *slot = s;
    return DH_OK;
}

dh_status dh_slot_of_graphs(dh_ctx *ctx, dh_arena *arena, const dh_costs *costs,
                            const dh_mesh *mesh, int64_t rank, const dh_graph *f, const dh_graph *b,
                            dh_slot **slot)
{
    const dh_graph *graphs[2] = {f, b};
    dh_slot_items strands[2] = {{NULL, 0}, {NULL, 0}};
    for (int k = 0; k < 2; k++) {
        if (!graphs[k]) continue;
        dh_slot_item *items = DH_NEW_N(arena, dh_slot_item, graphs[k]->ops.n + 1);
        if (!items) return dh_no_memory(ctx);
        for (uint32_t i = 0; i < graphs[k]->ops.n; i++) {
            const dh_phase phase = graphs[k]->ops.at[i].phase;
            const bool wanted =
                k == 0 ? phase == DH_PHASE_F : phase == DH_PHASE_B || phase == DH_PHASE_W;
            if (wanted) items[strands[k].n++] = (dh_slot_item){.graph = graphs[k], .op = i};
        }
        strands[k].at = items;
    }
    return dh_slot_build(ctx, arena, costs, mesh, rank, strands, slot);
}

double dh_slot_bound(const dh_slot *slot)
{
    double busy[DH_N_ENGINE] = {0}, most = 0;
    for (uint32_t i = 0; i < slot_nodes(slot); i++) {
        const dh_slot_op *op = slot_node(slot, i);
        busy[dh_stream_engine(op->stream)] += op->ns;
    }
    for (int e = 0; e < DH_N_ENGINE; e++) most = DH_MAX(most, busy[e]);
    return most;
}
