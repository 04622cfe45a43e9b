/* Building the program of one rank. It finds the rank's blocks, then lowers the events of the step
 * (plan/step_events.h) one after another. A slot becomes the operators of its blocks, a transfer
 * those of its link. Reductions and the optimizer follow in their places. The events and their
 * order are decided there. The operators of each event are decided here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "program/build.h"
#include "program/program_spec.h"

static const dh_mesh *mesh_of(const plan *b)
{
    return &b->spec->recipe.mesh;
}

/* ---- graphs ------------------------------------------------------------------------------- */

dh_graph_spec dh_program_graph_spec(const dh_program_spec *spec)
{
    dh_graph_spec graphs = dh_recipe_graphs(&spec->recipe);
    graphs.build.mode = spec->mode;
    graphs.build.cache_len = spec->cache_len;
    return graphs;
}

dh_status plan_build_graph(dh_ctx *ctx, const dh_program_spec *s, dh_block_kind kind, int64_t layer,
                           dh_shard shard, int64_t cp_rank, dh_graph **graph)
{
    const dh_graph_rank rank = {.shard = shard, .cp_rank = cp_rank};
    dh_graph_spec spec = dh_program_graph_spec(s);
    spec.build.layer = layer;
    return dh_graph_make(ctx, &spec, kind, rank, NULL, graph);
}

static dh_status add_graph(dh_ctx *ctx, plan *b, dh_block_kind kind, int64_t layer, uint32_t *graph)
{
    if (*graph != DH_NONE) return DH_OK;
    dh_graph *g;
    DH_TRY(plan_build_graph(ctx, b->spec, kind, layer, dh_emit_shard(b->emitter),
                            dh_mesh_coord(mesh_of(b), b->spec->rank).cp, &g));
    return dh_emit_add_graph(ctx, b->emitter, g, graph);
}

static int link_index(dh_group_kind group)
{
    return group == DH_GROUP_PP ? 0 : 1 + (int)(group - DH_GROUP_PP_ODD);
}

static dh_status add_link_graph(dh_ctx *ctx, plan *b, bool send, dh_group_kind group, bool routers,
                                uint32_t *graph)
{
    if (*graph != DH_NONE) return DH_OK;
    const dh_recipe *r = &b->spec->recipe;
    dh_graph *g;
    DH_TRY(dh_graph_build_link(ctx, send, (int32_t)group, dh_recipe_stream_rows(r), r->model.width,
                               r->dtype, routers ? r->model.n_experts : 0, &g));
    return dh_emit_add_graph(ctx, b->emitter, g, graph);
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* Sums of routers travel between two stages once there is a router before them. */
static bool carries_routers(const plan *b, int32_t from, int32_t to)
{
    int64_t n_layers = 0;
    for (int32_t v = 0; v <= DH_MIN(from, to); v++) n_layers += b->layers[v];
    return b->spec->mode == DH_MODE_TRAIN &&
           dh_model_n_routed(&b->spec->recipe.model, n_layers) > 0;
}

static dh_status add_link(dh_ctx *ctx, plan *b, bool send, bool forward, const stage *from,
                          int32_t other_stage, uint32_t *link)
{
    *link = DH_NONE;
    if (other_stage < 0 || other_stage >= b->schedule->n_stages) return DH_OK;
    int32_t peer = b->schedule->rank_of[from->copy * b->schedule->n_stages + other_stage];
    if (peer == b->pipe_rank) return DH_OK;
    const bool routers = carries_routers(b, from->id, other_stage);
    dh_group_kind group =
        send ? dh_mesh_link(b->pipe_rank, peer) : dh_mesh_link(peer, b->pipe_rank);
    if (b->spec->recipe.one_link_stream) group = DH_GROUP_PP;
    const int way = link_index(group);
    uint32_t *graph = send ? &b->send_graph[routers][way] : &b->recv_graph[routers][way];
    DH_TRY(add_link_graph(ctx, b, send, group, routers, graph));
    DH_TRY(dh_emit_add_block(ctx, b->emitter, *graph, 0, link));
    dh_block *block = dh_emit_block(b->emitter, *link);
    block->peer = peer;
    block->tag = forward ? 0 : 1;
    return DH_OK;
}

static dh_status add_block_of(dh_ctx *ctx, plan *b, dh_block_kind kind, int layer, uint32_t *graphs,
                              uint32_t *id)
{
    uint32_t *graph = &graphs[dh_model_layer_kind(&b->spec->recipe.model, layer)];
    DH_TRY(add_graph(ctx, b, kind, layer, graph));
    return dh_emit_add_block(ctx, b->emitter, *graph, layer, id);
}

/* Its experts and adapters, which the layer looks up, come first. */
static dh_status add_layer(dh_ctx *ctx, plan *b, int layer, uint32_t *id)
{
    uint32_t before;
    const dh_model model = dh_model_of_layer(&b->spec->recipe.model, layer);
    if (model.n_experts > 0)
        DH_TRY(add_block_of(ctx, b, DH_BLOCK_EXPERTS, layer, b->experts_graphs, &before));
    if (model.lora.rank > 0)
        DH_TRY(add_block_of(ctx, b, DH_BLOCK_ADAPTERS, layer, b->adapters_graphs, &before));
    return add_block_of(ctx, b, DH_BLOCK_LAYER, layer, b->layer_graphs, id);
}

static dh_status add_chain(dh_ctx *ctx, plan *b, stage *s, int64_t first_layer)
{
    const bool first = s->id == 0, last = s->id == b->schedule->n_stages - 1;
    const int64_t n = b->layers[s->id];
    s->chain = malloc((size_t)(n + 2) * sizeof *s->chain);
    if (!s->chain) return dh_no_memory(ctx);
    if (first) {
        DH_TRY(add_graph(ctx, b, DH_BLOCK_EMBED, 0, &b->embed_graph));
        DH_TRY(dh_emit_add_block(ctx, b->emitter, b->embed_graph, 0, &s->chain[s->n_chain++]));
    }
    for (int64_t i = 0; i < n; i++)
        DH_TRY(add_layer(ctx, b, (int)(first_layer + i), &s->chain[s->n_chain++]));
    if (last) {
        DH_TRY(add_graph(ctx, b, DH_BLOCK_HEAD, 0, &b->head_graph));
        DH_TRY(dh_emit_add_block(ctx, b->emitter, b->head_graph, 0, &s->chain[s->n_chain++]));
    }
    DH_TRY(add_link(ctx, b, false, true, s, s->id - 1, &s->recv_forward));
    DH_TRY(add_link(ctx, b, true, true, s, s->id + 1, &s->send_forward));
    DH_TRY(add_link(ctx, b, false, false, s, s->id + 1, &s->recv_backward));
    return add_link(ctx, b, true, false, s, s->id - 1, &s->send_backward);
}

static dh_status add_stage(dh_ctx *ctx, plan *b, int32_t copy, int32_t id, int64_t first_layer)
{
    stage *s = &b->stages[b->n_stages];
    *s = (stage){.id = id, .copy = copy, .again = copy > 0 && plan_stage(b, 0, id)};
    b->n_stages++;
    dh_emit_again(b->emitter, s->again);
    DH_TRY(add_chain(ctx, b, s, first_layer));
    /* Between copies a slot would wait for gradients that the other one has not made yet. */
    const bool frees = s->send_backward == DH_NONE && !b->spec->probes && !plan_has_copies(b);
    DH_TRY(dh_reductions_plan(ctx, &b->reducer, s->chain, s->n_chain, frees));
    dh_emit_again(b->emitter, false);
    return DH_OK;
}

static dh_status add_stages(dh_ctx *ctx, plan *b)
{
    const dh_schedule *sch = b->schedule;
    b->layers = calloc((size_t)sch->n_stages + 1, sizeof *b->layers);
    b->stages = calloc((size_t)(sch->n_copies * sch->n_stages) + 1, sizeof *b->stages);
    if (!b->layers || !b->stages) return dh_no_memory(ctx);
    DH_TRY(dh_layer_split(ctx, b->spec->recipe.model.n_layers, sch->n_stages,
                          b->spec->recipe.layer_split ? b->spec->recipe.layer_split : "",
                          b->layers));
    uint32_t data = DH_NONE;
    DH_TRY(add_graph(ctx, b, DH_BLOCK_DATA, 0, &data));
    DH_TRY(dh_emit_add_block(ctx, b->emitter, data, 0, &b->data));
    int64_t first_layer = 0;
    for (int32_t v = 0; v < sch->n_stages; first_layer += b->layers[v++])
        for (int32_t copy = 0; copy < sch->n_copies; copy++)
            if (sch->rank_of[copy * sch->n_stages + v] == b->pipe_rank)
                DH_TRY(add_stage(ctx, b, copy, v, first_layer));
    dh_emit_match_copies(b->emitter);
    return DH_OK;
}

/* ---- events -------------------------------------------------------------------------------- */

static dh_status find_events(dh_ctx *ctx, plan *b)
{
    const dh_program_spec *s = b->spec;
    const bool train = s->mode == DH_MODE_TRAIN;
    const dh_step_spec step = {.schedule = b->schedule,
                               .sharing = s->recipe.sharing,
                               .rank = b->pipe_rank,
                               .trains = train,
                               .runs = s->part != DH_PART_UPDATE && !s->outline && !s->gathers,
                               .goes_on = s->goes_on,
                               .gathers = train || s->gathers,
                               .updates = train && s->part != DH_PART_GRADS,
                               .tied = s->recipe.model.tied_head,
                               .tied_apart = b->reducer.tied_apart && s->part != DH_PART_UPDATE &&
                                             !s->gathers};
    return dh_step_events_make(ctx, &step, &b->events);
}

static dh_status emit_transfer(dh_ctx *ctx, plan *b, const dh_step_event *e)
{
    const bool sends = e->rank == b->pipe_rank;
    const stage *s = plan_stage(b, e->copy, sends ? e->stage : e->stage + (e->forward ? 1 : -1));
    const uint32_t link = sends ? (e->forward ? s->send_forward : s->send_backward)
                                : (e->forward ? s->recv_forward : s->recv_backward);
    const uint32_t from = s->chain[e->forward ? s->n_chain - 1 : 0];
    if (sends) DH_TRY(dh_emit_bind(ctx, b->emitter, from, link, e->micro, e->forward));
    return dh_emit_phases(ctx, b->emitter, link, e->micro, DH_PHASES(DH_PHASE_F));
}

/* Sums of both ends of a tied embedding. */
static dh_status emit_ends(dh_ctx *ctx, plan *b, const dh_step_event *e)
{
    const stage *s = plan_first_copy(b, e->stage);
    for (size_t k = 0; k < s->n_chain; k++)
        if (dh_reductions_last(&b->reducer, s->chain[k]))
            DH_TRY(dh_reductions_emit(ctx, &b->reducer, s->chain[k], DH_SUMS_STEP, -1));
    return DH_OK;
}

/* Gathers and releases of a slot, and reductions during it, are among its operators. */
static dh_status emit_event(dh_ctx *ctx, plan *b, const dh_step_event *e)
{
    switch (e->kind) {
    case DH_STEP_GATHER:
        return e->slot < 0 ? dh_first_gathers_emit(ctx, &b->reducer) : DH_OK;
    case DH_STEP_SLOT:
        return plan_emit_slot(ctx, b, e);
    case DH_STEP_TRANSFER:
        return emit_transfer(ctx, b, e);
    case DH_STEP_REDUCE:
        return e->when == DH_REDUCE_AT_END ? emit_ends(ctx, b, e) : plan_emit_reduce(ctx, b, e);
    case DH_STEP_UPDATE:
        return dh_optimizer_emit(ctx, &b->reducer, &b->optimizer);
    default:
        return DH_OK;
    }
}

/* The reductions of the last micro-batch's backward, and nothing else. */
static dh_status emit_reductions(dh_ctx *ctx, plan *b)
{
    const dh_sums which = b->reducer.reduces_each ? DH_SUMS_LAST : DH_SUMS_STEP;
    const int32_t mb = b->reducer.reduces_each ? 0 : -1;
    for (size_t i = b->n_stages; i-- > 0;)
        for (size_t k = b->stages[i].n_chain; k-- > 0;)
            if (!b->stages[i].again && !dh_reductions_last(&b->reducer, b->stages[i].chain[k]))
                DH_TRY(dh_reductions_emit(ctx, &b->reducer, b->stages[i].chain[k], which, mb));
    return DH_OK;
}

/* After the last slot nothing is left of its reductions. */
static dh_status end_slots(dh_ctx *ctx, plan *b)
{
    DH_CHECK(b->behind.n == 0, "reductions of a slot wait for a transfer that there is not");
    if (b->spec->outline && b->spec->part != DH_PART_UPDATE) DH_TRY(emit_reductions(ctx, b));
    return plan_emit_settled(ctx, b);
}

/* A step is one program, and a program is held whole. One that will be far too long is foreseen
 * once the pipeline has been filled for a while; slots differ, so twice is far. */
static dh_status check_length(dh_ctx *ctx, const plan *b, size_t n_done, size_t n_events)
{
    enum { SEEN_ENOUGH = 1024 };
    const size_t n = dh_emitter_program(b->emitter)->instrs.n;
    const double whole = (double)n / (double)n_done * (double)n_events;
    if (n <= DH_MAX_INSTRS && (n_done < SEEN_ENOUGH || whole <= 2.0 * DH_MAX_INSTRS)) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "a step of %" PRId64 " micro-batches is a program of about %.3g instructions on "
                   "rank %" PRId64
                   "; it can have %.3g: take a larger train.micro_batch, more ranks "
                   "or a smaller train.batch",
                   b->spec->recipe.n_micro, whole, (int64_t)b->spec->rank, (double)DH_MAX_INSTRS);
}

static dh_status emit_events(dh_ctx *ctx, plan *b)
{
    const int32_t n = (int32_t)b->events.list.n;
    size_t n_timed = 0;
    for (int32_t i = 0; i < n; i++) {
        const dh_step_event *e = &b->events.list.at[i];
        if (i == b->events.end) DH_TRY(end_slots(ctx, b));
        DH_TRY(dh_heed_stop(ctx, "a program was built"));
        DH_TRY(emit_event(ctx, b, e));
        if (e->kind != DH_STEP_SLOT && e->kind != DH_STEP_TRANSFER) continue;
        DH_TRY(check_length(ctx, b, ++n_timed, (size_t)b->events.n_timed));
    }
    return b->events.end < n ? DH_OK : end_slots(ctx, b);
}

/* ---- entry --------------------------------------------------------------------------------- */

static dh_status name_result(dh_ctx *ctx, plan *b)
{
    dh_program *p = dh_emitter_program(b->emitter);
    const stage *last = plan_stage(b, 0, b->schedule->n_stages - 1);
    uint32_t head = last->chain[last->n_chain - 1];
    return dh_emit_operand(ctx, b->emitter, head, 0, p->graphs.at[p->blocks.at[head].graph]->x_out,
                           &p->result);
}

static dh_reducer reducer_of(const plan *b)
{
    const dh_schedule *s = b->schedule;
    bool apart = s->rank_of[0] != s->rank_of[s->n_stages - 1];
    /* Where copies lie in opposite directions either end has the other end of the other copy. */
    if (dh_schedule_copies_of(s) == DH_COPIES_MIRRORED) apart = false;
    return (dh_reducer){.emitter = b->emitter,
                        .spec = b->spec,
                        .tied_apart = b->spec->recipe.model.tied_head && apart &&
                                      b->spec->recipe.model.lora.rank == 0,
                        .reduces_each = b->spec->mode == DH_MODE_TRAIN &&
                                        dh_recipe_reduces_each(&b->spec->recipe)};
}

/* Of parts of a step gradients and moments have to be where the other parts expect them. */
static dh_status check_part(dh_ctx *ctx, const dh_program_spec *spec)
{
    const dh_recipe *r = &spec->recipe;
    if (spec->part == DH_PART_STEP) return DH_OK;
    if (r->sharing.gradients && spec->part != DH_PART_UPDATE)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.zero=%" PRId64 " on a mesh that computes gradients for another "
                       "mesh's optimizer: its shards would not outlive its program. Give 0 or 1; "
                       "2 and 3 are for a mesh that only runs the optimizer",
                       dh_sharing_zero(&r->sharing));
    if (r->sharing.gather == DH_GATHER_FORWARD)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.gather=forward where meshes are switched: parameters move right "
                       "after the optimizer, not in the next step. Give parallel.gather=optimizer");
    if (r->schedule && r->schedule->n_copies > 1)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "schedule %s trains two copies of the model, which cannot be switched "
                       "between meshes: give a schedule with one copy, such as 1f1b",
                       r->schedule->name);
    return DH_OK;
}

static dh_status build(dh_ctx *ctx, plan *b)
{
    b->reducer = reducer_of(b);
    DH_TRY(add_stages(ctx, b));
    DH_TRY(dh_emit_layout(ctx, b->emitter));
    for (size_t i = 0; i < b->n_stages; i++) DH_TRY(plan_add_gathers(ctx, b, &b->stages[i]));
    DH_TRY(find_events(ctx, b));
    DH_TRY(emit_events(ctx, b));
    if (b->spec->mode == DH_MODE_TRAIN && b->spec->probes) DH_TRY(plan_emit_probes(ctx, b));
    if (b->spec->mode == DH_MODE_DECODE) DH_TRY(name_result(ctx, b));
    dh_program *p = dh_emitter_program(b->emitter);
    p->persistent_bytes = DH_MAX(p->persistent_bytes, b->spec->keep_bytes);
    return dh_program_plan_memory(ctx, p, !b->spec->unplaced, b->spec->places);
}

static dh_status check_sizes(dh_ctx *ctx, const dh_recipe *recipe, const dh_schedule *s)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): given or made by now
    if (s->n_ranks != recipe->mesh.pp || s->n_micro != recipe->n_micro)
        return dh_fail(ctx, DH_EINVAL,
                       "schedule %s is for %d stages and %d micro-batches; the job has "
                       "parallel.pp=%" PRId64 " and %" PRId64 " micro-batches a step",
                       s->name, s->n_ranks, s->n_micro, recipe->mesh.pp, recipe->n_micro);
    return DH_OK;
}

dh_status plan_check_schedule(dh_ctx *ctx, const dh_recipe *recipe, const dh_schedule *s)
{
    DH_TRY(check_sizes(ctx, recipe, s));
    return plan_check_copies(ctx, recipe, s);
}

static dh_status default_schedule(dh_ctx *ctx, const dh_recipe *recipe, dh_schedule **schedule)
{
    const dh_schedule_row *row;
    const dh_schedule_spec want = {.n_ranks = (int32_t)recipe->mesh.pp,
                                   .n_micro = (int32_t)recipe->n_micro};
    DH_TRY(dh_schedule_find(ctx, "1f1b", &row));
    return dh_schedule_generate(ctx, row, &want, schedule);
}

/* Evaluation keeps the placement of training, since parameters lie where that put
 * them, and runs forwards alone, through the first copy of the model. */
static dh_status forward_only(dh_ctx *ctx, const dh_schedule *like, int32_t n_micro,
                              dh_schedule **schedule)
{
    const size_t n_places = (size_t)like->n_copies * (size_t)like->n_stages;
    dh_arena *arena = dh_arena_create();
    dh_schedule *s = arena ? DH_NEW(arena, dh_schedule) : NULL;
    if (s) {
        *s = *like;
        s->arena = arena;
        s->n_micro = n_micro;
        s->copy_of = DH_NEW_N(arena, int32_t, n_micro);
        s->first_slot = DH_NEW_N(arena, int32_t, like->n_ranks + 1);
        s->slots = DH_NEW_N(arena, dh_pipe_slot, like->n_stages * n_micro);
        s->rank_of = DH_NEW_N(arena, int32_t, n_places);
    }
    if (!s || !s->copy_of || !s->first_slot || !s->slots || !s->rank_of) {
        dh_arena_destroy(arena);
        return dh_no_memory(ctx);
    }
    memcpy(s->rank_of, like->rank_of, n_places * sizeof *s->rank_of);
    int32_t n = 0;
    for (int32_t r = 0; r < s->n_ranks; r++) {
        s->first_slot[r] = n;
        for (int32_t mb = 0; mb < n_micro; mb++)
            for (int32_t v = 0; v < s->n_stages; v++)
                if (s->rank_of[v] == r) s->slots[n++] = (dh_pipe_slot){1, {{DH_PIPE_F, v, mb}}};
    }
    s->first_slot[s->n_ranks] = n;
    *schedule = s;
    return DH_OK;
}

dh_status dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program)
{
    dh_program_spec whole = *spec;
    dh_recipe *r = &whole.recipe;
    dh_schedule *made = NULL;
    if (r->mesh.ranks == 0) DH_TRY(dh_mesh_init(ctx, 1, 1, 1, 1, 1, 1, 1, &r->mesh));
    if (whole.mode != DH_MODE_TRAIN) r->n_micro = 1;
    const int64_t chunks = dh_model_cp_chunks(&r->model);
    if (r->mesh.cp > 1 && r->seq % (chunks * r->mesh.cp))
        return dh_fail(ctx, DH_EINVAL,
                       "train.seq_len=%" PRId64 " does not divide by %sparallel.cp = %" PRId64,
                       r->seq, chunks > 1 ? "2 * " : "", chunks * r->mesh.cp);
    if (!r->schedule)
        DH_TRY(default_schedule(ctx, r, &made));
    else if (whole.mode != DH_MODE_TRAIN)
        DH_TRY(forward_only(ctx, r->schedule, (int32_t)r->n_micro, &made));
    if (made) r->schedule = made;
    plan b = {.spec = &whole, .schedule = r->schedule};
    b.pipe_rank = (int32_t)dh_mesh_coord(&r->mesh, whole.rank).pp;
    b.embed_graph = b.head_graph = DH_NONE;
    memset(b.layer_graphs, 0xff, sizeof b.layer_graphs);
    memset(b.experts_graphs, 0xff, sizeof b.experts_graphs);
    memset(b.adapters_graphs, 0xff, sizeof b.adapters_graphs);
    b.unsettled.place = DH_NONE;
    memset(b.send_graph, 0xff, sizeof b.send_graph);
    memset(b.recv_graph, 0xff, sizeof b.recv_graph);
    dh_status st = whole.mode == DH_MODE_TRAIN ? plan_check_schedule(ctx, r, r->schedule)
                                               : check_sizes(ctx, r, r->schedule);
    if (st == DH_OK) st = check_part(ctx, &whole);
    if (st == DH_OK) st = slot_maker_create(ctx, r, &b.slots);
    if (st == DH_OK) st = dh_emitter_create(ctx, &whole, &b.emitter);
    dh_program *p = NULL;
    if (st == DH_OK) {
        st = build(ctx, &b);
        p = dh_emitter_program(b.emitter);
        dh_emitter_destroy(b.emitter);
    }
    for (size_t i = 0; i < b.n_stages; i++) free(b.stages[i].chain);
    free(b.stages);
    free(b.layers);
    dh_step_events_fini(&b.events);
    dh_vec_fini(&b.behind);
    dh_vec_fini(&b.reducer.made);
    dh_vec_fini(&b.releases);
    slot_maker_destroy(b.slots);
    dh_schedule_destroy(made);
    if (st == DH_OK)
        *program = p;
    else
        dh_program_destroy(p);
    return st;
}
