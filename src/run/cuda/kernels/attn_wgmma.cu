/* Attention of bf16 by wgmma, forward and backward, for compute capability 9.0 (sm_90a): the
 * formulas and the sums of attn_mma.cu, heads of 64 and 128 channels.
 *
 * A block has 128 rows and three warpgroups. Two make products, 64 rows each. The third
 * gives most of its registers to them. It copies tiles of the other side into shared memory by
 * tensor copies (wgmma.cuh), two of them ahead. A tile has two barriers: one for its arrival, and
 * one for the end of its last use. While one warpgroup makes weights of scores, the other one's
 * products run.
 *
 *   kernel   a block's rows  come by        what a warpgroup makes of them, 64 rows each
 *   forward  queries         keys, values   S = Q K^T, O += P V
 *   bwd_kv   keys, values    queries, dO    S^T = K Q^T, dP^T = V dO^T,
 *                                           dV += P^T dO, dK += dS^T Q
 *   bwd_q    queries, dO     keys, values   S = Q K^T, dP = dO V^T, dQ += dS K
 *
 * Weights stay in registers, as two bf16 each, as there. No atomic sums: a call repeated has the
 * same bits. It is used where its results have been compared with attn_mma.cu's
 * (attn_check.c). */
#include <atomic>

#include "run/cuda/kernels/attn_rows.cuh"
#include "run/cuda/kernels/wgmma.cuh"

/* TUNING: guesses until one has run. Keys that come by in forward, rows in backward; registers of
 * the threads that copy, and of the others: 65536 together. */
enum { MAKERS = 8 /* warps */, BLOCK_ROWS = 2 * GROUP_ROWS, KEYS = 128, SIDE = 64, STAGES = 2 };
enum { FEW = 40, MANY = 232, FEWEST_QUERIES = 64 };
static const int64_t BLOCK_THREADS = (MAKERS + GROUP_WARPS) * WARP;

/* ---- products of a warpgroup ------------------------------------------------------------------
 */

/* s = a b^T over all channels, of the warpgroup's rows of a. Begun; the caller waits. */
template <int N, int W>
DEVICE void multiply_rows(const swizzled<BLOCK_ROWS, W> &a, const swizzled<N * MMA_COLUMNS, W> &b,
                          float (&s)[N][4])
{
    const int row0 = (int)warp_id() / GROUP_WARPS * GROUP_ROWS;
    UNROLL
    for (int k = 0; k < W; k += MMA_DEPTH) wgmma(s, by_rows(a, row0, k), by_rows(b, 0, k), k > 0);
}

/* Weights as two bf16: rounded, and what that left. p is used up. */
template <int N> struct halves {
    unsigned first[N / 2][4], rest[N / 2][4];
};

template <int N> DEVICE void halve(float (&p)[N][4], halves<N> &h)
{
    UNROLL
    for (int n = 0; n < N; n += 2) {
        round_sums(p[n], p[n + 1], h.first[n / 2]);
        take_rounded(p[n], p[n + 1], h.first[n / 2]);
        round_sums(p[n], p[n + 1], h.rest[n / 2]);
    }
}

/* sums += p m. Begun; the caller waits. */
template <int N, int C, int W>
DEVICE void weigh(const halves<N> &p, const swizzled<N * MMA_COLUMNS, W> &m, float (&sums)[C][4])
{
    UNROLL
    for (int n = 0; n < N / 2; n++) {
        wgmma(sums, p.first[n], by_channels(m, n * MMA_DEPTH));
        wgmma(sums, p.rest[n], by_channels(m, n * MMA_DEPTH));
    }
}

template <int N> DEVICE void settle(halves<N> &h)
{
    settle(h.first);
    settle(h.rest);
}

/* ---- threads ---------------------------------------------------------------------------------
 */

/* maybe_unused: the kernels are empty for devices without wgmma. */

[[maybe_unused]] DEVICE bool is_copier()
{
    return warp_id() >= MAKERS;
}

[[maybe_unused]] DEVICE bool is_first_copier()
{
    return threadIdx.x == MAKERS * WARP;
}

/* One arrival a warp that makes products. */
[[maybe_unused]] DEVICE void release(mbarrier *b)
{
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(b);
}

/* Barriers of two kinds for each stage: n_full arrivals say that it is full, one of each maker that
 * it is free. */
template <int STAGES_> struct gates {
    mbarrier full[STAGES_], free[STAGES_];
};

template <int STAGES_> DEVICE void open_gates(gates<STAGES_> &g, unsigned n_full)
{
    for (int i = 0; i < STAGES_; i++) {
        barrier_init(&g.full[i], n_full);
        barrier_init(&g.free[i], MAKERS);
    }
}

/* ---- forward ----------------------------------------------------------------------------------
 */

template <int W> struct forward_room {
    swizzled<BLOCK_ROWS, W> q;
    swizzled<KEYS, W> k[STAGES], v[STAGES];
    mbarrier q_full;
    gates<STAGES> keys, values;
};

struct forward_maps {
    tensor_map q, k, v;
};

template <int W>
DEVICE void copy_forward(const dh_attn_shape &s, const forward_maps &maps, const block_place &p,
                         forward_room<W> &room)
{
    const int64_t kv_head = p.head / (s.H / s.KV);
    turn<STAGES> t = {0, 0};
    barrier_expect(&room.q_full, sizeof room.q);
    copy_tile(room.q, &maps.q, p.head, p.row0, p.b, &room.q_full);
    for (key_range at = keys_from(s, p, 0, KEYS); at.n > 0;
         at = keys_from(s, p, at.u0 + KEYS, KEYS)) {
        barrier_wait(&room.keys.free[t.stage], t.parity ^ 1);
        barrier_expect(&room.keys.full[t.stage], sizeof room.k[0]);
        copy_tile(room.k[t.stage], &maps.k, kv_head, at.u0, p.b, &room.keys.full[t.stage]);
        barrier_wait(&room.values.free[t.stage], t.parity ^ 1);
        barrier_expect(&room.values.full[t.stage], sizeof room.v[0]);
        copy_tile(room.v[t.stage], &maps.v, kv_head, at.u0, p.b, &room.values.full[t.stage]);
        go_on(t);
    }
}

/* The rows of the thread's warpgroup. */
[[maybe_unused]] DEVICE block_place group_of(const block_place &p)
{
    block_place mine = p;
    mine.row0 += warp_id() / GROUP_WARPS * GROUP_ROWS;
    mine.rows = GROUP_ROWS;
    return mine;
}

template <int W, class O>
DEVICE void make_forward(const dh_attn_shape &s, const block_place &p, bool pairs,
                         forward_room<W> &room, O *o, float *lse)
{
    const block_place mine = group_of(p);
    const int64_t row0 = p.row0 + warp_id() * MMA_ROWS;
    turn<STAGES> t = {0, 0};
    sight rows[2];
    softmax_row soft[2];
    float sums[W / MMA_COLUMNS][4];
    clear(sums);
    for (int i = 0; i < 2; i++) {
        rows[i] = sight_of(s, p.b, row0 + mma_row(2 * i));
        soft[i] = {-INFINITY, 0};
    }
    barrier_wait(&room.q_full, 0);
    for (key_range at = keys_from(s, p, 0, KEYS); at.n > 0;
         at = keys_from(s, p, at.u0 + KEYS, KEYS)) {
        float w[KEYS / MMA_COLUMNS][4];
        halves<KEYS / MMA_COLUMNS> weights;
        barrier_wait(&room.keys.full[t.stage], t.parity);
        products_begin();
        multiply_rows(room.q, room.k[t.stage], w);
        products_close();
        products_wait<0>();
        settle(w);
        release(&room.keys.free[t.stage]);
        score(s, w);
        if (!all_seen(s, mine, at, KEYS)) hide(s, rows, at.u0, w);
        UNROLL
        for (int i = 0; i < 2; i++) {
            const float kept = soften(w, i, &soft[i]);
            UNROLL
            for (int c = 0; c < W / MMA_COLUMNS; c++) {
                sums[c][2 * i] *= kept;
                sums[c][2 * i + 1] *= kept;
            }
        }
        halve(w, weights);
        barrier_wait(&room.values.full[t.stage], t.parity);
        settle(sums);
        products_begin();
        weigh(weights, room.v[t.stage], sums);
        products_close();
        products_wait<0>();
        settle(sums);
        settle(weights);
        release(&room.values.free[t.stage]);
        go_on(t);
    }
    float factor[2];
    for (int i = 0; i < 2; i++) {
        const int64_t row = row0 + mma_row(2 * i);
        const float sum = row_sum(soft[i].sum);
        const bool any = soft[i].max != -INFINITY;
        factor[i] = any ? 1.0f / sum : 0.0f;
        if (row < s.Tq && mma_column(0) == 0)
            lse[stat_at(s, p.b, p.head, row)] = any ? soft[i].max + logf(sum) : -INFINITY;
    }
    const result<O> to = {
        o + output_at(s, p.b, p.head, p.row0), s.o_row, s.Tq - p.row0, s.D, false, pairs};
    write_sums(sums, factor, 0, to);
}

template <int W, class O>
__global__ void __launch_bounds__((MAKERS + GROUP_WARPS) * WARP, 1)
    attn_wgmma_fwd(dh_attn_shape s, const __grid_constant__ forward_maps maps, bool pairs, O *o,
                   float *lse)
{
#if HAS_WGMMA
    DH_LAUNCHED_SHARED(forward_room<W>, room);
    const block_place p = place_of(1, 0, BLOCK_ROWS, s.Tq, s.H);
    if (threadIdx.x == 0) {
        barrier_init(&room.q_full, 1);
        open_gates(room.keys, 1);
        open_gates(room.values, 1);
        barriers_are_made();
    }
    __syncthreads();
    if (is_copier()) {
        fewer_registers<FEW>();
        if (is_first_copier()) copy_forward(s, maps, p, room);
    } else {
        more_registers<MANY>();
        make_forward(s, p, pairs, room, o, lse);
    }
#endif
}

/* ---- backward ---------------------------------------------------------------------------------
 */

struct backward_maps {
    tensor_map q, dout, k, v;
};

template <int W> struct kv_room {
    swizzled<BLOCK_ROWS, W> k, v;
    swizzled<SIDE, W> q[STAGES], dout[STAGES];
    query_stats stats[STAGES][SIDE];
    mbarrier kv_full;
    gates<STAGES> side;
};

/* By the whole warpgroup, whose threads write the queries' values too. */
template <int W>
DEVICE void copy_kv_side(const dh_attn_shape &s, const backward_maps &maps,
                         const backward_inputs &in, const block_place &p, kv_room<W> &room)
{
    const int i = (int)threadIdx.x - MAKERS * WARP;
    const query_range first = {p.head * (s.H / s.KV), 0, SIDE};
    turn<STAGES> t = {0, 0};
    if (is_first_copier()) {
        barrier_expect(&room.kv_full, sizeof room.k + sizeof room.v);
        copy_tile(room.k, &maps.k, p.head, p.row0, p.b, &room.kv_full);
        copy_tile(room.v, &maps.v, p.head, p.row0, p.b, &room.kv_full);
    }
    for (query_range at = queries_from(s, p, SIDE, first); at.n > 0;
         at = queries_from(s, p, SIDE, query_range{at.head, at.t0 + SIDE, SIDE})) {
        mbarrier *full = &room.side.full[t.stage];
        barrier_wait(&room.side.free[t.stage], t.parity ^ 1);
        if (i < SIDE) room.stats[t.stage][i] = stats_of(s, in, p.b, at.head, at.t0 + i);
        if (is_first_copier()) {
            barrier_expect(full, sizeof room.q[0] + sizeof room.dout[0]);
            copy_tile(room.q[t.stage], &maps.q, at.head, at.t0, p.b, full);
            copy_tile(room.dout[t.stage], &maps.dout, at.head, at.t0, p.b, full);
        } else {
            barrier_arrive(full);
        }
        go_on(t);
    }
}

template <int W, class G>
DEVICE void make_kv(const dh_attn_shape &s, const block_place &p, bool adds, bool pairs,
                    kv_room<W> &room, G *dk, G *dv)
{
    float sum_k[W / MMA_COLUMNS][4], sum_v[W / MMA_COLUMNS][4];
    int64_t key[2];
    turn<STAGES> t = {0, 0};
    clear(sum_k);
    clear(sum_v);
    for (int i = 0; i < 2; i++)
        key[i] = place_in_sight(s, p.row0 + warp_id() * MMA_ROWS + mma_row(2 * i));
    barrier_wait(&room.kv_full, 0);
    const query_range first = {p.head * (s.H / s.KV), 0, SIDE};
    for (query_range at = queries_from(s, p, SIDE, first); at.n > 0;
         at = queries_from(s, p, SIDE, query_range{at.head, at.t0 + SIDE, SIDE})) {
        float w[SIDE / MMA_COLUMNS][4], dw[SIDE / MMA_COLUMNS][4];
        halves<SIDE / MMA_COLUMNS> weights, gradients;
        barrier_wait(&room.side.full[t.stage], t.parity);
        products_begin();
        multiply_rows(room.k, room.q[t.stage], w);
        multiply_rows(room.v, room.dout[t.stage], dw);
        products_close();
        products_wait<0>();
        settle(w);
        settle(dw);
        kv_score_gradients(s, room.stats[t.stage], key, w, dw);
        halve(w, weights);
        halve(dw, gradients);
        settle(sum_k);
        settle(sum_v);
        products_begin();
        weigh(weights, room.dout[t.stage], sum_v);
        weigh(gradients, room.q[t.stage], sum_k);
        products_close();
        products_wait<0>();
        settle(sum_k);
        settle(sum_v);
        settle(weights);
        settle(gradients);
        release(&room.side.free[t.stage]);
        go_on(t);
    }
    const int64_t at = p.b * s.dkv_batch + p.row0 * s.dkv_row + p.head * s.D;
    const float scale[2] = {s.scale, s.scale}, one[2] = {1, 1};
    const result<G> to_k = {dk + at, s.dkv_row, s.Tk - p.row0, s.D, adds, pairs};
    const result<G> to_v = {dv + at, s.dkv_row, s.Tk - p.row0, s.D, adds, pairs};
    write_sums(sum_k, scale, 0, to_k);
    write_sums(sum_v, one, 0, to_v);
}

template <int W, class G>
__global__ void __launch_bounds__((MAKERS + GROUP_WARPS) * WARP, 1)
    attn_wgmma_bwd_kv(dh_attn_shape s, const __grid_constant__ backward_maps maps,
                      backward_inputs in, bool adds, bool pairs, G *dk, G *dv)
{
#if HAS_WGMMA
    DH_LAUNCHED_SHARED(kv_room<W>, room);
    const block_place p = place_of(1, 0, BLOCK_ROWS, s.Tk, s.KV);
    if (threadIdx.x == 0) {
        barrier_init(&room.kv_full, 1);
        open_gates(room.side, GROUP_WARPS * WARP);
        barriers_are_made();
    }
    __syncthreads();
    if (is_copier()) {
        fewer_registers<FEW>();
        copy_kv_side(s, maps, in, p, room);
    } else {
        more_registers<MANY>();
        make_kv(s, p, adds, pairs, room, dk, dv);
    }
#endif
}

template <int W> struct q_room {
    swizzled<BLOCK_ROWS, W> q, dout;
    swizzled<SIDE, W> k[STAGES], v[STAGES];
    mbarrier q_full;
    gates<STAGES> side;
};

template <int W>
DEVICE void copy_q_side(const dh_attn_shape &s, const backward_maps &maps, const block_place &p,
                        q_room<W> &room)
{
    const int64_t kv_head = p.head / (s.H / s.KV);
    turn<STAGES> t = {0, 0};
    barrier_expect(&room.q_full, sizeof room.q + sizeof room.dout);
    copy_tile(room.q, &maps.q, p.head, p.row0, p.b, &room.q_full);
    copy_tile(room.dout, &maps.dout, p.head, p.row0, p.b, &room.q_full);
    for (key_range at = keys_from(s, p, 0, SIDE); at.n > 0;
         at = keys_from(s, p, at.u0 + SIDE, SIDE)) {
        mbarrier *full = &room.side.full[t.stage];
        barrier_wait(&room.side.free[t.stage], t.parity ^ 1);
        barrier_expect(full, sizeof room.k[0] + sizeof room.v[0]);
        copy_tile(room.k[t.stage], &maps.k, kv_head, at.u0, p.b, full);
        copy_tile(room.v[t.stage], &maps.v, kv_head, at.u0, p.b, full);
        go_on(t);
    }
}

template <int W, class G>
DEVICE void make_q(const dh_attn_shape &s, const backward_inputs &in, const block_place &p,
                   bool adds, bool pairs, q_room<W> &room, G *dq)
{
    float sums[W / MMA_COLUMNS][4];
    query_stats query[2];
    turn<STAGES> t = {0, 0};
    clear(sums);
    for (int i = 0; i < 2; i++)
        query[i] = stats_of(s, in, p.b, p.head, p.row0 + warp_id() * MMA_ROWS + mma_row(2 * i));
    barrier_wait(&room.q_full, 0);
    for (key_range at = keys_from(s, p, 0, SIDE); at.n > 0;
         at = keys_from(s, p, at.u0 + SIDE, SIDE)) {
        float w[SIDE / MMA_COLUMNS][4], dw[SIDE / MMA_COLUMNS][4];
        halves<SIDE / MMA_COLUMNS> gradients;
        barrier_wait(&room.side.full[t.stage], t.parity);
        products_begin();
        multiply_rows(room.q, room.k[t.stage], w);
        multiply_rows(room.dout, room.v[t.stage], dw);
        products_close();
        products_wait<0>();
        settle(w);
        settle(dw);
        q_score_gradients(s, query, at.u0, w, dw);
        halve(dw, gradients);
        settle(sums);
        products_begin();
        weigh(gradients, room.k[t.stage], sums);
        products_close();
        products_wait<0>();
        settle(sums);
        settle(gradients);
        release(&room.side.free[t.stage]);
        go_on(t);
    }
    const float scale[2] = {s.scale, s.scale};
    const result<G> to = {dq + p.b * s.dq_batch + p.row0 * s.dq_row + p.head * s.D,
                          s.dq_row,
                          s.Tq - p.row0,
                          s.D,
                          adds,
                          pairs};
    write_sums(sums, scale, 0, to);
}

template <int W, class G>
__global__ void __launch_bounds__((MAKERS + GROUP_WARPS) * WARP, 1)
    attn_wgmma_bwd_q(dh_attn_shape s, const __grid_constant__ backward_maps maps,
                     backward_inputs in, bool adds, bool pairs, G *dq)
{
#if HAS_WGMMA
    DH_LAUNCHED_SHARED(q_room<W>, room);
    const block_place p = place_of(1, 0, BLOCK_ROWS, s.Tq, s.H);
    if (threadIdx.x == 0) {
        barrier_init(&room.q_full, 1);
        open_gates(room.side, 1);
        barriers_are_made();
    }
    __syncthreads();
    if (is_copier()) {
        fewer_registers<FEW>();
        if (is_first_copier()) copy_q_side(s, maps, p, room);
    } else {
        more_registers<MANY>();
        make_q(s, in, p, adds, pairs, room, dq);
    }
#endif
}

/* ---- who may -----------------------------------------------------------------------------------
 */

enum { MOST_DEVICES = 64 };
static std::atomic<bool> is_allowed[MOST_DEVICES];

bool dh_cuda_wgmma_is_built(void)
{
#if defined(DH_SM90A) || !defined(__CUDACC__)
    return true;
#else
    return false;
#endif
}

void dh_cuda_allow_wgmma(int device, bool allowed)
{
    if (device >= 0 && device < MOST_DEVICES) is_allowed[device].store(allowed);
}

bool dh_cuda_allows_wgmma(int device)
{
    return device >= 0 && device < MOST_DEVICES && is_allowed[device].load();
}

static bool is_allowed_here(void)
{
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess && dh_cuda_allows_wgmma(device);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

static_assert(sizeof(forward_room<128>) <= MOST_SHARED_90, "keys do not fit");
static_assert(sizeof(kv_room<128>) <= MOST_SHARED_90, "queries do not fit");
static_assert(sizeof(q_room<128>) <= MOST_SHARED_90, "keys do not fit");

/* A cache (positions of queries alone) has rows that hold anything, which tiles would bring. */
static bool is_taken(const dh_attn_shape &s)
{
    return dh_cuda_wgmma_is_built() && s.dtype == DH_BF16 && (s.D == 64 || s.D == 128) &&
           s.Tq >= FEWEST_QUERIES && (s.q_pos == NULL) == (s.k_pos == NULL) && is_allowed_here();
}

static heads_in_rows queries_of(const dh_attn_shape &s, const void *q)
{
    return {q, s.D, s.H, s.Tq, s.B, s.q_row, s.q_batch};
}

static heads_in_rows outputs_of(const dh_attn_shape &s, const void *o)
{
    return {o, s.D, s.H, s.Tq, s.B, s.o_row, s.o_batch};
}

static heads_in_rows keys_of(const dh_attn_shape &s, const void *k)
{
    return {k, s.D, s.KV, s.Tk, s.B, s.kv_row, s.kv_batch};
}

static bool map_if_possible(tensor_map *map, const heads_in_rows &x, int rows)
{
    return can_be_mapped(x) && map_of(map, x, rows);
}

template <int W> struct channels {
    enum { most = W };
};

template <class F> static void by_channels_of(int64_t D, F f)
{
    if (D == 64)
        f(channels<64>());
    else
        f(channels<128>());
}

bool dh_cuda_attn_wgmma_fwd(dh_cuda_stream stream, const dh_attn_shape *shape, const void *q,
                            const void *k, const void *v, void *o, float *lse)
{
    const dh_attn_shape s = *shape;
    forward_maps maps;
    if (!is_taken(s) || !map_if_possible(&maps.q, queries_of(s, q), BLOCK_ROWS) ||
        !map_if_possible(&maps.k, keys_of(s, k), KEYS) ||
        !map_if_possible(&maps.v, keys_of(s, v), KEYS))
        return false;
    by_channels_of(s.D, [&](auto width) {
        by_type(s.o_dtype, [&](auto u) {
            typedef typename decltype(u)::type O;
            enum { W = decltype(width)::most };
            const bool pairs = heads_in_runs(2, sizeof(O), s.D, s.o_row, s.o_batch, o);
            launch_with(sizeof(forward_room<W>), attn_wgmma_fwd<W, O>,
                        div_up(s.Tq, BLOCK_ROWS) * s.H * s.B, BLOCK_THREADS, stream, s, maps, pairs,
                        (O *)o, lse);
        });
    });
    return true;
}

/* Where gradients of keys and of queries go. */
template <class G> struct gradients_to {
    G *q, *k, *v;
    bool adds;
};

template <int W, class G>
static void run_backward(dh_cuda_stream stream, const dh_attn_shape &s, const backward_inputs &in,
                         const backward_maps &kv, const backward_maps &q,
                         const gradients_to<G> &to)
{
    const bool kv_pairs = heads_in_runs(2, sizeof(G), s.D, s.dkv_row, s.dkv_batch, to.k) &&
                          heads_in_runs(2, sizeof(G), s.D, s.dkv_row, s.dkv_batch, to.v);
    const bool q_pairs = heads_in_runs(2, sizeof(G), s.D, s.dq_row, s.dq_batch, to.q);
    launch_with(sizeof(kv_room<W>), attn_wgmma_bwd_kv<W, G>,
                div_up(s.Tk, BLOCK_ROWS) * s.KV * s.B, BLOCK_THREADS, stream, s, kv, in, to.adds,
                kv_pairs, to.k, to.v);
    launch_with(sizeof(q_room<W>), attn_wgmma_bwd_q<W, G>, div_up(s.Tq, BLOCK_ROWS) * s.H * s.B,
                BLOCK_THREADS, stream, s, q, in, to.adds, q_pairs, to.q);
}

/* A block's own rows, and those that come by. */
static bool map_backward(backward_maps *maps, const dh_attn_shape &s,
                         const dh_cuda_attn_inputs &in, int query_rows, int key_rows)
{
    return map_if_possible(&maps->q, queries_of(s, in.q), query_rows) &&
           map_if_possible(&maps->dout, outputs_of(s, in.dout), query_rows) &&
           map_if_possible(&maps->k, keys_of(s, in.k), key_rows) &&
           map_if_possible(&maps->v, keys_of(s, in.v), key_rows);
}

bool dh_cuda_attn_wgmma_bwd(dh_cuda_stream stream, const dh_attn_shape *shape,
                            const dh_cuda_attn_inputs *in, void *dq, void *dk, void *dv, bool adds)
{
    const dh_attn_shape s = *shape;
    const backward_inputs of = {(const bf16 *)in->dout,
                                (const bf16 *)in->q,
                                (const bf16 *)in->k,
                                (const bf16 *)in->v,
                                in->lse,
                                in->delta};
    backward_maps kv, q;
    if (!is_taken(s) || !map_backward(&kv, s, *in, SIDE, BLOCK_ROWS) ||
        !map_backward(&q, s, *in, BLOCK_ROWS, SIDE))
        return false;
    by_channels_of(s.D, [&](auto width) {
        by_type(s.g_dtype, [&](auto u) {
            typedef typename decltype(u)::type G;
            const gradients_to<G> to = {(G *)dq, (G *)dk, (G *)dv, adds};
            run_backward<decltype(width)::most>(stream, s, of, kv, q, to);
        });
    });
    return true;
}
