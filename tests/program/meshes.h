/* What the suites of whole meshes share: small jobs as programs of every rank. */
#ifndef TEST_PROGRAM_MESHES_H
#define TEST_PROGRAM_MESHES_H

#include "dh_test.h"

#include "program/program_spec.h"
#include "program/ranks.h"

typedef struct setup {
    const char *preset, *schedule;
    int64_t tp, pp, dp, per_node; /* per_node 0: one node */
    int64_t n_micro, seq;
    dh_dtype dtype;
    int64_t zero;
    int64_t cp; /* 0: 1 */
    dh_recompute_kind recompute;
    const dh_strategy *strategy; /* NULL: sequential */
    int64_t bucket;              /* bytes of gradients; 0: the default, which holds these models */
    int64_t ep;                  /* 0: 1 */
    dh_moe_mode moe;
    bool whole_experts; /* spread over tp ranks too */
} setup;

static int64_t n_kv_heads; /* of every model; 0: its own, or one for each tp rank */

typedef struct mesh_programs {
    dh_schedule *schedule;
    dh_ordering ordering; /* of the strategy; what one rank finds the others look up */
    dh_program_spec spec;
    dh_program **at; /* by rank */
    size_t n;
} mesh_programs;

static inline size_t scratch(const dh_graph *graph, const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 1000 : 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = scratch};

static inline const dh_schedule_row *row_named(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    assert_ok(&ctx, dh_schedule_find(&ctx, name, &row));
    return row;
}

static inline dh_schedule_spec schedule_spec(const setup *s)
{
    return (dh_schedule_spec){.n_ranks = (int32_t)s->pp, .n_micro = (int32_t)s->n_micro};
}

static inline bool is_applicable(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_spec spec = schedule_spec(s);
    return dh_schedule_applicable(&ctx, row_named(s->schedule), &spec) == DH_OK;
}

static inline mesh_programs *prepare(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = calloc(1, sizeof *m);
    assert_non_null(m);
    dh_model model;
    const dh_schedule_spec wanted = schedule_spec(s);
    assert_ok(&ctx, dh_model_from_preset(&ctx, s->preset, &model));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row_named(s->schedule), &wanted, &m->schedule));
    model.n_layers = DH_MAX(model.n_layers, m->schedule->n_stages);
    model.n_kv_heads = n_kv_heads ? n_kv_heads : DH_MAX(model.n_kv_heads, s->tp);
    m->spec = (dh_program_spec){.recipe = {.model = model,
                                           .dtype = s->dtype,
                                           .schedule = m->schedule,
                                           .strategy = s->strategy,
                                           .recompute = s->recompute,
                                           .sharing = dh_sharing_of(s->zero),
                                           .bucket_bytes = s->bucket,
                                           .micro_batch = 2,
                                           .seq = s->seq,
                                           .n_micro = s->n_micro,
                                           .dropout = 0.1,
                                           .global_tokens = 128,
                                           .moe_mode = s->moe,
                                           .moe_capacity = 2,
                                           .backend = &backend},
                                .mode = DH_MODE_TRAIN};
    assert_ok(&ctx, dh_mesh_init(&ctx, s->dp, s->tp, s->pp, DH_MAX(s->cp, 1), DH_MAX(s->ep, 1), 0,
                                 s->per_node, &m->spec.recipe.mesh));
    m->spec.recipe.mesh.whole_experts = s->whole_experts;
    m->spec.recipe.mesh.kv_ranks = dh_mesh_kv_ranks(&model, s->tp);
    if (!s->strategy) return m;
    assert_ok(&ctx, dh_strategy_ordering(&ctx, s->strategy, &m->ordering));
    m->ordering.cache = dh_order_cache_create();
    assert_non_null(m->ordering.cache);
    m->spec.recipe.ordering = m->ordering;
    return m;
}

static inline mesh_programs *build_all(mesh_programs *m)
{
    dh_ctx ctx = DH_CTX_INIT;
    m->n = (size_t)m->spec.recipe.mesh.ranks;
    m->at = calloc(m->n, sizeof *m->at);
    assert_non_null(m->at);
    for (size_t r = 0; r < m->n; r++) {
        dh_program_spec spec = m->spec;
        spec.rank = (int64_t)r;
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &m->at[r]));
    }
    return m;
}

static inline mesh_programs *build(const setup *s)
{
    return build_all(prepare(s));
}

static inline void destroy(mesh_programs *m)
{
    for (size_t r = 0; r < m->n; r++) dh_program_destroy(m->at[r]);
    free(m->at);
    dh_schedule_destroy(m->schedule);
    dh_order_cache_destroy(m->ordering.cache);
    free(m);
}

static inline dh_status verify(dh_ctx *ctx, const mesh_programs *m)
{
    return dh_programs_verify(ctx, (const dh_program *const *)m->at, m->n);
}

/* An instruction that was never issued: whoever waits for it waits for the one before. */
static inline void drop(dh_program *p, uint32_t i)
{
    uint32_t before = i;
    while (before-- > 0)
        if (p->instrs.at[before].stream == p->instrs.at[i].stream) break;
    if (before == UINT32_MAX) before = 0; /* complete long before */
    p->instrs.n--;
    memmove(&p->instrs.at[i], &p->instrs.at[i + 1], (p->instrs.n - i) * sizeof *p->instrs.at);
    for (size_t w = 0; w < p->waits.n; w++) {
        uint32_t *wait = &p->waits.at[w].instr;
        *wait = *wait == i ? before : *wait > i ? *wait - 1 : *wait;
    }
}

static inline void print_setup(const setup *s)
{
    print_message("%s, %s, %s: tp %lld pp %lld dp %lld cp %lld ep %lld, %lld ranks a node, %s%s, "
                  "recompute %d, experts' mode %d\n",
                  s->preset, s->schedule, s->strategy ? s->strategy->name : "sequential",
                  (long long)s->tp, (long long)s->pp, (long long)s->dp, (long long)s->cp,
                  (long long)s->ep, (long long)s->per_node, dh_dtype_name(s->dtype),
                  s->zero ? ", zero" : "", (int)s->recompute, (int)s->moe);
}

#endif
