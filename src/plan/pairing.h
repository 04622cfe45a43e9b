/* Pairing: which operators of one strand's forward run at the same time as which operators of
 * the other strand's backward (DHelix, arXiv 2411.15871, "operator pairing").
 *
 * Input are two operator DAGs, the time of every operator alone, and for every pair
 * (forward operator, backward operator) the completion times of both when they start
 * together. A plan is a list of rounds. A round runs operators of one strand alone, or a
 * segment of each strand at the same time. Inside a round each strand runs its operators one
 * after the other. The next round starts when both segments are done.
 *
 * Fluid model of a pair of segments: at each instant the two current operators progress
 * at their mutual rates (solo ns of work per ns). When one of them ends, its strand
 * continues with its next operator. At the end of its segment the other strand continues
 * alone, at rate 1. Rates of a pair with solo times s_f, s_b and completion times t_f <= t_b:
 *   r_f = s_f / t_f                        f ran with b all its time
 *   r_b = (s_b - (t_b - t_f)) / t_f        b ran the rest, t_b - t_f, alone
 * and likewise with f and b exchanged. A pair of single operators therefore takes exactly the
 * measured time. r_b is negative where b lost more time than it had run; it is kept.
 *
 * Not modelled: operators of the same strand at the same time (the paper's
 * self-overlapping operators). All times are in nanoseconds. */
#ifndef DH_PLAN_PAIRING_H
#define DH_PLAN_PAIRING_H

#include "base/base.h"
#include "base/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the problem ------------------------------------------------------------------------ */

/* X(name, text): where a time comes from. */
#define DH_PAIR_SOURCE_LIST(X)                                                                     \
    X(MEASURED, "measured")                                                                        \
    X(IMPORTED, "imported")                                                                        \
    X(MODELLED, "modelled")

typedef enum dh_pair_source {
#define X(name, text) DH_PAIR_##name,
    DH_PAIR_SOURCE_LIST(X)
#undef X
        DH_N_PAIR_SOURCES
} dh_pair_source;

const char *dh_pair_source_name(dh_pair_source source);

#define DH_PAIR_MAX_OPS 8192                    /* of a strand */
#define DH_PAIR_MAX_PAIRS (INT64_C(1) << 22)    /* of an operator of either: 840 MB to search */
#define DH_PAIR_MAX_EXACT_OPS 64                /* of a strand, for the exact search */
#define DH_PAIR_MAX_NS INT64_C(100000000000000) /* of one time: 28 hours; sums stay in int64 */
#define DH_PAIR_MAX_SEGMENT 8                   /* operators of a strand in a paired round */

typedef struct dh_pair_op {
    const char *name;
    dh_engine engine;
    int64_t solo_ns; /* alone on its resource, 0..DH_PAIR_MAX_NS */
    dh_pair_source source;
    const int32_t *preds; /* [n_preds] operators of the same strand, before this one */
    int32_t n_preds;
    bool movable; /* weight gradient: leaves its place only under move_wgrad */
} dh_pair_op;

/* Operators in an order that computes: predecessors come first. */
typedef struct dh_pair_strand {
    const dh_pair_op *ops; /* [n] */
    int32_t n;             /* 0..DH_PAIR_MAX_OPS */
} dh_pair_strand;

/* Completion times of a forward and a backward operator that start together. */
typedef struct dh_pair_time {
    int64_t f_ns, b_ns; /* 1..DH_PAIR_MAX_NS; not read where either solo time is 0 */
    dh_pair_source source;
} dh_pair_time;

typedef struct dh_pair_problem {
    dh_pair_strand f, b;
    const dh_pair_time *together; /* [f.n][b.n], DH_PAIR_MAX_PAIRS at most */
    int64_t round_ns;             /* launch and barrier at the start of every round */
} dh_pair_problem;

/* X(field, what it allows): the paper's ablation. A paired round in which two operators
 * that may not overlap would run at the same instant is not offered to the search. */
#define DH_PAIR_SWITCH_LIST(X)                                                                     \
    X(overlap_local, "node-local communication (TP) during the other strand")                      \
    X(overlap_cross, "communication between nodes (CP, EP) during the other strand")               \
    X(overlap_comm_comm, "communication of one strand during communication of the other")          \
    X(move_wgrad, "weight gradients away from their place in the given order")

typedef struct dh_pair_options {
#define X(field, doc) bool field;
    DH_PAIR_SWITCH_LIST(X)
#undef X
    int32_t max_segment; /* 1..DH_PAIR_MAX_SEGMENT operators of a strand in a paired round; runs of
                          * one strand alone are not bounded */
    int64_t max_states;  /* exact: pairs of finished sets it may keep, 24 bytes each */
    int64_t max_moves;   /* exact: paired moves it may look at; a fluid time counts as 64 */
    bool compare;        /* run every other policy too, for plan->others */
} dh_pair_options;

/* TUNING (bench/plan): plans with segments of 4 are within 0.6 % of those with segments of 6 for a
 * dense layer, and take a twentieth of the time. 2^22 states keep the tables at 100 MB. 2^30 moves
 * keep the search within about 2 s. */
#define DH_PAIR_OPTIONS_INIT                                                                       \
    {                                                                                              \
        .overlap_local = true, .overlap_cross = true, .overlap_comm_comm = true,                   \
        .move_wgrad = true, .max_segment = 4, .max_states = INT64_C(1) << 22,                      \
        .max_moves = INT64_C(1) << 30, .compare = false                                            \
    }

/* Whether operators of two strands may run at once by the switches. */
bool dh_pair_may_overlap(const dh_pair_options *options, dh_engine f, dh_engine b);

/* ---- the plan --------------------------------------------------------------------------- */

typedef struct dh_pair_span {
    int64_t start_ns, end_ns;
} dh_pair_span;

/* Where time beyond computation goes; the sum is duration - solo times of compute. */
typedef struct dh_pair_exposure {
    int64_t dependency_ns; /* communication ran and no computation beside it was ready */
    int64_t contention_ns; /* computation ran slower than alone; negative where two computing
                            * operators gained from running together */
    int64_t launch_ns;     /* round_ns of the rounds */
} dh_pair_exposure;

typedef struct dh_pair_round {
    const int32_t *f_ops, *b_ops; /* in order of execution; one of them may be empty */
    int32_t n_f, n_b;
    int64_t start_ns, end_ns; /* operators start round_ns after start_ns */
    dh_pair_exposure exposed;
} dh_pair_round;

/* Another policy's result for the same problem and options. */
typedef struct dh_pair_other {
    const char *policy;
    int64_t makespan_ns;
} dh_pair_other;

typedef struct dh_pair_plan {
    dh_arena *arena; /* owns the struct and all below */
    const char *policy;
    dh_pair_round *rounds;
    int32_t n_rounds;
    dh_pair_span *f_span, *b_span; /* [f.n], [b.n]: when each operator runs */
    int64_t makespan_ns;
    int64_t work_ns[DH_N_ENGINE]; /* solo times of both strands */
    /* Largest of work_ns. No plan is shorter unless operators of one engine gain from running
     * together (their OEF above 0, or any above 1). */
    int64_t bound_ns;
    int64_t sequential_ns;     /* all of one strand, then all of the other */
    int64_t communication_ns;  /* solo times of both strands */
    dh_pair_exposure exposed;  /* sums over the rounds */
    int64_t n_states, n_moves; /* looked at by the search; 0 where there was none */
    /* Pairs of operators that ran at the same time, by source of their cost. */
    int32_t n_pairs[DH_N_PAIR_SOURCES];
    const char *note; /* a search that was too large, and the one done instead; or NULL */
    dh_pair_other *others;
    int32_t n_others; /* 0 without options.compare */
} dh_pair_plan;

void dh_pair_plan_destroy(dh_pair_plan *plan);

/* ---- policies: one row each ------------------------------------------------------------- */

struct dh_pair_search; /* input of a policy; inside the library */

typedef struct dh_pair_policy {
    const char *name;
    const char *doc; /* one line, with its source */
    dh_status (*search)(dh_ctx *ctx, struct dh_pair_search *search);
} dh_pair_policy;

/* errors    DH_EMISSING with the nearest name */
dh_status dh_pair_policy_find(dh_ctx *ctx, const char *name, const dh_pair_policy **policy);

/* Check sizes, names, times and order of a problem. The message names strand and operator.
 * errors    DH_EINVAL */
dh_status dh_pair_problem_validate(dh_ctx *ctx, const dh_pair_problem *problem);

/* Plan one problem. Same input, same plan; of equal plans the one that overlaps less wins.
 * Never worse: exact than dp-orders, dp-orders than dp, dp than sequential and round-robin.
 * in        options NULL: DH_PAIR_OPTIONS_INIT
 * out       set only on DH_OK; caller frees with dh_pair_plan_destroy; borrows nothing
 * errors    DH_EINVAL problem or options; DH_ENOMEM
 * cost      exact: O(moves) as counted in plan->n_moves, 24 bytes a state */
dh_status dh_pair_plan_make(dh_ctx *ctx, const dh_pair_policy *policy,
                            const dh_pair_problem *problem, const dh_pair_options *options,
                            dh_pair_plan **plan);

/* Plans made so far, for all who ask with equal problems: candidates of a search have the same
 * blocks again and again. Thread-safe. */
typedef struct dh_pair_memo dh_pair_memo;
dh_pair_memo *dh_pair_memo_create(void); /* NULL: out of memory */
/* The same memo for one more owner, who calls dh_pair_memo_destroy too. */
dh_pair_memo *dh_pair_memo_share(dh_pair_memo *memo);
void dh_pair_memo_destroy(dh_pair_memo *memo); /* the last owner's call frees it */
/* dh_pair_plan_make, or its earlier result. Others wait while a plan is made.
 * out       *plan: borrowed from the memo
 * errors    those of dh_pair_plan_make */
dh_status dh_pair_memo_get(dh_ctx *ctx, dh_pair_memo *memo, const dh_pair_policy *policy,
                           const dh_pair_problem *problem, const dh_pair_options *options,
                           const dh_pair_plan **plan);

/* ---- costs ------------------------------------------------------------------------------ */

/* Overlap effectiveness (the paper's equation 1): (T_i + T_j - P_ij) / min(T_i, T_j). 1: the
 * shorter is hidden; 0: nothing gained; negative: contention. Not clamped: measurements lie
 * outside [-1, 1]. Solo times > 0. */
double dh_oef(int64_t solo_i_ns, int64_t solo_j_ns, int64_t together_ns);
/* Whether a value is outside [-1, 1] and deserves a second look. */
bool dh_oef_unusual(double oef);
/* From an OEF alone: both are slowed down alike, by 2 - oef, until the shorter ends.
 * in: oef < 2 (at 2 the shorter would take no time) */
dh_pair_time dh_pair_time_from_oef(int64_t solo_f_ns, int64_t solo_b_ns, double oef,
                                   dh_pair_source source);
/* OEF to assume where nothing is known, by engine (the paper's figure 4, rounded). */
double dh_oef_modelled(dh_engine f, dh_engine b);

/* OEF of named operators: rows forward, columns backward. */
typedef struct dh_oef_matrix {
    dh_arena *arena; /* owns the struct and all below */
    int32_t n_rows, n_columns;
    const char *const *row_names;
    const char *const *column_names;
    const double *at; /* [n_rows][n_columns] */
    int32_t *unusual; /* [n_unusual]: row * n_columns + column of entries outside [-1, 1] */
    int32_t n_unusual;
} dh_oef_matrix;

void dh_oef_matrix_destroy(dh_oef_matrix *matrix);

/* CSV: lines that begin with # are skipped; first line `anything,column,...`, then
 * `row,value,...`. Values below 2; those outside [-1, 1] are kept and listed.
 * in        text: n_bytes, need not be terminated; source: for messages
 * out       set only on DH_OK; caller frees with dh_oef_matrix_destroy
 * errors    DH_EFORMAT with line and the row's and column's names; DH_EIO; DH_ENOMEM */
dh_status dh_oef_matrix_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *source,
                              dh_oef_matrix **matrix);
dh_status dh_oef_matrix_read(dh_ctx *ctx, const char *path, dh_oef_matrix **matrix);

#ifdef __cplusplus
}
#endif
#endif
