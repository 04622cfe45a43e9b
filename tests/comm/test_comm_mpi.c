/* Run by the launcher, one process a rank: test_comm_mpi [cases|FAULT], a fault of the table below.
 * The fault modes end in MPI_Abort by design; what counts is what they print. */
#include "comm_cases.h"
#include "run/comm/impl.h"

#include <fcntl.h>
#include <sys/mman.h>

static case_env env;

static void begin(const dh_comm_config *config)
{
    int first, n;
    dh_ctx_reset(&env.ctx);
    assert_ok(&env.ctx, dh_comm_world_create(&env.ctx, "mpi", config, &env.world));
    dh_comm_world_here(env.world, &first, &n);
    assert_int_equal(n, 1);
    assert_ok(&env.ctx, dh_comm_attach(&env.ctx, env.world, first, &env.comm));
    env.rank = first;
    env.n_ranks = dh_comm_world_size(env.world);
    dh_log_set_rank(first);
}

static void run_case(bool (*fn)(case_env *), const char *name)
{
    dh_comm_group *all = case_group(&env, "all", NULL, 0, 99, DH_ENGINE_LOCAL);
    assert_non_null(all);
    int64_t seed = env.rank == 0 ? (int64_t)test_seed(name) : 0;
    assert_ok(&env.ctx, dh_comm_broadcast(&env.ctx, all, &seed, 1, DH_I64, 0));
    env.seed = (uint64_t)seed;
    if (!fn(&env)) {
        dh_comm_abort(env.comm, env.failure);
        fail_msg("%s", env.failure);
    }
}

static void every_collective(void **state)
{
    run_case(case_collectives, "every_collective");
}

static void transfers_between_pairs(void **state)
{
    run_case(case_point_to_point, "transfers_between_pairs");
}

static void random_groups_on_two_streams(void **state)
{
    run_case(case_two_streams, "random_groups_on_two_streams");
}

static void groups_come_and_go(void **state)
{
    run_case(case_groups_that_go, "groups_come_and_go");
}

static void the_world_knows_itself(void **state)
{
    char text[128];
    assert_non_null(strstr(dh_comm_world_describe(env.world, text, sizeof text), "real links"));
    for (int r = 0; r < env.n_ranks; r++) assert_int_equal(env.world->node[r], 0);
    assert_ok(&env.ctx, dh_comm_check(&env.ctx, env.comm));
    dh_comm_group *all = case_group(&env, "all", NULL, 0, 98, DH_ENGINE_LOCAL);
    assert_ok(&env.ctx, dh_comm_group_reserve(&env.ctx, all, 1 << 20));
    dh_comm_world *second;
    dh_comm_config paced = {.pace[0] = {1, 1}}, wrong = {.ranks = env.n_ranks + 1};
    assert_fails(&env.ctx, dh_comm_world_create(&env.ctx, "mpi", &paced, &second), DH_EUNSUPPORTED,
                 "cannot be paced");
    assert_fails(&env.ctx, dh_comm_world_create(&env.ctx, "mpi", &wrong, &second), DH_EINVAL,
                 "the launcher started");
}

/* Each way of waiting, and messages cut into parts. */
static int run_cases(void)
{
    static const dh_comm_config configs[] = {
        {.progress = DH_PROGRESS_YIELD, .timeout_ns = 30000000000},
        {.progress = DH_PROGRESS_SLEEP, .timeout_ns = 30000000000, .max_message_bytes = 1000},
        {.progress = DH_PROGRESS_BLOCK, .check = DH_CHECK_EVERY, .ranks_per_node = 64},
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective),
        cmocka_unit_test(transfers_between_pairs),
        cmocka_unit_test(random_groups_on_two_streams),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(the_world_knows_itself),
    };
    int n_failed = 0;
    for (size_t i = 0; i < DH_COUNTOF(configs) && n_failed == 0; i++) {
        env = (case_env){0};
        begin(&configs[i]);
        n_failed = cmocka_run_group_tests_name("configuration", tests, NULL, NULL);
        dh_comm_world_destroy(env.world);
    }
    return n_failed;
}

/* ---- faults ----------------------------------------------------------------------------- */

static void abort_after_a_call(dh_comm_group *g, float *x)
{
    dh_comm_all_reduce(&env.ctx, g, x, x, 1, DH_F32, DH_REDUCE_SUM);
    if (env.rank == 1) {
        usleep(100000);
        dh_comm_abort(env.comm, "the disk is full");
    }
    dh_comm_all_gather(&env.ctx, g, x, (float[64]){0}, 1, DH_F32);
}

/* Does nothing until the others' failure ends it. */
static void be_silent(void)
{
    dh_sleep_until_ns(dh_now_ns() + INT64_C(60000000000));
}

static void one_is_silent(dh_comm_group *g, float *x)
{
    dh_comm_set_timeout(env.comm, 500000000, "");
    if (env.rank == 1) be_silent();
    dh_comm_recv(&env.ctx, g, x, 1, DH_F32, 1 - env.rank, 0);
}

/* Rank 0 waits for 1, which waits for 2, which waits for 3, which does something else. */
static void one_waits_for_the_next(dh_comm_group *g, float *x)
{
    const int pair[2] = {1, 2};
    dh_comm_group *middle = NULL;
    if (env.rank == 1 || env.rank == 2)
        middle = case_group(&env, "middle", pair, 2, 1, DH_ENGINE_LOCAL);
    if (env.rank == 0) dh_comm_set_timeout(env.comm, 1000000000, "");
    if (env.rank == 1) dh_comm_all_reduce(&env.ctx, middle, x, x, 1, DH_F32, DH_REDUCE_SUM);
    if (env.rank == 3) be_silent();
    dh_comm_recv(&env.ctx, g, x, 1, DH_F32, (env.rank + 1) % 4, 0);
}

/* Rank 0 gives up a message whose buffer it frees; only then rank 1 wants it. */
static void one_comes_too_late(dh_comm_group *g, float *x)
{
    enum { N = 1 << 20 };
    char freed[64];
    float *large =
        mmap(NULL, N * sizeof *large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(large != MAP_FAILED);
    snprintf(freed, sizeof freed, "/tmp/dhelix-comm-%ld", (long)getppid()); /* the launcher */
    if (env.rank == 0) {
        dh_comm_set_timeout(env.comm, 100000000, "");
        dh_comm_send(&env.ctx, g, large, N, DH_F32, 1, 0);
        munmap(large, N * sizeof *large);
        close(open(freed, O_CREAT | O_WRONLY, 0600));
        return;
    }
    while (access(freed, F_OK) != 0) dh_sleep_until_ns(dh_now_ns() + 1000000);
    unlink(freed);
    dh_comm_recv(&env.ctx, g, large, N, DH_F32, 0, 0);
    dh_sleep_until_ns(dh_now_ns() + INT64_C(300000000));
}

static void calls_misfit(dh_comm_group *g, float *x)
{
    dh_comm_all_reduce(&env.ctx, g, x, x, 1 + env.rank % 2, DH_F32, DH_REDUCE_SUM);
}

/* A vector of other ranks' length, and one that they know already. */
static void one_outgrows_the_others(dh_comm_group *g, float *x)
{
    enum { N = 20000 };
    static float known[N], longer[2 * N];
    for (int i = 0; i < 3; i++)
        dh_comm_reduce_scatter(&env.ctx, g, known, x, 1, DH_F32, DH_REDUCE_SUM);
    dh_comm_all_reduce(&env.ctx, g, known, known, N, DH_F32, DH_REDUCE_SUM);
    dh_comm_all_reduce(&env.ctx, g, longer, longer, N + N / 2 + N / 2 * (env.rank % 2), DH_F32,
                       DH_REDUCE_SUM);
}

static const struct {
    const char *name;
    dh_comm_config config;
    void (*run)(dh_comm_group *, float *);
    const char *wants[4]; /* in the messages of the ranks */
} faults[] = {
    {"abort",
     {.timeout_ns = 20000000000},
     abort_after_a_call,
     {"rank 1 stopped: the disk is full; rank 0 was waiting in all_gather #2 of group all",
      "rank 1 stopped: the disk is full"}},
    {"silent",
     {.progress = DH_PROGRESS_SLEEP},
     one_is_silent,
     {"rank 0 waited 0.5 s in recv #1 of group all (ranks 0 1); did not come: rank 1 (no answer",
      "rank 0 stopped: rank 0 waited 0.5 s"}},
    {"chain",
     {0},
     one_waits_for_the_next,
     {", for want of rank 3 (no answer", " rank 3 (no answer", " rank 3 (no answer",
      " rank 3 (no answer"}},
    {"late",
     {0},
     one_comes_too_late,
     {"rank 0 waited 0.1 s in send #1 of group all", "rank 0 stopped: rank 0 waited 0.1 s"}},
    {"misfit", {0}, calls_misfit, {"rank 1 ", "all_reduce #1 (1 f32 sum)"}},
    {"longer",
     {0},
     one_outgrows_the_others,
     {"all_reduce #5 (40000 f32 sum)", "all_reduce #5 (30000 f32 sum)"}},
};

/* The others cannot say a word: they wait inside MPI, where the end of this process ends them. */
static int run_without_a_world(void)
{
    const dh_comm_config wrong = {.ranks = 64};
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank && strcmp(rank, "1") == 0 &&
        dh_comm_world_create(&env.ctx, "mpi", &wrong, &env.world) != DH_OK) {
        printf("rank 1 has no world: %s\n", env.ctx.message);
        return 1;
    }
    begin(NULL);
    printf("DID NOT STOP WELL\n");
    return 1;
}

static int run_fault(const char *name)
{
    if (strcmp(name, "alone") == 0) return run_without_a_world();
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        if (strcmp(faults[i].name, name) != 0) continue;
        begin(&faults[i].config);
        float x[2] = {0};
        dh_comm_group *g = case_group(&env, "all", NULL, 0, 0, DH_ENGINE_LOCAL);
        if (g) faults[i].run(g, x);
        bool ok = env.ctx.status == DH_ECOMM && strstr(env.ctx.message, faults[i].wants[env.rank]);
        printf("rank %d %s: %s\n", env.rank, ok ? "stopped as it should" : "DID NOT STOP WELL",
               env.ctx.message);
        fflush(stdout);
        return ok ? 0 : 1;
    }
    return 2;
}

int main(int argc, char **argv)
{
    return argc > 1 ? run_fault(argv[1]) : run_cases();
}
