#include "keep.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { MOST_ERRORS = 1024, MOST_BYTES = 8 << 20, MOST_PATH = 4096, MOST_BEFORE = 4 };
enum { MOST_VALUES = 4096 };

static const char *called = "", *arguments = "";
static const char *before[MOST_BEFORE]; /* calls, the latest first */
static char values[MOST_VALUES];        /* of the call's arguments, as JSON's list has them */
static size_t values_end;

void keep_call(const char *name, const char *with)
{
    memmove(before + 1, before, sizeof before - sizeof *before);
    before[0] = called;
    called = name;
    arguments = with;
    values_end = 0;
    values[0] = '\0';
}

/* One more value; one that has no room is left out whole, and all behind it. */
static void put_value(const char *open, const char *close, const char *fmt, va_list args)
{
    char text[MOST_VALUES];
    vsnprintf(text, sizeof text, fmt, args);
    const size_t n = strlen(text) + strlen(open) + strlen(close) + 2;
    if (values_end + n >= sizeof values) {
        values_end = sizeof values;
        return;
    }
    values_end += (size_t)snprintf(values + values_end, sizeof values - values_end, "%s%s%s%s",
                                   values_end ? ", " : "", open, text, close);
}

static void put_number(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void put_number(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_value("", "", fmt, args);
    va_end(args);
}

void keep_integer(int64_t x)
{
    put_number("%lld", (long long)x);
}

void keep_unsigned(uint64_t x)
{
    put_number("%llu", (unsigned long long)x);
}

/* JSON has no infinity, and no number that is none. */
void keep_real(double x)
{
    if (isfinite(x))
        put_number("%.9g", x);
    else
        put_number("\"%g\"", x);
}

void keep_address(const void *x)
{
    put_number("%s", x ? "\"address\"" : "null");
}

void keep_object(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_value("{", "}", fmt, args);
    va_end(args);
}

void keep_fields(const keep_field *fields, size_t n)
{
    char text[MOST_VALUES] = "";
    size_t end = 0;
    for (size_t i = 0; i < n && end < sizeof text - 64; i++)
        end += (size_t)snprintf(text + end, sizeof text - end, "%s\"%s\": %.17g", i ? ", " : "",
                                fields[i].name, fields[i].value);
    keep_object("%s", text);
}

const char *keep_called(void)
{
    return called;
}

const char *keep_arguments(void)
{
    return arguments;
}

/* Between quotes of JSON; what is no text there becomes a space. */
static void put_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', to);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
}

/* ---- the largest errors ------------------------------------------------------------------------
 */

static struct row {
    const char *call;
    char what[64], type[8];
    double largest, tolerance;
    int64_t n;
} rows[MOST_ERRORS];
static size_t n_rows;

static void write_errors(void)
{
    FILE *to = fopen(getenv("DHELIX_ERRORS"), "a");
    if (!to) return;
    for (const struct row *r = rows; r < rows + n_rows; r++) {
        fputs("{\"call\": \"", to);
        put_text(to, r->call);
        fputs("\", \"what\": \"", to);
        put_text(to, r->what);
        /* JSON has no infinity. */
        fprintf(to, "\", \"type\": \"%s\", \"n\": %lld, \"largest\": %.6g, \"tolerance\": %.6g}\n",
                r->type, (long long)r->n, r->largest <= 1e300 ? r->largest : 1e300, r->tolerance);
    }
    fclose(to);
}

static struct row *row_of(const char *what, const char *type)
{
    for (struct row *r = rows; r < rows + n_rows; r++)
        if (strcmp(r->call, called) == 0 && strncmp(r->what, what, sizeof r->what - 1) == 0 &&
            strcmp(r->type, type) == 0)
            return r;
    if (n_rows == MOST_ERRORS) return NULL;
    if (n_rows == 0) atexit(write_errors);
    struct row *r = &rows[n_rows++];
    r->call = called;
    snprintf(r->what, sizeof r->what, "%s", what);
    snprintf(r->type, sizeof r->type, "%s", type);
    return r;
}

void keep_error(const char *what, const char *type, double error, double tolerance)
{
    static int wanted = -1; /* asked once: this is called for every number */
    if (wanted < 0) wanted = getenv("DHELIX_ERRORS") != NULL;
    struct row *r = wanted ? row_of(what, type) : NULL;
    if (!r) return;
    r->n++;
    r->tolerance = DH_MAX(r->tolerance, tolerance);
    if (!(error <= r->largest)) r->largest = error == error ? error : 1e300;
}

/* ---- the first wrong result -------------------------------------------------------------------
 */

static FILE *text, *bytes;
static size_t n_kept;
static bool has_arrays;

bool keep_begin(const char *message)
{
    char path[MOST_PATH];
    const char *folder = getenv("DHELIX_KEEP");
    if (!folder) return false;
    snprintf(path, sizeof path, "%s/wrong.json", folder);
    text = fopen(path, "wx");
    if (!text) return false;
    snprintf(path, sizeof path, "%s/wrong.bin", folder);
    bytes = fopen(path, "wb");
    n_kept = 0;
    has_arrays = false;
    fputs("{\"call\": \"", text);
    put_text(text, called);
    fputs("\", \"arguments\": \"", text);
    put_text(text, arguments);
    fprintf(text, "\", \"values\": [%s], \"message\": \"", values);
    put_text(text, message);
    fputs("\", \"before\": [", text);
    for (int i = 0; i < MOST_BEFORE && before[i]; i++)
        fprintf(text, "%s\"%s\"", i ? ", " : "", before[i]);
    fputs("], \"arrays\": [", text);
    return true;
}

void keep_array(const char *name, const char *type, int64_t n, const void *data, size_t n_bytes)
{
    const size_t kept = DH_MIN(n_bytes, MOST_BYTES - n_kept);
    fprintf(text, "%s\n  {\"name\": \"", has_arrays ? "," : "");
    put_text(text, name);
    fprintf(text,
            "\", \"type\": \"%s\", \"n\": %lld, \"from\": %zu, \"bytes\": %zu, \"whole\": %s}",
            type, (long long)n, n_kept, kept, kept == n_bytes ? "true" : "false");
    if (bytes) fwrite(data, 1, kept, bytes);
    n_kept += kept;
    has_arrays = true;
}

void keep_end(void)
{
    fputs("]}\n", text);
    fclose(text);
    if (bytes) fclose(bytes);
}
