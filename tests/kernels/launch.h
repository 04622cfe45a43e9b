/* Launches of CUDA's kernels by suites, on no stream. What is called has a name, for those who read
 * of a failure elsewhere. On a GPU (DH_TEST_ON_GPU) each is waited for, and arrays of the suites
 * and what their functions have on the stack lie in memory that a GPU reads (gpu_memory.h). */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdlib.h>

#include "keep.h"

#ifdef DH_TEST_ON_GPU
#include "gpu_memory.h"
#define malloc(n) gpu_malloc(n)
#define calloc(n, size) gpu_calloc(n, size)
#define aligned_alloc(alignment, n) gpu_malloc(n)
#define free(at) gpu_free(at)
#else
static inline void gpu_await(void)
{
}
#endif

#define LAUNCH(f, ...) (keep_call(#f, #__VA_ARGS__), f(NULL, __VA_ARGS__), gpu_await())

#endif
