/* The modules of a model to which operators of a layer belong, by their paths in a checkpoint. */
#ifndef DH_DESCRIBE_MODULES_H
#define DH_DESCRIBE_MODULES_H

#include <jansson.h>

#include "graph/graph.h"

/* model: whose layers are all as the one in question (dh_model_of_layer). */

/* Path of a layer, its number as {layer}: "h.{layer}", "model.layers.{layer}". */
void dh_modules_layer(const dh_model *model, char path[80]);
/* Paths, below the layer's, of an operator's modules.
 *   with parameters      the modules of its parameters: "attn.c_attn"; several where they are one
 *                        operand here; {expert} for an expert's number
 *   communication        those of the operator that it feeds (a gather) or comes from (a sum)
 *   without parameters   the part of the layer ("self_attn", "mlp"), or none: the layer itself
 * returns   an array of strings, the caller's; NULL: out of memory */
json_t *dh_modules_of(const dh_model *model, const dh_graph *layer, const dh_op *op);
/* Names of an operator type in PyTorch's graphs ("aten.mm"), without overload; empty where several
 * of their operators make one.
 * returns   an array, the caller's; NULL: out of memory */
json_t *dh_modules_targets(dh_op_type type);

#endif
