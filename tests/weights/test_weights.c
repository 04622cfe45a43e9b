#include "dh_test.h"

#include "weights/weights.h"

#include <sys/stat.h>
#include <unistd.h>

#define DATA "tests/data/weights/"
#define GPT2 DATA "tiny-random-gpt2/model.safetensors"
#define LLAMA DATA "tiny-random-llama"
#define STORIES DATA "stories260K/stories260K.bin"

/* Element i of a tensor, straight from the file's bytes. */
static float element(const dh_st_tensor *t, int64_t i)
{
    float f;
    if (t->dtype == DH_ST_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    assert_int_equal(t->dtype, DH_ST_F16);
    uint16_t half;
    memcpy(&half, t->data + 2 * i, 2);
    return dh_f16_to_f32(half);
}

/* A random region of a matrix or vector, straight and transposed. */
static void check_region(dh_ctx *ctx, const dh_weights *w, const dh_st_tensor *t, uint64_t *seed)
{
    int64_t rows = t->ndim == 2 ? t->shape[0] : 1, cols = t->shape[t->ndim - 1];
    int64_t row0 = (int64_t)(test_rand(seed) % (uint64_t)rows);
    int64_t col0 = (int64_t)(test_rand(seed) % (uint64_t)cols);
    int64_t n_rows = 1 + (int64_t)(test_rand(seed) % (uint64_t)DH_MIN(rows - row0, 150));
    int64_t n_cols = 1 + (int64_t)(test_rand(seed) % (uint64_t)(cols - col0));
    bool transpose = test_rand(seed) % 2;
    int64_t ld = (transpose ? n_rows : n_cols) + (int64_t)(test_rand(seed) % 3);
    size_t n = (size_t)((transpose ? n_cols : n_rows) * ld);
    float *dst = calloc(n, sizeof *dst);
    assert_non_null(dst);
    assert_ok(ctx,
              dh_weights_read(ctx, w, t->name, row0, n_rows, col0, n_cols, transpose, dst, ld));
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t c = 0; c < n_cols; c++) {
            float want = element(t, (row0 + r) * cols + col0 + c);
            float *got = &dst[transpose ? c * ld + r : r * ld + c];
            if (memcmp(got, &want, sizeof want) != 0)
                fail_msg("%s (%lld, %lld): %g, want %g", t->name, (long long)r, (long long)c,
                         (double)*got, (double)want);
            *got = 0;
        }
    for (size_t i = 0; i < n; i++) assert_true(dst[i] == 0); /* the gaps are untouched */
    free(dst);
}

static void regions_equal_direct_reads(void **state)
{
    static const char *const paths[][2] = {{DATA "tiny-random-gpt2", GPT2},
                                           {LLAMA, LLAMA "/model-fp16.safetensors"},
                                           {DATA "tiny-mixtral-seeded/model.safetensors",
                                            DATA "tiny-mixtral-seeded/model.safetensors"}};
    uint64_t seed = test_seed("regions_equal_direct_reads");
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t k = 0; k < DH_COUNTOF(paths); k++) {
        dh_weights *w;
        dh_safetensors *st;
        assert_ok(&ctx, dh_weights_open(&ctx, paths[k][0], &w));
        assert_ok(&ctx, dh_st_open(&ctx, paths[k][1], &st));
        assert_int_equal(dh_weights_n(w), dh_st_n_tensors(st));
        for (size_t i = 0; i < dh_st_n_tensors(st); i++)
            for (int round = 0; round < 3; round++) check_region(&ctx, w, dh_st_at(st, i), &seed);
        size_t at = 0;
        assert_null(dh_weights_next_unread(w, &at));
        dh_st_close(st);
        dh_weights_close(w);
    }
    dh_weights_close(NULL);
}

static void same_model(const dh_model *a, const dh_model *b)
{
    dh_model x = *a, y = *b;
    memset(x.name, 0, sizeof x.name);
    memset(y.name, 0, sizeof y.name);
    char *tx, *ty;
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_model_to_config_json(&ctx, &x, &tx));
    assert_ok(&ctx, dh_model_to_config_json(&ctx, &y, &ty));
    assert_string_equal(tx, ty);
    free(tx);
    free(ty);
}

static void stories260k_opens(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_weights *w;
    assert_ok(&ctx, dh_weights_open(&ctx, STORIES, &w));
    assert_int_equal(dh_weights_n(w), 5 * 9 + 2);
    dh_model model, config;
    assert_ok(&ctx, dh_weights_model(&ctx, w, &model));
    assert_int_equal(model.n_layers, 5);
    assert_int_equal(model.head_dim, 8);
    assert_true(model.tied_head);
    assert_ok(&ctx, dh_model_from_config_file(&ctx, DATA "stories260K", &config));
    same_model(&model, &config);

    static const int64_t down[2] = {64, 172};
    assert_ok(&ctx, dh_weights_expect(&ctx, w, "model.layers.4.mlp.down_proj.weight", 2, down));
    assert_fails(&ctx, dh_weights_expect(&ctx, w, "lm_head.weight", 2, down), DH_EMISSING,
                 "lm_head.weight");

    float embedding[4]; /* the words that follow the header in the file */
    static const uint32_t words[4] = {0xbe96e950, 0x3f0fd864, 0x3e33a1f7, 0x3eae5faa};
    assert_ok(&ctx, dh_weights_read(&ctx, w, "model.embed_tokens.weight", 0, 1, 0, 4, false,
                                    embedding, 4));
    assert_memory_equal(embedding, words, sizeof words);
    dh_weights_close(w);
    assert_ok(&ctx, dh_weights_open(&ctx, DATA "stories260K", &w)); /* the folder's lone file */
    assert_int_equal(dh_weights_n(w), 47);
    dh_weights_close(w);
}

/* HF row r of a head is the file's row 2r, or 2(r - D/2) + 1 in the second half; checked
 * on whole tensors against the bare file. */
static void stories260k_rotary_rows(void **state)
{
    enum { V = 512, C = 64, L = 5, KV = 32, D = 8 };
    dh_ctx ctx = DH_CTX_INIT;
    dh_weights *w;
    dh_map map;
    assert_ok(&ctx, dh_weights_open(&ctx, STORIES, &w));
    assert_ok(&ctx, dh_map_open(&ctx, STORIES, &map));
    const size_t q_at = V * C + L * C, k_at = q_at + L * C * C, v_at = k_at + L * KV * C;
    static float got[C * C];
    assert_ok(&ctx, dh_weights_read(&ctx, w, "model.layers.3.self_attn.k_proj.weight", 0, KV, 0, C,
                                    false, got, C));
    for (size_t r = 0; r < KV; r++) {
        size_t i = r % D, src = r - i + (i < D / 2 ? 2 * i : 2 * (i - D / 2) + 1);
        assert_memory_equal(got + r * C, map.at + 28 + 4 * (k_at + (3 * KV + src) * C), 4 * C);
    }
    assert_ok(&ctx, dh_weights_read(&ctx, w, "model.layers.1.self_attn.q_proj.weight", 9, 2, 0, C,
                                    false, got, C));
    assert_memory_equal(got, map.at + 28 + 4 * (q_at + (64 + 10) * C), 4 * C);
    assert_memory_equal(got + C, map.at + 28 + 4 * (q_at + (64 + 12) * C), 4 * C);
    assert_ok(&ctx, dh_weights_read(&ctx, w, "model.layers.1.self_attn.v_proj.weight", 0, KV, 0, C,
                                    false, got, C));
    assert_memory_equal(got, map.at + 28 + 4 * (v_at + KV * C), 4 * KV * C);
    dh_map_close(&map);
    dh_weights_close(w);
}

static void architecture_from_config(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_weights *w;
    dh_model m;
    assert_ok(&ctx, dh_weights_open(&ctx, DATA "tiny-mixtral-seeded/model.safetensors", &w));
    assert_ok(&ctx, dh_weights_model(&ctx, w, &m));
    assert_int_equal(m.family, DH_FAMILY_MIXTRAL);
    assert_int_equal(m.n_experts, 8);
    dh_weights_close(w);
    assert_ok(&ctx, dh_weights_open(&ctx, "tests/data/oracles/cs336/cs336.safetensors", &w));
    assert_fails(&ctx, dh_weights_model(&ctx, w, &m), DH_EMISSING, "config.json");
    dh_weights_close(w);
}

static void wrong_requests(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_weights *w;
    float x[8];
    assert_ok(&ctx, dh_weights_open(&ctx, GPT2, &w));
    assert_fails(&ctx, dh_weights_read(&ctx, w, "h.0.ln_3.weight", 0, 1, 0, 1, false, x, 1),
                 DH_EMISSING, "nearest is \"h.0.ln_1.weight\"");
    int64_t right[2] = {32, 96}, wrong[2] = {96, 32};
    assert_ok(&ctx, dh_weights_expect(&ctx, w, "h.1.attn.c_attn.weight", 2, right));
    assert_fails(&ctx, dh_weights_expect(&ctx, w, "h.1.attn.c_attn.weight", 2, wrong), DH_EINVAL,
                 "has shape [32, 96], the model needs [96, 32]");
    assert_fails(&ctx, dh_weights_expect(&ctx, w, "h.9.attn.c_attn.weight", 2, right), DH_EMISSING,
                 "h.9.attn");
    assert_fails(&ctx, dh_weights_read(&ctx, w, "wte.weight", 999, 2, 0, 1, false, x, 1), DH_EINVAL,
                 "[1000, 32]");
    assert_fails(&ctx, dh_weights_read(&ctx, w, "ln_f.bias", 1, 1, 0, 1, false, x, 1), DH_EINVAL,
                 "outside");
    assert_fails(&ctx, dh_weights_read(&ctx, w, "wte.weight", 0, 2, 0, 4, false, x, 3), DH_EINVAL,
                 "stride of 3");
    size_t at = 0, n = 0;
    while (dh_weights_next_unread(w, &at)) n++;
    assert_int_equal(n, 64); /* refused reads do not count */
    dh_weights_close(w);
    assert_ok(&ctx, dh_weights_open(&ctx, "tests/data/oracles/torch/gpt2_tiny.safetensors", &w));
    assert_fails(&ctx, dh_weights_read(&ctx, w, "tokens", 0, 1, 0, 1, false, x, 1), DH_EUNSUPPORTED,
                 "\"tokens\" is I32");
    assert_ok(&ctx, dh_weights_read(&ctx, w, "loss_ce", 0, 1, 0, 1, false, x, 1)); /* F64 */
    assert_true(x[0] > 6.5f && x[0] < 7.5f);
    dh_weights_close(w);
    assert_fails(&ctx, dh_weights_open(&ctx, DATA "none", &w), DH_EIO, "no file or folder");
    assert_fails(&ctx, dh_weights_open(&ctx, "tests/data/oracles/torch", &w), DH_EINVAL,
                 "name one of them");
    assert_fails(&ctx, dh_weights_open(&ctx, "tests/data/oracles", &w), DH_EMISSING,
                 "no model.safetensors");
    assert_fails(&ctx, dh_weights_open(&ctx, LLAMA "/config.json", &w), DH_EINVAL, "weights are");
}

/* Write a file of n float32 tensors [2, 3], tensor k holding 10k, 10k + 1, ... */
static void write_small(dh_ctx *ctx, const char *path, const char *const *names, size_t n)
{
    dh_st_writer *w;
    assert_ok(ctx, dh_st_writer_create(ctx, &w));
    for (size_t k = 0; k < n; k++)
        assert_ok(ctx, dh_st_writer_declare(ctx, w, names[k], DH_ST_F32, 2, (int64_t[]){2, 3}));
    assert_ok(ctx, dh_st_writer_start(ctx, w, path, DH_ST_CREATE));
    for (size_t k = 0; k < n; k++) {
        float v[6];
        for (int i = 0; i < 6; i++) v[i] = (float)(10 * k + (size_t)i);
        assert_ok(ctx, dh_st_writer_put(ctx, w, names[k], 0, v, sizeof v));
    }
    assert_ok(ctx, dh_st_writer_finish(ctx, w));
    dh_st_writer_destroy(w);
}

static void prefixes_and_buffers(void **state)
{
    static const char *const names[] = {"transformer.h.0.attn.bias",
                                        "transformer.wte.weight",
                                        "layers.0.mlp.up_proj.weight",
                                        "model.layers.0.self_attn.rotary_emb.inv_freq",
                                        "extra",
                                        "lm_head.weight"};
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/w.safetensors", dir);
    write_small(&ctx, path, names, DH_COUNTOF(names));
    dh_weights *w;
    float x;
    assert_ok(&ctx, dh_weights_open(&ctx, path, &w));
    assert_ok(&ctx, dh_weights_read(&ctx, w, "wte.weight", 1, 1, 1, 1, false, &x, 1));
    assert_true(x == 14);
    assert_ok(&ctx, dh_weights_read(&ctx, w, "model.layers.0.mlp.up_proj.weight", 0, 1, 2, 1, true,
                                    &x, 1));
    assert_true(x == 22);
    size_t at = 0;
    assert_string_equal(dh_weights_next_unread(w, &at), "extra");
    assert_string_equal(dh_weights_next_unread(w, &at), "lm_head.weight"); /* differs from wte */
    assert_null(dh_weights_next_unread(w, &at));
    dh_weights_close(w);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- exports, shards ------------------------------------------------------------------------ */

typedef struct source {
    const dh_weights *w;
    const dh_export_tensor *tensors;
    size_t fail_at;
} source;

static dh_status fill(void *user, dh_ctx *ctx, size_t index, int64_t row0, int64_t n_rows,
                      float *dst)
{
    const source *s = user;
    const dh_export_tensor *t = &s->tensors[index];
    if (index == s->fail_at) return dh_fail(ctx, DH_ECOMM, "rank 3 is gone");
    int64_t cols = t->shape[t->ndim - 1];
    return dh_weights_read(ctx, s->w, t->name, row0, n_rows, 0, cols, false, dst, cols);
}

static dh_export_tensor *list(const dh_weights *w)
{
    dh_export_tensor *tensors = calloc(dh_weights_n(w), sizeof *tensors);
    assert_non_null(tensors);
    for (size_t i = 0; i < dh_weights_n(w); i++) {
        dh_weight_info info;
        dh_weights_at(w, i, &info);
        tensors[i] = (dh_export_tensor){.name = info.name, .ndim = info.ndim};
        memcpy(tensors[i].shape, info.shape, sizeof info.shape);
    }
    return tensors;
}

/* Every tensor of a equals b's, rounded to bfloat16 if asked. */
static void same_weights(dh_ctx *ctx, const dh_weights *a, const dh_weights *b, bool rounded)
{
    assert_int_equal(dh_weights_n(a), dh_weights_n(b));
    for (size_t i = 0; i < dh_weights_n(a); i++) {
        dh_weight_info t;
        dh_weights_at(a, i, &t);
        assert_ok(ctx, dh_weights_expect(ctx, b, t.name, t.ndim, t.shape));
        int64_t rows = t.ndim == 2 ? t.shape[0] : 1, cols = t.shape[t.ndim - 1];
        size_t n = (size_t)(rows * cols);
        float *x = malloc(2 * n * sizeof *x), *y = x + n;
        assert_non_null(x);
        assert_ok(ctx, dh_weights_read(ctx, a, t.name, 0, rows, 0, cols, false, x, cols));
        assert_ok(ctx, dh_weights_read(ctx, b, t.name, 0, rows, 0, cols, false, y, cols));
        for (size_t k = 0; rounded && k < n; k++) x[k] = dh_bf16_to_f32(dh_f32_to_bf16(x[k]));
        assert_memory_equal(x, y, n * sizeof *x);
        free(x);
    }
}

static void exports_round_trip(void **state)
{
    static const struct {
        const char *from;
        dh_export_options options;
        const char *file;
    } cases[] = {
        {GPT2, {.dtype = DH_F32}, "model.safetensors"},
        {STORIES, {.dtype = DH_F32}, "model.safetensors"},
        {LLAMA, {.dtype = DH_BF16}, "model.safetensors"},
        {GPT2, {.dtype = DH_F32, .shard_bytes = 100000}, "model.safetensors.index.json"},
        {DATA "tiny-mixtral-seeded",
         {.dtype = DH_BF16, .shard_bytes = 1}, /* one tensor each */
         "model-00065-of-00065.safetensors"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], out[300], file[400];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_weights *from, *back;
        dh_model model, again;
        snprintf(out, sizeof out, "%s/case%zu/", dir, i);
        assert_ok(&ctx, dh_weights_open(&ctx, cases[i].from, &from));
        assert_ok(&ctx, dh_weights_model(&ctx, from, &model));
        dh_export_tensor *tensors = list(from);
        source s = {from, tensors, SIZE_MAX};
        assert_ok(&ctx, dh_weights_export(&ctx, out, &model, tensors, dh_weights_n(from), fill, &s,
                                          &cases[i].options));
        snprintf(file, sizeof file, "%s/%s", out, cases[i].file);
        assert_true(dh_path_exists(file));
        assert_ok(&ctx, dh_weights_open(&ctx, out, &back));
        assert_ok(&ctx, dh_weights_model(&ctx, back, &again));
        same_model(&model, &again);
        same_weights(&ctx, from, back, cases[i].options.dtype == DH_BF16);
        dh_weights_close(back);
        dh_weights_close(from);
        free(tensors);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void exports_are_whole_or_absent(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], out[300], note[400];
    test_tmpdir(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/model", dir);
    snprintf(note, sizeof note, "%s/note", out);
    dh_weights *w;
    dh_model model;
    assert_ok(&ctx, dh_weights_open(&ctx, GPT2, &w));
    assert_ok(&ctx, dh_weights_model(&ctx, w, &model));
    dh_export_tensor *tensors = list(w);
    source s = {w, tensors, 40};
    size_t n = dh_weights_n(w);
    dh_export_options replace = {.dtype = DH_F32, .replace = true};
    assert_fails(&ctx, dh_weights_export(&ctx, out, &model, tensors, n, fill, &s, NULL), DH_ECOMM,
                 "rank 3 is gone");
    assert_int_equal(test_n_entries(dir), 0); /* nothing was left */
    assert_ok(&ctx, dh_dir_create(&ctx, out));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, note, "x", 1));
    s.fail_at = SIZE_MAX;
    assert_fails(&ctx, dh_weights_export(&ctx, out, &model, tensors, n, fill, &s, NULL), DH_EINVAL,
                 "exists already");
    assert_fails(&ctx, dh_weights_export(&ctx, out, &model, tensors, n, fill, &s, &replace),
                 DH_EINVAL, "is no model folder");
    assert_true(dh_path_exists(note));
    unlink(note); /* an empty folder may be used */
    assert_ok(&ctx, dh_weights_export(&ctx, out, &model, tensors, n, fill, &s, NULL));
    assert_ok(&ctx, dh_weights_export(&ctx, out, &model, tensors, n, fill, &s, &replace));
    s.fail_at = 63;
    assert_fails(&ctx, dh_weights_export(&ctx, out, &model, tensors, n, fill, &s, &replace),
                 DH_ECOMM, "rank 3 is gone");
    assert_int_equal(test_n_entries(dir), 1); /* nothing was left */
    dh_weights *back;
    assert_ok(&ctx, dh_weights_open(&ctx, out, &back));
    same_weights(&ctx, w, back, false);
    dh_weights_close(back);
    dh_weights_close(w);
    free(tensors);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void bad_indexes(void **state)
{
    static const struct {
        const char *text;
        dh_status code;
        const char *part;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"a.safetensors\"}}", DH_OK, ""},
        {"{\"weight_map\":{\"a\":\"b.safetensors\"}}", DH_EIO, "b.safetensors"},
        {"{\"weight_map\":{\"c\":\"a.safetensors\"}}", DH_EFORMAT, "\"c\" is not in a.safe"},
        {"{\"weight_map\":{\"a\":\"../a.safetensors\"}}", DH_EFORMAT, "plain file name"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"x\"}}", DH_EFORMAT, "duplicate"},
        {"{\"weight_map\":{\"a\":1}}", DH_EFORMAT, "must be a string"},
        {"{\"weight_map\":[]}", DH_EFORMAT, "must be an object"},
        {"{", DH_EFORMAT, "line 1"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    static const char *const names[] = {"a", "b"};
    write_small(&ctx, path, names, 2);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_weights *w;
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, cases[i].text, strlen(cases[i].text)));
        if (cases[i].code == DH_OK) {
            assert_ok(&ctx, dh_weights_open(&ctx, dir, &w));
            assert_int_equal(dh_weights_n(w), 1);
            dh_weights_close(w);
        } else {
            assert_fails(&ctx, dh_weights_open(&ctx, dir, &w), cases[i].code, cases[i].part);
        }
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- .bin files ----------------------------------------------------------------------------- */

enum { LLMC_V = 11, LLMC_PADDED = 16, LLMC_T = 6, LLMC_L = 2, LLMC_C = 4 };

/* An llm.c checkpoint in which item i is i (exact in bfloat16 below 257 only). */
static size_t write_llmc(dh_ctx *ctx, const char *path, int version)
{
    static const int layer_items = 4 * LLMC_C + 12 * LLMC_C * LLMC_C + 9 * LLMC_C;
    size_t n = (LLMC_PADDED + LLMC_T) * LLMC_C + LLMC_L * (size_t)layer_items + 2 * LLMC_C;
    int32_t head[256] = {20240326, version, LLMC_T, LLMC_V, LLMC_L, 2, LLMC_C, LLMC_PADDED};
    size_t item = version == 3 ? 4 : 2, n_bytes = sizeof head + n * item;
    unsigned char *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    memcpy(bytes, head, sizeof head);
    for (size_t i = 0; i < n; i++) {
        float f = (float)i;
        dh_bf16 h = dh_f32_to_bf16(f);
        memcpy(bytes + sizeof head + i * item, version == 3 ? (void *)&f : (void *)&h, item);
    }
    assert_ok(ctx, dh_file_write_atomic(ctx, path, bytes, n_bytes));
    free(bytes);
    return n_bytes;
}

static void llmc_shows_conv1d(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/gpt2.bin", dir);
    for (int version = 3; version <= 5; version += 2) {
        dh_weights *w;
        dh_model m;
        write_llmc(&ctx, path, version);
        assert_ok(&ctx, dh_weights_open(&ctx, path, &w));
        assert_ok(&ctx, dh_weights_model(&ctx, w, &m));
        assert_int_equal(m.vocab, LLMC_V);
        assert_int_equal(m.ffn_width, 16);
        assert_true(m.tied_head && m.bias);
        assert_int_equal(dh_weights_n(w), 12 * LLMC_L + 4);
        assert_ok(&ctx, dh_weights_expect(&ctx, w, "wte.weight", 2, (int64_t[]){LLMC_V, LLMC_C}));
        assert_ok(&ctx, dh_weights_expect(&ctx, w, "h.1.attn.c_attn.weight", 2,
                                          (int64_t[]){LLMC_C, 3 * LLMC_C}));
        assert_ok(&ctx, dh_weights_expect(&ctx, w, "h.1.mlp.c_proj.weight", 2,
                                          (int64_t[]){4 * LLMC_C, LLMC_C}));
        /* c_attn of layer 0 follows wte, wpe and both ln_1 of both layers: stored [3C, C]. */
        int base = (LLMC_PADDED + LLMC_T) * LLMC_C + 4 * LLMC_C;
        float x[2 * 12];
        assert_ok(&ctx, dh_weights_read(&ctx, w, "transformer.h.0.attn.c_attn.weight", 1, 2, 0, 12,
                                        false, x, 12));
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < 12; c++) {
                float want = (float)(base + c * LLMC_C + 1 + r);
                if (version == 5) want = dh_bf16_to_f32(dh_f32_to_bf16(want));
                assert_true(x[r * 12 + c] == want);
            }
        float y[2 * 12]; /* transposed: as stored */
        assert_ok(&ctx,
                  dh_weights_read(&ctx, w, "h.0.attn.c_attn.weight", 1, 2, 0, 12, true, y, 2));
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < 12; c++) assert_true(y[c * 2 + r] == x[r * 12 + c]);
        assert_ok(&ctx, dh_weights_read(&ctx, w, "wpe.weight", 0, 1, 0, 1, false, x, 1));
        assert_true(x[0] == LLMC_PADDED * LLMC_C);
        dh_weights_close(w);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void put_file(dh_ctx *ctx, const char *path, const void *bytes, size_t n)
{
    assert_ok(ctx, dh_file_write_atomic(ctx, path, bytes, n));
}

static void bad_bin_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/x.bin", dir);
    char *bytes;
    size_t n;
    dh_weights *w;
    assert_ok(&ctx, dh_file_read(&ctx, STORIES, 2 << 20, &bytes, &n));
    put_file(&ctx, path, bytes, n - 4);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EFORMAT, "ends inside a section");
    put_file(&ctx, path, bytes, 5000);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EFORMAT, "ends inside model.embed");
    put_file(&ctx, path, bytes, 20);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EFORMAT, "too short");
    int32_t untied = -512;
    memcpy(bytes + 20, &untied, 4);
    put_file(&ctx, path, bytes, n);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EFORMAT, "ends inside lm_head.weight");
    memcpy(bytes, "ak42", 4);
    int32_t swapped = 0x616b3432;
    memcpy(bytes, &swapped, 4);
    put_file(&ctx, path, bytes, n);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EUNSUPPORTED, "legacy version 0");
    memcpy(bytes, "PK\3\4", 4);
    put_file(&ctx, path, bytes, n);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EUNSUPPORTED, "pickled PyTorch");
    free(bytes);
    n = write_llmc(&ctx, path, 4);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EUNSUPPORTED, "version 4");
    n = write_llmc(&ctx, path, 3);
    assert_ok(&ctx, dh_file_read(&ctx, path, n, &bytes, &n));
    char *longer = calloc(1, n + 8);
    assert_non_null(longer);
    memcpy(longer, bytes, n);
    put_file(&ctx, path, longer, n + 8);
    assert_fails(&ctx, dh_weights_open(&ctx, path, &w), DH_EFORMAT, "its header's sizes take");
    free(longer);
    free(bytes);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* Whatever a header says, opening ends in a status, and what opens can be read. */
static void headers_survive_corruption(void **state)
{
    static const char *const sources[] = {STORIES, GPT2, NULL};
    uint64_t seed = test_seed("headers_survive_corruption");
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    for (size_t k = 0; k < DH_COUNTOF(sources); k++) {
        char *original;
        size_t n;
        snprintf(path, sizeof path, "%s/x.%s", dir, k == 1 ? "safetensors" : "bin");
        if (!sources[k]) write_llmc(&ctx, path, 3);
        assert_ok(&ctx, dh_file_read(&ctx, sources[k] ? sources[k] : path, 2 << 20, &original, &n));
        for (int round = 0; round < 60; round++) {
            size_t kept = n;
            size_t span = k == 1 ? 5224 : 32;
            char *bytes = malloc(n);
            assert_non_null(bytes);
            memcpy(bytes, original, n);
            for (int flips = round % 3; flips >= 0; flips--)
                bytes[test_rand(&seed) % span] = (char)test_rand(&seed);
            if (round % 5 == 0) kept = test_rand(&seed) % n;
            put_file(&ctx, path, bytes, kept);
            free(bytes);
            dh_weights *w;
            if (dh_weights_open(&ctx, path, &w) != DH_OK) {
                assert_true(ctx.message[0]);
                dh_ctx_reset(&ctx);
                continue;
            }
            for (size_t i = 0; i < dh_weights_n(w); i++) {
                dh_weight_info t;
                float x;
                dh_weights_at(w, i, &t);
                if (t.ndim == 0 || t.ndim > 2 || !t.shape[0] || (t.ndim == 2 && !t.shape[1]))
                    continue;
                int64_t row = t.ndim == 2 ? t.shape[0] - 1 : 0;
                dh_status st = dh_weights_read(&ctx, w, t.name, row, 1, t.shape[t.ndim - 1] - 1, 1,
                                               false, &x, 1);
                if (st != DH_OK) assert_int_equal(st, DH_EUNSUPPORTED);
                dh_ctx_reset(&ctx);
            }
            dh_weights_close(w);
        }
        free(original);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- files that another program cuts short -----------------------------------------------------
 */

static void copy_to(const char *from, const char *to)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *text;
    size_t n;
    assert_ok(&ctx, dh_file_read(&ctx, from, (size_t)1 << 30, &text, &n));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, to, text, n));
    free(text);
}

/* A file of each format is opened and then cut to `bytes`, or by -bytes: its last tensor cannot be
 * read, and the process goes on. */
static void read_cut(const char *from, const char *name, const char *tensor, off_t bytes)
{
    char dir[] = "/tmp/dhelix-cut-XXXXXX", path[64], hash[DH_WEIGHTS_HASH_TEXT];
    dh_ctx ctx = DH_CTX_INIT, cut = DH_CTX_INIT, hashed = DH_CTX_INIT;
    dh_weights *w;
    struct stat info;
    float first[4];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/%s", dir, name);
    copy_to(from, path);
    assert_ok(&ctx, dh_weights_open(&ctx, path, &w));
    assert_ok(&ctx, dh_weights_read(&ctx, w, tensor, 0, 1, 0, 4, false, first, 4));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, bytes > 0 ? bytes : info.st_size + bytes), 0);
    assert_fails(&cut, dh_weights_read(&cut, w, tensor, 0, 1, 0, 4, false, first, 4), DH_EIO,
                 "was cut short");
    assert_fails(&hashed, dh_weights_hash(&hashed, w, hash), DH_EIO, "was cut short");
    dh_weights_close(w);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void files_that_are_cut(void **state)
{
    read_cut(GPT2, "m.safetensors", "h.0.attn.c_attn.weight", 4096);
    read_cut(GPT2, "m.safetensors", "h.0.attn.c_attn.weight", -1);
    read_cut(STORIES, "m.bin", "model.layers.0.mlp.down_proj.weight", 4096);
    read_cut(STORIES, "m.bin", "model.layers.0.self_attn.q_proj.weight", -1);
}

/* A file that takes another's name is not the one that is read. */
static void files_that_are_replaced(void **state)
{
    char dir[] = "/tmp/dhelix-cut-XXXXXX", path[64];
    dh_ctx ctx = DH_CTX_INIT;
    dh_weights *w;
    float before[4], after[4];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    copy_to(GPT2, path);
    assert_ok(&ctx, dh_weights_open(&ctx, path, &w));
    assert_ok(&ctx, dh_weights_read(&ctx, w, "wte.weight", 0, 1, 0, 4, false, before, 4));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "other", 5));
    assert_ok(&ctx, dh_weights_read(&ctx, w, "wte.weight", 0, 1, 0, 4, false, after, 4));
    assert_memory_equal(before, after, sizeof before);
    dh_weights_close(w);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_equal_direct_reads),
        cmocka_unit_test(stories260k_opens),
        cmocka_unit_test(stories260k_rotary_rows),
        cmocka_unit_test(architecture_from_config),
        cmocka_unit_test(wrong_requests),
        cmocka_unit_test(prefixes_and_buffers),
        cmocka_unit_test(exports_round_trip),
        cmocka_unit_test(exports_are_whole_or_absent),
        cmocka_unit_test(bad_indexes),
        cmocka_unit_test(llmc_shows_conv1d),
        cmocka_unit_test(bad_bin_files),
        cmocka_unit_test(headers_survive_corruption),
        cmocka_unit_test(files_that_are_cut),
        cmocka_unit_test(files_that_are_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
