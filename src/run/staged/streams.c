/* Streams of the staged device: each on a thread of its own, and nothing earlier than it has to be.
 *
 * A command works on copies of its outputs, which reach the memory that others read only when its
 * event completes. An event completes when some stream waits for it, when its own could go on
 * otherwise, or when nothing else is left to do. All commands that may begin have read their inputs
 * by then. Parts complete one by one. A missing wait therefore shows as old data, wherever the
 * order of the completions lets it. That order is made of random delays, before a command begins
 * and before it is seen to be complete; DHELIX_STAGED_SEED repeats them, as far as threads let it.
 * Writes that come too early are not found, as results always come late. The verifier finds them
 * (dh_program_verify).
 *
 * One lock and one condition for all: this device is for finding faults, not for speed. */
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "run/cpu/glue.h"
#include "run/staged/staged.h"

typedef struct staged_streams staged_streams;

typedef struct event {
    uint32_t stream;
    bool wanted, complete;
    int64_t ns;
} event;

typedef struct entry {
    dh_stream_command command;
    int64_t began_ns;
} entry;

typedef struct lane {
    staged_streams *all;
    DH_VEC(uint32_t) queue; /* commands */
    size_t done;            /* done part of the queue, in this run */
    bool busy;              /* with the next one */
    bool reading;           /* busy, and not through with its inputs */
    bool started;
    pthread_t thread;
    dh_ctx ctx;
    unsigned char *withheld; /* outputs of the command it is busy with */
    size_t n_withheld;
} lane;

struct staged_streams {
    dh_streams base;
    entry *entries;
    event *events;
    lane lanes[DH_N_STREAM];
    uint64_t seed, n_runs;
    int n_threads; /* of a kernel: those of the thread that made the streams */

    pthread_mutex_t lock;
    pthread_cond_t moved; /* anything below, or an event, has changed */
    bool running, single_steps, leaving;
    const lane *failed; /* the first */
};

/* ---- chance --------------------------------------------------------------------------------- */

static uint64_t seed_of_process;

static void choose_seed(void)
{
    seed_of_process = (uint64_t)dh_now_ns() % 1000000;
    dh_log(DH_LOG_INFO, "device staged: DHELIX_STAGED_SEED=%llu repeats its delays",
           (unsigned long long)seed_of_process);
}

/* As told, or one for the process, which says so. */
static uint64_t find_seed(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *text = getenv("DHELIX_STAGED_SEED");
    int64_t given;
    if (text && dh_parse_i64(text, &given)) return (uint64_t)given;
    pthread_once(&once, choose_seed);
    return seed_of_process;
}

/* One time in four, up to MOST_NS. */
static void pause_by_chance(const staged_streams *s, uint32_t id, uint32_t part)
{
    /* TUNING: as long as several kernels of a small model; tests spend it some hundred times. */
    enum { MOST_NS = 200 * 1000 };
    const uint64_t at = s->n_runs << 40 | (uint64_t)part << 24;
    const uint64_t bits = dh_mix64(dh_mix64(s->seed ^ at) + id);
    if (bits % 4 == 0) dh_sleep_until_ns(dh_now_ns() + (int64_t)(bits / 4 % MOST_NS));
}

/* ---- a command's work ----------------------------------------------------------------------- */

static size_t output_bytes(const dh_call *c, int k)
{
    if (!c->out[k]) return 0;
    return (size_t)dh_tensor_bytes(&c->graph->tensors.at[c->op->out[k]]);
}

static size_t aligned(size_t n_bytes)
{
    return (n_bytes + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

/* The call with addresses that can be followed; outputs are copies, since a command may add to
 * them, or write a part. */
static dh_call open_call(const lane *l, const dh_call *c)
{
    const dh_slab *slab = l->all->base.slab;
    dh_call open = *c;
    unsigned char *copy = l->withheld;
    open.progress.n = 0;
    open.work = staged_bytes(slab, c->work);
    open.scalars = (const dh_scalars *)(const void *)staged_bytes(l->all->base.values, c->scalars);
    open.choices = (int64_t *)(void *)staged_bytes(l->all->base.values, c->choices);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        open.in[k] = staged_bytes(slab, c->in[k]);
        if (!c->out[k]) continue;
        open.out[k] = memcpy(copy, staged_bytes(slab, c->out[k]), output_bytes(c, k));
        copy += aligned(output_bytes(c, k));
    }
    return open;
}

/* Where the copies have the byte of an output. */
static void *withheld_at(const dh_call *c, const dh_call *open, const void *to)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        const ptrdiff_t at = (const char *)to - (const char *)c->out[k];
        if (c->out[k] && at >= 0 && (size_t)at < output_bytes(c, k))
            return (char *)open->out[k] + at;
    }
    return NULL;
}

static void end_reading(lane *l)
{
    staged_streams *s = l->all;
    pthread_mutex_lock(&s->lock);
    l->reading = false;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static dh_status call_host(dh_ctx *ctx, lane *l, const dh_stream_command *c, const dh_call *open)
{
    for (uint32_t i = 0; i < c->n_fetches; i++)
        memcpy(c->fetches[i].to, staged_bytes(l->all->base.slab, c->fetches[i].from),
               c->fetches[i].n_bytes);
    end_reading(l);
    DH_TRY(c->host(ctx, c->host_user, c->call));
    for (uint32_t i = 0; i < c->n_copies; i++)
        memcpy(withheld_at(c->call, open, c->copies[i].to), c->copies[i].from,
               c->copies[i].n_bytes);
    return DH_OK;
}

/* A part of the first output, and with the last part all of the others. */
static void show_part(const staged_streams *s, const dh_stream_command *c, const dh_call *open,
                      uint32_t part)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        size_t from = 0, n = output_bytes(c->call, k);
        if (n == 0 || (k > 0 && part + 1 < c->n_parts)) continue;
        if (k == 0 && c->n_parts > 1) {
            const int64_t rows = c->call->graph->tensors.at[c->call->op->out[0]].shape[0];
            from = n / (size_t)rows * (size_t)dh_op_part_begin(c->call->op, rows, part);
            n /= c->n_parts;
        }
        memcpy(staged_bytes(s->base.slab, c->call->out[k]) + from, (char *)open->out[k] + from, n);
    }
}

static dh_status work(lane *l, const dh_stream_command *c, const dh_call *open)
{
    const dh_watch *watch = &l->all->base.spec.watch;
    const dh_status st = c->host ? call_host(&l->ctx, l, c, open)
                                 : dh_cpu_kernel_of(c->call->op->type)->run(&l->ctx, open);
    if (st != DH_OK) watch->explain(&l->ctx, watch->user, c->id);
    return st;
}

/* In single steps the results are shown before they are looked at. */
static dh_status run_command(lane *l, entry *e, const dh_call *open)
{
    const staged_streams *s = l->all;
    const dh_watch *watch = &s->base.spec.watch;
    const dh_stream_command *c = &e->command;
    if (s->single_steps) DH_TRY(watch->before(&l->ctx, watch->user, c->id));
    if (c->updates) watch->update(watch->user, false);
    e->began_ns = dh_now_ns();
    DH_TRY(work(l, c, open));
    for (uint32_t k = 0; s->single_steps && k < c->n_parts; k++) show_part(s, c, open, k);
    return s->single_steps ? watch->after(&l->ctx, watch->user, c->id) : DH_OK;
}

/* ---- order between streams: the lock is held ------------------------------------------------ */

/* Whether a command of this lane may begin, as far as others are concerned. The events that it
 * waits for are wanted from now on. */
static bool waits_are_over(staged_streams *s, const lane *l, uint32_t id)
{
    const dh_stream_command *c = &s->entries[id].command;
    bool over = true;
    for (uint32_t w = 0; w < c->n_waits; w++) {
        event *e = &s->events[c->waits[w]];
        if (e->complete || &s->lanes[e->stream] == l) continue;
        over = false;
        if (!e->wanted) pthread_cond_broadcast(&s->moved);
        e->wanted = true;
    }
    return over;
}

static bool may_begin(staged_streams *s, const lane *l)
{
    return s->running && !s->failed && l->done < l->queue.n &&
           waits_are_over(s, l, l->queue.at[l->done]);
}

/* Whether some other lane is about to read what it may read now. */
static bool others_read(staged_streams *s, const lane *l)
{
    for (int i = 0; i < DH_N_STREAM; i++) {
        const lane *o = &s->lanes[i];
        if (o != l && (o->busy ? o->reading : may_begin(s, o))) return true;
    }
    return false;
}

static bool is_last(const lane *l)
{
    return l->done + 1 == l->queue.n;
}

/* Whether no other lane will ever want anything: it has ended, or only its last event is left. */
static bool others_end(const staged_streams *s, const lane *l)
{
    for (int i = 0; i < DH_N_STREAM; i++) {
        const lane *o = &s->lanes[i];
        if (o != l && o->done < o->queue.n && !(o->busy && is_last(o) && !o->reading)) return false;
    }
    return true;
}

/* Whether a part of the lane's command has to be complete now. */
static bool is_due(staged_streams *s, const lane *l, const dh_stream_command *c, uint32_t part)
{
    bool wanted = is_last(l) ? others_end(s, l) : waits_are_over(s, l, l->queue.at[l->done + 1]);
    for (uint32_t k = part; k < c->n_parts; k++) wanted |= s->events[c->event0 + k].wanted;
    return wanted && !others_read(s, l);
}

/* Nobody begins to read while a part is shown. */
static void complete(staged_streams *s, lane *l, const dh_stream_command *c, const dh_call *open)
{
    for (uint32_t k = 0; k < c->n_parts; k++) {
        event *e = &s->events[c->event0 + k];
        pthread_mutex_unlock(&s->lock);
        pause_by_chance(s, c->id, k + 1);
        pthread_mutex_lock(&s->lock);
        while (!s->failed && !is_due(s, l, c, k)) pthread_cond_wait(&s->moved, &s->lock);
        if (s->failed) return;
        show_part(s, c, open, k);
        e->complete = true;
        e->ns = dh_now_ns();
        pthread_cond_broadcast(&s->moved);
    }
    if (c->updates) s->base.spec.watch.update(s->base.spec.watch.user, true);
    l->done++;
}

/* The lane's next command, all of it; the lock is not held while it works. */
static void run_next(staged_streams *s, lane *l)
{
    const dh_watch *watch = &s->base.spec.watch;
    entry *e = &s->entries[l->queue.at[l->done]];
    const dh_stream_command *c = &e->command;
    l->busy = l->reading = true;
    pthread_mutex_unlock(&s->lock);
    pause_by_chance(s, c->id, 0);
    watch->working(watch->user, c->stream, true);
    const dh_call open = open_call(l, c->call);
    const dh_status st = run_command(l, e, &open);
    watch->working(watch->user, c->stream, false);
    pthread_mutex_lock(&s->lock);
    l->reading = false;
    pthread_cond_broadcast(&s->moved);
    const bool is_first = st != DH_OK && !s->failed;
    if (is_first) {
        s->failed = l;
        pthread_mutex_unlock(&s->lock);
        watch->failed(watch->user, st, l->ctx.message);
        pthread_mutex_lock(&s->lock);
    }
    complete(s, l, c, &open);
    l->busy = false;
    pthread_cond_broadcast(&s->moved);
}

static void *lane_main(void *arg)
{
    lane *l = arg;
    staged_streams *s = l->all;
    omp_set_num_threads(s->n_threads);
    dh_log_set_rank(s->base.spec.log_rank);
    pthread_mutex_lock(&s->lock);
    while (!s->leaving)
        if (may_begin(s, l))
            run_next(s, l);
        else
            pthread_cond_wait(&s->moved, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- a run ---------------------------------------------------------------------------------- */

static bool has_ended(const staged_streams *s)
{
    for (int i = 0; i < DH_N_STREAM; i++) {
        const lane *l = &s->lanes[i];
        if (s->failed ? l->busy : l->done < l->queue.n) return false;
    }
    return true;
}

dh_status staged_run(dh_ctx *ctx, dh_streams *streams, bool single_steps)
{
    staged_streams *s = (staged_streams *)streams;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < DH_N_STREAM; i++) {
        s->lanes[i].done = 0;
        dh_ctx_reset(&s->lanes[i].ctx);
    }
    for (uint32_t i = 0; i < s->base.spec.n_events; i++)
        s->events[i].wanted = s->events[i].complete = false;
    s->n_runs++;
    s->failed = NULL;
    s->single_steps = single_steps;
    s->running = true;
    pthread_cond_broadcast(&s->moved);
    while (!has_ended(s)) pthread_cond_wait(&s->moved, &s->lock);
    s->running = false;
    pthread_mutex_unlock(&s->lock);
    if (!s->failed) return DH_OK;
    return dh_fail(ctx, s->failed->ctx.status, "%s", s->failed->ctx.message);
}

int64_t staged_began_ns(const dh_streams *streams, uint32_t id)
{
    return ((const staged_streams *)streams)->entries[id].began_ns;
}

int64_t staged_event_ns(const dh_streams *streams, uint32_t id)
{
    return ((const staged_streams *)streams)->events[id].ns;
}

/* ---- making them ---------------------------------------------------------------------------- */

dh_status staged_streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                                const dh_streams_spec *spec, dh_streams **streams)
{
    staged_streams *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    s->base = (dh_streams){*spec, slab, values};
    s->seed = dh_mix64(find_seed() + (uint64_t)(spec->log_rank + 1));
    s->n_threads = omp_get_max_threads();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    for (int i = 0; i < DH_N_STREAM; i++) s->lanes[i].all = s;
    s->entries = calloc((size_t)spec->n_commands + 1, sizeof *s->entries);
    s->events = calloc((size_t)spec->n_events + 1, sizeof *s->events);
    if (!s->entries || !s->events) {
        staged_streams_destroy(&s->base);
        return dh_no_memory(ctx);
    }
    *streams = &s->base;
    return DH_OK;
}

void staged_streams_destroy(dh_streams *streams)
{
    staged_streams *s = (staged_streams *)streams;
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->leaving = true;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < DH_N_STREAM; i++) {
        if (s->lanes[i].started) pthread_join(s->lanes[i].thread, NULL);
        dh_vec_fini(&s->lanes[i].queue);
        free(s->lanes[i].withheld);
    }
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    free(s->entries);
    free(s->events);
    free(s);
}

/* Room for the outputs of one command of the lane. */
static dh_status make_room(dh_ctx *ctx, lane *l, const dh_call *c)
{
    size_t n_bytes = DH_BUFFER_ALIGN;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) n_bytes += aligned(output_bytes(c, k));
    if (n_bytes <= l->n_withheld) return DH_OK;
    free(l->withheld);
    l->n_withheld = n_bytes;
    l->withheld = aligned_alloc(DH_BUFFER_ALIGN, n_bytes);
    if (!l->withheld) l->n_withheld = 0;
    return l->withheld ? DH_OK : dh_no_memory(ctx);
}

static dh_status start_lane(dh_ctx *ctx, lane *l, dh_stream name)
{
    if (l->started) return DH_OK;
    if (pthread_create(&l->thread, NULL, lane_main, l) != 0)
        return dh_fail(ctx, DH_EINTERNAL, "cannot start the thread of the %s stream",
                       dh_stream_name(name));
    l->started = true;
    return DH_OK;
}

dh_status staged_issue(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command)
{
    staged_streams *s = (staged_streams *)streams;
    lane *l = &s->lanes[command->stream];
    DH_TRY(start_lane(ctx, l, (dh_stream)command->stream));
    DH_TRY(make_room(ctx, l, command->call));
    if (!dh_vec_push(&l->queue, command->id)) return dh_no_memory(ctx);
    s->entries[command->id].command = *command;
    for (uint32_t k = 0; k < command->n_parts; k++)
        s->events[command->event0 + k].stream = command->stream;
    return DH_OK;
}
