/* dhelix validate: predictions beside published measurements. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "dhelix/growable.h"
#include "validate/draw.h"

enum { ROWS_GROUPED, ROWS_ALL };
static const char *const rows_names[] = {"grouped", "all", NULL};

typedef struct validate_args {
    bool markdown, fit;
    int rows;
    int64_t threads;
    const char *cluster, *svg, *html;
} validate_args;

static const dh_cli_option options[] = {
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(validate_args, cluster),
     .value = "NAME",
     .doc = "cluster, or path of a cluster file, in place of the table's own: for calibrating"},
    {.name = "fit",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(validate_args, fit),
     .doc = "fit the constants of cluster files that rest on TABLE again: once to all its rows, "
            "and once without a third of them, whose error is then shown; slow"},
    {.name = "html",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(validate_args, html),
     .value = "FILE.html",
     .doc = "also a page with every table's picture, rows, and the commands that simulate them"},
    {.name = "markdown",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(validate_args, markdown),
     .doc = "print Markdown: of one TABLE its rows, of several one line each"},
    {.name = "svg",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(validate_args, svg),
     .value = "FOLDER",
     .doc =
         "also a picture of every table, predicted and published side by side: FOLDER/TABLE.svg"},
    {.name = "threads",
     .kind = DH_CLI_INT,
     .offset = offsetof(validate_args, threads),
     .value = "N",
     .min = 1,
     .max = DH_MOST_THREADS,
     .doc = "steps that are simulated at once; default: one per core and 3.5 GB of free memory, "
            "4 at most. The result does not depend on it"},
    {.name = "rows",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(validate_args, rows),
     .names = rows_names,
     .doc = "grouped: long tables have one line for rows that belong together, with their means; "
            "all: one line per row (default: grouped); --json has every row"},
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
        dh_str_printf(out, " and every order right (%d of %d)", v->n_orders_right, v->n_orders);
    dh_str_printf(out, "%s%s", between, dh_validation_meets_aim(v) ? "met" : "missed");
}

/* ---- lines --------------------------------------------------------------------------------- */

/* One line of the output: a row, or the means of a group. */
typedef struct line {
    char label[192];
    double predicted, published, error;
} line;

/* The line that begins at row *at, which moves after it. */
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

static void print_rests(dh_str *out, const dh_validation_table *t)
{
    dh_str text = DH_STR_INIT;
    if (!t->rests[0]) return;
    dh_str_printf(&text, "  fitted here: of cluster %s ", t->rests_cluster);
    for (size_t i = 0; i < DH_VALIDATION_CONSTANTS && t->rests[i]; i++)
        dh_str_printf(&text, "%s%s", i ? ", " : "", t->rests[i]);
    dh_str_printf(&text, " (--fit)");
    dh_cli_paragraph(out, &text, 15);
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
    print_rests(out, t);
    print_table(out, v, all);
    if (v->remark) {
        dh_str_printf(out, "  ");
        dh_str_wrap(out, v->remark, 2, dh_cli_columns());
    }
}

/* ---- constants ------------------------------------------------------------------------------ */

static void print_constants(dh_str *out, const dh_validation_fit *fit)
{
    static const char *const headings[] = {"shipped", "all rows", "without a third"};
    dh_cli_table table;
    char text[32];
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "constant", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (size_t i = 0; i < fit->n_constants; i++) {
        const dh_validation_constant *c = &fit->constants[i];
        const double values[] = {c->shipped, c->fitted, c->part_fitted};
        dh_cli_table_cell(&table, "%s", c->key);
        for (size_t k = 0; k < DH_COUNTOF(values); k++)
            dh_cli_table_cell(&table, "%s", dh_format_number(text, sizeof text, values[k], 4));
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void print_fit(dh_str *out, const dh_validation_table *t, const dh_validation_fit *fit)
{
    const char *unit = unit_of(t), *gap = *unit ? " " : "";
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s: mean errors of %zu rows, and of %zu of them left out", t->name,
                  fit->n_rows, fit->n_left_out);
    dh_cli_paragraph(out, &text, 2);
    print_constants(out, fit);
    dh_str_printf(&text, "shipped constants: %.3g%s%s, rows left out %.3g", fit->shipped, gap, unit,
                  fit->shipped_left_out);
    dh_cli_paragraph(out, &text, 2);
    dh_str_printf(&text, "fitted to all rows: %.3g%s%s", fit->fitted, gap, unit);
    dh_cli_paragraph(out, &text, 2);
    dh_str_printf(&text, "fitted to the other %zu rows: %.3g%s%s there, %.3g in the rows left out",
                  fit->n_rows - fit->n_left_out, fit->part, gap, unit, fit->part_left_out);
    dh_cli_paragraph(out, &text, 2);
}

static json_t *fit_json(const dh_validation_table *t, const dh_validation_fit *fit)
{
    json_t *constants = json_array();
    for (size_t i = 0; i < fit->n_constants; i++) {
        const dh_validation_constant *c = &fit->constants[i];
        json_array_append_new(constants,
                              json_pack("{ss sf sf sf}", "constant", c->key, "shipped", c->shipped,
                                        "fitted", c->fitted, "part_fitted", c->part_fitted));
    }
    return json_pack("{ss ss sI sI sf sf sf sf sf so}", "table", t->name, "error_unit", unit_of(t),
                     "rows", (json_int_t)fit->n_rows, "left_out", (json_int_t)fit->n_left_out,
                     "shipped_error", fit->shipped, "shipped_left_out_error", fit->shipped_left_out,
                     "fitted_error", fit->fitted, "part_error", fit->part, "part_left_out_error",
                     fit->part_left_out, "constants", constants);
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
    if (row && r->series) json_object_set_new(row, "series", json_string(r->series));
    if (row && r->command) {
        json_object_set_new(row, "command", json_string(r->command));
        json_object_set_new(row, "step_ms", json_real(r->step_ns * 1e-6));
        json_object_set_new(row, "fitted", json_boolean(r->fitted));
        if (*r->facts.cluster) json_object_set_new(row, "step", dh_step_facts_json(&r->facts));
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
    int64_t threads;    /* 0: one a processor, a few at most */
    bool markdown, all; /* all: rows, not groups of them */
    bool one;           /* one table: its rows */
    dh_str text;
    json_t *json;
    const char *svg; /* folder for pictures; NULL: none */
    const char *html;
    dh_str page; /* for html */
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

static dh_status write_text(dh_ctx *ctx, const char *path, const dh_str *text)
{
    if (text->failed) return dh_no_memory_while(ctx, "drawing %s", path);
    return dh_file_write_atomic(ctx, path, text->text, text->len);
}

static dh_status draw(dh_ctx *ctx, output *o, const dh_validation *v)
{
    dh_str path = DH_STR_INIT, picture = DH_STR_INIT;
    if (o->html) dh_validation_page_add(v, &o->page);
    if (!o->svg) return DH_OK;
    dh_str_printf(&path, "%s/%s.svg", o->svg, v->table->name);
    dh_validation_draw(v, &picture);
    const dh_status st = path.failed ? dh_no_memory(ctx) : write_text(ctx, path.text, &picture);
    dh_str_fini(&path);
    dh_str_fini(&picture);
    return st;
}

static dh_status show_table(dh_ctx *ctx, const dh_validation *v, void *user)
{
    output *o = user;
    show(o, v);
    DH_TRY(draw(ctx, o, v));
    if (o->cli->json) return DH_OK;
    DH_TRY(dh_cli_print_str(ctx, &o->text)); /* all of them take minutes: as they are done */
    return dh_cli_flush(ctx);
}

typedef DH_VEC(const dh_validation_table *) table_list;

/* The named tables, or all. A wrong name is reported before anything is simulated. */
static dh_status find_tables(dh_ctx *ctx, const dh_cli_list *names, table_list *tables)
{
    const dh_validation_table *first;
    size_t n;
    for (size_t i = 0; i < DH_MAX(names->n, (size_t)1); i++) {
        if (names->n == 0)
            first = dh_validation_tables(&n);
        else
            DH_TRY(dh_validation_find_all(ctx, names->at[i], &first, &n));
        for (size_t k = 0; k < n; k++)
            if (!dh_vec_push(tables, &first[k])) return dh_no_memory(ctx);
    }
    return DH_OK;
}

enum { MOST_AT_ONCE = 4 };
#define STEP_BYTES 3.5e9 /* while one of the largest is simulated */

static size_t n_threads_of(const output *o)
{
    if (o->threads > 0) return (size_t)o->threads;
    const double available = dh_memory_available(); /* 0: not known */
    double n = DH_MIN((double)dh_own_processors(), (double)MOST_AT_ONCE);
    if (available > 0) n = DH_MIN(n, available / STEP_BYTES);
    return (size_t)DH_MAX(n, 1.0);
}

static dh_status show_tables(dh_ctx *ctx, output *o)
{
    table_list tables = {0};
    dh_status st = find_tables(ctx, &o->cli->args, &tables);
    o->one = tables.n == 1;
    if (st == DH_OK && o->markdown) markdown_heading(&o->text, o->one);
    if (st == DH_OK)
        st = dh_validate_tables(ctx, tables.at, tables.n, o->cluster, n_threads_of(o), show_table,
                                o);
    dh_vec_fini(&tables);
    return st;
}

/* The page begins before the tables, so that a folder that cannot be written is said first. */
static dh_status show_and_draw(dh_ctx *ctx, output *o)
{
    if (o->svg) DH_TRY(dh_dir_create(ctx, o->svg));
    if (o->html) dh_validation_page_begin(&o->page);
    DH_TRY(show_tables(ctx, o));
    if (!o->html) return DH_OK;
    dh_validation_page_end(&o->page);
    return write_text(ctx, o->html, &o->page);
}

static dh_status run_fit(dh_ctx *ctx, dh_cli *cli, const char *name, const char *cluster)
{
    const dh_validation_table *table;
    dh_validation_fit fit;
    dh_str text = DH_STR_INIT;
    DH_TRY(dh_validation_find(ctx, name, &table));
    DH_TRY(dh_validation_fit_table(ctx, table, cluster, &fit));
    if (cli->json) return dh_cli_print_json(ctx, fit_json(table, &fit));
    print_fit(&text, table, &fit);
    return dh_cli_print_str(ctx, &text);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const validate_args *a = args;
    if (cli->json && a->markdown)
        return dh_cli_misuse(ctx, cli, "--json and --markdown are two forms: leave one away");
    if (a->fit && (cli->args.n != 1 || a->markdown || a->svg || a->html))
        return dh_cli_misuse(ctx, cli, "--fit is of one TABLE, as text or --json");
    if (a->fit) return run_fit(ctx, cli, cli->args.at[0], a->cluster);
    output o = {.cli = cli,
                .cluster = a->cluster,
                .markdown = a->markdown,
                .all = a->rows == ROWS_ALL,
                .threads = a->threads,
                .json = json_array(),
                .svg = a->svg,
                .html = a->html};
    dh_status st = show_and_draw(ctx, &o);
    dh_str_fini(&o.page);
    if (st == DH_OK && cli->json) {
        dh_str_fini(&o.text);
        return dh_cli_print_json(ctx, o.json);
    }
    json_decref(o.json);
    dh_str_fini(&o.text);
    return st;
}

const dh_command dh_command_validate = {
    .name = "validate",
    .doc = "compare predictions with published measurements",
    .usage = "[TABLE...]",
    .notes = "Without TABLE it shows all tables (dhelix list tables). dhelix-paper names those of\n"
             "DHelix' paper: figures 3, 4, 11, 12, 13a, 15, tables 1 and 7, 6.5 (docs/paper.md). "
             "Every row\n"
             "has the predicted figure, the published one and the error; --quiet leaves only the\n"
             "line that sums a table up. Times of jobs are those of dhelix simulate for the job\n"
             "files in validation/jobs. With --json every row has its command.\n",
    .max_args = SIZE_MAX,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(validate_args),
    .run = run};
