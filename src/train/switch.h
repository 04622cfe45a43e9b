/* One step over several meshes (HotSPa, SOSP 2024). Masters, moments and the optimizer stay in one
 * layout, the home. Documents of each group of lengths are trained over a mesh of their own.
 *
 *   For each group of the step:
 *     home  --parameters-->  the group's layout      Unless the group's layout is the home.
 *     its program, once for every pass of rows       Gradients add up, the last pass sums them
 *     home  <--gradients---  the group's layout      over ranks. At home they add up too.
 *   The optimizer, at home.
 *
 * All programs are ordinary ones, planned into one slab before the run. The home's persistent
 * buffers lie at its start, the current group's after them, and its transient ones last. A group's
 * data does not persist: its parameters arrive anew in every step.
 *
 * With switch.overlap (dh_session_spec.overlaps) parameters of the next group and gradients of
 * the previous one move while a group is computed, on a thread of their own (switch_run.c).
 * Neighbouring groups then have separate places, and passes' transient buffers lie after those
 * of messages. */
#ifndef DH_TRAIN_SWITCH_H
#define DH_TRAIN_SWITCH_H

#include "program/reshard.h"
#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_switch dh_switch;

/* Whether two recipes of one model have the same layout of parameters, gradients and states. */
bool dh_recipes_lie_alike(const dh_recipe *a, const dh_recipe *b);

/* Plans the moves between the home and a group's layout by HotSPa's rule.
 * in        back: gradients to the home; else parameters to the group
 *           beside: moves run during passes, in chunks
 *           gap: bytes between the home and the group's layout
 * out       caller frees with dh_reshard_fini
 * errors    those of dh_reshard_open and dh_reshard_plan */
dh_status dh_switch_plan(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool back,
                         bool beside, uint64_t gap, dh_reshard *reshard);

/* Builds and verifies this rank's programs of groups and moves. Borrows the recipes.
 * in        home: the rank's program of the optimizer
 * out       *slab_bytes is raised to their need; caller frees with dh_switch_destroy
 * errors    those of dh_program_build and dh_reshard_open */
dh_status dh_switch_create(dh_ctx *ctx, const dh_session_spec *spec, const dh_program *home,
                           uint64_t *slab_bytes, dh_switch **made);
/* Makes the programs ready to run. Collective. */
dh_status dh_switch_prepare(dh_ctx *ctx, dh_switch *s, const dh_session_spec *spec, dh_slab *slab);
void dh_switch_destroy(dh_switch *s); /* NULL is fine */
/* All ranks' programs of all groups, verified together. */
dh_status dh_switch_verify_mesh(dh_ctx *ctx, const dh_session_spec *spec);

/* The rank's programs by number, in one order on all ranks; NULL: it has none there, as they. */
size_t dh_switch_n_programs(const dh_switch *s); /* NULL: 0 */
const dh_program *dh_switch_program(const dh_switch *s, size_t k);

/* A group's work in a step: rows of its source from 0 on, dealt to data-parallel ranks
 * micro-batch by micro-batch. After n_rows the source has padding. */
typedef struct dh_switch_work {
    int64_t n_rows;
    dh_batch_source source;
} dh_switch_work;

/* Results of a step on this rank. */
typedef struct dh_switch_done {
    double loss, rows;                /* sums over the tokens whose losses this rank counts */
    int64_t switch_ns;                /* in programs that move parameters and gradients */
    int64_t switch_wait_ns;           /* part of switch_ns during which no pass ran */
    int64_t n_switches, switch_bytes; /* number of these programs; bytes on wires, of all ranks */
    int64_t n_passes, n_tokens;       /* all groups: programs run, their tokens with padding */
} dh_switch_done;

/* Called after every program of a step; may be NULL. waited_ns: for a program that ran during the
 * passes, time from their end to its end; -1: it ran alone. */
typedef void (*dh_switch_ran)(void *user, const dh_program *program, dh_exec *exec,
                              int64_t waited_ns);

/* Runs the step without the optimizer. Collective.
 * in        step: samples and source are those of the groups
 *           work: one for each group, the same numbers on all ranks, not all without rows */
dh_status dh_switch_run(dh_ctx *ctx, dh_switch *s, const dh_step *step, const dh_switch_work *work,
                        dh_switch_ran ran, void *user, dh_switch_done *done);

#ifdef __cplusplus
}
#endif
#endif
