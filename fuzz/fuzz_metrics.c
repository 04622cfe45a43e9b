/* Metrics: every line is kept, put apart or of a later step, and what was kept is whole: opened
 * again it stays as it is. The first byte is the last step. */
#include "fuzz_folder.h"

#include <string.h>

#include "train/metrics.h"

/* What is in the file after a run has opened it; caller frees. */
static char *open_once(int64_t last_step, size_t *n)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_metrics m;
    char path[128], *text;
    snprintf(path, sizeof path, "%s/metrics.jsonl", fuzz_folder());
    DH_CHECK(dh_metrics_open(&ctx, fuzz_folder(), last_step, &m) == DH_OK, "%s", ctx.message);
    dh_metrics_close(&m);
    DH_CHECK(dh_file_read(&ctx, path, 1 << 28, &text, n) == DH_OK, "%s", ctx.message);
    return text;
}

static size_t count_unreadable(const char *path, size_t *n_lines)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_metrics_lines lines = {0};
    DH_CHECK(dh_metrics_count(&ctx, path, &lines) == DH_OK, "%s", ctx.message);
    dh_metrics_lines_fini(&lines);
    *n_lines = lines.n;
    return lines.n_unreadable;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n_first, n_again, n_before, n_after;
    char aside[128];
    if (size == 0) return 0;
    dh_log_set_level(DH_LOG_ERROR);
    const int64_t last_step = 1 + data[0];
    const char *path = fuzz_put(0, "metrics.jsonl", data + 1, size - 1);
    snprintf(aside, sizeof aside, "%s/metrics.unreadable", fuzz_folder());
    const size_t n_unreadable = count_unreadable(path, &n_before);
    char *first = open_once(last_step, &n_first), *again = open_once(last_step, &n_again);
    DH_CHECK(n_first == n_again && memcmp(first, again, n_first) == 0, "kept as it was");
    DH_CHECK(count_unreadable(path, &n_after) == 0, "all can be read");
    DH_CHECK(n_after + n_unreadable <= n_before, "lines kept");
    DH_CHECK(n_first == 0 || first[n_first - 1] == '\n', "lines end");
    DH_CHECK(dh_path_exists(aside) == (n_unreadable > 0), "lines put apart");
    unlink(aside);
    free(first);
    free(again);
    return 0;
}
