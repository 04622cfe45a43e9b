/* Everything around the micro-batches of a rank: persistent data, reductions, optimizer. */
#include <stdlib.h>

#include "program/build.h"
#include "tune/tuner.h"

static uint64_t unreduced_bytes(const dh_program *p, uint32_t flat)
{
    const uint32_t buffer = p->flats.at[flat].matrix[DH_BUF_GRAD].buffer;
    const bool transient = buffer != DH_NONE && p->buffers.at[buffer].kind == DH_BUF_UNREDUCED;
    return transient ? p->buffers.at[buffer].n_bytes : 0;
}

static bool reduces_each(const dh_program *p)
{
    bool each = false;
    for (uint32_t f = 0; f < p->flats.n; f++) each |= p->flats.at[f].reduces_each;
    return each;
}

/* Memory where each micro-batch is reduced by itself. From the second one on it has the shards of
 * all, and the whole gradients of two successive buckets with their addends. A backward's last
 * bucket stays alone until the next backward begins. When it is made, the activations of its
 * micro-batch are gone. Buckets that are reduced once a step stay whole. */
static void sum_by_micro(const dh_program *p, tune_outline *o)
{
    uint64_t two = 0, before = 0, pair = 0;
    for (uint32_t f = 0; f < p->flats.n; f++) {
        const dh_flat *flat = &p->flats.at[f];
        if (!flat->reduces_each) {
            o->transient += unreduced_bytes(p, f);
            continue;
        }
        const uint64_t own = unreduced_bytes(p, f) + flat->addend.n_bytes;
        const uint32_t graph = p->blocks.at[flat->after].graph;
        if (p->graphs.at[graph]->kind == DH_BLOCK_HEAD) o->head += unreduced_bytes(p, f);
        two = DH_MAX(two, pair);
        pair = before + own;
        before = own;
        o->transient += flat->reduced.n_bytes;
    }
    two = DH_MAX(two, before);
    o->transient += two;
    o->last_pair = pair - DH_MIN(pair, two);
    o->reduces_each = true;
}

/* Whether all backwards of a virtual stage come before those of the next one, so that its gradients
 * are reduced while the next one's come. */
static bool goes_by_stage(const dh_program *p, const dh_schedule *s)
{
    const int32_t rank = (int32_t)dh_mesh_coord(&p->mesh, p->rank).pp;
    int32_t at = s->n_stages;
    if (s->n_copies > 1 || s->n_stages == s->n_ranks || p->n_micro == 1) return false;
    for (int32_t i = s->first_slot[rank]; i < s->first_slot[rank + 1]; i++) {
        const dh_pipe_action *a = &s->slots[i].action[s->slots[i].n_actions - 1];
        if (a->kind == DH_PIPE_F) continue;
        if (a->stage > at) return false;
        at = a->stage;
    }
    return true;
}

bool tune_outline_many(const dh_schedule *schedule)
{
    return schedule->n_micro >= 4 * schedule->n_ranks;
}

/* The virtual stage of a flat, whose blocks are all of one. layers: by stage. */
static int64_t stage_of(const dh_program *p, const dh_recipe *r, const int64_t *layers,
                        uint32_t flat)
{
    const dh_block *block = &p->blocks.at[p->flats.at[flat].first_block];
    const dh_block_kind kind = p->graphs.at[block->graph]->kind;
    if (kind != DH_BLOCK_LAYER) return kind == DH_BLOCK_EMBED ? 0 : r->schedule->n_stages - 1;
    int64_t v = 0;
    for (int64_t end = layers[0]; block->layer >= end; end += layers[++v]) {}
    return v;
}

/* Bytes of a bucket of a neighbour stage on the rank; 0: none. behind: the next stage's bucket that
 * is reduced last, since its blocks come first. Else the previous stage's first one. A stage without
 * layers waits for other ranks. With many micro-batches its neighbour is reduced meanwhile, unless
 * gathers go first: seen in simulations. With few it is not, and the bucket counts. */
static uint64_t neighbour_of(const dh_program *p, const dh_recipe *r, const int64_t *layers,
                             int64_t from, bool behind)
{
    const int64_t way = behind ? 1 : -1;
    const bool meanwhile = !r->sharing.parameters && tune_outline_many(r->schedule);
    uint32_t found = DH_NONE;
    int64_t nearest = INT64_MAX;
    for (uint32_t f = 0; f < p->flats.n; f++) {
        const int64_t v = stage_of(p, r, layers, f), away = way * (v - from);
        const bool apart = layers[v] == 0 || layers[from] == 0;
        if (away <= 0 || away > nearest || (apart && meanwhile)) continue;
        const bool next = found != DH_NONE && away == nearest &&
                          (p->flats.at[f].first_block > p->flats.at[found].first_block) == behind;
        if (next) continue;
        found = f;
        nearest = away;
    }
    return found == DH_NONE ? 0 : unreduced_bytes(p, found);
}

/* Whole gradients of the largest virtual stage and one bucket of a neighbour: the last of the stage
 * before it in the backward. Where reductions wait for a transfer it may be the first of the stage
 * after it. Shards come as activations go. */
static void sum_by_stage(const dh_program *p, const dh_recipe *r, const int64_t *layers,
                         tune_outline *o)
{
    for (uint32_t f = 0; f < p->flats.n; f++) {
        const int64_t own = stage_of(p, r, layers, f);
        uint64_t sum = neighbour_of(p, r, layers, own, true);
        if (r->schedule->n_ranks > 1) sum = DH_MAX(sum, neighbour_of(p, r, layers, own, false));
        for (uint32_t g = 0; g < p->flats.n; g++)
            sum += stage_of(p, r, layers, g) == own ? unreduced_bytes(p, g) : 0;
        o->transient = DH_MAX(o->transient, sum);
    }
}

/* Whole gradients that do not persist. If they go during the only backward, two successive buckets
 * exist at once, and shards come as activations go. Else all exist, and shards come as they go. The
 * head makes its own in the forward, while the parameters that it reads are whole. */
static void sum_transient(const dh_program *p, const dh_recipe *r, const int64_t *layers,
                          bool stays, tune_outline *o)
{
    uint64_t whole = 0, two = 0, shards = 0;
    bool go = false;
    if (reduces_each(p)) {
        sum_by_micro(p, o);
        return;
    }
    if (goes_by_stage(p, r->schedule)) {
        sum_by_stage(p, r, layers, o);
        return;
    }
    for (uint32_t f = 0; f < p->flats.n; f++) {
        const uint32_t before = p->flats.at[f].frees;
        const uint64_t own = unreduced_bytes(p, f);
        whole += own;
        two = DH_MAX(two, own + (before == DH_NONE ? 0 : unreduced_bytes(p, before)));
        shards += own > 0 ? p->flats.at[f].reduced.n_bytes : 0;
        go |= before != DH_NONE;
    }
    const uint64_t more = o->gathered_forward - DH_MIN(o->gathered_forward, o->gathered);
    /* The last bucket is reduced, and the next one's gradients come, when its parameters have
     * gone. */
    if (stays && p->flats.n > 0)
        two -= DH_MIN(two, (uint64_t)p->flats.at[0].n_matrix * dh_dtype_bytes(p->dtype));
    go &= p->n_micro == 1;
    o->transient = go ? DH_MAX(two, unreduced_bytes(p, 0) + more) : whole + more;
    o->reduced = go ? shards : 0;
}

/* A system that keeps shards, or half precision, has fewer bytes, and of shards one bucket whole
 * (system_memory.c). */
static void sum_gradients(const dh_program *p, const dh_system *system, tune_outline *o)
{
    double bytes = 0, whole = 0;
    uint64_t ours = 0;
    for (size_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        if (b->kind != DH_BUF_GRAD) continue;
        const double own = dh_system_gradient_bytes(system, p, b);
        bytes += own;
        ours += b->n_bytes;
        if (own < (double)b->n_bytes) whole = DH_MAX(whole, (double)b->n_bytes);
    }
    if (dh_system_has(system, DH_TRAIT_SHARDED_GRADIENTS)) bytes += whole;
    o->gradients = (uint64_t)bytes;
    o->persistent -= ours - DH_MIN(ours, o->gradients);
}

static void sum_persistent(const dh_program *p, const dh_recipe *r, const int64_t *layers,
                           const dh_system *system, tune_outline *o)
{
    for (size_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        if (b->kind == DH_BUF_MASTER || b->kind == DH_BUF_COPY) o->parameters += b->n_bytes;
        if (b->kind == DH_BUF_ADAM_M || b->kind == DH_BUF_ADAM_V) o->optimizer += b->n_bytes;
    }
    o->kept = dh_program_kept_bytes(p);
    sum_transient(p, r, layers, r->sharing.parameters && r->sharing.reshard == DH_GATHERED_WHOLE,
                  o);
    o->parameters += o->gathered;
    o->persistent = p->persistent_bytes + o->gathered;
    sum_gradients(p, system, o);
}

/* ---- parameters stored as shards ------------------------------------------------------------- */

/* A block that gathers, or keeps a share of what was. */
typedef struct gathering {
    double ns;
    uint64_t bytes; /* that it leaves */
    dh_phase phase;
    bool shares, from_shares; /* it keeps them; it gathers them */
} gathering;

static bool find_gathering(const dh_program *p, uint32_t block, const dh_costs *costs, gathering *g)
{
    const dh_graph *graph = p->graphs.at[p->blocks.at[block].graph];
    if (graph->kind != DH_BLOCK_GATHER || graph->x_out == DH_NONE) return false;
    *g = (gathering){.bytes = (uint64_t)dh_tensor_bytes(&graph->tensors.at[graph->x_out]),
                     .phase = graph->ops.at[0].phase,
                     .shares = graph->ops.at[0].type == DH_OP_COPY};
    g->from_shares = !g->shares && graph->x_in != DH_NONE;
    for (size_t i = 0; i < graph->ops.n; i++) {
        const dh_cost_op at = {graph, &graph->ops.at[i], &p->mesh, p->rank};
        if (at.op->type == DH_OP_ALL_GATHER)
            g->ns += costs->solo(costs->self, &at).ns + costs->launch_ns + costs->event_ns;
    }
    return true;
}

/* Blocks of a virtual stage, which are whole at once where its micro-batches follow each other; 0:
 * they are released one by one. */
static int64_t blocks_that_stay(const dh_program *p, const dh_recipe *r)
{
    int64_t n_blocks = 0;
    if (r->sharing.regather != DH_REGATHER_STAGE) return 0;
    for (uint32_t b = 0; b < p->blocks.n; b++) {
        const dh_block_kind kind = p->graphs.at[p->blocks.at[b].graph]->kind;
        n_blocks += kind == DH_BLOCK_LAYER || kind == DH_BLOCK_EMBED || kind == DH_BLOCK_HEAD;
    }
    const int64_t n_own = r->schedule->n_copies * r->schedule->n_stages / r->schedule->n_ranks;
    return (n_blocks + n_own - 1) / n_own;
}

/* Most bytes of `window` neighbours that are whole in a backward, and those at the end of a
 * forward: that is when most else is there. */
static void find_whole(const dh_program *p, const dh_recipe *r, uint64_t *backward,
                       uint64_t *forward)
{
    const int64_t window = DH_MAX(r->sharing.prefetch + 1, blocks_that_stay(p, r));
    *backward = *forward = 0;
    for (uint32_t b = 0; b < p->blocks.n; b++) {
        uint64_t sum[2] = {0, 0};
        int64_t n[2] = {0, 0};
        for (uint32_t k = b; k < p->blocks.n; k++) {
            gathering g;
            if (!find_gathering(p, k, r->costs, &g) || g.shares || g.from_shares) continue;
            const bool first = g.phase == DH_PHASE_F;
            if (n[first]++ < window) sum[first] += g.bytes;
        }
        *backward = DH_MAX(*backward, sum[0]);
        if (n[1] <= window) *forward = DH_MAX(*forward, sum[1]);
    }
}

/* ---- by block -------------------------------------------------------------------------------- */

/* Blocks of a rank's stages, one after another. */
static bool is_of_chain(const dh_program *p, uint32_t block)
{
    const dh_block_kind kind = p->graphs.at[p->blocks.at[block].graph]->kind;
    const bool of_stage = kind == DH_BLOCK_EMBED || kind == DH_BLOCK_LAYER || kind == DH_BLOCK_HEAD;
    return of_stage && !p->blocks.at[block].again;
}

/* The place of a block among them; of the first that is not before it. */
static size_t place_of(const dh_program *p, uint32_t block)
{
    size_t n = 0;
    for (uint32_t b = 0; b < block; b++) n += is_of_chain(p, b);
    return n;
}

/* A backward gathers shares where the forward keeps them, and nothing where all stays whole. */
static void sum_gathers(const dh_program *p, const dh_recipe *r, tune_outline *o)
{
    const bool stays = r->sharing.reshard == DH_GATHERED_WHOLE;
    uint64_t whole = 0, kept = 0;
    for (uint32_t b = 0; b < p->blocks.n; b++) {
        gathering g;
        if (!find_gathering(p, b, r->costs, &g)) continue;
        tune_exchange *at = &o->blocks[place_of(p, p->blocks.at[b].of)];
        const bool forward = g.phase == DH_PHASE_F;
        if (g.shares) kept += g.bytes;
        if (g.shares || (stays && !forward) || (forward && g.from_shares)) continue;
        if (forward) whole += g.bytes;
        if (g.from_shares && !at->near) at->backward_ns = 0; /* in place of gathers from all */
        at->near |= g.from_shares;
        *(forward ? &at->forward_ns : &at->backward_ns) += g.ns;
    }
    find_whole(p, r, &o->gathered, &o->gathered_forward);
    if (stays) o->gathered = o->gathered_forward = whole;
    o->gathered += kept;
    o->gathered_forward += kept;
}

typedef struct replayed {
    double stream_ns[DH_N_STREAM]; /* end of the last instruction */
    double *end_ns;                /* by instruction; reductions are done at 0 */
    double *first_gather_ns;       /* [n_first_gathers] */
    size_t n_first_gathers;
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

static void walk(const dh_program *p, const dh_costs *costs, replayed *r, tune_outline *o)
{
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const dh_instr *i = &p->instrs.at[id];
        const dh_op *op = dh_instr_op(p, i);
        const dh_cost_op at = {dh_instr_graph(p, i), op, &p->mesh, p->rank};
        const double ns = costs->solo(costs->self, &at).ns;
        if (op->phase == DH_PHASE_OPT) {
            const double end = run_instr(p, costs, id, ns, r);
            o->optimizer_ns = DH_MAX(o->optimizer_ns, end);
        } else if (dh_instr_graph(p, i)->kind == DH_BLOCK_GATHER) {
            r->first_gather_ns[r->n_first_gathers++] = ns + costs->launch_ns;
        } else {
            tune_exchange *own = &o->blocks[place_of(p, p->blocks.at[i->block].of)];
            own->reduce_ns += ns + costs->launch_ns;
            own->n_pieces++;
        }
    }
}

/* TUNING: hundreds of pieces one by one take 4 % of a search; in groups of neighbours the steps of
 * Llama 3 70B on 128 A100 are the same within .2 %. */
enum { MOST_PIECES = 64 };

static dh_status group_first(dh_ctx *ctx, dh_arena *arena, const replayed *r, tune_outline *o)
{
    const size_t n = r->n_first_gathers, in_one = DH_MAX((n + MOST_PIECES - 1) / MOST_PIECES, 1);
    o->n_first_gathers = (n + in_one - 1) / in_one;
    o->first_gather_ns = DH_NEW_N(arena, double, o->n_first_gathers + 1);
    if (!o->first_gather_ns) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) o->first_gather_ns[i / in_one] += r->first_gather_ns[i];
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
        if (at.op->phase == DH_PHASE_F && !forward) continue;
        const dh_op_rates rates = costs->beside(costs->self, &at, comm);
        const double ns = costs->solo(costs->self, &at).ns;
        alone += ns;
        beside += ns * stretch(rates.a);
        communicated += ns * stretch(rates.a) * DH_MAX(rates.b, 0.0);
    }
    if (alone <= 0) return (tune_speeds){1, 1};
    return (tune_speeds){alone / beside, communicated / beside};
}

/* The longest reduction: those of norms over tensor-parallel ranks stand before. op NULL: there is
 * none. */
static dh_cost_op longest_reduction(const dh_program *p, const dh_costs *costs)
{
    dh_cost_op longest = {.op = NULL};
    double longest_ns = -1;
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const dh_instr *i = &p->instrs.at[id];
        const dh_cost_op at = {dh_instr_graph(p, i), dh_instr_op(p, i), &p->mesh, p->rank};
        if (at.op->phase == DH_PHASE_OPT || i->stream == DH_STREAM_COMPUTE) continue;
        if (at.graph->kind == DH_BLOCK_GATHER) continue;
        const double ns = costs->solo(costs->self, &at).ns;
        if (ns <= longest_ns) continue;
        longest = at;
        longest_ns = ns;
    }
    return longest;
}

/* The rank's first layer; DH_NONE: it has none. */
static uint32_t layer_block(const dh_program *p)
{
    for (uint32_t b = 0; b < p->blocks.n; b++)
        if (p->graphs.at[p->blocks.at[b].graph] == layer_of(p)) return b;
    return DH_NONE;
}

static dh_status build_layer(dh_ctx *ctx, const dh_program_spec *spec, const dh_program *p,
                             dh_recompute_kind kind, dh_graph **layer)
{
    const dh_coord at = dh_mesh_coord(&p->mesh, p->rank);
    const dh_shard shard = {.tp = p->mesh.tp,
                            .tp_rank = at.tp,
                            .ep = p->mesh.ep,
                            .ep_rank = at.ep,
                            .whole_experts = p->mesh.whole_experts};
    dh_program_spec again = *spec;
    again.recipe.recompute = kind;
    return plan_build_graph(ctx, &again, DH_BLOCK_LAYER, p->blocks.at[layer_block(p)].layer, shard,
                            at.cp, layer);
}

/* How fast a transfer between stages is beside a reduction. */
static dh_status find_link(dh_ctx *ctx, const dh_recipe *r, const dh_program *p,
                           const dh_cost_op *reduction, tune_outline *o)
{
    dh_graph *g;
    o->transfer_speed = 1;
    if (p->mesh.pp == 1 || !reduction->op) return DH_OK;
    DH_TRY(dh_graph_build_link(ctx, true, DH_GROUP_PP, dh_recipe_stream_rows(r), r->model.width,
                               r->dtype, 0, &g));
    const dh_cost_op transfer = {g, &g->ops.at[0], &p->mesh, p->rank};
    o->transfer_speed = r->costs->beside(r->costs->self, &transfer, reduction).a;
    dh_graph_destroy(g);
    return DH_OK;
}

/* Beside the backward of a layer, by what that computes again. */
static dh_status find_slow_down(dh_ctx *ctx, const dh_program_spec *spec, const dh_program *p,
                                unsigned kinds, tune_outline *o)
{
    const dh_costs *costs = spec->recipe.costs;
    const dh_cost_op reduction = longest_reduction(p, costs);
    DH_TRY(find_link(ctx, &spec->recipe, p, &reduction, o));
    for (int k = 0; k < TUNE_N_RECOMPUTE_KINDS; k++) {
        dh_graph *layer = NULL;
        o->speeds[k] = (tune_speeds){1, 1};
        if (!(kinds >> k & 1) || !reduction.op || layer_block(p) == DH_NONE) continue;
        DH_TRY(build_layer(ctx, spec, p, (dh_recompute_kind)k, &layer));
        o->speeds[k] = tune_speeds_beside(costs, layer, false, &reduction);
        dh_graph_destroy(layer);
    }
    return DH_OK;
}

dh_status tune_outline_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                            const dh_system *system, unsigned kinds, tune_outline **outline)
{
    dh_program_spec own = *spec;
    const int32_t n_stages = own.recipe.schedule->n_stages;
    int64_t *layers = calloc((size_t)n_stages, sizeof *layers);
    dh_program *p;
    own.outline = own.unplaced = true;
    dh_status st = layers ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK)
        st = dh_layer_split(ctx, own.recipe.model.n_layers, n_stages,
                            own.recipe.layer_split ? own.recipe.layer_split : "", layers);
    if (st == DH_OK) st = dh_program_build(ctx, &own, &p);
    if (st != DH_OK) {
        free(layers);
        return st;
    }
    const size_t n_blocks = place_of(p, (uint32_t)p->blocks.n);
    tune_outline *o = DH_NEW(arena, tune_outline);
    tune_exchange *blocks = DH_NEW_N(arena, tune_exchange, n_blocks + 1);
    replayed r = {.end_ns = calloc(p->instrs.n + 1, sizeof *r.end_ns),
                  .first_gather_ns = calloc(p->instrs.n + 1, sizeof *r.first_gather_ns)};
    const bool ok = o && blocks && r.end_ns && r.first_gather_ns;
    st = ok ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        o->blocks = blocks;
        walk(p, spec->recipe.costs, &r, o);
        for (size_t b = 0; b < n_blocks; b++)
            blocks[b].n_pieces =
                DH_MIN(blocks[b].n_pieces, (int32_t)DH_MAX(MOST_PIECES / n_blocks, 1));
        st = group_first(ctx, arena, &r, o);
    }
    if (st == DH_OK) st = find_slow_down(ctx, &own, p, kinds, o);
    if (st == DH_OK) {
        sum_gathers(p, &spec->recipe, o);
        sum_persistent(p, &spec->recipe, layers, system, o);
        *outline = o;
    }
    free(r.end_ns);
    free(r.first_gather_ns);
    free(layers);
    dh_program_destroy(p);
    return st;
}
