/* Rows of whole documents: what a step makes of them is what it would make of each document alone.
 *
 * Tolerances. Alone and packed the same float32 products are added, grouped by other blocks of keys
 * and by other GEMMs, over other numbers of rows: as meshes differ from one rank, 2e-5 of an
 * element plus its tensor's RMS for gradients, 2e-6 of a loss; runs over many steps as in ranks.h.
 */
#include "fixture.h"
#include "ranks.h"

#include "train/params.h"
#include "train/recipe.h"

enum { SEQ = 48, ROWS = 2, DOCS = 9 };

/* Documents side by side: two rows, padding behind. */
static const int lengths[DOCS] = {20, 1, 17, 5, 30, 2, 3, 8, 1}; /* 43 in a row, 44 in the other */
static const int row_of[DOCS] = {0, 0, 0, 0, 1, 1, 1, 1, 1};

typedef struct documents {
    int32_t tokens[DOCS][SEQ + 1];
    int alone; /* sample 0 is this document and nothing else; -1: rows */
} documents;

static documents docs;

static int64_t n_targets(void)
{
    int64_t n = 0;
    for (int i = 0; i < DOCS; i++) n += lengths[i];
    return n;
}

static dh_status documents_row(dh_ctx *ctx, void *self, int64_t sample, int64_t seq,
                               const dh_batch_row *row)
{
    const documents *d = self;
    int64_t at = 0;
    for (int i = 0; i < DOCS; i++) {
        const bool here = d->alone < 0 ? row_of[i] == sample % ROWS : i == d->alone;
        for (int t = 0; here && t < lengths[i]; t++, at++) {
            row->tokens[at] = d->tokens[i][t];
            row->targets[at] = d->tokens[i][t + 1];
            row->positions[at] = t;
            row->samples[at] = i;
        }
    }
    for (; at < seq; at++) {
        row->tokens[at] = row->positions[at] = 0;
        row->targets[at] = -1;
        row->samples[at] = 0;
    }
    return DH_OK;
}

/* ---- one step ------------------------------------------------------------------------------ */

static const char gpt2[] = "model: {family: gpt2, n_layers: 2, width: 32, n_heads: 4, vocab: 65,\n"
                           "        max_seq: 48, dropout: 0.1}\n";
static const char llama[] = "model: {family: llama, n_layers: 2, width: 32, n_heads: 8,\n"
                            "        n_kv_heads: 4, head_dim: 8, ffn_width: 88, vocab: 65,\n"
                            "        max_seq: 48, tied_head: false}\n";
static const char windowed[] = "model: {family: qwen3, n_layers: 4, width: 32, n_heads: 4,\n"
                               "        n_kv_heads: 2, head_dim: 16, ffn_width: 40, vocab: 65,\n"
                               "        max_seq: 48, window: 6, window_every: 2}\n";

/* A step that leaves the weights alone; the caller destroys the session. */
static dh_session *step_of(const char *model, int64_t seq, bool packed)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    char text[1024];
    snprintf(text, sizeof text, "%strain: {batch: %d, micro_batch: 1, seq_len: %lld, threads: 1}\n",
             model, packed ? ROWS : 1, (long long)seq);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", ".", NULL, 0, &job));
    dh_session_spec spec = {.train = true, .device = dh_device_find("auto")};
    dh_session *s;
    int n_threads;
    assert_ok(&ctx, spec.device->bind_rank(&ctx, 0, 1, 1, &n_threads));
    assert_ok(&ctx, dh_recipe_of_job(&ctx, job, &spec.recipe));
    spec.recipe.documents = packed;
    assert_ok(&ctx, dh_session_create(&ctx, &spec, &s));
    assert_ok(&ctx, dh_session_init_params(&ctx, s, 11));
    const dh_step step = {.sample_stride = 1,
                          .seed = 5,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .loss_rows = (double)n_targets(),
                          .source = {.self = &docs, .load_row = documents_row}};
    assert_ok(&ctx, dh_exec_run(&ctx, s->train_exec, &step));
    dh_job_destroy(job);
    return s;
}

static void add_gradient(const dh_session *s, const dh_hf_tensor *tensor, int64_t n, double *sum)
{
    dh_ctx ctx = DH_CTX_INIT;
    float *part = malloc((size_t)n * sizeof *part);
    assert_ok(&ctx, dh_session_read_hf(&ctx, s, tensor, DH_BUF_GRAD, part));
    for (int64_t i = 0; i < n; i++) sum[i] += (double)part[i];
    free(part);
}

static double gradient_error(const dh_session *packed, dh_session *const *alone)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_hf_tensor *list;
    size_t n_list;
    double worst = 0;
    assert_ok(&ctx, dh_hf_tensors(&ctx, dh_session_layout(packed), &list, &n_list));
    for (size_t k = 0; k < n_list; k++) {
        const int64_t n = list[k].shape[0] * (list[k].ndim == 2 ? list[k].shape[1] : 1);
        double *got = calloc((size_t)n, sizeof *got), *want = calloc((size_t)n, sizeof *want);
        double squares = 0;
        add_gradient(packed, &list[k], n, got);
        for (int i = 0; i < DOCS; i++) add_gradient(alone[i], &list[k], n, want);
        for (int64_t i = 0; i < n; i++) squares += want[i] * want[i];
        const double size = sqrt(squares / (double)n) + 1e-9;
        for (int64_t i = 0; i < n; i++) {
            const double error = fabs(got[i] - want[i]) / (size + fabs(want[i]));
            if (!(error <= worst)) worst = error;
        }
        free(got);
        free(want);
    }
    free(list);
    return worst;
}

/* Positions begin anew, no document sees or predicts another, dropout is that of the document. */
static void a_row_is_its_documents(void **state)
{
    static const char *const models[] = {gpt2, llama, windowed};
    uint64_t seed = test_seed("packing");
    for (int i = 0; i < DOCS; i++)
        for (int t = 0; t <= lengths[i]; t++) docs.tokens[i][t] = (int32_t)(test_rand(&seed) % 65);
    for (size_t m = 0; m < DH_COUNTOF(models); m++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_session *alone[DOCS];
        double sum = 0, rows = 0, loss, n;
        for (int i = 0; i < DOCS; i++) {
            docs.alone = i;
            alone[i] = step_of(models[m], lengths[i], false);
            assert_ok(&ctx, dh_session_loss(&ctx, alone[i], &loss, &n));
            assert_true(n == lengths[i]);
            sum += loss;
            rows += n;
        }
        docs.alone = -1;
        dh_session *packed = step_of(models[m], SEQ, true);
        assert_ok(&ctx, dh_session_loss(&ctx, packed, &loss, &n));
        const double error = gradient_error(packed, alone);
        printf("  model %zu: loss %.9f, alone %.9f, worst gradient error %.2g\n", m, loss / n,
               sum / rows, error);
        assert_true(n == rows && rows == (double)n_targets());
        assert_true(fabs(loss / n - sum / rows) <= 2e-6);
        assert_true(error <= 2e-5);
        dh_session_destroy(packed);
        for (int i = 0; i < DOCS; i++) dh_session_destroy(alone[i]);
    }
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* Speeches of Shakespeare, one a line; a tokenizer of 512 tokens that has an end of text. */
static char speeches[400];

static void put_text(dh_str *out, const char *text, size_t n)
{
    dh_str_printf(out, "{\"text\": \"");
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            dh_str_printf(out, "\\n");
        else if (text[i] != '"' && text[i] != '\\')
            dh_str_append(out, &text[i], 1);
    }
    dh_str_printf(out, "\"}\n");
}

static void write_speeches(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_map map;
    dh_str out = DH_STR_INIT;
    assert_ok(&ctx, dh_map_open(&ctx, RUN_WHOLE_TEXT, &map));
    const char *text = (const char *)map.at;
    for (size_t at = 0, i = 0; i < 40000; i++) {
        if (text[i] != '\n' || text[i + 1] != '\n') continue;
        put_text(&out, text + at, i - at);
        at = i + 2;
    }
    snprintf(speeches, sizeof speeches, "%s/speeches.jsonl", run_dir);
    assert_false(out.failed);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, speeches, out.text, out.len));
    dh_str_fini(&out);
    dh_map_close(&map);
}

#define RUN_DOCUMENTS                                                                              \
    "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"     \
    "        ffn_width: 88, vocab: 512, max_seq: 64, tied_head: false}\n"

static const char *settings_of(const char *more)
{
    static char text[900];
    snprintf(text, sizeof text,
             "data.train=%s data.tokenizer=tests/data/tokenizers/llama2c-tok512/tokenizer.bin "
             "data.packing=pack train.seq_len=64 train.steps=6 eval.every=3 eval.batches=1 %s",
             speeches, more);
    return text;
}

/* The same rows, the same documents in them, whatever the mesh; padding counts nowhere. */
static void meshes_pack_alike(void **state)
{
    static const char *const meshes[] = {
        "parallel.dp=2",
        "parallel.cp=2",
        "parallel.tp=2 parallel.cp=2 strategy=intra-batch",
        "parallel.tp=2 parallel.pp=2 parallel.schedule=dhelix-w strategy=dhelix",
        "parallel.cp=4 train.recompute=full",
        "parallel.tp=2 strategy=domino train.micro_batch=2"};
    run_curve one, many;
    char out[300];
    write_speeches();
    run_folder(out, sizeof out, "one");
    run_curve_of(RUN_DOCUMENTS, settings_of(""), out, &one);
    assert_int_equal(one.n, 6);
    assert_true(one.loss[5] < one.loss[0]);
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_stride(1, 3)) {
        run_folder(out, sizeof out, "many");
        run_curve_of(RUN_DOCUMENTS, settings_of(meshes[i]), out, &many);
        const double distance = run_distance(&one, &many, 0);
        printf("  %s: %.2g\n", meshes[i], distance);
        assert_true(distance <= run_tolerance(DH_F32));
    }
}

static double metric(const char *out, int step, const char *name)
{
    char path[400], line[2048];
    double value = (double)NAN;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(object, "step")) == step &&
            json_object_get(object, name))
            value = json_number_value(json_object_get(object, name));
        json_decref(object);
    }
    fclose(f);
    return value;
}

static void a_continued_run_has_the_same_bits(void **state)
{
    char whole[300], parts[300];
    dh_ctx ctx = DH_CTX_INIT;
    write_speeches();
    run_folder(whole, sizeof whole, "whole");
    run_folder(parts, sizeof parts, "parts");
    assert_ok(&ctx, run_job(&ctx, RUN_DOCUMENTS, settings_of("parallel.cp=2"), whole, NULL));
    assert_int_equal(
        run_job_until(&ctx, RUN_DOCUMENTS, settings_of("parallel.cp=2"), parts, NULL, true),
        DH_EINTERRUPTED);
    ctx = (dh_ctx)DH_CTX_INIT;
    assert_fails(
        &ctx,
        run_job(&ctx, RUN_DOCUMENTS, settings_of("parallel.cp=2 data.packing=none"), parts, NULL),
        DH_EINVAL, "data.packing pack, this job has none");
    assert_ok(&ctx, run_job(&ctx, RUN_DOCUMENTS, settings_of("parallel.cp=2"), parts, NULL));
    assert_true(run_same_bytes(whole, parts, 6));
    for (int step = 1; step <= 6; step++) {
        assert_true(metric(whole, step, "documents") >= 8);
        assert_true(metric(whole, step, "padding") >= 0 && metric(whole, step, "padding") < 0.2);
        assert_true(metric(whole, step, "documents") == metric(parts, step, "documents"));
    }
}

static void what_cannot_be_packed_is_refused(void **state)
{
    char out[300];
    dh_ctx ctx = DH_CTX_INIT;
    write_speeches();
    run_folder(out, sizeof out, "refused");
    assert_fails(&ctx, run_job(&ctx, RUN_DOCUMENTS, settings_of("data.packing=group"), out, NULL),
                 DH_EINVAL, "1 to 8 entries in switch.groups");
    assert_fails(&ctx, run_job(&ctx, RUN_EXPERTS, settings_of("train.seq_len=32"), out, NULL),
                 DH_EUNSUPPORTED, "data.packing pack with experts");
    assert_fails(
        &ctx,
        run_job(&ctx, RUN_EXPERTS, settings_of("train.seq_len=32 data.packing=group"), out, NULL),
        DH_EUNSUPPORTED, "data.packing group with experts");
    assert_fails(&ctx, run_job(&ctx, RUN_DOCUMENTS, settings_of("data.tokenizer=bytes"), out, NULL),
                 DH_EINVAL, "where documents end in");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_its_documents),
        cmocka_unit_test_setup_teardown(meshes_pack_alike, run_make_dir, run_drop_dir),
        cmocka_unit_test_setup_teardown(a_continued_run_has_the_same_bits, run_make_dir,
                                        run_drop_dir),
        cmocka_unit_test_setup_teardown(what_cannot_be_packed_is_refused, run_make_dir,
                                        run_drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
