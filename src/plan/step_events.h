/* The events of a step: what pipeline ranks do, in the one order that all of them share.
 *
 * A schedule and what ranks share (config/sharing.h) give the list. dh_program_build reads it and
 * decides nothing of it again.
 *
 * Order. A rank's streams run in order, and a transfer occupies the streams of both ends, so all
 * ranks must agree on one order of everything that communicates. It is that of the schedule's own
 * clock (dh_schedule_time_order). A slot counts at its start, a transfer at the end of the slot that
 * makes its data. Data that arrive at a time are there for slots that start then. Each rank does
 * its events of the list in this order, so the earliest event of all is always the next one at all
 * its ranks. Around slots and transfers stand the others: a gather before its slot, a release and
 * reductions after theirs, reductions that wait for a transfer after that. */
#ifndef DH_PLAN_STEP_EVENTS_H
#define DH_PLAN_STEP_EVENTS_H

#include "config/sharing.h"
#include "plan/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, meaning) */
#define DH_STEP_KIND_LIST(X)                                                                       \
    X(GATHER, "shards of parameters are made whole")                                               \
    X(SLOT, "actions of the schedule run")                                                         \
    X(TRANSFER, "a result goes to the rank of the next, or the previous stage")                    \
    X(RELEASE, "whole parameters go")                                                              \
    X(REDUCE, "gradients of a stage are summed over ranks")                                        \
    X(UPDATE, "the optimizer steps")

typedef enum dh_step_kind {
#define X(name, meaning) DH_STEP_##name,
    DH_STEP_KIND_LIST(X)
#undef X
        DH_N_STEP_KINDS
} dh_step_kind;

/* Which gradients a reduction sums: those of the whole step at once; or, of every micro-batch, those
 * of the stage's first one, of further ones, and of its last one. */
typedef enum dh_reduce_of {
    DH_REDUCE_STEP,
    DH_REDUCE_FIRST,
    DH_REDUCE_NEXT,
    DH_REDUCE_LAST
} dh_reduce_of;

/* When a reduction runs. */
typedef enum dh_reduce_when {
    DH_REDUCE_DURING,  /* as the slot's backward goes on */
    DH_REDUCE_BEHIND,  /* from the slot on, but nothing waits until what it made is on its way */
    DH_REDUCE_BY_TURN, /* for two copies of the model: after the slot, once both are complete */
    DH_REDUCE_AT_END   /* for tied ends on different ranks: after all their other transfers */
} dh_reduce_when;

/* The events of one action of a slot, by number; -1: none. */
typedef struct dh_step_use {
    int32_t gather, release, reduce;
    bool loads; /* the micro-batch's first forward on this rank */
} dh_step_use;

typedef struct dh_step_event {
    dh_step_kind kind;
    int32_t rank; /* pipeline rank; of a transfer, the sender */
    int32_t peer; /* of a transfer: the receiver; else -1 */
    int32_t slot; /* into schedule->slots: to which it belongs; -1: none. A gather without one is
                   * of what the step before updated */
    int32_t copy, stage, micro; /* copy, stage and micro-batch; -1: slots and updates have none */
    bool forward;               /* gathers, releases and transfers: they belong to a forward */
    /* Events that it waits for; -1: none, or an event of a rank that is not listed.
     *
     *   slot        the transfers that bring its actions' inputs
     *   transfer    its slot
     *   gather      the slot during which its first blocks may come
     *   reduction   its slot, or the transfer that it waits for */
    int32_t need[2];
    dh_reduce_of of;
    dh_reduce_when when;
    /* Of slots: */
    dh_step_use use[2]; /* by action */
    int32_t then;       /* a slot of the rank whose gathers may begin in this one; -1 */
    int32_t n_later;    /* stages of the rank whose last gradients come after it */
    double room;        /* from its end to that of the step, in lengths of the slot, where its last
                         * backward sends and reductions may wait for that; else 0 */
} dh_step_event;

typedef struct dh_step_spec {
    const dh_schedule *schedule;
    dh_sharing sharing;
    int32_t rank;    /* rank that is listed; -1: all of them */
    bool trains;     /* backwards, too */
    bool runs;       /* micro-batches; else only what stands around them */
    bool goes_on;    /* another program goes on with these gradients: nothing sums them */
    bool gathers;    /* with what gathers, first of all, what the step before updated */
    bool updates;    /* with the optimizer */
    bool tied;       /* embedding and head share their parameters */
    bool tied_apart; /* and lie on different ranks, which sum their gradients at the end */
} dh_step_spec;

typedef struct dh_step_events {
    DH_VEC(dh_step_event) list;
    int32_t end;     /* the first event after all slots */
    int32_t n_timed; /* slots and transfers */
} dh_step_events;

/* The virtual stage on another rank to which an action's result goes; -1: there is none. */
int32_t dh_step_goes_to(const dh_schedule *schedule, const dh_pipe_action *action);

/* The events of a step.
 * out       caller frees with dh_step_events_fini, also on failure
 * errors    DH_EINVAL the schedule deadlocks; DH_ENOMEM
 * cost      O(n log n) of the schedule's slots */
dh_status dh_step_events_make(dh_ctx *ctx, const dh_step_spec *spec, dh_step_events *events);
void dh_step_events_fini(dh_step_events *events);

/* "gather", "slot", ... */
const char *dh_step_kind_name(dh_step_kind kind);

#ifdef __cplusplus
}
#endif
#endif
