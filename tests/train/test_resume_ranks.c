/* Checkpoints and meshes: what one mesh wrote any other continues, and writes again as
 * it was.
 *
 * Tolerance of losses: as in test_meshes.c. Weights and moments are compared over element
 * plus root mean square: after 10 steps up to 6e-5 are measured, since the optimizer turns the
 * relative error of a gradient near zero into as much of the learning rate; allowed: 3e-4. */
#include "ranks.h"

#include <pthread.h>

#include "train/resolve.h"
#include "train/run.h"

static const double loss_tolerance = 2e-5, weight_tolerance = 3e-4;

static void remove_run(const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_dir_remove(&ctx, out));
}

/* ---- continuing elsewhere -------------------------------------------------------------------- */

#define FIRST_HALF " train.steps=10 optimizer.decay_steps=20"

static void train_in_two_parts(const char *model, const char *first, const char *then,
                               const char *out, run_curve *curve)
{
    char settings[400];
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    snprintf(settings, sizeof settings, "%s" FIRST_HALF, first);
    run_curve_of(model, settings, out, curve);
    assert_int_equal(curve->n, 10);
    if (run_job(&ctx, model, then, out, &result) != DH_OK) fail_msg("%s: %s", then, ctx.message);
    assert_int_equal(result.resumed_at, 10);
    assert_int_equal(result.steps, 20);
    run_read_curve(out, curve);
}

static void a_run_goes_on_over_another_mesh(void **state)
{
    static const struct {
        const char *first, *then;
    } cases[] = {
        {"parallel.dp=2 parallel.tp=2", "ranks=1"},
        {"parallel.dp=2 parallel.tp=2", "parallel.pp=2 parallel.schedule=zb-v"},
        {"parallel.dp=2 parallel.tp=2", "parallel.cp=2 parallel.dp=2 parallel.zero=1"},
        {"parallel.dp=4 parallel.zero=1", "parallel.tp=2 parallel.pp=2"},
        {"parallel.pp=4 parallel.schedule=zb-h1", "parallel.dp=2 parallel.zero=1"},
        {"parallel.dp=2 parallel.tp=2 parallel.pp=2 parallel.zero=1", "parallel.tp=4"},
        {"ranks=1", "parallel.dp=2 parallel.tp=2 parallel.pp=2 parallel.zero=1"},
    };
    static const char *const models[] = {RUN_GPT2, RUN_LLAMA};
    double worst = 0;
    char out[300];
    run_folder(out, sizeof out, "run");
    for (size_t m = 0; m < DH_COUNTOF(models); m++) {
        run_curve whole, parts;
        run_curve_of(models[m], "ranks=1", out, &whole);
        remove_run(out);
        for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
            if (test_leaves_out(i)) continue;
            train_in_two_parts(models[m], cases[i].first, cases[i].then, out, &parts);
            double d = run_distance(&whole, &parts, 0);
            if (!(d <= loss_tolerance))
                fail_msg("\"%s\", then \"%s\": losses differ by %g", cases[i].first, cases[i].then,
                         d);
            worst = fmax(worst, d);
            remove_run(out);
        }
    }
    printf("  losses differ by %.2g at most\n", worst);
}

static void the_same_mesh_goes_on_bit_for_bit(void **state)
{
    static const char *const meshes[] = {
        "parallel.dp=2 parallel.tp=2 parallel.zero=1 model.dropout=0.1",
        "parallel.tp=2 parallel.pp=2 parallel.schedule=dhelix-w strategy=round-robin",
        "parallel.dp=2 parallel.cp=2 train.dtype=bf16 parallel.zero=1",
    };
    char out_a[300], out_b[300];
    run_folder(out_a, sizeof out_a, "whole");
    run_folder(out_b, sizeof out_b, "parts");
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        if (test_leaves_out(i)) continue;
        run_curve whole, parts;
        run_curve_of(RUN_GPT2, meshes[i], out_a, &whole);
        train_in_two_parts(RUN_GPT2, meshes[i], meshes[i], out_b, &parts);
        if (run_distance(&whole, &parts, 0) != 0 || !run_same_bytes(out_a, out_b, 20))
            fail_msg("%s: a run in two parts is another run", meshes[i]);
        remove_run(out_a);
        remove_run(out_b);
    }
}

/* What one degree of ZeRO wrote another continues, as if there had been one. */
static void zero_degrees_go_on_bit_for_bit(void **state)
{
    static const struct {
        const char *mesh, *first, *then;
    } cases[] = {
        {"parallel.dp=2 parallel.tp=2 train.dtype=bf16", "parallel.zero=3", "parallel.zero=0"},
        {"parallel.dp=4", "parallel.zero=1", "parallel.zero=3"},
        {"parallel.dp=4", "parallel.zero=1 parallel.gather=forward", "parallel.zero=0"},
        {"parallel.dp=2 parallel.tp=2 train.dtype=bf16", "parallel.zero=3",
         "parallel.zero=2 parallel.gather=forward checkpoint.async=true"},
        {"parallel.dp=2 parallel.pp=2", "parallel.zero=3", "parallel.zero=2"},
        {"parallel.dp=4 train.dtype=bf16 parallel.grad_dtype=compute", "parallel.zero=2",
         "parallel.zero=0"},
        {"parallel.dp=2 train.micro_batch=1 parallel.zero=2 parallel.gradient_sync=every",
         "parallel.zero=3", "parallel.bucket_mb=0.02"},
    };
    char out_a[300], out_b[300];
    run_folder(out_a, sizeof out_a, "whole");
    run_folder(out_b, sizeof out_b, "parts");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        if (test_leaves_out(i)) continue;
        run_curve whole, parts;
        char first[200], then[200];
        snprintf(first, sizeof first, "%s %s", cases[i].mesh, cases[i].first);
        snprintf(then, sizeof then, "%s %s", cases[i].mesh, cases[i].then);
        run_curve_of(RUN_GPT2, cases[i].mesh, out_a, &whole);
        train_in_two_parts(RUN_GPT2, first, then, out_b, &parts);
        if (run_distance(&whole, &parts, 0) != 0 || !run_same_bytes(out_a, out_b, 20))
            fail_msg("%s, then %s: another run", first, then);
        remove_run(out_a);
        remove_run(out_b);
    }
}

/* ---- what is in the files ------------------------------------------------------------------- */

/* Largest difference of a checkpoint file's tensors, over element plus root mean square. */
static double tensors_distance(const char *out_a, const char *out_b, int step, const char *file)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path_a[500], path_b[500];
    dh_safetensors *a, *b;
    double worst = 0;
    assert_ok(&ctx, dh_st_open(&ctx, run_ckpt_file(path_a, sizeof path_a, out_a, step, file), &a));
    assert_ok(&ctx, dh_st_open(&ctx, run_ckpt_file(path_b, sizeof path_b, out_b, step, file), &b));
    assert_int_equal(dh_st_n_tensors(a), dh_st_n_tensors(b));
    for (size_t k = 0; k < dh_st_n_tensors(a); k++) {
        const dh_st_tensor *x = dh_st_at(a, k), *y = dh_st_find(b, x->name);
        assert_non_null(y);
        assert_int_equal(x->n_items, y->n_items);
        double squares = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < x->n_items; i++) {
                float u, v;
                memcpy(&u, x->data + (size_t)i * sizeof u, sizeof u);
                memcpy(&v, y->data + (size_t)i * sizeof v, sizeof v);
                if (pass == 0) {
                    squares += (double)u * (double)u;
                    continue;
                }
                double e = fabs((double)u - (double)v) /
                           (sqrt(squares / (double)x->n_items) + fabs((double)u));
                if (!(e <= worst)) worst = e;
            }
    }
    dh_st_close(a);
    dh_st_close(b);
    return worst;
}

/* A Llama: without biases no gradient is zero but for rounding. */
static void every_mesh_writes_the_same_tensors(void **state)
{
    static const char *const meshes[] = {
        "parallel.dp=2 parallel.tp=2",
        "parallel.dp=4 parallel.zero=1",
        "parallel.pp=2 parallel.schedule=v-min",
        "parallel.tp=4 parallel.pp=2",
        "parallel.dp=2 parallel.cp=2 parallel.zero=1",
    };
    char one[300], out[300], settings[300];
    run_curve curve;
    run_folder(one, sizeof one, "one");
    run_folder(out, sizeof out, "mesh");
    run_curve_of(RUN_LLAMA, "ranks=1" FIRST_HALF, one, &curve);
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        if (test_leaves_out(i)) continue;
        snprintf(settings, sizeof settings, "%s" FIRST_HALF, meshes[i]);
        run_curve_of(RUN_LLAMA, settings, out, &curve);
        for (const char *const *file = run_ckpt_files(); *file; file++) {
            double d = tensors_distance(one, out, 10, *file);
            printf("  %s: %s differs by %.2g\n", meshes[i], *file, d);
            if (!(d <= weight_tolerance)) fail_msg("%s: %s: %g", meshes[i], *file, d);
        }
        remove_run(out);
    }
    remove_run(one);
}

/* ---- reading and writing without a step ------------------------------------------------------ */

/* One rank that loads the newest checkpoint of a folder and saves it into another. */
typedef struct copier {
    dh_job *job;
    dh_run run;
    dh_comm_world *world;
    const char *to;
    pthread_t thread;
    dh_ctx ctx;
} copier;

static dh_status create_group(dh_ctx *ctx, copier *c, dh_group_kind kind, int stream,
                              dh_comm_group **group)
{
    const dh_mesh *mesh = &c->run.mesh;
    int members[8], n = (int)dh_mesh_group_size(mesh, kind);
    if (n == 1) return DH_OK;
    for (int i = 0; i < n; i++)
        members[i] = (int)dh_mesh_group_member(mesh, kind, c->run.ranks.rank, i);
    const dh_comm_group_spec spec = {.name = dh_group_name(kind),
                                     .members = members,
                                     .n = n,
                                     .stream = stream,
                                     .wire = DH_ENGINE_LOCAL};
    return dh_comm_group_create(ctx, c->run.ranks.comm, &spec, group);
}

static dh_status load_and_save(dh_ctx *ctx, copier *c)
{
    dh_run *run = &c->run;
    bool resumed;
    int n_threads;
    if (c->world) {
        DH_TRY(dh_comm_attach(ctx, c->world, (int)run->ranks.rank, &run->ranks.comm));
        DH_TRY(create_group(ctx, c, DH_GROUP_WORLD, DH_N_STREAM, &run->ranks.control));
    }
    dh_session_spec spec = dh_run_session(run);
    spec.comm = run->ranks.comm;
    spec.rank = run->ranks.rank;
    DH_TRY(spec.device->bind_rank(ctx, (int)run->ranks.rank, (int)run->ranks.n, 1, &n_threads));
    DH_TRY(dh_session_create(ctx, &spec, &run->session));
    DH_TRY(dh_run_resume(ctx, run, &resumed));
    if (!resumed) return dh_fail(ctx, DH_EMISSING, "no checkpoint was found");
    dh_job moved = *run->job;
    union {
        const char *in;
        char *out;
    } to = {.in = c->to};
    moved.out_dir = to.out; /* only read */
    run->job = &moved;
    DH_TRY(dh_run_claim_folder(ctx, run));
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, dh_run_open_outputs(ctx, run)));
    dh_status st = dh_run_save(ctx, run);
    dh_vec_fini(&run->proved);
    dh_run_release_folder(run);
    return st;
}

static void *copier_main(void *arg)
{
    copier *c = arg;
    load_and_save(&c->ctx, c);
    return NULL;
}

static void copy_over(const char *parallel, const char *from, const char *to)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world = NULL;
    dh_resolved *resolved;
    dh_train_options options = {.quiet = true};
    copier copiers[8];
    dh_mesh mesh;
    char text[1600];
    dh_job *job;
    snprintf(text, sizeof text,
             RUN_GPT2 "data: {train: %s, tokenizer: chars, val_fraction: 0.01}\n"
                      "train: {batch: 8, micro_batch: 1, seq_len: 32, threads: 1}\n"
                      "parallel: {%s}\nout: %s\n",
             run_text, parallel, from);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "copy.yaml", ".", NULL, 0, &job));
    assert_ok(&ctx, dh_mesh_from_job(&ctx, job, &mesh));
    assert_ok(&ctx, dh_dir_create(&ctx, to));
    dh_run data = {.job = job, .options = &options};
    assert_ok(&ctx, dh_run_open_tokenizer(&ctx, &data));
    const dh_resolve_options how = {.tokenizer = data.tokenizer, .quiet = true};
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &resolved));
    data.job = &resolved->job;
    data.recipe = &resolved->recipe;
    assert_ok(&ctx, dh_run_open_data(&ctx, &data));
    const dh_comm_config config = {.ranks = (int)mesh.ranks};
    assert_in_range(mesh.ranks, 1, DH_COUNTOF(copiers));
    if (mesh.ranks > 1) assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    for (int r = 0; r < mesh.ranks; r++) {
        copier *c = &copiers[r];
        *c = (copier){.world = world, .to = to, .run = data, .ctx = DH_CTX_INIT};
        c->run.mesh = mesh;
        c->run.ranks = (dh_ranks){.rank = r, .n = mesh.ranks};
        assert_int_equal(pthread_create(&c->thread, NULL, copier_main, c), 0);
    }
    for (int r = 0; r < mesh.ranks; r++) pthread_join(copiers[r].thread, NULL);
    for (int r = 0; r < mesh.ranks; r++)
        if (copiers[r].ctx.status != DH_OK)
            fail_msg("%s: rank %d: %s", parallel, r, copiers[r].ctx.message);
    for (int r = 0; r < mesh.ranks; r++) dh_session_destroy(copiers[r].run.session);
    dh_comm_world_destroy(world);
    dh_resolved_destroy(resolved);
    dh_dataset_close(data.train_data);
    dh_dataset_close(data.val_data);
    dh_tokenizer_destroy(data.tokenizer);
    dh_job_destroy(job);
}

static void loading_and_saving_keeps_every_byte(void **state)
{
    static const char *const meshes[] = {
        "dp: 1", "dp: 2, tp: 2",          "dp: 4, zero: 1",        "tp: 4",
        "pp: 4", "pp: 2, schedule: zb-v", "dp: 2, cp: 2, zero: 1", "dp: 2, tp: 2, pp: 2, zero: 1",
    };
    char from[300], to[300];
    run_curve curve;
    run_folder(from, sizeof from, "from");
    run_folder(to, sizeof to, "to");
    run_curve_of(RUN_GPT2, "parallel.dp=2 parallel.tp=2" FIRST_HALF, from, &curve);
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        if (test_leaves_out(i)) continue;
        copy_over(meshes[i], from, to);
        if (!run_same_bytes(from, to, 10)) fail_msg("{%s} does not write what it read", meshes[i]);
        remove_run(to);
    }
}

/* ---- refused --------------------------------------------------------------------------------- */

static void another_job_is_refused_by_all_ranks(void **state)
{
    char out[300];
    run_curve curve;
    dh_ctx ctx = DH_CTX_INIT;
    run_folder(out, sizeof out, "run");
    run_curve_of(RUN_GPT2, "parallel.dp=2" FIRST_HALF, out, &curve);
    assert_fails(&ctx, run_job(&ctx, RUN_GPT2, "parallel.tp=2 train.seed=7", out, NULL), DH_EINVAL,
                 "train.seed ");
    assert_fails(&ctx, run_job(&ctx, RUN_LLAMA, "parallel.tp=2 parallel.pp=2", out, NULL),
                 DH_EINVAL, "model.family gpt2, this job has llama");
    remove_run(out);
}

/* ---- entry ---------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_goes_on_over_another_mesh),
        cmocka_unit_test(the_same_mesh_goes_on_bit_for_bit),
        cmocka_unit_test(zero_degrees_go_on_bit_for_bit),
        cmocka_unit_test(every_mesh_writes_the_same_tensors),
        cmocka_unit_test(loading_and_saving_keeps_every_byte),
        cmocka_unit_test(another_job_is_refused_by_all_ranks),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
