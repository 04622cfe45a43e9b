/* Whether a GPU uses attention by wgmma (kernels/attn_wgmma.cu). The first operator that would use
 * it compares its results there with those of the kernels for all GPUs (attn_mma.cu). Random
 * inputs, causal, two query heads a key head, heads of 64 and 128 channels, results of float32 and
 * of bf16, rows that end inside of a block.
 *
 * Tolerance: 1e-4 for results of float32, 1e-2 for those of bf16, relative to numbers above 1. Both
 * kernels have weights of 16 bits and sums of float32, in orders of their own: some 1e-5 together;
 * bf16 rounds by 2^-8. A product whose layout is wrong is off by more than 1e-1. */
#include "run/cuda/attn_check.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "run/cuda/kernels.h"
#include "run/cuda/runtime.h"

enum { MOST_DEVICES = 64, BATCH = 2, TOKENS = 140, HEADS = 2, KV_HEADS = 1, MOST_D = 128 };
enum { PORTABLE, WGMMA, N_SIDES, MOST_SECONDS = 120 };
enum { O, LSE, DQKV, N_RESULTS };
static const char *const result_names[N_RESULTS] = {"o", "lse", "gradients"};

/* Arrays lie one behind the other, on the host as on the device. */
typedef struct array {
    size_t at;
    int64_t n;
    dh_dtype dtype;
} array;

typedef struct trial {
    dh_attn_shape s;
    cudaStream_t stream;
    unsigned char *host, *device;
    size_t n_bytes;
    array qkv, dout, results[N_SIDES][N_RESULTS], scratch;
} trial;

static array place(trial *t, int64_t n, dh_dtype dtype)
{
    const array a = {t->n_bytes, n, dtype};
    t->n_bytes += ((size_t)n * dh_dtype_bytes(dtype) + 255) / 256 * 256;
    return a;
}

static void lay_out(trial *t, int64_t D, dh_dtype results)
{
    t->s = dh_attn_packed(DH_BF16, BATCH, TOKENS, HEADS, KV_HEADS, D);
    t->s.o_dtype = t->s.g_dtype = results;
    t->n_bytes = 0;
    const int64_t rows = (int64_t)BATCH * TOKENS, row = (HEADS + 2 * KV_HEADS) * D;
    t->qkv = place(t, rows * row, DH_BF16);
    t->dout = place(t, rows * HEADS * D, DH_BF16);
    for (int side = 0; side < N_SIDES; side++) {
        t->results[side][O] = place(t, rows * HEADS * D, results);
        t->results[side][LSE] = place(t, rows * HEADS, DH_F32);
        t->results[side][DQKV] = place(t, rows * row, results);
    }
    t->scratch = place(t, (int64_t)(dh_cuda_attn_bwd_workspace(&t->s) / sizeof(float)), DH_F32);
}

static double get(const trial *t, const array *a, int64_t i)
{
    const unsigned char *x = t->host + a->at + (size_t)i * dh_dtype_bytes(a->dtype);
    uint32_t bits = 0;
    float value;
    memcpy(&bits, x, dh_dtype_bytes(a->dtype));
    if (a->dtype == DH_BF16) bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* From -1 to 1, a multiple of 2^-7: bf16 has it. */
static void draw(trial *t, const array *a, uint64_t *seed)
{
    for (int64_t i = 0; i < a->n; i++) {
        *seed = dh_mix64(*seed);
        const float x = (float)((int)(*seed >> 32 & 0xff) - 128) / 128;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const uint16_t half = (uint16_t)(bits >> 16);
        memcpy(t->host + a->at + 2 * (size_t)i, &half, sizeof half);
    }
}

static void *at(const trial *t, const array *a, int64_t i)
{
    return t->device + a->at + (size_t)i * dh_dtype_bytes(a->dtype);
}

/* Backward reads the same o and lse on both sides. */
static void run_side(const trial *t, int side)
{
    const dh_attn_shape *s = &t->s;
    const array *mine = t->results[side], *first = t->results[PORTABLE];
    const int64_t k = s->H * s->D, v = (s->H + s->KV) * s->D;
    const void *keys = at(t, &t->qkv, k), *values = at(t, &t->qkv, v);
    dh_cuda_attn_fwd(t->stream, s, at(t, &t->qkv, 0), keys, values, at(t, &mine[O], 0),
                     at(t, &mine[LSE], 0));
    dh_cuda_attn_bwd(t->stream, s, at(t, &t->dout, 0), at(t, &first[O], 0), at(t, &first[LSE], 0),
                     at(t, &t->qkv, 0), keys, values, at(t, &mine[DQKV], 0), at(t, &mine[DQKV], k),
                     at(t, &mine[DQKV], v), false, at(t, &t->scratch, 0));
}

/* Kernels that wait for what never comes end with the process alone. */
static dh_status await(dh_ctx *ctx, const trial *t)
{
    const int64_t end = dh_now_ns() + (int64_t)MOST_SECONDS * 1000000000;
    cudaError_t state;
    while ((state = cudaStreamQuery(t->stream)) == cudaErrorNotReady && dh_now_ns() < end)
        dh_sleep_until_ns(dh_now_ns() + 100000);
    (void)cudaGetLastError();
    if (state == cudaErrorNotReady)
        return dh_fail(ctx, DH_EINTERNAL,
                       "CUDA: attention by wgmma has not ended in %d s; DHELIX_WGMMA=off leaves it "
                       "out",
                       MOST_SECONDS);
    if (state != cudaSuccess)
        return dh_fail(ctx, DH_EINTERNAL,
                       "CUDA: attention by wgmma: %s (%s); DHELIX_WGMMA=off leaves it out",
                       cudaGetErrorName(state), cudaGetErrorString(state));
    return DH_OK;
}

static dh_status run_trial(dh_ctx *ctx, trial *t, int device)
{
    uint64_t seed = 17;
    CUDA_TRY(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaMalloc((void **)&t->device, t->n_bytes));
    CUDA_TRY(cudaHostAlloc((void **)&t->host, t->n_bytes, cudaHostAllocDefault));
    memset(t->host, 0xff, t->n_bytes);
    draw(t, &t->qkv, &seed);
    draw(t, &t->dout, &seed);
    CUDA_TRY(cudaMemcpyAsync(t->device, t->host, t->n_bytes, cudaMemcpyHostToDevice, t->stream));
    run_side(t, PORTABLE);
    dh_cuda_allow_wgmma(device, true);
    run_side(t, WGMMA);
    dh_cuda_allow_wgmma(device, false);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaMemcpyAsync(t->host, t->device, t->n_bytes, cudaMemcpyDeviceToHost, t->stream));
    return await(ctx, t);
}

static void trial_end(trial *t)
{
    if (t->stream) cudaStreamDestroy(t->stream);
    cudaFree(t->device);
    cudaFreeHost(t->host);
    t->stream = NULL;
    t->device = t->host = NULL;
}

/* The largest difference of a result. */
static double difference(const trial *t, int result)
{
    const array *a = &t->results[PORTABLE][result], *b = &t->results[WGMMA][result];
    double most = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const double want = get(t, a, i), off = fabs(get(t, b, i) - want) / fmax(1, fabs(want));
        most = off <= most ? most : isnan(off) ? INFINITY : off;
    }
    return most;
}

static double tolerance_of(dh_dtype dtype)
{
    return dtype == DH_BF16 ? 1e-2 : 1e-4;
}

/* Whether all results are close; says which is not. */
static bool is_close(const trial *t, double *largest)
{
    for (int r = 0; r < N_RESULTS; r++) {
        const dh_dtype dtype = t->results[WGMMA][r].dtype;
        const double off = difference(t, r), most = tolerance_of(dtype);
        if (!(off <= most)) {
            dh_log(DH_LOG_WARN,
                   "device cuda: attention keeps the portable kernels: by wgmma, %s (%s, heads of "
                   "%lld channels) differ by %.3g, tolerance %.3g",
                   result_names[r], dh_dtype_name(dtype), (long long)t->s.D, off, most);
            return false;
        }
        if (dtype == DH_F32) *largest = fmax(*largest, off);
    }
    return true;
}

static dh_status compare(dh_ctx *ctx, int device, bool *close)
{
    double largest = 0;
    *close = true;
    for (int64_t D = 64; D <= MOST_D && *close; D *= 2)
        for (dh_dtype results = DH_F32; results <= DH_BF16 && *close;
             results = (dh_dtype)(results + 1)) {
            trial t = {.stream = NULL};
            lay_out(&t, D, results);
            const dh_status st = run_trial(ctx, &t, device);
            if (st == DH_OK) *close = is_close(&t, &largest);
            trial_end(&t);
            DH_TRY(st);
        }
    if (*close)
        dh_log(DH_LOG_INFO,
               "device cuda: attention by wgmma, compared with the portable kernels: the largest "
               "difference is %.3g, tolerance %.3g",
               largest, tolerance_of(DH_F32));
    return DH_OK;
}

static bool is_wanted(void)
{
    const char *text = getenv("DHELIX_WGMMA");
    return !text || strcmp(text, "off") != 0;
}

dh_status dh_cuda_choose_attention(dh_ctx *ctx)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_known[MOST_DEVICES];
    struct cudaDeviceProp is;
    int device = 0;
    bool close = false;
    CUDA_TRY(cudaGetDevice(&device));
    if (device >= MOST_DEVICES || !dh_cuda_wgmma_is_built() || !is_wanted()) return DH_OK;
    CUDA_TRY(cudaGetDeviceProperties(&is, device));
    if (is.major != 9 || is.minor != 0) return DH_OK;
    pthread_mutex_lock(&lock);
    dh_status st = DH_OK;
    if (!is_known[device]) {
        st = compare(ctx, device, &close);
        dh_cuda_allow_wgmma(device, st == DH_OK && close);
        is_known[device] = st == DH_OK;
    }
    pthread_mutex_unlock(&lock);
    return st;
}
