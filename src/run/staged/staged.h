/* Inside of the staged device: what its files share. */
#ifndef DH_RUN_STAGED_STAGED_H
#define DH_RUN_STAGED_STAGED_H

#include "run/exec/device.h"

/* base.at is reserved and never mapped for reading or writing: whoever follows an address on the
 * device dies there. The bytes lie elsewhere, and only kernels and copies are told where. */
typedef struct staged_slab {
    dh_slab base;
    unsigned char *bytes;
    size_t reserved; /* at either place, with a guard page behind the bytes */
} staged_slab;

/* Where the byte at an address on the device lies; NULL of NULL. */
static inline unsigned char *staged_bytes(const dh_slab *slab, const void *at)
{
    if (!at) return NULL;
    return ((const staged_slab *)slab)->bytes + ((const unsigned char *)at - slab->at);
}

/* streams.c */
dh_status staged_streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                                const dh_streams_spec *spec, dh_streams **streams);
void staged_streams_destroy(dh_streams *streams);
dh_status staged_issue(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command);
dh_status staged_run(dh_ctx *ctx, dh_streams *streams, bool single_steps);
int64_t staged_began_ns(const dh_streams *streams, uint32_t id);
int64_t staged_event_ns(const dh_streams *streams, uint32_t id);

#endif
