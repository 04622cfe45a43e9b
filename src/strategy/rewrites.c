/* The tuner of rewrites. See rewrites.h. */
#include "strategy/rewrites.h"

#include <stdio.h>
#include <string.h>

/* ---- sequences ------------------------------------------------------------------------------ */

/* What each place of a sequence can have; "" leaves it out. */
static const char *const moves[] = {"", "split", "split, reorder",
                                    "split, reorder(regather=false)"};
/* TUNING: chunks of a sum's rows; of two half the time of what works by rows stays, of four a
 * quarter, and each more is as many launches more. */
/* Not among them: fuse(4, gather), whose gathers are n - 1 messages a chunk. Simulated it was
 * longer than fuse(4) wherever it was tried: Llama 3 8B, tp 8, 708 ms to 676 on H100, 1.57 s
 * to 1.52 on A100; GPT-2 of two ranks on a CPU 58.1 ms to 57.3. */
static const char *const fusions[] = {"", "fuse(4)"};
/* TUNING: each is measured by `dhelix profile` with all that may stand before it; one part is next
 * to none, and eight leave too few rows for a GEMM on all but the longest micro-batches. */
static const char *const overlaps[] = {"", "part-wise(2)", "part-wise(4)"};

static bool is_tried(const dh_rewrites *r, const dh_pass_list *passes)
{
    for (size_t i = 0; i < r->n; i++)
        if (dh_pass_list_equal(&r->at[i].passes, passes)) return true;
    return false;
}

static dh_status add(dh_ctx *ctx, const dh_graph_spec *graphs, const char *text, dh_rewrites *r)
{
    dh_graph_spec spec = *graphs;
    DH_TRY(dh_pass_list_parse(ctx, text, &spec.passes));
    const dh_pass_list reduced = dh_pass_list_reduced(&spec, &spec.passes);
    if (!is_tried(r, &reduced)) r->at[r->n++].passes = reduced;
    return DH_OK;
}

_Static_assert(DH_COUNTOF(moves) * DH_COUNTOF(fusions) * DH_COUNTOF(overlaps) <= DH_MAX_REWRITES,
               "room for all");

/* The passes with commas between them; absent ones are "". */
static void join(const char *const passes[3], char *text, size_t cap)
{
    text[0] = '\0';
    for (int k = 0; k < 3; k++) {
        const size_t n = strlen(text);
        if (*passes[k]) snprintf(text + n, cap - n, "%s%s", n ? ", " : "", passes[k]);
    }
}

dh_status dh_rewrites_list(dh_ctx *ctx, const dh_graph_spec *graphs, dh_rewrites *rewrites)
{
    *rewrites = (dh_rewrites){.n = 0};
    for (size_t m = 0; m < DH_COUNTOF(moves); m++)
        for (size_t f = 0; f < DH_COUNTOF(fusions); f++)
            for (size_t o = 0; o < DH_COUNTOF(overlaps); o++) {
                const char *const passes[] = {moves[m], fusions[f], overlaps[o]};
                char text[80];
                join(passes, text, sizeof text);
                DH_TRY(add(ctx, graphs, text, rewrites));
            }
    return DH_OK;
}

/* ---- times ---------------------------------------------------------------------------------- */

/* One strand alone, in its order. */
static dh_status time_strand(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_costs *costs,
                             const dh_graph *f, const dh_graph *b, double *ns)
{
    dh_arena *arena = dh_arena_create();
    dh_slot *slot;
    dh_slot_timing timing = {.makespan_ns = 0};
    if (!arena) return dh_fail(ctx, DH_ENOMEM, "out of memory timing rewrites");
    dh_status st = dh_slot_of_graphs(ctx, arena, costs, &graphs->mesh, 0, f, b, &slot);
    if (st == DH_OK) {
        const int strand = f ? 0 : 1;
        const uint32_t n = slot->strand[strand].n;
        dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, n + 1);
        for (uint32_t i = 0; order && i < n; i++)
            order[i] = (dh_slot_pick){.op = i, .strand = (uint8_t)strand};
        st = order ? dh_slot_time(ctx, slot, order, &timing)
                   : dh_fail(ctx, DH_ENOMEM, "out of memory timing rewrites");
    }
    *ns += timing.makespan_ns;
    dh_arena_destroy(arena);
    return st;
}

static dh_status time_layer(dh_ctx *ctx, const dh_graph_spec *spec, const dh_costs *costs,
                            double *ns)
{
    dh_graph *layer;
    const dh_graph_rank rank = {.shard = {.tp = spec->mesh.tp,
                                          .ep = spec->mesh.ep,
                                          .whole_tokens = spec->whole_tokens,
                                          .whole_experts = spec->mesh.whole_experts}};
    *ns = 0;
    DH_TRY(dh_graph_make(ctx, spec, DH_BLOCK_LAYER, rank, NULL, &layer));
    dh_status st = time_strand(ctx, spec, costs, layer, NULL, ns);
    if (st == DH_OK) st = time_strand(ctx, spec, costs, NULL, layer, ns);
    dh_graph_destroy(layer);
    return st;
}

/* The mean of the model's layers. */
static dh_status time_layers(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_costs *costs,
                             dh_rewrites_tried *tried)
{
    const dh_model *model = graphs->build.model;
    const dh_layer_kinds kinds = dh_model_kinds(model, 0, model->n_layers);
    dh_graph_spec spec = *graphs;
    spec.passes = tried->passes;
    tried->layer_ns = 0;
    for (int k = 0; k < kinds.n; k++) {
        double ns;
        spec.build.layer = kinds.layer[k];
        DH_TRY(time_layer(ctx, &spec, costs, &ns));
        tried->layer_ns += (double)kinds.count[k] / (double)model->n_layers * ns;
    }
    return DH_OK;
}

dh_status dh_rewrites_find(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_costs *costs,
                           dh_rewrites *r)
{
    DH_TRY(dh_rewrites_list(ctx, graphs, r));
    for (size_t i = 0; i < r->n; i++) {
        DH_TRY(time_layers(ctx, graphs, costs, &r->at[i]));
        const dh_rewrites_tried *one = &r->at[i], *best = &r->at[r->best];
        if (one->layer_ns < best->layer_ns ||
            (one->layer_ns == best->layer_ns && one->passes.n < best->passes.n))
            r->best = i;
    }
    return DH_OK;
}

/* ---- as a strategy --------------------------------------------------------------------------- */

void dh_rewrites_print(const dh_pass_list *passes, dh_str *out)
{
    if (passes->n == 0) dh_str_printf(out, "no rewrite");
    dh_pass_list_print(passes, out);
}

dh_status dh_rewrites_strategy(dh_ctx *ctx, dh_arena *arena, const dh_strategy *row,
                               const dh_rewrites *rewrites, const dh_strategy **strategy)
{
    dh_str text = DH_STR_INIT;
    dh_strategy *made = DH_NEW(arena, dh_strategy);
    dh_str_printf(&text, "%s", "");
    dh_pass_list_print(&rewrites->at[rewrites->best].passes, &text);
    char *passes = text.failed ? NULL : dh_arena_strdup(arena, text.text);
    dh_str_fini(&text);
    if (!made || !passes) return dh_fail(ctx, DH_ENOMEM, "out of memory naming rewrites");
    *made = *row;
    made->passes = passes;
    *strategy = made;
    return DH_OK;
}
