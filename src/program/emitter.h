/* The state of an emission, shared by the files that make it up: emit.c (blocks and
 * instructions), layout.c (persistent buffers), operands.c (buffers of tensors) and
 * dependences.c (waits). Callers see emit.h. */
#ifndef DH_PROGRAM_EMITTER_H
#define DH_PROGRAM_EMITTER_H

#include "program/clock.h"
#include "program/emit.h"
#include "program/program_spec.h"

/* Clocks count moments, what is complete then (dh_emitter.moments) plus one. */
typedef struct dh_accesses {
    dh_clock_vec writes, reads; /* last on each stream */
} dh_accesses;

/* Accesses of a range of a buffer, or of a parameter's bytes of one kind. Ranges of one buffer may
 * overlap; those of a parameter do not, and are all of it. */
typedef struct dh_access_range {
    uint64_t byte0, n_bytes;
    uint32_t next; /* next access to the same buffer or parameter, DH_NONE */
    dh_accesses seen;
} dh_access_range;

/* The blocks (DH_BLOCK_GATHER) that gather a block's matrices: its own, its experts', its adapters
 * or a tied embedding. [0] forward, [1] backward. DH_NONE: not needed. */
enum { DH_MAX_GATHERS = 3 };
typedef struct dh_block_gathers {
    uint32_t flat[DH_MAX_GATHERS], at[2][DH_MAX_GATHERS];
    /* Behind the forward the rank's share of its node or neighbours, where that stays; and what
     * gathers those */
    uint32_t share[DH_MAX_GATHERS], near[2][DH_MAX_GATHERS];
} dh_block_gathers;

/* Where a flat's matrices are whole now: the gather that made them so, of a micro-batch; block
 * DH_NONE: nowhere. And where the rank's share of its node is, likewise. */
typedef struct dh_whole {
    uint32_t block, share;
    int32_t mb, share_mb, n_users;
} dh_whole;

/* Where a parameter's bytes of one kind lie. */
typedef struct dh_param_place {
    uint64_t byte0, end;
    uint32_t buffer, param;
} dh_param_place;

struct dh_emitter {
    const dh_program_spec *spec;
    dh_program *program;
    uint8_t stream_of[DH_N_GROUPS]; /* dh_stream of a group's communication */
    DH_VEC(uint32_t) param0;        /* by block: its first own parameter; the others follow */
    bool again;                     /* blocks that are added are of a second copy */

    /* operands.c */
    DH_VEC(uint32_t **) frames;     /* [block][micro-batch] -> buffer by tensor, or NULL */
    size_t n_frames;                /* micro-batches, and one for what belongs to none */
    uint32_t (*inputs)[DH_N_INPUT]; /* by micro-batch */
    uint32_t states[DH_N_STATE];
    DH_VEC(uint32_t) routers; /* DH_STATE_ROUTER by micro-batch */
    DH_VEC(uint32_t) kv;      /* by layer */

    /* dependences.c */
    DH_VEC(dh_access_range) ranges;
    DH_VEC(uint32_t) range0;                      /* by buffer: its first, DH_NONE */
    dh_access_range (*params)[DH_BUF_ADAM_V + 1]; /* by parameter and kind: its first range */
    dh_param_place *places;    /* [kind][parameter], parameters in the order of flats */
    uint32_t *place0;          /* [flats + 1] the first parameter of a flat in that order */
    DH_VEC(dh_clock_vec) done; /* by instruction: what is known complete after it */
    /* Every part of every instruction, in order, the last one being the instruction's own end:
     * where there are no parts, instructions. */
    DH_VEC(dh_wait) moments;
    dh_clock_vec known[DH_N_STREAM];
    dh_clock_vec barrier;  /* lower bound of every further instruction */
    dh_clock_vec unbarred; /* ends of what no barrier waits for, by stream */
    dh_clock_vec after;    /* further lower bound of the next instruction */
    DH_VEC(uint32_t) ends; /* by instruction: the moment it is complete */

    /* gathers.c: where a block's matrices are whole, while it uses them */
    DH_VEC(dh_block_gathers) gathers; /* by block */
    DH_VEC(dh_whole) whole;           /* by flat */
};

const dh_graph *dh_emit_graph_of(const dh_emitter *e, uint32_t block);
dh_status dh_emit_buffer(dh_ctx *ctx, dh_emitter *e, const dh_buffer *buffer, uint32_t *id);
/* The next bytes of those that are kept. */
dh_status dh_emit_persistent(dh_ctx *ctx, dh_emitter *e, dh_buffer_kind kind, uint32_t owner,
                             uint64_t n_bytes, uint32_t *id);
/* Calls visit for each parameter of a flat, in the order of blocks. */
void dh_emit_visit_params(const dh_emitter *e, uint32_t flat, void (*visit)(uint32_t, void *),
                          void *arg);

/* Of every parameter, when all have their homes: one range a kind. */
dh_status dh_emit_init_params(dh_ctx *ctx, dh_emitter *e);
/* From here on what uses some rows of a parameter is recorded apart from what uses others. */
dh_status dh_emit_cut_param(dh_ctx *ctx, dh_emitter *e, uint32_t param, const dh_operand *rows);
bool dh_emit_written_before(dh_emitter *e, const dh_operand *operand);
/* Finds the waits of the program's next instruction, and records its accesses. Its operator and
 * stream are set.
 *
 * in        scopes: for each operand, inputs then outputs, the bytes that order its accesses: at
 *           least its own */
dh_status dh_emit_waits(dh_ctx *ctx, dh_emitter *e, const dh_op_info *info,
                        const dh_operand *scopes, dh_instr *instr);

#endif
