#include "comm_cases.h"

#include <pthread.h>
#include <stdatomic.h>

#include "run/comm/impl.h"
#include "run/comm/local.h"

/* ---- running ranks as threads ----------------------------------------------------------- */

enum { MAX_THREADS = 8 };

typedef bool (*rank_fn)(case_env *env);

typedef struct rank_thread {
    case_env env;
    rank_fn fn;
    pthread_t thread;
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    case_env *env = &t->env;
    if (dh_comm_attach(&env->ctx, env->world, env->rank, &env->comm) != DH_OK)
        case_fail(env, __LINE__, "attach", "%s", env->ctx.message);
    else if (!t->fn(env))
        dh_comm_abort(env->comm, env->failure); /* the others need not wait for the timeout */
    return NULL;
}

/* Run fn on n rank threads; their environments stay in out for a look at messages. */
static void run_world(const dh_comm_config *config, int n, rank_fn fn, uint64_t seed, void *arg,
                      rank_thread *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_config c = config ? *config : (dh_comm_config){0};
    dh_comm_world *world;
    c.ranks = n;
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &c, &world));
    for (int r = 0; r < n; r++) {
        out[r] = (rank_thread){.fn = fn};
        out[r].env = (case_env){.world = world, .rank = r, .n_ranks = n, .seed = seed, .arg = arg};
        dh_ctx_reset(&out[r].env.ctx);
        assert_int_equal(pthread_create(&out[r].thread, NULL, rank_main, &out[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(out[r].thread, NULL);
    dh_comm_world_destroy(world);
    for (int r = 0; r < n; r++)
        if (out[r].env.failure[0]) fail_msg("%s", out[r].env.failure);
}

static void run(const dh_comm_config *config, int n, rank_fn fn, uint64_t seed)
{
    rank_thread ranks[MAX_THREADS];
    run_world(config, n, fn, seed, NULL, ranks);
}

/* ---- results ---------------------------------------------------------------------------- */

static void every_collective(void **state)
{
    run(NULL, 8, case_collectives, test_seed("every_collective"));
}

static void transfers_between_pairs(void **state)
{
    uint64_t seed = test_seed("transfers_between_pairs");
    run(NULL, 5, case_point_to_point, seed);
    dh_comm_config no_eager = {.eager_bytes = 1};
    run(&no_eager, 2, case_point_to_point, seed);
}

static void random_groups_on_two_streams(void **state)
{
    uint64_t seed = test_seed("random_groups_on_two_streams");
    for (uint64_t i = 0; i < 3; i++) run(NULL, 6, case_two_streams, seed + i);
}

static void groups_come_and_go(void **state)
{
    run(NULL, 5, case_groups_that_go, test_seed("groups_come_and_go"));
}

/* Ring attention's pattern: many steps, both directions, nobody in step. */
static bool lopsided(case_env *env)
{
    dh_comm_group *group = case_group(env, "cp", NULL, 0, 0, DH_ENGINE_LOCAL);
    if (!group) return false;
    int n = env->n_ranks;
    double x = env->rank, sum = 0;
    for (int i = 0; i < 50; i++) {
        double y;
        if (env->rank == i % n) usleep(200);
        CASE_OK(env, dh_comm_exchange(&env->ctx, group, &x, (env->rank + 1) % n, &y,
                                      (env->rank + n - 1) % n, 1, DH_F64, 0));
        x = y;
        sum += x;
    }
    CASE_OK(env, dh_comm_all_reduce(&env->ctx, group, &sum, &sum, 1, DH_F64, DH_REDUCE_SUM));
    CASE_CHECK(env, sum == 50.0 * (n * (n - 1) / 2), "%g", sum);
    dh_comm_times t = dh_comm_group_times(group);
    CASE_CHECK(env, t.called_ns <= t.arrived_ns && t.arrived_ns <= t.ended_ns, "times");
    return true;
}

static void ranks_out_of_step(void **state)
{
    run(NULL, 4, lopsided, 0);
}

static bool nan_and_wrap(case_env *env)
{
    dh_comm_group *group = case_group(env, "tp", NULL, 0, 0, DH_ENGINE_LOCAL);
    if (!group) return false;
    float f[2] = {env->rank == 1 ? NAN : 5.0f, (float)env->rank};
    CASE_OK(env, dh_comm_all_reduce(&env->ctx, group, f, f, 2, DH_F32, DH_REDUCE_MAX));
    CASE_CHECK(env, isnan(f[0]) && f[1] == 2.0f, "%g %g", f[0], f[1]);
    int32_t i = INT32_MAX;
    CASE_OK(env, dh_comm_all_reduce(&env->ctx, group, &i, &i, 1, DH_I32, DH_REDUCE_SUM));
    CASE_CHECK(env, i == INT32_MAX - 2, "%d", i);
    /* 1 + 2^-8 is not a bf16: accumulating in bf16 would lose both small operands. */
    dh_bf16 b = dh_f32_to_bf16(env->rank == 0 ? 1.0f : 0x1p-8f);
    CASE_OK(env, dh_comm_all_reduce(&env->ctx, group, &b, &b, 1, DH_BF16, DH_REDUCE_SUM));
    CASE_CHECK(env, dh_bf16_to_f32(b) == 1.0f + 0x1p-7f, "%g", dh_bf16_to_f32(b));
    return true;
}

static void odd_numbers(void **state)
{
    run(NULL, 3, nan_and_wrap, 0);
}

/* ---- paced links ------------------------------------------------------------------------ */

static void formula_by_hand(void **state)
{
    dh_comm_pace pace = {.gbps = 8, .latency_us = 10}; /* a byte a nanosecond */
    assert_int_equal(dh_comm_paced_ns(DH_COMM_ALL_GATHER, 4, 4000, pace), 3000 + 30000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_REDUCE_SCATTER, 4, 4000, pace), 3000 + 30000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_ALL_REDUCE, 4, 4000, pace), 6000 + 60000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_ALL_TO_ALL, 4, 4000, pace), 3000 + 30000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_BROADCAST, 4, 4000, pace), 4000 + 30000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_BARRIER, 5, 0, pace), 30000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_SEND, 2, 4000, pace), 4000 + 10000);
    assert_int_equal(dh_comm_paced_ns(DH_COMM_ALL_REDUCE, 1, 4000, pace), 0);
    pace.gbps = 0;
    assert_int_equal(dh_comm_paced_ns(DH_COMM_ALL_GATHER, 2, 4000, pace), 10000);
}

static const dh_comm_pace slow = {.gbps = 0.08, .latency_us = 500}; /* 100 ns a byte */

static bool lasts(case_env *env, const dh_comm_group *group, dh_comm_kind kind, int64_t bytes)
{
    dh_comm_times t = dh_comm_group_times(group);
    int64_t least = dh_comm_paced_ns(kind, env->n_ranks, bytes, slow);
    CASE_CHECK(env, t.ended_ns - t.arrived_ns >= least, "%s took %lld ns, at least %lld",
               dh_comm_kind_name(kind), (long long)(t.ended_ns - t.arrived_ns), (long long)least);
    return true;
}

enum { MAX_PARTS = 2 * MAX_THREADS };

/* Every wait for a paced wire passes through the test: how often this rank has waited. */
static _Thread_local int n_wire_waits;
void __real_local_wire_wait(local_world *world, local_ticket ticket, double share,
                            int64_t latency_ns);
void __wrap_local_wire_wait(local_world *world, local_ticket ticket, double share,
                            int64_t latency_ns);

void __wrap_local_wire_wait(local_world *world, local_ticket ticket, double share,
                            int64_t latency_ns)
{
    n_wire_waits++;
    __real_local_wire_wait(world, ticket, share, latency_ns);
}

typedef struct told {
    int64_t ns;
    int n_waits; /* of this rank for the wire until then */
} told;

static void note_part(void *user, uint32_t part)
{
    ((told *)user)[part] = (told){dh_now_ns(), n_wire_waits};
}

/* Two parts of each member: the own ones are told before the wire is waited for, the others after
 * one more wait each and at the wire's rate; for the last the call itself waits. */
static bool parts_come_one_by_one(case_env *env, dh_comm_group *group, const void *a, void *b,
                                  int64_t n)
{
    enum { N_OWN = 2 };
    told parts[MAX_PARTS];
    const int n_parts = N_OWN * env->n_ranks, before = n_wire_waits;
    const dh_part_hook hook = {(uint32_t)n_parts, note_part, parts};
    const int64_t all = dh_comm_paced_ns(DH_COMM_ALL_GATHER, env->n_ranks, env->n_ranks * n, slow);
    CASE_OK(env, dh_comm_all_gather_parts(&env->ctx, group, a, b, n, DH_U8, &hook));
    const dh_comm_times t = dh_comm_group_times(group);
    for (int k = 0; k + 1 < n_parts; k++) {
        const int n_foreign = DH_MAX(k + 1 - N_OWN, 0);
        const int64_t least = all * n_foreign / (n_parts - N_OWN), ns = parts[k].ns - t.arrived_ns;
        CASE_CHECK(env, parts[k].n_waits - before == n_foreign,
                   "part %d after %d waits for the wire, not %d", k, parts[k].n_waits - before,
                   n_foreign);
        CASE_CHECK(env, ns >= least && parts[k].ns <= t.ended_ns,
                   "part %d after %lld ns, at least %lld", k, (long long)ns, (long long)least);
    }
    return lasts(env, group, DH_COMM_ALL_GATHER, env->n_ranks * n);
}

static bool paced_calls(case_env *env)
{
    enum { N = 3000 };
    uint8_t a[4 * N] = {0}, b[4 * N] = {0};
    dh_comm_group *group = case_group(env, "dp", NULL, 0, 0, DH_ENGINE_CROSS);
    if (!group) return false;
    dh_ctx *ctx = &env->ctx;
    int n = env->n_ranks, next = (env->rank + 1) % n, before = (env->rank + n - 1) % n;
    CASE_OK(env, dh_comm_all_gather(ctx, group, a, b, N, DH_U8));
    if (!lasts(env, group, DH_COMM_ALL_GATHER, n * N)) return false;
    if (!parts_come_one_by_one(env, group, a, b, N)) return false;
    CASE_OK(env, dh_comm_reduce_scatter(ctx, group, a, b, N, DH_U8, DH_REDUCE_SUM));
    if (!lasts(env, group, DH_COMM_REDUCE_SCATTER, n * N)) return false;
    CASE_OK(env, dh_comm_all_reduce(ctx, group, a, b, N, DH_U8, DH_REDUCE_SUM));
    if (!lasts(env, group, DH_COMM_ALL_REDUCE, N)) return false;
    CASE_OK(env, dh_comm_all_to_all(ctx, group, a, b, N, DH_U8));
    if (!lasts(env, group, DH_COMM_ALL_TO_ALL, n * N)) return false;
    CASE_OK(env, dh_comm_broadcast(ctx, group, a, N, DH_U8, 1));
    if (!lasts(env, group, DH_COMM_BROADCAST, N)) return false;
    CASE_OK(env, dh_comm_barrier(ctx, group));
    if (!lasts(env, group, DH_COMM_BARRIER, 0)) return false;
    CASE_OK(env, dh_comm_exchange(ctx, group, a, next, b, before, N, DH_U8, 0));
    return true;
}

/* Two transfers from one rank share its wire: the second ends two durations after. */
static bool shared_wire(case_env *env)
{
    enum { N = 20000 };
    static uint8_t data[N];
    uint8_t *in = malloc(N);
    dh_comm_group *group = case_group(env, "pp", NULL, 0, 0, DH_ENGINE_CROSS);
    if (!group || !in) return false;
    dh_comm_xfer both[2] = {{DH_XFER_SEND, 1, 0, DH_U8, N, data},
                            {DH_XFER_SEND, 2, 0, DH_U8, N, data}};
    CASE_OK(env, dh_comm_barrier(&env->ctx, group));
    int64_t begin = dh_now_ns();
    dh_status st = env->rank == 0 ? dh_comm_batch(&env->ctx, group, both, 2)
                                  : dh_comm_recv(&env->ctx, group, in, N, DH_U8, 0, 0);
    int64_t took = dh_now_ns() - begin;
    free(in);
    CASE_CHECK(env, st == DH_OK, "%s", env->ctx.message);
    if (env->rank == 0)
        CASE_CHECK(env, took >= 2 * (N * 100), "both sent after %lld ns", (long long)took);
    int64_t longest = took;
    CASE_OK(env, dh_comm_all_reduce(&env->ctx, group, &took, &longest, 1, DH_I64, DH_REDUCE_MAX));
    CASE_CHECK(env, longest >= 2 * (N * 100), "%lld", (long long)longest);
    return true;
}

static void paced_calls_take_their_time(void **state)
{
    dh_comm_config config = {.pace[DH_ENGINE_CROSS] = slow};
    run(&config, 4, paced_calls, 0);
    config.eager_bytes = 1;
    run(&config, 3, shared_wire, 0);
    config.eager_bytes = 1 << 20;
    run(&config, 2, paced_calls, 0);
}

static void worlds_say_how_they_time(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world;
    char text[256];
    dh_comm_config config = {.ranks = 6, .ranks_per_node = 2, .pace[DH_ENGINE_CROSS] = {4, 50}};
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    assert_string_equal(
        dh_comm_world_describe(world, text, sizeof text),
        "local: 6 ranks, local link shared memory, cross link paced at 4 Gbit/s + 50 us");
    for (int r = 0; r < 6; r++) assert_int_equal(world->node[r], r / 2);
    int first, n;
    dh_comm_world_here(world, &first, &n);
    assert_true(first == 0 && n == 6 && dh_comm_world_size(world) == 6);
    dh_comm_world_destroy(world);
    dh_comm_world_destroy(NULL);
}

/* ---- failures --------------------------------------------------------------------------- */

static bool wait_for_all(case_env *env) /* a few calls; keeps the status in env->ctx */
{
    dh_comm_group *group = case_group(env, "tp", NULL, 0, 0, DH_ENGINE_LOCAL);
    float x = 1;
    for (int i = 0; group && i < 5; i++)
        if (dh_comm_all_reduce(&env->ctx, group, &x, &x, 1, DH_F32, DH_REDUCE_SUM) != DH_OK) break;
    return true;
}

static void assert_stopped(const rank_thread *t, const char *part1, const char *part2)
{
    const char *message = t->env.ctx.message;
    if (t->env.ctx.status != DH_ECOMM || !strstr(message, part1) || !strstr(message, part2))
        fail_msg("rank %d: %s \"%s\" lacks \"%s\" or \"%s\"", t->env.rank,
                 dh_status_name(t->env.ctx.status), message, part1, part2);
}

static bool one_aborts(case_env *env)
{
    dh_comm_group *tp = case_group(env, "tp", (int[]){0, 1}, 2, 0, DH_ENGINE_LOCAL);
    if (env->rank == 2 || !tp) {
        usleep(20000);
        dh_comm_abort(env->comm, "loss is not a number");
        dh_comm_abort(env->comm, "a later message is ignored");
        return true;
    }
    ++*(atomic_int *)env->arg;
    if (env->rank == 0) {
        float x = 0;
        dh_comm_all_gather(&env->ctx, tp, &x, (float[2]){0, 0}, 1, DH_F32);
        dh_ctx later = DH_CTX_INIT;
        CASE_CHECK(env, dh_comm_barrier(&later, tp) == DH_ECOMM, "calls after a failure fail");
        CASE_CHECK(env, dh_comm_check(&later, env->comm) == DH_ECOMM, "the world has failed");
        return true;
    }
    dh_comm_recv(&env->ctx, tp, (float[9]){0}, 9, DH_F32, 0, 0);
    return true;
}

/* Ranks 0 and 1 make tp; rank 2 belongs to no group at all. */
static bool abort_outside_groups(case_env *env)
{
    if (env->rank < 2) return one_aborts(env);
    while (*(atomic_int *)env->arg < 2) usleep(1000);
    usleep(20000); /* most often they wait by now */
    dh_comm_abort(env->comm, "loss is not a number");
    dh_comm_abort(env->comm, "a later message is ignored");
    return true;
}

static void an_abort_reaches_all(void **state)
{
    atomic_int n_calling = 0;
    rank_thread t[MAX_THREADS];
    run_world(NULL, 3, abort_outside_groups, 0, &n_calling, t);
    assert_stopped(&t[0], "rank 2 stopped: loss is not a number; ",
                   "rank 0 was waiting in all_gather #1 of group tp (ranks 0 1)");
    assert_stopped(&t[1], "rank 2 stopped: loss is not a number; ",
                   "rank 1 was waiting in recv #1 of group tp (ranks 0 1)");
    assert_int_equal(t[2].env.ctx.status, DH_OK);
}

typedef struct fault {
    int rank;
    int64_t at;
    enum { FAULT_KILL, FAULT_DROP, FAULT_DELAY } what;
} fault;

static dh_comm_action inject(void *user, int rank, int64_t seq, dh_comm_kind kind)
{
    const fault *f = user;
    if (rank != f->rank || seq != f->at) return DH_COMM_PROCEED;
    if (f->what == FAULT_KILL) pthread_exit(NULL);
    if (f->what == FAULT_DELAY) usleep(50000);
    return f->what == FAULT_DROP ? DH_COMM_DROP : DH_COMM_PROCEED;
}

static dh_comm_config faulty(fault *f, int64_t timeout_ms)
{
    return (dh_comm_config){.timeout_ns = timeout_ms * 1000000, .hook = inject, .hook_user = f};
}

static void a_killed_rank_is_named(void **state)
{
    rank_thread t[MAX_THREADS];
    fault f = {.rank = 1, .at = 3, .what = FAULT_KILL};
    dh_comm_config config = faulty(&f, 1000);
    run_world(&config, 3, wait_for_all, 0, NULL, t);
    assert_int_equal(t[1].env.ctx.status, DH_OK); /* it said nothing */
    for (int r = 0; r < 3; r += 2) {
        assert_stopped(&t[r], "waited 1 s in all_reduce #3 of group tp (ranks 0 1 2)",
                       "did not come: rank 1 (last finished all_reduce #2 of group tp");
    }
}

static void a_dropped_call_is_noticed(void **state)
{
    rank_thread t[MAX_THREADS];
    fault f = {.rank = 1, .at = 5, .what = FAULT_DROP}; /* the last call */
    dh_comm_config config = faulty(&f, 1000);
    run_world(&config, 2, wait_for_all, 0, NULL, t);
    assert_stopped(&t[0], "waited 1 s in all_reduce #5", "rank 1 (last finished all_reduce #4");
    f.at = 2; /* its third call meets the other's second */
    run_world(&config, 2, wait_for_all, 0, NULL, t);
    assert_stopped(&t[0], "do not fit together", "rank 1 all_reduce #3 (1 f32 sum)");
}

static int64_t ms(int64_t n)
{
    return n * 1000000;
}

/* Rank 0 waits for rank 1, which a little later begins to wait for rank 2, and longer than rank 0.
 */
static bool waits_in_a_chain(case_env *env)
{
    static const int pairs[2][2] = {{0, 1}, {1, 2}};
    dh_comm_group *groups[2] = {NULL, NULL};
    float x = 0, y;
    for (int p = 0; p < 2; p++)
        if (env->rank == pairs[p][0] || env->rank == pairs[p][1])
            groups[p] = case_group(env, p ? "second" : "first", pairs[p], 2, p, DH_ENGINE_LOCAL);
    if (env->rank == 0) {
        dh_comm_set_timeout(env->comm, ms(1000), "");
        dh_comm_all_reduce(&env->ctx, groups[0], &x, &y, 1, DH_F32, DH_REDUCE_SUM);
    }
    if (env->rank == 1) {
        dh_sleep_until_ns(dh_now_ns() + ms(100));
        if (*(int *)env->arg)
            dh_comm_recv(&env->ctx, groups[1], &y, 1, DH_F32, 1, 0);
        else
            dh_comm_all_reduce(&env->ctx, groups[1], &x, &y, 1, DH_F32, DH_REDUCE_SUM);
    }
    return true;
}

static void a_chain_is_followed_to_its_end(void **state)
{
    rank_thread t[MAX_THREADS];
    for (int transfer = 0; transfer < 2; transfer++) {
        run_world(NULL, 3, waits_in_a_chain, 0, &transfer, t);
        assert_stopped(&t[0],
                       transfer ? "did not come: rank 1 (waiting in recv #1 of group second"
                                : "did not come: rank 1 (waiting in all_reduce #1 of group "
                                  "second",
                       ", for want of rank 2 (no call yet)");
    }
}

/* The last rank does nothing; every other waits for the next, all from the same time on, and
 * takes its group down while others still ask whom it waited for. */
static bool waits_for_the_next(case_env *env)
{
    enum { N = 8192 }; /* more than a send may leave behind */
    static float x[N], y[MAX_THREADS][N];
    const int last = env->n_ranks - 1;
    dh_comm_group *all = case_group(env, "all", NULL, 0, 9, DH_ENGINE_LOCAL), *next = NULL;
    for (int r = 0; r < last; r++) {
        const int pair[2] = {r, r + 1};
        dh_comm_group *g = NULL;
        if (env->rank == r || env->rank == r + 1)
            g = case_group(env, "next", pair, 2, 0, DH_ENGINE_LOCAL);
        if (env->rank == r) next = g;
    }
    CASE_CHECK(env, all && (next || env->rank == last), "groups");
    CASE_OK(env, dh_comm_barrier(&env->ctx, all));
    dh_comm_set_timeout(env->comm, ms(300), "");
    if (env->rank == last) return true;
    ((int64_t *)env->arg)[env->rank] = dh_now_ns();
    if (env->rank % 2)
        dh_comm_exchange(&env->ctx, next, x, 1, y[env->rank], 1, N, DH_F32, 0);
    else
        dh_comm_recv(&env->ctx, next, y[env->rank], N, DH_F32, 1, 0);
    dh_comm_group_destroy(next);
    return true;
}

/* Whether all began to wait long before the first gave up: whoever was kept from its core would be
 * named, and rightly. */
static bool began_together(const int64_t *began_ns, int n)
{
    int64_t first = began_ns[0], last = began_ns[0];
    for (int r = 1; r < n; r++) {
        first = DH_MIN(first, began_ns[r]);
        last = DH_MAX(last, began_ns[r]);
    }
    return last - first < ms(150);
}

/* Who gives up first is chance; all of them give up at about the same time. */
static void the_end_of_a_chain_is_named_by_whoever_gives_up(void **state)
{
    for (int n = 4; n <= MAX_THREADS; n += MAX_THREADS - 4) {
        char culprit[40];
        snprintf(culprit, sizeof culprit, " rank %d (last finished barrier #1", n - 1);
        for (int round = 0; round < 6; round++) {
            rank_thread t[MAX_THREADS];
            int64_t began_ns[MAX_THREADS];
            do run_world(NULL, n, waits_for_the_next, 0, began_ns, t);
            while (!began_together(began_ns, n - 1));
            for (int r = 0; r < n - 1; r++) assert_stopped(&t[r], "did not come: rank", culprit);
        }
    }
}

/* Rank 1 computes while its other stream waits for rank 0 already, which waits for it. */
static bool computes_beside_a_wait(case_env *env)
{
    float x = 0;
    dh_comm_group *early = case_group(env, "early", NULL, 0, 1, DH_ENGINE_LOCAL);
    dh_comm_group *late = case_group(env, "late", NULL, 0, 2, DH_ENGINE_LOCAL);
    CASE_CHECK(env, early && late, "groups");
    dh_comm_enter(env->comm, env->rank == 1 ? 1 : 2);
    if (env->rank == 1 && *(int *)env->arg) dh_comm_enter(env->comm, 0);
    if (env->rank == 0) {
        dh_comm_set_timeout(env->comm, ms(1000), "");
        dh_comm_recv(&env->ctx, late, &x, 1, DH_F32, 1, 0);
    } else {
        dh_comm_recv(&env->ctx, early, &x, 1, DH_F32, 0, 0);
    }
    return true;
}

static void a_rank_that_computes_waits_for_nobody(void **state)
{
    rank_thread t[MAX_THREADS];
    int computes = 1;
    run_world(NULL, 2, computes_beside_a_wait, 0, &computes, t);
    assert_stopped(&t[0], "waited 1 s in recv #1 of group late (ranks 0 1)",
                   "did not come: rank 1 (computing)");
    computes = 0;
    run_world(NULL, 2, computes_beside_a_wait, 0, &computes, t);
    assert_stopped(&t[0], "did not come: rank 1 (waiting in recv #1 of group early",
                   "they wait for one another");
}

static bool sets_a_timeout(case_env *env)
{
    float x = 0;
    dh_comm_group *late = case_group(env, "late", NULL, 0, 2, DH_ENGINE_LOCAL);
    CASE_CHECK(env, late, "group");
    dh_comm_set_timeout(env->comm, ms(100), "as the test wants");
    if (env->rank == 0) dh_comm_recv(&env->ctx, late, &x, 1, DH_F32, 1, 0);
    return true;
}

static void a_chosen_timeout_says_why(void **state)
{
    rank_thread t[MAX_THREADS];
    run_world(NULL, 2, sets_a_timeout, 0, NULL, t);
    assert_stopped(&t[0], "rank 0 waited 0.1 s (as the test wants) in recv #1 of group late",
                   "did not come: rank 1 (no call yet)");
}

static void a_delay_is_no_failure(void **state)
{
    rank_thread t[MAX_THREADS];
    fault f = {.rank = 0, .at = 2, .what = FAULT_DELAY};
    dh_comm_config config = faulty(&f, 20000);
    run_world(&config, 3, wait_for_all, 0, NULL, t);
    for (int r = 0; r < 3; r++) assert_int_equal(t[r].env.ctx.status, DH_OK);
}

static bool leaves_early(case_env *env)
{
    dh_comm_group *group = case_group(env, "tp", NULL, 0, 0, DH_ENGINE_LOCAL);
    CASE_CHECK(env, group, "group");
    CASE_OK(env, dh_comm_barrier(&env->ctx, group));
    if (env->rank == 1) {
        int32_t word = 7;
        CASE_OK(env, dh_comm_send(&env->ctx, group, &word, 1, DH_I32, 0, 0));
        dh_comm_detach(env->comm);
        return true;
    }
    int32_t word = 0;
    usleep(20000); /* what was sent before leaving still arrives */
    CASE_OK(env, dh_comm_recv(&env->ctx, group, &word, 1, DH_I32, 1, 0));
    CASE_CHECK(env, word == 7, "%d", word);
    dh_comm_recv(&env->ctx, group, &word, 1, DH_I32, 1, 0);
    return true;
}

static void a_rank_that_left_is_not_waited_for(void **state)
{
    rank_thread t[MAX_THREADS];
    run_world(NULL, 2, leaves_early, 0, NULL, t); /* default timeout: a minute */
    assert_stopped(&t[0], "cannot finish recv #2", "rank 1 (last finished send #1 of group tp");
}

/* Rank 1's call is the wrong one, in a way chosen by *arg. */
static bool misfit(case_env *env)
{
    int way = *(int *)env->arg;
    bool odd = env->rank == 1;
    float a[64] = {0}, b[64] = {0};
    dh_ctx *ctx = &env->ctx;
    dh_comm_group *g = case_group(env, "tp", NULL, 0, 0, DH_ENGINE_LOCAL);
    if (!g) return false;
    switch (way) {
    case 0:
        if (odd)
            dh_comm_barrier(ctx, g);
        else
            dh_comm_all_gather(ctx, g, a, b, 4, DH_F32);
        break;
    case 1:
        dh_comm_all_gather(ctx, g, a, b, odd ? 5 : 4, DH_F32);
        break;
    case 2:
        dh_comm_all_reduce(ctx, g, a, b, 4, odd ? DH_I32 : DH_F32, DH_REDUCE_SUM);
        break;
    case 3:
        dh_comm_all_reduce(ctx, g, a, b, 4, DH_F32, odd ? DH_REDUCE_MAX : DH_REDUCE_SUM);
        break;
    case 4:
        dh_comm_all_to_all(ctx, g, a, b, odd ? 5 : 4, DH_F32);
        break;
    case 5:
        dh_comm_all_gatherv(ctx, g, a, b, (int64_t[]){odd ? 3 : 5, odd ? 5 : 3}, DH_F32);
        break;
    case 6:
        dh_comm_broadcast(ctx, g, a, 4, DH_F32, odd);
        break;
    default:
        if (odd)
            dh_comm_recv(ctx, g, a, 5, DH_F32, 0, 0);
        else
            dh_comm_batch(ctx, g, &(dh_comm_xfer){DH_XFER_SEND, 1, 0, DH_F32, 4, a}, 1);
        if (!odd) dh_comm_barrier(ctx, g); /* a small send is gone before it is compared */
        break;
    }
    return true;
}

static void calls_must_fit_together(void **state)
{
    static const struct {
        const char *zero, *one;
    } wants[] = {
        {"rank 0 called all_gather #1 (8 f32)", "rank 1 barrier #1"},
        {"all_gather #1 (8 f32)", "all_gather #1 (10 f32)"},
        {"all_reduce #1 (4 f32 sum)", "all_reduce #1 (4 i32 sum)"},
        {"all_reduce #1 (4 f32 sum)", "all_reduce #1 (4 f32 max)"},
        {"in all_to_all #1 rank 0 sends 4 elements to rank 1", "which expects 5"},
        {"all_gather #1 (8 f32)", "with other slice sizes"},
        {"broadcast #1 (4 f32 from member 0)", "broadcast #1 (4 f32 from member 1)"},
        {"rank 0 sends 4 f32 with tag 0", "rank 1 expects 5 f32"},
    };
    for (int way = 0; way < (int)DH_COUNTOF(wants); way++) {
        rank_thread t[MAX_THREADS];
        run_world(NULL, 2, misfit, 0, &way, t);
        for (int r = 0; r < 2; r++) assert_stopped(&t[r], wants[way].zero, wants[way].one);
    }
}

static bool disagrees_on_members(case_env *env)
{
    int members[2][3] = {{0, 1, 2}, {0, 2, 1}};
    dh_comm_group_spec spec = {"tp", members[env->rank == 2], 3, 0, DH_ENGINE_LOCAL};
    dh_comm_group *group;
    dh_comm_group_create(&env->ctx, env->comm, &spec, &group);
    return true;
}

static void a_group_needs_all_its_members(void **state)
{
    rank_thread t[MAX_THREADS];
    dh_comm_config config = {.timeout_ns = 100 * 1000000};
    run_world(&config, 3, disagrees_on_members, 0, NULL, t);
    for (int r = 0; r < 3; r++)
        assert_stopped(&t[r], "waited 0.1 s in the creation of group tp", "did not come: rank");
}

/* Dying inside a collective must not take buffers away from others that still read
 * them: every rank frees its buffers at once when its call returns. */
static bool frees_at_once(case_env *env)
{
    enum { N = 200000 };
    dh_comm_group *group = case_group(env, "dp", NULL, 0, 0, DH_ENGINE_LOCAL);
    if (!group) return false;
    for (int i = 0; env->ctx.status == DH_OK && i < 40; i++) {
        float *x = calloc(N, sizeof *x);
        if (i == 20 && env->rank == 1) dh_comm_abort(env->comm, "stops here");
        dh_comm_all_reduce(&env->ctx, group, x, x, N, DH_F32, DH_REDUCE_SUM);
        if (x[0] != 0) case_fail(env, __LINE__, "x", "%g", x[0]);
        free(x);
        float *y = calloc(N, sizeof *y), *z = calloc(N, sizeof *z);
        int n = env->n_ranks;
        dh_comm_exchange(&env->ctx, group, y, (env->rank + 1) % n, z, (env->rank + n - 1) % n, N,
                         DH_F32, 0);
        free(y);
        free(z);
    }
    return true;
}

static void buffers_are_free_on_return(void **state)
{
    rank_thread t[MAX_THREADS];
    run_world(NULL, 3, frees_at_once, 0, NULL, t);
    for (int r = 0; r < 3; r++) assert_stopped(&t[r], "rank 1 stopped: stops here", "group dp");
}

/* ---- arguments -------------------------------------------------------------------------- */

static void arguments_are_checked(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world;
    dh_comm *comm, *again;
    dh_comm_config config = {.ranks = 2};
    assert_fails(&ctx, dh_comm_world_create(&ctx, "locl", &config, &world), DH_EMISSING, "local");
    assert_fails(&ctx, dh_comm_world_create(&ctx, "local", NULL, &world), DH_EINVAL, "1 rank");
    config.pace[0].gbps = -1;
    assert_fails(&ctx, dh_comm_world_create(&ctx, "local", &config, &world), DH_EINVAL, "gbps");
    config.pace[0].gbps = 0;
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    assert_fails(&ctx, dh_comm_attach(&ctx, world, 2, &comm), DH_EINVAL, "rank 2");
    assert_ok(&ctx, dh_comm_attach(&ctx, world, 1, &comm));
    assert_fails(&ctx, dh_comm_attach(&ctx, world, 1, &again), DH_EINVAL, "already");
    assert_ok(&ctx, dh_comm_check(&ctx, comm));

    dh_comm_group *g;
    dh_comm_group_spec spec = {"self", (int[]){1}, 1, 0, DH_ENGINE_LOCAL};
    assert_ok(&ctx, dh_comm_group_create(&ctx, comm, &spec, &g));
    assert_ok(&ctx, dh_comm_group_reserve(&ctx, g, 1000));
    spec.members = (int[]){0};
    assert_fails(&ctx, dh_comm_group_create(&ctx, comm, &spec, &g), DH_EINVAL, "no member");
    spec.n = 3;
    assert_fails(&ctx, dh_comm_group_create(&ctx, comm, &spec, &g), DH_EINVAL, "3 members");
    spec.n = 2;
    spec.members = (int[]){1, 1};
    assert_fails(&ctx, dh_comm_group_create(&ctx, comm, &spec, &g), DH_EINVAL, "twice");
    spec.members = (int[]){1, 2};
    assert_fails(&ctx, dh_comm_group_create(&ctx, comm, &spec, &g), DH_EINVAL, "no rank 2");

    float x = 3, y = 0;
    assert_fails(&ctx, dh_comm_all_gather(&ctx, g, &x, &y, -1, DH_F32), DH_EINVAL, "out of range");
    assert_fails(&ctx, dh_comm_all_gather(&ctx, g, &x, &y, INT64_MAX, DH_F32), DH_EINVAL, "range");
    assert_fails(&ctx, dh_comm_all_gather(&ctx, g, NULL, &y, 1, DH_F32), DH_EINVAL, "send buffer");
    const dh_part_hook thirds = {.n = 3};
    assert_fails(&ctx, dh_comm_all_gather_parts(&ctx, g, &x, &y, 1, DH_F32, &thirds), DH_EINVAL,
                 "are not 3 equal parts");
    assert_fails(&ctx,
                 dh_comm_reduce_scatter_parts(&ctx, g, &x, &y, 1, DH_F32, DH_REDUCE_SUM, &thirds),
                 DH_EINVAL, "are not 3 equal parts");
    assert_fails(&ctx, dh_comm_all_gather(&ctx, g, &x, &y, 1, DH_N_DTYPE), DH_EINVAL, "type");
    assert_fails(&ctx, dh_comm_all_reduce(&ctx, g, &x, &y, 1, DH_F32, DH_N_REDUCE), DH_EINVAL,
                 "reduction");
    assert_fails(&ctx, dh_comm_broadcast(&ctx, g, &x, 1, DH_F32, 1), DH_EINVAL, "no member 1");
    assert_fails(&ctx, dh_comm_send(&ctx, g, &x, 1, DH_F32, 5, 0), DH_EINVAL, "no member 5");
    assert_fails(&ctx, dh_comm_send(&ctx, g, &x, 1, DH_F32, 0, 99999), DH_EINVAL, "tag 99999");
    assert_ok(&ctx, dh_comm_all_gather(&ctx, g, &x, &y, 1, DH_F32));
    assert_true(y == 3); /* a wrong argument spoils nothing */
    dh_comm_detach(comm);
    dh_comm_detach(NULL);
    dh_comm_world_destroy(world);

    size_t n;
    const dh_comm_ops *rows = dh_comm_table(&n);
    assert_true(n >= 2);
    assert_string_equal(rows[0].name, "local");
    assert_string_equal(dh_comm_kind_name(DH_COMM_EXCHANGE), "exchange");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective),
        cmocka_unit_test(transfers_between_pairs),
        cmocka_unit_test(random_groups_on_two_streams),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(ranks_out_of_step),
        cmocka_unit_test(odd_numbers),
        cmocka_unit_test(formula_by_hand),
        cmocka_unit_test(paced_calls_take_their_time),
        cmocka_unit_test(worlds_say_how_they_time),
        cmocka_unit_test(an_abort_reaches_all),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_dropped_call_is_noticed),
        cmocka_unit_test(a_chain_is_followed_to_its_end),
        cmocka_unit_test(the_end_of_a_chain_is_named_by_whoever_gives_up),
        cmocka_unit_test(a_rank_that_computes_waits_for_nobody),
        cmocka_unit_test(a_chosen_timeout_says_why),
        cmocka_unit_test(a_delay_is_no_failure),
        cmocka_unit_test(a_rank_that_left_is_not_waited_for),
        cmocka_unit_test(calls_must_fit_together),
        cmocka_unit_test(a_group_needs_all_its_members),
        cmocka_unit_test(buffers_are_free_on_return),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
