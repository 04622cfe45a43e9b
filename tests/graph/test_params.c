/* Parameter tables: they count what the model counts, name every tensor of a Hugging
 * Face checkpoint, and their pieces, whole or split over ranks, lie side by side. */
#include "graph_cases.h"

typedef DH_VEC(dh_param) param_list;

/* Every parameter of the model once: the tied head has none of its own. */
static param_list params_of(const dh_model *m)
{
    param_list list = {0};
    static const dh_block_kind kinds[] = {DH_BLOCK_EMBED, DH_BLOCK_LAYER, DH_BLOCK_EXPERTS,
                                          DH_BLOCK_HEAD};
    for (size_t k = 0; k < DH_COUNTOF(kinds); k++)
        for (int layer = 0; layer < (k == 1 || k == 2 ? (int)m->n_layers : 1); layer++)
            for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++) {
                dh_param p;
                if (!dh_param_describe(m, kinds[k], layer, which, &p)) continue;
                if (p.kind != kinds[k]) continue;
                assert_int_equal(p.which, which);
                assert_int_equal(p.layer, layer);
                assert_true(dh_vec_push(&list, p));
            }
    return list;
}

static void totals_are_those_of_the_model(void **state)
{
    size_t n;
    const dh_model_preset *presets = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++) {
        dh_model m = preset(presets[i].name);
        param_list list = params_of(&m);
        int64_t total = 0;
        for (size_t k = 0; k < list.n; k++) total += dh_param_elements(&list.at[k]);
        if (total != dh_model_n_params(&m))
            fail_msg("%s: %lld elements in tables, %lld in the model", m.name, (long long)total,
                     (long long)dh_model_n_params(&m));
        dh_vec_fini(&list);
    }
    assert_true(n > 10);
}

/* Adapters, of what each preset's family has: as many as the model counts; halves of them over two
 * ranks, but for the factor that both have, come to the whole. */
static void adapters_are_those_of_the_model(void **state)
{
    size_t n;
    const dh_model_preset *presets = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++) {
        dh_model m = preset(presets[i].name);
        m.lora.rank = 4;
        if (m.family == DH_FAMILY_QWEN3_MOE) {
            m.moe_every = 3;
            m.dense_width = 2 * m.ffn_width;
        }
        int64_t total = 0, split[2] = {0, 0}, shared = 0;
        for (int layer = 0; layer < m.n_layers; layer++)
            for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++) {
                dh_param p, part;
                if (!dh_param_describe(&m, DH_BLOCK_ADAPTERS, layer, which, &p)) continue;
                if (p.kind != DH_BLOCK_ADAPTERS) continue;
                assert_true(p.adapter && !p.frozen && dh_param_is_adapter(which));
                total += dh_param_elements(&p);
                for (int64_t r = 0; r < 2; r++) {
                    assert_true(dh_param_shard(&p, (dh_shard){.tp = 2, .tp_rank = r}, &part));
                    assert_int_equal(part.shared, !part.sharded);
                    assert_int_equal(dh_param_is_matrix(&part), part.sharded);
                    *(part.shared ? &shared : &split[r]) += dh_param_elements(&part);
                }
            }
        if (total != dh_model_n_trained(&m))
            fail_msg("%s: %lld elements of adapters, %lld in the model", m.name, (long long)total,
                     (long long)dh_model_n_trained(&m));
        assert_int_equal(split[0], split[1]);
        if (m.n_heads % 2 == 0 && m.n_kv_heads % 2 == 0)
            assert_int_equal(split[0] + split[1] + shared / 2, total);
    }
}

/* ---- names --------------------------------------------------------------------------------- */

static void assert_hf_tensors(const dh_model *m, const char *const *names, size_t n_names)
{
    param_list list = params_of(m);
    size_t n_found = 0;
    for (size_t i = 0; i < list.n; i++)
        for (int k = 0; k < list.at[i].n_pieces; k++) {
            const dh_param_piece piece = dh_param_piece_at(&list.at[i], k);
            const char *name = piece.hf_name;
            size_t known = 0;
            while (known < n_names && strcmp(names[known], name) != 0) known++;
            if (known == n_names) fail_msg("unexpected tensor %s", name);
            /* the pieces of one tensor stand side by side in one parameter */
            const dh_param_piece before = dh_param_piece_at(&list.at[i], DH_MAX(k - 1, 0));
            n_found += k == 0 || strcmp(before.hf_name, name) != 0;
        }
    assert_int_equal(n_found, n_names);
    for (size_t i = 0; i < list.n; i++)
        for (size_t k = i + 1; k < list.n; k++)
            assert_string_not_equal(list.at[i].name, list.at[k].name);
    dh_vec_fini(&list);
}

/* As in safetensors of gpt2 and of Llama models; layers 0 and 1. */
static void names_are_those_of_hugging_face(void **state)
{
#define GPT2_LAYER(i)                                                                              \
    "h." i ".ln_1.weight", "h." i ".ln_1.bias", "h." i ".attn.c_attn.weight",                      \
        "h." i ".attn.c_attn.bias", "h." i ".attn.c_proj.weight", "h." i ".attn.c_proj.bias",      \
        "h." i ".ln_2.weight", "h." i ".ln_2.bias", "h." i ".mlp.c_fc.weight",                     \
        "h." i ".mlp.c_fc.bias", "h." i ".mlp.c_proj.weight", "h." i ".mlp.c_proj.bias"
    static const char *const gpt2[] = {"wte.weight",    "wpe.weight",  GPT2_LAYER("0"),
                                       GPT2_LAYER("1"), "ln_f.weight", "ln_f.bias"};
#define LLAMA_LAYER(i)                                                                             \
    "model.layers." i ".input_layernorm.weight", "model.layers." i ".self_attn.q_proj.weight",     \
        "model.layers." i ".self_attn.k_proj.weight",                                              \
        "model.layers." i ".self_attn.v_proj.weight",                                              \
        "model.layers." i ".self_attn.o_proj.weight",                                              \
        "model.layers." i ".post_attention_layernorm.weight",                                      \
        "model.layers." i ".mlp.gate_proj.weight", "model.layers." i ".mlp.up_proj.weight",        \
        "model.layers." i ".mlp.down_proj.weight"
    static const char *const llama[] = {"model.embed_tokens.weight", LLAMA_LAYER("0"),
                                        LLAMA_LAYER("1"), "model.norm.weight", "lm_head.weight"};
#define EXPERT(i, e)                                                                               \
    "model.layers." i ".block_sparse_moe.experts." e ".w1.weight",                                 \
        "model.layers." i ".block_sparse_moe.experts." e ".w2.weight",                             \
        "model.layers." i ".block_sparse_moe.experts." e ".w3.weight"
#define MIXTRAL_LAYER(i)                                                                           \
    "model.layers." i ".input_layernorm.weight", "model.layers." i ".self_attn.q_proj.weight",     \
        "model.layers." i ".self_attn.k_proj.weight",                                              \
        "model.layers." i ".self_attn.v_proj.weight",                                              \
        "model.layers." i ".self_attn.o_proj.weight",                                              \
        "model.layers." i ".post_attention_layernorm.weight",                                      \
        "model.layers." i ".block_sparse_moe.gate.weight", EXPERT(i, "0"), EXPERT(i, "1"),         \
        EXPERT(i, "2")
    static const char *const mixtral[] = {"model.embed_tokens.weight", MIXTRAL_LAYER("0"),
                                          MIXTRAL_LAYER("1"), "model.norm.weight",
                                          "lm_head.weight"};
#define QWEN2_LAYER(i)                                                                             \
    LLAMA_LAYER(i), "model.layers." i ".self_attn.q_proj.bias",                                    \
        "model.layers." i ".self_attn.k_proj.bias", "model.layers." i ".self_attn.v_proj.bias"
    static const char *const qwen2[] = {"model.embed_tokens.weight", QWEN2_LAYER("0"),
                                        QWEN2_LAYER("1"), "model.norm.weight", "lm_head.weight"};
#define QWEN3_LAYER(i)                                                                             \
    LLAMA_LAYER(i), "model.layers." i ".self_attn.q_norm.weight",                                  \
        "model.layers." i ".self_attn.k_norm.weight"
    static const char *const qwen3[] = {"model.embed_tokens.weight", QWEN3_LAYER("0"),
                                        QWEN3_LAYER("1"), "model.norm.weight", "lm_head.weight"};
#define PHI3_LAYER(i)                                                                              \
    "model.layers." i ".input_layernorm.weight", "model.layers." i ".self_attn.qkv_proj.weight",   \
        "model.layers." i ".self_attn.o_proj.weight",                                              \
        "model.layers." i ".post_attention_layernorm.weight",                                      \
        "model.layers." i ".mlp.gate_up_proj.weight", "model.layers." i ".mlp.down_proj.weight"
    static const char *const phi3[] = {"model.embed_tokens.weight", PHI3_LAYER("0"),
                                       PHI3_LAYER("1"), "model.norm.weight", "lm_head.weight"};
#define OLMO2_LAYER(i)                                                                             \
    "model.layers." i ".self_attn.q_proj.weight", "model.layers." i ".self_attn.k_proj.weight",    \
        "model.layers." i ".self_attn.v_proj.weight",                                              \
        "model.layers." i ".self_attn.o_proj.weight",                                              \
        "model.layers." i ".self_attn.q_norm.weight",                                              \
        "model.layers." i ".self_attn.k_norm.weight",                                              \
        "model.layers." i ".post_attention_layernorm.weight",                                      \
        "model.layers." i ".post_feedforward_layernorm.weight",                                    \
        "model.layers." i ".mlp.gate_proj.weight", "model.layers." i ".mlp.up_proj.weight",        \
        "model.layers." i ".mlp.down_proj.weight"
    static const char *const olmo2[] = {"model.embed_tokens.weight", OLMO2_LAYER("0"),
                                        OLMO2_LAYER("1"), "model.norm.weight", "lm_head.weight"};
#define QWEN3_EXPERT(e)                                                                            \
    "model.layers.0.mlp.experts." e ".gate_proj.weight",                                           \
        "model.layers.0.mlp.experts." e ".up_proj.weight",                                         \
        "model.layers.0.mlp.experts." e ".down_proj.weight"
    static const char *const qwen3_moe[] = {"model.embed_tokens.weight",
                                            "model.layers.0.input_layernorm.weight",
                                            "model.layers.0.self_attn.q_proj.weight",
                                            "model.layers.0.self_attn.k_proj.weight",
                                            "model.layers.0.self_attn.v_proj.weight",
                                            "model.layers.0.self_attn.q_norm.weight",
                                            "model.layers.0.self_attn.k_norm.weight",
                                            "model.layers.0.self_attn.o_proj.weight",
                                            "model.layers.0.post_attention_layernorm.weight",
                                            "model.layers.0.mlp.gate.weight",
                                            QWEN3_EXPERT("0"),
                                            QWEN3_EXPERT("1"),
                                            "model.norm.weight",
                                            "lm_head.weight"};
#define PHIMOE_LINEAR(part)                                                                        \
    "model.layers.0.self_attn.q_proj." part, "model.layers.0.self_attn.k_proj." part,              \
        "model.layers.0.self_attn.v_proj." part
#define PHIMOE_EXPERT(e)                                                                           \
    "model.layers.0.block_sparse_moe.experts." e ".w1.weight",                                     \
        "model.layers.0.block_sparse_moe.experts." e ".w3.weight",                                 \
        "model.layers.0.block_sparse_moe.experts." e ".w2.weight"
    static const char *const phimoe[] = {"model.embed_tokens.weight",
                                         "model.layers.0.input_layernorm.weight",
                                         "model.layers.0.input_layernorm.bias",
                                         PHIMOE_LINEAR("weight"),
                                         PHIMOE_LINEAR("bias"),
                                         "model.layers.0.self_attn.o_proj.weight",
                                         "model.layers.0.self_attn.o_proj.bias",
                                         "model.layers.0.post_attention_layernorm.weight",
                                         "model.layers.0.post_attention_layernorm.bias",
                                         "model.layers.0.block_sparse_moe.gate.weight",
                                         PHIMOE_EXPERT("0"),
                                         PHIMOE_EXPERT("1"),
                                         "model.norm.weight",
                                         "model.norm.bias",
                                         "lm_head.weight",
                                         "lm_head.bias"};
#define DEEPSEEK_Q(part) "model.layers.0.self_attn." part ".weight"
#define DEEPSEEK_REST                                                                              \
    DEEPSEEK_Q("kv_a_proj_with_mqa"), DEEPSEEK_Q("kv_a_layernorm"), DEEPSEEK_Q("kv_b_proj"),       \
        DEEPSEEK_Q("o_proj"), "model.layers.0.post_attention_layernorm.weight",                    \
        "model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.e_score_correction_bias",       \
        QWEN3_EXPERT("0"), QWEN3_EXPERT("1"),                                                      \
        "model.layers.0.mlp.shared_experts.gate_proj.weight",                                      \
        "model.layers.0.mlp.shared_experts.up_proj.weight",                                        \
        "model.layers.0.mlp.shared_experts.down_proj.weight", "model.norm.weight",                 \
        "lm_head.weight"
    static const char *const deepseek[] = {
        "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
        DEEPSEEK_Q("q_a_proj"),      DEEPSEEK_Q("q_a_layernorm"),
        DEEPSEEK_Q("q_b_proj"),      DEEPSEEK_REST};
    static const char *const deepseek_straight[] = {"model.embed_tokens.weight",
                                                    "model.layers.0.input_layernorm.weight",
                                                    DEEPSEEK_Q("q_proj"), DEEPSEEK_REST};
    dh_model m = preset("gpt2");
    m.n_layers = 2;
    assert_hf_tensors(&m, gpt2, DH_COUNTOF(gpt2));
    m = preset("llama3-8b");
    m.n_layers = 2;
    m.tied_head = false;
    assert_hf_tensors(&m, llama, DH_COUNTOF(llama));
    m.tied_head = true;
    assert_hf_tensors(&m, llama, DH_COUNTOF(llama) - 1);
    m = preset("mixtral-8x7b");
    m.n_layers = 2;
    m.n_experts = 3;
    assert_hf_tensors(&m, mixtral, DH_COUNTOF(mixtral));
    m = preset("qwen2.5-7b");
    m.n_layers = 2;
    assert_hf_tensors(&m, qwen2, DH_COUNTOF(qwen2));
    m = preset("qwen3-8b");
    m.n_layers = 2;
    assert_hf_tensors(&m, qwen3, DH_COUNTOF(qwen3));
    m = preset("phi3-mini");
    m.n_layers = 2;
    assert_hf_tensors(&m, phi3, DH_COUNTOF(phi3));
    m = preset("olmo2-7b");
    m.n_layers = 2;
    assert_hf_tensors(&m, olmo2, DH_COUNTOF(olmo2));
    m = preset("smollm3-3b");
    m.n_layers = 2;
    assert_hf_tensors(&m, llama, DH_COUNTOF(llama) - 1);
    m = preset("qwen3-30b-a3b");
    m.n_layers = 1;
    m.n_experts = 2;
    assert_hf_tensors(&m, qwen3_moe, DH_COUNTOF(qwen3_moe));
    m = preset("phi-3.5-moe");
    m.n_layers = 1;
    m.n_experts = 2;
    assert_hf_tensors(&m, phimoe, DH_COUNTOF(phimoe));
    m = preset("deepseek-v3");
    m.n_layers = 1;
    m.n_experts = 2;
    m.dense_first = m.dense_width = 0;
    assert_hf_tensors(&m, deepseek, DH_COUNTOF(deepseek));
    m.q_lora = 0;
    assert_hf_tensors(&m, deepseek_straight, DH_COUNTOF(deepseek_straight));
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* Local rows once each, in order. */
static void assert_rows_covered(const dh_param *p)
{
    int64_t row = 0;
    assert_true(p->n_pieces >= 1);
    for (int k = 0; k < p->n_pieces; k++) {
        const dh_param_piece at = dh_param_piece_at(p, k), *piece = &at;
        assert_int_equal(piece->row, row);
        assert_true(piece->n_rows > 0);
        assert_int_equal(piece->n_cols, dh_param_cols(p));
        assert_int_equal(piece->hf_ndim, DH_MIN(p->ndim, 2));
        int64_t hf_rows = piece->hf_shape[piece->transpose ? 1 : 0];
        assert_true(piece->hf_row >= 0 && piece->hf_row + piece->n_rows <= hf_rows);
        if (p->ndim >= 2) {
            int64_t hf_cols = piece->hf_shape[piece->transpose ? 0 : 1];
            assert_true(piece->hf_col >= 0 && piece->hf_col + piece->n_cols <= hf_cols);
        }
        row += piece->n_rows;
    }
    assert_int_equal(row * dh_param_cols(p), dh_param_elements(p));
}

/* How often each element of every checkpoint tensor of one parameter is held. */
typedef struct tally {
    struct {
        char name[80];
        int64_t rows, cols;
        unsigned char *held;
    } tensors[16];
    int n;
} tally;

static void count_piece(tally *t, const dh_param_piece *piece)
{
    int i = 0;
    while (i < t->n && strcmp(t->tensors[i].name, piece->hf_name) != 0) i++;
    if (i == t->n) {
        assert_true(i < (int)DH_COUNTOF(t->tensors));
        t->n++;
        memcpy(t->tensors[i].name, piece->hf_name, sizeof piece->hf_name);
        t->tensors[i].rows = piece->hf_shape[piece->transpose ? 1 : 0];
        t->tensors[i].cols = piece->hf_ndim == 2 ? piece->hf_shape[piece->transpose ? 0 : 1] : 1;
        t->tensors[i].held = calloc((size_t)(t->tensors[i].rows * t->tensors[i].cols), 1);
        assert_non_null(t->tensors[i].held);
    }
    for (int64_t r = 0; r < piece->n_rows; r++)
        for (int64_t c = 0; c < piece->n_cols; c++)
            t->tensors[i].held[(piece->hf_row + r) * t->tensors[i].cols + piece->hf_col + c]++;
}

static void assert_all_held(tally *t, int times, const char *name)
{
    for (int i = 0; i < t->n; i++) {
        for (int64_t k = 0; k < t->tensors[i].rows * t->tensors[i].cols; k++)
            if (t->tensors[i].held[k] != times)
                fail_msg("%s: element %lld of %s is held %d times, want %d", name, (long long)k,
                         t->tensors[i].name, t->tensors[i].held[k], times);
        free(t->tensors[i].held);
    }
}

/* Sharded parameters: each element on one rank. Others: on every rank, or on one
 * where only one has the parameter. */
static void assert_shards(const dh_param *whole, int64_t tp, int64_t ep, bool whole_experts)
{
    tally t = {.n = 0};
    int n_parts = 0;
    bool sharded = false;
    for (int64_t rank = 0; rank < tp * ep; rank++) {
        dh_param part;
        const dh_shard shard = {.tp = tp,
                                .tp_rank = rank % tp,
                                .ep = ep,
                                .ep_rank = rank / tp,
                                .whole_experts = whole_experts};
        if (!dh_param_shard(whole, shard, &part)) continue;
        assert_rows_covered(&part);
        for (int k = 0; k < part.n_pieces; k++) {
            const dh_param_piece piece = dh_param_piece_at(&part, k);
            count_piece(&t, &piece);
        }
        sharded = part.sharded;
        n_parts++;
    }
    assert_true(n_parts > 0);
    const bool experts = whole->ndim == 3;
    const int64_t copies = experts ? (sharded ? 1 : tp) : sharded ? ep : n_parts;
    assert_all_held(&t, (int)copies, whole->name);
}

static void pieces_hold_every_element_once(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny", "stories260K", "gpt2-char",
                                          "mixtral-tiny"};
    for (size_t i = 0; i < DH_COUNTOF(presets); i++) {
        dh_model m = preset(presets[i]);
        param_list list = params_of(&m);
        for (size_t k = 0; k < list.n; k++) {
            if (list.at[k].layer > 1) continue;
            assert_rows_covered(&list.at[k]);
            for (int64_t tp = 1; tp <= 2 && m.n_kv_heads % tp == 0; tp++)
                for (int64_t ep = 1; ep <= (m.n_experts ? 4 : 1); ep *= 2) {
                    assert_shards(&list.at[k], tp, ep, false);
                    assert_shards(&list.at[k], tp, ep, true);
                }
        }
        dh_vec_fini(&list);
    }
}

/* More ranks than heads of keys and values: a run of ranks has the same one, whole, and that of its
 * own query heads. */
static void heads_that_ranks_share(void **state)
{
    enum { TP = 8, N_KV = 2, D = 4, WIDTH = 32 };
    dh_model m = preset("llama-tiny");
    m.n_heads = TP;
    m.n_kv_heads = N_KV;
    m.head_dim = D;
    m.width = WIDTH;
    dh_param whole, part;
    assert_true(dh_param_describe(&m, DH_BLOCK_LAYER, 0, DH_PARAM_QKV_W, &whole));
    for (int64_t rank = 0; rank < TP; rank++) {
        const int64_t want[3] = {rank * D, rank / (TP / N_KV) * D, rank / (TP / N_KV) * D};
        assert_true(dh_param_shard(&whole, (dh_shard){.tp = TP, .tp_rank = rank}, &part));
        assert_rows_covered(&part);
        assert_int_equal(part.shape[0], 3 * D);
        assert_int_equal(part.n_repeated, 2 * D * WIDTH);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(part.piece_rows[k].n_rows, D);
            assert_int_equal(part.piece_rows[k].hf_row, want[k]);
        }
    }
    assert_true(dh_param_shard(&whole, (dh_shard){.tp = N_KV, .tp_rank = 1}, &part));
    assert_int_equal(part.n_repeated, 0);
}

/* GPT-2's vocabulary divides by nothing useful: the last shard is shorter, and no
 * row is padding. */
static void vocabulary_shards_meet(void **state)
{
    uint64_t seed = test_seed("vocabulary_shards_meet");
    for (int i = 0; i < 300; i++) {
        int64_t tp = 1 + (int64_t)(test_rand(&seed) % 9);
        int64_t vocab = i ? 1 + (int64_t)(test_rand(&seed) % 60000) : 50257, row = 0;
        for (int64_t rank = 0; rank < tp; rank++) {
            int64_t first, n;
            dh_vocab_shard(vocab, (dh_shard){.tp = tp, .tp_rank = rank}, &first, &n);
            assert_int_equal(first, row);
            assert_true(n >= 0 && n <= (vocab + tp - 1) / tp);
            row += n;
        }
        assert_int_equal(row, vocab);
    }
}

/* ---- what else a row says ------------------------------------------------------------------- */

static dh_param param_named(const dh_model *m, const char *name)
{
    param_list list = params_of(m);
    dh_param found = {.n_pieces = 0};
    for (size_t i = 0; i < list.n; i++)
        if (strcmp(list.at[i].name, name) == 0) found = list.at[i];
    dh_vec_fini(&list);
    if (!found.n_pieces) fail_msg("no parameter %s", name);
    return found;
}

static void tied_heads_are_the_embedding(void **state)
{
    dh_model m = preset("gpt2");
    dh_param head, wte = param_named(&m, "wte");
    assert_true(dh_param_describe(&m, DH_BLOCK_HEAD, 0, DH_PARAM_HEAD_W, &head));
    assert_string_equal(head.name, "wte");
    assert_true(head.kind == DH_BLOCK_EMBED && head.which == DH_PARAM_WTE);
    assert_int_equal(dh_param_elements(&head), dh_param_elements(&wte));
    m.tied_head = false;
    assert_true(dh_param_describe(&m, DH_BLOCK_HEAD, 0, DH_PARAM_HEAD_W, &head));
    assert_string_equal(head.name, "head.w");
}

static void layers_find_their_experts(void **state)
{
    dh_model m = preset("mixtral-tiny");
    dh_param fc1 = param_named(&m, "layer1.fc1.w"), found;
    assert_true(dh_param_describe(&m, DH_BLOCK_LAYER, 1, DH_PARAM_FC1_W, &found));
    assert_string_equal(found.name, fc1.name);
    assert_true(found.kind == DH_BLOCK_EXPERTS && found.which == DH_PARAM_FC1_W && found.ndim == 3);
    assert_true(fc1.shape[0] == 8 && fc1.shape[1] == 2 * 96 && fc1.shape[2] == 64);
    assert_true(fc1.decay && dh_param_is_matrix(&fc1) && fc1.n_pieces == 16);
    /* gate above up, expert by expert; of four ranks the third has experts 4 and 5 */
    dh_param_piece piece = dh_param_piece_at(&fc1, 11);
    assert_string_equal(piece.hf_name, "model.layers.1.block_sparse_moe.experts.5.w3.weight");
    assert_int_equal(piece.row, 5 * 2 * 96 + 96);
    assert_true(dh_param_shard(&fc1, (dh_shard){.tp = 1, .ep = 4, .ep_rank = 2}, &found));
    piece = dh_param_piece_at(&found, 3);
    assert_string_equal(piece.hf_name, "model.layers.1.block_sparse_moe.experts.5.w3.weight");
    assert_true(found.shape[0] == 2 && piece.row == 2 * 96 + 96);
    /* a router is a matrix that decays, but stays in float32 with the vectors */
    dh_param router = param_named(&m, "layer1.router.w");
    assert_true(router.ndim == 2 && router.wide && router.decay && !dh_param_is_matrix(&router));
}

static void models_without_bias_have_none(void **state)
{
    dh_model m = preset("gpt2");
    m.bias = false;
    param_list list = params_of(&m);
    for (size_t i = 0; i < list.n; i++) {
        size_t len = strlen(list.at[i].name);
        assert_false(len > 2 && strcmp(list.at[i].name + len - 2, ".b") == 0);
    }
    dh_vec_fini(&list);
}

/* Orientation and start of GPT-2's output projection: stored [in, out], standard
 * deviation 0.02 / sqrt(2 * 12); norms start at 1 and do not decay. */
static void initial_values_follow_the_paper(void **state)
{
    dh_model m = preset("gpt2");
    dh_param fc2 = param_named(&m, "layer3.fc2.w");
    assert_true(fc2.shape[0] == 768 && fc2.shape[1] == 3072 &&
                dh_param_piece_at(&fc2, 0).transpose);
    assert_true(dh_param_piece_at(&fc2, 0).hf_shape[0] == 3072 &&
                dh_param_piece_at(&fc2, 0).hf_shape[1] == 768);
    assert_true(fabs(fc2.init_std - 0.02 / sqrt(24.0)) < 1e-15 && fc2.decay);
    dh_param fc1 = param_named(&m, "layer3.fc1.w"), ln = param_named(&m, "layer3.ln1.w");
    assert_true(fc1.init_std == 0.02 && fc1.decay);
    assert_true(ln.init_std == 0 && ln.init_value == 1 && !ln.decay && ln.ndim == 1);
    dh_param bias = param_named(&m, "layer3.qkv.b");
    assert_true(bias.init_std == 0 && bias.init_value == 0 && !bias.decay);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_are_those_of_the_model),
        cmocka_unit_test(adapters_are_those_of_the_model),
        cmocka_unit_test(names_are_those_of_hugging_face),
        cmocka_unit_test(pieces_hold_every_element_once),
        cmocka_unit_test(heads_that_ranks_share),
        cmocka_unit_test(vocabulary_shards_meet),
        cmocka_unit_test(tied_heads_are_the_embedding),
        cmocka_unit_test(layers_find_their_experts),
        cmocka_unit_test(models_without_bias_have_none),
        cmocka_unit_test(initial_values_follow_the_paper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
