/* A set of named tensors, as the openers fill it and weights.c reads it. */
#ifndef DHELIX_WEIGHTS_IMPL_H
#define DHELIX_WEIGHTS_IMPL_H

#include <stdatomic.h>

#include "weights/weights.h"

/* How the stored order differs from the one shown. */
typedef enum layout {
    LAYOUT_PLAIN,
    LAYOUT_TRANSPOSED, /* stored [columns, rows] */
    LAYOUT_ROPE_PAIRS  /* rows of a head as rotary pairs 0 D/2 1 D/2+1 ... of those shown */
} layout;

typedef struct weight {
    const char *name;
    dh_st_dtype dtype;
    int ndim;
    int64_t shape[DH_ST_MAX_DIMS]; /* as shown */
    layout layout;
    int64_t head_dim;          /* LAYOUT_ROPE_PAIRS */
    const unsigned char *data; /* in the map of file */
    const dh_mapped *file;
    bool was_read; /* before others joined it */
} weight;

struct dh_weights {
    dh_arena *arena;
    const char *path;   /* as given */
    const char *folder; /* where config.json would be */
    DH_VEC(weight) tensors;
    atomic_bool *used; /* [tensors.n], once all are added */
    DH_VEC(dh_safetensors *) shards;
    dh_mapped bin; /* a .bin file */
    bool tied;     /* dh_weights_tie */
    bool has_model;
    dh_model model; /* from a .bin header */
};

/* Fill w from a checkpoint of llama2.c or llm.c. */
dh_status dh_weights_open_bin(dh_ctx *ctx, dh_weights *w, const char *path);

#endif
