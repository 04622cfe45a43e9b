/* vTrain's measurements (MICRO 2024): Megatron-DeepSpeed on A100, one node and 64 to 512 devices.
 *
 * Of small models the host decides the time: it issues kernels later than the device ends them. The
 * host's constants rest on the rows of 12 and 20 layers on one node, and on no others. */
#include "validate/job.h"

static dh_status add_set(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job, size_t n,
                         const char *key, int64_t value)
{
    job->set[n] = dh_arena_printf(v->arena, "%s=%lld", key, (long long)value);
    return job->set[n] ? DH_OK : dh_no_memory(ctx);
}

/* Megatron-LM pads the vocabulary to a multiple of 128 rows a rank. */
static int64_t padded_vocab(int64_t tp)
{
    const int64_t words = 50257, multiple = 128 * tp;
    return (words + multiple - 1) / multiple * multiple;
}

enum { WIDTH, HEADS, LAYERS, SEQ, TP, DP, PP, MICRO_BATCH, BATCH, N_COLUMNS };

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, int64_t value[N_COLUMNS],
                          double *published)
{
    static const char *const columns[N_COLUMNS] = {
        [WIDTH] = "hidden", [HEADS] = "heads", [LAYERS] = "layers",
        [SEQ] = "seq",      [TP] = "tp",       [DP] = "dp",
        [PP] = "pp",        [BATCH] = "batch", [MICRO_BATCH] = "micro_batch"};
    for (int c = 0; c < N_COLUMNS; c++) DH_TRY(dh_published_int(ctx, t, i, columns[c], &value[c]));
    return dh_published_real(ctx, t, i, "ms", published);
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const int64_t value[N_COLUMNS],
                        dh_shipped_job *job)
{
    static const char *const keys[N_COLUMNS] = {
        [WIDTH] = "model.width", [HEADS] = "model.n_heads", [LAYERS] = "model.n_layers",
        [SEQ] = "model.max_seq", [TP] = "parallel.tp",      [DP] = "parallel.dp",
        [PP] = "parallel.pp",    [BATCH] = "train.batch",   [MICRO_BATCH] = "train.micro_batch"};
    for (size_t c = 0; c < N_COLUMNS; c++) DH_TRY(add_set(ctx, v, job, c, keys[c], value[c]));
    DH_TRY(add_set(ctx, v, job, N_COLUMNS, "train.seq_len", value[SEQ]));
    return add_set(ctx, v, job, N_COLUMNS + 1, "model.vocab", padded_vocab(value[TP]));
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i,
                         const char *cluster)
{
    int64_t value[N_COLUMNS];
    double published;
    dh_shipped_step step;
    dh_shipped_job job = {.file = "vtrain", .cluster = cluster};
    DH_TRY(read_row(ctx, t, i, value, &published));
    DH_TRY(job_of(ctx, v, value, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(dh_validation_group(ctx, v, "width %lld, tp %lld, pp %lld", (long long)value[WIDTH],
                               (long long)value[TP], (long long)value[PP]));
    DH_TRY(dh_validation_add(ctx, v, step.ns * 1e-6, published,
                             "width %lld, %lld layers, tp %lld, dp %lld, pp %lld, %lld of %lld",
                             (long long)value[WIDTH], (long long)value[LAYERS],
                             (long long)value[TP], (long long)value[DP], (long long)value[PP],
                             (long long)value[MICRO_BATCH], (long long)value[BATCH]));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

static dh_status validate(dh_ctx *ctx, dh_validation *v, const char *cluster)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i, cluster));
    return DH_OK;
}

dh_status dh_validate_vtrain_node(dh_ctx *ctx, dh_validation *v)
{
    return validate(ctx, v, "selene");
}

dh_status dh_validate_vtrain(dh_ctx *ctx, dh_validation *v)
{
    return validate(ctx, v, DH_SHIPPED_CLUSTERS "a100-4hdr.yaml");
}
