/* Streams and events on the host: threads, whose work runs in order and as late as it may. It runs
 * when somebody waits for it, on the host or on a stream that is waited for itself. Copies from the
 * device come at once; those to it, with an odd seed, after all that can run beside them. A missing
 * wait for an event therefore shows as old data. With an odd seed, readers of copied data see them;
 * with an even one, copies of a kernel's results do. Some kernels take a pause first, and with two
 * seeds of four some run at once. So data that are written too early may show too. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "run/cuda/host/inside.h"

enum { LONGEST_PAUSE_NS = 100 * 1000 };

static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* for the host: some work is done */
static cudaStream_t streams;
static int n_waiting; /* threads of the host */
static uint64_t seed = 1, n_streams;
static int64_t kernels_to_failure, kernels_to_delay, delay_ns;

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
    if (!s->first || s->first->kind == HOST_UP) return s->first && wanted;
    return wanted || s->first->kind == HOST_DOWN || (seed % 4 >= 2 && draw(s, 1) % 8 == 0);
}

void host_want(cudaStream_t stream)
{
    want(stream, stream->n_queued);
}

static bool waits(const host_work *w)
{
    return w->kind == HOST_WAIT && w->event->n_reached < w->times;
}

/* Whether other streams of the device have something to do, which they are to do now. */
static bool others_go_first(const struct CUstream_st *s)
{
    bool any = false;
    for (cudaStream_t o = streams; o; o = o->next) {
        if (o == s || o->device != s->device || !o->first) continue;
        if (o->first->kind == HOST_UP || waits(o->first)) continue;
        want(o, o->n_done + 1);
        if (o->first->kind == HOST_MEET) continue; /* its partners may wait for this copy */
        any = true;
    }
    return any;
}

/* Whoever is wanted wants what he waits for. */
static bool is_blocked(cudaStream_t s)
{
    host_work *w = s->first;
    if (w->kind == HOST_UP) return seed % 2 && others_go_first(s);
    if (w->kind == HOST_MEET) return !w->meeting->meet(w->met, s->n_done < s->n_wanted);
    if (!waits(w)) return false;
    if (s->n_done < s->n_wanted) want(w->of, w->place);
    return true;
}

/* Wake streams that wait for the work just done: for an event, or for others to be through. */
static void wake(bool all)
{
    for (cudaStream_t s = streams; s; s = s->next)
        if (all || (s->first && s->first->kind == HOST_UP)) pthread_cond_signal(&s->wake);
}

void host_free_work(host_work *w)
{
    if (w->kind == HOST_MEET) w->meeting->drop(w->met);
    free(w);
}

void host_wake_all(void)
{
    wake(true);
}

void host_break(cudaStream_t stream, cudaError_t failure)
{
    stream->failure = failure;
}

void host_do_work(cudaStream_t s, const host_work *w)
{
    const uint64_t pause = draw(s, 2);
    const bool fails =
        w->kind == HOST_KERNEL && kernels_to_failure > 0 && --kernels_to_failure == 0;
    const bool runs = !fails && !s->broken;
    const bool is_slow = w->kind == HOST_KERNEL && kernels_to_delay > 0 && --kernels_to_delay == 0;
    host_open_memory();
    pthread_mutex_unlock(&host_lock);
    if (is_slow) dh_sleep_until_ns(dh_now_ns() + delay_ns);
    if (pause % 8 == 0) dh_sleep_until_ns(dh_now_ns() + (int64_t)(pause / 8 % LONGEST_PAUSE_NS));
    if (runs) w->run(w->user);
    pthread_mutex_lock(&host_lock);
    host_close_memory();
    if (!fails) return;
    s->failure = cudaErrorLaunchFailure;
    s->broken = true;
}

void host_reach(cudaEvent_t event, uint64_t times, const struct CUstream_st *s)
{
    event->n_reached = times;
    event->ns = dh_now_ns();
    event->broken = s->broken;
}

static void do_next(cudaStream_t s)
{
    host_work *w = s->first;
    if (w->run) host_do_work(s, w);
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    s->n_done++;
    if (w->kind == HOST_RECORD) host_reach(w->event, w->times, s);
    if (w->kind == HOST_WAIT && w->event->broken) s->broken = true;
    wake(w->kind == HOST_RECORD || w->kind == HOST_MEET);
    if (n_waiting) pthread_cond_broadcast(&moved);
    free(w);
}

static void *stream_main(void *arg)
{
    cudaStream_t s = arg;
    host_set_device(s->device);
    pthread_mutex_lock(&host_lock);
    while (s->first || !s->leaving)
        if (may_run(s) && !is_blocked(s))
            do_next(s);
        else
            pthread_cond_wait(&s->wake, &host_lock);
    pthread_mutex_unlock(&host_lock);
    return NULL;
}

static void wait_for(cudaStream_t s, uint64_t n_done)
{
    want(s, n_done);
    n_waiting++;
    s->n_waiters++;
    while (s->n_done < n_done) pthread_cond_wait(&moved, &host_lock);
    n_waiting--;
    if (--s->n_waiters == 0 && s->leaving) pthread_cond_broadcast(&moved);
}

static cudaStream_t find_busy(int device)
{
    cudaStream_t s = streams;
    while (s && (s->device != device || s->n_done == s->n_queued)) s = s->next;
    return s;
}

/* While one is waited for, others may go and come. */
void host_drain_device(int device)
{
    for (cudaStream_t s; (s = find_busy(device));) wait_for(s, s->n_queued);
}

static cudaError_t drain(cudaStream_t s)
{
    pthread_mutex_lock(&host_lock);
    if (s->graph) {
        pthread_mutex_unlock(&host_lock);
        return host_failed(cudaErrorStreamCaptureUnsupported);
    }
    wait_for(s, s->n_queued);
    const cudaError_t failure = s->failure;
    s->failure = cudaSuccess;
    pthread_mutex_unlock(&host_lock);
    return failure ? host_failed(failure) : cudaSuccess;
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    cudaStream_t s = calloc(1, sizeof *s);
    pthread_mutex_lock(&host_lock);
    const bool refused = !s || host_refuses_object();
    if (!refused) {
        *s = (struct CUstream_st){.next = streams, .device = host_device(), .id = n_streams++};
        s->last = &s->first;
        pthread_cond_init(&s->wake, NULL);
        streams = s;
        DH_CHECK(pthread_create(&s->thread, NULL, stream_main, s) == 0, "no thread for a stream");
        *pStream = s;
    }
    pthread_mutex_unlock(&host_lock);
    if (refused) {
        free(s);
        return host_failed(cudaErrorMemoryAllocation);
    }
    /* cppcheck-suppress memleak ; it is in the list of streams */
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)drain(stream);
    pthread_mutex_lock(&host_lock);
    cudaStream_t *s = &streams;
    while (*s != stream) s = &(*s)->next;
    *s = stream->next;
    stream->leaving = true;
    host_drop_object();
    pthread_cond_signal(&stream->wake);
    while (stream->n_waiters > 0) pthread_cond_wait(&moved, &host_lock);
    pthread_mutex_unlock(&host_lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->wake);
    free(stream->behind.at);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return drain(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    pthread_mutex_lock(&host_lock);
    host_want(stream);
    const bool done = stream->n_done == stream->n_queued;
    const cudaError_t failure = stream->graph ? cudaErrorStreamCaptureUnsupported
                                : done        ? stream->failure
                                              : cudaErrorNotReady;
    if (done) stream->failure = cudaSuccess;
    pthread_mutex_unlock(&host_lock);
    return failure ? host_failed(failure) : cudaSuccess;
}

bool host_captures(cudaGraph_t graph)
{
    for (cudaStream_t s = streams; s && graph; s = s->next)
        if (s->graph == graph) return true;
    return false;
}

void host_end_capture(cudaGraph_t graph)
{
    for (cudaStream_t s = streams; s; s = s->next)
        if (s->graph == graph) {
            s->graph = NULL;
            free(s->behind.at);
            s->behind = (host_set){0};
        }
}

/* Also records and waits events; an event that was never recorded is complete. */
static cudaError_t put(cudaStream_t stream, host_work *w)
{
    cudaError_t error = cudaSuccess;
    if (!w) return host_failed(cudaErrorMemoryAllocation);
    if (stream->device != host_device()) {
        host_free_work(w);
        return host_failed(cudaErrorInvalidResourceHandle);
    }
    pthread_mutex_lock(&host_lock);
    if (host_capture(stream, w, &error)) {
        pthread_mutex_unlock(&host_lock);
        return error ? host_failed(error) : cudaSuccess;
    }
    if (w->kind == HOST_MEET) {
        void *pattern = w->met;
        w->met = w->meeting->begin(pattern, stream);
        w->meeting->drop(pattern);
    }
    if (w->kind == HOST_WAIT) {
        w->of = w->event->stream;
        w->place = w->event->place;
        w->times = w->event->n_recorded;
    }
    *stream->last = w;
    stream->last = &w->next;
    stream->n_queued++;
    if (w->kind == HOST_RECORD) {
        w->event->stream = stream;
        w->event->place = stream->n_queued;
        w->times = ++w->event->n_recorded;
    }
    pthread_cond_signal(&stream->wake);
    if (w->kind == HOST_MEET) wake(true);
    pthread_mutex_unlock(&host_lock);
    return cudaSuccess;
}

static host_work *new_work(host_work_kind kind, size_t n_bytes)
{
    host_work *w = calloc(1, sizeof *w + n_bytes);
    if (w) w->kind = kind;
    return w;
}

cudaError_t host_put_run(cudaStream_t stream, host_work_kind kind, void (*run)(const void *user),
                         const void *user, size_t n_bytes)
{
    host_work *w = new_work(kind, n_bytes);
    if (w) {
        w->run = run;
        memcpy(w->user, user, n_bytes);
    }
    return put(stream, w);
}

cudaError_t host_put_meeting(cudaStream_t stream, const host_meeting *meeting, void *pattern)
{
    host_work *w = new_work(HOST_MEET, 0);
    if (w) {
        w->meeting = meeting;
        w->met = pattern;
    } else {
        pthread_mutex_lock(&host_lock);
        meeting->drop(pattern);
        pthread_mutex_unlock(&host_lock);
    }
    return put(stream, w);
}

/* Whether launches wait for their kernels, so that a failure is known where it was made. */
static bool launches_block(void)
{
    const char *text = getenv("CUDA_LAUNCH_BLOCKING");
    return text && strcmp(text, "1") == 0;
}

cudaError_t dh_host_enqueue(cudaStream_t stream, void (*run)(const void *user), const void *user,
                            size_t n_bytes)
{
    const cudaError_t put = host_put_run(stream, HOST_KERNEL, run, user, n_bytes);
    if (put != cudaSuccess || !launches_block()) return put;
    pthread_mutex_lock(&host_lock);
    if (!stream->graph) wait_for(stream, stream->n_queued);
    const cudaError_t failure = stream->failure;
    pthread_mutex_unlock(&host_lock);
    return failure ? host_failed(failure) : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    host_work *w = new_work(HOST_WAIT, 0);
    if (w) w->event = event;
    return put(stream, w);
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    pthread_mutex_lock(&host_lock);
    *event = host_refuses_object() ? NULL : calloc(1, sizeof **event);
    pthread_mutex_unlock(&host_lock);
    return *event ? cudaSuccess : host_failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&host_lock);
    host_drop_object();
    pthread_mutex_unlock(&host_lock);
    free(event->behind.at);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    host_work *w = new_work(HOST_RECORD, 0);
    if (w) {
        w->event = event;
        w->external = flags == cudaEventRecordExternal;
    }
    return put(stream, w);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    pthread_mutex_lock(&host_lock);
    if (event->stream) wait_for(event->stream, event->place);
    pthread_mutex_unlock(&host_lock);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    pthread_mutex_lock(&host_lock);
    const bool reached = !event->stream || event->stream->n_done >= event->place;
    pthread_mutex_unlock(&host_lock);
    return reached ? cudaSuccess : host_failed(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    pthread_mutex_lock(&host_lock);
    const bool there = start->n_reached > 0 && end->n_reached > 0;
    if (there) *ms = (float)((double)(end->ns - start->ns) * 1e-6);
    pthread_mutex_unlock(&host_lock);
    return there ? cudaSuccess : host_failed(cudaErrorInvalidResourceHandle);
}

/* ---- for tests ------------------------------------------------------------------------------ */

void dh_host_seed_streams(uint64_t wanted)
{
    pthread_mutex_lock(&host_lock);
    seed = wanted;
    pthread_mutex_unlock(&host_lock);
}

void dh_host_delay_kernel(int64_t n, int64_t ns)
{
    pthread_mutex_lock(&host_lock);
    kernels_to_delay = n;
    delay_ns = ns;
    pthread_mutex_unlock(&host_lock);
}

void dh_host_fail_kernel(int64_t n)
{
    pthread_mutex_lock(&host_lock);
    kernels_to_failure = n;
    pthread_mutex_unlock(&host_lock);
}
