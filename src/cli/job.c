/* The job of a command: its file, --set, and flags that stand for settings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

dh_status dh_cli_load_job(dh_ctx *ctx, const dh_cli *cli, const char *path, int64_t ranks,
                          dh_job **job)
{
    const char **overrides = calloc(cli->set.n + 1, sizeof *overrides);
    if (!overrides) return dh_fail(ctx, DH_ENOMEM, "out of memory reading the command line");
    size_t n = cli->set.n;
    if (n > 0) memcpy(overrides, cli->set.at, n * sizeof *overrides);
    char text[40];
    snprintf(text, sizeof text, "ranks=%lld", (long long)ranks);
    if (ranks > 0) overrides[n++] = text;
    dh_status st = dh_job_load(ctx, path, overrides, n, job);
    free(overrides);
    return st;
}
