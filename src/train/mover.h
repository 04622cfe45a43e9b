/* A thread of a rank that runs programs beside those of the rank's own thread: parameters and
 * gradients move while passes compute (switch.h). Its programs share no bytes that either writes
 * (dh_programs_beside), and communicate in groups of their own (dh_program.beside). */
#ifndef DH_TRAIN_MOVER_H
#define DH_TRAIN_MOVER_H

#include "run/exec/exec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_mover dh_mover;

enum { DH_MOVER_MOST = 2 }; /* programs at once */

typedef struct dh_mover_spec {
    const dh_device *device;
    /* Index of the rank among the ranks that share its cores, and their number. The thread will be
     * on one of these cores. n_local_ranks 0: the thread is left where it begins. */
    int local_rank, n_local_ranks;
    int log_rank; /* rank in its messages; -1: none */
} dh_mover_spec;

/* Caller ends it with dh_mover_destroy.
 * errors    DH_ENOMEM; DH_EINTERNAL no thread */
dh_status dh_mover_create(dh_ctx *ctx, const dh_mover_spec *spec, dh_mover **mover);
void dh_mover_destroy(dh_mover *mover); /* between runs; NULL is fine */

/* Begins to run programs one after another; borrows them and the step until dh_mover_end. */
void dh_mover_begin(dh_mover *mover, dh_exec *const *programs, size_t n, const dh_step *step);
/* Waits for them. Always behind a dh_mover_begin, whatever happened meanwhile.
 * out       ns: [n] what each took; on DH_OK
 * errors    those of dh_exec_run, of the first that failed: the others have not begun */
dh_status dh_mover_end(dh_ctx *ctx, dh_mover *mover, int64_t ns[DH_MOVER_MOST]);

#ifdef __cplusplus
}
#endif
#endif
