/* Recipes of jobs (recipe.h, train.h): the steps that a job is resolved by. */
#ifndef DH_TRAIN_RECIPE_H
#define DH_TRAIN_RECIPE_H

#include "costs/system.h"
#include "dhelix/train.h"
#include "train/resolve.h"

/* ---- recipe.c: settings to fields ----------------------------------------------------------- */

/* The share-out among data-parallel ranks, the time of the gather, and the buckets in which data
 * travel; the rest of the recipe stays. */
void dh_recipe_share_out(const dh_job *job, dh_recipe *recipe);
/* Model, ranks, sizes and what memory is spent on; no strategy, schedule or costs. The job's
 * vocabulary must be known. Takes no memory and no time: `tune` asks thousands of times.
 * errors    those of dh_mesh_from_job */
dh_status dh_recipe_of_job(dh_ctx *ctx, const dh_job *job, dh_recipe *recipe);
/* The recomputation that a system makes of a job's. */
dh_recompute_kind dh_recipe_recompute(const dh_system *system, dh_recompute_kind recompute);
/* The job's system, and what of the job decides what that takes.
 * errors    DH_EMISSING the system */
dh_status dh_job_system(dh_ctx *ctx, const dh_job *job, dh_system *system, dh_system_job *said);
/* Times of operators on a cluster in the job's system. In the arena.
 * errors    DH_EMISSING the system */
dh_status dh_job_cluster_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job,
                               const dh_cluster *cluster, const dh_costs **costs);
/* On the nodes of a cluster, whose kernels need no scratch. */
dh_status dh_recipe_place(dh_ctx *ctx, const dh_cluster *cluster, dh_recipe *recipe);
/* The strategy, and its ordering with the job's overlap.*; the recipe's cache stays.
 * errors    DH_EMISSING a policy; DH_EINVAL switches that it cannot obey */
dh_status dh_recipe_use(dh_ctx *ctx, const dh_job *job, const dh_strategy *strategy,
                        dh_recipe *recipe);
/* The first layer of the kind that most layers are of. */
int64_t dh_usual_layer(const dh_model *model);
/* Whether overlap.policy is a file of an order. dh_recipe_use takes it from the recipe. */
bool dh_job_order_file(const dh_job *job);
/* Whether parallel.schedule is a CSV file. */
bool dh_job_schedule_file(const dh_job *job);
/* Else its row, and what the job says for it.
 * out       spec: without costs
 * errors    DH_EMISSING; DH_EUNSUPPORTED what the row has no use for */
dh_status dh_job_schedule_row(dh_ctx *ctx, const dh_job *job, int64_t n_micro,
                              const dh_schedule_row **row, dh_schedule_spec *spec);
/* The pipeline schedule of n_micro micro-batches: a CSV file, a row of the table, or that of the
 * strategy.
 *
 * in        recipe: its costs place a row that is placed by times. NULL: F, I and W take the same
 *           time, and all of an activation is held until its W
 * out       *schedule: caller frees; NULL: 1F1B of one stage */
dh_status dh_job_schedule(dh_ctx *ctx, const dh_job *job, const dh_strategy *strategy,
                          const dh_recipe *recipe, int64_t n_micro, dh_schedule **schedule);

/* ---- data.c --------------------------------------------------------------------------------- */
/* A vocabulary that the job leaves to its tokenizer. NULL: that is opened for it. */
dh_status dh_job_vocab(dh_ctx *ctx, const dh_job *job, const dh_tokenizer *tokenizer,
                       int64_t *vocab);

/* ---- profile_find.c ------------------------------------------------------------------------- */
/* By what the job's operators are ordered; the same on every rank: a profile that
 * dh_profile_find finds, else estimates. The job's vocabulary must be known.
 * out       costs: in the arena; profile: what they rest on, NULL: estimates; caller frees */
dh_status dh_job_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs **costs,
                       dh_profile **profile);

/* ---- fuse.c: optimizer.fuse: auto ------------------------------------------------------------ */
/* Of a job with its strategy and schedule: in how many pieces its optimizer is fused, where that is
 * open, by simulated steps. Deterministic: ranks agree.
 * errors    those of dh_train_simulate */
dh_status dh_resolved_fuse(dh_ctx *ctx, dh_resolved *resolved);

/* ---- order_memory.c: overlap.memory: auto ----------------------------------------------------- */
/* Of a job with its strategy and schedule: the limit of memory that its orders keep to, where that
 * is open. All that a device has left once everything else has its place, by simulated steps.
 * Deterministic: ranks with the same memory agree.
 * errors    DH_ENOMEM */
dh_status dh_resolved_order_memory(dh_ctx *ctx, dh_resolved *resolved);

/* ---- link_sms.c: parallel.gpu_comm_sms, gpu_comm_search ---------------------------------------- */
/* Of a job with its schedule: its costs become those with the processors that its communicators
 * hold. All later users of the recipe have these costs: plans, simulations, searches and runs.
 * errors    those of dh_resolved_link_sms */
dh_status dh_resolved_hold(dh_ctx *ctx, dh_resolved *resolved);

/* ---- split.c: parallel.layer_split: auto ------------------------------------------------------ */
/* Of a job with its strategy and schedule: layers of each virtual stage, where that is open, by
 * simulated steps. A schedule that is placed by times is placed again. Deterministic: ranks agree.
 * errors    those of dh_train_simulate for the even split */
dh_status dh_resolved_split(dh_ctx *ctx, dh_resolved *resolved);

/* ---- choose.c: strategy: auto ---------------------------------------------------------------- */
/* The variation whose simulated step is shortest, of those that can run the job. All that were
 * compared are logged unless quiet. Deterministic: ranks agree. Caller frees.
 * errors    DH_EINVAL none can run the job; those of dh_train_simulate */
dh_status dh_resolved_choose(dh_ctx *ctx, const dh_resolved *open, bool quiet,
                             dh_resolved **chosen);

/* ---- resolve.c ------------------------------------------------------------------------------- */
/* One more line of what was derived.
 * errors    DH_ENOMEM */
dh_status dh_resolved_note(dh_ctx *ctx, dh_resolved *r, const char *name, const char *value,
                           const char *why, ...) __attribute__((format(printf, 5, 6)));

#endif
