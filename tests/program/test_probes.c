/* Programs that measure: on every mesh their ranks verify together, every operator of a job
 * has a class that all ranks of a group know by the same name, and every pair that can
 * overlap is measured once, with nothing between the two. */
#include "dh_test.h"

#include "costs/profile.h"
#include "program/program.h"
#include "program/program_spec.h"
#include "program/ranks.h"

typedef struct setup {
    const char *preset, *schedule;     /* NULL: 1F1B */
    int64_t tp, pp, dp, cp, nodes, ep; /* 0: 1 */
    int64_t vocab;                     /* 0: 64 */
    dh_dtype dtype;
    bool zero1;
    dh_recompute_kind recompute;
} setup;

static const setup setups[] = {
    {.preset = "gpt2-char"},
    {.preset = "gpt2-char", .tp = 2, .vocab = 65},
    {.preset = "gpt2-char", .cp = 4, .dtype = DH_BF16},
    {.preset = "llama-tiny",
     .tp = 2,
     .cp = 2,
     .nodes = 2,
     .recompute = DH_RECOMPUTE_KIND_SELECTIVE},
    {.preset = "gpt2-char", .tp = 2, .pp = 2, .schedule = "dhelix-w", .vocab = 65},
    {.preset = "llama-tiny", .pp = 4, .schedule = "zb-v", .nodes = 4},
    {.preset = "gpt2-char", .pp = 3, .dp = 2, .zero1 = true, .dtype = DH_BF16},
    {.preset = "mixtral-tiny", .tp = 2, .pp = 2, .nodes = 2},
    {.preset = "mixtral-tiny", .dp = 2, .ep = 2},
    {.preset = "mixtral-tiny", .dp = 4, .ep = 2, .tp = 2, .nodes = 2},
};

static size_t scratch(const dh_graph *graph, const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 1000 : 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = scratch};

typedef struct job {
    dh_schedule *schedule;
    dh_program_spec spec;
} job;

/* A model of n_layers (0: one a virtual stage). */
static job job_of(const setup *s, int64_t n_layers, int32_t n_micro, bool probes)
{
    dh_ctx ctx = DH_CTX_INIT;
    job j = {.schedule = NULL};
    dh_model model;
    const dh_schedule_row *row;
    const int64_t pp = DH_MAX(s->pp, 1);
    const dh_schedule_spec wanted = {.n_ranks = (int32_t)pp, .n_micro = n_micro};
    assert_ok(&ctx, dh_schedule_find(&ctx, s->schedule ? s->schedule : "1f1b", &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &wanted, &j.schedule));
    assert_ok(&ctx, dh_model_from_preset(&ctx, s->preset, &model));
    model.vocab = s->vocab ? s->vocab : 64;
    model.n_layers = n_layers ? n_layers : j.schedule->n_stages;
    j.spec = (dh_program_spec){.recipe = {.model = model,
                                          .dtype = s->dtype,
                                          .recompute = s->recompute,
                                          .sharing = dh_sharing_of(s->zero1),
                                          .micro_batch = 2,
                                          .seq = 32,
                                          .n_micro = n_micro,
                                          .dropout = 0.1,
                                          .moe_capacity = 2,
                                          .backend = &backend},
                               .mode = DH_MODE_TRAIN,
                               .probes = probes};
    assert_ok(&ctx, dh_mesh_init(&ctx, DH_MAX(s->dp, 1), DH_MAX(s->tp, 1), pp, DH_MAX(s->cp, 1),
                                 DH_MAX(s->ep, 1), DH_MAX(s->nodes, 1), 0, &j.spec.recipe.mesh));
    return j;
}

static dh_program *build(job *j, int64_t rank)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p;
    j->spec.recipe.schedule = j->schedule;
    j->spec.rank = rank;
    assert_ok(&ctx, dh_program_build(&ctx, &j->spec, &p));
    return p;
}

static void for_all_setups(void (*check)(const setup *))
{
    for (size_t i = 0; i < DH_COUNTOF(setups); i++) {
        const setup *s = &setups[i];
        print_message("%s %s: tp %d pp %d dp %d cp %d\n", s->preset,
                      s->schedule ? s->schedule : "1f1b", (int)s->tp, (int)s->pp, (int)s->dp,
                      (int)s->cp);
        check(s);
    }
}

/* ---- verification ------------------------------------------------------------------------- */

static void verify(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    job j = job_of(s, 0, 2, true);
    const size_t n = (size_t)j.spec.recipe.mesh.ranks;
    dh_program **programs = calloc(n, sizeof *programs);
    assert_non_null(programs);
    for (size_t r = 0; r < n; r++) programs[r] = build(&j, (int64_t)r);
    assert_ok(&ctx, dh_programs_verify(&ctx, (const dh_program *const *)programs, n));
    assert_ok(&ctx, dh_mesh_verify(&ctx, &j.spec, NULL));
    for (size_t r = 0; r < n; r++) dh_program_destroy(programs[r]);
    free(programs);
    dh_schedule_destroy(j.schedule);
}

static void ranks_verify_together(void **state)
{
    for_all_setups(verify);
    (void)state;
}

/* ---- classes ------------------------------------------------------------------------------ */

static uint32_t find(const dh_program *p, const char *key)
{
    for (uint32_t c = 0; c < p->probe_classes.n; c++)
        if (strcmp(p->probe_classes.at[c].key, key) == 0) return c;
    return DH_NONE;
}

static bool in_strands(dh_block_kind kind)
{
    return kind == DH_BLOCK_DATA || kind == DH_BLOCK_EMBED || kind == DH_BLOCK_LAYER ||
           kind == DH_BLOCK_HEAD || kind == DH_BLOCK_LINK;
}

/* The first ranks of tp and cp groups have the shapes that name classes. */
static void every_operator_has_one(const setup *s)
{
    job small = job_of(s, 0, 2, true), whole = job_of(s, 8, 12, false);
    for (int64_t r = 0; r < small.spec.recipe.mesh.ranks; r++) {
        const dh_coord c = dh_mesh_coord(&small.spec.recipe.mesh, r);
        if (c.tp > 0 || c.cp > 0) continue;
        dh_program *probes = build(&small, r), *real = build(&whole, r);
        size_t n = 0;
        assert_int_equal(real->probes.n, 0);
        for (size_t i = 0; i < real->instrs.n; i++) {
            const dh_instr *instr = &real->instrs.at[i];
            const dh_graph *g = dh_instr_graph(real, instr);
            const dh_cost_op at = {g, dh_instr_op(real, instr), &real->mesh, r};
            char key[DH_OP_KEY_BYTES];
            if (!in_strands(g->kind)) continue;
            if (find(probes, dh_op_class_key(&at, key)) == DH_NONE)
                fail_msg("rank %d does not measure %s", (int)r, key);
            n++;
        }
        assert_true(n > 50);
        dh_program_destroy(probes);
        dh_program_destroy(real);
    }
    dh_schedule_destroy(small.schedule);
    dh_schedule_destroy(whole.schedule);
}

static void every_operator_has_a_class(void **state)
{
    for_all_setups(every_operator_has_one);
    (void)state;
}

/* Classes of strands by rank, in order. Caller frees. */
static char *strand_classes(const dh_program *p)
{
    dh_str out = DH_STR_INIT;
    for (size_t c = 0; c < p->probe_classes.n; c++) {
        const dh_probe_class *cls = &p->probe_classes.at[c];
        if (cls->forward || cls->backward)
            dh_str_printf(&out, "%d%d %s\n", cls->forward, cls->backward, cls->key);
    }
    assert_non_null(out.text);
    return out.text;
}

static void groups_agree(const setup *s)
{
    job j = job_of(s, 0, 2, true);
    for (int64_t r = 0; r < j.spec.recipe.mesh.ranks; r++) {
        dh_coord c = dh_mesh_coord(&j.spec.recipe.mesh, r);
        c.tp = c.cp = c.dp = 0;
        dh_program *own = build(&j, r), *first = build(&j, dh_mesh_rank(&j.spec.recipe.mesh, c));
        char *a = strand_classes(own), *b = strand_classes(first);
        assert_string_equal(a, b);
        assert_int_equal(own->probes.n - own->probe_classes.n,
                         first->probes.n - first->probe_classes.n);
        free(a);
        free(b);
        dh_program_destroy(own);
        dh_program_destroy(first);
    }
    dh_schedule_destroy(j.schedule);
}

static void ranks_of_a_group_have_the_same(void **state)
{
    /* Of optimizer and links, classes may differ. */
    const setup meshes[] = {{.preset = "gpt2-char", .tp = 2, .cp = 4, .vocab = 65},
                            {.preset = "gpt2-char", .tp = 4, .pp = 2, .vocab = 67},
                            {.preset = "mixtral-tiny", .tp = 2, .dp = 4, .ep = 4}};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) groups_agree(&meshes[i]);
    (void)state;
}

/* ---- probes ------------------------------------------------------------------------------- */

static bool waits_for(const dh_program *p, uint32_t instr, uint32_t other)
{
    const dh_instr *i = &p->instrs.at[instr];
    for (uint32_t w = 0; w < i->n_waits; w++)
        if (p->waits.at[i->wait0 + w].instr == other) return true;
    return false;
}

static const char *key_at(const dh_program *p, uint32_t instr, char *key)
{
    const dh_instr *i = &p->instrs.at[instr];
    const dh_cost_op at = {dh_instr_graph(p, i), dh_instr_op(p, i), &p->mesh, p->rank};
    return dh_op_class_key(&at, key);
}

/* Each class alone, but for sends; each pair of streams that differ, one way or the other. */
static void check_probes(const dh_program *p)
{
    const size_t n = p->probe_classes.n;
    int *times = calloc(n * (n + 1), sizeof *times);
    char key[DH_OP_KEY_BYTES];
    assert_non_null(times);
    for (size_t i = 0; i < p->probes.n; i++) {
        const dh_probe *probe = &p->probes.at[i];
        const uint32_t a = probe->cls[0], b = probe->cls[1];
        assert_string_equal(key_at(p, probe->instr[0], key), p->probe_classes.at[a].key);
        times[a * (n + 1) + (b == DH_NONE ? n : b)]++;
        if (b == DH_NONE) continue;
        assert_string_equal(key_at(p, probe->instr[1], key), p->probe_classes.at[b].key);
        assert_int_equal(probe->instr[1], probe->instr[0] + 1);
        assert_false(waits_for(p, probe->instr[1], probe->instr[0]));
        assert_int_not_equal(p->instrs.at[probe->instr[0]].stream,
                             p->instrs.at[probe->instr[1]].stream);
    }
    for (size_t a = 0; a < n; a++) {
        const dh_probe_class *x = &p->probe_classes.at[a];
        const bool transfer = strncmp(x->key, "transfer ", 9) == 0;
        if (!transfer) assert_int_equal(times[a * (n + 1) + n], 1);
        for (size_t b = 0; b < n; b++) {
            const dh_probe_class *y = &p->probe_classes.at[b];
            const bool apart = x->stream != y->stream;
            const bool wanted =
                apart && ((x->forward && y->backward) || (y->forward && x->backward));
            const int both = times[a * (n + 1) + b] + times[b * (n + 1) + a];
            assert_int_equal(both, wanted ? 1 : 0);
        }
    }
    free(times);
}

static void probes_of(const setup *s)
{
    job j = job_of(s, 0, 2, true);
    for (int64_t r = 0; r < j.spec.recipe.mesh.ranks; r++) {
        const dh_coord c = dh_mesh_coord(&j.spec.recipe.mesh, r);
        if (c.tp > 0 || c.cp > 0) continue;
        dh_program *p = build(&j, r);
        check_probes(p);
        dh_program_destroy(p);
    }
    dh_schedule_destroy(j.schedule);
}

static void every_pair_is_probed_once(void **state)
{
    for_all_setups(probes_of);
    (void)state;
}

static void one_micro_batch_is_too_few(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {.preset = "gpt2-char"};
    job j = job_of(&s, 1, 1, true);
    dh_program *p;
    j.spec.recipe.schedule = j.schedule;
    assert_fails(&ctx, dh_program_build(&ctx, &j.spec, &p), DH_EINVAL, "2 micro-batches");
    dh_schedule_destroy(j.schedule);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_verify_together),
        cmocka_unit_test(every_operator_has_a_class),
        cmocka_unit_test(ranks_of_a_group_have_the_same),
        cmocka_unit_test(every_pair_is_probed_once),
        cmocka_unit_test(one_micro_batch_is_too_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
