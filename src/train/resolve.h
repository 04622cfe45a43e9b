/* Recipes of jobs: what a job left open is decided once, and for people, why. */
#ifndef DH_TRAIN_RESOLVE_H
#define DH_TRAIN_RESOLVE_H

#include "costs/profile.h"
#include "dhelix/cluster.h"
#include "dhelix/job.h"
#include "dhelix/tokenizer.h"
#include "strategy/rewrites.h"
#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A setting that the job left open, its value, and why: for people. */
typedef struct dh_derived {
    const char *name, *value, *why;
} dh_derived;
enum { DH_MAX_DERIVED = 20 };

/* Whole steps with the optimizer fused in so many pieces (optimizer.fuse); 0: off, the first. */
enum { DH_N_FUSIONS = 5 };
typedef struct dh_fusion {
    int64_t pieces, step_ns;
    uint64_t peak_bytes; /* most of any rank */
    bool fits;           /* a device of the cluster */
} dh_fusion;
typedef struct dh_fusions {
    dh_fusion at[DH_N_FUSIONS];
    size_t best;
} dh_fusions;

/* A job, resolved: what checking, planning, training and simulating it go by. Made once, then
 * read only. Borrows the job's strings and the cluster; owns the rest. */
typedef struct dh_resolved dh_resolved;
typedef struct dh_link_choice dh_link_choice; /* link_sms.h */
struct dh_resolved {
    dh_job job; /* with vocabulary and strategy filled in */
    dh_recipe recipe;
    const dh_cluster *cluster; /* devices and links; NULL: this machine */
    double room_bytes;         /* that a step may take of a device of the cluster; 0: not known */
    dh_derived derived[DH_MAX_DERIVED];
    size_t n_derived, n_common;  /* the first n_common hold for any strategy */
    dh_schedule *schedule;       /* the recipe's */
    dh_pair_memo *plans;         /* of its pairs; shared with what it was varied from */
    dh_profile *profile;         /* that its costs rest on; NULL: estimates, or a cluster's */
    const dh_rewrites *rewrites; /* that a strategy which searches tried; else NULL */
    const dh_fusions *fusions;   /* likewise, of the optimizer */
    const dh_link_choice *links; /* processors that communicators hold, where the job gives them or
                                  * has them searched; they are in the recipe's costs */
    dh_arena *arena;
    dh_arena *strategies; /* NULL, or owns a strategy without a row that strategy=auto made */
    /* With data.packing=group, of each group of lengths: its job, and of these the recipes. */
    dh_resolved **groups;
    dh_recipe *group_recipes;
    size_t n_groups;
};

typedef struct dh_resolve_options {
    const dh_cluster *cluster;     /* NULL: this machine's costs, by a profile or estimates */
    double room_bytes;             /* that a step may take of a device; 0: the cluster's */
    const dh_tokenizer *tokenizer; /* decides a vocabulary left open; NULL: the job's is opened */
    bool open;                     /* no strategy, nor what follows from it: dh_resolved_vary */
    bool quiet;                    /* comparisons of strategy=auto are not logged */
} dh_resolve_options;

/* Resolves a job. Strategy `auto` becomes the one with the shortest simulated step. Resolved are:
 *   - the vocabulary, by the tokenizer;
 *   - ranks on nodes;
 *   - the strategy, and its ordering with a cache;
 *   - costs for ordering;
 *   - the schedule.
 *
 * Data is read only where the vocabulary is open.
 * out       caller frees with dh_resolved_destroy
 * errors    those of every setting that cannot be used */
dh_status dh_job_resolve(dh_ctx *ctx, const dh_job *job, const dh_resolve_options *options,
                         dh_resolved **resolved);
/* The same with another strategy. Needs `from` no longer. */
dh_status dh_resolved_vary(dh_ctx *ctx, const dh_resolved *from, const dh_strategy *strategy,
                           dh_resolved **varied);
void dh_resolved_destroy(dh_resolved *resolved);
/* ---- order_memory.c: memory of orders (overlap.memory) --------------------------------------- */

/* A step whose orders keep to a limit. */
typedef struct dh_limit_point {
    double blocks, bytes; /* the limit, as in dh_order_options */
    int64_t step_ns;
    uint64_t peak_bytes; /* bytes of the rank that needs most */
    bool fits;           /* a device, where its memory is known */
    bool own;            /* the limit is the job's */
} dh_limit_point;
enum { DH_MOST_LIMIT_POINTS = 10 };
/* By memory; every point except the job's own is faster than all that need less. */
typedef struct dh_memory_frontier {
    double room_bytes; /* that a step may take of a device; 0: not known */
    dh_limit_point at[DH_MOST_LIMIT_POINTS];
    size_t n; /* 0: the job's policy does not go by memory */
} dh_memory_frontier;
/* Gain of more memory and loss of less, by simulated steps.
 * errors    those of dh_train_simulate */
dh_status dh_resolved_memory_frontier(dh_ctx *ctx, const dh_resolved *resolved,
                                      dh_memory_frontier *frontier);

/* ---- beside.c: what a job's ways of hiding gain ---------------------------------------------- */

/* Prediction of a step against another one. */
typedef enum dh_gain {
    DH_GAIN_FASTER,
    DH_GAIN_UNSURE, /* faster by no more than predictions are wrong by: it may be slower */
    DH_GAIN_NONE,   /* to the nanosecond, as where nothing differs */
    DH_GAIN_SLOWER
} dh_gain;
/* "faster", "may be slower", "as long", "slower" */
const char *dh_gain_name(dh_gain gain);
/* in        error: mean error of predicted speed-ups, in parts of 1 */
dh_gain dh_gain_of(int64_t own_ns, int64_t other_ns, double error);

typedef struct dh_beside_other {
    bool known; /* false: it is the job itself, or is not simulated */
    int64_t step_ns;
    dh_gain gain; /* gain of the job against this one */
} dh_beside_other;
/* A job's simulated step beside those of plainer jobs. */
typedef struct dh_beside {
    int64_t own_ns;
    dh_beside_other sequential; /* the same in strategy sequential */
    dh_beside_other plain; /* in that strategy, and without these settings: two copies of the model,
                              steps ahead of the norm, fused optimizer, LASP in place of LASP-2 */
    char settings[160];    /* "optimizer.fuse=4, ..."; "": it has none of them */
    double error;          /* of predicted speed-ups; of steps, where costs are a profile's */
    const char *error_unit; /* of 100 times the error: points of speed-up, or % of a step */
    const char *error_source;
} dh_beside;
/* Whether a strategy and such settings gain anything: what `dhelix plan` says beforehand.
 * errors    those of a simulation that are not for a plainer job alone; DH_ENOMEM */
dh_status dh_resolved_beside(dh_ctx *ctx, const dh_resolved *resolved, dh_beside *beside);
/* Rank 0's session of a run: training, and evaluation where the job has any. */
dh_session_spec dh_train_session(const dh_job *job, const dh_recipe *recipe);

#ifdef __cplusplus
}
#endif
#endif
