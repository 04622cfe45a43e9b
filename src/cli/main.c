/* The dhelix binary: finds the command, reads its options, runs it.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage, 3 an MPI process for want of others, 130
 * interrupted.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "cli/cli.h"
#ifdef DH_HAVE_CUDA
#include "run/cuda/device.h"
#endif

enum { EXIT_USAGE = 2 };

static const dh_command *const commands[] = {
    &dh_command_train,    &dh_command_launch,     &dh_command_check,     &dh_command_profile,
    &dh_command_plan,     &dh_command_simulate,   &dh_command_tune,      &dh_command_sample,
    &dh_command_eval,     &dh_command_tokenize,   &dh_command_convert,   &dh_command_import,
    &dh_command_export,   &dh_command_report,     &dh_command_plot,      &dh_command_verify,
    &dh_command_validate, &dh_command_calibrate,  &dh_command_run_graph, &dh_command_list,
    &dh_command_help,     &dh_command_completion,
};

const dh_command *const *dh_commands(size_t *n)
{
    *n = DH_COUNTOF(commands);
    return commands;
}

dh_status dh_command_find(dh_ctx *ctx, dh_cli *cli, const char *name, const dh_command **command)
{
    const char *names[DH_COUNTOF(commands)];
    for (size_t i = 0; i < DH_COUNTOF(commands); i++) {
        names[i] = commands[i]->name;
        if (strcmp(names[i], name) == 0) {
            *command = commands[i];
            return DH_OK;
        }
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(names));
    if (near)
        return dh_cli_misuse(ctx, cli, "unknown command \"%s\"; did you mean %s?", name, near);
    return dh_cli_misuse(ctx, cli, "unknown command \"%s\"; dhelix --help lists the commands",
                         name);
}

static bool writes_files(const dh_command *c)
{
    bool writes = c == &dh_command_convert;
    for (size_t i = 0; i < c->n_options; i++) writes |= c->options[i].writes;
    return writes;
}

static dh_status run_command(dh_ctx *ctx, dh_cli *cli, int argc, char **argv)
{
    const dh_command *c = cli->command;
    void *args = calloc(1, c->args_bytes + 1);
    if (!args) return dh_no_memory(ctx);
    if (c->defaults) memcpy(args, c->defaults, c->args_bytes);
    dh_status st = dh_cli_parse(ctx, cli, argc, argv, args);
    if (st == DH_OK && cli->log_level >= 0) dh_log_set_level((dh_log_level)cli->log_level);
    if (st == DH_OK && cli->help) {
        dh_str text = DH_STR_INIT;
        dh_cli_print_help(c, &text);
        st = dh_cli_print_str(ctx, &text);
    } else if (st == DH_OK) {
        if (writes_files(c)) dh_cli_die_at_signals();
        st = c->run(ctx, cli, args);
    }
    dh_cli_fini(cli, args);
    free(args);
    return st;
}

/* Flags that stand in the place of a command. */
static const char *command_word(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ? "help" : word;
}

static dh_status print_version(dh_ctx *ctx)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "dhelix %s\n", dh_version());
    return dh_cli_print_str(ctx, &text);
}

static dh_status dispatch(dh_ctx *ctx, dh_cli *cli, int argc, char **argv)
{
    if (argc < 2) return dh_cli_misuse(ctx, cli, "a command is missing; dhelix --help lists them");
    if (strcmp(argv[1], "--version") == 0) return print_version(ctx);
    DH_TRY(dh_command_find(ctx, cli, command_word(argv[1]), &cli->command));
    return run_command(ctx, cli, argc - 2, argv + 2);
}

static int exit_code(const dh_cli *cli, dh_status st)
{
    if (st == DH_OK) return EXIT_SUCCESS;
    if (cli->usage) return EXIT_USAGE;
    return st == DH_EINTERRUPTED ? DH_CLI_INTERRUPTED : EXIT_FAILURE;
}

/* Descriptors 0 to 2 that were closed (`2>&-`) would be given to the first files that are opened,
 * and messages be written into them. Opened the wrong way round they fail as closed ones do. */
static bool occupy_standard_streams(void)
{
    static const int wrong_way[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < (int)DH_COUNTOF(wrong_way); fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", wrong_way[fd]) != fd) return false;
    return true;
}

/* Devices that not every build has. */
static void add_devices(void)
{
#ifdef DH_HAVE_CUDA
    DH_CHECK(dh_device_add(&dh_device_cuda), "there are too many devices");
#endif
}

int main(int argc, char **argv)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cli cli = {.log_level = -1};
    if (!occupy_standard_streams()) return EXIT_FAILURE; /* and nowhere to say why */
    dh_cli_name_cut_files();
    dh_json_watch_memory();
    add_devices();
    dh_status st = dispatch(&ctx, &cli, argc, argv);
    const dh_status ended = dh_cli_end_output(&ctx);
    if (st == DH_OK) st = ended;
    if (st != DH_OK) fprintf(stderr, "dhelix: error: %s\n", ctx.message);
    return exit_code(&cli, st);
}
