/* Rows and columns of bf16 as numbers of 8 bits with a power of two each, laid out as cuBLASLt
 * multiplies them. The summed dimension lies side by side, so columns come out transposed, and is
 * filled up with zeros to whole runs of 16 bytes. Columns of experts' rows are not filled up: their
 * GEMM (grouped_mma.cu) knows where runs end. Reference: dh_k_fp8_rows, dh_k_fp8_columns,
 * dh_k_fp8_expert_columns.
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

/* Columns of x [.,C], codes of each in a run of `row` bytes. */
struct columns {
    int64_t C, row;
    const bf16 *x;
    uint8_t *y;
};

/* Of a lane's column, rows [begin, end), as far as the lane's warp sees them. */
DEVICE float greatest_of_rows(const columns &m, int64_t c, int64_t begin, int64_t end)
{
    float most = 0;
    for (int64_t n = begin + warp_id(); c < m.C && n < end; n += TILE_WARPS)
        most = greater(most, fabsf(widen(m.x[n * m.C + c])));
    return most;
}

/* Scale of a column from what all warps saw, one column a lane of every warp. */
DEVICE int column_scale(dh_fp8_grid grid, float most, float *room)
{
    room[warp_id() * TILE + lane_id()] = most;
    __syncthreads();
    for (unsigned w = 0; w < TILE_WARPS; w++) most = greater(most, room[w * TILE + lane_id()]);
    return dh_fp8_scale(grid, most);
}

/* Codes of rows [begin, end) of a block's columns, zeros from there to `until`. */
DEVICE void write_columns(const columns &m, dh_fp8_grid grid, int scale, int64_t c0, int64_t begin,
                          int64_t end, int64_t until, uint8_t *tile)
{
    const int64_t c = c0 + lane_id();
    for (int64_t n0 = begin; n0 < until; n0 += TILE) {
        for (unsigned r = warp_id(); r < TILE; r += TILE_WARPS) {
            const int64_t n = n0 + r;
            const bool is = c < m.C && n < end;
            tile[lane_id() * (TILE + 1) + r] = is ? code_of(grid, m.x[n * m.C + c], scale) : 0;
        }
        __syncthreads();
        for (unsigned r = warp_id(); r < TILE; r += TILE_WARPS)
            if (c0 + r < m.C && n0 + lane_id() < until)
                m.y[(c0 + r) * m.row + n0 + lane_id()] = tile[r * (TILE + 1) + lane_id()];
        __syncthreads();
    }
}

__global__ void fp8_columns(dh_fp8_format format, int64_t N, columns m, float *scales)
{
    DH_SHARED(float, room, [TILE_WARPS * TILE]);
    DH_SHARED(uint8_t, tile, [TILE * (TILE + 1)]);
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
    const int64_t c0 = (int64_t)blockIdx.x * TILE, c = c0 + lane_id();
    const int scale = column_scale(grid, greatest_of_rows(m, c, 0, N), room);
    if (warp_id() == 0 && c < m.C) scales[c] = dh_power_of_two(-scale);
    write_columns(m, grid, scale, c0, 0, N, m.row, tile);
}

/* Runs of experts' rows: told by the device, or as long each. */
struct expert_runs {
    int64_t E, n, rows; /* rows of each, without offsets */
    const int64_t *offsets;
};

DEVICE int64_t begin_of(const expert_runs &r, int64_t run)
{
    return r.offsets ? r.offsets[run] : run * r.rows;
}

/* A block: 32 columns of one expert, over its runs in order. */
__global__ void fp8_expert_columns(dh_fp8_format format, expert_runs runs, columns m, float *scales)
{
    DH_SHARED(float, room, [TILE_WARPS * TILE]);
    DH_SHARED(uint8_t, tile, [TILE * (TILE + 1)]);
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
    const int64_t n_tiles = (m.C + TILE - 1) / TILE, e = blockIdx.x / n_tiles;
    const int64_t c0 = blockIdx.x % n_tiles * TILE, c = c0 + lane_id();
    float most = 0;
    for (int64_t s = e; s < runs.n; s += runs.E)
        most = greater(most, greatest_of_rows(m, c, begin_of(runs, s), begin_of(runs, s + 1)));
    const int scale = column_scale(grid, most, room);
    if (warp_id() == 0 && c < m.C) scales[e * m.C + c] = dh_power_of_two(-scale);
    for (int64_t s = e; s < runs.n; s += runs.E) {
        const int64_t end = begin_of(runs, s + 1);
        write_columns(m, grid, scale, c0, begin_of(runs, s), end, end, tile);
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
    const columns m = {C, dh_cuda_fp8_row(N), (const bf16 *)x, y};
    launch(fp8_columns, div_up(C, TILE), TILE_WARPS * WARP, stream, format, N, m, scales);
}

void dh_cuda_fp8_expert_columns(dh_cuda_stream stream, dh_fp8_format format, int64_t E,
                                int64_t n_runs, const int64_t *offsets, int64_t N, int64_t C,
                                const void *x, uint8_t *y, float *scales)
{
    const columns m = {C, dh_cuda_fp8_row(N), (const bf16 *)x, y};
    const expert_runs runs = {E, n_runs, N / n_runs, offsets};
    launch(fp8_expert_columns, E * div_up(C, TILE), TILE_WARPS * WARP, stream, format, runs, m,
           scales);
}
