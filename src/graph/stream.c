/* The table of streams. See stream.h. */
#include "graph/stream.h"

static const struct {
    const char *name;
    dh_engine engine;
    dh_traffic traffic;
} streams[DH_N_STREAM] = {
#define X(code, name, engine, traffic) [code] = {name, engine, traffic},
    DH_STREAM_LIST(X)
#undef X
};

const char *dh_stream_name(dh_stream stream)
{
    return (unsigned)stream < DH_N_STREAM ? streams[stream].name : "?";
}

dh_engine dh_stream_engine(dh_stream stream)
{
    return streams[stream].engine;
}

dh_traffic dh_stream_traffic(dh_stream stream)
{
    return streams[stream].traffic;
}

/* Gradients and parameters may wait for each other, and take long: on the layers' streams a
 * reduction would stand before what the next stage or the next operator waits for. A transfer
 * between stages waits for the other one, and would hold up the layers meanwhile. */
static const dh_traffic traffic_of[DH_N_GROUPS] = {
    [DH_GROUP_DP] = DH_TRAFFIC_DATA,
    [DH_GROUP_EDP] = DH_TRAFFIC_DATA,
    [DH_GROUP_DP_CP] = DH_TRAFFIC_DATA,
    [DH_GROUP_EDP_CP] = DH_TRAFFIC_DATA,
    [DH_GROUP_TP_PP] = DH_TRAFFIC_DATA,
    [DH_GROUP_EMBED] = DH_TRAFFIC_DATA,
    [DH_GROUP_TP_EP_PP] = DH_TRAFFIC_DATA,
    [DH_GROUP_WORLD] = DH_TRAFFIC_DATA,
    [DH_GROUP_DP_CP_COPIES] = DH_TRAFFIC_DATA,
    [DH_GROUP_EDP_CP_COPIES] = DH_TRAFFIC_DATA,
    [DH_GROUP_DP_CP_SHARE] = DH_TRAFFIC_DATA,
    [DH_GROUP_EDP_CP_SHARE] = DH_TRAFFIC_DATA,
    [DH_GROUP_STAGE] = DH_TRAFFIC_DATA,
    [DH_GROUP_PP] = DH_TRAFFIC_STAGES,
    [DH_GROUP_PP_ODD] = DH_TRAFFIC_STAGES_ODD,
    [DH_GROUP_PP_BACK] = DH_TRAFFIC_BACK,
    [DH_GROUP_PP_BACK_ODD] = DH_TRAFFIC_BACK_ODD,
};

static dh_traffic traffic_for(dh_group_kind group)
{
    return traffic_of[dh_group_whole(group)];
}

/* Where there is next to nothing of one kind, a further stream and its thread would be for
 * nothing: with one rank of data, or where layers do not communicate. Copies of the model are ranks
 * of data too, and come to the sum at different times, between the slots of different stages. */
static dh_traffic traffic_on(const dh_mesh *mesh, dh_group_kind group)
{
    const bool apart[DH_N_TRAFFIC] = {[DH_TRAFFIC_DATA] =
                                          mesh->dp > 1 || dh_group_joins_copies(group),
                                      [DH_TRAFFIC_STAGES] = mesh->tp * mesh->cp * mesh->ep > 1,
                                      [DH_TRAFFIC_STAGES_ODD] = true,
                                      [DH_TRAFFIC_BACK] = true,
                                      [DH_TRAFFIC_BACK_ODD] = true};
    return apart[traffic_for(group)] ? traffic_for(group) : DH_TRAFFIC_LAYERS;
}

static const dh_stream stream_at[DH_N_TRAFFIC][DH_N_ENGINE] = {
#define X(code, name, engine, traffic) [traffic][engine] = code,
    DH_STREAM_LIST(X)
#undef X
};

dh_stream dh_stream_of_group(dh_group_kind group, const dh_mesh *mesh, int64_t rank)
{
    const bool local = dh_mesh_group_is_local(mesh, group, rank);
    return stream_at[traffic_on(mesh, group)][local ? DH_ENGINE_LOCAL : DH_ENGINE_CROSS];
}

dh_stream dh_stream_of(const dh_op *op, const dh_mesh *mesh, int64_t rank)
{
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return DH_STREAM_COMPUTE;
    return dh_stream_of_group((dh_group_kind)op->group, mesh, rank);
}
