/* A SentencePiece BPE as the tokenizer.json that says the same: spaces become U+2581, one more in
 * front; every way to make a piece of two others is a merge, in the order of scores. What such a
 * file cannot say is refused. */
#include <stdlib.h>
#include <string.h>

#include "data/save.h"
#include "data/tok.h"

/* Of the unknown token, whose text in a model is what it is shown as. */
#define UNKNOWN "<unk>"

/* ---- tokens ------------------------------------------------------------------------------------
 */

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

/* ---- merges ------------------------------------------------------------------------------------
 */

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

/* ---- steps -------------------------------------------------------------------------------------
 */

static json_t *normalizer(bool prefix)
{
    json_t *steps = json_array();
    if (prefix)
        json_array_append_new(steps,
                              json_pack("{s:s, s:s}", "type", "Prepend", "prepend", DH_META_SPACE));
    json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                           "String", " ", "content", DH_META_SPACE));
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

/* ---- the file ----------------------------------------------------------------------------------
 */

/* What of a model such a file has no word for; NULL: nothing. */
static const char *beyond(const dh_tokenizer *tok)
{
    if (tok->kind != &dh_tok_spm) return "a model of another kind than BPE";
    if (tok->charsmap.n_units) return "a table of characters";
    if (tok->collapse_spaces) return "spaces that are squeezed";
    if (!tok->escape_space || tok->prefix == DH_PREFIX_MISSING) return "spaces of its own";
    if (tok->stray.pieces.n) return "characters inside of tokens that are no tokens";
    for (uint32_t id = 0; id < tok->vocab.pieces.n; id++)
        if (tok->vocab.pieces.at[id].kind == DH_PIECE_USER &&
            memchr(dh_vocab_bytes(&tok->vocab, id), ' ', tok->vocab.pieces.at[id].len))
            return "tokens of the user with spaces";
    return NULL;
}

dh_status dh_save_spm_tokenizer(dh_ctx *ctx, const dh_tokenizer *tok, const char *dir)
{
    const char *what = beyond(tok);
    if (what) return dh_fail(ctx, DH_EUNSUPPORTED, "%s, which no tokenizer.json of BPE says", what);
    const bool prefix = tok->prefix == DH_PREFIX_ALWAYS, bytes = tok->byte_id[0] != DH_NO_ID;
    json_t *model =
        json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                  "unk_token", tok->unk == DH_NO_ID ? json_null() : json_string(UNKNOWN),
                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1, "byte_fallback",
                  (int)bytes, "ignore_merges", 0, "vocab", vocabulary(tok), "merges", merges(tok));
    json_t *root = json_pack("{s:s, s:n, s:n, s:o, s:o, s:n, s:o, s:o, s:o}", "version", "1.0",
                             "truncation", "padding", "added_tokens", added_tokens(tok),
                             "normalizer", normalizer(prefix), "pre_tokenizer", "post_processor",
                             processor(tok), "decoder", decoder(prefix), "model", model);
    return dh_save_json(ctx, dir, "tokenizer.json", root);
}
