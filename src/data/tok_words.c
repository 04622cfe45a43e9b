/* Kinds that normalise a text, split it into words, and make tokens of each word by itself: BPE
 * over characters, unigram, WordPiece, whole words. */
#include <string.h>

#include "base/utf8.h"
#include "data/tok.h"

/* ---- words ------------------------------------------------------------------------------ */

/* Where a text may be cut without changing what is merged: in front of the next U+2581 that stands
 * behind another character. Texts that no step splits (Gemma's) would be one word else. */
static size_t next_cut(const unsigned char *text, size_t n)
{
    static const char mark[] = DH_META_SPACE;
    enum { LEN = sizeof mark - 1 };
    for (size_t at = 1; at + LEN <= n;) {
        const unsigned char *found = memmem(text + at, n - at, mark, LEN);
        if (!found) break;
        at = (size_t)(found - text);
        if (at < LEN || memcmp(found - LEN, mark, LEN) != 0) return at;
        at += LEN;
    }
    return n;
}

static dh_status encode_word(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n)
{
    dh_encoder *enc = arg;
    for (size_t at = 0, len; enc->tok->cut_at_mark && at < n; at += len) {
        len = next_cut(word + at, n - at);
        DH_TRY(dh_encoder_word(ctx, enc, word + at, len));
    }
    if (enc->tok->cut_at_mark) return DH_OK;
    if (enc->tok->ignore_merges) {
        const uint32_t id = dh_vocab_find(&enc->tok->vocab, word, n);
        if (id != DH_NO_ID) {
            enc->done_bytes += n;
            return dh_encoder_push(ctx, enc, id);
        }
    }
    return dh_encoder_word(ctx, enc, word, n);
}

/* Between tokens that were cut out. */
static dh_status encode_part(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                             bool first)
{
    return dh_split(ctx, &enc->tok->splitter, enc->split, text, n, first, encode_word, enc);
}

/* Valid UTF-8: normalised, and cut at added tokens that are matched in normalised text. */
static dh_status encode_valid(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                              bool first)
{
    const dh_tokenizer *tok = enc->tok;
    if (tok->normalizer.steps.n)
        DH_TRY(dh_normalize(ctx, &tok->normalizer, enc->normalize, text, n, &text, &n));
    if (tok->user.entries.n == 0) return encode_part(ctx, enc, text, n, first);
    return dh_encoder_cut(ctx, enc, &tok->user, &tok->user_texts, text, n, first, encode_part);
}

dh_status dh_encode_words(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                          bool first)
{
    for (size_t at = 0; at < n;) {
        const size_t valid = dh_utf8_run(text + at, n - at, true);
        if (valid > 0) DH_TRY(encode_valid(ctx, enc, text + at, valid, first && at == 0));
        at += valid;
        const size_t broken = dh_utf8_run(text + at, n - at, false);
        DH_TRY(dh_encoder_word(ctx, enc, text + at, broken));
        at += broken;
    }
    return DH_OK;
}

static dh_status push(dh_ctx *ctx, dh_encoder *enc, uint32_t id)
{
    return dh_vec_push(&enc->word, (int32_t)id) ? DH_OK : dh_no_memory(ctx);
}

static dh_status no_unknown(dh_ctx *ctx, const unsigned char *word, size_t n)
{
    return dh_fail(ctx, DH_EINVAL, "\"%.*s\" has no token, and the tokenizer has no unknown token",
                   (int)DH_MIN(n, 40), (const char *)word);
}

/* For text without a token: the tokens of its bytes, if each has one, or the unknown token. */
static dh_status push_unknown(dh_ctx *ctx, dh_encoder *enc, const unsigned char *bytes, size_t n)
{
    const dh_tokenizer *tok = enc->tok;
    size_t known = 0;
    while (known < n && tok->byte_id[bytes[known]] != DH_NO_ID) known++;
    for (size_t i = 0; known == n && i < n; i++) DH_TRY(push(ctx, enc, tok->byte_id[bytes[i]]));
    if (known == n) return DH_OK;
    return tok->unk == DH_NO_ID ? no_unknown(ctx, bytes, n) : push(ctx, enc, tok->unk);
}

/* ---- BPE over characters ------------------------------------------------------------------ */

/* A character with the affixes that its place in the word gives it. */
static bool spell(const dh_tokenizer *tok, const unsigned char *at, size_t len, bool first,
                  bool last, dh_str *out)
{
    dh_str_clear(out);
    if (!first && tok->word_prefix.len)
        dh_str_append(out, tok->word_prefix.text, tok->word_prefix.len);
    dh_str_append(out, (const char *)at, len);
    if (last && tok->word_suffix.len)
        dh_str_append(out, tok->word_suffix.text, tok->word_suffix.len);
    return !out->failed;
}

/* The bytes' tokens as symbols, if every byte has one. */
static bool add_bytes(dh_encoder *enc, const dh_str *spelled, size_t at, bool *added)
{
    *added = false;
    for (size_t i = 0; i < spelled->len; i++)
        if (enc->tok->byte_id[(unsigned char)spelled->text[i]] == DH_NO_ID) return true;
    *added = true;
    for (size_t i = 0; i < spelled->len; i++) {
        const uint32_t id = enc->tok->byte_id[(unsigned char)spelled->text[i]];
        if (!dh_merger_add(&enc->merger, id, at)) return false;
    }
    return true;
}

/* Unknown characters wait: the token of a run of them comes in front of the next known one. */
static bool character_symbols(dh_encoder *enc, const unsigned char *word, size_t n)
{
    const dh_tokenizer *tok = enc->tok;
    bool waits = false;
    size_t from = 0;
    for (size_t at = 0, len; at < n; at += len) {
        bool done;
        len = dh_utf8_unit(word + at, n - at);
        if (!spell(tok, word + at, len, at == 0, at + len == n, &enc->spelled)) return false;
        const uint32_t id = dh_vocab_find(&tok->vocab, enc->spelled.text, enc->spelled.len);
        if (id != DH_NO_ID) {
            if (waits && !dh_merger_add(&enc->merger, tok->unk, from)) return false;
            if (!dh_merger_add(&enc->merger, id, at)) return false;
            waits = false;
            continue;
        }
        if (!add_bytes(enc, &enc->spelled, at, &done)) return false;
        if (done || (waits && tok->fuse_unk)) continue;
        if (waits && !dh_merger_add(&enc->merger, tok->unk, from)) return false;
        waits = true;
        from = at;
    }
    return !waits || dh_merger_add(&enc->merger, tok->unk, from);
}

/* ---- unigram (Kudo 2018): the sequence of tokens with the highest sum of scores ------------- */

static void consider(dh_path_node *end, double score, size_t start, uint32_t id)
{
    if (end->start != DH_NONE && score <= end->score) return;
    *end = (dh_path_node){.score = score, .start = (uint32_t)start, .id = id};
}

/* The best way to every place, from left to right; of equal ones the first found. */
static void find_paths(const dh_tokenizer *tok, dh_path_node *path, const unsigned char *word,
                       size_t n)
{
    for (size_t at = 0, len; at < n; at += len) {
        const double score = path[at].score;
        bool single = false;
        uint32_t node = 0;
        len = dh_utf8_unit(word + at, n - at);
        for (size_t i = at; i < n; i++) {
            node = dh_trie_step(&tok->trie, node, word[i]);
            if (node == DH_NONE) break;
            const uint32_t id = tok->trie.nodes.at[node].id;
            if (id == DH_NO_ID) continue;
            consider(&path[i + 1], score + tok->scores.at[id], at, id);
            single = single || i + 1 == at + len;
        }
        if (!single) consider(&path[at + len], score + tok->unk_score, at, DH_NO_ID);
    }
}

/* A run of unknown characters is one. */
static dh_status push_path(dh_ctx *ctx, dh_encoder *enc, dh_path_node *path,
                           const unsigned char *word, size_t n)
{
    for (size_t end = n; end > 0; end = path[end].start) path[path[end].start].next = (uint32_t)end;
    for (size_t at = 0, end; at < n; at = end) {
        end = path[at].next;
        if (path[end].id != DH_NO_ID) {
            DH_TRY(push(ctx, enc, path[end].id));
            continue;
        }
        while (end < n && path[path[end].next].id == DH_NO_ID) end = path[end].next;
        DH_TRY(push_unknown(ctx, enc, word + at, end - at));
    }
    return DH_OK;
}

dh_status dh_unigram_segment(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n)
{
    if (!dh_vec_reserve(&enc->path, n + 1)) return dh_no_memory(ctx);
    dh_path_node *path = enc->path.at;
    for (size_t i = 0; i <= n; i++) path[i] = (dh_path_node){.start = DH_NONE, .id = DH_NO_ID};
    find_paths(enc->tok, path, word, n);
    return push_path(ctx, enc, path, word, n);
}

/* ---- WordPiece: the longest token at each place -------------------------------------------- */

static size_t count_characters(const unsigned char *word, size_t n)
{
    size_t count = 0;
    for (size_t at = 0; at < n; at += dh_utf8_unit(word + at, n - at)) count++;
    return count;
}

static dh_status unknown_word(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n)
{
    enc->word.n = 0;
    return enc->tok->unk == DH_NO_ID ? no_unknown(ctx, word, n) : push(ctx, enc, enc->tok->unk);
}

static dh_status wordpiece_segment(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word,
                                   size_t n)
{
    const dh_tokenizer *tok = enc->tok;
    if (count_characters(word, n) > tok->longest_word) return unknown_word(ctx, enc, word, n);
    for (size_t at = 0, end; at < n; at = end) {
        uint32_t id = DH_NO_ID, node = at == 0 ? 0 : tok->continuing;
        end = at;
        for (size_t i = at; i < n && node != DH_NONE; i++) {
            node = dh_trie_step(&tok->trie, node, word[i]);
            if (node == DH_NONE || tok->trie.nodes.at[node].id == DH_NO_ID) continue;
            id = tok->trie.nodes.at[node].id;
            end = i + 1;
        }
        if (id == DH_NO_ID) return unknown_word(ctx, enc, word, n);
        DH_TRY(push(ctx, enc, id));
    }
    return DH_OK;
}

/* ---- whole words -------------------------------------------------------------------------- */

static dh_status word_segment(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n)
{
    const uint32_t id = dh_vocab_find(&enc->tok->vocab, word, n);
    return id == DH_NO_ID ? unknown_word(ctx, enc, word, n) : push(ctx, enc, id);
}

const dh_tok_kind dh_tok_character_bpe = {"character-bpe", dh_encode_words, character_symbols,
                                          NULL},
                  dh_tok_unigram = {"unigram", dh_encode_words, NULL, dh_unigram_segment},
                  dh_tok_wordpiece = {"wordpiece", dh_encode_words, NULL, wordpiece_segment},
                  dh_tok_wordlevel = {"wordlevel", dh_encode_words, NULL, word_segment};
