/* Collectives over non-blocking point to point. Every member exchanges directly
 * with every other: as many bytes per wire as a ring, in one step. Reductions
 * gather the operands of this rank's slice and combine them in group order, since
 * MPI_Reduce promises no order. */
#include "mpi_world.h"

/* Tags above the user's: number and kind of the collective, so that calls that do
 * not belong together do not match. 4 bits for the kind. */
enum { TAG_CHECK = 15 };
_Static_assert((int)DH_N_COMM_KIND <= (int)TAG_CHECK, "kinds must fit into four bits of a tag");
_Static_assert(DH_COMM_MAX_TAG == 0x3fff, "collectives use tags from 0x4000 on");

static int tag_of(const dh_comm_head *head, int kind)
{
    return 0x4000 | (int)(head->seq & 0x3ff) << 4 | kind;
}

/* One collective under way, with what its steps need. */
typedef struct step {
    dh_ctx *ctx;
    mpi_group *g;
    const dh_comm_head *head;
    int n, me, tag;
    int64_t item;
} step;

static dh_status out(const step *s, int peer, const char *buf, int64_t at, int64_t n)
{
    if (n == 0) return DH_OK;
    return mpi_isend(s->ctx, s->g, s->head, peer, s->tag, buf + at * s->item, n * s->item);
}

static dh_status in(const step *s, int peer, char *buf, int64_t at, int64_t n)
{
    if (n == 0) return DH_OK;
    return mpi_irecv(s->ctx, s->g, s->head, peer, s->tag, buf + at * s->item, n * s->item);
}

static dh_status wait_all(const step *s)
{
    return mpi_wait(s->ctx, s->g, s->head);
}

/* The k-th peer, k = 1 .. n-1: turned, so that not all send to one at once. */
static int to_peer(const step *s, int k)
{
    return (s->me + k) % s->n;
}

static int from_peer(const step *s, int k)
{
    return (s->me + s->n - k) % s->n;
}

static void copy(char *dst, const char *src, int64_t n_bytes)
{
    if (n_bytes > 0 && dst != src) memmove(dst, src, (size_t)n_bytes);
}

/* ---- collectives ------------------------------------------------------------------------ */

/* One part from the next member while one of the own goes to the member before: all wires are
 * used both ways, and all members take the same steps. */
static dh_status gather_parts(const step *s, const dh_comm_call *call)
{
    const uint32_t each = call->progress->n / (uint32_t)s->n;
    const int64_t n_part = call->recv_parts[0].n / each;
    copy(call->recv + call->recv_parts[s->me].at * s->item, call->send, n_part * each * s->item);
    for (uint32_t k = 0; k < each; k++) dh_part_tell(call->progress, k);
    for (uint32_t k = each; k < call->progress->n; k++) {
        const int ahead = to_peer(s, (int)(k / each)), behind = from_peer(s, (int)(k / each));
        const int64_t at = k % each * n_part;
        DH_TRY(in(s, ahead, call->recv, call->recv_parts[ahead].at + at, n_part));
        DH_TRY(out(s, behind, call->send, at, n_part));
        DH_TRY(wait_all(s));
        dh_part_tell(call->progress, k);
    }
    return DH_OK;
}

static dh_status all_gather(const step *s, const dh_comm_call *call)
{
    const dh_comm_part *part = call->recv_parts;
    if (call->progress) return gather_parts(s, call);
    for (int k = 1; k < s->n; k++) {
        int to = to_peer(s, k), from = from_peer(s, k);
        DH_TRY(in(s, from, call->recv, part[from].at, part[from].n));
        DH_TRY(out(s, to, call->send, 0, part[s->me].n));
    }
    copy(call->recv + part[s->me].at * s->item, call->send, part[s->me].n * s->item);
    return wait_all(s);
}

/* Peer j gets parts[j] of send, or of_each of it; this rank gathers all operands of its own part
 * in scratch and combines them into dst. */
static dh_status reduce_slice(const step *s, const dh_comm_call *call, const dh_comm_part *parts,
                              const dh_comm_part *of_each, char *dst)
{
    dh_comm_part mine = parts[s->me];
    if (of_each) mine = (dh_comm_part){mine.at + of_each->at, of_each->n};
    int64_t stride = (mine.n * s->item + 63) / 64 * 64;
    dh_comm_group *g = &s->g->base;
    DH_TRY(dh_comm_scratch(s->ctx, g, (size_t)(stride * s->n)));
    for (int k = 1; k < s->n; k++) {
        int to = to_peer(s, k), from = from_peer(s, k);
        const int64_t at = parts[to].at + (of_each ? of_each->at : 0);
        DH_TRY(in(s, from, g->scratch + stride * from, 0, mine.n));
        DH_TRY(out(s, to, call->send, at, of_each ? of_each->n : parts[to].n));
    }
    DH_TRY(wait_all(s));
    if (mine.n == 0) return DH_OK;
    for (int j = 0; j < s->n; j++) g->operands[j] = g->scratch + stride * j;
    g->operands[s->me] = call->send + mine.at * s->item;
    dh_comm_reduce_ordered((dh_dtype)s->head->dtype, (dh_comm_reduce)s->head->reduce, dst,
                           g->operands, s->n, 0, mine.n);
    return DH_OK;
}

static dh_status reduce_part(const step *s, const dh_comm_call *call, const dh_comm_part *parts,
                             char *dst)
{
    return reduce_slice(s, call, parts, NULL, dst);
}

static dh_status reduce_scatter(const step *s, const dh_comm_call *call)
{
    if (!call->progress) return reduce_part(s, call, call->send_parts, call->recv);
    const int64_t n_part = call->send_parts[0].n / call->progress->n;
    for (uint32_t k = 0; k < call->progress->n; k++) {
        const dh_comm_part of_each = {k * n_part, n_part};
        DH_TRY(
            reduce_slice(s, call, call->send_parts, &of_each, call->recv + of_each.at * s->item));
        dh_part_tell(call->progress, k);
    }
    return DH_OK;
}

/* Small vectors: everybody gets everything and reduces it all, in one step. */
static dh_status all_reduce_small(const step *s, const dh_comm_call *call)
{
    dh_comm_part *whole = s->g->base.parts[1];
    for (int j = 0; j < s->n; j++) whole[j] = (dh_comm_part){0, s->head->count};
    return reduce_part(s, call, whole, call->recv);
}

static dh_status all_reduce(const step *s, const dh_comm_call *call)
{
    if (s->head->count * s->item <= DH_COMM_SMALL_BYTES) return all_reduce_small(s, call);
    char *slice = call->recv + call->recv_parts[s->me].at * s->item;
    DH_TRY(reduce_part(s, call, call->send_parts, slice));
    dh_comm_call gather = *call;
    gather.send = slice;
    return all_gather(s, &gather);
}

static dh_status all_to_all(const step *s, const dh_comm_call *call)
{
    const dh_comm_part *to_part = call->send_parts, *from_part = call->recv_parts;
    if (to_part[s->me].n != from_part[s->me].n)
        return dh_fail(s->ctx, DH_EINVAL, "all_to_all on group %s: own block has %lld and %lld",
                       s->g->base.name, (long long)to_part[s->me].n, (long long)from_part[s->me].n);
    for (int k = 1; k < s->n; k++) {
        int to = to_peer(s, k), from = from_peer(s, k);
        DH_TRY(in(s, from, call->recv, from_part[from].at, from_part[from].n));
        DH_TRY(out(s, to, call->send, to_part[to].at, to_part[to].n));
    }
    copy(call->recv + from_part[s->me].at * s->item, call->send + to_part[s->me].at * s->item,
         to_part[s->me].n * s->item);
    return wait_all(s);
}

/* The root hands every member a slice, which it then passes on to all others: the
 * root's wire carries the vector about twice instead of n-1 times. */
static dh_status broadcast_slices(const step *s, const dh_comm_call *call)
{
    int root = s->head->root, n_others = s->n - 1;
    int64_t each = (s->head->count + n_others - 1) / n_others;
    dh_comm_part *part = s->g->base.parts[0]; /* part[k]: that of the k-th member after root */
    for (int k = 0; k < n_others; k++) {
        int64_t at = DH_MIN(s->head->count, each * k);
        part[k] = (dh_comm_part){at, DH_MIN(s->head->count, at + each) - at};
    }
    int mine = (s->me + s->n - root) % s->n - 1; /* -1 at the root */
    if (mine < 0) {
        for (int k = 0; k < n_others; k++)
            DH_TRY(out(s, (root + 1 + k) % s->n, call->recv, part[k].at, part[k].n));
        return wait_all(s);
    }
    DH_TRY(in(s, root, call->recv, part[mine].at, part[mine].n));
    DH_TRY(wait_all(s));
    for (int k = 0; k < n_others; k++) {
        int peer = (root + 1 + k) % s->n;
        if (k == mine) continue;
        DH_TRY(in(s, peer, call->recv, part[k].at, part[k].n));
        DH_TRY(out(s, peer, call->recv, part[mine].at, part[mine].n));
    }
    return wait_all(s);
}

static dh_status broadcast(const step *s, const dh_comm_call *call)
{
    int root = s->head->root;
    if (s->n > 2 && s->head->count * s->item > DH_COMM_SMALL_BYTES)
        return broadcast_slices(s, call);
    if (s->me != root) {
        DH_TRY(in(s, root, call->recv, 0, s->head->count));
    } else {
        for (int k = 1; k < s->n; k++) DH_TRY(out(s, to_peer(s, k), call->send, 0, s->head->count));
    }
    return wait_all(s);
}

/* Dissemination: in round k everybody hears from the one 2^k before it. */
static dh_status barrier(const step *s, const dh_comm_call *call)
{
    (void)call;
    char byte = 0;
    for (int hop = 1; hop < s->n; hop *= 2) {
        DH_TRY(mpi_irecv(s->ctx, s->g, s->head, from_peer(s, hop), s->tag, &byte, 0));
        DH_TRY(mpi_isend(s->ctx, s->g, s->head, to_peer(s, hop), s->tag, &byte, 0));
        DH_TRY(wait_all(s));
    }
    return DH_OK;
}

static dh_status (*const collective_table[])(const step *, const dh_comm_call *) = {
    [DH_COMM_ALL_GATHER] = all_gather, [DH_COMM_REDUCE_SCATTER] = reduce_scatter,
    [DH_COMM_ALL_REDUCE] = all_reduce, [DH_COMM_ALL_TO_ALL] = all_to_all,
    [DH_COMM_BROADCAST] = broadcast,   [DH_COMM_BARRIER] = barrier,
};

dh_status mpi_collective(dh_ctx *ctx, dh_comm_group *group, const dh_comm_call *call)
{
    mpi_world *w = (mpi_world *)group->comm->world;
    step s = {.ctx = ctx,
              .g = (mpi_group *)group,
              .head = &call->head,
              .n = group->n,
              .me = group->me,
              .tag = tag_of(&call->head, call->head.kind),
              .item = (int64_t)dh_dtype_bytes((dh_dtype)call->head.dtype)};
    if (atomic_load(&w->failed)) return mpi_fail_stopped(ctx, s.g, s.head);
    DH_TRY(mpi_check_call(ctx, s.g, call, tag_of(s.head, TAG_CHECK)));
    return collective_table[call->head.kind](&s, call);
}

/* ---- point to point --------------------------------------------------------------------- */

dh_status mpi_transfer(dh_ctx *ctx, dh_comm_group *group, const dh_comm_head *head,
                       const dh_comm_xfer *xfers, size_t n)
{
    mpi_group *g = (mpi_group *)group;
    if (atomic_load(&((mpi_world *)group->comm->world)->failed))
        return mpi_fail_stopped(ctx, g, head);
    for (size_t i = 0; i < n; i++) {
        const dh_comm_xfer *x = &xfers[i];
        int64_t n_bytes = x->count * (int64_t)dh_dtype_bytes(x->dtype);
        if (x->direction == DH_XFER_RECV)
            DH_TRY(mpi_irecv(ctx, g, head, x->peer, x->tag, x->buf, n_bytes));
        else
            DH_TRY(mpi_isend(ctx, g, head, x->peer, x->tag, x->buf, n_bytes));
    }
    return mpi_wait(ctx, g, head);
}
