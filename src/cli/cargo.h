/* What travels between ranks in a simulated step, as text and as JSON. */
#ifndef DH_CLI_CARGO_H
#define DH_CLI_CARGO_H

#include <jansson.h>

#include "report/cargo.h"
#include "sim/simulate.h"

/* Of a rank, on average over all of the mesh. */
typedef struct dh_cargo_mean {
    double n, n_bytes, alone_ns, ns, hidden_ns, exposed_ns;
} dh_cargo_mean;
typedef struct dh_cargo_means {
    dh_cargo_mean of[DH_N_CARGO];
} dh_cargo_means;

/* errors: those of dh_cargo_read */
dh_status dh_cargo_means_of(dh_ctx *ctx, const dh_sim *sim, const dh_costs *costs,
                            dh_cargo_means *means);
/* A row for each kind of which there is some. */
void dh_cargo_print_means(const dh_cargo_means *means, dh_str *out);
/* NULL: out of memory */
json_t *dh_cargo_means_json(const dh_cargo_means *means);

/* Gradients and parameters on the first rank of every stage: in which slot, beside what, what is
 * exposed and why. errors: those of dh_cargo_read */
dh_status dh_cargo_print_slots(dh_ctx *ctx, const dh_sim *sim, const dh_costs *costs, dh_str *out);
/* An array. errors: those of dh_cargo_read */
dh_status dh_cargo_slots_json(dh_ctx *ctx, const dh_sim *sim, const dh_costs *costs, json_t **list);

#endif
