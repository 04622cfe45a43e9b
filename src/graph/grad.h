/* Inside the folder: gradients so far, while a graph is differentiated from its end. */
#ifndef DH_GRAPH_GRAD_H
#define DH_GRAPH_GRAD_H

#include "graph/graph.h"

/* Rows of a tensor that views name. */
typedef struct tape_part {
    uint32_t whole, view; /* view: the first of those that name these rows */
    int64_t row0, n_rows;
} tape_part;

typedef struct tape {
    dh_graph *graph;
    size_t n_grads; /* tensors of the forward */
    /* By tensor of the forward: its gradient so far, or DH_NONE; of views of parameters too. */
    uint32_t *grads;
    uint32_t *same;   /* by tensor: the first view of the same part; itself */
    tape_part *parts; /* by whole, row and number of rows */
    uint32_t *first;  /* [n_grads + 1] by tensor: its parts are parts[first[i]] to first[i + 1] */
    int64_t *longest; /* by tensor: rows of its longest part */
    uint32_t param_grads[DH_MAX_BLOCK_PARAMS];
    bool failed; /* out of memory somewhere */
} tape;

void tape_init(tape *t, dh_graph *graph);
void tape_fini(tape *t);

uint32_t tape_add(tape *t, const dh_tensor *tensor);
/* A new activation shaped like `like`, named d<like>. */
uint32_t tape_like(tape *t, uint32_t like);
/* A new activation of another type, shaped like `like`, of one of several steps: named
 * NAME.STEP. */
uint32_t tape_step(tape *t, uint32_t like, const char *name, int32_t step, dh_dtype dtype);
/* A new view: of `whole`, a tensor like what `part` is rows of, the same rows. */
uint32_t tape_rows(tape *t, uint32_t whole, uint32_t part);
void tape_emit(tape *t, dh_op_type type, dh_phase phase, int32_t site, const uint32_t *in,
               const uint32_t *out);
/* A collective or exchange of the group. */
void tape_emit_comm(tape *t, dh_op_type type, dh_phase phase, int32_t group, uint32_t in,
                    uint32_t out);
#define IDS(...) ((const uint32_t[DH_MAX_OPERANDS]){__VA_ARGS__})

/* An operator of the forward; activations that are the same part of a tensor have one id. */
dh_op tape_op(const tape *t, uint32_t id);
/* grad is a gradient of the tensor, or one of several to be added. */
void tape_contribute(tape *t, uint32_t tensor, uint32_t grad);
/* Adds up all contributions to the gradient of an operator's output. They belong to the tensor, to
 * the whole around it, or to parts of it.
 *
 * errors    DH_EUNSUPPORTED the output was used in parts that overlap or leave something out */
dh_status tape_collect(dh_ctx *ctx, tape *t, uint32_t tensor);

/* ---- rules of linear attention (grad_linear.c); op is a copy ------------------------------- */

void grad_feature_map(tape *t, dh_op op);
void grad_head_rms(tape *t, dh_op op);
void grad_linear_attn(tape *t, dh_op op);
void grad_linear_join(tape *t, dh_op op);

#endif
