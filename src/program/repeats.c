/* Keys and values that tensor-parallel ranks have alike, where ranks outnumber their heads
 * (dh_mesh.kv_ranks). They are the last elements of the packed weights and biases of queries, keys
 * and values. Each such rank has the gradient of its own query heads. */
#include "program/reductions.h"

dh_status dh_flat_repeats(dh_ctx *ctx, const dh_program *p, uint32_t flat, bool matrices,
                          dh_repeats *list)
{
    list->n = 0;
    if (p->mesh.kv_ranks <= 1) return DH_OK;
    for (uint32_t i = 0; i < p->params.n; i++) {
        const dh_param *info = &p->params.at[i];
        const dh_param_home *home = &p->homes.at[i];
        if (info->n_repeated == 0 || p->blocks.at[home->block].flat != flat ||
            dh_param_is_matrix(info) != matrices)
            continue;
        const int64_t end = home->first + dh_param_elements(info);
        const dh_repeat made = {i, end - info->n_repeated, end};
        if (!dh_vec_push(list, made)) return dh_no_memory(ctx);
    }
    return DH_OK;
}
