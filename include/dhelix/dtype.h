/* Element types and exact conversions between them. */
#ifndef DHELIX_DTYPE_H
#define DHELIX_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dhelix/export.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_DTYPE_LIST(X)                                                                           \
    X(DH_F32, "f32", 4)                                                                            \
    X(DH_BF16, "bf16", 2)                                                                          \
    X(DH_I32, "i32", 4)                                                                            \
    X(DH_U8, "u8", 1)                                                                              \
    X(DH_F64, "f64", 8)                                                                            \
    X(DH_I64, "i64", 8)

typedef enum dh_dtype {
#define X(code, name, bytes) code,
    DH_DTYPE_LIST(X)
#undef X
        DH_N_DTYPE
} dh_dtype;

DH_API const char *dh_dtype_name(dh_dtype dtype);
DH_API size_t dh_dtype_bytes(dh_dtype dtype);
/* DH_N_DTYPE when the name is unknown. */
DH_API dh_dtype dh_dtype_parse(const char *name);

typedef uint16_t dh_bf16;

static inline float dh_bf16_to_f32(dh_bf16 v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline dh_bf16 dh_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (dh_bf16)((bits >> 16) | 0x40u);
    return (dh_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* 8-bit formats for the operands of matrix multiplications (Micikevicius et al. 2022, arXiv
 * 2209.05433). e4m3 reaches 448 with 3 bits after the leading one, e5m2 57344 with 2. */
typedef enum dh_fp8_format { DH_FP8_FORMAT_E4M3, DH_FP8_FORMAT_E5M2 } dh_fp8_format;

/* Which operands of layers' products are: none; all to e4m3; gradients to e5m2, others to e4m3. */
typedef enum dh_fp8 { DH_FP8_OFF, DH_FP8_E4M3, DH_FP8_HYBRID } dh_fp8;

/* "bf16", or with the formats: what a job computes in, for people. */
DH_API const char *dh_precision_name(dh_dtype dtype, dh_fp8 fp8);

/* A sum of squares of float32 is kept exactly, so no grouping of its terms changes a bit of the
 * gradient norm. It has this many digits, float64 integers; digit i is worth 2^(32 i - 352). Sums
 * are added digit by digit. */
#define DH_SQSUM_DIGITS 20

/* IEEE binary16 to binary32, exact. */
DH_API float dh_f16_to_f32(uint16_t half);

#ifdef __cplusplus
}
#endif
#endif
