/* Products of a warpgroup on tensor cores of compute capability 9.0, and the copies that feed them:
 * the instructions wgmma, cp.async.bulk.tensor and mbarrier, for sm_90a alone. Facts are those of
 * the PTX ISA ("Asynchronous Warpgroup Level Matrix Instructions", "Tensor copy", "mbarrier").
 *
 * A panel holds rows of 64 channels, 128 bytes each, as a tensor copy with 128 bytes of swizzle
 * leaves them: chunk c of 16 bytes of row r lies at c ^ (r % 8). A swizzled tile is one panel of
 * all its rows behind another, and begins at a multiple of 1024 bytes. Its descriptors:
 *
 *   by rows      m or n are the tile's rows, k its channels: eight rows are 1024 bytes apart; 16
 *                channels on are 32 bytes on.
 *   by channels  n are the tile's channels, k its rows: 64 channels on is a panel on, eight rows on
 *                are 1024 bytes on.
 * A's fragments and the sums are those of mma.cuh: warp w of a warpgroup has rows 16 w to 16 w + 15
 * of 64.
 *
 * Conventions
 *   products  products_begin, products, products_close, products_wait; then settle what they wrote.
 *             In between, the sums may not be read. The sums, A's registers and the tiles may not
 *             be changed.
 *   parity    A wait names the parity of the phase that it waits for: 0 for a barrier's first. */
#ifndef DH_RUN_CUDA_KERNELS_WGMMA_CUH
#define DH_RUN_CUDA_KERNELS_WGMMA_CUH

#include "run/cuda/kernels/mma.cuh"

#ifdef __CUDACC__
#include <cuda.h>
#else
#include "run/cuda/host/warpgroups.h"
#define __grid_constant__
#endif

/* Whether this pass of the compiler has the instructions; others leave kernels empty, which nobody
 * launches. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum { GROUP_ROWS = 64, GROUP_WARPS = 4, PANEL = 64 /* channels */, ROW_BYTES = 128 };
enum { EIGHT_ROWS = 8 * ROW_BYTES, MOST_SHARED_90 = 227 * 1024 };

template <int ROWS, int W> struct alignas(1024) swizzled {
    static_assert(ROWS % 8 == 0 && W % PANEL == 0, "panels are whole");
    run_of<bf16, CHUNK> at[W / PANEL][ROWS][PANEL / CHUNK];
};

struct mbarrier {
    uint64_t word;
};

/* ---- instructions ---------------------------------------------------------------------------- */

#ifdef __CUDACC__

typedef CUtensorMap tensor_map;

DEVICE void barrier_init(mbarrier *b, unsigned n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n)
                 : "memory");
}

/* Behind all of a block's barrier_init, before the block's own barrier. */
DEVICE void barriers_are_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void barrier_arrive(mbarrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

/* And the phase does not end before so many bytes have been copied. */
DEVICE void barrier_expect(mbarrier *b, unsigned n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(n_bytes)
                 : "memory");
}

DEVICE void barrier_wait(mbarrier *b, unsigned parity)
{
    unsigned ended = 0;
    while (!ended)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
}

/* A box of the map, its first element at these places, of dimensions as in map_of. */
DEVICE void copy_box(void *to, const tensor_map *map, int c, int head, int row, int sample,
                     mbarrier *b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
                 "l"(map), "r"(c), "r"(head), "r"(row), "r"(sample), "r"(shared_address(b))
                 : "memory");
}

DEVICE void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void products_close()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N groups of the warpgroup's products are under way. */
template <int N> DEVICE void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps what follows from using registers before they are there. */
template <int N> DEVICE void settle(float (&sums)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[n][i])::"memory");
}

template <int N> DEVICE void settle(unsigned (&a)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[n][i])::"memory");
}

template <int N> DEVICE void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> DEVICE void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#define FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define EIGHT_FOURS(n)                                                                             \
    FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3), FOUR(n + 4), FOUR(n + 5), FOUR(n + 6),         \
        FOUR(n + 7)
#define REGISTERS_32                                                                               \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64                                                                               \
    REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"   \
                 "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* c = a b^T, or adds it; both by rows. */
DEVICE void wgmma(float (&c)[8][4], uint64_t a, uint64_t b, int adds)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : EIGHT_FOURS(0)
                 : "l"(a), "l"(b), "r"(adds));
}

DEVICE void wgmma(float (&c)[16][4], uint64_t a, uint64_t b, int adds)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" REGISTERS_64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : EIGHT_FOURS(0), EIGHT_FOURS(8)
                 : "l"(a), "l"(b), "r"(adds));
}

/* c += a b; b by channels. */
DEVICE void wgmma(float (&c)[8][4], const unsigned (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" REGISTERS_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : EIGHT_FOURS(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE void wgmma(float (&c)[16][4], const unsigned (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" REGISTERS_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : EIGHT_FOURS(0), EIGHT_FOURS(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#else

typedef dh_host_tensor_map tensor_map;

DEVICE unsigned shared_address(const void *at)
{
    return dh_host_shared_address(at);
}

DEVICE void barrier_init(mbarrier *b, unsigned n)
{
    dh_host_barrier_init(&b->word, n);
}

DEVICE void barriers_are_made()
{
}

DEVICE void barrier_arrive(mbarrier *b)
{
    dh_host_barrier_arrive(&b->word, 0);
}

DEVICE void barrier_expect(mbarrier *b, unsigned n_bytes)
{
    dh_host_barrier_arrive(&b->word, n_bytes);
}

DEVICE void barrier_wait(mbarrier *b, unsigned parity)
{
    dh_host_barrier_wait(&b->word, parity);
}

DEVICE void copy_box(void *to, const tensor_map *map, int c, int head, int row, int sample,
                     mbarrier *b)
{
    const int at[4] = {c, head, row, sample};
    dh_host_copy_box(to, *map, at, &b->word);
}

DEVICE void products_begin()
{
    dh_host_wgmma_fence();
}

DEVICE void products_close()
{
    dh_host_wgmma_commit();
}

template <int N> DEVICE void products_wait()
{
    dh_host_wgmma_wait(N);
}

template <class T, int N> DEVICE void settle(T (&)[N][4])
{
}

template <int N> DEVICE void more_registers()
{
}

template <int N> DEVICE void fewer_registers()
{
}

template <int N> DEVICE void wgmma(float (&c)[N][4], uint64_t a, uint64_t b, int adds)
{
    const dh_host_wgmma_call call = {c[0], nullptr, a, b, N * 8, adds != 0};
    dh_host_wgmma(call);
}

template <int N> DEVICE void wgmma(float (&c)[N][4], const unsigned (&a)[4], uint64_t b)
{
    const dh_host_wgmma_call call = {c[0], a, 0, b, N * 8, true};
    dh_host_wgmma(call);
}

#endif

/* ---- descriptors -------------------------------------------------------------------------------
 */

/* Swizzle of 128 bytes; steps as above. `leading` is not looked at by rows. */
DEVICE uint64_t descriptor(const void *at, unsigned leading, unsigned stride)
{
    const uint64_t address = shared_address(at);
    return (address & 0x3ffff) >> 4 | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

/* 16 channels from k on, of rows from r on; r is a multiple of 8. */
template <int ROWS, int W> DEVICE uint64_t by_rows(const swizzled<ROWS, W> &t, int r, int k)
{
    const unsigned char *at = reinterpret_cast<const unsigned char *>(&t.at[k / PANEL][r][0]);
    return descriptor(at + k % PANEL * (int)sizeof(bf16), 16, EIGHT_ROWS);
}

/* All channels, of 16 rows from r on. */
template <int ROWS, int W> DEVICE uint64_t by_channels(const swizzled<ROWS, W> &t, int r)
{
    return descriptor(&t.at[0][r][0], ROWS * ROW_BYTES, EIGHT_ROWS);
}

/* ---- copies ------------------------------------------------------------------------------------
 */

/* All of a tile from a row on; its bytes have to be expected. */
template <int ROWS, int W>
DEVICE void copy_tile(swizzled<ROWS, W> &t, const tensor_map *map, int64_t head, int64_t row,
                      int64_t sample, mbarrier *b)
{
    for (int n = 0; n < W / PANEL; n++)
        copy_box(&t.at[n], map, n * PANEL, (int)head, (int)row, (int)sample, b);
}

/* Which of a ring of tiles is next, and the parity of the phase in which it is filled. */
template <int STAGES> struct turn {
    int stage;
    unsigned parity;
};

template <int STAGES> DEVICE void go_on(turn<STAGES> &t)
{
    if (++t.stage < STAGES) return;
    t.stage = 0;
    t.parity ^= 1;
}

/* ---- maps --------------------------------------------------------------------------------------
 */

/* Heads of D channels in rows of samples, in elements as in dh_attn_shape. */
struct heads_in_rows {
    const void *at;
    int64_t D, H, T, B, row, batch;
};

static inline bool can_be_mapped(const heads_in_rows &x)
{
    return is_aligned(x.at) && x.D % CHUNK == 0 && x.row % CHUNK == 0 &&
           (x.B == 1 || x.batch % CHUNK == 0);
}

/* The map from which boxes of a panel's channels and so many rows of a head are copied; rows that
 * are not there are zeros. False: the driver has no such maps. */
#ifdef __CUDACC__
static bool map_of(tensor_map *map, const heads_in_rows &x, int rows)
{
    typedef decltype(&cuTensorMapEncodeTiled) encode_function;
    static void *found = []() -> void * {
        void *f = NULL;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                             &result) == cudaSuccess &&
            result == cudaDriverEntryPointSuccess)
            return f;
        (void)cudaGetLastError();
        return NULL;
    }();
    const int64_t batch = x.B == 1 ? x.T * x.row : x.batch, size = sizeof(bf16);
    const cuuint64_t dims[4] = {(cuuint64_t)x.D, (cuuint64_t)x.H, (cuuint64_t)x.T, (cuuint64_t)x.B};
    const cuuint64_t steps[3] = {(cuuint64_t)(x.D * size), (cuuint64_t)(x.row * size),
                                 (cuuint64_t)(batch * size)};
    const cuuint32_t box[4] = {PANEL, 1, (cuuint32_t)rows, 1}, every[4] = {1, 1, 1, 1};
    return found && reinterpret_cast<encode_function>(found)(
                        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(x.at), dims,
                        steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#else
static bool map_of(tensor_map *map, const heads_in_rows &x, int rows)
{
    const int64_t batch = x.B == 1 ? x.T * x.row : x.batch, size = sizeof(bf16);
    *map = {
        x.at, {x.D, x.H, x.T, x.B}, {x.D * size, x.row * size, batch * size}, {PANEL, 1, rows, 1}};
    return dh_host_map_is_good(*map);
}
#endif

#endif
