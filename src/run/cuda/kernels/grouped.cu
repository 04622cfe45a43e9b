/* Products of runs of rows, each with the matrix of its expert. How long runs are only the device
 * knows: as many blocks are launched as there could be tiles of 64 rows, and each finds its own by
 * walking the offsets. Each of 256 threads makes 4 x 4 elements of a 64 x 64 tile, in slices of 32
 * of the inner dimension. Products are of float32: of rows of float32, and of codes of 8 bits,
 * which are widened as they are loaded, so that they save memory's traffic alone. Their scales go
 * to sums, as they belong to what is summed over. Rows of bf16: grouped_mma.cu. Reference:
 * dh_grouped_run. */
#define DH_FP8_FN static __device__ __forceinline__
#include "run/cuda/kernels/grouped.cuh"

#include "run/cpu/fp8.h"

enum { TILE = 64, SLICE = 32, SIDE = 16, PER = TILE / SIDE };
static const int64_t GROUPED_THREADS = SIDE * SIDE;

struct e4m3 {
    uint8_t code;
};

struct e5m2 {
    uint8_t code;
};

DEVICE float widen(e4m3 x)
{
    return dh_fp8_value(dh_fp8_grid_of(DH_FP8_FORMAT_E4M3), x.code);
}

DEVICE float widen(e5m2 x)
{
    return dh_fp8_value(dh_fp8_grid_of(DH_FP8_FORMAT_E5M2), x.code);
}

struct slices {
    float a[TILE][SLICE + 1], b[TILE][SLICE + 1];
};

/* A matrix in memory: element (r, k) at r * row + k * inner, of n_rows. */
template <class T> struct operand {
    const T *at;
    int64_t row, inner, n_rows;
};

/* Neighbouring threads read neighbouring elements, whichever way they lie. */
template <class T>
DEVICE void load_slice(const operand<T> &m, int64_t r0, int64_t k0, int64_t n_inner,
                       float (&to)[TILE][SLICE + 1])
{
    for (int i = (int)threadIdx.x; i < TILE * SLICE; i += SIDE * SIDE) {
        const int r = m.inner == 1 ? i / SLICE : i % TILE, k = m.inner == 1 ? i % SLICE : i / TILE;
        const bool there = r0 + r < m.n_rows && k0 + k < n_inner;
        to[r][k] = there ? widen(m.at[(r0 + r) * m.row + (k0 + k) * m.inner]) : 0.0f;
    }
}

DEVICE int row_of(int i)
{
    return (int)threadIdx.x / SIDE * PER + i;
}

DEVICE int column_of(int j)
{
    return (int)threadIdx.x % SIDE + j * SIDE;
}

/* sum += a b^T for rows from a0 and b0 on. */
template <class A, class B>
DEVICE void add_product(const operand<A> &a, int64_t a0, const operand<B> &b, int64_t b0,
                        int64_t n_inner, slices &t, float (&sum)[PER][PER])
{
    for (int64_t k0 = 0; k0 < n_inner; k0 += SLICE) {
        __syncthreads(); /* the slices before are used up */
        load_slice(a, a0, k0, n_inner, t.a);
        load_slice(b, b0, k0, n_inner, t.b);
        __syncthreads();
        for (int k = 0; k < SLICE; k++)
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < PER; j++) sum[i][j] += t.a[row_of(i)][k] * t.b[column_of(j)][k];
    }
}

/* What a sum is multiplied by; without scales it is left as it is. */
struct scales {
    const float *a, *b;
};

DEVICE float scaled(const scales &s, float sum, int64_t a, int64_t b)
{
    return s.a ? sum * (s.a[a] * s.b[b]) : sum;
}

/* ---- rows: forward and the gradient of the input ------------------------------------------------
 */

/* y [R,n] = x [R,n_inner] w[e], where rows of x lie x_row apart, and element (c, k) of w[e] at
 * e * w_expert + c * w_row + k * w_inner. Scales of x by rows, of w by e * n + c. */
struct grouped_rule {
    int64_t n_runs, R, E, n, n_inner, x_row, w_expert, w_row, w_inner;
};

template <class A, class B, class T>
__global__ void grouped_rows(grouped_rule g, const int64_t *offsets, const A *x, const B *w,
                             scales by, T *y)
{
    DH_SHARED(slices, shared, [1]);
    const int64_t column_tiles = (g.n + TILE - 1) / TILE, c0 = blockIdx.x % column_tiles * TILE;
    const row_tile tile = find_tile(blockIdx.x / column_tiles, TILE, g.n_runs, offsets, g.R, g.E);
    if (tile.begin == tile.end) return; /* all threads of the block */
    float sum[PER][PER] = {};
    if (tile.expert >= 0) {
        const operand<A> a = {x, g.x_row, 1, tile.end};
        const operand<B> b = {w + tile.expert * g.w_expert, g.w_row, g.w_inner, g.n};
        add_product(a, tile.begin, b, c0, g.n_inner, shared[0], sum);
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int64_t r = tile.begin + row_of(i), c = c0 + column_of(j);
            if (r >= tile.end || c >= g.n) continue;
            const bool is = tile.expert >= 0;
            narrow(is ? scaled(by, sum[i][j], r, tile.expert * g.n + c) : 0.0f, &y[r * g.n + c]);
        }
}

/* ---- gradient of the weights
 * ----------------------------------------------------------------------- */

/* dw[e] [O,I]: element (c, k) of dy and of x, k counting rows, at c * row + k * inner. Scales by
 * e * O + o and e * I + c. */
struct weights_rule {
    int64_t n_runs, E, O, I, dy_row, dy_inner, x_row, x_inner;
    bool accumulate;
};

/* A block: a tile of one expert's matrix, over its runs in order. */
template <class A, class B>
__global__ void grouped_weights(weights_rule g, const int64_t *offsets, const A *dy, const B *x,
                                scales by, float *dw)
{
    DH_SHARED(slices, shared, [1]);
    const int64_t i_tiles = (g.I + TILE - 1) / TILE, o_tiles = (g.O + TILE - 1) / TILE;
    const int64_t i0 = blockIdx.x % i_tiles * TILE, o0 = blockIdx.x / i_tiles % o_tiles * TILE;
    const int64_t e = blockIdx.x / (i_tiles * o_tiles);
    float sum[PER][PER] = {};
    for (int64_t s = e; s < g.n_runs; s += g.E) {
        const int64_t begin = offsets[s], n = offsets[s + 1] - begin;
        const operand<A> a = {dy + begin * g.dy_inner, g.dy_row, g.dy_inner, g.O};
        const operand<B> b = {x + begin * g.x_inner, g.x_row, g.x_inner, g.I};
        add_product(a, o0, b, i0, n, shared[0], sum);
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int64_t o = o0 + row_of(i), c = i0 + column_of(j);
            if (o >= g.O || c >= g.I) continue;
            float *to = &dw[(e * g.O + o) * g.I + c];
            const float value = scaled(by, sum[i][j], e * g.O + o, e * g.I + c);
            *to = g.accumulate ? *to + value : value;
        }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

template <class A, class B, class T>
static void launch_rows(dh_cuda_stream stream, const grouped_rule &g, const int64_t *offsets,
                        const void *x, const void *w, const scales &by, void *y)
{
    launch(grouped_rows<A, B, T>, most_row_tiles(g.R, g.n_runs, TILE) * div_up(g.n, TILE),
           GROUPED_THREADS, stream, g, offsets, (const A *)x, (const B *)w, by, (T *)y);
}

template <class A, class B>
static void launch_weights(dh_cuda_stream stream, const weights_rule &g, const int64_t *offsets,
                           const void *dy, const void *x, const scales &by, void *dw)
{
    launch(grouped_weights<A, B>, g.E * div_up(g.O, TILE) * div_up(g.I, TILE), GROUPED_THREADS,
           stream, g, offsets, (const A *)dy, (const B *)x, by, (float *)dw);
}

void dh_cuda_grouped(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                     const int64_t *offsets, const void *a, const void *b, void *c)
{
    const bool forward = d->kind == DH_GROUPED_FORWARD;
    const int64_t n = forward ? d->O : d->I, n_inner = forward ? d->I : d->O;
    const grouped_rule rows = {n_runs,
                               d->rows,
                               d->E,
                               n,
                               n_inner,
                               n_inner,
                               d->O * d->I,
                               forward ? d->I : 1,
                               forward ? 1 : d->I};
    const weights_rule weights = {n_runs, d->E, d->O, d->I, 1, d->O, 1, d->I, d->accumulate};
    const scales none = {nullptr, nullptr};
    if (d->dtype == DH_BF16)
        dh_cuda_grouped_mma(stream, d, n_runs, offsets, a, b, c);
    else if (d->kind == DH_GROUPED_WGRAD)
        launch_weights<float, float>(stream, weights, offsets, a, b, none, c);
    else
        launch_rows<float, float, float>(stream, rows, offsets, a, b, none, c);
}

template <class A>
static void launch_codes(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                         const int64_t *offsets, const dh_cuda_codes *a, const dh_cuda_codes *b,
                         void *c)
{
    const bool forward = d->kind == DH_GROUPED_FORWARD;
    const int64_t n = forward ? d->O : d->I, n_inner = forward ? d->I : d->O;
    const int64_t inner_row = dh_cuda_fp8_row(n_inner), rows_row = dh_cuda_fp8_row(d->rows);
    const grouped_rule rows = {n_runs,
                               d->rows,
                               d->E,
                               n,
                               n_inner,
                               inner_row,
                               forward ? d->O * inner_row : d->O,
                               forward ? inner_row : dh_cuda_fp8_row(d->E * d->O),
                               1};
    const weights_rule weights = {n_runs, d->E,     d->O, d->I,         rows_row,
                                  1,      rows_row, 1,    d->accumulate};
    const scales by = {a->scales, b->scales};
    if (d->kind == DH_GROUPED_WGRAD)
        launch_weights<A, e4m3>(stream, weights, offsets, a->codes, b->codes, by, c);
    else
        launch_rows<A, e4m3, bf16>(stream, rows, offsets, a->codes, b->codes, by, c);
}

void dh_cuda_grouped_fp8(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                         const int64_t *offsets, const dh_cuda_codes *a, const dh_cuda_codes *b,
                         void *c)
{
    (a->format == DH_FP8_FORMAT_E4M3 ? launch_codes<e4m3> : launch_codes<e5m2>)(stream, d, n_runs,
                                                                                offsets, a, b, c);
}
