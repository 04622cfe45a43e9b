/* The tuner of rewrites. See rewrites.h. */
#include "strategy/rewrites.h"

/* ---- sequences ------------------------------------------------------------------------------ */

/* Choices for each place of a sequence; an empty list leaves the place out. */
typedef struct choices {
    const dh_pass_list *at;
    size_t n;
} choices;
typedef struct places {
    choices moves, fusions, overlaps;
} places;

#define SPLIT DH_PASS_USE(split, 0)
#define REORDER(regather, sharded) DH_PASS_USE(reorder, regather, sharded)
#define FUSE(parts, gather) DH_PASS_USE(fuse, parts, gather)
#define PART_WISE(parts) DH_PASS_USE(part_wise, parts, false, false, DH_CUT_ALL)
#define ALL_OF(lists)                                                                              \
    {                                                                                              \
        lists, DH_COUNTOF(lists)                                                                   \
    }

static const dh_pass_list moves[] = {DH_NO_PASSES, DH_PASSES(1, SPLIT),
                                     DH_PASSES(2, SPLIT, REORDER(true, false)),
                                     DH_PASSES(2, SPLIT, REORDER(false, false))};
/* TUNING: chunks of a sum's rows; of two half the time of what works by rows stays, of four a
 * quarter, and each more is as many launches more. */
/* fuse(4, gather) is not tried: its gathers are n - 1 messages a chunk. Simulated steps, and
 * those of GPT-2 on two ranks of a CPU, were longer than with fuse(4):
 *
 *                              fuse(4, gather)   fuse(4)
 *   Llama 3 8B, tp 8, H100     708 ms            676 ms
 *   Llama 3 8B, tp 8, A100     1.57 s            1.52 s
 *   GPT-2, two ranks of a CPU  58.1 ms           57.3 ms */
static const dh_pass_list fusions[] = {DH_NO_PASSES, DH_PASSES(1, FUSE(4, false))};
/* TUNING: `dhelix profile` measures each with everything that may come before it. One part hides
 * next to nothing. Eight leave a GEMM too few rows, except on the longest micro-batches. */
static const dh_pass_list overlaps[] = {DH_NO_PASSES, DH_PASSES(1, PART_WISE(2)),
                                        DH_PASSES(1, PART_WISE(4))};
static const places of_jobs = {ALL_OF(moves), ALL_OF(fusions), ALL_OF(overlaps)};

/* Programs of their own are in no profile, so more sequences are tried. Gathers of few ranks go
 * by chunks at little cost. Sums that are split already only have to be moved. */
static const dh_pass_list alone_moves[] = {
    DH_NO_PASSES, DH_PASSES(1, SPLIT), DH_PASSES(1, REORDER(true, false)),
    DH_PASSES(2, SPLIT, REORDER(true, false)), DH_PASSES(2, SPLIT, REORDER(false, false))};
static const dh_pass_list sharded_moves[] = {DH_NO_PASSES,
                                             DH_PASSES(1, SPLIT),
                                             DH_PASSES(1, REORDER(true, false)),
                                             DH_PASSES(2, SPLIT, REORDER(true, false)),
                                             DH_PASSES(2, SPLIT, REORDER(false, false)),
                                             DH_PASSES(1, REORDER(true, true)),
                                             DH_PASSES(2, SPLIT, REORDER(true, true))};
static const dh_pass_list alone_fusions[] = {
    DH_NO_PASSES, DH_PASSES(1, FUSE(2, false)), DH_PASSES(1, FUSE(4, false)),
    DH_PASSES(1, FUSE(2, true)), DH_PASSES(1, FUSE(4, true))};
static const places of_programs = {ALL_OF(alone_moves), ALL_OF(alone_fusions), ALL_OF(overlaps)};
static const places of_sharded = {ALL_OF(sharded_moves), ALL_OF(alone_fusions), ALL_OF(overlaps)};

_Static_assert(DH_COUNTOF(sharded_moves) * DH_COUNTOF(alone_fusions) * DH_COUNTOF(overlaps) <=
                   DH_MAX_REWRITES,
               "room for all");

static bool is_tried(const dh_rewrites *r, const dh_pass_list *passes)
{
    for (size_t i = 0; i < r->n; i++)
        if (dh_pass_list_equal(&r->at[i].passes, passes)) return true;
    return false;
}

static void add(const dh_pass_list *passes, dh_rewrites *r)
{
    if (!is_tried(r, passes)) r->at[r->n++] = (dh_rewrites_tried){.passes = *passes};
}

static dh_pass_list join(const dh_pass_list *const parts[3])
{
    dh_pass_list all = {.n = 0};
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < parts[k]->n; i++) all.at[all.n++] = parts[k]->at[i];
    return all;
}

static void list(const dh_graph_spec *graphs, const places *of, dh_rewrites *r)
{
    *r = (dh_rewrites){.n = 0};
    for (size_t m = 0; m < of->moves.n; m++)
        for (size_t f = 0; f < of->fusions.n; f++)
            for (size_t o = 0; o < of->overlaps.n; o++) {
                const dh_pass_list *const parts[] = {&of->moves.at[m], &of->fusions.at[f],
                                                     &of->overlaps.at[o]};
                dh_graph_spec spec = *graphs;
                spec.passes = join(parts);
                const dh_pass_list reduced = dh_pass_list_reduced(&spec, &spec.passes);
                add(&reduced, r);
            }
}

void dh_rewrites_list(const dh_graph_spec *graphs, dh_rewrites *rewrites)
{
    list(graphs, &of_jobs, rewrites);
}

/* ---- times ---------------------------------------------------------------------------------- */

/* A slot's only strand, in its order. */
static dh_status time_in_order(dh_ctx *ctx, dh_arena *arena, const dh_slot *slot, int strand,
                               double *ns)
{
    dh_slot_timing timing = {.makespan_ns = 0};
    const uint32_t n = slot->strand[strand].n;
    dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, n + 1);
    if (!order) return dh_no_memory(ctx);
    for (uint32_t i = 0; i < n; i++) order[i] = (dh_slot_pick){.op = i, .strand = (uint8_t)strand};
    DH_TRY(dh_slot_time(ctx, slot, order, &timing));
    *ns += timing.makespan_ns;
    return DH_OK;
}

/* One strand alone, in its order. */
static dh_status time_strand(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_costs *costs,
                             const dh_graph *f, const dh_graph *b, double *ns)
{
    dh_arena *arena = dh_arena_create();
    dh_slot *slot;
    if (!arena) return dh_no_memory(ctx);
    dh_status st = dh_slot_of_graphs(ctx, arena, costs, &graphs->mesh, 0, f, b, &slot);
    if (st == DH_OK) st = time_in_order(ctx, arena, slot, f ? 0 : 1, ns);
    dh_arena_destroy(arena);
    return st;
}

static dh_status time_layer(dh_ctx *ctx, const dh_graph_spec *spec, const dh_costs *costs,
                            double *ns)
{
    dh_graph *layer;
    const dh_graph_rank rank = {.shard = {.tp = spec->mesh.tp,
                                          .ep = spec->mesh.ep,
                                          .sequence = spec->sharing.sequence,
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

/* Of equals the one with fewest rewrites. */
static void choose(dh_rewrites *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const dh_rewrites_tried *one = &r->at[i], *best = &r->at[r->best];
        if (one->layer_ns < best->layer_ns ||
            (one->layer_ns == best->layer_ns && one->passes.n < best->passes.n))
            r->best = i;
    }
}

dh_status dh_rewrites_find(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_costs *costs,
                           dh_rewrites *r)
{
    dh_rewrites_list(graphs, r);
    for (size_t i = 0; i < r->n; i++) DH_TRY(time_layers(ctx, graphs, costs, &r->at[i]));
    choose(r);
    return DH_OK;
}

/* ---- programs of their own ------------------------------------------------------------------ */

/* In a model nothing waits for tensors that persist. Here they are written and read like
 * others. */
static void make_plain(dh_graph *g)
{
    for (size_t i = 0; i < g->tensors.n; i++) g->tensors.at[i].kind = DH_TENSOR_ACT;
    g->kind = DH_BLOCK_PROGRAM;
}

/* All operators as one strand. */
static dh_status time_program(dh_ctx *ctx, const dh_mesh *mesh, const dh_costs *costs,
                              const dh_graph *g, double *ns)
{
    dh_arena *arena = dh_arena_create();
    dh_slot_item *items = arena ? DH_NEW_N(arena, dh_slot_item, g->ops.n + 1) : NULL;
    dh_slot *slot;
    *ns = 0;
    if (!items) {
        dh_arena_destroy(arena);
        return dh_no_memory(ctx);
    }
    for (uint32_t i = 0; i < g->ops.n; i++) items[i] = (dh_slot_item){.graph = g, .op = i};
    const dh_slot_items strands[2] = {{items, g->ops.n}, {NULL, 0}};
    dh_status st = dh_slot_build(ctx, arena, costs, mesh, 0, strands, &slot);
    if (st == DH_OK) st = time_in_order(ctx, arena, slot, 0, ns);
    dh_arena_destroy(arena);
    return st;
}

/* The programs that the sequences of r made, in its order. */
typedef struct made_programs {
    dh_graph *at[DH_MAX_REWRITES];
    size_t n;
} made_programs;

static bool is_made(const made_programs *made, const dh_graph *g)
{
    for (size_t i = 0; i < made->n; i++)
        if (dh_graph_equal(made->at[i], g)) return true;
    return false;
}

static dh_status try_program(dh_ctx *ctx, const dh_rewrites_maker *maker, const dh_costs *costs,
                             const dh_pass_list *passes, made_programs *made, dh_rewrites *r)
{
    dh_graph *g = NULL;
    DH_TRY(maker->make(ctx, maker->self, passes, &g));
    if (!g) return DH_OK;
    make_plain(g);
    if (is_made(made, g)) {
        dh_graph_destroy(g);
        return DH_OK;
    }
    made->at[made->n++] = g;
    r->at[r->n].passes = *passes;
    return time_program(ctx, maker->mesh, costs, g, &r->at[r->n++].layer_ns);
}

dh_status dh_rewrites_find_alone(dh_ctx *ctx, const dh_rewrites_maker *maker, const dh_costs *costs,
                                 dh_rewrites *r)
{
    const dh_graph_spec spec = {.mesh = *maker->mesh, .sharing.sequence = DH_SEQUENCE_WHOLE};
    made_programs made = {.n = 0};
    dh_rewrites all;
    *r = (dh_rewrites){.n = 0};
    dh_status st = DH_OK;
    list(&spec, maker->sharded ? &of_sharded : &of_programs, &all);
    for (size_t i = 0; st == DH_OK && i < all.n; i++)
        st = try_program(ctx, maker, costs, &all.at[i].passes, &made, r);
    for (size_t i = 0; i < made.n; i++) dh_graph_destroy(made.at[i]);
    choose(r);
    return st;
}

void dh_rewrites_print(const dh_pass_list *passes, dh_str *out)
{
    if (passes->n == 0) dh_str_printf(out, "no rewrite");
    dh_pass_list_print(passes, out);
}
