/* One step over several meshes (HotSPa, section 12 of the systems): masters, moments and the
 * optimizer in one layout, the home; documents of each group of lengths are trained over a mesh of
 * their own.
 *
 *   for each group of the step:
 *     home  --parameters-->  the group's layout      unless the group's layout is the home
 *     its program, as often as it has rows for       gradients add up, the last one sums them
 *     home  <--gradients---  the group's layout      over ranks; at home they add up too
 *   the optimizer, at home
 *
 * All programs are ordinary ones, planned into one slab before the run: the home's persistent
 * buffers at its start, behind them those of the group at work, behind these its transient ones.
 * What is there of a group does not last: parameters come anew in every step.
 *
 * With switch.overlap (dh_session_spec.overlaps) parameters of the next group and gradients of the
 * one before move while a group is computed, on a thread of their own (switch_run.c). Neighbouring
 * groups then lie apart, and passes' transient buffers behind those of messages. */
#ifndef DH_TRAIN_SWITCH_H
#define DH_TRAIN_SWITCH_H

#include "program/reshard.h"
#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_switch dh_switch;

/* Whether two recipes of one model lay parameters, gradients and states out alike. */
bool dh_recipes_lie_alike(const dh_recipe *a, const dh_recipe *b);

/* What moves between the home and a group's layout, which lies `gap` bytes behind it, planned by
 * HotSPa's rule: parameters there, or (back) gradients from there. beside: while passes compute, in
 * chunks. Caller frees with dh_reshard_fini.
 * errors    those of dh_reshard_open and dh_reshard_plan */
dh_status dh_switch_plan(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool back,
                         bool beside, uint64_t gap, dh_reshard *reshard);

/* Builds and verifies this rank's programs behind those of the home. Borrows the recipes.
 * in        home: the rank's program of the optimizer
 * out       *slab_bytes at least what they take; caller frees with dh_switch_destroy
 * errors    those of dh_program_build and dh_reshard_open */
dh_status dh_switch_create(dh_ctx *ctx, const dh_session_spec *spec, const dh_program *home,
                           uint64_t *slab_bytes, dh_switch **made);
/* Ready to run. Collective. */
dh_status dh_switch_prepare(dh_ctx *ctx, dh_switch *s, const dh_session_spec *spec, dh_slab *slab);
void dh_switch_destroy(dh_switch *s); /* NULL is fine */
/* All ranks' programs of all groups, verified together. */
dh_status dh_switch_verify_mesh(dh_ctx *ctx, const dh_session_spec *spec);

/* What a group computes in a step: rows of its source from 0 on, dealt to data-parallel ranks
 * micro-batch by micro-batch; behind n_rows the source has padding. */
typedef struct dh_switch_work {
    int64_t n_rows;
    dh_batch_source source;
} dh_switch_work;

/* What a step came to on this rank. */
typedef struct dh_switch_done {
    double loss, rows;                /* sums over the tokens whose losses this rank counts */
    int64_t switch_ns;                /* in programs that move parameters and gradients */
    int64_t switch_wait_ns;           /* of these what no pass ran beside */
    int64_t n_switches, switch_bytes; /* of these programs; what crossed wires, of all ranks */
    int64_t n_passes, n_tokens;       /* of all groups: programs run, tokens in them, padding too */
} dh_switch_done;

/* Called behind every program of a step that has run; may be NULL. waited_ns: how long passes were
 * over before one was that ran beside them; -1: it ran by itself. */
typedef void (*dh_switch_ran)(void *user, const dh_program *program, dh_exec *exec,
                              int64_t waited_ns);

/* All of the step but the optimizer. step: its samples and source are the groups'. Collective.
 * in        work: one a group, the same numbers on all ranks; some rows in all */
dh_status dh_switch_run(dh_ctx *ctx, dh_switch *s, const dh_step *step, const dh_switch_work *work,
                        dh_switch_ran ran, void *user, dh_switch_done *done);

#ifdef __cplusplus
}
#endif
#endif
