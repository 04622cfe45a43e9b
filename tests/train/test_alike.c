/* Ranks with different facts: all refuse, with one message that names who differs in what. */
#include "dh_test.h"

#include <pthread.h>

#include "train/rank.h"

enum { MOST = 5 };

typedef struct alike_rank {
    dh_comm_world *world;
    const char *facts;
    int rank, n;
    dh_ctx ctx;
    pthread_t thread;
} alike_rank;

static void *compare(void *arg)
{
    alike_rank *r = arg;
    int members[MOST] = {0, 1, 2, 3, 4};
    const dh_comm_group_spec spec = {"control", members, r->n, 0, DH_ENGINE_LOCAL};
    dh_ranks ranks = {.rank = r->rank, .n = r->n};
    dh_ctx_reset(&r->ctx);
    if (dh_comm_attach(&r->ctx, r->world, r->rank, &ranks.comm) == DH_OK &&
        dh_comm_group_create(&r->ctx, ranks.comm, &spec, &ranks.control) == DH_OK)
        dh_ranks_alike(&r->ctx, &ranks, r->facts);
    return NULL;
}

/* Every rank's status and message are `want`'s; "" is agreement. */
static void expect(const char *const *facts, int n, const char *want)
{
    alike_rank ranks[MOST];
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world;
    const dh_comm_config config = {.ranks = n, .timeout_ns = 20000000000};
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    for (int r = 0; r < n; r++) {
        ranks[r] = (alike_rank){.world = world, .facts = facts[r], .rank = r, .n = n};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, compare, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < n; r++) {
        assert_int_equal(ranks[r].ctx.status, *want ? DH_EINVAL : DH_OK);
        assert_string_equal(ranks[r].ctx.message, want);
    }
    dh_comm_world_destroy(world);
}

#define A "dhelix: 1\ntrain.seed: 7\noptimizer.lr: 0.001\n"

static void equal_facts_are_accepted(void **state)
{
    expect((const char *[]){A, A, A}, 3, "");
    expect((const char *[]){"", ""}, 2, "");
}

static void who_differs_is_named(void **state)
{
    expect((const char *[]){A, "dhelix: 1\ntrain.seed: 8\noptimizer.lr: 0.001\n"}, 2,
           "the ranks were not started alike: rank 1 has train.seed 8, rank 0 has 7");
    /* Texts of one length that differ in two lines. */
    expect((const char *[]){A, "dhelix: 2\ntrain.seed: 7\noptimizer.lr: 0.002\n"}, 2,
           "the ranks were not started alike: rank 1 has dhelix 2, rank 0 has 1; rank 1 has "
           "optimizer.lr 0.002, rank 0 has 0.001");
}

static void the_most_are_right(void **state)
{
    const char *odd = "dhelix: 1\ntrain.seed: 9\noptimizer.lr: 0.001\n";
    expect((const char *[]){odd, A, A}, 3,
           "the ranks were not started alike: rank 0 has train.seed 9, rank 1 has 7");
    expect((const char *[]){odd, A, A, odd, A}, 5,
           "the ranks were not started alike: rank 0 has train.seed 9, rank 1 has 7; rank 3 has "
           "train.seed 9, rank 1 has 7");
}

/* Of another version, which knows a setting more. */
static void a_line_may_be_missing(void **state)
{
    expect((const char *[]){A, A "train.new: 1"}, 2,
           "the ranks were not started alike: rank 1 has train.new 1, rank 0 has no such line");
    expect((const char *[]){A "train.new: 1\n", A}, 2,
           "the ranks were not started alike: rank 1 has no line train.new, rank 0 has 1");
}

static void a_long_list_is_cut(void **state)
{
    expect((const char *[]){"a: 1\nb: 1\nc: 1\nd: 1\ne: 1\nf: 1\ng: 1\n",
                            "a: 2\nb: 2\nc: 2\nd: 2\ne: 2\nf: 2\ng: 2\n"},
           2,
           "the ranks were not started alike: rank 1 has a 2, rank 0 has 1; rank 1 has b 2, rank 0 "
           "has 1; rank 1 has c 2, rank 0 has 1; rank 1 has d 2, rank 0 has 1; rank 1 has e 2, "
           "rank 0 has 1; rank 1 has f 2, rank 0 has 1; and more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_facts_are_accepted), cmocka_unit_test(who_differs_is_named),
        cmocka_unit_test(the_most_are_right),       cmocka_unit_test(a_line_may_be_missing),
        cmocka_unit_test(a_long_list_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
