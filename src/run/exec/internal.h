/* Inside of the executor: what its files share. */
#ifndef DH_RUN_EXEC_INTERNAL_H
#define DH_RUN_EXEC_INTERNAL_H

#include <stdatomic.h>

#include "run/exec/exec.h"

/* Prepared kernels of an operator: one for overwriting, one for accumulating. */
typedef struct dh_prepared {
    void *kernel[2];
    bool made[2];
} dh_prepared;

struct dh_exec {
    const dh_device *device;
    const dh_program *program;
    dh_slab *slab, *values; /* values: a dh_scalars, then the choices of every moe_order */
    uint64_t n_choices;
    int64_t *counts; /* the choices on the host */
    dh_comm *comm;
    dh_comm_group *groups[DH_N_GROUPS];
    dh_devlink *links[DH_N_GROUPS]; /* NULL: the group's calls go through the host */
    const dh_devlinks *linked_by[DH_N_GROUPS];
    dh_arena *arena;   /* of everything below but streams */
    dh_prepared **ops; /* [graph][op] */
    dh_call *calls;    /* by instruction */
    int64_t *met_ns;   /* by instruction: when a call's partners had come; 0: it cannot be known */
    uint32_t *waits;   /* events, as dh_program.waits */
    char *transit[DH_N_STREAM]; /* host memory for transfers of a stream, or NULL */
    DH_VEC(void *) pinned;      /* memory from the device's host_alloc */
    dh_span *spans;
    bool spans_known; /* they are those of the last run */
    uint64_t peak;    /* end of the highest byte its commands use */
    dh_streams *streams;
    bool not_captured;   /* it was tried, and cannot be */
    const dh_step *step; /* step of the run under way, or the last */
    uint32_t n_updates;  /* instructions that write masters or moments; of the last run: */
    _Atomic uint32_t n_updating, n_updated; /* updates begun, and complete */
    bool ran;                               /* all of it */
};

/* Memory of the host that copies of commands come from and go to; as long as the program is ready.
 * NULL: there is none. */
void *dh_exec_host_memory(dh_exec *exec, size_t n_bytes);

/* Makes the command of a communication instruction: one blocking call on its group (communicate.c).
 * Transit memory is there once all have been made.
 * errors    DH_ENOMEM */
dh_status dh_exec_add_transfer(dh_ctx *ctx, dh_exec *exec, dh_stream_command *command);
dh_status dh_exec_add_transit(dh_ctx *ctx, dh_exec *exec);

/* Makes the command of a LOAD: the batch is put together on the host, then copied (load.c).
 * errors    DH_ENOMEM */
dh_status dh_exec_add_load(dh_ctx *ctx, dh_exec *exec, dh_stream_command *command);

/* Links of the groups that can have them, if the job lets them (links.c); groups are there.
 * Collective, as dh_exec_create is. */
dh_status dh_exec_create_links(dh_ctx *ctx, dh_exec *exec);
void dh_exec_destroy_links(dh_exec *exec);
bool dh_exec_has_links(const dh_exec *exec);
/* Calls under way end, for nobody will answer them. Any thread. */
void dh_exec_abort_links(const dh_exec *exec);
/* Makes the command of a communication instruction whose group has a link.
 * errors    DH_ENOMEM */
dh_status dh_exec_add_link_call(dh_ctx *ctx, dh_exec *exec, dh_stream_command *command);
/* dh_watch.waiting */
dh_status dh_exec_waiting(dh_ctx *ctx, void *user, uint32_t stream, int64_t waited_ns);

#endif
