/* What surrounds the micro-batches of a rank: what persists, reductions, optimizer. */
#include <stdlib.h>

#include "tune/tuner.h"

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory outlining a rank");
}

/* Gradients that do not persist: the shards, and whole ones. Where they go as the backward does,
 * those of two buckets; else all. */
static uint64_t transient_gradients(const dh_program *p)
{
    uint64_t whole = 0, shards = 0, first = 0, second = 0;
    bool go = false;
    for (size_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        if (b->kind == DH_BUF_REDUCED) shards += b->n_bytes;
        if (b->kind != DH_BUF_UNREDUCED) continue;
        whole += b->n_bytes;
        second = DH_MAX(second, DH_MIN(first, b->n_bytes));
        first = DH_MAX(first, b->n_bytes);
    }
    for (size_t f = 0; f < p->flats.n; f++) go |= p->flats.at[f].frees != DH_NONE;
    return shards + (go && p->n_micro == 1 ? first + second : whole);
}

static void sum_persistent(const dh_program *p, tune_outline *o)
{
    for (size_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        if (b->kind == DH_BUF_MASTER || b->kind == DH_BUF_COPY) o->parameters += b->n_bytes;
        if (b->kind == DH_BUF_GRAD) o->gradients += b->n_bytes;
        if (b->kind == DH_BUF_ADAM_M || b->kind == DH_BUF_ADAM_V) o->optimizer += b->n_bytes;
    }
    const uint64_t transient = transient_gradients(p);
    o->gradients += transient;
    o->persistent = p->persistent_bytes + transient;
}

typedef struct replayed {
    double stream_ns[DH_N_STREAM]; /* end of the last instruction */
    double *end_ns;                /* by instruction; reductions are done at 0 */
    double *reduction_ns;          /* [n_reductions] */
    size_t n_reductions;
} replayed;

static double run_instr(const dh_program *p, const dh_costs *costs, uint32_t id, double ns,
                        replayed *r)
{
    const dh_instr *i = &p->instrs.at[id];
    double start = r->stream_ns[i->stream] + costs->launch_ns;
    for (uint32_t w = 0; w < i->n_waits; w++)
        start = DH_MAX(start, r->end_ns[p->waits.at[i->wait0 + w].instr] + costs->event_ns);
    r->end_ns[id] = r->stream_ns[i->stream] = start + ns;
    return start + ns;
}

static dh_status walk(const dh_program *p, const dh_costs *costs, replayed *r, tune_outline *o)
{
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const dh_instr *i = &p->instrs.at[id];
        const dh_op *op = dh_instr_op(p, i);
        const dh_cost_op at = {dh_instr_graph(p, i), op, &p->mesh, p->rank};
        const double ns = costs->solo(costs->self, &at).ns;
        if (op->phase == DH_PHASE_OPT) {
            const double end = run_instr(p, costs, id, ns, r);
            o->optimizer_ns = DH_MAX(o->optimizer_ns, end);
        } else {
            r->reduction_ns[r->n_reductions++] = ns + costs->launch_ns;
        }
    }
    return DH_OK;
}

/* TUNING: hundreds of pieces one by one take 4 % of a search; in groups of neighbours the steps of
 * Llama 3 70B on 128 A100 are the same within .2 %. */
static dh_status group_reductions(dh_ctx *ctx, dh_arena *arena, const replayed *r, tune_outline *o)
{
    enum { MOST = 64 };
    const size_t n = r->n_reductions, in_one = DH_MAX((n + MOST - 1) / MOST, (size_t)1);
    o->n_reductions = (n + in_one - 1) / in_one;
    o->reduction_ns = DH_NEW_N(arena, double, o->n_reductions + 1);
    if (!o->reduction_ns) return no_memory(ctx);
    for (size_t i = 0; i < n; i++) o->reduction_ns[i / in_one] += r->reduction_ns[i];
    return DH_OK;
}

static const dh_graph *layer_of(const dh_program *p)
{
    for (size_t g = 0; g < p->graphs.n; g++)
        if (p->graphs.at[g]->kind == DH_BLOCK_LAYER) return p->graphs.at[g];
    return NULL;
}

/* By how much longer an operator takes beside a reduction. One that does not progress takes that
 * reduction's time longer, and what it loses besides. */
static double stretch(double rate)
{
    return rate > 0 ? DH_MAX(1 / rate, 1.0) : 2 - rate;
}

/* forward: of all operators; else of those of the backward. */
tune_speeds tune_speeds_beside(const dh_costs *costs, const dh_graph *layer, bool forward,
                               const dh_cost_op *comm)
{
    double alone = 0, beside = 0, communicated = 0;
    dh_cost_op at = {.graph = layer, .mesh = comm->mesh, .rank = comm->rank};
    for (size_t i = 0; layer && i < layer->ops.n; i++) {
        at.op = &layer->ops.at[i];
        if ((at.op->phase == DH_PHASE_F && !forward) || dh_cost_stream(&at) != DH_STREAM_COMPUTE)
            continue;
        const dh_op_rates rates = costs->beside(costs->self, &at, comm);
        const double ns = costs->solo(costs->self, &at).ns;
        alone += ns;
        beside += ns * stretch(rates.a);
        communicated += ns * stretch(rates.a) * DH_MAX(rates.b, 0.0);
    }
    if (alone <= 0) return (tune_speeds){1, 1};
    return (tune_speeds){alone / beside, communicated / beside};
}

/* By the longest of them: those of norms over tensor-parallel ranks stand before. */
static void find_slow_down(const dh_program *p, const dh_costs *costs, tune_outline *o)
{
    double longest_ns = -1;
    o->backward_speed = o->reduction_speed = 1;
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const dh_instr *i = &p->instrs.at[id];
        const dh_cost_op at = {dh_instr_graph(p, i), dh_instr_op(p, i), &p->mesh, p->rank};
        if (at.op->phase == DH_PHASE_OPT || i->stream == DH_STREAM_COMPUTE) continue;
        const double ns = costs->solo(costs->self, &at).ns;
        if (ns <= longest_ns) continue;
        const tune_speeds speeds = tune_speeds_beside(costs, layer_of(p), false, &at);
        o->backward_speed = speeds.own;
        o->reduction_speed = speeds.comm;
        longest_ns = ns;
    }
}

dh_status tune_outline_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                            tune_outline **outline)
{
    dh_program_spec own = *spec;
    dh_program *p;
    own.outline = own.unplaced = true;
    DH_TRY(dh_program_build(ctx, &own, &p));
    tune_outline *o = DH_NEW(arena, tune_outline);
    replayed r = {.end_ns = calloc(p->instrs.n + 1, sizeof *r.end_ns),
                  .reduction_ns = calloc(p->instrs.n + 1, sizeof *r.reduction_ns)};
    dh_status st =
        o && r.end_ns && r.reduction_ns ? walk(p, spec->recipe.costs, &r, o) : no_memory(ctx);
    if (st == DH_OK) st = group_reductions(ctx, arena, &r, o);
    if (st == DH_OK) {
        sum_persistent(p, o);
        find_slow_down(p, spec->recipe.costs, o);
        *outline = o;
    }
    free(r.end_ns);
    free(r.reduction_ns);
    dh_program_destroy(p);
    return st;
}
