/* Collectives of the local world. Every call has three steps: all members arrive
 * and publish their buffers; each copies or reduces what is its share straight
 * between the members' buffers; each waits until all have copied. Only the first
 * step can fail: once it is passed, everybody does a bounded amount of copying,
 * so that no buffer is given back while somebody else still reads it. */
#include "local.h"

#include <stdio.h>

/* ---- arriving --------------------------------------------------------------------------- */

/* What peers send each other must agree where heads cannot tell. */
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

static void wake_others(local_shared *s, int me)
{
    for (int i = 0; i < s->n; i++)
        if (i != me) pthread_cond_signal(&s->slots[i].wake);
}

/* The last to arrive lets all go on. */
static void begin(local_group *g)
{
    local_shared *s = g->shared;
    s->n_arrived = 0;
    s->n_copying = s->n;
    s->arrived_ns = dh_now_ns();
    s->on_wire = begin_on_wire(g, s->arrived_ns);
    s->begun++;
    wake_others(s, g->base.me);
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

static dh_status arrive(dh_ctx *ctx, local_group *g, const dh_comm_call *call)
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
    if (++s->n_arrived == s->n) {
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
    pthread_mutex_unlock(&s->lock);
    return DH_OK;
}

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
static int nth_peer(const local_group *g, int k)
{
    return (g->base.me + 1 + k) % g->base.n;
}

/* A part is there, of which the first n_own need no wire: told when a paced wire would have brought
 * it. Nobody begins the group's next call, which sets other times, before this one has left. */
static void part_done(const local_group *g, const dh_comm_call *call, uint32_t part, uint32_t n_own)
{
    const local_shared *s = g->shared;
    const uint32_t n = call->progress->n;
    if (part >= n_own && part + 1 < n)
        local_wire_wait(s->world, s->on_wire, (double)(part + 1 - n_own) / (n - n_own), 0);
    dh_part_tell(call->progress, part);
}

static void gather_parts(local_group *g, const dh_comm_call *call)
{
    const uint32_t n = call->progress->n, each = n / (uint32_t)g->base.n;
    const int64_t item = item_bytes(g), n_part = call->recv_parts[0].n / each;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t chunk = ((uint32_t)g->base.me * each + k) % n;
        copy(call->recv + chunk * n_part * item,
             g->calls[chunk / each]->send + chunk % each * n_part * item, n_part * item);
        part_done(g, call, k, each);
    }
}

static void share_all_gather(local_group *g, const dh_comm_call *call)
{
    int64_t item = item_bytes(g);
    if (call->progress) {
        gather_parts(g, call);
        return;
    }
    for (int k = 0; k < g->base.n; k++) {
        int j = nth_peer(g, k);
        dh_comm_part part = call->recv_parts[j];
        copy(call->recv + part.at * item, g->calls[j]->send, part.n * item);
    }
}

static void share_reduce_scatter(local_group *g, const dh_comm_call *call)
{
    dh_comm_part mine = call->send_parts[g->base.me];
    const uint32_t n_parts = call->progress ? call->progress->n : 1;
    const int64_t item = item_bytes(g), n_part = mine.n / n_parts;
    for (int j = 0; mine.n > 0 && j < g->base.n; j++)
        g->base.operands[j] = g->calls[j]->send + mine.at * item;
    for (uint32_t k = 0; k < n_parts; k++) {
        if (mine.n > 0)
            dh_comm_reduce_ordered((dh_dtype)call->head.dtype, (dh_comm_reduce)call->head.reduce,
                                   call->recv, g->base.operands, g->base.n, k * n_part, n_part);
        if (call->progress) part_done(g, call, k, 0);
    }
}

/* Each reduces its slice and hands it to everybody, a block at a time while the
 * block is in the cache. In place this is safe: nobody else reads that slice. */
static void share_all_reduce(local_group *g, const dh_comm_call *call)
{
    enum { BLOCK = 4096 };
    dh_comm_part mine = call->send_parts[g->base.me];
    int64_t item = item_bytes(g), end = mine.at + mine.n;
    for (int j = 0; j < g->base.n; j++) g->base.operands[j] = g->calls[j]->send;
    for (int64_t at = mine.at; at < end; at += BLOCK) {
        int64_t n = DH_MIN((int64_t)BLOCK, end - at);
        dh_comm_reduce_ordered((dh_dtype)call->head.dtype, (dh_comm_reduce)call->head.reduce,
                               call->recv, g->base.operands, g->base.n, at, n);
        for (int k = 0; k < g->base.n; k++)
            copy(g->calls[nth_peer(g, k)]->recv + at * item, call->recv + at * item, n * item);
    }
}

static void share_all_to_all(local_group *g, const dh_comm_call *call)
{
    int64_t item = item_bytes(g);
    for (int k = 0; k < g->base.n; k++) {
        int j = nth_peer(g, k);
        dh_comm_part to = call->recv_parts[j], from = g->calls[j]->send_parts[g->base.me];
        copy(call->recv + to.at * item, g->calls[j]->send + from.at * item, to.n * item);
    }
}

static void share_broadcast(local_group *g, const dh_comm_call *call)
{
    copy(call->recv, g->calls[call->head.root]->send, call->head.count * item_bytes(g));
}

static void share_barrier(local_group *g, const dh_comm_call *call)
{
    (void)g;
    (void)call;
}

static void (*const share_table[])(local_group *, const dh_comm_call *) = {
    [DH_COMM_ALL_GATHER] = share_all_gather, [DH_COMM_REDUCE_SCATTER] = share_reduce_scatter,
    [DH_COMM_ALL_REDUCE] = share_all_reduce, [DH_COMM_ALL_TO_ALL] = share_all_to_all,
    [DH_COMM_BROADCAST] = share_broadcast,   [DH_COMM_BARRIER] = share_barrier,
};

/* ---- leaving ---------------------------------------------------------------------------- */

/* Unbounded on purpose: what is waited for are copies under way. */
static local_ticket leave(local_group *g, const dh_comm_call *call)
{
    local_shared *s = g->shared;
    local_slot *slot = &s->slots[g->base.me];
    pthread_mutex_lock(&s->lock);
    uint64_t number = slot->arrived;
    if (--s->n_copying == 0) {
        s->ended = number;
        wake_others(s, g->base.me);
    }
    while (s->ended < number) local_wait(&slot->wake, &s->lock, INT64_MAX);
    const local_ticket on_wire = s->on_wire;
    g->base.times.arrived_ns = s->arrived_ns;
    slot->call = NULL;
    local_note(slot, ACT_FINISHED, &call->head);
    pthread_mutex_unlock(&s->lock);
    return on_wire;
}

dh_status local_collective(dh_ctx *ctx, dh_comm_group *group, const dh_comm_call *call)
{
    local_group *g = (local_group *)group;
    DH_TRY(arrive(ctx, g, call));
    share_table[call->head.kind](g, call);
    local_wire_wait(g->shared->world, leave(g, call), 1, 0);
    return DH_OK;
}
