/* Inside the folder: the parts of an estimate. */
#ifndef DH_TUNE_TUNER_H
#define DH_TUNE_TUNER_H

#include "base/table.h"
#include "dhelix/tune.h"
#include "program/block_lives.h"
#include "report/system_memory.h"
#include "train/progress.h"
#include "train/session.h"

enum { DH_N_TUNE_RECOMPUTE = DH_RECOMPUTE_ATTENTION + 1 };

/* Values of DH_TUNE_SPLIT: up to three layers fewer at either end. */
enum { TUNE_SPLIT_FIRST = 4, TUNE_N_SPLITS = TUNE_SPLIT_FIRST * TUNE_SPLIT_FIRST };

/* ---- memo.c: times of collectives, asked for once ---------------------------------------- */

/* One thread at a time. Free `times` with dh_table_fini. */
typedef struct tune_memo {
    const dh_costs *of;
    dh_arena *arena;
    dh_table times;
    dh_costs costs;
} tune_memo;
/* Costs that answer as `of` does. */
const dh_costs *tune_memo_init(tune_memo *memo, dh_arena *arena, const dh_costs *of);
/* Forgets all times; the next ones go to the arena. */
void tune_memo_forget(tune_memo *memo, dh_arena *arena);

/* ---- timetable.c: schedules, ready to be timed ---------------------------------------------- */

/* Layers, by dh_model_layer_kind. */
typedef struct tune_counts {
    int64_t of[DH_N_LAYER_KINDS];
} tune_counts;

/* Virtual stages that hold the same blocks take the same time. */
typedef struct tune_stage {
    int64_t n_layers;
    tune_counts kinds; /* of these */
    bool embed, head;
} tune_stage;

/* The work of a slot, by the types of its stages: F, B, I or W of one, or a pair. */
typedef struct tune_class {
    int32_t kind;    /* dh_pipe_kind; in a pair, of the action next to the forward */
    int32_t f, type; /* type of the forward's stage in a pair, -1: no pair; type of the stage */
    int32_t last;    /* reductions of the stage's gradients run during it */
} tune_class;

enum { TUNE_N_LINKS = 4 }; /* even and odd links of the pipeline, forth and back (dh_mesh_link) */

/* A slot, or a transfer to a stage of another rank. Needs on a slot's own rank are met by
 * its order. */
typedef struct tune_slot {
    int32_t rank, cls;
    int32_t peer;    /* destination rank of a transfer; -1: a slot */
    int32_t link;    /* of a transfer; those of one link and direction go one after another */
    int32_t need[2]; /* a slot's incoming transfers; a transfer's slot; -1: none */
    int32_t stage;   /* stage whose gradients the slot completes, of one copy of the model; -1 */
} tune_slot;

typedef struct tune_timetable {
    const dh_schedule *schedule; /* borrowed */
    tune_stage *types;           /* [n_types] */
    int32_t *type_of;            /* [n_stages] */
    tune_class *classes;
    tune_slot *slots; /* and transfers, in the order all ranks share (step_events.h) */
    int32_t *like;    /* [n_ranks]: first rank with the same types of stages */
    int32_t *counts;  /* [n_ranks][n_classes]: slots */
    int32_t *last; /* [n_copies][n_stages]: slot after which the stage's gradients are complete */
    /* [n_stages], [0] forwards, [1] backwards. n_visits counts all slots of a stage. n_gathers
     * counts those that find its parameters released: with regather=stage parameters stay for all
     * slots that follow each other through the stage. n_turns counts the slots after one of the
     * other direction. */
    int32_t *n_gathers[2], *n_visits[2], *n_turns[2];
    int32_t n_types, n_classes, n_slots, n_ranks;
    int32_t **moments; /* [n_ranks][n_moments of the rank] times 1 + 2 n_types: moments.c */
    size_t *n_moments; /* [n_ranks] */
} tune_timetable;

/* Time and memory of a class of slots. */
typedef struct tune_slot_cost {
    double ns;
    double peak_bytes; /* most bytes while it runs, above those before it */
    double delay_ns;   /* part of ns that reductions of gradients during it add */
    double left_ns;    /* reductions, or gathers, that go on after it */
} tune_slot_cost;

/* How a layer's operators and a communication slow each other down, on average over the layer. */
typedef struct tune_speeds {
    double own, comm; /* 1: as alone */
} tune_speeds;
/* A rank at the end of all its slots. */
typedef struct tune_rank_end {
    double end_ns, busy_ns;
    double link_ns[TUNE_N_LINKS]; /* end of the last transfer on each of its links */
    double left_ns;               /* reductions that go on after its last slot */
    double begin_ns;              /* begin of the last reduction that waited for a transfer */
    int32_t waits;                /* slot whose reductions wait; -1: none */
    tune_speeds beside_slots;     /* reductions and slots at the same time */
    double transfer_speed;        /* of a transfer during reductions */
    bool holds_up;                /* slots wait for reductions */
    double beside_ns;             /* transfers after its last slot, which run during the next one */
    double peak_bytes;            /* activations; only tune_moments_peak knows them */
} tune_rank_end;

/* in        layers [n_stages]: number of layers of each stage; model NULL: layers are alike */
dh_status tune_timetable_make(dh_ctx *ctx, dh_arena *arena, const dh_schedule *schedule,
                              const dh_model *model, const int64_t *layers, tune_timetable **table);
/* forward: of all operators of the layer; else of those of the backward. */
tune_speeds tune_speeds_beside(const dh_costs *costs, const dh_graph *layer, bool forward,
                               const dh_cost_op *comm);

/* A transfer between stages. */
typedef struct tune_transfer {
    double ns;
    double slows;  /* share of ns by which computation during it takes longer, on either end */
    bool one_link; /* all transfers of a rank go one after another */
} tune_transfer;

/* Time of work during which what is left of a communication runs; *left_ns: what is left then. */
double tune_run_beside(tune_speeds speeds, double work_ns, double *left_ns);
/* Reductions after the slot that completes a stage's gradients. They and the slots that follow slow
 * each other down. So do they and the rank's transfers. */
typedef struct tune_behind {
    double ns;
    /* Time of the stage's own reductions during the slot, if no others come first. */
    double during_ns;
    bool waits;    /* until the slot's result is on its way */
    bool holds_up; /* gathers of the slots that follow */
    tune_speeds beside_slots;
    double transfer_speed; /* of a transfer during reductions */
} tune_behind;

/* in        costs [n_classes]; behind [n_stages], NULL: there are no reductions; scratch [n_slots]
 * out       ranks [n_ranks] */
void tune_timetable_run(const tune_timetable *t, const tune_slot_cost *costs,
                        tune_transfer transfer, const tune_behind *behind, double *scratch,
                        tune_rank_end *ranks);

/* ---- moments.c: when a rank may hold most ---------------------------------------------------- */

/* Bytes of a micro-batch on a stage: whole between forward and backward, left between input and
 * weight gradients. Neither is negative. */
typedef struct tune_held {
    double whole_bytes, left_bytes;
} tune_held;

/* Sets the timetable's moments.
 * errors    DH_ENOMEM */
dh_status tune_moments_find(dh_ctx *ctx, dh_arena *arena, tune_timetable *t);
/* The most bytes of a rank's activations.
 * in        costs [n_classes]: only peak_bytes is read; held [n_types] */
double tune_moments_peak(const tune_timetable *t, int32_t rank, const tune_slot_cost *costs,
                         const tune_held *held);

/* ---- blocks.c: graphs of a rank, and their contents ----------------------------------------- */

/* TUNE_LAYER + kind: layers of that dh_model_layer_kind. */
enum { TUNE_EMBED, TUNE_HEAD, TUNE_LAYER, TUNE_N_BLOCK = TUNE_LAYER + DH_N_LAYER_KINDS };
/* TUNING: the head of a large micro-batch is hundreds of chunks, each of which waits for its own
 * communication; timing them one by one takes longer than all the rest. */
enum { TUNE_MAX_HEAD_OPS = 128 };
enum { TUNE_F, TUNE_B, TUNE_W, TUNE_N_PHASE }; /* forward, input gradients, weight gradients */
enum { TUNE_COMM_TP, TUNE_COMM_CP, TUNE_COMM_EP, TUNE_N_COMM };

typedef struct tune_block {
    dh_graph *graph; /* NULL: a head of more than TUNE_MAX_HEAD_OPS; a kind of layers that the model
                      * has not */
    bool borrowed;   /* the graph belongs to another block */
    dh_block_lives lives;
    double compute_ns[TUNE_N_PHASE], comm_ns[TUNE_N_PHASE][TUNE_N_COMM];
    double stream_ns[TUNE_N_PHASE][DH_N_STREAM]; /* operators and the time to start them */
    double sure_ns[DH_N_STREAM];       /* all phases: time that no strategy saves (tune_least_ns) */
    uint32_t n_launched[TUNE_N_PHASE]; /* operators of the compute stream */
} tune_block;

typedef struct tune_blocks {
    tune_block at[TUNE_N_BLOCK];
    int first, last, most; /* TUNE_LAYER + kind of the first, the last and most of the layers */
    double share[DH_N_LAYER_KINDS]; /* share of its layers, by kind */
} tune_blocks;

/* The simulated system, and a recomputation as it understands it. */
typedef struct tune_system {
    dh_system row;
    dh_system_job said;
} tune_system;

/* Graphs by the spec, times by its costs, memory with that kept by the system.
 *
 * in        plain: the same blocks without recomputation, if only the graphs of layers depend on
 *           recomputation, else NULL; it must outlive them
 * out       free graphs with tune_blocks_fini */
dh_status tune_blocks_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                           const tune_system *system, const tune_blocks *plain,
                           tune_blocks **blocks);
void tune_blocks_fini(tune_blocks *blocks);
/* Lower bound of a rank's time, and so of a step's, for any strategy, schedule and order. It counts
 * GEMMs, attention and the rings of context parallelism on the busiest stream, with all stages
 * equally loaded.
 * in        blocks: without any strategy's passes */
double tune_least_ns(const tune_blocks *blocks, const dh_recipe *recipe);

/* ---- chains.c: blocks one after another on their streams ------------------------------------ */

/* Makespan of one layer, or of a pair of layers; and the time that every further one adds. */
typedef struct tune_layers_ns {
    double one, more;
} tune_layers_ns;

/* Makespans of chains. */
typedef struct tune_chain {
    tune_layers_ns layers[DH_N_LAYER_KINDS];
    double embed, head; /* time that these add */
} tune_chain;

/* Wanted chains: forwards and whole backwards; split backwards; both paired with forwards. */
typedef struct tune_wants {
    bool whole, split, pairs, split_pairs;
} tune_wants;

typedef struct tune_times {
    tune_chain f, b, i, w;
    /* Layers' forwards paired with layers' backwards, by the kinds of both. */
    tune_layers_ns fb[DH_N_LAYER_KINDS][DH_N_LAYER_KINDS];
    tune_layers_ns fi[DH_N_LAYER_KINDS][DH_N_LAYER_KINDS];
    tune_wants known;
} tune_times;

/* Adds times that are wanted and not known. */
dh_status tune_times_make(dh_ctx *ctx, const dh_program_spec *spec, const tune_blocks *blocks,
                          tune_wants wants, tune_times *times);
double tune_chain_ns(const tune_chain *chain, const tune_stage *stage);
/* Share of a stage's layers that are of a kind; 0 where it has none. */
static inline double tune_share(const tune_stage *s, int kind)
{
    return s->n_layers > 0 ? (double)s->kinds.of[kind] / (double)s->n_layers : 0;
}
/* Time that a further layer of the stage adds, on average. */
double tune_more_ns(const tune_chain *chain, const tune_stage *stage);

/* ---- outline.c: a step without its micro-batches -------------------------------------------- */

enum { TUNE_N_RECOMPUTE_KINDS = DH_RECOMPUTE_KIND_FORWARD + 1 };

/* Gathers and reductions of an embedding, a layer or a head, with other ranks. */
typedef struct tune_exchange {
    double forward_ns, backward_ns; /* gathers of its parameters, stored as shards, for either */
    double reduce_ns;               /* reductions of the gradients that its backward completes */
    int32_t n_pieces;               /* reductions, which become ready one after another */
    bool near;                      /* gathers of the backward come from neighbours */
} tune_exchange;

typedef struct tune_outline {
    uint64_t parameters, gradients, optimizer, persistent;
    uint64_t kept; /* bytes of steps ahead of the norm, after activations are freed */
    /* Gradients that do not persist: whole ones alive at once; shards that appear while activations
     * are freed. */
    uint64_t transient, reduced;
    tune_exchange *blocks;                  /* [blocks of all stages of the rank] */
    double backward_speed, reduction_speed; /* of both at the same time */
    double transfer_speed;                  /* of a transfer between stages during a reduction */
    /* The same speeds by kind of recomputation; nothing else here depends on it. */
    tune_speeds speeds[TUNE_N_RECOMPUTE_KINDS];
    double optimizer_ns;
    /* Gathers of parameters when a step begins: [n_first_gathers] in the order of the forward. */
    double *first_gather_ns;
    size_t n_first_gathers;
    /* Parameters stored as shards. Bytes that are whole, or kept for the backward: at once in a
     * backward; at the end of a forward. */
    uint64_t gathered, gathered_forward;
    /* Reductions run during every backward of weights. last_pair: further bytes of whole gradients
     * of the last two buckets, after their micro-batch's activations are freed. */
    bool reduces_each;
    uint64_t last_pair;
    uint64_t head; /* whole gradients of the head among these, which its forward makes */
} tune_outline;

/* The outline of the rank that spec names.
 * in        kinds: bits 1 << dh_recompute_kind of the speeds that are wanted. system: whose
 *           gradients count
 * out       the caller sets backward_speed and reduction_speed to those of its own kind */
dh_status tune_outline_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                            const dh_system *system, unsigned kinds, tune_outline **outline);
/* Whether a schedule has enough micro-batches for reductions of one stage to end during the next.
 * Outlines differ by it. */
bool tune_outline_many(const dh_schedule *schedule);

/* ---- slots.c: time and memory of a class of slots ------------------------------------------- */

/* Everything that decides it, of one configuration. */
typedef struct tune_basis {
    const tune_blocks *blocks, *plain; /* plain: without recomputation */
    const tune_times *times;           /* NULL: no times are wanted */
    double launch_ns;
    tune_transfer transfer;
} tune_basis;

tune_slot_cost tune_slot_cost_of(const tune_basis *basis, const tune_timetable *t,
                                 const tune_class *c);
/* Lower bound of a slot's time, for any order: its operators on the busiest stream. It needs only
 * the blocks, and no slot's ns is below it. */
double tune_slot_floor_ns(const tune_blocks *blocks, const tune_timetable *t, const tune_class *c);
tune_held tune_held_of(const tune_blocks *blocks, const tune_stage *stage);
/* Adds the parts of a slot of `ns` to items, `n` times. */
void tune_slot_items(const tune_basis *basis, const tune_timetable *t, const tune_class *c,
                     double ns, double n, double items[DH_N_TUNE_ITEM]);

/* ---- shared.c: timetables, which threads share ---------------------------------------------- */

typedef struct tune_shared tune_shared;
/* NULL: out of memory. */
tune_shared *tune_shared_create(void);
/* NULL is fine; timetables and their schedules go too. */
void tune_shared_destroy(tune_shared *shared);

/* Makes one in the arena; its schedule then belongs to it. */
typedef dh_status tune_make_timetable(void *user, dh_arena *arena, tune_timetable **table);
/* The timetable of a key, from any thread. It is made where there is none yet. Where another thread
 * is making it, this one waits.
 * in        key: bytes without padding
 * out       lives as long as `shared`
 * errors    those of make, which is called again the next time; DH_ENOMEM */
dh_status tune_shared_timetable(dh_ctx *ctx, tune_shared *shared, const void *key, size_t n_key,
                                tune_make_timetable *make, void *user,
                                const tune_timetable **table);

/* ---- estimate.c ----------------------------------------------------------------------------- */

typedef DH_VEC(int64_t) tune_numbers;

/* A communication during a line of work, or a release of gathered parameters (reductions.c). Its
 * times are places on the line. */
typedef enum tune_comm_kind {
    TUNE_COMM_REDUCE,
    TUNE_COMM_GATHER,
    TUNE_COMM_RELEASE
} tune_comm_kind;
typedef struct tune_comm {
    tune_comm_kind kind;
    size_t number;
    double ns;
    double issued, ready; /* its place in the order; where it can begin */
    double before;        /* where the work waits for it; INFINITY: nowhere */
    /* Entry k of the list: where release number k is issued. It says nothing about entry k itself. */
    double nth_gone;
} tune_comm;
typedef DH_VEC(tune_comm) tune_comms;

/* tune_least_ns of the last configuration. of: only the values that it depends on; ns 0: none. */
typedef struct tune_least {
    dh_tune_config of;
    double ns;
} tune_least;

/* A thread's own data, except where a field is borrowed. */
typedef struct tuner {
    dh_job *job;      /* a copy with the mesh and micro-batch at hand */
    dh_recipe recipe; /* of that; recomputation, strategy and schedule are each configuration's */
    const dh_tune_options *options;
    const dh_costs *costs;   /* the cluster's; else those of the current mesh */
    dh_tune_config costs_of; /* without a cluster: the mesh of `costs` */
    /* Costs by recomputation, on which a system's operators may depend; NULL: one for all. */
    const dh_costs *costs_by[2][DH_N_TUNE_RECOMPUTE]; /* by dh_sequence */
    dh_system_job heeded[2][DH_N_TUNE_RECOMPUTE];     /* inputs of each; equal inputs share costs */
    const dh_costs *costs_own[2]; /* without a cluster: the same, of the current mesh */
    dh_tune_config own;           /* the job's values, for fixed dimensions */
    char *own_split;              /* empty: even, or with splits the shortest when simulated */
    bool splits;                  /* the job's is "auto" */
    bool searches_splits;         /* the job leaves it open */
    bool *strategy_wanted, *schedule_wanted; /* by row; borrowed, as are the next two */
    /* Values to try, in turn; of the last three -1 alone: as the job has it. */
    tune_numbers zeros, buckets, sequences, fusions, posts;
    bool own_sequence;
    double memory_bytes;
    tune_shared *shared; /* borrowed */
    dh_arena *arena;     /* of costs and outlines */
    dh_arena *group;     /* data that tune_forget frees */
    dh_table outlines;   /* each is that of the first configuration to need it, so they stay */
    dh_table programs;   /* outlines of programs, by schedule and for all recomputations */
    /* Freed with their group. */
    dh_table blocks, times;
    dh_table decided; /* strategies, with arguments chosen by costs */
    tune_memo memo[2][DH_N_TUNE_RECOMPUTE];
    DH_VEC(tune_blocks *) all_blocks;
    tune_least least;
    double *scratch;
    size_t n_scratch;
    tune_comms comms;
} tuner;

/* Prepares one thread's tuner. t has options, own values and borrowed fields. Free with
 * tune_tuner_fini, also after a failure.
 * in        job: its own copy; cluster: NULL, or the cluster whose costs it uses
 * errors    those of the cluster's costs; DH_ENOMEM */
dh_status tune_tuner_init(dh_ctx *ctx, tuner *t, dh_job *job);
/* Borrowed fields stay. */
void tune_tuner_fini(tuner *t);

/* Frees graphs, their times and choices of a group. No other group uses them, and they come out the
 * same when they are made again.
 * errors    DH_ENOMEM */
dh_status tune_forget(dh_ctx *ctx, tuner *t);
/* Forgets outlines too. The next estimate then does not depend on earlier ones of this thread.
 * With several threads, chance decides which thread has seen which configuration.
 * errors    DH_ENOMEM */
dh_status tune_begin_anew(dh_ctx *ctx, tuner *t);

/* The job's system with a recomputation.
 * errors    those of dh_job_system */
dh_status tune_system_of(dh_ctx *ctx, const tuner *t, int64_t recompute, tune_system *system);
/* TUNING: estimates are up to 25 % off. A configuration that takes this many times the best is not
 * of interest, so it is neither estimated nor simulated exactly. */
#define TUNE_WORTH 1.5

/* Limits beyond which a configuration does not change the result of a search. */
typedef struct tune_limits {
    double step_ns;  /* a longer step is neither among the best nor the best with one value */
    double bytes;    /* a configuration that does not fit and needs this much is not the one that
                      * needs least */
    double worth_ns; /* computation above it is TUNE_BEHIND; 0: no limit */
    bool defer;      /* schedules placed by a search of their own are bounded and not placed */
} tune_limits;

typedef enum tune_outcome {
    TUNE_ESTIMATED, /* memory.peak_bytes says whether it fits; if so step_ns and items are set */
    TUNE_BOUNDED,   /* it fits, and is not below the limit; nothing else is set */
    TUNE_LEFT_OUT,  /* its schedule is placed by a search of its own, and bounds on time or memory
                     * are beyond the limits; nothing is set */
    TUNE_DEFERRED,  /* the same, without limits: memory.peak_bytes, fits and step_ns are lower
                     * bounds */
    TUNE_BEHIND,    /* its computation alone takes longer than worth_ns, to which step_ns is set;
                  * nothing else is set */
} tune_outcome;

/* Estimates a configuration of the tuner's current mesh and micro-batch. A bounded one takes longer
 * than the limit, never as long.
 * errors    of schedules and programs, where it is not possible; DH_ENOMEM */
dh_status tune_estimate(dh_ctx *ctx, tuner *t, const tune_limits *limits, dh_tune_row *row,
                        tune_outcome *outcome);

/* ---- found.c: the best so far, and the best with each value ---------------------------------- */

/* TUNING: times in the same of such parts are equal. Estimates of schedules and strategies that
 * change nothing (one stage, nothing communicated) differ by rounding. */
#define TUNE_EQUAL 1e-4

/* The order of rows. Times are compared as whole numbers of parts of TUNE_EQUAL, so the order is one
 * for any number of rows. Of equals the plainest comes first: strategy sequential before others,
 * then schedule 1f1b, then one virtual stage. The exact time comes last.
 * in        a_ns, b_ns: above 0
 * returns   below 0: a comes first; 0: neither does */
int tune_compare(const dh_tune_config *a, double a_ns, const dh_tune_config *b, double b_ns);

/* The result does not depend on the order in which configurations come. Each has its place in the
 * order of space.c, and of equals (tune_compare) the first stays. One thread at a time. */
typedef struct tune_value {
    dh_tune_value_row row;
    int64_t first, best, refused; /* places of the first with the value, of row.best, of row.why */
} tune_value;

typedef struct tune_found {
    dh_arena *arena;   /* of reasons; borrowed */
    dh_tune_row *best; /* [n_best], at most n_kept, by estimate */
    int64_t *places;   /* of these */
    size_t n_best, n_kept;
    DH_VEC(tune_value) values;
    int64_t n_fit, n_too_large, n_refused, n_left_out, n_behind;
    double worth_ns; /* limit of n_behind; 0: no limit */
    const char *first_refusal;
    int64_t first_refused; /* its place */
} tune_found;

/* Where a thread found the values of its last configuration; begins as {0}. */
typedef struct tune_hints {
    size_t at[DH_N_TUNE_DIM];
} tune_hints;

/* Caller frees with tune_found_fini in any case.
 * errors    DH_ENOMEM */
dh_status tune_found_init(dh_ctx *ctx, tune_found *found, dh_arena *arena, size_t n_kept);
void tune_found_fini(tune_found *found);
dh_status tune_found_limits(dh_ctx *ctx, tune_found *found, const dh_tune_config *config,
                            int64_t place, tune_hints *hints, tune_limits *limits);
/* outcome: TUNE_ESTIMATED or TUNE_BOUNDED */
dh_status tune_found_estimate(dh_ctx *ctx, tune_found *found, const dh_tune_row *row,
                              tune_outcome outcome, int64_t place, tune_hints *hints);
/* Counts a configuration beyond worth_ns; the row has a lower bound of its time.
 * errors    DH_ENOMEM */
dh_status tune_found_behind(dh_ctx *ctx, tune_found *found, const dh_tune_row *row, int64_t place,
                            tune_hints *hints);
/* Values that are not decided yet (-1) have no part in a refusal. */
dh_status tune_found_refusal(dh_ctx *ctx, tune_found *found, const dh_tune_config *config,
                             const char *reason, int64_t place);
/* Values by the first configuration that had them. */
void tune_found_sort(tune_found *found);
/* Replaces row i, one of the best, by the same configuration with another value that makes it
 * faster. The old row stays the best one with its own values (found->values).
 * errors    DH_ENOMEM */
dh_status tune_found_instead(dh_ctx *ctx, tune_found *found, size_t i, const dh_tune_row *row,
                             int64_t place);

/* ---- explore.c: all configurations, by threads ----------------------------------------------- */

/* Puts every configuration into `found`, with the same result for any number of threads.
 * in        t: the search's own, which the calling thread uses; options->n_threads
 * errors    DH_EINTERRUPTED; those of estimates, except of configurations that are not possible
 * cost      each thread has tables of its own; timetables are shared */
dh_status tune_explore(dh_ctx *ctx, tuner *t, tune_found *found, dh_progress *progress,
                       int64_t *n_all);

/* options->n_threads, or one for each core. */
size_t tune_n_threads(const tuner *t);

/* ---- simulate.c ----------------------------------------------------------------------------- */

/* A row whose simulated figures are wanted, and whether it fits by them. Errors, those of
 * dh_train_simulate, are in ctx. */
typedef struct tune_simulation {
    dh_tune_row row;
    dh_ctx ctx; /* begins as DH_CTX_INIT */
} tune_simulation;

/* Whether the configuration turned out to be impossible when its program was built. */
bool tune_is_refused(const tune_simulation *simulation);

/* Simulates each row that has no simulated figures yet. As many run at once as the search has
 * threads, at most 8. Rows after one that fails and is not refused may stay as they are; so may all
 * once options->stop is set.
 * in        progress: n_before of `what` are done */
void tune_simulate(const tuner *t, tune_simulation *at, size_t n, dh_progress *progress,
                   int64_t n_before, const char *what);

/* ---- space.c: the configurations of a job --------------------------------------------------- */

/* A mesh and a micro-batch. */
typedef struct tune_unit {
    dh_tune_config config; /* micro-batch 0: the mesh is not possible */
    int64_t place;         /* place of its first configuration; different for every unit */
} tune_unit;
typedef DH_VEC(tune_unit) tune_units;
dh_status tune_list_units(dh_ctx *ctx, tuner *t, tune_units *units);

/* Called for every configuration of a unit. t->job and t->recipe have its mesh and micro-batch.
 * in        refused: why the configuration is not possible, else NULL. With a reason, only mesh and
 *           micro-batch are set */
typedef dh_status tune_visit(dh_ctx *ctx, void *user, const dh_tune_config *config,
                             const char *refused);
dh_status tune_each(dh_ctx *ctx, tuner *t, const tune_unit *unit, tune_visit *visit, void *user);
/* The job and recipe as they were when the configuration was visited. */
dh_status tune_enter(dh_ctx *ctx, tuner *t, const dh_tune_config *config);
/* Rows of --strategies and --schedules.
 * errors    DH_EMISSING no such row; DH_ENOMEM */
dh_status tune_select(dh_ctx *ctx, tuner *t);

/* tune.c: gives the job a configuration's degree of ZeRO, size of buckets, and way to step. */
void tune_share_out(const dh_tune_config *config, dh_job *job);
/* parallel.layer_split of a configuration; NULL: even, or the job's. */
const char *tune_split_text(const dh_tune_config *config);
/* The value of DH_TUNE_SPLIT that a text comes to; -1: none. */
int64_t tune_split_of(int64_t n_layers, int64_t n_chunks, const char *text);
/* An even parallel.layer_split of that many chunks, in the arena, where the job has none
 * and its layers do not divide. */
dh_status tune_split_layers(dh_ctx *ctx, dh_arena *arena, int64_t n_chunks, dh_job *job);

/* ---- territory.c: what predictions were held against ------------------------------------------ */

/* Published steps on a device; lists are names with commas, tables' with spaces. */
typedef struct tune_measured {
    const char *device, *clusters, *tables, *schedules, *strategies;
    bool experts, cp_nodes; /* context parallelism over nodes */
    int64_t most_devices, least_tokens;
} tune_measured;
const tune_measured *tune_measured_rows(size_t *n);
/* In what a configuration is unlike all that was measured on its device, and the tables of that.
 * out       texts in the arena; tables: "" there are none
 * errors    DH_ENOMEM */
dh_status tune_beyond(dh_ctx *ctx, dh_arena *arena, const tuner *t, const dh_tune_config *config,
                      const char ***texts, const char **tables, size_t *n);
/* space.c: whether a list with commas has the name. */
bool tune_is_listed(const char *list, const char *name);

/* ---- why.c: reasons ------------------------------------------------------------------------- */

/* Text in the arena; NULL: out of memory. node_devices: 0 where it is not known. */
const char *tune_why_slower(dh_arena *arena, const dh_tune_row *row, const dh_tune_row *best,
                            int64_t node_devices);
const char *tune_why_too_large(dh_arena *arena, const dh_tune_memory *memory, double limit);

#endif
