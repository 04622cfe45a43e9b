#include "kernel_test.h"

typedef struct shape {
    int64_t N, C;
} shape;

static const shape shapes[] = {{1, 8}, {3, 17}, {70, 64}, {130, 100}, {5, 768}};

#define EPS 1e-5

/* What the finite differences vary: x, then w, of sum(dy norm(x)). */
typedef struct norm_arg {
    dh_norm_kind kind;
    int64_t N, C;
    const double *x, *w, *b, *dy;
} norm_arg;

static void norm_row(const norm_arg *a, const double *x, const double *w, double *y, double *stats)
{
    double mean = 0, var = 0;
    if (a->kind == DH_NORM_LAYER)
        for (int64_t c = 0; c < a->C; c++) mean += x[c] / (double)a->C;
    for (int64_t c = 0; c < a->C; c++) var += (x[c] - mean) * (x[c] - mean) / (double)a->C;
    const double rstd = 1 / sqrt(var + EPS);
    for (int64_t c = 0; c < a->C; c++) y[c] = (x[c] - mean) * rstd * w[c] + (a->b ? a->b[c] : 0);
    stats[0] = mean;
    stats[1] = rstd;
}

static double norm_sum(const norm_arg *a, const double *x, const double *w)
{
    double total = 0, stats[2], y[1024];
    for (int64_t n = 0; n < a->N; n++) {
        norm_row(a, x + n * a->C, w, y, stats);
        for (int64_t c = 0; c < a->C; c++) total += y[c] * a->dy[n * a->C + c];
    }
    return total;
}

static double sum_of_x(const double *x, const void *arg)
{
    const norm_arg *a = arg;
    return norm_sum(a, x, a->w);
}

static double sum_of_w(const double *w, const void *arg)
{
    const norm_arg *a = arg;
    return norm_sum(a, a->x, w);
}

static void check_forward(dh_norm_kind kind, dh_dtype T, shape s, bool bias, uint64_t *seed)
{
    buf x = buf_random(T, s.N * s.C, 2, seed), y = buf_new(T, s.N * s.C);
    buf w = buf_random(DH_F32, s.C, 1, seed), b = buf_random(DH_F32, s.C, 1, seed);
    buf stats = buf_new(DH_F32, 2 * s.N);
    dh_k_norm_fwd(kind, T, s.N, s.C, x.raw, f32(w), bias ? f32(b) : NULL, (float)EPS, y.raw,
                  f32(stats));
    double *dx = widen(x), *dw = widen(w), *db = widen(b);
    double *want = zeros(s.N * s.C), *want_stats = zeros(2 * s.N);
    const norm_arg a = {kind, s.N, s.C, dx, dw, bias ? db : NULL, NULL};
    for (int64_t n = 0; n < s.N; n++)
        norm_row(&a, dx + n * s.C, dw, want + n * s.C, want_stats + 2 * n);
    check_close("norm", y, want, tolerance_of(T));
    check_close("stats", stats, want_stats, 1e-5);
    free(want_stats);
    free(want);
    free(db);
    free(dw);
    free(dx);
    buf_free(stats);
    buf_free(b);
    buf_free(w);
    buf_free(y);
    buf_free(x);
}

static void norm_forward(void **state)
{
    uint64_t seed = test_seed("norm forward");
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(shapes); i++) {
        check_forward(DH_NORM_LAYER, T, shapes[i], true, &seed);
        check_forward(DH_NORM_LAYER, T, shapes[i], false, &seed);
        check_forward(DH_NORM_RMS, T, shapes[i], false, &seed);
    }
}

/* A few elements of each gradient against central differences in float64. */
static void check_backward(dh_norm_kind kind, dh_dtype T, shape s, uint64_t *seed)
{
    const int64_t NC = s.N * s.C;
    buf x = buf_random(T, NC, 2, seed), dy = buf_random(T, NC, 1, seed);
    buf w = buf_random(DH_F32, s.C, 1, seed), y = buf_new(T, NC), dx = buf_new(T, NC);
    buf dres = buf_random(T, NC, 1, seed), stats = buf_new(DH_F32, 2 * s.N);
    buf dw = buf_random(DH_F32, s.C, 1, seed), db = buf_random(DH_F32, s.C, 1, seed);
    buf dw0 = buf_copy(dw), db0 = buf_copy(db);
    dh_k_norm_fwd(kind, T, s.N, s.C, x.raw, f32(w), NULL, (float)EPS, y.raw, f32(stats));
    dh_k_norm_dgrad(kind, T, s.N, s.C, dy.raw, x.raw, f32(w), f32(stats), dres.raw, dx.raw);
    dh_k_norm_wgrad(kind, T, s.N, s.C, dy.raw, x.raw, f32(stats), f32(dw), f32(db), true);

    double *xd = widen(x), *wd = widen(w), *dyd = widen(dy);
    const norm_arg a = {kind, s.N, s.C, xd, wd, NULL, dyd};
    for (int probe = 0; probe < 24; probe++) {
        const int64_t i = (int64_t)(test_rand(seed) % (uint64_t)NC), c = i % s.C;
        check_value("dx", get(dx, i), finite_difference(sum_of_x, xd, i, 1e-5, &a) + get(dres, i),
                    T == DH_BF16 ? 6e-3 : 1e-4);
        check_value("dw", get(dw, c) - get(dw0, c), finite_difference(sum_of_w, wd, c, 1e-4, &a),
                    1e-4);
        double column = 0;
        for (int64_t n = 0; n < s.N; n++) column += dyd[n * s.C + c];
        check_value("db", get(db, c) - get(db0, c), column, 2e-5);
    }
    /* Overwriting gives what adding to zero gives; the order of rows is fixed. */
    buf zero_w = buf_new(DH_F32, s.C), once = buf_new(DH_F32, s.C);
    dh_k_norm_wgrad(kind, T, s.N, s.C, dy.raw, x.raw, f32(stats), f32(zero_w), NULL, true);
    omp_set_num_threads(5);
    dh_k_norm_wgrad(kind, T, s.N, s.C, dy.raw, x.raw, f32(stats), f32(once), NULL, false);
    omp_set_num_threads(2);
    assert_true(buf_same(zero_w, once));
    /* dres may be the output. */
    dh_k_norm_dgrad(kind, T, s.N, s.C, dy.raw, x.raw, f32(w), f32(stats), dres.raw, dres.raw);
    assert_true(buf_same(dres, dx));
    free(dyd);
    free(wd);
    free(xd);
    buf all[] = {x, dy, w, y, dx, dres, stats, dw, db, dw0, db0, zero_w, once};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

static void norm_backward(void **state)
{
    uint64_t seed = test_seed("norm backward");
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(shapes); i++) {
        check_backward(DH_NORM_LAYER, T, shapes[i], &seed);
        check_backward(DH_NORM_RMS, T, shapes[i], &seed);
    }
}

/* Heads of packed rows one after another, n of them from head first on, and back. */
static buf heads_out_of(buf packed, dh_heads h, int64_t first, int64_t n)
{
    buf heads = buf_new(packed.dtype, h.N * n * h.D);
    const int64_t row = (h.H + 2 * h.KV) * h.D;
    for (int64_t i = 0; i < h.N * n * h.D; i++)
        set(heads, i, get(packed, i / (n * h.D) * row + first * h.D + i % (n * h.D)));
    return heads;
}

static void free_all(const buf *all, size_t n)
{
    for (size_t i = 0; i < n; i++) buf_free(all[i]);
}

/* Packed rows and what the kernels made of them; [0] of queries, [1] of keys. */
typedef struct packed_norm {
    dh_dtype T;
    dh_heads h;
    buf qkv, dy, y, dqkv, stats, w[2], dw[2], want_dw[2];
} packed_norm;

/* Queries, then keys, are rows of an RMSNorm of their own. */
static void check_kind(const packed_norm *p, int k)
{
    const int64_t first = k ? p->h.H : 0, count = k ? p->h.KV : p->h.H;
    const int64_t rows = p->h.N * count, D = p->h.D;
    buf x = heads_out_of(p->qkv, p->h, first, count), dy = heads_out_of(p->dy, p->h, first, count);
    buf y = heads_out_of(p->y, p->h, first, count), dx = heads_out_of(p->dqkv, p->h, first, count);
    buf want_y = buf_new(p->T, rows * D), want_dx = buf_new(p->T, rows * D);
    buf stats = buf_new(DH_F32, 2 * rows);
    dh_k_norm_fwd(DH_NORM_RMS, p->T, rows, D, x.raw, f32(p->w[k]), NULL, (float)EPS, want_y.raw,
                  f32(stats));
    dh_k_norm_dgrad(DH_NORM_RMS, p->T, rows, D, dy.raw, x.raw, f32(p->w[k]), f32(stats), NULL,
                    want_dx.raw);
    dh_k_norm_wgrad(DH_NORM_RMS, p->T, rows, D, dy.raw, x.raw, f32(stats), f32(p->want_dw[k]), NULL,
                    k == 1);
    assert_true(buf_same(y, want_y) && buf_same(dx, want_dx));
    double *sums = widen(p->want_dw[k]);
    check_close("weights of heads", p->dw[k], sums, 1e-5);
    free(sums);
    const buf all[] = {x, dy, y, dx, want_y, want_dx, stats};
    free_all(all, DH_COUNTOF(all));
}

static void check_values(const packed_norm *p)
{
    const int64_t first = p->h.H + p->h.KV;
    const buf v = heads_out_of(p->qkv, p->h, first, p->h.KV);
    const buf dv = heads_out_of(p->dy, p->h, first, p->h.KV);
    const buf v_out = heads_out_of(p->y, p->h, first, p->h.KV);
    const buf dv_out = heads_out_of(p->dqkv, p->h, first, p->h.KV);
    assert_true(buf_same(v, v_out) && buf_same(dv, dv_out));
    const buf all[] = {v, dv, v_out, dv_out};
    free_all(all, DH_COUNTOF(all));
}

static void check_heads(dh_dtype T, dh_heads h, uint64_t *seed)
{
    const int64_t size = h.N * (h.H + 2 * h.KV) * h.D;
    packed_norm p = {T, h, .qkv = buf_random(T, size, 2, seed), .dy = buf_random(T, size, 1, seed)};
    p.y = buf_new(T, size);
    p.dqkv = buf_new(T, size);
    p.stats = buf_new(DH_F32, 2 * h.N * (h.H + h.KV));
    for (int k = 0; k < 2; k++) {
        p.w[k] = buf_random(DH_F32, h.D, 1, seed);
        p.dw[k] = buf_random(DH_F32, h.D, 1, seed);
        p.want_dw[k] = buf_copy(p.dw[k]);
    }
    void *ws = scratch_new(dh_k_head_norm_wgrad_workspace(h));
    dh_k_head_norm_fwd(T, h, p.qkv.raw, f32(p.w[0]), f32(p.w[1]), (float)EPS, p.y.raw,
                       f32(p.stats));
    dh_k_head_norm_dgrad(T, h, p.dy.raw, p.qkv.raw, f32(p.w[0]), f32(p.w[1]), f32(p.stats),
                         p.dqkv.raw);
    omp_set_num_threads(3);
    dh_k_head_norm_wgrad(T, h, p.dy.raw, p.qkv.raw, f32(p.stats), f32(p.dw[0]), f32(p.dw[1]), 2,
                         ws);
    omp_set_num_threads(2);
    check_kind(&p, 0);
    check_kind(&p, 1);
    check_values(&p);
    scratch_free(ws, dh_k_head_norm_wgrad_workspace(h));
    const buf all[] = {p.qkv,  p.dy,    p.y,     p.dqkv,       p.stats,     p.w[0],
                       p.w[1], p.dw[0], p.dw[1], p.want_dw[0], p.want_dw[1]};
    free_all(all, DH_COUNTOF(all));
}

static void heads_are_normed_one_by_one(void **state)
{
    uint64_t seed = test_seed("norms of heads");
    static const dh_heads shapes_of_heads[] = {{1, 1, 1, 8}, {70, 4, 2, 16}, {9, 3, 1, 100}};
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(shapes_of_heads); i++)
        check_heads(T, shapes_of_heads[i], &seed);
}

static void bias_gradient_sums_columns(void **state)
{
    uint64_t seed = test_seed("bias gradient");
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(shapes); i++) {
        const shape s = shapes[i];
        buf dy = buf_random(T, s.N * s.C, 1, &seed), db = buf_random(DH_F32, s.C, 1, &seed);
        double *want = widen(db);
        for (int64_t r = 0; r < s.N * s.C; r++) want[r % s.C] += get(dy, r);
        dh_k_bias_grad(T, s.N, s.C, dy.raw, f32(db), true);
        check_close("bias gradient", db, want, 1e-5);
        for (int64_t c = 0; c < s.C; c++) want[c] = 0;
        for (int64_t r = 0; r < s.N * s.C; r++) want[r % s.C] += get(dy, r);
        dh_k_bias_grad(T, s.N, s.C, dy.raw, f32(db), false);
        check_close("bias gradient", db, want, 1e-5);
        free(want);
        buf_free(db);
        buf_free(dy);
    }
}

const struct CMUnitTest norm_tests[] = {
    cmocka_unit_test(norm_forward),
    cmocka_unit_test(norm_backward),
    cmocka_unit_test(heads_are_normed_one_by_one),
    cmocka_unit_test(bias_gradient_sums_columns),
};
const size_t n_norm_tests = DH_COUNTOF(norm_tests);
