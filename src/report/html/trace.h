/* Traces as they are between reading (trace.c) and writing (trace_columns.c). */
#ifndef DH_REPORT_HTML_TRACE_H
#define DH_REPORT_HTML_TRACE_H

#include "program/program.h"
#include "report/html/run.h"
#include "report/timeline.h"

typedef struct event {
    int64_t start_ns, dur_ns, waited_ns; /* the last: of dur_ns, until its partners had come */
    int32_t kind, mb, layer;             /* mb, layer -1: none */
    int32_t stream;
} event;

typedef struct memory_at {
    int64_t at_ns, activations, scratch;
} memory_at;

typedef struct traced_rank {
    int64_t rank, begin_ns, end_ns;
    DH_VEC(event) events;            /* stream by stream */
    size_t stream0[DH_N_STREAM + 1]; /* first event of each stream, once all are read */
    DH_VEC(memory_at) memory;
    json_t *other; /* "otherData", or NULL */
} traced_rank;

typedef struct traces {
    char file[48];        /* the one being read */
    dh_trace_ranks files; /* ranks that have one, ascending */
    DH_VEC(traced_rank) ranks;
    json_t *kinds; /* object: the row's text -> its number */
    bool one_clock;
} traces;

/* The rows of kinds as an array, in the order of their numbers; caller releases. */
dh_status traces_kinds(dh_ctx *ctx, const traces *t, json_t **kinds);
void traces_fini(traces *t); /* none are left */
dh_status traces_write(dh_ctx *ctx, const dh_run_folder *run, traces *t, json_out *out);

#endif
