/* Lengths at which groups of documents may end. */
#ifndef DH_TUNE_LENGTH_CUTS_H
#define DH_TUNE_LENGTH_CUTS_H

#include "data/dataset.h"

enum { DH_LENGTH_HALVES = 5, DH_LENGTH_CUTS = DH_LENGTH_HALVES + 2 };

/* Two kinds of cuts:
 *   - halves of the longest length, down to a sixteenth of it or 256 tokens, for any documents;
 *   - up to two more, at multiples of a 32nd of it. Each is chosen after the one before, where the
 *     documents' tokens come nearest to the end of their group.
 * A list with two humps is therefore cut between them even where no half lies there.
 * in        ds: packed into rows of seq_len; its first n_rows are counted
 * out       cuts: rising, the last one seq_len
 * errors    DH_ENOMEM */
dh_status dh_length_cuts_find(dh_ctx *ctx, const dh_dataset *ds, int64_t seq_len, int64_t n_rows,
                              int64_t cuts[DH_LENGTH_CUTS], size_t *n_cuts);

#endif
