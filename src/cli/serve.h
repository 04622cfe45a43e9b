/* A run's page that follows the run, for a browser on the same machine. */
#ifndef DH_CLI_SERVE_H
#define DH_CLI_SERVE_H

#include "dhelix/report.h"

typedef struct dh_serving {
    const char *run;
    int64_t port; /* 0: any that is free */
    bool quiet;
    dh_report_options how;
} dh_serving;

/* Serves on the loopback address until a signal asks to end, also while a page is drawn. Prints the
 * address, whose random token every request must have. The page is drawn anew when files of the run
 * have changed and somebody looks.
 * errors    DH_EIO no such folder, or the port is taken; DH_ENOMEM */
dh_status dh_cli_serve(dh_ctx *ctx, const dh_serving *serving);

#endif
