/* A step over several meshes (switch.h): passes on the rank's own thread; beside them, with
 * switch.overlap, a second one brings parameters to the next group and gradients home:
 *
 *   own     passes at home     passes of A              passes of B              gradients of B
 *   mover   parameters to A    parameters to B          gradients of A
 *
 * Gradients are added in the order of the groups either way, so the bits are those of a step in
 * which nothing overlaps. */
#include "train/switch_legs.h"

/* Every token's loss is counted by one rank: on the last stage, the first of its tensor-parallel
 * group. */
static bool counts_loss(const dh_recipe *r, int64_t rank)
{
    const dh_coord c = dh_mesh_coord(&r->mesh, rank);
    const int64_t last =
        r->schedule ? r->schedule->rank_of[r->schedule->n_stages - 1] : r->mesh.pp - 1;
    return c.pp == last && c.tp == 0;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct running {
    dh_switch *s;
    dh_step step;
    const dh_switch_work *work;
    dh_switch_ran ran;
    void *user;
    dh_switch_done *done;
    bool filled;  /* gradients at home are of this step */
    bool beside;  /* moves may run beside passes */
    bool fetched; /* the next group's parameters are in its layout */
    /* Moves that run beside the passes at hand. */
    const switch_leg *moves[DH_MOVER_MOST];
    size_t n_moves;
} running;

static dh_status run_leg(dh_ctx *ctx, running *r, const switch_leg *l, const dh_step *step)
{
    DH_TRY(dh_exec_run(ctx, l->exec, step));
    if (r->ran) r->ran(r->user, l->program, l->exec, -1);
    return DH_OK;
}

static void count_move(running *r, const switch_leg *l, int64_t ns)
{
    r->done->switch_ns += ns;
    r->done->switch_bytes += l->wire_bytes;
    r->done->n_switches++;
}

static dh_status run_move(dh_ctx *ctx, running *r, const switch_leg *l)
{
    const int64_t start = dh_now_ns();
    DH_TRY(run_leg(ctx, r, l, &r->step));
    const int64_t ns = dh_now_ns() - start;
    r->done->switch_wait_ns += ns;
    count_move(r, l, ns);
    return DH_OK;
}

/* ---- moves beside passes ---- */

static void begin_moves(running *r)
{
    dh_exec *programs[DH_MOVER_MOST];
    for (size_t i = 0; i < r->n_moves; i++) programs[i] = r->moves[i]->exec;
    if (r->n_moves > 0) dh_mover_begin(r->s->mover, programs, r->n_moves, &r->step);
}

/* Wait for moves that are still under way. */
static dh_status end_moves(dh_ctx *ctx, running *r)
{
    int64_t ns[DH_MOVER_MOST];
    const int64_t start = dh_now_ns();
    if (r->n_moves == 0) return DH_OK;
    DH_TRY(dh_mover_end(ctx, r->s->mover, ns));
    int64_t waited = dh_now_ns() - start;
    r->done->switch_wait_ns += waited;
    for (size_t i = r->n_moves; i-- > 0;) { /* the last is the one that was waited for */
        const int64_t share = DH_MIN(waited, ns[i]);
        count_move(r, r->moves[i], ns[i]);
        if (r->ran) r->ran(r->user, r->moves[i]->program, r->moves[i]->exec, share);
        waited -= share;
    }
    r->n_moves = 0;
    return DH_OK;
}

/* ---- passes ---- */

/* Rows of all data-parallel ranks in one pass. */
static int64_t pass_rows(const switch_group *g)
{
    return g->recipe.mesh.dp * g->recipe.micro_batch * g->recipe.n_micro;
}

static int64_t n_passes(const switch_group *g, const dh_switch_work *work)
{
    return (work->n_rows + pass_rows(g) - 1) / pass_rows(g);
}

/* more: gradients of another group are added here before ranks sum them. */
static dh_status run_passes(dh_ctx *ctx, running *r, size_t i, bool adds, bool more)
{
    const switch_group *g = &r->s->groups[i];
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
static dh_status add_loss(dh_ctx *ctx, running *r, const switch_group *g)
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
static dh_status run_home_passes(dh_ctx *ctx, running *r)
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

static dh_status run_away_passes(dh_ctx *ctx, running *r, size_t i)
{
    DH_TRY(run_passes(ctx, r, i, false, false));
    return add_loss(ctx, r, &r->s->groups[i]);
}

/* Passes of group i, of all at home where i is none, beside the moves at hand, which end too
 * whatever happens. The cause comes first: a failure that is not another's echo. */
static dh_status run_beside(dh_ctx *ctx, running *r, size_t i)
{
    dh_ctx of_moves = DH_CTX_INIT;
    begin_moves(r);
    const dh_status st = i < r->s->n ? run_away_passes(ctx, r, i) : run_home_passes(ctx, r);
    const dh_status moved = end_moves(&of_moves, r);
    if (moved == DH_OK || (st != DH_OK && (st != DH_ECOMM || moved == DH_ECOMM))) return st;
    dh_ctx_reset(ctx);
    return dh_fail(ctx, moved, "%s", of_moves.message);
}

/* ---- a step ---- */

/* The next group away from home that has rows, behind group i; n: there is none. */
static size_t next_away(const running *r, size_t i)
{
    while (i < r->s->n && (r->s->groups[i].at_home || r->work[i].n_rows == 0)) i++;
    return i;
}

static bool has_home_rows(const running *r)
{
    for (size_t i = 0; i < r->s->n; i++)
        if (r->s->groups[i].at_home && r->work[i].n_rows > 0) return true;
    return false;
}

static void add_move(running *r, const switch_leg *l)
{
    r->moves[r->n_moves++] = l;
}

/* Gradients of a group that wait to go home; they are the first of the step, or are added. */
static const switch_leg *return_of(running *r, size_t i)
{
    const switch_leg *l = &r->s->groups[i].grads[r->filled];
    r->filled = true;
    return l;
}

/* Choose the moves beside the passes of group i: gradients of the previous group, *waiting, then
 * parameters of the next one, which may take the same place. */
static void choose_moves(running *r, size_t i, size_t *waiting, size_t next)
{
    const dh_switch *s = r->s;
    if (*waiting < s->n && dh_switch_is_beside(&s->groups[*waiting], &s->groups[i], true)) {
        add_move(r, return_of(r, *waiting));
        *waiting = s->n;
    }
    r->fetched = next < s->n && dh_switch_is_beside(&s->groups[next], &s->groups[i], false);
    if (r->fetched) add_move(r, &s->groups[next].params);
}

static dh_status run_groups_away(dh_ctx *ctx, running *r)
{
    const dh_switch *s = r->s;
    size_t waiting = s->n;
    for (size_t i = next_away(r, 0), next; i < s->n; i = next) {
        next = next_away(r, i + 1);
        if (!r->fetched && waiting < s->n) DH_TRY(run_move(ctx, r, return_of(r, waiting)));
        if (!r->fetched) waiting = s->n;
        if (!r->fetched) DH_TRY(run_move(ctx, r, &s->groups[i].params));
        r->fetched = false;
        if (r->beside) choose_moves(r, i, &waiting, next);
        DH_TRY(run_beside(ctx, r, i));
        waiting = i;
    }
    return waiting < s->n ? run_move(ctx, r, return_of(r, waiting)) : DH_OK;
}

dh_status dh_switch_run(dh_ctx *ctx, dh_switch *s, const dh_step *step, const dh_switch_work *work,
                        dh_switch_ran ran, void *user, dh_switch_done *done)
{
    running r = {.s = s, .step = *step, .work = work, .ran = ran, .user = user, .done = done};
    *done = (dh_switch_done){.loss = 0};
    /* Single steps are told of one after another. */
    r.beside = s->mover && !step->hook && !step->check_finite;
    const size_t first = next_away(&r, 0);
    r.fetched = r.beside && first < s->n && has_home_rows(&r);
    if (r.fetched) add_move(&r, &s->groups[first].params);
    DH_TRY(run_beside(ctx, &r, s->n));
    DH_TRY(run_groups_away(ctx, &r));
    if (r.filled) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "a step over several meshes has no rows in any group");
}
