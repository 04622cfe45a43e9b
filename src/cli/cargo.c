/* Gradients and parameters that travel between ranks in a simulated step, as text. */
#include "cli/cargo.h"

#include "cli/cli.h"
#include "cli/table.h"

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* ---- means over the mesh --------------------------------------------------------------------- */

static void add_mean_row(dh_cargo cargo, const dh_cargo_mean *m, dh_cli_table *table)
{
    const double ns[] = {m->alone_ns, m->ns, m->hidden_ns, m->exposed_ns};
    char text[32];
    dh_cli_table_cell(table, "%s", dh_cargo_name(cargo));
    dh_cli_table_cell(table, "%s", dh_format_number(text, sizeof text, m->n, 4));
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, m->n_bytes));
    for (size_t i = 0; i < DH_COUNTOF(ns); i++)
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, ns[i]));
}

void dh_cargo_print_means(const dh_cargo_means *means, dh_str *out)
{
    static const char *const headings[] = {"calls", "bytes", "alone", "runs", "hidden", "exposed"};
    dh_cli_table table;
    bool any = false;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "traffic", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (int c = 0; c < DH_N_CARGO; c++) {
        if (means->of[c].n <= 0) continue;
        add_mean_row((dh_cargo)c, &means->of[c], &table);
        any = true;
    }
    dh_str body = DH_STR_INIT;
    dh_cli_table_end(&table, dh_cli_columns(), &body);
    if (any) dh_str_printf(out, "\n%s", body.text ? body.text : "");
    out->failed |= body.failed;
    dh_str_fini(&body);
}

/* ---- one by one ------------------------------------------------------------------------------ */

static const char *const reasons[DH_N_EXPOSURE] = {
    [DH_EXPOSED_DEPENDENCY] = "the next computation waits for it",
    [DH_EXPOSED_CONTENTION] = "the next computation waits for what comes after it",
    [DH_EXPOSED_TAIL] = "no computation is left",
    [DH_EXPOSED_LATE] = "the next computation waits for others",
    [DH_EXPOSED_SLOWDOWN] = "computation at the same time is slowed down"};

static void put_beside(const dh_haul *haul, dh_str *out)
{
    const double ns = (double)haul->ns;
    const char *separator = "during ", *before = "";
    for (int k = 0; k < DH_N_PHASE; k++) {
        if (haul->times.beside_ns[k] == 0) continue;
        dh_str_printf(out, "%s%s %.0f %%", separator, dh_cargo_phase((dh_phase)k),
                      percent((double)haul->times.beside_ns[k], ns));
        separator = ", ";
        before = "; ";
    }
    if (dh_haul_exposed_ns(haul) > 0)
        dh_str_printf(out, "%sexposed: %s", before, reasons[dh_haul_cause(haul)]);
}

static void put_what(const dh_program *p, const dh_cargo_row *row, dh_str *out)
{
    dh_str_printf(out, "%s %s", dh_op_info_of(row->type)->name, dh_group_name(row->group));
    dh_str_printf(out, row->first_block == DH_NONE ? ", %s" : ", ", dh_cargo_name(row->cargo));
    dh_cargo_put_blocks(p, row, out);
}

static void add_row(const dh_sim_rank *r, const dh_cargo_row *row, dh_cli_table *table)
{
    const double ns[] = {(double)row->haul.ns, (double)dh_haul_exposed_ns(&row->haul)};
    dh_str slot = DH_STR_INIT, what = DH_STR_INIT, beside = DH_STR_INIT;
    char text[32];
    dh_cargo_put_slot(row, &slot);
    put_what(r->program, row, &what);
    put_beside(&row->haul, &beside);
    dh_cli_table_cell(table, "%lld", (long long)r->stage);
    dh_cli_table_cell(table, "%s", slot.text ? slot.text : "");
    dh_cli_table_cell(table, "%s", what.text ? what.text : "");
    dh_cli_table_cell(table, "%u", row->haul.n);
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, row->haul.n_bytes));
    for (size_t i = 0; i < DH_COUNTOF(ns); i++)
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, ns[i]));
    dh_cli_table_cell(table, "%s", beside.text ? beside.text : "");
    table->failed |= slot.failed || what.failed || beside.failed;
    dh_str_fini(&slot);
    dh_str_fini(&what);
    dh_str_fini(&beside);
}

static dh_status add_rank(dh_ctx *ctx, const dh_sim_rank *r, dh_cli_table *table)
{
    dh_cargo_list list;
    dh_status st = dh_cargo_read(ctx, r->program, r->spans, r->alone_ns, &list);
    for (size_t i = 0; st == DH_OK && i < list.rows.n; i++) add_row(r, &list.rows.at[i], table);
    dh_cargo_list_fini(&list);
    return st;
}

static void begin_table(dh_cli_table *table)
{
    static const char *const numbers[] = {"calls", "bytes", "runs", "exposed"};
    dh_cli_table_begin(table);
    dh_cli_table_column(table, "stage", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "in", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(table, "gradients and parameters", DH_CLI_COLUMN_TEXT);
    for (size_t i = 0; i < DH_COUNTOF(numbers); i++)
        dh_cli_table_column(table, numbers[i], DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "", DH_CLI_COLUMN_NOTE);
}

dh_status dh_cargo_print_slots(dh_ctx *ctx, const dh_sim *sim, dh_str *out)
{
    dh_cli_table table;
    dh_str body = DH_STR_INIT;
    dh_status st = DH_OK;
    begin_table(&table);
    for (size_t k = 0; st == DH_OK && k < sim->n_classes; k++)
        if (dh_cargo_is_first(sim, k)) st = add_rank(ctx, &sim->ranks[k], &table);
    const bool any = table.cells.n > 0;
    dh_cli_table_end(&table, dh_cli_columns(), &body);
    if (any) {
        dh_str_wrap(out,
                    "gradients and parameters between ranks, on the first rank of each stage, in a "
                    "simulated step (in: B backward of a micro-batch, O optimizer; parameters: "
                    "also for a forward F or backward B; during: F forward, B input gradients, W "
                    "weight gradients, O optimizer)",
                    0, dh_cli_columns());
        dh_str_printf(out, "\n%s", body.text ? body.text : "");
    } else {
        dh_str_printf(out, "gradients and parameters stay on their rank\n");
    }
    out->failed |= body.failed;
    dh_str_fini(&body);
    return st;
}
