/* Which tensors a model has, by Hugging Face name, from what its blocks say of their parameters. */
#include "train/tensors.h"

#include <stdio.h>
#include <string.h>

#include "train/session.h"

/* Pieces that lie in one tensor follow each other. */
static dh_status add_param(dh_ctx *ctx, const char *prefix, const dh_param *p,
                           dh_tensor_shapes *shapes)
{
    for (int k = 0; k < p->n_pieces; k++) {
        const dh_param_piece piece = dh_param_piece_at(p, k);
        dh_tensor_shape t = {.ndim = piece.hf_ndim};
        snprintf(t.name, sizeof t.name, "%s%s", prefix, piece.hf_name);
        memcpy(t.shape, piece.hf_shape, (size_t)t.ndim * sizeof *t.shape);
        if (k > 0 && strcmp(t.name, shapes->at[shapes->n - 1].name) == 0) continue;
        if (!dh_vec_push(shapes, t)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

dh_status dh_model_tensors(dh_ctx *ctx, const dh_model *m, const char *prefix,
                           dh_tensor_shapes *shapes)
{
    static const struct {
        dh_block_kind kind;
        bool once;
    } blocks[] = {{DH_BLOCK_EMBED, true},
                  {DH_BLOCK_LAYER, false},
                  {DH_BLOCK_EXPERTS, false},
                  {DH_BLOCK_ADAPTERS, false},
                  {DH_BLOCK_HEAD, true}};
    for (size_t k = 0; k < DH_COUNTOF(blocks); k++)
        for (int64_t layer = 0; layer < (blocks[k].once ? 1 : m->n_layers); layer++)
            for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++) {
                const dh_block_kind kind = blocks[k].kind;
                dh_param p;
                if (dh_param_describe(m, kind, (int)layer, which, &p) && p.kind == kind &&
                    !p.frozen)
                    DH_TRY(add_param(ctx, prefix, &p, shapes));
            }
    return DH_OK;
}
