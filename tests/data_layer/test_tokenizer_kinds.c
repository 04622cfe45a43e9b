/* Every kind of tokenizer.json gives the ids and texts that Hugging Face's tokenizers give
 * (tests/data/tokenizers/hf, made by make_hf.py), and SentencePiece models those that SentencePiece
 * gives (../spm, make_spm.py), whatever the text. */
#include "dh_test.h"

#include "data/save.h"
#include "dhelix/tokenizer.h"

#include <jansson.h>

#define DATA "tests/data/tokenizers/"

typedef struct fixture {
    const char *folder, *suffix;
    json_t *expected, *texts, *rows; /* rows: by name of the tokenizer */
    size_t n_texts;
} fixture;

static fixture hf = {.folder = DATA "hf", .suffix = ".json"};
static fixture spm = {.folder = DATA "spm", .suffix = ".model"};

static int load_expected(fixture *f)
{
    char path[200];
    snprintf(path, sizeof path, "%s/expected.json", f->folder);
    f->expected = json_load_file(path, JSON_ALLOW_NUL, NULL);
    f->texts = json_object_get(f->expected, "texts");
    f->rows = json_object_get(f->expected, "tokenizers");
    f->n_texts = json_array_size(f->texts);
    return f->n_texts > 0 && f->rows ? 0 : -1;
}

static int load_both(void **state)
{
    return load_expected(&hf) == 0 ? load_expected(&spm) : -1;
}

static int drop_both(void **state)
{
    json_decref(hf.expected);
    json_decref(spm.expected);
    return 0;
}

static dh_tokenizer *load(const fixture *f, const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = NULL;
    char path[200];
    snprintf(path, sizeof path, "%s/%s%s", f->folder, name, f->suffix);
    assert_ok(&ctx, dh_tokenizer_load(&ctx, path, &tok));
    return tok;
}

static void print_ids(const char *what, const int32_t *ids, size_t n)
{
    dh_str out = DH_STR_INIT;
    for (size_t i = 0; i < n && i < 60; i++) dh_str_printf(&out, " %d", ids[i]);
    print_message("  %s:%s\n", what, out.text ? out.text : "");
    dh_str_fini(&out);
}

/* Whether a text has these ids; says where it has not. */
static bool same_ids(const char *name, dh_encoder *enc, const json_t *text, const json_t *want,
                     unsigned flags)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ids ids = {0}, wanted = {0};
    size_t i;
    json_t *id;
    const dh_status st = dh_encoder_encode(&ctx, enc, json_string_value(text),
                                           json_string_length(text), flags, &ids);
    json_array_foreach(want, i, id)
        assert_true(dh_vec_push(&wanted, (int32_t)json_integer_value(id)));
    const bool same = st == DH_OK && ids.n == wanted.n &&
                      (ids.n == 0 || memcmp(ids.at, wanted.at, ids.n * sizeof *ids.at) == 0);
    if (!same) {
        char *spelled = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        print_message("%s, %s special tokens, %s %s\n", name,
                      flags & DH_ENCODE_SPECIAL ? "with" : "without", spelled, ctx.message);
        print_ids("got ", ids.at, ids.n);
        print_ids("want", wanted.at, wanted.n);
        free(spelled);
    }
    dh_vec_fini(&ids);
    dh_vec_fini(&wanted);
    return same;
}

static void check_ids(const fixture *f, size_t fewest)
{
    const char *name;
    json_t *rows;
    size_t n_wrong = 0, n_tokenizers = 0;
    json_object_foreach(f->rows, name, rows)
    {
        dh_ctx ctx = DH_CTX_INIT;
        dh_tokenizer *tok = load(f, name);
        dh_encoder *enc;
        assert_ok(&ctx, dh_encoder_create(&ctx, tok, &enc));
        for (size_t i = 0; i < f->n_texts; i++) {
            const json_t *ids = json_array_get(json_object_get(rows, "ids"), i);
            const json_t *plain = json_array_get(json_object_get(rows, "plain"), i);
            const json_t *text = json_array_get(f->texts, i);
            if (plain) n_wrong += !same_ids(name, enc, text, ids, DH_ENCODE_SPECIAL);
            n_wrong += !same_ids(name, enc, text, json_is_array(plain) ? plain : ids, 0);
        }
        dh_encoder_destroy(enc);
        dh_tokenizer_destroy(tok);
        n_tokenizers++;
    }
    assert_in_range(n_tokenizers, fewest, 100);
    assert_int_equal(n_wrong, 0);
}

static void every_kind_gives_the_ids(void **state)
{
    check_ids(&hf, 25);
}

static void sentencepiece_models_give_the_ids(void **state)
{
    check_ids(&spm, 4);
}

/* Characters of several grapheme clusters that these models write as others ("ab", "xx"), and two
 * that are one cluster (CR LF): Hugging Face's Precompiled looks up clusters. */
static bool goes_by_clusters(const json_t *text)
{
    const char *at = json_string_value(text);
    return strstr(at, "ab") || strstr(at, "xx") || strstr(at, "\r\n");
}

/* Of a unigram model, written as tokenizer.json and read again. */
static size_t count_wrong_as_json(const char *name, json_t *rows, const char *dir)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *model = load(&spm, name), *json;
    dh_encoder *enc;
    size_t n_wrong = 0;
    assert_ok(&ctx, dh_save_spm_tokenizer(&ctx, model, dir));
    assert_ok(&ctx, dh_tokenizer_load(&ctx, dir, &json));
    assert_ok(&ctx, dh_encoder_create(&ctx, json, &enc));
    for (size_t i = 0; i < spm.n_texts; i++) {
        const json_t *text = json_array_get(spm.texts, i);
        if (!goes_by_clusters(text))
            n_wrong +=
                !same_ids(name, enc, text, json_array_get(json_object_get(rows, "ids"), i), 0);
    }
    dh_encoder_destroy(enc);
    dh_tokenizer_destroy(json);
    dh_tokenizer_destroy(model);
    return n_wrong;
}

static void unigram_models_give_the_ids_as_json(void **state)
{
    const char *name;
    json_t *rows;
    char dir[256];
    size_t n_wrong = 0, n_models = 0;
    test_tmpdir(dir, sizeof dir);
    json_object_foreach(spm.rows, name, rows)
    {
        if (strcmp(name, "unigram") != 0 && strcmp(name, "unigram_spaces") != 0) continue;
        n_wrong += count_wrong_as_json(name, rows, dir);
        n_models++;
    }
    assert_int_equal(n_models, 2);
    assert_int_equal(n_wrong, 0);
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *of_user = load(&spm, "unigram_bytes");
    assert_fails(&ctx, dh_save_spm_tokenizer(&ctx, of_user, dir), DH_EUNSUPPORTED, "of the user");
    dh_tokenizer_destroy(of_user);
}

/* All bytes of a character are text; half of them is what Hugging Face's writes as U+FFFD. */
static bool has_replacement(const json_t *text)
{
    return memmem(json_string_value(text), json_string_length(text), "\xEF\xBF\xBD", 3) != NULL;
}

static void check_text(const fixture *f, size_t fewest)
{
    const char *name;
    json_t *rows, *id;
    size_t n_wrong = 0, n_right = 0, k;
    json_object_foreach(f->rows, name, rows)
    {
        dh_ctx ctx = DH_CTX_INIT;
        dh_tokenizer *tok = load(f, name);
        for (size_t i = 0; i < f->n_texts; i++) {
            const json_t *want = json_array_get(json_object_get(rows, "text"), i);
            dh_ids ids = {0};
            dh_str text = DH_STR_INIT;
            if (json_is_null(want) || has_replacement(want)) continue;
            json_array_foreach(json_array_get(json_object_get(rows, "ids"), i), k, id)
                assert_true(dh_vec_push(&ids, (int32_t)json_integer_value(id)));
            assert_ok(&ctx,
                      dh_tokenizer_decode(&ctx, tok, ids.at, ids.n, DH_DECODE_SKIP_SPECIAL, &text));
            const bool same =
                text.len == json_string_length(want) &&
                (text.len == 0 || memcmp(text.text, json_string_value(want), text.len) == 0);
            if (!same)
                print_message("%s, text %zu:\n  got  \"%s\"\n  want \"%s\"\n", name, i,
                              text.text ? text.text : "", json_string_value(want));
            n_wrong += !same;
            n_right += same;
            dh_vec_fini(&ids);
            dh_str_fini(&text);
        }
        dh_tokenizer_destroy(tok);
    }
    assert_int_equal(n_wrong, 0);
    assert_in_range(n_right, fewest, 100000);
}

static void every_kind_gives_the_text_back(void **state)
{
    check_text(&hf, 1000);
}

static void sentencepiece_models_give_the_text_back(void **state)
{
    check_text(&spm, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_gives_the_ids),
        cmocka_unit_test(every_kind_gives_the_text_back),
        cmocka_unit_test(unigram_models_give_the_ids_as_json),
        cmocka_unit_test(sentencepiece_models_give_the_ids),
        cmocka_unit_test(sentencepiece_models_give_the_text_back),
    };
    return cmocka_run_group_tests(tests, load_both, drop_both);
}
