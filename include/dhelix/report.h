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

#include "dhelix/cluster.h"
#include "dhelix/export.h"
#include "dhelix/growable.h"
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
 * errors    The file at path is then as it was.
 *           DH_EMISSING a folder without any of the files above
 *           DH_EFORMAT a file that does not say what it should, with its line
 *           DH_EINVAL, such as a baseline that is none of the runs
 *           DH_EIO; DH_ENOMEM
 * cost      time and memory proportional to the traces */
DH_API dh_status dh_report_write(dh_ctx *ctx, const char *const *runs, size_t n,
                                 const dh_report_options *options, const char *path);

typedef struct dh_figures_options {
    /* On which jobs are simulated and tables predicted; NULL: this machine, the tables' own */
    const dh_cluster *cluster;
    const char *const *overrides; /* [n_overrides] of jobs, as dh_job_load takes them */
    size_t n_overrides;
    const char *figures; /* names of figures with commas between: only these; NULL: all */
    /* Ranks of a source whose traces are drawn, spread evenly; 0: 64, and of a job the first rank of
     * each pipeline stage. */
    int64_t max_ranks;
} dh_figures_options;

/* Draws figures for papers: SVG files, and their numbers as CSV files. A source is one of these:
 *   run folder        the figures of its page
 *   one of its files  a trace (also a joined one), metrics.jsonl, summary.json, profile.json,
 *                     oef.csv, table.json
 *   JSON document     that `dhelix simulate`, its tables, and `dhelix tune` print
 *   job               a path ending in .yaml, or a name of `dhelix list jobs`: a simulated step,
 *                     the schedule, and pairs of a layer's operators
 *   published table   a name of `dhelix list tables`: predicted and published
 *
 * The same sources give the same bytes.
 * in        sources [n]: 1 to DH_REPORT_MAX_RUNS
 *           out: a folder, which gets NAME.svg and NAME.csv of each figure; or FILE.svg for the only
 *           figure, whose numbers become FILE.csv. The folder is made, and each file is replaced
 *           as a whole. It is UTF-8.
 * out       one object appended: "out", "figures" (names that were drawn) and "missing" (name and
 *           reason of each figure that the sources might have and do not)
 * errors    Nothing is written then, unless writing itself fails.
 *           DH_EMISSING a source is nothing of the above, nothing can be drawn, or no source has a
 *           figure that options name
 *           DH_EFORMAT a file does not say what it should, with its place
 *           DH_EINVAL an unknown figure, several figures for one file, or a folder with files of a
 *           run; an output that is also a source; overrides without a job, or a cluster without a
 *           job or table
 *           those of simulated jobs; DH_EIO; DH_ENOMEM */
DH_API dh_status dh_report_figures(dh_ctx *ctx, const char *const *sources, size_t n,
                                   const dh_figures_options *options, const char *out,
                                   dh_str *json);

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
