/* Graph container: adding, checking, comparing. */
#include "check.h"
#include "text_names.h"

#include <stdlib.h>
#include <string.h>

#include "config/mesh.h"

void dh_graph_destroy(dh_graph *graph)
{
    if (!graph) return;
    dh_vec_fini(&graph->tensors);
    dh_vec_fini(&graph->ops);
    free(graph);
}

uint32_t dh_graph_add_tensor(dh_graph *graph, const dh_tensor *tensor)
{
    return dh_vec_push(&graph->tensors, *tensor) ? (uint32_t)(graph->tensors.n - 1) : DH_NONE;
}

dh_op dh_op_make(dh_op_type type, dh_phase phase, const uint32_t *in, const uint32_t *out)
{
    const dh_op_info *info = dh_op_info_of(type);
    dh_op op = {.type = type, .phase = phase, .site = -1, .group = -1, .flat = DH_NONE};
    for (int i = 0; i < DH_MAX_OPERANDS; i++) {
        op.in[i] = i < info->n_in ? in[i] : DH_NONE;
        op.out[i] = i < info->n_out ? out[i] : DH_NONE;
    }
    return op;
}

uint32_t dh_graph_add_op(dh_graph *graph, dh_op_type type, dh_phase phase, const uint32_t *in,
                         const uint32_t *out)
{
    const dh_op op = dh_op_make(type, phase, in, out);
    return dh_vec_push(&graph->ops, op) ? (uint32_t)(graph->ops.n - 1) : DH_NONE;
}

/* ---- check ------------------------------------------------------------------------- */

static dh_status check_name(dh_ctx *ctx, const dh_tensor *t, uint32_t id)
{
    size_t n = 0;
    while (n < sizeof t->name && dh_graph_name_char(t->name[n])) n++;
    if (n < sizeof t->name && t->name[n] == '\0') return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "tensor %%%u has no valid name: letters, digits, '.', '_' and '-' are allowed, "
                   "at most %zu",
                   id, sizeof t->name - 1);
}

static dh_status check_which(dh_ctx *ctx, const dh_graph *g, uint32_t id)
{
    const dh_tensor *t = &g->tensors.at[id];
    const uint32_t n_of[DH_N_TENSOR_KIND] = {[DH_TENSOR_INPUT] = DH_N_INPUT,
                                             [DH_TENSOR_PARAM] = DH_MAX_BLOCK_PARAMS,
                                             [DH_TENSOR_GRAD] = DH_MAX_BLOCK_PARAMS,
                                             [DH_TENSOR_STATE] = DH_N_STATE,
                                             [DH_TENSOR_RANGE] = DH_NONE};
    bool fits = n_of[t->kind] ? t->which < n_of[t->kind] : t->which == DH_NONE;
    if (fits) return DH_OK;
    if (t->kind == DH_TENSOR_ACT)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s is an activation, which has no slot", id,
                       t->name);
    if (t->which == DH_NONE)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s needs a slot", id, t->name);
    return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s has slot %u; it must be below %u", id, t->name,
                   t->which, n_of[t->kind]);
}

static dh_status check_view(dh_ctx *ctx, const dh_graph *g, uint32_t id)
{
    const dh_tensor *t = &g->tensors.at[id];
    if (t->base == DH_NONE && t->row0 != 0)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s begins at row %lld of nothing", id, t->name,
                       (long long)t->row0);
    if (t->base == DH_NONE) return DH_OK;
    if (t->base >= g->tensors.n || g->tensors.at[t->base].base != DH_NONE)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s is a view of %%%u, which owns no storage",
                       id, t->name, t->base);
    const dh_tensor *base = &g->tensors.at[t->base];
    bool fits = t->row0 >= 0 && t->shape[0] <= base->shape[0] &&
                t->row0 <= base->shape[0] - t->shape[0] && t->dtype == base->dtype &&
                t->ndim == base->ndim && t->kind == base->kind && t->which == base->which;
    for (int i = 1; i < t->ndim; i++) fits = fits && t->shape[i] == base->shape[i];
    if (!fits)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s does not lie inside its base %%%u %s", id,
                       t->name, t->base, base->name);
    return DH_OK;
}

static dh_status check_tensor(dh_ctx *ctx, const dh_graph *g, uint32_t id)
{
    const dh_tensor *t = &g->tensors.at[id];
    DH_TRY(check_name(ctx, t, id));
    if (t->ndim < 1 || t->ndim > 3)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s has %d axes; 1 to 3 are allowed", id,
                       t->name, t->ndim);
    if ((unsigned)t->dtype >= DH_N_DTYPE || (unsigned)t->kind >= DH_N_TENSOR_KIND)
        return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s has no valid type", id, t->name);
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] <= 0 || __builtin_mul_overflow(n, t->shape[i], &n) || n > (int64_t)1 << 48)
            return dh_fail(ctx, DH_EINVAL, "tensor %%%u %s: axis %d has size %lld", id, t->name, i,
                           (long long)t->shape[i]);
    DH_TRY(check_which(ctx, g, id));
    return check_view(ctx, g, id);
}

static dh_status check_operand(dh_ctx *ctx, const dh_graph *g, uint32_t op_id, uint32_t tensor,
                               const dh_operand_info *info)
{
    const char *name = dh_op_info_of(g->ops.at[op_id].type)->name;
    if (tensor == DH_NONE)
        return info->optional
                   ? DH_OK
                   : dh_fail(ctx, DH_EINVAL, "op %u %s lacks operand %s", op_id, name, info->name);
    if (tensor >= g->tensors.n)
        return dh_fail(ctx, DH_EINVAL, "op %u %s: operand %s is %%%u, but there are %zu tensors",
                       op_id, name, info->name, tensor, g->tensors.n);
    return DH_OK;
}

/* rows_written counts the rows of each tensor with storage that operators wrote so
 * far. Views are written piece by piece: their sum is checked here, and which bytes
 * they are by the program's verifier. */
static dh_status check_read(dh_ctx *ctx, const dh_graph *g, uint32_t op_id, uint32_t tensor,
                            const int64_t *rows_written)
{
    uint32_t s = dh_graph_storage(g, tensor);
    const dh_tensor *t = &g->tensors.at[tensor];
    if (t->kind != DH_TENSOR_ACT || rows_written[s] >= t->shape[0]) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "op %u %s reads %%%u %s before any operator wrote %s", op_id,
                   dh_op_info_of(g->ops.at[op_id].type)->name, tensor, t->name,
                   rows_written[s] ? "all of it" : "it");
}

static dh_status check_write(dh_ctx *ctx, const dh_graph *g, uint32_t op_id, uint32_t tensor,
                             int64_t *rows_written)
{
    uint32_t s = dh_graph_storage(g, tensor);
    const dh_tensor *t = &g->tensors.at[tensor];
    if (t->kind == DH_TENSOR_ACT && rows_written[s] > g->tensors.at[s].shape[0] - t->shape[0])
        return dh_fail(ctx, DH_EINVAL, "op %u %s writes %%%u %s, which is written already", op_id,
                       dh_op_info_of(g->ops.at[op_id].type)->name, tensor, t->name);
    if (t->kind == DH_TENSOR_ACT) rows_written[s] += t->shape[0];
    return DH_OK;
}

static dh_status check_attributes(dh_ctx *ctx, uint32_t op_id, const dh_op *op)
{
    const dh_op_info *info = dh_op_info_of(op->type);
    for (dh_op_attr a = 0; a < DH_N_OP_ATTR; a++) {
        const int64_t value = dh_op_attr_get(op, a), unset = dh_op_attr_unset(a);
        if (value == unset) continue;
        if (!(info->attrs >> a & 1))
            return dh_fail(ctx, DH_EINVAL, "op %u %s has a %s, which is no attribute of its type",
                           op_id, info->name, dh_op_attr_name(a));
        if (value < 0 || value >= dh_op_attr_end(a))
            return dh_fail(ctx, DH_EINVAL, "op %u %s has no valid %s: %lld is not below %lld",
                           op_id, info->name, dh_op_attr_name(a), (long long)value,
                           (long long)dh_op_attr_end(a));
    }
    return DH_OK;
}

static dh_status check_parts(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    const dh_op *op = &g->ops.at[op_id];
    if (op->part0 > 0 && op->part0 >= op->parts)
        return dh_fail(ctx, DH_EINVAL, "op %u %s begins with part %d of %d", op_id,
                       dh_op_info_of(op->type)->name, op->part0, op->parts);
    if (op->parts < 2 || op->out[0] == DH_NONE) return DH_OK;
    const dh_tensor *out = &g->tensors.at[op->out[0]];
    if (out->shape[0] % op->parts == 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "op %u %s: the %lld rows of %s are not %d equal parts", op_id,
                   dh_op_info_of(op->type)->name, (long long)out->shape[0], out->name, op->parts);
}

/* Rows of an attention operator are those of its statistics, whole samples. */
static dh_status check_attention(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    const dh_op *op = &g->ops.at[op_id];
    static const struct {
        dh_op_type type;
        int rows, lse, pos; /* inputs, outputs from DH_MAX_OPERANDS on */
        bool ring;          /* of whole sequences of the rank */
    } kinds[] = {{DH_OP_ATTN, 0, DH_MAX_OPERANDS + 1, 1, false},
                 {DH_OP_ATTN_GRAD, 1, 3, 4, false},
                 {DH_OP_RING_ATTN, 0, DH_MAX_OPERANDS + 1, 4, true},
                 {DH_OP_RING_ATTN_GRAD, 1, 3, 6, true}};
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++) {
        if (op->type != kinds[i].type) continue;
        const uint32_t lse_id = kinds[i].lse < DH_MAX_OPERANDS
                                    ? op->in[kinds[i].lse]
                                    : op->out[kinds[i].lse - DH_MAX_OPERANDS];
        const dh_tensor *rows = &g->tensors.at[op->in[kinds[i].rows]];
        const dh_tensor *lse = &g->tensors.at[lse_id];
        const bool fits = lse->ndim == 3 && rows->ndim == 2 && g->dims.head_dim > 0 &&
                          rows->shape[0] % lse->shape[2] == 0 &&
                          rows->shape[0] / lse->shape[2] == lse->shape[0];
        if (!fits || (kinds[i].ring && lse->shape[2] != g->dims.seq))
            return dh_fail(ctx, DH_EINVAL, "op %u %s: %s has not the rows of the samples in %s",
                           op_id, dh_op_info_of(op->type)->name, rows->name, lse->name);
        if (op->in[kinds[i].pos] == DH_NONE) continue;
        const dh_tensor *pos = &g->tensors.at[op->in[kinds[i].pos]];
        if (pos->dtype == DH_I32 && pos->ndim == 1 && pos->shape[0] == rows->shape[0]) continue;
        return dh_fail(ctx, DH_EINVAL, "op %u %s: %s is no position for each row of %s", op_id,
                       dh_op_info_of(op->type)->name, pos->name, rows->name);
    }
    return DH_OK;
}

/* Parts side by side have the rows of the whole, and all of its columns. */
static dh_status check_columns(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    const dh_op *op = &g->ops.at[op_id];
    const bool joins = op->type == DH_OP_JOIN_COLUMNS;
    if (!joins && op->type != DH_OP_SPLIT_COLUMNS) return DH_OK;
    const uint32_t *parts = joins ? op->in : op->out;
    const dh_tensor *whole = &g->tensors.at[joins ? op->out[0] : op->in[0]];
    bool fits = whole->ndim == 2;
    int64_t n_columns = 0;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (parts[k] == DH_NONE) continue;
        const dh_tensor *part = &g->tensors.at[parts[k]];
        fits = fits && part->ndim == 2 && part->dtype == whole->dtype &&
               part->shape[0] == whole->shape[0];
        n_columns += part->shape[1];
    }
    if (fits && n_columns == whole->shape[1]) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "op %u %s: its parts are not the columns of %s", op_id,
                   dh_op_info_of(op->type)->name, whole->name);
}

/* Columns that are moved lie inside both, whose rows are as many; the side that is not a matrix
 * holds nothing else. */
static dh_status check_moved(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    const dh_op *op = &g->ops.at[op_id];
    const bool takes = op->type == DH_OP_TAKE_COLUMNS;
    if (!takes && op->type != DH_OP_PUT_COLUMNS) return DH_OK;
    const dh_tensor *x = &g->tensors.at[op->in[0]], *y = &g->tensors.at[op->out[0]];
    const int64_t n_rows = (takes ? x : y)->shape[0];
    const int64_t in_x = dh_tensor_elements(x) / n_rows, in_y = dh_tensor_elements(y) / n_rows;
    const bool whole_rows =
        dh_tensor_elements(x) % n_rows == 0 && dh_tensor_elements(y) % n_rows == 0;
    const bool exact = takes ? in_y == op->columns : x->ndim > 1 || in_x == op->columns;
    const bool adds = op->adds == 0 || x->dtype == DH_F32;
    if (whole_rows && exact && adds && x->dtype == y->dtype && op->columns > 0 &&
        op->columns <= in_x && op->from <= in_x - op->columns && op->columns <= in_y &&
        op->to <= in_y - op->columns)
        return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "op %u %s: its columns do not lie inside %s and %s", op_id,
                   dh_op_info_of(op->type)->name, x->name, y->name);
}

/* An adapter's output lies inside the columns of the tensor to which it is added. */
static dh_status check_adapted(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    const dh_op *op = &g->ops.at[op_id];
    const bool adds = op->type == DH_OP_ADAPT;
    if (!adds && op->type != DH_OP_ADAPT_GRAD) return DH_OK;
    const dh_tensor *part = &g->tensors.at[adds ? op->in[0] : op->out[0]];
    const dh_tensor *whole = &g->tensors.at[adds ? op->in[1] : op->in[0]];
    const int64_t first = adds ? op->to : op->from;
    if (part->ndim == 2 && whole->ndim == 2 && part->shape[0] == whole->shape[0] &&
        part->dtype == whole->dtype && part->shape[1] <= whole->shape[1] &&
        first <= whole->shape[1] - part->shape[1])
        return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "op %u %s: the columns of %s do not lie inside %s", op_id,
                   dh_op_info_of(op->type)->name, part->name, whole->name);
}

/* Shares of as many rows each; own is one. */
static dh_status check_shares(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    enum { BEFORE, OWN, BEHIND };
    const dh_op *op = &g->ops.at[op_id];
    if (op->type != DH_OP_SUM_SHARES) return DH_OK;
    const dh_tensor *y = &g->tensors.at[op->out[0]];
    const int64_t each = dh_tensor_elements(y);
    int64_t n_shares = 0;
    bool fits = true;
    for (int k = BEFORE; k <= BEHIND; k++) {
        if (op->in[k] == DH_NONE) continue;
        const dh_tensor *x = &g->tensors.at[op->in[k]];
        const int64_t n = dh_tensor_elements(x);
        fits = fits && x->dtype == y->dtype && n % each == 0 && (k != OWN || n == each);
        n_shares += n / each;
    }
    if (fits && n_shares <= DH_MAX_PARTS) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "op %u %s: its operands are not %s's size, or whole shares of it", op_id,
                   dh_op_info_of(op->type)->name, y->name);
}

/* The packed rows of an operator of linear attention, as kernels and costs know them. */
static dh_status check_linear(dh_ctx *ctx, const dh_graph *g, uint32_t op_id)
{
    static const int packed_in[DH_N_OP_TYPE] = {
        /* 1 + the input */
        [DH_OP_FEATURE_MAP] = 1,      [DH_OP_LINEAR_ATTN] = 1,       [DH_OP_LINEAR_CACHED] = 1,
        [DH_OP_LINEAR_STATE] = 1,     [DH_OP_LINEAR_JOIN] = 2,       [DH_OP_FEATURE_MAP_GRAD] = 2,
        [DH_OP_LINEAR_ATTN_GRAD] = 2, [DH_OP_LINEAR_STATE_GRAD] = 2, [DH_OP_LINEAR_JOIN_GRAD] = 3};
    const dh_op *op = &g->ops.at[op_id];
    const dh_dims *d = &g->dims;
    if (packed_in[op->type] == 0) return DH_OK;
    const dh_tensor *t = &g->tensors.at[op->in[packed_in[op->type] - 1]];
    const int64_t seq = g->mode == DH_MODE_DECODE ? 1 : d->seq;
    if (t->ndim == 2 && d->head_dim > 0 && d->n_heads > 0 && d->n_kv_heads > 0 && seq > 0 &&
        t->shape[0] % seq == 0 && seq % dh_cp_chunks(d) == 0 &&
        t->shape[1] == (d->n_heads + 2 * d->n_kv_heads) * d->head_dim)
        return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "op %u %s: %s is not whole samples of packed heads as dims have them", op_id,
                   dh_op_info_of(op->type)->name, t->name);
}

static dh_status check_op(dh_ctx *ctx, const dh_graph *g, uint32_t op_id, int64_t *rows_written)
{
    const dh_op *op = &g->ops.at[op_id];
    if ((unsigned)op->type >= DH_N_OP_TYPE || (unsigned)op->phase >= DH_N_PHASE)
        return dh_fail(ctx, DH_EINVAL, "op %u has no valid type or phase", op_id);
    const dh_op_info *info = dh_op_info_of(op->type);
    DH_TRY(check_attributes(ctx, op_id, op));
    if (op->step < 0 || (op->step > 0 && op->step >= g->dims.cp))
        return dh_fail(ctx, DH_EINVAL, "op %u %s has step %d of %lld", op_id, info->name, op->step,
                       (long long)g->dims.cp);
    for (int i = 0; i < info->n_in; i++) {
        DH_TRY(check_operand(ctx, g, op_id, op->in[i], &info->in[i]));
        if (op->in[i] != DH_NONE) DH_TRY(check_read(ctx, g, op_id, op->in[i], rows_written));
    }
    for (int i = 0; i < info->n_out; i++) {
        DH_TRY(check_operand(ctx, g, op_id, op->out[i], &info->out[i]));
        if (op->out[i] != DH_NONE && op->type != DH_OP_RELEASE)
            DH_TRY(check_write(ctx, g, op_id, op->out[i], rows_written));
    }
    DH_TRY(check_parts(ctx, g, op_id));
    DH_TRY(check_columns(ctx, g, op_id));
    DH_TRY(check_moved(ctx, g, op_id));
    DH_TRY(check_adapted(ctx, g, op_id));
    DH_TRY(check_shares(ctx, g, op_id));
    DH_TRY(check_linear(ctx, g, op_id));
    return check_attention(ctx, g, op_id);
}

static dh_status check_ops(dh_ctx *ctx, const dh_graph *g, uint32_t *fault)
{
    int64_t *rows_written = calloc(g->tensors.n + 1, sizeof *rows_written);
    if (!rows_written) return dh_no_memory(ctx);
    const uint32_t entering[] = {g->x_in, g->dx_out};
    for (size_t i = 0; i < DH_COUNTOF(entering); i++)
        if (entering[i] != DH_NONE)
            rows_written[dh_graph_storage(g, entering[i])] += g->tensors.at[entering[i]].shape[0];
    dh_status st = DH_OK;
    for (uint32_t i = 0; st == DH_OK && i < g->ops.n; i++) {
        st = check_op(ctx, g, i, rows_written);
        if (st != DH_OK) *fault = i;
    }
    free(rows_written);
    return st;
}

dh_status dh_graph_check_at(dh_ctx *ctx, const dh_graph *graph, dh_graph_fault *fault)
{
    *fault = (dh_graph_fault){DH_NONE, DH_NONE};
    if ((unsigned)graph->kind >= DH_N_BLOCK_KIND || (unsigned)graph->mode > DH_MODE_DECODE ||
        (unsigned)graph->dtype >= DH_N_DTYPE)
        return dh_fail(ctx, DH_EINVAL, "the graph has no valid kind, mode or type");
    if (graph->dims.cp_rank < 0 || graph->dims.cp_rank >= DH_MAX(graph->dims.cp, 1))
        return dh_fail(ctx, DH_EINVAL, "the graph is for cp rank %lld of %lld",
                       (long long)graph->dims.cp_rank, (long long)graph->dims.cp);
    for (uint32_t i = 0; i < graph->tensors.n; i++) {
        dh_status st = check_tensor(ctx, graph, i);
        if (st == DH_OK) continue;
        fault->tensor = i;
        return st;
    }
    const uint32_t ends[] = {graph->x_in,  graph->x_out,  graph->dx_out,
                             graph->dx_in, graph->loss_x, graph->loss_dx};
    for (size_t i = 0; i < DH_COUNTOF(ends); i++)
        if (ends[i] != DH_NONE && ends[i] >= graph->tensors.n)
            return dh_fail(ctx, DH_EINVAL, "block end %%%u is not a tensor", ends[i]);
    return check_ops(ctx, graph, &fault->op);
}

dh_status dh_graph_check(dh_ctx *ctx, const dh_graph *graph)
{
    dh_graph_fault fault;
    return dh_graph_check_at(ctx, graph, &fault);
}

/* ---- equality: what the text form carries --------------------------------------------- */

static bool tensors_equal(const dh_tensor *a, const dh_tensor *b)
{
    if (strcmp(a->name, b->name) != 0 || a->kind != b->kind || a->dtype != b->dtype ||
        a->ndim != b->ndim || a->base != b->base || a->row0 != b->row0 || a->which != b->which)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || a->axis[i] != b->axis[i]) return false;
    return true;
}

static bool factors_equal(const dh_rope_factors *a, const dh_rope_factors *b)
{
    return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n * sizeof *a->at) == 0;
}

static bool dims_equal(const dh_dims *a, const dh_dims *b)
{
    for (size_t i = 0; i < DH_N_DIMS_FIELD; i++) {
        const dh_dims_field *f = &dh_dims_fields[i];
        const void *x = (const char *)a + f->offset, *y = (const char *)b + f->offset;
        bool equal = false;
        switch (f->type) {
        case DH_FIELD_I64:
            equal = *(const int64_t *)x == *(const int64_t *)y;
            break;
        case DH_FIELD_F64:
            equal = *(const double *)x == *(const double *)y;
            break;
        case DH_FIELD_NAME:
        case DH_FIELD_MAY_NAME:
            equal = *(const unsigned *)x == *(const unsigned *)y;
            break;
        case DH_FIELD_FACTORS:
            equal = factors_equal(x, y);
            break;
        }
        if (!equal) return false;
    }
    return true;
}

static bool attributes_equal(const dh_op *a, const dh_op *b)
{
    for (dh_op_attr k = 0; k < DH_N_OP_ATTR; k++)
        if (dh_op_attr_get(a, k) != dh_op_attr_get(b, k)) return false;
    return true;
}

bool dh_graph_equal(const dh_graph *a, const dh_graph *b)
{
    if (a->kind != b->kind || a->mode != b->mode || a->dtype != b->dtype ||
        a->tensors.n != b->tensors.n || a->ops.n != b->ops.n || a->x_in != b->x_in ||
        a->x_out != b->x_out || a->dx_out != b->dx_out || a->dx_in != b->dx_in ||
        a->loss_x != b->loss_x || a->loss_dx != b->loss_dx || !dims_equal(&a->dims, &b->dims))
        return false;
    for (size_t i = 0; i < a->tensors.n; i++)
        if (!tensors_equal(&a->tensors.at[i], &b->tensors.at[i])) return false;
    for (size_t i = 0; i < a->ops.n; i++) {
        const dh_op *x = &a->ops.at[i], *y = &b->ops.at[i];
        if (x->type != y->type || x->phase != y->phase || !attributes_equal(x, y) ||
            memcmp(x->in, y->in, sizeof x->in) != 0 || memcmp(x->out, y->out, sizeof x->out) != 0)
            return false;
    }
    return true;
}
