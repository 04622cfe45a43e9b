/* Cluster files and the hardware model: what is read, and times worked by hand. */
#include "costs/cluster_table.h"
#include "dh_test.h"
#include "dhelix/cluster.h"

/* 10 processors of 1 TFLOP/s together, 1 GB/ms of memory, round numbers everywhere. */
static const char toy[] =
    "doc: toy\n"
    "node: {devices: 4, switches: 2}\n"
    "device:\n"
    "  processors: 10\n"
    "  tflops: {f32: 0.5, bf16: 1}\n"
    "  memory_gb: 1\n"
    "  memory_gb_per_s: 2000\n"
    "  memory_efficiency: 0.5\n"
    "  kernel_us: 2\n"
    "gemm: {efficiency: 0.5, tile_rows: 256, tile_columns: 128,\n"
    "       tile_half: 0, start_k: 0}\n"
    "attention: {kernel: blockwise, efficiency: 0.5, grad_efficiency: 0.25}\n"
    "local: {gb_per_s: 200, efficiency: 0.5, between_gb_per_s: 50, transfer_efficiency: 0.5, "
    "step_us: 3}\n"
    "network: {gb_per_s: 80, efficiency: 0.5, transfer_efficiency: 1, step_us: 10}\n"
    "launch: {segment_us: 1, event_us: 2}\n"
    "oef:\n"
    "  gemm: {gemm: -0.5, local: 0.5}\n"
    "  local: {attention: 0.25}\n";

static dh_cluster *read_toy(dh_ctx *ctx)
{
    dh_cluster *c = NULL;
    assert_ok(ctx, dh_cluster_parse(ctx, toy, strlen(toy), "toy.yaml", &c));
    return c;
}

/* Doubles, to rounding. */
static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

/* ---- files -------------------------------------------------------------------------------- */

static void test_shipped(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n = 0;
    for (; dh_cluster_name(n); n++) {
        dh_cluster *c;
        assert_ok(&ctx, dh_cluster_find(&ctx, dh_cluster_name(n), &c));
        assert_string_equal(c->name, dh_cluster_name(n));
        assert_true(strlen(c->doc) > 10);
        assert_true(c->bf16_flops_per_s > c->f32_flops_per_s);
        dh_cluster_destroy(c);
    }
    assert_true(n >= 7);
}

/* Bytes as drivers report them: what PyTorch's messages call GiB of the device. */
static void test_device_bytes(void **state)
{
    static const struct {
        const char *name;
        double gib;
    } devices[] = {{"a100", 79.15},  {"a800", 79.15},    {"selene", 79.15},    {"h100", 79.18},
                   {"h800", 79.18},  {"h200", 139.81},   {"h100-500w", 94.99}, {"a40", 44.99},
                   {"b200", 178.35}, {"mi300x", 191.98}, {"mi355x", 287.98}};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(devices); i++) {
        dh_cluster *c;
        assert_ok(&ctx, dh_cluster_find(&ctx, devices[i].name, &c));
        if (fabs(c->memory_bytes / 1073741824 - devices[i].gib) > 0.01)
            fail_msg("%s: %.0f bytes are not %g GiB", c->name, c->memory_bytes, devices[i].gib);
        dh_cluster_destroy(c);
    }
}

static void test_like(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *h100, *h800;
    assert_ok(&ctx, dh_cluster_find(&ctx, "h100", &h100));
    assert_ok(&ctx, dh_cluster_find(&ctx, "h800", &h800));
    assert_near(h100->local.bytes_per_s, 450e9);
    assert_near(h800->local.bytes_per_s, 200e9);
    assert_near(h800->local.efficiency, h100->local.efficiency);
    assert_near(h800->oef[DH_CLUSTER_LOCAL][DH_CLUSTER_GEMM], 0.74);
    dh_cluster_destroy(h100);
    dh_cluster_destroy(h800);
}

/* What collectives of a node sustain, GB/s, of a cluster that is like another one: by one of eight
 * devices, which gathers from one other node half of a vector. */
static double sustained(const char *text)
{
    enum { DEVICES = 8 };
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c;
    const dh_cluster_span span = {.size = 2, .nodes = {.n_nodes = 2, .max_per_node = 1}};
    assert_ok(&ctx, dh_cluster_parse(&ctx, text, strlen(text), "own.yaml", &c));
    const double once = dh_cluster_collective(c, DH_OP_ALL_GATHER, 1e9, span).ns;
    const double twice = dh_cluster_collective(c, DH_OP_ALL_GATHER, 2e9, span).ns;
    assert_near(c->node_devices, DEVICES);
    dh_cluster_destroy(c);
    return DEVICES * 0.5e9 / (twice - once);
}

/* Four adapters reach their share, eight the limit of a node, and a share of one's own counts. */
static void test_adapters(void **state)
{
    (void)state;
    assert_near(sustained("like: a100\n"), 100);
    assert_near(sustained("like: a100\nnetwork: {gb_per_s: 100}\n"), 92);
    assert_near(sustained("like: selene\nnetwork: {gb_per_s: 50}\n"), 46);
    assert_near(sustained("like: a100\nnetwork: {efficiency: 0.9}\n"), 180);
    assert_near(sustained("like: a100\nnetwork: {efficiency: 0.9, most_gb_per_s: 150}\n"), 150);
    assert_near(sustained("like: h100\nnetwork: {gb_per_s: 100, efficiency: 0.8}\n"), 80);
}

static void test_path(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300], own[340];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/own.yaml", dir);
    snprintf(own, sizeof own, "like: a40\nlocal: {gb_per_s: 64}\n");
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, own, strlen(own)));
    dh_cluster *c;
    assert_ok(&ctx, dh_cluster_find(&ctx, path, &c));
    assert_near(c->local.bytes_per_s, 64e9);
    assert_near(c->memory_bytes, 48.31e9);
    dh_cluster_destroy(c);
    snprintf(own, sizeof own, "like: %s\n", path);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, own, strlen(own)));
    assert_fails(&ctx, dh_cluster_find(&ctx, path, &c), DH_EINVAL, "like each other");
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void refuse(const char *from, const char *to, dh_status status, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = NULL;
    char text[2048];
    const char *at = strstr(toy, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - toy), toy, to, at + strlen(from));
    assert_fails(&ctx, dh_cluster_parse(&ctx, text, strlen(text), "toy.yaml", &c), status, part);
    assert_null(c);
}

static void test_refused(void **state)
{
    refuse("processors: 10", "processor: 10", DH_EINVAL, "toy.yaml:4:3: unknown setting");
    refuse("processors: 10", "processor: 10", DH_EINVAL, "did you mean device.processors");
    refuse("processors: 10", "processors: ten", DH_EINVAL, "toy.yaml:4:15: device.processors");
    refuse("  kernel_us: 2\n", "", DH_EINVAL, "device.kernel_us is missing");
    refuse("memory_efficiency: 0.5", "memory_efficiency: 1.5", DH_EINVAL, "0.001 to 1");
    refuse("memory_gb: 1\n", "memory_gb: [1]\n", DH_EFORMAT, "plain value");
    refuse("memory_gb: 1\n", "memory_gb: 1\n  memory_gb: 2\n", DH_EFORMAT, "set twice");
    refuse("blockwise", "magic", DH_EINVAL, "blockwise, scores or scores-recompute");
    refuse("gemm: -0.5", "gemm: 2", DH_EINVAL, "below 2");
    refuse("gemm: -0.5", "gem: 0.5", DH_EINVAL, "oef.gemm.gem is not oef.A.B");
    refuse("devices: 4,", "devices: 2.5,", DH_EINVAL, "a whole number");
    refuse("doc: toy", "doc: [toy", DH_EFORMAT, "toy.yaml:");
    refuse("doc: toy", "like: a41\ndoc: toy", DH_EMISSING, "did you mean a40");
}

static void test_reserve(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char text[2048], room[128];
    const char *at = strstr(toy, "  memory_gb: 1\n");
    dh_cluster *c = read_toy(&ctx);
    assert_near(dh_cluster_usable_bytes(c), 0.965e9);
    assert_string_equal(dh_cluster_room_text(c, room, sizeof room),
                        "920.30 MiB (953.67 MiB less 3.5 % for contexts, communicators and "
                        "fragmentation)");
    dh_cluster_destroy(c);
    snprintf(text, sizeof text, "%.*s  memory_gb: 1\n  memory_reserve: 0\n%s", (int)(at - toy), toy,
             at + strlen("  memory_gb: 1\n"));
    assert_ok(&ctx, dh_cluster_parse(&ctx, text, strlen(text), "toy.yaml", &c));
    assert_near(dh_cluster_usable_bytes(c), 1e9);
    assert_string_equal(dh_cluster_room_text(c, room, sizeof room), "953.67 MiB");
    dh_cluster_destroy(c);
    refuse("memory_gb: 1\n", "memory_gb: 1\n  memory_reserve: 1\n", DH_EINVAL, "0 to 0.9");
}

/* ---- device --------------------------------------------------------------------------------- */

/* Half of 1 TFLOP/s over 10 processors is 50 GFLOP/s each; a tile of 256 x 128 over 1000 takes
 * 65.536 MFLOP or 1.31072 ms. */
static void test_gemm_waves(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    dh_gemm_shape s = {.dtype = DH_BF16, .rows = 2560, .columns = 128, .shared = 1000, .batch = 1};
    assert_near(dh_cluster_gemm_ns(c, &s), 1.31072e6);
    s.batch = 10; /* ten waves */
    assert_near(dh_cluster_gemm_ns(c, &s), 13.1072e6);
    s.batch = 1;
    s.dtype = DH_F32; /* half the rate */
    assert_near(dh_cluster_gemm_ns(c, &s), 2 * 1.31072e6);
    s.dtype = DH_BF16;
    s.bytes = 3e9; /* 1 TB/s sustained */
    assert_near(dh_cluster_gemm_ns(c, &s), 3e6);
    dh_cluster_destroy(c);
}

/* At their own rate; a cluster without it says so with 0. */
static void test_gemm_fp8(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx), *h100, *a100;
    dh_gemm_shape s = {.dtype = DH_BF16, .rows = 2560, .columns = 128, .shared = 1000, .batch = 1};
    assert_true(c->fp8_flops_per_s == 0);
    c->fp8_flops_per_s = 2 * c->bf16_flops_per_s;
    s.fp8 = true;
    assert_near(dh_cluster_gemm_ns(c, &s), 1.31072e6 / 2);
    c->gemm_fp8 = 0.8; /* of what products in bf16 reach of their peak, with its own peak */
    assert_near(dh_cluster_gemm_ns(c, &s), 1.31072e6 / 2 / 0.8);
    c->gemm_fp8 = 1;
    c->rated_watts = 800; /* a limit takes the same share of both rates */
    c->limit_watts = 100;
    c->power_exponent = 1. / 3;
    assert_near(dh_cluster_gemm_ns(c, &s), 1.31072e6);
    assert_ok(&ctx, dh_cluster_find(&ctx, "h100", &h100));
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &a100));
    assert_near(h100->fp8_flops_per_s, 2 * h100->bf16_flops_per_s);
    assert_true(a100->fp8_flops_per_s == 0);
    dh_cluster_destroy(a100);
    dh_cluster_destroy(h100);
    dh_cluster_destroy(c);
}

/* One tile more than a wave would double the time; smaller tiles lose less. */
static void test_gemm_picks_tiles(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    const dh_gemm_shape s = {
        .dtype = DH_BF16, .rows = 2816, .columns = 128, .shared = 1000000, .batch = 1};
    const double wave = 1.31072e9;
    const double ns = dh_cluster_gemm_ns(c, &s);
    assert_true(ns > 1.1 * wave * 0.999 && ns < 1.5 * wave);
    dh_cluster_destroy(c);
}

static void test_memory(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    assert_near(dh_cluster_memory_ns(c, 1e6), 2000); /* the kernel's least */
    assert_near(dh_cluster_memory_ns(c, 1e7), 10000);
    dh_cluster_destroy(c);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static void check_collective(const dh_cluster *c, dh_op_type type, double bytes, int64_t size,
                             int64_t nodes, int64_t per_node, dh_collective by, double ns)
{
    const dh_cluster_span span = {.size = size, .nodes = {nodes, per_node}};
    const dh_collective_time t = dh_cluster_collective(c, type, bytes, span);
    if (t.by != by || fabs(t.ns - ns) > 1e-6 * ns)
        fail_msg("%s of %g bytes over %lld on %lld nodes: %s %g ns, want %s %g ns",
                 dh_op_info_of(type)->name, bytes, (long long)size, (long long)nodes,
                 dh_collective_name(t.by), t.ns, dh_collective_name(by), ns);
}

/* A device has 100 GB/s on its node and 10 GB/s of the network, both sustained. */
static void test_collectives(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    /* 3 steps of 3 us, 3/4 of 400 MB at 100 GB/s */
    check_collective(c, DH_OP_ALL_GATHER, 400e6, 4, 1, 4, DH_COLLECTIVE_RING, 9e3 + 3e6);
    check_collective(c, DH_OP_REDUCE_SCATTER, 400e6, 4, 1, 4, DH_COLLECTIVE_RING, 9e3 + 3e6);
    check_collective(c, DH_OP_ALL_REDUCE, 400e6, 4, 1, 4, DH_COLLECTIVE_RING, 18e3 + 6e6);
    /* 1 KB between four nodes: two levels up and down beat six steps */
    check_collective(c, DH_OP_ALL_REDUCE, 1e3, 4, 4, 1, DH_COLLECTIVE_TREE, 4 * 10e3 + 200);
    /* four nodes with a member each: 3/4 of 100 MB at 10 GB/s */
    check_collective(c, DH_OP_ALL_GATHER, 100e6, 4, 4, 1, DH_COLLECTIVE_RING, 30e3 + 7.5e6);
    /* two nodes of four: the ring has the network of four members, 40 GB/s, and 7 steps; inside
     * nodes first has one step between them: 3 steps and 3/4 inside, then half of a quarter */
    check_collective(c, DH_OP_ALL_GATHER, 100e6, 8, 2, 4, DH_COLLECTIVE_HIERARCHICAL,
                     9e3 + .75e6 + 10e3 + 1.25e6);
    check_collective(c, DH_OP_ALL_GATHER, 1e9, 8, 2, 4, DH_COLLECTIVE_HIERARCHICAL,
                     9e3 + 7.5e6 + 10e3 + 12.5e6);
    /* every pair at once: 3 of 8 parts inside at 100, 4 of 8 outside, as messages, at 20 GB/s */
    check_collective(c, DH_OP_ALL_TO_ALL, 80e6, 8, 2, 4, DH_COLLECTIVE_DIRECT, 10e3 + 2e6);
    check_collective(c, DH_OP_ALL_TO_ALL, 80e6, 4, 1, 4, DH_COLLECTIVE_DIRECT, 3e3 + .6e6);
    check_collective(c, DH_OP_ALL_TO_ALL_ROWS, 80e6, 8, 2, 4, DH_COLLECTIVE_DIRECT, 10e3 + 2e6);
    check_collective(c, DH_OP_SEND, 1e6, 2, 2, 1, DH_COLLECTIVE_NEIGHBOUR, 10e3 + .05e6);
    check_collective(c, DH_OP_RING_EXCHANGE, 1e6, 4, 2, 2, DH_COLLECTIVE_NEIGHBOUR, 10e3 + .025e6);
    check_collective(c, DH_OP_SHIFT, 1e6, 4, 1, 4, DH_COLLECTIVE_NEIGHBOUR, 3e3 + .01e6);
    /* the fuller way of a member: on its node at 100, between nodes its own 20 of the network */
    check_collective(c, DH_OP_MESSAGES, 10e6, 4, 1, 4, DH_COLLECTIVE_DIRECT, 3e3 + .1e6);
    check_collective(c, DH_OP_MESSAGES, 10e6, 8, 2, 4, DH_COLLECTIVE_DIRECT, 10e3 + .5e6);
    check_collective(c, DH_OP_MESSAGES, 0, 8, 2, 4, DH_COLLECTIVE_DIRECT, 0);
    check_collective(c, DH_OP_ALL_REDUCE, 1e9, 1, 1, 1, DH_COLLECTIVE_NEIGHBOUR, 0);
    /* over two nodes of two: to the next one of two messages leaves a node, to the one behind it
     * both do, and share the network */
    dh_cluster_span span = {.size = 4, .nodes = {2, 2}, .distance = 1};
    assert_near(dh_cluster_collective(c, DH_OP_SHIFT, 1e6, span).ns, 10e3 + .025e6);
    span.distance = 2;
    assert_near(dh_cluster_collective(c, DH_OP_SHIFT, 1e6, span).ns, 10e3 + .05e6);
    span.distance = 3;
    assert_near(dh_cluster_collective(c, DH_OP_SHIFT, 1e6, span).ns, 10e3 + .025e6);
    dh_cluster_destroy(c);
}

/* Of 8 experts on 8 ranks a token chooses 2: it goes to 2 ranks, and to 2 (1 - 6/28) nodes. Where
 * every expert is chosen one copy goes to the other node, and on each to three ranks what both
 * nodes' tokens bring. */
static void test_dispatch(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    const dh_cluster_span one = {.size = 4, .nodes = {1, 4}}, two = {.size = 8, .nodes = {2, 4}};
    const dh_cluster_span self = {.size = 1, .nodes = {1, 1}};
    (void)state;
    assert_near(dh_cluster_dispatch_ns(c, 80e6, two, 8, 2), 10e3 + 40e6 * (1 - 6.0 / 28) / 20);
    assert_near(dh_cluster_dispatch_ns(c, 80e6, two, 8, 8), 3e3 + 2 * 10e6 * 3 / 100);
    /* 16 experts on 4 ranks, 4 a rank: 4 (1 - 66/120) ranks */
    assert_near(dh_cluster_dispatch_ns(c, 80e6, one, 16, 2),
                3e3 + 40e6 * (1 - 66.0 / 120) * 3 / 100);
    assert_true(dh_cluster_dispatch_ns(c, 80e6, self, 16, 2) == 0);
    dh_cluster_destroy(c);
}

/* Hops of a ring inside nodes are the others': four nodes of four have 4 of 16 hops between nodes.
 * A fast network leaves 4/3 of a member's own link, as three of its four hops are inside. Trees go
 * by their share, of two nodes 5/3 of it where switches add; these add only for all of a node. */
static void test_in_switch(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    (void)state;
    assert_near(c->network.tree, 0.5);
    assert_true(c->local.in_switch == 0 && c->network.in_switch == 0);
    c->network.step_ns = 4e3;
    check_collective(c, DH_OP_REDUCE_SCATTER, 1e9, 16, 4, 4, DH_COLLECTIVE_RING,
                     15 * 3.25e3 + 1e9 * 15 / 16 / 40);
    c->network.bytes_per_s = 8e12;
    check_collective(c, DH_OP_REDUCE_SCATTER, 1e9, 16, 4, 4, DH_COLLECTIVE_RING,
                     15 * 3.25e3 + 1e9 * 15 / 16 / (100 * 4.0 / 3));
    c->network.bytes_per_s = 80e9;
    c->local.in_switch = 0.6;   /* 120 GB/s */
    c->network.in_switch = 0.9; /* of 40 GB/s */
    check_collective(c, DH_OP_ALL_REDUCE, 1e9, 4, 1, 4, DH_COLLECTIVE_IN_SWITCH, 9e3 + 1e9 / 120);
    check_collective(c, DH_OP_ALL_REDUCE, 1e9, 2, 1, 2, DH_COLLECTIVE_RING, 6e3 + 1e9 / 100);
    check_collective(c, DH_OP_ALL_REDUCE, 1e9, 16, 4, 4, DH_COLLECTIVE_IN_SWITCH,
                     9e3 + 4 * 4e3 + 1e9 / 36);
    check_collective(c, DH_OP_ALL_REDUCE, 1e9, 8, 2, 4, DH_COLLECTIVE_IN_SWITCH,
                     9e3 + 2 * 4e3 + 1e9 / 60);
    dh_cluster_destroy(c);
}

/* Switches of two devices each: a pair side by side stays on one, others do not. */
static void test_spread(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    dh_mesh mesh;
    assert_ok(&ctx, dh_cluster_mesh(&ctx, c, 1, 2, 1, 2, 1, &mesh));
    assert_false(dh_cluster_span_of(c, &mesh, DH_GROUP_TP, 0).spread);
    assert_true(dh_cluster_span_of(c, &mesh, DH_GROUP_CP, 0).spread);
    assert_true(dh_cluster_span_of(c, &mesh, DH_GROUP_TP_CP, 0).spread);
    /* Two pairs, each over both switches, share the link between these: 25 GB/s each, not 100. */
    dh_cluster_span span = {.size = 2, .nodes = {1, 2}};
    const double ns = dh_cluster_collective(c, DH_OP_ALL_GATHER, 100e6, span).ns;
    span.spread = true;
    assert_near(dh_cluster_collective(c, DH_OP_ALL_GATHER, 100e6, span).ns - 3e3, 4 * (ns - 3e3));
    /* Four members exchange: two send to two over the link, a quarter of 80 MB each, at 50 GB/s. */
    const dh_cluster_span four = {.size = 4, .nodes = {1, 4}, .spread = true};
    assert_near(dh_cluster_collective(c, DH_OP_ALL_TO_ALL, 80e6, four).ns, 3e3 + 1.6e6);
    dh_cluster_destroy(c);
}

/* A link between every two: a ring of two has one, of three two, of four no more than what a
 * device has at all; a message has one. */
static void test_pairs(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    (void)state;
    assert_true(c->pair_bytes_per_s == 0);
    c->pair_bytes_per_s = 80e9;
    check_collective(c, DH_OP_ALL_GATHER, 100e6, 2, 1, 2, DH_COLLECTIVE_RING, 3e3 + 50e6 / 40);
    check_collective(c, DH_OP_ALL_GATHER, 90e6, 3, 1, 3, DH_COLLECTIVE_RING, 6e3 + 60e6 / 80);
    check_collective(c, DH_OP_ALL_GATHER, 100e6, 4, 1, 4, DH_COLLECTIVE_RING, 9e3 + 75e6 / 100);
    check_collective(c, DH_OP_SHIFT, 1e6, 4, 1, 4, DH_COLLECTIVE_NEIGHBOUR, 3e3 + 1e6 / 40);
    dh_cluster_destroy(c);
}

/* Nodes of four: whole ones, the fewest that get equal numbers, or none. */
static void test_uneven_nodes(void **state)
{
    static const struct {
        int64_t ranks, per_node;
    } cases[] = {{4, 4}, {3, 3}, {8, 4}, {6, 3}, {9, 3}, {10, 2}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    dh_mesh mesh;
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        assert_ok(&ctx, dh_cluster_mesh(&ctx, c, cases[i].ranks, 1, 1, 1, 1, &mesh));
        assert_int_equal(mesh.ranks_per_node, cases[i].per_node);
        assert_int_equal(mesh.nodes, cases[i].ranks / cases[i].per_node);
    }
    assert_fails(&ctx, dh_cluster_mesh(&ctx, c, 7, 1, 1, 1, 1, &mesh), DH_EINVAL,
                 "7 ranks do not lie evenly on nodes of 4 devices");
    dh_cluster_destroy(c);
}

/* ---- as costs ------------------------------------------------------------------------------- */

static dh_graph *layer(dh_ctx *ctx, const dh_mesh *mesh)
{
    dh_model model = {.name = "m",
                      .family = DH_FAMILY_GPT2,
                      .n_layers = 1,
                      .width = 1024,
                      .n_heads = 8,
                      .n_kv_heads = 8,
                      .head_dim = 128,
                      .ffn_width = 4096,
                      .vocab = 1000,
                      .max_seq = 512,
                      .bias = true,
                      .norm_eps = 1e-5};
    dh_build build = {.model = &model, .dtype = DH_BF16, .batch = 2, .seq = 512, .loss_scale = 1};
    dh_graph *g;
    assert_ok(ctx, dh_graph_build(ctx, &build, DH_BLOCK_LAYER, &g));
    assert_ok(ctx, dh_pass_tensor_parallel(ctx, g, (dh_shard){.tp = mesh->tp}));
    assert_ok(ctx, dh_graph_differentiate(ctx, g));
    return g;
}

static void test_costs(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    dh_arena *arena = dh_arena_create();
    const dh_costs *costs;
    dh_mesh mesh;
    assert_ok(&ctx, dh_cluster_costs(&ctx, arena, c, &costs));
    assert_ok(&ctx, dh_cluster_mesh(&ctx, c, 1, 8, 1, 1, 1, &mesh));
    assert_int_equal(mesh.nodes, 2);
    dh_graph *g = layer(&ctx, &mesh);
    int n_gemm = 0, n_cross = 0, n_attention = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_cost_op op = {g, &g->ops.at[i], &mesh, 0};
        const double ns = costs->solo(costs->self, &op).ns;
        const dh_cluster_class cls = dh_cluster_class_of(&op);
        assert_true(ns >= 2000);
        n_gemm += cls == DH_CLUSTER_GEMM;
        n_cross += cls == DH_CLUSTER_CROSS;
        n_attention += cls == DH_CLUSTER_ATTENTION || cls == DH_CLUSTER_ATTENTION_GRAD;
        /* 1024 tokens of 1024 in bf16, over two nodes of four */
        if (op.op->type == DH_OP_ALL_GATHER)
            assert_near(ns, dh_cluster_collective(
                                c, DH_OP_ALL_GATHER, 2 << 20,
                                (dh_cluster_span){.size = 8, .nodes = {2, 4}, .spread = true})
                                .ns);
        if (op.op->type == DH_OP_ATTN) assert_near(ns, dh_op_flops(g, op.op) / 0.5e12 * 1e9);
    }
    assert_int_equal(n_gemm, 12);
    assert_int_equal(n_attention, 2);
    assert_true(n_cross >= 8);
    dh_graph_destroy(g);
    dh_arena_destroy(arena);
    dh_cluster_destroy(c);
}

/* Scores cost more than blockwise attention, and making them again more than keeping them. */
static void test_attention_kernels(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    dh_arena *arena = dh_arena_create();
    const dh_costs *costs;
    dh_mesh mesh;
    assert_ok(&ctx, dh_cluster_costs(&ctx, arena, c, &costs));
    assert_ok(&ctx, dh_cluster_mesh(&ctx, c, 1, 1, 1, 1, 1, &mesh));
    assert_int_equal(mesh.nodes, 1);
    dh_graph *g = layer(&ctx, &mesh);
    double forward[3] = {0}, backward[3] = {0};
    for (int k = 0; k < 3; k++) {
        c->attention = (dh_attention_kernel)k;
        for (size_t i = 0; i < g->ops.n; i++) {
            const dh_cost_op op = {g, &g->ops.at[i], &mesh, 0};
            const double ns = costs->solo(costs->self, &op).ns;
            if (op.op->type == DH_OP_ATTN) forward[k] = ns;
            if (op.op->type == DH_OP_ATTN_GRAD) backward[k] = ns;
        }
    }
    assert_true(forward[DH_ATTENTION_SCORES] > forward[DH_ATTENTION_BLOCKWISE]);
    assert_near(forward[DH_ATTENTION_SCORES_RECOMPUTE], forward[DH_ATTENTION_SCORES]);
    assert_near(backward[DH_ATTENTION_SCORES_RECOMPUTE],
                backward[DH_ATTENTION_SCORES] + forward[DH_ATTENTION_SCORES]);
    dh_graph_destroy(g);
    dh_arena_destroy(arena);
    dh_cluster_destroy(c);
}

/* Work of `heads` over 1,024 queries and 1,000 keys, of which a part meets. */
static double work_ns(const dh_cluster *c, double heads, double head_dim, double part)
{
    const double pairs = 1024. * 1000 * part;
    const dh_attention_work work = {.dtype = DH_BF16,
                                    .flops = 4 * head_dim * pairs * heads,
                                    .heads = heads,
                                    .queries = 1024,
                                    .keys = 1000,
                                    .pairs = pairs,
                                    .head_dim = head_dim};
    return dh_cluster_attention_ns(c, &work, false);
}

/* Of 0.5 TFLOP/s; 8 blocks a head on 10 processors. */
static void test_attention_shares(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    const double pair_ns = 4 * 128 / 0.5e12 * 1e9, all = 1024. * 1000;
    assert_near(work_ns(c, 5, 128, 1), 5 * all * pair_ns); /* no shape matters */
    assert_near(work_ns(c, 4, 128, .5), 2 * all * pair_ns);
    assert_ok(&ctx, dh_cluster_set(&ctx, c, "attention.start_keys", 100));
    assert_near(work_ns(c, 5, 128, 1), 5 * all * pair_ns * 1.1);
    assert_near(work_ns(c, 5, 128, .5), 2.5 * all * pair_ns * 1.2);
    assert_ok(&ctx, dh_cluster_set(&ctx, c, "attention.head_half", 32));
    assert_near(work_ns(c, 5, 128, 1), 5 * all * pair_ns * 1.1);
    assert_near(work_ns(c, 5, 64, 1), 5 * all * pair_ns / 2 * 1.1 * 1.5 / 1.25);
    assert_ok(&ctx, dh_cluster_set(&ctx, c, "attention.block", 128));
    assert_near(work_ns(c, 5, 128, 1), 5 * all * pair_ns * 1.1); /* four whole waves */
    assert_near(work_ns(c, 4, 128, 1), work_ns(c, 5, 128, 1));   /* 3.2 take four */
    /* Half a block on the mask's edge for nothing; processors end half of the longest apart. */
    assert_near(work_ns(c, 5, 128, .5), 2.5 * all * pair_ns * (500. + 100 + 64) / 500 * 1.25);
    /* No sooner than the longest block: eight of them on ten processors. */
    assert_near(work_ns(c, 1, 128, .5), .5 * all * pair_ns * (500. + 100 + 64) / 500 * 2.5);
    dh_cluster_destroy(c);
}

static void test_oef(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *c = read_toy(&ctx);
    assert_near(dh_cluster_oef(c, DH_CLUSTER_LOCAL, DH_CLUSTER_GEMM), 0.5);
    assert_near(dh_cluster_oef(c, DH_CLUSTER_MEMORY, DH_CLUSTER_LOCAL), 0.5);
    assert_near(dh_cluster_oef(c, DH_CLUSTER_LOCAL, DH_CLUSTER_ATTENTION_GRAD), 0.25);
    assert_near(dh_cluster_oef(c, DH_CLUSTER_CROSS, DH_CLUSTER_LOCAL),
                dh_oef_modelled(DH_ENGINE_CROSS, DH_ENGINE_LOCAL));
    dh_cluster_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_device_bytes),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_like),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_gemm_waves),
        cmocka_unit_test(test_gemm_fp8),
        cmocka_unit_test(test_gemm_picks_tiles),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_in_switch),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_attention_kernels),
        cmocka_unit_test(test_attention_shares),
        cmocka_unit_test(test_oef),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_uneven_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
