/* Streams: where the operators of a rank run, each stream in its own order.
 *
 * One table. A stream is an order of operators on one engine. Streams of one engine share its
 * rate, but the order on one of them holds up no other. Whoever counts, names or draws streams
 * follows the table; a further one is a row, and a case in dh_stream_of. */
#ifndef DHELIX_STREAM_H
#define DHELIX_STREAM_H

#include "dhelix/engine.h"
#include "dhelix/graph.h"
#include "dhelix/mesh.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(code, name, engine) */
#define DH_STREAM_LIST(X)                                                                          \
    X(DH_STREAM_COMPUTE, "compute", DH_ENGINE_COMPUTE)                                             \
    X(DH_STREAM_LOCAL, "local", DH_ENGINE_LOCAL)                                                   \
    X(DH_STREAM_CROSS, "cross", DH_ENGINE_CROSS)

typedef enum dh_stream {
#define X(code, name, engine) code,
    DH_STREAM_LIST(X)
#undef X
        DH_N_STREAM
} dh_stream;

const char *dh_stream_name(dh_stream stream); /* "?": no stream */
dh_engine dh_stream_engine(dh_stream stream);
/* The stream of an operator on this rank. All operators of a group run on one stream, the same
 * on all of its members. */
dh_stream dh_stream_of(const dh_op *op, const dh_mesh *mesh, int64_t rank);

#ifdef __cplusplus
}
#endif
#endif
