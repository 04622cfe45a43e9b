/* A limit for what MPI does without a way to ask meanwhile: its start and its end.
 *
 * A rank that is stopped or never comes holds up all others there, for ever. A thread waits beside
 * the call and ends the process when the time is over; the launcher then ends the other ranks.
 * Which rank it is MPI does not say: the ranks of this machine that are stopped are named. */
#include "mpi_world.h"

#include <stdio.h>
#include <unistd.h>

#include "base/process.h"

typedef struct suspects {
    char text[400];
    size_t n;
} suspects;

static void suspect(void *user, long pid, bool stopped)
{
    suspects *s = user;
    const long rank = stopped ? dh_process_rank(pid) : -1;
    if (rank < 0 || s->n + 64 > sizeof s->text) return;
    s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n,
                             "%srank %ld (process %ld) is stopped", s->n ? ", " : "", rank, pid);
}

/* The launcher's daemon has started the ranks of this machine. */
static void end_process(const mpi_guard *g)
{
    suspects s = {.n = 0};
    dh_process_each_child((long)getppid(), suspect, &s);
    dh_log(DH_LOG_ERROR, "%s did not end within %.3g s: %s", g->what, (double)g->ns * 1e-9,
           s.n ? s.text : "a rank did not come to it, has stopped or is gone");
    _exit(DH_COMM_EXIT_LOST);
}

static void *wait_for_end(void *arg)
{
    mpi_guard *g = arg;
    const int64_t end_ns = g->ns > INT64_MAX - g->from_ns ? INT64_MAX : g->from_ns + g->ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    int rc = 0;
    pthread_mutex_lock(&g->lock);
    while (!g->is_over && rc == 0) rc = pthread_cond_timedwait(&g->over, &g->lock, &end);
    if (!g->is_over) end_process(g);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* TUNING: processes of a job begin at different times, and Open MPI took 5 s to start 4 of them on
 * 2 cores that 20 programs shared. */
void mpi_guard_begin(mpi_guard *g, const char *what, int64_t ns)
{
    const int64_t margin_ns = INT64_C(30000000000);
    pthread_condattr_t attr;
    *g = (mpi_guard){.what = what,
                     .ns = ns > INT64_MAX - margin_ns ? ns : ns + margin_ns,
                     .from_ns = dh_now_ns()};
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->over, &attr);
    pthread_condattr_destroy(&attr);
    g->watched = pthread_create(&g->thread, NULL, wait_for_end, g) == 0;
}

void mpi_guard_end(mpi_guard *g)
{
    pthread_mutex_lock(&g->lock);
    g->is_over = true;
    pthread_cond_signal(&g->over);
    pthread_mutex_unlock(&g->lock);
    if (g->watched) pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->over);
    pthread_mutex_destroy(&g->lock);
}
