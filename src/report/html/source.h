/* Sources of figures: a run folder, one of its files, results of `dhelix simulate` and
 * `dhelix tune` as JSON, a job, or a published table. */
#ifndef DH_REPORT_HTML_SOURCE_H
#define DH_REPORT_HTML_SOURCE_H

#include "data/expand.h"
#include "dhelix/report.h"
#include "report/html/trace.h"
#include "validate/validate.h"

/* Data of a source; each figure needs one kind. */
enum {
    FROM_METRICS = 1,
    FROM_SUMMARY = 2,
    FROM_TRACE = 4,
    FROM_JOB = 8,
    FROM_PAIRS = 16,
    FROM_TABLE = 32,
    FROM_RUN = 63, /* a run folder may have all of the above */
    FROM_VALIDATION = 64
};

typedef struct figured_run {
    dh_run_folder folder;
    unsigned from;     /* kinds of data that the source may have */
    traces traces;     /* on one clock; without ranks: there is no trace */
    json_t *kinds;     /* of them, an array; NULL without a trace */
    json_t *data;      /* the run's object in the page's data, without the trace. Documents that
                          may be nested as deep as a parser goes are as they were read. */
    const char *label; /* for people */
    dh_temporary made; /* the folder of a step that was simulated here; its path NULL: the source is
                          no job */
    dh_path_list *inputs;       /* files that sources are read from */
    dh_validation *validation;  /* NULL: the source is no published table */
    dh_validation_steps *steps; /* that it borrows */
} figured_run;

/* Recognises a source and reads it. A job is simulated, with options->overrides and on
 * options->cluster.
 * in        run: zeros; source, options and inputs are borrowed
 * out       run: closed by the caller with figured_source_close, also after a failure; inputs: the
 *           files that are read, as far as the source or its job names them, are appended
 * errors    DH_EMISSING it is nothing of the above; DH_EFORMAT with the place; those of a
 *           simulated job */
dh_status figured_source_open(dh_ctx *ctx, const char *source, const dh_figures_options *options,
                              dh_path_list *inputs, figured_run *run);
void figured_source_close(figured_run *run);

#endif
