/* Whether what a job needs is there. A slab is reserved and only then touched, page by page: where
 * memory runs out in between the kernel ends the process. So what is planned is compared with what
 * is left first. */
#include "train/room.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "costs/cluster.h"

/* Masters and both moments, float32, of what is trained; of what is not at least bf16. */
enum { TRAINED_BYTES = 12, FROZEN_BYTES = 2 };

/* TUNING: a program as it lies in memory, and what its executor makes of it. */
enum { COPIES_OF_PROGRAM = 4 };

/* Threads that a rank has beside its own: three streams, two that write checkpoints. */
enum { STREAM_THREADS = 3, SAVER_THREADS = 2 };

/* ---- what is needed ------------------------------------------------------------------------- */

/* Stacks are reserved, hardly touched: they count where address space is limited. */
static double stack_bytes(const dh_job *job)
{
    struct rlimit limit;
    pthread_attr_t attr;
    size_t size = 8 << 20;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
    if (pthread_attr_init(&attr) == 0) {
        (void)pthread_attr_getstacksize(&attr, &size);
        pthread_attr_destroy(&attr);
    }
    return (double)size * (double)(DH_MAX(job->threads, 1) + STREAM_THREADS +
                                   (job->checkpoint_async ? SAVER_THREADS : 0));
}

dh_room dh_room_least(const dh_job *job)
{
    const double trained = (double)dh_model_n_trained(&job->model);
    const double frozen = (double)dh_model_n_params(&job->model) - trained;
    /* Without sharding every data-parallel rank has all moments; not of experts, which are shared
     * out among them. */
    const bool alike = !dh_sharing_of_job(job).moments && job->model.n_experts == 0;
    const double copies = alike ? (double)(job->dp * job->cp) : 1;
    dh_room room = {.n_ranks = job->ranks, .available = dh_memory_available(), .at_least = true};
    room.bytes = copies * (TRAINED_BYTES * trained + FROZEN_BYTES * frozen);
    room.rank_bytes = room.bytes / (double)job->ranks;
    return room;
}

dh_room dh_room_of(const dh_job *job, const dh_mesh_footprint *programs)
{
    const double n = (double)job->ranks;
    const double outside = DH_ROOM_OUTSIDE / 4.0 + stack_bytes(job) +
                           COPIES_OF_PROGRAM * (double)programs->program_bytes;
    /* Together the ranks copy the state once. */
    const double copied =
        job->checkpoint_async ? TRAINED_BYTES * (double)dh_model_n_trained(&job->model) : 0;
    return (dh_room){.n_ranks = job->ranks,
                     .rank_bytes = (double)programs->slab_bytes + outside + copied / n,
                     .bytes =
                         (double)programs->all_slabs_bytes + n * outside + copied + DH_ROOM_OUTSIDE,
                     .available = dh_memory_available()};
}

dh_room dh_room_of_rank(const dh_session_spec *spec, uint64_t slab_bytes)
{
    const double slab = spec->device->slab_is_host ? (double)slab_bytes : 0;
    return (dh_room){.n_ranks = 1,
                     .rank_bytes = slab + DH_ROOM_OUTSIDE,
                     .bytes = slab + DH_ROOM_OUTSIDE,
                     .available = dh_memory_available(),
                     .of_model = !spec->train};
}

/* Checkpoints that are written aside copy the state once; the ranks of a machine share that. */
double dh_room_planned(const dh_job *job, int64_t n_local)
{
    const double copied =
        job->checkpoint_async ? TRAINED_BYTES * (double)dh_model_n_trained(&job->model) : 0;
    const double usable = dh_memory_total() * (1 - DH_MEMORY_RESERVE) - copied - DH_ROOM_OUTSIDE;
    return DH_MAX(usable / (double)DH_MAX(n_local, 1) - DH_ROOM_OUTSIDE / 4.0, 0);
}

/* ---- what is there -------------------------------------------------------------------------- */

bool dh_room_is_there(const dh_room *room)
{
    return room->available == 0 || room->bytes <= room->available;
}

void dh_room_print(const dh_room *room, dh_str *out)
{
    char all[32], one[32], left[32];
    const char *least = room->at_least ? "at least " : "";
    dh_format_bytes(all, sizeof all, room->bytes);
    dh_format_bytes(one, sizeof one, room->rank_bytes);
    dh_format_bytes(left, sizeof left, room->available);
    if (room->n_ranks == 1)
        dh_str_printf(out, "this needs %s%s of memory on this machine", least, all);
    else
        dh_str_printf(out, "%lld ranks need %s%s of memory on this machine, %s %s each",
                      (long long)room->n_ranks, least, all,
                      room->at_least ? "on average" : "at most", one);
    if (!dh_room_is_there(room)) dh_str_printf(out, ", and %s are free", left);
}

dh_status dh_room_check(dh_ctx *ctx, const dh_room *room)
{
    static const char of_job[] =
        "take a smaller train.micro_batch, train.seq_len or model, train.recompute, "
        "parallel.zero, fewer ranks here or more machines; for a cluster's memory and times there "
        "is dhelix simulate --cluster";
    dh_str text = DH_STR_INIT;
    if (dh_room_is_there(room)) return DH_OK;
    dh_room_print(room, &text);
    dh_fail(ctx, DH_ENOMEM, "%s: %s; DHELIX_MEMORY_CHECK=off starts it all the same",
            text.failed ? "memory is short" : text.text,
            room->of_model ? "the model is too large for it" : of_job);
    dh_str_fini(&text);
    return ctx->status;
}

/* ---- of processes --------------------------------------------------------------------------- */

/* Equal for processes that share memory: of one machine, and of one container. */
static uint64_t memory_key(void)
{
    struct stat at;
    const bool known = stat("/proc/self/ns/cgroup", &at) == 0;
    return dh_mix64(dh_machine_key() ^ (known ? (uint64_t)at.st_ino : 0));
}

typedef struct need {
    uint64_t machine;
    double bytes;
} need;

dh_status dh_ranks_room(dh_ctx *ctx, const dh_ranks *ranks, const dh_room *own)
{
    if (!ranks->control) return dh_room_check(ctx, own);
    const need mine = {memory_key(), own->bytes};
    need *all = calloc((size_t)ranks->n, sizeof *all);
    dh_status st = all ? DH_OK : dh_no_memory(ctx);
    st = dh_ranks_agree(ctx, ranks, st);
    if (st == DH_OK)
        st = dh_comm_all_gather(ctx, ranks->control, &mine, all, (int64_t)sizeof mine, DH_U8);
    /* A limit of one process does not limit all of them together. */
    dh_room here = {.available = own->available > 0 ? dh_memory_available_under("") : 0};
    for (int64_t r = 0; st == DH_OK && all && r < ranks->n; r++) {
        if (all[r].machine != mine.machine) continue;
        here.n_ranks++;
        here.bytes += all[r].bytes;
        here.rank_bytes = DH_MAX(here.rank_bytes, all[r].bytes);
    }
    free(all);
    if (st == DH_OK) st = dh_room_check(ctx, &here);
    return dh_ranks_agree(ctx, ranks, st);
}
