/* torchtitan's benchmarks of Llama 2 and 3 on H100 (500 W), H200 and A100: tokens a second and
 * device, as jobs.
 *
 * A row's words are settings: degrees of FSDP (data parallelism with everything shared out), TP, PP
 * and CP, the schedule, asynchronous TP (strategy intra-batch). Under a
 * pipeline, torchtitan's pipelining_utils.py cuts a local batch into as many micro-batches as
 * stages. A rank has two stages where the schedule interleaves. The remainder of the layers goes to
 * the middle stages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "validate/job.h"

typedef struct row {
    const char *model, *parallelism, *precision, *compile, *recompute;
    int64_t devices, seq, samples; /* of a data-parallel rank in a step */
    double published;
    int64_t dp, tp, pp, cp;
    bool interleaved, async_tp;
} row;

static const struct shape {
    const char *model, *file, *cluster;
} shapes[] = {
    {"8B", "torchtitan-8b", "h100-500w"},
    {"70B", "torchtitan-70b", "h100-500w"},
    {"405B", "torchtitan-405b", "h100-500w"},
    {"8B(H200)", "torchtitan-8b", "h200"},
    {"8B(A100)", "torchtitan-8b", "a100"},
    {"70B(A100)", "torchtitan-70b-fsdp", "a100"},
    {"Llama 2 13B(A100)", "torchtitan-llama2-13b", "a100"},
    {"Llama 2 70B(A100)", "torchtitan-llama2-70b", "a100"},
    {"405B(128)", "torchtitan-405b-fsdp", "h100-500w"},
};

/* "FSDP8", 8; 1 where the row does not have that word. */
static int64_t degree(const char *parallelism, const char *axis)
{
    const char *at = strstr(parallelism, axis);
    return at ? strtoll(at + strlen(axis), NULL, 10) : 1;
}

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, row *r)
{
    DH_TRY(dh_published_text(ctx, t, i, "model", &r->model));
    DH_TRY(dh_published_text(ctx, t, i, "parallelism", &r->parallelism));
    DH_TRY(dh_published_text(ctx, t, i, "precision", &r->precision));
    DH_TRY(dh_published_text(ctx, t, i, "compile", &r->compile));
    DH_TRY(dh_published_text(ctx, t, i, "act_ckpt", &r->recompute));
    DH_TRY(dh_published_int(ctx, t, i, "gpus", &r->devices));
    DH_TRY(dh_published_int(ctx, t, i, "seq", &r->seq));
    DH_TRY(dh_published_int(ctx, t, i, "local_batch", &r->samples));
    DH_TRY(dh_published_real(ctx, t, i, "tps_per_gpu", &r->published));
    r->dp = degree(r->parallelism, "FSDP");
    r->tp = degree(r->parallelism, " TP");
    r->pp = degree(r->parallelism, " PP");
    r->cp = degree(r->parallelism, " CP");
    r->interleaved = strstr(r->parallelism, "Interleaved") != NULL;
    r->async_tp = strstr(r->parallelism, "asyncTP") != NULL;
    if (r->dp * r->tp * r->pp * r->cp == r->devices) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: \"%s\" is not %lld devices", t->file, i + 1,
                   r->parallelism, (long long)r->devices);
}

static bool is_fp8(const row *r)
{
    return strncmp(r->precision, "float8", strlen("float8")) == 0;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static dh_status set_sizes(dh_ctx *ctx, dh_validation *v, const row *r, dh_shipped_job *job)
{
    const int64_t n_micro = r->pp > 1 ? r->pp * (r->interleaved ? 2 : 1) : 1;
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.dp=%lld", (long long)r->dp));
    DH_TRY(dh_shipped_set(ctx, v, job, "train.batch=%lld", (long long)(r->dp * r->samples)));
    DH_TRY(
        dh_shipped_set(ctx, v, job, "train.micro_batch=%lld", (long long)(r->samples / n_micro)));
    if (r->seq != 8192)
        DH_TRY(dh_shipped_set(ctx, v, job, "train.seq_len=%lld", (long long)r->seq));
    if (r->cp > 1) DH_TRY(dh_shipped_set(ctx, v, job, "parallel.cp=%lld", (long long)r->cp));
    if (r->interleaved) {
        DH_TRY(dh_shipped_set(ctx, v, job, "parallel.schedule=interleaved-1f1b"));
        DH_TRY(dh_shipped_set(ctx, v, job, "parallel.virtual_stages=2"));
        DH_TRY(dh_shipped_set(ctx, v, job, "parallel.layer_split=7,*,7"));
    }
    return DH_OK;
}

/* SAC: activations by operator. */
static const char *recompute_of(const row *r)
{
    if (strcmp(r->recompute, "full AC") == 0) return "full";
    return strcmp(r->recompute, "SAC") == 0 ? "selective" : "none";
}

/* Files have what all rows of a model agree on; the 405B's are all in float8 and asynchronous. */
static dh_status job_of(dh_ctx *ctx, dh_validation *v, const row *r, dh_shipped_job *job)
{
    *job = (dh_shipped_job){.file = NULL};
    for (size_t i = 0; i < DH_COUNTOF(shapes); i++)
        if (strcmp(shapes[i].model, r->model) == 0)
            *job = (dh_shipped_job){.file = shapes[i].file, .cluster = shapes[i].cluster};
    if (!job->file) return dh_fail(ctx, DH_EMISSING, "no job of %s is there", r->model);
    DH_TRY(set_sizes(ctx, v, r, job));
    if (r->pp > 1) return DH_OK;
    if (r->tp > 1) DH_TRY(dh_shipped_set(ctx, v, job, "parallel.tp=%lld", (long long)r->tp));
    DH_TRY(dh_shipped_set(ctx, v, job, "train.recompute=%s", recompute_of(r)));
    if (is_fp8(r)) DH_TRY(dh_shipped_set(ctx, v, job, "train.fp8=hybrid"));
    if (!*r->compile) DH_TRY(dh_shipped_set(ctx, v, job, "system=torchtitan+eager"));
    return r->async_tp ? dh_shipped_set(ctx, v, job, "strategy=intra-batch") : DH_OK;
}

/* ---- rows -------------------------------------------------------------------------------------
 *
 * The cluster's constant rests on those in bf16 alone. */

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i)
{
    row r;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(read_row(ctx, t, i, &r));
    if (v->rested_on && is_fp8(&r)) return DH_OK;
    DH_TRY(job_of(ctx, v, &r, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    const double tokens = (double)(r.dp * r.samples * r.seq);
    DH_TRY(dh_validation_add(ctx, v, tokens / step.devices / step.ns * 1e9, r.published,
                             "%s %s, %lldK, %s%s", r.model, r.parallelism,
                             (long long)(r.seq / 1024), r.precision, *r.compile ? "" : ", eager"));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_torchtitan(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
