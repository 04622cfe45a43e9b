/* Runs that go on with fewer ranks. */
#ifndef DH_TRAIN_ELASTIC_H
#define DH_TRAIN_ELASTIC_H

#include "dhelix/job.h"
#include "dhelix/tokenizer.h"

/* What a run goes on as. */
typedef struct dh_shrunk {
    dh_job job; /* strings and arena are those of the job that it comes from */
    /* Degrees besides parallel.dp changed: ranks have other parts of the model. */
    bool other_mesh;
    /* "2 of 4 ranks (parallel.pp=1), the most ... (not 3, where ...)" */
    char text[1024];
} dh_shrunk;

typedef struct dh_shrink_options {
    const dh_tokenizer *tokenizer; /* decides a vocabulary left open; NULL: the job's is opened */
    double memory_bytes;           /* that all ranks together may have; 0: not known */
} dh_shrink_options;

/* The job over the most ranks that it can have of those that are left, at most n_left: of all
 * meshes whose tp, cp, pp and ep divide those of before, dp being what that leaves, one with the
 * most ranks, and of these one with the fewest degrees that change; of equals the one with more tp,
 * then cp, then pp. Micro-batches keep their size, so that a step still sees the same samples. A
 * mesh counts where the job with it passes the checks of any job (dh_job_check), can be resolved,
 * its programs verify, and its ranks have the memory. Where the job at hand cannot be resolved on
 * this machine (as where devices are on others), dh_job_check alone decides. Nodes that the ranks
 * no longer fill alike are one. in        job: checked errors    DH_EINVAL: there is none, and why;
 * or it has fewer ranks than elastic.min_ranks cost      building the programs of each mesh that
 * passes the checks, up to the first that is valid: where ranks are lost */
dh_status dh_job_shrink(dh_ctx *ctx, const dh_job *job, int64_t n_left,
                        const dh_shrink_options *options, dh_shrunk *shrunk);

/* What a run goes on from on disk, for a message: "step 10 of its newest checkpoint". Without a
 * checkpoint the ranks that keep their parts of the model begin again ("its beginning, ...").
 * errors    DH_EMISSING over another mesh, where there is none; those of dh_ckpt_find_latest */
dh_status dh_shrunk_state(dh_ctx *ctx, const dh_shrunk *shrunk, char *text, size_t cap);

#endif
