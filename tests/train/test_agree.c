/* One rank fails between two collectives: the others, wherever they wait, end with its message
 * instead of waiting for it until they lose patience.
 *
 * That nothing hangs is checked by the test's time limit, which is shorter than that patience.
 * As one process of several, which agree_mpi.sh starts: test_agree CALL FOLDER. */
#include "ranks.h"

#include <pthread.h>

#include "train/run.h"

/* ---- calls that fail ------------------------------------------------------------------------ */

/* Which call of a rank fails, without taking part in what others do in theirs. */
static const char *failing = "";
enum { FAILING_RANK = 1 };

static bool fails(dh_ctx *ctx, const char *call, int64_t rank)
{
    if (rank != FAILING_RANK || strcmp(failing, call) != 0) return false;
    dh_fail(ctx, DH_ENOMEM, "no memory in %s", call);
    return true;
}

dh_status __real_dh_session_create(dh_ctx *ctx, const dh_session_spec *spec, dh_session **session);
dh_status __wrap_dh_session_create(dh_ctx *ctx, const dh_session_spec *spec, dh_session **session);
dh_status __wrap_dh_session_create(dh_ctx *ctx, const dh_session_spec *spec, dh_session **session)
{
    if (fails(ctx, "create", spec->rank)) return ctx->status;
    return __real_dh_session_create(ctx, spec, session);
}

dh_status __real_dh_session_init_params(dh_ctx *ctx, dh_session *session, uint64_t seed);
dh_status __wrap_dh_session_init_params(dh_ctx *ctx, dh_session *session, uint64_t seed);
dh_status __wrap_dh_session_init_params(dh_ctx *ctx, dh_session *session, uint64_t seed)
{
    if (fails(ctx, "init", session->spec.rank)) return ctx->status;
    return __real_dh_session_init_params(ctx, session, seed);
}

dh_status __real_dh_session_load_kind(dh_ctx *ctx, dh_session *session, const dh_weights *weights,
                                      const char *prefix, dh_buffer_kind kind);
dh_status __wrap_dh_session_load_kind(dh_ctx *ctx, dh_session *session, const dh_weights *weights,
                                      const char *prefix, dh_buffer_kind kind);
dh_status __wrap_dh_session_load_kind(dh_ctx *ctx, dh_session *session, const dh_weights *weights,
                                      const char *prefix, dh_buffer_kind kind)
{
    if (fails(ctx, "load", session->spec.rank)) return ctx->status;
    return __real_dh_session_load_kind(ctx, session, weights, prefix, kind);
}

dh_status __real_dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                             const float *copy);
dh_status __wrap_dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                             const float *copy);
dh_status __wrap_dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                             const float *copy)
{
    if (fails(ctx, "store", run->ranks.rank)) return ctx->status;
    return __real_dh_save_put(ctx, run, save, share, copy);
}

/* ---- runs -------------------------------------------------------------------------------------
 */

static const char *const calls[] = {"create", "init", "store", "load"};

static dh_status train(dh_ctx *ctx, const char *out, int n_steps)
{
    char settings[200];
    snprintf(settings, sizeof settings,
             "parallel.dp=2 parallel.tp=2 parallel.zero=1 parallel.timeout_s=3600 "
             "optimizer.decay_steps=20 train.steps=%d",
             n_steps);
    return run_job(ctx, RUN_GPT2, settings, out, NULL);
}

/* A run in which the call fails on one rank; loading needs a checkpoint of an earlier one. */
static dh_status train_with(dh_ctx *ctx, const char *call, const char *out)
{
    failing = "";
    if (strcmp(call, "load") == 0) DH_TRY(train(ctx, out, 1));
    failing = call;
    return train(ctx, out, 2);
}

static void one_rank_ends_the_run(void **state)
{
    char out[300], cause[64];
    run_folder(out, sizeof out, "run");
    for (size_t i = 0; i < DH_COUNTOF(calls); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_status st = train_with(&ctx, calls[i], out);
        printf("  %s\n", ctx.message);
        snprintf(cause, sizeof cause, "no memory in %s", calls[i]);
        assert_int_equal(st, DH_ENOMEM);
        assert_memory_equal(ctx.message, "rank 1: ", strlen("rank 1: "));
        assert_non_null(strstr(ctx.message, cause));
        run_remove(out);
    }
}

/* ---- agreement alone --------------------------------------------------------------------------
 */

/* Ranks 1 and 2 are a pair; rank 1 fails where they would meet, and rank 0 is ahead. */
typedef struct agreeing {
    dh_comm_world *world;
    int rank;
    dh_ctx ctx;
    pthread_t thread;
} agreeing;

static dh_status meet(dh_ctx *ctx, const agreeing *a)
{
    const int members[] = {0, 1, 2};
    const dh_comm_group_spec all = {"control", members, 3, 0, DH_ENGINE_LOCAL},
                             pair = {"pair", members + 1, 2, 1, DH_ENGINE_LOCAL};
    dh_ranks ranks = {.rank = a->rank, .n = 3};
    dh_comm_group *two;
    const int32_t mine = a->rank;
    int32_t both[2];
    DH_TRY(dh_comm_attach(ctx, a->world, a->rank, &ranks.comm));
    DH_TRY(dh_comm_group_create(ctx, ranks.comm, &all, &ranks.control));
    DH_TRY(dh_ranks_agree(ctx, &ranks, DH_OK));
    dh_status st = DH_OK;
    if (a->rank > 0) {
        DH_TRY(dh_comm_group_create(ctx, ranks.comm, &pair, &two));
        st = a->rank == 1 ? dh_fail(ctx, DH_ENOMEM, "no room")
                          : dh_comm_all_gather(ctx, two, &mine, both, 1, DH_I32);
    }
    return dh_ranks_agree(ctx, &ranks, st);
}

static void *meet_main(void *arg)
{
    agreeing *a = arg;
    dh_ctx_reset(&a->ctx);
    meet(&a->ctx, a);
    return NULL;
}

static void all_have_the_message(void **state)
{
    static const char *const wants[] = {
        "rank 1 stopped: no room; rank 0 was waiting in barrier #2 of group control (ranks 0 1 2)",
        "no room", "rank 1 stopped: no room; rank 2 was waiting in all_gather #1"};
    agreeing ranks[3];
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world;
    const dh_comm_config config = {.ranks = 3, .timeout_ns = 3600 * (int64_t)1000000000};
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    for (int r = 0; r < 3; r++) {
        ranks[r] = (agreeing){.world = world, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, meet_main, &ranks[r]), 0);
    }
    for (int r = 0; r < 3; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < 3; r++)
        assert_memory_equal(ranks[r].ctx.message, wants[r], strlen(wants[r]));
    dh_comm_world_destroy(world);
}

/* ---- entry ---------------------------------------------------------------------------------- */

/* One rank of several processes; what counts is what it prints, since the launcher's exit status
 * is that of MPI_Abort. */
static int run_process(const char *call, const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    train_with(&ctx, call, out);
    printf("told: %s\n", ctx.message);
    fflush(stdout); /* MPI_Abort, at exit, comes before the streams are flushed */
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3) return run_process(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_have_the_message),
        cmocka_unit_test(one_rank_ends_the_run),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
