/* What costs choose for a strategy: the chunks that a layer is shortest with, for ranks alike. */
#include "meshes.h"

#include <math.h>

static const dh_strategy *read_strategy(dh_arena *arena, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_strategy *strategy;
    assert_ok(&ctx, dh_strategy_read(&ctx, arena, text, &strategy));
    return strategy;
}

static setup small(const dh_strategy *strategy)
{
    return (setup){.preset = "llama-tiny",
                   .schedule = "1f1b",
                   .tp = 2,
                   .pp = 1,
                   .dp = 1,
                   .n_micro = 2,
                   .seq = 64,
                   .strategy = strategy};
}

static int64_t per_node;    /* 0: one node */
static int64_t micro_batch; /* samples; 0: the setup's two */

/* Caller frees. */
static char *passes_of(const dh_recipe *recipe)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s", "");
    dh_pass_list_print(&recipe->strategy->passes, &text);
    assert_non_null(text.text);
    return text.text;
}

/* As the strategy has its passes after it was settled by these costs. */
static void assert_settles(const char *text, const dh_cost_model *model, int64_t tp,
                           const char *want, bool says_why)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    const char *why;
    setup s = small(read_strategy(arena, text));
    s.tp = tp;
    s.per_node = per_node;
    mesh_programs *m = prepare(&s);
    dh_recipe *r = &m->spec.recipe;
    if (micro_batch) r->micro_batch = micro_batch;
    r->costs = dh_costs_estimated(arena, model);
    assert_non_null(r->costs);
    assert_ok(&ctx, dh_recipe_settle(&ctx, arena, r, &why));
    char *passes = passes_of(r);
    if (why) print_message("%s: %s\n", passes, why);
    assert_string_equal(passes, want);
    free(passes);
    assert_int_equal(why != NULL, says_why);
    assert_string_equal(r->strategy->name, s.strategy->name);
    destroy(m);
    dh_arena_destroy(arena);
}

#define LINK(bytes_per_s, ns)                                                                      \
    {                                                                                              \
        .link_bytes_per_s = {[DH_ENGINE_LOCAL] = bytes_per_s}, .link_latency_ns = {                \
            [DH_ENGINE_LOCAL] = ns                                                                 \
        }                                                                                          \
    }

static void chunks_follow_the_wire(void **state)
{
    static const dh_cost_model slow_to_start = LINK(1e9, 1e6), slow = LINK(1e8, 1);
    assert_settles("flux", &slow_to_start, 2, "part-wise(parts=1, scatter, fused)", true);
    assert_settles("flux", &slow, 2, "part-wise(parts=4, scatter, fused)", true);
    assert_settles("part-wise(auto, scatter)+dhelix", &slow_to_start, 2,
                   "part-wise(parts=1, scatter)", true);
}

static void what_is_said_stays(void **state)
{
    static const dh_cost_model any = LINK(1e9, 1e3);
    assert_settles("part-wise(2, scatter)+sequential", &any, 2, "part-wise(scatter)", false);
    assert_settles("sequential", &any, 2, "", false);
    /* nothing is gathered over one rank */
    assert_settles("flux", &any, 1, "part-wise(parts=auto, scatter, fused)", false);
}

/* Four ranks on two nodes: where the wire between them is what takes long, as few bytes as can be
 * go over it; where each call does, few calls; where that is so of a node's wire, no calls there.
 */
static void stages_follow_the_wires(void **state)
{
#define LINKS(local, local_ns, cross, cross_ns)                                                    \
    {                                                                                              \
        .link_bytes_per_s = {[DH_ENGINE_LOCAL] = local, [DH_ENGINE_CROSS] = cross},                \
        .link_latency_ns = {                                                                       \
            [DH_ENGINE_LOCAL] = local_ns,                                                          \
            [DH_ENGINE_CROSS] = cross_ns                                                           \
        }                                                                                          \
    }
    static const dh_cost_model slow = LINKS(1e11, 1, 1e8, 1), late = LINKS(1e11, 1e4, 1e11, 1e5),
                               apart = LINKS(1e8, 1e6, 1e11, 1);
    per_node = 2;
    assert_settles("two-stage(auto)+sequential", &slow, 4, "two-stage", true);
    assert_settles("two-stage(auto)+sequential", &late, 4, "two-stage(order=wide)", true);
    assert_settles("two-stage(auto)+sequential", &apart, 4, "two-stage(order=whole)", true);
    /* no group has stages: two ranks on two nodes */
    per_node = 1;
    assert_settles("two-stage(auto)+sequential", &slow, 2, "two-stage(order=auto)", false);
    per_node = 0;
}

/* Samples and columns are cut where the wire takes long, and left whole where each call does, or
 * where there is one sample. */
static void dominoes_follow_the_wire(void **state)
{
    static const dh_cost_model slow = LINK(1e8, 1), slow_to_start = LINK(1e11, 1e7),
                               fast_memory = {.flops_per_s = 1e10,
                                              .bytes_per_s = 1e13,
                                              .link_bytes_per_s = {[DH_ENGINE_LOCAL] = 1e8}};
    micro_batch = 4;
    assert_settles("domino(auto)+list", &slow, 2, "domino(parts=4)", true);
    assert_settles("domino(auto)+list", &slow_to_start, 2, "domino(parts=1)", true);
    assert_settles("domino(auto, auto)+list", &slow_to_start, 2, "domino(parts=1)", true);
    /* nothing is summed over one rank */
    assert_settles("domino(auto, auto)+list", &slow, 1, "domino(parts=auto, columns=auto)", false);
    /* columns are copied apart and together: they pay where memory is fast */
    micro_batch = 1;
    assert_settles("domino(auto, auto)+list", &slow, 2, "domino(parts=1)", true);
    assert_settles("domino(auto, auto)+list", &fast_memory, 2, "domino(parts=1, columns=2)", true);
    assert_settles("domino(auto, 2)+list", &fast_memory, 2, "domino(parts=1, columns=2)", true);
    micro_batch = 0;
}

/* The choice is the shortest of those that are said. */
static void the_choice_is_the_shortest(void **state)
{
    static const dh_cost_model models[] = {LINK(1e9, 1e6), LINK(1e8, 1), LINK(1e9, 1e3),
                                           LINK(1e9, 1e4), LINK(1e10, 1e3)};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(models); i++) {
        dh_arena *arena = dh_arena_create();
        setup s = small(read_strategy(arena, "flux"));
        mesh_programs *m = prepare(&s);
        const char *why;
        m->spec.recipe.costs = dh_costs_estimated(arena, &models[i]);
        assert_ok(&ctx, dh_recipe_settle(&ctx, arena, &m->spec.recipe, &why));
        double least = INFINITY;
        int best = 0;
        static const char first[] = "; parts";
        for (const char *at = strstr(why, first) + strlen(first) - 1; at;
             at = strchr(at + 1, ',')) {
            int parts;
            double us;
            assert_int_equal(sscanf(at + 1, " %d: %lf us", &parts, &us), 2);
            if (us >= least) continue;
            least = us;
            best = parts;
        }
        char want[32];
        snprintf(want, sizeof want, "parts=%d", best);
        if (best == 2) snprintf(want, sizeof want, "(scatter"); /* the default is not printed */
        char *passes = passes_of(&m->spec.recipe);
        if (!strstr(passes, want)) fail_msg("%s is not the shortest: %s", passes, why);
        free(passes);
        destroy(m);
        dh_arena_destroy(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_follow_the_wire),     cmocka_unit_test(what_is_said_stays),
        cmocka_unit_test(stages_follow_the_wires),    cmocka_unit_test(dominoes_follow_the_wire),
        cmocka_unit_test(the_choice_is_the_shortest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
