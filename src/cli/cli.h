/* The command line: a table of subcommands, each with a table of options.
 *
 * A command's options fill a struct of its own (defaults first), which its run
 * function receives. Results go to stdout, everything said about them to stderr. */
#ifndef DH_CLI_H
#define DH_CLI_H

#include <jansson.h>
#include <signal.h>

#include "base/base.h"
#include "config/flags.h"
#include "dhelix/job.h"

/* ---- options ------------------------------------------------------------------------ */

typedef struct dh_cli_list {
    const char **at; /* borrowed from argv */
    size_t n;
} dh_cli_list;

typedef enum dh_cli_kind {
    DH_CLI_FLAG, /* bool */
    DH_CLI_TEXT, /* const char *, NULL when not given */
    DH_CLI_INT,  /* int64_t in [min, max] */
    DH_CLI_REAL, /* double in [min, max] */
    DH_CLI_ENUM, /* int: index into names */
    DH_CLI_LIST, /* dh_cli_list: may be repeated */
    DH_CLI_TAIL, /* dh_cli_list: this word and all that follow up to the next option */
    DH_N_CLI_KIND
} dh_cli_kind;

typedef struct dh_cli_option {
    const char *name; /* without the dashes */
    char letter;      /* short form, 0: none */
    dh_cli_kind kind;
    size_t offset;     /* in the struct it fills */
    const char *value; /* shown by help after the name: "N"; NULL for flags and enums */
    const char *doc;
    double min, max;          /* INT, REAL */
    const char *const *names; /* ENUM: NULL-terminated */
    bool writes;              /* TEXT: the path of what is written */
} dh_cli_option;

#define DH_CLI_ANY 9007199254740992.0 /* 2^53: no bound in practice, exact in a double */

/* ---- commands ----------------------------------------------------------------------- */

typedef struct dh_command dh_command;

/* Options of every command. */
typedef struct dh_cli {
    const dh_command *command;
    dh_cli_list args; /* positionals */
    dh_cli_list set;  /* --set, of commands that take a job */
    bool json, quiet, help;
    int log_level;       /* dh_log_level; -1: not given */
    bool usage;          /* the failure is one of usage: exit code 2 */
    const void *options; /* the struct that they filled */
} dh_cli;

struct dh_command {
    const char *name;
    const char *doc;   /* one line */
    const char *usage; /* positionals, for help and errors: "JOB" */
    const char *notes; /* below the options in help; NULL: none */
    bool job;          /* takes a job file and --set */
    bool set;          /* takes --set, but no job file */
    bool text_only;    /* has no --json */
    size_t min_args, max_args;
    const dh_cli_option *options;
    size_t n_options;
    size_t args_bytes;    /* size of the struct that options fill */
    const void *defaults; /* its initial value; NULL: zeros */
    dh_status (*run)(dh_ctx *ctx, dh_cli *cli, const void *args);
};

extern const dh_command dh_command_train, dh_command_launch, dh_command_check, dh_command_sample,
    dh_command_eval, dh_command_tokenize, dh_command_convert, dh_command_import, dh_command_export,
    dh_command_profile, dh_command_plan, dh_command_simulate, dh_command_tune, dh_command_validate,
    dh_command_calibrate, dh_command_report, dh_command_plot, dh_command_verify,
    dh_command_run_graph, dh_command_list, dh_command_help, dh_command_completion;

/* Names end with NULL; for DH_CLI_ENUM options of compute types. */
extern const char *const dh_cli_dtype_names[];
extern const char *const dh_cli_level_names[]; /* by dh_log_level */

/* main.c: every command, in the order of help. */
const dh_command *const *dh_commands(size_t *n);
/* errors    DH_EMISSING with the nearest name */
dh_status dh_command_find(dh_ctx *ctx, dh_cli *cli, const char *name, const dh_command **command);

/* cmd_list.c: what a list has in its first column, a blank behind each. name: of
 * one that there is; NULL: the lists there are. */
void dh_cli_list_words(const char *name, dh_str *out);
/* Prints what a name of a strategy, schedule, cluster, system, model or policy is and how to set it.
 * Upper and lower case are the same. Returns the number of such names. */
size_t dh_cli_help_named(const char *name, dh_str *out);

/* cmd_import.c: the project that the first argument names.
 * errors    DH_EINVAL; cli->usage is set then */
dh_status dh_cli_project(dh_ctx *ctx, dh_cli *cli, dh_project *project);

/* ---- options.c ------------------------------------------------------------------------ */

/* Read argv (after the command's name) into cli and args (cli->command set).
 * errors    DH_EINVAL, cli->usage set; DH_ENOMEM. Lists are freed by dh_cli_fini. */
dh_status dh_cli_parse(dh_ctx *ctx, dh_cli *cli, int argc, char **argv, void *args);
void dh_cli_fini(dh_cli *cli, void *args);
/* The i-th option of a command, its own before those of all; NULL after the last. */
const dh_cli_option *dh_cli_option_at(const dh_command *command, size_t i);
/* Usage, options and notes of a command. */
void dh_cli_print_help(const dh_command *command, dh_str *out);
/* A failure of usage, found by a command itself. */
dh_status dh_cli_misuse(dh_ctx *ctx, dh_cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- outputs.c ------------------------------------------------------------------------- */

/* Nothing that an option `writes` names is what the command reads: another word of it, or a file of
 * a run folder that is one.
 * errors    DH_EINVAL with both names */
dh_status dh_cli_check_outputs(dh_ctx *ctx, const dh_cli *cli);
/* Nor what its job reads. */
dh_status dh_cli_check_job_files(dh_ctx *ctx, const dh_cli *cli, const dh_job *job);
/* Nor is the job's file written over by the run in its `out`, unless a run was there. The other files
 * that a run reads are looked at where it starts. */
dh_status dh_cli_check_run_folder(dh_ctx *ctx, const dh_cli *cli, const dh_job *job);

/* ---- job.c ----------------------------------------------------------------------------- */

/* The job at path with --set applied, and the number of ranks where it is above 0.
 * Caller frees with dh_job_destroy. */
dh_status dh_cli_load_job(dh_ctx *ctx, const dh_cli *cli, const char *path, int64_t ranks,
                          dh_job **job);
/* Overrides with which the job is loaded. It stays where it is; caller frees with
 * dh_cli_overrides_fini. */
typedef struct dh_cli_overrides {
    const char **at; /* [n]: those of --set, then the number of ranks */
    size_t n;
    char ranks[40];
} dh_cli_overrides;
dh_status dh_cli_overrides_init(dh_ctx *ctx, const dh_cli *cli, int64_t ranks,
                                dh_cli_overrides *overrides);
void dh_cli_overrides_fini(dh_cli_overrides *overrides);

enum { DH_CLI_INTERRUPTED = 130 }; /* exit code */

/* ---- output.c -------------------------------------------------------------------------- */

/* One JSON document on stdout. Takes the reference; NULL counts as out of memory. */
dh_status dh_cli_print_json(dh_ctx *ctx, json_t *document);
/* Bytes as they are: the texts that sample and tokenize give. */
dh_status dh_cli_print(dh_ctx *ctx, const char *text, size_t n_bytes);
/* Flushes printed text.
 * errors    DH_EIO: why it could not be written */
dh_status dh_cli_flush(dh_ctx *ctx);
/* At the end of the program: all of it is. */
dh_status dh_cli_end_output(dh_ctx *ctx);
/* A line about the results, on standard error: "dhelix: ...". */
void dh_cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Text of a dh_str, control characters in it as \uXXXX (which JSON reads); releases it. */
dh_status dh_cli_print_str(dh_ctx *ctx, dh_str *text);
/* Prints the text as a wrapped paragraph, all lines except the first indented; releases it. */
void dh_cli_paragraph(dh_str *out, dh_str *text, int indent);
/* Columns of standard output, within what can be read: help and tables keep to them. */
int dh_cli_columns(void);
/* From now on a file that is cut short while it is mapped ends the process with its name. */
void dh_cli_name_cut_files(void);
/* For commands that have nothing to save. The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 ends the
 * process at once (exit code 130), below the line that progress may have drawn. Call it before
 * the process starts other threads, which then inherit the blocked signals. Returns the flag of
 * dh_cli_catch_signals. */
const volatile sig_atomic_t *dh_cli_end_at_signals(bool quiet);
/* For commands that write files: the first of these signals ends the process as it does without this,
 * but what is half-written is removed. */
void dh_cli_die_at_signals(void);
/* From now on, also after the others, the first of these signals sets the flag that is returned, and
 * the second one ends the process. Any thread. */
const volatile sig_atomic_t *dh_cli_catch_signals(void);
/* Sets that flag, as the first signal does. */
void dh_cli_ask_to_stop(void);
/* In the environment of what dh_cli_end_with_launcher watches: dh_process_print's line. */
#define DH_CLI_LAUNCHER "DHELIX_LAUNCHER"
/* From now on a rank that a launcher has started is asked to stop when `dhelix launch`, or the
 * process that started it, is gone. A rank that cannot stop is ended soon after. */
void dh_cli_end_with_launcher(void);

#endif
