/* Blocks one behind the other, on their streams.
 *
 * Chains of one and two layers, with and without embedding and head, run against the clock
 * in the order in which a program would issue them (dh_slot_time). Every further layer adds
 * what the second one did. */
#include <stdlib.h>

#include "tune/tuner.h"

enum { MAX_CHAIN = 3 };

/* Blocks of a strand in forward order; the backward goes from the last to the first. */
typedef struct chain {
    int n;
    int block[MAX_CHAIN];
} chain;

typedef struct timer {
    dh_ctx *ctx;
    const dh_program_spec *spec;
    const tune_blocks *blocks;
    dh_ordering ordering;
} timer;

static dh_status list_items(const timer *t, dh_arena *arena, const chain *c, unsigned phases,
                            dh_slot_items *items)
{
    size_t n = 0;
    const bool forward = phases == 1u << DH_PHASE_F;
    for (int k = 0; k < c->n; k++) n += t->blocks->at[c->block[k]].graph->ops.n;
    dh_slot_item *at = DH_NEW_N(arena, dh_slot_item, n + 1);
    if (!at) return dh_no_memory(t->ctx);
    items->at = at;
    items->n = 0;
    for (int k = 0; k < c->n; k++) {
        const dh_graph *g = t->blocks->at[c->block[forward ? k : c->n - 1 - k]].graph;
        for (uint32_t i = 0; i < g->ops.n; i++)
            if (phases >> g->ops.at[i].phase & 1)
                at[items->n++] = (dh_slot_item){.graph = g, .op = i, .block = (uint32_t)k};
    }
    return DH_OK;
}

static dh_status time_order(const timer *t, dh_arena *arena, const dh_slot *slot, double *ns)
{
    dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, slot->strand[0].n + slot->strand[1].n + 1);
    if (!order) return dh_no_memory(t->ctx);
    DH_TRY(dh_slot_order(t->ctx, slot, t->ordering.policy, &t->ordering.options, order));
    return dh_slot_makespan(t->ctx, slot, order, ns);
}

/* Makespan of a forward chain beside a backward one; either may be empty. */
static dh_status chains_ns(const timer *t, chain f, chain b, unsigned phases, double *ns)
{
    dh_slot_items strands[2] = {{NULL, 0}, {NULL, 0}};
    dh_slot *slot;
    dh_arena *arena = dh_arena_create();
    dh_status st = arena ? DH_OK : dh_no_memory(t->ctx);
    if (st == DH_OK) st = list_items(t, arena, &f, 1u << DH_PHASE_F, &strands[0]);
    if (st == DH_OK) st = list_items(t, arena, &b, phases, &strands[1]);
    if (st == DH_OK)
        st = dh_slot_build(t->ctx, arena, t->spec->recipe.costs, &t->spec->recipe.mesh,
                           t->spec->rank, strands, &slot);
    if (st == DH_OK) st = time_order(t, arena, slot, ns);
    dh_arena_destroy(arena);
    return st;
}

static const chain none = {0, {0}};

static chain chain_of(int n, int first, int second)
{
    return (chain){n, {first, second}};
}

/* Of a head with too many operators to be timed one by one. */
static double head_alone_ns(const timer *t, unsigned phases)
{
    static const struct {
        unsigned phase;
        int block_phase;
    } list[] = {{DH_PHASE_F, TUNE_F}, {DH_PHASE_B, TUNE_B}, {DH_PHASE_W, TUNE_W}};
    const tune_block *b = &t->blocks->at[TUNE_HEAD];
    double ns = 0;
    for (size_t i = 0; i < DH_COUNTOF(list); i++) {
        if (!((phases ? phases : 1u << DH_PHASE_F) >> list[i].phase & 1)) continue;
        const int p = list[i].block_phase;
        ns += b->compute_ns[p] + b->n_launched[p] * t->spec->recipe.costs->launch_ns;
        for (int k = 0; k < TUNE_N_COMM; k++) ns += b->comm_ns[p][k];
    }
    return ns;
}

/* phases 0: the forward. */
static dh_status strand_ns(const timer *t, chain c, unsigned phases, double *ns)
{
    return phases ? chains_ns(t, none, c, phases, ns) : chains_ns(t, c, none, 0, ns);
}

static dh_status one_strand(const timer *t, unsigned phases, tune_chain *made)
{
    const tune_blocks *blocks = t->blocks;
    double two, embed, head;
    *made = (tune_chain){.embed = 0};
    for (int k = 0; k < DH_N_LAYER_KINDS; k++) {
        const int layer = TUNE_LAYER + k;
        if (!blocks->at[layer].graph) continue;
        DH_TRY(strand_ns(t, chain_of(1, layer, 0), phases, &made->layers[k].one));
        DH_TRY(strand_ns(t, chain_of(2, layer, layer), phases, &two));
        made->layers[k].more = two - made->layers[k].one;
    }
    const double first = made->layers[blocks->first - TUNE_LAYER].one;
    const double last = made->layers[blocks->last - TUNE_LAYER].one;
    DH_TRY(strand_ns(t, chain_of(2, TUNE_EMBED, blocks->first), phases, &embed));
    if (blocks->at[TUNE_HEAD].graph)
        DH_TRY(strand_ns(t, chain_of(2, blocks->last, TUNE_HEAD), phases, &head));
    else
        head = last + head_alone_ns(t, phases);
    made->embed = embed - first;
    made->head = head - last;
    return DH_OK;
}

/* Layers of every kind beside those of every kind. */
static dh_status two_strands(const timer *t, unsigned phases,
                             tune_layers_ns made[DH_N_LAYER_KINDS][DH_N_LAYER_KINDS])
{
    for (int f = 0; f < DH_N_LAYER_KINDS; f++)
        for (int b = 0; b < DH_N_LAYER_KINDS; b++) {
            const int x = TUNE_LAYER + f, y = TUNE_LAYER + b;
            double two;
            if (!t->blocks->at[x].graph || !t->blocks->at[y].graph) continue;
            DH_TRY(chains_ns(t, chain_of(1, x, 0), chain_of(1, y, 0), phases, &made[f][b].one));
            DH_TRY(chains_ns(t, chain_of(2, x, x), chain_of(2, y, y), phases, &two));
            made[f][b].more = two - made[f][b].one;
        }
    return DH_OK;
}

dh_status tune_times_make(dh_ctx *ctx, const dh_program_spec *spec, const tune_blocks *blocks,
                          tune_wants wants, tune_times *times)
{
    tune_wants *known = &times->known;
    const timer t = {ctx, spec, blocks, spec->recipe.ordering};
    const unsigned inputs = 1u << DH_PHASE_B, weights = 1u << DH_PHASE_W;
    if (!known->whole) {
        DH_TRY(one_strand(&t, 0, &times->f));
        DH_TRY(one_strand(&t, inputs | weights, &times->b));
    }
    if (wants.split && !known->split) {
        DH_TRY(one_strand(&t, inputs, &times->i));
        DH_TRY(one_strand(&t, weights, &times->w));
    }
    if (wants.pairs && !known->pairs) DH_TRY(two_strands(&t, inputs | weights, times->fb));
    if (wants.split_pairs && !known->split_pairs) DH_TRY(two_strands(&t, inputs, times->fi));
    *known = (tune_wants){.whole = true,
                          .split = known->split || wants.split,
                          .pairs = known->pairs || wants.pairs,
                          .split_pairs = known->split_pairs || wants.split_pairs};
    return DH_OK;
}

double tune_chain_ns(const tune_chain *c, const tune_stage *s)
{
    double layers_ns = 0;
    for (int k = 0; s->n_layers > 0 && k < DH_N_LAYER_KINDS; k++)
        layers_ns +=
            tune_share(s, k) * (c->layers[k].one + (double)(s->n_layers - 1) * c->layers[k].more);
    return layers_ns + (s->embed ? c->embed : 0) + (s->head ? c->head : 0);
}

double tune_more_ns(const tune_chain *c, const tune_stage *s)
{
    double ns = 0;
    for (int k = 0; k < DH_N_LAYER_KINDS; k++) ns += tune_share(s, k) * c->layers[k].more;
    return ns;
}
