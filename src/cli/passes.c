/* The report of passes on a rank's graphs, as text. Each pass has a line; the operators that it
 * left alone stand below. */
#include "cli/passes.h"
#include "program/program_spec.h"

#include <stdlib.h>
#include <string.h>

/* Candidates with the same reason are one line. */
static void describe_left(const dh_pass_report *report, dh_str *out)
{
    for (size_t i = 0; i < report->left.n; i++) {
        const dh_pass_note *note = &report->left.at[i];
        size_t before = 0, after = 0;
        for (size_t k = 0; k < i; k++) before += strcmp(report->left.at[k].why, note->why) == 0;
        if (before > 0) continue;
        for (size_t k = i + 1; k < report->left.n; k++)
            after += strcmp(report->left.at[k].why, note->why) == 0;
        dh_str_printf(out, "      not %s", note->what);
        if (after > 0) dh_str_printf(out, " and %zu more", after);
        dh_str_printf(out, ": %s\n", note->why);
    }
}

static void describe(const dh_pass_report *report, dh_str *out)
{
    dh_str name = DH_STR_INIT;
    dh_pass_use_print(&report->use, &name);
    dh_str_printf(out, "  %-24s ", name.text ? name.text : "");
    dh_str_fini(&name);
    if (report->idle) {
        dh_str_printf(out, "not applied: %s\n", report->idle);
        return;
    }
    const size_t n_places = report->n_places + report->left.n;
    if (report->n_after == report->n_before && report->n_places == 0)
        dh_str_printf(out, "nothing to do here");
    else
        dh_str_printf(out, "%zu operators, %zu before", report->n_after, report->n_before);
    if (n_places > 0) dh_str_printf(out, "; %zu of %zu places", report->n_places, n_places);
    dh_str_printf(out, "\n");
    describe_left(report, out);
}

static dh_status describe_block(dh_ctx *ctx, const dh_graph_spec *graphs, dh_block_kind kind,
                                const char *name, dh_graph_rank rank, dh_str *out)
{
    dh_pass_reports reports = {0};
    dh_graph *graph = NULL;
    dh_status st = dh_graph_make(ctx, graphs, kind, rank, &reports, &graph);
    dh_str_printf(out, "%s%s\n", out->len ? "\n" : "", name);
    for (size_t k = 0; st == DH_OK && k < reports.n; k++) describe(&reports.at[k], out);
    dh_pass_reports_fini(&reports);
    dh_graph_destroy(graph);
    return st;
}

dh_status dh_cli_describe_passes(dh_ctx *ctx, const dh_program_spec *spec, dh_str *out)
{
    const dh_mesh *m = &spec->recipe.mesh;
    const dh_model *model = &spec->recipe.model;
    const dh_coord c = dh_mesh_coord(m, spec->rank);
    const dh_graph_rank rank = {
        .shard = {.tp = m->tp, .tp_rank = c.tp, .ep = m->ep, .ep_rank = c.ep}, .cp_rank = c.cp};
    const dh_layer_kinds kinds = dh_model_kinds(model, 0, model->n_layers);
    dh_graph_spec graphs = dh_program_graph_spec(spec);
    DH_TRY(describe_block(ctx, &graphs, DH_BLOCK_EMBED, "embedding", rank, out));
    for (int k = 0; k < kinds.n; k++) {
        const char *name = dh_layer_kind_name(dh_model_layer_kind(model, kinds.layer[k]));
        graphs.build.layer = kinds.layer[k];
        DH_TRY(describe_block(ctx, &graphs, DH_BLOCK_LAYER, name, rank, out));
    }
    return describe_block(ctx, &graphs, DH_BLOCK_HEAD, "head", rank, out);
}
