/* The systems, one row each, and the times of operators in them. */
#include "costs/system.h"

#include <stdio.h>
#include <string.h>

#include "config/settings.h"
#include "costs/cluster_ops.h"
#include "costs/experts.h"
#include "costs/launches.h"

static const char *const trait_names[] = {
#define X(id, name, doc) name,
    DH_TRAIT_LIST(X)
#undef X
};
static const char *const trait_docs[] = {
#define X(id, name, doc) doc,
    DH_TRAIT_LIST(X)
#undef X
};

_Static_assert(DH_N_TRAIT <= 64, "dh_system.traits has a bit for each");

const char *dh_trait_name(dh_trait trait)
{
    return trait_names[trait];
}

const char *dh_trait_doc(dh_trait trait)
{
    return trait_docs[trait];
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Calibrated: vtrain_single, its rows of 12 and 20 layers: the host's time to launch a kernel from
 * a module's forward. The host takes 3 ms for a layer's forward, recomputation and backward. */
#define TORCH_HOST_NS 62e3

/* Calibrated: moe-zoo, its row "tp4 ep8" alone, whose step the host decides: the same time on a
 * host of DGX H100. */
#define TORCH_HOST_H100_NS 52e3

#define HAS(trait) (UINT64_C(1) << DH_TRAIT_##trait)
#define MEGATRON_V1                                                                                \
    (HAS(SCORES) | HAS(WHOLE_FORWARD) | HAS(WHOLE_LOGITS) | HAS(WAITING_TRANSFERS) |               \
     HAS(ORDERED_TRANSFERS) | HAS(SPLIT_TRANSFERS) | HAS(REDUCED_LAST) | HAS(UNFUSED_OPTIMIZER) |  \
     HAS(HOST_WAITS) | HAS(MASKS))
/* Megatron-LM since FlashAttention and context parallelism, in whichever system its layers run. */
#define MEGATRON_LAYERS                                                                            \
    (HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(REPEATED_KV) | HAS(MASKS) |                  \
     HAS(UNFUSED_EXPERTS) | HAS(SHARED_ROWS))
/* Megatron-Core with Transformer Engine and experts: fused norms, GEMMs one by one. */
#define MEGATRON_MOE                                                                               \
    (HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(ROUNDED_ONCE) | HAS(TWO_STREAMS) |           \
     HAS(TORCH_KERNELS) | HAS(SHARED_ROWS))
#define MEGATRON_CORE (MEGATRON_LAYERS | HAS(GRADIENTS_APART))

static const dh_system systems[] = {
    {.name = "dhelix", .doc = "ours", .source = ""},
    {.name = "megatron-2021",
     .doc = "Megatron-LM before sequence parallelism",
     .source = "Narayanan et al. SC21 (arXiv 2104.04473), 3.2, 4.1; Shoeybi et al. 2019",
     .traits = MEGATRON_V1 | HAS(GRADIENTS_APART)},
    {.name = "megatron-2022",
     .doc = "Megatron-LM with sequence parallelism and selective recomputation",
     .source =
         "Korthikanti et al. 2022 (arXiv 2205.05198), 4.2.2, 5, 6.3; its p2p_communication.py",
     .traits = MEGATRON_V1},
    {.name = "megatron-core",
     .doc = "Megatron-LM with FlashAttention and context parallelism, as DHelix's paper ran it on "
            "A40; other jobs are closer to megatron-core-2024 and -2026",
     .source = "DHelix (arXiv 2411.15871), 6.1; gradients-apart and waiting-transfers are inferred "
               "from figures 3 and 11",
     .traits = MEGATRON_CORE | HAS(WAITING_TRANSFERS)},
    {.name = "megatron-core-2024",
     .doc = "Megatron-Core of 2024 on A100 and H100: small dense models",
     .source = "Megatron-Core, core/tensor_parallel/cross_entropy.py: float32 loss, and layers.py: "
               "input gradients reduced during weight gradients; separate passes are inferred from "
               "dense models of 1.7B and 7.1B on H100, 36 and 23 % too fast with fused ones; "
               "attention: FlashAttention-2, as nemo of that year",
     .traits = HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(FLOAT_LOSS) | HAS(EAGER) |
               HAS(SECOND_FLASH)},
    {.name = "megatron-core-2026",
     .doc = "Megatron-Core 0.14 and later with Transformer Engine, as Megatron-Bridge runs it",
     .source = "Megatron-Bridge 25.09 to 26.02, whose rows of table nemo are 3 % off with these "
               "traits: fused passes and loss, operands rounded with their transposes, attention "
               "of cuDNN",
     .traits = HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(ROUNDED_ONCE) | HAS(TWO_STREAMS)},
    {.name = "megatron-moe-2024",
     .doc = "Megatron-Core 0.9 to 0.11 with experts: PyTorch's routers and permutations",
     .source = "Megatron-Core, core/transformer/moe: router.py, moe_utils.py, token_dispatcher.py; "
               "MoE Parallel Folding (arXiv 2504.14960); the host's time is inferred from moe-zoo, "
               "that of small kernels from moe-folding",
     .host_ns = TORCH_HOST_H100_NS,
     .traits = MEGATRON_MOE | HAS(FLOAT_LOSS) | HAS(UNFUSED_EXPERTS)},
    {.name = "megatron-moe",
     .doc = "Megatron-Core 0.13 and later with experts: fused routers and permutations; with "
            "DeepEP or HybridEP: megatron-moe+one-copy",
     .source = "the same, with --moe-router-fusion and --moe-permute-fusion; "
               "Megatron-MoE-ModelZoo; the host's time is inferred from moe-zoo",
     .host_ns = TORCH_HOST_H100_NS,
     .traits = MEGATRON_MOE | HAS(EXPERT_KERNELS)},
    {.name = "megatron-dhelix",
     .doc = "DHelix on Megatron-LM, as its paper ran it: strategy dhelix-paper. Its streams do not "
            "wait for each other, and weight gradients move to times of communication",
     .source = "DHelix (arXiv 2411.15871), 6.1: implemented on Megatron-LM, whose layers and "
               "losses it keeps; 4.2: weight gradients that move",
     .traits = MEGATRON_LAYERS},
    {.name = "megascale",
     .doc = "megatron-core with transfers during computation; its rings are a strategy "
            "(intra-batch)",
     .source = "MegaScale (arXiv 2402.15627), 3.2; ZeRO-2: 2.1",
     .traits = MEGATRON_CORE | HAS(SHARDED_GRADIENTS)},
    {.name = "deepspeed",
     .doc = "DeepSpeed with Megatron-LM's layers (Megatron-DeepSpeed), 2021 to 2023: issued "
            "kernel by kernel, gradients in half precision",
     .source = "Megatron-DeepSpeed, megatron/model/transformer.py, core/tensor_parallel/layers.py "
               "(reductions during weight gradients) and cross_entropy.py; DeepSpeed reduces "
               "gradients in the type of the model; the host's time and its waits for losses are "
               "inferred from vtrain-node",
     .host_ns = TORCH_HOST_NS,
     .traits = MEGATRON_V1 | HAS(FLOAT_LOSS) | HAS(TORCH_KERNELS) | HAS(HALF_GRADIENTS) |
               HAS(LOSS_WAITS) | HAS(MATRIX_COLLECTIVES)},
    {.name = "composer",
     .doc = "MosaicML's Composer with FSDP, 2023: blocks not compiled, fused LayerNorm",
     .source =
         "llm-foundry, scripts/train/benchmarking; attention: FlashAttention-2 (arXiv "
         "2307.08691), 3; mixed_precision PURE in its submit_benchmarks.py: gradients reduced in "
         "bf16",
     .traits = HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(FLOAT_LOSS) |
               HAS(SHARDED_GRADIENTS) | HAS(FIRST_FLASH) | HAS(SECOND_FLASH) | HAS(TORCH_PRODUCTS) |
               HAS(HALF_GRADIENTS)},
    {.name = "torchtitan",
     .doc = "PyTorch's torchtitan with compiled layers; eager: torchtitan+eager",
     .source = "torchtitan (arXiv 2410.06511), 2.2, and its models/llama3, whose attention repeats "
               "keys and values before PyTorch's rings; the speed of these rings is inferred from "
               "its benchmarks",
     .traits = HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(SECOND_PRODUCTS) | HAS(FLOAT_LOSS) |
               HAS(SHARDED_GRADIENTS) | HAS(REPEATED_KV) | HAS(SECOND_FLASH) | HAS(TORCH_PRODUCTS) |
               HAS(ROUNDED_ONCE) | HAS(TWO_STREAMS) | HAS(SUMMED_ONCE) | HAS(TORCH_RINGS)},
    {.name = "nemo",
     .doc = "NVIDIA's NeMo on Megatron-Core with Transformer Engine; releases of 2024: "
            "nemo+second-flash",
     .source = "NeMo-Framework-Launcher, launcher_scripts/conf/training: overlapped transfers, "
               "reductions and gathers; TransformerEngine: operands rounded with their transposes; "
               "the attention kernel is inferred from nemo-long's longest sequences",
     .traits = HAS(WHOLE_LOGITS) | HAS(ORDERED_TRANSFERS) | HAS(ROUNDED_ONCE) | HAS(TWO_STREAMS)},
};

const dh_system *dh_systems(size_t *n)
{
    *n = DH_COUNTOF(systems);
    return systems;
}

/* ---- reading ------------------------------------------------------------------------------ */

enum { WORD_BYTES = 48 };

static dh_status no_such(dh_ctx *ctx, const char *what, const char *word, const char *near,
                         const char *list)
{
    return dh_fail(ctx, DH_EMISSING, "no %s is called %s%s%s; dhelix list %s has all", what, word,
                   near ? "; did you mean " : "", near ? near : "", list);
}

static dh_status find_row(dh_ctx *ctx, const char *word, const dh_system **row)
{
    const char *names[DH_COUNTOF(systems)];
    for (size_t i = 0; i < DH_COUNTOF(systems); i++) {
        names[i] = systems[i].name;
        if (strcmp(names[i], word) != 0) continue;
        *row = &systems[i];
        return DH_OK;
    }
    const char *here = dh_foreign_value("system", word);
    return no_such(ctx, "system", word, here ? here : dh_nearest(word, names, DH_COUNTOF(names)),
                   "systems");
}

static dh_status find_trait(dh_ctx *ctx, const char *word, uint64_t *traits)
{
    for (int i = 0; i < DH_N_TRAIT; i++) {
        if (strcmp(trait_names[i], word) != 0) continue;
        *traits |= UINT64_C(1) << i;
        return DH_OK;
    }
    return no_such(ctx, "trait of systems", word, dh_nearest(word, trait_names, DH_N_TRAIT),
                   "traits");
}

dh_status dh_system_read(dh_ctx *ctx, const char *text, dh_system *system)
{
    const dh_system *row = NULL;
    uint64_t traits = 0;
    for (const char *at = text;; at++) {
        char word[WORD_BYTES];
        const size_t n = strcspn(at, "+");
        snprintf(word, sizeof word, "%.*s", (int)DH_MIN(n, sizeof word - 1), at);
        DH_TRY(row ? find_trait(ctx, word, &traits) : find_row(ctx, word, &row));
        at += n;
        if (!*at) break;
    }
    *system = *row;
    system->name = text;
    system->traits |= traits;
    return DH_OK;
}

/* ---- times of operators -------------------------------------------------------------------- */

typedef struct system_costs {
    dh_costs costs; /* first: whose own `self` this is */
    dh_system system;
    dh_system_job job;
    dh_cluster cluster; /* with the system's kernels */
    const dh_costs *plain;
} system_costs;

static bool communicates(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

static bool is_transfer(const dh_op *op)
{
    return op->type == DH_OP_SEND || op->type == DH_OP_RECV;
}

static bool is_kv_exchange(const dh_op *op)
{
    return op->type == DH_OP_RING_EXCHANGE && op->group == DH_GROUP_CP;
}

static const dh_tensor *moved_by(const dh_cost_op *op)
{
    const dh_op *o = op->op;
    return &op->graph->tensors.at[o->in[0] != DH_NONE ? o->in[0] : o->out[0]];
}

/* Factor of the bytes of an exchange of keys and values, or of their gradients. */
static double exchange_factor(const system_costs *c, const dh_cost_op *op)
{
    const dh_dims *d = &op->graph->dims;
    return dh_system_has(&c->system, DH_TRAIT_REPEATED_KV)
               ? (double)d->n_heads / (double)d->n_kv_heads
               : 1;
}

/* Calibrated: torchtitan_llama3_h100, its three rows of 8B with context parallelism, all on one
 * node. The computation must take longer, since messages of eight ranks would take 3 % of the step
 * if nothing hid them. Shares of causal attention are balanced by default (pytorch issue 141429).
 * The reason is not known. */
#define TORCH_RINGS_FACTOR 1.65

static bool is_torch_ring(const system_costs *c, const dh_op *op)
{
    const bool ring = op->type == DH_OP_RING_ATTN || op->type == DH_OP_RING_ATTN_GRAD;
    return ring && op->step > 0 && dh_system_has(&c->system, DH_TRAIT_TORCH_RINGS);
}

/* Every tensor-parallel rank sends its part of the tokens; receivers gather them (Narayanan et al.
 * SC21, 4.1). */
static double split_transfer_ns(const system_costs *c, const dh_cost_op *op)
{
    const double bytes = (double)dh_tensor_bytes(moved_by(op));
    const dh_group_kind group = (dh_group_kind)op->op->group;
    const dh_cluster_span stages = dh_cluster_span_of(&c->cluster, op->mesh, group, op->rank);
    const dh_cluster_span inside = dh_cluster_span_of(&c->cluster, op->mesh, DH_GROUP_TP, op->rank);
    const double part = bytes / (double)op->mesh->tp;
    return dh_cluster_collective(&c->cluster, op->op->type, part, stages).ns +
           dh_cluster_collective(&c->cluster, DH_OP_ALL_GATHER, bytes, inside).ns;
}

static bool reduces_gradients(const dh_op *op)
{
    static const bool is_of_data[DH_N_GROUPS] = {
        [DH_GROUP_DP] = true,     [DH_GROUP_EDP] = true,          [DH_GROUP_DP_CP] = true,
        [DH_GROUP_EDP_CP] = true, [DH_GROUP_DP_CP_COPIES] = true, [DH_GROUP_EDP_CP_COPIES] = true,
        [DH_GROUP_EMBED] = true};
    return communicates(op) && is_of_data[dh_group_whole((dh_group_kind)op->group)];
}

/* Megatron-LM synchronises with the device after a batch of messages (p2p_communication.py). The
 * device then has nothing to do until the host has assembled the next micro-batch's arguments and
 * issued its first operators, about 15. TUNING: assumed: 10 us each, the time in which a host
 * issues one operator. */
#define HOST_RESUME_NS 150e3

/* Passes in addition to AdamW itself. Gradients are unscaled (8 bytes a parameter) and set to zero
 * (4). The copy has its own pass over the master weights (4), of which dh_op_bytes has 2, since it
 * counts the copy twice. */
static double optimizer_passes_ns(const system_costs *c, const dh_cost_op *op)
{
    const double bytes = 8 + 4 + 2;
    return dh_cluster_memory_ns(&c->cluster, bytes * (double)dh_tensor_elements(moved_by(op)));
}

/* Share of a GEMM that the backward computes again. The GEMMs of a layer in order are q, k, v and
 * o, then gate, up and down. torchtitan keeps the first and computes every second again. In the
 * packed GEMMs here, these are k of the first one, and one of gate and up. A layer without a gate
 * has fewer than seven. */
static double share_again(const dh_dims *d, uint32_t which)
{
    const bool gated = d->act != DH_ACT_GELU_TANH;
    const double kv = (double)d->n_kv_heads, q = (double)d->n_heads;
    if (which == DH_PARAM_QKV_W) return kv / (q + 2 * kv);
    if (which == DH_PARAM_FC1_W) return gated ? 0.5 : 0;
    return which == DH_PARAM_PROJ_W || (which == DH_PARAM_FC2_W && !gated);
}

/* A GEMM is computed again before the gradient of its input. The gradient has as many FLOPs, so the
 * GEMM adds that time once more. */
static double second_product_factor(const dh_cost_op *op)
{
    const dh_graph *g = op->graph;
    const bool dgrad =
        op->op->type == DH_OP_LINEAR_DGRAD || op->op->type == DH_OP_LINEAR_DGRAD_GELU;
    if (!dgrad || g->kind != DH_BLOCK_LAYER) return 1;
    return 1 + share_again(&g->dims, g->tensors.at[op->op->in[1]].which);
}

/* ---- parts of GEMMs ---- */

/* Rows of the whole GEMM that this one leaves out. Between tensor parallelism's collectives a
 * layer's GEMM has all tokens of the rank; one with fewer rows is a part of it. */
static int64_t rows_left_out(const dh_cost_op *op)
{
    static const bool is_product[DH_N_OP_TYPE] = {[DH_OP_LINEAR] = true,
                                                  [DH_OP_LINEAR_GELU] = true,
                                                  [DH_OP_LINEAR_DGRAD] = true,
                                                  [DH_OP_LINEAR_DGRAD_GELU] = true};
    const dh_graph *g = op->graph;
    if (!is_product[op->op->type] || g->kind != DH_BLOCK_LAYER || op->mesh->tp <= 1) return 0;
    return DH_MAX(g->dims.batch * g->dims.seq - g->tensors.at[op->op->in[0]].shape[0], 0);
}

/* Share of the whole GEMM's rows. */
static double share_of_rows(const dh_cost_op *op)
{
    const double n = (double)op->graph->tensors.at[op->op->in[0]].shape[0];
    return n / (n + (double)rows_left_out(op));
}

/* ---- 8-bit GEMMs: operands rounded once ---- */

/* Whether an operator rounds its first input. The first GEMM that reads an operand rounds it: the
 * forward its input, the gradient of the input the incoming gradient. The weight's gradient finds
 * both rounded. */
static bool rounds_first(dh_op_type type)
{
    static const bool does[DH_N_OP_TYPE] = {
        [DH_OP_LINEAR] = true,         [DH_OP_LINEAR_GELU] = true,
        [DH_OP_LINEAR_DGRAD] = true,   [DH_OP_LINEAR_DGRAD_GELU] = true,
        [DH_OP_GROUPED_LINEAR] = true, [DH_OP_GROUPED_DGRAD] = true};
    return does[type];
}

static bool rounds_weight(dh_op_type type)
{
    return type == DH_OP_LINEAR || type == DH_OP_LINEAR_GELU || type == DH_OP_GROUPED_LINEAR;
}

/* Hopper's 8-bit GEMMs read both operands along the shared axis. An operand of two GEMMs is
 * therefore written twice: 2 bytes read and 2 written. Weights are rounded at a step's first
 * micro-batch, for all parts of their GEMM. */
static double rounded_once_ns(const system_costs *c, const dh_cost_op *op)
{
    const double bytes = 2 + 2, n_micro = (double)DH_MAX(c->job.n_micro, 1);
    const dh_tensor *in = op->graph->tensors.at;
    double elements = 0;
    if (rounds_first(op->op->type)) elements += (double)dh_tensor_elements(&in[op->op->in[0]]);
    if (rounds_weight(op->op->type))
        elements += (double)dh_tensor_elements(&in[op->op->in[1]]) / n_micro * share_of_rows(op);
    return elements > 0 ? dh_cluster_memory_ns(&c->cluster, bytes * elements) : 0;
}

static bool is_ring_exchange(const dh_op *op)
{
    return op->type == DH_OP_RING_EXCHANGE || op->type == DH_OP_RING_EXCHANGE_BOTH;
}

/* A step of a ring that gathers: a GEMM reads the data that came. In a ring of sums they are
 * added. */
static bool passes_operand_on(const dh_cost_op *op)
{
    const dh_graph *g = op->graph;
    if (!is_ring_exchange(op->op)) return false;
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].in[0] == op->op->out[0] && rounds_first(g->ops.at[i].type)) return true;
    return false;
}

/* A layer's input, or its incoming gradient, gathered over tensor-parallel ranks in 8 bits, not
 * 16. */
static bool gathers_rounded(const system_costs *c, const dh_cost_op *op)
{
    return c->job.fp8 && dh_system_has(&c->system, DH_TRAIT_ROUNDED_ONCE) &&
           op->op->group == DH_GROUP_TP && op->graph->kind == DH_BLOCK_LAYER &&
           moved_by(op)->dtype == DH_BF16 &&
           (op->op->type == DH_OP_ALL_GATHER || passes_operand_on(op));
}

static double rounded_gather_ns(const system_costs *c, const dh_cost_op *op)
{
    const dh_cluster_span span =
        dh_cluster_span_of(&c->cluster, op->mesh, (dh_group_kind)op->op->group, op->rank);
    const double ways = op->op->type == DH_OP_RING_EXCHANGE_BOTH ? 2 : 1;
    const double bytes = (double)dh_tensor_bytes(&op->graph->tensors.at[op->op->out[0]]) / 2 * ways;
    return dh_cluster_collective(&c->cluster, op->op->type, bytes, span).ns;
}

/* Bytes of a logit that the passes in float32 add. The loss's own operators have 2 of these 28
 * bytes, in passes over half-precision logits.
 *
 *   cast to float32, and back      2 + 4, 4 + 2
 *   log-softmax, its gradient      4 + 4 each */
static double float_loss_ns(const system_costs *c, const dh_cost_op *op)
{
    const double bytes = 26;
    const double logits = (double)dh_tensor_elements(&op->graph->tensors.at[op->op->in[0]]);
    return dh_cluster_memory_ns(&c->cluster, bytes * logits);
}

/* Bytes moved by eager operators over those of one fused operator.
 *   RMSNorm     30 of 4: to float32, square, mean, scale, back, weight
 *   rotation    20 of 4: complex numbers in float32
 *   activation  10 of 6: SiLU and its product with up */
static double eager_factor(const dh_op *op)
{
    static const double factors[DH_N_OP_TYPE] = {
        [DH_OP_NORM] = 30.0 / 4,      [DH_OP_NORM_DGRAD] = 30.0 / 4, [DH_OP_ROPE] = 20.0 / 4,
        [DH_OP_ROPE_GRAD] = 20.0 / 4, [DH_OP_ACT] = 10.0 / 6,        [DH_OP_ACT_GRAD] = 10.0 / 6};
    return factors[op->type] > 0 ? factors[op->type] : 1;
}

/* Time of a part, as its share of the whole GEMM. A model of devices charges an operator with
 * tile_of in this way. */
static double part_ns(const system_costs *c, const dh_cost_op *op)
{
    dh_op part = *op->op;
    dh_cost_op of_whole = *op;
    part.tile_of = op->graph->tensors.at[part.in[0]].shape[0] + rows_left_out(op);
    of_whole.op = &part;
    return c->plain->solo(c->plain->self, &of_whole).ns;
}

/* Time of one pass over the time of a ring's additions. A ring reads two parts and writes one at
 * each of its n - 1 additions. One pass, as in PyTorch's fused_matmul_reduce_scatter
 * (torch/distributed/_symmetric_memory, reduce_partials), reads n and writes one. The result is 1
 * for an operator that is no addition of a ring. */
static double one_pass_share(const dh_cost_op *op)
{
    const dh_graph *g = op->graph;
    const double n = (double)op->mesh->tp;
    if (op->op->type != DH_OP_ADD || g->kind != DH_BLOCK_LAYER || n <= 1) return 1;
    for (uint32_t k = 0; k < g->ops.n; k++) {
        const dh_op *from = &g->ops.at[k];
        if (!is_ring_exchange(from) || from->group != DH_GROUP_TP) continue;
        for (int i = 0; i < 2; i++)
            if (op->op->in[i] == from->out[0] || op->op->in[i] == from->out[1])
                return (n + 1) / (3 * (n - 1));
    }
    return 1;
}

static dh_op_time solo(const void *self, const dh_cost_op *op)
{
    const system_costs *c = self;
    dh_op_time t = c->plain->solo(c->plain->self, op);
    if (dh_system_has(&c->system, DH_TRAIT_TWO_STREAMS) && rows_left_out(op) > 0)
        t.ns = part_ns(c, op);
    if (dh_system_has(&c->system, DH_TRAIT_SUMMED_ONCE)) t.ns *= one_pass_share(op);
    /* Gradients that have the type already are not rounded to it. */
    if (dh_system_has(&c->system, DH_TRAIT_HALF_GRADIENTS))
        t.ns -= dh_cluster_narrowing_ns(&c->cluster, op);
    t.ns = dh_expert_ns(&c->system, &c->cluster, op, t.ns);
    if (is_kv_exchange(op->op)) t.ns *= exchange_factor(c, op);
    if (is_torch_ring(c, op->op)) t.ns *= TORCH_RINGS_FACTOR;
    if (is_transfer(op->op) && c->job.sequence == DH_SEQUENCE_WHOLE && op->mesh->tp > 1 &&
        dh_system_has(&c->system, DH_TRAIT_SPLIT_TRANSFERS))
        t.ns = split_transfer_ns(c, op);
    if (c->job.selective && dh_system_has(&c->system, DH_TRAIT_SECOND_PRODUCTS))
        t.ns *= second_product_factor(op);
    if (op->op->type == DH_OP_LOSS_GRAD && dh_system_has(&c->system, DH_TRAIT_FLOAT_LOSS))
        t.ns += float_loss_ns(c, op);
    if (c->job.fp8 && dh_system_has(&c->system, DH_TRAIT_ROUNDED_ONCE)) {
        const double rounding = dh_cluster_rounding_ns(&c->cluster, op);
        if (rounding > 0) t.ns += rounded_once_ns(c, op) - rounding;
        if (gathers_rounded(c, op)) t.ns = rounded_gather_ns(c, op);
    }
    if (dh_system_has(&c->system, DH_TRAIT_EAGER)) t.ns *= eager_factor(op->op);
    if (op->op->type == DH_OP_RECV && dh_system_has(&c->system, DH_TRAIT_HOST_WAITS) &&
        c->costs.host_ns <= 0)
        t.ns += HOST_RESUME_NS;
    if (op->op->type == DH_OP_ADAMW && dh_system_has(&c->system, DH_TRAIT_UNFUSED_OPTIMIZER))
        t.ns += optimizer_passes_ns(c, op);
    return t;
}

/* ---- launches by the host ---- */

static bool host_waits_for(const system_costs *c, const dh_op *op)
{
    if (is_transfer(op)) return dh_system_has(&c->system, DH_TRAIT_HOST_WAITS);
    if (dh_expert_waits(&c->system, op)) return true;
    return op->type == DH_OP_LOSS && dh_system_has(&c->system, DH_TRAIT_LOSS_WAITS);
}

static double n_launches(const system_costs *c, const dh_cost_op *op)
{
    if (dh_system_has(&c->system, DH_TRAIT_CAPTURED) && op->graph->kind == DH_BLOCK_LAYER)
        return op->op == &op->graph->ops.at[0];
    if (!dh_system_has(&c->system, DH_TRAIT_TORCH_KERNELS)) return 1;
    const double of_experts = dh_expert_launches(&c->system, op);
    if (of_experts > 0) return of_experts;
    return dh_torch_launches(op, c->cluster.attention != DH_ATTENTION_BLOCKWISE,
                             dh_system_has(&c->system, DH_TRAIT_EAGER));
}

static dh_issue issue_of(const void *self, const dh_cost_op *op)
{
    const system_costs *c = self;
    return (dh_issue){.n_kernels = n_launches(c, op), .waits = host_waits_for(c, op->op)};
}

/* ---- operators at the same time -------------------------------------------------------------- */

/* Within one backward: a reduction of input gradients during a weight gradient, or an input
 * gathered again during an input gradient. */
static bool is_across_gradients(const dh_op *a, const dh_op *b)
{
    return a->group == DH_GROUP_TP && a->phase != DH_PHASE_F && b->phase != DH_PHASE_F &&
           a->phase != b->phase;
}

/* Whether computation b stands still while communication a runs. */
static bool stops(const system_costs *c, const dh_op *a, const dh_op *b)
{
    if (!communicates(a) || communicates(b)) return false;
    return (dh_system_has(&c->system, DH_TRAIT_GRADIENTS_APART) && is_across_gradients(a, b)) ||
           (dh_system_has(&c->system, DH_TRAIT_WAITING_TRANSFERS) && is_transfer(a));
}

/* Whether communication a stands still while b runs. */
static bool gives_way(const system_costs *c, const dh_op *a, const dh_op *b)
{
    return dh_system_has(&c->system, DH_TRAIT_REDUCED_LAST) && reduces_gradients(a) &&
           !reduces_gradients(b);
}

static dh_op_rates beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const system_costs *c = self;
    if (stops(c, a->op, b->op) || gives_way(c, b->op, a->op))
        return (dh_op_rates){1, 0, DH_PAIR_MODELLED};
    if (stops(c, b->op, a->op) || gives_way(c, a->op, b->op))
        return (dh_op_rates){0, 1, DH_PAIR_MODELLED};
    return c->plain->beside(c->plain->self, a, b);
}

/* The first FlashAttention reached 30 to 50 % of an A100's peak forward and 25 to 35 % backward, over
 * all lengths and head dimensions (FlashAttention-2, arXiv 2307.08691, section 3). These are the
 * middles. SECOND_AT_2K has the shares of the second version with 2,048 tokens and a mask. If a
 * file has one rate for all lengths, the first version is slower by the ratio of the two. */
#define FIRST_FLASH_FORWARD 0.40
#define FIRST_FLASH_BACKWARD 0.30
#define SECOND_AT_2K_FORWARD 0.55
#define SECOND_AT_2K_BACKWARD 0.50

/* FlashAttention-2 on H100 (FlashAttention-3, arXiv 2407.08608, figures 5 and 6): heads of 128, 16K
 * tokens, causal. Azure's guide measured 328 forward. */
#define SECOND_FLASH_FORWARD 335e12
#define SECOND_FLASH_BACKWARD 322e12

/* Calibrated: torchtitan_llama3_h100, its rows in bf16: 0.512 of the capped peak. NeMo's jobs on
 * the same device are right with 0.75. The reason for PyTorch's lower rate is not known; on A100
 * its GEMMs reach the full rate. */
#define TORCH_PRODUCTS_SHARE (0.512 / 0.75)

static void slow_products(const dh_system *system, dh_cluster *cluster)
{
    if (dh_system_has(system, DH_TRAIT_TORCH_PRODUCTS) && cluster->fp8_flops_per_s > 0)
        cluster->gemm_efficiency *= TORCH_PRODUCTS_SHARE;
}

static void slow_attention(const dh_system *system, dh_cluster *cluster)
{
    double *forward = &cluster->attention_efficiency;
    double *backward = &cluster->attention_grad_efficiency;
    if (dh_system_has(system, DH_TRAIT_SECOND_FLASH)) {
        *forward = DH_MIN(*forward, SECOND_FLASH_FORWARD / cluster->bf16_flops_per_s);
        *backward = DH_MIN(*backward, SECOND_FLASH_BACKWARD / cluster->bf16_flops_per_s);
    }
    if (dh_system_has(system, DH_TRAIT_FIRST_FLASH)) {
        const bool by_length = cluster->attention_start_keys > 0;
        *forward = FIRST_FLASH_FORWARD * (by_length ? 1 : *forward / SECOND_AT_2K_FORWARD);
        *backward = FIRST_FLASH_BACKWARD * (by_length ? 1 : *backward / SECOND_AT_2K_BACKWARD);
        cluster->attention_start_keys = cluster->attention_head_half = cluster->attention_block = 0;
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

/* The kernel of the forward. */
static dh_attention_kernel first_kernel(const dh_system *system, const dh_cluster *cluster)
{
    return dh_system_has(system, DH_TRAIT_SCORES) ? DH_ATTENTION_SCORES : cluster->attention;
}

static dh_attention_kernel kernel_of(const dh_system *system, const dh_system_job *job,
                                     const dh_cluster *cluster)
{
    const dh_attention_kernel kernel = first_kernel(system, cluster);
    return kernel == DH_ATTENTION_SCORES && job->scores_again ? DH_ATTENTION_SCORES_RECOMPUTE
                                                              : kernel;
}

dh_system_job dh_system_heeds(const dh_system *system, const dh_system_job *job,
                              const dh_cluster *cluster)
{
    const bool scores = first_kernel(system, cluster) == DH_ATTENTION_SCORES;
    const bool rounds = job->fp8 && dh_system_has(system, DH_TRAIT_ROUNDED_ONCE);
    return (dh_system_job){
        .sequence =
            dh_system_has(system, DH_TRAIT_SPLIT_TRANSFERS) ? job->sequence : DH_SEQUENCE_SPLIT,
        .scores_again = job->scores_again && scores,
        .selective = job->selective && dh_system_has(system, DH_TRAIT_SECOND_PRODUCTS),
        .fp8 = rounds,
        .n_micro = rounds ? job->n_micro : 0};
}

dh_status dh_system_costs(dh_ctx *ctx, dh_arena *arena, const dh_system *system,
                          const dh_system_job *job, const dh_cluster *cluster,
                          const dh_costs **costs)
{
    const dh_attention_kernel kernel = kernel_of(system, job, cluster);
    if (system->traits == 0 && kernel == cluster->attention)
        return dh_cluster_costs(ctx, arena, cluster, costs);
    system_costs *own = DH_NEW(arena, system_costs);
    if (!own) return dh_no_memory(ctx);
    *own = (system_costs){
        .system = *system, .job = dh_system_heeds(system, job, cluster), .cluster = *cluster};
    own->cluster.attention = kernel;
    slow_attention(system, &own->cluster);
    slow_products(system, &own->cluster);
    const dh_costs *plain = NULL;
    DH_TRY(dh_cluster_costs(ctx, arena, &own->cluster, &plain));
    own->plain = plain;
    own->costs = *plain;
    own->costs.name = dh_arena_printf(arena, "%s, system %s", plain->name, system->name);
    if (!own->costs.name) return dh_no_memory(ctx);
    own->costs.issuer = (dh_issuer){issue_of, own};
    if (own->costs.host_ns <= 0) own->costs.host_ns = system->host_ns;
    own->costs.solo = solo;
    own->costs.beside = beside;
    own->costs.self = own;
    *costs = &own->costs;
    return DH_OK;
}
