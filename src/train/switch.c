/* Sessions over several meshes (switch.h). */
#include "train/switch.h"

#include <stdlib.h>
#include <string.h>

#include "program/ranks.h"

/* A program and what runs it. */
typedef struct leg {
    dh_program *program; /* NULL: there is none */
    dh_exec *exec;
    int64_t wire_bytes; /* of what moves between layouts: over wires, of all ranks */
} leg;

typedef struct group {
    dh_recipe recipe; /* of one pass */
    bool at_home;
    leg pass[2][2]; /* [adds][goes_on] */
    leg params;     /* away: from home to the group's layout */
    leg grads[2];   /* back, [adds] */
} group;

struct dh_switch {
    const dh_device *device;
    dh_slab *slab;
    dh_comm *comm;
    size_t n;
    group *groups;
};

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
    return dh_mesh_equal(&a->mesh, &b->mesh) && a->dtype == b->dtype && a->zero == b->zero &&
           a->bucket_bytes == b->bucket_bytes && same_text(a->layer_split, b->layer_split) &&
           same_places(a, b);
}

/* Every token's loss is counted by one rank: on the last stage, the first of its tensor-parallel
 * group. */
static bool counts_loss(const dh_recipe *r, int64_t rank)
{
    const dh_coord c = dh_mesh_coord(&r->mesh, rank);
    const int64_t last =
        r->schedule ? r->schedule->rank_of[r->schedule->n_stages - 1] : r->mesh.pp - 1;
    return c.pp == last && c.tp == 0;
}

/* ---- programs -------------------------------------------------------------------------------- */

static dh_program_spec pass_spec(const dh_session_spec *spec, const group *g, int64_t rank,
                                 uint64_t home_bytes, int adds, int goes_on)
{
    dh_program_spec p = {.recipe = g->recipe,
                         .mode = DH_MODE_TRAIN,
                         .rank = rank,
                         .part = DH_PART_GRADS,
                         .adds = adds != 0,
                         .goes_on = goes_on != 0,
                         .lean = !g->at_home,
                         .base = g->at_home ? 0 : home_bytes};
    p.recipe.backend = &spec->device->info;
    return p;
}

static dh_status verified(dh_ctx *ctx, dh_program *program, leg *l)
{
    l->program = program;
    return dh_program_verify(ctx, program);
}

static dh_status build_passes(dh_ctx *ctx, const dh_session_spec *spec, uint64_t home_bytes,
                              group *g)
{
    for (int k = 0; k < 4; k++) {
        const dh_program_spec own = pass_spec(spec, g, spec->rank, home_bytes, k / 2, k % 2);
        dh_program *p;
        DH_TRY(dh_program_build(ctx, &own, &p));
        DH_TRY(verified(ctx, p, &g->pass[k / 2][k % 2]));
    }
    return DH_OK;
}

dh_status dh_switch_plan(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool back,
                         dh_reshard *r)
{
    const dh_layout at = {.recipe = home, .part = DH_PART_UPDATE};
    const dh_layout from = {
        .recipe = away, .base = DH_LAYOUT_BEHIND, .part = DH_PART_GRADS, .lean = true};
    dh_status st = dh_reshard_open(ctx, back ? &from : &at, back ? &at : &from,
                                   back ? DH_RESHARD_GRADS : DH_RESHARD_PARAMS, r);
    if (st == DH_OK) st = dh_reshard_plan(ctx, r, DH_RESHARD_LEAST, DH_RESHARD_EVEN_WIRES, 0, NULL);
    if (st != DH_OK) dh_reshard_fini(r);
    return st;
}

static dh_status build_move(dh_ctx *ctx, const dh_session_spec *spec, dh_reshard *r, bool adds,
                            leg *l)
{
    dh_reshard_sum sum;
    dh_program *p;
    r->adds = adds;
    DH_TRY(dh_reshard_sum_up(ctx, r, DH_RESHARD_EVEN_WIRES, &sum));
    l->wire_bytes = sum.local_bytes + sum.cross_bytes;
    DH_TRY(dh_reshard_program(ctx, r, spec->rank, 0, &spec->device->info, &p));
    return verified(ctx, p, l);
}

static dh_status build_moves(dh_ctx *ctx, const dh_session_spec *spec, group *g)
{
    dh_reshard r;
    DH_TRY(dh_switch_plan(ctx, &spec->recipe, &g->recipe, false, &r));
    dh_status st = build_move(ctx, spec, &r, false, &g->params);
    dh_reshard_fini(&r);
    DH_TRY(st);
    DH_TRY(dh_switch_plan(ctx, &spec->recipe, &g->recipe, true, &r));
    for (int adds = 0; st == DH_OK && adds < 2; adds++)
        st = build_move(ctx, spec, &r, adds != 0, &g->grads[adds]);
    dh_reshard_fini(&r);
    return st;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Calls visit for every program that there is, in an order that all ranks share. */
static dh_status each_leg(dh_ctx *ctx, dh_switch *s,
                          dh_status (*visit)(dh_ctx *ctx, leg *l, void *user), void *user)
{
    for (size_t i = 0; i < s->n; i++) {
        group *g = &s->groups[i];
        leg *const legs[] = {&g->params,     &g->pass[0][0], &g->pass[0][1], &g->pass[1][0],
                             &g->pass[1][1], &g->grads[0],   &g->grads[1]};
        for (size_t k = 0; k < DH_COUNTOF(legs); k++)
            if (legs[k]->program) DH_TRY(visit(ctx, legs[k], user));
    }
    return DH_OK;
}

static dh_status widen_slab(dh_ctx *ctx, leg *l, void *user)
{
    uint64_t *slab_bytes = user;
    *slab_bytes = DH_MAX(*slab_bytes, l->program->slab_bytes);
    return DH_OK;
}

static dh_status build_groups(dh_ctx *ctx, const dh_session_spec *spec, const dh_program *home,
                              dh_switch *s)
{
    for (size_t i = 0; i < s->n; i++) {
        group *g = &s->groups[i];
        g->recipe = spec->groups[i];
        g->at_home = dh_recipes_lie_alike(&g->recipe, &spec->recipe);
        DH_TRY(build_passes(ctx, spec, home->persistent_bytes, g));
        DH_CHECK(!g->at_home || g->pass[0][0].program->persistent_bytes == home->persistent_bytes,
                 "layouts that are alike take the same bytes");
        if (!g->at_home) DH_TRY(build_moves(ctx, spec, g));
    }
    return DH_OK;
}

dh_status dh_switch_create(dh_ctx *ctx, const dh_session_spec *spec, const dh_program *home,
                           uint64_t *slab_bytes, dh_switch **made)
{
    dh_switch *s = calloc(1, sizeof *s);
    if (s) s->groups = calloc(spec->n_groups, sizeof *s->groups);
    if (!s || !s->groups) {
        free(s);
        return dh_fail(ctx, DH_ENOMEM, "out of memory for a session over several meshes");
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

static dh_status prepare_leg(dh_ctx *ctx, leg *l, void *user)
{
    const dh_switch *s = user;
    return dh_exec_create(ctx, s->device, l->program, s->slab, s->comm, &l->exec);
}

dh_status dh_switch_prepare(dh_ctx *ctx, dh_switch *s, const dh_device *device, dh_slab *slab,
                            dh_comm *comm)
{
    s->device = device;
    s->slab = slab;
    s->comm = comm;
    return each_leg(ctx, s, prepare_leg, s);
}

static dh_status destroy_leg(dh_ctx *ctx, leg *l, void *user)
{
    dh_exec_destroy(l->exec);
    dh_program_destroy(l->program);
    return DH_OK;
}

void dh_switch_destroy(dh_switch *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (!s) return;
    (void)each_leg(&ctx, s, destroy_leg, NULL);
    free(s->groups);
    free(s);
}

/* ---- verifying ------------------------------------------------------------------------------- */

static dh_status verify_move(dh_ctx *ctx, const dh_session_spec *spec, dh_reshard *r)
{
    dh_program **programs = calloc((size_t)r->n_ranks, sizeof(dh_program *));
    dh_status st =
        programs ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory verifying a switch of meshes");
    for (int64_t i = 0; st == DH_OK && i < r->n_ranks; i++)
        st = dh_reshard_program(ctx, r, i, 0, &spec->device->info, &programs[i]);
    if (st == DH_OK)
        st = dh_programs_verify(ctx, (const dh_program *const *)programs, (size_t)r->n_ranks);
    for (int64_t i = 0; programs && i < r->n_ranks; i++) dh_program_destroy(programs[i]);
    free(programs);
    return st;
}

static dh_status verify_group(dh_ctx *ctx, const dh_session_spec *spec, const group *g)
{
    for (int k = 0; k < 4; k++) {
        const dh_program_spec pass = pass_spec(spec, g, 0, 0, k / 2, k % 2);
        DH_TRY(dh_mesh_verify(ctx, &pass, NULL));
    }
    for (int back = 0; back < 2 && !g->at_home; back++) {
        dh_reshard r;
        DH_TRY(dh_switch_plan(ctx, &spec->recipe, &g->recipe, back != 0, &r));
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
        group g = {.recipe = spec->groups[i]};
        g.at_home = dh_recipes_lie_alike(&g.recipe, &spec->recipe);
        DH_TRY(verify_group(ctx, spec, &g));
    }
    return DH_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct running {
    dh_switch *s;
    dh_step step;
    const dh_switch_work *work;
    dh_switch_ran ran;
    void *user;
    dh_switch_done *done;
    bool filled; /* gradients at home are of this step */
} running;

static dh_status run_leg(dh_ctx *ctx, running *r, const leg *l, const dh_step *step)
{
    DH_TRY(dh_exec_run(ctx, l->exec, step));
    if (r->ran) r->ran(r->user, l->program, l->exec);
    return DH_OK;
}

static dh_status run_move(dh_ctx *ctx, running *r, const leg *l)
{
    const int64_t start = dh_now_ns();
    DH_TRY(run_leg(ctx, r, l, &r->step));
    r->done->switch_ns += dh_now_ns() - start;
    r->done->switch_bytes += l->wire_bytes;
    r->done->n_switches++;
    return DH_OK;
}

/* Rows of all data-parallel ranks in one pass. */
static int64_t pass_rows(const group *g)
{
    return g->recipe.mesh.dp * g->recipe.micro_batch * g->recipe.n_micro;
}

static int64_t n_passes(const group *g, const dh_switch_work *work)
{
    return (work->n_rows + pass_rows(g) - 1) / pass_rows(g);
}

/* more: gradients of another group are added here before ranks sum them. */
static dh_status run_passes(dh_ctx *ctx, running *r, size_t i, bool adds, bool more)
{
    const group *g = &r->s->groups[i];
    const int64_t n = n_passes(g, &r->work[i]);
    const dh_program *p = g->pass[0][0].program;
    dh_step step = r->step;
    step.source = r->work[i].source;
    step.sample_stride = g->recipe.mesh.dp * g->recipe.micro_batch;
    for (int64_t k = 0; k < n; k++) {
        step.first_sample =
            k * pass_rows(g) + dh_mesh_coord(&g->recipe.mesh, p->rank).dp * g->recipe.micro_batch;
        DH_TRY(run_leg(ctx, r, &g->pass[adds || k > 0][more || k + 1 < n], &step));
    }
    r->done->n_passes += n;
    r->done->n_tokens += n * pass_rows(g) * g->recipe.seq;
    return DH_OK;
}

/* The sums that the last pass has left in the group's layout. */
static dh_status add_loss(dh_ctx *ctx, running *r, const group *g)
{
    const dh_program *p = g->pass[0][0].program;
    const uint32_t buffer = dh_program_state_buffer(p, DH_STATE_LOSS);
    double pair[2];
    if (!counts_loss(&g->recipe, p->rank)) return DH_OK;
    DH_TRY(
        r->s->device->slab_read(ctx, r->s->slab, p->buffers.at[buffer].offset, pair, sizeof pair));
    r->done->loss += pair[0];
    r->done->rows += pair[1];
    return DH_OK;
}

/* Groups at home add to the same gradients, which ranks sum once: behind the last of them. */
static dh_status run_home(dh_ctx *ctx, running *r)
{
    const dh_switch *s = r->s;
    size_t last = s->n;
    for (size_t i = 0; i < s->n; i++)
        if (s->groups[i].at_home && r->work[i].n_rows > 0) last = i;
    for (size_t i = 0; i <= last && last < s->n; i++) {
        if (!s->groups[i].at_home || r->work[i].n_rows == 0) continue;
        DH_TRY(run_passes(ctx, r, i, r->filled, i < last));
        r->filled = true;
    }
    return last < s->n ? add_loss(ctx, r, &s->groups[last]) : DH_OK;
}

static dh_status run_away(dh_ctx *ctx, running *r, size_t i)
{
    const group *g = &r->s->groups[i];
    DH_TRY(run_move(ctx, r, &g->params));
    DH_TRY(run_passes(ctx, r, i, false, false));
    DH_TRY(add_loss(ctx, r, g));
    DH_TRY(run_move(ctx, r, &g->grads[r->filled]));
    r->filled = true;
    return DH_OK;
}

dh_status dh_switch_run(dh_ctx *ctx, dh_switch *s, const dh_step *step, const dh_switch_work *work,
                        dh_switch_ran ran, void *user, dh_switch_done *done)
{
    running r = {.s = s, .step = *step, .work = work, .ran = ran, .user = user, .done = done};
    *done = (dh_switch_done){.loss = 0};
    DH_TRY(run_home(ctx, &r));
    for (size_t i = 0; i < s->n; i++)
        if (!s->groups[i].at_home && work[i].n_rows > 0) DH_TRY(run_away(ctx, &r, i));
    if (r.filled) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "a step over several meshes has no rows in any group");
}
