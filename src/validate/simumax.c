/* Measurements of SimuMax's authors: matrix multiplications and attention alone, on B200 and A100;
 * steps of dense models under Megatron, on 8 B200. Its collectives are a table of
 * nccl_constants.c. */
#include <string.h>

#include "validate/job.h"

/* Peaks of which SimuMax's tables give shares. A cluster on which they are tried may have
 * another. */
#define B200_FLOPS_PER_S 2250e12
#define A100_FLOPS_PER_S 312e12

/* ---- products ------------------------------------------------------------------------------ */

/* Operands once; the result written, or read and added to. */
static double gemm_bytes(const dh_gemm_shape *s, const char *layout, const char *out)
{
    const double m = (double)s->rows, n = (double)s->columns, k = (double)s->shared;
    const double item = strcmp(out, "fp32") == 0 ? 4 : 2, ways = strcmp(layout, "NT") == 0 ? 2 : 1;
    return 2 * (m * k + k * n) + m * n * item * ways;
}

static dh_status add_gemm(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                          const dh_published *t, size_t i, double peak_flops_per_s)
{
    dh_gemm_shape s = {.dtype = DH_BF16, .batch = 1};
    const char *layout, *out;
    double share;
    DH_TRY(dh_published_int(ctx, t, i, "m", &s.rows));
    DH_TRY(dh_published_int(ctx, t, i, "n", &s.columns));
    DH_TRY(dh_published_int(ctx, t, i, "k", &s.shared));
    DH_TRY(dh_published_text(ctx, t, i, "layout", &layout));
    DH_TRY(dh_published_text(ctx, t, i, "out", &out));
    DH_TRY(dh_published_real(ctx, t, i, "share", &share));
    s.bytes = gemm_bytes(&s, layout, out);
    const double flops = 2 * (double)s.rows * (double)s.columns * (double)s.shared;
    return dh_validation_add(ctx, v, dh_cluster_gemm_ns(cluster, &s) * 1e-3,
                             flops / share / peak_flops_per_s * 1e6, "%lld x %lld x %lld, %s %s",
                             (long long)s.rows, (long long)s.columns, (long long)s.shared, layout,
                             out);
}

static dh_status add_b200_gemms(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                                const dh_published *t)
{
    for (size_t i = 0; i < t->n_rows; i++)
        DH_TRY(add_gemm(ctx, v, cluster, t, i, B200_FLOPS_PER_S));
    return DH_OK;
}

dh_status dh_validate_b200_gemm(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, "b200", add_b200_gemms);
}

static dh_status add_a100_gemms(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                                const dh_published *t)
{
    for (size_t i = 0; i < t->n_rows; i++)
        DH_TRY(add_gemm(ctx, v, cluster, t, i, A100_FLOPS_PER_S));
    return DH_OK;
}

dh_status dh_validate_a100_gemm(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, "a100", add_a100_gemms);
}

/* ---- attention ----------------------------------------------------------------------------- */

typedef struct heads {
    int64_t tokens, heads, kv_heads, qk_dim, v_dim;
} heads;

/* All of the scores forward: two products of tokens x tokens for each head; backward five. */
static double whole_flops(const heads *h, bool grad)
{
    const double scores = (double)h->tokens * (double)h->tokens * (double)h->heads;
    const double qk = (double)h->qk_dim, v = (double)h->v_dim;
    return 2 * scores * (grad ? 3 * qk + 2 * v : qk + v);
}

/* Queries, keys, values and the result; backward those and as many gradients. */
static double attention_bytes(const heads *h, bool grad)
{
    const double dims = (double)(h->heads + h->kv_heads) * (double)(h->qk_dim + h->v_dim);
    return 2 * (double)h->tokens * dims * (grad ? 2 : 1);
}

/* Causal: half of the pairs. */
static dh_attention_work work_of(const heads *h, bool grad)
{
    const double tokens = (double)h->tokens, qk = (double)h->qk_dim, v = (double)h->v_dim;
    return (dh_attention_work){.dtype = DH_BF16,
                               .flops = whole_flops(h, grad) / 2,
                               .bytes = attention_bytes(h, grad),
                               .heads = (double)h->heads,
                               .queries = tokens,
                               .keys = tokens,
                               .pairs = tokens * tokens / 2,
                               .head_dim = grad ? (3 * qk + 2 * v) / 5 : (qk + v) / 2};
}

static dh_status add_attention(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                               const dh_published *t, size_t i, double peak_flops_per_s)
{
    heads h;
    const char *direction;
    double share;
    DH_TRY(dh_published_text(ctx, t, i, "direction", &direction));
    DH_TRY(dh_published_int(ctx, t, i, "tokens", &h.tokens));
    DH_TRY(dh_published_int(ctx, t, i, "heads", &h.heads));
    DH_TRY(dh_published_int(ctx, t, i, "kv_heads", &h.kv_heads));
    DH_TRY(dh_published_int(ctx, t, i, "qk_dim", &h.qk_dim));
    DH_TRY(dh_published_int(ctx, t, i, "v_dim", &h.v_dim));
    DH_TRY(dh_published_real(ctx, t, i, "share", &share));
    const bool grad = strcmp(direction, "bwd") == 0;
    const dh_attention_work work = work_of(&h, grad);
    return dh_validation_add(ctx, v, dh_cluster_attention_ns(cluster, &work, grad) * 1e-3,
                             whole_flops(&h, grad) / share / peak_flops_per_s * 1e6,
                             "%s, %lld tokens, %lld heads of %lld, %lld of keys", direction,
                             (long long)h.tokens, (long long)h.heads, (long long)h.qk_dim,
                             (long long)h.kv_heads);
}

static dh_status add_b200_attentions(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                                     const dh_published *t)
{
    for (size_t i = 0; i < t->n_rows; i++)
        DH_TRY(add_attention(ctx, v, cluster, t, i, B200_FLOPS_PER_S));
    return DH_OK;
}

dh_status dh_validate_b200_attention(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, "b200", add_b200_attentions);
}

static dh_status add_a100_attentions(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                                     const dh_published *t)
{
    for (size_t i = 0; i < t->n_rows; i++)
        DH_TRY(add_attention(ctx, v, cluster, t, i, A100_FLOPS_PER_S));
    return DH_OK;
}

dh_status dh_validate_a100_attention(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, "a100", add_a100_attentions);
}

/* ---- steps of dense models ----------------------------------------------------------------- */

typedef struct step {
    const char *model;
    int64_t layers, tp, pp, dp, cp, seq, micro_batches;
    double ms, gib; /* of a step; most that a device has allocated */
} step;

static dh_status read_step(dh_ctx *ctx, const dh_published *t, size_t i, step *s)
{
    const struct {
        const char *column;
        int64_t *number;
    } numbers[] = {{"layers", &s->layers},
                   {"tp", &s->tp},
                   {"pp", &s->pp},
                   {"dp", &s->dp},
                   {"cp", &s->cp},
                   {"seq", &s->seq},
                   {"micro_batches", &s->micro_batches}};
    DH_TRY(dh_published_text(ctx, t, i, "model", &s->model));
    DH_TRY(dh_published_real(ctx, t, i, "real_ms", &s->ms));
    DH_TRY(dh_published_real(ctx, t, i, "real_alloc_gib", &s->gib));
    for (size_t k = 0; k < DH_COUNTOF(numbers); k++)
        DH_TRY(dh_published_int(ctx, t, i, numbers[k].column, numbers[k].number));
    return DH_OK;
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const step *s, dh_shipped_job *job)
{
    const struct {
        const char *key;
        int64_t value;
    } sets[] = {{"model.n_layers", s->layers},
                {"parallel.tp", s->tp},
                {"parallel.pp", s->pp},
                {"parallel.dp", s->dp},
                {"parallel.cp", s->cp},
                {"train.seq_len", s->seq},
                {"train.batch", s->dp * s->micro_batches}};
    *job = (dh_shipped_job){.file = dh_arena_printf(v->arena, "simumax-%s", s->model),
                            .cluster = "b200"};
    bool whole = job->file != NULL;
    for (size_t k = 0; k < DH_COUNTOF(sets); k++) {
        job->set[k] = dh_arena_printf(v->arena, "%s=%lld", sets[k].key, (long long)sets[k].value);
        whole = whole && job->set[k];
    }
    return whole ? DH_OK : dh_no_memory(ctx);
}

static dh_status add_step(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i,
                          bool memory)
{
    step s;
    dh_shipped_job job;
    dh_shipped_step simulated;
    DH_TRY(read_step(ctx, t, i, &s));
    DH_TRY(job_of(ctx, v, &s, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &simulated));
    DH_TRY(dh_validation_add(
        ctx, v, memory ? simulated.memory_bytes / 1073741824.0 : simulated.ns * 1e-6,
        memory ? s.gib : s.ms, "%s, tp %lld, pp %lld, cp %lld, %lldK, %lld micro-batches", s.model,
        (long long)s.tp, (long long)s.pp, (long long)s.cp, (long long)(s.seq / 1024),
        (long long)s.micro_batches));
    return dh_shipped_name_row(ctx, v, &job, simulated.ns);
}

static dh_status add_steps(dh_ctx *ctx, dh_validation *v, bool memory)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_step(ctx, v, &t, i, memory));
    return DH_OK;
}

dh_status dh_validate_b200_dense(dh_ctx *ctx, dh_validation *v)
{
    return add_steps(ctx, v, false);
}

dh_status dh_validate_b200_memory(dh_ctx *ctx, dh_validation *v)
{
    return add_steps(ctx, v, true);
}
