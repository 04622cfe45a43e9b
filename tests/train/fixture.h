/* What the training suites share: sessions on tiny models, batches from memory. */
#ifndef TEST_TRAIN_FIXTURE_H
#define TEST_TRAIN_FIXTURE_H

#include "dh_test.h"

#include "train/session.h"

/* A batch source that gives rows of two arrays, sample i = row i modulo n_rows. */
typedef struct rows_source {
    const int32_t *tokens, *targets; /* [n_rows, seq] */
    int64_t n_rows;
} rows_source;

static inline dh_status rows_load(dh_ctx *ctx, void *self, int64_t sample, int64_t seq,
                                  int32_t *tokens)
{
    const rows_source *rows = self;
    int64_t row = sample % rows->n_rows;
    memcpy(tokens, rows->tokens + row * seq, (size_t)seq * sizeof *tokens);
    tokens[seq] = rows->targets[row * seq + seq - 1];
    return DH_OK;
}

static inline const void *st_data(const dh_safetensors *file, const char *name)
{
    const dh_st_tensor *t = dh_st_find(file, name);
    if (!t) fail_msg("no tensor %s", name);
    return t->data;
}

/* Copy of a tensor's values as float32 (the map may be unaligned); caller frees. */
static inline float *st_floats(const dh_safetensors *file, const char *name, int64_t n)
{
    const dh_st_tensor *t = dh_st_find(file, name);
    if (!t) fail_msg("no tensor %s", name);
    assert_int_equal(t->n_items, n);
    float *copy = malloc((size_t)n * sizeof *copy);
    memcpy(copy, t->data, (size_t)n * sizeof *copy);
    return copy;
}

static inline dh_model model_of(const char *weights_path, dh_weights **weights)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    assert_ok(&ctx, dh_weights_open(&ctx, weights_path, weights));
    assert_ok(&ctx, dh_weights_model(&ctx, *weights, &model));
    return model;
}

/* Largest |a - b| / (|b| + floor). */
static inline double largest_error(const float *a, const float *b, int64_t n, double floor_)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - (double)b[i]) / (fabs((double)b[i]) + floor_);
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

static inline double rms(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)n);
}

#endif
