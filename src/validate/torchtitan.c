/* torchtitan's benchmarks of Llama 3 on H100 (500 W): tokens a second and device, as jobs. Rows in
 * float8 and those of H200 are left out: clusters have no float8 rate yet. */
#include <string.h>

#include "validate/job.h"

/* What a row's columns come to in settings. */
static const struct row_kind {
    const char *model, *parallelism, *compile;
    dh_shipped_job job;
} kinds[] = {
    {"8B", "FSDP8", "", {"torchtitan-8b", {"system=torchtitan+eager"}, "h100-500w"}},
    {"8B", "FSDP8", "compile", {"torchtitan-8b", {NULL}, "h100-500w"}},
    {"8B",
     "FSDP128",
     "",
     {"torchtitan-8b",
      {"parallel.dp=128", "train.batch=256", "system=torchtitan+eager"},
      "h100-500w"}},
    {"8B",
     "FSDP128",
     "compile",
     {"torchtitan-8b", {"parallel.dp=128", "train.batch=256"}, "h100-500w"}},
    {"70B", "FSDP32 TP8", "compile", {"torchtitan-70b", {NULL}, "h100-500w"}},
    {"70B",
     "FSDP32 TP8 asyncTP",
     "compile",
     {"torchtitan-70b", {"strategy=intra-batch"}, "h100-500w"}},
    {"8B",
     "FSDP8 TP8",
     "compile",
     {"torchtitan-8b", {"parallel.tp=8", "train.micro_batch=12", "train.batch=96"}, "h100-500w"}},
    {"8B",
     "FSDP8 TP8 asyncTP",
     "compile",
     {"torchtitan-8b",
      {"parallel.tp=8", "train.micro_batch=12", "train.batch=96", "strategy=intra-batch"},
      "h100-500w"}},
};

/* NULL: no job stands for the row. */
static dh_status find_kind(dh_ctx *ctx, const dh_published *t, size_t row,
                           const struct row_kind **kind)
{
    const char *model, *parallelism, *compile, *precision;
    *kind = NULL;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_text(ctx, t, row, "parallelism", &parallelism));
    DH_TRY(dh_published_text(ctx, t, row, "compile", &compile));
    DH_TRY(dh_published_text(ctx, t, row, "precision", &precision));
    for (size_t i = 0; i < DH_COUNTOF(kinds) && strcmp(precision, "bf16") == 0; i++)
        if (strcmp(kinds[i].model, model) == 0 && strcmp(kinds[i].compile, compile) == 0 &&
            strcmp(kinds[i].parallelism, parallelism) == 0)
            *kind = &kinds[i];
    return DH_OK;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const struct row_kind *kind;
    dh_shipped_step step;
    int64_t seq, samples;
    double published;
    DH_TRY(find_kind(ctx, t, row, &kind));
    if (!kind) return DH_OK;
    DH_TRY(dh_published_int(ctx, t, row, "seq", &seq));
    DH_TRY(dh_published_int(ctx, t, row, "local_batch", &samples));
    DH_TRY(dh_published_real(ctx, t, row, "tps_per_gpu", &published));
    DH_TRY(dh_shipped_step_of(ctx, v, &kind->job, &step));
    const double devices = strstr(kind->parallelism, "TP8") ? 8 : 1; /* of a replica */
    const double rate = (double)(seq * samples) / devices / step.ns * 1e9;
    DH_TRY(dh_validation_add(ctx, v, rate, published, "%s %s%s", kind->model, kind->parallelism,
                             *kind->compile ? "" : ", eager"));
    return dh_shipped_name_row(ctx, v, &kind->job, step.ns);
}

dh_status dh_validate_torchtitan(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
