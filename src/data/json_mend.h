/* Lines of JSON that other programs write and a strict parser refuses. */
#ifndef DH_DATA_JSON_MEND_H
#define DH_DATA_JSON_MEND_H

#include "base/base.h"

/* A copy of a line in which numbers with an exponent or of more than 15 bytes are 0 (no text is
 * one), NaN and Infinity null, and \u escapes of half a surrogate pair U+FFFD. What is wrong
 * otherwise stays so.
 *
 * out       appended; n_halves: of the last kind */
void dh_json_mend(const char *line, size_t n, dh_str *out, size_t *n_halves);

#endif
