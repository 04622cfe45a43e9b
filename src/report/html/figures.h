/* Figures as files for a paper: a drawing, and the numbers that it shows. */
#ifndef DH_REPORT_HTML_FIGURES_H
#define DH_REPORT_HTML_FIGURES_H

#include <jansson.h>

#include "base/base.h"
#include "data/expand.h"
#include "dhelix/report.h"

typedef struct dh_figure {
    char name[64]; /* the files' name without folder and ending */
    char why[192]; /* why it is not drawn, and how to get its data; empty: it is drawn */
    dh_str svg, csv;
} dh_figure;

typedef struct dh_figures {
    dh_figure *at; /* [n] */
    size_t n, cap;
    dh_path_list inputs; /* files that they were drawn from */
    dh_str folder;       /* in which dh_figures_write has put them */
} dh_figures;

/* Curves and shares of time are one figure for all sources. The others are one figure for each
 * source. If there are several sources, the name ends in the source's number.
 * out       *figures: also those without data that the sources might have. One at least is drawn.
 *           The caller ends it with dh_figures_fini.
 * errors    those of dh_report_figures */
dh_status dh_figures_make(dh_ctx *ctx, const char *const *sources, size_t n,
                          const dh_figures_options *options, dh_figures *figures);
/* As dh_report_figures. Files of figures that are not drawn stay if there are any: f->why then says
 * so.
 * in        pdf: the caller will also write NAME.pdf
 * errors    those of dh_report_figures; where an input is among the files, nothing is written */
dh_status dh_figures_write(dh_ctx *ctx, dh_figures *figures, const char *out, bool pdf);
/* Refuses an output that dh_figures_json cannot name.
 * errors    DH_EINVAL it is not UTF-8 */
dh_status dh_figures_check_json(dh_ctx *ctx, const char *out);
/* The document of dh_report_figures; NULL: out of memory */
json_t *dh_figures_json(const dh_figures *figures, const char *out);
void dh_figures_fini(dh_figures *figures);

#endif
