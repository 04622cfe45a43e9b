/* Engines: what does the work of a rank, the device that computes or a link to other ranks.
 *
 * One table. Work on one engine shares its rate; whatever has a rate, a wire or a colour by
 * what an operator occupies is indexed by engine. A copy engine is a further row. */
#ifndef DH_BASE_ENGINE_H
#define DH_BASE_ENGINE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(code, name, mark in drawings, is a link to other ranks) */
#define DH_ENGINE_LIST(X)                                                                          \
    X(DH_ENGINE_COMPUTE, "compute", '=', false)                                                    \
    X(DH_ENGINE_LOCAL, "local", '-', true) /* inside a node */                                     \
    X(DH_ENGINE_CROSS, "cross", '~', true) /* between nodes */

typedef enum dh_engine {
#define X(code, name, mark, link) code,
    DH_ENGINE_LIST(X)
#undef X
        DH_N_ENGINE
} dh_engine;

const char *dh_engine_name(dh_engine engine);
char dh_engine_mark(dh_engine engine);
bool dh_engine_is_link(dh_engine engine); /* false where it is no engine */

#ifdef __cplusplus
}
#endif
#endif
