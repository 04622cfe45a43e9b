/* dhelix import: a job file of what another project's command line or file says. */
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "exchange/exchange.h"

typedef struct import_args {
    const char *write, *system;
    dh_cli_list defines;
    int64_t ranks;
    bool lenient;
} import_args;

static const dh_cli_option options[] = {
    {.name = "write",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(import_args, write),
     .value = "FILE",
     .doc = "where the job file goes (default: standard output)"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(import_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "devices (default: as many as the command starts, if the mesh divides them)"},
    {.name = "system",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(import_args, system),
     .value = "NAME",
     .doc = "system to simulate (default: the project's present software)"},
    {.name = "define",
     .kind = DH_CLI_LIST,
     .offset = offsetof(import_args, defines),
     .value = "NAME=VALUE",
     .doc = "megatron: a variable of the script's environment, or an argument (1=...); may be "
            "repeated"},
    {.name = "lenient",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(import_args, lenient),
     .doc = "unknown flags are listed with those that cannot be expressed, not refused"},
};

dh_status dh_cli_project(dh_ctx *ctx, dh_cli *cli, dh_project *project)
{
    const char *name = cli->args.at[0];
    for (int i = 0; dh_project_names[i]; i++)
        if (strcmp(dh_project_names[i], name) == 0) {
            *project = (dh_project)i;
            return DH_OK;
        }
    const char *near = dh_nearest(name, dh_project_names, DH_N_PROJECTS);
    return dh_cli_misuse(ctx, cli, "unknown project \"%s\"; %s%s%s", name,
                         near ? "did you mean " : "megatron, torchtitan and nemo are known",
                         near ? near : "", near ? "?" : "");
}

/* ---- what is said about it ------------------------------------------------------------------------ */

static const char *const fate_names[] = {"expressed", "no_effect", "not_expressed"};
_Static_assert(DH_COUNTOF(fate_names) == DH_N_FATES, "a name for each");

static json_t *given_json(const dh_given *g)
{
    return json_pack("{ss ss* ss* ss*}", "name", g->name, "value", g->value, "here", g->here,
                     "note", g->note);
}

static dh_status print_json(dh_ctx *ctx, const dh_imported *imported)
{
    json_t *lists[DH_N_FATES], *notes = json_array();
    for (int f = 0; f < DH_N_FATES; f++) lists[f] = json_array();
    for (size_t i = 0; i < imported->n_given; i++)
        json_array_append_new(lists[imported->given[i].fate], given_json(&imported->given[i]));
    for (size_t i = 0; i < imported->n_notes; i++)
        json_array_append_new(notes, json_string(imported->notes[i]));
    return dh_cli_print_json(ctx, json_pack("{ss so so so so}", "job", imported->job, fate_names[0],
                                            lists[0], fate_names[1], lists[1], fate_names[2],
                                            lists[2], "notes", notes));
}

static size_t count(const dh_imported *imported, dh_fate fate)
{
    size_t n = 0;
    for (size_t i = 0; i < imported->n_given; i++) n += imported->given[i].fate == fate;
    return n;
}

static void print_list(const dh_imported *imported, dh_fate fate, const char *title, dh_str *out)
{
    dh_cli_table table;
    if (!count(imported, fate)) return;
    dh_str_printf(out, "\n%s\n", title);
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "flag", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "here", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(&table, "note", DH_CLI_COLUMN_NOTE);
    for (size_t i = 0; i < imported->n_given; i++) {
        const dh_given *g = &imported->given[i];
        if (g->fate != fate) continue;
        dh_cli_table_cell(&table, "%s%s%.40s", g->name, g->value ? " " : "",
                          g->value ? g->value : "");
        dh_cli_table_cell(&table, "%s", g->here ? g->here : "-");
        dh_cli_table_cell(&table, "%s", g->note ? g->note : "");
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static dh_status print_lists(dh_ctx *ctx, const dh_imported *imported, const char *path)
{
    dh_str out = DH_STR_INIT;
    dh_str_printf(&out,
                  "%s: %zu flags expressed, %zu change nothing in a step here, %zu cannot be "
                  "expressed\n",
                  path, count(imported, DH_FATE_EXPRESSED), count(imported, DH_FATE_IDLE),
                  count(imported, DH_FATE_LOST));
    for (size_t i = 0; i < imported->n_notes; i++) dh_str_printf(&out, "%s\n", imported->notes[i]);
    print_list(imported, DH_FATE_LOST, "cannot be expressed", &out);
    print_list(imported, DH_FATE_EXPRESSED, "expressed", &out);
    print_list(imported, DH_FATE_IDLE, "changes nothing in a step here", &out);
    return dh_cli_print_str(ctx, &out);
}

static dh_status answer(dh_ctx *ctx, const dh_cli *cli, const import_args *a,
                        const dh_imported *imported)
{
    dh_str text = DH_STR_INIT;
    dh_imported_print(imported, &text);
    dh_status st = text.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && a->write) st = dh_file_write_atomic(ctx, a->write, text.text, text.len);
    if (st == DH_OK && cli->json)
        st = print_json(ctx, imported);
    else if (st == DH_OK && !a->write)
        return dh_cli_print_str(ctx, &text);
    else if (st == DH_OK && !cli->quiet)
        st = print_lists(ctx, imported, a->write);
    dh_str_fini(&text);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const import_args *a = args;
    const dh_import_options how = {.system = a->system,
                                   .ranks = a->ranks,
                                   .lenient = a->lenient,
                                   .defines = a->defines.at,
                                   .n_defines = a->defines.n,
                                   .set = cli->set.at,
                                   .n_set = cli->set.n};
    dh_project project = DH_PROJECT_MEGATRON;
    dh_imported imported;
    DH_TRY(dh_cli_project(ctx, cli, &project));
    DH_TRY(dh_import(ctx, project, cli->args.at[1], &how, &imported));
    const dh_status st = answer(ctx, cli, a, &imported);
    dh_imported_free(&imported);
    return st;
}

const dh_command dh_command_import = {
    .name = "import",
    .doc = "make a job file of a command line or file of Megatron-LM, torchtitan or NeMo",
    .usage = "megatron|torchtitan|nemo SOURCE",
    .notes =
        "SOURCE is a file: for megatron a shell script, or a text with the command line; for\n"
        "torchtitan a TOML file; for nemo a YAML file. For megatron it may be the arguments\n"
        "themselves, as one word: dhelix import megatron '--num-layers 32 ...'.\n"
        "\n"
        "Comments in the job file list three kinds of flags: those that cannot be expressed,\n"
        "those that were expressed, with their settings, and those that do not change a step\n"
        "here. No flag is dropped. An unknown flag is an error; with --lenient it is listed as\n"
        "one that cannot be expressed.\n"
        "\n"
        "Scripts are not run. Assignments, arrays, arithmetic and conditions on texts and\n"
        "numbers are carried out; tests for files are true; the environment is empty except\n"
        "for --define.\n",
    .set = true,
    .min_args = 2,
    .max_args = 2,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(import_args),
    .run = run};
