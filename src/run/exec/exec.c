/* A program made ready: kernels, groups, and one command an instruction; then steps of it.
 *
 * Events are numbered like spans: an instruction's own number where it is complete as a whole, else
 * one for each of its parts. Commands are issued in an order in which whatever is waited for comes
 * first, as streams of devices ask for. */
#include "run/exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "program/replay.h"
#include "run/exec/internal.h"

/* ---- kernels -------------------------------------------------------------------------------- */

static dh_status prepare_kernel(dh_ctx *ctx, dh_exec *e, const dh_instr *instr)
{
    const dh_program *p = e->program;
    const dh_op *op = dh_instr_op(p, instr);
    const char *variant = dh_op_variant(dh_instr_graph(p, instr), op);
    if (variant && !e->device->knows_variants)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the %s device has no kernel for operator %s with %s",
                       e->device->name, dh_op_info_of(op->type)->name, variant);
    if (!e->device->has_kernel(op->type))
        return dh_fail(ctx, DH_EUNSUPPORTED, "the %s device has no kernel for operator %s",
                       e->device->name, dh_op_info_of(op->type)->name);
    dh_prepared *made = &e->ops[p->blocks.at[instr->block].graph][instr->op];
    const int k = instr->accumulate != 0;
    if (made->made[k]) return DH_OK;
    DH_TRY(e->device->kernel_prepare(ctx, dh_instr_graph(p, instr), op, instr->accumulate,
                                     &made->kernel[k]));
    made->made[k] = true;
    return DH_OK;
}

static void release_kernels(dh_exec *e)
{
    const dh_program *p = e->program;
    for (size_t g = 0; e->ops && g < p->graphs.n; g++)
        for (size_t i = 0; e->ops[g] && i < p->graphs.at[g]->ops.n; i++)
            for (int k = 0; k < 2; k++)
                if (e->ops[g][i].made[k])
                    e->device->kernel_release(p->graphs.at[g]->ops.at[i].type,
                                              e->ops[g][i].kernel[k]);
}

/* ---- groups --------------------------------------------------------------------------------- */

static bool communicates(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

/* A stream's number in the communicator. A program beside another one has further numbers. */
static int comm_stream(const dh_exec *e, int stream)
{
    _Static_assert(2 * DH_N_STREAM <= 32, "streams of a rank that a communicator tells apart");
    return e->program->beside ? DH_N_STREAM + stream : stream;
}

static dh_status create_group(dh_ctx *ctx, dh_exec *e, dh_group_kind kind, int stream)
{
    const dh_mesh *mesh = &e->program->mesh;
    if (!e->comm)
        return dh_fail(ctx, DH_EINTERNAL,
                       "the program communicates in group %s, but there is no communicator",
                       dh_group_name(kind));
    const int n = (int)dh_mesh_group_size(mesh, kind);
    int *members = malloc((size_t)n * sizeof *members);
    if (!members) return dh_no_memory(ctx);
    for (int i = 0; i < n; i++)
        members[i] = (int)dh_mesh_group_member(mesh, kind, e->program->rank, i);
    const dh_comm_group_spec spec = {.name = dh_group_name(kind),
                                     .members = members,
                                     .n = n,
                                     .stream = comm_stream(e, stream),
                                     .wire = dh_stream_engine((dh_stream)stream)};
    const dh_status st = dh_comm_group_create(ctx, e->comm, &spec, &e->groups[kind]);
    free(members);
    return st;
}

/* A link of the pipeline joins two ranks, and its group has all. So each rank of several stages
 * creates the groups of all links, its own and those of others. */
static void add_links_of_others(const dh_program *p, int stream_of[DH_N_GROUPS])
{
    bool any = false;
    for (int kind = 0; kind < DH_N_GROUPS; kind++)
        any |= dh_group_is_link((dh_group_kind)kind) && stream_of[kind] >= 0;
    for (int kind = 0; any && kind < DH_N_GROUPS; kind++)
        if (dh_group_is_link((dh_group_kind)kind) &&
            dh_mesh_has_link(&p->mesh, (dh_group_kind)kind))
            stream_of[kind] = (int)dh_stream_of_group((dh_group_kind)kind, &p->mesh, p->rank);
}

/* Every rank creates the groups it uses in the order of their kinds, which all
 * members share. */
static dh_status create_groups(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    int stream_of[DH_N_GROUPS];
    for (int kind = 0; kind < DH_N_GROUPS; kind++) stream_of[kind] = -1;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (communicates(op)) stream_of[op->group] = p->instrs.at[i].stream;
    }
    add_links_of_others(p, stream_of);
    for (int kind = 0; kind < DH_N_GROUPS; kind++)
        if (stream_of[kind] >= 0)
            DH_TRY(create_group(ctx, e, (dh_group_kind)kind, stream_of[kind]));
    return DH_OK;
}

/* ---- commands ------------------------------------------------------------------------------- */

static uint32_t event0_of(const dh_program *p, uint32_t instr)
{
    if (dh_instr_n_parts(p, instr) == 1) return instr;
    return (uint32_t)dh_program_part_span(p, instr, 0);
}

static uint32_t event_of(const dh_program *p, dh_wait wait)
{
    return event0_of(p, wait.instr) + dh_instr_n_parts(p, wait.instr) - 1 -
           dh_wait_parts_left(p, wait);
}

static void *operand_address(dh_exec *e, const dh_operand *o)
{
    if (o->buffer == DH_NONE) return NULL;
    const uint64_t at = e->program->buffers.at[o->buffer].offset + o->byte0;
    e->peak = DH_MAX(e->peak, at + o->n_bytes);
    return e->slab->at + at;
}

static void bind_call(dh_exec *e, const dh_instr *instr, dh_call *call)
{
    const dh_program *p = e->program;
    const dh_op *op = dh_instr_op(p, instr);
    const dh_op_info *info = dh_op_info_of(op->type);
    const uint32_t graph = p->blocks.at[instr->block].graph;
    *call = (dh_call){
        .graph = p->graphs.at[graph],
        .op = op,
        .layer = p->blocks.at[instr->block].layer,
        .mb = instr->mb,
        .accumulate = instr->accumulate,
        .kernel = e->ops[graph][instr->op].kernel[instr->accumulate != 0],
        .scalars = (const dh_scalars *)(void *)e->values->at,
        .choices = call->choices,
    };
    for (int k = 0; k < info->n_in; k++)
        call->in[k] = operand_address(e, dh_instr_operand(p, instr, k));
    for (int k = 0; k < info->n_out; k++)
        call->out[k] = operand_address(e, dh_instr_operand(p, instr, info->n_in + k));
    if (instr->work == DH_NONE) return;
    const dh_operand work = {.buffer = instr->work, .n_bytes = p->buffers.at[instr->work].n_bytes};
    call->work = operand_address(e, &work);
}

/* Experts that an instruction puts rows in order by; 0: it does not. */
static int64_t n_ordered(const dh_program *p, const dh_instr *instr)
{
    const dh_op *op = dh_instr_op(p, instr);
    if (op->type != DH_OP_MOE_ORDER) return 0;
    return dh_instr_graph(p, instr)->tensors.at[op->out[1]].shape[0] - 1;
}

/* Scalars, and behind them the counts of all such instructions, one after another. */
enum {
    CHOICES_AT = (sizeof(dh_scalars) + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN
};

static dh_status make_values(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    uint64_t n = 0;
    for (size_t i = 0; i < p->instrs.n; i++) n += (uint64_t)n_ordered(p, &p->instrs.at[i]);
    DH_TRY(e->device->slab_create(ctx, CHOICES_AT + n * sizeof(int64_t), &e->values));
    if (n == 0) return DH_OK;
    int64_t *at = (int64_t *)(void *)(e->values->at + CHOICES_AT);
    for (size_t i = 0; i < p->instrs.n; i++) {
        const int64_t n_experts = n_ordered(p, &p->instrs.at[i]);
        e->calls[i].choices = n_experts ? at : NULL;
        at += n_experts;
    }
    e->n_choices = n;
    e->counts = DH_NEW_N(e->arena, int64_t, n);
    return e->counts ? DH_OK : dh_no_memory(ctx);
}

/* Whether it writes masters or moments. */
static bool updates(const dh_program *p, const dh_instr *instr)
{
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
    for (int k = 0; k < info->n_out; k++) {
        const dh_operand *out = dh_instr_operand(p, instr, info->n_in + k);
        if (out->buffer == DH_NONE) continue;
        const dh_buffer_kind kind = p->buffers.at[out->buffer].kind;
        if (kind == DH_BUF_MASTER || kind == DH_BUF_ADAM_M || kind == DH_BUF_ADAM_V) return true;
    }
    return false;
}

static dh_status issue(dh_ctx *ctx, dh_exec *e, uint32_t id)
{
    const dh_program *p = e->program;
    const dh_instr *instr = &p->instrs.at[id];
    const dh_op *op = dh_instr_op(p, instr);
    const bool loads = dh_op_info_of(op->type)->resource == DH_RES_HOST;
    dh_stream_command command = {.id = id,
                                 .stream = instr->stream,
                                 .waits = e->waits + instr->wait0,
                                 .n_waits = instr->n_waits,
                                 .event0 = event0_of(p, id),
                                 .n_parts = dh_instr_n_parts(p, id),
                                 .call = &e->calls[id],
                                 .updates = updates(p, instr)};
    e->n_updates += command.updates;
    if (!loads && !communicates(op)) DH_TRY(prepare_kernel(ctx, e, instr));
    bind_call(e, instr, command.call);
    if (loads) DH_TRY(dh_exec_add_load(ctx, e, &command));
    if (communicates(op))
        DH_TRY(
            (e->links[op->group] ? dh_exec_add_link_call : dh_exec_add_transfer)(ctx, e, &command));
    return e->device->issue(ctx, e->streams, &command);
}

/* Stream by stream as far as what has been issued lets it. */
static dh_status issue_in_order(dh_ctx *ctx, dh_exec *e, dh_replay *replay)
{
    bool moved;
    do {
        moved = false;
        for (int s = 0; s < DH_N_STREAM; s++)
            while (dh_replay_head(replay, s) != DH_NONE &&
                   dh_replay_blocker(replay, s) == DH_NONE) {
                DH_TRY(issue(ctx, e, dh_replay_head(replay, s)));
                dh_replay_step(replay, s);
                moved = true;
            }
    } while (moved);
    for (int s = 0; s < DH_N_STREAM; s++) {
        char text[256];
        const uint32_t head = dh_replay_head(replay, s);
        if (head != DH_NONE)
            return dh_fail(ctx, DH_EVERIFY, "%s waits for what only comes after it",
                           dh_instr_describe(e->program, head, text, sizeof text));
    }
    return DH_OK;
}

static dh_status issue_all(dh_ctx *ctx, dh_exec *e)
{
    dh_replay replay;
    dh_status st = dh_replay_init(ctx, &replay, e->program);
    if (st == DH_OK) st = issue_in_order(ctx, e, &replay);
    dh_replay_fini(&replay);
    return st;
}

/* ---- following the streams ------------------------------------------------------------------ */

static void set_working(void *user, uint32_t stream, bool works)
{
    const dh_exec *e = user;
    if (e->comm) (works ? dh_comm_enter : dh_comm_leave)(e->comm, comm_stream(e, (int)stream));
}

static dh_status before_instr(dh_ctx *ctx, void *user, uint32_t id)
{
    const dh_step *step = ((const dh_exec *)user)->step;
    return step->hook ? step->hook(ctx, step->hook_user) : DH_OK;
}

static void follow_update(void *user, bool done)
{
    dh_exec *e = user;
    if (!done && e->step->hold) e->step->hold(e->step->hold_user);
    atomic_fetch_add_explicit(done ? &e->n_updated : &e->n_updating, 1, memory_order_relaxed);
}

static dh_status check_outputs(dh_ctx *ctx, void *user, uint32_t id)
{
    const dh_exec *e = user;
    const dh_call *call = &e->calls[id];
    const dh_op_info *info = dh_op_info_of(call->op->type);
    if (!e->step->check_finite) return DH_OK;
    for (int k = 0; k < info->n_out; k++) {
        if (!call->out[k]) continue;
        const dh_tensor *t = &call->graph->tensors.at[call->op->out[k]];
        int64_t at;
        char text[256];
        if (t->dtype != DH_F32 && t->dtype != DH_BF16) continue;
        DH_TRY(e->device->first_nonfinite(ctx, e->streams, t->dtype, dh_tensor_elements(t),
                                          call->out[k], &at));
        if (at >= 0)
            return dh_fail(ctx, DH_EDIVERGED, "%s made a non-finite value: output %s, element %lld",
                           dh_instr_describe(e->program, id, text, sizeof text), info->out[k].name,
                           (long long)at);
    }
    return DH_OK;
}

static void explain(dh_ctx *ctx, void *user, uint32_t id)
{
    char text[256];
    const dh_exec *e = user;
    dh_ctx_while(ctx, "executing %s", dh_instr_describe(e->program, id, text, sizeof text));
}

/* The other ranks stop with this one's first failure. */
static void stop_ranks(void *user, dh_status status, const char *message)
{
    const dh_exec *e = user;
    if (e->comm && status != DH_ECOMM) dh_comm_abort(e->comm, message);
    dh_exec_abort_links(e);
}

/* ---- making a program ready ----------------------------------------------------------------- */

static dh_status create_streams(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    const dh_streams_spec spec = {
        .n_commands = (uint32_t)p->instrs.n,
        .n_events = (uint32_t)dh_program_n_spans(p),
        .log_rank = p->mesh.ranks > 1 ? (int)p->rank : -1,
        .watch = {.user = e,
                  .working = set_working,
                  .before = before_instr,
                  .after = check_outputs,
                  .update = follow_update,
                  .explain = explain,
                  .failed = stop_ranks,
                  .waiting = dh_exec_has_links(e) ? dh_exec_waiting : NULL}};
    return e->device->streams_create(ctx, e->slab, e->values, &spec, &e->streams);
}

static dh_status make_arrays(dh_ctx *ctx, dh_exec *e)
{
    const dh_program *p = e->program;
    e->spans = DH_NEW_N(e->arena, dh_span, dh_program_n_spans(p) + 1);
    e->calls = DH_NEW_N(e->arena, dh_call, p->instrs.n + 1);
    e->met_ns = DH_NEW_N(e->arena, int64_t, p->instrs.n + 1);
    e->waits = DH_NEW_N(e->arena, uint32_t, p->waits.n + 1);
    e->ops = DH_NEW_N(e->arena, dh_prepared *, p->graphs.n + 1);
    bool ok = e->spans && e->calls && e->met_ns && e->waits && e->ops;
    for (size_t g = 0; ok && g < p->graphs.n; g++)
        ok = (e->ops[g] = DH_NEW_N(e->arena, dh_prepared, p->graphs.at[g]->ops.n + 1)) != NULL;
    if (!ok) return dh_no_memory(ctx);
    for (size_t w = 0; w < p->waits.n; w++) e->waits[w] = event_of(p, p->waits.at[w]);
    return DH_OK;
}

static dh_status make_ready(dh_ctx *ctx, dh_exec *e)
{
    DH_TRY(make_arrays(ctx, e));
    DH_TRY(make_values(ctx, e));
    DH_TRY(create_groups(ctx, e));
    DH_TRY(dh_exec_create_links(ctx, e));
    DH_TRY(dh_exec_add_transit(ctx, e));
    DH_TRY(create_streams(ctx, e));
    return issue_all(ctx, e);
}

dh_status dh_exec_create(dh_ctx *ctx, const dh_device *device, const dh_program *program,
                         dh_slab *slab, dh_comm *comm, dh_exec **exec)
{
    if (slab->n_bytes < program->slab_bytes)
        return dh_fail(ctx, DH_EINTERNAL, "the program needs %llu bytes, the slab has %llu",
                       (unsigned long long)program->slab_bytes, (unsigned long long)slab->n_bytes);
    dh_exec *e = calloc(1, sizeof *e);
    if (!e) return dh_no_memory(ctx);
    e->device = device;
    e->program = program;
    e->slab = slab;
    e->comm = comm;
    e->arena = dh_arena_create();
    const dh_status st = e->arena ? make_ready(ctx, e) : dh_no_memory(ctx);
    if (st != DH_OK) {
        dh_exec_destroy(e);
        return st;
    }
    *exec = e;
    return DH_OK;
}

void *dh_exec_host_memory(dh_exec *e, size_t n_bytes)
{
    if (!e->device->host_alloc) return dh_arena_alloc(e->arena, n_bytes);
    void *at = e->device->host_alloc(n_bytes);
    if (at && !dh_vec_push(&e->pinned, at)) {
        e->device->host_free(at);
        return NULL;
    }
    return at;
}

void dh_exec_destroy(dh_exec *exec)
{
    if (!exec) return;
    exec->device->streams_destroy(exec->streams);
    dh_exec_destroy_links(exec);
    for (int kind = 0; kind < DH_N_GROUPS; kind++) dh_comm_group_destroy(exec->groups[kind]);
    for (size_t i = 0; i < exec->pinned.n; i++) exec->device->host_free(exec->pinned.at[i]);
    dh_vec_fini(&exec->pinned);
    release_kernels(exec);
    exec->device->slab_destroy(exec->values);
    dh_arena_destroy(exec->arena);
    free(exec);
}

/* ---- a step --------------------------------------------------------------------------------- */

/* Or, where that cannot be and need not, as it is from now on. */
static dh_status run_captured(dh_ctx *ctx, dh_exec *e)
{
    const dh_status st =
        e->device->run_captured
            ? e->device->run_captured(ctx, e->streams)
            : dh_fail(ctx, DH_EUNSUPPORTED, "device %s captures no steps", e->device->name);
    if (st != DH_EUNSUPPORTED || e->step->capture == DH_CAPTURE_ON) return st;
    dh_log(DH_LOG_INFO, "%s", ctx->message);
    dh_ctx_reset(ctx);
    e->not_captured = true;
    return e->device->run(ctx, e->streams, false);
}

static dh_status run_commands(dh_ctx *ctx, dh_exec *e)
{
    const dh_step *step = e->step;
    const bool single_steps = step->hook || step->check_finite;
    if (step->capture != DH_CAPTURE_OFF && !single_steps && !e->not_captured)
        return run_captured(ctx, e);
    return e->device->run(ctx, e->streams, single_steps);
}

/* Programs of the slab may run at the same time. */
static void raise_peak(dh_slab *slab, uint64_t peak)
{
    uint64_t before = __atomic_load_n(&slab->peak, __ATOMIC_RELAXED);
    while (before < peak && !__atomic_compare_exchange_n(&slab->peak, &before, peak, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

dh_status dh_exec_run(dh_ctx *ctx, dh_exec *exec, const dh_step *step)
{
    const dh_scalars scalars = {.step = step->step,
                                .seed = step->seed,
                                .lr = step->lr,
                                .beta1 = step->beta1,
                                .beta2 = step->beta2,
                                .eps = step->eps,
                                .weight_decay = step->weight_decay,
                                .grad_clip = step->grad_clip,
                                .router_bias_rate = step->router_bias_rate,
                                .loss_rows = step->loss_rows,
                                .even_experts = step->even_experts};
    exec->step = step;
    exec->spans_known = false;
    DH_TRY(exec->device->slab_write(ctx, exec->values, 0, &scalars, sizeof scalars));
    raise_peak(exec->slab, exec->peak);
    exec->n_updating = exec->n_updated = 0;
    exec->ran = false;
    DH_TRY(run_commands(ctx, exec));
    exec->ran = true;
    return DH_OK;
}

/* Of a run that failed it says so only where streams have told of every update. */
dh_updated dh_exec_updated(const dh_exec *exec)
{
    if (exec->ran) return DH_UPDATED_ALL;
    if (!exec->device->tells_updates) return DH_UPDATED_SOME;
    if (exec->n_updating == 0) return DH_UPDATED_NONE;
    return exec->n_updated == exec->n_updates ? DH_UPDATED_ALL : DH_UPDATED_SOME;
}

/* ---- times ---------------------------------------------------------------------------------- */

/* Each from the end of the one before. */
static void set_part_spans(dh_exec *e, uint32_t instr, uint32_t n_parts)
{
    int64_t before = e->spans[instr].met_ns;
    for (uint32_t k = 0; k < n_parts; k++) {
        const size_t at = dh_program_part_span(e->program, instr, k);
        const int64_t end = e->device->event_ns(e->streams, (uint32_t)at);
        e->spans[at] = (dh_span){before, before, DH_MAX(end, before)};
        before = e->spans[at].end_ns;
    }
}

const dh_span *dh_exec_spans(dh_exec *e)
{
    const dh_program *p = e->program;
    for (uint32_t i = 0; i < p->instrs.n && !e->spans_known; i++) {
        const uint32_t n_parts = dh_instr_n_parts(p, i);
        const int64_t start = e->device->began_ns(e->streams, i),
                      end = e->device->event_ns(e->streams, event0_of(p, i) + n_parts - 1);
        e->spans[i] = (dh_span){start, DH_MIN(DH_MAX(e->met_ns[i], start), end), end};
        if (n_parts > 1) set_part_spans(e, i, n_parts);
    }
    e->spans_known = true;
    return e->spans;
}

/* ---- choices of experts ---------------------------------------------------------------------- */

dh_status dh_exec_choices(dh_ctx *ctx, dh_exec *e, dh_take_choices take, void *user)
{
    const dh_program *p = e->program;
    const int64_t *counts = e->counts;
    if (e->n_choices == 0) return DH_OK;
    DH_TRY(e->device->slab_read(ctx, e->values, CHOICES_AT, e->counts,
                                e->n_choices * sizeof(int64_t)));
    for (size_t i = 0; i < p->instrs.n; i++) {
        const int64_t n = n_ordered(p, &p->instrs.at[i]);
        if (n > 0) take(user, e->calls[i].layer, e->calls[i].mb, counts, n);
        counts += n;
    }
    return DH_OK;
}
