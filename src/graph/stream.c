/* The table of streams. See stream.h. */
#include "graph/stream.h"

static const struct {
    const char *name;
    dh_engine engine;
} streams[DH_N_STREAM] = {
#define X(code, name, engine, traffic) [code] = {name, engine},
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

/* Gradients and parameters may wait for each other, and take long: on the layers' streams a
 * reduction would stand before what the next stage or the next operator waits for. With one rank
 * of data there is next to nothing of them, and a further thread would be for nothing. */
static const dh_traffic traffic_of[DH_N_GROUPS] = {
    [DH_GROUP_DP] = DH_TRAFFIC_DATA,       [DH_GROUP_EDP] = DH_TRAFFIC_DATA,
    [DH_GROUP_DP_CP] = DH_TRAFFIC_DATA,    [DH_GROUP_EDP_CP] = DH_TRAFFIC_DATA,
    [DH_GROUP_TP_PP] = DH_TRAFFIC_DATA,    [DH_GROUP_EMBED] = DH_TRAFFIC_DATA,
    [DH_GROUP_TP_EP_PP] = DH_TRAFFIC_DATA, [DH_GROUP_WORLD] = DH_TRAFFIC_DATA,
};

static const dh_stream stream_at[DH_N_TRAFFIC][DH_N_ENGINE] = {
#define X(code, name, engine, traffic) [traffic][engine] = code,
    DH_STREAM_LIST(X)
#undef X
};

dh_stream dh_stream_of(const dh_op *op, const dh_mesh *mesh, int64_t rank)
{
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return DH_STREAM_COMPUTE;
    const dh_group_kind group = (dh_group_kind)op->group;
    const bool local = dh_mesh_group_is_local(mesh, group, rank);
    const dh_traffic traffic = mesh->dp > 1 ? traffic_of[group] : DH_TRAFFIC_LAYERS;
    return stream_at[traffic][local ? DH_ENGINE_LOCAL : DH_ENGINE_CROSS];
}
