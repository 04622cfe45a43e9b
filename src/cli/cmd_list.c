/* dhelix list: the tables everything is made of, printed from their JSON, a column a key. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/json_text.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "describe/lists.h"

void dh_cli_list_words(const char *name, dh_str *out)
{
    json_t *rows = name ? dh_list_find(name)->make() : dh_list_names(), *row;
    size_t i;
    json_array_foreach(rows, i, row)
        dh_str_printf(out, "%s ", json_string_value(json_object_iter_value(json_object_iter(row))));
    out->failed |= !rows || !dh_json_is_whole();
    json_decref(rows);
}

/* How people set a name of a list. */
static const struct {
    const char *list, *what, *set;
} named[] = {
    {"strategies", "a strategy", "--set strategy="},
    {"schedules", "a pipeline schedule", "--set parallel.schedule="},
    {"clusters", "a cluster", "--cluster "},
    {"systems", "a system", "--set system="},
    {"models", "a model preset", "--set model="},
    {"policies", "an order policy", "--set overlap.policy="},
    {"jobs", "a job of published tables", "dhelix simulate "},
};

static void help_row(json_t *row, const char *what, const char *set, dh_str *out)
{
    enum { COLUMN = 10 };
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *doc = json_string_value(json_object_get(row, "doc"));
    dh_str_printf(out, "%s: %s\n", name, what);
    if (doc && *doc) {
        dh_str_printf(out, "%*s", COLUMN, "");
        dh_str_wrap(out, doc, COLUMN, dh_cli_columns());
    }
    dh_str_printf(out, "to set    %s%s\n", set, name);
}

size_t dh_cli_help_named(const char *name, dh_str *out)
{
    size_t n = 0, i;
    json_t *row;
    for (size_t k = 0; k < DH_COUNTOF(named); k++) {
        json_t *rows = dh_list_find(named[k].list)->make();
        json_array_foreach(rows, i, row)
        {
            const char *own = json_string_value(json_object_get(row, "name"));
            if (!own || !dh_is_same_word(own, name)) continue;
            help_row(row, named[k].what, named[k].set, out);
            n++;
        }
        json_decref(rows);
    }
    return n;
}

/* ---- printing ------------------------------------------------------------------------------- */

/* The first column is never broken: it is what people look for, and copy. The last one explains. */
static dh_cli_column_kind kind_of(json_t *value, size_t column, size_t n_columns)
{
    if (json_is_number(value)) return DH_CLI_COLUMN_RIGHT;
    if (!json_is_string(value) || column == 0) return DH_CLI_COLUMN_LEFT;
    return column + 1 == n_columns ? DH_CLI_COLUMN_NOTE : DH_CLI_COLUMN_TEXT;
}

static void add_columns(json_t *row, dh_cli_table *table)
{
    const size_t n_columns = json_object_size(row);
    const char *key;
    json_t *value;
    json_object_foreach(row, key, value)
        dh_cli_table_column(table, key, kind_of(value, table->n_columns, n_columns));
}

static void add_cell(json_t *value, dh_cli_table *table)
{
    char number[32];
    if (json_is_string(value))
        dh_cli_table_cell(table, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        dh_cli_table_cell(table, "%s", json_is_true(value) ? "yes" : "-");
    else if (json_is_real(value))
        dh_cli_table_cell(table, "%s",
                          dh_format_number(number, sizeof number, json_real_value(value), 5));
    else
        dh_cli_table_cell(table, "%lld", (long long)json_integer_value(value));
}

static dh_status print_table(dh_ctx *ctx, json_t *rows)
{
    const char *key;
    size_t i;
    json_t *row, *value;
    dh_cli_table table;
    dh_str out = DH_STR_INIT;
    dh_cli_table_begin(&table);
    if (json_array_size(rows) > 0) add_columns(json_array_get(rows, 0), &table);
    json_array_foreach(rows, i, row) json_object_foreach(row, key, value) add_cell(value, &table);
    dh_cli_table_end(&table, dh_cli_columns(), &out);
    json_decref(rows);
    if (dh_json_is_whole()) return dh_cli_print_str(ctx, &out);
    dh_str_fini(&out);
    return dh_no_memory(ctx);
}

/* ---- the command ---------------------------------------------------------------------------- */

static dh_status find_list(dh_ctx *ctx, dh_cli *cli, const char *name, const dh_list **list)
{
    enum { MOST = 64 };
    const char *names[MOST];
    size_t n;
    const dh_list *lists = dh_lists(&n);
    dh_str valid = DH_STR_INIT;
    *list = dh_list_find(name);
    if (*list) return DH_OK;
    DH_ASSERT(n <= MOST, "%zu lists", n);
    for (size_t i = 0; i < n; i++) {
        names[i] = lists[i].name;
        dh_str_printf(&valid, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = dh_nearest(name, names, n);
    dh_status st = near ? dh_cli_misuse(ctx, cli, "no list \"%s\"; did you mean %s?", name, near)
                        : dh_cli_misuse(ctx, cli, "no list \"%s\"; there are %s", name, valid.text);
    dh_str_fini(&valid);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    (void)args;
    json_t *(*make)(void) = dh_list_names;
    if (cli->args.n > 0) {
        const dh_list *list = NULL;
        DH_TRY(find_list(ctx, cli, cli->args.at[0], &list));
        make = list->make;
    }
    json_t *rows = make();
    if (!rows) return dh_no_memory(ctx);
    return cli->json ? dh_cli_print_json(ctx, rows) : print_table(ctx, rows);
}

const dh_command dh_command_list = {.name = "list",
                                    .doc =
                                        "print a table: models, operators, kernels, settings, ...",
                                    .usage = "[LIST]",
                                    .notes = "Without LIST: the names of all lists.\n",
                                    .max_args = 1,
                                    .run = run};
