/* Checkpoints of llama2.c and llm.c: a header of int32 and then bare tensors in a
 * fixed order. One table per format lists that order under Hugging Face names.
 *
 * llama2.c legacy (run.c, memory_map_weights): seven sizes, then float32. Sizes are dim and hidden,
 *   layers, heads and kv heads, vocab and sequence. A negative vocab: the head is a tensor of its
 *   own.
 * llm.c GPT-2 (train_gpt2.c, gpt2_build_from_checkpoint): 256 int32, then float32 (version 3) or
 *   bfloat16 (version 5). The int32 are magic and version, maxT, V and L, heads, C and padded V. */
#include "weights_impl.h"

#include <stdio.h>
#include <string.h>

enum {
    LLMC_MAGIC = 20240326,
    LLMC_HEADER_INTS = 256,
    LLAMA2C_HEADER_INTS = 7,
    LLAMA2C_NEW_MAGIC = 0x616b3432, /* "ak42": export.py versions 1 and 2 */
    ZIP_MAGIC = 0x04034b50          /* torch.save */
};

/* ---- a list of sections ------------------------------------------------------------- */

typedef enum size_name {
    NONE, /* as columns: the tensor is a vector */
    WIDTH,
    WIDTH_3,
    FFN,
    KV_ROWS,
    VOCAB,
    VOCAB_PADDING,
    MAX_SEQ,
    ROPE_TABLE, /* cosines or sines, both derived from the sizes */
    N_SIZES
} size_name;

typedef enum when { ALWAYS, IF_UNTIED } when;

typedef struct section {
    const char *hf_name; /* %d: layer; NULL: skipped */
    size_name rows, cols;
    bool per_layer;
    layout layout;
    when present;
} section;

static const section llama2c_sections[] = {
    {"model.embed_tokens.weight", VOCAB, WIDTH, false, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.input_layernorm.weight", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.self_attn.q_proj.weight", WIDTH, WIDTH, true, LAYOUT_ROPE_PAIRS, ALWAYS},
    {"model.layers.%d.self_attn.k_proj.weight", KV_ROWS, WIDTH, true, LAYOUT_ROPE_PAIRS, ALWAYS},
    {"model.layers.%d.self_attn.v_proj.weight", KV_ROWS, WIDTH, true, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.self_attn.o_proj.weight", WIDTH, WIDTH, true, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.post_attention_layernorm.weight", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.mlp.gate_proj.weight", FFN, WIDTH, true, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.mlp.down_proj.weight", WIDTH, FFN, true, LAYOUT_PLAIN, ALWAYS},
    {"model.layers.%d.mlp.up_proj.weight", FFN, WIDTH, true, LAYOUT_PLAIN, ALWAYS},
    {"model.norm.weight", WIDTH, NONE, false, LAYOUT_PLAIN, ALWAYS},
    {NULL, ROPE_TABLE, NONE, false, LAYOUT_PLAIN, ALWAYS},
    {NULL, ROPE_TABLE, NONE, false, LAYOUT_PLAIN, ALWAYS},
    {"lm_head.weight", VOCAB, WIDTH, false, LAYOUT_PLAIN, IF_UNTIED},
};

static const section llmc_sections[] = {
    {"wte.weight", VOCAB, WIDTH, false, LAYOUT_PLAIN, ALWAYS},
    {NULL, VOCAB_PADDING, WIDTH, false, LAYOUT_PLAIN, ALWAYS},
    {"wpe.weight", MAX_SEQ, WIDTH, false, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.ln_1.weight", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.ln_1.bias", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.attn.c_attn.weight", WIDTH_3, WIDTH, true, LAYOUT_TRANSPOSED, ALWAYS},
    {"h.%d.attn.c_attn.bias", WIDTH_3, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.attn.c_proj.weight", WIDTH, WIDTH, true, LAYOUT_TRANSPOSED, ALWAYS},
    {"h.%d.attn.c_proj.bias", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.ln_2.weight", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.ln_2.bias", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.mlp.c_fc.weight", FFN, WIDTH, true, LAYOUT_TRANSPOSED, ALWAYS},
    {"h.%d.mlp.c_fc.bias", FFN, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"h.%d.mlp.c_proj.weight", WIDTH, FFN, true, LAYOUT_TRANSPOSED, ALWAYS},
    {"h.%d.mlp.c_proj.bias", WIDTH, NONE, true, LAYOUT_PLAIN, ALWAYS},
    {"ln_f.weight", WIDTH, NONE, false, LAYOUT_PLAIN, ALWAYS},
    {"ln_f.bias", WIDTH, NONE, false, LAYOUT_PLAIN, ALWAYS},
};

/* Plan of the walk over the sections; the model's sizes are validated. */
typedef struct plan {
    const section *sections;
    size_t n_sections;
    int64_t sizes[N_SIZES];
    dh_st_dtype dtype;
    size_t header_bytes;
} plan;

static dh_status add_section(dh_ctx *ctx, dh_weights *w, const plan *p, const section *s,
                             int64_t layer, size_t at)
{
    weight t = {
        .dtype = p->dtype, .layout = s->layout, .data = w->bin.map.at + at, .file = &w->bin};
    int64_t rows = p->sizes[s->rows], cols = p->sizes[s->cols];
    bool swapped = s->layout == LAYOUT_TRANSPOSED;
    t.ndim = s->cols == NONE ? 1 : 2;
    t.shape[0] = swapped ? cols : rows;
    t.shape[1] = t.ndim == 1 ? 0 : swapped ? rows : cols;
    if (s->layout == LAYOUT_ROPE_PAIRS) t.head_dim = w->model.head_dim;
    char name[96], number[24];
    const char *hole = strstr(s->hf_name, "%d");
    snprintf(number, sizeof number, "%lld", (long long)layer);
    if (hole)
        snprintf(name, sizeof name, "%.*s%s%s", (int)(hole - s->hf_name), s->hf_name, number,
                 hole + 2);
    else
        snprintf(name, sizeof name, "%s", s->hf_name);
    t.name = dh_arena_strdup(w->arena, name);
    if (!t.name || !dh_vec_push(&w->tensors, t))
        return dh_no_memory_while(ctx, "opening %s", w->path);
    return DH_OK;
}

/* Sizes are below 2^31 each, so a section's item count fits 64 bits. */
static dh_status walk(dh_ctx *ctx, dh_weights *w, const plan *p)
{
    size_t at = p->header_bytes, item_bytes = dh_st_dtype_bytes(p->dtype);
    for (size_t i = 0; i < p->n_sections; i++) {
        const section *s = &p->sections[i];
        if (s->present == IF_UNTIED && w->model.tied_head) continue;
        int64_t n_items = p->sizes[s->rows] * (s->cols == NONE ? 1 : p->sizes[s->cols]);
        int64_t n_times = s->per_layer ? w->model.n_layers : 1;
        for (int64_t layer = 0; layer < n_times; layer++) {
            if ((uint64_t)n_items > (w->bin.map.n_bytes - at) / item_bytes)
                return dh_fail(ctx, DH_EFORMAT,
                               "it ends inside %s of layer %lld: its %zu bytes are fewer than the "
                               "header's sizes take",
                               s->hf_name ? s->hf_name : "a section", (long long)layer,
                               w->bin.map.n_bytes);
            if (s->hf_name) DH_TRY(add_section(ctx, w, p, s, layer, at));
            at += (size_t)n_items * item_bytes;
        }
    }
    if (at != w->bin.map.n_bytes)
        return dh_fail(ctx, DH_EFORMAT, "it has %zu bytes, but its header's sizes take %zu",
                       w->bin.map.n_bytes, at);
    return DH_OK;
}

/* ---- llama2.c --------------------------------------------------------------------------- */

static dh_status open_llama2c(dh_ctx *ctx, dh_weights *w, const int32_t *head)
{
    int32_t dim = head[0], hidden = head[1], layers = head[2], heads = head[3], kv_heads = head[4];
    int64_t vocab = head[5] < 0 ? -(int64_t)head[5] : head[5], seq = head[6];
    if (heads < 1 || dim < 1 || dim % heads)
        return dh_fail(ctx, DH_EFORMAT,
                       "its header (dim %d, heads %d) is neither llama2.c's nor llm.c's", dim,
                       heads);
    dh_model *m = &w->model;
    *m = (dh_model){.name = "llama2.c", .family = DH_FAMILY_LLAMA, .norm = DH_NORM_RMS};
    m->n_layers = layers;
    m->width = dim;
    m->n_heads = heads;
    m->n_kv_heads = kv_heads;
    m->head_dim = dim / heads;
    m->ffn_width = hidden;
    m->vocab = vocab;
    m->max_seq = seq;
    m->tied_head = head[5] > 0;
    m->norm_eps = 1e-5; /* run.c, rmsnorm; rope: run.c, forward */
    m->act = DH_ACT_SWIGLU;
    m->rope.theta = 10000;
    m->init_std = 0.02;
    if (kv_heads < 1 || dh_model_validate(ctx, m) != DH_OK) {
        if (kv_heads < 1)
            dh_fail(ctx, DH_EFORMAT, "the number of key/value heads is %d; it must be positive",
                    kv_heads);
        return dh_ctx_while(ctx, "taking its first 28 bytes as llama2.c's header");
    }
    w->has_model = true;
    const plan p = {
        .sections = llama2c_sections,
        .n_sections = DH_COUNTOF(llama2c_sections),
        .sizes = {[WIDTH] = dim,
                  [FFN] = hidden,
                  [KV_ROWS] = kv_heads * m->head_dim,
                  [VOCAB] = vocab,
                  [ROPE_TABLE] = seq * (m->head_dim / 2)},
        .dtype = DH_ST_F32,
        .header_bytes = LLAMA2C_HEADER_INTS * sizeof *head,
    };
    return walk(ctx, w, &p);
}

/* ---- llm.c -------------------------------------------------------------------------------- */

static dh_status open_llmc(dh_ctx *ctx, dh_weights *w, const int32_t *head)
{
    int32_t version = head[1], seq = head[2], vocab = head[3], layers = head[4], heads = head[5],
            width = head[6], padded = head[7];
    if (version != 3 && version != 5)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "llm.c checkpoint version %d; versions 3 (float32) and 5 (bfloat16) are "
                       "read",
                       version);
    if (padded < vocab)
        return dh_fail(ctx, DH_EFORMAT, "its padded vocabulary %d is smaller than %d", padded,
                       vocab);
    dh_model *m = &w->model;
    *m = (dh_model){.name = "llm.c", .family = DH_FAMILY_GPT2, .norm = DH_NORM_LAYER};
    m->n_layers = layers;
    m->width = width;
    m->n_heads = m->n_kv_heads = heads;
    m->head_dim = heads > 0 ? width / heads : 0;
    m->ffn_width = (int64_t)4 * width;
    m->vocab = vocab;
    m->max_seq = seq;
    m->tied_head = m->bias = true;
    m->norm_eps = 1e-5;
    m->act = DH_ACT_GELU_TANH;
    m->init_std = 0.02;
    if (dh_model_validate(ctx, m) != DH_OK) return dh_ctx_while(ctx, "reading llm.c's header");
    w->has_model = true;
    const plan p = {
        .sections = llmc_sections,
        .n_sections = DH_COUNTOF(llmc_sections),
        .sizes = {[WIDTH] = width,
                  [WIDTH_3] = (int64_t)3 * width,
                  [FFN] = m->ffn_width,
                  [VOCAB] = vocab,
                  [VOCAB_PADDING] = padded - vocab,
                  [MAX_SEQ] = seq},
        .dtype = version == 3 ? DH_ST_F32 : DH_ST_BF16,
        .header_bytes = LLMC_HEADER_INTS * sizeof *head,
    };
    return walk(ctx, w, &p);
}

/* ---- which of the two ---------------------------------------------------------------------- */

static dh_status open_mapped(dh_ctx *ctx, dh_weights *w)
{
    int32_t head[8] = {0};
    if (w->bin.map.n_bytes < sizeof head)
        return dh_fail(ctx, DH_EFORMAT, "its %zu bytes are too short for a header",
                       w->bin.map.n_bytes);
    DH_TRY(dh_mapped_copy(ctx, &w->bin, head, w->bin.map.at, sizeof head));
    if (head[0] == LLAMA2C_NEW_MAGIC)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "llama2.c checkpoint version %d; its legacy version 0 is read (export.py "
                       "--version 0)",
                       head[1]);
    if (head[0] == ZIP_MAGIC)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "this is a pickled PyTorch file; save the model as safetensors");
    if (head[0] != LLMC_MAGIC) return open_llama2c(ctx, w, head);
    if (w->bin.map.n_bytes < LLMC_HEADER_INTS * sizeof *head)
        return dh_fail(ctx, DH_EFORMAT, "its %zu bytes are too short for llm.c's header",
                       w->bin.map.n_bytes);
    return open_llmc(ctx, w, head);
}

dh_status dh_weights_open_bin(dh_ctx *ctx, dh_weights *w, const char *path)
{
    const char *kept = dh_arena_strdup(w->arena, path);
    if (!kept) return dh_no_memory_while(ctx, "opening %s", path);
    DH_TRY(dh_mapped_open(ctx, kept, &w->bin));
    return open_mapped(ctx, w) == DH_OK ? DH_OK : dh_ctx_while(ctx, "reading %s", path);
}
