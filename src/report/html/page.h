/* The page around the runs' data. */
#ifndef DH_REPORT_HTML_PAGE_H
#define DH_REPORT_HTML_PAGE_H

#include "base/embedded.h"
#include "dhelix/report.h"
#include "report/html/json.h"

/* assets/: all scripts, which may come in any order; "page" (HTML) and "style" (CSS). */
extern const dh_embedded dh_page_scripts[], dh_page_parts[];
extern const size_t dh_page_scripts_n, dh_page_parts_n;

/* run.c: a run folder as a JSON object. sequential: whether that is the strategy of its job. */
dh_status dh_html_run(dh_ctx *ctx, const char *path, int64_t max_ranks, json_out *out,
                      bool *sequential);
/* page.c: the page that dh_report_write writes, appended to *page.
 * errors    those of dh_report_write */
dh_status dh_html_page(dh_ctx *ctx, const char *const *runs, size_t n,
                       const dh_report_options *options, dh_str *page);

#endif
