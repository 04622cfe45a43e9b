/* Parameters of each block: shapes, initialisation, and where Hugging Face
 * checkpoints keep them. One row per parameter and family, or of the family it
 * resembles; a family without a row has no such parameter. */
#include "graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Sizes a row can name. */
typedef enum size_name {
    ONE,
    WIDTH,
    VOCAB,
    MAX_SEQ,
    QKV,
    Q_ROWS, /* H*D: also the attention output's width */
    KV_ROWS,
    FFN,
    FFN_PACKED, /* 2F where it is gated: gate then up */
    HEAD,       /* D: one head */
    EXPERTS,
    Q_LATENT,
    KV_LATENT,
    KV_LATENT_ROT, /* and the channels that are rotated */
    KV_HEADS,      /* keys' channels that are not rotated and values, head by head */
    V_ROWS,        /* H*V */
    SHARED,        /* S*F: the experts of every token, as one */
    SHARED_PACKED
} size_name;

typedef enum init_rule { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL } init_rule;
typedef enum when {
    ALWAYS,
    IF_BIAS,
    IF_QKV_BIAS,
    IF_ATTN_BIAS,
    IF_NORM_BIAS,
    IF_HEAD_BIAS,
    IF_QK_NORM,
    IF_NORMS_BEFORE,
    IF_UNTIED,
    IF_DENSE,
    IF_EXPERTS,
    IF_SHARED,
    IF_Q_LATENT,
    IF_Q_STRAIGHT
} when;

typedef enum form {
    PLAIN,
    STACKED, /* one for each expert */
    WIDE,    /* used in float32 */
    BY_HEADS /* all heads share it */
} form;

typedef struct piece_row {
    const char *hf_name; /* %d: layer; %%d: expert */
    size_name rows;      /* 0 ends the list (ONE is never a row count of a piece) */
} piece_row;

typedef struct param_row {
    dh_block_kind kind;
    uint32_t which;
    const char *name;
    size_name rows, cols; /* cols ONE: a vector */
    dh_axis row_axis, col_axis;
    init_rule init;
    when present;
    bool transpose; /* HF stores [in, out] */
    piece_row pieces[3];
    form form;
} param_row;

#define VECTOR(kind, which, name, rows, axis, init, when_, hf)                                     \
    {                                                                                              \
        DH_BLOCK_##kind, DH_PARAM_##which, name, rows, ONE, DH_AXIS_##axis, DH_AXIS_NONE, init,    \
            when_, false, {{hf, rows}}, PLAIN                                                      \
    }
#define MATRIX_IF(when_, form_, kind, which, name, rows, cols, ra, ca, init, tr, ...)              \
    {                                                                                              \
        DH_BLOCK_##kind, DH_PARAM_##which, name, rows, cols, DH_AXIS_##ra, DH_AXIS_##ca, init,     \
            when_, tr, {__VA_ARGS__}, form_                                                        \
    }
/* A vector that all heads share. */
#define HEAD_VECTOR(which, name, init, when_, hf)                                                  \
    MATRIX_IF(when_, BY_HEADS, LAYER, which, name, HEAD, ONE, NONE, NONE, init, false, {hf, HEAD})
/* A vector in pieces. */
#define PIECES(kind, which, name, rows, axis, init, when_, ...)                                    \
    MATRIX_IF(when_, PLAIN, kind, which, name, rows, ONE, axis, NONE, init, false, __VA_ARGS__)
#define MATRIX(...) MATRIX_IF(ALWAYS, PLAIN, __VA_ARGS__)

static const param_row gpt2_rows[] = {
    MATRIX(EMBED, WTE, "wte", VOCAB, WIDTH, VOCAB, WIDTH, INIT_NORMAL, false,
           {"wte.weight", VOCAB}),
    MATRIX(EMBED, WPE, "wpe", MAX_SEQ, WIDTH, NONE, WIDTH, INIT_NORMAL, false,
           {"wpe.weight", MAX_SEQ}),
    VECTOR(LAYER, LN1_W, "ln1.w", WIDTH, WIDTH, INIT_ONE, ALWAYS, "h.%d.ln_1.weight"),
    VECTOR(LAYER, LN1_B, "ln1.b", WIDTH, WIDTH, INIT_ZERO, IF_BIAS, "h.%d.ln_1.bias"),
    MATRIX(LAYER, QKV_W, "qkv.w", QKV, WIDTH, HEADS, WIDTH, INIT_NORMAL, true,
           {"h.%d.attn.c_attn.weight", QKV}),
    VECTOR(LAYER, QKV_B, "qkv.b", QKV, HEADS, INIT_ZERO, IF_BIAS, "h.%d.attn.c_attn.bias"),
    MATRIX(LAYER, PROJ_W, "proj.w", WIDTH, Q_ROWS, WIDTH, HEADS, INIT_RESIDUAL, true,
           {"h.%d.attn.c_proj.weight", WIDTH}),
    VECTOR(LAYER, PROJ_B, "proj.b", WIDTH, WIDTH, INIT_ZERO, IF_BIAS, "h.%d.attn.c_proj.bias"),
    VECTOR(LAYER, LN2_W, "ln2.w", WIDTH, WIDTH, INIT_ONE, ALWAYS, "h.%d.ln_2.weight"),
    VECTOR(LAYER, LN2_B, "ln2.b", WIDTH, WIDTH, INIT_ZERO, IF_BIAS, "h.%d.ln_2.bias"),
    MATRIX(LAYER, FC1_W, "fc1.w", FFN, WIDTH, FFN, WIDTH, INIT_NORMAL, true,
           {"h.%d.mlp.c_fc.weight", FFN}),
    VECTOR(LAYER, FC1_B, "fc1.b", FFN, FFN, INIT_ZERO, IF_BIAS, "h.%d.mlp.c_fc.bias"),
    MATRIX(LAYER, FC2_W, "fc2.w", WIDTH, FFN, WIDTH, FFN, INIT_RESIDUAL, true,
           {"h.%d.mlp.c_proj.weight", WIDTH}),
    VECTOR(LAYER, FC2_B, "fc2.b", WIDTH, WIDTH, INIT_ZERO, IF_BIAS, "h.%d.mlp.c_proj.bias"),
    VECTOR(HEAD, LNF_W, "lnf.w", WIDTH, WIDTH, INIT_ONE, ALWAYS, "ln_f.weight"),
    VECTOR(HEAD, LNF_B, "lnf.b", WIDTH, WIDTH, INIT_ZERO, IF_BIAS, "ln_f.bias"),
    MATRIX_IF(IF_UNTIED, PLAIN, HEAD, HEAD_W, "head.w", VOCAB, WIDTH, VOCAB, WIDTH, INIT_NORMAL,
              false, {"lm_head.weight", VOCAB}),
};

/* Llama, and those that keep its names: other feed-forward parts, biases. */
static const param_row llama_rows[] = {
    MATRIX(EMBED, WTE, "wte", VOCAB, WIDTH, VOCAB, WIDTH, INIT_NORMAL, false,
           {"model.embed_tokens.weight", VOCAB}),
    VECTOR(LAYER, LN1_W, "ln1.w", WIDTH, WIDTH, INIT_ONE, IF_NORMS_BEFORE,
           "model.layers.%d.input_layernorm.weight"),
    MATRIX(LAYER, QKV_W, "qkv.w", QKV, WIDTH, HEADS, WIDTH, INIT_NORMAL, false,
           {"model.layers.%d.self_attn.q_proj.weight", Q_ROWS},
           {"model.layers.%d.self_attn.k_proj.weight", KV_ROWS},
           {"model.layers.%d.self_attn.v_proj.weight", KV_ROWS}),
    PIECES(LAYER, QKV_B, "qkv.b", QKV, HEADS, INIT_ZERO, IF_QKV_BIAS,
           {"model.layers.%d.self_attn.q_proj.bias", Q_ROWS},
           {"model.layers.%d.self_attn.k_proj.bias", KV_ROWS},
           {"model.layers.%d.self_attn.v_proj.bias", KV_ROWS}),
    HEAD_VECTOR(Q_NORM_W, "q_norm.w", INIT_ONE, IF_QK_NORM,
                "model.layers.%d.self_attn.q_norm.weight"),
    HEAD_VECTOR(K_NORM_W, "k_norm.w", INIT_ONE, IF_QK_NORM,
                "model.layers.%d.self_attn.k_norm.weight"),
    MATRIX(LAYER, PROJ_W, "proj.w", WIDTH, Q_ROWS, WIDTH, HEADS, INIT_RESIDUAL, false,
           {"model.layers.%d.self_attn.o_proj.weight", WIDTH}),
    VECTOR(LAYER, LN2_W, "ln2.w", WIDTH, WIDTH, INIT_ONE, IF_NORMS_BEFORE,
           "model.layers.%d.post_attention_layernorm.weight"),
    MATRIX_IF(IF_DENSE, PLAIN, LAYER, FC1_W, "fc1.w", FFN_PACKED, WIDTH, FFN, WIDTH, INIT_NORMAL,
              false, {"model.layers.%d.mlp.gate_proj.weight", FFN},
              {"model.layers.%d.mlp.up_proj.weight", FFN}),
    MATRIX_IF(IF_DENSE, PLAIN, LAYER, FC2_W, "fc2.w", WIDTH, FFN, WIDTH, FFN, INIT_RESIDUAL, false,
              {"model.layers.%d.mlp.down_proj.weight", WIDTH}),
    MATRIX_IF(IF_EXPERTS, WIDE, LAYER, ROUTER_W, "router.w", EXPERTS, WIDTH, EXPERTS, WIDTH,
              INIT_NORMAL, false, {"model.layers.%d.block_sparse_moe.gate.weight", EXPERTS}),
    MATRIX_IF(IF_EXPERTS, STACKED, EXPERTS, FC1_W, "fc1.w", FFN_PACKED, WIDTH, FFN, WIDTH,
              INIT_NORMAL, false, {"model.layers.%d.block_sparse_moe.experts.%%d.w1.weight", FFN},
              {"model.layers.%d.block_sparse_moe.experts.%%d.w3.weight", FFN}),
    MATRIX_IF(IF_EXPERTS, STACKED, EXPERTS, FC2_W, "fc2.w", WIDTH, FFN, WIDTH, FFN, INIT_RESIDUAL,
              false, {"model.layers.%d.block_sparse_moe.experts.%%d.w2.weight", WIDTH}),
    VECTOR(HEAD, LNF_W, "lnf.w", WIDTH, WIDTH, INIT_ONE, ALWAYS, "model.norm.weight"),
    MATRIX_IF(IF_UNTIED, PLAIN, HEAD, HEAD_W, "head.w", VOCAB, WIDTH, VOCAB, WIDTH, INIT_NORMAL,
              false, {"lm_head.weight", VOCAB}),
};

/* Phi-3 where it differs from Llama: what is multiplied together is kept together. */
static const param_row phi3_rows[] = {
    MATRIX(LAYER, QKV_W, "qkv.w", QKV, WIDTH, HEADS, WIDTH, INIT_NORMAL, false,
           {"model.layers.%d.self_attn.qkv_proj.weight", QKV}),
    MATRIX(LAYER, FC1_W, "fc1.w", FFN_PACKED, WIDTH, FFN, WIDTH, INIT_NORMAL, false,
           {"model.layers.%d.mlp.gate_up_proj.weight", FFN_PACKED}),
};

/* Biases of Phi-3.5-MoE. */
static const param_row phimoe_rows[] = {
    VECTOR(LAYER, LN1_B, "ln1.b", WIDTH, WIDTH, INIT_ZERO, IF_NORM_BIAS,
           "model.layers.%d.input_layernorm.bias"),
    VECTOR(LAYER, PROJ_B, "proj.b", WIDTH, WIDTH, INIT_ZERO, IF_ATTN_BIAS,
           "model.layers.%d.self_attn.o_proj.bias"),
    VECTOR(LAYER, LN2_B, "ln2.b", WIDTH, WIDTH, INIT_ZERO, IF_NORM_BIAS,
           "model.layers.%d.post_attention_layernorm.bias"),
    VECTOR(HEAD, LNF_B, "lnf.b", WIDTH, WIDTH, INIT_ZERO, IF_NORM_BIAS, "model.norm.bias"),
    VECTOR(HEAD, HEAD_B, "head.b", VOCAB, VOCAB, INIT_ZERO, IF_HEAD_BIAS, "lm_head.bias"),
};

/* OLMo 2: norms of what the parts of a layer give, and of whole rows of queries and keys. */
static const param_row olmo2_rows[] = {
    VECTOR(LAYER, LN1_POST_W, "ln1_post.w", WIDTH, WIDTH, INIT_ONE, ALWAYS,
           "model.layers.%d.post_attention_layernorm.weight"),
    VECTOR(LAYER, LN2_POST_W, "ln2_post.w", WIDTH, WIDTH, INIT_ONE, ALWAYS,
           "model.layers.%d.post_feedforward_layernorm.weight"),
    VECTOR(LAYER, Q_NORM_W, "q_norm.w", Q_ROWS, HEADS, INIT_ONE, ALWAYS,
           "model.layers.%d.self_attn.q_norm.weight"),
    VECTOR(LAYER, K_NORM_W, "k_norm.w", KV_ROWS, HEADS, INIT_ONE, ALWAYS,
           "model.layers.%d.self_attn.k_norm.weight"),
};

/* Gemma's four norms of a layer, whose weights count from 1; Gemma 3's of heads. */
static const param_row gemma_rows[] = {
    VECTOR(LAYER, LN1_W, "ln1.w", WIDTH, WIDTH, INIT_ZERO, ALWAYS,
           "model.layers.%d.input_layernorm.weight"),
    VECTOR(LAYER, LN1_POST_W, "ln1_post.w", WIDTH, WIDTH, INIT_ZERO, ALWAYS,
           "model.layers.%d.post_attention_layernorm.weight"),
    VECTOR(LAYER, LN2_W, "ln2.w", WIDTH, WIDTH, INIT_ZERO, ALWAYS,
           "model.layers.%d.pre_feedforward_layernorm.weight"),
    VECTOR(LAYER, LN2_POST_W, "ln2_post.w", WIDTH, WIDTH, INIT_ZERO, ALWAYS,
           "model.layers.%d.post_feedforward_layernorm.weight"),
    HEAD_VECTOR(Q_NORM_W, "q_norm.w", INIT_ZERO, IF_QK_NORM,
                "model.layers.%d.self_attn.q_norm.weight"),
    HEAD_VECTOR(K_NORM_W, "k_norm.w", INIT_ZERO, IF_QK_NORM,
                "model.layers.%d.self_attn.k_norm.weight"),
    VECTOR(HEAD, LNF_W, "lnf.w", WIDTH, WIDTH, INIT_ZERO, ALWAYS, "model.norm.weight"),
};

/* Qwen 3's experts, and DeepSeek's, by the names of a dense layer's parts. */
static const param_row qwen3_moe_rows[] = {
    MATRIX_IF(IF_EXPERTS, WIDE, LAYER, ROUTER_W, "router.w", EXPERTS, WIDTH, EXPERTS, WIDTH,
              INIT_NORMAL, false, {"model.layers.%d.mlp.gate.weight", EXPERTS}),
    MATRIX_IF(IF_EXPERTS, STACKED, EXPERTS, FC1_W, "fc1.w", FFN_PACKED, WIDTH, FFN, WIDTH,
              INIT_NORMAL, false, {"model.layers.%d.mlp.experts.%%d.gate_proj.weight", FFN},
              {"model.layers.%d.mlp.experts.%%d.up_proj.weight", FFN}),
    MATRIX_IF(IF_EXPERTS, STACKED, EXPERTS, FC2_W, "fc2.w", WIDTH, FFN, WIDTH, FFN, INIT_RESIDUAL,
              false, {"model.layers.%d.mlp.experts.%%d.down_proj.weight", WIDTH}),
};

/* Experts that every token goes to. */
static const param_row shared_rows[] = {
    MATRIX_IF(IF_SHARED, PLAIN, LAYER, SHARED_FC1_W, "shared_fc1.w", SHARED_PACKED, WIDTH, FFN,
              WIDTH, INIT_NORMAL, false,
              {"model.layers.%d.mlp.shared_experts.gate_proj.weight", SHARED},
              {"model.layers.%d.mlp.shared_experts.up_proj.weight", SHARED}),
    MATRIX_IF(IF_SHARED, PLAIN, LAYER, SHARED_FC2_W, "shared_fc2.w", WIDTH, SHARED, WIDTH, FFN,
              INIT_RESIDUAL, false, {"model.layers.%d.mlp.shared_experts.down_proj.weight", WIDTH}),
};

/* DeepSeek V3: attention and routers of its own. */
static const param_row deepseek3_rows[] = {
    MATRIX_IF(IF_Q_STRAIGHT, PLAIN, LAYER, QKV_W, "q.w", Q_ROWS, WIDTH, HEADS, WIDTH, INIT_NORMAL,
              false, {"model.layers.%d.self_attn.q_proj.weight", Q_ROWS}),
    MATRIX_IF(IF_Q_LATENT, PLAIN, LAYER, Q_A_W, "q_a.w", Q_LATENT, WIDTH, LATENT, WIDTH,
              INIT_NORMAL, false, {"model.layers.%d.self_attn.q_a_proj.weight", Q_LATENT}),
    VECTOR(LAYER, Q_A_NORM_W, "q_a_norm.w", Q_LATENT, NONE, INIT_ONE, IF_Q_LATENT,
           "model.layers.%d.self_attn.q_a_layernorm.weight"),
    MATRIX_IF(IF_Q_LATENT, PLAIN, LAYER, Q_B_W, "q_b.w", Q_ROWS, Q_LATENT, HEADS, NONE, INIT_NORMAL,
              false, {"model.layers.%d.self_attn.q_b_proj.weight", Q_ROWS}),
    MATRIX(LAYER, KV_A_W, "kv_a.w", KV_LATENT_ROT, WIDTH, LATENT, WIDTH, INIT_NORMAL, false,
           {"model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", KV_LATENT_ROT}),
    VECTOR(LAYER, KV_A_NORM_W, "kv_a_norm.w", KV_LATENT, NONE, INIT_ONE, ALWAYS,
           "model.layers.%d.self_attn.kv_a_layernorm.weight"),
    MATRIX(LAYER, KV_B_W, "kv_b.w", KV_HEADS, KV_LATENT, HEADS, NONE, INIT_NORMAL, false,
           {"model.layers.%d.self_attn.kv_b_proj.weight", KV_HEADS}),
    MATRIX(LAYER, PROJ_W, "proj.w", WIDTH, V_ROWS, WIDTH, HEADS, INIT_RESIDUAL, false,
           {"model.layers.%d.self_attn.o_proj.weight", WIDTH}),
    VECTOR(LAYER, ROUTER_B, "router.b", EXPERTS, NONE, INIT_ZERO, IF_EXPERTS,
           "model.layers.%d.mlp.gate.e_score_correction_bias"),
};

/* Rows of a family's own go before those of the family it resembles. */
typedef struct table {
    const param_row *rows;
    size_t n;
} table;
#define TABLE(rows)                                                                                \
    {                                                                                              \
        (rows), DH_COUNTOF(rows)                                                                   \
    }
static const table families[][4] = {
    [DH_FAMILY_GPT2] = {TABLE(gpt2_rows)},
    [DH_FAMILY_LLAMA] = {TABLE(llama_rows)},
    [DH_FAMILY_MIXTRAL] = {TABLE(llama_rows)},
    [DH_FAMILY_MISTRAL] = {TABLE(llama_rows)},
    [DH_FAMILY_QWEN2] = {TABLE(llama_rows)},
    [DH_FAMILY_PHI3] = {TABLE(phi3_rows), TABLE(llama_rows)},
    [DH_FAMILY_QWEN3] = {TABLE(llama_rows)},
    [DH_FAMILY_OLMO2] = {TABLE(olmo2_rows), TABLE(llama_rows)},
    [DH_FAMILY_SMOLLM3] = {TABLE(llama_rows)},
    [DH_FAMILY_GEMMA2] = {TABLE(gemma_rows), TABLE(llama_rows)},
    [DH_FAMILY_GEMMA3] = {TABLE(gemma_rows), TABLE(llama_rows)},
    [DH_FAMILY_QWEN3_MOE] = {TABLE(qwen3_moe_rows), TABLE(llama_rows)},
    [DH_FAMILY_DEEPSEEK3] = {TABLE(deepseek3_rows), TABLE(shared_rows), TABLE(qwen3_moe_rows),
                             TABLE(llama_rows)},
    [DH_FAMILY_GPT_OSS] = {TABLE(qwen3_moe_rows), TABLE(llama_rows)},
    [DH_FAMILY_LLAMA4] = {TABLE(shared_rows), TABLE(qwen3_moe_rows), TABLE(llama_rows)},
    [DH_FAMILY_PHIMOE] = {TABLE(phimoe_rows), TABLE(llama_rows)},
    [DH_FAMILY_OLMO3] = {TABLE(olmo2_rows), TABLE(llama_rows)},
};

static int64_t size_of(const dh_model *m, size_name name)
{
    switch (name) {
    case ONE:
        return 1;
    case WIDTH:
        return m->width;
    case VOCAB:
        return m->vocab;
    case MAX_SEQ:
        return m->max_seq;
    case QKV:
        return (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    case Q_ROWS:
        return m->n_heads * m->head_dim;
    case KV_ROWS:
        return m->n_kv_heads * m->head_dim;
    case FFN:
        return m->ffn_width;
    case FFN_PACKED:
        return 2 * m->ffn_width;
    case HEAD:
        return m->head_dim;
    case EXPERTS:
        return m->n_experts;
    case Q_LATENT:
        return m->q_lora;
    case KV_LATENT:
        return m->kv_lora;
    case KV_LATENT_ROT:
        return m->kv_lora + m->rope_dim;
    case KV_HEADS:
        return m->n_heads * (m->head_dim - m->rope_dim + m->v_dim);
    case V_ROWS:
        return m->n_heads * m->v_dim;
    case SHARED:
        return m->n_shared * m->ffn_width;
    case SHARED_PACKED:
        return 2 * m->n_shared * m->ffn_width;
    }
    return 0;
}

static bool is_present(const dh_model *m, when present)
{
    return present == ALWAYS || (present == IF_BIAS && m->bias) ||
           (present == IF_QKV_BIAS && (m->qkv_bias || m->attn_bias)) ||
           (present == IF_ATTN_BIAS && m->attn_bias) || (present == IF_NORM_BIAS && m->norm_bias) ||
           (present == IF_HEAD_BIAS && m->head_bias) || (present == IF_QK_NORM && m->qk_norm) ||
           (present == IF_NORMS_BEFORE && m->norm_place == DH_NORMS_BEFORE) ||
           (present == IF_UNTIED && !m->tied_head) || (present == IF_DENSE && !m->n_experts) ||
           (present == IF_EXPERTS && m->n_experts) || (present == IF_SHARED && m->n_shared) ||
           (present == IF_Q_LATENT && m->q_lora) ||
           (present == IF_Q_STRAIGHT && m->kv_lora && !m->q_lora);
}

int64_t dh_param_cols(const dh_param *p)
{
    return p->ndim == 1 ? 1 : p->shape[p->ndim - 1];
}

int64_t dh_param_elements(const dh_param *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->ndim; i++) n *= p->shape[i];
    return n;
}

dh_param_piece dh_param_piece_at(const dh_param *p, int i)
{
    if (p->ndim < 3) return p->piece_rows[i];
    const int n_kinds = p->n_pieces / (int)p->shape[0], expert = i / n_kinds;
    dh_param_piece piece = p->piece_rows[i % n_kinds];
    snprintf(piece.hf_name, sizeof piece.hf_name, p->piece_rows[i % n_kinds].hf_name,
             (int)p->expert0 + expert);
    piece.row += expert * p->shape[1];
    return piece;
}

static void add_piece(const param_row *row, const char *hf_name, int layer, int64_t hf_row,
                      int64_t n_rows, int64_t hf_rows, dh_param *p)
{
    int64_t cols = dh_param_cols(p);
    int64_t at = 0;
    for (int i = 0; i < p->n_pieces; i++) at += p->piece_rows[i].n_rows;
    dh_param_piece *piece = &p->piece_rows[p->n_pieces++];
    *piece = (dh_param_piece){.row = at,
                              .n_rows = n_rows,
                              .n_cols = cols,
                              .hf_row = hf_row,
                              .hf_ndim = DH_MIN(p->ndim, 2),
                              .transpose = row->transpose};
    piece->hf_shape[0] = row->transpose ? cols : hf_rows;
    piece->hf_shape[1] = row->transpose ? hf_rows : cols;
    snprintf(piece->hf_name, sizeof piece->hf_name, hf_name, layer);
}

/* A fused q|k|v tensor is three pieces, gate|up two, so that each part can be split. */
static void describe_pieces(const dh_model *m, const param_row *row, int layer, dh_param *p)
{
    for (int i = 0; i < (int)DH_COUNTOF(row->pieces) && row->pieces[i].hf_name; i++) {
        const char *name = row->pieces[i].hf_name;
        int64_t rows = size_of(m, row->pieces[i].rows);
        static const size_name qkv[] = {Q_ROWS, KV_ROWS, KV_ROWS}, gate_up[] = {FFN, FFN};
        const size_name kind = row->pieces[i].rows;
        const size_name *parts = kind == QKV ? qkv : kind == FFN_PACKED ? gate_up : &kind;
        const int n_parts = kind == QKV ? 3 : kind == FFN_PACKED ? 2 : 1;
        int64_t at = 0;
        for (int k = 0; k < n_parts; at += size_of(m, parts[k++]))
            add_piece(row, name, layer, at, size_of(m, parts[k]), rows, p);
    }
}

static void stack(const dh_model *m, dh_param *p)
{
    for (int i = p->ndim++; i > 0; i--) {
        p->shape[i] = p->shape[i - 1];
        p->axis[i] = p->axis[i - 1];
    }
    p->shape[0] = m->n_experts;
    p->axis[0] = DH_AXIS_EXPERTS;
}

/* Queries, keys and values: heads of a group lie on the rank that has their keys. */
static bool is_packed(const param_row *row)
{
    return row->kind == DH_BLOCK_LAYER &&
           (row->which == DH_PARAM_QKV_W || row->which == DH_PARAM_QKV_B);
}

static void describe(const dh_model *m, const param_row *row, int layer, dh_param *p)
{
    *p = (dh_param){
        .kind = row->kind,
        .layer = layer,
        .which = row->which,
        .ndim = row->cols == ONE ? 1 : 2,
        .shape = {size_of(m, row->rows), size_of(m, row->cols)},
        .axis = {row->row_axis, row->col_axis},
        .init_value = row->init == INIT_ONE ? 1.0 : 0.0,
        .decay = row->cols != ONE,
        .by_heads = row->form == BY_HEADS,
        .head_rows = is_packed(row) ? m->head_dim : 0,
        .wide = row->form == WIDE,
    };
    /* GPT-2 (Radford et al. 2019, 2.3): residual projections start smaller by the
     * square root of the number of residual additions. */
    if (row->init == INIT_NORMAL) p->init_std = m->init_std;
    if (row->init == INIT_RESIDUAL) p->init_std = m->init_std / sqrt(2.0 * (double)m->n_layers);
    if (row->kind == DH_BLOCK_LAYER || row->kind == DH_BLOCK_EXPERTS)
        snprintf(p->name, sizeof p->name, "layer%d.%s", layer, row->name);
    else
        snprintf(p->name, sizeof p->name, "%s", row->name);
    if (row->form == STACKED) stack(m, p);
    describe_pieces(m, row, layer, p);
    if (row->form == STACKED) p->n_pieces *= (int)m->n_experts;
}

static const param_row *find_row(const dh_model *m, dh_block_kind kind, uint32_t which)
{
    for (size_t t = 0; t < DH_COUNTOF(families[0]); t++) {
        const table *list = &families[m->family][t];
        for (size_t i = 0; i < list->n; i++)
            if (list->rows[i].kind == kind && list->rows[i].which == which) return &list->rows[i];
    }
    return NULL;
}

/* ---- adapters ------------------------------------------------------------------------- */

/* Weights of linears that can have one, and the places of their adapters. */
static const struct {
    uint32_t weight, a, end;
} adapted[] = {{DH_PARAM_QKV_W, DH_PARAM_QKV_LORA_A, DH_PARAM_PROJ_LORA_A},
               {DH_PARAM_PROJ_W, DH_PARAM_PROJ_LORA_A, DH_PARAM_FC1_LORA_A},
               {DH_PARAM_FC1_W, DH_PARAM_FC1_LORA_A, DH_PARAM_FC2_LORA_A},
               {DH_PARAM_FC2_W, DH_PARAM_FC2_LORA_A, DH_N_LAYER_PARAMS}};

uint32_t dh_param_lora_a(uint32_t which)
{
    for (size_t i = 0; i < DH_COUNTOF(adapted); i++)
        if (adapted[i].weight == which) return adapted[i].a;
    return DH_NONE;
}

/* Pieces [*first, end) are the k-th tensor of the checkpoint; false: there is none. */
static bool find_linear(const dh_param *weight, int k, int *first, int *end)
{
    *end = 0;
    for (int i = 0; i <= k; i++) {
        *first = *end;
        if (*first >= weight->n_pieces) return false;
        const char *name = weight->piece_rows[*first].hf_name;
        while (*end < weight->n_pieces && strcmp(weight->piece_rows[*end].hf_name, name) == 0)
            ++*end;
    }
    return true;
}

/* "model.layers.3.self_attn.q_proj.weight": all before ".weight", of which the last part begins at
 * *last. */
static int module_of(const char *hf_name, const char **last)
{
    const int n = (int)(strrchr(hf_name, '.') - hf_name);
    int begin = n;
    while (begin > 0 && hf_name[begin - 1] != '.') begin--;
    *last = hf_name + begin;
    return n;
}

static bool is_adapted(const dh_model *m, const dh_param *weight, int first)
{
    char module[32];
    const char *name = weight->piece_rows[first].hf_name, *last;
    const int n = module_of(name, &last);
    snprintf(module, sizeof module, "%.*s", n - (int)(last - name), last);
    return dh_model_adapts(m, module);
}

/* PEFT's name of A or B: GPT-2's transformers model has the layers one level down. */
static void name_adapter(const dh_model *m, const char *hf_name, char factor, dh_param_piece *piece)
{
    const char *last;
    snprintf(piece->hf_name, sizeof piece->hf_name, "base_model.model.%s%.*s.lora_%c.weight",
             m->family == DH_FAMILY_GPT2 ? "transformer." : "", module_of(hf_name, &last), hf_name,
             factor);
}

static void add_adapter_piece(const dh_model *m, const char *hf_name, char factor, int64_t n_rows,
                              int64_t hf_row, int64_t hf_rows, dh_param *p)
{
    const int64_t cols = p->shape[1];
    dh_param_piece *piece = &p->piece_rows[p->n_pieces++];
    *piece = (dh_param_piece){.row = p->shape[0],
                              .n_rows = n_rows,
                              .n_cols = cols,
                              .hf_row = hf_row,
                              .hf_shape = {hf_rows, cols},
                              .hf_ndim = 2};
    name_adapter(m, hf_name, factor, piece);
    p->shape[0] += n_rows;
}

static bool describe_a(const dh_model *m, const dh_param *weight, dh_param *p)
{
    int first, end;
    p->axis[1] = weight->axis[1];
    p->shape[1] = weight->shape[1];
    /* The variance that PEFT's draws have, uniform within 1 / sqrt(in). */
    p->init_std = 1 / sqrt(3.0 * (double)weight->shape[1]);
    for (int k = 0; find_linear(weight, k, &first, &end); k++)
        if (is_adapted(m, weight, first))
            add_adapter_piece(m, weight->piece_rows[first].hf_name, 'A', m->lora.rank, 0,
                              m->lora.rank, p);
    return p->n_pieces > 0;
}

/* In the pieces of its linear, each of which is split. */
static bool describe_b(const dh_model *m, const dh_param *weight, int k, dh_param *p)
{
    int first, end;
    int64_t rows = 0;
    if (!find_linear(weight, k, &first, &end) || !is_adapted(m, weight, first)) return false;
    p->axis[0] = weight->axis[0];
    p->shape[1] = m->lora.rank;
    for (int i = first; i < end; i++) rows += weight->piece_rows[i].n_rows;
    for (int i = first; i < end; i++)
        add_adapter_piece(m, weight->piece_rows[i].hf_name, 'B', weight->piece_rows[i].n_rows,
                          p->shape[0], rows, p);
    return true;
}

static bool describe_adapter(const dh_model *m, int layer, uint32_t which, dh_param *p)
{
    size_t i = 0;
    dh_param weight;
    while (which >= adapted[i].end) i++;
    dh_model base = *m;
    base.lora.rank = 0;
    if (m->lora.rank == 0 ||
        !dh_param_describe(&base, DH_BLOCK_LAYER, layer, adapted[i].weight, &weight) ||
        weight.kind != DH_BLOCK_LAYER)
        return false;
    *p = (dh_param){.kind = DH_BLOCK_ADAPTERS,
                    .layer = layer,
                    .which = which,
                    .ndim = 2,
                    .decay = true,
                    .adapter = true};
    const int k = (int)(which - adapted[i].a) - 1;
    const int n_name = (int)strlen(weight.name) - 2; /* "layer3.qkv", without ".w" */
    if (k < 0)
        snprintf(p->name, sizeof p->name, "%.*s.lora_a", n_name, weight.name);
    else
        snprintf(p->name, sizeof p->name, "%.*s.lora_b%d", n_name, weight.name, k);
    return k < 0 ? describe_a(m, &weight, p) : describe_b(m, &weight, k, p);
}

int64_t dh_param_lora_column(const dh_model *model, uint32_t which, int k)
{
    int first = 0, end;
    dh_param weight;
    if (!dh_param_describe(model, DH_BLOCK_LAYER, 0, which, &weight) ||
        !find_linear(&weight, k, &first, &end))
        return 0;
    return weight.piece_rows[first].row;
}

/* Of a model whose layers are alike. */
static bool describe_alike(const dh_model *model, dh_block_kind kind, int layer, uint32_t which,
                           dh_param *param)
{
    if ((kind == DH_BLOCK_LAYER || kind == DH_BLOCK_ADAPTERS) && dh_param_is_adapter(which))
        return describe_adapter(model, layer, which, param);
    if (kind == DH_BLOCK_HEAD && which == DH_PARAM_HEAD_W && model->tied_head) {
        kind = DH_BLOCK_EMBED;
        which = DH_PARAM_WTE;
    }
    if (kind == DH_BLOCK_LAYER && (which == DH_PARAM_FC1_W || which == DH_PARAM_FC2_W) &&
        model->n_experts > 0)
        kind = DH_BLOCK_EXPERTS;
    const param_row *row = find_row(model, kind, which);
    if (!row || !is_present(model, row->present)) return false;
    describe(model, row, layer, param);
    param->frozen = model->lora.rank > 0;
    return true;
}

bool dh_param_describe(const dh_model *model, dh_block_kind kind, int layer, uint32_t which,
                       dh_param *param)
{
    if ((size_t)model->family >= DH_COUNTOF(families)) return false;
    const bool of_layer =
        kind == DH_BLOCK_LAYER || kind == DH_BLOCK_EXPERTS || kind == DH_BLOCK_ADAPTERS;
    if (!of_layer) return describe_alike(model, kind, layer, which, param);
    const dh_model own = dh_model_of_layer(model, layer);
    return describe_alike(&own, kind, layer, which, param);
}

/* ---- shards -------------------------------------------------------------------------- */

void dh_vocab_shard(int64_t vocab, dh_shard shard, int64_t *first, int64_t *n)
{
    int64_t rows = (vocab + shard.tp - 1) / shard.tp;
    *first = DH_MIN(shard.tp_rank * rows, vocab);
    *n = DH_MIN(rows, vocab - *first);
}

static bool splits(dh_axis axis)
{
    return axis == DH_AXIS_HEADS || axis == DH_AXIS_FFN || axis == DH_AXIS_VOCAB ||
           axis == DH_AXIS_LATENT;
}

/* Axis of rows, and kinds of pieces: of one expert. */
static int row_axis(const dh_param *p)
{
    return p->ndim == 3 ? 1 : 0;
}

static int n_piece_rows(const dh_param *p)
{
    return p->ndim == 3 ? p->n_pieces / (int)p->shape[0] : p->n_pieces;
}

/* Fewer heads than ranks: runs of ranks have the same one. */
static bool repeats(const dh_param *p, const dh_param_piece *piece, dh_shard shard)
{
    return p->head_rows > 0 && piece->n_rows / p->head_rows < shard.tp;
}

static void shard_rows(dh_param *p, dh_shard shard)
{
    const int axis = row_axis(p);
    int64_t rows = 0;
    for (int i = 0; i < n_piece_rows(p); i++) {
        dh_param_piece *piece = &p->piece_rows[i];
        int64_t first = shard.tp_rank * (piece->n_rows / shard.tp);
        int64_t n = piece->n_rows / shard.tp;
        if (p->axis[axis] == DH_AXIS_VOCAB) dh_vocab_shard(piece->n_rows, shard, &first, &n);
        if (repeats(p, piece, shard)) {
            first = shard.tp_rank * (piece->n_rows / p->head_rows) / shard.tp * p->head_rows;
            n = p->head_rows;
            p->n_repeated += n * piece->n_cols;
        }
        piece->hf_row += first;
        piece->row = rows;
        piece->n_rows = n;
        rows += n;
    }
    p->shape[axis] = rows;
}

static void shard_cols(dh_param *p, dh_shard shard)
{
    int64_t *cols = &p->shape[p->ndim - 1];
    *cols /= shard.tp;
    for (int i = 0; i < n_piece_rows(p); i++) {
        p->piece_rows[i].n_cols = *cols;
        p->piece_rows[i].hf_col += shard.tp_rank * *cols;
    }
}

static void shard_experts(dh_param *p, dh_shard shard)
{
    const int64_t n_ranks = dh_shard_expert_ranks(&shard);
    if (p->ndim != 3 || n_ranks <= 1) return;
    p->shape[0] /= n_ranks;
    p->n_pieces /= (int)n_ranks;
    p->expert0 = dh_shard_expert_rank(&shard) * p->shape[0];
}

bool dh_param_shard(const dh_param *whole, dh_shard shard, dh_param *part)
{
    *part = *whole;
    shard_experts(part, shard);
    if (shard.tp == 1) return true;
    part->sharded = whole->ndim == 3 && shard.whole_experts;
    if (part->sharded) return true;
    if (whole->kind == DH_BLOCK_EMBED && whole->which == DH_PARAM_WPE) return shard.tp_rank == 0;
    bool rows = splits(whole->axis[row_axis(whole)]);
    bool cols = whole->ndim >= 2 && splits(whole->axis[whole->ndim - 1]);
    if (rows) shard_rows(part, shard);
    if (cols) shard_cols(part, shard);
    part->sharded = rows || cols;
    part->shared = whole->adapter && !part->sharded;
    /* B behind columns that are split: each rank's gradient is that of its columns, whatever tokens
     * it has. A before such: the sum of what follows is its gradient's, where it has all tokens. */
    part->by_heads |= part->shared && whole->axis[0] == DH_AXIS_WIDTH;
    return part->shape[row_axis(part)] > 0;
}
