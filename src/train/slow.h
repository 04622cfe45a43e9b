/* Slow ranks and links of a simulated job. */
#ifndef DH_TRAIN_SLOW_H
#define DH_TRAIN_SLOW_H

#include "dhelix/train.h"
#include "train/simulation.h"

/* how->sim, its slow ranks joined by those of slow nodes and of the job's slow.*.
 * in        mesh: of the simulation
 * out       options: slow ranks lie in the job's arena
 * errors    DH_EINVAL a node or rank that is none, or that is named twice; DH_ENOMEM */
dh_status dh_train_slow(dh_ctx *ctx, const dh_job *job, const dh_train_simulation *how,
                        const dh_mesh *mesh, dh_sim_options *options);

#endif
