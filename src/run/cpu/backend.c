/* CPU backend: the slab, and its row of functions; exec.c has the loop that executes programs. */
#include "run/cpu/backend.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "run/cpu/exec.h"
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* ---- slab ------------------------------------------------------------------------------ */

static dh_status slab_create(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    dh_slab *s = calloc(1, sizeof *s);
    if (!s) return dh_fail(ctx, DH_ENOMEM, "out of memory for a slab");
    s->n_bytes = n_bytes;
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
    s->at = at;
    mprotect(s->at + usable, page, PROT_NONE); /* a kernel that overruns stops here */
    madvise(s->at, usable, MADV_HUGEPAGE);     /* a hint: GEMM operands are large */
    *slab = s;
    return DH_OK;
}

static void slab_destroy(dh_slab *slab)
{
    if (!slab) return;
    munmap(slab->at, slab->mapped);
    free(slab);
}

static dh_status slab_range(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, uint64_t n_bytes)
{
    if (offset <= slab->n_bytes && n_bytes <= slab->n_bytes - offset) return DH_OK;
    return dh_fail(ctx, DH_EINTERNAL, "bytes [%llu, %llu) lie outside the slab of %llu",
                   (unsigned long long)offset, (unsigned long long)(offset + n_bytes),
                   (unsigned long long)slab->n_bytes);
}

static dh_status slab_write(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                            uint64_t n_bytes)
{
    DH_TRY(slab_range(ctx, slab, offset, n_bytes));
    memcpy(slab->at + offset, data, n_bytes);
    return DH_OK;
}

static dh_status slab_read(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                           uint64_t n_bytes)
{
    DH_TRY(slab_range(ctx, slab, offset, n_bytes));
    memcpy(data, slab->at + offset, n_bytes);
    return DH_OK;
}

static const void *slab_address(dh_slab *slab, uint64_t offset)
{
    return slab->at + offset;
}

static uint64_t slab_peak(const dh_slab *slab)
{
    return slab->peak;
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
    const int threads = omp_get_max_threads();
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

const dh_backend dh_backend_cpu = {
    .name = "cpu",
    .doc = "oneDNN GEMMs and OpenMP kernels, float32 or bf16 with float32 accumulation",
    .info = {"cpu", workspace_bytes},
    .has_kernel = has_kernel,
    .tells_parts = tells_parts,
    .slab_create = slab_create,
    .slab_destroy = slab_destroy,
    .slab_write = slab_write,
    .slab_read = slab_read,
    .slab_address = slab_address,
    .slab_peak = slab_peak,
    .exec_create = dh_cpu_exec_create,
    .exec_run = dh_cpu_exec_run,
    .exec_spans = dh_cpu_exec_spans,
    .exec_destroy = dh_cpu_exec_destroy,
    .bind_rank = dh_k_bind_rank,
    .describe = dh_k_describe,
    .gemm_peak = gemm_peak,
};
