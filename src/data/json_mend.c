/* Python's json writes NaN and integers of any size, and half surrogates as they came; none of that
 * keeps a text beside it from being read. */
#include "data/json_mend.h"

#include <stdlib.h>
#include <string.h>

typedef struct scan {
    const char *at, *end;
    dh_str *out;
    size_t *n_halves;
} scan;

static void copy(scan *s, size_t n)
{
    dh_str_append(s->out, s->at, n);
    s->at += n;
}

static void replace(scan *s, size_t n, const char *by)
{
    dh_str_append(s->out, by, strlen(by));
    s->at += n;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static size_t digits(const char *at, const char *end)
{
    size_t n = 0;
    while (at + n < end && at[n] >= '0' && at[n] <= '9') n++;
    return n;
}

/* Length of a number by JSON's grammar; 0: there is none. */
static size_t number_length(const char *at, const char *end)
{
    const char *p = at + (at < end && *at == '-');
    const size_t whole = digits(p, end);
    if (whole == 0 || (whole > 1 && *p == '0')) return 0;
    p += whole;
    if (p < end && *p == '.') {
        const size_t n = digits(p + 1, end);
        if (n == 0) return 0;
        p += 1 + n;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        const char *exponent = p + 1 + (p + 1 < end && (p[1] == '+' || p[1] == '-'));
        const size_t n = digits(exponent, end);
        if (n == 0) return 0;
        p = exponent + n;
    }
    return (size_t)(p - at);
}

/* One that any reader can hold. */
static bool is_plain(const char *at, size_t n)
{
    return n <= 15 && !memchr(at, 'e', n) && !memchr(at, 'E', n);
}

static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

static void mend_value(scan *s)
{
    for (size_t i = 0; i < DH_COUNTOF(words); i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->at) < n || memcmp(s->at, words[i], n) != 0) continue;
        replace(s, n, "null");
        return;
    }
    const size_t n = number_length(s->at, s->end);
    if (n > 0 && !is_plain(s->at, n))
        replace(s, n, "0");
    else
        copy(s, DH_MAX(n, (size_t)1));
}

/* ---- strings -------------------------------------------------------------------------------- */

/* Of "\uXXXX"; -1: it is none. */
static int32_t escape_at(const char *at, const char *end)
{
    char hex[5] = "";
    char *last;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    memcpy(hex, at + 2, 4);
    if (strspn(hex, "0123456789abcdefABCDEF") != 4) return -1;
    return (int32_t)strtol(hex, &last, 16);
}

static void mend_escape(scan *s)
{
    const int32_t unit = escape_at(s->at, s->end);
    const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    const int32_t next = high ? escape_at(s->at + 6, s->end) : -1;
    if (high && next >= 0xDC00 && next < 0xE000) {
        copy(s, 12);
    } else if (high || low) {
        replace(s, 6, "\\ufffd");
        ++*s->n_halves;
    } else {
        copy(s, (size_t)DH_MIN(s->end - s->at, 2));
    }
}

static void mend_string(scan *s)
{
    copy(s, 1);
    while (s->at < s->end && *s->at != '"') {
        if (*s->at == '\\')
            mend_escape(s);
        else
            copy(s, 1);
    }
    if (s->at < s->end) copy(s, 1);
}

void dh_json_mend(const char *line, size_t n, dh_str *out, size_t *n_halves)
{
    scan s = {line, line + n, out, n_halves};
    *n_halves = 0;
    while (s.at < s.end) {
        if (*s.at == '"')
            mend_string(&s);
        else if (strchr("-0123456789NI", *s.at))
            mend_value(&s);
        else
            copy(&s, 1);
    }
}
