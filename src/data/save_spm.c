/* A SentencePiece model as the tokenizer.json that says the same: spaces become U+2581, one more in
 * front. For BPE, every way to make a piece from two others becomes a merge, in the order of
 * scores. For a unigram model the scores themselves are written. The whole text is one word, as in
 * SentencePiece. A model that such a file cannot express is refused. */
#include <stdlib.h>
#include <string.h>

#include "data/save.h"
#include "data/tok.h"

/* Text of the unknown token. In a model its text is the one shown for it. */
#define UNKNOWN "<unk>"

/* ---- tokens ---------------------------------------------------------------------------------- */

static json_t *marked(const unsigned char *bytes, size_t n)
{
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < n; i++) {
        const bool space = bytes[i] == ' ';
        dh_str_append(&text, space ? DH_META_SPACE : (const char *)bytes + i,
                      space ? strlen(DH_META_SPACE) : 1);
    }
    json_t *string = text.failed ? NULL : json_stringn(text.text, text.len);
    dh_str_fini(&text);
    return string;
}

static json_t *spelled(const dh_tokenizer *tok, uint32_t id)
{
    const dh_piece *piece = &tok->vocab.pieces.at[id];
    const unsigned char *bytes = dh_vocab_bytes(&tok->vocab, id);
    if (id == tok->unk) return json_string(UNKNOWN);
    if (piece->kind == DH_PIECE_BYTE) return json_sprintf("<0x%02X>", bytes[0]);
    if (piece->kind == DH_PIECE_NORMAL) return marked(bytes, piece->len);
    return json_stringn((const char *)bytes, piece->len);
}

/* {"token": id}; NULL: out of memory, or two tokens are spelled alike. */
static json_t *vocabulary(const dh_tokenizer *tok)
{
    json_t *all = json_object();
    bool failed = !all;
    for (uint32_t id = 0; id < tok->vocab.pieces.n && !failed; id++) {
        if (tok->vocab.pieces.at[id].kind == DH_PIECE_HOLE) continue;
        json_t *token = spelled(tok, id);
        failed = !token || json_object_get(all, json_string_value(token)) != NULL ||
                 json_object_set_new(all, json_string_value(token), json_integer(id)) != 0;
        json_decref(token);
    }
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

static json_t *added_tokens(const dh_tokenizer *tok)
{
    json_t *all = json_array();
    for (uint32_t id = 0; all && id < tok->vocab.pieces.n; id++) {
        const dh_piece_kind kind = tok->vocab.pieces.at[id].kind;
        const bool special = kind == DH_PIECE_SPECIAL || id == tok->unk;
        if (!special && kind != DH_PIECE_USER) continue;
        json_array_append_new(all,
                              json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (int)id,
                                        "content", spelled(tok, id), "single_word", 0, "lstrip", 0,
                                        "rstrip", 0, "normalized", 0, "special", (int)special));
    }
    return all;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b)
{
    const dh_pair *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->left < y->left ? -1 : x->left > y->left;
}

/* NULL: out of memory, of which jansson remembers its own alone (base/json_text.h). */
static json_t *merges(const dh_tokenizer *tok)
{
    const size_t n = tok->pairs.pairs.n;
    dh_pair *sorted = malloc((n + 1) * sizeof *sorted);
    json_t *all = sorted ? json_array() : NULL;
    if (n > 0 && sorted) memcpy(sorted, tok->pairs.pairs.at, n * sizeof *sorted);
    if (sorted) qsort(sorted, n, sizeof *sorted, by_rank);
    for (size_t i = 0; all && i < n; i++) {
        json_t *two =
            json_pack("[o, o]", spelled(tok, sorted[i].left), spelled(tok, sorted[i].right));
        if (two && json_array_append_new(all, two) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    free(sorted);
    return all;
}

/* ---- unigram --------------------------------------------------------------------------------- */

/* [[text, score], ...]; NULL: out of memory. */
static json_t *scores(const dh_tokenizer *tok)
{
    json_t *all = json_array();
    for (uint32_t id = 0; all && id < tok->vocab.pieces.n; id++) {
        json_t *one = json_pack("[o, f]", spelled(tok, id), tok->scores.at[id]);
        if (one && json_array_append_new(all, one) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* The table of characters as SentencePiece has it in its files. */
static json_t *table_of_characters(const dh_charsmap *map)
{
    dh_str bytes = DH_STR_INIT, text = DH_STR_INIT;
    const uint32_t n_trie = (uint32_t)(map->n_units * sizeof *map->trie);
    dh_str_append(&bytes, (const char *)&n_trie, sizeof n_trie);
    dh_str_append(&bytes, (const char *)map->trie, n_trie);
    dh_str_append(&bytes, map->texts, map->n_bytes - 1); /* the last zero is added in reading */
    if (!bytes.failed) dh_append_base64(bytes.text, bytes.len, &text);
    json_t *string = bytes.failed || text.failed ? NULL : json_stringn(text.text, text.len);
    dh_str_fini(&bytes);
    dh_str_fini(&text);
    return json_pack("{s:s, s:o}", "type", "Precompiled", "precompiled_charsmap", string);
}

static json_t *replace(const char *kind, const char *pattern, const char *content)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, pattern, "content",
                     content);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* NULL: out of memory, of which jansson remembers its own alone. */
static json_t *normalizer(const dh_tokenizer *tok)
{
    json_t *steps = json_array();
    if (tok->charsmap.n_units &&
        json_array_append_new(steps, table_of_characters(&tok->charsmap)) != 0) {
        json_decref(steps);
        return NULL;
    }
    if (tok->collapse_spaces) { /* U+2581 in a text counts as a space at its end alone */
        json_array_append_new(steps, replace("Regex", "\\A +", ""));
        json_array_append_new(steps, replace("Regex", " {2,}", " "));
        json_array_append_new(steps, replace("Regex", "[ " DH_META_SPACE "]+\\z", ""));
    }
    if (tok->prefix == DH_PREFIX_ALWAYS)
        json_array_append_new(steps,
                              json_pack("{s:s, s:s}", "type", "Prepend", "prepend", DH_META_SPACE));
    json_array_append_new(steps, replace("String", " ", DH_META_SPACE));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *decoder(bool prefix)
{
    json_t *steps =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  DH_META_SPACE, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

/* The token that begins a text goes in front of it, as Llama's tokenizer has it. */
static json_t *processor(const dh_tokenizer *tok)
{
    if (tok->bos < 0) return json_null();
    json_t *bos = spelled(tok, (uint32_t)tok->bos);
    json_t *single = json_pack("[{s:{s:O, s:i}}, {s:{s:s, s:i}}]", "SpecialToken", "id", bos,
                               "type_id", 0, "Sequence", "id", "A", "type_id", 0);
    json_t *pair =
        json_pack("[{s:{s:O, s:i}}, {s:{s:s, s:i}}, {s:{s:O, s:i}}, {s:{s:s, s:i}}]",
                  "SpecialToken", "id", bos, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                  "SpecialToken", "id", bos, "type_id", 1, "Sequence", "id", "B", "type_id", 1);
    json_t *tokens = json_object();
    if (bos)
        json_object_set_new(
            tokens, json_string_value(bos),
            json_pack("{s:O, s:[i], s:[O]}", "id", bos, "ids", (int)tok->bos, "tokens", bos));
    json_decref(bos);
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", tokens);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The part of a model that such a file cannot express; NULL: it can express all. */
static const char *beyond(const dh_tokenizer *tok)
{
    const bool unigram = tok->kind == &dh_tok_spm_unigram;
    if (tok->kind != &dh_tok_spm && !unigram) return "a model that is not SentencePiece's";
    if (!unigram && tok->charsmap.n_units) return "a table of characters of BPE";
    if (!unigram && tok->collapse_spaces) return "spaces that are squeezed by BPE";
    if (!tok->escape_space || tok->prefix == DH_PREFIX_MISSING) return "spaces of its own";
    if (tok->stray.pieces.n) return "characters inside of tokens that are no tokens";
    for (uint32_t id = 0; id < tok->vocab.pieces.n; id++) {
        const dh_piece *piece = &tok->vocab.pieces.at[id];
        if (unigram && piece->kind == DH_PIECE_USER) return "tokens of the user, of unigram";
        if (unigram && piece->kind == DH_PIECE_HOLE) return "ids without a token";
        if (piece->kind == DH_PIECE_USER &&
            memchr(dh_vocab_bytes(&tok->vocab, id), ' ', piece->len))
            return "tokens of the user with spaces";
    }
    return NULL;
}

static json_t *bpe(const dh_tokenizer *tok)
{
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                     "unk_token", tok->unk == DH_NO_ID ? json_null() : json_string(UNKNOWN),
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1,
                     "byte_fallback", (int)(tok->byte_id[0] != DH_NO_ID), "ignore_merges", 0,
                     "vocab", vocabulary(tok), "merges", merges(tok));
}

static json_t *unigram(const dh_tokenizer *tok)
{
    return json_pack("{s:s, s:o, s:b, s:o}", "type", "Unigram", "unk_id",
                     tok->unk == DH_NO_ID ? json_null() : json_integer(tok->unk), "byte_fallback",
                     (int)(tok->byte_id[0] != DH_NO_ID), "vocab", scores(tok));
}

dh_status dh_save_spm_tokenizer(dh_ctx *ctx, const dh_tokenizer *tok, const char *dir)
{
    const char *what = beyond(tok);
    if (what)
        return dh_fail(ctx, DH_EUNSUPPORTED, "%s, which a tokenizer.json cannot express", what);
    const bool is_unigram = tok->kind == &dh_tok_spm_unigram;
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:o, s:o, s:n, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
        "added_tokens", added_tokens(tok), "normalizer", normalizer(tok), "pre_tokenizer",
        "post_processor", is_unigram ? json_null() : processor(tok), "decoder",
        decoder(tok->prefix == DH_PREFIX_ALWAYS), "model", is_unigram ? unigram(tok) : bpe(tok));
    return dh_save_json(ctx, dir, "tokenizer.json", root);
}
