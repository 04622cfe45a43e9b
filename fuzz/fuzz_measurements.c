/* Measurements of a cluster: traces of Kineto, text of nccl-tests, GEMMs as CSV, profiles. What is
 * accepted can be fitted, and the cluster file reads back. A trace that is joined with itself says
 * what it says alone. The first byte says what the file is called: nccl-tests' go by their name. */
#include "fuzz_folder.h"

#include <math.h>
#include <string.h>

#include "calibrate/calibration.h"
#include "costs/cluster_table.h"
#include "report/timeline.h"

static const char *const names[] = {"all_reduce.txt", "alltoall.txt", "sendrecv.txt",
                                    "measured.txt"};
enum { NODE_DEVICES = 8 };

static const dh_cluster *base(void)
{
    static dh_cluster *cluster;
    dh_ctx ctx = DH_CTX_INIT;
    if (!cluster) DH_CHECK(dh_cluster_find(&ctx, "h100", &cluster) == DH_OK, "%s", ctx.message);
    return cluster;
}

static bool read_file(const char *path, dh_measured *measured)
{
    dh_ctx ctx = DH_CTX_INIT;
    DH_CHECK(dh_measured_init(&ctx, NODE_DEVICES, measured) == DH_OK, "%s", ctx.message);
    const dh_status st = dh_measured_read(&ctx, path, measured);
    DH_CHECK(st == DH_OK || ctx.message[0], "a refusal says why");
    return st == DH_OK;
}

static void check_rows(const dh_measured *measured)
{
    for (size_t i = 0; i < measured->rows.n; i++) {
        const dh_measured_row *row = &measured->rows.at[i];
        DH_CHECK(isfinite(row->ns) && row->ns > 0, "row %zu took %g ns", i, row->ns);
        const double bytes = row->kind == DH_MEASURED_GEMM ? row->gemm.bytes
                             : row->attention.flops > 0    ? row->attention.bytes
                                                           : row->bytes;
        DH_CHECK(isfinite(bytes) && bytes > 0, "bytes of row %zu", i);
        DH_CHECK(isfinite(row->attention.flops), "operations of row %zu", i);
        if (!dh_measured_is_call(row)) continue;
        DH_CHECK(row->span.size > 1 && row->span.nodes.n_nodes > 0 &&
                     row->span.nodes.n_nodes * row->span.nodes.max_per_node == row->span.size,
                 "%lld ranks of row %zu", (long long)row->span.size, i);
    }
}

static void fit(dh_measured *measured)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_calibration made;
    if (dh_calibration_make(&ctx, base(), measured, 0, &made) == DH_OK) {
        dh_str text = DH_STR_INIT;
        dh_cluster *again;
        DH_CHECK(dh_calibration_print(&ctx, &made, "h100", &text) == DH_OK, "%s", ctx.message);
        DH_CHECK(dh_cluster_parse(&ctx, text.text, text.len, "fitted.yaml", &again) == DH_OK,
                 "%s\n%s", ctx.message, text.text);
        dh_cluster_destroy(again);
        dh_str_fini(&text);
    } else {
        DH_CHECK(ctx.message[0], "a refusal says why");
    }
    dh_calibration_fini(&made);
}

/* Two ranks with the same trace. */
static void join(const dh_measured *alone, const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_measured both;
    const char *const ranks[] = {fuzz_put(0, "trace-rank0.json", data, size),
                                 fuzz_put(1, "trace-rank1.json", data, size)};
    const char *joined = fuzz_put(2, "joined.json", "", 0);
    if (dh_trace_join(&ctx, fuzz_folder(), joined) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
    } else if (alone) {
        DH_CHECK(read_file(joined, &both), "the joined trace is read");
        DH_CHECK(both.rows.n == alone->rows.n, "%zu rows, not %zu", both.rows.n, alone->rows.n);
        for (size_t i = 0; i < both.rows.n; i++)
            DH_CHECK(both.rows.at[i].ns == alone->rows.at[i].ns, "row %zu takes %g ns, not %g", i,
                     both.rows.at[i].ns, alone->rows.at[i].ns);
        dh_measured_fini(&both);
    }
    unlink(joined);
    for (size_t i = 0; i < DH_COUNTOF(ranks); i++) unlink(ranks[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_measured measured;
    if (size == 0) return 0;
    const char *path = fuzz_put(0, names[data[0] % DH_COUNTOF(names)], data + 1, size - 1);
    const bool accepted = read_file(path, &measured);
    unlink(path);
    if (size > 1 && data[1] == '{') join(accepted ? &measured : NULL, data + 1, size - 1);
    if (accepted) {
        check_rows(&measured);
        fit(&measured);
    }
    dh_measured_fini(&measured);
    return 0;
}
