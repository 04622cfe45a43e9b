/* Forward graphs of the blocks of all families of models.
 *
 * The residual stream enters as x_in and leaves as x_out; everything between is
 * written once. Shapes carry axis labels, so that a pass can partition tokens,
 * heads, FFN columns or the vocabulary without knowing the model. */
#include "config/yarn.h"
#include "graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct builder {
    const dh_build *build; /* its model has layers of several kinds */
    const dh_model *model; /* as the block sees it */
    dh_graph *graph;
    bool failed; /* out of memory somewhere; checked once at the end */
    uint32_t params[DH_MAX_BLOCK_PARAMS], grads[DH_MAX_BLOCK_PARAMS], inputs[DH_N_INPUT];
} builder;

/* ---- tensors ------------------------------------------------------------------------ */

static uint32_t add_tensor(builder *b, const dh_tensor *tensor)
{
    uint32_t id = dh_graph_add_tensor(b->graph, tensor);
    b->failed |= id == DH_NONE;
    return id;
}

static int64_t rows_of(const builder *b)
{
    return b->build->batch * b->build->seq;
}

static uint32_t act_rows(builder *b, const char *name, dh_dtype dtype, int64_t rows,
                         dh_axis row_axis, int64_t cols, dh_axis axis)
{
    dh_tensor t = {.kind = DH_TENSOR_ACT,
                   .dtype = dtype,
                   .ndim = cols ? 2 : 1,
                   .shape = {rows, cols},
                   .axis = {row_axis, axis},
                   .base = DH_NONE,
                   .which = DH_NONE};
    dh_tensor_set_name(&t, name);
    return add_tensor(b, &t);
}

/* An activation of this micro-batch, one row a token. */
static uint32_t act(builder *b, const char *name, dh_dtype dtype, int64_t cols, dh_axis axis)
{
    return act_rows(b, name, dtype, rows_of(b), DH_AXIS_TOKENS, cols, axis);
}

static uint32_t view(builder *b, uint32_t base, int64_t row0, int64_t n_rows)
{
    if (b->failed) return DH_NONE;
    dh_tensor t = b->graph->tensors.at[base];
    t.base = base;
    t.row0 = row0;
    t.shape[0] = n_rows;
    snprintf(t.name, sizeof t.name, "%.12s.%lld", b->graph->tensors.at[base].name, (long long)row0);
    return add_tensor(b, &t);
}

static uint32_t input(builder *b, dh_input which)
{
    static const struct {
        const char *name;
        dh_dtype dtype;
    } inputs[DH_N_INPUT] = {[DH_IN_TOKENS] = {"tokens", DH_I32},
                            [DH_IN_TARGETS] = {"targets", DH_I32},
                            [DH_IN_POS] = {"pos", DH_I32},
                            [DH_IN_SAMPLE] = {"sample", DH_I64}};
    if (b->inputs[which] != DH_NONE) return b->inputs[which];
    dh_tensor t = {.kind = DH_TENSOR_INPUT,
                   .dtype = inputs[which].dtype,
                   .ndim = 1,
                   .shape = {rows_of(b)},
                   .axis = {DH_AXIS_TOKENS},
                   .base = DH_NONE,
                   .which = which};
    dh_tensor_set_name(&t, inputs[which].name);
    return b->inputs[which] = add_tensor(b, &t);
}

/* One of the block's parameters, DH_NONE where the model has none. Vectors stay in
 * float32: they are small, and norms want their precision; so does a router, whose
 * choices rounding would change (Fedus et al. 2021, arXiv 2101.03961, 2.4). */
static uint32_t param(builder *b, uint32_t which)
{
    if (b->params[which] != DH_NONE) return b->params[which];
    dh_param p;
    /* A tied head describes the embedding's parameter but keeps its own number. */
    if (!dh_param_describe(b->model, b->graph->kind, 0, which, &p)) return DH_NONE;
    dh_tensor t = {.kind = DH_TENSOR_PARAM,
                   .dtype = dh_param_is_matrix(&p) ? b->build->dtype : DH_F32,
                   .ndim = p.ndim,
                   .shape = {p.shape[0], p.shape[1], p.shape[2]},
                   .axis = {p.axis[0], p.axis[1], p.axis[2]},
                   .base = DH_NONE,
                   .which = which};
    const char *dot = strchr(p.name, '.');
    snprintf(t.name, sizeof t.name, "%.23s",
             b->graph->kind == DH_BLOCK_LAYER && dot ? dot + 1 : p.name);
    return b->params[which] = add_tensor(b, &t);
}

static uint32_t grad_of_param(builder *b, uint32_t which)
{
    uint32_t p = param(b, which);
    if (p == DH_NONE || b->failed) return DH_NONE;
    if (b->grads[which] != DH_NONE) return b->grads[which];
    dh_tensor t = b->graph->tensors.at[p];
    t.kind = DH_TENSOR_GRAD;
    t.dtype = DH_F32;
    snprintf(t.name, sizeof t.name, "d.%.20s", b->graph->tensors.at[p].name);
    return b->grads[which] = add_tensor(b, &t);
}

static uint32_t state(builder *b, const char *name, dh_state which, dh_dtype dtype, int64_t rows,
                      int64_t cols)
{
    dh_tensor t = {.kind = DH_TENSOR_STATE,
                   .dtype = dtype,
                   .ndim = cols ? 2 : 1,
                   .shape = {rows, cols},
                   .base = DH_NONE,
                   .which = which};
    dh_tensor_set_name(&t, name);
    return add_tensor(b, &t);
}

/* ---- operators ------------------------------------------------------------------------ */

static dh_op *add_op(builder *b, dh_op_type type, const uint32_t *in, const uint32_t *out)
{
    uint32_t id = dh_graph_add_op(b->graph, type, DH_PHASE_F, in, out);
    b->failed |= id == DH_NONE;
    static _Thread_local dh_op scrap; /* written to, never read, after a failure */
    return b->failed ? &scrap : &b->graph->ops.at[id];
}
#define IN(...) ((const uint32_t[DH_MAX_OPERANDS]){__VA_ARGS__})

static uint32_t norm(builder *b, const char *name, uint32_t x, uint32_t which_w, uint32_t which_b)
{
    uint32_t y = act(b, name, b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    uint32_t stats = act(b, "stats", DH_F32, 2, DH_AXIS_NONE);
    uint32_t bias = b->model->norm == DH_NORM_LAYER ? param(b, which_b) : DH_NONE;
    add_op(b, DH_OP_NORM, IN(x, param(b, which_w), bias), IN(y, stats));
    return y;
}

/* Add the output of a linear's adapters to its result y. Linears of the checkpoint that are one
 * GEMM here have an adapter each. A of all of them is one GEMM, too. Each B takes its own columns
 * in turn. */
static uint32_t adapt(builder *b, const char *name, uint32_t x, uint32_t y, uint32_t which_w)
{
    const uint32_t which_a = dh_param_lora_a(which_w);
    uint32_t parts[DH_MAX_OPERANDS], places[DH_MAX_OPERANDS], n = 0;
    char text[sizeof b->graph->tensors.at->name];
    const uint32_t a = which_a == DH_NONE ? DH_NONE : param(b, which_a);
    if (a == DH_NONE || b->failed) return y;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) parts[k] = DH_NONE;
    for (uint32_t k = 0; k < DH_LORA_LINEARS; k++)
        if (param(b, which_a + 1 + k) != DH_NONE) places[n++] = k;
    const int64_t rank = b->model->lora.rank;
    const dh_dtype dtype = b->build->dtype;
    snprintf(text, sizeof text, "%s.down", name);
    const uint32_t down = act(b, text, dtype, n * rank, DH_AXIS_NONE);
    add_op(b, DH_OP_LINEAR, IN(x, a, DH_NONE), IN(down));
    for (uint32_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s.down%u", name, i);
        parts[i] = n == 1 ? down : act(b, text, dtype, rank, DH_AXIS_NONE);
    }
    if (n > 1) add_op(b, DH_OP_SPLIT_COLUMNS, IN(down), parts);
    for (uint32_t i = 0; i < n && !b->failed; i++) {
        const uint32_t w = param(b, which_a + 1 + places[i]);
        const dh_tensor wt = b->graph->tensors.at[w], yt = b->graph->tensors.at[y];
        snprintf(text, sizeof text, "%s.up%u", name, i);
        const uint32_t up = act(b, text, dtype, wt.shape[0], wt.axis[0]);
        add_op(b, DH_OP_LINEAR, IN(parts[i], w, DH_NONE), IN(up));
        snprintf(text, sizeof text, "%s.lora%u", name, i);
        const uint32_t adapted = act(b, text, yt.dtype, yt.shape[1], yt.axis[1]);
        add_op(b, DH_OP_ADAPT, IN(up, y), IN(adapted))->to =
            dh_param_lora_column(b->model, which_w, (int)places[i]);
        y = adapted;
    }
    return y;
}

static uint32_t linear(builder *b, const char *name, uint32_t x, uint32_t which_w, uint32_t which_b)
{
    uint32_t w = param(b, which_w);
    if (b->failed) return DH_NONE;
    const dh_tensor *wt = &b->graph->tensors.at[w];
    uint32_t y = act(b, name, wt->dtype, wt->shape[0], wt->axis[0]);
    uint32_t bias = which_b == DH_NONE ? DH_NONE : param(b, which_b);
    add_op(b, DH_OP_LINEAR, IN(x, w, bias), IN(y));
    return adapt(b, name, x, y, which_w);
}

/* x + dropout(p + bias): the bias of a row-parallel linear is added here, after
 * its reduction, once. */
static uint32_t residual(builder *b, const char *name, uint32_t x, uint32_t p, uint32_t which_b,
                         dh_site site)
{
    bool drops = b->graph->dims.dropout > 0; /* never outside training */
    uint32_t y = act(b, name, b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    dh_op *op = add_op(b, DH_OP_RESIDUAL,
                       IN(x, p, param(b, which_b), drops ? input(b, DH_IN_POS) : DH_NONE,
                          drops ? input(b, DH_IN_SAMPLE) : DH_NONE),
                       IN(y));
    op->site = (int32_t)site;
    return y;
}

/* Squares are summed by an operator of their own: ranks may each have some of the heads. */
static uint32_t norm_all_heads(builder *b, uint32_t qkv, int64_t qkv_cols)
{
    uint32_t sums = act(b, "qkv.sq", DH_F32, 4, DH_AXIS_NONE);
    uint32_t normed = act(b, "qkv.norm", b->build->dtype, qkv_cols, DH_AXIS_HEADS);
    add_op(b, DH_OP_QK_SQUARES, IN(qkv), IN(sums));
    add_op(b, DH_OP_QK_NORM,
           IN(sums, qkv, param(b, DH_PARAM_Q_NORM_W), param(b, DH_PARAM_K_NORM_W)), IN(normed));
    return normed;
}

static uint32_t softmax_attention(builder *b, uint32_t qkv)
{
    const dh_model *m = b->model;
    const uint32_t o = act(b, "o", b->build->dtype, m->n_heads * m->head_dim, DH_AXIS_HEADS);
    if (b->build->mode == DH_MODE_DECODE) {
        uint32_t cache = state(b, "kv", DH_STATE_KV_CACHE, b->build->dtype, b->build->cache_len,
                               2 * m->n_kv_heads * m->head_dim);
        add_op(b, DH_OP_ATTN_CACHED, IN(qkv, input(b, DH_IN_POS)), IN(o, cache));
        return o;
    }
    const dh_tensor lse = {.name = "lse",
                           .kind = DH_TENSOR_ACT,
                           .dtype = DH_F32,
                           .ndim = 3,
                           .shape = {b->build->batch, m->n_heads, b->build->seq},
                           .axis = {DH_AXIS_NONE, DH_AXIS_HEADS, DH_AXIS_TOKENS},
                           .base = DH_NONE,
                           .which = DH_NONE};
    add_op(b, DH_OP_ATTN, IN(qkv, b->build->documents ? input(b, DH_IN_POS) : DH_NONE),
           IN(o, add_tensor(b, &lse)));
    return o;
}

/* Without a softmax to bound it, the output grows with the sequence. So a norm of every head
 * follows (Sun et al. 2024, arXiv 2404.02882, 2.1; Qin et al. 2022, arXiv 2210.10340). */
static uint32_t linear_attention(builder *b, uint32_t qkv)
{
    const dh_model *m = b->model;
    const int64_t o_cols = m->n_heads * m->head_dim;
    if (m->feature_map != DH_FEATURE_IDENTITY) {
        const uint32_t mapped = act(b, "qkv.map", b->build->dtype,
                                    o_cols + 2 * m->n_kv_heads * m->head_dim, DH_AXIS_HEADS);
        add_op(b, DH_OP_FEATURE_MAP, IN(qkv), IN(mapped));
        qkv = mapped;
    }
    const uint32_t o = act(b, "o", b->build->dtype, o_cols, DH_AXIS_HEADS);
    if (b->build->mode == DH_MODE_DECODE) {
        const uint32_t sums =
            state(b, "state", DH_STATE_KV_CACHE, DH_F32, m->n_kv_heads * m->head_dim, m->head_dim);
        add_op(b, DH_OP_LINEAR_CACHED, IN(qkv, input(b, DH_IN_POS)), IN(o, sums));
    } else {
        add_op(b, DH_OP_LINEAR_ATTN, IN(qkv), IN(o));
    }
    const uint32_t normed = act(b, "o.norm", b->build->dtype, o_cols, DH_AXIS_HEADS);
    const uint32_t stats = act(b, "o.stats", DH_F32, 2 * m->n_heads, DH_AXIS_HEADS);
    add_op(b, DH_OP_HEAD_RMS, IN(o), IN(normed, stats));
    return normed;
}

static uint32_t attention(builder *b, uint32_t qkv)
{
    const dh_model *m = b->model;
    int64_t qkv_cols = (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    if (m->qk_norm_all) qkv = norm_all_heads(b, qkv, qkv_cols);
    if (m->qk_norm) {
        uint32_t normed = act(b, "qkv.norm", b->build->dtype, qkv_cols, DH_AXIS_HEADS);
        uint32_t stats =
            act(b, "qkv.stats", DH_F32, 2 * (m->n_heads + m->n_kv_heads), DH_AXIS_HEADS);
        add_op(b, DH_OP_HEAD_NORM,
               IN(qkv, param(b, DH_PARAM_Q_NORM_W), param(b, DH_PARAM_K_NORM_W)),
               IN(normed, stats));
        qkv = normed;
    }
    if (m->family != DH_FAMILY_GPT2) {
        uint32_t rotated = act(b, "qkv.rot", b->build->dtype, qkv_cols, DH_AXIS_HEADS);
        add_op(b, DH_OP_ROPE, IN(qkv, input(b, DH_IN_POS)), IN(rotated));
        qkv = rotated;
    }
    return m->attention == DH_ATTENTION_LINEAR ? linear_attention(b, qkv)
                                               : softmax_attention(b, qkv);
}

/* ---- latent attention ----------------------------------------------------------------------- */

/* From `x` to few channels, for `which`, of which the first have a norm. */
static uint32_t latent_norm(builder *b, const char *name, uint32_t x, int64_t cols, uint32_t which)
{
    uint32_t y = act(b, name, b->build->dtype, cols, DH_AXIS_NONE);
    uint32_t stats = act(b, "stats", DH_F32, 2, DH_AXIS_NONE);
    add_op(b, DH_OP_NORM, IN(x, param(b, which), DH_NONE), IN(y, stats));
    return y;
}

/* All ranks have all latent channels, whoever has the rows of the weight that make them. */
static uint32_t latent_linear(builder *b, const char *name, uint32_t x, uint32_t which)
{
    uint32_t y = linear(b, name, x, which, DH_NONE);
    if (!b->failed) b->graph->tensors.at[y].axis[1] = DH_AXIS_NONE;
    return y;
}

static uint32_t latent_queries(builder *b, uint32_t x)
{
    if (b->model->q_lora == 0) return linear(b, "q", x, DH_PARAM_QKV_W, DH_NONE);
    uint32_t latent = latent_linear(b, "q_a", x, DH_PARAM_Q_A_W);
    latent = latent_norm(b, "q_a.norm", latent, b->model->q_lora, DH_PARAM_Q_A_NORM_W);
    return linear(b, "q", latent, DH_PARAM_Q_B_W, DH_NONE);
}

/* DeepSeek V2 (arXiv 2405.04434, 2.1): queries, keys and values of all heads out of few channels.
 * They are laid out as packed qkv with values as wide as keys, so every attention there is works on
 * them. Zeros take (D - V) / 2D of its products, 1 / 6 with 192 and 128. */
static uint32_t latent_attention(builder *b, uint32_t x)
{
    const dh_model *m = b->model;
    const dh_dtype dtype = b->build->dtype;
    uint32_t q = latent_queries(b, x);
    uint32_t both = latent_linear(b, "kv_a", x, DH_PARAM_KV_A_W);
    uint32_t latent = act(b, "kv_a.kv", dtype, m->kv_lora, DH_AXIS_NONE);
    uint32_t k_rot = act(b, "kv_a.rot", dtype, m->rope_dim, DH_AXIS_NONE);
    add_op(b, DH_OP_SPLIT_COLUMNS, IN(both), IN(latent, k_rot, DH_NONE, DH_NONE));
    latent = latent_norm(b, "kv_a.norm", latent, m->kv_lora, DH_PARAM_KV_A_NORM_W);
    uint32_t kv = linear(b, "kv", latent, DH_PARAM_KV_B_W, DH_NONE);
    uint32_t qkv = act(b, "qkv", dtype, 3 * m->n_heads * m->head_dim, DH_AXIS_HEADS);
    add_op(b, DH_OP_LATENT_PACK, IN(q, kv, k_rot, input(b, DH_IN_POS)), IN(qkv));
    uint32_t o = act(b, "o.v", dtype, m->n_heads * m->v_dim, DH_AXIS_HEADS);
    add_op(b, DH_OP_LATENT_CUT, IN(softmax_attention(b, qkv)), IN(o));
    return o;
}

/* ---- feed-forward part ---------------------------------------------------------------------- */

static uint32_t activation(builder *b, uint32_t h, int64_t width)
{
    if (b->failed) return DH_NONE;
    const dh_tensor *t = &b->graph->tensors.at[h];
    uint32_t g = act_rows(b, "g", t->dtype, t->shape[0], t->axis[0], width, DH_AXIS_FFN);
    add_op(b, DH_OP_ACT, IN(h), IN(g));
    return g;
}

static uint32_t dense_ffn(builder *b, uint32_t x)
{
    uint32_t h = linear(b, "h", x, DH_PARAM_FC1_W, DH_PARAM_FC1_B);
    return linear(b, "f", activation(b, h, b->model->ffn_width), DH_PARAM_FC2_W, DH_NONE);
}

/* Capacity of an expert: its even share of the choices times a factor, rounded up. */
static int64_t expert_capacity(const dh_build *build)
{
    const dh_model *m = build->model;
    if (!m->n_experts || build->moe_capacity <= 0 || build->mode == DH_MODE_DECODE) return 0;
    const int64_t rows = build->batch * build->seq;
    const double share = (double)(rows * m->top_k) / (double)m->n_experts;
    return DH_MIN((int64_t)ceil(DH_MIN(build->moe_capacity * share, (double)rows)), rows);
}

/* Rows of all experts together: every choice of a token, or the room all experts have. */
static int64_t routed_rows(const builder *b)
{
    const int64_t capacity = expert_capacity(b->build);
    return capacity ? b->model->n_experts * capacity : rows_of(b) * b->model->top_k;
}

/* Rows of all layers with routers in the load-balancing loss of a micro-batch. */
static int64_t router_rows(const builder *b)
{
    const dh_model *whole = b->build->model;
    return dh_model_n_routed(whole, whole->n_layers) * rows_of(b);
}

static uint32_t grouped_linear(builder *b, const char *name, uint32_t x, uint32_t which_w,
                               uint32_t offsets)
{
    uint32_t w = param(b, which_w);
    if (b->failed) return DH_NONE;
    const dh_tensor *wt = &b->graph->tensors.at[w];
    uint32_t y = act_rows(b, name, b->build->dtype, routed_rows(b), DH_AXIS_ROUTED, wt->shape[1],
                          wt->axis[1]);
    add_op(b, DH_OP_GROUPED_LINEAR, IN(x, w, offsets), IN(y));
    return y;
}

/* Experts that every token goes to are one, as wide as all of them: added to what others give. */
static uint32_t add_shared(builder *b, uint32_t x, uint32_t routed)
{
    if (b->model->n_shared == 0) return routed;
    const int64_t width = b->model->n_shared * b->model->ffn_width;
    uint32_t h = linear(b, "shared.h", x, DH_PARAM_SHARED_FC1_W, DH_NONE);
    uint32_t y = linear(b, "shared", activation(b, h, width), DH_PARAM_SHARED_FC2_W, DH_NONE);
    uint32_t sum = act(b, "f.sum", b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    add_op(b, DH_OP_ADD, IN(routed, y), IN(sum));
    return sum;
}

/* A router chooses top_k experts for each token; tokens are put in the order of their
 * experts, each expert works on its rows, and a token's results are summed, weighted. */
static uint32_t experts_ffn(builder *b, uint32_t x)
{
    const dh_model *m = b->model;
    const dh_dtype dtype = b->build->dtype;
    uint32_t logits = linear(b, "logits", x, DH_PARAM_ROUTER_W, DH_NONE);
    uint32_t weights = act(b, "weights", DH_F32, m->top_k, DH_AXIS_NONE);
    uint32_t probs = act(b, "probs", DH_F32, m->n_experts, DH_AXIS_EXPERTS);
    uint32_t experts = act(b, "experts", DH_I32, m->top_k, DH_AXIS_NONE);
    add_op(b, DH_OP_ROUTER, IN(logits, param(b, DH_PARAM_ROUTER_B)), IN(weights, probs, experts))
        ->rows = router_rows(b);
    if (b->build->mode == DH_MODE_TRAIN)
        add_op(b, DH_OP_ROUTER_SUMS, IN(probs, experts),
               IN(state(b, "router", DH_STATE_ROUTER, DH_F64, 2, m->n_experts)));
    uint32_t slots = act(b, "slots", DH_I32, m->top_k, DH_AXIS_NONE);
    uint32_t offsets =
        act_rows(b, "offsets", DH_I64, m->n_experts + 1, DH_AXIS_NONE, 0, DH_AXIS_NONE);
    add_op(b, DH_OP_MOE_ORDER, IN(experts), IN(slots, offsets, DH_NONE))->capacity =
        expert_capacity(b->build);
    uint32_t routed =
        act_rows(b, "routed", dtype, routed_rows(b), DH_AXIS_ROUTED, m->width, DH_AXIS_WIDTH);
    add_op(b, DH_OP_MOE_PERMUTE, IN(x, slots), IN(routed));
    uint32_t h = grouped_linear(b, "h", routed, DH_PARAM_FC1_W, offsets);
    uint32_t y = grouped_linear(b, "y", activation(b, h, m->ffn_width), DH_PARAM_FC2_W, offsets);
    uint32_t f = act(b, "f", dtype, m->width, DH_AXIS_WIDTH);
    add_op(b, DH_OP_MOE_UNPERMUTE, IN(y, slots, weights), IN(f));
    return add_shared(b, x, f);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static void build_data(builder *b)
{
    add_op(b, DH_OP_LOAD, IN(0),
           IN(input(b, DH_IN_TOKENS), input(b, DH_IN_TARGETS), input(b, DH_IN_POS),
              input(b, DH_IN_SAMPLE)));
}

static void build_embed(builder *b)
{
    uint32_t x = act(b, "x", b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    dh_op *op = add_op(b, DH_OP_EMBED,
                       IN(input(b, DH_IN_TOKENS), input(b, DH_IN_POS), input(b, DH_IN_SAMPLE),
                          param(b, DH_PARAM_WTE), param(b, DH_PARAM_WPE)),
                       IN(x));
    op->site = DH_SITE_EMBED;
    b->graph->x_out = x;
    if (!b->model->embed_scaled) return;
    uint32_t scaled = act(b, "x.scaled", b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    add_op(b, DH_OP_SCALE, IN(x), IN(scaled));
    b->graph->x_out = scaled;
}

/* Where the model has none of these, what comes is what goes. */
static uint32_t norm_before(builder *b, const char *name, uint32_t x, uint32_t which_w,
                            uint32_t which_b)
{
    return b->model->norm_place == DH_NORMS_AFTER ? x : norm(b, name, x, which_w, which_b);
}

static uint32_t norm_after(builder *b, const char *name, uint32_t y, uint32_t which_w)
{
    return b->model->norm_place == DH_NORMS_BEFORE ? y : norm(b, name, y, which_w, DH_NONE);
}

static void build_layer(builder *b)
{
    uint32_t x = act(b, "x", b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    uint32_t n1 = norm_before(b, "n1", x, DH_PARAM_LN1_W, DH_PARAM_LN1_B);
    uint32_t o = b->model->kv_lora
                     ? latent_attention(b, n1)
                     : attention(b, linear(b, "qkv", n1, DH_PARAM_QKV_W, DH_PARAM_QKV_B));
    uint32_t p = linear(b, "proj", o, DH_PARAM_PROJ_W, DH_NONE);
    p = norm_after(b, "proj.norm", p, DH_PARAM_LN1_POST_W);
    uint32_t x2 = residual(b, "x2", x, p, DH_PARAM_PROJ_B, DH_SITE_ATTN);
    uint32_t n2 = norm_before(b, "n2", x2, DH_PARAM_LN2_W, DH_PARAM_LN2_B);
    uint32_t f = b->model->n_experts ? experts_ffn(b, n2) : dense_ffn(b, n2);
    f = norm_after(b, "f.norm", f, DH_PARAM_LN2_POST_W);
    b->graph->x_in = x;
    b->graph->x_out = residual(b, "x3", x2, f, DH_PARAM_FC2_B, DH_SITE_MLP);
}

static void build_no_operators(builder *b)
{
    (void)b; /* parameters alone */
}

static uint32_t chunk_act(builder *b, const char *name, dh_dtype dtype, int64_t rows, int64_t cols,
                          dh_axis axis)
{
    uint32_t id = act(b, name, dtype, cols, axis);
    if (!b->failed) b->graph->tensors.at[id].shape[0] = rows;
    return id;
}

/* Logits of rows of x as the loss, or whoever samples, is to see them. */
static uint32_t make_logits(builder *b, uint32_t x, int64_t n)
{
    uint32_t logits = chunk_act(b, "logits", DH_F32, n, b->model->vocab, DH_AXIS_VOCAB);
    add_op(b, DH_OP_LINEAR, IN(x, param(b, DH_PARAM_HEAD_W), param(b, DH_PARAM_HEAD_B)),
           IN(logits));
    if (b->model->logit_softcap <= 0) return logits;
    uint32_t capped = chunk_act(b, "logits.cap", DH_F32, n, b->model->vocab, DH_AXIS_VOCAB);
    add_op(b, DH_OP_SOFTCAP, IN(logits), IN(capped));
    return capped;
}

/* One row chunk of the head: logits, loss, and in train mode the loss gradient
 * with both products of the linear's backward, so that the logits die here. */
static void build_head_chunk(builder *b, uint32_t xn, uint32_t dxn, uint32_t loss, int64_t row0,
                             int64_t n)
{
    const dh_dtype dtype = b->build->dtype;
    const int64_t vocab = b->model->vocab;
    uint32_t w = param(b, DH_PARAM_HEAD_W);
    uint32_t x = view(b, xn, row0, n);
    uint32_t targets = view(b, input(b, DH_IN_TARGETS), row0, n);
    uint32_t logits = make_logits(b, x, n);
    uint32_t stats = chunk_act(b, "ce", DH_F32, n, 3, DH_AXIS_NONE);
    add_op(b, DH_OP_LOSS_STATS, IN(logits, targets), IN(stats));
    add_op(b, DH_OP_LOSS, IN(stats, targets), IN(loss));
    if (b->build->mode != DH_MODE_TRAIN) return;
    uint32_t dlogits = chunk_act(b, "dlogits", dtype, n, vocab, DH_AXIS_VOCAB);
    add_op(b, DH_OP_LOSS_GRAD, IN(logits, targets, stats), IN(dlogits));
    if (b->model->logit_softcap > 0) {
        const uint32_t dcapped = dlogits;
        dlogits = chunk_act(b, "dlogits.cap", dtype, n, vocab, DH_AXIS_VOCAB);
        add_op(b, DH_OP_SOFTCAP_GRAD, IN(dcapped, logits), IN(dlogits));
    }
    add_op(b, DH_OP_LINEAR_DGRAD, IN(dlogits, w), IN(view(b, dxn, row0, n)));
    if (dh_graph_trains(b->graph, DH_PARAM_HEAD_W))
        add_op(b, DH_OP_LINEAR_WGRAD, IN(dlogits, x), IN(grad_of_param(b, DH_PARAM_HEAD_W)));
    if (b->model->head_bias && dh_graph_trains(b->graph, DH_PARAM_HEAD_B))
        add_op(b, DH_OP_BIAS_GRAD, IN(dlogits), IN(grad_of_param(b, DH_PARAM_HEAD_B)));
}

static void build_head(builder *b)
{
    uint32_t x = act(b, "x", b->build->dtype, b->model->width, DH_AXIS_WIDTH);
    uint32_t xn = norm(b, "xn", x, DH_PARAM_LNF_W, DH_PARAM_LNF_B);
    b->graph->x_in = x;
    if (b->build->mode == DH_MODE_DECODE) {
        uint32_t last = view(b, xn, rows_of(b) - 1, 1);
        b->graph->x_out = make_logits(b, last, 1);
        return;
    }
    uint32_t loss = state(b, "loss", DH_STATE_LOSS, DH_F64, 2, 0);
    uint32_t dxn = DH_NONE;
    if (b->build->mode == DH_MODE_TRAIN) {
        dxn = act(b, "dxn", b->build->dtype, b->model->width, DH_AXIS_WIDTH);
        b->graph->loss_x = xn;
        b->graph->loss_dx = dxn;
    }
    int64_t max_rows = b->build->head_chunk_bytes / (b->model->vocab * (int64_t)sizeof(float));
    max_rows = DH_MAX(max_rows / 64 * 64, 64);
    int64_t n_chunks = (rows_of(b) + max_rows - 1) / max_rows; /* of about equal size */
    int64_t chunk = ((rows_of(b) + n_chunks - 1) / n_chunks + 63) / 64 * 64;
    for (int64_t row = 0; row < rows_of(b); row += chunk)
        build_head_chunk(b, xn, dxn, loss, row, DH_MIN(chunk, rows_of(b) - row));
    if (b->build->mode == DH_MODE_TRAIN && b->model->n_experts) /* all layers have routed */
        add_op(b, DH_OP_ROUTER_AUX,
               IN(state(b, "router", DH_STATE_ROUTER, DH_F64, 2, b->model->n_experts)),
               IN(state(b, "aux", DH_STATE_AUX, DH_F64, 2, 0)))
            ->rows = router_rows(b);
}

/* ---- entry -------------------------------------------------------------------------------- */

/* 0: the usual one. */
static double score_scale(const dh_model *m)
{
    if (m->query_scalar > 0) return 1 / sqrt(m->query_scalar);
    const double yarn = m->kv_lora ? dh_rope_score_scale(&m->rope) : 1;
    return yarn == 1 ? 0 : yarn / sqrt((double)m->head_dim);
}

static dh_dims dims_of(const dh_build *build, const dh_model *m)
{
    const int64_t rows = build->batch * build->seq;
    dh_dims d = {
        .batch = build->batch,
        .seq = build->seq,
        .width = m->width,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .ffn_width = m->ffn_width,
        .vocab = m->vocab,
        .max_seq = build->mode == DH_MODE_DECODE ? build->cache_len : build->seq,
        .norm = m->norm,
        .norm_eps = m->norm_eps,
        .norm_plus_one = m->norm_plus_one,
        .act = m->act,
        .embed_scale = m->embed_scaled ? sqrt((double)m->width) : 0,
        .attn_scale = score_scale(m),
        .attn_softcap = m->attn_softcap,
        .logit_softcap = m->logit_softcap,
        .lora_scale = dh_model_lora_scale(m),
        .rope = m->rope,
        .longrope = m->longrope,
        .nth = m->nth,
        .rope_nth = m->rope_nth,
        .dropout = build->mode == DH_MODE_TRAIN ? build->dropout : 0.0,
        .loss_scale = build->loss_scale,
        .top_k = m->top_k,
        .topk_plain = m->topk_plain,
        .sparsemixer = m->sparsemixer,
        .router_jitter = m->router_jitter,
        .rope_dim = m->rope_dim,
        .v_dim = m->v_dim,
        .rope_pairs = m->rope_pairs,
        .n_groups = m->n_groups,
        .top_groups = m->top_groups,
        .router_scale = m->router_scale,
        .router_balanced = m->n_groups && build->balances_routers && build->mode == DH_MODE_TRAIN,
        /* The balancing loss of a micro-batch counts as its tokens do in the batch. */
        .aux_scale = m->router_aux_coef * build->loss_scale * (double)rows,
    };
    if (m->attention == DH_ATTENTION_LINEAR) {
        d.linear = 1;
        d.zigzag = dh_model_cp_chunks(build->model) > 1;
        d.feature_map = m->feature_map;
        d.linear_ring = build->linear_ring;
    }
    d.float_kv_grads = build->float_kv_grads;
    if (build->mode != DH_MODE_DECODE) d.fp8 = build->fp8;
    if (m->window == 0) return d;
    d.window = m->window;
    d.window_from = m->window_from;
    d.window_every = m->window_every;
    d.layers = m->n_layers;
    return d;
}

dh_status dh_graph_build(dh_ctx *ctx, const dh_build *build, dh_block_kind kind, dh_graph **graph)
{
    static void (*const builders[DH_N_BLOCK_KIND])(builder *) = {
        [DH_BLOCK_EMBED] = build_embed,
        [DH_BLOCK_LAYER] = build_layer,
        [DH_BLOCK_HEAD] = build_head,
        [DH_BLOCK_DATA] = build_data,
        [DH_BLOCK_EXPERTS] = build_no_operators,
        [DH_BLOCK_ADAPTERS] = build_no_operators,
    };
    if ((unsigned)kind >= DH_N_BLOCK_KIND || !builders[kind])
        return dh_fail(ctx, DH_EINVAL, "block kind %d has no builder", (int)kind);
    dh_graph *g = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    g->kind = kind;
    g->mode = build->mode;
    g->dtype = build->dtype;
    const bool of_layer =
        kind == DH_BLOCK_LAYER || kind == DH_BLOCK_EXPERTS || kind == DH_BLOCK_ADAPTERS;
    const dh_model model = of_layer ? dh_model_of_layer(build->model, build->layer) : *build->model;
    g->dims = dims_of(build, &model);
    if (kind != DH_BLOCK_LAYER) g->dims.fp8 = DH_FP8_OFF;
    g->x_in = g->x_out = g->dx_out = g->dx_in = g->loss_x = g->loss_dx = DH_NONE;
    builder b = {.build = build, .model = &model, .graph = g};
    memset(b.params, 0xff, sizeof b.params);
    memset(b.grads, 0xff, sizeof b.grads);
    memset(b.inputs, 0xff, sizeof b.inputs);
    builders[kind](&b);
    if (b.failed) {
        dh_graph_destroy(g);
        return dh_no_memory(ctx);
    }
    *graph = g;
    return DH_OK;
}
