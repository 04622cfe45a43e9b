/* GPT-2's own files: encoder.json {"token": id} and vocab.bpe, one merge "a b" a line
 * in order of rank, after a "#version" line (Radford et al. 2019). */
#include "base/needs.h"
#include "data/tok_json.h"

#include <string.h>

#define END_OF_TEXT "<|endoftext|>"

static dh_status add_tokens(dh_ctx *ctx, dh_tokenizer *tok, json_t *encoder)
{
    const char *text;
    size_t n;
    json_t *id;
    DH_TRY(dh_json_check_vocab(ctx, encoder));
    json_object_keylen_foreach(encoder, text, n, id)
    {
        bool special = n == strlen(END_OF_TEXT) && memcmp(text, END_OF_TEXT, n) == 0;
        DH_TRY(dh_bpe_add_token(ctx, tok, text, n, (uint64_t)json_integer_value(id),
                                special ? DH_PIECE_SPECIAL : DH_PIECE_NORMAL));
        if (!special) continue;
        tok->bos = tok->eos = (int32_t)json_integer_value(id);
        DH_TRY(dh_tokenizer_add_special(ctx, tok, (uint32_t)tok->bos, false));
    }
    return DH_OK;
}

static dh_status add_merge_line(dh_ctx *ctx, dh_tokenizer *tok, const char *line, size_t n,
                                uint32_t rank)
{
    const char *space = memchr(line, ' ', n);
    if (!space || space == line || space == line + n - 1)
        return dh_fail(ctx, DH_EFORMAT, "\"%.*s\" is not a merge (two tokens and a space between)",
                       (int)DH_MIN(n, 100), line);
    size_t n_left = (size_t)(space - line);
    return dh_bpe_add_merge(ctx, tok, line, n_left, space + 1, n - n_left - 1, rank);
}

static dh_status add_merges(dh_ctx *ctx, dh_tokenizer *tok, const char *text, size_t n_bytes)
{
    uint32_t rank = 0;
    for (size_t at = 0, line = 1; at < n_bytes; line++) {
        const char *begin = text + at, *newline = memchr(begin, '\n', n_bytes - at);
        size_t n = newline ? (size_t)(newline - begin) : n_bytes - at;
        at += n + 1;
        if (n > 0 && begin[n - 1] == '\r') n--;
        if (n == 0 || (line == 1 && n >= 8 && memcmp(begin, "#version", 8) == 0)) continue;
        if (add_merge_line(ctx, tok, begin, n, rank++) != DH_OK)
            return dh_ctx_while(ctx, "reading merges, line %zu", line);
    }
    return DH_OK;
}

dh_status dh_tokenizer_from_gpt2(dh_ctx *ctx, const void *encoder_json, size_t n_encoder,
                                 const void *vocab_bpe, size_t n_vocab_bpe, dh_tokenizer **tok)
{
    DH_NEEDS(ctx, encoder_json);
    DH_NEEDS(ctx, vocab_bpe);
    DH_NEEDS(ctx, tok);
    json_t *encoder;
    DH_TRY(dh_json_parse(ctx, encoder_json, n_encoder, &encoder));
    dh_tokenizer *made = dh_tokenizer_new(ctx, &dh_tok_bpe);
    dh_status st = made ? add_tokens(ctx, made, encoder) : DH_ENOMEM;
    json_decref(encoder);
    if (!made) return st;
    if (st == DH_OK) st = dh_vocab_index(ctx, &made->vocab);
    if (st == DH_OK) dh_bpe_set_bytes(made);
    if (st == DH_OK) st = add_merges(ctx, made, vocab_bpe, n_vocab_bpe);
    if (st == DH_OK)
        st = dh_splitter_add(ctx, &made->splitter, DH_GPT2_PATTERN, strlen(DH_GPT2_PATTERN), false);
    return dh_tokenizer_finish(ctx, made, st, tok);
}
