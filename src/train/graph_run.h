/* Programs that were written by hand, run on a job's ranks: `dhelix run-graph`.
 *
 * Of a job only the ranks, links, device, seed and the optimizer's constants count. */
#ifndef DH_TRAIN_GRAPH_RUN_H
#define DH_TRAIN_GRAPH_RUN_H

#include "costs/costs.h"
#include "dhelix/job.h"
#include "graph/pass.h"
#include "program/standalone.h"
#include "run/exec/device.h"
#include "strategy/rewrites.h"
#include "weights/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text read, and what it is called in messages. */
typedef struct dh_graph_text {
    const char *file;
    dh_graph *graph;
    dh_graph_lines lines;
} dh_graph_text;

/* errors    of the file; those of dh_graph_parse, with the file's name */
dh_status dh_graph_text_read(dh_ctx *ctx, const char *path, dh_graph_text *text);
void dh_graph_text_fini(dh_graph_text *text);

/* Where the passes come from that rewrite each rank's graph before its program is made. */
typedef enum dh_graph_search {
    DH_GRAPH_AS_SAID, /* the caller; n 0: none */
    DH_GRAPH_SEARCH,  /* costs (strategy/rewrites.h), among sequences that leave all outputs as they
                       * were */
    DH_GRAPH_SEARCH_SHARDED /* among those too whose moments stay with the rank that updates them */
} dh_graph_search;

typedef struct dh_graph_run_options {
    const char *const *keep; /* [n_keep] names of values that pass, to be left as well */
    size_t n_keep;
    dh_graph_search search;
    dh_pass_list passes; /* as said */
    /* For a search: what operators take, NULL: estimates, links as the job paces them; and what
     * will be given, NULL: each input as its axes say. */
    const dh_costs *costs;
    const dh_safetensors *given;
    bool quiet;
} dh_graph_run_options;

typedef struct dh_graph_run {
    const dh_job *job;
    const dh_device *device;
    dh_mesh mesh;
    const dh_graph_text *text;
    dh_graph_ios ios;      /* of every rank */
    dh_pass_list passes;   /* that rewrote the graphs */
    dh_rewrites *rewrites; /* that a search tried; else NULL */
    char costs[64];        /* by which; a name for people */
    dh_graph **graphs;     /* [ranks] the text's, rewritten */
    dh_program **programs; /* [ranks], verified alone and together */
    const dh_safetensors *given;
    const char *given_name;
    void **left; /* [ranks][ios.n] what was left; NULL: not an output */
    int64_t step_ns;
    bool here; /* rank 0 runs in this process, and so has all that was left */
    bool quiet;
} dh_graph_run;

/* Programs of all ranks, verified as any job's are.
 * in        job: its ranks derived (dh_graph_job). Borrows text.
 * out       caller frees with dh_graph_run_fini, also on failure
 * errors    DH_EINVAL, DH_EUNSUPPORTED with file and line; DH_EVERIFY */
dh_status dh_graph_run_prepare(dh_ctx *ctx, const dh_job *job, const dh_graph_text *text,
                               const dh_graph_run_options *options, dh_graph_run *run);
void dh_graph_run_fini(dh_graph_run *run);

/* Checks that the file has all inputs of the program. Each is one of:
 *   NAME        for all ranks, with the operand's shape: each rank has all of it
 *   NAME        with one axis longer by the number of members of a group: each member has its part,
 *               in the order of the group
 *   NAME@RANK   for one rank
 * Pass reorder takes an input for equal on all ranks unless ranks split one of its axes; such an
 * input must be given whole. Borrows the file. given may be NULL where nothing is wanted.
 * errors    DH_EMISSING, DH_EINVAL with tensor, line, both shapes */
dh_status dh_graph_run_give(dh_ctx *ctx, dh_graph_run *run, const dh_safetensors *given,
                            const char *name);
/* Starts the ranks (threads, or this process's one under MPI), runs once. */
dh_status dh_graph_run_start(dh_ctx *ctx, dh_graph_run *run);

/* Whether all ranks left the same bytes of ios[io]. */
bool dh_graph_run_same(const dh_graph_run *run, size_t io);
/* NAME where all ranks left the same, else NAME@RANK for each. */
dh_status dh_graph_run_write(dh_ctx *ctx, const dh_graph_run *run, const char *path);
/* Largest difference of an output from the tensor NAME or NAME@RANK of a file.
 * out       *n_compared: number of ranks that had such a tensor
 * errors    DH_EINVAL other shape or type */
dh_status dh_graph_run_compare(dh_ctx *ctx, const dh_graph_run *run, size_t io,
                               const dh_safetensors *expected, double *difference,
                               int64_t *n_compared);
/* Largest difference of n values of one type. NaN on both sides is none; NaN on one side is
 * infinite. */
double dh_graph_value_distance(dh_dtype dtype, int64_t n, const void *a, const void *b);

#ifdef __cplusplus
}
#endif
#endif
