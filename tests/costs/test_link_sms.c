/* Processors held by communicators: times and speeds worked by hand, and by a cluster's model. */
#include "costs/link_sms.h"

#include "dh_test.h"
#include "dhelix/cluster.h"

/* Everything takes 1,000 ns alone and goes at 0.8 beside anything else. */
static dh_op_time plain_solo(const void *self, const dh_cost_op *op)
{
    return (dh_op_time){1000, DH_PAIR_MEASURED};
}

static dh_op_rates plain_beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){.8, .8, DH_PAIR_MEASURED};
}

static const dh_costs plain = {
    .name = "plain", .solo = plain_solo, .beside = plain_beside, .id = 7};

static const dh_link_sms device = {.processors = 100,
                                   .full = {[DH_ENGINE_LOCAL] = 20, [DH_ENGINE_CROSS] = 10}};

typedef struct fixture {
    dh_arena *arena;
    dh_cluster *cluster;
    dh_mesh mesh;
    dh_graph *graph;
    dh_cost_op product, call, attention;
} fixture;

static dh_cost_op find(const fixture *f, dh_op_type type)
{
    for (size_t i = 0; i < f->graph->ops.n; i++)
        if (f->graph->ops.at[i].type == type)
            return (dh_cost_op){f->graph, &f->graph->ops.at[i], &f->mesh, 0};
    fail_msg("no operator %s", dh_op_info_of(type)->name);
    return (dh_cost_op){NULL, NULL, NULL, 0};
}

static int setup(void **state)
{
    static fixture f;
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = {.name = "m",
                      .family = DH_FAMILY_GPT2,
                      .n_layers = 1,
                      .width = 4096,
                      .n_heads = 32,
                      .n_kv_heads = 32,
                      .head_dim = 128,
                      .ffn_width = 16384,
                      .vocab = 1000,
                      .max_seq = 4096,
                      .bias = true,
                      .norm_eps = 1e-5};
    dh_build build = {.model = &model, .dtype = DH_BF16, .batch = 1, .seq = 4096, .loss_scale = 1};
    f.arena = dh_arena_create();
    assert_ok(&ctx, dh_cluster_find(&ctx, "h100", &f.cluster));
    assert_ok(&ctx, dh_cluster_mesh(&ctx, f.cluster, 1, 4, 1, 1, 1, &f.mesh));
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &f.graph));
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, f.graph, (dh_shard){.tp = 4}));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, f.graph));
    f.product = find(&f, DH_OP_LINEAR_WGRAD);
    f.call = find(&f, DH_OP_ALL_GATHER);
    f.attention = find(&f, DH_OP_ATTN);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    dh_graph_destroy(f->graph);
    dh_cluster_destroy(f->cluster);
    dh_arena_destroy(f->arena);
    return 0;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

static const dh_costs *held(fixture *f, const dh_link_sms_basis *basis, const dh_link_sms *sms)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_costs *costs;
    assert_ok(&ctx, dh_link_sms_costs(&ctx, f->arena, basis, sms, &costs));
    return costs;
}

static double solo(const dh_costs *costs, const dh_cost_op *op)
{
    return costs->solo(costs->self, op).ns;
}

static void streams_hold_what_they_hold_together(void **state)
{
    dh_link_sms sms = device;
    assert_int_equal(dh_link_sms_held(&sms), 0);
    sms.of[DH_STREAM_LOCAL] = 20;
    sms.of[DH_STREAM_CROSS_DATA] = 5;
    assert_int_equal(dh_link_sms_held(&sms), 25);
    sms.of[DH_STREAM_LOCAL_DATA] = 60;
    assert_int_equal(dh_link_sms_held(&sms), 50);
}

/* Costs of a device where nothing was held by plan. */
static void in_proportion(void **state)
{
    fixture *f = *state;
    const dh_link_sms_basis basis = {.plain = &plain};
    dh_link_sms sms = device;
    sms.of[DH_STREAM_LOCAL] = 5;
    sms.of[DH_STREAM_LOCAL_DATA] = 15;
    const dh_costs *costs = held(f, &basis, &sms);
    assert_near(solo(costs, &f->call), 1000 * 20. / 5);
    assert_near(solo(costs, &f->product), 1000 * 100. / 80);
    assert_near(solo(costs, &f->attention), 1000);
    /* Of 0.8, 80 of 100 processors are the call's doing: all that is lost. A product loses no more
     * than it has lost alone, attention what the call holds now. */
    dh_op_rates r = costs->beside(costs->self, &f->product, &f->call);
    assert_near(r.a, 1);
    assert_near(r.b, .8);
    r = costs->beside(costs->self, &f->call, &f->attention);
    assert_near(r.a, .8);
    assert_near(r.b, .8 / .8 * .95);
    r = costs->beside(costs->self, &f->product, &f->attention);
    assert_near(r.a, .8);
    assert_near(r.b, .8);
    /* With as many as fill the links calls are as they were. */
    sms.of[DH_STREAM_LOCAL] = 20;
    const dh_costs *full = held(f, &basis, &sms);
    assert_near(solo(full, &f->call), 1000);
    assert_near(solo(full, &f->product), 1000 * 100. / 65);
    assert_near(full->beside(full->self, &f->attention, &f->call).a, .8);
    assert_true(full->id != costs->id && full->id != plain.id);
    assert_non_null(strstr(costs->name, "20 processors"));
}

/* Costs that were measured with processors held: those say themselves what was lost. */
static void from_what_was_measured(void **state)
{
    fixture *f = *state;
    dh_link_sms measured = device, sms = device;
    measured.of[DH_STREAM_LOCAL] = 20;
    sms.of[DH_STREAM_LOCAL] = 10;
    const dh_link_sms_basis basis = {.plain = &plain, .measured = &measured};
    const dh_costs *same = held(f, &basis, &measured), *fewer = held(f, &basis, &sms);
    const dh_cost_op *ops[] = {&f->product, &f->call, &f->attention};
    for (size_t i = 0; i < DH_COUNTOF(ops); i++) {
        assert_near(solo(same, ops[i]), 1000);
        const dh_op_rates r = same->beside(same->self, ops[i], &f->call);
        assert_near(r.a, .8);
    }
    assert_near(solo(fewer, &f->call), 2000);
    assert_near(solo(fewer, &f->product), 1000 * 80. / 90);
    assert_near(fewer->beside(fewer->self, &f->product, &f->call).a, .8);
    assert_near(fewer->beside(fewer->self, &f->attention, &f->call).a, .8 / .8 * .9);
}

/* On a cluster products come in waves over what is left, and latencies stay. */
static void on_a_cluster(void **state)
{
    fixture *f = *state;
    dh_ctx ctx = DH_CTX_INIT;
    const dh_costs *whole;
    dh_link_sms sms = dh_link_sms_of_cluster(f->cluster);
    assert_int_equal(sms.processors, 132);
    assert_int_equal(sms.full[DH_ENGINE_LOCAL], 16);
    assert_int_equal(sms.full[DH_ENGINE_CROSS], 8);
    assert_ok(&ctx, dh_cluster_costs(&ctx, f->arena, f->cluster, &whole));
    const dh_link_sms_basis basis = {.plain = whole, .cluster = f->cluster};
    double last_product = INFINITY, last_call = 0;
    for (int n = 16; n >= 1; n /= 2) {
        sms.of[DH_STREAM_LOCAL] = n;
        const dh_costs *costs = held(f, &basis, &sms);
        dh_cluster less = *f->cluster;
        less.local.bytes_per_s *= n / 16.;
        const double bytes = (double)dh_tensor_bytes(&f->graph->tensors.at[f->call.op->out[0]]);
        assert_near(solo(costs, &f->call),
                    dh_cluster_collective(&less, DH_OP_ALL_GATHER, bytes,
                                          dh_cluster_span_of(&less, &f->mesh, DH_GROUP_TP, 0))
                        .ns);
        assert_true(solo(costs, &f->call) > last_call);
        assert_true(solo(costs, &f->product) <= last_product);
        assert_true(solo(costs, &f->product) >= solo(whole, &f->product));
        assert_near(solo(costs, &f->attention), solo(whole, &f->attention));
        last_call = solo(costs, &f->call);
        last_product = solo(costs, &f->product);
    }
    assert_true(last_product < 1.02 * solo(whole, &f->product));
    /* As many waves of tiles of the same length, where one processor's worth is taken. */
    dh_cluster rest = *f->cluster;
    const dh_tensor *dy = &f->graph->tensors.at[f->product.op->in[0]],
                    *x = &f->graph->tensors.at[f->product.op->in[1]];
    const dh_gemm_shape shape = {.dtype = DH_BF16,
                                 .rows = dy->shape[1],
                                 .columns = x->shape[1],
                                 .shared = dy->shape[0],
                                 .batch = 1,
                                 .bytes = dh_op_bytes(f->graph, f->product.op)};
    rest.processors = 131;
    rest.bf16_flops_per_s *= 131. / 132;
    assert_near(last_product, dh_cluster_gemm_ns(&rest, &shape));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_hold_what_they_hold_together),
        cmocka_unit_test(in_proportion),
        cmocka_unit_test(from_what_was_measured),
        cmocka_unit_test(on_a_cluster),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
