/* A run as a page: one HTML file that needs nothing else, no network, no server.
 *
 * Training or simulation leaves a run folder. Each of its files adds a part to the page. If a file
 * is absent, its part says how to get it.
 *   job.yaml           what ran; the pipeline schedule as planned
 *   summary.json       speed; where the time of a step went
 *   metrics.jsonl      loss, learning rate, gradient norm
 *   trace-rank*.json   timeline, co-execution of a layer, schedule as it ran, memory
 *   profile.json       overlap effectiveness of operator pairs, as `dhelix profile` measures it, or
 *   oef.csv            a matrix of it
 *   table.json         steps simulated with every value of one or two settings */
#ifndef DHELIX_REPORT_H
#define DHELIX_REPORT_H

#include "dhelix/export.h"
#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_REPORT_MAX_RUNS 16

typedef struct dh_report_options {
    int64_t max_ranks; /* ranks of a run whose traces are shown, spread evenly; 0: 64 */
    /* Run with which the others are compared, as it stands among runs, or the end of its path.
     * NULL: the first run whose strategy is sequential, else the first. */
    const char *baseline;
} dh_report_options;

/* Write the page of one run, or of several side by side. The same files give the same
 * bytes.
 * in        runs [n]: folders, 1 to DH_REPORT_MAX_RUNS; their names appear on the page
 * errors    DH_EMISSING a folder without any of the files above; DH_EFORMAT a file that
 *           does not say what it should, with its line; DH_EINVAL, such as a baseline that
 *           is none of the runs; DH_EIO; DH_ENOMEM; then
 *           the file at path is as it was
 * cost      time and memory proportional to the traces */
DH_API dh_status dh_report_write(dh_ctx *ctx, const char *const *runs, size_t n,
                                 const dh_report_options *options, const char *path);

/* Writes the traces of a run's ranks as one file, for Perfetto and for tools around PyTorch's
 * profiler.
 *
 * errors    DH_EMISSING the run has none; DH_EFORMAT; DH_EINVAL path is a file of the run; DH_EIO;
 *           DH_ENOMEM */
DH_API dh_status dh_report_traces(dh_ctx *ctx, const char *run, const char *path);

#ifdef __cplusplus
}
#endif
#endif
