/* Checks for arguments that callers of the public functions leave out. */
#ifndef DH_BASE_NEEDS_H
#define DH_BASE_NEEDS_H

#include "base/base.h"

/* A pointer that a function cannot do without. */
#define DH_NEEDS(ctx, pointer)                                                                     \
    do {                                                                                           \
        if (!(pointer)) return dh_fail((ctx), DH_EINVAL, "%s: %s is NULL", __func__, #pointer);    \
    } while (0)
/* A list of n, of which only an empty one may be NULL. */
#define DH_NEEDS_LIST(ctx, list, n)                                                                \
    do {                                                                                           \
        if ((n) > 0) DH_NEEDS((ctx), (list));                                                      \
    } while (0)
/* Options that are NULL are all 0. */
#define DH_OR_DEFAULTS(type, options)                                                              \
    static const type no_options = {0};                                                            \
    if (!(options)) (options) = &no_options

#endif
