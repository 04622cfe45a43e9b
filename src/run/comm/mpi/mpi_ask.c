/* The ranks that hold up one, asked over MPI. A rank that waits looks for news every millisecond.
 * It then answers in which calls it waits, on every stream, and for whom. A rank that computes, is
 * stopped or gone does not answer: it waits for nobody, and that is the fact to find out. So no
 * thread is needed that serves questions, and a run without a timeout sends nothing. */
#include "mpi_world.h"

#include <stdio.h>
#include <stdlib.h>

/* TUNING: a rank that waits answers within a few ms where its cores are free. On busy ones it must
 * get its turn; three seconds are hundreds of a scheduler's turns, and little beside a timeout. */
static const int64_t patience_ns = INT64_C(3000000000);

/* ---- waits ----------------------------------------------------------------------------------- */

static mpi_world *world_of(const mpi_group *g)
{
    return (mpi_world *)g->base.comm->world;
}

/* Members whose messages have not come, or have not gone. */
static void find_awaited(const mpi_group *g, bool *awaited)
{
    memset(awaited, 0, (size_t)g->base.n * sizeof *awaited);
    for (int i = 0; i < g->n_requests; i++) {
        int done = 0;
        if (g->requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Request_get_status(g->requests[i], &done, MPI_STATUS_IGNORE);
        if (!done) awaited[g->messages[i].peer] = true;
    }
}

void mpi_publish_wait(mpi_group *g, const dh_comm_head *head)
{
    mpi_world *w = world_of(g);
    pthread_mutex_lock(&w->lock);
    find_awaited(g, g->awaited);
    if (!g->is_waiting) {
        dh_comm_call_text(&g->base, head, g->waiting_in, sizeof g->waiting_in);
        g->next_waiting = w->waiting;
        w->waiting = g;
        g->is_waiting = true;
    }
    pthread_mutex_unlock(&w->lock);
}

void mpi_withdraw_wait(mpi_group *g)
{
    mpi_world *w = world_of(g);
    if (!g->is_waiting) return; /* written by this thread only */
    pthread_mutex_lock(&w->lock);
    mpi_group **at = &w->waiting;
    while (*at != g) at = &(*at)->next_waiting;
    *at = g->next_waiting;
    g->is_waiting = false;
    pthread_mutex_unlock(&w->lock);
}

/* The lock is held. */
static void find_state(const mpi_world *w, dh_comm_state *state)
{
    dh_comm_state_begin(state);
    for (const mpi_group *g = w->waiting; g; g = g->next_waiting) {
        dh_comm_state_wait(state, g->base.stream, g->waiting_in);
        for (int i = 0; i < g->base.n; i++)
            if (g->awaited[i]) dh_comm_state_await(state, g->base.members[i]);
    }
    if (!dh_comm_state_end(state, w->rank.running) && w->rank.running == 0)
        snprintf(state->text, sizeof state->text, "between two calls");
}

/* ---- answering ------------------------------------------------------------------------------- */

static void answer(mpi_world *w, int to, int32_t question)
{
    mpi_answer *a = &w->answers[to];
    int left = 1;
    pthread_mutex_lock(&w->lock);
    if (w->answering[to] != MPI_REQUEST_NULL) MPI_Test(&w->answering[to], &left, MPI_STATUS_IGNORE);
    if (left) { /* else it has not taken the last one, and will not take this */
        a->question = question;
        find_state(w, &a->state);
        MPI_Isend(a, (int)sizeof *a, MPI_BYTE, to, TOLD_ANSWER, w->told, &w->answering[to]);
    }
    pthread_mutex_unlock(&w->lock);
}

/* A message of this kind, if one has come: its source, else -1. */
static int receive(mpi_world *w, int kind, void *data, int n_bytes)
{
    int found = 0;
    MPI_Message message;
    MPI_Status status;
    /* Matched probe: two streams may look at the same time. */
    if (MPI_Improbe(MPI_ANY_SOURCE, kind, w->told, &found, &message, &status) != MPI_SUCCESS ||
        !found)
        return -1;
    MPI_Mrecv(data, n_bytes, MPI_BYTE, &message, &status);
    return status.MPI_SOURCE;
}

void mpi_answer_questions(mpi_world *w)
{
    int32_t question;
    int from;
    while ((from = receive(w, TOLD_QUESTION, &question, (int)sizeof question)) >= 0)
        answer(w, from, question);
}

void mpi_drop_answers(mpi_world *w)
{
    for (int r = 0; r < w->base.size; r++)
        if (w->answering[r] != MPI_REQUEST_NULL) MPI_Request_free(&w->answering[r]);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static bool begin_asking(mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    const bool free = !w->asking;
    w->asking = true;
    w->n_asked += free;
    pthread_mutex_unlock(&w->lock);
    return free;
}

static void end_asking(mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    w->asking = false;
    pthread_mutex_unlock(&w->lock);
}

static void ask_all(mpi_world *w)
{
    for (int r = 0; r < w->base.size; r++) {
        if (r == w->rank.rank) continue;
        if (MPI_Isend(&w->n_asked, (int)sizeof w->n_asked, MPI_BYTE, r, TOLD_QUESTION, w->told,
                      &w->questions[r]) == MPI_SUCCESS)
            MPI_Request_free(&w->questions[r]); /* a few bytes: they are on their way */
    }
}

static bool all_here(const mpi_group *g)
{
    int n = 0;
    for (int i = 0; i < g->n_requests; i++) {
        int done = 1;
        if (g->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(g->requests[i], &done, MPI_STATUS_IGNORE);
        n += done;
    }
    return n == g->n_requests;
}

/* Until all have answered or it is clear that some will not. False: there is no more to ask. */
static bool gather_answers(mpi_group *g, dh_comm_state *states)
{
    mpi_world *w = world_of(g);
    const int64_t end_ns = dh_now_ns() + patience_ns;
    for (int n_left = w->base.size - 1; n_left > 0 && dh_now_ns() < end_ns;) {
        mpi_answer a;
        const int from = receive(w, TOLD_ANSWER, &a, (int)sizeof a);
        if (from >= 0 && a.question == w->n_asked) {
            states[from] = a.state;
            n_left--;
        }
        if (mpi_look_for_news(w) || all_here(g)) return false;
        if (from < 0) dh_sleep_until_ns(dh_now_ns() + 200000);
    }
    return !all_here(g);
}

static void print_culprits(mpi_group *g, const dh_comm_head *head, dh_comm_state *states,
                           bool *missing, dh_str *out)
{
    char where[DH_COMM_CALL_TEXT_BYTES];
    mpi_world *w = world_of(g);
    bool *awaited = g->awaited;
    mpi_publish_wait(g, head); /* updates awaited */
    pthread_mutex_lock(&w->lock);
    find_state(w, &states[w->rank.rank]); /* with the calls of its other streams */
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < g->base.n; i++) missing[g->base.members[i]] = awaited[i];
    dh_comm_print_waited(g->base.comm, dh_comm_call_text(&g->base, head, where, sizeof where), out);
    dh_str_printf(out, "; did not come:");
    dh_comm_print_culprits(states, w->base.size, g->base.comm->rank, missing, NULL, out);
}

bool mpi_ask_culprit(mpi_group *g, const dh_comm_head *head, dh_str *out)
{
    mpi_world *w = world_of(g);
    if (!begin_asking(w)) return false;
    const size_t n = (size_t)w->base.size;
    dh_comm_state *states = calloc(n, sizeof *states);
    bool *missing = calloc(n, sizeof *missing), found = states && missing;
    for (size_t r = 0; found && r < n; r++)
        snprintf(states[r].text, sizeof states[r].text,
                 "no answer: it computes, has stopped or is gone");
    if (found) {
        ask_all(w);
        found = gather_answers(g, states);
        if (found) print_culprits(g, head, states, missing, out);
    } else {
        dh_comm_print_waited(g->base.comm, "a call, and has no memory to ask for whom", out);
        found = true;
    }
    free(states);
    free(missing);
    end_asking(w);
    return found;
}
