/* DHelix (arXiv 2411.15871), table 1: what a device sends in a step of Llama 3 405B.
 *
 * The paper gives numbers and degrees; the rest follows from the numbers, of which these
 * conventions give every printed digit:
 *   - GiB; 16 Mi tokens a step; a stage has an even share of the 126 layers.
 *   - Tokens are those of a data-parallel replica, not divided by its context-parallel ranks.
 *   - Inside a node: two all-gathers and two reduce-scatters a layer and direction. That inputs are
 *     gathered again for weight gradients is not counted.
 *   - Between nodes: activations one way and gradients the other over p - 1 of p stages' ends;
 *     cp - 1 exchanges of keys and values forward and twice that backward; gradients in half
 *     precision, once round the ring of all ranks that have the same parameters, of a stage's
 *     layers with embedding and head.
 * Keys and values of all 128 heads, in the exchanges divided by cp and in the parameters, give the
 * same digits; taken is the model as it is. Cells are compared in the table's own digits. */
#include <math.h>
#include <string.h>

#include "config/mesh.h"
#include "graph/graph.h"
#include "validate/table.h"

#define GIB 1073741824.0

enum { SEQ = 8192, STEP_TOKENS = 1 << 24, ITEM = 2 /* bytes, bf16 */ };

typedef struct row {
    int64_t gpus, dp, tp, pp, cp;
    const char *local, *cross; /* GiB, as printed */
} row;

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, row *r)
{
    DH_TRY(dh_published_int(ctx, t, i, "gpus", &r->gpus));
    DH_TRY(dh_published_int(ctx, t, i, "dp", &r->dp));
    DH_TRY(dh_published_int(ctx, t, i, "tp", &r->tp));
    DH_TRY(dh_published_int(ctx, t, i, "pp", &r->pp));
    DH_TRY(dh_published_int(ctx, t, i, "cp", &r->cp));
    DH_TRY(dh_published_text(ctx, t, i, "local_gb", &r->local));
    return dh_published_text(ctx, t, i, "cross_gb", &r->cross);
}

/* A layer of SEQ tokens on a tensor-parallel rank, both directions. */
static dh_status layer_graph(dh_ctx *ctx, const dh_model *model, int64_t tp, dh_graph **graph)
{
    const dh_build build = {
        .model = model, .dtype = DH_BF16, .batch = 1, .seq = SEQ, .loss_scale = 1};
    dh_graph *g;
    DH_TRY(dh_graph_build(ctx, &build, DH_BLOCK_LAYER, &g));
    dh_status st = dh_pass_tensor_parallel(ctx, g, (dh_shard){.tp = tp});
    if (st == DH_OK) st = dh_graph_differentiate(ctx, g);
    if (st == DH_OK)
        *graph = g;
    else
        dh_graph_destroy(g);
    return st;
}

/* ---- volumes, in bytes --------------------------------------------------------------------- */

/* Of SEQ tokens in one layer, by the layer's own collectives. */
static double tensor_bytes(const dh_graph *g, const row *r)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->group != DH_GROUP_TP || op->phase == DH_PHASE_W) continue;
        const uint32_t whole = op->type == DH_OP_ALL_GATHER ? op->out[0] : op->in[0];
        sum += (double)dh_tensor_bytes(&g->tensors.at[whole]);
    }
    return sum * (double)(r->tp - 1) / (double)r->tp;
}

static double parameters(const dh_graph *g, const dh_model *m, const row *r)
{
    double layer = 0;
    for (size_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].kind == DH_TENSOR_PARAM)
            layer += (double)dh_tensor_elements(&g->tensors.at[i]);
    const double ends = 2 * (double)(m->vocab * m->width) / (double)r->tp;
    return layer * (double)m->n_layers / (double)r->pp + ends;
}

static double cross_bytes(const dh_graph *g, const dh_model *m, const row *r)
{
    const double tp = (double)r->tp, pp = (double)r->pp, cp = (double)r->cp;
    const double alike = (double)(r->dp * r->cp), tokens = (double)STEP_TOKENS / (double)r->dp;
    const double kv = 2 * (double)(m->n_kv_heads * m->head_dim) / tp * ITEM;
    const double ring = 3 * (cp - 1) * tokens * kv * (double)m->n_layers / pp;
    const double stages = 2 * (pp - 1) / pp * tokens * (double)m->width / tp * ITEM;
    const double gradients = parameters(g, m, r) * ITEM * (alike - 1) / alike;
    return ring + stages + gradients;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* A value with as many decimals as a printed one. */
static double as_printed(double value, const char *printed)
{
    const char *point = strchr(printed, '.');
    const double unit = point ? pow(10, -(double)strlen(point + 1)) : 1;
    return rint(value / unit) * unit;
}

static dh_status add_cell(dh_ctx *ctx, dh_validation *v, const row *r, const char *where,
                          double bytes, const char *printed)
{
    double published;
    if (!dh_parse_f64(printed, &published))
        return dh_fail(ctx, DH_EFORMAT, "%s: \"%s\" is not a number", v->table->file, printed);
    return dh_validation_add(ctx, v, as_printed(bytes / GIB, printed), published,
                             "%lld devices, dp%lld cp%lld, %s", (long long)r->gpus,
                             (long long)r->dp, (long long)r->cp, where);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_model *model, const row *r)
{
    dh_graph *g;
    DH_TRY(layer_graph(ctx, model, r->tp, &g));
    const double samples = (double)STEP_TOKENS / (double)r->dp / SEQ;
    const double local = tensor_bytes(g, r) * samples * (double)model->n_layers / (double)r->pp;
    const double cross = cross_bytes(g, model, r);
    dh_graph_destroy(g);
    DH_TRY(add_cell(ctx, v, r, "inside a node", local, r->local));
    return add_cell(ctx, v, r, "between nodes", cross, r->cross);
}

dh_status dh_validate_volumes(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_model model;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_model_from_preset(ctx, "llama3.1-405b", &model));
    for (size_t i = 0; i < t.n_rows; i++) {
        row r;
        DH_TRY(read_row(ctx, &t, i, &r));
        DH_TRY(add_row(ctx, v, &model, &r));
    }
    v->remark = "Its times are these volumes over 450 and 50 GB/s, but for 0.3 s inside a node in "
                "the second row, which would be 0.49 s.";
    return DH_OK;
}
