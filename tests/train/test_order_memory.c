/* How much memory orders may take (overlap.memory): by default all that a device has left. */
#include "ranks.h"

#include "base/memory.h"
#include "train/recipe.h"
#include "train/simulation.h"

typedef struct found {
    double bytes, blocks; /* the limit */
    int64_t step_ns;
    uint64_t peak_bytes; /* most of any rank */
    const char *note;    /* value of the derived line overlap.memory; NULL: there is none */
    dh_memory_frontier frontier;
} found;

static dh_job *parse(dh_ctx *ctx, const char *settings)
{
    dh_job *job;
    char text[700];
    snprintf(text, sizeof text,
             "model: {family: llama, n_layers: 8, width: 2048, n_heads: 16, ffn_width: 5632, "
             "vocab: 8192, max_seq: 2048}\ndata: {train: none}\ntrain: {dtype: bf16, seq_len: "
             "2048, batch: 8, micro_batch: 1}\nprofile: none\n%s",
             settings);
    assert_ok(ctx, dh_job_parse(ctx, text, strlen(text), "job", NULL, NULL, 0, &job));
    return job;
}

static void resolve_job(dh_ctx *ctx, const dh_job *job, const char *cluster_name, double room,
                        found *f)
{
    dh_cluster *cluster = NULL;
    dh_resolved *r;
    dh_sim *sim;
    static char note[64];
    const dh_train_simulation plain = {.n_slow_nodes = 0};
    if (cluster_name) assert_ok(ctx, dh_cluster_find(ctx, cluster_name, &cluster));
    const dh_resolve_options how = {.cluster = cluster, .room_bytes = room, .quiet = true};
    assert_ok(ctx, dh_job_resolve(ctx, job, &how, &r));
    *f = (found){.bytes = r->recipe.ordering.options.memory_bytes,
                 .blocks = r->recipe.ordering.options.memory_blocks};
    for (size_t i = 0; i < r->n_derived; i++) {
        if (strcmp(r->derived[i].name, "overlap.memory") != 0) continue;
        snprintf(note, sizeof note, "%s", r->derived[i].value);
        f->note = note;
    }
    assert_ok(ctx, dh_train_simulate(ctx, r, &plain, &sim));
    f->step_ns = sim->step_ns;
    for (size_t k = 0; k < sim->n_classes; k++)
        f->peak_bytes = DH_MAX(f->peak_bytes, sim->ranks[k].memory.peak_bytes);
    assert_ok(ctx, dh_resolved_memory_frontier(ctx, r, &f->frontier));
    dh_sim_destroy(sim);
    dh_resolved_destroy(r);
    dh_cluster_destroy(cluster);
}

static void resolve(const char *cluster, const char *settings, double room, found *f)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job = parse(&ctx, settings);
    resolve_job(&ctx, job, cluster, room, f);
    dh_job_destroy(job);
}

#define PAIRED "parallel: {tp: 8}\nstrategy: dhelix\n"

/* A device with room for every order has no limit, and a smaller one a limit that it can keep. */
static void the_rest_of_a_device_is_the_limit(void **state)
{
    found all, least, tight, none;
    resolve("a40", PAIRED, 0, &all);
    assert_true(isinf(all.bytes) && isinf(all.blocks));
    assert_string_equal(all.note, "no limit");
    resolve("a40", PAIRED "overlap.memory: 0.001\n", 0, &least);
    assert_null(least.note);
    assert_true(least.blocks > 0 && least.blocks < .01);
    assert_true(all.step_ns < least.step_ns);
    assert_true(all.peak_bytes > least.peak_bytes);

    const double room = ((double)all.peak_bytes + (double)least.peak_bytes) / 2;
    resolve("a40", PAIRED, room, &tight);
    assert_true(tight.bytes > 0 && tight.bytes < room);
    assert_true((double)tight.peak_bytes <= room);
    assert_true(tight.step_ns <= least.step_ns);
    /* Orders are the best of those that were tried: a limit may lead to one a little better. */
    assert_true((double)tight.step_ns >= 0.99 * (double)all.step_ns);

    /* Not even the orders that need least fit. They are taken, and a command says that. */
    resolve("a40", PAIRED, (double)least.peak_bytes / 2, &none);
    assert_true(none.bytes >= 0 && none.bytes <= 0);
    assert_int_equal(none.step_ns, least.step_ns);
}

static void the_same_device_gives_the_same(void **state)
{
    found a, b;
    resolve("a40", PAIRED, 6e9, &a);
    resolve("a40", PAIRED, 6e9, &b);
    assert_true(a.bytes >= b.bytes && a.bytes <= b.bytes);
    assert_int_equal(a.step_ns, b.step_ns);
    assert_int_equal(a.peak_bytes, b.peak_bytes);
}

/* Policies without a limit, and devices whose memory nobody knows. */
static void where_it_does_not_apply(void **state)
{
    found f;
    resolve("a40", "parallel: {tp: 8}\nstrategy: dhelix-paper\n", 0, &f);
    assert_null(f.note);
    assert_int_equal(f.frontier.n, 0);
    resolve("a40", "parallel: {tp: 8}\n", 0, &f);
    assert_null(f.note);
    resolve(NULL, "parallel: {tp: 2}\nstrategy: dhelix\ndevice: staged\n", 0, &f);
    assert_true(f.blocks >= DH_ORDER_BLOCKS && f.blocks <= DH_ORDER_BLOCKS);
    assert_string_equal(f.note, "1.5");
    resolve("a40", PAIRED "overlap.memory: 2\n", 0, &f);
    assert_null(f.note);
    assert_true(f.blocks >= 2 && f.blocks <= 2 && isinf(f.bytes));
}

/* Ranks of this machine share its memory, whatever of it is free. */
static void ranks_of_this_machine(void **state)
{
    found f, small;
    if (dh_memory_total() < 16e9) skip(); /* weights and moments take 7 GB */
    resolve(NULL, "parallel: {tp: 2}\nstrategy: dhelix\ndevice: cpu\n", 0, &f);
    assert_string_equal(f.note, "no limit");
    assert_true(f.frontier.room_bytes > 1e9);
    resolve(NULL, "parallel: {tp: 2}\nstrategy: dhelix\ndevice: cpu\n", 1e5, &small);
    assert_true(small.bytes >= 0 && small.bytes <= 0);
}

static void the_frontier_goes_up_and_down(void **state)
{
    found f;
    resolve("a40", PAIRED, 0, &f);
    const dh_memory_frontier *line = &f.frontier;
    size_t n_own = 0;
    assert_true(line->n >= 3);
    for (size_t i = 0; i < line->n; i++) {
        n_own += line->at[i].own;
        assert_true(line->at[i].fits);
        if (i == 0) continue;
        assert_true(line->at[i].peak_bytes >= line->at[i - 1].peak_bytes);
        assert_true(line->at[i].own || line->at[i].step_ns < line->at[i - 1].step_ns);
    }
    assert_int_equal(n_own, 1);
    assert_true(line->at[line->n - 1].own);
    assert_int_equal(line->at[line->n - 1].step_ns, f.step_ns);
}

/* DHelix' figure 11: 39 billion parameters on 64 A40. */
static void of_the_papers_largest_job(void **state)
{
    static const char *const strategies[] = {"sequential", "dhelix"};
    found f[2];
    for (int i = 0; i < 2; i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_job *job;
        char setting[32];
        const char *set[] = {setting};
        snprintf(setting, sizeof setting, "strategy=%s", strategies[i]);
        assert_ok(&ctx, dh_job_load(&ctx, "validation/jobs/dhelix-llama-39b.yaml", set, 1, &job));
        resolve_job(&ctx, job, "a40", 0, &f[i]);
        dh_job_destroy(job);
    }
    assert_true((double)f[0].step_ns >= 1.25 * (double)f[1].step_ns);
    assert_true((double)f[1].peak_bytes <= f[1].frontier.room_bytes);
    assert_true((double)f[1].peak_bytes <= 1.1 * (double)f[0].peak_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rest_of_a_device_is_the_limit),
        cmocka_unit_test(the_same_device_gives_the_same),
        cmocka_unit_test(where_it_does_not_apply),
        cmocka_unit_test(ranks_of_this_machine),
        cmocka_unit_test(the_frontier_goes_up_and_down),
        cmocka_unit_test(of_the_papers_largest_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
