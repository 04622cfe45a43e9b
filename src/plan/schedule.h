/* Pipeline schedules as data.
 *
 * A schedule says for every pipeline rank which slots it executes, in order. A
 * slot holds one action (forward, backward, or one half of a split backward) or
 * a co-executed pair: mostly a forward and the backward of another micro-batch. An
 * action names a virtual stage (its position along the model's depth, 0 first)
 * and a micro-batch (0 first). Idle time is not stored. It follows from the
 * dependencies and appears only in drawings and CSV files.
 *
 * Validation, timing and programs share one rule of execution. A rank runs its
 * slots strictly in order and blocks until the inputs of all actions of a slot
 * have arrived:
 *
 *   action               needs
 *   F(v, j)              F(v-1, j)
 *   B(v, j) or I(v, j)   F(v, j), and the B or I of (v+1, j)
 *   W(v, j)              I(v, j)
 *
 * A model copy is one full set of virtual stages; micro-batch j runs through
 * copy_of[j] only. Schedules wavelet, bidirectional and dualpipe have two. */
#ifndef DH_PLAN_SCHEDULE_H
#define DH_PLAN_SCHEDULE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, letter in text forms, meaning) */
#define DH_PIPE_KIND_LIST(X)                                                                       \
    X(F, 'F', "forward")                                                                           \
    X(B, 'B', "backward")                                                                          \
    X(I, 'I', "input gradient")                                                                    \
    X(W, 'W', "weight gradient")

typedef enum dh_pipe_kind {
#define X(name, letter, meaning) DH_PIPE_##name,
    DH_PIPE_KIND_LIST(X)
#undef X
        DH_N_PIPE_KINDS
} dh_pipe_kind;

/* 'F', 'B', 'I', 'W'. */
char dh_pipe_kind_letter(dh_pipe_kind kind);

typedef struct dh_pipe_action {
    dh_pipe_kind kind;
    int32_t stage; /* virtual stage, [0, n_stages) */
    int32_t micro; /* micro-batch, [0, n_micro) */
} dh_pipe_action;

typedef struct dh_pipe_slot {
    int32_t n_actions; /* 1; or 2 run side by side: an F and any other, or an I and a W */
    dh_pipe_action action[2];
} dh_pipe_slot;

/* Sizes accepted everywhere; they keep counts within int32. */
#define DH_SCHEDULE_MAX_RANKS 4096
#define DH_SCHEDULE_MAX_MICRO (1 << 20)
#define DH_SCHEDULE_MAX_CELLS (1 << 26) /* n_stages * n_micro */

/* Durations of one virtual stage and micro-batch, in ns. */
typedef struct dh_stage_cost {
    int64_t f_ns;
    int64_t i_ns, w_ns;
    int64_t b_ns;     /* combined backward; 0: i_ns + w_ns */
    int64_t fb_ns;    /* this stage's F co-executed with a B; 0: one after the other */
    int64_t fi_ns;    /* this stage's F co-executed with an I; 0: one after the other */
    int64_t other_ns; /* this stage's F or I in any other pair; 0: one after the other */
} dh_stage_cost;

typedef struct dh_schedule {
    dh_arena *arena;  /* owns the struct and all below */
    const char *name; /* row name, or where it was read from */
    int32_t n_ranks, n_stages, n_micro, n_copies;
    int32_t *rank_of;       /* [n_copies][n_stages]: pipeline rank of a virtual stage */
    int32_t *copy_of;       /* [n_micro]: model copy a micro-batch runs through */
    int32_t *first_slot;    /* [n_ranks + 1]: rank g owns slots [first_slot[g], first_slot[g+1]) */
    dh_pipe_slot *slots;    /* slots of all ranks, rank by rank */
    dh_stage_cost *planned; /* [n_stages]: times that placed it; NULL: placed by construction */
} dh_schedule;

void dh_schedule_destroy(dh_schedule *schedule);

/* How a schedule's copies of the model lie on the ranks. */
typedef enum dh_schedule_copies {
    DH_COPIES_ONE,
    DH_COPIES_TOGETHER, /* two: every rank has the same stages of both */
    DH_COPIES_MIRRORED, /* two: rank g has the stages of one that rank p-1-g has of the other */
    DH_COPIES_OTHER
} dh_schedule_copies;
dh_schedule_copies dh_schedule_copies_of(const dh_schedule *schedule);

/* Rank that executes the actions of (stage, micro). */
static inline int32_t dh_schedule_rank(const dh_schedule *s, int32_t stage, int32_t micro)
{
    return s->rank_of[(size_t)s->copy_of[micro] * (size_t)s->n_stages + (size_t)stage];
}

/* ---- durations and timing ---------------------------------------------------------- */

typedef struct dh_schedule_costs {
    dh_stage_cost every;        /* where stage is NULL */
    const dh_stage_cost *stage; /* [n_stages], borrowed; or NULL */
    const int64_t *fb_pair_ns;  /* [stage of F][stage of B], borrowed; overrides fb_ns; or NULL */
    int64_t p2p_ns;             /* from the end of a slot until another rank can use its result */
} dh_schedule_costs;

typedef struct dh_schedule_timing {
    int64_t *start_ns, *end_ns; /* indexed like schedule->slots */
    int64_t *busy_ns;           /* [n_ranks]: sum of slot durations */
    int64_t *first_ns;          /* [n_ranks]: start of the first slot; 0 without slots */
    int64_t *last_ns;           /* [n_ranks]: end of the last slot */
    double *bubble;             /* [n_ranks]: 1 - busy / makespan */
    int64_t makespan_ns;        /* from time 0 to the last end */
    /* Longest last - first of a rank: the period of a step when ranks need not meet
     * between steps (Zero Bubble, section 4: the optimizer step is validated afterwards). */
    int64_t longest_span_ns;
} dh_schedule_timing;

/* Execute the schedule against the clock. Transfers take no time of either rank:
 * they delay only the receiver's start.
 * in        schedule as it comes from this library; durations >= 0
 * out       set only on DH_OK; free with dh_schedule_timing_fini
 * errors    DH_EINVAL deadlock or negative duration; DH_ENOMEM
 * cost      O(slots) */
dh_status dh_schedule_time(dh_ctx *ctx, const dh_schedule *schedule, const dh_schedule_costs *costs,
                           dh_schedule_timing *timing);
void dh_schedule_timing_fini(dh_schedule_timing *timing);
/* As dh_schedule_time, with the times that placed the schedule, else a unit each for F, I and W.
 * All ranks put slots and transfers in one order by this. */
dh_status dh_schedule_time_order(dh_ctx *ctx, const dh_schedule *schedule,
                                 dh_schedule_timing *timing);

/* ---- validation ---------------------------------------------------------------------- */

/* Peaks of one rank, counted in activations of one virtual stage and micro-batch. An
 * activation lives from the start of its F to the end of its B, or of its W when the
 * backward is split. */
typedef struct dh_schedule_use {
    int32_t peak;         /* during slots: a pair's new activation counts with the old one */
    int32_t peak_settled; /* between slots */
    int32_t peak_wgrad;   /* between slots: activations past their I that wait for their W */
} dh_schedule_use;

/* Check that the schedule can be executed and computes every gradient once:
 *   - sizes and slots are well formed;
 *   - every action is on the rank that holds its stage;
 *   - F of every (stage, micro-batch) comes once, and either B once or I and W once;
 *   - there is no deadlock.
 * The message names rank, slot index, action and cause. A deadlock is shown as the
 * cycle of ranks that wait for each other.
 * out       use [n_ranks], may be NULL; written only on DH_OK
 * errors    DH_EINVAL; DH_ENOMEM
 * cost      O(slots) time, O(n_stages * n_micro) memory */
dh_status dh_schedule_validate(dh_ctx *ctx, const dh_schedule *schedule, dh_schedule_use *use);

/* ---- rows: one per published schedule ---------------------------------------------------- */

/* X(name, text, doc): where virtual stages live. */
#define DH_PLACEMENT_LIST(X)                                                                       \
    X(LINEAR, "linear", "rank g holds virtual stage g")                                            \
    X(ROUND_ROBIN, "round-robin", "rank g holds virtual stages g, g+p, g+2p, ...")                 \
    X(FOLDED, "folded", "rank g holds virtual stages g and 2p-1-g (U or V shape)")                 \
    X(BIDIRECTIONAL, "bidirectional", "two model copies, one along the ranks, one against them")   \
    X(PARALLEL, "parallel", "two model copies, both along the ranks")                              \
    X(CUSTOM, "custom", "as the file says")

typedef enum dh_placement {
#define X(name, text, doc) DH_PLACE_##name,
    DH_PLACEMENT_LIST(X)
#undef X
        DH_N_PLACEMENTS
} dh_placement;

const char *dh_placement_name(dh_placement placement);
const char *dh_placement_doc(dh_placement placement);

typedef struct dh_schedule_spec {
    int32_t n_ranks;  /* p */
    int32_t n_micro;  /* m */
    int32_t n_chunks; /* virtual stages of a rank and copy; 0: the row's own; 1 also means
                       * "not given" where the row fixes the number */
    /* For rows that plan with durations (zb-auto); others ignore them. */
    const dh_schedule_costs *costs; /* NULL: F = I = W, transfers take no time */
    int32_t max_activations;        /* of a rank at any time; 0: p, as 1F1B needs */
    int32_t wgrad_permille; /* share of an activation that is still held between its I and its W;
                             * 0: 1000, all of it (Zero Bubble, table 1: M_W of M_B) */
    bool meet; /* ranks meet between steps: the makespan counts, not the longest span */
} dh_schedule_spec;

typedef struct dh_schedule_row {
    const char *name;
    const char *doc; /* one line, with its paper and section */
    dh_placement placement;
    int32_t n_chunks;    /* fixed number of chunks; 0: as many as the spec says, 2 by default */
    bool pairs;          /* has co-executed slots: of use only with a pairing planner */
    bool split_backward; /* has I and W */
    bool breadth_first;  /* all micro-batches run through a virtual stage before the next one, also
                          * on one rank */
    bool planned;        /* placed by the spec's costs and limits */
    /* After p times this many micro-batches, every further one adds the same time; 0: 2. */
    int32_t settles;
    /* NULL: every p and m is accepted.
     * in        spec: n_chunks is resolved, and sizes are in range
     * errors    DH_EUNSUPPORTED the reason, and values that would be right */
    dh_status (*applicable)(dh_ctx *ctx, const dh_schedule_spec *spec);
    dh_status (*generate)(dh_ctx *ctx, const struct dh_schedule_row *row,
                          const dh_schedule_spec *spec, dh_schedule **schedule);
} dh_schedule_row;

static inline int32_t dh_schedule_settles(const dh_schedule_row *row)
{
    return row->settles ? row->settles : 2;
}

/* Whether the row has an order of its own on a single pipeline rank. Two kinds of rows have one:
 *   - several virtual stages take turns on the rank;
 *   - a forward runs during the backward of the micro-batch before it.
 * With all other rows one rank has the order of 1F1B: F and B of each micro-batch. */
static inline bool dh_schedule_orders_one_stage(const dh_schedule_row *row)
{
    const bool beside = row->pairs && row->placement == DH_PLACE_ROUND_ROBIN;
    return row->n_chunks == 2 || row->breadth_first || beside;
}

/* All rows, in the order of `dhelix list schedules`. */
const dh_schedule_row *const *dh_schedule_rows(size_t *n);
/* errors    DH_EMISSING with the nearest name */
dh_status dh_schedule_find(dh_ctx *ctx, const char *name, const dh_schedule_row **row);
/* Whether the row can make a schedule for this spec.
 * errors    DH_EUNSUPPORTED why not; DH_EINVAL sizes out of range */
dh_status dh_schedule_applicable(dh_ctx *ctx, const dh_schedule_row *row,
                                 const dh_schedule_spec *spec);
/* Makes the schedule. The same input gives the same schedule.
 * out       set only on DH_OK; caller frees with dh_schedule_destroy
 * errors    DH_EINVAL sizes out of range; DH_EUNSUPPORTED not applicable; DH_ENOMEM */
dh_status dh_schedule_generate(dh_ctx *ctx, const dh_schedule_row *row,
                               const dh_schedule_spec *spec, dh_schedule **schedule);

/* ---- the steady phase ---------------------------------------------------------------------- */

/* From some slot on every rank repeats its slots, each time with later micro-batches. */
typedef struct dh_schedule_phase {
    int32_t period; /* micro-batches until it repeats itself: 1 for 1F1B, the number of ranks for
                     * interleaved schedules. 0: there is no such phase, or it runs forwards alone,
                     * as that of breadth-first schedules does */
    int32_t step;   /* by which numbers of micro-batches are higher then */
} dh_schedule_phase;
/* Period 0 also where memory is short.
 * cost      O(slots) */
dh_schedule_phase dh_schedule_steady(const dh_schedule *schedule);
/* The schedule with so many micro-batches fewer in its steady phase. The slots before and after
 * that are the same.
 * in        n_left_out: a multiple of the period
 * out       NULL: the phase has not so many; caller frees with dh_schedule_destroy
 * errors    DH_ENOMEM
 * cost      O(slots) */
dh_status dh_schedule_shorten(dh_ctx *ctx, const dh_schedule *schedule, int32_t n_left_out,
                              dh_schedule **shorter);

/* ---- files and drawings ----------------------------------------------------------------- */

/* PyTorch's pipeline-schedule CSV (torch.distributed.pipelining): a line per rank, a cell per step.
 * A cell is empty or one of
 *
 *   0F3, 7B3, 7I0, 7W0      virtual stage, action, micro-batch
 *   (0F7;7B3)OVERLAP_F_B    a pair; pairs unknown to PyTorch are written in the same way
 *   SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD
 *                           skipped. Transfers follow from the placement
 *
 * Lines with # are skipped. The placement follows from the rank of each action. Micro-batches with
 * different routes are different copies of the model. The schedule is validated.
 *
 * in        text: n_bytes, need not be terminated; source: for messages and as name
 * out       set only on DH_OK; caller frees with dh_schedule_destroy
 * errors    DH_EFORMAT with row and column (both from 1); DH_EINVAL of dh_schedule_validate;
 *           DH_EIO; DH_ENOMEM */
dh_status dh_schedule_parse_csv(dh_ctx *ctx, const char *text, size_t n_bytes, const char *source,
                                dh_schedule **schedule);
dh_status dh_schedule_read_csv(dh_ctx *ctx, const char *path, dh_schedule **schedule);
/* Appends the same notation to out. Every slot stands in the column of its earliest step, if all
 * slots took one step.
 * errors    DH_EINVAL deadlock; DH_ENOMEM */
dh_status dh_schedule_print_csv(dh_ctx *ctx, const dh_schedule *schedule, dh_str *out);

/* Appends a text drawing for people to out: a line per rank, columns as in the CSV form, cells F3,
 * B1, F5|B1. Where a rank holds several virtual stages of a copy, .k is the k-th of them along the
 * depth: F3.0, F5.0|B1.1.
 * errors    those of dh_schedule_print_csv */
dh_status dh_schedule_draw(dh_ctx *ctx, const dh_schedule *schedule, dh_str *out);

/* ---- layers to virtual stages --------------------------------------------------------------- */

/* Number of layers of every virtual stage. The spec has one entry a stage, between commas:
 *
 *   k    k layers
 *   -k   k layers fewer than an even share
 *   *    once: all stages without an entry, in even shares; "" is "*"
 *
 * Examples are "3,4,4,3" and "2,*". "-1,*,-1" is for first and last stages that also hold embedding
 * and head. A remainder goes to the middle stages first and to the two ends last, so that folded
 * placements stay balanced. With the folded placement, an even split over 2p stages gives rank g
 * layers [g*L/2p, (g+1)*L/2p) and their mirror image.
 *
 * out       counts [n_stages], sum n_layers; only the first and the last may be 0, and
 *           only when the spec says so
 * errors    DH_EINVAL; DH_EFORMAT spec */
dh_status dh_layer_split(dh_ctx *ctx, int64_t n_layers, int32_t n_stages, const char *spec,
                         int64_t counts[]);

#ifdef __cplusplus
}
#endif
#endif
