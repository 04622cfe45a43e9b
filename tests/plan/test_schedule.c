/* Pipeline schedules: published ones reproduced, every row valid for all sizes, activations
 * within their stated bounds, timing against closed formulas, corruptions caught. */
#include "dh_test.h"

#include "dhelix/schedule.h"

#define MAX_P 16
#define MAX_M 64

static dh_schedule *generate(const char *name, int32_t p, int32_t m, int32_t v)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    dh_schedule *s;
    dh_schedule_spec spec = {.n_ranks = p, .n_micro = m, .n_chunks = v};
    assert_ok(&ctx, dh_schedule_find(&ctx, name, &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &spec, &s));
    return s;
}

/* ---- published schedule of the W shape ---------------------------------------------------------
 */

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
        {"zb-h1", 3, 4, 0,
         "rank 0    F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3\n"
         "rank 1    .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3\n"
         "rank 2    .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3\n"},
        {"dhelix-w", 1, 3, 0,
         "rank 0    F0.0 F0.1 F1.0|B0.1 F1.1|B0.0 F2.0|B1.1 F2.1|B1.0 B2.1 B2.0\n"},
        {"bidirectional", 2, 4, 0,
         "rank 0    F0 F1 F2|B1 F3|B0 B3 B2\n"
         "rank 1    F1 F0 F3|B0 F2|B1 B2 B3\n"},
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

/* ---- every row, all sizes
 * -------------------------------------------------------------------------- */

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
static bound bound_interleaved(int32_t p, int32_t m, int32_t g)
{
    return (bound){2 * (p - 1 - g) + p + 1, 2 * (p - 1 - g) + p + 1};
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
    {"1f1b", bound_1f1b},
    {"interleaved-1f1b", bound_interleaved},
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
 * head's with the forward: increasing on every stage, so that no schedule changes a bit. Rows
 * with two copies of the model cannot be trained. */
static void check_micro_batch_order(const dh_schedule *s)
{
    enum { FORWARD, WEIGHTS };
    int32_t next[2 * MAX_P][2] = {{0}};
    if (s->n_copies != 1) return;
    for (int32_t n = 0; n < s->first_slot[s->n_ranks]; n++)
        for (int32_t i = 0; i < s->slots[n].n_actions; i++) {
            const dh_pipe_action *a = &s->slots[n].action[i];
            if (a->kind == DH_PIPE_I) continue;
            if (a->micro != next[a->stage][a->kind == DH_PIPE_F ? FORWARD : WEIGHTS]++)
                fail_msg("%s p %d m %d: stage %d: %c%d out of turn", s->name, s->n_ranks,
                         s->n_micro, a->stage, dh_pipe_kind_letter(a->kind), a->micro);
        }
}

static bool is_accepted(const char *row, int32_t p, int32_t m)
{
    if (strcmp(row, "interleaved-1f1b") == 0) return m % p == 0;
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

/* ---- timing
 * ---------------------------------------------------------------------------------------- */

static dh_schedule_timing time_with(const dh_schedule *s, const dh_schedule_costs *costs)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule_timing t;
    assert_ok(&ctx, dh_schedule_time(&ctx, s, costs, &t));
    return t;
}

/* Makespan of a row with even stages; chunk durations are given. */
static dh_schedule_timing time_row(const char *row, int32_t p, int32_t m, int32_t v,
                                   dh_stage_cost cost)
{
    dh_schedule *s = generate(row, p, m, v);
    dh_schedule_costs costs = {.every = cost};
    dh_schedule_timing t = time_with(s, &costs);
    dh_schedule_destroy(s);
    return t;
}

static void bubbles_match_formulas(void **state)
{
    const int64_t f = 700, b = 1300;
    for (int32_t p = 1; p <= 12; p++)
        for (int32_t m = p; m <= 40; m += 3) {
            dh_stage_cost cost = {.f_ns = f, .b_ns = b};
            static const char *const plain[] = {"gpipe", "1f1b"};
            for (size_t i = 0; i < DH_COUNTOF(plain); i++) {
                dh_schedule_timing t = time_row(plain[i], p, m, 0, cost);
                assert_int_equal(t.makespan_ns, (m - 1 + p) * (f + b));
                for (int32_t g = 0; g < p; g++)
                    assert_true(fabs(t.bubble[g] - (p - 1.0) / (m - 1 + p)) < 1e-12);
                dh_schedule_timing_fini(&t);
            }
            for (int32_t v = 2; v <= 4 && m % p == 0; v++) {
                dh_schedule_timing t = time_row("interleaved-1f1b", p, m, v, cost);
                assert_int_equal(t.makespan_ns, (m * v + p - 1) * (f + b));
                dh_schedule_timing_fini(&t);
            }
        }
}

/* F = 1, B = 2 and SI block = 2.5 as drawn in the figure, and other ratios: while an SI block
 * takes longer than either half, (p-1)/(m-1+p s), s its speed-up. With m <= p there is no
 * SI block, and waves follow each other at the pace of the longer half. */
static void w_bubble_matches_formula(void **state)
{
    static const int64_t blocks[][3] = {
        {1000, 2000, 2500}, {1000, 2000, 3000}, {1000, 2000, 2001}, {900, 700, 1100}};
    for (size_t i = 0; i < DH_COUNTOF(blocks); i++)
        for (int32_t p = 1; p <= 12; p++)
            for (int32_t m = 1; m <= 40; m++) {
                const int64_t f = blocks[i][0], b = blocks[i][1], fb = blocks[i][2];
                const double s = (double)(f + b) / (double)fb;
                const int64_t pace = m > p ? fb : DH_MAX(f, b);
                dh_schedule_timing t = time_row("dhelix-w", p, m, 0,
                                                (dh_stage_cost){.f_ns = f, .b_ns = b, .fb_ns = fb});
                if (t.makespan_ns != 2 * p * (f + b) + 2 * (m - 1) * pace)
                    fail_msg("p %d m %d f %d b %d fb %d: %lld", p, m, (int)f, (int)b, (int)fb,
                             (long long)t.makespan_ns);
                for (int32_t g = 0; g < p && m > p; g++)
                    assert_true(fabs(t.bubble[g] - (p - 1) / (m - 1 + p * s)) < 1e-12);
                dh_schedule_timing_fini(&t);
            }
}

/* Zero Bubble, section 2; with W no longer than F and I. */
static void zero_bubble_formulas(void **state)
{
    const dh_stage_cost c = {.f_ns = 1000, .i_ns = 1100, .w_ns = 900};
    const int64_t sum = c.f_ns + c.i_ns + c.w_ns;
    for (int32_t p = 1; p <= 10; p++)
        for (int32_t m = 2 * p; m <= 40; m += 5) {
            dh_schedule_timing t = time_row("zb-h1", p, m, 0, c);
            assert_int_equal(t.makespan_ns, m * sum + (p - 1) * (c.f_ns + c.i_ns - c.w_ns));
            dh_schedule_timing_fini(&t);
            t = time_row("zb-h2", p, m, 0, c);
            assert_int_equal(t.longest_span_ns, m * sum + (p - 1) * (c.f_ns + c.i_ns - 2 * c.w_ns));
            dh_schedule_timing_fini(&t);
            t = time_row("zb-v", p, m, 0,
                         (dh_stage_cost){.f_ns = 1000, .i_ns = 1000, .w_ns = 1000});
            assert_int_equal(t.longest_span_ns, 2 * m * 3000); /* no bubble at all */
            dh_schedule_timing_fini(&t);
        }
}

/* Half and a third of 1F1B's memory, and yet a shorter bubble when F = I = W. */
static void v_blocks_beat_1f1b(void **state)
{
    const dh_stage_cost whole = {.f_ns = 2000, .i_ns = 2000, .w_ns = 2000},
                        half = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000};
    for (int32_t p = 2; p <= 16; p++) {
        dh_schedule_timing one = time_row("1f1b", p, 64, 0, whole);
        dh_schedule_timing v_half = time_row("v-half", p, 64, 0, half);
        dh_schedule_timing v_min = time_row("v-min", p, 64, 0, half);
        assert_true(v_half.makespan_ns < one.makespan_ns);
        assert_true(v_min.makespan_ns < one.makespan_ns);
        dh_schedule_timing_fini(&one);
        dh_schedule_timing_fini(&v_half);
        dh_schedule_timing_fini(&v_min);
    }
}

/* DeepSeek-V3, table 2: (p/2 - 1)(FB + B - 3W) with F = I = W, FB = F + B. */
static void dualpipe_formula(void **state)
{
    const dh_stage_cost c = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000};
    for (int32_t p = 2; p <= 12; p += 2)
        for (int32_t m = 2 * p; m <= 40; m += 2) {
            dh_schedule_timing t = time_row("dualpipe", p, m, 0, c);
            assert_int_equal(t.makespan_ns, m * 3000 + (p / 2 - 1) * (3000 + 2000 - 3000));
            dh_schedule_timing_fini(&t);
        }
}

/* Two stages, two micro-batches, by hand: stages of different length, a transfer of 5. */
static void timing_by_hand(void **state)
{
    dh_schedule *s = generate("1f1b", 2, 2, 0);
    const dh_stage_cost stages[] = {{.f_ns = 10, .b_ns = 20}, {.f_ns = 30, .i_ns = 25, .w_ns = 15}};
    dh_schedule_costs costs = {.stage = stages, .p2p_ns = 5};
    dh_schedule_timing t = time_with(s, &costs);
    /* rank 0: F0 0-10, F1 10-20, B0, B1; rank 1: F0 15-45, B0 45-85, F1 85-115, B1 115-155 */
    const int64_t starts[] = {0, 10, 90, 160, 15, 45, 85, 115},
                  ends[] = {10, 20, 110, 180, 45, 85, 115, 155};
    assert_memory_equal(t.start_ns, starts, sizeof starts);
    assert_memory_equal(t.end_ns, ends, sizeof ends);
    assert_int_equal(t.makespan_ns, 180);
    assert_int_equal(t.busy_ns[0], 60);
    assert_int_equal(t.busy_ns[1], 140);
    assert_int_equal(t.longest_span_ns, 180);
    assert_int_equal(t.first_ns[1], 15);
    assert_true(fabs(t.bubble[1] - 40.0 / 180) < 1e-12);
    dh_schedule_timing_fini(&t);
    dh_schedule_destroy(s);

    /* One rank: F0.0 F0.1 F1.0|B0.1 F1.1|B0.0 B1.1 B1.0, pairs by stages. */
    s = generate("dhelix-w", 1, 2, 0);
    const int64_t pairs[] = {1, 22, 33, 1}; /* [stage of F][stage of B] */
    costs =
        (dh_schedule_costs){.every = {.f_ns = 10, .b_ns = 20, .fb_ns = 99}, .fb_pair_ns = pairs};
    t = time_with(s, &costs);
    assert_int_equal(t.end_ns[3], 10 + 10 + 22 + 33);
    assert_int_equal(t.makespan_ns, 75 + 40);
    dh_schedule_timing_fini(&t);
    costs = (dh_schedule_costs){.every = {.f_ns = 10, .b_ns = 20}}; /* nothing gained */
    t = time_with(s, &costs);
    assert_int_equal(t.makespan_ns, 4 * 30);
    dh_schedule_timing_fini(&t);

    dh_ctx ctx = DH_CTX_INIT;
    costs.every.f_ns = -1;
    assert_fails(&ctx, dh_schedule_time(&ctx, s, &costs, &t), DH_EINVAL, "F of stage 0");
    costs.every.f_ns = INT64_MAX / 2;
    assert_fails(&ctx, dh_schedule_time(&ctx, s, &costs, &t), DH_EINVAL, "F of stage 0");
    dh_schedule_destroy(s);
}

/* ---- published bubble rates
 * ------------------------------------------------------------------------ */

typedef struct rates_row {
    char model[16];
    int p, m;
    double f_ms, i_ms, w_ms, comm_ms;
    double rate[6]; /* 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p, ZB-2p */
} rates_row;

/* bubble = (cost - m (F + I + W)) / cost; cost is the longest span of a stage, transfers
 * delay the receiver only: with that, five of the six columns are met to their last digit. */
static double bubble_rate(const char *name, const rates_row *r, int32_t chunks, int32_t limit,
                          int32_t wgrad_permille)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule_costs costs = {
        .every = {.f_ns = (int64_t)llround(r->f_ms * 1e6 / chunks),
                  .i_ns = (int64_t)llround(r->i_ms * 1e6 / chunks),
                  .w_ns = (int64_t)llround(r->w_ms * 1e6 / chunks)},
        .p2p_ns = (int64_t)llround(r->comm_ms * 1e6),
    };
    dh_schedule_spec spec = {.n_ranks = r->p,
                             .n_micro = r->m,
                             .n_chunks = chunks,
                             .costs = &costs,
                             .max_activations = limit,
                             .wgrad_permille = wgrad_permille};
    const dh_schedule_row *row;
    dh_schedule *s;
    assert_ok(&ctx, dh_schedule_find(&ctx, name, &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &spec, &s));
    assert_ok(&ctx, dh_schedule_validate(&ctx, s, NULL));
    dh_schedule_timing t = time_with(s, &costs);
    double cost = (double)t.longest_span_ns;
    double rate = (cost - r->m * (r->f_ms + r->i_ms + r->w_ms) * 1e6) / cost;
    dh_schedule_timing_fini(&t);
    dh_schedule_destroy(s);
    return rate;
}

static void near_published(const rates_row *r, const char *what, double got, double want,
                           double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s m=%d %s: bubble rate %.4f, published %.4f", r->model, r->m, what, got, want);
}

static void published_bubble_rates(void **state)
{
    FILE *file = fopen("tests/data/published/zero_bubble_bubble_rates.csv", "r");
    assert_non_null(file);
    char line[256];
    int n = 0;
    while (fgets(line, sizeof line, file)) {
        rates_row r;
        double *x = r.rate;
        if (sscanf(line, "%15[^,],%d,%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf", r.model, &r.p,
                   &r.m, &r.f_ms, &r.i_ms, &r.w_ms, &r.comm_ms, &x[0], &x[1], &x[2], &x[3], &x[4],
                   &x[5]) != 13)
            continue;
        n++;
        /* One layer a chunk: (22 + 2) / 8 and (30 + 2) / 8. M_W / M_B = 32 / (34 + 5as/h). */
        bool small = strcmp(r.model, "1.5B") == 0;
        int32_t chunks = small ? 3 : 4, wgrad = small ? 366 : 432;
        near_published(&r, "1F1B", bubble_rate("1f1b", &r, 1, 0, 0), x[0], 1e-4);
        near_published(&r, "1F1B-I", bubble_rate("interleaved-1f1b", &r, chunks, 0, 0), x[1],
                       0.005);
        near_published(&r, "ZB-H1", bubble_rate("zb-h1", &r, 1, 0, 0), x[2], 1e-4);
        near_published(&r, "ZB-H2", bubble_rate("zb-h2", &r, 1, 0, 0), x[3], 1e-4);
        near_published(&r, "ZB-1p", bubble_rate("zb-auto", &r, 1, r.p, wgrad), x[4], 1e-4);
        /* Ours may be better; it must not be worse by more than 0.0012 (one row, m = 24). */
        double two_p = bubble_rate("zb-auto", &r, 1, 2 * r.p, wgrad);
        assert_true(two_p >= 0);
        if (two_p > x[5] + 0.0012) near_published(&r, "ZB-2p", two_p, x[5], 0);
    }
    fclose(file);
    assert_int_equal(n, 6);
}

/* The automatic scheduler stays within the limit it was given, down to one activation. */
static void zb_auto_keeps_memory_limit(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    assert_ok(&ctx, dh_schedule_find(&ctx, "zb-auto", &row));
    for (int32_t limit = 1; limit <= 9; limit++)
        for (int32_t wgrad = 0; wgrad <= 1000; wgrad += 250) {
            dh_schedule_spec spec = {
                .n_ranks = 4, .n_micro = 11, .max_activations = limit, .wgrad_permille = wgrad};
            dh_schedule *s;
            assert_ok(&ctx, dh_schedule_generate(&ctx, row, &spec, &s));
            assert_ok(&ctx, dh_schedule_validate(&ctx, s, NULL));
            for (int32_t g = 0; g < 4; g++) {
                int32_t held = 0;
                for (int32_t n = s->first_slot[g]; n < s->first_slot[g + 1]; n++) {
                    const int32_t left = wgrad ? wgrad : 1000;
                    dh_pipe_kind kind = s->slots[n].action[0].kind;
                    held += kind == DH_PIPE_F ? 1000 : kind == DH_PIPE_I ? left - 1000 : -left;
                    assert_true(held <= 1000 * limit);
                }
            }
            dh_schedule_destroy(s);
        }
}

/* ---- corruptions
 * ------------------------------------------------------------------------------------ */

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

static dh_schedule *random_schedule(uint64_t *rng)
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

/* ---- CSV
 * ---------------------------------------------------------------------------------------------- */

static void assert_same_slots(const dh_schedule *a, const dh_schedule *b)
{
    assert_int_equal(a->n_ranks, b->n_ranks);
    assert_int_equal(a->n_stages, b->n_stages);
    assert_int_equal(a->n_micro, b->n_micro);
    assert_memory_equal(a->first_slot, b->first_slot,
                        (size_t)(a->n_ranks + 1) * sizeof *a->first_slot);
    for (int32_t n = 0; n < a->first_slot[a->n_ranks]; n++) {
        assert_int_equal(a->slots[n].n_actions, b->slots[n].n_actions);
        for (int32_t i = 0; i < a->slots[n].n_actions; i++) {
            dh_pipe_action x = a->slots[n].action[i], y = b->slots[n].action[i];
            assert_true(x.kind == y.kind && x.stage == y.stage && x.micro == y.micro);
            assert_int_equal(dh_schedule_rank(a, x.stage, x.micro),
                             dh_schedule_rank(b, y.stage, y.micro));
        }
    }
}

static void csv_round_trip(void **state)
{
    uint64_t rng = test_seed("csv_round_trip");
    dh_ctx ctx = DH_CTX_INIT;
    for (int round = 0; round < 300; round++) {
        dh_schedule *s = random_schedule(&rng), *back;
        dh_str text = DH_STR_INIT, again = DH_STR_INIT;
        assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
        assert_ok(&ctx, dh_schedule_parse_csv(&ctx, text.text, text.len, "round trip", &back));
        assert_same_slots(s, back);
        assert_ok(&ctx, dh_schedule_print_csv(&ctx, back, &again));
        assert_string_equal(text.text, again.text);
        dh_str_fini(&text);
        dh_str_fini(&again);
        dh_schedule_destroy(s);
        dh_schedule_destroy(back);
    }
}

static void csv_as_pytorch_writes_it(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule *s = generate("1f1b", 2, 2, 0);
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_string_equal(text.text, "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
    dh_str_fini(&text);

    /* The same with transfers, sharding, blanks, carriage returns and a comment. */
    static const char busy[] = "# compute and communication\r\n"
                               "0UNSHARD, 0F0 ,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0B1,"
                               "0RESHARD,0REDUCE_GRAD\r\n"
                               " 1RECV_F0 ,\t1F0,\"1B0\",1SEND_B0,1 F 1,1B1,1SEND_B1\r\n\r\n";
    dh_schedule *read;
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, busy, strlen(busy), "busy.csv", &read));
    assert_same_slots(s, read);
    dh_schedule_destroy(read);
    dh_schedule_destroy(s);

    /* Without a line break at the end, and a pair in either order. */
    static const char pair[] = "0F0,(0B0;0F1)OVERLAP_F_B,0I1,0W1";
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, pair, strlen(pair), "pair.csv", &read));
    assert_int_equal(read->slots[1].n_actions, 2);
    assert_int_equal(read->slots[1].action[0].kind, DH_PIPE_F);
    assert_int_equal(read->slots[1].action[1].kind, DH_PIPE_B);
    dh_schedule_destroy(read);

    /* Placement from who does what: round-robin, and two copies. */
    s = generate("interleaved-1f1b", 2, 4, 3);
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, text.text, text.len, "i.csv", &read));
    assert_int_equal(read->n_copies, 1);
    for (int32_t v = 0; v < 6; v++) assert_int_equal(read->rank_of[v], v % 2);
    dh_str_fini(&text);
    dh_schedule_destroy(s);
    dh_schedule_destroy(read);
    s = generate("dualpipe", 4, 8, 0);
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, text.text, text.len, "d.csv", &read));
    assert_int_equal(read->n_copies, 2);
    assert_memory_equal(read->rank_of, s->rank_of, 8 * sizeof(int32_t));
    assert_memory_equal(read->copy_of, s->copy_of, 8 * sizeof(int32_t));
    dh_str_fini(&text);
    dh_schedule_destroy(s);
    dh_schedule_destroy(read);
}

static void csv_refuses_with_place(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static const struct {
        const char *text;
        dh_status status;
        const char *part;
    } cases[] = {
        {"", DH_EFORMAT, "no action"},
        {",,\n,,\n", DH_EFORMAT, "no action"},
        {"0F0,0B0\n\n1F0,1B0\n", DH_EFORMAT, "row 2: no action, so rank 1"},
        {"0F0,0B0\n0UNSHARD,\n", DH_EFORMAT, "row 2: no action"},
        {"0F0,0B0\n1F0,1X0\n", DH_EFORMAT, "row 2, column 2: \"1X0\": unknown action"},
        {"0F0,F1\n", DH_EFORMAT, "row 1, column 2: \"F1\""},
        {"0F\n", DH_EFORMAT, "number of its micro-batch"},
        {"0F0x\n", DH_EFORMAT, "text after"},
        {"0f0\n", DH_EFORMAT, "unknown action"},
        {"0FF0\n", DH_EFORMAT, "unknown action"},
        {"0SEND_Q0\n", DH_EFORMAT, "unknown action"},
        {"0F99999999999999999999\n", DH_EFORMAT, "row 1, column 1"},
        {"0F0,(0F1;0B0)\n", DH_EFORMAT, "OVERLAP_F_B"},
        {"0F0,(0F1,0B0)OVERLAP_F_B\n", DH_EFORMAT, "column 2"},
        {"0F0,(0F1;0F0)OVERLAP_F_B\n", DH_EFORMAT, "one forward and one backward"},
        {"0F0,(0F1;0SEND_B0)OVERLAP_F_B\n", DH_EFORMAT, "communication inside"},
        {"0F0,0B0\n0F1,0B1\n1F0\n", DH_EINVAL, "only 5 actions"},
        {"0F0\n0B0\n", DH_EINVAL,
         "row 2, column 1: backward of micro-batch 0 on stage 0, but rank 0"},
        {"0F0,0F0,0B0,0B0\n", DH_EINVAL, "second time"},
        {"60000000F0\n", DH_EINVAL, "only 1 actions"},
        {"0F0,0F2,0B0,0B2,0F0,0F0\n", DH_EINVAL, "no rank does micro-batch 1 on stage 0"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_schedule *s;
        dh_status st =
            dh_schedule_parse_csv(&ctx, cases[i].text, strlen(cases[i].text), "t.csv", &s);
        if (st != cases[i].status || !strstr(ctx.message, cases[i].part) ||
            !strstr(ctx.message, "t.csv"))
            fail_msg("case %zu: %s: %s", i, dh_status_name(st), ctx.message);
        dh_ctx_reset(&ctx);
    }
    dh_schedule *s;
    assert_fails(&ctx, dh_schedule_read_csv(&ctx, "/nonexistent/x.csv", &s), DH_EIO, "x.csv");
}

/* Damaged text is refused with a message or gives a valid schedule; never anything else. */
static void csv_survives_damage(void **state)
{
    uint64_t rng = test_seed("csv_survives_damage");
    static const char bytes[] = "0123456789FBIW,;()\n _OVERLAP#\"\x80";
    for (int round = 0; round < 300; round++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_schedule *s = random_schedule(&rng);
        dh_str text = DH_STR_INIT;
        assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
        dh_schedule_destroy(s);
        for (int change = 0; change < 8; change++) {
            size_t at = test_rand(&rng) % text.len;
            text.text[at] = bytes[test_rand(&rng) % (sizeof bytes)]; /* the last one is 0 */
            size_t n = change == 7 ? at : text.len;
            char *exact = malloc(n + !n); /* of exact size, for address sanitizer */
            memcpy(exact, text.text, n);
            if (dh_schedule_parse_csv(&ctx, exact, n, "damaged", &s) == DH_OK) {
                assert_ok(&ctx, dh_schedule_validate(&ctx, s, NULL));
                dh_schedule_destroy(s);
            } else {
                assert_true(ctx.message[0] != '\0');
                dh_ctx_reset(&ctx);
            }
            free(exact);
        }
        dh_str_fini(&text);
    }
}

static void csv_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/w.csv", dir);
    dh_schedule *s = generate("dhelix-w", 3, 7, 0), *read;
    assert_ok(&ctx, dh_schedule_write_csv(&ctx, s, path));
    assert_ok(&ctx, dh_schedule_read_csv(&ctx, path, &read));
    assert_same_slots(s, read);
    assert_string_equal(read->name, path);
    dh_schedule_destroy(s);
    dh_schedule_destroy(read);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- rows by name, sizes
 * -------------------------------------------------------------------------------- */

static void rows_say_why_not(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    dh_schedule *s;
    assert_fails(&ctx, dh_schedule_find(&ctx, "zb-h3", &row), DH_EMISSING, "did you mean \"zb-h");
    assert_fails(&ctx, dh_schedule_find(&ctx, "nothing-like-it", &row), DH_EMISSING,
                 "list schedules");

    static const struct {
        const char *row;
        dh_schedule_spec spec;
        dh_status status;
        const char *part;
    } cases[] = {
        {"interleaved-1f1b", {.n_ranks = 4, .n_micro = 6}, DH_EUNSUPPORTED, "8 would be"},
        {"interleaved-1f1b",
         {.n_ranks = 4, .n_micro = 8, .n_chunks = 1},
         DH_EUNSUPPORTED,
         "1f1b is"},
        {"dualpipe", {.n_ranks = 3, .n_micro = 6}, DH_EUNSUPPORTED, "even"},
        {"dhelix-w",
         {.n_ranks = 3, .n_micro = 6, .n_chunks = 4},
         DH_EUNSUPPORTED,
         "by construction"},
        {"1f1b", {.n_ranks = 0, .n_micro = 6}, DH_EINVAL, "0 pipeline stages"},
        {"1f1b", {.n_ranks = 2, .n_micro = 0}, DH_EINVAL, "0 micro-batches"},
        {"1f1b", {.n_ranks = 4096, .n_micro = 1 << 20}, DH_EINVAL, "exceed"},
        {"zb-auto", {.n_ranks = 300, .n_micro = 6}, DH_EUNSUPPORTED, "use zb-h1"},
        {"zb-auto", {.n_ranks = 3, .n_micro = 6, .wgrad_permille = 1001}, DH_EINVAL, "1001"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        assert_ok(&ctx, dh_schedule_find(&ctx, cases[i].row, &row));
        assert_fails(&ctx, dh_schedule_applicable(&ctx, row, &cases[i].spec), cases[i].status,
                     cases[i].part);
        assert_fails(&ctx, dh_schedule_generate(&ctx, row, &cases[i].spec, &s), cases[i].status,
                     cases[i].part);
    }
    /* "Not given" and the row's own number are the same. */
    for (int32_t v = 0; v <= 2; v++) {
        s = generate("dhelix-w", 2, 3, v);
        assert_int_equal(s->n_stages, 4);
        dh_schedule_destroy(s);
    }
    assert_string_equal(dh_placement_name(DH_PLACE_FOLDED), "folded");
    assert_non_null(strstr(dh_placement_doc(DH_PLACE_FOLDED), "2p-1-g"));
}

/* ---- layers
 * ------------------------------------------------------------------------------------------------
 */

static void layers_are_split(void **state)
{
    static const struct {
        int64_t n_layers;
        int32_t n_stages;
        const char *spec;
        int64_t counts[8];
    } cases[] = {
        {32, 8, "", {4, 4, 4, 4, 4, 4, 4, 4}},
        {14, 4, "3,4,4,3", {3, 4, 4, 3}},
        {22, 8, "-1,*,-1", {2, 3, 3, 3, 3, 3, 3, 2}},
        {30, 8, "-1,*,-1", {3, 4, 4, 4, 4, 4, 4, 3}},
        {34, 8, "", {4, 4, 4, 4, 5, 5, 4, 4}}, /* ranks 3 and 2 of a folded model, one each */
        {38, 8, "", {4, 5, 5, 5, 5, 5, 5, 4}},
        {7, 3, "", {2, 3, 2}},
        {8, 3, "", {3, 3, 2}},
        {5, 1, "", {5}},
        {3, 2, "", {2, 1}},
        {6, 4, "0, * ,0", {0, 3, 3, 0}},
        {12, 4, "2,*", {2, 3, 4, 3}},
        {8, 2, "*,3,5", {3, 5}},
        {23, 8, "-1,*,-1", {2, 3, 3, 3, 4, 3, 3, 2}},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        int64_t counts[8];
        assert_ok(&ctx, dh_layer_split(&ctx, cases[i].n_layers, cases[i].n_stages, cases[i].spec,
                                       counts));
        for (int32_t v = 0; v < cases[i].n_stages; v++)
            if (counts[v] != cases[i].counts[v])
                fail_msg("%lld layers, \"%s\": stage %d of %d has %lld",
                         (long long)cases[i].n_layers, cases[i].spec, v, cases[i].n_stages,
                         (long long)counts[v]);
    }
    /* Any even split: sums, differs by at most one, and so do the sums of folded ranks but
     * for the rank with both ends. */
    for (int32_t p = 1; p <= 4; p++)
        for (int64_t n = 2 * p; n <= 40; n++) {
            int64_t counts[8], sum = 0, low = n, high = 0;
            assert_ok(&ctx, dh_layer_split(&ctx, n, 2 * p, "", counts));
            for (int32_t v = 0; v < 2 * p; v++) {
                assert_true(counts[v] == n / (2 * p) || counts[v] == n / (2 * p) + 1);
                sum += counts[v];
            }
            assert_int_equal(sum, n);
            for (int32_t g = 1; g < p; g++) {
                int64_t rank = counts[g] + counts[2 * p - 1 - g];
                low = DH_MIN(low, rank);
                high = DH_MAX(high, rank);
            }
            assert_true(p == 1 || high - low <= 1);
        }
}

static void layer_split_refuses(void **state)
{
    static const struct {
        int64_t n_layers;
        int32_t n_stages;
        const char *spec;
        dh_status status;
        const char *part;
    } cases[] = {
        {3, 4, "", DH_EINVAL, "would have 0 of 3"},
        {14, 4, "3,4,4", DH_EINVAL, "3 entries for 4"},
        {14, 4, "3,4,4,4", DH_EINVAL, "make 15 layers; the model has 14"},
        {14, 4, "3,x,4,4", DH_EFORMAT, "entry 2: not a number"},
        {14, 4, "3,,4,4", DH_EFORMAT, "entry 2"},
        {14, 4, "*,4,*", DH_EFORMAT, "entry 3: a second *"},
        {14, 4, "1,2,3,4,*,4", DH_EINVAL, "5 entries for 4"},
        {14, 4, "4,0,*", DH_EINVAL, "stage 1 of 4"},
        {14, 4, "15,*", DH_EINVAL, "make 15"},
        {14, 4, "-9,*", DH_EINVAL, "stage 0"},
        {14, 4, "99999999999999999999,*", DH_EFORMAT, "entry 1"},
        {14, 4, "9999999999999999999999999999999999,*", DH_EFORMAT, "too long"},
        {0, 4, "", DH_EINVAL, "0 layers"},
        {4, 0, "", DH_EINVAL, "0 virtual stages"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        int64_t counts[8] = {-7};
        dh_status st =
            dh_layer_split(&ctx, cases[i].n_layers, cases[i].n_stages, cases[i].spec, counts);
        if (st != cases[i].status || !strstr(ctx.message, cases[i].part))
            fail_msg("\"%s\": %s: %s", cases[i].spec, dh_status_name(st), ctx.message);
        assert_int_equal(counts[0], -7);
        dh_ctx_reset(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dhelix_w_is_figure_8),
        cmocka_unit_test(draws_as_published),
        cmocka_unit_test(all_rows_valid_and_bounded),
        cmocka_unit_test(bubbles_match_formulas),
        cmocka_unit_test(w_bubble_matches_formula),
        cmocka_unit_test(zero_bubble_formulas),
        cmocka_unit_test(v_blocks_beat_1f1b),
        cmocka_unit_test(dualpipe_formula),
        cmocka_unit_test(timing_by_hand),
        cmocka_unit_test(published_bubble_rates),
        cmocka_unit_test(zb_auto_keeps_memory_limit),
        cmocka_unit_test(swapped_slots_judged_right),
        cmocka_unit_test(damage_is_caught),
        cmocka_unit_test(messages_name_the_place),
        cmocka_unit_test(csv_round_trip),
        cmocka_unit_test(csv_as_pytorch_writes_it),
        cmocka_unit_test(csv_refuses_with_place),
        cmocka_unit_test(csv_survives_damage),
        cmocka_unit_test(csv_files),
        cmocka_unit_test(rows_say_why_not),
        cmocka_unit_test(layers_are_split),
        cmocka_unit_test(layer_split_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
