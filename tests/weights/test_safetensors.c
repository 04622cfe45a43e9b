#include "dh_test.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include "weights/safetensors.h"

#define GPT2 "tests/data/weights/tiny-random-gpt2/model.safetensors"
#define LLAMA "tests/data/weights/tiny-random-llama/model-fp16.safetensors"

/* A file image from header text and data bytes (0, 1, 2, ...). */
static unsigned char *image(const char *header, size_t data_bytes, size_t *n_bytes)
{
    uint64_t n = strlen(header);
    unsigned char *at = malloc(8 + n + data_bytes);
    assert_non_null(at);
    memcpy(at, &n, 8);
    memcpy(at + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) at[8 + n + i] = (unsigned char)i;
    *n_bytes = 8 + n + data_bytes;
    return at;
}

static void reads_published_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_safetensors *st;
    assert_ok(&ctx, dh_st_open(&ctx, GPT2, &st));
    assert_int_equal(dh_st_n_tensors(st), 64);
    assert_string_equal(dh_st_metadata_get(st, "format"), "pt");
    assert_null(dh_st_metadata_get(st, "none"));
    const dh_st_tensor *t = dh_st_find(st, "h.3.mlp.c_fc.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DH_ST_F32);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], 32);
    assert_int_equal(t->shape[1], 128);
    assert_int_equal(t->n_bytes, 32 * 128 * 4);
    assert_null(dh_st_find(st, "h.3.mlp.c_fc.weigh"));
    size_t at = 0;
    for (size_t i = 0; i < dh_st_n_tensors(st); i++) {
        assert_int_equal(dh_st_at(st, i)->offset, at);
        assert_ptr_equal(dh_st_find(st, dh_st_at(st, i)->name), dh_st_at(st, i));
        at += dh_st_at(st, i)->n_bytes;
    }
    dh_st_close(st);
    assert_ok(&ctx, dh_st_open(&ctx, LLAMA, &st));
    assert_int_equal(dh_st_find(st, "lm_head.weight")->dtype, DH_ST_F16);
    dh_st_close(st);
    dh_st_close(NULL);
    assert_fails(&ctx, dh_st_open(&ctx, "tests/data/none.safetensors", &st), DH_EIO, "none.safe");
}

static void reads_small_cases(void **state)
{
    static const char *const good[] = {
        "{}",
        "{\"__metadata__\":{}}  ",
        "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[0,0]}}",
        "{\"e\":{\"dtype\":\"I8\",\"shape\":[9223372036854775807,8,0],\"data_offsets\":[0,0]}}",
        "{ \"s\" : { \"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}",
        "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
        "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]},"
        "\"a\":{\"dtype\":\"U16\",\"shape\":[2,1],\"data_offsets\":[0,4]}}",
    };
    static const size_t data_bytes[] = {0, 0, 0, 0, 8, 7};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(good); i++) {
        size_t n;
        unsigned char *bytes = image(good[i], data_bytes[i], &n);
        dh_safetensors *st;
        assert_ok(&ctx, dh_st_parse(&ctx, bytes, n, "case", &st));
        if (i == 5) {
            assert_string_equal(dh_st_at(st, 0)->name, "a");
            assert_int_equal(dh_st_find(st, "b")->data[2], 6);
        }
        dh_st_close(st);
        free(bytes);
    }
}

static void refuses_malformed_headers(void **state)
{
#define ENTRY(name, dtype, shape, offsets)                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *part;
    } bad[] = {
        {"", "JSON"},
        {"[]", "must be a JSON object"},
        {"{\"a\":1}", "tensor \"a\": its entry"},
        {"{} x", "JSON"},
        {"{" ENTRY("a", "F32", "[4]", "[0,16]") "," ENTRY("a", "F32", "[4]", "[0,16]") "}",
         "duplicate"},
        {"{" ENTRY("a", "F33", "[4]", "[0,16]") "}", "unknown dtype \"F33\""},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "\"dtype\" must be"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "\"shape\" must be"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", "\"data_offsets\" must be"},
        {"{" ENTRY("a", "F32", "[-4]", "[0,16]") "}", "shape[0]"},
        {"{" ENTRY("a", "F32", "[2,2.0]", "[0,16]") "}", "shape[1]"},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]") "}", "9 dimensions"},
        {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,16]") "}", "overflows"},
        {"{" ENTRY("a", "F64", "[2305843009213693952]", "[0,16]") "}", "overflows"},
        {"{" ENTRY("a", "F32", "[5]", "[0,20]") "}", "outside the 16 bytes"},
        {"{" ENTRY("a", "F32", "[4]", "[0,15]") "}", "hold 15 bytes, but F32 [4] takes 16"},
        {"{" ENTRY("a", "F32", "[4]", "[16,0]") "}", "outside"},
        {"{" ENTRY("a", "F32", "[4]", "[-16,0]") "}", "outside"},
        {"{" ENTRY("a", "F32", "[4]", "[0,16,16]") "}", "two whole numbers"},
        {"{" ENTRY("a", "F32", "[3]", "[0,12]") "}", "take 12 bytes, but the file has 16"},
        {"{" ENTRY("a", "F32", "[3]", "[4,16]") "}", "bytes 0 to 4 before it"},
        {"{" ENTRY("a", "F32", "[3]", "[0,12]") "," ENTRY("b", "F32", "[2]", "[8,16]") "}",
         "\"a\" and \"b\" overlap"},
        {"{\"__metadata__\":[],\"a\":1}", "\"__metadata__\" must be"},
        {"{\"__metadata__\":{\"k\":1}}", "\"k\" must be a string"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(bad); i++) {
        size_t n;
        unsigned char *bytes = image(bad[i].header, 16, &n);
        dh_safetensors *st;
        assert_fails(&ctx, dh_st_parse(&ctx, bytes, n, "case", &st), DH_EFORMAT, bad[i].part);
        free(bytes);
    }
    uint64_t claim = 100;
    dh_safetensors *st;
    assert_fails(&ctx, dh_st_parse(&ctx, &claim, 8, "case", &st), DH_EFORMAT, "only 0 follow");
    assert_fails(&ctx, dh_st_parse(&ctx, &claim, 7, "case", &st), DH_EFORMAT, "too short");
    claim = UINT64_MAX;
    assert_fails(&ctx, dh_st_parse(&ctx, &claim, 8, "case", &st), DH_EFORMAT, "more than the");
}

/* Any corruption of a header is refused or still describes the data exactly. */
static void survives_corruption(void **state)
{
    uint64_t seed = test_seed("survives_corruption");
    dh_ctx ctx = DH_CTX_INIT;
    char *original;
    size_t n_bytes;
    assert_ok(&ctx, dh_file_read(&ctx, GPT2, 1 << 20, &original, &n_bytes));
    unsigned char *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    int n_refused = 0;
    for (int round = 0; round < 400; round++) {
        memcpy(bytes, original, n_bytes);
        size_t n = n_bytes;
        for (uint64_t k = test_rand(&seed) % 4; k != UINT64_MAX; k--)
            bytes[test_rand(&seed) % 5224] = (unsigned char)test_rand(&seed);
        if (round % 4 == 0) n = test_rand(&seed) % n_bytes;
        dh_safetensors *st;
        dh_status code = dh_st_parse(&ctx, bytes, n, "fuzz", &st);
        if (code != DH_OK) {
            assert_int_equal(code, DH_EFORMAT);
            dh_ctx_reset(&ctx);
            n_refused++;
            continue;
        }
        for (size_t i = 0; i < dh_st_n_tensors(st); i++) {
            const dh_st_tensor *t = dh_st_at(st, i);
            assert_true(t->data >= bytes && t->data + t->n_bytes <= bytes + n);
        }
        dh_st_close(st);
    }
    assert_true(n_refused > 200);
    free(bytes);
    free(original);
}

/* Declare two matrices and a byte vector between them. */
static void declare_three(dh_ctx *ctx, dh_st_writer *w)
{
    assert_ok(ctx, dh_st_writer_metadata(ctx, w, "format", "pt"));
    assert_ok(ctx, dh_st_writer_declare(ctx, w, "half", DH_ST_BF16, 2, (int64_t[]){6, 5}));
    assert_ok(ctx, dh_st_writer_declare(ctx, w, "bytes", DH_ST_U8, 1, (int64_t[]){3}));
    assert_ok(ctx, dh_st_writer_declare(ctx, w, "full", DH_ST_F32, 2, (int64_t[]){6, 5}));
}

static void check_three(dh_ctx *ctx, const char *path, const float *full)
{
    dh_safetensors *st;
    assert_ok(ctx, dh_st_open(ctx, path, &st));
    assert_int_equal(dh_st_n_tensors(st), 3);
    assert_string_equal(dh_st_at(st, 0)->name, "full"); /* widest first */
    assert_string_equal(dh_st_metadata_get(st, "format"), "pt");
    assert_int_equal((uintptr_t)dh_st_at(st, 0)->data % 64, 0);
    assert_memory_equal(dh_st_find(st, "full")->data, full, 30 * sizeof *full);
    for (size_t i = 0; i < 30; i++) {
        dh_bf16 half;
        memcpy(&half, dh_st_find(st, "half")->data + 2 * i, 2);
        assert_int_equal(half, dh_f32_to_bf16(full[i]));
    }
    assert_memory_equal(dh_st_find(st, "bytes")->data, "abc", 3);
    dh_st_close(st);
}

static void writes_regions(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = 5;
    float full[30];
    for (int i = 0; i < 30; i++) full[i] = test_randf(&seed);
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    dh_st_writer *w;
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    declare_three(&ctx, w);
    assert_fails(&ctx, dh_st_writer_put(&ctx, w, "bytes", 0, "abc", 3), DH_EINVAL, "no open file");
    assert_ok(&ctx, dh_st_writer_start(&ctx, w, path, DH_ST_CREATE));
    static const char *const names[] = {"full", "half"};
    for (int k = 0; k < 2; k++) { /* left columns, then the right ones in two halves */
        assert_ok(&ctx, dh_st_writer_put_f32(&ctx, w, names[k], 0, 6, 0, 2, full, 5));
        assert_ok(&ctx, dh_st_writer_put_f32(&ctx, w, names[k], 3, 3, 2, 3, full + 17, 5));
        assert_ok(&ctx, dh_st_writer_put_f32(&ctx, w, names[k], 0, 3, 2, 3, full + 2, 5));
    }
    assert_fails(&ctx, dh_st_writer_finish(&ctx, w), DH_EINVAL, "but its tensors have 183");
    assert_fails(&ctx, dh_st_writer_put(&ctx, w, "bytes", 1, "abc", 3), DH_EINVAL, "it has 3");
    assert_fails(&ctx, dh_st_writer_put_f32(&ctx, w, "full", 0, 7, 0, 5, full, 5), DH_EINVAL,
                 "do not fit 6 x 5");
    assert_fails(&ctx, dh_st_writer_put_f32(&ctx, w, "bytes", 0, 1, 0, 3, full, 3), DH_EUNSUPPORTED,
                 "U8");
    assert_fails(&ctx, dh_st_writer_put(&ctx, w, "none", 0, "abc", 3), DH_EMISSING, "none");
    assert_ok(&ctx, dh_st_writer_put(&ctx, w, "bytes", 2, "c", 1));
    assert_ok(&ctx, dh_st_writer_put(&ctx, w, "bytes", 0, "ab", 2));
    assert_ok(&ctx, dh_st_writer_finish(&ctx, w));
    dh_st_writer_destroy(w);
    check_three(&ctx, path, full);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void refuses_bad_declarations(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_st_writer *w;
    int64_t huge[2] = {INT64_MAX, 2}, eight[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    assert_fails(&ctx, dh_st_writer_declare(&ctx, w, "a", DH_ST_F32, 2, huge), DH_EINVAL, "\"a\"");
    assert_fails(&ctx, dh_st_writer_declare(&ctx, w, "a", DH_ST_F32, 9, eight), DH_EINVAL, "9 dim");
    assert_fails(&ctx, dh_st_writer_declare(&ctx, w, "__metadata__", DH_ST_F32, 1, eight),
                 DH_EINVAL, "cannot name");
    assert_ok(&ctx, dh_st_writer_declare(&ctx, w, "a", DH_ST_F32, 1, eight));
    assert_ok(&ctx, dh_st_writer_declare(&ctx, w, "a", DH_ST_U8, 1, eight));
    assert_fails(&ctx, dh_st_writer_start(&ctx, w, "/nowhere/a", DH_ST_CREATE), DH_EINVAL, "twice");
    dh_st_writer_destroy(w);
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    assert_fails(&ctx, dh_st_writer_start(&ctx, w, "/nowhere/a", DH_ST_CREATE), DH_EIO,
                 "/nowhere/a");
    dh_st_writer_destroy(w);
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    assert_ok(&ctx, dh_st_writer_declare(&ctx, w, "\xff", DH_ST_U8, 1, eight));
    assert_fails(&ctx, dh_st_writer_start(&ctx, w, "/nowhere/a", DH_ST_CREATE), DH_EINVAL, "UTF-8");
    dh_st_writer_destroy(w);
}

static void unfinished_file_goes(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    dh_st_writer *w;
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    declare_three(&ctx, w);
    assert_ok(&ctx, dh_st_writer_start(&ctx, w, path, DH_ST_CREATE));
    assert_true(dh_path_exists(path));
    dh_st_writer_destroy(w);
    assert_false(dh_path_exists(path));
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* One writer process: rows 2r and 2r+1 of both matrices. */
static int put_part(const char *path, int rank, const float *full)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_st_writer *w;
    if (dh_st_writer_create(&ctx, &w) != DH_OK) return 1;
    declare_three(&ctx, w);
    if (dh_st_writer_start(&ctx, w, path, DH_ST_JOIN) != DH_OK) return 1;
    const float *src = full + 10 * rank;
    if (dh_st_writer_put_f32(&ctx, w, "full", 2 * rank, 2, 0, 5, src, 5) != DH_OK ||
        dh_st_writer_put_f32(&ctx, w, "half", 2 * rank, 2, 0, 5, src, 5) != DH_OK ||
        dh_st_writer_finish(&ctx, w) != DH_OK)
        return 1;
    dh_st_writer_destroy(w);
    return 0;
}

static void ranks_share_a_file(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = 6;
    float full[30];
    for (int i = 0; i < 30; i++) full[i] = test_randf(&seed);
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    dh_st_writer *w, *other;
    assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
    declare_three(&ctx, w);
    assert_ok(&ctx, dh_st_writer_start(&ctx, w, path, DH_ST_CREATE_SHARED));
    pid_t pids[3];
    for (int rank = 0; rank < 3; rank++)
        if ((pids[rank] = fork()) == 0) _exit(put_part(path, rank, full));
    assert_ok(&ctx, dh_st_writer_put(&ctx, w, "bytes", 0, "abc", 3));
    for (int rank = 0; rank < 3; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
    }
    assert_ok(&ctx, dh_st_writer_finish(&ctx, w));
    dh_st_writer_destroy(w);
    check_three(&ctx, path, full);
    assert_ok(&ctx, dh_st_writer_create(&ctx, &other));
    assert_ok(&ctx, dh_st_writer_declare(&ctx, other, "x", DH_ST_F32, 1, (int64_t[]){3}));
    assert_fails(&ctx, dh_st_writer_start(&ctx, other, path, DH_ST_JOIN), DH_EINVAL,
                 "must declare the same");
    dh_st_writer_destroy(other);
    assert_true(dh_path_exists(path));
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_published_files),
        cmocka_unit_test(reads_small_cases),
        cmocka_unit_test(refuses_malformed_headers),
        cmocka_unit_test(survives_corruption),
        cmocka_unit_test(writes_regions),
        cmocka_unit_test(refuses_bad_declarations),
        cmocka_unit_test(unfinished_file_goes),
        cmocka_unit_test(ranks_share_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
