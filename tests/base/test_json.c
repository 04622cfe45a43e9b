/* JSON short of memory: every allocation fails once, ours and jansson's. */
#include "dh_test.h"

#include "base/json_text.h"

/* Names and strings that outgrow jansson's first buffers. */
static const char text[] =
    "{\"a name of more than thirty-two bytes, for once\":[1,2.5,null,\"and a text as long as the "
    "name before it, \xc3\xa4\"],\"b\":{\"c\":true}}";

static int64_t calls_left = -1; /* until one fails; -1: none will */

static bool strikes(void)
{
    return calls_left >= 0 && calls_left-- == 0;
}

void *__real_malloc(size_t n_bytes);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_malloc(size_t n_bytes)
{
    return strikes() ? NULL : __real_malloc(n_bytes);
}

void *__real_realloc(void *at, size_t n_bytes);
void *__wrap_realloc(void *at, size_t n_bytes);
void *__wrap_realloc(void *at, size_t n_bytes)
{
    return strikes() ? NULL : __real_realloc(at, n_bytes);
}

/* Whether all calls were made. */
static bool read_without(int64_t n, json_t **document)
{
    dh_ctx ctx = DH_CTX_INIT;
    json_error_t error;
    calls_left = n;
    const dh_status st = dh_json_read(&ctx, text, strlen(text), 0, &error, document);
    const bool struck = calls_left < 0;
    calls_left = -1;
    assert_int_equal(st, struck ? DH_ENOMEM : DH_OK);
    assert_true(struck == !*document);
    return !struck;
}

static bool print_without(int64_t n, const json_t *document)
{
    calls_left = n;
    char *printed = dh_json_print(document, JSON_COMPACT);
    const bool struck = calls_left < 0;
    calls_left = -1;
    assert_true(dh_json_is_whole() == !struck);
    if (struck)
        assert_null(printed);
    else
        assert_string_equal(printed, text);
    free(printed);
    return !struck;
}

static void any_allocation_may_fail(void **state)
{
    json_t *document;
    int64_t n_read = 0, n_printed = 0;
    while (!read_without(n_read, &document)) n_read++;
    while (!print_without(n_printed, document)) n_printed++;
    json_decref(document);
    printf("  %lld calls to read, %lld to print\n", (long long)n_read, (long long)n_printed);
    assert_true(n_read > 10 && n_printed > 0);
}

/* Beside characters that might be taken for it, and whatever allocation fails. */
static void keys_may_have_nul(void **state)
{
    static const char nul[] =
        "{\"a name of more than thirty-two bytes\\u0000, for once\":[\"\\u0000\", "
        "{\"\\u0000\":99999999999999999999}],\"\\\\u0000\":\"\\uFDD0\",\"\":"
        "\"\xef\xb7\x91\"}";
    static const char *const keys[] = {"a name of more than thirty-two bytes\0, for once",
                                       "\\u0000", ""};
    static const size_t lengths[] = {47, 6, 0};
    dh_ctx ctx = DH_CTX_INIT;
    json_error_t error;
    json_t *document = NULL, *one;
    int64_t n_calls = 0;
    for (bool struck = true; struck; n_calls++) {
        calls_left = n_calls;
        const dh_status st =
            dh_json_read(&ctx, nul, strlen(nul), JSON_ALLOW_NUL, &error, &document);
        struck = calls_left < 0;
        calls_left = -1;
        assert_int_equal(st, struck ? DH_ENOMEM : DH_OK);
        assert_true(struck == !document);
        dh_ctx_reset(&ctx);
    }
    assert_true(n_calls > 20);
    const char *key;
    size_t n, i = 0;
    json_object_keylen_foreach(document, key, n, one)
    {
        assert_int_equal(n, lengths[i]);
        assert_memory_equal(key, keys[i], n + 1);
        i++;
    }
    assert_int_equal(i, 3);
    const json_t *list = json_object_getn(document, keys[0], lengths[0]);
    assert_int_equal(json_string_length(json_array_get(list, 0)), 1);
    assert_true(json_is_real(json_object_getn(json_array_get(list, 1), "", 1)));
    assert_string_equal(json_string_value(json_object_get(document, keys[1])), "\xef\xb7\x90");
    assert_string_equal(json_string_value(json_object_get(document, "")), "\xef\xb7\x91");
    json_decref(document);
    assert_ok(&ctx, dh_json_read(&ctx, nul, strlen(nul), 0, &error, &document));
    assert_null(document); /* only who asks for it gets NUL */
    /* A text with every character that could take its place. */
    dh_str all = DH_STR_INIT;
    dh_str_append(&all, "{\"\\u0000", 8);
    for (unsigned code = 0xfdd0; code < 0xfdf0; code++) dh_str_printf(&all, "\\u%04x", code);
    dh_str_append(&all, "\":0}", 4);
    assert_ok(&ctx, dh_json_read(&ctx, all.text, all.len, JSON_ALLOW_NUL, &error, &document));
    assert_null(document);
    assert_non_null(strstr(error.text, "NUL byte in object key"));
    dh_str_fini(&all);
}

/* Of a whole document: all numbers have the digits that one of them needs. */
static void numbers_are_short_where_they_read_back(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *printed;
    assert_ok(&ctx,
              dh_json_text_exact(&ctx, json_pack("[f, f]", 0.1, 0.3), JSON_COMPACT, &printed));
    assert_string_equal(printed, "[0.1,0.3]");
    free(printed);
    assert_ok(&ctx, dh_json_text_exact(&ctx, json_pack("[f, f]", 0.5, 0.1 + 0.2), JSON_COMPACT,
                                       &printed));
    assert_string_equal(printed, "[0.5,0.30000000000000004]");
    free(printed);
    assert_fails(&ctx, dh_json_text_exact(&ctx, NULL, 0, &printed), DH_ENOMEM, "out of memory");
}

/* Transformers writes 10^30 into tokenizer_config.json. What only looks like a number stays. */
static void integers_may_be_of_any_size(void **state)
{
    static const char wide[] =
        "{\"max\":1000000000000000019884624838656,\"least\":-9223372036854775809,"
        "\"long long\":[9223372036854775807,-9223372036854775808],\"real\":10000000000000000000.5,"
        "\"1000000000000000019884624838656\":\"\\\"9223372036854775808\"}";
    dh_ctx ctx = DH_CTX_INIT;
    json_error_t error;
    json_t *document;
    long long most, least;
    double large, small, real;
    const char *string;
    assert_ok(&ctx, dh_json_read(&ctx, wide, strlen(wide), 0, &error, &document));
    assert_int_equal(json_unpack(document, "{s:f, s:f, s:[I, I], s:f, s:s}", "max", &large, "least",
                                 &small, "long long", &most, &least, "real", &real,
                                 "1000000000000000019884624838656", &string),
                     0);
    assert_true(large == 1e30 && small == -9223372036854775808.0 && real == 1e19);
    assert_true(most == INT64_MAX && least == INT64_MIN);
    assert_string_equal(string, "\"9223372036854775808");
    json_decref(document);

    static const char *const wrong[] = {"[1e400]",
                                        "[-]",
                                        "[10000000000000000000",
                                        "[00000000000000000000]",
                                        "[10000000000000000000}",
                                        "[1-10000000000000000000]",
                                        "[10000000000000000000 \\"};
    for (size_t i = 0; i < DH_COUNTOF(wrong); i++) {
        const size_t n = strlen(wrong[i]);
        char *only = malloc(n); /* not a byte behind it */
        memcpy(only, wrong[i], n);
        assert_ok(&ctx, dh_json_read(&ctx, only, n, 0, &error, &document));
        assert_null(document);
        assert_true(error.line == 1);
        free(only);
    }
}

/* An empty object takes a hundred times its bytes: a file of them does not take all memory. */
static void memory_has_a_limit(void **state)
{
    enum { N = 500000 };
    dh_ctx ctx = DH_CTX_INIT;
    json_error_t error;
    json_t *document;
    char *objects = malloc(3 * N + 2);
    for (size_t i = 0; i < N; i++) memcpy(objects + 1 + 3 * i, "{},", 3);
    objects[0] = '[';
    objects[3 * N] = ']'; /* in place of the last comma */
    assert_fails(&ctx, dh_json_read(&ctx, objects, 3 * N + 1, 0, &error, &document),
                 DH_EUNSUPPORTED, "1500001 bytes of JSON take more memory than is allowed");
    assert_null(document);
    for (size_t i = 0; i < N; i++) memcpy(objects + 1 + 3 * i, "11,", 3);
    objects[3 * N] = ']';
    assert_ok(&ctx, dh_json_read(&ctx, objects, 3 * N + 1, 0, &error, &document));
    json_decref(document);
    free(objects);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(integers_may_be_of_any_size),
                                       cmocka_unit_test(memory_has_a_limit),
                                       cmocka_unit_test(any_allocation_may_fail),
                                       cmocka_unit_test(numbers_are_short_where_they_read_back),
                                       cmocka_unit_test(keys_may_have_nul)};
    dh_json_watch_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
