/* Operator graph of one block: embedding, transformer layer, or head.
 *
 * A graph holds the forward operators and, once differentiated, the backward
 * ones, over one tensor table. Shapes are those of one rank and one
 * micro-batch. Input gradients (dgrad) and weight gradients (wgrad) are separate
 * operators, since schedules place them apart. Passes (pass.h) rewrite this structure;
 * the program layer only ever sees the result.
 *
 * Objects are referred to by index, so a graph prints, reads back and compares. */
#ifndef DH_GRAPH_GRAPH_H
#define DH_GRAPH_GRAPH_H

#include <string.h>

#include "base/base.h"
#include "config/mesh.h"
#include "config/sharing.h"
#include "dhelix/dtype.h"
#include "dhelix/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_MAX_OPERANDS 7

/* ---- operator types -------------------------------------------------------------- */

typedef enum dh_op_type {
#define DH_OP(id, name, res, in, out, inplace, attrs, doc) DH_OP_##id,
#include "graph/ops.def"
#undef DH_OP
    DH_N_OP_TYPE
} dh_op_type;

/* The resource that an operator uses. A COMM operator runs on the link of its group. */
typedef enum dh_resource { DH_RES_HOST, DH_RES_COMPUTE, DH_RES_COMM } dh_resource;

typedef struct dh_operand_info {
    char name[16];
    bool optional;   /* may be DH_NONE */
    bool accumulate; /* output: += unless first writer of the step */
    bool update;     /* output: read and written in place */
} dh_operand_info;

/* Attributes of operators, in addition to operands. ops.def defines each and says which types have
 * it. */
typedef enum dh_op_attr {
    DH_ATTR_SITE,
    DH_ATTR_GROUP,
    DH_ATTR_FLAT,
    DH_ATTR_STEP,
    DH_ATTR_VOCAB0,
    DH_ATTR_PARTS,
    DH_ATTR_PART0,
    DH_ATTR_CAPACITY,
    DH_ATTR_ROOM,
    DH_ATTR_ROWS,
    DH_ATTR_BY,
    DH_ATTR_TILE_OF,
    DH_ATTR_FROM,
    DH_ATTR_TO,
    DH_ATTR_COLUMNS,
    DH_ATTR_ADDS,
    DH_ATTR_BACK,
    DH_ATTR_BLOCKS,
    DH_ATTR_WIRE,
    DH_N_OP_ATTR
} dh_op_attr;

typedef struct dh_op_info {
    const char *name, *doc;
    dh_resource resource;
    unsigned attrs; /* bit a: dh_op_attr a may be set */
    int n_in, n_out;
    int inplace; /* input that output 0 may overlay, -1 none */
    dh_operand_info in[DH_MAX_OPERANDS], out[DH_MAX_OPERANDS];
} dh_op_info;

const dh_op_info *dh_op_info_of(dh_op_type type);

/* ---- tensors ------------------------------------------------------------------------ */

typedef enum dh_tensor_kind {
    DH_TENSOR_ACT,   /* value of one micro-batch, lives from its writer to its last reader */
    DH_TENSOR_INPUT, /* micro-batch input shared by all blocks; which = dh_input */
    DH_TENSOR_PARAM, /* in compute precision; which = index into the block's parameters */
    DH_TENSOR_GRAD,  /* float32 gradient of that parameter */
    DH_TENSOR_STATE, /* persistent; which = dh_state */
    DH_TENSOR_RANGE, /* persistent bytes across parameters; which = index the builder gave */
    DH_N_TENSOR_KIND
} dh_tensor_kind;

typedef enum dh_input { DH_IN_TOKENS, DH_IN_TARGETS, DH_IN_POS, DH_IN_SAMPLE, DH_N_INPUT } dh_input;

/* Persistent tensors other than parameters and gradients. The KV cache is per layer. Sums as
 * "digits" are exact. */
typedef enum dh_state {
    DH_STATE_LOSS,
    DH_STATE_SQSUM,   /* squared sum of each region of gradients, digits */
    DH_STATE_SQTOTAL, /* squared sum of all gradients, digits */
    DH_STATE_NORM,
    DH_STATE_SQCHAIN,     /* digits [2]: of this stage; of the stages before it in the chain */
    DH_STATE_NORM_SO_FAR, /* norm of both together; fused: of each region alone */
    DH_STATE_ROUTER,      /* per micro-batch: choices and probabilities summed over all layers */
    DH_STATE_AUX,
    DH_STATE_TIED_GRAD, /* float32: the head's part of the gradient of a tied embedding */
    DH_STATE_KV_CACHE,  /* for linear attention: the state of its sums */
    DH_N_STATE
} dh_state;

/* The meaning of an axis. It decides how a pass may partition it. */
typedef enum dh_axis {
    DH_AXIS_NONE,
    DH_AXIS_TOKENS,
    DH_AXIS_WIDTH,
    DH_AXIS_HEADS, /* columns of packed qkv or of the attention output */
    DH_AXIS_FFN,
    DH_AXIS_VOCAB,
    DH_AXIS_EXPERTS,
    DH_AXIS_ROUTED, /* choices of tokens, in the order by expert */
    DH_AXIS_LATENT, /* channels from which heads' queries, or keys and values, are made */
    DH_N_AXIS
} dh_axis;

/* Whether the axis may be split over ranks. */
static inline bool dh_axis_is_split(dh_axis axis)
{
    return axis >= DH_AXIS_HEADS && axis <= DH_AXIS_LATENT;
}

typedef struct dh_tensor {
    char name[24];
    dh_tensor_kind kind;
    dh_dtype dtype;
    int ndim; /* 1 to 3, row-major, contiguous */
    int64_t shape[3];
    dh_axis axis[3];
    uint32_t base; /* rows [row0, row0 + shape[0]) of this tensor; DH_NONE: own storage */
    int64_t row0;
    uint32_t which; /* index among its kind; DH_NONE for ACT */
} dh_tensor;

/* Copies as much of the text as fits, like snprintf, in a tenth of its time. */
static inline void dh_tensor_set_name(dh_tensor *tensor, const char *name)
{
    const size_t n = strnlen(name, sizeof tensor->name - 1);
    memcpy(tensor->name, name, n);
    tensor->name[n] = '\0';
}

/* ---- operators ----------------------------------------------------------------------- */

typedef enum dh_phase {
    DH_PHASE_F,   /* forward; in the head also the loss gradient */
    DH_PHASE_B,   /* input gradients ("I" in zero-bubble notation) */
    DH_PHASE_W,   /* weight gradients */
    DH_PHASE_OPT, /* optimizer step */
    DH_N_PHASE
} dh_phase;

/* Dropout sites of a layer; the generator's stream is layer * DH_N_SITE + site. */
typedef enum dh_site { DH_SITE_EMBED, DH_SITE_ATTN, DH_SITE_MLP, DH_N_SITE } dh_site;

typedef struct dh_op {
    dh_op_type type;
    dh_phase phase;
    uint32_t in[DH_MAX_OPERANDS], out[DH_MAX_OPERANDS]; /* tensor ids, DH_NONE if absent */
    /* Attributes. One that is not set, or that the type's row does not have, has the value in
     * brackets. */
    int32_t site;                 /* dh_site [-1] */
    int32_t group;                /* dh_group_kind [-1] */
    uint32_t flat;                /* [DH_NONE] */
    int32_t step;                 /* [0] */
    int64_t vocab0;               /* [0] */
    int32_t parts;                /* [0]: complete as a whole, as with 1 */
    int32_t part0;                /* [0] */
    int64_t capacity, room, rows; /* [0] */
    int32_t by;                   /* [0] */
    int64_t tile_of;              /* [0] */
    int64_t from, to, columns;    /* [0] */
    int32_t adds;                 /* [0] */
    int32_t back;                 /* [0] */
    int32_t blocks;               /* [0]: one */
    int32_t wire;                 /* dh_dtype [0]: the operands' own */
} dh_op;

typedef enum dh_block_kind {
    DH_BLOCK_EMBED,
    DH_BLOCK_LAYER,
    DH_BLOCK_HEAD,
    DH_BLOCK_DATA,
    DH_BLOCK_OPT,
    DH_BLOCK_GRADS,    /* reductions of a block's gradients over ranks */
    DH_BLOCK_LINK,     /* one end of a transfer between pipeline stages */
    DH_BLOCK_EXPERTS,  /* parameters of a layer's experts; no operators */
    DH_BLOCK_PROGRAM,  /* a program of its own, of no model */
    DH_BLOCK_GATHER,   /* matrices of a bucket made whole for one use, and released */
    DH_BLOCK_RESHARD,  /* moves of parameters to another layout */
    DH_BLOCK_ADAPTERS, /* parameters of a layer's adapters; no operators */
    DH_N_BLOCK_KIND
} dh_block_kind;

typedef enum dh_mode { DH_MODE_TRAIN, DH_MODE_EVAL, DH_MODE_DECODE } dh_mode;

/* Values that all operators of a graph share: the micro-batch and the model on this rank. Operands
 * say on how much of it an operator works. */
typedef struct dh_dims {
    int64_t batch, seq; /* B, T of the micro-batch on this rank */
    int64_t width, n_heads, n_kv_heads, head_dim, ffn_width, vocab;
    int64_t max_seq; /* positions are below this: T, or the KV cache length in decode mode */
    dh_norm_kind norm;
    double norm_eps;
    int64_t norm_plus_one; /* 1: norms multiply by 1 + weight */
    dh_act_kind act;
    double embed_scale;   /* factor of embeddings; 0: none */
    double attn_scale;    /* factor of scores; 0: 1 / sqrt(head_dim) */
    double attn_softcap;  /* cap of scores, after their factor; 0: none */
    double logit_softcap; /* 0: none */
    double lora_scale; /* factor of adapters' results; only adapters are trained; 0: no adapters */
    dh_rope rope;
    dh_longrope longrope;
    int64_t nth; /* every n-th layer has rope_nth instead; 0: none */
    dh_rope rope_nth;
    double dropout;
    double loss_scale; /* 1 / tokens of the global batch */
    int64_t cp;        /* ranks that share every sample, cp * seq tokens long; 0: one */
    int64_t cp_rank;
    int64_t top_k;      /* experts of a token */
    int64_t topk_plain; /* 1: their weights are their probabilities, not made to sum to 1 */
    /* Latent attention; 0: none. The last rope_dim of the head_dim channels of queries and keys are
     * rotated (neighbours together with rope_pairs 1). Values have v_dim channels. */
    int64_t rope_dim, v_dim, rope_pairs;
    /* Routing by sigmoids; 0: by softmax. A token uses top_groups of n_groups. */
    int64_t n_groups, top_groups;
    /* 1: weights of a token's two experts by sparsemixer, with its threshold (dh_model). */
    int64_t sparsemixer;
    double router_jitter;
    double router_scale;     /* factor of the weights of a token's experts */
    int64_t router_balanced; /* 1: routers' biases follow the load of their experts */
    double aux_scale;        /* factor of the gradient of the load-balancing loss */
    /* Windows of attention (dh_model_window): number of tokens, and which of the layers. */
    int64_t window, window_from, window_every, layers; /* 0 all: none has a window */
    int64_t linear;      /* 1: linear attention; cp ranks' tokens are consecutive */
    int64_t zigzag;      /* 1: tokens lie as in rings, since other layers have softmax */
    int64_t feature_map; /* dh_feature_map */
    int64_t linear_ring; /* 1: cp ranks hand the state on one by one, instead of gathering */
    /* 1: gradients of keys and values travel in float32, else in the graph's type */
    int64_t float_kv_grads;
    dh_fp8 fp8; /* format of a layer's linears, by dh_op_fp8 */
} dh_dims;

/* A rank's part of every sharded parameter and activation. */
typedef struct dh_shard {
    int64_t tp, tp_rank;
    int64_t ep, ep_rank;  /* experts; ep 0: one rank has all */
    dh_sequence sequence; /* tokens between the linears */
    bool whole_experts;   /* tp ranks have whole experts, not columns of each */
    bool shared_rows;     /* else: they share out the columns of rows on their way to experts */
} dh_shard;

/* Number of ranks over which a layer's experts are spread, in the order of dh_mesh_expert_group,
 * and this rank's place among them. */
static inline int64_t dh_shard_expert_ranks(const dh_shard *shard)
{
    return DH_MAX(shard->ep, 1) * (shard->whole_experts ? shard->tp : 1);
}
static inline int64_t dh_shard_expert_rank(const dh_shard *shard)
{
    return shard->whole_experts ? shard->ep_rank * shard->tp + shard->tp_rank : shard->ep_rank;
}
#define DH_SHARD_WHOLE ((dh_shard){.tp = 1})

typedef struct dh_graph {
    dh_block_kind kind;
    dh_mode mode;
    dh_dtype dtype; /* of activations and GEMM operands */
    dh_dims dims;
    DH_VEC(dh_tensor) tensors;
    DH_VEC(dh_op) ops;        /* forward in an order that can run; then backward likewise */
    uint32_t x_in, x_out;     /* residual stream; DH_NONE where the block has none */
    uint32_t dx_out, dx_in;   /* their gradients: dx_out enters the backward, dx_in leaves */
    uint32_t loss_x, loss_dx; /* train-mode head: the forward makes the gradient of loss_x */
} dh_graph;

/* ---- building ---------------------------------------------------------------------------- */

typedef struct dh_build {
    const dh_model *model;
    int64_t layer; /* LAYER, EXPERTS, ADAPTERS: a layer of the wanted kind */
    dh_mode mode;
    dh_dtype dtype;
    int64_t batch, seq; /* micro-batch on this rank */
    int64_t cache_len;  /* decode: rows of the KV cache */
    double dropout;
    double loss_scale;
    int64_t head_chunk_bytes; /* logits are made in row chunks of at most this many bytes */
    double moe_capacity;      /* rows of an expert over its even share; 0: no limit */
    bool documents; /* samples are rows of documents that do not see each other; positions begin
                       * anew with each */
    bool linear_ring, float_kv_grads; /* dh_dims */
    bool balances_routers; /* dims.router_balanced of a model whose routers have biases */
    dh_fp8 fp8;            /* dh_dims; not used in decoding */
} dh_build;

/* TUNING: chunks of 512 rows and more keep bf16 weight gradients of a 50,257-word head at full rate
 * (bench/kernels, contended: 174 GFLOP/s, against 100 with 128 rows). */
#define DH_HEAD_CHUNK_BYTES ((int64_t)128 << 20)

/* Forward graph of a block (EMBED, LAYER, HEAD), of DATA, and of EXPERTS and ADAPTERS, which have
 * no operators. In train mode the head's forward also makes the loss gradient, chunk by chunk. The
 * gradient of the loss itself is a constant, so logits never exist for the whole micro-batch.
 * out       caller frees with dh_graph_destroy */
dh_status dh_graph_build(dh_ctx *ctx, const dh_build *build, dh_block_kind kind, dh_graph **graph);
void dh_graph_destroy(dh_graph *graph);

/* Append the backward operators (one rule per operator type, grad.c). Gradients
 * that meet on the residual path are added inside norm_dgrad. */
dh_status dh_graph_differentiate(dh_ctx *ctx, dh_graph *graph);

/* Tensor parallelism on a forward graph. Heads, FFN columns and the vocabulary are split over the
 * group.
 *   sequence parallelism (Korthikanti et al. 2022, 4.2.2): tokens of the residual stream are split
 *     too. An all-gather stands before every column-parallel linear, and a reduce-scatter after
 *     every row-parallel one.
 *   whole tokens (shard.sequence; Shoeybi et al. 2019, 3): an all-reduce stands after every
 *     row-parallel linear. In the backward it stands after the input gradient of every
 *     column-parallel linear.
 *
 * errors    DH_EINVAL where sizes do not divide */
dh_status dh_pass_tensor_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard);

/* Context parallelism, on a forward graph built for the rank's seq = T/cp tokens of every sample.
 * It comes before tensor parallelism.
 *
 * Softmax attention: a sample is 2*cp chunks. The rank has chunks cp_rank and 2*cp - 1 - cp_rank,
 * so all ranks have the same work under the causal mask. Attention becomes a ring (Liu et al. 2023,
 * arXiv 2310.01889). Keys and values travel from rank to rank while the present block is used.
 *
 * Linear attention: the work does not depend on the place of tokens, so ranks have consecutive
 * shares. One all-gather of their states, D x D per head, tells each rank the sums before its share
 * (LASP-2, arXiv 2502.07563). It runs during the attention inside the shares. With dims.linear_ring
 * states are handed on from rank to rank (LASP, arXiv 2404.02882). Gradients travel the other way.
 *
 * Both kinds of layers (dims.zigzag; LASP-2H, in the same paper): tokens lie as in rings for all
 * layers, so a share is two sequences with a state each.
 *
 * errors    DH_EINVAL T does not divide by 2*cp (linear alone: cp), or states of a share of two
 *           chunks shall be handed on */
dh_status dh_pass_context_parallel(dh_ctx *ctx, dh_graph *graph, int64_t cp, int64_t cp_rank);

/* Expert parallelism, on a forward graph after tensor parallelism. The rank keeps its share of the
 * experts. Rows travel to the experts that their tokens chose, and back (Lepikhin et al. 2020,
 * arXiv 2006.16668, 3.2). With a capacity, blocks of one size are exchanged. Without dropping, a
 * rank has room for `room` times the even share of rows. A step in which more arrive fails with
 * DH_EINVAL in moe_offsets. With stages a token's row crosses nodes once for all experts that it
 * chose there (dh_mesh_dispatch_stages). NULL: once for each of its experts.
 *
 * errors    DH_EINVAL experts do not divide, or room is below 1 */
dh_status dh_pass_expert_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard, double room,
                                  const dh_group_stages *stages);

/* Tokens that a query of this layer sees, itself the last of them; 0: all before it. */
int64_t dh_dims_window(const dh_dims *dims, int64_t layer);

/* Position in its sample of the t-th of the rank's tokens. */
int64_t dh_cp_position(const dh_dims *dims, int64_t cp_rank, int64_t t);

/* Chunks of a sample that a cp rank has, each of consecutive tokens. */
int64_t dh_cp_chunks(const dh_dims *dims);

/* The cp rank of the n-th chunk of a sample, and the chunk's index among that rank's own. */
typedef struct dh_cp_chunk {
    int64_t rank, own;
} dh_cp_chunk;
dh_cp_chunk dh_cp_chunk_at(const dh_dims *dims, int64_t n);

/* The part of a key/value block that meets queries after `step` exchanges, in every sample. Step
 * 0 is causal; in later steps all pairs meet. */
typedef struct dh_ring_part {
    int64_t from;    /* cp rank whose keys and values these are */
    int64_t q0, n_q; /* queries [q0, q0 + n_q) of the rank's seq */
    int64_t n_k;     /* keys [0, n_k) of the block's seq */
} dh_ring_part;
dh_ring_part dh_ring_part_of(const dh_dims *dims, int32_t step);

/* Activation recomputation in a differentiated layer: the backward computes again the values that
 * are not kept. Bits do not change. Other blocks stay as they are. */
typedef enum dh_recompute_kind {
    DH_RECOMPUTE_KIND_NONE,
    DH_RECOMPUTE_KIND_SELECTIVE, /* norms, activations, rotations, gathered copies */
    DH_RECOMPUTE_KIND_FULL,      /* everything except the layer's input */
    DH_RECOMPUTE_KIND_ATTENTION, /* attention's scores, of which there are none: nothing */
    DH_RECOMPUTE_KIND_FORWARD    /* the whole forward, also values that nothing reads */
} dh_recompute_kind;
dh_status dh_pass_recompute(dh_ctx *ctx, dh_graph *graph, dh_recompute_kind kind);

/* Structural check: operands exist and fit the operator's row, every activation is
 * written once before it is read, views lie inside their base. */
dh_status dh_graph_check(dh_ctx *ctx, const dh_graph *graph);

uint32_t dh_graph_add_tensor(dh_graph *graph, const dh_tensor *tensor); /* DH_NONE: OOM */
uint32_t dh_graph_add_op(dh_graph *graph, dh_op_type type, dh_phase phase, const uint32_t *in,
                         const uint32_t *out); /* n_in and n_out ids; DH_NONE: OOM */

/* Name of an attribute, and its value in an operator. */
const char *dh_op_attr_name(dh_op_attr attr);
int64_t dh_op_attr_get(const dh_op *op, dh_op_attr attr);
void dh_op_attr_set(dh_op *op, dh_op_attr attr, int64_t value);
/* The value for "not set", and the first above all possible values. */
int64_t dh_op_attr_unset(dh_op_attr attr);
int64_t dh_op_attr_end(dh_op_attr attr);

/* Sizes of an attention operator: B samples of T tokens each, H heads of queries and KV of keys
 * and values. They follow from its operands: statistics [B,H,T], packed rows. In decoding all
 * rows belong to one sample. */
typedef struct dh_attn_sizes {
    int64_t batch, seq, n_heads, n_kv_heads;
} dh_attn_sizes;
dh_attn_sizes dh_op_attn_sizes(const dh_graph *graph, const dh_op *op);
/* The same of an operator of linear attention with rows packed like this tensor: samples of
 * dims.seq tokens, in decoding one sample. A cp rank's chunks of a sample count as samples. */
dh_attn_sizes dh_linear_sizes(const dh_graph *graph, const dh_tensor *packed);
/* Tokens in a chunk of linear attention. A token sees earlier ones of its chunk one by one, and all
 * before the chunk by their state. FLOPs are counted by this size. */
#define DH_LINEAR_CHUNK 64

int64_t dh_tensor_elements(const dh_tensor *tensor);
int64_t dh_tensor_bytes(const dh_tensor *tensor);
/* Bytes of an operand as it travels: in the type `wire` where that is set, else in its own.
 * tensor    DH_NONE: 0 */
int64_t dh_op_travel_bytes(const dh_graph *graph, const dh_op *op, uint32_t tensor);
/* Scratch for the rounded values of an operator with `wire`; else 0. */
int64_t dh_op_rounded_bytes(const dh_graph *graph, const dh_op *op);

/* A rare variant that an operator has in this graph, and that kernels may not support: "layers
 * without positions". NULL: none. */
const char *dh_op_variant(const dh_graph *graph, const dh_op *op);

/* Formats to which a GEMM's first and second operand are rounded. With dims.fp8 these GEMMs are the
 * linears of a layer, of its experts too, and their gradients, except those in float32 (routers).
 *
 * Each run of elements along the axis of the sum has a scale of its own, a power of two:
 *   linear            rows of x, rows of w
 *   input gradient    rows of dy, columns of w
 *   weight gradient   columns of dy, columns of x
 * For an expert a run covers its own rows or matrix, even if the rows arrive in several pieces. A
 * row of an output therefore does not depend on the number of rows. Passes and ranks that cut rows
 * change no bit.
 * returns   false: the operator is not one of these, and formats is not set */
bool dh_op_fp8(const dh_graph *graph, const dh_op *op, dh_fp8_format formats[2]);

/* Work of an operator: floating-point operations (multiply and add count as two),
 * and bytes of operands read and written once. */
double dh_op_flops(const dh_graph *graph, const dh_op *op);
double dh_op_bytes(const dh_graph *graph, const dh_op *op);
/* Whether it joins queries with keys. */
bool dh_op_attends(dh_op_type type);
/* GEMMs and attention: what "FLOPs" of a model or a device count. */
bool dh_op_multiplies(dh_op_type type);
/* Whether it works on rows of experts, or carries them, with room for more than an even share. */
bool dh_op_follows_load(const dh_op *op);

/* ---- completion in parts ---------------------------------------------------------------- */

#define DH_MAX_PARTS 256

static inline uint32_t dh_op_n_parts(const dh_op *op)
{
    return op->parts > 1 ? (uint32_t)op->parts : 1;
}
/* The part that completes [from, to) of an output of n, if the earlier parts are complete too. The
 * unit of n is free, if a chunk has a whole number of it. */
uint32_t dh_op_part_of(const dh_op *op, int64_t n, int64_t from, int64_t to);
/* Where in an output of n a part begins; it is n / parts long. */
int64_t dh_op_part_begin(const dh_op *op, int64_t n, uint32_t part);
/* Share of the operator's time after which a part is complete. It is in proportion, except that an
 * all-gather's own rows need no wire. n_ranks: of its group, 1 of none. */
double dh_op_part_share(const dh_op *op, int64_t n_ranks, uint32_t part);

/* Text form (src/graph/README.md), appended to out. Any graph prints, for people to look at. A
 * graph that passes dh_graph_check reads back equal, if its dims are finite and not negative.
 * `dhelix check` prints the graphs of jobs. Two kinds of text are read: programs that people write
 * (`dhelix run-graph`), and graphs in tests of passes (tests/graph).
 * errors    DH_ENOMEM */
dh_status dh_graph_print(dh_ctx *ctx, const dh_graph *graph, dh_str *out);
/* The text need not be terminated and may hold any bytes. The result passes
 * dh_graph_check. Caller frees with dh_graph_destroy.
 * errors    DH_EFORMAT with line and column, what was expected, and the nearest name for an
 *           unknown one; DH_EINVAL of the check, with the line; DH_ENOMEM */
dh_status dh_graph_parse(dh_ctx *ctx, const char *text, size_t n_bytes, dh_graph **graph);
/* On which lines tensors and operators stand, from 1; for messages about what was read. */
typedef struct dh_graph_lines {
    DH_VEC(uint32_t) tensors, ops;
} dh_graph_lines;
void dh_graph_lines_fini(dh_graph_lines *lines);
/* dh_graph_parse; the caller frees lines, also on failure. */
dh_status dh_graph_parse_lines(dh_ctx *ctx, const char *text, size_t n_bytes, dh_graph **graph,
                               dh_graph_lines *lines);
bool dh_graph_equal(const dh_graph *a, const dh_graph *b);

/* ---- parameters ----------------------------------------------------------------------------- */

/* The place of a parameter, or of a part, in a Hugging Face checkpoint. Local rows
 * [row, row + n_rows) are HF rows hf_row.. (transposed: columns hf_row.. of HF). */
typedef struct dh_param_piece {
    char hf_name[80];
    int64_t row, n_rows, n_cols; /* n_cols 1 for vectors */
    int64_t hf_row, hf_col;      /* origin of the local part in [out, in] orientation */
    int64_t hf_shape[2];         /* as stored; hf_ndim 1: hf_shape[0] only */
    int hf_ndim;
    bool transpose; /* HF stores [in, out] (GPT-2's Conv1D) */
} dh_param_piece;

typedef struct dh_param {
    char name[32];      /* "layer3.qkv.w" */
    dh_block_kind kind; /* block it belongs to */
    int layer;          /* index of the block among its kind */
    uint32_t which;     /* index among the block's parameters */
    int ndim;
    int64_t shape[3]; /* [out, in]; of experts [experts, out, in] */
    dh_axis axis[3];
    double init_std; /* standard deviation of the normal; 0: constant init_value */
    double init_value;
    bool decay;         /* weight decay applies (matrices and embeddings) */
    bool sharded;       /* by tensor parallelism: every rank of the group has other elements */
    int64_t head_rows;  /* rows of a head, which is never cut; 0: rows may be cut anywhere */
    int64_t n_repeated; /* last elements of a part (keys and values) that all ranks of DH_GROUP_KV
                         * have; each rank has its own heads' part of their gradient */
    bool by_heads; /* all heads share it: under tensor parallelism each rank's gradient is that of
                      * its own heads */
    bool wide;     /* used in float32 whatever the run's type; it lies among the vectors */
    bool adapter;  /* belongs to an adapter of a linear (dh_model.lora) */
    bool frozen;   /* not trained: no gradient, no moments, no float32 master */
    bool shared;   /* an adapter's matrix that every rank of a tensor-parallel group has, each with
                      * a part of its gradient; it lies among the vectors, and has a copy */
    int n_pieces;  /* dh_param_piece_at */
    int64_t expert0;              /* experts: the first one on this rank */
    dh_param_piece piece_rows[3]; /* experts: pieces of the first one, %d in hf_name */
} dh_param;

/* Piece i in [0, n_pieces). Pieces of one tensor of the checkpoint are neighbours. */
dh_param_piece dh_param_piece_at(const dh_param *param, int i);
/* Elements of the last axis; of all axes. Pieces count rows over all axes except the last. */
int64_t dh_param_cols(const dh_param *param);
int64_t dh_param_elements(const dh_param *param);
/* Whether it lies among the matrices of its block, not among the vectors. */
static inline bool dh_param_is_matrix(const dh_param *param)
{
    return param->ndim >= 2 && !param->wide && !param->shared;
}

/* Most linears of a checkpoint that are one GEMM here: queries, keys and values. */
enum { DH_LORA_LINEARS = 3 };

enum {
    DH_PARAM_WTE = 0,
    DH_PARAM_WPE = 1,
    DH_PARAM_LN1_W = 0,
    DH_PARAM_LN1_B,
    DH_PARAM_QKV_W,
    DH_PARAM_QKV_B,
    DH_PARAM_PROJ_W,
    DH_PARAM_PROJ_B,
    DH_PARAM_LN2_W,
    DH_PARAM_LN2_B,
    DH_PARAM_FC1_W,
    DH_PARAM_FC1_B,
    DH_PARAM_FC2_W,
    DH_PARAM_FC2_B,
    DH_PARAM_ROUTER_W,
    DH_PARAM_Q_NORM_W,
    DH_PARAM_K_NORM_W,
    DH_PARAM_LN1_POST_W, /* norm of the part's result before it is added to the residual stream */
    DH_PARAM_LN2_POST_W,
    DH_PARAM_Q_A_W, /* latent attention: from width to the channels of queries */
    DH_PARAM_Q_A_NORM_W,
    DH_PARAM_Q_B_W,  /* from these channels to heads */
    DH_PARAM_KV_A_W, /* from width to the channels of keys and values, and the rotated ones */
    DH_PARAM_KV_A_NORM_W,
    DH_PARAM_KV_B_W,
    DH_PARAM_ROUTER_B, /* added to scores where experts are chosen; no gradient moves it */
    DH_PARAM_SHARED_FC1_W,
    DH_PARAM_SHARED_FC2_W,
    /* Adapters: A of all linears that are one GEMM here, one after another, then B of each in the
     * order of their columns. */
    DH_PARAM_QKV_LORA_A,
    DH_PARAM_QKV_LORA_B,
    DH_PARAM_PROJ_LORA_A = DH_PARAM_QKV_LORA_B + DH_LORA_LINEARS,
    DH_PARAM_PROJ_LORA_B,
    DH_PARAM_FC1_LORA_A = DH_PARAM_PROJ_LORA_B + DH_LORA_LINEARS,
    DH_PARAM_FC1_LORA_B,
    DH_PARAM_FC2_LORA_A = DH_PARAM_FC1_LORA_B + DH_LORA_LINEARS,
    DH_PARAM_FC2_LORA_B,
    DH_N_LAYER_PARAMS = DH_PARAM_FC2_LORA_B + DH_LORA_LINEARS,
    DH_PARAM_LNF_W = 0,
    DH_PARAM_LNF_B,
    DH_PARAM_HEAD_W, /* tied: the embedding's wte */
    DH_PARAM_HEAD_B,
    DH_MAX_BLOCK_PARAMS = DH_N_LAYER_PARAMS
};

/* Describes one parameter of a block; false when the model has none there. The described kind
 * differs from the block's in three cases:
 *   a tied head's HEAD_W      the embedding's WTE (kind EMBED, which WTE)
 *   FC1_W, FC2_W of experts   kind EXPERTS
 *   adapters                  kind ADAPTERS */
bool dh_param_describe(const dh_model *model, dh_block_kind kind, int layer, uint32_t which,
                       dh_param *param);

/* The place of A among the adapters of a layer's linear with weight `which` (QKV_W, PROJ_W, FC1_W,
 * FC2_W). B follows it. DH_NONE: the linear has no adapters. */
uint32_t dh_param_lora_a(uint32_t which);
/* The first column of the linear's result to which B number k writes. */
int64_t dh_param_lora_column(const dh_model *model, uint32_t which, int k);
/* Whether a layer's parameter is an adapter's: A, or B. */
static inline bool dh_param_is_adapter(uint32_t which)
{
    return which >= DH_PARAM_QKV_LORA_A && which < DH_N_LAYER_PARAMS;
}
/* Whether a parameter of a graph's block is trained. With adapters only they are. */
static inline bool dh_graph_trains(const dh_graph *graph, uint32_t which)
{
    return graph->dims.lora_scale == 0 ||
           (graph->kind == DH_BLOCK_LAYER && dh_param_is_adapter(which));
}

/* The rank's part of a parameter.
 *   heads, FFN columns    equal parts over tp
 *   vocabulary            shards of ceil(V/tp) rows over tp; the last one has the remainder
 *   experts               over ep
 *   position embeddings   on tp rank 0 only, whose partial sums they join
 * false: the rank has none, or an empty vocabulary shard. */
bool dh_param_shard(const dh_param *whole, dh_shard shard, dh_param *part);
/* First row and number of rows of a vocabulary shard. */
void dh_vocab_shard(int64_t vocab, dh_shard shard, int64_t *first, int64_t *n);

/* ---- optimizer, gradient reductions, links -------------------------------------------------- */

/* Gathering shards in two stages where their ranks lie on several nodes (pass_two_stage.c).
 * First, over group `cross`, a rank gathers the shards of its place from every node. Then, over
 * `local`, the ranks of a node exchange these, node by node. n_nodes 0: one stage. */
typedef struct dh_gather_stages {
    int64_t n_nodes;
    int32_t local, cross;
} dh_gather_stages;

/* A graph of one collective, n_in elements to n_out, for measuring. */
dh_status dh_graph_build_call(dh_ctx *ctx, dh_op_type type, int32_t group, dh_dtype dtype,
                              int64_t n_in, int64_t n_out, dh_graph **graph);

/* The part of one flat of parameters that this rank updates. It is consecutive elements of the
 * flat's matrices (with decay) or vectors (without). Places are range indices. */
typedef struct dh_opt_region {
    uint32_t flat;
    int64_t n;
    bool decay;
    bool counts;    /* in the gradient norm; false where another rank counts the same elements */
    bool norm_only; /* a part that counts, of a region that as a whole does not */
    bool balances;  /* biases of routers: BALANCE moves them, not AdamW, and they do not count */
    uint32_t grad, master, adam_m, adam_v;
    uint32_t copy; /* bf16 copy to refresh, DH_NONE */
    /* Distributed optimizer: after the update, this many elements of `gather` are gathered over
     * `group`. The region is one shard of them. */
    int64_t n_gathered;
    int32_t group;
    dh_gather_stages stages;
    uint32_t gather; /* range of the whole; DH_NONE */
} dh_opt_region;

/* How the norm of all gradients is computed, in one of two ways.
 *   all ranks at once   one sum over `group`
 *   stage by stage      Post-validation (Qi et al. 2024, arXiv 2401.10241, 4). `group` is the ranks
 *                       of this stage. Stages are a chain: sums travel along it, and the total
 *                       travels back from its end. */
typedef struct dh_opt_norm {
    int32_t group; /* -1: this rank alone */
    /* The chain has stages before this one, and after it; neither: there is no chain. */
    bool before, behind;
    /* fused (no chain; CoCoNet, arXiv 2105.05720, 6.1): each region steps by the norm of its own
     * gradients as soon as they are complete.
     *
     * clips: gradients are clipped by the norm of all. This may require an amendment, as with
     * stages after this one. */
    bool fused, clips;
} dh_opt_norm;

/* The optimizer as a graph:
 *   1. squared sums of all regions that count, and their sum over the group;
 *   2. the clipping factor;
 *   3. AdamW on each region;
 *   4. gathers.
 *
 * With stages after this one, AdamW uses the norm so far and keeps the values that it overwrites.
 * Once DH_STATE_SQTOTAL is the total, the factor is computed anew, each region is amended, and
 * gathers follow. The emitter adds the transfers of dh_graph_build_norm_link. The transfer from the
 * stage before stands ahead of the first writer of DH_STATE_SQTOTAL, last of the operators before
 * the factors. The other transfers stand ahead of the factor of all.
 *
 * Fused: for each region in order, squared sum, factor and AdamW; the gather follows where nothing
 * is clipped. Then comes the norm of all. Where gradients are clipped, an amendment and the gather
 * of each region follow.
 *
 * Regions that balance are stepped last, by the norm of all. */
dh_status dh_graph_build_optimizer(dh_ctx *ctx, const dh_opt_region *regions, size_t n,
                                   dh_dtype dtype, const dh_opt_norm *norm, dh_graph **graph);

/* A stage's transfers with a neighbour in the chain.
 *   stage before   receives the sum so far into the second row of DH_STATE_SQCHAIN; sends the total
 *   stage after    sends the sum so far; receives the total into DH_STATE_SQTOTAL */
enum { DH_NORM_LINK_FORTH, DH_NORM_LINK_BACK }; /* its operators */
dh_status dh_graph_build_norm_link(dh_ctx *ctx, bool behind, dh_graph **graph);

/* One operator on gradients, in place: range `range` of n elements.
 *   all_reduce      summed over the group
 *   reduce_scatter  the rank keeps only its shard of the sum, n_shard elements at `shard`
 *   add             no collective: the rank adds its values at `addend`
 *   clear           zeros, where there is a range
 *   release         the range is free */
typedef struct dh_grad_reduction {
    dh_op_type type;
    int32_t group;
    uint32_t range;
    int64_t n;
    uint32_t shard;
    int64_t n_shard;
    uint32_t addend;
    /* Sums in stages: a value [n_rows, n_row]. Each reduce_scatter writes its row `row`; row 0
     * begins it. A reduction with reads_passing reads all rows instead of `range`. n_row 0:
     * none. */
    struct {
        int64_t n_row, row, n_rows;
    } passing;
    bool reads_passing;
    dh_dtype wire; /* type in which a collective's values travel */
} dh_grad_reduction;
dh_status dh_graph_build_reductions(dh_ctx *ctx, const dh_grad_reduction *list, size_t n,
                                    dh_graph **graph);

/* Gathers a bucket's matrices: n_pieces all-gathers of the rank's shards (ranges) into the
 * pieces of one tensor, x_out; then its release. The phase is that of the readers: DH_PHASE_F or
 * DH_PHASE_B. */
typedef struct dh_gather {
    uint32_t flat;
    const uint32_t *shards; /* [n_pieces] range indices */
    int64_t n_pieces, n_piece, n_shard;
    int32_t group;
    dh_gather_stages stages;
    dh_dtype dtype;
    dh_phase phase;
} dh_gather;
dh_status dh_graph_build_gather(dh_ctx *ctx, const dh_gather *gather, dh_graph **graph);

/* Copies the rank's share of a whole bucket from x_in to x_out: the index-th of n_parts parts of
 * every piece. */
dh_status dh_graph_build_share(dh_ctx *ctx, const dh_gather *gather, int64_t n_parts, int64_t index,
                               dh_graph **graph);
/* As dh_graph_build_gather, from the shares x_in of n_parts ranks. */
dh_status dh_graph_build_gather_shares(dh_ctx *ctx, const dh_gather *gather, int64_t n_parts,
                                       dh_graph **graph);

/* Gathers parameters that are kept whole. The rank has updated its shard, the n_own elements at
 * `own`, of one bucket's n_whole elements (range `whole`), and gathers the other shards. */
typedef struct dh_first_gather {
    uint32_t flat, own, whole;
    int64_t n_own, n_whole;
    int32_t group;
    dh_gather_stages stages;
} dh_first_gather;
dh_status dh_graph_build_first_gathers(dh_ctx *ctx, const dh_first_gather *list, size_t n,
                                       dh_dtype dtype, dh_graph **graph);

/* A send of x_in or a receive of x_out between pipeline stages: rows x width. With n_experts also a
 * transfer of DH_STATE_ROUTER: sums so far travel forward, the complete sums back.
 * in        group: of the link and direction (dh_mesh_link) */
dh_status dh_graph_build_link(dh_ctx *ctx, bool send, int32_t group, int64_t rows, int64_t width,
                              dh_dtype dtype, int64_t n_experts, dh_graph **graph);

#ifdef __cplusplus
}
#endif
#endif
