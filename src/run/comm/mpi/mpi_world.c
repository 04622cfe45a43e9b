/* The mpi world: ranks are processes. Here: starting and ending MPI, groups, news
 * of failures. Only the standard API is used, and of that only non-blocking point
 * to point for data, so that every wait is ours: bounded, and able to notice
 * another rank's failure. */
#include "mpi_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- MPI's life in this process --------------------------------------------------------- */

/* MPI starts and ends once a process: initialised once, when the first world is made. */
static struct {
    atomic_int n_alive;
    atomic_bool failed, lost; /* for want of ranks that are silent or gone */
    atomic_bool has_buffers; /* MPI does: of messages that were given up, which it may still read */
    MPI_Comm farewell;
    int64_t patience_ns; /* of the end */
} process;

void mpi_leave_buffers(void)
{
    atomic_store(&process.has_buffers, true);
}

/* Let the others report before MPI_Abort ends them. The owners of buffers that were left to MPI
 * have freed them by now: any call that makes progress would go on with their messages. */
static void wait_for_others(void)
{
    const int64_t ms = 1000000, end_ns = dh_now_ns() + 1000 * ms;
    MPI_Request request;
    int done = 0;
    if (atomic_load(&process.has_buffers)) {
        dh_sleep_until_ns(end_ns);
        return;
    }
    if (MPI_Ibarrier(process.farewell, &request) != MPI_SUCCESS) return;
    while (!done && dh_now_ns() < end_ns) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done) dh_sleep_until_ns(dh_now_ns() + ms);
    }
}

static void end_mpi(void)
{
    int over = 0;
    mpi_guard guard;
    MPI_Finalized(&over);
    if (over) return;
    mpi_guard_begin(&guard, "the end of MPI", process.patience_ns);
    if (atomic_load(&process.failed) || atomic_load(&process.n_alive) > 0) {
        if (atomic_load(&process.failed)) wait_for_others();
        MPI_Abort(MPI_COMM_WORLD, atomic_load(&process.lost) ? DH_COMM_EXIT_LOST : EXIT_FAILURE);
    }
    MPI_Comm_free(&process.farewell);
    MPI_Finalize();
    mpi_guard_end(&guard);
}

static dh_status start_mpi(dh_ctx *ctx)
{
    int started = 0, level = MPI_THREAD_SINGLE, over = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&over);
    if (over) return dh_fail(ctx, DH_EUNSUPPORTED, "MPI has ended already in this process");
    bool ours = !started;
    if (ours && MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return dh_fail(ctx, DH_ECOMM, "MPI_Init_thread failed");
    MPI_Query_thread(&level);
    if (ours) {
        MPI_Comm_dup(MPI_COMM_WORLD, &process.farewell);
        MPI_Comm_set_errhandler(process.farewell, MPI_ERRORS_RETURN);
        atexit(end_mpi);
    }
    if (level < MPI_THREAD_MULTIPLE)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "this MPI gives thread level %d; the streams of a rank call it at once, "
                       "which needs MPI_THREAD_MULTIPLE",
                       level);
    return DH_OK;
}

/* ---- failing ---------------------------------------------------------------------------- */

/* Tell all others; the message stays in world->news until the end. */
static void tell(mpi_world *w)
{
    int n_told = 0;
    for (int r = 0; r < w->base.size; r++)
        if (r != w->rank.rank)
            MPI_Isend(&w->news, (int)sizeof w->news, MPI_BYTE, r, TOLD_NEWS, w->told,
                      &w->telling[n_told++]);
    /* Small messages are on their way at once; give them a moment of progress. */
    int done = 0;
    for (int i = 0; i < 100 && !done; i++) {
        MPI_Testall(n_told, w->telling, &done, MPI_STATUSES_IGNORE);
        if (!done) dh_sleep_until_ns(dh_now_ns() + 100000);
    }
}

static bool set_failed(mpi_world *w, const mpi_news *news)
{
    pthread_mutex_lock(&w->lock);
    bool first = !atomic_load(&w->failed);
    if (first) {
        w->news = *news;
        atomic_store(&process.lost, news->lost);
        atomic_store(&w->failed, true);
        atomic_store(&process.failed, true);
    }
    pthread_mutex_unlock(&w->lock);
    return first;
}

static void stop_world(dh_comm *comm, const char *message, bool lost)
{
    mpi_world *w = (mpi_world *)comm->world;
    mpi_news news = {.by_rank = comm->rank, .lost = lost};
    snprintf(news.message, sizeof news.message, "%s", message);
    if (set_failed(w, &news)) tell(w);
}

static void mpi_abort(dh_comm *comm, const char *message)
{
    stop_world(comm, message, false);
}

bool mpi_look_for_news(mpi_world *w)
{
    if (atomic_load(&w->failed)) return true;
    mpi_answer_questions(w);
    int found = 0;
    MPI_Message message;
    MPI_Status status;
    /* Matched probe: two streams may look at the same time. */
    if (MPI_Improbe(MPI_ANY_SOURCE, TOLD_NEWS, w->told, &found, &message, &status) != MPI_SUCCESS ||
        !found)
        return false;
    mpi_news news;
    MPI_Mrecv(&news, (int)sizeof news, MPI_BYTE, &message, &status);
    news.message[sizeof news.message - 1] = '\0';
    set_failed(w, &news);
    return true;
}

static mpi_world *world_of(const mpi_group *g)
{
    return (mpi_world *)g->base.comm->world;
}

dh_status mpi_fail_stopped(dh_ctx *ctx, const mpi_group *g, const dh_comm_head *head)
{
    const mpi_news *news = &world_of(g)->news;
    return dh_comm_fail_stopped(ctx, &g->base, head, news->by_rank, news->message);
}

dh_status mpi_fail_here(dh_ctx *ctx, mpi_group *g, const char *message)
{
    mpi_abort(g->base.comm, message);
    return dh_fail(ctx, DH_ECOMM, "%s", message);
}

dh_status mpi_fail_lost(dh_ctx *ctx, mpi_group *g, const char *message)
{
    stop_world(g->base.comm, message, true);
    return dh_fail(ctx, DH_ECOMM, "%s", message);
}

dh_status mpi_fail_call(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, const char *call,
                        int rc)
{
    char reason[MPI_MAX_ERROR_STRING], where[DH_COMM_CALL_TEXT_BYTES];
    char text[MPI_MAX_ERROR_STRING + DH_COMM_CALL_TEXT_BYTES + 64];
    int n;
    if (MPI_Error_string(rc, reason, &n) != MPI_SUCCESS) snprintf(reason, sizeof reason, "%d", rc);
    if (head)
        dh_comm_call_text(&g->base, head, where, sizeof where);
    else
        snprintf(where, sizeof where, "the creation of group %s", g->base.name);
    snprintf(text, sizeof text, "%s failed in %s: %s", call, where, reason);
    return mpi_fail_here(ctx, g, text);
}

static dh_status mpi_world_check(dh_ctx *ctx, dh_comm *comm)
{
    mpi_world *w = (mpi_world *)comm->world;
    if (!mpi_look_for_news(w)) return DH_OK;
    return dh_comm_fail_stopped(ctx, NULL, NULL, w->news.by_rank, w->news.message);
}

/* ---- worlds ----------------------------------------------------------------------------- */

static void mpi_group_free(dh_comm_group *group, bool usable)
{
    mpi_group *g = (mpi_group *)group;
    if (usable && g->comm != MPI_COMM_NULL) MPI_Comm_free(&g->comm);
    free(g->requests);
    free(g->messages);
    free(g->statuses);
    free(g->known.table);
    free(g->awaited);
}

static void mpi_world_destroy(dh_comm_world *world)
{
    mpi_world *w = (mpi_world *)world;
    bool usable = !mpi_look_for_news(w);
    for (dh_comm_group *g = w->rank.groups; g; g = g->next) mpi_group_free(g, usable);
    dh_comm_groups_free(&w->rank);
    if (usable) {
        mpi_drop_answers(w);
        MPI_Comm_free(&w->all);
        MPI_Comm_free(&w->told);
    }
    pthread_mutex_destroy(&w->lock);
    atomic_fetch_sub(&process.n_alive, 1);
    free(w->base.node);
    if (!usable) return; /* news may still be on its way out of the struct */
    free(w->telling);
    free(w->answers);
    free(w->answering);
    free(w->questions);
    free(w);
}

/* Rank of the first member of everybody's shared-memory domain, then numbered. */
static int find_nodes(mpi_world *w)
{
    MPI_Comm domain;
    int first = w->rank.rank;
    int rc =
        MPI_Comm_split_type(w->all, MPI_COMM_TYPE_SHARED, w->rank.rank, MPI_INFO_NULL, &domain);
    if (rc == MPI_SUCCESS) rc = MPI_Bcast(&first, 1, MPI_INT, 0, domain);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_free(&domain);
    if (rc == MPI_SUCCESS) rc = MPI_Allgather(&first, 1, MPI_INT, w->base.node, 1, MPI_INT, w->all);
    if (rc != MPI_SUCCESS) return rc;
    int n_nodes = 0;
    for (int r = 0; r < w->base.size; r++)
        w->base.node[r] = w->base.node[r] == r ? n_nodes++ : w->base.node[w->base.node[r]];
    return MPI_SUCCESS;
}

static int open_world(mpi_world *w, int ranks_per_node)
{
    int rc = MPI_Comm_dup(MPI_COMM_WORLD, &w->all);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_dup(MPI_COMM_WORLD, &w->told);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_set_errhandler(w->all, MPI_ERRORS_RETURN);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_set_errhandler(w->told, MPI_ERRORS_RETURN);
    if (rc != MPI_SUCCESS) return rc;
    if (ranks_per_node == 0) return find_nodes(w);
    for (int r = 0; r < w->base.size; r++) w->base.node[r] = r / ranks_per_node;
    return MPI_SUCCESS;
}

/* Memory and communicators of a world of `size` ranks. */
static dh_status make_world(dh_ctx *ctx, const dh_comm_config *config, int size, int rank,
                            dh_comm_world **world)
{
    mpi_world *w = calloc(1, sizeof *w);
    if (!w) return dh_no_memory(ctx);
    w->base.size = size;
    w->base.first_here = rank;
    w->base.n_here = 1;
    w->rank = (dh_comm){.world = &w->base, .rank = rank};
    w->base.node = calloc((size_t)size, sizeof *w->base.node);
    w->telling = calloc((size_t)size, sizeof(MPI_Request));
    w->answers = calloc((size_t)size, sizeof *w->answers);
    w->answering = calloc((size_t)size, sizeof(MPI_Request));
    w->questions = calloc((size_t)size, sizeof(MPI_Request));
    for (int r = 0; w->answering && r < size; r++) w->answering[r] = MPI_REQUEST_NULL;
    pthread_mutex_init(&w->lock, NULL);
    int rc = MPI_ERR_NO_MEM;
    if (w->base.node && w->telling && w->answers && w->answering && w->questions)
        rc = open_world(w, config->ranks_per_node);
    if (rc != MPI_SUCCESS) {
        pthread_mutex_destroy(&w->lock);
        free(w->base.node);
        free(w->telling);
        free(w->answers);
        free(w->answering);
        free(w->questions);
        free(w);
        return dh_fail(ctx, rc == MPI_ERR_NO_MEM ? DH_ENOMEM : DH_ECOMM,
                       "the MPI world of %d ranks cannot be opened", size);
    }
    atomic_fetch_add(&process.n_alive, 1);
    *world = &w->base;
    return DH_OK;
}

static dh_status join_world(dh_ctx *ctx, const dh_comm_config *config, dh_comm_world **world)
{
    int size, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (config->ranks > 0 && config->ranks != size)
        return dh_fail(ctx, DH_EINVAL, "the launcher started %d ranks; %d are wanted", size,
                       config->ranks);
    return make_world(ctx, config, size, rank, world);
}

/* Others may be inside MPI, waiting for a rank that fails here: unless it has another world, MPI
 * then ends by MPI_Abort. */
static dh_status mpi_world_create(dh_ctx *ctx, const dh_comm_config *config, dh_comm_world **world)
{
    for (int i = 0; i < DH_N_ENGINE; i++)
        if (dh_comm_pace_on(config->pace[i]))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "links between MPI ranks are real and cannot be paced; use the local "
                           "communicator, or limit the wire itself");
    mpi_guard guard;
    process.patience_ns = config->timeout_ns;
    mpi_guard_begin(&guard, "the start of MPI", config->timeout_ns);
    dh_status st = start_mpi(ctx);
    if (st != DH_OK) {
        mpi_guard_end(&guard);
        return st;
    }
    st = join_world(ctx, config, world);
    mpi_guard_end(&guard);
    if (st != DH_OK && atomic_load(&process.n_alive) == 0) atomic_store(&process.failed, true);
    return st;
}

static dh_status mpi_attach(dh_ctx *ctx, dh_comm_world *world, int rank, dh_comm **comm)
{
    mpi_world *w = (mpi_world *)world;
    if (w->attached) return dh_fail(ctx, DH_EINVAL, "rank %d is attached already", rank);
    w->attached = true;
    *comm = &w->rank;
    return DH_OK;
}

static void mpi_detach(dh_comm *comm)
{
    (void)comm; /* an MPI process that leaves early is seen by the launcher */
}

/* ---- groups ----------------------------------------------------------------------------- */

/* The same on all members, and different for groups created side by side. */
static int creation_tag(const dh_comm_group_spec *spec)
{
    uint64_t hash = (uint64_t)spec->stream * DH_N_ENGINE + (uint64_t)spec->wire;
    for (const char *c = spec->name; *c; c++) hash = dh_mix64(hash ^ (uint64_t)*c);
    for (int i = 0; i < spec->n; i++) hash = dh_mix64(hash ^ (uint64_t)spec->members[i]);
    return (int)(hash & 0x7fff); /* MPI promises tags up to 32767 */
}

/* Creating a communicator blocks inside MPI: first make sure that all are there. */
static dh_status meet_members(dh_ctx *ctx, mpi_group *g, int tag)
{
    char byte = 0;
    for (int i = 0; i < g->base.n; i++) {
        if (i == g->base.me) continue;
        DH_TRY(mpi_irecv(ctx, g, NULL, i, tag, &byte, 0));
        DH_TRY(mpi_isend(ctx, g, NULL, i, tag, &byte, 0));
    }
    return mpi_wait(ctx, g, NULL);
}

static dh_status create_comm(dh_ctx *ctx, mpi_group *g, int tag, MPI_Comm *comm)
{
    mpi_world *w = (mpi_world *)g->base.comm->world;
    MPI_Group everyone, members;
    int rc = MPI_Comm_group(w->all, &everyone);
    if (rc != MPI_SUCCESS) return mpi_fail_call(ctx, g, NULL, "MPI_Comm_group", rc);
    rc = MPI_Group_incl(everyone, g->base.n, g->base.members, &members);
    MPI_Group_free(&everyone);
    if (rc != MPI_SUCCESS) return mpi_fail_call(ctx, g, NULL, "MPI_Group_incl", rc);
    rc = MPI_Comm_create_group(w->all, members, tag, comm);
    MPI_Group_free(&members);
    if (rc != MPI_SUCCESS) return mpi_fail_call(ctx, g, NULL, "MPI_Comm_create_group", rc);
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
    return DH_OK;
}

static dh_status mpi_group_create(dh_ctx *ctx, dh_comm *comm, const dh_comm_group_spec *spec,
                                  dh_comm_group **group)
{
    mpi_group *g = (mpi_group *)dh_comm_group_new(sizeof *g, comm, spec);
    if (!g) return dh_no_memory(ctx);
    int tag = creation_tag(spec);
    MPI_Comm made = MPI_COMM_NULL;
    g->comm = MPI_COMM_NULL; /* members are met over the whole world */
    g->awaited = calloc((size_t)spec->n, sizeof *g->awaited);
    dh_status st = g->awaited ? meet_members(ctx, g, tag) : dh_no_memory(ctx);
    if (st == DH_OK) st = create_comm(ctx, g, tag, &made);
    if (st != DH_OK) {
        mpi_group_free(&g->base, false);
        dh_comm_group_free(&g->base);
        return st;
    }
    g->comm = made;
    *group = &g->base;
    return DH_OK;
}

static void mpi_group_destroy(dh_comm_group *group)
{
    mpi_group_free(group, !mpi_look_for_news((mpi_world *)group->comm->world));
}

const dh_comm_impl dh_comm_mpi_impl = {
    .world_create = mpi_world_create,
    .world_destroy = mpi_world_destroy,
    .attach = mpi_attach,
    .detach = mpi_detach,
    .group_create = mpi_group_create,
    .group_destroy = mpi_group_destroy,
    .collective = mpi_collective,
    .transfer = mpi_transfer,
    .abort = mpi_abort,
    .check = mpi_world_check,
};
