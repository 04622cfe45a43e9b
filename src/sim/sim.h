/* Structures common to the files of this folder: simulated ranks and the times of their
 * operators. */
#ifndef DH_SIM_SIM_H
#define DH_SIM_SIM_H

#include "program/replay.h"
#include "sim/simulate.h"

/* ---- simulate.c: programs at hand, as dh_simulate does with those that it builds ---------- */

/* in        programs [n], one for every rank of a mesh, in order: borrowed, must outlive the result
 * out       model_flops and tokens are 0
 * errors    as dh_simulate; DH_EINVAL not the programs of one mesh */
dh_status dh_simulate_programs(dh_ctx *ctx, const dh_program *const *programs, size_t n,
                               const dh_costs *costs, const dh_sim_options *options, dh_sim **sim);

/* ---- op_costs.c: times and speeds, asked for once --------------------------------------- */

typedef struct dh_sim_pair {
    uint32_t a, b; /* kinds; DH_NONE: a free place */
    double rate_a, rate_b;
} dh_sim_pair;

/* When the host issues a program's instructions, in the program's order. */
typedef struct dh_sim_host {
    int64_t *issued_ns; /* [n_instrs + 1] until instruction i, without waiting; NULL: never late */
    uint32_t *waits;    /* [n_waits] instructions that the host waits for, ascending */
    size_t n_waits;
} dh_sim_host;

/* What the machine asks of an instruction at every event. */
typedef struct dh_sim_instr {
    uint32_t kind;
    uint8_t meets; /* dh_sim_meets */
    uint8_t group; /* DH_SIM_GROUP: dh_group_kind */
} dh_sim_instr;

/* With whom an instruction runs. */
typedef enum dh_sim_meets { DH_SIM_ALONE, DH_SIM_GROUP, DH_SIM_PEER } dh_sim_meets;

/* Of one program. A kind is an operator of one of its graphs: all blocks and
 * micro-batches that share a graph share its costs. */
typedef struct dh_sim_op_costs {
    const dh_costs *costs;
    const dh_program *program;
    uint32_t *first; /* by graph: kind of its operator 0 */
    uint32_t n_kinds;
    dh_op_time *solo;     /* by kind */
    dh_sim_instr *instrs; /* [n_instrs] */
    int64_t launch_ns, event_ns;
    dh_sim_pair *pairs; /* open addressing; n_places a power of two */
    size_t n_pairs, n_places;
    dh_sim_host host;
} dh_sim_op_costs;

/* Borrows both. Free with dh_sim_op_costs_fini, also after a failure.
 * errors    DH_EINVAL a time that is negative or not finite; DH_ENOMEM */
dh_status dh_sim_op_costs_init(dh_ctx *ctx, dh_sim_op_costs *c, const dh_costs *costs,
                               const dh_program *program);
void dh_sim_op_costs_fini(dh_sim_op_costs *c);
/* Speeds of kinds a and b while both run.
 * errors    DH_EINVAL a speed that is not finite; DH_ENOMEM */
dh_status dh_sim_rates_beside(dh_ctx *ctx, dh_sim_op_costs *c, uint32_t a, uint32_t b,
                              double *rate_a, double *rate_b);
/* The same of kind a of one program and kind b of another; not kept. */
dh_status dh_sim_rates_across(dh_ctx *ctx, const dh_sim_op_costs *of_a, uint32_t a,
                              const dh_sim_op_costs *of_b, uint32_t b, double *rate_a,
                              double *rate_b);
/* Whether another context-parallel rank's graph of the same shapes costs the same. */
bool dh_sim_cp_costs_equal(const dh_costs *costs, const dh_mesh *mesh, const dh_graph *graph,
                           int64_t cp_a, int64_t cp_b);

/* ---- collapse.c: which ranks are simulated ------------------------------------------------ */

/* Coordinates of an axis, in classes numbered by their first ones. */
typedef struct dh_sim_axis {
    int64_t size;
    uint32_t n;
    uint32_t *of;           /* [size] */
    int64_t *first, *count; /* [n] */
} dh_sim_axis;

/* A class of ranks is a class of coordinates on every axis; node i of the simulation is
 * the i-th in mixed radix, tp fastest. Which nodes a group's members are of then follows
 * by arithmetic, whatever the number of ranks. */
typedef struct dh_sim_nodes {
    const dh_mesh *mesh;
    dh_sim_axis axis[DH_N_MESH_AXES];
    uint32_t n;
} dh_sim_nodes;

typedef struct dh_sim_members {
    uint32_t n;
    uint32_t *node; /* ascending */
} dh_sim_members;

/* Which coordinates of an axis are one class. */
typedef struct dh_sim_split {
    int64_t n_alike;  /* the first n_alike, each of the others by itself */
    bool first_apart; /* but coordinate 0 by itself */
} dh_sim_split;

/* Coordinates of slow ranks are nodes of their own, too. Arrays are in the arena.
 * errors    DH_ENOMEM */
dh_status dh_sim_nodes_init(dh_ctx *ctx, dh_arena *arena, const dh_mesh *mesh,
                            const dh_sim_split splits[DH_N_MESH_AXES],
                            const dh_sim_options *options, dh_sim_nodes *nodes);
/* First rank of a node, and how many it stands for. */
int64_t dh_sim_node_rank(const dh_sim_nodes *nodes, uint32_t node);
int64_t dh_sim_node_n_ranks(const dh_sim_nodes *nodes, uint32_t node);
/* The lowest node of the node's group: stands for the group. */
uint32_t dh_sim_group_first(const dh_sim_nodes *nodes, dh_group_kind group, uint32_t node);
/* Nodes of the group's members, each once.
 * errors    DH_ENOMEM */
dh_status dh_sim_group_members(dh_ctx *ctx, dh_arena *arena, const dh_sim_nodes *nodes,
                               dh_group_kind group, uint32_t first, dh_sim_members *members);
/* The node of the member of another pipeline stage. */
uint32_t dh_sim_stage_peer(const dh_sim_nodes *nodes, uint32_t node, int32_t stage);

/* ---- machine.c: execution ------------------------------------------------------------------ */

typedef struct dh_sim_node {
    dh_sim_op_costs *costs; /* of its program */
    double factor[DH_N_ENGINE];
    uint32_t mate0, mates_end; /* nodes [mate0, mates_end) compute on the same core */
    uint32_t beside;           /* the same rank's of another side; DH_NONE: nothing else runs */
    dh_span *spans;            /* [dh_program_n_spans] */
} dh_sim_node;

/* Runs all nodes' programs to the end: those of a mesh, and where there is a second side, those
 * that run on the same ranks at the same time, whose nodes come behind the first's.
 * in        sides [2]: the second may be NULL
 *           watch: NULL: nobody is told
 * errors    DH_EVERIFY they wait for each other for ever; DH_EINVAL; DH_ENOMEM */
dh_status dh_sim_run(dh_ctx *ctx, const dh_sim_nodes *const sides[2], const dh_sim_watch *watch,
                     dh_sim_node *node);

/* ---- steady.c ------------------------------------------------------------------------------ */

/* The same step with phase.period micro-batches fewer in its steady phase.
 * in        node [sim->n_classes]: by which it was simulated
 * out       NULL: it does not repeat itself so; caller frees with dh_sim_destroy, before sim's
 *           programs, parts of which it borrows
 * errors    DH_ENOMEM */
dh_status dh_sim_without_period(dh_ctx *ctx, const dh_sim *sim, const dh_sim_node *node,
                                dh_schedule_phase phase, dh_sim **shorter);
/* Makes sim a step with n_more such periods more. Takes `shorter`, which has one period less. */
void dh_sim_lengthen(dh_sim *sim, dh_sim *shorter, int64_t n_more);

/* ---- memory.c ------------------------------------------------------------------------------ */

/* Bytes over time, and their peak. */
dh_status dh_sim_memory_of(dh_ctx *ctx, dh_arena *arena, dh_sim_rank *rank);

#endif
