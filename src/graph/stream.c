/* The table of streams. See stream.h. */
#include "dhelix/stream.h"

static const struct {
    const char *name;
    dh_engine engine;
} streams[DH_N_STREAM] = {
#define X(code, name, engine) [code] = {name, engine},
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

dh_stream dh_stream_of(const dh_op *op, const dh_mesh *mesh, int64_t rank)
{
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return DH_STREAM_COMPUTE;
    const bool local = dh_mesh_group_is_local(mesh, (dh_group_kind)op->group, rank);
    return local ? DH_STREAM_LOCAL : DH_STREAM_CROSS;
}
