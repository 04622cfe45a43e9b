/* Profiles from traces: what a simulated step's trace says is found again operator by operator; and
 * a trace as PyTorch writes it, in its names. */
#include "dh_test.h"

#include "calibrate/traced.h"
#include "report/timeline.h"
#include "train/recipe.h"
#include "train/simulation.h"

static const char job_text[] =
    "model: {family: gpt2, n_layers: 2, width: 64, n_heads: 4, ffn_width: 128, vocab: 500, "
    "max_seq: 64}\n"
    "train: {batch: 4, micro_batch: 1, seq_len: 32, dtype: bf16}\n"
    "parallel: {tp: 2, pp: 2}\nstrategy: sequential\n";

static dh_job *make_job(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    assert_ok(&ctx,
              dh_job_parse(&ctx, job_text, strlen(job_text), "traced.yaml", ".", NULL, 0, &job));
    return job;
}

/* ---- our own traces ------------------------------------------------------------------------- */

/* Of an operator that ran beside nothing: as long as the cluster has it. */
static void check_class(const dh_sim_rank *r, const dh_costs *costs, const dh_profile *profile,
                        uint32_t id, size_t *n_checked)
{
    static const dh_op_type types[] = {DH_OP_LINEAR,    DH_OP_LINEAR_DGRAD, DH_OP_NORM,
                                       DH_OP_ATTN_GRAD, DH_OP_ATTN,         DH_OP_REDUCE_SCATTER};
    const dh_instr *instr = &r->program->instrs.at[id];
    const dh_op *op = dh_instr_op(r->program, instr);
    const dh_cost_op at = {dh_instr_graph(r->program, instr), op, &r->program->mesh, r->rank};
    char key[DH_OP_KEY_BYTES];
    bool wanted = false;
    for (size_t i = 0; i < DH_COUNTOF(types); i++) wanted |= types[i] == op->type;
    const dh_span *span = &r->spans[id];
    const double alone_ns = costs->solo(costs->self, &at).ns;
    const double ran_ns = (double)(span->end_ns - span->met_ns);
    if (!wanted || instr->mb < 0 || fabs(ran_ns - alone_ns) > 1) return;
    const uint32_t found = dh_profile_find_op(profile, dh_op_class_key(&at, key));
    if (found == DH_NONE) fail_msg("no %s", key);
    const dh_profile_op *row = &profile->ops.at[found];
    assert_int_equal(row->source, DH_PAIR_IMPORTED);
    /* a kernel of the same sizes may have run beside a transfer elsewhere */
    if (fabs((double)row->solo_ns - alone_ns) > 2 + 0.3 * alone_ns)
        fail_msg("%s: %lld ns, not %.0f", key, (long long)row->solo_ns, alone_ns);
    ++*n_checked;
}

static void test_own_traces(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200], paths[8][256];
    const char *files[8];
    dh_cluster *cluster;
    dh_resolved *resolved;
    dh_sim *sim;
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job();
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &cluster));
    const dh_resolve_options how = {.cluster = cluster, .quiet = true};
    const dh_train_simulation simulation = {.sim = {.placed = true}};
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &resolved));
    assert_ok(&ctx, dh_train_simulate(&ctx, resolved, &simulation, &sim));
    assert_true(sim->n_classes >= 2 && sim->n_classes <= 8);
    for (size_t k = 0; k < sim->n_classes; k++) {
        snprintf(paths[k], sizeof paths[k], "%s/%zu.json", dir, k);
        files[k] = paths[k];
        assert_ok(&ctx, dh_trace_write(&ctx, paths[k], sim->ranks[k].program, sim->ranks[k].spans));
    }
    assert_ok(&ctx, dh_profile_from_traces(&ctx, job, files, sim->n_classes, &traced));
    size_t n_checked = 0;
    for (size_t k = 0; k < sim->n_classes; k++)
        for (uint32_t i = 0; i < sim->ranks[k].program->instrs.n; i++)
            check_class(&sim->ranks[k], resolved->recipe.costs, traced.profile, i, &n_checked);
    assert_true(n_checked > 50);
    assert_true(traced.operators.n > 0); /* residual additions and the like */
    dh_traced_fini(&traced);
    dh_sim_destroy(sim);
    dh_resolved_destroy(resolved);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
}

/* ---- traces of PyTorch ---------------------------------------------------------------------- */

#define OP(name, id, dims, types)                                                                  \
    "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::" name "\",\"dur\":9,\"args\":{"            \
    "\"External id\":" #id ",\"Input Dims\":[" dims "],\"Input type\":[" types "]}},\n"
#define KERNEL(id, us)                                                                             \
    "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"sm90\",\"dur\":" #us                              \
    ",\"args\":{\"External id\":" #id "}},\n"
#define BF "\"c10::BFloat16\""

static const char kineto[] = "{\"traceEvents\": [\n"
    /* the packed projection of tp rank 0: twice, and once later */
    OP("addmm", 1, "[96],[32,64],[64,96]", BF "," BF "," BF) KERNEL(1, 30) KERNEL(1, 10)
        OP("addmm", 2, "[96],[32,64],[64,96]", BF "," BF "," BF) KERNEL(2, 44)
            OP("addmm", 3, "[96],[32,64],[64,96]", BF "," BF "," BF) KERNEL(3, 42)
    /* its weight gradient, as PyTorch transposes it */
    OP("mm", 4, "[64,32],[32,96]", BF "," BF) KERNEL(4, 50) OP(
        "_flash_attention_forward", 5, "[1,32,2,16],[1,32,2,16],[1,32,2,16]", BF "," BF "," BF)
        KERNEL(5, 70) OP("mm", 6, "[7,7],[7,7]", BF "," BF) KERNEL(
            6,
            5) "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclDevKernel_AllGather\",\"dur\":20,"
               "\"args\":{"
               "\"Collective name\":\"_allgather_base\",\"dtype\":\"BFloat16\",\"In msg "
               "nelems\":2048,"
               "\"Out msg nelems\":2048,\"Group size\":2,\"Process Group Ranks\":\"[0, 1]\"}}]}\n";

static const char *put(const char *dir, const char *name, const char *text, char path[256])
{
    dh_ctx ctx = DH_CTX_INIT;
    snprintf(path, 256, "%s/%s", dir, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
    return path;
}

static int64_t ns_of(const dh_profile *p, const char *label)
{
    for (size_t i = 0; i < p->ops.n; i++)
        if (strcmp(p->ops.at[i].label, label) == 0) return p->ops.at[i].solo_ns;
    fail_msg("no operator %s", label);
    return 0;
}

static bool lists(const char *const *at, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(at[i], text)) return true;
    return false;
}

static void test_pytorch(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200], path[256], none[256];
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job();
    const char *files[] = {put(dir, "rank0.json", kineto, path)};
    assert_ok(&ctx, dh_profile_from_traces(&ctx, job, files, 1, &traced));
    assert_int_equal(ns_of(traced.profile, "linear qkv"), 42000); /* of 40, 42, 44 */
    assert_int_equal(ns_of(traced.profile, "linear_wgrad d.qkv.w"), 50000);
    assert_int_equal(ns_of(traced.profile, "attention o"), 70000);
    assert_int_equal(ns_of(traced.profile, "all_gather n1.all"), 20000);
    assert_true(lists(traced.operators.at, traced.operators.n, "residual"));
    assert_true(lists(traced.measurements.at, traced.measurements.n, "7 x 7 x 7"));
    assert_false(lists(traced.measurements.at, traced.measurements.n, "96 x 64"));
    dh_traced_fini(&traced);

    files[0] =
        put(dir, "other.json",
            "{\"traceEvents\": [" OP("mm", 6, "[7,7],[7,7]", BF "," BF) KERNEL(6, 5) "{}]}", none);
    assert_fails(&ctx, dh_profile_from_traces(&ctx, job, files, 1, &traced), DH_EMISSING,
                 "none of the job's operators");
    dh_traced_fini(&traced);
    dh_ctx_reset(&ctx);
    files[0] = put(dir, "shared.json",
                   "{\"traceEvents\": [" OP("mm", 6, "[7,7],[7,7]", BF "," BF)
                       OP("mm", 6, "[7,7],[7,7]", BF "," BF) KERNEL(6, 5) "{}]}",
                   none);
    assert_fails(&ctx, dh_profile_from_traces(&ctx, job, files, 1, &traced), DH_EMISSING,
                 "several operators have it");
    dh_traced_fini(&traced);
    dh_ctx_reset(&ctx);
    files[0] = "no/such.json";
    assert_fails(&ctx, dh_profile_from_traces(&ctx, job, files, 1, &traced), DH_EIO, "no/such");
    dh_traced_fini(&traced);
    dh_job_destroy(job);
}

/* ---- models of Transformers ----------------------------------------------------------------- */

/* A layer as LlamaForCausalLM runs it: a matrix each for queries, keys, values, gate and up. */
static const char llama_text[] =
    "model: {family: llama, n_layers: 1, width: 64, n_heads: 4, n_kv_heads: 2, ffn_width: 96, "
    "vocab: 500, max_seq: 64}\n"
    "train: {batch: 1, micro_batch: 1, seq_len: 32, dtype: bf16}\nstrategy: sequential\n";

#define TWO BF "," BF
#define MM(id, a, b, us) OP("mm", id, a "," b, TWO) KERNEL(id, us)

/* Forward 7, 3, 3 of queries and of keys and values; input gradients; weight gradients. */
#define QKV                                                                                        \
    MM(1, "[32,64]", "[64,64]", 7)                                                                 \
    MM(2, "[32,64]", "[64,32]", 3)                                                                 \
    MM(4, "[32,32]", "[32,64]", 4)                                                                 \
    MM(5, "[64,32]", "[32,64]", 9) MM(6, "[32,32]", "[32,64]", 4) MM(7, "[32,32]", "[32,64]", 4)
#define GATED                                                                                      \
    MM(10, "[32,64]", "[64,96]", 11)                                                               \
    OP("silu", 12, "[1,32,96],[]", BF ",\"\"")                                                     \
    KERNEL(12, 2)                                                                                  \
    OP("mul", 13, "[1,32,96],[1,32,96]", TWO)                                                      \
    KERNEL(13, 3) OP("silu_backward", 14, "[1,32,96],[1,32,96]", TWO) KERNEL(14, 4)

static dh_job *make_job_of(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "traced.yaml", ".", NULL, 0, &job));
    return job;
}

static const dh_profile_op *find_row(const dh_profile *p, const char *label)
{
    for (size_t i = 0; i < p->ops.n; i++)
        if (strcmp(p->ops.at[i].label, label) == 0) return &p->ops.at[i];
    fail_msg("no operator %s", label);
    return NULL;
}

static void read_trace(const char *dir, const dh_job *job, const char *text, dh_traced *traced)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[256];
    const char *files[] = {put(dir, "trace.json", text, path)};
    assert_ok(&ctx, dh_profile_from_traces(&ctx, job, files, 1, traced));
}

static void test_separate_products(void **state)
{
    char dir[200];
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job_of(llama_text);
    read_trace(dir, job, "{\"traceEvents\": [" QKV GATED "{}]}", &traced);
    assert_int_equal(ns_of(traced.profile, "linear qkv"), 7000 + 2 * 3000);
    /* of queries as long as the product forward, since sizes are the same */
    assert_int_equal(ns_of(traced.profile, "linear_dgrad dn1"), 7000 + 2 * 4000);
    assert_int_equal(ns_of(traced.profile, "linear h"), 2 * 11000);
    assert_int_equal(ns_of(traced.profile, "activation g"), 2000 + 3000);
    assert_int_equal(ns_of(traced.profile, "activation_grad dh"), 4000 + 2 * 3000);
    assert_int_equal(find_row(traced.profile, "linear h")->source, DH_PAIR_IMPORTED);
    assert_false(lists(traced.measurements.at, traced.measurements.n, "96 x 64"));
    dh_traced_fini(&traced);

    /* Without one of the three there is no sum. */
    read_trace(dir, job,
               "{\"traceEvents\": [" MM(1, "[32,64]", "[64,32]", 3)
                   MM(2, "[32,96]", "[96,64]", 5) "{}]}",
               &traced);
    assert_int_equal(find_row(traced.profile, "linear qkv")->source, DH_PAIR_MODELLED);
    assert_true(lists(traced.operators.at, traced.operators.n, "linear qkv"));
    dh_traced_fini(&traced);
    dh_job_destroy(job);
}

/* Products of scores and a softmax, as attn_implementation="eager" runs them. */
static void test_attention_by_products(void **state)
{
    char dir[200];
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job_of(llama_text);
    read_trace(dir, job,
               "{\"traceEvents\": [" OP("bmm", 1, "[4,32,16],[4,16,32]", TWO) KERNEL(1, 20)
                   OP("_softmax", 2, "[1,4,32,32]", "\"float\"") KERNEL(2, 30)
                       OP("bmm", 3, "[4,32,32],[4,32,16]", TWO) KERNEL(3, 40)
                           OP("_softmax_backward_data", 4, "[1,4,32,32]", "\"float\"")
                               KERNEL(4, 50) "{}]}",
               &traced);
    assert_int_equal(ns_of(traced.profile, "attention o"), 20000 + 30000 + 40000);
    assert_int_equal(ns_of(traced.profile, "attention_grad dqkv.rot"), 20000 + 50000 + 3 * 40000);
    dh_traced_fini(&traced);
    dh_job_destroy(job);
}

/* A trace of forwards alone: gradients go by what they are the gradient of, not by whatever has
 * the nearest estimate. */
static void test_gradients_follow(void **state)
{
    char dir[200];
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job_of(llama_text);
    read_trace(dir, job,
               "{\"traceEvents\": [" QKV OP("_flash_attention_forward", 20,
                                            "[1,32,4,16],[1,32,2,16],[1,32,2,16]", BF "," TWO)
                   KERNEL(20, 900) "{}]}",
               &traced);
    const dh_profile_op *attn = find_row(traced.profile, "attention o");
    const dh_profile_op *grad = find_row(traced.profile, "attention_grad dqkv.rot");
    assert_int_equal(attn->solo_ns, 900000);
    assert_int_equal(grad->source, DH_PAIR_MODELLED);
    assert_true(grad->solo_ns > attn->solo_ns);
    assert_true(fabs((double)grad->solo_ns / (double)attn->solo_ns -
                     (double)grad->estimate_ns / (double)attn->estimate_ns) < 0.01);
    dh_traced_fini(&traced);
    dh_job_destroy(job);
}

static const char experts_text[] =
    "model: {family: mixtral, n_layers: 1, width: 64, n_heads: 4, n_kv_heads: 2, ffn_width: 48, "
    "n_experts: 4, top_k: 2, vocab: 500, max_seq: 64}\n"
    "train: {batch: 1, micro_batch: 1, seq_len: 32, dtype: bf16}\nstrategy: sequential\n";

/* A product each, of the rows that came: 64 rows of all experts take what they take by the row. */
static void test_experts(void **state)
{
    char dir[200];
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job_of(experts_text);
    read_trace(dir, job,
               "{\"traceEvents\": [" MM(1, "[10,64]", "[64,48]", 10) MM(2, "[30,64]", "[64,48]", 30)
                   MM(3, "[20,48]", "[48,64]", 40) "{}]}",
               &traced);
    assert_int_equal(ns_of(traced.profile, "grouped_linear h"), 2 * 64 * 1000); /* gate and up */
    assert_int_equal(ns_of(traced.profile, "grouped_linear y"), 64 * 2000);
    dh_traced_fini(&traced);
    dh_job_destroy(job);
}

/* ---- whole layers as PyTorch runs them ------------------------------------------------------- */

/* A layer of this job; 48 tokens, so that no two products of it have the same sizes by chance. */
#define LAYER_JOB(recompute)                                                                       \
    "model: {family: llama, n_layers: 1, width: 64, n_heads: 4, n_kv_heads: 2, ffn_width: 96, "    \
    "vocab: 500, max_seq: 64}\n"                                                                   \
    "train: {batch: 1, micro_batch: 1, seq_len: 48, dtype: bf16, recompute: " recompute "}\n"      \
    "strategy: sequential\n"

enum { TOKENS = 48, WIDTH = 64, KV = 32, FFN = 96 };

/* Writes events as torch.profiler exports them: an operator of the host, the call that starts its
 * kernel, and the kernel, which runs later. */
typedef struct tracer {
    dh_str text;
    int id;
    double at_us;
    const char *thread; /* the program's, or autograd's */
    bool old;           /* PyTorch 2.1: kernels have their correlation for "External id" */
} tracer;

static void run(tracer *t, const char *name, const char *dims, const char *types, int us)
{
    const int op = ++t->id, correlation = 5000 + op;
    t->at_us += 10;
    dh_str_printf(&t->text,
                  "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::%s\",\"pid\":7,\"tid\":\"%s\","
                  "\"ts\":%.1f,\"dur\":8,\"args\":{\"External id\":%d,\"Input Dims\":[%s],"
                  "\"Input type\":[%s]}},\n",
                  name, t->thread, t->at_us, op, dims, types);
    dh_str_printf(&t->text,
                  "{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":7,"
                  "\"tid\":\"%s\",\"ts\":%.1f,\"dur\":2,\"args\":{\"correlation\":%d}},\n",
                  t->thread, t->at_us + 3, correlation);
    dh_str_printf(&t->text,
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"sm90_kernel\",\"pid\":0,\"tid\":7,"
                  "\"ts\":%.1f,\"dur\":%d,\"args\":{\"External id\":%d,\"correlation\":%d}},\n",
                  t->at_us + 900, us, t->old ? correlation : op, correlation);
}

/* Time by sizes, the same for a product and its transpose. */
static int product_us(int m, int n, int k)
{
    return 3 + m * n * k / 4096 + (m + n) / 16 + m * n % 7;
}

static void product(tracer *t, int m, int n, int k)
{
    char dims[64];
    snprintf(dims, sizeof dims, "[%d,%d],[%d,%d]", m, k, k, n);
    run(t, "mm", dims, TWO, product_us(m, n, k));
}

/* Of a weight of some matrices: their rows, up to the first 0. */
static void forward_of(tracer *t, const int rows[4], int columns)
{
    for (int i = 0; rows[i]; i++) product(t, TOKENS, rows[i], columns);
}

static void backward_of(tracer *t, const int rows[4], int columns)
{
    for (int i = 0; rows[i]; i++) {
        product(t, TOKENS, columns, rows[i]);
        product(t, rows[i], columns, TOKENS);
    }
}

/* What that comes to for the operator that has all rows in one. */
static int64_t forward_ns(const int rows[4], int columns)
{
    int us = 0;
    for (int i = 0; rows[i]; i++) us += product_us(TOKENS, rows[i], columns);
    return us * 1000;
}

static int64_t dgrad_ns(const int rows[4], int columns)
{
    int us = 0;
    for (int i = 0; rows[i]; i++) us += product_us(TOKENS, columns, rows[i]);
    return us * 1000;
}

static int64_t wgrad_ns(const int rows[4], int columns)
{
    int us = 0;
    for (int i = 0; rows[i]; i++) us += product_us(rows[i], columns, TOKENS);
    return us * 1000;
}

/* The weights of a layer: matrices of queries, keys and values, of the output, of gate and up, and
 * of down. */
typedef struct layer_rows {
    int qkv[4], proj[4], fc1[4], fc2[4];
} layer_rows;

enum { ATTN_US = 70, ATTN_GRAD_US = 160, SILU_US = 4, MUL_US = 5, SILU_GRAD_US = 6 };
#define QKV_HEADS "[1,48,4,16],[1,48,2,16],[1,48,2,16]"
#define GATES "[1,48,96],[1,48,96]"

static void forward_layer(tracer *t, const layer_rows *w)
{
    forward_of(t, w->qkv, WIDTH);
    run(t, "_flash_attention_forward", QKV_HEADS, BF "," TWO, ATTN_US);
    forward_of(t, w->proj, WIDTH);
    forward_of(t, w->fc1, WIDTH);
    run(t, "silu", "[1,48,96]", BF, SILU_US);
    run(t, "mul", GATES, TWO, MUL_US);
    forward_of(t, w->fc2, FFN);
}

static void backward_layer(tracer *t, const layer_rows *w)
{
    backward_of(t, w->fc2, FFN);
    run(t, "mul", GATES, TWO, MUL_US);
    run(t, "mul", GATES, TWO, MUL_US);
    run(t, "silu_backward", GATES, TWO, SILU_GRAD_US);
    backward_of(t, w->fc1, WIDTH);
    backward_of(t, w->proj, WIDTH);
    run(t, "_flash_attention_backward", "[1,48,4,16]," QKV_HEADS, BF "," BF "," TWO, ATTN_GRAD_US);
    backward_of(t, w->qkv, WIDTH);
}

/* Two steps of the layer. again: the backward begins with the forward once more. */
static void trace_layer(tracer *t, const layer_rows *w, bool again)
{
    dh_str_printf(&t->text, "{\"schemaVersion\":1,\"traceEvents\":[\n");
    for (int step = 0; step < 2; step++) {
        t->thread = "main";
        forward_layer(t, w);
        t->thread = "autograd 1";
        if (again) forward_layer(t, w);
        backward_layer(t, w);
    }
    dh_str_printf(&t->text, "{\"ph\":\"i\",\"name\":\"end\"}]}\n");
    assert_false(t->text.failed);
}

static void is_imported(const dh_traced *traced, const char *label, int64_t ns)
{
    const dh_profile_op *row = find_row(traced->profile, label);
    if (row->source != DH_PAIR_IMPORTED) fail_msg("%s is not of the trace", label);
    if (row->solo_ns != ns)
        fail_msg("%s: %lld ns, not %lld", label, (long long)row->solo_ns, (long long)ns);
}

/* Every product of a layer, however PyTorch cuts it, and whether or not it runs forwards twice. */
static void test_layers_of_pytorch(void **state)
{
    static const layer_rows separate = {{WIDTH, KV, KV}, {WIDTH}, {FFN, FFN}, {WIDTH}},
                            fused = {{WIDTH + 2 * KV}, {WIDTH}, {2 * FFN}, {WIDTH}};
    const struct {
        const char *job;
        const layer_rows *rows;
        bool again, old;
    } cases[] = {{LAYER_JOB("none"), &separate, false, false},
                 {LAYER_JOB("none"), &fused, false, true},
                 {LAYER_JOB("full"), &separate, true, false},
                 {LAYER_JOB("full"), &fused, true, true}};
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const layer_rows *w = cases[i].rows;
        tracer t = {.text = DH_STR_INIT, .old = cases[i].old};
        dh_traced traced;
        dh_job *job = make_job_of(cases[i].job);
        trace_layer(&t, w, cases[i].again);
        read_trace(dir, job, t.text.text, &traced);
        is_imported(&traced, "linear qkv", forward_ns(w->qkv, WIDTH));
        is_imported(&traced, "linear_dgrad dn1", dgrad_ns(w->qkv, WIDTH));
        is_imported(&traced, "linear_wgrad d.qkv.w", wgrad_ns(w->qkv, WIDTH));
        is_imported(&traced, "linear proj", forward_ns(w->proj, WIDTH));
        is_imported(&traced, "linear_dgrad do", dgrad_ns(w->proj, WIDTH));
        is_imported(&traced, "linear_wgrad d.proj.w", wgrad_ns(w->proj, WIDTH));
        is_imported(&traced, "linear h", forward_ns(w->fc1, WIDTH));
        is_imported(&traced, "linear_dgrad dn2", dgrad_ns(w->fc1, WIDTH));
        is_imported(&traced, "linear_wgrad d.fc1.w", wgrad_ns(w->fc1, WIDTH));
        is_imported(&traced, "linear f", forward_ns(w->fc2, FFN));
        is_imported(&traced, "linear_dgrad dg", dgrad_ns(w->fc2, FFN));
        is_imported(&traced, "linear_wgrad d.fc2.w", wgrad_ns(w->fc2, FFN));
        is_imported(&traced, "attention o", ATTN_US * 1000);
        is_imported(&traced, "attention_grad dqkv.rot", ATTN_GRAD_US * 1000);
        is_imported(&traced, "activation g", (SILU_US + MUL_US) * 1000);
        is_imported(&traced, "activation_grad dh", (SILU_GRAD_US + 2 * MUL_US) * 1000);
        assert_int_equal(traced.measurements.n, 0); /* nothing of the trace is left over */
        dh_traced_fini(&traced);
        dh_str_fini(&t.text);
        dh_job_destroy(job);
    }
}

/* Four of a gradient's five kernels are in the trace: it takes as long as these at least, however
 * short the forward of which it is the gradient. */
static void test_gradients_of_pieces(void **state)
{
    char dir[200];
    dh_traced traced;
    test_tmpdir(dir, sizeof dir);
    dh_job *job = make_job_of(llama_text);
    read_trace(dir, job,
               "{\"traceEvents\": [" OP("_flash_attention_forward", 1,
                                        "[1,32,4,16],[1,32,2,16],[1,32,2,16]", BF "," TWO)
                   KERNEL(1, 2) OP("bmm", 2, "[4,32,16],[4,16,32]", TWO) KERNEL(2, 200)
                       OP("bmm", 3, "[4,32,32],[4,32,16]", TWO) KERNEL(3, 400) "{}]}",
               &traced);
    const dh_profile_op *grad = find_row(traced.profile, "attention_grad dqkv.rot");
    assert_int_equal(ns_of(traced.profile, "attention o"), 2000);
    assert_int_equal(grad->source, DH_PAIR_MODELLED);
    assert_true(grad->solo_ns >= 200000 + 3 * 400000);
    dh_traced_fini(&traced);
    dh_job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_traces),        cmocka_unit_test(test_pytorch),
        cmocka_unit_test(test_separate_products), cmocka_unit_test(test_attention_by_products),
        cmocka_unit_test(test_gradients_follow),  cmocka_unit_test(test_experts),
        cmocka_unit_test(test_layers_of_pytorch), cmocka_unit_test(test_gradients_of_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
