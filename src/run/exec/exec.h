/* Executing programs on a device: commands on streams, made once and run step by step. */
#ifndef DH_RUN_EXEC_EXEC_H
#define DH_RUN_EXEC_EXEC_H

#include "run/exec/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dh_batch_row;

/* Where LOAD instructions get their data: row `sample` of the data order, seq_len
 * + 1 tokens. Called from a thread of the stream; a failure stops the step. */
typedef struct dh_batch_source {
    dh_status (*load)(dh_ctx *ctx, void *self, int64_t sample, int64_t seq_len, int32_t *tokens);
    void *self;
    /* Of rows of documents, for programs of such (dh_build.documents): instead of load. */
    dh_status (*load_row)(dh_ctx *ctx, void *self, int64_t sample, int64_t seq_len,
                          const struct dh_batch_row *row);
} dh_batch_source;

/* A row token by token: [seq_len] each. */
typedef struct dh_batch_row {
    int32_t *tokens, *targets; /* targets -1: none */
    int32_t *positions;        /* in the document */
    int64_t *samples;          /* sample number for dropout: the document */
} dh_batch_row;

/* Called before every instruction, on its stream's thread; for tests and fault injection.
 * It may sleep or end the process; anything but DH_OK fails the instruction. */
typedef dh_status (*dh_instr_hook)(dh_ctx *ctx, void *user);

/* Whether a device's commands are captured and launched as one, where no output is looked at. */
typedef enum dh_step_capture {
    DH_CAPTURE_OFF,
    DH_CAPTURE_AUTO, /* where all can be; else a step is run as it is, and is told why once */
    DH_CAPTURE_ON    /* or it is an error */
} dh_step_capture;

/* Values that change from one execution to the next. */
typedef struct dh_step {
    int64_t step;          /* optimizer steps done before this one */
    int64_t first_sample;  /* of this rank's micro-batch 0 */
    int64_t sample_stride; /* from one micro-batch to the next */
    uint64_t seed;         /* of dropout */
    double lr, beta1, beta2, eps, weight_decay;
    double grad_clip;        /* 0: off */
    double router_bias_rate; /* by how much biases of routers go by load */
    double loss_rows; /* targets of all ranks, by which the loss is divided; 0: as the graph says */
    dh_batch_source source;
    const int32_t *tokens; /* decode: the new tokens, instead of a source */
    int64_t pos0;          /* decode: position of tokens[0] */
    dh_instr_hook hook;    /* NULL: none */
    void *hook_user;
    /* Called before every instruction that writes masters or moments, on its stream's thread, if
     * the device tells of updates. It may wait for readers of them. NULL: there are none. */
    void (*hold)(void *user);
    void *hold_user;
    bool even_experts; /* deal tokens to experts in turn: times that hold for an even share */
    dh_step_capture capture;
    bool check_finite; /* scan every output; stop at the first non-finite value */
} dh_step;

typedef struct dh_exec dh_exec; /* a program made ready to run */

/* Borrows program, slab and communicator (NULL: the program does not communicate).
 * Collective over the ranks of the program's groups. No allocation in dh_exec_run.
 * errors    DH_EUNSUPPORTED an operator without kernel; DH_EVERIFY waits in a circle; DH_ENOMEM;
 *           those of the communicator */
dh_status dh_exec_create(dh_ctx *ctx, const dh_device *device, const dh_program *program,
                         dh_slab *slab, dh_comm *comm, dh_exec **exec);
/* While its communicator is there, and in the order in which partners destroy theirs: its groups go
 * with it. NULL is fine. */
void dh_exec_destroy(dh_exec *exec);
/* One pass over the program.
 * errors    DH_EDIVERGED with check_finite: names the instruction that first made a non-finite
 *           value; DH_ECOMM; those of the device */
dh_status dh_exec_run(dh_ctx *ctx, dh_exec *exec, const dh_step *step);
/* State of masters and moments after the last run, complete or not. */
typedef enum dh_updated {
    DH_UPDATED_NONE, /* they are as before it */
    DH_UPDATED_SOME, /* some are as before it, some as after; or it cannot be told */
    DH_UPDATED_ALL
} dh_updated;
dh_updated dh_exec_updated(const dh_exec *exec);
/* Monotonic, of the last run, as dh_span says; until the next one. */
const dh_span *dh_exec_spans(dh_exec *exec);

/* Rows of a micro-batch that chose each of n experts in one layer; where it is made in parts, or
 * computed again, of each. */
typedef void (*dh_take_choices)(void *user, int64_t layer, int64_t mb, const int64_t *counts,
                                int64_t n);
/* The experts that tokens chose in the last run; nothing without experts. */
dh_status dh_exec_choices(dh_ctx *ctx, dh_exec *exec, dh_take_choices take, void *user);

#ifdef __cplusplus
}
#endif
#endif
