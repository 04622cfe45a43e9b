/* The tensors of a model as files hold them. */
#ifndef DH_TRAIN_TENSORS_H
#define DH_TRAIN_TENSORS_H

#include "dhelix/model.h"
#include "weights/safetensors.h"

typedef struct dh_tensor_shape {
    char name[128]; /* Hugging Face's, behind a prefix */
    int ndim;
    int64_t shape[DH_ST_MAX_DIMS];
} dh_tensor_shape;
typedef DH_VEC(dh_tensor_shape) dh_tensor_shapes;

/* Appends every tensor of the model that is trained, in the order of its blocks. Caller frees the
 * list. */
dh_status dh_model_tensors(dh_ctx *ctx, const dh_model *m, const char *prefix,
                           dh_tensor_shapes *shapes);

#endif
