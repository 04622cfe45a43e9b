/* Figures as files, for `dhelix plot` and `dhelix report --svg`. */
#ifndef DH_CLI_FIGURED_H
#define DH_CLI_FIGURED_H

#include "cli/cli.h"
#include "dhelix/report.h"

/* Draws the sources, as many as the command has arguments, into out (dh_report_figures). Prints
 * which figures are there, and why others are not.
 * in        pdf: each also as PDF, by rsvg-convert
 * errors    those of dh_report_figures; DH_EMISSING there is no rsvg-convert; DH_EIO it fails. The
 *           SVG and CSV files are there then. */
dh_status dh_cli_draw(dh_ctx *ctx, const dh_cli *cli, const char *const *sources,
                      const dh_figures_options *how, const char *out, bool pdf);

#endif
