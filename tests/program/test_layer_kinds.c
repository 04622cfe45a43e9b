/* Models with layers of two kinds, as programs of whole meshes: every layer has the graph of its
 * kind and the parameters of that, all ranks verify together, sums of routers begin to travel where
 * the first router is, and stages take what their layers do. */
#include "meshes.h"
#include "program/stage_costs.h"
#include "strategy/strategy.h"

/* Of 4 layers, or one a stage. */
typedef struct kinds_case {
    const char *preset, *strategy, *schedule;
    int64_t tp, pp, dp, ep, zero;
    int64_t dense_first, moe_every, softmax_every, window_every;
} kinds_case;

static dh_model model_of(const kinds_case *c, dh_model m)
{
    m.n_layers = DH_MAX(m.n_layers, 4);
    m.dense_first = c->dense_first;
    m.moe_every = c->moe_every;
    if (m.dense_first || m.moe_every) m.dense_width = 96;
    m.softmax_every = c->softmax_every;
    if (m.softmax_every) m.attention = DH_ATTENTION_LINEAR;
    m.window_every = c->window_every;
    if (m.window_every) m.window = 8;
    return m;
}

static mesh_programs *programs_of(const kinds_case *c)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = {.preset = c->preset,
               .schedule = c->schedule,
               .tp = c->tp,
               .pp = c->pp,
               .dp = c->dp,
               .ep = c->ep,
               .zero = c->zero,
               .n_micro = 4,
               .seq = 32,
               .dtype = DH_F32};
    assert_ok(&ctx, dh_strategy_find(&ctx, c->strategy, &s.strategy));
    mesh_programs *m = prepare(&s);
    m->spec.recipe.model = model_of(c, m->spec.recipe.model);
    return build_all(m);
}

static bool has_op(const dh_graph *g, dh_op_type type)
{
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == type) return true;
    return false;
}

/* What is apart in a layer's graph and in its parameters. */
static void check_layer(const dh_program *p, const dh_block *block, const dh_model *whole)
{
    const dh_graph *g = p->graphs.at[block->graph];
    const dh_model own = dh_model_of_layer(whole, block->layer);
    assert_int_equal(g->dims.window, dh_model_window(whole, block->layer));
    assert_int_equal(has_op(g, DH_OP_ROUTER), own.n_experts > 0);
    assert_int_equal(has_op(g, DH_OP_LINEAR_ATTN), own.attention == DH_ATTENTION_LINEAR);
    assert_int_equal(has_op(g, DH_OP_ATTN), own.attention == DH_ATTENTION_SOFTMAX);
    assert_int_equal(block->params[DH_PARAM_ROUTER_W] != DH_NONE, own.n_experts > 0);
    const dh_param *fc1 = &p->params.at[block->params[DH_PARAM_FC1_W]];
    assert_int_equal(fc1->kind, own.n_experts > 0 ? DH_BLOCK_EXPERTS : DH_BLOCK_LAYER);
    assert_int_equal(fc1->layer, block->layer);
}

static void layers_have_the_graphs_of_their_kinds(void **state)
{
    static const kinds_case cases[] = {
        {"deepseek-tiny", "sequential", "1f1b", 2, 2, 2, 1, 0, 1, 0, 0, 0},
        {"deepseek-tiny", "sequential", "1f1b", 1, 2, 4, 2, 1, 3, 0, 0, 0},
        {"deepseek-tiny", "sequential", "1f1b", 1, 1, 4, 2, 3, 2, 0, 0, 0},
        {"deepseek-tiny", "list", "1f1b", 2, 1, 2, 2, 0, 1, 0, 0, 0},
        {"mixtral-tiny", "list", "1f1b", 2, 1, 2, 2, 0, 0, 2, 0, 0},
        {"mixtral-tiny", "dualpipe", "1f1b", 1, 1, 2, 2, 1, 1, 0, 0, 0},
        {"llama-tiny", "sequential", "zb-h1", 2, 2, 2, 1, 2, 0, 0, 3, 0},
        {"llama-tiny", "list", "1f1b", 2, 1, 2, 1, 3, 0, 0, 0, 2},
        {"llama-tiny", "dhelix-paper", "1f1b", 4, 1, 1, 1, 0, 0, 0, 2, 0},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        mesh_programs *m = programs_of(&cases[i]);
        const dh_model *model = &m->spec.recipe.model;
        int64_t n_layers = 0;
        assert_ok(&ctx, verify(&ctx, m));
        for (size_t r = 0; r < m->n; r++) {
            const dh_program *p = m->at[r];
            bool seen[DH_N_LAYER_KINDS] = {false};
            size_t n_graphs = 0;
            for (uint32_t b = 0; b < p->blocks.n; b++) {
                const dh_block *block = &p->blocks.at[b];
                if (p->graphs.at[block->graph]->kind != DH_BLOCK_LAYER) continue;
                check_layer(p, block, model);
                seen[dh_model_layer_kind(model, block->layer)] = true;
                n_layers++;
            }
            for (size_t g = 0; g < p->graphs.n; g++)
                n_graphs += p->graphs.at[g]->kind == DH_BLOCK_LAYER;
            for (int k = 0; k < DH_N_LAYER_KINDS; k++) n_graphs -= seen[k];
            assert_int_equal(n_graphs, 0); /* one for each kind that is there */
        }
        assert_int_equal(n_layers * m->spec.recipe.mesh.pp, model->n_layers * (int64_t)m->n);
        destroy(m);
    }
}

/* Transfers of a step behind a stage and ahead of the next: of activations, of sums of routers. */
static void sums_travel_behind_the_first_router(void **state)
{
    static const kinds_case c = {"deepseek-tiny", "sequential", "1f1b", 1, 4, 1, 1, 0, 2, 0, 0, 0};
    mesh_programs *m = programs_of(&c);
    int n_carried[4] = {0}, n_links[4] = {0};
    for (size_t r = 0; r < m->n; r++) {
        const dh_program *p = m->at[r];
        for (uint32_t b = 0; b < p->blocks.n; b++) {
            const dh_graph *g = p->graphs.at[p->blocks.at[b].graph];
            if (g->kind != DH_BLOCK_LINK) continue;
            n_links[r]++;
            n_carried[r] += g->ops.n > 1;
        }
    }
    /* A stage in the middle has two neighbours, of either direction; layers 2 and 3 have routers.
     */
    const int links[4] = {2, 4, 4, 2}, carried[4] = {0, 0, 2, 2};
    for (int r = 0; r < 4; r++) {
        assert_int_equal(n_links[r], links[r]);
        assert_int_equal(n_carried[r], carried[r]);
    }
    destroy(m);
}

static dh_stage_costs costs_of(dh_arena *arena, const mesh_programs *m, dh_model model)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_recipe recipe = m->spec.recipe;
    dh_stage_costs found;
    recipe.model = model;
    recipe.costs = &dh_costs_default;
    assert_ok(&ctx, dh_stage_costs_find(&ctx, arena, &recipe, 2, &found));
    return found;
}

/* Two stages of two layers, of which the first, or every second, is apart: each layer takes what it
 * does in a model of layers like it. */
static void stages_take_what_their_layers_do(void **state)
{
    static const kinds_case cases[] = {
        {"deepseek-tiny", "sequential", "1f1b", 2, 2, 1, 1, 0, 1, 0, 0, 0},
        {"mixtral-tiny", "sequential", "1f1b", 2, 2, 1, 1, 0, 0, 2, 0, 0},
        {"llama-tiny", "sequential", "1f1b", 2, 2, 1, 1, 0, 0, 0, 2, 0},
        {"llama-tiny", "sequential", "1f1b", 2, 2, 1, 1, 0, 0, 0, 0, 2},
        {"llama-tiny", "sequential", "1f1b", 1, 2, 1, 1, 0, 0, 0, 0, 3},
    };
    dh_arena *arena = dh_arena_create();
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        mesh_programs *m = programs_of(&cases[i]);
        const dh_model model = m->spec.recipe.model;
        const dh_stage_costs both = costs_of(arena, m, model);
        /* The head adds up the routers' loss, which a model without experts has none of. */
        for (int32_t v = 0; v < (model.n_experts > 0 ? 1 : 2); v++) {
            int64_t f_ns = 0, i_ns = 0, w_ns = 0;
            for (int64_t layer = 2 * v; layer < 2 * v + 2; layer++) {
                const dh_model alike = dh_model_of_layer(&model, layer);
                const dh_stage_costs one = costs_of(arena, m, alike);
                f_ns += one.costs.stage[v].f_ns;
                i_ns += one.costs.stage[v].i_ns;
                w_ns += one.costs.stage[v].w_ns;
            }
            assert_int_equal(2 * both.costs.stage[v].f_ns, f_ns);
            assert_int_equal(2 * both.costs.stage[v].i_ns, i_ns);
            assert_int_equal(2 * both.costs.stage[v].w_ns, w_ns);
        }
        destroy(m);
    }
    dh_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_the_graphs_of_their_kinds),
        cmocka_unit_test(sums_travel_behind_the_first_router),
        cmocka_unit_test(stages_take_what_their_layers_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
