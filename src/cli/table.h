/* Tables that fit the terminal.
 *
 * Columns keep their place in every row. If the terminal is too narrow, cells of text columns
 * are broken over several lines. If that is not enough, the table is printed in parts below each
 * other, each with the first column in front. A note stands at the end of a row
 * where there is room for it, and below the row where there is not. */
#ifndef DH_CLI_TABLE_H
#define DH_CLI_TABLE_H

#include "base/base.h"

typedef enum dh_cli_column_kind {
    DH_CLI_COLUMN_LEFT,  /* a word, never broken */
    DH_CLI_COLUMN_RIGHT, /* a number with its unit, never broken */
    DH_CLI_COLUMN_TEXT,  /* may be broken, at blanks and behind hyphens */
    DH_CLI_COLUMN_NOTE   /* a sentence; the last column, if any */
} dh_cli_column_kind;

enum { DH_CLI_TABLE_COLUMNS = 24 };

typedef struct dh_cli_table {
    dh_arena *arena; /* holds the cells; NULL when out of memory */
    struct {
        const char *heading;
        dh_cli_column_kind kind;
    } columns[DH_CLI_TABLE_COLUMNS];
    size_t n_columns;
    DH_VEC(const char *) cells; /* row by row */
    bool failed;
} dh_cli_table;

void dh_cli_table_begin(dh_cli_table *table);
/* All columns come before the first cell; heading is borrowed. */
void dh_cli_table_column(dh_cli_table *table, const char *heading, dh_cli_column_kind kind);
/* The next cell of the row; a row is full after as many as there are columns. */
void dh_cli_table_cell(dh_cli_table *table, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Print in lines of width columns, and release it. A failure is left in out->failed. */
void dh_cli_table_end(dh_cli_table *table, int width, dh_str *out);

#endif
