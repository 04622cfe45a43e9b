/* A rank's elements of Hugging Face's tensors, for code that looks inside a session. Checkpoints
 * are written without it, a piece at a time (share.h). */
#ifndef DH_TRAIN_PARAMS_H
#define DH_TRAIN_PARAMS_H

#include "train/session.h"

/* A Hugging Face tensor of which this rank has (part of) the elements, in one parameter. */
typedef struct dh_hf_tensor {
    char name[80];
    int ndim;
    int64_t shape[2]; /* as Hugging Face stores it */
    uint32_t param;
} dh_hf_tensor;
/* HF tensors of the program's parameters that are trained, in program order; caller frees *list. */
dh_status dh_hf_tensors(dh_ctx *ctx, const dh_program *program, dh_hf_tensor **list, size_t *n);
/* Copy the elements this rank has into data [shape], the whole tensor in HF's layout,
 * float32. kind: MASTER, GRAD, ADAM_M or ADAM_V. */
dh_status dh_session_read_hf(dh_ctx *ctx, const dh_session *session, const dh_hf_tensor *tensor,
                             dh_buffer_kind kind, float *data);

/* Cuts elements [first, first + n) of a parameter down to those in piece k of its flat that this
 * rank has of a kind, all or a shard.
 *
 * out       first, n: the elements, n 0: none; at: place of the first in the slab */
void dh_param_part(const dh_program *program, uint32_t param, dh_buffer_kind kind, int64_t k,
                   int64_t *first, int64_t *n, uint64_t *at);

#endif
