/* Whole models against float64 PyTorch references: logits, loss, every gradient, ten
 * AdamW steps, weights after.
 *
 * Tolerances. float32 against float64: a value is a chain of sums of up to a thousand
 * terms with relative error 6e-8 each; 2e-5 of its own size plus the tensor's RMS
 * covers them with room for the order of summation. AdamW divides by the root of the
 * second moment, so where a gradient is near zero its rounding decides the step's
 * sign: after ten steps weights may differ by 2 % of 10 * lr, or by three times the
 * gradient's own relative error where that is more (three: the mean square decays, and
 * weights that differ change later gradients). All weights together differ by 0.05 %.
 * bf16 has 8 bits of mantissa and a relative error of 4e-3 per rounding; losses agree
 * to 1e-2, gradients in direction. A router turns such roundings into other choices for
 * a few tokens, whose results then have nothing to do with the reference's: all tokens
 * together are measured there. */
#include "fixture.h"

#include "train/params.h"
#include "train/trained.h"

enum { N_STEPS = 10 };

/* Of a float32 gradient, of its own size plus the tensor's RMS. */
#define GRAD_ERROR 2e-5

typedef struct oracle {
    dh_safetensors *file;
    dh_weights *weights;
    dh_model model;
    int64_t batch, seq;
    rows_source rows;
    bool interleaved; /* q, k rows of the reference are in llama2.c's rotary order */
} oracle;

static oracle oracle_open(const char *name, const char *weights, bool interleaved)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[256];
    oracle o = {.interleaved = interleaved};
    snprintf(path, sizeof path, "tests/data/oracles/torch/%s.safetensors", name);
    assert_ok(&ctx, dh_st_open(&ctx, path, &o.file));
    o.model = model_of(weights, &o.weights);
    const dh_st_tensor *tokens = dh_st_find(o.file, "tokens");
    o.batch = tokens->shape[0];
    o.seq = tokens->shape[1];
    o.rows.n_rows = o.batch;
    o.rows.tokens = (const int32_t *)st_floats(o.file, "tokens", o.batch * o.seq);
    o.rows.targets = (const int32_t *)st_floats(o.file, "targets", o.batch * o.seq);
    return o;
}

static void oracle_close(oracle *o)
{
    dh_weights_close(o->weights);
    dh_st_close(o->file);
    free((void *)(uintptr_t)o->rows.tokens);
    free((void *)(uintptr_t)o->rows.targets);
}

static dh_recompute_kind recompute; /* of the sessions made next */

static dh_session *session_of(const oracle *o, dh_dtype dtype, int64_t n_micro, bool decode)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_session_spec spec = {.recipe = {.model = o->model,
                                       .dtype = dtype,
                                       .micro_batch = o->batch / n_micro,
                                       .seq = o->seq,
                                       .n_micro = n_micro,
                                       .recompute = recompute,
                                       .global_tokens = o->batch * o->seq},
                            .device = dh_device_find("auto"),
                            .train = !decode,
                            .eval = !decode,
                            .decode = decode,
                            .cache_len = o->seq,
                            .prefill_chunk = decode ? 8 : 0};
    dh_session *s;
    assert_ok(&ctx, dh_session_create(&ctx, &spec, &s));
    assert_ok(&ctx, dh_session_load_params(&ctx, s, o->weights));
    return s;
}

static void run_step(const oracle *o, dh_session *s, int64_t step, double lr)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_step values = {.step = step,
                      .first_sample = 0,
                      .sample_stride = s->spec.recipe.micro_batch,
                      .lr = lr,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .source = {.load = rows_load, .self = (void *)(uintptr_t)&o->rows}};
    assert_ok(&ctx, dh_exec_run(&ctx, s->train_exec, &values));
}

static double mean_loss(const dh_session *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    double sum, rows;
    assert_ok(&ctx, dh_session_loss(&ctx, s, &sum, &rows));
    return sum / rows;
}

/* Rows of a q or k projection from llama2.c's order (pairs 2i, 2i+1) to HF's halves. */
static void to_halves(const oracle *o, const char *name, float *data, int64_t rows, int64_t cols)
{
    if (!o->interleaved || (!strstr(name, "q_proj") && !strstr(name, "k_proj"))) return;
    const int64_t d = o->model.head_dim;
    float *copy = malloc((size_t)(rows * cols) * sizeof *copy);
    memcpy(copy, data, (size_t)(rows * cols) * sizeof *copy);
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = r % d, from = r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
        memcpy(data + r * cols, copy + from * cols, (size_t)cols * sizeof *data);
    }
    free(copy);
}

/* Sums of squares of differences and of the reference, over all that was compared. */
typedef struct distance {
    double difference, size;
} distance;

static void add_distance(distance *d, double got, double want)
{
    d->difference += (got - want) * (got - want);
    d->size += want * want;
}

static double relative(const distance *d)
{
    return sqrt(d->difference / d->size);
}

/* Every HF tensor of `kind` against PREFIX.name; returns the worst error, absolute or in
 * units of the element plus the tensor's RMS plus `floor_`. */
static double compare_tensors(const oracle *o, const dh_session *s, dh_buffer_kind kind,
                              const char *prefix, double floor_, bool absolute, distance *all)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_hf_tensor *list;
    size_t n;
    double worst = 0;
    assert_ok(&ctx, dh_hf_tensors(&ctx, dh_session_layout(s), &list, &n));
    assert_true(n >= 8);
    for (size_t i = 0; i < n; i++) {
        int64_t cols = list[i].ndim == 2 ? list[i].shape[1] : 1, rows = list[i].shape[0];
        char name[160];
        snprintf(name, sizeof name, "%s.%s", prefix, list[i].name);
        float *want = st_floats(o->file, name, rows * cols);
        float *got = malloc((size_t)(rows * cols) * sizeof *got);
        to_halves(o, name, want, rows, cols);
        assert_ok(&ctx, dh_session_read_hf(&ctx, s, &list[i], kind, got));
        double scale = absolute ? 1.0 : rms(want, rows * cols) + floor_;
        double error = 0;
        for (int64_t k = 0; all && k < rows * cols; k++)
            add_distance(all, (double)got[k], (double)want[k]);
        for (int64_t k = 0; k < rows * cols; k++)
            error = fmax(error, fabs((double)got[k] - (double)want[k]) /
                                    (scale + (absolute ? 0.0 : fabs((double)want[k]))));
        if (error > worst) worst = error;
        free(want);
        free(got);
    }
    free(list);
    return worst;
}

static void check_gradients(const oracle *o, dh_dtype dtype, int64_t n_micro, double loss_tol,
                            double grad_tol)
{
    dh_session *s = session_of(o, dtype, n_micro, false);
    run_step(o, s, 0, 0.0);
    double want = *(const double *)st_data(o->file, "loss_ce");
    assert_true(fabs(mean_loss(s) - want) <= loss_tol);
    const bool routed = o->model.n_experts > 0 && dtype != DH_F32;
    distance all = {0, 0};
    double error = compare_tensors(o, s, DH_BUF_GRAD, "grad", 1e-6, false, &all);
    printf("  %s %s n_micro %lld: loss error %.2g, worst gradient error %.2g, of all %.2g\n",
           o->model.name, dh_dtype_name(dtype), (long long)n_micro, fabs(mean_loss(s) - want),
           error, relative(&all));
    assert_true((routed ? relative(&all) : error) <= grad_tol);
    dh_ctx ctx = DH_CTX_INIT;
    double norm;
    assert_ok(&ctx, dh_session_grad_norm(&ctx, s, &norm));
    double want_norm;
    memcpy(&want_norm, st_data(o->file, "grad_norm"), sizeof want_norm);
    assert_true(fabs(norm / want_norm - 1.0) <= loss_tol);
    /* A step with lr 0 leaves the weights alone. */
    dh_session_destroy(s);
}

/* Weights after N_STEPS, against steps of at most lr each. A step divides a gradient by the root of
 * its mean square, so an error of the gradient moves the weight by lr * error / |gradient|. Returns
 * the worst part of what a weight may differ by; *rms_error: of all weights, in N_STEPS * lr. */
static double compare_after(const oracle *o, const dh_session *s, double lr, double *rms_error)
{
    dh_ctx ctx = DH_CTX_INIT;
    const double all_steps = N_STEPS * lr;
    dh_hf_tensor *list;
    size_t n;
    double worst = 0, squares = 0;
    int64_t count = 0;
    assert_ok(&ctx, dh_hf_tensors(&ctx, dh_session_layout(s), &list, &n));
    for (size_t i = 0; i < n; i++) {
        const int64_t cols = list[i].ndim == 2 ? list[i].shape[1] : 1, rows = list[i].shape[0];
        char name[160];
        snprintf(name, sizeof name, "after.%s", list[i].name);
        float *want = st_floats(o->file, name, rows * cols);
        snprintf(name, sizeof name, "grad.%s", list[i].name);
        float *grad = st_floats(o->file, name, rows * cols);
        float *got = malloc((size_t)(rows * cols) * sizeof *got);
        to_halves(o, list[i].name, want, rows, cols);
        to_halves(o, list[i].name, grad, rows, cols);
        assert_ok(&ctx, dh_session_read_hf(&ctx, s, &list[i], DH_BUF_MASTER, got));
        const double size = rms(grad, rows * cols);
        for (int64_t k = 0; k < rows * cols; k++) {
            const double g = fabs((double)grad[k]), error = 3 * GRAD_ERROR * (g + size);
            const double may = fmax(0.02, g > 0 ? fmin(2.0, error / g) : 2.0) * all_steps;
            const double difference = (double)got[k] - (double)want[k];
            worst = fmax(worst, fabs(difference) / may);
            squares += difference * difference;
        }
        count += rows * cols;
        free(want);
        free(grad);
        free(got);
    }
    free(list);
    *rms_error = sqrt(squares / (double)count) / all_steps;
    return worst;
}

static void check_adamw(const oracle *o)
{
    const double lr = 1e-3;
    dh_session *s = session_of(o, DH_F32, 1, false);
    double losses[N_STEPS + 1][2], worst = 0, rms_error;
    const dh_st_tensor *t = dh_st_find(o->file, "adamw_losses");
    assert_int_equal(t->n_bytes, sizeof losses);
    memcpy(losses, t->data, sizeof losses);
    for (int i = 0; i < N_STEPS; i++) {
        run_step(o, s, i, lr);
        worst = fmax(worst, fabs(mean_loss(s) - losses[i][0]));
    }
    const double after = compare_after(o, s, lr, &rms_error);
    run_step(o, s, N_STEPS, 0.0);
    worst = fmax(worst, fabs(mean_loss(s) - losses[N_STEPS][0]));
    printf("  %s: worst loss error of ten steps %.2g, of a weight after %.2g of what it may be, "
           "their RMS %.2g of ten steps\n",
           o->model.name, worst, after, rms_error);
    assert_true(worst <= 2e-5);
    assert_true(after <= 1);
    assert_true(rms_error <= 5e-4);
    dh_session_destroy(s);
}

/* Logits of each position by decoding: prompt chunks, then token by token. */
static void check_logits(const oracle *o, dh_dtype dtype, const char *name, int64_t stride,
                         double tolerance)
{
    dh_ctx ctx = DH_CTX_INIT;
    const int64_t vocab = o->model.vocab, kept = vocab / stride;
    float *want = st_floats(o->file, name, o->batch * o->seq * kept);
    const double size = rms(want, o->batch * o->seq * kept);
    dh_session *s = session_of(o, dtype, 1, true);
    double worst = 0;
    distance all = {0, 0};
    for (int64_t b = 0; b < o->batch; b++) {
        const int32_t *row = o->rows.tokens + b * o->seq;
        int64_t prompt = o->seq / 2 / 8 * 8 + 3 < o->seq ? o->seq / 2 / 8 * 8 + 3 : 1;
        const float *logits;
        for (int64_t t = prompt - 1; t < o->seq; t++) {
            int64_t first = t == prompt - 1 ? 0 : t;
            assert_ok(&ctx, dh_session_decode(&ctx, s, row + first, t + 1 - first, first, &logits));
            for (int64_t k = 0; k < kept; k++) {
                const double got = (double)logits[k * stride];
                const double expected = (double)want[(b * o->seq + t) * kept + k];
                worst = fmax(worst, fabs(got - expected) / size);
                add_distance(&all, got, expected);
            }
        }
    }
    printf("  %s %s: worst logit error %.2g of their RMS, of all %.2g\n", o->model.name,
           dh_dtype_name(dtype), worst, relative(&all));
    const bool routed = o->model.n_experts > 0 && dtype != DH_F32;
    assert_true((routed ? relative(&all) : worst) <= tolerance);
    free(want);
    dh_session_destroy(s);
}

/* Gradients with recomputation are the same bits, in less memory. */
static void check_recompute(const oracle *o, dh_dtype dtype)
{
    dh_ctx ctx = DH_CTX_INIT;
    float *kept = NULL;
    uint64_t bytes = UINT64_MAX;
    for (int kind = DH_RECOMPUTE_KIND_NONE; kind <= DH_RECOMPUTE_KIND_FULL; kind++) {
        recompute = (dh_recompute_kind)kind;
        dh_session *s = session_of(o, dtype, 1, false);
        recompute = DH_RECOMPUTE_KIND_NONE;
        run_step(o, s, 0, 0.0);
        const dh_program *p = dh_session_layout(s);
        assert_true(p->live_bytes < bytes);
        bytes = p->live_bytes;
        for (uint32_t b = 0, at = 0; b < p->flats.n; b++) {
            const dh_operand *g = &p->flats.at[b].matrix[DH_BUF_GRAD];
            if (g->buffer == DH_NONE) continue;
            if (!kept) kept = calloc((size_t)dh_model_n_params(&o->model) * 2, sizeof *kept);
            float *now = malloc(g->n_bytes);
            assert_ok(&ctx, s->spec.device->slab_read(&ctx, s->slab,
                                                      p->buffers.at[g->buffer].offset + g->byte0,
                                                      now, g->n_bytes));
            if (kind == DH_RECOMPUTE_KIND_NONE) memcpy(kept + at, now, g->n_bytes);
            assert_memory_equal(kept + at, now, g->n_bytes);
            at += (uint32_t)(g->n_bytes / sizeof *now);
            free(now);
        }
        dh_session_destroy(s);
    }
    free(kept);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* bf16_logits: tolerance of the largest error of a logit in bf16. */
static void check_within(const char *reference, const char *weights, double bf16_logits)
{
    oracle o = oracle_open(reference, weights, false);
    check_gradients(&o, DH_F32, 1, 2e-6, 2e-5);
    check_gradients(&o, DH_F32, 2, 2e-6, 2e-5);
    check_gradients(&o, DH_BF16, 1, 1e-2, 0.5);
    check_logits(&o, DH_F32, "logits", 1, 2e-5);
    check_logits(&o, DH_BF16, "logits", 1, bf16_logits);
    check_adamw(&o);
    check_recompute(&o, DH_F32);
    check_recompute(&o, DH_BF16);
    oracle_close(&o);
}

static void check_tiny(const char *reference, const char *weights)
{
    check_within(reference, weights, 0.1);
}

static void gpt2_matches(void **state)
{
    check_tiny("gpt2_tiny", "tests/data/weights/tiny-random-gpt2");
}

static void llama_matches(void **state)
{
    oracle o = oracle_open("stories260K", "tests/data/weights/stories260K/stories260K.bin", true);
    check_gradients(&o, DH_F32, 1, 5e-6, 5e-5);
    check_gradients(&o, DH_F32, 4, 5e-6, 5e-5);
    check_gradients(&o, DH_BF16, 1, 3e-2, 1.0);
    check_logits(&o, DH_F32, "logits", 1, 5e-5);
    check_logits(&o, DH_BF16, "logits", 1, 0.2);
    check_adamw(&o);
    check_recompute(&o, DH_F32);
    check_recompute(&o, DH_BF16);
    oracle_close(&o);
}

/* Runs a training step up to the router of each layer and looks at what it reads: the
 * reference's logits of every token. */
static void check_router_logits(const oracle *o)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_session *s = session_of(o, DH_F32, 1, false);
    const dh_device *device = s->spec.device;
    const int64_t n = o->batch * o->seq * o->model.n_experts;
    float *got = malloc((size_t)n * sizeof *got);
    int n_routers = 0;
    for (uint32_t i = 0; i < s->train->instrs.n; i++) {
        if (dh_instr_op(s->train, &s->train->instrs.at[i])->type != DH_OP_ROUTER) continue;
        dh_program cut = *s->train;
        dh_exec *exec;
        cut.instrs.n = i + 1;
        assert_ok(&ctx, dh_exec_create(&ctx, device, &cut, s->slab, NULL, &exec));
        const dh_step step = {.source = {.load = rows_load, .self = (void *)(uintptr_t)&o->rows}};
        assert_ok(&ctx, dh_exec_run(&ctx, exec, &step));
        const dh_operand *logits = dh_instr_operand(&cut, &cut.instrs.at[i], 0);
        assert_int_equal(logits->n_bytes, (size_t)n * sizeof *got);
        assert_ok(&ctx, device->slab_read(&ctx, s->slab,
                                          cut.buffers.at[logits->buffer].offset + logits->byte0,
                                          got, logits->n_bytes));
        dh_exec_destroy(exec);
        char name[32];
        snprintf(name, sizeof name, "router_logits.%d", n_routers++);
        float *want = st_floats(o->file, name, n);
        assert_true(largest_error(got, want, n, rms(want, n)) <= 1e-5);
        free(want);
    }
    assert_int_equal(n_routers, dh_model_n_routed(&o->model, o->model.n_layers));
    free(got);
    dh_session_destroy(s);
}

static void check_aux_loss(const oracle *o)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_session *s = session_of(o, DH_F32, 1, false);
    double aux;
    run_step(o, s, 0, 0.0);
    assert_ok(&ctx, dh_session_aux_loss(&ctx, s, &aux));
    const float want = *(const float *)st_data(o->file, "aux_loss");
    printf("  %s: auxiliary loss %.7f, reference %.7f\n", o->model.name, aux, (double)want);
    assert_true(fabs(aux - (double)want) <= 1e-6);
    dh_session_destroy(s);
}

/* Every gradient is that of the total, cross-entropy + 0.02 * auxiliary loss. */
static void check_routed(const char *reference, const char *weights)
{
    oracle o = oracle_open(reference, weights, false);
    check_router_logits(&o);
    check_aux_loss(&o);
    check_gradients(&o, DH_F32, 1, 2e-6, 2e-5);
    check_gradients(&o, DH_BF16, 1, 1e-2, 0.05);
    check_logits(&o, DH_F32, "logits", 1, 2e-5);
    check_logits(&o, DH_BF16, "logits", 1, 0.06);
    check_adamw(&o);
    check_recompute(&o, DH_F32);
    check_recompute(&o, DH_BF16);
    oracle_close(&o);
}

/* Chunks of 64 tokens, two whole ones and a part; decoding by the state. */
static void linear_llama_matches(void **state)
{
    check_tiny("linear_llama_tiny", "tests/data/weights/tiny-linear_llama");
    check_tiny("linear_llama-hybrid_tiny", "tests/data/weights/tiny-linear_llama-hybrid");
}

static void mixtral_matches(void **state)
{
    check_routed("mixtral_tiny", "tests/data/weights/tiny-mixtral-seeded");
}

/* Weights of a token's experts as they are, and made to sum to 1. */
static void qwen3_moe_matches(void **state)
{
    check_routed("qwen3_moe_tiny", "tests/data/weights/tiny-qwen3_moe");
    check_routed("qwen3_moe_normed_tiny", "tests/data/weights/tiny-qwen3_moe_normed");
    check_routed("qwen3_moe-dense_tiny", "tests/data/weights/tiny-qwen3_moe-dense");
}

/* Sparsemixer, biases, and both lists of longrope: sequences are shorter than the first training's,
 * or longer. */
static void phimoe_matches(void **state)
{
    check_routed("phimoe_tiny", "tests/data/weights/tiny-phimoe");
    check_routed("phimoe-long_tiny", "tests/data/weights/tiny-phimoe-long");
}

/* With short factors throughout: up to the first training's 8 tokens, or the model's 64. */
static void longrope_bounds_a_sampled_text(void **state)
{
    static const struct {
        const char *path;
        int64_t context;
    } cases[] = {{"tests/data/weights/tiny-phimoe-long", 8},
                 {"tests/data/weights/tiny-phimoe", 64},
                 {"tests/data/weights/tiny-mistral", 64}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_trained trained;
        const dh_trained_spec spec = {
            .path = cases[i].path, .tokenizer = "bytes", .micro_batch = 1, .decode = true};
        assert_ok(&ctx, dh_trained_open(&ctx, &spec, &trained));
        assert_int_equal(trained.session->spec.cache_len, cases[i].context);
        dh_trained_close(&trained);
    }
}

/* Small seeded models computed by Hugging Face's own classes (make_transformers.py). */
static void families_match(void **state)
{
    static const char *const families[] = {"mistral",
                                           "qwen2",
                                           "qwen3",
                                           "phi3",
                                           "olmo2",
                                           "olmo3",
                                           "smollm3",
                                           "gemma2",
                                           "gemma2-capped",
                                           "gemma3",
                                           "gemma3-window",
                                           "mistral-window",
                                           "qwen2-window",
                                           "deepseek_v3",
                                           "deepseek_v3-yarn",
                                           "deepseek_v3-dense"};
    for (size_t i = 0; i < DH_COUNTOF(families); i++) {
        char weights[64], reference[32];
        snprintf(weights, sizeof weights, "tests/data/weights/tiny-%s", families[i]);
        snprintf(reference, sizeof reference, "%s_tiny", families[i]);
        check_within(reference, weights, strcmp(families[i], "olmo3") == 0 ? 0.2 : 0.1);
    }
}

/* Adapters of a float64 model of PEFT's (make_lora.py), and the bytes that training them takes. */
static oracle adapted_open(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    char folder[64], reference[32];
    dh_lora lora;
    dh_str base = DH_STR_INIT;
    snprintf(folder, sizeof folder, "tests/data/weights/lora-%s", name);
    snprintf(reference, sizeof reference, "lora-%s", name);
    assert_ok(&ctx, dh_adapter_read_config(&ctx, folder, &lora, &base));
    oracle o = oracle_open(reference, base.text, false);
    o.model.lora = lora;
    assert_ok(&ctx, dh_weights_join(&ctx, o.weights, folder));
    dh_str_fini(&base);
    return o;
}

static uint64_t bytes_of(const dh_program *p, dh_buffer_kind kind)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->buffers.n; i++)
        if (p->buffers.at[i].kind == kind) n += p->buffers.at[i].n_bytes;
    return n;
}

/* Frozen weights have neither gradients nor moments, and in bf16 no float32 beside what is computed
 * with; runs of parameters are padded to DH_FLAT_ALIGN elements. */
static void check_memory(const oracle *o, dh_dtype dtype)
{
    dh_session *s = session_of(o, dtype, 1, false);
    const dh_program *p = dh_session_layout(s);
    const uint64_t trained = (uint64_t)dh_model_n_trained(&o->model) * sizeof(float);
    const uint64_t gap = p->params.n * DH_FLAT_ALIGN * sizeof(float);
    const dh_buffer_kind kinds[] = {DH_BUF_GRAD, DH_BUF_ADAM_M, DH_BUF_ADAM_V};
    for (size_t k = 0; k < DH_COUNTOF(kinds); k++) {
        assert_true(bytes_of(p, kinds[k]) >= trained);
        assert_true(bytes_of(p, kinds[k]) <= trained + gap);
    }
    int64_t n_matrix = 0, n_vector = 0; /* frozen */
    for (size_t i = 0; i < p->params.n; i++) {
        const dh_param *param = &p->params.at[i];
        assert_int_equal(param->frozen, !param->adapter);
        if (param->frozen)
            *(dh_param_is_matrix(param) ? &n_matrix : &n_vector) += dh_param_elements(param);
    }
    const uint64_t wide =
        trained + (uint64_t)(n_vector + (dtype == DH_F32 ? n_matrix : 0)) * sizeof(float);
    const uint64_t copy = dtype == DH_F32 ? 0 : trained / 2 + (uint64_t)n_matrix * sizeof(dh_bf16);
    assert_true(bytes_of(p, DH_BUF_MASTER) >= wide && bytes_of(p, DH_BUF_MASTER) <= wide + gap);
    assert_true(bytes_of(p, DH_BUF_COPY) >= copy && bytes_of(p, DH_BUF_COPY) <= copy + gap);
    dh_session_destroy(s);
}

/* Weights with the adapters merged into them give what both gave. */
static void check_merged(oracle *o)
{
    dh_ctx ctx = DH_CTX_INIT;
    float *want = st_floats(o->file, "logits", o->batch * o->seq * o->model.vocab), *got;
    const int64_t n = o->seq * o->model.vocab;
    const float *logits;
    oracle plain = *o;
    plain.model.lora.rank = 0;
    dh_session *merged = session_of(&plain, DH_F32, 1, true);
    const dh_program *p = dh_session_layout(merged);
    for (uint32_t i = 0; i < p->params.n; i++) {
        const dh_param *param = &p->params.at[i];
        for (int k = 0; k < param->n_pieces && param->ndim == 2; k++) {
            const dh_param_piece piece = dh_param_piece_at(param, k);
            const int64_t rows = piece.hf_shape[0], cols = piece.hf_shape[1];
            float *whole = malloc((size_t)(rows * cols) * sizeof *whole);
            assert_ok(&ctx, dh_weights_read(&ctx, o->weights, piece.hf_name, 0, rows, 0, cols,
                                            false, whole, cols));
            /* Some rows, then the others. */
            assert_ok(&ctx, dh_adapter_merge(&ctx, o->weights, &o->model, piece.hf_name, 0, 5, cols,
                                             whole));
            assert_ok(&ctx, dh_adapter_merge(&ctx, o->weights, &o->model, piece.hf_name, 5,
                                             rows - 5, cols, whole + 5 * cols));
            float *own = malloc((size_t)(piece.n_rows * piece.n_cols) * sizeof *own);
            for (int64_t r = 0; r < piece.n_rows; r++)
                for (int64_t c = 0; c < piece.n_cols; c++)
                    own[r * piece.n_cols + c] = piece.transpose
                                                    ? whole[c * cols + piece.hf_row + r]
                                                    : whole[(piece.hf_row + r) * cols + c];
            const dh_operand *home = &p->homes.at[i].at[DH_BUF_MASTER];
            assert_ok(&ctx, merged->spec.device->slab_write(
                                &ctx, merged->slab,
                                p->buffers.at[home->buffer].offset + home->byte0 +
                                    (uint64_t)(piece.row * piece.n_cols) * sizeof *own,
                                own, (uint64_t)(piece.n_rows * piece.n_cols) * sizeof *own));
            free(own);
            free(whole);
        }
    }
    got = malloc((size_t)n * sizeof *got);
    for (int64_t t = 0; t < o->seq; t++) {
        assert_ok(&ctx, dh_session_decode(&ctx, merged, o->rows.tokens + t, 1, t, &logits));
        memcpy(got + t * o->model.vocab, logits, (size_t)o->model.vocab * sizeof *got);
    }
    const double error = largest_error(got, want, n, rms(want, n));
    printf("  %s: merged, worst logit error %.2g of their RMS\n", o->model.name, error);
    assert_true(error <= 2e-5);
    free(got);
    free(want);
    dh_session_destroy(merged);
}

static void adapters_match(void **state)
{
    static const char *const names[] = {"qwen2", "mistral", "phi3", "gpt2"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        oracle o = adapted_open(names[i]);
        check_gradients(&o, DH_F32, 1, 2e-6, 2e-5);
        check_gradients(&o, DH_F32, 2, 2e-6, 2e-5);
        check_gradients(&o, DH_BF16, 1, 1e-2, 0.5);
        check_logits(&o, DH_F32, "logits", 1, 2e-5);
        check_logits(&o, DH_BF16, "logits", 1, 0.1);
        check_adamw(&o);
        check_recompute(&o, DH_F32);
        check_recompute(&o, DH_BF16);
        check_memory(&o, DH_F32);
        check_memory(&o, DH_BF16);
        check_merged(&o);
        oracle_close(&o);
    }
}

/* fp16 weights with a vocabulary of 32,000: logits and the published greedy text. */
static void fp16_llama_matches(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_safetensors *file;
    assert_ok(&ctx,
              dh_st_open(&ctx, "tests/data/oracles/torch/llama_tiny_fp16.safetensors", &file));
    oracle o = {.file = file, .batch = 2, .seq = 10};
    o.model = model_of("tests/data/weights/tiny-random-llama", &o.weights);
    int32_t *prompt = (int32_t *)st_floats(file, "tokens", 8);
    int32_t *greedy = (int32_t *)st_floats(file, "greedy_expected", 20);
    float *want = st_floats(file, "logits_every_100th", 2 * 4 * 320);
    dh_session *s = session_of(&o, DH_F32, 1, true);
    for (int b = 0; b < 2; b++) {
        const float *logits = NULL;
        for (int t = 0; t < 9; t++) {
            int32_t token = t < 4 ? prompt[b * 4 + t] : greedy[b * 10 + t];
            assert_ok(&ctx, dh_session_decode(&ctx, s, &token, 1, t, &logits));
            if (t < 4)
                for (int k = 0; k < 320; k++)
                    assert_true(fabsf(logits[k * 100] - want[(b * 4 + t) * 320 + k]) <= 2e-6f);
            if (t < 3) continue;
            int best = 0;
            for (int k = 1; k < o.model.vocab; k++)
                if (logits[k] > logits[best]) best = k;
            assert_int_equal(best, greedy[b * 10 + t + 1]);
        }
    }
    dh_session_destroy(s);
    dh_weights_close(o.weights);
    dh_st_close(file);
    free(prompt);
    free(greedy);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_matches),    cmocka_unit_test(llama_matches),
        cmocka_unit_test(mixtral_matches), cmocka_unit_test(qwen3_moe_matches),
        cmocka_unit_test(phimoe_matches),  cmocka_unit_test(linear_llama_matches),
        cmocka_unit_test(families_match),  cmocka_unit_test(fp16_llama_matches),
        cmocka_unit_test(adapters_match),  cmocka_unit_test(longrope_bounds_a_sampled_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
