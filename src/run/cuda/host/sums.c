/* NCCL's arithmetic on elements, on the host. */
#include "run/cuda/host/sums.h"

#include "dhelix/dtype.h"

size_t host_type_bytes(ncclDataType_t type)
{
    if (type == ncclUint8) return 1;
    if (type == ncclBfloat16) return 2;
    return type == ncclInt64 || type == ncclFloat64 ? 8 : 4;
}

static double combine(ncclRedOp_t op, double a, double b)
{
    return op == ncclSum ? a + b : a > b ? a : b;
}

void host_add_into(ncclDataType_t type, ncclRedOp_t op, void *to, const void *from, size_t i)
{
    if (type == ncclFloat32) {
        float *y = (float *)to + i;
        *y = op == ncclSum ? *y + ((const float *)from)[i]
                           : (float)combine(op, *y, ((const float *)from)[i]);
    } else if (type == ncclBfloat16) {
        dh_bf16 *y = (dh_bf16 *)to + i;
        *y = dh_f32_to_bf16(
            (float)combine(op, dh_bf16_to_f32(*y), dh_bf16_to_f32(((const dh_bf16 *)from)[i])));
    } else if (type == ncclFloat64) {
        double *y = (double *)to + i;
        *y = combine(op, *y, ((const double *)from)[i]);
    } else if (type == ncclInt64) {
        int64_t *y = (int64_t *)to + i;
        *y = (int64_t)((uint64_t)*y + (uint64_t)((const int64_t *)from)[i]);
    }
}
