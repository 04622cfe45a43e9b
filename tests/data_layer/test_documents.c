/* Documents of a dataset, packed into rows: every one whole and once, rows full, the same again. */
#include "dh_test.h"

#include "data/dataset.h"
#include "data/groups.h"
#include "data/pack.h"

enum { EOS = 7, VOCAB = 100 };

typedef struct fixture {
    char dir[256], path[320];
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    test_tmpdir(f->dir, sizeof f->dir);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = *state;
    assert_ok(&ctx, dh_dir_remove(&ctx, f->dir));
    free(f);
    return 0;
}

static const char *put(fixture *f, const char *name, const void *data, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    snprintf(f->path, sizeof f->path, "%s/%s", f->dir, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, f->path, data, n));
    return f->path;
}

static dh_dataset *open_tokens(const char *path, dh_data_order order, uint64_t seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds;
    const dh_dataset_spec spec = {
        .files = &path, .n_files = 1, .vocab_size = VOCAB, .order = order, .seed = seed};
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    return ds;
}

/* ---- packing ------------------------------------------------------------------------------- */

static int64_t least_rows(const dh_docs *docs, int64_t row_len)
{
    int64_t sum = 0;
    for (size_t i = 0; i < docs->n; i++) sum += docs->at[i].n;
    return (sum + row_len - 1) / row_len;
}

static int by_first(const void *x, const void *y)
{
    const dh_doc *a = x, *b = y;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Lengths up to `longest` of n documents. */
static dh_docs draw(uint64_t *seed, int n, int64_t longest, int64_t row_len)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_docs docs = {0};
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        const int64_t len = 1 + (int64_t)(test_rand(seed) % (uint64_t)longest);
        assert_ok(&ctx, dh_docs_add(&ctx, &docs, first, len, row_len));
        first += len;
    }
    return docs;
}

/* No document is cut, lost or doubled, no row has more than it holds; the first to be placed is
 * the longest of its row. */
static void check_pack(const dh_docs *docs, const dh_pack *pack, int64_t row_len)
{
    assert_int_equal(pack->pieces.n, docs->n);
    int64_t n_targets = 0;
    for (int64_t r = 0; r < dh_pack_rows(pack); r++) {
        int64_t used = 0;
        assert_true(pack->row.at[r] < pack->row.at[r + 1]);
        for (int64_t i = pack->row.at[r]; i < pack->row.at[r + 1]; i++) {
            used += pack->pieces.at[i].n;
            assert_true(i == pack->row.at[r] || pack->pieces.at[i].n <= pack->pieces.at[i - 1].n);
        }
        assert_in_range(used, 1, row_len);
        n_targets += used;
    }
    assert_int_equal(pack->n_targets, n_targets);
    dh_doc *sorted = malloc(docs->n * sizeof *sorted);
    if (docs->n) memcpy(sorted, pack->pieces.at, docs->n * sizeof *sorted);
    qsort(sorted, docs->n, sizeof *sorted, by_first);
    for (size_t i = 0; i < docs->n; i++)
        assert_true(sorted[i].first == docs->at[i].first && sorted[i].n == docs->at[i].n);
    free(sorted);
}

static dh_docs copy_of(const dh_docs *docs)
{
    dh_docs copy = {0};
    for (size_t i = 0; i < docs->n; i++) assert_true(dh_vec_push(&copy, docs->at[i]));
    return copy;
}

static void rows_hold_every_document_once(void **state)
{
    static const struct {
        int n;
        int64_t longest, row_len;
        double most; /* rows over the least there can be */
    } cases[] = {{1, 9, 16, 1},         {50, 200, 16, 1.4},    {3000, 40, 64, 1.02},
                 {9000, 90, 256, 1.02}, {700, 1000, 129, 1.3}, {20, 1, 8, 1}};
    uint64_t seed = test_seed("packing");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            dh_ctx ctx = DH_CTX_INIT;
            dh_docs docs = draw(&seed, cases[i].n, cases[i].longest, cases[i].row_len);
            dh_docs once = copy_of(&docs), twice = copy_of(&docs);
            const uint64_t key = 99;
            dh_pack pack, again;
            assert_ok(&ctx,
                      dh_pack_make(&ctx, &once, cases[i].row_len, shuffled ? &key : NULL, &pack));
            assert_ok(&ctx,
                      dh_pack_make(&ctx, &twice, cases[i].row_len, shuffled ? &key : NULL, &again));
            check_pack(&docs, &pack, cases[i].row_len);
            assert_int_equal(pack.row.n, again.row.n);
            assert_memory_equal(pack.row.at, again.row.at, pack.row.n * sizeof *pack.row.at);
            for (size_t k = 0; k < docs.n; k++)
                assert_int_equal(pack.pieces.at[k].first, again.pieces.at[k].first);
            const int64_t least = least_rows(&docs, cases[i].row_len);
            if (dh_pack_rows(&pack) > 0 &&
                !((double)dh_pack_rows(&pack) <= cases[i].most * (double)least))
                fail_msg("case %zu: %lld rows, %lld would hold as many tokens", i,
                         (long long)dh_pack_rows(&pack), (long long)least);
            dh_pack_fini(&pack);
            dh_pack_fini(&again);
            dh_vec_fini(&docs);
        }
}

/* Rows of 12: 7 and 6 begin two, 5 fits best beside 7 and fills it, so 3 and 3 go to the other. */
static void the_tightest_row_is_taken(void **state)
{
    static const int32_t lengths[] = {7, 5, 6, 3, 3}, want[] = {7, 5, 6, 3, 3};
    dh_ctx ctx = DH_CTX_INIT;
    dh_docs docs = {0};
    dh_pack pack;
    for (size_t i = 0; i < DH_COUNTOF(lengths); i++)
        assert_ok(&ctx, dh_docs_add(&ctx, &docs, (int64_t)(100 * i), lengths[i] + 1, 12));
    assert_ok(&ctx, dh_pack_make(&ctx, &docs, 12, NULL, &pack));
    assert_int_equal(dh_pack_rows(&pack), 2);
    for (size_t i = 0; i < DH_COUNTOF(want); i++) assert_int_equal(pack.pieces.at[i].n, want[i]);
    assert_int_equal(pack.row.at[1], 2);
    dh_pack_fini(&pack);
}

/* ---- documents ----------------------------------------------------------------------------- */

typedef struct row {
    int32_t tokens[64], targets[64], positions[64];
    int64_t documents[64];
} row;

static dh_dataset_row row_of(row *r)
{
    return (dh_dataset_row){r->tokens, r->targets, r->positions, r->documents};
}

static void assert_row(dh_dataset *ds, int64_t sample, const char *want)
{
    dh_ctx ctx = DH_CTX_INIT;
    char got[512] = "";
    row r;
    const dh_dataset_row out = row_of(&r);
    assert_ok(&ctx, dh_dataset_packed_row(&ctx, ds, sample, &out));
    for (int i = 0; i < 8; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d>%d@%d/%lld", i ? " " : "",
                 r.tokens[i], r.targets[i], r.positions[i], (long long)r.documents[i]);
    assert_string_equal(got, want);
}

/* Documents of 4, 1, 3 tokens with their end, one of 11 that is longer than a row, and one that
 * the file ends. */
static void documents_end_with_their_token(void **state)
{
    static const uint16_t tokens[] = {1,  2,  3,  EOS, EOS, 4,  5,   EOS, 11, 12, 13,
                                      14, 15, 16, 17,  18,  19, EOS, EOS, 21, 22};
    dh_ctx ctx = DH_CTX_INIT;
    const char *path = put(*state, "docs.u16", tokens, sizeof tokens);
    dh_dataset *ds = open_tokens(path, DH_ORDER_SEQUENTIAL, 0);
    assert_false(dh_dataset_is_packed(ds));
    assert_ok(&ctx, dh_dataset_pack(&ctx, ds, 8, EOS));
    assert_true(dh_dataset_is_packed(ds));
    assert_int_equal(dh_dataset_windows(ds, 8), 2);
    assert_ok(&ctx, dh_dataset_check(&ctx, ds, 8));
    assert_row(ds, 0,
               "11>12@0/8 12>13@1/8 13>14@2/8 14>15@3/8 15>16@4/8 16>17@5/8 17>18@6/8 "
               "18>19@7/8");
    assert_row(ds, 1, "1>2@0/0 2>3@1/0 3>7@2/0 4>5@0/5 5>7@1/5 19>7@0/16 21>22@0/19 0>-1@0/0");
    assert_row(ds, 3, "1>2@0/0 2>3@1/0 3>7@2/0 4>5@0/5 5>7@1/5 19>7@0/16 21>22@0/19 0>-1@0/0");
    dh_dataset_close(ds);
}

static void add_length(void *user, int64_t n, int64_t n_targets)
{
    assert_int_equal(n_targets, n);
    *(int64_t *)user += n;
}

/* An epoch has every row once, in whatever order; another seed packs and orders otherwise. */
static void epochs_have_every_row_once(void **state)
{
    enum { N = 20000, ROW = 64 };
    uint64_t seed = test_seed("documents");
    uint16_t *tokens = malloc(N * sizeof *tokens);
    for (int i = 0; i < N; i++)
        tokens[i] = test_rand(&seed) % 20 ? (uint16_t)(8 + test_rand(&seed) % 90) : EOS;
    char path[320];
    snprintf(path, sizeof path, "%s", put(*state, "many.u16", tokens, N * sizeof *tokens));
    int64_t first_of[2] = {0};
    for (int order = DH_ORDER_SHUFFLE; order <= DH_ORDER_SEQUENTIAL; order++)
        for (uint64_t key = 1; key <= 2; key++) {
            dh_ctx ctx = DH_CTX_INIT;
            dh_dataset *ds = open_tokens(path, (dh_data_order)order, key);
            bool seen[N] = {false};
            assert_ok(&ctx, dh_dataset_pack(&ctx, ds, ROW, EOS));
            const int64_t n = dh_dataset_windows(ds, ROW);
            for (int64_t epoch = 0; epoch < 2; epoch++) {
                int64_t n_seen = 0, sum = 0;
                memset(seen, 0, sizeof seen);
                for (int64_t i = epoch * n; i < (epoch + 1) * n; i++) {
                    row r;
                    const dh_dataset_row out = row_of(&r);
                    assert_ok(&ctx, dh_dataset_packed_row(&ctx, ds, i, &out));
                    if (i == 0 && order == DH_ORDER_SHUFFLE) first_of[key - 1] = r.documents[0];
                    assert_ok(&ctx, dh_dataset_lengths(&ctx, ds, i, add_length, &sum));
                    for (int t = 0; t < ROW && r.targets[t] >= 0; t++) {
                        const int64_t at = r.documents[t] + r.positions[t];
                        assert_false(seen[at]);
                        assert_true(r.tokens[t] == tokens[at] && r.targets[t] == tokens[at + 1]);
                        assert_true(r.tokens[t] != EOS);
                        seen[at] = true;
                        n_seen++;
                    }
                }
                assert_int_equal(n_seen, sum);
                for (int i = 0; i < N - 1; i++) assert_true(seen[i] == (tokens[i] != EOS));
            }
            dh_dataset_close(ds);
        }
    assert_int_not_equal(first_of[0], first_of[1]);
    free(tokens);
}

/* ---- by length ----------------------------------------------------------------------------- */

typedef struct lengths {
    int64_t at[4096], n;
} lengths;

static void list_length(void *user, int64_t n, int64_t n_targets)
{
    lengths *l = user;
    assert_true(l->n < (int64_t)DH_COUNTOF(l->at));
    l->at[l->n++] = n;
}

/* Every document of the samples is somewhere, once; every row of a group has one that no shorter
 * group holds, and what the row gives is the stream's. */
static void check_groups(dh_dataset *ds, const dh_length_groups *g, const uint16_t *tokens,
                         lengths *want)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t k = 0; k < g->n; k++)
        for (int64_t i = 0; i < dh_pack_rows(&g->rows[k]) + 1; i++) {
            row r;
            int64_t t = 0, longest = 0;
            const dh_dataset_row out = row_of(&r);
            assert_ok(&ctx, dh_length_groups_row(&ctx, ds, g, k, i, &out));
            while (t < g->max_len[k] && r.targets[t] >= 0) {
                const int64_t first = r.documents[t];
                int64_t n = 0;
                for (; t < g->max_len[k] && r.targets[t] >= 0 && r.positions[t] == n; t++, n++)
                    assert_true(r.documents[t] == first && r.tokens[t] == tokens[first + n] &&
                                r.targets[t] == tokens[first + n + 1]);
                longest = DH_MAX(longest, n);
                int64_t found = 0;
                while (found < want->n && want->at[found] != n) found++;
                assert_true(found < want->n); /* one of this length, and then one fewer */
                want->at[found] = want->at[--want->n];
            }
            if (i == dh_pack_rows(&g->rows[k]))
                assert_int_equal(t, 0); /* behind the last: padding */
            else
                assert_true(longest > (k == 0 ? 0 : g->max_len[k - 1]));
            for (; t < g->max_len[k]; t++) assert_int_equal(r.targets[t], -1);
        }
    assert_int_equal(want->n, 0);
}

static void documents_go_to_the_group_that_holds_them(void **state)
{
    enum { N = 20000, ROW = 64, SAMPLES = 24 };
    static const int64_t bounds[][3] = {{8, 24, ROW}, {1, 2, ROW}, {63, ROW}, {ROW}};
    static const size_t n_bounds[] = {3, 3, 2, 1};
    uint64_t seed = test_seed("groups of lengths");
    uint16_t *tokens = malloc(N * sizeof *tokens);
    for (int i = 0; i < N; i++)
        tokens[i] = test_rand(&seed) % 12 ? (uint16_t)(8 + test_rand(&seed) % 90) : EOS;
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds =
        open_tokens(put(*state, "lengths.u16", tokens, N * sizeof *tokens), DH_ORDER_SHUFFLE, 3);
    assert_ok(&ctx, dh_dataset_pack(&ctx, ds, ROW, EOS));
    for (size_t b = 0; b < DH_COUNTOF(bounds); b++)
        for (int64_t first = 0; first < 3 * SAMPLES; first += SAMPLES) {
            lengths want = {.n = 0};
            dh_length_groups groups;
            for (int64_t i = 0; i < SAMPLES; i++)
                assert_ok(&ctx, dh_dataset_lengths(&ctx, ds, first + i, list_length, &want));
            assert_ok(&ctx, dh_length_groups_make(&ctx, ds, first, SAMPLES, bounds[b], n_bounds[b],
                                                  &groups));
            check_groups(ds, &groups, tokens, &want);
            for (int64_t i = 0; n_bounds[b] == 1 && i < SAMPLES; i++) { /* one group: the rows */
                row x, y;
                const dh_dataset_row a = row_of(&x), c = row_of(&y);
                assert_ok(&ctx, dh_dataset_packed_row(&ctx, ds, first + i, &a));
                assert_ok(&ctx, dh_length_groups_row(&ctx, ds, &groups, 0, i, &c));
                assert_memory_equal(&x, &y, sizeof x);
            }
            dh_length_groups_fini(&groups);
        }
    dh_dataset_close(ds);
    free(tokens);
}

/* What cannot be told apart is refused; a file of text is a document. */
static void ends_have_to_be_known(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = *state;
    dh_tokenizer *bytes;
    dh_dataset *ds;
    assert_ok(&ctx, dh_tokenizer_bytes(&ctx, &bytes));
    static const char lines[] = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    static const char text[] = "some words";
    char jsonl[320], plain[320];
    snprintf(jsonl, sizeof jsonl, "%s", put(f, "a.jsonl", lines, strlen(lines)));
    snprintf(plain, sizeof plain, "%s", put(f, "b.txt", text, strlen(text)));
    const char *const files[] = {jsonl, plain, plain};
    dh_dataset_spec spec = {
        .files = files, .n_files = 1, .tokenizer = bytes, .order = DH_ORDER_SEQUENTIAL};
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_fails(&ctx, dh_dataset_pack(&ctx, ds, 32, -1), DH_EINVAL, "where documents end in");
    dh_dataset_close(ds);

    spec.files = files + 1;
    spec.n_files = 2;
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_ok(&ctx, dh_dataset_pack(&ctx, ds, 32, -1));
    assert_int_equal(dh_dataset_windows(ds, 32), 1);
    int64_t n = 0;
    assert_ok(&ctx, dh_dataset_lengths(&ctx, ds, 0, add_length, &n));
    assert_int_equal(n, 2 * (strlen(text) - 1));
    dh_dataset_close(ds);

    static const uint16_t ends[] = {EOS, EOS, 3};
    ds = open_tokens(put(f, "ends.u16", ends, sizeof ends), DH_ORDER_SHUFFLE, 1);
    assert_fails(&ctx, dh_dataset_pack(&ctx, ds, 32, EOS), DH_EINVAL, "no document of two tokens");
    dh_dataset_close(ds);
    static const uint16_t outside[] = {3, 4, VOCAB, EOS};
    ds = open_tokens(put(f, "out.u16", outside, sizeof outside), DH_ORDER_SHUFFLE, 1);
    assert_fails(&ctx, dh_dataset_pack(&ctx, ds, 32, EOS), DH_EFORMAT, "outside the vocabulary");
    dh_dataset_close(ds);
    dh_tokenizer_destroy(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold_every_document_once),
        cmocka_unit_test(the_tightest_row_is_taken),
        cmocka_unit_test_setup_teardown(documents_end_with_their_token, set_up, tear_down),
        cmocka_unit_test_setup_teardown(epochs_have_every_row_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(documents_go_to_the_group_that_holds_them, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(ends_have_to_be_known, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
