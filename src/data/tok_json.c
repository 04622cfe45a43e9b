#include "data/tok_json.h"
#include "base/json_text.h"

#include <stdlib.h>
#include <string.h>

dh_status dh_json_parse(dh_ctx *ctx, const void *text, size_t n_bytes, json_t **root)
{
    json_error_t error;
    json_t *parsed;
    DH_TRY(
        dh_json_read(ctx, text, n_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error, &parsed));
    if (!parsed)
        return dh_fail(ctx, DH_EFORMAT, "line %d, column %d: %s", error.line, error.column,
                       error.text);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return dh_fail(ctx, DH_EFORMAT, "the JSON is not an object");
    }
    *root = parsed;
    return DH_OK;
}

uint64_t dh_json_id_limit(size_t n)
{
    return DH_MIN(2 * (uint64_t)n + 65536, DH_VOCAB_MAX - 1);
}

dh_status dh_json_check_vocab(dh_ctx *ctx, json_t *vocab)
{
    const char *text;
    size_t n;
    json_t *id;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return dh_fail(ctx, DH_EFORMAT, "the vocabulary is not an object {\"token\": id, ...}");
    json_int_t limit = (json_int_t)dh_json_id_limit(json_object_size(vocab));
    json_object_keylen_foreach(vocab, text, n, id)
    {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > limit)
            return dh_fail(ctx, DH_EFORMAT, "the id of token \"%.*s\" is not an integer in 0..%lld",
                           (int)DH_MIN(n, 100), text, (long long)limit);
    }
    return DH_OK;
}

dh_status dh_bpe_add_token(dh_ctx *ctx, dh_tokenizer *tok, const char *text, size_t n, uint64_t id,
                           dh_piece_kind kind)
{
    if (kind != DH_PIECE_NORMAL) return dh_vocab_set(ctx, &tok->vocab, id, text, n, kind);
    unsigned char *bytes = malloc(n + 1);
    if (!bytes) return dh_no_memory(ctx);
    size_t n_bytes;
    dh_status st = n > 0 && dh_bytelevel_decode(text, n, bytes, &n_bytes)
                       ? dh_vocab_set(ctx, &tok->vocab, id, bytes, n_bytes, DH_PIECE_NORMAL)
                       : dh_vocab_set(ctx, &tok->vocab, id, text, n, DH_PIECE_USER);
    free(bytes);
    return st;
}
