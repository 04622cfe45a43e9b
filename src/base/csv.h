/* CSV texts, line by line and cell by cell, without copying.
 *
 * Blanks around a cell do not count. A cell in quotes may hold commas; it ends on its line, and
 * quotes inside it are not escaped. The caller interprets cells, empty lines, and lines that
 * begin with #. */
#ifndef DH_BASE_CSV_H
#define DH_BASE_CSV_H

#include "base/base.h"

typedef enum dh_csv_line {
    DH_CSV_END, /* no more lines */
    DH_CSV_BLANK,
    DH_CSV_COMMENT, /* text: without the # and blanks around it */
    DH_CSV_CELLS
} dh_csv_line;

typedef struct dh_csv_text {
    const char *at; /* in the whole text, not terminated */
    size_t n;
    bool quoted; /* stood in quotes, which are not part of it */
} dh_csv_text;

typedef struct dh_csv {
    const char *next, *end;  /* the lines that are not begun */
    const char *cell, *stop; /* of this line: the cells not read, NULL: none; its end */
    int32_t line, column;    /* place of the last read cell, from 1 */
} dh_csv;

/* Borrows the text. Blank lines at its end are none. */
void dh_csv_begin(dh_csv *csv, const char *text, size_t n_bytes);
/* The next line. out: text: the whole line without blanks around it, of a comment what it says */
dh_csv_line dh_csv_next_line(dh_csv *csv, dh_csv_text *text);
/* The next cell of the line; an empty line has none, "," has two. False: there is no more. */
bool dh_csv_next_cell(dh_csv *csv, dh_csv_text *cell);

/* Appends a cell for any reader of CSV: in quotes where it has to be, doubled inside (RFC 4180). */
void dh_csv_put(const char *text, dh_str *out);

#endif
