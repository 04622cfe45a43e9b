/* Starting a run's ranks: one here, all as threads, or this process's one under MPI. */
#include "train/launch.h"

#include <stdlib.h>
#include <string.h>

#include "base/stop.h"

typedef struct rank_thread {
    dh_launch *launch;
    int rank;
    dh_ctx ctx;
    pthread_t thread;
} rank_thread;

static int64_t number_from(const char *name)
{
    const char *text = getenv(name);
    int64_t n;
    return text && dh_parse_i64(text, &n) && n > 0 ? n : 0;
}

/* mpirun and PMI-2 give the number of processes; srun with PMIx gives a rank, and Slurm
 * the tasks of its step. */
int64_t dh_launched_ranks(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (number_from(names[i]) > 0) return number_from(names[i]);
    return getenv("PMIX_RANK") ? number_from("SLURM_STEP_NUM_TASKS") : 0;
}

/* ---- communicators -------------------------------------------------------------------------- */

_Static_assert((int)DH_MPI_WAIT_YIELD == DH_PROGRESS_YIELD &&
                   (int)DH_MPI_WAIT_SLEEP == DH_PROGRESS_SLEEP &&
                   (int)DH_MPI_WAIT_BLOCK == DH_PROGRESS_BLOCK,
               "order");
_Static_assert((int)DH_GPU_COMM_AUTO == DH_LINKS_AUTO && (int)DH_GPU_COMM_NCCL == DH_LINKS_NCCL &&
                   (int)DH_GPU_COMM_DEVICE == DH_LINKS_DEVICE &&
                   (int)DH_GPU_COMM_HOST == DH_LINKS_NEVER,
               "order");

_Static_assert((int)DH_JOB_CAPTURE_OFF == DH_CAPTURE_OFF &&
                   (int)DH_JOB_CAPTURE_AUTO == DH_CAPTURE_AUTO &&
                   (int)DH_JOB_CAPTURE_ON == DH_CAPTURE_ON,
               "order");

static dh_status open_world(dh_ctx *ctx, dh_launch *l)
{
    const dh_job *job = l->job;
    for (int s = 0; job->gpu_comm_sms > 0 && s < DH_N_STREAM; s++)
        l->link_sms[s] = (int)job->gpu_comm_sms;
    const bool mpi = dh_launched_ranks() > 0;
    if (job->ranks == 1) return DH_OK;
    DH_TRY(dh_fault_parse(ctx, getenv("DHELIX_FAULT"), l->n_before, &l->fault));
    dh_comm_config config = {
        .ranks = (int)job->ranks,
        .ranks_per_node = (int)l->mesh.ranks_per_node,
        .pace = {[DH_ENGINE_LOCAL] = {job->link_local.gbps, job->link_local.latency_us},
                 [DH_ENGINE_CROSS] = {job->link_cross.gbps, job->link_cross.latency_us}},
        .timeout_ns = dh_job_patience_ns(job),
        .progress = (dh_comm_progress)job->mpi_wait,
        .links = (dh_comm_links)job->gpu_comm,
        .link_sms = l->link_sms,
        .hook = l->fault.kind == DH_FAULT_NONE ? NULL : dh_fault_at_call,
        .hook_user = &l->fault,
    };
    DH_TRY(dh_comm_world_create(ctx, mpi ? "mpi" : "local", &config, &l->world));
    char text[256];
    int first, n;
    dh_comm_world_here(l->world, &first, &n);
    if (first == 0 && !l->quiet)
        dh_log(DH_LOG_INFO, "%s", dh_comm_world_describe(l->world, text, sizeof text));
    return DH_OK;
}

/* Processes read their jobs by themselves, each on its machine; threads share one. */
bool dh_launch_apart(const dh_launch *l)
{
    int first, n;
    if (!l->world) return false;
    dh_comm_world_here(l->world, &first, &n);
    return n < dh_comm_world_size(l->world);
}

/* A rank that cannot start says why in ctx: the others, who would wait for it, stop at once. */
static void stop_others(const dh_ctx *ctx, const dh_launch *l, int rank)
{
    dh_comm *comm;
    dh_ctx inner = DH_CTX_INIT;
    if (dh_comm_attach(&inner, l->world, rank, &comm) != DH_OK) return;
    dh_comm_abort(comm, ctx->message);
    dh_comm_detach(comm);
}

/* Settings come first: what else differs may follow from them. */
static dh_status print_facts(dh_ctx *ctx, dh_launch *l)
{
    char backend[256];
    dh_str all = DH_STR_INIT;
    dh_str_printf(&all, "dhelix: %s\nbackend: %s\nmachine: %zu-bit, %s\n", dh_version(),
                  dh_device_find(l->job->device)->describe(backend, sizeof backend),
                  8 * sizeof(size_t),
                  __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "little-endian" : "big-endian");
    dh_status st = dh_job_print_common(ctx, l->job, &all);
    if (l->facts.text) dh_str_append(&all, l->facts.text, strlen(l->facts.text));
    if (st == DH_OK && all.failed) st = dh_no_memory(ctx);
    dh_str_fini(&l->facts);
    l->facts = all;
    return st;
}

/* Of this process, before its rank begins. */
static dh_status collect_facts(dh_ctx *ctx, dh_launch *l)
{
    int first, n;
    if (!dh_launch_apart(l)) return DH_OK;
    dh_status st = print_facts(ctx, l);
    dh_comm_world_here(l->world, &first, &n);
    if (st != DH_OK) stop_others(ctx, l, first);
    return st;
}

/* Groups beside the program's. Their stream numbers are their own, so nothing they carry can meet
 * the program's messages. */
static dh_status join(dh_ctx *ctx, dh_launch *l, int rank, dh_ranks *r)
{
    *r = (dh_ranks){.rank = rank, .n = l->job->ranks};
    if (!l->world) return DH_OK;
    DH_TRY(dh_comm_attach(ctx, l->world, rank, &r->comm));
    if (rank == l->fault.rank) l->fault.comm = r->comm;
    if (l->job->timeout_s == 0)
        dh_comm_set_timeout(r->comm, dh_job_patience_ns(l->job), dh_patience_reason);
    DH_TRY(dh_ranks_group(ctx, r, &l->mesh, DH_GROUP_WORLD, DH_N_STREAM, &r->control));
    if (dh_launch_apart(l)) DH_TRY(dh_ranks_alike(ctx, r, l->facts.text));
    return dh_ranks_group(ctx, r, &l->mesh, dh_mesh_expert_group(&l->mesh), DH_N_STREAM + 1,
                          &r->experts);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

/* Which of the ranks that share cores this is. Threads of one process share all of its. */
static dh_status place(dh_ctx *ctx, const dh_launch *l, dh_place *at)
{
    int first = 0, n = 1;
    if (l->world) dh_comm_world_here(l->world, &first, &n);
    if (n == 1) return dh_ranks_place(ctx, &at->ranks, &at->local_rank, &at->n_local_ranks);
    at->local_rank = (int)at->ranks.rank - first;
    at->n_local_ranks = n;
    return DH_OK;
}

static void run_rank(dh_ctx *ctx, dh_launch *l, int rank)
{
    dh_place at = {.n_local_ranks = 1};
    dh_status st = join(ctx, l, rank, &at.ranks);
    if (st == DH_OK) st = place(ctx, l, &at);
    if (st == DH_OK) st = l->work(ctx, l, &at);
    if (st != DH_OK && (st != DH_EINTERRUPTED || ctx->stop) && at.ranks.comm)
        dh_comm_abort(at.ranks.comm, ctx->message);
    if (at.ranks.comm) dh_comm_detach(at.ranks.comm);
    pthread_mutex_lock(&l->lock);
    /* A rank that was only stopped by another's failure echoes it; the cause counts. */
    bool echo = st == DH_ECOMM && l->failure.status != DH_OK;
    bool better = l->failure.status == DH_OK || (l->failure.status == DH_ECOMM && st != DH_ECOMM);
    if (st != DH_OK && !echo && better) {
        l->failure = *ctx;
        l->failure.rank = rank;
    }
    pthread_mutex_unlock(&l->lock);
}

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    dh_log_set_rank(t->rank);
    run_rank(&t->ctx, t->launch, t->rank);
    return NULL;
}

static dh_status fail_start(dh_ctx *ctx, const dh_launch *l, int rank, int code)
{
    dh_fail(ctx, DH_EINTERNAL, "cannot start the thread of rank %d: %s", rank, strerror(code));
    stop_others(ctx, l, rank);
    return ctx->status;
}

static dh_status run_threads(dh_ctx *ctx, dh_launch *l, int first, int n)
{
    rank_thread *threads = calloc((size_t)n, sizeof *threads);
    if (!threads) return dh_no_memory(ctx);
    int started = 0;
    dh_status st = DH_OK;
    while (st == DH_OK && started < n) {
        rank_thread *t = &threads[started];
        *t = (rank_thread){.launch = l, .rank = first + started, .ctx = dh_ctx_like(ctx)};
        const int code = pthread_create(&t->thread, NULL, rank_main, t);
        if (code == 0)
            started++;
        else
            st = fail_start(ctx, l, t->rank, code);
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i].thread, NULL);
    free(threads);
    return st;
}

static dh_status run_ranks(dh_ctx *ctx, dh_launch *l)
{
    int first = 0, n = 1;
    if (l->world) dh_comm_world_here(l->world, &first, &n);
    if (n == 1) {
        dh_ctx own = dh_ctx_like(ctx);
        if (l->world) dh_log_set_rank(first);
        run_rank(&own, l, first);
    } else {
        DH_TRY(run_threads(ctx, l, first, n));
    }
    if (l->failure.status == DH_OK) return DH_OK;
    /* Messages of failed communication name the ranks. */
    if (n == 1 || l->failure.status == DH_ECOMM || l->failure.status == DH_EINTERRUPTED)
        return dh_fail(ctx, l->failure.status, "%s", l->failure.message);
    return dh_fail(ctx, l->failure.status, "rank %d: %s", l->failure.rank, l->failure.message);
}

/* ---- entry ---------------------------------------------------------------------------------- */

/* Tasks of srun that MPI knows nothing of would each be the whole run, all in one folder. */
static dh_status check_tasks(dh_ctx *ctx)
{
    const int64_t n = getenv("SLURM_PROCID") ? number_from("SLURM_STEP_NUM_TASKS") : 0;
    if (n <= 1 || dh_launched_ranks() > 0) return DH_OK;
    return dh_fail(
        ctx, DH_EINVAL,
        "srun started %lld tasks that are not ranks of one MPI job; with srun --mpi=pmix "
        "they are (srun --mpi=list shows what there is), or start them by mpirun",
        (long long)n);
}

dh_status dh_launch_prepare(dh_ctx *ctx, const dh_job *job, bool quiet, dh_launch *launch)
{
    const int64_t launched = dh_launched_ranks();
    *launch = (dh_launch){.job = job, .quiet = quiet, .failure = DH_CTX_INIT};
    DH_TRY(check_tasks(ctx));
    if (launched > 0 && launched != job->ranks)
        return dh_fail(
            ctx, DH_EINVAL,
            "the launcher started %lld ranks, the job has %lld: change parallel.* or the "
            "number of processes",
            (long long)launched, (long long)job->ranks);
    return dh_mesh_from_job(ctx, job, &launch->mesh);
}

dh_status dh_launch_run(dh_ctx *ctx, dh_launch *l)
{
    pthread_mutex_init(&l->lock, NULL);
    dh_turns_init(&l->turns, (int)DH_MAX(dh_own_processors(), 1));
    dh_status st = open_world(ctx, l);
    if (st == DH_OK) st = collect_facts(ctx, l);
    if (st == DH_OK) st = run_ranks(ctx, l);
    dh_str_fini(&l->facts);
    for (int r = 0; l->world && r < dh_comm_world_size(l->world); r++) {
        const bool lost = dh_comm_world_lost(l->world, r);
        l->n_lost += lost;
        if (l->lost) l->lost[r] = lost;
    }
    dh_comm_world_destroy(l->world);
    l->world = NULL;
    dh_turns_fini(&l->turns);
    pthread_mutex_destroy(&l->lock);
    return st;
}
