/* Memory of the cuda device, copies between it and the host, and what becomes of calls that fail.
 *
 * Weights, moments and checkpoints go through two pieces of pinned memory in turn: while one is
 * copied by the GPU the other is filled or emptied by the host. */
#include <stdlib.h>
#include <string.h>

#include "run/cuda/cuda.h"

/* ---- calls that fail --------------------------------------------------------------------------
 */

dh_status dh_cuda_check(dh_ctx *ctx, cudaError_t error, const char *call)
{
    if (error == cudaSuccess) return DH_OK;
    (void)cudaGetLastError(); /* so that no later call is told of it */
    return dh_fail(ctx, error == cudaErrorMemoryAllocation ? DH_ENOMEM : DH_EINTERNAL,
                   "CUDA: %s: %s (%s)", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

dh_status dh_cublas_check(dh_ctx *ctx, cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS) return DH_OK;
    return dh_fail(ctx, status == CUBLAS_STATUS_ALLOC_FAILED ? DH_ENOMEM : DH_EINTERNAL,
                   "cuBLASLt: %s: %s", call, cublasLtGetStatusName(status));
}

/* ---- two pieces of pinned memory ------------------------------------------------------------- */

/* TUNING: a guess until one has run: long enough that a copy's start does not matter. */
enum { MOST_PIECE = 4 << 20 };

typedef struct cuda_bounce {
    cudaStream_t stream;
    size_t piece; /* bytes of each */
    unsigned char *at[2];
    cudaEvent_t copied[2];
} bounce;

static void bounce_destroy(bounce *b)
{
    if (!b) return;
    for (int i = 0; i < 2; i++) {
        if (b->copied[i]) cudaEventDestroy(b->copied[i]);
        if (b->at[i]) cudaFreeHost(b->at[i]);
    }
    if (b->stream) cudaStreamDestroy(b->stream);
    free(b);
}

static dh_status bounce_fill(dh_ctx *ctx, bounce *b)
{
    CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        CUDA_TRY(cudaHostAlloc((void **)&b->at[i], b->piece, cudaHostAllocDefault));
        CUDA_TRY(cudaEventCreateWithFlags(&b->copied[i], cudaEventDefault));
    }
    return DH_OK;
}

/* out: set only on DH_OK */
static dh_status bounce_create(dh_ctx *ctx, uint64_t n_bytes, bounce **out)
{
    bounce *b = calloc(1, sizeof *b);
    if (!b) return dh_no_memory(ctx);
    b->piece = (size_t)DH_MAX(1, DH_MIN(n_bytes, (uint64_t)MOST_PIECE));
    const dh_status st = bounce_fill(ctx, b);
    if (st != DH_OK) {
        bounce_destroy(b);
        return st;
    }
    *out = b;
    return DH_OK;
}

static size_t piece_bytes(const bounce *b, uint64_t at, uint64_t n_bytes)
{
    return (size_t)DH_MIN((uint64_t)b->piece, n_bytes - at);
}

static dh_status copy_up(dh_ctx *ctx, const bounce *b, unsigned char *to, const unsigned char *from,
                         uint64_t n_bytes)
{
    int turn = 0;
    for (uint64_t at = 0; at < n_bytes; at += b->piece, turn ^= 1) {
        const size_t n = piece_bytes(b, at, n_bytes);
        CUDA_TRY(cudaEventSynchronize(b->copied[turn])); /* the piece is free */
        memcpy(b->at[turn], from + at, n);
        CUDA_TRY(cudaMemcpyAsync(to + at, b->at[turn], n, cudaMemcpyHostToDevice, b->stream));
        CUDA_TRY(cudaEventRecord(b->copied[turn], b->stream));
    }
    CUDA_TRY(cudaStreamSynchronize(b->stream));
    return DH_OK;
}

static dh_status begin_down(dh_ctx *ctx, const bounce *b, int turn, const unsigned char *from,
                            size_t n_bytes)
{
    CUDA_TRY(cudaMemcpyAsync(b->at[turn], from, n_bytes, cudaMemcpyDeviceToHost, b->stream));
    CUDA_TRY(cudaEventRecord(b->copied[turn], b->stream));
    return DH_OK;
}

/* The next piece is under way while one is emptied. */
static dh_status copy_down(dh_ctx *ctx, const bounce *b, unsigned char *to,
                           const unsigned char *from, uint64_t n_bytes)
{
    int turn = 0;
    if (n_bytes > 0) DH_TRY(begin_down(ctx, b, 0, from, piece_bytes(b, 0, n_bytes)));
    for (uint64_t at = 0; at < n_bytes; at += b->piece, turn ^= 1) {
        const uint64_t next = at + b->piece;
        if (next < n_bytes)
            DH_TRY(begin_down(ctx, b, turn ^ 1, from + next, piece_bytes(b, next, n_bytes)));
        CUDA_TRY(cudaEventSynchronize(b->copied[turn]));
        memcpy(to + at, b->at[turn], piece_bytes(b, at, n_bytes));
    }
    return DH_OK;
}

/* ---- slabs ------------------------------------------------------------------------------------
 */

void cuda_slab_destroy(dh_slab *slab)
{
    cuda_slab *s = (cuda_slab *)slab;
    if (!s) return;
    cudaSetDevice(s->gpu);
    bounce_destroy(s->bounce);
    dh_cuda_drop(s->base.at);
    free(s);
}

static dh_status fill_slab(dh_ctx *ctx, cuda_slab *s)
{
    const size_t room = (size_t)DH_MAX(1, s->base.n_bytes);
    CUDA_TRY(cudaGetDevice(&s->gpu));
    CUDA_TRY(cudaMalloc((void **)&s->base.at, room));
    DH_TRY(bounce_create(ctx, room, &s->bounce));
    CUDA_TRY(cudaMemsetAsync(s->base.at, 0, room, s->bounce->stream));
    CUDA_TRY(cudaStreamSynchronize(s->bounce->stream));
    return DH_OK;
}

dh_status cuda_slab_create(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab)
{
    char text[32];
    cuda_slab *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    s->base.n_bytes = n_bytes;
    const dh_status st = fill_slab(ctx, s);
    if (st != DH_OK) {
        cuda_slab_destroy(&s->base);
        dh_ctx_while(ctx, "reserving a slab of %s",
                     dh_format_bytes(text, sizeof text, (double)n_bytes));
        return st;
    }
    *slab = &s->base;
    return DH_OK;
}

dh_status cuda_slab_write(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                          uint64_t n_bytes)
{
    const cuda_slab *s = (const cuda_slab *)slab;
    DH_TRY(dh_slab_check(ctx, slab, offset, n_bytes));
    CUDA_TRY(cudaSetDevice(s->gpu));
    return copy_up(ctx, s->bounce, slab->at + offset, data, n_bytes);
}

dh_status cuda_slab_read(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                         uint64_t n_bytes)
{
    const cuda_slab *s = (const cuda_slab *)slab;
    DH_TRY(dh_slab_check(ctx, slab, offset, n_bytes));
    CUDA_TRY(cudaSetDevice(s->gpu));
    return copy_down(ctx, s->bounce, data, slab->at + offset, n_bytes);
}

/* ---- what kernels read beside operands --------------------------------------------------------
 */

dh_status dh_cuda_upload(dh_ctx *ctx, const void *data, size_t n_bytes, void **at)
{
    bounce *b;
    void *room = NULL;
    CUDA_TRY(cudaMalloc(&room, DH_MAX(1, n_bytes)));
    dh_status st = bounce_create(ctx, n_bytes, &b);
    if (st == DH_OK) {
        st = copy_up(ctx, b, room, data, n_bytes);
        bounce_destroy(b);
    }
    if (st == DH_OK)
        *at = room;
    else
        dh_cuda_drop(room);
    return st;
}

void dh_cuda_drop(void *at)
{
    if (at) cudaFree(at);
}
