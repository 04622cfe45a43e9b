/* Inside the folder: one configuration while it is estimated. */
#ifndef DH_TUNE_ESTIMATE_H
#define DH_TUNE_ESTIMATE_H

#include "tune/tuner.h"

typedef struct estimate {
    dh_ctx *ctx;
    tuner *t;
    const dh_tune_row *row;
    const dh_schedule_row *schedule;
    dh_program_spec spec;                       /* of any rank */
    const tune_timetable *short_one, *long_one; /* the same where nothing is left out */
    tune_basis basis;
    tune_slot_cost *costs; /* by class of the long one */
    tune_held *held;       /* by its types of stages */
    tune_behind *behind;   /* by stage */
    tune_rank_end *ends, *short_ends;
    double *heads, *tails;         /* by rank: before its first slot, behind its last one */
    const tune_outline **outlines; /* by rank */
} estimate;

/* lookup.c: what configurations share, made when it is first asked for */
/* Completes the recipe's strategy: choices that it leaves to costs, and passes that it searches
 * for. */
dh_status tune_decide(estimate *e);
dh_status tune_find_timetables(estimate *e);
dh_status tune_find_blocks(estimate *e, dh_recompute_kind recompute, const tune_blocks **blocks);
dh_status tune_find_times(estimate *e, const tune_times **times);
dh_status tune_find_outlines(estimate *e);
/* reductions.c: adds to a slot of the class what reductions of gradients, and gathers of parameters
 * that are stored as shards, cost.
 * errors    DH_ENOMEM */
dh_status tune_reductions_beside(const estimate *e, const tune_timetable *t, const tune_class *c,
                                 tune_slot_cost *cost);
/* Time, in ns, by which gathers of parameters at the start of a step delay the first forward. Later
 * stages have their parameters by the time they begin.
 * errors    DH_ENOMEM */
dh_status tune_first_gathers_delay(const estimate *e, double *delay_ns);
/* Of one copy of the model: what is reduced after a stage's last slot. e->costs must be known. */
tune_behind tune_reductions_behind(const estimate *e, const tune_timetable *t, int32_t stage);
/* With two copies of the model a sum begins when both copies have the gradient, which may be after
 * the rank's own slots.
 * out       behind_ns: time after these slots
 * in        the long timetable has been run last
 * errors    DH_ENOMEM */
dh_status tune_reductions_of_copies(const estimate *e, int32_t rank, double *behind_ns);

#endif
