/* Every mesh of 2, 4 and 8 ranks, on threads: data, expert, tensor, context and pipeline
 * parallelism in all products, with ZeRO-1 where there is something to share, for each family of
 * models. 20 steps on real text come to one rank's losses, and a second run to the same bits. */
#include "ranks.h"

static char one_out[300], out[300], again[300];

/* Sizes that all degrees up to 8 divide; the vocabulary, which none does. */
static const struct {
    const char *name, *model;
} families[] = {
    {"gpt2", "model: {family: gpt2, n_layers: 8, width: 32, n_heads: 8, vocab: 65, max_seq: 32}\n"},
    {"llama", "model: {family: llama, n_layers: 8, width: 32, n_heads: 8, n_kv_heads: 8, "
              "head_dim: 4, ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false}\n"},
    {"mixtral", "model: {family: mixtral, n_layers: 8, width: 32, n_heads: 8, n_kv_heads: 8, "
                "head_dim: 4, ffn_width: 40, n_experts: 8, top_k: 2, router_aux_coef: 0, "
                "vocab: 65, max_seq: 32, tied_head: false}\n"},
};

typedef struct mesh {
    int dp, tp, cp, pp, ep;
    bool zero1;
} mesh;

typedef struct totals {
    const char *model;
    run_curve one;
    int n_meshes;
    double worst;
    char worst_mesh[200];
} totals;

static void check_mesh(totals *t, const mesh *m)
{
    char settings[200];
    run_curve curve, second;
    snprintf(settings, sizeof settings,
             "parallel.dp=%d parallel.tp=%d parallel.cp=%d parallel.pp=%d parallel.ep=%d "
             "parallel.zero=%d moe.capacity=8",
             m->dp, m->tp, m->cp, m->pp, m->ep, m->zero1);
    run_curve_of(t->model, settings, out, &curve);
    run_compared_of(t->model, settings, again, &second);
    const double d = run_distance(&t->one, &curve, 0);
    if (!(d <= run_tolerance(DH_F32))) fail_msg("%s: losses differ by %g", settings, d);
    if (run_distance(&curve, &second, 0) != 0 || !run_same_bytes(out, again, 20))
        fail_msg("%s: a second run differs", settings);
    if (d >= t->worst) snprintf(t->worst_mesh, sizeof t->worst_mesh, "%s", settings);
    t->worst = fmax(t->worst, d);
    t->n_meshes++;
    run_remove(out);
    run_remove(again);
}

/* Expert parallelism lies inside data parallelism. */
static void check_experts(totals *t, mesh m, int n_experts)
{
    for (m.ep = 1; m.ep <= (n_experts ? m.dp : 1); m.ep *= 2)
        for (int zero1 = 0; zero1 <= (m.dp * m.cp > 1); zero1++) {
            m.zero1 = zero1;
            check_mesh(t, &m);
        }
}

static void check_family(size_t family, int n_experts)
{
    totals t = {.model = families[family].model};
    run_curve_of(t.model, "ranks=1", one_out, &t.one);
    assert_true(t.one.n == 20 && t.one.loss[19] < t.one.loss[0] - 0.5);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int tp = 1; tp <= ranks; tp *= 2)
            for (int cp = 1; cp * tp <= ranks; cp *= 2)
                for (int pp = 1; pp * cp * tp <= ranks; pp *= 2)
                    check_experts(
                        &t, (mesh){.dp = ranks / (tp * cp * pp), .tp = tp, .cp = cp, .pp = pp},
                        n_experts);
    printf("  %s: %d meshes, losses differ by %.2g at most (%s)\n", families[family].name,
           t.n_meshes, t.worst, t.worst_mesh);
    run_remove(one_out);
}

static void gpt2_on_every_mesh(void **state)
{
    check_family(0, 0);
}

static void llama_on_every_mesh(void **state)
{
    check_family(1, 0);
}

static void mixtral_on_every_mesh(void **state)
{
    check_family(2, 8);
}

static int make_folder(void **state)
{
    run_make_dir(state);
    run_folder(one_out, sizeof one_out, "one");
    run_folder(out, sizeof out, "mesh");
    run_folder(again, sizeof again, "again");
    return 0;
}

/* Of the family that is named, or all. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_on_every_mesh),
        cmocka_unit_test(llama_on_every_mesh),
        cmocka_unit_test(mixtral_on_every_mesh),
    };
    char pattern[40];
    if (argc > 1) {
        size_t i = 0;
        while (i < DH_COUNTOF(families) && strcmp(argv[1], families[i].name) != 0) i++;
        if (i == DH_COUNTOF(families)) {
            fprintf(stderr, "no family %s: gpt2, llama, mixtral\n", argv[1]);
            return EXIT_FAILURE;
        }
        snprintf(pattern, sizeof pattern, "%s_*", families[i].name);
        cmocka_set_test_filter(pattern);
    }
    return cmocka_run_group_tests(tests, make_folder, run_drop_dir);
}
