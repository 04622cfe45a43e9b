/* Measurements of a cluster that is known, written as nccl-tests, sweeps and profilers write them:
 * the fit finds the constants again, and the file that comes out is that cluster. And files that
 * are not what they should be. */
#include "dh_test.h"

#include <math.h>

#include "base/json_text.h"
#include "calibrate/measured.h"
#include "costs/cluster_ops.h"
#include "costs/profile.h"
#include "describe/calibrated.h"

enum { NOISE_PERMILLE = 20 };
static const uint64_t seed = 20240611;

/* The known cluster: an H100 but for these. */
typedef struct truth {
    dh_cluster *cluster;
    uint64_t drawn;
} truth;

static truth make_truth(dh_ctx *ctx)
{
    truth t = {.drawn = seed};
    assert_ok(ctx, dh_cluster_find(ctx, "h100", &t.cluster));
    t.cluster->local.efficiency = 0.62;
    t.cluster->local.step_ns = 3200;
    t.cluster->local.in_switch = 0.5;
    t.cluster->local.in_switch_ns = 36000;
    t.cluster->local.direct_ns = 50000;
    t.cluster->local.transfer_efficiency = 0.7;
    t.cluster->network.efficiency = 0.71;
    t.cluster->network.step_ns = 14000;
    t.cluster->network.transfer_efficiency = 0.6;
    t.cluster->gemm_efficiency = 0.66;
    t.cluster->kernel_ns = 4500;
    return t;
}

/* A measured time: 2 % around the true one. */
static double noisy(truth *t, double ns)
{
    t->drawn = dh_mix64(t->drawn);
    return ns * (1 + ((double)(t->drawn % 2001) / 1000 - 1) * NOISE_PERMILLE / 1000);
}

static double collective_ns(truth *t, dh_op_type type, int64_t ranks, int64_t nodes, double bytes)
{
    const dh_cluster_span span = {.size = ranks,
                                  .nodes = {.n_nodes = nodes, .max_per_node = ranks / nodes}};
    return noisy(t, dh_cluster_collective(t->cluster, type, bytes, span).ns);
}

static const char *path_of(const char *dir, const char *name)
{
    static char paths[16][320];
    static int n;
    n = (n + 1) % 16;
    snprintf(paths[n], sizeof paths[n], "%s/%s", dir, name);
    return paths[n];
}

static const char *put(const char *dir, const char *name, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    const char *path = path_of(dir, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
    return path;
}

static const char *put_str(const char *dir, const char *name, dh_str *text)
{
    const char *path = put(dir, name, text->text);
    dh_str_fini(text);
    return path;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* groups: communicators that are timed beside each other, each with a rank on every node. */
static const char *put_nccl(truth *t, const char *dir, const char *name, dh_op_type type,
                            int64_t ranks, int64_t nodes, bool groups)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824\n#\n");
    for (int64_t r = 0; r < ranks; r++)
        dh_str_printf(&text,
                      "#  Rank %2d Group %2d Pid %d on  node%d device %2d [0x1b] NVIDIA H100\n",
                      (int)r, groups ? (int)(r % (ranks / nodes)) : 0, 4000 + (int)r,
                      (int)(r / (ranks / nodes)), (int)(r % (ranks / nodes)));
    dh_str_printf(
        &text, "#\n#       size         count      type   redop    root     time   algbw   busbw "
               "#wrong     time   algbw   busbw #wrong\n"
               "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n");
    const int64_t members = groups ? nodes : ranks;
    for (double bytes = 1024; bytes <= 1e9; bytes *= 2) {
        const double us = collective_ns(t, type, members, nodes, bytes) / 1e3;
        const double algbw = bytes / us * 1e-3, share = (double)(members - 1) / (double)members;
        const double busbw = algbw * (type == DH_OP_ALL_REDUCE      ? 2 * share
                                      : type == DH_OP_RING_EXCHANGE ? 1
                                                                    : share);
        dh_str_printf(&text,
                      "%12.0f %13.0f     float     sum      -1  %10.3f  %.2f  %.2f      0  N/A "
                      " N/A  N/A   N/A\n",
                      bytes, bytes / 4, us, algbw, busbw);
    }
    dh_str_printf(&text, "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 41.7\n");
    return put_str(dir, name, &text);
}

static double gemm_ns(truth *t, int64_t m, int64_t n, int64_t k)
{
    const double bytes = 2 * (double)(m * k + k * n + m * n);
    const dh_gemm_shape shape = {
        .dtype = DH_BF16, .rows = m, .columns = n, .shared = k, .batch = 1, .bytes = bytes};
    return noisy(t, dh_cluster_gemm_ns(t->cluster, &shape));
}

static const char *put_gemms(truth *t, const char *dir, const char *name, bool rate)
{
    dh_str text = DH_STR_INIT;
    int i = 0;
    dh_str_printf(&text, "# cuBLAS, median of 50\nm,n,k,dtype,%s\n", rate ? "TFLOPS" : "time_us");
    for (int64_t m = 64; m <= 16384; m *= 2)
        for (int64_t n = 128; n <= 8192; n *= 4) {
            const int64_t k = 512 << i++ % 5;
            const double ns = gemm_ns(t, m, n, k);
            dh_str_printf(&text, "%d,%d,%d,bf16,%.6g\n", (int)m, (int)n, (int)k,
                          rate ? 2.0 * (double)(m * n * k) / ns / 1e3 : ns / 1e3);
        }
    return put_str(dir, name, &text);
}

/* Rank 0 or 1 of two that gather: the one that comes first waits. Kernels stand before the
 * operators that start them, as they may in a trace. */
static const char *put_trace(truth *t, const char *dir, const char *name, int rank)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "{\"traceEvents\": [\n");
    for (int i = 0; i < 30; i++) {
        const double bytes = 65536 * pow(1.4, i);
        const double us = collective_ns(t, DH_OP_ALL_GATHER, 8, 1, floor(bytes / 2) * 2) / 1e3;
        dh_str_printf(
            &text,
            "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclDevKernel_AllGather_RING_LL\","
            "\"dur\":%.4f,\"args\":{\"Collective name\":\"_allgather_base\",\"dtype\":"
            "\"BFloat16\",\"In msg nelems\":1,\"Out msg nelems\":%.0f,\"Group size\":8,"
            "\"Process Group Ranks\":\"[0, 1, 2, 3, 4, 5, 6, 7]\"}},\n",
            i % 2 == rank ? us : us * 9, floor(bytes / 2));
    }
    for (int i = 0; i < 40; i++) {
        const int64_t m = 256 << i % 6, n = 1024 << i % 4;
        dh_str_printf(
            &text,
            "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"sm90_gemm\",\"dur\":%.4f,\"args\":{"
            "\"External id\":%d}},\n"
            "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::addmm\",\"dur\":20,\"args\":{"
            "\"External id\":%d,\"Input Dims\":[[%d],[%d,4096],[4096,%d]],\"Input type\":["
            "\"c10::BFloat16\",\"c10::BFloat16\",\"c10::BFloat16\"]}},\n",
            gemm_ns(t, m, n, 4096) / 1e3, i + 7, i + 7, (int)n, (int)m, (int)n);
    }
    dh_str_printf(&text,
                  "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::mm\",\"dur\":1,\"args\":{}}"
                  "]}\n");
    return put_str(dir, name, &text);
}

/* ---- what comes out ------------------------------------------------------------------------- */

static const dh_calibration_constant *constant_of(const dh_calibrated *c, const char *key)
{
    for (size_t i = 0; i < c->fit.n_constants; i++)
        if (strcmp(c->fit.constants[i].key, key) == 0) return &c->fit.constants[i];
    fail_msg("no constant %s", key);
    return NULL;
}

static void assert_found(const dh_calibrated *c, const char *key, double want, double tolerance)
{
    const dh_calibration_constant *k = constant_of(c, key);
    if (!k->fitted || k->at_bound)
        fail_msg("%s: %s, %g%s", key, k->why, k->value, k->at_bound ? ", at its bound" : "");
    if (fabs(k->value / want - 1) > tolerance)
        fail_msg("seed %llu: %s is %g, not %g", (unsigned long long)seed, key, k->value, want);
    assert_true(k->held.n > 0 && k->held.n * 2 <= k->used.n + 6);
    if (k->used.mean > 0.03 || k->held.mean > 0.03)
        fail_msg("%s: errors %g and %g", key, k->used.mean, k->held.mean);
}

/* Tolerances: 2 % noise a row over tens of rows, of which small messages fix the steps. */
static void test_constants_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    dh_cluster *written;
    test_tmpdir(dir, sizeof dir);
    truth t = make_truth(&ctx);
    const char *files[] = {
        put_nccl(&t, dir, "all_gather_1x8.txt", DH_OP_ALL_GATHER, 8, 1, false),
        put_nccl(&t, dir, "reduce_scatter_1x8.txt", DH_OP_REDUCE_SCATTER, 8, 1, false),
        put_nccl(&t, dir, "all_reduce_1x8.txt", DH_OP_ALL_REDUCE, 8, 1, false),
        put_nccl(&t, dir, "alltoall_1x8.txt", DH_OP_ALL_TO_ALL, 8, 1, false),
        put_nccl(&t, dir, "sendrecv_1x2.txt", DH_OP_RING_EXCHANGE, 2, 1, false),
        put_nccl(&t, dir, "all_gather_2x8.txt", DH_OP_ALL_GATHER, 16, 2, false),
        put_nccl(&t, dir, "all_reduce_2x8.txt", DH_OP_ALL_REDUCE, 16, 2, false),
        put_nccl(&t, dir, "sendrecv_pairs.txt", DH_OP_RING_EXCHANGE, 16, 2, true),
        put_gemms(&t, dir, "gemm.csv", false)};
    const dh_describe_calibrate_options how = {.like = "h100", .out = path_of(dir, "mine.yaml")};
    assert_ok(&ctx, dh_calibrated_make(&ctx, files, DH_COUNTOF(files), &how, &c));
    assert_found(&c, "local.efficiency", 0.62, 0.02);
    assert_found(&c, "local.step_us", 3.2, 0.05);
    assert_found(&c, "local.in_switch", 0.5, 0.02);
    assert_found(&c, "local.in_switch_us", 36, 0.05);
    assert_found(&c, "local.direct_us", 50, 0.05);
    assert_found(&c, "local.transfer_efficiency", 0.7, 0.02);
    assert_found(&c, "network.efficiency", 0.71, 0.02);
    assert_found(&c, "network.step_us", 14, 0.05);
    assert_found(&c, "network.transfer_efficiency", 0.6, 0.02);
    assert_found(&c, "gemm.efficiency", 0.66, 0.02);
    assert_found(&c, "device.kernel_us", 4.5, 0.05);
    assert_ok(&ctx, dh_cluster_find(&ctx, how.out, &written));
    assert_true(fabs(written->network.step_ns / c.fit.cluster.network.step_ns - 1) < 1e-5);
    assert_true(fabs(written->gemm_efficiency / c.fit.cluster.gemm_efficiency - 1) < 1e-5);
    assert_true(written->memory_bytes == t.cluster->memory_bytes);
    dh_cluster_destroy(written);
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

static bool notes_say(const dh_calibrated *c, const char *text)
{
    for (size_t i = 0; i < c->measured.notes.n; i++)
        if (strstr(c->measured.notes.at[i], text)) return true;
    return false;
}

static double value_of(const dh_calibrated *c, const char *key)
{
    return constant_of(c, key)->value;
}

static double base_of(const dh_calibrated *c, const char *key)
{
    return constant_of(c, key)->base;
}

static void assert_proportion(const dh_calibrated *c, const char *key, const char *to)
{
    const double own = value_of(c, key) / base_of(c, key), other = value_of(c, to) / base_of(c, to);
    if (fabs(own / other - 1) > 1e-6)
        fail_msg("%s is %g times what it was, %s %g times", key, own, to, other);
}

/* All-reduces that switches add up say nothing of rings, and rings nothing of them. What has no test
 * keeps its proportion to what has one, and the missing test is named. */
static void test_one_collective_alone(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    dh_cluster *written;
    test_tmpdir(dir, sizeof dir);
    truth t = make_truth(&ctx);
    const char *reduces[] = {
        put_nccl(&t, dir, "all_reduce_1x8.txt", DH_OP_ALL_REDUCE, 8, 1, false),
        put_nccl(&t, dir, "all_reduce_2x8.txt", DH_OP_ALL_REDUCE, 16, 2, false)};
    const dh_describe_calibrate_options how = {.like = "h100", .out = path_of(dir, "mine.yaml")};
    assert_ok(&ctx, dh_calibrated_make(&ctx, reduces, DH_COUNTOF(reduces), &how, &c));
    assert_found(&c, "local.in_switch", 0.5, 0.03);
    assert_false(constant_of(&c, "local.efficiency")->fitted);
    assert_true(constant_of(&c, "local.efficiency")->follows);
    assert_proportion(&c, "local.efficiency", "local.in_switch");
    assert_true(notes_say(&c, "all_gather_perf on one node"));
    assert_true(notes_say(&c, "all_gather_perf on several nodes"));
    assert_true(value_of(&c, "network.tree") == base_of(&c, "network.tree"));
    assert_true(value_of(&c, "network.in_switch") == base_of(&c, "network.in_switch"));
    assert_ok(&ctx, dh_cluster_find(&ctx, how.out, &written));
    assert_true(fabs(written->local.efficiency / c.fit.cluster.local.efficiency - 1) < 1e-5);
    assert_true(fabs(written->local.step_ns / c.fit.cluster.local.step_ns - 1) < 1e-5);
    dh_cluster_destroy(written);
    dh_calibrated_fini(&c);

    const char *gathers[] = {
        put_nccl(&t, dir, "all_gather_1x8.txt", DH_OP_ALL_GATHER, 8, 1, false)};
    assert_ok(&ctx, dh_calibrated_make(&ctx, gathers, 1, &how, &c));
    assert_found(&c, "local.efficiency", 0.62, 0.03);
    assert_proportion(&c, "local.in_switch", "local.efficiency");
    assert_true(notes_say(&c, "all_reduce_perf on one node"));
    dh_calibrated_fini(&c);

    const char *both[] = {reduces[0], gathers[0]};
    assert_ok(&ctx, dh_calibrated_make(&ctx, both, 2, &how, &c));
    assert_found(&c, "local.efficiency", 0.62, 0.03);
    assert_found(&c, "local.in_switch", 0.5, 0.03);
    assert_false(notes_say(&c, "in proportion"));
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

/* Of two ranks' traces the shorter occurrence; a rate is a time; what has no row stays. */
static void test_traces(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    test_tmpdir(dir, sizeof dir);
    truth t = make_truth(&ctx);
    const char *files[] = {put_trace(&t, dir, "rank0.json", 0), put_trace(&t, dir, "rank1.json", 1),
                           put_gemms(&t, dir, "gemm.csv", true)};
    const dh_describe_calibrate_options how = {.like = "h100"};
    assert_ok(&ctx, dh_calibrated_make(&ctx, files, DH_COUNTOF(files), &how, &c));
    assert_found(&c, "local.efficiency", 0.62, 0.02);
    assert_found(&c, "gemm.efficiency", 0.66, 0.02);
    assert_false(constant_of(&c, "network.efficiency")->fitted);
    assert_true(constant_of(&c, "network.efficiency")->value ==
                constant_of(&c, "network.efficiency")->base);
    assert_int_equal(c.measured.notes.n, 3);
    assert_non_null(strstr(c.measured.notes.at[0], "record_shapes"));
    assert_true(notes_say(&c, "all_reduce_perf on one node")); /* they have all-gathers alone */
    json_t *said = dh_calibrated_json(&c, &how);
    assert_int_equal(json_array_size(json_object_get(said, "constants")), c.fit.n_constants);
    assert_int_equal(json_array_size(json_object_get(said, "groups")), c.fit.n_groups);
    json_decref(said);
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

/* ---- attention and norms -------------------------------------------------------------------- */

enum { HEADS = 16, KV_HEADS = 4, HEAD_DIM = 64, WIDTH = HEADS * HEAD_DIM };

static dh_graph *build_layer(int64_t batch, int64_t seq)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_model model = {.name = "m",
                            .family = DH_FAMILY_LLAMA,
                            .n_layers = 1,
                            .width = WIDTH,
                            .n_heads = HEADS,
                            .n_kv_heads = KV_HEADS,
                            .head_dim = HEAD_DIM,
                            .ffn_width = 64,
                            .vocab = 1000,
                            .max_seq = seq,
                            .rope = {.theta = 1e4},
                            .norm_eps = 1e-5};
    const dh_build build = {
        .model = &model, .dtype = DH_BF16, .batch = batch, .seq = seq, .loss_scale = 1};
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    return g;
}

/* What an operator of a layer takes on the known cluster, without noise. */
static double layer_ns(const truth *t, dh_op_type type, int64_t batch, int64_t seq)
{
    dh_graph *g = build_layer(batch, seq);
    double ns = 0;
    for (size_t i = 0; i < g->ops.n && ns == 0; i++) {
        const dh_cost_op op = {.graph = g, .op = &g->ops.at[i]};
        if (op.op->type == type) ns = dh_cluster_op_ns(t->cluster, &op);
    }
    dh_graph_destroy(g);
    assert_true(ns > 0);
    return ns;
}

static truth make_layer_truth(dh_ctx *ctx)
{
    truth t = make_truth(ctx);
    t.cluster->kernel_ns = 3000; /* as an H100's: there are no GEMMs to tell */
    t.cluster->memory_efficiency = 0.62;
    t.cluster->attention_efficiency = 0.57;
    t.cluster->attention_grad_efficiency = 0.33;
    return t;
}

/* An operator as the profiler has it, and its kernel. */
static void put_op(dh_str *text, const char *name, double ns, const char *dims,
                   const char *concrete)
{
    static int id;
    dh_str_printf(text,
                  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"kernel\",\"dur\":%.6f,\"args\":{"
                  "\"External id\":%d}},\n"
                  "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::%s\",\"dur\":20,\"args\":{"
                  "\"External id\":%d,\"Input Dims\":[%s],\"Input type\":[\"c10::BFloat16\","
                  "\"c10::BFloat16\",\"c10::BFloat16\",\"c10::BFloat16\"]%s}},\n",
                  ns / 1e3, id, name, id, dims, concrete);
    id++;
}

/* causal "": the profiler does not say. */
static void put_layer(const truth *t, dh_str *text, int64_t batch, int64_t seq, const char *causal)
{
    char dims[200], backward[240], norm[80], forth[160] = "", back[160] = "";
    const double twice = strcmp(causal, "False") == 0 ? 2 * (double)seq / (double)(seq + 1) : 1;
    snprintf(dims, sizeof dims, "[%d,%d,%d,%d],[%d,%d,%d,%d],[%d,%d,%d,%d]", (int)batch, (int)seq,
             HEADS, HEAD_DIM, (int)batch, (int)seq, KV_HEADS, HEAD_DIM, (int)batch, (int)seq,
             KV_HEADS, HEAD_DIM);
    snprintf(backward, sizeof backward, "[1],%s", dims);
    snprintf(norm, sizeof norm, "[%d,%d,%d],[%d]", (int)batch, (int)seq, WIDTH, WIDTH);
    if (*causal) {
        snprintf(forth, sizeof forth,
                 ",\"Concrete Inputs\":[\"\",\"\",\"\",\"\",\"\",\"8\",\"8\",\"0.\",\"%s\"]",
                 causal);
        snprintf(back, sizeof back,
                 ",\"Concrete Inputs\":[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"8\",\"8\",\"0.\","
                 "\"%s\"]",
                 causal);
    }
    put_op(text, "_flash_attention_forward", twice * layer_ns(t, DH_OP_ATTN, batch, seq), dims,
           forth);
    put_op(text, "_flash_attention_backward", twice * layer_ns(t, DH_OP_ATTN_GRAD, batch, seq),
           backward, back);
    put_op(text, "_fused_rms_norm", layer_ns(t, DH_OP_NORM, batch, seq), norm, "");
}

static const char *put_layers(const truth *t, const char *dir)
{
    static const char *const causal[] = {"True", "", "False"};
    dh_str text = DH_STR_INIT;
    int i = 0;
    dh_str_printf(&text, "{\"traceEvents\": [\n");
    for (int64_t batch = 1; batch <= 4; batch *= 2)
        for (int64_t seq = 1024; seq <= 8192; seq *= 2)
            put_layer(t, &text, batch, seq, causal[i++ % 3]);
    put_op(&text, "_flash_attention_forward", 1e9, "[1,64,8,64],[1,4096,8,64],[1,4096,8,64]", "");
    dh_str_printf(&text, "{}]}\n");
    return put_str(dir, "trace.json", &text);
}

/* Times of a layer's own operators give their constants back: what the fit counts as work is what
 * graphs do. Attention of every token to all others is twice the work; to another sequence, none
 * that counts. */
static void test_attention_and_norms(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    dh_cluster *written;
    test_tmpdir(dir, sizeof dir);
    truth t = make_layer_truth(&ctx), slower = make_layer_truth(&ctx);
    const dh_describe_calibrate_options how = {.like = "selene", .out = path_of(dir, "own.yaml")};
    slower.cluster->bf16_flops_per_s /= 4; /* an A100 has a third */
    const char *file = put_layers(&slower, dir);
    assert_ok(&ctx, dh_calibrated_make(&ctx, &file, 1, &how, &c));
    assert_int_equal(c.fit.cluster.attention, DH_ATTENTION_BLOCKWISE);
    assert_ok(&ctx, dh_cluster_find(&ctx, how.out, &written));
    assert_int_equal(written->attention, DH_ATTENTION_BLOCKWISE);
    dh_cluster_destroy(written);
    dh_calibrated_fini(&c);
    dh_cluster_destroy(slower.cluster);

    const dh_describe_calibrate_options own = {.like = "h100"};
    file = put_layers(&t, dir);
    assert_ok(&ctx, dh_calibrated_make(&ctx, &file, 1, &own, &c));
    assert_found(&c, "device.memory_efficiency", 0.62, 0.01);
    assert_found(&c, "attention.efficiency", 0.57, 1e-3);
    assert_found(&c, "attention.grad_efficiency", 0.33, 1e-3);
    assert_true(constant_of(&c, "attention.efficiency")->used.mean < 1e-3);
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

/* One size, but often: its median is enough. Once: it is not. */
static void test_one_size_often(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    truth t = make_layer_truth(&ctx);
    for (int often = 0; often < 2; often++) {
        dh_calibrated c;
        dh_str text = DH_STR_INIT;
        dh_str_printf(&text, "{\"traceEvents\": [\n");
        for (int i = 0; i < (often ? 5 : 1); i++) put_layer(&t, &text, 2, 4096, "True");
        dh_str_printf(&text, "{}]}\n");
        const char *file = put_str(dir, "trace.json", &text);
        const dh_describe_calibrate_options how = {.like = "h100"};
        assert_ok(&ctx, dh_calibrated_make(&ctx, &file, 1, &how, &c));
        assert_int_equal(constant_of(&c, "attention.efficiency")->fitted, often);
        if (often)
            assert_true(fabs(constant_of(&c, "attention.efficiency")->value / 0.57 - 1) < 1e-3);
        dh_calibrated_fini(&c);
    }
    dh_cluster_destroy(t.cluster);
}

/* ---- profiles ------------------------------------------------------------------------------- */

static uint32_t add_op(dh_profile *p, const char *key, dh_stream stream, dh_pair_source source)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint32_t id;
    const dh_profile_op op = {.key = key,
                              .label = key,
                              .stream = stream,
                              .forward = true,
                              .backward = true,
                              .source = source,
                              .solo_ns = 1000,
                              .n_samples = 9};
    assert_ok(&ctx, dh_profile_add_op(&ctx, p, &op, &id));
    return id;
}

/* Both take 1,000 alone: together so long that this is what overlap gains. */
static void add_pair(dh_profile *p, uint32_t a, uint32_t b, double oef, dh_pair_source source)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_profile_pair pair = {.a = a,
                                  .b = b,
                                  .source = source,
                                  .a_ns = (int64_t)lround(2000 - 1000 * oef),
                                  .b_ns = 900,
                                  .n_samples = 9};
    assert_ok(&ctx, dh_profile_add_pair(&ctx, p, &pair));
}

static const char *put_profile(const char *dir)
{
    static const double oefs[] = {.9, .5, .7, -.2, .75};
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p;
    const char *path = path_of(dir, "profile.json");
    assert_ok(&ctx, dh_profile_create(&ctx, "p", &p));
    assert_ok(&ctx, dh_profile_add_fact(&ctx, p, "machine", "this"));
    const uint32_t gather = add_op(p, "all_gather x=bf16[8]", DH_STREAM_LOCAL, DH_PAIR_MEASURED),
                   far = add_op(p, "all_reduce x=f32[8]", DH_STREAM_CROSS_DATA, DH_PAIR_MEASURED),
                   attn = add_op(p, "attention q=bf16[8]", DH_STREAM_COMPUTE, DH_PAIR_MEASURED),
                   guessed = add_op(p, "linear x=bf16[9]", DH_STREAM_COMPUTE, DH_PAIR_MODELLED);
    for (size_t i = 0; i < DH_COUNTOF(oefs); i++) {
        char key[64];
        snprintf(key, sizeof key, "linear x=bf16[%zu]", i);
        const uint32_t product = add_op(p, key, DH_STREAM_COMPUTE, DH_PAIR_MEASURED);
        add_pair(p, i % 2 ? product : gather, i % 2 ? gather : product, oefs[i], DH_PAIR_MEASURED);
    }
    add_pair(p, attn, far, .25, DH_PAIR_MEASURED);
    add_pair(p, gather, far, -30, DH_PAIR_MEASURED); /* more than a cluster file has */
    add_pair(p, attn, gather, .1, DH_PAIR_IMPORTED);
    add_pair(p, guessed, far, .1, DH_PAIR_MEASURED);
    assert_ok(&ctx, dh_profile_write(&ctx, p, path));
    dh_profile_destroy(p);
    return path;
}

/* Medians of what was measured, either way round; what was not stays. */
static void test_pairs_of_profiles(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    dh_cluster *written;
    test_tmpdir(dir, sizeof dir);
    const char *file = put_profile(dir);
    const dh_describe_calibrate_options how = {.like = "h100", .out = path_of(dir, "pairs.yaml")};
    assert_ok(&ctx, dh_calibrated_make(&ctx, &file, 1, &how, &c));
    assert_int_equal(c.measured.pairs.n, 7);
    assert_int_equal(c.fit.n_oefs, 3);
    assert_int_equal(c.fit.oefs[0].n, 5);
    assert_true(fabs(c.fit.oefs[0].base - .74) < 1e-9 && fabs(c.fit.oefs[0].value - .7) < 1e-9);
    assert_true(c.fit.oefs[0].quarter < .7 && c.fit.oefs[0].three_quarters > .7);
    assert_ok(&ctx, dh_cluster_find(&ctx, how.out, &written));
    assert_true(fabs(written->oef[DH_CLUSTER_GEMM][DH_CLUSTER_LOCAL] - .7) < 1e-9);
    assert_true(fabs(written->oef[DH_CLUSTER_CROSS][DH_CLUSTER_ATTENTION] - .25) < 1e-9);
    assert_true(fabs(written->oef[DH_CLUSTER_GEMM][DH_CLUSTER_CROSS] - .89) < 1e-9);
    assert_true(written->oef[DH_CLUSTER_LOCAL][DH_CLUSTER_CROSS] == -10);
    json_t *said = dh_calibrated_json(&c, &how);
    assert_int_equal(json_array_size(json_object_get(said, "oef")), 3);
    json_decref(said);
    dh_cluster_destroy(written);
    dh_calibrated_fini(&c);
    const char *no_profile =
        put(dir, "broken.json", "{\"profile\": {\"format\": \"dhelix-profile\"}}");
    assert_int_equal(dh_calibrated_make(&ctx, &no_profile, 1, &how, &c), DH_EFORMAT);
    assert_non_null(strstr(ctx.message, "broken.json"));
    dh_calibrated_fini(&c);
}

/* All of a layer's operators, as `dhelix profile` names them. */
static void add_layer(const truth *t, dh_profile *p, int64_t batch, int64_t seq)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = build_layer(batch, seq);
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_cost_op at = {.graph = g, .op = &g->ops.at[i]};
        char key[DH_OP_KEY_BYTES];
        const dh_profile_op op = {.key = dh_op_class_key(&at, key),
                                  .label = "operator",
                                  .stream = DH_STREAM_COMPUTE,
                                  .forward = true,
                                  .source = DH_PAIR_MEASURED,
                                  .solo_ns = lround(dh_cluster_op_ns(t->cluster, &at)),
                                  .n_samples = 11};
        assert_ok(&ctx, dh_profile_add_op(&ctx, p, &op, NULL));
    }
    dh_graph_destroy(g);
}

/* Collectives of two devices of a node, which a paced link hides. */
static void add_calls(truth *t, dh_profile *p)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int64_t rows = 1 << 10; rows <= 1 << 18; rows *= 2) {
        const double bytes = (double)rows * 1024 * sizeof(dh_bf16);
        char key[128];
        snprintf(key, sizeof key, "all_gather x=bf16[%d,1024] y=bf16[%d,1024]; tp of 2, local",
                 (int)rows / 2, (int)rows);
        const dh_profile_op op = {.key = key,
                                  .label = "all_gather",
                                  .stream = DH_STREAM_LOCAL,
                                  .forward = true,
                                  .source = DH_PAIR_MEASURED,
                                  .solo_ns =
                                      lround(collective_ns(t, DH_OP_ALL_GATHER, 2, 1, bytes)),
                                  .n_samples = 11};
        assert_ok(&ctx, dh_profile_add_op(&ctx, p, &op, NULL));
    }
}

static void test_solos_of_profiles(void **state)
{
    for (int paced = 0; paced < 2; paced++) {
        dh_ctx ctx = DH_CTX_INIT;
        char dir[200];
        dh_calibrated c;
        dh_profile *p;
        test_tmpdir(dir, sizeof dir);
        truth t = make_layer_truth(&ctx);
        const char *file = path_of(dir, "layers.json");
        assert_ok(&ctx, dh_profile_create(&ctx, "layers", &p));
        assert_ok(&ctx, dh_profile_add_fact(&ctx, p, "links.local",
                                            paced ? "paced at 4 Gbit/s + 20 us" : "not paced"));
        for (int64_t batch = 1; batch <= 4; batch *= 2)
            for (int64_t seq = 1024; seq <= 8192; seq *= 2) add_layer(&t, p, batch, seq);
        add_calls(&t, p);
        assert_ok(&ctx, dh_profile_write(&ctx, p, file));
        dh_profile_destroy(p);
        const dh_describe_calibrate_options how = {.like = "h100"};
        assert_ok(&ctx, dh_calibrated_make(&ctx, &file, 1, &how, &c));
        assert_found(&c, "gemm.efficiency", 0.66, 0.02);
        assert_found(&c, "device.memory_efficiency", 0.62, 0.02);
        assert_found(&c, "attention.efficiency", 0.57, 1e-3);
        assert_found(&c, "attention.grad_efficiency", 0.33, 1e-3);
        assert_int_equal(constant_of(&c, "local.efficiency")->fitted, !paced);
        if (!paced) assert_found(&c, "local.efficiency", 0.62, 0.03);
        dh_calibrated_fini(&c);
        dh_cluster_destroy(t.cluster);
    }
}

#define RANKS "# nThread 1\n# Rank 0 Pid 1 on a device 0\n# Rank 1 Pid 2 on a device 1\n"
#define HEAD "# size count type redop root time algbw busbw #wrong\n"

/* A whole output with such words before each line. */
#define LOGGED(before) LOGGED_RANKS(before) before HEAD before "  " ROW
#define LOGGED_RANKS(before)                                                                       \
    before "# Rank 0 Pid 1 on a device 0\n" before "# Rank 1 Pid 2 on a device 1\n"
/* The same with such ends, which are of JSON. */
#define IN_JSON(before, after)                                                                     \
    before "# Rank 0 Pid 1 on a device 0" after before "# Rank 1 Pid 2 on a device 1" after before \
           "# size count type redop root time algbw busbw #wrong" after before                     \
           "  1000000 250000 float none -1 10 100.00 50.00 0" after
/* all_gather of two ranks */
#define ROW "1000000 250000 float none -1 10 100.00 50.00 0\n"
#define SENT "1000000 250000 float none -1 10 100.00 100.00 0\n"
/* Each process sees one device. */
#define OWN_ROW(rank, id) "# Rank " rank " Pid 1" rank " on a device 0 " id " NVIDIA H100\n"
#define OWN(first, second) OWN_ROW("0", first) OWN_ROW("1", second)
/* nccl-tests -J: one process with so many devices, 1 MB in 100 us */
#define REPORT(n_devices, busbw)                                                                   \
    "{\"args\":[\"./all_reduce_perf\"],\"config\":{\"nthreads\":1,\"ngpus\":" n_devices            \
    "},\"devices\":[{\"rank\":0,\"group\":0,\"hostname\":\"a\",\"device\":0}],\"results\":["       \
    "{\"size\":1000000,\"out_of_place\":{\"time\":100.0,\"alg_bw\":10.0,\"bus_bw\":" busbw         \
    ",\"nwrong\":0}}]}\n"

/* The same of processes that see one device each. */
#define DEVICE(rank, bus)                                                                          \
    "{\"rank\":" rank ",\"pid\":1" rank ",\"hostname\":\"a\",\"device\":0,"                        \
    "\"device_hex\":\"0000:" bus ":00\"},"
#define DEVICES(a, b) DEVICE(#a, "1" #a) DEVICE(#b, "1" #b)
#define OWN_REPORT                                                                                 \
    "{\"args\":[\"./"                                                                              \
    "all_reduce_perf\"],\"config\":{\"nthreads\":1,\"ngpus\":1,\"devices\":[" DEVICES(0, 1)        \
        DEVICES(2, 3) DEVICES(4, 5)                                                                \
            DEVICE("6", "16") "{\"rank\":7,\"hostname\":\"a\",\"device\":0,\"device_hex\":\"17\"}" \
                              "]},\"results\":["                                                   \
                              "{\"size\":1000000,\"out_of_place\":{\"time\":100.0,\"alg_bw\":10."  \
                              "0,\"bus_bw\":17.5}}]}"

/* rccl-tests with MPI, -Z json: 8 processes on so many nodes */
#define RECORD(nodes, in_place, busbw)                                                             \
    "{\"numCycle\":0, \"name\":\"AllReduce\", \"nodes\":" nodes                                    \
    ", \"ranks\":8, \"ranksPerNode\":8, "                                                          \
    "\"gpusPerRank\":1, \"size\":1000000, \"type\":\"float\", \"redop\":\"sum\", "                 \
    "\"inPlace\":" in_place ", \"time\":100.0, \"algBw\":10.0, \"busBw\":" busbw                   \
    ", \"wrong\":\"0\"}"
#define MPI_CSV                                                                                    \
    "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,"       \
    "algbw,busbw,#wrong\n"

static const struct {
    const char *name, *text, *says;
} broken[] = {
    {"all_gather.txt", HEAD "1024 256 float none -1 10 1 1 0\n", ":2: 0 ranks before this row"},
    {"all_gather.txt", RANKS "# algbw\n1024 256 float none -1 10 1 1 0\n",
     ":5: a row before its heading"},
    {"all_gather.txt", RANKS HEAD "1024 256 float none -1 fast 1 1 0\n",
     ":5: a row as the heading has it is wanted"},
    {"all_gather.txt", RANKS HEAD "1024 256 float none -1 10 1 1 3\n", ":5: 3 wrong values"},
    {"all_gather.txt", RANKS "# Rank 2 Pid 3 on b device 0\n" HEAD "64 1 f n -1 10 1 1 0\n",
     ":6: 3 ranks lie unevenly on 2 nodes"},
    {"out.txt", RANKS HEAD "1024 256 float none -1 10 1 1 0\n",
     ":5: which collective was measured is not said"},
    {"all_gather.txt", "# Rank 0 Pid 1\n" HEAD,
     ":1: \"# Rank N Pid P on HOST device D\" is wanted"},
    {"all_gather.txt", RANKS HEAD, "no measurement in it"},
    {"g.csv", "m,n,k,dtype\n", ":1: no column time_us or tflops"},
    {"g.csv", "m,n,k,dtype,time_us\n1,2,3,bf16\n", ":2: 4 cells"},
    {"g.csv", "m,n,k,dtype,time_us\n\n1,-2,3,bf16,4\n", ":3: n \"-2\": a whole number"},
    {"g.csv", "m,n,k,dtype,time_us,copies\n1,2,3,bf16,4,8\n", ":1: column \"copies\" is not known"},
    {"g.csv", "m,n,k,dtype,time_us,tflops\n1024,1024,1024,bf16,10,1717\n",
     ":2: the rate \"1717\" is 8 times"},
    {"g.csv", "m,n,k,dtype,time_us,grouped_gemm\n1,2,3,bf16,4,1\n", ":2: grouped_gemm \"1\""},
    {"g.csv", "m,n,k,batch,batch_size,dtype,time_us\n1,2,3,4,5,bf16,6\n",
     ":1: columns \"batch\" and \"batch_size\" say the same"},
    {"g.csv", "m,n,k,dtype,time_us,time_ms\n1,2,3,bf16,4,0.004\n",
     ":1: columns \"time_us\" and \"time_ms\" say the same"},
    {"g.csv", "m,n,k,dtype,type,time_us\n1,2,3,bf16,fp8_e4m3,4\n", ":2: two columns say the type"},
    {"g.csv", "m,n,k,dtype,dtype,time_us\n1,2,3,bf16,fp8,4\n", ":2: two columns say the type"},
    {"g.csv", "m,n,k,dtype,time_us,gpus\n1,2,3,bf16,4,8\n", ":1: column \"gpus\" is not known"},
    {"g.csv", "m,n,k,A,B,batch_count,dtype,time_us\n1,2,3,bf16,4,4,bf16,5\n",
     ":2: column \"b\" has numbers, and another"},
    {"g.csv", "m,n,k,dtype,tflops\n1,2,3,bf16,0\n", ":2: \"0\": a rate above 0"},
    {"t.json", "{\"traceEvents\": [\n{]}", "t.json:2:"},
    {"t.json", "{\"events\": []}", "no array traceEvents"},
    {"t.json", "{\"traceEvents\": []}", "no measurement in it"},
    {"t.json", "\x1F\x8B\x08", "of the gzip file"},
    {"a.txt", "\xFF\xFE#", "UTF-8 is wanted"},
    /* what an output says twice */
    {"all_gather.txt", "# Rank 0 Pid 1 on a device 0\n# Rank 0 Pid 2 on b device 0\n" HEAD ROW,
     "built without MPI"},
    {"all_gather.txt", RANKS "# Rank 1 Pid 2 on b device 1\n" HEAD ROW, "rank 1 is listed twice"},
    {"all_gather.txt", RANKS "# Rank 7 Pid 2 on b device 1\n" HEAD ROW,
     "lacks rank 2 and goes up to 7"},
    {"all_gather.txt", "# Rank 0 Pid 1 on a device 0\n# Rank 1 Pid 2 on a device 0\n" HEAD ROW,
     "two ranks are on device 0 of a"},
    /* processes that number their own devices: on one device, on hosts with one name */
    {"all_gather.txt", OWN("[0x1b]", "[0x1b]") HEAD ROW, "two ranks are on device 0 [0x1b] of a"},
    {"all_gather.txt", OWN("[0x1b]", "") HEAD ROW, "two ranks are on device 0 [0x1b] of a"},
    {"all_gather.txt",
     OWN("[0000:1b:00]", "[0000:2c:00]") "# Rank 2 Pid 3 on a device 1 [0000:1b:00]\n" HEAD ROW,
     "two ranks are on device 0 [0000:2c:00] of a"},
    {"all_gather.txt",
     OWN("[1]", "[2]") OWN_ROW("2", "[3]") OWN_ROW("3", "[4]") OWN_ROW("4", "[5]")
         OWN_ROW("5", "[6]") OWN_ROW("6", "[7]") OWN_ROW("7", "[8]") OWN_ROW("8", "[9]") HEAD ROW,
     "9 ranks or more are on a, where each process numbers its own devices, and a node has 8"},
    /* lists of ranks that are cut at their end, with dots and without */
    {"sendrecv.txt",
     "# nThread 1 nGpus 4\n# Rank 0 Pid 1 on a device 0\n# Rank 1 Pid 1 on a device 1\n" HEAD SENT,
     "say 4 ranks of each process, and the 2 ranks"},
    {"sendrecv.txt",
     "# nThread 2 nGpus 1\n# Rank 0 Pid 1 on a device 0\n# Rank 1 Pid 2 on a device 1\n" HEAD SENT,
     "say 2 ranks of each process, and the 2 ranks"},
    {"sendrecv.txt",
     "mpirun -np 4 ./sendrecv_perf -b 8\n# nThread 1 nGpus 1\n" LOGGED_RANKS("") HEAD SENT,
     ":6: the launcher started 4 processes, and the list has the ranks of 2"},
    {"sendrecv.txt",
     "srun -N 1 -n 4 ./sendrecv_perf -n 2\n# nThread 1 nGpus 1\n" LOGGED_RANKS("") HEAD SENT,
     ":6: the launcher started 4 processes"},
    {"sendrecv.txt",
     "srun --ntasks=4 ./sendrecv_perf\n# nThread 1 nGpus 1\n" LOGGED_RANKS("") HEAD SENT,
     ":6: the launcher started 4 processes"},
    {"sendrecv.txt",
     "mpirun \\\n  -np 4 \\\n  ./sendrecv_perf\n# nThread 1 nGpus 1\n" LOGGED_RANKS("") HEAD SENT,
     ":8: the launcher started 4 processes"},
    {"sendrecv.txt",
     "# Rank 0 Group 0 Pid 1 on a device 0\n# Rank 1 Group 1 Pid 2 on a device 1\n"
     "# Rank 2 Group 0 Pid 3 on b device 0\n" HEAD SENT,
     "group 0 has 2 ranks and group 1 has 1"},
    {"all_gather.txt", RANKS "...\n" HEAD ROW, ":4: the list of ranks was shortened with dots"},
    {"all_gather.txt", RANKS "# [...]\n" HEAD ROW, ":4: the list of ranks was shortened with dots"},
    {"sendrecv.txt",
     LOGGED_RANKS("n: ") "n: # \xE2\x80\xA6\nn: " HEAD
                         "n: 1000000 250000 float none -1 10 100.00 100.00 0\n",
     ":3: the list of ranks was shortened with dots"},
    {"all_gather.txt", RANKS HEAD "1000000 250000 float none -1 10 100.00 50.02 0\n",
     "busbw is 0.5002 times algbw"},
    {"r.json",
     "{\"busBw\":101,\"algBw\":100.11,\"gpus\":2,\"inPlace\":0,\"name\":\"AllReduce\","
     "\"size\":1000000,\"time\":9.989}\n",
     "busbw is 1.0089 times algbw"},
    {"all_reduce.txt", RANKS HEAD ROW,
     "busbw is 0.5000 times algbw; for the collective of its name"},
    {"a.txt", "./all_gather_perf\n" RANKS "# Rank 2 Pid 3 on a device 2\n" HEAD ROW,
     "for all_gather of 3 ranks it would be 0.6667"},
    {"all_gather.txt", RANKS HEAD "1000000 250000 float none -1 10 50.00 25.00 0\n",
     "are 100.00 GB/s, and algbw says 50.00"},
    {"a.txt", "./reduce_scatter_perf\n" RANKS HEAD ROW "# nThread 1\n" RANKS HEAD ROW,
     ":12: which collective was measured is not said"},
    /* names of programs that did not run, or not alone */
    {"a.txt", "all_gather_perf  all_reduce_perf  alltoall_perf\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    {"a.txt", "build/gather_perf\nbuild/alltoall_perf\nbuild/sendrecv_perf\n" RANKS HEAD ROW,
     ":8: which collective was measured is not said"},
    {"a.txt", "$ cat /x/all_gather_perf.sh\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    {"a.txt", "make: built all_reduce_perf\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    {"a.txt", "Linking /x/all_gather.o > /x/build/all_gather_perf\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    {"a.txt", "rm -f build/all_gather_perf\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    {"a.txt", "make: 'all_gather_perf' is up to date.\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    /* a command, and words on another test after it */
    {"a.txt", "./all_gather_perf -b 8\nnext is alltoall_perf on node1\n" RANKS HEAD ROW,
     ":7: which collective was measured is not said"},
    {"a.txt", "./all_gather_perf -b 8; ./alltoall_perf -b 8\n" RANKS HEAD ROW,
     ":6: which collective was measured is not said"},
    /* a table of its own, however little is before it */
    {"all_gather.txt", "./all_gather_perf\n" RANKS HEAD ROW HEAD ROW,
     ":8: which collective was measured is not said"},
    {"all_gather.txt", RANKS HEAD ROW HEAD ROW, ":7: 0 ranks before this row"},
    {"all_gather.txt", "./all_gather_perf\n" RANKS HEAD ROW LOGGED(""),
     ":10: which collective was measured is not said"},
    {"all_gather.txt", "./all_gather_perf\n" RANKS HEAD ROW "./all_gather_perf\n" HEAD ROW,
     ":9: 0 ranks before this row"},
    {"a.txt",
     "./all_gather_perf\n" RANKS HEAD ROW "./all_gather_perf\n# nThread: 1\n"
     "# Rank 2 Pid 3 on a device 2\n" LOGGED(""),
     "for all_gather of 3 ranks it would be 0.6667"},
    {"all_gather.txt", RANKS HEAD "1000000\n", "a row as the heading has it"},
    {"all_gather.json", REPORT("2", "5.0"), "busbw is 0.5000 times algbw; for all_reduce of 2"},
    {"all_gather.json", REPORT("0", "10.0"), "\"ngpus\" of a process"},
    {"r.json",
     "{\"busBw\":5,\"algBw\":10,\"gpus\":2,\"inPlace\":0,\"name\":\"AllReduce\","
     "\"size\":1000000,\"time\":100}\n",
     "r.json:1: busbw is 0.5000 times algbw; for AllReduce of 2 ranks"},
    {"r.json", "[" RECORD("1", "0", "9") "]", "r.json:1: busbw is 0.9000 times algbw"},
    {"r.json", "[" RECORD("3", "0", "17.5") "]", "that they fill evenly"},
    {"r.csv", MPI_CSV "0,AllReduce,8,8,1,1000000,float,sum,0,100.0,10.0,17.5,0\n",
     "r.csv:2: as many cells"},
    {"r.csv", MPI_CSV "0,Gather,1,8,8,1,1000000,float,sum,0,100.0,10.0,17.5,3\n",
     "r.csv:2: wrong values"},
    {"all_gather.txt", RANKS "# size count type redop root cputime algbw busbw #wrong\n" ROW,
     ":4: \"cputime\" is the time that the host takes"},
    {"all_gather.txt", "# nThread 1\n# Rank 0 Pid 1 on a device 0\n" HEAD ROW, "built without MPI"},
};

static void test_broken_files(void **state)
{
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(broken); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_calibrated c;
        const char *path = put(dir, broken[i].name, broken[i].text);
        const dh_describe_calibrate_options how = {.like = "h100"};
        assert_fails(&ctx, dh_calibrated_make(&ctx, &path, 1, &how, &c), DH_EFORMAT,
                     broken[i].says);
        dh_calibrated_fini(&c);
    }
}

/* What launchers and copies do to a table of two ranks, each beside the table itself. */
static void test_forms_of_a_table(void **state)
{
    static const char *const forms[] = {
        RANKS HEAD ROW,
        "[1,0]<stdout>:# Rank 0 Pid 1 on a device 0\n[1,0]<stdout>:# Rank 1 Pid 2 on a device 1\n"
        "[1,0]<stdout>:" HEAD "[1,0]<stdout>: " ROW,
        "0: # Rank 0 Pid 1 on a device 0\n0: # Rank 1 Pid 2 on a device 1\n0: " HEAD "0:   " ROW,
        "node-1.x: # Rank 0 Pid 1 on a device 0\nnode-1.x: # Rank 1 Pid 2 on a device 1\n"
        "node-1.x: " HEAD "node-1.x: " ROW,
        "2026-07-10T10:00:00.1Z # Rank 0 Pid 1 on a device 0\n"
        "2026-07-10 10:00:00 # Rank 1 Pid 2 on a device 1\n10:00:00 " HEAD "10:00:00.5 " ROW,
        "> Rank 0 Pid 1 on a device 0\n> Rank 1 Pid 2 on a device 1\n"
        "> size count type redop root time algbw busbw #wrong\n> " ROW,
        "[1776962611.24] [n:3559 :0] parser.c:2033 UCX WARN x\n" RANKS HEAD
        "h:3442:3442 [0] NCCL INFO Launch mode Parallel\n" ROW,
        RANKS HEAD "1000000 250000 float 10 100.00 50.00 0\n", /* blank redop and root */
        RANKS "# size count type redop root time algbw busbw #wrong timestamp\n"
              "1000000 250000 float none -1 10 100.00 50.00 0 2026-07-10 10:00:00\n",
        "./broadcast_perf\n# nThread 1\n" RANKS HEAD ROW
        "./all_gather_perf\n# nThread 1\n" RANKS HEAD ROW,
        RANKS HEAD ROW "# nThread 1\n" RANKS HEAD ROW, /* given twice */
        "# Collective test starting: gather_perf\n# nThread 1\n" RANKS HEAD ROW
        "# Collective test concluded: gather_perf\n# Collective test starting: all_gather_perf\n"
        "# nThread 1\n" RANKS HEAD ROW,
        "$ cd /x/all_reduce_perf_logs && ./gather_perf -b 1M\n" RANKS HEAD ROW
        "./all_gather_perf\n" RANKS HEAD ROW,
        "+ '/x/gather_perf_logs/all_gather_perf' -b 8 > all_gather_perf.log\n" RANKS HEAD ROW,
        "built ./gather_perf.\n\n[1,0]<stdout>:$./all_gather_perf; true\n" RANKS HEAD ROW,
        /* words of loggers and launchers that no list has */
        LOGGED("\x1b[36m(pid=3)\x1b[0m "),
        LOGGED("Fri Jul 10 10:00:00 2026[1,0]<stdout>:"),
        LOGGED("I0710 10:00:00.123456 123 runner.cc:33] "),
        LOGGED("2026-07-10 10:00:00,123 - INFO - "),
        LOGGED("(NcclWorker pid=123, ip=10.0.0.1) "),
        LOGGED("launcher-1  | "),
        LOGGED("gpu[01-02]: "),
        LOGGED("Jul 10 10:00:01 node1 nccl[123]: "),
        LOGGED("1720606000123   "), /* looks like a row's size */
        LOGGED("node1 "),
        "[0] 12 34 a line before any table\n" RANKS HEAD ROW,
        /* lists and objects before a table; lines in JSON */
        "[\"node1\", \"node2\"]\n" RANKS HEAD ROW,
        "{\"np\": 2}\n(node1)\n[{}]\n" RANKS HEAD ROW,
        IN_JSON("{\"log\":\"", "\\n\",\"stream\":\"stdout\",\"time\":\"2026-11-01\"}\n"),
        "begin\n" IN_JSON(
            "2026-11-01T12:00:00Z stdout F {\"pod\":{\"n\":[1,\"a\"]},\"at\":{\"msg\":\"",
            "\"}}\n") "end {\n",
        "[" IN_JSON("{\"line\":\"", "\"},") "{}]\n",
        "{\"rc\":0,\"stdout\":\"" IN_JSON("", "\\n") "\"}\n",
        "{\"values\":[" IN_JSON("[\"1720606000123456789\",\"", "\"],") "[]]}\n",
        IN_JSON("{'at': 3, 'msg': '", "'}\n"), /* Python's */
        IN_JSON("level=info msg=\"", "\" pod=a\n"),
        /* what pages and terminals do to characters */
        IN_JSON("\xEF\xBB\xBF", "\r\n"),
        IN_JSON("\x1b[0K\x1b[36;1m\xC2\xA0&nbsp;", "\x1b[0m\xE2\x80\x83<br>\n"),
        IN_JSON("&gt; `", "`\n"),
        IN_JSON("<tr><td class=\"x\">", "</td></tr>\n"),
        IN_JSON("#033[36m", "#033[0m\n"),
        "\\# Collective test starting: all\\_gather\\_perf\n" RANKS HEAD ROW,
        "\\# Rank\t0 Pid\xE3\x80\x80"
        "1 on\xC2\xA0"
        "a device 0 \\[0x1b\\]\n"
        "&#35; Rank 1 Pid 2 on\xE2\x80\xAF"
        "a device 1 \\[0x1c\\]\n" HEAD ROW,
        IN_JSON("2026-11-01T12:00:00Z ##[debug] ", "\n"),
        /* each process sees one device */
        OWN("[0000:1b:00]", "[0000:2c:00]") HEAD ROW,
        /* NCCL_TESTS_SPLIT="AND 0x8" */
        "# Rank 0 Group 0 Pid 1 on a device 0\n# Rank 1 Group 8 Pid 2 on a device 2\n"
        "# Rank 2 Group 0 Pid 3 on a device 1\n# Rank 3 Group 8 Pid 4 on a device 3\n" HEAD ROW,
        "mpirun -n 2 all_gather_perf -n 20\n# nThread 1 nGpus 1\n" RANKS HEAD ROW,
        "# Collective test starting: all_gather_perf\n# nThread 1 nGpus 2 minBytes 8\n#\n"
        "rccl-tests: Version develop:33cc4df\n# Using devices\n"
        "#  Rank  0 Group  0 Pid   9632 on   GPU-6403 device  0 [0000:72:00] AMD Instinct MI355X\n"
        "#  Rank  1 Group  0 Pid   9632 on   GPU-6403 device  1 [0000:0a:00] AMD Instinct MI355X\n"
        "RCCL version : 2.22.3-develop:f5b15f2\nHIP version  : 7.0\n" HEAD ROW,
        "Waiting ...\n...\n" RANKS HEAD ROW "...\n",
        RANKS HEAD "1000000 250000 float none -1 10 100 50.3 0\n", /* rounded to these digits */
        RANKS
        "| size (B) | count | type | redop | root | time (us) | algbw (GB/s) | busbw | #wrong |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        "| 1000000 | 250000 | float | none | -1 | 10 | 100.00 | 50.00 | 0 |\n",
        RANKS "size,count,type,redop,root,time,algbw,busbw,#wrong\n"
              "1000000,250000,float,none,-1,10,100.00,50.00,0\n",
        /* option -I: figures of iterations */
        RANKS "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv%\n"
              "1000000 250000 float none -1 10 100.00 50.00 0 9 11 11 3\n",
    };
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(forms); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        const char *path = put(dir, "all_gather.txt", forms[i]);
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        assert_ok(&ctx, dh_measured_read(&ctx, path, &m));
        assert_int_equal(m.rows.n, 1);
        assert_int_equal(m.rows.at[0].type, DH_OP_ALL_GATHER);
        assert_int_equal(m.rows.at[0].span.size, 2);
        assert_true(m.rows.at[0].ns == 1e4 && m.rows.at[0].bytes == 1e6);
        assert_ok(&ctx, dh_measured_read(&ctx, path, &m)); /* and once more */
        assert_int_equal(m.rows.n, 1);
        dh_measured_fini(&m);
    }
}

/* One product of 4096 x 4096 x 4096, or 8 of them, in ways to write it; once where it stands twice. */
static void test_forms_of_products(void **state)
{
    static const struct {
        const char *text;
        int64_t batch;    /* 0: left out */
        const char *says; /* of what is left out */
    } forms[] = {
        {"m,n,k,dtype,time_us\n4096,4096,4096,bf16,205\n4096,4096,4096,bf16,205\n", 1, NULL},
        {"\xEF\xBB\xBFm,n,k,dtype,time (us)\n4096,4096,4096,bf16,205\n", 1, NULL},
        {"M,N,K,dtype,latency [ms]\n4096,4096,4096,CUDA_R_16BF,0.205\n", 1, NULL},
        {"m,n,k,dtype,time_ns,B\n4096,4096,4096,torch.half,205000,8\n", 8, NULL},
        {"m,n,k,A,B,batch_count,us\n4096,4096,4096,bf16:row,f16:row,8,205\n", 8, NULL},
        {"b,m,n,k,dtype,us\n8,4096,4096,4096,bf16,205\n", 8, NULL},
        {"m,n,k,a_type,b_type,us\n1,2,3,bf16_r,f8_r,4\n", 0, "(bf16 x f8)"},
        {"m,n,k,a_type,compute_type,us\n1,2,3,f32_r,xf32_r,4\n", 0, "(tf32)"},
        {"m,n,k,A,OperationKind,us\n1,2,3,bf16,spgemm,4\n", 0, "(spgemm)"},
        {"m,n,k,A,OperationKind,us\n1,2,3,bf16,symm,4\n", 0, "(symm)"},
        {"m,n,k,A,gemm_kind,us\n1,2,3,bf16,planar_complex,4\n", 0, "(planar_complex)"},
        {"m,n,k,A,Disposition,Status,us\n1,2,3,bf16,incorrect,success,4\n", 0, "1 rows"},
        {"m,n,k,dtype,compute_type,us\n1,2,3,f32_r,CUBLAS_COMPUTE_32F_FAST_TF32,4\n", 0, "(tf32)"},
        {"m,n,k,dtype,compute_type,us\n1,2,3,f32_r,CUBLAS_COMPUTE_32F_FAST_16BF,4\n", 0, "(f32 "},
        {"m,n,k,dtype,compute_type,us\n1,2,3,f32_r,CUBLAS_COMPUTE_32F_FAST_16F,4\n", 0, "(f32 "},
        {"m,n,k,A,B,us\n1,2,3,bf16:row,s8:column,4\n", 0, "(bf16 x s8)"}};
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(forms); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        assert_ok(&ctx, dh_measured_read(&ctx, put(dir, "x.csv", forms[i].text), &m));
        assert_int_equal(m.rows.n, forms[i].batch != 0);
        if (forms[i].batch == 0) {
            assert_non_null(strstr(m.notes.at[0], forms[i].says));
        } else {
            assert_int_equal(m.rows.at[0].gemm.batch, forms[i].batch);
            assert_true(m.rows.at[0].gemm.dtype == DH_BF16 && m.rows.at[0].ns == 205e3);
        }
        dh_measured_fini(&m);
    }
}

/* What tools and people's pages have (tests/data/README.md): how many rows are read, or why none.
 */
static void test_found_files(void **state)
{
    static const struct {
        const char *name, *says;
        size_t n_rows;
        dh_op_type type;
        int64_t ranks, nodes;
    } files[] = {{"sb_alltoall.log", NULL, 29, DH_OP_ALL_TO_ALL, 8, 1},
                 {"sb_allgather.log", NULL, 29, DH_OP_ALL_GATHER, 8, 1},
                 {"a3mega_allreduce_16.md", NULL, 31, DH_OP_ALL_REDUCE, 16, 2},
                 {"issue290_all_reduce_mpirun_tag.txt", NULL, 11, DH_OP_ALL_REDUCE, 16, 2},
                 {"gb300_all_reduce_64_elided.txt", "lacks rank 2 and goes up to 63", 0, 0, 0, 0},
                 {"hipblaslt_mi355.csv", NULL, 1, 0, 0, 0},
                 {"cutlass_functional.csv", NULL, 1, 0, 0, 0}};
    for (size_t i = 0; i < DH_COUNTOF(files); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        char path[200];
        snprintf(path, sizeof path, "tests/data/calibrate/%s", files[i].name);
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        if (files[i].says) {
            assert_fails(&ctx, dh_measured_read(&ctx, path, &m), DH_EFORMAT, files[i].says);
        } else {
            assert_ok(&ctx, dh_measured_read(&ctx, path, &m));
            assert_int_equal(m.rows.n, files[i].n_rows);
            assert_int_equal(m.rows.at[0].type, files[i].type);
            if (files[i].ranks) {
                assert_int_equal(m.rows.at[0].span.size, files[i].ranks);
                assert_int_equal(m.rows.at[0].span.nodes.n_nodes, files[i].nodes);
            }
        }
        dh_measured_fini(&m);
    }
}

/* A constant keeps its value where every other one is further off: rows of products that the base
 * predicts, and one that takes as long as a launch. Rows of other types are counted. */
static void test_worse_fits_are_not_taken(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    test_tmpdir(dir, sizeof dir);
    dh_cluster *h100;
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_cluster_find(&ctx, "h100", &h100));
    truth t = {.cluster = h100, .drawn = seed};
    dh_str_printf(&text, "m,n,k,dtype,time_us\n64,64,64,torch.bfloat16,40\n64,64,64,fp8,40\n");
    for (int64_t m = 2048; m <= 16384; m *= 2)
        dh_str_printf(&text, "%d,4096,4096,bf16,%.6g\n", (int)m, gemm_ns(&t, m, 4096, 4096) / 1e3);
    const char *path = put_str(dir, "gemms.csv", &text);
    const dh_describe_calibrate_options how = {.like = "h100"};
    assert_ok(&ctx, dh_calibrated_make(&ctx, &path, 1, &how, &c));
    const double found = constant_of(&c, "gemm.efficiency")->value;
    assert_true(fabs(found / h100->gemm_efficiency - 1) < 0.03);
    bool told = false;
    for (size_t i = 0; i < c.measured.notes.n; i++)
        told |= strstr(c.measured.notes.at[i], "1 row of other types left out (fp8)") != NULL;
    assert_true(told);
    dh_calibrated_fini(&c);
    dh_cluster_destroy(h100);
}

#define OP(id, at, size)                                                                           \
    "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::mm\",\"pid\":1,\"tid\":2,\"ts\":" at        \
    ",\"dur\":10,\"args\":{\"External id\":" id ",\"Input Dims\":[[" size "," size "],[" size      \
    "," size "]],\"Input type\":[\"c10::BFloat16\",\"c10::BFloat16\"]}},"
#define START(correlation, at)                                                                     \
    "{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":2,"    \
    "\"ts\":" at ",\"dur\":1,\"args\":{\"External id\":" correlation                               \
    ",\"correlation\":" correlation "}},"
#define KERNEL(id, correlation, us)                                                                \
    "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"ts\":100,\"dur\":" us                    \
    ",\"args\":{\"External id\":" id ",\"correlation\":" correlation "}}"

#define OLD_OP(id, at, size)                                                                       \
    "{\"ph\":\"X\",\"cat\":\"Operator\",\"name\":\"aten::mm\",\"pid\":1,\"tid\":2,\"ts\":" at      \
    ",\"dur\":10,\"args\":{\"External id\":" id ",\"Input dims\":[[" size "," size "],[" size      \
    "," size "]],\"Input type\":[\"c10::BFloat16\",\"c10::BFloat16\"]}},"
#define OLD_START(correlation, at)                                                                 \
    "{\"ph\":\"X\",\"cat\":\"Runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":2,"         \
    "\"ts\":" at ",\"dur\":1,\"args\":{\"correlation\":" correlation "}},"
#define OLD_KERNEL(id, correlation, us)                                                            \
    "{\"ph\":\"X\",\"cat\":\"Kernel\",\"name\":\"gemm\",\"ts\":100,\"dur\":" us                    \
    ",\"args\":{\"external id\":" id ",\"correlation\":" correlation "}}"

/* Two products, of 1024 in 10 us and of 4096 in 300: as newer builds write them; with correlations
 * for ids, which are those of other operators, or of none; and as the first builds did. */
static void test_ids_of_kernels(void **state)
{
    static const char *const traces[] = {
        "[" OP("1", "10", "1024") OP("2", "30", "4096") START("7", "15") START("8", "35")
            KERNEL("1", "7", "10") "," KERNEL("2", "8", "300") "]",
        "[" OP("8", "10", "1024") OP("7", "30", "4096") START("7", "15") START("8", "35")
            KERNEL("7", "7", "10") "," KERNEL("8", "8", "300") "]",
        "[" OP("1", "10", "1024") OP("2", "30", "4096") START("7", "15") START("8", "35")
            KERNEL("7", "7", "10") "," KERNEL("8", "8", "300") "]",
        "[" OLD_OP("1", "10", "1024") OLD_OP("2", "30", "4096") OLD_START("7", "15")
            OLD_START("8", "35") OLD_KERNEL("7", "7", "10") "," OLD_KERNEL("8", "8", "300") "]"};
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(traces); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        assert_ok(&ctx, dh_measured_read(&ctx, put(dir, "t.json", traces[i]), &m));
        assert_int_equal(m.rows.n, 2);
        for (size_t k = 0; k < 2; k++)
            assert_true(m.rows.at[k].ns == (m.rows.at[k].gemm.rows == 1024 ? 1e4 : 3e5));
        dh_measured_fini(&m);
    }
    dh_ctx ctx = DH_CTX_INIT;
    dh_measured m;
    assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
    const char *path =
        put(dir, "u.json", "[" OP("7", "10", "4096") START("3", "5") KERNEL("7", "7", "2") "]");
    assert_ok(&ctx, dh_measured_read(&ctx, path, &m));
    assert_int_equal(m.rows.n, 0);
    assert_non_null(strstr(m.notes.at[0], "no event of category cuda_runtime has it"));
    dh_measured_fini(&m);
    /* The same where the trace has no such event at all. */
    dh_ctx_reset(&ctx);
    assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
    path = put(dir, "v.json", "[" OP("8", "10", "4096") KERNEL("7", "7", "2") "]");
    assert_ok(&ctx, dh_measured_read(&ctx, path, &m));
    assert_int_equal(m.rows.n, 0);
    assert_non_null(strstr(m.notes.at[0], "no event of category cuda_runtime has it"));
    dh_measured_fini(&m);
}

#define NAMED(name, id, at)                                                                        \
    "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"" name "\",\"ts\":" at                            \
    ",\"dur\":300,\"args\":{\"External id\":" id ",\"correlation\":99}}"
#define OTHER_OP(id)                                                                               \
    "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"aten::relu\",\"pid\":1,\"tid\":2,\"ts\":50,"      \
    "\"dur\":5,\"args\":{\"External id\":" id "}},"

/* Without calls of the runtime: kernels whose ids are not their operators' are left out, all of
 * them, and the reason is said. */
static void test_ids_alone(void **state)
{
    static const struct {
        const char *text, *says; /* NULL: believed */
    } traces[] = {
        {"[" OP("1", "10", "4096") OP("2", "20", "1024")
             NAMED("ampere_bf16_s16816gemm", "1", "15") "]",
         NULL},
        {"[" OP("1", "10", "4096") OTHER_OP("2")
             NAMED("nvjet_hsh_128x256", "1", "90") "," NAMED("elementwise_kernel", "2", "95") "]",
         NULL},
        {"[" OP("1", "10", "4096") NAMED("Kernel2", "1", "10") "]", NULL},
        {"[" OP("1", "10", "4096") NAMED("gemm", "1", "15") "," NAMED("gemm", "1", "9.9") "]",
         "2 kernels left out: no event of category cuda_runtime"},
        {"[" OP("1", "10", "4096") NAMED("gemm", "1", "9.9") "]", "begins after the kernel"},
        {"[" OP("1", "10", "4096") OP("1", "20", "1024") NAMED("gemm", "1", "30") "]",
         "several operators have it"},
        {"[" OP("1", "10", "4096") OTHER_OP("1") NAMED("gemm", "1", "30") "]",
         "several operators have it"},
        {"[" OP("99", "10", "4096") NAMED("gemm", "99", "30") "]",
         "\"External id\" 99 of kernel gemm does not: it is also the kernel's correlation"},
        {"[" OP("1", "10", "4096") NAMED("vectorized_elementwise_kernel<4>", "1", "30") "]",
         "runs no such kernel"},
        {"[" OP("1", "10", "4096") NAMED("pytorch_flash::flash_fwd_kernel", "1", "30") "]",
         "runs no such kernel"},
        {"[" OP("1", "10", "4096") NAMED("softmax_warp_forward", "1", "30") "]",
         "runs no such kernel"}};
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(traces); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        const bool believed = traces[i].says == NULL;
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        assert_ok(&ctx, dh_measured_read(&ctx, put(dir, "t.json", traces[i].text), &m));
        assert_int_equal(m.rows.n, believed);
        assert_int_equal(m.notes.n, !believed);
        if (believed)
            assert_true(m.rows.at[0].gemm.rows == 4096 && m.rows.at[0].ns == 3e5);
        else
            assert_non_null(strstr(m.notes.at[0], traces[i].says));
        dh_measured_fini(&m);
    }
}

#define CALL(members) GROUP("_allgather_base", "64", members)
#define GROUP(collective, ranks, members)                                                          \
    "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclDevKernel_AllGather\",\"dur\":500,\"args\":" \
    "{"                                                                                            \
    "\"Collective name\":\"" collective "\",\"dtype\":\"BFloat16\",\"In msg nelems\":1048576,"     \
    "\"Out msg nelems\":1048576,\"Group size\":" ranks ",\"Process Group Ranks\":\"" members       \
    "\"}}]"

/* Lists of 64 ranks that Kineto cut short. */
static void test_short_lists_of_ranks(void **state)
{
    static const struct {
        const char *text;
        int64_t nodes; /* 0: left out */
    } traces[] = {{CALL("[0, 8, 16, 24, ...]"), 64},
                  {CALL("[0, 1, 2, 3, 4, 5, ...]"), 8},
                  {CALL("[0, 2, 4, 6, ..., 126]"), 16},
                  {CALL("[0, 1, 8, 9, ...]"), 0},
                  {CALL("[0, 2, 4, 6, ..., 128]"), 0}, /* is not the 64th */
                  {CALL("[0, 1, 2, 3, 4, 5, 6, 7]"), 0},
                  {CALL("[0, ...]"), 0},
                  {GROUP("_allgather_base", "4", "[0, 8, 1, 9]"), 2},
                  {GROUP("_allgather_base", "4", "[3, 3, 3, 3]"), 0}, /* one rank */
                  {GROUP("_allgather_base", "2", "[99999999999999999999, 1]"), 0},
                  {GROUP("send", "4", "[0, 8, 16, 24]"), 2},
                  {GROUP("recv", "4", "[0, 2, 4, 6]"), 1},
                  {GROUP("send", "4", "[0, 4, 8, 12]"), 0}, /* to the same node, and to another */
                  {GROUP("send", "4", ""), 0}};
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(traces); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        assert_ok(&ctx, dh_measured_read(&ctx, put(dir, "t.json", traces[i].text), &m));
        assert_int_equal(m.rows.n, traces[i].nodes > 0);
        assert_int_equal(m.notes.n, traces[i].nodes == 0);
        if (m.rows.n) assert_int_equal(m.rows.at[0].span.nodes.n_nodes, traces[i].nodes);
        dh_measured_fini(&m);
    }
}

/* A product in less than the peak allows: refused in bf16, in float32 taken for tf32. */
static void test_faster_than_the_device(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    test_tmpdir(dir, sizeof dir);
    const dh_describe_calibrate_options how = {.like = "h100"};
    const char *path = put(dir, "g.csv", "m,n,k,dtype,time_us\n4096,4096,4096,bf16,2\n");
    assert_fails(&ctx, dh_calibrated_make(&ctx, &path, 1, &how, &c), DH_EINVAL,
                 "g.csv:2: a product of 4096 x 4096 x 4096, 1 of them, took 2 us");
    dh_calibrated_fini(&c);
    dh_ctx_reset(&ctx);
    path = put(dir, "h.csv", "m,n,k,dtype,time_us\n4096,4096,4096,f32,400\n64,64,64,f32,5\n");
    assert_ok(&ctx, dh_calibrated_make(&ctx, &path, 1, &how, &c));
    assert_int_equal(c.measured.rows.n, 1);
    assert_non_null(strstr(c.measured.notes.at[0], "tf32"));
    dh_calibrated_fini(&c);
}

/* Both JSON forms: a process of nccl-tests says its first device only. */
static void test_json_tables(void **state)
{
    static const char *const forms[] = {
        REPORT("8", "17.5"),
        "{\"busBw\":17.5,\"algBw\":10,\"gpus\":\"8\",\"inPlace\":0,"
        "\"name\":\"AllReduce\",\"size\":1000000,\"time\":100}\n"
        "{\"busBw\":9,\"algBw\":10,\"gpus\":8,\"inPlace\":1,"
        "\"name\":\"AllReduce\",\"size\":1000000,\"time\":100}\n",
        "[" REPORT("8", "17.5") "]", OWN_REPORT,
        /* rccl-tests, -Z json and csv, with MPI and without */
        "[\n" RECORD("1", "0", "17.5") ",\n" RECORD("1", "1", "9") "\n]\n",
        MPI_CSV "0,\"AllReduce\",1,8,8,1,1000000,\"float\",\"sum\",0,"
                "100.0,10.0,17.5,\"0\"\n",
        "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,"
        "busbw,#wrong\n"
        "0,AllReduce,8,1000000,float,sum,0,100.0,10.0,17.5,0\n"};
    char dir[200];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < DH_COUNTOF(forms); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_measured m;
        assert_ok(&ctx, dh_measured_init(&ctx, 8, &m));
        assert_ok(&ctx, dh_measured_read(&ctx, put(dir, "x.json", forms[i]), &m));
        assert_int_equal(m.rows.n, 1);
        assert_int_equal(m.rows.at[0].type, DH_OP_ALL_REDUCE);
        assert_true(m.rows.at[0].span.size == 8 && m.rows.at[0].span.nodes.n_nodes == 1);
        dh_measured_fini(&m);
    }
}

/* What a node's network gives to some of its devices is not what it gives to all. */
static void test_rows_left_out(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    test_tmpdir(dir, sizeof dir);
    truth t = make_truth(&ctx);
    const char *few = put_nccl(&t, dir, "all_gather_2x4.txt", DH_OP_ALL_GATHER, 8, 2, false);
    dh_describe_calibrate_options how = {.like = "h100"};
    assert_fails(&ctx, dh_calibrated_make(&ctx, &few, 1, &how, &c), DH_EINVAL, "--devices N");
    dh_calibrated_fini(&c);
    const char *ring = put_nccl(&t, dir, "sendrecv_2x8.txt", DH_OP_RING_EXCHANGE, 16, 2, false);
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_calibrated_make(&ctx, &ring, 1, &how, &c), DH_EINVAL, "NCCL_TESTS_SPLIT");
    dh_calibrated_fini(&c);
    dh_ctx_reset(&ctx);
    how.devices = 4;
    assert_ok(&ctx, dh_calibrated_make(&ctx, &few, 1, &how, &c));
    assert_true(c.fit.cluster.node_devices == 4);
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

/* ---- rows on which a constant may rest --------------------------------------------------------- */

/* Calibrated like an H100, after `ctx`'s last error. */
static void fit_file(dh_ctx *ctx, const char *path, dh_calibrated *c)
{
    const dh_describe_calibrate_options how = {.like = "h100"};
    assert_ok(ctx, dh_calibrated_make(ctx, &path, 1, &how, c));
}

static void assert_kept(const dh_calibrated *c, const char *key)
{
    const dh_calibration_constant *k = constant_of(c, key);
    if (k->fitted || k->value != k->base)
        fail_msg("%s: %s, %g in place of %g", key, k->why, k->value, k->base);
}

/* Products of m rows, each in so many us, or in so many times what memory takes. */
static void put_rows(dh_str *text, int m, const char *dtype, double us, double of_memory)
{
    for (int i = 0; i < 24; i++) {
        const int n = m > 1 ? 64 + 8 * i : 4096 + 512 * i, k = m > 1 ? 128 : 8192;
        const double memory_us = 2.0 * n * k / 3.35e6;
        dh_str_printf(text, "%d,%d,%d,%s,%.6g\n", m, n, k, dtype,
                      of_memory > 0 ? of_memory * memory_us : us + 0.01 * i);
    }
}

/* Products that memory or a launch limits say nothing of arithmetic; one product says nothing of a
 * launch. */
static void test_products_that_others_limit(void **state)
{
    static const char head[] = "m,n,k,dtype,time_us\n";
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    test_tmpdir(dir, sizeof dir);
    truth t = make_truth(&ctx);
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, head);
    put_rows(&text, 1, "bf16", 0, 2);
    fit_file(&ctx, put_str(dir, "vectors.csv", &text), &c);
    assert_kept(&c, "gemm.efficiency");
    assert_kept(&c, "gemm.start_k");
    assert_kept(&c, "device.kernel_us");
    dh_calibrated_fini(&c);

    for (int wide = 0; wide < 2; wide++) {
        dh_str_printf(&text, head);
        put_rows(&text, 16, wide ? "f32" : "bf16", 20, 0);
        fit_file(&ctx, put_str(dir, "launches.csv", &text), &c);
        assert_kept(&c, "gemm.efficiency");
        assert_kept(&c, "gemm.start_k");
        assert_found(&c, "device.kernel_us", 20, 0.05);
        dh_calibrated_fini(&c);
    }

    dh_str_printf(&text, "%s128,128,128,bf16,300\n", head);
    for (int64_t m = 2048; m < 2048 + 9 * 512; m += 512)
        dh_str_printf(&text, "%d,8192,8192,bf16,%.6g\n", (int)m, gemm_ns(&t, m, 8192, 8192) / 1e3);
    fit_file(&ctx, put_str(dir, "one.csv", &text), &c);
    assert_true(fabs(value_of(&c, "gemm.efficiency") / 0.66 - 1) < 0.03);
    assert_kept(&c, "device.kernel_us");
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

/* The same of attention of few tokens, however often it ran, and of small messages and norms. */
static void test_small_rows_alone(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    dh_str text = DH_STR_INIT;
    test_tmpdir(dir, sizeof dir);
    truth t = make_layer_truth(&ctx);
    t.cluster->kernel_ns = 20e3;
    dh_str_printf(&text, "{\"traceEvents\": [\n");
    for (int i = 0; i < 5; i++) put_layer(&t, &text, 1, 128, "True");
    dh_str_printf(&text, "{}]}\n");
    fit_file(&ctx, put_str(dir, "short.json", &text), &c);
    assert_kept(&c, "attention.efficiency");
    assert_kept(&c, "attention.grad_efficiency");
    assert_kept(&c, "device.memory_efficiency");
    dh_calibrated_fini(&c);

    dh_str_printf(&text, "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,"
                         "#wrong\n");
    for (int size = 256; size <= 1 << 19; size *= 2) {
        const double us = 35 + size * 6e-6, rate = size / us * 1e-3;
        dh_str_printf(&text, "0,AllGather,8,%d,float,none,0,%.6g,%.6g,%.6g,0\n", size, us, rate,
                      rate * 7 / 8);
    }
    fit_file(&ctx, put_str(dir, "small.csv", &text), &c);
    assert_kept(&c, "local.efficiency");
    assert_kept(&c, "local.in_switch");
    assert_found(&c, "local.step_us", 5, 0.05); /* seven of them */
    dh_calibrated_fini(&c);
    dh_cluster_destroy(t.cluster);
}

/* ---- faster than the device -------------------------------------------------------------------- */

static void assert_too_fast(const char *dir, const char *name, dh_str *text, const char *says)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_calibrated c;
    const dh_describe_calibrate_options how = {.like = "h100"};
    const char *path = put_str(dir, name, text);
    assert_fails(&ctx, dh_calibrated_make(&ctx, &path, 1, &how, &c), DH_EINVAL, says);
    dh_calibrated_fini(&c);
}

static const char *const flash[] = {"_flash_attention_forward", "_flash_attention_backward"};

/* Attention of 4 x 4096 tokens with 32 heads of 128, at this share of an H100's peak. */
static void put_flash(dh_str *text, bool grad, double share)
{
#define QKV "[4,4096,32,128],[4,4096,32,128],[4,4096,32,128]"
    const double flops = (grad ? 5 : 2) * 4 * 4096.0 * 4097 * 32 * 128;
    dh_str_printf(text, "{\"traceEvents\": [\n");
    put_op(text, flash[grad], flops / 989.4e12 / share * 1e9, grad ? "[1]," QKV : QKV, "");
    dh_str_printf(text, "{}]}\n");
}

static void put_norm(dh_str *text, int rows, double share)
{
    char dims[80];
    const double bytes = 2.0 * 2 * rows * 8192;
    snprintf(dims, sizeof dims, "[%d,8192],[8192]", rows);
    dh_str_printf(text, "{\"traceEvents\": [\n");
    put_op(text, "_fused_rms_norm", bytes / 3.35e12 / share * 1e9, dims, "");
    dh_str_printf(text, "{}]}\n");
}

/* An all-reduce or all-gather of 1 GB, at so many times 450 GB/s to and from each device. */
static void put_call(dh_str *text, const char *name, double share)
{
    const double bus = strcmp(name, "AllReduce") == 0 ? 7.0 / 4 : 7.0 / 8;
    const double us = 1e9 / 450e3 / share * (bus > 1 ? 1 : bus);
    dh_str_printf(text,
                  "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong\n"
                  "0,%s,8,1000000000,float,sum,0,%.8g,%.8g,%.8g,0\n",
                  name, us, 1e6 / us, 1e6 / us * bus);
}

/* Attention, norms and collectives by the rule of products: a tenth more than the device's peak,
 * memory or links is possible, a fifth is not. */
static void test_any_row_faster_than_the_device(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200];
    dh_calibrated c;
    dh_str text = DH_STR_INIT;
    static const char *const calls[] = {"AllReduce", "AllGather"};
    test_tmpdir(dir, sizeof dir);
    for (int grad = 0; grad < 2; grad++) {
        put_flash(&text, grad, 1.2);
        assert_too_fast(dir, "a.json", &text,
                        grad ? "a.json: gradient of attention of 4096 tokens"
                             : "a.json: attention of 4096 tokens in 128");
        put_flash(&text, grad, 1.05);
        fit_file(&ctx, put_str(dir, "b.json", &text), &c);
        assert_int_equal(c.measured.rows.n, 1);
        dh_calibrated_fini(&c);
    }
    put_norm(&text, 16384, 1.2);
    assert_too_fast(dir, "n.json", &text, "n.json: a norm that moves 536.9 MB");
    put_norm(&text, 16384, 1.05);
    fit_file(&ctx, put_str(dir, "m.json", &text), &c);
    assert_int_equal(c.measured.rows.n, 1);
    dh_calibrated_fini(&c);
    put_norm(&text, 1024, 1.2);
    assert_too_fast(dir, "c.json", &text, "cache"); /* which leaves nothing */
    for (size_t i = 0; i < DH_COUNTOF(calls); i++) {
        put_call(&text, calls[i], 1.2);
        assert_too_fast(dir, "x.csv", &text, "of 1000 MB, 8 ranks on 1 node took");
        put_call(&text, calls[i], 1.05);
        fit_file(&ctx, put_str(dir, "y.csv", &text), &c);
        assert_int_equal(c.measured.rows.n, 1);
        dh_calibrated_fini(&c);
    }
    dh_str_printf(&text, "m,n,k,dtype,time_us\n4096,4096,4096,f32,400\n");
    assert_too_fast(dir, "t.csv", &text, "no measurement that a constant could rest on; 1 float32");
    dh_str_printf(&text, "m,n,k,dtype,time_us\n1,65536,8192,bf16,250\n");
    assert_too_fast(dir, "v.csv", &text, "v.csv:2: a product of 1 x 65536 x 8192");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_constants_are_found),
                                       cmocka_unit_test(test_one_collective_alone),
                                       cmocka_unit_test(test_traces),
                                       cmocka_unit_test(test_attention_and_norms),
                                       cmocka_unit_test(test_one_size_often),
                                       cmocka_unit_test(test_pairs_of_profiles),
                                       cmocka_unit_test(test_solos_of_profiles),
                                       cmocka_unit_test(test_broken_files),
                                       cmocka_unit_test(test_rows_left_out),
                                       cmocka_unit_test(test_forms_of_a_table),
                                       cmocka_unit_test(test_forms_of_products),
                                       cmocka_unit_test(test_json_tables),
                                       cmocka_unit_test(test_found_files),
                                       cmocka_unit_test(test_worse_fits_are_not_taken),
                                       cmocka_unit_test(test_ids_of_kernels),
                                       cmocka_unit_test(test_ids_alone),
                                       cmocka_unit_test(test_short_lists_of_ranks),
                                       cmocka_unit_test(test_faster_than_the_device),
                                       cmocka_unit_test(test_products_that_others_limit),
                                       cmocka_unit_test(test_small_rows_alone),
                                       cmocka_unit_test(test_any_row_faster_than_the_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
