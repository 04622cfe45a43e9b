/* Steps that every pass makes on a graph. See rewrite.h. */
#include "rewrite.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "check.h"

/* ---- tensors ------------------------------------------------------------------------ */

void rewrite_name(dh_tensor *tensor, const char *fmt, ...)
{
    char name[sizeof tensor->name];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    memcpy(tensor->name, name, sizeof name);
}

dh_tensor rewrite_like(const rewrite *r, uint32_t like)
{
    dh_tensor t = *rewrite_tensor(r, like);
    t.kind = DH_TENSOR_ACT;
    t.which = t.base = DH_NONE;
    t.row0 = 0;
    return t;
}

uint32_t rewrite_add(rewrite *r, const dh_tensor *tensor)
{
    const uint32_t id = r->failed ? DH_NONE : dh_graph_add_tensor(r->graph, tensor);
    r->failed |= id == DH_NONE;
    return id;
}

uint32_t rewrite_rows(rewrite *r, uint32_t of, const char *name, int64_t row0, int64_t n)
{
    if (r->failed) return DH_NONE;
    dh_tensor t = *rewrite_tensor(r, of);
    t.base = dh_graph_storage(r->graph, of);
    t.row0 += row0;
    t.shape[0] = n;
    rewrite_name(&t, "%s", name);
    return rewrite_add(r, &t);
}

/* ---- operators ---------------------------------------------------------------------- */

void rewrite_push(rewrite *r, const dh_op *op)
{
    r->failed |= !dh_vec_push(&r->ops, *op);
}

void rewrite_push_op(rewrite *r, dh_op_type type, dh_phase phase, int32_t group, const uint32_t *in,
                     const uint32_t *out)
{
    dh_op op = dh_op_make(type, phase, in, out);
    op.group = group;
    rewrite_push(r, &op);
}

bool rewrite_is_row_gemm(const rewrite *r, const dh_op *op)
{
    return (op->type == DH_OP_LINEAR || op->type == DH_OP_LINEAR_DGRAD) &&
           rewrite_tensor(r, op->in[0])->shape[0] == rewrite_tensor(r, op->out[0])->shape[0];
}

static const rewrite_row_op row_ops[DH_N_OP_TYPE] = {
    [DH_OP_RESIDUAL] = {.in = 1 | 2 | 8 | 16, .out = 1},
    [DH_OP_NORM] = {.in = 1, .out = 1 | 2},
    [DH_OP_SCALE] = {.in = 1, .out = 1},
    [DH_OP_ACT] = {.in = 1, .out = 1},
    [DH_OP_ADD] = {.in = 1 | 2, .out = 1},
    [DH_OP_COPY] = {.in = 1, .out = 1},
    [DH_OP_DROPOUT_GRAD] = {.in = 1 | 2 | 4, .out = 1},
    [DH_OP_ACT_GRAD] = {.in = 1 | 2, .out = 1},
    [DH_OP_NORM_DGRAD] = {.in = 1 | 2 | 8 | 16, .out = 1},
    [DH_OP_NORM_WGRAD] = {.in = 1 | 2 | 4, .out = 0, .sums = true},
    [DH_OP_ADAMW] = {.in = 1, .out = 1 | 2 | 4 | 8, .moments = 2 | 4},
    [DH_OP_BIAS_GRAD] = {.in = 1, .out = 0, .sums = true},
};

const rewrite_row_op *rewrite_row_op_of(dh_op_type type)
{
    return &row_ops[type];
}

bool rewrite_updates(const dh_op *op, int k)
{
    return op->out[k] != DH_NONE && dh_op_info_of(op->type)->out[k].update;
}

void rewrite_push_shift(rewrite *r, dh_phase phase, int32_t group, int32_t by, uint32_t x,
                        uint32_t y)
{
    dh_op op = dh_op_make(DH_OP_SHIFT, phase, REWRITE_IDS(x), REWRITE_IDS(y));
    op.group = group;
    op.by = by;
    rewrite_push(r, &op);
}

/* ---- late operators ------------------------------------------------------------------ */

void rewrite_keep_late(rewrite *r, rewrite_late *late, const dh_op *op)
{
    r->failed |= !dh_vec_push(&late->ops, *op);
}

void rewrite_late_fini(rewrite_late *late)
{
    dh_vec_fini(&late->ops);
}

static bool reads(const rewrite *r, const dh_op *op, uint32_t id)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->in[k] != DH_NONE && dh_graph_storage(r->graph, op->in[k]) == id) return true;
    return false;
}

void rewrite_push_late(rewrite *r, rewrite_late *late, const dh_op *next)
{
    size_t n_left = 0;
    for (size_t i = 0; i < late->ops.n; i++) {
        const dh_op op = late->ops.at[i];
        const bool waits = next && (next->phase == DH_PHASE_F) == (op.phase == DH_PHASE_F) &&
                           !reads(r, next, dh_graph_storage(r->graph, op.out[0]));
        if (waits)
            late->ops.at[n_left++] = op;
        else
            rewrite_push(r, &op);
    }
    late->ops.n = n_left;
}

dh_status rewrite_refuse(dh_ctx *ctx, const char *pass, const dh_op *op)
{
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "%s has no rule for operator %s: what to do with it must be said before it can "
                   "stand in a graph that is rewritten so",
                   pass, dh_op_info_of(op->type)->name);
}

dh_status rewrite_end(dh_ctx *ctx, rewrite *r, dh_status st, const char *doing)
{
    if (st == DH_OK && r->failed) st = dh_no_memory(ctx);
    if (st == DH_OK) {
        dh_vec_fini(&r->graph->ops);
        r->graph->ops.at = r->ops.at;
        r->graph->ops.n = r->ops.n;
        r->graph->ops.cap = r->ops.cap;
    } else {
        dh_vec_fini(&r->ops);
    }
    return st;
}

/* ---- uses --------------------------------------------------------------------------- */

/* Calls for each use in the order of operators, reads before writes; counts where there
 * is nowhere to put it. */
static void visit_uses(const dh_graph *g, uint32_t *next, rewrite_use *at)
{
    for (uint32_t i = 0; i < g->ops.n; i++)
        for (int k = 0; k < 2 * DH_MAX_OPERANDS; k++) {
            const bool writes = k >= DH_MAX_OPERANDS;
            const dh_op *op = &g->ops.at[i];
            const uint32_t id = writes ? op->out[k - DH_MAX_OPERANDS] : op->in[k];
            if (id == DH_NONE) continue;
            uint32_t *place = &next[dh_graph_storage(g, id)];
            if (at) at[*place] = (rewrite_use){i, writes};
            ++*place;
        }
}

bool rewrite_uses_init(rewrite_uses *uses, const dh_graph *graph)
{
    const size_t n = graph->tensors.n;
    uint32_t *next = calloc(n + 1, sizeof *next);
    *uses = (rewrite_uses){.first = calloc(n + 1, sizeof *uses->first),
                           .in_parts = calloc(n + 1, sizeof *uses->in_parts)};
    if (!next || !uses->first || !uses->in_parts) {
        free(next);
        return false;
    }
    visit_uses(graph, next, NULL);
    for (size_t i = 0; i < n; i++) uses->first[i + 1] = uses->first[i] + next[i];
    uses->at = malloc((uses->first[n] + 1) * sizeof *uses->at);
    if (uses->at) {
        memcpy(next, uses->first, (n + 1) * sizeof *next);
        visit_uses(graph, next, uses->at);
    }
    for (size_t i = 0; i < n; i++)
        if (graph->tensors.at[i].base != DH_NONE) uses->in_parts[graph->tensors.at[i].base] = true;
    free(next);
    return uses->at != NULL;
}

void rewrite_uses_fini(rewrite_uses *uses)
{
    free(uses->first);
    free(uses->at);
    free(uses->in_parts);
    *uses = (rewrite_uses){0};
}

uint32_t rewrite_first_use(const rewrite_uses *uses, uint32_t storage, uint32_t begin, uint32_t end,
                           bool writes)
{
    for (uint32_t i = uses->first[storage]; i < uses->first[storage + 1]; i++) {
        const rewrite_use *u = &uses->at[i];
        if (u->op >= end) break;
        if (u->op >= begin && u->writes == writes) return u->op;
    }
    return DH_NONE;
}

/* ---- GEMMs beside collectives -------------------------------------------------------- */

bool rewrite_is_plain(const rewrite *r, const rewrite_uses *uses, uint32_t id)
{
    const dh_tensor *t = rewrite_tensor(r, id);
    return t->kind == DH_TENSOR_ACT && t->base == DH_NONE && !uses->in_parts[id];
}

const char *rewrite_find_reader(const rewrite *r, const rewrite_uses *uses, uint32_t collective,
                                uint32_t *gemm)
{
    const dh_op *ops = r->graph->ops.at;
    const uint32_t all = ops[collective].out[0];
    *gemm = rewrite_first_use(uses, all, collective + 1, (uint32_t)r->graph->ops.n, false);
    if (!rewrite_is_plain(r, uses, all)) return "it is used in parts";
    if (*gemm == DH_NONE) return "nothing reads it";
    const dh_op *op = &ops[*gemm];
    if (!rewrite_is_row_gemm(r, op) || op->in[0] != all)
        return "what reads it first is no GEMM by rows";
    if (op->phase != ops[collective].phase) return "its GEMM belongs to another phase";
    return rewrite_is_plain(r, uses, op->out[0]) ? NULL : "its GEMM's output is used in parts";
}

const char *rewrite_find_maker(const rewrite *r, const rewrite_uses *uses, uint32_t collective,
                               uint32_t *gemm)
{
    const dh_op *ops = r->graph->ops.at, *op = &ops[collective];
    *gemm = rewrite_first_use(uses, op->in[0], 0, collective, true);
    if (!rewrite_is_plain(r, uses, op->in[0]) || !rewrite_is_plain(r, uses, op->out[0]))
        return "it is used in parts";
    if (*gemm == DH_NONE || !rewrite_is_row_gemm(r, &ops[*gemm]))
        return "it comes from no GEMM by rows";
    return ops[*gemm].phase == op->phase ? NULL : "its GEMM belongs to another phase";
}
