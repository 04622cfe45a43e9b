/* Linear attention over ranks: steps of training are those of one rank, with states gathered
 * (LASP-2) or handed on (LASP); what travels for it does not depend on the length of sequences.
 *
 * Tolerances. float32: the same products, summed by ranks and chunks: 1e-6 of a loss of 4 after
 * three steps of AdamW. bf16: outputs are rounded once on either side, and roundings add up over
 * layers and steps: 1e-2. */
#include "team.h"

enum { SEQ = 192, SAMPLES = 4, STEPS = 3 };

static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

static const char llama[] =
    "model: {family: llama, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 1024, tied_head: false, attention: linear,\n"
    "        feature_map: %s}\n";
static const char hybrid[] = /* LASP-2H */
    "model: {family: llama, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 1024, tied_head: false, attention: linear,\n"
    "        softmax_every: 2, feature_map: %s}\n";
static const char mixtral[] =
    "model: {family: mixtral, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 8,\n"
    "        ffn_width: 40, n_experts: 4, top_k: 2, router_aux_coef: 0.05, vocab: 65,\n"
    "        max_seq: 1024, tied_head: false, attention: linear, feature_map: %s}\n";

typedef struct linear_case {
    const char *model, *map, *parallel, *train, *strategy;
} linear_case;

/* By rank and step. */
typedef struct losses {
    double sum[TEAM_MAX_RANKS][STEPS], rows[TEAM_MAX_RANKS][STEPS];
} losses;

static dh_status train_member(dh_ctx *ctx, member *m)
{
    losses *l = m->arg;
    rows_source rows = {tokens, targets, SAMPLES};
    DH_TRY(member_begin(ctx, m));
    for (int i = 0; i < STEPS; i++) {
        dh_step step = member_step(m, 0);
        step.step = i;
        step.lr = 1e-3;
        step.eps = 1e-5; /* far above the rounding of gradients: Adam amplifies it else */
        step.source = (dh_batch_source){.load = rows_load, .self = &rows};
        DH_TRY(dh_exec_run(ctx, m->session->train_exec, &step));
        DH_TRY(dh_session_loss(ctx, m->session, &l->sum[m->rank][i], &l->rows[m->rank][i]));
    }
    return dh_session_grad_norm(ctx, m->session, &m->norm);
}

static void job_text(const linear_case *c, int seq, char *text, size_t cap)
{
    const int n = snprintf(text, cap, c->model, c->map);
    snprintf(text + n, cap - (size_t)n,
             "data: {train: none}\ntrain: {batch: 4, seq_len: %d, threads: 1, %s}\n"
             "parallel: {%s}\nstrategy: %s\nprofile: none\n",
             seq, c->train, c->parallel, c->strategy);
}

/* Mean losses of the ranks that have the head, each token counted once; the last gradient norm. */
static void train(const linear_case *c, double loss[STEPS], double *norm)
{
    static losses l;
    char text[1024];
    team t;
    job_text(c, SEQ, text, sizeof text);
    l = (losses){0};
    team_run(text, train_member, &l, &t);
    const dh_mesh *mesh = &t.resolved->recipe.mesh;
    for (int i = 0; i < STEPS; i++) {
        double sum = 0, rows = 0;
        for (int r = 0; r < t.n; r++) {
            const dh_coord at = dh_mesh_coord(mesh, r);
            if (at.tp != 0 || at.pp != mesh->pp - 1) continue;
            sum += l.sum[r][i];
            rows += l.rows[r][i];
        }
        assert_true(rows == SAMPLES * SEQ);
        loss[i] = sum / rows;
    }
    *norm = t.members[0].norm;
    team_end(&t);
}

static void check_against_one(const linear_case *c)
{
    const bool bf16 = strstr(c->train, "bf16") != NULL;
    /* The load of experts is balanced in each micro-batch. */
    const linear_case alone = {c->model, c->map, "dp: 1",
                               bf16 ? "micro_batch: 1, dtype: bf16" : "micro_batch: 1",
                               "sequential"};
    double one[STEPS], many[STEPS], norm_one, norm_many, worst = 0;
    train(&alone, one, &norm_one);
    train(c, many, &norm_many);
    for (int i = 0; i < STEPS; i++) worst = fmax(worst, fabs(one[i] - many[i]));
    printf("  %s {%s} {%s}, %s: loss %.9g, off by %.2g, norm by %.2g\n", c->map, c->parallel,
           c->train, c->strategy, one[STEPS - 1], worst, fabs(norm_many / norm_one - 1));
    assert_true(one[0] - one[STEPS - 1] > 1e-3); /* it learns */
    assert_true(worst <= (bf16 ? 1e-2 : 1e-6));
    assert_true(fabs(norm_many / norm_one - 1) <= (bf16 ? 2e-2 : 1e-5));
}

static void ranks_are_one(void **state)
{
    static const linear_case cases[] = {
        {llama, "elu", "cp: 2", "micro_batch: 1", "sequential"},
        {llama, "elu", "cp: 4", "micro_batch: 2, dtype: f32", "sequential"},
        {llama, "silu", "cp: 4, cp_linear: lasp1", "micro_batch: 1", "sequential"},
        {llama, "identity", "cp: 2, cp_linear: lasp1, tp: 2, pp: 2", "recompute: full",
         "sequential"},
        {llama, "elu", "cp: 4, tp: 2, sequence: false", "recompute: selective", "intra-batch"},
        {llama, "elu", "cp: 2, dp: 2, zero: 3", "micro_batch: 1", "sequential"},
        {llama, "elu", "cp: 2, tp: 2", "micro_batch: 1, dtype: bf16", "dhelix"},
        {llama, "elu", "cp: 4, cp_linear: lasp1", "micro_batch: 1, dtype: bf16", "dhelix"},
        {mixtral, "elu", "cp: 2, dp: 2, ep: 2, zero: 1", "micro_batch: 1", "sequential"},
        {llama, "elu", "cp: 3", "micro_batch: 1", "sequential"}, /* no power of two, no halves */
        {llama, "elu", "cp: 2, tp: 2", "micro_batch: 2", "domino"},
        {hybrid, "elu", "cp: 2", "micro_batch: 1", "sequential"},
        {hybrid, "silu", "cp: 4", "micro_batch: 2, recompute: full", "dhelix"},
        {hybrid, "identity", "cp: 2, tp: 2", "micro_batch: 2", "domino"},
        {hybrid, "elu", "cp: 2, tp: 2", "micro_batch: 1, dtype: bf16", "dhelix"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) check_against_one(&cases[i]);
}

/* What a rank gets from those before it is summed in their order either way: over two and four
 * ranks the forward has the same bits. Gradients are summed from the other end by LASP. */
static void both_ways_have_one_forward(void **state)
{
    static const linear_case gathered = {llama, "elu", "cp: 4", "micro_batch: 1", "sequential"};
    static const linear_case handed_on = {llama, "elu", "cp: 4, cp_linear: lasp1", "micro_batch: 1",
                                          "sequential"};
    double a[STEPS], b[STEPS], norm_a, norm_b;
    train(&gathered, a, &norm_a);
    train(&handed_on, b, &norm_b);
    assert_true(a[0] == b[0]);
    assert_true(fabs(norm_a / norm_b - 1) <= 1e-6);
}

/* ---- what travels -------------------------------------------------------------------------- */

typedef struct volume {
    int n_calls; /* on the group of context parallelism */
    double sent; /* bytes that the rank sends to others */
} volume;

/* A gather takes the rank's part to all others; exchanges take what they have to one. */
static volume volume_of(const linear_case *c, int seq)
{
    dh_ctx ctx = DH_CTX_INIT;
    char text[1024];
    dh_job *job;
    dh_resolved *resolved;
    dh_program *p;
    const dh_resolve_options options = {.quiet = true};
    volume v = {0};
    job_text(c, seq, text, sizeof text);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", ".", NULL, 0, &job));
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &options, &resolved));
    const dh_program_spec spec = {.recipe = resolved->recipe, .mode = DH_MODE_TRAIN, .rank = 1};
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (dh_op_info_of(op->type)->resource != DH_RES_COMM || op->group != DH_GROUP_CP) continue;
        const double n_to = op->type == DH_OP_ALL_GATHER ? (double)(p->mesh.cp - 1) : 1;
        v.n_calls++;
        v.sent += n_to * (double)dh_instr_operand(p, &p->instrs.at[i], 0)->n_bytes;
    }
    dh_program_destroy(p);
    dh_resolved_destroy(resolved);
    dh_job_destroy(job);
    return v;
}

static void volume_is_independent_of_length(void **state)
{
    static const linear_case cases[] = {
        {llama, "elu", "cp: 4", "micro_batch: 1", "sequential"},
        {llama, "elu", "cp: 4, cp_linear: lasp1", "micro_batch: 1", "sequential"},
    };
    /* Layers, micro-batches, key heads: a state of 8 x 8 to 3 others, forth and back. */
    const double formula = 2 * 4 * 2 * (8 * 8 * 4) * 3 * 2;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const volume a = volume_of(&cases[i], 128), b = volume_of(&cases[i], 1024);
        printf("  {%s}: %d calls, %.0f bytes sent by a rank at 128 tokens, %.0f at 1024\n",
               cases[i].parallel, a.n_calls, a.sent, b.sent);
        assert_int_equal(a.n_calls, 2 * 4 * 2 * (i == 0 ? 1 : 3));
        assert_int_equal(a.n_calls, b.n_calls);
        assert_true(a.sent == formula && b.sent == formula);
    }
}

/* LASP-2H: a chunk's state each, so two for a layer of linear attention, and rings for the other.
 */
static void hybrids_send_both(void **state)
{
    static const linear_case c = {hybrid, "elu", "cp: 4", "micro_batch: 1", "sequential"};
    const double states = 4 * 2 * 2 * (8 * 8 * 4) * 3 * 2;
    const volume a = volume_of(&c, 128), b = volume_of(&c, 1024);
    printf("  hybrid: %d calls, %.0f bytes at 128 tokens, %.0f at 1024\n", a.n_calls, a.sent,
           b.sent);
    assert_int_equal(a.n_calls, b.n_calls);
    assert_true(a.sent > states && b.sent - states == 8 * (a.sent - states));
}

/* Keys and values of ring attention grow with it: what the comparison above could fail to see. */
static void volume_of_rings_is_not(void **state)
{
    static const char softmax[] =
        "model: {family: llama, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 8,\n"
        "        ffn_width: 88, vocab: 65, max_seq: 1024, tied_head: false, attention: %s}\n";
    static const linear_case ring = {softmax, "softmax", "cp: 4", "micro_batch: 1", "sequential"};
    const volume a = volume_of(&ring, 128), b = volume_of(&ring, 1024);
    assert_true(a.sent > 0 && b.sent == 8 * a.sent);
}

int main(void)
{
    uint64_t seed = test_seed("linear attention over ranks");
    for (int i = 0; i < SAMPLES * SEQ; i++) tokens[i] = (int32_t)(test_rand(&seed) % 65);
    for (int i = 0; i < SAMPLES * SEQ; i++)
        targets[i] = i % SEQ < SEQ - 1 ? tokens[i + 1] : (int32_t)(test_rand(&seed) % 65);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_one),
        cmocka_unit_test(both_ways_have_one_forward),
        cmocka_unit_test(volume_is_independent_of_length),
        cmocka_unit_test(volume_of_rings_is_not),
        cmocka_unit_test(hybrids_send_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
