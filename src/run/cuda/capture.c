/* All commands of a run as one CUDA graph: captured once, then launched step after step.
 *
 * One thread puts the commands on their streams in the order in which they were issued, each after
 * the commands it waits for. The streams fork from the compute stream and join it again. Values
 * that change between steps are on the device or in the pinned memory of a LOAD. The host fills
 * that before the launch, and the graph has the copies. Three kinds of commands have a time or
 * length that the host learns from the device. They cannot be captured, and are named: calls that
 * go through the host, rows of experts, and checks before others go on. */
#include "run/cuda/glue.h"
#include "run/cuda/hang.h"

/* ---- what cannot be captured -------------------------------------------------------------------
 */

/* NULL: it can. */
static const char *hindrance(const dh_stream_command *c)
{
    if (c->uncaptured) return c->uncaptured;
    if (c->host && c->n_fetches > 0) return "goes through memory of the host";
    if (c->n_fetches > 0) return "has lengths that the host looks at";
    if (c->host || c->enqueue) return NULL;
    return dh_cuda_kernel_of(c->call->op->type)->check ? "finds what the host looks at" : NULL;
}

static dh_status check_commands(dh_ctx *ctx, const cuda_streams *s)
{
    for (size_t i = 0; i < s->order.n; i++) {
        const dh_stream_command *c = &s->entries[s->order.at[i]].command;
        const char *why = hindrance(c);
        if (why)
            return dh_fail(
                ctx, DH_EUNSUPPORTED, "a step cannot be captured: operator %s of the %s stream %s",
                dh_op_info_of(c->call->op->type)->name, dh_stream_name((dh_stream)c->stream), why);
    }
    return DH_OK;
}

/* ---- capturing ---------------------------------------------------------------------------------
 */

static dh_status make_events(dh_ctx *ctx, cuda_streams *s)
{
    for (uint32_t i = 0; i < s->base.spec.n_events; i++)
        if (s->events[i].at && !s->events[i].captured)
            CUDA_TRY(cudaEventCreateWithFlags(&s->events[i].captured, cudaEventDisableTiming));
    for (int i = 0; i < DH_N_STREAM; i++)
        if (!s->ends[i]) CUDA_TRY(cudaEventCreateWithFlags(&s->ends[i], cudaEventDisableTiming));
    return DH_OK;
}

static dh_status fork_streams(dh_ctx *ctx, cuda_streams *s)
{
    cudaEvent_t from = s->ends[DH_STREAM_COMPUTE];
    CUDA_TRY(cudaEventRecord(from, s->lanes[DH_STREAM_COMPUTE].stream));
    for (int i = 0; i < DH_N_STREAM; i++)
        if (i != DH_STREAM_COMPUTE && s->lanes[i].started)
            CUDA_TRY(cudaStreamWaitEvent(s->lanes[i].stream, from, 0));
    return DH_OK;
}

static dh_status join_streams(dh_ctx *ctx, cuda_streams *s)
{
    for (int i = 0; i < DH_N_STREAM; i++) {
        if (i == DH_STREAM_COMPUTE || !s->lanes[i].started) continue;
        CUDA_TRY(cudaEventRecord(s->ends[i], s->lanes[i].stream));
        CUDA_TRY(cudaStreamWaitEvent(s->lanes[DH_STREAM_COMPUTE].stream, s->ends[i], 0));
    }
    return DH_OK;
}

static dh_status capture_command(dh_ctx *ctx, cuda_streams *s, entry *e)
{
    const dh_stream_command *c = &e->command;
    lane *l = &s->lanes[c->stream];
    for (uint32_t w = 0; w < c->n_waits; w++) {
        const event *behind = &s->events[c->waits[w]];
        if (behind->stream != c->stream)
            CUDA_TRY(cudaStreamWaitEvent(l->stream, behind->captured, 0));
    }
    const dh_status st = cuda_put(ctx, l, e);
    if (st != DH_OK) s->base.spec.watch.explain(ctx, s->base.spec.watch.user, c->id);
    return st;
}

static dh_status capture_commands(dh_ctx *ctx, cuda_streams *s)
{
    DH_TRY(fork_streams(ctx, s));
    for (size_t i = 0; i < s->order.n; i++)
        DH_TRY(capture_command(ctx, s, &s->entries[s->order.at[i]]));
    return join_streams(ctx, s);
}

/* Ended in any case. */
static dh_status capture_graph(dh_ctx *ctx, cuda_streams *s, cudaGraph_t *graph)
{
    cudaStream_t origin = s->lanes[DH_STREAM_COMPUTE].stream;
    CUDA_TRY(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    s->capturing = true;
    const dh_status st = capture_commands(ctx, s);
    s->capturing = false;
    const cudaError_t ended = cudaStreamEndCapture(origin, graph);
    if (st == DH_OK) return dh_cuda_check(ctx, ended, "cudaStreamEndCapture");
    (void)cudaGetLastError();
    if (ended == cudaSuccess) cudaGraphDestroy(*graph);
    return st;
}

static dh_status capture(dh_ctx *ctx, cuda_streams *s)
{
    cudaGraph_t graph;
    DH_TRY(check_commands(ctx, s));
    DH_TRY(make_events(ctx, s));
    DH_TRY(capture_graph(ctx, s, &graph));
    const cudaError_t made = cudaGraphInstantiate(&s->graph, graph, 0);
    cudaGraphDestroy(graph);
    return dh_cuda_check(ctx, made, "cudaGraphInstantiate");
}

void cuda_drop_capture(cuda_streams *s)
{
    if (s->graph) cudaGraphExecDestroy(s->graph);
    for (uint32_t i = 0; s->events && i < s->base.spec.n_events; i++)
        if (s->events[i].captured) cudaEventDestroy(s->events[i].captured);
    for (int i = 0; i < DH_N_STREAM; i++)
        if (s->ends[i]) cudaEventDestroy(s->ends[i]);
}

/* ---- launching ---------------------------------------------------------------------------------
 */

/* Fill the host memory that the graph copies to the device. */
static dh_status fill_batches(dh_ctx *ctx, const cuda_streams *s)
{
    const dh_watch *watch = &s->base.spec.watch;
    for (size_t i = 0; i < s->order.n; i++) {
        const dh_stream_command *c = &s->entries[s->order.at[i]].command;
        const dh_status st = c->host ? c->host(ctx, c->host_user, c->call) : DH_OK;
        if (st == DH_OK) continue;
        watch->explain(ctx, watch->user, c->id);
        return st;
    }
    return DH_OK;
}

static dh_status launch(dh_ctx *ctx, cuda_streams *s)
{
    const lane *l = &s->lanes[DH_STREAM_COMPUTE];
    DH_TRY(cuda_set_zero(ctx, s));
    DH_TRY(fill_batches(ctx, s));
    dh_status st = dh_cuda_check(ctx, cudaGraphLaunch(s->graph, l->stream), "cudaGraphLaunch");
    if (st == DH_OK) st = cuda_synchronize(ctx, l);
    if (st != DH_OK)
        dh_ctx_while(
            ctx, "running a captured step, which train.capture: off would tell the operator of");
    return st;
}

dh_status cuda_run_captured(dh_ctx *ctx, dh_streams *streams)
{
    cuda_streams *s = (cuda_streams *)streams;
    const dh_watch *watch = &s->base.spec.watch;
    CUDA_TRY(cudaSetDevice(s->gpu));
    dh_status st = s->graph ? DH_OK : capture(ctx, s);
    if (st == DH_EUNSUPPORTED) return st; /* nothing has begun: it can be run as it is */
    cuda_hang_begin(s);
    if (st == DH_OK) st = launch(ctx, s);
    cuda_hang_end(s);
    if (st == DH_OK) return DH_OK;
    watch->failed(watch->user, st, ctx->message);
    dh_ctx late = DH_CTX_INIT;
    (void)cuda_synchronize(&late, &s->lanes[DH_STREAM_COMPUTE]);
    return st;
}
