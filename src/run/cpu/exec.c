/* Executing a program: one thread a stream, in order, waiting for named instructions.
 *
 * The calling thread is the compute stream. Each communication stream that the
 * program uses has a worker that sleeps between steps and inside its calls, so that
 * communication takes no time of the computing core. "Instruction i of stream s is
 * complete" is one counter per stream: an instruction's waits compare counters. */
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
    uint32_t *queue; /* instruction ids */
    uint32_t n;
    _Atomic uint32_t done; /* of this step */
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
    prepared **ops;     /* [graph][op] */
    dh_span *spans;     /* by instruction */
    uint32_t *position; /* by instruction: index in its stream plus one */
    stream streams[DH_N_STREAM];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic int waiters; /* threads that sleep for a counter */
    _Atomic bool failed; /* some stream of this step failed: all stop */
    int64_t generation;  /* steps begun */
    int running;         /* workers still in the step */
    bool leaving;        /* workers end */
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
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    for (int s = 0; s < DH_N_STREAM; s++)
        if (e->streams[s].started) pthread_join(e->streams[s].thread, NULL);
    pthread_cond_destroy(&e->changed);
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
    e->spans = calloc(p->instrs.n + 1, sizeof *e->spans);
    e->position = calloc(p->instrs.n + 1, sizeof *e->position);
    e->ops = calloc(p->graphs.n + 1, sizeof *e->ops);
    bool ok = e->spans && e->position && e->ops;
    for (size_t g = 0; ok && g < p->graphs.n; g++)
        ok = (e->ops[g] = calloc(p->graphs.at[g]->ops.n + 1, sizeof **e->ops)) != NULL;
    for (int s = 0; ok && s < DH_N_STREAM; s++) {
        e->streams[s].exec = e;
        ok = (e->streams[s].queue = calloc(p->instrs.n + 1, sizeof(uint32_t))) != NULL;
    }
    if (!ok) return no_memory(ctx);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        stream *s = &e->streams[instr->stream];
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
        bool local = stream_of[kind] == DH_STREAM_LOCAL;
        dh_comm_group_spec spec = {.name = dh_group_name((dh_group_kind)kind),
                                   .members = members,
                                   .n = n,
                                   .stream = stream_of[kind],
                                   .wire = local ? DH_WIRE_LOCAL : DH_WIRE_CROSS};
        dh_status st = dh_comm_group_create(ctx, e->comm, &spec, &e->groups[kind]);
        free(members);
        DH_TRY(st);
    }
    return DH_OK;
}

static dh_status start_workers(dh_ctx *ctx, dh_exec *e)
{
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
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

/* ---- order between streams --------------------------------------------------------------------
 */

static void wake_all(dh_exec *e)
{
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void complete(dh_exec *e, stream *s)
{
    atomic_fetch_add(&s->done, 1);
    /* A waiter announces itself before it looks at the counter again, so either it
     * sees the new count or we see the waiter. */
    if (atomic_load(&e->waiters) > 0) wake_all(e);
}

/* False when the step failed elsewhere meanwhile. */
static bool wait_for(dh_exec *e, uint32_t instr)
{
    stream *s = &e->streams[e->program->instrs.at[instr].stream];
    const uint32_t position = e->position[instr];
    if (atomic_load(&s->done) >= position) return true;
    pthread_mutex_lock(&e->lock);
    atomic_fetch_add(&e->waiters, 1);
    while (atomic_load(&s->done) < position && !atomic_load(&e->failed))
        pthread_cond_wait(&e->changed, &e->lock);
    atomic_fetch_sub(&e->waiters, 1);
    pthread_mutex_unlock(&e->lock);
    return atomic_load(&s->done) >= position;
}

/* ---- instructions
 * ---------------------------------------------------------------------------------- */

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

static dh_status run_instr(dh_ctx *ctx, stream *s, uint32_t id)
{
    dh_exec *e = s->exec;
    const dh_program *p = e->program;
    const dh_instr *instr = &p->instrs.at[id];
    for (uint32_t w = 0; w < instr->n_waits; w++)
        if (!wait_for(e, p->waits.at[instr->wait0 + w]))
            return dh_fail(ctx, DH_EINTERRUPTED, "another stream of this rank failed");
    if (e->step->hook) DH_TRY(e->step->hook(ctx, e->step->hook_user));
    dh_cpu_call call;
    bind_call(s, instr, &call);
    e->spans[id].start_ns = dh_now_ns();
    dh_status st = communicates(call.op)
                       ? dh_cpu_communicate(ctx, e->groups[call.op->group], call.graph, call.op,
                                            &p->blocks.at[instr->block], call.in, call.out)
                       : dh_cpu_kernel_of(call.op->type)->run(ctx, &call);
    e->spans[id].end_ns = dh_now_ns();
    if (st == DH_OK && e->step->check_finite) return check_outputs(ctx, e, id, &call);
    char text[256];
    if (st != DH_OK) dh_ctx_while(ctx, "executing %s", dh_instr_describe(p, id, text, sizeof text));
    return st;
}

static dh_status run_stream(dh_ctx *ctx, stream *s)
{
    dh_exec *e = s->exec;
    dh_status st = DH_OK;
    for (uint32_t i = 0; st == DH_OK && i < s->n; i++) {
        st = atomic_load(&e->failed)
                 ? dh_fail(ctx, DH_EINTERRUPTED, "another stream of this rank failed")
                 : run_instr(ctx, s, s->queue[i]);
        if (st == DH_OK) complete(e, s);
    }
    if (st != DH_OK && !atomic_exchange(&e->failed, true)) {
        /* The first failure of this rank: tell the other ranks, then wake our streams. */
        if (e->comm && st != DH_ECOMM) dh_comm_abort(e->comm, ctx->message);
        wake_all(e);
    }
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
    for (int64_t seen = 0;;) {
        while (!e->leaving && e->generation == seen) pthread_cond_wait(&e->changed, &e->lock);
        if (e->leaving) break;
        seen = e->generation;
        pthread_mutex_unlock(&e->lock);
        dh_ctx_reset(&s->ctx);
        run_stream(&s->ctx, s);
        pthread_mutex_lock(&e->lock);
        e->running--;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- a step
 * ------------------------------------------------------------------------------------------- */

static void begin(dh_exec *e, const dh_step *step)
{
    pthread_mutex_lock(&e->lock);
    e->step = step;
    atomic_store(&e->failed, false);
    e->running = 0;
    for (int s = 0; s < DH_N_STREAM; s++) {
        atomic_store(&e->streams[s].done, 0);
        e->running += e->streams[s].started;
    }
    e->generation++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void wait_for_workers(dh_exec *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->running > 0) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
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
    dh_status st = run_stream(ctx, &exec->streams[DH_STREAM_COMPUTE]);
    wait_for_workers(exec);
    for (int s = 0; s < DH_N_STREAM; s++)
        exec->slab->peak = DH_MAX(exec->slab->peak, exec->streams[s].peak);
    return first_cause(ctx, exec, st);
}

const dh_span *dh_cpu_exec_spans(const dh_exec *exec)
{
    return exec->spans;
}
