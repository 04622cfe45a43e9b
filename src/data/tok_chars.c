/* The two tokenizers without merges: bytes, and the characters of a text.
 *
 * A chars tokenizer is kept as {"dhelix_tokenizer": "chars", "version": 1,
 * "chars": "<all code points, ascending>"}. */
#include "base/json_text.h"
#include "base/needs.h"
#include "base/stop.h"
#include "base/utf8.h"
#include "data/tok_json.h"

#include <stdlib.h>
#include <string.h>

/* ---- bytes -------------------------------------------------------------------------- */

static dh_status encode_bytes(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                              bool first)
{
    for (size_t i = 0; i < n; i++) {
        enc->done_bytes++;
        DH_TRY(dh_encoder_push(ctx, enc, text[i]));
    }
    return DH_OK;
}

const dh_tok_kind dh_tok_bytes = {"bytes", encode_bytes, NULL, NULL};

dh_status dh_tokenizer_bytes(dh_ctx *ctx, dh_tokenizer **tok)
{
    DH_NEEDS(ctx, tok);
    dh_tokenizer *made = dh_tokenizer_new(ctx, &dh_tok_bytes);
    if (!made) return DH_ENOMEM;
    dh_status st = DH_OK;
    for (unsigned i = 0; st == DH_OK && i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        st = dh_vocab_set(ctx, &made->vocab, i, &byte, 1, DH_PIECE_NORMAL);
    }
    return dh_tokenizer_finish(ctx, made, st, tok);
}

/* ---- chars -------------------------------------------------------------------------- */

static int compare_codes(const void *a, const void *b)
{
    uint32_t ca = *(const uint32_t *)a, cb = *(const uint32_t *)b;
    return ca < cb ? -1 : ca > cb;
}

static dh_status encode_chars(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                              bool first)
{
    const dh_tokenizer *tok = enc->tok;
    for (size_t at = 0; at < n;) {
        uint32_t code;
        size_t len = dh_utf8_decode(text + at, n - at, &code);
        if (len == 0)
            return dh_fail(ctx, DH_EINVAL, "the text is not UTF-8 at byte offset %zu (0x%02X)", at,
                           text[at]);
        const uint32_t *found =
            bsearch(&code, tok->codes.at, tok->codes.n, sizeof code, compare_codes);
        if (!found)
            return dh_fail(ctx, DH_EINVAL,
                           "character U+%04X at byte offset %zu is not in the vocabulary of %zu "
                           "characters",
                           code, at, tok->codes.n);
        enc->done_bytes += len;
        DH_TRY(dh_encoder_push(ctx, enc, (uint32_t)(found - tok->codes.at)));
        at += len;
    }
    return DH_OK;
}

const dh_tok_kind dh_tok_chars = {"chars", encode_chars, NULL, NULL};

dh_status dh_chars_mark(dh_ctx *ctx, const unsigned char *text, size_t n, uint8_t *seen)
{
    enum { STRETCH = 1 << 20 };
    for (size_t at = 0, heeded = 0; at < n;) {
        uint32_t code;
        size_t len = dh_utf8_decode(text + at, n - at, &code);
        if (at >= heeded) {
            DH_TRY(dh_heed_stop(ctx, "the characters of a text were looked for"));
            heeded = at + STRETCH;
        }
        if (len == 0)
            return dh_fail(ctx, DH_EINVAL, "the text is not UTF-8 at byte offset %zu (0x%02X)", at,
                           text[at]);
        seen[code / 8] |= (uint8_t)(1u << code % 8);
        at += len;
    }
    return DH_OK;
}

static dh_status add_code(dh_ctx *ctx, dh_tokenizer *tok, uint32_t code)
{
    unsigned char bytes[4];
    size_t n = dh_utf8_encode(code, bytes), id = tok->codes.n;
    if (!dh_vec_push(&tok->codes, code)) return dh_no_memory(ctx);
    return dh_vocab_set(ctx, &tok->vocab, id, bytes, n, DH_PIECE_NORMAL);
}

dh_status dh_chars_build(dh_ctx *ctx, const uint8_t *seen, dh_tokenizer **tok)
{
    dh_tokenizer *made = dh_tokenizer_new(ctx, &dh_tok_chars);
    if (!made) return DH_ENOMEM;
    dh_status st = DH_OK;
    for (uint32_t code = 0; st == DH_OK && code < 8 * DH_CODE_SET_BYTES; code++)
        if (seen[code / 8] >> code % 8 & 1) st = add_code(ctx, made, code);
    return dh_tokenizer_finish(ctx, made, st, tok);
}

dh_status dh_tokenizer_chars_from_text(dh_ctx *ctx, const void *text, size_t n_bytes,
                                       dh_tokenizer **tok)
{
    DH_NEEDS_LIST(ctx, text, n_bytes);
    DH_NEEDS(ctx, tok);
    if (n_bytes == 0) return dh_fail(ctx, DH_EINVAL, "no characters: the text is empty");
    uint8_t *seen = calloc(DH_CODE_SET_BYTES, 1);
    if (!seen) return dh_no_memory(ctx);
    dh_status st = dh_chars_mark(ctx, text, n_bytes, seen);
    if (st == DH_OK) st = dh_chars_build(ctx, seen, tok);
    free(seen);
    return st;
}

/* ---- file ----------------------------------------------------------------------------- */

dh_status dh_tokenizer_from_chars_root(dh_ctx *ctx, json_t *root, dh_tokenizer **tok)
{
    const json_t *kind = json_object_get(root, "dhelix_tokenizer");
    const json_t *version = json_object_get(root, "version");
    const json_t *chars = json_object_get(root, "chars");
    dh_tokenizer *made = NULL;
    dh_status st = DH_OK;
    if (!json_is_string(kind) || strcmp(json_string_value(kind), "chars") != 0)
        st = dh_fail(ctx, DH_EFORMAT, "\"dhelix_tokenizer\" is not \"chars\"");
    else if (json_integer_value(version) != 1)
        st = dh_fail(ctx, DH_EUNSUPPORTED, "\"version\" of a chars tokenizer is not 1");
    else if (!json_is_string(chars) || json_string_length(chars) == 0)
        st = dh_fail(ctx, DH_EFORMAT, "\"chars\" is not a string of characters");
    else
        st = dh_tokenizer_chars_from_text(ctx, json_string_value(chars), json_string_length(chars),
                                          &made);
    /* Sorted and without repetition, or ids would not be what the file says. */
    if (st == DH_OK && made->vocab.bytes.len != json_string_length(chars))
        st = dh_fail(ctx, DH_EFORMAT, "\"chars\" names a character twice");
    else if (st == DH_OK &&
             memcmp(made->vocab.bytes.text, json_string_value(chars), made->vocab.bytes.len) != 0)
        st = dh_fail(ctx, DH_EFORMAT, "\"chars\" is not sorted by code point");
    if (st == DH_OK)
        *tok = made;
    else
        dh_tokenizer_destroy(made);
    return st;
}

dh_status dh_tokenizer_from_chars_json(dh_ctx *ctx, const void *json, size_t n_bytes,
                                       dh_tokenizer **tok)
{
    DH_NEEDS(ctx, json);
    DH_NEEDS(ctx, tok);
    json_t *root;
    DH_TRY(dh_json_parse(ctx, json, n_bytes, &root));
    dh_status st = dh_tokenizer_from_chars_root(ctx, root, tok);
    json_decref(root);
    return st;
}

dh_status dh_tokenizer_save_chars(dh_ctx *ctx, const dh_tokenizer *tok, const char *path)
{
    DH_NEEDS(ctx, tok);
    DH_NEEDS(ctx, path);
    if (tok->kind != &dh_tok_chars)
        return dh_fail(ctx, DH_EINVAL, "a %s tokenizer is not a chars tokenizer", tok->kind->name);
    json_t *root = json_pack("{s:s, s:i, s:s%}", "dhelix_tokenizer", "chars", "version", 1, "chars",
                             tok->vocab.bytes.text, tok->vocab.bytes.len);
    char *text = dh_json_text(root, JSON_INDENT(1));
    if (!text) return dh_no_memory_while(ctx, "writing %s", path);
    dh_status st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}
