/* Attention forward over blocks of 64 queries and 64 keys with a running maximum
 * and sum per query (FlashAttention: Dao et al. 2022; online softmax: Milakov &
 * Gimelshein 2018). Keys and values of a head are widened to float32 once, keys
 * transposed, and then read by all query blocks of the heads that share them. */
#ifndef DH_RUN_CPU_SIMD_ATTN_H
#define DH_RUN_CPU_SIMD_ATTN_H

#include "run/cpu/simd.h"
#include "run/cpu/simd/block_gemm.h"
#include "run/cpu/simd/vec.h"

enum { BLOCK = DH_ATTN_BLOCK, MAX_DIM = DH_ATTN_MAX_DIM, USUAL_DIM = 256 };

/* ---- operands -------------------------------------------------------------------------- */

INLINE const void *element_at(dh_dtype dtype, const void *x, int64_t i)
{
    return (const char *)x + i * (dtype == DH_BF16 ? 2 : 4);
}

INLINE int64_t q_offset(const dh_attn_shape *s, int64_t b, int64_t head, int64_t t)
{
    return b * s->q_batch + t * s->q_row + head * s->D;
}

INLINE int64_t kv_offset(const dh_attn_shape *s, int64_t b, int64_t kv_head, int64_t t)
{
    return b * s->kv_batch + t * s->kv_row + kv_head * s->D;
}

INLINE int64_t o_offset(const dh_attn_shape *s, int64_t b, int64_t head, int64_t t)
{
    return b * s->o_batch + t * s->o_row + head * s->D;
}

/* How many of the n keys from k0 on query t sees: positions rise, so the first ones. */
INLINE int64_t visible(const dh_attn_shape *s, int64_t t, int64_t k0, int64_t n)
{
    const int64_t pos = s->q_pos ? s->q_pos[t] : t;
    if (!s->k_pos) return DH_MIN(DH_MAX(pos - k0 + 1, 0), n);
    while (n > 0 && s->k_pos[k0 + n - 1] > pos) n--;
    return n;
}

/* The number of the n keys from k0 on that lie too far back for query t, or in another document.
 * They are the first ones, and the next query has as many or more. */
INLINE int64_t hidden(const dh_attn_shape *s, int64_t b, int64_t t, int64_t k0, int64_t n)
{
    if (s->window == 0 && !s->q_doc) return 0;
    const int64_t first = dh_attn_first_seen(s, b, t);
    if (!s->k_pos) return DH_MIN(DH_MAX(first - k0, 0), n);
    int64_t h = 0;
    while (h < n && s->k_pos[k0 + h] < first) h++;
    return h;
}

/* Queries of a block that are handled together: all when they see all n keys, else
 * groups of 16, so that keys which a whole group cannot see cost nothing. */
INLINE int64_t group_of(const dh_attn_shape *s, int64_t b, int64_t t, int64_t rows, int64_t k0,
                        int64_t n)
{
    return visible(s, t, k0, n) == n && hidden(s, b, t + rows - 1, k0, n) == 0 ? BLOCK : 16;
}

INLINE int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- packing --------------------------------------------------------------------------- */

/* dst[rows][dp] = factor * src rows of D elements, zeros behind. */
INLINE void pack_rows_of(bool bf16, int64_t rows, int64_t D, int64_t dp, const void *src,
                         int64_t stride, float factor, float *dst)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < dp; i += W)
            store_f32(dst + r * dp + i, W,
                      i < D ? load(bf16, src, r * stride + i, D - i) * factor : (vf){0});
}

static void pack_rows(dh_dtype dtype, int64_t rows, int64_t D, int64_t dp, const void *src,
                      int64_t stride, float factor, float *dst)
{
    BY_DTYPE(dtype, pack_rows_of, rows, D, dp, src, stride, factor, dst);
}

/* dst[0..3][BLOCK] columns 0..3 = transpose of src[0..3][dp] columns 0..3. */
INLINE void transpose_4x4(const float *src, int64_t dp, float *dst)
{
#if defined(__x86_64__)
    __m128 r0 = _mm_loadu_ps(src), r1 = _mm_loadu_ps(src + dp);
    __m128 r2 = _mm_loadu_ps(src + 2 * dp), r3 = _mm_loadu_ps(src + 3 * dp);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(dst, r0);
    _mm_storeu_ps(dst + BLOCK, r1);
    _mm_storeu_ps(dst + 2 * BLOCK, r2);
    _mm_storeu_ps(dst + 3 * BLOCK, r3);
#else
    for (int64_t d = 0; d < 4; d++)
        for (int64_t r = 0; r < 4; r++) dst[d * BLOCK + r] = src[r * dp + d];
#endif
}

/* dst[D][BLOCK] = transpose of `rows` packed rows; missing keys are zeros. */
static void transpose_block(int64_t rows, int64_t D, int64_t dp, const float *src, float *dst)
{
    const int64_t whole_rows = rows / 4 * 4, whole_d = D / 4 * 4;
    for (int64_t d = 0; d < whole_d; d += 4)
        for (int64_t r = 0; r < whole_rows; r += 4)
            transpose_4x4(src + r * dp + d, dp, dst + d * BLOCK + r);
    for (int64_t d = 0; d < D; d++)
        for (int64_t r = d < whole_d ? whole_rows : 0; r < BLOCK; r++)
            dst[d * BLOCK + r] = r < rows ? src[r * dp + d] : 0.0f;
}

/* Floats of one (sample, key head) in job->packed: K^T blocks, then V rows. */
INLINE int64_t packed_kt(const dh_attn_job *j)
{
    return j->n_blocks * j->s.D * BLOCK;
}

INLINE float *packed_head(const dh_attn_job *j, int64_t b, int64_t kv_head)
{
    const int64_t size = packed_kt(j) + j->n_blocks * BLOCK * j->dp;
    return j->packed + (b * j->s.KV + kv_head) * size;
}

static void attn_pack(const dh_attn_job *j, int64_t b, int64_t kv_head, int64_t block)
{
    const dh_attn_shape *s = &j->s;
    const int64_t k0 = block * BLOCK, rows = DH_MIN(BLOCK, s->Tk - k0);
    const int64_t offset = kv_offset(s, b, kv_head, k0);
    float *head = packed_head(j, b, kv_head), *v = head + packed_kt(j) + k0 * j->dp;
    /* V's place holds K until it is transposed. */
    pack_rows(s->dtype, rows, s->D, j->dp, element_at(s->dtype, j->k, offset), s->kv_row, 1, v);
    transpose_block(rows, s->D, j->dp, v, head + block * s->D * BLOCK);
    pack_rows(s->dtype, rows, s->D, j->dp, element_at(s->dtype, j->v, offset), s->kv_row, 1, v);
    memset(v + rows * j->dp, 0, (size_t)((BLOCK - rows) * j->dp) * sizeof *v);
}

/* ---- softmax over blocks of keys ------------------------------------------------------- */

/* Running softmax of one query. */
typedef struct running {
    float max, sum;
} running;

/* Keys of a block: [from, to) are seen, of [begin, end) there are scores; begin and end are whole
 * vectors. */
typedef struct key_run {
    int64_t begin, from, to, end;
} key_run;

/* Scores x of a row become c tanh(x / c), of which slope gets the derivative, unless it is NULL:
 * both where keys are seen, in whole vectors. */
INLINE void cap_row(float *p, key_run k, float c, float *slope)
{
    const float inverse = 1 / c;
    for (int64_t i = k.from / W * W; i < k.to; i += W) {
        const vf r = vec_tanh(load_f32(p + i, W) * inverse);
        store_f32(p + i, W, r * c);
        if (slope) store_f32(slope + i, W, 1.0f - r * r);
    }
}

INLINE float run_max(const float *x, key_run k)
{
    vf top = splat(-__builtin_inff());
    for (int64_t i = k.from / W * W; i < k.to; i += W) {
        vf v = load_f32(x + i, W);
        if (k.to - i < W) v = vec_select(first_lanes(k.to - i), v, splat(-__builtin_inff()));
        if (k.from > i) v = vec_select(first_lanes(k.from - i), splat(-__builtin_inff()), v);
        top = vec_max(top, v);
    }
    return lane_max(top);
}

/* p = exp(p - max) where seen, 0 elsewhere; returns their sum. */
INLINE float exp_run(float *p, key_run k, float max)
{
    vf total = {0};
    const int64_t first = k.from / W * W;
    for (int64_t i = k.begin; i < DH_MIN(first, k.end); i += W) store_f32(p + i, W, (vf){0});
    for (int64_t i = first; i < k.to; i += W) {
        vf e = vec_exp(load_f32(p + i, W) - max);
        if (k.to - i < W) e = (vf)((vi)e & first_lanes(k.to - i));
        if (k.from > i) e = (vf)((vi)e & ~first_lanes(k.from - i));
        store_f32(p + i, W, e);
        total += e;
    }
    for (int64_t i = DH_MAX(round_up(k.to, W), first); i < k.end; i += W)
        store_f32(p + i, W, (vf){0});
    return lane_sum(total);
}

/* Scores p of one query become probabilities up to the common factor; what was summed into o before
 * is rescaled to the new maximum. */
INLINE void softmax_row(running *r, float *p, key_run k, float *o, int64_t dp)
{
    if (k.from < k.to) {
        const float max = run_max(p, k);
        if (max > r->max) {
            const float shrink = __builtin_expf(r->max - max);
            for (int64_t i = 0; i < dp; i += W) store_f32(o + i, W, load_f32(o + i, W) * shrink);
            r->sum *= shrink;
            r->max = max;
        }
    }
    r->sum += exp_run(p, k, r->max);
}

/* o row / sum -> output, log-sum-exp. */
INLINE void finish_row(const dh_attn_job *j, int64_t b, int64_t head, int64_t t, running r,
                       const float *o)
{
    const dh_attn_shape *s = &j->s;
    const float factor = r.sum > 0 ? 1.0f / r.sum : 0.0f;
    const bool bf16 = s->o_dtype == DH_BF16;
    const int64_t offset = o_offset(s, b, head, t);
    for (int64_t i = 0; i < s->D; i += W)
        store(bf16, j->out, offset + i, s->D - i, load_f32(o + i, W) * factor);
    j->lse_out[(b * s->H + head) * s->Tq + t] =
        r.sum > 0 ? r.max + __builtin_logf(r.sum) : -__builtin_inff();
}

/* A block of queries on its way over the keys. */
typedef struct fwd_block {
    float *q, *o, *p; /* [rows][dp], [rows][dp], [rows][BLOCK] */
    running *state;
    int64_t b, q0, rows; /* b: sample */
} fwd_block;

/* Adds keys [k0, k0 + keys), of which kt [D][BLOCK] and v [keys][dp] are packed. */
static void attend_block(const dh_attn_job *j, const fwd_block *f, int64_t k0, int64_t keys,
                         const float *kt, const float *v)
{
    const dh_attn_shape *s = &j->s;
    const int64_t dp = j->dp, group = group_of(s, f->b, f->q0, f->rows, k0, keys);
    for (int64_t r0 = 0; r0 < f->rows; r0 += group) {
        const int64_t rows = DH_MIN(group, f->rows - r0);
        const int64_t seen = visible(s, f->q0 + r0 + rows - 1, k0, keys);
        const int64_t none = hidden(s, f->b, f->q0 + r0, k0, keys);
        if (seen <= none) continue;
        const int64_t c0 = none / W * W, n = round_up(seen, W) - c0;
        float *p = f->p + r0 * BLOCK, *o = f->o + r0 * dp;
        block_gemm((operand){f->q + r0 * dp, dp, 1, kt + c0, BLOCK, p + c0, BLOCK, s->D, false},
                   rows, n);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t t = f->q0 + r0 + r;
            const key_run run = {c0, hidden(s, f->b, t, k0, keys), visible(s, t, k0, keys), c0 + n};
            if (s->softcap > 0) cap_row(p + r * BLOCK, run, s->softcap, NULL);
            softmax_row(&f->state[r0 + r], p + r * BLOCK, run, o + r * dp, dp);
        }
        block_gemm((operand){p + c0, BLOCK, 1, v + c0 * dp, dp, o, dp, seen - c0, true}, rows, dp);
    }
}

/* Queries [q0, q0 + 64) of one head; q and o have room for 64 of dp channels. */
static void fwd_queries(const dh_attn_job *j, int64_t b, int64_t head, int64_t q0, float *q,
                        float *o)
{
    const dh_attn_shape *s = &j->s;
    const int64_t rows = DH_MIN(BLOCK, s->Tq - q0), dp = j->dp;
    const float *kt = packed_head(j, b, head / (s->H / s->KV)), *v = kt + packed_kt(j);
    _Alignas(64) float p[BLOCK * BLOCK];
    running state[BLOCK];
    pack_rows(s->dtype, rows, s->D, dp, element_at(s->dtype, j->q, q_offset(s, b, head, q0)),
              s->q_row, j->scale, q);
    memset(o, 0, (size_t)(rows * dp) * sizeof *o);
    for (int64_t r = 0; r < rows; r++) state[r] = (running){-__builtin_inff(), 0};

    const fwd_block f = {q, o, p, state, b, q0, rows};
    for (int64_t k0 = 0; k0 < s->Tk; k0 += BLOCK) {
        const int64_t keys = DH_MIN(BLOCK, s->Tk - k0);
        if (visible(s, q0 + rows - 1, k0, keys) == 0) break;
        if (hidden(s, b, q0, k0, keys) == keys) continue;
        attend_block(j, &f, k0, keys, kt + k0 * s->D, v + k0 * dp);
    }
    for (int64_t r = 0; r < rows; r++) finish_row(j, b, head, q0 + r, state[r], o + r * dp);
}

/* Half a megabyte of stack is for those who need it: probing its pages costs every call. */
static __attribute__((noinline)) void fwd_wide(const dh_attn_job *j, int64_t b, int64_t head,
                                               int64_t q0)
{
    _Alignas(64) float q[BLOCK * MAX_DIM], o[BLOCK * MAX_DIM];
    fwd_queries(j, b, head, q0, q, o);
}

static __attribute__((noinline)) void fwd_usual(const dh_attn_job *j, int64_t b, int64_t head,
                                                int64_t q0)
{
    _Alignas(64) float q[BLOCK * USUAL_DIM], o[BLOCK * USUAL_DIM];
    fwd_queries(j, b, head, q0, q, o);
}

static void attn_fwd(const dh_attn_job *j, int64_t b, int64_t head, int64_t q0)
{
    if (j->dp <= USUAL_DIM)
        fwd_usual(j, b, head, q0);
    else
        fwd_wide(j, b, head, q0);
}

/* ---- few queries (decoding): keys and values are read where they lie ------------------- */

INLINE void few_block(const dh_attn_job *j, bool bf16, const float *q, const void *k, const void *v,
                      int64_t keys, running *state, float *o)
{
    const int64_t D = j->s.D, stride = j->s.kv_row;
    float p[BLOCK];
    for (int64_t r = 0; r < keys; r++) {
        vf dot = {0};
        for (int64_t i = 0; i < D; i += W)
            dot += load_f32(q + i, W) * load(bf16, k, r * stride + i, D - i);
        p[r] = lane_sum(dot);
    }
    for (int64_t r = keys; r < round_up(keys, W); r++) p[r] = 0;
    const key_run run = {0, 0, keys, round_up(keys, W)};
    if (j->s.softcap > 0) cap_row(p, run, j->s.softcap, NULL);
    softmax_row(state, p, run, o, j->dp);
    for (int64_t i = 0; i < D; i += W) {
        vf sum = load_f32(o + i, W);
        for (int64_t r = 0; r < keys; r++) sum += load(bf16, v, r * stride + i, D - i) * p[r];
        store_f32(o + i, W, sum);
    }
}

static void attn_few(const dh_attn_job *j, int64_t b, int64_t head)
{
    const dh_attn_shape *s = &j->s;
    const int64_t kv_head = head / (s->H / s->KV);
    _Alignas(64) float q[MAX_DIM], o[MAX_DIM];
    for (int64_t t = 0; t < s->Tq; t++) {
        running state = {-__builtin_inff(), 0};
        pack_rows(s->dtype, 1, s->D, j->dp, element_at(s->dtype, j->q, q_offset(s, b, head, t)),
                  s->q_row, j->scale, q);
        memset(o, 0, (size_t)j->dp * sizeof *o);
        for (int64_t k0 = 0; k0 < s->Tk; k0 += BLOCK) {
            const int64_t seen = visible(s, t, k0, DH_MIN(BLOCK, s->Tk - k0));
            if (seen == 0) break;
            const int64_t none = hidden(s, b, t, k0, seen), keys = seen - none;
            if (keys <= 0) continue;
            const int64_t offset = kv_offset(s, b, kv_head, k0 + none);
            const void *k = element_at(s->dtype, j->k, offset);
            const void *v = element_at(s->dtype, j->v, offset);
            if (s->dtype == DH_BF16)
                few_block(j, true, q, k, v, keys, &state, o);
            else
                few_block(j, false, q, k, v, keys, &state, o);
        }
        finish_row(j, b, head, t, state, o);
    }
}

#endif
