/* Executing a program: one thread a stream, in order, waiting for named instructions.
 *
 * The calling thread is the compute stream. Each communication stream that the
 * program uses has a worker that sleeps between steps and inside its calls, so that
 * communication takes no time of the computing core. "Instruction i of stream s is
 * complete" is one counter per stream, which counts parts of outputs as well where an operator
 * has several: an instruction's waits compare counters.
 *
 * Where the compute stream has to wait for a communication that nobody has begun, its
 * thread makes the call itself, in the stream's order: waking the worker, to be woken by
 * it, would cost more than a small call. So one thread at a time runs a stream, its own
 * or the calling one, and a thread is woken only for what it waits for. A call of which it
 * waits for a part only is left to the worker, since there is something to compute beside it. */
#include "run/cpu/exec.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* Prepared state of an operator: one for overwriting, one for accumulating. */
typedef struct prepared {
    void *state[2];
    bool made[2];
} prepared;

typedef struct stream {
    dh_exec *exec;
    uint32_t *queue; /* instruction ids, each as often as it has parts */
    uint32_t n;
    _Atomic uint32_t done; /* of the queue, in this step */
    /* By the stream whose thread sleeps until done has come so far; 0: it does not. */
    _Atomic uint32_t awaited[DH_N_STREAM];
    pthread_cond_t wake; /* of its own thread */
    bool taken;          /* somebody runs one of its instructions */
    pthread_t thread;
    bool started;  /* has a worker */
    dh_ctx ctx;    /* of the worker */
    uint64_t peak; /* end of the highest byte its instructions were given */
} stream;

struct dh_exec {
    const dh_program *program;
    dh_slab *slab;
    dh_comm *comm;
    dh_comm_group *groups[DH_N_GROUPS];
    prepared **ops; /* [graph][op] */
    dh_span *spans;
    uint32_t *position; /* by instruction: how much of its stream's queue is done when it is */
    stream streams[DH_N_STREAM];

    pthread_mutex_t lock; /* of taken and leaving, and around every sleep */
    _Atomic bool failed;  /* some stream of this step failed: all stop */
    bool running;         /* a step is under way */
    bool leaving;         /* workers end */
    const dh_step *step;
    bool sync_made;
};

/* ---- making a program ready --------------------------------------------------------------- */

static void *worker(void *arg);

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory preparing a program");
}

static void end_workers(dh_exec *e)
{
    if (!e->sync_made) return;
    pthread_mutex_lock(&e->lock);
    e->leaving = true;
    for (int s = 0; s < DH_N_STREAM; s++) pthread_cond_signal(&e->streams[s].wake);
    pthread_mutex_unlock(&e->lock);
    for (int s = 0; s < DH_N_STREAM; s++)
        if (e->streams[s].started) pthread_join(e->streams[s].thread, NULL);
    for (int s = 0; s < DH_N_STREAM; s++) pthread_cond_destroy(&e->streams[s].wake);
    pthread_mutex_destroy(&e->lock);
}

void dh_cpu_exec_destroy(dh_exec *exec)
{
    if (!exec) return;
    const dh_program *p = exec->program;
    end_workers(exec);
    for (size_t g = 0; exec->ops && g < p->graphs.n; g++) {
        for (size_t i = 0; exec->ops[g] && i < p->graphs.at[g]->ops.n; i++) {
            const dh_cpu_kernel *kernel = dh_cpu_kernel_of(p->graphs.at[g]->ops.at[i].type);
            for (int k = 0; k < 2; k++)
                if (exec->ops[g][i].made[k] && kernel->release)
                    kernel->release(exec->ops[g][i].state[k]);
        }
        free(exec->ops[g]);
    }
    for (int s = 0; s < DH_N_STREAM; s++) free(exec->streams[s].queue);
    free(exec->ops);
    free(exec->spans);
    free(exec->position);
    free(exec);
}

static dh_status prepare_kernel(dh_ctx *ctx, dh_exec *e, const dh_instr *instr)
{
    const dh_program *p = e->program;
    const dh_op *op = dh_instr_op(p, instr);
    const dh_cpu_kernel *kernel = dh_cpu_kernel_of(op->type);
    if (!kernel)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the cpu backend has no kernel for operator %s",
                       dh_op_info_of(op->type)->name);
    prepared *made = &e->ops[p->blocks.at[instr->block].graph][instr->op];
    int k = instr->accumulate != 0;
    if (!kernel->prepare || made->made[k]) return DH_OK;
    DH_TRY(kernel->prepare(ctx, dh_instr_graph(p, instr), op, instr->accumulate, &made->state[k]));
    made->made[k] = true;
    return DH_OK;
}

static bool communicates(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

static dh_status prepare_instrs(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    e->spans = calloc(dh_program_n_spans(p) + 1, sizeof *e->spans);
    e->position = calloc(p->instrs.n + 1, sizeof *e->position);
    e->ops = calloc(p->graphs.n + 1, sizeof *e->ops);
    bool ok = e->spans && e->position && e->ops;
    for (size_t g = 0; ok && g < p->graphs.n; g++)
        ok = (e->ops[g] = calloc(p->graphs.at[g]->ops.n + 1, sizeof **e->ops)) != NULL;
    for (int s = 0; ok && s < DH_N_STREAM; s++) {
        e->streams[s].exec = e;
        ok = (e->streams[s].queue = calloc(dh_program_n_spans(p) + 1, sizeof(uint32_t))) != NULL;
    }
    if (!ok) return no_memory(ctx);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        stream *s = &e->streams[instr->stream];
        for (uint32_t k = 0; k < dh_instr_n_parts(p, i); k++)
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): every stream has a queue by now
            s->queue[s->n++] = i;
        e->position[i] = s->n;
        if (!communicates(dh_instr_op(p, instr))) DH_TRY(prepare_kernel(ctx, e, instr));
    }
    return DH_OK;
}

/* Every rank creates the groups it uses in the order of their kinds, which all
 * members share. */
static dh_status create_groups(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    uint8_t stream_of[DH_N_GROUPS];
    memset(stream_of, 0xff, sizeof stream_of);
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (communicates(op)) stream_of[op->group] = p->instrs.at[i].stream;
    }
    for (int kind = 0; kind < DH_N_GROUPS; kind++) {
        if (stream_of[kind] == 0xff) continue;
        if (!e->comm)
            return dh_fail(ctx, DH_EINTERNAL,
                           "the program communicates in group %s, but there is "
                           "no communicator",
                           dh_group_name((dh_group_kind)kind));
        int n = (int)dh_mesh_group_size(&p->mesh, (dh_group_kind)kind);
        int *members = malloc((size_t)n * sizeof *members);
        if (!members) return no_memory(ctx);
        for (int i = 0; i < n; i++)
            members[i] = (int)dh_mesh_group_member(&p->mesh, (dh_group_kind)kind, p->rank, i);
        dh_comm_group_spec spec = {.name = dh_group_name((dh_group_kind)kind),
                                   .members = members,
                                   .n = n,
                                   .stream = stream_of[kind],
                                   .wire = dh_stream_engine(stream_of[kind])};
        dh_status st = dh_comm_group_create(ctx, e->comm, &spec, &e->groups[kind]);
        free(members);
        DH_TRY(st);
    }
    return DH_OK;
}

static dh_status start_workers(dh_ctx *ctx, dh_exec *e)
{
    pthread_mutex_init(&e->lock, NULL);
    for (int s = 0; s < DH_N_STREAM; s++) pthread_cond_init(&e->streams[s].wake, NULL);
    e->sync_made = true;
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (s == DH_STREAM_COMPUTE || e->streams[s].n == 0) continue;
        if (pthread_create(&e->streams[s].thread, NULL, worker, &e->streams[s]) != 0)
            return dh_fail(ctx, DH_EINTERNAL, "cannot start the thread of the %s stream",
                           dh_stream_name((dh_stream)s));
        e->streams[s].started = true;
    }
    return DH_OK;
}

dh_status dh_cpu_exec_create(dh_ctx *ctx, const dh_program *program, dh_slab *slab, dh_comm *comm,
                             dh_exec **exec)
{
    if (slab->n_bytes < program->slab_bytes)
        return dh_fail(ctx, DH_EINTERNAL, "the program needs %llu bytes, the slab has %llu",
                       (unsigned long long)program->slab_bytes, (unsigned long long)slab->n_bytes);
    dh_exec *e = calloc(1, sizeof *e);
    if (!e) return no_memory(ctx);
    e->program = program;
    e->slab = slab;
    e->comm = comm;
    dh_status st = prepare_instrs(ctx, e);
    if (st == DH_OK) st = create_groups(ctx, e);
    if (st == DH_OK) st = start_workers(ctx, e);
    if (st != DH_OK) {
        dh_cpu_exec_destroy(e);
        return st;
    }
    *exec = e;
    return DH_OK;
}

/* ---- order between streams ------------------------------------------------------------------ */

/* The lock orders this behind a sleeper's last look; signalled after it, since a thread that wakes
 * on this core would only meet the lock, and sleep until this one is preempted. */
static void wake(dh_exec *e, int s)
{
    pthread_mutex_lock(&e->lock);
    pthread_mutex_unlock(&e->lock);
    pthread_cond_signal(&e->streams[s].wake);
}

/* A stream, and how much of its queue must be done; none: on NULL. */
typedef struct point {
    stream *on;
    uint32_t done;
} point;

static point point_of(dh_exec *e, dh_wait wait)
{
    const dh_program *p = e->program;
    return (point){&e->streams[p->instrs.at[wait.instr].stream],
                   e->position[wait.instr] - dh_wait_parts_left(p, wait)};
}

static bool is_passed(point p)
{
    return atomic_load(&p.on->done) >= p.done;
}

/* The first thing that the stream's next instruction waits for, none when it may run. */
static point blocker_of(dh_exec *e, const stream *s)
{
    const dh_program *p = e->program;
    const dh_instr *next = &p->instrs.at[s->queue[atomic_load(&s->done)]];
    for (uint32_t w = 0; w < next->n_waits; w++) {
        const point until = point_of(e, p->waits.at[next->wait0 + w]);
        if (!is_passed(until)) return until;
    }
    return (point){NULL, 0};
}

static bool has_next(const stream *s)
{
    return atomic_load(&s->done) < s->n;
}

static int index_of(const dh_exec *e, const stream *s)
{
    return (int)(s - e->streams);
}

/* Whoever passes the point wakes the thread of `sleeper`. False when it is passed
 * already: announced before the counter is looked at again, so that either this thread sees
 * the new count or the other one the announcement. */
static bool announce(const dh_exec *e, const stream *sleeper, point until)
{
    _Atomic uint32_t *awaited = &until.on->awaited[index_of(e, sleeper)];
    atomic_store(awaited, until.done);
    if (!is_passed(until)) return true;
    atomic_store(awaited, 0);
    return false;
}

/* Lets a stream's worker know when it may go on; true when it may at once. The lock is held. */
static bool arm(dh_exec *e, stream *s)
{
    point blocker;
    for (int t = 0; t < DH_N_STREAM; t++) atomic_store(&e->streams[t].awaited[index_of(e, s)], 0);
    do {
        blocker = blocker_of(e, s);
    } while (blocker.on && !announce(e, s, blocker));
    return !blocker.on;
}

/* Whether the thread that waits for a point makes the next call there itself: not one that goes on
 * behind the point. */
static bool makes_call(const dh_exec *e, point until)
{
    return e->position[until.on->queue[atomic_load(&until.on->done)]] <= until.done;
}

/* The stream that the calling thread is about to run because it has nothing else to do: one
 * alone, for the others must go on meanwhile. NULL: none. */
static const stream *next_helped(dh_exec *e)
{
    const stream *compute = &e->streams[DH_STREAM_COMPUTE];
    if (has_next(compute)) {
        const point blocker = blocker_of(e, compute);
        return blocker.on && makes_call(e, blocker) ? blocker.on : NULL;
    }
    for (int s = 0; s < DH_N_STREAM; s++)
        if (has_next(&e->streams[s])) return &e->streams[s];
    return NULL;
}

/* So much of a stream's queue is done. */
static void pass(dh_exec *e, stream *s, uint32_t done)
{
    atomic_store(&s->done, done);
    for (int t = 0; t < DH_N_STREAM; t++) {
        const uint32_t awaited = atomic_load(&s->awaited[t]);
        if (awaited == 0 || done < awaited) continue;
        if (index_of(e, s) != DH_STREAM_COMPUTE || next_helped(e) != &e->streams[t]) wake(e, t);
    }
}

/* ---- parts of outputs ------------------------------------------------------------------------ */

/* An instruction under way that has parts. */
typedef struct parts_told {
    dh_exec *exec;
    stream *stream;
    uint32_t instr, n; /* parts told of so far */
} parts_told;

/* Where outputs are checked, nobody reads one before it is. */
static void tell_part(void *user, uint32_t part)
{
    parts_told *t = user;
    dh_exec *e = t->exec;
    if (e->step->check_finite) return;
    const uint32_t n_parts = dh_instr_n_parts(e->program, t->instr);
    e->spans[dh_program_part_span(e->program, t->instr, part)].end_ns = dh_now_ns();
    t->n = part + 1;
    pass(e, t->stream, e->position[t->instr] - (n_parts - t->n));
}

/* Once the instruction is done: parts not told of were there at its end. */
static void set_part_spans(const parts_told *t)
{
    const dh_program *p = t->exec->program;
    const uint32_t n_parts = dh_instr_n_parts(p, t->instr);
    const dh_span *whole = &t->exec->spans[t->instr];
    int64_t before = whole->met_ns;
    for (uint32_t k = 0; k < n_parts && n_parts > 1; k++) {
        dh_span *span = &t->exec->spans[dh_program_part_span(p, t->instr, k)];
        if (k >= t->n) span->end_ns = whole->end_ns;
        span->end_ns = DH_MAX(span->end_ns, before);
        span->start_ns = span->met_ns = before;
        before = span->end_ns;
    }
}

/* ---- instructions --------------------------------------------------------------------------- */

static void *operand_address(stream *s, const dh_operand *o)
{
    if (o->buffer == DH_NONE) return NULL;
    uint64_t at = s->exec->program->buffers.at[o->buffer].offset + o->byte0;
    s->peak = DH_MAX(s->peak, at + o->n_bytes);
    return s->exec->slab->at + at;
}

static void bind_call(stream *s, const dh_instr *instr, dh_cpu_call *call)
{
    dh_exec *e = s->exec;
    const dh_program *p = e->program;
    const dh_op *op = dh_instr_op(p, instr);
    const dh_op_info *info = dh_op_info_of(op->type);
    const uint32_t graph = p->blocks.at[instr->block].graph;
    *call = (dh_cpu_call){
        .graph = p->graphs.at[graph],
        .op = op,
        .layer = p->blocks.at[instr->block].layer,
        .mb = instr->mb,
        .accumulate = instr->accumulate,
        .state = e->ops[graph][instr->op].state[instr->accumulate != 0],
        .step = e->step,
    };
    for (int k = 0; k < info->n_in; k++)
        call->in[k] = operand_address(s, dh_instr_operand(p, instr, k));
    for (int k = 0; k < info->n_out; k++)
        call->out[k] = operand_address(s, dh_instr_operand(p, instr, info->n_in + k));
    if (instr->work == DH_NONE) return;
    dh_operand work = {.buffer = instr->work, .n_bytes = p->buffers.at[instr->work].n_bytes};
    call->work = operand_address(s, &work);
}

static dh_status check_outputs(dh_ctx *ctx, dh_exec *e, uint32_t id, const dh_cpu_call *call)
{
    const dh_op_info *info = dh_op_info_of(call->op->type);
    for (int k = 0; k < info->n_out; k++) {
        if (!call->out[k]) continue;
        const dh_tensor *t = &call->graph->tensors.at[call->op->out[k]];
        if (t->dtype != DH_F32 && t->dtype != DH_BF16) continue;
        int64_t at = dh_k_first_nonfinite(t->dtype, dh_tensor_elements(t), call->out[k]);
        if (at < 0) continue;
        char text[256];
        return dh_fail(ctx, DH_EDIVERGED, "%s made a non-finite value: output %s, element %lld",
                       dh_instr_describe(e->program, id, text, sizeof text), info->out[k].name,
                       (long long)at);
    }
    return DH_OK;
}

/* Of the group's last call, this one. */
static int64_t met_ns(const dh_comm_group *group, const dh_span *span)
{
    const int64_t arrived = dh_comm_group_times(group).arrived_ns;
    return DH_MIN(DH_MAX(arrived, span->start_ns), span->end_ns);
}

static dh_status run_instr(dh_ctx *ctx, stream *s, uint32_t id)
{
    dh_exec *e = s->exec;
    const dh_program *p = e->program;
    const dh_instr *instr = &p->instrs.at[id];
    if (e->step->hook) DH_TRY(e->step->hook(ctx, e->step->hook_user));
    dh_cpu_call call;
    bind_call(s, instr, &call);
    parts_told told = {.exec = e, .stream = s, .instr = id};
    call.progress = (dh_part_hook){dh_op_n_parts(call.op), tell_part, &told};
    dh_span *span = &e->spans[id];
    const bool talks = communicates(call.op);
    span->start_ns = dh_now_ns();
    dh_status st = talks ? dh_cpu_communicate(ctx, e->groups[call.op->group],
                                              &p->blocks.at[instr->block], &call)
                         : dh_cpu_kernel_of(call.op->type)->run(ctx, &call);
    span->end_ns = dh_now_ns();
    span->met_ns = talks ? met_ns(e->groups[call.op->group], span) : span->start_ns;
    set_part_spans(&told);
    if (st == DH_OK && e->step->check_finite) return check_outputs(ctx, e, id, &call);
    char text[256];
    if (st != DH_OK) dh_ctx_while(ctx, "executing %s", dh_instr_describe(p, id, text, sizeof text));
    return st;
}

/* The next instruction of a stream, which may run and which this thread has taken. */
static dh_status run_next(dh_ctx *ctx, stream *s)
{
    dh_exec *e = s->exec;
    if (e->comm) dh_comm_enter(e->comm, index_of(e, s));
    const uint32_t id = s->queue[atomic_load(&s->done)];
    dh_status st = run_instr(ctx, s, id);
    if (e->comm) dh_comm_leave(e->comm, index_of(e, s));
    if (st == DH_OK)
        pass(e, s, e->position[id]);
    else if (!atomic_exchange(&e->failed, true) && e->comm && st != DH_ECOMM)
        dh_comm_abort(e->comm, ctx->message); /* the first failure of this rank */
    return st;
}

/* The same on a stream that is free; the lock is held, but not meanwhile. */
static dh_status take_and_run(dh_ctx *ctx, stream *s)
{
    dh_exec *e = s->exec;
    s->taken = true;
    pthread_mutex_unlock(&e->lock);
    dh_status st = run_next(ctx, s);
    pthread_mutex_lock(&e->lock);
    s->taken = false;
    if (atomic_load(&e->failed) || !has_next(s))
        for (int t = 0; t < DH_N_STREAM; t++) pthread_cond_signal(&e->streams[t].wake);
    return st;
}

/* A transfer's thread works for microseconds and others wait for it: with a short slice the
 * scheduler (Linux 6.12 and later) lets it run as soon as it wakes, beside threads that
 * compute. Elsewhere the call changes nothing or fails, which does not matter. */
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
    dh_exec *e = s->exec;
    ask_for_low_latency();
    dh_log_set_rank(e->program->mesh.ranks > 1 ? (int)e->program->rank : -1);
    pthread_mutex_lock(&e->lock);
    while (!e->leaving) {
        if (e->running && !s->taken && !atomic_load(&e->failed) && has_next(s) && arm(e, s))
            take_and_run(&s->ctx, s);
        else
            pthread_cond_wait(&s->wake, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* The calling thread until a point of another stream is passed: it runs what it can of
 * that stream itself, and leaves it to its worker. */
static dh_status help(dh_ctx *ctx, dh_exec *e, point until)
{
    stream *compute = &e->streams[DH_STREAM_COMPUTE], *s = until.on;
    dh_status st = DH_OK;
    pthread_mutex_lock(&e->lock);
    while (st == DH_OK && !is_passed(until) && !atomic_load(&e->failed)) {
        const bool ready = !s->taken && arm(e, s), own = makes_call(e, until);
        if (ready && own)
            st = take_and_run(ctx, s);
        else if (ready)
            pthread_cond_signal(&s->wake);
        if (!(ready && own) && announce(e, compute, until))
            pthread_cond_wait(&compute->wake, &e->lock);
        atomic_store(&s->awaited[DH_STREAM_COMPUTE], 0);
    }
    if (!s->taken && has_next(s) && arm(e, s)) pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&e->lock);
    if (st == DH_OK && !is_passed(until))
        return dh_fail(ctx, DH_EINTERRUPTED, "another stream of this rank failed");
    return st;
}

static dh_status run_compute(dh_ctx *ctx, dh_exec *e)
{
    stream *s = &e->streams[DH_STREAM_COMPUTE];
    while (has_next(s)) {
        const point blocker = blocker_of(e, s);
        if (atomic_load(&e->failed))
            return dh_fail(ctx, DH_EINTERRUPTED, "another stream of this rank failed");
        if (blocker.on)
            DH_TRY(help(ctx, e, blocker));
        else
            DH_TRY(run_next(ctx, s));
    }
    return DH_OK;
}

/* ---- a step --------------------------------------------------------------------------------- */

static void begin(dh_exec *e, const dh_step *step)
{
    pthread_mutex_lock(&e->lock);
    e->step = step;
    e->running = true;
    atomic_store(&e->failed, false);
    for (int s = 0; s < DH_N_STREAM; s++) {
        atomic_store(&e->streams[s].done, 0);
        for (int t = 0; t < DH_N_STREAM; t++) atomic_store(&e->streams[s].awaited[t], 0);
        dh_ctx_reset(&e->streams[s].ctx);
    }
    for (int s = 0; s < DH_N_STREAM; s++)
        if (e->streams[s].started && arm(e, &e->streams[s]))
            pthread_cond_signal(&e->streams[s].wake);
    pthread_mutex_unlock(&e->lock);
}

/* What the other streams have left to do, or after a failure are still doing. */
static dh_status finish(dh_ctx *ctx, dh_exec *e, dh_status st)
{
    for (int s = 0; st == DH_OK && s < DH_N_STREAM; s++)
        if (e->streams[s].started) st = help(ctx, e, (point){&e->streams[s], e->streams[s].n});
    pthread_mutex_lock(&e->lock);
    for (int t = 0; t < DH_N_STREAM; t++) pthread_cond_signal(&e->streams[t].wake);
    for (int s = 0; s < DH_N_STREAM; s++)
        while (e->streams[s].taken)
            pthread_cond_wait(&e->streams[DH_STREAM_COMPUTE].wake, &e->lock);
    e->running = false;
    pthread_mutex_unlock(&e->lock);
    return st;
}

/* The failure that caused the others: streams that were only stopped by it come last. */
static dh_status first_cause(dh_ctx *ctx, dh_exec *e, dh_status st)
{
    for (int s = 0; s < DH_N_STREAM; s++) {
        const dh_ctx *other = &e->streams[s].ctx;
        if (!e->streams[s].started || other->status == DH_OK) continue;
        if (st == DH_OK || (st == DH_EINTERRUPTED && other->status != DH_EINTERRUPTED)) {
            dh_ctx_reset(ctx);
            st = dh_fail(ctx, other->status, "%s", other->message);
        }
    }
    return st;
}

dh_status dh_cpu_exec_run(dh_ctx *ctx, dh_exec *exec, const dh_step *step)
{
    begin(exec, step);
    dh_status st = finish(ctx, exec, run_compute(ctx, exec));
    for (int s = 0; s < DH_N_STREAM; s++)
        exec->slab->peak = DH_MAX(exec->slab->peak, exec->streams[s].peak);
    return first_cause(ctx, exec, st);
}

const dh_span *dh_cpu_exec_spans(const dh_exec *exec)
{
    return exec->spans;
}
