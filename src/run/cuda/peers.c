/* Links of ranks that are threads of one process and share a GPU: copies and ordered sums on it.
 *
 * NCCL refuses such ranks, and memory of the host is a long way round. Here every call is a meeting
 * of the members' threads (peer_meet.c). After it each member puts its part on its own
 * stream. The part waits for events of the other members. It copies from their memory, or adds it
 * up in float32 in the order of ranks. A member's stream goes on once the others are through with
 * its memory (peer_calls.c). So the numbers are those of the communicator through the host, bit for
 * bit.
 *
 * Members agree through the group (dh_comm): which process and GPU each has, and where the first
 * one's room is. Whoever fails ends the room; the others look after the world while they wait. The
 * last to leave a room takes it down, events included: others may still wait for those of a member
 * that has gone. It has never run on a GPU. */
#include "run/cuda/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "run/cuda/kernels.h"

/* ---- rooms ------------------------------------------------------------------------------------
 */

static void seat_fini(peer_seat *s, int n)
{
    if (s->ready) cudaEventDestroy(s->ready);
    if (s->done) cudaEventDestroy(s->done);
    for (int i = 0; s->taken && i < n; i++)
        if (s->taken[i]) cudaEventDestroy(s->taken[i]);
    free(s->taken);
    free(s->posts);
}

static void room_destroy(peer_room *room)
{
    if (!room) return;
    for (int i = 0; room->seats && i < room->n; i++) seat_fini(&room->seats[i], room->n);
    pthread_cond_destroy(&room->moved);
    pthread_mutex_destroy(&room->lock);
    free(room->seats);
    free(room);
}

static size_t most_posts(int n)
{
    return (size_t)DH_MAX(2 * n, 4); /* of an operator's transfers: run/exec/links.c */
}

static dh_status seat_init(dh_ctx *ctx, peer_seat *s, int n)
{
    s->taken = calloc((size_t)n, sizeof *s->taken);
    s->posts = calloc(most_posts(n), sizeof *s->posts);
    if (!s->taken || !s->posts) return dh_no_memory(ctx);
    CUDA_TRY(cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
    for (int i = 0; i < n; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&s->taken[i], cudaEventDisableTiming));
    return DH_OK;
}

static dh_status room_create(dh_ctx *ctx, int n, peer_room **out)
{
    pthread_condattr_t attr;
    peer_room *room = calloc(1, sizeof *room);
    if (!room) return dh_no_memory(ctx);
    room->n = room->n_users = n;
    pthread_mutex_init(&room->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&room->moved, &attr);
    pthread_condattr_destroy(&attr);
    room->seats = calloc((size_t)n, sizeof *room->seats);
    dh_status st = room->seats ? DH_OK : dh_no_memory(ctx);
    for (int i = 0; st == DH_OK && i < n; i++) st = seat_init(ctx, &room->seats[i], n);
    if (st != DH_OK) {
        room_destroy(room);
        return st;
    }
    *out = room;
    return DH_OK;
}

/* ---- agreeing ---------------------------------------------------------------------------------
 */

/* A member's message to the others. */
typedef struct card {
    cudaUUID_t gpu;
    unsigned char process[16]; /* random: processes of containers have equal numbers */
    int64_t rank;
    uint64_t room; /* address of the first one's */
} card;

static unsigned char this_process[16];

static void draw_process(void)
{
    if (getrandom(this_process, sizeof this_process, 0) == (ssize_t)sizeof this_process) return;
    const uint64_t bits[2] = {(uint64_t)dh_now_ns(), (uint64_t)getpid()};
    memcpy(this_process, bits, sizeof bits);
}

static dh_status card_of(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec, card *c)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct cudaDeviceProp gpu;
    pthread_once(&once, draw_process);
    memset(c, 0, sizeof *c);
    CUDA_TRY(cudaSetDevice(cuda_gpu_of(slab)));
    CUDA_TRY(cudaGetDeviceProperties(&gpu, cuda_gpu_of(slab)));
    c->gpu = gpu.uuid;
    memcpy(c->process, this_process, sizeof c->process);
    c->rank = spec->rank;
    return DH_OK;
}

/* Why the members share no GPU in one process; false: they do. */
static bool are_apart(const card *cards, const dh_devlink_spec *spec, char *why, size_t cap)
{
    for (int i = 1; i < spec->n; i++) {
        const bool other_process =
            memcmp(cards[i].process, cards[0].process, sizeof cards[0].process) != 0;
        if (!other_process && memcmp(&cards[i].gpu, &cards[0].gpu, sizeof cards[0].gpu) == 0)
            continue;
        snprintf(why, cap, "members 0 and %d of group %s %s", i, spec->name,
                 other_process ? "are processes of their own" : "have GPUs of their own");
        return true;
    }
    return false;
}

static void *room_at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Either all members get the others' cards or none does: the first keeps its room until then. */
static dh_status exchange(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec,
                          peer_room *own, card *cards)
{
    card mine;
    DH_TRY(card_of(ctx, slab, spec, &mine));
    mine.room = (uint64_t)(uintptr_t)own;
    return dh_comm_all_gather(ctx, spec->group, &mine, cards, sizeof mine, DH_U8);
}

/* *room: stays NULL where why says the reason. */
static dh_status agree(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec, card *cards,
                       peer_room **room, char *why, size_t cap)
{
    peer_room *own = NULL;
    if (dh_comm_group_index(spec->group) == 0) DH_TRY(room_create(ctx, spec->n, &own));
    const dh_status st = exchange(ctx, slab, spec, own, cards);
    if (st == DH_OK && !are_apart(cards, spec, why, cap)) {
        *room = room_at(cards[0].room);
        return DH_OK;
    }
    room_destroy(own);
    return st;
}

/* ---- making one -------------------------------------------------------------------------------
 */

static void say_what_it_is(void)
{
    dh_log(DH_LOG_WARN, "ranks communicate by copies on the GPU that they share: compiled, and "
                        "tested on the host, never run on a GPU");
}

static void link_abort(dh_devlink *link)
{
    peer_link *l = (peer_link *)link;
    pthread_mutex_lock(&l->room->lock);
    l->room->aborted = true;
    peer_moved(l->room);
    pthread_mutex_unlock(&l->room->lock);
    peer_pace_stop(l);
}

static void leave(peer_room *room)
{
    pthread_mutex_lock(&room->lock);
    const bool last = --room->n_users == 0;
    pthread_mutex_unlock(&room->lock);
    if (last) room_destroy(room);
}

static void link_destroy(dh_devlink *link)
{
    peer_link *l = (peer_link *)link;
    if (!l) return;
    cudaSetDevice(l->gpu);
    peer_pace_destroy(l);
    if (l->room) leave(l->room);
    free(l);
}

static dh_status fill(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec, peer_link *l,
                      char *why, size_t cap)
{
    card cards[PEER_MOST];
    int ranks[PEER_MOST];
    DH_TRY(agree(ctx, slab, spec, cards, &l->room, why, cap));
    if (!l->room) return DH_OK;
    for (int i = 0; i < l->n; i++) ranks[i] = (int)cards[i].rank;
    return peer_pace_create(ctx, spec, ranks, l);
}

static dh_status link_create(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec,
                             dh_devlink **link, char *why, size_t cap)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    why[0] = '\0';
    if (spec->n > PEER_MOST) {
        snprintf(why, cap, "group %s has %d members, more than %d", spec->name, spec->n,
                 (int)PEER_MOST);
        return DH_OK;
    }
    peer_link *l = calloc(1, sizeof *l);
    if (!l) return dh_no_memory(ctx);
    *l = (peer_link){.name = spec->name,
                     .comm = spec->comm,
                     .gpu = cuda_gpu_of(slab),
                     .me = dh_comm_group_index(spec->group),
                     .n = spec->n,
                     .n_posts = most_posts(spec->n)};
    const dh_status st = fill(ctx, slab, spec, l, why, cap);
    if (st != DH_OK || why[0]) {
        link_destroy((dh_devlink *)l);
        return st;
    }
    pthread_once(&once, say_what_it_is);
    *link = (dh_devlink *)l;
    return DH_OK;
}

/* ---- the row ----------------------------------------------------------------------------------
 */

static dh_status link_call(dh_ctx *ctx, dh_devlink *link, void *stream, const dh_devlink_call *call)
{
    peer_link *l = (peer_link *)link;
    pthread_mutex_lock(&l->room->lock);
    const dh_status st = peer_call(ctx, l, stream, call);
    pthread_mutex_unlock(&l->room->lock);
    return st;
}

/* Nothing goes wrong behind a call that its stream does not tell of. */
static dh_status link_check(dh_ctx *ctx, dh_devlink *link)
{
    return DH_OK;
}

static dh_status link_zero(dh_ctx *ctx, void *stream, void *at, size_t n_bytes)
{
    if (n_bytes > 0) CUDA_TRY(cudaMemsetAsync(at, 0, n_bytes, stream));
    return DH_OK;
}

static void link_cast(void *stream, int64_t n, dh_dtype from, const void *x, dh_dtype to, void *y)
{
    if (n > 0) dh_cuda_cast(stream, n, from, x, to, y);
}

const dh_devlinks dh_cuda_peer_links = {
    .name = "copies on one GPU",
    .kind = DH_LINKS_DEVICE,
    .tells_parts = true,
    .paces = true,
    .uncaptured = "meets ranks whose steps are graphs of their own",
    .create = link_create,
    .destroy = link_destroy,
    .abort = link_abort,
    .check = link_check,
    .call = link_call,
    .zero = link_zero,
    .cast = link_cast,
};
