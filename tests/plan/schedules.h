/* What the suites of pipeline schedules share. */
#ifndef TEST_PLAN_SCHEDULES_H
#define TEST_PLAN_SCHEDULES_H

#include "dh_test.h"

#include "plan/schedule.h"

static inline dh_schedule *generate(const char *name, int32_t p, int32_t m, int32_t v)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    dh_schedule *s;
    dh_schedule_spec spec = {.n_ranks = p, .n_micro = m, .n_chunks = v};
    assert_ok(&ctx, dh_schedule_find(&ctx, name, &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &spec, &s));
    return s;
}

static inline dh_schedule *random_schedule(uint64_t *rng)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n_rows;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n_rows);
    for (;;) {
        const dh_schedule_row *row = rows[test_rand(rng) % n_rows];
        dh_schedule_spec spec = {.n_ranks = (int32_t)(1 + test_rand(rng) % 6),
                                 .n_micro = (int32_t)(2 + test_rand(rng) % 12)};
        dh_schedule *s;
        if (dh_schedule_generate(&ctx, row, &spec, &s) == DH_OK) return s;
        dh_ctx_reset(&ctx);
    }
}

#endif
