/* Rows of JSON in a text: a line each, or the values of one array.
 *
 * Only where they begin and end; a row that is no JSON is found by who parses it. */
#ifndef DH_DATA_JSON_ROWS_H
#define DH_DATA_JSON_ROWS_H

#include "base/base.h"
#include "base/mapped.h"

typedef enum dh_rows { DH_ROWS_NONE, DH_ROWS_LINES, DH_ROWS_ARRAY } dh_rows;

/* The form that the first bytes show, also after a byte order mark. '{' begins lines; '[' and '{'
 * (or nothing) begin an array. */
dh_rows dh_rows_form(const dh_map *map);
/* Whether the last byte that is no white space could end such rows. */
bool dh_rows_closed(const dh_map *map, dh_rows form);

/* A row: bytes [at, at + n). To begin: next is 0, or where a row begins, all else 0. */
typedef struct dh_row {
    size_t at, n;
    size_t next; /* where the next is looked for */
    bool last;   /* of an array: its end, or that of the text, is behind it */
} dh_row;

/* Moves to the next row that begins before `end`; false: there is none. */
bool dh_rows_next(const dh_map *map, dh_rows form, size_t end, dh_row *row);
/* Behind the last row: what is wrong with how the rows end; NULL: nothing. */
const char *dh_rows_wrong_end(const dh_map *map, dh_rows form, size_t end, const dh_row *row);
/* Offset of the first row that begins at or after that share of the bytes. */
size_t dh_rows_cut(const dh_map *map, dh_rows form, double share);

#endif
