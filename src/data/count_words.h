/* The different words of texts, and how often each is there. */
#ifndef DH_DATA_COUNT_WORDS_H
#define DH_DATA_COUNT_WORDS_H

#include "base/index.h"

typedef struct dh_counted_word {
    size_t at, n; /* bytes */
    int64_t count;
} dh_counted_word;

typedef struct dh_word_counts {
    dh_str bytes; /* bytes of all words, one after another */
    DH_VEC(dh_counted_word) words;
    dh_index index; /* of words, by their bytes */
} dh_word_counts;

/* Adds the words of a file by GPT-2's pattern; of JSON lines, of their field. */
dh_status dh_count_words(dh_ctx *ctx, const char *path, const char *text_field,
                         dh_word_counts *counts);
void dh_word_counts_fini(dh_word_counts *counts);

#endif
