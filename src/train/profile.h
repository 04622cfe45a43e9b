/* Profiles of jobs: what measuring, importing and finding one share. */
#ifndef DH_TRAIN_PROFILE_H
#define DH_TRAIN_PROFILE_H

#include "costs/profile.h"
#include "dhelix/train.h"
#include "train/session.h"

/* ---- profile_job.c: what a job's profile is about ------------------------------------------ */

/* A job cut down to what has every operator: one layer a virtual stage, the fewest
 * micro-batches from 2 that its schedule accepts. */
typedef struct dh_probe_job {
    dh_session_spec spec;  /* of rank 0, with probes and estimated costs */
    dh_schedule *schedule; /* NULL: 1F1B of one stage */
} dh_probe_job;
/* With operators as these passes make them. The job's vocabulary must be known; its strategy may
 * be `auto`. Free with dh_probe_job_fini. */
dh_status dh_probe_job_init(dh_ctx *ctx, const dh_job *job, const dh_pass_list *passes,
                            dh_probe_job *probe);
void dh_probe_job_fini(dh_probe_job *probe);

/* The job with each way of dispatch that it leaves to costs (moe.dispatch, parallel.expert_rows auto); else the
 * job alone.
 * They share its strings. Returns their number. */
enum { DH_MOST_PROBE_JOBS = 4 };
int dh_probe_jobs(const dh_job *job, dh_job jobs[DH_MOST_PROBE_JOBS]);

/* Lists of passes that give different operators. */
typedef DH_VEC(dh_pass_list) dh_probe_lists;
/* The lists of the job's strategy; with `all`, or for `auto`, of every strategy. Caller frees the
 * vector. */
dh_status dh_probe_lists_find(dh_ctx *ctx, const dh_job *job, bool all, dh_probe_lists *lists);

/* Programs with probes of the first rank of every pipeline stage: together they have all
 * operators of the job. Caller frees each and the list. */
typedef struct dh_stage_programs {
    dh_program **at;
    size_t n;
} dh_stage_programs;
dh_status dh_stage_programs_build(dh_ctx *ctx, const dh_probe_job *probe,
                                  dh_stage_programs *programs);
void dh_stage_programs_fini(dh_stage_programs *programs);

/* An empty profile with the facts that the job's times depend on. Before ranks are bound to
 * cores: processors are those of the calling thread. */
dh_status dh_profile_of_job(dh_ctx *ctx, const dh_job *job, const char *name, dh_profile **profile);
/* Without a profile: paced links have known speeds, the rest has defaults. In the arena. */
dh_status dh_job_estimates(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs **costs);

/* How much of a job's strands a profile knows. */
typedef struct dh_profile_cover {
    size_t n_ops, n_known; /* classes of operators */
    char missing[512];     /* the first one that it does not know */
} dh_profile_cover;
/* Whether what lies at the job's place knows all operators of its strategy, or of all that
 * `auto` may choose. The job's vocabulary must be known. */
dh_status dh_profile_is_complete(dh_ctx *ctx, const dh_job *job, bool *complete);

/* ---- profile_reduce.c: samples of all ranks to one profile --------------------------------- */

/* Samples of one rank: of probe i and its end k, sample s at ns[(2 * i + k) * n + s]. */
typedef struct dh_rank_samples {
    const dh_program *program;
    const int64_t *ns;
    int64_t rank;
} dh_rank_samples;

/* Medians and spreads into the profile. */
dh_status dh_profile_reduce(dh_ctx *ctx, const dh_rank_samples *ranks, size_t n_ranks, size_t n,
                            dh_profile *profile);
/* Time of the executor between instructions, from the times of one run. */
dh_status dh_profile_overheads(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                               dh_profile *profile);

#endif
