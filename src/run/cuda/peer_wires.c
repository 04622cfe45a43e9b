/* Paced wires between ranks on one GPU: how long calls take that would be on links of a job's own
 * figures (links.*).
 *
 * As in a local world (run/comm/local_wires.h) each rank has a wire per link and direction. Each of
 * n transfers on it goes at 1/n of its speed, and one that is on several goes as the fullest lets
 * it. Only the GPU knows when a transfer begins. So the numbers of transfers on wires lie there. A
 * kernel of one warp, which looks at the GPU's clock, stays on the stream until its transfer would
 * have come (kernels/peers.cu). A collective is counted by its first member; every member waits by
 * itself. */
#include <stdlib.h>

#include "run/cuda/peers.h"

/* Wires of all ranks of a world that share a GPU. */
struct peer_wires {
    peer_wires *next;
    const dh_comm_config *world;
    int gpu, n_users;
    dh_cuda_wires at;
};

enum { OUT, IN, N_WAYS };

static pthread_mutex_t wires_lock = PTHREAD_MUTEX_INITIALIZER;
static peer_wires *all_wires;

static int32_t wire_of(const dh_devlink_spec *spec, int rank, int way)
{
    return (int32_t)((rank * DH_N_ENGINE + (int)spec->wire) * N_WAYS + way);
}

/* ---- wires ------------------------------------------------------------------------------------
 */

static void wires_free(peer_wires *w)
{
    if (!w) return;
    dh_cuda_drop(w->at.n_on);
    if (w->at.stop) cudaFreeHost(w->at.stop);
    free(w);
}

static dh_status fill_wires(dh_ctx *ctx, peer_wires *w)
{
    const size_t n = (size_t)w->world->ranks * DH_N_ENGINE * N_WAYS;
    int32_t *none = calloc(n, sizeof *none);
    if (!none) return dh_no_memory(ctx);
    const dh_status st = dh_cuda_upload(ctx, none, n * sizeof *none, (void **)&w->at.n_on);
    free(none);
    DH_TRY(st);
    CUDA_TRY(cudaHostAlloc((void **)&w->at.stop, sizeof *w->at.stop, cudaHostAllocDefault));
    *w->at.stop = 0;
    return DH_OK;
}

/* The lock is held. */
static dh_status find_wires(dh_ctx *ctx, const dh_comm_config *world, int gpu, peer_wires **out)
{
    peer_wires *w = all_wires;
    while (w && (w->world != world || w->gpu != gpu)) w = w->next;
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w) return dh_no_memory(ctx);
        *w = (peer_wires){.world = world, .gpu = gpu};
        const dh_status st = fill_wires(ctx, w);
        if (st != DH_OK) {
            wires_free(w);
            return st;
        }
        w->next = all_wires;
        all_wires = w;
    }
    w->n_users++;
    *out = w;
    return DH_OK;
}

static void let_go(peer_wires *w)
{
    pthread_mutex_lock(&wires_lock);
    const bool last = --w->n_users == 0;
    if (last) {
        peer_wires **at = &all_wires;
        while (*at != w) at = &(*at)->next;
        *at = w->next;
    }
    pthread_mutex_unlock(&wires_lock);
    if (last) wires_free(w);
}

/* ---- a link's ---------------------------------------------------------------------------------
 */

/* Both of every member; then for each the one out of it, and the one into this member. */
static dh_status upload_ways(dh_ctx *ctx, const dh_devlink_spec *spec, const int *ranks,
                             peer_link *l)
{
    int32_t ways[2 * N_WAYS * PEER_MOST];
    const int n = l->n;
    for (int i = 0; i < n; i++) {
        for (int way = 0; way < N_WAYS; way++)
            ways[N_WAYS * i + way] = wire_of(spec, ranks[i], way);
        ways[N_WAYS * (n + i) + OUT] = wire_of(spec, ranks[i], OUT);
        ways[N_WAYS * (n + i) + IN] = wire_of(spec, ranks[l->me], IN);
    }
    return dh_cuda_upload(ctx, ways, (size_t)n * 2 * N_WAYS * sizeof *ways, (void **)&l->pace.ways);
}

dh_status peer_pace_create(dh_ctx *ctx, const dh_devlink_spec *spec, const int *ranks, peer_link *l)
{
    const dh_cuda_flow_state none[PEER_MOST_FLOWS] = {{.ended = 0}};
    if (!dh_comm_pace_on(spec->pace)) return DH_OK;
    l->pace.pace = spec->pace;
    pthread_mutex_lock(&wires_lock);
    const dh_status st = find_wires(ctx, dh_comm_config_of(spec->comm), l->gpu, &l->pace.wires);
    pthread_mutex_unlock(&wires_lock);
    DH_TRY(st);
    DH_TRY(upload_ways(ctx, spec, ranks, l));
    return dh_cuda_upload(ctx, none, sizeof none, (void **)&l->pace.on);
}

void peer_pace_destroy(peer_link *l)
{
    dh_cuda_drop(l->pace.ways);
    dh_cuda_drop(l->pace.on);
    if (l->pace.wires) let_go(l->pace.wires);
}

void peer_pace_stop(const peer_link *l)
{
    if (l->pace.wires) __atomic_store_n(l->pace.wires->at.stop, 1, __ATOMIC_RELAXED);
}

/* ---- calls ------------------------------------------------------------------------------------
 */

static void begin(peer_link *l, cudaStream_t stream, int k, const dh_cuda_flow *flow)
{
    dh_cuda_flow_begin(stream, &l->pace.wires->at, flow, &l->pace.on[k]);
}

void peer_pace_collective(peer_link *l, cudaStream_t stream, dh_comm_kind kind, int64_t n_bytes)
{
    if (!l->pace.wires) return;
    const dh_cuda_flow flow = {.wires = l->pace.ways,
                               .n_wires = N_WAYS * l->n,
                               .counts = l->me == 0,
                               .ns = dh_comm_paced_ns(kind, l->n, n_bytes, l->pace.pace)};
    begin(l, stream, 0, &flow);
}

void peer_pace_share(peer_link *l, cudaStream_t stream, double share)
{
    if (l->pace.wires) dh_cuda_flows_pass(stream, &l->pace.wires->at, 1, share, l->pace.on);
}

void peer_pace_transfer(peer_link *l, cudaStream_t stream, int k, int from, int64_t n_bytes)
{
    if (!l->pace.wires) return;
    const size_t at = (size_t)(l->n + from) * N_WAYS;
    const dh_cuda_flow flow = {.wires = l->pace.ways + at,
                               .n_wires = N_WAYS,
                               .counts = true,
                               .ns = dh_comm_bytes_ns(n_bytes, l->pace.pace)};
    begin(l, stream, k, &flow);
}

void peer_pace_transfers(peer_link *l, cudaStream_t stream, int n)
{
    if (l->pace.wires) dh_cuda_flows_pass(stream, &l->pace.wires->at, n, 1, l->pace.on);
}

void peer_pace_latency(peer_link *l, cudaStream_t stream, int steps)
{
    if (!l->pace.wires) return;
    const int64_t ns = steps * dh_comm_latency_ns(DH_COMM_RECV, 2, l->pace.pace);
    dh_cuda_flow_rest(stream, &l->pace.wires->at, ns);
}
