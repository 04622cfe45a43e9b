/* The cpu device: its memory, what its streams do with a command, and its row of functions. */
#include "run/cpu/device.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"
#include "run/exec/host_streams.h"

typedef struct cpu_slab {
    dh_slab base;
    size_t mapped; /* bytes mapped, with the guard page behind the slab */
} cpu_slab;

/* ---- slab ------------------------------------------------------------------------------ */

static dh_status slab_create(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    cpu_slab *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    s->base.n_bytes = n_bytes;
    size_t usable = (size_t)(n_bytes + page - 1) / page * page;
    s->mapped = usable + page;
    void *at = mmap(NULL, s->mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        char text[32];
        free(s);
        return dh_fail(ctx, DH_ENOMEM, "cannot reserve a slab of %s: %s",
                       dh_format_bytes(text, sizeof text, (double)n_bytes), strerror(errno));
    }
    s->base.at = at;
    mprotect(s->base.at + usable, page, PROT_NONE); /* a kernel that overruns stops here */
    madvise(s->base.at, usable, MADV_HUGEPAGE);     /* a hint: GEMM operands are large */
    *slab = &s->base;
    return DH_OK;
}

static void slab_destroy(dh_slab *slab)
{
    cpu_slab *s = (cpu_slab *)slab;
    if (!s) return;
    munmap(s->base.at, s->mapped);
    free(s);
}

static dh_status slab_write(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                            uint64_t n_bytes)
{
    DH_TRY(dh_slab_check(ctx, slab, offset, n_bytes));
    memcpy(slab->at + offset, data, n_bytes);
    return DH_OK;
}

static dh_status slab_read(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                           uint64_t n_bytes)
{
    DH_TRY(dh_slab_check(ctx, slab, offset, n_bytes));
    memcpy(data, slab->at + offset, n_bytes);
    return DH_OK;
}

/* ---- commands ------------------------------------------------------------------------------- */

static dh_status kernel_prepare(dh_ctx *ctx, const dh_graph *graph, const dh_op *op,
                                unsigned accumulate, void **kernel)
{
    const dh_cpu_kernel *row = dh_cpu_kernel_of(op->type);
    return row->prepare ? row->prepare(ctx, graph, op, accumulate, kernel) : DH_OK;
}

static void kernel_release(dh_op_type type, void *kernel)
{
    const dh_cpu_kernel *row = dh_cpu_kernel_of(type);
    if (row->release) row->release(kernel);
}

static dh_status work(dh_ctx *ctx, const dh_streams *streams, const dh_stream_command *c)
{
    if (!c->host) return dh_cpu_kernel_of(c->call->op->type)->run(ctx, c->call);
    /* Nothing is fetched: functions of the host read the slab where it is. */
    DH_TRY(c->host(ctx, c->host_user, c->call));
    for (uint32_t i = 0; i < c->n_copies; i++)
        memcpy(c->copies[i].to, c->copies[i].from, c->copies[i].n_bytes);
    return DH_OK;
}

static dh_status streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                                const dh_streams_spec *spec, dh_streams **streams)
{
    return dh_host_streams_create(ctx, slab, values, spec, work, streams);
}

static dh_status first_nonfinite(dh_ctx *ctx, const dh_streams *streams, dh_dtype dtype, int64_t n,
                                 const void *at, int64_t *first)
{
    *first = dh_k_first_nonfinite(dtype, n, at);
    return DH_OK;
}

/* ---- table row ---------------------------------------------------------------------------- */

/* DHELIX_GEMM_PEAK, FLOP/s of a rank, in place of a trial: many short runs need not repeat it. */
static double given_peak(void)
{
    const char *text = getenv("DHELIX_GEMM_PEAK");
    double flops_per_s;
    return text && dh_parse_f64(text, &flops_per_s) ? flops_per_s : 0;
}

/* Measured once by process, type and number of threads: a constant of the machine. */
static double gemm_peak(dh_dtype dtype)
{
    const double given = given_peak();
    if (given > 0) return given;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        int threads;
        double flops_per_s;
    } known[DH_N_DTYPE];
    const int threads = dh_k_fit_team();
    pthread_mutex_lock(&lock);
    if (known[dtype].threads != threads) {
        known[dtype].threads = threads;
        known[dtype].flops_per_s = dh_k_gemm_peak(dtype, threads);
    }
    double peak = known[dtype].flops_per_s;
    pthread_mutex_unlock(&lock);
    return peak;
}

static size_t workspace_bytes(const dh_graph *graph, const dh_op *op)
{
    const dh_cpu_kernel *kernel = dh_cpu_kernel_of(op->type);
    return kernel && kernel->workspace ? kernel->workspace(graph, op) : 0;
}

static bool has_kernel(dh_op_type type)
{
    return dh_cpu_kernel_of(type) != NULL;
}

static bool tells_parts(dh_op_type type)
{
    return type == DH_OP_LINEAR || type == DH_OP_LINEAR_DGRAD || type == DH_OP_ALL_GATHER ||
           type == DH_OP_REDUCE_SCATTER;
}

const dh_device dh_device_cpu = {
    .name = "cpu",
    .doc = "oneDNN GEMMs and OpenMP kernels, float32 or bf16 with float32 accumulation",
    .info = {.name = "cpu", .workspace_bytes = workspace_bytes},
    .has_kernel = has_kernel,
    .knows_variants = true,
    .tells_parts = tells_parts,
    .tells_updates = true,
    .slab_create = slab_create,
    .slab_destroy = slab_destroy,
    .slab_write = slab_write,
    .slab_read = slab_read,
    .slab_is_host = true,
    .kernel_prepare = kernel_prepare,
    .kernel_release = kernel_release,
    .streams_create = streams_create,
    .streams_destroy = dh_host_streams_destroy,
    .issue = dh_host_streams_issue,
    .run = dh_host_streams_run,
    .began_ns = dh_host_streams_began_ns,
    .event_ns = dh_host_streams_event_ns,
    .first_nonfinite = first_nonfinite,
    .bind_rank = dh_k_bind_rank,
    .describe = dh_k_describe,
    .gemm_peak = gemm_peak,
};
