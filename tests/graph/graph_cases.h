/* Graphs that the suites of this folder run over: every block of small models in
 * every mode and precision, forward alone, differentiated, and split over ranks. */
#ifndef DH_TEST_GRAPH_CASES_H
#define DH_TEST_GRAPH_CASES_H

#include "dh_test.h"

#include "graph/graph.h"

typedef struct graph_case {
    const char *preset;
    dh_block_kind kind;
    dh_mode mode;
    dh_dtype dtype;
    double dropout;
    int64_t tp;
    bool backward;
    int64_t cp;
    int64_t ep;
    dh_sequence sequence;
} graph_case;

static inline dh_graph *parse_graph(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    assert_ok(&ctx, dh_graph_parse(&ctx, text, strlen(text), &g));
    return g;
}

static inline void assert_same_graph(const dh_graph *got, const dh_graph *want)
{
    if (dh_graph_equal(got, want)) return;
    dh_ctx ctx = DH_CTX_INIT;
    dh_str a = DH_STR_INIT, b = DH_STR_INIT;
    assert_ok(&ctx, dh_graph_print(&ctx, got, &a));
    assert_ok(&ctx, dh_graph_print(&ctx, want, &b));
    fail_msg("got\n%swant\n%s", a.text, b.text);
}

static inline dh_model preset(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, name, &model));
    if (model.vocab == 0) model.vocab = 65;
    return model;
}

static inline dh_build build_of(const graph_case *c, const dh_model *model)
{
    bool decode = c->mode == DH_MODE_DECODE;
    return (dh_build){.model = model,
                      .mode = c->mode,
                      .dtype = c->dtype,
                      .batch = decode ? 1 : 2,
                      .seq = decode ? 4 : 64 / c->cp,
                      .cache_len = 32,
                      .dropout = c->dropout,
                      .loss_scale = 1.0 / 384,
                      .head_chunk_bytes = 64 * 4 * model->vocab};
}

static inline dh_graph *build_case(const graph_case *c)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset(c->preset);
    dh_build build = build_of(c, &model);
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, c->kind, &g));
    assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, c->cp, c->cp - 1));
    const dh_shard shard = {.tp = c->tp,
                            .tp_rank = c->tp - 1,
                            .ep = c->ep,
                            .ep_rank = c->ep - 1,
                            .sequence = c->sequence};
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, shard));
    assert_ok(&ctx, dh_pass_expert_parallel(&ctx, g, shard, 1.5, NULL));
    if (c->backward) assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    return g;
}

/* The layouts over ranks that a mode knows. */
static inline int for_each_layout(graph_case c, void (*fn)(const graph_case *, dh_graph *))
{
    /* tp, cp, ep, whole tokens */
    static const int64_t layouts[][4] = {{1, 1, 1, 0}, {2, 1, 1, 0}, {2, 1, 1, 1},
                                         {1, 2, 1, 0}, {2, 4, 1, 0}, {2, 2, 1, 1},
                                         {1, 1, 2, 0}, {2, 2, 4, 0}, {2, 1, 2, 1}};
    const size_t n = c.mode == DH_MODE_DECODE         ? 1
                     : preset(c.preset).n_experts > 0 ? DH_COUNTOF(layouts)
                                                      : 6;
    for (size_t i = 0; i < n; i++) {
        c.tp = layouts[i][0];
        c.cp = layouts[i][1];
        c.ep = layouts[i][2];
        c.sequence = (dh_sequence)layouts[i][3];
        dh_graph *g = build_case(&c);
        fn(&c, g);
        dh_graph_destroy(g);
    }
    return (int)n;
}

/* Call fn on every case; returns how many there were. */
static inline int for_each_case(void (*fn)(const graph_case *, dh_graph *))
{
    static const char *const presets[] = {"gpt2-tiny", "gpt2-char", "llama-tiny", "stories260K",
                                          "mixtral-tiny"};
    static const double dropouts[] = {0.0, 0.1};
    int n = 0;
    for (size_t p = 0; p < DH_COUNTOF(presets); p++)
        for (int kind = DH_BLOCK_EMBED; kind <= DH_BLOCK_DATA; kind++)
            for (int mode = DH_MODE_TRAIN; mode <= DH_MODE_DECODE; mode++)
                for (int dtype = DH_F32; dtype <= DH_BF16; dtype++)
                    for (size_t d = 0; d < DH_COUNTOF(dropouts); d++)
                        for (int b = 0; b <= (mode == DH_MODE_TRAIN); b++) {
                            graph_case c = {.preset = presets[p],
                                            .kind = (dh_block_kind)kind,
                                            .mode = (dh_mode)mode,
                                            .dtype = (dh_dtype)dtype,
                                            .dropout = dropouts[d],
                                            .backward = b != 0};
                            n += for_each_layout(c, fn);
                        }
    return n;
}

#endif
