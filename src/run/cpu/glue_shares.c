/* Shares of a sum over ranks, added where they arrived: the bits that the communicators' reductions
 * make of them (run/comm/reduce.c). */
#include <stdlib.h>

#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* Addresses of the shares in an operand, one behind another. */
static int add_shares(const dh_call *c, int k, size_t share_bytes, const void **shares)
{
    if (c->op->in[k] == DH_NONE) return 0;
    const dh_tensor *t = &c->graph->tensors.at[c->op->in[k]];
    const int n = (int)((size_t)dh_tensor_bytes(t) / share_bytes);
    for (int i = 0; i < n; i++) shares[i] = (const char *)c->in[k] + (size_t)i * share_bytes;
    return n;
}

dh_status dh_cpu_run_sum_shares(dh_ctx *ctx, const dh_call *c)
{
    enum { MOST = DH_MAX_PARTS + 1 };
    const void *shares[MOST];
    const dh_tensor *y = &c->graph->tensors.at[c->op->out[0]];
    const size_t share_bytes = (size_t)dh_tensor_bytes(y);
    int n = 0;
    for (int k = 0; k < 3; k++) n += add_shares(c, k, share_bytes, &shares[n]);
    dh_k_sum_ordered(y->dtype, dh_tensor_elements(y), n, shares, c->out[0]);
    return DH_OK;
}
