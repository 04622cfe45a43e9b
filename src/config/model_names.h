/* Shared inside src/config: names of the model's enumerations (index = value,
 * NULL-terminated) and a family's own defaults. */
#ifndef DH_CONFIG_MODEL_NAMES_H
#define DH_CONFIG_MODEL_NAMES_H

#include "dhelix/model.h"

enum { DH_N_FAMILIES = 12, DH_N_ROPE_SCALINGS = 3 };
extern const char *const dh_family_names[DH_N_FAMILIES + 1];
extern const char *const dh_rope_scaling_names[DH_N_ROPE_SCALINGS + 1];

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

/* Everything the family decides, sizes 0. */
void dh_model_init(dh_model *model, dh_family family);

#endif
