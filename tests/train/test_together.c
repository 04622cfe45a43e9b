/* Ranks that are threads: each builds and verifies its programs once, all are verified together as
 * they are, and none of an earlier mesh is taken. */
#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>

#include "program/program_spec.h"

/* ---- programs that a run builds ------------------------------------------------------------- */

enum { GATHERS = DH_MODE_DECODE + 1, N_KINDS }; /* by mode, and those that only gather parameters */

/* The linker sends calls of dh_program_build and dh_program_verify here. Programs that cannot run
 * do not count: those of estimates. */
static atomic_int n_built[N_KINDS], n_verified;
static atomic_int odd_rank; /* it gets other buckets than the rest; -1: none does */

dh_status __real_dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program);
dh_status __wrap_dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program);
dh_status __real_dh_program_verify(dh_ctx *ctx, const dh_program *program);
dh_status __wrap_dh_program_verify(dh_ctx *ctx, const dh_program *program);

dh_status __wrap_dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program)
{
    dh_program_spec own = *spec;
    if (!spec->unplaced && !spec->outline)
        atomic_fetch_add(&n_built[spec->gathers ? GATHERS : (int)spec->mode], 1);
    if (spec->rank == atomic_load(&odd_rank)) own.recipe.bucket_bytes = 4096;
    return __real_dh_program_build(ctx, &own, program);
}

dh_status __wrap_dh_program_verify(dh_ctx *ctx, const dh_program *program)
{
    atomic_fetch_add(&n_verified, 1);
    return __real_dh_program_verify(ctx, program);
}

static dh_status run(dh_ctx *ctx, const char *settings, int odd, const char *name)
{
    char out[300];
    for (int k = 0; k < N_KINDS; k++) atomic_store(&n_built[k], 0);
    atomic_store(&n_verified, 0);
    atomic_store(&odd_rank, odd);
    run_folder(out, sizeof out, name);
    return run_job(ctx, RUN_GPT2, settings, out, NULL);
}

/* ---- tests ------------------------------------------------------------------------------------ */

static void each_program_is_built_and_verified_once(void **state)
{
    static const struct {
        const char *settings;
        int n_ranks;
        bool gathers;
    } runs[] = {
        {"parallel.dp=2 parallel.tp=2 parallel.pp=2 train.steps=1", 8, false},
        {"parallel.dp=4 parallel.zero=1 parallel.gather=forward train.steps=1", 4, true},
        {"parallel.dp=8 parallel.zero=1 parallel.pp=2 parallel.gather=optimizer train.steps=1", 16,
         false},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        assert_ok(&ctx, run(&ctx, runs[i].settings, -1, "once"));
        const int n = runs[i].n_ranks, n_eval = atomic_load(&n_built[DH_MODE_EVAL]);
        const int n_gather = atomic_load(&n_built[GATHERS]);
        /* One more, the first rank's, tells how much memory ranks need before they begin. */
        assert_int_equal(atomic_load(&n_built[DH_MODE_TRAIN]), n + 1);
        assert_int_equal(n_eval, n);
        assert_int_equal(n_gather, runs[i].gathers ? n : 0);
        assert_int_equal(atomic_load(&n_verified), n + n_eval + n_gather);
    }
}

/* Each program is right by itself; together the ranks would wait for each other for ever. */
static void programs_that_differ_do_not_run(void **state)
{
    static const char *const settings[] = {
        "parallel.dp=2 train.steps=1", "parallel.dp=4 parallel.pp=2 train.steps=1",
        "parallel.dp=2 parallel.tp=2 parallel.zero=2 train.steps=1"};
    for (size_t i = 0; i < DH_COUNTOF(settings); i++) {
        char out[300];
        dh_ctx ctx = DH_CTX_INIT;
        run_folder(out, sizeof out, "odd");
        run_remove(out);
        const dh_status st = run(&ctx, settings[i], 1, "odd");
        if (st != DH_EVERIFY) fail_msg("%s: %d: %s", settings[i], (int)st, ctx.message);
        assert_false(dh_path_exists(out));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_program_is_built_and_verified_once),
        cmocka_unit_test(programs_that_differ_do_not_run),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
