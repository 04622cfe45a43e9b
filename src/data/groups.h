/* The documents of some rows by length: which rows each group of lengths makes of its own. */
#ifndef DH_DATA_GROUPS_H
#define DH_DATA_GROUPS_H

#include "data/dataset.h"
#include "data/pack.h"

enum { DH_MAX_LENGTH_GROUPS = 8 };

/* Rows by group; those of group g are max_len[g] tokens long. */
typedef struct dh_length_groups {
    size_t n;
    int64_t max_len[DH_MAX_LENGTH_GROUPS];
    dh_pack rows[DH_MAX_LENGTH_GROUPS];
} dh_length_groups;

/* Sorts the documents of samples [first, first + n_samples) of a packed dataset into groups, from
 * the longest group down. The remaining documents are packed into rows of the group (dh_pack_make;
 * for the last group these are the samples). A row stays in the group when it has a document that
 * no shorter group can hold; shorter documents that fill it up stay too. Documents of other rows go
 * to the next group. With one group its rows are the samples.
 * in        max_len [n]: rising, the last one the length of the dataset's rows
 * out       groups: dh_length_groups_fini, also on failure
 * cost      O(n log n) of the documents, and memory for a row of each group
 * errors    DH_ENOMEM */
dh_status dh_length_groups_make(dh_ctx *ctx, const dh_dataset *ds, int64_t first, int64_t n_samples,
                                const int64_t *max_len, size_t n, dh_length_groups *groups);
void dh_length_groups_fini(dh_length_groups *groups);

/* A packed dataset of documents that have only lengths, in an order that the seed draws. It serves
 * for counting, not for reading.
 * in        lengths [n]: tokens; row_len: as in dh_dataset_pack
 * out       dh_dataset_close
 * errors    DH_EINVAL none has two tokens; DH_ENOMEM */
dh_status dh_dataset_of_lengths(dh_ctx *ctx, const int64_t *lengths, size_t n, int64_t row_len,
                                uint64_t seed, dh_dataset **ds);

/* Row of a group; rows after its last are padding. errors, threads: those of dh_dataset_sample */
dh_status dh_length_groups_row(dh_ctx *ctx, const dh_dataset *ds, const dh_length_groups *groups,
                               size_t group, int64_t row, const dh_dataset_row *to);

#endif
