/* Times of operators: alone, and with another one at the same time on the same device.
 *
 * Planner, program builder and simulator use this interface only. Answers come from a profile
 * measured here, an imported table, a cluster file's model, or estimates from FLOPs and
 * bytes. Every answer names its kind of source. */
#ifndef DH_COSTS_COSTS_H
#define DH_COSTS_COSTS_H

#include "config/mesh.h"
#include "graph/graph.h"
#include "graph/stream.h"
#include "plan/pairing.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An operator and where it runs. Shapes are the graph's, those of one rank. */
typedef struct dh_cost_op {
    const dh_graph *graph;
    const dh_op *op;
    const dh_mesh *mesh;
    int64_t rank;
} dh_cost_op;

typedef struct dh_op_time {
    double ns;
    dh_pair_source source;
} dh_op_time;

/* Speeds of two operators that run at the same time on different streams of a device, as fractions
 * of their speed alone. A negative speed: the operator lost more than it had done (pairing.h). */
typedef struct dh_op_rates {
    double a, b;
    dh_pair_source source;
} dh_op_rates;

/* How the host issues an operator. */
typedef struct dh_issue {
    double n_kernels; /* that it launches one after another */
    bool waits;       /* it issues nothing more until the operator has ended */
} dh_issue;

typedef struct dh_issuer {
    dh_issue (*ask)(const void *self, const dh_cost_op *op); /* NULL: one kernel, no wait */
    const void *self;
} dh_issuer;

static inline dh_issue dh_issue_of(const dh_issuer *issuer, const dh_cost_op *op)
{
    return issuer->ask ? issuer->ask(issuer->self, op) : (dh_issue){.n_kernels = 1};
}

typedef struct dh_costs {
    const char *name; /* for people: "estimates", "profile FILE", "cluster a800" */
    /* Alone on its stream, its partners there and its data ready. A send and its receive
     * take this long together. */
    dh_op_time (*solo)(const void *self, const dh_cost_op *op);
    dh_op_rates (*beside)(const void *self, const dh_cost_op *a, const dh_cost_op *b);
    /* From the end of the last instruction waited for to an instruction's start: the next of
     * the same stream, and one that waits for another stream. */
    double launch_ns, event_ns;
    /* Time of the host to issue a kernel; 0: the host is never late. The host issues instructions
     * one after another in the program's order, ahead of the device where the device is slower.
     * Simulated steps include it; orders and estimates do not. */
    double host_ns;
    dh_issuer issuer; /* kernels of an instruction, and whether the host waits for it */
    uint64_t id;      /* differs where a profile's content does; 0 without one */
    const void *self;
} dh_costs;

/* Completion times of two operators that start together, from solo times and rates. Pairs
 * of one stream run one after the other: the first operator first. */
dh_pair_time dh_costs_together(const dh_costs *costs, const dh_cost_op *a, const dh_cost_op *b);
/* Rates from measured completion times (the inverse; pairing.h has the formula). */
dh_op_rates dh_rates_from_times(double solo_a_ns, double solo_b_ns, double a_ns, double b_ns,
                                dh_pair_source source);
/* Share of the time alone after which a part of the output is complete. */
static inline double dh_cost_part_share(const dh_cost_op *op, uint32_t part)
{
    const bool talks = op->op->group >= 0;
    const int64_t n_ranks = talks ? dh_mesh_group_size(op->mesh, (dh_group_kind)op->op->group) : 1;
    return dh_op_part_share(op->op, n_ranks, part);
}
static inline dh_stream dh_cost_stream(const dh_cost_op *op)
{
    return dh_stream_of(op->op, op->mesh, op->rank);
}
static inline dh_engine dh_cost_engine(const dh_cost_op *op)
{
    return dh_stream_engine(dh_cost_stream(op));
}

/* Whether the operators use opposite directions of a rank's link: it sends one message to a stage
 * and receives another. Links are full duplex, so neither takes anything from the other. */
static inline bool dh_costs_are_duplex(const dh_cost_op *a, const dh_cost_op *b)
{
    const dh_op_type s = a->op->type, t = b->op->type;
    return (s == DH_OP_SEND && t == DH_OP_RECV) || (s == DH_OP_RECV && t == DH_OP_SEND);
}

/* ---- estimates ------------------------------------------------------------------------ */

/* Rates by which operators are estimated; 0: the default in estimates.c. */
typedef struct dh_cost_model {
    double flops_per_s;
    double bytes_per_s;                   /* of memory */
    double link_bytes_per_s[DH_N_ENGINE]; /* engines that are links */
    double link_latency_ns[DH_N_ENGINE];
} dh_cost_model;

/* Solo: the larger of arithmetic and memory time, a ring's time for communication.
 * Two at the same time: full speed, except two transfers on the same link.
 * in        model: copied
 * out       in the arena, valid as long as it is; NULL: out of memory */
const dh_costs *dh_costs_estimated(dh_arena *arena, const dh_cost_model *model);
extern const dh_costs dh_costs_default; /* estimates with every default */

#ifdef __cplusplus
}
#endif
#endif
