/* Operators measured or read, and what the profile says. */
#include "describe/profiled.h"

#include <math.h>
#include <string.h>

#include "base/json_text.h"
#include "train/inputs.h"
#include "train/profiling.h"

/* ---- making --------------------------------------------------------------------------------- */

enum { MOST_SAMPLES = 10000 };

static dh_status check_options(dh_ctx *ctx, const dh_describe_profile_options *a)
{
    const bool measures = !a->matrix && a->n_traces == 0;
    if (a->matrix && a->n_traces > 0)
        return dh_fail(ctx, DH_EINVAL, "a matrix to import and traces: give one of them");
    if (!measures && (a->samples || a->seconds > 0))
        return dh_fail(ctx, DH_EINVAL,
                       "%s measures nothing: leave the numbers of samples and seconds away",
                       a->matrix ? "an imported matrix" : "reading traces");
    if (a->samples < 0 || a->samples > MOST_SAMPLES)
        return dh_fail(ctx, DH_EINVAL, "samples: %lld; 0 to %d would be right",
                       (long long)a->samples, MOST_SAMPLES);
    if (!(a->seconds >= 0) || a->seconds > 1e6)
        return dh_fail(ctx, DH_EINVAL, "seconds: %g; 0 to 1e6 would be right", a->seconds);
    return DH_OK;
}

/* Measuring more keeps what a profile already has, so a profile may be its own output. */
static dh_status check_input(dh_ctx *ctx, void *user, const char *setting, const char *path)
{
    const dh_describe_profile_options *a = user;
    return strcmp(setting, "profile") == 0 ? DH_OK : dh_output_check(ctx, a->out, path, false);
}

static dh_status check_output(dh_ctx *ctx, const dh_job *job, const dh_describe_profile_options *a)
{
    DH_TRY(dh_job_each_input(ctx, job, check_input, (void *)(uintptr_t)a));
    DH_TRY(dh_output_check(ctx, a->out, a->matrix, false));
    for (size_t i = 0; i < a->n_traces; i++)
        DH_TRY(dh_output_check(ctx, a->out, a->traces[i], false));
    return DH_OK;
}

static dh_status import(dh_ctx *ctx, const dh_job *job, const char *csv, dh_profile **profile)
{
    dh_oef_matrix *matrix;
    DH_TRY(dh_oef_matrix_read(ctx, csv, &matrix));
    dh_status st = dh_profile_import(ctx, job, matrix, csv, profile);
    dh_oef_matrix_destroy(matrix);
    return st;
}

static dh_status make(dh_ctx *ctx, const dh_job *job, const dh_describe_profile_options *a,
                      dh_profiled *p)
{
    const dh_profile_options how = {
        .quiet = !a->progress, .samples = a->samples, .seconds = a->seconds, .stop = a->stop};
    if (a->matrix) return import(ctx, job, a->matrix, &p->profile);
    if (a->n_traces == 0) return dh_profile_measure(ctx, job, &how, &p->profile);
    p->from_traces = true;
    DH_TRY(dh_profile_from_traces(ctx, job, a->traces, a->n_traces, &p->traced));
    p->profile = p->traced.profile;
    return DH_OK;
}

static dh_status store(dh_ctx *ctx, const dh_job *job, const char *out, dh_profiled *p)
{
    if (out)
        dh_str_printf(&p->path, "%s", out);
    else
        DH_TRY(dh_profile_place(ctx, job, p->profile, &p->path));
    return p->path.failed ? dh_no_memory(ctx) : dh_profile_store(ctx, p->profile, p->path.text);
}

dh_status dh_profiled_make(dh_ctx *ctx, const dh_job *job,
                           const dh_describe_profile_options *options, dh_profiled *profiled)
{
    *profiled = (dh_profiled){.path = DH_STR_INIT};
    DH_TRY(check_options(ctx, options));
    DH_TRY(check_output(ctx, job, options));
    const int64_t start_ns = dh_now_ns();
    DH_TRY(make(ctx, job, options, profiled));
    profiled->seconds = (double)(dh_now_ns() - start_ns) * 1e-9;
    return profiled->profile ? store(ctx, job, options->out, profiled) : DH_OK;
}

void dh_profiled_fini(dh_profiled *p)
{
    if (p->from_traces)
        dh_traced_fini(&p->traced);
    else
        dh_profile_destroy(p->profile);
    dh_str_fini(&p->path);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static json_t *text_list(const char *const *at, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_string(at[i]));
    return list;
}

static json_t *unmatched_json(const dh_traced *traced)
{
    return json_pack("{so so}", "operators", text_list(traced->operators.at, traced->operators.n),
                     "measurements", text_list(traced->measurements.at, traced->measurements.n));
}

dh_status dh_profiled_json(dh_ctx *ctx, const dh_profiled *p, json_t **document)
{
    json_t *content;
    dh_str text = DH_STR_INIT;
    DH_TRY(dh_profile_print(ctx, p->profile, &text));
    const dh_status st = dh_json_read(ctx, text.text, text.len, 0, NULL, &content);
    dh_str_fini(&text);
    DH_TRY(st);
    *document =
        json_pack("{ss sf so}", "file", p->path.text, "seconds", p->seconds, "content", content);
    if (*document && p->from_traces)
        json_object_set_new(*document, "unmatched", unmatched_json(&p->traced));
    return DH_OK;
}
