/* Profiles: classes of operators, the file and what it refuses, costs by it. */
#include "dh_test.h"

#include "costs/profile.h"

/* ---- graphs ------------------------------------------------------------------------------- */

/* 0: the default. */
typedef struct setup {
    const char *preset; /* gpt2-char */
    int64_t tp, cp, rank;
    dh_dtype dtype;
    int64_t batch, seq, nodes; /* 2, 64, 1 */
    double dropout;
} setup;

typedef struct block {
    dh_graph *graph;
    dh_mesh mesh;
    int64_t rank;
} block;

static setup resolved(setup s)
{
    if (!s.preset) s.preset = "gpt2-char";
    s.tp = DH_MAX(s.tp, 1);
    s.cp = DH_MAX(s.cp, 1);
    s.nodes = DH_MAX(s.nodes, 1);
    if (!s.batch) s.batch = 2;
    if (!s.seq) s.seq = 64;
    return s;
}

static block block_of(setup given, dh_block_kind kind)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = resolved(given);
    block b = {.rank = s.rank};
    dh_model model;
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, s.tp, 1, s.cp, 1, s.nodes, 0, &b.mesh));
    assert_ok(&ctx, dh_model_from_preset(&ctx, s.preset, &model));
    model.vocab = 66;
    const dh_coord c = dh_mesh_coord(&b.mesh, s.rank);
    const dh_build build = {.model = &model,
                            .mode = DH_MODE_TRAIN,
                            .dtype = s.dtype,
                            .batch = s.batch,
                            .seq = s.seq / s.cp,
                            .dropout = s.dropout,
                            .head_chunk_bytes = DH_HEAD_CHUNK_BYTES,
                            .loss_scale = 1};
    assert_ok(&ctx, dh_graph_build(&ctx, &build, kind, &b.graph));
    assert_ok(&ctx, dh_pass_context_parallel(&ctx, b.graph, s.cp, c.cp));
    assert_ok(&ctx,
              dh_pass_tensor_parallel(&ctx, b.graph, (dh_shard){.tp = s.tp, .tp_rank = c.tp}));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, b.graph));
    return b;
}

static dh_cost_op op_at(const block *b, size_t i)
{
    return (dh_cost_op){b->graph, &b->graph->ops.at[i], &b->mesh, b->rank};
}

static dh_cost_op op_named(const block *b, const char *label)
{
    char text[DH_OP_LABEL_BYTES];
    for (size_t i = 0; i < b->graph->ops.n; i++)
        if (strcmp(dh_op_label(b->graph, &b->graph->ops.at[i], text), label) == 0)
            return op_at(b, i);
    fail_msg("no operator \"%s\"", label);
    return (dh_cost_op){0};
}

/* Every operator's key in order, a line each. Caller frees. */
static char *keys_of(setup s, dh_block_kind kind)
{
    block b = block_of(s, kind);
    dh_str out = DH_STR_INIT;
    char key[DH_OP_KEY_BYTES];
    for (size_t i = 0; i < b.graph->ops.n; i++) {
        dh_cost_op op = op_at(&b, i);
        dh_str_printf(&out, "%s\n", dh_op_class_key(&op, key));
        assert_true(strlen(key) + 1 < sizeof key);
    }
    dh_graph_destroy(b.graph);
    assert_false(out.failed);
    return out.text;
}

/* ---- classes ------------------------------------------------------------------------------ */

static void keys_say_what_times_depend_on(void **state)
{
    block b = block_of((setup){.tp = 2}, DH_BLOCK_LAYER);
    char key[DH_OP_KEY_BYTES];
    dh_cost_op gather = op_named(&b, "all_gather n1.all");
    assert_string_equal(dh_op_class_key(&gather, key),
                        "all_gather x=f32[64,128] y=f32[128,128]; tp of 2, local");
    dh_cost_op linear = op_named(&b, "linear qkv");
    assert_string_equal(dh_op_class_key(&linear, key),
                        "linear x=f32[128,128] w=f32[192,128] y=f32[128,192]; B=2 T=64 H=2 K=2 "
                        "D=32 layernorm gelu");
    dh_graph_destroy(b.graph);
    (void)state;
}

static void other_sizes_are_other_classes(void **state)
{
    const setup others[] = {{.dtype = DH_BF16},       {.batch = 4}, {.seq = 32},
                            {.batch = 1, .seq = 128}, {.tp = 2},    {.tp = 2, .nodes = 2},
                            {.preset = "gpt2"},       {.cp = 2},    {.dropout = 0.1}};
    char *first = keys_of((setup){0}, DH_BLOCK_LAYER);
    for (size_t i = 0; i < DH_COUNTOF(others); i++) {
        char *text = keys_of(others[i], DH_BLOCK_LAYER);
        assert_string_not_equal(text, first);
        free(text);
    }
    free(first);
    (void)state;
}

/* Ranks of a group must come to the same classes in the same order, or their calls would
 * not meet. The vocabulary divides evenly here; where it does not, callers give the first
 * rank's shapes. */
static void ranks_of_a_group_agree(void **state)
{
    const dh_block_kind kinds[] = {DH_BLOCK_EMBED, DH_BLOCK_LAYER, DH_BLOCK_HEAD};
    const setup meshes[] = {{.tp = 2}, {.cp = 4}, {.tp = 2, .cp = 2}};
    for (size_t m = 0; m < DH_COUNTOF(meshes); m++)
        for (size_t k = 0; k < DH_COUNTOF(kinds); k++) {
            char *first = keys_of(meshes[m], kinds[k]);
            for (int64_t rank = 1; rank < DH_MAX(meshes[m].tp, 1) * DH_MAX(meshes[m].cp, 1);
                 rank++) {
                setup s = meshes[m];
                s.rank = rank;
                char *text = keys_of(s, kinds[k]);
                assert_string_equal(text, first);
                free(text);
            }
            free(first);
        }
    (void)state;
}

static void both_ends_of_a_transfer_are_one_class(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh mesh;
    char keys[2][DH_OP_KEY_BYTES];
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 1, 2, 1, 1, 2, 0, &mesh));
    for (int send = 0; send < 2; send++) {
        dh_graph *g;
        assert_ok(&ctx, dh_graph_build_link(&ctx, send, DH_GROUP_PP, 128, 64, DH_BF16, 0, &g));
        dh_op op = g->ops.at[0];
        op.group = DH_GROUP_PP;
        const dh_cost_op at = {g, &op, &mesh, send ? 0 : 1};
        dh_op_class_key(&at, keys[send]);
        dh_graph_destroy(g);
    }
    assert_string_equal(keys[0], "transfer x=bf16[128,64]; pp of 2, on 2 nodes");
    assert_string_equal(keys[0], keys[1]);
    (void)state;
}

/* ---- profiles ----------------------------------------------------------------------------- */

static int64_t random_ns(uint64_t *seed)
{
    return 1 + (int64_t)(test_rand(seed) % (uint64_t)DH_PAIR_MAX_NS);
}

static dh_profile *random_profile(uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p;
    char name[64], value[64];
    assert_ok(&ctx, dh_profile_create(&ctx, "random", &p));
    for (uint64_t i = 0, n = test_rand(seed) % 5; i < n; i++) {
        snprintf(name, sizeof name, "fact %d", (int)i);
        snprintf(value, sizeof value, "\"v\xc3\xa4lue\" %x", (unsigned)test_rand(seed));
        assert_ok(&ctx, dh_profile_add_fact(&ctx, p, name, value));
    }
    const uint64_t n_ops = test_rand(seed) % 200;
    for (uint64_t i = 0; i < n_ops; i++) {
        snprintf(name, sizeof name, "class %d", (int)i);
        snprintf(value, sizeof value, "label %d", (int)(i % 7));
        const dh_profile_op op = {.key = name,
                                  .label = value,
                                  .stream = (int32_t)(test_rand(seed) % 3),
                                  .forward = test_rand(seed) % 2,
                                  .backward = test_rand(seed) % 2,
                                  .source = (dh_pair_source)(test_rand(seed) % DH_N_PAIR_SOURCES),
                                  .solo_ns = random_ns(seed),
                                  .spread_ns = random_ns(seed),
                                  .estimate_ns = (int64_t)(test_rand(seed) % 2) * random_ns(seed),
                                  .n_samples = (int32_t)(test_rand(seed) % 100)};
        uint32_t id;
        assert_ok(&ctx, dh_profile_add_op(&ctx, p, &op, &id));
        assert_int_equal(id, i);
    }
    for (uint64_t i = 0; i < n_ops * 4; i++) {
        const dh_profile_pair pair = {.a = (uint32_t)(test_rand(seed) % n_ops),
                                      .b = (uint32_t)(test_rand(seed) % n_ops),
                                      .source = (dh_pair_source)(test_rand(seed) % 3),
                                      .a_ns = random_ns(seed),
                                      .b_ns = random_ns(seed),
                                      .a_spread_ns = random_ns(seed),
                                      .n_samples = (int32_t)(test_rand(seed) % 100)};
        assert_ok(&ctx, dh_profile_add_pair(&ctx, p, &pair));
    }
    p->launch_ns = random_ns(seed);
    return p;
}

static char *text_of(const dh_profile *p)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str out = DH_STR_INIT;
    assert_ok(&ctx, dh_profile_print(&ctx, p, &out));
    return out.text;
}

static void files_read_back_the_same(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char folder[256], path[300];
    test_tmpdir(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/profile.json", folder);
    uint64_t seed = test_seed("files_read_back_the_same");
    for (int i = 0; i < 20; i++) {
        dh_profile *p = random_profile(&seed), *again;
        assert_ok(&ctx, dh_profile_write(&ctx, p, path));
        assert_ok(&ctx, dh_profile_read(&ctx, path, &again));
        char *first = text_of(p), *second = text_of(again);
        assert_string_equal(first, second);
        assert_int_equal(again->pairs.n, p->pairs.n);
        for (uint32_t k = 0; k < p->ops.n; k++)
            assert_int_equal(dh_profile_find_op(again, p->ops.at[k].key), k);
        for (uint32_t k = 0; k < p->pairs.n; k++)
            assert_int_equal(dh_profile_find_pair(again, p->pairs.at[k].a, p->pairs.at[k].b), k);
        assert_int_equal(dh_profile_find_op(again, "class"), DH_NONE);
        free(first);
        free(second);
        dh_profile_destroy(p);
        dh_profile_destroy(again);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, folder));
    (void)state;
}

/* One of a known content: operators "a" (compute) and "b", "c" (links), pair (a, b). */
static dh_profile *small_profile(const char *mesh)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p;
    const dh_profile_op ops[] = {{.key = "a", .label = "a", .solo_ns = 1000, .n_samples = 5},
                                 {.key = "b", .label = "b", .stream = 1, .solo_ns = 800},
                                 {.key = "c", .label = "c", .stream = 2, .solo_ns = 600}};
    const dh_profile_pair pair = {.a = 0, .b = 1, .a_ns = 1200, .b_ns = 900, .n_samples = 5};
    assert_ok(&ctx, dh_profile_create(&ctx, "small.json", &p));
    assert_ok(&ctx, dh_profile_add_fact(&ctx, p, "machine.cpu", "abacus"));
    assert_ok(&ctx, dh_profile_add_fact(&ctx, p, "parallel.tp", mesh));
    for (size_t i = 0; i < DH_COUNTOF(ops); i++)
        assert_ok(&ctx, dh_profile_add_op(&ctx, p, &ops[i], NULL));
    assert_ok(&ctx, dh_profile_add_pair(&ctx, p, &pair));
    return p;
}

/* Files from when keys had the capacity of experts everywhere: found where it does not matter. */
static void former_keys_are_found(void **state)
{
    static const char *const keys[] = {
        "norm x=f32[8,4]; B=2 top=2 capacity=0", "norm x=f32[8,4]; B=2 top=2 capacity=160 dropout",
        "norm x=f32[8,4]; B=2 top=2 capacity=160",
        "moe_order experts=i32[8,2]; B=2 top=2 capacity=160", "linear x=f32[8,4]; B=2"};
    static const char *const now[] = {
        "norm x=f32[8,4]; B=2 top=2", "norm x=f32[8,4]; B=2 top=2 dropout",
        "moe_order experts=i32[8,2]; B=2 top=2 capacity=160", "linear x=f32[8,4]; B=2"};
    const dh_profile_pair pairs[] = {{.a = 0, .b = 4, .a_ns = 11, .b_ns = 15},
                                     {.a = 2, .b = 4, .a_ns = 13, .b_ns = 15},
                                     {.a = 3, .b = 2, .a_ns = 14, .b_ns = 13}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p, *again;
    assert_ok(&ctx, dh_profile_create(&ctx, "former.json", &p));
    for (size_t i = 0; i < DH_COUNTOF(keys); i++) {
        const dh_profile_op op = {.key = keys[i], .label = "op", .solo_ns = 1 + (int64_t)i};
        assert_ok(&ctx, dh_profile_add_op(&ctx, p, &op, NULL));
    }
    for (size_t i = 0; i < DH_COUNTOF(pairs); i++)
        assert_ok(&ctx, dh_profile_add_pair(&ctx, p, &pairs[i]));
    char *text = text_of(p);
    assert_ok(&ctx, dh_profile_parse(&ctx, text, strlen(text), "former.json", &again));
    assert_int_equal(again->ops.n, DH_COUNTOF(now));
    for (uint32_t k = 0; k < DH_COUNTOF(now); k++)
        assert_int_equal(dh_profile_find_op(again, now[k]), k);
    assert_int_equal(again->ops.at[0].solo_ns, 1);
    assert_int_equal(again->pairs.n, 2);
    assert_int_equal(again->pairs.at[dh_profile_find_pair(again, 0, 3)].a_ns, 11);
    assert_int_equal(again->pairs.at[dh_profile_find_pair(again, 2, 0)].a_ns, 14);
    free(text);
    dh_profile_destroy(p);
    dh_profile_destroy(again);
    (void)state;
}

/* Whatever digit or letter of the content is changed; wherever it is cut. */
static void changed_files_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p = small_profile("2"), *again;
    char *text = text_of(p);
    const size_t n = strlen(text);
    for (size_t i = 0; i + 2 < n; i++) {
        const char was = text[i];
        if ((was >= '0' && was <= '9') || (was >= 'a' && was <= 'z')) {
            text[i] = was == '7' ? '8' : was == 'x' ? 'y' : (char)(was + 1);
            dh_status st = dh_profile_parse(&ctx, text, n, "t", &again);
            if (st == DH_OK) fail_msg("byte %zu may be '%c'", i, text[i]);
            assert_true(st == DH_EFORMAT || st == DH_EUNSUPPORTED);
            assert_true(strlen(ctx.message) > 10);
            dh_ctx_reset(&ctx);
            text[i] = was;
        }
        assert_fails(&ctx, dh_profile_parse(&ctx, text, i, "t", &again), DH_EFORMAT, "t: line");
    }
    char *solo = strstr(text, "\"solo\": 1000");
    assert_non_null(solo);
    solo[8] = '2';
    assert_fails(&ctx, dh_profile_parse(&ctx, text, n, "mine.json", &again), DH_EFORMAT,
                 "mine.json was changed after it was written");
    assert_fails(&ctx, dh_profile_parse(&ctx, "{}", 2, "t", &again), DH_EFORMAT,
                 "t is not a profile");
    free(text);
    dh_profile_destroy(p);
    (void)state;
}

static void nonsense_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p = small_profile("2");
    dh_profile_op op = {.key = "d", .label = "d", .solo_ns = 1};
    dh_profile_pair pair = {.a = 0, .b = 2, .a_ns = 5, .b_ns = 5};
    assert_fails(&ctx, dh_profile_add_fact(&ctx, p, "parallel.tp", "3"), DH_EINVAL, "twice");
    op.solo_ns = 0;
    assert_fails(&ctx, dh_profile_add_op(&ctx, p, &op, NULL), DH_EINVAL, "d takes 0 ns");
    op.solo_ns = 1;
    op.stream = (dh_stream)99;
    assert_fails(&ctx, dh_profile_add_op(&ctx, p, &op, NULL), DH_EINVAL, "stream 99");
    pair.b = 3;
    assert_fails(&ctx, dh_profile_add_pair(&ctx, p, &pair), DH_EINVAL, "there are 3");
    pair.b = 2;
    pair.b_ns = DH_PAIR_MAX_NS + 1;
    assert_fails(&ctx, dh_profile_add_pair(&ctx, p, &pair), DH_EINVAL, "a and c together");
    dh_profile_destroy(p);
    (void)state;
}

static void other_facts_are_named(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p = small_profile("2");
    dh_profile_fact facts[] = {{"machine.cpu", "abacus"}, {"parallel.tp", "2"}, {"links", "none"}};
    assert_ok(&ctx, dh_profile_check(&ctx, p, facts, 2));
    const uint64_t hash = dh_profile_facts_hash(facts, 2);
    assert_int_equal(hash, dh_profile_facts_hash(p->facts.at, p->facts.n));
    assert_fails(&ctx, dh_profile_check(&ctx, p, facts, 3), DH_EINVAL,
                 "links is not known there and none here");
    assert_fails(&ctx, dh_profile_check(&ctx, p, facts, 1), DH_EINVAL,
                 "parallel.tp is 2 there and not known here");
    facts[1].value = "4";
    assert_fails(&ctx, dh_profile_check(&ctx, p, facts, 2), DH_EINVAL,
                 "profile small.json was not made for this: parallel.tp is 2 there and 4 here");
    assert_int_not_equal(hash, dh_profile_facts_hash(facts, 2));
    dh_profile_destroy(p);
    (void)state;
}

static void merging_keeps_both(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *into = small_profile("2"), *from, *other = small_profile("4");
    assert_ok(&ctx, dh_profile_create(&ctx, "from", &from));
    assert_ok(&ctx, dh_profile_add_fact(&ctx, from, "parallel.tp", "2"));
    assert_ok(&ctx, dh_profile_add_fact(&ctx, from, "machine.cpu", "abacus"));
    const dh_profile_op ops[] = {{.key = "d", .label = "d", .stream = 1, .solo_ns = 50},
                                 {.key = "a", .label = "newer a", .solo_ns = 70}};
    const dh_profile_pair pair = {.a = 1, .b = 0, .a_ns = 71, .b_ns = 72};
    for (size_t i = 0; i < DH_COUNTOF(ops); i++)
        assert_ok(&ctx, dh_profile_add_op(&ctx, from, &ops[i], NULL));
    assert_ok(&ctx, dh_profile_add_pair(&ctx, from, &pair));
    from->event_ns = 9;
    assert_fails(&ctx, dh_profile_merge(&ctx, into, other), DH_EINVAL, "parallel.tp is 2 there");
    assert_ok(&ctx, dh_profile_merge(&ctx, into, from));
    assert_int_equal(into->ops.n, 4);
    assert_int_equal(into->ops.at[0].solo_ns, 70);
    assert_string_equal(into->ops.at[0].label, "newer a");
    assert_int_equal(into->pairs.n, 2);
    assert_int_equal(into->pairs.at[dh_profile_find_pair(into, 0, 3)].a_ns, 71);
    assert_int_equal(into->pairs.at[dh_profile_find_pair(into, 0, 1)].a_ns, 1200);
    assert_int_equal(into->event_ns, 9);
    dh_profile_destroy(into);
    dh_profile_destroy(from);
    dh_profile_destroy(other);
    (void)state;
}

/* ---- costs -------------------------------------------------------------------------------- */

static void add_measured(dh_profile *p, const dh_cost_op *op, int64_t ns, double over_estimate)
{
    dh_ctx ctx = DH_CTX_INIT;
    char key[DH_OP_KEY_BYTES];
    const dh_profile_op measured = {
        .key = dh_op_class_key(op, key),
        .label = key,
        .stream = dh_cost_stream(op),
        .source = DH_PAIR_MEASURED,
        .solo_ns = ns,
        .estimate_ns = (int64_t)((double)ns / over_estimate),
    };
    assert_ok(&ctx, dh_profile_add_op(&ctx, p, &measured, NULL));
}

static void costs_are_measured_or_scaled(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    block b = block_of((setup){.tp = 2}, DH_BLOCK_LAYER);
    dh_profile *p;
    const dh_costs *costs;
    assert_ok(&ctx, dh_profile_create(&ctx, "p", &p));
    const dh_cost_op qkv = op_named(&b, "linear qkv"), fc1 = op_named(&b, "linear h"),
                     gather = op_named(&b, "all_gather n1.all"),
                     scatter = op_named(&b, "reduce_scatter proj"), norm = op_named(&b, "norm n1");
    add_measured(p, &qkv, 1000000, 2);
    add_measured(p, &norm, 30000, 4);
    add_measured(p, &gather, 600000, 5);
    const dh_profile_pair pair = {.a = 0, .b = 2, .a_ns = 1400000, .b_ns = 700000};
    assert_ok(&ctx, dh_profile_add_pair(&ctx, p, &pair));
    p->event_ns = 77;
    assert_ok(&ctx, dh_profile_costs(&ctx, p->arena, p, &dh_costs_default, &costs));
    assert_string_equal(costs->name, "profile p");
    assert_true(costs->event_ns == 77);

    dh_op_time t = costs->solo(costs->self, &qkv);
    assert_true(t.ns == 1000000 && t.source == DH_PAIR_MEASURED);
    const double estimate = dh_costs_default.solo(dh_costs_default.self, &fc1).ns;
    t = costs->solo(costs->self, &fc1); /* as the other linear */
    assert_true(fabs(t.ns / (2 * estimate) - 1) < 1e-3 && t.source == DH_PAIR_MODELLED);
    const dh_cost_op attention = op_named(&b, "attention o"), act = op_named(&b, "activation g");
    const dh_cost_op *unlike[] = {&attention, &act}; /* as what is estimated nearest */
    const double near[] = {500000, 7500};
    for (int i = 0; i < 2; i++) {
        const double guess = dh_costs_default.solo(dh_costs_default.self, unlike[i]).ns;
        const double ratio = fabs(log(guess / near[0])) < fabs(log(guess / near[1])) ? 2 : 4;
        t = costs->solo(costs->self, unlike[i]);
        assert_true(fabs(t.ns / (ratio * guess) - 1) < 1e-3 && t.source == DH_PAIR_MODELLED);
    }

    dh_pair_time both = dh_costs_together(costs, &qkv, &gather);
    assert_int_equal(both.f_ns, 1400000);
    assert_int_equal(both.b_ns, 700000);
    assert_int_equal(both.source, DH_PAIR_MEASURED);
    both = dh_costs_together(costs, &gather, &qkv);
    assert_int_equal(both.f_ns, 700000);
    assert_int_equal(both.b_ns, 1400000);

    /* As the only pair of these streams: the gather at 6/7, the other at 3/7 meanwhile. */
    const dh_op_rates r = costs->beside(costs->self, &fc1, &scatter);
    assert_true(fabs(r.a - 3.0 / 7) < 1e-9 && fabs(r.b - 6.0 / 7) < 1e-9);
    assert_int_equal(r.source, DH_PAIR_MODELLED);
    dh_profile_destroy(p);
    dh_graph_destroy(b.graph);
    (void)state;
}

static void without_a_measurement_estimates_stand(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    block b = block_of((setup){.tp = 2}, DH_BLOCK_LAYER);
    dh_profile *p;
    const dh_costs *costs;
    assert_ok(&ctx, dh_profile_create(&ctx, "p", &p));
    assert_ok(&ctx, dh_profile_costs(&ctx, p->arena, p, &dh_costs_default, &costs));
    for (size_t i = 0; i < b.graph->ops.n; i++) {
        const dh_cost_op op = op_at(&b, i);
        const double want = dh_costs_default.solo(dh_costs_default.self, &op).ns;
        assert_true(costs->solo(costs->self, &op).ns == want);
    }
    dh_profile_destroy(p);
    dh_graph_destroy(b.graph);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_say_what_times_depend_on),
        cmocka_unit_test(other_sizes_are_other_classes),
        cmocka_unit_test(ranks_of_a_group_agree),
        cmocka_unit_test(both_ends_of_a_transfer_are_one_class),
        cmocka_unit_test(files_read_back_the_same),
        cmocka_unit_test(changed_files_are_refused),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(other_facts_are_named),
        cmocka_unit_test(former_keys_are_found),
        cmocka_unit_test(merging_keeps_both),
        cmocka_unit_test(costs_are_measured_or_scaled),
        cmocka_unit_test(without_a_measurement_estimates_stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
