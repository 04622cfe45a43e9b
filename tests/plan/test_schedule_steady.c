/* Shorter schedules: those that the rows make for fewer micro-batches, valid for all sizes, and
 * none where the phase does not repeat itself. */
#include "schedules.h"

static bool is_equal(const dh_schedule *a, const dh_schedule *b)
{
    bool equal = a->n_micro == b->n_micro && a->n_ranks == b->n_ranks;
    for (int32_t g = 0; equal && g <= a->n_ranks; g++) equal = a->first_slot[g] == b->first_slot[g];
    for (int32_t j = 0; equal && j < a->n_micro; j++) equal = a->copy_of[j] == b->copy_of[j];
    for (int32_t i = 0; equal && i < a->first_slot[a->n_ranks]; i++) {
        const dh_pipe_slot *x = &a->slots[i], *y = &b->slots[i];
        equal = x->n_actions == y->n_actions;
        for (int k = 0; equal && k < x->n_actions; k++)
            equal = x->action[k].kind == y->action[k].kind &&
                    x->action[k].stage == y->action[k].stage &&
                    x->action[k].micro == y->action[k].micro;
    }
    return equal;
}

static dh_schedule *shorten(const dh_schedule *s, int32_t n_left_out)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule *shorter;
    assert_ok(&ctx, dh_schedule_shorten(&ctx, s, n_left_out, &shorter));
    return shorter;
}

/* Every row with a steady phase, shortened, is what it makes for as many micro-batches. */
static void shorter_ones_are_what_rows_make(void **state)
{
    (void)state;
    size_t n_rows;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n_rows);
    for (size_t r = 0; r < n_rows; r++)
        for (int32_t p = 1; p <= 8; p *= 2) {
            dh_ctx ctx = DH_CTX_INIT;
            dh_schedule *whole, *made;
            dh_schedule_spec spec = {.n_ranks = p, .n_micro = 12 * p, .n_chunks = 2};
            if (dh_schedule_generate(&ctx, rows[r], &spec, &whole) != DH_OK) {
                dh_ctx_reset(&ctx);
                spec.n_chunks = 1;
                if (dh_schedule_generate(&ctx, rows[r], &spec, &whole) != DH_OK) continue;
            }
            const dh_schedule_phase phase = dh_schedule_steady(whole);
            if (rows[r]->breadth_first || strcmp(rows[r]->name, "gpipe") == 0) {
                if (p > 1) assert_int_equal(phase.period, 0);
            } else {
                if (phase.period < 1) fail_msg("%s, %d ranks: no steady phase", rows[r]->name, p);
                assert_true(phase.period <= 2 * p && phase.step >= 1);
            }
            if (phase.period > 0) {
                const int32_t n_left_out = 4 * p / phase.period * phase.period;
                dh_schedule *shorter = shorten(whole, n_left_out);
                if (!shorter) fail_msg("%s, %d ranks: not shortened", rows[r]->name, p);
                assert_ok(&ctx, dh_schedule_validate(&ctx, shorter, NULL));
                spec.n_micro -= n_left_out;
                assert_ok(&ctx, dh_schedule_generate(&ctx, rows[r], &spec, &made));
                if (!rows[r]->planned && !is_equal(shorter, made))
                    fail_msg("%s, %d ranks, %d micro-batches: the row's is another", rows[r]->name,
                             p, spec.n_micro);
                dh_schedule_destroy(made);
                dh_schedule_destroy(shorter);
            }
            dh_schedule_destroy(whole);
        }
}

/* What cannot be left out is not. */
static void too_many_are_refused(void **state)
{
    (void)state;
    dh_schedule *s = generate("interleaved-1f1b", 4, 32, 2);
    assert_int_equal(dh_schedule_steady(s).period, 4);
    assert_null(shorten(s, 0));
    assert_null(shorten(s, 3));
    assert_null(shorten(s, -4));
    assert_null(shorten(s, 28));
    assert_null(shorten(s, 32));
    dh_schedule_destroy(s);
}

/* A phase that one rank breaks, here by two slots that are exchanged, cannot be cut there. */
static void a_broken_phase_is_seen(void **state)
{
    (void)state;
    dh_schedule *s = generate("1f1b", 2, 40, 0);
    const int32_t middle = (s->first_slot[1] + s->first_slot[2]) / 2;
    dh_schedule *shorter = shorten(s, 30);
    assert_non_null(shorter);
    dh_schedule_destroy(shorter);
    const dh_pipe_slot kept = s->slots[middle];
    s->slots[middle] = s->slots[middle + 2];
    s->slots[middle + 2] = kept;
    assert_null(shorten(s, 30));
    dh_schedule_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shorter_ones_are_what_rows_make),
        cmocka_unit_test(too_many_are_refused),
        cmocka_unit_test(a_broken_phase_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
