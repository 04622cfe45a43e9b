/* The CUDA runtime on the host, for tests: two devices, whose streams are threads.
 *
 * A stream's work runs in order and as late as it may: when somebody waits for it, on the host or
 * on a stream that is waited for itself. Copies from the device come at once; those to it, where
 * the seed is odd, after whatever can run beside them. So whoever should wait for an event and does
 * not finds what was there before: with an odd seed who reads what is copied there, with an even
 * one who copies what a kernel makes. Some kernels take a pause first, and with two seeds of four
 * some run at once, so that what is written too early may show too.
 *
 * Memory of the device lies in one range that is closed to everybody unless work of some stream is
 * running. New memory holds NaN patterns. Handles that are of another device, memory that is none,
 * host memory that is not pinned are refused, as far as CUDA would, or would take its time over
 * them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "run/cuda/host/host.h"

enum { N_DEVICES = 2, PAGE = 4096, LONGEST_PAUSE_NS = 100 * 1000 };
static const size_t RANGE = (size_t)1 << 36;

typedef enum work_kind {
    WORK_KERNEL,
    WORK_UP,   /* copies to the device */
    WORK_DOWN, /* and from it */
    WORK_RECORD,
    WORK_WAIT
} work_kind;

typedef struct work {
    struct work *next;
    work_kind kind;
    void (*run)(const void *user);
    cudaEvent_t event;
    cudaStream_t of; /* wait: where the event was recorded, and how much of that stream it takes */
    uint64_t place, times;
    _Alignas(16) unsigned char user[];
} work;

struct CUevent_st {
    cudaStream_t stream;            /* of the last record; NULL: never recorded */
    uint64_t place;                 /* how much of that stream's work is done when it is complete */
    uint64_t n_recorded, n_reached; /* times */
    int64_t ns;
};

struct CUstream_st {
    cudaStream_t next;
    pthread_t thread;
    pthread_cond_t wake;
    work *first, **last;
    uint64_t n_queued, n_done, n_wanted, id;
    int device;
    bool leaving;
    cudaError_t failure;
};

typedef struct block {
    struct block *next;
    unsigned char *at;
    size_t n_bytes;
    int device; /* -1: pinned memory of the host */
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* for the host: some work is done */
static cudaStream_t streams;
static block *blocks;
static unsigned char *range;
static size_t range_used;
static int n_running, n_waiting; /* work; threads of the host */
static uint64_t seed = 1, n_streams;
static int64_t kernels_to_failure, allocations_to_failure, n_objects;

static _Thread_local int device;
static _Thread_local cudaError_t last_error;

static cudaError_t failed(cudaError_t error)
{
    last_error = error;
    return error;
}

/* ---- memory: the lock is held -------------------------------------------------------------- */

static void open_memory(void)
{
    if (n_running++ == 0 && range_used)
        DH_CHECK(mprotect(range, range_used, PROT_READ | PROT_WRITE) == 0, "memory stays closed");
}

static void close_memory(void)
{
    if (--n_running == 0 && range_used)
        DH_CHECK(mprotect(range, range_used, PROT_NONE) == 0, "memory stays open");
}

static const block *block_of(const void *at, size_t n_bytes)
{
    const unsigned char *p = at;
    for (const block *b = blocks; b; b = b->next)
        if (p >= b->at && n_bytes <= b->n_bytes && (size_t)(p - b->at) <= b->n_bytes - n_bytes)
            return b;
    return NULL;
}

/* Device -1: pinned memory. */
static bool lies_on(const void *at, size_t n_bytes, int where)
{
    pthread_mutex_lock(&lock);
    const block *b = block_of(at, n_bytes);
    const bool lies = b && b->device == where;
    pthread_mutex_unlock(&lock);
    return lies;
}

bool dh_host_on_device(const void *at, size_t n_bytes)
{
    return lies_on(at, n_bytes, device);
}

/* Whether this call is the one that is to fail. */
static bool refuses_object(void)
{
    if (allocations_to_failure > 0 && --allocations_to_failure == 0) return true;
    n_objects++;
    return false;
}

static void add_block(void *at, size_t n_bytes, int where)
{
    block *b = malloc(sizeof *b);
    DH_CHECK(b, "no memory for a note of memory");
    *b = (block){blocks, at, n_bytes, where};
    blocks = b;
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    const size_t room = (size + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&lock);
    if (!range) {
        void *at = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        DH_CHECK(at != MAP_FAILED, "no addresses for devices");
        range = at;
    }
    const bool refused = room > RANGE - range_used || refuses_object();
    if (!refused) {
        *devPtr = range + range_used;
        open_memory();
        mprotect(*devPtr, room, PROT_READ | PROT_WRITE);
        memset(*devPtr, 0xFF, size);
        range_used += room;
        close_memory();
        add_block(*devPtr, size, device);
    }
    pthread_mutex_unlock(&lock);
    return refused ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

static bool remove_block(void *at, bool pinned, size_t *n_bytes)
{
    block **b = &blocks;
    while (*b && (*b)->at != at) b = &(*b)->next;
    block *found = *b;
    if (!found || pinned != (found->device < 0)) return false;
    *n_bytes = found->n_bytes;
    *b = found->next;
    free(found);
    n_objects--;
    return true;
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    pthread_mutex_lock(&lock);
    const bool refused = refuses_object();
    void *at = refused ? NULL : malloc(size ? size : 1);
    if (at) {
        memset(at, 0xFF, size);
        add_block(at, size, -1);
        *pHost = at;
    }
    pthread_mutex_unlock(&lock);
    return at ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *ptr)
{
    size_t n_bytes;
    if (!ptr) return cudaSuccess;
    pthread_mutex_lock(&lock);
    const bool known = remove_block(ptr, true, &n_bytes);
    pthread_mutex_unlock(&lock);
    if (!known) return failed(cudaErrorInvalidValue);
    free(ptr);
    return cudaSuccess;
}

/* ---- streams: the lock is held --------------------------------------------------------------- */

static void want(cudaStream_t s, uint64_t n_done)
{
    if (n_done <= s->n_wanted) return;
    s->n_wanted = n_done;
    pthread_cond_signal(&s->wake);
}

static uint64_t draw(const struct CUstream_st *s, uint64_t salt)
{
    return dh_mix64(dh_mix64(seed ^ salt << 32 ^ s->id) + s->n_done);
}

/* Whether the stream's next work may run, as far as the stream is concerned. */
static bool may_run(const struct CUstream_st *s)
{
    const bool wanted = s->n_done < s->n_wanted;
    if (!s->first || s->first->kind == WORK_UP) return s->first && wanted;
    return wanted || s->first->kind == WORK_DOWN || (seed % 4 >= 2 && draw(s, 1) % 8 == 0);
}

static bool waits(const work *w)
{
    return w->kind == WORK_WAIT && w->event->n_reached < w->times;
}

/* Whether other streams of the device have something to do, which they are to do now. */
static bool others_go_first(const struct CUstream_st *s)
{
    bool any = false;
    for (cudaStream_t o = streams; o; o = o->next) {
        if (o == s || o->device != s->device || !o->first) continue;
        if (o->first->kind == WORK_UP || waits(o->first)) continue;
        want(o, o->n_done + 1);
        any = true;
    }
    return any;
}

/* Whoever is wanted wants what he waits for. */
static bool is_blocked(cudaStream_t s)
{
    const work *w = s->first;
    if (w->kind == WORK_UP) return seed % 2 && others_go_first(s);
    if (!waits(w)) return false;
    if (s->n_done < s->n_wanted) want(w->of, w->place);
    return true;
}

/* Those that wait for what has just been done: for an event, or for others to be through. */
static void wake(bool all)
{
    for (cudaStream_t s = streams; s; s = s->next)
        if (all || (s->first && s->first->kind == WORK_UP)) pthread_cond_signal(&s->wake);
}

static void do_work(cudaStream_t s, const work *w)
{
    const uint64_t pause = draw(s, 2);
    const bool fails =
        w->kind == WORK_KERNEL && kernels_to_failure > 0 && --kernels_to_failure == 0;
    open_memory();
    pthread_mutex_unlock(&lock);
    if (pause % 8 == 0) dh_sleep_until_ns(dh_now_ns() + (int64_t)(pause / 8 % LONGEST_PAUSE_NS));
    if (!fails) w->run(w->user);
    pthread_mutex_lock(&lock);
    close_memory();
    if (fails) s->failure = cudaErrorLaunchFailure;
}

static void do_next(cudaStream_t s)
{
    work *w = s->first;
    if (w->run) do_work(s, w);
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    s->n_done++;
    if (w->kind == WORK_RECORD) {
        w->event->n_reached = w->times;
        w->event->ns = dh_now_ns();
    }
    wake(w->kind == WORK_RECORD);
    if (n_waiting) pthread_cond_broadcast(&moved);
    free(w);
}

static void *stream_main(void *arg)
{
    cudaStream_t s = arg;
    device = s->device;
    pthread_mutex_lock(&lock);
    while (s->first || !s->leaving)
        if (may_run(s) && !is_blocked(s))
            do_next(s);
        else
            pthread_cond_wait(&s->wake, &lock);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void wait_for(cudaStream_t s, uint64_t n_done)
{
    want(s, n_done);
    n_waiting++;
    while (s->n_done < n_done) pthread_cond_wait(&moved, &lock);
    n_waiting--;
}

static cudaError_t drain(cudaStream_t s)
{
    pthread_mutex_lock(&lock);
    wait_for(s, s->n_queued);
    const cudaError_t failure = s->failure;
    s->failure = cudaSuccess;
    pthread_mutex_unlock(&lock);
    return failure ? failed(failure) : cudaSuccess;
}

/* As CUDA does, once nothing is under way on the device. */
cudaError_t cudaFree(void *devPtr)
{
    size_t n_bytes;
    if (!devPtr) return cudaSuccess;
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = streams; s; s = s->next)
        if (s->device == device) wait_for(s, s->n_queued);
    const bool known = remove_block(devPtr, false, &n_bytes);
    if (known) madvise(devPtr, n_bytes, MADV_DONTNEED);
    pthread_mutex_unlock(&lock);
    return known ? cudaSuccess : failed(cudaErrorInvalidValue);
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    cudaStream_t s = calloc(1, sizeof *s);
    pthread_mutex_lock(&lock);
    const bool refused = !s || refuses_object();
    if (!refused) {
        *s = (struct CUstream_st){.next = streams, .device = device, .id = n_streams++};
        s->last = &s->first;
        pthread_cond_init(&s->wake, NULL);
        streams = s;
        DH_CHECK(pthread_create(&s->thread, NULL, stream_main, s) == 0, "no thread for a stream");
        *pStream = s;
    }
    pthread_mutex_unlock(&lock);
    if (refused) {
        free(s);
        return failed(cudaErrorMemoryAllocation);
    }
    /* cppcheck-suppress memleak ; it is in the list of streams */
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)drain(stream);
    pthread_mutex_lock(&lock);
    cudaStream_t *s = &streams;
    while (*s != stream) s = &(*s)->next;
    *s = stream->next;
    stream->leaving = true;
    n_objects--;
    pthread_cond_signal(&stream->wake);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->wake);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return drain(stream);
}

/* Also records and waits events; an event that was never recorded is complete. */
static cudaError_t put(cudaStream_t stream, work *w)
{
    if (!w) return failed(cudaErrorMemoryAllocation);
    if (stream->device != device) {
        free(w);
        return failed(cudaErrorInvalidResourceHandle);
    }
    pthread_mutex_lock(&lock);
    if (w->kind == WORK_WAIT) {
        w->of = w->event->stream;
        w->place = w->event->place;
        w->times = w->event->n_recorded;
    }
    *stream->last = w;
    stream->last = &w->next;
    stream->n_queued++;
    if (w->kind == WORK_RECORD) {
        w->event->stream = stream;
        w->event->place = stream->n_queued;
        w->times = ++w->event->n_recorded;
    }
    pthread_cond_signal(&stream->wake);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static work *new_work(work_kind kind, size_t n_bytes)
{
    work *w = calloc(1, sizeof *w + n_bytes);
    if (w) w->kind = kind;
    return w;
}

static cudaError_t put_run(cudaStream_t stream, work_kind kind, void (*run)(const void *user),
                           const void *user, size_t n_bytes)
{
    work *w = new_work(kind, n_bytes);
    if (w) {
        w->run = run;
        memcpy(w->user, user, n_bytes);
    }
    return put(stream, w);
}

cudaError_t dh_host_enqueue(cudaStream_t stream, void (*run)(const void *user), const void *user,
                            size_t n_bytes)
{
    return put_run(stream, WORK_KERNEL, run, user, n_bytes);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    work *w = new_work(WORK_WAIT, 0);
    if (w) w->event = event;
    return put(stream, w);
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    pthread_mutex_lock(&lock);
    *event = refuses_object() ? NULL : calloc(1, sizeof **event);
    pthread_mutex_unlock(&lock);
    return *event ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    n_objects--;
    pthread_mutex_unlock(&lock);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    work *w = new_work(WORK_RECORD, 0);
    if (w) w->event = event;
    return put(stream, w);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    if (event->stream) wait_for(event->stream, event->place);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    pthread_mutex_lock(&lock);
    const bool there = start->n_reached > 0 && end->n_reached > 0;
    if (there) *ms = (float)((double)(end->ns - start->ns) * 1e-6);
    pthread_mutex_unlock(&lock);
    return there ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy {
    void *to;
    const void *from; /* NULL: bytes of this value */
    int value;
    size_t n_bytes;
} copy;

static void run_copy(const void *user)
{
    const copy *c = user;
    if (c->from)
        memcpy(c->to, c->from, c->n_bytes);
    else
        memset(c->to, c->value, c->n_bytes);
}

/* Without a stream, as kernels are launched without one: on arrays of the host. */
static cudaError_t copy_now(const copy *c)
{
    run_copy(c);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const int to = kind == cudaMemcpyDeviceToHost ? -1 : device;
    const int from = kind == cudaMemcpyHostToDevice ? -1 : device;
    const copy c = {.to = dst, .from = src, .n_bytes = count};
    if (!stream) return copy_now(&c);
    if (!lies_on(dst, count, to) || !lies_on(src, count, from)) {
        fprintf(stderr, "cuda on the host: a copy of %zu bytes from or to what is not there\n",
                count);
        return failed(cudaErrorInvalidValue);
    }
    return put_run(stream,
                   kind == cudaMemcpyHostToDevice   ? WORK_UP
                   : kind == cudaMemcpyDeviceToHost ? WORK_DOWN
                                                    : WORK_KERNEL,
                   run_copy, &c, sizeof c);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    const copy c = {.to = devPtr, .value = value, .n_bytes = count};
    if (!stream) return copy_now(&c);
    if (!dh_host_on_device(devPtr, count)) return failed(cudaErrorInvalidValue);
    return dh_host_enqueue(stream, run_copy, &c, sizeof c);
}

/* ---- the process ----------------------------------------------------------------------------- */

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

static size_t row_of(cudaError_t error)
{
    size_t i = 0;
    while (i + 1 < DH_COUNTOF(errors) && errors[i].error != error) i++;
    return i;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return errors[row_of(error)].name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return errors[row_of(error)].text;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    *runtimeVersion = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = N_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int wanted)
{
    if (wanted < 0 || wanted >= N_DEVICES) return failed(cudaErrorInvalidDevice);
    device = wanted;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *current)
{
    *current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int number)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "threads of the host, number %d", number);
    return cudaSuccess;
}

/* ---- for tests ------------------------------------------------------------------------------- */

static void set(int64_t *variable, int64_t value)
{
    pthread_mutex_lock(&lock);
    *variable = value;
    pthread_mutex_unlock(&lock);
}

static int64_t get(const int64_t *variable)
{
    pthread_mutex_lock(&lock);
    const int64_t value = *variable;
    pthread_mutex_unlock(&lock);
    return value;
}

void dh_host_seed_streams(uint64_t wanted)
{
    pthread_mutex_lock(&lock);
    seed = wanted;
    pthread_mutex_unlock(&lock);
}

void dh_host_fail_kernel(int64_t n)
{
    set(&kernels_to_failure, n);
}

void dh_host_fail_allocation(int64_t n)
{
    set(&allocations_to_failure, n);
}

int64_t dh_host_n_objects(void)
{
    return get(&n_objects);
}
