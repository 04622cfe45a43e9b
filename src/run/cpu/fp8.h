/* Rounding to 8-bit numbers with a scale that is a power of two. The cpu computes with them, and
 * kernels for CUDA store them. Compiled by both.
 *
 * A run of numbers is multiplied by 2^e, with the largest e that keeps the greatest of them in
 * the format. Then each is rounded to the nearest number of the format, halves to even. Numbers
 * too small for the scale lose bits gradually, like the format's subnormals. Scaling by a power
 * of two changes no other bit: the same run always gives the same numbers, and a product of
 * scaled operands is the scaled product. */
#ifndef DH_RUN_CPU_FP8_H
#define DH_RUN_CPU_FP8_H

#include <stdint.h>
#include <string.h>

#include "dhelix/dtype.h"

#ifndef DH_FP8_FN
#define DH_FP8_FN static inline
#endif

/* A format: bits after the leading one, exponent of its least normal number, exponent and
 * significand (as in float32) of its greatest number. */
typedef struct dh_fp8_grid {
    int32_t bits, least;
    int32_t greatest;
} dh_fp8_grid;

DH_FP8_FN dh_fp8_grid dh_fp8_grid_of(dh_fp8_format format)
{
    dh_fp8_grid g;
    g.bits = format == DH_FP8_FORMAT_E4M3 ? 3 : 2;
    g.least = format == DH_FP8_FORMAT_E4M3 ? -6 : -14;
    g.greatest = format == DH_FP8_FORMAT_E4M3 ? 8 : 15; /* of 1.75 times 2 to it */
    return g;
}

DH_FP8_FN uint32_t dh_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DH_FP8_FN float dh_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^e, -126 <= e <= 127. */
DH_FP8_FN float dh_power_of_two(int32_t e)
{
    return dh_float_of_bits((uint32_t)(e + 127) << 23);
}

/* The e for a run whose greatest absolute value this is; 0 where it is not finite, or 0. */
DH_FP8_FN int32_t dh_fp8_scale(dh_fp8_grid g, float greatest)
{
    const uint32_t bits = dh_float_bits(greatest), exponent = bits >> 23,
                   fraction = bits & 0x7fffff;
    if (exponent == 255 || bits == 0) return 0;
    const int32_t e = g.greatest - ((int32_t)exponent - 127) - (fraction > 0x600000 ? 1 : 0);
    return e < 126 ? e : 126;
}

/* The nearest number of the format, of one that the scale has been applied to. NaN stays NaN, and
 * what is infinite becomes it. */
DH_FP8_FN float dh_fp8_round(dh_fp8_grid g, float scaled)
{
    const float least = dh_power_of_two(g.least);
    float power = dh_float_of_bits(dh_float_bits(scaled) & 0x7f800000); /* scaled, rounded down */
    power = power > least ? power : least;
    /* Added to it, this leaves as many bits as the format has. */
    const float magic = power * (1.5f * dh_power_of_two(23 - g.bits));
    return (scaled + magic) - magic;
}

/* Sign, exponent and significand of a number of the format as it is stored; NaN where it is
 * none. */
DH_FP8_FN uint8_t dh_fp8_code(dh_fp8_grid g, float rounded)
{
    const uint32_t bits = dh_float_bits(rounded), sign = bits >> 24 & 0x80;
    const float size = dh_float_of_bits(bits & 0x7fffffff);
    const uint32_t exponent = bits >> 23 & 0xff;
    if (!(size <= 1.75f * dh_power_of_two(g.greatest))) return (uint8_t)(sign | 0x7f);
    if (size < dh_power_of_two(g.least))
        return (uint8_t)(sign | (uint32_t)(size * dh_power_of_two(g.bits - g.least)));
    return (uint8_t)(sign | (exponent - 127 + (uint32_t)(1 - g.least)) << g.bits |
                     (bits & 0x7fffff) >> (23 - g.bits));
}

/* The number of a stored code. */
DH_FP8_FN float dh_fp8_value(dh_fp8_grid g, uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;
    const uint32_t exponent = rest >> g.bits, fraction = rest & ((1u << g.bits) - 1);
    const uint32_t greatest = (uint32_t)(g.greatest + 1 - g.least) << g.bits |
                              (g.bits == 3 ? 6u : 3u); /* 1.75 times 2^greatest */
    if (rest > greatest) return dh_float_of_bits(sign | 0x7fc00000);
    const float size =
        exponent == 0 ? (float)fraction * dh_power_of_two(g.least - g.bits)
                      : dh_float_of_bits((uint32_t)((int32_t)exponent - 1 + g.least + 127) << 23 |
                                         fraction << (23 - g.bits));
    return dh_float_of_bits(dh_float_bits(size) | sign);
}

#endif
