/* Instructions of a warp on matrices, for the host: mma.m16n8k16 of bf16 and ldmatrix. The lanes'
 * registers are laid out as the PTX ISA says ("Matrix fragments for mma.m16n8k16 with floating
 * point type", "ldmatrix"). C++; included by kernels/mma.cuh alone, and by tests. */
#ifndef DH_RUN_CUDA_HOST_MATRICES_H
#define DH_RUN_CUDA_HOST_MATRICES_H

#include <cstdint>

/* c += A B of bf16, two a register: A is 16 x 16, B and c are 16 x 8. Sums in the order of k. */
void dh_host_mma(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&c)[4]);
/* Four matrices of 8 rows of 16 bytes, whose addresses lanes 8 i to 8 i + 7 bring. The rows of one
 * have to lie in different banks. */
void dh_host_ldmatrix(const void *row, bool transposed, unsigned (&r)[4]);

/* ---- for tests --------------------------------------------------------------------------- */

/* Products of all threads so far. */
int64_t dh_host_n_mma();
/* Registers that change places from now on, as if a kernel had the layout wrong. */
enum dh_host_twist { DH_TWIST_NONE, DH_TWIST_A, DH_TWIST_B, DH_TWIST_C };
void dh_host_twist_mma(dh_host_twist twist);

#endif
