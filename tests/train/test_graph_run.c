/* Programs written by hand on real ranks, against numbers worked out here. */
#include "graph_programs.h"

enum { ROWS = 4, WIDE = 6, COLS = 8 };

/* y = x + sum over ranks of gelu(x w1^T) w2^T, each rank with its own w1 and w2. */
#define MLP                                                                                        \
    "dhelix.graph v2 program train f32\ndims act=gelu_tanh\n"                                      \
    "%0:x range f32[4 tokens, 6 width] slot=0\n%1:own1 range f32[8 ffn, 6 width] slot=1\n"         \
    "%2:own2 range f32[6 width, 8 ffn] slot=2\n%3:h act f32[4, 8]\n%4:g act f32[4, 8]\n"           \
    "%5:p act f32[4, 6]\n%6:s act f32[4, 6]\n%7:y act f32[4, 6]\n"                                 \
    "F %3 = linear(%0, %1)\nF %4 = activation(%3)\nF %5 = linear(%4, %2)\n"                        \
    "F %6 = all_reduce(%5) {group=tp}\nF %7 = residual(%0, %6)\n"

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static void add_rank(const test_program *p, int64_t rank, double y[ROWS][WIDE])
{
    char name[2][16];
    snprintf(name[0], sizeof name[0], "own1@%lld", (long long)rank);
    snprintf(name[1], sizeof name[1], "own2@%lld", (long long)rank);
    float x[ROWS][WIDE], w1[COLS][WIDE], w2[WIDE][COLS];
    memcpy(x, dh_st_find(p->given, "x")->data, sizeof x);
    memcpy(w1, dh_st_find(p->given, name[0])->data, sizeof w1);
    memcpy(w2, dh_st_find(p->given, name[1])->data, sizeof w2);
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < COLS; h++) {
            double sum = 0;
            for (int c = 0; c < WIDE; c++) sum += (double)x[r][c] * (double)w1[h][c];
            for (int c = 0; c < WIDE; c++) y[r][c] += gelu(sum) * (double)w2[c][h];
        }
    for (int r = 0; rank == 0 && r < ROWS; r++)
        for (int c = 0; c < WIDE; c++) y[r][c] += (double)x[r][c];
}

static void ranks_compute_a_layer(void **state)
{
    static const char *const settings[] = {"parallel.tp=2", "parallel.tp=4",
                                           "parallel.tp=2 device=staged",
                                           "parallel.tp=4 topology.nodes=2"};
    for (size_t i = 0; i < DH_COUNTOF(settings); i++) {
        test_program p;
        double want[ROWS][WIDE] = {{0}};
        program_run(&p, MLP, settings[i], "", 5);
        for (int64_t r = 0; r < p.run.mesh.ranks; r++) add_rank(&p, r, want);
        for (int64_t r = 0; r < p.run.mesh.ranks; r++) {
            const float *y = program_left(&p, "y", r);
            for (int e = 0; e < ROWS * WIDE; e++)
                assert_true(fabs((double)y[e] - want[e / WIDE][e % WIDE]) < 1e-5);
        }
        program_fini(&p);
    }
}

/* Every rank adds up what the others hold; the second group crosses the first. */
#define SUMS                                                                                       \
    "dhelix.graph v2 program train f32\n"                                                          \
    "%0:own range f32[4] slot=0\n%1:a act f32[4]\n%2:b act f32[2]\n%3:c act f32[4]\n"              \
    "F %1 = all_reduce(%0) {group=tp}\nF %2 = reduce_scatter(%0) {group=dp}\n"                     \
    "F %3 = all_gather(%2) {group=dp}\n"

static void groups_cross(void **state)
{
    test_program p;
    float own[4][4];
    program_run(&p, SUMS, "parallel.tp=2 parallel.dp=2", "", 9);
    for (int r = 0; r < 4; r++) {
        char name[16];
        snprintf(name, sizeof name, "own@%d", r);
        memcpy(own[r], dh_st_find(p.given, name)->data, sizeof own[r]);
    }
    for (int r = 0; r < 4; r++) {
        const float *a = program_left(&p, "a", r), *c = program_left(&p, "c", r);
        for (int e = 0; e < 4; e++) {
            assert_true(a[e] == own[r & ~1][e] + own[r | 1][e]);
            assert_true(c[e] == own[r & 1][e] + own[(r & 1) + 2][e]);
        }
    }
    program_fini(&p);
}

/* A whole that is longer than the operand is cut in the order of the group. */
static void wholes_are_cut(void **state)
{
    static const char text[] = "dhelix.graph v2 program train f32\n"
                               "%0:x range f32[2, 3] slot=0\n%1:y act f32[2, 3]\n"
                               "F %1 = copy(%0)\n";
    static const struct {
        int64_t shape[2];
        int at[4][2]; /* by rank: first row and column */
    } cases[] = {{{2, 3}, {{0, 0}, {0, 0}, {0, 0}, {0, 0}}},
                 {{8, 3}, {{0, 0}, {2, 0}, {4, 0}, {6, 0}}},
                 {{2, 12}, {{0, 0}, {0, 3}, {0, 6}, {0, 9}}}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        float whole[24];
        char file[300];
        test_program p;
        dh_st_writer *w;
        dh_safetensors *st;
        const int64_t *shape = cases[i].shape;
        for (int e = 0; e < 24; e++) whole[e] = (float)e;
        snprintf(file, sizeof file, "%s/whole.safetensors", programs_dir);
        assert_ok(&ctx, dh_st_writer_create(&ctx, &w));
        assert_ok(&ctx, dh_st_writer_declare(&ctx, w, "x", DH_ST_F32, 2, shape));
        assert_ok(&ctx, dh_st_writer_start(&ctx, w, file, DH_ST_CREATE));
        assert_ok(&ctx, dh_st_writer_put(&ctx, w, "x", 0, whole,
                                         (size_t)(shape[0] * shape[1]) * sizeof(float)));
        assert_ok(&ctx, dh_st_writer_finish(&ctx, w));
        dh_st_writer_destroy(w);
        assert_ok(&ctx, dh_st_open(&ctx, file, &st));
        program_run(&p, text, "parallel.tp=4", "", 1);
        assert_ok(&ctx, dh_graph_run_give(&ctx, &p.run, st, file));
        for (size_t k = 0; k < 4 * p.run.ios.n; k++) {
            free(p.run.left[k]);
            p.run.left[k] = NULL;
        }
        assert_ok(&ctx, dh_graph_run_start(&ctx, &p.run));
        for (int64_t r = 0; r < 4; r++) {
            const float *y = program_left(&p, "y", r);
            for (int e = 0; e < 6; e++) {
                const int64_t row = cases[i].at[r][0] + e / 3, col = cases[i].at[r][1] + e % 3;
                assert_true(y[e] == whole[row * shape[1] + col]);
            }
        }
        dh_st_close(st);
        program_fini(&p);
    }
}

/* A parameter that is updated is given and left; a gradient is only left. */
static void an_optimizer_step(void **state)
{
    static const char text[] =
        "dhelix.graph v2 program train f32\n"
        "%0:p range f32[8] slot=0\n%1:m range f32[8] slot=1\n%2:square range f32[8] slot=2\n"
        "%3:own range f32[8] slot=3\n%4:g act f32[8]\n%5:sq act f64[1, 20]\n%6:n act f64[1, 2]\n"
        "O %4 = all_reduce(%3) {group=dp}\nO %5 = sqsum(%4)\nO %6 = clip(%5)\n"
        "O %0, %1, %2 = adamw(%4, %6)\n";
    test_program p;
    program_run(&p, text,
                "parallel.dp=2 optimizer.lr=0.1 optimizer.grad_clip=0 optimizer.weight_decay=0", "",
                3);
    float before[8], m[8], v[8], g[2][8];
    memcpy(before, dh_st_find(p.given, "p")->data, sizeof before);
    memcpy(m, dh_st_find(p.given, "m")->data, sizeof m);
    memcpy(v, dh_st_find(p.given, "square")->data, sizeof v);
    memcpy(g[0], dh_st_find(p.given, "own@0")->data, sizeof g[0]);
    memcpy(g[1], dh_st_find(p.given, "own@1")->data, sizeof g[1]);
    const float *after = program_left(&p, "p", 1);
    for (int e = 0; e < 8; e++) {
        const double sum = (double)g[0][e] + (double)g[1][e];
        const double b1 = p.job->beta1, b2 = p.job->beta2;
        const double mh = (b1 * (double)m[e] + (1 - b1) * sum) / (1 - b1);
        const double vh = (b2 * (double)v[e] + (1 - b2) * sum * sum) / (1 - b2);
        const double want = (double)before[e] - 0.1 * mh / (sqrt(vh) + p.job->eps);
        assert_true(fabs((double)after[e] - want) < 1e-5);
    }
    program_fini(&p);
}

static dh_status prepare(dh_ctx *ctx, const char *text, const char *settings)
{
    dh_graph_text read = {.file = "mine.graph"};
    dh_graph_run run = {.job = NULL};
    const dh_graph_run_options how = {.quiet = true};
    dh_job *job = program_job(settings);
    assert_ok(ctx, dh_graph_parse_lines(ctx, text, strlen(text), &read.graph, &read.lines));
    const dh_status st = dh_graph_run_prepare(ctx, job, &read, &how, &run);
    dh_graph_run_fini(&run);
    dh_graph_text_fini(&read);
    dh_job_destroy(job);
    return st;
}

static void faults_name_line_and_operand(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static const char text[] = "dhelix.graph v2 program train f32\n# a comment\n"
                               "%0:x range f32[4, 3] slot=0\n%1:y act f32[4, 3]\n"
                               "%2:z act f32[8, 3]\n\n"
                               "F %1 = all_reduce(%0) {group=tp}\n"
                               "F %2 = all_gather(%1) {group=tp}\n";
    assert_ok(&ctx, prepare(&ctx, text, "parallel.tp=2"));
    assert_fails(&ctx, prepare(&ctx, text, "parallel.tp=4"), DH_EINVAL,
                 "while reading mine.graph, line 8: op 1 all_gather: operand y is z f32[8, 3]; it "
                 "must be f32 [16, 3]");
    assert_fails(&ctx, prepare(&ctx, text, "parallel.dp=4"), DH_EINVAL,
                 "line 7: op 0 all_reduce goes over group tp, which has one rank here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_compute_a_layer),
        cmocka_unit_test(groups_cross),
        cmocka_unit_test(wholes_are_cut),
        cmocka_unit_test(an_optimizer_step),
        cmocka_unit_test(faults_name_line_and_operand),
    };
    return cmocka_run_group_tests(tests, programs_make_dir, programs_drop_dir);
}
