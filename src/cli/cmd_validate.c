/* dhelix validate: predictions beside published measurements. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "validate/validate.h"

enum { ROWS_GROUPED, ROWS_ALL };
static const char *const rows_names[] = {"grouped", "all", NULL};

typedef struct validate_args {
    bool markdown;
    int rows;
    const char *cluster;
} validate_args;

static const dh_cli_option options[] = {
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(validate_args, cluster),
     .value = "NAME",
     .doc = "cluster, or path of a cluster file, in place of the table's own: for calibrating"},
    {.name = "markdown",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(validate_args, markdown),
     .doc = "a table in Markdown: of TABLE its rows, otherwise a line for every table"},
    {.name = "rows",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(validate_args, rows),
     .names = rows_names,
     .doc = "of long tables a line for rows that belong together, with their means, or one for "
            "every row (default: grouped); --json has every row"},
};

static const char *unit_of(const dh_validation_table *t)
{
    return t->measure == DH_VALIDATION_ABSOLUTE ? t->unit : dh_validation_measure_name(t->measure);
}

/* " aim 5 %: met", or nothing where none is set. */
static void print_aim(dh_str *out, const dh_validation *v, const char *before, const char *between)
{
    const dh_validation_table *t = v->table;
    if (!dh_validation_has_aim(t)) return;
    dh_str_printf(out, "%s", before);
    if (t->exact)
        dh_str_printf(out, "exact");
    else
        dh_str_printf(out, "%.3g%s%s", t->aim, *unit_of(t) ? " " : "", unit_of(t));
    if (v->n_orders > 0)
        dh_str_printf(out, " and orders, of which %d of %d are right", v->n_orders_right,
                      v->n_orders);
    dh_str_printf(out, "%s%s", between, dh_validation_meets_aim(v) ? "met" : "missed");
}

/* ---- lines --------------------------------------------------------------------------------- */

/* What is shown in one line: a row, or the means of a group. */
typedef struct line {
    char label[192];
    double predicted, published, error;
} line;

/* From row *at on, which moves behind it. */
static line next_line(const dh_validation *v, bool all, size_t *at)
{
    const dh_validation_row *first = &v->rows[*at];
    line l = {.error = 0};
    size_t n = 0;
    do {
        const dh_validation_row *r = &v->rows[(*at)++];
        l.predicted += r->predicted;
        l.published += r->published;
        l.error += r->error;
        n++;
    } while (!all && first->group && *at < v->n_rows && v->rows[*at].group == first->group);
    l.predicted /= (double)n;
    l.published /= (double)n;
    l.error /= (double)n;
    if (n > 1)
        snprintf(l.label, sizeof l.label, "%s, mean of %zu", first->group, n);
    else
        snprintf(l.label, sizeof l.label, "%s", first->label);
    return l;
}

/* ---- text -------------------------------------------------------------------------------- */

static void print_summary(dh_str *out, const dh_validation *v)
{
    const dh_validation_table *t = v->table;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s: mean error %.3g%s%s, largest %.3g", t->name, v->mean_error,
                  *unit_of(t) ? " " : "", unit_of(t), v->max_error);
    print_aim(&text, v, "; aim ", ": ");
    dh_cli_paragraph(out, &text, 2);
}

static void print_table(dh_str *out, const dh_validation *v, bool all)
{
    static const char *const headings[] = {"predicted", "published", "error"};
    dh_cli_table table;
    char text[32];
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, *v->table->unit ? v->table->unit : "row", DH_CLI_COLUMN_TEXT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (size_t i = 0; i < v->n_rows;) {
        const line l = next_line(v, all, &i);
        dh_cli_table_cell(&table, "%s", l.label);
        dh_cli_table_cell(&table, "%s", dh_format_number(text, sizeof text, l.predicted, 5));
        dh_cli_table_cell(&table, "%s", dh_format_number(text, sizeof text, l.published, 5));
        dh_cli_table_cell(&table, "%.3g", l.error);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void print_rows(dh_str *out, const dh_validation *v, bool all)
{
    const dh_validation_table *t = v->table;
    dh_str title = DH_STR_INIT;
    dh_str_printf(&title, "%s: %s", t->name, t->doc);
    dh_cli_paragraph(out, &title, 2);
    dh_str_printf(out, "  published: ");
    dh_str_wrap(out, v->source, 13, dh_cli_columns());
    dh_str_printf(out, "  predicted: ");
    dh_str_wrap(out, t->how, 13, dh_cli_columns());
    print_table(out, v, all);
    if (v->remark) {
        dh_str_printf(out, "  ");
        dh_str_wrap(out, v->remark, 2, dh_cli_columns());
    }
}

/* ---- Markdown ------------------------------------------------------------------------------ */

static void markdown_heading(dh_str *out, bool rows)
{
    if (rows)
        dh_str_printf(out, "| | predicted | published | error |\n|---|---|---|---|\n");
    else
        dh_str_printf(out, "| table | what | rows | mean error | largest | aim |\n"
                           "|---|---|---|---|---|---|\n");
}

static void markdown_rows(dh_str *out, const dh_validation *v, bool all)
{
    for (size_t i = 0; i < v->n_rows;) {
        const line l = next_line(v, all, &i);
        dh_str_printf(out, "| %s | %.5g | %.5g | %.3g |\n", l.label, l.predicted, l.published,
                      l.error);
    }
}

static void markdown_summary(dh_str *out, const dh_validation *v)
{
    const dh_validation_table *t = v->table;
    const char *gap = *unit_of(t) ? " " : "";
    dh_str_printf(out, "| `%s` | %s | %zu | %.3g%s%s | %.3g%s%s | ", t->name, t->doc, v->n_rows,
                  v->mean_error, gap, unit_of(t), v->max_error, gap, unit_of(t));
    print_aim(out, v, "", ", ");
    dh_str_printf(out, dh_validation_has_aim(t) ? " |\n" : "- |\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *row_json(const dh_validation_row *r)
{
    json_t *row = json_pack("{ss sf sf sf}", "row", r->label, "predicted", r->predicted,
                            "published", r->published, "error", r->error);
    if (row && r->command) {
        json_object_set_new(row, "command", json_string(r->command));
        json_object_set_new(row, "step_ms", json_real(r->step_ns * 1e-6));
    }
    return row;
}

static json_t *rows_json(const dh_validation *v)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < v->n_rows; i++) json_array_append_new(rows, row_json(&v->rows[i]));
    return rows;
}

static json_t *table_json(const dh_validation *v)
{
    const dh_validation_table *t = v->table;
    json_t *json =
        json_pack("{ss ss ss ss ss ss sf sf so}", "table", t->name, "doc", t->doc, "how", t->how,
                  "source", v->source, "unit", t->unit, "error_unit", unit_of(t), "mean_error",
                  v->mean_error, "max_error", v->max_error, "rows", rows_json(v));
    if (json && t->aim > 0) json_object_set_new(json, "aim", json_real(t->aim));
    if (json && t->exact) json_object_set_new(json, "aim", json_real(0));
    if (json && v->n_orders > 0)
        json_object_set_new(json, "orders",
                            json_pack("{si si}", "of", v->n_orders, "right", v->n_orders_right));
    if (json && v->remark) json_object_set_new(json, "remark", json_string(v->remark));
    return json;
}

/* ---- the command ----------------------------------------------------------------------------- */

typedef struct output {
    dh_cli *cli;
    const char *cluster;
    dh_validation_steps *steps;
    bool markdown, all; /* all: rows, not groups of them */
    bool one;           /* one table: its rows */
    dh_str text;
    json_t *json;
} output;

static void show(output *o, const dh_validation *v)
{
    if (o->cli->json) {
        json_array_append_new(o->json, table_json(v));
    } else if (o->markdown && o->one) {
        markdown_rows(&o->text, v, o->all);
    } else if (o->markdown) {
        markdown_summary(&o->text, v);
    } else {
        if (!o->cli->quiet) print_rows(&o->text, v, o->all);
        print_summary(&o->text, v);
        if (!o->one && !o->cli->quiet) dh_str_printf(&o->text, "\n");
    }
}

static dh_status show_tables(dh_ctx *ctx, output *o, const dh_validation_table *tables, size_t n)
{
    if (o->markdown) markdown_heading(&o->text, o->one);
    for (size_t i = 0; i < n; i++) {
        dh_validation *v;
        DH_TRY(dh_validate(ctx, &tables[i], o->cluster, o->steps, &v));
        show(o, v);
        dh_validation_destroy(v);
    }
    return DH_OK;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const validate_args *a = args;
    size_t n;
    const dh_validation_table *tables = dh_validation_tables(&n);
    if (cli->json && a->markdown)
        return dh_cli_misuse(ctx, cli, "--json and --markdown are two forms: leave one away");
    if (cli->args.n > 0) {
        DH_TRY(dh_validation_find(ctx, cli->args.at[0], &tables));
        n = 1;
    }
    output o = {.cli = cli,
                .cluster = a->cluster,
                .markdown = a->markdown,
                .all = a->rows == ROWS_ALL,
                .one = cli->args.n > 0,
                .steps = dh_validation_steps_create(),
                .json = json_array()};
    dh_status st = o.steps ? show_tables(ctx, &o, tables, n)
                           : dh_fail(ctx, DH_ENOMEM, "out of memory validating");
    dh_validation_steps_destroy(o.steps);
    if (st == DH_OK && cli->json) {
        dh_str_fini(&o.text);
        return dh_cli_print_json(ctx, o.json);
    }
    json_decref(o.json);
    if (st == DH_OK) return dh_cli_print_str(ctx, &o.text);
    dh_str_fini(&o.text);
    return st;
}

const dh_command dh_command_validate = {
    .name = "validate",
    .doc = "predictions of the planner and simulator beside published measurements",
    .usage = "[TABLE]",
    .notes =
        "Without TABLE: all of them (dhelix list tables). Every row shows what is predicted, what\n"
        "was published and the error; --quiet leaves only the line that sums a table up. Times of\n"
        "jobs are those that dhelix simulate gives for the job files in validation/jobs: with\n"
        "--json every row has its command.\n",
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(validate_args),
    .run = run};
