/* Attention: scratch, and how heads and blocks are shared among threads. The inner
 * loops are in simd/attn.h and simd/attn_grad.h. */
#include "base/base.h"
#include "run/cpu/split.h"

#include <math.h>
#include <omp.h>

/* TUNING: with so few queries per sample, packing keys costs more than it saves. */
enum { FEW_QUERIES = 4, DEFAULT_SLOTS = 8 };

dh_attn_shape dh_attn_packed(dh_dtype dtype, int64_t B, int64_t T, int64_t H, int64_t KV, int64_t D)
{
    const int64_t row = (H + 2 * KV) * D;
    return (dh_attn_shape){
        .dtype = dtype,
        .o_dtype = dtype,
        .g_dtype = dtype,
        .B = B,
        .Tq = T,
        .Tk = T,
        .H = H,
        .KV = KV,
        .D = D,
        .q_batch = T * row,
        .q_row = row,
        .kv_batch = T * row,
        .kv_row = row,
        .o_batch = T * H * D,
        .o_row = H * D,
        .dq_batch = T * row,
        .dq_row = row,
        .dkv_batch = T * row,
        .dkv_row = row,
    };
}

static dh_attn_job make_job(const dh_attn_shape *s)
{
    DH_CHECK(s->D >= 1 && s->D <= DH_ATTN_MAX_DIM, "head dimension %lld", (long long)s->D);
    DH_CHECK(s->KV >= 1 && s->H / s->KV * s->KV == s->H, "%lld heads over %lld", (long long)s->H,
             (long long)s->KV);
    return (dh_attn_job){
        .s = *s,
        .scale = s->scale != 0 ? s->scale : (float)(1 / sqrt((double)s->D)),
        .n_blocks = div_up(s->Tk, DH_ATTN_BLOCK),
        .dp = div_up(s->D, DH_ATTN_PAD) * DH_ATTN_PAD,
    };
}

/* ---- forward --------------------------------------------------------------------------- */

/* Packed K^T and V of all key heads, float32. */
size_t dh_k_attn_fwd_workspace(const dh_attn_shape *s)
{
    if (s->Tq <= FEW_QUERIES) return 0;
    const dh_attn_job job = make_job(s);
    return (size_t)(s->B * s->KV * job.n_blocks * DH_ATTN_BLOCK * (s->D + job.dp)) * sizeof(float);
}

static void run_few(const dh_attn_job *job)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t H = job->s.H, n = job->s.B * H;
#pragma omp parallel for schedule(static) if (n * job->s.Tk * job->s.D >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) simd->attn_few(job, i / H, i % H);
}

static void run_blocks(const dh_attn_job *job)
{
    const dh_simd *simd = dh_simd_get();
    const dh_attn_shape *s = &job->s;
    const int64_t q_blocks = div_up(s->Tq, DH_ATTN_BLOCK), n_heads = s->B * s->H;
    const int64_t n_pack = s->B * s->KV * job->n_blocks;
#pragma omp parallel if (n_heads * s->Tq * s->D >= PARALLEL_MIN)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n_pack; i++) {
            const int64_t head = i / job->n_blocks;
            simd->attn_pack(job, head / s->KV, head % s->KV, i % job->n_blocks);
        }
        /* Causal blocks differ in work: the longest of a head first, handed out one
         * by one. Each writes rows of its own, so bits do not depend on who runs it. */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < n_heads * q_blocks; i++) {
            const int64_t head = i / q_blocks, block = q_blocks - 1 - i % q_blocks;
            simd->attn_fwd(job, head / s->H, head % s->H, block * DH_ATTN_BLOCK);
        }
    }
}

void dh_k_attn_fwd(const dh_attn_shape *s, const void *q, const void *k, const void *v, void *o,
                   float *lse, void *ws)
{
    dh_attn_job job = make_job(s);
    job.q = q;
    job.k = k;
    job.v = v;
    job.out = o;
    job.lse_out = lse;
    job.packed = ws;
    if (s->Tq <= FEW_QUERIES)
        run_few(&job);
    else
        run_blocks(&job);
}

/* ---- merge ----------------------------------------------------------------------------- */

/* Weights of two softmax parts with these log-sum-exps; returns that of both. */
static float merge_lse(float a, float b, float *weight_a, float *weight_b)
{
    const float max = fmaxf(a, b);
    *weight_a = *weight_b = 0;
    if (max == -INFINITY) return max;
    const float sum = expf(a - max) + expf(b - max);
    *weight_a = expf(a - max) / sum;
    *weight_b = expf(b - max) / sum;
    return max + logf(sum);
}

void dh_k_attn_merge(const dh_attn_shape *s, void *o, float *lse, const void *o_part,
                     const float *lse_part)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t rows = s->B * s->Tq;
#pragma omp parallel for schedule(static) if (rows * s->o_row >= PARALLEL_MIN)
    for (int64_t i = 0; i < rows; i++) {
        const int64_t b = i / s->Tq, t = i % s->Tq;
        for (int64_t h = 0; h < s->H; h++) {
            const int64_t stat = (b * s->H + h) * s->Tq + t;
            const int64_t offset = b * s->o_batch + t * s->o_row + h * s->D;
            float mine, other;
            lse[stat] = merge_lse(lse[stat], lse_part[stat], &mine, &other);
            simd->blend(s->o_dtype, s->D, mine, at(s->o_dtype, o, offset), other,
                        const_at(s->o_dtype, o_part, offset));
        }
    }
}

/* ---- backward -------------------------------------------------------------------------- */

static int slots_of(const dh_attn_shape *s)
{
    return (int)DH_MIN(s->slots > 0 ? s->slots : DEFAULT_SLOTS, s->B * s->KV);
}

/* Floats of one slot; the arrays are listed in simd/attn_grad.h. */
static int64_t slot_floats(const dh_attn_job *job)
{
    const int64_t keys = job->n_blocks * DH_ATTN_BLOCK;
    const int64_t queries = div_up(job->s.Tq, DH_ATTN_BLOCK) * DH_ATTN_BLOCK;
    return keys * (2 * job->s.D + 3 * job->dp) + queries * (3 * job->dp + 1);
}

size_t dh_k_attn_bwd_workspace(const dh_attn_shape *s)
{
    const dh_attn_job job = make_job(s);
    return (size_t)(slots_of(s) * slot_floats(&job)) * sizeof(float);
}

void dh_k_attn_bwd(const dh_attn_shape *s, const void *dout, const void *o, const float *lse,
                   const void *q, const void *k, const void *v, void *dq, void *dk, void *dv,
                   bool accumulate, void *ws)
{
    const dh_simd *simd = dh_simd_get();
    dh_attn_job job = make_job(s);
    job.accumulate = accumulate;
    job.q = q;
    job.k = k;
    job.v = v;
    job.dout = dout;
    job.o = o;
    job.lse = lse;
    job.dq = dq;
    job.dk = dk;
    job.dv = dv;
    const int64_t n = s->B * s->KV, floats = slot_floats(&job);
    // NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): the analyzer does not read pragmas
    const int team = DH_MIN(slots_of(s), omp_get_max_threads());
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t i = 0; i < n; i++)
        simd->attn_bwd(&job, i / s->KV, i % s->KV, (float *)ws + omp_get_thread_num() * floats);
}
