/* Products of runs of rows, each with the matrix of its expert. How long runs are only the device
 * knows: as many blocks are launched as there could be tiles of 64 rows, and each finds its own by
 * walking the offsets. Each of 256 threads makes 4 x 4 elements of a 64 x 64 tile, in slices of 32
 * of the inner dimension. Products are of float32; tensor cores are not used.
 * Reference: dh_grouped_run. */
#include "run/cuda/kernels/device.cuh"

enum { TILE = 64, SLICE = 32, SIDE = 16, PER = TILE / SIDE };
static const int64_t GROUPED_THREADS = SIDE * SIDE;

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
template <class T>
DEVICE void add_product(const operand<T> &a, int64_t a0, const operand<T> &b, int64_t b0,
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

/* ---- rows: forward and the gradient of the input ------------------------------------------------
 */

/* Rows [begin, end) of a run; expert -1: of none, behind the last. */
struct row_tile {
    int64_t begin, end, expert;
};

DEVICE row_tile find_tile(int64_t tile, int64_t n_runs, const int64_t *offsets, int64_t n_rows,
                          int64_t E)
{
    for (int64_t s = 0; s <= n_runs; s++) {
        const int64_t begin = offsets[s], end = s < n_runs ? offsets[s + 1] : n_rows;
        const int64_t n_tiles = (end - begin + TILE - 1) / TILE;
        if (tile < n_tiles) {
            row_tile t = {begin + tile * TILE, end, s < n_runs ? s % E : -1};
            return t;
        }
        tile -= n_tiles;
    }
    row_tile none = {0, 0, -1};
    return none;
}

/* y [R,n] = x [R,n_inner] w[e], where element (c, k) of w[e] lies at c * w_row + k * w_inner. */
struct grouped_rule {
    int64_t n_runs, R, E, n, n_inner, w_row, w_inner;
};

template <class T>
__global__ void grouped_rows(grouped_rule g, const int64_t *offsets, const T *x, const T *w, T *y)
{
    DH_SHARED(slices, shared, [1]);
    const int64_t column_tiles = (g.n + TILE - 1) / TILE, c0 = blockIdx.x % column_tiles * TILE;
    const row_tile tile = find_tile(blockIdx.x / column_tiles, g.n_runs, offsets, g.R, g.E);
    if (tile.begin == tile.end) return; /* all threads of the block */
    float sum[PER][PER] = {};
    if (tile.expert >= 0) {
        const operand<T> a = {x, g.n_inner, 1, tile.end};
        const operand<T> b = {w + tile.expert * g.n * g.n_inner, g.w_row, g.w_inner, g.n};
        add_product(a, tile.begin, b, c0, g.n_inner, shared[0], sum);
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int64_t r = tile.begin + row_of(i), c = c0 + column_of(j);
            if (r < tile.end && c < g.n) narrow(sum[i][j], &y[r * g.n + c]);
        }
}

/* ---- gradient of the weights
 * ----------------------------------------------------------------------- */

/* A block: a tile of one expert's matrix, over its runs in order. */
template <class T>
__global__ void grouped_weights(int64_t n_runs, int64_t E, int64_t O, int64_t I, bool accumulate,
                                const int64_t *offsets, const T *dy, const T *x, float *dw)
{
    DH_SHARED(slices, shared, [1]);
    const int64_t i_tiles = (I + TILE - 1) / TILE, o_tiles = (O + TILE - 1) / TILE;
    const int64_t i0 = blockIdx.x % i_tiles * TILE, o0 = blockIdx.x / i_tiles % o_tiles * TILE;
    const int64_t e = blockIdx.x / (i_tiles * o_tiles);
    float sum[PER][PER] = {};
    for (int64_t s = e; s < n_runs; s += E) {
        const int64_t begin = offsets[s], n = offsets[s + 1] - begin;
        const operand<T> a = {dy + begin * O, 1, O, O}, b = {x + begin * I, 1, I, I};
        add_product(a, o0, b, i0, n, shared[0], sum);
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int64_t o = o0 + row_of(i), c = i0 + column_of(j);
            if (o >= O || c >= I) continue;
            float *to = &dw[(e * O + o) * I + c];
            *to = accumulate ? *to + sum[i][j] : sum[i][j];
        }
}

void dh_cuda_grouped(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                     const int64_t *offsets, const void *a, const void *b, void *c)
{
    const bool forward = d->kind == DH_GROUPED_FORWARD;
    const int64_t n = forward ? d->O : d->I, n_inner = forward ? d->I : d->O;
    const grouped_rule g = {
        n_runs, d->rows, d->E, n, n_inner, forward ? d->I : 1, forward ? 1 : d->I};
    by_type(d->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        if (d->kind == DH_GROUPED_WGRAD)
            launch(grouped_weights<T>, d->E * div_up(d->O, TILE) * div_up(d->I, TILE),
                   GROUPED_THREADS, stream, n_runs, d->E, d->O, d->I, d->accumulate, offsets,
                   (const T *)a, (const T *)b, (float *)c);
        else
            launch(grouped_rows<T>, (d->rows / TILE + n_runs + 1) * div_up(n, TILE),
                   GROUPED_THREADS, stream, g, offsets, (const T *)a, (const T *)b, (T *)c);
    });
}
