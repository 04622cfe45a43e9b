/* Reverse-mode differentiation of a block: one rule per operator type.
 *
 * Walking the forward operators backwards, a rule turns the gradient of an operator's output into
 * more operators. They give the gradients of its inputs (phase B) and of its parameters (phase W).
 * A tensor used twice, as the residual stream is, collects its contributions: norm_dgrad takes the
 * earlier one as an addend, anything else gets an explicit add. Tensors may be made and used in
 * parts (grad_tape.c). Operators whose output has no gradient (the head's logits, differentiated
 * by its builder) are passed over. */
#include "grad.h"

#include <stdio.h>

#include "graph/pass.h"

/* ---- helpers --------------------------------------------------------------------------- */

static uint32_t whole_param_grad(tape *t, uint32_t param)
{
    dh_tensor tensor = t->graph->tensors.at[param];
    uint32_t *grad = &t->param_grads[tensor.which];
    if (*grad != DH_NONE) return *grad;
    tensor.kind = DH_TENSOR_GRAD;
    tensor.dtype = DH_F32;
    snprintf(tensor.name, sizeof tensor.name, "d.%.20s", t->graph->tensors.at[param].name);
    return *grad = tape_add(t, &tensor);
}

/* Of some rows of a parameter, those rows of its gradient. */
static uint32_t param_grad(tape *t, uint32_t param)
{
    if (param == DH_NONE || t->failed) return DH_NONE;
    const dh_tensor p = t->graph->tensors.at[param];
    /* A weight that is no parameter has no gradient; the check then misses the operand. */
    if (p.kind != DH_TENSOR_PARAM || p.which >= DH_MAX_BLOCK_PARAMS) return DH_NONE;
    if (p.base == DH_NONE) return whole_param_grad(t, param);
    if (t->grads[param] == DH_NONE)
        t->grads[param] = tape_rows(t, whole_param_grad(t, p.base), param);
    return t->grads[param];
}

/* Whether a parameter, of which some rows may be meant, has a gradient. */
static bool trains(const tape *t, uint32_t param)
{
    if (param == DH_NONE || t->failed) return false;
    const dh_tensor *p = &t->graph->tensors.at[param];
    return p->kind != DH_TENSOR_PARAM || dh_graph_trains(t->graph, p->which);
}

/* A linear's input that a collective gathered is gathered again for the weight
 * gradient, so that only the rank's rows are kept (Korthikanti et al. 2022, 4.2.2). */
static uint32_t input_for_wgrad(tape *t, uint32_t x)
{
    for (size_t i = 0; i < t->graph->ops.n; i++) {
        const dh_op op = t->graph->ops.at[i];
        if (op.type != DH_OP_ALL_GATHER || op.phase != DH_PHASE_F || op.out[0] != x) continue;
        dh_tensor again = t->graph->tensors.at[x];
        uint32_t id = tape_add(t, &again);
        tape_emit_comm(t, DH_OP_ALL_GATHER, DH_PHASE_W, op.group, op.in[0], id);
        return id;
    }
    return x;
}

/* The gradient of an operator's input 0, of which `dx` is all, or this rank's part. */
static uint32_t summed(tape *t, const dh_op *op, uint32_t dx)
{
    if (op->group < 0) return dx;
    const uint32_t sum = tape_like(t, op->in[0]);
    tape_emit_comm(t, DH_OP_ALL_REDUCE, DH_PHASE_B, op->group, dx, sum);
    return sum;
}

/* ---- rules: op is a copy, since emitting may move the operator array --------------------- */

static void grad_linear(tape *t, const dh_op op)
{
    uint32_t x = op.in[0], w = op.in[1], dy = t->grads[op.out[0]];
    uint32_t dx = tape_like(t, x);
    tape_emit(t, DH_OP_LINEAR_DGRAD, DH_PHASE_B, -1, IDS(dy, w), IDS(dx));
    tape_contribute(t, x, summed(t, &op, dx));
    if (trains(t, w))
        tape_emit(t, DH_OP_LINEAR_WGRAD, DH_PHASE_W, -1, IDS(dy, input_for_wgrad(t, x)),
                  IDS(param_grad(t, w)));
    if (trains(t, op.in[2]))
        tape_emit(t, DH_OP_BIAS_GRAD, DH_PHASE_W, -1, IDS(dy), IDS(param_grad(t, op.in[2])));
}

static void grad_norm(tape *t, const dh_op op)
{
    uint32_t x = op.in[0], w = op.in[1], stats = op.out[1], dy = t->grads[op.out[0]];
    uint32_t dx = tape_like(t, x);
    tape_emit(t, DH_OP_NORM_DGRAD, DH_PHASE_B, -1, IDS(dy, x, w, stats, t->grads[x]), IDS(dx));
    t->grads[x] = dx;
    if (trains(t, w))
        tape_emit(t, DH_OP_NORM_WGRAD, DH_PHASE_W, -1, IDS(dy, x, stats),
                  IDS(param_grad(t, w), param_grad(t, op.in[2])));
}

static void grad_head_norm(tape *t, const dh_op op)
{
    uint32_t x = op.in[0], stats = op.out[1], dy = t->grads[op.out[0]], dx = tape_like(t, x);
    tape_emit(t, DH_OP_HEAD_NORM_DGRAD, DH_PHASE_B, -1, IDS(dy, x, op.in[1], op.in[2], stats),
              IDS(dx));
    tape_contribute(t, x, dx);
    if (!trains(t, op.in[1])) return;
    tape_emit(t, DH_OP_HEAD_NORM_WGRAD, DH_PHASE_W, -1, IDS(dy, x, stats),
              IDS(param_grad(t, op.in[1]), param_grad(t, op.in[2])));
}

/* The rank has its own heads. The dots of all heads are summed over the ranks that have the
 * others. */
static void grad_qk_norm(tape *t, const dh_op op)
{
    const uint32_t sums = op.in[0], x = op.in[1], w_q = op.in[2], w_k = op.in[3];
    const uint32_t dy = t->grads[op.out[0]], dots = tape_like(t, sums), dx = tape_like(t, x);
    tape_emit(t, DH_OP_QK_NORM_DOTS, DH_PHASE_B, -1, IDS(dy, x, w_q, w_k), IDS(dots));
    tape_emit(t, DH_OP_QK_NORM_DGRAD, DH_PHASE_B, -1,
              IDS(dy, x, sums, w_q, w_k, summed(t, &op, dots)), IDS(dx));
    tape_contribute(t, x, dx);
    if (!trains(t, w_q)) return;
    tape_emit(t, DH_OP_QK_NORM_WGRAD, DH_PHASE_W, -1, IDS(dy, x, sums),
              IDS(param_grad(t, w_q), param_grad(t, w_k)));
}

static void grad_scale(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_SCALE, DH_PHASE_B, -1, IDS(t->grads[op.out[0]]), IDS(dx));
    tape_contribute(t, op.in[0], dx);
}

/* Gradients of the adapter's output, and of the tensor to which it was added. */
static void grad_adapt(tape *t, const dh_op op)
{
    const uint32_t dy = t->grads[op.out[0]], dpart = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_ADAPT_GRAD, DH_PHASE_B, -1, IDS(dy), IDS(dpart));
    if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].from = op.to;
    tape_contribute(t, op.in[0], dpart);
    tape_contribute(t, op.in[1], dy);
}

static void grad_rope(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_ROPE_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[1]), IDS(dx));
    tape_contribute(t, op.in[0], dx);
}

static void grad_latent_pack(tape *t, const dh_op op)
{
    const uint32_t dq = tape_like(t, op.in[0]), dkv = tape_like(t, op.in[1]);
    const uint32_t dk_rot = tape_like(t, op.in[2]);
    tape_emit(t, DH_OP_LATENT_PACK_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[3]),
              IDS(dq, dkv, dk_rot));
    tape_contribute(t, op.in[0], dq);
    tape_contribute(t, op.in[1], dkv);
    tape_contribute(t, op.in[2], dk_rot);
}

static void grad_latent_cut(tape *t, const dh_op op)
{
    const uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_LATENT_CUT_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]]), IDS(dx));
    tape_contribute(t, op.in[0], dx);
}

static void grad_add(tape *t, const dh_op op)
{
    tape_contribute(t, op.in[0], t->grads[op.out[0]]);
    tape_contribute(t, op.in[1], t->grads[op.out[0]]);
}

static void grad_attn(tape *t, const dh_op op)
{
    uint32_t dqkv = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_ATTN_GRAD, DH_PHASE_B, -1,
              IDS(t->grads[op.out[0]], op.in[0], op.out[0], op.out[1], op.in[1]), IDS(dqkv));
    tape_contribute(t, op.in[0], dqkv);
}

static uint32_t ring_exchange(tape *t, uint32_t x, const char *name, int32_t step)
{
    if (t->failed) return DH_NONE;
    uint32_t y = tape_step(t, x, name, step, t->graph->tensors.at[x].dtype);
    tape_emit_comm(t, DH_OP_RING_EXCHANGE, DH_PHASE_B, DH_GROUP_CP, x, y);
    return y;
}

static uint32_t add_to_share(tape *t, uint32_t like, int32_t step, uint32_t share, uint32_t arrived)
{
    if (t->failed) return DH_NONE;
    const dh_dtype type = t->graph->tensors.at[share].dtype;
    const uint32_t sum = tape_step(t, like, "dkv.sum", step, type);
    tape_emit(t, DH_OP_ADD, DH_PHASE_B, -1, IDS(share, arrived), IDS(sum));
    return sum;
}

/* The ring again, all of it, from the forward's last part: only that one's output has a
 * gradient. In addition to keys and values the sum of their gradients travels, in the graph's type
 * or, with dims.float_kv_grads, in float32. It begins at the first rank that the keys come to and
 * is home after cp - 1 exchanges, where the rank's own share is added. A rank adds its share to
 * the sum after having computed it: the sum arrives meanwhile. Own keys and values are packed
 * again rather than kept. Source: Megatron-LM's context parallelism (Transformer Engine's ring
 * exchange by send and receive). */
static void grad_ring_attn(tape *t, const dh_op op)
{
    const uint32_t qkv = op.in[0], o = op.out[0], lse = op.out[1], dout = t->grads[o];
    const int32_t last = op.step;
    const dh_dtype type = t->graph->dims.float_kv_grads ? DH_F32 : t->graph->dtype;
    uint32_t dq = DH_NONE, sum = DH_NONE, next = DH_NONE, own_share = DH_NONE;
    uint32_t kv = tape_step(t, op.in[1], "kv.b", 0, t->graph->dtype);
    tape_emit(t, DH_OP_KV_PACK, DH_PHASE_B, -1, IDS(qkv), IDS(kv));
    for (int32_t s = 0; s <= last && !t->failed; s++, kv = next) {
        uint32_t arrived = s > 1 ? ring_exchange(t, sum, "dkv.in", s) : DH_NONE;
        if (s < last) next = ring_exchange(t, kv, "kv.b", s + 1);
        uint32_t dq_before = dq, own = tape_step(t, kv, "dkv", s, type);
        dq = tape_step(t, o, "dq", s, DH_F32);
        tape_emit(t, DH_OP_RING_ATTN_GRAD, DH_PHASE_B, -1,
                  IDS(dout, qkv, o, lse, kv, dq_before, op.in[4]), IDS(dq, own));
        if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].step = s;
        if (s == 0) own_share = own;
        sum = arrived == DH_NONE ? own : add_to_share(t, kv, s, own, arrived);
    }
    const uint32_t home = ring_exchange(t, sum, "dkv.in", last + 1), dqkv = tape_like(t, qkv);
    const uint32_t all = add_to_share(t, home, last + 1, own_share, home);
    tape_emit(t, DH_OP_QKV_JOIN, DH_PHASE_B, -1, IDS(dq, all), IDS(dqkv));
    tape_contribute(t, qkv, dqkv);
}

static void grad_residual(tape *t, const dh_op op)
{
    uint32_t x = op.in[0], p = op.in[1], dy = t->grads[op.out[0]], dp = dy;
    if (t->graph->dims.dropout > 0) {
        dp = tape_like(t, p);
        tape_emit(t, DH_OP_DROPOUT_GRAD, DH_PHASE_B, op.site, IDS(dy, op.in[3], op.in[4]), IDS(dp));
    }
    if (trains(t, op.in[2]))
        tape_emit(t, DH_OP_BIAS_GRAD, DH_PHASE_W, -1, IDS(dp), IDS(param_grad(t, op.in[2])));
    tape_contribute(t, p, dp);
    tape_contribute(t, x, dy);
}

static void grad_act(tape *t, const dh_op op)
{
    uint32_t dh = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_ACT_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[0]), IDS(dh));
    tape_contribute(t, op.in[0], dh);
}

/* Columns side by side get each its part of the gradient; parts, theirs side by side. */
static void grad_join_columns(tape *t, const dh_op op)
{
    uint32_t parts[DH_MAX_OPERANDS];
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        parts[k] = op.in[k] == DH_NONE ? DH_NONE : tape_like(t, op.in[k]);
    tape_emit(t, DH_OP_SPLIT_COLUMNS, DH_PHASE_B, -1, IDS(t->grads[op.out[0]]), parts);
    for (int k = 0; k < DH_MAX_OPERANDS && !t->failed; k++)
        if (op.in[k] != DH_NONE) tape_contribute(t, op.in[k], parts[k]);
}

static void grad_split_columns(tape *t, const dh_op op)
{
    uint32_t parts[DH_MAX_OPERANDS], dx = tape_like(t, op.in[0]);
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        parts[k] = op.out[k] == DH_NONE ? DH_NONE : t->grads[op.out[k]];
    tape_emit(t, DH_OP_JOIN_COLUMNS, DH_PHASE_B, -1, parts, IDS(dx));
    tape_contribute(t, op.in[0], dx);
}

static uint32_t state_tensor(const tape *t, dh_state which)
{
    for (uint32_t i = 0; i < t->graph->tensors.n; i++) {
        const dh_tensor *tensor = &t->graph->tensors.at[i];
        if (tensor->kind == DH_TENSOR_STATE && tensor->which == (uint32_t)which) return i;
    }
    return DH_NONE;
}

/* The operator last emitted knows of as many rows. */
static void keep_rows(tape *t, const dh_op *op)
{
    if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].rows = op->rows;
}

/* The gradient comes by the weights alone: which experts are chosen has none. */
static void grad_router(tape *t, const dh_op op)
{
    uint32_t dlogits = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_ROUTER_GRAD, DH_PHASE_B, -1,
              IDS(t->grads[op.out[0]], op.out[1], op.out[2], op.out[0],
                  state_tensor(t, DH_STATE_ROUTER),
                  t->graph->dims.sparsemixer ? op.in[0] : DH_NONE),
              IDS(dlogits));
    keep_rows(t, &op);
    tape_contribute(t, op.in[0], summed(t, &op, dlogits));
    if (op.in[1] == DH_NONE) return; /* else a bias that has a part in the choice alone */
    if (t->graph->dims.router_balanced)
        tape_emit(t, DH_OP_ROUTER_LOAD, DH_PHASE_W, -1, IDS(op.out[2]),
                  IDS(param_grad(t, op.in[1])));
    else
        tape_emit(t, DH_OP_STAY, DH_PHASE_W, -1, IDS(DH_NONE), IDS(param_grad(t, op.in[1])));
}

static void grad_moe_permute(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_MOE_UNPERMUTE, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[1], DH_NONE),
              IDS(dx));
    tape_contribute(t, op.in[0], summed(t, &op, dx));
}

static void grad_grouped_linear(tape *t, const dh_op op)
{
    uint32_t x = op.in[0], w = op.in[1], offsets = op.in[2], dy = t->grads[op.out[0]];
    uint32_t dx = tape_like(t, x);
    tape_emit(t, DH_OP_GROUPED_DGRAD, DH_PHASE_B, -1, IDS(dy, w, offsets), IDS(dx));
    keep_rows(t, &op);
    tape_contribute(t, x, dx);
    if (!trains(t, w)) return;
    tape_emit(t, DH_OP_GROUPED_WGRAD, DH_PHASE_W, -1, IDS(dy, x, offsets), IDS(param_grad(t, w)));
    keep_rows(t, &op);
}

static void grad_moe_unpermute(tape *t, const dh_op op)
{
    uint32_t y = op.in[0], slots = op.in[1], weights = op.in[2];
    uint32_t dy = tape_like(t, y);
    if (weights == DH_NONE) {
        tape_emit(t, DH_OP_MOE_PERMUTE, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], slots), IDS(dy));
        tape_contribute(t, y, dy);
        return;
    }
    uint32_t dweights = tape_like(t, weights);
    tape_emit(t, DH_OP_MOE_UNPERMUTE_GRAD, DH_PHASE_B, -1,
              IDS(t->grads[op.out[0]], y, slots, weights), IDS(dy, dweights));
    tape_contribute(t, y, dy);
    tape_contribute(t, weights, dweights);
}

static void grad_embed(tape *t, const dh_op op)
{
    if (!trains(t, op.in[3])) return;
    tape_emit(t, DH_OP_EMBED_GRAD, DH_PHASE_W, op.site,
              IDS(t->grads[op.out[0]], op.in[0], op.in[1], op.in[2]),
              IDS(param_grad(t, op.in[3]), param_grad(t, op.in[4])));
    if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].vocab0 = op.vocab0;
}

static void grad_all_gather(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit_comm(t, DH_OP_REDUCE_SCATTER, DH_PHASE_B, op.group, t->grads[op.out[0]], dx);
    tape_contribute(t, op.in[0], dx);
}

static void grad_reduce_scatter(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit_comm(t, DH_OP_ALL_GATHER, DH_PHASE_B, op.group, t->grads[op.out[0]], dx);
    tape_contribute(t, op.in[0], dx);
}

/* Every rank goes on alike with the sum: the gradient of each one's part is that of the sum. */
static void grad_all_reduce(tape *t, const dh_op op)
{
    tape_contribute(t, op.in[0], t->grads[op.out[0]]);
}

static void grad_all_to_all(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit_comm(t, DH_OP_ALL_TO_ALL, DH_PHASE_B, op.group, t->grads[op.out[0]], dx);
    tape_contribute(t, op.in[0], dx);
}

/* Gradients of rows go back to where the rows came from. */
static void grad_all_to_all_rows(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_B, -1,
              IDS(t->grads[op.out[0]], op.in[2], op.in[1]), IDS(dx));
    if (!t->failed) {
        t->graph->ops.at[t->graph->ops.n - 1].group = op.group;
        t->graph->ops.at[t->graph->ops.n - 1].blocks = op.blocks;
    }
    keep_rows(t, &op);
    tape_contribute(t, op.in[0], dx);
}

static void (*const rules[DH_N_OP_TYPE])(tape *, dh_op) = {
    [DH_OP_EMBED] = grad_embed,
    [DH_OP_NORM] = grad_norm,
    [DH_OP_SCALE] = grad_scale,
    [DH_OP_LINEAR] = grad_linear,
    [DH_OP_ADAPT] = grad_adapt,
    [DH_OP_HEAD_NORM] = grad_head_norm,
    [DH_OP_QK_NORM] = grad_qk_norm,
    [DH_OP_ROPE] = grad_rope,
    [DH_OP_LATENT_PACK] = grad_latent_pack,
    [DH_OP_LATENT_CUT] = grad_latent_cut,
    [DH_OP_ADD] = grad_add,
    [DH_OP_ATTN] = grad_attn,
    [DH_OP_RING_ATTN] = grad_ring_attn,
    [DH_OP_FEATURE_MAP] = grad_feature_map,
    [DH_OP_LINEAR_ATTN] = grad_linear_attn,
    [DH_OP_LINEAR_JOIN] = grad_linear_join,
    [DH_OP_HEAD_RMS] = grad_head_rms,
    [DH_OP_ACT] = grad_act,
    [DH_OP_ROUTER] = grad_router,
    [DH_OP_MOE_PERMUTE] = grad_moe_permute,
    [DH_OP_GROUPED_LINEAR] = grad_grouped_linear,
    [DH_OP_MOE_UNPERMUTE] = grad_moe_unpermute,
    [DH_OP_RESIDUAL] = grad_residual,
    [DH_OP_JOIN_COLUMNS] = grad_join_columns,
    [DH_OP_SPLIT_COLUMNS] = grad_split_columns,
    [DH_OP_ALL_GATHER] = grad_all_gather,
    [DH_OP_REDUCE_SCATTER] = grad_reduce_scatter,
    [DH_OP_ALL_REDUCE] = grad_all_reduce,
    [DH_OP_ALL_TO_ALL] = grad_all_to_all,
    [DH_OP_ALL_TO_ALL_ROWS] = grad_all_to_all_rows,
};

/* ---- entry ----------------------------------------------------------------------------------- */

static void seed(tape *t)
{
    dh_graph *g = t->graph;
    if (g->loss_x != DH_NONE) {
        t->grads[g->loss_x] = g->loss_dx;
    } else if (g->x_out != DH_NONE) {
        g->dx_out = tape_like(t, g->x_out);
        t->grads[g->x_out] = g->dx_out;
    }
    for (uint32_t i = 0; i < g->tensors.n; i++) /* the head's builder made some already */
        if (g->tensors.at[i].kind == DH_TENSOR_GRAD && g->tensors.at[i].base == DH_NONE)
            t->param_grads[g->tensors.at[i].which] = i;
}

static dh_status differentiate_op(dh_ctx *ctx, tape *t, uint32_t id)
{
    const dh_op op = tape_op(t, id);
    const uint32_t out = op.out[0];
    if (out == DH_NONE || out >= t->n_grads) return DH_OK;
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op.out[k] < t->n_grads) DH_TRY(tape_collect(ctx, t, op.out[k]));
    if (t->failed || t->grads[out] == DH_NONE) return DH_OK;
    if (!rules[op.type])
        return dh_fail(ctx, DH_EUNSUPPORTED, "operator %s has no gradient rule",
                       dh_op_info_of(op.type)->name);
    rules[op.type](t, op);
    return DH_OK;
}

static dh_status differentiate(dh_ctx *ctx, tape *t)
{
    dh_graph *g = t->graph;
    if (!t->failed) seed(t);
    for (size_t i = g->ops.n; i-- > 0 && !t->failed;) DH_TRY(differentiate_op(ctx, t, (uint32_t)i));
    if (!t->failed && g->x_in != DH_NONE) {
        DH_TRY(tape_collect(ctx, t, g->x_in));
        g->dx_in = t->grads[g->x_in];
    }
    return t->failed ? dh_no_memory(ctx) : DH_OK;
}

dh_status dh_graph_differentiate(dh_ctx *ctx, dh_graph *graph)
{
    if (graph->mode != DH_MODE_TRAIN || graph->kind == DH_BLOCK_OPT)
        return dh_fail(ctx, DH_EINVAL, "only a block built for training has a backward");
    tape t;
    tape_init(&t, graph);
    const dh_status st = differentiate(ctx, &t);
    tape_fini(&t);
    return st;
}

/* ---- row ------------------------------------------------------------------------------------- */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    return spec->build.mode == DH_MODE_TRAIN ? NULL : "only training has a backward";
}

/* Micro-batches come in, experts and adapters are looked up: none computes. */
static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    const dh_block_kind kind = w->graph->kind;
    if (kind == DH_BLOCK_DATA || kind == DH_BLOCK_EXPERTS || kind == DH_BLOCK_ADAPTERS)
        return DH_OK;
    return dh_graph_differentiate(ctx, w->graph);
}

const dh_pass dh_pass_row_differentiate = {
    .name = "differentiate",
    .doc = "appends the backward, input and weight gradients apart: a rule an operator",
    .place = DH_PASS_ON_GRADIENTS,
    .of_job = true,
    .applicable = applicable,
    .apply = apply};
