/* Common parts of all kernels here: element types, runs of elements, sums over a block, dropout
 * masks, launches. The same source is compiled by nvcc and, for tests, by the host's compiler
 * (host/fibres.h).
 *
 * Conventions
 *   threads   Blocks of whole warps; a warp's lanes reach every shuffle together.
 *   sums      In an order that shapes alone decide, so that a call repeated has the same bits.
 *   stream    Every launch names one; nothing here allocates, waits or copies. */
#ifndef DH_RUN_CUDA_KERNELS_DEVICE_CUH
#define DH_RUN_CUDA_KERNELS_DEVICE_CUH

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define DH_SHARED(type, name, dims) __shared__ type name dims
/* The shared memory that the launch asked for (launch_with). */
#define DH_LAUNCHED_SHARED(type, name)                                                             \
    extern __shared__ __align__(1024) unsigned char dh_launched_shared[];                           \
    type &name = *reinterpret_cast<type *>(dh_launched_shared)
#define UNROLL _Pragma("unroll")
#else
#include "run/cuda/host/fibres.h"
#define UNROLL
#endif

#include <cmath>
#include <cstdint>

#include "run/cuda/kernels.h"

#define DEVICE static __device__ __forceinline__

enum { WARP = 32, MOST_THREADS = 1024 };
static const unsigned ALL_LANES = 0xffffffffu;

/* ---- launches ------------------------------------------------------------------------------- */

/* Shared memory that a block can have on every GPU from compute capability 8.0 on. */
static const size_t MOST_SHARED = 99 * 1024;

/* A kernel with shared memory beside what it declares. */
#ifdef __CUDACC__
template <class... P, class... A>
static void launch_with(size_t n_shared, void (*kernel)(P...), int64_t n_blocks, int64_t n_threads,
                        dh_cuda_stream stream, A... args)
{
    if (n_blocks <= 0) return;
    if (n_shared > 0)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)n_shared);
    kernel<<<(unsigned)n_blocks, (unsigned)n_threads, n_shared, stream>>>(static_cast<P>(args)...);
}
#else
template <class F> static void dh_host_call(const void *f)
{
    (*static_cast<const F *>(f))();
}

template <class... P, class... A>
static void launch_with(size_t n_shared, void (*kernel)(P...), int64_t n_blocks, int64_t n_threads,
                        dh_cuda_stream stream, A... args)
{
    auto thread = [=] { kernel(static_cast<P>(args)...); };
    const dh_host_grid grid = {(unsigned)n_blocks, (unsigned)n_threads, n_shared};
    dh_host_launch(stream, grid, dh_host_call<decltype(thread)>, &thread, sizeof thread);
}
#endif

template <class... P, class... A>
static void launch(void (*kernel)(P...), int64_t n_blocks, int64_t n_threads, dh_cuda_stream stream,
                   A... args)
{
    launch_with(0, kernel, n_blocks, n_threads, stream, args...);
}

DEVICE int64_t first_of_grid()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

DEVICE int64_t grid_step()
{
    return (int64_t)gridDim.x * blockDim.x;
}

static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* TUNING: a guess until one has run: blocks of 256, at most as many as fill 132 processors eight
 * times over; threads then take several runs in turn. */
static const int64_t FLAT_THREADS = 256, FLAT_BLOCKS = 132 * 8;

static inline int64_t flat_blocks(int64_t n_items)
{
    const int64_t n = div_up(n_items, FLAT_THREADS);
    return n < FLAT_BLOCKS ? n : FLAT_BLOCKS;
}

/* Threads for a row of n items: whole warps, 256 at most. */
static inline int64_t row_threads(int64_t n_items)
{
    const int64_t n = div_up(n_items, WARP) * WARP;
    return n < 256 ? n : 256;
}

/* ---- elements: float, bf16 ------------------------------------------------------------------- */

struct bf16 {
    uint16_t bits;
};

DEVICE float widen(float x)
{
    return x;
}

DEVICE float widen(bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

DEVICE void narrow(float x, float *y)
{
    *y = x;
}

/* Round to nearest even, NaN stays NaN: dh_f32_to_bf16's bits. */
DEVICE void narrow(float x, bf16 *y)
{
    const unsigned bits = __float_as_uint(x);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    y->bits = (uint16_t)(is_nan ? (bits >> 16) | 0x40u : rounded);
}

DEVICE bool is_finite(double x)
{
    return ((uint64_t)__double_as_longlong(x) >> 52 & 0x7ff) != 0x7ff;
}

/* V elements that are moved at once; V is 1, or as many as 16 bytes hold. */
template <class T, int V> struct alignas(sizeof(T) * V) run_of {
    T at[V];
};

template <class T, int V> DEVICE void load(const T *from, float (&x)[V])
{
    const run_of<T, V> r = *reinterpret_cast<const run_of<T, V> *>(from);
    for (int i = 0; i < V; i++) x[i] = widen(r.at[i]);
}

template <class T, int V> DEVICE void store(const float (&x)[V], T *to)
{
    run_of<T, V> r;
    for (int i = 0; i < V; i++) narrow(x[i], &r.at[i]);
    *reinterpret_cast<run_of<T, V> *>(to) = r;
}

/* V of the float32 that stand beside elements (weights of a norm, biases). */
template <int V> DEVICE void load_floats(const float *from, float (&x)[V])
{
    const int piece = V < 4 ? V : 4;
    for (int i = 0; i < V; i += piece) {
        const run_of<float, piece> r = *reinterpret_cast<const run_of<float, piece> *>(from + i);
        for (int k = 0; k < piece; k++) x[i + k] = r.at[k];
    }
}

static inline bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

template <class... P> static bool are_aligned(P... p)
{
    bool all = true;
    const bool each[] = {is_aligned(p)...};
    for (bool one : each) all = all && one;
    return all;
}

template <class T, int V> struct with_type {
    typedef T type;
    enum { width = V };
};

/* Calls f(with_type) for the elements' type, and runs of 16 bytes where rows of n elements and all
 * addresses allow it. */
template <class F> static void by_type(dh_dtype dtype, bool wide, int64_t n, F f)
{
    if (dtype == DH_BF16) {
        if (wide && n % 8 == 0)
            f(with_type<bf16, 8>());
        else
            f(with_type<bf16, 1>());
    } else if (wide && n % 4 == 0) {
        f(with_type<float, 4>());
    } else {
        f(with_type<float, 1>());
    }
}

/* The same, element by element. */
template <class F> static void by_type(dh_dtype dtype, F f)
{
    by_type(dtype, false, 1, f);
}

/* ---- sums over threads ------------------------------------------------------------------------
 */

DEVICE unsigned lane_id()
{
    return threadIdx.x % WARP;
}

DEVICE unsigned warp_id()
{
    return threadIdx.x / WARP;
}

template <class T> DEVICE T warp_sum(T x)
{
    for (unsigned step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* Sum over all threads of a block, the same in each. `room`: shared, one for each warp; it may be
 * used again by the next call. */
template <class T> DEVICE T block_sum(T x, T *room)
{
    x = warp_sum(x);
    if (lane_id() == 0) room[warp_id()] = x;
    __syncthreads();
    T total = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) total += room[w];
    __syncthreads();
    return total;
}

/* ---- what other kernels change meanwhile -----------------------------------------------------
 */

#ifdef __CUDACC__
DEVICE int peek(const int *at)
{
    return *(const volatile int *)at;
}

/* %globaltimer, which moves on by about a microsecond at a time. */
DEVICE int64_t clock_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return (int64_t)t;
}

DEVICE void nap()
{
    __nanosleep(500);
}
#else
DEVICE int peek(const int *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

DEVICE int64_t clock_ns()
{
    return dh_host_clock_ns();
}

DEVICE void nap()
{
    dh_host_nap();
}
#endif

/* ---- random bits: src/base/base.h's generator ----------------------------------------------- */

DEVICE uint64_t mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Philox4x32-10 (Salmon et al. 2011). */
DEVICE void philox(uint64_t key, const uint32_t ctr[4], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Dropout with the masks of the cpu's kernels. Columns go by stripes of 64. One Philox block, that
 * of `lane` below 16, decides columns lane + 16 j of its stripe, j from 0 to 3. */
enum { STRIPE = 64, STRIPE_LANES = 16, STRIPE_WORDS = 4 };

/* The rule of a probability, made on the host. */
struct drop_rule {
    uint32_t threshold; /* an element is kept when the upper 24 of its bits reach it */
    float scale;
    uint32_t site;
    const dh_scalars *scalars; /* step and seed */
    const int64_t *row_sample;
    const int32_t *row_pos;
};

static inline drop_rule drop_rule_of(const dh_cuda_dropout *drop)
{
    drop_rule rule = {0, 1, 0, NULL, NULL, NULL};
    if (!drop || drop->prob <= 0) return rule;
    rule.threshold = (uint32_t)std::ceil((double)drop->prob * 16777216.0);
    rule.scale = 1.0f / (1.0f - drop->prob);
    rule.site = drop->site;
    rule.scalars = drop->scalars;
    rule.row_sample = drop->row_sample;
    rule.row_pos = drop->row_pos;
    return rule;
}

/* Factors, 0 or the scale, of the four columns of a lane in a stripe of row n. */
DEVICE void drop_factors(const drop_rule &rule, int64_t n, int64_t stripe, int lane,
                         float factor[STRIPE_WORDS])
{
    const uint64_t key =
        mix64(mix64(mix64(rule.scalars->seed) + (uint64_t)rule.scalars->step) + rule.site);
    const uint64_t sample = (uint64_t)rule.row_sample[n];
    const uint32_t ctr[4] = {(uint32_t)(stripe * STRIPE_LANES + lane), (uint32_t)rule.row_pos[n],
                             (uint32_t)sample, (uint32_t)(sample >> 32)};
    uint32_t word[STRIPE_WORDS];
    philox(key, ctr, word);
    for (int j = 0; j < STRIPE_WORDS; j++)
        factor[j] = (word[j] >> 8) >= rule.threshold ? rule.scale : 0.0f;
}

#endif
