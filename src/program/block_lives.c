/* Memory of a block in a chain, from its graph. Tensors that the forward leaves for the backward
 * are kept. The others live from their writer to their last reader, in the order of the graph. The
 * tensor between two blocks counts with the one that reads it. The program's buffers follow the
 * same lifetimes (memory.c), except that streams that run ahead of each other may hold a little
 * more. */
#include "program/block_lives.h"

#include <stdlib.h>

#include "base/live.h"

enum { BY_F = 1, BY_B = 2, BY_W = 4, BY_BACKWARD = BY_B | BY_W };

/* Storage that an operator uses, each once. */
typedef struct uses_of_op {
    uint32_t n, at[2 * DH_MAX_OPERANDS];
} uses_of_op;

typedef struct lives {
    const dh_graph *graph;
    const dh_backend_info *backend; /* kernels that may need scratch; NULL: none */
    unsigned *used_by;              /* by tensor with storage: phases that touch it */
    uses_of_op *uses;               /* by operator */
    dh_live_storage *storages;      /* by tensor */
} lives;

static uint32_t storage_of(const dh_graph *g, uint32_t tensor)
{
    const dh_tensor *t = &g->tensors.at[tensor];
    return t->base == DH_NONE ? tensor : t->base;
}

static bool is_transient(const dh_graph *g, uint32_t tensor)
{
    const dh_tensor_kind kind = g->tensors.at[tensor].kind;
    return kind == DH_TENSOR_ACT || kind == DH_TENSOR_INPUT;
}

static uint64_t bytes_of(const lives *l, uint32_t tensor)
{
    return (uint64_t)dh_tensor_bytes(&l->graph->tensors.at[tensor]);
}

/* Operand k of an operator, outputs after inputs; DH_NONE where it takes no transient memory. */
static uint32_t operand(const dh_graph *g, const dh_op *op, int k)
{
    const uint32_t t = k < DH_MAX_OPERANDS ? op->in[k] : op->out[k - DH_MAX_OPERANDS];
    if (t == DH_NONE || !is_transient(g, t)) return DH_NONE;
    return storage_of(g, t);
}

static unsigned phase_bit(const dh_op *op)
{
    return op->phase == DH_PHASE_F ? BY_F : op->phase == DH_PHASE_B ? BY_B : BY_W;
}

static void find_uses(lives *l)
{
    for (size_t i = 0; i < l->graph->ops.n; i++)
        for (int k = 0; k < 2 * DH_MAX_OPERANDS; k++) {
            const dh_op *op = &l->graph->ops.at[i];
            const uint32_t t = operand(l->graph, op, k);
            uses_of_op *uses = &l->uses[i];
            uint32_t known = 0;
            if (t == DH_NONE) continue;
            l->used_by[t] |= phase_bit(op);
            while (known < uses->n && uses->at[known] != t) known++;
            if (known == uses->n) uses->at[uses->n++] = t;
        }
}

/* Whether it is there before, or still wanted after, what runs now. The gradient that enters
 * and the one that leaves are other blocks' on their other side. */
static bool outlasts(const lives *l, uint32_t tensor, unsigned later)
{
    if (tensor == l->graph->dx_in) return (later & BY_F) == 0;
    if (tensor == l->graph->x_out && (later & BY_B)) return true;
    return (l->used_by[tensor] & later) != 0;
}

static bool was_there(const lives *l, uint32_t tensor, unsigned earlier, unsigned now)
{
    if (tensor == l->graph->x_in || tensor == l->graph->dx_out)
        return (l->used_by[tensor] & now) != 0;
    return (l->used_by[tensor] & earlier) != 0;
}

/* Tensors that operators of `now` only read, and no earlier phase touched, are another block's. */
static void count_uses(lives *l, unsigned now)
{
    const dh_graph *g = l->graph;
    for (uint32_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        const uses_of_op *uses = &l->uses[i];
        if (!(phase_bit(op) & now)) continue;
        for (size_t k = 0; k < uses->n; k++) l->storages[uses->at[k]].n_uses++;
        for (int k = DH_MAX_OPERANDS; k < 2 * DH_MAX_OPERANDS; k++) {
            const uint32_t t = operand(g, op, k);
            if (t != DH_NONE) l->storages[t].n_bytes = bytes_of(l, t);
        }
    }
}

static void begin_phases(lives *l, unsigned now, unsigned earlier, unsigned later, dh_live *live)
{
    const dh_graph *g = l->graph;
    for (uint32_t t = 0; t < g->tensors.n; t++) {
        const bool wanted = (l->used_by[t] & now) || outlasts(l, t, later);
        const bool alive = g->tensors.at[t].base == DH_NONE && is_transient(g, t) &&
                           was_there(l, t, earlier, now) && wanted;
        l->storages[t] = (dh_live_storage){.n_bytes = alive ? bytes_of(l, t) : 0,
                                           .alive = alive,
                                           .outlasts = outlasts(l, t, later)};
    }
    count_uses(l, now);
    dh_live_begin(live, l->storages, g->tensors.n);
}

/* The operator's first output takes over the storage of an input that dies there, where its kernel
 * can work in place. */
static void overlay(const lives *l, const dh_op *op, dh_live *live)
{
    const dh_graph *g = l->graph;
    const int k = dh_op_info_of(op->type)->inplace;
    const uint32_t in = k < 0 ? DH_NONE : op->in[k], out = op->out[0];
    if (in == DH_NONE || out == DH_NONE || !is_transient(g, in) || !is_transient(g, out)) return;
    const bool whole = g->tensors.at[in].base == DH_NONE && g->tensors.at[out].base == DH_NONE;
    if (whole && dh_live_can_hand_on(live, in, out)) dh_live_hand_on(live, in, out);
}

/* Most bytes alive while the operators of the phases `now` run. */
static double run_phases(lives *l, unsigned now, unsigned earlier, unsigned later)
{
    const dh_graph *g = l->graph;
    dh_live live;
    begin_phases(l, now, earlier, later, &live);
    uint64_t most = live.n_bytes;
    for (uint32_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (!(phase_bit(op) & now)) continue;
        const uses_of_op *uses = &l->uses[i];
        const size_t work = dh_backend_workspace(l->backend, g, op);
        overlay(l, op, &live);
        most = DH_MAX(most, dh_live_with(&live, uses->at, uses->n) + work);
        dh_live_use(&live, uses->at, uses->n);
    }
    return (double)most;
}

static double sum_used(const lives *l, unsigned before, unsigned after)
{
    const dh_graph *g = l->graph;
    double sum = 0;
    for (uint32_t t = 0; t < g->tensors.n; t++) {
        const bool made_before = (l->used_by[t] & before) || t == g->x_in;
        if (g->tensors.at[t].base != DH_NONE || !is_transient(g, t)) continue;
        if (t == g->x_out || t == g->dx_in || t == g->dx_out) continue;
        if (made_before && (l->used_by[t] & after)) sum += (double)bytes_of(l, t);
    }
    return sum;
}

dh_status dh_block_lives_find(dh_ctx *ctx, const dh_graph *graph, const dh_backend_info *backend,
                              dh_block_lives *found)
{
    const size_t n = graph->tensors.n + 1;
    lives l = {.graph = graph,
               .backend = backend,
               .used_by = calloc(n, sizeof *l.used_by),
               .storages = calloc(n, sizeof *l.storages),
               .uses = calloc(graph->ops.n + 1, sizeof *l.uses)};
    const bool ok = l.used_by && l.storages && l.uses;
    if (ok) {
        find_uses(&l);
        *found = (dh_block_lives){.kept = sum_used(&l, BY_F, BY_BACKWARD),
                                  .kept_w = sum_used(&l, BY_F | BY_B, BY_W),
                                  .f_peak = run_phases(&l, BY_F, 0, BY_BACKWARD),
                                  .b_peak = run_phases(&l, BY_BACKWARD, BY_F, 0),
                                  .i_peak = run_phases(&l, BY_B, BY_F, BY_W),
                                  .w_peak = run_phases(&l, BY_W, BY_F | BY_B, 0)};
    }
    free(l.used_by);
    free(l.storages);
    free(l.uses);
    return ok ? DH_OK : dh_no_memory(ctx);
}
