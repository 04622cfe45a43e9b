/* Profiles of jobs: what measuring, importing and finding one share. */
#ifndef DH_TRAIN_PROFILE_H
#define DH_TRAIN_PROFILE_H

#include "costs/profile.h"
#include "dhelix/train.h"
#include "train/session.h"

/* ---- profile_job.c: what a job's profile is about ------------------------------------------ */

/* A small job with every operator of a job. It has one layer of each kind on a virtual stage, and
 * the fewest micro-batches that its schedule accepts, at least 2. */
typedef struct dh_probe_job {
    dh_session_spec spec;  /* of rank 0, with probes and estimated costs */
    dh_schedule *schedule; /* NULL: 1F1B of one stage */
} dh_probe_job;
/* The small job with the operators that these passes make.
 * in        job: its vocabulary is known; its strategy may be `auto`
 * out       caller frees with dh_probe_job_fini, also after a failure; costs are in the job's arena
 * errors    those of dh_strategy_read, dh_recipe_of_job and dh_job_schedule; DH_ENOMEM */
dh_status dh_probe_job_init(dh_ctx *ctx, const dh_job *job, const dh_pass_list *passes,
                            dh_probe_job *probe);
void dh_probe_job_fini(dh_probe_job *probe);

/* The job with each value of moe.dispatch and parallel.expert_rows that it leaves to costs (auto).
 * Where it leaves neither, that is the job alone.
 * out       jobs: borrow the job's strings and arena
 * returns   their number, from 1 to DH_MOST_PROBE_JOBS */
enum { DH_MOST_PROBE_JOBS = 4 };
int dh_probe_jobs(const dh_job *job, dh_job jobs[DH_MOST_PROBE_JOBS]);

/* Lists of passes that give different operators. */
typedef DH_VEC(dh_pass_list) dh_probe_lists;
/* The lists of the job's strategy.
 * in        all: of every strategy that runs on devices, as for strategy `auto`
 * out       caller frees with dh_vec_fini; empty after a failure
 * errors    DH_EMISSING, DH_EINVAL the strategy; DH_EUNSUPPORTED with `all`: it is only simulated;
 *           those of dh_recipe_of_job; DH_ENOMEM */
dh_status dh_probe_lists_find(dh_ctx *ctx, const dh_job *job, bool all, dh_probe_lists *lists);

/* Programs with probes: of the first rank of every pipeline stage. Together they have all operators
 * of the job. */
typedef struct dh_stage_programs {
    dh_program **at;
    size_t n;
} dh_stage_programs;
/* out       caller frees with dh_stage_programs_fini; empty after a failure
 * errors    those of dh_session_program; DH_ENOMEM */
dh_status dh_stage_programs_build(dh_ctx *ctx, const dh_probe_job *probe,
                                  dh_stage_programs *programs);
void dh_stage_programs_fini(dh_stage_programs *programs);

/* An empty profile with the facts that the job's times depend on. The fact about processors is that
 * of the calling thread, so call this before ranks are bound to cores.
 * in        name: for messages; copied
 * out       caller frees with dh_profile_destroy; set only on DH_OK
 * errors    DH_ENOMEM */
dh_status dh_profile_of_job(dh_ctx *ctx, const dh_job *job, const char *name, dh_profile **profile);
/* Costs without a profile. Paced links have known speeds; all other times follow from default
 * rates.
 * out       in the arena
 * errors    DH_ENOMEM */
dh_status dh_job_estimates(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs **costs);

/* How much of a job's strands a profile knows. */
typedef struct dh_profile_cover {
    size_t n_ops, n_known; /* classes of operators */
    char missing[512];     /* the first one that it does not know */
} dh_profile_cover;
/* Whether the profile at the job's place knows all operators of its strategy, or of every strategy
 * that `auto` may choose.
 * in        job: its vocabulary is known
 * out       *complete: false also where there is no profile, or none that is of use
 * errors    DH_ENOMEM, DH_EINTERRUPTED; those of dh_probe_lists_find and of building programs */
dh_status dh_profile_is_complete(dh_ctx *ctx, const dh_job *job, bool *complete);

/* ---- profile_reduce.c: samples of all ranks to one profile --------------------------------- */

/* Samples of one rank, in ns. Sample s of end k of probe i is ns[(2 * i + k) * n + s]. */
typedef struct dh_rank_samples {
    const dh_program *program;
    const int64_t *ns;
    int64_t rank;
} dh_rank_samples;

/* Adds medians and spreads of the samples to the profile.
 * in        n: samples of each end, the same on all ranks
 * errors    DH_EINVAL, DH_ENOMEM of dh_profile_add_op and dh_profile_add_pair */
dh_status dh_profile_reduce(dh_ctx *ctx, const dh_rank_samples *ranks, size_t n_ranks, size_t n,
                            dh_profile *profile);
/* Sets the profile's launch_ns and event_ns: the executor's time between instructions of a stream,
 * and after an instruction of another stream.
 * in        spans: of one run, one for each instruction
 * errors    DH_ENOMEM */
dh_status dh_profile_overheads(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                               dh_profile *profile);

#endif
