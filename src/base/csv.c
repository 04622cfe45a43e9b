#include "base/csv.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static dh_csv_text trimmed(const char *from, const char *to)
{
    while (from < to && is_blank(*from)) from++;
    while (to > from && is_blank(to[-1])) to--;
    return (dh_csv_text){.at = from, .n = (size_t)(to - from)};
}

void dh_csv_begin(dh_csv *csv, const char *text, size_t n_bytes)
{
    while (n_bytes > 0 && (text[n_bytes - 1] == '\n' || is_blank(text[n_bytes - 1]))) n_bytes--;
    *csv = (dh_csv){.next = text, .end = text + n_bytes};
}

dh_csv_line dh_csv_next_line(dh_csv *csv, dh_csv_text *text)
{
    csv->cell = NULL;
    if (csv->next >= csv->end) return DH_CSV_END;
    const char *from = csv->next, *newline = memchr(from, '\n', (size_t)(csv->end - from));
    csv->stop = newline ? newline : csv->end;
    csv->next = csv->stop + 1;
    csv->line++;
    csv->column = 0;
    *text = trimmed(from, csv->stop);
    if (text->n == 0) return DH_CSV_BLANK;
    if (*text->at == '#') {
        *text = trimmed(text->at + 1, text->at + text->n);
        return DH_CSV_COMMENT;
    }
    csv->cell = from;
    return DH_CSV_CELLS;
}

/* Behind the cell that begins at `from`: a comma outside quotes, or the end of the line. */
static const char *end_of_cell(const char *from, const char *stop)
{
    const char *at = from;
    while (at < stop && is_blank(*at)) at++;
    if (at < stop && *at == '"') {
        const char *close = memchr(at + 1, '"', (size_t)(stop - at - 1));
        if (close) from = close;
    }
    const char *comma = memchr(from, ',', (size_t)(stop - from));
    return comma ? comma : stop;
}

bool dh_csv_next_cell(dh_csv *csv, dh_csv_text *cell)
{
    if (!csv->cell) return false;
    const char *end = end_of_cell(csv->cell, csv->stop);
    *cell = trimmed(csv->cell, end);
    if (cell->n >= 2 && *cell->at == '"' && cell->at[cell->n - 1] == '"')
        *cell = (dh_csv_text){cell->at + 1, cell->n - 2, true};
    csv->cell = end < csv->stop ? end + 1 : NULL;
    csv->column++;
    return true;
}

void dh_csv_put(const char *text, dh_str *out)
{
    const bool quoted = text[strcspn(text, ",\"\r\n")] != '\0';
    if (quoted) dh_str_append(out, "\"", 1);
    for (const char *c = text; *c; c++) dh_str_append(out, *c == '"' ? "\"\"" : c, 1 + (*c == '"'));
    if (quoted) dh_str_append(out, "\"", 1);
}
