/* Known answers, round trips and adversarial texts of every tokenizer. */
#include "tokenizer_cases.h"

#include "data/split.h"
#include "sha256.h"

#include <jansson.h>

#define CORPORA "tests/data/corpora/"

static void assert_round_trip(const dh_tokenizer *tok, const void *text, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ids ids = encode(tok, text, n, 0);
    dh_str back = DH_STR_INIT, stream = DH_STR_INIT;
    assert_ok(&ctx, dh_tokenizer_decode(&ctx, tok, ids.at, ids.n, 0, &back));
    assert_int_equal(back.len, n);
    if (n) assert_memory_equal(back.text, text, n);
    for (size_t i = 0; i < ids.n; i++) { /* token by token gives the same */
        size_t len;
        const char *bytes = dh_tokenizer_piece(tok, i ? ids.at[i - 1] : -1, ids.at[i], &len);
        dh_str_append(&stream, bytes, len);
    }
    assert_int_equal(stream.len, n);
    if (n) assert_memory_equal(stream.text, text, n);
    dh_str_fini(&back);
    dh_str_fini(&stream);
    dh_vec_fini(&ids);
}

/* ---- known answers ---------------------------------------------------------------- */

/* Calls fn for each row of a file of JSON lines. */
static void each_row(const char *path, void (*fn)(const json_t *row, void *arg), void *arg)
{
    char line[16384];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int n = 0;
    for (; fgets(line, sizeof line, f); n++) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        fn(row, arg);
        json_decref(row);
    }
    fclose(f);
    assert_true(n >= 64);
}

typedef struct column {
    const dh_tokenizer *tok;
    const char *name;
} column;

static void check_row(const json_t *row, void *arg)
{
    const column *c = arg;
    const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, c->name);
    dh_ids ids = encode(c->tok, json_string_value(text), json_string_length(text), 0);
    bool same = ids.n == json_array_size(want);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.at[i] == json_integer_value(json_array_get(want, i));
    if (!same) fail_msg("%s: \"%s\": other ids", c->name, json_string_value(text));
    assert_round_trip(c->tok, json_string_value(text), json_string_length(text));
    dh_vec_fini(&ids);
}

static void known_answers(void **state)
{
    static const char *const columns[][2] = {{"gpt2:" DATA "gpt2", "gpt2"},
                                             {DATA "mistral/tokenizer.model", "mistral_v1_spm"}};
    for (size_t i = 0; i < DH_COUNTOF(columns); i++) {
        dh_tokenizer *tok = load(columns[i][0]);
        each_row(DATA "kat/tokenization_kat.jsonl", check_row, &(column){tok, columns[i][1]});
        dh_tokenizer_destroy(tok);
    }
}

static void assert_corpus(const char *name, const dh_ids *ids)
{
    json_t *all = json_load_file(DATA "kat/corpus_gpt2_tokens.json", 0, NULL);
    const json_t *want = json_object_get(all, name);
    assert_non_null(want);
    assert_int_equal(ids->n, json_integer_value(json_object_get(want, "tokens")));
    uint16_t *narrow = malloc(ids->n * sizeof *narrow);
    for (size_t i = 0; i < ids->n; i++) narrow[i] = (uint16_t)ids->at[i];
    char hex[65];
    sha256_hex(narrow, ids->n * sizeof *narrow, hex);
    assert_string_equal(hex, json_string_value(json_object_get(want, "sha256_u16le")));
    free(narrow);
    json_decref(all);
}

typedef void (*document_fn)(const char *text, size_t n, void *arg);

static void each_story(document_fn fn, void *arg)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_map docs;
    assert_ok(&ctx, dh_map_open(&ctx, CORPORA "tinystories/docs.txt", &docs));
    FILE *index = fopen(CORPORA "tinystories/index.tsv", "r");
    assert_non_null(index);
    char line[1024];
    while (fgets(line, sizeof line, index)) {
        size_t offset, n;
        if (sscanf(line, "%*s %zu %zu", &offset, &n) != 2) continue;
        assert_true(offset + n <= docs.n_bytes);
        fn((const char *)docs.at + offset, n, arg);
    }
    fclose(index);
    dh_map_close(&docs);
}

typedef struct story_sink {
    dh_encoder *enc;
    dh_ids ids;
    bool strip;
} story_sink;

static void encode_story(const char *text, size_t n, void *arg)
{
    dh_ctx ctx = DH_CTX_INIT;
    story_sink *sink = arg;
    if (sink->strip)
        while (n && text[n - 1] == '\n') n--;
    assert_ok(&ctx, dh_encoder_encode(&ctx, sink->enc, text, n, DH_ENCODE_BOS, &sink->ids));
}

static void whole_corpora(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = load(DATA "gpt2");
    dh_map text;
    assert_ok(&ctx, dh_map_open(&ctx, CORPORA "tinyshakespeare/input.txt", &text));
    dh_ids ids = encode(tok, text.at, text.n_bytes, 0);
    assert_corpus("tinyshakespeare/input.txt (whole file, no EOT)", &ids);
    dh_vec_fini(&ids);
    dh_map_close(&text);
    story_sink sink = {0};
    assert_ok(&ctx, dh_encoder_create(&ctx, tok, &sink.enc));
    each_story(encode_story, &sink);
    assert_corpus("tinystories", &sink.ids);
    dh_vec_fini(&sink.ids);
    dh_encoder_destroy(sink.enc);
    dh_tokenizer_destroy(tok);
}

/* llama2.c strips each story and puts BOS before it. */
static void llama2c_corpus(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = load(DATA "llama2c-tok512/tokenizer.bin");
    assert_int_equal(dh_tokenizer_vocab_size(tok), 512);
    assert_int_equal(dh_tokenizer_bos(tok), 1);
    assert_int_equal(dh_tokenizer_eos(tok), 2);
    story_sink sink = {.strip = true};
    assert_ok(&ctx, dh_encoder_create(&ctx, tok, &sink.enc));
    each_story(encode_story, &sink);
    dh_map want;
    assert_ok(&ctx, dh_map_open(&ctx, CORPORA "tinystories/tok512.u16", &want));
    assert_int_equal(sink.ids.n, want.n_bytes / 2);
    for (size_t i = 0; i < sink.ids.n; i++) {
        uint16_t id;
        memcpy(&id, want.at + 2 * i, 2);
        if (id != sink.ids.at[i]) fail_msg("token %zu: %d, want %u", i, sink.ids.at[i], id);
    }
    dh_map_close(&want);
    dh_vec_fini(&sink.ids);
    dh_encoder_destroy(sink.enc);
    dh_tokenizer_destroy(tok);
}

/* ---- splitting --------------------------------------------------------------------- */

#define LLAMA3_PATTERN                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                     \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef DH_VEC(size_t) lengths;

static dh_status keep_length(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n)
{
    lengths *l = arg;
    assert_true(dh_vec_push(l, n));
    return DH_OK;
}

static void check_split(const json_t *row, void *arg)
{
    static const char *const patterns[][2] = {{"gpt2", DH_GPT2_PATTERN},
                                              {"llama3", LLAMA3_PATTERN}};
    dh_ctx ctx = DH_CTX_INIT;
    const json_t *text = json_object_get(row, "text");
    for (size_t p = 0; p < DH_COUNTOF(patterns); p++) {
        const json_t *want = json_object_get(row, patterns[p][0]);
        dh_splitter splitter = {0};
        dh_split_scratch *scratch;
        lengths got = {0};
        assert_ok(&ctx,
                  dh_splitter_add(&ctx, &splitter, patterns[p][1], strlen(patterns[p][1]), false));
        assert_ok(&ctx, dh_split_scratch_create(&ctx, &splitter, &scratch));
        assert_ok(&ctx,
                  dh_split(&ctx, &splitter, scratch, (const unsigned char *)json_string_value(text),
                           json_string_length(text), true, keep_length, &got));
        bool same = got.n == json_array_size(want);
        for (size_t i = 0; same && i < got.n; i++)
            same = got.at[i] == (size_t)json_integer_value(json_array_get(want, i));
        if (!same) fail_msg("%s: \"%s\"", patterns[p][0], json_string_value(text));
        dh_vec_fini(&got);
        dh_split_scratch_destroy(scratch);
        dh_splitter_fini(&splitter);
    }
}

static void splits_as_elsewhere(void **state)
{
    each_row(DATA "kat/splits.jsonl", check_split, NULL);
}

static void long_runs_split(void **state)
{
    enum { N = 20000000 };
    dh_ctx ctx = DH_CTX_INIT;
    char *text = malloc(N);
    memset(text, ' ', N);
    dh_splitter splitter = {0};
    dh_split_scratch *scratch;
    lengths got = {0};
    assert_ok(&ctx,
              dh_splitter_add(&ctx, &splitter, LLAMA3_PATTERN, strlen(LLAMA3_PATTERN), false));
    assert_ok(&ctx, dh_split_scratch_create(&ctx, &splitter, &scratch));
    assert_ok(&ctx, dh_split(&ctx, &splitter, scratch, (const unsigned char *)text, N, true,
                             keep_length, &got));
    assert_int_equal(got.n, 1);
    assert_int_equal(got.at[0], N);
    dh_splitter_fini(&splitter);
    dh_split_scratch_destroy(scratch);
    /* A pattern that explodes is given up, with a reason. */
    splitter = (dh_splitter){0};
    assert_ok(&ctx, dh_splitter_add(&ctx, &splitter, "( +)+[xy]", 9, false));
    assert_ok(&ctx, dh_split_scratch_create(&ctx, &splitter, &scratch));
    assert_fails(&ctx,
                 dh_split(&ctx, &splitter, scratch, (const unsigned char *)text, 100, true,
                          keep_length, &got),
                 DH_EUNSUPPORTED, "gave up");
    dh_splitter_fini(&splitter);
    dh_split_scratch_destroy(scratch);
    dh_vec_fini(&got);
    free(text);
}

/* Each match stays below its own limit; all together would take minutes. */
static void many_slow_matches_are_given_up(void **state)
{
    enum { RUN = 20, N = 20000 * RUN };
    dh_ctx ctx = DH_CTX_INIT;
    unsigned char *text = malloc(N);
    for (size_t i = 0; i < N; i++) text[i] = i % RUN == RUN - 1 ? 'a' : ' ';
    dh_splitter splitter = {0};
    dh_split_scratch *scratch;
    lengths got = {0};
    assert_ok(&ctx, dh_splitter_add(&ctx, &splitter, "( +)+[xy]|.", 11, false));
    assert_ok(&ctx, dh_split_scratch_create(&ctx, &splitter, &scratch));
    assert_fails(&ctx, dh_split(&ctx, &splitter, scratch, text, N, true, keep_length, &got),
                 DH_EUNSUPPORTED, "gave up after 400000 bytes of text");
    dh_splitter_fini(&splitter);
    dh_split_scratch_destroy(scratch);
    dh_vec_fini(&got);
    free(text);
}

/* ---- any bytes ------------------------------------------------------------------------ */

static void random_bytes_come_back(void **state)
{
    static const char *const specs[] = {"bytes", DATA "gpt2", DATA "mistral",
                                        DATA "llama2c-tok512"};
    static const char *const parts[] = {" ",
                                        "  ",
                                        "the ",
                                        "\n",
                                        "don't",
                                        "\xC3\xA9",
                                        "\xE4\xBD\xA0",
                                        "\xF0\x9F\x98\x80",
                                        "\xFF",
                                        "\xC3",
                                        "\xE2\x82",
                                        "<s>",
                                        "0x",
                                        "</s>",
                                        "12345",
                                        "\xED\xA0\x80",
                                        "\xF4\x90\x80\x80",
                                        "\xC0\x80"};
    uint64_t rng = test_seed("random_bytes_come_back");
    for (size_t s = 0; s < DH_COUNTOF(specs); s++) {
        dh_tokenizer *tok = load(specs[s]);
        for (int round = 0; round < 300; round++) {
            dh_str text = DH_STR_INIT;
            for (uint64_t n = test_rand(&rng) % 30; n > 0; n--) {
                const char *part = parts[test_rand(&rng) % DH_COUNTOF(parts)];
                char byte = (char)test_rand(&rng);
                if (test_rand(&rng) % 3 == 0)
                    dh_str_append(&text, &byte, 1);
                else
                    dh_str_append(&text, part, strlen(part));
            }
            /* SPM spells a space as U+2581, so that one does not come back as it was. */
            if (!text.len || !memmem(text.text, text.len, "\xE2\x96\x81", 3))
                assert_round_trip(tok, text.text, text.len);
            dh_str_fini(&text);
        }
        dh_tokenizer_destroy(tok);
    }
}

static void invalid_bytes_are_words(void **state)
{
    dh_tokenizer *tok = load(DATA "gpt2");
    dh_ids whole = encode(tok,
                          "ab\xFF"
                          "cd",
                          5, 0);
    dh_ids before = encode(tok, "ab", 2, 0), after = encode(tok, "cd", 2, 0);
    assert_int_equal(whole.n, before.n + 1 + after.n);
    assert_int_equal(whole.at[0], before.at[0]);
    assert_int_equal(whole.at[whole.n - 1], after.at[after.n - 1]);
    dh_vec_fini(&whole);
    dh_vec_fini(&before);
    dh_vec_fini(&after);
    dh_tokenizer_destroy(tok);
}

/* A million equal bytes are one word; a quadratic merge would take hours. */
static void huge_words(void **state)
{
    static const char *const specs[] = {DATA "gpt2", DATA "mistral", DATA "llama2c-tok512"};
    static const char fills[] = {'a', ' ', '\0', '\xFF', '\n'};
    enum { N = 1000000 };
    char *text = malloc(N);
    for (size_t s = 0; s < DH_COUNTOF(specs); s++) {
        dh_tokenizer *tok = load(specs[s]);
        for (size_t f = 0; f < DH_COUNTOF(fills); f++) {
            memset(text, fills[f], N);
            assert_round_trip(tok, text, N);
        }
        dh_tokenizer_destroy(tok);
    }
    free(text);
}

/* ---- options ----------------------------------------------------------------------------- */

static void bos_eos_and_special_tokens(void **state)
{
    dh_tokenizer *gpt2 = load(DATA "gpt2"), *spm = load(DATA "mistral");
    unsigned both = DH_ENCODE_BOS | DH_ENCODE_EOS;
    assert_int_equal(dh_tokenizer_special(gpt2, "<|endoftext|>"), 50256);
    assert_int_equal(dh_tokenizer_special(gpt2, "<|nothing|>"), -1);
    ASSERT_IDS(gpt2, "Hello world", both, 50256, 15496, 995, 50256);
    ASSERT_IDS(gpt2, "<|endoftext|>", 0, 27, 91, 437, 1659, 5239, 91, 29);
    ASSERT_IDS(gpt2, "Hello<|endoftext|> world<|endoftext|>", DH_ENCODE_SPECIAL, 15496, 50256, 995,
               50256);
    ASSERT_IDS(spm, "Hello world", both, 1, 22557, 1526, 2);
    ASSERT_IDS(spm, "", both, 1, 2);
    /* The text after a special token gets its space again. */
    ASSERT_IDS(spm, "<s>Hello world</s>", DH_ENCODE_SPECIAL, 1, 22557, 1526, 2);
    assert_int_equal(dh_tokenizer_special(spm, "</s>"), 2);
    dh_tokenizer_destroy(gpt2);
    dh_tokenizer_destroy(spm);
}

static void decoding_special_and_invalid_ids(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *spm = load(DATA "mistral");
    const int32_t ids[] = {1, 22557, 1526, 2};
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_tokenizer_decode(&ctx, spm, ids, 4, DH_DECODE_SKIP_SPECIAL, &text));
    assert_string_equal(text.text, "Hello world");
    dh_str_clear(&text);
    assert_ok(&ctx, dh_tokenizer_decode(&ctx, spm, ids, 4, 0, &text));
    assert_string_equal(text.text, "<s>Hello world</s>");
    static const int32_t bad[] = {-1, 32000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < DH_COUNTOF(bad); i++) {
        size_t n;
        int32_t pair[] = {22557, bad[i]};
        assert_null(dh_tokenizer_piece(spm, -1, bad[i], &n));
        assert_fails(&ctx, dh_tokenizer_decode(&ctx, spm, pair, 2, 0, &text), DH_EINVAL,
                     "token 1 is id");
    }
    size_t n; /* a space only goes at the start and after BOS */
    const char *piece = dh_tokenizer_piece(spm, 1, 22557, &n);
    assert_int_equal(n, 5);
    assert_memory_equal(piece, "Hello", n);
    piece = dh_tokenizer_piece(spm, 1526, 22557, &n);
    assert_int_equal(n, 6);
    assert_memory_equal(piece, " Hello", n);
    dh_str_fini(&text);
    dh_tokenizer_destroy(spm);
}

static void an_encoder_is_reusable(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = load(DATA "gpt2");
    dh_encoder *enc;
    assert_ok(&ctx, dh_encoder_create(&ctx, tok, &enc));
    dh_ids ids = {0};
    for (int i = 0; i < 3; i++)
        assert_ok(&ctx, dh_encoder_encode(&ctx, enc, "Hello world", 11, 0, &ids));
    assert_int_equal(ids.n, 6);
    assert_int_equal(ids.at[5], 995);
    dh_vec_fini(&ids);
    dh_encoder_destroy(enc);
    dh_tokenizer_destroy(tok);
}

static void fingerprints_tell_apart(void **state)
{
    static const char *const specs[] = {"bytes", DATA "gpt2", DATA "mistral",
                                        DATA "llama2c-tok512"};
    uint64_t prints[DH_COUNTOF(specs)];
    for (size_t i = 0; i < DH_COUNTOF(specs); i++) {
        dh_tokenizer *a = load(specs[i]), *b = load(specs[i]);
        prints[i] = dh_tokenizer_fingerprint(a);
        assert_true(prints[i] == dh_tokenizer_fingerprint(b));
        for (size_t j = 0; j < i; j++) assert_true(prints[i] != prints[j]);
        dh_tokenizer_destroy(a);
        dh_tokenizer_destroy(b);
    }
}

/* ---- chars --------------------------------------------------------------------------------- */

static void chars_from_text(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_map text;
    dh_tokenizer *tok, *again;
    assert_ok(&ctx, dh_map_open(&ctx, CORPORA "tinyshakespeare/input.txt", &text));
    assert_ok(&ctx, dh_tokenizer_chars_from_text(&ctx, text.at, text.n_bytes, &tok));
    assert_int_equal(dh_tokenizer_vocab_size(tok), 65); /* nanoGPT's shakespeare_char */
    assert_int_equal(dh_tokenizer_bos(tok), -1);
    ASSERT_IDS(tok, "hii there", DH_ENCODE_BOS, 46, 47, 47, 1, 58, 46, 43, 56, 43);
    dh_map_close(&text);

    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/chars.json", dir);
    assert_ok(&ctx, dh_tokenizer_save_chars(&ctx, tok, path));
    assert_ok(&ctx, dh_tokenizer_load(&ctx, path, &again));
    assert_true(dh_tokenizer_fingerprint(tok) == dh_tokenizer_fingerprint(again));
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    dh_tokenizer_destroy(again);
    dh_tokenizer_destroy(tok);
}

static void chars_beyond_ascii(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok, *again;
    static const char text[] = "z\0\xC3\xA9\xF0\x9F\x98\x80z";
    assert_ok(&ctx, dh_tokenizer_chars_from_text(&ctx, text, sizeof text - 1, &tok));
    assert_int_equal(dh_tokenizer_vocab_size(tok), 4); /* NUL z é 😀 */
    assert_round_trip(tok, text, sizeof text - 1);
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/chars.json", dir);
    assert_ok(&ctx, dh_tokenizer_save_chars(&ctx, tok, path));
    assert_ok(&ctx, dh_tokenizer_load(&ctx, path, &again));
    assert_round_trip(again, text, sizeof text - 1);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));

    dh_ids ids = {0};
    assert_true(dh_vec_push(&ids, 7));
    assert_fails(&ctx, dh_tokenizer_encode(&ctx, tok, "zz\xC3\xA9\xC3", 5, 0, &ids), DH_EINVAL,
                 "byte offset 4");
    assert_fails(&ctx, dh_tokenizer_encode(&ctx, tok, "zzy", 3, 0, &ids), DH_EINVAL,
                 "U+0079 at byte offset 2");
    assert_int_equal(ids.n, 1); /* nothing half-written */
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(again);
    dh_tokenizer_destroy(tok);
    assert_fails(&ctx, dh_tokenizer_chars_from_text(&ctx, "a\x80", 2, &tok), DH_EINVAL,
                 "byte offset 1");
    assert_fails(&ctx, dh_tokenizer_chars_from_text(&ctx, "", 0, &tok), DH_EINVAL, "empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(whole_corpora),
        cmocka_unit_test(llama2c_corpus),
        cmocka_unit_test(splits_as_elsewhere),
        cmocka_unit_test(long_runs_split),
        cmocka_unit_test(many_slow_matches_are_given_up),
        cmocka_unit_test(random_bytes_come_back),
        cmocka_unit_test(invalid_bytes_are_words),
        cmocka_unit_test(huge_words),
        cmocka_unit_test(bos_eos_and_special_tokens),
        cmocka_unit_test(decoding_special_and_invalid_ids),
        cmocka_unit_test(an_encoder_is_reusable),
        cmocka_unit_test(fingerprints_tell_apart),
        cmocka_unit_test(chars_from_text),
        cmocka_unit_test(chars_beyond_ascii),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
