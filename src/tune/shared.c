/* Timetables by key, for all threads of a search: one makes what others then wait for. */
#include <pthread.h>
#include <stdlib.h>

#include "tune/tuner.h"

typedef struct entry {
    tune_timetable *table; /* NULL: not made yet */
    dh_arena *arena;       /* of the table */
    bool being_made;
} entry;

struct tune_shared {
    pthread_mutex_t lock;
    pthread_cond_t made;
    dh_arena *arena; /* of keys and entries */
    dh_table entries;
};

tune_shared *tune_shared_create(void)
{
    tune_shared *s = calloc(1, sizeof *s);
    dh_arena *arena = s ? dh_arena_create() : NULL;
    if (!arena) {
        free(s);
        return NULL;
    }
    s->arena = arena;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->made, NULL);
    return s;
}

void tune_shared_destroy(tune_shared *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->entries.rows.n; i++) {
        const entry *e = s->entries.rows.at[i].value;
        if (e && e->table) dh_schedule_destroy((dh_schedule *)e->table->schedule);
        if (e) dh_arena_destroy(e->arena);
    }
    dh_table_fini(&s->entries);
    dh_arena_destroy(s->arena);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->made);
    free(s);
}

/* The key's entry, with a table or with this thread to make it; NULL: out of memory. */
static entry *claim(tune_shared *s, const void *key, size_t n_key)
{
    pthread_mutex_lock(&s->lock);
    void **place = dh_table_at(&s->entries, s->arena, key, n_key);
    if (place && !*place) *place = DH_NEW(s->arena, entry);
    entry *e = place ? *place : NULL;
    while (e && e->being_made) pthread_cond_wait(&s->made, &s->lock);
    if (e && !e->table) e->being_made = true;
    pthread_mutex_unlock(&s->lock);
    return e;
}

static void settle(tune_shared *s, entry *e, dh_arena *arena, tune_timetable *table)
{
    pthread_mutex_lock(&s->lock);
    e->table = table;
    e->arena = arena;
    e->being_made = false;
    pthread_cond_broadcast(&s->made);
    pthread_mutex_unlock(&s->lock);
}

dh_status tune_shared_timetable(dh_ctx *ctx, tune_shared *shared, const void *key, size_t n_key,
                                tune_make_timetable *make, void *user, const tune_timetable **table)
{
    tune_timetable *made = NULL;
    entry *e = claim(shared, key, n_key);
    if (!e) return dh_no_memory(ctx);
    if (e->table) {
        *table = e->table;
        return DH_OK;
    }
    dh_arena *arena = dh_arena_create();
    dh_status st = arena ? make(user, arena, &made) : dh_no_memory(ctx);
    if (st != DH_OK) {
        dh_arena_destroy(arena);
        arena = NULL;
    }
    settle(shared, e, arena, st == DH_OK ? made : NULL);
    if (st == DH_OK) *table = made;
    return st;
}
