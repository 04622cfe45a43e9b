/* Programs of whole meshes: one rank for many is the same as every rank by itself, stragglers
 * included; schedules have the bubbles they are known for; nothing runs too early. */
#include "dh_test.h"

#include "program/recipe.h"
#include "sim/simulate.h"

/* ---- jobs ----------------------------------------------------------------------------------- */

typedef struct setup {
    const char *preset, *schedule, *strategy;
    int64_t tp, cp, pp, dp, per_node; /* per_node 0: one node */
    int64_t n_micro, vocab;           /* vocab 0: the preset's */
    bool zero1;
    dh_recompute_kind recompute;
    int64_t ep; /* 0: 1 */
} setup;

static int64_t n_kv_heads; /* of every model; 0: its own, or one for each tp rank */

typedef struct job {
    dh_schedule *schedule;
    dh_recipe recipe;
} job;

static size_t scratch(const dh_graph *graph, const dh_op *op)
{
    (void)graph;
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 1000 : 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = scratch};

static bool linear, linear_ring; /* attention of the jobs made next; how states travel */
static bool hybrid;              /* every second layer of them has softmax */

static void job_init(job *j, const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    memset(j, 0, sizeof *j);
    assert_ok(&ctx, dh_model_from_preset(&ctx, s->preset, &model));
    const dh_schedule_row *row;
    const dh_schedule_spec wanted = {.n_ranks = (int32_t)s->pp, .n_micro = (int32_t)s->n_micro};
    assert_ok(&ctx, dh_schedule_find(&ctx, s->schedule, &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &wanted, &j->schedule));
    model.n_layers = DH_MAX(model.n_layers, j->schedule->n_stages);
    model.n_kv_heads = n_kv_heads ? n_kv_heads : DH_MAX(model.n_kv_heads, s->tp);
    if (s->vocab) model.vocab = s->vocab;
    if (linear) model.attention = DH_ATTENTION_LINEAR;
    if (hybrid) model.softmax_every = 2;
    j->recipe = (dh_recipe){
        .model = model,
        .dtype = DH_BF16,
        .schedule = j->schedule,
        .recompute = s->recompute,
        .sharing = dh_sharing_of(s->zero1),
        .micro_batch = 1,
        .seq = 32 * s->cp,
        .n_micro = s->n_micro,
        .global_tokens = 64,
        .moe_capacity = 2,
        .linear_ring = linear_ring,
        .backend = &backend,
    };
    if (s->strategy) assert_ok(&ctx, dh_strategy_find(&ctx, s->strategy, &j->recipe.strategy));
    assert_ok(&ctx, dh_mesh_init(&ctx, s->dp, s->tp, s->pp, s->cp, DH_MAX(s->ep, 1), 0, s->per_node,
                                 &j->recipe.mesh));
    j->recipe.mesh.kv_ranks = dh_mesh_kv_ranks(&model, s->tp);
}

static void job_fini(job *j)
{
    dh_schedule_destroy(j->schedule);
}

static void print_setup(const setup *s)
{
    print_message("%s, %s, %s: tp %lld cp %lld pp %lld dp %lld, %lld a node%s\n", s->preset,
                  s->schedule, s->strategy ? s->strategy : "sequential", (long long)s->tp,
                  (long long)s->cp, (long long)s->pp, (long long)s->dp, (long long)s->per_node,
                  s->zero1 ? ", zero1" : "");
}

/* ---- costs ----------------------------------------------------------------------------------- */

/* Odd times, and rates by operator that no two pairs share. */
static dh_op_time odd_time(const void *self, const dh_cost_op *op)
{
    (void)self;
    const double bytes = dh_op_bytes(op->graph, op->op), flops = dh_op_flops(op->graph, op->op);
    return (dh_op_time){7 + .013 * bytes + .0011 * flops, DH_PAIR_MODELLED};
}

static double odd_rate(dh_op_type a, dh_op_type b)
{
    const uint64_t mixed = dh_mix64((uint64_t)a * 64 + (uint64_t)b);
    return .3 + .7 * (double)(mixed % 1000) / 1000;
}

static dh_op_rates odd_rates(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self;
    return (dh_op_rates){odd_rate(a->op->type, b->op->type), odd_rate(b->op->type, a->op->type),
                         DH_PAIR_MODELLED};
}

/* Attention of a ring that sees all queries takes longer than one that sees all keys. */
static dh_op_time shaped_time(const void *self, const dh_cost_op *op)
{
    dh_op_time time = odd_time(self, op);
    if (op->op->type == DH_OP_RING_ATTN)
        time.ns += .5 * (double)dh_ring_part_of(&op->graph->dims, op->op->step).n_q;
    return time;
}

static const dh_costs odd = {
    .name = "odd", .solo = odd_time, .beside = odd_rates, .launch_ns = 3, .event_ns = 11};
static const dh_costs shaped = {
    .name = "shaped", .solo = shaped_time, .beside = odd_rates, .launch_ns = 3, .event_ns = 11};

/* ---- one for many -------------------------------------------------------------------------- */

static void assert_same_rank(const dh_sim_rank *one, const dh_sim_rank *full)
{
    assert_int_equal(one->rank, full->rank);
    assert_int_equal(one->program->instrs.n, full->program->instrs.n);
    for (size_t i = 0; i < one->program->instrs.n; i++) {
        char text[256];
        const dh_span *a = &one->spans[i], *b = &full->spans[i];
        if (a->start_ns != b->start_ns || a->end_ns != b->end_ns ||
            one->spans[i].met_ns != full->spans[i].met_ns)
            fail_msg("%s: one for many %lld, %lld, %lld; every rank %lld, %lld, %lld",
                     dh_instr_describe(one->program, (uint32_t)i, text, sizeof text),
                     (long long)a->start_ns, (long long)one->spans[i].met_ns, (long long)a->end_ns,
                     (long long)b->start_ns, (long long)full->spans[i].met_ns,
                     (long long)b->end_ns);
    }
    assert_int_equal(one->memory.peak_bytes, full->memory.peak_bytes);
    assert_memory_equal(&one->times, &full->times, sizeof one->times);
}

/* Returns how many ranks stood for all. */
static size_t compare(const setup *s, const dh_costs *costs, const dh_sim_slow *slow, size_t n_slow)
{
    dh_ctx ctx = DH_CTX_INIT;
    job j;
    dh_sim *one, *full;
    print_setup(s);
    job_init(&j, s);
    const dh_sim_options some = {.collapse = DH_SIM_LIKE, .slow = slow, .n_slow = n_slow};
    const dh_sim_options every = {.collapse = DH_SIM_EVERY, .slow = slow, .n_slow = n_slow};
    assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, costs, &some, &one));
    assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, costs, &every, &full));
    assert_int_equal(full->n_classes, j.recipe.mesh.ranks);
    assert_int_equal(one->step_ns, full->step_ns);
    int64_t n_ranks = 0;
    for (size_t k = 0; k < one->n_classes; k++) {
        n_ranks += one->ranks[k].n_ranks;
        assert_same_rank(&one->ranks[k], &full->ranks[one->ranks[k].rank]);
    }
    assert_int_equal(n_ranks, j.recipe.mesh.ranks);
    assert_true(one->model_flops == full->model_flops);
    if (s->vocab == 0) assert_true(fabs(one->hardware_flops / full->hardware_flops - 1) < 1e-12);
    const size_t n = one->n_classes;
    dh_sim_destroy(one);
    dh_sim_destroy(full);
    job_fini(&j);
    return n;
}

static const setup meshes[] = {
    {"llama-tiny", "1f1b", NULL, 1, 1, 1, 1, 0, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
    {"llama-tiny", "1f1b", NULL, 2, 1, 2, 2, 0, 4, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
    {"llama-tiny", "1f1b", NULL, 2, 1, 2, 2, 2, 4, 0, true, DH_RECOMPUTE_KIND_SELECTIVE, 0},
    {"llama-tiny", "zb-h1", NULL, 4, 1, 2, 1, 4, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 0},
    {"llama-tiny", "dhelix-w", "list", 2, 2, 2, 2, 2, 4, 0, true, DH_RECOMPUTE_KIND_SELECTIVE, 0},
    {"llama-tiny", "dhelix-w", "wavelet+", 2, 2, 2, 1, 4, 4, 0, false, DH_RECOMPUTE_KIND_FULL, 0},
    {"gpt2-tiny", "interleaved-1f1b", NULL, 2, 1, 2, 2, 4, 4, 517, true, DH_RECOMPUTE_KIND_NONE, 0},
    {"gpt2-tiny", "gpipe", NULL, 4, 1, 4, 1, 4, 4, 517, false, DH_RECOMPUTE_KIND_NONE, 0},
    {"llama-tiny", "1f1b", NULL, 1, 4, 2, 2, 4, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 0},
    {"mixtral-tiny", "1f1b", NULL, 2, 1, 2, 4, 4, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 2},
    {"mixtral-tiny", "dhelix-w", "list", 1, 2, 2, 4, 2, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 4},
    {"mixtral-tiny", "1f1b", NULL, 1, 1, 1, 4, 2, 2, 0, true, DH_RECOMPUTE_KIND_NONE, 2},
    {"llama-tiny", "wavelet", "list", 2, 1, 2, 2, 2, 6, 0, true, DH_RECOMPUTE_KIND_SELECTIVE, 0},
    {"llama-tiny", "bidirectional", "list", 2, 1, 3, 2, 4, 6, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
    {"mixtral-tiny", "dualpipe", "dualpipe", 1, 1, 4, 2, 2, 7, 0, true, DH_RECOMPUTE_KIND_NONE, 2},
};

/* First ranks stand apart from the others, the last with fewer rows of the vocabulary too. */
static int64_t n_unlike(const setup *s)
{
    const int64_t tp = s->tp == 1 ? 1 : s->vocab && s->tp > 2 ? 3 : 2;
    const int64_t ep = DH_MAX(s->ep, 1), edp = s->dp / ep;
    return s->pp * tp * DH_MIN(ep, 2) * (s->zero1 ? DH_MIN(s->cp, 2) * DH_MIN(edp, 2) : 1);
}

static void one_for_many(void **state)
{
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++)
        assert_int_equal(compare(&meshes[i], &odd, NULL, 0), n_unlike(&meshes[i]));
}

/* Ranks that share a sequence do the same, wherever their share lies. */
static void linear_attention_is_one_for_many(void **state)
{
    static const setup some[] = {
        {"llama-tiny", "1f1b", NULL, 1, 4, 2, 2, 4, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 0},
        {"llama-tiny", "dhelix-w", "list", 2, 2, 2, 2, 2, 4, 0, true, DH_RECOMPUTE_KIND_FULL, 0},
        {"mixtral-tiny", "dhelix-w", "list", 1, 2, 2, 4, 2, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 4},
    };
    linear = true;
    for (int ring = 0; ring < 2; ring++)
        for (size_t i = 0; i < DH_COUNTOF(some); i++) {
            linear_ring = ring;
            assert_int_equal(compare(&some[i], &shaped, NULL, 0), n_unlike(&some[i]));
        }
    linear = linear_ring = false;
}

/* LASP-2H: early and late chunks, rings and states in one model. */
static void hybrids_are_one_for_many(void **state)
{
    static const setup some[] = {
        {"llama-tiny", "1f1b", NULL, 1, 4, 2, 2, 4, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 0},
        {"llama-tiny", "dhelix-w", "list", 2, 2, 2, 2, 2, 4, 0, true, DH_RECOMPUTE_KIND_FULL, 0},
    };
    linear = hybrid = true;
    for (size_t i = 0; i < DH_COUNTOF(some); i++)
        assert_int_equal(compare(&some[i], &odd, NULL, 0), n_unlike(&some[i]));
    linear = hybrid = false;
}

/* A gather of states takes 5, attention inside the share 10, a handing on 5: nothing else takes any
 * time. */
static dh_op_time state_time(const void *self, const dh_cost_op *op)
{
    const dh_op_type type = op->op->type;
    const bool travels =
        op->op->group == DH_GROUP_CP && (type == DH_OP_ALL_GATHER || type == DH_OP_SHIFT);
    const bool attends = type == DH_OP_LINEAR_ATTN || type == DH_OP_LINEAR_ATTN_GRAD;
    return (dh_op_time){attends ? 10 : travels ? 5 : 0, DH_PAIR_MODELLED};
}

static dh_op_rates unhindered(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
}

/* LASP-2's gather hides beside the attention, in hybrids too; of LASP's exchanges the first one. */
static void states_travel_beside_attention(void **state)
{
    static const dh_costs costs = {.name = "states", .solo = state_time, .beside = unhindered};
    const setup s = {"llama-tiny",           "1f1b", NULL, 1, 4, 1, 1, 0, 1, 0, false,
                     DH_RECOMPUTE_KIND_NONE, 0};
    const int64_t n_layers = 2;
    linear = true;
    for (int way = 0; way < 3; way++) {
        const int64_t n_linear = way == 2 ? n_layers / 2 : n_layers, attention = 2 * 10 * n_linear;
        dh_ctx ctx = DH_CTX_INIT;
        job j;
        dh_sim *sim;
        linear_ring = way == 1;
        hybrid = way == 2;
        job_init(&j, &s);
        assert_int_equal(j.recipe.model.n_layers, n_layers);
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &costs, &(dh_sim_options){0}, &sim));
        assert_int_equal(sim->step_ns, attention + (linear_ring ? 2 * 2 * 5 * n_layers : 0));
        dh_sim_destroy(sim);
        job_fini(&j);
    }
    linear = linear_ring = hybrid = false;
}

/* Stages of groups: all ranks of an axis that nodes cut stand for each other, or none do. */
static void one_for_many_in_stages(void **state)
{
    (void)state;
    static const setup list[] = {
        {"llama-tiny", "1f1b", "centauri", 4, 1, 1, 2, 2, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
        {"llama-tiny", "1f1b", "centauri", 2, 1, 2, 8, 4, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
        {"llama-tiny", "1f1b", "centauri", 1, 2, 1, 8, 8, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
        {"mixtral-tiny", "1f1b", "centauri", 1, 1, 2, 8, 2, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 4},
        {"mixtral-tiny", "1f1b", "centauri", 2, 1, 1, 8, 4, 2, 0, false, DH_RECOMPUTE_KIND_NONE, 4},
    };
    for (size_t i = 0; i < DH_COUNTOF(list); i++) {
        const int64_t n_ranks = list[i].tp * list[i].cp * list[i].pp * list[i].dp;
        const dh_sim_slow slow = {n_ranks - 2, {1.7, 1, 1}};
        assert_true((int64_t)compare(&list[i], &odd, NULL, 0) < n_ranks);
        compare(&list[i], &odd, &slow, 1);
    }
}

/* Ranks that share heads of keys and values each stand for themselves. */
static void shared_heads(void **state)
{
    static const setup rows[] = {
        {"llama-tiny", "1f1b", NULL, 4, 1, 2, 2, 2, 4, 0, true, DH_RECOMPUTE_KIND_NONE, 0},
        {"llama-tiny", "dhelix-w", "list", 4, 1, 2, 1, 4, 4, 0, false, DH_RECOMPUTE_KIND_NONE, 0},
    };
    (void)state;
    for (n_kv_heads = 1; n_kv_heads <= 2; n_kv_heads++)
        for (size_t i = 0; i < DH_COUNTOF(rows); i++)
            assert_int_equal(compare(&rows[i], &odd, NULL, 0),
                             rows[i].pp * rows[i].tp * (rows[i].zero1 ? rows[i].dp : 1));
    n_kv_heads = 0;
}

/* All work counts but a few vectors' squares: the tolerance is what these could take. */
static void one_a_stage(void **state)
{
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        job j;
        dh_sim *one, *full;
        job_init(&j, &meshes[i]);
        const dh_sim_options stages = {.collapse = DH_SIM_STAGES};
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &stages, &one));
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &(dh_sim_options){0}, &full));
        assert_int_equal(one->n_classes, (meshes[i].vocab ? 2 : 1) * meshes[i].pp);
        assert_true(llabs(one->step_ns - full->step_ns) < full->step_ns / 1000);
        dh_sim_destroy(one);
        dh_sim_destroy(full);
        job_fini(&j);
    }
}

static void costs_that_differ_keep_ranks_apart(void **state)
{
    (void)state;
    const setup s = {"llama-tiny",           "1f1b", NULL, 2, 4, 2, 2, 8, 4, 0, true,
                     DH_RECOMPUTE_KIND_NONE, 0};
    assert_int_equal(compare(&s, &odd, NULL, 0), n_unlike(&s));
    assert_int_equal(compare(&s, &shaped, NULL, 0), 2 * n_unlike(&s));
}

/* Parameters gathered at a step's beginning, as shards, inside nodes: one rank for all alike, and
 * every rank with its own partners, end at the same time. */
static void parameters_that_are_shared_out(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {"llama-tiny",           "1f1b", NULL, 2, 1, 2, 8, 8, 4, 0, true,
                     DH_RECOMPUTE_KIND_NONE, 0};
    for (int variant = 0; variant < 5; variant++) {
        job j;
        dh_sim *one, *every;
        job_init(&j, &s);
        j.recipe.sharing = dh_sharing_of(variant < 2 ? 1 + variant : 3);
        j.recipe.sharing.gather = variant < 2 ? DH_GATHER_FORWARD : DH_GATHER_OPTIMIZER;
        j.recipe.sharing.reshard = variant < 2 ? DH_GATHERED_NOTHING : (dh_gathered)(variant - 2);
        j.recipe.sharing.prefetch = 1;
        const dh_sim_options like = {.collapse = DH_SIM_LIKE}, each = {.collapse = DH_SIM_EVERY};
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &like, &one));
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &each, &every));
        assert_int_equal(every->n_classes, every->n_ranks);
        assert_true(one->n_classes < every->n_classes);
        assert_int_equal(one->step_ns, every->step_ns);
        dh_sim_destroy(one);
        dh_sim_destroy(every);
        job_fini(&j);
    }
}

/* Nodes of three ranks hold some groups of two and cut others. */
static void nodes_unlike(void **state)
{
    (void)state;
    const setup s = {"llama-tiny",           "1f1b", NULL, 2, 1, 1, 3, 3, 2, 0, false,
                     DH_RECOMPUTE_KIND_NONE, 0};
    assert_int_equal(compare(&s, &odd, NULL, 0), 6);
}

static void stragglers(void **state)
{
    (void)state;
    const setup s = {"llama-tiny",
                     "dhelix-w",
                     "list",
                     4,
                     2,
                     2,
                     4,
                     4,
                     4,
                     0,
                     true,
                     DH_RECOMPUTE_KIND_SELECTIVE,
                     0};
    const dh_sim_slow slow[] = {{.rank = 3, .factor = {1.3}},
                                {.rank = 41, .factor = {1, 1.5, 2}},
                                {.rank = 3, .factor = {1.1}}};
    /* tp: 0, 3, others; cp: 0, 1; dp: 0, others */
    assert_int_equal(compare(&s, &odd, slow, 1), s.pp * 3 * 2 * 2);
    compare(&s, &odd, slow, 3);
}

static void a_straggler_costs_what_it_should(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {"llama-tiny",           "1f1b", NULL, 2, 1, 1, 4, 0, 2, 0, false,
                     DH_RECOMPUTE_KIND_NONE, 0};
    const dh_sim_slow slow = {.rank = 5, .factor = {10, 1, 1}};
    job j;
    dh_sim *fast, *late;
    job_init(&j, &s);
    assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &(dh_sim_options){0}, &fast));
    assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd,
                                &(dh_sim_options){.slow = &slow, .n_slow = 1}, &late));
    const dh_timeline *t = &fast->ranks[0].times;
    assert_true(late->step_ns > 9 * t->busy_ns[DH_ENGINE_COMPUTE]);
    assert_true(late->step_ns > 5 * fast->step_ns);
    dh_sim_destroy(fast);
    dh_sim_destroy(late);
    job_fini(&j);
}

/* ---- known bubbles --------------------------------------------------------------------------- */

/* A layer's forward takes 10, its input gradients 10, its weight gradients 10, done before the
 * last input gradient is sent; nothing else takes any time. */
static dh_op_time unit_time(const void *self, const dh_cost_op *op)
{
    (void)self;
    const dh_op_type type = op->op->type;
    const dh_graph *g = op->graph;
    const bool fc2_wgrad = type == DH_OP_LINEAR_WGRAD && g->kind == DH_BLOCK_LAYER &&
                           g->tensors.at[op->op->in[1]].shape[1] == g->dims.ffn_width;
    const bool counts = type == DH_OP_ATTN || type == DH_OP_ATTN_GRAD || fc2_wgrad;
    return (dh_op_time){counts ? 10 : 0, DH_PAIR_MODELLED};
}

static dh_op_rates full_speed(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self, (void)a, (void)b;
    return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
}
static const dh_costs unit = {.name = "unit", .solo = unit_time, .beside = full_speed};

/* Bubbles of p stages of one layer each and m micro-batches, f = i = w: of 1F1B and GPipe
 * (p-1)(f+i+w), of ZB-H1 (p-1)(f+i-w) (Zero Bubble, arXiv 2401.10241, table 2). */
static void known_bubbles(void **state)
{
    (void)state;
    static const struct {
        const char *schedule;
        int64_t p, m, bubble;
    } rows[] = {{"gpipe", 2, 4, 30}, {"1f1b", 2, 4, 30},  {"1f1b", 4, 4, 90},
                {"1f1b", 4, 9, 90},  {"zb-h1", 2, 4, 10}, {"zb-h1", 4, 12, 30}};
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const setup s = {
            "llama-tiny", rows[i].schedule,       NULL, 1, 1, rows[i].p, 1, 1, rows[i].m, 0,
            false,        DH_RECOMPUTE_KIND_NONE, 0};
        job j;
        dh_sim *sim;
        job_init(&j, &s);
        j.recipe.model.n_layers = rows[i].p;
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &unit, &(dh_sim_options){0}, &sim));
        print_message("%s, %lld stages: step %lld, bubble of the first stage %lld\n",
                      rows[i].schedule, (long long)rows[i].p, (long long)sim->step_ns,
                      (long long)sim->ranks[0].times.waits_ns[DH_WAITS_STAGES]);
        assert_int_equal(sim->step_ns, 30 * rows[i].m + rows[i].bubble);
        for (size_t k = 0; k < sim->n_classes; k++)
            assert_int_equal(sim->ranks[k].times.waits_ns[DH_WAITS_STAGES], rows[i].bubble);
        dh_sim_destroy(sim);
        job_fini(&j);
    }
}

/* ---- the end of a step ---------------------------------------------------------------------- */

enum { NORM_NS = 900, HOP_NS = 40 };

/* Each weight takes its time to step; norms take theirs, sums of squares and amendments none. */
static dh_op_time end_time(const void *self, const dh_cost_op *op)
{
    (void)self;
    double ns = 100;
    if (op->op->phase == DH_PHASE_OPT) ns = 0;
    if (op->op->type == DH_OP_ADAMW)
        ns = floor((double)dh_tensor_bytes(&op->graph->tensors.at[op->op->in[0]]) / 256);
    if (op->op->phase == DH_PHASE_OPT && op->op->type == DH_OP_ALL_REDUCE) ns = NORM_NS;
    if (op->op->phase == DH_PHASE_OPT && op->op->type == DH_OP_RECV) ns = HOP_NS;
    return (dh_op_time){ns, DH_PAIR_MODELLED};
}

static dh_op_rates apart(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self, (void)a, (void)b;
    return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
}

static const dh_costs end_costs = {.name = "end", .solo = end_time, .beside = apart};

typedef struct ending {
    int64_t gradients_ns, steps_ns; /* when they are complete; what they take */
} ending;

static ending ending_of(const dh_sim_rank *r)
{
    ending e = {0, 0};
    for (uint32_t i = 0; i < r->program->instrs.n; i++) {
        const dh_op *op = dh_instr_op(r->program, &r->program->instrs.at[i]);
        if (op->phase != DH_PHASE_OPT) e.gradients_ns = DH_MAX(e.gradients_ns, r->spans[i].end_ns);
        if (op->type == DH_OP_ADAMW) e.steps_ns += r->spans[i].end_ns - r->spans[i].met_ns;
    }
    return e;
}

/* At once: the last gradients, their norm, the longest of all steps. Ahead of the norm: each
 * stage's gradients and its own step, or the norm of the last ones on its way back. */
static void stepping_ahead_ends_when_it_should(void **state)
{
    (void)state;
    static const char *const schedules[] = {"1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v"};
    for (size_t i = 0; i < DH_COUNTOF(schedules); i++) {
        const setup s = {"llama-tiny", schedules[i],           NULL, 1, 1, 4, 1, 0, 8, 0,
                         false,        DH_RECOMPUTE_KIND_NONE, 0};
        dh_ctx ctx = DH_CTX_INIT;
        dh_sim *sims[2];
        job j;
        job_init(&j, &s);
        j.recipe.costs = &end_costs;
        for (int ahead = 0; ahead < 2; ahead++) {
            j.recipe.post_validation = ahead;
            assert_ok(&ctx,
                      dh_simulate(&ctx, &j.recipe, &end_costs, &(dh_sim_options){0}, &sims[ahead]));
        }
        int64_t last = 0, longest = 0, own = 0;
        for (size_t k = 0; k < sims[0]->n_classes; k++) {
            const ending e = ending_of(&sims[0]->ranks[k]);
            last = DH_MAX(last, e.gradients_ns);
            longest = DH_MAX(longest, e.steps_ns);
            own = DH_MAX(own, e.gradients_ns + e.steps_ns);
        }
        assert_int_equal(sims[0]->n_classes, 4);
        assert_int_equal(sims[0]->step_ns, last + NORM_NS + longest);
        /* Over three hops at most the sum so far comes after its stage's gradients, where all end
         * at once; over as many the sum of all goes back. */
        assert_in_range(sims[1]->step_ns, DH_MAX(own, last),
                        DH_MAX(own + 3 * HOP_NS, last + 6 * HOP_NS));
        printf("  %s: %lld ns, ahead of the norm %lld\n", schedules[i], (long long)sims[0]->step_ns,
               (long long)sims[1]->step_ns);
        assert_true(sims[1]->step_ns < sims[0]->step_ns);
        for (int k = 0; k < 2; k++) dh_sim_destroy(sims[k]);
        job_fini(&j);
    }
}

/* ---- what holds of every simulation -------------------------------------------------------- */

static void check_order(const dh_sim_rank *r, const dh_costs *costs)
{
    const dh_program *p = r->program;
    uint32_t last[DH_N_STREAM] = {0}; /* plus one */
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        const dh_cost_op at = {dh_instr_graph(p, instr), op, &p->mesh, p->rank};
        const uint32_t before = last[instr->stream];
        if (before)
            assert_true(r->spans[i].start_ns >=
                        r->spans[before - 1].end_ns + (int64_t)costs->launch_ns);
        last[instr->stream] = i + 1;
        for (uint32_t w = 0; w < instr->n_waits; w++)
            assert_true(r->spans[i].start_ns >=
                        dh_wait_end_ns(p, r->spans, p->waits.at[instr->wait0 + w]) +
                            (int64_t)costs->event_ns);
        assert_true(r->spans[i].met_ns >= r->spans[i].start_ns);
        if (dh_op_info_of(op->type)->resource != DH_RES_COMM)
            assert_int_equal(r->spans[i].met_ns, r->spans[i].start_ns);
        /* No rate is above 1. */
        assert_true((double)(r->spans[i].end_ns - r->spans[i].met_ns) >=
                    floor(costs->solo(costs->self, &at).ns));
    }
}

/* The k-th calls of two ranks on a group they share are one. */
static void check_calls(const dh_sim *sim, const dh_sim_rank *a, const dh_sim_rank *b,
                        dh_group_kind group)
{
    const dh_mesh *m = &a->program->mesh;
    if (dh_mesh_group_id(m, group, a->rank) != dh_mesh_group_id(m, group, b->rank)) return;
    size_t i = 0, j = 0;
    for (;; i++, j++) {
        while (i < a->program->instrs.n &&
               dh_instr_op(a->program, &a->program->instrs.at[i])->group != (int32_t)group)
            i++;
        while (j < b->program->instrs.n &&
               dh_instr_op(b->program, &b->program->instrs.at[j])->group != (int32_t)group)
            j++;
        if (i == a->program->instrs.n || j == b->program->instrs.n) break;
        assert_int_equal(a->spans[i].met_ns, b->spans[j].met_ns);
        assert_int_equal(a->spans[i].end_ns, b->spans[j].end_ns);
    }
    assert_true(i == a->program->instrs.n && j == b->program->instrs.n);
    (void)sim;
}

static void check_memory(const dh_sim_rank *r)
{
    const dh_sim_memory *m = &r->memory;
    uint64_t most = 0, persistent = 0;
    for (size_t i = 0; i < m->n_transient; i++) {
        most = DH_MAX(most,
                      (uint64_t)(m->transient[i].activation_bytes + m->transient[i].scratch_bytes));
        if (i) assert_true(m->transient[i].at_ns > m->transient[i - 1].at_ns);
    }
    for (int k = 0; k < DH_BUF_ACT; k++) persistent += m->persistent[k];
    assert_int_equal(m->peak_bytes, r->program->persistent_bytes + most);
    assert_int_equal(m->peak_activations + m->peak_scratch, most);
    assert_true(persistent <= r->program->persistent_bytes);
    assert_int_equal(m->transient[m->n_transient - 1].activation_bytes, 0);
    assert_true(m->peak_bytes <= m->slab_bytes); /* what is alive at once has its own place */
}

static void rules_hold(void **state)
{
    (void)state;
    static const dh_group_kind groups[] = {DH_GROUP_TP, DH_GROUP_CP, DH_GROUP_DP_CP, DH_GROUP_TP_PP,
                                           DH_GROUP_WORLD};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        job j;
        dh_sim *sim;
        job_init(&j, &meshes[i]);
        const dh_sim_options options = {.collapse = DH_SIM_EVERY, .placed = true};
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &options, &sim));
        for (size_t a = 0; a < sim->n_classes; a++) {
            check_order(&sim->ranks[a], &odd);
            check_memory(&sim->ranks[a]);
            for (size_t g = 0; g < DH_COUNTOF(groups); g++)
                check_calls(sim, &sim->ranks[0], &sim->ranks[a], groups[g]);
        }
        dh_sim_destroy(sim);
        job_fini(&j);
    }
}

static void same_input_same_bytes(void **state)
{
    (void)state;
    const setup *s = &meshes[4];
    dh_sim *sims[2];
    for (int k = 0; k < 2; k++) {
        dh_ctx ctx = DH_CTX_INIT;
        job j;
        job_init(&j, s);
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &(dh_sim_options){0}, &sims[k]));
        job_fini(&j); /* the result does not need it */
    }
    for (size_t r = 0; r < sims[0]->n_classes; r++) {
        const dh_sim_rank *a = &sims[0]->ranks[r], *b = &sims[1]->ranks[r];
        const size_t n = a->program->instrs.n;
        assert_memory_equal(a->spans, b->spans, n * sizeof *a->spans);
        assert_int_equal(a->memory.n_transient, b->memory.n_transient);
        assert_memory_equal(a->memory.transient, b->memory.transient,
                            a->memory.n_transient * sizeof *a->memory.transient);
    }
    for (int k = 0; k < 2; k++) dh_sim_destroy(sims[k]);
}

typedef struct told {
    uint64_t n_built, n_executed, n_last;
    bool in_order;
} told;

static void note_watch(void *user, bool executes, uint64_t done, uint64_t n)
{
    told *t = user;
    t->in_order &= done <= n && (executes ? t->n_built > 0 && done >= t->n_executed
                                          : t->n_last == 0 && done == t->n_built);
    if (executes)
        t->n_executed = done, t->n_last = n;
    else
        t->n_built++;
}

/* A watch sees programs built, then instructions executed up to the last, of all ranks simulated. */
static void a_watch_is_told(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    job j;
    told seen = {.in_order = true};
    const dh_sim_watch watch = {note_watch, &seen};
    dh_sim *sim;
    job_init(&j, &meshes[4]);
    assert_ok(&ctx,
              dh_simulate(&ctx, &j.recipe, &odd,
                          &(dh_sim_options){.watch = &watch, .collapse = DH_SIM_EVERY}, &sim));
    assert_true(seen.in_order);
    assert_int_equal(seen.n_built, sim->n_classes);
    assert_int_equal(seen.n_executed, sim->n_instrs);
    assert_int_equal(seen.n_last, sim->n_instrs);
    dh_sim_destroy(sim);
    job_fini(&j);
}

static void counts_flops(void **state)
{
    (void)state;
    /* Without recomputation the hardware does what the model asks for, but for attention,
     * whose backward makes its scores again: 5 GEMMs instead of 4, and its diagonal. */
    dh_ctx ctx = DH_CTX_INIT;
    setup s = {"llama-tiny", "1f1b", NULL, 2, 1, 2, 2, 2, 4, 0, false, DH_RECOMPUTE_KIND_NONE, 0};
    double ratio[2];
    for (int k = 0; k < 2; k++) {
        job j;
        dh_sim *sim;
        s.recompute = k ? DH_RECOMPUTE_KIND_FULL : DH_RECOMPUTE_KIND_NONE;
        job_init(&j, &s);
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &odd, &(dh_sim_options){0}, &sim));
        assert_int_equal(sim->tokens, 32 * 4 * 2);
        assert_true(sim->model_flops == dh_model_flops_per_token(&j.recipe.model, 32) * 32 * 4 * 2);
        ratio[k] = sim->hardware_flops / sim->model_flops;
        dh_sim_destroy(sim);
        job_fini(&j);
    }
    print_message("hardware FLOPs over model FLOPs: %.4f, with full recomputation %.4f\n", ratio[0],
                  ratio[1]);
    assert_true(ratio[0] > 1 && ratio[0] < 1.02);
    /* Once more of every layer: QKV, projection, FC1 and attention; FC2's result is not
     * needed. */
    const double params = 64 * (64 + 2 * 32) + 64 * 64 + 2 * 176 * 64, attention = 2 * 33 * 64;
    dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "llama-tiny", &model));
    const double extra = 2 * (2 * params + attention) / dh_model_flops_per_token(&model, 32);
    assert_true(fabs(ratio[1] - ratio[0] - extra) < 1e-9);
}

/* ---- STP ------------------------------------------------------------------------------------ */

enum { COMPUTE_NS = 100, SUM_NS = 30 };

/* Layers whose computations all take longer than an all-reduce; nothing else takes any time. */
static dh_op_time even_time(const void *self, const dh_cost_op *op)
{
    (void)self;
    double ns = 0;
    if (op->graph->kind == DH_BLOCK_LAYER)
        ns = op->op->type == DH_OP_ALL_REDUCE ? SUM_NS : COMPUTE_NS;
    return (dh_op_time){ns, DH_PAIR_MODELLED};
}

static dh_op_rates no_slowing(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self, (void)a, (void)b;
    return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
}

/* Time of the rank's all-reduces in which nothing is computed. */
static int64_t exposed_sums(const dh_sim_rank *r)
{
    const dh_program *p = r->program;
    int64_t exposed = 0;
    for (size_t i = 0; i < p->instrs.n; i++) {
        if (p->instrs.at[i].stream == DH_STREAM_COMPUTE) continue;
        const dh_span *sum = &r->spans[i];
        exposed += sum->end_ns - sum->met_ns;
        for (size_t k = 0; k < p->instrs.n; k++) {
            if (p->instrs.at[k].stream != DH_STREAM_COMPUTE) continue;
            const int64_t from = DH_MAX(r->spans[k].start_ns, sum->met_ns);
            exposed -= DH_MAX(DH_MIN(r->spans[k].end_ns, sum->end_ns) - from, 0);
        }
    }
    return exposed;
}

/* What is exposed of the all-reduces are those of forwards that have no slot in common with
 * anything: STP's closed form (2p + 1) T_AR, T_AR those of a chunk; one chunk fewer on odd ranks.
 */
static void stp_exposes_what_its_closed_form_says(void **state)
{
    static const dh_costs even = {.name = "even", .solo = even_time, .beside = no_slowing};
    for (int64_t pp = 1; pp <= 4; pp++) {
        const setup s = {"gpt2-tiny", "stp", "stp", 2, 1, pp, 1, 0, 3 * pp, 0, false, 0, 0};
        dh_ctx ctx = DH_CTX_INIT;
        job j;
        dh_sim *sim;
        job_init(&j, &s);
        j.recipe.sharing.sequence = DH_SEQUENCE_WHOLE;
        j.recipe.model.n_layers = 2 * j.schedule->n_stages;
        assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &even, &(dh_sim_options){0}, &sim));
        const int64_t sums_of_a_chunk = 2 * 2 * SUM_NS;
        for (size_t k = 0; k < sim->n_classes; k++) {
            const dh_sim_rank *r = &sim->ranks[k];
            assert_int_equal(exposed_sums(r), (2 * pp + 1 - r->stage % 2) * sums_of_a_chunk);
        }
        dh_sim_destroy(sim);
        job_fini(&j);
    }
}

/* Most activations that the first stage has alive at once, with chunks of two layers. */
static uint64_t most_activations(const char *schedule, const char *strategy, int64_t pp,
                                 int64_t n_micro)
{
    static const dh_costs even = {.name = "even", .solo = even_time, .beside = no_slowing};
    const setup s = {"gpt2-tiny", schedule, strategy, 2, 1, pp, 1, 0, n_micro, 0, false, 0, 0};
    dh_ctx ctx = DH_CTX_INIT;
    job j;
    dh_sim *sim;
    job_init(&j, &s);
    j.recipe.sharing.sequence = DH_SEQUENCE_WHOLE;
    j.recipe.model.n_layers = 2 * j.schedule->n_stages;
    assert_ok(&ctx, dh_simulate(&ctx, &j.recipe, &even, &(dh_sim_options){0}, &sim));
    assert_int_equal(sim->ranks[0].stage, 0);
    const uint64_t most = sim->ranks[0].memory.peak_activations;
    dh_sim_destroy(sim);
    job_fini(&j);
    return most;
}

/* And its first stage keeps 3p chunks, of any number of micro-batches: a chunk's activations are
 * what one more micro-batch adds where all forwards come first. Of these chunks p wait for their
 * weight gradients with the gradients that these read, which are less than another chunk. */
static void stp_keeps_what_its_closed_form_says(void **state)
{
    const uint64_t chunk = most_activations("gpipe", "sequential", 2, 3) -
                           most_activations("gpipe", "sequential", 2, 2);
    const uint64_t first = most_activations("stp", "stp", 2, 6);
    const uint64_t added = most_activations("stp", "stp", 3, 9) - first;
    assert_true(chunk > 0);
    assert_in_range(added, 3 * chunk, 4 * chunk - 1);
    for (int64_t pp = 2; pp <= 4; pp++) {
        const uint64_t most = first + (uint64_t)(pp - 2) * added;
        assert_int_equal(most_activations("stp", "stp", pp, 3 * pp), most);
        assert_int_equal(most_activations("stp", "stp", pp, 5 * pp), most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stp_keeps_what_its_closed_form_says),
                                       cmocka_unit_test(stp_exposes_what_its_closed_form_says),
                                       cmocka_unit_test(one_for_many),
                                       cmocka_unit_test(linear_attention_is_one_for_many),
                                       cmocka_unit_test(hybrids_are_one_for_many),
                                       cmocka_unit_test(states_travel_beside_attention),
                                       cmocka_unit_test(one_for_many_in_stages),
                                       cmocka_unit_test(shared_heads),
                                       cmocka_unit_test(one_a_stage),
                                       cmocka_unit_test(costs_that_differ_keep_ranks_apart),
                                       cmocka_unit_test(parameters_that_are_shared_out),
                                       cmocka_unit_test(nodes_unlike),
                                       cmocka_unit_test(stragglers),
                                       cmocka_unit_test(a_straggler_costs_what_it_should),
                                       cmocka_unit_test(known_bubbles),
                                       cmocka_unit_test(stepping_ahead_ends_when_it_should),
                                       cmocka_unit_test(rules_hold),
                                       cmocka_unit_test(same_input_same_bytes),
                                       cmocka_unit_test(a_watch_is_told),
                                       cmocka_unit_test(counts_flops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
