/* The parts of a rank's step. Every moment belongs to one part. */
#include <stdlib.h>
#include <string.h>

#include "validate/job.h"

enum { TRANSFER = DH_N_STEP_PARTS, N_KINDS }; /* of others, what is not done beside computation */

typedef struct edge {
    int64_t at_ns;
    int kind;  /* dh_step_part_of, or TRANSFER */
    int delta; /* +1 begins, -1 ends */
} edge;

static int compare_edges(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return (x->at_ns > y->at_ns) - (x->at_ns < y->at_ns);
}

static int kind_of(const dh_program *p, const dh_instr *instr)
{
    const dh_op *op = dh_instr_op(p, instr);
    if (op->type == DH_OP_SEND || op->type == DH_OP_RECV) return TRANSFER;
    if (dh_instr_graph(p, instr)->kind != DH_BLOCK_LAYER) return DH_STEP_OTHERS;
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return DH_STEP_COMPUTE;
    const dh_group_kind group = dh_group_whole((dh_group_kind)op->group);
    if (group == DH_GROUP_CP) return DH_STEP_CP;
    if (group == DH_GROUP_EP || group == DH_GROUP_TP_EP) return DH_STEP_EP;
    return group == DH_GROUP_TP ? DH_STEP_TP : DH_STEP_OTHERS;
}

/* Every moment belongs to the first of those in `order` that runs, or to others. */
static void add_up(const edge *edges, size_t n, double ns[DH_N_STEP_PARTS])
{
    static const int order[] = {TRANSFER, DH_STEP_TP, DH_STEP_EP, DH_STEP_COMPUTE, DH_STEP_CP};
    int running[N_KINDS] = {0};
    int64_t last = 0;
    memset(ns, 0, DH_N_STEP_PARTS * sizeof *ns);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < DH_COUNTOF(order); k++) {
            if (!running[order[k]]) continue;
            if (order[k] == TRANSFER) break;
            ns[order[k]] += (double)(edges[i].at_ns - last);
            break;
        }
        last = edges[i].at_ns;
        running[edges[i].kind] += edges[i].delta;
    }
}

static dh_status add_up_rank(dh_ctx *ctx, const dh_sim_rank *r, double ns[DH_N_STEP_PARTS])
{
    const size_t n = r->program->instrs.n;
    edge *edges = calloc(2 * n + 1, sizeof *edges);
    if (!edges) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) {
        const int kind = kind_of(r->program, &r->program->instrs.at[i]);
        edges[2 * i] = (edge){r->spans[i].met_ns, kind, 1};
        edges[2 * i + 1] = (edge){r->spans[i].end_ns, kind, -1};
    }
    qsort(edges, 2 * n, sizeof *edges, compare_edges);
    add_up(edges, 2 * n, ns);
    free(edges);
    return DH_OK;
}

dh_status dh_step_parts(dh_ctx *ctx, const dh_sim *sim, double shares[DH_N_STEP_PARTS])
{
    double named = 0;
    DH_TRY(add_up_rank(ctx, &sim->ranks[0], shares));
    if (sim->shorter) {
        double shorter[DH_N_STEP_PARTS];
        DH_TRY(add_up_rank(ctx, &sim->shorter->ranks[0], shorter));
        dh_sim_extend(sim, shorter, DH_N_STEP_PARTS, shares);
    }
    for (int s = 0; s < DH_N_STEP_PARTS; s++) named += shares[s];
    shares[DH_STEP_OTHERS] = (double)sim->step_ns - named;
    for (int s = 0; s < DH_N_STEP_PARTS; s++) shares[s] /= (double)DH_MAX(sim->step_ns, 1);
    return DH_OK;
}
