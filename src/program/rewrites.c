/* Rewrites that make a layer shortest, of those that the memory of a device leaves room for. */
#include "program/rewrites.h"

#include "program/block_lives.h"
#include "program/program_spec.h"

/* Bytes that a layer holds under a sequence, on the first rank: kept ones as the mean of the
 * model's layers, the peak as the most of any. */
static dh_status measure(dh_ctx *ctx, const dh_recipe *recipe, const dh_graph_spec *graphs,
                         dh_rewrites_tried *tried)
{
    const dh_mesh *m = &recipe->mesh;
    const dh_model *model = &recipe->model;
    const dh_graph_rank first = {.shard = {.tp = m->tp,
                                           .ep = m->ep,
                                           .sequence = recipe->sharing.sequence,
                                           .whole_experts = m->whole_experts}};
    const dh_layer_kinds kinds = dh_model_kinds(model, 0, model->n_layers);
    dh_graph_spec spec = *graphs;
    spec.passes = tried->passes;
    tried->kept_bytes = tried->peak_bytes = 0;
    for (int k = 0; k < kinds.n; k++) {
        dh_block_lives lives;
        dh_graph *layer;
        spec.build.layer = kinds.layer[k];
        DH_TRY(dh_graph_make(ctx, &spec, DH_BLOCK_LAYER, first, NULL, &layer));
        const dh_status st = dh_block_lives_find(ctx, layer, recipe->backend, &lives);
        dh_graph_destroy(layer);
        if (st != DH_OK) return st;
        tried->kept_bytes += (double)kinds.count[k] / (double)model->n_layers * lives.kept;
        tried->peak_bytes = DH_MAX(tried->peak_bytes, DH_MAX(lives.f_peak, lives.b_peak));
    }
    return DH_OK;
}

/* Bytes that the first stage has beside activations, and how often a layer's are there: 1F1B keeps
 * as many micro-batches of it as there are stages. */
static dh_status find_share(dh_ctx *ctx, const dh_recipe *recipe, double *others, double *times)
{
    const int64_t pp = DH_MAX(recipe->mesh.pp, 1);
    dh_program_spec spec = {.recipe = *recipe, .mode = DH_MODE_TRAIN, .outline = true};
    dh_program *p;
    spec.unplaced = true;
    DH_TRY(dh_program_build(ctx, &spec, &p));
    *others = (double)p->persistent_bytes;
    const int64_t n_layers = (recipe->model.n_layers + pp - 1) / pp;
    *times = (double)(n_layers * DH_MIN(pp, DH_MAX(recipe->n_micro, 1)));
    dh_program_destroy(p);
    return DH_OK;
}

/* A sequence that fits comes first. Then of two that fit the shorter, else the smaller. */
static bool is_better(const dh_rewrites_tried *a, const dh_rewrites_tried *b)
{
    if (a->fits != b->fits) return a->fits;
    if (!a->fits && a->step_bytes != b->step_bytes) return a->step_bytes < b->step_bytes;
    if (a->layer_ns != b->layer_ns) return a->layer_ns < b->layer_ns;
    return a->passes.n < b->passes.n;
}

dh_status dh_recipe_rewrites(dh_ctx *ctx, const dh_recipe *recipe, double memory_bytes,
                             dh_rewrites *r)
{
    const dh_graph_spec graphs = dh_recipe_graphs(recipe);
    double others, times;
    DH_TRY(dh_rewrites_find(ctx, &graphs, recipe->costs, r));
    DH_TRY(find_share(ctx, recipe, &others, &times));
    for (size_t i = 0; i < r->n; i++) {
        dh_rewrites_tried *one = &r->at[i];
        DH_TRY(measure(ctx, recipe, &graphs, one));
        one->step_bytes = others + times * one->kept_bytes + one->peak_bytes;
        one->fits = memory_bytes <= 0 || one->step_bytes <= memory_bytes;
    }
    for (size_t i = 0; i < r->n; i++)
        if (is_better(&r->at[i], &r->at[r->best])) r->best = i;
    return DH_OK;
}

static dh_status search(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, double memory_bytes,
                        const dh_rewrites **rewrites)
{
    dh_rewrites *found = DH_NEW(arena, dh_rewrites);
    if (!found) return dh_no_memory(ctx);
    if (memory_bytes < 0) {
        const dh_graph_spec graphs = dh_recipe_graphs(recipe);
        DH_TRY(dh_rewrites_find(ctx, &graphs, recipe->costs, found));
    } else {
        DH_TRY(dh_recipe_rewrites(ctx, recipe, memory_bytes, found));
    }
    *rewrites = found;
    return dh_strategy_with(ctx, arena, recipe->strategy, &found->at[found->best].passes,
                            &recipe->strategy);
}

dh_status dh_recipe_decide(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, double memory_bytes,
                           dh_decided *decided)
{
    *decided = (dh_decided){.rewrites = NULL};
    if (recipe->strategy && recipe->strategy->searches)
        DH_TRY(search(ctx, arena, recipe, memory_bytes, &decided->rewrites));
    DH_TRY(dh_recipe_settle(ctx, arena, recipe, &decided->passes_why));
    return dh_recipe_dispatch(ctx, arena, recipe, &decided->dispatch_why);
}
