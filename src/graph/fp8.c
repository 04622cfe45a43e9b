/* Which products take operands of 8 bits. By type and operands, not by an attribute: a pass that
 * makes an operator anew has nothing to carry over. */
#include "graph/graph.h"

bool dh_op_fp8(const dh_graph *graph, const dh_op *op, dh_fp8_format formats[2])
{
    const bool forward = op->type == DH_OP_LINEAR || op->type == DH_OP_GROUPED_LINEAR;
    const bool backward = op->type == DH_OP_LINEAR_DGRAD || op->type == DH_OP_LINEAR_WGRAD ||
                          op->type == DH_OP_GROUPED_DGRAD || op->type == DH_OP_GROUPED_WGRAD;
    if (graph->dims.fp8 == DH_FP8_OFF || !(forward || backward)) return false;
    for (int k = 0; k < 2; k++)
        if (graph->tensors.at[op->in[k]].dtype != DH_BF16) return false;
    formats[0] =
        backward && graph->dims.fp8 == DH_FP8_HYBRID ? DH_FP8_FORMAT_E5M2 : DH_FP8_FORMAT_E4M3;
    formats[1] = DH_FP8_FORMAT_E4M3;
    return true;
}
