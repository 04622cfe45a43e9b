/* Rates of the CPU kernels at GPT-2 124M shapes. One row of `cases` a kernel: how
 * many floating-point operations and bytes it stands for, and one call of it. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "run/cpu/kernels.h"
#include "run/cpu/simd.h"

enum { B = 4, T = 256, N = B * T, C = 768, H = 12, D = 64, F = 4 * C, V = 50257, CHUNK = 128 };
enum { N_PARAMS = 8 * 1000 * 1000 };

/* Arrays shared by all cases, each large enough for any of them. */
typedef struct arena {
    dh_dtype dtype;
    void *x, *y, *z, *w;       /* activations, or weights [V,C] in w */
    float *f1, *f2, *f3, *f4;  /* float32 arrays of V*C or N_PARAMS */
    float *stats, *lse, *rope; /* [N,3], [B,H,T], [T,D] */
    int32_t tokens[N], pos[N];
    int64_t sample[N];
    void *ws;
    size_t ws_bytes;
    dh_gemm *gemm;
} arena;

typedef struct bench_case {
    const char *name;
    double flops, bytes_per_element; /* of one call; bytes = elements * size of dtype */
    double elements, f32_bytes;      /* float32 arrays' share is counted in bytes */
    void (*run)(arena *a);
    dh_gemm_desc gemm; /* m > 0: a GEMM, run by run_gemm */
} bench_case;

static dh_dropout dropout_of(const arena *a)
{
    return (dh_dropout){
        .prob = 0.1f, .seed = 1, .site = 2, .row_sample = a->sample, .row_pos = a->pos};
}

/* ---- cases ----------------------------------------------------------------------------- */

static void run_gemm(arena *a)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (dh_gemm_run(&ctx, a->gemm, a->x, a->w, a->f1, a->y, a->ws) != DH_OK)
        fprintf(stderr, "%s\n", ctx.message);
}

static void run_norm(arena *a)
{
    dh_k_norm_fwd(DH_NORM_LAYER, a->dtype, N, C, a->x, a->f1, a->f2, 1e-5f, a->y, a->stats);
}

static void run_norm_dgrad(arena *a)
{
    dh_k_norm_dgrad(DH_NORM_LAYER, a->dtype, N, C, a->x, a->y, a->f1, a->stats, a->z, a->z);
}

static void run_norm_wgrad(arena *a)
{
    dh_k_norm_wgrad(DH_NORM_LAYER, a->dtype, N, C, a->x, a->y, a->stats, a->f1, a->f2, true);
}

static void run_bias_grad(arena *a)
{
    dh_k_bias_grad(a->dtype, N, F, a->x, a->f1, true);
}

static void run_residual(arena *a)
{
    dh_k_residual(a->dtype, N, C, a->x, a->y, a->f1, NULL, a->z);
}

static void run_residual_dropout(arena *a)
{
    const dh_dropout drop = dropout_of(a);
    dh_k_residual(a->dtype, N, C, a->x, a->y, a->f1, &drop, a->z);
}

static void run_gelu(arena *a)
{
    dh_k_gelu_fwd(a->dtype, N * F, a->x, a->y);
}

static void run_gelu_bwd(arena *a)
{
    dh_k_gelu_bwd(a->dtype, N * F, a->z, a->x, a->y);
}

static void run_swiglu(arena *a)
{
    dh_k_swiglu_fwd(a->dtype, N, F / 2, a->x, a->y);
}

static void run_swiglu_bwd(arena *a)
{
    dh_k_swiglu_bwd(a->dtype, N, F / 2, a->z, a->x, a->y);
}

static void run_rope(arena *a)
{
    dh_k_rope(a->dtype, N, T, H, H, D, a->x, a->rope, a->pos, false, a->y);
}

static void run_attn(arena *a, int64_t batch, int64_t seq)
{
    const dh_attn_shape s = dh_attn_packed(a->dtype, batch, seq, H, H, D);
    const char *x = a->x;
    const size_t part = C * dh_dtype_bytes(a->dtype);
    dh_k_attn_fwd(&s, x, x + part, x + 2 * part, a->y, a->lse, a->ws);
}

static void run_attn_bwd(arena *a, int64_t batch, int64_t seq)
{
    dh_attn_shape s = dh_attn_packed(a->dtype, batch, seq, H, H, D);
    char *x = a->x, *dx = a->w;
    const size_t part = C * dh_dtype_bytes(a->dtype);
    dh_k_attn_bwd(&s, a->z, a->y, a->lse, x, x + part, x + 2 * part, dx, dx + part, dx + 2 * part,
                  false, a->ws);
}

static void run_attn_short(arena *a)
{
    run_attn(a, B, T);
}

static void run_attn_bwd_short(arena *a)
{
    run_attn_bwd(a, B, T);
}

static void run_attn_long(arena *a)
{
    run_attn(a, 1, N);
}

static void run_attn_bwd_long(arena *a)
{
    run_attn_bwd(a, 1, N);
}

static void run_attn_decode(arena *a)
{
    static const int32_t last = N - 1;
    dh_attn_shape s = dh_attn_packed(a->dtype, 1, N, H, H, D);
    s.Tq = 1;
    s.q_pos = &last;
    const char *x = a->x;
    const size_t part = C * dh_dtype_bytes(a->dtype);
    dh_k_attn_fwd(&s, x, x + part, x + 2 * part, a->y, a->lse, NULL);
}

static void run_embed(arena *a)
{
    dh_k_embed_fwd(a->dtype, N, C, a->tokens, a->pos, a->w, 0, V, a->w, NULL, a->y);
}

static void run_embed_bwd(arena *a)
{
    dh_k_embed_bwd(a->dtype, N, C, a->x, a->tokens, a->pos, NULL, 0, V, T, a->f1, a->f2, true);
}

static void run_ce_stats(arena *a)
{
    dh_k_ce_stats(a->dtype, CHUNK, 0, V, a->x, a->tokens, a->stats);
}

static void run_ce_grad(arena *a)
{
    dh_k_ce_grad(a->dtype, CHUNK, 0, V, a->x, a->tokens, a->stats, 1e-3f, a->y);
}

static void run_adamw(arena *a)
{
    const dh_adamw opt = {3e-4, 0.9, 0.95, 1e-8, 0.1, 10, 1.0};
    dh_k_adamw(&opt, N_PARAMS, a->f1, a->f2, a->f3, a->f4, a->dtype == DH_BF16 ? a->w : NULL);
}

static void run_sqsum(arena *a)
{
    double digits[DH_SQSUM_DIGITS];
    dh_k_sqsum(N_PARAMS, a->f1, digits);
    volatile double keep = digits[0];
    (void)keep;
}

static void run_cast(arena *a)
{
    dh_k_cast(N_PARAMS, DH_F32, a->f1, DH_BF16, a->w);
}

static void run_add(arena *a)
{
    dh_k_add(a->dtype, (int64_t)N * F, a->x, a->y, a->z);
}

static void run_finite(arena *a)
{
    if (dh_k_first_nonfinite(a->dtype, (int64_t)N * F, a->x) >= 0) fprintf(stderr, "non-finite\n");
}

#define GEMM(name, M, N_, K, ...)                                                                  \
    {                                                                                              \
        name, 2.0 * (M) * (N_) * (K), 0, 0, 0, run_gemm,                                           \
        {                                                                                          \
            .m = (M), .n = (N_), .k = (K), __VA_ARGS__                                             \
        }                                                                                          \
    }
#define STREAM(name, per_element, elements, f32_bytes, run)                                        \
    {                                                                                              \
        name, 0, per_element, elements, f32_bytes, run,                                            \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define COMPUTE(name, flops, run)                                                                  \
    {                                                                                              \
        name, flops, 0, 0, 0, run,                                                                 \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
/* Causal halves; backward does five products where forward does two. */
#define ATTN_FLOPS(batch, seq) (2.0 * (batch) * (seq) * (double)(seq)*C)

static const bench_case cases[] = {
    GEMM("gemm qkv", N, 3 * C, C, .trans_b = true, .bias = true),
    GEMM("gemm proj", N, C, C, .trans_b = true),
    GEMM("gemm fc1", N, F, C, .trans_b = true, .bias = true),
    GEMM("gemm fc2", N, C, F, .trans_b = true),
    GEMM("gemm head", CHUNK, V, C, .trans_b = true),
    GEMM("gemm qkv 512 rows", 512, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv 256 rows", 256, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv 128 rows", 128, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv 64 rows", 64, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv 32 rows", 32, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv 16 rows", 16, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv 8 rows", 8, 3 * C, C, .trans_b = true),
    GEMM("gemm qkv dgrad", N, C, 3 * C, .trans_b = false),
    GEMM("gemm proj dgrad", N, C, C, .trans_b = false),
    GEMM("gemm fc1 dgrad", N, C, F, .trans_b = false),
    GEMM("gemm fc2 dgrad", N, F, C, .trans_b = false),
    GEMM("gemm head dgrad", CHUNK, C, V, .trans_b = false),
    GEMM("gemm qkv wgrad", 3 * C, C, N, .trans_a = true, .accumulate = true),
    GEMM("gemm proj wgrad", C, C, N, .trans_a = true, .accumulate = true),
    GEMM("gemm fc1 wgrad", F, C, N, .trans_a = true, .accumulate = true),
    GEMM("gemm fc2 wgrad", C, F, N, .trans_a = true, .accumulate = true),
    GEMM("gemm head wgrad", V, C, CHUNK, .trans_a = true, .accumulate = true),
    COMPUTE("attn 4x256", ATTN_FLOPS(B, T), run_attn_short),
    COMPUTE("attn 4x256 bwd", 2.5 * ATTN_FLOPS(B, T), run_attn_bwd_short),
    COMPUTE("attn 1x1024", ATTN_FLOPS(1, N), run_attn_long),
    COMPUTE("attn 1x1024 bwd", 2.5 * ATTN_FLOPS(1, N), run_attn_bwd_long),
    STREAM("attn decode 1024", 2, N *(double)C, 0, run_attn_decode),
    STREAM("layernorm", 2, N *(double)C, 0, run_norm),
    STREAM("layernorm dgrad", 4, N *(double)C, 0, run_norm_dgrad),
    STREAM("layernorm wgrad", 2, N *(double)C, 0, run_norm_wgrad),
    STREAM("bias grad", 1, N *(double)F, 0, run_bias_grad),
    STREAM("residual", 3, N *(double)C, 0, run_residual),
    STREAM("residual dropout", 3, N *(double)C, 0, run_residual_dropout),
    STREAM("gelu", 2, N *(double)F, 0, run_gelu),
    STREAM("gelu bwd", 3, N *(double)F, 0, run_gelu_bwd),
    STREAM("swiglu", 1.5, N *(double)F, 0, run_swiglu),
    STREAM("swiglu bwd", 2.5, N *(double)F, 0, run_swiglu_bwd),
    STREAM("rope", 2, 3.0 * N * C, 0, run_rope),
    STREAM("embed", 3, N *(double)C, 0, run_embed),
    STREAM("embed bwd", 1, N *(double)C, 16.0 * N * C, run_embed_bwd),
    STREAM("ce stats", 1, CHUNK *(double)V, 0, run_ce_stats),
    STREAM("ce grad", 2, CHUNK *(double)V, 0, run_ce_grad),
    STREAM("adamw", 0, 0, 28.0 * N_PARAMS, run_adamw),
    STREAM("sqsum", 0, 0, 4.0 * N_PARAMS, run_sqsum),
    STREAM("cast f32 bf16", 0, 0, 6.0 * N_PARAMS, run_cast),
    STREAM("add", 3, N *(double)F, 0, run_add),
    STREAM("first non-finite", 1, N *(double)F, 0, run_finite),
};

/* ---- memory ---------------------------------------------------------------------------- */

static void *pages(size_t n_bytes)
{
    void *p = aligned_alloc(2 << 20, (n_bytes + (2 << 20)) / (2 << 20) * (2 << 20));
    if (!p) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    return p;
}

static void *random_array(dh_dtype dtype, int64_t n, float amplitude)
{
    void *x = pages((size_t)n * dh_dtype_bytes(dtype));
    for (int64_t i = 0; i < n; i++) {
        const float f = amplitude * (2 * dh_u32_to_unit((uint32_t)dh_mix64((uint64_t)i)) - 1);
        if (dtype == DH_BF16)
            ((dh_bf16 *)x)[i] = dh_f32_to_bf16(f);
        else
            ((float *)x)[i] = f;
    }
    return x;
}

static arena *make_arena(dh_dtype dtype)
{
    const int64_t act = (int64_t)CHUNK * V, table = (int64_t)V * C;
    arena *a = calloc(1, sizeof *a);
    if (!a) exit(1);
    a->dtype = dtype;
    a->x = random_array(dtype, act, 1);
    a->y = random_array(DH_F32, table, 1);
    a->z = random_array(dtype, act, 1);
    a->w = random_array(dtype, table, 1);
    a->f1 = random_array(DH_F32, table, 1);
    a->f2 = random_array(DH_F32, N_PARAMS, 1);
    a->f3 = random_array(DH_F32, N_PARAMS, 1);
    a->f4 = random_array(DH_F32, N_PARAMS, 1);
    for (int64_t i = 0; i < N_PARAMS; i++) a->f4[i] *= a->f4[i];
    a->stats = random_array(DH_F32, 3 * N, 1);
    a->lse = random_array(DH_F32, B * H * N, 1);
    a->rope = random_array(DH_F32, T * D, 1);
    for (int n = 0; n < N; n++) {
        a->tokens[n] = (int32_t)(dh_mix64((uint64_t)n) % V);
        a->pos[n] = n % T;
        a->sample[n] = n / T;
    }
    const dh_attn_shape s = dh_attn_packed(dtype, 1, N, H, H, D);
    a->ws_bytes = DH_MAX(dh_k_attn_bwd_workspace(&s), (size_t)512 << 20);
    a->ws = pages(a->ws_bytes);
    return a;
}

static void free_arena(arena *a)
{
    void *arrays[] = {a->x,  a->y,  a->z,     a->w,   a->f1,   a->f2,
                      a->f3, a->f4, a->stats, a->lse, a->rope, a->ws};
    for (size_t i = 0; i < DH_COUNTOF(arrays); i++) free(arrays[i]);
    free(a);
}

/* ---- timing ---------------------------------------------------------------------------- */

typedef struct timing {
    double min_ns, median_ns;
} timing;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing measure(const bench_case *c, arena *a, double seconds)
{
    enum { MAX_RUNS = 2000, MIN_RUNS = 3 };
    static double ns[MAX_RUNS];
    c->run(a);
    int n = 0;
    for (double total = 0; n < MAX_RUNS && (n < MIN_RUNS || total < seconds * 1e9); n++) {
        const int64_t start = dh_now_ns();
        c->run(a);
        ns[n] = (double)(dh_now_ns() - start);
        total += ns[n];
    }
    qsort(ns, (size_t)n, sizeof *ns, compare);
    return (timing){ns[0], ns[n / 2]};
}

/* float32: C (+)= in float32; bf16: forward and input gradients stay bf16, weight
 * gradients are float32. */
static bool plan_gemm(const bench_case *c, arena *a)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_gemm_desc desc = c->gemm;
    desc.in = a->dtype;
    desc.out = desc.trans_a ? DH_F32 : a->dtype;
    if (dh_gemm_create(&ctx, &desc, &a->gemm) != DH_OK) {
        fprintf(stderr, "%s: %s\n", c->name, ctx.message);
        return false;
    }
    if (dh_gemm_workspace(a->gemm) <= a->ws_bytes) return true;
    fprintf(stderr, "%s: needs %zu bytes of scratch\n", c->name, dh_gemm_workspace(a->gemm));
    dh_gemm_destroy(a->gemm);
    return false;
}

typedef struct peaks {
    double flops, bytes; /* per second */
} peaks;

static void print_case(const bench_case *c, arena *a, double seconds, peaks peak)
{
    const bool is_gemm = c->gemm.m > 0;
    if (is_gemm && !plan_gemm(c, a)) return;
    const timing t = measure(c, a, seconds);
    const double bytes =
        c->elements * c->bytes_per_element * (double)dh_dtype_bytes(a->dtype) + c->f32_bytes;
    const double work = c->flops > 0 ? c->flops : bytes;
    const double top = c->flops > 0 ? peak.flops : peak.bytes;
    printf("%-18s %-5s %2d %10.1f %10.1f %9.1f %s %5.0f%%  %s\n", c->name, dh_dtype_name(a->dtype),
           omp_get_max_threads(), t.min_ns / 1e3, t.median_ns / 1e3, work / t.median_ns,
           c->flops > 0 ? "GFLOP/s" : "GB/s   ", 100 * work / t.median_ns * 1e9 / top,
           is_gemm ? dh_gemm_method(a->gemm) : "");
    fflush(stdout);
    if (is_gemm) dh_gemm_destroy(a->gemm);
    a->gemm = NULL;
}

/* Bytes read and written by a copy much larger than the caches. */
static double copy_peak(arena *a)
{
    const size_t n = (size_t)V * C * sizeof(float);
    double best = 0;
    for (int i = 0; i < 4; i++) {
        const int64_t start = dh_now_ns();
        dh_k_copy(n, a->f1, a->y);
        const double rate = 2 * (double)n / (double)(dh_now_ns() - start) * 1e9;
        best = DH_MAX(best, rate);
    }
    return best;
}

static void run_all(dh_dtype dtype, int threads, const char *only, double seconds)
{
    omp_set_num_threads(threads);
    arena *a = make_arena(dtype);
    const peaks peak = {dh_k_gemm_peak(dtype, threads), copy_peak(a)};
    printf("peak %s, %d threads: GEMM %.0f GFLOP/s, copy %.1f GB/s (inner loops: %s)\n",
           dh_dtype_name(dtype), threads, peak.flops / 1e9, peak.bytes / 1e9, dh_simd_get()->name);
    printf("%-18s %-5s %2s %10s %10s %9s\n", "kernel", "dtype", "th", "min us", "median us",
           "rate");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        if (!only || strstr(cases[i].name, only)) print_case(&cases[i], a, seconds, peak);
    free_arena(a);
}

/* ---- command line ---------------------------------------------------------------------- */

typedef struct options {
    const char *threads, *only;
    dh_dtype dtype; /* DH_N_DTYPE: both */
    double seconds;
} options;

static bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--threads") == 0)
            o->threads = value;
        else if (strcmp(argv[i], "--only") == 0)
            o->only = value;
        else if (strcmp(argv[i], "--dtype") == 0)
            o->dtype = dh_dtype_parse(value);
        else if (strcmp(argv[i], "--seconds") == 0)
            o->seconds = strtod(value, NULL);
        else
            return false;
    }
    return argc % 2 == 1;
}

int main(int argc, char **argv)
{
    options o = {"1,2", NULL, DH_N_DTYPE, 0.2};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_kernels [--threads 1,2] [--dtype f32|bf16] [--only TEXT] "
                        "[--seconds S]\n");
        return 2;
    }
    for (const char *at = o.threads; *at;) {
        char *end;
        const int threads = (int)strtol(at, &end, 10);
        if (end == at || threads < 1) {
            fprintf(stderr, "bench_kernels: --threads takes numbers above 0, got \"%s\"\n", at);
            return 2;
        }
        for (dh_dtype dtype = DH_F32; dtype <= DH_BF16; dtype = (dh_dtype)(dtype + 1))
            if (o.dtype == DH_N_DTYPE || o.dtype == dtype)
                run_all(dtype, threads, o.only, o.seconds);
        at = *end == ',' ? end + 1 : end;
    }
    return 0;
}
