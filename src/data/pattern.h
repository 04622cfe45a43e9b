/* Regular expressions over UTF-8 (PCRE2, JIT), bounded in steps and time.
 *
 * Patterns are written for Oniguruma in Ruby's syntax, which Hugging Face's tokenizers use. Parts
 * that PCRE2 reads differently are rewritten:
 *   \s, \S           Unicode's White_Space
 *   \w, \W, \b, \B   with marks
 *   \h, \H           hexadecimal digits
 *   ^, $             at line breaks
 *   X{m,n}+          repeats X{m,n}
 * Parts that cannot be rewritten (\W and \H inside of [...]) are refused. */
#ifndef DH_DATA_PATTERN_H
#define DH_DATA_PATTERN_H

#include "base/base.h"

/* Letters in circles and squares, which are Alphabetic; for use in a class. */
#define DH_PATTERN_ENCLOSED_LETTERS                                                                \
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

typedef struct dh_pattern dh_pattern;           /* never changes; any thread */
typedef struct dh_pattern_work dh_pattern_work; /* work memory of one thread */

/* literal: the pattern is plain text.
 * errors    DH_EFORMAT what is wrong and where; DH_ENOMEM */
dh_status dh_pattern_compile(dh_ctx *ctx, const char *pattern, size_t n, bool literal,
                             dh_pattern **compiled);
void dh_pattern_free(dh_pattern *pattern);
/* Whether some text of no bytes matches. */
bool dh_pattern_matches_empty(const dh_pattern *pattern);

dh_status dh_pattern_work_create(dh_ctx *ctx, dh_pattern_work **work);
void dh_pattern_work_destroy(dh_pattern_work *work);
/* A new text of n bytes, which is to be seen by so many patterns: what their matches may take
 * together, in steps and in time, grows by its share. */
void dh_pattern_begin(dh_pattern_work *work, size_t n_bytes, size_t n_patterns);
/* The first match in text[from, n). *found: whether there is one, and then where.
 * errors    DH_EUNSUPPORTED the texts take too many steps or too long */
dh_status dh_pattern_next(dh_ctx *ctx, const dh_pattern *pattern, dh_pattern_work *work,
                          const unsigned char *text, size_t n, size_t from, bool *found,
                          size_t *begin, size_t *end);

#endif
