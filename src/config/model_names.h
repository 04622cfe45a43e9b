/* Shared inside src/config: names of the model's enumerations (index = value,
 * NULL-terminated) and a family's own defaults. */
#ifndef DH_CONFIG_MODEL_NAMES_H
#define DH_CONFIG_MODEL_NAMES_H

#include "dhelix/model.h"

enum {
    DH_N_FAMILIES = 17,
    DH_N_ROPE_SCALINGS = 5,
    DH_N_ATTENTION_KINDS = 2,
    DH_N_FEATURE_MAPS = 3
};
extern const char *const dh_family_names[DH_N_FAMILIES + 1];
extern const char *const dh_rope_scaling_names[DH_N_ROPE_SCALINGS + 1];
extern const char *const dh_attention_kind_names[DH_N_ATTENTION_KINDS + 1];
extern const char *const dh_feature_map_names[DH_N_FEATURE_MAPS + 1];

/* Upper limits of sizes: they keep every product below 2^62, the largest term of
 * the parameter count being layers * experts * 3 * width * ffn < 2^(12+10+1.6+18+20). */
#define DH_MODEL_MAX_LAYERS (1 << 12)
#define DH_MODEL_MAX_WIDTH (1 << 18)
#define DH_MODEL_MAX_HEADS (1 << 12)
#define DH_MODEL_MAX_HEAD_DIM (1 << 10)
#define DH_MODEL_MAX_FFN (1 << 20)
#define DH_MODEL_MAX_VOCAB (1 << 24)
#define DH_MODEL_MAX_SEQ (1 << 27)
#define DH_MODEL_MAX_EXPERTS (1 << 10)
#define DH_MODEL_MAX_LORA_RANK (1 << 12)

/* Fields that only DeepSeek V3 has: their values in that family.
 * errors    DH_EINVAL; DH_EUNSUPPORTED adapters */
dh_status dh_model_check_deepseek3(dh_ctx *ctx, const dh_model *m);
dh_status dh_model_check_no_deepseek3(dh_ctx *ctx, const dh_model *m, bool shared);
/* model_phimoe.c: fields that only Phi-3.5-MoE has (phimoe: the model is of that family).
 * errors    DH_EINVAL */
dh_status dh_model_check_phimoe(dh_ctx *ctx, const dh_model *m, bool phimoe);
/* Weights a token is multiplied with in latent attention of one layer. */
int64_t dh_model_latent_params(const dh_model *m);

/* model_layers.c: the fields of layers that differ. dense: the family may have layers without
 * experts.
 * errors    DH_EINVAL */
dh_status dh_model_check_layers(dh_ctx *ctx, const dh_model *m, bool dense);
/* Everything the family decides, sizes 0. */
void dh_model_init(dh_model *model, dh_family family);
/* model_lora.c: whether its adapters can be there.
 * errors    DH_EINVAL: names the linears that the model has; DH_EUNSUPPORTED a layer without any
 *           of the targets */
dh_status dh_model_check_lora(dh_ctx *ctx, const dh_model *model);

#endif
