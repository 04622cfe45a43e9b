/* The load of experts: counted by hand, through its file, from one number, in costs and in a
 * simulated step. */
#include "dh_test.h"

#include "dhelix/simulate.h"
#include "train/load.h"
#include "train/metrics.h"

static char dir[256];

static int make_dir(void **state)
{
    test_tmpdir(dir, sizeof dir);
    return 0;
}

static int drop_dir(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

static const dh_model four_experts = {.n_layers = 2, .n_experts = 4, .top_k = 2};

/* ---- recording --------------------------------------------------------------------------------
 */

/* Layer 0: one micro-batch in which expert 0 has 4 of 8 choices and experts 0 and 1 have 6; one
 * that is even. Layer 1 is another stage's. Then a step that is even. */
static void record_a_step(dh_ctx *ctx, dh_load_record **record, double *expert, double *rank)
{
    static const int64_t uneven[] = {4, 2, 1, 1}, even[] = {1, 1, 1, 1};
    const dh_ranks alone = {.n = 1};
    assert_ok(ctx, dh_load_record_create(ctx, &four_experts, 2, record));
    dh_load_record_choices(*record, 0, 0, uneven, 4);
    dh_load_record_choices(*record, 0, 1, even, 4);
    assert_ok(ctx, dh_load_record_end_step(ctx, &alone, 2, *record, expert, rank));
    dh_load_record_choices(*record, 0, 0, even, 4);
    dh_load_record_choices(*record, 0, 1, even, 4);
    double second[2];
    assert_ok(ctx, dh_load_record_end_step(ctx, &alone, 2, *record, &second[0], &second[1]));
    assert_true(second[0] == 1 && second[1] == 1); /* counts began anew */
    assert_ok(ctx, dh_load_record_gather(ctx, &alone, *record));
}

static void what_experts_get_is_recorded_and_read(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    dh_load_record *record;
    dh_expert_load load;
    double expert, rank;
    record_a_step(&ctx, &record, &expert, &rank);
    assert_true(expert == (4 * 4 / 8.0 + 1) / 2); /* twice the even share, then the share */
    assert_true(rank == (2 * 6 / 8.0 + 1) / 2);
    static const int64_t one[] = {0, 0, 0, 1}; /* a file is of every layer */
    const dh_ranks alone = {.n = 1};
    dh_load_record_choices(record, 1, 0, one, 4);
    assert_ok(&ctx, dh_load_record_end_step(&ctx, &alone, 2, record, &expert, &rank));
    assert_true(expert == 4 && rank == 2);
    assert_ok(&ctx, dh_load_record_gather(&ctx, &alone, record));
    assert_ok(&ctx, dh_load_record_write(&ctx, record, dir));
    assert_ok(&ctx, dh_load_read(&ctx, arena, &four_experts, dir, &load));
    assert_true(load.n_experts == 4 && load.by_ranks[1] == 1);
    assert_true(fabs(load.by_ranks[4] - (2 + 3 + 4) / 5.0) < 1e-8);
    assert_true(fabs(load.by_ranks[2] - (1.5 + 3 + 2) / 5.0) < 1e-8);
    dh_load_record_destroy(record);
    dh_arena_destroy(arena);
}

static void other_files_are_refused(void **state)
{
    static const struct {
        const char *text, *message;
        dh_status st;
    } cases[] = {
        {NULL, "is to name a run folder", DH_EMISSING},
        {"[1]", "no JSON object", DH_EFORMAT},
        {"{\"experts\": 8, \"top_k\": 2}", "is of 8 experts", DH_EINVAL},
        {"{\"experts\": 4, \"top_k\": 2}", "from 1 to 1 for \"1\"", DH_EFORMAT},
        {"{\"experts\": 4, \"top_k\": 2, \"load\": {\"1\": 1, \"2\": 2.5, \"4\": 3}}",
         "from 1 to 2 for \"2\"", DH_EFORMAT},
    };
    dh_arena *arena = dh_arena_create();
    char run[300], path[400];
    snprintf(run, sizeof run, "%s/other", dir);
    snprintf(path, sizeof path, "%s/experts.json", run);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_expert_load load;
        assert_ok(&ctx, dh_dir_create(&ctx, run));
        if (cases[i].text)
            assert_ok(&ctx, dh_file_write_atomic(&ctx, path, cases[i].text, strlen(cases[i].text)));
        assert_fails(&ctx, dh_load_read(&ctx, arena, &four_experts, run, &load), cases[i].st,
                     cases[i].message);
    }
    dh_arena_destroy(arena);
}

/* ---- predictions ------------------------------------------------------------------------------
 */

static void one_number_says_what_ranks_get(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    dh_expert_load load;
    assert_ok(&ctx, dh_load_of_busiest(&ctx, arena, 8, 2, 2, &load));
    assert_true(fabs(load.by_ranks[8] - 2) < 1e-12 && fabs(load.by_ranks[1] - 1) < 1e-12);
    assert_true(fabs(load.by_ranks[2] - (2 + 3 * 6 / 7.0) / 4) < 1e-12);
    assert_true(load.by_ranks[3] == 0); /* experts do not divide */
    assert_ok(&ctx, dh_load_of_busiest(&ctx, arena, 8, 2, 4, &load));
    assert_fails(&ctx, dh_load_of_busiest(&ctx, arena, 8, 2, 4.1, &load), DH_EINVAL,
                 "at most all tokens, 4 times");
    dh_arena_destroy(arena);
}

static dh_graph *layer_of(dh_ctx *ctx, const dh_mesh *mesh)
{
    dh_model model;
    dh_graph *graph;
    assert_ok(ctx, dh_model_from_preset(ctx, "mixtral-8x7b", &model));
    const dh_build build = {
        .model = &model, .mode = DH_MODE_TRAIN, .batch = 1, .seq = 64, .loss_scale = 1};
    assert_ok(ctx, dh_graph_build(ctx, &build, DH_BLOCK_LAYER, &graph));
    assert_ok(ctx,
              dh_pass_expert_parallel(ctx, graph, (dh_shard){.tp = 1, .ep = mesh->ep}, 2, NULL));
    assert_ok(ctx, dh_graph_differentiate(ctx, graph));
    return graph;
}

/* Four exchanges of rows, three operators of each of two linears, and nothing else; none where a
 * rank has all experts. */
static void only_what_follows_the_load_takes_longer(void **state)
{
    static const int64_t degrees[] = {1, 2, 8};
    static const double by_ranks[9] = {[1] = 1, [2] = 1.25, [8] = 3};
    const dh_expert_load load = {"by hand", 8, by_ranks};
    dh_arena *arena = dh_arena_create();
    for (size_t k = 0; k < DH_COUNTOF(degrees); k++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_mesh mesh;
        const dh_costs *costs, *plain = &dh_costs_default;
        size_t n = 0;
        assert_ok(&ctx, dh_mesh_init(&ctx, 8, 1, 1, 1, degrees[k], 1, 0, &mesh));
        assert_ok(&ctx, dh_load_costs(&ctx, arena, plain, &load, &costs));
        assert_string_equal(costs->name, "estimates, load of experts by hand");
        dh_graph *g = layer_of(&ctx, &mesh);
        for (size_t i = 0; i < g->ops.n; i++) {
            const dh_cost_op op = {g, &g->ops.at[i], &mesh, 0};
            const double ns = costs->solo(costs->self, &op).ns;
            const double even = plain->solo(plain->self, &op).ns;
            n += dh_op_follows_load(op.op);
            assert_true(ns == even * (dh_op_follows_load(op.op) ? by_ranks[degrees[k]] : 1));
        }
        assert_int_equal(n, degrees[k] == 1 ? 0 : 4 + 6);
        dh_graph_destroy(g);
    }
    dh_arena_destroy(arena);
}

/* Seconds of a simulated step. */
static double step_of(const char *load)
{
    static const char text[] =
        "model: {family: mixtral, n_layers: 2, width: 64, n_heads: 4, n_kv_heads: 4, head_dim: "
        "16,\n"
        "        ffn_width: 256, n_experts: 4, top_k: 2, vocab: 65, max_seq: 32}\n"
        "data: {train: tests/data/corpora/tinyshakespeare/input.txt, tokenizer: chars}\n"
        "train: {steps: 1, batch: 8, micro_batch: 1, seq_len: 32, threads: 1}\n"
        "parallel: {dp: 2, ep: 2}\nprofile: none\n";
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    const dh_simulate_options quiet = {.quiet = true};
    dh_simulate_result result;
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "load.yaml", ".", &load, 1, &job));
    assert_ok(&ctx, dh_simulate_job(&ctx, job, &quiet, &result));
    dh_job_destroy(job);
    return result.step_s;
}

static void a_simulated_step_goes_by_the_busiest_rank(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[300], path[400], setting[400];
    static const char recorded[] = "{\"experts\": 4, \"top_k\": 2, \"load\": "
                                   "{\"1\": 1, \"2\": 1.3333333333333333, \"4\": 2}}";
    snprintf(run, sizeof run, "%s/run", dir);
    snprintf(path, sizeof path, "%s/experts.json", run);
    snprintf(setting, sizeof setting, "moe.recorded=%s", run);
    assert_ok(&ctx, dh_dir_create(&ctx, run));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, recorded, strlen(recorded)));
    const double even = step_of("moe.load=1"), uneven = step_of("moe.load=2");
    assert_true(uneven > even * 1.05 && uneven < even * 4 / 3);
    /* Of 4 experts one has twice its share, the others 2/3: a rank with it 4/3. */
    assert_true(fabs(step_of(setting) / uneven - 1) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_experts_get_is_recorded_and_read),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(one_number_says_what_ranks_get),
        cmocka_unit_test(only_what_follows_the_load_takes_longer),
        cmocka_unit_test(a_simulated_step_goes_by_the_busiest_rank),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
