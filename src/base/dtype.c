/* Element types. */
#include "dhelix/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DH_N_DTYPE] = {
#define X(code, name, bytes) [code] = {name, bytes},
    DH_DTYPE_LIST(X)
#undef X
};

const char *dh_dtype_name(dh_dtype dtype)
{
    return (unsigned)dtype < DH_N_DTYPE ? dtypes[dtype].name : "?";
}

size_t dh_dtype_bytes(dh_dtype dtype)
{
    return (unsigned)dtype < DH_N_DTYPE ? dtypes[dtype].bytes : 0;
}

dh_dtype dh_dtype_parse(const char *name)
{
    for (int i = 0; i < DH_N_DTYPE; i++)
        if (strcmp(dtypes[i].name, name) == 0) return (dh_dtype)i;
    return DH_N_DTYPE;
}

float dh_f16_to_f32(uint16_t half)
{
    float sign = half & 0x8000u ? -1.0f : 1.0f;
    int exponent = (half >> 10) & 0x1f;
    int fraction = half & 0x3ff;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(fraction + 1024), exponent - 25);
}

const char *dh_precision_name(dh_dtype dtype, dh_fp8 fp8)
{
    if (fp8 == DH_FP8_OFF) return dh_dtype_name(dtype);
    return fp8 == DH_FP8_E4M3 ? "bf16, layers' products in fp8 (e4m3)"
                              : "bf16, layers' products in fp8 (hybrid)";
}
