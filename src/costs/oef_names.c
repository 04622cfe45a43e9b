/* Names of operators in published matrices of overlap effectiveness, as in DHelix's H100
 * measurements.
 *   gemm            forward; _d, _w: gradients of input and weight
 *   attn, mlp       block
 *   c, l            column- and row-parallel
 *   fa              attention */
#include "costs/profile.h"

static const struct {
    dh_op_type type;
    uint32_t which; /* the weight: DH_PARAM_*; DH_NONE: there is none */
    const char *name;
} computing[] = {
    {DH_OP_LINEAR, DH_PARAM_QKV_W, "gemm_attn_c"},
    {DH_OP_LINEAR, DH_PARAM_PROJ_W, "gemm_attn_l"},
    {DH_OP_LINEAR, DH_PARAM_FC1_W, "gemm_mlp_c"},
    {DH_OP_LINEAR, DH_PARAM_FC2_W, "gemm_mlp_l"},
    {DH_OP_GROUPED_LINEAR, DH_PARAM_FC1_W, "gemm_mlp_c"},
    {DH_OP_GROUPED_LINEAR, DH_PARAM_FC2_W, "gemm_mlp_l"},
    {DH_OP_LINEAR_GELU, DH_PARAM_FC1_W, "gemm_mlp_c"},
    {DH_OP_LINEAR_DGRAD, DH_PARAM_QKV_W, "attn_c_d"},
    {DH_OP_LINEAR_DGRAD, DH_PARAM_PROJ_W, "attn_l_d"},
    {DH_OP_LINEAR_DGRAD, DH_PARAM_FC1_W, "mlp_c_d"},
    {DH_OP_LINEAR_DGRAD, DH_PARAM_FC2_W, "mlp_l_d"},
    {DH_OP_LINEAR_DGRAD_GELU, DH_PARAM_FC2_W, "mlp_l_d"},
    {DH_OP_GROUPED_DGRAD, DH_PARAM_FC1_W, "mlp_c_d"},
    {DH_OP_GROUPED_DGRAD, DH_PARAM_FC2_W, "mlp_l_d"},
    {DH_OP_LINEAR_WGRAD, DH_PARAM_QKV_W, "attn_c_W"},
    {DH_OP_LINEAR_WGRAD, DH_PARAM_PROJ_W, "attn_l_w"},
    {DH_OP_LINEAR_WGRAD, DH_PARAM_FC1_W, "mlp_c_W"},
    {DH_OP_LINEAR_WGRAD, DH_PARAM_FC2_W, "mlp_l_w"},
    {DH_OP_GROUPED_WGRAD, DH_PARAM_FC1_W, "mlp_c_W"},
    {DH_OP_GROUPED_WGRAD, DH_PARAM_FC2_W, "mlp_l_w"},
    {DH_OP_ATTN, DH_NONE, "fa"},
    {DH_OP_RING_ATTN, DH_NONE, "fa"},
    {DH_OP_ATTN_GRAD, DH_NONE, "fa_bwd"},
    {DH_OP_RING_ATTN_GRAD, DH_NONE, "fa_bwd"},
};

static const struct {
    dh_op_type type;
    const char *local, *cross;
} communicating[] = {
    {DH_OP_REDUCE_SCATTER, "intra_rs", "inter_rs"},
    {DH_OP_ALL_GATHER, "intra_ag", "inter_ag"},
    {DH_OP_ALL_REDUCE, "intra_allreduce", "inter_allreduce"},
    {DH_OP_ALL_TO_ALL, "intra_all2all", "inter_all2all"},
    {DH_OP_ALL_TO_ALL_ROWS, "intra_all2all", "inter_all2all"},
    {DH_OP_RING_EXCHANGE, "intra_p2p", "inter_p2p"},
    {DH_OP_SHIFT, "intra_p2p", "inter_p2p"},
    {DH_OP_SCATTER_STEP, "intra_p2p", "inter_p2p"},
    {DH_OP_MESSAGES, "intra_p2p", "inter_p2p"},
    {DH_OP_SEND, "intra_p2p", "inter_p2p"},
    {DH_OP_RECV, "intra_p2p", "inter_p2p"},
};

/* Kind of the weight that the operator reads, or whose gradient it makes. */
static uint32_t weight_of(const dh_graph *g, const dh_op *op)
{
    if (g->kind != DH_BLOCK_LAYER) return DH_NONE;
    const uint32_t operands[2] = {op->in[1], op->out[0]};
    for (int i = 0; i < 2; i++) {
        const dh_tensor *t = operands[i] == DH_NONE ? NULL : &g->tensors.at[operands[i]];
        if (t && (t->kind == DH_TENSOR_PARAM || t->kind == DH_TENSOR_GRAD)) return t->which;
    }
    return DH_NONE;
}

const char *dh_op_oef_name(const dh_graph *graph, const dh_op *op, dh_engine engine)
{
    const uint32_t which = weight_of(graph, op);
    for (size_t i = 0; i < DH_COUNTOF(computing); i++)
        if (computing[i].type == op->type && computing[i].which == which) return computing[i].name;
    for (size_t i = 0; dh_engine_is_link(engine) && i < DH_COUNTOF(communicating); i++)
        if (communicating[i].type == op->type)
            return engine == DH_ENGINE_LOCAL ? communicating[i].local : communicating[i].cross;
    return NULL;
}
