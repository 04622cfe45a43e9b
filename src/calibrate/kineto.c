/* PyTorch's profiler traces (Kineto, Chrome trace JSON), one a rank.
 *
 * Events of category "kernel" are the device's. NCCL's say which collective they are, on how many
 * ranks, and how many elements; those of GEMMs are found by the host's operators that started them
 * ("External id"), whose operands have sizes. */
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "calibrate/kernels.h"

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_nccl(const char *name)
{
    return strncmp(name, "nccl", 4) == 0;
}

/* ---- events --------------------------------------------------------------------------------- */

/* Collectives, and the operators of GEMMs: kernels may stand before the operators that start them.
 */
static dh_status collect(const measured_file *f, const json_t *events, kernels *k)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        const char *category = text_of(event, "cat"), *name = text_of(event, "name");
        const json_t *args = json_object_get(event, "args");
        const double ns = json_number_value(json_object_get(event, "dur")) * 1e3;
        bool ok = true;
        if (strcmp(category, "cpu_op") == 0)
            ok = kernels_add_gemm(k, args, name);
        else if (strcmp(category, "kernel") == 0 && is_nccl(name) && ns > 0)
            ok = kernels_add_call(k, args, name, ns, f->m->node_devices);
        if (!ok) return measured_no_memory(f);
    }
    return DH_OK;
}

static int by_id(const void *x, const void *y)
{
    const kernel_gemm *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

static void add_time(kernels *k, int64_t id, double ns)
{
    size_t low = 0, high = k->gemms.n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (k->gemms.at[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < k->gemms.n && k->gemms.at[low].id == id) k->gemms.at[low].ns += ns;
}

static void time_gemms(const json_t *events, kernels *k)
{
    size_t i;
    json_t *event;
    if (k->gemms.n == 0) return;
    qsort(k->gemms.at, k->gemms.n, sizeof *k->gemms.at, by_id);
    json_array_foreach(events, i, event)
    {
        const json_t *id = json_object_get(json_object_get(event, "args"), "External id");
        if (strcmp(text_of(event, "cat"), "kernel") != 0 || is_nccl(text_of(event, "name")))
            continue;
        if (json_is_integer(id))
            add_time(k, json_integer_value(id),
                     json_number_value(json_object_get(event, "dur")) * 1e3);
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int by_shape(const void *x, const void *y)
{
    const kernel_gemm *a = x, *b = y;
    const int64_t sizes[][2] = {{(int64_t)a->shape.dtype, (int64_t)b->shape.dtype},
                                {a->shape.rows, b->shape.rows},
                                {a->shape.columns, b->shape.columns},
                                {a->shape.shared, b->shape.shared},
                                {a->shape.batch, b->shape.batch}};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++)
        if (sizes[i][0] != sizes[i][1]) return sizes[i][0] < sizes[i][1] ? -1 : 1;
    return 0;
}

static int by_shape_and_time(const void *x, const void *y)
{
    const kernel_gemm *a = x, *b = y;
    const int shape = by_shape(x, y);
    return shape != 0 ? shape : (a->ns > b->ns) - (a->ns < b->ns);
}

/* The median of each shape; operators whose kernels are not in the trace have no time. */
static dh_status add_gemms(const measured_file *f, kernels *k)
{
    size_t n = 0;
    for (size_t i = 0; i < k->gemms.n; i++)
        if (k->gemms.at[i].ns > 0) k->gemms.at[n++] = k->gemms.at[i];
    if (n > 0) qsort(k->gemms.at, n, sizeof *k->gemms.at, by_shape_and_time);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && by_shape(&k->gemms.at[i], &k->gemms.at[end]) == 0;) end++;
        const kernel_gemm *median = &k->gemms.at[i + (end - i) / 2];
        const dh_gemm_shape *s = &median->shape;
        DH_TRY(measured_add_gemm(f, 0, s->dtype, s->rows, s->columns, s->shared, s->batch,
                                 median->ns));
    }
    return DH_OK;
}

/* The same collective in another rank's trace: the shorter of both counts. */
static bool merge(const measured_file *f, const kernel_call *call)
{
    for (size_t i = 0; i < f->m->rows.n; i++) {
        dh_measured_row *row = &f->m->rows.at[i];
        if (row->line != 0 || row->kind == DH_MEASURED_GEMM || row->type != call->type ||
            row->bytes != call->bytes || row->span.size != call->ranks ||
            row->span.nodes.n_nodes != call->nodes)
            continue;
        row->ns = DH_MIN(row->ns, call->ns);
        return true;
    }
    return false;
}

static dh_status add_calls(const measured_file *f, const kernels *k)
{
    for (size_t i = 0; i < k->calls.n; i++) {
        const kernel_call *c = &k->calls.at[i];
        if (!merge(f, c))
            DH_TRY(measured_add_collective(f, 0, c->type, c->ranks, c->nodes, c->bytes, c->ns));
    }
    return DH_OK;
}

static dh_status say_lacking(const measured_file *f, const kernels *k)
{
    if (k->n_unsized > 0)
        DH_TRY(measured_note(f,
                             "%lld matrix products without the sizes of their operands: profile "
                             "with record_shapes=True",
                             (long long)k->n_unsized));
    if (k->n_unnamed > 0)
        DH_TRY(measured_note(f,
                             "%lld kernels of NCCL without \"Collective name\": a newer PyTorch "
                             "writes it",
                             (long long)k->n_unnamed));
    return DH_OK;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status read_events(const measured_file *f, const json_t *trace)
{
    const json_t *events = json_is_array(trace) ? trace : json_object_get(trace, "traceEvents");
    kernels k = {.n_unsized = 0};
    if (!json_is_array(events))
        return dh_fail(f->ctx, DH_EFORMAT,
                       "%s: no array traceEvents: a trace as torch.profiler's export_chrome_trace "
                       "writes it is wanted",
                       f->path);
    dh_status st = collect(f, events, &k);
    if (st == DH_OK) {
        time_gemms(events, &k);
        st = add_gemms(f, &k);
    }
    if (st == DH_OK) st = add_calls(f, &k);
    if (st == DH_OK) st = say_lacking(f, &k);
    dh_vec_fini(&k.calls);
    dh_vec_fini(&k.gemms);
    return st;
}

dh_status measured_read_kineto(const measured_file *file)
{
    json_error_t error;
    json_t *trace;
    DH_TRY(dh_json_read(file->ctx, file->text, file->n_bytes, 0, &error, &trace));
    if (!trace)
        return dh_fail(file->ctx, DH_EFORMAT, "%s:%d:%d: %s; a trace is one whole JSON document",
                       file->path, error.line, error.column, error.text);
    const dh_status st = read_events(file, trace);
    json_decref(trace);
    return st;
}
