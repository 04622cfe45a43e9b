/* CUDA's graphs on the host: what streams capture, and what is launched again and again.
 *
 * A graph is a list of works. Each follows the previous works of its stream, and those recorded by
 * events that the stream waited for. A launch is one work of a stream. Its works run one after
 * another in an order drawn anew each time from the permitted ones. So a work without a needed
 * order finds the data from before. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "run/cuda/host/inside.h"

typedef struct node {
    host_work *work;
    host_set behind;
} node;

struct CUgraph_st {
    cudaStream_t origin;
    node *nodes;
    size_t n;
    int n_users; /* its holder, and the graphs made of it */
};

struct CUgraphExec_st {
    cudaGraph_t graph;
};

typedef struct launch {
    cudaGraph_t graph;
    cudaStream_t stream;
    bool *done;  /* [graph->n] */
    void **live; /* [graph->n] of meetings */
    size_t n_done;
    uint64_t draw;
} launch;

static uint64_t n_launches;

/* ---- sets: locked ------------------------------------------------------------------------------
 */

static void add(host_set *set, size_t place)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->at[i] == place) return;
    set->at = realloc(set->at, (set->n + 1) * sizeof *set->at);
    DH_CHECK(set->at, "no memory for a graph");
    set->at[set->n++] = place;
}

static void unite(host_set *set, const host_set *other)
{
    for (size_t i = 0; i < other->n; i++) add(set, other->at[i]);
}

static void clear(host_set *set)
{
    free(set->at);
    *set = (host_set){0};
}

/* ---- capturing: locked -------------------------------------------------------------------------
 */

static void let_go(cudaGraph_t g)
{
    if (--g->n_users > 0) return;
    for (size_t i = 0; i < g->n; i++) {
        host_free_work(g->nodes[i].work);
        clear(&g->nodes[i].behind);
    }
    free(g->nodes);
    free(g);
}

static void add_node(cudaStream_t s, host_work *w)
{
    cudaGraph_t g = s->graph;
    g->nodes = realloc(g->nodes, (g->n + 1) * sizeof *g->nodes);
    DH_CHECK(g->nodes, "no memory for a graph");
    g->nodes[g->n] = (node){.work = w, .behind = s->behind};
    s->behind = (host_set){0};
    add(&s->behind, g->n++);
}

bool host_capture(cudaStream_t s, host_work *w, cudaError_t *error)
{
    const bool waits = w->kind == HOST_WAIT;
    cudaGraph_t from = waits && host_captures(w->event->graph) ? w->event->graph : NULL;
    if (!s->graph && !from) return false;
    if (!s->graph) s->graph = from;
    if (waits && from != s->graph) {
        *error = cudaErrorStreamCaptureIsolation;
    } else if (waits) {
        unite(&s->behind, &w->event->behind);
    } else if (w->kind == HOST_RECORD && !w->external) {
        w->event->graph = s->graph;
        clear(&w->event->behind);
        unite(&w->event->behind, &s->behind);
    } else {
        add_node(s, w);
        return true;
    }
    free(w);
    return true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaGraph_t g = calloc(1, sizeof *g);
    pthread_mutex_lock(&host_lock);
    const bool refused = !g || stream->graph || host_refuses_object();
    if (!refused) {
        *g = (struct CUgraph_st){.origin = stream, .n_users = 1};
        stream->graph = g;
    }
    pthread_mutex_unlock(&host_lock);
    if (refused) free(g);
    return refused ? host_failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

/* Whether all works come before what the stream would put next. */
static bool all_come_before(const struct CUgraph_st *g, const host_set *behind)
{
    bool *before = calloc(g->n + 1, sizeof *before), all = true;
    DH_CHECK(before, "no memory for a graph");
    for (size_t i = 0; i < behind->n; i++) before[behind->at[i]] = true;
    for (size_t i = g->n; i-- > 0;) {
        all = all && before[i];
        for (size_t k = 0; before[i] && k < g->nodes[i].behind.n; k++)
            before[g->nodes[i].behind.at[k]] = true;
    }
    free(before);
    return all;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
    pthread_mutex_lock(&host_lock);
    cudaGraph_t g = stream->graph;
    const bool ours = g && g->origin == stream;
    const bool joined = ours && all_come_before(g, &stream->behind);
    if (ours) host_end_capture(g);
    if (ours && !joined) {
        host_drop_object();
        let_go(g);
    }
    pthread_mutex_unlock(&host_lock);
    if (!joined)
        return host_failed(ours ? cudaErrorStreamCaptureUnjoined : cudaErrorStreamCaptureUnmatched);
    *pGraph = g;
    return cudaSuccess;
}

/* ---- launching: locked -------------------------------------------------------------------------
 */

static bool may_run(const launch *l, size_t i)
{
    const host_set *behind = &l->graph->nodes[i].behind;
    for (size_t k = 0; k < behind->n; k++)
        if (!l->done[behind->at[k]]) return false;
    return !l->done[i];
}

/* False: it waits for others. */
static bool run_node(launch *l, size_t i, bool wanted)
{
    host_work *w = l->graph->nodes[i].work;
    if (w->kind == HOST_MEET) {
        if (!l->live[i]) l->live[i] = w->meeting->begin(w->met, l->stream);
        if (!w->meeting->meet(l->live[i], wanted)) return false;
        host_wake_all();
    } else if (w->kind == HOST_RECORD) {
        host_reach(w->event, ++w->event->n_recorded, l->stream);
    } else {
        host_do_work(l->stream, w);
    }
    l->done[i] = true;
    l->n_done++;
    return true;
}

/* One of those that may, from a place that is drawn on. */
static bool run_any(launch *l, bool wanted)
{
    const size_t n = l->graph->n, first = (size_t)(dh_mix64(l->draw + l->n_done) % n);
    for (size_t k = 0; k < n; k++)
        if (may_run(l, (first + k) % n) && run_node(l, (first + k) % n, wanted)) return true;
    return false;
}

static bool run_graph(void *user, bool wanted)
{
    launch *l = user;
    while (l->n_done < l->graph->n)
        if (!run_any(l, wanted)) return false;
    let_go(l->graph);
    free(l->done);
    free(l->live);
    free(l);
    return true;
}

static void *begin_launch(const void *pattern, cudaStream_t stream)
{
    cudaGraph_t g = (cudaGraph_t)(uintptr_t)pattern;
    launch *l = calloc(1, sizeof *l);
    bool *done = calloc(g->n + 1, sizeof *done);
    void **live = calloc(g->n + 1, sizeof *live);
    DH_CHECK(l && done && live, "no memory for a launch");
    g->n_users++;
    *l = (launch){g, stream, done, live, 0, dh_mix64(++n_launches)};
    return l;
}

static void drop_launch(void *pattern)
{
    let_go(pattern);
}

static const host_meeting launches = {run_graph, begin_launch, drop_launch};

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    pthread_mutex_lock(&host_lock);
    graphExec->graph->n_users++;
    pthread_mutex_unlock(&host_lock);
    return host_put_meeting(stream, &launches, graphExec->graph);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags)
{
    cudaGraphExec_t exec = calloc(1, sizeof *exec);
    pthread_mutex_lock(&host_lock);
    const bool refused = !exec || host_refuses_object();
    if (!refused) {
        graph->n_users++;
        exec->graph = graph;
        *pGraphExec = exec;
    }
    pthread_mutex_unlock(&host_lock);
    if (refused) free(exec);
    return refused ? host_failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

static void drop(cudaGraph_t graph)
{
    pthread_mutex_lock(&host_lock);
    host_drop_object();
    let_go(graph);
    pthread_mutex_unlock(&host_lock);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    drop(graphExec->graph);
    free(graphExec);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    drop(graph);
    return cudaSuccess;
}
