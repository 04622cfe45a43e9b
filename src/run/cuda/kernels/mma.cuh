/* GEMMs of bf16 on tensor cores: a warp's loads out of shared memory and multiplications, in
 * float32 sums. A tile of shared memory holds rows of W elements whose chunks of 16 bytes are
 * swizzled: chunk c of row r lies at c ^ (r % 8). So the eight rows that ldmatrix takes at once,
 * and the chunks that neighbouring threads write, lie in different banks without padding.
 *
 * Fragments, with g = lane / 4 and p = 2 (lane % 4), of the instruction m16n8k16:
 *   A 16 x 16  a[i] = rows g + 8 (i % 2), columns p + 8 (i / 2) and the next.
 *   B 16 x 8   b[i] = rows p + 8 i and the next, column g.
 *   C 16 x 8   c[i] = row g + 8 (i / 2), column p + i % 2.
 * So c of two products side by side are, rounded, the a of a product after them. */
#ifndef DH_RUN_CUDA_KERNELS_MMA_CUH
#define DH_RUN_CUDA_KERNELS_MMA_CUH

#include "run/cuda/kernels/device.cuh"

#ifndef __CUDACC__
#include "run/cuda/host/matrices.h"
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "products of bf16 on tensor cores take compute capability 8.0"
#endif

enum { MMA_ROWS = 16, MMA_COLUMNS = 8, MMA_DEPTH = 16, CHUNK = 8 /* elements of 16 bytes */ };

/* ---- instructions ---------------------------------------------------------------------------- */

#ifdef __CUDACC__
DEVICE unsigned shared_address(const void *at)
{
    return (unsigned)__cvta_generic_to_shared(at);
}

DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool TRANSPOSED> DEVICE void load_matrices(const void *row, unsigned (&r)[4])
{
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
}

/* 16 bytes of zeros where there is nothing; `from` is then not read. */
DEVICE void copy_later(void *to, const void *from, bool there)
{
    const int n = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(n)
                 : "memory");
}

/* The copies since the last call become a group. */
DEVICE void close_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N of the thread's groups are under way: others' need a barrier behind it. */
template <int N> DEVICE void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

DEVICE unsigned pair_of(float first, float second)
{
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
#else
DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    dh_host_mma(a, b0, b1, c);
}

template <bool TRANSPOSED> DEVICE void load_matrices(const void *row, unsigned (&r)[4])
{
    dh_host_ldmatrix(row, TRANSPOSED, r);
}

DEVICE void copy_later(void *to, const void *from, bool there)
{
    dh_host_copy_later(to, there ? from : nullptr);
}

DEVICE void close_copies()
{
    dh_host_close_group();
}

template <int N> DEVICE void wait_copies()
{
    dh_host_wait_groups(N);
}

DEVICE unsigned pair_of(float first, float second)
{
    bf16 a, b;
    narrow(first, &a);
    narrow(second, &b);
    return (unsigned)b.bits << 16 | a.bits;
}
#endif

DEVICE float first_of(unsigned pair)
{
    return __uint_as_float(pair << 16);
}

DEVICE float second_of(unsigned pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* ---- tiles of shared memory ------------------------------------------------------------------ */

template <int ROWS, int W> struct tile {
    static_assert(W % 64 == 0, "rows of a tile are whole runs of 32 banks");
    run_of<bf16, CHUNK> at[ROWS][W / CHUNK];
};

template <int ROWS, int W> DEVICE run_of<bf16, CHUNK> *chunk_at(tile<ROWS, W> &t, int r, int chunk)
{
    return &t.at[r][chunk ^ r % 8];
}

template <int ROWS, int W>
DEVICE const run_of<bf16, CHUNK> *chunk_at(const tile<ROWS, W> &t, int r, int chunk)
{
    return &t.at[r][chunk ^ r % 8];
}

/* Rows and elements of memory that go into a tile; what is missing of it is 0. */
struct tile_source {
    const bf16 *at;
    int64_t step, n_rows, n; /* elements from row to row; how many rows, and elements of each */
    bool chunks;             /* rows begin at multiples of 16 bytes, n is one of 8 */
};

/* By n_threads threads, this the i-th. Copies have to be closed and waited for. */
template <int ROWS, int W>
DEVICE void fill_tile(tile<ROWS, W> &t, const tile_source &from, int i, int n_threads)
{
    for (; i < ROWS * (W / CHUNK); i += n_threads) {
        const int r = i / (W / CHUNK), c = i % (W / CHUNK);
        if (c * CHUNK >= (from.n + MMA_DEPTH - 1) / MMA_DEPTH * MMA_DEPTH) continue; /* unread */
        const int64_t left = r < from.n_rows ? from.n - c * CHUNK : 0;
        const bf16 *x = from.at + (left > 0 ? r * from.step + c * CHUNK : 0);
        run_of<bf16, CHUNK> *to = chunk_at(t, r, c);
        if (from.chunks) {
            copy_later(to, x, left > 0);
            continue;
        }
        for (int k = 0; k < CHUNK; k++) to->at[k] = k < left ? x[k] : bf16{0};
    }
}

/* ---- fragments ------------------------------------------------------------------------------- */

/* A: its element (m, k) is the tile's (m0 + m, k0 + k). TRANSPOSED: (k0 + k, m0 + m). */
template <bool TRANSPOSED, int ROWS, int W>
DEVICE void load_a(const tile<ROWS, W> &t, int m0, int k0, unsigned (&a)[4])
{
    const int lane = (int)lane_id(), inner = lane % 8, low = lane / 8 % 2, high = lane / 16;
    const int m = m0 + low * 8, k = k0 + high * 8;
    load_matrices<TRANSPOSED>(
        TRANSPOSED ? chunk_at(t, k + inner, m / CHUNK) : chunk_at(t, m + inner, k / CHUNK), a);
}

/* Two B side by side, registers b[0], b[1] and b[2], b[3]. Element (k, n) is the tile's
 * (n0 + n, k0 + k). TRANSPOSED: (k0 + k, n0 + n). */
template <bool TRANSPOSED, int ROWS, int W>
DEVICE void load_two_b(const tile<ROWS, W> &t, int n0, int k0, unsigned (&b)[4])
{
    const int lane = (int)lane_id(), inner = lane % 8, low = lane / 8 % 2, high = lane / 16;
    const int n = n0 + high * 8, k = k0 + low * 8;
    load_matrices<TRANSPOSED>(
        TRANSPOSED ? chunk_at(t, k + inner, n / CHUNK) : chunk_at(t, n + inner, k / CHUNK), b);
}

DEVICE int mma_row(int i)
{
    return (int)lane_id() / 4 + i / 2 * 8;
}

DEVICE int mma_column(int i)
{
    return (int)lane_id() % 4 * 2 + i % 2;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Rows of results, `step` elements apart: overwritten, or added to. */
template <class T> struct result {
    T *at;
    int64_t step, n_rows, n_columns;
    bool adds, pairs; /* pairs: two elements can be written at once */
};

/* c: even. */
template <class T>
DEVICE void write_pair(const result<T> &to, int64_t row, int64_t c, float (&x)[2])
{
    if (row >= to.n_rows || c >= to.n_columns) return;
    const int64_t at = row * to.step + c;
    const bool both = c + 1 < to.n_columns;
    if (to.adds) {
        x[0] += widen(to.at[at]);
        if (both) x[1] += widen(to.at[at + 1]);
    }
    if (to.pairs) {
        store(x, &to.at[at]);
        return;
    }
    narrow(x[0], &to.at[at]);
    if (both) narrow(x[1], &to.at[at + 1]);
}

/* ---- tiles that come by ------------------------------------------------------------------------
 */

/* fill(place, stage) begins a place's copies, use(place, stage) has them; next(place) is the place
 * behind. There is none where a place's n is 0. */
template <int STAGES, class PLACE, class NEXT, class FILL, class USE>
DEVICE void walk(PLACE place, NEXT next, FILL fill, USE use)
{
    int stage = 0;
    if (place.n > 0) fill(place, stage);
    close_copies();
    while (place.n > 0) {
        const PLACE behind = next(place);
        if (STAGES > 1) {
            if (behind.n > 0) fill(behind, 1 - stage);
            close_copies();
        }
        wait_copies<STAGES - 1>();
        __syncthreads();
        use(place, stage);
        __syncthreads();
        if (STAGES > 1) {
            stage = 1 - stage;
        } else {
            if (behind.n > 0) fill(behind, stage);
            close_copies();
        }
        place = behind;
    }
    wait_copies<0>(); /* also of a block that sees nothing */
}

/* ---- launches ----------------------------------------------------------------------------------
 */

/* Whether x, and all that lies `step` elements of n_bytes apart in it, begins at multiples of n. */
static inline bool in_runs(int64_t n, size_t n_bytes, const void *x, int64_t step)
{
    return step % n == 0 && (uintptr_t)x % (n_bytes * (size_t)n) == 0;
}

#endif
