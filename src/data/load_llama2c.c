/* llama2.c's tokenizer.bin: int32 longest piece, then per token float32 score, int32 length and
 * bytes, until the end of the file. Tokens 0 to 2 are <unk>, <s> and </s>. Tokens 3 to 258 are the
 * bytes (karpathy/llama2.c, tokenizer.py and run.c). */
#include "base/needs.h"
#include "data/tok.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNK = 0, BOS = 1, EOS = 2, FIRST_BYTE = 3, FIRST_PIECE = 3 + 256 };

typedef DH_VEC(float) score_list;

/* "\n<s>\n" -> "<s>": the file has line breaks around the control tokens. */
static void strip_newlines(const char **text, size_t *n)
{
    if (*n > 2 && (*text)[0] == '\n' && (*text)[*n - 1] == '\n') {
        *text += 1;
        *n -= 2;
    }
}

static dh_status add_token(dh_ctx *ctx, dh_tokenizer *tok, uint32_t id, const char *text, size_t n)
{
    if (id < FIRST_BYTE) {
        strip_newlines(&text, &n);
        return dh_vocab_set(ctx, &tok->vocab, id, text, n,
                            id == UNK ? DH_PIECE_UNKNOWN : DH_PIECE_SPECIAL);
    }
    if (id >= FIRST_PIECE) return dh_vocab_set(ctx, &tok->vocab, id, text, n, DH_PIECE_NORMAL);
    int byte = dh_spm_byte_piece(text, n);
    if (byte != (int)id - FIRST_BYTE)
        return dh_fail(ctx, DH_EFORMAT, "token %u is \"%.*s\", not the byte token <0x%02X>", id,
                       (int)DH_MIN(n, 40), text, id - FIRST_BYTE);
    unsigned char value = (unsigned char)byte;
    tok->byte_id[value] = id;
    return dh_vocab_set(ctx, &tok->vocab, id, &value, 1, DH_PIECE_BYTE);
}

static dh_status read_tokens(dh_ctx *ctx, dh_tokenizer *tok, const unsigned char *data, size_t n,
                             score_list *scores)
{
    int32_t longest, len;
    float score;
    if (n < sizeof longest)
        return dh_fail(ctx, DH_EFORMAT, "%zu bytes, too short for a tokenizer.bin", n);
    memcpy(&longest, data, sizeof longest);
    if (longest < 1 || longest > 65535)
        return dh_fail(ctx, DH_EFORMAT, "longest piece %d is not in 1..65535", longest);
    for (size_t at = sizeof longest; at < n; at += (size_t)len) {
        uint32_t id = (uint32_t)scores->n;
        if (n - at < sizeof score + sizeof len)
            return dh_fail(ctx, DH_EFORMAT, "cut off in the head of token %u, offset %zu", id, at);
        memcpy(&score, data + at, sizeof score);
        memcpy(&len, data + at + sizeof score, sizeof len);
        at += sizeof score + sizeof len;
        if (len < 0 || len > longest || (size_t)len > n - at)
            return dh_fail(ctx, DH_EFORMAT,
                           "token %u at offset %zu has length %d, which does not fit (longest %d, "
                           "%zu bytes left)",
                           id, at, len, longest, n - at);
        if (!isfinite(score))
            return dh_fail(ctx, DH_EFORMAT, "token %u: score is not a number", id);
        if (!dh_vec_push(scores, score)) return dh_no_memory(ctx);
        DH_TRY(add_token(ctx, tok, id, (const char *)data + at, (size_t)len));
    }
    if (scores->n <= FIRST_PIECE)
        return dh_fail(ctx, DH_EFORMAT, "%zu tokens; control and byte tokens alone are %d",
                       scores->n, FIRST_PIECE);
    return DH_OK;
}

static dh_status build(dh_ctx *ctx, dh_tokenizer *tok, const unsigned char *data, size_t n,
                       score_list *scores)
{
    tok->unk = UNK;
    tok->bos = BOS;
    tok->eos = EOS;
    tok->prefix = DH_PREFIX_ALWAYS;
    tok->strip_prefix = true;
    DH_TRY(read_tokens(ctx, tok, data, n, scores));
    DH_TRY(dh_vocab_index(ctx, &tok->vocab));
    DH_TRY(dh_spm_pairs_from_scores(ctx, tok, scores->at));
    dh_spm_survey(tok);
    DH_TRY(dh_tokenizer_add_special(ctx, tok, BOS, false));
    return dh_tokenizer_add_special(ctx, tok, EOS, false);
}

dh_status dh_tokenizer_from_llama2c(dh_ctx *ctx, const void *data, size_t n_bytes,
                                    dh_tokenizer **tok)
{
    DH_NEEDS(ctx, data);
    DH_NEEDS(ctx, tok);
    dh_tokenizer *made = dh_tokenizer_new(ctx, &dh_tok_spm);
    if (!made) return DH_ENOMEM;
    score_list scores = {0};
    dh_status st = build(ctx, made, data, n_bytes, &scores);
    dh_vec_fini(&scores);
    return dh_tokenizer_finish(ctx, made, st, tok);
}
