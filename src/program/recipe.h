/* The common part of all programs of a run: the model, the ranks, the order of a step, sizes, and
 * the use of memory.
 *
 * A recipe is a plain value. Its pointers are borrowed; their targets outlive the programs and
 * simulations made from it. A variation is a copy with some fields replaced. */
#ifndef DH_PROGRAM_RECIPE_H
#define DH_PROGRAM_RECIPE_H

#include "config/mesh.h"
#include "config/sharing.h"
#include "dhelix/job.h"
#include "graph/graph.h"
#include "plan/schedule.h"
#include "strategy/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_BUCKET_BYTES 25000000 /* as DistributedDataParallel of PyTorch, in MB */

#define DH_NO_WORKSPACE SIZE_MAX

/* The executing backend's facts for the planner. */
typedef struct dh_backend_info {
    const char *name;
    /* Scratch bytes the operator's kernel needs; DH_NO_WORKSPACE: memory was short of telling. */
    size_t (*workspace_bytes)(const dh_graph *graph, const dh_op *op);
    bool fuses_gelu; /* it gains by products that make GELU of what they compute */
} dh_backend_info;

/* Scratch bytes of an operator: its kernel's, and its values rounded for the way, which need no
 * backend. DH_NO_WORKSPACE as above. backend NULL: none. */
static inline size_t dh_backend_workspace(const dh_backend_info *backend, const dh_graph *graph,
                                          const dh_op *op)
{
    const int64_t rounded = dh_op_rounded_bytes(graph, op);
    if (rounded > 0) return (size_t)rounded;
    return backend ? backend->workspace_bytes(graph, op) : 0;
}

typedef struct dh_recipe {
    dh_model model; /* vocabulary resolved */
    dh_dtype dtype;
    dh_mesh mesh; /* ranks 0: one rank */

    const dh_schedule *schedule; /* NULL: 1F1B; other modes than training take its placement */
    const dh_strategy *strategy; /* with the final list of passes; NULL: sequential */
    dh_ordering ordering;        /* of slots; policy NULL: the strategy's own */
    const dh_costs *costs;       /* by which the strategy orders; NULL: estimates */

    int64_t micro_batch, seq; /* of one data-parallel rank */
    int64_t n_micro;          /* micro-batches of a training step */
    int64_t global_tokens;    /* of a training step over all ranks: the loss's divisor; 0: 1 */
    double dropout;
    bool documents;      /* sequences are rows of documents that do not see each other */
    bool linear_ring;    /* dh_dims.linear_ring */
    bool float_kv_grads; /* dh_dims.float_kv_grads */
    dh_fp8 fp8;          /* dh_dims.fp8 */
    bool fuse_gelu;      /* dh_graph_spec.fuse_gelu */
    dh_moe_mode moe_mode;
    dh_dispatch moe_dispatch; /* flat or node; auto, before costs have chosen, is flat */
    dh_tp_rows expert_rows;   /* whole or shared; auto likewise is whole */
    double moe_capacity;      /* room over the even share: of an expert, or (dropless) of a rank */

    const char *layer_split; /* NULL: even */
    dh_sharing sharing;
    dh_dtype grad_dtype;   /* in which data-parallel ranks reduce gradients; 0: float32 */
    bool post_validation;  /* stages step before the norm of all gradients is known */
    int64_t fuse;          /* of ZeRO-1 and 2: each piece of a bucket is stepped as its gradients
                              * come, and there are so many of them at least; 0: by the norm */
    bool clips;            /* gradients are clipped by the norm of all */
    bool balances_routers; /* biases of routers go by the load of their experts */
    /* All transfers between stages on one stream, not by link and direction. */
    bool one_link_stream;
    bool by_matrix;       /* of ZeRO-3: a message for each of a block's matrices, not for all */
    int64_t bucket_bytes; /* most gradients of one transfer; 0: DH_BUCKET_BYTES */
    dh_recompute_kind recompute;
    bool in_stages;                 /* gradients are summed in stages, also where no pass says so */
    bool stages_by_costs;           /* or, then, where costs say so */
    int64_t head_chunk_bytes;       /* 0: DH_HEAD_CHUNK_BYTES */
    const dh_backend_info *backend; /* NULL: kernels need no scratch */
} dh_recipe;

/* Whether there is another stage whose gradients an optimizer may step ahead of. */
static inline bool dh_recipe_is_post_validated(const dh_recipe *recipe)
{
    return recipe->post_validation && recipe->mesh.pp > 1;
}

/* Whether shards are stepped as their gradients come: where there are ranks that share out. */
static inline bool dh_recipe_is_fused(const dh_recipe *recipe)
{
    return recipe->fuse > 0 && dh_sharing_steps_shards(&recipe->sharing) &&
           recipe->mesh.dp * recipe->mesh.cp > 1;
}

/* Whether reductions come more than once a step. */
static inline bool dh_recipe_reduces_each(const dh_recipe *recipe)
{
    return dh_sharing_reduces_each(&recipe->sharing, recipe->n_micro);
}

/* The spec of the graphs of training. */
dh_graph_spec dh_recipe_graphs(const dh_recipe *recipe);
/* Tokens between blocks, by setting and passes (dh_graph_sequence). */
dh_sequence dh_recipe_sequence(const dh_recipe *recipe);
/* Whether operators work on stages of groups (dh_graph_in_stages), sums of gradients among them. */
bool dh_recipe_in_stages(const dh_recipe *recipe);
/* Whether costs choose which sums of gradients do (dh_graph_stages_by_costs). */
bool dh_recipe_stages_by_costs(const dh_recipe *recipe);
/* Rows of the residual stream between two blocks of a rank, which is what stages send. */
int64_t dh_recipe_stream_rows(const dh_recipe *recipe);

/* The ordering that slots get: its policy that of the strategy where none is given.
 * errors    DH_EMISSING */
dh_status dh_recipe_ordering(dh_ctx *ctx, const dh_recipe *recipe, dh_ordering *ordering);

#ifdef __cplusplus
}
#endif
#endif
