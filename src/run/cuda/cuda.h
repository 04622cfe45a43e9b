/* Inside of the cuda device: what its files share. */
#ifndef DH_RUN_CUDA_CUDA_H
#define DH_RUN_CUDA_CUDA_H

#include "run/cuda/glue.h"
#include "run/cuda/runtime.h"

/* Whoever calls sets this GPU for his thread first: CUDA's is one of each thread. */
typedef struct cuda_slab {
    dh_slab base;
    int gpu;
    struct cuda_bounce *bounce;
} cuda_slab;

static inline int cuda_gpu_of(const dh_slab *slab)
{
    return ((const cuda_slab *)slab)->gpu;
}

/* streams.c */
dh_status cuda_streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                              const dh_streams_spec *spec, dh_streams **streams);
void cuda_streams_destroy(dh_streams *streams);
dh_status cuda_issue(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command);
dh_status cuda_run(dh_ctx *ctx, dh_streams *streams, bool single_steps);
/* capture.c */
dh_status cuda_run_captured(dh_ctx *ctx, dh_streams *streams);
/* streams.c */
int64_t cuda_began_ns(const dh_streams *streams, uint32_t id);
int64_t cuda_event_ns(const dh_streams *streams, uint32_t event);
dh_status cuda_first_nonfinite(dh_ctx *ctx, const dh_streams *streams, dh_dtype dtype, int64_t n,
                               const void *at, int64_t *first);

/* slab.c */
dh_status cuda_slab_create(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab);
void cuda_slab_destroy(dh_slab *slab);
dh_status cuda_slab_write(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                          uint64_t n_bytes);
dh_status cuda_slab_read(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                         uint64_t n_bytes);

#endif
