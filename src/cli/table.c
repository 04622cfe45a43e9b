/* Computes widths first: the natural width of every column, its least width, and the width that it
 * gets. */
#include "cli/table.h"
#include "base/c_locale.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2, NARROWEST_TEXT = 18, NARROWEST_NOTE = 40, NOTE_INDENT = 4 };

/* ---- filling -------------------------------------------------------------------------------- */

void dh_cli_table_begin(dh_cli_table *t)
{
    *t = (dh_cli_table){.arena = dh_arena_create()};
    t->failed = !t->arena;
}

void dh_cli_table_column(dh_cli_table *t, const char *heading, dh_cli_column_kind kind)
{
    DH_CHECK(t->n_columns < DH_CLI_TABLE_COLUMNS && t->cells.n == 0, "column %s", heading);
    t->columns[t->n_columns].heading = heading;
    t->columns[t->n_columns++].kind = kind;
}

void dh_cli_table_cell(dh_cli_table *t, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = dh_vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *cell = t->arena && n >= 0 ? dh_arena_alloc(t->arena, (size_t)n + 1) : NULL;
    if (cell) dh_vsnprintf(cell, (size_t)n + 1, fmt, again);
    va_end(again);
    if (!cell || !dh_vec_push(&t->cells, cell)) t->failed = true;
}

/* ---- widths --------------------------------------------------------------------------------- */

/* Characters, of which UTF-8 may need several bytes. */
static int length_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static size_t n_rows(const dh_cli_table *t)
{
    return t->n_columns > 0 ? t->cells.n / t->n_columns : 0;
}

static int natural_width(const dh_cli_table *t, size_t column)
{
    int width = length_of(t->columns[column].heading);
    for (size_t i = 0; i < n_rows(t); i++)
        width = DH_MAX(width, length_of(t->cells.at[i * t->n_columns + column]));
    return width;
}

/* Columns that are printed side by side: the first of the table, and some that follow each
 * other. */
typedef struct band {
    struct {
        size_t at; /* in the table */
        int natural, width;
    } columns[DH_CLI_TABLE_COLUMNS];
    size_t n;
    int width;       /* all columns with their gaps */
    bool note_below; /* the last of the table stands below each row */
} band;

static int least_width(const dh_cli_table *t, size_t column, int natural)
{
    static const int least[] = {
        [DH_CLI_COLUMN_TEXT] = NARROWEST_TEXT, [DH_CLI_COLUMN_NOTE] = NARROWEST_NOTE};
    const dh_cli_column_kind kind = t->columns[column].kind;
    return kind == DH_CLI_COLUMN_TEXT || kind == DH_CLI_COLUMN_NOTE ? DH_MIN(natural, least[kind])
                                                                    : natural;
}

/* False where it has no room, unless `must`. */
static bool add_column(const dh_cli_table *t, band *b, size_t column, int width, bool must)
{
    const int natural = natural_width(t, column);
    const int least = least_width(t, column, natural);
    const int sum = b->width + least + (b->n > 0 ? GAP : 0);
    if (natural == 0 && !must) return true; /* no row has anything there */
    if (sum > width && !must) return false;
    b->columns[b->n].at = column;
    b->columns[b->n].natural = natural;
    b->columns[b->n++].width = least;
    b->width = sum;
    return true;
}

/* Gives the rest of the line to columns of text, evenly as long as they need it. */
static void grow(band *b, int width)
{
    for (bool grown = true; grown;) {
        grown = false;
        for (size_t i = 0; i < b->n && b->width < width; i++)
            if (b->columns[i].width < b->columns[i].natural) {
                b->columns[i].width++;
                b->width++;
                grown = true;
            }
    }
}

static bool has_note(const dh_cli_table *t)
{
    return t->n_columns > 1 && t->columns[t->n_columns - 1].kind == DH_CLI_COLUMN_NOTE;
}

/* As many columns as fit from *next on, which moves behind them; one at the least. */
static band next_band(const dh_cli_table *t, int width, size_t *next)
{
    const size_t n = t->n_columns - has_note(t);
    band b = {.n = 0};
    add_column(t, &b, 0, width, true);
    while (*next < n && add_column(t, &b, *next, width, b.n == 1)) (*next)++;
    if (*next == n && has_note(t)) b.note_below = !add_column(t, &b, (*next)++, width, false);
    grow(&b, width);
    return b;
}

/* ---- printing ------------------------------------------------------------------------------- */

/* Bytes of the next line of a cell: up to the last blank or hyphen within width, or cut in a word
 * that is longer than that. */
static size_t next_piece(const char *text, int width)
{
    size_t at = 0, blank = 0;
    for (int n = 0; text[at]; n++) {
        if (text[at] == ' ') blank = at;
        if (n >= width) return blank > 0 ? blank : at;
        do {
            at++;
        } while (((unsigned char)text[at] & 0xC0) == 0x80);
        if (text[at - 1] == '-') blank = at;
    }
    return at;
}

/* One line of a row; false when nothing is left of any cell. */
static bool print_line(const dh_cli_table *t, const band *b, const char **rest, dh_str *out)
{
    int column = 0, start = 0;
    bool any = false;
    for (size_t i = 0; i < b->n; i++) any |= *rest[i] != '\0';
    if (!any) return false;
    for (size_t i = 0; i < b->n; start += b->columns[i++].width + GAP) {
        const int width = b->columns[i].width;
        const size_t n = next_piece(rest[i], width);
        char *piece = dh_arena_printf(t->arena, "%.*s", (int)n, rest[i]);
        const int length = piece ? length_of(piece) : 0;
        const bool right = t->columns[b->columns[i].at].kind == DH_CLI_COLUMN_RIGHT;
        const int from = start + (right ? width - length : 0);
        if (!piece) out->failed = true;
        if (length > 0) {
            dh_str_printf(out, "%*s%s", from - column, "", piece);
            column = from + length;
        }
        rest[i] += n;
        while (*rest[i] == ' ') rest[i]++;
    }
    dh_str_append(out, "\n", 1);
    return true;
}

static void print_note(const dh_cli_table *t, size_t row, int width, dh_str *out)
{
    const char *note = t->cells.at[(row + 1) * t->n_columns - 1];
    if (!*note) return;
    dh_str_printf(out, "%*s", NOTE_INDENT, "");
    dh_str_wrap(out, note, NOTE_INDENT, width);
}

static void print_band(const dh_cli_table *t, const band *b, int width, dh_str *out)
{
    const char *rest[DH_CLI_TABLE_COLUMNS];
    for (size_t i = 0; i < b->n; i++) rest[i] = t->columns[b->columns[i].at].heading;
    while (print_line(t, b, rest, out)) continue;
    for (size_t row = 0; row < n_rows(t); row++) {
        for (size_t i = 0; i < b->n; i++)
            rest[i] = t->cells.at[row * t->n_columns + b->columns[i].at];
        while (print_line(t, b, rest, out)) continue;
        if (b->note_below) print_note(t, row, width, out);
    }
}

void dh_cli_table_end(dh_cli_table *t, int width, dh_str *out)
{
    size_t next = DH_MIN(t->n_columns, 1);
    out->failed |= t->failed;
    for (bool first = true; !t->failed && (first || next < t->n_columns); first = false) {
        const band b = next_band(t, width, &next);
        if (!first) dh_str_append(out, "\n", 1);
        print_band(t, &b, width, out);
    }
    dh_vec_fini(&t->cells);
    dh_arena_destroy(t->arena);
}
