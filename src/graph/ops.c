/* Operator table: names and operands from ops.def, and the work each type does. */
#include "config/mesh.h"
#include "graph/graph.h"

#include <pthread.h>
#include <string.h>

/* ---- names and operands ---------------------------------------------------------- */

static const struct {
    const char *name, *in, *out, *attrs, *doc;
    dh_resource resource;
    int inplace;
} rows[DH_N_OP_TYPE] = {
#define DH_OP(id, name, res, in, out, inplace, attrs, doc)                                         \
    [DH_OP_##id] = {name, in, out, attrs, doc, DH_RES_##res, inplace},
#include "graph/ops.def"
#undef DH_OP
};

static dh_op_info infos[DH_N_OP_TYPE];
static pthread_once_t infos_once = PTHREAD_ONCE_INIT;

/* "x w b?" -> operand table; the rows are ours, so a misfit is a bug. */
static int parse_operands(const char *text, dh_operand_info *operands)
{
    int n = 0;
    while (*text) {
        DH_CHECK(n < DH_MAX_OPERANDS, "too many operands: %s", text);
        dh_operand_info *operand = &operands[n++];
        size_t len = strcspn(text, " ?+&");
        DH_CHECK(len < sizeof operand->name, "operand name too long: %s", text);
        memcpy(operand->name, text, len);
        for (text += len; *text && *text != ' '; text++) {
            operand->optional |= *text == '?';
            operand->accumulate |= *text == '+';
            operand->update |= *text == '&';
        }
        while (*text == ' ') text++;
    }
    return n;
}

/* ---- attributes -------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int64_t unset, end;
} attributes[DH_N_OP_ATTR] = {
    [DH_ATTR_SITE] = {"site", -1, DH_N_SITE},
    [DH_ATTR_GROUP] = {"group", -1, DH_N_GROUPS},
    [DH_ATTR_FLAT] = {"flat", DH_NONE, DH_NONE},
    [DH_ATTR_STEP] = {"step", 0, INT32_MAX},
    [DH_ATTR_VOCAB0] = {"vocab0", 0, (int64_t)1 << 48},
    [DH_ATTR_PARTS] = {"parts", 0, DH_MAX_PARTS + 1},
    [DH_ATTR_PART0] = {"part0", 0, DH_MAX_PARTS},
    [DH_ATTR_CAPACITY] = {"capacity", 0, (int64_t)1 << 48},
    [DH_ATTR_ROOM] = {"room", 0, (int64_t)1 << 48},
    [DH_ATTR_ROWS] = {"rows", 0, (int64_t)1 << 48},
    [DH_ATTR_BY] = {"by", 0, INT32_MAX},
    [DH_ATTR_TILE_OF] = {"tile_of", 0, (int64_t)1 << 48},
    [DH_ATTR_FROM] = {"from", 0, (int64_t)1 << 48},
    [DH_ATTR_TO] = {"to", 0, (int64_t)1 << 48},
    [DH_ATTR_COLUMNS] = {"columns", 0, (int64_t)1 << 48},
    [DH_ATTR_ADDS] = {"adds", 0, 2},
    [DH_ATTR_BACK] = {"back", 0, 2},
    [DH_ATTR_BLOCKS] = {"blocks", 0, INT32_MAX},
    [DH_ATTR_WIRE] = {"wire", 0, DH_BF16 + 1},
};

const char *dh_op_attr_name(dh_op_attr attr)
{
    return attributes[attr].name;
}

int64_t dh_op_attr_unset(dh_op_attr attr)
{
    return attributes[attr].unset;
}

int64_t dh_op_attr_end(dh_op_attr attr)
{
    return attributes[attr].end;
}

int64_t dh_op_attr_get(const dh_op *op, dh_op_attr attr)
{
    const int64_t values[DH_N_OP_ATTR] = {
        [DH_ATTR_SITE] = op->site,       [DH_ATTR_GROUP] = op->group,
        [DH_ATTR_FLAT] = op->flat,       [DH_ATTR_STEP] = op->step,
        [DH_ATTR_VOCAB0] = op->vocab0,   [DH_ATTR_PARTS] = op->parts,
        [DH_ATTR_PART0] = op->part0,     [DH_ATTR_CAPACITY] = op->capacity,
        [DH_ATTR_ROOM] = op->room,       [DH_ATTR_ROWS] = op->rows,
        [DH_ATTR_BY] = op->by,           [DH_ATTR_TILE_OF] = op->tile_of,
        [DH_ATTR_FROM] = op->from,       [DH_ATTR_TO] = op->to,
        [DH_ATTR_COLUMNS] = op->columns, [DH_ATTR_ADDS] = op->adds,
        [DH_ATTR_BACK] = op->back,       [DH_ATTR_BLOCKS] = op->blocks,
        [DH_ATTR_WIRE] = op->wire};
    return values[attr];
}

void dh_op_attr_set(dh_op *op, dh_op_attr attr, int64_t value)
{
    if (attr == DH_ATTR_SITE) op->site = (int32_t)value;
    if (attr == DH_ATTR_GROUP) op->group = (int32_t)value;
    if (attr == DH_ATTR_FLAT) op->flat = (uint32_t)value;
    if (attr == DH_ATTR_STEP) op->step = (int32_t)value;
    if (attr == DH_ATTR_VOCAB0) op->vocab0 = value;
    if (attr == DH_ATTR_PARTS) op->parts = (int32_t)value;
    if (attr == DH_ATTR_PART0) op->part0 = (int32_t)value;
    if (attr == DH_ATTR_CAPACITY) op->capacity = value;
    if (attr == DH_ATTR_ROOM) op->room = value;
    if (attr == DH_ATTR_ROWS) op->rows = value;
    if (attr == DH_ATTR_BY) op->by = (int32_t)value;
    if (attr == DH_ATTR_TILE_OF) op->tile_of = value;
    if (attr == DH_ATTR_FROM) op->from = value;
    if (attr == DH_ATTR_TO) op->to = value;
    if (attr == DH_ATTR_COLUMNS) op->columns = value;
    if (attr == DH_ATTR_ADDS) op->adds = (int32_t)value;
    if (attr == DH_ATTR_BACK) op->back = (int32_t)value;
    if (attr == DH_ATTR_BLOCKS) op->blocks = (int32_t)value;
    if (attr == DH_ATTR_WIRE) op->wire = (int32_t)value;
}

/* "site vocab0" -> bits. */
static unsigned parse_attributes(const char *text)
{
    unsigned mask = 0;
    while (*text) {
        const size_t len = strcspn(text, " ");
        int a = 0;
        while (a < DH_N_OP_ATTR &&
               (strlen(attributes[a].name) != len || memcmp(attributes[a].name, text, len) != 0))
            a++;
        DH_CHECK(a < DH_N_OP_ATTR, "no operator attribute %s", text);
        mask |= 1u << a;
        text += len;
        while (*text == ' ') text++;
    }
    return mask;
}

static void infos_init(void)
{
    for (int i = 0; i < DH_N_OP_TYPE; i++) {
        dh_op_info *info = &infos[i];
        info->name = rows[i].name;
        info->doc = rows[i].doc;
        info->resource = rows[i].resource;
        info->inplace = rows[i].inplace;
        info->attrs = parse_attributes(rows[i].attrs);
        info->n_in = parse_operands(rows[i].in, info->in);
        info->n_out = parse_operands(rows[i].out, info->out);
    }
}

const dh_op_info *dh_op_info_of(dh_op_type type)
{
    DH_ASSERT((unsigned)type < DH_N_OP_TYPE, "op type %d", (int)type);
    pthread_once(&infos_once, infos_init);
    return &infos[type];
}

/* ---- parts --------------------------------------------------------------------------- */

static uint32_t part_of_chunk(const dh_op *op, int64_t chunk)
{
    return (uint32_t)((chunk - op->part0 + op->parts) % op->parts);
}

/* Chunks come in a circle: a run of them that holds the last one's neighbour, the first, ends
 * with the last. */
uint32_t dh_op_part_of(const dh_op *op, int64_t n, int64_t from, int64_t to)
{
    const uint32_t n_parts = dh_op_n_parts(op);
    if (n_parts == 1) return 0;
    const int64_t chunk = n / n_parts;
    const uint32_t first = part_of_chunk(op, from / chunk);
    const uint32_t last = part_of_chunk(op, (to - 1) / chunk);
    return first > last ? n_parts - 1 : last;
}

int64_t dh_op_part_begin(const dh_op *op, int64_t n, uint32_t part)
{
    const uint32_t n_parts = dh_op_n_parts(op);
    return ((uint32_t)op->part0 + part) % n_parts * (n / n_parts);
}

double dh_op_part_share(const dh_op *op, int64_t n_ranks, uint32_t part)
{
    const uint32_t n_parts = dh_op_n_parts(op);
    const uint32_t own = op->type == DH_OP_ALL_GATHER ? n_parts / (uint32_t)n_ranks : 0;
    if (part + 1 >= n_parts) return 1;
    return part < own ? 0 : (double)(part + 1 - own) / (double)(n_parts - own);
}

/* ---- variants ------------------------------------------------------------------------ */

static bool is_norm(dh_op_type type)
{
    return type == DH_OP_NORM || type == DH_OP_NORM_DGRAD || type == DH_OP_HEAD_NORM ||
           type == DH_OP_HEAD_NORM_DGRAD;
}

bool dh_op_attends(dh_op_type type)
{
    return type == DH_OP_ATTN || type == DH_OP_ATTN_GRAD || type == DH_OP_ATTN_CACHED ||
           type == DH_OP_RING_ATTN || type == DH_OP_RING_ATTN_GRAD;
}

const char *dh_op_variant(const dh_graph *graph, const dh_op *op)
{
    const dh_dims *d = &graph->dims;
    const bool rotates = op->type == DH_OP_ROPE || op->type == DH_OP_ROPE_GRAD;
    const bool routes = op->type == DH_OP_ROUTER || op->type == DH_OP_ROUTER_GRAD;
    if (dh_op_attends(op->type) && d->attn_softcap > 0) return "capped scores";
    if (dh_op_attends(op->type) && d->attn_scale != 0)
        return "scores divided by another root than head_dim's";
    if ((op->type == DH_OP_ACT || op->type == DH_OP_ACT_GRAD) && d->act == DH_ACT_GEGLU)
        return "GEGLU";
    if (d->norm_plus_one && is_norm(op->type)) return "norms by 1 + weight";
    if (rotates && d->nth) return "layers of other positions";
    if (rotates && d->rope.scaling == DH_ROPE_SCALING_LONGROPE) return "rotations by longrope";
    if (routes && d->sparsemixer) return "weights of experts by sparsemixer";
    if (routes && d->n_groups) return "experts by sigmoids, in groups";
    if (routes && d->topk_plain) return "weights of experts that do not sum to 1";
    return NULL;
}

/* ---- work ---------------------------------------------------------------------------- */

int64_t dh_tensor_elements(const dh_tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->ndim; i++) n *= tensor->shape[i];
    return n;
}

int64_t dh_tensor_bytes(const dh_tensor *tensor)
{
    return dh_tensor_elements(tensor) * (int64_t)dh_dtype_bytes(tensor->dtype);
}

int64_t dh_op_travel_bytes(const dh_graph *graph, const dh_op *op, uint32_t tensor)
{
    if (tensor == DH_NONE) return 0;
    const dh_tensor *t = &graph->tensors.at[tensor];
    if (op->wire == DH_F32) return dh_tensor_bytes(t);
    return dh_tensor_elements(t) * (int64_t)dh_dtype_bytes((dh_dtype)op->wire);
}

int64_t dh_op_rounded_bytes(const dh_graph *graph, const dh_op *op)
{
    if (op->wire == DH_F32) return 0;
    return DH_MAX(dh_op_travel_bytes(graph, op, op->in[0]),
                  dh_op_travel_bytes(graph, op, op->out[0]));
}

static const dh_tensor *operand(const dh_graph *g, uint32_t id)
{
    return id == DH_NONE ? NULL : &g->tensors.at[id];
}

/* Product of both GEMM operands' sizes over the shared axis: 2 * N * O * I. */
static double linear_flops(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = operand(g, op->in[0]), *w = operand(g, op->in[1]);
    return 2.0 * (double)x->shape[0] * (double)w->shape[0] * (double)w->shape[1];
}

static double linear_wgrad_flops(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *dy = operand(g, op->in[0]), *x = operand(g, op->in[1]);
    return 2.0 * (double)dy->shape[0] * (double)dy->shape[1] * (double)x->shape[1];
}

bool dh_op_follows_load(const dh_op *op)
{
    static const bool rows_are_experts[DH_N_OP_TYPE] = {[DH_OP_GROUPED_LINEAR] = true,
                                                        [DH_OP_GROUPED_DGRAD] = true,
                                                        [DH_OP_GROUPED_WGRAD] = true,
                                                        [DH_OP_ALL_TO_ALL_ROWS] = true};
    return rows_are_experts[op->type] && op->rows > 0;
}

/* Rows that experts work on, or that travel to them. */
static double routed_rows(const dh_op *op, const dh_tensor *x)
{
    return (double)(op->rows ? DH_MIN(x->shape[0], op->rows) : x->shape[0]);
}

static double grouped_flops(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = operand(g, op->in[0]), *w = operand(g, op->in[1]);
    return 2.0 * routed_rows(op, x) * (double)w->shape[1] * (double)w->shape[2];
}

static double grouped_wgrad_flops(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *dy = operand(g, op->in[0]), *x = operand(g, op->in[1]);
    return 2.0 * routed_rows(op, x) * (double)dy->shape[1] * (double)x->shape[1];
}

/* Log-sum-exps [B,H,T] of an attention operator that has any. */
static const dh_tensor *statistics(const dh_graph *g, const dh_op *op)
{
    const bool made = op->type == DH_OP_ATTN || op->type == DH_OP_RING_ATTN;
    const bool read = op->type == DH_OP_ATTN_GRAD || op->type == DH_OP_RING_ATTN_GRAD;
    return made ? operand(g, op->out[1]) : read ? operand(g, op->in[3]) : NULL;
}

/* The packed rows, or their gradient. */
static const dh_tensor *packed_rows(const dh_graph *g, const dh_op *op)
{
    if (op->type == DH_OP_QKV_JOIN) return operand(g, op->out[0]);
    const bool grad = op->type == DH_OP_ATTN_GRAD || op->type == DH_OP_RING_ATTN_GRAD;
    return operand(g, op->in[grad ? 1 : 0]);
}

dh_attn_sizes dh_op_attn_sizes(const dh_graph *graph, const dh_op *op)
{
    const dh_dims *d = &graph->dims;
    const dh_tensor *lse = statistics(graph, op), *packed = packed_rows(graph, op);
    const int64_t n_packed = packed->shape[1] / d->head_dim;
    const int64_t n_kv = n_packed * d->n_kv_heads / (d->n_heads + 2 * d->n_kv_heads);
    return (dh_attn_sizes){.batch = lse ? lse->shape[0] : 1,
                           .seq = lse ? lse->shape[2] : packed->shape[0],
                           .n_heads = n_packed - 2 * n_kv,
                           .n_kv_heads = n_kv};
}

static bool has_window(const dh_dims *d, int64_t layer)
{
    return d->window > 0 && layer >= d->window_from &&
           (d->window_every == 0 || (layer + 1) % d->window_every != 0);
}

int64_t dh_dims_window(const dh_dims *dims, int64_t layer)
{
    return has_window(dims, layer) ? dims->window : 0;
}

/* Layers of a model with and without a window have graphs of their own. A graph that is written by
 * hand may serve both; its work is then the mean. */
static double mean_over_layers(const dh_dims *d, double in_window, double all)
{
    const int64_t from = DH_MIN(d->window_from, d->layers), every = d->window_every;
    const int64_t whole = from + (every > 0 ? d->layers / every - from / every : 0);
    const double share = (double)(d->layers - whole) / (double)d->layers;
    return share * in_window + (1 - share) * all;
}

static bool is_windowed(const dh_dims *d)
{
    return d->window > 0 && d->layers > 0;
}

/* Query-key pairs of a sample under the causal mask, times two. */
static double causal_pairs_twice(const dh_dims *d, int64_t seq)
{
    const double all = (double)seq * (double)(seq + 1);
    if (!is_windowed(d) || d->window >= seq) return all;
    const double w = (double)d->window;
    return mean_over_layers(d, w * (w + 1) + 2 * w * ((double)seq - w), all);
}

/* Two GEMMs of T x T x D per head, as far as the mask lets them. */
static double attn_flops(const dh_graph *g, const dh_op *op)
{
    const dh_attn_sizes s = dh_op_attn_sizes(g, op);
    double heads = (double)operand(g, op->out[0])->shape[1];
    return 2.0 * (double)s.batch * causal_pairs_twice(&g->dims, s.seq) * heads;
}

/* Five GEMMs instead of two: scores again, dV, dP, dQ, dK. */
static double attn_grad_flops(const dh_graph *g, const dh_op *op)
{
    const dh_attn_sizes s = dh_op_attn_sizes(g, op);
    double heads = (double)operand(g, op->in[0])->shape[1];
    return 5.0 * (double)s.batch * causal_pairs_twice(&g->dims, s.seq) * heads;
}

/* Sum of n - |e| over e from 1 - n to x: pairs of two chunks of n by their distance. */
static double pairs_up_to(double n, double x)
{
    x = DH_MIN(DH_MAX(x, -n), n - 1);
    return x <= 0 ? (n + x) * (n + x + 1) / 2 : n * n - (n - x - 1) * (n - x) / 2;
}

/* Pairs of n queries from position q and n keys from position k that are less than a window apart,
 * the key not behind. */
static double chunk_pairs(int64_t n, int64_t q, int64_t k, int64_t window)
{
    const double apart = (double)(q - k);
    return pairs_up_to((double)n, (double)(window - 1) - apart) -
           pairs_up_to((double)n, -1 - apart);
}

/* The rank's queries and the keys of a ring part, chunk by chunk. */
static double ring_window_pairs(const dh_dims *d, dh_ring_part part)
{
    const int64_t half = d->seq / 2;
    double pairs = 0;
    for (int64_t q = part.q0; q < part.q0 + part.n_q; q += half)
        for (int64_t k = 0; k < part.n_k; k += half)
            pairs += chunk_pairs(half, dh_cp_position(d, d->cp_rank, q),
                                 dh_cp_position(d, part.from, k), d->window);
    return pairs;
}

/* Query-key pairs of a ring part, all samples. */
static double ring_pairs(const dh_graph *g, const dh_op *op)
{
    const dh_ring_part part = dh_ring_part_of(&g->dims, op->step);
    double pairs = (double)part.n_q * (double)part.n_k;
    if (op->step == 0) pairs = (pairs + (double)part.n_q) / 2;
    if (is_windowed(&g->dims))
        pairs = mean_over_layers(&g->dims, ring_window_pairs(&g->dims, part), pairs);
    return (double)dh_op_attn_sizes(g, op).batch * pairs;
}

static double ring_attn_flops(const dh_graph *g, const dh_op *op)
{
    return 4.0 * ring_pairs(g, op) * (double)operand(g, op->out[0])->shape[1];
}

static double ring_attn_grad_flops(const dh_graph *g, const dh_op *op)
{
    return 10.0 * ring_pairs(g, op) * (double)operand(g, op->out[0])->shape[1];
}

static double attn_cached_flops(const dh_graph *g, const dh_op *op)
{
    const dh_dims *d = &g->dims;
    const dh_tensor *o = operand(g, op->out[0]);
    const double all = (double)d->max_seq, last = (double)DH_MIN(d->window, d->max_seq);
    return 4.0 * (double)dh_tensor_elements(o) *
           (is_windowed(d) ? mean_over_layers(d, last, all) : all);
}

/* ---- linear attention -------------------------------------------------------------------- */

dh_attn_sizes dh_linear_sizes(const dh_graph *graph, const dh_tensor *packed)
{
    const dh_dims *d = &graph->dims;
    const int64_t n = packed->shape[1] / d->head_dim;
    const int64_t kv = n * d->n_kv_heads / (d->n_heads + 2 * d->n_kv_heads);
    const int64_t seq = graph->mode == DH_MODE_DECODE ? packed->shape[0] : d->seq / dh_cp_chunks(d);
    return (dh_attn_sizes){
        .batch = packed->shape[0] / seq, .seq = seq, .n_heads = n - 2 * kv, .n_kv_heads = kv};
}

/* Products of rows of D channels. A product with a state of D x D counts for each head of
 * queries (by_query_head times) and of keys (by_key_head times). A product with the tokens that a
 * token sees of its chunk counts for each head of queries (in_chunk times). */
static double linear_products(const dh_graph *g, uint32_t packed, double by_query_head,
                              double by_key_head, double in_chunk)
{
    const dh_tensor *t = operand(g, packed);
    const dh_attn_sizes s = dh_linear_sizes(g, t);
    const double d = (double)g->dims.head_dim, h = (double)s.n_heads, kv = (double)s.n_kv_heads;
    const double seen = (double)(DH_MIN(DH_LINEAR_CHUNK, s.seq) + 1) / 2;
    return 2 * (double)t->shape[0] * d *
           (d * (by_query_head * h + by_key_head * kv) + in_chunk * h * seen);
}

static double linear_attn_flops(const dh_graph *g, const dh_op *op)
{
    return linear_products(g, op->in[0], 1, 1, 2);
}

/* By heads of queries: dq out of the state, which is added to twice, as the sum of q do^T and
 * transposed. By heads of keys: dk, dv, the state of the forward again. In chunks: gradients of
 * scores for dq and again for dk, scores, and a product of each for dq, dk, dv. */
static double linear_attn_grad_flops(const dh_graph *g, const dh_op *op)
{
    return linear_products(g, op->in[1], 3, 3, 6);
}

static double linear_state_flops(const dh_graph *g, const dh_op *op)
{
    return linear_products(g, op->in[0], 0, 1, 0);
}

static double linear_state_grad_flops(const dh_graph *g, const dh_op *op)
{
    return linear_products(g, op->in[1], 1, 0, 0);
}

static double linear_join_flops(const dh_graph *g, const dh_op *op)
{
    return linear_products(g, op->in[1], 1, 0, 0);
}

static double linear_join_grad_flops(const dh_graph *g, const dh_op *op)
{
    return linear_products(g, op->in[2], 1, 2, 0);
}

/* Elementwise and reducing operators: a nominal count per element of the first
 * operand. They are bound by memory, so only the order of magnitude matters. */
static double elementwise_flops(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = operand(g, op->in[0] != DH_NONE ? op->in[0] : op->out[0]);
    return x ? 8.0 * (double)dh_tensor_elements(x) : 0.0;
}

/* The columns of the other operand that an adapter's output, or its gradient, concerns. */
static const dh_tensor *adapter_part(const dh_graph *g, const dh_op *op)
{
    return operand(g, op->type == DH_OP_ADAPT ? op->in[0] : op->out[0]);
}

/* Operators made of GEMMs. */
static double (*const products[DH_N_OP_TYPE])(const dh_graph *, const dh_op *) = {
    [DH_OP_LINEAR] = linear_flops,
    [DH_OP_LINEAR_DGRAD] = linear_flops,
    [DH_OP_LINEAR_GELU] = linear_flops,
    [DH_OP_LINEAR_DGRAD_GELU] = linear_flops,
    [DH_OP_LINEAR_WGRAD] = linear_wgrad_flops,
    [DH_OP_GROUPED_LINEAR] = grouped_flops,
    [DH_OP_GROUPED_DGRAD] = grouped_flops,
    [DH_OP_GROUPED_WGRAD] = grouped_wgrad_flops,
    [DH_OP_ATTN] = attn_flops,
    [DH_OP_ATTN_GRAD] = attn_grad_flops,
    [DH_OP_ATTN_CACHED] = attn_cached_flops,
    [DH_OP_RING_ATTN] = ring_attn_flops,
    [DH_OP_RING_ATTN_GRAD] = ring_attn_grad_flops,
    [DH_OP_LINEAR_ATTN] = linear_attn_flops,
    [DH_OP_LINEAR_CACHED] = linear_attn_flops,
    [DH_OP_LINEAR_STATE] = linear_state_flops,
    [DH_OP_LINEAR_JOIN] = linear_join_flops,
    [DH_OP_LINEAR_ATTN_GRAD] = linear_attn_grad_flops,
    [DH_OP_LINEAR_STATE_GRAD] = linear_state_grad_flops,
    [DH_OP_LINEAR_JOIN_GRAD] = linear_join_grad_flops,
};

bool dh_op_multiplies(dh_op_type type)
{
    return products[type] != NULL;
}

double dh_op_flops(const dh_graph *graph, const dh_op *op)
{
    if (products[op->type]) return products[op->type](graph, op);
    if (op->type == DH_OP_ADAPT || op->type == DH_OP_ADAPT_GRAD)
        return 2.0 * (double)dh_tensor_elements(adapter_part(graph, op));
    if (op->type == DH_OP_RELEASE || op->type == DH_OP_AMEND || op->type == DH_OP_TAKE_COLUMNS ||
        op->type == DH_OP_PUT_COLUMNS)
        return 0;
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? elementwise_flops(graph, op) : 0.0;
}

/* Rows that travel: choices on the way out, as many on the way in where load is even. */
static double exchange_bytes(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = operand(g, op->in[0]), *y = operand(g, op->out[0]);
    const double row = (double)dh_tensor_bytes(x) / (double)x->shape[0];
    return (routed_rows(op, x) + routed_rows(op, y)) * row;
}

/* Moved columns are read and written; a target that is added to is read as well. */
static double moved_bytes(const dh_graph *g, const dh_op *op)
{
    const bool takes = op->type == DH_OP_TAKE_COLUMNS;
    const dh_tensor *moved = operand(g, takes ? op->in[0] : op->out[0]);
    return (op->adds ? 3.0 : 2.0) * (double)moved->shape[0] * (double)op->columns *
           (double)dh_dtype_bytes(moved->dtype);
}

/* Read, and added to columns that are read and written; or read and written. */
static double adapted_bytes(const dh_graph *g, const dh_op *op)
{
    return (op->type == DH_OP_ADAPT ? 3.0 : 2.0) * (double)dh_tensor_bytes(adapter_part(g, op));
}

/* A release touches no bytes. */
static double no_bytes(const dh_graph *g, const dh_op *op)
{
    return 0;
}

/* Steps that have to be amended are the exception: usually both norms are read, and agree. */
static double amend_bytes(const dh_graph *g, const dh_op *op)
{
    return (double)(dh_tensor_bytes(operand(g, op->in[1])) +
                    dh_tensor_bytes(operand(g, op->in[2])));
}

double dh_op_bytes(const dh_graph *graph, const dh_op *op)
{
    static double (*const bytes[DH_N_OP_TYPE])(const dh_graph *, const dh_op *) = {
        [DH_OP_ALL_TO_ALL_ROWS] = exchange_bytes,
        [DH_OP_TAKE_COLUMNS] = moved_bytes,
        [DH_OP_PUT_COLUMNS] = moved_bytes,
        [DH_OP_RELEASE] = no_bytes,
        [DH_OP_AMEND] = amend_bytes,
        [DH_OP_ADAPT] = adapted_bytes,
        [DH_OP_ADAPT_GRAD] = adapted_bytes,
    };
    if (bytes[op->type]) return bytes[op->type](graph, op);
    const dh_op_info *info = dh_op_info_of(op->type);
    double n_bytes = 0;
    for (int i = 0; i < info->n_in; i++)
        n_bytes += (double)dh_op_travel_bytes(graph, op, op->in[i]);
    for (int i = 0; i < info->n_out; i++) {
        bool twice = info->out[i].accumulate || info->out[i].update;
        n_bytes += (twice ? 2.0 : 1.0) * (double)dh_op_travel_bytes(graph, op, op->out[i]);
    }
    return n_bytes;
}
