/* Linear attention: scratch, and how heads are shared among threads. The inner loops are in
 * simd/linear_attn.h. */
#include "base/base.h"
#include "run/cpu/split.h"

#include <omp.h>
#include <string.h>

/* TUNING: as attention's backward pass: scratch grows with the threads that have one. */
enum { MAX_SLOTS = 8 };

typedef void unit(const dh_linear_job *job, int64_t b, int64_t kv_head, float *slot);

static dh_linear_job make_job(const dh_linear_shape *s)
{
    DH_CHECK(s->D >= 1 && s->D <= DH_ATTN_MAX_DIM, "head dimension %lld", (long long)s->D);
    DH_CHECK(s->KV >= 1 && s->H / s->KV * s->KV == s->H, "%lld heads over %lld", (long long)s->H,
             (long long)s->KV);
    return (dh_linear_job){.s = *s, .dp = div_up(s->D, DH_ATTN_PAD) * DH_ATTN_PAD};
}

/* Floats of one slot; the arrays are listed in simd/linear_attn.h. */
static int64_t of_slot(const dh_linear_job *job)
{
    const int64_t block = DH_ATTN_BLOCK;
    return block * (7 * job->dp + 2 * job->s.D + 2 * block) + 2 * job->s.D * job->dp;
}

static int slots_of(const dh_linear_shape *s)
{
    return (int)DH_MIN(MAX_SLOTS, s->B * s->KV);
}

size_t dh_k_linear_workspace(const dh_linear_shape *s)
{
    const dh_linear_job job = make_job(s);
    return (size_t)(slots_of(s) * of_slot(&job)) * sizeof(float);
}

static void run(const dh_linear_job *job, unit *each, void *ws)
{
    const int64_t n = job->s.B * job->s.KV, floats = of_slot(job);
    // NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): the analyzer does not read pragmas
    const int team = DH_MIN(slots_of(&job->s), omp_get_max_threads());
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t i = 0; i < n; i++)
        each(job, i / job->s.KV, i % job->s.KV, (float *)ws + omp_get_thread_num() * floats);
}

/* ---- forward ------------------------------------------------------------------------------- */

void dh_k_linear_fwd(const dh_linear_shape *s, const void *qkv, float *state, void *o, void *ws)
{
    dh_linear_job job = make_job(s);
    job.qkv = qkv;
    job.state = state;
    job.out = o;
    run(&job, dh_simd_get()->linear_fwd, ws);
}

void dh_k_linear_state(const dh_linear_shape *s, const void *qkv, float *m, void *ws)
{
    dh_k_linear_state_grad(s, NULL, qkv, m, ws);
}

void dh_k_linear_join(const dh_linear_shape *s, const float *o_own, const void *qkv,
                      const float *before, void *o, void *ws)
{
    dh_linear_job job = make_job(s);
    job.qkv = qkv;
    job.own = o_own;
    job.before = before;
    job.out = o;
    run(&job, dh_simd_get()->linear_join, ws);
}

/* ---- backward ------------------------------------------------------------------------------ */

void dh_k_linear_state_grad(const dh_linear_shape *s, const void *dout, const void *qkv, float *dm,
                            void *ws)
{
    dh_linear_job job = make_job(s);
    job.qkv = qkv;
    job.dout = dout;
    job.state = dm;
    run(&job, dh_simd_get()->linear_state, ws);
}

void dh_k_linear_bwd(const dh_linear_shape *s, const void *dout, const void *qkv, void *dqkv,
                     void *ws)
{
    dh_linear_job job = make_job(s);
    job.qkv = qkv;
    job.dout = dout;
    job.out = dqkv;
    run(&job, dh_simd_get()->linear_bwd, ws);
}

void dh_k_linear_join_bwd(const dh_linear_shape *s, const float *dqkv_own, const void *dout,
                          const void *qkv, const float *before, const float *behind, void *dqkv,
                          void *ws)
{
    dh_linear_job job = make_job(s);
    job.qkv = qkv;
    job.dout = dout;
    job.own = dqkv_own;
    job.before = before;
    job.behind = behind;
    job.out = dqkv;
    run(&job, dh_simd_get()->linear_join_bwd, ws);
}

/* ---- feature maps -------------------------------------------------------------------------- */

static void map_rows(dh_feature_map map, dh_dtype dtype, dh_heads h, const void *dy,
                     const void *qkv, void *out)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t mapped = (h.H + h.KV) * h.D, row = mapped + h.KV * h.D;
    const void *values = dy ? dy : qkv;
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++) {
        const int64_t r = n * row, v = r + mapped;
        simd->feature_map(map, dtype, mapped, const_at(dtype, dy, r), const_at(dtype, qkv, r),
                          at(dtype, out, r));
        if (out != values)
            memcpy(at(dtype, out, v), const_at(dtype, values, v),
                   (size_t)(h.KV * h.D) * dh_dtype_bytes(dtype));
    }
}

void dh_k_feature_map_fwd(dh_feature_map map, dh_dtype dtype, dh_heads h, const void *qkv,
                          void *out)
{
    map_rows(map, dtype, h, NULL, qkv, out);
}

void dh_k_feature_map_bwd(dh_feature_map map, dh_dtype dtype, dh_heads h, const void *dout,
                          const void *qkv, void *dqkv)
{
    map_rows(map, dtype, h, dout, qkv, dqkv);
}
