/* A job's programs, built, verified and measured without running them. */
#ifndef DH_DESCRIBE_CHECKED_H
#define DH_DESCRIBE_CHECKED_H

#include <jansson.h>

#include "describe/footprint.h"
#include "describe/missing.h"
#include "report/system_memory.h"
#include "train/resolve.h"
#include "train/room.h"

typedef struct dh_checked_program {
    dh_mode mode;
    dh_program *program;
    dh_footprint memory;
    double flops; /* of one execution */
    /* Training as the job's system would need it, in the order of issue; peak_bytes 0: that is
     * ours. */
    dh_system_memory system;
} dh_checked_program;

typedef struct dh_checked {
    dh_checked_program at[2]; /* training, evaluation */
    size_t n;
    uint64_t slab_bytes;
    uint64_t copy_bytes; /* on the host, of checkpoints written beside training; 0: they are not */
    dh_mesh_footprint mesh; /* n_ranks 0: one rank */
    dh_room room;           /* all ranks on this machine; n_ranks 0: not in host memory */
    dh_missing missing;     /* files that training would not find here */
} dh_checked;

const char *dh_checked_mode(dh_mode mode);

/* The programs of a rank; of several ranks, all are verified together.
 * out       caller frees with dh_checked_fini, also after a failure */
dh_status dh_checked_make(dh_ctx *ctx, const dh_resolved *job, int64_t rank, dh_checked *checked);
void dh_checked_fini(dh_checked *checked);

/* NULL: out of memory */
json_t *dh_checked_json(const dh_resolved *job, const dh_checked *checked);
/* Settings that the job left open. */
json_t *dh_derived_json(const dh_resolved *job);

#endif
