/* Common to the GEMMs of experts' rows, of float32 (grouped.cu) and on tensor cores
 * (grouped_mma.cu). As many blocks are launched as there could be tiles, and each finds
 * its own. */
#ifndef DH_RUN_CUDA_KERNELS_GROUPED_CUH
#define DH_RUN_CUDA_KERNELS_GROUPED_CUH

#include "run/cuda/kernels/device.cuh"

/* dh_cuda_grouped of bf16. */
void dh_cuda_grouped_mma(dh_cuda_stream stream, const dh_grouped_desc *d, int64_t n_runs,
                         const int64_t *offsets, const void *a, const void *b, void *c);

/* Rows [begin, end) of a run; expert -1: of none, behind the last. */
struct row_tile {
    int64_t begin, end, expert;
};

/* The tile-th of so many rows each. */
DEVICE row_tile find_tile(int64_t tile, int64_t most, int64_t n_runs, const int64_t *offsets,
                          int64_t n_rows, int64_t E)
{
    for (int64_t s = 0; s <= n_runs; s++) {
        const int64_t begin = offsets[s], end = s < n_runs ? offsets[s + 1] : n_rows;
        const int64_t n_tiles = (end - begin + most - 1) / most;
        if (tile < n_tiles) {
            row_tile t = {begin + tile * most, end, s < n_runs ? s % E : -1};
            return t;
        }
        tile -= n_tiles;
    }
    row_tile none = {0, 0, -1};
    return none;
}

/* As many as runs of R rows together can have, and what lies behind the last. */
static inline int64_t most_row_tiles(int64_t R, int64_t n_runs, int64_t most)
{
    return R / most + n_runs + 1;
}

#endif
