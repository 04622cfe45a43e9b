/* Between figures.c and the functions that draw a figure each. */
#ifndef DH_REPORT_HTML_FIGURE_H
#define DH_REPORT_HTML_FIGURE_H

#include "report/html/figures.h"
#include "report/html/source.h"

/* Whether a list of names with commas between has this one. */
bool figure_is_listed(const char *names, const char *name);

/* Each appends to f->svg and f->csv. False: the runs have no data for it, and nothing is appended;
 * f->why may say more. Running out of memory shows in the texts. Figures of one run take n = 1. */
bool figure_metric(const figured_run *runs, size_t n, dh_figure *f); /* f->name says which */
bool figure_time(const figured_run *runs, size_t n, dh_figure *f);
bool figure_pairs(const figured_run *runs, size_t n, dh_figure *f);
bool figure_table(const figured_run *runs, size_t n, dh_figure *f);
bool figure_validation(const figured_run *runs, size_t n, dh_figure *f);
/* figure_trace.c: from the traces, and the plan */
bool figure_timeline(const figured_run *runs, size_t n, dh_figure *f);
bool figure_layer(const figured_run *runs, size_t n, dh_figure *f);
bool figure_schedule(const figured_run *runs, size_t n, dh_figure *f);
bool figure_plan(const figured_run *runs, size_t n, dh_figure *f);
bool figure_memory(const figured_run *runs, size_t n, dh_figure *f);

#endif
