/* What may not change a bit of a run: running it again; on one mesh its strategy, policy and
 * schedule; sharding the optimizer, stages, buckets. Losses, gradient norms, weights and moments
 * are compared.
 *
 * What holds it: kernels see the same operands in the same order whatever runs beside them;
 * gradients of a weight are added by micro-batch in every schedule, those of the two ends of
 * a tied embedding apart; sums over ranks go by element in the order of the group; the gradient
 * norm's squares are added exactly. */
#include "ranks.h"

#include "plan/schedule.h"

/* A run that others are to repeat bit for bit. */
typedef struct run_base {
    const char *model, *settings;
    char out[300];
    run_curve curve;
} run_base;

/* Of runs that would have 20. */
static int n_steps(void)
{
    return test_is_short() ? run_steps(8) : 20;
}

static void begin_base(run_base *base, const char *model, const char *settings)
{
    base->model = model;
    base->settings = settings;
    run_folder(base->out, sizeof base->out, "base");
    run_reference_of(model, settings, base->out, &base->curve);
}

/* The base with more settings: the last of two for one thing counts. */
static void expect_base(const run_base *base, const char *more)
{
    char settings[400], out[300];
    run_curve curve;
    snprintf(settings, sizeof settings, "%s %s", base->settings, more);
    run_folder(out, sizeof out, "repeated");
    run_compared_of(base->model, settings, out, &curve);
    const double d =
        fmax(run_distance(&base->curve, &curve, 0), fabs(curve.last - base->curve.last));
    double norms = 0;
    for (int i = 0; i < curve.n; i++)
        norms = fmax(norms, fabs(curve.norm[i] - base->curve.norm[i]));
    if (d != 0 || norms != 0 || !run_same_bytes(base->out, out, curve.n))
        fail_msg("%s: with \"%s\" other bits: losses by %g, norms by %g", base->settings, more, d,
                 norms);
    run_remove(out);
}

static void expect_same_run(const char *model, const char *settings, const char *more)
{
    run_base base;
    char all[200];
    snprintf(all, sizeof all, "%s train.steps=%d", settings, run_steps(20));
    begin_base(&base, model, all);
    expect_base(&base, more);
    run_remove(base.out);
}

/* Of a list that may end before its array does. */
static size_t n_of(const char *const *list, size_t most)
{
    size_t n = 0;
    while (n < most && list[n]) n++;
    return n;
}

static void a_run_repeats_bit_for_bit(void **state)
{
    static const char *const repeated[] = {
        "parallel.dp=2 parallel.tp=2 parallel.zero=1 model.dropout=0.1",
        "parallel.dp=2 parallel.tp=2 parallel.pp=2 strategy=dhelix",
        "parallel.tp=2 parallel.cp=2 train.dtype=bf16",
    };
    for (size_t i = 0; i < DH_COUNTOF(repeated); i++) expect_same_run(RUN_LLAMA, repeated[i], "");
}

/* ---- strategies ---------------------------------------------------------------------------- */

/* Ways to order two strands. Where pp > 1 all but the first run on another schedule and
 * another placement of the layers than the base. */
static const char *const ways[] = {
    "strategy=dhelix",
    "strategy=wavelet+",
    "strategy=dhelix-paper",
    "strategy=dhelix overlap.policy=round-robin",
    "strategy=dhelix overlap.barriers=full",
    "parallel.schedule=dhelix-w strategy=round-robin",
    "parallel.schedule=dhelix-w strategy=list",
    "strategy=dualpipe",
    "strategy=combined-1f1b",
    "strategy=stp",
    "strategy=stp overlap.policy=dualpipe overlap.barriers=full",
};

typedef struct mesh {
    const char *model, *settings;
    bool rings; /* tensor parallelism, which intra-batch cuts */
} mesh;

static const mesh meshes[] = {
    {RUN_GPT2, "parallel.tp=2 train.batch=5", true}, /* an odd number of micro-batches */
    {RUN_GPT2, "parallel.tp=2 parallel.pp=2 train.batch=7", true},
    {RUN_GPT2, "parallel.pp=2 parallel.dp=2 parallel.zero=1 optimizer.grad_clip=0.05", false},
    {RUN_LLAMA, "parallel.cp=2", false},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 model.router_aux_coef=0.01", false},
    {RUN_GPT2, "parallel.tp=2 parallel.cp=2", true},
    {RUN_LLAMA, "parallel.tp=2 parallel.pp=2 train.dtype=bf16 train.recompute=selective", true},
};

/* Sums of a ring go in its own order: equal within what test_intra_batch.c allows. */
static double compare_rings(const run_base *base)
{
    char settings[300], out[300];
    run_curve curve;
    snprintf(settings, sizeof settings, "%s strategy=intra-batch", base->settings);
    run_folder(out, sizeof out, "rings");
    run_curve_of(base->model, settings, out, &curve);
    const double d = run_distance(&base->curve, &curve, 0);
    const double allowed = run_tolerance(strstr(settings, "bf16") ? DH_BF16 : DH_F32);
    if (!(d <= allowed)) fail_msg("%s: losses differ by %g", settings, d);
    run_remove(out);
    return d;
}

/* Of short runs a fifth of the ways, of thin ones a third, each mesh other ones. */
static void strategies_change_no_bit(void **state)
{
    const size_t stride = test_is_short() ? 5 : test_is_thin() ? 3 : 1;
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        if (test_leaves_out(i)) continue;
        char settings[200];
        run_base base;
        double rings = 0;
        snprintf(settings, sizeof settings, "%s train.steps=%d", meshes[i].settings, run_steps(10));
        begin_base(&base, meshes[i].model, settings);
        assert_int_equal(base.curve.n, run_steps(10));
        for (size_t k = i % stride; k < DH_COUNTOF(ways); k += stride) expect_base(&base, ways[k]);
        if (meshes[i].rings) rings = compare_rings(&base);
        printf("  %s: the same bits, rings %.2g\n", meshes[i].settings, rings);
        run_remove(base.out);
    }
}

/* Layers of two kinds in both strands of a slot, and on a stage. */
static void layer_kinds_change_no_bit(void **state)
{
    static const struct {
        const char *model, *settings;
        const char *more[3];
    } runs[] = {
        {RUN_DENSE_FIRST,
         "parallel.dp=2 parallel.ep=2",
         {"strategy=dhelix", "strategy=dualpipe parallel.zero=2", "parallel.zero=3"}},
        {RUN_DENSE_FIRST,
         "parallel.dp=2 parallel.ep=2 parallel.pp=2",
         {"strategy=dhelix", "parallel.schedule=zb-v"}},
        {RUN_LLAMA,
         "model.attention=linear model.softmax_every=2 parallel.tp=2 train.dtype=bf16",
         {"strategy=dhelix", "strategy=stp train.recompute=selective"}},
        {RUN_LLAMA,
         "model.attention=linear model.softmax_every=2 parallel.cp=2 parallel.pp=2",
         {"strategy=dhelix", "parallel.schedule=zb-v train.recompute=full"}},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        char settings[200];
        run_base base;
        snprintf(settings, sizeof settings, "%s train.steps=%d", runs[i].settings, run_steps(6));
        begin_base(&base, runs[i].model, settings);
        const size_t n = n_of(runs[i].more, DH_COUNTOF(runs[i].more));
        for (size_t k = 0; k < n; k++)
            if (test_takes(i, k, n)) expect_base(&base, runs[i].more[k]);
        run_remove(base.out);
    }
}

/* ---- schedules ----------------------------------------------------------------------------- */

static void schedules_change_no_bit(void **state)
{
    size_t n;
    int n_checked = 0;
    run_base base;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    char settings[60];
    snprintf(settings, sizeof settings, "parallel.pp=2 parallel.dp=2 train.steps=%d",
             run_steps(20));
    begin_base(&base, RUN_GPT2, settings);
    for (size_t i = 0; i < n; i += test_is_thin() ? 3 : 1) {
        const dh_placement at = rows[i]->placement;
        char schedule[100];
        if (at == DH_PLACE_BIDIRECTIONAL || at == DH_PLACE_PARALLEL)
            continue; /* two copies of the model: refused */
        snprintf(schedule, sizeof schedule, "parallel.schedule=%s%s", rows[i]->name,
                 at == DH_PLACE_ROUND_ROBIN ? " parallel.virtual_stages=2" : "");
        expect_base(&base, schedule);
        n_checked++;
    }
    run_remove(base.out);
    assert_true(n_checked >= (test_is_thin() ? 3 : 10));
}

/* ---- sums over ranks ------------------------------------------------------------------------ */

/* What CoCoNet's search finds on a machine with slow links; on this one it leaves layers as they
 * are. */
#define COCONET "strategy=split+reorder+fuse(2)+part-wise(2)+sequential"
#define ZERO1_FORWARD "parallel.zero=1 parallel.gather=forward"
#define ZERO2_FORWARD "parallel.zero=2 parallel.gather=forward"
#define ZERO3_NODE "parallel.zero=3 parallel.reshard_after_forward=node"
#define ZERO3_BY_STAGE "parallel.zero=3 parallel.regather=stage"
#define ZERO3_KEPT "parallel.zero=3 parallel.reshard_after_forward=false"

/* One and two virtual stages, sharded and whole optimizers: the same sums. */
static void sharding_changes_no_bit(void **state)
{
    static const struct {
        const char *model, *settings;
        const char *more[6];
    } runs[] = {
        {RUN_LLAMA,
         "parallel.dp=4",
         {"parallel.zero=1", "parallel.zero=2", "parallel.zero=3", ZERO1_FORWARD, ZERO2_FORWARD,
          ZERO3_KEPT}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.tp=2 train.dtype=bf16 optimizer.grad_clip=0.1",
         {"parallel.zero=1", "parallel.zero=2", "parallel.zero=3 parallel.prefetch=2",
          ZERO1_FORWARD, ZERO3_KEPT}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.pp=2 train.micro_batch=2",
         {"parallel.zero=2", ZERO2_FORWARD, ZERO3_KEPT,
          ZERO1_FORWARD " optimizer.post_validation=true"}},
        {RUN_LLAMA,
         "parallel.dp=2 parallel.cp=2 strategy=dhelix train.micro_batch=1",
         {"parallel.zero=2", "parallel.zero=3", ZERO1_FORWARD}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.pp=2 train.micro_batch=2 train.recompute=selective",
         {"parallel.zero=3 parallel.prefetch=0"}},
        {RUN_LLAMA, "parallel.cp=2 parallel.dp=2 parallel.tp=2", {"parallel.zero=3"}},
        {RUN_LLAMA,
         "parallel.dp=4 topology.nodes=2 train.micro_batch=1",
         {ZERO3_NODE, ZERO3_NODE " strategy=dhelix",
          "parallel.zero=3 parallel.reshard_after_forward=2"}},
        {RUN_LLAMA,
         "parallel.dp=2 parallel.cp=2",
         {"parallel.zero=3 parallel.reshard_after_forward=2 parallel.gradient_sync=last"}},
        {RUN_LLAMA, "parallel.cp=4", {ZERO1_FORWARD}}, /* layers communicate on the same stream */
        {RUN_LLAMA, "parallel.dp=2 parallel.tp=2 strategy=intra-batch", {"parallel.zero=3"}},
        {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2", {"parallel.zero=2", "parallel.zero=3"}},
        {RUN_GPT2,
         "parallel.dp=4 train.micro_batch=1 parallel.schedule=looped-bfs parallel.virtual_stages=2",
         {ZERO3_BY_STAGE, "parallel.zero=3", ZERO3_BY_STAGE " parallel.prefetch=0",
          ZERO3_BY_STAGE " topology.nodes=2 parallel.reshard_after_forward=node"}},
        {RUN_LLAMA, /* one order of sums, whatever the order of micro-batches */
         "parallel.dp=2 train.micro_batch=1 parallel.schedule=1f1b",
         {ZERO3_BY_STAGE, ZERO3_BY_STAGE " parallel.schedule=looped-bfs parallel.virtual_stages=2",
          ZERO3_BY_STAGE " parallel.schedule=looped-bfs parallel.virtual_stages=4"}},
        {RUN_LLAMA,
         "parallel.dp=2 parallel.pp=2 train.micro_batch=1",
         {ZERO3_BY_STAGE " parallel.schedule=interleaved-1f1b parallel.virtual_stages=2",
          ZERO3_BY_STAGE " parallel.schedule=zb-h1", ZERO3_BY_STAGE " strategy=dhelix"}},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        run_base base;
        char settings[200], more[150];
        snprintf(settings, sizeof settings, "%s train.steps=%d", runs[i].settings, n_steps());
        begin_base(&base, runs[i].model, settings);
        const size_t n = n_of(runs[i].more, DH_COUNTOF(runs[i].more));
        for (size_t k = 0; k < n; k++) {
            if (!test_takes(i, k, n)) continue;
            snprintf(more, sizeof more, "%s parallel.bucket_mb=0.02", runs[i].more[k]);
            expect_base(&base, more);
        }
        run_remove(base.out);
    }
    expect_same_run(RUN_GPT2, "parallel.tp=2 parallel.dp=2 optimizer.grad_clip=0.1",
                    "parallel.pp=2");
}

/* Gathers and releases around operators in a strategy's order, on meshes where strands overlap. */
static void gathers_in_ordered_slots_change_no_bit(void **state)
{
    static const struct {
        const char *model, *mesh;
    } runs[] = {
        {RUN_LLAMA, "parallel.tp=2 parallel.dp=2"},
        {RUN_GPT2, "parallel.pp=2 parallel.dp=2"},
        {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2"},
    };
    static const char *const strategies[] = {"dhelix",   "dhelix-paper",  "wavelet+",
                                             "dualpipe", "combined-1f1b", "stp"};
    const size_t stride = test_is_thin() ? 3 : 1;
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        char settings[200], more[200];
        run_base base;
        snprintf(settings, sizeof settings, "%s train.steps=%d", runs[i].mesh, run_steps(6));
        begin_base(&base, runs[i].model, settings);
        for (size_t k = i % stride; k < DH_COUNTOF(strategies); k += stride) {
            snprintf(more, sizeof more,
                     "strategy=%s parallel.zero=3 parallel.prefetch=%d "
                     "parallel.reshard_after_forward=%s",
                     strategies[k], (int)(k % 3), k % 2 ? "false" : "true");
            expect_base(&base, more);
        }
        run_remove(base.out);
    }
}

/* Strategies that cut GEMMs and sums take some in an order of their own; whoever shares parameters
 * and gradients out under one of them still gets its bits. Rows of parameters that a cut reads come
 * from gathered ones. */
static void sharding_changes_no_bit_of_cut_layers(void **state)
{
    static const struct {
        const char *model, *settings;
        const char *more[3];
    } runs[] = {
        {RUN_LLAMA,
         "parallel.dp=2 parallel.tp=2 train.micro_batch=2 strategy=domino",
         {"parallel.zero=3", "parallel.zero=2", ZERO3_KEPT}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.tp=2 strategy=flux",
         {"parallel.zero=2", "parallel.zero=3 parallel.prefetch=0", ZERO3_KEPT}},
        {RUN_LLAMA,
         "parallel.dp=2 parallel.tp=2 parallel.sequence=false " COCONET,
         {"parallel.zero=3", ZERO3_KEPT, "parallel.zero=2"}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.tp=2 strategy=dhelix-rings",
         {"parallel.zero=3", ZERO3_KEPT, "parallel.zero=2"}},
        {RUN_LLAMA,
         "parallel.dp=2 parallel.tp=2 parallel.pp=2 train.dtype=bf16 strategy=dhelix-rings",
         {"parallel.zero=3 parallel.prefetch=2"}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.tp=2 train.micro_batch=2 "
         "strategy=domino(parts=2,columns=2)+dhelix",
         {ZERO3_KEPT " parallel.prefetch=2", "parallel.zero=3"}},
        {RUN_EXPERTS,
         "parallel.dp=2 parallel.ep=2 train.micro_batch=2 strategy=domino",
         {"parallel.zero=3", ZERO3_KEPT}},
        {RUN_GPT2, /* sums over nodes in stages */
         "parallel.dp=4 topology.nodes=2 strategy=two-stage+sequential",
         {"parallel.zero=3", "parallel.zero=2", "parallel.zero=1"}},
        {RUN_GPT2,
         "parallel.dp=2 parallel.tp=4 topology.nodes=4 strategy=two-stage(narrow,2)+sequential",
         {"parallel.zero=3 parallel.prefetch=2"}},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        char settings[200], more[150];
        run_base base;
        snprintf(settings, sizeof settings, "%s train.steps=4", runs[i].settings);
        begin_base(&base, runs[i].model, settings);
        const size_t n = n_of(runs[i].more, DH_COUNTOF(runs[i].more));
        for (size_t k = 0; k < n; k++) {
            if (!test_takes(i, k, n)) continue;
            snprintf(more, sizeof more, "%s parallel.bucket_mb=0.02", runs[i].more[k]);
            expect_base(&base, more);
        }
        run_remove(base.out);
    }
}

/* Gradients of every micro-batch reduced by themselves are added up in the order of micro-batches,
 * whatever shares them out, orders or buckets them. Against those that ranks add up before they are
 * reduced each sum is in another order: by ranks within micro-batches. */
static void gradients_by_micro_batch_have_one_order(void **state)
{
    static const struct {
        const char *model, *settings;
        const char *more[6];
    } runs[] = {
        {RUN_LLAMA,
         "parallel.dp=4 train.micro_batch=1",
         {"parallel.zero=3", ZERO3_KEPT, "parallel.bucket_mb=0.02", "strategy=dhelix",
          "parallel.zero=3 parallel.bucket_mb=0.01 strategy=dualpipe",
          "parallel.bucket_mb=0.02 parallel.gather=forward"}},
        {RUN_GPT2, /* tied: the head adds to the embedding's */
         "parallel.dp=2 parallel.tp=2 train.micro_batch=1 train.dtype=bf16",
         {"parallel.zero=3", "parallel.bucket_mb=0.02 strategy=dhelix"}},
        {RUN_GPT2, /* tied ends on different ranks: reduced once */
         "parallel.dp=2 parallel.pp=2 train.micro_batch=1",
         {"parallel.zero=3 parallel.bucket_mb=0.02", "parallel.schedule=zb-h1",
          "parallel.schedule=gpipe"}},
        {RUN_LLAMA,
         "parallel.dp=2 parallel.pp=2 train.micro_batch=1",
         {"parallel.bucket_mb=0.02 strategy=stp", "parallel.schedule=zb-v"}},
        {RUN_LLAMA, "parallel.dp=2 parallel.cp=2 train.micro_batch=1", {"parallel.zero=3"}},
        {RUN_EXPERTS,
         "parallel.dp=4 parallel.ep=2 train.micro_batch=1",
         {"parallel.zero=3 parallel.bucket_mb=0.02"}},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        char settings[200], out[300];
        run_base base;
        run_curve last;
        snprintf(settings, sizeof settings,
                 "%s parallel.zero=2 parallel.gradient_sync=every train.steps=%d", runs[i].settings,
                 n_steps());
        begin_base(&base, runs[i].model, settings);
        const size_t n = n_of(runs[i].more, DH_COUNTOF(runs[i].more));
        for (size_t k = 0; k < n; k++)
            if (test_takes(i, k, n)) expect_base(&base, runs[i].more[k]);
        run_folder(out, sizeof out, "once");
        snprintf(settings, sizeof settings, "%s train.steps=%d", runs[i].settings, n_steps());
        run_curve_of(runs[i].model, settings, out, &last);
        const double d = run_distance(&base.curve, &last, 0);
        const bool wide = !strstr(settings, "bf16");
        if (!(d <= run_tolerance(wide ? DH_F32 : DH_BF16)))
            fail_msg("%s: losses differ by %g", settings, d);
        printf("  %s: the same bits, losses reduced once within %.2g\n", settings, d);
        run_remove(out);
        run_remove(base.out);
    }
}

/* All blocks in one bucket, some, pieces of one: the same sums. */
static void buckets_change_no_bit(void **state)
{
    static const char *const runs[] = {
        "parallel.dp=4",
        "parallel.dp=2 parallel.tp=2 parallel.zero=1 train.dtype=bf16",
        "parallel.dp=2 parallel.pp=2 parallel.zero=1 parallel.schedule=zb-v",
        "parallel.cp=2 parallel.dp=2",
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        if (test_leaves_out(i)) continue;
        run_base base;
        char settings[200];
        snprintf(settings, sizeof settings, "%s train.steps=%d", runs[i], run_steps(20));
        begin_base(&base, i % 2 ? RUN_GPT2 : RUN_EXPERTS, settings);
        if (test_takes(i / 2, 0, 2)) expect_base(&base, "parallel.bucket_mb=0.1");
        if (test_takes(i / 2, 1, 2)) expect_base(&base, "parallel.bucket_mb=0.005");
        run_remove(base.out);
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_repeats_bit_for_bit),
        cmocka_unit_test(strategies_change_no_bit),
        cmocka_unit_test(layer_kinds_change_no_bit),
        cmocka_unit_test(schedules_change_no_bit),
        cmocka_unit_test(sharding_changes_no_bit),
        cmocka_unit_test(gradients_by_micro_batch_have_one_order),
        cmocka_unit_test(buckets_change_no_bit),
        cmocka_unit_test(gathers_in_ordered_slots_change_no_bit),
        cmocka_unit_test(sharding_changes_no_bit_of_cut_layers),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
