/* Lengths of documents from a file: a list of them, or a histogram. */
#ifndef DH_DATA_LENGTHS_H
#define DH_DATA_LENGTHS_H

#include "base/base.h"

/* How lines were read, by their number of columns. */
typedef enum dh_lengths_kind {
    DH_LENGTHS_LIST = 1, /* length: a document a line */
    DH_LENGTHS_COUNTS,   /* length, count: so many documents of that length */
    DH_LENGTHS_RANGES    /* low, high, count: so many longer than low and no longer than high */
} dh_lengths_kind;

/* Zeroed: none. */
typedef struct dh_lengths {
    DH_VEC(int64_t) of; /* of every document; of a histogram no more than DH_LENGTHS_MOST */
    dh_lengths_kind kind;
    bool shares;        /* some count is no whole number */
    double n_documents; /* by the file, or the sum of shares */
    size_t n_lines;     /* with numbers */
} dh_lengths;

/* TUNING: 64 steps of 512 rows of 32,768 tokens need as many documents of the English Wikipedia
 * (700 tokens in the mean). They take 8 MB, and a second to pack. */
enum { DH_LENGTHS_MOST = 1 << 20 };
#define DH_LENGTHS_MOST_TOKENS (INT64_C(1) << 36) /* all documents together */

/* Columns are separated by tabs, commas or blanks. Empty lines and lines with # do not count. The
 * first other line is a heading if none of its columns is a number. Counts that are not whole
 * numbers are shares. Shares, and more than DH_LENGTHS_MOST documents, are scaled to
 * DH_LENGTHS_MOST. Documents of a range are spread evenly over the logarithm of length; from 0,
 * evenly over length.
 * out       caller frees with dh_lengths_fini, also after a failure
 * errors    DH_EIO; DH_EFORMAT the line and what is wanted; DH_ENOMEM */
dh_status dh_lengths_read(dh_ctx *ctx, const char *path, dh_lengths *lengths);
void dh_lengths_fini(dh_lengths *lengths);
/* For people: "a histogram of 9 ranges and 6458670 documents, ...". */
const char *dh_lengths_describe(const dh_lengths *lengths, char *text, size_t cap);

#endif
