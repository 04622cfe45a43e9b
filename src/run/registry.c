/* The backends that were built. */
#include "run/exec/backend.h"

#include <string.h>

#include "run/cpu/backend.h"

static const dh_backend *const backends[] = {&dh_backend_cpu};

const dh_backend *const *dh_backends(size_t *n)
{
    *n = DH_COUNTOF(backends);
    return backends;
}

const dh_backend *dh_backend_find(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(backends); i++)
        if (strcmp(backends[i]->name, name) == 0) return backends[i];
    return NULL;
}
