/* Attention forward and backward over blocks of 64 queries and 64 keys (FlashAttention: Dao et al.
 * 2022; backward: its algorithm 4). With queries Q scaled when they are read:
 *   forward   S = Q K^T, o = softmax(S) V by a running maximum and sum a query, lse.
 *   backward  P = exp(S - lse), dP = dO V^T, dS = P (dP - rowsum of dO o),
 *             dV += P^T dO, dK += dS^T Q, dQ += scale dS K.
 * Capped scores are c tanh(Q K^T / c), and dS is multiplied by 1 - tanh^2.
 * A block of 256 threads, 16 x 16 of them, each with 4 x 4 scores. Head dimensions go through
 * shared memory in slices of 32; a block makes up to 32 SLICES channels of its result, and one for
 * wider heads makes the scores again. Backward takes a launch for dK and dV, which walks queries,
 * and one for dQ, which walks keys: scores are made twice and nothing is added atomically.
 * Products are of float32: for inputs of float32, and for heads too wide for attn_mma.cu.
 * Reference: dh_k_attn_*. */
#include "run/cuda/kernels/attn.cuh"

enum { BLOCK = 64, SLICE = 32, SIDE = 16, PER = BLOCK / SIDE, COLUMNS = SLICE / SIDE };
static const int64_t ATTN_THREADS = SIDE * SIDE;

/* Rows of a block, padded against bank conflicts. */
struct tiles {
    float a[BLOCK][SLICE + 1], b[BLOCK][SLICE + 1], p[BLOCK][BLOCK + 1];
};

typedef float scores_of[PER][PER]; /* [i][j]: row row_of(i), key column_of(j) */

DEVICE int row_of(int i)
{
    return (int)threadIdx.x / SIDE * PER + i;
}

DEVICE int column_of(int j)
{
    return (int)threadIdx.x % SIDE + j * SIDE;
}

/* n rows of D elements, `step` elements apart. */
template <class T> struct rows_of {
    const T *at;
    int64_t step, n;
    float factor;
};

template <class T>
DEVICE void load_slice(float (&to)[BLOCK][SLICE + 1], const rows_of<T> &from, int64_t c0, int64_t D)
{
    for (int i = (int)threadIdx.x; i < BLOCK * SLICE; i += SIDE * SIDE) {
        const int r = i / SLICE, c = i % SLICE;
        const bool there = r < from.n && c0 + c < D;
        to[r][c] = there ? widen(from.at[r * from.step + c0 + c]) * from.factor : 0.0f;
    }
}

/* s = A B^T over all channels. */
template <class A, class B>
DEVICE void make_scores(const rows_of<A> &a, const rows_of<B> &b, int64_t D, tiles &t, scores_of &s)
{
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) s[i][j] = 0;
    for (int64_t c0 = 0; c0 < D; c0 += SLICE) {
        __syncthreads(); /* the slices before are used up */
        load_slice(t.a, a, c0, D);
        load_slice(t.b, b, c0, D);
        __syncthreads();
        for (int d = 0; d < SLICE; d++) {
            float x[PER], y[PER];
            for (int i = 0; i < PER; i++) x[i] = t.a[row_of(i)][d];
            for (int j = 0; j < PER; j++) y[j] = t.b[column_of(j)][d];
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < PER; j++) s[i][j] += x[i] * y[j];
        }
    }
}

/* Waits until nobody reads t.p any more. */
DEVICE void write_scores(const scores_of &s, tiles &t)
{
    __syncthreads();
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) t.p[row_of(i)][column_of(j)] = s[i][j];
}

template <int SLICES> struct sums_of {
    float at[SLICES][PER][COLUMNS]; /* row row_of(i), channel c0 + 32 slice + column_of(j) */
};

template <int SLICES> DEVICE void clear(sums_of<SLICES> &sums)
{
    for (int s = 0; s < SLICES; s++)
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < COLUMNS; j++) sums.at[s][i][j] = 0;
}

/* sums += p m, or p^T m: channels from c0 on of the rows m. */
template <bool TRANSPOSED, int SLICES, class T>
DEVICE void weigh(const rows_of<T> &m, int64_t c0, int64_t D, tiles &t, sums_of<SLICES> &sums)
{
    UNROLL
    for (int s = 0; s < SLICES; s++) {
        if (c0 + s * SLICE >= D) continue;
        __syncthreads();
        load_slice(t.b, m, c0 + s * SLICE, D);
        __syncthreads();
        for (int k = 0; k < BLOCK; k++) {
            float w[PER], y[COLUMNS];
            for (int i = 0; i < PER; i++) w[i] = TRANSPOSED ? t.p[k][row_of(i)] : t.p[row_of(i)][k];
            for (int j = 0; j < COLUMNS; j++) y[j] = t.b[k][column_of(j)];
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < COLUMNS; j++) sums.at[s][i][j] += w[i] * y[j];
        }
    }
}

/* Rows of n at `to`, `step` apart: overwritten, or added to. */
template <int SLICES, class T>
DEVICE void write_sums(const sums_of<SLICES> &sums, const float factor[PER], int64_t n, int64_t c0,
                       int64_t D, bool adds, int64_t step, T *to)
{
    UNROLL
    for (int s = 0; s < SLICES; s++)
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < COLUMNS; j++) {
                const int64_t c = c0 + s * SLICE + column_of(j), at = row_of(i) * step + c;
                if (row_of(i) >= n || c >= D) continue;
                const float sum = sums.at[s][i][j] * factor[i];
                narrow(adds ? widen(to[at]) + sum : sum, &to[at]);
            }
}

/* ---- places ------------------------------------------------------------------------------------
 */

template <class T>
DEVICE rows_of<T> rows_at(const T *x, int64_t at, int64_t step, int64_t n, float factor)
{
    rows_of<T> r;
    r.at = x + at;
    r.step = step;
    r.n = n < BLOCK ? n : (int64_t)BLOCK;
    r.factor = factor;
    return r;
}

template <class T>
DEVICE rows_of<T> queries(const dh_attn_shape &s, const T *q, int64_t b, int64_t head, int64_t t0)
{
    return rows_at(q, b * s.q_batch + t0 * s.q_row + head * s.D, s.q_row, s.Tq - t0, s.scale);
}

template <class T>
DEVICE rows_of<T> outputs(const dh_attn_shape &s, const T *o, int64_t b, int64_t head, int64_t t0)
{
    return rows_at(o, b * s.o_batch + t0 * s.o_row + head * s.D, s.o_row, s.Tq - t0, 1.0f);
}

template <class T>
DEVICE rows_of<T> keys(const dh_attn_shape &s, const T *k, int64_t b, int64_t kv_head, int64_t u0,
                       int64_t n)
{
    return rows_at(k, b * s.kv_batch + u0 * s.kv_row + kv_head * s.D, s.kv_row, n, 1.0f);
}

/* ---- forward
 * --------------------------------------------------------------------------------------- */

/* Over the 16 threads that share rows. */
DEVICE float side_max(float x)
{
    for (unsigned step = SIDE / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, x, step);
        x = other > x ? other : x;
    }
    return x;
}

DEVICE float side_sum(float x)
{
    for (unsigned step = SIDE / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

struct softmax_row {
    float max, sum;
};

/* Scores become weights against the new maximum; returns what earlier sums are scaled by. A score
 * that is not a number makes all of its row so. */
DEVICE float soften(float (&s)[PER], softmax_row *row)
{
    float max = row->max, sum = 0;
    for (int j = 0; j < PER; j++) max = s[j] > max ? s[j] : max;
    max = side_max(max);
    for (int j = 0; j < PER; j++) {
        s[j] = s[j] == -INFINITY ? 0.0f : expf(s[j] - max);
        sum += s[j];
    }
    const float kept = row->max == -INFINITY ? 0.0f : expf(row->max - max);
    row->sum = row->sum * kept + side_sum(sum);
    row->max = max;
    return kept;
}

template <int SLICES, class T, class O>
__global__ void __launch_bounds__(SIDE *SIDE)
    attn_fwd(dh_attn_shape s, const T *q, const T *k, const T *v, O *o, float *lse)
{
    DH_SHARED(tiles, shared, [1]);
    tiles &t = shared[0];
    const int64_t chunk = SLICES * SLICE, n_chunks = (s.D + chunk - 1) / chunk;
    const block_place p = place_of(n_chunks, chunk, BLOCK, s.Tq, s.H);
    const int64_t kv_head = p.head / (s.H / s.KV);
    const rows_of<T> q_rows = queries(s, q, p.b, p.head, p.row0);
    softmax_row rows[PER];
    sums_of<SLICES> sums;
    clear(sums);
    for (int i = 0; i < PER; i++) rows[i] = {-INFINITY, 0};
    for (int64_t k0 = 0; k0 < s.Tk; k0 += BLOCK) {
        const int64_t n = keys_seen(s, p.row0 + BLOCK, k0, BLOCK);
        if (n == 0) break;
        if (all_hidden(s, p.b, p.row0, k0, n)) continue;
        scores_of w;
        make_scores(q_rows, keys(s, k, p.b, kv_head, k0, n), s.D, t, w);
        for (int i = 0; i < PER; i++) {
            const int64_t row = p.row0 + row_of(i), first = first_seen(s, p.b, row);
            for (int j = 0; j < PER; j++) {
                if (s.softcap > 0) w[i][j] = s.softcap * tanhf(w[i][j] / s.softcap);
                if (!sees(s, row, first, k0 + column_of(j))) w[i][j] = -INFINITY;
            }
            const float kept = soften(w[i], &rows[i]);
            for (int c = 0; c < SLICES; c++)
                for (int j = 0; j < COLUMNS; j++) sums.at[c][i][j] *= kept;
        }
        write_scores(w, t);
        weigh<false>(keys(s, v, p.b, kv_head, k0, n), p.c0, s.D, t, sums);
    }
    float factor[PER];
    for (int i = 0; i < PER; i++) {
        const int64_t row = p.row0 + row_of(i);
        factor[i] = rows[i].max == -INFINITY ? 0.0f : 1.0f / rows[i].sum;
        if (row < s.Tq && p.c0 == 0 && column_of(0) == 0)
            lse[stat_at(s, p.b, p.head, row)] =
                rows[i].max == -INFINITY ? -INFINITY : rows[i].max + logf(rows[i].sum);
    }
    write_sums(sums, factor, s.Tq - p.row0, p.c0, s.D, false, s.o_row,
               o + p.b * s.o_batch + p.row0 * s.o_row + p.head * s.D);
}

/* Calls f with how many slices a block makes: TUNING: what registers hold beside the scores. */
template <int N> struct slices {
    enum { count = N };
};

template <class F> static void by_width(float, int64_t D, F f)
{
    if (D <= 2 * SLICE)
        f(slices<2>());
    else if (D <= 4 * SLICE)
        f(slices<4>());
    else
        f(slices<8>());
}

/* Heads that attn_mma.cu leaves are wide. */
template <class F> static void by_width(bf16, int64_t, F f)
{
    f(slices<8>());
}

static dh_attn_shape scaled(const dh_attn_shape *s)
{
    dh_attn_shape with_scale = *s;
    if (s->scale == 0) with_scale.scale = (float)(1 / std::sqrt((double)s->D));
    return with_scale;
}

void dh_cuda_attn_fwd(dh_cuda_stream stream, const dh_attn_shape *shape, const void *q,
                      const void *k, const void *v, void *o, float *lse)
{
    const dh_attn_shape s = scaled(shape);
    if (dh_cuda_attn_wgmma_fwd(stream, &s, q, k, v, o, lse)) return;
    if (dh_cuda_attn_mma_takes(&s)) {
        dh_cuda_attn_mma_fwd(stream, &s, q, k, v, o, lse);
        return;
    }
    by_type(s.dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        by_width(T(), s.D, [&](auto width) {
            const int64_t n_chunks = div_up(s.D, width.count * SLICE);
            const int64_t n_blocks = n_chunks * div_up(s.Tq, BLOCK) * s.H * s.B;
            by_type(s.o_dtype, [&](auto u) {
                typedef typename decltype(u)::type O;
                launch(attn_fwd<width.count, T, O>, n_blocks, ATTN_THREADS, stream, s, (const T *)q,
                       (const T *)k, (const T *)v, (O *)o, lse);
            });
        });
    });
}

/* ---- merge
 * ------------------------------------------------------------------------------------------ */

/* A warp a query and head: its lanes read both statistics before one of them writes. */
template <class O>
__global__ void attn_merge(dh_attn_shape s, int64_t n, O *o, float *lse, const O *o_part,
                           const float *lse_part)
{
    const int64_t stat = first_of_grid() / WARP;
    if (stat >= n) return;
    const int64_t row = stat % s.Tq, head = stat / s.Tq % s.H, b = stat / (s.Tq * s.H);
    const int64_t at = b * s.o_batch + row * s.o_row + head * s.D;
    const float mine = lse[stat], other = lse_part[stat], max = mine > other ? mine : other;
    const float w_mine = max == -INFINITY ? 0.0f : expf(mine - max);
    const float w_other = max == -INFINITY ? 0.0f : expf(other - max), sum = w_mine + w_other;
    __syncwarp();
    if (lane_id() == 0 && max != -INFINITY) lse[stat] = max + logf(sum);
    for (int64_t c = lane_id(); c < s.D; c += WARP) {
        const float both = w_mine * widen(o[at + c]) + w_other * widen(o_part[at + c]);
        narrow(max == -INFINITY ? 0.0f : both / sum, &o[at + c]);
    }
}

void dh_cuda_attn_merge(dh_cuda_stream stream, const dh_attn_shape *s, void *o, float *lse,
                        const void *o_part, const float *lse_part)
{
    const int64_t n = s->B * s->H * s->Tq;
    by_type(s->o_dtype, [&](auto u) {
        typedef typename decltype(u)::type O;
        launch(attn_merge<O>, div_up(n * WARP, FLAT_THREADS), FLAT_THREADS, stream, *s, n, (O *)o,
               lse, (const O *)o_part, lse_part);
    });
}

/* ---- backward
 * ---------------------------------------------------------------------------------------- */

/* A warp a query and head: delta = dO . o. */
template <class T, class O>
__global__ void attn_delta(dh_attn_shape s, int64_t n, const T *dout, const O *o, float *delta)
{
    const int64_t stat = first_of_grid() / WARP;
    if (stat >= n) return;
    const int64_t row = stat % s.Tq, head = stat / s.Tq % s.H, b = stat / (s.Tq * s.H);
    const int64_t at = b * s.o_batch + row * s.o_row + head * s.D;
    float sum = 0;
    for (int64_t c = lane_id(); c < s.D; c += WARP) sum += widen(dout[at + c]) * widen(o[at + c]);
    sum = warp_sum(sum);
    if (lane_id() == 0) delta[stat] = sum;
}

/* Inputs of the backward, with the types in which it reads them. */
template <class T> struct attn_inputs {
    const T *dout, *q, *k, *v;
    const float *lse, *delta;
};

/* Weights and gradients of scores of the queries from t0 and the keys from u0 on, n of them. */
template <class T>
DEVICE void score_gradients(const dh_attn_shape &s, const attn_inputs<T> &in, int64_t b,
                            int64_t head, int64_t t0, int64_t u0, int64_t n, tiles &t, scores_of &w,
                            scores_of &dw)
{
    const int64_t kv_head = head / (s.H / s.KV);
    make_scores(queries(s, in.q, b, head, t0), keys(s, in.k, b, kv_head, u0, n), s.D, t, w);
    make_scores(outputs(s, in.dout, b, head, t0), keys(s, in.v, b, kv_head, u0, n), s.D, t, dw);
    for (int i = 0; i < PER; i++) {
        const int64_t row = t0 + row_of(i), stat = stat_at(s, b, head, row);
        const int64_t first = first_seen(s, b, row);
        for (int j = 0; j < PER; j++) {
            const bool counts = sees(s, row, first, u0 + column_of(j));
            const float share = s.softcap > 0 ? tanhf(w[i][j] / s.softcap) : 0.0f;
            const float score = s.softcap > 0 ? s.softcap * share : w[i][j];
            w[i][j] = counts ? expf(score - in.lse[stat]) : 0.0f;
            dw[i][j] =
                counts ? w[i][j] * (dw[i][j] - in.delta[stat]) * (1.0f - share * share) : 0.0f;
        }
    }
}

template <int SLICES, class T, class G>
__global__ void __launch_bounds__(SIDE *SIDE)
    attn_bwd_kv(dh_attn_shape s, attn_inputs<T> in, bool adds, G *dk, G *dv)
{
    DH_SHARED(tiles, shared, [1]);
    tiles &t = shared[0];
    const int64_t chunk = SLICES * SLICE, n_chunks = (s.D + chunk - 1) / chunk;
    const block_place p = place_of(n_chunks, chunk, BLOCK, s.Tk, s.KV);
    const int64_t group = s.H / s.KV;
    sums_of<SLICES> sum_k, sum_v;
    clear(sum_k);
    clear(sum_v);
    for (int64_t head = p.head * group; head < (p.head + 1) * group; head++)
        for (int64_t t0 = 0; t0 < s.Tq; t0 += BLOCK) {
            const int64_t n = keys_seen(s, t0 + BLOCK, p.row0, BLOCK);
            if (n == 0) continue;
            if (all_hidden(s, p.b, t0, p.row0, n)) break;
            scores_of w, dw;
            score_gradients(s, in, p.b, head, t0, p.row0, n, t, w, dw);
            write_scores(w, t);
            weigh<true>(outputs(s, in.dout, p.b, head, t0), p.c0, s.D, t, sum_v);
            write_scores(dw, t);
            weigh<true>(queries(s, in.q, p.b, head, t0), p.c0, s.D, t, sum_k);
        }
    const int64_t at = p.b * s.dkv_batch + p.row0 * s.dkv_row + p.head * s.D;
    float one[PER];
    for (int i = 0; i < PER; i++) one[i] = 1;
    write_sums(sum_k, one, s.Tk - p.row0, p.c0, s.D, adds, s.dkv_row, dk + at);
    write_sums(sum_v, one, s.Tk - p.row0, p.c0, s.D, adds, s.dkv_row, dv + at);
}

template <int SLICES, class T, class G>
__global__ void __launch_bounds__(SIDE *SIDE)
    attn_bwd_q(dh_attn_shape s, attn_inputs<T> in, bool adds, G *dq)
{
    DH_SHARED(tiles, shared, [1]);
    tiles &t = shared[0];
    const int64_t chunk = SLICES * SLICE, n_chunks = (s.D + chunk - 1) / chunk;
    const block_place p = place_of(n_chunks, chunk, BLOCK, s.Tq, s.H);
    sums_of<SLICES> sums;
    clear(sums);
    for (int64_t u0 = 0; u0 < s.Tk; u0 += BLOCK) {
        const int64_t n = keys_seen(s, p.row0 + BLOCK, u0, BLOCK);
        if (n == 0) break;
        if (all_hidden(s, p.b, p.row0, u0, n)) continue;
        scores_of w, dw;
        score_gradients(s, in, p.b, p.head, p.row0, u0, n, t, w, dw);
        write_scores(dw, t);
        weigh<false>(keys(s, in.k, p.b, p.head / (s.H / s.KV), u0, n), p.c0, s.D, t, sums);
    }
    float factor[PER];
    for (int i = 0; i < PER; i++) factor[i] = s.scale;
    write_sums(sums, factor, s.Tq - p.row0, p.c0, s.D, adds, s.dq_row,
               dq + p.b * s.dq_batch + p.row0 * s.dq_row + p.head * s.D);
}

size_t dh_cuda_attn_bwd_workspace(const dh_attn_shape *s)
{
    return (size_t)(s->B * s->H * s->Tq) * sizeof(float);
}

template <class T>
static void make_delta(dh_cuda_stream stream, const dh_attn_shape &s, const T *dout, const void *o,
                       float *delta)
{
    const int64_t n = s.B * s.H * s.Tq;
    by_type(s.o_dtype, [&](auto u) {
        typedef typename decltype(u)::type O;
        launch(attn_delta<T, O>, div_up(n * WARP, FLAT_THREADS), FLAT_THREADS, stream, s, n, dout,
               (const O *)o, delta);
    });
}

template <int SLICES, class T, class G>
static void run_backward(dh_cuda_stream stream, const dh_attn_shape &s, const attn_inputs<T> &in,
                         G *dq, G *dk, G *dv, bool adds)
{
    const int64_t n_chunks = div_up(s.D, SLICES * SLICE);
    launch(attn_bwd_kv<SLICES, T, G>, n_chunks * div_up(s.Tk, BLOCK) * s.KV * s.B, ATTN_THREADS,
           stream, s, in, adds, dk, dv);
    launch(attn_bwd_q<SLICES, T, G>, n_chunks * div_up(s.Tq, BLOCK) * s.H * s.B, ATTN_THREADS,
           stream, s, in, adds, dq);
}

void dh_cuda_attn_bwd(dh_cuda_stream stream, const dh_attn_shape *shape, const void *dout,
                      const void *o, const float *lse, const void *q, const void *k, const void *v,
                      void *dq, void *dk, void *dv, bool accumulate, void *ws)
{
    const dh_attn_shape s = scaled(shape);
    by_type(s.dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        const attn_inputs<T> in = {(const T *)dout, (const T *)q, (const T *)k,
                                   (const T *)v,    lse,          (const float *)ws};
        make_delta(stream, s, in.dout, o, (float *)ws);
        if (dh_cuda_attn_mma_takes(&s)) {
            const dh_cuda_attn_inputs inputs = {dout, q, k, v, lse, in.delta};
            if (dh_cuda_attn_wgmma_bwd(stream, &s, &inputs, dq, dk, dv, accumulate)) return;
            dh_cuda_attn_mma_bwd(stream, &s, &inputs, dq, dk, dv, accumulate);
            return;
        }
        by_type(s.g_dtype, [&](auto u) {
            typedef typename decltype(u)::type G;
            by_width(T(), s.D, [&](auto width) {
                run_backward<decltype(width)::count>(stream, s, in, (G *)dq, (G *)dk, (G *)dv,
                                                     accumulate);
            });
        });
    });
}
