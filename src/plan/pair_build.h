/* Shared by the files of the pairing search. */
#ifndef DH_PLAN_PAIR_BUILD_H
#define DH_PLAN_PAIR_BUILD_H

#include "plan/pairing.h"

/* ---- fluid times (pair_fluid.c) --------------------------------------------------------- */

/* Work per ns of two operators beside each other. */
typedef struct pair_rate {
    double f, b;
    bool allowed; /* by the options */
} pair_rate;

typedef struct pair_costs {
    const dh_pair_problem *problem;
    const dh_pair_options *options;
    const pair_rate *rates; /* [f.n][b.n], or NULL: worked out when needed */
} pair_costs;

/* Larger than any makespan; the sum of two and a makespan still fits. */
#define PAIR_NEVER (INT64_MAX / 4)

/* Operators of one strand, in order of execution. */
typedef struct pair_run {
    const int32_t *ops;
    int32_t n;
} pair_run;

/* Duration without round_ns, or PAIR_NEVER; ends may be NULL. */
int64_t pair_fluid(const pair_costs *costs, pair_run f, pair_run b, int64_t *f_end, int64_t *b_end);
dh_status pair_rates_make(dh_ctx *ctx, dh_arena *arena, pair_costs *costs);

/* ---- order of a strand, as lattices of what may be finished (pair_lattice.c) ------------ */

/* Predecessors, with those that keep fixed operators in their place. */
typedef struct pair_dag {
    int32_t n;
    const int32_t *first; /* [n + 1]: operator k has preds[first[k] .. first[k+1]) */
    const int32_t *preds;
} pair_dag;

dh_status pair_dag_make(dh_ctx *ctx, dh_arena *arena, dh_pair_strand strand, bool move_wgrad,
                        pair_dag *dag);
/* A topological order: of the operators that are ready, the one with the least key, then the
 * earliest. order, key: [n] */
dh_status pair_dag_order(dh_ctx *ctx, dh_arena *arena, const pair_dag *dag, const int32_t *key,
                         int32_t *order);

/* Operators that may be run as one segment, and in which orders. */
typedef struct pair_segment {
    int32_t n_ops, n_orders;
    size_t first; /* in lattice->ops: n_orders times n_ops operators */
} pair_segment;

/* From a set of finished operators to a larger one. */
typedef struct pair_edge {
    int32_t from, segment;
} pair_edge;

/* Sets that may be finished, smaller ones first; the last is everything. */
typedef struct pair_lattice {
    int32_t n_sets;
    DH_VEC(size_t) first_edge; /* [n_sets + 1]: edges into a set */
    DH_VEC(pair_edge) edges;
    DH_VEC(pair_segment) segments;
    DH_VEC(int32_t) ops;
    int64_t n_orders; /* over all segments */
} pair_lattice;

void pair_lattice_fini(pair_lattice *lattice);
/* The prefixes of one order. */
dh_status pair_lattice_chain(dh_ctx *ctx, const int32_t *order, int32_t n, int32_t max_segment,
                             pair_lattice *lattice);
/* All downward-closed sets: exact over all topological orders. */
dh_status pair_lattice_full(dh_ctx *ctx, const pair_dag *dag, int32_t max_segment,
                            int64_t max_edges, pair_lattice *lattice, bool *fits);
/* How many downward-closed sets there are; more than max_sets is max_sets + 1. */
int64_t pair_dag_count_sets(const pair_dag *dag, int64_t max_sets);
/* How many edges lead between them; more than max_edges is max_edges + 1. */
dh_status pair_dag_count_edges(dh_ctx *ctx, const pair_dag *dag, int32_t max_segment,
                               int64_t max_edges, int64_t *n_edges);

/* ---- search (pair_search.c) ------------------------------------------------------------- */

/* One round, or one operator of a run of one strand. */
typedef struct pair_move {
    int32_t n_f, n_b;
    int32_t f[DH_PAIR_MAX_SEGMENT], b[DH_PAIR_MAX_SEGMENT];
} pair_move;

typedef struct dh_pair_search {
    pair_costs costs;
    dh_arena *arena; /* the search's; notes live in it too */
    pair_dag f, b;
    /* Filled by a policy. */
    DH_VEC(pair_move) moves; /* in order of execution */
    int64_t n_states, n_moves;
    const char *note;
} dh_pair_search;

dh_status pair_push(dh_ctx *ctx, dh_pair_search *search, pair_run f, pair_run b);

/* The cheapest way through both lattices. Replaces search->moves and adds to its counts when
 * the way is cheaper than *best_ns; *best_ns is then its cost. */
dh_status pair_solve(dh_ctx *ctx, dh_pair_search *search, const pair_lattice *f,
                     const pair_lattice *b, int64_t *best_ns);
/* Paired moves of pair_solve, a fluid time counted as PAIR_FLUID_MOVES; INT64_MAX: overflow. */
int64_t pair_solve_moves(const pair_lattice *f, const pair_lattice *b);
/* TUNING (bench/plan): a fluid time takes 60 to 100 ns, a move 1 to 1.5 ns. */
#define PAIR_FLUID_MOVES 64

/* ---- result (pair_result.c) ------------------------------------------------------------- */

/* Rounds with times from the moves of a search. */
dh_status pair_result_make(dh_ctx *ctx, const dh_pair_search *search, dh_pair_plan *plan);

/* ---- policies (pair_policies.c) --------------------------------------------------------- */

dh_status pair_search_sequential(dh_ctx *ctx, dh_pair_search *search);
dh_status pair_search_round_robin(dh_ctx *ctx, dh_pair_search *search);
dh_status pair_search_dp(dh_ctx *ctx, dh_pair_search *search);
dh_status pair_search_dp_orders(dh_ctx *ctx, dh_pair_search *search);
dh_status pair_search_exact(dh_ctx *ctx, dh_pair_search *search);

/* ---- for tests and bench/plan, which look inside ---------------------------------------- */

/* The table of policies (pair.c). */
const dh_pair_policy *pair_policies(size_t *n);

/* Checks a plan: every operator runs once, after its predecessors and within the options. The
 * plan's times must be those of the fluid model.
 * errors    DH_EINVAL: names round and operator; those of dh_pair_problem_validate; DH_ENOMEM */
dh_status pair_plan_validate(dh_ctx *ctx, const dh_pair_problem *problem,
                             const dh_pair_options *options, const dh_pair_plan *plan);

/* Text for people, appended to out: totals, and the two strands as bars over time. Then come both
 * segments of every round with times and slow-down, and the other policies.
 * errors    DH_ENOMEM */
dh_status pair_plan_draw(dh_ctx *ctx, const dh_pair_problem *problem, const dh_pair_plan *plan,
                         dh_str *out);

/* P(segment, segment): time from the common start until both segments are done, without
 * round_ns. One of them may be empty. Operators are not checked against the DAGs.
 * out       f_end [n_f], b_end [n_b]: ends relative to the start; each may be NULL
 * returns   -1 when the options do not allow it; options NULL: DH_PAIR_OPTIONS_INIT
 * in        a validated problem */
int64_t pair_coexecute(const dh_pair_problem *problem, const dh_pair_options *options,
                       const int32_t *f_ops, int32_t n_f, const int32_t *b_ops, int32_t n_b,
                       int64_t *f_end, int64_t *b_end);

/* Fill together [f.n][b.n] from a matrix.
 * in        rows [f.n], columns [b.n]: the matrix's name for each operator; NULL entries, or
 *           matrix NULL: the modelled value of the two engines
 * errors    DH_EMISSING an unknown name, with the nearest one */
dh_status pair_times_from_matrix(dh_ctx *ctx, const dh_oef_matrix *matrix, dh_pair_strand f,
                                 const char *const *rows, dh_pair_strand b,
                                 const char *const *columns, dh_pair_time *together);

#endif
