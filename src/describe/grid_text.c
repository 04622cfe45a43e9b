/* Tables of simulated steps as JSON and CSV. */
#include <math.h>
#include <string.h>

#include "base/csv.h"
#include "base/json_text.h"
#include "describe/grid.h"

const dh_grid_figure_info dh_grid_figures[DH_N_GRID_FIGURE] = {
#define X(id, name, key, form, doc) {name, key, doc, DH_GRID_##form},
    DH_GRID_FIGURE_LIST(X)
#undef X
};

/* ---- JSON ----------------------------------------------------------------------------------- */

static json_t *texts_json(const char *const *texts, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_string(texts[i]));
    return list;
}

static void set_figures(const dh_grid_cell *c, json_t *cell)
{
    json_object_set_new(cell, "strategy", json_string(c->strategy));
    json_object_set_new(cell, "ranks", json_integer((json_int_t)c->ranks));
    for (int k = 0; k < DH_N_GRID_FIGURE; k++) {
        if (isnan(c->at[k])) continue;
        json_object_set_new(cell, dh_grid_figures[k].key,
                            dh_grid_figures[k].form == DH_GRID_BYTES
                                ? json_integer((json_int_t)c->at[k])
                                : json_real(c->at[k]));
    }
    json_object_set_new(cell, "fits", json_boolean(c->fits));
}

static json_t *cell_json(const dh_grid *g, size_t at)
{
    const char *values[DH_COUNTOF(g->axes)];
    const dh_grid_cell *c = &g->cells[at];
    for (size_t i = 0; i < g->n_axes; i++) values[i] = dh_grid_value(g, at, i);
    json_t *cell = json_pack("{so}", "values", texts_json(values, g->n_axes));
    if (cell && c->reason) json_object_set_new(cell, "reason", json_string(c->reason));
    if (cell && !c->reason) set_figures(c, cell);
    return cell;
}

json_t *dh_grid_json(const dh_grid *g)
{
    json_t *settings = json_array(), *cells = json_array();
    for (size_t i = 0; i < g->n_axes; i++)
        json_array_append_new(settings, json_pack("{ss so}", "key", g->axes[i].key, "values",
                                                  texts_json(g->axes[i].values, g->axes[i].n)));
    for (size_t i = 0; i < g->n; i++) json_array_append_new(cells, cell_json(g, i));
    json_t *document =
        json_pack("{ss so so}", "model", g->model, "settings", settings, "cells", cells);
    if (document && g->cluster) json_object_set_new(document, "cluster", json_string(g->cluster));
    if (document && g->facts) dh_nearest_json(g->facts, document);
    return document;
}

/* ---- CSV ------------------------------------------------------------------------------------ */

static void add_cell(const dh_grid *g, size_t at, dh_str *out)
{
    const dh_grid_cell *c = &g->cells[at];
    for (size_t i = 0; i < g->n_axes; i++) {
        dh_csv_put(dh_grid_value(g, at, i), out);
        dh_str_append(out, ",", 1);
    }
    if (!c->reason) {
        dh_csv_put(c->strategy, out);
        dh_str_printf(out, ",%lld", (long long)c->ranks);
    } else {
        dh_str_append(out, ",", 1);
    }
    for (int k = 0; k < DH_N_GRID_FIGURE; k++) {
        dh_str_append(out, ",", 1);
        if (!c->reason && !isnan(c->at[k])) dh_str_printf(out, "%.10g", c->at[k]);
    }
    dh_str_printf(out, ",%s,", c->reason ? "" : c->fits ? "true" : "false");
    if (c->reason) dh_csv_put(c->reason, out);
    dh_str_append(out, "\n", 1);
}

void dh_grid_csv(const dh_grid *g, dh_str *out)
{
    for (size_t i = 0; i < g->n_axes; i++) dh_str_printf(out, "%s,", g->axes[i].key);
    dh_str_printf(out, "taken_strategy,taken_ranks");
    for (int k = 0; k < DH_N_GRID_FIGURE; k++) dh_str_printf(out, ",%s", dh_grid_figures[k].key);
    dh_str_printf(out, ",fits,reason\n");
    for (size_t i = 0; i < g->n; i++) add_cell(g, i, out);
}

/* ---- files ---------------------------------------------------------------------------------- */

dh_status dh_grid_write(dh_ctx *ctx, const dh_grid *g, const char *dir)
{
    dh_str json = DH_STR_INIT, csv = DH_STR_INIT;
    DH_TRY(dh_dir_create(ctx, dir));
    dh_status st = dh_json_append(ctx, dh_grid_json(g), &json);
    if (st == DH_OK) st = dh_file_write_in(ctx, dir, "table.json", &json);
    dh_grid_csv(g, &csv);
    if (st == DH_OK) st = dh_file_write_in(ctx, dir, "table.csv", &csv);
    dh_str_fini(&json);
    dh_str_fini(&csv);
    return st;
}
