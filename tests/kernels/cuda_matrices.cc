/* Products without fault, and kernels with mistakes that the host's instructions find. */
#include "cuda_matrices.h"

#include "run/cuda/kernels/mma.cuh"

/* ---- one instruction ----------------------------------------------------------------------- */

/* Elements a0 to a7, b0 to b3, c0 to c3 of a lane, as the PTX ISA counts them. */
struct place {
    int row, column;
};

DEVICE place place_of_a(int i)
{
    const int group = (int)lane_id() / 4, in_group = (int)lane_id() % 4;
    const bool upper = i < 2 || (i >= 4 && i < 6);
    return place{upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}

DEVICE place place_of_b(int i)
{
    return place{(int)lane_id() % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), (int)lane_id() / 4};
}

DEVICE place place_of_c(int i)
{
    return place{(int)lane_id() / 4 + (i < 2 ? 0 : 8), (int)lane_id() % 4 * 2 + (i & 1)};
}

static __global__ void multiply_once(const uint16_t *a, const uint16_t *b, float *c)
{
    unsigned of_a[4] = {}, of_b[2] = {};
    float of_c[4];
    for (int i = 0; i < 8; i++) {
        const place at = place_of_a(i);
        of_a[i / 2] |= (unsigned)a[at.row * 16 + at.column] << i % 2 * 16;
    }
    for (int i = 0; i < 4; i++) {
        const place at = place_of_b(i);
        of_b[i / 2] |= (unsigned)b[at.row * 8 + at.column] << i % 2 * 16;
    }
    for (int i = 0; i < 4; i++) of_c[i] = c[place_of_c(i).row * 8 + place_of_c(i).column];
    mma(of_c, of_a, of_b[0], of_b[1]);
    for (int i = 0; i < 4; i++) c[place_of_c(i).row * 8 + place_of_c(i).column] = of_c[i];
}

void cuda_mma_once(const uint16_t *a, const uint16_t *b, float *c)
{
    launch(multiply_once, 1, WARP, NULL, a, b, c);
}

/* ---- tiles --------------------------------------------------------------------------------- */

static const int64_t M = 32, N = 48;

struct two_tiles {
    tile<64, 64> a, b;
};

template <bool A_TRANSPOSED, bool B_TRANSPOSED>
static __global__ void multiply_tiles(int64_t K, bool chunks, const uint16_t *a, const uint16_t *b,
                                      float *out)
{
    DH_LAUNCHED_SHARED(two_tiles, t);
    const tile_source of_a = {reinterpret_cast<const bf16 *>(a), A_TRANSPOSED ? M : K,
                              A_TRANSPOSED ? K : M, A_TRANSPOSED ? M : K, chunks};
    const tile_source of_b = {reinterpret_cast<const bf16 *>(b), B_TRANSPOSED ? N : K,
                              B_TRANSPOSED ? K : N, B_TRANSPOSED ? N : K, chunks};
    fill_tile(t.a, of_a, (int)threadIdx.x, 2 * WARP);
    fill_tile(t.b, of_b, (int)threadIdx.x, 2 * WARP);
    close_copies();
    wait_copies<0>();
    __syncthreads();
    const int m0 = (int)warp_id() * MMA_ROWS;
    for (int n0 = 0; n0 < N; n0 += 16) {
        float c[2][4] = {};
        for (int k0 = 0; k0 < K; k0 += MMA_DEPTH) {
            unsigned x[4], y[4];
            load_a<A_TRANSPOSED>(t.a, m0, k0, x);
            load_two_b<B_TRANSPOSED>(t.b, n0, k0, y);
            mma(c[0], x, y[0], y[1]);
            mma(c[1], x, y[2], y[3]);
        }
        for (int i = 0; i < 8; i++)
            out[(m0 + mma_row(i % 4)) * N + n0 + i / 4 * 8 + mma_column(i % 4)] = c[i / 4][i % 4];
    }
}

void cuda_mma_tiles(const cuda_tiles_case *c, const uint16_t *a, const uint16_t *b, float *out)
{
    auto kernel =
        c->a_transposed
            ? (c->b_transposed ? multiply_tiles<true, true> : multiply_tiles<true, false>)
            : (c->b_transposed ? multiply_tiles<false, true> : multiply_tiles<false, false>);
    launch_with(sizeof(two_tiles), kernel, 1, 2 * WARP, NULL, c->K, !c->by_element, a, b, out);
}

int64_t cuda_mma_count(void)
{
    return dh_host_n_mma();
}

void cuda_mma_twist(int which)
{
    dh_host_twist_mma(static_cast<dh_host_twist>(which));
}

/* ---- mistakes ------------------------------------------------------------------------------ */

static __global__ void copy_behind(bool waits, const float *x, float *y)
{
    typedef run_of<float, 4> chunk;
    DH_SHARED(chunk, room, [WARP]);
    copy_later(&room[threadIdx.x], x + 4 * threadIdx.x, true);
    close_copies();
    if (waits) wait_copies<0>();
    __syncwarp();
    y[threadIdx.x] = room[WARP - 1 - threadIdx.x].at[1];
}

bool cuda_copies_arrive(bool waits)
{
    alignas(16) float x[4 * WARP];
    float y[WARP];
    bool right = true;
    for (int i = 0; i < 4 * WARP; i++) x[i] = (float)i;
    launch(copy_behind, 1, WARP, NULL, waits, x, y);
    for (int i = 0; i < WARP; i++) right = right && y[i] == (float)(4 * (WARP - 1 - i) + 1);
    return right;
}

/* Rows of 128 bytes, without a swizzle. */
static __global__ void same_banks()
{
    typedef run_of<bf16, 64> row;
    DH_SHARED(row, rows, [8]);
    unsigned r[4];
    load_matrices<false>(&rows[threadIdx.x % 8], r);
}

static __global__ void not_all_lanes(bool loads)
{
    const unsigned a[4] = {};
    float c[4] = {};
    unsigned r[4];
    alignas(16) static const unsigned char rows[WARP][16] = {};
    if (threadIdx.x != 7)
        mma(c, a, 0, 0);
    else if (loads)
        load_matrices<false>(rows[0], r);
    else
        __syncwarp();
    __syncwarp();
}

static __global__ void takes_two_tiles()
{
    DH_LAUNCHED_SHARED(two_tiles, t);
    chunk_at(t.a, 0, 0)->at[0] = bf16{0};
}

void cuda_fault_banks(void)
{
    launch(same_banks, 1, WARP, NULL);
}

void cuda_fault_lane_missing(void)
{
    launch(not_all_lanes, 1, WARP, NULL, false);
}

void cuda_fault_two_instructions(void)
{
    launch(not_all_lanes, 1, WARP, NULL, true);
}

void cuda_fault_launched_less(void)
{
    launch_with(sizeof(two_tiles) - 1, takes_two_tiles, 1, WARP, NULL);
}

void cuda_fault_launched_too_much(void)
{
    launch_with(MOST_SHARED + 1, takes_two_tiles, 1, WARP, NULL);
}
