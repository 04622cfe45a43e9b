/* What a test that compares numbers leaves behind for those who read it elsewhere.
 *
 * DHELIX_ERRORS=FILE: one JSON line for each result, with the largest error that was seen.
 * DHELIX_KEEP=FOLDER: of the first result that is wrong, wrong.json (the call, its arguments and
 * their values, the calls before it, the arrays) and wrong.bin (the arrays, one behind the other; 8 MB at most, later
 * ones are cut). A folder that has them keeps them. Without these variables nothing is written. */
#ifndef KEEP_H
#define KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is called now, and its arguments as the test's source has them. Borrowed. */
void keep_call(const char *name, const char *arguments);
/* The values of that call's arguments, in their order: numbers, null, "address", or an object whose
 * text this is (without the braces). */
void keep_integer(int64_t x);
void keep_unsigned(uint64_t x);
void keep_real(double x);
void keep_address(const void *x);
void keep_object(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* An object of numbers. */
typedef struct keep_field {
    const char *name;
    double value;
} keep_field;
void keep_fields(const keep_field *fields, size_t n);
const char *keep_called(void);
const char *keep_arguments(void);

/* error, tolerance: relative to numbers above 1. */
void keep_error(const char *what, const char *type, double error, double tolerance);

/* Begins the files of a wrong result, whose message this is. False: nothing is to be written. */
bool keep_begin(const char *message);
void keep_array(const char *name, const char *type, int64_t n, const void *data, size_t n_bytes);
void keep_end(void);

#endif
