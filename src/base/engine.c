/* The table of engines. */
#include "base/engine.h"

static const struct {
    const char *name;
    char mark;
    bool link;
} engines[DH_N_ENGINE] = {
#define X(code, name, mark, link) [code] = {name, mark, link},
    DH_ENGINE_LIST(X)
#undef X
};

const char *dh_engine_name(dh_engine engine)
{
    return engines[engine].name;
}

char dh_engine_mark(dh_engine engine)
{
    return engines[engine].mark;
}

bool dh_engine_is_link(dh_engine engine)
{
    return (unsigned)engine < DH_N_ENGINE && engines[engine].link;
}
