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

/* Puts run(user) behind the stream's other work; n_bytes of user are copied. */
cudaError_t host_put_run(cudaStream_t stream, host_work_kind kind, void (*run)(const void *user),
                         const void *user, size_t n_bytes);
/* Work that waits for other streams' without holding up a thread: meet is called, locked, whenever
 * the work is the next of its stream and may run, until it says that all is done. wanted: somebody
 * waits for it, so it has to have come what it waits for. */
cudaError_t host_put_meeting(cudaStream_t stream, bool (*meet)(void *user, bool wanted),
                             void *user);
/* Locked: everything that the stream has is to run now. */
void host_want(cudaStream_t stream);
/* Locked: meetings are looked at again. */
void host_wake_all(void);
/* Locked: the stream's next synchronization says so. */
void host_break(cudaStream_t stream, cudaError_t failure);
/* Locked, and unlocked meanwhile: until nothing is under way on a device. */
void host_drain_device(int device);

#endif
