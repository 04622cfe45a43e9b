/* Values that change from one step to the next and that kernels read, in the device's memory. C and
 * C++, host and device. */
#ifndef DH_RUN_EXEC_SCALARS_H
#define DH_RUN_EXEC_SCALARS_H

#include <stdint.h>

typedef struct dh_scalars {
    int64_t step;  /* optimizer steps done before this one */
    uint64_t seed; /* of dropout */
    double lr, beta1, beta2, eps, weight_decay;
    double grad_clip;        /* 0: off */
    double router_bias_rate; /* of balance */
    double loss_rows;        /* the loss's divisor, 0: the graph's */
    int32_t even_experts;    /* tokens are dealt to experts in turn, whatever their router says */
} dh_scalars;

#endif
