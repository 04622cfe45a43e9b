/* Kernels with mistakes (cuda_faults.cc), run as fibres. */
#ifndef CUDA_FAULTS_H
#define CUDA_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void cuda_fault_seed(uint64_t seed); /* of the order of a block's threads */
/* A block reverses an array through shared memory; whether the result is right. */
bool cuda_fault_reversed(bool with_barrier);
/* These end the process: threads that leave before a barrier of their block, or of their warp, and
 * more shared memory than a block has. The last is without fault. */
void cuda_fault_left_block(void);
void cuda_fault_left_warp(void);
void cuda_fault_shared(void);
void cuda_fault_none(void);

#ifdef __cplusplus
}
#endif
#endif
