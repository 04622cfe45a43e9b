/* Kernels with mistakes, to see that running them on the host finds these. */
#include "cuda_faults.h"

#include "run/cuda/kernels/device.cuh"

enum { THREADS = 64 };

void cuda_fault_seed(uint64_t seed)
{
    dh_host_set_seed(seed);
}

static __global__ void reverse(bool with_barrier, int *x)
{
    DH_SHARED(int, row, [THREADS]);
    row[threadIdx.x] = x[threadIdx.x];
    if (with_barrier) __syncthreads();
    x[threadIdx.x] = row[THREADS - 1 - threadIdx.x];
}

bool cuda_fault_reversed(bool with_barrier)
{
    int x[THREADS];
    bool right = true;
    for (int i = 0; i < THREADS; i++) x[i] = i;
    launch(reverse, 1, THREADS, NULL, with_barrier, x);
    for (int i = 0; i < THREADS; i++) right = right && x[i] == THREADS - 1 - i;
    return right;
}

static __global__ void half_leaves(bool leaves)
{
    if (leaves && threadIdx.x < THREADS / 2) return;
    __syncthreads();
}

static __global__ void lane_leaves()
{
    if (threadIdx.x == 5) return;
    __syncwarp();
}

static __global__ void takes_too_much(float *out)
{
    DH_SHARED(float, room, [12 * 1024 + 1]);
    room[threadIdx.x] = 1;
    out[threadIdx.x] = room[threadIdx.x];
}

void cuda_fault_left_block(void)
{
    launch(half_leaves, 1, THREADS, NULL, true);
}

void cuda_fault_none(void)
{
    launch(half_leaves, 1, THREADS, NULL, false);
}

void cuda_fault_left_warp(void)
{
    launch(lane_leaves, 1, THREADS, NULL);
}

void cuda_fault_shared(void)
{
    float out[THREADS];
    launch(takes_too_much, 1, THREADS, NULL, out);
}
