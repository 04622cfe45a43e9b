/* Training over meshes against one rank, on real text: losses, validation losses,
 * repeatability, and what schedules, strategies and buckets may not change. */
#include "ranks.h"

#include "dhelix/schedule.h"
#include "dhelix/strategy.h"

static char dir[256];

/* ---- meshes against one rank --------------------------------------------------------------- */

static const char *const meshes[] = {
    /* two ranks */
    "parallel.dp=2",
    "parallel.dp=2 parallel.zero1=true",
    "parallel.tp=2",
    "parallel.cp=2",
    "parallel.pp=2",
    "parallel.pp=2 parallel.virtual_stages=2 parallel.schedule=interleaved-1f1b",
    "parallel.pp=2 parallel.schedule=zb-h1 train.micro_batch=2",
    "parallel.pp=2 parallel.schedule=zb-v",
    "parallel.pp=2 parallel.schedule=dhelix-w strategy=round-robin",
    "parallel.pp=2 parallel.layer_split=3,1",
    "parallel.pp=2 train.recompute=full",
    /* four */
    "parallel.dp=4 parallel.zero1=true",
    "parallel.tp=4",
    "parallel.pp=4",
    "parallel.dp=2 parallel.tp=2",
    "parallel.dp=2 parallel.tp=2 parallel.zero1=true topology.nodes=2",
    "parallel.dp=2 parallel.pp=2 parallel.schedule=zb-h2",
    "parallel.tp=2 parallel.pp=2 parallel.schedule=v-half",
    "parallel.tp=2 parallel.cp=2",
    "parallel.dp=2 parallel.cp=2 parallel.zero1=true",
    "parallel.pp=2 parallel.cp=2",
    /* eight */
    "parallel.dp=8 parallel.zero1=true",
    "parallel.dp=2 parallel.tp=2 parallel.pp=2",
    "parallel.dp=2 parallel.tp=2 parallel.pp=2 parallel.zero1=true parallel.schedule=dualpipev",
    "parallel.tp=4 parallel.pp=2 parallel.schedule=dhelix-w strategy=round-robin",
    "parallel.dp=2 parallel.tp=2 parallel.cp=2 parallel.zero1=true",
};

/* Under a sanitizer, which looks at what threads and kernels do and not at sums, a family
 * takes every third mesh: turn, turn + 3, ... */
static void meshes_train_as_one_rank(const char *name, const char *model, size_t turn)
{
    const size_t first = TEST_SANITIZED ? turn : 0, stride = TEST_SANITIZED ? 3 : 1;
    int n_meshes = 0;
    char one_out[300], out[300];
    run_curve one, many;
    double worst = 0;
    run_folder(one_out, sizeof one_out, dir, "one");
    run_folder(out, sizeof out, dir, "mesh");
    run_curve_of(model, "ranks=1", one_out, &one);
    assert_int_equal(one.n, 20);
    assert_true(one.loss[19] < one.loss[0] - 0.5 && isfinite(one.val[9]) && isfinite(one.val[19]));
    for (size_t i = first; i < DH_COUNTOF(meshes); i += stride, n_meshes++) {
        run_curve_of(model, meshes[i], out, &many);
        double d = run_distance(&one, &many, 0);
        if (!(d <= run_tolerance(DH_F32)))
            fail_msg("%s, %s: losses differ by %g", name, meshes[i], d);
        worst = fmax(worst, d);
        run_remove(out);
    }
    run_remove(one_out);
    printf("  %s: %d meshes, losses differ by %.2g at most\n", name, n_meshes, worst);
}

static void a_gpt2_trains_alike_on_every_mesh(void **state)
{
    meshes_train_as_one_rank("gpt2", RUN_GPT2, 0);
}

static void a_llama_trains_alike_on_every_mesh(void **state)
{
    meshes_train_as_one_rank("llama", RUN_LLAMA, 1);
}

/* Near a tie between experts a last bit may choose another one; not in these runs. */
static void a_mixtral_trains_alike_on_every_mesh(void **state)
{
    meshes_train_as_one_rank("mixtral", RUN_EXPERTS, 2);
}

/* ---- the same bits ------------------------------------------------------------------------- */

/* A run that others are to repeat bit for bit. */
typedef struct run_base {
    const char *model, *settings;
    char out[300];
    run_curve curve;
} run_base;

static void begin_base(run_base *base, const char *model, const char *settings)
{
    base->model = model;
    base->settings = settings;
    run_folder(base->out, sizeof base->out, dir, "base");
    run_curve_of(model, settings, base->out, &base->curve);
}

static void expect_base(const run_base *base, const char *settings)
{
    char out[300];
    run_curve curve;
    run_folder(out, sizeof out, dir, "repeated");
    run_curve_of(base->model, settings, out, &curve);
    double d = run_distance(&base->curve, &curve, 0);
    if (d != 0 || !run_same_bytes(base->out, out, 20))
        fail_msg("\"%s\" and \"%s\" differ: losses by %g", base->settings, settings, d);
    run_remove(out);
}

static void expect_same_run(const char *model, const char *a, const char *b)
{
    run_base base;
    begin_base(&base, model, a);
    expect_base(&base, b);
    run_remove(base.out);
}

static void a_run_repeats_bit_for_bit(void **state)
{
    static const char *const repeated[] = {
        "parallel.dp=2 parallel.tp=2 parallel.zero1=true model.dropout=0.1",
        "parallel.dp=2 parallel.tp=2 parallel.pp=2 parallel.schedule=dhelix-w strategy=round-robin",
        "parallel.tp=2 parallel.cp=2 train.dtype=bf16",
    };
    for (size_t i = 0; i < DH_COUNTOF(repeated); i++)
        expect_same_run(RUN_LLAMA, repeated[i], repeated[i]);
}

/* Gradients of a weight are added up by micro-batch in every schedule, so all that can
 * be trained give the same bits, whatever they hold where. Only a tied embedding is added
 * to from both ends of the model: in schedules that keep them on one rank the order of
 * the two contributions is the schedule's own, so a tied model repeats the bits of 1F1B
 * under those of linear placement. */
static void schedules_change_no_bit(void **state)
{
    static const char *const bases[] = {"parallel.pp=2 parallel.dp=2",
                                        "parallel.pp=2 parallel.dp=2 model.tied_head=false"};
    size_t n;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    int n_checked[2] = {0};
    for (int folded = 0; folded < 2; folded++) {
        run_base base;
        begin_base(&base, RUN_GPT2, bases[folded]);
        for (size_t i = 0; i < n; i++) {
            const dh_placement at = rows[i]->placement;
            if (at == DH_PLACE_BIDIRECTIONAL || at == DH_PLACE_PARALLEL)
                continue; /* two copies of the model: refused */
            if ((at == DH_PLACE_FOLDED) != folded) continue;
            char settings[200];
            snprintf(settings, sizeof settings, "%s parallel.schedule=%s%s", base.settings,
                     rows[i]->name, at == DH_PLACE_ROUND_ROBIN ? " parallel.virtual_stages=2" : "");
            expect_base(&base, settings);
            n_checked[folded]++;
        }
        run_remove(base.out);
    }
    assert_true(n_checked[1] >= 4 && n_checked[0] >= 6);
}

static void strategies_change_no_bit(void **state)
{
    static const char settings[] = "parallel.tp=2 parallel.pp=2 parallel.schedule=dhelix-w";
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    run_base base;
    begin_base(&base, RUN_GPT2, settings);
    for (size_t i = 1; i < n; i++) {
        char with[200];
        if (rows[i].decompose != DH_DECOMPOSE_NONE) continue; /* test_intra_batch.c */
        snprintf(with, sizeof with, "%s strategy=%s", settings, rows[i].name);
        expect_base(&base, with);
    }
    run_remove(base.out);
    assert_true(n >= 2);
}

/* One and two virtual stages, sharded and whole optimizers: the same sums. */
static void sharding_changes_no_bit(void **state)
{
    expect_same_run(RUN_LLAMA, "parallel.dp=4", "parallel.dp=4 parallel.zero1=true");
    expect_same_run(RUN_LLAMA, "parallel.tp=2 parallel.dp=2 optimizer.grad_clip=0.1",
                    "parallel.tp=2 parallel.dp=2 parallel.pp=2 optimizer.grad_clip=0.1");
}

/* All blocks in one bucket, some, pieces of one: the same sums. */
static void buckets_change_no_bit(void **state)
{
    static const char *const runs[] = {
        "parallel.dp=4",
        "parallel.dp=2 parallel.tp=2 parallel.zero1=true train.dtype=bf16",
        "parallel.dp=2 parallel.pp=2 parallel.zero1=true parallel.schedule=zb-v",
        "parallel.cp=2 parallel.dp=2",
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        char some[200], pieces[200];
        run_base base;
        snprintf(some, sizeof some, "%s parallel.bucket_mb=0.1", runs[i]);
        snprintf(pieces, sizeof pieces, "%s parallel.bucket_mb=0.005", runs[i]);
        begin_base(&base, i % 2 ? RUN_GPT2 : RUN_EXPERTS, runs[i]);
        expect_base(&base, some);
        expect_base(&base, pieces);
        run_remove(base.out);
    }
}

/* ---- refused before a rank starts -------------------------------------------------------- */

static void impossible_meshes_are_refused(void **state)
{
    static const struct {
        const char *settings, *message;
    } cases[] = {
        {"parallel.tp=3", "parallel.tp 3 does not divide model.n_heads"},
        {"parallel.tp=8", "parallel.tp 8 does not divide model.n_kv_heads"},
        {"parallel.pp=3", "parallel.layer_split"},
        {"parallel.pp=8", "at most that many chunks"},
        {"parallel.dp=3", "train.batch 8 is not a multiple"},
        {"parallel.dp=8 train.micro_batch=2", "train.batch 8 is not a multiple"},
        {"ranks=6 parallel.tp=4", "6 ranks are not a multiple"},
        {"parallel.cp=2 train.seq_len=30", "train.seq_len 30 is not a multiple"},
        {"parallel.ep=2 parallel.dp=2", "the model has no experts"},
        {"parallel.pp=2 parallel.schedule=1f2b", "no schedule \"1f2b\""},
        {"parallel.pp=2 strategy=none", "no strategy is called none"},
        {"parallel.pp=2 parallel.schedule=dualpipe", "copies of the model"},
        {"parallel.pp=2 parallel.schedule=zb-v parallel.virtual_stages=1"
         " parallel.layer_split=3,1",
         "2 entries for 4 virtual stages"},
        {"parallel.pp=2 parallel.timeout_s=0", "parallel.timeout_s"},
        {"parallel.tp=2 parallel.sequence=false", "leave parallel.sequence true"},
    };
    char out[300];
    run_folder(out, sizeof out, dir, "refused");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_status st = run_job(&ctx, RUN_LLAMA, cases[i].settings, out, NULL);
        if (st == DH_OK || !strstr(ctx.message, cases[i].message))
            fail_msg("\"%s\": %s: %s; wanted: %s", cases[i].settings, dh_status_name(st),
                     ctx.message, cases[i].message);
        assert_false(dh_path_exists(out));
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

static int make_folder(void **state)
{
    test_tmpdir(dir, sizeof dir);
    return 0;
}

static int drop_folder(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt2_trains_alike_on_every_mesh),
        cmocka_unit_test(a_llama_trains_alike_on_every_mesh),
        cmocka_unit_test(a_mixtral_trains_alike_on_every_mesh),
        cmocka_unit_test(a_run_repeats_bit_for_bit),
        cmocka_unit_test(schedules_change_no_bit),
        cmocka_unit_test(strategies_change_no_bit),
        cmocka_unit_test(sharding_changes_no_bit),
        cmocka_unit_test(buckets_change_no_bit),
        cmocka_unit_test(impossible_meshes_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
