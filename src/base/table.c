#include "base/table.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const void *key, size_t n_key)
{
    uint64_t hash = n_key, word;
    const unsigned char *at = key;
    for (; n_key >= sizeof word; at += sizeof word, n_key -= sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = dh_mix64(hash ^ word);
    }
    word = 0;
    memcpy(&word, at, n_key);
    return dh_mix64(hash ^ word);
}

static void **find(dh_table *table, uint64_t hash, const void *key, size_t n_key)
{
    size_t at = 0;
    for (uint32_t i = dh_index_first(&table->index, hash, &at); i != DH_NONE;
         i = dh_index_next(&table->index, hash, &at)) {
        dh_table_row *row = &table->rows.at[i];
        if (row->n_key == n_key && memcmp(row->key, key, n_key) == 0) return &row->value;
    }
    return NULL;
}

void **dh_table_at(dh_table *table, dh_arena *arena, const void *key, size_t n_key)
{
    const uint64_t hash = hash_of(key, n_key);
    void **known = find(table, hash, key, n_key);
    if (known) return known;
    void *own = dh_arena_alloc(arena, n_key);
    if (!own || !dh_vec_reserve(&table->rows, table->rows.n + 1)) return NULL;
    if (!dh_index_add(&table->index, hash, (uint32_t)table->rows.n)) return NULL;
    memcpy(own, key, n_key);
    dh_table_row *row = &table->rows.at[table->rows.n++];
    *row = (dh_table_row){own, n_key, NULL};
    return &row->value;
}

void dh_table_fini(dh_table *table)
{
    dh_vec_fini(&table->rows);
    dh_index_fini(&table->index);
}
