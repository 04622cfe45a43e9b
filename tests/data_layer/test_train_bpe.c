/* Learned tokenizers: the same as Hugging Face's trainer makes, the same as the definition, and
 * what they encode decodes. */
#include "dh_test.h"

#include <jansson.h>

#include "data/train_bpe.h"
#include "dhelix/tokenizer.h"

#define SHAKESPEARE "tests/data/corpora/tinyshakespeare/input.txt"

static dh_learned_bpe learn(const char *path, int64_t vocab)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_learned_bpe learned;
    assert_ok(&ctx, dh_bpe_learn(&ctx, &path, 1, NULL, vocab, &learned));
    return learned;
}

static void write_text(char *path, size_t cap, const char *dir, const char *name, const void *text,
                       size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    snprintf(path, cap, "%s/%s", dir, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
}

static json_t *json_of(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root) fail_msg("%s: %s", path, error.text);
    return root;
}

/* ---- Hugging Face's ------------------------------------------------------------------------- */

static void merges_are_those_of_hugging_face(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    dh_learned_bpe learned = learn(SHAKESPEARE, 600);
    assert_ok(&ctx, dh_learned_bpe_save(&ctx, &learned, dir));
    assert_fails(&ctx, dh_learned_bpe_save(&ctx, &learned, dir), DH_EINVAL, "exists already");
    dh_learned_bpe_fini(&learned);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    json_t *ours = json_of(path), *model = json_object_get(ours, "model");
    json_t *theirs = json_of("tests/data/tokenizers/trained/shakespeare600.json");
    assert_int_equal(json_object_size(json_object_get(model, "vocab")), 600);
    assert_true(json_equal(json_object_get(model, "vocab"), json_object_get(theirs, "vocab")));
    assert_true(json_equal(json_object_get(model, "merges"), json_object_get(theirs, "merges")));
    json_decref(theirs);
    json_decref(ours);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void what_was_learned_encodes_and_decodes(void **state)
{
    static const char text[] = "ROMEO:\n  the \xff\xfe end, \xe6\xbc\xa2 of  it\t\n\n\nAll.";
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256];
    test_tmpdir(dir, sizeof dir);
    dh_learned_bpe learned = learn(SHAKESPEARE, 700);
    assert_ok(&ctx, dh_learned_bpe_save(&ctx, &learned, dir));
    dh_learned_bpe_fini(&learned);
    dh_tokenizer *tok;
    dh_ids ids = {0};
    dh_str back = DH_STR_INIT;
    assert_ok(&ctx, dh_tokenizer_load(&ctx, dir, &tok));
    assert_int_equal(dh_tokenizer_vocab_size(tok), 700);
    assert_int_equal(dh_tokenizer_eos(tok), 0);
    assert_ok(&ctx, dh_tokenizer_encode(&ctx, tok, text, sizeof text - 1, 0, &ids));
    assert_true(ids.n < sizeof text - 1);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *piece = dh_tokenizer_piece(tok, i ? ids.at[i - 1] : -1, ids.at[i], &n);
        dh_str_append(&back, piece, n);
    }
    assert_int_equal(back.len, sizeof text - 1);
    assert_memory_equal(back.text, text, back.len);
    dh_str_fini(&back);
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(tok);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- the definition ------------------------------------------------------------------------- */

enum { N_WORDS = 40, LONGEST = 12, MOST_IDS = 512 };

typedef struct plain_word {
    uint32_t s[LONGEST + 1];
    int n;
} plain_word;

/* The pair of neighbours that is there most often; false: none twice. */
static bool best_pair(const plain_word *words, uint32_t *left, uint32_t *right)
{
    static int count[MOST_IDS][MOST_IDS];
    int best = 1;
    memset(count, 0, sizeof count);
    for (int w = 0; w < N_WORDS; w++)
        for (int i = 0; i + 1 < words[w].n; i++) count[words[w].s[i]][words[w].s[i + 1]]++;
    for (uint32_t a = 0; a < MOST_IDS; a++)
        for (uint32_t b = 0; b < MOST_IDS; b++)
            if (count[a][b] > best) {
                best = count[a][b];
                *left = a;
                *right = b;
            }
    return best > 1;
}

static void merge_plainly(plain_word *w, uint32_t left, uint32_t right, uint32_t id)
{
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        const bool here = i + 1 < w->n && w->s[i] == left && w->s[i + 1] == right;
        w->s[n++] = here ? id : w->s[i];
        i += here;
    }
    w->n = n;
}

/* Words of two letters only, so that pairs overlap, are equally many, and make tokens twice. */
static void counts_kept_up_to_date_are_those_counted_anew(void **state)
{
    uint64_t seed = test_seed("learned merges");
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300], text[N_WORDS * (LONGEST + 2)];
    test_tmpdir(dir, sizeof dir);
    for (int round = 0; round < 40; round++) {
        plain_word words[N_WORDS];
        size_t n = 0;
        for (int w = 0; w < N_WORDS; w++) {
            words[w] = (plain_word){.n = 1 + (int)(test_rand(&seed) % LONGEST)};
            for (int i = 0; i < words[w].n; i++)
                text[n++] = (char)('a' + test_rand(&seed) % (round % 2 ? 2 : 1 + (uint64_t)w % 3));
            text[n++] = '\n';
        }
        write_text(path, sizeof path, dir, "words.txt", text, n);
        dh_learned_bpe learned = learn(path, 320);
        n = 0;
        for (int w = 0; w < N_WORDS; w++, n++)
            for (int i = 0; i < words[w].n; i++)
                words[w].s[i] = dh_vocab_find(&learned.vocab, &text[n++], 1);
        uint32_t next = DH_BPE_SMALLEST, left, right;
        for (; next < 320 && best_pair(words, &left, &right); next++) {
            char joined[2 * LONGEST + 1];
            const dh_piece *l = &learned.vocab.pieces.at[left];
            const dh_piece *r = &learned.vocab.pieces.at[right];
            memcpy(joined, dh_vocab_bytes(&learned.vocab, left), l->len);
            memcpy(joined + l->len, dh_vocab_bytes(&learned.vocab, right), r->len);
            const uint32_t id = dh_vocab_find(&learned.vocab, joined, l->len + r->len);
            assert_true(id == next || (id < next && id >= DH_BPE_SMALLEST));
            if (id < next) next--; /* made in a second way */
            for (int w = 0; w < N_WORDS; w++) merge_plainly(&words[w], left, right, id);
        }
        assert_int_equal(learned.vocab.pieces.n, next);
        dh_learned_bpe_fini(&learned);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- edges ---------------------------------------------------------------------------------- */

static void edges(void **state)
{
    static const char broken[] = "\xff\xfe\xff\xfe ok \xff\xfe ok";
    static const char lines[] = "{\"text\": \"abab\"}\n{\"text\": \"ab\"}\n";
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    const char *files[] = {path};
    dh_learned_bpe learned;
    test_tmpdir(dir, sizeof dir);
    write_text(path, sizeof path, dir, "broken.txt", broken, sizeof broken - 1);
    learned = learn(path, 300); /* bytes that are no text are words too */
    assert_int_not_equal(dh_vocab_find(&learned.vocab, "\xff\xfe", 2), DH_NO_ID);
    assert_int_not_equal(dh_vocab_find(&learned.vocab, " ok", 3), DH_NO_ID);
    assert_true(learned.vocab.pieces.n < 300);
    dh_learned_bpe_fini(&learned);
    write_text(path, sizeof path, dir, "lines.jsonl", lines, sizeof lines - 1);
    learned = learn(path, 300);
    assert_int_equal(learned.n_words, 2);
    assert_int_equal(learned.vocab.pieces.n, 258); /* "ab"; "abab" is there once */
    dh_learned_bpe_fini(&learned);
    assert_fails(&ctx, dh_bpe_learn(&ctx, files, 1, NULL, 256, &learned), DH_EINVAL, "257");
    assert_fails(&ctx, dh_bpe_learn(&ctx, files, 1, "body", 300, &learned), DH_EFORMAT, "body");
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_those_of_hugging_face),
        cmocka_unit_test(what_was_learned_encodes_and_decodes),
        cmocka_unit_test(counts_kept_up_to_date_are_those_counted_anew),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
