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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_traces),        cmocka_unit_test(test_pytorch),
        cmocka_unit_test(test_separate_products), cmocka_unit_test(test_attention_by_products),
        cmocka_unit_test(test_gradients_follow),  cmocka_unit_test(test_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
