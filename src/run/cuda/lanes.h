/* The cuda device's streams from inside: what issuing (streams.c) and capturing (capture.c) share.
 */
#ifndef DH_RUN_CUDA_LANES_H
#define DH_RUN_CUDA_LANES_H

#include <pthread.h>

#include "run/cuda/cuda.h"

typedef struct cuda_streams cuda_streams;

typedef struct event {
    cudaEvent_t at;
    cudaEvent_t captured; /* of a graph: what others are behind; NULL: none is captured */
    uint32_t stream;
    bool recorded; /* in this run */
} event;

typedef struct entry {
    cuda_streams *all;
    dh_stream_command command;
    cudaEvent_t began;
    uint32_t told; /* parts, in this run */
} entry;

typedef struct lane {
    cuda_streams *all;
    cudaStream_t stream;
    DH_VEC(uint32_t) queue; /* commands */
    size_t n_put;           /* commands put on the stream, in this run */
    pthread_t thread;
    bool started, has_thread, busy;
    uint64_t n_runs;
    int64_t *found; /* pinned: what a kernel's check looks at, or the scan for values */
    dh_status told; /* first failure while parts were told */
    dh_ctx ctx;
} lane;

struct cuda_streams {
    dh_streams base;
    int gpu;
    entry *entries;
    event *events;
    lane lanes[DH_N_STREAM];
    cudaEvent_t zero; /* of a run's times */
    int64_t zero_ns;
    int64_t *scanned; /* on the device, one of each stream */

    pthread_mutex_t lock;
    pthread_cond_t moved; /* anything below, or an event, has changed */
    uint64_t n_runs;
    bool single_steps, leaving;
    DH_VEC(uint32_t) order; /* commands as they were issued: each behind what it waits for */
    bool capturing;
    cudaGraphExec_t graph;         /* graph of all commands; NULL: not captured */
    cudaEvent_t ends[DH_N_STREAM]; /* of a capture: where streams fork, and join again */
    const lane *failed;            /* the first */
    struct {                       /* a run that does not end (hang.h) */
        pthread_t thread;
        pthread_cond_t moved;
        int64_t limit_ns, begin_ns; /* begin 0: there is no run */
        bool watches;
    } hang;
};

/* streams.c */
/* Puts a kernel, or what a link does, on the lane's stream; parts are told of. */
dh_status cuda_put(dh_ctx *ctx, lane *l, entry *e);
/* Until nothing is under way on the lane's stream. */
dh_status cuda_synchronize(dh_ctx *ctx, const lane *l);
dh_status cuda_set_zero(dh_ctx *ctx, cuda_streams *s);

/* capture.c */
void cuda_drop_capture(cuda_streams *s);

#endif
