/* Calls between ranks on one GPU: each member's part, on its own stream.
 *
 * A collective has two meetings of all members' threads. After the first, every member's data are
 * on their way: each stream waits for the others', then copies or adds its share. After the second
 * every share is on its stream. The others read a member's memory or, in an all-reduce, write to
 * it, so each stream waits for their shares before it goes on. Transfers meet two by two, and the
 * receiver copies: a sender's stream goes on once the receiver has taken the data. Nobody waits for
 * a call that does not concern it. */
#include <stdio.h>

#include "run/cuda/peers.h"

static const char *const kind_names[] = {[DH_DEVLINK_ALL_GATHER] = "an all-gather",
                                         [DH_DEVLINK_REDUCE_SCATTER] = "a reduce-scatter",
                                         [DH_DEVLINK_ALL_REDUCE] = "an all-reduce",
                                         [DH_DEVLINK_TRANSFERS] = "transfers"};

static int64_t deadline_of(const peer_link *l)
{
    const int64_t now = dh_now_ns(), longest = dh_comm_timeout_ns(l->comm);
    return longest > INT64_MAX - now ? INT64_MAX : now + longest;
}

static dh_status copy(dh_ctx *ctx, cudaStream_t stream, void *to, const void *from, int64_t n_bytes)
{
    if (n_bytes > 0 && to != from)
        CUDA_TRY(cudaMemcpyAsync(to, from, (size_t)n_bytes, cudaMemcpyDeviceToDevice, stream));
    return DH_OK;
}

/* ---- shares of a collective -------------------------------------------------------------------
 */

/* A share's context: one call of all members. */
typedef struct share {
    peer_link *l;
    cudaStream_t stream;
    const peer_seat *seats;
    const dh_devlink_call *call; /* this member's */
    int64_t item;                /* bytes of an element */
} share;

static uint32_t parts_of(const dh_devlink_call *c)
{
    return c->progress && c->progress->n > 1 ? c->progress->n : 1;
}

static void tell(const share *s, uint32_t part)
{
    if (s->call->progress) dh_part_tell(s->call->progress, part);
}

/* Own pieces first, then those of the members behind, as each comes off the wire. */
static dh_status share_all_gather(dh_ctx *ctx, const share *s)
{
    const dh_devlink_call *c = s->call;
    const int n = s->l->n;
    const uint32_t n_parts = DH_MAX(parts_of(c), (uint32_t)n), each = n_parts / (uint32_t)n;
    const int64_t n_bytes = c->count / each * s->item;
    for (uint32_t k = 0; k < n_parts; k++) {
        const uint32_t chunk = ((uint32_t)s->l->me * each + k) % n_parts;
        const char *from = s->seats[chunk / each].call.send;
        DH_TRY(copy(ctx, s->stream, (char *)c->recv + chunk * n_bytes,
                    from + chunk % each * n_bytes, n_bytes));
        if (k >= each && parts_of(c) > 1)
            peer_pace_share(s->l, s->stream, (double)(k + 1 - each) / (n_parts - each));
        tell(s, k);
    }
    return DH_OK;
}

/* Elements [at, at + n) of all members' `send`. */
static dh_cuda_ranks operands(const share *s, int64_t at)
{
    dh_cuda_ranks x = {.n_from = s->l->n};
    for (int j = 0; j < s->l->n; j++)
        x.from[j] = (const char *)s->seats[j].call.send + at * s->item;
    return x;
}

static dh_status share_reduce_scatter(dh_ctx *ctx, const share *s)
{
    const dh_devlink_call *c = s->call;
    const uint32_t n_parts = parts_of(c);
    const int64_t n = c->count / n_parts;
    for (uint32_t k = 0; k < n_parts; k++) {
        dh_cuda_ranks x = operands(s, s->l->me * c->count + k * n);
        x.n_to = 1;
        x.to[0] = (char *)c->recv + k * n * s->item;
        dh_cuda_sum_ranks(s->stream, c->dtype, n, &x);
        CUDA_TRY(cudaGetLastError());
        if (n_parts > 1) peer_pace_share(s->l, s->stream, (double)(k + 1) / n_parts);
        tell(s, k);
    }
    return DH_OK;
}

/* Each adds a slice and hands it to all. In place this is safe: nobody else reads that slice. */
static dh_status share_all_reduce(dh_ctx *ctx, const share *s)
{
    enum { CUT = 64 }; /* elements: slices begin where runs of 16 bytes do */
    const dh_devlink_call *c = s->call;
    const int64_t each = (c->count + s->l->n - 1) / s->l->n, cut = (each + CUT - 1) / CUT * CUT;
    const int64_t at = DH_MIN(c->count, s->l->me * cut), n = DH_MIN(c->count, at + cut) - at;
    dh_cuda_ranks x = operands(s, at);
    x.n_to = s->l->n;
    for (int j = 0; j < s->l->n; j++) x.to[j] = (char *)s->seats[j].call.recv + at * s->item;
    if (n > 0) dh_cuda_sum_ranks(s->stream, c->dtype, n, &x);
    CUDA_TRY(cudaGetLastError());
    return DH_OK;
}

static const struct {
    dh_status (*share)(dh_ctx *ctx, const share *s);
    dh_comm_kind kind; /* kind by which a wire is paced */
} shares[] = {
    [DH_DEVLINK_ALL_GATHER] = {share_all_gather, DH_COMM_ALL_GATHER},
    [DH_DEVLINK_REDUCE_SCATTER] = {share_reduce_scatter, DH_COMM_REDUCE_SCATTER},
    [DH_DEVLINK_ALL_REDUCE] = {share_all_reduce, DH_COMM_ALL_REDUCE},
};

/* ---- collectives ------------------------------------------------------------------------------
 */

static dh_status await_all(dh_ctx *ctx, peer_link *l, bool done)
{
    const int64_t deadline = deadline_of(l);
    const peer_seat *seats = l->room->seats;
    for (int i = 0; i < l->n;)
        if ((done ? seats[i].n_done : seats[i].n_come) >= l->n_collectives)
            i++;
        else
            DH_TRY(peer_await(ctx, l, kind_names[seats[l->me].call.kind], deadline));
    return DH_OK;
}

static dh_status compare_calls(dh_ctx *ctx, peer_link *l)
{
    char text[200];
    const dh_devlink_call *a = &l->room->seats[0].call;
    for (int i = 1; i < l->n; i++) {
        const dh_devlink_call *b = &l->room->seats[i].call;
        if (a->kind == b->kind && a->dtype == b->dtype && a->count == b->count) continue;
        snprintf(text, sizeof text, "member 0 calls %s of %lld %s, member %d %s of %lld %s",
                 kind_names[a->kind], (long long)a->count, dh_dtype_name(a->dtype), i,
                 kind_names[b->kind], (long long)b->count, dh_dtype_name(b->dtype));
        return peer_misfit(ctx, l, text);
    }
    return DH_OK;
}

/* Bytes of the whole vector. */
static int64_t whole_bytes(const peer_link *l, const dh_devlink_call *c)
{
    const int64_t mine = c->count * (int64_t)dh_dtype_bytes(c->dtype);
    return c->kind == DH_DEVLINK_ALL_REDUCE ? mine : l->n * mine;
}

static dh_status do_share(dh_ctx *ctx, peer_link *l, cudaStream_t stream, const dh_devlink_call *c)
{
    const peer_seat *seats = l->room->seats;
    const share s = {l, stream, seats, c, (int64_t)dh_dtype_bytes(c->dtype)};
    for (int i = 0; i < l->n; i++)
        if (i != l->me) DH_TRY(peer_wait_ready(ctx, stream, seats[i].ready));
    peer_pace_collective(l, stream, shares[c->kind].kind, whole_bytes(l, c));
    DH_TRY(shares[c->kind].share(ctx, &s));
    peer_pace_share(l, stream, 1);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaEventRecord(seats[l->me].done, stream));
    return DH_OK;
}

static dh_status collective(dh_ctx *ctx, peer_link *l, cudaStream_t stream,
                            const dh_devlink_call *c)
{
    peer_seat *seat = &l->room->seats[l->me];
    seat->call = *c;
    seat->n_come = ++l->n_collectives;
    peer_moved(l->room);
    DH_TRY(await_all(ctx, l, false));
    DH_TRY(compare_calls(ctx, l));
    DH_TRY(do_share(ctx, l, stream, c));
    seat->n_done = l->n_collectives;
    peer_moved(l->room);
    DH_TRY(await_all(ctx, l, true));
    for (int i = 0; i < l->n; i++)
        if (i != l->me) DH_TRY(peer_wait_done(ctx, stream, l->room->seats[i].done));
    return DH_OK;
}

/* ---- transfers --------------------------------------------------------------------------------
 */

/* The member's next send to this one; NULL: nothing yet. */
static peer_post *find_send(const peer_link *l, int from)
{
    const peer_seat *seat = &l->room->seats[from];
    for (size_t i = 0; i < seat->n_posts; i++) {
        peer_post *p = &seat->posts[i];
        if (!p->done && p->xfer.direction == DH_XFER_SEND && p->xfer.peer == l->me) return p;
    }
    return NULL;
}

static dh_status compare_ends(dh_ctx *ctx, peer_link *l, const dh_comm_xfer *sent,
                              const dh_comm_xfer *wanted)
{
    char text[200];
    if (sent->count == wanted->count && sent->dtype == wanted->dtype) return DH_OK;
    snprintf(text, sizeof text, "member %d sends %lld %s where member %d expects %lld %s",
             wanted->peer, (long long)sent->count, dh_dtype_name(sent->dtype), l->me,
             (long long)wanted->count, dh_dtype_name(wanted->dtype));
    return peer_misfit(ctx, l, text);
}

/* `n_flows`: transfers of this wave that are on a wire. */
static dh_status take(dh_ctx *ctx, peer_link *l, cudaStream_t stream, const dh_comm_xfer *to,
                      const dh_comm_xfer *from, int *n_flows)
{
    const int64_t n_bytes = to->count * (int64_t)dh_dtype_bytes(to->dtype);
    DH_TRY(compare_ends(ctx, l, from, to));
    if (to->peer != l->me) {
        DH_TRY(peer_wait_ready(ctx, stream, l->room->seats[to->peer].ready));
        peer_pace_transfer(l, stream, (*n_flows)++, to->peer, n_bytes);
    }
    return copy(ctx, stream, to->buf, from->buf, n_bytes);
}

/* Puts all receives that are possible by now on the stream. On a paced wire these share it, and
 * their senders go on when all of them are over. */
static dh_status take_wave(dh_ctx *ctx, peer_link *l, cudaStream_t stream, size_t *n_taken)
{
    peer_seat *seat = &l->room->seats[l->me];
    bool from[PEER_MOST] = {false};
    int n_flows = 0;
    *n_taken = 0;
    for (size_t i = 0; i < seat->n_posts && n_flows < PEER_MOST_FLOWS; i++) {
        peer_post *to = &seat->posts[i];
        if (to->done || to->xfer.direction != DH_XFER_RECV) continue;
        peer_post *sent = find_send(l, to->xfer.peer);
        if (!sent) continue;
        DH_TRY(take(ctx, l, stream, &to->xfer, &sent->xfer, &n_flows));
        to->done = sent->done = from[to->xfer.peer] = true;
        ++*n_taken;
    }
    if (n_flows > 0) peer_pace_transfers(l, stream, n_flows);
    CUDA_TRY(cudaGetLastError());
    for (int j = 0; j < l->n; j++)
        if (from[j] && j != l->me) CUDA_TRY(cudaEventRecord(seat->taken[j], stream));
    return DH_OK;
}

static bool all_done(const peer_seat *seat)
{
    for (size_t i = 0; i < seat->n_posts; i++)
        if (!seat->posts[i].done) return false;
    return true;
}

static dh_status transfer_all(dh_ctx *ctx, peer_link *l, cudaStream_t stream)
{
    const peer_seat *seat = &l->room->seats[l->me];
    const int64_t deadline = deadline_of(l);
    while (!all_done(seat)) {
        size_t n_taken;
        DH_TRY(take_wave(ctx, l, stream, &n_taken));
        if (n_taken > 0)
            peer_moved(l->room);
        else
            DH_TRY(peer_await(ctx, l, kind_names[DH_DEVLINK_TRANSFERS], deadline));
    }
    for (size_t i = 0; i < seat->n_posts; i++) {
        const dh_comm_xfer *x = &seat->posts[i].xfer;
        if (x->direction == DH_XFER_SEND && x->peer != l->me)
            DH_TRY(peer_wait_done(ctx, stream, l->room->seats[x->peer].taken[l->me]));
    }
    return DH_OK;
}

static bool receives(const peer_link *l)
{
    const peer_seat *seat = &l->room->seats[l->me];
    for (size_t i = 0; i < seat->n_posts; i++)
        if (seat->posts[i].xfer.direction == DH_XFER_RECV && seat->posts[i].xfer.peer != l->me)
            return true;
    return false;
}

static dh_status transfers(dh_ctx *ctx, peer_link *l, cudaStream_t stream, const dh_devlink_call *c)
{
    peer_seat *seat = &l->room->seats[l->me];
    DH_ASSERT(c->n_xfers <= l->n_posts, "%zu transfers at once, room for %zu", c->n_xfers,
              l->n_posts);
    for (size_t i = 0; i < c->n_xfers; i++) {
        seat->posts[i] = (peer_post){.xfer = c->xfers[i]};
        seat->posts[i].xfer.dtype = c->dtype;
    }
    seat->n_posts = c->n_xfers;
    peer_moved(l->room);
    const dh_status st = transfer_all(ctx, l, stream);
    if (st == DH_OK && receives(l)) peer_pace_latency(l, stream, c->steps);
    seat->n_posts = 0;
    return st;
}

dh_status peer_call(dh_ctx *ctx, peer_link *l, cudaStream_t stream, const dh_devlink_call *c)
{
    DH_TRY(peer_check(ctx, l));
    CUDA_TRY(cudaEventRecord(l->room->seats[l->me].ready, stream));
    return c->kind == DH_DEVLINK_TRANSFERS ? transfers(ctx, l, stream, c)
                                           : collective(ctx, l, stream, c);
}
