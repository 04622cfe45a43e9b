/* A thread beside the streams that looks at the clock. Work that hangs on a GPU holds up everything
 * that waits for it, and nobody can stop it. The thread therefore says where each stream stands,
 * and ends the process. The lanes tell how far the host is. The events of commands tell how far the
 * GPU is: they say without waiting whether one has begun or is done. */
#include "run/cuda/hang.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Other ranks of the process say where theirs stand meanwhile. */
enum { OTHERS_NS = 1000 * 1000 * 1000 };

static bool is_reached(cudaEvent_t at)
{
    const cudaError_t state = cudaEventQuery(at);
    if (state != cudaSuccess) (void)cudaGetLastError(); /* not yet is no error */
    return state == cudaSuccess;
}

static cudaEvent_t end_of(const cuda_streams *s, const entry *e)
{
    return s->events[e->command.event0 + e->command.n_parts - 1].at;
}

/* Of a command, as failures name it. */
static void name_of(const cuda_streams *s, const entry *e, char *buf, size_t cap)
{
    dh_ctx about = DH_CTX_INIT;
    (void)dh_fail(&about, DH_EINTERNAL, "it has not ended");
    s->base.spec.watch.explain(&about, s->base.spec.watch.user, e->command.id);
    snprintf(buf, cap, "%s", about.message);
}

static void tell_lane(cuda_streams *s, int i)
{
    const lane *l = &s->lanes[i];
    const char *name = dh_stream_name((dh_stream)i);
    char text[512] = "";
    size_t n_begun = 0, n_done = 0;
    pthread_mutex_lock(&s->lock);
    const size_t n_put = l->n_put;
    pthread_mutex_unlock(&s->lock);
    if (l->queue.n == 0) return;
    for (; n_done < n_put && is_reached(end_of(s, &s->entries[l->queue.at[n_done]])); n_done++) {}
    for (n_begun = n_done; n_begun < n_put && is_reached(s->entries[l->queue.at[n_begun]].began);
         n_begun++) {}
    if (n_done < n_begun) name_of(s, &s->entries[l->queue.at[n_done]], text, sizeof text);
    dh_log(
        DH_LOG_ERROR,
        "hang: stream %s: of %zu commands the host has put %zu, %zu have begun, %zu are done%s%s",
        name, l->queue.n, n_put, n_begun, n_done, *text ? "; under way: " : "", text);
    if (n_put < l->queue.n && n_done == n_put) {
        name_of(s, &s->entries[l->queue.at[n_put]], text, sizeof text);
        dh_log(DH_LOG_ERROR, "hang: stream %s: the host is at: %s", name, text);
    }
}

static void tell(cuda_streams *s)
{
    dh_log(DH_LOG_ERROR, "hang: a step has not ended after %.3g s (DHELIX_CUDA_HANG_S)%s",
           (double)s->hang.limit_ns * 1e-9,
           s->graph ? "; it was captured as a graph: train.capture=off tells of its commands" : "");
    for (int i = 0; i < DH_N_STREAM && !s->graph; i++) tell_lane(s, i);
}

static struct timespec time_at(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* With the lock held: until a run began so long ago, or the streams go. */
static bool await_late(cuda_streams *s)
{
    while (!s->leaving) {
        if (s->hang.begin_ns == 0) {
            pthread_cond_wait(&s->hang.moved, &s->lock);
            continue;
        }
        const struct timespec end = time_at(s->hang.begin_ns + s->hang.limit_ns);
        const int64_t begin = s->hang.begin_ns;
        const int rc = pthread_cond_timedwait(&s->hang.moved, &s->lock, &end);
        if (rc == ETIMEDOUT && begin == s->hang.begin_ns) return true;
    }
    return false;
}

static void *watch_main(void *arg)
{
    cuda_streams *s = arg;
    dh_log_set_rank(s->base.spec.log_rank);
    (void)cudaSetDevice(s->gpu);
    pthread_mutex_lock(&s->lock);
    const bool late = await_late(s);
    pthread_mutex_unlock(&s->lock);
    if (!late) return NULL;
    tell(s);
    dh_sleep_until_ns(dh_now_ns() + OTHERS_NS);
    fputs("dhelix: error: a step on the GPU has not ended; its streams are above\n", stderr);
    _exit(EXIT_FAILURE);
}

dh_status cuda_hang_watch(dh_ctx *ctx, cuda_streams *s)
{
    pthread_condattr_t attr;
    double seconds = 0;
    const char *text = getenv("DHELIX_CUDA_HANG_S");
    if (!text || !dh_parse_f64(text, &seconds) || !(seconds > 0)) return DH_OK;
    s->hang.limit_ns = (int64_t)(DH_MIN(seconds, 1e6) * 1e9);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->hang.moved, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&s->hang.thread, NULL, watch_main, s) != 0) {
        pthread_cond_destroy(&s->hang.moved);
        return dh_fail(ctx, DH_ENOMEM, "no thread to watch the streams");
    }
    s->hang.watches = true;
    return DH_OK;
}

/* The streams are leaving (s->leaving). */
void cuda_hang_leave(cuda_streams *s)
{
    if (!s->hang.watches) return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->hang.moved);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->hang.thread, NULL);
    pthread_cond_destroy(&s->hang.moved);
    s->hang.watches = false;
}

static void set_begin(cuda_streams *s, int64_t ns)
{
    if (!s->hang.watches) return;
    pthread_mutex_lock(&s->lock);
    s->hang.begin_ns = ns;
    pthread_cond_signal(&s->hang.moved);
    pthread_mutex_unlock(&s->lock);
}

void cuda_hang_begin(cuda_streams *s)
{
    set_begin(s, dh_now_ns());
}

void cuda_hang_end(cuda_streams *s)
{
    set_begin(s, 0);
}
