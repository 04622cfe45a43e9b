/* Where rows of JSON begin and end (json_rows.h). Of an array's values only strings and brackets
 * are looked at: what lies between two commas that are inside of nothing is a row. */
#include "data/json_rows.h"

#include <string.h>

static bool is_space(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t skip_space_to(const dh_map *map, size_t at, size_t end)
{
    while (at < end && is_space(map->at[at])) at++;
    return at;
}

static size_t skip_space(const dh_map *map, size_t at)
{
    return skip_space_to(map, at, map->n_bytes);
}

/* Behind the mark that some editors put in front of UTF-8, which is no part of the JSON. */
static size_t text_begin(const dh_map *map)
{
    return map->n_bytes >= 3 && memcmp(map->at, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

static bool byte_is(const dh_map *map, size_t at, char c)
{
    return at < map->n_bytes && map->at[at] == (unsigned char)c;
}

dh_rows dh_rows_form(const dh_map *map)
{
    const size_t at = skip_space(map, text_begin(map));
    if (byte_is(map, at, '{')) return DH_ROWS_LINES;
    const size_t value = byte_is(map, at, '[') ? skip_space(map, at + 1) : at;
    const bool array = value > at && (byte_is(map, value, '{') || byte_is(map, value, ']'));
    return array ? DH_ROWS_ARRAY : DH_ROWS_NONE;
}

bool dh_rows_closed(const dh_map *map, dh_rows form)
{
    size_t n = map->n_bytes;
    while (n > 0 && is_space(map->at[n - 1])) n--;
    return n > 0 && map->at[n - 1] == (form == DH_ROWS_ARRAY ? ']' : '}');
}

/* ---- lines ---------------------------------------------------------------------------------- */

static bool next_line(const dh_map *map, size_t end, dh_row *row)
{
    size_t at = row->next > 0 ? row->next : text_begin(map);
    for (size_t n; at < end; at += n + 1) {
        const unsigned char *newline = memchr(map->at + at, '\n', end - at);
        n = (newline ? (size_t)(newline - map->at) : end) - at;
        if (skip_space_to(map, at, at + n) == at + n) continue;
        *row = (dh_row){.at = at, .n = n, .next = at + n + 1};
        return true;
    }
    return false;
}

/* ---- an array -------------------------------------------------------------------------------- */

/* The comma or bracket after the value that begins at `at`, else the end of the text. */
static size_t value_end(const dh_map *map, size_t at)
{
    size_t depth = 0;
    bool quoted = false;
    for (; at < map->n_bytes; at++) {
        const unsigned char c = map->at[at];
        if (quoted && c == '\\') {
            at++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            depth++;
        } else if (!quoted && depth > 0 && (c == '}' || c == ']')) {
            depth--;
        } else if (!quoted && depth == 0 && (c == ',' || c == ']')) {
            return at;
        }
    }
    return map->n_bytes;
}

static bool next_value(const dh_map *map, size_t end, dh_row *row)
{
    const bool first = row->next == 0;
    size_t at = first ? skip_space(map, text_begin(map)) + 1 : row->next; /* behind the '[' */
    at = skip_space(map, at);
    if (row->last || at >= end) return false;
    const size_t behind = value_end(map, at);
    *row = (dh_row){.at = at,
                    .n = behind - at,
                    .next = behind + 1,
                    .last = behind >= map->n_bytes || map->at[behind] == ']'};
    return !first || row->n > 0 || !row->last; /* an empty array has no value */
}

/* ---- both ------------------------------------------------------------------------------------ */

bool dh_rows_next(const dh_map *map, dh_rows form, size_t end, dh_row *row)
{
    return form == DH_ROWS_ARRAY ? next_value(map, end, row) : next_line(map, end, row);
}

const char *dh_rows_wrong_end(const dh_map *map, dh_rows form, size_t end, const dh_row *row)
{
    if (form != DH_ROWS_ARRAY || end < map->n_bytes) return NULL;
    if (!row->last || row->next > map->n_bytes) return "the array has no end: its ] is missing";
    return skip_space(map, row->next) < map->n_bytes ? "there is text after the array's ]" : NULL;
}

static size_t cut_lines(const dh_map *map, size_t at)
{
    if (at == 0 || at >= map->n_bytes) return at;
    const unsigned char *newline = memchr(map->at + at - 1, '\n', map->n_bytes - at + 1);
    return newline ? (size_t)(newline - map->at) + 1 : map->n_bytes;
}

size_t dh_rows_cut(const dh_map *map, dh_rows form, double share)
{
    const size_t wanted = (size_t)((double)map->n_bytes * share);
    dh_row row = {0};
    if (form != DH_ROWS_ARRAY) return cut_lines(map, wanted);
    while (next_value(map, map->n_bytes, &row))
        if (row.at >= wanted) return row.at;
    return map->n_bytes;
}
