/* Operators on parts of the rows, and of the columns: a layer whose operators are cut by samples,
 * linears also by rows of their weights, each into as many parts as a draw says, before it is
 * differentiated, perhaps recomputed, against the layer whole. Masks of dropout are the same:
 * positions and samples decide them.
 *
 * Tolerance: rows of a GEMM may be summed in another order when there are fewer, a weight's
 * gradient is a sum of parts, and so is that of a linear's input: 2e-5 of an element plus its
 * tensor's root mean square. */
#include "fixture.h"

#include "graph/rewrite.h"
#include "run/cpu/glue.h"

enum { BATCH = 4, SEQ = 16, MAX_PARTS = 4 };

/* ---- cutting ------------------------------------------------------------------------------ */

typedef struct cut {
    rewrite to;
    uint32_t (*parts)[3][MAX_PARTS]; /* by tensor, log2 of how many, which: a view, DH_NONE */
    uint64_t *seed;
} cut;

/* Rows are samples: of statistics by head, or SEQ rows each. */
static bool has_samples(const dh_tensor *t)
{
    if (t->kind == DH_TENSOR_INPUT) return true;
    return t->kind == DH_TENSOR_ACT && (t->shape[0] == BATCH * SEQ || t->ndim == 3);
}

static uint32_t rows_of(cut *c, uint32_t id, int log_n, int part)
{
    if (id == DH_NONE || log_n == 0) return id;
    uint32_t *view = &c->parts[id][log_n][part];
    if (*view != DH_NONE) return *view;
    const dh_tensor *t = rewrite_tensor(&c->to, id);
    const int64_t n = t->shape[0] >> log_n;
    char name[sizeof t->name];
    snprintf(name, sizeof name, "%.12s.%dof%d", t->name, part, 1 << log_n);
    return *view = rewrite_rows(&c->to, id, name, part * n, n);
}

static uint32_t part_of(cut *c, uint32_t id, int log_n, int part)
{
    const bool cuts = id != DH_NONE && has_samples(rewrite_tensor(&c->to, id));
    return cuts ? rows_of(c, id, log_n, part) : id;
}

static uint32_t columns_like(cut *c, uint32_t like, int n)
{
    dh_tensor t = rewrite_like(&c->to, like);
    t.shape[1] /= n;
    rewrite_name(&t, "%.12s.col%zu", t.name, c->to.graph->tensors.n);
    return rewrite_add(&c->to, &t);
}

/* Columns side by side: at once, or apart and together again in between. */
static void push_join(cut *c, const uint32_t *columns, int n, uint32_t y)
{
    uint32_t again[DH_MAX_OPERANDS];
    memcpy(again, columns, sizeof again);
    if (test_rand(c->seed) % 2) {
        const uint32_t all = columns_like(c, y, 1);
        rewrite_push_op(&c->to, DH_OP_JOIN_COLUMNS, DH_PHASE_F, -1, columns, &all);
        for (int k = 0; k < n; k++) again[k] = columns_like(c, y, n);
        rewrite_push_op(&c->to, DH_OP_SPLIT_COLUMNS, DH_PHASE_F, -1, &all, again);
    }
    rewrite_push_op(&c->to, DH_OP_JOIN_COLUMNS, DH_PHASE_F, -1, again, &y);
}

/* A linear by rows of its weight, elements of its bias. */
static void push_linear(cut *c, const dh_op *linear, int log_n)
{
    const int n = 1 << log_n;
    uint32_t columns[DH_MAX_OPERANDS];
    memset(columns, 0xff, sizeof columns);
    for (int k = 0; k < n; k++) {
        dh_op op = *linear;
        op.in[1] = rows_of(c, op.in[1], log_n, k);
        op.in[2] = rows_of(c, op.in[2], log_n, k);
        op.out[0] = columns[k] = columns_like(c, op.out[0], n);
        rewrite_push(&c->to, &op);
    }
    push_join(c, columns, n, linear->out[0]);
}

static void cut_layer(dh_graph *g, uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    cut c = {.to = {.graph = g}, .seed = seed};
    c.parts = malloc(g->tensors.n * sizeof *c.parts);
    assert_non_null(c.parts);
    memset(c.parts, 0xff, g->tensors.n * sizeof *c.parts);
    for (size_t i = 0; i < g->ops.n; i++) {
        const int log_n = (int)(test_rand(seed) % 3), log_columns = (int)(test_rand(seed) % 3);
        for (int part = 0; part < 1 << log_n; part++) {
            dh_op op = g->ops.at[i];
            for (int k = 0; k < DH_MAX_OPERANDS; k++) {
                op.in[k] = part_of(&c, op.in[k], log_n, part);
                op.out[k] = part_of(&c, op.out[k], log_n, part);
            }
            if (op.type == DH_OP_LINEAR && log_columns > 0)
                push_linear(&c, &op, log_columns);
            else
                rewrite_push(&c.to, &op);
        }
    }
    free(c.parts);
    assert_ok(&ctx, rewrite_end(&ctx, &c.to, DH_OK, "cutting a layer"));
}

/* ---- running ------------------------------------------------------------------------------ */

typedef struct layer {
    dh_graph *graph;
    char **at;              /* by tensor: its storage, or its base's */
    unsigned char *written; /* by tensor */
} layer;

static void *address(const layer *l, uint32_t id)
{
    if (id == DH_NONE) return NULL;
    const dh_tensor *t = &l->graph->tensors.at[id];
    const size_t row = (size_t)(dh_tensor_bytes(t) / t->shape[0]);
    return l->at[t->base == DH_NONE ? id : t->base] + (size_t)t->row0 * row;
}

static void run_op(layer *l, const dh_op *op)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_cpu_kernel *kernel = dh_cpu_kernel_of(op->type);
    const dh_scalars scalars = {.seed = 7, .step = 3};
    dh_call call = {.graph = l->graph, .op = op, .layer = 1, .scalars = &scalars};
    void *state = NULL;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        call.in[k] = address(l, op->in[k]);
        call.out[k] = address(l, op->out[k]);
        if (op->out[k] == DH_NONE) continue;
        call.accumulate |= (unsigned)l->written[op->out[k]] << k;
        l->written[op->out[k]] = 1;
    }
    if (kernel->workspace)
        call.work = aligned_alloc(64, (kernel->workspace(l->graph, op) | 63) + 1);
    if (kernel->prepare)
        assert_ok(&ctx, kernel->prepare(&ctx, l->graph, op, call.accumulate, &state));
    call.kernel = state;
    assert_ok(&ctx, kernel->run(&ctx, &call));
    if (kernel->release) kernel->release(state);
    free(call.work);
}

/* Parameters, what enters, and where rows come from; NaN in all that is yet to be written. */
static void fill(const layer *l, uint32_t id)
{
    const dh_tensor *t = &l->graph->tensors.at[id];
    const int64_t n = dh_tensor_elements(t);
    memset(l->at[id], 0xff, (size_t)dh_tensor_bytes(t));
    for (int64_t i = 0; t->kind == DH_TENSOR_INPUT && i < n; i++)
        if (t->which == DH_IN_POS)
            ((int32_t *)(void *)l->at[id])[i] = (int32_t)(i % SEQ);
        else
            ((int64_t *)(void *)l->at[id])[i] = 40 + i / SEQ;
    if (t->kind != DH_TENSOR_PARAM && id != l->graph->x_in && id != l->graph->dx_out) return;
    uint64_t seed = t->kind == DH_TENSOR_PARAM ? t->which + 1 : id == l->graph->x_in ? 98 : 99;
    for (int64_t i = 0; i < n; i++)
        ((float *)(void *)l->at[id])[i] =
            (float)((double)(test_rand(&seed) % 2001) / 1000.0 - 1) * 0.3f;
}

static layer run_layer(const dh_model *model, uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_build build = {.model = model,
                            .mode = DH_MODE_TRAIN,
                            .dtype = DH_F32,
                            .batch = BATCH,
                            .seq = SEQ,
                            .dropout = 0.2,
                            .loss_scale = 1};
    layer l;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &l.graph));
    if (seed) cut_layer(l.graph, seed);
    assert_ok(&ctx, dh_graph_differentiate(&ctx, l.graph));
    if (seed)
        assert_ok(&ctx, dh_pass_recompute(&ctx, l.graph, (dh_recompute_kind)(test_rand(seed) % 3)));
    assert_ok(&ctx, dh_graph_check(&ctx, l.graph));
    l.at = calloc(l.graph->tensors.n, sizeof *l.at);
    l.written = calloc(l.graph->tensors.n, 1);
    for (uint32_t i = 0; i < l.graph->tensors.n; i++) {
        if (l.graph->tensors.at[i].base != DH_NONE) continue;
        l.at[i] = malloc((size_t)dh_tensor_bytes(&l.graph->tensors.at[i]));
        fill(&l, i);
    }
    for (size_t i = 0; i < l.graph->ops.n; i++) run_op(&l, &l.graph->ops.at[i]);
    return l;
}

static void end_layer(layer *l)
{
    for (size_t i = 0; i < l->graph->tensors.n; i++) free(l->at[i]);
    free(l->at);
    free(l->written);
    dh_graph_destroy(l->graph);
}

/* ---- comparing ---------------------------------------------------------------------------- */

static void assert_near(const layer *parts, uint32_t a, const layer *whole, uint32_t b)
{
    const dh_tensor *t = &whole->graph->tensors.at[b];
    const int64_t n = dh_tensor_elements(t);
    const float *x = address(parts, a), *y = address(whole, b);
    const double error = largest_error(x, y, n, rms(y, n));
    if (!(error <= 2e-5)) fail_msg("%s is off by %g", t->name, error);
}

static uint32_t gradient(const layer *l, uint32_t which)
{
    for (uint32_t i = 0; i < l->graph->tensors.n; i++)
        if (l->graph->tensors.at[i].kind == DH_TENSOR_GRAD &&
            l->graph->tensors.at[i].which == which)
            return i;
    return DH_NONE;
}

static void parts_compute_what_the_whole_does(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny"};
    uint64_t seed = test_seed("parts_compute_what_the_whole_does");
    for (size_t m = 0; m < DH_COUNTOF(presets); m++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_model model;
        assert_ok(&ctx, dh_model_from_preset(&ctx, presets[m], &model));
        layer whole = run_layer(&model, NULL);
        for (int draw = 0; draw < 12; draw++) {
            layer parts = run_layer(&model, &seed);
            assert_near(&parts, parts.graph->x_out, &whole, whole.graph->x_out);
            assert_near(&parts, parts.graph->dx_in, &whole, whole.graph->dx_in);
            for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++)
                if (gradient(&whole, which) != DH_NONE)
                    assert_near(&parts, gradient(&parts, which), &whole, gradient(&whole, which));
            end_layer(&parts);
        }
        end_layer(&whole);
    }
}

/* A gradient of a part alone is none of the whole. */
static void parts_that_leave_rows_out_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "gpt2-tiny", &model));
    const dh_build build = {
        .model = &model, .mode = DH_MODE_TRAIN, .dtype = DH_F32, .batch = BATCH, .seq = SEQ};
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
    dh_op *last = &g->ops.at[g->ops.n - 1];
    const uint32_t p = last->in[1];
    dh_tensor half = g->tensors.at[p];
    half.base = p;
    half.shape[0] /= 2;
    last->in[1] = dh_graph_add_tensor(g, &half);
    assert_fails(&ctx, dh_graph_differentiate(&ctx, g), DH_EUNSUPPORTED,
                 "f is used in parts that are not all of it");
    dh_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_compute_what_the_whole_does),
        cmocka_unit_test(parts_that_leave_rows_out_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
