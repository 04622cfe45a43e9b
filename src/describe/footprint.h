/* Where a program's memory goes. */
#ifndef DH_DESCRIBE_FOOTPRINT_H
#define DH_DESCRIBE_FOOTPRINT_H

#include "program/program.h"

typedef struct dh_footprint {
    uint64_t persistent[DH_BUF_ACT]; /* bytes by kind, padding included in none */
    uint64_t padding;                /* between persistent buffers */
    uint64_t kept;                   /* for another program of the same slab */
    /* The instruction during which most transient bytes are alive, and what they are. */
    uint32_t peak_instr;
    uint64_t activations, scratch;
    uint64_t unused; /* bytes of the slab in holes between buffers at that moment */
} dh_footprint;

dh_status dh_footprint_of(dh_ctx *ctx, const dh_program *program, dh_footprint *footprint);

#endif
