/* Growable strings and arrays, number parsing and printing, near-miss names. */
#include "base/base.h"
#include "base/c_locale.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dh_str_fini(dh_str *s)
{
    free(s->text);
    *s = (dh_str)DH_STR_INIT;
}

void dh_str_clear(dh_str *s)
{
    s->len = 0;
    if (s->text) s->text[0] = '\0';
}

static bool str_reserve(dh_str *s, size_t extra)
{
    size_t need = s->len + extra + 1;
    if (need <= s->cap) return true;
    size_t cap = DH_MAX(need, s->cap * 2);
    char *text = realloc(s->text, cap);
    if (!text) {
        s->failed = true;
        return false;
    }
    s->text = text;
    s->cap = cap;
    return true;
}

void dh_str_append(dh_str *s, const char *text, size_t n_bytes)
{
    if (!str_reserve(s, n_bytes)) return;
    memcpy(s->text + s->len, text, n_bytes);
    s->len += n_bytes;
    s->text[s->len] = '\0';
}

void dh_str_printf(dh_str *s, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = dh_vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n >= 0 && str_reserve(s, (size_t)n)) {
        dh_vsnprintf(s->text + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

bool dh_vec_grow(void **at, size_t *cap, size_t need, size_t item_bytes)
{
    size_t new_cap = DH_MAX(need, *cap ? *cap * 2 : 8), total;
    if (__builtin_mul_overflow(new_cap, item_bytes, &total)) return false;
    void *grown = realloc(*at, total);
    if (!grown) return false;
    *at = grown;
    *cap = new_cap;
    return true;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Optimal string alignment distance without regard to case, cut off at the widths that matter
 * here. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 63 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX || nb > MAX) return MAX;
    size_t row[3][MAX + 1];
    for (size_t j = 0; j <= nb; j++) row[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *cur = row[i % 3], *prev = row[(i + 2) % 3], *prev2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t d = prev[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            d = DH_MIN(d, DH_MIN(prev[j], cur[j - 1]) + 1);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                d = DH_MIN(d, prev2[j - 2] + 1);
            cur[j] = d;
        }
    }
    return row[na % 3][nb];
}

/* The name that begins with the word, or that the word begins with; of several the first. */
static const char *same_beginning(const char *word, const char *const *names, size_t n)
{
    enum { LEAST = 4 }; /* letters that say something */
    for (size_t i = 0; i < n; i++) {
        const size_t least = DH_MIN(strlen(word), strlen(names[i]));
        size_t same = 0;
        while (same < least && lower(word[same]) == lower(names[i][same])) same++;
        if (least >= LEAST && same == least) return names[i];
    }
    return NULL;
}

const char *dh_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL, *begins = same_beginning(word, names, n);
    size_t best_distance = strlen(word) / 3 + 2; /* exclusive: one error in a short word */
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return begins && best_distance > 1 ? begins : best; /* one error is nearer than an end */
}

void dh_append_base64(const void *bytes, size_t n_bytes, dh_str *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t n = DH_MIN(n_bytes - i, (size_t)3);
        unsigned char three[3] = {0};
        memcpy(three, (const char *)bytes + i, n);
        const uint32_t bits = (uint32_t)three[0] << 16 | (uint32_t)three[1] << 8 | three[2];
        char four[4];
        for (size_t k = 0; k < 4; k++) four[k] = k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=';
        dh_str_append(out, four, sizeof four);
    }
}

const char *dh_format_bytes(char *buf, size_t cap, double n_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t u = 0;
    while (fabs(n_bytes) >= 1024 && u + 1 < DH_COUNTOF(units)) {
        n_bytes /= 1024;
        u++;
    }
    dh_snprintf(buf, cap, u ? "%.2f %s" : "%.0f %s", n_bytes, units[u]);
    return buf;
}

const char *dh_format_number(char *buf, size_t cap, double value, int digits)
{
    const double rounded = fabs(value) * (1 + .5 * pow(10, -digits));
    dh_snprintf(buf, cap, "%.*g", digits, value);
    if (isfinite(value) && rounded >= pow(10, digits)) dh_snprintf(buf, cap, "%.0f", value);
    return buf;
}

/* A unit, and from where on it is used: two of a larger one are easier to read as 120 of the
 * smaller. */
typedef struct text_unit {
    double from, scale;
    const char *name;
} text_unit;

/* Largest first. */
static const char *format_unit(char *buf, size_t cap, double value, const text_unit *units,
                               size_t n)
{
    char number[32];
    for (size_t i = 0; i < n; i++)
        if (fabs(value) >= units[i].from || i + 1 == n) {
            dh_format_number(number, sizeof number, value / units[i].scale, 3);
            dh_snprintf(buf, cap, "%s%s%s", number, *units[i].name ? " " : "", units[i].name);
            break;
        }
    return buf;
}

const char *dh_format_ns(char *buf, size_t cap, double ns)
{
    static const text_unit units[] = {{2 * 86400e9, 86400e9, "days"},
                                      {2 * 3600e9, 3600e9, "h"},
                                      {120e9, 60e9, "min"},
                                      {1e9, 1e9, "s"},
                                      {1e6, 1e6, "ms"},
                                      {1e3, 1e3, "us"}};
    if (fabs(ns) >= 1e3) return format_unit(buf, cap, ns, units, DH_COUNTOF(units));
    dh_snprintf(buf, cap, "%.0f ns", ns);
    return buf;
}

const char *dh_format_count(char *buf, size_t cap, double n)
{
    static const text_unit units[] = {
        {1e12, 1e12, "T"}, {1e9, 1e9, "B"}, {1e6, 1e6, "M"}, {1e5, 1e3, "K"}, {0, 1, ""}};
    return format_unit(buf, cap, n, units, DH_COUNTOF(units));
}

const char *dh_format_flop(char *buf, size_t cap, double flop)
{
    static const text_unit units[] = {
        {1e21, 1e21, "ZFLOP"}, {1e18, 1e18, "EFLOP"}, {1e15, 1e15, "PFLOP"}, {1e12, 1e12, "TFLOP"},
        {1e9, 1e9, "GFLOP"},   {1e6, 1e6, "MFLOP"},   {0, 1, "FLOP"}};
    return format_unit(buf, cap, flop, units, DH_COUNTOF(units));
}

bool dh_parse_i64(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end) return false;
    *value = parsed;
    return true;
}

bool dh_parse_f64(const char *text, double *value)
{
    char *end;
    errno = 0;
    double parsed = dh_strtod(text, &end);
    if (end == text || *end || (errno == ERANGE && !isfinite(parsed))) return false;
    *value = parsed;
    return true;
}

uint64_t dh_mix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
