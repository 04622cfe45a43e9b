/* The parts of a dataset, for the files that read it. */
#ifndef DH_DATA_DATASET_PARTS_H
#define DH_DATA_DATASET_PARTS_H

#include "base/stamp.h"
#include "data/pack.h"
#include "data/text_source.h"

typedef struct dh_data_file {
    char *name;
    char *mapped;        /* path of what map is of, NULL: none */
    dh_stamp stamp;      /* when it was opened */
    dh_map map, index;   /* token file; Megatron's index (only while opening) */
    dh_token_ends ends;  /* of documents, as Megatron's index marks them */
    dh_text_tokens text; /* of a text file */
} dh_data_file;

typedef struct dh_segment {
    dh_token_run run;
    int64_t first;   /* offset in the stream */
    int64_t in_file; /* offset of its first token in its file */
    size_t file;
} dh_segment;

/* A stretch of the stream with an order of its own: all of it, or what one entry named. */
typedef struct dh_source {
    char *name;
    int64_t first, n_tokens;
    int64_t share; /* number of samples in a period */
    uint64_t seed;
    dh_pack pack; /* of packed documents */
} dh_source;

/* The entry whose turn it is at a place of the period, and its earlier turns in the period. */
typedef struct dh_turn {
    int32_t source, n_before;
} dh_turn;

struct dh_dataset {
    DH_VEC(dh_source) sources; /* at least one */
    DH_VEC(dh_turn) period;    /* of more than one */
    DH_VEC(dh_data_file) files;
    DH_VEC(dh_segment) segments; /* ascending `first`, none empty */
    int64_t n_tokens, bound;     /* bound: ids must be below */
    dh_data_part part;
    double val_fraction;
    dh_data_order order;
    uint64_t seed;
    bool has_text;                     /* ids of a file at least are the tokenizer's */
    bool chats;                        /* ids carry the marks of conversations (chat.h) */
    int64_t row_len;                   /* of packed rows; 0: samples are windows of the stream */
    const volatile sig_atomic_t *stop; /* of who opened it: hashing and packing heed it */
};

/* errors    DH_EINTERRUPTED where the dataset is asked to stop */
dh_status dh_dataset_heed_stop(dh_ctx *ctx, const dh_dataset *ds);

/* Where sample i is: the source whose turn it is, and a place in it: tokens from its first one, or
 * the row of packed documents. */
const dh_source *dh_dataset_place(const dh_dataset *ds, int64_t sample_index, int64_t seq_len,
                                  int64_t *place);

/* documents.c: the documents of a row of a packed dataset, and any as a row of that length. */
typedef struct dh_row_pieces {
    const dh_doc *at;
    int64_t n;
} dh_row_pieces;
dh_row_pieces dh_dataset_pieces(const dh_dataset *ds, int64_t sample_index);
dh_status dh_dataset_put_pieces(dh_ctx *ctx, const dh_dataset *ds, dh_row_pieces pieces,
                                int64_t row_len, const dh_dataset_row *row);

#endif
