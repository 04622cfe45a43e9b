/* Paths come from the names of parameters in checkpoints, so that there is no second table of
 * models: the path of a parameter without its last word is its module's. */
#include "describe/modules.h"

#include <stdio.h>
#include <string.h>

enum { PATH = sizeof((dh_param_piece *)NULL)->hf_name };

/* ---- paths ---------------------------------------------------------------------------------- */

/* The number in ".0." of layer 0 and of its first expert; NULL: none from here on. */
static char *zero_in(char *path)
{
    char *at = strstr(path, ".0.");
    return at ? at + 1 : NULL;
}

static void cut_last_word(char *path)
{
    char *dot = strrchr(path, '.');
    if (dot)
        *dot = 0;
    else
        *path = 0;
}

void dh_modules_layer(const dh_model *model, char path[80])
{
    dh_param p;
    *path = 0;
    if (!dh_param_describe(model, DH_BLOCK_LAYER, 0, DH_PARAM_LN1_W, &p)) return;
    char *zero = zero_in(p.piece_rows[0].hf_name);
    if (!zero) return;
    *zero = 0;
    snprintf(path, 80, "%.60s{layer}", p.piece_rows[0].hf_name);
}

/* Of a piece of a parameter of layer 0, below the layer. */
static void module_path(const dh_param *p, int piece, char path[PATH])
{
    char name[PATH];
    snprintf(name, sizeof name, "%s", dh_param_piece_at(p, piece).hf_name);
    char *zero = zero_in(name);
    char *below = zero ? zero + 2 : name;
    char *expert = p->ndim == 3 ? zero_in(below) : NULL;
    cut_last_word(below);
    if (!expert) {
        snprintf(path, PATH, "%s", below);
        return;
    }
    *expert = 0;
    snprintf(path, PATH, "%.40s{expert}%.30s", below, expert + 1);
}

/* ---- by parameters -------------------------------------------------------------------------- */

static bool has(const json_t *list, const char *path)
{
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one) if (strcmp(json_string_value(one), path) == 0) return true;
    return false;
}

static bool add(json_t *list, const char *path)
{
    return has(list, path) || json_array_append_new(list, json_string(path)) == 0;
}

static bool add_parameter(const dh_model *model, uint32_t which, json_t *list)
{
    dh_param p;
    char path[PATH];
    bool ok = true;
    if (!dh_param_describe(model, DH_BLOCK_LAYER, 0, which, &p)) return true;
    const int n = p.ndim == 3 ? p.n_pieces / (int)p.shape[0] : p.n_pieces;
    for (int i = 0; ok && i < n; i++) {
        module_path(&p, i, path);
        ok = add(list, path);
    }
    return ok;
}

static bool add_operand(const dh_model *model, const dh_graph *g, uint32_t tensor, json_t *list)
{
    if (tensor == DH_NONE) return true;
    const dh_tensor *t = &g->tensors.at[tensor];
    const bool parameter = t->kind == DH_TENSOR_PARAM || t->kind == DH_TENSOR_GRAD;
    return !parameter || add_parameter(model, t->which, list);
}

static bool add_parameters(const dh_model *model, const dh_graph *g, const dh_op *op, json_t *list)
{
    bool ok = true;
    for (int k = 0; ok && k < DH_MAX_OPERANDS; k++)
        ok = add_operand(model, g, op->in[k], list) && add_operand(model, g, op->out[k], list);
    return ok;
}

/* ---- by neighbours -------------------------------------------------------------------------- */

static uint32_t storage_of(const dh_graph *g, uint32_t tensor)
{
    while (g->tensors.at[tensor].base != DH_NONE) tensor = g->tensors.at[tensor].base;
    return tensor;
}

static bool touches(const dh_graph *g, const uint32_t *operands, uint32_t storage)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (operands[k] != DH_NONE && storage_of(g, operands[k]) == storage) return true;
    return false;
}

/* Adds the modules of the operators that read the results of op, or that make its inputs. */
static bool add_neighbours(const dh_model *model, const dh_graph *g, const dh_op *op, bool readers,
                           json_t *list)
{
    const uint32_t tensor = readers ? op->out[0] : op->in[0];
    if (tensor == DH_NONE) return true;
    const uint32_t storage = storage_of(g, tensor);
    bool ok = true;
    for (size_t i = 0; ok && i < g->ops.n; i++) {
        const dh_op *other = &g->ops.at[i];
        if (other != op && touches(g, readers ? other->in : other->out, storage))
            ok = add_parameters(model, g, other, list);
    }
    return ok;
}

/* Gathers and sums stand at the ends of a linear. */
static bool add_communication(const dh_model *model, const dh_graph *g, const dh_op *op,
                              json_t *list)
{
    const bool sums = op->type == DH_OP_REDUCE_SCATTER || op->type == DH_OP_ALL_REDUCE;
    if (!sums && op->type != DH_OP_ALL_GATHER) return true;
    bool ok = add_neighbours(model, g, op, !sums, list);
    if (ok && json_array_size(list) == 0) ok = add_neighbours(model, g, op, sums, list);
    return ok;
}

/* ---- by type -------------------------------------------------------------------------------- */

typedef struct row {
    uint32_t home;          /* parameter in whose module's parent it is */
    const char *targets[3]; /* of PyTorch's graphs */
} row;

#define ATTENTION DH_PARAM_QKV_W
#define LATENT DH_PARAM_KV_A_W
#define FFN DH_PARAM_FC1_W
#define EXPERTS DH_PARAM_ROUTER_W
#define LAYER DH_PARAM_LN1_W /* a norm's parent: the layer itself */
#define FLASH "aten._scaled_dot_product_flash_attention"
#define CUDNN "aten._scaled_dot_product_cudnn_attention"
#define EFFICIENT "aten._scaled_dot_product_efficient_attention"
#define C10D "_c10d_functional."

/* Types without a row: LAYER, no target. */
static const row rows[DH_N_OP_TYPE] = {
    [DH_OP_NORM] = {LAYER, {"aten.native_layer_norm", "aten._fused_rms_norm"}},
    [DH_OP_LINEAR] = {LAYER, {"aten.mm", "aten.addmm"}},
    [DH_OP_HEAD_NORM] = {ATTENTION, {"aten._fused_rms_norm"}},
    [DH_OP_QK_SQUARES] = {ATTENTION, {"aten._fused_rms_norm"}},
    [DH_OP_QK_NORM] = {ATTENTION, {"aten._fused_rms_norm"}},
    [DH_OP_ROPE] = {ATTENTION, {NULL}},
    [DH_OP_LATENT_PACK] = {LATENT, {"aten.cat"}},
    [DH_OP_LATENT_CUT] = {LATENT, {NULL}},
    [DH_OP_LATENT_PACK_GRAD] = {LATENT, {NULL}},
    [DH_OP_LATENT_CUT_GRAD] = {LATENT, {NULL}},
    [DH_OP_STAY] = {EXPERTS, {NULL}},
    [DH_OP_ROUTER_LOAD] = {EXPERTS, {"aten.bincount"}},
    [DH_OP_ATTN] = {ATTENTION, {FLASH, CUDNN, EFFICIENT}},
    [DH_OP_KV_PACK] = {ATTENTION, {NULL}},
    [DH_OP_RING_ATTN] = {ATTENTION, {FLASH, CUDNN, EFFICIENT}},
    [DH_OP_FEATURE_MAP] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_ATTN] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_STATE] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_BEFORE] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_PASS] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_JOIN] = {ATTENTION, {NULL}},
    [DH_OP_HEAD_RMS] = {ATTENTION, {"aten._fused_rms_norm"}},
    [DH_OP_ROUTER] = {EXPERTS, {"aten._softmax", "aten.topk"}},
    [DH_OP_ROUTER_SUMS] = {EXPERTS, {NULL}},
    [DH_OP_MOE_ORDER] = {EXPERTS, {"aten.sort"}},
    [DH_OP_MOE_OFFSETS] = {EXPERTS, {NULL}},
    [DH_OP_MOE_NODES] = {EXPERTS, {NULL}},
    [DH_OP_MOE_NODE_ORDER] = {EXPERTS, {NULL}},
    [DH_OP_MOE_PERMUTE] = {EXPERTS, {"aten.index"}},
    [DH_OP_GROUPED_LINEAR] = {EXPERTS, {"aten._grouped_mm"}},
    [DH_OP_MOE_UNPERMUTE] = {EXPERTS, {NULL}},
    [DH_OP_RESIDUAL] = {LAYER, {"aten.add"}},
    [DH_OP_ACT] = {FFN, {"aten.gelu", "aten.silu"}},
    [DH_OP_LINEAR_DGRAD] = {LAYER, {"aten.mm"}},
    [DH_OP_LINEAR_GELU] = {FFN, {"aten.mm", "aten.addmm", "aten.gelu"}},
    [DH_OP_LINEAR_DGRAD_GELU] = {FFN, {"aten.mm", "aten.gelu_backward"}},
    [DH_OP_LINEAR_WGRAD] = {LAYER, {"aten.mm"}},
    [DH_OP_BIAS_GRAD] = {LAYER, {"aten.sum"}},
    [DH_OP_NORM_DGRAD] = {LAYER,
                          {"aten.native_layer_norm_backward", "aten._fused_rms_norm_backward"}},
    [DH_OP_NORM_WGRAD] = {LAYER,
                          {"aten.native_layer_norm_backward", "aten._fused_rms_norm_backward"}},
    [DH_OP_HEAD_NORM_DGRAD] = {ATTENTION, {"aten._fused_rms_norm_backward"}},
    [DH_OP_HEAD_NORM_WGRAD] = {ATTENTION, {"aten._fused_rms_norm_backward"}},
    [DH_OP_QK_NORM_DOTS] = {ATTENTION, {"aten._fused_rms_norm_backward"}},
    [DH_OP_QK_NORM_DGRAD] = {ATTENTION, {"aten._fused_rms_norm_backward"}},
    [DH_OP_QK_NORM_WGRAD] = {ATTENTION, {"aten._fused_rms_norm_backward"}},
    [DH_OP_ROPE_GRAD] = {ATTENTION, {NULL}},
    [DH_OP_ATTN_GRAD] = {ATTENTION, {FLASH "_backward", CUDNN "_backward", EFFICIENT "_backward"}},
    [DH_OP_RING_ATTN_GRAD] = {ATTENTION,
                              {FLASH "_backward", CUDNN "_backward", EFFICIENT "_backward"}},
    [DH_OP_QKV_JOIN] = {ATTENTION, {NULL}},
    [DH_OP_FEATURE_MAP_GRAD] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_ATTN_GRAD] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_STATE_GRAD] = {ATTENTION, {NULL}},
    [DH_OP_LINEAR_JOIN_GRAD] = {ATTENTION, {NULL}},
    [DH_OP_HEAD_RMS_GRAD] = {ATTENTION, {"aten._fused_rms_norm_backward"}},
    [DH_OP_ROUTER_GRAD] = {EXPERTS, {NULL}},
    [DH_OP_GROUPED_DGRAD] = {EXPERTS, {"aten._grouped_mm"}},
    [DH_OP_GROUPED_WGRAD] = {EXPERTS, {"aten._grouped_mm"}},
    [DH_OP_MOE_UNPERMUTE_GRAD] = {EXPERTS, {NULL}},
    [DH_OP_ACT_GRAD] = {FFN, {"aten.gelu_backward", "aten.silu_backward"}},
    [DH_OP_DROPOUT_GRAD] = {LAYER, {"aten.native_dropout_backward"}},
    [DH_OP_ADD] = {LAYER, {"aten.add"}},
    [DH_OP_COPY] = {LAYER, {"aten.clone"}},
    [DH_OP_ALL_GATHER] = {LAYER, {C10D "all_gather_into_tensor"}},
    [DH_OP_REDUCE_SCATTER] = {LAYER, {C10D "reduce_scatter_tensor"}},
    [DH_OP_ALL_REDUCE] = {LAYER, {C10D "all_reduce"}},
    [DH_OP_ALL_TO_ALL] = {EXPERTS, {C10D "all_to_all_single"}},
    [DH_OP_ALL_TO_ALL_ROWS] = {EXPERTS, {C10D "all_to_all_single"}},
    [DH_OP_RING_EXCHANGE] = {ATTENTION, {NULL}},
    [DH_OP_RING_EXCHANGE_BOTH] = {ATTENTION, {NULL}},
    [DH_OP_ADAPT] = {LAYER, {"aten.add"}},
    [DH_OP_ADAPT_GRAD] = {LAYER, {"aten.mul"}},
    [DH_OP_JOIN_COLUMNS] = {LAYER, {"aten.cat"}},
    [DH_OP_SPLIT_COLUMNS] = {LAYER, {"aten.split"}},
};

static bool add_home(const dh_model *model, dh_op_type type, json_t *list)
{
    char path[PATH];
    dh_param p;
    if (!dh_param_describe(model, DH_BLOCK_LAYER, 0, rows[type].home, &p) &&
        !dh_param_describe(model, DH_BLOCK_LAYER, 0, DH_PARAM_LN1_POST_W, &p))
        return true;
    module_path(&p, 0, path);
    cut_last_word(path);
    for (int k = 0; k < 2 && p.ndim == 3; k++) cut_last_word(path); /* experts.{expert} */
    return !*path || add(list, path);
}

json_t *dh_modules_of(const dh_model *model, const dh_graph *layer, const dh_op *op)
{
    json_t *list = json_array();
    bool ok = list && add_parameters(model, layer, op, list);
    if (ok && json_array_size(list) == 0) ok = add_communication(model, layer, op, list);
    if (ok && json_array_size(list) == 0) ok = add_home(model, op->type, list);
    if (ok) return list;
    json_decref(list);
    return NULL;
}

json_t *dh_modules_targets(dh_op_type type)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < DH_COUNTOF(rows[type].targets) && rows[type].targets[i]; i++)
        ok = json_array_append_new(list, json_string(rows[type].targets[i])) == 0;
    if (ok) return list;
    json_decref(list);
    return NULL;
}
