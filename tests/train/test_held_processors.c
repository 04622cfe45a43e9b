/* Processors that communicators hold: what is chosen is the shortest of all simulated steps that
 * were tried, and of a stream alone the shortest of all numbers. */
#include "train/link_sms.h"

#include "dh_test.h"
#include "train/simulation.h"

typedef struct held {
    dh_cluster *cluster;
    dh_job *job;
    dh_resolved *resolved;
    dh_link_choice choice;
} held;

static void choose(const char *cluster, const char *settings, held *h)
{
    dh_ctx ctx = DH_CTX_INIT;
    char text[600];
    *h = (held){.cluster = NULL};
    snprintf(text, sizeof text,
             "model: {family: gpt2, n_layers: 4, width: 4096, n_heads: 32, vocab: 8192, max_seq: "
             "4096}\ndata: {train: none}\ntrain: {dtype: bf16, seq_len: 4096, batch: 8, "
             "micro_batch: 1}\n%s",
             settings);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", NULL, NULL, 0, &h->job));
    if (cluster) assert_ok(&ctx, dh_cluster_find(&ctx, cluster, &h->cluster));
    const dh_resolve_options how = {.cluster = h->cluster, .quiet = true};
    assert_ok(&ctx, dh_job_resolve(&ctx, h->job, &how, &h->resolved));
    assert_ok(&ctx, dh_resolved_link_sms(&ctx, h->resolved, &h->choice));
}

static void drop(held *h)
{
    dh_resolved_destroy(h->resolved);
    dh_cluster_destroy(h->cluster);
    dh_job_destroy(h->job);
}

static int64_t step_with(const held *h, int stream, int n)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_train_simulation how = {.n_slow_nodes = 0};
    const dh_link_sms_basis basis = {.plain = h->resolved->recipe.costs, .cluster = h->cluster};
    dh_arena *arena = dh_arena_create();
    dh_link_sms sms = h->choice.sms;
    const dh_costs *costs;
    dh_sim *sim;
    sms.of[stream] = n;
    assert_null(h->resolved->links);
    assert_ok(&ctx, dh_link_sms_costs(&ctx, arena, &basis, &sms, &costs));
    assert_ok(&ctx, dh_train_simulate_on(&ctx, h->resolved, &how, costs, &sim));
    const int64_t step_ns = sim->step_ns;
    dh_sim_destroy(sim);
    dh_arena_destroy(arena);
    return step_ns;
}

/* As every command simulates the job. */
static int64_t plain_step(const held *h)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_train_simulation how = {.n_slow_nodes = 0};
    dh_sim *sim;
    assert_ok(&ctx, dh_train_simulate(&ctx, h->resolved, &how, &sim));
    const int64_t step_ns = sim->step_ns;
    dh_sim_destroy(sim);
    return step_ns;
}

/* What a search finds is the job's setting: its step is the one that simulations have. */
static void what_is_searched_is_the_jobs(void **state)
{
    static const char *const jobs[] = {
        "parallel: {tp: 2, gpu_comm_search: true}\nstrategy: dhelix\n",
        "parallel: {tp: 8, gpu_comm_search: true}\n"};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        held h;
        choose("h100", jobs[i], &h);
        const dh_link_choice *c = &h.choice;
        assert_true(c->known && !c->given && h.resolved->links);
        assert_int_equal(h.resolved->links->held,
                         h.resolved->links->held_ns < h.resolved->links->none_ns);
        if (c->held) assert_non_null(strstr(h.resolved->recipe.costs->name, "held"));
        assert_int_equal(plain_step(&h), c->step_ns);
        print_message("  %s: %.4g ms, none held %.4g, held %.4g\n", jobs[i],
                      (double)c->step_ns * 1e-6, (double)c->none_ns * 1e-6,
                      (double)c->held_ns * 1e-6);
        drop(&h);
    }
}

static void no_number_that_was_tried_is_better(void **state)
{
    static const char *const jobs[] = {
        "parallel: {tp: 4}\nstrategy: dhelix\n", "parallel: {tp: 4}\nstrategy: sequential\n",
        "parallel: {tp: 4, dp: 4}\nstrategy: dhelix\n", "parallel: {cp: 2, pp: 2, dp: 2}\n"};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        held h;
        choose("h100", jobs[i], &h);
        const dh_link_choice *c = &h.choice;
        assert_true(c->known && !c->given && c->n_tried > 0);
        assert_true(c->held_ns <= c->full_ns);
        assert_true(!c->held && c->step_ns == c->none_ns);
        assert_int_equal(plain_step(&h), c->step_ns);
        int n_streams = 0;
        for (int k = 0; k < DH_N_STREAM; k++) {
            assert_int_equal(c->sms.of[k] > 0, c->groups[k] != 0);
            if (!c->groups[k]) continue;
            n_streams++;
            assert_true(c->sms.of[k] <= c->sms.full[dh_stream_engine((dh_stream)k)]);
            assert_int_equal(step_with(&h, k, c->sms.of[k]), c->held_ns);
        }
        for (size_t t = 0; t < c->n_tried; t++) assert_true(c->tried[t].step_ns >= c->held_ns);
        print_message("  %zu: %d of %d held, %.4g ms, %.4g ms with links full, %zu tried\n", i,
                      dh_link_sms_held(&c->sms), c->sms.processors, (double)c->step_ns * 1e-6,
                      (double)c->full_ns * 1e-6, c->n_tried);
        assert_true(n_streams >= 1);
        drop(&h);
    }
}

/* What is hidden may be slow, what is not hidden may not: with communication hidden behind much
 * computation fewer processors are held than where all of it is waited for. */
static void hidden_calls_hold_fewer(void **state)
{
    held hidden, waited;
    choose("h100", "parallel: {tp: 2}\nstrategy: dhelix\n", &hidden);
    choose("h100", "parallel: {tp: 8}\nstrategy: sequential\n", &waited);
    assert_true(hidden.choice.sms.of[DH_STREAM_LOCAL] < 16);
    assert_true(hidden.choice.held_ns < hidden.choice.full_ns);
    assert_true(waited.choice.sms.of[DH_STREAM_LOCAL] > hidden.choice.sms.of[DH_STREAM_LOCAL]);
    drop(&waited);
    drop(&hidden);
}

static void the_job_may_say_it(void **state)
{
    held h;
    choose("h100", "parallel: {tp: 4, gpu_comm_sms: 3}\n", &h);
    assert_true(h.choice.known && h.choice.given);
    assert_int_equal(h.choice.n_tried, 0);
    assert_int_equal(h.choice.sms.of[DH_STREAM_LOCAL], 3);
    assert_true(h.choice.held);
    assert_int_equal(plain_step(&h), h.choice.step_ns);
    held none;
    choose("h100", "parallel: {tp: 4}\n", &none);
    assert_int_equal(step_with(&none, DH_STREAM_LOCAL, 3), h.choice.step_ns);
    assert_int_equal(plain_step(&none), h.choice.none_ns);
    drop(&none);
    dh_str text = DH_STR_INIT;
    dh_link_choice_print(&h.choice, &text);
    assert_non_null(strstr(text.text, "local 3 (tp"));
    dh_str_fini(&text);
    drop(&h);
}

/* One rank has no communicators, the host's are not the device's, and this machine's costs say
 * nothing of a GPU's. */
static void nothing_is_said_where_nothing_is_known(void **state)
{
    static const struct {
        const char *cluster, *settings;
    } jobs[] = {{"h100", ""},
                {"h100", "parallel: {tp: 4, gpu_comm: host}\n"},
                {NULL, "parallel: {tp: 2}\nprofile: none\n"}};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        held h;
        choose(jobs[i].cluster, jobs[i].settings, &h);
        assert_false(h.choice.known);
        assert_int_equal(dh_link_sms_held(&h.choice.sms), 0);
        drop(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_number_that_was_tried_is_better),
        cmocka_unit_test(what_is_searched_is_the_jobs),
        cmocka_unit_test(hidden_calls_hold_fewer),
        cmocka_unit_test(the_job_may_say_it),
        cmocka_unit_test(nothing_is_said_where_nothing_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
