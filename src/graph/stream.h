/* Streams: where the operators of a rank run, each stream in its own order.
 *
 * One table. A stream is an order of operators on one engine. Streams of one engine share its
 * rate, but the order on one of them holds up no other. Whoever counts, names or draws streams
 * follows the table; a further one is a row, and what runs on it the rule in stream.c. */
#ifndef DH_GRAPH_STREAM_H
#define DH_GRAPH_STREAM_H

#include "base/engine.h"
#include "config/mesh.h"
#include "graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Purpose of a communication. A purpose without a stream of its own uses the layers' stream. */
typedef enum dh_traffic {
    DH_TRAFFIC_LAYERS, /* tensor, context and expert parallelism */
    DH_TRAFFIC_DATA,   /* data parallelism: gradients, parameters, the gradient norm */
    /* Transfers between ranks of the pipeline, by link and direction: those of a rank's two links,
     * and of the directions of each, go at once. Links from even and from odd ranks to the next. */
    DH_TRAFFIC_STAGES,
    DH_TRAFFIC_STAGES_ODD,
    DH_TRAFFIC_BACK,
    DH_TRAFFIC_BACK_ODD,
    DH_N_TRAFFIC
} dh_traffic;

/* X(code, name, engine, traffic) */
#define DH_STREAM_LIST(X)                                                                          \
    X(DH_STREAM_COMPUTE, "compute", DH_ENGINE_COMPUTE, DH_TRAFFIC_LAYERS)                          \
    X(DH_STREAM_LOCAL, "local", DH_ENGINE_LOCAL, DH_TRAFFIC_LAYERS)                                \
    X(DH_STREAM_CROSS, "cross", DH_ENGINE_CROSS, DH_TRAFFIC_LAYERS)                                \
    X(DH_STREAM_LOCAL_DATA, "local-data", DH_ENGINE_LOCAL, DH_TRAFFIC_DATA)                        \
    X(DH_STREAM_CROSS_DATA, "cross-data", DH_ENGINE_CROSS, DH_TRAFFIC_DATA)                        \
    X(DH_STREAM_LOCAL_STAGES, "local-pipe", DH_ENGINE_LOCAL, DH_TRAFFIC_STAGES)                    \
    X(DH_STREAM_CROSS_STAGES, "cross-pipe", DH_ENGINE_CROSS, DH_TRAFFIC_STAGES)                    \
    X(DH_STREAM_LOCAL_ODD, "local-pipe-odd", DH_ENGINE_LOCAL, DH_TRAFFIC_STAGES_ODD)               \
    X(DH_STREAM_CROSS_ODD, "cross-pipe-odd", DH_ENGINE_CROSS, DH_TRAFFIC_STAGES_ODD)               \
    X(DH_STREAM_LOCAL_BACK, "local-back", DH_ENGINE_LOCAL, DH_TRAFFIC_BACK)                        \
    X(DH_STREAM_CROSS_BACK, "cross-back", DH_ENGINE_CROSS, DH_TRAFFIC_BACK)                        \
    X(DH_STREAM_LOCAL_BACK_ODD, "local-back-odd", DH_ENGINE_LOCAL, DH_TRAFFIC_BACK_ODD)            \
    X(DH_STREAM_CROSS_BACK_ODD, "cross-back-odd", DH_ENGINE_CROSS, DH_TRAFFIC_BACK_ODD)

typedef enum dh_stream {
#define X(code, name, engine, traffic) code,
    DH_STREAM_LIST(X)
#undef X
        DH_N_STREAM
} dh_stream;

const char *dh_stream_name(dh_stream stream); /* "?": no stream */
dh_engine dh_stream_engine(dh_stream stream);
dh_traffic dh_stream_traffic(dh_stream stream);
/* The stream of an operator on this rank, by its resource, its group and the group's purpose. All
 * operators of a group run on one stream, the same on all of its members. */
dh_stream dh_stream_of(const dh_op *op, const dh_mesh *mesh, int64_t rank);
/* That of a group's operators. */
dh_stream dh_stream_of_group(dh_group_kind group, const dh_mesh *mesh, int64_t rank);

#ifdef __cplusplus
}
#endif
#endif
