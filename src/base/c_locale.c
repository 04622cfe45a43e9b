#include "base/c_locale.h"

#include <pthread.h>
#include <stdlib.h>

static locale_t c_locale; /* made once, kept while the process lives */
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static locale_t the_c_locale(void)
{
    pthread_once(&c_locale_once, make_c_locale);
    return c_locale;
}

/* Without a locale of its own (out of memory) uselocale only tells which one the thread has. */
locale_t dh_c_locale_enter(void)
{
    return uselocale(the_c_locale());
}

void dh_c_locale_leave(locale_t before)
{
    uselocale(before);
}

int dh_vsnprintf(char *buf, size_t cap, const char *fmt, va_list args)
{
    const locale_t before = dh_c_locale_enter();
    const int n = vsnprintf(buf, cap, fmt, args);
    dh_c_locale_leave(before);
    return n;
}

int dh_snprintf(char *buf, size_t cap, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = dh_vsnprintf(buf, cap, fmt, args);
    va_end(args);
    return n;
}

int dh_vfprintf(FILE *file, const char *fmt, va_list args)
{
    const locale_t before = dh_c_locale_enter();
    const int n = vfprintf(file, fmt, args);
    dh_c_locale_leave(before);
    return n;
}

int dh_fprintf(FILE *file, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = dh_vfprintf(file, fmt, args);
    va_end(args);
    return n;
}

double dh_strtod(const char *text, char **end)
{
    const locale_t own = the_c_locale();
    return own ? strtod_l(text, end, own) : strtod(text, end);
}

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

bool dh_is_same_word(const char *a, const char *b)
{
    while (*a && lower(*a) == lower(*b)) {
        a++;
        b++;
    }
    return lower(*a) == lower(*b);
}

void dh_to_lower(char *text)
{
    for (; *text; text++) *text = (char)lower(*text);
}
