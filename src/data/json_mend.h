/* Lines of JSON that other programs write and a strict parser refuses. */
#ifndef DH_DATA_JSON_MEND_H
#define DH_DATA_JSON_MEND_H

#include "base/base.h"

/* A copy of a line with three kinds of replacements; other faults stay.
 *   numbers with an exponent, or of more than 15 bytes   0 (no text is a number)
 *   NaN, Infinity                                        null
 *   \u escapes of half a surrogate pair                  U+FFFD
 * out       appended; n_halves: replacements of the last kind */
void dh_json_mend(const char *line, size_t n, dh_str *out, size_t *n_halves);

#endif
