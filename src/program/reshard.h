/* Moving parameters from one layout to another, over the same ranks.
 *
 * A layout follows from a recipe: mesh, ZeRO degree, pipeline split, and the slices of tensor and
 * expert parallelism. The persistent buffers of every rank's program show it. Both layouts are
 * described by the tensors of a checkpoint. Every rank holds boxes of them, rows by columns. A box
 * that a rank of the second layout lacks is a slice. It comes from one of the ranks of the first
 * layout that hold it. A rule chooses the owner:
 *
 *   hotspa  algorithm 1 of HotSPa (SOSP 2024), slice by slice and receiver by receiver. An owner on
 *           the receiver's node comes first: the one that has sent least inside its node. Without
 *           one it is the owner that has sent least to other nodes.
 *   first   the lowest rank that has it, as a plan without a planner would do
 *   exact   a choice whose busiest wire finishes first, by branch and bound: for few slices
 *
 * Slices from one rank to another travel as one message. One operator (`messages`) sends all of a
 * rank's messages. Operators around it copy slices out of their buffers and into their new places.
 * The result is an ordinary program for every rank. It is planned, verified, simulated and run
 * like any other. */
#ifndef DH_PROGRAM_RESHARD_H
#define DH_PROGRAM_RESHARD_H

#include "base/index.h"
#include "program/program_spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of tensors to move; a mask. */
enum {
    /* Parameters of forward and backward: matrices in compute precision, vectors. */
    DH_RESHARD_PARAMS = 1,
    DH_RESHARD_GRADS = 2, /* summed gradients; of a sharded one each rank's shard */
    DH_RESHARD_STATES = 4 /* masters, copies in compute precision, moments */
};

/* ---- boxes of ranks ------------------------------------------------------------------------- */

typedef struct dh_box {
    int64_t row, n_rows, col, n_cols;
} dh_box;
static inline int64_t dh_box_elements(const dh_box *b)
{
    return b->n_rows * b->n_cols;
}
/* The intersection of two boxes; false: it is empty. */
bool dh_box_meet(const dh_box *a, const dh_box *b, dh_box *both);

/* A tensor of a checkpoint, and its kind of buffer. */
typedef struct dh_moved {
    char name[80];
    dh_buffer_kind kind;
    dh_dtype dtype;
} dh_moved;

/* A box of a tensor in a rank's memory. A box of several rows has whole stored rows of `stride`
 * elements each. */
typedef struct dh_held {
    uint32_t tensor; /* into dh_reshard.tensors */
    dh_box box;
    uint32_t buffer; /* into dh_holding.buffers */
    int64_t first;   /* element of the buffer where the box begins */
    int64_t stride;
} dh_held;

typedef struct dh_holding {
    DH_VEC(dh_held) held; /* by tensor */
    DH_VEC(dh_buffer) buffers;
    uint64_t end; /* first byte of the slab after the layout's buffers */
} dh_holding;

/* ---- slices to move -------------------------------------------------------------------------- */

typedef struct dh_owner {
    uint32_t rank, held; /* rank of the first layout, index into its boxes */
} dh_owner;

/* A box that a rank shall have. It lies wholly in one box of every owner. */
typedef struct dh_slice {
    uint32_t tensor;
    dh_box box;
    uint32_t to, held; /* rank of the second layout, and its box there */
    /* Into dh_reshard.owners; only the rank itself where it has the box. */
    uint32_t owner0, n_owners;
    uint32_t from;  /* the chosen owner, into dh_reshard.owners */
    uint32_t chunk; /* slices of a chunk travel together; 0: the slice stays on its rank */
} dh_slice;

typedef enum dh_reshard_rule {
    DH_RESHARD_HOTSPA,
    DH_RESHARD_FIRST,
    DH_RESHARD_EXACT,
    DH_N_RESHARD_RULE
} dh_reshard_rule;
const char *dh_reshard_rule_name(dh_reshard_rule rule);

typedef struct dh_reshard {
    int64_t n_ranks, ranks_per_node;
    DH_VEC(dh_moved) tensors;
    dh_index index;          /* of tensors by name and kind */
    dh_holding *holdings[2]; /* by layout, then rank */
    DH_VEC(dh_slice) slices; /* by tensor, then rank, in order of memory there */
    DH_VEC(dh_owner) owners;
    uint32_t n_chunks;
    bool adds;   /* arriving values are added to the present ones */
    bool beside; /* its programs run during others of their ranks (dh_program.beside) */
} dh_reshard;

/* One side of a reshard. */
typedef struct dh_layout {
    const dh_recipe *recipe;
    uint64_t base;     /* first byte of its persistent buffers in the slab */
    uint64_t gap;      /* DH_LAYOUT_BEHIND: bytes between the other layout and this one */
    dh_step_part part; /* part of the step that its programs run */
    bool lean;         /* its programs are lean (program_spec.h) */
} dh_layout;
#define DH_LAYOUT_BEHIND UINT64_MAX /* base of one of two layouts: right after the other */

/* Boxes that every rank holds in each layout, and slices that it lacks. No owner is chosen yet.
 * in        from, to: of one model, dtype and number of ranks, on the same nodes
 * out       caller frees with dh_reshard_fini, also on failure
 * errors    DH_EINVAL not of one model or one set of ranks; those of dh_program_build
 * cost      an outline (dh_program_spec) for each rank and layout; O(boxes * ranks) */
dh_status dh_reshard_open(dh_ctx *ctx, const dh_layout *from, const dh_layout *to, unsigned what,
                          dh_reshard *reshard);
void dh_reshard_fini(dh_reshard *reshard);

/* Boxes of one rank's program (kinds of `what`). New tensors are added to the table. */
dh_status dh_reshard_hold(dh_ctx *ctx, dh_reshard *reshard, const dh_program *program,
                          unsigned what, uint64_t base, dh_holding *holding);

/* ---- senders -------------------------------------------------------------------------------- */

/* Time of a byte on the wires of a rank: between ranks of a node, between nodes. */
typedef struct dh_reshard_wires {
    double local_ns, cross_ns;
} dh_reshard_wires;
#define DH_RESHARD_EVEN_WIRES ((dh_reshard_wires){1, 1})

/* Chooses an owner for each slice.
 * in        chunk_bytes: most bytes that a rank sends or receives at once; 0: no limit
 * out       *proved: rule exact: the search came to an end; may be NULL
 * errors    DH_ENOMEM */
dh_status dh_reshard_plan(dh_ctx *ctx, dh_reshard *reshard, dh_reshard_rule rule,
                          dh_reshard_wires wires, int64_t chunk_bytes, bool *proved);

/* Totals of a plan. */
typedef struct dh_reshard_sum {
    int64_t kept_bytes;               /* bytes that ranks have already */
    int64_t local_bytes, cross_bytes; /* sent inside nodes, between nodes */
    int64_t n_messages;               /* messages from one rank to another */
    int64_t most_out, most_in;        /* bytes of the rank that sends most, receives most */
    double busiest_ns;                /* time of the busiest wire, by dh_reshard_wires */
    double bound_ns;                  /* no plan takes less */
} dh_reshard_sum;
dh_status dh_reshard_sum_up(dh_ctx *ctx, const dh_reshard *reshard, dh_reshard_wires wires,
                            dh_reshard_sum *sum);

/* ---- programs ------------------------------------------------------------------------------- */

/* The program of one rank, not yet verified. Its buffers lie after both layouts, and after the
 * first keep_bytes of the slab. Its mesh is its own: tensor parallelism for the ranks of a node,
 * data parallelism for nodes.
 * in        backend: may be NULL
 * out       caller frees with dh_program_destroy
 * errors    DH_ENOMEM */
dh_status dh_reshard_program(dh_ctx *ctx, const dh_reshard *reshard, int64_t rank,
                             uint64_t keep_bytes, const dh_backend_info *backend,
                             dh_program **program);

#ifdef __cplusplus
}
#endif
#endif
