/* What was computed before, by key: open addressing, never smaller. */
#include <stdlib.h>
#include <string.h>

#include "tune/tuner.h"

void tune_table_init(tune_table *table, size_t key_bytes)
{
    *table = (tune_table){.key_bytes = key_bytes};
}

void tune_table_fini(tune_table *table)
{
    free(table->values);
    free(table->keys);
    *table = (tune_table){0};
}

static size_t first_place(const tune_table *t, const void *key)
{
    uint64_t hash = 0, word;
    const unsigned char *at = key;
    for (size_t i = 0; i < t->key_bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        hash = dh_mix64(hash ^ word);
    }
    return hash & (t->n_places - 1);
}

static size_t place_of(const tune_table *t, const void *key)
{
    size_t i = first_place(t, key);
    while (t->keys[i] && memcmp(t->keys[i], key, t->key_bytes) != 0)
        i = (i + 1) & (t->n_places - 1);
    return i;
}

static bool grow(tune_table *t)
{
    const tune_table old = *t;
    t->n_places = old.n_places ? 2 * old.n_places : 64;
    t->keys = calloc(t->n_places, sizeof *t->keys);
    t->values = calloc(t->n_places, sizeof *t->values);
    if (!t->keys || !t->values) {
        free(t->keys);
        free(t->values);
        *t = old;
        return false;
    }
    for (size_t i = 0; i < old.n_places; i++) {
        if (!old.keys[i]) continue;
        const size_t place = place_of(t, old.keys[i]);
        t->keys[place] = old.keys[i];
        t->values[place] = old.values[i];
    }
    free(old.keys);
    free(old.values);
    return true;
}

void **tune_table_at(tune_table *t, dh_arena *arena, const void *key)
{
    if (2 * t->n >= t->n_places && !grow(t)) return NULL;
    const size_t place = place_of(t, key);
    if (t->keys[place]) return &t->values[place];
    void *own = dh_arena_alloc(arena, t->key_bytes);
    if (!own) return NULL;
    memcpy(own, key, t->key_bytes);
    t->keys[place] = own;
    t->n++;
    return &t->values[place];
}
