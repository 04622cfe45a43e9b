/* Contents of a run folder: every checkpoint proved, and the one from which a run would go on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/inspect.h"
#include "train/metrics.h"
#include "train/run.h"
#include "train/tensors.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

static dh_status check_tensor(dh_ctx *ctx, const dh_safetensors *file, const dh_tensor_shape *want)
{
    char is[128], should[128];
    const dh_st_tensor *t = dh_st_find(file, want->name);
    if (!t) return dh_fail(ctx, DH_EFORMAT, "there is no tensor %s", want->name);
    if (t->dtype != DH_ST_F32)
        return dh_fail(ctx, DH_EFORMAT, "%s is of type %s, should be F32", want->name,
                       dh_st_dtype_name(t->dtype));
    if (t->ndim == want->ndim &&
        memcmp(t->shape, want->shape, (size_t)t->ndim * sizeof *t->shape) == 0)
        return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s has shape %s, should have %s", want->name,
                   dh_shape_text(is, sizeof is, t->ndim, t->shape),
                   dh_shape_text(should, sizeof should, want->ndim, want->shape));
}

static dh_status check_tensors(dh_ctx *ctx, const dh_safetensors *file,
                               const dh_tensor_shapes *shapes)
{
    for (size_t i = 0; i < shapes->n; i++) DH_TRY(check_tensor(ctx, file, &shapes->at[i]));
    if (dh_st_n_tensors(file) == shapes->n) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "there are %zu tensors, the model has %zu",
                   dh_st_n_tensors(file), shapes->n);
}

static dh_status check_file(dh_ctx *ctx, const char *folder, const char *name,
                            const dh_tensor_shapes *shapes)
{
    dh_safetensors *file;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, name);
    dh_status st = path.failed ? dh_no_memory_while(ctx, "reading %s", name)
                               : dh_st_open(ctx, path.text, &file);
    if (st == DH_OK) {
        st = check_tensors(ctx, file, shapes);
        dh_st_close(file);
    }
    if (st != DH_OK) dh_ctx_while(ctx, "checking %s", path.failed ? name : path.text);
    dh_str_fini(&path);
    return st;
}

/* Weights and moments against the model that lies beside them. */
static dh_status check_shapes(dh_ctx *ctx, const dh_ckpt *ckpt)
{
    dh_model model;
    dh_tensor_shapes weights = {0}, moments = {0};
    const char *folder = dh_ckpt_path(ckpt);
    const bool adapters = dh_ckpt_has_file(ckpt, DH_ADAPTER_CONFIG);
    dh_str base = DH_STR_INIT;
    DH_TRY(dh_model_from_config_file(ctx, folder, &model));
    dh_status st = adapters ? dh_adapter_read_config(ctx, folder, &model.lora, &base) : DH_OK;
    dh_str_fini(&base);
    if (st == DH_OK) st = dh_model_tensors(ctx, &model, "", &weights);
    if (st == DH_OK) st = dh_model_tensors(ctx, &model, "exp_avg.", &moments);
    if (st == DH_OK) st = dh_model_tensors(ctx, &model, "exp_avg_sq.", &moments);
    if (st == DH_OK)
        st = check_file(ctx, folder, adapters ? DH_ADAPTER_FILE : "model.safetensors", &weights);
    if (st == DH_OK) st = check_file(ctx, folder, "optimizer.safetensors", &moments);
    dh_vec_fini(&weights);
    dh_vec_fini(&moments);
    return st;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void count_files(const dh_ckpt *ckpt, dh_run_finding *f)
{
    f->n_files = dh_ckpt_n_files(ckpt);
    for (size_t i = 0; i < f->n_files; i++) f->n_bytes += dh_ckpt_file_at(ckpt, i)->n_bytes;
}

/* *opened: a run would take it, and would end if it found something wrong in it. */
static dh_status inspect_step(const dh_ctx *like, const char *run_dir, int64_t step,
                              dh_run_finding *f, bool *opened)
{
    dh_ckpt *ckpt;
    dh_ctx ctx = dh_ctx_like(like);
    *f = (dh_run_finding){.step = step};
    dh_status st = dh_ckpt_open_step(&ctx, run_dir, step, true, &ckpt);
    *opened = st == DH_OK;
    if (*opened) {
        count_files(ckpt, f);
        st = check_shapes(&ctx, ckpt);
        dh_ckpt_close(ckpt);
    }
    f->condition = dh_ckpt_condition_of(st);
    snprintf(f->message, sizeof f->message, "%s", ctx.message);
    return st;
}

/* As dh_ckpt_find_latest goes through them. */
static dh_status inspect_steps(dh_ctx *ctx, const char *run_dir, const int64_t *steps, size_t n,
                               dh_run_findings *found)
{
    bool decided = false;
    found->resume = n > 0 ? DH_RESUME_REFUSED : DH_RESUME_BEGINS;
    for (size_t i = 0; i < n; i++) {
        bool opened;
        dh_run_finding f;
        const dh_status st = inspect_step(ctx, run_dir, steps[i], &f, &opened);
        if (st == DH_EMISSING && !opened) continue; /* removed by a run that goes on meanwhile */
        if (st == DH_ENOMEM || st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", f.message);
        if (!decided && f.condition == DH_CKPT_INTACT) {
            found->resume = DH_RESUME_CONTINUES;
            found->resume_step = f.step;
        }
        decided = decided || opened || f.condition != DH_CKPT_DAMAGED;
        if (!dh_vec_push(&found->checkpoints, f)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* Checkpoints that there were. */
static dh_status look_for_lost(dh_ctx *ctx, const char *run_dir, dh_run_findings *found)
{
    dh_ctx why = DH_CTX_INIT;
    const dh_status st = dh_ckpt_check_none(&why, run_dir);
    if (st == DH_OK) return DH_OK;
    if (st != DH_EFORMAT) return dh_fail(ctx, st, "%s", why.message);
    found->resume = DH_RESUME_REFUSED;
    snprintf(found->lost, sizeof found->lost, "%s", why.message);
    return DH_OK;
}

/* ---- metrics --------------------------------------------------------------------------------- */

static dh_status inspect_metrics(dh_ctx *ctx, const char *path, dh_run_findings *found)
{
    dh_metrics_lines lines = {0};
    if (!dh_path_exists(path)) return DH_OK;
    dh_status st = dh_metrics_count(ctx, path, &lines);
    found->n_lines = lines.n;
    found->n_unreadable = lines.n_unreadable;
    if (lines.numbers.text)
        snprintf(found->unreadable, sizeof found->unreadable, "%s", lines.numbers.text);
    dh_metrics_lines_fini(&lines);
    return st;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status inspect(dh_ctx *ctx, const char *run_dir, dh_run_findings *found)
{
    size_t n;
    int64_t *steps;
    dh_str path = DH_STR_INIT;
    DH_TRY(dh_ckpt_list(ctx, run_dir, &steps, &n));
    dh_status st = inspect_steps(ctx, run_dir, steps, n, found);
    free(steps);
    if (st == DH_OK && n == 0) st = look_for_lost(ctx, run_dir, found);
    dh_str_printf(&path, "%s/metrics.jsonl", run_dir);
    if (st == DH_OK && path.failed) st = dh_no_memory(ctx);
    if (st == DH_OK) st = inspect_metrics(ctx, path.text, found);
    dh_str_fini(&path);
    return st;
}

dh_status dh_run_inspect(dh_ctx *ctx, const char *run_dir, dh_run_findings *found)
{
    dh_run_findings made = {.resume = DH_RESUME_BEGINS};
    if (!dh_path_is_dir(run_dir))
        return dh_fail(ctx, DH_EMISSING, "there is no run folder %s", run_dir);
    dh_status st = inspect(ctx, run_dir, &made);
    if (st == DH_OK)
        *found = made;
    else
        dh_run_findings_fini(&made);
    return st;
}

void dh_run_findings_fini(dh_run_findings *found)
{
    dh_vec_fini(&found->checkpoints);
}
