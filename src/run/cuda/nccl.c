/* Links of the cuda device: one NCCL communicator a group, all of whose calls are on one stream.
 *
 * Members agree through the group (dh_comm), be they threads or processes: which GPU each has, then
 * NCCL's unique id. Two ranks on one GPU have no communicator, which NCCL would refuse (peers.c has
 * links for them). Communicators do not block. A wait for one to come up, or for a call to be
 * taken, looks at the other ranks meanwhile. So a rank that fails ends all.
 *
 * Sums are in the order of NCCL's algorithm, and bf16 is rounded along the way. Bits are the same
 * in a repeated run, but differ from other communicators, which add in the order of ranks.
 *
 * A communicator takes processors from the kernels that compute beside it. It is therefore held to
 * some (parallel.gpu_comm_sms), and GEMMs are planned for the rest (dh_cuda_sms_of_links). Calls of
 * one stream are never under way together: of its communicators, those of evaluation among them,
 * the greatest counts. It has never run on GPUs. */
#include "run/cuda/link.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "costs/link_sms.h"
#include "run/cuda/cuda.h"
#include "run/cuda/kernels.h"

/* Communicators of a GPU by stream and processors. */
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_held[DH_CUDA_MOST_GPUS][DH_N_STREAM][DH_LINK_SMS_MOST + 1];

static int most_of_stream(int gpu, int stream)
{
    int n = DH_LINK_SMS_MOST;
    while (n > 0 && n_held[gpu][stream][n] == 0) n--;
    return n;
}

int dh_cuda_sms_of_links(int gpu)
{
    int n = 0;
    if (gpu < 0 || gpu >= DH_CUDA_MOST_GPUS) return 0;
    pthread_mutex_lock(&held_lock);
    for (int s = 0; s < DH_N_STREAM; s++) n += most_of_stream(gpu, s);
    pthread_mutex_unlock(&held_lock);
    return n;
}

#ifdef DH_HAVE_NCCL
#include <nccl.h>

typedef struct cuda_link {
    const char *name; /* of the group */
    dh_comm *comm;
    ncclComm_t at;
    int gpu, stream, sms, me, n;
    bool holds;
    pthread_mutex_t lock; /* of what follows */
    bool aborted;
} cuda_link;

/* ---- calls that fail, calls that take their time ----------------------------------------------
 */

static dh_status nccl_fail(dh_ctx *ctx, const cuda_link *l, ncclResult_t result, const char *call)
{
    return dh_fail(ctx, result == ncclSystemError ? DH_ENOMEM : DH_EINTERNAL,
                   "NCCL: %s on group %s: %s (%s)", call, l->name, ncclGetErrorString(result),
                   l->at ? ncclGetLastError(l->at) : "no communicator");
}

static dh_status late(dh_ctx *ctx, const cuda_link *l, const char *call)
{
    return dh_fail(ctx, DH_ECOMM, "waited %.3g s for the other ranks of group %s in %s",
                   (double)dh_comm_timeout_ns(l->comm) * 1e-9, l->name, call);
}

/* Until a call that has been begun is taken. */
static dh_status settle(dh_ctx *ctx, const cuda_link *l, ncclResult_t result, const char *call)
{
    enum { PAUSE_NS = 20 * 1000 };
    const int64_t deadline = dh_now_ns() + dh_comm_timeout_ns(l->comm);
    while (result == ncclInProgress && l->at) {
        DH_TRY(dh_comm_check(ctx, l->comm));
        if (dh_now_ns() > deadline) return late(ctx, l, call);
        const ncclResult_t asked = ncclCommGetAsyncError(l->at, &result);
        if (asked != ncclSuccess) result = asked;
        if (result == ncclInProgress) dh_sleep_until_ns(dh_now_ns() + PAUSE_NS);
    }
    return result == ncclSuccess ? DH_OK : nccl_fail(ctx, l, result, call);
}

#define NCCL_TRY(call) DH_TRY(settle(ctx, l, (call), #call))

/* ---- making one -------------------------------------------------------------------------------
 */

static dh_status gpu_of_rank(dh_ctx *ctx, const dh_slab *slab, cudaUUID_t *uuid)
{
    struct cudaDeviceProp gpu;
    CUDA_TRY(cudaGetDeviceProperties(&gpu, cuda_gpu_of(slab)));
    *uuid = gpu.uuid;
    return DH_OK;
}

/* 0: what stands in its place where a machine has none (scripts/bundle.sh). */
static int nccl_version(void)
{
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

/* Members that have the same GPU, by their places in the group; false: there are none. */
static bool find_shared(const cudaUUID_t *uuids, int n, int *a, int *b)
{
    for (*a = 0; *a < n; ++*a)
        for (*b = *a + 1; *b < n; ++*b)
            if (memcmp(&uuids[*a], &uuids[*b], sizeof *uuids) == 0) return true;
    return false;
}

/* NCCL refuses ranks that share a GPU, unless it is told otherwise by its own variable. */
static bool may_share(void)
{
    const char *text = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return text && strcmp(text, "1") == 0;
}

/* why: stays empty where every member has a GPU of its own. */
static dh_status compare_gpus(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec,
                              char *why, size_t cap)
{
    int a, b;
    cudaUUID_t mine;
    cudaUUID_t *all = calloc((size_t)spec->n, sizeof *all);
    if (!all) return dh_no_memory(ctx);
    dh_status st = gpu_of_rank(ctx, slab, &mine);
    if (st == DH_OK) st = dh_comm_all_gather(ctx, spec->group, &mine, all, sizeof mine, DH_U8);
    if (st == DH_OK && !may_share() && find_shared(all, spec->n, &a, &b))
        snprintf(why, cap, "members %d and %d of group %s have the same GPU", a, b, spec->name);
    free(all);
    return st;
}

/* One more, or one less. */
static void hold(const cuda_link *l, int more)
{
    if (!l->holds || l->gpu < 0 || l->gpu >= DH_CUDA_MOST_GPUS) return;
    pthread_mutex_lock(&held_lock);
    n_held[l->gpu][l->stream][DH_MIN(l->sms, (int)DH_LINK_SMS_MOST)] += more;
    pthread_mutex_unlock(&held_lock);
}

static dh_status come_up(dh_ctx *ctx, cuda_link *l, const dh_devlink_spec *spec)
{
    ncclUniqueId id = {{0}};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = l->name;
    if (l->sms > 0) config.maxCTAs = l->sms;
#ifdef NCCL_CTA_POLICY_EFFICIENCY /* from 2.27 on */
    if (spec->spares) config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
#endif
    if (l->me == 0) NCCL_TRY(ncclGetUniqueId(&id));
    DH_TRY(dh_comm_broadcast(ctx, spec->group, &id, sizeof id, DH_U8, 0));
    CUDA_TRY(cudaSetDevice(l->gpu));
    NCCL_TRY(ncclCommInitRankConfig(&l->at, l->n, id, l->me, &config));
    return DH_OK;
}

static void say_what_it_is(void)
{
    char text[64];
    dh_log(DH_LOG_WARN,
           "ranks communicate by %s: compiled, and tested on the host, never run on GPUs",
           dh_cuda_nccl_version(text, sizeof text));
}

static void link_abort(dh_devlink *link)
{
    cuda_link *l = (cuda_link *)link;
    pthread_mutex_lock(&l->lock);
    if (!l->aborted && l->at) ncclCommAbort(l->at);
    l->aborted = true;
    pthread_mutex_unlock(&l->lock);
}

static void link_destroy(dh_devlink *link)
{
    cuda_link *l = (cuda_link *)link;
    dh_ctx ctx = DH_CTX_INIT;
    if (!l) return;
    if (l->at && !l->aborted) {
        if (settle(&ctx, l, ncclCommFinalize(l->at), "ncclCommFinalize") != DH_OK)
            link_abort(link);
        else
            ncclCommDestroy(l->at);
    }
    hold(l, -1);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static dh_status link_create(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec,
                             dh_devlink **link, char *why, size_t cap)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    why[0] = '\0';
    if (nccl_version() == 0) {
        snprintf(why, cap, "the machine has no NCCL");
        return DH_OK;
    }
    DH_TRY(compare_gpus(ctx, slab, spec, why, cap));
    if (why[0]) return DH_OK;
    cuda_link *l = calloc(1, sizeof *l);
    if (!l) return dh_no_memory(ctx);
    *l = (cuda_link){.name = spec->name,
                     .comm = spec->comm,
                     .gpu = cuda_gpu_of(slab),
                     .stream = spec->stream,
                     .sms = spec->sms,
                     .holds = spec->holds,
                     .me = dh_comm_group_index(spec->group),
                     .n = spec->n};
    pthread_mutex_init(&l->lock, NULL);
    hold(l, 1);
    const dh_status st = come_up(ctx, l, spec);
    if (st != DH_OK) {
        link_abort((dh_devlink *)l);
        link_destroy((dh_devlink *)l);
        return st;
    }
    pthread_once(&once, say_what_it_is);
    *link = (dh_devlink *)l;
    return DH_OK;
}

/* ---- calls ------------------------------------------------------------------------------------
 */

static dh_status type_of(dh_ctx *ctx, dh_dtype dtype, ncclDataType_t *type)
{
    static const struct {
        dh_dtype ours;
        ncclDataType_t theirs;
    } types[] = {{DH_F32, ncclFloat32}, {DH_BF16, ncclBfloat16}, {DH_F64, ncclFloat64},
                 {DH_I32, ncclInt32},   {DH_I64, ncclInt64},     {DH_U8, ncclUint8}};
    for (size_t i = 0; i < DH_COUNTOF(types); i++)
        if (types[i].ours == dtype) {
            *type = types[i].theirs;
            return DH_OK;
        }
    return dh_fail(ctx, DH_EUNSUPPORTED, "NCCL carries no %s", dh_dtype_name(dtype));
}

/* Within a group of NCCL's, whose end says what became of them. */
static ncclResult_t add_transfers(const cuda_link *l, cudaStream_t stream, const dh_devlink_call *c,
                                  ncclDataType_t type)
{
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < c->n_xfers && (result == ncclSuccess || result == ncclInProgress); i++) {
        const dh_comm_xfer *x = &c->xfers[i];
        const size_t n = (size_t)x->count;
        result = x->direction == DH_XFER_SEND ? ncclSend(x->buf, n, type, x->peer, l->at, stream)
                                              : ncclRecv(x->buf, n, type, x->peer, l->at, stream);
    }
    return result;
}

static dh_status transfer(dh_ctx *ctx, const cuda_link *l, cudaStream_t stream,
                          const dh_devlink_call *c, ncclDataType_t type)
{
    if (c->n_xfers == 0) return DH_OK;
    NCCL_TRY(ncclGroupStart());
    const ncclResult_t added = add_transfers(l, stream, c, type), ended = ncclGroupEnd();
    const bool failed = added != ncclSuccess && added != ncclInProgress;
    return settle(ctx, l, failed ? added : ended, "transfers");
}

static dh_status make_call(dh_ctx *ctx, const cuda_link *l, cudaStream_t stream,
                           const dh_devlink_call *c)
{
    const size_t n = (size_t)c->count;
    ncclDataType_t type = ncclUint8;
    DH_TRY(type_of(ctx, c->dtype, &type));
    switch (c->kind) {
    case DH_DEVLINK_ALL_GATHER:
        NCCL_TRY(ncclAllGather(c->send, c->recv, n, type, l->at, stream));
        break;
    case DH_DEVLINK_REDUCE_SCATTER:
        NCCL_TRY(ncclReduceScatter(c->send, c->recv, n, type, ncclSum, l->at, stream));
        break;
    case DH_DEVLINK_ALL_REDUCE:
        NCCL_TRY(ncclAllReduce(c->send, c->recv, n, type, ncclSum, l->at, stream));
        break;
    case DH_DEVLINK_TRANSFERS:
        return transfer(ctx, l, stream, c, type);
    }
    return DH_OK;
}

/* An abort comes between two calls, never into one. */
static dh_status link_call(dh_ctx *ctx, dh_devlink *link, void *stream, const dh_devlink_call *call)
{
    cuda_link *l = (cuda_link *)link;
    pthread_mutex_lock(&l->lock);
    const dh_status st =
        l->aborted ? dh_fail(ctx, DH_ECOMM, "the communicator of group %s has ended", l->name)
                   : make_call(ctx, l, stream, call);
    pthread_mutex_unlock(&l->lock);
    return st;
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

static dh_status link_check(dh_ctx *ctx, dh_devlink *link)
{
    cuda_link *l = (cuda_link *)link;
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&l->lock);
    if (!l->aborted) {
        const ncclResult_t asked = ncclCommGetAsyncError(l->at, &result);
        if (asked != ncclSuccess) result = asked;
    }
    const dh_status st = result == ncclSuccess || result == ncclInProgress
                             ? DH_OK
                             : nccl_fail(ctx, l, result, "a call");
    pthread_mutex_unlock(&l->lock);
    return st;
}

const char *dh_cuda_nccl_version(char *buf, size_t cap)
{
    const int version = nccl_version();
    if (version > 0)
        snprintf(buf, cap, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    else
        snprintf(buf, cap, "no NCCL");
    return buf;
}

const dh_devlinks dh_cuda_nccl_links = {
    .name = "nccl",
    .kind = DH_LINKS_NCCL,
    .create = link_create,
    .destroy = link_destroy,
    .abort = link_abort,
    .check = link_check,
    .call = link_call,
    .zero = link_zero,
    .cast = link_cast,
};

#else

const char *dh_cuda_nccl_version(char *buf, size_t cap)
{
    snprintf(buf, cap, "no NCCL");
    return buf;
}

#endif
