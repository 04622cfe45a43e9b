/* Products of runs of rows of bf16, each with the matrix of its expert, on tensor cores (mma.cuh).
 * A block of eight warps makes a tile of 128 x 128 elements, a warp 64 x 32 of them, in slices of
 * 64 of the inner dimension, the next slice's copies under way while one is used. Slices lie in
 * shared memory as they do in memory: rows of what is summed over, or, of transposed operands, rows
 * of the result's.
 *
 *   kernel   a tile of  A               B
 *   rows     y, dx      rows of a run   w[e]; transposed in dx
 *   weights  dw[e]      dy transposed   x transposed, over the expert's runs in order
 *
 * Reference: dh_grouped_run. */
#include "run/cuda/kernels/grouped.cuh"
#include "run/cuda/kernels/mma.cuh"

/* TUNING: guesses until one has run. Two slices of both operands take 64 KiB, and a thread has 64
 * sums. */
enum { TILE = 128, DEPTH = 64, WARPS = 8, WARP_ROWS = 64, WARP_COLUMNS = 32 };
enum { M_PARTS = WARP_ROWS / MMA_ROWS, N_PARTS = WARP_COLUMNS / MMA_COLUMNS };
static const int64_t MMA_THREADS = WARPS * WARP;

static_assert(WARPS * WARP_ROWS * WARP_COLUMNS == TILE * TILE, "warps make a whole tile");

/* ---- operands ----------------------------------------------------------------------------------
 */

template <bool TRANSPOSED> struct slice {
    tile<TRANSPOSED ? DEPTH : TILE, TRANSPOSED ? TILE : DEPTH> at;
};

template <bool A_TRANSPOSED, bool B_TRANSPOSED> struct room_of {
    slice<A_TRANSPOSED> a[2];
    slice<B_TRANSPOSED> b[2];
};

static_assert(sizeof(room_of<true, true>) <= MOST_SHARED, "slices do not fit");
static_assert(sizeof(room_of<false, false>) <= MOST_SHARED, "slices do not fit");

/* n rows of the result, or columns, and what is summed over: element (r, k) at r * step + k, or, of
 * a transposed operand, k * step + r. */
struct operand {
    const bf16 *at;
    int64_t step, n;
    bool chunks;
};

template <bool TRANSPOSED>
DEVICE void fill(slice<TRANSPOSED> &to, const operand &m, int64_t r0, int64_t k0, int64_t n_inner)
{
    const tile_source rows = {m.at + r0 * m.step + k0, m.step, m.n - r0, n_inner, m.chunks};
    const tile_source columns = {m.at + k0 * m.step + r0, m.step, n_inner, m.n - r0, m.chunks};
    fill_tile(to.at, TRANSPOSED ? columns : rows, (int)threadIdx.x, WARPS * WARP);
}

/* ---- products ----------------------------------------------------------------------------------
 */

typedef float warp_sums[M_PARTS][N_PARTS][4];

DEVICE int warp_row()
{
    return (int)warp_id() / (TILE / WARP_COLUMNS) * WARP_ROWS;
}

DEVICE int warp_column()
{
    return (int)warp_id() % (TILE / WARP_COLUMNS) * WARP_COLUMNS;
}

/* sums += A B of the n inner elements of a slice, which zeros fill up. */
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
DEVICE void add_slice(const slice<A_TRANSPOSED> &a, const slice<B_TRANSPOSED> &b, int64_t n,
                      warp_sums &sums)
{
    for (int k = 0; k < n; k += MMA_DEPTH) {
        unsigned x[M_PARTS][4], y[4];
        UNROLL
        for (int i = 0; i < M_PARTS; i++)
            load_a<A_TRANSPOSED>(a.at, warp_row() + i * MMA_ROWS, k, x[i]);
        UNROLL
        for (int j = 0; j < N_PARTS; j += 2) {
            load_two_b<B_TRANSPOSED>(b.at, warp_column() + j * MMA_COLUMNS, k, y);
            for (int i = 0; i < M_PARTS; i++) {
                mma(sums[i][j], x[i], y[0], y[1]);
                mma(sums[i][j + 1], x[i], y[2], y[3]);
            }
        }
    }
}

template <class T> DEVICE void write_sums(const warp_sums &sums, int64_t c0, const result<T> &to)
{
    UNROLL
    for (int i = 0; i < M_PARTS; i++)
        for (int j = 0; j < N_PARTS; j++)
            for (int e = 0; e < 4; e += 2) {
                const int64_t row = warp_row() + i * MMA_ROWS + mma_row(e);
                const int64_t c = c0 + warp_column() + j * MMA_COLUMNS + mma_column(e);
                float x[2] = {sums[i][j][e], sums[i][j][e + 1]};
                write_pair(to, row, c, x);
            }
}

/* Inner elements k0 to k0 + n of a run; n 0: there are no more. */
struct inner_range {
    int64_t run, k0, n;
};

DEVICE inner_range inner_from(int64_t run, int64_t k0, int64_t end)
{
    const int64_t left = end - k0;
    return inner_range{run, k0, left < 0 ? 0 : left < DEPTH ? left : (int64_t)DEPTH};
}

/* ---- rows: forward and the gradient of the input ------------------------------------------------
 */

/* y [R,n] = x [R,n_inner] w[e]; w[e] of w_expert elements, as an operand's n columns. */
struct rows_rule {
    int64_t n_runs, R, E, n_inner, w_expert;
    operand x, w;
    bool pairs;
};

template <bool W_TRANSPOSED>
__global__ void __launch_bounds__(WARPS *WARP)
    grouped_mma_rows(rows_rule g, const int64_t *offsets, bf16 *y)
{
    typedef room_of<false, W_TRANSPOSED> room_type;
    DH_LAUNCHED_SHARED(room_type, room);
    const int64_t n = g.w.n, n_inner = g.n_inner, column_tiles = (n + TILE - 1) / TILE;
    const int64_t c0 = blockIdx.x % column_tiles * TILE;
    const row_tile t = find_tile(blockIdx.x / column_tiles, TILE, g.n_runs, offsets, g.R, g.E);
    if (t.begin == t.end) return; /* all threads of the block */
    warp_sums sums = {};
    operand x = g.x, w = g.w;
    x.n = t.end;
    w.at += t.expert < 0 ? 0 : t.expert * g.w_expert;
    walk<2>(
        inner_from(0, 0, t.expert < 0 ? 0 : n_inner),
        [&](const inner_range &at) { return inner_from(0, at.k0 + DEPTH, n_inner); },
        [&](const inner_range &at, int stage) {
            fill(room.a[stage], x, t.begin, at.k0, at.n);
            fill(room.b[stage], w, c0, at.k0, at.n);
        },
        [&](const inner_range &at, int stage) {
            add_slice(room.a[stage], room.b[stage], at.n, sums);
        });
    const result<bf16> to = {y + t.begin * n, n, t.end - t.begin, n, false, g.pairs};
    write_sums(sums, c0, to);
}

/* ---- gradient of the weights
 * ----------------------------------------------------------------------- */

/* dw[e] [O,I] = dy^T x over the expert's rows. */
struct weights_rule {
    int64_t n_runs, E;
    operand dy, x;
    bool adds, pairs;
};

/* The first rows of an expert, from `at` on. */
DEVICE inner_range rows_from(const weights_rule &g, const int64_t *offsets, inner_range at)
{
    while (at.run < g.n_runs) {
        const inner_range found = inner_from(at.run, at.k0, offsets[at.run + 1]);
        if (found.n > 0) return found;
        at.run += g.E;
        at.k0 = at.run < g.n_runs ? offsets[at.run] : 0;
    }
    return inner_range{at.run, 0, 0};
}

/* A block: a tile of one expert's matrix, over its runs in order. */
static __global__ void __launch_bounds__(WARPS *WARP)
    grouped_mma_weights(weights_rule g, const int64_t *offsets, float *dw)
{
    typedef room_of<true, true> room_type;
    DH_LAUNCHED_SHARED(room_type, room);
    const int64_t O = g.dy.n, I = g.x.n;
    const int64_t i_tiles = (I + TILE - 1) / TILE, o_tiles = (O + TILE - 1) / TILE;
    const int64_t i0 = blockIdx.x % i_tiles * TILE, o0 = blockIdx.x / i_tiles % o_tiles * TILE;
    const int64_t e = blockIdx.x / (i_tiles * o_tiles);
    warp_sums sums = {};
    const inner_range first = {e, e < g.n_runs ? offsets[e] : 0, 0};
    walk<2>(
        rows_from(g, offsets, first),
        [&](const inner_range &at) {
            const inner_range behind = {at.run, at.k0 + DEPTH, 0};
            return rows_from(g, offsets, behind);
        },
        [&](const inner_range &at, int stage) {
            fill(room.a[stage], g.dy, o0, at.k0, at.n);
            fill(room.b[stage], g.x, i0, at.k0, at.n);
        },
        [&](const inner_range &at, int stage) {
            add_slice(room.a[stage], room.b[stage], at.n, sums);
        });
    const result<float> to = {dw + (e * O + o0) * I, I, O - o0, I, g.adds, g.pairs};
    write_sums(sums, i0, to);
}

/* ---- launches ---------------------------------------------------------------------------------
 */

static operand operand_of(const void *x, int64_t step, int64_t n)
{
    const operand m = {(const bf16 *)x, step, n, in_runs(CHUNK, sizeof(bf16), x, step)};
    return m;
}

static void multiply_weights(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                             const int64_t *offsets, const void *dy, const void *x, float *dw)
{
    const weights_rule g = {n_runs,
                            d->E,
                            operand_of(dy, d->O, d->O),
                            operand_of(x, d->I, d->I),
                            d->accumulate,
                            in_runs(2, sizeof(float), dw, d->I)};
    launch_with(sizeof(room_of<true, true>), grouped_mma_weights,
                d->E * div_up(d->O, TILE) * div_up(d->I, TILE), MMA_THREADS, stream, g, offsets,
                dw);
}

void dh_cuda_grouped_mma(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                         const int64_t *offsets, const void *a, const void *b, void *c)
{
    if (d->kind == DH_GROUPED_WGRAD) {
        multiply_weights(stream, d, n_runs, offsets, a, b, (float *)c);
        return;
    }
    const bool forward = d->kind == DH_GROUPED_FORWARD;
    const int64_t n = forward ? d->O : d->I, n_inner = forward ? d->I : d->O;
    const rows_rule g = {n_runs,
                         d->rows,
                         d->E,
                         n_inner,
                         d->O * d->I,
                         operand_of(a, n_inner, d->rows),
                         operand_of(b, d->I, n),
                         in_runs(2, sizeof(bf16), c, n)};
    const int64_t n_blocks = most_row_tiles(d->rows, n_runs, TILE) * div_up(n, TILE);
    if (forward)
        launch_with(sizeof(room_of<false, false>), grouped_mma_rows<false>, n_blocks, MMA_THREADS,
                    stream, g, offsets, (bf16 *)c);
    else
        launch_with(sizeof(room_of<false, true>), grouped_mma_rows<true>, n_blocks, MMA_THREADS,
                    stream, g, offsets, (bf16 *)c);
}
