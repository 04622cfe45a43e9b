/* Splitting text into words by a list of steps: regular expressions that cut it, and rewritings of
 * what was cut so far (Hugging Face's pre-tokenizers). */
#ifndef DH_DATA_SPLIT_H
#define DH_DATA_SPLIT_H

#include "base/base.h"
#include "data/pattern.h"

#define DH_GPT2_PATTERN                                                                            \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* The use of a match and of the text between matches. */
typedef enum dh_split_behavior {
    DH_SPLIT_ISOLATED,             /* both are words */
    DH_SPLIT_REMOVED,              /* matches go */
    DH_SPLIT_MERGED_WITH_PREVIOUS, /* a match belongs to the text in front of it */
    DH_SPLIT_MERGED_WITH_NEXT,     /* to the text behind it */
    DH_SPLIT_CONTIGUOUS,           /* matches without text between them are one */
    DH_N_SPLIT_BEHAVIOR
} dh_split_behavior;

typedef enum dh_split_rewrite {
    DH_REWRITE_NONE,
    DH_REWRITE_SPACE_BEFORE, /* a space in front, where there is none */
    DH_REWRITE_METASPACE,    /* spaces become the mark; one in front, by `mark_before` */
    DH_REWRITE_BYTES         /* each byte becomes its character of the byte-level alphabet */
} dh_split_rewrite;

typedef enum dh_mark_before { DH_MARK_NEVER, DH_MARK_ALWAYS, DH_MARK_FIRST } dh_mark_before;

/* Each step takes the words that the one before it made. */
typedef struct dh_split_step {
    dh_pattern *pattern; /* NULL: the step rewrites */
    dh_split_behavior behavior;
    bool invert; /* the text between matches is what matches, and the other way round */
    dh_split_rewrite rewrite;
    dh_mark_before mark_before;
    char mark[8]; /* UTF-8, terminated */
} dh_split_step;

typedef struct dh_splitter {
    DH_VEC(dh_split_step) steps;
    uint64_t hash; /* hash of all steps in order */
} dh_splitter;

typedef struct dh_split_scratch dh_split_scratch; /* work memory of one thread */

typedef dh_status (*dh_word_fn)(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n);

void dh_splitter_fini(dh_splitter *s);
/* Matches of a pattern and the text between them both become words. literal: the pattern is plain
 * text. Else as pattern.h says. */
dh_status dh_splitter_add(dh_ctx *ctx, dh_splitter *s, const char *pattern, size_t n, bool literal);
dh_status dh_splitter_add_pattern(dh_ctx *ctx, dh_splitter *s, const char *pattern, size_t n,
                                  bool literal, dh_split_behavior behavior, bool invert);
dh_status dh_splitter_add_rewrite(dh_ctx *ctx, dh_splitter *s, dh_split_step step);
dh_status dh_split_scratch_create(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch **scratch);
void dh_split_scratch_destroy(dh_split_scratch *scratch);
/* Calls fn for every word of a valid UTF-8 text, in order. first: nothing stands in front of the
 * text. */
dh_status dh_split(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch *scratch,
                   const unsigned char *text, size_t n, bool first, dh_word_fn fn, void *arg);

#endif
