/* Instructions that only compute capability 9.0 has, for the host, as the PTX ISA describes them:
 * barriers in shared memory (mbarrier), tensor copies that arrive on them, and products of a
 * warpgroup (wgmma).
 *
 * Random draws decide whether an operation under way ends at once or late. A late tensor copy ends
 * at any time before its barrier's phase ends, in any order. Late products end when they are waited
 * for. A kernel that reads too early, or lets a tile be filled too early, therefore gets other
 * numbers. C++; included by kernels/wgmma.cuh alone, and by tests. */
#ifndef DH_RUN_CUDA_HOST_WARPGROUPS_H
#define DH_RUN_CUDA_HOST_WARPGROUPS_H

#include <cstdint>

#include "run/cuda/host/matrices.h"

/* Bytes into the shared memory that the launch asked for, which begins at 0 here. */
unsigned dh_host_shared_address(const void *at);

/* ---- mbarrier: eight bytes of shared memory -------------------------------------------------- */

/* A phase ends when n threads have arrived and all bytes that they told of have. */
void dh_host_barrier_init(uint64_t *barrier, unsigned n);
/* n_bytes more are to arrive in this phase. */
void dh_host_barrier_arrive(uint64_t *barrier, unsigned n_bytes);
/* Until the phase of this parity has ended: at once for the one before the current. */
void dh_host_barrier_wait(uint64_t *barrier, unsigned parity);

/* ---- cp.async.bulk.tensor: four dimensions of bf16, swizzle of 128 bytes ----------------------- */

/* n: elements of each dimension. step: bytes from one element to the next, from the second
 * dimension on. box: elements of a box. */
struct dh_host_tensor_map {
    const void *at;
    int64_t n[4], step[3];
    int box[4];
};

/* Whether CUDA would take it: addresses and steps, multiples of 16 bytes; a row of a box has as
 * many bytes as are swizzled. */
bool dh_host_map_is_good(const dh_host_tensor_map &map);
/* A box's elements, zeros where there are none, to a multiple of 1024 bytes; all its bytes arrive
 * on the barrier. */
void dh_host_copy_box(void *to, const dh_host_tensor_map &map, const int (&first)[4],
                      uint64_t *barrier);

/* ---- wgmma.mma_async.m64nNk16.f32.bf16.bf16 ---------------------------------------------------- */

/* c [N / 2] of a thread, its registers of A (NULL: `a` describes it, by rows). B is by rows where A
 * is in shared memory, by channels where it is in registers, as kernels here have them. */
struct dh_host_wgmma_call {
    float *c;
    const unsigned *a_registers;
    uint64_t a, b;
    int n;
    bool adds; /* false: c is overwritten */
};

void dh_host_wgmma(const dh_host_wgmma_call &call);
/* Before the first product behind a wait. */
void dh_host_wgmma_fence();
/* The products since the last call become a group; until at most n groups are under way. */
void dh_host_wgmma_commit();
void dh_host_wgmma_wait(unsigned n);

/* ---- for tests --------------------------------------------------------------------------------- */

/* Products of all warps so far. */
int64_t dh_host_n_wgmma();
/* From now on kernels have this fault: registers of A or of the sums change places, or B is not
 * swizzled. */
void dh_host_twist_wgmma(dh_host_twist twist);

#endif
