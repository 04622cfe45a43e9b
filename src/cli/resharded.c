/* Reshards between two layouts as text. */
#include "cli/resharded.h"

#include "cli/cli.h"
#include "cli/table.h"

static void print_rows(const dh_resharded *r, dh_str *out)
{
    static const char *const headings[] = {"inside nodes", "between nodes", "messages",
                                           "a rank sends", "takes",         "busiest wire",
                                           "whole switch"};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "rule", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_NOTE);
    for (size_t i = 0; i < r->n; i++) {
        const dh_resharded_row *row = &r->rows[i];
        const double bytes[] = {(double)row->sum.local_bytes, (double)row->sum.cross_bytes},
                     most[] = {(double)row->sum.most_out, (double)row->sum.most_in},
                     ns[] = {row->sum.busiest_ns, (double)row->step_ns};
        char text[32];
        dh_cli_table_cell(&table, "%s", dh_reshard_rule_name(row->rule));
        for (int k = 0; k < 2; k++)
            dh_cli_table_cell(&table, "%s", dh_format_bytes(text, sizeof text, bytes[k]));
        dh_cli_table_cell(&table, "%lld", (long long)row->sum.n_messages);
        for (int k = 0; k < 2; k++)
            dh_cli_table_cell(&table, "%s", dh_format_bytes(text, sizeof text, most[k]));
        for (int k = 0; k < 2; k++)
            dh_cli_table_cell(&table, "%s", dh_format_ns(text, sizeof text, ns[k]));
        dh_cli_table_cell(&table, "%s", row->proved ? "no plan's busiest wire is done sooner" : "");
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

void dh_resharded_print(const dh_resharded *r, dh_str *out)
{
    char from[96], to[96], kept[32], staged[32], bound[32];
    const dh_mesh *m = &r->from->recipe.mesh;
    const dh_resharded_row *last = &r->rows[r->n - 1];
    dh_str text = DH_STR_INIT;
    dh_str_printf(out, "%s (%s) of %lld ranks, %lld a node\n  from %s\n  to   %s\n", r->what,
                  dh_dtype_name(r->from->recipe.dtype), (long long)m->ranks,
                  (long long)m->ranks_per_node, dh_resharded_layout(r->from, from, sizeof from),
                  dh_resharded_layout(r->to, to, sizeof to));
    dh_str_printf(&text,
                  "%s stay on their ranks; no plan's busiest wire is done before %s; messages take "
                  "%s of a rank's memory in addition to the layouts; costs: %s",
                  dh_format_bytes(kept, sizeof kept, (double)last->sum.kept_bytes),
                  dh_format_ns(bound, sizeof bound, last->sum.bound_ns),
                  dh_format_bytes(staged, sizeof staged, (double)last->staged_bytes),
                  r->from->recipe.costs->name);
    dh_cli_paragraph(out, &text, 2);
    dh_str_printf(out, "\n");
    print_rows(r, out);
}
