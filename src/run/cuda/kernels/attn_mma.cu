/* Attention of bf16 on tensor cores, forward and backward: the formulas of attn.cu, GEMMs by mma
 * (mma.cuh) with float32 sums. A block of four warps has 64 rows, 16 a warp, whose operands stay in
 * shared memory. Rows of the other side come by in tiles. The next tile is copied while one is
 * used:
 *
 *   kernel   a block's rows  come by        what a warp makes of them, 16 rows each
 *   forward  queries         keys, values   S = Q K^T, O += P V
 *   bwd_kv   keys, values    queries, dO    S^T = K Q^T, dP^T = V dO^T,
 *                                           dV += P^T dO, dK += dS^T Q
 *   bwd_q    queries, dO     keys, values   S = Q K^T, dP = dO V^T, dQ += dS K
 *
 * Scores are made with the sums' rows in their rows, so that weights never leave registers: what a
 * product leaves is laid out as the next one's A takes it. Rows of q are not scaled, sums are.
 * Weights and gradients of scores go into the second products as two bf16, rounded and what that
 * left: 16 bits. One alone would be off by 2^-9 of each, which shows in outputs that are rounded
 * themselves, in parts that are merged, and in gradients, where large terms cancel.
 * Heads of 1 to 256 channels, filled up with zeros to a multiple of 16. No atomic sums.
 * Reference: dh_k_attn_*. */
#include "run/cuda/kernels/attn_rows.cuh"

enum { WARPS = 4, ROWS = WARPS * MMA_ROWS };
static const int64_t MMA_THREADS = WARPS * WARP;

/* TUNING: guesses until one has run. For heads of at most W channels, as many rows come by as let a
 * thread keep its sums in registers. Up to 128, two blocks share a processor of compute capability
 * 8.0. Above that a block makes 128 channels of dK and dV, and another one makes the scores
 * again. */
template <int W> struct cut {
    enum {
        KEYS = W <= 128 ? 64 : 32, /* that come by in forward, always two tiles */
        SIDE = W <= 64 ? 64 : 32,  /* rows that come by in backward */
        STAGES = W <= 128 ? 2 : 1, /* tiles of them in shared memory */
        CHANNELS = W <= 128 ? W : 128,
    };
};

/* ---- products of a warp ------------------------------------------------------------------------
 */

/* s = a b^T over all channels, of the warp's rows of a. */
template <int N, int W>
DEVICE void multiply_rows(const tile<ROWS, W> &a, const tile<N * MMA_COLUMNS, W> &b, int64_t D,
                          float (&s)[N][4])
{
    clear(s);
    for (int k = 0; k < D; k += MMA_DEPTH) {
        unsigned x[4], y[4];
        load_a<false>(a, (int)warp_id() * MMA_ROWS, k, x);
        UNROLL
        for (int n = 0; n < N; n += 2) {
            load_two_b<false>(b, n * MMA_COLUMNS, k, y);
            mma(s[n], x, y[0], y[1]);
            mma(s[n + 1], x, y[2], y[3]);
        }
    }
}

/* sums += p m: channels from c0 on of the rows m. p is used up. */
template <int N, int C, int W>
DEVICE void weigh(float (&p)[N][4], const tile<N * MMA_COLUMNS, W> &m, int c0, int64_t D,
                  float (&sums)[C][4])
{
    UNROLL
    for (int n = 0; n < N; n += 2) {
        unsigned x[4], rest[4], y[4];
        round_sums(p[n], p[n + 1], x);
        take_rounded(p[n], p[n + 1], x);
        round_sums(p[n], p[n + 1], rest);
        UNROLL
        for (int c = 0; c < C; c += 2) {
            if (c0 + c * MMA_COLUMNS >= D) continue;
            load_two_b<true>(m, c0 + c * MMA_COLUMNS, n * MMA_COLUMNS, y);
            mma(sums[c], x, y[0], y[1]);
            mma(sums[c + 1], x, y[2], y[3]);
            mma(sums[c], rest, y[0], y[1]);
            mma(sums[c + 1], rest, y[2], y[3]);
        }
    }
}

/* ---- operands ----------------------------------------------------------------------------------
 */

template <int N, int W>
DEVICE void fill(tile<N, W> &t, const bf16 *x, int64_t step, int64_t n_rows, int64_t D, bool chunks)
{
    const tile_source from = {x, step, n_rows, D, chunks};
    fill_tile(t, from, (int)threadIdx.x, WARPS * WARP);
}

DEVICE const bf16 *queries(const dh_attn_shape &s, const bf16 *q, int64_t b, int64_t head,
                           int64_t t0)
{
    return q + b * s.q_batch + t0 * s.q_row + head * s.D;
}

DEVICE const bf16 *keys(const dh_attn_shape &s, const bf16 *k, int64_t b, int64_t kv_head,
                        int64_t u0)
{
    return k + b * s.kv_batch + u0 * s.kv_row + kv_head * s.D;
}

/* ---- forward ----------------------------------------------------------------------------------
 */

template <int W> struct forward_room {
    tile<ROWS, W> q;
    tile<cut<W>::KEYS, W> k[2], v[2];
};

/* One tile of keys: to the running maximum, sum and output. */
template <int N, int C, int W>
DEVICE void attend(const dh_attn_shape &s, float (&w)[N][4], const tile<N * MMA_COLUMNS, W> &v,
                   softmax_row (&rows)[2], float (&sums)[C][4])
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        const float kept = soften(w, i, &rows[i]);
        UNROLL
        for (int c = 0; c < C; c++) {
            sums[c][2 * i] *= kept;
            sums[c][2 * i + 1] *= kept;
        }
    }
    weigh(w, v, 0, s.D, sums);
}

/* Permitted access of a kernel to rows: copy 16 bytes of inputs, write pairs of results. */
struct may_copy {
    bool chunks, pairs;
};

template <int W, class O>
__global__ void __launch_bounds__(WARPS *WARP)
    attn_mma_fwd(dh_attn_shape s, may_copy can, const bf16 *q, const bf16 *k, const bf16 *v, O *o,
                 float *lse)
{
    enum { KEYS = cut<W>::KEYS };
    DH_LAUNCHED_SHARED(forward_room<W>, room);
    const block_place p = place_of(1, 0, ROWS, s.Tq, s.H);
    const int64_t kv_head = p.head / (s.H / s.KV), row0 = p.row0 + warp_id() * MMA_ROWS;
    sight rows[2];
    softmax_row soft[2];
    float sums[W / MMA_COLUMNS][4];
    clear(sums);
    for (int i = 0; i < 2; i++) {
        rows[i] = sight_of(s, p.b, row0 + mma_row(2 * i));
        soft[i] = {-INFINITY, 0};
    }
    fill(room.q, queries(s, q, p.b, p.head, p.row0), s.q_row, s.Tq - p.row0, s.D, can.chunks);
    walk<2>(
        keys_from(s, p, 0, KEYS),
        [&](const key_range &at) { return keys_from(s, p, at.u0 + KEYS, KEYS); },
        [&](const key_range &at, int stage) {
            fill(room.k[stage], keys(s, k, p.b, kv_head, at.u0), s.kv_row, at.n, s.D, can.chunks);
            fill(room.v[stage], keys(s, v, p.b, kv_head, at.u0), s.kv_row, at.n, s.D, can.chunks);
        },
        [&](const key_range &at, int stage) {
            float w[KEYS / MMA_COLUMNS][4];
            multiply_rows(room.q, room.k[stage], s.D, w);
            score(s, w);
            if (!all_seen(s, p, at, KEYS)) hide(s, rows, at.u0, w);
            attend(s, w, room.v[stage], soft, sums);
        });
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
        o + output_at(s, p.b, p.head, p.row0), s.o_row, s.Tq - p.row0, s.D, false, can.pairs};
    write_sums(sums, factor, 0, to);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

template <int W> struct kv_room {
    tile<ROWS, W> k, v;
    tile<cut<W>::SIDE, W> q[cut<W>::STAGES], dout[cut<W>::STAGES];
    query_stats stats[cut<W>::STAGES][cut<W>::SIDE];
};

template <int W, class G>
__global__ void __launch_bounds__(WARPS *WARP)
    attn_mma_bwd_kv(dh_attn_shape s, may_copy can, backward_inputs in, bool adds, G *dk, G *dv)
{
    enum { SIDE = cut<W>::SIDE, CHANNELS = cut<W>::CHANNELS };
    DH_LAUNCHED_SHARED(kv_room<W>, room);
    const int64_t n_chunks = (s.D + CHANNELS - 1) / CHANNELS;
    const block_place p = place_of(n_chunks, CHANNELS, ROWS, s.Tk, s.KV);
    float sum_k[CHANNELS / MMA_COLUMNS][4], sum_v[CHANNELS / MMA_COLUMNS][4];
    clear(sum_k);
    clear(sum_v);
    int64_t key[2];
    for (int i = 0; i < 2; i++)
        key[i] = place_in_sight(s, p.row0 + warp_id() * MMA_ROWS + mma_row(2 * i));
    fill(room.k, keys(s, in.k, p.b, p.head, p.row0), s.kv_row, s.Tk - p.row0, s.D, can.chunks);
    fill(room.v, keys(s, in.v, p.b, p.head, p.row0), s.kv_row, s.Tk - p.row0, s.D, can.chunks);
    const query_range first = {p.head * (s.H / s.KV), 0, SIDE};
    walk<cut<W>::STAGES>(
        queries_from(s, p, SIDE, first),
        [&](const query_range &at) {
            const query_range behind = {at.head, at.t0 + SIDE, SIDE};
            return queries_from(s, p, SIDE, behind);
        },
        [&](const query_range &at, int stage) {
            const bf16 *dout = in.dout + output_at(s, p.b, at.head, at.t0);
            fill(room.q[stage], queries(s, in.q, p.b, at.head, at.t0), s.q_row, s.Tq - at.t0, s.D,
                 can.chunks);
            fill(room.dout[stage], dout, s.o_row, s.Tq - at.t0, s.D, can.chunks);
            if (threadIdx.x < SIDE)
                room.stats[stage][threadIdx.x] = stats_of(s, in, p.b, at.head, at.t0 + threadIdx.x);
        },
        [&](const query_range &at, int stage) {
            float w[SIDE / MMA_COLUMNS][4], dw[SIDE / MMA_COLUMNS][4];
            multiply_rows(room.k, room.q[stage], s.D, w);
            multiply_rows(room.v, room.dout[stage], s.D, dw);
            kv_score_gradients(s, room.stats[stage], key, w, dw);
            weigh(w, room.dout[stage], (int)p.c0, s.D, sum_v);
            weigh(dw, room.q[stage], (int)p.c0, s.D, sum_k);
        });
    const int64_t at = p.b * s.dkv_batch + p.row0 * s.dkv_row + p.head * s.D;
    const float scale[2] = {s.scale, s.scale}, one[2] = {1, 1};
    const result<G> to_k = {dk + at, s.dkv_row, s.Tk - p.row0, s.D, adds, can.pairs};
    const result<G> to_v = {dv + at, s.dkv_row, s.Tk - p.row0, s.D, adds, can.pairs};
    write_sums(sum_k, scale, p.c0, to_k);
    write_sums(sum_v, one, p.c0, to_v);
}

template <int W> struct q_room {
    tile<ROWS, W> q, dout;
    tile<cut<W>::SIDE, W> k[cut<W>::STAGES], v[cut<W>::STAGES];
};

template <int W, class G>
__global__ void __launch_bounds__(WARPS *WARP)
    attn_mma_bwd_q(dh_attn_shape s, may_copy can, backward_inputs in, bool adds, G *dq)
{
    enum { SIDE = cut<W>::SIDE };
    DH_LAUNCHED_SHARED(q_room<W>, room);
    const block_place p = place_of(1, 0, ROWS, s.Tq, s.H);
    const int64_t kv_head = p.head / (s.H / s.KV);
    const bf16 *dout = in.dout + output_at(s, p.b, p.head, p.row0);
    float sums[W / MMA_COLUMNS][4];
    clear(sums);
    query_stats query[2];
    for (int i = 0; i < 2; i++)
        query[i] = stats_of(s, in, p.b, p.head, p.row0 + warp_id() * MMA_ROWS + mma_row(2 * i));
    fill(room.q, queries(s, in.q, p.b, p.head, p.row0), s.q_row, s.Tq - p.row0, s.D, can.chunks);
    fill(room.dout, dout, s.o_row, s.Tq - p.row0, s.D, can.chunks);
    walk<cut<W>::STAGES>(
        keys_from(s, p, 0, SIDE),
        [&](const key_range &at) { return keys_from(s, p, at.u0 + SIDE, SIDE); },
        [&](const key_range &at, int stage) {
            fill(room.k[stage], keys(s, in.k, p.b, kv_head, at.u0), s.kv_row, at.n, s.D,
                 can.chunks);
            fill(room.v[stage], keys(s, in.v, p.b, kv_head, at.u0), s.kv_row, at.n, s.D,
                 can.chunks);
        },
        [&](const key_range &at, int stage) {
            float w[SIDE / MMA_COLUMNS][4], dw[SIDE / MMA_COLUMNS][4];
            multiply_rows(room.q, room.k[stage], s.D, w);
            multiply_rows(room.dout, room.v[stage], s.D, dw);
            q_score_gradients(s, query, at.u0, w, dw);
            weigh(dw, room.k[stage], 0, s.D, sums);
        });
    const float scale[2] = {s.scale, s.scale};
    const result<G> to = {dq + p.b * s.dq_batch + p.row0 * s.dq_row + p.head * s.D,
                          s.dq_row,
                          s.Tq - p.row0,
                          s.D,
                          adds,
                          can.pairs};
    write_sums(sums, scale, 0, to);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

enum { MOST_CHANNELS = 256 };

static_assert(sizeof(forward_room<MOST_CHANNELS>) <= MOST_SHARED, "keys do not fit");
static_assert(sizeof(forward_room<128>) <= MOST_SHARED, "keys do not fit");
static_assert(sizeof(kv_room<MOST_CHANNELS>) <= MOST_SHARED, "queries do not fit");
static_assert(sizeof(kv_room<128>) <= MOST_SHARED, "queries do not fit");
static_assert(sizeof(q_room<MOST_CHANNELS>) <= MOST_SHARED, "keys do not fit");
static_assert(sizeof(q_room<128>) <= MOST_SHARED, "keys do not fit");

bool dh_cuda_attn_mma_takes(const dh_attn_shape *s)
{
    return s->dtype == DH_BF16 && s->D <= MOST_CHANNELS;
}

template <int W> struct channels {
    enum { most = W };
};

template <class F> static void by_channels(int64_t D, F f)
{
    if (D <= 64)
        f(channels<64>());
    else if (D <= 128)
        f(channels<128>());
    else
        f(channels<MOST_CHANNELS>());
}

static bool in_chunks(int64_t D, int64_t row, int64_t batch, const void *x)
{
    return heads_in_runs(CHUNK, sizeof(bf16), D, row, batch, x);
}

static bool has_chunks(const dh_attn_shape &s, const void *q, const void *k, const void *v)
{
    return in_chunks(s.D, s.q_row, s.q_batch, q) && in_chunks(s.D, s.kv_row, s.kv_batch, k) &&
           in_chunks(s.D, s.kv_row, s.kv_batch, v);
}

void dh_cuda_attn_mma_fwd(dh_cuda_stream stream, const dh_attn_shape *shape, const void *q,
                          const void *k, const void *v, void *o, float *lse)
{
    const dh_attn_shape s = *shape;
    const int64_t n_blocks = div_up(s.Tq, ROWS) * s.H * s.B;
    by_channels(s.D, [&](auto width) {
        by_type(s.o_dtype, [&](auto u) {
            typedef typename decltype(u)::type O;
            enum { W = decltype(width)::most };
            const may_copy can = {has_chunks(s, q, k, v),
                                  heads_in_runs(2, sizeof(O), s.D, s.o_row, s.o_batch, o)};
            launch_with(sizeof(forward_room<W>), attn_mma_fwd<W, O>, n_blocks, MMA_THREADS, stream,
                        s, can, (const bf16 *)q, (const bf16 *)k, (const bf16 *)v, (O *)o, lse);
        });
    });
}

template <int W, class G>
static void run_backward(dh_cuda_stream stream, const dh_attn_shape &s, const backward_inputs &in,
                         bool chunks, G *dq, G *dk, G *dv, bool adds)
{
    const may_copy kv = {chunks, heads_in_runs(2, sizeof(G), s.D, s.dkv_row, s.dkv_batch, dk) &&
                                     heads_in_runs(2, sizeof(G), s.D, s.dkv_row, s.dkv_batch, dv)};
    const may_copy q = {chunks, heads_in_runs(2, sizeof(G), s.D, s.dq_row, s.dq_batch, dq)};
    const int64_t n_chunks = div_up(s.D, cut<W>::CHANNELS);
    launch_with(sizeof(kv_room<W>), attn_mma_bwd_kv<W, G>,
                n_chunks * div_up(s.Tk, ROWS) * s.KV * s.B, MMA_THREADS, stream, s, kv, in, adds,
                dk, dv);
    launch_with(sizeof(q_room<W>), attn_mma_bwd_q<W, G>, div_up(s.Tq, ROWS) * s.H * s.B,
                MMA_THREADS, stream, s, q, in, adds, dq);
}

void dh_cuda_attn_mma_bwd(dh_cuda_stream stream, const dh_attn_shape *shape,
                          const dh_cuda_attn_inputs *in, void *dq, void *dk, void *dv, bool adds)
{
    const dh_attn_shape s = *shape;
    const backward_inputs of = {(const bf16 *)in->dout,
                                (const bf16 *)in->q,
                                (const bf16 *)in->k,
                                (const bf16 *)in->v,
                                in->lse,
                                in->delta};
    const bool chunks =
        has_chunks(s, in->q, in->k, in->v) && in_chunks(s.D, s.o_row, s.o_batch, in->dout);
    by_channels(s.D, [&](auto width) {
        by_type(s.g_dtype, [&](auto u) {
            typedef typename decltype(u)::type G;
            run_backward<decltype(width)::most>(stream, s, of, chunks, (G *)dq, (G *)dk, (G *)dv,
                                                adds);
        });
    });
}
