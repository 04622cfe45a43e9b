/* Common to the slabs of all devices. */
#include "run/exec/device.h"

dh_status dh_slab_check(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, uint64_t n_bytes)
{
    if (offset <= slab->n_bytes && n_bytes <= slab->n_bytes - offset) return DH_OK;
    return dh_fail(ctx, DH_EINTERNAL, "bytes [%llu, %llu) lie outside the slab of %llu",
                   (unsigned long long)offset, (unsigned long long)(offset + n_bytes),
                   (unsigned long long)slab->n_bytes);
}
