/* Lengths that groups of documents may end at. */
#ifndef DH_TUNE_LENGTH_CUTS_H
#define DH_TUNE_LENGTH_CUTS_H

#include "data/dataset.h"

enum { DH_LENGTH_HALVES = 5, DH_LENGTH_CUTS = DH_LENGTH_HALVES + 2 };

/* Halves of the longest length, down to a sixteenth of it or 256 tokens, which are there whatever
 * the documents; and up to two more, at multiples of a 32nd of it, by where the documents end: one
 * behind the other that at which their tokens come nearest to the end of their group. So a list
 * with two humps is cut between them, where there is no half between them too. in        ds: packed
 * into rows of seq_len; its first n_rows are counted out       cuts: rising, the last one seq_len
 * errors    DH_ENOMEM */
dh_status dh_length_cuts_find(dh_ctx *ctx, const dh_dataset *ds, int64_t seq_len, int64_t n_rows,
                              int64_t cuts[DH_LENGTH_CUTS], size_t *n_cuts);

#endif
