/* Which ranks work together: the five-way arrangement of ranks and its groups.
 *
 * Ranks are numbered with tp fastest, then cp, ep, edp, pp, which is Megatron's
 * default order "tp-cp-ep-dp-pp". Expert parallelism uses part of the data-parallel
 * ranks: data-parallel index = edp_index * ep + ep_index. Nodes hold consecutive
 * ranks. Groups are computed, never stored. Functions accept any number of ranks and take
 * constant time, except dh_mesh_group_span. Pure, any thread. */
#ifndef DH_CONFIG_MESH_H
#define DH_CONFIG_MESH_H

#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Axes, fastest-varying first. */
typedef enum dh_mesh_axis {
    DH_MESH_TP,
    DH_MESH_CP,
    DH_MESH_EP,  /* expert parallel: position inside a set of all experts */
    DH_MESH_EDP, /* expert data parallel: which copy of the experts */
    DH_MESH_PP,
    DH_N_MESH_AXES
} dh_mesh_axis;

/* name, mask (1 << dh_mesh_axis) of the axes along which members differ, what it is for */
#define DH_GROUP_LIST(X)                                                                           \
    X(DH_GROUP_SELF, "self", 0, "the rank alone")                                                  \
    X(DH_GROUP_TP, "tp", 1, "tensor and sequence parallel")                                        \
    X(DH_GROUP_CP, "cp", 2, "context parallel")                                                    \
    X(DH_GROUP_DP, "dp", 4 | 8, "data parallel")                                                   \
    X(DH_GROUP_PP, "pp", 16, "pipeline stages")                                                    \
    X(DH_GROUP_EP, "ep", 4, "exchange of tokens between experts")                                  \
    X(DH_GROUP_TP_EP, "tp-ep", 1 | 4,                                                              \
      "exchange of tokens between experts that tensor-parallel ranks have of their own")           \
    X(DH_GROUP_EDP, "edp", 8, "copies of one expert")                                              \
    X(DH_GROUP_TP_CP, "tp-cp", 1 | 2, "one sequence")                                              \
    X(DH_GROUP_DP_CP, "dp-cp", 2 | 4 | 8, "gradients of dense weights")                            \
    X(DH_GROUP_EDP_CP, "edp-cp", 2 | 8, "gradients of expert weights")                             \
    X(DH_GROUP_TP_PP, "tp-pp", 1 | 16, "one copy of the dense weights: gradient norm")             \
    X(DH_GROUP_TP_EP_PP, "tp-ep-pp", 1 | 4 | 16, "one copy of all weights, experts included")      \
    X(DH_GROUP_STAGE, "stage", 1 | 2 | 4 | 8,                                                      \
      "all ranks of a stage: its part of the gradient norm")                                       \
    X(DH_GROUP_EMBED, "embed", 16, "first and last stage: gradients of a tied embedding")          \
    X(DH_GROUP_WORLD, "world", 31, "all ranks")                                                    \
    X(DH_GROUP_DP_CP_COPIES, "dp-cp-copies", 2 | 4 | 8 | 16,                                       \
      "gradients of dense weights that a stage and its mirror image hold")                         \
    X(DH_GROUP_EDP_CP_COPIES, "edp-cp-copies", 2 | 8 | 16,                                         \
      "gradients of expert weights that a stage and its mirror image hold")                        \
    X(DH_GROUP_TP_NODE, "tp-node", 1, "ranks of tp on one node")                                   \
    X(DH_GROUP_TP_CROSS, "tp-cross", 1, "ranks of tp with the same position on every node")        \
    X(DH_GROUP_EP_NODE, "ep-node", 4, "ranks of ep on one node")                                   \
    X(DH_GROUP_EP_CROSS, "ep-cross", 4, "ranks of ep with the same position on every node")        \
    X(DH_GROUP_TP_EP_NODE, "tp-ep-node", 1 | 4, "ranks of tp-ep on one node")                      \
    X(DH_GROUP_TP_EP_CROSS, "tp-ep-cross", 1 | 4,                                                  \
      "ranks of tp-ep with the same position on every node")                                       \
    X(DH_GROUP_DP_CP_NODE, "dp-cp-node", 2 | 4 | 8, "ranks of dp-cp on one node")                  \
    X(DH_GROUP_DP_CP_CROSS, "dp-cp-cross", 2 | 4 | 8,                                              \
      "ranks of dp-cp with the same position on every node")                                       \
    X(DH_GROUP_EDP_CP_NODE, "edp-cp-node", 2 | 8, "ranks of edp-cp on one node")                   \
    X(DH_GROUP_EDP_CP_CROSS, "edp-cp-cross", 2 | 8,                                                \
      "ranks of edp-cp with the same position on every node")                                      \
    X(DH_GROUP_KV, "kv", 1,                                                                        \
      "gradients of key and value heads that several tensor-parallel ranks hold")                  \
    X(DH_GROUP_DP_CP_SHARE, "dp-cp-share", 2 | 4 | 8,                                              \
      "neighbouring ranks of dp-cp that share a block's parameters")                               \
    X(DH_GROUP_EDP_CP_SHARE, "edp-cp-share", 2 | 8,                                                \
      "neighbouring ranks of edp-cp that share an expert's parameters")                            \
    X(DH_GROUP_PP_ODD, "pp-odd", 16, "as pp, for transfers from odd ranks of it to the next")      \
    X(DH_GROUP_PP_BACK, "pp-back", 16, "as pp, for transfers from odd ranks to the one before")    \
    X(DH_GROUP_PP_BACK_ODD, "pp-back-odd", 16,                                                     \
      "as pp, for transfers from even ranks to the one before")

typedef enum dh_group_kind {
#define X(code, name, axes, doc) code,
    DH_GROUP_LIST(X)
#undef X
        DH_N_GROUPS
} dh_group_kind;

static inline bool dh_group_is_link(dh_group_kind group)
{
    return group == DH_GROUP_PP || group == DH_GROUP_PP_ODD || group == DH_GROUP_PP_BACK ||
           group == DH_GROUP_PP_BACK_ODD;
}

/* The group of transfers from one rank of the pipeline to another, by the link between them and the
 * direction. Links to the next rank are even or odd by their first rank; the one from the last rank
 * to the first counts as the last rank's. So a rank's two links differ, unless their number is odd
 * and transfers go round: then the first rank's two are one. */
static inline dh_group_kind dh_mesh_link(int64_t from, int64_t to)
{
    const int64_t low = from < to ? from : to, high = from < to ? to : from;
    const bool odd = (high - low == 1 ? low : high) % 2 == 1;
    if (from < to) return odd ? DH_GROUP_PP_ODD : DH_GROUP_PP;
    return odd ? DH_GROUP_PP_BACK_ODD : DH_GROUP_PP_BACK;
}

/* The two stages of a group that spans nodes: whole group, its members on one node, those at the
 * same place of every node. */
#define DH_GROUP_STAGE_LIST(X)                                                                     \
    X(DH_GROUP_TP, DH_GROUP_TP_NODE, DH_GROUP_TP_CROSS)                                            \
    X(DH_GROUP_EP, DH_GROUP_EP_NODE, DH_GROUP_EP_CROSS)                                            \
    X(DH_GROUP_TP_EP, DH_GROUP_TP_EP_NODE, DH_GROUP_TP_EP_CROSS)                                   \
    X(DH_GROUP_DP_CP, DH_GROUP_DP_CP_NODE, DH_GROUP_DP_CP_CROSS)                                   \
    X(DH_GROUP_EDP_CP, DH_GROUP_EDP_CP_NODE, DH_GROUP_EDP_CP_CROSS)

typedef struct dh_mesh {
    int64_t dp, tp, pp, cp, ep; /* ep divides dp */
    int64_t edp;                /* dp / ep */
    int64_t ranks;              /* dp * tp * pp * cp */
    int64_t nodes, ranks_per_node;
    /* A layer's experts are spread over tp ranks too, whole, and not cut into columns there. */
    bool whole_experts;
    /* So many tensor-parallel ranks in a row have the same head of keys and values; 0 is 1. */
    int64_t kv_ranks;
    /* Number of neighbours in a data group that share a block's parameters between its forward and
     * its backward; 0: all of a node, or none. Where the number does not divide a group, the
     * share is the whole group or one rank. */
    int64_t share_ranks;
} dh_mesh;

/* dh_mesh.kv_ranks for a model on tp ranks. Each rank has whole heads of keys and values. With
 * fewer heads than ranks, consecutive ranks have the same head. */
static inline int64_t dh_mesh_kv_ranks(const dh_model *model, int64_t tp)
{
    return model->n_kv_heads > 0 && model->n_kv_heads < tp ? tp / model->n_kv_heads : 1;
}

/* Whether the mesh may have such a link (dh_mesh_link): two stages have no odd one. */
static inline bool dh_mesh_has_link(const dh_mesh *mesh, dh_group_kind link)
{
    return mesh->pp > 2 || link == DH_GROUP_PP || link == DH_GROUP_PP_BACK;
}

typedef struct dh_coord {
    int64_t tp, cp, dp, pp; /* dp = edp * mesh.ep + ep */
    int64_t ep, edp;
} dh_coord;

/* A mesh from sizes.
 * in        nodes or ranks_per_node: 0: derived from the other; both 0: one node holds all
 * out       set only on DH_OK
 * errors    DH_EINVAL; the message names the job's setting to change */
dh_status dh_mesh_init(dh_ctx *ctx, int64_t dp, int64_t tp, int64_t pp, int64_t cp, int64_t ep,
                       int64_t nodes, int64_t ranks_per_node, dh_mesh *mesh);
/* The same sizes, nodes and spread of experts (dh_mesh has padding: not for memcmp). */
bool dh_mesh_equal(const dh_mesh *a, const dh_mesh *b);
/* Ranks that a layer's experts are spread over, among which rows of tokens are exchanged. */
static inline dh_group_kind dh_mesh_expert_group(const dh_mesh *mesh)
{
    return mesh->whole_experts ? DH_GROUP_TP_EP : DH_GROUP_EP;
}
/* The mesh of a loaded job. */
dh_status dh_mesh_from_job(dh_ctx *ctx, const dh_job *job, dh_mesh *mesh);

/* Rank in [0, ranks) to coordinates and back (ep and edp are ignored on the way back). */
dh_coord dh_mesh_coord(const dh_mesh *mesh, int64_t rank);
int64_t dh_mesh_rank(const dh_mesh *mesh, dh_coord coord);
int64_t dh_mesh_node(const dh_mesh *mesh, int64_t rank);

const char *dh_group_name(dh_group_kind group);
const char *dh_group_doc(dh_group_kind group); /* its purpose */
/* Whether its members' coordinates on an axis (dh_mesh_axis) differ; DH_MESH_PP: of stages. */
bool dh_group_varies(dh_group_kind group, int axis);
/* Whether of the stages its members are on two, g and pp-1-g, which hold the same layers where
 * two copies of the model lie in opposite directions. The middle one of an odd number has none. */
static inline bool dh_group_joins_copies(dh_group_kind group)
{
    return group == DH_GROUP_DP_CP_COPIES || group == DH_GROUP_EDP_CP_COPIES;
}

/* ---- a group on one node, and across nodes ---- */

typedef struct dh_group_stages {
    dh_group_kind local, cross;
    int64_t per_node, n_nodes; /* members of either: their product is the group's size */
} dh_group_stages;
/* Whether a group can work in two stages. It must be of DH_GROUP_STAGE_LIST, and lie on two or more
 * nodes with the same number of members, at least two, on each. With n = per_node, its i-th member
 * is number i mod n of its local group and number i / n of its cross group.
 * out       stages: set where it can
 * returns   NULL, or why not */
const char *dh_mesh_group_stages(const dh_mesh *mesh, dh_group_kind group, dh_group_stages *stages);
/* The stages of the group that experts are spread over, for a dispatch that sends a token once to
 * each node.
 * out       stages: set where it can
 * returns   NULL, or why not */
const char *dh_mesh_dispatch_stages(const dh_mesh *mesh, dh_group_stages *stages);
typedef enum dh_group_stage { DH_STAGE_WHOLE, DH_STAGE_LOCAL, DH_STAGE_CROSS } dh_group_stage;
/* The group that a kind is a stage of; whole groups are their own. */
dh_group_kind dh_group_whole(dh_group_kind group);
/* Whether nodes are equal runs of one axis, with all faster axes whole inside each. */
bool dh_mesh_cuts_one_axis(const dh_mesh *mesh);
/* How many neighbouring coordinates of an axis lie on a node: all, or as many as divide it; 1 where
 * a node ends elsewhere. */
int64_t dh_mesh_run_on_node(const dh_mesh *mesh, int axis);

/* How members lie on an axis along which they differ, and the length of a run:
 *   DH_STAGE_WHOLE   the whole axis
 *   DH_STAGE_LOCAL   a run of neighbours: on a node, with the same key and value head, or of
 *                    dh_mesh.share_ranks
 *   DH_STAGE_CROSS   one of each run */
dh_group_stage dh_group_spread(dh_group_kind group);
int64_t dh_mesh_group_run(const dh_mesh *mesh, dh_group_kind group, int axis);

/* ---- members ---- */

/* Members of a group of this kind (the same for all of a kind). */
int64_t dh_mesh_group_size(const dh_mesh *mesh, dh_group_kind group);
/* Number of the rank's group among those of its kind: the colour of a communicator split.
 * Groups are numbered by their first members. */
int64_t dh_mesh_group_id(const dh_mesh *mesh, dh_group_kind group, int64_t rank);
/* Position of the rank in its group; members are in rank order. -1 if the rank has none: inner
 * stages for DH_GROUP_EMBED, the middle one for a group of copies. */
int64_t dh_mesh_group_index(const dh_mesh *mesh, dh_group_kind group, int64_t rank);
/* Rank of the i-th member, i in [0, group_size), of the rank's group. */
int64_t dh_mesh_group_member(const dh_mesh *mesh, dh_group_kind group, int64_t rank, int64_t i);

/* How many members there are, from the first, before they repeat: the next ones lie at the same
 * places of further nodes. */
int64_t dh_mesh_group_pattern(const dh_mesh *mesh, dh_group_kind group);

/* How a rank's group lies on the nodes. */
typedef struct dh_group_span {
    int64_t n_nodes;      /* 1: local links only */
    int64_t max_per_node; /* most members on one node */
} dh_group_span;
/* Time proportional to dh_mesh_group_pattern. */
dh_group_span dh_mesh_group_span(const dh_mesh *mesh, dh_group_kind group, int64_t rank);
/* All members on one node. */
bool dh_mesh_group_is_local(const dh_mesh *mesh, dh_group_kind group, int64_t rank);

#ifdef __cplusplus
}
#endif
#endif
