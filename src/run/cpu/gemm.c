/* GEMM through oneDNN, planned once per shape.
 *
 * Three methods. choose_method() looks only at the shape and the machine. So the same job takes the
 * same method, and gives the same bits, every time:
 *   sgemm    dnnl_sgemm, for float32: the fastest for large shapes.
 *   matmul   The matmul primitive (brgemm, AMX where there is one), for all of bf16. For float32
 *            with a fused bias, or when rows must not depend on m.
 *   convert  Operands of bf16 are widened into scratch for a float32 method. For CPUs without bf16
 *            instructions, where the primitive falls back to a reference loop.
 *
 * GFLOP/s on one core of Zen 5 (layers of GPT-2-124M, 1024 rows): sgemm 248-257, float32 matmul
 * 214-255. For bf16 matmul 426-528 (weight gradients at the low end). */
#include "base/base.h"
#include "run/cpu/split.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef enum method { METHOD_SGEMM, METHOD_MATMUL, METHOD_CONVERT } method;

static const char *const method_names[] = {"sgemm", "matmul", "convert"};

struct dh_gemm {
    dh_gemm_desc d; /* leading dimensions filled in */
    method method;
    int threads; /* team size of every run */
    char text[96];
    /* matmul only */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, bias, scratchpad;
    /* convert only: the float32 product of the widened operands, owned */
    dh_gemm *wide;
};

/* ---- operands -------------------------------------------------------------------------- */

static int64_t a_rows(const dh_gemm_desc *d)
{
    return d->trans_a ? d->k : d->m;
}

static int64_t a_cols(const dh_gemm_desc *d)
{
    return d->trans_a ? d->m : d->k;
}

static int64_t b_rows(const dh_gemm_desc *d)
{
    return d->trans_b ? d->n : d->k;
}

static int64_t b_cols(const dh_gemm_desc *d)
{
    return d->trans_b ? d->k : d->n;
}

static dh_status check(dh_ctx *ctx, dh_gemm_desc *d)
{
    if (d->m < 1 || d->n < 1 || d->k < 1)
        return dh_fail(ctx, DH_EINVAL, "GEMM of %lld x %lld x %lld: sizes must be positive",
                       (long long)d->m, (long long)d->n, (long long)d->k);
    if ((d->in != DH_F32 && d->in != DH_BF16) || (d->out != DH_F32 && d->out != DH_BF16) ||
        (d->in == DH_F32 && d->out == DH_BF16))
        return dh_fail(ctx, DH_EINVAL, "GEMM cannot take %s to %s: bf16 or f32 in, f32 or in's out",
                       dh_dtype_name(d->in), dh_dtype_name(d->out));
    if (d->bias && d->accumulate)
        return dh_fail(ctx, DH_EINVAL, "GEMM with a bias cannot accumulate");
    if (!d->lda) d->lda = a_cols(d);
    if (!d->ldb) d->ldb = b_cols(d);
    if (!d->ldc) d->ldc = d->n;
    if (d->lda < a_cols(d) || d->ldb < b_cols(d) || d->ldc < d->n)
        return dh_fail(ctx, DH_EINVAL, "GEMM strides %lld, %lld, %lld are below the row lengths",
                       (long long)d->lda, (long long)d->ldb, (long long)d->ldc);
    return DH_OK;
}

static bool cpu_has(dnnl_cpu_isa_t isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

static method choose_method(const dh_gemm_desc *d)
{
    if (d->in == DH_BF16)
        return cpu_has(dnnl_cpu_isa_avx512_core_bf16) ? METHOD_MATMUL : METHOD_CONVERT;
    /* Without AVX-512 the primitive is slow, and sgemm's rows keep their bits anyway, except in
     * thin slices. */
    if (!cpu_has(dnnl_cpu_isa_avx512_core)) return METHOD_SGEMM;
    return d->bias || d->row_invariant ? METHOD_MATMUL : METHOD_SGEMM;
}

/* ---- matmul primitive ------------------------------------------------------------------ */

static dh_status dnnl_check(dh_ctx *ctx, dnnl_status_t status, const char *call)
{
    if (status == dnnl_success) return DH_OK;
    return dh_fail(ctx, status == dnnl_out_of_memory ? DH_ENOMEM : DH_EINTERNAL,
                   "oneDNN: %s: status %d", call, (int)status);
}

#define DNNL_TRY(call) DH_TRY(dnnl_check(ctx, (call), #call))

static dnnl_data_type_t dnnl_type(dh_dtype dtype)
{
    return dtype == DH_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* rows x cols as op() sees it; `transposed` when memory holds cols x rows. */
static dh_status describe(dh_ctx *ctx, dnnl_memory_desc_t *md, dh_dtype dtype, int64_t rows,
                          int64_t cols, int64_t ld, bool transposed)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    DNNL_TRY(dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_type(dtype), strides));
    return DH_OK;
}

static dh_status make_attr(dh_ctx *ctx, bool accumulate, dnnl_primitive_attr_t attr)
{
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (!accumulate) return DH_OK;
    dnnl_post_ops_t post_ops;
    DNNL_TRY(dnnl_post_ops_create(&post_ops));
    dnnl_status_t status = dnnl_post_ops_append_sum(post_ops, 1.0f);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, post_ops);
    dnnl_post_ops_destroy(post_ops);
    return dnnl_check(ctx, status, "sum post-op");
}

static dh_status make_primitive(dh_ctx *ctx, dh_gemm *g, const_dnnl_primitive_desc_t pd)
{
    const char *implementation = "";
    DNNL_TRY(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&implementation));
    snprintf(g->text, sizeof g->text, "%s %s", method_names[g->method], implementation);
    g->scratchpad = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    DNNL_TRY(dnnl_primitive_create(&g->primitive, pd));
    return DH_OK;
}

/* oneDNN writes into the memory for a kernel's code without asking whether it was given any. This
 * is called for every operator of a program, so it reads no files. */
static dh_status check_memory(dh_ctx *ctx)
{
    enum { MOST_BYTES = 16 << 20 };
    void *at = mmap(NULL, MOST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return dh_no_memory(ctx);
    munmap(at, MOST_BYTES);
    return DH_OK;
}

static dh_status plan_matmul(dh_ctx *ctx, dh_gemm *g)
{
    const dh_gemm_desc *d = &g->d;
    DH_TRY(check_memory(ctx));
    DNNL_TRY(dnnl_engine_create(&g->engine, dnnl_cpu, 0));
    DNNL_TRY(dnnl_stream_create(&g->stream, g->engine, dnnl_stream_default_flags));
    DH_TRY(describe(ctx, &g->a, d->in, d->m, d->k, d->lda, d->trans_a));
    DH_TRY(describe(ctx, &g->b, d->in, d->k, d->n, d->ldb, d->trans_b));
    DH_TRY(describe(ctx, &g->c, d->out, d->m, d->n, d->ldc, false));
    DH_TRY(describe(ctx, &g->bias, DH_F32, 1, d->n, d->n, false));

    dnnl_matmul_desc_t desc;
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &g->a, &g->b, d->bias ? &g->bias : NULL, &g->c));
    dnnl_primitive_attr_t attr;
    DNNL_TRY(dnnl_primitive_attr_create(&attr));
    dnnl_primitive_desc_t pd = NULL;
    dh_status st = make_attr(ctx, d->accumulate, attr);
    if (st == DH_OK)
        st = dnnl_check(ctx, dnnl_primitive_desc_create(&pd, &desc, attr, g->engine, NULL),
                        "matmul descriptor");
    if (st == DH_OK) st = make_primitive(ctx, g, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

/* Memory handles are made per run, so that one object serves several threads. */
enum { MAX_ARGS = 5 };

static dnnl_status_t add_arg(const dh_gemm *g, dnnl_exec_arg_t *args, int *n, int what,
                             const dnnl_memory_desc_t *md, const void *data)
{
    dnnl_memory_t memory;
    dnnl_status_t status = dnnl_memory_create(&memory, md, g->engine, (void *)(uintptr_t)data);
    if (status == dnnl_success) args[(*n)++] = (dnnl_exec_arg_t){.arg = what, .memory = memory};
    return status;
}

static dh_status run_matmul(dh_ctx *ctx, const dh_gemm *g, const void *a, const void *b,
                            const float *bias, void *c, void *ws)
{
    dnnl_exec_arg_t args[MAX_ARGS];
    int n = 0;
    dnnl_status_t status = add_arg(g, args, &n, DNNL_ARG_SRC, &g->a, a);
    if (!status) status = add_arg(g, args, &n, DNNL_ARG_WEIGHTS, &g->b, b);
    if (!status) status = add_arg(g, args, &n, DNNL_ARG_DST, &g->c, c);
    if (!status && g->d.bias) status = add_arg(g, args, &n, DNNL_ARG_BIAS, &g->bias, bias);
    if (!status && dh_gemm_workspace(g))
        status = add_arg(g, args, &n, DNNL_ARG_SCRATCHPAD, &g->scratchpad, ws);
    if (!status) status = dnnl_primitive_execute(g->primitive, g->stream, n, args);
    if (!status) status = dnnl_stream_wait(g->stream);
    for (int i = 0; i < n; i++) dnnl_memory_destroy(args[i].memory);
    return dnnl_check(ctx, status, "matmul");
}

/* ---- sgemm ----------------------------------------------------------------------------- */

enum { WARM_N = 16 };

/* The first product of a process generates the code for all of them. */
static void generate_code(void)
{
    float a[WARM_N * WARM_N] = {0}, c[WARM_N * WARM_N];
    (void)dnnl_sgemm('N', 'N', WARM_N, WARM_N, WARM_N, 1.0f, a, WARM_N, a, WARM_N, 0.0f, c, WARM_N);
}

dh_status dh_gemm_get_ready(dh_ctx *ctx)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    DH_TRY(check_memory(ctx));
    return pthread_once(&once, generate_code) == 0
               ? DH_OK
               : dh_fail(ctx, DH_EINTERNAL, "cannot generate code for matrix products");
}

static void add_bias(const dh_gemm_desc *d, const float *bias, float *c, int64_t ldc)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (d->m * d->n >= PARALLEL_MIN)
    for (int64_t i = 0; i < d->m; i++)
        simd->residual(DH_F32, 0, d->n, NULL, c + i * ldc, bias, NULL, c + i * ldc);
}

static dh_status run_sgemm(dh_ctx *ctx, const dh_gemm *g, const float *a, const float *b,
                           const float *bias, float *c)
{
    const dh_gemm_desc *d = &g->d;
    DNNL_TRY(dnnl_sgemm(d->trans_a ? 'T' : 'N', d->trans_b ? 'T' : 'N', d->m, d->n, d->k, 1.0f, a,
                        d->lda, b, d->ldb, d->accumulate ? 1.0f : 0.0f, c, d->ldc));
    if (d->bias) add_bias(d, bias, c, d->ldc);
    return DH_OK;
}

/* ---- convert --------------------------------------------------------------------------- */

/* rows x cols with stride ld of one type to stride to_ld of another. */
static void cast_rows(dh_dtype from, const void *x, int64_t ld, dh_dtype to, void *y, int64_t to_ld,
                      int64_t rows, int64_t cols)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (rows * cols >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        simd->cast(cols, from, const_at(from, x, r * ld), to, at(to, y, r * to_ld));
}

/* Scratch: A, B, C when it is bf16, then the product's own; floats, each a multiple of 16. */
typedef struct convert_layout {
    int64_t b, c, end;
} convert_layout;

static convert_layout layout_of(const dh_gemm_desc *d)
{
    convert_layout l;
    l.b = div_up(d->m * d->k, 16) * 16;
    l.c = l.b + div_up(d->k * d->n, 16) * 16;
    l.end = l.c + (d->out == DH_BF16 ? div_up(d->m * d->n, 16) * 16 : 0);
    return l;
}

static dh_status plan_convert(dh_ctx *ctx, dh_gemm *g)
{
    dh_gemm_desc d = g->d;
    d.in = d.out = DH_F32;
    /* Of slices as of the whole, as where there are instructions: other sums would round elsewhere
     * to bf16, which is far more than they differ by. */
    d.row_invariant = true;
    d.lda = d.ldb = 0; /* widened without gaps */
    if (g->d.out == DH_BF16) d.ldc = 0;
    DH_TRY(dh_gemm_create(ctx, &d, &g->wide));
    snprintf(g->text, sizeof g->text, "%s+%.80s", method_names[METHOD_CONVERT], g->wide->text);
    return DH_OK;
}

static dh_status run_convert(dh_ctx *ctx, const dh_gemm *g, const void *a, const void *b,
                             const float *bias, void *c, void *ws)
{
    const dh_gemm_desc *d = &g->d;
    const convert_layout l = layout_of(d);
    float *wide_a = ws, *wide_b = wide_a + l.b, *wide_c = wide_a + l.c, *rest = wide_a + l.end;
    cast_rows(DH_BF16, a, d->lda, DH_F32, wide_a, a_cols(d), a_rows(d), a_cols(d));
    cast_rows(DH_BF16, b, d->ldb, DH_F32, wide_b, b_cols(d), b_rows(d), b_cols(d));
    if (d->out == DH_F32) return dh_gemm_run(ctx, g->wide, wide_a, wide_b, bias, c, rest);
    if (d->accumulate) cast_rows(DH_BF16, c, d->ldc, DH_F32, wide_c, d->n, d->m, d->n);
    DH_TRY(dh_gemm_run(ctx, g->wide, wide_a, wide_b, bias, wide_c, rest));
    cast_rows(DH_F32, wide_c, d->n, DH_BF16, c, d->ldc, d->m, d->n);
    return DH_OK;
}

/* ---- object ---------------------------------------------------------------------------- */

dh_status dh_gemm_create(dh_ctx *ctx, const dh_gemm_desc *desc, dh_gemm **gemm)
{
    dh_gemm *g = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    g->d = *desc;
    dh_status st;
    DH_TRY_GOTO(check(ctx, &g->d), err_destroy);
    g->method = choose_method(&g->d);
    g->threads = dh_k_fit_team();
    snprintf(g->text, sizeof g->text, "%s", method_names[g->method]);
    if (g->method == METHOD_MATMUL) DH_TRY_GOTO(plan_matmul(ctx, g), err_destroy);
    if (g->method == METHOD_CONVERT) DH_TRY_GOTO(plan_convert(ctx, g), err_destroy);
    *gemm = g;
    return DH_OK;
err_destroy:
    dh_gemm_destroy(g);
    return st;
}

void dh_gemm_destroy(dh_gemm *gemm)
{
    if (!gemm) return;
    if (gemm->primitive) dnnl_primitive_destroy(gemm->primitive);
    if (gemm->stream) dnnl_stream_destroy(gemm->stream);
    if (gemm->engine) dnnl_engine_destroy(gemm->engine);
    dh_gemm_destroy(gemm->wide);
    free(gemm);
}

size_t dh_gemm_workspace(const dh_gemm *gemm)
{
    switch (gemm->method) {
    case METHOD_MATMUL:
        return dnnl_memory_desc_get_size(&gemm->scratchpad);
    case METHOD_CONVERT:
        return (size_t)layout_of(&gemm->d).end * sizeof(float) + dh_gemm_workspace(gemm->wide);
    case METHOD_SGEMM:
        break;
    }
    return 0;
}

const char *dh_gemm_method(const dh_gemm *gemm)
{
    return gemm->text;
}

dh_status dh_gemm_run(dh_ctx *ctx, const dh_gemm *g, const void *a, const void *b,
                      const float *bias, void *c, void *ws)
{
    /* The team size decides how oneDNN splits k, hence the bits. */
    const int threads = dh_k_fit_team();
    if (threads != g->threads) omp_set_num_threads(g->threads);
    dh_status st = DH_OK;
    switch (g->method) {
    case METHOD_MATMUL:
        st = run_matmul(ctx, g, a, b, bias, c, ws);
        break;
    case METHOD_CONVERT:
        st = run_convert(ctx, g, a, b, bias, c, ws);
        break;
    case METHOD_SGEMM:
        st = run_sgemm(ctx, g, a, b, bias, c);
        break;
    }
    if (threads != g->threads) omp_set_num_threads(threads);
    return st;
}

/* ---- peak ------------------------------------------------------------------------------ */

enum { PEAK_SIZE = 2048, PEAK_RUNS = 4 };

/* Fastest of a few runs, ns; 0 on failure. */
static int64_t time_square(const dh_gemm *g, const void *a, void *c, void *ws)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t best = 0;
    for (int i = 0; i < PEAK_RUNS; i++) {
        const int64_t start = dh_now_ns();
        if (dh_gemm_run(&ctx, g, a, a, NULL, c, ws) != DH_OK) return 0;
        const int64_t ns = dh_now_ns() - start;
        if (best == 0 || ns < best) best = ns;
    }
    return best;
}

double dh_k_gemm_peak(dh_dtype dtype, int threads)
{
    const size_t bytes = (size_t)PEAK_SIZE * PEAK_SIZE * dh_dtype_bytes(dtype);
    const int before = omp_get_max_threads();
    if (threads > 0) omp_set_num_threads(threads);
    dh_ctx ctx = DH_CTX_INIT;
    dh_gemm *g = NULL;
    void *a = NULL, *c = NULL, *ws = NULL;
    int64_t best = 0;
    const dh_gemm_desc desc = {PEAK_SIZE, PEAK_SIZE, PEAK_SIZE, .in = dtype, .out = dtype};
    if (dh_gemm_create(&ctx, &desc, &g) != DH_OK) goto done;
    a = aligned_alloc(64, bytes);
    c = aligned_alloc(64, bytes);
    ws = aligned_alloc(64, (dh_gemm_workspace(g) + 127) / 64 * 64);
    if (!a || !c || !ws) goto done;
    memset(a, 0, bytes);
    best = time_square(g, a, c, ws);
done:
    free(ws);
    free(c);
    free(a);
    dh_gemm_destroy(g);
    omp_set_num_threads(before);
    return best ? 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE / (double)best * 1e9 : 0;
}

const char *dh_k_describe(char *buf, size_t cap)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(buf, cap, "oneDNN %d.%d.%d on ISA %x, %s", v->major, v->minor, v->patch,
             (unsigned)dnnl_get_effective_cpu_isa(), dh_simd_get()->name);
    return buf;
}
