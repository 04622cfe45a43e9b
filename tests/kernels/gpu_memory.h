/* Memory of the host that a GPU reads and writes at the same address, for suites whose arrays lie
 * anywhere: pinned, a heap and a stack in it. */
#ifndef GPU_MEMORY_H
#define GPU_MEMORY_H

#include <stddef.h>

void *
gpu_malloc(size_t n_bytes); /* aligned to 64 bytes; never NULL: without room the process ends */
void *gpu_calloc(size_t n, size_t size);
void gpu_free(void *at); /* also what malloc gave */

/* Until the GPU has done what it was told. An error ends the process, naming the call (keep.h):
 * nothing can be run behind it. */
void gpu_await(void);

/* run() on a thread whose stack lies there. */
int gpu_run_pinned(int (*run)(void));

#endif
