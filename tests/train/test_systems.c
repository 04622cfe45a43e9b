/* Systems: what each trait does to a step, by small jobs in which it matters and others in which it
 * does not; reading of names; and that only ours is trained. */
#include "dh_test.h"

#include "costs/system.h"
#include "dhelix/train.h"
#include "train/simulation.h"

static dh_job *parse(const char *text, const char *system)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    char set[128];
    snprintf(set, sizeof set, "system=%s", system);
    const char *const sets[] = {set};
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", NULL, sets, 1, &job));
    return job;
}

static dh_sim *simulate_on(const char *cluster_name, const char *text, const char *system)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *cluster;
    dh_resolved *resolved;
    dh_sim *sim;
    dh_job *job = parse(text, system);
    assert_ok(&ctx, dh_cluster_find(&ctx, cluster_name, &cluster));
    const dh_resolve_options how = {.cluster = cluster};
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &resolved));
    assert_ok(&ctx, dh_train_simulate(&ctx, resolved, &(dh_train_simulation){0}, &sim));
    dh_resolved_destroy(resolved);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
    return sim;
}

static dh_sim *simulate(const char *text, const char *system)
{
    return simulate_on("a100", text, system);
}

static double step_ns_on(const char *cluster, const char *text, const char *system)
{
    dh_sim *sim = simulate_on(cluster, text, system);
    const double ns = (double)sim->step_ns;
    dh_sim_destroy(sim);
    return ns;
}

static double step_ns(const char *text, const char *system)
{
    return step_ns_on("a100", text, system);
}

#define SIZES "n_layers: 4, width: 1024, n_heads: 16, vocab: 8192, max_seq: 2048"
#define GPT "model: {family: gpt2, " SIZES ", dropout: 0.1}\n"
#define LLAMA "model: {family: llama, " SIZES ", n_kv_heads: 4, ffn_width: 2816}\n"
#define TRAIN "train: {dtype: bf16, seq_len: 2048, batch: 16, micro_batch: 1"

static const char one[] = GPT TRAIN "}\n";
static const char scores_again[] = GPT TRAIN ", recompute: attention}\n";
static const char selective[] = LLAMA TRAIN ", recompute: selective}\n";
static const char full[] = GPT TRAIN ", recompute: full}\n";
static const char tensor[] = GPT TRAIN "}\nparallel: {tp: 8, dp: 1}\n";
static const char rings[] = GPT TRAIN "}\nparallel: {tp: 4, dp: 1}\nstrategy: intra-batch\n";
static const char rounded_rings[] =
    LLAMA TRAIN ", fp8: hybrid}\nparallel: {tp: 4, dp: 1}\nstrategy: intra-batch\n";
static const char stages[] = GPT TRAIN "}\nparallel: {tp: 4, pp: 4, dp: 1}\n";
static const char whole_stages[] =
    GPT TRAIN "}\nparallel: {tp: 4, pp: 4, dp: 1, sequence: false}\n";
static const char context[] = LLAMA TRAIN "}\nparallel: {tp: 4, cp: 4, dp: 1}\n";
static const char logits[] = "model: {family: gpt2, n_layers: 1, width: 128, n_heads: 2, vocab: "
                             "131072, max_seq: 2048}\n" TRAIN "}\n";
static const char rounded[] = LLAMA TRAIN ", fp8: hybrid}\n";
static const char rounded_tensor[] = LLAMA TRAIN ", fp8: hybrid}\nparallel: {tp: 4, dp: 1}\n";
static const char data[] = GPT TRAIN "}\nparallel: {dp: 16}\n";

#define EXPERTS                                                                                    \
    "model: {family: mixtral, " SIZES ", n_kv_heads: 4, ffn_width: 1024, n_experts: 32, top_k: "   \
    "4}\n"
static const char experts[] = EXPERTS TRAIN "}\nparallel: {dp: 8, ep: 8}\n";
static const char far_experts[] = EXPERTS TRAIN "}\nparallel: {dp: 16, ep: 16}\n";
static const char cut_experts[] = EXPERTS TRAIN "}\nparallel: {tp: 4, dp: 8, ep: 8}\n";
static const char whole_experts[] =
    EXPERTS TRAIN "}\nparallel: {tp: 4, dp: 4, ep: 4, expert_tp: 1}\n";

/* A trait, a job whose step it makes longer (or shorter), and one that has nothing of the kind. */
static const struct {
    const char *trait;
    const char *matters, *idle;
    bool shorter;
} cases[] = {
    {"scores", one, NULL, false},
    {"whole-forward", full, one, false},
    {"gradients-apart", tensor, one, false},
    {"waiting-transfers", stages, one, false},
    {"split-transfers", whole_stages, stages, true},
    {"repeated-kv", context, one, false},
    {"reduced-last", data, one, false},
    {"unfused-optimizer", one, NULL, false},
    {"host-waits", stages, one, false},
    {"second-products", selective, one, false},
    {"float-loss", one, NULL, false},
    {"eager", context, NULL, false},
    {"first-flash", one, NULL, false},
    {"two-streams", rings, tensor, true},
    {"summed-once", rings, tensor, true},
    {"torch-rings", context, one, false},
    {"expert-kernels", experts, one, false},
    {"unfused-experts", experts, one, false},
    {"shared-rows", cut_experts, whole_experts, true},
    {"shared-rows", cut_experts, one, true},
    {"one-copy", far_experts, one, true},
};

static void test_traits(void **state)
{
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char system[64];
        snprintf(system, sizeof system, "dhelix+%s", cases[i].trait);
        const double ours = step_ns(cases[i].matters, "dhelix");
        const double theirs = step_ns(cases[i].matters, system);
        if (cases[i].shorter ? theirs >= ours : theirs <= ours)
            fail_msg("%s: %.0f ns, ours %.0f", system, theirs, ours);
        if (cases[i].idle)
            assert_true(step_ns(cases[i].idle, system) == step_ns(cases[i].idle, "dhelix"));
    }
}

/* What Hopper has that systems do not use: on A100 there is nothing to miss. */
static void test_hopper(void **state)
{
    static const char *const traits[] = {"dhelix+second-flash", "dhelix+torch-products"};
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(traits); i++) {
        assert_true(step_ns_on("h100", one, traits[i]) > step_ns_on("h100", one, "dhelix"));
        assert_true(step_ns(one, traits[i]) == step_ns(one, "dhelix"));
    }
}

/* Operands rounded once, and gathered in 8 bits; without fp8 nothing is rounded. */
static void test_rounded_once(void **state)
{
    (void)state;
    assert_true(step_ns_on("h100", rounded, "dhelix+rounded-once") <
                step_ns_on("h100", rounded, "dhelix"));
    assert_true(step_ns_on("h100", rounded_tensor, "dhelix+rounded-once") <
                step_ns_on("h100", rounded_tensor, "dhelix"));
    assert_true(step_ns_on("h100", rounded_rings, "dhelix+rounded-once") <
                step_ns_on("h100", rounded_rings, "dhelix"));
    assert_true(step_ns_on("h100", tensor, "dhelix+rounded-once") ==
                step_ns_on("h100", tensor, "dhelix"));
}

static double compute_ns(const char *text, const char *system)
{
    dh_sim *sim = simulate_on("h100", text, system);
    const double ns = (double)sim->ranks[0].times.busy_ns[DH_ENGINE_COMPUTE];
    dh_sim_destroy(sim);
    return ns;
}

/* What a step has but once, however many micro-batches: a weight's rounding, and to step. */
static double once_ns(const char *text, const char *system)
{
    char jobs[2][512];
    for (int i = 0; i < 2; i++) snprintf(jobs[i], sizeof jobs[i], text, i + 1);
    return 2 * compute_ns(jobs[0], system) - compute_ns(jobs[1], system);
}

/* A weight is rounded once, however many parts its product has. */
static void test_weights_of_parts(void **state)
{
#define WIDE                                                                                       \
    "model: {family: llama, n_layers: 1, width: 8192, n_heads: 64, n_kv_heads: 8, vocab: 8192, "   \
    "ffn_width: 22016, max_seq: 2048}\n"                                                           \
    "train: {dtype: bf16, seq_len: 2048, batch: %d, micro_batch: 1, fp8: hybrid}\n"                \
    "parallel: {tp: 4, dp: 1}\noverlap: {barriers: full}\n"
    static const char system[] = "dhelix+rounded-once+two-streams";
    const double whole = once_ns(WIDE, system);
    const double parts = once_ns(WIDE "strategy: intra-batch\n", system);
    (void)state;
    assert_true(whole > 1.02 * once_ns(WIDE, "dhelix"));
    assert_true(fabs(parts / whole - 1) < 0.01);
}

/* Of a gated layer's seven products the second, fourth and sixth again: k, o, up. Times of products
 * are nearly those of their FLOPs here. */
static void test_second_products(void **state)
{
    const double h = 1024, f = 2816, flops = 2 * 16 * 2048.0 * 4 * (h * h / 4 + h * h + h * f);
    const double ns = step_ns(selective, "dhelix+second-products") - step_ns(selective, "dhelix");
    (void)state;
    assert_true(ns > flops / 312e12 * 1e9 && ns < 2 * flops / 312e12 * 1e9);
}

/* Scores that the backward makes again take its time; where none are kept there is nothing to do.
 */
static void test_scores_again(void **state)
{
    (void)state;
    assert_true(step_ns(scores_again, "dhelix+scores") > step_ns(one, "dhelix+scores"));
    assert_true(step_ns(scores_again, "dhelix") == step_ns(one, "dhelix"));
}

static double flops(const char *text, const char *system, double *peak_bytes)
{
    dh_sim *sim = simulate(text, system);
    const double sum = sim->hardware_flops;
    *peak_bytes = (double)sim->ranks[0].memory.peak_bytes;
    dh_sim_destroy(sim);
    return sum;
}

/* A whole forward again: of the GEMMs 24 B s h^2 a layer, of attention its own forward; ours leaves
 * out the last linear. Logits in one piece take their memory. */
static void test_programs(void **state)
{
    double kept, again, all, apart;
    const double gemms = 4 * 16 * 2048 * 24.0 * 1024 * 1024, last = gemms / 3;
    const double attention = 4 * 16 * 16 * 2.0 * 2048 * 2048 * 64;
    const double none = flops(one, "dhelix", &kept);
    const double whole = flops(full, "dhelix+whole-forward", &again) - none;
    const double ours = flops(full, "dhelix", &again) - none;
    (void)state;
    assert_true(fabs(whole / (gemms + attention) - 1) < 1e-3);
    assert_true(fabs((whole - ours) / last - 1) < 1e-9);
    flops(logits, "dhelix+whole-logits", &all);
    flops(logits, "dhelix", &apart);
    assert_true(all > apart);
}

/* A host that is late decides a step of small layers; a cluster's host takes the place of the
 * system's, and a captured layer is issued at once. */
static void test_host(void **state)
{
    static const char tiny[] = "model: {family: gpt2, n_layers: 8, width: 256, n_heads: 4, vocab: "
                               "8192, max_seq: 256}\ntrain: {dtype: bf16, seq_len: 256, batch: 8, "
                               "micro_batch: 1, recompute: full}\n";
    const double slow = step_ns(tiny, "deepspeed"), captured = step_ns(tiny, "deepspeed+captured");
    const double layer = slow / (8 * 8); /* of a layer and micro-batch */
    (void)state;
    assert_true(layer > 2.5e6 && layer < 4.5e6);
    assert_true(captured < 0.5 * slow && captured > step_ns(tiny, "megatron-2021"));
    assert_true(step_ns(tiny, "megatron-2021+torch-kernels") == step_ns(tiny, "megatron-2021"));
    assert_true(step_ns(tiny, "megatron-2021+loss-waits") == step_ns(tiny, "megatron-2021"));
}

static double rows_ns(const char *text, const char *system)
{
    dh_sim *sim = simulate(text, system);
    const dh_program *p = sim->ranks[0].program;
    double sum = 0;
    for (size_t i = 0; i < p->instrs.n; i++)
        if (dh_instr_op(p, &p->instrs.at[i])->type == DH_OP_ALL_TO_ALL_ROWS)
            sum += (double)(sim->ranks[0].spans[i].end_ns - sim->ranks[0].spans[i].met_ns);
    dh_sim_destroy(sim);
    return sum;
}

/* Of 32 experts on two nodes a token's 4 are on both but for 2 C(16,4) / C(32,4) of the cases: it
 * goes to another node 0.95 times, in place of twice. */
static void test_one_copy(void **state)
{
    const double copies = rows_ns(far_experts, "dhelix");
    const double once = rows_ns(far_experts, "dhelix+one-copy");
    (void)state;
    assert_true(once < 0.75 * copies && once > 0.4 * copies);
}

/* Unfused kernels take longer than fused ones, which take longer than ours. An expert's product is
 * a kernel: more experts on a rank, more of them. */
static void test_expert_kernels(void **state)
{
    static const char few[] =
        EXPERTS TRAIN "}\nparallel: {dp: 16, ep: 16}\nmoe: {mode: capacity, capacity: 1}\n";
    const double ours = step_ns(experts, "dhelix");
    const double fused = step_ns(experts, "dhelix+expert-kernels");
    (void)state;
    assert_true(fused > ours);
    assert_true(step_ns(experts, "dhelix+unfused-experts") > fused);
    assert_true(compute_ns(few, "dhelix+expert-kernels") > compute_ns(few, "dhelix"));
    assert_true(compute_ns(experts, "dhelix+expert-kernels") - compute_ns(experts, "dhelix") > 0);
}

/* Without a host time nothing waits. With it a dropless layer's host waits for how many rows come,
 * and each step of small layers takes as long as its kernels take to be issued. */
static void test_host_of_experts(void **state)
{
    static const char capped[] =
        EXPERTS TRAIN "}\nparallel: {dp: 8, ep: 8}\nmoe: {mode: capacity, capacity: 1}\n";
    const double dropless = step_ns_on("h100", experts, "megatron-moe");
    (void)state;
    /* 4 layers, 2 micro-batches, at least 80 kernels of 52 us each */
    assert_true(dropless > 4 * 2 * 80 * 52e3);
    assert_true(dropless > 1.5 * step_ns_on("h100", experts, "dhelix+expert-kernels"));
    assert_true(step_ns_on("h100", capped, "megatron-moe") > 0);
    assert_true(step_ns_on("h100", experts, "megatron-moe+captured") < dropless);
}

/* As many gathers and reductions of a layer as it has matrices: four. */
static void test_matrix_collectives(void **state)
{
    static const char text[] = GPT TRAIN "}\nparallel: {dp: 16, zero: 3}\n";
    size_t n[2] = {0, 0};
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        dh_sim *sim = simulate(text, apart ? "dhelix+matrix-collectives" : "dhelix");
        const dh_program *p = sim->ranks[0].program;
        for (size_t i = 0; i < p->instrs.n; i++) {
            const dh_instr *instr = &p->instrs.at[i];
            const dh_op *op = dh_instr_op(p, instr);
            n[apart] += op->type == DH_OP_ALL_GATHER && p->blocks.at[instr->block].layer == 1;
        }
        dh_sim_destroy(sim);
    }
    assert_int_equal(n[0], 2);
    assert_int_equal(n[1], 8);
    assert_true(step_ns(text, "dhelix+matrix-collectives") > step_ns(text, "dhelix"));
}

/* Half as many bytes of gradients: a reduction of large ones takes half the time. */
static void test_half_gradients(void **state)
{
    static const char text[] = GPT TRAIN "}\nparallel: {dp: 16, zero: 0, bucket_mb: 1000}\n";
    static const char compute[] =
        GPT TRAIN "}\nparallel: {dp: 16, zero: 0, bucket_mb: 1000, grad_dtype: compute}\n";
    dh_sim *whole = simulate(text, "dhelix"), *half = simulate(text, "dhelix+half-gradients");
    const double of_whole = (double)whole->ranks[0].times.alone_ns;
    const double of_half = (double)half->ranks[0].times.alone_ns;
    (void)state;
    assert_true(of_half > 0.5 * of_whole && of_half < 0.6 * of_whole);
    /* Ours are float32 before and after the way: two passes more. */
    dh_sim *ours = simulate(compute, "dhelix"), *both = simulate(compute, "dhelix+half-gradients");
    const double of_ours = (double)ours->ranks[0].times.alone_ns;
    assert_true(of_ours > of_half && of_ours < 0.75 * of_whole);
    assert_true((double)both->ranks[0].times.alone_ns == of_half);
    dh_sim_destroy(ours);
    dh_sim_destroy(both);
    dh_sim_destroy(whole);
    dh_sim_destroy(half);
}

static void test_reading(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_system system;
    size_t n;
    const dh_system *rows = dh_systems(&n);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        assert_ok(&ctx, dh_system_read(&ctx, rows[i].name, &system));
        assert_int_equal(system.traits, rows[i].traits);
        assert_true(i == 0 ? rows[i].traits == 0 : *rows[i].source);
    }
    assert_ok(&ctx, dh_system_read(&ctx, "megatron-core-2024", &system));
    assert_true(dh_system_has(&system, DH_TRAIT_EAGER));
    assert_true(dh_system_has(&system, DH_TRAIT_FLOAT_LOSS));
    assert_ok(&ctx, dh_system_read(&ctx, "megascale+scores", &system));
    assert_true(dh_system_has(&system, DH_TRAIT_SCORES));
    assert_true(dh_system_has(&system, DH_TRAIT_REPEATED_KV));
    assert_false(dh_system_has(&system, DH_TRAIT_WAITING_TRANSFERS));
    assert_fails(&ctx, dh_system_read(&ctx, "megatron-cor", &system), DH_EMISSING,
                 "did you mean megatron-core");
    assert_fails(&ctx, dh_system_read(&ctx, "dhelix+score", &system), DH_EMISSING,
                 "did you mean scores");
}

/* A later release of Megatron-Core is no slower, in 16 bits and in 8. */
static void test_releases(void **state)
{
    (void)state;
    assert_true(step_ns_on("h100", tensor, "megatron-core-2026") <
                step_ns_on("h100", tensor, "megatron-core-2024"));
    assert_true(step_ns_on("h100", rounded, "megatron-core-2026") <
                step_ns_on("h100", rounded, "megatron-core-2024"));
}

static void test_not_trained(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    dh_job *job = parse(one, "megatron-core");
    (void)state;
    assert_fails(&ctx, dh_train(&ctx, job, &(dh_train_options){.quiet = true}, &result), DH_EINVAL,
                 "system=megatron-core is only simulated");
    dh_job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traits),           cmocka_unit_test(test_scores_again),
        cmocka_unit_test(test_second_products),  cmocka_unit_test(test_programs),
        cmocka_unit_test(test_reading),          cmocka_unit_test(test_not_trained),
        cmocka_unit_test(test_hopper),           cmocka_unit_test(test_rounded_once),
        cmocka_unit_test(test_weights_of_parts), cmocka_unit_test(test_host),
        cmocka_unit_test(test_half_gradients),   cmocka_unit_test(test_matrix_collectives),
        cmocka_unit_test(test_releases),         cmocka_unit_test(test_one_copy),
        cmocka_unit_test(test_expert_kernels),   cmocka_unit_test(test_host_of_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
