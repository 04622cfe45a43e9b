/* A table of results that were made before: from a key of bytes to a pointer. */
#ifndef DH_BASE_TABLE_H
#define DH_BASE_TABLE_H

#include "base/index.h"

typedef struct dh_table_row {
    const void *key;
    size_t n_key;
    void *value;
} dh_table_row;

/* Begins as {0}. One thread at a time. */
typedef struct dh_table {
    dh_index index;
    DH_VEC(dh_table_row) rows; /* in the order they came */
} dh_table;

/* Place of the key's value, with NULL in it where the key is new; good until the next call.
 * Keys are compared as bytes, so a struct has no padding.
 * in        arena: takes a copy of a new key
 * errors    NULL out of memory */
void **dh_table_at(dh_table *table, dh_arena *arena, const void *key, size_t n_key);
/* Values are the caller's. */
void dh_table_fini(dh_table *table);

#endif
