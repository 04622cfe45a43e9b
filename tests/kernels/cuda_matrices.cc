/* Products without fault, and kernels with mistakes that the host's instructions find. */
#include "cuda_matrices.h"

#include "run/cuda/kernels/wgmma.cuh"

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
    launch_with(MOST_SHARED_90 + 1, takes_two_tiles, 1, WARP, NULL);
}

/* ---- warpgroups ---------------------------------------------------------------------------- */

enum { TILE_ROWS = 64, TILE_CHANNELS = 64 };

enum warpgroup_fault {
    NO_FAULT,
    UNMADE,
    TOO_MANY,
    NEVER,
    UNFENCED,
    UNWAITED,
    COPY_LEFT,
    EARLY,
};

struct warpgroup_room {
    swizzled<TILE_ROWS, TILE_CHANNELS> a, b;
    mbarrier full;
};

/* out [64,64] = a b^T, of two tiles of one head. */
static __global__ void multiply_panels(warpgroup_fault fault, tensor_map a, tensor_map b,
                                       float *out)
{
    DH_LAUNCHED_SHARED(warpgroup_room, room);
    float c[TILE_ROWS / MMA_COLUMNS][4] = {};
    if (threadIdx.x == 0) {
        if (fault != UNMADE) barrier_init(&room.full, fault == NEVER ? 2 : 1);
        barrier_expect(&room.full, sizeof room.a + sizeof room.b);
        if (fault == TOO_MANY) barrier_arrive(&room.full);
        copy_tile(room.a, &a, 0, 0, 0, &room.full);
        for (int i = 0; i < (fault == COPY_LEFT ? 40 : 1); i++)
            copy_tile(room.b, &b, 0, 0, 0, &room.full);
    }
    __syncthreads();
    if (fault == COPY_LEFT) return;
    barrier_wait(&room.full, 0);
    if (fault != UNFENCED) products_begin();
    for (int k = 0; k < TILE_CHANNELS; k += MMA_DEPTH)
        wgmma(c, by_rows(room.a, 0, k), by_rows(room.b, 0, k), k > 0);
    products_close();
    if (fault != UNWAITED && fault != EARLY) products_wait<0>();
    for (int n = 0; n < TILE_ROWS / MMA_COLUMNS; n++)
        for (int i = 0; i < 4; i++)
            out[((int)warp_id() * MMA_ROWS + mma_row(i)) * TILE_ROWS + n * MMA_COLUMNS +
                mma_column(i)] = c[n][i];
    if (fault == EARLY) products_wait<0>();
}

static bool multiplies_panels(warpgroup_fault fault)
{
    alignas(16) static bf16 a[TILE_ROWS * TILE_CHANNELS], b[TILE_ROWS * TILE_CHANNELS];
    static float out[TILE_ROWS * TILE_ROWS];
    tensor_map of_a, of_b;
    for (int i = 0; i < TILE_ROWS * TILE_CHANNELS; i++) {
        narrow((float)(i * 7 % 31) / 16 - 1, &a[i]);
        narrow((float)(i * 5 % 29) / 16 - 1, &b[i]);
    }
    const heads_in_rows rows = {a, TILE_CHANNELS, 1, TILE_ROWS, 1, TILE_CHANNELS, 0};
    const heads_in_rows others = {b, TILE_CHANNELS, 1, TILE_ROWS, 1, TILE_CHANNELS, 0};
    if (!map_of(&of_a, rows, TILE_ROWS) || !map_of(&of_b, others, TILE_ROWS)) return false;
    launch_with(sizeof(warpgroup_room), multiply_panels, 1, GROUP_WARPS * WARP, NULL, fault, of_a,
                of_b, out);
    bool right = true;
    for (int m = 0; m < TILE_ROWS; m++)
        for (int n = 0; n < TILE_ROWS; n++) {
            float want = 0;
            for (int k = 0; k < TILE_CHANNELS; k++)
                want += widen(a[m * TILE_CHANNELS + k]) * widen(b[n * TILE_CHANNELS + k]);
            right = right && fabsf(out[m * TILE_ROWS + n] - want) < 1e-4f;
        }
    return right;
}

void cuda_wgmma_twist(int which)
{
    dh_host_twist_wgmma(static_cast<dh_host_twist>(which));
}

bool cuda_wgmma_early(bool waits)
{
    return multiplies_panels(waits ? NO_FAULT : EARLY);
}

void cuda_fault_unmade_barrier(void)
{
    (void)multiplies_panels(UNMADE);
}

void cuda_fault_too_many_arrive(void)
{
    (void)multiplies_panels(TOO_MANY);
}

void cuda_fault_never_arrives(void)
{
    (void)multiplies_panels(NEVER);
}

void cuda_fault_unfenced(void)
{
    (void)multiplies_panels(UNFENCED);
}

void cuda_fault_unwaited(void)
{
    (void)multiplies_panels(UNWAITED);
}

void cuda_fault_copy_left(void)
{
    (void)multiplies_panels(COPY_LEFT);
}

void cuda_fault_no_warpgroup_fault(void)
{
    (void)multiplies_panels(NO_FAULT);
}
