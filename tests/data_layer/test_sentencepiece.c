/* SentencePiece models: settings, merging as it is defined, what is refused. */
#include "sentencepiece_model.h"

static void sentencepiece_settings(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    dh_str s = small_spm((spm_options){0});
    assert_ok(&ctx, from_spm(&ctx, &s, &tok));
    ASSERT_IDS(tok, "ab", 0, 3, 6);         /* _ ab: the higher score first */
    ASSERT_IDS(tok, "ba b", 0, 3, 5, 8, 5); /* a_: a space may end a piece */
    ASSERT_IDS(tok, "b<mask>b", 0, 3, 5, 9, 5);
    ASSERT_IDS(tok, "b  b", 0, 3, 5, 10, 5);
    ASSERT_IDS(tok, "bqqb", 0, 3, 5, 0, 5);  /* unknown characters run together */
    ASSERT_IDS(tok, "bxyb", 0, 3, 5, 11, 5); /* x and y are no pieces, xy is */
    ASSERT_IDS(tok, "bxb", 0, 3, 5, 0, 5);
    assert_int_equal(dh_tokenizer_special(tok, "<mask>"), 9);
    dh_tokenizer_destroy(tok);
    s = small_spm((spm_options){.no_prefix = true});
    assert_ok(&ctx, from_spm(&ctx, &s, &tok));
    ASSERT_IDS(tok, "ab", 0, 6);
    dh_tokenizer_destroy(tok);
    s = small_spm((spm_options){.strip_spaces = true});
    assert_ok(&ctx, from_spm(&ctx, &s, &tok));
    ASSERT_IDS(tok, "  b   b ", 0, 3, 5, 3, 5);
    dh_ids none = encode(tok, "   ", 3, 0);
    assert_int_equal(none.n, 0);
    dh_vec_fini(&none);
    dh_tokenizer_destroy(tok);
}

static void sentencepiece_refusals(void **state)
{
    static const struct {
        spm_options options;
        const char *part;
    } rows[] = {{{.model_type = 3}, "model type 3; unigram (1) and BPE (2) are read"},
                {{.model_type = 4}, "model type 4"},
                {{.suffix = true}, "treat_whitespace_as_suffix"}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        dh_str s = small_spm(rows[i].options);
        assert_fails(&ctx, from_spm(&ctx, &s, &tok), DH_EUNSUPPORTED, rows[i].part);
    }
    dh_str cut = small_spm((spm_options){.charsmap = "table"});
    assert_fails(&ctx, from_spm(&ctx, &cut, &tok), DH_EFORMAT, "precompiled_charsmap");
    static const struct {
        const char *text;
        float score;
        int type;
        dh_status status;
        const char *part;
    } pieces[] = {
        {"a", -1, NORMAL, DH_EFORMAT, "same text"},   {"zz", NAN, NORMAL, DH_EFORMAT, "score"},
        {"zz", 0, UNUSED, DH_EUNSUPPORTED, "unused"}, {"zz", 0, 9, DH_EFORMAT, "unknown type 9"},
        {"zz", 0, BYTE, DH_EFORMAT, "not <0xHH>"},    {"", 0, NORMAL, DH_EFORMAT, "0 bytes"}};
    for (size_t i = 0; i < DH_COUNTOF(pieces); i++) {
        dh_str s = small_spm((spm_options){0});
        put_piece(&s, pieces[i].text, pieces[i].score, pieces[i].type);
        assert_fails(&ctx, from_spm(&ctx, &s, &tok), pieces[i].status, pieces[i].part);
    }
    dh_str s = DH_STR_INIT;
    put_settings(&s, (spm_options){0});
    assert_fails(&ctx, from_spm(&ctx, &s, &tok), DH_EFORMAT, "without tokens");
    dh_str_append(&s, "\x0A\x7F", 2);
    assert_fails(&ctx, from_spm(&ctx, &s, &tok), DH_EFORMAT, "cut off");
    dh_str_append(&s, "\x0A\x03\x08\x01\x00", 5); /* piece text as a varint */
    assert_fails(&ctx, from_spm(&ctx, &s, &tok), DH_EFORMAT, "wire type");
}

/* SentencePiece's definition: of all neighbours whose joined text is a piece the one of
 * the highest score, leftmost among equals. Scores repeat, and not every letter is a piece. */
static void spm_merging_equals_its_definition(void **state)
{
    enum { PIECES = 40, N = 120 };
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t rng = test_seed("spm_merging_equals_its_definition");
    for (int round = 0; round < 100; round++) {
        char pieces[PIECES][8] = {"<unk>", "a", "b"}; /* c, d only inside pieces */
        float scores[PIECES] = {0, -9, -9};
        dh_str model = DH_STR_INIT;
        put_piece(&model, pieces[0], 0, UNKNOWN);
        for (int n = 1; n < PIECES; n++) {
            for (bool fresh = n < 3; !fresh;) {
                size_t len = 2 + test_rand(&rng) % 4;
                for (size_t i = 0; i < len; i++) pieces[n][i] = (char)('a' + test_rand(&rng) % 4);
                pieces[n][len] = '\0';
                fresh = true;
                for (int i = 0; i < n; i++) fresh &= strcmp(pieces[i], pieces[n]) != 0;
                scores[n] = -(float)(test_rand(&rng) % 6);
            }
            put_piece(&model, pieces[n], scores[n], NORMAL);
        }
        put_settings(&model, (spm_options){.no_prefix = true});
        dh_tokenizer *tok;
        assert_ok(&ctx, from_spm(&ctx, &model, &tok));
        char text[N + 1] = "";
        size_t starts[N + 1], n = 0;
        for (; n < N; n++) {
            text[n] = (char)('a' + test_rand(&rng) % 4);
            starts[n] = n;
        }
        starts[n] = n;
        dh_ids got = encode(tok, text, N, 0);
        for (;;) {
            size_t best = n;
            float score = -1e9f;
            for (size_t i = 0; i + 1 < n; i++)
                for (int p = 1; p < PIECES; p++)
                    if (strlen(pieces[p]) == starts[i + 2] - starts[i] && scores[p] > score &&
                        memcmp(pieces[p], text + starts[i], starts[i + 2] - starts[i]) == 0)
                        best = i, score = scores[p];
            if (best == n) break;
            memmove(starts + best + 1, starts + best + 2, (n - best - 1) * sizeof *starts);
            n--;
        }
        size_t at = 0;
        for (size_t i = 0; i < n; i++) {
            int id = 0;
            for (int p = 1; p < PIECES; p++)
                if (strlen(pieces[p]) == starts[i + 1] - starts[i] &&
                    memcmp(pieces[p], text + starts[i], starts[i + 1] - starts[i]) == 0)
                    id = p;
            if (id == 0 && at > 0 && got.at[at - 1] == 0) continue; /* fused */
            assert_true(at < got.n);
            assert_int_equal(got.at[at++], id);
        }
        assert_int_equal(at, got.n);
        dh_vec_fini(&got);
        dh_tokenizer_destroy(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentencepiece_settings),
        cmocka_unit_test(sentencepiece_refusals),
        cmocka_unit_test(spm_merging_equals_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
