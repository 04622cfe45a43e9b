/* PyTorch's profiler traces (Kineto, Chrome trace JSON), one a rank.
 *
 * Events of category "kernel" are the device's. NCCL's say which collective they are, on how many
 * ranks, and how many elements; those of GEMMs, attention and norms are found by the host's
 * operators that started them ("External id"), whose operands have sizes. */
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

/* Collectives, and operators with sizes: kernels may stand before the operators that start them.
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
            ok = kernels_add_op(k, args, name);
        else if (strcmp(category, "kernel") == 0 && is_nccl(name) && measured_is_number(ns))
            ok = kernels_add_call(k, args, name, ns, f->m->node_devices);
        if (!ok) return measured_no_memory(f);
    }
    return DH_OK;
}

static int by_id(const void *x, const void *y)
{
    const kernel_op *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

static void add_time(kernels *k, int64_t id, double ns)
{
    size_t low = 0, high = k->ops.n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (k->ops.at[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < k->ops.n && k->ops.at[low].id == id) k->ops.at[low].is.ns += ns;
}

static void time_ops(const json_t *events, kernels *k)
{
    size_t i;
    json_t *event;
    if (k->ops.n == 0) return;
    qsort(k->ops.at, k->ops.n, sizeof *k->ops.at, by_id);
    json_array_foreach(events, i, event)
    {
        const json_t *id = json_object_get(json_object_get(event, "args"), "External id");
        const double ns = json_number_value(json_object_get(event, "dur")) * 1e3;
        if (strcmp(text_of(event, "cat"), "kernel") != 0 || is_nccl(text_of(event, "name")))
            continue;
        if (json_is_integer(id) && measured_is_number(ns)) add_time(k, json_integer_value(id), ns);
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int by_sizes(const void *x, const void *y)
{
    const dh_measured_kernel *a = &((const kernel_op *)x)->is, *b = &((const kernel_op *)y)->is;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->dtype != b->dtype) return a->dtype < b->dtype ? -1 : 1;
    if (a->unmasked != b->unmasked) return a->unmasked ? 1 : -1;
    for (size_t i = 0; i < DH_KERNEL_SIZES; i++)
        if (a->size[i] != b->size[i]) return a->size[i] < b->size[i] ? -1 : 1;
    return 0;
}

static int by_sizes_and_time(const void *x, const void *y)
{
    const kernel_op *a = x, *b = y;
    const int sizes = by_sizes(x, y);
    return sizes != 0 ? sizes : (a->is.ns > b->is.ns) - (a->is.ns < b->is.ns);
}

/* The median of each kind and sizes; operators whose kernels are not in the trace have no time. */
static dh_status add_ops(const measured_file *f, kernels *k)
{
    size_t n = 0;
    for (size_t i = 0; i < k->ops.n; i++)
        if (measured_is_number(k->ops.at[i].is.ns)) k->ops.at[n++] = k->ops.at[i];
    if (n > 0) qsort(k->ops.at, n, sizeof *k->ops.at, by_sizes_and_time);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && by_sizes(&k->ops.at[i], &k->ops.at[end]) == 0;) end++;
        dh_measured_kernel *median = &k->ops.at[i + (end - i) / 2].is;
        median->n_samples = (int32_t)DH_MIN(end - i, (size_t)INT32_MAX);
        DH_TRY(measured_add_kernel(f, median));
    }
    return DH_OK;
}

/* The same collective in another rank's trace: the shorter of both counts. */
static bool merge(const measured_file *f, const kernel_call *call)
{
    for (size_t i = 0; i < f->m->rows.n; i++) {
        dh_measured_row *row = &f->m->rows.at[i];
        if (row->line != 0 || !dh_measured_is_call(row) || row->type != call->type ||
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
        time_ops(events, &k);
        st = add_ops(f, &k);
    }
    if (st == DH_OK) st = add_calls(f, &k);
    if (st == DH_OK) st = say_lacking(f, &k);
    dh_vec_fini(&k.calls);
    dh_vec_fini(&k.ops);
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
