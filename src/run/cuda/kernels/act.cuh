/* Functions of one number that activations and their slopes are made of. */
#ifndef DH_RUN_CUDA_KERNELS_ACT_CUH
#define DH_RUN_CUDA_KERNELS_ACT_CUH

#include "run/cuda/kernels/device.cuh"

/* sigmoid(u) and, without cancellation, 1 - sigmoid(u); e^-u stays finite. */
DEVICE float sigmoid(float u, float *rest)
{
    const float e = expf(u < -87.0f ? 87.0f : -u), s = 1.0f / (1.0f + e);
    *rest = e * s;
    return s;
}

/* GELU(x) = x sigmoid(A x + B x^3); beyond 16 the sigmoid is 0 or 1 in float32, and x^3 would not
 * stay finite. */
#define GELU_A 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_B 0.0713548162726002f /* 0.044715 A */

DEVICE float hold(float x)
{
    return x < -16.0f ? -16.0f : x > 16.0f ? 16.0f : x;
}

DEVICE float gelu(float x)
{
    const float z = hold(x);
    float rest;
    return x * sigmoid(z * (GELU_A + GELU_B * z * z), &rest);
}

DEVICE float gelu_slope(float x)
{
    const float z = hold(x);
    float rest;
    const float s = sigmoid(z * (GELU_A + GELU_B * z * z), &rest);
    return s * (1.0f + rest * (z * (GELU_A + 3 * GELU_B * z * z)));
}

#endif
