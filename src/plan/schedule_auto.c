/* zb-auto: the automatic scheduler of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241,
 * section 3), in our own form.
 *
 * The idea: play the pipeline forward in time with given durations. A free rank takes a
 * forward while it is fewer than cap[rank] micro-batches ahead, else an input gradient.
 * A weight gradient fills a gap that is long enough. When memory is full it makes room.
 * The caps and the least gap decide everything. They are searched: first caps that fall linearly
 * along the ranks, then one rank's cap at a time. Hand-made schedules that fit the memory are
 * candidates too. The best has the shortest longest span of a rank, a step's period under the
 * paper's section 4; ties go to the shortest makespan. Where ranks meet between steps, as to clip
 * gradients, the makespan comes first.
 *
 * Not the paper's integer linear program: no proof of optimality. */
#include <stdlib.h>
#include <string.h>

#include "schedule_build.h"

/* TUNING: actions played in one search. 8 ranks and 64 micro-batches need 55 to 70 plays of 1536
 * actions. That takes 1 ms. 256 ranks and 1024 micro-batches take 3 s. */
#define PLAY_BUDGET 4000000
#define MAX_RANKS 256
#define MAX_CELLS (1 << 18)

/* TUNING: least gap for a W, in thousandths of W, on the published Zero Bubble times. With twice
 * 1F1B's memory 0 is best; 250 has up to 0.4 % more bubble. A gap of 1000 has 6 % more. With 1F1B's
 * memory all have the same span, and 250 or 750 the shortest makespan. */
static const int32_t gaps[] = {0, 250, 500, 750, 1000};

typedef struct play {
    int32_t p, m;
    int32_t max_live; /* most micro-batches between F and I */
    int64_t max_held; /* activations of a rank, in thousandths */
    int64_t wgrad;    /* share of an activation after its I, in thousandths */
    const dh_schedule_costs *costs;
    bool meet;    /* as the spec has it */
    int32_t gap;  /* thousandths of W */
    int32_t *cap; /* [rank]: micro-batches between F and I */
    /* State of one play. */
    int64_t *f_ready, *i_ready; /* [rank][micro]; INT64_MAX: not known yet */
    int64_t *free_at;           /* [rank] */
    int64_t *wake;              /* [2 leaves]: a tournament, the earlier of two above them; rank g
                                 * at leaf leaves + g, and leaves without one never wake */
    int32_t leaves;             /* a power of two */
    int64_t *first;             /* [rank]: start of the first action */
    int32_t *n_f, *n_i, *n_w;   /* [rank]: started */
    int64_t *left;              /* [rank]: how long what is yet to be started takes */
    uint8_t *kind;              /* [rank][3 m]: the list made */
    int64_t n_played;           /* actions, over all plays */
    /* Bounds of the last play. Caps and gaps within them decide every action the same way. */
    int32_t *most;         /* [rank]: micro-batches between F and I when a forward was due */
    int32_t *last_cap;     /* [rank] */
    int64_t taken, passed; /* gaps up to which, and above which, a W was as it was */
    bool compares;         /* there was a play */
} play;

typedef struct score {
    int64_t span, makespan;
} score;

static const score no_score = {INT64_MAX, INT64_MAX};

/* By makespan first where ranks meet between steps. */
static bool is_better(score a, score b, bool meet)
{
    const int64_t first[2] = {meet ? a.makespan : a.span, meet ? b.makespan : b.span};
    const int64_t then[2] = {meet ? a.span : a.makespan, meet ? b.span : b.makespan};
    return first[0] < first[1] || (first[0] == first[1] && then[0] < then[1]);
}

/* ---- one play ------------------------------------------------------------------------------- */

static const dh_stage_cost *cost_of(const play *s, int32_t g)
{
    return s->costs->stage ? &s->costs->stage[g] : &s->costs->every;
}

static int32_t leaves_for(int32_t p)
{
    int32_t n = 2;
    while (n < p) n *= 2;
    return n;
}

static int64_t wake_of(const play *s, int32_t g)
{
    return s->wake[s->leaves + g];
}

static void set_wake(play *s, int32_t g, int64_t at)
{
    int64_t *wake = s->wake;
    wake[s->leaves + g] = at;
    for (size_t node = (size_t)(s->leaves + g) / 2; node > 0; node /= 2) {
        const int64_t now = DH_MIN(wake[2 * node], wake[2 * node + 1]);
        if (wake[node] == now) break;
        wake[node] = now;
    }
}

static void reset_wakes(play *s)
{
    for (int32_t i = 0; i < 2 * s->leaves; i++) s->wake[i] = INT64_MAX;
    set_wake(s, 0, 0);
}

/* The rank that wakes first, of several the lowest. */
static int32_t find_earliest(const play *s)
{
    size_t node = 1;
    while (node < (size_t)s->leaves) node = 2 * node + (s->wake[2 * node + 1] < s->wake[2 * node]);
    return (int32_t)node - s->leaves;
}

static void reset(play *s)
{
    const size_t cells = (size_t)s->p * (size_t)s->m;
    for (size_t i = 0; i < cells; i++) s->f_ready[i] = s->i_ready[i] = INT64_MAX;
    for (int32_t g = 0; g < s->p; g++) {
        const dh_stage_cost *c = cost_of(s, g);
        s->free_at[g] = s->first[g] = 0;
        s->n_f[g] = s->n_i[g] = s->n_w[g] = 0;
        s->left[g] = s->m * (c->f_ns + c->i_ns + c->w_ns);
        s->most[g] = -1;
        s->last_cap[g] = s->cap[g];
    }
    s->taken = INT64_MAX;
    s->passed = -1;
    s->compares = true;
    reset_wakes(s);
    memset(s->f_ready, 0, (size_t)s->m * sizeof *s->f_ready);
}

/* A rank learns when an input will be there. */
static void announce(play *s, int64_t *ready, int32_t g, int32_t j, int64_t at)
{
    ready[(int64_t)g * s->m + j] = at;
    const int64_t wake = DH_MAX(at, s->free_at[g]);
    if (wake < wake_of(s, g)) set_wake(s, g, wake);
}

static void start(play *s, int32_t g, dh_pipe_kind kind)
{
    const dh_stage_cost *c = cost_of(s, g);
    const int64_t now = wake_of(s, g);
    int32_t n = s->n_f[g] + s->n_i[g] + s->n_w[g];
    if (n == 0) s->first[g] = now;
    s->kind[3 * (int64_t)g * s->m + n] = (uint8_t)kind;
    const int64_t ns = kind == DH_PIPE_F ? c->f_ns : kind == DH_PIPE_I ? c->i_ns : c->w_ns;
    s->free_at[g] = now + ns;
    s->left[g] -= ns;
    set_wake(s, g, s->free_at[g]);
    const int64_t arrival = s->free_at[g] + s->costs->p2p_ns;
    if (kind == DH_PIPE_F) {
        int32_t j = s->n_f[g]++;
        if (g + 1 < s->p)
            announce(s, s->f_ready, g + 1, j, arrival);
        else
            announce(s, s->i_ready, g, j, s->free_at[g]);
    } else if (kind == DH_PIPE_I) {
        int32_t j = s->n_i[g]++;
        if (g > 0) announce(s, s->i_ready, g - 1, j, arrival);
    } else {
        s->n_w[g]++;
    }
    s->n_played++;
}

/* Whether the time until the next input is long enough for a W. */
static bool is_gap(play *s, int64_t ns, int64_t w_ns)
{
    const int64_t most = w_ns > 0 ? 1000 * ns / w_ns : INT64_MAX;
    const bool is = s->gap <= most;
    if (is) s->taken = DH_MIN(s->taken, most);
    if (!is) s->passed = DH_MAX(s->passed, most);
    return is;
}

/* Let a free rank start something, or set the time to look again. */
static void decide(play *s, int32_t g)
{
    const int64_t now = wake_of(s, g), *f_ready = s->f_ready + (int64_t)g * s->m,
                  *i_ready = s->i_ready + (int64_t)g * s->m;
    const int32_t n_f = s->n_f[g], n_i = s->n_i[g], n_w = s->n_w[g];
    const int64_t held = 1000 * (int64_t)(n_f - n_i) + s->wgrad * (n_i - n_w);
    const bool full = held + 1000 > s->max_held;
    if (n_f < s->m) s->most[g] = DH_MAX(s->most[g], n_f - n_i);
    const bool may_f = n_f < s->m && n_f - n_i < s->cap[g];
    const int64_t next_f = may_f && !full ? f_ready[n_f] : INT64_MAX;
    const int64_t next_i = n_i < n_f ? i_ready[n_i] : INT64_MAX;
    const int64_t next = DH_MIN(next_f, next_i);
    if (next_f <= now) {
        start(s, g, DH_PIPE_F);
    } else if (next_i <= now) {
        start(s, g, DH_PIPE_I);
    } else if (n_w < n_i && (next == INT64_MAX || (full && may_f && f_ready[n_f] <= now) ||
                             is_gap(s, next - now, cost_of(s, g)->w_ns))) {
        start(s, g, DH_PIPE_W);
    } else {
        set_wake(s, g, next);
    }
}

/* Whether the rank's end, which all it has yet to do follows, is behind the best. */
static bool is_late(const play *s, int32_t g, score best)
{
    const int64_t end = s->free_at[g] + s->left[g];
    return s->meet ? end > best.makespan : end - s->first[g] > best.span;
}

/* best: a play that will be worse is left, with no_score. */
static score run_play(play *s, score best)
{
    const int64_t n_before = s->n_played;
    reset(s);
    while (s->wake[1] != INT64_MAX) {
        const int32_t g = find_earliest(s);
        decide(s, g);
        if (!is_late(s, g, best)) continue;
        s->n_played = n_before + 3 * (int64_t)s->p * s->m; /* as if played to the end */
        return no_score;
    }
    score sum = {0};
    for (int32_t g = 0; g < s->p; g++) {
        sum.span = DH_MAX(sum.span, s->free_at[g] - s->first[g]);
        sum.makespan = DH_MAX(sum.makespan, s->free_at[g]);
    }
    return sum;
}

/* ---- search --------------------------------------------------------------------------------- */

typedef struct best {
    score score;
    int32_t gap;
    int32_t *cap; /* [rank] */
} best;

/* Whether the last play asked nothing that its caps and gap answered in another way. One that was
 * left would be left again. */
static bool is_repetition(const play *s)
{
    if (!s->compares || s->gap > s->taken || s->gap <= s->passed) return false;
    for (int32_t g = 0; g < s->p; g++)
        if (s->cap[g] != s->last_cap[g] && s->most[g] >= DH_MIN(s->cap[g], s->last_cap[g]))
            return false;
    return true;
}

static bool try_play(play *s, best *b)
{
    if (is_repetition(s)) {
        s->n_played += 3 * (int64_t)s->p * s->m;
        return false;
    }
    score got = run_play(s, b->score);
    if (!is_better(got, b->score, s->meet)) return false;
    b->score = got;
    b->gap = s->gap;
    memcpy(b->cap, s->cap, (size_t)s->p * sizeof *s->cap);
    return true;
}

/* Caps from `top` on rank 0 down to 1 on the last. */
static void search_linear(play *s, best *b)
{
    for (int32_t top = 1; top <= s->max_live && s->n_played < PLAY_BUDGET;
         top += 1 + s->max_live / 16)
        for (size_t i = 0; i < DH_COUNTOF(gaps); i++) {
            const int32_t last = s->p - 1;
            for (int32_t g = 0; g < s->p; g++)
                s->cap[g] = 1 + (last ? ((top - 1) * (last - g) + last - 1) / last : top - 1);
            s->gap = gaps[i];
            try_play(s, b);
        }
}

/* Move one rank's cap at a time while it helps. */
static void search_single(play *s, best *b)
{
    for (bool improved = true; improved;) {
        improved = false;
        for (int32_t g = 0; g < s->p; g++)
            for (int32_t move = -1; move <= 1; move += 2) {
                if (s->n_played >= PLAY_BUDGET) return;
                memcpy(s->cap, b->cap, (size_t)s->p * sizeof *s->cap);
                s->gap = b->gap;
                s->cap[g] += move;
                if (s->cap[g] < 1 || s->cap[g] > s->max_live) continue;
                improved |= try_play(s, b);
            }
    }
}

static dh_status list_play(dh_ctx *ctx, const play *s, const dh_schedule_row *row,
                           const dh_schedule_spec *spec, dh_schedule **schedule)
{
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < s->p; g++) {
        int32_t done[DH_N_PIPE_KINDS] = {0};
        for (int32_t n = 0; n < 3 * s->m; n++) {
            dh_pipe_kind kind = (dh_pipe_kind)s->kind[3 * (int64_t)g * s->m + n];
            dh_build_next(&b, kind, g, done[kind]++);
        }
    }
    return dh_builder_finish(ctx, &b, schedule);
}

static dh_status search(dh_ctx *ctx, play *s, const dh_schedule_row *row,
                        const dh_schedule_spec *spec, dh_schedule **schedule)
{
    int32_t *cap = calloc((size_t)s->p, sizeof *cap);
    if (!cap) return dh_no_memory(ctx);
    best b = {.score = no_score, .cap = cap};
    search_linear(s, &b);
    search_single(s, &b);
    memcpy(s->cap, b.cap, (size_t)s->p * sizeof *s->cap);
    s->gap = b.gap;
    run_play(s, no_score); /* once more, for its lists */
    free(cap);
    return list_play(ctx, s, row, spec, schedule);
}

/* ---- hand-made candidates ------------------------------------------------------------------- */

static dh_status replace_if_better(dh_ctx *ctx, const dh_schedule_row *row,
                                   const dh_schedule_spec *spec, const dh_schedule_costs *costs,
                                   dh_schedule **schedule)
{
    dh_schedule *other;
    dh_schedule_timing mine, theirs;
    DH_TRY(row->generate(ctx, row, spec, &other));
    dh_status st = dh_schedule_time(ctx, *schedule, costs, &mine);
    if (st != DH_OK) goto err_other;
    DH_TRY_GOTO(dh_schedule_time(ctx, other, costs, &theirs), err_mine);
    bool better = is_better((score){theirs.longest_span_ns, theirs.makespan_ns},
                            (score){mine.longest_span_ns, mine.makespan_ns}, spec->meet);
    dh_schedule_timing_fini(&theirs);
    if (better) {
        dh_schedule *swap = *schedule;
        *schedule = other;
        other = swap;
        (*schedule)->name = dh_row_zb_auto.name;
    }
err_mine:
    dh_schedule_timing_fini(&mine);
err_other:
    dh_schedule_destroy(other);
    return st;
}

static dh_status consider_handmade(dh_ctx *ctx, const dh_schedule_spec *spec, int32_t max_held,
                                   const dh_schedule_costs *costs, dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    if (max_held >= p) DH_TRY(replace_if_better(ctx, &dh_row_zb_h1, spec, costs, schedule));
    if (max_held >= 2 * p - 1) DH_TRY(replace_if_better(ctx, &dh_row_zb_h2, spec, costs, schedule));
    return DH_OK;
}

/* ---- row ------------------------------------------------------------------------------------ */

static dh_status zb_auto_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    if (spec->n_ranks > MAX_RANKS || (int64_t)spec->n_ranks * spec->n_micro > MAX_CELLS)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "zb-auto: %d stages * %d micro-batches are more than its search handles (%d "
                       "stages, %d in all); use zb-h1 or zb-h2",
                       spec->n_ranks, spec->n_micro, MAX_RANKS, MAX_CELLS);
    if (spec->max_activations < 0 || spec->wgrad_permille < 0 || spec->wgrad_permille > 1000)
        return dh_fail(ctx, DH_EINVAL,
                       "zb-auto: %d activations of which %d permille wait for W; at least 1 and at "
                       "most 1000 are possible",
                       spec->max_activations, spec->wgrad_permille);
    return DH_OK;
}

/* Keep the costs with the schedule that was placed by them; each is at least 1 ns. */
static dh_status keep_costs(dh_ctx *ctx, const dh_schedule_costs *costs, dh_schedule *s)
{
    s->planned = DH_NEW_N(s->arena, dh_stage_cost, s->n_stages);
    if (!s->planned) return dh_no_memory(ctx);
    for (int32_t v = 0; v < s->n_stages; v++) {
        const dh_stage_cost *c = costs->stage ? &costs->stage[v] : &costs->every;
        s->planned[v] = (dh_stage_cost){
            .f_ns = DH_MAX(c->f_ns, 1), .i_ns = DH_MAX(c->i_ns, 1), .w_ns = DH_MAX(c->w_ns, 1)};
    }
    return DH_OK;
}

static const dh_schedule_costs even_costs = {.every = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000}};

static dh_status zb_auto(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                         dh_schedule **schedule)
{
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    const int32_t p = spec->n_ranks, m = spec->n_micro;
    const int32_t limit = spec->max_activations ? spec->max_activations : p;
    const size_t cells = (size_t)p * (size_t)m;
    const int32_t leaves = leaves_for(p);
    play s = {
        .p = p,
        .m = m,
        .max_live = DH_MIN(m, limit),
        .max_held = 1000 * (int64_t)limit,
        .wgrad = spec->wgrad_permille ? spec->wgrad_permille : 1000,
        .meet = spec->meet,
        .costs = spec->costs ? spec->costs : &even_costs,
        .cap = DH_NEW_N(arena, int32_t, p),
        .f_ready = DH_NEW_N(arena, int64_t, cells),
        .i_ready = DH_NEW_N(arena, int64_t, cells),
        .free_at = DH_NEW_N(arena, int64_t, p),
        .wake = DH_NEW_N(arena, int64_t, 2 * leaves),
        .leaves = leaves,
        .first = DH_NEW_N(arena, int64_t, p),
        .n_f = DH_NEW_N(arena, int32_t, p),
        .n_i = DH_NEW_N(arena, int32_t, p),
        .n_w = DH_NEW_N(arena, int32_t, p),
        .left = DH_NEW_N(arena, int64_t, p),
        .most = DH_NEW_N(arena, int32_t, p),
        .last_cap = DH_NEW_N(arena, int32_t, p),
        .kind = DH_NEW_N(arena, uint8_t, 3 * cells),
    };
    bool has_memory = s.cap && s.f_ready && s.i_ready && s.free_at && s.wake && s.first && s.n_f &&
                      s.n_i && s.n_w && s.left && s.most && s.last_cap && s.kind;
    dh_schedule *found = NULL;
    dh_status st = has_memory ? search(ctx, &s, row, spec, &found) : dh_no_memory(ctx);
    if (st == DH_OK) st = consider_handmade(ctx, spec, limit, s.costs, &found);
    if (st == DH_OK && spec->costs) st = keep_costs(ctx, spec->costs, found);
    dh_arena_destroy(arena);
    if (st != DH_OK) {
        dh_schedule_destroy(found);
        return st;
    }
    *schedule = found;
    return DH_OK;
}

const dh_schedule_row dh_row_zb_auto = {
    .name = "zb-auto",
    .doc =
        "placed by measured F, I, W and transfer times within a memory limit (Zero Bubble, arXiv "
        "2401.10241, 3)",
    .placement = DH_PLACE_LINEAR,
    .n_chunks = 1,
    .split_backward = true,
    .planned = true,
    .applicable = zb_auto_applicable,
    .generate = zb_auto,
};
