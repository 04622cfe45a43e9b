/* NCCL on the host, for tests: what ranks call meets on their streams.
 *
 * A call is one work of its stream. It has come once it is the next there and may run. A collective
 * is made when all members' calls have come, and must be the same for all. A send is made when its
 * receive has come, and must be as long.
 *
 * Each of these errors ends the communicator and says why. GPUs would hang, or compute something
 * else.
 *   - Calls do not fit together.
 *   - All members wait for calls in another order.
 *   - Memory is not that of the member's device.
 *   - Two members are on one device.
 *   - A communicator is on two streams.
 *
 * Sums go round the members, each slice from another one on, and are rounded at every step: an
 * order of NCCL's rings. */
#include <nccl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/c_locale.h"
#include "run/cuda/host/inside.h"
#include "run/cuda/host/sums.h"

typedef enum call_kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, TRANSFERS } call_kind;
static const char *const kind_names[] = {"all-gather", "reduce-scatter", "all-reduce",
                                         "a group of transfers"};

typedef struct xfer {
    bool sends, done;
    int peer;
    char *at;
    size_t n_bytes;
} xfer;

typedef struct call {
    ncclComm_t comm;
    cudaStream_t stream;
    call_kind kind;
    const char *send;
    char *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    xfer *xfers;
    size_t n_xfers;
    bool done;
} call;

/* All members' view of a communicator. */
typedef struct world {
    struct world *next;
    ncclUniqueId id;
    int n, n_joined, n_alive;
    ncclComm_t *members; /* [n] */
    char trouble[200];   /* "": none */
} world;

struct ncclComm {
    world *world;
    int rank, device;
    cudaStream_t stream, runs_on; /* its calls' stream; these run here, or in a graph */
    call *next;                   /* that has come */
    int64_t n_under_way;
    int n_excuses; /* it says that it is in progress so many times more */
    bool aborted, left;
};

static world *worlds;
static uint64_t n_ids, n_calls;
static int last_ctas;
static bool last_spares;
static char last_trouble[200];

/* ---- trouble: locked ------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void stop(world *w, const char *format, ...)
{
    va_list args;
    if (w->trouble[0]) return;
    va_start(args, format);
    dh_vsnprintf(w->trouble, sizeof w->trouble, format, args);
    va_end(args);
    memcpy(last_trouble, w->trouble, sizeof last_trouble);
    fprintf(stderr, "nccl on the host: %s\n", w->trouble);
    host_wake_all();
}

static void free_member(ncclComm_t c)
{
    world *w = c->world, **at = &worlds;
    w->members[c->rank] = NULL;
    free(c);
    if (--w->n_alive > 0) return;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    free(w->members);
    free(w);
}

/* ---- data: locked ---------------------------------------------------------------------------- */

static const call *call_of(const world *w, int rank)
{
    return w->members[rank]->next;
}

/* Elements [at, at + n) of all members, beginning behind member `last`, which adds its own last. */
static void reduce(const world *w, int last, size_t at, size_t n, char *to)
{
    const call *c = call_of(w, 0);
    const size_t item = host_type_bytes(c->type);
    for (int k = 1; k <= w->n; k++) {
        const char *from = call_of(w, (last + k) % w->n)->send + at * item;
        if (k == 1)
            memcpy(to, from, n * item);
        else
            for (size_t i = 0; i < n; i++) host_add_into(c->type, c->op, to, from, i);
    }
}

/* Slices of all members one after another; those of an all-reduce are nearly equal. */
static void make_reduction(const world *w, char *all)
{
    const call *c = call_of(w, 0);
    const size_t item = host_type_bytes(c->type), n = (size_t)w->n;
    const bool scatters = c->kind == REDUCE_SCATTER;
    const size_t total = scatters ? c->count * n : c->count;
    const size_t each = scatters ? c->count : (total + n - 1) / n;
    for (size_t j = 0; j < n; j++) {
        const size_t at = DH_MIN(j * each, total);
        reduce(w, (int)j, at, DH_MIN(at + each, total) - at, all + at * item);
    }
    for (size_t j = 0; j < n; j++)
        memcpy(call_of(w, (int)j)->recv, all + (scatters ? j * each * item : 0), c->count * item);
}

static void make_all_gather(const world *w, char *all)
{
    const call *c = call_of(w, 0);
    const size_t n_bytes = c->count * host_type_bytes(c->type);
    for (int j = 0; j < w->n; j++) memcpy(all + (size_t)j * n_bytes, call_of(w, j)->send, n_bytes);
    for (int j = 0; j < w->n; j++) memcpy(call_of(w, j)->recv, all, (size_t)w->n * n_bytes);
}

/* Through memory of its own, so that calls in place read what was there. */
static void make_collective(const world *w)
{
    const call *c = call_of(w, 0);
    char *all = malloc((size_t)w->n * c->count * host_type_bytes(c->type) + 1);
    DH_CHECK(all, "no memory for a collective");
    host_open_memory();
    if (c->kind == ALL_GATHER)
        make_all_gather(w, all);
    else
        make_reduction(w, all);
    host_close_memory();
    free(all);
    for (int r = 0; r < w->n; r++) w->members[r]->next->done = true;
}

/* ---- meeting: locked ------------------------------------------------------------------------- */

static bool all_have_come(const world *w)
{
    for (int r = 0; r < w->n; r++)
        if (!w->members[r] || !w->members[r]->next) return false;
    return true;
}

/* Where all members' collectives have come. False: they do not fit together. */
static bool fit_together(world *w)
{
    const call *a = call_of(w, 0);
    for (int r = 1; r < w->n; r++) {
        const call *b = call_of(w, r);
        if (a->kind == b->kind && a->count == b->count && a->type == b->type && a->op == b->op)
            continue;
        stop(w, "member 0 calls %s of %zu elements of type %d, member %d %s of %zu of type %d",
             kind_names[a->kind], a->count, (int)a->type, r, kind_names[b->kind], b->count,
             (int)b->type);
        return false;
    }
    return true;
}

/* The receive that a send is for, or the other way round: the first that is left. */
static xfer *counterpart(const world *w, int rank, const xfer *x)
{
    call *c = w->members[x->peer] ? w->members[x->peer]->next : NULL;
    for (size_t i = 0; c && i < c->n_xfers; i++) {
        xfer *y = &c->xfers[i];
        if (!y->done && y->peer == rank && y->sends != x->sends) return y;
    }
    return NULL;
}

static void note_done(call *c)
{
    c->done = true;
    for (size_t i = 0; i < c->n_xfers; i++) c->done = c->done && c->xfers[i].done;
}

static bool make_transfers(world *w, call *c)
{
    bool moved = false;
    for (size_t i = 0; i < c->n_xfers; i++) {
        xfer *x = &c->xfers[i], *y = x->done ? NULL : counterpart(w, c->comm->rank, x);
        if (!y) continue;
        if (x->n_bytes != y->n_bytes) {
            stop(w, "member %d %s %zu bytes, member %d %s %zu", c->comm->rank,
                 x->sends ? "sends" : "receives", x->n_bytes, x->peer,
                 y->sends ? "sends" : "receives", y->n_bytes);
            return true;
        }
        const xfer *from = x->sends ? x : y, *to = x->sends ? y : x;
        host_open_memory();
        memmove(to->at, from->at, x->n_bytes);
        host_close_memory();
        x->done = y->done = moved = true;
        note_done(w->members[x->peer]->next);
    }
    note_done(c);
    return moved;
}

/* Some member's transfer has its other half here, and is made when that member is looked at. */
static bool some_can_go(const world *w)
{
    for (int r = 0; r < w->n; r++) {
        const call *c = call_of(w, r);
        if (c->done) return true;
        for (size_t i = 0; i < c->n_xfers; i++)
            if (!c->xfers[i].done && counterpart(w, r, &c->xfers[i])) return true;
    }
    return false;
}

/* True: something has changed. */
static bool go_on(world *w, call *c)
{
    bool some_collective = false;
    if (c->kind == TRANSFERS && make_transfers(w, c)) return true;
    if (c->done || !all_have_come(w) || some_can_go(w)) return false;
    for (int r = 0; r < w->n; r++)
        some_collective = some_collective || call_of(w, r)->kind != TRANSFERS;
    if (!some_collective)
        stop(w, "all %d members wait for transfers that none of the others makes", w->n);
    else if (fit_together(w))
        make_collective(w);
    return true;
}

static void leave(call *c)
{
    ncclComm_t comm = c->comm;
    if (comm->next == c) comm->next = NULL;
    if (--comm->n_under_way == 0 && comm->left) free_member(comm);
    free(c->xfers);
    free(c);
}

static bool meet(void *user, bool wanted)
{
    call *c = user;
    world *w = c->comm->world;
    c->comm->next = c;
    if (!c->done && !c->comm->aborted && !w->trouble[0] && go_on(w, c)) host_wake_all();
    if (c->done || c->comm->aborted || w->trouble[0]) {
        if (!c->done && !c->comm->aborted) host_break(c->stream, cudaErrorLaunchFailure);
        leave(c);
        return true;
    }
    for (int r = 0; wanted && r < w->n; r++)
        if (w->members[r] && w->members[r]->runs_on) host_want(w->members[r]->runs_on);
    return false;
}

static void *begin(const void *pattern, cudaStream_t stream)
{
    const call *like = pattern;
    const size_t n_bytes = like->n_xfers * sizeof *like->xfers;
    call *c = malloc(sizeof *c);
    xfer *xfers = malloc(n_bytes + 1);
    DH_CHECK(c && xfers, "no memory for a call");
    *c = *like;
    c->xfers = xfers;
    if (n_bytes) memcpy(xfers, like->xfers, n_bytes);
    c->stream = c->comm->runs_on = stream;
    c->comm->n_under_way++;
    return c;
}

static void drop(void *pattern)
{
    call *c = pattern;
    free(c->xfers);
    free(c);
}

static const host_meeting meetings = {meet, begin, drop};

/* ---- calls ----------------------------------------------------------------------------------- */

static _Thread_local struct {
    int depth;
    call *call; /* of transfers */
    ncclResult_t result;
} group;

static ncclResult_t excuse(ncclComm_t comm)
{
    if (++n_calls % 3 != 0) return ncclSuccess;
    comm->n_excuses = 2;
    return ncclInProgress;
}

static ncclResult_t put(call *c)
{
    ncclComm_t comm = c->comm;
    pthread_mutex_lock(&host_lock);
    world *w = comm->world;
    if (comm->stream && comm->stream != c->stream) stop(w, "a communicator on two streams");
    comm->stream = c->stream;
    const ncclResult_t result = w->trouble[0] ? ncclInvalidUsage : excuse(comm);
    pthread_mutex_unlock(&host_lock);
    return host_put_meeting(c->stream, &meetings, c) == cudaSuccess ? result
                                                                    : ncclUnhandledCudaError;
}

static bool is_ready(ncclComm_t comm)
{
    pthread_mutex_lock(&host_lock);
    const bool ready = comm->world->n_joined == comm->world->n && !comm->aborted;
    pthread_mutex_unlock(&host_lock);
    return ready;
}

static bool lies_there(ncclComm_t comm, const void *at, size_t n_bytes)
{
    return n_bytes == 0 || host_lies_on(at, n_bytes, comm->device);
}

static ncclResult_t collective(const call *like, size_t n_send, size_t n_recv)
{
    const size_t item = host_type_bytes(like->type);
    if (group.depth > 0 || !is_ready(like->comm)) return ncclInvalidUsage;
    if (!lies_there(like->comm, like->send, n_send * item) ||
        !lies_there(like->comm, like->recv, n_recv * item))
        return ncclInvalidArgument;
    call *c = malloc(sizeof *c);
    if (!c) return ncclSystemError;
    *c = *like;
    return put(c);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    const call c = {comm, stream, ALL_REDUCE, sendbuff, recvbuff, count, datatype, op, NULL, 0, 0};
    return collective(&c, count, count);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    const call c = {comm,     stream, REDUCE_SCATTER, sendbuff, recvbuff, recvcount,
                    datatype, op,     NULL,           0,        0};
    return collective(&c, recvcount * (size_t)comm->world->n, recvcount);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    const call c = {comm,     stream,  ALL_GATHER, sendbuff, recvbuff, sendcount,
                    datatype, ncclSum, NULL,       0,        0};
    return collective(&c, sendcount, sendcount * (size_t)comm->world->n);
}

/* NCCL's header has them without prototypes. */
ncclResult_t ncclGroupStart(void); /* NOLINT(readability-redundant-declaration) */
ncclResult_t ncclGroupEnd(void);   /* NOLINT(readability-redundant-declaration) */

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0) return ncclInvalidUsage;
    if (--group.depth > 0) return ncclSuccess;
    call *c = group.call;
    const ncclResult_t result = group.result;
    group.call = NULL;
    group.result = ncclSuccess;
    if (result == ncclSuccess) return c ? put(c) : ncclSuccess;
    if (c) free(c->xfers);
    free(c);
    return result;
}

/* Adds to the calling thread's group; outside of one it is one of its own. */
static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const xfer *x)
{
    if (!is_ready(comm)) return ncclInvalidUsage;
    if (x->peer < 0 || x->peer >= comm->world->n || !lies_there(comm, x->at, x->n_bytes))
        return ncclInvalidArgument;
    call *c = group.call;
    if (!c) {
        c = group.call = calloc(1, sizeof *c);
        if (!c) return ncclSystemError;
        *c = (call){.comm = comm, .stream = stream, .kind = TRANSFERS};
    }
    if (c->comm != comm || c->stream != stream) return ncclInvalidUsage;
    xfer *grown = realloc(c->xfers, (c->n_xfers + 1) * sizeof *grown);
    if (!grown) return ncclSystemError;
    c->xfers = grown;
    c->xfers[c->n_xfers++] = *x;
    return ncclSuccess;
}

static ncclResult_t transfer(ncclComm_t comm, cudaStream_t stream, const xfer *x)
{
    ncclGroupStart();
    const ncclResult_t result = add(comm, stream, x);
    if (result != ncclSuccess && group.result == ncclSuccess) group.result = result;
    const ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    const xfer x = {true, false, peer, (char *)(uintptr_t)sendbuff,
                    count * host_type_bytes(datatype)};
    return transfer(comm, stream, &x);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    const xfer x = {false, false, peer, recvbuff, count * host_type_bytes(datatype)};
    return transfer(comm, stream, &x);
}

/* ---- communicators --------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22800;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited",
                                        "operation in progress"};
    return (unsigned)result < DH_COUNTOF(texts) ? texts[result] : "unknown";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->world->trouble : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    pthread_mutex_lock(&host_lock);
    memset(uniqueId, 0, sizeof *uniqueId);
    snprintf(uniqueId->internal, sizeof uniqueId->internal, "%llu", (unsigned long long)++n_ids);
    pthread_mutex_unlock(&host_lock);
    return ncclSuccess;
}

static world *find_world(const ncclUniqueId *id, int n)
{
    world *w = worlds;
    while (w && memcmp(&w->id, id, sizeof *id) != 0) w = w->next;
    if (w) return w;
    w = calloc(1, sizeof *w);
    ncclComm_t *members = calloc((size_t)n, sizeof *members);
    DH_CHECK(w && members, "no memory for a communicator");
    *w = (world){.next = worlds, .id = *id, .n = n, .members = members};
    worlds = w;
    return w;
}

static void join(world *w, ncclComm_t c)
{
    for (int r = 0; r < w->n; r++)
        if (w->members[r] && w->members[r]->device == c->device)
            stop(w, "members %d and %d are on one device", r, c->rank);
    w->members[c->rank] = c;
    w->n_joined++;
    w->n_alive++;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    if (config->blocking != 0 || nranks < 1 || rank < 0 || rank >= nranks)
        return ncclInvalidArgument;
    ncclComm_t c = calloc(1, sizeof *c);
    ncclResult_t result = ncclInProgress;
    pthread_mutex_lock(&host_lock);
    world *w = NULL;
    if (!c || host_refuses_object()) {
        result = ncclSystemError;
    } else {
        w = find_world(&commId, nranks);
        if (w->n != nranks || w->members[rank]) {
            host_drop_object();
            result = ncclInvalidArgument;
        }
    }
    if (result == ncclInProgress) {
        *c = (struct ncclComm){.world = w, .rank = rank, .device = host_device()};
        join(w, c);
        *comm = c;
        last_ctas = config->maxCTAs;
#ifdef NCCL_CTA_POLICY_EFFICIENCY
        last_spares = config->CTAPolicy == NCCL_CTA_POLICY_EFFICIENCY;
#endif
    } else {
        free(c);
    }
    pthread_mutex_unlock(&host_lock);
    return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    pthread_mutex_lock(&host_lock);
    const world *w = comm->world;
    *asyncError = w->trouble[0]                                 ? ncclInvalidUsage
                  : w->n_joined < w->n || comm->n_excuses-- > 0 ? ncclInProgress
                                                                : ncclSuccess;
    comm->n_excuses = DH_MAX(comm->n_excuses, 0);
    pthread_mutex_unlock(&host_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    pthread_mutex_lock(&host_lock);
    const ncclResult_t result = excuse(comm);
    pthread_mutex_unlock(&host_lock);
    return result;
}

static ncclResult_t end(ncclComm_t comm, bool aborts)
{
    pthread_mutex_lock(&host_lock);
    host_drop_object();
    comm->aborted = aborts;
    comm->left = true;
    if (comm->n_under_way == 0) free_member(comm);
    host_wake_all();
    pthread_mutex_unlock(&host_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return end(comm, false);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return end(comm, true);
}

/* ---- for tests ------------------------------------------------------------------------------- */

bool dh_host_last_spares(void)
{
    pthread_mutex_lock(&host_lock);
    const bool spares = last_spares;
    pthread_mutex_unlock(&host_lock);
    return spares;
}

int dh_host_last_ctas(void)
{
    pthread_mutex_lock(&host_lock);
    const int n = last_ctas;
    pthread_mutex_unlock(&host_lock);
    return n;
}

void dh_host_take_trouble(char text[200])
{
    pthread_mutex_lock(&host_lock);
    memcpy(text, last_trouble, sizeof last_trouble);
    last_trouble[0] = '\0';
    pthread_mutex_unlock(&host_lock);
}
