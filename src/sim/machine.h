/* The state of a simulation in progress: streams, tasks, and what has changed. */
#ifndef DH_SIM_MACHINE_H
#define DH_SIM_MACHINE_H

#include "base/flow.h"
#include "sim/heap.h"
#include "sim/sim.h"

typedef enum lane_state {
    LANE_IDLE,  /* its next instruction waits for others of the rank, or there is none */
    LANE_DUE,   /* it starts at a known time */
    LANE_WAITS, /* a communication whose partners have not all come */
    LANE_RUNS
} lane_state;

/* A stream of a node; lane number = node * DH_N_STREAM + stream. */
typedef struct lane {
    lane_state state;
    bool started; /* something has run here: last_end counts */
    int64_t last_end_ns;
    uint32_t instr; /* in all states except LANE_IDLE */
    uint32_t task;  /* LANE_RUNS: lane whose task it is part of */
    double rate;    /* LANE_RUNS: at which this rank alone would let it progress */
} lane;

/* A running task: a computation, or a communication on the lanes of all members. Lives at the lane
 * of its first member. */
typedef struct task {
    const uint32_t *nodes; /* members [n] */
    uint32_t n, pair[2];   /* nodes of a transfer between two */
    dh_flow flow;          /* work left at since_ns; speed from then on */
    int64_t since_ns;
    /* It stops where a part of its output is complete, and goes on at once. */
    double work_ns;           /* all of it, at full speed */
    double stop_ns;           /* work left at the next stop; 0: its end */
    uint32_t n_parts, n_done; /* parts of its output; complete ones */
    uint32_t version;         /* counts what was once announced and holds no more */
    bool fresh, queued;
} task;

/* Calls of one group that wait for the rest of it. */
typedef struct meeting {
    dh_sim_members members; /* n 0: not yet listed */
    uint32_t n_here;
    uint32_t stream;
} meeting;

/* Streams of a node in two states, by bit. */
typedef struct busy {
    uint32_t idle; /* LANE_IDLE, with a next instruction */
    uint32_t runs; /* LANE_RUNS */
} busy;
_Static_assert(DH_N_STREAM < 32, "a bit a stream");

/* Where the host of a node stands: it begins to issue instruction `from` at ns. */
typedef struct host_clock {
    int64_t ns;
    uint32_t from, n_waited; /* waits of its program that are over */
} host_clock;

typedef DH_VEC(uint32_t) id_list;

typedef struct machine {
    dh_ctx *ctx;
    dh_arena *arena;
    const dh_sim_nodes *const *sides; /* [2] */
    uint32_t n, second;               /* nodes of both sides; the second side's first */
    dh_sim_node *node;                /* by node */
    dh_replay *replay;                /* by node */
    lane *lanes;                      /* by lane */
    busy *busy;                       /* by node */
    task *tasks;                      /* by lane */
    host_clock *hosts;                /* by node */
    meeting *meetings;                /* [DH_N_GROUPS][nodes], by a group's first node */
    dh_sim_heap heap;
    id_list able;               /* nodes whose streams may go on; a stack */
    id_list shifted;            /* nodes on which something began to run or ended */
    id_list retimed;            /* tasks whose speed may differ from now on */
    bool *is_able, *is_shifted; /* by node */
    const dh_sim_watch *watch;  /* NULL: nobody is told */
    uint64_t n_executed, n_all; /* instructions of all nodes */
} machine;

static inline uint32_t node_of_lane(uint32_t id)
{
    return id / DH_N_STREAM;
}
static inline int stream_of_lane(uint32_t id)
{
    return (int)(id % DH_N_STREAM);
}
static inline uint32_t lane_of(uint32_t node, int stream)
{
    return node * DH_N_STREAM + (uint32_t)stream;
}

/* The lowest stream of a set, which loses it. */
static inline int take_stream(uint32_t *streams)
{
    const int stream = __builtin_ctz(*streams);
    *streams &= *streams - 1;
    return stream;
}

/* What is asked of a lane's instruction. */
static inline const dh_sim_instr *sim_instr_at(const machine *m, uint32_t id)
{
    return &m->node[node_of_lane(id)].costs->instrs[m->lanes[id].instr];
}

/* The nodes of a mesh that a node is one of, which are numbered from *first on. */
static inline const dh_sim_nodes *side_of(const machine *m, uint32_t node, uint32_t *first)
{
    *first = node >= m->second ? m->second : 0;
    return m->sides[node >= m->second];
}

/* fluid.c: new speeds on all nodes in m->shifted, and when what runs there ends. */
dh_status dh_sim_retime(machine *m, int64_t now);
/* Announces when a running task stops next. */
dh_status dh_sim_expect(machine *m, uint32_t id);
/* Nothing progresses though something runs: the first of it goes on at full speed. */
dh_status dh_sim_force(machine *m, int64_t now, bool *forced);

#endif
