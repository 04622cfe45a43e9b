/* Costs of a program's operators, asked for once each.
 *
 * All instructions of a graph share its operators' times, and pairs recur with every layer and
 * micro-batch. The costs are therefore asked a few thousand times for a program of any length. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

/* ---- times alone ------------------------------------------------------------------------- */

static dh_cost_op cost_op(const dh_sim_op_costs *c, uint32_t graph, uint32_t op)
{
    const dh_graph *g = c->program->graphs.at[graph];
    return (dh_cost_op){g, &g->ops.at[op], &c->program->mesh, c->program->rank};
}

static dh_cost_op cost_op_of_kind(const dh_sim_op_costs *c, uint32_t kind)
{
    uint32_t graph = (uint32_t)c->program->graphs.n - 1;
    while (c->first[graph] > kind) graph--;
    return cost_op(c, graph, kind - c->first[graph]);
}

static dh_status ask_solo(dh_ctx *ctx, dh_sim_op_costs *c)
{
    for (uint32_t g = 0; g < c->program->graphs.n; g++)
        for (uint32_t i = 0; i < c->program->graphs.at[g]->ops.n; i++) {
            const dh_cost_op op = cost_op(c, g, i);
            const dh_op_time time = c->costs->solo(c->costs->self, &op);
            if (!(time.ns >= 0 && time.ns <= (double)DH_PAIR_MAX_NS))
                return dh_fail(ctx, DH_EINVAL, "%s: %s takes %g ns; 0 to %g are sensible",
                               c->costs->name, dh_op_info_of(op.op->type)->name, time.ns,
                               (double)DH_PAIR_MAX_NS);
            c->solo[c->first[g] + i] = time;
        }
    return DH_OK;
}

static dh_sim_meets meets_of(const dh_op *op)
{
    if (op->type == DH_OP_SEND || op->type == DH_OP_RECV) return DH_SIM_PEER;
    return dh_op_info_of(op->type)->resource == DH_RES_COMM ? DH_SIM_GROUP : DH_SIM_ALONE;
}

static dh_status list_instrs(dh_ctx *ctx, dh_sim_op_costs *c)
{
    const dh_program *p = c->program;
    c->instrs = malloc((p->instrs.n + 1) * sizeof *c->instrs);
    if (!c->instrs) return dh_no_memory(ctx);
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        c->instrs[i] = (dh_sim_instr){
            .kind = c->first[p->blocks.at[instr->block].graph] + instr->op,
            .meets = (uint8_t)meets_of(op),
            .group = (uint8_t)op->group,
        };
    }
    return DH_OK;
}

/* ---- the host ---------------------------------------------------------------------------- */

static dh_status ask_issues(dh_ctx *ctx, dh_sim_op_costs *c, dh_issue *issues)
{
    for (uint32_t g = 0; g < c->program->graphs.n; g++)
        for (uint32_t i = 0; i < c->program->graphs.at[g]->ops.n; i++) {
            const dh_cost_op op = cost_op(c, g, i);
            const dh_issue issue = dh_issue_of(&c->costs->issuer, &op);
            if (!(issue.n_kernels >= 0 && issue.n_kernels < 1e6))
                return dh_fail(ctx, DH_EINVAL, "%s: %s is %g kernels; 0 to a million are sensible",
                               c->costs->name, dh_op_info_of(op.op->type)->name, issue.n_kernels);
            issues[c->first[g] + i] = issue;
        }
    return DH_OK;
}

static dh_status add_up_issues(dh_ctx *ctx, dh_sim_op_costs *c, const dh_issue *issues)
{
    const size_t n = c->program->instrs.n;
    double n_kernels = 0;
    c->host.issued_ns = malloc((n + 1) * sizeof *c->host.issued_ns);
    c->host.waits = malloc((n + 1) * sizeof *c->host.waits);
    if (!c->host.issued_ns || !c->host.waits) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) {
        const dh_issue *issue = &issues[c->instrs[i].kind];
        c->host.issued_ns[i] = llround(c->costs->host_ns * n_kernels);
        n_kernels += issue->n_kernels;
        if (issue->waits) c->host.waits[c->host.n_waits++] = (uint32_t)i;
    }
    c->host.issued_ns[n] = llround(c->costs->host_ns * n_kernels);
    return DH_OK;
}

static dh_status ask_host(dh_ctx *ctx, dh_sim_op_costs *c)
{
    if (c->costs->host_ns <= 0) return DH_OK;
    dh_issue *issues = calloc(c->n_kinds + 1, sizeof *issues);
    if (!issues) return dh_no_memory(ctx);
    dh_status st = ask_issues(ctx, c, issues);
    if (st == DH_OK) st = add_up_issues(ctx, c, issues);
    free(issues);
    return st;
}

dh_status dh_sim_op_costs_init(dh_ctx *ctx, dh_sim_op_costs *c, const dh_costs *costs,
                               const dh_program *program)
{
    *c = (dh_sim_op_costs){.costs = costs,
                           .program = program,
                           .launch_ns = llround(costs->launch_ns),
                           .event_ns = llround(costs->event_ns),
                           .n_places = 1024};
    c->first = malloc((program->graphs.n + 1) * sizeof *c->first);
    c->pairs = malloc(c->n_places * sizeof *c->pairs);
    if (!c->first || !c->pairs) return dh_no_memory(ctx);
    memset(c->pairs, 0xff, c->n_places * sizeof *c->pairs);
    for (uint32_t g = 0; g < program->graphs.n; g++) {
        c->first[g] = c->n_kinds;
        c->n_kinds += (uint32_t)program->graphs.at[g]->ops.n;
    }
    c->solo = calloc(c->n_kinds + 1, sizeof *c->solo);
    if (!c->solo) return dh_no_memory(ctx);
    DH_TRY(ask_solo(ctx, c));
    DH_TRY(list_instrs(ctx, c));
    return ask_host(ctx, c);
}

void dh_sim_op_costs_fini(dh_sim_op_costs *c)
{
    free(c->first);
    free(c->solo);
    free(c->instrs);
    free(c->pairs);
    free(c->host.issued_ns);
    free(c->host.waits);
    *c = (dh_sim_op_costs){0};
}

/* ---- speeds beside each other ---------------------------------------------------------------- */

/* The pair's place, or the free one where it belongs. */
static dh_sim_pair *place_of(dh_sim_pair *pairs, size_t n_places, uint32_t a, uint32_t b)
{
    size_t i = dh_mix64((uint64_t)a << 32 | b) & (n_places - 1);
    while (pairs[i].a != DH_NONE && (pairs[i].a != a || pairs[i].b != b))
        i = (i + 1) & (n_places - 1);
    return &pairs[i];
}

static bool grow(dh_sim_op_costs *c)
{
    const size_t n_places = 2 * c->n_places;
    dh_sim_pair *pairs = malloc(n_places * sizeof *pairs);
    if (!pairs) return false;
    memset(pairs, 0xff, n_places * sizeof *pairs);
    for (size_t i = 0; i < c->n_places; i++)
        if (c->pairs[i].a != DH_NONE)
            *place_of(pairs, n_places, c->pairs[i].a, c->pairs[i].b) = c->pairs[i];
    free(c->pairs);
    c->pairs = pairs;
    c->n_places = n_places;
    return true;
}

dh_status dh_sim_rates_across(dh_ctx *ctx, const dh_sim_op_costs *of_a, uint32_t a,
                              const dh_sim_op_costs *of_b, uint32_t b, double *rate_a,
                              double *rate_b)
{
    const dh_costs *costs = of_a->costs;
    const dh_cost_op op_a = cost_op_of_kind(of_a, a), op_b = cost_op_of_kind(of_b, b);
    const dh_op_rates rates = costs->beside(costs->self, &op_a, &op_b);
    if (!isfinite(rates.a) || !isfinite(rates.b))
        return dh_fail(ctx, DH_EINVAL,
                       "%s: %s together with %s: they run at %g and %g of their speed alone",
                       costs->name, dh_op_info_of(op_a.op->type)->name,
                       dh_op_info_of(op_b.op->type)->name, rates.a, rates.b);
    *rate_a = rates.a;
    *rate_b = rates.b;
    return DH_OK;
}

static dh_status ask_pair(dh_ctx *ctx, dh_sim_op_costs *c, uint32_t a, uint32_t b,
                          dh_sim_pair *pair)
{
    dh_sim_pair asked = {.a = a, .b = b};
    DH_TRY(dh_sim_rates_across(ctx, c, a, c, b, &asked.rate_a, &asked.rate_b));
    *pair = asked;
    return DH_OK;
}

dh_status dh_sim_rates_beside(dh_ctx *ctx, dh_sim_op_costs *c, uint32_t a, uint32_t b,
                              double *rate_a, double *rate_b)
{
    const uint32_t lo = DH_MIN(a, b), hi = DH_MAX(a, b);
    dh_sim_pair *pair = place_of(c->pairs, c->n_places, lo, hi);
    if (pair->a == DH_NONE) {
        if (2 * c->n_pairs >= c->n_places) {
            if (!grow(c)) return dh_no_memory(ctx);
            pair = place_of(c->pairs, c->n_places, lo, hi);
        }
        DH_TRY(ask_pair(ctx, c, lo, hi, pair));
        c->n_pairs++;
    }
    *rate_a = a == lo ? pair->rate_a : pair->rate_b;
    *rate_b = a == lo ? pair->rate_b : pair->rate_a;
    return DH_OK;
}

/* ---- context-parallel ranks ----------------------------------------------------------------- */

static bool same_pair(const dh_costs *costs, const dh_cost_op a[2], const dh_cost_op b[2])
{
    const dh_op_rates x = costs->beside(costs->self, &a[0], &b[0]);
    const dh_op_rates y = costs->beside(costs->self, &a[1], &b[1]);
    return x.a == y.a && x.b == y.b;
}

/* Graphs of context-parallel ranks differ in dims.cp_rank alone (pass_cp.c), and so in
 * which part of a ring's blocks their attention sees. */
bool dh_sim_cp_costs_equal(const dh_costs *costs, const dh_mesh *mesh, const dh_graph *graph,
                           int64_t cp_a, int64_t cp_b)
{
    dh_graph like[2] = {*graph, *graph};
    like[0].dims.cp_rank = cp_a;
    like[1].dims.cp_rank = cp_b;
    for (uint32_t i = 0; i < graph->ops.n; i++) {
        dh_cost_op a[2], b[2];
        for (int k = 0; k < 2; k++)
            a[k] = (dh_cost_op){&like[k], &graph->ops.at[i], mesh, (k ? cp_b : cp_a) * mesh->tp};
        if (costs->solo(costs->self, &a[0]).ns != costs->solo(costs->self, &a[1]).ns) return false;
        if (dh_op_info_of(graph->ops.at[i].type)->resource == DH_RES_COMM) continue;
        for (uint32_t j = 0; j < graph->ops.n; j++) {
            if (dh_op_info_of(graph->ops.at[j].type)->resource != DH_RES_COMM) continue;
            for (int k = 0; k < 2; k++)
                b[k] = (dh_cost_op){&like[k], &graph->ops.at[j], mesh, a[k].rank};
            if (!same_pair(costs, a, b)) return false;
        }
    }
    return true;
}
