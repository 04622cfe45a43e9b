/* Backends execute programs: memory of a rank, and one kernel per operator.
 *
 * A backend is one row of a table; programs, planner and trainer do not know
 * which one they use. */
#ifndef DH_RUN_EXEC_BACKEND_H
#define DH_RUN_EXEC_BACKEND_H

#include "program/program.h"
#include "program/recipe.h"
#include "run/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where LOAD instructions get their data: row `sample` of the data order, seq_len
 * + 1 tokens. Called from the executing thread; a failure stops the step. */
typedef struct dh_batch_source {
    dh_status (*load)(dh_ctx *ctx, void *self, int64_t sample, int64_t seq_len, int32_t *tokens);
    void *self;
} dh_batch_source;

/* Called before every instruction, on its stream's thread; for tests and fault injection.
 * It may sleep or end the process; anything but DH_OK fails the instruction. */
typedef dh_status (*dh_instr_hook)(dh_ctx *ctx, void *user);

/* Values that change from one execution to the next. */
typedef struct dh_step {
    int64_t step;          /* optimizer steps done before this one */
    int64_t first_sample;  /* of this rank's micro-batch 0 */
    int64_t sample_stride; /* from one micro-batch to the next */
    uint64_t seed;         /* of dropout */
    double lr, beta1, beta2, eps, weight_decay;
    double grad_clip; /* 0: off */
    dh_batch_source source;
    const int32_t *tokens; /* decode: the new tokens, instead of a source */
    int64_t pos0;          /* decode: position of tokens[0] */
    dh_instr_hook hook;    /* NULL: none */
    void *hook_user;
    bool check_finite; /* scan every output; stop at the first non-finite value */
} dh_step;

typedef struct dh_slab dh_slab; /* a rank's memory; opaque */
typedef struct dh_exec dh_exec; /* a program made ready to run */

typedef struct dh_backend {
    const char *name, *doc;
    dh_backend_info info;
    bool (*has_kernel)(dh_op_type type);
    /* Whether parts of its output are told of as they are there; else all of them at the end. */
    bool (*tells_parts)(dh_op_type type);
    /* Zero-filled memory of a rank. Several programs may share it. */
    dh_status (*slab_create)(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab);
    void (*slab_destroy)(dh_slab *slab);
    dh_status (*slab_write)(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                            uint64_t n_bytes);
    dh_status (*slab_read)(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                           uint64_t n_bytes);
    /* Host-readable address of slab bytes, valid until the next execution. A device
     * backend copies to a host buffer of its own. */
    const void *(*slab_address)(dh_slab *slab, uint64_t offset);
    /* End of the highest byte any execution has used so far. */
    uint64_t (*slab_peak)(const dh_slab *slab);

    /* Borrows program, slab and communicator (NULL: the program does not communicate).
     * Collective over the ranks of the program's groups. No allocation in exec_run. */
    dh_status (*exec_create)(dh_ctx *ctx, const dh_program *program, dh_slab *slab, dh_comm *comm,
                             dh_exec **exec);
    /* One pass over the program. DH_EDIVERGED with check_finite names the
     * instruction that first made a non-finite value. */
    dh_status (*exec_run)(dh_ctx *ctx, dh_exec *exec, const dh_step *step);
    const dh_span *(*exec_spans)(
        const dh_exec *exec); /* monotonic, of the last run, as dh_span says */
    void (*exec_destroy)(dh_exec *exec);

    /* Threads of this rank: number, and which of the node's ranks it is. */
    dh_status (*bind_rank)(dh_ctx *ctx, int local_rank, int n_local_ranks, int64_t threads,
                           int *n_threads);
    /* What its times depend on beside the machine: versions of libraries, instruction set. */
    const char *(*describe)(char *buf, size_t cap);
    /* Best GEMM rate seen in a short trial, FLOP/s, for "fraction of peak". */
    double (*gemm_peak)(dh_dtype dtype);
} dh_backend;

const dh_backend *const *dh_backends(size_t *n);
/* NULL when there is none of that name. */
const dh_backend *dh_backend_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
