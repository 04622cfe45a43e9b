/* The staged device: the cpu's kernels, with memory that the host cannot reach and streams that
 * let it wait. It needs no hardware and finds what would go wrong on a device that has both. */
#include "run/staged/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "run/cpu/device.h"
#include "run/cpu/kernels.h"
#include "run/staged/staged.h"

/* ---- memory --------------------------------------------------------------------------------- */

static unsigned char *reserve(size_t n_bytes, int protection)
{
    void *at = mmap(NULL, n_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void slab_destroy(dh_slab *slab)
{
    staged_slab *s = (staged_slab *)slab;
    if (!s) return;
    if (s->base.at) munmap(s->base.at, s->reserved);
    if (s->bytes) munmap(s->bytes, s->reserved);
    free(s);
}

static dh_status slab_create(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    staged_slab *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    const size_t usable = (size_t)(n_bytes + page - 1) / page * page;
    s->base.n_bytes = n_bytes;
    s->reserved = usable + page;
    s->base.at = reserve(s->reserved, PROT_NONE);
    s->bytes = reserve(s->reserved, PROT_READ | PROT_WRITE);
    if (!s->base.at || !s->bytes) {
        char text[32];
        const int why = errno;
        slab_destroy(&s->base);
        return dh_fail(ctx, DH_ENOMEM, "cannot reserve a slab of %s: %s",
                       dh_format_bytes(text, sizeof text, (double)n_bytes), strerror(why));
    }
    mprotect(s->bytes + usable, page, PROT_NONE);
    *slab = &s->base;
    return DH_OK;
}

static dh_status slab_write(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                            uint64_t n_bytes)
{
    DH_TRY(dh_slab_check(ctx, slab, offset, n_bytes));
    memcpy(((staged_slab *)slab)->bytes + offset, data, n_bytes);
    return DH_OK;
}

static dh_status slab_read(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                           uint64_t n_bytes)
{
    DH_TRY(dh_slab_check(ctx, slab, offset, n_bytes));
    memcpy(data, ((const staged_slab *)slab)->bytes + offset, n_bytes);
    return DH_OK;
}

static dh_status first_nonfinite(dh_ctx *ctx, const dh_streams *streams, dh_dtype dtype, int64_t n,
                                 const void *at, int64_t *first)
{
    *first = dh_k_first_nonfinite(dtype, n, staged_bytes(streams->slab, at));
    return DH_OK;
}

/* ---- what the cpu device does --------------------------------------------------------------- */

static size_t workspace_bytes(const dh_graph *graph, const dh_op *op)
{
    return dh_device_cpu.info.workspace_bytes(graph, op);
}

static bool has_kernel(dh_op_type type)
{
    return dh_device_cpu.has_kernel(type);
}

/* Its streams let parts complete one by one themselves, once all of them are there. */
static bool tells_parts(dh_op_type type)
{
    return false;
}

static dh_status kernel_prepare(dh_ctx *ctx, const dh_graph *graph, const dh_op *op,
                                unsigned accumulate, void **kernel)
{
    return dh_device_cpu.kernel_prepare(ctx, graph, op, accumulate, kernel);
}

static void kernel_release(dh_op_type type, void *kernel)
{
    dh_device_cpu.kernel_release(type, kernel);
}

/* Other than the cpu's, whose times are not its own. */
static const char *describe(char *buf, size_t cap)
{
    char text[256];
    snprintf(buf, cap, "staged, %s", dh_device_cpu.describe(text, sizeof text));
    return buf;
}

static double gemm_peak(dh_dtype dtype)
{
    return dh_device_cpu.gemm_peak(dtype);
}

const dh_device dh_device_staged = {
    .name = "staged",
    .doc = "the cpu's kernels in memory the host cannot reach, on late streams: for tests",
    .info = {.name = "staged", .workspace_bytes = workspace_bytes},
    .has_kernel = has_kernel,
    .knows_variants = true,
    .tells_parts = tells_parts,
    .tells_updates = true,
    .slab_create = slab_create,
    .slab_destroy = slab_destroy,
    .slab_write = slab_write,
    .slab_read = slab_read,
    .slab_is_host = false,
    .kernel_prepare = kernel_prepare,
    .kernel_release = kernel_release,
    .streams_create = staged_streams_create,
    .streams_destroy = staged_streams_destroy,
    .issue = staged_issue,
    .run = staged_run,
    .began_ns = staged_began_ns,
    .event_ns = staged_event_ns,
    .first_nonfinite = first_nonfinite,
    .bind_rank = dh_k_bind_rank,
    .describe = describe,
    .gemm_peak = gemm_peak,
};
