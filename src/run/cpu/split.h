/* How kernels share work among threads: by rows, stripes of columns or ranges whose
 * bounds depend on the shape alone. */
#ifndef DH_RUN_CPU_SPLIT_H
#define DH_RUN_CPU_SPLIT_H

#include "run/cpu/simd.h"

/* TUNING: elements below which starting a team (about 1 us) costs more than it saves,
 * and elements of a flat array that one task handles (64 KiB of float32). */
enum { PARALLEL_MIN = 8192, RANGE = 16384 };

static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Element i of an array of dtype. */
static inline void *at(dh_dtype dtype, void *x, int64_t i)
{
    return x ? (char *)x + i * (dtype == DH_BF16 ? 2 : 4) : NULL;
}

static inline const void *const_at(dh_dtype dtype, const void *x, int64_t i)
{
    return x ? (const char *)x + i * (dtype == DH_BF16 ? 2 : 4) : NULL;
}

static inline float element(dh_dtype dtype, const void *x, int64_t i)
{
    return dtype == DH_BF16 ? dh_bf16_to_f32(((const dh_bf16 *)x)[i]) : ((const float *)x)[i];
}

static inline void set_element(dh_dtype dtype, void *x, int64_t i, float value)
{
    if (dtype == DH_BF16)
        ((dh_bf16 *)x)[i] = dh_f32_to_bf16(value);
    else
        ((float *)x)[i] = value;
}

/* Dropout of row n, in `row`; NULL when nothing is dropped. */
const dh_drop_row *dh_drop_row_of(const dh_dropout *drop, int64_t n, dh_drop_row *row);

#endif
