/* Words are found as an encoder finds them. So training sees the words that encoding will meet.
 * Long texts go piece by piece: a piece ends behind a line break that stands alone, where the
 * pattern ends a word whatever follows. */
#include "data/count_words.h"

#include <string.h>
#include <xxhash.h>

#include "base/stop.h"
#include "data/text_source.h"
#include "data/tok.h"

/* TUNING: the splitter bounds its time by the length of a text; this many bytes take 30 ms. */
enum { PIECE_BYTES = 1 << 20 };

typedef struct counter {
    dh_word_counts *counts;
    dh_splitter splitter;
    dh_split_scratch *scratch;
} counter;

static dh_counted_word *find(const dh_word_counts *c, uint64_t hash, const void *word, size_t n)
{
    size_t at = 0;
    for (uint32_t i = dh_index_first(&c->index, hash, &at); i != DH_NONE;
         i = dh_index_next(&c->index, hash, &at)) {
        dh_counted_word *known = &c->words.at[i];
        if (known->n == n && memcmp(c->bytes.text + known->at, word, n) == 0) return known;
    }
    return NULL;
}

static dh_status count_word(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n)
{
    dh_word_counts *c = ((counter *)arg)->counts;
    const uint64_t hash = XXH3_64bits(word, n);
    dh_counted_word *known = find(c, hash, word, n);
    if (known) {
        known->count++;
        return DH_OK;
    }
    const dh_counted_word fresh = {c->bytes.len, n, 1};
    dh_str_append(&c->bytes, (const char *)word, n);
    if (c->words.n >= DH_NONE)
        return dh_fail(ctx, DH_EINVAL, "more than %u different words", DH_NONE);
    if (c->bytes.failed || !dh_index_add(&c->index, hash, (uint32_t)c->words.n) ||
        !dh_vec_push(&c->words, fresh))
        return dh_no_memory(ctx);
    return DH_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Bytes up to behind the first lone line break from PIECE_BYTES on, both neighbours being ASCII
 * and no white space; else all. */
static size_t piece_length(const char *text, size_t n)
{
    for (size_t at = PIECE_BYTES; at + 1 < n; at++) {
        const char before = text[at - 1], after = text[at + 1];
        if (text[at] == '\n' && before > 0 && after > 0 && !is_space(before) && !is_space(after))
            return at + 1;
    }
    return n;
}

static dh_status count_text(dh_ctx *ctx, void *arg, const char *text, size_t n, size_t at)
{
    counter *c = arg;
    (void)at;
    for (size_t done = 0, piece; done < n; done += piece) {
        DH_TRY(dh_heed_stop(ctx, "words were counted"));
        piece = piece_length(text + done, n - done);
        DH_TRY(dh_bpe_each_word(ctx, &c->splitter, c->scratch, (const unsigned char *)text + done,
                                piece, count_word, count_word, c));
    }
    return DH_OK;
}

dh_status dh_count_words(dh_ctx *ctx, const char *path, const char *text_field,
                         dh_word_counts *counts)
{
    counter c = {.counts = counts};
    dh_status st =
        dh_splitter_add(ctx, &c.splitter, DH_GPT2_PATTERN, strlen(DH_GPT2_PATTERN), false);
    if (st == DH_OK) st = dh_split_scratch_create(ctx, &c.splitter, &c.scratch);
    if (st == DH_OK) st = dh_text_each(ctx, path, text_field, count_text, &c);
    dh_split_scratch_destroy(c.scratch);
    dh_splitter_fini(&c.splitter);
    return st;
}

void dh_word_counts_fini(dh_word_counts *counts)
{
    dh_str_fini(&counts->bytes);
    dh_vec_fini(&counts->words);
    dh_index_fini(&counts->index);
}
