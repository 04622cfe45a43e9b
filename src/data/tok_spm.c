/* SentencePiece BPE (Llama 2, Mistral; llama2.c): characters as symbols, merges by
 * score, bytes for what the vocabulary lacks.
 *
 * SentencePiece joins any two neighbours whose concatenation is a piece. Every way to
 * cut a piece into two symbols is therefore a merge, and they all go into the pair
 * table when the model is loaded. */
#include "base/utf8.h"
#include "data/growth.h"
#include "data/tok.h"

#include <stdlib.h>
#include <string.h>

size_t dh_spm_unescape(char *text, size_t n)
{
    size_t kept = 0;
    for (size_t at = 0; at < n;) {
        bool meta = n - at >= 3 && memcmp(text + at, DH_META_SPACE, 3) == 0;
        text[kept++] = meta ? ' ' : text[at];
        at += meta ? 3 : 1;
    }
    return kept;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int dh_spm_byte_piece(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* ---- merges from scores ---------------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
    float fa = *(const float *)a, fb = *(const float *)b;
    return fa > fb ? -1 : fa < fb;
}

/* Rank of a score among all: equal scores have equal ranks. */
static uint32_t rank_of(const float *sorted, size_t n, float score)
{
    size_t low = 0;
    for (size_t high = n; low < high;) {
        size_t middle = (low + high) / 2;
        if (sorted[middle] > score)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint32_t)low;
}

/* Id of a symbol: a piece, or a character that is known only inside pieces. */
static uint32_t symbol_id(const dh_tokenizer *tok, const unsigned char *bytes, size_t n)
{
    uint32_t id = dh_vocab_find(&tok->vocab, bytes, n);
    if (id != DH_NO_ID || tok->stray.pieces.n == 0) return id;
    uint32_t stray = dh_vocab_find(&tok->stray, bytes, n);
    return stray == DH_NO_ID ? DH_NO_ID : (uint32_t)tok->vocab.pieces.n + stray;
}

/* Collect the characters of a piece that are no pieces themselves. */
static dh_status collect_strays(dh_ctx *ctx, dh_tokenizer *tok, uint32_t piece)
{
    size_t n = tok->vocab.pieces.at[piece].len;
    const unsigned char *bytes = dh_vocab_bytes(&tok->vocab, piece);
    for (size_t at = 0, len; at < n; at += len) {
        len = dh_utf8_unit(bytes + at, n - at);
        if (dh_vocab_find(&tok->vocab, bytes + at, len) == DH_NO_ID)
            DH_TRY(dh_vocab_intern(ctx, &tok->stray, bytes + at, len));
    }
    return DH_OK;
}

/* O(l^2) bytes are hashed for a piece of l bytes, so very long pieces are refused. */
#define MAX_PIECE_BYTES 1024

static dh_status add_cuts(dh_ctx *ctx, dh_tokenizer *tok, uint32_t piece, uint32_t rank)
{
    size_t n = tok->vocab.pieces.at[piece].len;
    if (n > MAX_PIECE_BYTES)
        return dh_fail(ctx, DH_EUNSUPPORTED, "token %u has %zu bytes (at most %d)", piece, n,
                       MAX_PIECE_BYTES);
    const unsigned char *bytes = dh_vocab_bytes(&tok->vocab, piece);
    for (size_t cut = dh_utf8_unit(bytes, n); cut < n; cut += dh_utf8_unit(bytes + cut, n - cut)) {
        uint32_t left = symbol_id(tok, bytes, cut);
        uint32_t right = symbol_id(tok, bytes + cut, n - cut);
        if (left != DH_NO_ID && right != DH_NO_ID)
            DH_TRY(dh_pairs_add(ctx, &tok->pairs, left, right, rank, piece));
    }
    return DH_OK;
}

dh_status dh_spm_pairs_from_scores(dh_ctx *ctx, dh_tokenizer *tok, const float *scores)
{
    size_t n = tok->vocab.pieces.n;
    float *sorted = malloc((n + 1) * sizeof *sorted);
    if (!sorted) return dh_no_memory(ctx);
    memcpy(sorted, scores, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, descending);
    dh_status st = DH_OK;
    for (uint32_t id = 0; st == DH_OK && id < n; id++)
        if (tok->vocab.pieces.at[id].kind == DH_PIECE_NORMAL) st = collect_strays(ctx, tok, id);
    for (uint32_t id = 0; st == DH_OK && id < n; id++)
        if (tok->vocab.pieces.at[id].kind == DH_PIECE_NORMAL)
            st = add_cuts(ctx, tok, id, rank_of(sorted, n, scores[id]));
    free(sorted);
    return st;
}

void dh_spm_survey(dh_tokenizer *tok)
{
    tok->words_end_at_space = true;
    for (uint32_t id = 0; id < tok->vocab.pieces.n; id++) {
        const dh_piece *p = &tok->vocab.pieces.at[id];
        if (p->kind != DH_PIECE_NORMAL) continue;
        const unsigned char *bytes = dh_vocab_bytes(&tok->vocab, id);
        for (size_t i = 1; i < p->len; i++)
            if (bytes[i] == ' ' && bytes[i - 1] != ' ') tok->words_end_at_space = false;
    }
}

/* ---- encoding --------------------------------------------------------------------------- */

static bool char_symbols(dh_encoder *enc, const unsigned char *word, size_t n)
{
    const dh_tokenizer *tok = enc->tok;
    for (size_t at = 0, len; at < n; at += len) {
        len = dh_utf8_unit(word + at, n - at);
        if (!dh_merger_add(&enc->merger, symbol_id(tok, word + at, len), at)) return false;
    }
    return true;
}

static bool wants_prefix(const dh_tokenizer *tok, const char *text, size_t n, bool first)
{
    if (tok->prefix == DH_PREFIX_NONE || n == 0 || (tok->prefix_first_only && !first)) return false;
    return tok->prefix == DH_PREFIX_ALWAYS || text[0] != ' ';
}

/* The piece at a place, and its written form: a user-defined piece or one character as it is, or a
 * string of the charsmap. */
typedef struct written {
    const char *text;
    size_t n, n_read;
} written;

static written write_next(const dh_tokenizer *tok, const unsigned char *text, size_t n)
{
    const dh_match_entry *user =
        tok->user.entries.n ? dh_matcher_find(&tok->user, &tok->vocab, true, text, n) : NULL;
    /* Pieces with a space have U+2581 in its place, which is not a space yet. */
    if (user && memchr(text, ' ', tok->vocab.pieces.at[user->id].len)) user = NULL;
    size_t len = user ? tok->vocab.pieces.at[user->id].len : dh_utf8_unit(text, n);
    const char *found = user || tok->charsmap.n_units == 0
                            ? NULL
                            : dh_charsmap_find(&tok->charsmap, text, n, true, &len);
    return found ? (written){found, strlen(found), len} : (written){(const char *)text, len, len};
}

/* Text by the charsmap, and without spaces at its beginning and behind a space, as SentencePiece
 * squeezes them: those that one string of the charsmap is written as stay together. */
static dh_status write_characters(dh_ctx *ctx, dh_encoder *enc, const unsigned char **text,
                                  size_t *n)
{
    const dh_tokenizer *tok = enc->tok;
    bool behind_space = tok->collapse_spaces;
    const size_t most = dh_growth_most(*n);
    dh_str_clear(&enc->written);
    for (size_t at = 0; at < *n;) {
        written w = write_next(tok, *text + at, *n - at);
        at += w.n_read;
        for (; behind_space && w.n > 0 && *w.text == ' '; w.n--) w.text++;
        if (!dh_growth_put(&enc->written, most, w.text, w.n))
            return dh_growth_fail(ctx, "precompiled_charsmap", *n);
        if (w.n > 0) behind_space = tok->collapse_spaces && w.text[w.n - 1] == ' ';
    }
    if (enc->written.failed) return dh_no_memory(ctx);
    *text = (const unsigned char *)(enc->written.text ? enc->written.text : "");
    *n = enc->written.len;
    return DH_OK;
}

/* Text with its prefix, spaces unescaped, into enc->norm; sets where it begins and ends. */
static dh_status normalise(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                           bool first, const unsigned char **begin, size_t *n_norm)
{
    const dh_tokenizer *tok = enc->tok;
    if (tok->charsmap.n_units || tok->collapse_spaces)
        DH_TRY(write_characters(ctx, enc, &text, &n));
    dh_str_clear(&enc->norm);
    dh_str_append(&enc->norm, " ", 1); /* the prefix, used or not */
    dh_str_append(&enc->norm, (const char *)text, n);
    if (enc->norm.failed) return dh_no_memory(ctx);
    char *body = enc->norm.text + 1;
    if (tok->escape_space) n = dh_spm_unescape(body, n);
    while (tok->collapse_spaces && n > 0 && body[n - 1] == ' ') n--;
    bool prefix = wants_prefix(tok, body, n, first);
    *begin = (const unsigned char *)body - prefix;
    *n_norm = n + prefix;
    return DH_OK;
}

static dh_status encode_spm(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                            bool first)
{
    const dh_tokenizer *tok = enc->tok;
    DH_TRY(normalise(ctx, enc, text, n, first, &text, &n));
    size_t from = 0;
    for (size_t at = 0; at < n;) {
        const dh_match_entry *e =
            tok->user.entries.n ? dh_matcher_find(&tok->user, &tok->vocab, true, text + at, n - at)
                                : NULL;
        bool word_starts =
            tok->words_end_at_space && at > from && text[at] == ' ' && text[at - 1] != ' ';
        if (e || word_starts) {
            DH_TRY(dh_encoder_word(ctx, enc, text + from, at - from));
            from = at;
        }
        if (e) {
            DH_TRY(dh_encoder_push(ctx, enc, e->id));
            from = at += tok->vocab.pieces.at[e->id].len;
        } else {
            at += dh_utf8_unit(text + at, n - at);
        }
    }
    return dh_encoder_word(ctx, enc, text + from, n - from);
}

const dh_tok_kind dh_tok_spm = {"spm", encode_spm, char_symbols, NULL},
                  dh_tok_spm_unigram = {"unigram", encode_spm, NULL, dh_unigram_segment};
