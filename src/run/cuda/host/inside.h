/* Inside of CUDA's runtime on the host: what its files share. */
#ifndef DH_RUN_CUDA_HOST_INSIDE_H
#define DH_RUN_CUDA_HOST_INSIDE_H

#include <pthread.h>

#include "run/cuda/host/host.h"

/* Guards everything below, memory included. */
extern pthread_mutex_t host_lock;

/* Returns it; the calling thread's next cudaGetLastError does too. */
cudaError_t host_failed(cudaError_t error);
int host_device(void); /* the calling thread's */
void host_set_device(int device);

/* ---- memory.c ------------------------------------------------------------------------------- */

/* Device -1: pinned memory. */
bool host_lies_on(const void *at, size_t n_bytes, int where);
/* Around work, with the lock held: memory of devices may be touched. */
void host_open_memory(void);
void host_close_memory(void);
/* Whether the object that is being made is the one that is to fail; else it is counted. Locked. */
bool host_refuses_object(void);
void host_drop_object(void); /* locked */

/* ---- streams.c ------------------------------------------------------------------------------ */

typedef enum host_work_kind {
    HOST_KERNEL,
    HOST_UP,   /* copies to the device */
    HOST_DOWN, /* and from it */
    HOST_RECORD,
    HOST_WAIT,
    HOST_MEET /* goes on once others have come */
} host_work_kind;

/* Work that waits for other streams' without holding up a thread. All is called with the lock held.
 */
typedef struct host_meeting {
    /* Called while the work is the next of its stream and may run, until it returns true: all is
     * done. wanted: another thread waits for the work, so the work's own waits must end. */
    bool (*meet)(void *user, bool wanted);
    /* The work that is put is a pattern: each run of it on a stream makes one. */
    void *(*begin)(const void *pattern, cudaStream_t stream);
    void (*drop)(void *pattern);
} host_meeting;

/* Places in a graph, of its works. */
typedef struct host_set {
    size_t *at;
    size_t n;
} host_set;

typedef struct host_work {
    struct host_work *next;
    host_work_kind kind;
    void (*run)(const void *user);
    const host_meeting *meeting;
    void *met;     /* by the meeting */
    bool external; /* record: also where it is captured */
    cudaEvent_t event;
    cudaStream_t of; /* wait: where the event was recorded, and how much of that stream it takes */
    uint64_t place, times;
    _Alignas(16) unsigned char user[];
} host_work;

struct CUevent_st {
    cudaStream_t stream;            /* stream of the last record; NULL: never recorded */
    uint64_t place;                 /* how much of that stream's work is done when it is complete */
    uint64_t n_recorded, n_reached; /* times */
    int64_t ns;
    bool broken;       /* behind a kernel that failed */
    cudaGraph_t graph; /* it was recorded while this was captured, behind what is in `behind` */
    host_set behind;
};

struct CUstream_st {
    cudaStream_t next;
    pthread_t thread;
    pthread_cond_t wake;
    host_work *first, **last;
    uint64_t n_queued, n_done, n_wanted, id;
    int device;
    int n_waiters; /* threads that wait for its work */
    bool leaving;
    bool broken; /* a kernel failed: as on a GPU nothing behind it runs, on what it did not make */
    cudaError_t failure;
    cudaGraph_t graph; /* captures its work; NULL: it runs */
    host_set behind;   /* works of that graph before the next one */
};

/* Puts run(user) behind the stream's other work; n_bytes of user are copied. */
cudaError_t host_put_run(cudaStream_t stream, host_work_kind kind, void (*run)(const void *user),
                         const void *user, size_t n_bytes);
/* pattern: the stream's, also where that fails. */
cudaError_t host_put_meeting(cudaStream_t stream, const host_meeting *meeting, void *pattern);
/* Locked, and unlocked while it runs: a kernel or a copy of a stream's, or of a graph that is
 * launched there. */
void host_do_work(cudaStream_t stream, const host_work *work);
/* Locked: the event is complete, for the times-th time, behind what the stream has done. */
void host_reach(cudaEvent_t event, uint64_t times, const struct CUstream_st *stream);
void host_free_work(host_work *work);
/* Locked: everything that the stream has is to run now. */
void host_want(cudaStream_t stream);
/* Locked: meetings are looked at again. */
void host_wake_all(void);
/* Locked: the stream's next synchronization says so. */
void host_break(cudaStream_t stream, cudaError_t failure);
/* Locked, and unlocked meanwhile: until nothing is under way on a device. */
void host_drain_device(int device);

/* ---- graph.c: locked ------------------------------------------------------------------------- */

/* A work that is put on a stream which captures, or makes it do so. False: it is none, and is to
 * run. The work is taken where true. */
bool host_capture(cudaStream_t stream, host_work *work, cudaError_t *error);
/* Whether some stream captures for it (streams.c). */
bool host_captures(cudaGraph_t graph);
/* No stream captures for it any more, nor is an event of it (streams.c). */
void host_end_capture(cudaGraph_t graph);

#endif
