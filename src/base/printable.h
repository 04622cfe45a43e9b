/* Text that came from a file, as a terminal may have it. */
#ifndef DH_PRINTABLE_H
#define DH_PRINTABLE_H

#include "base/base.h"

/* Bytes of the character at text that changes what a terminal does or shows: control characters
 * (C0, DEL, C1), line and paragraph separators, marks that turn the direction of text. 0: it is
 * another, or a newline or tab. *code: its number */
size_t dh_control_at(const char *text, uint32_t *code);
/* Each of these as \uXXXX, in a buffer of cap bytes: what does not fit is cut off. */
void dh_printable(char *text, size_t cap);
/* The same of a whole text. */
void dh_str_printable(dh_str *text);

#endif
