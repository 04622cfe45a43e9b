/* Kernels that multiply a matrix or two on tensor cores (cuda_matrices.cc), run as fibres, and what
 * tests ask of the host's instructions. */
#ifndef CUDA_MATRICES_H
#define CUDA_MATRICES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* c [16,8] += a [16,16] b [16,8] of bf16: one instruction, each lane's registers filled element by
 * element as the PTX ISA numbers them. */
void cuda_mma_once(const uint16_t *a, const uint16_t *b, float *c);
/* c [32,48] = A [32,K] B [K,48] through tiles of shared memory by the kernels' own functions. A
 * lies as it is, or transposed, as [K,32]; B as [48,K], or transposed, as [K,48]. by_element:
 * without copies of 16 bytes, which take rows of a multiple of 8. K 64 at most. */
typedef struct cuda_tiles_case {
    bool a_transposed, b_transposed, by_element;
    int64_t K;
} cuda_tiles_case;
void cuda_mma_tiles(const cuda_tiles_case *c, const uint16_t *a, const uint16_t *b, float *out);

int64_t cuda_mma_count(void);
/* Whether there was a product since then is what is wanted; a GPU does not count them. */
#ifdef DH_TEST_ON_GPU
#define cuda_mma_count() ((int64_t)0)
#define multiplied_since(before, wanted) ((void)(before), true)
#else
#define multiplied_since(before, wanted) ((cuda_mma_count() > (before)) == (wanted))
#endif
/* 0: none; 1, 2, 3: two registers of A, B, C change places in every product from now on. */
void cuda_mma_twist(int which);

/* 32 numbers that are copied behind the threads' back arrive at others; whether they did. */
bool cuda_copies_arrive(bool waits);
/* These end the process: rows in the same banks, a product without all lanes, lanes at different
 * instructions, more shared memory than the launch has, or than a GPU has. */
void cuda_fault_banks(void);
void cuda_fault_lane_missing(void);
void cuda_fault_two_instructions(void);
void cuda_fault_launched_less(void);
void cuda_fault_launched_too_much(void);

/* 1, 2, 3: registers of A change places, B is not swizzled, sums change places, in every product of
 * a warpgroup from now on; 0: none. */
void cuda_wgmma_twist(int which);
/* A warpgroup multiplies two tiles that tensor copies bring; whether the sums are right. Not
 * waiting: it looks at them before they are there. */
bool cuda_wgmma_early(bool waits);
/* These end the process: a barrier that was not made, more arrivals than it has, one that does not
 * come, a product without a fence, a block that ends with products or with copies under way. The
 * last is without fault. */
void cuda_fault_unmade_barrier(void);
void cuda_fault_too_many_arrive(void);
void cuda_fault_never_arrives(void);
void cuda_fault_unfenced(void);
void cuda_fault_unwaited(void);
void cuda_fault_copy_left(void);
void cuda_fault_no_warpgroup_fault(void);

#ifdef __cplusplus
}
#endif
#endif
