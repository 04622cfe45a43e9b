#include "dh_test.h"

#include "pairing_cases.h"
#include "plan/pair_build.h"

#define MATRIX "tests/data/published/dhelix_h100_pairwise_oef_matrix.csv"

/* ---- small problems ------------------------------------------------------------------------- */

static dh_pair_op op(const char *name, dh_engine engine, int64_t solo_ns)
{
    return (dh_pair_op){.name = name, .engine = engine, .solo_ns = solo_ns};
}

static const dh_pair_policy *policy(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_pair_policy *row;
    assert_ok(&ctx, dh_pair_policy_find(&ctx, name, &row));
    return row;
}

static dh_pair_plan *make(const char *name, const dh_pair_problem *p, const dh_pair_options *o)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pair_plan *plan;
    assert_ok(&ctx, dh_pair_plan_make(&ctx, policy(name), p, o, &plan));
    assert_ok(&ctx, pair_plan_validate(&ctx, p, o, plan));
    return plan;
}

static int64_t makespan(const char *name, const dh_pair_problem *p, const dh_pair_options *o)
{
    dh_pair_plan *plan = make(name, p, o);
    const int64_t ns = plan->makespan_ns;
    dh_pair_plan_destroy(plan);
    return ns;
}

/* ---- the fluid model, by hand --------------------------------------------------------------- */

static const int32_t first_three[] = {0, 1, 2};

static void a_pair_takes_what_was_measured(void **state)
{
    const dh_pair_op f[] = {op("f", DH_ENGINE_COMPUTE, 100)}, b[] = {op("b", DH_ENGINE_LOCAL, 40)};
    /* both slower; b alone at the end; b loses more than it had run; both faster than alone */
    const dh_pair_time times[] = {{110, 50, 0}, {130, 165, 0}, {100, 300, 0}, {90, 35, 0}};
    for (size_t k = 0; k < DH_COUNTOF(times); k++) {
        const dh_pair_problem p = {{f, 1}, {b, 1}, &times[k], 7};
        int64_t f_end, b_end;
        int64_t ns = pair_coexecute(&p, NULL, first_three, 1, first_three, 1, &f_end, &b_end);
        assert_int_equal(f_end, times[k].f_ns);
        assert_int_equal(b_end, times[k].b_ns);
        assert_int_equal(ns, DH_MAX(f_end, b_end));
    }
}

static void segments_go_on_at_new_rates(void **state)
{
    const dh_pair_op f[] = {op("f", DH_ENGINE_COMPUTE, 100)};
    const dh_pair_op b[] = {op("b1", DH_ENGINE_LOCAL, 40), op("b2", DH_ENGINE_LOCAL, 40)};
    /* beside b1: r_b = 40/50, r_f = (100 - (110 - 50))/50 = 4/5; beside b2: both 2/3 */
    const dh_pair_time t[] = {{110, 50, 0}, {120, 60, 0}};
    const dh_pair_problem p = {{f, 1}, {b, 2}, t, 0};
    int64_t f_end, b_end[2];
    /* b1 ends at 50, f has 60 left; b2 takes 60 more, f has 20 left and runs alone to 130 */
    assert_int_equal(pair_coexecute(&p, NULL, first_three, 1, first_three, 2, &f_end, b_end), 130);
    assert_int_equal(b_end[0], 50);
    assert_int_equal(b_end[1], 110);
    assert_int_equal(f_end, 130);
    /* alone: sums */
    assert_int_equal(pair_coexecute(&p, NULL, NULL, 0, first_three, 2, NULL, b_end), 80);
    assert_int_equal(b_end[0], 40);
    assert_int_equal(pair_coexecute(&p, NULL, first_three, 1, NULL, 0, NULL, NULL), 100);
}

static void operators_without_time_end_at_once(void **state)
{
    const dh_pair_op f[] = {op("f0", DH_ENGINE_COMPUTE, 0), op("f1", DH_ENGINE_COMPUTE, 30),
                            op("f2", DH_ENGINE_COMPUTE, 0)};
    const dh_pair_op b[] = {op("b", DH_ENGINE_LOCAL, 30)};
    const dh_pair_time t[] = {{0, 0, 0}, {40, 40, 0}, {0, 0, 0}};
    const dh_pair_problem p = {{f, 3}, {b, 1}, t, 0};
    int64_t f_end[3], b_end;
    assert_int_equal(pair_coexecute(&p, NULL, first_three, 3, first_three, 1, f_end, &b_end), 40);
    assert_int_equal(f_end[0], 0);
    assert_int_equal(f_end[1], 40); /* both at the same instant */
    assert_int_equal(f_end[2], 40);
    assert_int_equal(b_end, 40);
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    o.max_segment = 1;
    dh_pair_plan *plan = make("round-robin", &p, &o);
    assert_int_equal(plan->n_pairs[DH_PAIR_MEASURED], 0); /* f0 is beside b for no time */
    dh_pair_plan_destroy(plan);
}

static void switches_forbid_by_the_timeline(void **state)
{
    const dh_pair_op f[] = {op("f1", DH_ENGINE_COMPUTE, 50), op("ag", DH_ENGINE_LOCAL, 20)};
    const dh_pair_op b[] = {op("rs", DH_ENGINE_LOCAL, 50), op("a2a", DH_ENGINE_CROSS, 10)};
    const dh_pair_time t[] = {{50, 50, 0}, {50, 10, 0}, {20, 50, 0}, {20, 10, 0}};
    const dh_pair_problem p = {{f, 2}, {b, 2}, t, 0};
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    assert_int_equal(pair_coexecute(&p, &o, first_three, 2, first_three, 2, NULL, NULL), 70);
    o.overlap_comm_comm = false; /* ag beside a2a, after 50 */
    assert_int_equal(pair_coexecute(&p, &o, first_three, 2, first_three, 2, NULL, NULL), -1);
    assert_int_equal(pair_coexecute(&p, &o, first_three, 2, first_three, 1, NULL, NULL), 70);
    o = (dh_pair_options)DH_PAIR_OPTIONS_INIT;
    o.overlap_local = false;
    assert_int_equal(pair_coexecute(&p, &o, first_three, 1, first_three, 1, NULL, NULL), -1);
    assert_int_equal(pair_coexecute(&p, &o, first_three, 1, first_three + 1, 1, NULL, NULL), 50);
    o.overlap_cross = false;
    assert_int_equal(pair_coexecute(&p, &o, first_three, 1, first_three + 1, 1, NULL, NULL), -1);
}

/* ---- OEF ------------------------------------------------------------------------------------ */

static void oef_and_back(void **state)
{
    assert_true(dh_oef(100, 40, 100) == 1 && dh_oef(100, 40, 140) == 0);
    assert_true(dh_oef(40, 100, 160) == -0.5);
    assert_false(dh_oef_unusual(1) || dh_oef_unusual(-1) || dh_oef_unusual(0.5));
    assert_true(dh_oef_unusual(1.01) && dh_oef_unusual(-2.17));
    /* s = 2 - 0.5: the shorter ends after 60, the longer after 60 + 60 */
    dh_pair_time t = dh_pair_time_from_oef(100, 40, 0.5, DH_PAIR_IMPORTED);
    assert_int_equal(t.f_ns, 120);
    assert_int_equal(t.b_ns, 60);
    assert_int_equal(t.source, DH_PAIR_IMPORTED);
    uint64_t seed = test_seed("oef_and_back");
    for (int k = 0; k < 1000; k++) {
        const int64_t f = 1000 + (int64_t)(test_rand(&seed) % 1000000);
        const int64_t b = 1000 + (int64_t)(test_rand(&seed) % 1000000);
        const double oef = -3 + 4.99 * (double)(test_rand(&seed) % 10001) / 10000;
        t = dh_pair_time_from_oef(f, b, oef, DH_PAIR_MODELLED);
        const double back = dh_oef(f, b, DH_MAX(t.f_ns, t.b_ns));
        assert_true(fabs(back - oef) < 1.0 / (double)DH_MIN(f, b));
    }
}

static void modelled_oef_is_symmetric(void **state)
{
    for (int i = 0; i < DH_N_ENGINE; i++)
        for (int j = 0; j < DH_N_ENGINE; j++) {
            const double oef = dh_oef_modelled((dh_engine)i, (dh_engine)j);
            assert_true(oef == dh_oef_modelled((dh_engine)j, (dh_engine)i));
            assert_true(oef >= 0 && oef <= 1);
        }
}

static bool is_listed(const dh_oef_matrix *m, const char *row, const char *column, double value)
{
    for (int32_t k = 0; k < m->n_unusual; k++) {
        const int32_t r = m->unusual[k] / m->n_columns, c = m->unusual[k] % m->n_columns;
        if (strcmp(m->row_names[r], row) == 0 && strcmp(m->column_names[c], column) == 0)
            return m->at[m->unusual[k]] == value;
    }
    return false;
}

static void published_matrix_loads(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_oef_matrix *m;
    assert_ok(&ctx, dh_oef_matrix_read(&ctx, MATRIX, &m));
    assert_int_equal(m->n_rows, 15);
    assert_int_equal(m->n_columns, 19);
    assert_string_equal(m->row_names[0], "gemm_attn_c");
    assert_string_equal(m->column_names[18], "inter_p2p");
    assert_true(m->at[1] == -0.07 && m->at[14 * 19 + 18] == 0.09);
    assert_true(is_listed(m, "intra_all2all", "mlp_c_W", -2.17));
    assert_true(is_listed(m, "intra_all2all", "attn_l_w", 1.97));
    int32_t outside = 0;
    for (int32_t k = 0; k < m->n_rows * m->n_columns; k++) outside += fabs(m->at[k]) > 1;
    assert_int_equal(m->n_unusual, outside);
    assert_true(outside > 2 && outside < 40);

    /* Kept, not clamped: 1000 ns of each take 2000 + 2170 and 2000 - 1970. */
    const dh_pair_op f[] = {op("a2a", DH_ENGINE_LOCAL, 1000)};
    const dh_pair_op b[] = {op("w1", DH_ENGINE_COMPUTE, 1000), op("w2", DH_ENGINE_COMPUTE, 1000)};
    const char *rows[] = {"intra_all2all"}, *columns[] = {"mlp_c_W", "attn_l_w"};
    dh_pair_time t[2];
    assert_ok(&ctx, pair_times_from_matrix(&ctx, m, (dh_pair_strand){f, 1}, rows,
                                           (dh_pair_strand){b, 2}, columns, t));
    assert_int_equal(t[0].f_ns, 4170);
    assert_int_equal(t[1].b_ns, 30);
    assert_int_equal(t[1].source, DH_PAIR_IMPORTED);
    columns[1] = NULL;
    assert_ok(&ctx, pair_times_from_matrix(&ctx, m, (dh_pair_strand){f, 1}, rows,
                                           (dh_pair_strand){b, 2}, columns, t));
    assert_int_equal(t[1].source, DH_PAIR_MODELLED);
    rows[0] = "intra_all2al";
    assert_fails(&ctx,
                 pair_times_from_matrix(&ctx, m, (dh_pair_strand){f, 1}, rows,
                                        (dh_pair_strand){b, 2}, columns, t),
                 DH_EMISSING, "did you mean \"intra_all2all\"");
    dh_oef_matrix_destroy(m);
    dh_oef_matrix_destroy(NULL);
}

static void broken_matrices_are_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "m.csv: no rows"},
        {"op,a,b\n", "no rows"},
        {"op\nx,1\n", "line 1: no columns"},
        {"op,a,a\nx,1,1\n", "line 1: a second column \"a\""},
        {"op,a,\nx,1,1\n", "line 1: column 2 has no name"},
        {"op,a,b\nx,1\n", "line 2, row x: less than 2 values"},
        {"op,a,b\nx,1,2e-1,3\n", "line 2, row x: more than 2 values"},
        {"# note\nop,a,b\n\nx,1,0\ny,0.5,zero\n", "line 5, row y, column b: \"zero\" is no number"},
        {"op,a,b\nx,1,\n", "row x, column b: \"\" is no number"},
        {"op,a,b\nx,nan,0\n", "row x, column a: \"nan\" is no number"},
        {"op,a,b\nx,0,2\n", "row x, column b: 2; at 2 the shorter"},
        {"op,a\nx,0\nx,0\n", "line 3: a second row \"x\""},
        {"op,a\n\"x\",0\n", "without quotes"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    dh_oef_matrix *m;
    for (size_t k = 0; k < DH_COUNTOF(cases); k++)
        assert_fails(&ctx,
                     dh_oef_matrix_parse(&ctx, cases[k].text, strlen(cases[k].text), "m.csv", &m),
                     DH_EFORMAT, cases[k].message);
    assert_fails(&ctx, dh_oef_matrix_read(&ctx, "tests/data/none.csv", &m), DH_EIO, "none.csv");
    const char *dos = "op, a ,b\r\nx , 0.25,-1.5\r\ny,1,2e-1";
    assert_ok(&ctx, dh_oef_matrix_parse(&ctx, dos, strlen(dos), "m.csv", &m));
    assert_string_equal(m->column_names[0], "a");
    assert_string_equal(m->row_names[0], "x");
    assert_int_equal(m->n_unusual, 1);
    assert_true(m->at[m->unusual[0]] == -1.5 && m->at[3] == 0.2);
    dh_oef_matrix_destroy(m);
}

/* ---- equation 2, by hand -------------------------------------------------------------------- */

static const int32_t pred_0[] = {0};

/* f1 hides b1, b2 hides f2; computation beside computation and wire beside wire gain nothing. */
static void hand_problem(dh_pair_op f[2], dh_pair_op b[2], dh_pair_time t[4], dh_pair_problem *p)
{
    f[0] = op("f1", DH_ENGINE_COMPUTE, 10);
    f[1] = op("f2", DH_ENGINE_LOCAL, 6);
    b[0] = op("b1", DH_ENGINE_LOCAL, 8);
    b[1] = op("b2", DH_ENGINE_COMPUTE, 12);
    f[1].preds = b[1].preds = pred_0;
    f[1].n_preds = b[1].n_preds = 1;
    const double oef[] = {1, 0, 0, 1};
    for (int i = 0; i < 4; i++)
        t[i] = dh_pair_time_from_oef(f[i / 2].solo_ns, b[i % 2].solo_ns, oef[i], DH_PAIR_MODELLED);
    *p = (dh_pair_problem){{f, 2}, {b, 2}, t, 0};
}

static void dp_is_equation_2(void **state)
{
    dh_pair_op f[2], b[2];
    dh_pair_time t[4];
    dh_pair_problem p;
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    hand_problem(f, b, t, &p);
    o.max_segment = 1;
    /* T(1,0)=10 T(0,1)=8 T(1,1)=min{10+8, 8+10, P=10}=10
     * T(2,0)=16 T(2,1)=min{10+6, 16+8, 10+14}=16
     * T(0,2)=20 T(1,2)=min{20+10, 10+12, 8+22}=22
     * T(2,2)=min{22+6, 16+12, 10+P(2,2)=10+12}=22 */
    dh_pair_plan *plan = make("dp", &p, &o);
    assert_int_equal(plan->makespan_ns, 22);
    assert_int_equal(plan->n_rounds, 2);
    assert_int_equal(plan->rounds[1].start_ns, 10);
    assert_int_equal(plan->f_span[1].end_ns, 16);
    assert_int_equal(plan->bound_ns, 22);
    assert_int_equal(plan->sequential_ns, 36);
    dh_pair_plan_destroy(plan);

    /* Rounds cost 3: two pairs take 22 + 6. Without the barrier between them, f1 ends at 12 (2
     * left at 8, at half speed beside b2), f2 at 18, b2 at 22: one round of 22 + 3. */
    p.round_ns = 3;
    assert_int_equal(makespan("dp", &p, &o), 28);
    assert_int_equal(makespan("sequential", &p, &o), 42);
    o.max_segment = 2;
    plan = make("dp", &p, &o);
    assert_int_equal(plan->makespan_ns, 25);
    assert_int_equal(plan->n_rounds, 1);
    assert_int_equal(plan->f_span[0].start_ns, 3);
    assert_int_equal(plan->f_span[0].end_ns, 15);
    assert_int_equal(plan->f_span[1].end_ns, 21);
    /* No computation is idle; 2 ns of f1 and 2 of b2 took 4. */
    assert_int_equal(plan->exposed.launch_ns, 3);
    assert_int_equal(plan->exposed.dependency_ns, 0);
    assert_int_equal(plan->exposed.contention_ns, 0);
    dh_pair_plan_destroy(plan);
}

static void exposure_has_causes(void **state)
{
    dh_pair_op f[2], b[2];
    dh_pair_time t[4];
    dh_pair_problem p;
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    hand_problem(f, b, t, &p);
    p.round_ns = 3;
    dh_pair_plan *plan = make("sequential", &p, &o);
    assert_int_equal(plan->communication_ns, 14);
    assert_int_equal(plan->exposed.dependency_ns, 14);
    assert_int_equal(plan->exposed.launch_ns, 6);
    dh_pair_plan_destroy(plan);
    t[0] = (dh_pair_time){13, 9, DH_PAIR_MEASURED}; /* f1 is slowed down by 3 */
    plan = make("round-robin", &p, &o);
    assert_int_equal(plan->rounds[0].exposed.contention_ns, 3);
    assert_int_equal(plan->exposed.contention_ns, 3);
    assert_int_equal(plan->exposed.dependency_ns, 0);
    assert_int_equal(plan->n_pairs[DH_PAIR_MEASURED], 1);
    assert_int_equal(plan->n_pairs[DH_PAIR_MODELLED], 1);
    dh_pair_plan_destroy(plan);
}

/* ---- random problems ------------------------------------------------------------------------ */

typedef struct random_problem {
    dh_pair_problem p;
    dh_pair_options o;
    dh_pair_op ops[2][16];
    int32_t preds[2][16][16];
    char names[2][16][8];
    dh_pair_time t[256];
} random_problem;

static int64_t up_to(uint64_t *seed, int64_t n)
{
    return (int64_t)(test_rand(seed) % (uint64_t)n);
}

static dh_pair_strand random_strand(uint64_t *seed, random_problem *r, int side, int32_t n)
{
    const int64_t density = up_to(seed, 5);
    for (int32_t k = 0; k < n; k++) {
        dh_pair_op *o = &r->ops[side][k];
        snprintf(r->names[side][k], sizeof r->names[side][k], "%c%d", side ? 'b' : 'f', (int)k);
        *o =
            op(r->names[side][k], (dh_engine)up_to(seed, 3), up_to(seed, 10) ? up_to(seed, 60) : 0);
        o->movable = up_to(seed, 3) == 0;
        o->preds = r->preds[side][k];
        for (int32_t i = 0; i < k; i++)
            if (up_to(seed, 4) < density) r->preds[side][k][o->n_preds++] = i;
    }
    return (dh_pair_strand){r->ops[side], n};
}

/* Mostly plausible times, some far outside an OEF of [-1, 1]. */
static void random_problem_make(uint64_t *seed, int32_t n_f, int32_t n_b, random_problem *r)
{
    r->p = (dh_pair_problem){random_strand(seed, r, 0, n_f), random_strand(seed, r, 1, n_b), r->t,
                             up_to(seed, 8)};
    for (int32_t k = 0; k < n_f * n_b; k++) {
        const int64_t f = r->ops[0][k / n_b].solo_ns, b = r->ops[1][k % n_b].solo_ns;
        if (up_to(seed, 8))
            r->t[k] = dh_pair_time_from_oef(f, b, -0.3 + (double)up_to(seed, 150) / 100,
                                            DH_PAIR_MODELLED);
        else
            r->t[k] = (dh_pair_time){1 + up_to(seed, 2 * f + b + 1), 1 + up_to(seed, f + 2 * b + 1),
                                     DH_PAIR_MEASURED};
    }
    r->o = (dh_pair_options)DH_PAIR_OPTIONS_INIT;
#define X(field, doc) r->o.field = up_to(seed, 4) > 0;
    DH_PAIR_SWITCH_LIST(X)
#undef X
    r->o.max_segment = 1 + (int32_t)up_to(seed, 4);
}

/* Brute force: every order of both strands, every cut, by plain recursion. */
typedef struct brute {
    const random_problem *r;
    int32_t f[16], b[16]; /* orders */
    int64_t best, best_given;
} brute;

static bool may_follow(const brute *s, int side, const int32_t *order, int32_t n, int32_t k)
{
    const dh_pair_strand strand = side ? s->r->p.b : s->r->p.f;
    const dh_pair_op *o = &strand.ops[k];
    bool done[16] = {false};
    for (int32_t i = 0; i < n; i++) done[order[i]] = true;
    if (done[k]) return false;
    for (int32_t i = 0; i < o->n_preds; i++)
        if (!done[o->preds[i]]) return false;
    if (s->r->o.move_wgrad) return true;
    for (int32_t i = 0; i + 1 < strand.n; i++) /* fixed ones stay between their neighbours */
        if (i + 1 == k && (strand.ops[i].movable || strand.ops[k].movable) && !done[i])
            return false;
    return true;
}

static int64_t brute_cuts(const brute *s, int32_t i, int32_t j, char last)
{
    const dh_pair_problem *p = &s->r->p;
    if (i == p->f.n && j == p->b.n) return 0;
    int64_t best = INT64_MAX / 2;
    if (i < p->f.n) {
        const int64_t ns = p->f.ops[s->f[i]].solo_ns + (last == 'f' ? 0 : p->round_ns);
        best = DH_MIN(best, ns + brute_cuts(s, i + 1, j, 'f'));
    }
    if (j < p->b.n) {
        const int64_t ns = p->b.ops[s->b[j]].solo_ns + (last == 'b' ? 0 : p->round_ns);
        best = DH_MIN(best, ns + brute_cuts(s, i, j + 1, 'b'));
    }
    for (int32_t a = 1; a <= s->r->o.max_segment && i + a <= p->f.n; a++)
        for (int32_t c = 1; c <= s->r->o.max_segment && j + c <= p->b.n; c++) {
            const int64_t ns = pair_coexecute(p, &s->r->o, s->f + i, a, s->b + j, c, NULL, NULL);
            if (ns < 0) continue;
            best = DH_MIN(best, p->round_ns + ns + brute_cuts(s, i + a, j + c, 'p'));
        }
    return best;
}

static void brute_orders(brute *s, int32_t n_f, int32_t n_b, bool given)
{
    const dh_pair_problem *p = &s->r->p;
    if (n_f < p->f.n || n_b < p->b.n) {
        const int side = n_f == p->f.n;
        int32_t *order = side ? s->b : s->f, at = side ? n_b : n_f;
        for (int32_t k = 0; k < (side ? p->b.n : p->f.n); k++) {
            if (!may_follow(s, side, order, at, k)) continue;
            order[at] = k;
            brute_orders(s, n_f + !side, n_b + side, given && k == at);
        }
        return;
    }
    const int64_t ns = brute_cuts(s, 0, 0, 0);
    s->best = DH_MIN(s->best, ns);
    if (given) s->best_given = ns;
}

static void check_sums(const random_problem *r, const dh_pair_plan *plan)
{
    const dh_pair_exposure *e = &plan->exposed;
    assert_int_equal(plan->makespan_ns, plan->work_ns[DH_ENGINE_COMPUTE] + e->dependency_ns +
                                            e->contention_ns + e->launch_ns);
    assert_int_equal(e->launch_ns, plan->n_rounds * r->p.round_ns);
}

static void exact_is_brute_force(void **state)
{
    uint64_t seed = test_seed("exact_is_brute_force");
    int n_reordered = 0;
    for (int k = 0; k < 2000; k++) {
        random_problem r = {0};
        random_problem_make(&seed, 1 + (int32_t)up_to(&seed, 4), 1 + (int32_t)up_to(&seed, 4), &r);
        brute s = {.r = &r, .best = INT64_MAX, .best_given = INT64_MAX};
        brute_orders(&s, 0, 0, true);
        dh_pair_plan *exact = make("exact", &r.p, &r.o), *dp = make("dp", &r.p, &r.o);
        if (exact->makespan_ns != s.best || dp->makespan_ns != s.best_given)
            fail_msg("problem %d: exact %lld, brute force %lld; dp %lld, brute force %lld", k,
                     (long long)exact->makespan_ns, (long long)s.best, (long long)dp->makespan_ns,
                     (long long)s.best_given);
        assert_null(exact->note);
        check_sums(&r, exact);
        check_sums(&r, dp);
        n_reordered += exact->makespan_ns < dp->makespan_ns;
        dh_pair_plan_destroy(exact);
        dh_pair_plan_destroy(dp);
    }
    assert_true(n_reordered > 50);
}

static bool same_text(const random_problem *r, const dh_pair_plan *a, const dh_pair_plan *b)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str x = DH_STR_INIT, y = DH_STR_INIT;
    assert_ok(&ctx, pair_plan_draw(&ctx, &r->p, a, &x));
    assert_ok(&ctx, pair_plan_draw(&ctx, &r->p, b, &y));
    const bool same = strcmp(x.text, y.text) == 0;
    dh_str_fini(&x);
    dh_str_fini(&y);
    return same;
}

static void more_search_is_never_worse(void **state)
{
    uint64_t seed = test_seed("more_search_is_never_worse");
    for (int k = 0; k < 150; k++) {
        random_problem r = {0};
        random_problem_make(&seed, (int32_t)up_to(&seed, 9), (int32_t)up_to(&seed, 9), &r);
        r.o.compare = true;
        dh_pair_plan *exact = make("exact", &r.p, &r.o), *again = make("exact", &r.p, &r.o);
        assert_null(exact->note);
        assert_true(same_text(&r, exact, again));
        check_sums(&r, exact);
        int64_t ns[4] = {0};
        static const char *const names[] = {"sequential", "round-robin", "dp", "dp-orders"};
        assert_int_equal(exact->n_others, 4);
        for (int i = 0; i < 4; i++) {
            assert_string_equal(exact->others[i].policy, names[i]);
            ns[i] = exact->others[i].makespan_ns;
        }
        assert_true(exact->makespan_ns <= ns[3] && ns[3] <= ns[2]);
        assert_true(ns[2] <= ns[1] && ns[2] <= ns[0]);
        assert_int_equal(ns[0], exact->sequential_ns);
        /* Allowing more never costs. */
#define X(field, doc)                                                                              \
    {                                                                                              \
        dh_pair_options o = r.o;                                                                   \
        o.field = true;                                                                            \
        assert_true(makespan("exact", &r.p, &o) <= exact->makespan_ns);                            \
    }
        DH_PAIR_SWITCH_LIST(X)
#undef X
        dh_pair_plan_destroy(exact);
        dh_pair_plan_destroy(again);
    }
}

/* ---- switches ------------------------------------------------------------------------------- */

static bool overlap(dh_pair_span a, dh_pair_span b)
{
    return a.start_ns < b.end_ns && b.start_ns < a.end_ns;
}

/* Whether operators of these classes run at the same time anywhere. */
static bool runs_beside(const dh_pair_problem *p, const dh_pair_plan *plan,
                        bool (*both)(dh_engine f, dh_engine b))
{
    for (int32_t f = 0; f < p->f.n; f++)
        for (int32_t b = 0; b < p->b.n; b++)
            if (both(p->f.ops[f].engine, p->b.ops[b].engine) &&
                overlap(plan->f_span[f], plan->b_span[b]))
                return true;
    return false;
}

static bool some_local(dh_engine f, dh_engine b)
{
    return f == DH_ENGINE_LOCAL || b == DH_ENGINE_LOCAL;
}
static bool some_cross(dh_engine f, dh_engine b)
{
    return f == DH_ENGINE_CROSS || b == DH_ENGINE_CROSS;
}
static bool both_comm(dh_engine f, dh_engine b)
{
    return f != DH_ENGINE_COMPUTE && b != DH_ENGINE_COMPUTE;
}

/* The paper's ablation on a real layer: each switch does what it says, and helps. */
static void switches_on_a_layer(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static pairing_case c;
    assert_ok(&ctx, case_make(&ctx, true, NULL, 10000, &c));
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    o.max_segment = 2;
    o.overlap_local = o.overlap_cross = o.overlap_comm_comm = o.move_wgrad = false;
    bool *const switches[] = {&o.overlap_local, &o.overlap_cross, &o.overlap_comm_comm,
                              &o.move_wgrad};
    int64_t before = INT64_MAX;
    for (size_t k = 0; k <= DH_COUNTOF(switches); k++) {
        dh_pair_plan *plan = make("exact", &c.problem, &o);
        assert_null(plan->note);
        assert_true(plan->makespan_ns <= before);
        if (k != 3) assert_true(plan->makespan_ns < before);
        before = plan->makespan_ns;
        assert_true(k > 0 || !runs_beside(&c.problem, plan, some_local));
        assert_true(k > 1 || !runs_beside(&c.problem, plan, some_cross));
        assert_true(k > 2 || !runs_beside(&c.problem, plan, both_comm));
        assert_true(k < 3 || runs_beside(&c.problem, plan, both_comm));
        for (int32_t i = 1; k < 4 && i < c.problem.b.n; i++) /* in their place */
            if (c.b[i].movable) assert_true(plan->b_span[i - 1].end_ns <= plan->b_span[i].start_ns);
        dh_pair_plan_destroy(plan);
        if (k < DH_COUNTOF(switches)) *switches[k] = true;
    }
}

static void published_costs_on_a_layer(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_oef_matrix *m;
    static pairing_case c;
    assert_ok(&ctx, dh_oef_matrix_read(&ctx, MATRIX, &m));
    assert_ok(&ctx, case_make(&ctx, false, m, 10000, &c));
    dh_pair_plan *plan = make("exact", &c.problem, NULL);
    assert_null(plan->note);
    assert_int_equal(plan->f_span ? c.problem.f.n : 0, 14);
    assert_int_equal(c.problem.b.n, 18);
    assert_true(plan->n_pairs[DH_PAIR_IMPORTED] > 0);
    const int64_t exposed =
        plan->exposed.dependency_ns + plan->exposed.contention_ns + plan->exposed.launch_ns;
    assert_true(exposed * 5 < plan->communication_ns); /* four fifths hidden, as published */
    assert_true(plan->makespan_ns < makespan("dp", &c.problem, NULL));
    assert_true(makespan("dp", &c.problem, NULL) < makespan("round-robin", &c.problem, NULL));
    dh_pair_plan_destroy(plan);
    dh_oef_matrix_destroy(m);
}

/* ---- limits --------------------------------------------------------------------------------- */

static void too_much_for_exact_falls_back(void **state)
{
    static pairing_case c;
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, case_make(&ctx, false, NULL, 10000, &c));
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    const int64_t orders = makespan("dp-orders", &c.problem, &o);
    const int64_t full = makespan("exact", &c.problem, &o);

    o.max_states = 1000; /* 3900 are needed */
    dh_pair_plan *plan = make("exact", &c.problem, &o);
    assert_non_null(strstr(plan->note, "max_states = 1000 states: dp-orders instead"));
    assert_int_equal(plan->makespan_ns, orders);
    dh_pair_plan_destroy(plan);

    o = (dh_pair_options)DH_PAIR_OPTIONS_INIT;
    o.max_moves = 3000000; /* enough for segments of 3 */
    plan = make("exact", &c.problem, &o);
    assert_non_null(strstr(plan->note, "for segments of 4 operators: the better of exact with 3"));
    dh_pair_options shorter = DH_PAIR_OPTIONS_INIT;
    shorter.max_segment = 3;
    assert_int_equal(plan->makespan_ns, DH_MIN(makespan("exact", &c.problem, &shorter), orders));
    assert_true(plan->makespan_ns >= full);
    dh_pair_plan_destroy(plan);

    o.max_moves = 1;
    plan = make("exact", &c.problem, &o);
    assert_non_null(strstr(plan->note, "max_moves = 1 moves: dp-orders instead"));
    assert_int_equal(plan->makespan_ns, orders);
    dh_pair_plan_destroy(plan);
}

static void many_operators(void **state)
{
    enum { N = 100 };
    static dh_pair_op f[N], b[N];
    static dh_pair_time t[N * N];
    for (int k = 0; k < N; k++) {
        f[k] = op("f", k % 2 ? DH_ENGINE_COMPUTE : DH_ENGINE_LOCAL, 100);
        b[k] = op("b", k % 2 ? DH_ENGINE_LOCAL : DH_ENGINE_COMPUTE, 100);
    }
    for (int k = 0; k < N * N; k++)
        t[k] = dh_pair_time_from_oef(100, 100, (k / N + k % N) % 2 ? 0 : 1, DH_PAIR_MODELLED);
    const dh_pair_problem p = {{f, N}, {b, N}, t, 0};
    dh_pair_plan *plan = make("exact", &p, NULL);
    assert_non_null(strstr(plan->note, "at most 64 operators"));
    assert_int_equal(plan->makespan_ns, 100 * N); /* everything is hidden */
    assert_int_equal(plan->bound_ns, 100 * N);
    dh_pair_plan_destroy(plan);

    /* 40 operators in any order: 2^40 sets are counted only up to the limit. */
    const dh_pair_problem wide = {{f, 40}, {b, 2}, t, 0};
    plan = make("exact", &wide, NULL);
    assert_non_null(strstr(plan->note, "max_states"));
    dh_pair_plan_destroy(plan);
}

static void empty_strands(void **state)
{
    const dh_pair_op f[] = {op("f", DH_ENGINE_COMPUTE, 5), op("g", DH_ENGINE_LOCAL, 6)};
    const dh_pair_problem one = {{f, 2}, {NULL, 0}, NULL, 2},
                          none = {{NULL, 0}, {NULL, 0}, NULL, 2};
    size_t n;
    const dh_pair_policy *rows = pair_policies(&n);
    for (size_t k = 0; k < n; k++) {
        assert_int_equal(makespan(rows[k].name, &one, NULL), 13);
        assert_int_equal(makespan(rows[k].name, &none, NULL), 0);
    }
}

/* As many operators as an exact search takes: nothing is searched, and whatever waits for another
 * comes after it. */
static void a_strand_alone_needs_no_search(void **state)
{
    enum { N = DH_PAIR_MAX_EXACT_OPS };
    static const int32_t second[] = {1};
    dh_pair_op ops[N];
    for (int32_t k = 0; k < N; k++) ops[k] = op("x", DH_ENGINE_COMPUTE, 3);
    ops[N - 1].preds = second;
    ops[N - 1].n_preds = 1;
    for (int side = 0; side < 2; side++) {
        const dh_pair_strand all = {ops, N}, none = {NULL, 0};
        const dh_pair_problem p = {side ? none : all, side ? all : none, NULL, 7};
        dh_pair_plan *plan = make("exact", &p, NULL);
        assert_int_equal(plan->makespan_ns, 3 * N + 7);
        assert_int_equal(plan->n_states, 0);
        assert_null(plan->note);
        dh_pair_plan_destroy(plan);
    }
}

/* The plan of a problem by the memo, and what the plan says. */
static const dh_pair_plan *known(dh_pair_memo *memo, const char *name, const dh_pair_problem *p,
                                 const dh_pair_options *o)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_pair_plan *plan;
    assert_ok(&ctx, dh_pair_memo_get(&ctx, memo, policy(name), p, o, &plan));
    assert_ok(&ctx, pair_plan_validate(&ctx, p, o, plan));
    assert_int_equal(plan->makespan_ns, makespan(name, p, o));
    return plan;
}

static void plans_are_known_by_their_problems(void **state)
{
    dh_pair_op f[2], b[2], g[2], c[2];
    dh_pair_time t[4], u[4];
    dh_pair_problem p, q;
    hand_problem(f, b, t, &p);
    hand_problem(g, c, u, &q);
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    dh_pair_memo *memo = dh_pair_memo_create(), *other = dh_pair_memo_share(memo);
    const dh_pair_plan *first = known(memo, "exact", &p, &o);
    dh_pair_memo_destroy(memo);
    g[0].name = "another name";
    assert_ptr_equal(known(other, "exact", &q, &o), first);

    assert_ptr_not_equal(known(other, "dp", &p, &o), first);
    o.overlap_local = false;
    assert_ptr_not_equal(known(other, "exact", &p, &o), first);
    o = (dh_pair_options)DH_PAIR_OPTIONS_INIT;
    o.max_segment = 1;
    assert_ptr_not_equal(known(other, "exact", &p, &o), first);
    o = (dh_pair_options)DH_PAIR_OPTIONS_INIT;
    q.round_ns = 1;
    assert_ptr_not_equal(known(other, "exact", &q, &o), first);
    q.round_ns = 0;
    u[3].b_ns++;
    assert_ptr_not_equal(known(other, "exact", &q, &o), first);
    u[3].b_ns--;
    c[1].solo_ns--;
    assert_ptr_not_equal(known(other, "exact", &q, &o), first);
    c[1].solo_ns++;
    c[1].movable = true;
    assert_ptr_not_equal(known(other, "exact", &q, &o), first);
    c[1].movable = false;
    g[1].n_preds = 0;
    assert_ptr_not_equal(known(other, "exact", &q, &o), first);
    g[1].n_preds = 1;
    assert_ptr_equal(known(other, "exact", &q, &o), first);

    /* What cannot be planned leaves nothing behind. */
    dh_ctx ctx = DH_CTX_INIT;
    const dh_pair_plan *plan;
    o.max_segment = 0;
    assert_fails(&ctx, dh_pair_memo_get(&ctx, other, policy("exact"), &p, &o, &plan), DH_EINVAL,
                 "segment");
    assert_fails(&ctx, dh_pair_memo_get(&ctx, other, policy("exact"), &p, &o, &plan), DH_EINVAL,
                 "segment");
    dh_pair_memo_destroy(other);
}

/* Three independent operators: 8 sets, 27 - 8 edges, 3 + 3*2 + 6 orders; one: 2, 1 and 1. */
static void search_looks_at_each_move_once(void **state)
{
    const dh_pair_op f[] = {op("f", DH_ENGINE_COMPUTE, 5), op("g", DH_ENGINE_LOCAL, 6),
                            op("h", DH_ENGINE_CROSS, 7)};
    const dh_pair_time t[] = {{9, 9, 0}, {9, 9, 0}, {9, 9, 0}};
    const dh_pair_problem p = {{f, 3}, {f, 1}, t, 0};
    dh_pair_plan *plan = make("exact", &p, NULL);
    assert_int_equal(plan->n_states, 8 * 2);
    assert_int_equal(plan->n_moves, 19 * 1 + 64 * 15 * 1);
    dh_pair_plan_destroy(plan);
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* Refused before its times are read: it has none. */
static dh_pair_problem long_strands(int32_t n_f, int32_t n_b)
{
    static dh_pair_op ops[DH_PAIR_MAX_OPS];
    for (int32_t i = 0; i < DH_PAIR_MAX_OPS; i++) ops[i] = op("x", DH_ENGINE_COMPUTE, 1);
    return (dh_pair_problem){{ops, n_f}, {ops, n_b}, NULL, 0};
}

static void broken_problems_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pair_op f[2], b[2];
    dh_pair_time t[4];
    dh_pair_problem p;
    dh_pair_plan *plan;
    static const int32_t pred_1[] = {1};
    const dh_pair_policy *row = policy("dp");
    hand_problem(f, b, t, &p);
    b[1].preds = pred_1;
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL,
                 "backward operator b2 (number 1) needs number 1");
    hand_problem(f, b, t, &p);
    f[0].solo_ns = -1;
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL,
                 "forward operator f1 takes -1 ns");
    hand_problem(f, b, t, &p);
    f[0].name = "";
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL, "no name");
    hand_problem(f, b, t, &p);
    t[2].b_ns = 0;
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL,
                 "f2 beside b1 end after 12 and 0 ns");
    hand_problem(f, b, t, &p);
    p.round_ns = -4;
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL, "costs -4 ns");
    hand_problem(f, b, t, &p);
    p.f.n = DH_PAIR_MAX_OPS + 1;
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL, "8193 forward");
    p = long_strands(2049, 2048);
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, NULL, &plan), DH_EINVAL,
                 "2049 forward beside 2048 backward operators");
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    o.max_segment = DH_PAIR_MAX_SEGMENT + 1;
    hand_problem(f, b, t, &p);
    assert_fails(&ctx, dh_pair_plan_make(&ctx, row, &p, &o, &plan), DH_EINVAL, "at most 9");
    assert_fails(&ctx, dh_pair_policy_find(&ctx, "exat", &row), DH_EMISSING,
                 "did you mean \"exact\"");
}

static void broken_plans_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pair_op f[2], b[2];
    dh_pair_time t[4];
    dh_pair_problem p;
    hand_problem(f, b, t, &p);
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    o.max_segment = 1;
    dh_pair_plan *plan = make("dp", &p, &o);
    const dh_pair_round kept = plan->rounds[0];
    static const int32_t second[] = {1}, both[] = {0, 1};
#define BREAK(field, value, part)                                                                  \
    plan->rounds[0].field = value;                                                                 \
    assert_fails(&ctx, pair_plan_validate(&ctx, &p, &o, plan), DH_EINVAL, part);                   \
    plan->rounds[0] = kept
    BREAK(f_ops, second, "round 0: forward operator f2 runs before f1");
    BREAK(end_ns, 11, "round 0: from 0 to 11 ns; 0 to 10 are predicted");
    plan->rounds[0].n_f = 2;
    BREAK(f_ops, both, "round 0: segments of 2 and 1 operators; at most 1");
#undef BREAK
    plan->f_span[0].end_ns++;
    assert_fails(&ctx, pair_plan_validate(&ctx, &p, &o, plan), DH_EINVAL, "f1 from 0 to 11 ns");
    plan->f_span[0].end_ns--;
    plan->n_rounds = 1;
    assert_fails(&ctx, pair_plan_validate(&ctx, &p, &o, plan), DH_EINVAL,
                 "forward operator f2 is in no round");
    plan->n_rounds = 2;
    o.overlap_local = false;
    assert_fails(&ctx, pair_plan_validate(&ctx, &p, &o, plan), DH_EINVAL, "overlap that may not");
    dh_pair_plan_destroy(plan);
    dh_pair_plan_destroy(NULL);
}

/* ---- drawing ------------------------------------------------------------------------------- */

static void drawing(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pair_op f[2], b[2];
    dh_pair_time t[4];
    dh_pair_problem p;
    hand_problem(f, b, t, &p);
    for (int k = 0; k < 2; k++) {
        f[k].solo_ns *= 1000;
        b[k].solo_ns *= 1000;
    }
    for (int k = 0; k < 4; k++)
        t[k] = (dh_pair_time){1000 * t[k].f_ns, 1000 * t[k].b_ns, t[k].source};
    p.round_ns = 1000;
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    o.max_segment = 1;
    o.compare = true;
    dh_pair_plan *plan = make("exact", &p, &o);
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, pair_plan_draw(&ctx, &p, plan, &text));
    static const char *const want =
        "exact: 2 forward and 2 backward operators in 2 rounds, 24.0 us\n"
        "  one after the other 38.0 us (36.8 % saved); bound 22.0 us (compute 22.0, local 14.0, "
        "cross 0.0)\n"
        "  communication 14.0 us, exposed 2.0 us (14.3 %): nothing beside it 0.0, contention 0.0, "
        "launch 2.0\n"
        "  pairs of operators beside each other: 0 measured, 0 imported, 2 modelled\n"
        "  searched 9 states, 260 moves\n"
        "  forward  |   ==============================   ------------------                  |\n"
        "  backward |   ------------------------         ====================================|\n"
        "  rounds   |^                                ^                                      |\n"
        "  = compute, - local, ~ cross\n"
        "round  start us    forward, us, slow-down    |   backward, us, slow-down    exposed: "
        "alone contention launch\n"
        "   1        0.0  = f1             10.0 x1.00 | - b1              8.0 x1.00        0.0     "
        "   0.0    1.0\n"
        "   2       11.0  - f2              6.0 x1.00 | = b2             12.0 x1.00        0.0     "
        "   0.0    1.0\n"
        "  other sequential         38.0 us (+58.3 %)\n"
        "        round-robin        24.0 us (+0.0 %)\n"
        "        dp                 24.0 us (+0.0 %)\n"
        "        dp-orders          24.0 us (+0.0 %)\n";
    assert_string_equal(text.text, want);
    dh_str_fini(&text);
    dh_pair_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_takes_what_was_measured),
        cmocka_unit_test(segments_go_on_at_new_rates),
        cmocka_unit_test(operators_without_time_end_at_once),
        cmocka_unit_test(switches_forbid_by_the_timeline),
        cmocka_unit_test(oef_and_back),
        cmocka_unit_test(modelled_oef_is_symmetric),
        cmocka_unit_test(published_matrix_loads),
        cmocka_unit_test(broken_matrices_are_refused),
        cmocka_unit_test(dp_is_equation_2),
        cmocka_unit_test(exposure_has_causes),
        cmocka_unit_test(exact_is_brute_force),
        cmocka_unit_test(more_search_is_never_worse),
        cmocka_unit_test(switches_on_a_layer),
        cmocka_unit_test(published_costs_on_a_layer),
        cmocka_unit_test(too_much_for_exact_falls_back),
        cmocka_unit_test(many_operators),
        cmocka_unit_test(empty_strands),
        cmocka_unit_test(a_strand_alone_needs_no_search),
        cmocka_unit_test(plans_are_known_by_their_problems),
        cmocka_unit_test(search_looks_at_each_move_once),
        cmocka_unit_test(broken_problems_are_refused),
        cmocka_unit_test(broken_plans_are_found),
        cmocka_unit_test(drawing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
