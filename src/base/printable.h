/* Texts that came from somewhere else, as a terminal may have them. */
#ifndef DH_PRINTABLE_H
#define DH_PRINTABLE_H

#include <stdarg.h>

#include "base/base.h"

/* Bytes of the character at text that changes what a terminal does or shows: control characters
 * (C0, DEL, C1), line and paragraph separators, marks that turn the direction of text. 0: it is
 * another, or a newline or tab. *code: its number */
size_t dh_control_at(const char *text, uint32_t *code);
/* A message is one line. Each of these characters and newlines as \uXXXX, and each byte that is no
 * UTF-8 as \xXX, in a buffer of cap bytes: what does not fit is cut off. Signal handlers may call
 * it. */
void dh_printable(char *text, size_t cap);
/* Every message of the library and the program is made here: formatted, then printable. */
void dh_vmessage(char *text, size_t cap, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* The same of a whole text, which keeps its newlines. */
void dh_str_printable(dh_str *text);

#endif
