/* dhelix help: the commands, one of them, or the settings of a job file. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "config/settings.h"
#include "dhelix/job.h"

static void print_overview(dh_str *out)
{
    enum { COLUMN = 14 };
    size_t n;
    const dh_command *const *commands = dh_commands(&n);
    dh_str_printf(out, "dhelix: trains transformer language models on many ranks\n\n"
                       "usage: dhelix COMMAND [options]\n\n");
    for (size_t i = 0; i < n; i++) {
        dh_str_printf(out, "  %-*s", COLUMN - 2, commands[i]->name);
        dh_str_wrap(out, commands[i]->doc, COLUMN, dh_cli_columns());
    }
    dh_str_printf(out, "\n"
                       "dhelix COMMAND --help    options of a command\n"
                       "dhelix help job          every setting of a job file\n"
                       "dhelix help train.steps  one setting; dhelix help train. a section\n"
                       "dhelix --version         version\n");
}

/* A setting as others call it: "vpp"; and the help of what it is here. */
static size_t help_foreign(const char *topic, dh_str *out)
{
    const char *setting, *here = dh_foreign_word(topic, &setting);
    char key[64];
    if (!here) return 0;
    dh_str_printf(out, "%s: here %s%s%s\n", topic, setting ? setting : "", setting ? ": " : "",
                  here);
    snprintf(key, sizeof key, "%.*s", (int)strcspn(here, " :"), here);
    dh_job_help(setting ? setting : key, dh_cli_columns(), out);
    return 1;
}

/* A flag of another project that no setting is like. */
static size_t help_flag(const char *topic, dh_str *out)
{
    dh_project project;
    const dh_flag *flag = dh_flag_by_word(topic, &project);
    if (!flag) return 0;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s (%s): %s: %s", flag->name, dh_project_names[project],
                  dh_flag_effect_of(flag) == DH_FLAG_NONE ? "changes nothing in a step here"
                                                          : "cannot be expressed here",
                  flag->note ? flag->note : "");
    dh_cli_paragraph(out, &text, 4);
    return 1;
}

/* A setting by its last part: "tp". 0: none. */
static size_t help_by_part(const char *topic, dh_str *out)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(settings[i].key, '.');
        if (dot && strcmp(dot + 1, topic) == 0)
            return dh_job_help(settings[i].key, dh_cli_columns(), out);
    }
    return 0;
}

static size_t help_by_word(const char *topic, dh_str *out)
{
    size_t n = help_by_part(topic, out);
    if (n == 0) n = dh_cli_help_named(topic, out);
    if (n == 0) n = help_foreign(topic, out);
    return n > 0 ? n : help_flag(topic, out);
}

/* A word that looks like a setting is looked for among settings, any other among commands. */
static dh_status unknown_topic(dh_ctx *ctx, dh_cli *cli, const char *topic)
{
    const dh_command *command;
    dh_str hint = DH_STR_INIT;
    if (!strchr(topic, '.')) return dh_command_find(ctx, cli, topic, &command);
    dh_setting_suggest(topic, &hint);
    dh_status st = dh_cli_misuse(ctx, cli, "unknown setting \"%s\"; %s", topic,
                                 hint.text ? hint.text : "dhelix help job lists them");
    dh_str_fini(&hint);
    return st;
}

static const dh_command *command_of(const char *name)
{
    size_t n;
    const dh_command *const *commands = dh_commands(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    (void)args;
    const char *topic = cli->args.n > 0 ? cli->args.at[0] : NULL;
    const dh_command *command = topic ? command_of(topic) : NULL;
    dh_str out = DH_STR_INIT;
    if (!topic)
        print_overview(&out);
    else if (command)
        dh_cli_print_help(command, &out);
    else if (strcmp(topic, "job") == 0)
        dh_job_help(NULL, dh_cli_columns(), &out);
    else if (dh_job_help(topic, dh_cli_columns(), &out) == 0 && help_by_word(topic, &out) == 0)
        return unknown_topic(ctx, cli, topic);
    return dh_cli_print_str(ctx, &out);
}

const dh_command dh_command_help = {
    .name = "help",
    .doc = "explain a command, or settings of a job file",
    .usage = "[COMMAND|job|SETTING|SECTION|NAME]",
    .notes = "`dhelix help parallel` explains the settings parallel.*. Where a command has the\n"
             "section's name, a dot after it asks for the settings (`dhelix help train.`). A\n"
             "NAME is one that `dhelix list` prints, such as a strategy or a schedule.\n",
    .text_only = true,
    .max_args = 1,
    .run = run};
