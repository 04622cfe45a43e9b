/* Placement: in the order given, each at the lowest offset free of conflicts. With the order by
 * size this is greedy by size (Pisarchyk and Lee 2020, arXiv 2001.03288).
 *
 * Two buffers conflict unless one is released where the other is first written: with a the one of
 * either's streams, a.first < b.release[a] and b.first < a.release[b]. For a pair of streams that
 * is the meeting of two intervals, so bytes in use are kept by the stream that first writes them
 * and the stream that asks. */
#include "program/places.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "base/table.h"
#include "program/emit.h"
#include "program/space.h"

_Static_assert((int)DH_N_STREAM <= (int)DH_MAX_SPANS, "a span of storage for each stream");
_Static_assert(sizeof(dh_placing) == 8 + (2 + DH_N_STREAM + 1) * sizeof(uint32_t), "no padding");

/* ---- finding -------------------------------------------------------------------------------- */

typedef struct finder {
    const dh_placing_list *list;
    bool asks[DH_N_STREAM];
    dh_space *in_use[DH_N_STREAM][DH_N_STREAM]; /* by the stream that writes first, that asks */
} finder;

static uint64_t align_up(uint64_t n)
{
    return (n + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

static uint64_t lowest_gap(const finder *f, const dh_placing *p)
{
    dh_space_span spans[DH_N_STREAM];
    for (int s = 0; s < DH_N_STREAM; s++)
        spans[s] = (dh_space_span){f->in_use[s][p->stream], p->first, p->release[s]};
    return dh_space_lowest(spans, DH_N_STREAM, f->list->from, p->n_bytes);
}

static bool occupy(finder *f, const dh_placing *p, uint64_t offset)
{
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (!f->asks[s]) continue;
        dh_space **space = &f->in_use[p->stream][s];
        if (!*space) *space = dh_space_create(f->list->n_times);
        if (!*space ||
            !dh_space_use(*space, p->first, p->release[s], offset, align_up(offset + p->n_bytes)))
            return false;
    }
    return true;
}

dh_status dh_places_find(dh_ctx *ctx, const dh_placing_list *list, uint64_t *offsets)
{
    finder f = {.list = list};
    dh_status st = DH_OK;
    for (size_t i = 0; i < list->n; i++) f.asks[list->at[i].stream] = true;
    for (size_t i = 0; st == DH_OK && i < list->n; i++) {
        st = dh_heed_stop(ctx, "buffers were placed");
        if (st != DH_OK) break;
        offsets[i] = lowest_gap(&f, &list->at[i]);
        if (!occupy(&f, &list->at[i], offsets[i])) st = dh_no_memory(ctx);
    }
    for (int a = 0; a < DH_N_STREAM; a++)
        for (int b = 0; b < DH_N_STREAM; b++) dh_space_destroy(f.in_use[a][b]);
    return st;
}

/* ---- places found so far --------------------------------------------------------------------- */

/* Of one list. */
typedef struct found {
    enum { SOUGHT, THERE, FAILED } state;
    dh_status why; /* of FAILED */
    uint64_t *offsets;
} found;

struct dh_places {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something that was sought is there, or has failed */
    dh_table lists;
    dh_arena *arena; /* of keys and what was found */
};

dh_places *dh_places_create(void)
{
    dh_places *p = calloc(1, sizeof *p);
    dh_arena *arena = p ? dh_arena_create() : NULL;
    if (!arena) {
        free(p);
        return NULL;
    }
    p->arena = arena;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    return p;
}

void dh_places_destroy(dh_places *places)
{
    if (!places) return;
    dh_table_fini(&places->lists);
    dh_arena_destroy(places->arena);
    pthread_cond_destroy(&places->changed);
    pthread_mutex_destroy(&places->lock);
    free(places);
}

/* All that places depend on, as bytes. NULL: out of memory. */
static void *make_key(const dh_placing_list *list, size_t *n_bytes)
{
    const uint64_t head[] = {list->from, list->n_times, list->n};
    const size_t n_each = list->n * sizeof *list->at;
    *n_bytes = sizeof head + n_each;
    char *key = malloc(*n_bytes);
    if (!key) return NULL;
    memcpy(key, head, sizeof head);
    if (n_each) memcpy(key + sizeof head, list->at, n_each);
    return key;
}

/* The row of a list, found or new. `mine` is set if it is new: the caller then does the search. */
static found *known_of(dh_places *p, const void *key, size_t n_key, size_t n, bool *mine)
{
    void **place = dh_table_at(&p->lists, p->arena, key, n_key);
    *mine = false;
    if (!place || *place) return place ? *place : NULL;
    found *f = DH_NEW(p->arena, found);
    if (!f) return NULL;
    f->offsets = DH_NEW_N(p->arena, uint64_t, n + 1);
    if (!f->offsets) return NULL;
    *mine = true;
    return *place = f;
}

/* Looks for the places. Others may wait for them meanwhile. */
static dh_status find_for_all(dh_ctx *ctx, dh_places *p, const dh_placing_list *list, found *f)
{
    pthread_mutex_unlock(&p->lock);
    const dh_status st = dh_places_find(ctx, list, f->offsets);
    pthread_mutex_lock(&p->lock);
    f->state = st == DH_OK ? THERE : FAILED;
    f->why = st;
    pthread_cond_broadcast(&p->changed);
    return st;
}

static dh_status wait_for_it(dh_ctx *ctx, dh_places *p, const found *f)
{
    while (f->state == SOUGHT) pthread_cond_wait(&p->changed, &p->lock);
    if (f->state == THERE) return DH_OK;
    return f->why == DH_EINTERRUPTED ? dh_fail(ctx, f->why, "stopped while buffers were placed")
                                     : dh_no_memory(ctx);
}

dh_status dh_places_get(dh_ctx *ctx, dh_places *places, const dh_placing_list *list,
                        uint64_t *offsets)
{
    if (!places) return dh_places_find(ctx, list, offsets);
    size_t n_key;
    bool mine;
    void *key = make_key(list, &n_key);
    if (!key) return dh_no_memory(ctx);
    pthread_mutex_lock(&places->lock);
    found *f = known_of(places, key, n_key, list->n, &mine);
    const dh_status st = !f     ? dh_no_memory(ctx)
                         : mine ? find_for_all(ctx, places, list, f)
                                : wait_for_it(ctx, places, f);
    pthread_mutex_unlock(&places->lock);
    free(key);
    if (st == DH_OK && list->n) memcpy(offsets, f->offsets, list->n * sizeof *offsets);
    return st;
}
