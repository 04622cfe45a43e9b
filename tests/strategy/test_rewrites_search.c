/* The tuner of rewrites: which sequences there are, that it takes the shortest, and what it finds
 * on a cluster. */
#include "dh_test.h"

#include "costs/cluster.h"
#include "strategy/rewrites.h"

static dh_model model;

static dh_graph_spec spec_of(const char *preset, int64_t tp, bool whole)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_model_from_preset(&ctx, preset, &model));
    dh_graph_spec spec = {.build = {.model = &model,
                                    .mode = DH_MODE_TRAIN,
                                    .dtype = DH_BF16,
                                    .batch = 1,
                                    .seq = model.max_seq < 2048 ? model.max_seq : 2048,
                                    .loss_scale = 1,
                                    .head_chunk_bytes = DH_HEAD_CHUNK_BYTES},
                          .sharing.sequence = whole ? DH_SEQUENCE_WHOLE : DH_SEQUENCE_SPLIT};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, tp, 1, 1, 1, 0, 0, &spec.mesh));
    return spec;
}

static bool has(const dh_rewrites *r, const char *text)
{
    for (size_t i = 0; i < r->n; i++) {
        dh_str out = DH_STR_INIT;
        dh_rewrites_print(&r->at[i].passes, &out);
        const bool same = strcmp(out.text, text) == 0;
        dh_str_fini(&out);
        if (same) return true;
    }
    return false;
}

static void legal_sequences_are_listed_once(void **state)
{
    dh_rewrites r;
    dh_graph_spec spec = spec_of("gpt2", 2, true);
    dh_rewrites_list(&spec, &r);
    assert_int_equal(r.n, 18);
    assert_int_equal(r.at[0].passes.n, 0);
    assert_true(has(&r, "split, reorder") && has(&r, "split, reorder(regather=false)") &&
                has(&r, "part-wise(parts=4)") && has(&r, "split, reorder, part-wise(parts=4)") &&
                has(&r, "split, reorder, fuse(parts=4), part-wise"));
    /* Before reorder nothing works on slices. */
    assert_false(has(&r, "split, fuse(parts=4)"));
    /* With sequence parallelism there is nothing to split; on one rank nothing at all. */
    spec = spec_of("gpt2", 2, false);
    dh_rewrites_list(&spec, &r);
    assert_int_equal(r.n, 6);
    assert_true(has(&r, "fuse(parts=4)"));
    assert_false(has(&r, "split"));
    spec = spec_of("gpt2", 1, true);
    dh_rewrites_list(&spec, &r);
    assert_int_equal(r.n, 1);
    /* Experts' operators are not moved. */
    spec = spec_of("mixtral-tiny", 2, true);
    dh_rewrites_list(&spec, &r);
    assert_true(has(&r, "split") && !has(&r, "split, reorder"));
}

static void the_shortest_is_taken(void **state)
{
    static const char *const presets[] = {"gpt2", "llama-tiny"};
    for (size_t p = 0; p < DH_COUNTOF(presets); p++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_rewrites r, again;
        const dh_strategy *row, *made;
        dh_arena *arena = dh_arena_create();
        const dh_graph_spec spec = spec_of(presets[p], 2, true);
        assert_ok(&ctx, dh_rewrites_find(&ctx, &spec, &dh_costs_default, &r));
        assert_ok(&ctx, dh_rewrites_find(&ctx, &spec, &dh_costs_default, &again));
        assert_int_equal(r.best, again.best);
        for (size_t i = 0; i < r.n; i++) {
            assert_true(r.at[i].layer_ns > 0);
            assert_true(r.at[i].layer_ns >= r.at[r.best].layer_ns);
            assert_true(r.at[i].layer_ns == again.at[i].layer_ns);
        }
        assert_ok(&ctx, dh_strategy_find(&ctx, "coconet", &row));
        assert_ok(&ctx, dh_strategy_with(&ctx, arena, row, &r.at[r.best].passes, &made));
        assert_true(row->searches && !made->searches);
        assert_true(dh_pass_list_equal(&made->passes, &r.at[r.best].passes));
        dh_arena_destroy(arena);
    }
}

/* Llama 3 70B on a node of A100, tokens whole: what makes the layer shortest has the two rewrites
 * that sequence parallelism consists of, and is shorter than plain tensor parallelism. */
static void sequence_parallelism_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_rewrites r;
    dh_cluster *cluster;
    dh_arena *arena = dh_arena_create();
    const dh_costs *costs;
    dh_graph_spec spec = spec_of("llama3-70b", 8, true);
    assert_ok(&ctx, dh_cluster_find(&ctx, "clusters/a100.yaml", &cluster));
    assert_ok(&ctx, dh_cluster_costs(&ctx, arena, cluster, &costs));
    assert_ok(&ctx, dh_rewrites_find(&ctx, &spec, costs, &r));
    dh_str out = DH_STR_INIT;
    dh_rewrites_print(&r.at[r.best].passes, &out);
    if (strncmp(out.text, "split, reorder", strlen("split, reorder")) != 0)
        fail_msg("found %s", out.text);
    assert_true(r.at[r.best].layer_ns < 0.98 * r.at[0].layer_ns);
    dh_str_fini(&out);
    dh_cluster_destroy(cluster);
    dh_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_sequences_are_listed_once),
        cmocka_unit_test(the_shortest_is_taken),
        cmocka_unit_test(sequence_parallelism_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
