/* The job of a command: its file, --set, and flags that stand for settings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

dh_status dh_cli_overrides_init(dh_ctx *ctx, const dh_cli *cli, int64_t ranks,
                                dh_cli_overrides *overrides)
{
    const size_t n = cli->set.n;
    *overrides = (dh_cli_overrides){.at = calloc(n + 1, sizeof *overrides->at), .n = n};
    if (!overrides->at) return dh_no_memory(ctx);
    if (n > 0) memcpy(overrides->at, cli->set.at, n * sizeof *overrides->at);
    snprintf(overrides->ranks, sizeof overrides->ranks, "ranks=%lld", (long long)ranks);
    if (ranks > 0) overrides->at[overrides->n++] = overrides->ranks;
    return DH_OK;
}

void dh_cli_overrides_fini(dh_cli_overrides *overrides)
{
    free(overrides->at);
}

dh_status dh_cli_load_job(dh_ctx *ctx, const dh_cli *cli, const char *path, int64_t ranks,
                          dh_job **job)
{
    dh_cli_overrides overrides;
    DH_TRY(dh_cli_overrides_init(ctx, cli, ranks, &overrides));
    dh_status st = dh_job_load(ctx, path, overrides.at, overrides.n, job);
    dh_cli_overrides_fini(&overrides);
    DH_TRY(st);
    st = dh_cli_check_job_files(ctx, cli, *job);
    if (st != DH_OK) dh_job_destroy(*job);
    return st;
}
