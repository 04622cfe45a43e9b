/* dhelix export: a job as flags of another project. */
#include "cli/cli.h"
#include "exchange/exchange.h"

static dh_status print_json(dh_ctx *ctx, const dh_exported *e)
{
    json_t *flags = json_array(), *missing = json_array();
    for (size_t i = 0; i < e->lines.n; i++)
        json_array_append_new(flags, json_string(e->lines.at[i]));
    for (size_t i = 0; i < e->missing.n; i++)
        json_array_append_new(missing,
                              json_pack("{ss ss ss}", "setting", e->missing.at[i].name, "value",
                                        e->missing.at[i].value, "note", e->missing.at[i].note));
    return dh_cli_print_json(ctx, json_pack("{ss so so}", "text", e->text.text ? e->text.text : "",
                                            "flags", flags, "missing", missing));
}

/* Settings without a flag are printed as comments, so the text can be used as it is. */
static dh_status print(dh_ctx *ctx, const dh_exported *e)
{
    dh_str out = DH_STR_INIT;
    if (e->missing.n) dh_str_printf(&out, "# Without a flag there:\n");
    for (size_t i = 0; i < e->missing.n; i++)
        dh_str_printf(&out, "#   %s: %s (%s)\n", e->missing.at[i].name, e->missing.at[i].value,
                      e->missing.at[i].note);
    dh_str_append(&out, e->text.text ? e->text.text : "", e->text.len);
    return dh_cli_print_str(ctx, &out);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    dh_project project = DH_PROJECT_MEGATRON;
    dh_job *job = NULL;
    dh_exported exported;
    (void)args;
    DH_TRY(dh_cli_project(ctx, cli, &project));
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[1], 0, &job));
    dh_status st = dh_export(ctx, project, job, &exported);
    if (st == DH_OK) {
        st = cli->json ? print_json(ctx, &exported) : print(ctx, &exported);
        dh_exported_free(&exported);
    }
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_export = {
    .name = "export",
    .doc = "give a job's mesh, schedule, recomputation and overlap as flags of another project",
    .usage = "megatron|torchtitan|nemo JOB",
    .notes =
        "megatron: a command line of Megatron-LM; torchtitan: tables of a TOML file; nemo: "
        "trainer\n"
        "and model of a YAML file. Model and batch are there too. Data, optimizer, logging and\n"
        "checkpoints are yours to add.\n"
        "\n"
        "Settings of the job without a flag there are named first, as comments.\n",
    .set = true,
    .min_args = 2,
    .max_args = 2,
    .run = run};
