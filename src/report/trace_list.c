/* Which ranks left a trace. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "report/timeline.h"

static int ascending(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* "trace-rank12.json" */
static bool rank_of_name(const char *name, int64_t *rank)
{
    static const char prefix[] = "trace-rank", suffix[] = ".json";
    char number[24];
    const size_t n = strlen(name), around = strlen(prefix) + strlen(suffix);
    if (n <= around || n - around >= sizeof number || strncmp(name, prefix, strlen(prefix)) != 0 ||
        strcmp(name + n - strlen(suffix), suffix) != 0)
        return false;
    memcpy(number, name + strlen(prefix), n - around);
    number[n - around] = '\0';
    return dh_parse_i64(number, rank) && *rank >= 0;
}

dh_status dh_trace_list(dh_ctx *ctx, const char *dir, dh_trace_ranks *list)
{
    DIR *d = opendir(dir);
    if (!d)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", dir, strerror(errno));
    bool ok = true;
    errno = 0;
    for (const struct dirent *entry; ok && (entry = readdir(d)); errno = 0) {
        int64_t rank;
        if (rank_of_name(entry->d_name, &rank)) ok = dh_vec_push(list, rank);
    }
    const int fault = ok ? errno : ENOMEM; /* readdir's, which ends as the last entry does */
    closedir(d);
    if (list->n) qsort(list->at, list->n, sizeof *list->at, ascending);
    if (fault == 0) return DH_OK;
    return dh_fail(ctx, dh_status_of_errno(fault), "cannot list %s: %s", dir, strerror(fault));
}
