/* How the rows make schedules: actions are put on ranks at integer times. Times are
 * lockstep slots or just consecutive numbers; only their order on a rank survives. */
#ifndef DH_SCHEDULE_BUILD_H
#define DH_SCHEDULE_BUILD_H

#include "plan/schedule.h"

typedef struct dh_timed_action {
    int64_t time;
    dh_pipe_action action;
} dh_timed_action;

typedef DH_VEC(dh_timed_action) dh_timed_actions;

typedef struct dh_builder {
    dh_schedule *schedule;   /* sizes, placement and copies; slots come at the end */
    dh_timed_actions *ranks; /* [n_ranks] */
    bool any_pair;      /* not only an F with a B or I: what meets at a time, meets on purpose */
    bool out_of_memory; /* an append failed; reported by dh_builder_finish */
} dh_builder;

/* Allocates an empty schedule with the given placement; all micro-batches run through copy
 * 0. On failure nothing is held. */
dh_status dh_builder_init(dh_ctx *ctx, dh_builder *b, const char *name, dh_placement placement,
                          const dh_schedule_spec *spec);
/* Put an action on the rank that holds it, at a time, or after all it has so far. */
void dh_build_at(dh_builder *b, int64_t time, dh_pipe_kind kind, int32_t stage, int32_t micro);
void dh_build_next(dh_builder *b, dh_pipe_kind kind, int32_t stage, int32_t micro);
/* Forward and backward together in the rank's next slot. */
void dh_build_next_pair(dh_builder *b, int32_t f_stage, int32_t f_micro, int32_t b_stage,
                        int32_t b_micro);
/* Two actions of one rank in its next slot. */
void dh_build_next_two(dh_builder *b, dh_pipe_action first, dh_pipe_action second);
/* Whether two actions may share a slot, in this order. */
static inline bool dh_pipe_may_pair(dh_pipe_kind first, dh_pipe_kind second)
{
    return first == DH_PIPE_F || (first == DH_PIPE_I && second == DH_PIPE_W);
}
/* Order each rank by time; an F and a B or I at the same time become a pair, others where the
 * builder takes any. Always releases the builder.
 * out       set only on DH_OK
 * errors    DH_ENOMEM; DH_EINTERNAL two other actions at one time */
dh_status dh_builder_finish(dh_ctx *ctx, dh_builder *b, dh_schedule **schedule);

/* An empty schedule with arrays for these sizes, no slots. */
dh_status dh_schedule_alloc(dh_ctx *ctx, const char *name, int32_t n_ranks, int32_t n_stages,
                            int32_t n_micro, int32_t n_copies, dh_schedule **schedule);

/* Execution in dependency order: calls visit(arg, rank, slot index in schedule->slots) for every
 * slot once, after the slots it needs.
 * in        schedule: complete (dh_schedule_validate)
 * errors    DH_EINVAL deadlock, with the cycle; DH_ENOMEM */
typedef void (*dh_slot_visitor)(void *arg, int32_t rank, int32_t slot);
dh_status dh_schedule_walk(dh_ctx *ctx, const dh_schedule *schedule, dh_slot_visitor visit,
                           void *arg);

/* Actions an action needs: at most 2 (own F or I; neighbour along the depth). Whether the
 * needed backward is a B or an I is left open: kind DH_PIPE_B stands for either. */
int dh_action_needs(const dh_schedule *schedule, dh_pipe_action action, dh_pipe_action needs[2]);

/* Every slot one step: the columns of drawings and CSV files. */
extern const dh_schedule_costs dh_one_step_each;

/* "B of micro-batch 3 on stage 2" */
const char *dh_action_text(char *buf, size_t cap, dh_pipe_action action);
/* "F7|B3": as in drawings, without stages. */
const char *dh_slot_text(char *buf, size_t cap, const dh_pipe_slot *slot);

/* The rows; each file ends with its own. */
#define DH_SCHEDULE(id) extern const dh_schedule_row dh_row_##id;
#include "plan/schedules.def"
#undef DH_SCHEDULE

#endif
