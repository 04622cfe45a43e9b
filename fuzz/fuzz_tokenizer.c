/* Tokenizer files of every kind: all loaders see every input; what loads encodes and
 * decodes without leaving its vocabulary. GPT-2's pair of files is divided by a zero
 * byte. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "data/tok_json.h"
#include "dhelix/tokenizer.h"

/* Letters, digits, runs of spaces, other scripts, an emoji, control and invalid bytes. */
static const char text[] =
    "Hello,  world's 12345 \n\n\tgr\xc3\xbc\xc3\x9f "
    "\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80<|endoftext|></s> \xff\xfe end";

static void decode(const dh_tokenizer *tok, const dh_ids *ids)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str out = DH_STR_INIT;
    int32_t prev = -1;
    for (size_t i = 0; i < ids->n; i++) {
        int32_t id = ids->at[i];
        size_t n_bytes;
        DH_CHECK(id >= 0 && id < dh_tokenizer_vocab_size(tok), "id %d", id);
        DH_CHECK(dh_tokenizer_piece(tok, prev, id, &n_bytes) != NULL, "id %d", id);
        prev = id;
    }
    DH_CHECK(dh_tokenizer_decode(&ctx, tok, ids->at, ids->n, 0, &out) == DH_OK, "%s", ctx.message);
    dh_str_fini(&out);
}

/* Takes the tokenizer, if the loader gave one. */
static void use(dh_ctx *ctx, dh_status st, dh_tokenizer *tok)
{
    DH_CHECK(st == DH_OK || ctx->message[0], "a refusal says why");
    if (st == DH_OK) {
        dh_ids ids = {0};
        unsigned flags = DH_ENCODE_BOS | DH_ENCODE_EOS | DH_ENCODE_SPECIAL;
        if (dh_tokenizer_encode(ctx, tok, text, sizeof text - 1, flags, &ids) == DH_OK)
            decode(tok, &ids);
        dh_vec_fini(&ids);
        dh_tokenizer_destroy(tok);
    }
    dh_ctx_reset(ctx);
}

static dh_status from_wordpiece(dh_ctx *ctx, const void *data, size_t n, dh_tokenizer **tok)
{
    return dh_tokenizer_from_wordpiece(ctx, data, n, NULL, tok);
}

typedef dh_status (*loader)(dh_ctx *, const void *, size_t, dh_tokenizer **);
static const loader loaders[] = {dh_tokenizer_from_hf, dh_tokenizer_from_spm,
                                 dh_tokenizer_from_llama2c, dh_tokenizer_from_chars_json,
                                 from_wordpiece};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(loaders); i++) {
        dh_tokenizer *tok = NULL;
        dh_status st = loaders[i](&ctx, data, size, &tok);
        use(&ctx, st, tok);
    }
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    if (zero) {
        dh_tokenizer *tok = NULL;
        size_t n_encoder = (size_t)(zero - data);
        dh_status st =
            dh_tokenizer_from_gpt2(&ctx, data, n_encoder, zero + 1, size - n_encoder - 1, &tok);
        use(&ctx, st, tok);
    }
    return 0;
}
