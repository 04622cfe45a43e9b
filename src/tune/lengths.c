/* Groups of lengths and their meshes (lengths.h). */
#include "tune/lengths.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "data/groups.h"
#include "train/simulation.h"
#include "train/switch.h"
#include "tune/length_cuts.h"

/* The settings that an entry gives to a group. */
typedef struct entry {
    int64_t tp, cp, pp;
    const char *recompute, *strategy, *schedule; /* NULL: the job's */
} entry;

/* A mesh at a length: a group that could be. */
typedef struct choice {
    entry says;
    const char *words; /* of an entry, behind the length */
    dh_resolved *job;
    dh_switched_pass pass;
} choice;
typedef DH_VEC(choice) choices;

/* A mesh that holds weights and optimizer. */
typedef struct home {
    entry says;
    const dh_resolved *job; /* its choice's */
    int64_t update_ns;
    uint64_t bytes;
} home;

/* Time of moves between a home and a choice, kept once it was asked for. */
typedef struct priced {
    const dh_resolved *home, *away;
    double ns;
} priced;

typedef struct searching {
    dh_ctx *ctx;
    const dh_length_options *options;
    dh_length_plans *plans;
    dh_job job; /* the search's; its switch.groups are the present ones */
    dh_dataset *ds;
    int64_t cores, ranks_per_node;
    int64_t cuts[DH_LENGTH_CUTS];
    size_t n_cuts;
    choices at[DH_LENGTH_CUTS]; /* by cut */
    DH_VEC(home) homes;
    DH_VEC(priced) prices;
    const char **strategies; /* [n_strategies] tried beside the job's */
    size_t n_strategies;
    double least_home; /* bytes that any home keeps on a rank, at least */
} searching;

/* ---- documents ------------------------------------------------------------------------------- */

/* TUNING: rows of so many steps are counted for a choice; what is proposed counts 64. */
enum { SEARCH_STEPS = 16 };

static int64_t n_search_steps(const searching *s)
{
    const int64_t n_rows = dh_dataset_windows(s->ds, s->job.seq_len);
    return DH_MAX(1, DH_MIN(n_rows / s->job.global_batch, SEARCH_STEPS));
}

/* Loads of a set's groups in a mean step; bit i of ends is cut i. */
static dh_status count_loads(searching *s, unsigned ends, dh_switched_load loads[DH_LENGTH_CUTS])
{
    int64_t max_len[DH_LENGTH_CUTS];
    size_t cut[DH_LENGTH_CUTS], n = 0;
    const int64_t batch = s->job.global_batch;
    const int64_t n_steps = n_search_steps(s);
    memset(loads, 0, DH_LENGTH_CUTS * sizeof *loads);
    for (size_t i = 0; i < s->n_cuts; i++) {
        if (!(ends >> i & 1)) continue;
        cut[n] = i;
        max_len[n++] = s->cuts[i];
    }
    for (int64_t step = 0; step < n_steps; step++) {
        dh_length_groups groups;
        const dh_status st =
            dh_length_groups_make(s->ctx, s->ds, step * batch, batch, max_len, n, &groups);
        for (size_t k = 0; st == DH_OK && k < n; k++)
            dh_switched_count(&groups.rows[k], 1.0 / (double)n_steps, &loads[cut[k]]);
        dh_length_groups_fini(&groups);
        DH_TRY(st);
    }
    return DH_OK;
}

/* ---- meshes ---------------------------------------------------------------------------------- */

/* A mesh that the job cannot have is none; memory that is short is.
 * out       *made: behind those that are there; NULL: there is none */
static dh_status try_choice(searching *s, size_t cut, choice c, double row_pairs, choice **made)
{
    const dh_resolve_options how = {.cluster = s->options->cluster, .quiet = true};
    dh_ctx why = dh_ctx_like(s->ctx);
    dh_job of;
    *made = NULL;
    if (!c.words) return dh_no_memory(s->ctx);
    s->job.switch_groups =
        dh_arena_printf(s->plans->arena, "%" PRId64 " %s", s->cuts[cut], c.words);
    if (!s->job.switch_groups) return dh_no_memory(s->ctx);
    dh_status st = dh_job_group(&why, &s->job, 0, &of);
    if (st == DH_OK) st = dh_job_resolve(&why, &of, &how, &c.job);
    if (st == DH_OK) st = dh_switched_first_of(&why, &c.job->recipe, row_pairs, s->cores, &c.pass);
    s->plans->n_passes += st == DH_OK;
    s->plans->n_refused += st != DH_OK;
    if (st == DH_OK && dh_vec_push(&s->at[cut], c)) {
        *made = &s->at[cut].at[s->at[cut].n - 1];
        return DH_OK;
    }
    dh_resolved_destroy(c.job);
    if (st == DH_OK || st == DH_ENOMEM) return dh_no_memory(s->ctx);
    return st == DH_EINTERRUPTED ? dh_fail(s->ctx, st, "%s", why.message) : DH_OK;
}

static void append_degree(dh_str *out, const char *name, int64_t degree)
{
    if (degree > 1) dh_str_printf(out, " %s=%" PRId64, name, degree);
}

static void append_word(dh_str *out, const char *name, const char *value)
{
    if (value) dh_str_printf(out, " %s=%s", name, value);
}

/* Twice as many micro-batches as stages: a third of a pass is bubble, and few rows are padding. */
static dh_status try_entry(searching *s, size_t cut, const entry *e, double pairs, choice **made)
{
    dh_str words = DH_STR_INIT;
    dh_str_printf(&words, "dp=%" PRId64, s->job.ranks / (e->tp * e->cp * e->pp));
    append_degree(&words, "tp", e->tp);
    append_degree(&words, "cp", e->cp);
    append_degree(&words, "pp", e->pp);
    append_degree(&words, "micro_batches", e->pp > 1 ? 2 * e->pp : 1);
    if (s->job.model.n_layers % e->pp) dh_str_printf(&words, " layer_split=*");
    append_word(&words, "recompute", e->recompute);
    append_word(&words, "strategy", e->strategy);
    append_word(&words, "schedule", e->schedule);
    const choice c = {.says = *e,
                      .words = words.failed ? NULL : dh_arena_strdup(s->plans->arena, words.text)};
    dh_str_fini(&words);
    return try_choice(s, cut, c, pairs, made);
}

static bool fits(const searching *s, double bytes)
{
    return s->options->memory_bytes <= 0 || bytes <= s->options->memory_bytes;
}

/* By itself, with what the smallest home keeps. */
static bool may_fit(const searching *s, const choice *c)
{
    return fits(s, (double)c->pass.peak_bytes + s->least_home);
}

static double row_ns(const choice *c)
{
    return (double)c->pass.ns[1] / (double)c->pass.rows;
}

/* Degrees of context parallelism double until memory is there and rows take longer again: each
 * further one halves what a rank computes of a row, and adds exchanges. */
static dh_status try_context(searching *s, size_t cut, int64_t tp, int64_t pp, double pairs)
{
    const int64_t n = s->job.ranks / (tp * pp);
    double before = INFINITY;
    bool over = false;
    for (int64_t cp = 1; cp <= n; cp *= 2) {
        const entry e = {.tp = tp, .cp = cp, .pp = pp};
        choice *made;
        if (n % cp) continue;
        if (over) {
            s->plans->n_left_out++;
            continue;
        }
        DH_TRY(try_entry(s, cut, &e, pairs, &made));
        if (!made) continue;
        over = may_fit(s, made) && row_ns(made) > before;
        before = may_fit(s, made) ? row_ns(made) : INFINITY;
    }
    return DH_OK;
}

/* Tensor parallelism stays inside a node. */
static dh_status try_meshes(searching *s, size_t cut, double pairs)
{
    const int64_t n = s->job.ranks, n_layers = s->job.model.n_layers;
    for (int64_t tp = 1; tp <= DH_MIN(n, s->ranks_per_node); tp *= 2)
        for (int64_t pp = 1; tp * pp <= n && pp <= n_layers; pp *= 2)
            if (n % (tp * pp) == 0) DH_TRY(try_context(s, cut, tp, pp, pairs));
    return DH_OK;
}

/* ---- variants -------------------------------------------------------------------------------- */

/* TUNING: not measured; each costs a simulation a strategy and length. The best single
 * mesh of 32B on 32 A800 needs recomputation and is not among the eight fastest that lack memory,
 * but among 16. */
enum { MESHES_VARIED = 3, MESHES_RECOMPUTED = 16 };

/* The one with the shortest row that is behind *after, by row; NULL: there is none. */
static const choice *next_best(const searching *s, size_t cut, const choice *after, bool fitting)
{
    const choice *best = NULL;
    for (size_t i = 0; i < s->at[cut].n; i++) {
        const choice *c = &s->at[cut].at[i];
        if (may_fit(s, c) != fitting || c->says.strategy || c->says.schedule) continue;
        if (after && (row_ns(c) < row_ns(after) || (row_ns(c) == row_ns(after) && c <= after)))
            continue;
        if (!best || row_ns(c) < row_ns(best)) best = c;
    }
    return best;
}

/* The best in turn, as values: what is tried of them moves the list. */
static size_t list_best(const searching *s, size_t cut, bool fitting, choice *best, size_t most)
{
    const choice *c = NULL;
    size_t n = 0;
    while (n < most && (c = next_best(s, cut, c, fitting))) best[n++] = *c;
    return n;
}

/* Some meshes do not fit but would be faster than all that do. Try these with recomputation. It
 * makes a mesh slower, so no other mesh can win by it. */
static dh_status vary_recompute(searching *s, size_t cut, double pairs)
{
    static const char *const kinds[] = {"selective", "full"};
    choice best[MESHES_RECOMPUTED];
    const choice *fitting = next_best(s, cut, NULL, true);
    const double most = fitting ? row_ns(fitting) : INFINITY;
    const size_t n = list_best(s, cut, false, best, MESHES_RECOMPUTED);
    for (size_t i = 0; i < n && row_ns(&best[i]) < most; i++)
        for (size_t k = 0; k < DH_COUNTOF(kinds); k++) {
            entry e = best[i].says;
            choice *made;
            e.recompute = kinds[k];
            DH_TRY(try_entry(s, cut, &e, pairs, &made));
            if (made && may_fit(s, made)) break;
        }
    return DH_OK;
}

static dh_status vary_best(searching *s, size_t cut, double pairs)
{
    static const char *const schedules[] = {"zb-h1"};
    choice best[MESHES_VARIED], *made;
    const size_t n = list_best(s, cut, true, best, MESHES_VARIED);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < s->n_strategies; k++) {
            entry e = best[i].says;
            e.strategy = s->strategies[k];
            DH_TRY(try_entry(s, cut, &e, pairs, &made));
        }
        for (size_t k = 0; k < DH_COUNTOF(schedules) && best[i].says.pp > 1; k++) {
            entry e = best[i].says;
            e.schedule = schedules[k];
            if (!s->options->fixed_schedule) DH_TRY(try_entry(s, cut, &e, pairs, &made));
        }
    }
    return DH_OK;
}

/* The strategies that are tried in addition to the job's own, in turn. */
static dh_status find_strategies(searching *s)
{
    /* TUNING: not measured; two that hide communication in different ways, since each row costs
     * three simulations a length. */
    static const char usual[] = "flux,dhelix";
    const char *all = s->options->strategies;
    if (s->options->fixed_strategy || strpbrk(s->job.strategy, " \t\n,;{")) return DH_OK;
    char *list = dh_arena_strdup(s->plans->arena, all ? all : usual), *rest = NULL;
    s->strategies = DH_NEW_N(s->plans->arena, const char *, list ? strlen(list) + 1 : 1);
    if (!list || !s->strategies) return dh_no_memory(s->ctx);
    for (char *w = strtok_r(list, ", ", &rest); w; w = strtok_r(NULL, ", ", &rest)) {
        const dh_strategy *row;
        DH_TRY(dh_strategy_find(s->ctx, w, &row));
        if (strcmp(w, s->job.strategy) != 0) s->strategies[s->n_strategies++] = w;
    }
    return DH_OK;
}

/* ---- homes ----------------------------------------------------------------------------------- */

/* Of each length the mesh with the shortest row that fits by itself, among those of the job's own
 * strategy and schedule or among all. */
static dh_status add_home(searching *s, size_t cut, bool own)
{
    const choice *best = NULL;
    for (size_t i = 0; i < s->at[cut].n; i++) {
        const choice *c = &s->at[cut].at[i];
        if (own && (c->says.strategy || c->says.schedule)) continue;
        if (fits(s, (double)c->pass.peak_bytes) && (!best || row_ns(c) < row_ns(best))) best = c;
    }
    if (!best) return DH_OK;
    for (size_t i = 0; i < s->homes.n; i++)
        if (dh_recipes_lie_alike(&s->homes.at[i].job->recipe, &best->job->recipe)) return DH_OK;
    home h = {.says = best->says, .job = best->job};
    DH_TRY(dh_switched_update_of(s->ctx, &h.job->recipe, s->cores, &h.update_ns, &h.bytes));
    return dh_vec_push(&s->homes, h) ? DH_OK : dh_no_memory(s->ctx);
}

static dh_status move_ns(searching *s, const dh_resolved *from, const dh_resolved *to, double *ns)
{
    dh_switched_moves m;
    for (size_t i = 0; i < s->prices.n; i++) {
        const priced *p = &s->prices.at[i];
        *ns = p->ns;
        if (p->home == from && dh_recipes_lie_alike(&p->away->recipe, &to->recipe)) return DH_OK;
    }
    DH_TRY(dh_switched_moves_of(s->ctx, &from->recipe, &to->recipe, s->job.switch_overlap, s->cores,
                                &m));
    *ns = (double)(m.params_ns + m.grads_ns);
    return dh_vec_push(&s->prices, ((priced){from, to, *ns})) ? DH_OK : dh_no_memory(s->ctx);
}

/* ---- sets of groups -------------------------------------------------------------------------- */

/* A set, where it lives and what trains each of its groups. */
typedef struct set {
    unsigned ends;
    const home *home;
    const choice *of[DH_LENGTH_CUTS];
    double ns; /* INFINITY: nothing fits */
} set;

/* The shortest that fits beside the home, among those that lie there or not. */
static const choice *shortest(const searching *s, size_t cut, const home *h, double rows,
                              bool at_home)
{
    const choice *best = NULL;
    for (size_t i = 0; i < s->at[cut].n; i++) {
        const choice *c = &s->at[cut].at[i];
        const double own = at_home ? (double)c->pass.persistent_bytes : 0;
        if (dh_recipes_lie_alike(&c->job->recipe, &h->job->recipe) != at_home ||
            !fits(s, (double)c->pass.peak_bytes - own + (double)h->bytes))
            continue;
        if (!best || dh_switched_rows_ns(&c->pass, rows) < dh_switched_rows_ns(&best->pass, rows))
            best = c;
    }
    return best;
}

static dh_status choose_group(searching *s, size_t cut, double rows, set *t)
{
    const choice *here = shortest(s, cut, t->home, rows, true);
    const choice *away = shortest(s, cut, t->home, rows, false);
    double moves = 0, ns = INFINITY;
    if (here) ns = dh_switched_rows_ns(&here->pass, rows);
    t->of[cut] = here;
    if (away && dh_switched_rows_ns(&away->pass, rows) < ns) {
        DH_TRY(move_ns(s, t->home->job, away->job, &moves));
        const double there = dh_switched_rows_ns(&away->pass, rows) + moves;
        if (there < ns) t->of[cut] = away;
        ns = DH_MIN(ns, there);
    }
    t->ns += ns;
    return DH_OK;
}

/* Whether every group of a set has documents. */
static bool all_have(const searching *s, unsigned ends, const dh_switched_load *loads)
{
    for (size_t i = 0; i < s->n_cuts; i++)
        if (ends >> i & 1 && loads[i].rows <= 0) return false;
    return true;
}

static dh_status find_sets(searching *s, set *best)
{
    const unsigned last = 1u << (s->n_cuts - 1);
    for (unsigned ends = last; ends < 2 * last; ends++) {
        dh_switched_load loads[DH_LENGTH_CUTS];
        set *slot = &best[__builtin_popcount(ends) - 1];
        if (__builtin_popcount(ends) > DH_LENGTH_GROUPS_MOST) continue;
        DH_TRY(count_loads(s, ends, loads));
        for (size_t h = 0; h < s->homes.n && all_have(s, ends, loads); h++) {
            set t = {.ends = ends, .home = &s->homes.at[h]};
            t.ns = (double)t.home->update_ns;
            for (size_t i = 0; i < s->n_cuts && t.ns < INFINITY; i++)
                if (ends >> i & 1) DH_TRY(choose_group(s, i, loads[i].rows, &t));
            if (t.ns < slot->ns) *slot = t;
        }
    }
    return DH_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* If the home has a strategy or schedule of its own, a group with the job's must name that. */
static void append_group(const searching *s, const set *t, size_t cut, dh_str *out)
{
    const entry *e = &t->of[cut]->says, *at_home = &t->home->says;
    dh_str_printf(out, "%s%" PRId64 " %s", out->len ? "; " : "", s->cuts[cut], t->of[cut]->words);
    if (at_home->strategy && !e->strategy) append_word(out, "strategy", s->job.strategy);
    if (at_home->schedule && !e->schedule) append_word(out, "schedule", s->job.schedule);
}

static char *words_of_groups(const searching *s, const set *t)
{
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < s->n_cuts; i++)
        if (t->ends >> i & 1) append_group(s, t, i, &text);
    char *copy = text.failed ? NULL : dh_arena_strdup(s->plans->arena, text.text);
    dh_str_fini(&text);
    return copy;
}

static dh_status make_job(searching *s, const set *t, bool overlaps, dh_length_plan *plan)
{
    const dh_mesh *m = &t->home->job->recipe.mesh;
    const entry *e = &t->home->says;
    dh_job *job = DH_NEW(s->plans->arena, dh_job);
    if (!job || !plan->groups) return dh_no_memory(s->ctx);
    *job = s->job;
    job->derived = (dh_job_derived){.stale = false}; /* all is given from here on */
    job->packing = DH_PACKING_GROUP;
    job->switch_groups = plan->groups;
    job->switch_overlap = overlaps;
    job->tp = m->tp;
    job->cp = m->cp;
    job->pp = m->pp;
    job->dp = m->dp;
    job->micro_batch = 1;
    if (e->strategy) job->strategy = dh_arena_strdup(s->plans->arena, e->strategy);
    if (e->schedule) job->schedule = dh_arena_strdup(s->plans->arena, e->schedule);
    if (e->recompute) DH_TRY(dh_job_set(s->ctx, job, "train.recompute", e->recompute));
    if (job->model.n_layers % m->pp) job->layer_split = dh_arena_strdup(s->plans->arena, "*");
    dh_str words = DH_STR_INIT;
    dh_str_printf(&words, "parallel.dp=%" PRId64, m->dp);
    append_degree(&words, "parallel.tp", m->tp);
    append_degree(&words, "parallel.cp", m->cp);
    append_degree(&words, "parallel.pp", m->pp);
    dh_str_printf(&words, " parallel.zero=%" PRId64, job->zero);
    append_word(&words, "strategy", e->strategy);
    append_word(&words, "parallel.schedule", e->schedule);
    if (!overlaps && plan->n_groups > 1) dh_str_printf(&words, " switch.overlap=false");
    plan->home = words.failed ? NULL : dh_arena_strdup(s->plans->arena, words.text);
    dh_str_fini(&words);
    plan->job = job;
    return plan->home && job->layer_split && job->strategy && job->schedule
               ? dh_job_check(s->ctx, job)
               : dh_no_memory(s->ctx);
}

static dh_status price_plan(searching *s, const set *t, bool overlaps, dh_length_plan *plan)
{
    const dh_resolve_options how = {.cluster = s->options->cluster, .quiet = true};
    dh_resolved_destroy(plan->resolved);
    plan->resolved = NULL;
    DH_TRY(make_job(s, t, overlaps, plan));
    DH_TRY(dh_job_resolve(s->ctx, plan->job, &how, &plan->resolved));
    DH_TRY(dh_switched_simulate(s->ctx, plan->resolved, s->ds, &plan->switched));
    plan->fits = fits(s, (double)plan->switched.peak_bytes);
    return DH_OK;
}

/* Moves beside passes take memory that there may not be. */
static dh_status make_plan(searching *s, const set *t, dh_length_plan *plan)
{
    plan->n_groups = (size_t)__builtin_popcount(t->ends);
    plan->groups = words_of_groups(s, t);
    DH_TRY(price_plan(s, t, s->job.switch_overlap, plan));
    if (plan->fits || !s->job.switch_overlap || plan->n_groups == 1) return DH_OK;
    return price_plan(s, t, false, plan);
}

static int by_time(const void *x, const void *y)
{
    const dh_length_plan *a = x, *b = y;
    if (a->fits != b->fits) return a->fits ? -1 : 1;
    if (a->switched.step_ns != b->switched.step_ns)
        return a->switched.step_ns < b->switched.step_ns ? -1 : 1;
    return a->n_groups < b->n_groups ? -1 : a->n_groups > b->n_groups;
}

/* Add a plan's excess to its choices, whose memory lacks sums over ranks and the home's tensors. */
static void count_excess(searching *s, const set *t, const dh_length_plan *plan)
{
    const uint64_t excess =
        plan->switched.peak_bytes - (uint64_t)DH_MAX(s->options->memory_bytes, 0);
    for (size_t i = 0; i < s->n_cuts; i++)
        for (size_t k = 0; t->ends >> i & 1 && k < s->at[i].n; k++)
            if (&s->at[i].at[k] == t->of[i]) s->at[i].at[k].pass.peak_bytes += excess;
}

/* The best set with so many groups that fits as simulated, too. */
static dh_status make_fitting(searching *s, set t, dh_length_plan *plan)
{
    enum { MOST_TRIES = 4 };
    DH_TRY(make_plan(s, &t, plan));
    for (int i = 1; !plan->fits && i < MOST_TRIES; i++) {
        set again[DH_LENGTH_CUTS];
        count_excess(s, &t, plan);
        for (size_t k = 0; k < DH_LENGTH_CUTS; k++) again[k] = (set){.ns = INFINITY};
        DH_TRY(find_sets(s, again));
        t = again[plan->n_groups - 1];
        if (t.ns == INFINITY) return DH_OK;
        DH_TRY(make_plan(s, &t, plan));
    }
    return DH_OK;
}

static dh_status make_plans(searching *s, const set *best)
{
    dh_length_plans *p = s->plans;
    p->plans = DH_NEW_N(p->arena, dh_length_plan, s->n_cuts);
    if (!p->plans) return dh_no_memory(s->ctx);
    for (size_t i = 0; i < s->n_cuts; i++)
        if (best[i].ns < INFINITY) DH_TRY(make_fitting(s, best[i], &p->plans[p->n++]));
    if (p->n == 0)
        return dh_fail(s->ctx, DH_EINVAL,
                       "no mesh of %" PRId64 " ranks trains sequences of %" PRId64
                       " tokens in %.3g GB: more devices, train.recompute=full or more memory "
                       "would be needed",
                       s->job.ranks, s->job.seq_len, s->options->memory_bytes * 1e-9);
    qsort(p->plans, p->n, sizeof *p->plans, by_time);
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status search(searching *s)
{
    dh_switched_load loads[DH_LENGTH_CUTS];
    set best[DH_LENGTH_CUTS];
    for (size_t i = 0; i < DH_LENGTH_CUTS; i++) best[i] = (set){.ns = INFINITY};
    DH_TRY(dh_length_cuts_find(s->ctx, s->ds, s->job.seq_len,
                               n_search_steps(s) * s->job.global_batch, s->cuts, &s->n_cuts));
    DH_TRY(find_strategies(s));
    DH_TRY(count_loads(s, (1u << s->n_cuts) - 1, loads));
    for (size_t i = 0; i < s->n_cuts; i++) {
        const double pairs = loads[i].rows > 0 ? loads[i].pairs_twice / loads[i].rows : 0;
        DH_TRY(try_meshes(s, i, pairs));
        if (!s->options->fixed_recompute) DH_TRY(vary_recompute(s, i, pairs));
        DH_TRY(vary_best(s, i, pairs));
    }
    for (size_t i = 0; i < s->n_cuts; i++) DH_TRY(add_home(s, i, true));
    for (size_t i = 0; i < s->n_cuts; i++) DH_TRY(add_home(s, i, false));
    DH_TRY(find_sets(s, best));
    return make_plans(s, best);
}

dh_status dh_tune_lengths(dh_ctx *ctx, const dh_job *job, const dh_length_options *options,
                          dh_length_plans *plans)
{
    const dh_resolve_options open = {.cluster = options->cluster, .open = true, .quiet = true};
    searching s = {.ctx = ctx, .options = options, .plans = plans, .job = *job};
    dh_resolved *any = NULL;
    *plans = (dh_length_plans){.arena = dh_arena_create(), .memory_bytes = options->memory_bytes};
    if (!plans->arena) return dh_no_memory(ctx);
    s.job.packing = DH_PACKING_PACK;
    s.job.switch_groups = dh_arena_strdup(plans->arena, "");
    s.job.layer_split = s.job.switch_groups;
    s.job.zero = 1;
    dh_status st =
        s.job.switch_groups ? dh_job_resolve(ctx, &s.job, &open, &any) : dh_no_memory(ctx);
    if (st == DH_OK) s.job.model.vocab = any->job.model.vocab;
    if (st == DH_OK) s.cores = dh_train_cores(any);
    if (st == DH_OK) s.ranks_per_node = any->recipe.mesh.ranks_per_node;
    if (st == DH_OK)
        s.least_home = 12.0 * (double)dh_model_n_params(&s.job.model) / (double)s.job.ranks;
    if (st == DH_OK) st = dh_switched_documents(ctx, any, options->lengths, plans->reading, &s.ds);
    if (st == DH_OK) st = search(&s);
    for (size_t i = 0; i < DH_LENGTH_CUTS; i++) {
        for (size_t k = 0; k < s.at[i].n; k++) dh_resolved_destroy(s.at[i].at[k].job);
        dh_vec_fini(&s.at[i]);
    }
    dh_vec_fini(&s.homes);
    dh_vec_fini(&s.prices);
    dh_dataset_close(s.ds);
    dh_resolved_destroy(any);
    return st;
}

void dh_length_plans_fini(dh_length_plans *plans)
{
    for (size_t i = 0; i < plans->n; i++) dh_resolved_destroy(plans->plans[i].resolved);
    dh_arena_destroy(plans->arena);
    *plans = (dh_length_plans){.n = 0};
}
