/* Whether weights are those of a model: each tensor there, of the shape and a type that can be
 * read, and no factor of an adapter too many. Whoever opens a model asks here before using it. */
#include <string.h>

#include "train/tensors.h"
#include "train/trained.h"

/* Other tensors that quantised files hold with a weight; without them it means something else. */
static bool is_of_quantised(const char *name)
{
    static const char *const parts[] = {"weight_scale",  "weight_scale_inv", "weight_zero_point",
                                        "weight_packed", "weight_shape",     "qweight",
                                        "qzeros",        "scales",           "g_idx",
                                        "SCB",           "absmax",           "quant_map",
                                        "nested_absmax", "input_scale",      "weight_format"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < DH_COUNTOF(parts); i++)
        if (strcmp(dot + 1, parts[i]) == 0) return true;
    return strstr(name, ".quant_state.") != NULL;
}

static bool is_listed(const dh_tensor_shapes *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->at[i].name, name) == 0) return true;
    return false;
}

static dh_status refuse_others(dh_ctx *ctx, const dh_weights *weights,
                               const dh_tensor_shapes *adapters)
{
    dh_weight_info info;
    for (size_t i = 0; i < dh_weights_n(weights); i++) {
        dh_weights_at(weights, i, &info);
        if (dh_adapter_has(info.name) && adapters && !is_listed(adapters, info.name))
            return dh_fail(ctx, DH_EINVAL,
                           "tensor \"%s\" belongs to no linear that " DH_ADAPTER_CONFIG
                           " names and the model has",
                           info.name);
        if (!dh_adapter_has(info.name) && is_of_quantised(info.name))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "tensor \"%s\" is part of a quantised weight, which is not read: take "
                           "the model as it was trained",
                           info.name);
    }
    return DH_OK;
}

static dh_status expect_all(dh_ctx *ctx, const dh_weights *weights, const dh_tensor_shapes *list)
{
    for (size_t i = 0; i < list->n; i++)
        DH_TRY(
            dh_weights_expect(ctx, weights, list->at[i].name, list->at[i].ndim, list->at[i].shape));
    return DH_OK;
}

static dh_status fit_base(dh_ctx *ctx, const dh_model *model, dh_weights *weights)
{
    dh_model base = *model;
    dh_tensor_shapes list = {0};
    base.lora.rank = 0;
    if (model->tied_head) dh_weights_tie(weights);
    dh_status st = dh_model_tensors(ctx, &base, "", &list);
    if (st == DH_OK) st = expect_all(ctx, weights, &list);
    dh_vec_fini(&list);
    return st == DH_OK ? refuse_others(ctx, weights, NULL) : st;
}

static dh_status fit_adapters(dh_ctx *ctx, const dh_model *model, const dh_weights *weights)
{
    dh_tensor_shapes list = {0};
    dh_status st = dh_model_tensors(ctx, model, "", &list);
    if (st == DH_OK) st = expect_all(ctx, weights, &list);
    if (st == DH_OK) st = refuse_others(ctx, weights, &list);
    dh_vec_fini(&list);
    return st;
}

dh_status dh_weights_fit(dh_ctx *ctx, dh_weights *weights, const dh_model *model, dh_fit_part part)
{
    if (part != DH_FIT_ADAPTERS) DH_TRY(fit_base(ctx, model, weights));
    return part == DH_FIT_BASE || model->lora.rank == 0 ? DH_OK : fit_adapters(ctx, model, weights);
}
