/* What a search gives up is made again as it was, memories answer as what they remember, and what
 * is shared is made once: all by counts and bits, none by time. */
#include "dh_test.h"

#include "train/recipe.h"
#include "tune/estimate.h"

/* System megatron-core tells gradients of keys and values from as many bytes of activations. */
static const char text[] = "system: megatron-core\n"
                           "model: {preset: llama3-8b, n_layers: 4}\n"
                           "train: {batch: 8, micro_batch: 1, seq_len: 2048, dtype: bf16}\n"
                           "parallel: {zero: 1}\n";

enum { MOST_ROWS = 20000 };

/* A search of one thread, without its entry: every configuration estimated in turn. */
typedef struct walk {
    dh_job *job;
    dh_cluster *cluster;
    dh_tune_options options;
    tuner t;
    char no_split[1];
    bool forgets;             /* behind every unit */
    size_t n_made, most_made; /* blocks: in all, at once */
    dh_tune_row *rows;        /* [n_rows] */
    size_t n_rows;
} walk;

static void open_walk(walk *w, bool forgets)
{
    dh_ctx ctx = DH_CTX_INIT;
    *w = (walk){.forgets = forgets, .rows = calloc(MOST_ROWS, sizeof *w->rows)};
    assert_non_null(w->rows);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "test", NULL, NULL, 0, &w->job));
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &w->cluster));
    w->options = (dh_tune_options){.cluster = w->cluster,
                                   .devices = 4,
                                   .strategies = "sequential,list",
                                   .schedules = "1f1b,interleaved-1f1b"};
    w->t = (tuner){.options = &w->options,
                   .own_split = w->no_split,
                   .memory_bytes = 1e18,
                   .own_sequence = true,
                   .shared = tune_shared_create()};
    w->t.own.at[DH_TUNE_ZERO] = w->job->zero;
    assert_ok(&ctx, tune_tuner_init(&ctx, &w->t, w->job));
    assert_ok(&ctx, tune_select(&ctx, &w->t));
}

static void close_walk(walk *w)
{
    tune_numbers *lists[] = {&w->t.zeros, &w->t.buckets, &w->t.sequences, &w->t.fusions,
                             &w->t.posts};
    for (size_t i = 0; i < DH_COUNTOF(lists); i++) dh_vec_fini(lists[i]);
    tune_tuner_fini(&w->t);
    tune_shared_destroy(w->t.shared);
    dh_cluster_destroy(w->cluster);
    dh_job_destroy(w->job);
    free(w->rows);
}

static dh_status estimate_one(dh_ctx *ctx, void *user, const dh_tune_config *config,
                              const char *refused)
{
    walk *w = user;
    const tune_limits limits = {.step_ns = INFINITY};
    tune_outcome outcome;
    dh_tune_row row = {.config = *config, .why = ""};
    if (refused) return DH_OK;
    if (tune_estimate(ctx, &w->t, &limits, &row, &outcome) == DH_OK) {
        assert_true(w->n_rows < MOST_ROWS);
        w->rows[w->n_rows++] = row;
    }
    dh_ctx_reset(ctx);
    return DH_OK;
}

static void estimate_all(walk *w)
{
    dh_ctx ctx = DH_CTX_INIT;
    tune_units units = {0};
    assert_ok(&ctx, tune_list_units(&ctx, &w->t, &units));
    for (size_t i = 0; i < units.n; i++) {
        const size_t before = w->t.all_blocks.n;
        assert_ok(&ctx, tune_each(&ctx, &w->t, &units.at[i], estimate_one, w));
        w->n_made += w->t.all_blocks.n - before;
        w->most_made = DH_MAX(w->most_made, w->t.all_blocks.n);
        if (!w->forgets) continue;
        assert_ok(&ctx, tune_forget(&ctx, &w->t));
        assert_true(w->t.all_blocks.n == 0 && w->t.blocks.rows.n == 0 && w->t.times.rows.n == 0);
    }
    dh_vec_fini(&units);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void giving_up_changes_nothing(void **state)
{
    (void)state;
    walk keeps, forgets;
    open_walk(&keeps, false);
    open_walk(&forgets, true);
    estimate_all(&keeps);
    estimate_all(&forgets);
    print_message("%zu configurations: %zu blocks at once, or %zu at once of %zu\n", keeps.n_rows,
                  keeps.most_made, forgets.most_made, forgets.n_made);
    assert_true(keeps.n_rows > 100 && keeps.n_rows == forgets.n_rows);
    for (size_t i = 0; i < keeps.n_rows; i++) {
        assert_true(keeps.rows[i].step_ns > 0);
        assert_memory_equal(&keeps.rows[i], &forgets.rows[i], offsetof(dh_tune_row, why));
    }
    assert_true(keeps.most_made == keeps.n_made);
    assert_true(4 * forgets.most_made < keeps.most_made);
    close_walk(&keeps);
    close_walk(&forgets);
}

static void assert_answers_alike(const dh_costs *costs, const dh_graph *g, const dh_mesh *mesh)
{
    const tune_memo *memo = costs->self;
    for (size_t i = 0; g && i < g->ops.n; i++) {
        const dh_cost_op at = {g, &g->ops.at[i], mesh, 0};
        const double ns = costs->solo(costs->self, &at).ns;
        assert_true(ns == memo->of->solo(memo->of->self, &at).ns);
    }
}

/* Whatever was asked for first: graphs of all micro-batches and meshes, on a mesh that two ranks
 * share sequences on. */
static void memories_answer_as_costs_do(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh mesh;
    walk w;
    open_walk(&w, false);
    estimate_all(&w);
    assert_ok(&ctx, dh_cluster_mesh(&ctx, w.cluster, 1, 2, 1, 2, 1, &mesh));
    for (size_t i = 0; i < w.t.all_blocks.n; i++)
        for (int b = 0; b < TUNE_N_BLOCK; b++)
            assert_answers_alike(w.t.costs, w.t.all_blocks.at[i]->at[b].graph, &mesh);
    close_walk(&w);
}

/* Recomputations of a system that heeds none of them have the same costs, and outlines of them are
 * made from the same programs. */
static void what_is_alike_is_made_once(void **state)
{
    (void)state;
    walk w;
    open_walk(&w, false);
    estimate_all(&w);
    for (int i = 0; i < DH_N_TUNE_RECOMPUTE; i++)
        assert_ptr_equal(w.t.costs_by[0][i], w.t.costs_by[0][0]);
    print_message("%zu outlines of %zu programs\n", w.t.outlines.rows.n, w.t.programs.rows.n);
    assert_true(w.t.programs.rows.n > 0 && 2 * w.t.programs.rows.n < w.t.outlines.rows.n);
    close_walk(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(giving_up_changes_nothing),
        cmocka_unit_test(memories_answer_as_costs_do),
        cmocka_unit_test(what_is_alike_is_made_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
