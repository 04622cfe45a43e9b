/* Steps whose loss or gradient norm leaves the band of the steps before it. */
#ifndef DH_TRAIN_SPIKES_H
#define DH_TRAIN_SPIKES_H

#include "dhelix/job.h"

/* The last values of one quantity, in a ring. */
typedef struct dh_band {
    double at[DH_SPIKE_MAX_WINDOW];
    int64_t n_seen;
} dh_band;

/* State that decides about the next step. It is part of a checkpoint, so a continued run decides as
 * the one that was not interrupted. */
typedef struct dh_spikes {
    dh_band loss, grad_norm;
    int64_t n_back; /* times the run went back */
} dh_spikes;

/* The largest value that is still within the band: the median of the last `window` values and
 * `deviations` times their mean distance from it. Infinity while there are fewer values. */
double dh_band_limit(const dh_band *band, int64_t window, double deviations);
void dh_band_add(dh_band *band, int64_t window, double value);

/* As JSON (caller frees) and back.
 * errors    DH_ENOMEM; reading also DH_EFORMAT */
dh_status dh_spikes_print(dh_ctx *ctx, const dh_spikes *spikes, int64_t window, char **text);
dh_status dh_spikes_parse(dh_ctx *ctx, const char *text, size_t n_bytes, int64_t window,
                          dh_spikes *spikes);

#endif
