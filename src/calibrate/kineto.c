/* PyTorch's profiler traces (Kineto, Chrome trace JSON), one a rank.
 *
 * Events of category "kernel" are the device's. A kernel of NCCL names its collective, the number
 * of ranks and of elements. A kernel of a GEMM, attention or a norm has no sizes. They are those of
 * the host's operator that started it.
 *
 * A kernel names its operator by "External id". In traces of PyTorch 2.1 and older, and of some
 * later builds, that is the kernel's "correlation" instead. Then the call of the runtime with the
 * same correlation tells: it was made while the operator ran, on the same thread.
 *
 * A trace without any such call leaves the ids alone. They are believed unless a kernel speaks
 * against them; then all are left out. Our own traces are such: their operators begin with their
 * kernels. */
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
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

/* Categories; up to PyTorch 1.11 they were "Operator", "Runtime" and "Kernel". */
static bool is_kernel(const json_t *event)
{
    return dh_is_same_word(text_of(event, "cat"), "kernel");
}

static bool is_operator(const json_t *event)
{
    const char *category = text_of(event, "cat");
    return strcmp(category, "cpu_op") == 0 || strcmp(category, "Operator") == 0;
}

static bool is_runtime(const json_t *event)
{
    const char *category = text_of(event, "cat");
    return strcmp(category, "cuda_runtime") == 0 || strcmp(category, "cuda_driver") == 0 ||
           strcmp(category, "hip_runtime") == 0 || strcmp(category, "Runtime") == 0;
}

/* ---- events --------------------------------------------------------------------------------- */

static bool add_start(kernels *k, const json_t *event, const json_t *args)
{
    const json_t *correlation = json_object_get(args, "correlation");
    if (!json_is_integer(correlation)) return true;
    const kernel_start start = {.correlation = json_integer_value(correlation),
                                .thread = kernels_thread_of(event),
                                .at_us = json_number_value(json_object_get(event, "ts"))};
    return dh_vec_push(&k->starts, start);
}

static bool add_id(kernels *k, const json_t *args)
{
    const json_t *id = json_object_get(args, "External id");
    return !json_is_integer(id) || dh_vec_push(&k->ids, json_integer_value(id));
}

/* First pass: collectives, and operators with sizes. A file may have a kernel before the operator
 * that starts it. */
static dh_status collect(const measured_file *f, const json_t *events, kernels *k)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        const char *name = text_of(event, "name");
        const json_t *args = json_object_get(event, "args");
        const double ns = json_number_value(json_object_get(event, "dur")) * 1e3;
        bool ok = true;
        if (is_operator(event))
            ok = kernels_add_op(k, event, name) && add_id(k, args);
        else if (is_runtime(event))
            ok = add_start(k, event, args);
        else if (is_kernel(event) && is_nccl(name) && measured_is_time(ns))
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

static kernel_op *op_of_id(kernels *k, int64_t id)
{
    const kernel_op key = {.id = id};
    kernel_op *op = bsearch(&key, k->ops.at, k->ops.n, sizeof key, by_id);
    while (op && op > k->ops.at && op[-1].id == id) op--; /* the first of several */
    return op;
}

static int by_value(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static bool is_shared(const kernels *k, int64_t id)
{
    const int64_t *end = k->ids.at + k->ids.n;
    const int64_t *at = bsearch(&id, k->ids.at, k->ids.n, sizeof id, by_value);
    return at && ((at > k->ids.at && at[-1] == id) || (at + 1 < end && at[1] == id));
}

static int by_correlation(const void *x, const void *y)
{
    const kernel_start *a = x, *b = y;
    return (a->correlation > b->correlation) - (a->correlation < b->correlation);
}

static int by_begin(const void *x, const void *y, void *user)
{
    const kernels *k = user;
    const kernel_op *a = &k->ops.at[*(const uint32_t *)x], *b = &k->ops.at[*(const uint32_t *)y];
    if (a->thread != b->thread) return a->thread < b->thread ? -1 : 1;
    return (a->begin_us > b->begin_us) - (a->begin_us < b->begin_us);
}

/* The innermost operator that ran when a kernel was started; NULL: none that has sizes. */
static kernel_op *op_at(kernels *k, const kernel_start *start)
{
    enum { DEPTH = 16 }; /* operators in operators */
    size_t low = 0, high = k->in_time.n;
    while (low < high) { /* the first that begins after it */
        const size_t middle = (low + high) / 2;
        const kernel_op *op = &k->ops.at[k->in_time.at[middle]];
        if (op->thread < start->thread ||
            (op->thread == start->thread && op->begin_us <= start->at_us))
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i > 0 && low - i < DEPTH; i--) {
        kernel_op *op = &k->ops.at[k->in_time.at[i - 1]];
        if (op->thread != start->thread) return NULL;
        if (op->end_us >= start->at_us) return op;
    }
    return NULL;
}

static kernel_op *op_of_kernel(kernels *k, const json_t *args)
{
    const json_t *id = json_object_get(args, "External id");
    const json_t *correlation = json_object_get(args, "correlation");
    const kernel_start key = {.correlation = json_integer_value(correlation)};
    const kernel_start *start =
        json_is_integer(correlation) && k->starts.n
            ? bsearch(&key, k->starts.at, k->starts.n, sizeof key, by_correlation)
            : NULL;
    while (start && start > k->starts.at && start[-1].correlation == key.correlation) start--;
    const bool same = json_is_integer(id) && json_is_integer(correlation) &&
                      json_integer_value(id) == key.correlation;
    if (json_is_integer(id) && (!same || k->starts.n == 0))
        return op_of_id(k, json_integer_value(id));
    k->n_unjoined += same && !start;
    return start ? op_at(k, start) : NULL;
}

static bool sort_ops(kernels *k)
{
    qsort(k->ops.at, k->ops.n, sizeof *k->ops.at, by_id);
    if (k->ids.n) qsort(k->ids.at, k->ids.n, sizeof *k->ids.at, by_value);
    if (k->starts.n) qsort(k->starts.at, k->starts.n, sizeof *k->starts.at, by_correlation);
    for (size_t i = 0; i < k->ops.n; i++)
        if (!dh_vec_push(&k->in_time, (uint32_t)i)) return false;
    qsort_r(k->in_time.at, k->in_time.n, sizeof *k->in_time.at, by_begin, k);
    return true;
}

/* Why a kernel's id is not that of the operator which started it; NULL: nothing tells. */
static const char *doubt_of(kernels *k, const json_t *kernel)
{
    const json_t *args = json_object_get(kernel, "args");
    const json_t *id = json_object_get(args, "External id");
    const double begin_us = json_number_value(json_object_get(kernel, "ts"));
    const kernel_op *op = json_is_integer(id) ? op_of_id(k, json_integer_value(id)) : NULL;
    if (!op) return NULL;
    if (is_shared(k, op->id)) return "several operators have it";
    if (begin_us < op->begin_us) return "the operator that has it begins after the kernel";
    if (begin_us > op->begin_us && json_equal(id, json_object_get(args, "correlation")))
        return "it is also the kernel's correlation";
    if (!kernels_can_run(op->is.kind, text_of(kernel, "name")))
        return "the operator that has it runs no such kernel";
    return NULL;
}

static bool is_timed_kernel(const json_t *event)
{
    return is_kernel(event) && !is_nccl(text_of(event, "name")) &&
           measured_is_time(json_number_value(json_object_get(event, "dur")) * 1e3);
}

/* out       *believed: false where a kernel of a trace without calls of the runtime speaks against
 *           its id */
static dh_status check_ids(const measured_file *f, const json_t *events, kernels *k, bool *believed)
{
    size_t i;
    int64_t n = 0;
    json_t *event;
    const json_t *doubtful = NULL;
    *believed = true;
    if (k->starts.n > 0) return DH_OK;
    json_array_foreach(events, i, event)
    {
        if (!is_timed_kernel(event)) continue;
        n++;
        if (!doubtful && doubt_of(k, event)) doubtful = event;
    }
    if (!doubtful) return DH_OK;
    *believed = false;
    return measured_note(
        f,
        "%lld kernels left out: no event of category cuda_runtime tells which operators started "
        "them, and \"External id\" %lld of kernel %.80s does not: %s; profile with "
        "ProfilerActivity.CPU and CUDA",
        (long long)n,
        (long long)json_integer_value(
            json_object_get(json_object_get(doubtful, "args"), "External id")),
        text_of(doubtful, "name"), doubt_of(k, doubtful));
}

static dh_status time_ops(const measured_file *f, const json_t *events, kernels *k)
{
    size_t i;
    json_t *event;
    int64_t n = 0, n_joined = 0;
    bool believed;
    if (k->ops.n == 0) return DH_OK;
    if (!sort_ops(k)) return measured_no_memory(f);
    DH_TRY(check_ids(f, events, k, &believed));
    if (!believed) return DH_OK;
    json_array_foreach(events, i, event)
    {
        const double ns = json_number_value(json_object_get(event, "dur")) * 1e3;
        if (!is_timed_kernel(event)) continue;
        kernel_op *op = op_of_kernel(k, json_object_get(event, "args"));
        n++;
        n_joined += op != NULL;
        if (op) op->is.ns += ns;
    }
    if (n_joined == 0 && k->starts.n == 0) k->n_unjoined = n;
    return DH_OK;
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
    if (k->n_unjoined > 0)
        DH_TRY(measured_note(f,
                             "%lld kernels left out: no operator has their \"External id\", which "
                             "may be their correlation, and no event of category cuda_runtime has "
                             "it",
                             (long long)k->n_unjoined));
    if (k->n_unplaced > 0)
        DH_TRY(
            measured_note(f,
                          "%lld collectives left out: their list of ranks is cut short and has "
                          "no one stride, has not as many as \"Group size\", names a rank twice "
                          "or lies unevenly on nodes; or it is a send or receive without a list, "
                          "or in a group of which some neighbours share a node and some do not",
                          (long long)k->n_unplaced));
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
        st = time_ops(f, events, &k);
        if (st == DH_OK) st = add_ops(f, &k);
    }
    if (st == DH_OK) st = add_calls(f, &k);
    if (st == DH_OK) st = say_lacking(f, &k);
    dh_vec_fini(&k.calls);
    dh_vec_fini(&k.ops);
    dh_vec_fini(&k.starts);
    dh_vec_fini(&k.in_time);
    dh_vec_fini(&k.ids);
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
