/* Starting a run's ranks: one here, all as threads, or this process's one under MPI. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "train/fault.h"
#include "train/run.h"

/* What ranks of one process share. */
typedef struct launch {
    dh_job *job;
    const dh_train_options *options;
    dh_mesh mesh;
    dh_schedule *schedule; /* NULL: 1F1B */
    dh_ordering ordering;
    dh_comm_world *world; /* NULL: one rank */
    dh_fault fault;       /* of tests, from DHELIX_FAULT */
    dh_run data;          /* tokenizer and datasets, opened once */
    pthread_mutex_t lock;
    dh_ctx failure; /* the first failure that is not the echo of another rank's */
    dh_train_result result;
} launch;

typedef struct rank_thread {
    launch *launch;
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

/* ---- schedule ------------------------------------------------------------------------------ */

static bool is_file(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".csv") == 0;
}

/* A row of the table, or a file in PyTorch's notation. */
dh_status dh_train_schedule(dh_ctx *ctx, const dh_job *job, dh_schedule **schedule)
{
    *schedule = NULL;
    if (is_file(job->schedule)) return dh_schedule_read_csv(ctx, job->schedule, schedule);
    const dh_schedule_row *row;
    const dh_strategy *strategy;
    DH_TRY(dh_strategy_find(ctx, job->strategy, &strategy));
    DH_TRY(dh_schedule_find(ctx, job->schedule, &row));
    /* A strategy of two strands brings the schedule that pairs them, unless the job
     * names one that does. */
    if (strategy->schedule && !row->pairs) DH_TRY(dh_schedule_find(ctx, strategy->schedule, &row));
    if (job->pp == 1 && row->n_chunks != 2) return DH_OK; /* one stage has one order */
    const dh_schedule_spec spec = {.n_ranks = (int32_t)job->pp,
                                   .n_micro = (int32_t)dh_job_n_micro(job),
                                   .n_chunks = (int32_t)job->vpp};
    return dh_schedule_generate(ctx, row, &spec, schedule);
}

/* ---- communicators ----------------------------------------------------------------------------
 */

_Static_assert((int)DH_MPI_WAIT_YIELD == DH_PROGRESS_YIELD &&
                   (int)DH_MPI_WAIT_SLEEP == DH_PROGRESS_SLEEP &&
                   (int)DH_MPI_WAIT_BLOCK == DH_PROGRESS_BLOCK,
               "order");

static dh_status open_world(dh_ctx *ctx, launch *l)
{
    const dh_job *job = l->job;
    const bool mpi = dh_launched_ranks() > 0;
    if (job->ranks == 1) return DH_OK;
    DH_TRY(dh_fault_parse(ctx, getenv("DHELIX_FAULT"), &l->fault));
    dh_comm_config config = {
        .ranks = (int)job->ranks,
        .ranks_per_node = (int)l->mesh.ranks_per_node,
        .pace = {{job->link_local.gbps, job->link_local.latency_us},
                 {job->link_cross.gbps, job->link_cross.latency_us}},
        .timeout_ns = (int64_t)(job->timeout_s * 1e9),
        .progress = (dh_comm_progress)job->mpi_wait,
        .hook = l->fault.kind == DH_FAULT_NONE ? NULL : dh_fault_hook,
        .hook_user = &l->fault,
    };
    DH_TRY(dh_comm_world_create(ctx, mpi ? "mpi" : "local", &config, &l->world));
    char text[256];
    int first, n;
    dh_comm_world_here(l->world, &first, &n);
    if (first == 0 && !l->options->quiet)
        dh_log(DH_LOG_INFO, "%s", dh_comm_world_describe(l->world, text, sizeof text));
    return DH_OK;
}

static dh_status create_group(dh_ctx *ctx, dh_ranks *r, const dh_mesh *mesh, dh_group_kind kind,
                              int stream, dh_comm_group **group)
{
    const int n = (int)dh_mesh_group_size(mesh, kind);
    *group = NULL;
    if (n == 1) return DH_OK;
    int *members = malloc((size_t)n * sizeof *members);
    if (!members) return dh_fail(ctx, DH_ENOMEM, "out of memory listing ranks");
    for (int i = 0; i < n; i++) members[i] = (int)dh_mesh_group_member(mesh, kind, r->rank, i);
    dh_comm_group_spec spec = {.name = stream == DH_N_STREAM ? "control" : dh_group_name(kind),
                               .members = members,
                               .n = n,
                               .stream = stream};
    dh_status st = dh_comm_group_create(ctx, r->comm, &spec, group);
    free(members);
    return st;
}

/* Groups beside the program's: their stream numbers are their own, so that nothing
 * they carry can meet what the program sends. */
static dh_status join(dh_ctx *ctx, const launch *l, int rank, dh_ranks *r)
{
    *r = (dh_ranks){.rank = rank, .n = l->job->ranks};
    if (!l->world) return DH_OK;
    DH_TRY(dh_comm_attach(ctx, l->world, rank, &r->comm));
    DH_TRY(create_group(ctx, r, &l->mesh, DH_GROUP_WORLD, DH_N_STREAM, &r->control));
    return create_group(ctx, r, &l->mesh, DH_GROUP_DP_CP, DH_N_STREAM + 1, &r->data);
}

/* ---- ranks
 * ------------------------------------------------------------------------------------------ */

/* Which of the ranks that share cores this is. Threads of one process share all of its. */
static dh_status place(dh_ctx *ctx, const launch *l, dh_run *run)
{
    int first = 0, n = 1;
    if (l->world) dh_comm_world_here(l->world, &first, &n);
    if (n == 1) return dh_ranks_place(ctx, &run->ranks, &run->local_rank, &run->n_local_ranks);
    run->local_rank = (int)run->ranks.rank - first;
    run->n_local_ranks = n;
    return DH_OK;
}

static dh_status train_rank(dh_ctx *ctx, launch *l, int rank)
{
    dh_run run = l->data;
    dh_train_result result;
    run.mesh = l->mesh;
    run.schedule = l->schedule;
    dh_status st = join(ctx, l, rank, &run.ranks);
    if (st == DH_OK) st = place(ctx, l, &run);
    if (st == DH_OK) st = dh_run_train(ctx, &run, &result);
    if (st != DH_OK && st != DH_EINTERRUPTED && run.ranks.comm)
        dh_comm_abort(run.ranks.comm, ctx->message);
    if (run.ranks.comm) dh_comm_detach(run.ranks.comm);
    pthread_mutex_lock(&l->lock);
    if (st == DH_OK || st == DH_EINTERRUPTED) {
        if (rank == 0) l->result = result;
    }
    /* A rank that was only stopped by another's failure echoes it; the cause counts. */
    bool echo = st == DH_ECOMM && l->failure.status != DH_OK;
    bool better = l->failure.status == DH_OK || (l->failure.status == DH_ECOMM && st != DH_ECOMM);
    if (st != DH_OK && !echo && better) {
        l->failure = *ctx;
        l->failure.rank = rank;
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    dh_log_set_rank(t->rank);
    train_rank(&t->ctx, t->launch, t->rank);
    return NULL;
}

static dh_status run_threads(dh_ctx *ctx, launch *l, int first, int n)
{
    rank_thread *threads = calloc((size_t)n, sizeof *threads);
    if (!threads) return dh_fail(ctx, DH_ENOMEM, "out of memory starting ranks");
    int started = 0;
    dh_status st = DH_OK;
    for (; started < n; started++) {
        rank_thread *t = &threads[started];
        *t = (rank_thread){.launch = l, .rank = first + started, .ctx = DH_CTX_INIT};
        if (pthread_create(&t->thread, NULL, rank_main, t) == 0) continue;
        st = dh_fail(ctx, DH_EINTERNAL, "cannot start the thread of rank %d", t->rank);
        break;
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i].thread, NULL);
    free(threads);
    return st;
}

static dh_status run_ranks(dh_ctx *ctx, launch *l)
{
    int first = 0, n = 1;
    if (l->world) dh_comm_world_here(l->world, &first, &n);
    if (n == 1) {
        dh_ctx own = DH_CTX_INIT;
        if (l->world) dh_log_set_rank(first);
        train_rank(&own, l, first);
    } else {
        DH_TRY(run_threads(ctx, l, first, n));
    }
    if (l->failure.status == DH_OK) return DH_OK;
    /* Messages of failed communication name the ranks. */
    if (n == 1 || l->failure.status == DH_ECOMM || l->failure.status == DH_EINTERRUPTED)
        return dh_fail(ctx, l->failure.status, "%s", l->failure.message);
    return dh_fail(ctx, l->failure.status, "rank %d: %s", l->failure.rank, l->failure.message);
}

/* ---- entry
 * ------------------------------------------------------------------------------------------- */

/* Before any rank starts: that all of them together cannot wait for ever. */
static dh_status verify_mesh(dh_ctx *ctx, const launch *l)
{
    if (l->job->ranks == 1) return DH_OK;
    dh_session_spec spec;
    DH_TRY(dh_train_plan(ctx, l->job, &spec));
    spec.schedule = l->schedule;
    spec.costs = l->data.costs;
    spec.ordering = &l->ordering;
    spec.eval = spec.eval && l->data.val_data;
    return dh_session_verify_mesh(ctx, &spec, NULL);
}

static dh_status prepare(dh_ctx *ctx, launch *l)
{
    dh_job *job = l->job;
    const int64_t launched = dh_launched_ranks();
    if (launched > 0 && launched != job->ranks)
        return dh_fail(
            ctx, DH_EINVAL,
            "the launcher started %lld ranks, the job has %lld: change parallel.* or the "
            "number of processes",
            (long long)launched, (long long)job->ranks);
    DH_TRY(dh_mesh_from_job(ctx, job, &l->mesh));
    DH_TRY(dh_train_schedule(ctx, job, &l->schedule));
    DH_TRY(dh_train_costs(ctx, job, &l->data.costs));
    DH_TRY(dh_train_ordering(ctx, job, &l->ordering));
    l->ordering.cache = dh_order_cache_create(); /* without one, each program has its own */
    l->data.ordering = &l->ordering;
    DH_TRY(dh_run_open_data(ctx, &l->data));
    return verify_mesh(ctx, l);
}

dh_status dh_train(dh_ctx *ctx, dh_job *job, const dh_train_options *options,
                   dh_train_result *result)
{
    launch l = {.job = job, .options = options, .failure = DH_CTX_INIT};
    l.data.job = job;
    l.data.options = options;
    pthread_mutex_init(&l.lock, NULL);
    dh_status st = prepare(ctx, &l);
    if (st == DH_OK) st = open_world(ctx, &l);
    if (st == DH_OK) st = run_ranks(ctx, &l);
    *result = l.result;
    dh_comm_world_destroy(l.world);
    dh_dataset_close(l.data.train_data);
    dh_dataset_close(l.data.val_data);
    dh_tokenizer_destroy(l.data.tokenizer);
    dh_schedule_destroy(l.schedule);
    dh_order_cache_destroy(l.ordering.cache);
    pthread_mutex_destroy(&l.lock);
    return st;
}
