/* Two copies of the model on real ranks: they learn as one copy does, stay equal bit for bit, and a
 * checkpoint has one of them.
 *
 * Tolerances: as in ranks.h and test_resume_ranks.c. A weight's gradient is two sums, by
 * micro-batch, of either copy's, added once; of one copy it is one. As many bits as two ranks of
 * data have: where copies take the micro-batches that these would, theirs. */
#include "ranks.h"
#include "team.h"

static const char *const schedules[] = {"wavelet", "bidirectional", "dualpipe"};

/* ---- losses --------------------------------------------------------------------------------- */

static void copies_learn_as_one(void **state)
{
    static const struct {
        const char *model, *settings;
    } runs[] = {
        {RUN_GPT2, "parallel.pp=2 model.dropout=0.1"},
        {RUN_GPT2, "parallel.pp=4 train.batch=7 optimizer.grad_clip=0.2"},
        {RUN_LLAMA, "parallel.pp=2 parallel.tp=2 train.recompute=full"},
        {RUN_LLAMA, "parallel.pp=2 parallel.dp=2 parallel.zero=1 train.recompute=selective"},
        {RUN_EXPERTS, "parallel.pp=2 parallel.dp=2 parallel.ep=2 model.router_aux_coef=0.01"},
        {RUN_GPT2, "parallel.pp=2 parallel.cp=2 train.dtype=bf16"},
    };
    double worst = 0;
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        const dh_dtype dtype = strstr(runs[i].settings, "bf16") ? DH_BF16 : DH_F32;
        char out[300], settings[400];
        run_curve one, two;
        run_folder(out, sizeof out, "one");
        run_curve_of(runs[i].model, runs[i].settings, out, &one);
        run_remove(out);
        for (size_t k = 0; k < DH_COUNTOF(schedules); k++) {
            run_folder(out, sizeof out, "two");
            snprintf(settings, sizeof settings, "%s parallel.schedule=%s strategy=%s",
                     runs[i].settings, schedules[k],
                     k == 2   ? "dualpipe"
                     : i == 2 ? "dhelix"
                              : "sequential");
            run_curve_of(runs[i].model, settings, out, &two);
            run_remove(out);
            const double d = run_distance(&one, &two, 0);
            if (!(d <= run_tolerance(dtype))) fail_msg("%s: losses differ by %g", settings, d);
            if (dtype == DH_F32) worst = fmax(worst, d);
        }
    }
    printf("  losses differ by %.2g at most, in float32\n", worst);
}

/* An odd number of stages: the middle one's rank has both copies of it. */
static void the_middle_stage_has_both_copies(void **state)
{
    static const char settings[] = "parallel.pp=3 parallel.layer_split=1,2,1 parallel.dp=2";
    char out[300], more[300];
    run_curve one, two;
    run_folder(out, sizeof out, "one");
    run_curve_of(RUN_GPT2, settings, out, &one);
    run_remove(out);
    snprintf(more, sizeof more, "%s parallel.zero=1 parallel.schedule=bidirectional", settings);
    run_curve_of(RUN_GPT2, more, out, &two);
    const double d = run_distance(&one, &two, 0);
    if (!(d <= run_tolerance(DH_F32))) fail_msg("%s: losses differ by %g", more, d);
    run_remove(out);
}

/* ---- bits ----------------------------------------------------------------------------------- */

static void expect_same(const char *model, const char *settings, const char *base,
                        const run_curve *curve)
{
    char out[300];
    run_curve got;
    run_folder(out, sizeof out, "same");
    run_compared_of(model, settings, out, &got);
    double norms = 0;
    for (int i = 0; i < curve->n; i++) norms = fmax(norms, fabs(curve->norm[i] - got.norm[i]));
    if (run_distance(curve, &got, 0) != 0 || norms != 0 || !run_same_bytes(base, out, curve->n))
        fail_msg("%s: other bits", settings);
    run_remove(out);
}

/* Copies that take every other micro-batch add what two ranks of data do. */
static void copies_have_the_bits_of_two_ranks_of_data(void **state)
{
    static const char *const same[] = {
        "parallel.schedule=bidirectional", "parallel.schedule=bidirectional parallel.zero=1",
        "parallel.schedule=bidirectional parallel.zero=2 parallel.bucket_mb=0.02",
        "parallel.schedule=wavelet",
        "parallel.schedule=wavelet parallel.bucket_mb=0.02 strategy=dhelix"};
    static const char settings[] =
        "parallel.pp=2 optimizer.grad_clip=0.1 model.dropout=0.1 train.steps=6";
    char base[300], text[400];
    run_curve curve;
    run_folder(base, sizeof base, "base");
    snprintf(text, sizeof text, "%s parallel.dp=2", settings);
    run_reference_of(RUN_LLAMA, text, base, &curve);
    for (size_t i = 0; i < DH_COUNTOF(same); i++) {
        if (test_leaves_out(i)) continue;
        snprintf(text, sizeof text, "%s %s", settings, same[i]);
        expect_same(RUN_LLAMA, text, base, &curve);
    }
    run_remove(base);
}

static void strategies_change_no_bit_of_copies(void **state)
{
    static const char *const ways[] = {
        "strategy=dualpipe",   "strategy=dhelix", "strategy=dhelix-paper",
        "strategy=wavelet+",   "parallel.zero=2", "strategy=dualpipe overlap.barriers=full",
        "train.recompute=full"};
    static const char settings[] =
        "parallel.pp=2 parallel.tp=2 parallel.schedule=dualpipe train.batch=7 train.steps=6";
    char base[300], text[400];
    run_curve curve;
    run_folder(base, sizeof base, "base");
    run_reference_of(RUN_GPT2, settings, base, &curve);
    for (size_t i = 0; i < DH_COUNTOF(ways); i++) {
        if (test_leaves_out(i)) continue;
        snprintf(text, sizeof text, "%s %s", settings, ways[i]);
        expect_same(RUN_GPT2, text, base, &curve);
    }
    run_remove(base);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

/* What copies wrote one copy continues, and the other way round. */
static void a_checkpoint_has_one_copy(void **state)
{
    static const struct {
        const char *first, *then;
    } cases[] = {
        {"parallel.pp=2 parallel.schedule=wavelet", "ranks=1"},
        {"parallel.pp=4 parallel.schedule=dualpipe parallel.zero=1", "parallel.tp=2 parallel.dp=2"},
        {"ranks=1", "parallel.pp=2 parallel.tp=2 parallel.schedule=bidirectional"},
        {"parallel.pp=2 parallel.schedule=bidirectional parallel.zero=2",
         "parallel.pp=2 parallel.schedule=dualpipe"},
    };
    run_curve whole, parts;
    char out[300], text[400];
    run_folder(out, sizeof out, "whole");
    run_curve_of(RUN_GPT2, "ranks=1", out, &whole);
    run_remove(out);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        if (test_leaves_out(i)) continue;
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        run_folder(out, sizeof out, "parts");
        snprintf(text, sizeof text, "%s train.steps=10 optimizer.decay_steps=20", cases[i].first);
        run_curve_of(RUN_GPT2, text, out, &parts);
        if (run_job(&ctx, RUN_GPT2, cases[i].then, out, &result) != DH_OK)
            fail_msg("%s: %s", cases[i].then, ctx.message);
        assert_int_equal(result.resumed_at, 10);
        run_read_curve(out, &parts);
        const double d = run_distance(&whole, &parts, 0);
        if (!(d <= run_tolerance(DH_F32)))
            fail_msg("\"%s\", then \"%s\": losses differ by %g", cases[i].first, cases[i].then, d);
        run_remove(out);
    }
}

/* ---- parameters ----------------------------------------------------------------------------- */

enum { STEPS = 4, SEQ = 32, SAMPLES = 64 };
static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

static dh_status train_member(dh_ctx *ctx, member *m)
{
    rows_source rows = {tokens, targets, SAMPLES};
    DH_TRY(member_begin(ctx, m));
    for (int64_t i = 0; i < STEPS; i++) {
        dh_step step = member_step(m, i * m->resolved->job.global_batch);
        step.step = i;
        step.lr = 1e-2;
        step.weight_decay = 0.1;
        step.grad_clip = 0.5;
        step.source = (dh_batch_source){.load = rows_load, .self = &rows};
        DH_TRY(dh_exec_run(ctx, m->session->train_exec, &step));
    }
    return DH_OK;
}

/* A parameter of any copy on any rank, as it was first seen. */
typedef struct seen {
    char name[80];
    dh_buffer_kind kind;
    void *bytes;
    uint64_t n_bytes;
} seen;

static bool look(const member *m, uint32_t param, dh_buffer_kind kind, seen *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_program *p = dh_session_layout(m->session);
    const dh_operand home = p->homes.at[param].at[kind];
    if (home.buffer == DH_NONE) return false;
    *s = (seen){.kind = kind, .n_bytes = home.n_bytes, .bytes = malloc(home.n_bytes)};
    snprintf(s->name, sizeof s->name, "%s", p->params.at[param].name);
    assert_non_null(s->bytes);
    assert_ok(&ctx, m->session->spec.device->slab_read(
                        &ctx, m->session->slab, p->buffers.at[home.buffer].offset + home.byte0,
                        s->bytes, s->n_bytes));
    return true;
}

/* Every parameter is there twice, and the same; moments too, where they are whole. */
static void check_copies(const member *members, int n, const char *what)
{
    seen list[600];
    size_t n_seen = 0, n_twice = 0;
    for (int r = 0; r < n; r++) {
        const dh_program *p = dh_session_layout(members[r].session);
        for (uint32_t i = 0; i < p->params.n; i++)
            for (int kind = DH_BUF_MASTER; kind <= DH_BUF_ADAM_V; kind++) {
                seen now;
                size_t k = 0;
                if (kind == DH_BUF_STATE || kind == DH_BUF_GRAD) continue;
                if (!look(&members[r], i, (dh_buffer_kind)kind, &now)) continue;
                while (k < n_seen &&
                       (list[k].kind != now.kind || strcmp(list[k].name, now.name) != 0))
                    k++;
                if (k == n_seen) {
                    assert_true(n_seen < DH_COUNTOF(list));
                    list[n_seen++] = now;
                    continue;
                }
                n_twice++;
                if (list[k].n_bytes != now.n_bytes ||
                    memcmp(list[k].bytes, now.bytes, now.n_bytes) != 0)
                    fail_msg("%s: copies of %s differ, kind %d", what, now.name, kind);
                free(now.bytes);
            }
    }
    assert_true(n_seen > 40);
    assert_int_equal(n_twice, n_seen);
    for (size_t k = 0; k < n_seen; k++) free(list[k].bytes);
}

static void train_and_check(const char *parallel, const char *dtype)
{
    static const char model[] =
        "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
        "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false}\n";
    char text[1024];
    team t;
    snprintf(text, sizeof text,
             "%sdata: {train: none}\ntrain: {batch: 7, micro_batch: 1, seq_len: 32, threads: 1, "
             "dtype: %s}\nparallel: {%s}\nstrategy: sequential\nprofile: none\n",
             model, dtype, parallel);
    team_run(text, train_member, NULL, &t);
    check_copies(t.members, t.n, parallel);
    team_end(&t);
}

static void copies_stay_equal_bit_for_bit(void **state)
{
    static const char *const parallel[] = {
        "pp: 2, schedule: wavelet", "pp: 2, schedule: bidirectional", "pp: 4, schedule: dualpipe",
        "pp: 2, schedule: dualpipe, zero: 1",
        "pp: 3, schedule: bidirectional, layer_split: \"1,2,1\""};
    uint64_t seed = test_seed("copies_stay_equal_bit_for_bit");
    for (int i = 0; i < SAMPLES * SEQ; i++) {
        tokens[i] = (int32_t)(test_rand(&seed) % 65);
        targets[i] = (int32_t)(test_rand(&seed) % 65);
    }
    for (size_t i = 0; i < DH_COUNTOF(parallel); i++) {
        if (test_leaves_out(i)) continue;
        train_and_check(parallel[i], "f32");
        train_and_check(parallel[i], "bf16");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_learn_as_one),
        cmocka_unit_test(the_middle_stage_has_both_copies),
        cmocka_unit_test(copies_have_the_bits_of_two_ranks_of_data),
        cmocka_unit_test(strategies_change_no_bit_of_copies),
        cmocka_unit_test(a_checkpoint_has_one_copy),
        cmocka_unit_test(copies_stay_equal_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
