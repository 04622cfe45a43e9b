/* Graph text: what is accepted passes the check and reads back equal. */
#include "fuzz.h"

#include "graph/graph.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *graph, *again;
    if (dh_graph_parse(&ctx, (const char *)data, size, &graph) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    dh_str text = DH_STR_INIT;
    DH_CHECK(dh_graph_check(&ctx, graph) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_graph_print(&ctx, graph, &text) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_graph_parse(&ctx, text.text, text.len, &again) == DH_OK, "%s\n%s", ctx.message,
             text.text);
    DH_CHECK(dh_graph_equal(graph, again), "%s", text.text);
    dh_str_fini(&text);
    dh_graph_destroy(again);
    dh_graph_destroy(graph);
    return 0;
}
