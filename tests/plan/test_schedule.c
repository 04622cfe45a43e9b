/* Pipeline schedules: published ones reproduced, every row valid for all sizes, activations
 * within their stated bounds, corruptions caught. */
#include "schedules.h"

#define MAX_P 16
#define MAX_M 64

/* ---- published schedule of the W shape ------------------------------------------------------ */

/* A cell in the notation of the figure: micro-batches from 1, chunk 1 is the up leg. */
static void figure_cell(const dh_schedule *s, const dh_pipe_slot *slot, char *text, size_t cap)
{
    int n = 0;
    for (int i = 0; i < slot->n_actions; i++) {
        dh_pipe_action a = slot->action[i];
        if (slot->n_actions == 1) n += snprintf(text, cap, "%c", dh_pipe_kind_letter(a.kind));
        n += snprintf(text + n, cap - (size_t)n, "%s%d.%d", i ? "|" : "", a.micro + 1,
                      a.stage >= s->n_ranks);
    }
}

static void dhelix_w_is_figure_8(void **state)
{
    dh_schedule *s = generate("dhelix-w", 4, 12, 0);
    FILE *file = fopen("tests/data/published/dhelix_figure8_w_schedule.csv", "r");
    assert_non_null(file);
    char line[2048], text[64];
    int n_ranks = 0, n_slots = 0;
    while (fgets(line, sizeof line, file)) {
        if (*line == '#') continue;
        int32_t rank = atoi(strtok(line, ",\n"));
        int32_t n = s->first_slot[rank];
        for (char *cell; (cell = strtok(NULL, ",\n")); n++, n_slots++) {
            assert_true(n < s->first_slot[rank + 1]);
            figure_cell(s, &s->slots[n], text, sizeof text);
            if (strcmp(text, cell) != 0)
                fail_msg("rank %d slot %d: %s, the figure has %s", rank, n - s->first_slot[rank],
                         text, cell);
        }
        assert_int_equal(n, s->first_slot[rank + 1]);
        n_ranks++;
    }
    fclose(file);
    assert_int_equal(n_ranks, 4);
    assert_int_equal(n_slots, 4 * 32);
    dh_schedule_destroy(s);
}

/* Published small cases of the other rows, as drawn in their papers. */
static void draws_as_published(void **state)
{
    static const struct {
        const char *row;
        int32_t p, m, v;
        const char *text;
    } cases[] = {
        {"gpipe", 2, 2, 0,
         "rank 0    F0 F1 .  .  B0 B1\n"
         "rank 1    .  F0 F1 B0 B1\n"},
        {"1f1b", 4, 5, 0,
         "rank 0    F0 F1 F2 F3 .  .  .  B0 F4 B1 .  B2 .  B3 .  B4\n"
         "rank 1    .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4\n"
         "rank 2    .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4\n"
         "rank 3    .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4\n"},
        {"interleaved-1f1b", 2, 4, 2,
         "rank 0    F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 .    B2.1 .    "
         "B3.1 "
         "B2.0 B3.0\n"
         "rank 1    .    F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 "
         "B2.0 "
         "B3.0\n"},
        {"interleaved-1f1b", 2, 3, 2, /* one round of three */
         "rank 0    F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 .    B1.1 .    B2.1 B0.0 B1.0 B2.0\n"
         "rank 1    .    F0.0 F1.0 F2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 B0.0 B1.0 B2.0\n"},
        {"looped-bfs", 2, 3, 2,
         "rank 0    F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 .    .    B0.1 B1.1 B2.1 B0.0 B1.0 B2.0\n"
         "rank 1    .    F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 B1.1 B2.1 B0.0 B1.0 B2.0\n"},
        {"interleaved-zb", 2, 4, 2,
         "rank 0    F0.0 F1.0 F0.1 F1.1 .    I0.1 W0.1 F2.0 I1.1 W1.1 F3.0 I0.0 W0.0 F2.1 I1.0 "
         "W1.0 F3.1 I2.1 W2.1 I3.1 W3.1 I2.0 W2.0 I3.0 W3.0\n"
         "rank 1    .    F0.0 F1.0 F0.1 I0.1 F1.1 I1.1 W0.1 F2.0 I0.0 W1.1 F3.0 I1.0 W0.0 F2.1 "
         "I2.1 W1.0 F3.1 I3.1 W2.1 I2.0 W3.1 I3.0 W2.0 W3.0\n"},
        {"zb-h1", 3, 4, 0,
         "rank 0    F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3\n"
         "rank 1    .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3\n"
         "rank 2    .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3\n"},
        {"dhelix-w", 1, 3, 0,
         "rank 0    F0.0 F0.1 F1.0|B0.1 F1.1|B0.0 F2.0|B1.1 F2.1|B1.0 B2.1 B2.0\n"},
        {"bidirectional", 2, 4, 0,
         "rank 0    F0 F1 F2|B1 F3|B0 B3 B2\n"
         "rank 1    F1 F0 F3|B0 F2|B1 B2 B3\n"},
        {"combined-1f1b", 2, 4, 1,
         "rank 0    F0 F1 F2    F3|B0 B1    B2 B3\n"
         "rank 1    .  F0 F1|B0 F2|B1 F3|B2 B3\n"},
        {"wavelet", 1, 4, 0, "rank 0    F0 F1|B0 F2|B1 F3|B2 B3\n"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_schedule *s = generate(cases[i].row, cases[i].p, cases[i].m, cases[i].v);
        dh_str text = DH_STR_INIT;
        assert_ok(&ctx, dh_schedule_draw(&ctx, s, &text));
        assert_string_equal(text.text, cases[i].text);
        dh_str_fini(&text);
        dh_schedule_destroy(s);
    }
}

/* ---- every row, all sizes ------------------------------------------------------------------- */

/* Stated bounds on activations of rank g, in virtual stages. */
typedef struct bound {
    int32_t settled, during;
} bound;

static bound bound_gpipe(int32_t p, int32_t m, int32_t g)
{
    return (bound){m, m};
}
static bound bound_1f1b(int32_t p, int32_t m, int32_t g)
{
    return (bound){DH_MIN(m, p - g), DH_MIN(m, p - g)};
}
static bound bound_looped_bfs(int32_t p, int32_t m, int32_t g)
{
    return (bound){2 * m, 2 * m};
}
/* Micro-batches that pass all chunks before the next ones start. */
static int32_t round_of(int32_t p, int32_t m)
{
    return m / DH_MAX(1, m / p);
}
static bound bound_interleaved(int32_t p, int32_t m, int32_t g)
{
    const int32_t n = DH_MIN(2 * m, 2 * (p - 1 - g) + round_of(p, m) + 1);
    return (bound){n, n};
}
static bound bound_interleaved_zb(int32_t p, int32_t m, int32_t g)
{
    const int32_t n = DH_MIN(2 * m, p + round_of(p, m));
    return (bound){n, n};
}
static bound bound_combined(int32_t p, int32_t m, int32_t g)
{
    const int32_t n = DH_MIN(2 * m, 2 * (p - 1 - g) + round_of(p, m) + 1);
    return (bound){n, n + (n < 2 * m)};
}
/* Those beyond 3p wait for their weight gradient alone. */
static bound bound_stp(int32_t p, int32_t m, int32_t g)
{
    return (bound){3 * p + g, 3 * p + g + 1};
}
static bound bound_p(int32_t p, int32_t m, int32_t g)
{
    return (bound){p, p};
}
static bound bound_2p_1(int32_t p, int32_t m, int32_t g)
{
    return (bound){2 * p - 1, 2 * p - 1};
}
static bound bound_2p(int32_t p, int32_t m, int32_t g)
{
    return (bound){2 * p, 2 * p};
}
static bound bound_v_half(int32_t p, int32_t m, int32_t g)
{
    return (bound){p + 2, p + 2};
}
static bound bound_v_min(int32_t p, int32_t m, int32_t g)
{
    return (bound){(2 * p + 2) / 3 + 2, (2 * p + 2) / 3 + 2};
}
static bound bound_dhelix_w(int32_t p, int32_t m, int32_t g)
{
    int32_t n = 2 * DH_MIN(p, m);
    return (bound){n, n + (m > p)};
}
static bound bound_bidirectional(int32_t p, int32_t m, int32_t g)
{
    int32_t n = DH_MIN(p, m);
    return (bound){n, n + (m > 1)};
}
static bound bound_wavelet(int32_t p, int32_t m, int32_t g)
{
    return (bound){2 * (p - g), 2 * (p - g)};
}
static bound bound_dualpipe(int32_t p, int32_t m, int32_t g)
{
    return (bound){p + 1, p + 1};
}
static bound bound_dualpipev(int32_t p, int32_t m, int32_t g)
{
    return (bound){2 * p + 1, 2 * p + 1};
}

static const struct {
    const char *row;
    bound (*bound)(int32_t p, int32_t m, int32_t g);
} bounds[] = {
    {"gpipe", bound_gpipe},
    {"looped-bfs", bound_looped_bfs},
    {"1f1b", bound_1f1b},
    {"interleaved-1f1b", bound_interleaved},
    {"interleaved-zb", bound_interleaved_zb},
    {"zb-h1", bound_p},
    {"zb-h2", bound_2p_1},
    {"zb-v", bound_2p},
    {"v-half", bound_v_half},
    {"v-min", bound_v_min},
    {"zb-auto", bound_p},
    {"dhelix-w", bound_dhelix_w},
    {"wavelet", bound_wavelet},
    {"bidirectional", bound_bidirectional},
    {"dualpipe", bound_dualpipe},
    {"dualpipev", bound_dualpipev},
    {"combined-1f1b", bound_combined},
    {"stp", bound_stp},
};

/* Row properties that planners rely on. */
static void check_flags(const dh_schedule_row *row, const dh_schedule *s)
{
    bool pairs = false, split = false;
    for (int32_t n = 0; n < s->first_slot[s->n_ranks]; n++) {
        pairs |= s->slots[n].n_actions == 2;
        for (int32_t i = 0; i < s->slots[n].n_actions; i++)
            split |= s->slots[n].action[i].kind == DH_PIPE_W;
    }
    assert_true(row->pairs || !pairs);
    assert_true(row->split_backward || !split);
    if (s->n_ranks == 4 && s->n_micro == 12) {
        assert_int_equal(row->pairs, pairs);
        assert_int_equal(row->split_backward, split);
    }
}

/* Gradients of a weight are added in the order in which its micro-batches go back, and the
 * head's with the forward: increasing on every stage of a copy of the model, so that no schedule
 * with as many copies changes a bit. */
static void check_micro_batch_order(const dh_schedule *s)
{
    enum { FORWARD, WEIGHTS };
    int32_t next[2][2 * MAX_P][2] = {{{0}}};
    for (int32_t n = 0; n < s->first_slot[s->n_ranks]; n++)
        for (int32_t i = 0; i < s->slots[n].n_actions; i++) {
            const dh_pipe_action *a = &s->slots[n].action[i];
            const int32_t copy = s->copy_of[a->micro];
            if (a->kind == DH_PIPE_I) continue;
            int32_t *turn = &next[copy][a->stage][a->kind == DH_PIPE_F ? FORWARD : WEIGHTS];
            while (*turn < s->n_micro && s->copy_of[*turn] != copy) ++*turn;
            if (a->micro != (*turn)++)
                fail_msg("%s p %d m %d: stage %d: %c%d out of turn", s->name, s->n_ranks,
                         s->n_micro, a->stage, dh_pipe_kind_letter(a->kind), a->micro);
        }
}

static bool is_accepted(const char *row, int32_t p, int32_t m)
{
    if (strstr(row, "interleaved") || strcmp(row, "combined-1f1b") == 0)
        return m % DH_MAX(1, m / p) == 0;
    if (strcmp(row, "dualpipe") == 0) return p % 2 == 0;
    return true;
}

static void all_rows_valid_and_bounded(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n_rows;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n_rows);
    assert_int_equal(n_rows, DH_COUNTOF(bounds));
    for (size_t i = 0; i < n_rows; i++) {
        assert_string_equal(rows[i]->name, bounds[i].row);
        bool slow = strcmp(rows[i]->name, "zb-auto") == 0;
        for (int32_t p = 1; p <= MAX_P; p += slow ? 5 : 1)
            for (int32_t m = 1; m <= MAX_M; m += slow ? 7 : 1) {
                dh_schedule_spec spec = {.n_ranks = p, .n_micro = m};
                dh_schedule *s;
                dh_status st = dh_schedule_generate(&ctx, rows[i], &spec, &s);
                if (!is_accepted(rows[i]->name, p, m)) {
                    assert_int_equal(st, DH_EUNSUPPORTED);
                    dh_ctx_reset(&ctx);
                    continue;
                }
                if (st != DH_OK) fail_msg("p %d m %d: %s", p, m, ctx.message);
                assert_int_equal(s->n_ranks, p);
                assert_int_equal(s->n_micro, m);
                check_flags(rows[i], s);
                check_micro_batch_order(s);
                dh_schedule_use use[MAX_P];
                if (dh_schedule_validate(&ctx, s, use) != DH_OK)
                    fail_msg("p %d m %d: %s", p, m, ctx.message);
                for (int32_t g = 0; g < p; g++) {
                    bound b = bounds[i].bound(p, m, g);
                    if (use[g].peak_settled > b.settled || use[g].peak > b.during)
                        fail_msg("%s p %d m %d rank %d: %d (%d during slots) activations, stated "
                                 "%d (%d)",
                                 s->name, p, m, g, use[g].peak_settled, use[g].peak, b.settled,
                                 b.during);
                }
                dh_schedule_destroy(s);
            }
    }
}

/* ---- corruptions ---------------------------------------------------------------------------- */

/* The plainest possible executor: sweep all ranks until nothing moves. */
static bool naive_execution_completes(const dh_schedule *s)
{
    const int32_t m = s->n_micro;
    int32_t *head = calloc((size_t)s->n_ranks, sizeof *head);
    uint8_t *f = calloc((size_t)s->n_stages * (size_t)m, 1),
            *b = calloc((size_t)s->n_stages * (size_t)m, 1);
    bool moved = true, complete = true;
    for (int32_t g = 0; g < s->n_ranks; g++) head[g] = s->first_slot[g];
    while (moved) {
        moved = false;
        for (int32_t g = 0; g < s->n_ranks; g++) {
            if (head[g] == s->first_slot[g + 1]) continue;
            const dh_pipe_slot *slot = &s->slots[head[g]];
            bool ready = true;
            for (int32_t i = 0; i < slot->n_actions; i++) {
                dh_pipe_action a = slot->action[i];
                int32_t at = a.stage * m + a.micro;
                if (a.kind == DH_PIPE_F)
                    ready &= a.stage == 0 || f[at - m];
                else if (a.kind == DH_PIPE_W)
                    ready &= b[at];
                else
                    ready &= f[at] && (a.stage == s->n_stages - 1 || b[at + m]);
            }
            if (!ready) continue;
            for (int32_t i = 0; i < slot->n_actions; i++) {
                dh_pipe_action a = slot->action[i];
                if (a.kind == DH_PIPE_F) f[a.stage * m + a.micro] = 1;
                if (a.kind == DH_PIPE_B || a.kind == DH_PIPE_I) b[a.stage * m + a.micro] = 1;
            }
            head[g]++;
            moved = true;
        }
    }
    for (int32_t g = 0; g < s->n_ranks; g++) complete &= head[g] == s->first_slot[g + 1];
    free(head);
    free(f);
    free(b);
    return complete;
}

/* Swap two slots of a rank: valid exactly if the plain executor completes. */
static void swapped_slots_judged_right(void **state)
{
    uint64_t rng = test_seed("swapped_slots_judged_right");
    int n_bad = 0;
    for (int round = 0; round < 2000; round++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_schedule *s = random_schedule(&rng);
        int32_t g = (int32_t)(test_rand(&rng) % (uint64_t)s->n_ranks);
        int32_t n = s->first_slot[g + 1] - s->first_slot[g];
        int32_t a = s->first_slot[g] + (int32_t)(test_rand(&rng) % (uint64_t)n);
        int32_t b = s->first_slot[g] + (int32_t)(test_rand(&rng) % (uint64_t)n);
        dh_pipe_slot keep = s->slots[a];
        s->slots[a] = s->slots[b];
        s->slots[b] = keep;
        bool completes = naive_execution_completes(s);
        dh_status st = dh_schedule_validate(&ctx, s, NULL);
        if ((st == DH_OK) != completes) fail_msg("round %d: %s", round, ctx.message);
        if (st != DH_OK) {
            n_bad++;
            assert_int_equal(st, DH_EINVAL);
            if (!strstr(ctx.message, "deadlocks") || !strstr(ctx.message, " waits for "))
                fail_msg("message does not explain: %s", ctx.message);
            dh_schedule_timing t;
            dh_ctx again = DH_CTX_INIT;
            dh_schedule_costs costs = {.every = {.f_ns = 1}};
            assert_fails(&again, dh_schedule_time(&again, s, &costs, &t), DH_EINVAL, "deadlocks");
        }
        dh_schedule_destroy(s);
    }
    assert_in_range(n_bad, 200, 1999);
}

/* Damage that no order can make good. */
static void damage(dh_schedule *s, int kind, uint64_t *rng)
{
    int32_t n_slots = s->first_slot[s->n_ranks];
    int32_t n = (int32_t)(test_rand(rng) % (uint64_t)n_slots);
    dh_pipe_slot *slot = &s->slots[n];
    dh_pipe_action *a = &slot->action[test_rand(rng) % (uint64_t)slot->n_actions];
    switch (kind) {
    case 0:
        a->micro = (a->micro + 1) % s->n_micro;
        break; /* twice, and never */
    case 1:
        a->stage = s->n_stages;
        break;
    case 2:
        a->micro = -1;
        break;
    case 3:
        a->kind = a->kind == DH_PIPE_F ? DH_PIPE_B : DH_PIPE_F;
        break;
    case 4:
        slot->n_actions = 3;
        break;
    case 5:
        a->kind = a->kind == DH_PIPE_W ? DH_PIPE_I : DH_PIPE_W;
        break;
    case 6:
        s->n_micro++;
        break;
    case 7:
        s->rank_of[test_rand(rng) % (uint64_t)s->n_stages] = s->n_ranks;
        break;
    case 8:
        s->first_slot[s->n_ranks]--;
        break; /* the last slot is gone */
    case 9:
        a->kind = DH_N_PIPE_KINDS;
        break;
    case 10:
        slot->n_actions = 0;
        break;
    default:
        s->copy_of[a->micro] = s->n_copies;
        break;
    }
}

static void damage_is_caught(void **state)
{
    uint64_t rng = test_seed("damage_is_caught");
    for (int round = 0; round < 3000; round++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_schedule *s = random_schedule(&rng);
        int kind = round % 12;
        damage(s, kind, &rng);
        dh_status st;
        if (kind == 6) { /* copy_of has no entry for the new one: give it copy 0 */
            int32_t *wider = calloc((size_t)s->n_micro, sizeof *wider), *kept = s->copy_of;
            memcpy(wider, kept, (size_t)(s->n_micro - 1) * sizeof *wider);
            s->copy_of = wider;
            st = dh_schedule_validate(&ctx, s, NULL);
            s->copy_of = kept;
            free(wider);
        } else {
            st = dh_schedule_validate(&ctx, s, NULL);
        }
        if (st != DH_EINVAL) fail_msg("damage %d was not caught (%s)", kind, dh_status_name(st));
        assert_non_null(strstr(ctx.message, "schedule "));
        dh_schedule_destroy(s);
    }
}

static void messages_name_the_place(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static const struct {
        const char *csv, *part;
    } cases[] = {
        {"0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n",
         "rank 0 slot 1 (0B0) waits for backward of micro-batch 0 on stage 1 (rank 1 slot 2); rank "
         "1 slot 0 (1F1) waits for forward of micro-batch 1 on stage 0 (rank 0 slot 2)"},
        {"0F0,0B0,0F0\n",
         "rank 0 slot 2: forward of micro-batch 0 on stage 0 is done a second time"},
        {"0B0,0F0\n",
         "rank 0 slot 0 (0B0) waits for forward of micro-batch 0 on stage 0, which comes "
         "later in its own list (slot 1)"},
        {"(0F0;0B0)OVERLAP_F_B\n", "which is in the same slot"},
        {"0F0,0W0,0I0\n", "0 slot 1 (0W0) waits for backward of micro-batch 0 on stage 0, which"},
        {"0F0,0I0,0F1,0B1\n", "rank 0 never does W of micro-batch 0 on stage 0"},
        {"0F0,0B0,0I0,0W0\n", "both whole (B) and split (I, W)"},
        {"0F0,0F1,0I0,0I1\n", "never does W of micro-batch 0"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_schedule *s;
        dh_status st = dh_schedule_parse_csv(&ctx, cases[i].csv, strlen(cases[i].csv), "t.csv", &s);
        if (st != DH_EINVAL || !strstr(ctx.message, cases[i].part))
            fail_msg("case %zu: %s: %s", i, dh_status_name(st), ctx.message);
        dh_ctx_reset(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dhelix_w_is_figure_8),       cmocka_unit_test(draws_as_published),
        cmocka_unit_test(all_rows_valid_and_bounded), cmocka_unit_test(swapped_slots_judged_right),
        cmocka_unit_test(damage_is_caught),           cmocka_unit_test(messages_name_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
