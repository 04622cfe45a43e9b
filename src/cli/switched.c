/* Steps over several meshes as text, for `simulate` and `tune --lengths`. */
#include "cli/switched.h"

#include "cli/cli.h"
#include "cli/simulated.h"
#include "cli/table.h"
#include "describe/resharded.h"

static void print_group(const dh_switched_group *g, dh_cli_table *t)
{
    char text[96];
    const double moved = (double)(g->moves.params_ns + g->moves.grads_ns);
    dh_cli_table_cell(t, "%lld", (long long)g->job->recipe.seq);
    dh_cli_table_cell(t, "%s", dh_resharded_layout(g->job, text, sizeof text));
    dh_cli_table_cell(t, "%.1f", g->load.docs);
    dh_cli_table_cell(t, "%.0f", g->load.tokens);
    dh_cli_table_cell(t, "%.1f", g->passes);
    dh_cli_table_cell(t, "%s", dh_format_ns(text, sizeof text, (double)g->pass.ns[1]));
    dh_cli_table_cell(t, "%s", g->at_home ? "-" : dh_format_ns(text, sizeof text, moved));
    dh_cli_table_cell(t, "%s", dh_format_ns(text, sizeof text, g->ns));
    dh_cli_table_cell(t, "%s", dh_format_bytes(text, sizeof text, (double)g->pass.peak_bytes));
}

static void print_groups(const dh_switched *s, dh_str *out)
{
    static const struct {
        const char *heading;
        dh_cli_column_kind kind;
    } columns[] = {{"up to", DH_CLI_COLUMN_RIGHT},     {"mesh", DH_CLI_COLUMN_TEXT},
                   {"documents", DH_CLI_COLUMN_RIGHT}, {"tokens", DH_CLI_COLUMN_RIGHT},
                   {"passes", DH_CLI_COLUMN_RIGHT},    {"a pass", DH_CLI_COLUMN_RIGHT},
                   {"switching", DH_CLI_COLUMN_RIGHT}, {"of a step", DH_CLI_COLUMN_RIGHT},
                   {"memory", DH_CLI_COLUMN_RIGHT}};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    for (size_t i = 0; i < DH_COUNTOF(columns); i++)
        dh_cli_table_column(&table, columns[i].heading, columns[i].kind);
    for (size_t i = 0; i < s->n; i++) print_group(&s->groups[i], &table);
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

void dh_switched_print(const dh_switched *s, const dh_resolved *job, dh_str *out)
{
    char home[96], last[96], step[32], update[32], peak[32], packed[32], bytes[32], kept[32];
    const dh_mesh *m = &job->recipe.mesh;
    dh_str text = DH_STR_INIT;
    dh_str_printf(out, "%s, %s, %lld ranks, %lld a node; weights and optimizer at %s\n\n",
                  job->recipe.model.name, dh_precision_name(job->recipe.dtype, job->recipe.fp8),
                  (long long)m->ranks, (long long)m->ranks_per_node,
                  dh_resharded_layout(job, home, sizeof home));
    print_groups(s, out);
    dh_str_printf(out, "\n");
    dh_str_printf(&text,
                  "step %s: %.0f tokens, %.0f tokens/s; the optimizer takes %s of it and keeps %s; "
                  "most memory of any rank %s. All documents packed for %s: %s a step, %s (%.2f "
                  "times as long). Means of %lld steps; costs: %s",
                  dh_format_ns(step, sizeof step, s->step_ns), s->tokens,
                  s->tokens / (s->step_ns * 1e-9),
                  dh_format_ns(update, sizeof update, (double)s->update_ns),
                  dh_format_bytes(kept, sizeof kept, (double)s->home_bytes),
                  dh_format_bytes(peak, sizeof peak, (double)s->peak_bytes),
                  dh_resharded_layout(s->groups[s->n - 1].job, last, sizeof last),
                  dh_format_ns(packed, sizeof packed, s->packed_ns),
                  dh_format_bytes(bytes, sizeof bytes, (double)s->packed_bytes),
                  s->packed_ns / s->step_ns, (long long)s->n_steps, job->recipe.costs->name);
    if (s->hidden_ns > 0)
        dh_str_printf(&text, "; moves during passes make the step %s shorter",
                      dh_format_ns(update, sizeof update, s->hidden_ns));
    dh_cli_paragraph(out, &text, 0);
    dh_step_facts facts;
    if (dh_resolved_facts(job, &facts)) dh_nearest_print(&facts, out);
    dh_str_printf(out, "\n");
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void print_plan(const dh_length_plan *p, dh_cli_table *t)
{
    char text[32];
    const dh_switched *s = &p->switched;
    dh_cli_table_cell(t, "%zu", p->n_groups);
    dh_cli_table_cell(t, "%s", dh_format_ns(text, sizeof text, s->step_ns));
    dh_cli_table_cell(t, "%.0f", s->tokens / (s->step_ns * 1e-9));
    dh_cli_table_cell(t, "%s", dh_format_bytes(text, sizeof text, (double)s->peak_bytes));
    dh_cli_table_cell(t, "%s", p->home);
    dh_cli_table_cell(t, "%s", p->groups);
    dh_cli_table_cell(t, "%s", p->fits ? "" : "does not fit");
}

static void print_plans(const dh_length_plans *plans, dh_str *out)
{
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "groups", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "step", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "tokens/s", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "memory", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "home", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(&table, "switch.groups", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_NOTE);
    for (size_t i = 0; i < plans->n; i++) print_plan(&plans->plans[i], &table);
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void print_verdict(const dh_length_plans *plans, dh_str *out)
{
    const dh_length_plan *best = &plans->plans[0], *packed = dh_length_plans_packed(plans);
    dh_str text = DH_STR_INIT;
    if (best->n_groups == 1)
        dh_str_printf(&text, "switching does not pay: one mesh with all documents packed "
                             "(data.packing: pack) is shortest");
    else if (packed)
        dh_str_printf(&text, "switching pays: %.2f times the tokens/s of the best single mesh",
                      packed->switched.step_ns / best->switched.step_ns);
    else
        dh_str_printf(&text, "no single mesh fits; with these groups the job does");
    dh_str_printf(&text,
                  "; %lld programs simulated, %lld that the job cannot have, %lld left out: more "
                  "context parallelism than where that was slower already",
                  (long long)plans->n_passes, (long long)plans->n_refused,
                  (long long)plans->n_left_out);
    dh_cli_paragraph(out, &text, 0);
    dh_str_printf(out, "\n");
}

void dh_length_plans_print(const dh_length_plans *plans, dh_str *out)
{
    dh_str_printf(out, "lengths: %s\n\n", plans->reading);
    print_plans(plans, out);
    dh_str_printf(out, "\n");
    print_verdict(plans, out);
    dh_switched_print(&plans->plans[0].switched, plans->plans[0].resolved, out);
}
