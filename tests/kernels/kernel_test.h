/* Buffers of an element type, filled with random values that the type holds
 * exactly, seen as doubles by the references. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include "dh_test.h"
#include "run/cpu/kernels.h"
#include "run/cpu/simd.h"

#include <omp.h>

/* An array of dtype with red zones of 64 bytes behind it. */
typedef struct buf {
    dh_dtype dtype;
    int64_t n;
    unsigned char *raw;
} buf;

buf buf_new(dh_dtype dtype, int64_t n);
buf buf_random(dh_dtype dtype, int64_t n, float amplitude, uint64_t *seed);
buf buf_copy(buf source);
void buf_free(buf b); /* checks the red zone */
void *at(buf b, int64_t i);
double get(buf b, int64_t i);
void set(buf b, int64_t i, double value);
bool buf_same(buf a, buf b); /* bit by bit */

static inline float *f32(buf b)
{
    return (float *)(void *)b.raw;
}

/* |got - want| <= tolerance * max(1, |want|), else the test fails naming the element. */
void check_close(const char *what, buf got, const double *want, double tolerance);
void check_value(const char *what, double got, double want, double tolerance);

/* Rounding of one stored result: bf16 keeps 8 bits (half ulp 2^-8); float32 sums of a
 * few hundred terms lose a few of their 24. */
static inline double tolerance_of(dh_dtype dtype)
{
    return dtype == DH_BF16 ? 4.5e-3 : 2e-5;
}

/* Central difference of f at x[i], step h. */
double finite_difference(double (*f)(const double *x, const void *arg), double *x, int64_t i,
                         double h, const void *arg);

/* Widened copy; caller frees. */
double *widen(buf b);
double *zeros(int64_t n);

/* Aligned scratch of n bytes filled with NaN patterns, with a red zone; NULL for 0. */
void *scratch_new(size_t n_bytes);
void scratch_free(void *ws, size_t n_bytes);

/* The signal that a child that calls f ends by; 0: none. */
int signal_of(void (*f)(void));

#define EACH_DTYPE(T) for (dh_dtype T = DH_F32; T <= DH_BF16; T = (dh_dtype)(T + 1))

extern const struct CMUnitTest gemm_tests[], norm_tests[], pointwise_tests[], attn_tests[],
    linear_tests[], loss_tests[], optim_tests[], moe_tests[], latent_tests[];
extern const size_t n_gemm_tests, n_norm_tests, n_pointwise_tests, n_attn_tests, n_linear_tests,
    n_loss_tests, n_optim_tests, n_moe_tests, n_latent_tests;

#endif
