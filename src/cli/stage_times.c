/* Schedules of stages with given times, as text. */
#include "cli/stage_times.h"

#include "cli/cli.h"
#include "cli/table.h"

static void print_ranks(const dh_stage_times *t, dh_str *out)
{
    static const char *const headings[] = {"rank", "busy", "idle", "activations kept"};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (int32_t g = 0; g < t->schedule->n_ranks; g++) {
        char busy[32], idle[32];
        const double ns = (double)t->timing.busy_ns[g];
        dh_cli_table_cell(&table, "%d", g);
        dh_cli_table_cell(&table, "%s", dh_format_ns(busy, sizeof busy, ns));
        dh_cli_table_cell(&table, "%s", dh_format_ns(idle, sizeof idle, (double)t->step_ns - ns));
        dh_cli_table_cell(&table, "%d", t->activations[g]);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

void dh_stage_times_print(const dh_stage_times *t, dh_str *out)
{
    char step[32];
    const dh_schedule *s = t->schedule;
    dh_str_printf(out,
                  "%s, %d ranks, %d virtual stages, %d micro-batches, times of the job's stages.*\n"
                  "step %s, of which ranks stand still %.2f %% (bubble)\n\n",
                  s->name, s->n_ranks, s->n_stages, s->n_micro,
                  dh_format_ns(step, sizeof step, (double)t->step_ns), 100 * t->bubble);
    print_ranks(t, out);
}
