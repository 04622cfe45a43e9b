/* Splitting text into words by a list of regular expressions (PCRE2, JIT). */
#ifndef DH_DATA_SPLIT_H
#define DH_DATA_SPLIT_H

#include "base/base.h"

#define DH_GPT2_PATTERN                                                                            \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Each pattern splits the words the one before it made: matches and the text
 * between matches both become words. */
typedef struct dh_splitter {
    DH_VEC(void *) codes; /* pcre2_code * */
    uint64_t hash;        /* of all patterns in order */
} dh_splitter;

typedef struct dh_split_scratch dh_split_scratch; /* work memory of one thread */

typedef dh_status (*dh_word_fn)(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n);

void dh_splitter_fini(dh_splitter *s);
/* literal: the pattern is plain text. White space (\s, \S) is Unicode's White_Space,
 * as in the regular expressions these patterns were written for. */
dh_status dh_splitter_add(dh_ctx *ctx, dh_splitter *s, const char *pattern, size_t n, bool literal);
dh_status dh_split_scratch_create(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch **scratch);
void dh_split_scratch_destroy(dh_split_scratch *scratch);
/* Calls fn for every word of a valid UTF-8 text, in order; the words cover the text. */
dh_status dh_split(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch *scratch,
                   const unsigned char *text, size_t n, dh_word_fn fn, void *arg);

#endif
