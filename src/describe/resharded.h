/* Bytes and time of moving parameters from a job's layout to another one, by every rule. */
#ifndef DH_DESCRIBE_RESHARDED_H
#define DH_DESCRIBE_RESHARDED_H

#include <jansson.h>

#include "program/reshard.h"
#include "train/resolve.h"

/* A plan by one rule, as programs of all ranks: verified, simulated. */
typedef struct dh_resharded_row {
    dh_reshard_rule rule;
    bool proved; /* nothing is done sooner */
    dh_reshard_sum sum;
    int64_t step_ns;       /* simulated: taking, sending, putting */
    uint64_t staged_bytes; /* most that a rank's slab has beside the layouts */
} dh_resharded_row;

typedef struct dh_resharded {
    const dh_resolved *from, *to;
    const char *what;
    uint32_t n_chunks;
    dh_reshard_wires wires;
    dh_resharded_row rows[DH_N_RESHARD_RULE];
    size_t n; /* exact is left out where there are too many slices to search */
} dh_resharded;

/* "params", "grads", "states"; NULL ends them. */
extern const char *const dh_resharded_names[];

/* Borrows both jobs. what: an index into the names.
 * errors    those of dh_reshard_open; DH_EVERIFY */
dh_status dh_resharded_make(dh_ctx *ctx, const dh_resolved *from, const dh_resolved *to, int what,
                            int64_t chunk_bytes, dh_resharded *resharded);
/* "dp 4, tp 2, pp 2, zero 1" */
const char *dh_resharded_layout(const dh_resolved *job, char *buf, size_t cap);
/* NULL: out of memory */
json_t *dh_resharded_json(const dh_resharded *resharded);

#endif
