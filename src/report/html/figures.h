/* The figures of a page as files for a paper: a drawing, and the numbers that it shows. */
#ifndef DH_REPORT_HTML_FIGURES_H
#define DH_REPORT_HTML_FIGURES_H

#include "base/base.h"
#include "dhelix/report.h"

typedef struct dh_figure {
    char name[64]; /* the files' name without folder and ending */
    char why[192]; /* why it is not drawn, and how to get its data; empty: it is drawn */
    dh_str svg, csv;
} dh_figure;

typedef DH_VEC(dh_figure) dh_figures;

/* Curves and shares of time are one figure for all runs. The others are one figure for each run. If
 * there are several, the name ends in the run's number.
 * in        max_ranks: ranks of a run whose traces are drawn, spread evenly; 0: 64
 * out       *figures: also those without data; dh_figures_fini
 * errors    those of dh_report_write */
dh_status dh_figures_make(dh_ctx *ctx, const char *const *runs, size_t n, int64_t max_ranks,
                          dh_figures *figures);
/* DIR/NAME.svg and DIR/NAME.csv, each replaced as a whole. The folder is made.
 * Files of figures that are not drawn stay if there are any: f->why then says so.
 * errors    DH_EINVAL the folder holds files of a run: nothing is written; DH_EIO */
dh_status dh_figures_write(dh_ctx *ctx, dh_figures *figures, const char *dir);
void dh_figures_fini(dh_figures *figures);

#endif
