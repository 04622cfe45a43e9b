/* GEMMs of experts' rows as they are, or as codes of 8 bits, which are written into scratch first.
 * Only the device knows the number of an expert's rows, so codes are laid out for all there is room
 * for. In a weight gradient, each expert's columns have their scales over its rows alone. */
#include "run/cuda/glue.h"

/* One operand as it is encoded: from rows of C, in runs of what is summed over. */
typedef struct encoded {
    bool by_columns;
    int64_t N, C;         /* size of the operand in memory */
    int64_t n, row;       /* runs of codes, bytes of one */
    int64_t n_scales;     /* of rows N; of columns those of each expert */
    int64_t n_experts;    /* by columns */
    bool rows_of_experts; /* by offsets; else N / n_experts each */
} encoded;

typedef struct grouped {
    dh_grouped_desc d;
    bool fp8;
    dh_fp8_format formats[2];
    encoded codes[2];
} grouped;

static dh_grouped_kind kind_of(dh_op_type type)
{
    if (type == DH_OP_GROUPED_WGRAD) return DH_GROUPED_WGRAD;
    return type == DH_OP_GROUPED_DGRAD ? DH_GROUPED_DGRAD : DH_GROUPED_FORWARD;
}

static encoded by_rows(int64_t N, int64_t C)
{
    return (encoded){.N = N, .C = C, .n = N, .row = dh_cuda_fp8_row(C), .n_scales = N};
}

static encoded by_columns(int64_t N, int64_t C, int64_t n_experts, bool rows_of_experts)
{
    return (encoded){.by_columns = true,
                     .N = N,
                     .C = C,
                     .n = C,
                     .row = dh_cuda_fp8_row(N),
                     .n_scales = n_experts * C,
                     .n_experts = n_experts,
                     .rows_of_experts = rows_of_experts};
}

static void describe_codes(grouped *p)
{
    const dh_grouped_desc *d = &p->d;
    switch (d->kind) {
    case DH_GROUPED_FORWARD:
        p->codes[0] = by_rows(d->rows, d->I);
        p->codes[1] = by_rows(d->E * d->O, d->I);
        break;
    case DH_GROUPED_DGRAD:
        p->codes[0] = by_rows(d->rows, d->O);
        p->codes[1] = by_columns(d->E * d->O, d->I, d->E, false);
        break;
    case DH_GROUPED_WGRAD:
        p->codes[0] = by_columns(d->rows, d->O, d->E, true);
        p->codes[1] = by_columns(d->rows, d->I, d->E, true);
        break;
    }
}

static grouped grouped_of(const dh_graph *g, const dh_op *op, bool accumulate)
{
    const bool wgrad = op->type == DH_OP_GROUPED_WGRAD;
    const dh_tensor *w = &g->tensors.at[wgrad ? op->out[0] : op->in[1]];
    const dh_tensor *rows = &g->tensors.at[op->in[0]];
    grouped p = {.d = {.kind = kind_of(op->type),
                       .dtype = rows->dtype,
                       .E = w->shape[0],
                       .O = w->shape[1],
                       .I = w->shape[2],
                       .rows = rows->shape[0],
                       .accumulate = accumulate}};
    p.fp8 = dh_op_fp8(g, op, p.formats);
    if (p.fp8) describe_codes(&p);
    return p;
}

/* ---- codes ----------------------------------------------------------------------------------- */

static size_t codes_bytes(const encoded *e)
{
    return dh_cuda_aligned((size_t)(e->n * e->row));
}

static size_t encoded_bytes(const encoded *e)
{
    return codes_bytes(e) + dh_cuda_aligned((size_t)e->n_scales * sizeof(float));
}

size_t dh_cuda_ws_grouped(const dh_graph *g, const dh_op *op)
{
    const grouped p = grouped_of(g, op, false);
    return p.fp8 ? encoded_bytes(&p.codes[0]) + encoded_bytes(&p.codes[1]) : 0;
}

static dh_cuda_codes encode(dh_cuda_stream stream, const dh_call *c, const grouped *p, int k,
                            char *at)
{
    const encoded *e = &p->codes[k];
    uint8_t *codes = (uint8_t *)at;
    float *scales = (float *)(void *)(at + codes_bytes(e));
    const int64_t n_runs = c->graph->tensors.at[c->op->in[2]].shape[0] - 1;
    if (!e->by_columns)
        dh_cuda_fp8_rows(stream, p->formats[k], e->N, e->C, c->in[k], codes, scales);
    else
        dh_cuda_fp8_expert_columns(
            stream, p->formats[k], e->n_experts, e->rows_of_experts ? n_runs : e->n_experts,
            e->rows_of_experts ? c->in[2] : NULL, e->N, e->C, c->in[k], codes, scales);
    return (dh_cuda_codes){p->formats[k], codes, scales};
}

/* ---- the operators --------------------------------------------------------------------------- */

void dh_cuda_run_grouped(dh_cuda_stream stream, const dh_call *c)
{
    const grouped p = grouped_of(c->graph, c->op, c->accumulate & 1);
    const int64_t n_runs = c->graph->tensors.at[c->op->in[2]].shape[0] - 1;
    if (!p.fp8) {
        dh_cuda_grouped(stream, &p.d, n_runs, c->in[2], c->in[0], c->in[1], c->out[0]);
        return;
    }
    const dh_cuda_codes a = encode(stream, c, &p, 0, c->work);
    const dh_cuda_codes b = encode(stream, c, &p, 1, (char *)c->work + encoded_bytes(&p.codes[0]));
    dh_cuda_grouped_fp8(stream, &p.d, n_runs, c->in[2], &a, &b, c->out[0]);
}
