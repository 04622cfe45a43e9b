/* What every kind of world must do, as cases both suites run. A case runs on all
 * ranks at once, outside cmocka's thread, so it reports instead of asserting. */
#ifndef DHELIX_TESTS_COMM_CASES_H
#define DHELIX_TESTS_COMM_CASES_H

#include "dh_test.h"
#include "run/comm/comm.h"

typedef struct case_env {
    dh_comm_world *world;
    dh_comm *comm;
    int rank, n_ranks;
    uint64_t seed; /* the same on all ranks */
    void *arg;
    dh_ctx ctx;
    char failure[1024]; /* "" while all is well */
} case_env;

/* Each returns false with env->failure set at the first wrong result. */
bool case_collectives(case_env *env);    /* every collective, type, group size, odd counts */
bool case_point_to_point(case_env *env); /* order, tags, rings, batches, both size classes */
bool case_two_streams(case_env *env);    /* random subgroups, two threads a rank */
bool case_groups_that_go(case_env *env); /* created, used and destroyed, again and again */

#define CASE_CHECK(env, cond, ...)                                                                 \
    do {                                                                                           \
        if (!(cond)) return case_fail((env), __LINE__, #cond, __VA_ARGS__);                        \
    } while (0)
#define CASE_OK(env, call) CASE_CHECK(env, (call) == DH_OK, "%s", (env)->ctx.message)

bool case_fail(case_env *env, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Group of the listed ranks, or of all when members is NULL. */
dh_comm_group *case_group(case_env *env, const char *name, const int *members, int n, int stream,
                          dh_engine wire);

#endif
