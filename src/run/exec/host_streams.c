/* Streams on threads of the host: one thread a stream, in order, waiting for named events.
 *
 * The thread that calls run is the compute stream. Every other stream that is used has a worker
 * that sleeps between runs and inside its calls, so communication takes no time of the computing
 * core. An event is a place in a stream's queue. One counter per stream says how much of the queue
 * is done. It counts parts of outputs as well, for commands that have several. Waits compare
 * counters.
 *
 * If the compute stream has to wait for a call that nobody has begun, its thread makes the call
 * itself, in the stream's order. Waking the worker, to be woken by it, would cost more than a small
 * call. So one thread at a time runs a stream, its own or the calling one, and a thread is woken
 * only when its wait is over. A call of which the compute stream waits for a part only is left to
 * the worker, since there is something to compute during the rest. */
#include "run/exec/host_streams.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct host_streams host_streams;

typedef struct stream {
    host_streams *all;
    DH_VEC(uint32_t) queue; /* commands, each as often as it has parts */
    _Atomic uint32_t done;  /* done part of the queue, in this run */
    /* By the stream whose thread sleeps until done has come so far; 0: it does not. */
    _Atomic uint32_t awaited[DH_N_STREAM];
    pthread_cond_t wake; /* wakes its own thread */
    bool taken;          /* somebody runs one of its commands */
    pthread_t thread;
    bool started; /* has a worker */
    dh_ctx ctx;   /* of the worker */
} stream;

typedef struct entry {
    host_streams *all;
    dh_stream_command command;
    uint32_t done; /* how much of its stream's queue is done when it is */
    uint32_t told; /* parts told of in this run */
    int64_t began_ns;
} entry;

/* A stream, and how much of its queue must be done; none: on NULL. */
typedef struct point {
    stream *on;
    uint32_t done;
} point;

struct host_streams {
    dh_streams base;
    dh_host_work work;
    entry *entries;    /* by command */
    point *events;     /* where each is complete */
    int64_t *event_ns; /* when it was */
    stream streams[DH_N_STREAM];

    pthread_mutex_t lock; /* of taken and leaving, and around every sleep */
    _Atomic bool failed;  /* some stream of this run failed: all stop */
    bool running;         /* a run is under way */
    bool single_steps;    /* it goes step by step */
    bool leaving;         /* workers end */
};

static stream *compute_of(host_streams *h)
{
    return &h->streams[DH_STREAM_COMPUTE];
}

static int index_of(const host_streams *h, const stream *s)
{
    return (int)(s - h->streams);
}

/* ---- order between streams ------------------------------------------------------------------ */

/* The lock orders this after a sleeper's last look. The signal comes after unlocking, here and
 * elsewhere. A thread that wakes on this core would only meet the lock, and sleep until this one is
 * preempted. */
static void wake(host_streams *h, int s)
{
    pthread_mutex_lock(&h->lock);
    pthread_mutex_unlock(&h->lock);
    pthread_cond_signal(&h->streams[s].wake);
}

static bool is_passed(point p)
{
    return atomic_load(&p.on->done) >= p.done;
}

static bool has_next(const stream *s)
{
    return atomic_load(&s->done) < s->queue.n;
}

/* Of a stream that has one, and that nobody else runs. */
static entry *next_of(const stream *s)
{
    return &s->all->entries[s->queue.at[atomic_load(&s->done)]];
}

/* The first thing that the stream's next command waits for, none when it may run. */
static point blocker_of(const host_streams *h, const stream *s)
{
    const dh_stream_command *next = &next_of(s)->command;
    for (uint32_t w = 0; w < next->n_waits; w++) {
        const point until = h->events[next->waits[w]];
        if (!is_passed(until)) return until;
    }
    return (point){NULL, 0};
}

/* Whoever passes the point wakes the thread of `sleeper`. False when it is passed
 * already: announced before the counter is looked at again, so that either this thread sees
 * the new count or the other one the announcement. */
static bool announce(const host_streams *h, const stream *sleeper, point until)
{
    _Atomic uint32_t *awaited = &until.on->awaited[index_of(h, sleeper)];
    atomic_store(awaited, until.done);
    if (!is_passed(until)) return true;
    atomic_store(awaited, 0);
    return false;
}

/* Lets a stream's worker know when it may go on; true when it may at once. The lock is held. */
static bool arm(host_streams *h, stream *s)
{
    point blocker;
    for (int t = 0; t < DH_N_STREAM; t++) atomic_store(&h->streams[t].awaited[index_of(h, s)], 0);
    do {
        blocker = blocker_of(h, s);
    } while (blocker.on && !announce(h, s, blocker));
    return !blocker.on;
}

/* Whether the thread that waits for a point makes the next call there itself: not one that goes on
 * behind the point. False once it is passed, which another thread may do at any time: behind the
 * last command of a stream there is no next one to look at. */
static bool makes_call(point until)
{
    const stream *s = until.on;
    const uint32_t done = atomic_load(&s->done);
    return done < until.done && s->all->entries[s->queue.at[done]].done <= until.done;
}

/* The stream that the calling thread is about to run because it has nothing else to do: one
 * alone, for the others must go on meanwhile. NULL: none. */
static const stream *next_helped(host_streams *h)
{
    const stream *compute = compute_of(h);
    if (has_next(compute)) {
        const point blocker = blocker_of(h, compute);
        return blocker.on && makes_call(blocker) ? blocker.on : NULL;
    }
    for (int s = 0; s < DH_N_STREAM; s++)
        if (has_next(&h->streams[s])) return &h->streams[s];
    return NULL;
}

/* So much of a stream's queue is done. */
static void pass(host_streams *h, stream *s, uint32_t done)
{
    atomic_store(&s->done, done);
    for (int t = 0; t < DH_N_STREAM; t++) {
        const uint32_t awaited = atomic_load(&s->awaited[t]);
        if (awaited == 0 || done < awaited) continue;
        if (s != compute_of(h) || next_helped(h) != &h->streams[t]) wake(h, t);
    }
}

/* ---- commands ------------------------------------------------------------------------------- */

/* In single steps nobody reads an output before it has been looked at. */
static void tell_part(void *user, uint32_t part)
{
    entry *c = user;
    host_streams *h = c->all;
    if (h->single_steps) return;
    h->event_ns[c->command.event0 + part] = dh_now_ns();
    c->told = part + 1;
    pass(h, &h->streams[c->command.stream], c->done - (c->command.n_parts - c->told));
}

/* Parts not told of were there at the end. */
static dh_status run_command(dh_ctx *ctx, host_streams *h, entry *c)
{
    const dh_watch *watch = &h->base.spec.watch;
    const dh_stream_command *command = &c->command;
    c->told = 0;
    if (h->single_steps) DH_TRY(watch->before(ctx, watch->user, command->id));
    if (command->updates) watch->update(watch->user, false);
    c->began_ns = dh_now_ns();
    const dh_status st = h->work(ctx, &h->base, command);
    const int64_t end_ns = dh_now_ns();
    if (command->updates && st == DH_OK) watch->update(watch->user, true);
    for (uint32_t k = c->told; k < command->n_parts; k++) h->event_ns[command->event0 + k] = end_ns;
    if (st == DH_OK) return h->single_steps ? watch->after(ctx, watch->user, command->id) : DH_OK;
    watch->explain(ctx, watch->user, command->id);
    return st;
}

/* The next command of a stream, which may run and which this thread has taken. */
static dh_status run_next(dh_ctx *ctx, stream *s)
{
    host_streams *h = s->all;
    const dh_watch *watch = &h->base.spec.watch;
    entry *c = next_of(s);
    watch->working(watch->user, c->command.stream, true);
    const dh_status st = run_command(ctx, h, c);
    watch->working(watch->user, c->command.stream, false);
    if (st == DH_OK)
        pass(h, s, c->done);
    else if (!atomic_exchange(&h->failed, true))
        watch->failed(watch->user, st, ctx->message);
    return st;
}

/* The same on a stream that is free; the lock is held, but not meanwhile. */
static dh_status take_and_run(dh_ctx *ctx, stream *s)
{
    host_streams *h = s->all;
    s->taken = true;
    pthread_mutex_unlock(&h->lock);
    const dh_status st = run_next(ctx, s);
    pthread_mutex_lock(&h->lock);
    s->taken = false;
    if (atomic_load(&h->failed) || !has_next(s))
        pthread_cond_signal(&compute_of(h)->wake); /* finish() waits for this */
    return st;
}

/* A transfer's thread works for microseconds and others wait for it. With a short slice the
 * scheduler (Linux 6.12 and later) runs it as soon as it wakes, beside threads that compute.
 * Elsewhere the call changes nothing or fails, which does not matter. */
static void ask_for_low_latency(void)
{
    struct { /* struct sched_attr, which glibc's headers and the kernel's cannot give together */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attr = {.size = 48, .policy = SCHED_OTHER, .runtime_ns = 100000};
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *worker(void *arg)
{
    stream *s = arg;
    host_streams *h = s->all;
    ask_for_low_latency();
    dh_log_set_rank(h->base.spec.log_rank);
    pthread_mutex_lock(&h->lock);
    while (!h->leaving) {
        if (h->running && !s->taken && !atomic_load(&h->failed) && has_next(s) && arm(h, s))
            take_and_run(&s->ctx, s);
        else
            pthread_cond_wait(&s->wake, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static dh_status interrupted(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_EINTERRUPTED, "another stream of this rank failed");
}

/* The calling thread until a point of another stream is passed. It runs the commands of that
 * stream that it can, and leaves the others to the stream's worker. */
static dh_status help(dh_ctx *ctx, host_streams *h, point until)
{
    stream *compute = compute_of(h), *s = until.on;
    dh_status st = DH_OK;
    pthread_mutex_lock(&h->lock);
    while (st == DH_OK && !is_passed(until) && !atomic_load(&h->failed)) {
        const bool ready = !s->taken && arm(h, s), own = makes_call(until);
        if (ready && own)
            st = take_and_run(ctx, s);
        else if (ready)
            pthread_cond_signal(&s->wake);
        if (!(ready && own) && announce(h, compute, until))
            pthread_cond_wait(&compute->wake, &h->lock);
        atomic_store(&s->awaited[DH_STREAM_COMPUTE], 0);
    }
    const bool goes_on = !s->taken && has_next(s) && arm(h, s);
    pthread_mutex_unlock(&h->lock);
    if (goes_on) pthread_cond_signal(&s->wake);
    return st == DH_OK && !is_passed(until) ? interrupted(ctx) : st;
}

static dh_status run_compute(dh_ctx *ctx, host_streams *h)
{
    stream *s = compute_of(h);
    while (has_next(s)) {
        const point blocker = blocker_of(h, s);
        if (atomic_load(&h->failed)) return interrupted(ctx);
        if (blocker.on)
            DH_TRY(help(ctx, h, blocker));
        else
            DH_TRY(run_next(ctx, s));
    }
    return DH_OK;
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void begin(host_streams *h, bool single_steps)
{
    pthread_mutex_lock(&h->lock);
    h->single_steps = single_steps;
    h->running = true;
    atomic_store(&h->failed, false);
    for (int s = 0; s < DH_N_STREAM; s++) {
        atomic_store(&h->streams[s].done, 0);
        for (int t = 0; t < DH_N_STREAM; t++) atomic_store(&h->streams[s].awaited[t], 0);
        dh_ctx_reset(&h->streams[s].ctx);
    }
    bool is_ready[DH_N_STREAM];
    for (int s = 0; s < DH_N_STREAM; s++)
        is_ready[s] = h->streams[s].started && arm(h, &h->streams[s]);
    pthread_mutex_unlock(&h->lock);
    for (int s = 0; s < DH_N_STREAM; s++)
        if (is_ready[s]) pthread_cond_signal(&h->streams[s].wake);
}

/* Let the other streams end the rest of their work, or after a failure the work under way. */
static dh_status finish(dh_ctx *ctx, host_streams *h, dh_status st)
{
    for (int s = 0; st == DH_OK && s < DH_N_STREAM; s++) {
        stream *other = &h->streams[s];
        if (other->started) st = help(ctx, h, (point){other, (uint32_t)other->queue.n});
    }
    pthread_mutex_lock(&h->lock);
    for (int s = 0; s < DH_N_STREAM; s++)
        while (h->streams[s].taken) pthread_cond_wait(&compute_of(h)->wake, &h->lock);
    h->running = false;
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* The failure that caused the others: streams that were only stopped by it come last. */
static dh_status first_cause(dh_ctx *ctx, const host_streams *h, dh_status st)
{
    for (int s = 0; s < DH_N_STREAM; s++) {
        const dh_ctx *other = &h->streams[s].ctx;
        if (!h->streams[s].started || other->status == DH_OK) continue;
        if (st == DH_OK || (st == DH_EINTERRUPTED && other->status != DH_EINTERRUPTED)) {
            dh_ctx_reset(ctx);
            st = dh_fail(ctx, other->status, "%s", other->message);
        }
    }
    return st;
}

dh_status dh_host_streams_run(dh_ctx *ctx, dh_streams *streams, bool single_steps)
{
    host_streams *h = (host_streams *)streams;
    begin(h, single_steps);
    return first_cause(ctx, h, finish(ctx, h, run_compute(ctx, h)));
}

int64_t dh_host_streams_began_ns(const dh_streams *streams, uint32_t id)
{
    return ((const host_streams *)streams)->entries[id].began_ns;
}

int64_t dh_host_streams_event_ns(const dh_streams *streams, uint32_t event)
{
    return ((const host_streams *)streams)->event_ns[event];
}

/* ---- making them ---------------------------------------------------------------------------- */

dh_status dh_host_streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                                 const dh_streams_spec *spec, dh_host_work work,
                                 dh_streams **streams)
{
    host_streams *h = calloc(1, sizeof *h);
    if (!h) return dh_no_memory(ctx);
    h->base = (dh_streams){*spec, slab, values};
    h->work = work;
    pthread_mutex_init(&h->lock, NULL);
    for (int s = 0; s < DH_N_STREAM; s++) {
        h->streams[s].all = h;
        pthread_cond_init(&h->streams[s].wake, NULL);
    }
    h->entries = calloc((size_t)spec->n_commands + 1, sizeof *h->entries);
    h->events = calloc((size_t)spec->n_events + 1, sizeof *h->events);
    h->event_ns = calloc((size_t)spec->n_events + 1, sizeof *h->event_ns);
    if (!h->entries || !h->events || !h->event_ns) {
        dh_host_streams_destroy(&h->base);
        return dh_no_memory(ctx);
    }
    *streams = &h->base;
    return DH_OK;
}

static void end_workers(host_streams *h)
{
    pthread_mutex_lock(&h->lock);
    h->leaving = true;
    for (int s = 0; s < DH_N_STREAM; s++) pthread_cond_signal(&h->streams[s].wake);
    pthread_mutex_unlock(&h->lock);
    for (int s = 0; s < DH_N_STREAM; s++)
        if (h->streams[s].started) pthread_join(h->streams[s].thread, NULL);
}

void dh_host_streams_destroy(dh_streams *streams)
{
    host_streams *h = (host_streams *)streams;
    if (!h) return;
    end_workers(h);
    for (int s = 0; s < DH_N_STREAM; s++) {
        pthread_cond_destroy(&h->streams[s].wake);
        dh_vec_fini(&h->streams[s].queue);
    }
    pthread_mutex_destroy(&h->lock);
    free(h->entries);
    free(h->events);
    free(h->event_ns);
    free(h);
}

/* The compute stream's thread is whoever calls run. */
static dh_status start_worker(dh_ctx *ctx, stream *s, dh_stream name)
{
    if (s->started || name == DH_STREAM_COMPUTE) return DH_OK;
    if (pthread_create(&s->thread, NULL, worker, s) != 0)
        return dh_fail(ctx, DH_EINTERNAL, "cannot start the thread of the %s stream",
                       dh_stream_name(name));
    s->started = true;
    return DH_OK;
}

dh_status dh_host_streams_issue(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command)
{
    host_streams *h = (host_streams *)streams;
    stream *s = &h->streams[command->stream];
    entry *c = &h->entries[command->id];
    DH_TRY(start_worker(ctx, s, (dh_stream)command->stream));
    for (uint32_t k = 0; k < command->n_parts; k++) {
        if (!dh_vec_push(&s->queue, command->id)) return dh_no_memory(ctx);
        h->events[command->event0 + k] = (point){s, (uint32_t)s->queue.n};
    }
    *c = (entry){.all = h, .command = *command, .done = (uint32_t)s->queue.n};
    command->call->progress = (dh_part_hook){command->n_parts, tell_part, c};
    return DH_OK;
}
