/* Gradients that data-parallel ranks reduce in the type of computation (parallel.grad_dtype):
 * losses beside those of float32, bits over degrees of ZeRO, bytes by a closed formula.
 *
 * Tolerance. A rank rounds its sum to bf16, 2^-9 of its size at most, and the sum over ranks is
 * rounded once more. The optimizer divides by the root mean square, so a step differs by as much
 * of the learning rate. Measured over 4 steps on 2 and 4 ranks: up to 7.2e-5 in the loss, and
 * over 20 steps 2.1e-3; allowed over 4: run_tolerance of bf16, 2e-3. */
#include "ranks.h"
#include "team.h"

enum { N_DEGREES = 4 };

/* In bf16 what differs in a last place grows on its own (tolerances.md). */
#define FEW "train.steps=4 eval.every=4 "

static void run_with(const char *model, const char *mesh, int zero, const char *type,
                     const char *out, run_curve *curve)
{
    char settings[400];
    snprintf(settings, sizeof settings,
             FEW "%s train.dtype=bf16 parallel.zero=%d parallel.grad_dtype=%s", mesh, zero, type);
    run_curve_of(model, settings, out, curve);
}

/* All degrees of ZeRO have the same bits, which are not those of float32, and losses near them. */
static void losses_are_near(void **state)
{
    static const struct {
        const char *model, *mesh;
    } runs[] = {
        {RUN_LLAMA, "parallel.dp=2"},
        {RUN_GPT2, "parallel.dp=4 parallel.bucket_mb=0.02"},
        {RUN_LLAMA, "parallel.dp=2 parallel.tp=2"},
        {RUN_GPT2, "parallel.dp=2 parallel.pp=2 train.micro_batch=2"},
        {RUN_LLAMA, "parallel.dp=2 parallel.cp=2"},
        {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2"},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        char out[2][300];
        run_curve wide, first;
        run_folder(out[0], sizeof out[0], "first");
        run_folder(out[1], sizeof out[1], "other");
        run_with(runs[i].model, runs[i].mesh, 0, "float32", out[1], &wide);
        run_with(runs[i].model, runs[i].mesh, 0, "compute", out[0], &first);
        const double d = run_distance(&wide, &first, 0);
        printf("  %s: losses differ by %.2g\n", runs[i].mesh, d);
        if (!(d <= run_tolerance(DH_BF16))) fail_msg("%s: losses differ by %g", runs[i].mesh, d);
        assert_false(run_same_bytes(out[0], out[1], first.n));
        for (int zero = 1; zero < (test_is_thin() ? 2 : N_DEGREES); zero++) {
            run_curve other;
            run_remove(out[1]);
            run_with(runs[i].model, runs[i].mesh, zero, "compute", out[1], &other);
            if (run_distance(&first, &other, 0) != 0 || !run_same_bytes(out[0], out[1], first.n))
                fail_msg("%s: other bits with ZeRO-%d", runs[i].mesh, zero);
        }
        run_remove(out[0]);
        run_remove(out[1]);
    }
}

/* Sums by node and then over nodes round once more; float32 jobs have nothing to round. */
static void stages_and_float32(void **state)
{
    static const char nodes[] = "topology.nodes=2 parallel.dp=4 parallel.grad_dtype=compute";
    char settings[400], out[2][300];
    run_curve one, two;
    run_folder(out[0], sizeof out[0], "one");
    run_folder(out[1], sizeof out[1], "two");
    snprintf(settings, sizeof settings, FEW "%s train.dtype=bf16", nodes);
    run_curve_of(RUN_GPT2, settings, out[0], &one);
    snprintf(settings, sizeof settings, FEW "%s train.dtype=bf16 strategy=centauri", nodes);
    run_curve_of(RUN_GPT2, settings, out[1], &two);
    assert_true(run_distance(&one, &two, 0) <= run_tolerance(DH_BF16));
    run_remove(out[0]);
    run_remove(out[1]);
    run_curve_of(RUN_GPT2, nodes, out[0], &one);
    run_curve_of(RUN_GPT2, "topology.nodes=2 parallel.dp=4", out[1], &two);
    assert_true(run_distance(&one, &two, 0) == 0 && run_same_bytes(out[0], out[1], one.n));
    run_remove(out[0]);
    run_remove(out[1]);
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

/* What the first rank sent, and elements of its matrices' and vectors' gradients. */
typedef struct sent {
    int64_t n_bytes, matrices, vectors;
} sent;

static sent sent_in(const char *type, int ranks, int zero)
{
    char text[1024];
    team t;
    snprintf(text, sizeof text,
             "%sdata: {train: none}\n"
             "train: {batch: 8, micro_batch: 1, seq_len: 32, threads: 1, dtype: bf16}\n"
             "parallel: {dp: %d, zero: %d, grad_dtype: %s, bucket_mb: 0.02}\nprofile: none\n",
             RUN_LLAMA, ranks, zero, type);
    team_run(text, step_member, NULL, &t);
    const dh_session *s = t.members[0].session;
    sent made = {.n_bytes = dh_comm_sent_bytes(s->spec.comm, DH_ENGINE_LOCAL)};
    for (size_t f = 0; f < s->train->flats.n; f++) {
        made.matrices += s->train->flats.at[f].n_matrix;
        made.vectors += s->train->flats.at[f].n_vector;
    }
    team_end(&t);
    return made;
}

/* A ring of n ranks sends (n-1)/n of what it scatters, and twice that of what it all-reduces: in
 * bf16 two bytes less of each element. */
static void bytes_are_the_formula(void **state)
{
    static const int ranks[] = {2, 4};
    for (size_t i = 0; i < DH_COUNTOF(ranks); i++)
        for (int zero = 0; zero < N_DEGREES; zero++) {
            const int64_t n = ranks[i];
            const sent wide = sent_in("float32", ranks[i], zero);
            const sent half = sent_in("compute", ranks[i], zero);
            const int64_t rounds = zero > 0 ? 1 : 2;
            const int64_t less = (rounds * half.matrices + 2 * half.vectors) * 2 * (n - 1) / n;
            printf("  %lld ranks, ZeRO-%d: %lld and %lld bytes\n", (long long)n, zero,
                   (long long)wide.n_bytes, (long long)half.n_bytes);
            assert_true(half.matrices > 0 && half.vectors > 0);
            assert_int_equal(wide.n_bytes - half.n_bytes, less);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_near),
        cmocka_unit_test(stages_and_float32),
        cmocka_unit_test(bytes_are_the_formula),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
