/* Context parallelism: ring attention operator by operator, then whole training steps
 * over ranks, against one rank that has the whole sequence.
 *
 * Tolerances. float32: both sides add the same products, grouped by key blocks of other
 * sizes and by ranks: sums of up to a few hundred terms with relative error 6e-8 each, so
 * 2e-5 of an element plus the tensor's RMS. bf16: an output is rounded once on either
 * side, so two neighbours of 8 bits may come out, 2^-7 apart, and gradients inherit that
 * from o: 2e-2; through a whole model, where roundings add up over layers, 0.2. */
#include "fixture.h"

#include <pthread.h>

#include "run/cpu/glue.h"
#include "train/params.h"

/* ---- one attention, all ranks in step --------------------------------------------------- */

typedef struct shape {
    int64_t batch, seq, heads, kv_heads, head_dim; /* seq: whole */
    dh_dtype dtype;
    int64_t window;
    int documents; /* a sample has so many, of drawn lengths; 0: it is one */
} shape;

enum { QKV, O, LSE, POS };  /* its tensors */
static bool float_kv_grads; /* dims of the graphs made next */

/* A graph that is attention alone: x_in = packed qkv, x_out = o. */
static dh_graph *attention_graph(const shape *s, int64_t seq)
{
    const int64_t n = s->batch * seq, o = s->heads * s->head_dim;
    const dh_tensor tensors[] = {
        {.name = "qkv",
         .kind = DH_TENSOR_ACT,
         .dtype = s->dtype,
         .ndim = 2,
         .shape = {n, o + 2 * s->kv_heads * s->head_dim},
         .axis = {DH_AXIS_TOKENS, DH_AXIS_HEADS},
         .base = DH_NONE,
         .which = DH_NONE},
        {.name = "o",
         .kind = DH_TENSOR_ACT,
         .dtype = s->dtype,
         .ndim = 2,
         .shape = {n, o},
         .axis = {DH_AXIS_TOKENS, DH_AXIS_HEADS},
         .base = DH_NONE,
         .which = DH_NONE},
        {.name = "lse",
         .kind = DH_TENSOR_ACT,
         .dtype = DH_F32,
         .ndim = 3,
         .shape = {s->batch, s->heads, seq},
         .axis = {DH_AXIS_NONE, DH_AXIS_HEADS, DH_AXIS_TOKENS},
         .base = DH_NONE,
         .which = DH_NONE},
        {.name = "pos",
         .kind = DH_TENSOR_INPUT,
         .dtype = DH_I32,
         .ndim = 1,
         .shape = {n},
         .axis = {DH_AXIS_TOKENS},
         .base = DH_NONE,
         .which = DH_IN_POS},
    };
    dh_graph *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->kind = DH_BLOCK_LAYER;
    g->mode = DH_MODE_TRAIN;
    g->dtype = s->dtype;
    g->dims = (dh_dims){.float_kv_grads = float_kv_grads,
                        .batch = s->batch,
                        .seq = seq,
                        .width = o,
                        .n_heads = s->heads,
                        .n_kv_heads = s->kv_heads,
                        .head_dim = s->head_dim,
                        .max_seq = seq,
                        .window = s->window,
                        .layers = 1};
    for (size_t i = 0; i < DH_COUNTOF(tensors); i++) dh_graph_add_tensor(g, &tensors[i]);
    dh_graph_add_op(g, DH_OP_ATTN, DH_PHASE_F, (const uint32_t[]){0, s->documents ? POS : DH_NONE},
                    (const uint32_t[]){1, 2});
    g->x_in = 0;
    g->x_out = 1;
    g->dx_out = g->dx_in = g->loss_x = g->loss_dx = DH_NONE;
    return g;
}

/* One rank: its graph and a buffer for every tensor. */
typedef struct ring_rank {
    dh_graph *graph;
    void **at;
} ring_rank;

static ring_rank rank_create(const shape *s, int64_t cp, int64_t cp_rank)
{
    dh_ctx ctx = DH_CTX_INIT;
    ring_rank r = {.graph = attention_graph(s, s->seq / cp)};
    assert_ok(&ctx, dh_pass_context_parallel(&ctx, r.graph, cp, cp_rank));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, r.graph));
    assert_ok(&ctx, dh_graph_check(&ctx, r.graph));
    r.at = calloc(r.graph->tensors.n, sizeof *r.at);
    for (size_t i = 0; i < r.graph->tensors.n; i++) {
        size_t n_bytes = (size_t)dh_tensor_bytes(&r.graph->tensors.at[i]);
        r.at[i] = malloc(n_bytes);
        memset(r.at[i], 0xff, n_bytes); /* NaN: what is read must have been written */
    }
    return r;
}

static void rank_destroy(ring_rank *r)
{
    for (size_t i = 0; i < r->graph->tensors.n; i++) free(r->at[i]);
    free(r->at);
    dh_graph_destroy(r->graph);
}

static void run_kernel(ring_rank *r, const dh_op *op)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_cpu_kernel *kernel = dh_cpu_kernel_of(op->type);
    const dh_scalars scalars = {0};
    dh_call call = {.graph = r->graph, .op = op, .scalars = &scalars};
    void *state = NULL;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        call.in[k] = op->in[k] == DH_NONE ? NULL : r->at[op->in[k]];
        call.out[k] = op->out[k] == DH_NONE ? NULL : r->at[op->out[k]];
    }
    if (kernel->workspace)
        call.work = aligned_alloc(64, (kernel->workspace(r->graph, op) | 63) + 1);
    if (kernel->prepare) assert_ok(&ctx, kernel->prepare(&ctx, r->graph, op, 0, &state));
    call.kernel = state;
    assert_ok(&ctx, kernel->run(&ctx, &call));
    if (kernel->release) kernel->release(state);
    free(call.work);
}

/* Operator i on every rank, then operator i + 1: all graphs have the same ones. */
static void run_ring(ring_rank *ranks, int64_t cp)
{
    for (size_t i = 0; i < ranks[0].graph->ops.n; i++)
        for (int64_t r = 0; r < cp; r++) {
            const dh_op *op = &ranks[r].graph->ops.at[i];
            if (op->type != DH_OP_RING_EXCHANGE) {
                run_kernel(&ranks[r], op);
                continue;
            }
            const dh_tensor *t = &ranks[r].graph->tensors.at[op->in[0]];
            memcpy(ranks[(r + 1) % cp].at[op->out[0]], ranks[r].at[op->in[0]],
                   (size_t)dh_tensor_bytes(t));
        }
}

/* ---- comparing ------------------------------------------------------------------------------ */

static float value_at(dh_dtype dtype, const void *x, int64_t i)
{
    return dtype == DH_BF16 ? dh_bf16_to_f32(((const dh_bf16 *)x)[i]) : ((const float *)x)[i];
}

/* The rank's rows of a token tensor [B*T, cols]: `from` of the whole into `tensor`. */
static void take_rows(const ring_rank *whole, uint32_t from, ring_rank *part, uint32_t tensor)
{
    const dh_dims *d = &part->graph->dims;
    const dh_tensor *t = &part->graph->tensors.at[tensor];
    const size_t row = (size_t)(dh_tensor_bytes(t) / t->shape[0]);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t i = 0; i < d->seq; i++) {
            int64_t n = b * whole->graph->dims.seq + dh_cp_position(d, d->cp_rank, i);
            memcpy((char *)part->at[tensor] + (size_t)(b * d->seq + i) * row,
                   (const char *)whole->at[from] + (size_t)n * row, row);
        }
}

static double size_of(const dh_tensor *t, const void *at)
{
    double sum = 0;
    const int64_t n = dh_tensor_elements(t);
    for (int64_t i = 0; i < n; i++) {
        double v = value_at(t->dtype, at, i);
        sum += v * v;
    }
    return sqrt(sum / (double)n);
}

/* Error of elements over element plus RMS of their tensor. The mean square tells a wrong sum from
 * rounding sharply; the worst of 10^5 elements is in the tail of rounding, where dP - delta
 * cancels. */
typedef struct errors {
    double squares, n, worst;
} errors;

static double mean_error(const errors *e)
{
    return sqrt(e->squares / e->n);
}

/* Adds the errors of the rank's rows of b against the whole's of a. */
static void add_errors(const ring_rank *whole, const ring_rank *part, uint32_t a, uint32_t b,
                       errors *sum)
{
    const dh_dims *d = &part->graph->dims;
    const dh_tensor *t = &part->graph->tensors.at[b];
    const int64_t cols = t->shape[1];
    const double size = size_of(&whole->graph->tensors.at[a], whole->at[a]);
    for (int64_t n = 0; n < t->shape[0]; n++) {
        int64_t from =
            n / d->seq * whole->graph->dims.seq + dh_cp_position(d, d->cp_rank, n % d->seq);
        for (int64_t c = 0; c < cols; c++) {
            double want = value_at(t->dtype, whole->at[a], from * cols + c);
            double e = fabs(value_at(t->dtype, part->at[b], n * cols + c) - want);
            e /= size + fabs(want);
            sum->squares += e * e;
            sum->n++;
            if (!(e <= sum->worst)) sum->worst = e;
        }
    }
}

static double lse_error(const ring_rank *whole, const ring_rank *part)
{
    const dh_dims *d = &part->graph->dims;
    const float *all = whole->at[2], *own = part->at[2];
    double worst = 0;
    for (int64_t h = 0; h < d->batch * d->n_heads; h++)
        for (int64_t t = 0; t < d->seq; t++) {
            int64_t p = dh_cp_position(d, d->cp_rank, t);
            double e =
                fabs((double)own[h * d->seq + t] - (double)all[h * whole->graph->dims.seq + p]);
            if (!(e <= worst)) worst = e;
        }
    return worst;
}

static void fill(uint64_t *seed, const dh_tensor *t, void *at, double size)
{
    for (int64_t i = 0; i < dh_tensor_elements(t); i++) {
        float v = (float)(size * ((double)(test_rand(seed) % 20001) / 1e4 - 1));
        if (t->dtype == DH_BF16)
            ((dh_bf16 *)at)[i] = dh_f32_to_bf16(v);
        else
            ((float *)at)[i] = v;
    }
}

/* Positions of drawn documents. */
static void draw_documents(uint64_t *seed, const shape *s, int32_t *pos)
{
    for (int64_t b = 0; b < s->batch; b++) {
        bool begins[4096] = {true};
        assert_true(s->seq <= 4096);
        for (int i = 1; i < s->documents; i++) begins[test_rand(seed) % (uint64_t)s->seq] = true;
        for (int64_t t = 0; t < s->seq; t++)
            pos[b * s->seq + t] = begins[t] ? 0 : pos[b * s->seq + t - 1] + 1;
    }
}

/* Each of cp ranks rounds its share of a gradient, and the sum that it hands on, to half a unit. */
static double worst_gradient(const shape *s, int64_t cp)
{
    const double unit = s->dtype == DH_BF16 ? 0x1p-8 : 0x1p-23;
    const double handed_on = float_kv_grads ? 0 : 2 * (double)cp * unit / 2;
    return (s->dtype == DH_F32 ? 2e-4 : 0.02) + handed_on;
}

static void check_ring(uint64_t *seed, const shape *s, int64_t cp, double q_size)
{
    ring_rank whole = rank_create(s, 1, 0), ranks[4];
    const uint32_t qkv = 0, dout = whole.graph->dx_out, dqkv = whole.graph->dx_in;
    fill(seed, &whole.graph->tensors.at[qkv], whole.at[qkv], q_size);
    fill(seed, &whole.graph->tensors.at[dout], whole.at[dout], 1);
    if (s->documents) draw_documents(seed, s, whole.at[POS]);
    run_ring(&whole, 1);
    for (int64_t r = 0; r < cp; r++) {
        ranks[r] = rank_create(s, cp, r);
        take_rows(&whole, qkv, &ranks[r], qkv);
        take_rows(&whole, dout, &ranks[r], ranks[r].graph->dx_out);
        if (s->documents) take_rows(&whole, POS, &ranks[r], POS);
    }
    run_ring(ranks, cp);
    errors o = {0}, grad = {0};
    double lse = 0;
    for (int64_t r = 0; r < cp; r++) {
        add_errors(&whole, &ranks[r], 1, 1, &o);
        lse = fmax(lse, lse_error(&whole, &ranks[r]));
        add_errors(&whole, &ranks[r], dqkv, ranks[r].graph->dx_in, &grad);
        rank_destroy(&ranks[r]);
    }
    rank_destroy(&whole);
    printf("  %scp %lld B%lld T%lld H%lld/%lld D%lld %s, window %lld, %d documents: o %.2g (worst "
           "%.2g), lse %.2g, gradients %.2g (worst %.2g)\n",
           float_kv_grads ? "float32 gradients, " : "", (long long)cp, (long long)s->batch,
           (long long)s->seq, (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim,
           dh_dtype_name(s->dtype), (long long)s->window, s->documents, mean_error(&o), o.worst,
           lse, mean_error(&grad), grad.worst);
    const bool wide = s->dtype == DH_F32;
    assert_true(mean_error(&o) <= (wide ? 1e-6 : 1e-3));
    assert_true(mean_error(&grad) <= (wide ? 2e-6 : 1e-3));
    assert_true(o.worst <= (wide ? 2e-5 : 0.02) && grad.worst <= worst_gradient(s, cp));
    assert_true(lse <= 1e-5);
}

static void rings_are_one_attention(void **state)
{
    uint64_t seed = test_seed("rings_are_one_attention");
    static const shape shapes[] = {
        {2, 96, 4, 4, 16, DH_F32, 0, 0},    {2, 192, 4, 2, 16, DH_F32, 0, 0},
        {1, 480, 2, 1, 64, DH_F32, 0, 0},   {3, 24, 6, 2, 8, DH_F32, 0, 0},
        {2, 192, 4, 1, 32, DH_BF16, 0, 0},  {2, 192, 2, 1, 16, DH_F32, 10, 0},
        {2, 192, 2, 1, 16, DH_F32, 100, 0}, {2, 24, 2, 1, 8, DH_F32, 1, 0},
        {3, 192, 2, 1, 16, DH_F32, 0, 5},   {2, 480, 2, 1, 16, DH_F32, 0, 40},
        {2, 192, 2, 1, 16, DH_BF16, 30, 4}, {2, 480, 2, 1, 16, DH_F32, 130, 3},
    };
    for (size_t i = 0; i < DH_COUNTOF(shapes); i++)
        for (int64_t cp = 2; cp <= 4; cp++)
            for (int wide = shapes[i].dtype == DH_F32; wide < 2; wide++) {
                float_kv_grads = wide;
                check_ring(&seed, &shapes[i], cp, i % 2 ? 4 : 1);
            }
    float_kv_grads = false;
}

/* ---- training steps over ranks -------------------------------------------------------------- */

enum { SEQ = 32, SAMPLES = 4, STEPS = 3, MAX_RANKS = 8 };

static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

typedef struct mesh_case {
    const char *preset;
    double dropout;
    int64_t dp, tp, pp, cp;
    dh_dtype dtype;
    dh_recompute_kind recompute;
} mesh_case;

typedef struct member {
    const mesh_case *c;
    dh_comm_world *world;
    dh_mesh mesh;
    int rank;
    dh_session *session;
    int n_steps;
    double lr, loss[STEPS], rows[STEPS], eval_loss, eval_rows, norm;
    bool failed;
    char message[DH_CTX_MESSAGE_BYTES];
} member;

/* With lr 0 the last gradients are those of the first weights. */
static dh_status train_member(dh_ctx *ctx, member *m)
{
    const mesh_case *c = m->c;
    const dh_coord at = dh_mesh_coord(&m->mesh, m->rank);
    const int64_t micro = 1, n_micro = SAMPLES / c->dp;
    rows_source rows = {tokens, targets, SAMPLES};
    dh_session_spec spec = {.recipe = {.mesh = m->mesh,
                                       .dtype = c->dtype,
                                       .micro_batch = micro,
                                       .seq = SEQ,
                                       .n_micro = n_micro,
                                       .global_tokens = SAMPLES * SEQ,
                                       .dropout = c->dropout,
                                       .recompute = c->recompute},
                            .device = dh_device_find("auto"),
                            .rank = m->rank,
                            .train = true,
                            .eval = true};
    DH_TRY(dh_model_from_preset(ctx, c->preset, &spec.recipe.model));
    if (spec.recipe.model.vocab == 0) spec.recipe.model.vocab = 65;
    int n_threads;
    DH_TRY(spec.device->bind_rank(ctx, m->rank, (int)m->mesh.ranks, 1, &n_threads));
    if (m->world) DH_TRY(dh_comm_attach(ctx, m->world, m->rank, &spec.comm));
    DH_TRY(dh_session_create(ctx, &spec, &m->session));
    DH_TRY(dh_session_init_params(ctx, m->session, 11));
    dh_step step = {.first_sample = at.dp * micro,
                    .sample_stride = c->dp * micro,
                    .seed = 5,
                    .lr = m->lr,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .eps = 1e-5, /* far above the rounding of gradients: Adam amplifies it else */
                    .weight_decay = 0.1,
                    .source = {.load = rows_load, .self = &rows}};
    for (step.step = 0; step.step < m->n_steps; step.step++) {
        DH_TRY(dh_exec_run(ctx, m->session->train_exec, &step));
        DH_TRY(dh_session_loss(ctx, m->session, &m->loss[step.step], &m->rows[step.step]));
    }
    DH_TRY(dh_session_grad_norm(ctx, m->session, &m->norm));
    return dh_session_eval_batch(ctx, m->session, &step.source, 1, &m->eval_loss, &m->eval_rows);
}

static void *member_main(void *arg)
{
    member *m = arg;
    dh_ctx ctx = DH_CTX_INIT;
    m->failed = train_member(&ctx, m) != DH_OK;
    snprintf(m->message, sizeof m->message, "%s", ctx.message);
    return NULL;
}

static void train_all(const mesh_case *c, int n_steps, double lr, member *members,
                      dh_comm_world **world)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh mesh;
    pthread_t threads[MAX_RANKS];
    assert_ok(&ctx, dh_mesh_init(&ctx, c->dp, c->tp, c->pp, c->cp, 1, 0, 0, &mesh));
    assert_true(mesh.ranks <= MAX_RANKS);
    const dh_comm_config config = {.ranks = (int)mesh.ranks};
    *world = NULL;
    if (mesh.ranks > 1) assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, world));
    for (int r = 0; r < mesh.ranks; r++) {
        members[r] = (member){
            .c = c, .world = *world, .mesh = mesh, .rank = r, .n_steps = n_steps, .lr = lr};
        assert_int_equal(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
    }
    for (int r = 0; r < mesh.ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < mesh.ranks; r++)
        if (members[r].failed) fail_msg("rank %d: %s", r, members[r].message);
}

static void destroy_all(member *members, dh_comm_world *world)
{
    for (int r = 0; r < members[0].mesh.ranks; r++) dh_session_destroy(members[r].session);
    dh_comm_world_destroy(world);
}

/* Losses of the ranks that have the head, each token counted once. */
static double total(const member *members, int step)
{
    const dh_mesh *m = &members[0].mesh;
    double sum = 0, rows = 0;
    for (int r = 0; r < m->ranks; r++) {
        const dh_coord at = dh_mesh_coord(m, r);
        if (at.tp != 0 || at.pp != m->pp - 1) continue;
        sum += step < 0 ? at.dp == 0 ? members[r].eval_loss : 0 : members[r].loss[step];
        rows += step < 0 ? at.dp == 0 ? members[r].eval_rows : 0 : members[r].rows[step];
    }
    assert_true(rows == (step < 0 ? SEQ : SAMPLES * SEQ));
    return sum / rows;
}

/* What a rank has of every gradient against the whole's, over element plus RMS. */
static double gradient_error(const dh_session *one, const dh_session *rank, int64_t *n_seen)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_hf_tensor *list, *all;
    size_t n, n_all;
    double worst = 0;
    assert_ok(&ctx, dh_hf_tensors(&ctx, dh_session_layout(rank), &list, &n));
    assert_ok(&ctx, dh_hf_tensors(&ctx, dh_session_layout(one), &all, &n_all));
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < n_all && strcmp(all[k].name, list[i].name) != 0) k++;
        assert_true(k < n_all);
        int64_t size = list[i].shape[0] * (list[i].ndim == 2 ? list[i].shape[1] : 1);
        float *want = malloc((size_t)size * sizeof *want),
              *got = malloc((size_t)size * sizeof *got);
        memset(got, 0xff, (size_t)size * sizeof *got);
        assert_ok(&ctx, dh_session_read_hf(&ctx, one, &all[k], DH_BUF_GRAD, want));
        assert_ok(&ctx, dh_session_read_hf(&ctx, rank, &list[i], DH_BUF_GRAD, got));
        const double scale = rms(want, size) + 1e-9;
        for (int64_t e = 0; e < size; e++) {
            uint32_t bits;
            memcpy(&bits, &got[e], sizeof bits);
            if (bits == UINT32_MAX) continue; /* another rank's */
            double error = fabs((double)got[e] - (double)want[e]) / (scale + fabs((double)want[e]));
            if (!(error <= worst)) worst = error;
            ++*n_seen;
        }
        free(want);
        free(got);
    }
    free(list);
    free(all);
    return worst;
}

static double losses_error(const member *many, const member *one)
{
    double worst = 0;
    for (int s = -1; s < one->n_steps; s++)
        worst = fmax(worst, fabs(total(many, s) - total(one, s)));
    return worst;
}

/* Dropout is on where a case says so: masks depend on sample and position, not on ranks. */
static void check_mesh(const mesh_case *c)
{
    const mesh_case alone = {c->preset, c->dropout, 1, 1, 1, 1, c->dtype, DH_RECOMPUTE_KIND_NONE};
    member one[1], many[MAX_RANKS];
    dh_comm_world *none, *world;
    train_all(&alone, 1, 0, one, &none);
    train_all(c, 1, 0, many, &world);
    double grad = 0, loss = losses_error(many, one);
    int64_t n_seen = 0;
    for (int r = 0; r < many[0].mesh.ranks; r++) {
        grad = fmax(grad, gradient_error(one[0].session, many[r].session, &n_seen));
        assert_true(fabs(many[r].norm / one[0].norm - 1) <= (c->dtype == DH_F32 ? 1e-5 : 1e-2));
    }
    destroy_all(one, none);
    destroy_all(many, world);

    train_all(&alone, STEPS, 1e-3, one, &none);
    train_all(c, STEPS, 1e-3, many, &world);
    double later = losses_error(many, one);
    destroy_all(one, none);
    destroy_all(many, world);
    printf("  %s dp %lld tp %lld pp %lld cp %lld: loss %.2g, gradients %.2g, %d losses %.2g\n",
           c->preset, (long long)c->dp, (long long)c->tp, (long long)c->pp, (long long)c->cp, loss,
           grad, STEPS, later);
    assert_true(n_seen > 1000);
    const bool wide = c->dtype == DH_F32;
    assert_true(loss <= (wide ? 1e-6 : 1e-3) && later <= (wide ? 1e-6 : 1e-2));
    assert_true(grad <= (wide ? 2e-5 : 0.2));
}

static void training_over_contexts_is_training(void **state)
{
    uint64_t seed = test_seed("training_over_contexts_is_training");
    for (int i = 0; i < SAMPLES * SEQ; i++) tokens[i] = (int32_t)(test_rand(&seed) % 65);
    for (int i = 0; i < SAMPLES * SEQ; i++)
        targets[i] = i % SEQ < SEQ - 1 ? tokens[i + 1] : (int32_t)(test_rand(&seed) % 65);
    static const mesh_case cases[] = {
        /* model, dropout, dp, tp, pp, cp, type, recomputation */
        {"gpt2-tiny", 0, 1, 1, 1, 2, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"gpt2-tiny", 0.2, 1, 1, 1, 4, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"stories260K", 0, 1, 1, 1, 2, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"stories260K", 0, 1, 2, 1, 2, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"stories260K", 0, 2, 1, 1, 2, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"stories260K", 0, 1, 1, 2, 2, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"stories260K", 0.1, 1, 2, 2, 2, DH_F32, DH_RECOMPUTE_KIND_NONE},
        {"stories260K", 0.1, 1, 2, 1, 4, DH_F32, DH_RECOMPUTE_KIND_FULL},
        {"stories260K", 0, 1, 2, 1, 4, DH_BF16, DH_RECOMPUTE_KIND_NONE},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) check_mesh(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_are_one_attention),
        cmocka_unit_test(training_over_contexts_is_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
