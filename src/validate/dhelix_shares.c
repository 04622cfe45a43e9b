/* DHelix (arXiv 2411.15871), figure 3: what Megatron-LM's iteration time goes into, 64 A40.
 *
 * A share of communication is time in which it ran and computation stood still: tensor
 * parallelism's always, context parallelism's where nothing is computed beside it. "Others" is what
 * no layer does: embedding and head, the optimizer, reductions of gradients, transfers between
 * stages, bubbles. The figure's jobs exchange keys and values, so they have context-parallel ranks:
 * taken are two, with twice the sequence of figure 11, and its degrees of the other axes.
 *
 * Megatron-LM's ways are those of dh_paper_megatron_costs. */
#include <stdlib.h>
#include <string.h>

#include "validate/dhelix_job.h"

enum { CP = 2, SEQ = 16384, BATCH_TOKENS = 1 << 23 };

enum share { SHARE_TP, SHARE_CP, SHARE_COMPUTE, SHARE_OTHERS, N_SHARES };
enum { TRANSFER = N_SHARES, N_KINDS }; /* of others, what is not done beside computation */
static const char *const columns[N_SHARES] = {"tp_comm", "cp_comm", "compute", "others"};

static const struct {
    const char *model;
    int64_t dp, tp, pp;
} jobs[] = {
    {"Llama-8B", 8, 4, 1}, {"Llama-25B", 4, 8, 1}, {"Llama-39B", 2, 8, 2},
    {"GPT-6.7B", 8, 4, 1}, {"GPT-18B", 4, 8, 1},   {"GPT-30B", 2, 8, 2},
};

/* ---- shares of a rank's time ---------------------------------------------------------------- */

typedef struct edge {
    int64_t at_ns;
    int kind;  /* enum share, or TRANSFER */
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
    if (dh_instr_graph(p, instr)->kind != DH_BLOCK_LAYER) return SHARE_OTHERS;
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return SHARE_COMPUTE;
    if (op->group == DH_GROUP_CP) return SHARE_CP;
    return op->group == DH_GROUP_TP ? SHARE_TP : SHARE_OTHERS;
}

/* Every moment belongs to the first of those in `order` that runs, or to others. */
static void add_up(const edge *edges, size_t n, int64_t step_ns, double ns[N_SHARES])
{
    int running[N_KINDS] = {0};
    int64_t last = 0, named = 0;
    memset(ns, 0, N_SHARES * sizeof *ns);
    for (size_t i = 0; i < n; i++) {
        static const int order[] = {TRANSFER, SHARE_TP, SHARE_COMPUTE, SHARE_CP};
        for (size_t k = 0; k < DH_COUNTOF(order); k++) {
            if (!running[order[k]]) continue;
            if (order[k] == TRANSFER) break;
            ns[order[k]] += (double)(edges[i].at_ns - last);
            named += edges[i].at_ns - last;
            break;
        }
        last = edges[i].at_ns;
        running[edges[i].kind] += edges[i].delta;
    }
    ns[SHARE_OTHERS] = (double)(step_ns - named);
}

static dh_status ask_shares(dh_ctx *ctx, const dh_sim *sim, double *ns)
{
    const dh_sim_rank *r = &sim->ranks[0];
    const size_t n = r->program->instrs.n;
    edge *edges = calloc(2 * n + 1, sizeof *edges);
    if (!edges) return dh_fail(ctx, DH_ENOMEM, "out of memory measuring shares");
    for (size_t i = 0; i < n; i++) {
        const int kind = kind_of(r->program, &r->program->instrs.at[i]);
        edges[2 * i] = (edge){r->spans[i].met_ns, kind, 1};
        edges[2 * i + 1] = (edge){r->spans[i].end_ns, kind, -1};
    }
    qsort(edges, 2 * n, sizeof *edges, compare_edges);
    add_up(edges, 2 * n, sim->step_ns, ns);
    free(edges);
    return DH_OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static dh_status simulate(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster, size_t which,
                          double shares[N_SHARES])
{
    const dh_paper_question question = {N_SHARES, ask_shares};
    double ns[N_SHARES], sum = 0;
    dh_paper_costs costs;
    dh_paper_job job = {.dp = jobs[which].dp,
                        .tp = jobs[which].tp,
                        .pp = jobs[which].pp,
                        .cp = CP,
                        .seq = SEQ,
                        .global_batch = BATCH_TOKENS / SEQ,
                        .strategy = "sequential"};
    DH_TRY(dh_paper_model(ctx, arena, jobs[which].model, &job.model));
    DH_TRY(dh_paper_megatron_costs(ctx, arena, cluster, &job, true, &costs));
    DH_TRY(dh_paper_simulate(ctx, cluster, &costs.costs, &job, &question, ns));
    for (int s = 0; s < N_SHARES; s++) sum += ns[s];
    for (int s = 0; s < N_SHARES; s++) shares[s] = ns[s] / sum;
    return DH_OK;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                         const dh_published *t, size_t row)
{
    const char *model;
    double shares[N_SHARES] = {0};
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        if (strcmp(jobs[i].model, model) != 0) continue;
        DH_TRY(simulate(ctx, v->arena, cluster, i, shares));
        for (int s = 0; s < N_SHARES; s++) {
            double published;
            DH_TRY(dh_published_real(ctx, t, row, columns[s], &published));
            DH_TRY(dh_validation_add(ctx, v, 100 * shares[s], 100 * published, "%s %s", model,
                                     columns[s]));
        }
    }
    return DH_OK;
}

dh_status dh_validate_dhelix_shares(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *a40;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "a40", &a40));
    dh_status st = DH_OK;
    for (size_t i = 0; i < t.n_rows && st == DH_OK; i++) st = add_row(ctx, v, a40, &t, i);
    dh_cluster_destroy(a40);
    return st;
}
