/* Gradients and parameters that travel between ranks in a simulated step, as text. */
#ifndef DH_CLI_CARGO_H
#define DH_CLI_CARGO_H

#include "describe/cargo.h"

/* A row for each kind of which there is some. */
void dh_cargo_print_means(const dh_cargo_means *means, dh_str *out);
/* Gradients and parameters on the first rank of every stage: the slot in which they travel,
 * the computation during it, the exposed time and its cause.
 * errors    those of dh_cargo_read */
dh_status dh_cargo_print_slots(dh_ctx *ctx, const dh_sim *sim, dh_str *out);

#endif
