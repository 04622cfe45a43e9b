/* Inside the folder: what an estimate is put together from. */
#ifndef DH_TUNE_TUNER_H
#define DH_TUNE_TUNER_H

#include "base/table.h"
#include "dhelix/tune.h"
#include "program/block_lives.h"
#include "report/system_memory.h"
#include "train/progress.h"
#include "train/session.h"

enum { DH_N_TUNE_RECOMPUTE = DH_RECOMPUTE_ATTENTION + 1 };

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
/* Nothing is known any more; what is asked for next goes to the arena. */
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

/* What a slot does, by the types of its stages: F, B, I or W of one, or a pair. */
typedef struct tune_class {
    int32_t kind;    /* dh_pipe_kind; of what is beside the forward in a pair */
    int32_t f, type; /* type of the forward's stage in a pair, -1: none; of the stage */
    int32_t last;    /* reductions of the stage's gradients run beside it */
} tune_class;

/* A slot, or a transfer to a stage of another rank. Needs on a slot's own rank are met by
 * its order. */
typedef struct tune_slot {
    int32_t rank, cls;
    int32_t peer;    /* of a transfer: the rank it goes to; -1: a slot */
    int32_t need[2]; /* transfers into a slot; the slot a transfer comes from; -1: none */
} tune_slot;

typedef struct tune_timetable {
    const dh_schedule *schedule; /* borrowed */
    tune_stage *types;           /* [n_types] */
    int32_t *type_of;            /* [n_stages] */
    tune_class *classes;
    tune_slot *slots; /* and transfers, in the order all ranks share (build.c of program) */
    int32_t *like;    /* [n_ranks]: first rank with the same types of stages */
    int32_t *counts;  /* [n_ranks][n_classes]: slots */
    int32_t *last; /* [n_copies][n_stages]: slot behind which the stage's gradients are complete */
    /* [n_stages]: forwards, and backwards, that find the stage's parameters released where they
     * stay for all slots that follow each other through it (dh_recipe.gathers_by_stage); all of
     * them. */
    int32_t *n_gathers[2], *n_visits[2];
    int32_t n_types, n_classes, n_slots, n_ranks;
    int32_t **moments; /* [n_ranks][n_moments of the rank] times 1 + 2 n_types: moments.c */
    size_t *n_moments; /* [n_ranks] */
} tune_timetable;

/* What a class of slots takes. */
typedef struct tune_slot_cost {
    double ns;
    double peak_bytes;  /* while it runs, over what was there before it */
    double delta_bytes; /* that it leaves behind */
    double delay_ns;    /* of ns: what reductions of gradients beside it add */
} tune_slot_cost;

/* A rank at the end of all its slots. */
typedef struct tune_rank_end {
    double end_ns, busy_ns;
    double link_ns;           /* end of the last transfer it had a part in */
    double beside_ns;         /* transfers since its last slot, which run beside the next one */
    double bytes, peak_bytes; /* of activations */
} tune_rank_end;

/* in: layers [n_stages], how many of the model's each stage has; model NULL: layers are alike */
dh_status tune_timetable_make(dh_ctx *ctx, dh_arena *arena, const dh_schedule *schedule,
                              const dh_model *model, const int64_t *layers, tune_timetable **table);
/* How a layer's operators and a communication slow each other down, on average over the layer. */
typedef struct tune_speeds {
    double own, comm; /* 1: as alone */
} tune_speeds;
tune_speeds tune_speeds_beside(const dh_costs *costs, const dh_graph *layer, bool forward,
                               const dh_cost_op *comm);

/* A transfer between stages. */
typedef struct tune_transfer {
    double ns;
    double slows; /* by how much of ns computation beside it takes longer, on either end */
    bool shared;  /* slots communicate on the same stream: these wait for it, and it for them */
} tune_transfer;

/* in: costs [n_classes]. out: ranks [n_ranks]; scratch [n_slots] */
void tune_timetable_run(const tune_timetable *t, const tune_slot_cost *costs,
                        tune_transfer transfer, double *scratch, tune_rank_end *ranks);

/* ---- moments.c: when a rank may hold most ---------------------------------------------------- */

/* Bytes that a micro-batch leaves on a stage: between forward and backward; between input and
 * weight gradients. Neither is negative. */
typedef struct tune_held {
    double whole_bytes, left_bytes;
} tune_held;

/* Sets the timetable's moments. errors: DH_ENOMEM */
dh_status tune_moments_find(dh_ctx *ctx, dh_arena *arena, tune_timetable *t);
/* The peak_bytes that tune_timetable_run has for a rank.
 * in        costs [n_classes], of which only peak_bytes counts; held [n_types] */
double tune_moments_peak(const tune_timetable *t, int32_t rank, const tune_slot_cost *costs,
                         const tune_held *held);

/* ---- blocks.c: graphs of a rank, and what is in them ---------------------------------------- */

/* TUNE_LAYER + kind: layers of that dh_model_layer_kind. */
enum { TUNE_EMBED, TUNE_HEAD, TUNE_LAYER, TUNE_N_BLOCK = TUNE_LAYER + DH_N_LAYER_KINDS };
/* TUNING: the head of a large micro-batch is hundreds of chunks, each of which waits for its own
 * communication; timing them one by one takes longer than all the rest. */
enum { TUNE_MAX_HEAD_OPS = 128 };
enum { TUNE_F, TUNE_B, TUNE_W, TUNE_N_PHASE }; /* forward, input gradients, weight gradients */
enum { TUNE_COMM_TP, TUNE_COMM_CP, TUNE_COMM_EP, TUNE_N_COMM };

typedef struct tune_block {
    dh_graph *graph; /* NULL: a head of more than TUNE_MAX_HEAD_OPS; layers of a kind there is none
                      * of */
    bool borrowed;   /* it is another one's */
    dh_block_lives lives;
    double compute_ns[TUNE_N_PHASE], comm_ns[TUNE_N_PHASE][TUNE_N_COMM];
    double stream_ns[TUNE_N_PHASE][DH_N_STREAM]; /* operators and what starting them takes */
    double sure_ns[DH_N_STREAM];       /* of all phases: what no strategy saves (tune_least_ns) */
    uint32_t n_launched[TUNE_N_PHASE]; /* operators of the compute stream */
} tune_block;

typedef struct tune_blocks {
    tune_block at[TUNE_N_BLOCK];
    int first, last, most; /* the model's first and last layer, most of its layers: TUNE_LAYER + */
    double share[DH_N_LAYER_KINDS]; /* of its layers, by kind */
    unsigned streams;               /* bit 1 << dh_stream: those that a layer communicates on */
} tune_blocks;

/* Whose software it is, and what a recomputation says to it. */
typedef struct tune_system {
    dh_system row;
    dh_system_job said;
} tune_system;

/* Graphs by the spec, costs by its costs; what the system keeps counts too. plain: the same without
 * recomputation, which outlives it, where nothing but the graphs of layers goes by that; else NULL.
 * Graphs are freed with tune_blocks_fini. */
dh_status tune_blocks_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                           const tune_system *system, const tune_blocks *plain,
                           tune_blocks **blocks);
void tune_blocks_fini(tune_blocks *blocks);
/* Of a rank, and so of a step, whatever strategy, schedule and order: products, attention and the
 * rings of context parallelism, of the stream that has most of them, as if all stages had as much.
 * in        blocks: without any strategy's passes */
double tune_least_ns(const tune_blocks *blocks, const dh_recipe *recipe);

/* ---- chains.c: blocks one behind the other on their streams --------------------------------- */

/* Makespan of one layer, or of one beside another; what every further one adds. */
typedef struct tune_layers_ns {
    double one, more;
} tune_layers_ns;

/* Makespans of chains. */
typedef struct tune_chain {
    tune_layers_ns layers[DH_N_LAYER_KINDS];
    double embed, head; /* what these add */
} tune_chain;

/* Which of them: forwards and whole backwards, split ones, and either beside forwards. */
typedef struct tune_wants {
    bool whole, split, pairs, split_pairs;
} tune_wants;

typedef struct tune_times {
    tune_chain f, b, i, w;
    /* Layers' forwards beside layers' backwards, by the kinds of both. */
    tune_layers_ns fb[DH_N_LAYER_KINDS][DH_N_LAYER_KINDS];
    tune_layers_ns fi[DH_N_LAYER_KINDS][DH_N_LAYER_KINDS];
    tune_wants known;
} tune_times;

/* Adds what is wanted and not known. */
dh_status tune_times_make(dh_ctx *ctx, const dh_program_spec *spec, const tune_blocks *blocks,
                          tune_wants wants, tune_times *times);
double tune_chain_ns(const tune_chain *chain, const tune_stage *stage);
/* Of a stage's layers those of a kind, as a share; 0 where it has none. */
static inline double tune_share(const tune_stage *s, int kind)
{
    return s->n_layers > 0 ? (double)s->kinds.of[kind] / (double)s->n_layers : 0;
}
/* What a further layer of the stage adds, on average. */
double tune_more_ns(const tune_chain *chain, const tune_stage *stage);

/* ---- outline.c: what surrounds the micro-batches -------------------------------------------- */

enum { TUNE_N_RECOMPUTE_KINDS = DH_RECOMPUTE_KIND_FORWARD + 1 };

typedef struct tune_outline {
    uint64_t parameters, gradients, optimizer, persistent;
    uint64_t kept; /* by steps ahead of the norm, when activations have gone */
    /* Of gradients that do not persist: whole ones that are there at once; shards that come as
     * activations go. */
    uint64_t transient, reduced;
    size_t n_reductions;
    double *reduction_ns;                   /* [n_reductions] in the order of the backward */
    double backward_speed, reduction_speed; /* of the two beside each other */
    /* The same by what the backward computes again, of which nothing else goes by that. */
    tune_speeds speeds[TUNE_N_RECOMPUTE_KINDS];
    double optimizer_ns;
    /* Of parameters that a step begins by gathering: [n_regathers] in the order of the forward. */
    double *regather_ns;
    size_t n_regathers;
    /* Of parameters stored as shards: gathers of a micro-batch's forward and of its backward, over
     * all of the rank's blocks; whether one block is gathered while another computes; bytes that
     * are whole, or kept for the backward, at once in a backward and at the end of a forward. */
    double forward_gather_ns, backward_gather_ns;
    bool gathers_ahead;
    uint64_t gathered, gathered_forward;
    /* Reductions are beside every backward of weights; what the last two buckets have more of whole
     * gradients, when their micro-batch's activations have gone. */
    bool reduces_each;
    uint64_t last_pair;
} tune_outline;

/* Of the rank that spec names, with the speeds of the kinds asked for: bits 1 << dh_recompute_kind.
 * backward_speed and reduction_speed are the caller's to set, to those of its own kind. */
dh_status tune_outline_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                            unsigned kinds, tune_outline **outline);

/* ---- slots.c: what a class of slots takes --------------------------------------------------- */

/* All that decides it, of one configuration. */
typedef struct tune_basis {
    const tune_blocks *blocks, *plain; /* plain: without recomputation */
    const tune_times *times;           /* NULL: no times are asked for */
    double launch_ns;
    tune_transfer transfer;
} tune_basis;

tune_slot_cost tune_slot_cost_of(const tune_basis *basis, const tune_timetable *t,
                                 const tune_class *c);
/* Least time of a slot, in whatever order: its operators, of the stream that has most to do. By the
 * blocks alone; no slot's ns is below it. */
double tune_slot_floor_ns(const tune_blocks *blocks, const tune_timetable *t, const tune_class *c);
tune_held tune_held_of(const tune_blocks *blocks, const tune_stage *stage);
/* What a slot of `ns` is made of, added to items, `n` times. */
void tune_slot_items(const tune_basis *basis, const tune_timetable *t, const tune_class *c,
                     double ns, double n, double items[DH_N_TUNE_ITEM]);
/* Of one backward of a stage. */
double tune_backward_ns(const tune_basis *basis, const tune_stage *stage);

/* ---- shared.c: timetables, which threads share ---------------------------------------------- */

typedef struct tune_shared tune_shared;
/* NULL: out of memory. */
tune_shared *tune_shared_create(void);
/* NULL is fine; timetables and their schedules go too. */
void tune_shared_destroy(tune_shared *shared);

/* Makes one in the arena; its schedule then belongs to it. */
typedef dh_status tune_make_timetable(void *user, dh_arena *arena, tune_timetable **table);
/* The timetable of a key, from any thread. Made where there is none yet; where another thread is
 * about to, its own is waited for.
 * in        key: bytes without padding
 * out       lives as long as `shared`
 * errors    those of make, which is then asked again the next time; DH_ENOMEM */
dh_status tune_shared_timetable(dh_ctx *ctx, tune_shared *shared, const void *key, size_t n_key,
                                tune_make_timetable *make, void *user,
                                const tune_timetable **table);

/* ---- estimate.c ----------------------------------------------------------------------------- */

typedef DH_VEC(int64_t) tune_numbers;

/* tune_least_ns of the last configuration; of: without what it does not go by; ns 0: of none. */
typedef struct tune_least {
    dh_tune_config of;
    double ns;
} tune_least;

/* A thread's own, but for what is borrowed. */
typedef struct tuner {
    dh_job *job;      /* a copy with the mesh and micro-batch at hand */
    dh_recipe recipe; /* of that; recomputation, strategy and schedule are each configuration's */
    const dh_tune_options *options;
    const dh_costs *costs;   /* of the cluster; else of the mesh at hand */
    dh_tune_config costs_of; /* where there is no cluster: the mesh that costs are of */
    /* The same by recomputation, which a system's operators may depend on; NULL: one for all. */
    const dh_costs *costs_by[2][DH_N_TUNE_RECOMPUTE]; /* second: of tokens that are whole */
    dh_system_job heeded[2][DH_N_TUNE_RECOMPUTE];     /* what each goes by: those alike are one */
    const dh_costs *costs_own[2]; /* where there is no cluster: of the mesh at hand, the same */
    dh_tune_config own;           /* the job's values, for those that are fixed */
    char *own_split;
    bool *strategy_wanted, *schedule_wanted; /* by row; borrowed, as are the next two */
    /* Values to try, in turn; of the last three -1 alone: as the job has it. */
    tune_numbers zeros, buckets, sequences, fusions, posts;
    bool own_sequence;
    double memory_bytes;
    tune_shared *shared; /* borrowed */
    dh_arena *arena;     /* of costs and outlines */
    dh_arena *group;     /* of all that tune_forget gives up */
    dh_table outlines;   /* each is that of the first who asks, so they stay */
    dh_table programs;   /* outlines of these, by schedule and for all recomputations */
    /* Given up with their group. */
    dh_table blocks, times;
    dh_table decided; /* strategies, with what they leave to costs said */
    tune_memo memo[2][DH_N_TUNE_RECOMPUTE];
    DH_VEC(tune_blocks *) all_blocks;
    tune_least least;
    double *scratch;
    size_t n_scratch;
} tuner;

/* One of a thread, for the same search: t has options, own values and what it borrows. Freed with
 * tune_tuner_fini, also after a failure.
 * in        job: its own copy; cluster: NULL, or whose costs it uses
 * errors    those of the cluster's costs; DH_ENOMEM */
dh_status tune_tuner_init(dh_ctx *ctx, tuner *t, dh_job *job);
/* What is borrowed stays. */
void tune_tuner_fini(tuner *t);

/* Gives up graphs, their times and choices, which come out the same when they are asked for again:
 * a group's are of use to no other one. errors: DH_ENOMEM */
dh_status tune_forget(dh_ctx *ctx, tuner *t);

/* The job's system with a recomputation. errors: DH_EMISSING */
dh_status tune_system_of(dh_ctx *ctx, const tuner *t, int64_t recompute, tune_system *system);
/* TUNING: estimates are up to 25 % off; of what is so many times behind the reason is plain, and
 * nobody wants to know how far exactly, by an estimate or a simulation. */
#define TUNE_WORTH 1.5

/* Beyond which a configuration changes nothing that a search says. */
typedef struct tune_limits {
    double step_ns;  /* above which it is neither one of the best nor the best with one of its
                      * values */
    double bytes;    /* at which, where it does not fit, it is not the one that would need least */
    double worth_ns; /* above which work alone is TUNE_BEHIND; 0: nothing is */
    bool defer;      /* what is placed by a search of its own is bounded and not placed */
} tune_limits;

typedef enum tune_outcome {
    TUNE_ESTIMATED, /* memory.peak_bytes says whether it fits; if so step_ns and items are set */
    TUNE_BOUNDED,   /* it fits, and is not below the limit; nothing else is set */
    TUNE_LEFT_OUT,  /* placed by a search of its own, and by bounds on time or memory beyond the
                     * limits; nothing is set */
    TUNE_DEFERRED,  /* the same, not looked at by limits: memory.peak_bytes, fits and step_ns are
                     * bounds, below what they would be */
    TUNE_BEHIND, /* its work alone takes longer than worth_ns, which step_ns then is; nothing else
                  * is set */
} tune_outcome;

/* A configuration of the mesh and micro-batch that the tuner has now. What is bounded takes longer
 * than the limit, never as long. errors: of schedules and programs, where it is not possible;
 * DH_ENOMEM */
dh_status tune_estimate(dh_ctx *ctx, tuner *t, const tune_limits *limits, dh_tune_row *row,
                        tune_outcome *outcome);

/* ---- found.c: the best so far, and the best with each value ---------------------------------- */

/* Says the same of the same configurations in whatever order they come: each has its place in the
 * order of space.c, and of equals the first stays. One thread at a time. */
typedef struct tune_value {
    dh_tune_value_row row;
    int64_t first, best, refused; /* places: of the first with it, of row.best, of row.why */
} tune_value;

typedef struct tune_found {
    dh_arena *arena;   /* of reasons; borrowed */
    dh_tune_row *best; /* [n_best], at most n_kept, by estimate */
    int64_t *places;   /* of these */
    size_t n_best, n_kept;
    DH_VEC(tune_value) values;
    int64_t n_fit, n_too_large, n_refused, n_left_out, n_behind;
    double worth_ns; /* beyond which these are; 0: none are */
    const char *first_refusal;
    int64_t first_refused; /* its place */
} tune_found;

/* Where a thread found the values of its last configuration; begins as {0}. */
typedef struct tune_hints {
    size_t at[DH_N_TUNE_DIM];
} tune_hints;

/* errors: DH_ENOMEM; freed with tune_found_fini in any case */
dh_status tune_found_init(dh_ctx *ctx, tune_found *found, dh_arena *arena, size_t n_kept);
void tune_found_fini(tune_found *found);
dh_status tune_found_limits(dh_ctx *ctx, tune_found *found, const dh_tune_config *config,
                            int64_t place, tune_hints *hints, tune_limits *limits);
/* outcome: TUNE_ESTIMATED or TUNE_BOUNDED */
dh_status tune_found_estimate(dh_ctx *ctx, tune_found *found, const dh_tune_row *row,
                              tune_outcome outcome, int64_t place, tune_hints *hints);
/* What takes longer than is worth a look; the row says at least how long. errors: DH_ENOMEM */
dh_status tune_found_behind(dh_ctx *ctx, tune_found *found, const dh_tune_row *row, int64_t place,
                            tune_hints *hints);
/* Values that are not decided yet (-1) have no part in a refusal. */
dh_status tune_found_refusal(dh_ctx *ctx, tune_found *found, const dh_tune_config *config,
                             const char *reason, int64_t place);
/* Values by the first configuration that had them. */
void tune_found_sort(tune_found *found);

/* ---- explore.c: all configurations, by threads ------------------------------------------------
 */

/* Every configuration into `found`, which does not depend on how many threads there are.
 * in        t: the search's own, which the calling thread uses; options->n_threads
 * errors    DH_EINTERRUPTED; those of estimates but for configurations that are not possible
 * cost      each thread has tables of its own, but for timetables */
dh_status tune_explore(dh_ctx *ctx, tuner *t, tune_found *found, dh_progress *progress,
                       int64_t *n_all);

/* options->n_threads, or one for each core. */
size_t tune_n_threads(const tuner *t);

/* ---- simulate.c ----------------------------------------------------------------------------- */

/* A row of which the simulated figures, and whether it fits by them, are wanted; errors as of
 * dh_train_simulate are left in ctx. */
typedef struct tune_simulation {
    dh_tune_row row;
    dh_ctx ctx; /* begins as DH_CTX_INIT */
} tune_simulation;

/* Only its program says that there is no such configuration. */
bool tune_is_refused(const tune_simulation *simulation);

/* Each that has no simulated figures yet, by itself, as many at once as the search has threads, 8
 * at most; those after one that fails and is not refused, and all once options->stop is set, may be
 * left as they are. progress: n_before of `what` are done. */
void tune_simulate(const tuner *t, tune_simulation *at, size_t n, dh_progress *progress,
                   int64_t n_before, const char *what);

/* ---- space.c: the configurations of a job --------------------------------------------------- */

/* A mesh and a micro-batch. */
typedef struct tune_unit {
    dh_tune_config config; /* micro-batch 0: the mesh is not possible */
    int64_t place;         /* of its first configuration; no two of any units are the same */
} tune_unit;
typedef DH_VEC(tune_unit) tune_units;
dh_status tune_list_units(dh_ctx *ctx, tuner *t, tune_units *units);

/* Sees every configuration of a unit; t->job and t->recipe have its mesh and micro-batch.
 * `refused`: why it is none (then only mesh and micro-batch are set), else NULL. */
typedef dh_status tune_visit(dh_ctx *ctx, void *user, const dh_tune_config *config,
                             const char *refused);
dh_status tune_each(dh_ctx *ctx, tuner *t, const tune_unit *unit, tune_visit *visit, void *user);
/* The job and recipe as they were when the configuration was visited. */
dh_status tune_enter(dh_ctx *ctx, tuner *t, const dh_tune_config *config);
/* Rows of --strategies and --schedules. errors: DH_EMISSING */
dh_status tune_select(dh_ctx *ctx, tuner *t);

/* tune.c: the job with a configuration's degree of ZeRO, size of buckets, and how it steps. */
void tune_share_out(const dh_tune_config *config, dh_job *job);
/* An even parallel.layer_split of that many chunks, in the arena, where the job has none
 * and its layers do not divide. */
dh_status tune_split_layers(dh_ctx *ctx, dh_arena *arena, int64_t n_chunks, dh_job *job);

/* ---- why.c: reasons ------------------------------------------------------------------------- */

/* Text in the arena; NULL: out of memory. node_devices: 0 where it is not known. */
const char *tune_why_slower(dh_arena *arena, const dh_tune_row *row, const dh_tune_row *best,
                            int64_t node_devices);
const char *tune_why_too_large(dh_arena *arena, const dh_tune_memory *memory, double limit);

#endif
