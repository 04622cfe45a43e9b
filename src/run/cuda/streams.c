/* Streams of the cuda device: one of CUDA's each, and a thread of the host that puts commands on
 * it.
 *
 * Commands wait for each other on the GPU (cudaStreamWaitEvent), so that the threads run ahead of
 * it. A wait for an event that nobody has recorded yet would be none for CUDA; so the thread waits
 * for the record first, on the host. Events are those of one run: all are recorded anew in each.
 *
 * A command of the host (communication, loading) holds up its own thread alone: it waits for what
 * was fetched, calls, and goes on with the copies behind it. The thread that calls run is the
 * compute stream's. */
#include <pthread.h>
#include <stdlib.h>

#include "run/cuda/hang.h"

/* ---- events -----------------------------------------------------------------------------------
 */

static dh_status record(dh_ctx *ctx, const lane *l, event *e)
{
    cuda_streams *s = l->all;
    if (s->capturing) {
        CUDA_TRY(cudaEventRecord(e->captured, l->stream));
        CUDA_TRY(cudaEventRecordWithFlags(e->at, l->stream, cudaEventRecordExternal));
        return DH_OK;
    }
    CUDA_TRY(cudaEventRecord(e->at, l->stream));
    pthread_mutex_lock(&s->lock);
    e->recorded = true;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    return DH_OK;
}

/* False: some stream failed, and the event may never come. */
static bool await_record(cuda_streams *s, const event *e)
{
    pthread_mutex_lock(&s->lock);
    while (!e->recorded && !s->failed) pthread_cond_wait(&s->moved, &s->lock);
    const bool recorded = e->recorded;
    pthread_mutex_unlock(&s->lock);
    return recorded;
}

/* Wait for an event of another stream; earlier work of the lane's own stream is done anyway. */
static dh_status wait_for(dh_ctx *ctx, lane *l, uint32_t id, bool *gone)
{
    const event *e = &l->all->events[id];
    if (&l->all->lanes[e->stream] == l) return DH_OK;
    *gone = !await_record(l->all, e);
    if (!*gone) CUDA_TRY(cudaStreamWaitEvent(l->stream, e->at, 0));
    return DH_OK;
}

/* Copy rows of a part of the first output; with the last part, all the other copies too. */
static dh_status copy_part(dh_ctx *ctx, const lane *l, const dh_stream_command *c, uint32_t part)
{
    for (uint32_t i = 0; i < c->n_copies; i++) {
        const dh_copy *copy = &c->copies[i];
        size_t from = 0, n = copy->n_bytes;
        if (i > 0 && part + 1 < c->n_parts) break;
        if (i == 0 && c->n_parts > 1) {
            const dh_tensor *y = &c->call->graph->tensors.at[c->call->op->out[0]];
            from =
                n / (size_t)y->shape[0] * (size_t)dh_op_part_begin(c->call->op, y->shape[0], part);
            n /= c->n_parts;
        }
        CUDA_TRY(cudaMemcpyAsync((char *)copy->to + from, (const char *)copy->from + from, n,
                                 cudaMemcpyHostToDevice, l->stream));
    }
    return DH_OK;
}

static dh_status tell_next(dh_ctx *ctx, lane *l, entry *e)
{
    DH_TRY(copy_part(ctx, l, &e->command, e->told));
    return record(ctx, l, &l->all->events[e->command.event0 + e->told++]);
}

/* Told by a kernel's launcher, after the launch that makes the part, or by a function of the host,
 * whose part is copied now. A failure here is reported after the command. */
static void tell_part(void *user, uint32_t part)
{
    entry *e = user;
    lane *l = &e->all->lanes[e->command.stream];
    if (part == e->told && l->told == DH_OK) l->told = tell_next(&l->ctx, l, e);
}

static dh_status tell_rest(dh_ctx *ctx, lane *l, entry *e)
{
    DH_TRY(l->told);
    while (e->told < e->command.n_parts) DH_TRY(tell_next(ctx, l, e));
    return DH_OK;
}

/* ---- a command --------------------------------------------------------------------------------
 */

/* A stream that meets other ranks may wait for ever. The waiting thread therefore asks now and then
 * whether the others are still there. */
static dh_status look_after(dh_ctx *ctx, const lane *l)
{
    /* TUNING: a guess until one has run: shorter than a step's end may come late, longer than
     * asking takes. */
    enum { PAUSE_NS = 50 * 1000 };
    const cuda_streams *s = l->all;
    const dh_watch *watch = &s->base.spec.watch;
    const int64_t from = dh_now_ns();
    cudaError_t state = cudaStreamQuery(l->stream);
    for (; state == cudaErrorNotReady; state = cudaStreamQuery(l->stream)) {
        (void)cudaGetLastError(); /* it is no error */
        const int64_t now = dh_now_ns();
        DH_TRY(watch->waiting(ctx, watch->user, (uint32_t)(l - s->lanes), now - from));
        dh_sleep_until_ns(now + PAUSE_NS);
    }
    return dh_cuda_check(ctx, state, "cudaStreamQuery");
}

dh_status cuda_synchronize(dh_ctx *ctx, const lane *l)
{
    if (l->all->base.spec.watch.waiting) return look_after(ctx, l);
    CUDA_TRY(cudaStreamSynchronize(l->stream));
    return DH_OK;
}

/* Addresses of the host are of memory that host_alloc gave. */
static dh_status fetch(dh_ctx *ctx, const lane *l, const dh_stream_command *c)
{
    for (uint32_t i = 0; i < c->n_fetches; i++)
        CUDA_TRY(cudaMemcpyAsync(c->fetches[i].to, c->fetches[i].from, c->fetches[i].n_bytes,
                                 cudaMemcpyDeviceToHost, l->stream));
    return cuda_synchronize(ctx, l);
}

static dh_status call_host(dh_ctx *ctx, lane *l, const dh_stream_command *c)
{
    const dh_watch *watch = &l->all->base.spec.watch;
    DH_TRY(fetch(ctx, l, c));
    watch->working(watch->user, c->stream, true);
    const dh_status st = c->host(ctx, c->host_user, c->call);
    watch->working(watch->user, c->stream, false);
    return st;
}

static dh_status enqueue(dh_ctx *ctx, const lane *l, const dh_stream_command *c)
{
    if (c->n_fetches > 0) DH_TRY(fetch(ctx, l, c));
    return c->enqueue(ctx, c->host_user, c->call, l->stream);
}

/* Read a kernel's finding before others go on with it. */
static dh_status look(dh_ctx *ctx, const lane *l, const int64_t *at)
{
    CUDA_TRY(cudaMemcpyAsync(l->found, at, sizeof *at, cudaMemcpyDeviceToHost, l->stream));
    return cuda_synchronize(ctx, l);
}

static dh_status launch(dh_ctx *ctx, lane *l, const dh_call *call)
{
    const dh_cuda_kernel *row = dh_cuda_kernel_of(call->op->type);
    if (row->product)
        DH_TRY(row->product(ctx, l->stream, call));
    else
        row->run(l->stream, call);
    CUDA_TRY(cudaGetLastError());
    if (!row->check) return DH_OK;
    DH_TRY(look(ctx, l, row->found_at(call)));
    return row->check(ctx, call->op, *l->found);
}

dh_status cuda_put(dh_ctx *ctx, lane *l, entry *e)
{
    const dh_stream_command *c = &e->command;
    const unsigned when = l->all->capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
    e->told = 0;
    l->told = DH_OK;
    CUDA_TRY(cudaEventRecordWithFlags(e->began, l->stream, when));
    if (l->all->capturing && c->host) return tell_rest(ctx, l, e); /* its copies alone */
    DH_TRY(c->host      ? call_host(ctx, l, c)
           : c->enqueue ? enqueue(ctx, l, c)
                        : launch(ctx, l, c->call));
    return tell_rest(ctx, l, e);
}

static dh_status do_command(dh_ctx *ctx, lane *l, entry *e, bool *gone)
{
    const cuda_streams *s = l->all;
    const dh_watch *watch = &s->base.spec.watch;
    const dh_stream_command *c = &e->command;
    for (uint32_t w = 0; w < c->n_waits && !*gone; w++) DH_TRY(wait_for(ctx, l, c->waits[w], gone));
    if (*gone) return DH_OK;
    if (s->single_steps) {
        DH_TRY(cuda_synchronize(ctx, l));
        DH_TRY(watch->before(ctx, watch->user, c->id));
    }
    const dh_status st = cuda_put(ctx, l, e);
    if (st != DH_OK) watch->explain(ctx, watch->user, c->id);
    if (st != DH_OK || !s->single_steps) return st;
    DH_TRY(cuda_synchronize(ctx, l));
    return watch->after(ctx, watch->user, c->id);
}

/* ---- a stream's commands ----------------------------------------------------------------------
 */

static void fail(lane *l, dh_status st)
{
    cuda_streams *s = l->all;
    pthread_mutex_lock(&s->lock);
    const bool is_first = !s->failed;
    if (is_first) s->failed = l;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    if (is_first) s->base.spec.watch.failed(s->base.spec.watch.user, st, l->ctx.message);
}

static bool others_failed(cuda_streams *s)
{
    pthread_mutex_lock(&s->lock);
    const bool failed = s->failed != NULL;
    pthread_mutex_unlock(&s->lock);
    return failed;
}

/* Note that n of its commands are on the stream. False: some stream failed. */
static bool goes_on(lane *l, size_t n)
{
    pthread_mutex_lock(&l->all->lock);
    l->n_put = n;
    const bool failed = l->all->failed != NULL;
    pthread_mutex_unlock(&l->all->lock);
    return !failed;
}

/* Puts all of them on the stream, as far as nobody fails. */
static void do_all(lane *l)
{
    bool gone = false;
    dh_status st = dh_cuda_check(&l->ctx, cudaSetDevice(l->all->gpu), "cudaSetDevice");
    for (size_t i = 0; st == DH_OK && !gone && goes_on(l, i) && i < l->queue.n; i++) {
        entry *e = &l->all->entries[l->queue.at[i]];
        st = do_command(&l->ctx, l, e, &gone);
    }
    if (st != DH_OK) fail(l, st);
}

/* Returns once nothing is under way on the stream. A kernel that failed there is found now, if no
 * command behind it has waited. */
static void end_all(lane *l)
{
    dh_ctx late = DH_CTX_INIT;
    if (!l->started || cuda_synchronize(&late, l) == DH_OK || others_failed(l->all)) return;
    fail(l, dh_fail(&l->ctx, late.status, "a command of the %s stream: %s",
                    dh_stream_name((dh_stream)(l - l->all->lanes)), late.message));
}

static void *lane_main(void *arg)
{
    lane *l = arg;
    cuda_streams *s = l->all;
    dh_log_set_rank(s->base.spec.log_rank);
    pthread_mutex_lock(&s->lock);
    while (!s->leaving) {
        if (l->n_runs == s->n_runs) {
            pthread_cond_wait(&s->moved, &s->lock);
            continue;
        }
        l->n_runs = s->n_runs;
        pthread_mutex_unlock(&s->lock);
        do_all(l);
        pthread_mutex_lock(&s->lock);
        l->busy = false;
        pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- a run ------------------------------------------------------------------------------------
 */

dh_status cuda_set_zero(dh_ctx *ctx, cuda_streams *s)
{
    CUDA_TRY(cudaSetDevice(s->gpu));
    CUDA_TRY(cudaEventRecord(s->zero, s->lanes[DH_STREAM_COMPUTE].stream));
    CUDA_TRY(cudaEventSynchronize(s->zero));
    s->zero_ns = dh_now_ns();
    return DH_OK;
}

static void begin(cuda_streams *s, bool single_steps)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->base.spec.n_events; i++) s->events[i].recorded = false;
    for (int i = 0; i < DH_N_STREAM; i++) {
        s->lanes[i].busy = s->lanes[i].has_thread;
        s->lanes[i].n_put = 0;
        dh_ctx_reset(&s->lanes[i].ctx);
    }
    s->failed = NULL;
    s->single_steps = single_steps;
    s->n_runs++;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static void await_lanes(cuda_streams *s)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < DH_N_STREAM; i++)
        while (s->lanes[i].busy) pthread_cond_wait(&s->moved, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

dh_status cuda_run(dh_ctx *ctx, dh_streams *streams, bool single_steps)
{
    cuda_streams *s = (cuda_streams *)streams;
    DH_TRY(cuda_set_zero(ctx, s));
    begin(s, single_steps);
    cuda_hang_begin(s);
    do_all(&s->lanes[DH_STREAM_COMPUTE]);
    await_lanes(s);
    for (int i = 0; i < DH_N_STREAM; i++) end_all(&s->lanes[i]);
    cuda_hang_end(s);
    if (!s->failed) return DH_OK;
    return dh_fail(ctx, s->failed->ctx.status, "%s", s->failed->ctx.message);
}

/* ---- times ------------------------------------------------------------------------------------
 */

static int64_t time_of(const cuda_streams *s, cudaEvent_t at)
{
    float ms = 0;
    cudaSetDevice(s->gpu);
    if (cudaEventElapsedTime(&ms, s->zero, at) != cudaSuccess) (void)cudaGetLastError();
    return s->zero_ns + (int64_t)((double)ms * 1e6);
}

int64_t cuda_began_ns(const dh_streams *streams, uint32_t id)
{
    const cuda_streams *s = (const cuda_streams *)streams;
    return time_of(s, s->entries[id].began);
}

int64_t cuda_event_ns(const dh_streams *streams, uint32_t id)
{
    const cuda_streams *s = (const cuda_streams *)streams;
    return time_of(s, s->events[id].at);
}

/* ---- values that are not finite ---------------------------------------------------------------
 */

/* On the stream whose thread this is: the only one of that ctx. */
dh_status cuda_first_nonfinite(dh_ctx *ctx, const dh_streams *streams, dh_dtype dtype, int64_t n,
                               const void *at, int64_t *first)
{
    const cuda_streams *s = (const cuda_streams *)streams;
    int i = 0;
    while (i + 1 < DH_N_STREAM && &s->lanes[i].ctx != ctx) i++;
    const lane *l = &s->lanes[i];
    dh_cuda_first_nonfinite(l->stream, dtype, n, at, &s->scanned[i]);
    CUDA_TRY(cudaGetLastError());
    DH_TRY(look(ctx, l, &s->scanned[i]));
    *first = *l->found;
    return DH_OK;
}

/* ---- making them ------------------------------------------------------------------------------
 */

/* CUDA's stream of a lane; the compute stream's thread is whoever calls run. */
static dh_status start_lane(dh_ctx *ctx, cuda_streams *s, dh_stream name)
{
    lane *l = &s->lanes[name];
    if (l->started) return DH_OK;
    CUDA_TRY(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    l->started = true;
    CUDA_TRY(cudaHostAlloc((void **)&l->found, sizeof *l->found, cudaHostAllocDefault));
    if (name == DH_STREAM_COMPUTE) return DH_OK;
    l->n_runs = s->n_runs;
    if (pthread_create(&l->thread, NULL, lane_main, l) != 0)
        return dh_fail(ctx, DH_EINTERNAL, "cannot start the thread of the %s stream",
                       dh_stream_name(name));
    l->has_thread = true;
    return DH_OK;
}

static dh_status fill_streams(dh_ctx *ctx, cuda_streams *s)
{
    s->entries = calloc((size_t)s->base.spec.n_commands + 1, sizeof *s->entries);
    s->events = calloc((size_t)s->base.spec.n_events + 1, sizeof *s->events);
    if (!s->entries || !s->events) return dh_no_memory(ctx);
    CUDA_TRY(cudaSetDevice(s->gpu));
    CUDA_TRY(cudaEventCreateWithFlags(&s->zero, cudaEventDefault));
    CUDA_TRY(cudaMalloc((void **)&s->scanned, DH_N_STREAM * sizeof *s->scanned));
    DH_TRY(start_lane(ctx, s, DH_STREAM_COMPUTE));
    return cuda_hang_watch(ctx, s);
}

dh_status cuda_streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                              const dh_streams_spec *spec, dh_streams **streams)
{
    cuda_streams *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    s->base = (dh_streams){*spec, slab, values};
    s->gpu = cuda_gpu_of(slab);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    for (int i = 0; i < DH_N_STREAM; i++) s->lanes[i].all = s;
    const dh_status st = fill_streams(ctx, s);
    if (st != DH_OK) {
        cuda_streams_destroy(&s->base);
        return st;
    }
    *streams = &s->base;
    return DH_OK;
}

static void end_lane(lane *l)
{
    if (l->has_thread) pthread_join(l->thread, NULL);
    if (l->started) cudaStreamDestroy(l->stream);
    if (l->found) cudaFreeHost(l->found);
    dh_vec_fini(&l->queue);
}

void cuda_streams_destroy(dh_streams *streams)
{
    cuda_streams *s = (cuda_streams *)streams;
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->leaving = true;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    cuda_hang_leave(s);
    cudaSetDevice(s->gpu);
    cuda_drop_capture(s);
    for (int i = 0; i < DH_N_STREAM; i++) end_lane(&s->lanes[i]);
    for (uint32_t i = 0; s->entries && i < s->base.spec.n_commands; i++)
        if (s->entries[i].began) cudaEventDestroy(s->entries[i].began);
    for (uint32_t i = 0; s->events && i < s->base.spec.n_events; i++)
        if (s->events[i].at) cudaEventDestroy(s->events[i].at);
    if (s->zero) cudaEventDestroy(s->zero);
    dh_cuda_drop(s->scanned);
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    dh_vec_fini(&s->order);
    free(s->entries);
    free(s->events);
    free(s);
}

dh_status cuda_issue(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command)
{
    cuda_streams *s = (cuda_streams *)streams;
    entry *e = &s->entries[command->id];
    DH_TRY(start_lane(ctx, s, (dh_stream)command->stream));
    if (!dh_vec_push(&s->lanes[command->stream].queue, command->id) ||
        !dh_vec_push(&s->order, command->id))
        return dh_no_memory(ctx);
    *e = (entry){.all = s, .command = *command};
    CUDA_TRY(cudaEventCreateWithFlags(&e->began, cudaEventDefault));
    for (uint32_t k = 0; k < command->n_parts; k++) {
        event *part = &s->events[command->event0 + k];
        part->stream = command->stream;
        CUDA_TRY(cudaEventCreateWithFlags(&part->at, cudaEventDefault));
    }
    command->call->progress = (dh_part_hook){command->n_parts, tell_part, e};
    return DH_OK;
}
