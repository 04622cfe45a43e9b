/* DHelix (arXiv 2411.15871), figure 3: what Megatron-LM's iteration time goes into, 64 A40.
 *
 * A share of communication is time in which it ran and computation stood still: tensor
 * parallelism's always, context parallelism's where nothing is computed beside it. "Others" is what
 * no layer does: embedding and head, the optimizer, reductions of gradients, transfers between
 * stages, bubbles. The figure's jobs exchange keys and values, so they have context-parallel ranks:
 * taken are those of figure 12. */
#include <stdlib.h>
#include <string.h>

#include "validate/dhelix_jobs.h"

enum share { SHARE_TP, SHARE_CP, SHARE_COMPUTE, SHARE_OTHERS, N_SHARES };
enum { TRANSFER = N_SHARES, N_KINDS }; /* of others, what is not done beside computation */
static const char *const columns[N_SHARES] = {"tp_comm", "cp_comm", "compute", "others"};

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
    const dh_group_kind group = dh_group_whole((dh_group_kind)op->group);
    if (group == DH_GROUP_CP) return SHARE_CP;
    return group == DH_GROUP_TP ? SHARE_TP : SHARE_OTHERS;
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

static dh_status shares_of(dh_ctx *ctx, const dh_sim *sim, double ns[N_SHARES])
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

/* The job of figure 12 of that model; its file NULL: the figure has none (the MoE model). */
static dh_status job_of(dh_ctx *ctx, dh_validation *v, const dh_published *jobs, const char *model,
                        dh_shipped_job *job)
{
    *job = (dh_shipped_job){0};
    for (size_t i = 0; i < jobs->n_rows; i++) {
        const char *figure, *name;
        DH_TRY(dh_published_text(ctx, jobs, i, "figure", &figure));
        DH_TRY(dh_published_text(ctx, jobs, i, "model", &name));
        if (strcmp(figure, "12") == 0 && strcmp(name, model) == 0)
            return dh_paper_job(ctx, v, jobs, i, job);
    }
    return DH_OK;
}

static dh_status simulate(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job,
                          double shares[N_SHARES], double *step_ns)
{
    dh_shipped_run run;
    dh_status st = dh_shipped_simulate(ctx, v, job, &run);
    if (st == DH_OK) {
        st = shares_of(ctx, run.sim, shares);
        *step_ns = (double)run.sim->step_ns;
    }
    dh_shipped_fini(&run);
    return st;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t,
                         const dh_published *jobs, size_t row)
{
    const char *model;
    dh_shipped_job job;
    double ns[N_SHARES] = {0}, step_ns = 0;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(job_of(ctx, v, jobs, model, &job));
    if (!job.file) return DH_OK;
    DH_TRY(simulate(ctx, v, &job, ns, &step_ns));
    dh_validation_begin_block(v);
    for (int s = 0; s < N_SHARES; s++) {
        double published;
        DH_TRY(dh_published_real(ctx, t, row, columns[s], &published));
        DH_TRY(dh_validation_add(ctx, v, 100 * ns[s] / step_ns, 100 * published, "%s %s", model,
                                 columns[s]));
        dh_validation_series(v, columns[s]);
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step_ns));
    }
    return DH_OK;
}

dh_status dh_validate_dhelix_shares(dh_ctx *ctx, dh_validation *v)
{
    dh_published t, jobs;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_published_read(ctx, v->arena, "dhelix_figs12_13a_15_tflops", &jobs));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, &jobs, i));
    return DH_OK;
}
