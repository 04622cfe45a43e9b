/* Tokenizer formats: equivalent files encode alike, merging equals its definition, what
 * is malformed or not supported is refused with a reason. */
#include "sentencepiece_model.h"

#include "data/save.h"

#include <jansson.h>

/* JSON as text, to be freed; takes the reference. */
static char *json_text(json_t *root)
{
    char *text = json_dumps(root, 0);
    json_decref(root);
    assert_non_null(text);
    return text;
}

/* Load as tokenizer.json; takes the reference. */
static dh_status from_json(dh_ctx *ctx, json_t *root, dh_tokenizer **tok)
{
    char *text = json_text(root);
    dh_status st = dh_tokenizer_from_hf(ctx, text, strlen(text), tok);
    free(text);
    return st;
}

/* ---- tokenizer.json, byte-level ------------------------------------------------------------ */

/* GPT-2's files as a tokenizer.json; merges as strings or as pairs. */
static json_t *gpt2_as_json(bool pairs)
{
    dh_ctx ctx = DH_CTX_INIT;
    json_t *vocab = json_load_file(DATA "gpt2/encoder.json", 0, NULL), *merges = json_array();
    char *text;
    size_t n;
    assert_ok(&ctx, dh_file_read(&ctx, DATA "gpt2/vocab.bpe", 1 << 20, &text, &n));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "#version", 8) == 0) continue;
        char *space = strchr(line, ' ');
        json_array_append_new(merges,
                              pairs ? json_pack("[s%, s]", line, (size_t)(space - line), space + 1)
                                    : json_string(line));
    }
    free(text);
    return json_pack("{s:[{s:i, s:s, s:b, s:b}], s:n, s:{s:s, s:b, s:b}, s:{s:s, s:o, s:o}}",
                     "added_tokens", "id", 50256, "content", "<|endoftext|>", "special", 1,
                     "normalized", 1, "normalizer", "pre_tokenizer", "type", "ByteLevel",
                     "add_prefix_space", 0, "use_regex", 1, "model", "type", "BPE", "vocab", vocab,
                     "merges", merges);
}

static void gpt2_as_tokenizer_json(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *gpt2 = load(DATA "gpt2");
    for (int pairs = 0; pairs < 2; pairs++) {
        dh_tokenizer *tok;
        assert_ok(&ctx, from_json(&ctx, gpt2_as_json(pairs), &tok));
        assert_int_equal(dh_tokenizer_vocab_size(tok), 50257);
        assert_int_equal(dh_tokenizer_eos(tok), 50256);
        assert_true(dh_tokenizer_fingerprint(tok) == dh_tokenizer_fingerprint(gpt2));
        char line[16384];
        FILE *f = fopen(DATA "kat/tokenization_kat.jsonl", "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f)) { /* as text: every row of the file itself */
            assert_same_ids(tok, gpt2, line, strlen(line));
        }
        fclose(f);
        dh_tokenizer_destroy(tok);
    }
    dh_tokenizer_destroy(gpt2);
}

/* With the space of the byte alphabet, U+0120. */
#define SPACE_FOO "\xC4\xA0\x66oo"
#define SPACE_AB "\xC4\xA0\x61\x62"

/* A vocabulary of the printable ASCII bytes, space (G with dot), CR, LF and some words. */
static json_t *small_vocab(const char *const *words, size_t n)
{
    json_t *vocab = json_object();
    int id = 0;
    for (char c = '!'; c <= '~'; c++) json_object_setn_new(vocab, &c, 1, json_integer(id++));
    json_object_set_new(vocab, "\xC4\xA0", json_integer(id++)); /* 94: space */
    json_object_set_new(vocab, "\xC4\x8D", json_integer(id++)); /* 95: CR */
    json_object_set_new(vocab, "\xC4\x8A", json_integer(id++)); /* 96: LF */
    for (size_t i = 0; i < n; i++) json_object_set_new(vocab, words[i], json_integer(100 + (int)i));
    return vocab;
}

#define LLAMA3_PATTERN                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                     \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The Llama 3 kind, with whole words as tokens that no merge makes. */
static json_t *llama3_json(bool ignore_merges)
{
    static const char *const words[] = {
        "'M", "123", "45", SPACE_FOO, "!!\xC4\x8A", "\xC4\x8D\xC4\x8A\xC4\x8D\xC4\x8A", "fo", "oo"};
    return json_pack(
        "{s:[{s:i, s:s, s:b}, {s:i, s:s, s:b}, {s:i, s:s, s:b}],"
        " s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}]},"
        " s:{s:s, s:[{s:s}, {s:s, s:[{s:{s:s}}, {s:{s:s}}]}]},"
        " s:{s:s, s:b, s:o, s:[s, s]}}",
        "added_tokens", "id", 200, "content", "<|begin_of_text|>", "special", 1, "id", 201,
        "content", "<|end_of_text|>", "special", 1, "id", 202, "content", "<tool>", "special", 0,
        "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
        LLAMA3_PATTERN, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
        "add_prefix_space", 0, "use_regex", 0, "post_processor", "type", "Sequence", "processors",
        "type", "ByteLevel", "type", "TemplateProcessing", "single", "SpecialToken", "id",
        "<|begin_of_text|>", "Sequence", "id", "A", "model", "type", "BPE", "ignore_merges",
        ignore_merges, "vocab", small_vocab(words, DH_COUNTOF(words)), "merges", "o o", "f o");
}

static void llama3_as_tokenizer_json(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    assert_ok(&ctx, from_json(&ctx, llama3_json(true), &tok));
    assert_int_equal(dh_tokenizer_vocab_size(tok), 203);
    assert_int_equal(dh_tokenizer_bos(tok), 200);
    assert_int_equal(dh_tokenizer_eos(tok), 201);
    int32_t I = 'I' - '!', f = 'f' - '!';
    /* I | 'M | space | 123 | 45 | space | _foo | !!\n | _foo | \r\n\r\n | foo */
    ASSERT_IDS(tok, "I'M 12345  foo!!\n foo\r\n\r\nfoo", DH_ENCODE_BOS, 200, I, 100, 94, 101, 102,
               94, 103, 104, 103, 105, f, 107);
    ASSERT_IDS(tok, "\r\n\r\n", 0, 105);
    /* Control tokens on request; added ones that are not special always. */
    ASSERT_IDS(tok, "fo<tool>fo<|end_of_text|>", DH_ENCODE_SPECIAL, 106, 202, 106, 201);
    ASSERT_IDS(tok, "<tool>I", 0, 202, I);
    dh_tokenizer_destroy(tok);
    assert_ok(&ctx, from_json(&ctx, llama3_json(false), &tok));
    ASSERT_IDS(tok, "foo fofo", 0, f, 107, 94, 106, 106); /* "o o" comes before "f o" */
    dh_ids ids = encode(tok, "123", 3, 0);
    assert_int_equal(ids.n, 3); /* a token, but without merges it is not reached */
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(tok);
}

static void several_splits_and_prefix_space(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static const char *const words[] = {"12", "ab", SPACE_AB};
    dh_tokenizer *tok;
    json_t *root =
        json_pack("{s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b}, {s:s, s:b}]}, s:{s:b, s:o, s:[]}}",
                  "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern",
                  "String", "a.", "behavior", "Isolated", "type", "Digits", "individual_digits", 1,
                  "type", "ByteLevel", "use_regex", 0, "model", "ignore_merges", 1, "vocab",
                  small_vocab(words, DH_COUNTOF(words)), "merges");
    assert_ok(&ctx, from_json(&ctx, root, &tok));
    ASSERT_IDS(tok, "12ab", 0, '1' - '!', '2' - '!', 101);        /* digits apart */
    ASSERT_IDS(tok, "aba.ab", 0, 101, 'a' - '!', '.' - '!', 101); /* "a." is plain text */
    dh_tokenizer_destroy(tok);
    root = json_pack("{s:{s:s, s:b, s:b}, s:{s:b, s:o, s:[]}}", "pre_tokenizer", "type",
                     "ByteLevel", "add_prefix_space", 1, "use_regex", 1, "model", "ignore_merges",
                     1, "vocab", small_vocab(words, DH_COUNTOF(words)), "merges");
    assert_ok(&ctx, from_json(&ctx, root, &tok));
    ASSERT_IDS(tok, "ab", 0, 102);
    ASSERT_IDS(tok, " ab", 0, 102);
    dh_tokenizer_destroy(tok);
}

/* BPE by its definition: the lowest rank first, leftmost among equals. */
static void merging_equals_its_definition(void **state)
{
    enum { LETTERS = 3, MERGES = 40, N = 300 };
    uint64_t rng = test_seed("merging_equals_its_definition");
    for (int round = 0; round < 60; round++) {
        char words[LETTERS + MERGES][64];
        int left[MERGES], right[MERGES], n_words = LETTERS, n_merges = 0;
        json_t *vocab = json_object(), *merges = json_array();
        for (int i = 0; i < LETTERS; i++) {
            snprintf(words[i], sizeof words[i], "%c", 'a' + i);
            json_object_set_new(vocab, words[i], json_integer(i));
        }
        while (n_merges < MERGES) {
            int l = (int)(test_rand(&rng) % (uint64_t)n_words);
            int r = (int)(test_rand(&rng) % (uint64_t)n_words);
            char joined[128];
            snprintf(joined, sizeof joined, "%s%s", words[l], words[r]);
            if (strlen(joined) > 12 || json_object_get(vocab, joined)) {
                if (test_rand(&rng) % 50 == 0) break;
                continue;
            }
            json_object_set_new(vocab, joined, json_integer(n_words));
            json_array_append_new(merges, json_pack("[s, s]", words[l], words[r]));
            memcpy(words[n_words++], joined, 64);
            left[n_merges] = l;
            right[n_merges++] = r;
        }
        dh_ctx ctx = DH_CTX_INIT;
        dh_tokenizer *tok;
        assert_ok(&ctx, from_json(&ctx,
                                  json_pack("{s:{s:s, s:b}, s:{s:o, s:o}}", "pre_tokenizer", "type",
                                            "ByteLevel", "use_regex", 0, "model", "vocab", vocab,
                                            "merges", merges),
                                  &tok));
        char text[N];
        int32_t ids[N];
        size_t n = test_rand(&rng) % N;
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(test_rand(&rng) % LETTERS);
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + ids[i]);
        dh_ids got = encode(tok, text, n, 0);
        for (;;) {
            int best = MERGES;
            size_t at = 0;
            for (size_t i = 0; i + 1 < n; i++)
                for (int m = 0; m < n_merges && m < best; m++)
                    if (ids[i] == left[m] && ids[i + 1] == right[m]) best = m, at = i;
            if (best == MERGES) break;
            ids[at] = LETTERS + best;
            memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
            n--;
        }
        assert_int_equal(got.n, n);
        if (n) assert_memory_equal(got.at, ids, n * sizeof *ids);
        dh_vec_fini(&got);
        dh_tokenizer_destroy(tok);
    }
}

/* ---- tokenizer.json, the Llama 2 kind ------------------------------------------------------- */

static int by_result(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return x[2] != y[2] ? x[2] - y[2] : x[0] - y[0];
}

static json_t *meta_string(const char *text, size_t n)
{
    dh_str s = DH_STR_INIT;
    for (size_t i = 0; i < n; i++)
        dh_str_append(&s, text[i] == ' ' ? META : text + i, text[i] == ' ' ? 3 : 1);
    json_t *string = json_stringn(s.text, s.len);
    dh_str_fini(&s);
    return string;
}

/* llama2.c's 512 tokens as a tokenizer.json, with every way to make a piece as a merge.
 * Ids follow scores there, so merges go by resulting id. */
static json_t *tok512_as_json(const dh_tokenizer *tok, bool metaspace)
{
    static int merges[20000][3];
    int n_merges = 0;
    const char *text[512];
    size_t len[512];
    json_t *vocab = json_object(), *list = json_array();
    for (int i = 0; i < 512; i++) {
        text[i] = dh_tokenizer_piece(tok, 0, i, &len[i]);
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i - 3);
        json_t *spelled = i < 3     ? json_stringn(text[i], len[i])
                          : i < 259 ? json_string(name)
                                    : meta_string(text[i], len[i]);
        json_object_set_new(vocab, json_string_value(spelled), json_integer(i));
        json_decref(spelled);
    }
    for (int l = 259; l < 512; l++)
        for (int r = 259; r < 512; r++)
            for (int m = 259; m < 512; m++)
                if (len[m] == len[l] + len[r] && memcmp(text[m], text[l], len[l]) == 0 &&
                    memcmp(text[m] + len[l], text[r], len[r]) == 0)
                    memcpy(merges[n_merges++], (const int[]){l, r, m}, sizeof merges[0]);
    qsort(merges, (size_t)n_merges, sizeof merges[0], by_result);
    for (int i = 0; i < n_merges; i++)
        json_array_append_new(list, json_pack("[o, o]",
                                              meta_string(text[merges[i][0]], len[merges[i][0]]),
                                              meta_string(text[merges[i][1]], len[merges[i][1]])));
    json_t *root = json_pack(
        "{s:[{s:i, s:s, s:b}, {s:i, s:s, s:b}], s:{s:s, s:b, s:s, s:o, s:o}}", "added_tokens", "id",
        1, "content", "<s>", "special", 1, "id", 2, "content", "</s>", "special", 1, "model",
        "type", "BPE", "byte_fallback", 1, "unk_token", "<unk>", "vocab", vocab, "merges", list);
    if (metaspace)
        json_object_set_new(root, "pre_tokenizer",
                            json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement",
                                      META, "prepend_scheme", "first", "split", 0));
    else
        json_object_set_new(root, "normalizer",
                            json_pack("{s:s, s:[{s:s, s:s}, {s:s, s:{s:s}, s:s}]}", "type",
                                      "Sequence", "normalizers", "type", "Prepend", "prepend", META,
                                      "type", "Replace", "pattern", "String", " ", "content",
                                      META));
    return root;
}

static void llama2_as_tokenizer_json(void **state)
{
    static const char *const texts[] = {"",
                                        "Once upon a time, there was a little girl named Lily.",
                                        "  two  spaces ",
                                        "\n\nx\ty",
                                        "caf\xC3\xA9 \xE4\xBD\xA0\xF0\x9F\x98\x80",
                                        "bad \xFF\xC3 bytes",
                                        "<unk>"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *bin = load(DATA "llama2c-tok512"), *tok;
    dh_map story;
    assert_ok(&ctx, dh_map_open(&ctx, "tests/data/corpora/tinystories/docs.txt", &story));
    assert_ok(&ctx, from_json(&ctx, tok512_as_json(bin, false), &tok));
    assert_int_equal(dh_tokenizer_bos(tok), 1);
    assert_int_equal(dh_tokenizer_eos(tok), 2);
    for (size_t i = 0; i < DH_COUNTOF(texts); i++)
        assert_same_ids(tok, bin, texts[i], strlen(texts[i]));
    assert_same_ids(tok, bin, (const char *)story.at, 100000);
    dh_tokenizer_destroy(tok);
    assert_ok(&ctx, from_json(&ctx, tok512_as_json(bin, true), &tok));
    assert_same_ids(tok, bin, (const char *)story.at, 1000);
    dh_ids with = encode(tok, " a", 2, 0), without = encode(tok, "a", 1, 0);
    assert_int_equal(with.n, without.n); /* only where no space is yet */
    assert_int_equal(with.at[0], without.at[0]);
    dh_vec_fini(&with);
    dh_vec_fini(&without);
    dh_map_close(&story);
    dh_tokenizer_destroy(tok);
    dh_tokenizer_destroy(bin);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void tokenizer_json_refusals(void **state)
{
#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define UNIGRAM(sections) "{" sections "\"model\":{\"type\":\"Unigram\""
#define PIECES ",\"vocab\":[[\"a\",0]]}}"
    static const struct {
        const char *json;
        dh_status status;
        const char *part;
    } rows[] = {
        {"", DH_EFORMAT, "line"},
        {"{\"model\":\n{,}}", DH_EFORMAT, "line 2"},
        {"[]", DH_EFORMAT, "not an object"},
        {"{}", DH_EFORMAT, "no \"model\""},
        {"{\"model\":{\"type\":\"Morph\"}}", DH_EUNSUPPORTED, "\"Morph\""},
        {"{\"model\":{\"type\":\"BPE\"}}", DH_EFORMAT, "vocabulary is not an object"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1}}", DH_EUNSUPPORTED, "dropout"},
        {UNIGRAM("") ",\"vocab\":{}}}", DH_EFORMAT, "not a list of [text, score]"},
        {UNIGRAM("") ",\"vocab\":[[\"a\",0],[\"b\"]]}}", DH_EFORMAT, "token 1"},
        {UNIGRAM("") ",\"unk_id\":2,\"vocab\":[[\"a\",0],[\"b\",0]]}}", DH_EFORMAT, "unk_id"},
        {UNIGRAM("\"decoder\":{\"type\":\"CTC\"},") PIECES, DH_EUNSUPPORTED,
         "decoder of type \"CTC\""},
        {UNIGRAM("\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"}},") PIECES,
         DH_EUNSUPPORTED, "regular expression"},
        {UNIGRAM("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
                 "{\"type\":\"Strip\",\"start\":0,\"stop\":1}]},") PIECES,
         DH_EUNSUPPORTED, "decoder Strip"},
        {UNIGRAM("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"?\"},")
             PIECES,
         DH_EFORMAT, "not base64"},
        {UNIGRAM("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"},")
             PIECES,
         DH_EFORMAT, "a trie of"},
        {UNIGRAM("\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"},") PIECES, DH_EFORMAT,
         "Replace has no pattern"},
        {UNIGRAM("\"normalizer\":{\"type\":\"Prepend\"},") PIECES, DH_EFORMAT,
         "Prepend has no text"},
        {UNIGRAM("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"once\"},") PIECES,
         DH_EUNSUPPORTED, "prepend_scheme \"once\""},
        {UNIGRAM("\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0},") PIECES,
         DH_EUNSUPPORTED, "FixedLength"},
        {UNIGRAM("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\W]\"},"
                 "\"behavior\":\"Isolated\"},") PIECES,
         DH_EUNSUPPORTED, "\\W inside of"},
        {"{" BYTES ",\"model\":{}}", DH_EFORMAT, "vocabulary is not an object"},
        {"{" BYTES ",\"model\":{\"vocab\":{\"a\":-1}}}", DH_EFORMAT, "\"a\""},
        {"{" BYTES ",\"model\":{\"vocab\":{\"a\":99999999}}}", DH_EFORMAT, "\"a\""},
        {"{" BYTES ",\"model\":{\"vocab\":{\"a\":1,\"b\":1}}}", DH_EFORMAT, "id 1 is given to two"},
        {"{" BYTES ",\"model\":{" VOCAB "}}", DH_EFORMAT, "no list \"merges\""},
        {"{" BYTES ",\"model\":{" VOCAB ",\"merges\":[\"a b\",\"b\"]}}", DH_EFORMAT, "merge 1"},
        {"{" BYTES ",\"model\":{" VOCAB ",\"merges\":[[\"a\"]]}}", DH_EFORMAT, "merge 0"},
        {"{" BYTES ",\"model\":{" VOCAB ",\"merges\":[\"c b\"]}}", DH_EFORMAT, "left part"},
        {"{" BYTES ",\"model\":{" VOCAB ",\"merges\":[\"a c\"]}}", DH_EFORMAT, "right part"},
        {"{" BYTES ",\"model\":{" VOCAB ",\"merges\":[\"b a\"]}}", DH_EFORMAT, "the result"},
        {"{" BYTES ",\"normalizer\":{\"type\":\"Nfc\"},\"model\":{" VOCAB ",\"merges\":[]}}",
         DH_EUNSUPPORTED, "normalizer of type \"Nfc\" is not read: did you mean NFC"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
         "\"UnicodeScripts\"},{"
         "\"type\":\"ByteLevel\"}]},\"model\":{" VOCAB ",\"merges\":[]}}",
         DH_EUNSUPPORTED, "\"UnicodeScripts\""},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\"}]},"
         "\"model\":{" VOCAB ",\"merges\":[]}}",
         DH_EFORMAT, "split pattern"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Remove\"},{\"type\":\"ByteLevel\"}]},"
         "\"model\":{" VOCAB ",\"merges\":[]}}",
         DH_EUNSUPPORTED, "did you mean Removed"},
        {"{" BYTES ",\"added_tokens\":[{\"id\":3}],\"model\":{" VOCAB ",\"merges\":[]}}",
         DH_EFORMAT, "added token 0"},
        {"{\"model\":{\"byte_fallback\":true," VOCAB ",\"merges\":[\"a c\"]}}", DH_EFORMAT,
         "merge 0"},
        {"{\"model\":{\"byte_fallback\":true,\"unk_token\":\"?\"," VOCAB ",\"merges\":[]}}",
         DH_EFORMAT, "unk_token"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        dh_tokenizer *tok = NULL;
        assert_fails(&ctx, dh_tokenizer_from_hf(&ctx, rows[i].json, strlen(rows[i].json), &tok),
                     rows[i].status, rows[i].part);
        assert_null(tok);
    }
}

static void gpt2_refusals(void **state)
{
    static const struct {
        const char *encoder, *merges, *part;
    } rows[] = {{"[]", "", "not an object"},
                {"{}", "", "vocabulary is not"},
                {"{\"a\":0,\"b\":1,\"ab\":2}", "#version: 0.2\na b\n\nb a\n", "line 4"},
                {"{\"a\":0,\"b\":1,\"ab\":2}", "a b\nab", "line 2"},
                {"{\"a\":0,\"b\":1,\"ab\":2}", "a \n", "line 1"}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    for (size_t i = 0; i < DH_COUNTOF(rows); i++)
        assert_fails(&ctx,
                     dh_tokenizer_from_gpt2(&ctx, rows[i].encoder, strlen(rows[i].encoder),
                                            rows[i].merges, strlen(rows[i].merges), &tok),
                     DH_EFORMAT, rows[i].part);
    const char *encoder = "{\"a\":0,\"b\":1,\"ab\":2}", *merges = "a b\r\n";
    assert_ok(&ctx,
              dh_tokenizer_from_gpt2(&ctx, encoder, strlen(encoder), merges, strlen(merges), &tok));
    ASSERT_IDS(tok, "aabb", 0, 0, 2, 1);
    dh_ids ids = {0};
    assert_fails(&ctx, dh_tokenizer_encode(&ctx, tok, "ac", 2, 0, &ids), DH_EINVAL, "0x63");
    assert_int_equal(ids.n, 0);
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(tok);
}

static void llama2c_refusals(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_map map;
    dh_tokenizer *tok;
    assert_ok(&ctx, dh_map_open(&ctx, DATA "llama2c-tok512/tokenizer.bin", &map));
    for (size_t n = 0; n < map.n_bytes; n++) { /* a cut between two tokens gives fewer */
        if (dh_tokenizer_from_llama2c(&ctx, map.at, n, &tok) == DH_OK) {
            assert_in_range(dh_tokenizer_vocab_size(tok), 260, 511);
            dh_tokenizer_destroy(tok);
        }
        dh_ctx_reset(&ctx);
    }
    unsigned char *copy = malloc(map.n_bytes);
    static const struct {
        size_t offset;
        unsigned char value;
        const char *part;
    } faults[] = {{3, 0xFF, "longest piece"}, {8 + 3, 0xFF, "length"}, {8, 200, "length"}};
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        memcpy(copy, map.at, map.n_bytes);
        copy[faults[i].offset] = faults[i].value;
        assert_fails(&ctx, dh_tokenizer_from_llama2c(&ctx, copy, map.n_bytes, &tok), DH_EFORMAT,
                     faults[i].part);
    }
    memcpy(copy, map.at, map.n_bytes);
    memcpy(copy + 4, (const unsigned char[]){0, 0, 0xC0, 0x7F}, 4); /* score NaN */
    assert_fails(&ctx, dh_tokenizer_from_llama2c(&ctx, copy, map.n_bytes, &tok), DH_EFORMAT,
                 "score");
    unsigned char *byte = memmem(copy, map.n_bytes, "<0x07>", 6);
    memcpy(copy, map.at, map.n_bytes);
    byte[4] = '9';
    assert_fails(&ctx, dh_tokenizer_from_llama2c(&ctx, copy, map.n_bytes, &tok), DH_EFORMAT,
                 "<0x07>");
    free(copy);
    dh_map_close(&map);
}

/* Damaged files are refused or read; nothing worse, and what loads can encode. */
static void damaged_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t rng = test_seed("damaged_files");
    dh_str spm = small_spm((spm_options){.byte_fallback = true});
    char *json = json_text(llama3_json(true));
    size_t n_json = strlen(json);
    for (int round = 0; round < 3000; round++) {
        dh_tokenizer *tok = NULL;
        bool is_json = round % 2;
        size_t n = is_json ? n_json : spm.len;
        char *copy = malloc(n);
        memcpy(copy, is_json ? json : spm.text, n);
        for (uint64_t k = 1 + test_rand(&rng) % 3; k > 0; k--)
            copy[test_rand(&rng) % n] = (char)test_rand(&rng);
        if (test_rand(&rng) % 4 == 0) n = test_rand(&rng) % n;
        dh_status st =
            (is_json ? dh_tokenizer_from_hf : dh_tokenizer_from_spm)(&ctx, copy, n, &tok);
        if (st == DH_OK) {
            dh_ids ids = {0};
            dh_tokenizer_encode(&ctx, tok, "I'M 12345  foo<mask>\xFF", 21, DH_ENCODE_SPECIAL, &ids);
            dh_vec_fini(&ids);
        } else {
            assert_true(ctx.message[0] != '\0');
        }
        dh_tokenizer_destroy(tok);
        dh_ctx_reset(&ctx);
        free(copy);
    }
    free(json);
    dh_str_fini(&spm);
}

/* ---- loading by specification --------------------------------------------------------------- */

static void write_text(const char *dir, const char *name, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
}

/* The vocabulary of a WordPiece tokenizer.json as vocab.txt. */
static void write_vocab_txt(const char *json, const char *dir, const char *end_of_line)
{
    json_t *root = json_load_file(json, 0, NULL);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *id;
    const char *token, *lines[1000] = {NULL};
    dh_str text = DH_STR_INIT;
    json_object_foreach(vocab, token, id) lines[json_integer_value(id)] = token;
    for (size_t i = 0; i < json_object_size(vocab); i++)
        dh_str_printf(&text, "%s%s", lines[i], end_of_line);
    write_text(dir, "vocab.txt", text.text);
    dh_str_fini(&text);
    json_decref(root);
}

/* What tokenizer.json says and vocab.txt does not is what BertTokenizer takes for granted. */
static void bert_as_vocab_txt(void **state)
{
    static const char *const texts[] = {"Hello, w\xC3\xB6rld's  end!",
                                        "unaffable \xE4\xBD\xA0 \xF0\x9F\x98\x80", "[MASK] [UNK]",
                                        ""};
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/vocab.txt", dir);
    write_vocab_txt(DATA "hf/bert.json", dir, "\n");
    dh_tokenizer *tok = load(dir), *json = load(DATA "hf/bert.json");
    assert_true(dh_tokenizer_fingerprint(tok) == dh_tokenizer_fingerprint(json));
    assert_int_equal(dh_tokenizer_bos(tok), 2);
    assert_int_equal(dh_tokenizer_eos(tok), 3);
    for (size_t i = 0; i < DH_COUNTOF(texts); i++)
        assert_same_ids(tok, json, texts[i], strlen(texts[i]));
    dh_tokenizer_destroy(tok);
    dh_tokenizer_destroy(json);

    /* Upper case stays where the configuration says so; lines may end as Windows ends them. */
    write_vocab_txt(DATA "hf/bert_cased.json", dir, "\r\n");
    write_text(dir, "tokenizer_config.json",
               "{\"do_lower_case\": false, \"strip_accents\": true, "
               "\"tokenize_chinese_chars\": false, "
               "\"model_max_length\": 1000000000000000019884624838656, \"cls_token\": "
               "{\"content\": \"[CLS]\"}}");
    tok = load(path);
    json = load(DATA "hf/bert_cased.json");
    for (size_t i = 0; i < DH_COUNTOF(texts); i++)
        assert_same_ids(tok, json, texts[i], strlen(texts[i]));
    dh_tokenizer_destroy(tok);
    dh_tokenizer_destroy(json);

    write_text(dir, "tokenizer_config.json", "{\"unk_token\": \"<unk>\"}");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, dir, &tok), DH_EFORMAT, "no line is \"<unk>\"");
    write_text(dir, "vocab.txt", "[UNK]\na\xFF\n");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, dir, &tok), DH_EFORMAT, "line 2");
}

/* Bytes and characters as Hugging Face's files: the same ids and the same text. */
static void plain_kinds_as_tokenizer_json(void **state)
{
    static const char text[] = "To be,\n\tor\r\n  \xC3\xBC \xE4\xBD\xA0\xF0\x9F\x98\x80 .";
    dh_ctx ctx = DH_CTX_INIT;
    char dir[2][256];
    dh_tokenizer *made[2], *read;
    assert_ok(&ctx, dh_tokenizer_bytes(&ctx, &made[0]));
    assert_ok(&ctx, dh_tokenizer_chars_from_text(&ctx, text, strlen(text), &made[1]));
    for (int i = 0; i < 2; i++) {
        test_tmpdir(dir[i], sizeof dir[i]);
        assert_ok(&ctx, dh_save_plain_tokenizer(&ctx, made[i], dir[i]));
        read = load(dir[i]);
        assert_int_equal(dh_tokenizer_vocab_size(read), dh_tokenizer_vocab_size(made[i]));
        assert_int_equal(dh_tokenizer_eos(read), -1);
        assert_same_ids(read, made[i], text, strlen(text));
        dh_ids ids = encode(read, text, strlen(text), 0);
        dh_str back = DH_STR_INIT;
        assert_ok(&ctx, dh_tokenizer_decode(&ctx, read, ids.at, ids.n, 0, &back));
        assert_string_equal(back.text, text);
        dh_str_fini(&back);
        dh_vec_fini(&ids);
        dh_tokenizer_destroy(read);
        dh_tokenizer_destroy(made[i]);
    }
    dh_ids none = {0};
    read = load(dir[1]);
    assert_fails(&ctx, dh_tokenizer_encode(&ctx, read, "Q", 1, 0, &none), DH_EINVAL, "\"Q\"");
    assert_fails(&ctx, dh_save_plain_tokenizer(&ctx, read, dir[0]), DH_EINVAL, "wordlevel");
    dh_tokenizer_destroy(read);
}

/* SentencePiece models as tokenizer.json, spaces in a row and bytes included. */
static void spm_as_tokenizer_json(void **state)
{
    static const char *const texts[] = {"",
                                        " ",
                                        "a   b",
                                        "be:\n  that is\t\tit ",
                                        "Hello  world",
                                        "\xC3\xBC \xE4\xBD\xA0 \xF0\x9F\x98\x80\x01<s> </s>"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_map story;
    assert_ok(&ctx, dh_map_open(&ctx, "tests/data/corpora/tinystories/docs.txt", &story));
    char dir[256];
    test_tmpdir(dir, sizeof dir);
    dh_tokenizer *model = load(DATA "mistral");
    assert_ok(&ctx, dh_save_spm_tokenizer(&ctx, model, dir));
    dh_tokenizer *json = load(dir);
    assert_int_equal(dh_tokenizer_bos(json), dh_tokenizer_bos(model));
    assert_int_equal(dh_tokenizer_vocab_size(json), dh_tokenizer_vocab_size(model));
    for (size_t i = 0; i < DH_COUNTOF(texts); i++)
        assert_same_ids(json, model, texts[i], strlen(texts[i]));
    assert_same_ids(json, model, (const char *)story.at, 100000);
    dh_tokenizer_destroy(json);
    dh_tokenizer_destroy(model);
    dh_map_close(&story);
    static const char *const refused[][2] = {{DATA "spm/bpe.model", "characters of BPE"},
                                             {DATA "llama2c-tok512/tokenizer.bin", "spaces"}};
    for (size_t i = 0; i < DH_COUNTOF(refused); i++) {
        model = load(refused[i][0]);
        assert_fails(&ctx, dh_save_spm_tokenizer(&ctx, model, "."), DH_EUNSUPPORTED, refused[i][1]);
        dh_tokenizer_destroy(model);
    }
}

/* U+0000 in tokens, in every kind of vocabulary, beside the noncharacter that it might be taken
 * for.
 */
static void tokens_may_have_nul(void **state)
{
    static const char tail[] =
        "\\u0000\":0,\"\\ufdd0\":1,\"\xef\xb7\x91\":2,\"a\\u0000\":3,\"a\":4,"
        "\"\\\\u0000\":5},\"unk_token\":\"\\u0000\"";
    static const struct {
        const char *head, *foot;
        int32_t ids[4]; /* of NUL, of a NUL, of x */
    } cases[] = {
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"",
         "},\"pre_tokenizer\":{\"type\":"
         "\"CharDelimiterSplit\",\"delimiter\":\" \"}}",
         {0, 3, 0, 4}},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[[\"a\",\"\\u0000\"]],\"vocab\":{\"",
         "},\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\",\"delimiter\":\" \"}}",
         {0, 3, 0, 4}},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[\"a \\u0000\"],\"vocab\":{\"",
         "},\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\",\"delimiter\":\" \"}}",
         {0, 3, 0, 4}},
    };
    static const char text[] = "\0 a\0 x a"; /* x is unknown */
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char json[600];
        dh_tokenizer *tok;
        snprintf(json, sizeof json, "%s%s%s", cases[i].head, tail, cases[i].foot);
        assert_ok(&ctx, dh_tokenizer_from_hf(&ctx, json, strlen(json), &tok));
        assert_int_equal(dh_tokenizer_vocab_size(tok), 6);
        dh_ids ids = encode(tok, text, sizeof text - 1, 0);
        assert_int_equal(ids.n, 4);
        assert_memory_equal(ids.at, cases[i].ids, sizeof cases[i].ids);
        dh_vec_fini(&ids);
        ids = encode(tok, "\xef\xb7\x90 \xef\xb7\x91 \\u0000", 14, 0);
        if (i == 0) { /* whole words */
            assert_int_equal(ids.n, 3);
            assert_true(ids.at[0] == 1 && ids.at[1] == 2 && ids.at[2] == 5);
        }
        dh_vec_fini(&ids);
        dh_tokenizer_destroy(tok);
    }
    /* Of what splits texts too. */
    static const char split[] = "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{"
                                "\"a\":0,\"b\":1,\"\\u0000c\":2}},\"pre_tokenizer\":{\"type\":"
                                "\"CharDelimiterSplit\",\"delimiter\":\"\\u0000\"}}";
    dh_tokenizer *tok;
    assert_ok(&ctx, dh_tokenizer_from_hf(&ctx, split, strlen(split), &tok));
    dh_ids ids = encode(tok, "a\0b", 3, 0);
    assert_true(ids.n == 2 && ids.at[0] == 0 && ids.at[1] == 1);
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(tok);
    /* Two spellings of one key. */
    static const char twice[] = "{\"model\":{\"vocab\":{\"\\u0000\":0,\"\\u0000\":1}}}";
    assert_fails(&ctx, dh_tokenizer_from_hf(&ctx, twice, strlen(twice), &tok), DH_EFORMAT,
                 "duplicate");
}

/* Affixes are read with a NUL in them. Settings of sections are texts that a NUL would end. */
static void settings_may_have_no_nul(void **state)
{
    static const char affixes[] =
        "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"end_of_word_suffix\":\"\\u0000\",\"vocab\":"
        "{\"a\":0,\"b\\u0000\":1}},\"pre_tokenizer\":{\"type\":\"Whitespace\"}}";
    static const char *const nodes[] = {
        "\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"\\u0000x\"}",
        "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"#\\u0000\",\"cleanup\":false}",
        "\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u0000\"},\"content\":\"\"}",
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":"
        "\"\\u0000\","
        "\"start\":1,\"stop\":0}]}",
        "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\\u0000\"}",
        "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",0],\"cls\":[\"a\\u0000\",0]"
        "}",
        "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",0],\"cls\":[\"a\",0],"
        "\"x\":\"\\u0000\"}"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    assert_ok(&ctx, dh_tokenizer_from_hf(&ctx, affixes, strlen(affixes), &tok));
    dh_ids ids = encode(tok, "ab", 2, 0);
    assert_true(ids.n == 2 && ids.at[0] == 0 && ids.at[1] == 1);
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(tok);
    for (size_t i = 0; i < DH_COUNTOF(nodes); i++) {
        char json[400];
        snprintf(json, sizeof json,
                 "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0}},%s}",
                 nodes[i]);
        assert_fails(&ctx, dh_tokenizer_from_hf(&ctx, json, strlen(json), &tok), DH_EUNSUPPORTED,
                     "has a NUL (\\u0000)");
    }
    static const char mark[] =
        "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":"
        "0}},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
        "\"_\\u0000\",\"prepend_scheme\":\"always\"}}";
    assert_fails(&ctx, dh_tokenizer_from_hf(&ctx, mark, strlen(mark), &tok), DH_EFORMAT,
                 "is no character");
}

/* BPE that has neither an unknown token nor tokens of all bytes leaves characters out, and what
 * stood around them may merge (tests/data/tokenizers/make_dropped.py). */
static void characters_without_tokens_are_left_out(void **state)
{
    json_t *cases = json_load_file(DATA "dropped.json", 0, NULL), *one, *pair, *id;
    size_t i, k, j;
    assert_true(json_array_size(cases) == 8);
    json_array_foreach(cases, i, one)
    {
        dh_ctx ctx = DH_CTX_INIT;
        dh_tokenizer *tok;
        assert_ok(&ctx, from_json(&ctx, json_incref(json_object_get(one, "tokenizer")), &tok));
        json_array_foreach(json_object_get(one, "texts"), k, pair)
        {
            const json_t *text = json_array_get(pair, 0), *want = json_array_get(pair, 1);
            for (int times = 0; times < 2; times++) { /* the second time by the cache of words */
                dh_ids ids = encode(tok, json_string_value(text), json_string_length(text), 0);
                assert_int_equal(ids.n, json_array_size(want));
                json_array_foreach((json_t *)want, j, id)
                    assert_int_equal(ids.at[j], json_integer_value(id));
                dh_vec_fini(&ids);
            }
        }
        dh_tokenizer_destroy(tok);
    }
    json_decref(cases);
}

/* Vocabularies of other programs are named, and what to take instead. */
static void other_formats_are_named(void **state)
{
    static const struct {
        const char *name, *text, *part;
        dh_status status;
    } cases[] = {
        {"tekken.json",
         "{\"config\":{\"pattern\":\"x\",\"version\":\"v3\"},\"vocab\":[{\"rank\":0,"
         "\"token_bytes\":\"AA==\",\"token_str\":\"\\u0000\"}],\"special_tokens\":[]}",
         "this is Mistral's tekken.json, which is not read; take the tokenizer.json",
         DH_EUNSUPPORTED},
        {"tekken_240718.json", "{\"config\":{},\"vocab\":[{\"rank\":0,\"token_bytes\":\"AA==\"}]}",
         "this is Mistral's tekken.json", DH_EUNSUPPORTED},
        {"tiktoken.model", "IQ== 0\nIg== 1\n", "this is a tiktoken file", DH_EUNSUPPORTED},
        {"o200k_base.tiktoken", "IQ== 0\r\nIg== 1\r\n", "this is a tiktoken file", DH_EUNSUPPORTED},
        {"tokenizer.model", "IQ== 0", "take the tokenizer.json of the same model", DH_EUNSUPPORTED},
        {"no.tiktoken", "IQ= 0\n", "no tokenizer", DH_EFORMAT},
        {"config.json", "{\"architectures\":[\"LlamaForCausalLM\"]}", "no tokenizer", DH_EFORMAT},
        {"vocab.json", "{\"a\":0}", "without vocab.bpe or merges.txt", DH_EMISSING},
    };
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char dir[256], path[300];
        test_tmpdir(dir, sizeof dir);
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].name);
        write_text(dir, cases[i].name, cases[i].text);
        assert_fails(&ctx, dh_tokenizer_load(&ctx, path, &tok), cases[i].status, cases[i].part);
        if (i < 4)
            assert_fails(&ctx, dh_tokenizer_load(&ctx, dir, &tok), cases[i].status, cases[i].part);
        assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    }
}

static void specifications(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    static const char *const kinds[][2] = {{"bytes", "bytes"},
                                           {"gpt2:" DATA "gpt2", "bpe"},
                                           {DATA "gpt2/encoder.json", "bpe"},
                                           {DATA "mistral", "spm"},
                                           {DATA "llama2c-tok512/tokenizer.bin", "spm"}};
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++) {
        tok = load(kinds[i][0]);
        assert_string_equal(dh_tokenizer_kind(tok), kinds[i][1]);
        dh_tokenizer_destroy(tok);
    }
    assert_fails(&ctx, dh_tokenizer_load(&ctx, "no/such", &tok), DH_EMISSING, "no/such");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, "chars", &tok), DH_EINVAL, "built from a text");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, "gpt2:" DATA "mistral", &tok), DH_EMISSING,
                 "encoder.json");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, "tests/base", &tok), DH_EMISSING, "tokenizer.json");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, "CMakeLists.txt", &tok), DH_EFORMAT, "no tokenizer");

    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/vocab.json", dir);
    write_text(dir, "vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, dir, &tok), DH_EMISSING, "merges.txt");
    write_text(dir, "merges.txt", "a b\n");
    tok = load(dir);
    assert_int_equal(dh_tokenizer_vocab_size(tok), 3);
    dh_tokenizer_destroy(tok);
    tok = load(path);
    dh_tokenizer_destroy(tok);
    /* tokenizer.json first; where it is not supported, the next. */
    write_text(dir, "tokenizer.json", "{\"model\":{\"type\":\"Morph\"}}");
    tok = load(dir);
    assert_int_equal(dh_tokenizer_vocab_size(tok), 3);
    dh_tokenizer_destroy(tok);
    write_text(dir, "tokenizer.json", "{\"model\":");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, dir, &tok), DH_EFORMAT, "tokenizer.json");
    char *json = json_text(llama3_json(true));
    write_text(dir, "tokenizer.json", json);
    free(json);
    tok = load(dir);
    assert_int_equal(dh_tokenizer_bos(tok), 200);
    dh_tokenizer_destroy(tok);
    write_text(dir, "tokenizer_config.json",
               "{\"bos_token\": null, \"eos_token\": {\"content\": \"<tool>\"}}");
    tok = load(dir);
    assert_int_equal(dh_tokenizer_bos(tok), -1);
    assert_int_equal(dh_tokenizer_eos(tok), 202);
    dh_tokenizer_destroy(tok);
    write_text(dir, "chars.json",
               "{\"dhelix_tokenizer\":\"chars\",\"version\":1,\"chars\":\"ba\"}");
    snprintf(path, sizeof path, "%s/chars.json", dir);
    assert_fails(&ctx, dh_tokenizer_load(&ctx, path, &tok), DH_EFORMAT, "not sorted");
    write_text(dir, "chars.json",
               "{\"dhelix_tokenizer\":\"chars\",\"version\":1,\"chars\":\"aa\"}");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, path, &tok), DH_EFORMAT, "twice");
    write_text(dir, "chars.json", "{\"dhelix_tokenizer\":\"chars\",\"version\":2,\"chars\":\"a\"}");
    assert_fails(&ctx, dh_tokenizer_load(&ctx, path, &tok), DH_EUNSUPPORTED, "version");
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_as_tokenizer_json),
        cmocka_unit_test(llama3_as_tokenizer_json),
        cmocka_unit_test(several_splits_and_prefix_space),
        cmocka_unit_test(merging_equals_its_definition),
        cmocka_unit_test(llama2_as_tokenizer_json),
        cmocka_unit_test(tokenizer_json_refusals),
        cmocka_unit_test(gpt2_refusals),
        cmocka_unit_test(llama2c_refusals),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(bert_as_vocab_txt),
        cmocka_unit_test(plain_kinds_as_tokenizer_json),
        cmocka_unit_test(spm_as_tokenizer_json),
        cmocka_unit_test(tokens_may_have_nul),
        cmocka_unit_test(settings_may_have_no_nul),
        cmocka_unit_test(characters_without_tokens_are_left_out),
        cmocka_unit_test(other_formats_are_named),
        cmocka_unit_test(specifications),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
