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

/* What an operator occupies. A COMM operator runs on the link of its group. */
typedef enum dh_resource { DH_RES_HOST, DH_RES_COMPUTE, DH_RES_COMM } dh_resource;

typedef struct dh_operand_info {
    char name[16];
    bool optional;   /* may be DH_NONE */
    bool accumulate; /* output: += unless first writer of the step */
    bool update;     /* output: read and written in place */
} dh_operand_info;

/* What an operator knows beside its operands (ops.def says what each means, and who has it). */
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

/* Persistent tensors beside parameters and gradients: loss sums, partial sums and
 * result of the gradient norm, load-balancing loss, a second sum of a tied gradient; per
 * layer: the KV cache. */
typedef enum dh_state {
    DH_STATE_LOSS,
    DH_STATE_SQSUM,   /* of each region of gradients, digits */
    DH_STATE_SQTOTAL, /* digits */
    DH_STATE_NORM,
    DH_STATE_SQCHAIN,     /* digits [2]: of this stage; of those before it in the chain */
    DH_STATE_NORM_SO_FAR, /* of these together; fused: of each region alone */
    DH_STATE_ROUTER, /* of each micro-batch: choices and probabilities summed over all layers */
    DH_STATE_AUX,
    DH_STATE_TIED_GRAD, /* float32: what the head adds to the gradient of a tied embedding */
    DH_STATE_KV_CACHE,  /* of linear attention the state of its sums */
    DH_N_STATE
} dh_state;

/* What an axis counts: says how a pass may partition it. */
typedef enum dh_axis {
    DH_AXIS_NONE,
    DH_AXIS_TOKENS,
    DH_AXIS_WIDTH,
    DH_AXIS_HEADS, /* columns of packed qkv or of the attention output */
    DH_AXIS_FFN,
    DH_AXIS_VOCAB,
    DH_AXIS_EXPERTS,
    DH_AXIS_ROUTED, /* choices of tokens, in the order by expert */
    DH_AXIS_LATENT, /* channels that heads' queries, or keys and values, are made of */
    DH_N_AXIS
} dh_axis;

/* Whether ranks may each have a part of it, as parameters and what they make are split. */
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
    uint32_t which; /* of its kind; DH_NONE for ACT */
} dh_tensor;

/* As much of the text as there is room for: what snprintf does, in a tenth of the time. */
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
    /* Attributes: those of its type's row; others, and those not set, have the value in brackets.
     */
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
    DH_BLOCK_PROGRAM,  /* of no model: a program of its own */
    DH_BLOCK_GATHER,   /* matrices of a bucket made whole for one use, and released */
    DH_BLOCK_RESHARD,  /* parameters on their way to another layout */
    DH_BLOCK_ADAPTERS, /* parameters of a layer's adapters; no operators */
    DH_N_BLOCK_KIND
} dh_block_kind;

typedef enum dh_mode { DH_MODE_TRAIN, DH_MODE_EVAL, DH_MODE_DECODE } dh_mode;

/* What is equal for all operators of a graph: the micro-batch and the model on this rank. How
 * much of it an operator works on is said by its operands. */
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
    double attn_softcap;  /* of scores, behind their factor; 0: none */
    double logit_softcap; /* 0: none */
    double lora_scale;    /* factor of what adapters give, and nothing else is trained; 0: none */
    dh_rope rope;
    int64_t nth; /* every n-th layer has rope_nth instead; 0: none */
    dh_rope rope_nth;
    double dropout;
    double loss_scale; /* 1 / tokens of the global batch */
    int64_t cp;        /* ranks that share every sample, cp * seq tokens long; 0: one */
    int64_t cp_rank;
    int64_t top_k;      /* experts of a token */
    int64_t topk_plain; /* 1: these weigh as much as their probabilities, which are not made to sum
                         * to 1 */
    /* Latent attention: of head_dim channels of queries and keys the last rope_dim are rotated,
     * neighbours with rope_pairs 1; values have v_dim. 0: none. */
    int64_t rope_dim, v_dim, rope_pairs;
    /* Routing by sigmoids, in n_groups of which a token has top_groups; 0: by softmax. */
    int64_t n_groups, top_groups;
    double router_scale;     /* of the weights of a token's experts */
    int64_t router_balanced; /* 1: routers' biases go by the load of their experts */
    double aux_scale;        /* factor of the gradient of the load-balancing loss */
    /* Attention to the last tokens alone (dh_model_window): how many, which of how many layers. */
    int64_t window, window_from, window_every, layers; /* 0 all: none has a window */
    int64_t linear;      /* 1: linear attention; cp ranks' tokens are consecutive */
    int64_t zigzag;      /* 1: or as in rings nevertheless, since other layers have softmax */
    int64_t feature_map; /* dh_feature_map */
    int64_t linear_ring; /* 1: cp ranks hand the state on one by one, instead of gathering */
    /* 1: gradients of keys and values travel in float32, else in the graph's type */
    int64_t float_kv_grads;
    dh_fp8 fp8; /* of a layer's linears, by dh_op_fp8 */
} dh_dims;

/* Which part of every sharded parameter and activation a rank has. */
typedef struct dh_shard {
    int64_t tp, tp_rank;
    int64_t ep, ep_rank; /* of experts; ep 0: one rank has all */
    bool whole_tokens;   /* between the linears every tp rank has all tokens, not its part */
    bool whole_experts;  /* experts are spread over tp ranks too, and not cut into columns */
} dh_shard;

/* Ranks that a layer's experts are spread over, in the order of dh_mesh_expert_group, and the place
 * among them. */
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
    DH_VEC(dh_op) ops;        /* forward in an order that computes; then backward likewise */
    uint32_t x_in, x_out;     /* residual stream; DH_NONE where the block has none */
    uint32_t dx_out, dx_in;   /* their gradients: dx_out enters the backward, dx_in leaves */
    uint32_t loss_x, loss_dx; /* train-mode head: gradient of loss_x is made by the forward */
} dh_graph;

/* ---- building ---------------------------------------------------------------------------- */

typedef struct dh_build {
    const dh_model *model;
    int64_t layer; /* of LAYER, EXPERTS, ADAPTERS: a layer of the kind that is wanted */
    dh_mode mode;
    dh_dtype dtype;
    int64_t batch, seq; /* micro-batch on this rank */
    int64_t cache_len;  /* decode: rows of the KV cache */
    double dropout;
    double loss_scale;
    int64_t head_chunk_bytes; /* logits are made in row chunks of at most this many bytes */
    double moe_capacity;      /* rows of an expert over its even share; 0: as many as come */
    bool documents; /* samples are rows of documents that do not see each other: positions begin
                     * anew with each */
    bool linear_ring, float_kv_grads; /* dh_dims */
    bool balances_routers; /* dims.router_balanced of a model whose routers have biases */
    dh_fp8 fp8;            /* dh_dims, but in decoding */
} dh_build;

/* TUNING: chunks of 512 rows and more keep bf16 weight gradients of a 50,257-word head
 * at full rate (bench/kernels: 128 rows 100, 512 rows 174 GFLOP/s contended). */
#define DH_HEAD_CHUNK_BYTES ((int64_t)128 << 20)

/* Forward graph of a block (EMBED, LAYER, HEAD), DATA, and EXPERTS and ADAPTERS, which have no
 * operators. In train mode the head's forward also makes the loss gradient chunk by chunk, since
 * the gradient of the loss itself is a constant: logits never exist for the whole micro-batch.
 * Caller frees with dh_graph_destroy. */
dh_status dh_graph_build(dh_ctx *ctx, const dh_build *build, dh_block_kind kind, dh_graph **graph);
void dh_graph_destroy(dh_graph *graph);

/* Append the backward operators (one rule per operator type, grad.c). Gradients
 * that meet on the residual path are added inside norm_dgrad. */
dh_status dh_graph_differentiate(dh_ctx *ctx, dh_graph *graph);

/* Tensor parallelism on a forward graph: heads, FFN columns and the vocabulary are split over
 * the group. With sequence parallelism (Korthikanti et al. 2022, 4.2.2) tokens of the residual
 * stream are likewise; an all-gather goes before every column-parallel linear and a
 * reduce-scatter after every row-parallel one. Where every rank has all tokens
 * (shard.whole_tokens; Shoeybi et al. 2019, 3) an all-reduce goes after every row-parallel
 * linear, and in the backward after the input gradient of every column-parallel one.
 * errors: DH_EINVAL where sizes do not divide. */
dh_status dh_pass_tensor_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard);

/* Context parallelism, on a forward graph built for the rank's seq = T/cp tokens of every
 * sample: the sample is 2*cp chunks, of which the rank has chunks cp_rank and 2*cp - 1 -
 * cp_rank, so that all ranks have the same work under the causal mask. Attention becomes
 * a ring (Liu et al. 2023, arXiv 2310.01889): keys and values travel from rank to rank
 * while the block at hand is attended to. Goes before tensor parallelism.
 * Linear attention has as much work wherever its tokens stand: ranks have consecutive shares, and
 * one all-gather of their states of D x D per head, beside the attention inside the shares, tells
 * each what lies before it (LASP-2, arXiv 2502.07563); or, with dims.linear_ring, states are handed
 * on from rank to rank (LASP, arXiv 2404.02882). The gradient goes the other way alike.
 * Where some layers have softmax attention and some linear (dims.zigzag; LASP-2H, in the
 * same paper), tokens lie for all as rings have them: a share is two sequences with a state each.
 * errors: DH_EINVAL where T does not divide by 2*cp (linear alone: cp), or states of a share of two
 * chunks are to be handed on. */
dh_status dh_pass_context_parallel(dh_ctx *ctx, dh_graph *graph, int64_t cp, int64_t cp_rank);

/* Expert parallelism, on a forward graph that tensor parallelism is done with: the rank
 * keeps its share of the experts, rows travel to those that their tokens chose and back
 * (Lepikhin et al. 2020, arXiv 2006.16668, 3.2). With a capacity blocks of one size are
 * exchanged. Dropless, a rank has room for `room` times the even share of rows; a step
 * in which more come fails with DH_EINVAL in moe_offsets.
 * errors: DH_EINVAL where experts do not divide, or for a room below 1 */
dh_status dh_pass_expert_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard, double room);

/* Tokens that a query of this layer sees, itself the last of them; 0: all before it. */
int64_t dh_dims_window(const dh_dims *dims, int64_t layer);

/* Position in its sample of the t-th of the rank's tokens. */
int64_t dh_cp_position(const dh_dims *dims, int64_t cp_rank, int64_t t);

/* Chunks of a sample that a cp rank has, each of consecutive tokens. */
int64_t dh_cp_chunks(const dh_dims *dims);

/* Whose the n-th chunk from the beginning of a sample is, and which of its own. */
typedef struct dh_cp_chunk {
    int64_t rank, own;
} dh_cp_chunk;
dh_cp_chunk dh_cp_chunk_at(const dh_dims *dims, int64_t n);

/* What of a key/value block after `step` exchanges meets which queries of every sample;
 * all pairs do, but for step 0, which is causal. */
typedef struct dh_ring_part {
    int64_t from;    /* cp rank whose keys and values these are */
    int64_t q0, n_q; /* queries [q0, q0 + n_q) of the rank's seq */
    int64_t n_k;     /* keys [0, n_k) of the block's seq */
} dh_ring_part;
dh_ring_part dh_ring_part_of(const dh_dims *dims, int32_t step);

/* Activation recomputation in a differentiated layer: the backward computes again
 * what is not kept. Bits do not change. Other blocks are left alone. */
typedef enum dh_recompute_kind {
    DH_RECOMPUTE_KIND_NONE,
    DH_RECOMPUTE_KIND_SELECTIVE, /* norms, activations, rotations, gathered copies */
    DH_RECOMPUTE_KIND_FULL,      /* everything but the layer's input */
    DH_RECOMPUTE_KIND_ATTENTION, /* attention's scores, of which there are none: nothing */
    DH_RECOMPUTE_KIND_FORWARD    /* the whole forward, also what nothing reads */
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
/* The value that says that there is none, and the first above all that may be. */
int64_t dh_op_attr_unset(dh_op_attr attr);
int64_t dh_op_attr_end(dh_op_attr attr);

/* What an attention operator works on: B samples of T tokens each, H heads of queries and KV of
 * keys and values. By its operands: statistics [B,H,T], packed rows; of decoding all rows are
 * those of one sample. */
typedef struct dh_attn_sizes {
    int64_t batch, seq, n_heads, n_kv_heads;
} dh_attn_sizes;
dh_attn_sizes dh_op_attn_sizes(const dh_graph *graph, const dh_op *op);
/* The same of an operator of linear attention whose rows are packed as this tensor's: samples of
 * dims.seq tokens, in decoding one. A cp rank's chunks of a sample are samples here. */
dh_attn_sizes dh_linear_sizes(const dh_graph *graph, const dh_tensor *packed);
/* Tokens that linear attention handles together, each seeing those before it one by one; all
 * before the chunk by their state. What its work is counted by. */
#define DH_LINEAR_CHUNK 64

int64_t dh_tensor_elements(const dh_tensor *tensor);
int64_t dh_tensor_bytes(const dh_tensor *tensor);

/* What an operator does in this graph that most models do not ask of it, and kernels may not know:
 * "layers without positions"; NULL: nothing. */
const char *dh_op_variant(const dh_graph *graph, const dh_op *op);

/* Formats that a product's first and second operand are rounded to before it: linears of a layer,
 * of its experts too, and their gradients where dims.fp8 says so, but those in float32 (routers).
 * Each run of elements along the axis that is summed over has a scale of its own, a power of two:
 * of linear the rows of x and of w, of its input gradient those of dy and the columns of w, of its
 * weight gradient the columns of dy and of x; of an expert's all those that its own rows or matrix
 * have, in however many runs the rows come. What a row of an output is therefore does not depend
 * on how many rows there are: passes and ranks that cut rows change no bit.
 * false: it is not one of them, formats are left alone */
bool dh_op_fp8(const dh_graph *graph, const dh_op *op, dh_fp8_format formats[2]);

/* Work of an operator: floating-point operations (multiply and add count as two),
 * and bytes of operands read and written once. */
double dh_op_flops(const dh_graph *graph, const dh_op *op);
double dh_op_bytes(const dh_graph *graph, const dh_op *op);
/* Whether it joins queries with keys. */
bool dh_op_attends(dh_op_type type);
/* GEMMs and attention: what "FLOPs" of a model or a device count. */
bool dh_op_multiplies(dh_op_type type);
/* Whether it works on rows of experts, or carries them, and has room for more than an even share.
 */
bool dh_op_follows_load(const dh_op *op);

/* ---- completion in parts ---------------------------------------------------------------- */

#define DH_MAX_PARTS 256

static inline uint32_t dh_op_n_parts(const dh_op *op)
{
    return op->parts > 1 ? (uint32_t)op->parts : 1;
}
/* The part with which [from, to) of an output of n is complete, those before it being so too; n is
 * in any unit of which a chunk has a whole number. */
uint32_t dh_op_part_of(const dh_op *op, int64_t n, int64_t from, int64_t to);
/* Where in an output of n a part begins; it is n / parts long. */
int64_t dh_op_part_begin(const dh_op *op, int64_t n, uint32_t part);
/* Share of the operator's time after which a part is complete: in proportion, but that an
 * all-gather's own rows need no wire. n_ranks: of its group, 1 of none. */
double dh_op_part_share(const dh_op *op, int64_t n_ranks, uint32_t part);

/* Text form (src/graph/README.md), appended to out. Any graph prints, for people to
 * look at; one that passes dh_graph_check reads back equal, if its dims are finite
 * and not negative. `dhelix check` prints the graphs of jobs; what is read is programs that are
 * written by hand (`dhelix run-graph`), and what a pass is shown or tested by (tests/graph).
 * errors: DH_ENOMEM */
dh_status dh_graph_print(dh_ctx *ctx, const dh_graph *graph, dh_str *out);
/* The text need not be terminated and may hold any bytes. What is read passes
 * dh_graph_check. Caller frees with dh_graph_destroy.
 * errors: DH_EFORMAT with line and column, what was expected, and the nearest name for
 * an unknown one; DH_EINVAL of the check, with the line; DH_ENOMEM */
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

/* Where (part of) a parameter lies in a Hugging Face checkpoint: local rows
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
    int64_t head_rows;  /* rows of a head, which is not cut; 0: of heads or not, no matter */
    int64_t n_repeated; /* of a part its last elements, keys and values, which the ranks of
                         * DH_GROUP_KV have alike; each has its own heads' part of the gradient */
    bool by_heads;   /* all heads share it: under tensor parallelism each rank's gradient is that of
                      * its own heads */
    bool wide;       /* used in float32 whatever the run's type: it lies among the vectors */
    bool adapter;    /* of a linear of the layer (dh_model.lora) */
    bool frozen;     /* not trained: no gradient, no moments, no float32 master beside a copy */
    bool shared;     /* an adapter's matrix that every rank of a tensor-parallel group has, and a
                      * part of its gradient: it lies among the vectors, but has a copy */
    int n_pieces;    /* dh_param_piece_at */
    int64_t expert0; /* of experts: the first one here */
    dh_param_piece piece_rows[3]; /* of experts: those of the first, hf_name with %d for it */
} dh_param;

/* Piece i in [0, n_pieces). Pieces of one tensor of the checkpoint are neighbours. */
dh_param_piece dh_param_piece_at(const dh_param *param, int i);
/* Elements of the last axis; of all. Pieces count rows over all other axes. */
int64_t dh_param_cols(const dh_param *param);
int64_t dh_param_elements(const dh_param *param);
/* Whether it lies among the matrices of its block, not among the vectors. */
static inline bool dh_param_is_matrix(const dh_param *param)
{
    return param->ndim >= 2 && !param->wide && !param->shared;
}

/* Linears of a checkpoint that are one product here, at most: queries, keys and values. */
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
    DH_PARAM_LN1_POST_W, /* norms of what is added to the residual stream */
    DH_PARAM_LN2_POST_W,
    DH_PARAM_Q_A_W, /* latent attention: from width to channels that queries are made of */
    DH_PARAM_Q_A_NORM_W,
    DH_PARAM_Q_B_W,  /* from these to heads */
    DH_PARAM_KV_A_W, /* keys' and values' channels, and the rotated ones of all keys */
    DH_PARAM_KV_A_NORM_W,
    DH_PARAM_KV_B_W,
    DH_PARAM_ROUTER_B, /* added to scores where experts are chosen; no gradient moves it */
    DH_PARAM_SHARED_FC1_W,
    DH_PARAM_SHARED_FC2_W,
    /* Of adapters: A of all linears that are one product here, one behind the other, and B of each
     * of them in the order of their columns. */
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
    DH_MAX_BLOCK_PARAMS = DH_N_LAYER_PARAMS
};

/* One parameter of a block; false when the model has none there. A tied
 * head's HEAD_W is described as the embedding's WTE (kind EMBED, which WTE), a layer's
 * FC1_W and FC2_W, where they are those of experts, with kind EXPERTS, its adapters' with kind
 * ADAPTERS. */
bool dh_param_describe(const dh_model *model, dh_block_kind kind, int layer, uint32_t which,
                       dh_param *param);

/* The adapters of a layer's linear, whose weight is `which` (QKV_W, PROJ_W, FC1_W, FC2_W): the
 * place of A, behind which those of B follow; DH_NONE: it has none. */
uint32_t dh_param_lora_a(uint32_t which);
/* The column at which B number k writes into what the linear gives. */
int64_t dh_param_lora_column(const dh_model *model, uint32_t which, int k);
/* Whether a layer's parameter is an adapter's: A, or B. */
static inline bool dh_param_is_adapter(uint32_t which)
{
    return which >= DH_PARAM_QKV_LORA_A && which < DH_N_LAYER_PARAMS;
}
/* Of a block's parameters, in a graph: with adapters these alone are trained. */
static inline bool dh_graph_trains(const dh_graph *graph, uint32_t which)
{
    return graph->dims.lora_scale == 0 ||
           (graph->kind == DH_BLOCK_LAYER && dh_param_is_adapter(which));
}

/* The rank's part of a parameter: heads, FFN columns and the vocabulary are split
 * over tp, in equal parts but for the vocabulary, whose shards have ceil(V/tp) rows
 * and the last what is left; experts over ep. Position embeddings live on tp rank 0, whose partial
 * sums they join: false elsewhere, and for an empty vocabulary shard. */
bool dh_param_shard(const dh_param *whole, dh_shard shard, dh_param *part);
/* First row and number of rows of a vocabulary shard. */
void dh_vocab_shard(int64_t vocab, dh_shard shard, int64_t *first, int64_t *n);

/* ---- optimizer, gradient reductions, links -------------------------------------------------- */

/* How shards become whole where their ranks lie on several nodes (pass_two_stage.c): first a rank
 * has those of its place of every node, over group `cross`; then, node by node, the ranks of its
 * own have those of that node, over `local`. n_nodes 0: at once. */
typedef struct dh_gather_stages {
    int64_t n_nodes;
    int32_t local, cross;
} dh_gather_stages;

/* One collective of n_in elements to n_out alone, to be timed. */
dh_status dh_graph_build_call(dh_ctx *ctx, dh_op_type type, int32_t group, dh_dtype dtype,
                              int64_t n_in, int64_t n_out, dh_graph **graph);

/* What this rank updates of one flat of parameters: consecutive elements of its matrices
 * (which decay) or of its vectors (which do not), and where they lie: range indices. */
typedef struct dh_opt_region {
    uint32_t flat;
    int64_t n;
    bool decay;
    bool counts;    /* in the gradient norm; false where another rank counts the same elements */
    bool norm_only; /* part of a region that as a whole does not count */
    bool balances;  /* biases of routers, which BALANCE moves instead of AdamW; none count */
    uint32_t grad, master, adam_m, adam_v;
    uint32_t copy; /* bf16 copy to refresh, DH_NONE */
    /* Distributed optimizer: this many elements of `gather`, of which the region is one
     * shard, are gathered over `group` after the update. */
    int64_t n_gathered;
    int32_t group;
    dh_gather_stages stages;
    uint32_t gather; /* range of the whole; DH_NONE */
} dh_opt_region;

/* How the norm of all gradients comes together. All ranks at once: one sum over `group`. Stage by
 * stage (post-validation; Qi et al. 2024, arXiv 2401.10241, 4): `group` is the ranks of this stage,
 * and stages are a chain, along which sums go on, and back from its end what they come to. */
typedef struct dh_opt_norm {
    int32_t group; /* -1: this rank alone */
    bool before,
        behind; /* whether there are stages on either side in the chain; neither: no chain */
    /* No chain: each region steps by the norm of its own gradients as soon as these are there
     * (fused; CoCoNet, arXiv 2105.05720, 6.1). Where gradients are clipped by the norm of all, that
     * may say otherwise, as with stages behind. */
    bool fused, clips;
} dh_opt_norm;

/* Squared sums of all regions that count, their sum over the group, the clipping factor, AdamW on
 * each region, gathers.
 * With stages behind, AdamW goes by the norm so far and keeps what it overwrites; then, once
 * DH_STATE_SQTOTAL is that of all, the factor anew, an amendment of each region, gathers. Whoever
 * emits the graph puts the transfers of dh_graph_build_norm_link between: what comes from before
 * ahead of the operator that first writes DH_STATE_SQTOTAL last among those ahead of the factors,
 * the rest ahead of the factor of all.
 * Regions that balance are stepped last, by the norm of all.
 * Fused, region by region in their order: squared sum, factor, AdamW and, where nothing is clipped,
 * gather; then the norm of all, and where gradients are clipped an amendment and the gather of
 * each. */
dh_status dh_graph_build_optimizer(dh_ctx *ctx, const dh_opt_region *regions, size_t n,
                                   dh_dtype dtype, const dh_opt_norm *norm, dh_graph **graph);

/* A stage's transfers with a neighbour in the chain. The one before: the sum so far comes, into the
 * second row of DH_STATE_SQCHAIN; that of all goes back. The one behind: the sum so far goes on;
 * that of all comes, into DH_STATE_SQTOTAL. */
enum { DH_NORM_LINK_FORTH, DH_NORM_LINK_BACK }; /* its operators */
dh_status dh_graph_build_norm_link(dh_ctx *ctx, bool behind, dh_graph **graph);

/* One operator on gradients, in place: range `range` of n elements.
 *   all_reduce      summed over the group
 *   reduce_scatter  the rank keeps only its shard of the sum, n_shard elements at `shard`
 *   add             no collective: the rank adds what it has at `addend`
 *   clear           zeros, where there is a range
 *   release         it is needed no more */
typedef struct dh_grad_reduction {
    dh_op_type type;
    int32_t group;
    uint32_t range;
    int64_t n;
    uint32_t shard;
    int64_t n_shard;
    uint32_t addend;
    /* Sums in stages: a value [n_rows, n_row] that passes from reduce_scatters, each of which
     * leaves row `row` of it (the first one, row 0, begins it), to one that reads all in place of
     * `range`. n_row 0: none. */
    struct {
        int64_t n_row, row, n_rows;
    } passing;
    bool reads_passing;
} dh_grad_reduction;
dh_status dh_graph_build_reductions(dh_ctx *ctx, const dh_grad_reduction *list, size_t n,
                                    dh_graph **graph);

/* A bucket's matrices made whole: n_pieces all-gathers of the rank's shards (ranges) into the
 * pieces of one tensor, x_out; then its release. The phase is that of what reads them: DH_PHASE_F
 * or DH_PHASE_B. */
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

/* Of a bucket that is whole at x_in the rank's share among n_parts ranks, the index-th part of
 * every piece, copied to x_out. */
dh_status dh_graph_build_share(dh_ctx *ctx, const dh_gather *gather, int64_t n_parts, int64_t index,
                               dh_graph **graph);
/* Made whole again: as dh_graph_build_gather, from the shares x_in of n_parts ranks. */
dh_status dh_graph_build_gather_shares(dh_ctx *ctx, const dh_gather *gather, int64_t n_parts,
                                       dh_graph **graph);

/* Parameters that stay whole: of one bucket's n_whole elements (range `whole`) the rank has updated
 * the n_own at `own`, a shard, and gathers the others'. */
typedef struct dh_regather {
    uint32_t flat, own, whole;
    int64_t n_own, n_whole;
    int32_t group;
    dh_gather_stages stages;
} dh_regather;
dh_status dh_graph_build_regathers(dh_ctx *ctx, const dh_regather *list, size_t n, dh_dtype dtype,
                                   dh_graph **graph);

/* A send of x_in or a receive of x_out between pipeline stages: rows x width. With
 * n_experts also of DH_STATE_ROUTER: sums so far go forward, the whole sums back. */
dh_status dh_graph_build_link(dh_ctx *ctx, bool send, int64_t rows, int64_t width, dh_dtype dtype,
                              int64_t n_experts, dh_graph **graph);

#ifdef __cplusplus
}
#endif
#endif
