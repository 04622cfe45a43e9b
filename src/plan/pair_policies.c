/* The policies: what is run beside what, from nothing to everything that could help. */
#include <stdarg.h>
#include <stdio.h>

#include "base/c_locale.h"
#include "pair_build.h"

/* ---- without a search ------------------------------------------------------------------- */

static dh_status push_alone(dh_ctx *ctx, dh_pair_search *s, int32_t n, bool is_f)
{
    for (int32_t k = 0; k < n; k++) {
        const pair_run op = {&k, 1}, none = {NULL, 0};
        DH_TRY(pair_push(ctx, s, is_f ? op : none, is_f ? none : op));
    }
    return DH_OK;
}

dh_status pair_search_sequential(dh_ctx *ctx, dh_pair_search *s)
{
    DH_TRY(push_alone(ctx, s, s->f.n, true));
    return push_alone(ctx, s, s->b.n, false);
}

dh_status pair_search_round_robin(dh_ctx *ctx, dh_pair_search *s)
{
    const pair_run none = {NULL, 0};
    for (int32_t k = 0; k < DH_MAX(s->f.n, s->b.n); k++) {
        const pair_run f = {&k, k < s->f.n}, b = {&k, k < s->b.n};
        if (pair_fluid(&s->costs, f, b, NULL, NULL) < PAIR_NEVER) {
            DH_TRY(pair_push(ctx, s, f, b));
            continue;
        }
        DH_TRY(pair_push(ctx, s, f, none));
        DH_TRY(pair_push(ctx, s, none, b));
    }
    return DH_OK;
}

/* ---- fixed orders ----------------------------------------------------------------------- */

static dh_status solve_orders(dh_ctx *ctx, dh_pair_search *s, const int32_t *f_order,
                              const int32_t *b_order, int64_t *best_ns)
{
    const int32_t longest = s->costs.options->max_segment;
    pair_lattice f, b;
    DH_TRY(pair_lattice_chain(ctx, f_order, s->f.n, longest, &f));
    dh_status st = pair_lattice_chain(ctx, b_order, s->b.n, longest, &b);
    if (st == DH_OK) {
        st = pair_solve(ctx, s, &f, &b, best_ns);
        pair_lattice_fini(&b);
    }
    pair_lattice_fini(&f);
    return st;
}

/* Keys for pair_dag_order: what comes first when several operators are ready. */
static int32_t key_given(const dh_pair_op *ops, int32_t k)
{
    return k;
}
static int32_t key_wgrad_late(const dh_pair_op *ops, int32_t k)
{
    return ops[k].movable;
}
static int32_t key_wgrad_early(const dh_pair_op *ops, int32_t k)
{
    return !ops[k].movable;
}
static int32_t key_comm_early(const dh_pair_op *ops, int32_t k)
{
    return ops[k].engine == DH_ENGINE_COMPUTE;
}
static int32_t key_comm_late(const dh_pair_op *ops, int32_t k)
{
    return ops[k].engine != DH_ENGINE_COMPUTE;
}
static int32_t (*const key_rules[])(const dh_pair_op *, int32_t) = {
    key_given, key_wgrad_late, key_wgrad_early, key_comm_early, key_comm_late};
enum { N_RULES = DH_COUNTOF(key_rules) };

/* Orders by all rules, [N_RULES][n]; the first is the given one. */
static dh_status list_orders(dh_ctx *ctx, dh_pair_search *s, dh_pair_strand strand,
                             const pair_dag *dag, int32_t **orders)
{
    int32_t *key = DH_NEW_N(s->arena, int32_t, strand.n + 1);
    *orders = DH_NEW_N(s->arena, int32_t, (size_t)N_RULES * (size_t)strand.n + 1);
    if (!key || !*orders) return dh_no_memory(ctx);
    for (int32_t r = 0; r < N_RULES; r++) {
        for (int32_t k = 0; k < strand.n; k++) key[k] = key_rules[r](strand.ops, k);
        DH_TRY(pair_dag_order(ctx, s->arena, dag, key, *orders + (size_t)r * (size_t)strand.n));
    }
    return DH_OK;
}

/* Replaces the moves so far where a pair of orders is cheaper than *best_ns. */
static dh_status solve_rules(dh_ctx *ctx, dh_pair_search *s, int32_t n_rules, int64_t *best_ns)
{
    int32_t *f, *b;
    DH_TRY(list_orders(ctx, s, s->costs.problem->f, &s->f, &f));
    DH_TRY(list_orders(ctx, s, s->costs.problem->b, &s->b, &b));
    for (int32_t i = 0; i < n_rules; i++)
        for (int32_t j = 0; j < n_rules; j++)
            DH_TRY(solve_orders(ctx, s, f + (size_t)i * (size_t)s->f.n,
                                b + (size_t)j * (size_t)s->b.n, best_ns));
    return DH_OK;
}

dh_status pair_search_dp(dh_ctx *ctx, dh_pair_search *s)
{
    int64_t best_ns = INT64_MAX;
    return solve_rules(ctx, s, 1, &best_ns);
}

dh_status pair_search_dp_orders(dh_ctx *ctx, dh_pair_search *s)
{
    int64_t best_ns = INT64_MAX;
    return solve_rules(ctx, s, N_RULES, &best_ns);
}

/* ---- all orders ------------------------------------------------------------------------- */

/* Why not everything was searched; kept in the search's note. */
static dh_status keep_note(dh_ctx *ctx, dh_pair_search *s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static dh_status keep_note(dh_ctx *ctx, dh_pair_search *s, const char *fmt, ...)
{
    char why[256];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    s->note = dh_arena_strdup(s->arena, why);
    return s->note ? DH_OK : dh_no_memory(ctx);
}

/* Edges of one lattice, when every one of the other's sets has at least one. */
static int64_t edges_beside(const dh_pair_search *s, int64_t n_other_sets)
{
    const int64_t most = INT64_C(1) << 25; /* 256 MB */
    return DH_MIN(s->costs.options->max_moves / DH_MAX(1, n_other_sets - 1), most);
}

/* With segments of at most `longest`; *fits says whether max_moves was enough. */
static dh_status solve_all(dh_ctx *ctx, dh_pair_search *s, const int64_t n_sets[2], int32_t longest,
                           int64_t *best_ns, bool *fits)
{
    pair_lattice f, b;
    DH_TRY(pair_lattice_full(ctx, &s->f, longest, edges_beside(s, n_sets[1]), &f, fits));
    dh_status st = DH_OK;
    if (*fits) {
        st = pair_lattice_full(ctx, &s->b, longest, edges_beside(s, n_sets[0]), &b, fits);
        if (st == DH_OK) {
            *fits = *fits && pair_solve_moves(&f, &b) <= s->costs.options->max_moves;
            if (*fits) st = pair_solve(ctx, s, &f, &b, best_ns);
            pair_lattice_fini(&b);
        }
    }
    pair_lattice_fini(&f);
    return st;
}

/* Whether the states of all orders are few enough to keep. */
static dh_status count_states(dh_ctx *ctx, dh_pair_search *s, int64_t n_sets[2], bool *fits)
{
    const dh_pair_options *o = s->costs.options;
    *fits = false;
    if (DH_MAX(s->f.n, s->b.n) > DH_PAIR_MAX_EXACT_OPS)
        return keep_note(ctx, s,
                         "exact needs at most %d operators a strand, here are %d and %d: dp-orders "
                         "instead",
                         DH_PAIR_MAX_EXACT_OPS, s->f.n, s->b.n);
    n_sets[0] = pair_dag_count_sets(&s->f, o->max_states);
    n_sets[1] = pair_dag_count_sets(&s->b, o->max_states / n_sets[0]);
    *fits = n_sets[0] <= o->max_states && n_sets[0] * n_sets[1] <= o->max_states;
    if (*fits) return DH_OK;
    return keep_note(ctx, s, "exact needs more than max_states = %lld states: dp-orders instead",
                     (long long)o->max_states);
}

static dh_status note_moves(dh_ctx *ctx, dh_pair_search *s, int32_t longest)
{
    const dh_pair_options *o = s->costs.options;
    const long long most = (long long)o->max_moves;
    if (longest == 0)
        return keep_note(ctx, s, "exact needs more than max_moves = %lld moves: dp-orders instead",
                         most);
    return keep_note(ctx, s,
                     "exact needs more than max_moves = %lld moves for segments of %d operators: "
                     "the better of exact with %d and dp-orders with %d",
                     most, o->max_segment, longest, o->max_segment);
}

/* The longest segments with which the edges of both lattices stay within max_moves. Edges are only
 * counted, which costs far less than listing them: each more operator multiplies their number. */
static dh_status longest_within(dh_ctx *ctx, dh_pair_search *s, int32_t wanted, int32_t *longest)
{
    const int64_t max_moves = s->costs.options->max_moves;
    int64_t n_f, n_b = 1;
    for (*longest = 0; *longest < wanted; ++*longest) {
        const int64_t most_f = max_moves / DH_MAX(1, n_b);
        DH_TRY(pair_dag_count_edges(ctx, &s->f, *longest + 1, most_f, &n_f));
        const int64_t most_b = max_moves / DH_MAX(1, n_f);
        DH_TRY(pair_dag_count_edges(ctx, &s->b, *longest + 1, most_b, &n_b));
        if (n_f > most_f || n_b > most_b) break;
    }
    return DH_OK;
}

/* Every order of a strand without a partner takes the same time. From the end on: of the operators
 * that no other one waits for, the first in the given order. */
static dh_status push_without_partner(dh_ctx *ctx, dh_pair_search *s)
{
    const bool is_f = s->f.n > 0;
    const pair_dag *dag = is_f ? &s->f : &s->b;
    const pair_run none = {NULL, 0};
    int32_t *order = DH_NEW_N(s->arena, int32_t, dag->n + 1);
    int32_t *waiting = DH_NEW_N(s->arena, int32_t, dag->n + 1); /* -1: has its place */
    if (!order || !waiting) return dh_no_memory(ctx);
    for (int32_t i = 0; i < dag->first[dag->n]; i++) waiting[dag->preds[i]]++;
    for (int32_t at = dag->n - 1; at >= 0; at--) {
        int32_t k = 0;
        while (waiting[k] != 0) k++;
        order[at] = k;
        waiting[k] = -1;
        for (int32_t i = dag->first[k]; i < dag->first[k + 1]; i++) waiting[dag->preds[i]]--;
    }
    for (int32_t at = 0; at < dag->n; at++) {
        const pair_run op = {&order[at], 1};
        DH_TRY(pair_push(ctx, s, is_f ? op : none, is_f ? none : op));
    }
    return DH_OK;
}

/* If max_moves is too small for the wanted segments, shorter ones are searched over all orders,
 * and the wanted length over a few orders. The better result counts. In the cases of bench/plan
 * the former finds more. */
dh_status pair_search_exact(dh_ctx *ctx, dh_pair_search *s)
{
    const dh_pair_options *o = s->costs.options;
    int64_t n_sets[2] = {0}, best_ns = INT64_MAX;
    const int32_t wanted = o->max_segment;
    int32_t longest;
    bool fits;
    if (s->f.n == 0 || s->b.n == 0) return push_without_partner(ctx, s);
    DH_TRY(count_states(ctx, s, n_sets, &fits));
    if (!fits) return solve_rules(ctx, s, N_RULES, &best_ns);
    DH_TRY(longest_within(ctx, s, wanted, &longest));
    for (fits = false; longest > 0 && !fits; longest -= !fits)
        DH_TRY(solve_all(ctx, s, n_sets, longest, &best_ns, &fits));
    if (longest == wanted) return DH_OK;
    DH_TRY(note_moves(ctx, s, longest));
    return solve_rules(ctx, s, N_RULES, &best_ns);
}
