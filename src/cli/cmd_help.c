/* dhelix help: the commands, one of them, or the settings of a job file. */
#include <string.h>

#include "cli/cli.h"
#include "dhelix/job.h"

static void print_overview(dh_str *out)
{
    enum { COLUMN = 12, WIDTH = 96 };
    size_t n;
    const dh_command *const *commands = dh_commands(&n);
    dh_str_printf(out, "dhelix: trains transformer language models on many ranks\n\n"
                       "usage: dhelix COMMAND [options]\n\n");
    for (size_t i = 0; i < n; i++) {
        dh_str_printf(out, "  %-*s", COLUMN - 2, commands[i]->name);
        dh_cli_wrap(out, commands[i]->doc, COLUMN, WIDTH);
    }
    dh_str_printf(out, "\n"
                       "dhelix COMMAND --help   options of a command\n"
                       "dhelix help job         every setting of a job file\n"
                       "dhelix --version        version\n");
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    (void)args;
    const char *topic = cli->args.n > 0 ? cli->args.at[0] : NULL;
    dh_str out = DH_STR_INIT;
    const dh_command *command;
    if (!topic) {
        print_overview(&out);
    } else if (strcmp(topic, "job") == 0) {
        dh_job_help(&out);
    } else {
        DH_TRY(dh_command_find(ctx, cli, topic, &command));
        dh_cli_print_help(command, &out);
    }
    return dh_cli_print_str(ctx, &out);
}

const dh_command dh_command_help = {.name = "help",
                                    .doc = "explain a command, or the settings of a job file",
                                    .usage = "[COMMAND|job]",
                                    .max_args = 1,
                                    .run = run};
