/* How much longer a text may get while it is normalised and rewritten. */
#ifndef DH_DATA_GROWTH_H
#define DH_DATA_GROWTH_H

#include "base/base.h"

/* U+FDFA in NFKD and as characters of bytes grows to 22 times its bytes: nothing in use to more. */
enum { DH_GROWTH_BASE = 4096, DH_GROWTH_PER_BYTE = 32 };

/* The most bytes that a text of n bytes may become. */
static inline size_t dh_growth_most(size_t n)
{
    return DH_GROWTH_BASE + DH_GROWTH_PER_BYTE * n;
}

/* Appends what fits below `most` bytes. false: it does not, and nothing is appended. */
static inline bool dh_growth_put(dh_str *out, size_t most, const void *text, size_t n)
{
    if (n > most || out->len > most - n) return false;
    dh_str_append(out, text, n);
    return true;
}

/* step: what wrote the text. */
static inline dh_status dh_growth_fail(dh_ctx *ctx, const char *step, size_t n)
{
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "%s makes more than %zu bytes of a text of %zu (at most %d, and %d more per byte)", step,
        dh_growth_most(n), n, DH_GROWTH_BASE, DH_GROWTH_PER_BYTE);
}

#endif
