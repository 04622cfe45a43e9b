/* The traces of a run's ranks as one file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/json_text.h"
#include "report/timeline.h"

enum { MAX_BYTES = 1 << 30 };

static dh_status list_ranks(dh_ctx *ctx, const char *dir, dh_trace_ranks *list)
{
    DH_TRY(dh_trace_list(ctx, dir, list));
    if (list->n > 0) return DH_OK;
    return dh_fail(ctx, DH_EMISSING,
                   "%s has no trace-rank*.json: run with --set trace.step=N, or simulate with "
                   "--out",
                   dir);
}

static dh_status read_trace(dh_ctx *ctx, const char *dir, int64_t rank, json_t **trace)
{
    char path[4096], *text;
    size_t n;
    json_error_t error;
    snprintf(path, sizeof path, "%s/trace-rank%lld.json", dir, (long long)rank);
    DH_TRY(dh_file_read(ctx, path, MAX_BYTES, &text, &n));
    const dh_status st = dh_json_read(ctx, text, n, 0, &error, trace);
    free(text);
    DH_TRY(st);
    if (!*trace)
        return dh_fail(ctx, DH_EFORMAT, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    if (json_is_array(json_object_get(*trace, "traceEvents"))) return DH_OK;
    json_decref(*trace);
    return dh_fail(ctx, DH_EFORMAT, "%s: no array traceEvents", path);
}

/* By these numbers a kernel and the host's operator that started it find each other. They begin
 * anew in each rank's trace, and go on behind the highest so far in one file of several. */
typedef struct ids {
    json_int_t lowest, highest;
    bool any;
} ids;

typedef void (*id_fn)(json_t *id, void *arg);

static void each_id(json_t *events, id_fn fn, void *arg)
{
    static const char *const keys[] = {"External id", "correlation"};
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        json_t *args = json_object_get(event, "args");
        for (size_t k = 0; k < DH_COUNTOF(keys); k++) {
            json_t *id = json_object_get(args, keys[k]);
            if (json_is_integer(id)) fn(id, arg);
        }
    }
}

static void note_id(json_t *id, void *arg)
{
    ids *range = arg;
    const json_int_t value = json_integer_value(id);
    range->lowest = range->any ? DH_MIN(range->lowest, value) : value;
    range->highest = range->any ? DH_MAX(range->highest, value) : value;
    range->any = true;
}

static void raise_id(json_t *id, void *arg)
{
    const json_int_t *by = arg;
    json_integer_set(id, json_integer_value(id) + *by);
}

/* before: of the ranks before, and then of this one too. */
static dh_status renumber(dh_ctx *ctx, int64_t rank, json_t *events, ids *before)
{
    ids mine = {.any = false};
    json_int_t by, highest;
    each_id(events, note_id, &mine);
    if (!mine.any) return DH_OK;
    if (before->any) {
        if (__builtin_sub_overflow(before->highest, mine.lowest, &by) ||
            __builtin_add_overflow(by, 1, &by) ||
            __builtin_add_overflow(mine.highest, by, &highest))
            return dh_fail(ctx, DH_EFORMAT,
                           "trace-rank%lld.json: its \"External id\" and \"correlation\" numbers "
                           "do not fit after those of the earlier ranks",
                           (long long)rank);
        each_id(events, raise_id, &by);
        before->highest = highest;
    } else {
        *before = mine;
    }
    return DH_OK;
}

/* Events of a rank behind those of the ranks before; what is beside them is the first rank's. */
static dh_status append(dh_ctx *ctx, const char *dir, int64_t rank, ids *before, json_t **joined)
{
    json_t *trace;
    DH_TRY(read_trace(ctx, dir, rank, &trace));
    const dh_status st = renumber(ctx, rank, json_object_get(trace, "traceEvents"), before);
    if (st != DH_OK) {
        json_decref(trace);
        return st;
    }
    if (!*joined) {
        *joined = trace;
        return DH_OK;
    }
    const int failed = json_array_extend(json_object_get(*joined, "traceEvents"),
                                         json_object_get(trace, "traceEvents"));
    json_decref(trace);
    return failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status join(dh_ctx *ctx, const char *dir, const dh_trace_ranks *list, const char *path)
{
    json_t *joined = NULL;
    ids before = {.any = false};
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < list->n; i++)
        st = append(ctx, dir, list->at[i], &before, &joined);
    if (st != DH_OK) {
        json_decref(joined);
        return st;
    }
    char *text = dh_json_text(joined, JSON_COMPACT); /* takes the document */
    if (!text) return dh_no_memory(ctx);
    st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}

dh_status dh_trace_join(dh_ctx *ctx, const char *dir, const char *path)
{
    dh_trace_ranks list = {.n = 0};
    dh_status st = list_ranks(ctx, dir, &list);
    if (st == DH_OK) st = join(ctx, dir, &list, path);
    dh_vec_fini(&list);
    return st;
}
