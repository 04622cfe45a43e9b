/* Narayanan et al. SC21 (arXiv 2104.04473), table 1: weak scaling from 32 to 3072 devices of
 * Selene.
 *
 * The paper says neither the micro-batch nor the virtual stages of a row, but that they were chosen
 * for throughput; so the fastest by prediction counts. Fewer micro-batches than the interleaved
 * schedule accepts, or layers that do not divide, rule a choice out. */
#include "validate/megatron.h"
#include "validate/table.h"

enum { MAX_MICRO_BATCH = 8, MAX_CHUNKS = 8 };

static dh_status read_job(dh_ctx *ctx, const dh_published *t, size_t row, dh_megatron_job *job)
{
    int64_t gpus;
    *job = (dh_megatron_job){.seq = 2048, .vocab = 51200, .recompute = DH_RECOMPUTE_KIND_FULL};
    DH_TRY(dh_published_int(ctx, t, row, "heads", &job->heads));
    DH_TRY(dh_published_int(ctx, t, row, "hidden", &job->hidden));
    DH_TRY(dh_published_int(ctx, t, row, "layers", &job->layers));
    DH_TRY(dh_published_int(ctx, t, row, "tp", &job->tp));
    DH_TRY(dh_published_int(ctx, t, row, "pp", &job->pp));
    DH_TRY(dh_published_int(ctx, t, row, "gpus", &gpus));
    DH_TRY(dh_published_int(ctx, t, row, "global_batch", &job->global_batch));
    job->dp = gpus / (job->tp * job->pp);
    return DH_OK;
}

static bool is_possible(const dh_megatron_job *j)
{
    if (j->global_batch % (j->dp * j->micro_batch) != 0) return false;
    const int64_t n_micro = j->global_batch / (j->dp * j->micro_batch);
    if (j->layers % (j->pp * j->chunks) != 0) return false;
    return j->chunks == 1 || (j->pp > 1 && n_micro % j->pp == 0);
}

static dh_status fastest(dh_ctx *ctx, const dh_cluster *selene, dh_megatron_job *job, double *ns)
{
    dh_megatron_job best = *job;
    *ns = 0;
    for (job->micro_batch = 1; job->micro_batch <= MAX_MICRO_BATCH; job->micro_batch *= 2)
        for (job->chunks = 1; job->chunks <= MAX_CHUNKS; job->chunks++) {
            dh_megatron_time time;
            if (!is_possible(job)) continue;
            DH_TRY(dh_megatron_time_of(ctx, selene, job, &time));
            if (*ns > 0 && time.iteration_ns >= *ns) continue;
            *ns = time.iteration_ns;
            best = *job;
        }
    *job = best;
    return *ns > 0 ? DH_OK : dh_fail(ctx, DH_EINVAL, "no micro-batch fits");
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_cluster *selene,
                         const dh_published *t, size_t row)
{
    dh_megatron_job job;
    double params, published, ns;
    DH_TRY(read_job(ctx, t, row, &job));
    DH_TRY(dh_published_real(ctx, t, row, "params_b", &params));
    DH_TRY(dh_published_real(ctx, t, row, "tflops_per_gpu", &published));
    DH_TRY(fastest(ctx, selene, &job, &ns));
    const double devices = (double)(job.tp * job.pp * job.dp);
    const double tflops = dh_megatron_hardware_flops(&job) / devices / ns * 1e-3;
    return dh_validation_add(ctx, v, tflops, published,
                             "%gB dp%lld tp%lld pp%lld, micro-batch %lld, %lld chunks", params,
                             (long long)job.dp, (long long)job.tp, (long long)job.pp,
                             (long long)job.micro_batch, (long long)job.chunks);
}

dh_status dh_validate_sc21(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *selene;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "selene", &selene));
    dh_status st = DH_OK;
    for (size_t i = 0; i < t.n_rows && st == DH_OK; i++) st = add_row(ctx, v, selene, &t, i);
    dh_cluster_destroy(selene);
    return st;
}
