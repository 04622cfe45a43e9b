/* Rates of device cuda's kernels at the shapes of GPT-2 124M and of a Llama of 1B, in bf16, and
 * what a large product and a copy take on the same GPU. One JSON line a case:
 *
 *   bench_gpu [--small] [--seconds S] [--only TEXT]
 *
 * --small: sizes for a machine that plays a GPU; S seconds a case at most (0.3). Times are between
 * two events around as many calls as take 2 ms; the least and the middle one of those. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/cuda/attn_check.h"
#include "run/cuda/gemm.h"
#include "run/cuda/runtime.h"

/* A model's sizes: tokens of a batch, of a sequence, width, heads, of keys, channels, feed-forward
 * width, vocabulary. */
typedef struct sizes {
    const char *name;
    int64_t N, T, C, H, KV, D, F, V;
} sizes;

static const sizes real[] = {{"gpt2", 16384, 1024, 768, 12, 12, 64, 3072, 50304},
                             {"llama1b", 8192, 4096, 2048, 32, 8, 64, 8192, 32768},
                             {"heads128", 8192, 4096, 4096, 32, 8, 128, 4096, 32768}};
static const sizes small[] = {{"gpt2", 32, 16, 32, 2, 2, 16, 64, 64}};

typedef struct bench {
    const sizes *s;
    bool is_small;
    cudaStream_t stream;
    cudaEvent_t from, to;
    size_t room;                   /* bytes of each array */
    unsigned char *x, *y, *z, *ws; /* random bf16; scratch */
    float *f1, *f2, *f3, *f4;      /* the first bytes of four more */
    int32_t *ids, *pos;            /* targets, positions: of every token */
    dh_scalars *scalars;
    double *norm;
    dh_cuda_gemm *gemm;
    int64_t ns; /* a case's time */
    int device;
    bool has_wgmma; /* its attention has been compared with the portable one */
    double gemm_peak, copy_peak;
} bench;

typedef struct bench_case {
    const char *name;
    double (*flops)(const sizes *s); /* of a call; NULL: none that count */
    double (*bytes)(const sizes *s);
    void (*run)(bench *b);
    dh_gemm_desc (*gemm)(const sizes *s); /* NULL: run does it */
} bench_case;

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, why);
    exit(1);
}

static void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) stop(what, cudaGetErrorString(error));
}

/* ---- cases ------------------------------------------------------------------------------------
 */

static dh_attn_shape attn_of(const bench *b)
{
    const sizes *s = b->s;
    return dh_attn_packed(DH_BF16, s->N / s->T, s->T, s->H, s->KV, s->D);
}

/* Bytes of queries, and of keys or values, in a packed row. */
static size_t q_bytes(const sizes *s)
{
    return (size_t)(s->H * s->D) * 2;
}

static size_t k_bytes(const sizes *s)
{
    return (size_t)(s->KV * s->D) * 2;
}

static void run_attn(bench *b)
{
    const dh_attn_shape s = attn_of(b);
    const unsigned char *k = b->x + q_bytes(b->s);
    dh_cuda_attn_fwd(b->stream, &s, b->x, k, k + k_bytes(b->s), b->y, b->f1);
}

static void run_attn_bwd(bench *b)
{
    const dh_attn_shape s = attn_of(b);
    const unsigned char *k = b->x + q_bytes(b->s);
    unsigned char *dk = b->z + q_bytes(b->s);
    dh_cuda_attn_bwd(b->stream, &s, b->y, b->y, b->f1, b->x, k, k + k_bytes(b->s), b->z, dk,
                     dk + k_bytes(b->s), false, b->ws);
}

/* The same by wgmma; what follows is portable again. */
static void by_wgmma(bench *b, void (*run)(bench *b))
{
    dh_cuda_allow_wgmma(b->device, true);
    run(b);
    dh_cuda_allow_wgmma(b->device, false);
}

static void run_attn_wgmma(bench *b)
{
    by_wgmma(b, run_attn);
}

static void run_attn_wgmma_bwd(bench *b)
{
    by_wgmma(b, run_attn_bwd);
}

static void run_layer_norm(bench *b)
{
    dh_cuda_norm_fwd(b->stream, DH_NORM_LAYER, DH_BF16, b->s->N, b->s->C, b->x, b->f1, b->f2, 1e-5f,
                     b->y, b->f3);
}

static void run_rms_norm(bench *b)
{
    dh_cuda_norm_fwd(b->stream, DH_NORM_RMS, DH_BF16, b->s->N, b->s->C, b->x, b->f1, NULL, 1e-5f,
                     b->y, b->f3);
}

static void run_norm_dgrad(bench *b)
{
    dh_cuda_norm_dgrad(b->stream, DH_NORM_LAYER, DH_BF16, b->s->N, b->s->C, b->y, b->x, b->f1,
                       b->f3, b->z, b->z);
}

static void run_norm_wgrad(bench *b)
{
    dh_cuda_norm_wgrad(b->stream, DH_BF16, b->s->N, b->s->C, b->y, b->x, b->f3, b->f1, b->f2, true,
                       b->ws);
}

static void run_gelu(bench *b)
{
    dh_cuda_gelu_fwd(b->stream, DH_BF16, b->s->N * b->s->F, b->x, b->y);
}

static void run_gelu_bwd(bench *b)
{
    dh_cuda_gelu_bwd(b->stream, DH_BF16, b->s->N * b->s->F, b->y, b->x, b->z);
}

static void run_swiglu(bench *b)
{
    dh_cuda_swiglu_fwd(b->stream, DH_BF16, b->s->N, b->s->F, b->x, b->y);
}

static void run_swiglu_bwd(bench *b)
{
    dh_cuda_swiglu_bwd(b->stream, DH_BF16, b->s->N, b->s->F, b->y, b->x, b->z);
}

static void run_rope(bench *b)
{
    const sizes *s = b->s;
    dh_cuda_rope(b->stream, DH_BF16, s->N, s->T, s->H, s->KV, s->D, b->x, b->f1, b->pos, false,
                 b->y);
}

static void run_residual(bench *b)
{
    dh_cuda_residual(b->stream, DH_BF16, b->s->N, b->s->C, b->x, b->y, b->f1, NULL, b->z);
}

/* Of as many rows as the arrays hold. */
static int64_t head_rows(const sizes *s)
{
    return s->N / 8;
}

static void run_ce_stats(bench *b)
{
    dh_cuda_ce_stats(b->stream, DH_BF16, head_rows(b->s), 0, b->s->V, b->x, b->ids, b->f3);
}

static void run_ce_grad(bench *b)
{
    dh_cuda_ce_grad(b->stream, DH_BF16, DH_BF16, NULL, head_rows(b->s), 0, b->s->V, b->x, b->ids,
                    b->f3, 1e-3f, b->y);
}

/* Of a large matrix. */
static int64_t n_params(const sizes *s)
{
    return s->V * s->C;
}

static void run_adamw(bench *b)
{
    dh_cuda_adamw(b->stream, b->scalars, b->norm, true, n_params(b->s), b->f1, b->f2, b->f3, b->f4,
                  (dh_bf16 *)(void *)b->y, NULL);
}

static void run_copy(bench *b)
{
    dh_cuda_copy(b->stream, b->room / 2, b->x, b->y);
}

static void run_gemm(bench *b)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (dh_cuda_gemm_run(&ctx, b->stream, b->gemm, b->x, b->y, NULL, NULL, b->z, b->ws) != DH_OK)
        stop("a product", ctx.message);
}

/* Causal attention has half of the products. */
static double attn_flops(const sizes *s)
{
    return 2.0 * (double)s->N * (double)s->T * (double)(s->H * s->D);
}

static double attn_bwd_flops(const sizes *s)
{
    return 2.5 * attn_flops(s);
}

#define BYTES(name, expression)                                                                    \
    static double name(const sizes *s)                                                             \
    {                                                                                              \
        return (double)(expression);                                                               \
    }
BYTES(rows_2, 2 * 2 * s->N * s->C)
BYTES(rows_3, 3 * 2 * s->N * s->C)
BYTES(rows_4, 4 * 2 * s->N * s->C)
BYTES(ffn_2, 2 * 2 * s->N * s->F)
BYTES(ffn_3, 3 * 2 * s->N * s->F)
BYTES(ffn_5, 5 * 2 * s->N * s->F)
BYTES(qkv_2, 2 * 2 * s->N * (s->H + 2 * s->KV) * s->D)
BYTES(logits_1, 2 * head_rows(s) * s->V)
BYTES(logits_2, 2 * 2 * head_rows(s) * s->V)
BYTES(adamw_bytes, 30 * n_params(s))

/* A linear of k channels to n, its input gradient, its weight gradient. */
#define LINEAR(name, n_, k_)                                                                       \
    static dh_gemm_desc name(const sizes *s)                                                       \
    {                                                                                              \
        return (dh_gemm_desc){                                                                     \
            .m = s->N, .n = (n_), .k = (k_), .trans_b = true, .in = DH_BF16, .out = DH_BF16};      \
    }                                                                                              \
    static dh_gemm_desc name##_dgrad(const sizes *s)                                               \
    {                                                                                              \
        return (dh_gemm_desc){.m = s->N, .n = (k_), .k = (n_), .in = DH_BF16, .out = DH_BF16};     \
    }                                                                                              \
    static dh_gemm_desc name##_wgrad(const sizes *s)                                               \
    {                                                                                              \
        return (dh_gemm_desc){.m = (n_),                                                           \
                              .n = (k_),                                                           \
                              .k = s->N,                                                           \
                              .trans_a = true,                                                     \
                              .in = DH_BF16,                                                       \
                              .out = DH_F32,                                                       \
                              .accumulate = true};                                                 \
    }
LINEAR(qkv, (s->H + 2 * s->KV) * s->D, s->C)
LINEAR(fc, s->F, s->C)
LINEAR(fc2, s->C, s->F)

#define GEMMS(name)                                                                                \
    {"gemm " #name, NULL, NULL, run_gemm, name},                                                   \
        {"gemm " #name " dgrad", NULL, NULL, run_gemm, name##_dgrad},                              \
    {                                                                                              \
        "gemm " #name " wgrad", NULL, NULL, run_gemm, name##_wgrad                                 \
    }

static const bench_case cases[] = {
    GEMMS(qkv),
    GEMMS(fc),
    GEMMS(fc2),
    {"attention", attn_flops, NULL, run_attn, NULL},
    {"attention bwd", attn_bwd_flops, NULL, run_attn_bwd, NULL},
    {"attention wgmma", attn_flops, NULL, run_attn_wgmma, NULL},
    {"attention wgmma bwd", attn_bwd_flops, NULL, run_attn_wgmma_bwd, NULL},
    {"layer norm", NULL, rows_2, run_layer_norm, NULL},
    {"rms norm", NULL, rows_2, run_rms_norm, NULL},
    {"norm dgrad", NULL, rows_4, run_norm_dgrad, NULL},
    {"norm wgrad", NULL, rows_2, run_norm_wgrad, NULL},
    {"gelu", NULL, ffn_2, run_gelu, NULL},
    {"gelu bwd", NULL, ffn_3, run_gelu_bwd, NULL},
    {"swiglu", NULL, ffn_3, run_swiglu, NULL},
    {"swiglu bwd", NULL, ffn_5, run_swiglu_bwd, NULL},
    {"rope", NULL, qkv_2, run_rope, NULL},
    {"residual", NULL, rows_3, run_residual, NULL},
    {"ce stats", NULL, logits_1, run_ce_stats, NULL},
    {"ce grad", NULL, logits_2, run_ce_grad, NULL},
    {"adamw", NULL, adamw_bytes, run_adamw, NULL},
};

/* ---- timing -----------------------------------------------------------------------------------
 */

enum { MOST_SAMPLES = 25, MOST_CALLS = 1 << 12 };

static float time_calls(bench *b, void (*run)(bench *b), int n)
{
    float ms = 0;
    must(cudaEventRecord(b->from, b->stream), "an event");
    for (int i = 0; i < n; i++) run(b);
    must(cudaGetLastError(), "a launch");
    must(cudaEventRecord(b->to, b->stream), "an event");
    must(cudaEventSynchronize(b->to), "a kernel");
    must(cudaEventElapsedTime(&ms, b->from, b->to), "a time");
    return ms / (float)n;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* ms [2] = least, middle. */
static void time_case(bench *b, void (*run)(bench *b), double ms[2])
{
    float samples[MOST_SAMPLES];
    int n = 0, calls = 1;
    const int64_t end = dh_now_ns() + b->ns;
    time_calls(b, run, 1);
    while (!b->is_small && calls < MOST_CALLS && time_calls(b, run, calls) * (float)calls < 2)
        calls *= 2;
    do samples[n++] = time_calls(b, run, calls);
    while (n < MOST_SAMPLES && dh_now_ns() < end);
    qsort(samples, (size_t)n, sizeof *samples, by_value);
    ms[0] = (double)samples[0];
    ms[1] = (double)samples[n / 2];
}

/* GB/s or TFLOP/s; peak 0: unknown. */
static void print(const char *model, const char *name, const char *unit, double amount,
                  const double ms[2], double peak)
{
    const double scale = strcmp(unit, "GB/s") == 0 ? 1e-9 : 1e-12;
    const double rate = amount * scale / (ms[0] * 1e-3);
    printf("{\"model\": \"%s\", \"case\": \"%s\", \"unit\": \"%s\", \"rate\": %.4g, \"ms\": %.4g, "
           "\"middle_ms\": %.4g",
           model, name, unit, rate, ms[0], ms[1]);
    if (peak > 0) printf(", \"of_peak\": %.4g", rate / (peak * scale));
    printf("}\n");
    fflush(stdout);
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* False: cuBLASLt has none, which is said. */
static bool plan(bench *b, const char *name, const dh_gemm_desc *desc)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (dh_cuda_gemm_create(&ctx, desc, &b->gemm) == DH_OK) return true;
    fprintf(stderr, "bench_gpu: %s: %s\n", name, ctx.message);
    return false;
}

static bool is_by_wgmma(const bench_case *c)
{
    return c->run == run_attn_wgmma || c->run == run_attn_wgmma_bwd;
}

static void measure(bench *b, const bench_case *c)
{
    double ms[2];
    if (is_by_wgmma(c) && !b->has_wgmma) return;
    if (c->gemm) {
        const dh_gemm_desc desc = c->gemm(b->s);
        if (!plan(b, c->name, &desc)) return;
        time_case(b, c->run, ms);
        dh_cuda_gemm_destroy(b->gemm);
        print(b->s->name, c->name, "TFLOP/s",
              2.0 * (double)desc.m * (double)desc.n * (double)desc.k, ms, b->gemm_peak);
        return;
    }
    time_case(b, c->run, ms);
    if (c->flops)
        print(b->s->name, c->name, "TFLOP/s", c->flops(b->s), ms, b->gemm_peak);
    else
        print(b->s->name, c->name, "GB/s", c->bytes(b->s), ms, b->copy_peak);
}

static void measure_peaks(bench *b)
{
    const int64_t n = b->is_small ? 32 : 8192;
    double ms[2];
    const dh_gemm_desc desc = {.m = n, .n = n, .k = n, .in = DH_BF16, .out = DH_BF16};
    if (!plan(b, "peak", &desc)) stop("the largest product", "cuBLASLt has none");
    time_case(b, run_gemm, ms);
    dh_cuda_gemm_destroy(b->gemm);
    b->gemm_peak = 2.0 * (double)n * (double)n * (double)n / (ms[0] * 1e-3);
    print("machine", "gemm peak", "TFLOP/s", 2.0 * (double)n * (double)n * (double)n, ms, 0);
    time_case(b, run_copy, ms);
    b->copy_peak = (double)b->room / (ms[0] * 1e-3);
    print("machine", "copy peak", "GB/s", (double)b->room, ms, 0);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static void *device_array(size_t n_bytes)
{
    void *at = NULL;
    must(cudaMalloc(&at, n_bytes), "memory");
    return at;
}

static void upload(const bench *b, void *to, const void *from, size_t n_bytes)
{
    must(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, b->stream), "a copy");
    must(cudaStreamSynchronize(b->stream), "a copy");
}

/* Random numbers between -1 and 1: products of zeros are faster than any others. */
static void *random_array(const bench *b)
{
    const size_t piece = DH_MIN(b->room, (size_t)1 << 24);
    unsigned char *at = device_array(b->room);
    dh_bf16 *some;
    must(cudaHostAlloc((void **)&some, piece, cudaHostAllocDefault), "pinned memory");
    for (size_t i = 0; i < piece / 2; i++)
        some[i] = dh_f32_to_bf16(2 * dh_u32_to_unit((uint32_t)dh_mix64((uint64_t)i)) - 1);
    for (size_t done = 0; done < b->room; done += piece)
        upload(b, at + done, some, DH_MIN(piece, b->room - done));
    cudaFreeHost(some);
    return at;
}

static void make_tables(bench *b, int64_t n_tokens)
{
    const size_t n_bytes = (size_t)n_tokens * sizeof(int32_t);
    const dh_scalars step = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const double norm[2] = {1, 1};
    unsigned char *host;
    b->ids = device_array(n_bytes);
    b->pos = device_array(n_bytes);
    b->scalars = device_array(sizeof step);
    b->norm = device_array(sizeof norm);
    must(cudaHostAlloc((void **)&host, DH_MAX(n_bytes, sizeof step), cudaHostAllocDefault),
         "pinned memory");
    for (int64_t i = 0; i < n_tokens; i++) ((int32_t *)(void *)host)[i] = (int32_t)(i % 16);
    upload(b, b->ids, host, n_bytes);
    upload(b, b->pos, host, n_bytes);
    memcpy(host, &step, sizeof step);
    upload(b, b->scalars, host, sizeof step);
    memcpy(host, norm, sizeof norm);
    upload(b, b->norm, host, sizeof norm);
    cudaFreeHost(host);
}

static size_t most_scratch(bench *b, const sizes *all, size_t n)
{
    const dh_gemm_desc largest = {.m = 8192, .n = 8192, .k = 8192, .in = DH_BF16, .out = DH_BF16};
    size_t most = dh_cuda_gemm_workspace(&largest);
    for (size_t i = 0; i < n; i++) {
        b->s = &all[i];
        for (size_t k = 0; k < DH_COUNTOF(cases); k++) {
            if (!cases[k].gemm) continue;
            const dh_gemm_desc desc = cases[k].gemm(b->s);
            most = DH_MAX(most, dh_cuda_gemm_workspace(&desc));
        }
        const dh_attn_shape s = attn_of(b);
        most = DH_MAX(most, dh_cuda_attn_bwd_workspace(&s));
        most = DH_MAX(most, dh_cuda_columns_workspace(all[i].N, all[i].C));
    }
    return most;
}

static void make(bench *b, const sizes *all, size_t n)
{
    int64_t n_tokens = 0, most = b->is_small ? 4096 : (int64_t)8192 * 8192;
    for (size_t i = 0; i < n; i++) {
        const sizes *s = &all[i];
        n_tokens = DH_MAX(n_tokens, s->N);
        most = DH_MAX(most, DH_MAX(2 * s->N * s->F, s->N * (s->H + 2 * s->KV) * s->D));
        most = DH_MAX(most, DH_MAX(head_rows(s) * s->V, 2 * n_params(s)));
        most = DH_MAX(most, 2 * s->C * DH_MAX(s->F, (s->H + 2 * s->KV) * s->D)); /* float32 */
    }
    b->room = (size_t)most * 2;
    must(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreateWithFlags(&b->from, cudaEventDefault), "an event");
    must(cudaEventCreateWithFlags(&b->to, cudaEventDefault), "an event");
    b->x = random_array(b);
    b->y = random_array(b);
    b->z = random_array(b);
    b->f1 = random_array(b);
    b->f2 = random_array(b);
    b->f3 = random_array(b);
    b->f4 = random_array(b);
    b->ws = device_array(most_scratch(b, all, n));
    make_tables(b, n_tokens);
}

/* A rehearsal's heads are none that it takes. */
static void choose_attention(bench *b)
{
    dh_ctx ctx = DH_CTX_INIT;
    must(cudaGetDevice(&b->device), "a device");
    if (b->is_small) return;
    if (dh_cuda_choose_attention(&ctx) != DH_OK) stop("attention by wgmma", ctx.message);
    b->has_wgmma = dh_cuda_allows_wgmma(b->device);
    dh_cuda_allow_wgmma(b->device, false);
}

static void end(bench *b)
{
    void *all[] = {b->x,  b->y,  b->z,   b->ws,  b->f1,      b->f2,
                   b->f3, b->f4, b->ids, b->pos, b->scalars, b->norm};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) cudaFree(all[i]);
    cudaEventDestroy(b->from);
    cudaEventDestroy(b->to);
    cudaStreamDestroy(b->stream);
}

int main(int argc, char **argv)
{
    bench b = {.ns = 300 * 1000 * 1000};
    const char *only = "";
    double seconds;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            b.is_small = true;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc &&
                 dh_parse_f64(argv[i + 1], &seconds) && ++i)
            b.ns = (int64_t)(seconds * 1e9);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else
            stop(argv[i], "bench_gpu [--small] [--seconds S] [--only TEXT]");
    }
    const sizes *all = b.is_small ? small : real;
    const size_t n = b.is_small ? DH_COUNTOF(small) : DH_COUNTOF(real);
    make(&b, all, n);
    choose_attention(&b);
    measure_peaks(&b);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < DH_COUNTOF(cases); k++) {
            b.s = &all[i];
            if (strstr(cases[k].name, only)) measure(&b, &cases[k]);
        }
    end(&b);
    return 0;
}
