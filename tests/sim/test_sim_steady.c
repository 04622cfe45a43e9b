/* Steps of many micro-batches, simulated as shorter ones whose steady phase is repeated: the same
 * step to the nanosecond, and the same sums. */
#include "dh_test.h"

#include "program/recipe.h"
#include "sim/simulate.h"

/* Costs of each operator and stage by a seed. */
typedef struct odd_costs {
    uint64_t seed;
    bool hosts_wait;
} odd_costs;

static dh_op_time odd_time(const void *self, const dh_cost_op *op)
{
    const odd_costs *odd = self;
    const uint64_t mixed = dh_mix64(odd->seed + (uint64_t)op->op->type);
    const double bytes = dh_op_bytes(op->graph, op->op), flops = dh_op_flops(op->graph, op->op);
    return (dh_op_time){100 + (double)(mixed % 900) + .013 * bytes + .0011 * flops,
                        DH_PAIR_MODELLED};
}

static double rate(const odd_costs *odd, dh_op_type a, dh_op_type b)
{
    const uint64_t mixed = dh_mix64(odd->seed + (uint64_t)a * 64 + (uint64_t)b);
    return .3 + .7 * (double)(mixed % 1000) / 1000;
}

static dh_op_rates odd_rates(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){rate(self, a->op->type, b->op->type), rate(self, b->op->type, a->op->type),
                         DH_PAIR_MODELLED};
}

static dh_issue odd_issue(const void *self, const dh_cost_op *op)
{
    const odd_costs *odd = self;
    const bool waits = odd->hosts_wait && op->op->type == DH_OP_ATTN;
    return (dh_issue){.n_kernels = 1 + (double)(op->op->type % 3), .waits = waits};
}

typedef struct setup {
    const char *schedule, *strategy;
    int64_t tp, pp, dp, n_micro;
    int zero;
    double host_ns;
} setup;

static dh_sim *simulate(const setup *s, const dh_costs *costs, const dh_sim_slow *slow, bool sums)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    dh_schedule *schedule = NULL;
    dh_sim *sim;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "llama-tiny", &model));
    if (s->schedule) {
        const dh_schedule_row *row;
        const dh_schedule_spec wanted = {.n_ranks = (int32_t)s->pp, .n_micro = (int32_t)s->n_micro};
        assert_ok(&ctx, dh_schedule_find(&ctx, s->schedule, &row));
        assert_ok(&ctx, dh_schedule_generate(&ctx, row, &wanted, &schedule));
        model.n_layers = DH_MAX(model.n_layers, schedule->n_stages);
    }
    model.n_kv_heads = DH_MAX(model.n_kv_heads, s->tp);
    dh_recipe recipe = {.model = model,
                        .dtype = DH_BF16,
                        .schedule = schedule,
                        .sharing = dh_sharing_of(s->zero),
                        .micro_batch = 1,
                        .seq = 32,
                        .n_micro = s->n_micro,
                        .global_tokens = 64};
    if (s->strategy) assert_ok(&ctx, dh_strategy_find(&ctx, s->strategy, &recipe.strategy));
    assert_ok(&ctx, dh_mesh_init(&ctx, s->dp, s->tp, s->pp, 1, 1, 0, 0, &recipe.mesh));
    recipe.mesh.kv_ranks = dh_mesh_kv_ranks(&model, s->tp);
    const dh_sim_options options = {.sums = sums, .slow = slow, .n_slow = slow ? 1 : 0};
    assert_ok(&ctx, dh_simulate(&ctx, &recipe, costs, &options, &sim));
    dh_schedule_destroy(schedule);
    return sim;
}

/* Sums of whole nanoseconds, each rounded by itself: one for every instruction at the most. */
static void assert_near(int64_t a, int64_t b, uint64_t n_instrs)
{
    if (llabs(a - b) > (int64_t)n_instrs)
        fail_msg("%lld, the whole step has %lld", (long long)a, (long long)b);
}

static void assert_same(const dh_sim *a, const dh_sim *b)
{
    assert_int_equal(a->step_ns, b->step_ns);
    assert_int_equal(a->n_instrs, b->n_instrs);
    assert_int_equal(a->tokens, b->tokens);
    assert_true(a->model_flops == b->model_flops);
    assert_true(fabs(a->hardware_flops / b->hardware_flops - 1) < 1e-12);
    assert_int_equal(a->n_classes, b->n_classes);
    for (int k = 0; k < DH_N_PAIR_SOURCES; k++)
        assert_true(fabs(a->solo_ns_by[k] - b->solo_ns_by[k]) <= 1e-9 * b->solo_ns_by[k]);
    for (size_t k = 0; k < a->n_classes; k++) {
        const dh_sim_rank *x = &a->ranks[k], *y = &b->ranks[k];
        assert_int_equal(x->rank, y->rank);
        assert_int_equal(x->n_instrs, y->n_instrs);
        assert_int_equal(x->memory.peak_bytes, y->memory.peak_bytes);
        assert_int_equal(x->memory.peak_ns, y->memory.peak_ns);
        assert_int_equal(x->times.span_ns, y->times.span_ns);
        assert_int_equal(x->times.idle_ns, y->times.idle_ns);
        for (int e = 0; e < DH_N_ENGINE; e++)
            assert_int_equal(x->times.busy_ns[e], y->times.busy_ns[e]);
        assert_near(x->times.hidden_ns, y->times.hidden_ns, y->n_instrs);
        assert_near(x->times.exposed_ns, y->times.exposed_ns, y->n_instrs);
    }
}

/* Whether the step was simulated as a shorter one. */
static bool check(const setup *s, const odd_costs *odd, const dh_sim_slow *slow)
{
    const dh_costs costs = {.name = "odd",
                            .self = odd,
                            .solo = odd_time,
                            .beside = odd_rates,
                            .launch_ns = 3,
                            .event_ns = 11,
                            .host_ns = s->host_ns,
                            .issuer = {.self = odd, .ask = odd_issue}};
    dh_sim *whole = simulate(s, &costs, slow, false), *sum = simulate(s, &costs, slow, true);
    assert_null(whole->shorter);
    assert_same(sum, whole);
    const bool is_short = sum->shorter;
    if (is_short) assert_true(sum->ranks[0].program->n_micro < s->n_micro);
    print_message("%s %s tp %lld pp %lld dp %lld zero %d host %g: %s\n",
                  s->schedule ? s->schedule : "one stage", s->strategy ? s->strategy : "",
                  (long long)s->tp, (long long)s->pp, (long long)s->dp, s->zero, s->host_ns,
                  is_short ? "shorter" : "whole");
    dh_sim_destroy(whole);
    dh_sim_destroy(sum);
    return is_short;
}

static const setup setups[] = {
    {NULL, NULL, 2, 1, 2, 40, 1, 0},         {NULL, NULL, 1, 1, 2, 40, 3, 0},
    {"1f1b", NULL, 1, 2, 2, 60, 0, 0},       {"1f1b", NULL, 2, 4, 1, 80, 1, 0},
    {"1f1b", NULL, 1, 2, 2, 60, 2, 0},       {"zb-h1", NULL, 2, 2, 1, 90, 0, 0},
    {"zb-v", NULL, 1, 2, 1, 120, 0, 0},      {"interleaved-1f1b", NULL, 2, 2, 1, 64, 0, 0},
    {"dhelix-w", "list", 2, 2, 1, 70, 1, 0}, {"dhelix-w", "wavelet+", 2, 3, 1, 90, 1, 0},
    {"dualpipe", "list", 2, 2, 1, 80, 0, 0}, {"dualpipev", "list", 2, 2, 1, 80, 0, 0},
    {"wavelet", "list", 2, 2, 1, 80, 0, 0},  {"bidirectional", "list", 2, 2, 1, 80, 0, 0},
    {"stp", "stp", 2, 2, 1, 80, 0, 0},       {"combined-1f1b", "list", 2, 2, 1, 60, 1, 0},
};

static void a_shorter_step_is_the_same(void **state)
{
    (void)state;
    size_t n = 0;
    for (size_t i = 0; i < DH_COUNTOF(setups); i++)
        for (uint64_t seed = 1; seed <= 3; seed++)
            n += check(&setups[i], &(odd_costs){.seed = seed}, NULL);
    assert_true(n >= 3 * DH_COUNTOF(setups) * 8 / 10);
}

/* Breadth-first schedules and short steps are simulated as a whole. */
static void others_are_whole(void **state)
{
    (void)state;
    static const setup some[] = {{"gpipe", NULL, 1, 2, 1, 60, 0, 0},
                                 {"looped-bfs", NULL, 1, 2, 1, 60, 0, 0},
                                 {"1f1b", NULL, 1, 4, 1, 24, 0, 0}};
    for (size_t i = 0; i < DH_COUNTOF(some); i++)
        assert_false(check(&some[i], &(odd_costs){.seed = 1}, NULL));
}

/* A stage that is slower than the others by little or much: what is in front of it runs ahead. */
static void stages_may_differ(void **state)
{
    (void)state;
    static const double factors[] = {1.001, 1.05, 1.7};
    size_t n = 0;
    for (int64_t rank = 0; rank < 4; rank++)
        for (size_t i = 0; i < DH_COUNTOF(factors); i++) {
            const dh_sim_slow slow = {.rank = rank, .factor = {factors[i], 1, 1}};
            const setup s = {rank % 2 ? "1f1b" : "zb-h1", NULL, 1, 4, 1, 90, 0, 0};
            n += check(&s, &(odd_costs){.seed = 7}, &slow);
        }
    assert_true(n >= 6);
}

/* Time of the host for a kernel with which it issues a micro-batch in as long as the device takes. */
static double even_host_ns(const setup *s, const odd_costs *odd)
{
    const dh_costs costs = {.name = "odd",
                            .self = odd,
                            .solo = odd_time,
                            .beside = odd_rates,
                            .launch_ns = 3,
                            .event_ns = 11};
    dh_sim *sim = simulate(s, &costs, NULL, false);
    const dh_program *p = sim->ranks[0].program;
    double n_kernels = 0;
    for (size_t i = 0; i < p->instrs.n; i++)
        n_kernels += 1 + (double)(dh_instr_op(p, &p->instrs.at[i])->type % 3);
    const double ns = (double)sim->step_ns / n_kernels;
    dh_sim_destroy(sim);
    return ns;
}

/* The host's lead over the device is no part of what repeats itself: the device may catch up with
 * it long after the streams have become steady. */
static void hosts_may_be_late(void **state)
{
    (void)state;
    static const setup some[] = {{NULL, NULL, 1, 1, 2, 60, 1, 0},
                                 {"1f1b", NULL, 1, 2, 1, 60, 0, 0},
                                 {"1f1b", NULL, 1, 4, 1, 90, 0, 0}};
    size_t n = 0, n_all = 0;
    for (size_t i = 0; i < DH_COUNTOF(some); i++)
        for (int waits = 0; waits < 2; waits++) {
            const odd_costs odd = {.seed = 3, .hosts_wait = waits};
            const double even = even_host_ns(&some[i], &odd);
            for (double share = .8; share < 1.2; share += .02, n_all++) {
                setup s = some[i];
                s.host_ns = rint(share * even);
                n += check(&s, &odd, NULL);
            }
        }
    print_message("%zu of %zu shorter\n", n, n_all);
    assert_true(n >= n_all / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shorter_step_is_the_same),
        cmocka_unit_test(others_are_whole),
        cmocka_unit_test(stages_may_differ),
        cmocka_unit_test(hosts_may_be_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
