/* GEMMs of runs of rows, each with the matrix of its expert. Only the device knows how long runs
 * are. As many blocks are launched as there could be tiles of 64 rows, and each finds its own by
 * walking the offsets. A block makes a tile of 64 x 64, in slices of 32 of the inner dimension. Its
 * 256 threads make 4 x 4 elements each. Here float32; bf16 and codes of 8 bits: grouped_mma.cu.
 * Reference: dh_grouped_run. */
#include "run/cuda/kernels/grouped.cuh"

enum { TILE = 64, SLICE = 32, SIDE = 16, PER = TILE / SIDE };
static const int64_t GROUPED_THREADS = SIDE * SIDE;

struct slices {
    float a[TILE][SLICE + 1], b[TILE][SLICE + 1];
};

/* A matrix in memory: element (r, k) at r * row + k * inner, of n_rows. */
struct operand {
    const float *at;
    int64_t row, inner, n_rows;
};

/* Neighbouring threads read neighbouring elements, whichever way they lie. */
DEVICE void load_slice(const operand &m, int64_t r0, int64_t k0, int64_t n_inner,
                       float (&to)[TILE][SLICE + 1])
{
    for (int i = (int)threadIdx.x; i < TILE * SLICE; i += SIDE * SIDE) {
        const int r = m.inner == 1 ? i / SLICE : i % TILE, k = m.inner == 1 ? i % SLICE : i / TILE;
        const bool there = r0 + r < m.n_rows && k0 + k < n_inner;
        to[r][k] = there ? m.at[(r0 + r) * m.row + (k0 + k) * m.inner] : 0.0f;
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
DEVICE void add_product(const operand &a, int64_t a0, const operand &b, int64_t b0, int64_t n_inner,
                        slices &t, float (&sum)[PER][PER])
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

/* ---- rows: forward and the gradient of the input ------------------------------------------------
 */

/* y [R,n] = x [R,n_inner] w[e], element (c, k) of which lies at e * n * n_inner + c * w_row + k *
 * w_inner. */
struct grouped_rule {
    int64_t n_runs, R, E, n, n_inner, w_row, w_inner;
};

static __global__ void grouped_rows(grouped_rule g, const int64_t *offsets, const float *x,
                                    const float *w, float *y)
{
    DH_SHARED(slices, shared, [1]);
    const int64_t column_tiles = (g.n + TILE - 1) / TILE, c0 = blockIdx.x % column_tiles * TILE;
    const row_tile tile = find_tile(blockIdx.x / column_tiles, TILE, g.n_runs, offsets, g.R, g.E);
    if (tile.begin == tile.end) return; /* all threads of the block */
    float sum[PER][PER] = {};
    if (tile.expert >= 0) {
        const operand a = {x, g.n_inner, 1, tile.end};
        const operand b = {w + tile.expert * g.n * g.n_inner, g.w_row, g.w_inner, g.n};
        add_product(a, tile.begin, b, c0, g.n_inner, shared[0], sum);
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int64_t r = tile.begin + row_of(i), c = c0 + column_of(j);
            if (r < tile.end && c < g.n) y[r * g.n + c] = sum[i][j];
        }
}

/* ---- gradient of the weights
 * ----------------------------------------------------------------------- */

/* dw[e] [O,I] = dy^T x over the expert's rows. */
struct weights_rule {
    int64_t n_runs, E, O, I;
    bool accumulate;
};

/* A block: a tile of one expert's matrix, over its runs in order. */
static __global__ void grouped_weights(weights_rule g, const int64_t *offsets, const float *dy,
                                       const float *x, float *dw)
{
    DH_SHARED(slices, shared, [1]);
    const int64_t i_tiles = (g.I + TILE - 1) / TILE, o_tiles = (g.O + TILE - 1) / TILE;
    const int64_t i0 = blockIdx.x % i_tiles * TILE, o0 = blockIdx.x / i_tiles % o_tiles * TILE;
    const int64_t e = blockIdx.x / (i_tiles * o_tiles);
    float sum[PER][PER] = {};
    for (int64_t s = e; s < g.n_runs; s += g.E) {
        const int64_t begin = offsets[s], n = offsets[s + 1] - begin;
        const operand a = {dy + begin * g.O, 1, g.O, g.O}, b = {x + begin * g.I, 1, g.I, g.I};
        add_product(a, o0, b, i0, n, shared[0], sum);
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int64_t o = o0 + row_of(i), c = i0 + column_of(j);
            if (o >= g.O || c >= g.I) continue;
            float *to = &dw[(e * g.O + o) * g.I + c];
            *to = g.accumulate ? *to + sum[i][j] : sum[i][j];
        }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

static void multiply_rows(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                          const int64_t *offsets, const float *x, const float *w, float *y)
{
    const bool forward = d->kind == DH_GROUPED_FORWARD;
    const int64_t n = forward ? d->O : d->I, n_inner = forward ? d->I : d->O;
    const grouped_rule g = {
        n_runs, d->rows, d->E, n, n_inner, forward ? d->I : 1, forward ? 1 : d->I};
    launch(grouped_rows, most_row_tiles(d->rows, n_runs, TILE) * div_up(n, TILE), GROUPED_THREADS,
           stream, g, offsets, x, w, y);
}

static void multiply_weights(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                             const int64_t *offsets, const float *dy, const float *x, float *dw)
{
    const weights_rule g = {n_runs, d->E, d->O, d->I, d->accumulate};
    launch(grouped_weights, d->E * div_up(d->O, TILE) * div_up(d->I, TILE), GROUPED_THREADS, stream,
           g, offsets, dy, x, dw);
}

void dh_cuda_grouped(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                     const int64_t *offsets, const void *a, const void *b, void *c)
{
    if (d->dtype == DH_BF16)
        dh_cuda_grouped_mma(stream, d, n_runs, offsets, a, b, c);
    else if (d->kind == DH_GROUPED_WGRAD)
        multiply_weights(stream, d, n_runs, offsets, (const float *)a, (const float *)b,
                         (float *)c);
    else
        multiply_rows(stream, d, n_runs, offsets, (const float *)a, (const float *)b, (float *)c);
}
