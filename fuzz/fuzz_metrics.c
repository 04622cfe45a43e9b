/* Metrics: every line is kept, put apart or of a later step, and what was kept is whole: parted
 * again it stays as it is. The first byte is the last step. */
#include "fuzz.h"

#include <string.h>

#include "train/metrics.h"

static size_t n_lines(const dh_str *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++) n += text->text[i] == '\n';
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_metrics_lines first = {0}, again = {0};
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    const int64_t last_step = data[0];
    DH_CHECK(dh_metrics_part(&ctx, text, size - 1, last_step, &first) == DH_OK, "%s", ctx.message);
    DH_CHECK(n_lines(&first.unreadable) == first.n_unreadable, "lines put apart");
    DH_CHECK(n_lines(&first.kept) + first.n_unreadable <= first.n, "lines kept");
    DH_CHECK(dh_metrics_part(&ctx, first.kept.text, first.kept.len, last_step, &again) == DH_OK,
             "%s", ctx.message);
    DH_CHECK(again.n_unreadable == 0 && again.kept.len == first.kept.len, "kept once");
    DH_CHECK(first.kept.len == 0 || memcmp(first.kept.text, again.kept.text, first.kept.len) == 0,
             "kept as it was");
    dh_metrics_lines_fini(&first);
    dh_metrics_lines_fini(&again);
    return 0;
}
