/* Common parts of attention on tensor cores, by mma (attn_mma.cu) and by wgmma (attn_wgmma.cu).
 * Sums of both lie in the same registers: a warp has 16 rows, with columns in groups of eight. The
 * parts are the range of keys, scores, weights and their gradients, and results. */
#ifndef DH_RUN_CUDA_KERNELS_ATTN_ROWS_CUH
#define DH_RUN_CUDA_KERNELS_ATTN_ROWS_CUH

#include "run/cuda/kernels/attn.cuh"
#include "run/cuda/kernels/mma.cuh"

/* ---- sums --------------------------------------------------------------------------------------
 */

/* 16 rows, N times eight columns of sums. */
template <int N> DEVICE void clear(float (&sums)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) sums[n][i] = 0;
}

/* Sixteen columns of sums as A. */
DEVICE void round_sums(const float (&left)[4], const float (&right)[4], unsigned (&a)[4])
{
    a[0] = pair_of(left[0], left[1]);
    a[1] = pair_of(left[2], left[3]);
    a[2] = pair_of(right[0], right[1]);
    a[3] = pair_of(right[2], right[3]);
}

DEVICE void take_rounded(float (&left)[4], float (&right)[4], const unsigned (&a)[4])
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        left[2 * i] -= first_of(a[i]);
        left[2 * i + 1] -= second_of(a[i]);
        right[2 * i] -= first_of(a[2 + i]);
        right[2 * i + 1] -= second_of(a[2 + i]);
    }
}

/* Channels from c0 on; factor: of each of a thread's two rows. */
template <int C, class T>
DEVICE void write_sums(const float (&sums)[C][4], const float (&factor)[2], int64_t c0,
                       const result<T> &to)
{
    UNROLL
    for (int n = 0; n < C; n++)
        for (int i = 0; i < 4; i += 2) {
            const int64_t row = warp_id() * MMA_ROWS + mma_row(i);
            const int64_t c = c0 + n * MMA_COLUMNS + mma_column(i);
            float x[2] = {sums[n][i] * factor[i / 2], sums[n][i + 1] * factor[i / 2]};
            write_pair(to, row, c, x);
        }
}

/* Where o lies, and dO. */
DEVICE int64_t output_at(const dh_attn_shape &s, int64_t b, int64_t head, int64_t t0)
{
    return b * s.o_batch + t0 * s.o_row + head * s.D;
}

/* ---- rows that come by -------------------------------------------------------------------------
 */

/* Keys from u0 on, n of them. */
struct key_range {
    int64_t u0, n;
};

/* The first keys, from u0 on in steps of `most`, of which a block's queries see any. */
DEVICE key_range keys_from(const dh_attn_shape &s, const block_place &p, int64_t u0, int64_t most)
{
    for (; u0 < s.Tk; u0 += most) {
        const int64_t n = keys_seen(s, p.row0 + p.rows, u0, most);
        if (n == 0) break;
        if (!all_hidden(s, p.b, p.row0, u0, n)) return key_range{u0, n};
    }
    return key_range{u0, 0};
}

/* Whether every one of a block's queries sees every one of `most` keys. */
DEVICE bool all_seen(const dh_attn_shape &s, const block_place &p, const key_range &at,
                     int64_t most)
{
    const int64_t end = p.row0 + p.rows;
    return at.n == most && end <= s.Tq &&
           key_position(s, at.u0 + most - 1) <= query_position(s, p.row0) &&
           key_position(s, at.u0) >= first_seen(s, p.b, end - 1);
}

/* Positions that a query sees. */
struct sight {
    int64_t first, last;
};

DEVICE sight sight_of(const dh_attn_shape &s, int64_t b, int64_t t)
{
    return sight{first_seen(s, b, t), query_position(s, t)};
}

/* Of a key that is none: behind all queries. */
DEVICE int64_t place_in_sight(const dh_attn_shape &s, int64_t u)
{
    return u < s.Tk ? key_position(s, u) : INT64_MAX;
}

DEVICE bool in_sight(const sight &of, int64_t position)
{
    return position <= of.last && position >= of.first;
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Over the four threads that share rows of sums. */
DEVICE float row_max(float x)
{
    for (unsigned step = 1; step < 4; step *= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, x, step);
        x = other > x ? other : x;
    }
    return x;
}

DEVICE float row_sum(float x)
{
    for (unsigned step = 1; step < 4; step *= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

struct softmax_row {
    float max, sum; /* sum: of the thread's own columns */
};

/* Scores of row i of a thread become weights against the new maximum; returns what earlier sums are
 * scaled by. A score that is not a number makes all of its row so. */
template <int N> DEVICE float soften(float (&s)[N][4], int i, softmax_row *row)
{
    float max = row->max, sum = 0;
    UNROLL
    for (int n = 0; n < N; n++)
        for (int e = 2 * i; e < 2 * i + 2; e++) max = s[n][e] > max ? s[n][e] : max;
    max = row_max(max);
    UNROLL
    for (int n = 0; n < N; n++)
        for (int e = 2 * i; e < 2 * i + 2; e++) {
            s[n][e] = s[n][e] == -INFINITY ? 0.0f : expf(s[n][e] - max);
            sum += s[n][e];
        }
    const float kept = row->max == -INFINITY ? 0.0f : expf(row->max - max);
    row->sum = row->sum * kept + sum;
    row->max = max;
    return kept;
}

/* Products become scores. */
template <int N> DEVICE void score(const dh_attn_shape &s, float (&x)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) {
            x[n][i] *= s.scale;
            if (s.softcap > 0) x[n][i] = s.softcap * tanhf(x[n][i] / s.softcap);
        }
}

template <int N>
DEVICE void hide(const dh_attn_shape &s, const sight (&rows)[2], int64_t u0, float (&x)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 2; e++) {
            const int64_t key = place_in_sight(s, u0 + n * MMA_COLUMNS + mma_column(e));
            for (int i = 0; i < 2; i++)
                if (!in_sight(rows[i], key)) x[n][2 * i + e] = -INFINITY;
        }
}

/* ---- backward ---------------------------------------------------------------------------------
 */

struct backward_inputs {
    const bf16 *dout, *q, *k, *v;
    const float *lse, *delta;
};

/* A query's values that the gradients of its scores need. */
struct query_stats {
    sight seen;
    float lse, delta;
};

DEVICE query_stats stats_of(const dh_attn_shape &s, const backward_inputs &in, int64_t b,
                            int64_t head, int64_t t)
{
    const int64_t at = stat_at(s, b, head, t);
    query_stats stats = {sight_of(s, b, t), 0, 0};
    if (t < s.Tq) {
        stats.lse = in.lse[at];
        stats.delta = in.delta[at];
    }
    return stats;
}

/* Products Q K^T and dO V^T become a weight and the gradient of its score. */
DEVICE void score_gradient(const dh_attn_shape &s, const query_stats &query, int64_t key, float *w,
                           float *dw)
{
    float value = *w * s.scale, slope = 1;
    if (s.softcap > 0) {
        const float share = tanhf(value / s.softcap);
        value = s.softcap * share;
        slope = 1.0f - share * share;
    }
    const bool counts = in_sight(query.seen, key);
    *w = counts ? expf(value - query.lse) : 0.0f;
    *dw = counts ? *w * (*dw - query.delta) * slope : 0.0f;
}

/* Queries from t0 on of a head; n 0: there are no more. */
struct query_range {
    int64_t head, t0, n;
};

/* The first queries, from `at` on, that see any of a block's keys. */
DEVICE query_range queries_from(const dh_attn_shape &s, const block_place &p, int64_t most,
                                query_range at)
{
    const int64_t end = (p.head + 1) * (s.H / s.KV);
    for (; at.head < end; at.head++, at.t0 = 0)
        for (; at.t0 < s.Tq; at.t0 += most) {
            const int64_t n = keys_seen(s, at.t0 + most, p.row0, p.rows);
            if (n == 0) continue;
            if (all_hidden(s, p.b, at.t0, p.row0, n)) break; /* and from all behind */
            return query_range{at.head, at.t0, most};
        }
    return query_range{at.head, 0, 0};
}

template <int N>
DEVICE void kv_score_gradients(const dh_attn_shape &s, const query_stats *stats,
                               const int64_t (&key)[2], float (&w)[N][4], float (&dw)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 2; e++) {
            const query_stats query = stats[n * MMA_COLUMNS + mma_column(e)];
            for (int i = 0; i < 2; i++)
                score_gradient(s, query, key[i], &w[n][2 * i + e], &dw[n][2 * i + e]);
        }
}

template <int N>
DEVICE void q_score_gradients(const dh_attn_shape &s, const query_stats (&query)[2], int64_t u0,
                              float (&w)[N][4], float (&dw)[N][4])
{
    UNROLL
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 2; e++) {
            const int64_t key = place_in_sight(s, u0 + n * MMA_COLUMNS + mma_column(e));
            for (int i = 0; i < 2; i++)
                score_gradient(s, query[i], key, &w[n][2 * i + e], &dw[n][2 * i + e]);
        }
}

/* Whether heads of all rows begin at multiples of n elements. */
static bool heads_in_runs(int64_t n, size_t n_bytes, int64_t D, int64_t row, int64_t batch,
                          const void *x)
{
    return in_runs(n, n_bytes, x, D) && row % n == 0 && batch % n == 0;
}

#endif
