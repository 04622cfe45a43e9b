/* Runs that continue with fewer ranks. */
#ifndef DH_TRAIN_ELASTIC_H
#define DH_TRAIN_ELASTIC_H

#include "dhelix/job.h"
#include "dhelix/tokenizer.h"

/* The job that a run continues with. */
typedef struct dh_shrunk {
    dh_job job; /* strings and arena belong to the job that it comes from */
    /* A degree other than parallel.dp changed: ranks have other parts of the model. */
    bool other_mesh;
    /* "2 of 4 ranks (parallel.pp=1), the most ... (not 3, where ...)" */
    char text[1024];
} dh_shrunk;

typedef struct dh_shrink_options {
    const dh_tokenizer *tokenizer; /* decides an open vocabulary; NULL: the job's is opened */
    double memory_bytes;           /* memory of all ranks together; 0: not known */
} dh_shrink_options;

/* The job over as many of the remaining ranks as possible.
 *
 * Candidates are meshes of at most n_left ranks whose tp, cp, pp and ep divide the old ones; dp
 * takes the rest. The order of preference is:
 *   1. most ranks;
 *   2. fewest degrees that change;
 *   3. more tp, then more cp, then more pp.
 * Micro-batches keep their size, so a step still sees the same samples.
 *
 * A mesh is valid where the job with it passes dh_job_check and can be resolved, its programs
 * verify, and its ranks have the memory. A job whose devices are on other machines cannot be
 * resolved here; dh_job_check alone then decides. Nodes that the ranks do not fill evenly count as
 * one node.
 * in        job: checked
 * errors    DH_EINVAL no mesh is valid, and why; or it has fewer ranks than elastic.min_ranks
 * cost      builds the programs of each mesh that passes the checks, up to the first valid one */
dh_status dh_job_shrink(dh_ctx *ctx, const dh_job *job, int64_t n_left,
                        const dh_shrink_options *options, dh_shrunk *shrunk);

/* The state on disk that a run continues from, for a message: "step 10 of its newest checkpoint".
 * Without a checkpoint a run that keeps its mesh begins again ("its beginning, ...").
 * errors    DH_EMISSING no checkpoint, over another mesh; those of dh_ckpt_find_latest */
dh_status dh_shrunk_state(dh_ctx *ctx, const dh_shrunk *shrunk, char *text, size_t cap);

#endif
