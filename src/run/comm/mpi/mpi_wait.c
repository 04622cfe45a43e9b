/* Messages of an mpi call: issuing them, and waiting for them without taking the
 * core from whoever computes. How to wait is a policy, one function a row. */
#include "mpi_world.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- issuing ---------------------------------------------------------------------------- */

static bool reserve_request(mpi_group *g)
{
    if (g->n_requests < g->cap_requests) return true;
    int cap = g->cap_requests ? 2 * g->cap_requests : 2 * g->base.n + 2;
    MPI_Request *requests = realloc(g->requests, (size_t)cap * sizeof(MPI_Request));
    if (requests) g->requests = requests;
    mpi_message *messages = realloc(g->messages, (size_t)cap * sizeof *messages);
    if (messages) g->messages = messages;
    MPI_Status *statuses = realloc(g->statuses, (size_t)cap * sizeof *statuses);
    if (statuses) g->statuses = statuses;
    if (!requests || !messages || !statuses) return false;
    g->cap_requests = cap;
    return true;
}

static dh_status issue_one(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, mpi_message m,
                           int tag, const char *out, char *in)
{
    if (!reserve_request(g)) {
        mpi_drop_requests(g);
        return dh_no_memory(ctx);
    }
    bool creating = g->comm == MPI_COMM_NULL;
    MPI_Comm comm = creating ? ((mpi_world *)g->base.comm->world)->all : g->comm;
    int peer = creating ? g->base.members[m.peer] : m.peer;
    MPI_Request *request = &g->requests[g->n_requests];
    int rc = m.is_recv ? MPI_Irecv(in, m.n_bytes, MPI_BYTE, peer, tag, comm, request)
                       : MPI_Isend(out, m.n_bytes, MPI_BYTE, peer, tag, comm, request);
    if (rc != MPI_SUCCESS) {
        mpi_drop_requests(g);
        return mpi_fail_call(ctx, g, head, m.is_recv ? "MPI_Irecv" : "MPI_Isend", rc);
    }
    g->messages[g->n_requests++] = m;
    return DH_OK;
}

static dh_status issue(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, mpi_message m, int tag,
                       const char *out, char *in, int64_t n_bytes)
{
    int64_t most = g->base.comm->world->config.max_message_bytes;
    int64_t at = 0;
    do {
        m.n_bytes = (int)DH_MIN(most, n_bytes - at);
        DH_TRY(issue_one(ctx, g, head, m, tag, out ? out + at : NULL, in ? in + at : NULL));
        at += m.n_bytes;
    } while (at < n_bytes);
    return DH_OK;
}

dh_status mpi_isend(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, int peer, int tag,
                    const char *buf, int64_t n_bytes)
{
    mpi_message m = {.peer = peer, .is_recv = false};
    return issue(ctx, g, head, m, tag, buf, NULL, n_bytes);
}

dh_status mpi_irecv(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, int peer, int tag,
                    char *buf, int64_t n_bytes)
{
    mpi_message m = {.peer = peer, .is_recv = true};
    return issue(ctx, g, head, m, tag, NULL, buf, n_bytes);
}

void mpi_drop_requests(mpi_group *g)
{
    for (int i = 0; i < g->n_requests; i++) {
        if (g->requests[i] == MPI_REQUEST_NULL) continue;
        int done = 0;
        if (g->messages[i].is_recv) MPI_Cancel(&g->requests[i]); /* one that has begun goes on */
        MPI_Test(&g->requests[i], &done, MPI_STATUS_IGNORE);
        if (done) continue;
        mpi_leave_buffers();
        MPI_Request_free(&g->requests[i]);
    }
    g->n_requests = 0;
}

/* ---- waiting ---------------------------------------------------------------------------- */

typedef struct wait_state {
    int64_t begin_ns, looked_ns, published_ns, sleep_ns;
    int n_tests;
} wait_state;

static void sleep_for(int64_t ns)
{
    dh_sleep_until_ns(dh_now_ns() + ns);
}

/* TUNING: hidden share of an all-gather over a 4 Gbit/s wire, beside one GEMM thread on the same
 * core:
 *
 *   sched_yield             0.76
 *   sleeps of 20 to 100 us  0.45 to 0.49
 *   blocking wait           0.42
 *
 * A call that has waited 100 ms is not about to end. */
static void pause_yield(wait_state *s, int64_t now_ns)
{
    if (now_ns - s->begin_ns > 100000000)
        sleep_for(200000);
    else if (s->n_tests > 4)
        sched_yield();
}

static void pause_sleep(wait_state *s, int64_t now_ns)
{
    (void)now_ns;
    if (s->n_tests <= 4) return;
    if (s->n_tests <= 16) {
        sched_yield();
        return;
    }
    s->sleep_ns = s->sleep_ns ? DH_MIN(s->sleep_ns * 3 / 2, 200000) : 20000;
    sleep_for(s->sleep_ns);
}

static void (*const pause_table[DH_N_PROGRESS])(wait_state *, int64_t) = {
    [DH_PROGRESS_YIELD] = pause_yield,
    [DH_PROGRESS_SLEEP] = pause_sleep,
};

/* The call has waited long enough: DH_OK where it may end after all, or as others have failed. */
static dh_status fail_late(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head)
{
    dh_str s = DH_STR_INIT;
    if (!mpi_ask_culprit(g, head, &s)) return DH_OK;
    mpi_withdraw_wait(g);
    mpi_drop_requests(g);
    dh_status st = mpi_fail_lost(ctx, g, s.text ? s.text : "a call waited too long");
    dh_str_fini(&s);
    return st;
}

/* MPI's code of the first message that failed. */
static int first_error(const mpi_group *g, int rc)
{
    for (int i = 0; rc == MPI_ERR_IN_STATUS && i < g->n_requests; i++) {
        int code = g->statuses[i].MPI_ERROR;
        if (code != MPI_SUCCESS && code != MPI_ERR_PENDING) return code;
    }
    return rc;
}

/* Every receive must be as long as expected. */
static dh_status check_lengths(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head)
{
    for (int i = 0; i < g->n_requests; i++) {
        int got = 0;
        const mpi_message *m = &g->messages[i];
        if (!m->is_recv) continue;
        MPI_Get_count(&g->statuses[i], MPI_BYTE, &got);
        if (got == m->n_bytes) continue;
        char where[DH_COMM_CALL_TEXT_BYTES] = "a new group", text[2 * DH_COMM_CALL_TEXT_BYTES];
        if (head) dh_comm_call_text(&g->base, head, where, sizeof where);
        snprintf(text, sizeof text,
                 "calls do not fit together: in %s rank %d sent %d bytes where rank %d expects %d",
                 where, g->base.members[m->peer], got, g->base.comm->rank, m->n_bytes);
        return mpi_fail_here(ctx, g, text);
    }
    return DH_OK;
}

/* Done by a call every millisecond that it waits; DH_OK: wait on. */
static dh_status look_around(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, wait_state *s,
                             int64_t now)
{
    const int64_t ms = 1000000;
    if (now - s->looked_ns < ms) return DH_OK;
    s->looked_ns = now;
    if (now - s->published_ns > 10 * ms) {
        s->published_ns = now;
        mpi_publish_wait(g, head);
    }
    if (mpi_look_for_news((mpi_world *)g->base.comm->world)) {
        mpi_withdraw_wait(g);
        mpi_drop_requests(g);
        return mpi_fail_stopped(ctx, g, head);
    }
    return now - s->begin_ns > g->base.comm->timeout_ns ? fail_late(ctx, g, head) : DH_OK;
}

/* Test until all is done; DH_OK with *rc as MPI returned it. */
static dh_status poll(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, int *rc)
{
    int done = 0;
    wait_state s = {0};
    while ((*rc = MPI_Testall(g->n_requests, g->requests, &done, g->statuses)) == MPI_SUCCESS &&
           !done) {
        int64_t now = dh_now_ns();
        if (s.n_tests++ == 0) s.begin_ns = s.looked_ns = now;
        DH_TRY(look_around(ctx, g, head, &s, now));
        pause_table[g->base.comm->world->config.progress](&s, now);
    }
    mpi_withdraw_wait(g);
    return DH_OK;
}

dh_status mpi_wait(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head)
{
    int rc = MPI_SUCCESS;
    if (g->n_requests == 0) return DH_OK;
    if (g->base.comm->world->config.progress == DH_PROGRESS_BLOCK)
        rc = MPI_Waitall(g->n_requests, g->requests, g->statuses);
    else
        DH_TRY(poll(ctx, g, head, &rc));
    if (rc != MPI_SUCCESS) {
        rc = first_error(g, rc);
        mpi_drop_requests(g);
        return mpi_fail_call(ctx, g, head, "a transfer", rc);
    }
    dh_status st = check_lengths(ctx, g, head);
    g->n_requests = 0;
    return st;
}
