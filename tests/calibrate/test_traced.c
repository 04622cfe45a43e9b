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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_traces),
                                       cmocka_unit_test(test_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
