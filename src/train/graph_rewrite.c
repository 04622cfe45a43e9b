/* Rewrites of programs that were written by hand. See graph_rewrite.h.
 *
 * A sequence is legal if every pass applies, all kept outputs are still made, and no input is given
 * by rank that a pass takes for the same on all. */
#include "train/graph_rewrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/graph_values.h"

/* ---- one sequence --------------------------------------------------------------------------- */

/* A graph of its own, which passes may rewrite: printed and read, since that is what a text is. */
static dh_status copy_graph(dh_ctx *ctx, const dh_graph *graph, dh_graph **copy)
{
    dh_str text = DH_STR_INIT;
    dh_status st = dh_graph_print(ctx, graph, &text);
    if (st == DH_OK) st = dh_graph_parse(ctx, text.text, text.len, copy);
    dh_str_fini(&text);
    return st;
}

static dh_status use_all(dh_ctx *ctx, const dh_graph_run *run, int64_t rank,
                         const dh_pass_list *passes, dh_graph *graph)
{
    const dh_coord at = dh_mesh_coord(&run->mesh, rank);
    const dh_graph_spec spec = {
        .mesh = run->mesh, .sharing.sequence = DH_SEQUENCE_WHOLE, .passes = *passes};
    const dh_graph_rank who = {
        .shard = {.tp = run->mesh.tp, .tp_rank = at.tp, .sequence = DH_SEQUENCE_WHOLE},
        .cp_rank = at.cp,
        .rank = rank};
    for (int64_t i = 0; i < passes->n; i++) {
        const dh_pass_use *use = &passes->at[i];
        const dh_pass_work work = {.graph = graph, .spec = &spec, .rank = who, .args = use->args};
        if (use->pass->applicable(&spec, use->args)) continue;
        DH_TRY(use->pass->apply(ctx, &work));
        DH_TRY(dh_graph_check(ctx, graph));
    }
    return DH_OK;
}

static bool is_made(const dh_graph *g, uint32_t id)
{
    for (size_t i = 0; i < g->ops.n; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++) {
            const uint32_t out = g->ops.at[i].out[k];
            if (out != DH_NONE && (out == id || g->tensors.at[out].base == id)) return true;
        }
    return false;
}

/* Kept outputs must still be made: a pass may leave passing values out. */
static dh_status check_left(dh_ctx *ctx, const dh_graph_run *run, const dh_graph *g)
{
    for (size_t i = 0; i < run->ios.n; i++) {
        const uint32_t id = run->ios.at[i].tensor;
        if (run->ios.at[i].out && !is_made(g, id))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "the rewritten program makes no %s any more: leave --keep %s out",
                           g->tensors.at[id].name, g->tensors.at[id].name);
    }
    return DH_OK;
}

dh_status dh_graph_run_rewrite(dh_ctx *ctx, const dh_graph_run *run, int64_t rank,
                               const dh_pass_list *passes, dh_graph **graph)
{
    uint32_t op;
    DH_TRY(copy_graph(ctx, run->text->graph, graph));
    if (passes->n > 0) {
        DH_TRY(use_all(ctx, run, rank, passes, *graph));
        DH_TRY(dh_graph_check_alone(ctx, *graph, &run->mesh, &op));
        DH_TRY(check_left(ctx, run, *graph));
    }
    return DH_OK;
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct maker {
    const dh_graph_run *run;
    const dh_safetensors *given;
} maker;

static dh_status make(dh_ctx *ctx, const void *self, const dh_pass_list *passes, dh_graph **graph)
{
    const maker *m = self;
    dh_ctx own = dh_ctx_like(ctx);
    *graph = NULL;
    if (!dh_graph_given_fits(m->run, m->given, passes)) return DH_OK;
    const dh_status st = dh_graph_run_rewrite(&own, m->run, 0, passes, graph);
    if (st == DH_OK) return DH_OK;
    dh_graph_destroy(*graph);
    *graph = NULL;
    if (st == DH_EINVAL || st == DH_EUNSUPPORTED) return DH_OK; /* not legal */
    return dh_fail(ctx, st, "%s", own.message);
}

/* Estimates for this machine, whose links are as fast as the job lets them be. */
static const dh_costs *estimates(dh_arena *arena, const dh_job *job)
{
    const dh_link *links[DH_N_ENGINE] = {
        [DH_ENGINE_LOCAL] = &job->link_local, [DH_ENGINE_CROSS] = &job->link_cross};
    dh_cost_model model = {0};
    for (int e = 0; e < DH_N_ENGINE; e++) {
        if (!links[e]) continue;
        model.link_bytes_per_s[e] = links[e]->gbps * 1e9 / 8;
        model.link_latency_ns[e] = links[e]->latency_us * 1e3;
    }
    return dh_costs_estimated(arena, &model);
}

static dh_status search(dh_ctx *ctx, dh_arena *arena, const dh_graph_run_options *options,
                        dh_graph_run *run)
{
    const maker of = {run, options->given};
    const dh_rewrites_maker with = {.make = make,
                                    .self = &of,
                                    .mesh = &run->mesh,
                                    .sharded = options->search == DH_GRAPH_SEARCH_SHARDED};
    const dh_costs *costs = options->costs ? options->costs : estimates(arena, run->job);
    run->rewrites = calloc(1, sizeof *run->rewrites);
    if (!costs || !run->rewrites) return dh_no_memory(ctx);
    snprintf(run->costs, sizeof run->costs, "%s", costs->name);
    return dh_rewrites_find_alone(ctx, &with, costs, run->rewrites);
}

dh_status dh_graph_run_search(dh_ctx *ctx, const dh_graph_run_options *options, dh_graph_run *run)
{
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    const dh_status st = search(ctx, arena, options, run);
    dh_arena_destroy(arena);
    return st;
}
