/* Rows and columns of bf16 as numbers of 8 bits with a power of two each, laid out as cuBLASLt
 * multiplies them: what is summed over lies side by side, so columns come out transposed, and is
 * filled up with zeros to whole runs of 16 bytes. Reference: dh_k_fp8_rows, dh_k_fp8_columns.
 *
 * Both read their numbers twice, first for the greatest. A block has a row, or 32 columns: these it
 * passes through shared memory, so that reads and writes are of neighbours both times. */
#define DH_FP8_FN static __device__ __forceinline__
#include "run/cuda/kernels/device.cuh"

#include "run/cpu/fp8.h"

enum { TILE = 32, TILE_WARPS = 8 };

DEVICE float greater(float a, float b)
{
    return b > a ? b : a;
}

DEVICE float warp_max(float x)
{
    for (unsigned step = WARP / 2; step > 0; step /= 2)
        x = greater(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

DEVICE uint8_t code_of(dh_fp8_grid grid, bf16 x, int scale)
{
    return dh_fp8_code(grid, dh_fp8_round(grid, widen(x) * dh_power_of_two(scale)));
}

__global__ void fp8_rows(dh_fp8_format format, int64_t C, int64_t row, const bf16 *x, uint8_t *y,
                         float *scales)
{
    DH_SHARED(float, room, [MOST_THREADS / WARP]);
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
    const int64_t n = blockIdx.x;
    float most = 0;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        most = greater(most, fabsf(widen(x[n * C + c])));
    most = warp_max(most);
    if (lane_id() == 0) room[warp_id()] = most;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / WARP; w++) most = greater(most, room[w]);
    const int scale = dh_fp8_scale(grid, most);
    for (int64_t c = threadIdx.x; c < row; c += blockDim.x)
        y[n * row + c] = c < C ? code_of(grid, x[n * C + c], scale) : 0;
    if (threadIdx.x == 0) scales[n] = dh_power_of_two(-scale);
}

/* The scales of a block's columns, one a lane of every warp. */
DEVICE int column_scale(dh_fp8_grid grid, int64_t N, int64_t C, const bf16 *x, float *room)
{
    const int64_t c = (int64_t)blockIdx.x * TILE + lane_id();
    float most = 0;
    for (int64_t n = warp_id(); c < C && n < N; n += TILE_WARPS)
        most = greater(most, fabsf(widen(x[n * C + c])));
    room[warp_id() * TILE + lane_id()] = most;
    __syncthreads();
    for (unsigned w = 0; w < TILE_WARPS; w++) most = greater(most, room[w * TILE + lane_id()]);
    return dh_fp8_scale(grid, most);
}

__global__ void fp8_columns(dh_fp8_format format, int64_t N, int64_t C, int64_t row, const bf16 *x,
                            uint8_t *y, float *scales)
{
    DH_SHARED(float, room, [TILE_WARPS * TILE]);
    DH_SHARED(uint8_t, tile, [TILE * (TILE + 1)]);
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
    const int64_t c0 = (int64_t)blockIdx.x * TILE, c = c0 + lane_id();
    const int scale = column_scale(grid, N, C, x, room);
    if (warp_id() == 0 && c < C) scales[c] = dh_power_of_two(-scale);
    for (int64_t n0 = 0; n0 < row; n0 += TILE) {
        for (unsigned r = warp_id(); r < TILE; r += TILE_WARPS) {
            const int64_t n = n0 + r;
            const bool is = c < C && n < N;
            tile[lane_id() * (TILE + 1) + r] = is ? code_of(grid, x[n * C + c], scale) : 0;
        }
        __syncthreads();
        for (unsigned r = warp_id(); r < TILE; r += TILE_WARPS)
            if (c0 + r < C && n0 + lane_id() < row)
                y[(c0 + r) * row + n0 + lane_id()] = tile[r * (TILE + 1) + lane_id()];
        __syncthreads();
    }
}

void dh_cuda_fp8_rows(dh_cuda_stream stream, dh_fp8_format format, int64_t N, int64_t C,
                      const void *x, uint8_t *y, float *scales)
{
    launch(fp8_rows, N, row_threads(C), stream, format, C, dh_cuda_fp8_row(C), (const bf16 *)x, y,
           scales);
}

void dh_cuda_fp8_columns(dh_cuda_stream stream, dh_fp8_format format, int64_t N, int64_t C,
                         const void *x, uint8_t *y, float *scales)
{
    launch(fp8_columns, div_up(C, TILE), TILE_WARPS * WARP, stream, format, N, C,
           dh_cuda_fp8_row(N), (const bf16 *)x, y, scales);
}
