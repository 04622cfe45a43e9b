/* Biases of routers by load (Wang et al. 2024, arXiv 2408.15664; DeepSeek V3, arXiv 2412.19437,
 * 2.1.2): after a step an expert's goes down by a rate where the step's tokens chose it more often
 * than on average, up where less. The load lies where the bias's gradient would: E times an
 * expert's choices less all of them, whole numbers, summed over micro-batches and ranks. Weights
 * stand still here where meshes are compared, so that all see the same scores. */
#include "ranks.h"
#include "team.h"

enum { SEQ = 32, SAMPLES = 8, LAYERS = 4, E = 8, TOP_K = 3, STEPS = 5 };
static const float rate = 0.01f;

static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

#define MODEL                                                                                      \
    "model: {family: deepseek_v3, n_layers: 4, width: 32, n_heads: 8, head_dim: 12, rope_dim: "    \
    "4,\n"                                                                                         \
    "        v_dim: 8, q_lora: 24, kv_lora: 20, ffn_width: 40, n_experts: 8, top_k: 3,\n"          \
    "        n_groups: 4, top_groups: 2, vocab: 65, max_seq: 32, init_std: 0.2}\n"

/* What a rank has of all layers' biases and loads; NAN where it has none. */
typedef struct biases {
    float bias[LAYERS * E], load[LAYERS * E];
} biases;

typedef struct training {
    double rate, norm; /* of the first step's gradients */
    int n_steps;
    biases first, last; /* behind the first step, and the last; of all ranks */
} training;

static void unset(biases *b)
{
    for (int i = 0; i < LAYERS * E; i++) b->bias[i] = b->load[i] = NAN;
}

static dh_status read_biases(dh_ctx *ctx, const dh_session *s, biases *b)
{
    dh_hf_tensor *list;
    size_t n;
    dh_status st = dh_hf_tensors(ctx, dh_session_layout(s), &list, &n);
    for (size_t i = 0; st == DH_OK && i < n; i++) {
        int layer;
        if (!strstr(list[i].name, "e_score_correction_bias")) continue;
        assert_int_equal(sscanf(list[i].name, "model.layers.%d.", &layer), 1);
        assert_in_range(layer, 0, LAYERS - 1);
        st = dh_session_read_hf(ctx, s, &list[i], DH_BUF_MASTER, b->bias + layer * E);
        if (st == DH_OK)
            st = dh_session_read_hf(ctx, s, &list[i], DH_BUF_GRAD, b->load + layer * E);
    }
    free(list);
    return st;
}

static biases of_rank[2][TEAM_MAX_RANKS]; /* behind the first step, behind the last */

static dh_status train_member(dh_ctx *ctx, member *m)
{
    const training *t = m->arg;
    rows_source rows = {tokens, targets, SAMPLES};
    DH_TRY(member_begin(ctx, m));
    for (int k = 0; k < t->n_steps; k++) {
        dh_step step = member_step(m, 0);
        step.step = k;
        step.router_bias_rate = t->rate;
        step.source = (dh_batch_source){.load = rows_load, .self = &rows};
        DH_TRY(dh_exec_run(ctx, m->session->train_exec, &step));
        if (k == 0) DH_TRY(dh_session_grad_norm(ctx, m->session, &m->norm));
        unset(&of_rank[k > 0][m->rank]);
        DH_TRY(read_biases(ctx, m->session, &of_rank[k > 0][m->rank]));
    }
    return DH_OK;
}

/* Those of all ranks; whoever has one has the same bits. */
static void join(const char *mesh, int n_ranks, const biases *parts, biases *whole)
{
    unset(whole);
    for (int r = 0; r < n_ranks; r++)
        for (int i = 0; i < LAYERS * E; i++) {
            const float b = parts[r].bias[i], l = parts[r].load[i];
            if (isnan(b)) continue;
            if (!isnan(whole->bias[i]) && whole->bias[i] != b)
                fail_msg("%s: rank %d has %g for bias %d, an earlier one %g", mesh, r, (double)b, i,
                         (double)whole->bias[i]);
            whole->bias[i] = b;
            whole->load[i] = l;
        }
    for (int i = 0; i < LAYERS * E; i++)
        if (isnan(whole->bias[i])) fail_msg("%s: no rank has bias %d", mesh, i);
}

/* A mesh, and what else the job says. */
typedef struct variant {
    const char *parallel, *optimizer, *train, *strategy;
} variant;
static const variant one_rank = {"dp: 1", "", "", "sequential"};

static training train(const variant *v, double by, int n_steps)
{
    training t = {.rate = by, .n_steps = n_steps};
    char text[1024];
    team ranks;
    snprintf(text, sizeof text,
             MODEL "data: {train: none}\n"
                   "train: {batch: 8, micro_batch: 1, seq_len: 32, threads: 1%s}\n"
                   "optimizer: {router_bias_rate: %g%s}\nmoe: {capacity: 8}\n"
                   "parallel: {%s}\nstrategy: %s\nprofile: none\n",
             v->train, by, v->optimizer, v->parallel, v->strategy);
    team_run(text, train_member, &t, &ranks);
    join(v->parallel, ranks.n, of_rank[0], &t.first);
    join(v->parallel, ranks.n, of_rank[n_steps > 1], &t.last);
    t.norm = ranks.members[0].norm;
    team_end(&ranks);
    return t;
}

static float largest(const biases *b, int layer)
{
    float most = b->load[layer * E];
    for (int e = 1; e < E; e++) most = fmaxf(most, b->load[layer * E + e]);
    return most;
}

/* Choices are counted, all of them; the norm of gradients knows nothing of it. */
static void a_step_moves_biases_against_the_load(void **state)
{
    const training with = train(&one_rank, rate, 1), without = train(&one_rank, 0, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        double sum = 0;
        for (int e = 0; e < E; e++) {
            const float load = with.first.load[layer * E + e];
            const double count = ((double)load + SAMPLES * SEQ * TOP_K) / E;
            sum += (double)load;
            assert_true(count == floor(count) && count >= 0 && count <= SAMPLES * SEQ);
            assert_true(with.first.bias[layer * E + e] == -rate * (float)((load > 0) - (load < 0)));
            assert_true(without.first.bias[layer * E + e] == 0 &&
                        without.first.load[layer * E + e] == 0);
        }
        assert_true(sum == 0 && largest(&with.first, layer) > 0);
    }
    assert_true(with.norm == without.norm);
}

static void many_steps_balance(void **state)
{
    const training t = train(&one_rank, rate, 80);
    for (int layer = 0; layer < LAYERS; layer++) {
        const double mean = SAMPLES * SEQ * TOP_K; /* E times an even share */
        const double before = 1 + largest(&t.first, layer) / mean;
        const double after = 1 + largest(&t.last, layer) / mean;
        printf("  layer %d: %.2f times the even share, then %.2f\n", layer, before, after);
        assert_true(after < before && after < 1.35);
    }
}

static void meshes_move_them_alike(void **state)
{
    static const variant meshes[] = {
        {"dp: 2", "", "", "sequential"},
        {"dp: 4, zero: 1", "", "", "sequential"},
        {"dp: 2, zero: 2", ", fuse: 2", "", "sequential"},
        {"dp: 2, zero: 3", "", "", "sequential"},
        {"tp: 4", "", "", "sequential"},
        {"cp: 2, pp: 2", "", "", "sequential"},
        {"dp: 4, ep: 2, tp: 2, zero: 1", "", "", "sequential"},
        {"dp: 2, ep: 2, tp: 2, cp: 2, expert_tp: 1", "", "", "sequential"},
        {"pp: 4, schedule: zb-h1", ", post_validation: true", "", "sequential"},
        {"dp: 2, ep: 2, pp: 2, schedule: dualpipe", "", "", "dualpipe"},
        {"tp: 2, pp: 2, schedule: dhelix-w", "", ", recompute: full", "dhelix"},
    };
    const training one = train(&one_rank, rate, STEPS);
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_stride(1, 3)) {
        const training many = train(&meshes[i], rate, STEPS);
        for (int k = 0; k < LAYERS * E; k++) {
            if (many.last.bias[k] != one.last.bias[k])
                fail_msg("%s: bias %d is %g, on one rank %g", meshes[i].parallel, k,
                         (double)many.last.bias[k], (double)one.last.bias[k]);
            /* Tensor-parallel ranks that have all tokens count each of them. */
            const float a = many.last.load[k], b = one.last.load[k];
            assert_int_equal((a > 0) - (a < 0), (b > 0) - (b < 0));
        }
    }
}

/* Biases are weights: a run that goes on has them from its checkpoint. */
static void a_run_goes_on_with_the_same_bits(void **state)
{
    static const char rated[] = "parallel.dp=2 parallel.ep=2 optimizer.router_bias_rate=0.01 ";
    char whole_out[300], out[300], settings[400];
    run_curve whole, both;
    run_folder(whole_out, sizeof whole_out, "whole");
    run_folder(out, sizeof out, "parts");
    run_curve_of(MODEL, rated, whole_out, &whole);
    snprintf(settings, sizeof settings, "%strain.steps=10 optimizer.decay_steps=20", rated);
    run_curve_of(MODEL, settings, out, &both);
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    assert_ok(&ctx, run_job(&ctx, MODEL, rated, out, &result));
    assert_int_equal(result.resumed_at, 10);
    assert_true(run_same_bytes(whole_out, out, 20));
    assert_fails(&ctx, run_job(&ctx, RUN_EXPERTS, "optimizer.router_bias_rate=0.01", out, NULL),
                 DH_EINVAL, "deepseek_v3");
    run_remove(whole_out);
    run_remove(out);
}

int main(void)
{
    uint64_t seed = test_seed("router biases");
    for (int i = 0; i < SAMPLES * SEQ; i++) {
        tokens[i] = (int32_t)(test_rand(&seed) % 65);
        targets[i] = (int32_t)(test_rand(&seed) % 65);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_moves_biases_against_the_load),
        cmocka_unit_test(many_steps_balance),
        cmocka_unit_test(meshes_move_them_alike),
        cmocka_unit_test(a_run_goes_on_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
