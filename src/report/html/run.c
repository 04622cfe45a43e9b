/* A run folder's files, part by part. */
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "report/html/page.h"
#include "report/html/run.h"

dh_status dh_run_folder_path(dh_ctx *ctx, const dh_run_folder *run, const char *name, char **path)
{
    dh_str text = DH_STR_INIT;
    if (!run->only)
        dh_str_printf(&text, "%s/%s", run->path, name);
    else
        dh_str_printf(&text, "%s", strcmp(run->only, name) == 0 ? run->path : "");
    if (text.failed) {
        dh_str_fini(&text);
        return dh_no_memory(ctx);
    }
    *path = text.text;
    return DH_OK;
}

dh_status dh_html_json(dh_ctx *ctx, const char *path, json_t **value)
{
    enum { MAX_BYTES = 1 << 30 };
    char *text;
    size_t n_bytes;
    json_error_t error;
    DH_TRY(dh_file_read(ctx, path, MAX_BYTES, &text, &n_bytes));
    dh_status st = dh_json_read(ctx, text, n_bytes, 0, &error, value);
    free(text);
    if (st != DH_OK || *value) return st;
    return dh_fail(ctx, DH_EFORMAT, "%s:%d:%d: %s", path, error.line, error.column, error.text);
}

dh_status dh_run_folder_json(dh_ctx *ctx, const dh_run_folder *run, const char *name,
                             json_t **value)
{
    char *path = NULL;
    *value = NULL;
    if (run->document) {
        if (strcmp(run->only, name) == 0) *value = json_incref(run->document);
        return DH_OK;
    }
    DH_TRY(dh_run_folder_path(ctx, run, name, &path));
    dh_status st = dh_path_exists(path) ? dh_html_json(ctx, path, value) : DH_OK;
    free(path);
    return st;
}

void dh_run_folder_put(dh_run_folder *run, const char *key, json_t *document, json_out *out)
{
    run->n_parts++;
    if (run->data) {
        out->text.failed |= json_object_set_new(run->data, key, document) != 0;
        return;
    }
    out_key(out, key);
    out_json(out, document);
    json_decref(document);
}

static dh_status load_job(dh_ctx *ctx, dh_run_folder *run)
{
    char *path = NULL;
    DH_TRY(dh_run_folder_path(ctx, run, "job.yaml", &path));
    dh_status st = DH_OK;
    if (dh_path_exists(path)) {
        st = dh_job_load(ctx, path, NULL, 0, &run->job);
        if (st == DH_OK) st = dh_mesh_from_job(ctx, run->job, &run->mesh);
        run->n_parts++;
    }
    free(path);
    return st;
}

static dh_status write_summary(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    json_t *summary;
    DH_TRY(dh_run_folder_json(ctx, run, "summary.json", &summary));
    if (!summary) return DH_OK;
    dh_run_folder_put(run, "summary", summary, out);
    return DH_OK;
}

static dh_status write_parts(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    DH_TRY(load_job(ctx, run));
    if (run->job) {
        dh_html_facts(run, out);
        DH_TRY(dh_html_plan(ctx, run, out));
    }
    DH_TRY(write_summary(ctx, run, out));
    DH_TRY(dh_html_metrics(ctx, run, out));
    DH_TRY(dh_html_trace(ctx, run, out));
    DH_TRY(dh_html_oef(ctx, run, out));
    DH_TRY(dh_html_table(ctx, run, out));
    if (run->n_parts > 0) return DH_OK;
    return dh_fail(ctx, DH_EMISSING,
                   "%s is not a run folder: it has no job.yaml, summary.json, metrics.jsonl, "
                   "trace-rank0.json, profile.json, oef.csv or table.json; a run folder is what "
                   "`dhelix train` writes to "
                   "the job's `out`",
                   run->path);
}

dh_status dh_html_run_read(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    if (!run->only && !dh_path_is_dir(run->path))
        return dh_fail(ctx, DH_EMISSING,
                       "%s is not a folder; a run folder is what `dhelix train` "
                       "writes to the job's `out`",
                       run->path);
    out_open(out, '{');
    out_key(out, "name");
    out_text(out, run->name ? run->name : run->path);
    dh_status st = write_parts(ctx, run, out);
    out_close(out, '}');
    return st;
}

dh_status dh_html_run(dh_ctx *ctx, const char *path, int64_t max_ranks, json_out *out,
                      bool *sequential)
{
    dh_run_folder run = {.path = path, .max_ranks = max_ranks};
    const dh_status st = dh_html_run_read(ctx, &run, out);
    *sequential = run.job && strcmp(run.job->strategy, "sequential") == 0;
    dh_job_destroy(run.job);
    return st;
}
