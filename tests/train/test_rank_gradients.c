/* Gradients of a step, parameter by parameter: what all ranks of a mesh hold together
 * against one rank's.
 *
 * Tolerance: float32 sums of the same products in another grouping. Errors are taken
 * over the element plus its tensor's root mean square; a few hundred terms of relative
 * error 6e-8 each measure up to 3e-6 here; allowed: 2e-5. */
#include "gradients.h"

enum { SEQ = 32, SAMPLES = 8 };
static const double tolerance = 2e-5;

static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

static const char model_gpt2[] =
    "model: {family: gpt2, n_layers: 4, width: 32, n_heads: 4, vocab: 65, max_seq: 32}\n";
static const char model_llama[] =
    "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false}\n";

static const char model_mixtral[] =
    "model: {family: mixtral, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 40, n_experts: 8, top_k: 2, router_aux_coef: 0.05, vocab: 65,\n"
    "        max_seq: 32, tied_head: false}\n";

static const char model_qwen3[] =
    "model: {family: qwen3, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 16,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: true}\n";

static const char model_olmo2[] =
    "model: {family: olmo2, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 32}\n";
static const char model_smollm3[] =
    "model: {family: smollm3, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, nth: 2, vocab: 65, max_seq: 32, tied_head: true}\n";
static const char model_qwen3_moe[] =
    "model: {family: qwen3_moe, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 40, n_experts: 8, top_k: 2, topk_plain: true, router_aux_coef: 0.05,\n"
    "        vocab: 65, max_seq: 32}\n";
/* Near scores of several experts share a weight. */
static const char model_phimoe[] =
    "model: {family: phimoe, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 40, n_experts: 8, router_jitter: 0.3, router_aux_coef: 0.05, vocab: 65,\n"
    "        max_seq: 32, attn_bias: true, head_bias: true, rope_scaling: longrope,\n"
    "        rope_original_max_seq: 16, rope_short_factor: [1, 1, 2, 2], rope_short_mscale: 1.1,\n"
    "        rope_long_factor: [1, 2, 4, 8], rope_long_mscale: 1.2}\n";
/* Heads of 12 channels, 4 of them rotated, and of 8 of values; a token's experts are of 2 groups.
 */
static const char model_deepseek3[] =
    "model: {family: deepseek_v3, n_layers: 4, width: 32, n_heads: 8, head_dim: 12, rope_dim: 4,\n"
    "        v_dim: 8, q_lora: 24, kv_lora: 20, ffn_width: 40, n_experts: 8, top_k: 3,\n"
    "        n_groups: 4, top_groups: 2, vocab: 65, max_seq: 32}\n";
/* The first layer has no experts; every second has some; every second has softmax attention. */
static const char model_dense_first[] =
    "model: {family: deepseek_v3, n_layers: 4, width: 32, n_heads: 8, head_dim: 12, rope_dim: 4,\n"
    "        v_dim: 8, q_lora: 24, kv_lora: 20, ffn_width: 40, n_experts: 8, top_k: 3,\n"
    "        n_groups: 4, top_groups: 2, vocab: 65, max_seq: 32, dense_first: 1, dense_width: "
    "72}\n";
static const char model_moe_every[] =
    "model: {family: qwen3_moe, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 40, n_experts: 8, top_k: 2, router_aux_coef: 0.05, vocab: 65,\n"
    "        max_seq: 32, moe_every: 2, dense_width: 88}\n";
static const char model_softmax_every[] =
    "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false, attention: linear,\n"
    "        init_std: 0.2, softmax_every: 2}\n";
/* The first layer sees all, the others 9 tokens: less than what a rank of 2 has of a sequence. */
static const char model_window[] =
    "model: {family: qwen2, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false, window: 9, window_from: 1}\n";

/* Weights of ordinary size: with next to none all keys are 1 + next to nothing, and what the norm
 * of heads takes out of the gradient of queries is nearly all of it. */
static const char model_linear[] =
    "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false, attention: linear,\n"
    "        init_std: 0.2}\n";

static const char model_gemma2[] =
    "model: {family: gemma2, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, query_scalar: 20, attn_softcap: 0.01, logit_softcap: 0.2, vocab: 65,\n"
    "        max_seq: 32}\n";
/* Every second layer sees all. */
static const char model_gemma2_window[] =
    "model: {family: gemma2, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, query_scalar: 20, attn_softcap: 0.01, vocab: 65, max_seq: 32,\n"
    "        window: 9, window_every: 2}\n";
static const char model_gemma3[] =
    "model: {family: gemma3_text, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, nth: 2, vocab: 65, max_seq: 32, tied_head: false}\n";

/* A mesh, and what hides its communication. */
typedef struct mesh {
    const char *parallel, *strategy;
} mesh;
static const mesh one_rank = {"dp: 1", "sequential"};
static int micro_batch = 1; /* of every mesh but the one rank */
static bool packed;         /* samples are rows of documents */

/* Documents of 5 to 11 tokens, another length in every sample; behind the last there is padding. */
static dh_status load_documents(dh_ctx *ctx, void *self, int64_t sample, int64_t seq,
                                const dh_batch_row *row)
{
    const int64_t at = sample % SAMPLES, length = 5 + at % 7, end = SEQ / length * length;
    for (int64_t t = 0; t < seq; t++) {
        row->tokens[t] = tokens[at * SEQ + t];
        row->targets[t] = t < end ? targets[at * SEQ + t] : -1;
        row->positions[t] = t < end ? (int32_t)(t % length) : 0;
        row->samples[t] = at * SEQ + t / length;
    }
    return DH_OK;
}

static double n_targets(void)
{
    int64_t n = 0;
    for (int64_t at = 0; at < SAMPLES; at++) n += SEQ / (5 + at % 7) * (5 + at % 7);
    return (double)n;
}

/* Elements [first, first + n) of a parameter, or those of them that are in the rank's shards. */
static dh_status write_master(dh_ctx *ctx, const dh_session *s, uint32_t param, int64_t first,
                              int64_t n, const float *values)
{
    const dh_program *p = dh_session_layout(s);
    const dh_operand *home = &p->homes.at[param].at[DH_BUF_MASTER];
    const dh_flat *flat = &p->flats.at[p->blocks.at[p->homes.at[param].block].flat];
    const bool whole = home->buffer != DH_NONE;
    for (int64_t k = 0; k < (whole ? 1 : flat->n_pieces); k++) {
        int64_t begin = first, n_here = n;
        uint64_t at = 0;
        if (whole)
            at = p->buffers.at[home->buffer].offset + home->byte0 + (uint64_t)first * sizeof(float);
        else
            dh_param_part(p, param, DH_BUF_MASTER, k, &begin, &n_here, &at);
        if (n_here > 0)
            DH_TRY(s->spec.device->slab_write(ctx, s->slab, at, values + (begin - first),
                                              (uint64_t)n_here * sizeof *values));
    }
    return DH_OK;
}

/* New adapters' second factors are zero, and so would the gradients of the first be: these are
 * drawn by name and place. */
static dh_status draw_adapters(dh_ctx *ctx, const member *m)
{
    const dh_session *s = m->session;
    const dh_program *p = dh_session_layout(s);
    for (uint32_t i = 0; i < p->params.n; i++)
        for (int k = 0; p->params.at[i].adapter && k < p->params.at[i].n_pieces; k++) {
            const dh_param_piece piece = dh_param_piece_at(&p->params.at[i], k);
            const int64_t n = piece.n_rows * piece.n_cols;
            uint64_t name = 0;
            for (const char *c = piece.hf_name; *c; c++) name = dh_mix64(name + (uint64_t)*c);
            float *values = malloc((size_t)n * sizeof *values);
            for (int64_t j = 0; j < n; j++) {
                const int64_t row = piece.hf_row + j / piece.n_cols;
                const int64_t at = row * piece.hf_shape[1] + piece.hf_col + j % piece.n_cols;
                values[j] = (float)(dh_mix64(name + (uint64_t)at) % 2001) * 2e-4f - 0.2f;
            }
            const dh_status st = write_master(ctx, s, i, piece.row * piece.n_cols, n, values);
            free(values);
            DH_TRY(st);
        }
    return DH_OK;
}

/* One step that leaves the weights alone. */
static dh_status step_member(dh_ctx *ctx, member *m)
{
    rows_source rows = {tokens, targets, SAMPLES};
    DH_TRY(member_begin(ctx, m));
    DH_TRY(draw_adapters(ctx, m));
    dh_step step = member_step(m, 0);
    step.source = (dh_batch_source){
        .load = rows_load, .self = &rows, .load_row = packed ? load_documents : NULL};
    if (packed) step.loss_rows = n_targets();
    DH_TRY(dh_exec_run(ctx, m->session->train_exec, &step));
    return dh_session_grad_norm(ctx, m->session, &m->norm);
}

static void run_team(const char *model, mesh of, int n_samples, team *t)
{
    char text[1024];
    snprintf(text, sizeof text,
             "%sdata: {train: none, packing: %s}\ntrain: {batch: 8, micro_batch: %d, seq_len: 32, "
             "threads: 1}\n"
             "parallel: {%s}\nstrategy: %s\nprofile: none\n",
             model, packed ? "pack" : "none", n_samples, of.parallel, of.strategy);
    team_run(text, step_member, NULL, t);
}

/* ---- comparing ----------------------------------------------------------------------------- */

static void gradients_over(const char *model, const mesh *meshes, size_t n)
{
    static size_t turn; /* of models: those that share a list of meshes have all of it together */
    const size_t stride = test_is_slow() ? DH_MIN(6, n) : n > 4 && test_is_short() ? 2 : 1;
    team one;
    run_team(model, one_rank, 1, &one);
    assert_true(one.members[0].norm > 0.1);
    for (size_t i = turn++ % stride; i < n; i += stride) {
        team many;
        run_team(model, meshes[i], micro_batch, &many);
        char what[200];
        snprintf(what, sizeof what, "%s, %s", meshes[i].parallel, meshes[i].strategy);
        double worst = compare_gradients(&one, &many, tolerance, what);
        for (int r = 0; r < many.n; r++)
            if (!(fabs(many.members[r].norm / one.members[0].norm - 1) <= 1e-6))
                fail_msg("%s: norm %.9g on rank %d, %.9g on one", meshes[i].parallel,
                         many.members[r].norm, r, one.members[0].norm);
        printf("  {%s}, %s: %.2g\n", meshes[i].parallel, meshes[i].strategy, worst);
        team_end(&many);
    }
    team_end(&one);
}

static void gradients_of(const char *model)
{
    static const mesh meshes[] = {
        {"dp: 2", "sequential"},
        {"dp: 4, zero: 1", "sequential"},
        {"tp: 2", "sequential"},
        {"tp: 4", "sequential"},
        {"cp: 2", "sequential"},
        {"pp: 2", "sequential"},
        {"pp: 4, schedule: zb-h1", "sequential"},
        {"pp: 2, schedule: zb-v", "sequential"},
        {"pp: 2, schedule: interleaved-1f1b, virtual_stages: 2", "sequential"},
        {"pp: 2, schedule: dhelix-w", "sequential"},
        {"pp: 2, schedule: wavelet", "sequential"},
        {"pp: 2, schedule: bidirectional, tp: 2", "dhelix"},
        {"pp: 4, schedule: dualpipe, tp: 2", "dualpipe"},
        {"dp: 2, pp: 2, schedule: dualpipe, zero: 2", "sequential"},
        {"dp: 2, tp: 2, pp: 2, zero: 2, gradient_sync: every, bucket_mb: 0.02", "sequential"},
        {"dp: 2, cp: 2, zero: 3, gradient_sync: every, bucket_mb: 0.02", "dhelix"},
        {"dp: 2, tp: 2", "sequential"},
        {"dp: 2, cp: 2, zero: 1", "sequential"},
        {"tp: 2, pp: 2, layer_split: \"3,1\"", "sequential"},
        {"dp: 2, tp: 2, pp: 2, zero: 1, schedule: v-min", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "sequential"},
        {"tp: 2, sequence: false", "sequential"},
        {"tp: 4, sequence: false, dp: 2, zero: 1", "sequential"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"tp: 2", "intra-batch"},
        {"tp: 4", "intra-batch"},
        {"tp: 4", "intra-batch-bidirectional"},
        {"tp: 2, pp: 2, schedule: zb-h1", "intra-batch"},
        {"tp: 2, cp: 2", "intra-batch"},
        {"tp: 4", "flux"},
        {"tp: 2, cp: 2, pp: 2, schedule: zb-h1", "part-wise(2, scatter)+list"},
    };
    gradients_over(model, meshes, DH_COUNTOF(meshes));
}

static void gpt2_gradients(void **state)
{
    gradients_of(model_gpt2);
}

static void llama_gradients(void **state)
{
    gradients_of(model_llama);
}

/* Weights that all heads share: a rank has its own heads' part of their gradients, with all tokens
 * or some. */
static void qwen3_gradients(void **state)
{
    static const mesh meshes[] = {
        {"tp: 2", "sequential"},
        {"dp: 2, zero: 1", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 4, sequence: false, dp: 2, zero: 1", "sequential"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
    };
    static const mesh halves[] = {{"tp: 2, sequence: false, pp: 2, schedule: zb-h1", "domino"}};
    gradients_over(model_qwen3, meshes, DH_COUNTOF(meshes));
    micro_batch = 2;
    gradients_over(model_qwen3, halves, DH_COUNTOF(halves));
    micro_batch = 1;
}

/* Norms over all heads, of which ranks have some, and behind a layer's parts. */
static void olmo2_gradients(void **state)
{
    static const mesh meshes[] = {
        {"tp: 4", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 4, sequence: false, dp: 2, zero: 1", "sequential"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"tp: 2, sequence: false", "split+reorder+list"},
        {"tp: 4", "flux"},
    };
    gradients_over(model_olmo2, meshes, DH_COUNTOF(meshes));
}

/* Layers without positions are the same ones on every stage. */
static void smollm3_gradients(void **state)
{
    static const mesh meshes[] = {{"tp: 2, pp: 2, cp: 2", "sequential"},
                                  {"pp: 2, schedule: zb-v", "sequential"}};
    gradients_over(model_smollm3, meshes, DH_COUNTOF(meshes));
}

/* Capped scores, whole and in rings, capped logits of shards of a vocabulary, embeddings that are
 * scaled behind their sum, norms on both sides of a layer's parts. */
static void gemma_gradients(void **state)
{
    static const mesh meshes[] = {
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 4, sequence: false, dp: 2, zero: 1", "sequential"},
        {"tp: 2, sequence: false", "split+reorder+list"},
    };
    static const mesh halves[] = {{"tp: 2, pp: 2, schedule: zb-h1", "domino"},
                                  {"tp: 2", "domino(columns=2)"}};
    static const char *const models[] = {model_gemma2, model_gemma3};
    for (size_t m = 0; m < DH_COUNTOF(models); m++) {
        gradients_over(models[m], meshes, DH_COUNTOF(meshes));
        micro_batch = 2;
        gradients_over(models[m], halves, DH_COUNTOF(halves));
        micro_batch = 1;
    }
}

static void qwen3_moe_gradients(void **state)
{
    static const mesh meshes[] = {
        {"dp: 4, ep: 2, tp: 2, zero: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2, cp: 2, expert_tp: 1", "sequential"},
        {"tp: 4, sequence: false, pp: 2, schedule: zb-h1", "sequential"},
    };
    gradients_over(model_qwen3_moe, meshes, DH_COUNTOF(meshes));
}

/* Every bias moves: that of logits is split over a vocabulary that does not divide. */
static void phimoe_gradients(void **state)
{
    static const mesh meshes[] = {
        {"cp: 2, pp: 2", "sequential"},
        {"dp: 4, ep: 2, tp: 2, zero: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2, cp: 2, expert_tp: 1", "sequential"},
        {"tp: 4, sequence: false, pp: 2, schedule: zb-h1", "intra-batch"},
        {"dp: 2, ep: 2, tp: 2, pp: 2, schedule: dhelix-w, zero: 1", "dhelix"},
        {"dp: 2, zero: 3, tp: 2", "sequential"},
    };
    gradients_over(model_phimoe, meshes, DH_COUNTOF(meshes));
}

/* Latent channels of which every rank makes some, rotated channels that all heads share, experts of
 * every token beside those that are chosen. */
static void deepseek3_gradients(void **state)
{
    static const mesh meshes[] = {
        {"tp: 4", "sequential"},
        {"cp: 2, pp: 2", "sequential"},
        {"dp: 4, ep: 2, tp: 2, zero: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2, cp: 2, expert_tp: 1", "sequential"},
        {"tp: 2, pp: 2, schedule: zb-h1", "intra-batch"},
        {"tp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
    };
    gradients_over(model_deepseek3, meshes, DH_COUNTOF(meshes));
}

/* Stages have layers of one kind, of both, and a slot's strands other kinds than each other. */
static void layer_kinds_gradients(void **state)
{
    static const mesh dense[] = {
        {"tp: 4", "sequential"},
        {"cp: 2, pp: 2", "sequential"},
        {"pp: 4, schedule: zb-h1", "sequential"},
        {"dp: 4, ep: 2, tp: 2, zero: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2, cp: 2, expert_tp: 1", "sequential"},
        {"dp: 4, ep: 2, zero: 3", "sequential"},
        {"pp: 2, layer_split: \"1,3\"", "sequential"},
        {"tp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"dp: 2, ep: 2, tp: 2", "dhelix"},
        {"dp: 2, ep: 2, pp: 2, schedule: dualpipe", "dualpipe"},
    };
    static const mesh attention[] = {
        {"tp: 4", "sequential"},
        {"dp: 2, zero: 1, pp: 2, schedule: zb-v", "sequential"},
        {"dp: 4, zero: 3", "sequential"},
        {"tp: 2, sequence: false", "split+reorder+list"},
        {"tp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"tp: 4", "flux"},
        {"cp: 2", "sequential"},
        {"cp: 4", "list"},
        {"tp: 2, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"dp: 2, cp: 2, zero: 3", "sequential"},
    };
    static const mesh halves[] = {{"tp: 2, cp: 2, schedule: zb-h1", "domino"}};
    gradients_over(model_dense_first, dense, DH_COUNTOF(dense));
    gradients_over(model_moe_every, dense, DH_COUNTOF(dense));
    gradients_over(model_softmax_every, attention, test_is_thin() ? 8 : DH_COUNTOF(attention));
    micro_batch = 2;
    if (!test_is_thin()) gradients_over(model_softmax_every, halves, DH_COUNTOF(halves));
    micro_batch = 1;
}

static void window_gradients(void **state)
{
    static const mesh meshes[] = {
        {"cp: 2", "sequential"},
        {"cp: 4", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
    };
    static const mesh halves[] = {{"tp: 2, pp: 2, schedule: zb-h1", "domino"}};
    gradients_over(model_window, meshes, DH_COUNTOF(meshes));
    gradients_over(model_gemma2_window, meshes + 2, 1);
    micro_batch = 2;
    gradients_over(model_window, halves, DH_COUNTOF(halves));
    micro_batch = 1;
}

/* States of other ranks' tokens, gathered or handed on; gradients of them the other way. */
static void linear_gradients(void **state)
{
    static const mesh meshes[] = {
        {"cp: 4", "sequential"},
        {"cp: 4, cp_linear: lasp1", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 4, sequence: false, dp: 2, zero: 1", "sequential"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"cp: 4, cp_linear: lasp1, pp: 2, schedule: zb-h1", "list"},
        {"cp: 2, tp: 2, cp_linear: lasp1", "ring-gemm+part-wise+list"},
        {"dp: 2, cp: 2, zero: 3", "sequential"},
    };
    static const mesh halves[] = {{"tp: 2, cp: 2, schedule: zb-h1", "domino"}};
    gradients_over(model_linear, meshes, test_is_thin() ? 5 : DH_COUNTOF(meshes));
    micro_batch = 2;
    gradients_over(model_linear, halves, DH_COUNTOF(halves));
    micro_batch = 1;
}

/* Padding and the ends of documents lie on other ranks than what they belong to. */
static void packed_gradients(void **state)
{
    static const mesh meshes[] = {
        {"dp: 2, zero: 1", "sequential"},
        {"tp: 2", "intra-batch"},
        {"cp: 2", "sequential"},
        {"cp: 4", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
    };
    static const mesh halves[] = {{"tp: 2, pp: 2, schedule: zb-h1", "domino"}};
    static const char *const models[] = {model_gpt2, model_window};
    packed = true;
    for (size_t m = 0; m < DH_COUNTOF(models); m++) {
        gradients_over(models[m], meshes, DH_COUNTOF(meshes));
        micro_batch = 2;
        gradients_over(models[m], halves, DH_COUNTOF(halves));
        micro_batch = 1;
    }
    packed = false;
}

/* Adapters of linears whose columns are split and of those whose rows are: a rank has a part of one
 * factor, and all of the other with a part of its gradient. Nothing else has one. */
static void adapter_gradients(void **state)
{
    static const mesh meshes[] = {
        {"tp: 2", "sequential"},
        {"tp: 4, dp: 2, zero: 1", "sequential"},
        {"dp: 4, zero: 2", "sequential"},
        {"tp: 2, sequence: false", "sequential"},
        {"tp: 4, sequence: false, dp: 2, zero: 1", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "intra-batch"},
        {"tp: 2, pp: 2, schedule: zb-h1", "flux"},
        {"pp: 2, schedule: dualpipe, tp: 2", "dhelix"},
        {"tp: 2, sequence: false, cp: 2, pp: 2, schedule: dhelix-w", "dhelix"},
        {"dp: 2, bucket_mb: 0.004", "sequential"},
        {"dp: 4, zero: 3, reshard_after_forward: 2", "sequential"},
        {"dp: 2, tp: 2, pp: 2, zero: 3, gradient_sync: every", "dhelix"},
    };
    static const mesh of_experts[] = {{"dp: 4, ep: 2, tp: 2, zero: 1", "sequential"},
                                      {"dp: 4, ep: 2, tp: 2, zero: 3", "sequential"},
                                      {"dp: 2, ep: 2, tp: 2, expert_tp: 1", "sequential"},
                                      {"dp: 2, ep: 2, pp: 2", "dhelix"}};
    static const struct {
        const char *model, *lora;
    } cases[] = {{model_llama, "lora: {rank: 3}\n"},
                 {model_llama, "lora: {rank: 2, alpha: 3, targets: \"k_proj,up_proj,o_proj\"}\n"},
                 {model_gpt2, "lora: {rank: 4, targets: \"c_attn,c_proj\"}\n"},
                 {model_qwen3_moe, "lora: {rank: 2}\n"},
                 {model_moe_every, "lora: {rank: 2}\n"}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char text[512];
        const bool experts = strstr(cases[i].model, "n_experts") != NULL;
        snprintf(text, sizeof text, "%s%s", cases[i].model, cases[i].lora);
        gradients_over(text, experts ? of_experts : meshes,
                       experts ? DH_COUNTOF(of_experts) : DH_COUNTOF(meshes));
    }
}

/* A rank of an expert's copies sums what it got from others' tokens. */
static void mixtral_gradients(void **state)
{
    static const mesh meshes[] = {
        {"dp: 2", "sequential"},
        {"tp: 2, pp: 2, cp: 2", "sequential"},
        {"dp: 2, ep: 2", "sequential"},
        {"dp: 8, ep: 8", "sequential"},
        {"dp: 4, ep: 2", "sequential"},
        {"dp: 4, ep: 2, zero: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2", "sequential"},
        {"dp: 2, ep: 2, cp: 2", "sequential"},
        {"dp: 4, ep: 4, pp: 2, zero: 1, schedule: zb-h1", "sequential"},
        {"dp: 2, ep: 2, pp: 2, schedule: dhelix-w", "sequential"},
        {"dp: 2, ep: 2, pp: 2, schedule: dualpipe, zero: 1", "dualpipe"},
        {"dp: 2, ep: 2, pp: 2, schedule: wavelet", "wavelet+"},
        {"tp: 2, sequence: false", "sequential"},
        {"tp: 4, sequence: false, cp: 2", "sequential"},
        {"dp: 2, ep: 2, tp: 2, sequence: false", "sequential"},
        {"dp: 4, ep: 2, tp: 2, zero: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2, pp: 2, schedule: v-min", "sequential"},
        {"tp: 2, expert_tp: 1", "sequential"},
        {"dp: 2, ep: 2, tp: 2, expert_tp: 1, zero: 1", "dhelix"},
        {"dp: 2, ep: 2, tp: 2, cp: 2, expert_tp: 1", "ring-gemm+part-wise+list"},
        {"tp: 2, pp: 2, expert_tp: 1, schedule: zb-h1", "intra-batch"},
        {"tp: 2, expert_tp: 1", "domino+dhelix"},
    };
    gradients_over(model_mixtral, meshes, DH_COUNTOF(meshes));
}

/* Gradients of a weight from every part of a micro-batch. */
static void domino_gradients(void **state)
{
    static const mesh halves[] = {
        {"tp: 2", "domino"},
        {"tp: 2, sequence: false", "domino"},
        {"tp: 4, sequence: false, pp: 2, schedule: zb-h1", "domino"},
        {"tp: 2, cp: 2, dp: 2, zero: 1", "domino"},
        {"tp: 2", "domino+ring-gemm+dhelix"},
        {"tp: 2", "domino(parts=1, columns=2)"},
        {"tp: 4, sequence: false", "domino(parts=1, columns=4)"},
        {"tp: 2, sequence: false, dp: 2, zero: 1", "domino(columns=2)"},
        {"tp: 2, cp: 2, pp: 2, schedule: zb-h1", "domino(columns=4)"},
        {"tp: 4, pp: 2, schedule: dhelix-w", "domino(columns=2)+ring-gemm+dhelix"},
        {"tp: 2", "domino(columns=2)+part-wise+list"},
    };
    static const mesh quarters[] = {{"tp: 4", "domino(4)"},
                                    {"tp: 4, sequence: false", "domino(parts=4)"}};
    static const char *const models[] = {model_gpt2, model_llama};
    (void)state;
    for (size_t m = 0; m < DH_COUNTOF(models); m++) {
        micro_batch = 2;
        gradients_over(models[m], halves, DH_COUNTOF(halves));
        micro_batch = 4;
        gradients_over(models[m], quarters, DH_COUNTOF(quarters));
    }
    micro_batch = 1;
}

int main(void)
{
    uint64_t seed = test_seed("gradients");
    for (int i = 0; i < SAMPLES * SEQ; i++) tokens[i] = (int32_t)(test_rand(&seed) % 65);
    for (int i = 0; i < SAMPLES * SEQ; i++)
        targets[i] = i % SEQ < SEQ - 1 ? tokens[i + 1] : (int32_t)(test_rand(&seed) % 65);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_gradients),        cmocka_unit_test(llama_gradients),
        cmocka_unit_test(qwen3_gradients),       cmocka_unit_test(mixtral_gradients),
        cmocka_unit_test(olmo2_gradients),       cmocka_unit_test(smollm3_gradients),
        cmocka_unit_test(qwen3_moe_gradients),   cmocka_unit_test(gemma_gradients),
        cmocka_unit_test(domino_gradients),      cmocka_unit_test(window_gradients),
        cmocka_unit_test(packed_gradients),      cmocka_unit_test(linear_gradients),
        cmocka_unit_test(adapter_gradients),     cmocka_unit_test(deepseek3_gradients),
        cmocka_unit_test(layer_kinds_gradients), cmocka_unit_test(phimoe_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
