/* Meshes for documents by length. The search looks for the shortest step. Its result says where
 * groups of lengths end, which mesh trains each group, where weights and optimizer live (the home),
 * and whether switching pays at all.
 *
 *   1. Groups may end at halves of train.seq_len, and where documents end (length_cuts.h). There
 *      are at most five groups.
 *   2. Every mesh of powers of two that the job could have is timed: one pass at every length.
 *      Tensor parallelism stays inside nodes. The job's own strategy and schedule are used.
 *   3. The fastest meshes of every length are also timed with other strategies and schedules.
 *      Meshes that would be fastest but lack the memory are timed with recomputation.
 *   4. For every set of groups and every home, the meshes with the shortest step are taken. The
 *      step includes moves between home and groups, and must keep within the memory.
 *   5. The best plan of each number of groups is simulated with its own documents (switched.h).
 *      This simulation decides.
 *
 * dtype is the job's. parallel.zero is 1 at home, and 0 or 1 in groups, as the job says. */
#ifndef DH_TUNE_LENGTHS_H
#define DH_TUNE_LENGTHS_H

#include "dhelix/tune.h"
#include "train/switched.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DH_LENGTH_GROUPS_MOST = 5 };

/* The best with so many groups. */
typedef struct dh_length_plan {
    size_t n_groups;
    char *home, *groups; /* settings: "parallel.dp=4 parallel.tp=8", switch.groups */
    dh_job *job;
    dh_resolved *resolved;
    dh_switched switched;
    bool fits; /* as simulated */
} dh_length_plan;

typedef struct dh_length_plans {
    dh_arena *arena;
    double memory_bytes;
    char reading[DH_READING_BYTES]; /* as in dh_switched_documents */
    int64_t n_passes, n_refused;    /* programs simulated; meshes that the job cannot have */
    int64_t n_left_out;    /* context-parallel degrees behind one that was slower already */
    dh_length_plan *plans; /* [n], by step time, those that fit first */
    size_t n;
} dh_length_plans;

typedef struct dh_length_options {
    const dh_cluster *cluster; /* NULL: this machine's costs */
    double memory_bytes;       /* of a device; 0: no limit */
    const char *lengths;       /* as in dh_switched_documents */
    const char *strategies;    /* tried beside the job's, with commas; NULL: a few */
    bool fixed_strategy, fixed_schedule, fixed_recompute; /* the job's alone */
} dh_length_options;

/* in        job: ranks, batch and length derived; its degrees and packing do not matter. Borrowed
 * out       caller frees with dh_length_plans_fini, also after a failure
 * errors    DH_EINVAL nothing fits; those of dh_switched_simulate */
dh_status dh_tune_lengths(dh_ctx *ctx, const dh_job *job, const dh_length_options *options,
                          dh_length_plans *plans);
/* Of a device, by the options of a search: 0 there means the cluster's, or this machine's share. */
double dh_tune_device_bytes(const dh_tune_options *options);
void dh_length_plans_fini(dh_length_plans *plans);

#ifdef __cplusplus
}
#endif
#endif
