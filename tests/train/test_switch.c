/* Steps over several meshes: documents by length, each group over a mesh of its own.
 *
 * Losses are compared with one rank's on the same documents, packed. Tolerance: as in test_meshes.c
 * (run_tolerance). With one group whose mesh is that of the weights nothing moves and rows are
 * those of data.packing=pack: the same bits. */
#include "ranks.h"

#include "program/program_spec.h"
#include "program/ranks.h"

/* Documents of 2 to 33 bytes, most of them short, a file each. */
static char data_dir[300];

static int make_data(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = test_seed("documents by length");
    run_make_dir(state);
    snprintf(data_dir, sizeof data_dir, "%s/texts", run_dir);
    assert_ok(&ctx, dh_dir_create(&ctx, data_dir));
    for (int i = 0; i < 300; i++) {
        char path[400], text[40];
        const uint64_t most = test_rand(&seed) % 5 == 0 ? 31 : test_rand(&seed) % 3 == 0 ? 15 : 7;
        const size_t n = 2 + test_rand(&seed) % (most + 1);
        for (size_t k = 0; k < n; k++) text[k] = (char)('a' + test_rand(&seed) % 20);
        snprintf(path, sizeof path, "%s/%03d.txt", data_dir, i);
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
    }
    return 0;
}

/* 12 steps of 8 rows of 32 tokens. */
static void settings_of(const char *more, char *settings, size_t cap)
{
    snprintf(settings, cap,
             "data.train=%s data.tokenizer=bytes data.val_fraction=0 model.vocab=256 eval.every=0 "
             "train.steps=12 %s",
             data_dir, more);
}

static void curve_of(const char *model, const char *more, const char *out, run_curve *curve)
{
    char settings[1000];
    settings_of(more, settings, sizeof settings);
    run_remove(out);
    run_curve_of(model, settings, out, curve);
}

static const struct {
    const char *model, *mesh;
    bool half;
    bool whole; /* every rank has all parameters in any layout: nothing crosses wires */
} meshes[] = {
    {RUN_GPT2, "ranks=4 switch.groups=8,dp=4;32,dp=2,tp=2", false, false},
    {RUN_GPT2, "ranks=4 parallel.tp=2 switch.groups=8,dp=4;16,dp=2,tp=2;32,cp=2,tp=2", false,
     false},
    {RUN_LLAMA, "ranks=4 parallel.pp=2 switch.groups=8,dp=4,micro_batch=2;32,pp=4", false, false},
    {RUN_LLAMA, "ranks=4 parallel.zero=1 switch.groups=16,dp=4,zero=1;32,tp=4", false, false},
    {RUN_GPT2, "ranks=2 switch.groups=8,dp=2;16,cp=2;32,dp=2", false, true},
    {RUN_GPT2, "ranks=2 parallel.tp=2 switch.groups=32,pp=2,micro_batches=4,schedule=zb-h1", false,
     false},
    {RUN_GPT2, "ranks=4 parallel.zero=1 train.dtype=bf16 switch.groups=8,dp=4;32,tp=2,pp=2", true,
     false},
    {RUN_LLAMA, "ranks=4 device=staged switch.groups=8,dp=2,cp=2;32,tp=2,pp=2,micro_batches=4",
     false, false},
    {RUN_GPT2,
     "ranks=4 parallel.dp=2 parallel.tp=2 parallel.zero=2 switch.groups=8,dp=4;32,dp=2,tp=2", false,
     false},
    {RUN_LLAMA,
     "ranks=4 parallel.dp=4 parallel.zero=2 train.dtype=bf16 "
     "switch.groups=8,dp=2,cp=2;16,dp=4;32,tp=2,pp=2",
     true, false},
    {RUN_GPT2,
     "ranks=4 parallel.dp=2 parallel.tp=2 parallel.zero=3 "
     "switch.groups=8,dp=4;16,cp=2,tp=2;32,dp=2,tp=2",
     false, false},
    {RUN_LLAMA,
     "ranks=4 parallel.dp=4 parallel.zero=3 parallel.reshard_after_forward=2 train.dtype=bf16 "
     "switch.groups=16,dp=4,zero=1;32,tp=2,pp=2",
     true, false},
    {RUN_LLAMA,
     "ranks=4 parallel.dp=2 parallel.pp=2 parallel.zero=3 train.recompute=full device=staged "
     "switch.groups=8,dp=2,pp=2;32,tp=4,recompute=none switch.overlap=false",
     false, false},
    {RUN_LLAMA,
     "ranks=4 topology.ranks_per_node=2 parallel.zero=1 "
     "switch.groups=16,tp=2,strategy=intra-batch;32,tp=2,pp=2,schedule=dhelix-w,micro_batches=2",
     false, false},
};

/* What a step's metrics say of a run's steps, summed. */
static double sum_of(const char *out, const char *key)
{
    char path[400], line[2048];
    double sum = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        sum += json_number_value(json_object_get(object, key));
        json_decref(object);
    }
    fclose(f);
    return sum;
}

static void other_meshes_learn_the_same(void **state)
{
    char out[300];
    double worst = 0;
    run_folder(out, sizeof out, "run");
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        run_curve one, many;
        char settings[600];
        if (i % test_stride(3, 6)) continue;
        snprintf(settings, sizeof settings, "data.packing=pack ranks=1 %s",
                 meshes[i].half ? "train.dtype=bf16" : "");
        curve_of(meshes[i].model, settings, out, &one);
        snprintf(settings, sizeof settings, "data.packing=group %s", meshes[i].mesh);
        curve_of(meshes[i].model, settings, out, &many);
        assert_int_equal(one.n, 12);
        const double d = run_distance(&one, &many, 0);
        if (!(d <= run_tolerance(meshes[i].half ? DH_BF16 : DH_F32)))
            fail_msg("%s: losses differ by %g", meshes[i].mesh, d);
        for (int k = 0; k < one.n; k++)
            if (!(fabs(many.norm[k] / one.norm[k] - 1) <= (meshes[i].half ? 2e-2 : 1e-4)))
                fail_msg("%s: step %d: norms %g and %g", meshes[i].mesh, k + 1, one.norm[k],
                         many.norm[k]);
        assert_true(many.loss[11] < many.loss[0] - 0.1);
        /* Parameters and gradients of every group that is away, but where a step has none of it. */
        assert_true(sum_of(out, "switches") > 12);
        assert_true(meshes[i].whole ? sum_of(out, "switch_bytes") == 0
                                    : sum_of(out, "switch_bytes") > 12 * 1e5);
        assert_true(sum_of(out, "passes") > 12 && sum_of(out, "padding") > 0);
        if (!meshes[i].half) worst = fmax(worst, d);
        printf("  %s: %.2g\n", meshes[i].mesh, d);
    }
    printf("  losses differ by %.2g at most\n", worst);
}

/* Passes of one micro-batch or of all of them add the same gradients in the same order. */
static void one_group_at_home_is_packing(void **state)
{
    static const struct {
        const char *mesh, *group;
    } cases[] = {
        {"ranks=1", "32"},
        {"parallel.dp=2 model.dropout=0.1", "32,dp=2"},
        {"parallel.dp=2 parallel.tp=2 parallel.zero=1", "32,dp=2,tp=2,micro_batches=4"},
        {"parallel.pp=2 train.dtype=bf16", "32,pp=2,micro_batches=8"},
    };
    char out_a[300], out_b[300], settings[600];
    run_folder(out_a, sizeof out_a, "packed");
    run_folder(out_b, sizeof out_b, "grouped");
    for (size_t i = 0; i < DH_COUNTOF(cases); i += test_stride(1, 3)) {
        run_curve packed, grouped;
        snprintf(settings, sizeof settings, "data.packing=pack %s", cases[i].mesh);
        curve_of(RUN_GPT2, settings, out_a, &packed);
        snprintf(settings, sizeof settings, "data.packing=group switch.groups=%s %s",
                 cases[i].group, cases[i].mesh);
        curve_of(RUN_GPT2, settings, out_b, &grouped);
        if (run_distance(&packed, &grouped, 0) != 0 || !run_same_bytes(out_a, out_b, 12))
            fail_msg("%s: a group of all documents is not the packed run", cases[i].mesh);
    }
}

/* What moves beside passes arrives where it would arrive by itself, and is added in the same order:
 * two groups away that lie apart, then three of which two share a place, some steps without
 * documents of one. */
static void moves_beside_passes_change_nothing(void **state)
{
    static const char *const cases[] = {
        "ranks=4 switch.groups=8,dp=4;16,dp=2,tp=2;32,tp=4 parallel.zero=1 parallel.dp=2 "
        "parallel.pp=2",
        "ranks=4 switch.groups=4,dp=2,cp=2;8,tp=2,pp=2;16,dp=4;32,tp=2,cp=2 parallel.tp=4",
        "ranks=4 train.dtype=bf16 switch.groups=8,dp=4;16,tp=2,pp=2;32,dp=2,tp=2 parallel.dp=4 "
        "parallel.zero=1",
        "ranks=2 device=staged switch.groups=8,dp=2;16,pp=2;32,tp=2 parallel.tp=2",
        "ranks=4 switch.groups=8,dp=4;16,dp=2,tp=2;32,tp=2,pp=2 parallel.zero=3",
    };
    char out_a[300], out_b[300], settings[600];
    run_folder(out_a, sizeof out_a, "beside");
    run_folder(out_b, sizeof out_b, "in turn");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        run_curve beside, turns;
        if (i % test_stride(3, 5)) continue;
        snprintf(settings, sizeof settings, "data.packing=group %s", cases[i]);
        curve_of(RUN_GPT2, settings, out_a, &beside);
        snprintf(settings, sizeof settings, "data.packing=group switch.overlap=false %s", cases[i]);
        curve_of(RUN_GPT2, settings, out_b, &turns);
        if (run_distance(&beside, &turns, 0) != 0 || !run_same_bytes(out_a, out_b, 12))
            fail_msg("%s: moves beside passes change the run", cases[i]);
        assert_true(sum_of(out_a, "switches") == sum_of(out_b, "switches"));
        assert_true(sum_of(out_a, "switch_bytes") == sum_of(out_b, "switch_bytes"));
        /* In turn all of it is waited for. */
        assert_true(sum_of(out_b, "switch_wait_ms") == sum_of(out_b, "switch_ms"));
    }
}

/* The groups' programs are the same, whatever the home keeps of parameters and gradients; between
 * steps it evaluates. */
static void what_is_shared_out_at_home_changes_no_bit(void **state)
{
    static const struct {
        const char *model, *mesh;
    } cases[] = {
        {RUN_GPT2, "ranks=4 parallel.dp=4 switch.groups=8,dp=2,cp=2;32,tp=2,pp=2"},
        {RUN_LLAMA,
         "ranks=4 parallel.dp=2 parallel.pp=2 train.dtype=bf16 switch.groups=8,dp=2,tp=2;"
         "32,cp=2,tp=2 parallel.bucket_mb=0.02"},
    };
    char out_a[300], out_b[300], settings[600];
    run_folder(out_a, sizeof out_a, "whole");
    run_folder(out_b, sizeof out_b, "shared");
    for (size_t i = 0; i < DH_COUNTOF(cases); i += test_stride(1, 2)) {
        run_curve whole, shared;
        for (int zero = 0; zero <= 3; zero += test_is_thin() ? 3 : 1) {
            snprintf(settings, sizeof settings,
                     "data.packing=group data.val_fraction=0.1 eval.every=4 eval.batches=2 "
                     "train.steps=8 %s parallel.zero=%d",
                     cases[i].mesh, zero);
            curve_of(cases[i].model, settings, zero ? out_b : out_a, zero ? &shared : &whole);
            assert_false(isnan(whole.val[7]));
            if (zero > 0 &&
                (run_distance(&whole, &shared, 0) != 0 || !run_same_bytes(out_a, out_b, 8)))
                fail_msg("%s: other bits with ZeRO-%d at home", cases[i].mesh, zero);
        }
    }
}

/* Checkpoints are those of the weights' layout. */
static void a_stop_changes_nothing(void **state)
{
    static const char *const meshes_of[] = {
        "data.packing=group ranks=4 parallel.zero=1 model.dropout=0.1 "
        "switch.groups=8,dp=4;32,tp=2,pp=2 optimizer.decay_steps=12",
        "data.packing=group ranks=4 parallel.dp=2 parallel.tp=2 parallel.zero=3 model.dropout=0.1 "
        "switch.groups=8,dp=4;32,tp=2,pp=2 optimizer.decay_steps=12",
    };
    for (size_t i = 0; i < DH_COUNTOF(meshes_of); i += test_stride(1, 2)) {
        const char *mesh = meshes_of[i];
        char out_a[300], out_b[300], settings[1000], more[600];
        run_curve whole, parts;
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        run_folder(out_a, sizeof out_a, "whole");
        run_folder(out_b, sizeof out_b, "parts");
        curve_of(RUN_GPT2, mesh, out_a, &whole);
        snprintf(more, sizeof more, "%s train.steps=7", mesh);
        curve_of(RUN_GPT2, more, out_b, &parts);
        settings_of(mesh, settings, sizeof settings);
        if (run_job(&ctx, RUN_GPT2, settings, out_b, &result) != DH_OK) fail_msg("%s", ctx.message);
        assert_int_equal(result.resumed_at, 7);
        run_read_curve(out_b, &parts);
        assert_true(run_distance(&whole, &parts, 0) == 0);
        assert_true(run_same_bytes(out_a, out_b, 12));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_meshes_learn_the_same),
        cmocka_unit_test(one_group_at_home_is_packing),
        cmocka_unit_test(moves_beside_passes_change_nothing),
        cmocka_unit_test(what_is_shared_out_at_home_changes_no_bit),
        cmocka_unit_test(a_stop_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make_data, run_drop_dir);
}
