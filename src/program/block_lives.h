/* Bytes that a block of the model holds for a micro-batch, before there is a program. */
#ifndef DH_PROGRAM_BLOCK_LIVES_H
#define DH_PROGRAM_BLOCK_LIVES_H

#include "program/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes: x_in counts here, x_out with the next block. */
typedef struct dh_block_lives {
    double kept, kept_w;                   /* between F and B; between I and W */
    double f_peak, b_peak, i_peak, w_peak; /* own bytes, kept ones included, while it runs */
} dh_block_lives;

/* Bytes kept between I and W over bytes kept between F and B; at most 1, although gradients that
 * W reads may make it more. */
static inline double dh_block_lives_wgrad_share(const dh_block_lives *lives)
{
    return lives->kept_w < lives->kept ? lives->kept_w / lives->kept : 1;
}

/* in        backend: whose kernels need scratch; NULL
 * out       set only on DH_OK
 * errors    DH_ENOMEM */
dh_status dh_block_lives_find(dh_ctx *ctx, const dh_graph *graph, const dh_backend_info *backend,
                              dh_block_lives *lives);

#ifdef __cplusplus
}
#endif
#endif
