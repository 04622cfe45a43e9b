/* The cuda device: GPUs, one a rank of the machine in turn; prepared kernels; its row of functions.
 * Compiled against CUDA's runtime and, for tests, against one on the host (host/runtime.c). It has
 * never run on a GPU, and says so when it begins. */
#include "run/cuda/device.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/cuda/attn_check.h"
#include "run/cuda/cuda.h"
#include "run/cuda/gemm.h"
#include "run/cuda/link.h"

/* ---- prepared kernels -------------------------------------------------------------------------
 */

static dh_status upload_image(dh_ctx *ctx, const dh_cuda_kernel *row, const dh_graph *graph,
                              const dh_op *op, void **kernel)
{
    const size_t n_bytes = row->image_bytes(graph, op);
    void *image = malloc(n_bytes + 1);
    if (!image) return dh_no_memory(ctx);
    row->image_write(graph, op, image);
    const dh_status st = dh_cuda_upload(ctx, image, n_bytes, kernel);
    free(image);
    return st;
}

/* Operators that wgmma may have (kernels/attn_wgmma.cu). */
static bool may_use_wgmma(const dh_graph *graph, const dh_op *op)
{
    const bool is_attention = op->type == DH_OP_ATTN || op->type == DH_OP_ATTN_GRAD ||
                              op->type == DH_OP_RING_ATTN || op->type == DH_OP_RING_ATTN_GRAD;
    const int64_t D = graph->dims.head_dim;
    return is_attention && graph->dtype == DH_BF16 && (D == 64 || D == 128);
}

static dh_status kernel_prepare(dh_ctx *ctx, const dh_graph *graph, const dh_op *op,
                                unsigned accumulate, void **kernel)
{
    if (may_use_wgmma(graph, op)) DH_TRY(dh_cuda_choose_attention(ctx));
    const dh_cuda_kernel *row = dh_cuda_kernel_of(op->type);
    if (row->prepare) return row->prepare(ctx, graph, op, accumulate, kernel);
    return row->image_bytes ? upload_image(ctx, row, graph, op, kernel) : DH_OK;
}

static void kernel_release(dh_op_type type, void *kernel)
{
    const dh_cuda_kernel *row = dh_cuda_kernel_of(type);
    if (row->release) row->release(kernel);
    if (row->image_bytes) dh_cuda_drop(kernel);
}

static size_t workspace_bytes(const dh_graph *graph, const dh_op *op)
{
    const dh_cuda_kernel *kernel = dh_cuda_kernel_of(op->type);
    return kernel && kernel->workspace ? kernel->workspace(graph, op) : 0;
}

static bool has_kernel(dh_op_type type)
{
    return dh_cuda_kernel_of(type) != NULL;
}

static bool tells_parts(dh_op_type type)
{
    return type == DH_OP_LINEAR || type == DH_OP_LINEAR_DGRAD || type == DH_OP_ALL_GATHER ||
           type == DH_OP_REDUCE_SCATTER;
}

/* ---- memory of the host -----------------------------------------------------------------------
 */

static void *host_alloc(size_t n_bytes)
{
    void *at = NULL;
    if (cudaHostAlloc(&at, DH_MAX(1, n_bytes), cudaHostAllocDefault) == cudaSuccess) return at;
    (void)cudaGetLastError();
    return NULL;
}

static void host_free(void *at)
{
    cudaFreeHost(at);
}

/* ---- the machine ------------------------------------------------------------------------------
 */

static const char *describe(char *buf, size_t cap)
{
    int version = 0, gpu = 0;
    char nccl[64];
    struct cudaDeviceProp gpu_is = {.name = "no GPU"};
    cudaRuntimeGetVersion(&version);
    if (cudaGetDevice(&gpu) != cudaSuccess || cudaGetDeviceProperties(&gpu_is, gpu) != cudaSuccess)
        (void)cudaGetLastError();
    snprintf(buf, cap, "CUDA %d.%d, cuBLASLt %zu, %s, %s", version / 1000, version % 1000 / 10,
             cublasLtGetVersion(), dh_cuda_nccl_version(nccl, sizeof nccl), gpu_is.name);
    return buf;
}

static void say_what_it_is(void)
{
    char text[512];
    dh_log(DH_LOG_WARN, "device cuda: compiled and tested on the host, never run on a GPU (%s)",
           describe(text, sizeof text));
}

/* Ranks of a machine take its GPUs in turn. */
static dh_status bind_rank(dh_ctx *ctx, int local_rank, int n_local_ranks, int64_t threads,
                           int *n_threads)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int n_gpus = 0;
    const cudaError_t found = cudaGetDeviceCount(&n_gpus);
    if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        return dh_fail(ctx, DH_EMISSING,
                       "device cuda: the machine has no GPU, or no driver for it (%s: %s); use "
                       "\"cpu\"",
                       cudaGetErrorName(found), cudaGetErrorString(found));
    }
    DH_TRY(dh_cuda_check(ctx, found, "cudaGetDeviceCount"));
    CUDA_TRY(cudaSetDevice(local_rank % n_gpus));
    pthread_once(&once, say_what_it_is);
    return dh_k_bind_rank(ctx, local_rank, n_local_ranks, threads, n_threads);
}

/* Processors of the first GPU; a machine's are taken to be alike. */
static int processors(void)
{
    struct cudaDeviceProp is;
    if (cudaGetDeviceProperties(&is, 0) == cudaSuccess) return is.multiProcessorCount;
    (void)cudaGetLastError();
    return 0;
}

/* ---- what products can do ---------------------------------------------------------------------
 */

enum { PEAK_RUNS = 4 };

typedef struct trial {
    dh_gemm_desc desc;
    dh_cuda_gemm *gemm;
    dh_slab *slab; /* a, c, scratch */
    cudaStream_t stream;
    cudaEvent_t from, to;
} trial;

static void trial_end(trial *t)
{
    if (t->from) cudaEventDestroy(t->from);
    if (t->to) cudaEventDestroy(t->to);
    if (t->stream) cudaStreamDestroy(t->stream);
    cuda_slab_destroy(t->slab);
    dh_cuda_gemm_destroy(t->gemm);
}

/* Fastest of a few runs, ms. */
static dh_status time_products(dh_ctx *ctx, trial *t, float *best)
{
    const size_t matrix = (size_t)t->desc.m * (size_t)t->desc.n * dh_dtype_bytes(t->desc.in);
    DH_TRY(dh_cuda_gemm_create(ctx, &t->desc, &t->gemm));
    DH_TRY(cuda_slab_create(ctx, 2 * matrix + dh_cuda_gemm_workspace(&t->desc), &t->slab));
    CUDA_TRY(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&t->from, cudaEventDefault));
    CUDA_TRY(cudaEventCreateWithFlags(&t->to, cudaEventDefault));
    unsigned char *a = t->slab->at;
    for (int i = 0; i < PEAK_RUNS; i++) {
        float ms = 0;
        CUDA_TRY(cudaEventRecord(t->from, t->stream));
        DH_TRY(dh_cuda_gemm_run(ctx, t->stream, t->gemm, a, a, NULL, NULL, a + matrix,
                                a + 2 * matrix));
        CUDA_TRY(cudaEventRecord(t->to, t->stream));
        CUDA_TRY(cudaEventSynchronize(t->to));
        CUDA_TRY(cudaEventElapsedTime(&ms, t->from, t->to));
        if (i == 0 || ms < *best) *best = ms;
    }
    return DH_OK;
}

/* DHELIX_GEMM_PEAK, FLOP/s of a rank, in place of a trial; 0: there is none. */
static double given_peak(void)
{
    const char *text = getenv("DHELIX_GEMM_PEAK");
    double flops_per_s;
    return text && dh_parse_f64(text, &flops_per_s) ? flops_per_s : 0;
}

static double gemm_peak(dh_dtype dtype)
{
    enum { SIZE = 8192 };
    dh_ctx ctx = DH_CTX_INIT;
    trial t = {.desc = {SIZE, SIZE, SIZE, .in = dtype, .out = dtype}};
    float ms = 0;
    const double given = given_peak();
    if (given > 0) return given;
    const dh_status st = time_products(&ctx, &t, &ms);
    trial_end(&t);
    return st == DH_OK && ms > 0 ? 2.0 * pow(SIZE, 3) / (double)ms * 1e3 : 0;
}

/* ---- table row --------------------------------------------------------------------------------
 */

static const dh_devlinks *const links[] = {
#ifdef DH_HAVE_NCCL
    &dh_cuda_nccl_links,
#endif
    &dh_cuda_peer_links, NULL};

const dh_device dh_device_cuda = {
    .name = "cuda",
    .doc = "GPUs by CUDA and cuBLASLt; compiled and tested on the host, never run on a GPU",
    .info = {.name = "cuda", .workspace_bytes = workspace_bytes, .fuses_gelu = true},
    .has_kernel = has_kernel,
    .knows_variants = true,
    .tells_parts = tells_parts,
    .slab_create = cuda_slab_create,
    .slab_destroy = cuda_slab_destroy,
    .slab_write = cuda_slab_write,
    .slab_read = cuda_slab_read,
    .slab_is_host = false,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .kernel_prepare = kernel_prepare,
    .kernel_release = kernel_release,
    .streams_create = cuda_streams_create,
    .streams_destroy = cuda_streams_destroy,
    .issue = cuda_issue,
    .run = cuda_run,
    .run_captured = cuda_run_captured,
    .began_ns = cuda_began_ns,
    .event_ns = cuda_event_ns,
    .first_nonfinite = cuda_first_nonfinite,
    .links = links,
    .bind_rank = bind_rank,
    .describe = describe,
    .processors = processors,
    .gemm_peak = gemm_peak,
};
