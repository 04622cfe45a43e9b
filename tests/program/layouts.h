/* What the suites of reshards share: layouts by lot, and the reshard between two of them. */
#ifndef TEST_PROGRAM_LAYOUTS_H
#define TEST_PROGRAM_LAYOUTS_H

#include "meshes.h"
#include "program/reshard.h"

static const struct {
    const char *preset;
    int64_t ranks, per_node;
} places[] = {{"gpt2-tiny", 4, 0},    {"llama-tiny", 4, 2}, {"llama-tiny", 8, 4},
              {"mixtral-tiny", 4, 2}, {"gpt2-tiny", 6, 2},  {"mixtral-tiny", 8, 4}};

static inline int64_t divisor(uint64_t *seed, int64_t n)
{
    int64_t d;
    do d = 1 + (int64_t)(test_rand(seed) % (uint64_t)n);
    while (n % d);
    return d;
}

static inline bool fits(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    assert_ok(&ctx, dh_model_from_preset(&ctx, s->preset, &m));
    return m.n_heads % s->tp == 0 && m.n_kv_heads % s->tp == 0 && m.ffn_width % s->tp == 0 &&
           s->pp <= m.n_layers && is_applicable(s) &&
           (m.n_experts == 0 ? s->ep == 1 : m.n_experts % s->ep == 0);
}

/* A layout of so many ranks by lot. */
static inline setup draw(uint64_t *seed, size_t place, dh_dtype dtype, int64_t most_zero)
{
    setup s;
    do {
        s = (setup){.preset = places[place].preset,
                    .schedule = test_rand(seed) % 3 ? "1f1b" : "dhelix-w",
                    .per_node = places[place].per_node,
                    .n_micro = 4,
                    .seq = 48,
                    .dtype = dtype,
                    .bucket = test_rand(seed) % 2 ? 0 : 50000,
                    .zero = (int64_t)(test_rand(seed) % (uint64_t)(most_zero + 1))};
        int64_t left = places[place].ranks;
        left /= s.tp = divisor(seed, left);
        left /= s.pp = divisor(seed, left);
        left /= s.cp = divisor(seed, left);
        s.dp = left;
        s.ep = divisor(seed, left);
    } while (!fits(&s));
    return s;
}

typedef struct pair {
    setup setups[2];
    mesh_programs *sides[2];
    dh_reshard r;
} pair;

static inline void open_pair(pair *p, unsigned what)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int k = 0; k < 2; k++) p->sides[k] = prepare(&p->setups[k]);
    dh_model *a = &p->sides[0]->spec.recipe.model, *b = &p->sides[1]->spec.recipe.model;
    a->n_layers = b->n_layers = DH_MAX(a->n_layers, b->n_layers); /* as many as stages need */
    const dh_layout from = {.recipe = &p->sides[0]->spec.recipe};
    const dh_layout to = {.recipe = &p->sides[1]->spec.recipe, .base = DH_LAYOUT_BEHIND};
    if (dh_reshard_open(&ctx, &from, &to, what, &p->r) == DH_OK) return;
    print_setup(&p->setups[0]);
    print_setup(&p->setups[1]);
    fail_msg("%s", ctx.message);
}

static inline void draw_pair(pair *p, uint64_t *seed, unsigned what)
{
    const size_t place = test_rand(seed) % DH_COUNTOF(places);
    const dh_dtype dtype = test_rand(seed) % 2 ? DH_F32 : DH_BF16;
    const int64_t most_zero = what & DH_RESHARD_GRADS ? 1 : 3;
    for (int k = 0; k < 2; k++) p->setups[k] = draw(seed, place, dtype, most_zero);
    open_pair(p, what);
}

static inline void close_pair(pair *p)
{
    dh_reshard_fini(&p->r);
    for (int k = 0; k < 2; k++) destroy(p->sides[k]);
}

static inline unsigned some_what(uint64_t *seed)
{
    return 1 + (unsigned)(test_rand(seed) % 7);
}

static inline void make_programs(const pair *p, dh_program **programs)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int64_t r = 0; r < p->r.n_ranks; r++)
        assert_ok(&ctx, dh_reshard_program(&ctx, &p->r, r, 0, &backend, &programs[r]));
}

static inline void free_programs(const pair *p, dh_program **programs)
{
    for (int64_t r = 0; r < p->r.n_ranks; r++) dh_program_destroy(programs[r]);
}

static inline dh_status verify_all(dh_ctx *ctx, const pair *p, dh_program **programs)
{
    return dh_programs_verify(ctx, (const dh_program *const *)programs, (size_t)p->r.n_ranks);
}

#endif
