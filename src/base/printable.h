/* Texts that came from somewhere else, as a terminal may have them. */
#ifndef DH_PRINTABLE_H
#define DH_PRINTABLE_H

#include <stdarg.h>

#include "base/base.h"

/* Looks for a character that changes the display or the state of a terminal. These are control
 * characters (C0, DEL, C1) except newline and tab, line and paragraph separators, and marks that
 * turn the direction of text.
 * out       *code: number of the character
 * returns   bytes of the character at text; 0: it is of another kind */
size_t dh_control_at(const char *text, uint32_t *code);
/* Makes a message one line, in its buffer of cap bytes. These characters and newlines become
 * \uXXXX, and bytes that are no UTF-8 become \xXX. The end that does not fit is cut off. Signal
 * handlers may call it. */
void dh_printable(char *text, size_t cap);
/* Every message of the library and the program is made here: formatted, then printable. */
void dh_vmessage(char *text, size_t cap, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* The same of a whole text, which keeps its newlines. */
void dh_str_printable(dh_str *text);

#endif
