/* The thread of a rank that moves what other meshes need (mover.h). */
#include "train/mover.h"

#include <pthread.h>
#include <stdlib.h>

struct dh_mover {
    dh_mover_spec spec;
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t moved; /* any of it has changed */
    bool leaving;
    size_t n, n_done; /* number of programs at hand, and of ended ones */
    dh_exec *programs[DH_MOVER_MOST];
    int64_t ns[DH_MOVER_MOST];
    const dh_step *step;
    dh_status status; /* of them; the first failure's message is in ctx */
    dh_ctx ctx;
};

/* As one of the rank's cores: what it computes are copies. */
static dh_status bind_thread(dh_mover *m)
{
    int n_threads;
    if (m->spec.n_local_ranks == 0) return DH_OK;
    return m->spec.device->bind_rank(&m->ctx, m->spec.local_rank, m->spec.n_local_ranks, 1,
                                     &n_threads);
}

/* The lock is held, but not meanwhile. */
static void run_next(dh_mover *m, dh_status ready)
{
    dh_exec *program = m->programs[m->n_done];
    dh_status st = ready == DH_OK ? m->status : ready;
    pthread_mutex_unlock(&m->lock);
    const int64_t start = dh_now_ns();
    if (st == DH_OK) st = dh_exec_run(&m->ctx, program, m->step);
    const int64_t ns = dh_now_ns() - start;
    pthread_mutex_lock(&m->lock);
    m->status = st;
    m->ns[m->n_done++] = ns;
    pthread_cond_broadcast(&m->moved);
}

static void *work(void *user)
{
    dh_mover *m = user;
    dh_log_set_rank(m->spec.log_rank);
    const dh_status ready = bind_thread(m);
    pthread_mutex_lock(&m->lock);
    while (!m->leaving) {
        if (m->n_done < m->n)
            run_next(m, ready);
        else
            pthread_cond_wait(&m->moved, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

dh_status dh_mover_create(dh_ctx *ctx, const dh_mover_spec *spec, dh_mover **mover)
{
    dh_mover *m = calloc(1, sizeof *m);
    if (!m) return dh_no_memory(ctx);
    m->spec = *spec;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->moved, NULL);
    if (pthread_create(&m->thread, NULL, work, m) != 0) {
        pthread_cond_destroy(&m->moved);
        pthread_mutex_destroy(&m->lock);
        free(m);
        return dh_fail(ctx, DH_EINTERNAL, "cannot start the thread that moves parameters");
    }
    *mover = m;
    return DH_OK;
}

void dh_mover_destroy(dh_mover *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->leaving = true;
    pthread_cond_broadcast(&m->moved);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->moved);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void dh_mover_begin(dh_mover *m, dh_exec *const *programs, size_t n, const dh_step *step)
{
    DH_ASSERT(n <= DH_MOVER_MOST, "%zu programs", n);
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < n; i++) m->programs[i] = programs[i];
    m->n = n;
    m->n_done = 0;
    m->step = step;
    m->status = DH_OK;
    dh_ctx_reset(&m->ctx);
    pthread_cond_broadcast(&m->moved);
    pthread_mutex_unlock(&m->lock);
}

dh_status dh_mover_end(dh_ctx *ctx, dh_mover *m, int64_t ns[DH_MOVER_MOST])
{
    pthread_mutex_lock(&m->lock);
    while (m->n_done < m->n) pthread_cond_wait(&m->moved, &m->lock);
    for (size_t i = 0; i < m->n; i++) ns[i] = m->ns[i];
    const dh_status st = m->status;
    m->n = m->n_done = 0;
    pthread_mutex_unlock(&m->lock);
    return st == DH_OK ? DH_OK : dh_fail(ctx, st, "%s", m->ctx.message);
}
