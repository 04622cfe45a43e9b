/* Work that is common to all passes: tensors made from others, operators in a new order, readers
 * and writers of tensors, and an end. The end replaces the old order by the new one, or leaves the
 * graph to be destroyed.
 *
 * A pass that changes what tensors hold has a table of rules, one for each operator type.
 * `rewrite_refuse` names the type that has none. A pass that only looks for places in a rank's
 * graph carries over operators that it does not know. */
#ifndef DH_GRAPH_REWRITE_H
#define DH_GRAPH_REWRITE_H

#include "graph/graph.h"

/* Part of a pass's own state. Tensors may be added at any time, which moves them. */
typedef struct rewrite {
    dh_graph *graph;
    DH_VEC(dh_op) ops; /* the new order */
    bool failed;       /* out of memory somewhere; told at the end */
} rewrite;

#define REWRITE_IDS(...) ((const uint32_t[DH_MAX_OPERANDS]){__VA_ARGS__})

static inline dh_tensor *rewrite_tensor(const rewrite *r, uint32_t id)
{
    return &r->graph->tensors.at[id];
}

/* Names a tensor; the arguments may hold its old name. */
void rewrite_name(dh_tensor *tensor, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* An activation with the shape of `like`, which may be any tensor, and storage of its own. */
dh_tensor rewrite_like(const rewrite *r, uint32_t like);
/* DH_NONE once memory ran out, as with all that follows. */
uint32_t rewrite_add(rewrite *r, const dh_tensor *tensor);
/* Rows [row0, row0 + n) of a tensor, which may be such a part itself. */
uint32_t rewrite_rows(rewrite *r, uint32_t of, const char *name, int64_t row0, int64_t n);

void rewrite_push(rewrite *r, const dh_op *op);
/* An operator of n_in and n_out operands. group: of communication, -1 else. */
void rewrite_push_op(rewrite *r, dh_op_type type, dh_phase phase, int32_t group, const uint32_t *in,
                     const uint32_t *out);

/* Row n of the output comes from row n of the first input, and from a weight. */
bool rewrite_is_row_gemm(const rewrite *r, const dh_op *op);

/* Operators that compute a row from a row: which operands are by rows, a bit each; 0 of others. */
typedef struct rewrite_row_op {
    unsigned in, out;
    bool sums;        /* its result is a sum over all rows */
    unsigned moments; /* of out: what nobody but this operator reads, in the next step */
} rewrite_row_op;
const rewrite_row_op *rewrite_row_op_of(dh_op_type type);
/* Whether an operator by rows updates operand k of its outputs in its place. */
bool rewrite_updates(const dh_op *op, int k);

/* x goes to the group's member `by` places on, y comes from the one as many places back. */
void rewrite_push_shift(rewrite *r, dh_phase phase, int32_t group, int32_t by, uint32_t x,
                        uint32_t y);

/* Operators that join sent data. Each stands before the first reader of its output, inside its
 * forward or backward, so operators that do not need it can run first. */
typedef struct rewrite_late {
    DH_VEC(dh_op) ops;
} rewrite_late;
void rewrite_keep_late(rewrite *r, rewrite_late *late, const dh_op *op);
/* Pushes those that have to stand before `next`; NULL: all. */
void rewrite_push_late(rewrite *r, rewrite_late *late, const dh_op *next);
void rewrite_late_fini(rewrite_late *late);

/* errors    DH_EUNSUPPORTED always: `pass` has no rule for the operator. */
dh_status rewrite_refuse(dh_ctx *ctx, const char *pass, const dh_op *op);
/* The new order takes the place of the old one if all went well.
 * returns   st, or DH_ENOMEM "out of memory <doing>" */
dh_status rewrite_end(dh_ctx *ctx, rewrite *r, dh_status st, const char *doing);

/* For each tensor that owns storage, the operators that use any of it, in their order. */
typedef struct rewrite_use {
    uint32_t op;
    bool writes;
} rewrite_use;

typedef struct rewrite_uses {
    uint32_t *first; /* by tensor, and one more: index of its first use */
    rewrite_use *at;
    bool *in_parts; /* by tensor: there are views of it */
} rewrite_uses;

/* For the graph as it is; operators added later are not in it. false: out of memory */
bool rewrite_uses_init(rewrite_uses *uses, const dh_graph *graph);
void rewrite_uses_fini(rewrite_uses *uses);
/* The first operator in [begin, end) that reads (or writes) storage, DH_NONE. */
uint32_t rewrite_first_use(const rewrite_uses *uses, uint32_t storage, uint32_t begin, uint32_t end,
                           bool writes);

/* An activation with storage of its own that nobody uses in parts. */
bool rewrite_is_plain(const rewrite *r, const rewrite_uses *uses, uint32_t id);
/* The GEMM by rows that belongs to a collective, in the same phase: the first reader of gathered
 * rows, or the maker of summed rows. Neither side may be used in parts.
 * returns   NULL, or why there is none */
const char *rewrite_find_reader(const rewrite *r, const rewrite_uses *uses, uint32_t collective,
                                uint32_t *gemm);
const char *rewrite_find_maker(const rewrite *r, const rewrite_uses *uses, uint32_t collective,
                               uint32_t *gemm);

#endif
