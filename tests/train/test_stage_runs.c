/* Groups of ranks on declared nodes, in two stages, against the same mesh in one stage: losses and
 * bits; bytes on paced links between threads against the closed formula.
 *
 * Tolerance. Exchanges and gathers change no bit. A sum by node and then over nodes adds the same
 * terms in another grouping, as a mesh of other sizes does: run_tolerance (ranks.h). */
#include "ranks.h"
#include "team.h"

/* ---- losses --------------------------------------------------------------------------------- */

typedef struct comparison {
    const char *model, *settings, *strategy;
    dh_dtype dtype;
    bool same_bits;
} comparison;

#define NODES "topology.nodes=2 "
#define EP4 NODES "parallel.dp=4 parallel.ep=4 moe.mode=capacity moe.capacity=2 "
#define DROPLESS4 NODES "parallel.dp=4 parallel.ep=4 moe.mode=dropless moe.capacity=4 "

static void stages_train_alike(void **state)
{
    static const comparison list[] = {
        {RUN_GPT2, NODES "parallel.tp=4 model.dropout=0.1", "two-stage+sequential", DH_F32, false},
        {RUN_GPT2, NODES "parallel.dp=4", "centauri", DH_F32, false},
        {RUN_LLAMA, NODES "parallel.dp=4 parallel.zero=2 parallel.bucket_mb=0.02",
         "two-stage+sequential", DH_F32, false},
        {RUN_EXPERTS, EP4 "parallel.zero=1", "two-stage+sequential", DH_F32, false},
        {RUN_EXPERTS, DROPLESS4, "two-stage+dhelix", DH_F32, false},
        {RUN_LLAMA, NODES "parallel.dp=4 parallel.zero=3", "two-stage+list", DH_F32, false},
        {RUN_LLAMA, NODES "parallel.tp=4 parallel.sequence=false", "two-stage(narrow,2)+sequential",
         DH_F32, false},
        {RUN_LLAMA, NODES "parallel.tp=4 train.recompute=full", "two-stage(narrow,2)+list", DH_F32,
         false},
        {RUN_LLAMA, NODES "parallel.tp=4 parallel.sequence=false", "two-stage(wide,2)+sequential",
         DH_F32, false},
        {RUN_LLAMA, NODES "parallel.tp=2 parallel.dp=4 parallel.bucket_mb=0.01", "two-stage+dhelix",
         DH_F32, false},
        /* Few steps: in bf16 what differs in a last place grows on its own (tolerances.md). */
        {RUN_LLAMA, NODES "parallel.tp=4 train.dtype=bf16 train.steps=4 eval.every=4", "centauri",
         DH_BF16, false},
        {RUN_EXPERTS, EP4, "two-stage+dhelix", DH_F32, false},
        {RUN_EXPERTS, DROPLESS4 "train.recompute=full", "centauri", DH_F32, false},
        {RUN_EXPERTS, NODES "parallel.tp=4 parallel.expert_tp=1 moe.mode=dropless moe.capacity=4",
         "two-stage+list", DH_F32, false},
        {RUN_EXPERTS, NODES "parallel.tp=4 parallel.expert_tp=1", "two-stage(wide)+sequential",
         DH_F32, false},
    };
    const size_t n = test_is_thin() ? 5 : DH_COUNTOF(list);
    for (size_t i = 0; i < n; i++) {
        if (test_leaves_out(i)) continue;
        const comparison *c = &list[i];
        char settings[400], out[2][300];
        run_curve one, two;
        run_folder(out[0], sizeof out[0], "one");
        run_folder(out[1], sizeof out[1], "two");
        snprintf(settings, sizeof settings, "%s strategy=%s", c->settings, c->strategy);
        run_curve_of(c->model, c->settings, out[0], &one);
        run_curve_of(c->model, settings, out[1], &two);
        const double d = run_distance(&one, &two, 0);
        const bool same = run_same_bytes(out[0], out[1], one.n);
        printf("  %s: losses differ by %.2g, bits %s\n", settings, d,
               same ? "are the same" : "differ");
        if (!(d <= run_tolerance(c->dtype))) fail_msg("%s: losses differ by %g", settings, d);
        if (c->same_bits) assert_true(same && d == 0);
    }
}

/* ---- bytes on links -------------------------------------------------------------------------- */

enum { SEQ = 32, SAMPLES = 8 };
static int32_t tokens[SAMPLES * SEQ];

static dh_status step_member(dh_ctx *ctx, member *m)
{
    rows_source rows = {tokens, tokens, SAMPLES};
    DH_TRY(member_begin(ctx, m));
    dh_step step = member_step(m, 0);
    step.source = (dh_batch_source){.load = rows_load, .self = &rows};
    return dh_exec_run(ctx, m->session->train_exec, &step);
}

static int64_t larger_side(const dh_graph *g, const dh_op *op)
{
    return DH_MAX(dh_tensor_bytes(&g->tensors.at[op->in[0]]),
                  dh_tensor_bytes(&g->tensors.at[op->out[0]]));
}

/* What a step of the rank's program sends on a link, and of that the layers' share, by the formula;
 * of rows of dropless experts only the step tells. */
static int64_t planned_bytes(const dh_program *p, dh_engine wire, int64_t *of_layers)
{
    int64_t sum = 0;
    *of_layers = 0;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_graph *g = dh_instr_graph(p, instr);
        const dh_op *op = dh_instr_op(p, instr);
        if (dh_op_info_of(op->type)->resource != DH_RES_COMM || op->type == DH_OP_ALL_TO_ALL_ROWS ||
            dh_stream_engine((dh_stream)instr->stream) != wire)
            continue;
        const int64_t n = dh_mesh_group_size(&p->mesh, (dh_group_kind)op->group);
        const int64_t rounds = op->type == DH_OP_ALL_REDUCE ? 2 : 1, b = larger_side(g, op);
        sum += rounds * (b - b / n);
        if (g->kind <= DH_BLOCK_HEAD) *of_layers += rounds * (b - b / n);
    }
    return sum;
}

static void begin_step(const char *model, const char *strategy, const char *parallel,
                       int micro_batch, team *t)
{
    char text[1024];
    snprintf(text, sizeof text,
             "%sdata: {train: none}\n"
             "train: {batch: 8, micro_batch: %d, seq_len: 32, threads: 1}\n"
             "parallel: {%s}\ntopology: {nodes: 2}\nmoe: {capacity: 4}\nstrategy: %s\n"
             "profile: none\n",
             model, micro_batch, parallel, strategy);
    team_run(text, step_member, NULL, t);
}

/* One step; every rank's bytes on either link are what its program says. Returns what the layers of
 * the first rank sent to the other node. */
static int64_t run_step(const char *strategy, const char *parallel, double *seconds)
{
    team t;
    int64_t of_layers[2] = {0}, crossed = 0;
    const int64_t begin = dh_now_ns();
    begin_step(RUN_LLAMA, strategy, parallel, 1, &t);
    *seconds = (double)(dh_now_ns() - begin) * 1e-9;
    for (int r = 0; r < t.n; r++) {
        const dh_session *s = t.members[r].session;
        for (int wire = DH_ENGINE_LOCAL; wire <= DH_ENGINE_CROSS; wire++)
            assert_int_equal(dh_comm_sent_bytes(s->spec.comm, (dh_engine)wire),
                             planned_bytes(s->train, (dh_engine)wire, &of_layers[0]));
        if (r == 0) crossed = of_layers[0];
        assert_int_equal(crossed, of_layers[0]);
    }
    team_end(&t);
    return crossed;
}

/* Four ranks on two nodes: one sends a third of what it did in one stage (pass_two_stage.c), and
 * the paced link takes as long as that many bytes need. */
static void bytes_on_paced_links_are_the_formula(void **state)
{
    static const char *const meshes[] = {"tp: 4", "tp: 4, sequence: false"};
    const double gbps = .02;
    team_pace[DH_ENGINE_CROSS] = (dh_comm_pace){.gbps = gbps};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        if (test_leaves_out(i)) continue;
        double one_s, two_s;
        const int64_t one = run_step("sequential", meshes[i], &one_s);
        const int64_t two = run_step("two-stage+sequential", meshes[i], &two_s);
        printf("  %s: %lld and %lld bytes, %.2f and %.2f s\n", meshes[i], (long long)one,
               (long long)two, one_s, two_s);
        assert_true(one > 0);
        assert_int_equal(one, 3 * two);
        assert_true(one_s > (double)one * 8e-9 / gbps && two_s > (double)two * 8e-9 / gbps);
    }
    team_pace[DH_ENGINE_CROSS] = (dh_comm_pace){0};
}

/* Parameters that are gathered behind the optimizer, and block by block. */
static void gathers_send_what_is_planned(void **state)
{
    static const char *const meshes[] = {"dp: 4, zero: 1", "dp: 4, zero: 3"};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        double seconds;
        assert_int_equal(run_step("two-stage+sequential", meshes[i], &seconds), 0);
    }
}

/* Bytes of experts' rows that all ranks send on a link. */
static int64_t routed_bytes(const char *strategy, const char *parallel, int micro_batch,
                            dh_engine wire)
{
    team t;
    int64_t sum = 0, of_layers;
    begin_step(RUN_EXPERTS, strategy, parallel, micro_batch, &t);
    for (int r = 0; r < t.n; r++) {
        const dh_session *s = t.members[r].session;
        sum += dh_comm_sent_bytes(s->spec.comm, wire) - planned_bytes(s->train, wire, &of_layers);
    }
    team_end(&t);
    return sum;
}

/* Rows cross to the nodes of their experts, each once, as between nodes that are one rank each and
 * have the same samples; then they go on inside. In one stage all that go to another rank are on
 * the links between nodes. */
static void rows_cross_once(void **state)
{
    static const char staged[] = "two-stage+sequential", mesh[] = "dp: 4, ep: 4";
    for (int i = 0; i < SAMPLES * SEQ; i++) tokens[i] = i * i % 61;
    const int64_t needed = routed_bytes("sequential", "dp: 2, ep: 2", 2, DH_ENGINE_CROSS);
    const int64_t one = routed_bytes("sequential", mesh, 1, DH_ENGINE_CROSS);
    const int64_t crossed = routed_bytes(staged, mesh, 1, DH_ENGINE_CROSS);
    const int64_t inside = routed_bytes(staged, mesh, 1, DH_ENGINE_LOCAL);
    printf("  rows of experts: %lld bytes, in stages %lld, and %lld inside of nodes\n",
           (long long)one, (long long)crossed, (long long)inside);
    assert_int_equal(crossed, needed);
    assert_true(crossed < one && inside < one && crossed + inside > one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_train_alike),
        cmocka_unit_test(bytes_on_paced_links_are_the_formula),
        cmocka_unit_test(gathers_send_what_is_planned),
        cmocka_unit_test(rows_cross_once),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
