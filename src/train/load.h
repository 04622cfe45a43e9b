/* Load of experts: recorded by a run, read for predictions.
 *
 * The choices of each expert are counted in every micro-batch that meets in a layer's exchange
 * (those of the ranks that share its experts). RUN/experts.json then has
 *   {"experts": E, "top_k": K, "steps": N,
 *    "load": {"1": 1, "2": 1.3, ...},  By ranks that share the experts: rows of the busiest over an
 *                                      even share, the mean over layers and micro-batches.
 *    "layers": [{"load": {...},
 *                "mean": [E shares of all choices], "most": [the largest in a micro-batch]}, ...]}
 *                                      null: of a layer without experts
 * So a run on any mesh, one rank too, says how uneven the load would be on every other. */
#ifndef DH_TRAIN_LOAD_H
#define DH_TRAIN_LOAD_H

#include "costs/load.h"
#include "dhelix/train.h"
#include "train/rank.h"

/* ---- load.c: recording ---------------------------------------------------------------------- */

typedef struct dh_load_record {
    const dh_model *model;
    int64_t n_micro;
    int64_t n_steps;
    double *step;  /* [layer][micro-batch][expert] choices in this step */
    double *sums;  /* [layer][width]: shares by expert, loads by ranks, how many micro-batches */
    double *most;  /* [layer][expert]: largest share */
    double *total; /* sums of all ranks, once they are added up */
} dh_load_record;

/* Of a model with experts. Caller frees with dh_load_record_destroy.
 * borrows   model */
dh_status dh_load_record_create(dh_ctx *ctx, const dh_model *model, int64_t n_micro,
                                dh_load_record **record);
void dh_load_record_destroy(dh_load_record *record);
/* A dh_take_choices; user is a record. */
void dh_load_record_choices(void *user, int64_t layer, int64_t mb, const int64_t *counts,
                            int64_t n);
/* The choices of a step's tokens; zeroes the counts. Every rank calls.
 * out       loads of the busiest expert, and of the busiest rank of the mesh, over even shares,
 *           as means over layers and micro-batches */
dh_status dh_load_record_end_step(dh_ctx *ctx, const dh_ranks *ranks, int64_t n_expert_ranks,
                                  dh_load_record *record, double *expert, double *rank);
/* After the last step: sums of all ranks. Every rank calls. */
dh_status dh_load_record_gather(dh_ctx *ctx, const dh_ranks *ranks, dh_load_record *record);
/* Into DIR/experts.json, of a record that was gathered. */
dh_status dh_load_record_write(dh_ctx *ctx, const dh_load_record *record, const char *dir);

/* ---- load_find.c: reading ------------------------------------------------------------------- */

/* What RUN/experts.json says. In the arena.
 * errors    DH_EMISSING no such file; DH_EIO; DH_EFORMAT not one; DH_EINVAL of other experts */
dh_status dh_load_read(dh_ctx *ctx, dh_arena *arena, const dh_model *model, const char *run,
                       dh_expert_load *load);
/* Costs with the load of experts that the job names (moe.recorded, moe.load); those given where
 * it names none. In the arena. */
dh_status dh_job_load_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs *plain,
                            const dh_costs **costs);

#endif
