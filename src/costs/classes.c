/* Which operators take the same time: a canonical text of all that it depends on. */
#include "base/c_locale.h"
#include "costs/profile.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct writer {
    char *text;
    size_t n, cap;
} writer;

static void put(writer *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = dh_vsnprintf(w->text + w->n, w->cap - w->n, fmt, args);
    va_end(args);
    w->n = DH_MIN(w->n + (size_t)n, w->cap - 1);
}

static bool is_parameter(const dh_tensor *t)
{
    return t->kind == DH_TENSOR_PARAM || t->kind == DH_TENSOR_GRAD;
}

static void put_operand(writer *w, const dh_graph *g, const dh_operand_info *info, uint32_t id)
{
    if (id == DH_NONE) return;
    const dh_tensor *t = &g->tensors.at[id];
    if (info->optional && is_parameter(t)) return;
    put(w, " %s=%s[", info->name, dh_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++) put(w, "%s%" PRId64, i ? "," : "", t->shape[i]);
    put(w, "]");
}

/* How far the group reaches. */
static void put_group(writer *w, const dh_cost_op *op)
{
    const dh_group_kind group = (dh_group_kind)op->op->group;
    const dh_group_span span = dh_mesh_group_span(op->mesh, group, op->rank);
    /* All links of the pipeline are alike. */
    const dh_group_kind named = dh_group_is_link(group) ? DH_GROUP_PP : group;
    put(w, "; %s of %" PRId64 ", ", dh_group_name(named), dh_mesh_group_size(op->mesh, group));
    if (span.n_nodes == 1)
        put(w, "local");
    else
        put(w, "on %" PRId64 " nodes", span.n_nodes);
    /* How many messages leave a node at once. */
    if (op->op->by > 0 && span.n_nodes > 1) put(w, " by %d", op->op->by);
    if (op->op->blocks > 1) put(w, " in %d blocks", op->op->blocks);
    if (op->op->wire != DH_F32) put(w, " as %s", dh_dtype_name((dh_dtype)op->op->wire));
}

/* Attention and rotations know sizes that no shape shows. A part of a ring but the causal
 * one has half of the keys or half of the queries, which is the same work. */
static void put_dims(writer *w, const dh_graph *g, const dh_op *op)
{
    static const char *const norms[] = {[DH_NORM_LAYER] = "layernorm", [DH_NORM_RMS] = "rmsnorm"};
    static const char *const acts[] = {
        [DH_ACT_GELU_TANH] = "gelu", [DH_ACT_SWIGLU] = "swiglu", [DH_ACT_GEGLU] = "geglu"};
    const dh_dims *d = &g->dims;
    dh_fp8_format formats[2];
    const bool ring = op->type == DH_OP_RING_ATTN || op->type == DH_OP_RING_ATTN_GRAD;
    if (d->batch == 0) return;
    put(w, "; B=%" PRId64 " T=%" PRId64 " H=%" PRId64 " K=%" PRId64 " D=%" PRId64 " %s %s",
        d->batch, d->seq, d->n_heads, d->n_kv_heads, d->head_dim, norms[d->norm], acts[d->act]);
    if (d->top_k) put(w, " top=%" PRId64, d->top_k);
    if (op->type == DH_OP_MOE_ORDER || op->type == DH_OP_MOE_NODE_ORDER)
        put(w, " capacity=%" PRId64, op->capacity);
    if (d->dropout > 0 && op->site >= 0) put(w, " dropout");
    if (dh_op_fp8(g, op, formats)) put(w, " fp8");
    if (ring) put(w, op->step == 0 ? " causal" : " half");
    if (op->type == DH_OP_LINEAR_ATTN || op->type == DH_OP_LINEAR_ATTN_GRAD)
        put(w, "%s", dh_cp_chunks(d) > 1 ? " zigzag" : "");
    if (d->window && dh_op_attends(op->type))
        put(w, " window=%" PRId64 " of %.0f operations", d->window, dh_op_flops(g, op));
    if (d->attn_softcap > 0 && dh_op_attends(op->type)) put(w, " capped");
}

const char *dh_op_class_key(const dh_cost_op *op, char key[DH_OP_KEY_BYTES])
{
    const dh_op_info *info = dh_op_info_of(op->op->type);
    const bool transfer = op->op->type == DH_OP_SEND || op->op->type == DH_OP_RECV;
    writer w = {.text = key, .cap = DH_OP_KEY_BYTES};
    put(&w, "%s", transfer ? "transfer" : info->name);
    for (int i = 0; i < info->n_in; i++) put_operand(&w, op->graph, &info->in[i], op->op->in[i]);
    for (int i = 0; i < info->n_out; i++) put_operand(&w, op->graph, &info->out[i], op->op->out[i]);
    if (dh_op_n_parts(op->op) > 1) put(&w, " in %u parts", dh_op_n_parts(op->op));
    if (info->resource == DH_RES_COMM)
        put_group(&w, op);
    else
        put_dims(&w, op->graph, op->op);
    return key;
}

const char *dh_op_label(const dh_graph *graph, const dh_op *op, char label[DH_OP_LABEL_BYTES])
{
    const uint32_t made = op->out[0] != DH_NONE ? op->out[0] : op->in[0];
    snprintf(label, DH_OP_LABEL_BYTES, "%s%s%s", dh_op_info_of(op->type)->name,
             made == DH_NONE ? "" : " ", made == DH_NONE ? "" : graph->tensors.at[made].name);
    return label;
}
