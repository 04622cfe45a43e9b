/* The table of passes, and the loop that makes a block's graph with them. */
#include "graph/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dh_pass *const rows[] = {
#define DH_PASS(id) &dh_pass_row_##id,
#include "graph/passes.def"
#undef DH_PASS
};

const dh_pass *const *dh_passes(size_t *n)
{
    *n = DH_COUNTOF(rows);
    return rows;
}

dh_status dh_pass_find(dh_ctx *ctx, const char *name, const dh_pass **pass)
{
    const char *names[DH_COUNTOF(rows)];
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        names[i] = rows[i]->name;
        if (strcmp(names[i], name) != 0) continue;
        *pass = rows[i];
        return DH_OK;
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(names));
    return dh_fail(ctx, DH_EMISSING, "no pass is called %.80s%s%s; dhelix list passes has all",
                   name, near ? "; did you mean " : "", near ? near : "");
}

const char *dh_pass_place_name(dh_pass_place place)
{
    static const char *const names[DH_N_PASS_PLACE] = {
        [DH_PASS_BEFORE_MESH] = "before the mesh",
        [DH_PASS_ON_MESH] = "on the mesh",
        [DH_PASS_BEFORE_GRADIENTS] = "before differentiation",
        [DH_PASS_ON_GRADIENTS] = "differentiation",
        [DH_PASS_AFTER_GRADIENTS] = "after differentiation",
        [DH_PASS_ON_RECOMPUTE] = "recomputation",
        [DH_PASS_AFTER_RECOMPUTE] = "after recomputation",
        [DH_PASS_LAST] = "after all others"};
    return names[place];
}

/* ---- lists --------------------------------------------------------------------------------- */

static dh_status check_args(dh_ctx *ctx, const dh_pass_use *use)
{
    for (int k = 0; k < DH_MAX_PASS_PARAMS && use->pass->params[k].name; k++) {
        const dh_pass_param *p = &use->pass->params[k];
        if (p->choices && use->args[k] == 0) continue;
        if (p->kind == DH_PASS_INT && (use->args[k] < p->min || use->args[k] > p->max))
            return dh_fail(ctx, DH_EINVAL, "pass %s: %s=%lld is not between %lld and %lld",
                           use->pass->name, p->name, (long long)use->args[k], (long long)p->min,
                           (long long)p->max);
    }
    return DH_OK;
}

dh_status dh_pass_list_check(dh_ctx *ctx, const dh_pass_list *list)
{
    for (int64_t i = 0; i < list->n; i++) {
        const dh_pass *pass = list->at[i].pass;
        if (pass->of_job)
            return dh_fail(ctx, DH_EINVAL,
                           "pass %s follows from the job's settings; a strategy cannot name it",
                           pass->name);
        for (int64_t k = 0; k < i; k++) {
            const dh_pass *earlier = list->at[k].pass;
            if (earlier == pass)
                return dh_fail(ctx, DH_EINVAL, "pass %s stands twice in a strategy", pass->name);
            if (earlier->place > pass->place)
                return dh_fail(ctx, DH_EINVAL,
                               "pass %s works %s and cannot follow %s, which works %s", pass->name,
                               dh_pass_place_name(pass->place), earlier->name,
                               dh_pass_place_name(earlier->place));
        }
        DH_TRY(check_args(ctx, &list->at[i]));
    }
    return DH_OK;
}

dh_pass_list dh_pass_list_reduced(const dh_graph_spec *spec, const dh_pass_list *list)
{
    dh_pass_list reduced = {.n = 0};
    for (int64_t i = 0; i < list->n; i++) {
        dh_pass_use use = list->at[i];
        if (use.pass->applicable(spec, use.args)) continue;
        if (use.pass->reduce) use.pass->reduce(spec, use.args);
        reduced.at[reduced.n++] = use;
    }
    return reduced;
}

bool dh_pass_list_equal(const dh_pass_list *a, const dh_pass_list *b)
{
    bool equal = a->n == b->n;
    for (int64_t i = 0; equal && i < a->n; i++)
        equal = a->at[i].pass == b->at[i].pass &&
                memcmp(a->at[i].args, b->at[i].args, sizeof a->at[i].args) == 0;
    return equal;
}

bool dh_pass_list_open(dh_pass_list *list, int64_t **arg, const dh_pass_param **param)
{
    for (int64_t i = 0; i < list->n; i++)
        for (int k = 0; k < DH_MAX_PASS_PARAMS; k++) {
            if (!list->at[i].pass->params[k].choices || list->at[i].args[k] != 0) continue;
            *arg = &list->at[i].args[k];
            *param = &list->at[i].pass->params[k];
            return true;
        }
    return false;
}

/* ---- what a job's graphs pass through ------------------------------------------------------ */

typedef struct use_order {
    dh_pass_use at[DH_COUNTOF(rows) + DH_MAX_PASSES];
    size_t n;
} use_order;

/* Passes of the job and of its strategy, in the order of application. */
static use_order order_of(const dh_graph_spec *spec)
{
    use_order order = {.n = 0};
    for (int place = 0; place < DH_N_PASS_PLACE; place++) {
        for (size_t i = 0; i < DH_COUNTOF(rows); i++)
            if (rows[i]->of_job && (int)rows[i]->place == place)
                order.at[order.n++] = (dh_pass_use){.pass = rows[i]};
        for (int64_t i = 0; i < spec->passes.n; i++)
            if ((int)spec->passes.at[i].pass->place == place)
                order.at[order.n++] = spec->passes.at[i];
    }
    return order;
}

dh_sequence dh_graph_sequence(const dh_graph_spec *spec)
{
    bool whole = spec->sharing.sequence == DH_SEQUENCE_WHOLE;
    for (int64_t i = 0; whole && i < spec->passes.n; i++) {
        const dh_pass_use *use = &spec->passes.at[i];
        whole = !use->pass->slices_stream || use->pass->applicable(spec, use->args);
    }
    return whole ? DH_SEQUENCE_WHOLE : DH_SEQUENCE_SPLIT;
}

bool dh_graph_in_stages(const dh_graph_spec *spec)
{
    bool in_stages = false;
    for (int64_t i = 0; !in_stages && i < spec->passes.n; i++) {
        const dh_pass_use *use = &spec->passes.at[i];
        in_stages = use->pass->in_stages && !use->pass->applicable(spec, use->args);
    }
    return in_stages;
}

bool dh_graph_stages_by_costs(const dh_graph_spec *spec)
{
    bool by_costs = false;
    for (int64_t i = 0; !by_costs && i < spec->passes.n; i++) {
        const dh_pass_use *use = &spec->passes.at[i];
        by_costs = use->pass->in_stages && use->pass->stages_by_costs &&
                   use->pass->stages_by_costs(use->args);
    }
    return by_costs;
}

/* Copies of experts and of the model all do the same, except for the distributed optimizer. There
 * the first copy counts vectors in the gradient norm. Ranks in a stage with it then differ from the
 * others. */
static unsigned axes_of_stages(const dh_graph_spec *spec)
{
    const int64_t sizes[] = {spec->mesh.tp, spec->mesh.cp, spec->mesh.ep, spec->mesh.edp};
    const int end = spec->sharing.moments ? DH_MESH_EDP + 1 : DH_MESH_EDP;
    const bool in_stages = dh_graph_in_stages(spec) || spec->moe_dispatch == DH_DISPATCH_NODE;
    unsigned axes = 0;
    for (int axis = 0; axis < end && in_stages; axis++) {
        const int64_t run = dh_mesh_run_on_node(&spec->mesh, axis);
        if (run > 1 && run < sizes[axis]) axes |= 1u << axis;
    }
    return axes;
}

unsigned dh_graph_varies_by(const dh_graph_spec *spec)
{
    const use_order order = order_of(spec);
    unsigned axes = axes_of_stages(spec);
    for (size_t i = 0; i < order.n; i++)
        if (!order.at[i].pass->applicable(spec, order.at[i].args))
            axes |= order.at[i].pass->varies_by;
    return axes;
}

/* ---- reports ------------------------------------------------------------------------------- */

bool dh_pass_leave(dh_pass_report *report, const char *what, const char *why)
{
    dh_pass_note note = {.why = why};
    if (!report) return true;
    snprintf(note.what, sizeof note.what, "%s", what);
    return dh_vec_push(&report->left, note);
}

void dh_pass_reports_fini(dh_pass_reports *reports)
{
    for (size_t i = 0; i < reports->n; i++) dh_vec_fini(&reports->at[i].left);
    dh_vec_fini(reports);
}

/* ---- graphs -------------------------------------------------------------------------------- */

static dh_status apply_use(dh_ctx *ctx, const dh_graph_spec *spec, dh_graph_rank rank,
                           const dh_pass_use *use, dh_pass_reports *reports, dh_graph *graph)
{
    dh_pass_report report = {
        .use = *use, .idle = use->pass->applicable(spec, use->args), .n_before = graph->ops.n};
    const dh_pass_work work = {.graph = graph,
                               .spec = spec,
                               .rank = rank,
                               .args = use->args,
                               .report = reports ? &report : NULL};
    dh_status st = report.idle ? DH_OK : use->pass->apply(ctx, &work);
    report.n_after = graph->ops.n;
    if (st == DH_OK && reports && !dh_vec_push(reports, report)) st = dh_no_memory(ctx);
    if (st != DH_OK || !reports) dh_vec_fini(&report.left);
    return st;
}

dh_status dh_graph_make(dh_ctx *ctx, const dh_graph_spec *spec, dh_block_kind kind,
                        dh_graph_rank rank, dh_pass_reports *reports, dh_graph **graph)
{
    const use_order order = order_of(spec);
    /* Key and value heads as the tensor-parallel ranks have them, some of them several times. */
    dh_model model = *spec->build.model;
    model.n_kv_heads *= DH_MAX(spec->mesh.kv_ranks, 1);
    dh_build build = spec->build;
    build.model = &model;
    dh_graph *made;
    DH_TRY(dh_graph_build(ctx, &build, kind, &made));
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < order.n; i++)
        st = apply_use(ctx, spec, rank, &order.at[i], reports, made);
    if (st == DH_OK)
        *graph = made;
    else
        dh_graph_destroy(made);
    return st;
}
