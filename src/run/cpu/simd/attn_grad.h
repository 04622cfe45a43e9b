/* Attention backward of one key head: probabilities are recomputed block by block
 * from the log-sum-exp (FlashAttention, algorithm 4). With scaled queries Q:
 *   P = exp(Q K^T - lse),  dP = dO V^T,  dS = P (dP - rowsum of dO O),
 *   dV += P^T dO,  dK += dS^T Q,  dQ += scale dS K.
 * Of capped scores S = c tanh(Q K^T / c), P = exp(S - lse), and dS is multiplied by 1 - tanh^2.
 * One thread does a whole key head, query heads and blocks in order: sums have one
 * order whatever the number of threads. */
#ifndef DH_RUN_CPU_SIMD_ATTN_GRAD_H
#define DH_RUN_CPU_SIMD_ATTN_GRAD_H

#include "run/cpu/simd/attn.h"

/* A slot of scratch cut into arrays; t rounded up to whole blocks. */
typedef struct grad_arrays {
    float *kt, *vt;       /* [blocks][D][BLOCK] */
    float *k, *dk, *dv;   /* [Tk][dp] */
    float *q, *dout, *dq; /* [Tq][dp] */
    float *delta;         /* [Tq] */
    int64_t b;            /* of which sample */
} grad_arrays;

static grad_arrays cut_slot(const dh_attn_job *j, int64_t b, float *slot)
{
    const int64_t keys = j->n_blocks * BLOCK, queries = round_up(j->s.Tq, BLOCK), dp = j->dp;
    grad_arrays a;
    a.b = b;
    a.kt = slot;
    a.vt = a.kt + packed_kt(j);
    a.k = a.vt + packed_kt(j);
    a.dk = a.k + keys * dp;
    a.dv = a.dk + keys * dp;
    a.q = a.dv + keys * dp;
    a.dout = a.q + queries * dp;
    a.dq = a.dout + queries * dp;
    a.delta = a.dq + queries * dp;
    return a;
}

static void pack_keys(const dh_attn_job *j, const grad_arrays *a, int64_t kv_head)
{
    const dh_attn_shape *s = &j->s;
    for (int64_t k0 = 0; k0 < s->Tk; k0 += BLOCK) {
        const int64_t rows = DH_MIN(BLOCK, s->Tk - k0), offset = kv_offset(s, a->b, kv_head, k0);
        float *k = a->k + k0 * j->dp, *v = a->dv + k0 * j->dp; /* dv is not in use yet */
        pack_rows(s->dtype, rows, s->D, j->dp, element_at(s->dtype, j->k, offset), s->kv_row, 1, k);
        pack_rows(s->dtype, rows, s->D, j->dp, element_at(s->dtype, j->v, offset), s->kv_row, 1, v);
        transpose_block(rows, s->D, j->dp, k, a->kt + k0 * s->D);
        transpose_block(rows, s->D, j->dp, v, a->vt + k0 * s->D);
    }
    memset(a->dk, 0, (size_t)(s->Tk * j->dp) * sizeof *a->dk);
    memset(a->dv, 0, (size_t)(s->Tk * j->dp) * sizeof *a->dv);
}

static void pack_queries(const dh_attn_job *j, const grad_arrays *a, int64_t head)
{
    const dh_attn_shape *s = &j->s;
    const int64_t b = a->b;
    pack_rows(s->dtype, s->Tq, s->D, j->dp, element_at(s->dtype, j->q, q_offset(s, b, head, 0)),
              s->q_row, j->scale, a->q);
    const int64_t o0 = o_offset(s, b, head, 0);
    pack_rows(s->dtype, s->Tq, s->D, j->dp, element_at(s->dtype, j->dout, o0), s->o_row, 1,
              a->dout);
    for (int64_t t = 0; t < s->Tq; t++) {
        vf sum = {0};
        const bool bf16 = s->o_dtype == DH_BF16;
        for (int64_t i = 0; i < s->D; i += W)
            sum += load_f32(a->dout + t * j->dp + i, W) *
                   load(bf16, j->o, o0 + t * s->o_row + i, s->D - i);
        a->delta[t] = lane_sum(sum);
    }
    memset(a->dq, 0, (size_t)(s->Tq * j->dp) * sizeof *a->dq);
}

INLINE void score_gradients(const float *p, float *dp_row, int64_t n_all, float delta)
{
    for (int64_t i = 0; i < n_all; i += W)
        store_f32(dp_row + i, W, load_f32(p + i, W) * (load_f32(dp_row + i, W) - delta));
}

/* Gradients of scores of a row become those of the scores before the cap. */
INLINE void uncap_row(float *ds, key_run k, const float *slope)
{
    for (int64_t i = k.from / W * W; i < k.to; i += W)
        store_f32(ds + i, W, load_f32(ds + i, W) * load_f32(slope + i, W));
}

/* Queries [q0, q0+rows) against keys [c0, seen) from k0, in which are all that any of them
 * sees; c0: whole vectors. A row that sees no key at all has lse -inf and p = 0. */
static void grad_group(const dh_attn_job *j, const grad_arrays *a, const float *lse, int64_t q0,
                       int64_t rows, int64_t k0, int64_t c0, int64_t seen)
{
    const dh_attn_shape *s = &j->s;
    const int64_t dp = j->dp, D = s->D, n = round_up(seen, W) - c0, keys = seen - c0;
    const int64_t k1 = k0 + c0, t1 = k0 * D + c0; /* in rows, in transposed blocks */
    _Alignas(64) float p[BLOCK * BLOCK], ds[BLOCK * BLOCK], slope[BLOCK];
    const float *q = a->q + q0 * dp, *dout = a->dout + q0 * dp;
    block_gemm((operand){q, dp, 1, a->kt + t1, BLOCK, p + c0, BLOCK, D, false}, rows, n);
    block_gemm((operand){dout, dp, 1, a->vt + t1, BLOCK, ds + c0, BLOCK, D, false}, rows, n);
    for (int64_t r = 0; r < rows; r++) {
        const key_run run = {c0, hidden(s, a->b, q0 + r, k0, seen), visible(s, q0 + r, k0, seen),
                             c0 + n};
        if (s->softcap > 0) cap_row(p + r * BLOCK, run, s->softcap, slope);
        exp_run(p + r * BLOCK, run, lse[q0 + r]);
        score_gradients(p + r * BLOCK + c0, ds + r * BLOCK + c0, n, a->delta[q0 + r]);
        if (s->softcap > 0) uncap_row(ds + r * BLOCK, run, slope);
    }
    block_gemm((operand){p + c0, 1, BLOCK, dout, dp, a->dv + k1 * dp, dp, rows, true}, keys, dp);
    block_gemm((operand){ds + c0, 1, BLOCK, q, dp, a->dk + k1 * dp, dp, rows, true}, keys, dp);
    block_gemm((operand){ds + c0, BLOCK, 1, a->k + k1 * dp, dp, a->dq + q0 * dp, dp, keys, true},
               rows, dp);
}

static void grad_head(const dh_attn_job *j, const grad_arrays *a, const float *lse)
{
    const dh_attn_shape *s = &j->s;
    for (int64_t k0 = 0; k0 < s->Tk; k0 += BLOCK) {
        const int64_t keys = DH_MIN(BLOCK, s->Tk - k0);
        for (int64_t q0 = 0; q0 < s->Tq; q0 += BLOCK) {
            const int64_t end = DH_MIN(q0 + BLOCK, s->Tq);
            const int64_t group = group_of(s, a->b, q0, end - q0, k0, keys);
            if (hidden(s, a->b, q0, k0, keys) == keys) break;
            for (int64_t t = q0; t < end; t += group) {
                const int64_t rows = DH_MIN(group, end - t);
                const int64_t seen = visible(s, t + rows - 1, k0, keys);
                const int64_t none = hidden(s, a->b, t, k0, keys);
                if (seen > none) grad_group(j, a, lse, t, rows, k0, none / W * W, seen);
            }
        }
    }
}

/* rows of D elements, stride apart: (+)= factor * src. */
INLINE void unpack_rows_of(bool bf16, const dh_attn_job *j, int64_t rows, const float *src,
                           float factor, void *dst, int64_t offset, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < j->s.D; i += W) {
            const int64_t n = j->s.D - i, at = offset + r * stride + i;
            vf v = load_f32(src + r * j->dp + i, W) * factor;
            store(bf16, dst, at, n, j->accumulate ? v + load(bf16, dst, at, n) : v);
        }
}

static void unpack_rows(const dh_attn_job *j, int64_t rows, const float *src, float factor,
                        void *dst, int64_t offset, int64_t stride)
{
    BY_DTYPE(j->s.g_dtype, unpack_rows_of, j, rows, src, factor, dst, offset, stride);
}

static void attn_bwd(const dh_attn_job *j, int64_t b, int64_t kv_head, float *slot)
{
    const dh_attn_shape *s = &j->s;
    const grad_arrays a = cut_slot(j, b, slot);
    const int64_t group = s->H / s->KV;
    pack_keys(j, &a, kv_head);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        pack_queries(j, &a, head);
        grad_head(j, &a, j->lse + (b * s->H + head) * s->Tq);
        unpack_rows(j, s->Tq, a.dq, j->scale, j->dq, b * s->dq_batch + head * s->D, s->dq_row);
    }
    const int64_t offset = b * s->dkv_batch + kv_head * s->D;
    unpack_rows(j, s->Tk, a.dk, 1, j->dk, offset, s->dkv_row);
    unpack_rows(j, s->Tk, a.dv, 1, j->dv, offset, s->dkv_row);
}

#endif
