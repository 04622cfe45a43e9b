/* Collectives of the local world. Every call has three steps. All members arrive
 * and publish their buffers. Each copies or reduces its share straight between the
 * members' buffers. Each waits until all have copied. Only the first step can fail.
 * After it everybody does a bounded amount of copying, so no buffer is given back
 * while somebody else still reads it.
 *
 * If there is little to copy, the last to arrive does it for all. The others are woken once and
 * find their results. To wake each for its share, and again when all have done theirs, would take
 * longer. */
#include "local.h"

#include <stdio.h>

/* ---- copying: each member's share ------------------------------------------------------- */

static void copy(void *dst, const void *src, int64_t n_bytes)
{
    if (n_bytes > 0 && dst != src) memmove(dst, src, (size_t)n_bytes);
}

static int64_t item_bytes(const local_group *g)
{
    return (int64_t)dh_dtype_bytes((dh_dtype)g->calls[0]->head.dtype);
}

/* Beginning with the next member, so that not all read from one at once. */
static int nth_peer(const local_group *g, int me, int k)
{
    return (me + 1 + k) % g->base.n;
}

static void share_all_gather(local_group *g, int me)
{
    const dh_comm_call *call = g->calls[me];
    int64_t item = item_bytes(g);
    for (int k = 0; k < g->base.n; k++) {
        int j = nth_peer(g, me, k);
        dh_comm_part part = call->recv_parts[j];
        copy(call->recv + part.at * item, g->calls[j]->send, part.n * item);
    }
}

/* Elements [at, at + n) of what a member receives. */
static void reduce_range(local_group *g, int me, int64_t at, int64_t n)
{
    const dh_comm_call *call = g->calls[me];
    if (n == 0) return;
    for (int j = 0; j < g->base.n; j++)
        g->base.operands[j] = g->calls[j]->send + call->send_parts[me].at * item_bytes(g);
    dh_comm_reduce_ordered((dh_dtype)call->head.dtype, (dh_comm_reduce)call->head.reduce,
                           call->recv, g->base.operands, g->base.n, at, n);
}

static void share_reduce_scatter(local_group *g, int me)
{
    reduce_range(g, me, 0, g->calls[me]->send_parts[me].n);
}

/* Each reduces its slice and hands it to everybody, a block at a time while the
 * block is in the cache. In place this is safe: nobody else reads that slice. */
static void share_all_reduce(local_group *g, int me)
{
    enum { BLOCK = 4096 };
    const dh_comm_call *call = g->calls[me];
    dh_comm_part mine = call->send_parts[me];
    int64_t item = item_bytes(g), end = mine.at + mine.n;
    for (int j = 0; j < g->base.n; j++) g->base.operands[j] = g->calls[j]->send;
    for (int64_t at = mine.at; at < end; at += BLOCK) {
        int64_t n = DH_MIN((int64_t)BLOCK, end - at);
        dh_comm_reduce_ordered((dh_dtype)call->head.dtype, (dh_comm_reduce)call->head.reduce,
                               call->recv, g->base.operands, g->base.n, at, n);
        for (int k = 0; k < g->base.n; k++)
            copy(g->calls[nth_peer(g, me, k)]->recv + at * item, call->recv + at * item, n * item);
    }
}

static void share_all_to_all(local_group *g, int me)
{
    const dh_comm_call *call = g->calls[me];
    int64_t item = item_bytes(g);
    for (int k = 0; k < g->base.n; k++) {
        int j = nth_peer(g, me, k);
        dh_comm_part to = call->recv_parts[j], from = g->calls[j]->send_parts[me];
        copy(call->recv + to.at * item, g->calls[j]->send + from.at * item, to.n * item);
    }
}

static void share_broadcast(local_group *g, int me)
{
    const dh_comm_call *call = g->calls[me];
    copy(call->recv, g->calls[call->head.root]->send, call->head.count * item_bytes(g));
}

static void share_barrier(local_group *g, int me)
{
    (void)g;
    (void)me;
}

static void (*const share_table[])(local_group *, int me) = {
    [DH_COMM_ALL_GATHER] = share_all_gather, [DH_COMM_REDUCE_SCATTER] = share_reduce_scatter,
    [DH_COMM_ALL_REDUCE] = share_all_reduce, [DH_COMM_ALL_TO_ALL] = share_all_to_all,
    [DH_COMM_BROADCAST] = share_broadcast,   [DH_COMM_BARRIER] = share_barrier,
};

/* Whether the last to arrive copies for all. */
static bool is_small(const local_group *g)
{
    /* TUNING: bytes; about where one member's copying takes as long as waking the others. */
    enum { SMALL = 64 * 1024 };
    const int n = g->base.n;
    return dh_comm_wire_bytes(n, g->calls) * n <= SMALL;
}

/* ---- copying in parts ------------------------------------------------------------------- */

static void copy_part(local_group *g, uint32_t part)
{
    const dh_comm_call *call = g->calls[g->base.me];
    const uint32_t n = call->progress->n, each = n / (uint32_t)g->base.n;
    if (call->head.kind == DH_COMM_REDUCE_SCATTER) {
        const int64_t n_part = call->send_parts[g->base.me].n / n;
        reduce_range(g, g->base.me, part * n_part, n_part);
        return;
    }
    const uint32_t chunk = ((uint32_t)g->base.me * each + part) % n;
    const int64_t item = item_bytes(g), n_part = call->recv_parts[0].n / each;
    copy(call->recv + chunk * n_part * item,
         g->calls[chunk / each]->send + chunk % each * n_part * item, n_part * item);
}

/* Each part is told of when it is there, which on a paced wire is when that would have brought it;
 * the member's own of an all-gather need none. Nobody begins the group's next call, which sets
 * other times, before this one has left. */
static void share_parts(local_group *g, bool are_copied)
{
    const local_shared *s = g->shared;
    const dh_comm_call *call = g->calls[g->base.me];
    const uint32_t n = call->progress->n;
    const uint32_t n_own = call->head.kind == DH_COMM_ALL_GATHER ? n / (uint32_t)g->base.n : 0;
    for (uint32_t k = 0; k < n; k++) {
        if (!are_copied) copy_part(g, k);
        if (k >= n_own && k + 1 < n)
            local_wire_wait(s->world, s->on_wire, (double)(k + 1 - n_own) / (n - n_own), 0);
        dh_part_tell(call->progress, k);
    }
}

/* ---- arriving --------------------------------------------------------------------------- */

/* Sizes that peers send and expect must agree; heads cannot tell. */
static bool all_to_all_differs(const local_group *g, char *buf, size_t cap)
{
    for (int i = 0; i < g->base.n; i++)
        for (int j = 0; j < g->base.n; j++) {
            int64_t sent = g->calls[i]->send_parts[j].n, wanted = g->calls[j]->recv_parts[i].n;
            if (sent == wanted) continue;
            snprintf(buf, cap,
                     "calls on group %s do not fit together: in all_to_all #%lld rank %d sends "
                     "%lld elements to rank %d, which expects %lld",
                     g->base.name, (long long)g->calls[i]->head.seq, g->base.members[i],
                     (long long)sent, g->base.members[j], (long long)wanted);
            return true;
        }
    return false;
}

static bool calls_differ(const local_group *g, char *buf, size_t cap)
{
    for (int i = 1; i < g->base.n; i++)
        if (dh_comm_heads_differ(&g->base, 0, &g->calls[0]->head, i, &g->calls[i]->head, buf, cap))
            return true;
    return g->calls[0]->head.kind == DH_COMM_ALL_TO_ALL && all_to_all_differs(g, buf, cap);
}

static local_ticket begin_on_wire(const local_group *g, int64_t from_ns)
{
    local_shared *s = g->shared;
    dh_comm_pace pace = s->world->base.config.pace[s->wire];
    const local_way way = {s->wire, s->members, s->members, s->n, s->n};
    if (!dh_comm_pace_on(pace) || s->n == 1) return (local_ticket){0, 0};
    int64_t ns = dh_comm_bytes_ns(dh_comm_wire_bytes(s->n, g->calls), pace) +
                 dh_comm_latency_ns((dh_comm_kind)g->calls[0]->head.kind, s->n, pace);
    return local_wire_begin(s->world, way, from_ns, ns, 0);
}

/* Called once the lock is given back: a thread that wakes at once would only meet it, and sleep
 * again. */
static void wake_others(local_shared *s, int me)
{
    for (int i = 0; i < s->n; i++)
        if (i != me) pthread_cond_signal(&s->slots[i].wake);
}

/* The last has arrived: all may go on. */
static void begin(local_group *g)
{
    local_shared *s = g->shared;
    s->n_arrived = 0;
    s->n_copying = s->n;
    s->arrived_ns = dh_now_ns();
    s->on_wire = begin_on_wire(g, s->arrived_ns);
    s->begun++;
    if (!is_small(g)) return;
    for (int i = 0; i < s->n; i++) share_table[g->calls[i]->head.kind](g, i);
    s->ended = s->begun;
}

/* Members that have not arrived, into g->missing; true when one of them has left. */
static bool absent_members(local_group *g, uint64_t number)
{
    bool left = false;
    for (int i = 0; i < g->base.n; i++) {
        g->missing[i] = g->shared->slots[i].arrived < number;
        left |= g->missing[i] && g->shared->slots[i].left;
    }
    return left;
}

static void collect_calls(local_group *g)
{
    for (int i = 0; i < g->base.n; i++) g->calls[i] = g->shared->slots[i].call;
}

/* Wait for the last one; the lock is held, and given back on failure only. */
static dh_status await_others(dh_ctx *ctx, local_group *g, const dh_comm_call *call,
                              uint64_t number)
{
    local_shared *s = g->shared;
    int64_t deadline = local_deadline(&g->base);
    bool in_time = true;
    while (s->begun < number) {
        bool left = absent_members(g, number);
        if (s->broken) {
            pthread_mutex_unlock(&s->lock);
            return local_fail_stopped(ctx, g, &call->head);
        }
        if (left || !in_time) {
            char what[DH_COMM_CALL_TEXT_BYTES];
            pthread_mutex_unlock(&s->lock);
            dh_comm_call_text(&g->base, &call->head, what, sizeof what);
            return local_fail_missing(ctx, g, what, left);
        }
        in_time = local_wait(&s->slots[g->base.me].wake, &s->lock, deadline);
    }
    return DH_OK;
}

/* is_done: the results are there; only their time on a wire is left. */
static dh_status arrive(dh_ctx *ctx, local_group *g, const dh_comm_call *call, bool *is_done)
{
    local_shared *s = g->shared;
    local_slot *slot = &s->slots[g->base.me];
    pthread_mutex_lock(&s->lock);
    if (s->broken) {
        pthread_mutex_unlock(&s->lock);
        return local_fail_stopped(ctx, g, &call->head);
    }
    uint64_t number = s->begun + 1;
    slot->call = call;
    slot->arrived = number;
    local_note(slot, ACT_WAITING, &call->head);
    const bool last = ++s->n_arrived == s->n;
    if (last) {
        char text[DH_COMM_CALL_TEXT_BYTES];
        collect_calls(g);
        if (calls_differ(g, text, sizeof text)) {
            pthread_mutex_unlock(&s->lock);
            return local_fail_here(ctx, g, text);
        }
        begin(g);
    } else {
        DH_TRY(await_others(ctx, g, call, number));
        collect_calls(g);
    }
    *is_done = s->ended == number;
    pthread_mutex_unlock(&s->lock);
    if (last) wake_others(s, g->base.me);
    return DH_OK;
}

/* ---- leaving ---------------------------------------------------------------------------- */

/* Unbounded on purpose: what is waited for are copies under way. */
static local_ticket leave(local_group *g, const dh_comm_call *call)
{
    local_shared *s = g->shared;
    local_slot *slot = &s->slots[g->base.me];
    pthread_mutex_lock(&s->lock);
    uint64_t number = slot->arrived;
    const bool last = s->ended < number && --s->n_copying == 0;
    if (last) s->ended = number;
    while (s->ended < number) local_wait(&slot->wake, &s->lock, INT64_MAX);
    const local_ticket on_wire = s->on_wire;
    g->base.times.arrived_ns = s->arrived_ns;
    slot->call = NULL;
    local_note(slot, ACT_FINISHED, &call->head);
    pthread_mutex_unlock(&s->lock);
    if (last) wake_others(s, g->base.me);
    return on_wire;
}

dh_status local_collective(dh_ctx *ctx, dh_comm_group *group, const dh_comm_call *call)
{
    local_group *g = (local_group *)group;
    bool is_done = false;
    DH_TRY(arrive(ctx, g, call, &is_done));
    if (call->progress)
        share_parts(g, is_done);
    else if (!is_done)
        share_table[call->head.kind](g, group->me);
    local_wire_wait(g->shared->world, leave(g, call), 1, 0);
    return DH_OK;
}
