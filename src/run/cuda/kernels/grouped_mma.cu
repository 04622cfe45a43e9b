/* GEMMs of runs of rows, each with the matrix of its expert, on tensor cores (mma.cuh). Operands
 * are bf16, or codes of 8 bits that are widened to bf16 on their way into shared memory. The codes'
 * scales are applied to sums, because scales belong to the summed dimension. A block of eight warps
 * makes a tile of 128 x 128 elements, a warp 64 x 32 of them, in slices of 64 of the inner
 * dimension. The next slice is copied while one is used. Slices lie in shared memory as in memory:
 * rows of the summed dimension or, of transposed operands, rows of the result's.
 *
 *   kernel   a tile of  A               B
 *   rows     y, dx      rows of a run   w[e]; transposed in dx
 *   weights  dw[e]      dy transposed   x transposed, over the expert's runs in order
 *
 * Of codes no operand is transposed: what is summed over lies side by side. Reference:
 * dh_grouped_run. */
#define DH_FP8_FN static __device__ __forceinline__
#include "run/cuda/kernels/grouped.cuh"
#include "run/cuda/kernels/mma.cuh"

#include "run/cpu/fp8.h"

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

/* n rows of the result, or columns, and the summed dimension. Element (r, k) is at r * step + k or,
 * of a transposed operand, at k * step + r. */
template <class T> struct operand {
    const T *at;
    int64_t step, n;
    bool chunks; /* of bf16, as tile_source has it */
};

template <bool TRANSPOSED>
DEVICE void fill(slice<TRANSPOSED> &to, const operand<bf16> &m, int64_t r0, int64_t k0,
                 int64_t n_inner)
{
    const tile_source rows = {m.at + r0 * m.step + k0, m.step, m.n - r0, n_inner, m.chunks};
    const tile_source columns = {m.at + k0 * m.step + r0, m.step, n_inner, m.n - r0, m.chunks};
    fill_tile(to.at, TRANSPOSED ? columns : rows, (int)threadIdx.x, WARPS * WARP);
}

template <dh_fp8_format FORMAT> struct fp8 {
    uint8_t code;
};

/* n codes of a chunk, 8 at most, as the lowest bytes. They begin at any address, and are read by
 * the aligned words that they lie in. */
DEVICE uint64_t load_codes(const void *x, int64_t n)
{
    const unsigned skip = (unsigned)((uintptr_t)x % 4);
    const unsigned *words = (const unsigned *)((const char *)x - skip);
    const int64_t n_bytes = skip + (n < CHUNK ? n : (int64_t)CHUNK);
    uint64_t codes = words[0];
    if (n_bytes > 4) codes |= (uint64_t)words[1] << 32;
    codes >>= 8 * skip;
    return n_bytes > 8 ? codes | (uint64_t)words[2] << (64 - 8 * skip) : codes;
}

/* Exact: bf16 has more bits and a wider range than either format. */
template <dh_fp8_format FORMAT>
DEVICE void fill(slice<false> &to, const operand<fp8<FORMAT>> &m, int64_t r0, int64_t k0,
                 int64_t n_inner)
{
    const dh_fp8_grid grid = dh_fp8_grid_of(FORMAT);
    for (int i = (int)threadIdx.x; i < TILE * (DEPTH / CHUNK); i += WARPS * WARP) {
        const int r = i / (DEPTH / CHUNK), c = i % (DEPTH / CHUNK);
        const int64_t n = r0 + r < m.n ? n_inner - c * CHUNK : 0;
        const uint64_t codes = n > 0 ? load_codes(m.at + (r0 + r) * m.step + k0 + c * CHUNK, n) : 0;
        run_of<bf16, CHUNK> *at = chunk_at(to.at, r, c);
        for (int k = 0; k < CHUNK; k++) {
            const float x = k < n ? dh_fp8_value(grid, (uint8_t)(codes >> 8 * k)) : 0;
            at->at[k].bits = (uint16_t)(__float_as_uint(x) >> 16);
        }
    }
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

/* Factors of the rows and columns of a result; NULL: none. */
struct scales {
    const float *rows, *columns;
};

/* From a row and a column on; `are` false: none. */
DEVICE scales scales_from(const scales &by, int64_t row, int64_t column, bool are)
{
    if (!by.rows || !are) return scales{nullptr, nullptr};
    return scales{by.rows + row, by.columns + column};
}

/* The element at (row, c), which need not be there. */
template <class T>
DEVICE float scaled(const scales &by, const result<T> &to, int64_t row, int64_t c, float sum)
{
    if (!by.rows || row >= to.n_rows || c >= to.n_columns) return sum;
    return sum * (by.rows[row] * by.columns[c]);
}

template <class T>
DEVICE void write_sums(const warp_sums &sums, int64_t c0, const scales &by, const result<T> &to)
{
    UNROLL
    for (int i = 0; i < M_PARTS; i++)
        for (int j = 0; j < N_PARTS; j++)
            for (int e = 0; e < 4; e += 2) {
                const int64_t row = warp_row() + i * MMA_ROWS + mma_row(e);
                const int64_t c = c0 + warp_column() + j * MMA_COLUMNS + mma_column(e);
                float x[2] = {scaled(by, to, row, c, sums[i][j][e]),
                              scaled(by, to, row, c + 1, sums[i][j][e + 1])};
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

/* y [R,n] = x [R,n_inner] w[e]; w[e], from e * w_expert on, as an operand's n columns. Scales of x
 * by rows, of w by e * n + c. */
template <class A, class B> struct rows_rule {
    int64_t n_runs, R, E, n_inner, w_expert;
    operand<A> x;
    operand<B> w;
    scales by;
    bool pairs;
};

template <bool W_TRANSPOSED, class A, class B>
__global__ void __launch_bounds__(WARPS *WARP)
    grouped_mma_rows(rows_rule<A, B> g, const int64_t *offsets, bf16 *y)
{
    typedef room_of<false, W_TRANSPOSED> room_type;
    DH_LAUNCHED_SHARED(room_type, room);
    const int64_t n = g.w.n, n_inner = g.n_inner, column_tiles = (n + TILE - 1) / TILE;
    const int64_t c0 = blockIdx.x % column_tiles * TILE;
    const row_tile t = find_tile(blockIdx.x / column_tiles, TILE, g.n_runs, offsets, g.R, g.E);
    if (t.begin == t.end) return; /* all threads of the block */
    warp_sums sums = {};
    operand<A> x = g.x;
    operand<B> w = g.w;
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
    write_sums(sums, c0, scales_from(g.by, t.begin, t.expert * n, t.expert >= 0), to);
}

/* ---- gradient of the weights
 * ----------------------------------------------------------------------- */

/* dw[e] [O,I] = dy^T x over the expert's rows. Scales by e * O + o and e * I + i. */
template <class A, class B> struct weights_rule {
    int64_t n_runs, E;
    operand<A> dy;
    operand<B> x;
    scales by;
    bool adds, pairs;
};

/* The first rows of an expert, from `at` on. */
DEVICE inner_range rows_from(int64_t n_runs, int64_t E, const int64_t *offsets, inner_range at)
{
    while (at.run < n_runs) {
        const inner_range found = inner_from(at.run, at.k0, offsets[at.run + 1]);
        if (found.n > 0) return found;
        at.run += E;
        at.k0 = at.run < n_runs ? offsets[at.run] : 0;
    }
    return inner_range{at.run, 0, 0};
}

/* A block: a tile of one expert's matrix, over its runs in order. */
template <bool TRANSPOSED, class A, class B>
__global__ void __launch_bounds__(WARPS *WARP)
    grouped_mma_weights(weights_rule<A, B> g, const int64_t *offsets, float *dw)
{
    typedef room_of<TRANSPOSED, TRANSPOSED> room_type;
    DH_LAUNCHED_SHARED(room_type, room);
    const int64_t O = g.dy.n, I = g.x.n;
    const int64_t i_tiles = (I + TILE - 1) / TILE, o_tiles = (O + TILE - 1) / TILE;
    const int64_t i0 = blockIdx.x % i_tiles * TILE, o0 = blockIdx.x / i_tiles % o_tiles * TILE;
    const int64_t e = blockIdx.x / (i_tiles * o_tiles);
    warp_sums sums = {};
    const inner_range first = {e, e < g.n_runs ? offsets[e] : 0, 0};
    walk<2>(
        rows_from(g.n_runs, g.E, offsets, first),
        [&](const inner_range &at) {
            const inner_range behind = {at.run, at.k0 + DEPTH, 0};
            return rows_from(g.n_runs, g.E, offsets, behind);
        },
        [&](const inner_range &at, int stage) {
            fill(room.a[stage], g.dy, o0, at.k0, at.n);
            fill(room.b[stage], g.x, i0, at.k0, at.n);
        },
        [&](const inner_range &at, int stage) {
            add_slice(room.a[stage], room.b[stage], at.n, sums);
        });
    const result<float> to = {dw + (e * O + o0) * I, I, O - o0, I, g.adds, g.pairs};
    write_sums(sums, i0, scales_from(g.by, e * O + o0, e * I, true), to);
}

/* ---- launches ---------------------------------------------------------------------------------
 */

template <class T> static operand<T> operand_of(const void *x, int64_t step, int64_t n)
{
    const operand<T> m = {(const T *)x, step, n, in_runs(CHUNK, sizeof(bf16), x, step)};
    return m;
}

template <bool TRANSPOSED, class A, class B>
static void launch_weights(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                           const int64_t *offsets, const operand<A> &dy, const operand<B> &x,
                           const scales &by, float *dw)
{
    const weights_rule<A, B> g = {
        n_runs, d->E, dy, x, by, d->accumulate, in_runs(2, sizeof(float), dw, d->I)};
    launch_with(sizeof(room_of<TRANSPOSED, TRANSPOSED>), grouped_mma_weights<TRANSPOSED, A, B>,
                d->E * div_up(d->O, TILE) * div_up(d->I, TILE), MMA_THREADS, stream, g, offsets,
                dw);
}

template <bool W_TRANSPOSED, class A, class B>
static void launch_rows(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                        const int64_t *offsets, const operand<A> &x, const operand<B> &w,
                        int64_t w_expert, const scales &by, bf16 *y)
{
    const int64_t n = w.n, n_inner = d->kind == DH_GROUPED_FORWARD ? d->I : d->O;
    const rows_rule<A, B> g = {
        n_runs, d->rows, d->E, n_inner, w_expert, x, w, by, in_runs(2, sizeof(bf16), y, n)};
    launch_with(sizeof(room_of<false, W_TRANSPOSED>), grouped_mma_rows<W_TRANSPOSED, A, B>,
                most_row_tiles(d->rows, n_runs, TILE) * div_up(n, TILE), MMA_THREADS, stream, g,
                offsets, y);
}

void dh_cuda_grouped_mma(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                         const int64_t *offsets, const void *a, const void *b, void *c)
{
    const scales none = {nullptr, nullptr};
    switch (d->kind) {
    case DH_GROUPED_FORWARD:
        launch_rows<false>(stream, d, n_runs, offsets, operand_of<bf16>(a, d->I, d->rows),
                           operand_of<bf16>(b, d->I, d->O), d->O * d->I, none, (bf16 *)c);
        break;
    case DH_GROUPED_DGRAD:
        launch_rows<true>(stream, d, n_runs, offsets, operand_of<bf16>(a, d->O, d->rows),
                          operand_of<bf16>(b, d->I, d->I), d->O * d->I, none, (bf16 *)c);
        break;
    case DH_GROUPED_WGRAD:
        launch_weights<true>(stream, d, n_runs, offsets, operand_of<bf16>(a, d->O, d->O),
                             operand_of<bf16>(b, d->I, d->I), none, (float *)c);
        break;
    }
}

template <dh_fp8_format A_FORMAT>
static void multiply_codes(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                           const int64_t *offsets, const dh_cuda_codes *a, const dh_cuda_codes *b,
                           void *c)
{
    typedef fp8<A_FORMAT> A;
    typedef fp8<DH_FP8_FORMAT_E4M3> B;
    const int64_t row_of_O = dh_cuda_fp8_row(d->O), row_of_I = dh_cuda_fp8_row(d->I);
    const int64_t row_of_w = dh_cuda_fp8_row(d->E * d->O), row_of_rows = dh_cuda_fp8_row(d->rows);
    const scales by = {a->scales, b->scales};
    switch (d->kind) {
    case DH_GROUPED_FORWARD:
        launch_rows<false>(stream, d, n_runs, offsets, operand_of<A>(a->codes, row_of_I, d->rows),
                           operand_of<B>(b->codes, row_of_I, d->O), d->O * row_of_I, by, (bf16 *)c);
        break;
    case DH_GROUPED_DGRAD:
        launch_rows<false>(stream, d, n_runs, offsets, operand_of<A>(a->codes, row_of_O, d->rows),
                           operand_of<B>(b->codes, row_of_w, d->I), d->O, by, (bf16 *)c);
        break;
    case DH_GROUPED_WGRAD:
        launch_weights<false>(stream, d, n_runs, offsets,
                              operand_of<A>(a->codes, row_of_rows, d->O),
                              operand_of<B>(b->codes, row_of_rows, d->I), by, (float *)c);
        break;
    }
}

void dh_cuda_grouped_fp8(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                         const int64_t *offsets, const dh_cuda_codes *a, const dh_cuda_codes *b,
                         void *c)
{
    if (a->format == DH_FP8_FORMAT_E4M3)
        multiply_codes<DH_FP8_FORMAT_E4M3>(stream, d, n_runs, offsets, a, b, c);
    else
        multiply_codes<DH_FP8_FORMAT_E5M2>(stream, d, n_runs, offsets, a, b, c);
}
