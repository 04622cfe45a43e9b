/* Datasets: sources, splits, cache, orders, token files and their faults. */
#include "dh_test.h"

#include "data/dataset.h"

#include <fcntl.h>
#include <sys/stat.h>

#define SHAKESPEARE "tests/data/corpora/tinyshakespeare/"
#define STORIES "tests/data/corpora/tinystories/"

/* ---- helpers ----------------------------------------------------------------------- */

typedef struct fixture {
    char dir[256], path[320];
    dh_tokenizer *bytes;
} fixture;

static int set_up(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = calloc(1, sizeof *f);
    test_tmpdir(f->dir, sizeof f->dir);
    assert_ok(&ctx, dh_tokenizer_bytes(&ctx, &f->bytes));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    fixture *f = *state;
    assert_ok(&ctx, dh_dir_remove(&ctx, f->dir));
    dh_tokenizer_destroy(f->bytes);
    free(f);
    return 0;
}

/* Path of NAME in the test's folder, valid until the next call. */
static const char *in_dir(fixture *f, const char *name)
{
    snprintf(f->path, sizeof f->path, "%s/%s", f->dir, name);
    return f->path;
}

static const char *write_file(fixture *f, const char *name, const void *data, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_file_write_atomic(&ctx, in_dir(f, name), data, n));
    return f->path;
}

static dh_status open_one(dh_ctx *ctx, const char *path, dh_dataset_spec spec, dh_dataset **ds)
{
    spec.files = &path;
    spec.n_files = 1;
    return dh_dataset_open(ctx, &spec, ds);
}

static dh_dataset *must_open(const char *path, dh_dataset_spec spec)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds = NULL;
    assert_ok(&ctx, open_one(&ctx, path, spec, &ds));
    return ds;
}

static dh_tokenizer *load(const char *spec)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = NULL;
    assert_ok(&ctx, dh_tokenizer_load(&ctx, spec, &tok));
    return tok;
}

static void assert_stream(const dh_dataset *ds, const int32_t *want, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_int_equal(dh_dataset_tokens(ds), n);
    int32_t *got = calloc(n + 1, sizeof *got);
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, (int64_t)n, got));
    assert_memory_equal(got, want, n * sizeof *got);
    free(got);
}

/* ---- text ---------------------------------------------------------------------------- */

static int64_t tokens_of_part(const dh_tokenizer *tok, dh_data_part part)
{
    dh_dataset *ds =
        must_open(SHAKESPEARE "input.txt",
                  (dh_dataset_spec){.tokenizer = tok, .part = part, .val_fraction = 0.1});
    int64_t n = dh_dataset_tokens(ds);
    dh_dataset_close(ds);
    return n;
}

/* Counts that nanoGPT's data/shakespeare and data/shakespeare_char state. */
static void nanogpt_splits(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *gpt2 = load("tests/data/tokenizers/gpt2"), *chars;
    assert_int_equal(tokens_of_part(gpt2, DH_PART_TRAIN), 301966);
    assert_int_equal(tokens_of_part(gpt2, DH_PART_VAL), 36059);
    assert_int_equal(tokens_of_part(gpt2, DH_PART_ALL), 338025);
    const char *path = SHAKESPEARE "input.txt";
    assert_ok(&ctx, dh_dataset_chars(&ctx, &path, 1, NULL, &chars));
    assert_int_equal(dh_tokenizer_vocab_size(chars), 65);
    assert_int_equal(tokens_of_part(chars, DH_PART_TRAIN), 1003854);
    assert_int_equal(tokens_of_part(chars, DH_PART_VAL), 111540);
    dh_tokenizer_destroy(gpt2);
    dh_tokenizer_destroy(chars);
}

static void text_is_cut_between_code_points(void **state)
{
    fixture *f = *state;
    const char *path = write_file(f, "t.txt", "a\xC3\xA9\xC3\xA9z", 6); /* 4 code points */
    dh_dataset_spec spec = {.tokenizer = f->bytes, .part = DH_PART_TRAIN, .val_fraction = 0.5};
    dh_dataset *train = must_open(path, spec);
    spec.part = DH_PART_VAL;
    dh_dataset *val = must_open(path, spec);
    assert_stream(train, (const int32_t[]){'a', 0xC3, 0xA9}, 3);
    assert_stream(val, (const int32_t[]){0xC3, 0xA9, 'z'}, 3);
    dh_dataset_close(train);
    dh_dataset_close(val);
}

static void json_lines(void **state)
{
    fixture *f = *state;
    dh_tokenizer *gpt2 = load("tests/data/tokenizers/gpt2");
    static const char rows[] = "{\"text\": \"Hello world\"}\n \n{\"id\": 1, \"text\": \"\"}\n"
                               "{\"text\": \"Hello\", \"body\": \"a\"}";
    const char *path = write_file(f, "d.jsonl", rows, sizeof rows - 1);
    dh_dataset_spec spec = {.tokenizer = gpt2};
    dh_dataset *ds = must_open(path, spec);
    assert_stream(ds, (const int32_t[]){15496, 995, 50256, 50256, 15496, 50256}, 6);
    dh_dataset_close(ds);

    dh_ctx ctx = DH_CTX_INIT;
    spec.text_field = "body";
    assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EFORMAT, "line 1: no field \"body\"");
    spec.text_field = "id";
    assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EFORMAT, "line 1: no field");
    path = write_file(f, "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n", 27);
    spec.text_field = NULL;
    assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EFORMAT, "line 2: not a text");
    path = write_file(f, "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n", 28);
    assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EFORMAT, "line 2");
    dh_tokenizer_destroy(gpt2);
}

static void json_lines_are_cut_between_documents(void **state)
{
    fixture *f = *state;
    dh_tokenizer *gpt2 = load("tests/data/tokenizers/gpt2");
    dh_str rows = DH_STR_INIT;
    for (int i = 0; i < 10; i++) dh_str_printf(&rows, "{\"text\": \"Hello\"}\n");
    const char *path = write_file(f, "d.jsonl", rows.text, rows.len);
    dh_str_fini(&rows);
    dh_dataset_spec spec = {.tokenizer = gpt2, .val_fraction = 0.25, .part = DH_PART_TRAIN};
    dh_dataset *train = must_open(path, spec); /* 7.5 rows: the 8th begins before the cut */
    spec.part = DH_PART_VAL;
    dh_dataset *val = must_open(path, spec);
    assert_int_equal(dh_dataset_tokens(train), 16);
    assert_int_equal(dh_dataset_tokens(val), 4);
    dh_dataset_close(train);
    dh_dataset_close(val);
    dh_tokenizer_destroy(gpt2);
}

static void several_files_are_one_stream(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    char first[320], second[320];
    snprintf(first, sizeof first, "%s", write_file(f, "1.txt", "abc", 3));
    snprintf(second, sizeof second, "%s", write_file(f, "2.u16", "d\0e\0", 4));
    const char *files[] = {first, second, first};
    dh_dataset *ds;
    dh_dataset_spec spec = {
        .files = files, .n_files = 3, .tokenizer = f->bytes, .order = DH_ORDER_SEQUENTIAL};
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    assert_stream(ds, (const int32_t[]){'a', 'b', 'c', 'd', 'e', 'a', 'b', 'c'}, 8);
    int32_t sample[3];
    assert_int_equal(dh_dataset_windows(ds, 2), 3);
    assert_ok(&ctx, dh_dataset_sample(&ctx, ds, 1, 2, sample)); /* across two files */
    assert_memory_equal(sample, ((const int32_t[]){'c', 'd', 'e'}), sizeof sample);
    assert_ok(&ctx, dh_dataset_sample(&ctx, ds, 3, 2, sample)); /* wraps */
    assert_memory_equal(sample, ((const int32_t[]){'a', 'b', 'c'}), sizeof sample);
    dh_dataset_close(ds);
}

/* ---- cache ------------------------------------------------------------------------------ */

typedef struct calls {
    size_t n, done, total;
} calls;

static void count_calls(void *arg, const char *file, size_t done, size_t total)
{
    calls *c = arg;
    assert_true(done >= c->done && done <= total);
    *c = (calls){c->n + 1, done, total};
}

/* Opens through the cache; returns whether the text was tokenized. */
static bool tokenizes(fixture *f, const char *path, const dh_tokenizer *tok, double val_fraction,
                      dh_data_part part, size_t n_want)
{
    char cache[300];
    snprintf(cache, sizeof cache, "%s/cache/deep", f->dir);
    calls seen = {0};
    dh_dataset *ds = must_open(path, (dh_dataset_spec){.tokenizer = tok,
                                                       .cache_dir = cache,
                                                       .part = part,
                                                       .val_fraction = val_fraction,
                                                       .progress = count_calls,
                                                       .progress_arg = &seen});
    assert_int_equal(dh_dataset_tokens(ds), n_want);
    int32_t first;
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, 1, &first));
    assert_true(seen.n == 0 || seen.done == seen.total);
    dh_dataset_close(ds);
    return seen.n > 0;
}

static void damage(const char *dir, long offset, bool cut)
{
    char command[600]; /* the one cache file there is */
    if (cut)
        snprintf(command, sizeof command, "truncate -s %ld %s/cache/deep/*.tokens", offset, dir);
    else
        snprintf(
            command, sizeof command,
            "printf X | dd of=$(ls %s/cache/deep/*.tokens) bs=1 seek=%ld conv=notrunc 2>/dev/null",
            dir, offset);
    assert_int_equal(system(command), 0);
}

static void the_cache_is_used_and_renewed(void **state)
{
    fixture *f = *state;
    char path[320];
    snprintf(path, sizeof path, "%s", write_file(f, "t.txt", "hello", 5));
    dh_log_set_level(DH_LOG_WARN);
    assert_true(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 5));
    assert_false(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 5));
    write_file(f, "t.txt", "hello!", 6);
    assert_true(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
    write_file(f, "t.txt", "jelly!", 6); /* same size, other time */
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_true(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
    assert_false(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
    static const long offsets[] = {0, 9, 17, 30, 60, 96, 100, 107}; /* header and tokens */
    for (size_t i = 0; i < DH_COUNTOF(offsets); i++) {
        damage(f->dir, offsets[i], false);
        assert_true(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
        damage(f->dir, offsets[i], true);
        assert_true(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
    }
    assert_false(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
    /* Other tokenizer, other part: files of their own. */
    dh_tokenizer *gpt2 = load("tests/data/tokenizers/gpt2");
    assert_true(tokenizes(f, path, gpt2, 0, DH_PART_ALL, 3));
    assert_true(tokenizes(f, path, f->bytes, 0.5, DH_PART_TRAIN, 3));
    assert_true(tokenizes(f, path, f->bytes, 0.5, DH_PART_VAL, 3));
    assert_false(tokenizes(f, path, f->bytes, 0.5, DH_PART_TRAIN, 3));
    assert_false(tokenizes(f, path, f->bytes, 0.5, DH_PART_VAL, 3));
    assert_false(tokenizes(f, path, f->bytes, 0, DH_PART_ALL, 6));
    assert_false(tokenizes(f, path, gpt2, 0, DH_PART_ALL, 3));
    dh_tokenizer_destroy(gpt2);
    dh_log_set_level(DH_LOG_INFO);
}

/* Long text goes through the cache in blocks; the tokens are those of one go. */
static void the_cache_holds_what_encoding_gives(void **state)
{
    fixture *f = *state;
    dh_tokenizer *tok = load("tests/data/tokenizers/gpt2");
    calls seen = {0};
    dh_dataset_spec spec = {.tokenizer = tok};
    dh_dataset *memory = must_open(SHAKESPEARE "input.txt", spec);
    spec.cache_dir = f->dir;
    spec.progress = count_calls;
    spec.progress_arg = &seen;
    dh_dataset *cached = must_open(SHAKESPEARE "input.txt", spec);
    assert_true(seen.n > 4); /* begin, every 65,536 tokens, end */
    int64_t n = dh_dataset_tokens(memory);
    dh_ctx ctx = DH_CTX_INIT;
    int32_t *want = calloc((size_t)n, sizeof *want);
    assert_ok(&ctx, dh_dataset_read(&ctx, memory, 0, n, want));
    assert_stream(cached, want, (size_t)n);
    free(want);
    dh_dataset_close(memory);
    dh_dataset_close(cached);
    dh_tokenizer_destroy(tok);
}

/* Text that cannot be encoded leaves no cache file behind. */
static void a_failed_encoding_leaves_nothing(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *chars;
    assert_ok(&ctx, dh_tokenizer_chars_from_text(&ctx, "ab", 2, &chars));
    char cache[300], path[320];
    snprintf(cache, sizeof cache, "%s/cache", f->dir);
    snprintf(path, sizeof path, "%s", write_file(f, "t.txt", "abcab", 5));
    dh_dataset *ds;
    dh_dataset_spec spec = {.tokenizer = chars, .cache_dir = cache};
    assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EINVAL, "byte offset 2");
    assert_int_equal(rmdir(cache), 0); /* empty */
    dh_tokenizer_destroy(chars);
    assert_fails(&ctx, open_one(&ctx, path, (dh_dataset_spec){0}, &ds), DH_EINVAL, "no tokenizer");
}

static void ask_to_stop(void *arg, const char *file, size_t done, size_t total)
{
    if (done > 0 && done < total) *(volatile sig_atomic_t *)arg = 1;
}

/* Asked to stop, with tokens for a file or for memory; then whole again. */
static void tokenizing_is_stopped(void **state)
{
    fixture *f = *state;
    volatile sig_atomic_t stop = 0;
    char cache[300], lines[320];
    dh_tokenizer *tok = load("tests/data/tokenizers/gpt2");
    dh_dataset *ds;
    snprintf(cache, sizeof cache, "%s/cache", f->dir);
    snprintf(lines, sizeof lines, "%s", write_file(f, "t.jsonl", "{\"text\":\"a\"}\n", 13));
    dh_dataset_spec spec = {.tokenizer = tok,
                            .cache_dir = cache,
                            .progress = ask_to_stop,
                            .progress_arg = (void *)&stop};
    dh_ctx ctx = {.rank = -1, .stop = &stop};
    assert_fails(&ctx, open_one(&ctx, SHAKESPEARE "input.txt", spec, &ds), DH_EINTERRUPTED,
                 "stopped while");
    assert_int_equal(rmdir(cache), 0); /* empty */
    spec.cache_dir = NULL;
    assert_fails(&ctx, open_one(&ctx, SHAKESPEARE "input.txt", spec, &ds), DH_EINTERRUPTED,
                 "stopped while");
    assert_fails(&ctx, open_one(&ctx, lines, spec, &ds), DH_EINTERRUPTED, "stopped while");
    stop = 0;
    spec.progress = NULL;
    dh_dataset_close(must_open(SHAKESPEARE "input.txt", spec));
    dh_dataset_close(must_open(lines, spec));
    dh_tokenizer_destroy(tok);
}

/* ---- orders --------------------------------------------------------------------------------- */

/* A stream 0, 1, 2, ... of n tokens, so that a sample shows where it lies. */
static dh_dataset *counting(fixture *f, int64_t n, dh_data_order order, uint64_t seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)i;
    assert_ok(&ctx, dh_tokens_write_llmc(&ctx, in_dir(f, "count.bin"), ids, (size_t)n, 1 << 20));
    free(ids);
    return must_open(f->path, (dh_dataset_spec){.order = order, .seed = seed});
}

static void shuffle_is_a_permutation_each_epoch(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    enum { T = 3 };
    uint64_t rng = test_seed("shuffle_is_a_permutation_each_epoch");
    for (int64_t windows = 1; windows < 400; windows += 1 + windows / 3) {
        dh_dataset *ds = counting(*state, windows * T + 1 + (int64_t)(test_rand(&rng) % T),
                                  DH_ORDER_SHUFFLE, test_rand(&rng));
        assert_int_equal(dh_dataset_windows(ds, T), windows);
        int64_t moved = 0;
        bool seen[3][400] = {{false}};
        for (int64_t i = 0; i < 3 * windows; i++) {
            int32_t s[T + 1], again[T + 1];
            assert_ok(&ctx, dh_dataset_sample(&ctx, ds, i, T, s));
            assert_ok(&ctx, dh_dataset_sample(&ctx, ds, i, T, again));
            assert_memory_equal(s, again, sizeof s);
            assert_true(s[0] % T == 0 && s[T] == s[0] + T && s[0] / T < windows);
            assert_false(seen[i / windows][s[0] / T]);
            seen[i / windows][s[0] / T] = true;
            moved += dh_dataset_offset(ds, i % windows, T) != s[0];
        }
        assert_true(windows < 20 || moved > windows); /* epochs differ from the first */
        dh_dataset_close(ds);
    }
}

/* Over many seeds each window comes first about equally often. */
static void shuffle_has_no_favourites(void **state)
{
    enum { WINDOWS = 10, SEEDS = 4000 };
    fixture *f = *state;
    dh_dataset_close(counting(f, WINDOWS + 1, DH_ORDER_SHUFFLE, 0));
    int count[WINDOWS] = {0};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        dh_dataset *ds = must_open(f->path, (dh_dataset_spec){.seed = seed});
        count[dh_dataset_offset(ds, 0, 1)]++;
        dh_dataset_close(ds);
    }
    double chi2 = 0, expected = (double)SEEDS / WINDOWS;
    for (int i = 0; i < WINDOWS; i++)
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    assert_true(chi2 < 33.7); /* 9 degrees of freedom: exceeded once in 10,000 */
}

static void random_reaches_every_offset(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    enum { N = 20, T = 4, SAMPLES = 2000 };
    dh_dataset *ds = counting(*state, N, DH_ORDER_RANDOM, 7);
    int count[N] = {0};
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t s[T + 1];
        assert_ok(&ctx, dh_dataset_sample(&ctx, ds, i, T, s));
        assert_true(s[0] >= 0 && s[T] == s[0] + T && s[T] < N);
        count[s[0]]++;
    }
    for (int i = 0; i < N - T; i++) assert_in_range(count[i], 70, 190); /* 125 expected */
    dh_dataset_close(ds);
}

static void too_short_for_a_window(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds = counting(*state, 8, DH_ORDER_SHUFFLE, 0);
    int32_t s[9];
    assert_ok(&ctx, dh_dataset_check(&ctx, ds, 7));
    assert_fails(&ctx, dh_dataset_check(&ctx, ds, 8), DH_EINVAL, "8 tokens");
    assert_fails(&ctx, dh_dataset_sample(&ctx, ds, 0, 8, s), DH_EINVAL, "needs 9");
    assert_fails(&ctx, dh_dataset_sample(&ctx, ds, 0, 0, s), DH_EINVAL, "sequence length 0");
    assert_fails(&ctx, dh_dataset_sample(&ctx, ds, -1, 2, s), DH_EINVAL, "negative");
    assert_fails(&ctx, dh_dataset_read(&ctx, ds, 5, 4, s), DH_EINVAL, "stream of 8");
    dh_dataset_close(ds);
}

/* ---- llm.c ---------------------------------------------------------------------------------- */

static void llmc_files_of_karpathy(void **state)
{
    dh_tokenizer *tok = load("tests/data/tokenizers/gpt2");
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds =
        must_open(SHAKESPEARE "tiny_shakespeare_train.bin", (dh_dataset_spec){.tokenizer = tok});
    assert_int_equal(dh_dataset_tokens(ds), 305260);
    int32_t ids[8];
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, 8, ids));
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_tokenizer_decode(&ctx, tok, ids, 8, 0, &text));
    assert_non_null(text.text);
    dh_str_fini(&text);
    dh_dataset_close(ds);
    ds = must_open(SHAKESPEARE "tiny_shakespeare_val.bin", (dh_dataset_spec){0});
    assert_int_equal(dh_dataset_tokens(ds), 32768);
    dh_dataset_close(ds);
    dh_tokenizer_destroy(tok);
}

static void llmc_round_trip(void **state)
{
    static const int64_t vocabs[] = {50257, 65536, 128256};
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    enum { N = 10001 };
    int32_t ids[N];
    for (size_t v = 0; v < DH_COUNTOF(vocabs); v++) {
        for (int i = 0; i < N; i++) ids[i] = (int32_t)(dh_mix64((uint64_t)i) % (uint64_t)vocabs[v]);
        assert_ok(&ctx, dh_tokens_write_llmc(&ctx, in_dir(f, "w.bin"), ids, N, vocabs[v]));
        struct stat info;
        assert_int_equal(stat(f->path, &info), 0);
        assert_int_equal(info.st_size, 1024 + N * (vocabs[v] > 65536 ? 4 : 2));
        dh_dataset *ds = must_open(f->path, (dh_dataset_spec){0});
        assert_stream(ds, ids, N);
        assert_ok(&ctx, dh_dataset_write_llmc(&ctx, ds, in_dir(f, "copy.bin"), vocabs[v]));
        dh_dataset *copy = must_open(f->path, (dh_dataset_spec){0});
        assert_stream(copy, ids, N);
        dh_dataset_close(copy);
        dh_dataset_close(ds);
    }
    ids[5000] = 50257;
    assert_fails(&ctx, dh_tokens_write_llmc(&ctx, in_dir(f, "no.bin"), ids, N, 50257), DH_EINVAL,
                 "token");
    assert_false(dh_path_exists(f->path));
    assert_fails(&ctx, dh_tokens_write_llmc(&ctx, in_dir(f, "none/no.bin"), ids, 1, 1 << 20),
                 DH_EIO, "none/no.bin");
}

static void llmc_faults(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    int32_t file[256 + 2] = {20240520, 1, 4};
    dh_token_run run;
    assert_ok(&ctx, dh_tokens_parse_llmc(&ctx, file, sizeof file, &run));
    assert_int_equal(run.n, 4);
    for (size_t n = 0; n < sizeof file; n++) { /* every truncation */
        assert_int_equal(dh_tokens_parse_llmc(&ctx, file, n, &run), DH_EFORMAT);
        dh_ctx_reset(&ctx);
    }
    file[2] = 5;
    assert_fails(&ctx, dh_tokens_parse_llmc(&ctx, file, sizeof file, &run), DH_EFORMAT,
                 "counts 5 tokens");
    file[2] = -1;
    assert_fails(&ctx, dh_tokens_parse_llmc(&ctx, file, sizeof file, &run), DH_EFORMAT,
                 "counts -1 tokens");
    file[1] = 2;
    assert_fails(&ctx, dh_tokens_parse_llmc(&ctx, file, sizeof file, &run), DH_EUNSUPPORTED,
                 "version 2, want 1");
    file[0] = 20240521;
    dh_dataset *ds;
    const char *path = write_file(f, "bad.bin", file, sizeof file);
    assert_fails(&ctx, open_one(&ctx, path, (dh_dataset_spec){0}, &ds), DH_EFORMAT, "bad.bin");
    file[0] = 20240520;
    file[1] = 1;
    file[2] = 0;
    path = write_file(f, "empty.bin", file, 1024);
    assert_fails(&ctx, open_one(&ctx, path, (dh_dataset_spec){0}, &ds), DH_EFORMAT, "no tokens");
}

static void ids_outside_the_vocabulary(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    static const uint16_t ids[] = {1, 2, 3, 300, 5, 6, 7, 8};
    const char *path = write_file(f, "t.u16", ids, sizeof ids);
    dh_dataset_spec spec = {
        .vocab_size = 300, .order = DH_ORDER_SEQUENTIAL, .part = DH_PART_VAL, .val_fraction = 0.75};
    dh_dataset *ds = must_open(path, spec); /* tokens 2..7 of the file */
    int32_t s[3];
    assert_fails(&ctx, dh_dataset_sample(&ctx, ds, 0, 2, s), DH_EFORMAT,
                 "t.u16: token 3 is id 300, outside the vocabulary of 300");
    assert_ok(&ctx, dh_dataset_sample(&ctx, ds, 1, 2, s));
    dh_dataset_close(ds);
    spec.vocab_size = 301;
    ds = must_open(path, spec);
    assert_ok(&ctx, dh_dataset_sample(&ctx, ds, 0, 2, s));
    dh_dataset_close(ds);
}

/* ---- Megatron ------------------------------------------------------------------------------- */

typedef struct megatron_image {
    unsigned char idx[512];
    size_t n;
} megatron_image;

static void put(megatron_image *m, const void *data, size_t n)
{
    memcpy(m->idx + m->n, data, n);
    m->n += n;
}

/* An index of uint16 sequences with these lengths and byte offsets; marks: documents' first. */
static megatron_image marked_index(const int32_t *lengths, const int64_t *pointers, uint64_t n,
                                   const int64_t *marks, uint64_t n_marks)
{
    megatron_image m = {.n = 0};
    uint64_t version = 1;
    put(&m, "MMIDIDX\0", 9);
    put(&m, &version, 8);
    put(&m, (const unsigned char[]){8}, 1);
    put(&m, &n, 8);
    put(&m, &n_marks, 8);
    put(&m, lengths, n * sizeof *lengths);
    put(&m, pointers, n * sizeof *pointers);
    put(&m, marks, n_marks * sizeof *marks);
    return m;
}

/* All one document. */
static megatron_image megatron_index(const int32_t *lengths, const int64_t *pointers, uint64_t n)
{
    return marked_index(lengths, pointers, n, (const int64_t[]){0, (int64_t)n}, 2);
}

static void megatron_files(void **state)
{
    fixture *f = *state;
    static const uint16_t tokens[] = {10, 11, 12, 13, 14, 15};
    /* In another order than they lie, one empty. */
    megatron_image m =
        megatron_index((const int32_t[]){2, 0, 1, 3}, (const int64_t[]){6, 0, 10, 0}, 4);
    write_file(f, "m.bin", tokens, sizeof tokens);
    write_file(f, "m.idx", m.idx, m.n);
    static const char *const names[] = {"m.bin", "m.idx", "m"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        dh_dataset *ds = must_open(in_dir(f, names[i]), (dh_dataset_spec){0});
        assert_stream(ds, (const int32_t[]){13, 14, 15, 10, 11, 12}, 6);
        dh_dataset_close(ds);
    }
    dh_dataset *val =
        must_open(in_dir(f, "m"), (dh_dataset_spec){.part = DH_PART_VAL, .val_fraction = 0.5});
    assert_stream(val, (const int32_t[]){10, 11, 12}, 3);
    dh_dataset_close(val);
}

/* How many documents a dataset has in rows of 8, and the tokens of the longest. */
static void count_one(void *user, int64_t n, int64_t n_targets)
{
    int64_t *found = user;
    found[0]++;
    found[1] = DH_MAX(found[1], n + 1);
    assert_int_equal(n, n_targets);
}

static void assert_documents(const char *path, dh_dataset_spec spec, int32_t eos, int64_t n,
                             int64_t longest)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t found[2] = {0};
    spec.documents = true;
    dh_dataset *ds = must_open(path, spec);
    assert_ok(&ctx, dh_dataset_pack(&ctx, ds, 8, eos));
    for (int64_t i = 0; i < dh_dataset_windows(ds, 8); i++)
        assert_ok(&ctx, dh_dataset_lengths(&ctx, ds, i, count_one, found));
    assert_true(found[0] == n && found[1] == longest);
    dh_dataset_close(ds);
}

/* The index says where documents end, whatever their tokens are: sequences of 2, 2, 3 and 4 tokens
 * in documents of two, none, one and one. Where it marks one document, the tokens say it. */
static void an_index_marks_documents(void **state)
{
    fixture *f = *state;
    static const uint16_t tokens[] = {5, 9, 5, 5, 5, 5, 5, 5, 5, 9, 5};
    static const int32_t lengths[] = {2, 2, 3, 4};
    static const int64_t pointers[] = {0, 4, 8, 14}, marks[] = {0, 2, 2, 3, 4};
    const dh_dataset_spec all = {0}, train = {.part = DH_PART_TRAIN, .val_fraction = 0.5};
    megatron_image m = marked_index(lengths, pointers, 4, marks, DH_COUNTOF(marks));
    write_file(f, "marked.bin", tokens, sizeof tokens);
    write_file(f, "marked.idx", m.idx, m.n);
    assert_documents(in_dir(f, "marked"), all, -1, 3, 4);
    assert_documents(in_dir(f, "marked"), all, 9, 3, 4);
    assert_documents(in_dir(f, "marked"), train, 9, 1, 4); /* 5 tokens: one of the second's */
    /* Sequences that lie the other way round, so that the first document is in two places. */
    m = marked_index(lengths, (const int64_t[]){18, 14, 8, 0}, 4, marks, DH_COUNTOF(marks));
    write_file(f, "marked.idx", m.idx, m.n);
    assert_documents(in_dir(f, "marked"), all, 9, 3, 4);
    m = megatron_index(lengths, pointers, 4);
    write_file(f, "marked.idx", m.idx, m.n);
    assert_documents(in_dir(f, "marked"), all, 9, 2, 8); /* the last token is one alone */
}

/* Ready tokens in which nothing ends were made by another tokenizer. */
static void tokens_without_ends_are_no_documents(void **state)
{
    enum { N = (1 << 22) + 1 };
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    uint16_t *tokens = calloc(N, sizeof *tokens);
    dh_dataset *ds;
    assert_non_null(tokens);
    write_file(f, "ends.u16", tokens, N * sizeof *tokens);
    ds = must_open(in_dir(f, "ends.u16"), (dh_dataset_spec){0});
    assert_fails(&ctx, dh_dataset_pack(&ctx, ds, 8, 9), DH_EINVAL,
                 "no end-of-text token (id 9) among its first 4194304 tokens");
    dh_dataset_close(ds);
    dh_ctx_reset(&ctx);
    write_file(f, "ends.u16", tokens, 70000 * sizeof *tokens);
    ds = must_open(in_dir(f, "ends.u16"), (dh_dataset_spec){0});
    assert_fails(&ctx, dh_dataset_pack(&ctx, ds, 8, 9), DH_EINVAL, "among its first 70000 tokens");
    dh_dataset_close(ds);
    dh_ctx_reset(&ctx);
    /* What fits a row is one document, whoever wrote it. */
    write_file(f, "ends.u16", tokens, 8 * sizeof *tokens);
    ds = must_open(in_dir(f, "ends.u16"), (dh_dataset_spec){0});
    assert_ok(&ctx, dh_dataset_pack(&ctx, ds, 8, 9));
    dh_dataset_close(ds);
    tokens[1000] = 9;
    write_file(f, "ends.u16", tokens, N * sizeof *tokens);
    ds = must_open(in_dir(f, "ends.u16"), (dh_dataset_spec){0});
    assert_ok(&ctx, dh_dataset_pack(&ctx, ds, 8, 9));
    dh_dataset_close(ds);
    free(tokens);
}

static void megatron_faults(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    uint16_t bin[6] = {0};
    dh_token_runs runs = {0};
    dh_token_ends ends = {0};
    const int32_t lengths[] = {3, 3};
    const int64_t pointers[] = {0, 6};
    megatron_image good = megatron_index(lengths, pointers, 2), m;
    assert_ok(&ctx,
              dh_tokens_parse_megatron(&ctx, good.idx, good.n, bin, sizeof bin, &runs, &ends));
    assert_int_equal(runs.n, 1); /* they lie one after the other */
    assert_true(ends.n == 1 && ends.at[0] == 6);
    dh_vec_fini(&runs);
    dh_vec_fini(&ends);
    for (size_t n = 0; n < good.n; n++) {
        assert_int_equal(dh_tokens_parse_megatron(&ctx, good.idx, n, bin, sizeof bin, &runs, &ends),
                         DH_EFORMAT);
        dh_ctx_reset(&ctx);
    }
    for (size_t n = 0; n < sizeof bin; n++)
        assert_fails(&ctx, dh_tokens_parse_megatron(&ctx, good.idx, good.n, bin, n, &runs, &ends),
                     DH_EFORMAT, "outside the");
    static const struct {
        size_t offset;
        unsigned char value;
        dh_status status;
        const char *part;
    } faults[] = {
        {0, 'm', DH_EFORMAT, "MMIDIDX"},
        {9, 2, DH_EUNSUPPORTED, "version 2"},
        {17, 6, DH_EUNSUPPORTED, "token type 6"},
        {25, 0x80, DH_EFORMAT, "counts"},      /* sequences, highest byte */
        {33, 0x80, DH_EFORMAT, "counts"},      /* document marks */
        {34 + 3, 0x80, DH_EFORMAT, "outside"}, /* negative length */
        {34 + 8 + 7, 0xFF, DH_EFORMAT, "outside"},
        {34 + 8 + 8, 7, DH_EFORMAT, "outside"},
        {34 + 24, 3, DH_EFORMAT, "document mark 0"},
        {34 + 32, 3, DH_EFORMAT, "document mark 1"},
        {34 + 24, 1, DH_EFORMAT, "from sequence 1 to 2"},
        {34 + 32, 1, DH_EFORMAT, "from sequence 0 to 1"},
    };
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        m = good;
        m.idx[faults[i].offset] = faults[i].value;
        assert_fails(&ctx,
                     dh_tokens_parse_megatron(&ctx, m.idx, m.n, bin, sizeof bin, &runs, &ends),
                     faults[i].status, faults[i].part);
    }
    dh_dataset *ds;
    write_file(f, "m.idx", good.idx, good.n);
    assert_fails(&ctx, open_one(&ctx, in_dir(f, "m.idx"), (dh_dataset_spec){0}, &ds), DH_EIO,
                 "m.bin");
}

/* Any bytes at all are refused or read, never worse. */
static void random_headers(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t rng = test_seed("random_headers");
    uint16_t bin[6] = {0};
    megatron_image good = megatron_index((const int32_t[]){3, 3}, (const int64_t[]){0, 6}, 2);
    for (int round = 0; round < 20000; round++) {
        megatron_image m = good;
        for (uint64_t k = test_rand(&rng) % 4; k > 0; k--)
            m.idx[test_rand(&rng) % m.n] = (unsigned char)test_rand(&rng);
        dh_token_runs runs = {0};
        dh_token_ends ends = {0};
        if (dh_tokens_parse_megatron(&ctx, m.idx, m.n, bin, sizeof bin, &runs, &ends) == DH_OK) {
            for (size_t i = 0; i < runs.n; i++)
                assert_true(runs.at[i].at >= (unsigned char *)bin && runs.at[i].n >= 0 &&
                            runs.at[i].at <= (unsigned char *)bin + sizeof bin);
        }
        for (size_t i = 0; i < ends.n; i++) assert_true(ends.at[i] > (i ? ends.at[i - 1] : 0));
        dh_vec_fini(&runs);
        dh_vec_fini(&ends);
        dh_ctx_reset(&ctx);
    }
}

/* ---- other faults --------------------------------------------------------------------------- */

static void plain_token_files(void **state)
{
    dh_dataset *ds = must_open(STORIES "tok512.u16", (dh_dataset_spec){.vocab_size = 512});
    assert_int_equal(dh_dataset_tokens(ds), 1031693);
    dh_ctx ctx = DH_CTX_INIT;
    int32_t *all = calloc(1031693, sizeof *all);
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, 1031693, all));
    assert_int_equal(all[0], 1);
    free(all);
    dh_dataset_close(ds);
}

/* nanoGPT's train.bin, which nothing in it names; int32 tokens whose index is lost are not it. */
static void bare_token_files(void **state)
{
    enum { N = 3000 };
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    static uint16_t ids[N];
    static int32_t wide[N], read[N];
    for (int i = 0; i < N; i++) wide[i] = ids[i] = (uint16_t)(i * 7919 % 50257);
    const char *path = write_file(f, "train.bin", ids, sizeof ids);
    dh_dataset *ds = must_open(path, (dh_dataset_spec){.vocab_size = 50257});
    assert_int_equal(dh_dataset_tokens(ds), N);
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, 0, N, read));
    assert_memory_equal(read, wide, sizeof wide);
    dh_dataset_close(ds);
    path = write_file(f, "lost.bin", wide, sizeof wide);
    assert_fails(&ctx, open_one(&ctx, path, (dh_dataset_spec){0}, &ds), DH_EFORMAT,
                 "wider than uint16");
    path = write_file(f, "odd.bin", "abc", 3);
    assert_fails(&ctx, open_one(&ctx, path, (dh_dataset_spec){0}, &ds), DH_EFORMAT, "has 3");
}

static void faults_of_files_and_specs(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds;
    dh_dataset_spec spec = {.tokenizer = f->bytes};
    assert_fails(&ctx, open_one(&ctx, in_dir(f, "none.txt"), spec, &ds), DH_EIO, "none.txt");
    assert_fails(&ctx, open_one(&ctx, "/dev/null", spec, &ds), DH_EINVAL, "regular file");
    static const char *const names[] = {"e.txt", "e.jsonl", "e.bin", "e.u16"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        assert_fails(&ctx, open_one(&ctx, write_file(f, names[i], "", 0), spec, &ds), DH_EFORMAT,
                     "empty");
    assert_fails(&ctx, open_one(&ctx, write_file(f, "odd.u16", "abc", 3), spec, &ds), DH_EFORMAT,
                 "has 3");
    const char *path = write_file(f, "t.txt", "abc", 3);
    spec.part = DH_PART_VAL;
    assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EINVAL, "val_fraction is 0");
    static const double fractions[] = {-0.1, 1, 1.5, NAN};
    for (size_t i = 0; i < DH_COUNTOF(fractions); i++) {
        spec.val_fraction = fractions[i];
        assert_fails(&ctx, open_one(&ctx, path, spec, &ds), DH_EINVAL, "not in [0, 1)");
    }
    assert_fails(&ctx, dh_dataset_open(&ctx, &(dh_dataset_spec){0}, &ds), DH_EINVAL,
                 "at least one file");
    spec = (dh_dataset_spec){.tokenizer = f->bytes, .part = DH_PART_VAL, .val_fraction = 0.01};
    ds = must_open(path, spec); /* the part has one token: no window */
    assert_fails(&ctx, dh_dataset_check(&ctx, ds, 1), DH_EINVAL, "1 tokens");
    dh_dataset_close(ds);
    dh_tokenizer *chars;
    path = write_file(f, "bad.txt", "ab\xFF", 3);
    assert_fails(&ctx, dh_dataset_chars(&ctx, &path, 1, NULL, &chars), DH_EINVAL, "byte offset 2");
}

/* ---- what tells streams apart --------------------------------------------------------------- */

static uint64_t hash_of(const dh_dataset *ds)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t hash;
    assert_ok(&ctx, dh_dataset_hash(&ctx, ds, &hash));
    return hash;
}

static uint64_t hash_of_files(const char *const *paths, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_dataset_spec spec = {.files = paths, .n_files = n};
    dh_dataset *ds;
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
    const uint64_t hash = hash_of(ds);
    dh_dataset_close(ds);
    return hash;
}

/* A file that is longer than what one thread takes, mostly zeros. */
static const char *make_long(fixture *f, const char *name, int64_t n)
{
    const char *path = in_dir(f, name);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, n * 2), 0);
    close(fd);
    return path;
}

static void put_token(const char *path, int64_t at, uint16_t token)
{
    const int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, &token, sizeof token, at * 2), 2);
    close(fd);
}

static void every_token_is_hashed(void **state)
{
    enum { GROUP = 1 << 24, N = GROUP + 100000, FIRST = 5000000 };
    fixture *f = *state;
    char path[320], a[320], b[320];
    snprintf(path, sizeof path, "%s", make_long(f, "long.u16", N));
    const char *whole = path;
    const uint64_t zeros = hash_of_files(&whole, 1);
    /* The stretches of a sample left these out. */
    const int64_t places[] = {0, 16384, 16390, 1000003, 9999999, GROUP - 1, GROUP, N - 1};
    for (size_t i = 0; i < (test_is_thin() ? 4 : DH_COUNTOF(places)); i++) {
        const size_t k = test_is_thin() ? 2 * i + 1 : i;
        put_token(path, places[k], 7);
        assert_true(hash_of_files(&whole, 1) != zeros);
        put_token(path, places[k], 0);
    }
    assert_true(hash_of_files(&whole, 1) == zeros);
    /* In which files they lie does not matter. */
    snprintf(a, sizeof a, "%s", make_long(f, "a.u16", FIRST));
    snprintf(b, sizeof b, "%s", make_long(f, "b.u16", N - FIRST));
    const char *both[] = {a, b};
    put_token(path, FIRST, 9);
    put_token(b, 0, 9);
    assert_true(hash_of_files(&whole, 1) == hash_of_files(both, 2));
    /* Checkpoints of old have a sample's. */
    put_token(path, 3, 5);
    put_token(path, N - 1, 8);
    dh_dataset *ds = must_open(path, (dh_dataset_spec){0});
    assert_true(dh_dataset_sample_hash(ds) == UINT64_C(0xfa61ef4219630749));
    dh_dataset_close(ds);
}

/* Checkpoints have it: what it was must not change. */
static void hashes_stay(void **state)
{
    static const char lines[] = "To be, or not to be, that is the question:\n";
    fixture *f = *state;
    char *text = malloc(43 * 1000 + 1);
    for (int i = 0; i < 1000; i++) memcpy(text + 43 * i, lines, 43);
    dh_dataset *ds = must_open(write_file(f, "t.txt", text, 43 * 1000),
                               (dh_dataset_spec){.tokenizer = f->bytes});
    const uint64_t hash = hash_of(ds);
    if (hash != UINT64_C(0x0fe851fa36377b03)) fail_msg("%016llx", (unsigned long long)hash);
    assert_true(dh_dataset_sample_hash(ds) == 0);
    dh_dataset_close(ds);
    free(text);
}

/* ---- files that change while they are open -------------------------------------------------- */

static void files_that_change(void **state)
{
    enum { N = 100000 };
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT, cut = DH_CTX_INIT, other = DH_CTX_INIT, replaced = DH_CTX_INIT;
    char path[320];
    int32_t ids[16];
    uint64_t hash;
    snprintf(path, sizeof path, "%s", make_long(f, "tokens.u16", N));
    dh_dataset *ds = must_open(path, (dh_dataset_spec){0});
    assert_ok(&ctx, dh_dataset_read(&ctx, ds, N - 16, 16, ids));
    assert_ok(&ctx, dh_dataset_check_same(&ctx, ds));
    /* Another file of the same name is not the one that is read. */
    write_file(f, "tokens.u16", "other", 5);
    assert_ok(&ctx, dh_dataset_check_same(&ctx, ds));
    assert_ok(&replaced, dh_dataset_read(&replaced, ds, N - 16, 16, ids));
    dh_dataset_close(ds);
    ds = must_open(make_long(f, "tokens.u16", N), (dh_dataset_spec){0});
    put_token(path, 5, 1);
    assert_fails(&other, dh_dataset_hash(&other, ds, &hash), DH_EIO, "another program wrote to");
    /* Between the new end and the end of its page the kernel shows zeros. */
    dh_ctx zeros = DH_CTX_INIT;
    assert_int_equal(truncate(path, 2 * N - 2), 0);
    assert_fails(&zeros, dh_dataset_read(&zeros, ds, N - 16, 16, ids), DH_EIO, "was cut short");
    assert_int_equal(truncate(path, N), 0);
    /* The kernel would answer these with SIGBUS. */
    assert_fails(&cut, dh_dataset_read(&cut, ds, N - 16, 16, ids), DH_EIO, "was cut short");
    dh_ctx_reset(&cut);
    assert_fails(&cut, dh_dataset_hash(&cut, ds, &hash), DH_EIO, "was cut short");
    dh_dataset_close(ds);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nanogpt_splits),
        TEST(text_is_cut_between_code_points),
        TEST(json_lines),
        TEST(json_lines_are_cut_between_documents),
        TEST(several_files_are_one_stream),
        TEST(the_cache_is_used_and_renewed),
        TEST(the_cache_holds_what_encoding_gives),
        TEST(tokenizing_is_stopped),
        TEST(a_failed_encoding_leaves_nothing),
        TEST(shuffle_is_a_permutation_each_epoch),
        TEST(shuffle_has_no_favourites),
        TEST(random_reaches_every_offset),
        TEST(too_short_for_a_window),
        TEST(llmc_files_of_karpathy),
        TEST(llmc_round_trip),
        TEST(llmc_faults),
        TEST(ids_outside_the_vocabulary),
        TEST(megatron_files),
        TEST(an_index_marks_documents),
        TEST(tokens_without_ends_are_no_documents),
        TEST(megatron_faults),
        TEST(random_headers),
        TEST(plain_token_files),
        TEST(bare_token_files),
        TEST(faults_of_files_and_specs),
        TEST(every_token_is_hashed),
        TEST(hashes_stay),
        TEST(files_that_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
