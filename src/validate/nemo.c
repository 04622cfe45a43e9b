/* NVIDIA's published steps of NeMo on DGX H100: recipes in bf16 and fp8, pre-training of dense
 * models in fp8, long sequences. Their tables have the same columns; no constant rests on them.
 *
 * A row's degrees are settings: what is left of the devices is data-parallel, FSDP shares
 * parameters out as well, several virtual stages interleave. */
#include <string.h>

#include "validate/job.h"

typedef struct row {
    const char *model, *file, *system, *split, *precision, *what;
    int64_t devices, batch, micro_batch, seq, fsdp, tp, pp, cp, vp;
    double published;
} row;

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, row *r)
{
    const struct {
        const char *column, **text;
    } texts[] = {{"model", &r->model},         {"job", &r->file},
                 {"system", &r->system},       {"layer_split", &r->split},
                 {"precision", &r->precision}, {"what", &r->what}};
    const struct {
        const char *column;
        int64_t *number;
    } numbers[] = {{"gpus", &r->devices}, {"batch", &r->batch}, {"micro_batch", &r->micro_batch},
                   {"seq", &r->seq},      {"fsdp", &r->fsdp},   {"tp", &r->tp},
                   {"pp", &r->pp},        {"cp", &r->cp},       {"vp", &r->vp}};
    for (size_t k = 0; k < DH_COUNTOF(texts); k++)
        DH_TRY(dh_published_text(ctx, t, i, texts[k].column, texts[k].text));
    for (size_t k = 0; k < DH_COUNTOF(numbers); k++)
        DH_TRY(dh_published_int(ctx, t, i, numbers[k].column, numbers[k].number));
    DH_TRY(dh_published_real(ctx, t, i, "value", &r->published));
    if (r->devices % (r->tp * r->pp * r->cp) == 0) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: tp * pp * cp does not divide %lld devices",
                   t->file, i + 1, (long long)r->devices);
}

static void add_set(dh_shipped_job *job, const char *set)
{
    size_t n = 0;
    while (n < DH_SHIPPED_SETS && job->set[n]) n++;
    DH_CHECK(n < DH_SHIPPED_SETS, "%s is one setting too many", set);
    job->set[n] = set;
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const row *r, dh_shipped_job *job)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"parallel.dp", r->devices / (r->tp * r->pp * r->cp)},
                 {"parallel.tp", r->tp},
                 {"parallel.pp", r->pp},
                 {"parallel.cp", r->cp},
                 {"parallel.virtual_stages", r->vp},
                 {"train.batch", r->batch},
                 {"train.micro_batch", r->micro_batch},
                 {"train.seq_len", r->seq}};
    *job = (dh_shipped_job){.file = r->file, .cluster = "h100"};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++) {
        const char *set =
            dh_arena_printf(v->arena, "%s=%lld", sizes[i].key, (long long)sizes[i].value);
        if (!set) return dh_no_memory(ctx);
        add_set(job, set);
    }
    if (*r->split) add_set(job, dh_arena_printf(v->arena, "parallel.layer_split=%s", r->split));
    add_set(job, dh_arena_printf(v->arena, "system=%s", r->system));
    if (strcmp(r->precision, "fp8") == 0) add_set(job, "train.fp8=hybrid");
    if (r->fsdp) {
        add_set(job, "parallel.zero=3");
        add_set(job, "parallel.gather=optimizer");
    }
    return DH_OK;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i)
{
    row r;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(read_row(ctx, t, i, &r));
    DH_TRY(job_of(ctx, v, &r, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    const double rate = (double)(r.batch * r.seq) / step.devices / step.ns * 1e9;
    const double predicted = strcmp(r.what, "s") == 0 ? step.ns * 1e-9 : rate;
    DH_TRY(dh_validation_add(ctx, v, predicted, r.published, "%s, %lld devices, %lldK, %s", r.model,
                             (long long)r.devices, (long long)(r.seq / 1024), r.precision));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_nemo(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
