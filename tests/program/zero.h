/* What the suites of shared-out states and of gathers have in common: programs of one rank of four.
 */
#ifndef TEST_PROGRAM_ZERO_H
#define TEST_PROGRAM_ZERO_H

#include "meshes.h"

static const setup base = {.preset = "llama-tiny",
                           .schedule = "1f1b",
                           .tp = 1,
                           .pp = 1,
                           .dp = 4,
                           .n_micro = 1,
                           .seq = 16,
                           .bucket = 20000};

/* how: its degree of ZeRO, and when parameters are gathered and released. */
static inline dh_program *build_how(const setup *like, const dh_recipe *how)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = *like;
    dh_program *p;
    s.zero = dh_sharing_zero(&how->sharing);
    mesh_programs *m = prepare(&s);
    m->spec.recipe.sharing = how->sharing;
    m->spec.recipe.mesh.share_ranks = how->mesh.share_ranks;
    assert_ok(&ctx, dh_program_build(&ctx, &m->spec, &p));
    destroy(m);
    return p;
}

static inline dh_program *build_ahead(const setup *like, int64_t zero, int64_t prefetch)
{
    dh_recipe how = {.sharing = dh_sharing_of(zero)};
    how.sharing.prefetch = prefetch;
    return build_how(like, &how);
}

static inline dh_program *build_zero(const setup *like, int64_t zero)
{
    return build_ahead(like, zero, 0);
}

/* Gathers at the beginning of a step. */
static inline dh_program *build_forward(const setup *like, int64_t zero)
{
    dh_recipe how = {.sharing = dh_sharing_of(zero)};
    how.sharing.gather = DH_GATHER_FORWARD;
    return build_how(like, &how);
}

/* What stays of a block between its forward and its backward. */
static inline dh_program *build_between(const setup *like, dh_gathered between, int64_t prefetch)
{
    dh_recipe how = {.sharing = dh_sharing_of(3)};
    how.sharing.prefetch = prefetch;
    how.sharing.reshard = between;
    return build_how(like, &how);
}

static inline bool is(const dh_program *p, uint32_t i, dh_op_type type)
{
    return dh_instr_op(p, &p->instrs.at[i])->type == type;
}

static inline dh_block_kind kind_of(const dh_program *p, uint32_t i)
{
    return dh_instr_graph(p, &p->instrs.at[i])->kind;
}

static inline bool waits_for(const dh_program *p, uint32_t instr, uint32_t other)
{
    const dh_instr *i = &p->instrs.at[instr];
    for (uint32_t w = 0; w < i->n_waits; w++)
        if (p->waits.at[i->wait0 + w].instr == other) return true;
    return false;
}

typedef struct gradients {
    uint64_t whole, shards, most; /* bytes of matrices; most: of the largest bucket */
} gradients;

static inline gradients gradients_of(const dh_program *p)
{
    gradients g = {0};
    for (size_t i = 0; i < p->flats.n; i++) {
        const dh_flat *f = &p->flats.at[i];
        const uint64_t whole = (uint64_t)f->n_matrix * sizeof(float);
        g.whole += whole;
        g.shards += (uint64_t)(f->n_shard * f->n_pieces) * sizeof(float);
        g.most = DH_MAX(g.most, whole);
    }
    return g;
}

static inline void expect_fault(const dh_program *p, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (dh_program_verify(&ctx, p) != DH_EVERIFY) fail_msg("no fault found: %s", text);
    if (!strstr(ctx.message, text)) fail_msg("\"%s\" lacks \"%s\"", ctx.message, text);
}

#endif
