/* Linear attention of one key head and the query heads that share it, chunk by chunk. Tokens of a
 * chunk see each other one by one, and all before it by their state, the sum of k v^T. M is the
 * causal mask inside a chunk, S the state before it. Forward:
 *   O = (Q K^T * M) V + Q S,   S += K^T V.
 * U is the sum of q do^T over the chunks after it. Backward:
 *   dQ = (dO V^T * M) K + dO S^T,   dV = (Q K^T * M)^T dO + K U,   dK = (dO V^T * M)^T Q + V U^T.
 * One thread does a whole key head, chunks and query heads in order: sums have one order whatever
 * the number of threads.
 * Source: Yang et al. 2024 (arXiv 2312.06635), section 3; LASP-2 (arXiv 2502.07563), section 2. */
#ifndef DH_RUN_CPU_SIMD_LINEAR_ATTN_H
#define DH_RUN_CPU_SIMD_LINEAR_ATTN_H

#include "run/cpu/simd/attn.h"

/* A slot of scratch cut into arrays. Their places: of_slot in linear_attn.c has the sum. */
typedef struct linear_arrays {
    float *q, *k, *v, *g;  /* [BLOCK][dp], g rows of dO */
    float *kt, *vt;        /* [D][BLOCK] */
    float *p, *d;          /* [BLOCK][BLOCK] scores, their gradient */
    float *out, *dk, *dv;  /* [BLOCK][dp] */
    float *state, *turned; /* [D][dp], the second one transposed */
} linear_arrays;

static linear_arrays cut_linear(const dh_linear_job *j, float *slot)
{
    const int64_t rows = BLOCK * j->dp, turned = j->s.D * BLOCK;
    linear_arrays a = {.q = slot};
    a.k = a.q + rows;
    a.v = a.k + rows;
    a.g = a.v + rows;
    a.out = a.g + rows;
    a.dk = a.out + rows;
    a.dv = a.dk + rows;
    a.kt = a.dv + rows;
    a.vt = a.kt + turned;
    a.p = a.vt + turned;
    a.d = a.p + BLOCK * BLOCK;
    a.state = a.d + BLOCK * BLOCK;
    a.turned = a.state + j->s.D * j->dp;
    return a;
}

/* ---- operands ---------------------------------------------------------------------------- */

INLINE int64_t packed_columns(const dh_linear_shape *s)
{
    return (s->H + 2 * s->KV) * s->D;
}

/* Element of packed rows where token t has head `column`: queries, then keys, then values. */
INLINE int64_t packed_at(const dh_linear_shape *s, int64_t b, int64_t t, int64_t column)
{
    return (b * s->T + t) * packed_columns(s) + column * s->D;
}

INLINE int64_t out_at(const dh_linear_shape *s, int64_t b, int64_t t, int64_t head)
{
    return ((b * s->T + t) * s->H + head) * s->D;
}

INLINE int64_t chunk_rows(const dh_linear_shape *s, int64_t t)
{
    return DH_MIN(BLOCK, s->T - t);
}

static void take_packed(const dh_linear_job *j, int64_t b, int64_t t, int64_t column, float *rows)
{
    const dh_linear_shape *s = &j->s;
    pack_rows(s->dtype, chunk_rows(s, t), s->D, j->dp,
              element_at(s->dtype, j->qkv, packed_at(s, b, t, column)), packed_columns(s), 1, rows);
}

static void take_dout(const dh_linear_job *j, int64_t b, int64_t t, int64_t head, float *rows)
{
    const dh_linear_shape *s = &j->s;
    pack_rows(s->dtype, chunk_rows(s, t), s->D, j->dp,
              element_at(s->dtype, j->dout, out_at(s, b, t, head)), s->H * s->D, 1, rows);
}

static void take_kv(const dh_linear_job *j, const linear_arrays *a, int64_t b, int64_t kv,
                    int64_t t)
{
    take_packed(j, b, t, j->s.H + kv, a->k);
    take_packed(j, b, t, j->s.H + j->s.KV + kv, a->v);
}

INLINE void put_rows_of(bool bf16, const dh_linear_job *j, int64_t rows, const float *src,
                        void *dst, int64_t offset, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < j->s.D; i += W)
            store(bf16, dst, offset + r * stride + i, j->s.D - i, load_f32(src + r * j->dp + i, W));
}

static void put_out(const dh_linear_job *j, int64_t b, int64_t t, int64_t head, const float *rows)
{
    const dh_linear_shape *s = &j->s;
    BY_DTYPE(s->o_dtype, put_rows_of, j, chunk_rows(s, t), rows, j->out, out_at(s, b, t, head),
             s->H * s->D);
}

static void put_packed(const dh_linear_job *j, int64_t b, int64_t t, int64_t column,
                       const float *rows)
{
    const dh_linear_shape *s = &j->s;
    BY_DTYPE(s->g_dtype, put_rows_of, j, chunk_rows(s, t), rows, j->out, packed_at(s, b, t, column),
             packed_columns(s));
}

/* ---- states: [D][D] in memory, rows of dp here ------------------------------------------- */

INLINE int64_t state_at(const dh_linear_shape *s, int64_t b, int64_t kv)
{
    return (b * s->KV + kv) * s->D * s->D;
}

static void clear_state(const dh_linear_job *j, float *state)
{
    memset(state, 0, (size_t)(j->s.D * j->dp) * sizeof *state);
}

static void take_state(const dh_linear_job *j, const float *from, float *state)
{
    pack_rows(DH_F32, j->s.D, j->s.D, j->dp, from, j->s.D, 1, state);
}

static void take_turned(const dh_linear_job *j, const float *from, float *state)
{
    const int64_t D = j->s.D;
    clear_state(j, state);
    for (int64_t r = 0; r < D; r++)
        for (int64_t c = 0; c < D; c++) state[r * j->dp + c] = from[c * D + r];
}

static void put_state(const dh_linear_job *j, const float *state, float *to)
{
    put_rows_of(false, j, j->s.D, state, to, 0, j->s.D);
}

/* state += x^T y of n rows. */
static void add_state(const dh_linear_job *j, int64_t n, const float *x, const float *y,
                      float *state)
{
    block_gemm((operand){x, 1, j->dp, y, j->dp, state, j->dp, n, true}, j->s.D, j->dp);
}

/* out (+)= rows times state. */
static void use_state(const dh_linear_job *j, int64_t n, const float *rows, const float *state,
                      float *out, bool add)
{
    block_gemm((operand){rows, j->dp, 1, state, j->dp, out, j->dp, j->s.D, add}, n, j->dp);
}

/* p = x y^T of n rows as far as the mask lets them; y transposed. */
static void make_scores(const dh_linear_job *j, int64_t n, const float *x, const float *yt,
                        float *p)
{
    block_gemm((operand){x, j->dp, 1, yt, BLOCK, p, BLOCK, j->s.D, false}, n, BLOCK);
    for (int64_t r = 0; r < n; r++)
        memset(p + r * BLOCK + r + 1, 0, (size_t)(BLOCK - r - 1) * sizeof *p);
}

/* out = p y; out += p^T y. */
static void use_scores(const dh_linear_job *j, int64_t n, const float *p, const float *y,
                       float *out)
{
    block_gemm((operand){p, BLOCK, 1, y, j->dp, out, j->dp, n, false}, n, j->dp);
}

static void use_scores_turned(const dh_linear_job *j, int64_t n, const float *p, const float *y,
                              float *out)
{
    block_gemm((operand){p, 1, BLOCK, y, j->dp, out, j->dp, n, true}, n, j->dp);
}

/* ---- forward ------------------------------------------------------------------------------- */

static void linear_fwd(const dh_linear_job *j, int64_t b, int64_t kv, float *slot)
{
    const dh_linear_shape *s = &j->s;
    const linear_arrays a = cut_linear(j, slot);
    const int64_t group = s->H / s->KV;
    float *kept = j->state ? j->state + state_at(s, b, kv) : NULL;
    if (kept)
        take_state(j, kept, a.state);
    else
        clear_state(j, a.state);
    for (int64_t t = 0; t < s->T; t += BLOCK) {
        const int64_t n = chunk_rows(s, t);
        take_kv(j, &a, b, kv, t);
        transpose_block(n, s->D, j->dp, a.k, a.kt);
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            take_packed(j, b, t, h, a.q);
            make_scores(j, n, a.q, a.kt, a.p);
            use_scores(j, n, a.p, a.v, a.out);
            if (kept || t > 0) use_state(j, n, a.q, a.state, a.out, true);
            put_out(j, b, t, h, a.out);
        }
        add_state(j, n, a.k, a.v, a.state);
    }
    if (kept) put_state(j, a.state, kept);
}

/* The sum of k v^T, or, where dout is given, of q do^T. */
static void linear_state(const dh_linear_job *j, int64_t b, int64_t kv, float *slot)
{
    const dh_linear_shape *s = &j->s;
    const linear_arrays a = cut_linear(j, slot);
    const int64_t group = s->H / s->KV;
    clear_state(j, a.state);
    for (int64_t t = 0; t < s->T; t += BLOCK) {
        const int64_t n = chunk_rows(s, t);
        if (!j->dout) {
            take_kv(j, &a, b, kv, t);
            add_state(j, n, a.k, a.v, a.state);
            continue;
        }
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            take_packed(j, b, t, h, a.q);
            take_dout(j, b, t, h, a.g);
            add_state(j, n, a.q, a.g, a.state);
        }
    }
    put_state(j, a.state, j->state + state_at(s, b, kv));
}

/* o = own + q before. */
static void linear_join(const dh_linear_job *j, int64_t b, int64_t kv, float *slot)
{
    const dh_linear_shape *s = &j->s;
    const linear_arrays a = cut_linear(j, slot);
    const int64_t group = s->H / s->KV;
    if (j->before) take_state(j, j->before + state_at(s, b, kv), a.state);
    for (int64_t t = 0; t < s->T; t += BLOCK)
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            const int64_t n = chunk_rows(s, t);
            pack_rows(DH_F32, n, s->D, j->dp, j->own + out_at(s, b, t, h), s->H * s->D, 1, a.out);
            if (j->before) {
                take_packed(j, b, t, h, a.q);
                use_state(j, n, a.q, a.state, a.out, true);
            }
            put_out(j, b, t, h, a.out);
        }
}

/* ---- backward ------------------------------------------------------------------------------ */

/* dq, in the order of the sequence: the state of the forward, transposed. */
static void linear_dq(const dh_linear_job *j, const linear_arrays *a, int64_t b, int64_t kv)
{
    const dh_linear_shape *s = &j->s;
    const int64_t group = s->H / s->KV;
    clear_state(j, a->turned);
    for (int64_t t = 0; t < s->T; t += BLOCK) {
        const int64_t n = chunk_rows(s, t);
        take_kv(j, a, b, kv, t);
        transpose_block(n, s->D, j->dp, a->v, a->vt);
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            take_dout(j, b, t, h, a->g);
            make_scores(j, n, a->g, a->vt, a->d);
            use_scores(j, n, a->d, a->k, a->out);
            if (t > 0) use_state(j, n, a->g, a->turned, a->out, true);
            put_packed(j, b, t, h, a->out);
        }
        add_state(j, n, a->v, a->k, a->turned);
    }
}

/* Of one chunk: what its queries give to its keys and values, and to the state before it. */
static void linear_dkv_chunk(const dh_linear_job *j, const linear_arrays *a, int64_t b, int64_t kv,
                             int64_t t)
{
    const dh_linear_shape *s = &j->s;
    const int64_t group = s->H / s->KV, n = chunk_rows(s, t);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        take_packed(j, b, t, h, a->q);
        take_dout(j, b, t, h, a->g);
        make_scores(j, n, a->q, a->kt, a->p);
        make_scores(j, n, a->g, a->vt, a->d);
        use_scores_turned(j, n, a->p, a->g, a->dv);
        use_scores_turned(j, n, a->d, a->q, a->dk);
        add_state(j, n, a->q, a->g, a->state);
        add_state(j, n, a->g, a->q, a->turned);
    }
}

static void linear_bwd(const dh_linear_job *j, int64_t b, int64_t kv, float *slot)
{
    const dh_linear_shape *s = &j->s;
    const linear_arrays a = cut_linear(j, slot);
    linear_dq(j, &a, b, kv);
    clear_state(j, a.state);
    clear_state(j, a.turned);
    for (int64_t t = (s->T - 1) / BLOCK * BLOCK; t >= 0; t -= BLOCK) {
        const int64_t n = chunk_rows(s, t);
        take_kv(j, &a, b, kv, t);
        transpose_block(n, s->D, j->dp, a.k, a.kt);
        transpose_block(n, s->D, j->dp, a.v, a.vt);
        use_state(j, n, a.k, a.state, a.dv, false);
        use_state(j, n, a.v, a.turned, a.dk, false);
        linear_dkv_chunk(j, &a, b, kv, t);
        put_packed(j, b, t, s->H + kv, a.dk);
        put_packed(j, b, t, s->H + s->KV + kv, a.dv);
    }
}

/* One part of packed gradients: own + rows times state. */
static void join_packed(const dh_linear_job *j, const linear_arrays *a, int64_t b, int64_t t,
                        int64_t column, const float *rows, const float *state)
{
    const dh_linear_shape *s = &j->s;
    const int64_t n = chunk_rows(s, t);
    pack_rows(DH_F32, n, s->D, j->dp, j->own + packed_at(s, b, t, column), packed_columns(s), 1,
              a->out);
    if (rows) use_state(j, n, rows, state, a->out, true);
    put_packed(j, b, t, column, a->out);
}

/* dq += do before^T, then dk += v behind^T and dv += k behind. */
static void linear_join_bwd(const dh_linear_job *j, int64_t b, int64_t kv, float *slot)
{
    const dh_linear_shape *s = &j->s;
    const linear_arrays a = cut_linear(j, slot);
    const int64_t group = s->H / s->KV, state = state_at(s, b, kv);
    if (j->before) take_turned(j, j->before + state, a.turned);
    for (int64_t t = 0; t < s->T; t += BLOCK)
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            if (j->before) take_dout(j, b, t, h, a.g);
            join_packed(j, &a, b, t, h, j->before ? a.g : NULL, a.turned);
        }
    if (j->behind) {
        take_state(j, j->behind + state, a.state);
        take_turned(j, j->behind + state, a.turned);
    }
    for (int64_t t = 0; t < s->T; t += BLOCK) {
        if (j->behind) take_kv(j, &a, b, kv, t);
        join_packed(j, &a, b, t, s->H + kv, j->behind ? a.v : NULL, a.turned);
        join_packed(j, &a, b, t, s->H + s->KV + kv, j->behind ? a.k : NULL, a.state);
    }
}

#endif
