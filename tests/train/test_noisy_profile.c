/* Profiles measured beside other load: what cannot be is found, the quieter of two measurements is
 * kept, and orders by such a profile are as good as by one of a quiet machine. */
#include "ranks.h"

#include "plan/pairing.h"
#include "sim/simulate.h"
#include "train/profile.h"
#include "train/profiling.h"
#include "train/recipe.h"

static const char text[] =
    "model: {family: llama, n_layers: 8, width: 2048, n_heads: 16, ffn_width: 5632, vocab: 8192, "
    "max_seq: 2048}\n"
    "data: {train: none}\n"
    "train: {dtype: bf16, seq_len: 2048, batch: 8, micro_batch: 1, threads: 1}\n"
    "parallel: {tp: 2}\n"
    "links: {local: {gbps: 2}}\n"
    "strategy: dhelix\n";

static dh_job *job_with(const char *profile)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    char setting[300];
    const char *set[] = {setting};
    snprintf(setting, sizeof setting, "profile=%s", profile);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "noisy.yaml", ".", set, 1, &job));
    return job;
}

/* Made by hand: estimated times, and pairs by the published matrix where they are usual. */
static dh_profile *quiet_profile(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_oef_matrix *matrix;
    dh_profile *p;
    dh_job *job = job_with("none");
    assert_ok(&ctx, dh_oef_matrix_read(
                        &ctx, "tests/data/published/dhelix_h100_pairwise_oef_matrix.csv", &matrix));
    assert_ok(&ctx, dh_profile_import(&ctx, job, matrix, "by hand", &p));
    dh_oef_matrix_destroy(matrix);
    dh_job_destroy(job);
    for (size_t i = 0; i < p->ops.n; i++) p->ops.at[i].source = DH_PAIR_MEASURED;
    for (size_t i = 0; i < p->pairs.n; i++) {
        dh_profile_pair *pair = &p->pairs.at[i];
        const int64_t a = p->ops.at[pair->a].solo_ns, b = p->ops.at[pair->b].solo_ns;
        double oef = dh_oef(a, b, DH_MAX(pair->a_ns, pair->b_ns));
        oef = oef > 1 ? .95 : DH_MAX(oef, -.5);
        const dh_pair_time t = dh_pair_time_from_oef(a, b, oef, DH_PAIR_MEASURED);
        pair->a_ns = t.f_ns;
        pair->b_ns = t.b_ns;
        pair->source = DH_PAIR_MEASURED;
    }
    return p;
}

static double draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*seed >> 11) / 9007199254740992.0;
}

/* Other load makes it longer, up to four times, where it comes by. */
static int64_t longer(int64_t ns, double share, uint64_t *seed)
{
    const double comes = draw(seed), by = draw(seed);
    return comes < share ? (int64_t)((double)ns * (1 + 3 * by)) : ns;
}

static void add_load(dh_profile *p, double share, uint64_t seed)
{
    for (size_t i = 0; i < p->ops.n; i++)
        p->ops.at[i].solo_ns = longer(p->ops.at[i].solo_ns, share, &seed);
    for (size_t i = 0; i < p->pairs.n; i++) {
        dh_profile_pair *pair = &p->pairs.at[i];
        pair->a_ns = longer(pair->a_ns, share, &seed);
        pair->b_ns = longer(pair->b_ns, share, &seed);
    }
}

/* A job ordered by the one profile, its step simulated with the other's times. */
static int64_t step_of(dh_profile *by, const dh_profile *on)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_resolved *r;
    dh_sim *sim;
    const dh_costs *fallback, *costs;
    const dh_resolve_options how = {.quiet = true};
    const dh_sim_options plain = {.cores = 0};
    char path[300];
    snprintf(path, sizeof path, "%s/profile.json", run_dir);
    assert_ok(&ctx, dh_profile_write(&ctx, by, path));
    dh_job *job = job_with(path);
    dh_arena *arena = dh_arena_create();
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &r));
    assert_ok(&ctx, dh_job_estimates(&ctx, arena, job, &fallback));
    assert_ok(&ctx, dh_profile_costs(&ctx, arena, on, fallback, &costs));
    assert_ok(&ctx, dh_simulate(&ctx, &r->recipe, costs, &plain, &sim));
    const int64_t step_ns = sim->step_ns;
    dh_sim_destroy(sim);
    dh_resolved_destroy(r);
    dh_arena_destroy(arena);
    dh_job_destroy(job);
    return step_ns;
}

/* As dhelix profile measures where something else runs: rounds, of which the quieter is kept. */
static dh_profile *measured_beside_load(double share, int n_rounds, uint64_t seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p = quiet_profile();
    add_load(p, share, seed);
    for (int r = 1; r < n_rounds; r++) {
        dh_profile *next = quiet_profile();
        add_load(next, share, seed + 100 * (uint64_t)r);
        assert_ok(&ctx, dh_profile_keep_quieter(&ctx, p, next));
        dh_profile_destroy(next);
    }
    return p;
}

static void orders_are_those_of_a_quiet_machine(void **state)
{
    static const struct {
        double share; /* of the times that are too long */
        int n_rounds;
    } loads[] = {{.2, 1}, {.5, 2}, {.5, 4}};
    dh_profile *quiet = quiet_profile();
    const int64_t best_ns = step_of(quiet, quiet);
    assert_false(dh_profile_is_noisy(dh_profile_doubt(quiet)));
    for (size_t k = 0; k < DH_COUNTOF(loads); k++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            dh_profile *noisy = measured_beside_load(loads[k].share, loads[k].n_rounds, seed);
            const dh_profile_doubts d = dh_profile_doubt(noisy);
            const int64_t ns = step_of(noisy, quiet);
            assert_true(dh_profile_is_noisy(d));
            if ((double)ns > 1.03 * (double)best_ns)
                fail_msg("share %g, seed %llu: %.3f ms, quiet %.3f ms; %zu of %zu pairs in doubt",
                         loads[k].share, (unsigned long long)seed, (double)ns * 1e-6,
                         (double)best_ns * 1e-6, d.n_doubtful, d.n_pairs);
            dh_profile_destroy(noisy);
        }
    dh_profile_destroy(quiet);
}

/* Of two rounds with load at other times hardly anything is left. */
static void the_quieter_round_is_kept(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *quiet = quiet_profile(), *into = quiet_profile();
    add_load(into, .3, 5);
    const size_t before = dh_profile_doubt(into).n_doubtful;
    for (uint64_t seed = 6; seed < 9; seed++) {
        dh_profile *from = quiet_profile();
        add_load(from, .3, seed);
        assert_ok(&ctx, dh_profile_keep_quieter(&ctx, into, from));
        dh_profile_destroy(from);
    }
    assert_true(dh_profile_doubt(into).n_doubtful < before / 4);
    for (size_t i = 0; i < into->ops.n; i++)
        assert_true(into->ops.at[i].solo_ns >= quiet->ops.at[i].solo_ns);
    dh_profile_destroy(into);
    dh_profile_destroy(quiet);
}

/* A time alone that most pairs contradict, and a pair that cannot be. */
static void times_are_compared_with_each_other(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *quiet = quiet_profile(), *p = quiet_profile();
    const uint32_t a = p->pairs.at[0].a;
    p->ops.at[a].solo_ns *= 3;
    dh_profile_pair *last = &p->pairs.at[p->pairs.n - 1];
    assert_true(last->a != a && last->b != a);
    last->a_ns = 5 * (p->ops.at[last->a].solo_ns + p->ops.at[last->b].solo_ns);
    assert_ok(&ctx, dh_profile_repair(&ctx, p));
    assert_true(p->ops.at[a].solo_ns < 2 * quiet->ops.at[a].solo_ns);
    assert_int_equal(p->pairs.at[p->pairs.n - 1].source, DH_PAIR_MODELLED);
    dh_profile_destroy(p);
    dh_profile_destroy(quiet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_are_those_of_a_quiet_machine),
        cmocka_unit_test(the_quieter_round_is_kept),
        cmocka_unit_test(times_are_compared_with_each_other),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
