/* Gradients and parameters that travel between ranks in a simulated step. */
#ifndef DH_DESCRIBE_CARGO_H
#define DH_DESCRIBE_CARGO_H

#include <jansson.h>

#include "report/cargo.h"
#include "sim/simulate.h"

/* Of a rank, on average over all of the mesh. */
typedef struct dh_cargo_mean {
    double n, n_bytes, local_bytes, cross_bytes, alone_ns, ns, hidden_ns, exposed_ns;
} dh_cargo_mean;
typedef struct dh_cargo_means {
    dh_cargo_mean of[DH_N_CARGO];
} dh_cargo_means;

/* errors    those of dh_cargo_read */
dh_status dh_cargo_means_of(dh_ctx *ctx, const dh_sim *sim, dh_cargo_means *means);
/* NULL: out of memory */
json_t *dh_cargo_means_json(const dh_cargo_means *means);

/* Gradients and parameters on the first rank of every stage, as an array: the slot in which
 * they travel, the computation during it, the exposed time and its cause.
 * errors    those of dh_cargo_read */
dh_status dh_cargo_slots_json(dh_ctx *ctx, const dh_sim *sim, json_t **list);

/* Is the k-th rank that was simulated the first of its stage? */
bool dh_cargo_is_first(const dh_sim *sim, size_t k);
/* F, B, W or O */
const char *dh_cargo_phase(dh_phase phase);
/* Appends "layers 0 to 19" or "layer 60 to head". */
void dh_cargo_put_blocks(const dh_program *p, const dh_cargo_row *row, dh_str *out);
/* Appends "B31": in the backward of that micro-batch. */
void dh_cargo_put_slot(const dh_cargo_row *row, dh_str *out);

#endif
