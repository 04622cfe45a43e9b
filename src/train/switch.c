/* Sessions over several meshes (switch.h). */
#include "train/switch_legs.h"

#include <stdlib.h>
#include <string.h>

#include "program/ranks.h"

/* Bytes of this rank's slab. Without overlap places are one, and nothing is kept for others:
 *
 *   | home | place 0 | place 1 | messages | what passes use |
 */
typedef struct places {
    uint64_t home, second;  /* where the first and the second place begin */
    uint64_t moves, passes; /* where scratch of moves, of passes may begin; 0: behind their own */
} places;

/* ---- recipes --------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* Chunks of the model on the same stages. Without a schedule: one chunk a stage, in order. */
static bool same_places(const dh_recipe *a, const dh_recipe *b)
{
    const int32_t pp = (int32_t)a->mesh.pp;
    const int32_t n = a->schedule ? a->schedule->n_stages : pp;
    if (n != (b->schedule ? b->schedule->n_stages : pp)) return false;
    for (int32_t i = 0; i < n; i++)
        if ((a->schedule ? a->schedule->rank_of[i] : i) !=
            (b->schedule ? b->schedule->rank_of[i] : i))
            return false;
    return true;
}

bool dh_recipes_lie_alike(const dh_recipe *a, const dh_recipe *b)
{
    return dh_mesh_equal(&a->mesh, &b->mesh) && a->dtype == b->dtype &&
           dh_sharing_zero(&a->sharing) == dh_sharing_zero(&b->sharing) &&
           a->bucket_bytes == b->bucket_bytes && same_text(a->layer_split, b->layer_split) &&
           same_places(a, b);
}

/* ---- programs -------------------------------------------------------------------------------- */

static dh_program_spec pass_spec(const dh_session_spec *spec, const switch_group *g, int64_t rank,
                                 const places *at, int adds, int goes_on)
{
    dh_program_spec p = {.recipe = g->recipe,
                         .mode = DH_MODE_TRAIN,
                         .rank = rank,
                         .part = DH_PART_GRADS,
                         .adds = adds != 0,
                         .goes_on = goes_on != 0,
                         .lean = !g->at_home,
                         .keep_bytes = at->passes,
                         .places = spec->places,
                         .base = g->at_home ? 0
                                 : g->place ? at->second
                                            : at->home};
    p.recipe.backend = &spec->device->info;
    return p;
}

static dh_status verified(dh_ctx *ctx, dh_program *program, switch_leg *l)
{
    l->program = program;
    return dh_program_verify(ctx, program);
}

static dh_status build_passes(dh_ctx *ctx, const dh_session_spec *spec, const places *at,
                              switch_group *g)
{
    for (int k = 0; k < 4; k++) {
        const dh_program_spec own = pass_spec(spec, g, spec->rank, at, k / 2, k % 2);
        dh_program *p;
        DH_TRY(dh_program_build(ctx, &own, &p));
        DH_TRY(verified(ctx, p, &g->pass[k / 2][k % 2]));
    }
    return DH_OK;
}

/* TUNING: not measured. Bytes of a move that a rank sends or takes at once, if messages have memory
 * in addition to all data of the passes. This is about half a layer of a model of 7B parameters in
 * bf16, or more. */
#define BESIDE_CHUNK_BYTES (INT64_C(256) << 20)

dh_status dh_switch_plan(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool back,
                         bool beside, uint64_t gap, dh_reshard *r)
{
    const dh_layout at = {.recipe = home, .part = DH_PART_UPDATE};
    const dh_layout from = {
        .recipe = away, .base = DH_LAYOUT_BEHIND, .gap = gap, .part = DH_PART_GRADS, .lean = true};
    dh_status st = dh_reshard_open(ctx, back ? &from : &at, back ? &at : &from,
                                   back ? DH_RESHARD_GRADS : DH_RESHARD_PARAMS, r);
    if (st == DH_OK)
        st = dh_reshard_plan(ctx, r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES,
                             beside ? BESIDE_CHUNK_BYTES : 0, NULL);
    if (st != DH_OK) dh_reshard_fini(r);
    r->beside = beside;
    return st;
}

static dh_status plan_move(dh_ctx *ctx, const dh_session_spec *spec, const switch_group *g,
                           bool back, const places *at, dh_reshard *r)
{
    return dh_switch_plan(ctx, &spec->recipe, &g->recipe, back, spec->overlaps,
                          g->place ? at->second - at->home : 0, r);
}

static dh_status build_move(dh_ctx *ctx, const dh_session_spec *spec, const places *at,
                            dh_reshard *r, bool adds, switch_leg *l)
{
    dh_reshard_sum sum;
    dh_program *p;
    r->adds = adds;
    DH_TRY(dh_reshard_sum_up(ctx, r, DH_RESHARD_EVEN_WIRES, &sum));
    l->wire_bytes = sum.local_bytes + sum.cross_bytes;
    DH_TRY(dh_reshard_program(ctx, r, spec->rank, at->moves, &spec->device->info, &p));
    return verified(ctx, p, l);
}

static dh_status build_moves(dh_ctx *ctx, const dh_session_spec *spec, const places *at,
                             switch_group *g)
{
    dh_reshard r;
    DH_TRY(plan_move(ctx, spec, g, false, at, &r));
    dh_status st = build_move(ctx, spec, at, &r, false, &g->params);
    dh_reshard_fini(&r);
    DH_TRY(st);
    DH_TRY(plan_move(ctx, spec, g, true, at, &r));
    for (int adds = 0; st == DH_OK && adds < 2; adds++)
        st = build_move(ctx, spec, at, &r, adds != 0, &g->grads[adds]);
    dh_reshard_fini(&r);
    return st;
}

/* ---- life ------------------------------------------------------------------------------------ */

enum { N_PASS_LEGS = 4, N_LEGS = 7 };

/* A group's programs: those of a pass, then moves. */
static switch_leg *leg_at(switch_group *g, int k)
{
    if (k < N_PASS_LEGS) return &g->pass[k / 2][k % 2];
    return k == N_PASS_LEGS ? &g->params : &g->grads[k - N_PASS_LEGS - 1];
}

size_t dh_switch_n_programs(const dh_switch *s)
{
    return s ? s->n * N_LEGS : 0;
}

const dh_program *dh_switch_program(const dh_switch *s, size_t k)
{
    return leg_at(&s->groups[k / N_LEGS], (int)(k % N_LEGS))->program;
}

/* Calls visit for every program that there is, in an order that all ranks share. */
static dh_status each_leg(dh_ctx *ctx, dh_switch *s,
                          dh_status (*visit)(dh_ctx *ctx, switch_leg *l, void *user), void *user)
{
    for (size_t i = 0; i < s->n; i++)
        for (int k = 0; k < N_LEGS; k++) {
            switch_leg *l = leg_at(&s->groups[i], k);
            if (l->program) DH_TRY(visit(ctx, l, user));
        }
    return DH_OK;
}

static dh_status widen_slab(dh_ctx *ctx, switch_leg *l, void *user)
{
    uint64_t *slab_bytes = user;
    *slab_bytes = DH_MAX(*slab_bytes, l->program->slab_bytes);
    return DH_OK;
}

static dh_status verify_moves_beside(dh_ctx *ctx, const switch_group *away, switch_group *passes)
{
    const switch_leg *const moves[] = {&away->params, &away->grads[0], &away->grads[1]};
    for (int m = 0; m < 3; m++)
        for (int k = 0; k < N_PASS_LEGS && dh_switch_is_beside(away, passes, m > 0); k++)
            DH_TRY(dh_programs_beside(ctx, moves[m]->program, leg_at(passes, k)->program));
    return DH_OK;
}

static dh_status verify_beside(dh_ctx *ctx, dh_switch *s)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->n; k++)
            DH_TRY(verify_moves_beside(ctx, &s->groups[i], &s->groups[k]));
    return DH_OK;
}

/* Whether a group's layout is the home, and its place where it is not. */
static void place_groups(const dh_session_spec *spec, switch_group *groups)
{
    int n_away = 0;
    for (size_t i = 0; i < spec->n_groups; i++) {
        switch_group *g = &groups[i];
        g->recipe = spec->groups[i];
        g->at_home = dh_recipes_lie_alike(&g->recipe, &spec->recipe);
        if (!g->at_home) g->place = spec->overlaps ? n_away++ % 2 : 0;
    }
}

/* Bytes of a group's layout on this rank. */
static dh_status layout_bytes(dh_ctx *ctx, const dh_session_spec *spec, const switch_group *g,
                              uint64_t *n_bytes)
{
    const places at_0 = {0};
    dh_program_spec outline = pass_spec(spec, g, spec->rank, &at_0, 0, 0);
    dh_program *p;
    outline.unplaced = outline.outline = true;
    DH_TRY(dh_program_build(ctx, &outline, &p));
    *n_bytes = p->persistent_bytes;
    dh_program_destroy(p);
    return DH_OK;
}

/* Where messages may lie: behind both places. */
static dh_status find_places(dh_ctx *ctx, const dh_session_spec *spec, const switch_group *groups,
                             places *at)
{
    uint64_t most[2] = {0};
    for (size_t i = 0; spec->overlaps && i < spec->n_groups; i++) {
        uint64_t n_bytes;
        if (groups[i].at_home) continue;
        DH_TRY(layout_bytes(ctx, spec, &groups[i], &n_bytes));
        most[groups[i].place] = DH_MAX(most[groups[i].place], n_bytes);
    }
    at->second = at->home + most[0];
    at->moves = at->second + most[1];
    if (!spec->overlaps) at->moves = 0;
    return DH_OK;
}

static dh_status build_groups(dh_ctx *ctx, const dh_session_spec *spec, const dh_program *home,
                              dh_switch *s)
{
    places at = {.home = home->persistent_bytes};
    place_groups(spec, s->groups);
    DH_TRY(find_places(ctx, spec, s->groups, &at));
    for (size_t i = 0; i < s->n; i++)
        if (!s->groups[i].at_home) DH_TRY(build_moves(ctx, spec, &at, &s->groups[i]));
    if (spec->overlaps) DH_TRY(each_leg(ctx, s, widen_slab, &at.passes));
    for (size_t i = 0; i < s->n; i++) {
        const switch_group *g = &s->groups[i];
        DH_TRY(build_passes(ctx, spec, &at, &s->groups[i]));
        DH_CHECK(!g->at_home || g->pass[0][0].program->persistent_bytes ==
                                    DH_MAX(home->persistent_bytes, at.passes),
                 "layouts that are alike take the same bytes");
    }
    return spec->overlaps ? verify_beside(ctx, s) : DH_OK;
}

dh_status dh_switch_create(dh_ctx *ctx, const dh_session_spec *spec, const dh_program *home,
                           uint64_t *slab_bytes, dh_switch **made)
{
    dh_switch *s = calloc(1, sizeof *s);
    if (s) s->groups = calloc(spec->n_groups, sizeof *s->groups);
    if (!s || !s->groups) {
        free(s);
        return dh_no_memory(ctx);
    }
    s->n = spec->n_groups;
    dh_status st = build_groups(ctx, spec, home, s);
    if (st == DH_OK) st = each_leg(ctx, s, widen_slab, slab_bytes);
    if (st != DH_OK) {
        dh_switch_destroy(s);
        return st;
    }
    *made = s;
    return DH_OK;
}

static dh_status prepare_leg(dh_ctx *ctx, switch_leg *l, void *user)
{
    const dh_switch *s = user;
    return dh_exec_create(ctx, s->device, l->program, s->slab, s->comm, &l->exec);
}

dh_status dh_switch_prepare(dh_ctx *ctx, dh_switch *s, const dh_session_spec *spec, dh_slab *slab)
{
    bool away = false;
    s->device = spec->device;
    s->slab = slab;
    s->comm = spec->comm;
    for (size_t i = 0; i < s->n; i++) away |= !s->groups[i].at_home;
    DH_TRY(each_leg(ctx, s, prepare_leg, s));
    const dh_mover_spec mover = {
        .device = spec->device,
        .local_rank = spec->local_rank,
        .n_local_ranks = spec->n_local_ranks,
        .log_rank = spec->recipe.mesh.ranks > 1 ? (int)spec->rank : -1,
    };
    return spec->overlaps && away ? dh_mover_create(ctx, &mover, &s->mover) : DH_OK;
}

static dh_status destroy_leg(dh_ctx *ctx, switch_leg *l, void *user)
{
    dh_exec_destroy(l->exec);
    dh_program_destroy(l->program);
    return DH_OK;
}

void dh_switch_destroy(dh_switch *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (!s) return;
    dh_mover_destroy(s->mover);
    (void)each_leg(&ctx, s, destroy_leg, NULL);
    free(s->groups);
    free(s);
}

/* ---- verifying ------------------------------------------------------------------------------- */

static dh_status verify_move(dh_ctx *ctx, const dh_session_spec *spec, dh_reshard *r)
{
    dh_program **programs = calloc((size_t)r->n_ranks, sizeof(dh_program *));
    dh_status st = programs ? DH_OK : dh_no_memory(ctx);
    for (int64_t i = 0; st == DH_OK && i < r->n_ranks; i++)
        st = dh_reshard_program(ctx, r, i, 0, &spec->device->info, &programs[i]);
    if (st == DH_OK)
        st = dh_programs_verify(ctx, (const dh_program *const *)programs, (size_t)r->n_ranks);
    for (int64_t i = 0; programs && i < r->n_ranks; i++) dh_program_destroy(programs[i]);
    free(programs);
    return st;
}

static dh_status verify_group(dh_ctx *ctx, const dh_session_spec *spec, const switch_group *g)
{
    const places anywhere = {0};
    for (int k = 0; k < N_PASS_LEGS; k++) {
        const dh_program_spec pass = pass_spec(spec, g, 0, &anywhere, k / 2, k % 2);
        DH_TRY(dh_mesh_verify(ctx, &pass, NULL));
    }
    for (int back = 0; back < 2 && !g->at_home; back++) {
        dh_reshard r;
        DH_TRY(plan_move(ctx, spec, g, back != 0, &anywhere, &r));
        r.adds = back != 0;
        const dh_status st = verify_move(ctx, spec, &r);
        dh_reshard_fini(&r);
        DH_TRY(st);
    }
    return DH_OK;
}

dh_status dh_switch_verify_mesh(dh_ctx *ctx, const dh_session_spec *spec)
{
    for (size_t i = 0; i < spec->n_groups; i++) {
        switch_group g = {.recipe = spec->groups[i]};
        g.at_home = dh_recipes_lie_alike(&g.recipe, &spec->recipe);
        DH_TRY(verify_group(ctx, spec, &g));
    }
    return DH_OK;
}
