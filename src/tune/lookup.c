/* Parts that configurations share, by their keys: schedules, graphs, their times, outlines. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program/build.h"
#include "program/rewrites.h"
#include "train/recipe.h"
#include "tune/estimate.h"

/* ---- keys ----------------------------------------------------------------------------------- */

/* Times by which a planned row is placed; zeros for other rows. */
typedef struct planned_key {
    int64_t f_ns, i_ns, w_ns, wgrad_permille;
} planned_key;

typedef struct timetable_key {
    int64_t row, n_ranks, n_micro, n_chunks, split;
    planned_key planned;
} timetable_key;

typedef struct blocks_key {
    uint64_t costs;
    int64_t tp, cp, ep, micro_batch, recompute, linear_ring, sequence, moe_dispatch, expert_rows;
    dh_pass_list passes; /* reduced: the same graphs have the same key */
} blocks_key;

typedef struct times_key {
    blocks_key blocks;
    uint64_t policy;
    int64_t barriers;
} times_key;

typedef struct outline_key {
    uint64_t costs;
    tune_counts kinds; /* layers */
    int64_t tp, cp, ep, dp, pp, n_layers, embed, head, apart, copies, middle, sequence, in_stages,
        by_costs, moe_dispatch, expert_rows;
    int64_t zero, bucket_bytes, fuse, ahead;
    int64_t virtual_stages; /* of a rank: buckets of gradients end with each */
    int64_t by_stage;       /* gradients, or parameters, are those of a virtual stage at a time */
    int64_t split;          /* of virtual stages; 0: there are none */
    int64_t many;           /* micro-batches (tune_outline_many) */
    int64_t one_micro, gradient_sync; /* whole gradients of a step last otherwise then */
    int64_t recompute, asked_whole;   /* they also decide who is the first to ask */
} outline_key;

/* All that a program around micro-batches is built from: outlines of recomputations that have the
 * same costs are of one. */
typedef struct program_key {
    outline_key outline;
    timetable_key schedule;
    int64_t rank, linear_ring;
} program_key;

/* ---- strategies ----------------------------------------------------------------------------- */

typedef struct decided_key {
    uint64_t costs, strategy;
    int64_t tp, cp, ep, micro_batch, recompute, linear_ring, sequence;
} decided_key;

dh_status tune_decide(estimate *e)
{
    dh_recipe *r = &e->spec.recipe;
    const decided_key key = {.costs = (uint64_t)(uintptr_t)r->costs,
                             .strategy = (uint64_t)(uintptr_t)r->strategy,
                             .tp = r->mesh.tp,
                             .cp = r->mesh.cp,
                             .ep = r->mesh.ep,
                             .micro_batch = r->micro_batch,
                             .recompute = r->recompute,
                             .linear_ring = r->linear_ring,
                             .sequence = r->sharing.sequence};
    void **place = dh_table_at(&e->t->decided, e->t->group, &key, sizeof key);
    if (!place) return dh_no_memory(e->ctx);
    if (!*place) {
        dh_decided d;
        dh_recipe *decided = DH_NEW(e->t->group, dh_recipe);
        if (!decided) return dh_no_memory(e->ctx);
        DH_TRY(dh_recipe_decide(e->ctx, e->t->group, r, DH_BY_TIME_ALONE, &d));
        *decided = *r;
        *place = decided;
    }
    const dh_recipe *as = *place;
    r->strategy = as->strategy;
    r->moe_dispatch = as->moe_dispatch;
    r->expert_rows = as->expert_rows;
    return DH_OK;
}

/* ---- schedules ------------------------------------------------------------------------------ */

/* TUNING: times in steps of a fiftieth of a forward, so that many configurations share a schedule;
 * its order, not its times, comes of them. */
enum { TIME_STEPS = 50 };

static int64_t coarse(double ns, double forward_ns)
{
    return forward_ns > 0 ? llround(ns / forward_ns * TIME_STEPS) : 0;
}

/* As dh_job_schedule has it, of a mean layer's times: those of all stages are alike enough. */
static planned_key plan_by(const estimate *e)
{
    const dh_job *job = e->t->job;
    double ns[TUNE_N_PHASE] = {0}, share = 0;
    if (!e->schedule->planned) return (planned_key){0};
    for (int k = 0; k < DH_N_LAYER_KINDS; k++) {
        const tune_block *b = &e->basis.blocks->at[TUNE_LAYER + k];
        const double part = e->basis.blocks->share[k];
        if (part > 0) share += part * dh_block_lives_wgrad_share(&b->lives);
        for (int p = 0; p < TUNE_N_PHASE; p++) {
            double own = b->compute_ns[p];
            for (int c = 0; c < TUNE_N_COMM; c++) own += b->comm_ns[p][c];
            ns[p] += part * own;
        }
    }
    if (job->wgrad_share > 0) share = job->wgrad_share;
    return (planned_key){.f_ns = TIME_STEPS,
                         .i_ns = coarse(ns[TUNE_B], ns[TUNE_F]),
                         .w_ns = coarse(ns[TUNE_W], ns[TUNE_F]),
                         .wgrad_permille =
                             DH_MAX(llround(share * TIME_STEPS) * 1000 / TIME_STEPS, 1)};
}

typedef struct making {
    estimate *e;
    const timetable_key *key;
} making;

static dh_status generate(const making *m, dh_schedule **schedule)
{
    const estimate *e = m->e;
    const planned_key *by = &m->key->planned;
    const dh_schedule_costs costs = {
        .every = {.f_ns = by->f_ns, .i_ns = by->i_ns, .w_ns = by->w_ns}};
    const dh_schedule_spec spec = {.n_ranks = (int32_t)m->key->n_ranks,
                                   .n_micro = (int32_t)m->key->n_micro,
                                   .n_chunks = (int32_t)m->key->n_chunks,
                                   .costs = e->schedule->planned ? &costs : NULL,
                                   .max_activations = (int32_t)e->t->job->max_activations,
                                   .wgrad_permille = (int32_t)by->wgrad_permille,
                                   .meet = true};
    return dh_schedule_generate(e->ctx, e->schedule, &spec, schedule);
}

static dh_status make_timetable(void *user, dh_arena *arena, tune_timetable **table)
{
    const making *m = user;
    dh_ctx *ctx = m->e->ctx;
    dh_recipe r = m->e->spec.recipe;
    dh_schedule *schedule;
    DH_TRY(generate(m, &schedule));
    r.n_micro = m->key->n_micro;
    int64_t *layers = calloc((size_t)schedule->n_stages, sizeof *layers);
    dh_status st = layers ? plan_check_schedule(ctx, &r, schedule) : dh_no_memory(ctx);
    if (st == DH_OK)
        st = dh_layer_split(ctx, r.model.n_layers, schedule->n_stages,
                            r.layer_split ? r.layer_split : "", layers);
    if (st == DH_OK) st = tune_timetable_make(ctx, arena, schedule, &r.model, layers, table);
    free(layers);
    if (st != DH_OK) dh_schedule_destroy(schedule);
    return st;
}

static timetable_key key_of_timetable(const estimate *e, int64_t n_micro)
{
    return (timetable_key){
        e->row->config.at[DH_TUNE_SCHEDULE], e->spec.recipe.mesh.pp,           n_micro,
        e->row->config.at[DH_TUNE_STAGES],   e->row->config.at[DH_TUNE_SPLIT], plan_by(e)};
}

static dh_status find_timetable(estimate *e, int64_t n_micro, const tune_timetable **table)
{
    const timetable_key key = key_of_timetable(e, n_micro);
    making m = {e, &key};
    return tune_shared_timetable(e->ctx, e->t->shared, &key, sizeof key, make_timetable, &m, table);
}

/* TUNING: the straight line through two timetables is off by less than 1 % for every row. One has
 * the micro-batches with which a row settles, mostly 2p, the other twice as many (tests/tune). */
dh_status tune_find_timetables(estimate *e)
{
    const int64_t p = DH_MAX(e->spec.recipe.mesh.pp, (int64_t)2);
    const dh_schedule_spec spec = {.n_ranks = (int32_t)e->spec.recipe.mesh.pp,
                                   .n_micro = (int32_t)e->spec.recipe.n_micro,
                                   .n_chunks = (int32_t)e->row->config.at[DH_TUNE_STAGES]};
    DH_TRY(dh_schedule_applicable(e->ctx, e->schedule, &spec));
    const int64_t settled = p * dh_schedule_settles(e->schedule);
    const bool whole = e->spec.recipe.n_micro <= 2 * settled;
    DH_TRY(find_timetable(e, whole ? e->spec.recipe.n_micro : 2 * settled, &e->long_one));
    e->short_one = e->long_one;
    return whole ? DH_OK : find_timetable(e, settled, &e->short_one);
}

/* ---- basis ---------------------------------------------------------------------------------- */

static blocks_key key_of_blocks(const estimate *e, dh_recompute_kind recompute)
{
    const dh_mesh *m = &e->spec.recipe.mesh;
    const dh_graph_spec graphs = dh_program_graph_spec(&e->spec);
    return (blocks_key){.costs = (uint64_t)(uintptr_t)e->spec.recipe.costs,
                        .tp = m->tp,
                        .cp = m->cp,
                        .ep = m->ep,
                        .micro_batch = e->spec.recipe.micro_batch,
                        .recompute = recompute,
                        .linear_ring = e->spec.recipe.linear_ring,
                        .sequence = e->spec.recipe.sharing.sequence,
                        .moe_dispatch = e->spec.recipe.moe_dispatch,
                        .expert_rows = e->spec.recipe.expert_rows,
                        .passes = dh_pass_list_reduced(&graphs, &graphs.passes)};
}

dh_status tune_find_blocks(estimate *e, dh_recompute_kind recompute, const tune_blocks **blocks)
{
    const blocks_key key = key_of_blocks(e, recompute);
    dh_program_spec spec = e->spec;
    spec.recipe.recompute = recompute;
    void **place = dh_table_at(&e->t->blocks, e->t->group, &key, sizeof key);
    if (!place) return dh_no_memory(e->ctx);
    if (!*place) {
        tune_blocks *made;
        const tune_blocks *plain = NULL;
        tune_system system;
        DH_TRY(tune_system_of(e->ctx, e->t, recompute, &system));
        if (recompute != DH_RECOMPUTE_KIND_NONE &&
            system.row.traits == 0) { /* may move the table */
            DH_TRY(tune_find_blocks(e, DH_RECOMPUTE_KIND_NONE, &plain));
            place = dh_table_at(&e->t->blocks, e->t->group, &key, sizeof key);
            if (!place) return dh_no_memory(e->ctx);
        }
        DH_TRY(tune_blocks_make(e->ctx, e->t->group, &spec, &system, plain, &made));
        *place = made;
        if (!dh_vec_push(&e->t->all_blocks, made)) {
            tune_blocks_fini(made);
            return dh_no_memory(e->ctx);
        }
    }
    *blocks = *place;
    return DH_OK;
}

dh_status tune_find_times(estimate *e, const tune_times **times)
{
    const bool split = e->schedule->split_backward, pairs = e->schedule->pairs;
    const tune_wants wants = {true, split, pairs, split && pairs};
    const times_key key = {.policy = (uint64_t)(uintptr_t)e->spec.recipe.ordering.policy,
                           .barriers = e->spec.recipe.ordering.options.barriers,
                           .blocks = key_of_blocks(e, e->spec.recipe.recompute)};
    void **place = dh_table_at(&e->t->times, e->t->group, &key, sizeof key);
    if (!place) return dh_no_memory(e->ctx);
    if (!*place) *place = DH_NEW(e->t->group, tune_times);
    if (!*place) return dh_no_memory(e->ctx);
    *times = *place;
    return tune_times_make(e->ctx, &e->spec, e->basis.blocks, wants, *place);
}

/* Layers and ends that a rank holds, over its virtual stages and all copies of the model. */
static tune_stage holding_of(const tune_timetable *t, int32_t rank)
{
    const dh_schedule *s = t->schedule;
    tune_stage all = {0};
    for (int32_t v = 0; v < s->n_copies * s->n_stages; v++) {
        const tune_stage *one = &t->types[t->type_of[v % s->n_stages]];
        if (s->rank_of[v] != rank) continue;
        all.n_layers += one->n_layers;
        for (int k = 0; k < DH_N_LAYER_KINDS; k++) all.kinds.of[k] += one->kinds.of[k];
        all.embed |= one->embed;
        all.head |= one->head;
    }
    return all;
}

/* With copies in opposite directions the middle stage's rank has both of its layers itself. */
static bool is_middle(const tune_timetable *t, int32_t rank)
{
    return dh_schedule_copies_of(t->schedule) == DH_COPIES_MIRRORED && 2 * rank == t->n_ranks - 1;
}

/* Embedding and head on different ranks, which matters where they are tied. */
static bool ends_apart(const tune_timetable *t)
{
    return t->schedule->rank_of[0] != t->schedule->rank_of[t->schedule->n_stages - 1];
}

/* Gathers of parameters stored as shards stand where the backward's operators read them; of what
 * steps in pieces, ahead, or with whole tokens each recomputation has its own too. */
static bool goes_by_recompute(const estimate *e)
{
    const dh_recipe *r = &e->spec.recipe;
    return r->sharing.parameters || r->fuse > 0 || r->post_validation ||
           r->sharing.sequence == DH_SEQUENCE_WHOLE;
}

/* Recomputations with the costs at hand: bits 1 << dh_recompute_kind. */
static dh_status kinds_alike(const estimate *e, unsigned *kinds)
{
    const tuner *t = e->t;
    const dh_recipe *r = &e->spec.recipe;
    *kinds = 1u << r->recompute;
    if (goes_by_recompute(e) || t->options->fixed >> DH_TUNE_RECOMPUTE & 1) return DH_OK;
    for (int i = 0; i < DH_N_TUNE_RECOMPUTE; i++) {
        tune_system system;
        if (t->costs_by[r->sharing.sequence][i] != r->costs) continue;
        DH_TRY(tune_system_of(e->ctx, t, i, &system));
        *kinds |= 1u << dh_recipe_recompute(&system.row, (dh_recompute_kind)i);
    }
    return DH_OK;
}

static dh_status build_outline(estimate *e, int64_t rank, tune_outline **outline)
{
    dh_program_spec spec = e->spec;
    tune_system system;
    unsigned kinds;
    DH_TRY(tune_system_of(e->ctx, e->t, DH_RECOMPUTE_NONE, &system));
    spec.recipe.schedule = e->long_one->schedule;
    spec.recipe.n_micro = spec.recipe.schedule->n_micro;
    spec.recipe.sharing.sequence = dh_recipe_sequence(&e->spec.recipe);
    spec.recipe.in_stages = dh_recipe_in_stages(&e->spec.recipe);
    spec.recipe.stages_by_costs = dh_recipe_stages_by_costs(&e->spec.recipe);
    DH_TRY(kinds_alike(e, &kinds));
    spec.recipe.strategy = NULL; /* else neither this nor the micro-batch makes a difference here */
    spec.recipe.micro_batch = 1;
    spec.rank = dh_mesh_rank(&e->spec.recipe.mesh, (dh_coord){.pp = rank});
    return tune_outline_make(e->ctx, e->t->arena, &spec, &system.row, kinds, outline);
}

static dh_status make_outline(estimate *e, const outline_key *of, int32_t rank,
                              tune_outline **outline)
{
    program_key key = {.outline = *of,
                       .schedule = key_of_timetable(e, e->long_one->schedule->n_micro),
                       .rank = rank,
                       .linear_ring = e->spec.recipe.linear_ring};
    if (!goes_by_recompute(e)) key.outline.recompute = 0;
    void **place = dh_table_at(&e->t->programs, e->t->arena, &key, sizeof key);
    tune_outline *own = DH_NEW(e->t->arena, tune_outline), *all = NULL;
    if (!place || !own) return dh_no_memory(e->ctx);
    if (!*place) {
        DH_TRY(build_outline(e, rank, &all));
        *place = all;
    }
    all = *place;
    *own = *all;
    own->backward_speed = all->speeds[e->spec.recipe.recompute].own;
    own->reduction_speed = all->speeds[e->spec.recipe.recompute].comm;
    *outline = own;
    return DH_OK;
}

static bool by_stage(const estimate *e)
{
    const dh_sharing *s = &e->spec.recipe.sharing;
    return (e->schedule->breadth_first && s->gradients) || s->regather == DH_REGATHER_STAGE;
}

/* Ranks that hold as many layers in as many virtual stages share an outline. */
static dh_status find_outline(estimate *e, int32_t rank, const tune_outline **outline)
{
    const dh_recipe *r = &e->spec.recipe;
    const dh_mesh *m = &r->mesh;
    const tune_stage holds = holding_of(e->long_one, rank);
    const dh_schedule *schedule = e->long_one->schedule;
    tune_system system;
    DH_TRY(tune_system_of(e->ctx, e->t, DH_RECOMPUTE_NONE, &system));
    const outline_key key = {
        .costs = (uint64_t)(uintptr_t)r->costs,
        .kinds = holds.kinds,
        .tp = m->tp,
        .cp = m->cp,
        .ep = m->ep,
        .dp = m->dp,
        .pp = m->pp,
        .n_layers = holds.n_layers,
        .embed = holds.embed,
        .head = holds.head,
        .apart = ends_apart(e->long_one),
        .copies = dh_schedule_copies_of(schedule),
        .middle = is_middle(e->long_one, rank),
        .sequence = dh_recipe_sequence(r),
        .zero = dh_sharing_zero(&r->sharing),
        .bucket_bytes = r->bucket_bytes,
        .fuse = r->fuse,
        .ahead = dh_recipe_is_post_validated(r),
        .by_stage = by_stage(e),
        .virtual_stages = schedule->n_stages / schedule->n_ranks,
        .split = schedule->n_stages > schedule->n_ranks ? 1 + e->row->config.at[DH_TUNE_SPLIT] : 0,
        .many = tune_outline_many(schedule),
        .one_micro = schedule->n_micro == 1,
        .gradient_sync = r->sharing.gradient_sync,
        .in_stages = dh_recipe_in_stages(r),
        .by_costs = dh_recipe_stages_by_costs(r),
        .moe_dispatch = r->moe_dispatch,
        .expert_rows = r->expert_rows,
        .recompute = e->t->options->cluster ? r->recompute : 0,
        .asked_whole = system.row.traits != 0 && r->sharing.sequence == DH_SEQUENCE_WHOLE};
    void **place = dh_table_at(&e->t->outlines, e->t->arena, &key, sizeof key);
    tune_outline *made = NULL;
    if (!place) return dh_no_memory(e->ctx);
    if (!*place) {
        DH_TRY(make_outline(e, &key, rank, &made));
        *place = made;
    }
    *outline = *place;
    return DH_OK;
}

dh_status tune_find_outlines(estimate *e)
{
    const int32_t *like = e->long_one->like;
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        if (like[r] < r && !is_middle(e->long_one, r))
            e->outlines[r] = e->outlines[like[r]];
        else
            DH_TRY(find_outline(e, r, &e->outlines[r]));
    }
    return DH_OK;
}
