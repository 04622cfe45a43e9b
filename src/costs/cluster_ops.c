/* Times of operators alone on a device: GEMMs, attention, and operators bound by memory. */
#include <math.h>

#include "costs/cluster_ops.h"

/* A device that may take less power than it is rated for lowers its clock; memory and links keep
 * theirs. */
static double clock_share(const dh_cluster *c)
{
    const bool limited = c->limit_watts > 0 && c->limit_watts < c->rated_watts;
    return limited ? pow(c->limit_watts / c->rated_watts, c->power_exponent) : 1;
}

static double peak(const dh_cluster *c, dh_dtype dtype)
{
    return clock_share(c) * (dtype == DH_BF16 ? c->bf16_flops_per_s : c->f32_flops_per_s);
}

/* Rate of GEMMs with full waves of the largest tile and a long shared axis. */
static double gemm_rate(const dh_cluster *c, const dh_gemm_shape *s)
{
    const double top =
        s->fp8 ? clock_share(c) * c->fp8_flops_per_s * c->gemm_fp8 : peak(c, s->dtype);
    return top * c->gemm_efficiency;
}

double dh_cluster_memory_ns(const dh_cluster *c, double bytes)
{
    return DH_MAX(bytes / (c->memory_bytes_per_s * c->memory_efficiency) * 1e9, c->kernel_ns);
}

/* ---- GEMM ---------------------------------------------------------------------------------- */

/* Share of the endless tile's rate. A tile of rows x columns reads (rows + columns) / (rows *
 * columns) elements for every multiplication; these reads keep small tiles from the peak. */
static double tile_share(const dh_cluster *c, double rows, double columns)
{
    const double size = rows * columns / (rows + columns);
    return size / (size + c->gemm_tile_half);
}

/* Waves of tiles, each over 1/split of the shared axis. Parts are then summed in memory. */
static double tiled_ns(const dh_cluster *c, const dh_gemm_shape *s, double rows, double columns,
                       double split)
{
    const double tiles = ceil((double)s->rows / rows) * ceil((double)s->columns / columns);
    const double waves = ceil(tiles * (double)s->batch * split / c->processors);
    const double largest = tile_share(c, c->gemm_tile_rows, c->gemm_tile_columns);
    const double rate = gemm_rate(c, s) / c->processors * tile_share(c, rows, columns) / largest;
    const double flops = 2 * rows * columns * ((double)s->shared / split + c->gemm_start_k);
    const double parts = (double)s->batch * (double)s->rows * (double)s->columns * 8 * split;
    return waves * flops / rate * 1e9 + (split > 1 ? dh_cluster_memory_ns(c, parts) : 0);
}

/* The best of four tiles and three splits, as a library's heuristics would find it. */
double dh_cluster_gemm_ns(const dh_cluster *c, const dh_gemm_shape *s)
{
    static const double tiles[][2] = {{1, 1}, {.5, 1}, {1, .5}, {.5, .5}}, splits[] = {1, 2, 4};
    const double rows = c->gemm_tile_rows, columns = c->gemm_tile_columns;
    double best = INFINITY;
    for (size_t t = 0; t < DH_COUNTOF(tiles); t++)
        for (size_t i = 0; i < DH_COUNTOF(splits); i++)
            best =
                DH_MIN(best, tiled_ns(c, s, rows * tiles[t][0], columns * tiles[t][1], splits[i]));
    return DH_MAX(best, dh_cluster_memory_ns(c, s->bytes));
}

static const dh_tensor *tensor(const dh_cost_op *op, uint32_t id)
{
    return &op->graph->tensors.at[id];
}

/* Some rows of a product that one kernel makes: their share of its time. The kernel reads the
 * weight once. */
static double tile_ns(const dh_cluster *c, const dh_cost_op *op, dh_gemm_shape tile)
{
    const double share = (double)tile.rows / (double)op->op->tile_of;
    const dh_tensor *w = tensor(op, op->op->in[1]);
    const double weight = (double)(tile.fp8 ? dh_tensor_elements(w) : dh_tensor_bytes(w));
    dh_gemm_shape whole = tile;
    whole.rows = op->op->tile_of;
    whole.bytes = weight + (tile.bytes - weight) / share;
    return dh_cluster_gemm_ns(c, &whole) * share;
}

/* Rounding both operands to 8 bits, a kernel each: reads them, writes bytes. That they are read
 * twice is left to the cache. */
static double rounding_ns(const dh_cluster *c, const dh_cost_op *op)
{
    double ns = 0;
    for (int k = 0; k < 2; k++) {
        const double n = (double)dh_tensor_elements(tensor(op, op->op->in[k]));
        ns += dh_cluster_memory_ns(c, n * (double)(sizeof(dh_bf16) + 1));
    }
    return ns;
}

static double linear_ns(const dh_cluster *c, const dh_cost_op *op, dh_gemm_shape shape)
{
    shape.dtype = tensor(op, op->op->in[0])->dtype;
    shape.bytes = dh_op_bytes(op->graph, op->op);
    dh_fp8_format formats[2];
    shape.fp8 = dh_op_fp8(op->graph, op->op, formats);
    if (shape.fp8)
        for (int k = 0; k < 2; k++)
            shape.bytes -= (double)dh_tensor_elements(tensor(op, op->op->in[k]));
    const double rounding = shape.fp8 ? rounding_ns(c, op) : 0;
    if (op->op->tile_of > shape.rows) return rounding + tile_ns(c, op, shape);
    return rounding + dh_cluster_gemm_ns(c, &shape);
}

static double linear(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *x = tensor(op, op->op->in[0]), *w = tensor(op, op->op->in[1]);
    return linear_ns(
        c, op,
        (dh_gemm_shape){
            .rows = x->shape[0], .columns = w->shape[0], .shared = w->shape[1], .batch = 1});
}

static double linear_dgrad(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *dy = tensor(op, op->op->in[0]), *w = tensor(op, op->op->in[1]);
    return linear_ns(
        c, op,
        (dh_gemm_shape){
            .rows = dy->shape[0], .columns = w->shape[1], .shared = w->shape[0], .batch = 1});
}

static double linear_wgrad(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *dy = tensor(op, op->op->in[0]), *x = tensor(op, op->op->in[1]);
    return linear_ns(
        c, op,
        (dh_gemm_shape){
            .rows = dy->shape[1], .columns = x->shape[1], .shared = dy->shape[0], .batch = 1});
}

/* Experts side by side, rows shared evenly. Work is that of dh_op_flops, which knows how many
 * of the rows are used. */
static double grouped(const dh_cluster *c, const dh_cost_op *op, int64_t experts, int64_t columns,
                      int64_t shared, bool rows_shared)
{
    const double per = dh_op_flops(op->graph, op->op) / 2 / (double)experts;
    const int64_t rest = (int64_t)ceil(per / (double)columns / (double)shared);
    return linear_ns(
        c, op,
        rows_shared
            ? (dh_gemm_shape){.rows = columns, .columns = shared, .shared = rest, .batch = experts}
            : (dh_gemm_shape){
                  .rows = rest, .columns = columns, .shared = shared, .batch = experts});
}

static double grouped_linear(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *w = tensor(op, op->op->in[1]);
    return grouped(c, op, w->shape[0], w->shape[1], w->shape[2], false);
}

static double grouped_dgrad(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *w = tensor(op, op->op->in[1]);
    return grouped(c, op, w->shape[0], w->shape[2], w->shape[1], false);
}

static double grouped_wgrad(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *dw = tensor(op, op->op->out[0]);
    return grouped(c, op, dw->shape[0], dw->shape[1], dw->shape[2], true);
}

/* ---- attention --------------------------------------------------------------------------- */

/* Head dimension at which files give the efficiencies. */
#define GIVEN_HEAD_DIM 128.

/* By the exponentials between both products, of which there is one for head_dim multiplications
 * whatever that is. */
static double head_share(const dh_cluster *c, const dh_attention_work *w)
{
    return (1 + c->attention_head_half / GIVEN_HEAD_DIM) /
           (1 + c->attention_head_half / w->head_dim);
}

/* A row of queries passes its keys, starts and ends; a block on the edge of the mask is computed
 * whole, which is half of it for nothing. */
static double keys_share(const dh_cluster *c, const dh_attention_work *w, bool masked)
{
    const double keys = w->pairs / w->queries, edge = masked ? c->attention_block / 2 : 0;
    return keys / (keys + c->attention_start_keys + edge);
}

/* Blocks of equal length take whole waves. Under a mask they are of all lengths up to the longest,
 * and processors end on average half of that apart. */
static double filled_share(const dh_cluster *c, const dh_attention_work *w, bool masked)
{
    if (c->attention_block <= 0) return 1;
    const double blocks = ceil(w->queries / c->attention_block) * w->heads;
    const double waves = blocks / c->processors;
    if (!masked) return waves / ceil(waves);
    const double longest = w->keys * w->queries / w->pairs; /* of the mean */
    return 1 / DH_MAX(1 + longest / waves / 2, longest / waves);
}

/* The rate of attention, as a share of its rate with unlimited work at the head dimension that the
 * efficiencies are for. */
static double attention_share(const dh_cluster *c, const dh_attention_work *w)
{
    if (w->heads <= 0) return 1;
    const bool masked = w->pairs < w->queries * w->keys;
    return head_share(c, w) * keys_share(c, w, masked) * filled_share(c, w, masked);
}

double dh_cluster_attention_ns(const dh_cluster *c, const dh_attention_work *work, bool grad)
{
    const double efficiency = grad ? c->attention_grad_efficiency : c->attention_efficiency;
    const double rate = peak(c, work->dtype) * efficiency * attention_share(c, work);
    return DH_MAX(work->flops / rate * 1e9, dh_cluster_memory_ns(c, work->bytes));
}

/* Operations a pair of a query and a key: two products of head_dim forward, five backward. */
static double pair_flops(const dh_attention_work *w, bool grad)
{
    return (grad ? 10 : 4) * w->head_dim;
}

static double chunks_ns(const dh_cluster *c, const dh_cost_op *op, bool grad)
{
    const dh_attention_work work = {.dtype = op->graph->dtype,
                                    .flops = dh_op_flops(op->graph, op->op),
                                    .bytes = dh_op_bytes(op->graph, op->op)};
    return dh_cluster_attention_ns(c, &work, grad);
}

static double blockwise_ns(const dh_cluster *c, const dh_cost_op *op, bool grad)
{
    const dh_ring_part part = dh_ring_part_of(&op->graph->dims, op->op->step);
    const dh_attn_sizes s = dh_op_attn_sizes(op->graph, op->op);
    dh_attention_work work = {.dtype = op->graph->dtype,
                              .flops = dh_op_flops(op->graph, op->op),
                              .bytes = dh_op_bytes(op->graph, op->op),
                              .heads = (double)(s.batch * s.n_heads),
                              .queries = (double)part.n_q,
                              .keys = (double)part.n_k,
                              .head_dim = (double)op->graph->dims.head_dim};
    work.pairs = work.flops / pair_flops(&work, grad) / work.heads;
    const double window = (double)op->graph->dims.window;
    if (window > 0 && work.pairs <= work.queries * window) work.keys = DH_MIN(work.keys, window);
    return dh_cluster_attention_ns(c, &work, grad);
}

/* A batched product that makes or uses scores of n_q x n_k for every head. */
static double scores_gemm_ns(const dh_cluster *c, const dh_cost_op *op, const dh_ring_part *part,
                             bool makes)
{
    const dh_attn_sizes s = dh_op_attn_sizes(op->graph, op->op);
    const int64_t head_dim = op->graph->dims.head_dim, n_heads = s.batch * s.n_heads;
    const double item = (double)dh_dtype_bytes(op->graph->dtype);
    const double pairs = (double)part->n_q * (double)part->n_k;
    const double heads = (double)n_heads;
    const dh_gemm_shape shape = {.dtype = op->graph->dtype,
                                 .rows = part->n_q,
                                 .columns = makes ? part->n_k : head_dim,
                                 .shared = makes ? head_dim : part->n_k,
                                 .batch = n_heads,
                                 .bytes = heads * item *
                                          (pairs + (double)((part->n_q + part->n_k) * head_dim))};
    return dh_cluster_gemm_ns(c, &shape);
}

/* Time with the scores in memory, all n_q x n_k of them.
 *   forward     GEMM, softmax (reads, writes), dropout (reads, writes, a mask of a byte), GEMM
 *   backward    GEMMs for dV and dP, dropout (reads gradient and mask, writes), softmax (reads
 *               gradient and result, writes), GEMMs for dQ and dK */
static double scores_ns(const dh_cluster *c, const dh_cost_op *op, bool backward)
{
    const dh_dims *d = &op->graph->dims;
    const dh_ring_part part = dh_ring_part_of(d, op->op->step);
    const dh_attn_sizes s = dh_op_attn_sizes(op->graph, op->op);
    const double scores = (double)(s.batch * s.n_heads) * (double)part.n_q * (double)part.n_k;
    const double item = (double)dh_dtype_bytes(op->graph->dtype);
    const double drop = d->dropout > 0 ? 2 * item + 1 : 0;
    const double makes = scores_gemm_ns(c, op, &part, true);
    const double uses = scores_gemm_ns(c, op, &part, false);
    const double forward = makes + uses + dh_cluster_memory_ns(c, scores * 2 * item) +
                           dh_cluster_memory_ns(c, scores * drop);
    if (!backward) return forward;
    const double grad = makes + 3 * uses + dh_cluster_memory_ns(c, scores * 3 * item) +
                        dh_cluster_memory_ns(c, scores * drop);
    return c->attention == DH_ATTENTION_SCORES_RECOMPUTE ? forward + grad : grad;
}

static double attention(const dh_cluster *c, const dh_cost_op *op)
{
    return c->attention == DH_ATTENTION_BLOCKWISE ? blockwise_ns(c, op, false)
                                                  : scores_ns(c, op, false);
}

static double attention_grad(const dh_cluster *c, const dh_cost_op *op)
{
    return c->attention == DH_ATTENTION_BLOCKWISE ? blockwise_ns(c, op, true)
                                                  : scores_ns(c, op, true);
}

/* Chunks of tokens at a time, never their scores in memory: at the rates of such kernels. */
static double linear_attention(const dh_cluster *c, const dh_cost_op *op)
{
    return chunks_ns(c, op, false);
}

static double linear_attention_grad(const dh_cluster *c, const dh_cost_op *op)
{
    return chunks_ns(c, op, true);
}

/* ---- others ------------------------------------------------------------------------------- */

/* Rows of the table that tokens name are read and written, not all of it. */
static double embed(const dh_cluster *c, const dh_cost_op *op)
{
    return dh_cluster_memory_ns(c, 2 * (double)dh_tensor_bytes(tensor(op, op->op->out[0])));
}

static double embed_grad(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_tensor *dx = tensor(op, op->op->in[0]);
    const double sums = 2 * (double)dh_tensor_elements(dx) * (double)sizeof(float);
    return dh_cluster_memory_ns(c, (double)dh_tensor_bytes(dx) + sums);
}

static double by_bytes(const dh_cluster *c, const dh_cost_op *op)
{
    return dh_cluster_memory_ns(c, dh_op_bytes(op->graph, op->op));
}

typedef double op_ns(const dh_cluster *c, const dh_cost_op *op);

static op_ns *const models[DH_N_OP_TYPE] = {
    [DH_OP_LINEAR] = linear,
    [DH_OP_LINEAR_DGRAD] = linear_dgrad,
    [DH_OP_LINEAR_GELU] = linear,
    [DH_OP_LINEAR_DGRAD_GELU] = linear_dgrad,
    [DH_OP_LINEAR_WGRAD] = linear_wgrad,
    [DH_OP_GROUPED_LINEAR] = grouped_linear,
    [DH_OP_GROUPED_DGRAD] = grouped_dgrad,
    [DH_OP_GROUPED_WGRAD] = grouped_wgrad,
    [DH_OP_ATTN] = attention,
    [DH_OP_RING_ATTN] = attention,
    [DH_OP_ATTN_GRAD] = attention_grad,
    [DH_OP_RING_ATTN_GRAD] = attention_grad,
    [DH_OP_LINEAR_ATTN] = linear_attention,
    [DH_OP_LINEAR_STATE] = linear_attention,
    [DH_OP_LINEAR_JOIN] = linear_attention,
    [DH_OP_LINEAR_ATTN_GRAD] = linear_attention_grad,
    [DH_OP_LINEAR_STATE_GRAD] = linear_attention_grad,
    [DH_OP_LINEAR_JOIN_GRAD] = linear_attention_grad,
    [DH_OP_EMBED] = embed,
    [DH_OP_EMBED_GRAD] = embed_grad,
};

double dh_cluster_rounding_ns(const dh_cluster *c, const dh_cost_op *op)
{
    dh_fp8_format formats[2];
    return dh_op_fp8(op->graph, op->op, formats) ? rounding_ns(c, op) : 0;
}

double dh_cluster_op_ns(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_op_type type = op->op->type;
    if (dh_op_info_of(type)->resource == DH_RES_HOST) return 0;
    return models[type] ? models[type](c, op) : by_bytes(c, op);
}

static const dh_cluster_class classes[DH_N_OP_TYPE] = {
    [DH_OP_ATTN] = DH_CLUSTER_ATTENTION,
    [DH_OP_RING_ATTN] = DH_CLUSTER_ATTENTION,
    [DH_OP_ATTN_CACHED] = DH_CLUSTER_ATTENTION,
    [DH_OP_ATTN_GRAD] = DH_CLUSTER_ATTENTION_GRAD,
    [DH_OP_RING_ATTN_GRAD] = DH_CLUSTER_ATTENTION_GRAD,
    [DH_OP_LINEAR_ATTN] = DH_CLUSTER_ATTENTION,
    [DH_OP_LINEAR_STATE] = DH_CLUSTER_ATTENTION,
    [DH_OP_LINEAR_JOIN] = DH_CLUSTER_ATTENTION,
    [DH_OP_LINEAR_CACHED] = DH_CLUSTER_ATTENTION,
    [DH_OP_LINEAR_ATTN_GRAD] = DH_CLUSTER_ATTENTION_GRAD,
    [DH_OP_LINEAR_STATE_GRAD] = DH_CLUSTER_ATTENTION_GRAD,
    [DH_OP_LINEAR_JOIN_GRAD] = DH_CLUSTER_ATTENTION_GRAD,
};

dh_cluster_class dh_cluster_class_by(dh_op_type type, dh_engine engine)
{
    if (dh_engine_is_link(engine))
        return engine == DH_ENGINE_LOCAL ? DH_CLUSTER_LOCAL : DH_CLUSTER_CROSS;
    if (classes[type]) return classes[type];
    return models[type] && type != DH_OP_EMBED && type != DH_OP_EMBED_GRAD ? DH_CLUSTER_GEMM
                                                                           : DH_CLUSTER_MEMORY;
}

dh_cluster_class dh_cluster_class_of(const dh_cost_op *op)
{
    return dh_cluster_class_by(op->op->type, dh_cost_engine(op));
}
