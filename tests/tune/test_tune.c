/* Searches: estimates against simulations of every configuration of a small job, refusals,
 * memory, determinism. */
#include <math.h>

#include "dh_test.h"

#include "dhelix/tune.h"
#include "plan/schedule.h"
#include "strategy/strategy.h"
#include "tune/tuner.h"
#include "validate/validate.h"

/* ---- jobs ----------------------------------------------------------------------------------- */

typedef struct setup {
    dh_job *job;
    dh_cluster *cluster;
} setup;

static setup open_setup(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s;
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "test", NULL, NULL, 0, &s.job));
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &s.cluster));
    return s;
}

static void close_setup(setup *s)
{
    dh_job_destroy(s->job);
    dh_cluster_destroy(s->cluster);
}

static dh_tune_options options_of(const setup *s, int64_t devices)
{
    return (dh_tune_options){.cluster = s->cluster,
                             .devices = devices,
                             .n_rows = 10000,
                             .n_simulated = 10000,
                             .quiet = true};
}

static dh_tune *search(const setup *s, const dh_tune_options *o)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tune *t;
    assert_ok(&ctx, dh_tune_search(&ctx, s->job, o, &t));
    return t;
}

static const dh_tune_value_row *value_of(const dh_tune *t, dh_tune_dim dim, int64_t value)
{
    for (size_t i = 0; i < t->n_values; i++)
        if (t->values[i].dim == dim && t->values[i].value == value) return &t->values[i];
    return NULL;
}

static const char dense[] = "model: {preset: llama3-8b, n_layers: 8}\n"
                            "train: {batch: 16, micro_batch: 1, seq_len: 2048, dtype: bf16}\n"
                            "parallel: {zero: 1}\n";
static const char experts[] = "model: {preset: mixtral-8x7b, n_layers: 4}\n"
                              "train: {batch: 16, micro_batch: 1, seq_len: 1024, dtype: bf16}\n"
                              "parallel: {zero: 1}\n";

/* ---- estimates ------------------------------------------------------------------------------- */

typedef struct errors {
    double mean, worst; /* of step times, as shares */
    double least, most; /* estimated memory over simulated */
    double regret;      /* simulated step of the best by estimate over the best of all */
} errors;

/* Also by simulated times: no row is faster than what the table of values has for its values. */
static void assert_values_are_fastest(const dh_tune *t)
{
    for (size_t i = 0; i < t->n_rows; i++)
        for (size_t k = 0; k < t->n_values; k++) {
            const dh_tune_row *row = &t->rows[i];
            const dh_tune_value_row *v = &t->values[k];
            if (!row->fits || row->simulated_ns == 0 || row->config.at[v->dim] != v->value)
                continue;
            assert_true(v->best.simulated_ns > 0);
            assert_true(v->best.simulated_ns <= row->simulated_ns);
        }
}

static errors compare(const dh_tune *t)
{
    errors e = {.least = INFINITY};
    assert_values_are_fastest(t);
    const dh_tune_row *chosen = &t->rows[0];
    for (size_t i = 0; i < t->n_rows; i++) {
        const dh_tune_row *r = &t->rows[i];
        assert_true(r->simulated_ns > 0);
        const double off = fabs(r->step_ns / (double)r->simulated_ns - 1);
        const double memory = (double)r->memory.peak_bytes / (double)r->simulated_bytes;
        e.mean += off / (double)t->n_rows;
        e.worst = fmax(e.worst, off);
        e.least = fmin(e.least, memory);
        e.most = fmax(e.most, memory);
        if (r->step_ns < chosen->step_ns) chosen = r;
    }
    e.regret = (double)chosen->simulated_ns / (double)t->rows[0].simulated_ns;
    print_message("%zu configurations: times off by %.3f on average, %.3f at most; memory %.3f to "
                  "%.3f of the simulated; best by estimate %.3f of the best\n",
                  t->n_rows, e.mean, e.worst, e.least, e.most, e.regret);
    return e;
}

/* Every configuration of three schedules and four strategies is simulated. */
static void test_estimates_rank_like_the_simulator(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE;
    o.strategies = "sequential,intra-batch,wavelet+,list";
    o.schedules = "1f1b,interleaved-1f1b,zb-h1";
    if (TEST_SANITIZED) o.schedules = "1f1b";
    s.job->recompute = DH_RECOMPUTE_SELECTIVE;
    dh_tune *t = search(&s, &o);
    assert_true(t->n_rows > (TEST_SANITIZED ? 20 : 50));
    const errors e = compare(t);
    assert_true(e.mean < .05);
    assert_true(e.worst < .20);
    assert_true(e.least > .95 && e.most < 1.05);
    assert_true(e.regret < 1.04);
    dh_tune_destroy(t);
    close_setup(&s);
}

static void test_experts(void **state)
{
    (void)state;
    setup s = open_setup(experts);
    dh_tune_options o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP;
    o.strategies = "sequential";
    o.schedules = "1f1b";
    dh_tune *t = search(&s, &o);
    const dh_tune_value_row *ep = value_of(t, DH_TUNE_EP, 4);
    assert_non_null(ep);
    assert_true(ep->n_fit > 0);
    const errors e = compare(t);
    assert_true(e.worst < .20);
    assert_true(e.least > .95 && e.most < 1.05);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* States gathered and handed on, where ranks share sequences; hybrids have one way. */
static void test_ways_of_linear_attention(void **state)
{
    (void)state;
    for (int hybrid = 0; hybrid < (int)(2 / test_stride(1, 2)); hybrid++) {
        setup s = open_setup(dense);
        dh_tune_options o = options_of(&s, 8);
        o.fixed = 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_PP;
        o.strategies = "sequential";
        o.schedules = "1f1b";
        s.job->model.attention = DH_ATTENTION_LINEAR;
        s.job->model.softmax_every = hybrid ? 4 : 0;
        dh_tune *t = search(&s, &o);
        int64_t of_eight[2] = {0};
        for (size_t i = 0; i < t->n_rows; i++) {
            const int64_t *at = t->rows[i].config.at, way = at[DH_TUNE_CP_LINEAR];
            assert_true(at[DH_TUNE_CP] == 1 ? way == -1 : way >= 0);
            if (at[DH_TUNE_CP] == 8) of_eight[way] = t->rows[i].simulated_ns;
        }
        const dh_tune_value_row *two = value_of(t, DH_TUNE_CP_LINEAR, DH_CP_LINEAR_LASP2);
        const dh_tune_value_row *one = value_of(t, DH_TUNE_CP_LINEAR, DH_CP_LINEAR_LASP1);
        assert_non_null(two);
        assert_true((one == NULL) == (hybrid == 1));
        assert_null(value_of(t, DH_TUNE_CP_LINEAR, -1));
        if (one) /* of exchanges between eight all but the first are exposed */
            assert_true(of_eight[DH_CP_LINEAR_LASP2] < of_eight[DH_CP_LINEAR_LASP1]);
        const errors e = compare(t);
        assert_true(e.mean < .05);
        assert_true(e.worst < .20);
        assert_true(e.least > .95 && e.most < 1.05);
        dh_tune_destroy(t);
        close_setup(&s);
    }
}

/* Every degree of ZeRO, in buckets of two sizes; gathers behind the optimizer, beside the next
 * forward, and of parameters that are shards. */
static void test_degrees_of_sharing(void **state)
{
    (void)state;
    for (int variant = 0; variant < (test_is_thin() ? 1 : 5); variant++) {
        setup s = open_setup(dense);
        dh_tune_options o = options_of(&s, variant < 2 ? 8 : 16); /* of one node, of two */
        o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_MICRO_BATCH;
        o.strategies = "sequential";
        o.schedules = "1f1b";
        o.zeros = variant < 2 ? "0,1,2,3" : "2,3";
        o.buckets = variant < 2 ? "auto,400" : NULL;
        s.job->recompute = DH_RECOMPUTE_SELECTIVE;
        s.job->gather = variant & 1 ? DH_GATHER_FORWARD : DH_GATHER_OPTIMIZER;
        s.job->prefetch = variant == 2 ? 0 : 1;
        s.job->reshard = variant == 3   ? DH_RESHARD_FALSE
                         : variant == 4 ? DH_RESHARD_NODE
                                        : DH_RESHARD_TRUE;
        dh_tune *t = search(&s, &o);
        const errors e = compare(t);
        const dh_tune_value_row *three = value_of(t, DH_TUNE_ZERO, 3);
        assert_non_null(three);
        assert_true(three->n_fit > 0);
        if (variant < 2) assert_non_null(value_of(t, DH_TUNE_BUCKET, 400));
        assert_true(e.mean < .05);
        assert_true(e.worst < .20);
        /* What of the embedding stays or is whole at a forward's end counts beside all gradients,
         * which on a first stage whose forwards all come first are not there yet. */
        assert_true(e.least > .95 && e.most < (variant < 3 ? 1.05 : 1.06));
        assert_true(e.regret < 1.04);
        dh_tune_destroy(t);
        close_setup(&s);
    }
}

/* Parameters gathered for all micro-batches that follow each other through a virtual stage, on one
 * pipeline stage and on several. */
static void test_parameters_by_virtual_stage(void **state)
{
    (void)state;
    for (int variant = 0; variant < (test_is_thin() ? 1 : 3); variant++) {
        setup s = open_setup(dense);
        dh_tune_options o = options_of(&s, variant < 2 ? 8 : 16);
        o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_TP |
                  1u << DH_TUNE_MICRO_BATCH;
        o.strategies = "sequential";
        o.schedules = "1f1b,looped-bfs";
        o.zeros = "2,3";
        s.job->recompute = DH_RECOMPUTE_FULL;
        s.job->tp = variant == 1 ? 2 : 1;
        s.job->cp = 1;
        s.job->global_batch = 64;
        s.job->zero = 3;
        s.job->regather = DH_REGATHER_STAGE;
        dh_tune *t = search(&s, &o);
        int n_breadth = 0;
        for (size_t i = 0; i < t->n_rows; i++) {
            const int64_t *at = t->rows[i].config.at;
            const bool breadth = at[DH_TUNE_PP] == 1 && at[DH_TUNE_STAGES] > 1;
            if (breadth) assert_int_equal(at[DH_TUNE_ZERO], 3);
            n_breadth += breadth;
        }
        const errors e = compare(t);
        assert_int_equal(n_breadth, 3); /* 2, 4, 8 of 8 layers */
        assert_true(e.mean < .05);
        assert_true(e.worst < .20);
        /* In pipelines gradients wait whole for what is sent, more of them than the estimate has.
         */
        assert_true(e.least > .93 && e.most < 1.06);
        assert_true(e.regret < 1.04);
        dh_tune_destroy(t);
        close_setup(&s);
    }
}

/* How the optimizer steps: behind the norm of all gradients, ahead of it, or by pieces of buckets.
 */
static void test_ways_to_step(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_MICRO_BATCH;
    o.strategies = "sequential";
    o.schedules = "1f1b";
    o.fusions = test_is_thin() ? "off,4" : "all";
    o.posts = "all";
    s.job->recompute = DH_RECOMPUTE_SELECTIVE;
    dh_tune *t = search(&s, &o);
    const errors e = compare(t);
    const dh_tune_value_row *ahead = value_of(t, DH_TUNE_POST, 1);
    assert_non_null(ahead);
    assert_non_null(value_of(t, DH_TUNE_FUSE, 4));
    assert_null(value_of(t, DH_TUNE_FUSE, -1));
    /* What cannot be is not tried. */
    assert_int_equal(ahead->n_refused + value_of(t, DH_TUNE_FUSE, 4)->n_refused, 0);
    assert_true(ahead->n_fit > 0 && ahead->best.config.at[DH_TUNE_PP] > 1);
    for (size_t i = 0; i < t->n_rows; i++) {
        const int64_t *at = t->rows[i].config.at;
        if (at[DH_TUNE_POST] > 0) assert_true(at[DH_TUNE_PP] > 1 && at[DH_TUNE_FUSE] == 0);
        if (at[DH_TUNE_FUSE] > 0) assert_true(at[DH_TUNE_DP] > 1);
    }
    assert_true(e.mean < .012);
    assert_true(e.worst < .04);
    assert_true(e.least > .98 && e.most < 1.02);
    assert_true(e.regret < 1.04);
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_tune_apply(&ctx, &ahead->best.config, s.job));
    assert_true(s.job->post_validation && s.job->fuse == DH_FUSE_OFF);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* Tokens split over tensor parallelism, or whole. */
static void test_whole_tokens(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_MICRO_BATCH;
    o.strategies = test_is_thin() ? "sequential" : "sequential,list";
    o.schedules = "1f1b";
    o.sequences = "all";
    s.job->recompute = DH_RECOMPUTE_SELECTIVE;
    dh_tune *t = search(&s, &o);
    const errors e = compare(t);
    const dh_tune_value_row *split = value_of(t, DH_TUNE_SEQUENCE, 1);
    const dh_tune_value_row *whole = value_of(t, DH_TUNE_SEQUENCE, 0);
    assert_true(split && whole && split->n_fit > 0 && whole->n_fit > 0);
    assert_true(whole->best.config.at[DH_TUNE_TP] > 1); /* alone there is no choice */
    assert_true(e.mean < .012);
    assert_true(e.worst < .04);
    assert_true(e.least > .98 && e.most < 1.02);
    assert_true(e.regret < 1.04);
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_tune_apply(&ctx, &whole->best.config, s.job));
    assert_false(s.job->sequence_parallel);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* Where what a rank exchanges takes longer than what it computes beside it: a block's gather comes
 * behind the reductions of the block before. */
static void test_gathers_behind_reductions(void **state)
{
    (void)state;
    static const struct {
        int64_t tp, prefetch;
        int64_t reshard;
        int64_t global_batch;
    } jobs[] = {{1, 1, DH_RESHARD_TRUE, 16},
                {2, 1, DH_RESHARD_TRUE, 16},
                {1, 0, DH_RESHARD_TRUE, 16},
                {1, 2, DH_RESHARD_TRUE, 32},
                {1, 1, DH_RESHARD_FALSE, 16}};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        setup s = open_setup(dense);
        dh_tune_options o = options_of(&s, 16);
        o.fixed = (1u << DH_N_TUNE_DIM) - 1;
        o.strategies = "sequential";
        o.schedules = "1f1b";
        s.job->recompute = DH_RECOMPUTE_SELECTIVE;
        s.job->tp = jobs[i].tp;
        s.job->dp = 16 / jobs[i].tp;
        s.job->prefetch = jobs[i].prefetch;
        s.job->reshard = jobs[i].reshard;
        s.job->global_batch = jobs[i].global_batch;
        s.job->zero = 3;
        s.job->gradient_sync = DH_GRADIENT_SYNC_EVERY;
        dh_tune *t = search(&s, &o);
        assert_int_equal(t->n_rows, 1);
        const errors e = compare(t);
        assert_true(e.worst < .055);
        assert_true(e.least > .97 && e.most < 1.06);
        dh_tune_destroy(t);
        close_setup(&s);
    }
}

static const dh_tune_row *same_config(const dh_tune *t, const dh_tune_row *row)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (memcmp(t->rows[i].config.at, row->config.at, sizeof row->config.at) == 0)
            return &t->rows[i];
    return NULL;
}

/* What is found for one row serves others only where it is the same for them. One bucket ends with
 * each virtual stage, so rows of as many layers reduce at other times. */
static void test_other_rows_change_no_estimate(void **state)
{
    (void)state;
    setup s = open_setup("model: {preset: gpt2-xl, n_layers: 16}\n"
                         "train: {batch: 32, micro_batch: 1, seq_len: 512, dtype: bf16}\n"
                         "parallel: {dp: 8, pp: 2, zero: 1, bucket_mb: 4096}\n");
    dh_tune_options o = options_of(&s, 16);
    o.strategies = "sequential";
    o.fixed = ((1u << DH_N_TUNE_DIM) - 1) & ~(1u << DH_TUNE_SCHEDULE) & ~(1u << DH_TUNE_STAGES);
    o.n_simulated = 0;
    o.schedules = "interleaved-1f1b";
    dh_tune *alone = search(&s, &o);
    o.schedules = "1f1b,looped-bfs,interleaved-1f1b";
    dh_tune *beside = search(&s, &o);
    assert_true(alone->n_rows >= 3 && beside->n_rows > alone->n_rows);
    for (size_t i = 0; i < alone->n_rows; i++) {
        const dh_tune_row *same = same_config(beside, &alone->rows[i]);
        assert_non_null(same);
        assert_float_equal(same->step_ns, alone->rows[i].step_ns, 1);
    }
    dh_tune_destroy(alone);
    dh_tune_destroy(beside);
    close_setup(&s);
}

static int64_t row_named(dh_tune_dim dim, const char *name)
{
    char text[64];
    for (int64_t i = 0; i < 64; i++)
        if (strcmp(dh_tune_value(dim, i, text, sizeof text), name) == 0) return i;
    fail_msg("no value %s", name);
    return -1;
}

/* Of times that are equal but for rounding the plainest comes first; else the shorter. */
static void test_equal_times_are_ordered_by_plainness(void **state)
{
    (void)state;
    const int64_t sequential = row_named(DH_TUNE_STRATEGY, "sequential");
    const int64_t dhelix = row_named(DH_TUNE_STRATEGY, "dhelix");
    const int64_t one = row_named(DH_TUNE_SCHEDULE, "1f1b"),
                  zb = row_named(DH_TUNE_SCHEDULE, "zb-v");
    const int64_t configs[][3] = {{sequential, one, 1}, {sequential, one, 2}, {sequential, zb, 2},
                                  {dhelix, one, 1},     {dhelix, one, 2},     {dhelix, zb, 2}};
    const double ns = 1.00001e8; /* away from a border of what counts as equal */
    for (size_t i = 0; i < DH_COUNTOF(configs); i++)
        for (size_t k = 0; k < DH_COUNTOF(configs); k++) {
            dh_tune_config a = {{0}}, b = {{0}};
            dh_tune_config *both[] = {&a, &b};
            for (int j = 0; j < 2; j++) {
                const int64_t *from = configs[j ? k : i];
                both[j]->at[DH_TUNE_STRATEGY] = from[0];
                both[j]->at[DH_TUNE_SCHEDULE] = from[1];
                both[j]->at[DH_TUNE_STAGES] = from[2];
            }
            const int order = tune_compare(&a, ns * (i < k ? 1 + 1e-6 : 1), &b, ns);
            assert_int_equal(order < 0, i < k);
            assert_int_equal(order > 0, i > k);
            assert_true(tune_compare(&a, ns * 1.001, &b, ns) > 0);
            assert_true(tune_compare(&a, ns, &b, ns * 1.001) < 0);
        }
}

/* One stage has one order, and pairs hide little: schedules of pairs are as good within rounding. */
static void test_equals_go_to_the_plainest(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    setup s = open_setup("model: {preset: gpt2-xl, n_layers: 8, vocab: 4096}\n"
                         "train: {batch: 16, micro_batch: 1, seq_len: 512, dtype: bf16}\n"
                         "parallel: {dp: 16, zero: 1}\n");
    dh_cluster_destroy(s.cluster);
    assert_ok(&ctx, dh_cluster_find(&ctx, "a40", &s.cluster));
    dh_tune_options o = options_of(&s, 16);
    o.fixed = ((1u << DH_N_TUNE_DIM) - 1) & ~(1u << DH_TUNE_SCHEDULE) & ~(1u << DH_TUNE_STRATEGY);
    o.strategies = "sequential,dhelix,flux,coconet";
    o.n_simulated = 0;
    dh_tune *t = search(&s, &o);
    const dh_tune_row *best = &t->rows[0];
    assert_int_equal(best->config.at[DH_TUNE_STRATEGY], row_named(DH_TUNE_STRATEGY, "sequential"));
    assert_int_equal(best->config.at[DH_TUNE_SCHEDULE], row_named(DH_TUNE_SCHEDULE, "1f1b"));
    assert_int_equal(best->config.at[DH_TUNE_STAGES], 1);
    size_t n_shorter = 0;
    for (size_t i = 1; i < t->n_rows; i++) n_shorter += t->rows[i].step_ns < best->step_ns;
    print_message("%zu of %zu rows are shorter within rounding\n", n_shorter, t->n_rows);
    assert_true(n_shorter > 0);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* A job with all its own values. */
static void one_is_within(double share, const char *text, const char *cluster, int64_t devices,
                          const char *strategy, const char *schedule)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = open_setup(text);
    dh_cluster_destroy(s.cluster);
    assert_ok(&ctx, dh_cluster_find(&ctx, cluster, &s.cluster));
    dh_tune_options o = options_of(&s, devices);
    o.fixed = (1u << DH_N_TUNE_DIM) - 1;
    o.strategies = strategy;
    o.schedules = schedule;
    dh_tune *t = search(&s, &o);
    assert_int_equal(t->n_rows, 1);
    const errors e = compare(t);
    assert_true(e.worst < share);
    assert_true(e.least > .95 && e.most < 1.1);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* All forwards come before the first backward: so many heads' gradients are whole. */
static void test_gradients_made_in_forwards(void **state)
{
    (void)state;
    one_is_within(.04,
                  "model: {preset: llama3-8b, n_layers: 8}\n"
                  "train: {batch: 32, micro_batch: 1, seq_len: 2048, dtype: bf16}\n"
                  "parallel: {dp: 8, pp: 2, zero: 3, gradient_sync: every, schedule: gpipe}\n",
                  "a100", 16, "sequential", "gpipe");
}

/* Table 4 of the Llama 3 paper: transfers forth and back go at once, and a stage's reductions slow
 * down those of the next micro-batch, which all stages wait for one after another. Reductions of
 * two virtual stages, which queue up; those of experts, beside exchanges of tokens. */
static void test_reductions_behind_slots(void **state)
{
    (void)state;
    one_is_within(.02,
                  "system: dhelix+whole-logits+sharded-gradients\n"
                  "model: {preset: llama3.1-405b, max_seq: 8192}\n"
                  "train: {batch: 1024, micro_batch: 1, seq_len: 8192, dtype: bf16}\n"
                  "parallel: {dp: 64, tp: 8, pp: 16, virtual_stages: 8, zero: 1,\n"
                  "           schedule: interleaved-1f1b, layer_split: '0,*,0'}\n",
                  "h100", 8192, "sequential", "interleaved-1f1b");
    one_is_within(.04,
                  "model: {preset: gpt2-xl, n_layers: 8}\n"
                  "train: {batch: 16, micro_batch: 1, seq_len: 512, dtype: bf16}\n"
                  "parallel: {dp: 16, zero: 1, schedule: dhelix-w}\nstrategy: dhelix\n",
                  "a40", 16, "dhelix", "dhelix-w");
    one_is_within(.02,
                  "model: {preset: mixtral-8x7b, n_layers: 4}\n"
                  "train: {batch: 128, micro_batch: 2, seq_len: 2048, dtype: bf16}\n"
                  "parallel: {dp: 64, tp: 4, ep: 8, zero: 1}\n",
                  "h100", 256, "sequential", "1f1b");
}

/* Gradients of every micro-batch reduced by themselves, inside a node and across two. Where all
 * forwards come before the first backward the estimate has shards beside all activations, though
 * they come as these go. */
static void test_gradients_by_micro_batch(void **state)
{
    (void)state;
    for (int64_t devices = 8; devices <= (test_is_thin() ? 8 : 16); devices *= 2) {
        setup s = open_setup(dense);
        dh_tune_options o = options_of(&s, devices);
        o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_MICRO_BATCH |
                  1u << DH_TUNE_SPLIT;
        o.strategies = "sequential";
        o.schedules = "1f1b";
        o.zeros = "2,3";
        s.job->recompute = DH_RECOMPUTE_SELECTIVE;
        s.job->zero = 2;
        s.job->gradient_sync = DH_GRADIENT_SYNC_EVERY;
        dh_tune *t = search(&s, &o);
        const errors e = compare(t);
        assert_true(e.mean < .04);
        assert_true(e.worst < .08);
        assert_true(e.least > .95 && e.most < 1.18);
        assert_true(e.regret < 1.05);
        dh_tune_destroy(t);
        close_setup(&s);
    }
}

/* Items of a step add up to it, and the winner has no reason. */
static void test_items_add_up(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, test_is_thin() ? 8 : 16);
    o.n_simulated = 0;
    o.n_rows = 200;
    dh_tune *t = search(&s, &o);
    assert_int_equal(t->n_rows, 200);
    for (size_t i = 0; i < t->n_rows; i++) {
        double sum = 0;
        for (int p = 0; p < DH_N_TUNE_ITEM; p++) sum += t->rows[i].item_ns[p];
        assert_true(fabs(sum / t->rows[i].step_ns - 1) < 1e-6);
        assert_true(i == 0 || t->rows[i].step_ns >= t->rows[i - 1].step_ns);
        assert_true((strlen(t->rows[i].why) == 0) == (i == 0));
    }
    dh_tune_destroy(t);
    close_setup(&s);
}

/* 24 heads over 16 ranks. */
static const char odd_heads[] =
    "model: {preset: llama3-8b, n_layers: 8, n_heads: 24, n_kv_heads: 12, width: 3072}\n"
    "train: {batch: 16, micro_batch: 1, seq_len: 2048, dtype: bf16}\n";

/* ---- memory and refusals -------------------------------------------------------------------- */

static void test_what_does_not_fit_says_why(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 4);
    o.n_simulated = 0;
    o.memory_bytes = 1e9;
    dh_tune *t = search(&s, &o);
    assert_int_equal(t->n_fit, 0);
    assert_int_equal(t->n_rows, 0);
    assert_true(t->n_too_large > 0);
    const dh_tune_value_row *tp = value_of(t, DH_TUNE_TP, 4);
    assert_non_null(tp);
    assert_non_null(strstr(tp->why, "does not fit: stage 0 needs"));
    assert_non_null(strstr(tp->why, "parameters"));
    dh_tune_destroy(t);
    close_setup(&s);
}

static void test_impossible_values_say_why(void **state)
{
    (void)state;
    setup s = open_setup(odd_heads);
    dh_tune_options o = options_of(&s, 16);
    o.n_simulated = 0;
    o.strategies = "sequential";
    dh_tune *t = search(&s, &o);
    const dh_tune_value_row *tp = value_of(t, DH_TUNE_TP, 16);
    assert_non_null(tp);
    assert_int_equal(tp->n_fit + tp->n_too_large, 0);
    assert_non_null(strstr(tp->why, "parallel.tp 16 does not divide model.n_heads 24"));
    dh_tune_destroy(t);
    close_setup(&s);
}

static void test_refused_inputs(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    dh_tune *t = NULL;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 8);
    o.strategies = "sequential,delix";
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EMISSING, "no strategy");
    o.strategies = NULL;
    o.schedules = "1f2b";
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EMISSING, "1f2b");
    o.schedules = NULL;
    o.zeros = "1,4";
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EINVAL, "4 is none of");
    o.zeros = NULL;
    o.buckets = "25,big";
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EINVAL, "big is none of auto");
    o.buckets = NULL;
    o.fusions = "off,3";
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EINVAL,
                 "off, 1, 2, 4, 8, each once");
    o.fusions = NULL;
    o.posts = "true,true";
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EINVAL, "true, false, each once");
    o.posts = NULL;
    o.within = 0.5;
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EINVAL,
                 "within=0.5: 0, or at least 1");
    o = options_of(&s, 17); /* divides neither sequences nor heads; more than there are layers */
    assert_fails(&ctx, dh_tune_search(&ctx, s.job, &o, &t), DH_EINVAL, "no configuration of 17");
    close_setup(&s);
}

/* ---- what is fixed, what is applied --------------------------------------------------------- */

static void test_fixed_values_stay(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 16);
    o.n_simulated = 0;
    o.fixed = 1u << DH_TUNE_TP | 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_STRATEGY;
    s.job->tp = 4;
    s.job->recompute = DH_RECOMPUTE_FULL;
    dh_tune *t = search(&s, &o);
    assert_true(t->n_rows > 0);
    for (size_t i = 0; i < t->n_rows; i++) {
        assert_int_equal(t->rows[i].config.at[DH_TUNE_TP], 4);
        assert_int_equal(t->rows[i].config.at[DH_TUNE_RECOMPUTE], DH_RECOMPUTE_FULL);
        assert_int_equal(t->rows[i].config.at[DH_TUNE_STRATEGY], 0);
    }
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_tune_apply(&ctx, &t->rows[0].config, s.job));
    assert_int_equal(s.job->ranks, 16);
    assert_int_equal(s.job->tp, 4);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* 10 layers on 4 stages, even: 2,3,3,2 is what is simulated and what is applied. With fewer at the
 * ends, which have a large vocabulary here, steps are no longer. */
static void test_layers_that_do_not_divide_are_split(void **state)
{
    (void)state;
    setup s = open_setup("model: {preset: llama3-8b, n_layers: 10}\n"
                         "train: {batch: 16, micro_batch: 1, seq_len: 2048, dtype: bf16}\n");
    dh_tune_options o = options_of(&s, 4);
    o.fixed = 1u << DH_TUNE_PP | 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE;
    o.strategies = "sequential";
    o.schedules = "1f1b";
    s.job->pp = 4;
    dh_tune *t = search(&s, &o);
    assert_int_equal(t->n_rows, 1);
    assert_true(compare(t).worst < .05);
    dh_ctx ctx = DH_CTX_INIT;
    const dh_tune_value_row *even = value_of(t, DH_TUNE_SPLIT, 0);
    assert_non_null(even);
    assert_true(even->best.simulated_ns >= t->rows[0].simulated_ns);
    assert_ok(&ctx, dh_tune_apply(&ctx, &even->best.config, s.job));
    assert_string_equal(s.job->layer_split, "2,3,3,2");
    dh_tune_destroy(t);
    close_setup(&s);
}

/* 14 layers over 4 ranks with 4 virtual stages each: 16 chunks, of which the first and the last are
 * empty. Nothing but that split gives a chunk to each. */
static void test_empty_ends_are_searched(void **state)
{
    (void)state;
    setup s = open_setup("model: {preset: llama3-8b, n_layers: 14}\n"
                         "train: {batch: 16, micro_batch: 1, seq_len: 2048, dtype: bf16}\n");
    dh_tune_options o = options_of(&s, 4);
    o.fixed = 1u << DH_TUNE_PP | 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE |
              1u << DH_TUNE_STAGES;
    o.strategies = "sequential";
    o.schedules = "interleaved-1f1b";
    s.job->pp = 4;
    s.job->vpp = 4;
    dh_tune *t = search(&s, &o);
    assert_int_equal(t->n_rows, 1);
    assert_true(compare(t).worst < .05);
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_tune_apply(&ctx, &t->rows[0].config, s.job));
    assert_string_equal(s.job->layer_split, "-1,*,-1");
    const dh_tune_value_row *v = value_of(t, DH_TUNE_SPLIT, t->rows[0].config.at[DH_TUNE_SPLIT]);
    assert_non_null(v);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* A large vocabulary on a folded placement: one rank has embedding and head, so fewer layers at the
 * ends are faster, by simulations of both. */
static void test_ends_with_fewer_layers_win(void **state)
{
    (void)state;
    setup s = open_setup("model: {preset: llama3-8b, n_layers: 32}\n"
                         "train: {batch: 32, micro_batch: 1, seq_len: 2048, dtype: bf16}\n");
    dh_tune_options o = options_of(&s, 4);
    o.fixed = 1u << DH_TUNE_PP | 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE;
    o.strategies = "sequential";
    o.schedules = "zb-v";
    s.job->pp = 4;
    dh_tune *t = search(&s, &o);
    assert_true(t->n_rows > 0 && t->rows[0].config.at[DH_TUNE_SPLIT] > 0);
    const dh_tune_value_row *even = value_of(t, DH_TUNE_SPLIT, 0);
    assert_non_null(even);
    assert_true(even->best.simulated_ns > t->rows[0].simulated_ns);
    dh_tune_destroy(t);
    close_setup(&s);
}

/* A system that keeps shards of gradients fits where ours does not, by estimates too. */
static void test_memory_is_that_of_the_system(void **state)
{
    (void)state;
    uint64_t bytes[2];
    static const char *const systems[] = {"dhelix", "dhelix+sharded-gradients"};
    for (int i = 0; i < 2; i++) {
        setup s = open_setup(dense);
        dh_tune_options o = options_of(&s, 8);
        o.fixed = 1u << DH_TUNE_TP | 1u << DH_TUNE_PP | 1u << DH_TUNE_MICRO_BATCH |
                  1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP;
        o.strategies = "sequential";
        o.schedules = "1f1b";
        s.job->system = (char *)(uintptr_t)systems[i];
        dh_tune *t = search(&s, &o);
        assert_int_equal(t->n_rows, 1);
        const errors e = compare(t);
        assert_true(e.least > .95 && e.most < 1.05);
        bytes[i] = t->rows[0].memory.peak_bytes;
        dh_tune_destroy(t);
        s.job->system = NULL;
        close_setup(&s);
    }
    print_message("ours %.1f GB, with shards of gradients %.1f\n", (double)bytes[0] * 1e-9,
                  (double)bytes[1] * 1e-9);
    assert_true((double)bytes[1] < .9 * (double)bytes[0]);
}

/* The job as it stands has a row, with its reason where it does not fit. */
static void test_the_job_as_given(void **state)
{
    (void)state;
    setup s = open_setup(dense), given = open_setup(dense);
    dh_ctx ctx = DH_CTX_INIT;
    dh_tune_options o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE;
    o.strategies = "sequential";
    o.schedules = "1f1b";
    o.n_simulated = 1;
    o.given = given.job;
    given.job->ranks = 8;
    given.job->tp = 4;
    given.job->dp = 2;
    given.job->nodes = given.job->ranks_per_node = 0;
    assert_ok(&ctx, dh_job_check(&ctx, given.job));
    dh_tune *t = search(&s, &o);
    assert_null(t->given_refused);
    assert_int_equal(t->given.config.at[DH_TUNE_TP], 4);
    assert_true(t->given.fits && t->given.simulated_ns >= t->rows[0].simulated_ns);
    assert_true(*t->given.why);
    dh_tune_destroy(t);
    o.memory_bytes = 1e9;
    t = search(&s, &o);
    assert_int_equal(t->n_rows, 0);
    assert_false(t->given.fits);
    assert_non_null(strstr(t->given.why, "does not fit: stage 0 needs"));
    dh_tune_destroy(t);
    close_setup(&given);
    close_setup(&s);
}

/* Whatever was searched before it on this thread, which other threads make chance. */
static void test_the_job_as_given_after_any_search(void **state)
{
    (void)state;
    static const char *const searched[] = {"sequential", "dhelix", "domino"};
    setup s = open_setup(dense), given = open_setup(dense);
    dh_ctx ctx = DH_CTX_INIT;
    dh_tune_options o = options_of(&s, 4);
    o.fixed = 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_RECOMPUTE;
    o.n_simulated = 0;
    o.n_threads = 1;
    o.given = given.job;
    given.job->ranks = 4;
    given.job->tp = given.job->dp = 2;
    given.job->nodes = given.job->ranks_per_node = 0;
    given.job->strategy = "dhelix";
    assert_ok(&ctx, dh_job_check(&ctx, given.job));
    dh_tune_row first = {.why = ""};
    for (size_t i = 0; i < DH_COUNTOF(searched); i++) {
        o.strategies = searched[i];
        dh_tune *t = search(&s, &o);
        assert_null(t->given_refused);
        if (i == 0) first = t->given;
        assert_true(t->given.step_ns == first.step_ns);
        assert_int_equal(t->given.memory.peak_bytes, first.memory.peak_bytes);
        dh_tune_destroy(t);
    }
    close_setup(&given);
    close_setup(&s);
}

/* What a best configuration has in common with no measured step is said; rows of the table name
 * what there is. */
static void test_what_was_not_measured(void **state)
{
    (void)state;
    size_t n, n_beyond;
    dh_ctx ctx = DH_CTX_INIT;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 16);
    const char **texts, *tables;
    const tuner t = {.options = &o, .job = s.job};
    const dh_strategy *strategies = dh_strategies(&n);
    dh_arena *arena = dh_arena_create();
    dh_tune_config c = {{8, 1, 2, 1, 1, 1, 0, 0, 1, 0, 0, 0, -1, -1, -1, -1, 0}};
    const dh_schedule_row *const *schedules = dh_schedule_rows(&n);
    while (strcmp(schedules[c.at[DH_TUNE_SCHEDULE]]->name, "1f1b") != 0) c.at[DH_TUNE_SCHEDULE]++;
    assert_ok(&ctx, tune_beyond(&ctx, arena, &t, &c, &texts, &tables, &n_beyond));
    assert_int_equal(n_beyond, 0);
    assert_non_null(strstr(tables, "megascale"));
    while (strcmp(strategies[c.at[DH_TUNE_STRATEGY]].name, "stp") != 0) c.at[DH_TUNE_STRATEGY]++;
    while (strcmp(schedules[c.at[DH_TUNE_SCHEDULE]]->name, "stp") != 0) c.at[DH_TUNE_SCHEDULE]++;
    c.at[DH_TUNE_CP] = 2;
    assert_ok(&ctx, tune_beyond(&ctx, arena, &t, &c, &texts, &tables, &n_beyond));
    assert_int_equal(n_beyond, 4);
    assert_non_null(strstr(texts[0], "strategy stp"));
    assert_non_null(strstr(texts[1], "schedule stp"));
    assert_non_null(strstr(texts[2], "context parallelism over nodes"));
    assert_non_null(strstr(texts[3], "micro-batches of 1024 tokens"));
    dh_arena_destroy(arena);
    close_setup(&s);
}

/* Whether every name of a list exists. */
static void assert_names(const char *list, const char *between,
                         dh_status (*find)(dh_ctx *ctx, const char *name))
{
    char text[256], *rest = text;
    dh_ctx ctx = DH_CTX_INIT;
    snprintf(text, sizeof text, "%s", list);
    for (char *name = strtok_r(text, between, &rest); name; name = strtok_r(NULL, between, &rest))
        assert_ok(&ctx, find(&ctx, name));
}

static dh_status find_table(dh_ctx *ctx, const char *name)
{
    const dh_validation_table *table;
    return dh_validation_find(ctx, name, &table);
}

static dh_status find_schedule(dh_ctx *ctx, const char *name)
{
    const dh_schedule_row *row;
    return dh_schedule_find(ctx, name, &row);
}

static dh_status find_strategy(dh_ctx *ctx, const char *name)
{
    const dh_strategy *row;
    return dh_strategy_find(ctx, name, &row);
}

static dh_status find_cluster(dh_ctx *ctx, const char *name)
{
    dh_cluster *cluster = NULL;
    const dh_status st = dh_cluster_find(ctx, name, &cluster);
    dh_cluster_destroy(cluster);
    return st;
}

static void test_what_was_measured_exists(void **state)
{
    (void)state;
    size_t n;
    const tune_measured *rows = tune_measured_rows(&n);
    for (size_t i = 0; i < n; i++) {
        assert_names(rows[i].tables, " ", find_table);
        assert_names(rows[i].schedules, ",", find_schedule);
        assert_names(rows[i].strategies, ",", find_strategy);
        assert_names(rows[i].clusters, ",", find_cluster);
    }
}

static void assert_same_row(const dh_tune_row *a, const dh_tune_row *b)
{
    assert_memory_equal(&a->config, &b->config, sizeof a->config);
    assert_true(a->fits == b->fits && a->step_ns == b->step_ns);
    assert_memory_equal(a->item_ns, b->item_ns, sizeof a->item_ns);
    assert_memory_equal(&a->memory, &b->memory, sizeof a->memory);
    assert_int_equal(a->simulated_ns, b->simulated_ns);
    assert_int_equal(a->simulated_bytes, b->simulated_bytes);
    assert_memory_equal(a->simulated_item_ns, b->simulated_item_ns, sizeof a->simulated_item_ns);
}

/* What bounds leave out changes nothing: the best, and the best with each value, are those of a
 * search that has to rank every configuration. */
static void same_as_exhaustive(const char *text, dh_tune_options *o, const setup *s)
{
    o->n_simulated = 0;
    o->n_rows = 20000;
    o->within = INFINITY;
    o->n_threads = 3;
    dh_tune *all = search(s, o);
    o->n_rows = 7;
    o->n_threads = 2;
    dh_tune *few = search(s, o);
    print_message("%s: %zu rows against %zu\n", text, few->n_rows, all->n_rows);
    assert_true(all->n_rows == (size_t)all->n_fit && few->n_rows == 7);
    assert_int_equal(all->n_fit + all->n_too_large + all->n_left_out,
                     few->n_fit + few->n_too_large + few->n_left_out);
    assert_int_equal(all->n_values, few->n_values);
    for (size_t i = 0; i < few->n_rows; i++) {
        assert_same_row(&all->rows[i], &few->rows[i]);
    }
    for (size_t i = 0; i < few->n_values; i++) {
        const dh_tune_value_row *a = &all->values[i], *b = &few->values[i];
        assert_true(a->dim == b->dim && a->value == b->value);
        assert_true((a->n_fit > 0) == (b->n_fit > 0) && a->n_refused == b->n_refused);
        assert_same_row(&a->best, &b->best);
        assert_string_equal(a->why, b->why);
    }
    dh_tune_destroy(all);
    dh_tune_destroy(few);
}

static void test_bounds_leave_out_nothing_that_counts(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 16);
    o.fixed = 1u << DH_TUNE_MICRO_BATCH | 1u << DH_TUNE_CP;
    if (TEST_SANITIZED) o.strategies = "sequential,list,wavelet+";
    same_as_exhaustive("dense", &o, &s);
    o.fixed = 1u << DH_TUNE_RECOMPUTE;
    o.memory_bytes = 12e9; /* most are too large */
    o.zeros = "1,3";
    o.strategies = "sequential,list";
    same_as_exhaustive("dense, little memory", &o, &s);
    o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_MICRO_BATCH;
    o.strategies = "sequential";
    o.schedules = "1f1b";
    o.fusions = "off,4";
    o.sequences = o.posts = "all";
    same_as_exhaustive("dense, steps and tokens", &o, &s);
    close_setup(&s);
    s = open_setup(experts);
    o = options_of(&s, 8);
    o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP;
    o.strategies = "sequential,centauri";
    same_as_exhaustive("experts", &o, &s);
    close_setup(&s);
}

/* What a search of everything has within the limit stays as it is, whatever is not looked at; of
 * the values that are gone it says at least how long they take, which is true. */
static void same_within(const char *text, dh_tune_options *o, const setup *s)
{
    int64_t n_gone = 0;
    o->n_simulated = 0;
    o->n_rows = 5;
    o->within = INFINITY;
    dh_tune *all = search(s, o);
    o->within = 1;
    o->n_threads = 2;
    dh_tune *some = search(s, o);
    assert_true(all->n_behind == 0 && all->worth_ns == 0 && some->n_behind > 0);
    assert_true(some->worth_ns >= all->rows[0].step_ns);
    assert_int_equal(all->n_fit + all->n_too_large + all->n_left_out + all->n_refused,
                     some->n_fit + some->n_too_large + some->n_left_out + some->n_refused +
                         some->n_behind);
    assert_int_equal(all->n_values, some->n_values);
    for (size_t i = 0; i < some->n_rows; i++) {
        if (some->rows[i].step_ns > some->worth_ns) break;
        assert_same_row(&all->rows[i], &some->rows[i]);
    }
    for (size_t i = 0; i < some->n_values; i++) {
        const dh_tune_value_row *a = &all->values[i], *b = &some->values[i];
        assert_true(a->dim == b->dim && a->value == b->value);
        assert_true(b->n_behind == 0 || b->least_ns > some->worth_ns);
        if (a->n_fit == 0) continue;
        if (a->best.step_ns <= some->worth_ns) {
            assert_same_row(&a->best, &b->best);
        } else if (b->n_fit == 0) {
            n_gone++;
            assert_true(b->n_behind > 0 && b->least_ns <= a->best.step_ns);
            assert_non_null(strstr(b->why, "alone take"));
        }
    }
    print_message("%s: %lld of %lld not looked at, %lld values gone\n", text,
                  (long long)some->n_behind, (long long)(all->n_fit + all->n_too_large),
                  (long long)n_gone);
    assert_true(n_gone > 0);
    dh_tune_destroy(all);
    dh_tune_destroy(some);
}

static void test_what_is_far_behind_is_not_looked_at(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 16);
    o.strategies = TEST_SANITIZED ? "sequential,list" : "sequential,list,centauri,wavelet+";
    o.fixed = 1u << DH_TUNE_MICRO_BATCH | (TEST_SANITIZED ? 1u << DH_TUNE_RECOMPUTE : 0);
    s.job->seq_len = 256; /* with cp 16 products of 16 rows, which read more than they compute */
    same_within("short sequences", &o, &s);
    o.memory_bytes = 16e9;
    same_within("short sequences, little memory", &o, &s);
    close_setup(&s);
}

/* Counts, rows and values, reasons included. */
static void assert_same_search(const dh_tune *a, const dh_tune *b)
{
    assert_int_equal(a->n_fit, b->n_fit);
    assert_int_equal(a->n_too_large, b->n_too_large);
    assert_int_equal(a->n_refused, b->n_refused);
    assert_int_equal(a->n_left_out, b->n_left_out);
    assert_int_equal(a->n_behind, b->n_behind);
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_values, b->n_values);
    assert_string_equal(a->costs, b->costs);
    for (size_t i = 0; i < a->n_rows; i++) {
        assert_same_row(&a->rows[i], &b->rows[i]);
        assert_string_equal(a->rows[i].why, b->rows[i].why);
    }
    for (size_t i = 0; i < a->n_values; i++) {
        const dh_tune_value_row *x = &a->values[i], *y = &b->values[i];
        assert_true(x->dim == y->dim && x->value == y->value && x->n_fit == y->n_fit);
        assert_true(x->n_too_large == y->n_too_large && x->n_refused == y->n_refused);
        assert_true(x->n_behind == y->n_behind && x->least_ns == y->least_ns);
        assert_same_row(&x->best, &y->best);
        assert_string_equal(x->why, y->why);
    }
}

static void same_with_threads(const setup *s, dh_tune_options *o)
{
    static const int64_t more[] = {2, 3, 16};
    o->n_rows = 20;
    o->n_threads = 1;
    dh_tune *one = search(s, o);
    print_message("%lld fit, %lld too large, %lld refused, %lld left out\n", (long long)one->n_fit,
                  (long long)one->n_too_large, (long long)one->n_refused,
                  (long long)one->n_left_out);
    for (size_t i = 0; i < (test_is_thin() ? 2 : DH_COUNTOF(more)); i++) {
        o->n_threads = more[i];
        dh_tune *many = search(s, o);
        assert_same_search(one, many);
        dh_tune_destroy(many);
    }
    dh_tune_destroy(one);
}

/* Rows are simulated in batches by threads, and tell what one after the other do. */
static void test_same_input_same_result(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, test_is_thin() ? 4 : 8);
    o.n_simulated = 3;
    if (TEST_SANITIZED) o.strategies = "sequential,list";
    same_with_threads(&s, &o);
    o.memory_bytes = 16e9;
    same_with_threads(&s, &o);
    close_setup(&s);
}

/* Dense and with experts, what fits seldom, and with the costs of this machine. */
static void test_threads_change_nothing(void **state)
{
    (void)state;
    setup s = open_setup(dense);
    dh_tune_options o = options_of(&s, 16);
    o.fixed = 1u << DH_TUNE_RECOMPUTE;
    o.n_simulated = 0;
    o.strategies = TEST_SANITIZED ? "sequential,list" : "sequential,centauri,list,wavelet+";
    if (TEST_SANITIZED) o.fixed |= 1u << DH_TUNE_MICRO_BATCH;
    same_with_threads(&s, &o);
    o.within = 1.1;
    same_with_threads(&s, &o);
    o.within = 0;
    o.memory_bytes = 12e9;
    o.fixed |= 1u << DH_TUNE_MICRO_BATCH;
    o.strategies = "sequential,list";
    same_with_threads(&s, &o);
    o = options_of(&s, 4);
    o.n_simulated = 0;
    o.cluster = NULL;
    o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_MICRO_BATCH;
    o.strategies = "sequential";
    o.memory_bytes = 80e9;
    same_with_threads(&s, &o);
    close_setup(&s);
    s = open_setup(experts);
    o = options_of(&s, 8);
    o.n_simulated = 0;
    o.fixed = 1u << DH_TUNE_RECOMPUTE | 1u << DH_TUNE_CP | 1u << DH_TUNE_MICRO_BATCH;
    o.strategies = "sequential";
    same_with_threads(&s, &o);
    close_setup(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_ends_are_searched),
        cmocka_unit_test(test_ends_with_fewer_layers_win),
        cmocka_unit_test(test_memory_is_that_of_the_system),
        cmocka_unit_test(test_the_job_as_given),
        cmocka_unit_test(test_the_job_as_given_after_any_search),
        cmocka_unit_test(test_what_was_not_measured),
        cmocka_unit_test(test_what_was_measured_exists),
        cmocka_unit_test(test_estimates_rank_like_the_simulator),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_ways_of_linear_attention),
        cmocka_unit_test(test_degrees_of_sharing),
        cmocka_unit_test(test_parameters_by_virtual_stage),
        cmocka_unit_test(test_gathers_behind_reductions),
        cmocka_unit_test(test_other_rows_change_no_estimate),
        cmocka_unit_test(test_equal_times_are_ordered_by_plainness),
        cmocka_unit_test(test_equals_go_to_the_plainest),
        cmocka_unit_test(test_reductions_behind_slots),
        cmocka_unit_test(test_gradients_made_in_forwards),
        cmocka_unit_test(test_gradients_by_micro_batch),
        cmocka_unit_test(test_ways_to_step),
        cmocka_unit_test(test_whole_tokens),
        cmocka_unit_test(test_items_add_up),
        cmocka_unit_test(test_what_does_not_fit_says_why),
        cmocka_unit_test(test_impossible_values_say_why),
        cmocka_unit_test(test_refused_inputs),
        cmocka_unit_test(test_fixed_values_stay),
        cmocka_unit_test(test_layers_that_do_not_divide_are_split),
        cmocka_unit_test(test_same_input_same_result),
        cmocka_unit_test(test_bounds_leave_out_nothing_that_counts),
        cmocka_unit_test(test_what_is_far_behind_is_not_looked_at),
        cmocka_unit_test(test_threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
