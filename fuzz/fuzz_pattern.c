/* Split patterns of someone else's tokenizer, over a text: words lie in the text one behind the
 * other, or the pattern is refused, or it gives up. Pattern and text are divided by a zero byte;
 * the first byte says what becomes of a match. */
#include "fuzz.h"

#include <string.h>

#include "data/split.h"
#include "data/tok.h"

typedef struct stretch {
    const unsigned char *at, *end;
} stretch;

static dh_status check_word(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n)
{
    stretch *left = arg;
    DH_CHECK(n > 0 && word >= left->at && word + n <= left->end, "a word out of place");
    left->at = word + n;
    return DH_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size > 1 ? memchr(data + 1, 0, size - 1) : NULL;
    if (!zero) return 0;
    const unsigned char *text = zero + 1;
    const size_t n = dh_utf8_run(text, (size_t)(data + size - text), true);
    const dh_split_behavior behavior = data[0] % DH_N_SPLIT_BEHAVIOR;
    dh_ctx ctx = DH_CTX_INIT;
    dh_splitter splitter = {0};
    dh_split_scratch *scratch = NULL;
    dh_status st =
        dh_splitter_add_pattern(&ctx, &splitter, (const char *)data + 1, (size_t)(zero - data) - 1,
                                data[0] & 64, behavior, data[0] & 128);
    if (st == DH_OK) st = dh_split_scratch_create(&ctx, &splitter, &scratch);
    if (st == DH_OK) {
        stretch left = {text, text + n};
        st = dh_split(&ctx, &splitter, scratch, text, n, true, check_word, &left);
        DH_CHECK(st != DH_OK || behavior == DH_SPLIT_REMOVED || left.at == left.end,
                 "bytes are lost");
    }
    DH_CHECK(st == DH_OK || ctx.message[0], "a refusal says why");
    dh_split_scratch_destroy(scratch);
    dh_splitter_fini(&splitter);
    return 0;
}
