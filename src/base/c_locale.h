/* Numbers as files have them, whatever locale the program around the library has set.
 *
 * printf and strtod write and read the decimal point of the calling thread's locale. The
 * library prints and parses with the C locale's point. dh_str_printf, dh_fail, dh_log, dh_format_*
 * and their like see to it, and so do dh_parse_f64 and JSON. These functions are for the rest;
 * scripts/check_numbers.py finds calls of printf and strtod with real numbers. */
#ifndef DH_BASE_C_LOCALE_H
#define DH_BASE_C_LOCALE_H

#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The calling thread has the C locale until dh_c_locale_leave, which takes what enter returned. */
locale_t dh_c_locale_enter(void);
void dh_c_locale_leave(locale_t before);

int dh_snprintf(char *buf, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int dh_vsnprintf(char *buf, size_t cap, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
int dh_fprintf(FILE *file, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int dh_vfprintf(FILE *file, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
double dh_strtod(const char *text, char **end);

/* Whether two words differ at most in the case of the letters a to z. */
bool dh_is_same_word(const char *a, const char *b);
/* A to Z of the text as a to z. */
void dh_to_lower(char *text);

#endif
