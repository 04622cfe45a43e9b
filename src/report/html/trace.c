/* Chrome traces of a step, read and put on one clock. */
#include "report/html/trace.h"
#include "base/json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- kinds ----------------------------------------------------------------------------------- */

static const json_t *arg(const json_t *e, const char *key)
{
    return json_object_get(json_object_get(e, "args"), key);
}

/* The row's values in the order of the page's scripts. */
static json_t *kind_row(const json_t *e)
{
    json_t *row = json_array();
    const json_t *operator= arg(e, "operator"), *phase = arg(e, "phase");
    if (!json_is_string(operator)) operator= json_object_get(e, "name");
    if (!phase) phase = json_object_get(e, "cat"); /* as traces were before */
    json_array_append(row, (json_t *)operator);
    json_array_append(row, phase ? (json_t *)phase : json_null());
    static const char *const keys[] = {"block", "out", "group", "peer_stage", "flops", "bytes"};
    for (size_t i = 0; i < DH_COUNTOF(keys); i++) {
        const json_t *value = arg(e, keys[i]);
        json_array_append(row, value ? (json_t *)value : json_null());
    }
    return row;
}

static dh_status find_kind(dh_ctx *ctx, traces *t, const json_t *e, int32_t *kind)
{
    json_t *row = kind_row(e);
    char *text = dh_json_text(row, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) return dh_no_memory(ctx);
    const json_t *known = json_object_get(t->kinds, text);
    *kind = known ? (int32_t)json_integer_value(known) : (int32_t)json_object_size(t->kinds);
    const bool ok = known || json_object_set_new(t->kinds, text, json_integer(*kind)) == 0;
    free(text);
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* ---- reading a file ------------------------------------------------------------------------- */

static int32_t small_arg(const json_t *e, const char *key)
{
    const json_t *value = arg(e, key);
    return json_is_integer(value) ? (int32_t)json_integer_value(value) : -1;
}

/* Microseconds with three decimals; doubles hold them exactly enough for centuries. */
static bool get_ns(const json_t *e, const char *key, int64_t *ns)
{
    const json_t *value = json_object_get(e, key);
    if (!json_is_number(value) || fabs(json_number_value(value)) > 1e15) return false;
    *ns = llround(json_number_value(value) * 1000);
    return true;
}

static dh_status read_span(dh_ctx *ctx, traces *t, traced_rank *r, const json_t *e, size_t index)
{
    event x = {.mb = small_arg(e, "micro_batch"), .layer = small_arg(e, "layer")};
    const json_t *stream = json_object_get(e, "tid");
    get_ns(json_object_get(e, "args"), "waited_us", &x.waited_ns); /* absent: not at all */
    if (!json_is_string(json_object_get(e, "name")) || !get_ns(e, "ts", &x.start_ns) ||
        !get_ns(e, "dur", &x.dur_ns) || x.waited_ns < 0 || x.dur_ns < x.waited_ns)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s: event %zu lacks a name, ts or dur, or waited longer than it took",
                       t->file, index);
    x.stream = json_is_integer(stream) ? (int32_t)json_integer_value(stream) : -1;
    if (x.stream < 0 || x.stream >= DH_N_STREAM)
        return dh_fail(ctx, DH_EFORMAT, "%s: event %zu: tid is a stream, 0 to %d", t->file, index,
                       DH_N_STREAM - 1);
    DH_TRY(find_kind(ctx, t, e, &x.kind));
    r->begin_ns = DH_MIN(r->begin_ns, x.start_ns);
    r->end_ns = DH_MAX(r->end_ns, x.start_ns + x.dur_ns);
    return dh_vec_push(&r->events, x) ? DH_OK : dh_no_memory(ctx);
}

static dh_status read_counter(dh_ctx *ctx, traces *t, traced_rank *r, const json_t *e, size_t index)
{
    memory_at m;
    const json_t *activations = arg(e, "activations"), *scratch = arg(e, "scratch");
    if (!get_ns(e, "ts", &m.at_ns) || !json_is_integer(activations) || !json_is_integer(scratch))
        return dh_fail(ctx, DH_EFORMAT, "%s: event %zu lacks ts, activations or scratch", t->file,
                       index);
    m.activations = json_integer_value(activations);
    m.scratch = json_integer_value(scratch);
    return dh_vec_push(&r->memory, m) ? DH_OK : dh_no_memory(ctx);
}

static int by_stream(const void *x, const void *y)
{
    const event *a = x, *b = y;
    if (a->stream != b->stream) return a->stream < b->stream ? -1 : 1;
    return a->start_ns < b->start_ns ? -1 : a->start_ns > b->start_ns;
}

static int by_time(const void *x, const void *y)
{
    const int64_t a = ((const memory_at *)x)->at_ns, b = ((const memory_at *)y)->at_ns;
    return a < b ? -1 : a > b;
}

static bool is(const json_t *e, const char *key, const char *value)
{
    const char *text = json_string_value(json_object_get(e, key));
    return text && strcmp(text, value) == 0;
}

/* A rank's process in a file of several ranks; -1: the file is of one rank. */
static bool is_of_process(const json_t *e, int64_t process)
{
    return process < 0 || json_integer_value(json_object_get(e, "pid")) == process;
}

static bool is_span(const json_t *e)
{
    return is(e, "ph", "X") && !is(e, "cat", "cpu_op");
}

static dh_status read_events(dh_ctx *ctx, traces *t, traced_rank *r, const json_t *events,
                             int64_t process)
{
    size_t index;
    const json_t *e;
    if (!json_is_array(events))
        return dh_fail(ctx, DH_EFORMAT, "%s: no array traceEvents", t->file);
    json_array_foreach(events, index, e)
    {
        if (!is_of_process(e, process)) continue;
        if (is_span(e)) DH_TRY(read_span(ctx, t, r, e, index));
        if (is(e, "ph", "C") && is(e, "name", "memory")) DH_TRY(read_counter(ctx, t, r, e, index));
    }
    if (r->events.n == 0) return dh_fail(ctx, DH_EFORMAT, "%s: no instruction", t->file);
    qsort(r->events.at, r->events.n, sizeof *r->events.at, by_stream);
    if (r->memory.n) qsort(r->memory.at, r->memory.n, sizeof *r->memory.at, by_time);
    return DH_OK;
}

static dh_status read_rank(dh_ctx *ctx, const dh_run_folder *run, traces *t, int64_t rank,
                           const json_t *trace, int64_t process)
{
    const traced_rank empty = {.rank = rank, .begin_ns = INT64_MAX, .end_ns = INT64_MIN};
    dh_status st = dh_vec_push(&t->ranks, empty) ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        traced_rank *r = &t->ranks.at[t->ranks.n - 1];
        r->other = json_incref(json_object_get(trace, "otherData"));
        st = read_events(ctx, t, r, json_object_get(trace, "traceEvents"), process);
        if (st != DH_OK) dh_ctx_while(ctx, "reading %s", run->path);
    }
    return st;
}

static dh_status read_file(dh_ctx *ctx, const dh_run_folder *run, traces *t, int64_t rank)
{
    json_t *trace;
    if (run->document) return read_rank(ctx, run, t, rank, run->document, rank);
    snprintf(t->file, sizeof t->file, "trace-rank%lld.json", (long long)rank);
    DH_TRY(dh_run_folder_json(ctx, run, t->file, &trace));
    if (!trace) return dh_fail(ctx, DH_EIO, "%s/%s has gone", run->path, t->file);
    const dh_status st = read_rank(ctx, run, t, rank, trace, -1);
    json_decref(trace);
    return st;
}

static int by_number(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

/* The processes of one file's instructions, ascending. */
static dh_status list_processes(dh_ctx *ctx, const json_t *trace, dh_trace_ranks *ranks)
{
    size_t index, n = 0;
    const json_t *e;
    json_array_foreach(json_object_get(trace, "traceEvents"), index, e)
    {
        const int64_t process = json_integer_value(json_object_get(e, "pid"));
        if (!is_span(e) || process < 0) continue;
        const bool again = ranks->n && ranks->at[ranks->n - 1] == process;
        if (!again && !dh_vec_push(ranks, process)) return dh_no_memory(ctx);
    }
    if (ranks->n) qsort(ranks->at, ranks->n, sizeof *ranks->at, by_number);
    for (size_t i = 0; i < ranks->n; i++)
        if (n == 0 || ranks->at[n - 1] != ranks->at[i]) ranks->at[n++] = ranks->at[i];
    ranks->n = n;
    return DH_OK;
}

/* Ranks of which there is a trace. */
static dh_status list_ranks(dh_ctx *ctx, const dh_run_folder *run, traces *t)
{
    if (!run->only) return dh_trace_list(ctx, run->path, &t->files);
    snprintf(t->file, sizeof t->file, "%s", run->only);
    if (strcmp(run->only, "trace-rank0.json") != 0) return DH_OK;
    DH_TRY(list_processes(ctx, run->document, &t->files));
    return t->files.n
               ? DH_OK
               : dh_fail(ctx, DH_EFORMAT, "%s: no instruction of dhelix in traceEvents", run->path);
}

/* ---- one clock ------------------------------------------------------------------------------ */

/* Ranks of several machines may have several clocks: then no rank's step overlaps that of
 * the first one, and each begins at 0. */
static void align(traces *t)
{
    int64_t begin = INT64_MAX;
    t->one_clock = true;
    for (size_t i = 0; i < t->ranks.n; i++) {
        const traced_rank *r = &t->ranks.at[i], *first = &t->ranks.at[0];
        begin = DH_MIN(begin, r->begin_ns);
        if (r->begin_ns > first->end_ns || r->end_ns < first->begin_ns) t->one_clock = false;
    }
    for (size_t i = 0; i < t->ranks.n; i++) {
        traced_rank *r = &t->ranks.at[i];
        const int64_t zero = t->one_clock ? begin : r->begin_ns;
        for (size_t k = 0; k < r->events.n; k++) r->events.at[k].start_ns -= zero;
        for (size_t k = 0; k < r->memory.n; k++) r->memory.at[k].at_ns -= zero;
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

void traces_fini(traces *t)
{
    for (size_t i = 0; i < t->ranks.n; i++) {
        dh_vec_fini(&t->ranks.at[i].events);
        dh_vec_fini(&t->ranks.at[i].memory);
        json_decref(t->ranks.at[i].other);
    }
    dh_vec_fini(&t->ranks);
    dh_vec_fini(&t->files);
    json_decref(t->kinds);
    *t = (traces){.one_clock = false};
}

dh_status dh_html_trace(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    traces t = {.kinds = json_object()};
    dh_status st = t.kinds ? list_ranks(ctx, run, &t) : dh_no_memory(ctx);
    const size_t n = DH_MIN(t.files.n, (size_t)run->max_ranks);
    for (size_t i = 0; st == DH_OK && i < n; i++) /* where not all are shown: evenly spread */
        st = read_file(ctx, run, &t, t.files.at[i * t.files.n / n]);
    if (st == DH_OK && t.ranks.n) {
        align(&t);
        if (!run->traces) st = traces_write(ctx, run, &t, out);
        run->n_parts++;
    }
    if (st == DH_OK && run->traces)
        *run->traces = t;
    else
        traces_fini(&t);
    return st;
}
