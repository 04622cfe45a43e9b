/* Layers of each virtual stage: parallel.layer_split, left to costs.
 *
 * The first and the last stage also hold the embedding and the head, and a folded placement puts
 * both on one rank. Whole steps are simulated. First come the even split and one that evens out the
 * ranks' times. Then one layer, or one from each stage of a rank, moves away from the rank that has
 * most to do. The search ends when no move shortens the step. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "program/stage_costs.h"
#include "train/recipe.h"
#include "train/simulation.h"

enum {
    /* TUNING: ranks with most to do, that layers are moved from, and with least, that they are moved
     * to; simulated steps. */
    MOST_DONORS = 4,
    MOST_RECEIVERS = 3,
    MOST_TRIALS = 64
};

typedef struct split {
    int64_t *layers; /* [n_stages] */
    bool known;      /* it was simulated */
    dh_train_trial at;
} split;

typedef struct splitting {
    dh_resolved *r;
    int32_t n_stages, n_ranks;
    int32_t *rank_of; /* [n_stages] */
    int64_t *busy_ns; /* [n_ranks], of the best split */
    int64_t even_ns;  /* step of the even split; 0: it cannot run */
    int32_t n_tried;
    split best, trial;
} splitting;

/* ---- one split ------------------------------------------------------------------------------- */

static char *print_split(dh_arena *arena, const int64_t layers[], int32_t n_stages)
{
    dh_str text = DH_STR_INIT;
    for (int32_t v = 0; v < n_stages; v++)
        dh_str_printf(&text, "%s%" PRId64, v ? "," : "", layers[v]);
    char *copy = text.failed ? NULL : dh_arena_strdup(arena, text.text);
    dh_str_fini(&text);
    return copy;
}

/* The job with this split. A schedule that is placed by times is placed again. */
static dh_status use(dh_ctx *ctx, splitting *s, const int64_t layers[])
{
    dh_resolved *r = s->r;
    char *text = print_split(r->arena, layers, s->n_stages);
    if (!text) return dh_no_memory(ctx);
    r->recipe.layer_split = r->job.layer_split = text;
    dh_schedule_destroy(r->schedule);
    r->schedule = NULL;
    r->recipe.schedule = NULL;
    DH_TRY(dh_job_schedule(ctx, &r->job, r->recipe.strategy, &r->recipe, r->recipe.n_micro,
                           &r->schedule));
    r->recipe.schedule = r->schedule;
    return DH_OK;
}

/* A split that fits before one that does not, then the shorter step; of equals the earlier. */
static bool is_better(const split *a, const split *b)
{
    if (!b->known || a->at.fits != b->at.fits) return !b->known || a->at.fits;
    return a->at.step_ns < b->at.step_ns;
}

/* Simulates the trial, which becomes the best where it is. *better may be NULL. A split that the
 * job cannot have (fewer layers than a schedule or a strategy needs) is passed over. */
static dh_status try_one(dh_ctx *ctx, splitting *s, bool *better)
{
    dh_ctx attempt = dh_ctx_like(ctx);
    dh_status st = use(&attempt, s, s->trial.layers);
    s->n_tried++;
    if (st == DH_OK) st = dh_train_try(&attempt, s->r, &s->trial.at);
    s->trial.known = st == DH_OK;
    if (st == DH_ENOMEM || st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", attempt.message);
    if (st != DH_OK || !is_better(&s->trial, &s->best)) return DH_OK;
    const split was = s->best;
    s->best = s->trial;
    s->trial = was;
    if (better) *better = true;
    return DH_OK;
}

/* ---- which splits ----------------------------------------------------------------------------- */

static int64_t stage_ns(const dh_stage_cost *c)
{
    return c->f_ns + (c->b_ns ? c->b_ns : c->i_ns + c->w_ns);
}

/* Times of all ranks with the layers `of`, from solo times. */
static dh_status time_ranks(dh_ctx *ctx, splitting *s, const int64_t of[])
{
    dh_stage_costs found;
    dh_recipe recipe = s->r->recipe;
    dh_arena *arena = dh_arena_create();
    recipe.layer_split = arena ? print_split(arena, of, s->n_stages) : NULL;
    dh_status st = recipe.layer_split
                       ? dh_stage_costs_find(ctx, arena, &recipe, s->n_stages, &found)
                       : dh_no_memory(ctx);
    memset(s->busy_ns, 0, (size_t)s->n_ranks * sizeof *s->busy_ns);
    for (int32_t v = 0; st == DH_OK && v < s->n_stages; v++)
        s->busy_ns[s->rank_of[v]] += stage_ns(&found.costs.stage[v]);
    dh_arena_destroy(arena);
    return st;
}

/* The stage of a rank with most layers, or with fewest; of several the first. -1: none that may
 * lose a layer. */
static int32_t stage_of(const splitting *s, const int64_t layers[], int32_t rank, bool most)
{
    int32_t found = -1;
    for (int32_t v = 0; v < s->n_stages; v++) {
        if (s->rank_of[v] != rank || (most && layers[v] < 2)) continue;
        if (found < 0 || (most ? layers[v] > layers[found] : layers[v] < layers[found])) found = v;
    }
    return found;
}

static bool move_layer(const splitting *s, int64_t layers[], int32_t from, int32_t to)
{
    const int32_t a = stage_of(s, layers, from, true), b = stage_of(s, layers, to, false);
    if (a < 0 || b < 0) return false;
    layers[a]--;
    layers[b]++;
    return true;
}

/* The rank with most to do, or least, of those that are not taken yet; -1: none. */
static int32_t extreme(const splitting *s, bool most, const bool taken[])
{
    int32_t found = -1;
    for (int32_t g = 0; g < s->n_ranks; g++) {
        if (taken && taken[g]) continue;
        if (found < 0 ||
            (most ? s->busy_ns[g] > s->busy_ns[found] : s->busy_ns[g] < s->busy_ns[found]))
            found = g;
    }
    return found;
}

/* From the even split on, a layer at a time from the rank with most to do to the one with least, as
 * long as that lowers the most. */
static dh_status even_out(dh_ctx *ctx, splitting *s, int64_t layers[])
{
    const size_t bytes = (size_t)s->n_stages * sizeof *layers;
    int64_t *next = malloc(bytes);
    if (!next) return dh_no_memory(ctx);
    dh_status st = time_ranks(ctx, s, layers);
    for (int64_t k = 0; st == DH_OK && k < s->r->recipe.model.n_layers; k++) {
        const int32_t from = extreme(s, true, NULL), to = extreme(s, false, NULL);
        const int64_t most = s->busy_ns[from];
        memcpy(next, layers, bytes);
        if (from == to || !move_layer(s, next, from, to)) break;
        st = time_ranks(ctx, s, next);
        if (st != DH_OK || s->busy_ns[extreme(s, true, NULL)] >= most) break;
        memcpy(layers, next, bytes);
    }
    free(next);
    return st;
}

/* One layer, or one of each of its stages, from one rank to another; until one is better. */
static dh_status try_moves(dh_ctx *ctx, splitting *s, const int64_t base[], int32_t from,
                           int32_t to, bool *better)
{
    const int32_t n_chunks = s->n_stages / s->n_ranks;
    for (int32_t n = 1; n <= n_chunks && !*better; n += DH_MAX(n_chunks - 1, 1)) {
        bool ok = s->n_tried < MOST_TRIALS;
        memcpy(s->trial.layers, base, (size_t)s->n_stages * sizeof *base);
        for (int32_t k = 0; ok && k < n; k++) ok = move_layer(s, s->trial.layers, from, to);
        if (ok) DH_TRY(try_one(ctx, s, better));
    }
    return DH_OK;
}

static dh_status try_receivers(dh_ctx *ctx, splitting *s, const int64_t base[], int32_t from,
                               bool taken[], bool *better)
{
    memset(taken, 0, (size_t)s->n_ranks * sizeof *taken);
    taken[from] = true;
    for (int k = 0; k < MOST_RECEIVERS && k < s->n_ranks - 1 && !*better; k++) {
        const int32_t to = extreme(s, false, taken);
        taken[to] = true;
        DH_TRY(try_moves(ctx, s, base, from, to, better));
    }
    return DH_OK;
}

/* taken [2 * n_ranks]: donors, then receivers */
static dh_status climb(dh_ctx *ctx, splitting *s, int64_t base[], bool taken[])
{
    bool better = true;
    while (better) {
        better = false;
        memcpy(base, s->best.layers, (size_t)s->n_stages * sizeof *base);
        DH_TRY(time_ranks(ctx, s, base));
        memset(taken, 0, (size_t)s->n_ranks * sizeof *taken);
        for (int k = 0; k < MOST_DONORS && k < s->n_ranks && !better; k++) {
            const int32_t from = extreme(s, true, taken);
            taken[from] = true;
            DH_TRY(try_receivers(ctx, s, base, from, taken + s->n_ranks, &better));
        }
    }
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status search(dh_ctx *ctx, splitting *s, int64_t base[], bool taken[])
{
    const dh_model *model = &s->r->recipe.model;
    const size_t bytes = (size_t)s->n_stages * sizeof *base;
    DH_TRY(dh_layer_split(ctx, model->n_layers, s->n_stages, "*", s->trial.layers));
    memcpy(base, s->trial.layers, bytes);
    DH_TRY(try_one(ctx, s, NULL));
    s->even_ns = s->best.known ? s->best.at.step_ns : 0;
    DH_TRY(even_out(ctx, s, base));
    memcpy(s->trial.layers, base, bytes);
    DH_TRY(try_one(ctx, s, NULL));
    if (!s->best.known) { /* the error is the even split's */
        DH_TRY(dh_layer_split(ctx, model->n_layers, s->n_stages, "*", base));
        DH_TRY(use(ctx, s, base));
        return dh_train_try(ctx, s->r, &s->best.at);
    }
    DH_TRY(climb(ctx, s, base, taken));
    return use(ctx, s, s->best.layers);
}

static dh_status note(dh_ctx *ctx, const splitting *s)
{
    return dh_resolved_note(ctx, s->r, "layer split", s->r->recipe.layer_split,
                            "of %d splits the shortest simulated step%s, %.3f ms; %.3f ms even",
                            s->n_tried, s->r->cluster ? " that fits" : "",
                            (double)s->best.at.step_ns * 1e-6, (double)s->even_ns * 1e-6);
}

/* Two copies of a model that lie mirrored have the stages of one rank from both ends; the first
 * copy's ranks are what is evened out. */
dh_status dh_resolved_split(dh_ctx *ctx, dh_resolved *r)
{
    if (!dh_job_splits(&r->job)) return DH_OK;
    r->job.layer_split = dh_arena_strdup(r->arena, "*");
    if (!r->job.layer_split) return dh_no_memory(ctx);
    if (!r->schedule || r->schedule->n_ranks == 1)
        return dh_resolved_note(ctx, r, "layer split", "*", "one pipeline rank has all layers");
    if (r->job.packing == DH_PACKING_GROUP)
        return dh_resolved_note(ctx, r, "layer split", "*", "even: data.packing=group");
    const dh_schedule *sch = r->schedule;
    const size_t n = (size_t)sch->n_stages, n_ranks = (size_t)sch->n_ranks;
    splitting s = {.r = r,
                   .n_stages = sch->n_stages,
                   .n_ranks = sch->n_ranks,
                   .rank_of = DH_NEW_N(r->arena, int32_t, n),
                   .busy_ns = DH_NEW_N(r->arena, int64_t, n_ranks),
                   .best.layers = DH_NEW_N(r->arena, int64_t, n),
                   .trial.layers = DH_NEW_N(r->arena, int64_t, n)};
    int64_t *base = DH_NEW_N(r->arena, int64_t, n);
    bool *taken = DH_NEW_N(r->arena, bool, 2 * n_ranks);
    if (!s.rank_of || !s.busy_ns || !s.best.layers || !s.trial.layers || !base || !taken)
        return dh_no_memory(ctx);
    memcpy(s.rank_of, sch->rank_of, n * sizeof *s.rank_of);
    DH_TRY(search(ctx, &s, base, taken));
    return note(ctx, &s);
}
