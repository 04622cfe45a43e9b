/* A table of simulated steps, as `dhelix simulate --table --out` left it. The page trusts its
 * shape, so that is looked at here. */
#include "report/html/run.h"

static bool is_axis(const json_t *setting)
{
    return json_is_string(json_object_get(setting, "key")) &&
           json_array_size(json_object_get(setting, "values")) > 0;
}

/* Cells that there must be; 0: the settings are not whole. */
static size_t count_cells(const json_t *settings)
{
    const size_t n_settings = json_array_size(settings);
    size_t n = n_settings == 1 || n_settings == 2;
    for (size_t i = 0; n > 0 && i < n_settings; i++) {
        const json_t *setting = json_array_get(settings, i);
        n = is_axis(setting) ? n * json_array_size(json_object_get(setting, "values")) : 0;
    }
    return n;
}

static bool is_cell(const json_t *cell)
{
    return json_is_string(json_object_get(cell, "reason")) ||
           json_is_number(json_object_get(cell, "step_ms"));
}

static bool is_table(const json_t *table)
{
    const json_t *cells = json_object_get(table, "cells");
    const size_t n = count_cells(json_object_get(table, "settings"));
    bool ok = n > 0 && json_array_size(cells) == n;
    for (size_t i = 0; ok && i < n; i++) ok = is_cell(json_array_get(cells, i));
    return ok;
}

dh_status dh_html_table(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    json_t *table;
    DH_TRY(dh_run_folder_json(ctx, run, "table.json", &table));
    if (!table) return DH_OK;
    if (is_table(table)) {
        dh_run_folder_put(run, "table", table, out);
        return DH_OK;
    }
    json_decref(table);
    return dh_fail(ctx, DH_EFORMAT,
                   "%s%s: one or two settings with their values are wanted, and a "
                   "cell with step_ms or reason for each of them with each, as `dhelix "
                   "simulate --table --out` writes it",
                   run->path, run->only ? "" : "/table.json");
}
