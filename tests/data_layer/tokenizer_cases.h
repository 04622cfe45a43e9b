/* Tokenizers read and compared, for the suites over them. */
#ifndef DH_TOKENIZER_CASES_H
#define DH_TOKENIZER_CASES_H

#include "dh_test.h"

#include "dhelix/tokenizer.h"

#define DATA "tests/data/tokenizers/"

static inline dh_tokenizer *load(const char *spec)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = NULL;
    assert_ok(&ctx, dh_tokenizer_load(&ctx, spec, &tok));
    return tok;
}

static inline dh_ids encode(const dh_tokenizer *tok, const void *text, size_t n, unsigned flags)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ids ids = {0};
    assert_ok(&ctx, dh_tokenizer_encode(&ctx, tok, text, n, flags, &ids));
    return ids;
}

static inline void assert_ids(const dh_tokenizer *tok, const char *text, unsigned flags,
                              const int32_t *want, size_t n)
{
    dh_ids ids = encode(tok, text, strlen(text), flags);
    if (ids.n != n || (n && memcmp(ids.at, want, n * sizeof *want) != 0)) {
        for (size_t i = 0; i < ids.n; i++) print_message("%d ", ids.at[i]);
        fail_msg("\"%s\": %zu ids, want %zu or others", text, ids.n, n);
    }
    dh_vec_fini(&ids);
}
#define ASSERT_IDS(tok, text, flags, ...)                                                          \
    assert_ids(tok, text, flags, (const int32_t[]){__VA_ARGS__},                                   \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static inline void assert_same_ids(const dh_tokenizer *a, const dh_tokenizer *b, const char *text,
                                   size_t n)
{
    dh_ids x = encode(a, text, n, 0), y = encode(b, text, n, 0);
    assert_int_equal(x.n, y.n);
    if (x.n) assert_memory_equal(x.at, y.at, x.n * sizeof *x.at);
    dh_vec_fini(&x);
    dh_vec_fini(&y);
}

#endif
