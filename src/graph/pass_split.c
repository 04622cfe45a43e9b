/* Split: an all-reduce becomes a reduce-scatter and an all-gather over the same group.
 *
 * The first of CoCoNet's rewrites. Alone it changes neither bytes nor bits: a communicator adds in
 * the order of the group's members in both forms. It makes room for pass `reorder`, which moves
 * operators between the two.
 *
 * Legal where the rows of the sum divide by the members of the group.
 *
 * Source: Jangda et al., ASPLOS 2022 (arXiv 2105.05720), section 3.1. */
#include <stdio.h>

#include "graph/pass.h"
#include "rewrite.h"

typedef struct splitter {
    rewrite to;
    const dh_mesh *mesh;
    dh_pass_report *report;
} splitter;

static void leave(splitter *s, const dh_op *op, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "all_reduce -> %s", rewrite_tensor(&s->to, op->out[0])->name);
    s->to.failed |= !dh_pass_leave(s->report, what, why);
    rewrite_push(&s->to, op);
}

static void split(splitter *s, const dh_op *op)
{
    const int64_t n = dh_mesh_group_size(s->mesh, (dh_group_kind)op->group);
    if (n < 2) {
        leave(s, op, "its group is one rank");
        return;
    }
    dh_tensor own = rewrite_like(&s->to, op->out[0]);
    if (own.shape[0] % n != 0) {
        leave(s, op, "its rows do not divide by the ranks of its group");
        return;
    }
    own.shape[0] /= n;
    rewrite_name(&own, "%.18s.own", own.name);
    const uint32_t id = rewrite_add(&s->to, &own);
    rewrite_push_op(&s->to, DH_OP_REDUCE_SCATTER, op->phase, op->group, REWRITE_IDS(op->in[0]),
                    REWRITE_IDS(id));
    rewrite_push_op(&s->to, DH_OP_ALL_GATHER, op->phase, op->group, REWRITE_IDS(id),
                    REWRITE_IDS(op->out[0]));
    if (s->report) s->report->n_places++;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *work)
{
    splitter s = {.to = {.graph = work->graph}, .mesh = &work->spec->mesh, .report = work->report};
    for (size_t i = 0; i < work->graph->ops.n; i++) {
        const dh_op op = work->graph->ops.at[i];
        if (op.type == DH_OP_ALL_REDUCE)
            split(&s, &op);
        else
            rewrite_push(&s.to, &op);
    }
    return rewrite_end(ctx, &s.to, DH_OK, "splitting all-reduces");
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (!spec->build.model) return NULL; /* a program of its own */
    if (spec->mesh.tp == 1) return "nothing is summed over one rank (parallel.tp=1)";
    return spec->sharing.sequence == DH_SEQUENCE_WHOLE
               ? NULL
               : "tokens are split already (parallel.sequence): sums are "
                 "reduce-scatters";
}

const dh_pass dh_pass_row_split = {
    .name = "split",
    .doc = "all-reduce = reduce-scatter, then all-gather (CoCoNet, arXiv 2105.05720, 3.1)",
    .place = DH_PASS_AFTER_GRADIENTS,
    .applicable = applicable,
    .apply = apply};
