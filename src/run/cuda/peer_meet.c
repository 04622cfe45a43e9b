/* Meeting in a room: threads of ranks that share a GPU wait for each other on the host, streams on
 * the GPU by events. */
#include <errno.h>
#include <time.h>

#include "run/cuda/peers.h"

void peer_moved(peer_room *room)
{
    pthread_cond_broadcast(&room->moved);
}

static dh_status late(dh_ctx *ctx, const peer_link *l, const char *what)
{
    const dh_status st =
        dh_fail(ctx, DH_ECOMM, "waited %.3g s for the other ranks of group %s in %s",
                (double)dh_comm_timeout_ns(l->comm) * 1e-9, l->name, what);
    dh_comm_abort(l->comm, ctx->message);
    return st;
}

static void pause_until(peer_room *room, int64_t ns)
{
    const struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)pthread_cond_timedwait(&room->moved, &room->lock, &ts);
}

/* A rank that fails outside this room is found by asking. */
dh_status peer_check(dh_ctx *ctx, const peer_link *l)
{
    DH_TRY(dh_comm_check(ctx, l->comm));
    return l->room->aborted ? dh_fail(ctx, DH_ECOMM, "the links of group %s have ended", l->name)
                            : DH_OK;
}

dh_status peer_await(dh_ctx *ctx, peer_link *l, const char *what, int64_t deadline_ns)
{
    enum { SLICE_NS = 10 * 1000 * 1000 };
    const int64_t now = dh_now_ns();
    DH_TRY(peer_check(ctx, l));
    if (now > deadline_ns) return late(ctx, l, what);
    pause_until(l->room, DH_MIN(deadline_ns, now + SLICE_NS) + 1);
    return peer_check(ctx, l);
}

dh_status peer_misfit(dh_ctx *ctx, peer_link *l, const char *text)
{
    const dh_status st =
        dh_fail(ctx, DH_ECOMM, "calls on group %s do not fit together: %s", l->name, text);
    dh_comm_abort(l->comm, ctx->message);
    l->room->aborted = true;
    peer_moved(l->room);
    return st;
}

dh_status peer_wait_ready(dh_ctx *ctx, void *stream, cudaEvent_t event)
{
    CUDA_TRY(cudaStreamWaitEvent(stream, event, 0));
    return DH_OK;
}

dh_status peer_wait_done(dh_ctx *ctx, void *stream, cudaEvent_t event)
{
    CUDA_TRY(cudaStreamWaitEvent(stream, event, 0));
    return DH_OK;
}
