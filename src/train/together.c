/* Programs of ranks that are threads (together.h). */
#include "train/together.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "train/room.h"

dh_status dh_together_init(dh_ctx *ctx, int64_t n, dh_together *t)
{
    *t = (dh_together){.n = (size_t)n, .sessions = calloc((size_t)n, sizeof *t->sessions)};
    if (!t->sessions) return dh_no_memory(ctx);
    pthread_mutex_init(&t->lock, NULL);
    t->places = dh_places_create();
    return t->places ? DH_OK : dh_no_memory(ctx);
}

void dh_together_fini(dh_together *t)
{
    if (!t->sessions) return;
    dh_places_destroy(t->places);
    pthread_mutex_destroy(&t->lock);
    free(t->sessions);
    *t = (dh_together){.n = 0};
}

/* A session is read under the lock alone, so a rank that has left can destroy its own.
 * returns   the number of ranks without a session */
static size_t set(dh_together *t, int64_t rank, const dh_session *session)
{
    size_t n_missing = 0;
    pthread_mutex_lock(&t->lock);
    t->sessions[rank] = session;
    for (size_t r = 0; r < t->n; r++) n_missing += !t->sessions[r];
    pthread_mutex_unlock(&t->lock);
    return n_missing;
}

/* Whether there is memory for the programs of ranks that are not there yet, by one that is. */
static dh_status check_missing(dh_ctx *ctx, const dh_session *session, size_t n_missing)
{
    char what[80];
    const double bytes = (double)dh_program_bytes(session->train) * (double)n_missing;
    snprintf(what, sizeof what, "building the programs of %zu more ranks of this process",
             n_missing);
    return dh_memory_check(ctx, bytes, what);
}

/* Programs that are there count in what is needed, and no longer in what is free. */
static dh_status check_room(dh_ctx *ctx, const dh_together *t, const dh_job *job)
{
    dh_room room = dh_room_of(job, &t->programs);
    for (size_t r = 0; room.available > 0 && r < t->n; r++)
        room.available += (double)dh_program_bytes(t->sessions[r]->train);
    return dh_room_check(ctx, &room);
}

static dh_status verify(dh_ctx *ctx, dh_together *t, const dh_job *job)
{
    for (size_t r = 0; r < t->n; r++)
        if (!t->sessions[r])
            return dh_fail(ctx, DH_ECOMM, "rank %zu ended before programs were verified together",
                           r);
    DH_TRY(dh_sessions_verify(ctx, t->sessions, t->n, &t->programs));
    return t->sessions[0]->spec.device->slab_is_host ? check_room(ctx, t, job) : DH_OK;
}

/* The first rank does it; the others wait. */
static dh_status verify_all(dh_ctx *ctx, const dh_together_rank *rank)
{
    dh_together *t = rank->all;
    if (rank->ranks->rank != 0) return DH_OK;
    pthread_mutex_lock(&t->lock);
    dh_places_destroy(t->places);
    t->places = NULL;
    const dh_status st = verify(ctx, t, rank->job);
    pthread_mutex_unlock(&t->lock);
    return st;
}

dh_status dh_together_verify(dh_ctx *ctx, const dh_session *session, void *user)
{
    const dh_together_rank *rank = user;
    const size_t n_missing = set(rank->all, rank->ranks->rank, session);
    dh_status st = dh_ranks_agree(ctx, rank->ranks, check_missing(ctx, session, n_missing));
    if (st == DH_OK) st = dh_ranks_agree(ctx, rank->ranks, verify_all(ctx, rank));
    set(rank->all, rank->ranks->rank, NULL);
    return st;
}
