/* The search: one dynamic programme over pairs of sets, the finished forward operators and the
 * finished backward operators. This is the paper's equation 2.
 *   T(i, j) = min { T(i', j) + P(i' -> i, 0), T(i, j') + P(0, j' -> j),
 *                   T(i', j') + P(i' -> i, j' -> j) }
 * Here i and j run over the nodes of two lattices. Over the prefixes of one order it is the
 * paper's search, all cuts at once. Over all downward-closed sets it is also exact over all
 * topological orders.
 *
 * A run of one strand alone costs round_ns once, whatever its length. A state therefore also has
 * the cheapest way that ends in a forward run, and in a backward run. Nothing is pruned: more
 * finished work is no advantage if co-execution slows down by more than it saves. */
#include <stdlib.h>
#include <string.h>

#include "pair_build.h"

typedef enum state_kind { ANY, RUN_F, RUN_B, N_KINDS } state_kind;

/* An edge of one operator, which a strand may take alone. */
typedef struct pair_step {
    int32_t from;
    int64_t solo_ns;
} pair_step;

/* The steps of a lattice: at[first[k] .. first[k + 1]) lead into set k. */
typedef struct pair_steps {
    size_t *first; /* [n_sets + 1] */
    pair_step *at;
} pair_steps;

typedef struct table {
    dh_ctx *ctx;
    dh_pair_search *search;
    const pair_lattice *f, *b;
    pair_steps f_steps, b_steps;
    size_t n_b;             /* sets of b: the length of a row */
    int64_t *cost[N_KINDS]; /* [f sets][b sets]; ANY is the least of all */
    int64_t *paired;        /* [f segments][b segments]: with round_ns, in the best orders */
    int64_t *row;           /* [b sets]: best paired moves into the current row */
} table;

static void table_fini(table *t)
{
    for (int k = 0; k < N_KINDS; k++) free(t->cost[k]);
    free(t->paired);
    free(t->row);
    free(t->f_steps.first);
    free(t->f_steps.at);
    free(t->b_steps.first);
    free(t->b_steps.at);
}

/* Solo time of the one operator of an edge; -1 where an edge has more. */
static int64_t solo_of(const pair_lattice *l, const dh_pair_op *ops, pair_edge edge)
{
    const pair_segment *segment = &l->segments.at[edge.segment];
    return segment->n_ops == 1 ? ops[l->ops.at[segment->first]].solo_ns : -1;
}

/* returns   false: no memory */
static bool steps_init(pair_steps *steps, const pair_lattice *l, const dh_pair_op *ops)
{
    size_t n = 0;
    steps->first = malloc(((size_t)l->n_sets + 1) * sizeof *steps->first);
    steps->at = malloc((l->edges.n + 1) * sizeof *steps->at);
    if (!steps->first || !steps->at) return false;
    for (int32_t set = 0; set < l->n_sets; set++) {
        steps->first[set] = n;
        for (size_t i = l->first_edge.at[set]; i < l->first_edge.at[set + 1]; i++) {
            const int64_t solo = solo_of(l, ops, l->edges.at[i]);
            if (solo >= 0) steps->at[n++] = (pair_step){l->edges.at[i].from, solo};
        }
    }
    steps->first[l->n_sets] = n;
    return true;
}

static dh_status table_init(table *t)
{
    const size_t n = (size_t)t->f->n_sets * t->n_b;
    const dh_pair_problem *p = t->search->costs.problem;
    bool ok = steps_init(&t->f_steps, t->f, p->f.ops) && steps_init(&t->b_steps, t->b, p->b.ops);
    for (int k = 0; k < N_KINDS; k++) ok = (t->cost[k] = calloc(n, sizeof(int64_t))) && ok;
    t->paired = malloc((t->f->segments.n * t->b->segments.n + 1) * sizeof(int64_t));
    t->row = malloc(t->n_b * sizeof(int64_t));
    if (ok && t->paired && t->row) return DH_OK;
    return dh_no_memory(t->ctx);
}

/* ---- costs of moves --------------------------------------------------------------------- */

static pair_run order_of(const pair_lattice *l, const pair_segment *segment, int32_t k)
{
    return (pair_run){l->ops.at + segment->first + (size_t)k * (size_t)segment->n_ops,
                      segment->n_ops};
}

/* Best orders of two segments; f and b may be NULL. */
static int64_t best_orders(const table *t, const pair_segment *fs, const pair_segment *bs,
                           pair_run *f, pair_run *b)
{
    int64_t best = PAIR_NEVER;
    for (int32_t i = 0; i < fs->n_orders; i++)
        for (int32_t j = 0; j < bs->n_orders; j++) {
            const pair_run fr = order_of(t->f, fs, i), br = order_of(t->b, bs, j);
            const int64_t ns = pair_fluid(&t->search->costs, fr, br, NULL, NULL);
            if (ns >= best) continue;
            best = ns;
            if (f) *f = fr;
            if (b) *b = br;
        }
    return best == PAIR_NEVER ? best : best + t->search->costs.problem->round_ns;
}

static void fill_paired(table *t)
{
    int64_t *at = t->paired;
    for (size_t i = 0; i < t->f->segments.n; i++)
        for (size_t j = 0; j < t->b->segments.n; j++)
            *at++ = best_orders(t, &t->f->segments.at[i], &t->b->segments.at[j], NULL, NULL);
}

/* ---- tables ----------------------------------------------------------------------------- */

/* The tables' rows for one edge of f: costs before it, and times of its segment. */
typedef struct pair_source {
    const int64_t *before, *move;
} pair_source;

static pair_source source_of(const table *t, size_t edge)
{
    const pair_edge f = t->f->edges.at[edge];
    return (pair_source){t->cost[ANY] + (size_t)f.from * t->n_b,
                         t->paired + (size_t)f.segment * t->b->segments.n};
}

/* The innermost loops: two edges of f with every edge of b, whose reading they share. A function
 * of its own: its pointers stay in registers. */
__attribute__((noinline)) static void relax_edges(const pair_lattice *b, pair_source one,
                                                  pair_source two, int64_t *restrict row)
{
    const size_t *const first = b->first_edge.at, n_b = (size_t)b->n_sets;
    const pair_edge *edge = b->edges.at + first[1];
    for (size_t y = 1; y < n_b; y++) {
        int64_t best = row[y], other = PAIR_NEVER;
        for (const pair_edge *end = b->edges.at + first[y + 1]; edge < end; edge++) {
            const int64_t by_one = one.before[edge->from] + one.move[edge->segment];
            const int64_t by_two = two.before[edge->from] + two.move[edge->segment];
            best = DH_MIN(best, by_one);
            other = DH_MIN(other, by_two);
        }
        row[y] = DH_MIN(best, other);
    }
}

/* All pairs of an edge into f set x and an edge into any b set. Of an odd number the last is its
 * own neighbour: a minimum twice is one. */
static void relax_paired(table *t, int32_t x)
{
    for (size_t y = 0; y < t->n_b; y++) t->row[y] = PAIR_NEVER;
    const size_t end = t->f->first_edge.at[x + 1];
    for (size_t i = t->f->first_edge.at[x]; i < end; i += 2)
        relax_edges(t->b, source_of(t, i), source_of(t, DH_MIN(i + 1, end - 1)), t->row);
}

/* A run goes on for the operator's time; starting one costs round_ns more. */
static int64_t run_to(int64_t going_on_ns, int64_t any_ns, int64_t round_ns, int64_t solo_ns)
{
    return solo_ns + DH_MIN(going_on_ns, any_ns + round_ns);
}

/* Row x of the ways that end in a run of f, from rows before it. */
static void relax_runs_f(table *t, int32_t x)
{
    const int64_t round_ns = t->search->costs.problem->round_ns;
    int64_t *restrict run = t->cost[RUN_F] + (size_t)x * t->n_b;
    for (size_t y = 0; y < t->n_b; y++) run[y] = PAIR_NEVER;
    for (size_t i = t->f_steps.first[x]; i < t->f_steps.first[x + 1]; i++) {
        const pair_step step = t->f_steps.at[i];
        const int64_t *restrict any = t->cost[ANY] + (size_t)step.from * t->n_b;
        const int64_t *restrict before = t->cost[RUN_F] + (size_t)step.from * t->n_b;
        for (size_t y = 0; y < t->n_b; y++) {
            const int64_t ns = run_to(before[y], any[y], round_ns, step.solo_ns);
            run[y] = DH_MIN(run[y], ns);
        }
    }
}

/* Row x of the ways that end in a run of b, from earlier in the row, and the least of all ways. */
static void relax_runs_b(table *t, int32_t x)
{
    const int64_t round_ns = t->search->costs.problem->round_ns;
    const size_t row = (size_t)x * t->n_b;
    const int64_t *run_f = t->cost[RUN_F] + row;
    int64_t *run = t->cost[RUN_B] + row, *any = t->cost[ANY] + row;
    for (size_t y = 0; y < t->n_b; y++) {
        int64_t best = PAIR_NEVER;
        for (size_t i = t->b_steps.first[y]; i < t->b_steps.first[y + 1]; i++) {
            const pair_step step = t->b_steps.at[i];
            const int64_t ns = run_to(run[step.from], any[step.from], round_ns, step.solo_ns);
            best = DH_MIN(best, ns);
        }
        run[y] = best;
        best = DH_MIN(best, run_f[y]);
        any[y] = DH_MIN(best, t->row[y]);
    }
}

static void fill(table *t)
{
    for (int32_t x = 0; x < t->f->n_sets; x++) {
        relax_paired(t, x);
        if (x == 0) t->row[0] = 0; /* where all begins */
        relax_runs_f(t, x);
        relax_runs_b(t, x);
    }
}

/* ---- the way back ----------------------------------------------------------------------- */

typedef struct place {
    int32_t x, y;
    state_kind kind;
} place;

static int64_t cost_at(const table *t, place p)
{
    return t->cost[p.kind][(size_t)p.x * t->n_b + (size_t)p.y];
}

/* Undo one operator of a run; equal costs prefer the run that goes on. */
static dh_status undo_run(table *t, place *p)
{
    const bool is_f = p->kind == RUN_F;
    const pair_lattice *l = is_f ? t->f : t->b;
    const dh_pair_problem *problem = t->search->costs.problem;
    const dh_pair_op *ops = is_f ? problem->f.ops : problem->b.ops;
    const int32_t set = is_f ? p->x : p->y;
    for (size_t i = l->first_edge.at[set]; i < l->first_edge.at[set + 1]; i++) {
        const pair_edge edge = l->edges.at[i];
        const int64_t solo = solo_of(l, ops, edge);
        place from = is_f ? (place){edge.from, p->y, RUN_F} : (place){p->x, edge.from, RUN_B};
        const size_t at = (size_t)from.x * t->n_b + (size_t)from.y;
        if (solo < 0 || run_to(t->cost[p->kind][at], t->cost[ANY][at], problem->round_ns, solo) !=
                            cost_at(t, *p))
            continue;
        if (cost_at(t, from) + solo != cost_at(t, *p)) from.kind = ANY;
        *p = from;
        const pair_run op = order_of(l, &l->segments.at[edge.segment], 0), none = {NULL, 0};
        return pair_push(t->ctx, t->search, is_f ? op : none, is_f ? none : op);
    }
    DH_CHECK(false, "a run without its start at (%d, %d)", p->x, p->y);
}

static dh_status undo_pair(table *t, place *p)
{
    for (size_t i = t->f->first_edge.at[p->x]; i < t->f->first_edge.at[p->x + 1]; i++)
        for (size_t j = t->b->first_edge.at[p->y]; j < t->b->first_edge.at[p->y + 1]; j++) {
            const pair_edge f = t->f->edges.at[i], b = t->b->edges.at[j];
            const place from = {f.from, b.from, ANY};
            const size_t move = (size_t)f.segment * t->b->segments.n + (size_t)b.segment;
            if (cost_at(t, from) + t->paired[move] != cost_at(t, *p)) continue;
            pair_run f_run = {NULL, 0}, b_run = {NULL, 0};
            best_orders(t, &t->f->segments.at[f.segment], &t->b->segments.at[b.segment], &f_run,
                        &b_run);
            *p = from;
            return pair_push(t->ctx, t->search, f_run, b_run);
        }
    DH_CHECK(false, "a pair without its start at (%d, %d)", p->x, p->y);
}

/* Moves from the end to the start, then turned round. Of equal ways the one that overlaps
 * less: it depends less on what was measured beside each other. */
static dh_status trace(table *t)
{
    dh_pair_search *s = t->search;
    s->moves.n = 0;
    place p = {t->f->n_sets - 1, t->b->n_sets - 1, ANY};
    while (p.x > 0 || p.y > 0) {
        const int64_t ns = cost_at(t, p);
        for (int k = RUN_F; k < N_KINDS && p.kind == ANY; k++)
            if (cost_at(t, (place){p.x, p.y, (state_kind)k}) == ns) p.kind = (state_kind)k;
        DH_TRY(p.kind == ANY ? undo_pair(t, &p) : undo_run(t, &p));
    }
    for (size_t i = 0; i < s->moves.n / 2; i++) {
        const pair_move move = s->moves.at[i];
        s->moves.at[i] = s->moves.at[s->moves.n - 1 - i];
        s->moves.at[s->moves.n - 1 - i] = move;
    }
    return DH_OK;
}

/* ---- entry ------------------------------------------------------------------------------ */

dh_status pair_push(dh_ctx *ctx, dh_pair_search *search, pair_run f, pair_run b)
{
    pair_move move = {.n_f = f.n, .n_b = b.n};
    if (f.n) memcpy(move.f, f.ops, (size_t)f.n * sizeof *f.ops);
    if (b.n) memcpy(move.b, b.ops, (size_t)b.n * sizeof *b.ops);
    if (dh_vec_push(&search->moves, move)) return DH_OK;
    return dh_no_memory(ctx);
}

int64_t pair_solve_moves(const pair_lattice *f, const pair_lattice *b)
{
    int64_t moves, times;
    if (__builtin_mul_overflow((int64_t)f->edges.n, (int64_t)b->edges.n, &moves) ||
        __builtin_mul_overflow(f->n_orders * PAIR_FLUID_MOVES, b->n_orders, &times) ||
        __builtin_add_overflow(moves, times, &moves))
        return INT64_MAX;
    return moves;
}

dh_status pair_solve(dh_ctx *ctx, dh_pair_search *search, const pair_lattice *f,
                     const pair_lattice *b, int64_t *best_ns)
{
    table t = {.ctx = ctx, .search = search, .f = f, .b = b, .n_b = (size_t)b->n_sets};
    dh_status st = table_init(&t);
    if (st == DH_OK) {
        fill_paired(&t);
        fill(&t);
        search->n_states += (int64_t)f->n_sets * b->n_sets;
        search->n_moves += pair_solve_moves(f, b);
        const int64_t ns = cost_at(&t, (place){f->n_sets - 1, b->n_sets - 1, ANY});
        if (ns < *best_ns) {
            *best_ns = ns;
            st = trace(&t);
        }
    }
    table_fini(&t);
    return st;
}
