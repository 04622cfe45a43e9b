/* Every operator that has kernels for CUDA, as graphs have it: what those make of its operands
 * beside what the cpu device's make of the same ones. Blocks of small models, forward and backward,
 * whole and split; operands come from the operators before. On the host, as fibres; and, where the
 * build has CUDA, the same on a GPU (test_gpu_operators, with DH_TEST_ON_GPU), if there is one. */
#include "graph/graph_cases.h"
#include "keep.h"
#include "run/cpu/glue.h"
#include "run/cuda/cuda.h"
#ifndef DH_TEST_ON_GPU
#include "run/cuda/host/host.h"
#endif

#define EACH_DTYPE(T) for (dh_dtype T = DH_F32; T <= DH_BF16; T = (dh_dtype)(T + 1))

/* ---- tensors ------------------------------------------------------------------------------- */

/* A buffer for each tensor that has storage of its own. */
typedef struct values {
    const dh_graph *g;
    unsigned char *at[1024];
} values;

static uint64_t seed;
static double spread = 1; /* of the numbers that operands begin with */
static bool covered[DH_N_OP_TYPE];

static unsigned char *address(const values *v, uint32_t id)
{
    const dh_tensor *t = &v->g->tensors.at[id];
    if (t->base == DH_NONE) return v->at[id];
    return address(v, t->base) + t->row0 * dh_tensor_bytes(t) / t->shape[0];
}

static double element(dh_dtype dtype, const void *x, int64_t i)
{
    if (dtype == DH_F32) return ((const float *)x)[i];
    if (dtype == DH_BF16) return dh_bf16_to_f32(((const dh_bf16 *)x)[i]);
    if (dtype == DH_F64) return ((const double *)x)[i];
    return dtype == DH_I32 ? ((const int32_t *)x)[i] : (double)((const int64_t *)x)[i];
}

static void set_element(dh_dtype dtype, void *x, int64_t i, double value)
{
    if (dtype == DH_F32) ((float *)x)[i] = (float)value;
    if (dtype == DH_BF16) ((dh_bf16 *)x)[i] = dh_f32_to_bf16((float)value);
    if (dtype == DH_F64) ((double *)x)[i] = value;
    if (dtype == DH_I32) ((int32_t *)x)[i] = (int32_t)value;
    if (dtype == DH_I64) ((int64_t *)x)[i] = (int64_t)value;
}

/* Numbers that any integer operand may have: positions, tokens and samples below 16; of counts and
 * places zero. */
static void fill(const dh_graph *g, const dh_tensor *t, void *x)
{
    const bool is_index = strcmp(t->name, "tokens") == 0 || strcmp(t->name, "targets") == 0 ||
                          strcmp(t->name, "sample") == 0;
    for (int64_t i = 0; i < dh_tensor_elements(t); i++) {
        double value = spread * test_randf(&seed);
        if (g->kind == DH_BLOCK_OPT) value = fabs(value); /* moments of squares */
        if (t->dtype == DH_F64) value = floor(fabs(value) * 1000);
        if (t->dtype == DH_I32 || t->dtype == DH_I64)
            value = strcmp(t->name, "pos") == 0 ? (double)(i % 16)
                    : is_index                  ? (double)(test_rand(&seed) % 16)
                                                : 0;
        set_element(t->dtype, x, i, value);
    }
}

static void *room_for(int64_t n_bytes)
{
    void *at = aligned_alloc(64, ((size_t)n_bytes + 127) / 64 * 64);
    assert_non_null(at);
    return at;
}

/* Numbers that are none, which nobody may count with. */
static void *scratch_of(size_t n_bytes)
{
    void *at = room_for((int64_t)n_bytes);
    memset(at, 0xFF, n_bytes);
    return at;
}

/* ---- an operator on both ------------------------------------------------------------------------
 */

static double tolerance_for(dh_dtype dtype)
{
    return dtype == DH_BF16 ? 1.6e-2 : dtype == DH_F32 ? 1e-4 : 1e-6;
}

/* Exact sums are one value; the squares of a run are added in an order of each device's own. */
static bool is_exact_sum(const dh_op *op)
{
    return op->type == DH_OP_SQSUM || op->type == DH_OP_SUM;
}

/* A sum that comes out small may have terms as large as the largest sum. float32 rounds them to
 * 1e-6. Gradients of attention in bf16 have terms whose weights tensor cores take as two bf16,
 * 2^-17 off each (attn_mma.cu); this shows in parts of a ring, which are float32. */
static double rounding_of_terms(const dh_graph *g, const dh_op *op)
{
    return g->dtype == DH_BF16 && op->type == DH_OP_RING_ATTN_GRAD ? 0x1p-17 : 1e-6;
}

/* An output of an operator on both. */
typedef struct result {
    const dh_call *call; /* on the cpu */
    const dh_tensor *t;
    const void *got, *want;
} result;

static int n_wrong;

static void keep_tensor(const dh_graph *g, const char *role, uint32_t id, const void *data)
{
    const dh_tensor *t = &g->tensors.at[id];
    char name[200];
    int n = snprintf(name, sizeof name, "%s %s [", role, t->name);
    for (int i = 0; i < t->ndim && n < (int)sizeof name - 24; i++)
        n += snprintf(name + n, sizeof name - (size_t)n, "%s%lld", i ? "," : "",
                      (long long)t->shape[i]);
    snprintf(name + n, sizeof name - (size_t)n, "]");
    keep_array(name, dh_dtype_name(t->dtype), dh_tensor_elements(t), data,
               (size_t)dh_tensor_bytes(t));
}

/* The numbers that a call has beside its tensors: attributes, the shape, the step's. */
static void keep_operator(const dh_call *c)
{
    const dh_op *o = c->op;
    const dh_dims *d = &c->graph->dims;
    keep_object("\"layer\": %d, \"accumulate\": %u, \"site\": %d, \"step\": %d, \"vocab0\": %lld, "
                "\"parts\": %d, \"part0\": %d, \"capacity\": %lld, \"room\": %lld, \"rows\": %lld, "
                "\"from\": %lld, \"to\": %lld, \"columns\": %lld, \"adds\": %d, \"back\": %d, "
                "\"blocks\": %d",
                (int)c->layer, (unsigned)c->accumulate, o->site, o->step, (long long)o->vocab0,
                o->parts, o->part0, (long long)o->capacity, (long long)o->room, (long long)o->rows,
                (long long)o->from, (long long)o->to, (long long)o->columns, o->adds, o->back,
                o->blocks);
    keep_object("\"head_dim\": %lld, \"max_seq\": %lld, \"attn_scale\": %.17g, "
                "\"attn_softcap\": %.17g",
                (long long)d->head_dim, (long long)d->max_seq, d->attn_scale, d->attn_softcap);
    keep_object(
        "\"step\": %lld, \"seed\": %llu, \"lr\": %.17g, \"beta1\": %.17g, \"beta2\": %.17g, "
        "\"eps\": %.17g, \"weight_decay\": %.17g, \"grad_clip\": %.17g, \"loss_rows\": %.17g",
        (long long)c->scalars->step, (unsigned long long)c->scalars->seed, c->scalars->lr,
        c->scalars->beta1, c->scalars->beta2, c->scalars->eps, c->scalars->weight_decay,
        c->scalars->grad_clip, c->scalars->loss_rows);
}

/* What operands hold now: those that an operator writes in place are what the cpu made of them. */
static void keep_result(const result *r, const char *message)
{
    const dh_call *c = r->call;
    if (!keep_begin(message)) return;
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (c->op->in[k] != DH_NONE) keep_tensor(c->graph, "operand", c->op->in[k], c->in[k]);
    const uint32_t id = (uint32_t)(r->t - c->graph->tensors.at);
    keep_tensor(c->graph, "output, cuda's", id, r->got);
    keep_tensor(c->graph, "output, the cpu's", id, r->want);
    keep_end();
}

/* Says what is wrong; the others are tried too, and the test fails at its end. */
static void complain(const result *r, const char *message)
{
    enum { MOST = 40 };
    keep_result(r, message);
    if (n_wrong++ < MOST) print_error("WRONG %s\n", message);
}

static void compare_exact_sums(const result *r)
{
    char message[300];
    const double a = dh_k_exact_value(r->got), b = dh_k_exact_value(r->want);
    if (fabs(a - b) <= 1e-12 * b) return;
    snprintf(message, sizeof message, "%s: exact sum %.17g, on the cpu %.17g", keep_called(), a, b);
    complain(r, message);
}

static void compare(const result *r)
{
    const dh_tensor *t = r->t;
    char message[300];
    double largest = 0, most = 0;
    int64_t wrong = -1;
    if (is_exact_sum(r->call->op)) {
        compare_exact_sums(r);
        return;
    }
    for (int64_t i = 0; i < dh_tensor_elements(t); i++)
        largest = fmax(largest, fabs(element(t->dtype, r->want, i)));
    const double terms = largest * rounding_of_terms(r->call->graph, r->call->op);
    for (int64_t i = 0; i < dh_tensor_elements(t); i++) {
        const double a = element(t->dtype, r->got, i), b = element(t->dtype, r->want, i);
        if (a == b) continue;
        const double scale = fmax(1, fabs(b)), off = fabs(a - b);
        if (!(off / scale <= most)) most = off / scale;
        if (!(off <= tolerance_for(t->dtype) * scale + terms) && wrong < 0) wrong = i;
    }
    keep_error(t->name, dh_dtype_name(t->dtype), most, tolerance_for(t->dtype) + terms);
    if (wrong < 0) return;
    snprintf(message, sizeof message, "%s: %s [%lld] of %s is %.9g, on the cpu %.9g", keep_called(),
             t->name, (long long)wrong, dh_dtype_name(t->dtype), element(t->dtype, r->got, wrong),
             element(t->dtype, r->want, wrong));
    complain(r, message);
}

/* Behind an error of CUDA's nothing can be run: the operator is named. */
static void must(cudaError_t error, const char *doing)
{
    char message[300];
    if (error == cudaSuccess) return;
    snprintf(message, sizeof message, "CUDA: %s %s: %s (%s)", doing, keep_called(),
             cudaGetErrorName(error), cudaGetErrorString(error));
    print_error("%s\n", message);
    if (keep_begin(message)) keep_end();
    exit(1);
}

static void run_cpu(const dh_call *call, unsigned accumulate)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_cpu_kernel *row = dh_cpu_kernel_of(call->op->type);
    void *prepared = NULL;
    dh_call c = *call;
    if (row->prepare) assert_ok(&ctx, row->prepare(&ctx, c.graph, c.op, accumulate, &prepared));
    c.kernel = prepared;
    const size_t n_work = row->workspace ? row->workspace(c.graph, c.op) : 0;
    c.work = n_work ? scratch_of(n_work) : NULL;
    assert_ok(&ctx, row->run(&ctx, &c));
    free(c.work);
    if (row->release) row->release(prepared);
}

/* Operands, scratch and scalars are where a GPU has them, and whatever runs is on a stream. */
typedef struct moved {
    dh_slab *slab;
    uint64_t used;
    cudaStream_t stream;
} moved;

static int64_t bytes_of(const dh_call *c, uint32_t id)
{
    return dh_tensor_bytes(&c->graph->tensors.at[id]);
}

static void *move(moved *m, const void *data, uint64_t n_bytes)
{
    dh_ctx ctx = DH_CTX_INIT;
    const uint64_t at = m->used;
    m->used += (n_bytes + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
    assert_true(m->used <= m->slab->n_bytes);
    assert_ok(&ctx, cuda_slab_write(&ctx, m->slab, at, data, n_bytes));
    return m->slab->at + at;
}

static void run_product(const dh_cuda_kernel *row, const moved *m, dh_call *c)
{
    dh_ctx ctx = DH_CTX_INIT;
    void *plan;
    assert_ok(&ctx, row->prepare(&ctx, c->graph, c->op, c->accumulate, &plan));
    c->kernel = plan;
    assert_ok(&ctx, row->product(&ctx, m->stream, c));
    must(cudaStreamSynchronize(m->stream), "running");
    row->release(plan);
}

static void run_kernel(const dh_cuda_kernel *row, moved *m, dh_call *c)
{
    if (row->image_bytes) {
        const size_t n_bytes = row->image_bytes(c->graph, c->op);
        void *image = room_for((int64_t)n_bytes);
        row->image_write(c->graph, c->op, image);
        c->kernel = move(m, image, n_bytes);
        free(image);
    }
    row->run(m->stream, c);
    must(cudaGetLastError(), "launching");
    must(cudaStreamSynchronize(m->stream), "running");
}

static void run_cuda(const dh_call *call)
{
    enum { ROOM = 1 << 20 };
    dh_ctx ctx = DH_CTX_INIT;
    const dh_cuda_kernel *row = dh_cuda_kernel_of(call->op->type);
    moved m = {0};
    dh_call c = *call;
    const size_t n_work = row->workspace ? row->workspace(c.graph, c.op) : 0;
    assert_ok(&ctx, cuda_slab_create(&ctx, ROOM + n_work, &m.slab));
    assert_int_equal(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking), cudaSuccess);
    c.scalars = move(&m, call->scalars, sizeof *call->scalars);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (c.in[k]) c.in[k] = move(&m, c.in[k], (uint64_t)bytes_of(&c, c.op->in[k]));
        if (c.out[k]) c.out[k] = move(&m, c.out[k], (uint64_t)bytes_of(&c, c.op->out[k]));
    }
    if (n_work) {
        void *scratch = scratch_of(n_work);
        c.work = move(&m, scratch, n_work);
        free(scratch);
    }
    if (row->product)
        run_product(row, &m, &c);
    else
        run_kernel(row, &m, &c);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (!c.out[k]) continue;
        const uint64_t at = (uint64_t)((unsigned char *)c.out[k] - m.slab->at);
        assert_ok(&ctx, cuda_slab_read(&ctx, m.slab, at, call->out[k],
                                       (uint64_t)bytes_of(&c, c.op->out[k])));
    }
    cudaStreamDestroy(m.stream);
    cuda_slab_destroy(m.slab);
}

static void run_both(const values *v, const dh_op *op, unsigned accumulate)
{
    const dh_scalars scalars = {.step = 3,
                                .seed = 7,
                                .lr = 1e-2,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .grad_clip = 1,
                                .router_bias_rate = 0.1,
                                .loss_rows = 40};
    dh_call cpu = {.graph = v->g, .op = op, .layer = 1, .accumulate = accumulate};
    cpu.scalars = &scalars;
    dh_call cuda = cpu;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->in[k] != DH_NONE) cpu.in[k] = cuda.in[k] = address(v, op->in[k]);
        if (op->out[k] == DH_NONE) continue;
        const int64_t n_bytes = dh_tensor_bytes(&v->g->tensors.at[op->out[k]]);
        cpu.out[k] = address(v, op->out[k]);
        cuda.out[k] = room_for(n_bytes);
        memcpy(cuda.out[k], cpu.out[k], (size_t)n_bytes);
    }
    keep_call(dh_op_info_of(op->type)->name, accumulate ? "adds to its outputs" : "");
    keep_operator(&cpu);
    run_cuda(&cuda);
    run_cpu(&cpu, accumulate);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->out[k] == DH_NONE) continue;
        const result r = {&cpu, &v->g->tensors.at[op->out[k]], cuda.out[k], cpu.out[k]};
        compare(&r);
        free(cuda.out[k]);
    }
    covered[op->type] = true;
}

/* Which outputs of an operator may be added to. */
static unsigned additions(dh_op_type type)
{
    unsigned mask = 0;
    const dh_op_info *info = dh_op_info_of(type);
    for (int k = 0; k < info->n_out; k++) mask |= (unsigned)info->out[k].accumulate << k;
    return mask;
}

/* What comes from other ranks is what this one has, as often as there is room. */
static void exchange(const values *v, const dh_op *op)
{
    if (op->in[0] == DH_NONE || op->out[0] == DH_NONE) return;
    const dh_tensor *x = &v->g->tensors.at[op->in[0]], *y = &v->g->tensors.at[op->out[0]];
    const unsigned char *from = address(v, op->in[0]);
    unsigned char *to = address(v, op->out[0]);
    for (int64_t i = 0; i < dh_tensor_bytes(y); i++) to[i] = from[i % dh_tensor_bytes(x)];
}

static void run_op(const values *v, const dh_op *op)
{
    if (dh_op_info_of(op->type)->resource == DH_RES_COMM) {
        exchange(v, op);
    } else if (dh_cuda_kernel_of(op->type)) {
        run_both(v, op, 0);
        if (additions(op->type)) run_both(v, op, additions(op->type));
    }
}

static void run_graph(const dh_graph *g)
{
    values v = {.g = g};
    assert_true(g->tensors.n <= DH_COUNTOF(v.at));
    for (uint32_t i = 0; i < g->tensors.n; i++) {
        const dh_tensor *t = &g->tensors.at[i];
        if (t->base != DH_NONE) continue;
        v.at[i] = room_for(dh_tensor_bytes(t));
        fill(g, t, v.at[i]);
    }
    for (uint32_t i = 0; i < g->ops.n; i++) run_op(&v, &g->ops.at[i]);
    for (uint32_t i = 0; i < g->tensors.n; i++) free(v.at[i]);
}

/* ---- graphs -----------------------------------------------------------------------------------
 */

typedef struct layout {
    int64_t tp, cp, ep;
} layout;

static bool hands_on;   /* linear attention: states go from rank to rank */
static bool balances;   /* biases of routers go by load */
static dh_fp8 fp8;      /* of the graphs that are made next */
static bool documents;  /* of the graphs that are made next: rows of documents of 16 tokens */
static double capacity; /* of the graphs that are made next: build.moe_capacity */
static const dh_group_stages *nodes; /* of ep ranks: a token goes once to each node; NULL: flat */

static void run_block(const dh_model *model, dh_block_kind kind, dh_mode mode, dh_dtype dtype,
                      layout l)
{
    dh_ctx ctx = DH_CTX_INIT;
    const graph_case c = {.kind = kind, .mode = mode, .dtype = dtype, .dropout = 0.1, .cp = l.cp};
    dh_build build = build_of(&c, model);
    if (mode == DH_MODE_TRAIN) build.seq = 32 / l.cp;
    build.documents = documents;
    build.moe_capacity = capacity;
    build.fp8 = dtype == DH_BF16 ? fp8 : DH_FP8_OFF;
    build.linear_ring = hands_on;
    build.balances_routers = balances;
    const dh_shard shard = {.tp = l.tp, .tp_rank = l.tp - 1, .ep = l.ep, .ep_rank = l.ep - 1};
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, kind, &g));
    assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, l.cp, l.cp - 1));
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, shard));
    assert_ok(&ctx, dh_pass_expert_parallel(&ctx, g, shard, 2, nodes));
    if (mode == DH_MODE_TRAIN) assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    run_graph(g);
    dh_graph_destroy(g);
}

/* Gradients of a step, their norm, the update. */
static void run_optimizer(dh_dtype dtype)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_opt_region regions[] = {{.n = 4096,
                                      .decay = true,
                                      .counts = true,
                                      .master = 1,
                                      .adam_m = 2,
                                      .adam_v = 3,
                                      .copy = dtype == DH_BF16 ? 4 : DH_NONE,
                                      .gather = DH_NONE},
                                     {.n = 97,
                                      .counts = true,
                                      .grad = 6,
                                      .master = 7,
                                      .adam_m = 8,
                                      .adam_v = 9,
                                      .copy = DH_NONE,
                                      .gather = DH_NONE},
                                     {.n = 40,
                                      .balances = true,
                                      .grad = 10,
                                      .master = 11,
                                      .adam_m = DH_NONE,
                                      .adam_v = DH_NONE,
                                      .copy = DH_NONE,
                                      .gather = DH_NONE}};
    for (int behind = 0; behind < 2; behind++) { /* by the norm of all; by a part, then amended */
        const dh_opt_norm norm = {.group = -1, .behind = behind};
        dh_graph *g;
        assert_ok(&ctx, dh_graph_build_optimizer(&ctx, regions, 3, dtype, &norm, &g));
        run_graph(g);
        dh_graph_destroy(g);
    }
}

/* Where few of its operators are its own, layers alone. Of short runs each mesh in one format. */
static void run_of(const dh_model *model, dh_block_kind last)
{
    static const layout layouts[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}};
    EACH_DTYPE(dtype)
    for (int kind = last == DH_BLOCK_HEAD ? DH_BLOCK_EMBED : DH_BLOCK_LAYER; kind <= (int)last;
         kind++) {
        run_block(model, (dh_block_kind)kind, DH_MODE_DECODE, dtype, layouts[0]);
        for (size_t i = 0; i < (model->n_experts ? 4 : 3); i++)
            if (i == 0 || test_takes((size_t)dtype, i, 2))
                run_block(model, (dh_block_kind)kind, DH_MODE_TRAIN, dtype, layouts[i]);
    }
}

static void run_model(const char *name, bool qk_norm, int64_t window)
{
    dh_model model = preset(name);
    model.qk_norm = qk_norm;
    model.window = window;
    run_of(&model, DH_BLOCK_HEAD);
}

/* A family's own sizes are too large. */
static dh_model shrunk(const char *name)
{
    dh_model m = preset(name);
    m.n_layers = 2;
    m.width = 64;
    m.n_heads = 4;
    m.n_kv_heads = 2;
    m.head_dim = 16;
    m.ffn_width = 88;
    m.vocab = 96;
    m.max_seq = 256;
    m.window = 0;
    return m;
}

/* Sparsemixer, biases beside RMSNorm's families', and both lists of longrope. */
static void run_phimoe(void)
{
    dh_model m = shrunk("phi-3.5-moe");
    m.n_experts = 4;
    m.router_jitter = 0.4;
    m.rope.scaling = DH_ROPE_SCALING_LONGROPE;
    m.longrope = (dh_longrope){.short_mscale = 1.2, .long_mscale = 1.4};
    m.longrope.short_factors.n = m.longrope.long_factors.n = m.head_dim / 2;
    for (int64_t i = 0; i < m.head_dim / 2; i++) {
        m.longrope.short_factors.at[i] = 1 + (double)i / 4;
        m.longrope.long_factors.at[i] = 2 + (double)i;
    }
    m.rope.original_max_seq = m.max_seq;
    run_of(&m, DH_BLOCK_HEAD);
    m.rope.original_max_seq = 1;
    run_of(&m, DH_BLOCK_LAYER);
}

/* What other families have. */
static void run_families(void)
{
    dh_model olmo = shrunk("olmo2-7b"), gemma = shrunk("gemma3-1b");
    dh_model adapted = preset("llama-tiny"), plain = preset("mixtral-tiny");
    const dh_model latent = preset("deepseek-tiny");
    gemma.attn_softcap = 0.3;
    gemma.logit_softcap = 3;
    gemma.query_scalar = 20;
    gemma.nth = 2; /* the layer of these calls is one of them */
    run_of(&olmo, DH_BLOCK_LAYER);
    run_of(&gemma, DH_BLOCK_HEAD);
    adapted.lora = (dh_lora){.rank = 3, .alpha = 5};
    run_of(&adapted, DH_BLOCK_LAYER);
    plain.topk_plain = true;
    run_of(&plain, DH_BLOCK_LAYER);
    run_of(&latent, DH_BLOCK_LAYER);
    balances = true;
    run_of(&latent, DH_BLOCK_LAYER);
    balances = false;
    run_phimoe();
}

/* Four ranks on two nodes, dropless and with a capacity. */
static void run_nodes(void)
{
    static const dh_group_stages two = {
        .local = DH_GROUP_EP_NODE, .cross = DH_GROUP_EP_CROSS, .per_node = 2, .n_nodes = 2};
    const dh_model model = preset("mixtral-tiny");
    nodes = &two;
    for (int limits = 0; limits < 2; limits++) {
        capacity = limits * 1.5;
        EACH_DTYPE(dtype)
        run_block(&model, DH_BLOCK_LAYER, DH_MODE_TRAIN, dtype, (layout){1, 1, 4});
    }
    capacity = 0;
    nodes = NULL;
}

static void run_linear_attention(void)
{
    dh_model model = preset("llama-tiny");
    model.attention = DH_ATTENTION_LINEAR;
    for (int map = DH_FEATURE_ELU; map <= DH_FEATURE_SILU; map++) {
        model.feature_map = (dh_feature_map)map;
        for (int lasp1 = 0; lasp1 < 2; lasp1++) {
            if (!test_takes((size_t)map, (size_t)lasp1, 2)) continue;
            hands_on = lasp1;
            run_of(&model, DH_BLOCK_LAYER);
        }
    }
    hands_on = true;
    run_block(&model, DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, (layout){1, 4, 1});
    hands_on = false;
    model.softmax_every = 2; /* two chunks of a sequence on a rank */
    EACH_DTYPE(dtype)
    for (int64_t cp = 2; cp <= 4; cp += 2)
        run_block(&model, DH_BLOCK_LAYER, DH_MODE_TRAIN, dtype, (layout){1, cp, 1});
}

/* Layers alone, whose products these are. */
static void run_fp8(const char *name)
{
    const dh_model model = preset(name);
    for (fp8 = DH_FP8_E4M3; fp8 <= DH_FP8_HYBRID; fp8++)
        for (int64_t tp = 1; tp <= 2; tp++)
            run_block(&model, DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_BF16, (layout){tp, 1, 1});
    fp8 = DH_FP8_HYBRID; /* experts' rows in several runs */
    if (model.n_experts > 0)
        run_block(&model, DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_BF16, (layout){1, 1, 2});
    fp8 = DH_FP8_OFF;
}

static void run_shares(dh_dtype dtype)
{
    static const int widths[] = {5, 16}; /* by elements; 16 bytes at once */
    for (size_t i = 0; i < DH_COUNTOF(widths); i++) {
        const char *type = dh_dtype_name(dtype);
        char text[512];
        const int w = widths[i];
        snprintf(text, sizeof text,
                 "dhelix.graph v2 layer eval %s\n"
                 "%%0:x act %s[6 tokens, %d width]\n"
                 "%%1:own act %s[3 tokens, %d width] view=%%0+3\n"
                 "%%2:behind act %s[3 tokens, %d width]\n"
                 "%%3:y act %s[3 tokens, %d width]\n"
                 "%%4:z act %s[3 tokens, %d width]\n"
                 "ends x_in=%%0 x_out=%%4\n"
                 "F %%2 = copy(%%1)\n"
                 "F %%3 = sum_shares(%%0, %%1, %%2)\n"
                 "F %%4 = sum_shares(-, %%3, %%2)\n",
                 type, type, w, type, w, type, w, type, w, type, w);
        dh_graph *g = parse_graph(text);
        run_graph(g);
        dh_graph_destroy(g);
    }
}

/* What no block above has. */
static void run_columns(dh_dtype dtype)
{
    char text[512];
    snprintf(text, sizeof text,
             "dhelix.graph v2 layer eval %s\n"
             "%%0:x act %s[8 tokens, 5 width]\n"
             "%%1:a act %s[8 tokens, 2 width]\n"
             "%%2:b act %s[8 tokens, 3 width]\n"
             "%%3:y act %s[8 tokens, 5 width]\n"
             "%%4:z act %s[8 tokens, 5 width]\n"
             "%%5:c act f32[8 tokens, 5 width]\n"
             "%%6:r act f32[8 tokens, 5 width]\n"
             "ends x_in=%%0 x_out=%%4\n"
             "F %%1, %%2 = split_columns(%%0)\n"
             "F %%3 = join_columns(%%2, %%1)\n"
             "F %%4 = copy(%%3)\n"
             "F %%5 = clear()\n"
             "F %%6 = release()\n",
             dh_dtype_name(dtype), dh_dtype_name(dtype), dh_dtype_name(dtype), dh_dtype_name(dtype),
             dh_dtype_name(dtype), dh_dtype_name(dtype));
    dh_graph *g = parse_graph(text);
    run_graph(g);
    dh_graph_destroy(g);
}

/* Of a linear and its activation as one, with and without what the activation is made of, and of
 * the gradient: rows that cuBLASLt has GELU for, and rows that it has not; and where it has none.
 */
static void run_gelu(dh_dtype dtype)
{
    static const struct {
        int width;
        bool fused, lacks;
    } kinds[] = {{24, true, false}, {20, false, false}, {24, false, true}};
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++) {
        const char *type = dh_dtype_name(dtype);
        char text[1024];
        const int w = kinds[i].width;
        snprintf(text, sizeof text,
                 "dhelix.graph v2 layer eval %s\n"
                 "dims batch=1 seq=6 act=gelu_tanh\n"
                 "%%0:x act %s[6 tokens, 16 width]\n"
                 "%%1:w param %s[%d ffn, 16 width] slot=8\n"
                 "%%2:b param f32[%d ffn] slot=9\n"
                 "%%3:g act %s[6 tokens, %d ffn]\n"
                 "%%4:h act %s[6 tokens, %d ffn]\n"
                 "%%5:g2 act %s[6 tokens, %d ffn]\n"
                 "%%6:w2 param %s[16 width, %d ffn] slot=10\n"
                 "%%7:dh act %s[6 tokens, %d ffn]\n"
                 "ends x_in=%%0 x_out=%%5\n"
                 "F %%3, %%4 = linear_gelu(%%0, %%1, %%2)\n"
                 "F %%5, - = linear_gelu(%%0, %%1, -)\n"
                 "B %%7 = linear_dgrad_gelu(%%0, %%6, %%4)\n",
                 type, type, type, w, w, type, w, type, w, type, w, type, w, type, w);
        dh_graph *g = parse_graph(text);
#ifdef DH_TEST_ON_GPU /* what its cuBLASLt has is not chosen here */
        run_graph(g);
#else
        dh_host_lack_gelu(kinds[i].lacks);
        run_graph(g);
        assert_int_equal(dh_host_last_product().epilogue,
                         kinds[i].fused ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT);
        dh_host_lack_gelu(false);
#endif
        dh_graph_destroy(g);
    }
}

/* Columns on their way to another layout: gradients are added, which are float32. */
static void run_moved(dh_dtype dtype)
{
    const char *type = dh_dtype_name(dtype);
    char text[512];
    snprintf(text, sizeof text,
             "dhelix.graph v2 reshard train %s\n"
             "%%0:x range %s[6, 5] slot=0\n"
             "%%1:y range %s[6, 7] slot=1\n"
             "%%2:m act %s[18]\n"
             "F %%2 = take_columns(%%0) {from=2, columns=3}\n"
             "F %%1 = put_columns(%%2) {to=1, columns=3, adds=%d}\n"
             "F %%1 = put_columns(%%0) {from=1, to=5, columns=2}\n",
             type, type, type, type, dtype == DH_F32);
    dh_graph *g = parse_graph(text);
    run_graph(g);
    dh_graph_destroy(g);
}

static void operators_compute_as_on_the_cpu(void **state)
{
    seed = test_seed("glue");
    run_model("gpt2-tiny", false, 0);
    run_model("llama-tiny", true, 0);
    run_model("mixtral-tiny", false, 0);
    run_model("llama-tiny", false, 5);
    documents = true;
    run_model("llama-tiny", false, 0);
    documents = false;
    run_fp8("gpt2-tiny");
    run_fp8("llama-tiny");
    run_fp8("mixtral-tiny");
    spread = 0.25; /* scores stay small, of which softmax makes large differences */
    run_families();
    run_nodes();
    run_linear_attention();
    spread = 1;
    EACH_DTYPE(dtype)
    {
        run_optimizer(dtype);
        run_columns(dtype);
        run_moved(dtype);
        run_shares(dtype);
        run_gelu(dtype);
    }
    for (int type = 0; type < DH_N_OP_TYPE; type++)
        if (dh_cuda_kernel_of((dh_op_type)type) && !covered[type])
            fail_msg("%s was in none of the graphs", dh_op_info_of((dh_op_type)type)->name);
    assert_int_equal(n_wrong, 0);
}

static void the_table_lacks_nothing_that_the_cpu_has(void **state)
{
    for (int type = 0; type < DH_N_OP_TYPE; type++)
        if (dh_cpu_kernel_of((dh_op_type)type) && !dh_cuda_kernel_of((dh_op_type)type))
            fail_msg("no kernel for %s", dh_op_info_of((dh_op_type)type)->name);
}

/* To CTest: skipped. */
enum { SKIPPED = 77 };

int main(void)
{
    int n_devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&n_devices);
    if (found != cudaSuccess || n_devices == 0) {
        printf("not run: there is no GPU (%s)\n", cudaGetErrorString(found));
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_compute_as_on_the_cpu),
        cmocka_unit_test(the_table_lacks_nothing_that_the_cpu_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) > 0;
}
