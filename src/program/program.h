/* The program of one rank: a static list of instructions on streams.
 *
 * An instruction executes one graph operator for one block instance and
 * micro-batch, on buffers whose offsets in the rank's slab are fixed before the
 * first step. Streams run their instructions in order. Across streams an
 * instruction waits for named earlier instructions ("events" are positions in
 * a stream). It may also wait for parts of their outputs: chunks of rows that are complete
 * before the instruction is (dh_op.parts). An instruction that overwrites storage waits for
 * every user of it to complete. A backend and the simulator execute the same program. */
#ifndef DH_PROGRAM_PROGRAM_H
#define DH_PROGRAM_PROGRAM_H

#include "config/mesh.h"
#include "graph/graph.h"
#include "graph/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- buffers ------------------------------------------------------------------------- */

/* Persistent kinds come first and lie in this order at the start of the slab, so
 * that training, evaluation and decoding programs of one model agree on them. */
typedef enum dh_buffer_kind {
    DH_BUF_MASTER, /* float32 parameters */
    DH_BUF_COPY,   /* compute-precision copies of matrices (bf16 training) */
    DH_BUF_STATE,  /* loss sums, gradient norm */
    DH_BUF_GRAD,
    DH_BUF_ADAM_M,
    DH_BUF_ADAM_V,
    DH_BUF_KV,        /* KV caches of decoding */
    DH_BUF_IN,        /* of a program of its own (standalone.h): inputs, which it may update */
    DH_BUF_OUT,       /* its outputs */
    DH_BUF_ACT,       /* transient from here on */
    DH_BUF_UNREDUCED, /* a flat's matrix gradients, until they are reduced to shards */
    DH_BUF_REDUCED,   /* the rank's shards of them, from there to the end of the step */
    DH_BUF_WORK,      /* scratch of one instruction */
    DH_BUF_ADDEND,    /* shards of one micro-batch's gradients, until they are added to REDUCED */
    DH_N_BUFFER_KIND
} dh_buffer_kind;
const char *dh_buffer_kind_name(dh_buffer_kind kind);
static inline bool dh_buffer_is_persistent(dh_buffer_kind kind)
{
    return kind < DH_BUF_ACT;
}
/* Whether its owner is a flat. */
static inline bool dh_buffer_is_of_flat(dh_buffer_kind kind)
{
    return (kind <= DH_BUF_ADAM_V && kind != DH_BUF_STATE) || kind == DH_BUF_UNREDUCED ||
           kind == DH_BUF_REDUCED || kind == DH_BUF_ADDEND;
}

#define DH_BUFFER_ALIGN 64

typedef struct dh_buffer {
    dh_buffer_kind kind;
    uint64_t offset, n_bytes; /* in the slab */
    uint32_t owner;           /* parameters, gradients: flat; ACT, IN, OUT: block; STATE: dh_state;
                               * KV: layer; WORK: instruction */
    uint32_t tensor;          /* ACT, IN, OUT: tensor of the block's graph; else DH_NONE */
    int32_t mb;               /* micro-batch: ACT, DH_STATE_ROUTER, and gradients that are summed by
                               * micro-batch; else -1 */
    uint32_t alias;           /* overlays this buffer in place; DH_NONE */
} dh_buffer;

/* Part of a buffer. buffer == DH_NONE: absent optional operand. */
typedef struct dh_operand {
    uint32_t buffer;
    uint64_t byte0, n_bytes;
} dh_operand;

/* ---- instructions ---------------------------------------------------------------------- */

typedef struct dh_block {
    uint32_t graph;    /* index into dh_program.graphs */
    int32_t layer;     /* layer blocks; else 0 */
    int32_t peer;      /* links: index of the other end in the pipeline group */
    int32_t tag;       /* links: 0 forward, 1 backward */
    uint32_t lengths0; /* messages: into dh_program.lengths, in elements: to each of the group's
                        * members, then from each */
    uint32_t flat;     /* flat of its own parameters, DH_NONE */
    uint32_t of;       /* gathers, reductions: the block whose parameters are gathered, or whose
                        * backward completes the gradients; else DH_NONE */
    bool again;        /* of a second copy of the model, where the rank has the first copy's too */
    uint32_t params[DH_MAX_BLOCK_PARAMS]; /* parameter index by DH_PARAM_*, DH_NONE */
} dh_block;

/* Places of a parameter, its copy, gradient and moments. The parameters of a flat
 * lie side by side in one buffer per kind, so that one transfer moves them all. */
typedef struct dh_param_home {
    uint32_t block;                   /* its owner: the embedding for a tied head */
    int64_t first;                    /* its first element in its flat's matrices, or vectors */
    dh_operand at[DH_BUF_ADAM_V + 1]; /* by dh_buffer_kind; buffer DH_NONE where absent */
} dh_param_home;

/* A bucket: the parameters of one block, or of neighbouring blocks, whose gradients are reduced
 * together. It is two runs of elements, with each parameter aligned to DH_FLAT_ALIGN elements:
 *
 *   matrices   cut into equal pieces, one transfer each; padding at the end makes them equal
 *   vectors    split over tensor parallelism | on all tp ranks | routers' weights | biases moved by
 *              load
 *
 * With the distributed optimizer the rank updates one shard of every piece, elements
 * [shard0, shard0 + n_shard) of it. It has moments (and, in bf16 training, masters) of these shards
 * only, one after another.
 *
 * From ZeRO-2 on the gradients of matrices do not persist. Whole ones are transient: then
 * matrix[DH_BUF_GRAD] is DH_BUF_UNREDUCED. They are reduced to shards, which the optimizer reads.
 * Where another program leaves gradients for the optimizer (DH_PART_UPDATE), the shards persist and
 * there are no whole ones.
 *
 * With reduces_each the gradients of every micro-batch are summed by themselves. Each micro-batch has
 * a buffer of whole gradients and one of shards to be added, one after another;
 * matrix[DH_BUF_GRAD] and addend name the first. */
typedef struct dh_flat {
    uint32_t first_block, last_block;     /* its blocks with the lowest, highest number */
    uint32_t after;                       /* block whose last backward completes the gradients */
    int64_t n_matrix, n_vector;           /* elements, padding included */
    int64_t n_pieces, n_piece;            /* pieces of the matrices, elements of each */
    int64_t replicated0;                  /* first vector element that all tp ranks have */
    int64_t n_by_heads;                   /* from there: gradients of the rank's own heads */
    int64_t decayed0;                     /* first vector element with weight decay */
    int64_t balanced0;                    /* first one that is moved by a router's load */
    int64_t shard0, n_shard;              /* of a piece; whole: 0, n_piece */
    dh_operand matrix[DH_BUF_ADAM_V + 1]; /* by kind: all present elements of the matrices */
    dh_operand vector[DH_BUF_ADAM_V + 1];
    dh_operand reduced; /* shards of the gradients of matrices; absent: matrix has the sums */
    dh_operand addend;  /* shards of one micro-batch, with reduces_each */
    bool reduces_each;
    uint32_t frees;      /* flat whose unreduced gradients are freed when this one's are complete */
    bool frozen;         /* its parameters are not trained: they have no gradients and no moments */
    uint32_t first_copy; /* flat of the same parameters in the rank's first copy of the model, which
                          * sums the gradients of both; DH_NONE: it is the first */
} dh_flat;
#define DH_FLAT_ALIGN 32

typedef struct dh_instr {
    uint32_t block, op; /* operator `op` of the block's graph */
    int32_t mb;         /* micro-batch; -1 for the optimizer */
    uint8_t stream;     /* dh_stream */
    uint8_t accumulate; /* bit i: output i adds to what is there */
    uint16_t n_waits;
    uint32_t wait0;    /* first of n_waits in dh_program.waits */
    uint32_t operand0; /* n_in inputs then n_out outputs (counts of the operator's row) */
    uint32_t work;     /* scratch buffer, DH_NONE */
    uint32_t part0;    /* first of its parts among the program's, where it has several */
} dh_instr;

/* A part is complete only after all parts before it. */
typedef struct dh_wait {
    uint32_t instr;
    uint32_t part; /* part of its first output; DH_NONE: the whole instruction */
} dh_wait;

/* Operators of the step that take the same time (profile.h). */
typedef struct dh_probe_class {
    const char *key, *label;
    uint32_t instr;      /* the first of the class */
    int64_t estimate_ns; /* by the costs the program was built with */
    int32_t group;       /* dh_group_kind whose members run it together; -1: there is none */
    dh_stream stream;
    bool forward, backward; /* strands in which it occurs; neither: links, optimizer */
} dh_probe_class;

/* Instructions after the step that run one operator again, or two at once, and nothing else at the
 * time. */
typedef struct dh_probe {
    uint32_t cls[2];   /* into probe_classes; one operator: cls[1] DH_NONE; a pair: of the forward
                        * strand, of the backward strand */
    uint32_t instr[2]; /* the measured instructions */
} dh_probe;

/* A training step as one program, or as several that run one after another (program_spec.h). */
typedef enum dh_step_part {
    DH_PART_STEP,  /* all of it */
    DH_PART_GRADS, /* micro-batches and the sums of their gradients, without the optimizer */
    DH_PART_UPDATE /* the optimizer, on summed gradients of the other parts */
} dh_step_part;

typedef struct dh_program {
    dh_arena *arena; /* owns names; arrays below are freed with the program */
    dh_mode mode;
    dh_step_part part;
    /* DH_PART_GRADS: several programs of a rank, one after another, may compute one step. */
    bool adds;    /* adds to the gradients and losses that the program before it left */
    bool goes_on; /* the next program adds to its gradients, so it sums none over ranks */
    bool beside;  /* it may run during another program of its rank (dh_programs_beside), on streams
                   * and groups of its own */
    dh_dtype dtype;
    dh_mesh mesh;
    int64_t rank;    /* the program's rank */
    int64_t n_micro; /* micro-batches a step on this rank */
    /* A step begins with gathers of matrices that the previous step updated in shards. Until then
     * only the rank's own shards are up to date. */
    bool gathers_first;
    bool steps_by_own; /* nothing is clipped: a region may step by the norm of its own gradients */
    bool mirrored;     /* two copies of the model, in opposite directions of the pipeline */
    DH_VEC(dh_graph *) graphs; /* owned */
    DH_VEC(dh_block) blocks;
    DH_VEC(dh_param) params;     /* of this rank, without duplicates */
    DH_VEC(dh_param_home) homes; /* by parameter */
    DH_VEC(dh_flat) flats;
    DH_VEC(dh_operand) ranges; /* named by tensors of DH_TENSOR_RANGE */
    DH_VEC(dh_buffer) buffers;
    DH_VEC(dh_operand) operands;
    DH_VEC(dh_instr) instrs;
    DH_VEC(dh_wait) waits;
    DH_VEC(int64_t) lengths;              /* lengths of messages, dh_block.lengths0 */
    uint32_t n_parts;                     /* parts of all instructions with several parts */
    DH_VEC(dh_probe_class) probe_classes; /* none without spec.probes */
    DH_VEC(dh_probe) probes;
    uint64_t persistent_bytes; /* part of slab_bytes, at the start */
    uint64_t slab_bytes;       /* planned peak; no byte beyond is used */
    uint64_t live_bytes;       /* most bytes alive at once, which is at most slab_bytes */
    dh_operand result;         /* decode: logits f32 [1,V]; other modes: buffer DH_NONE */
} dh_program;

void dh_program_destroy(dh_program *program);

static inline const dh_graph *dh_instr_graph(const dh_program *p, const dh_instr *i)
{
    return p->graphs.at[p->blocks.at[i->block].graph];
}
static inline const dh_op *dh_instr_op(const dh_program *p, const dh_instr *i)
{
    return &dh_instr_graph(p, i)->ops.at[i->op];
}
/* Operand k: inputs first, then outputs. */
static inline const dh_operand *dh_instr_operand(const dh_program *p, const dh_instr *i, int k)
{
    return &p->operands.at[i->operand0 + (uint32_t)k];
}
static inline uint32_t dh_instr_n_parts(const dh_program *p, uint32_t instr)
{
    return p->n_parts == 0 ? 1 : dh_op_n_parts(dh_instr_op(p, &p->instrs.at[instr]));
}
/* Number of parts that are not complete when a wait ends; 0: the instruction is complete. */
static inline uint32_t dh_wait_parts_left(const dh_program *p, dh_wait wait)
{
    return wait.part == DH_NONE ? 0 : dh_instr_n_parts(p, wait.instr) - 1 - wait.part;
}
/* The part of an instruction's first output after which its bytes in the operand may be read; the
 * last part where it writes none of them there. */
uint32_t dh_instr_part_of(const dh_program *program, uint32_t instr, const dh_operand *operand);
/* "instruction 17 linear -> qkv (layer 3, micro-batch 0, compute stream)" */
const char *dh_instr_describe(const dh_program *program, uint32_t instr, char *buf, size_t cap);
const char *dh_buffer_describe(const dh_program *program, uint32_t buffer, char *buf, size_t cap);

/* Parameter index with this name, DH_NONE. */
uint32_t dh_program_param(const dh_program *program, const char *name);
uint32_t dh_program_state_buffer(const dh_program *program, dh_state state);
/* Operand o of a flat's gradients for a micro-batch (dh_flat.reduces_each); o itself otherwise. */
dh_operand dh_program_of_micro(const dh_program *program, dh_operand o, int32_t mb);
/* The piece of a flat's matrices whose shard on this rank holds operand o of a persistent buffer.
 * It is o itself where o lies elsewhere or is at the same place on all ranks. */
dh_operand dh_program_piece(const dh_program *program, dh_operand o);
/* Cuts elements [*first, *first + *n) of a matrix down to those in piece k of its flat that this
 * rank has of a kind, all or a shard. The operand's byte0 is the place of the first. Only the shard
 * of a sharded gradient is summed over all ranks. */
dh_operand dh_program_param_part(const dh_program *program, uint32_t param, dh_buffer_kind kind,
                                 int64_t k, int64_t *first, int64_t *n);
/* Bytes of overwritten values that steps ahead of the gradient norm keep: transient, all alive
 * at the end of the step. */
uint64_t dh_program_kept_bytes(const dh_program *program);
/* Ranks that hold the same elements of a block's parameters and see other samples, or other tokens
 * of the same samples. They sum gradients, and the distributed optimizer shards over them. Ranks of
 * the other copy of the model belong to them where it lies on another stage's ranks. */
dh_group_kind dh_program_data_group(const dh_program *program, uint32_t block);
/* Whether the group has ranks of both copies. */
bool dh_program_joins_copies(const dh_program *program);
static inline bool dh_program_is_experts(const dh_program *p, uint32_t block)
{
    return p->graphs.at[p->blocks.at[block].graph]->kind == DH_BLOCK_EXPERTS;
}

/* When an instruction ran, in nanoseconds of any clock. A communication begins when its rank
 * reaches it, and moves data from met_ns on, when all its partners have arrived. For
 * computation, and where it cannot be known (mpi), met_ns is start_ns. A program's spans are
 * those of its instructions, then those of parts of outputs. A part's span begins at the end of
 * the part before, or at met_ns, and ends when the part is complete. */
typedef struct dh_span {
    int64_t start_ns, met_ns, end_ns;
} dh_span;

static inline size_t dh_program_n_spans(const dh_program *p)
{
    return p->instrs.n + p->n_parts;
}
/* Index of the span of a part, of an instruction with several parts. */
static inline size_t dh_program_part_span(const dh_program *p, uint32_t instr, uint32_t part)
{
    return p->instrs.n + p->instrs.at[instr].part0 + part;
}
/* When a wait ended. */
static inline int64_t dh_wait_end_ns(const dh_program *p, const dh_span *spans, dh_wait wait)
{
    const bool whole = dh_wait_parts_left(p, wait) == 0;
    return spans[whole ? wait.instr : dh_program_part_span(p, wait.instr, wait.part)].end_ns;
}

/* ---- verifying ------------------------------------------------------------------------------ */

/* Proves from instructions, waits and offsets alone:
 *   - the program ends (no cyclic wait);
 *   - no two unordered instructions touch overlapping bytes with a write;
 *   - every read finds bytes of its own buffer, written before and not overwritten since;
 *   - nothing lies outside the slab.
 * The message names instruction, operator, layer, micro-batch and rank at fault.
 * errors    DH_EVERIFY
 * cost      O(operands * overlaps) */
dh_status dh_program_verify(dh_ctx *ctx, const dh_program *program);

/* Equal for programs that run the same instructions on the same bytes with the same waits. */
uint64_t dh_program_digest(const dh_program *program);
/* Size of the program itself in memory, without its graphs, which are small. */
uint64_t dh_program_bytes(const dh_program *program);

/* Listing with operands, offsets and waits, for people and for comparing. */
dh_status dh_program_print(dh_ctx *ctx, const dh_program *program, dh_str *out);

#ifdef __cplusplus
}
#endif
#endif
