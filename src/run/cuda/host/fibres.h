/* CUDA kernels on the host, for tests. A block's threads are fibres. A grid's blocks run one after
 * another, on the thread of their stream (runtime.c). Without a stream it is the calling thread.
 *
 * A fibre runs until it waits for its warp or its block, or ends. Between two such points the order
 * of a block's fibres is drawn anew each time, so a missing barrier shows in results. A barrier
 * that some threads do not reach ends the process and says so. Shared memory holds NaN patterns
 * when a block begins. Not shown: effects of warps on each other's memory at the same time, and
 * speed.
 *
 * DHELIX_FIBRE_SEED=n gives other orders. C++; included by kernels/device.cuh alone. */
#ifndef DH_RUN_CUDA_HOST_FIBRES_H
#define DH_RUN_CUDA_HOST_FIBRES_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>

struct dh_host_index {
    unsigned x, y, z;
};

/* Indices of the running fibre. Not thread_local, whose every use asks whether it has been made. */
extern __thread dh_host_index threadIdx, blockIdx, blockDim, gridDim;

/* A launch. Each block has n_threads, a multiple of 32. n_shared is shared memory in bytes, in
 * addition to what kernels declare. It is at most 227 KiB, as from compute capability 9.0 on.
 * Kernels for 8.0 assert 99 KiB. */
struct dh_host_grid {
    unsigned n_blocks, n_threads;
    size_t n_shared;
};

/* Calls body(user) as every thread. */
void dh_host_run_blocks(const dh_host_grid &grid, void (*body)(const void *), const void *user);
/* The same on a stream, after the work that is already on it. stream NULL: now, on the calling
 * thread. n_bytes of user are copied.
 * errors    reported by cudaGetLastError */
void dh_host_launch(struct CUstream_st *stream, const dh_host_grid &grid,
                    void (*body)(const void *), const void *user, size_t n_bytes);
/* The same memory for every thread of a block that asks for as much in the same order. At most
 * 48 KiB a block together, which is what a kernel may declare on a GPU. */
void *dh_host_shared(size_t n_bytes);
/* The shared memory that the launch asked for, no less than n_bytes. */
void *dh_host_launched_shared(size_t n_bytes);
void dh_host_sync_block();
void dh_host_sync_warp();
/* Eight bytes of each lane of the running warp, written before, after it has been synchronised. */
uint64_t dh_host_exchange(uint64_t mine, unsigned from_lane);
/* The data `mine` of each lane of the running warp, in rows of DH_HOST_LANE_BYTES, once all lanes
 * have come. The last to come calls `last` on them before. They stay until the lane's next call
 * but one. */
enum { DH_HOST_LANE_BYTES = 64 };
void *dh_host_meet(const void *mine, size_t n_bytes, void (*last)(void *lanes));
/* cp.async: 16 bytes, zeros if `from` is NULL, that arrive now or when they are waited for. Groups
 * of them: wait until at most n of the running thread's are under way. */
void dh_host_copy_later(void *to, const void *from);
void dh_host_close_group();
void dh_host_wait_groups(unsigned n);
/* The device's clock, and a short sleep. */
int64_t dh_host_clock_ns();
void dh_host_nap();
/* Orders of the runs that follow; 0: as the environment says. */
void dh_host_set_seed(uint64_t seed);

/* ---- words of CUDA ---------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define DH_SHARED(type, name, dims)                                                                \
    typedef type name##_shared dims;                                                               \
    name##_shared &name = *static_cast<name##_shared *>(dh_host_shared(sizeof(name##_shared)))

#define DH_LAUNCHED_SHARED(type, name)                                                             \
    type &name = *static_cast<type *>(dh_host_launched_shared(sizeof(type)))

static inline void __syncthreads()
{
    dh_host_sync_block();
}

static inline void __syncwarp()
{
    dh_host_sync_warp();
}

/* All of these take all lanes of a warp. */
template <class T> static inline T dh_host_from_lane(T x, unsigned lane)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves eight bytes at most");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = dh_host_exchange(bits, lane);
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <class T> static inline T __shfl_xor_sync(unsigned, T x, unsigned mask)
{
    return dh_host_from_lane(x, (threadIdx.x ^ mask) % 32);
}

template <class T> static inline T __shfl_sync(unsigned, T x, unsigned lane)
{
    return dh_host_from_lane(x, lane % 32);
}

static inline unsigned __ballot_sync(unsigned, bool yes)
{
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        all |= (unsigned)dh_host_from_lane(yes, lane) << lane;
    return all;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline float __uint_as_float(unsigned x)
{
    float f;
    memcpy(&f, &x, sizeof f);
    return f;
}

static inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline long long __double_as_longlong(double x)
{
    long long l;
    memcpy(&l, &x, sizeof l);
    return l;
}

/* Of kernels that run at the same time, as blocks of one do not. */
static inline int atomicAdd(int *at, int x)
{
    return __atomic_fetch_add(at, x, __ATOMIC_RELAXED);
}

static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long x)
{
    const unsigned long long before = *at;
    if (x < before) *at = x;
    return before;
}

#endif
