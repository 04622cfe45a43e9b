/* Why a cell has no figure stands below the table, once for all cells of which it is true. */
#include "cli/grid.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "cli/cli.h"
#include "cli/simulated.h"
#include "cli/table.h"

/* ---- reasons -------------------------------------------------------------------------------- */

/* Number of the cell's reason among those that differ, from 1. */
static size_t reason_number(const dh_grid *g, const char *reason)
{
    size_t number = 1;
    for (size_t i = 0; i < g->n; i++) {
        const char *own = g->cells[i].reason;
        bool first = own != NULL;
        if (own && strcmp(own, reason) == 0) return number;
        for (size_t k = 0; first && k < i; k++)
            first = !g->cells[k].reason || strcmp(g->cells[k].reason, own) != 0;
        number += first;
    }
    return number;
}

static void print_reasons(const dh_grid *g, dh_str *out)
{
    size_t said = 0;
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < g->n; i++) {
        const char *reason = g->cells[i].reason;
        if (!reason || reason_number(g, reason) <= said) continue;
        dh_str_printf(&text, "(%zu) %s", ++said, reason);
        dh_cli_paragraph(out, &text, 4);
    }
}

/* ---- cells ---------------------------------------------------------------------------------- */

static const char *format(dh_grid_form form, double value, char *buf, size_t cap)
{
    if (isnan(value))
        snprintf(buf, cap, "-");
    else if (form == DH_GRID_TIME)
        dh_format_ns(buf, cap, value * 1e6);
    else if (form == DH_GRID_BYTES)
        dh_format_bytes(buf, cap, value);
    else if (form == DH_GRID_SHARE)
        dh_snprintf(buf, cap, "%.1f%%", 100 * value);
    else
        dh_format_number(buf, cap, value, 4);
    return buf;
}

/* The figure, marked where the devices lack memory; else the number of the reason. */
static void add_figure(const dh_grid *g, const dh_grid_cell *c, dh_grid_figure figure,
                       dh_cli_table *table)
{
    char text[32];
    if (c->reason) {
        dh_cli_table_cell(table, "(%zu) ", reason_number(g, c->reason));
        return;
    }
    dh_cli_table_cell(table, "%s%s",
                      format(dh_grid_figures[figure].form, c->at[figure], text, sizeof text),
                      c->fits ? " " : "*");
}

/* ---- tables --------------------------------------------------------------------------------- */

static dh_status print_matrix(dh_ctx *ctx, const dh_grid *g, dh_grid_figure figure, dh_str *out)
{
    const dh_grid_axis *rows = &g->axes[0], *columns = &g->axes[1];
    dh_cli_table table;
    if (columns->n >= DH_CLI_TABLE_COLUMNS)
        return dh_fail(ctx, DH_EINVAL,
                       "--table: %zu values of %s, as columns at most %d: name it first, or take "
                       "--csv",
                       columns->n, columns->key, DH_CLI_TABLE_COLUMNS - 1);
    dh_str_printf(out, "rows: %s\ncolumns: %s\n\n", rows->key, columns->key);
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, dh_grid_figures[figure].name, DH_CLI_COLUMN_LEFT);
    for (size_t k = 0; k < columns->n; k++)
        dh_cli_table_column(&table, columns->values[k], DH_CLI_COLUMN_RIGHT);
    for (size_t i = 0; i < rows->n; i++) {
        dh_cli_table_cell(&table, "%s", rows->values[i]);
        for (size_t k = 0; k < columns->n; k++)
            add_figure(g, &g->cells[i * columns->n + k], figure, &table);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
    return DH_OK;
}

static void print_list(const dh_grid *g, dh_str *out)
{
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, g->axes[0].key, DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "ranks", DH_CLI_COLUMN_RIGHT);
    for (int k = 0; k < DH_N_GRID_FIGURE; k++)
        dh_cli_table_column(&table, dh_grid_figures[k].name, DH_CLI_COLUMN_RIGHT);
    dh_str_printf(out, "\n");
    for (size_t i = 0; i < g->n; i++) {
        const dh_grid_cell *c = &g->cells[i];
        dh_cli_table_cell(&table, "%s", g->axes[0].values[i]);
        if (c->reason)
            dh_cli_table_cell(&table, "%s", "");
        else
            dh_cli_table_cell(&table, "%lld", (long long)c->ranks);
        for (int k = 0; k < DH_N_GRID_FIGURE; k++)
            if (c->reason && k != DH_GRID_STEP)
                dh_cli_table_cell(&table, "%s", "");
            else
                add_figure(g, c, (dh_grid_figure)k, &table);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void print_best(const dh_grid *g, dh_str *out)
{
    const dh_grid_cell *best = dh_grid_best(g);
    char text[32];
    dh_str line = DH_STR_INIT;
    if (!best) {
        dh_str_printf(out, "no cell fits the memory of a device\n");
        return;
    }
    dh_str_printf(&line, "shortest step that fits: %s with",
                  dh_format_ns(text, sizeof text, best->at[DH_GRID_STEP] * 1e6));
    for (size_t i = 0; i < g->n_axes; i++)
        dh_str_printf(&line, " %s=%s", g->axes[i].key,
                      dh_grid_value(g, (size_t)(best - g->cells), i));
    dh_str_printf(&line, ", %lld ranks, strategy %s", (long long)best->ranks, best->strategy);
    dh_cli_paragraph(out, &line, 2);
}

dh_status dh_grid_print(dh_ctx *ctx, const dh_grid *grid, dh_grid_figure figure, dh_str *out)
{
    bool any_large = false;
    dh_str_printf(out, "%s%s%s\n", grid->model, grid->cluster ? " on cluster " : " on this machine",
                  grid->cluster ? grid->cluster : "");
    if (grid->n_axes == 2)
        DH_TRY(print_matrix(ctx, grid, figure, out));
    else
        print_list(grid, out);
    for (size_t i = 0; i < grid->n; i++)
        any_large |= !grid->cells[i].reason && !grid->cells[i].fits;
    if (any_large) dh_str_printf(out, "* needs more memory than a device has\n");
    print_best(grid, out);
    if (grid->facts) dh_nearest_print(grid->facts, out);
    print_reasons(grid, out);
    return DH_OK;
}
