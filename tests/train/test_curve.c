/* A 200-step training run on real text against a float64 run of PyTorch: data order,
 * warm-up and cosine, clipping, weight decay, AdamW.
 *
 * Tolerance: two float32 runs of the reference differ from float64 by at most 3e-6 in
 * the loss over these 200 steps; 2e-4 leaves room for another order of summation in
 * every product and its growth over 200 steps. */
#include "fixture.h"

#include "data/dataset.h"
#include "dhelix/train.h"

typedef struct point {
    double lr, loss, norm;
} point;

static size_t read_curve(const char *path, point *points, size_t cap)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char line[512];
    size_t n = 0;
    assert_non_null(fgets(line, sizeof line, f));
    while (n < cap && fgets(line, sizeof line, f)) {
        double total;
        int step;
        point *p = &points[n];
        assert_int_equal(
            sscanf(line, "%d,%lf,%lf,%lf,%lf", &step, &p->lr, &p->loss, &total, &p->norm), 5);
        assert_int_equal(step, (int)n);
        n++;
    }
    fclose(f);
    return n;
}

static void gpt2_char_curve(void **state)
{
    enum { STEPS = 200 };
    static point want[STEPS];
    assert_int_equal(read_curve("tests/data/curves/gpt2_char.csv", want, STEPS), STEPS);
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], out[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(out, sizeof out, "out=%s/run", dir);
    const char job_text[] =
        "model: {family: gpt2, n_layers: 4, width: 64, n_heads: 4, vocab: 65, max_seq: 64}\n"
        "data: {train: tests/data/corpora/tinyshakespeare/input.txt, tokenizer: chars,\n"
        "       val_fraction: 0.1, order: sequential}\n"
        "train: {steps: 200, batch: 12, micro_batch: 12, seq_len: 64,\n"
        "        init_from: tests/data/curves/gpt2_char_init.safetensors}\n"
        "optimizer: {lr: 3.0e-3, min_lr: 3.0e-4, schedule: cosine, warmup: 20, weight_decay: 0.1,\n"
        "            beta1: 0.9, beta2: 0.95, eps: 1.0e-8, grad_clip: 1.0}\n"
        "eval: {every: 0}\n";
    const char *overrides[] = {out};
    dh_job *job;
    assert_ok(&ctx, dh_job_parse(&ctx, job_text, sizeof job_text - 1, "curve.yaml", ".", overrides,
                                 1, &job));
    dh_train_options options = {.quiet = true};
    dh_train_result result;
    assert_ok(&ctx, dh_train(&ctx, job, &options, &result));
    assert_int_equal(result.slab_peak, result.slab_planned);

    char metrics[400];
    snprintf(metrics, sizeof metrics, "%s/run/metrics.jsonl", dir);
    FILE *f = fopen(metrics, "r");
    assert_non_null(f);
    char line[1024];
    int n = 0;
    double worst = 0, worst_norm = 0;
    while (fgets(line, sizeof line, f)) {
        double loss, lr, norm;
        const char *at = strstr(line, "\"loss\":");
        if (!at) continue;
        loss = strtod(at + 7, NULL);
        lr = strtod(strstr(line, "\"lr\":") + 5, NULL);
        norm = strtod(strstr(line, "\"grad_norm\":") + 12, NULL);
        assert_true(fabs(lr - want[n].lr) <= 1e-9);
        worst = fmax(worst, fabs(loss - want[n].loss));
        worst_norm = fmax(worst_norm, fabs(norm / want[n].norm - 1));
        n++;
    }
    fclose(f);
    assert_int_equal(n, STEPS);
    printf("  worst loss difference %.2g, gradient norm %.2g relative\n", worst, worst_norm);
    assert_true(worst <= 2e-4);
    assert_true(worst_norm <= 5e-3);
    dh_job_destroy(job);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2_char_curve)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
