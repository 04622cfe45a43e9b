/* Cluster files: what is accepted has a name, and times that are numbers. */
#include "fuzz.h"

#include <math.h>

#include "costs/cluster_table.h"
#include "dhelix/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *cluster;
    if (dh_cluster_parse(&ctx, (const char *)data, size, "fuzz.yaml", &cluster) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    const double ns = dh_cluster_memory_ns(cluster, 1e6);
    DH_CHECK(isfinite(ns) && ns >= 0, "%g ns for a megabyte", ns);
    dh_cluster_destroy(cluster);
    return 0;
}
