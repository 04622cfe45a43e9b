/* dhelix completion: scripts by which bash and zsh complete its command lines.
 *
 * The scripts are made when the program is built, from the tables of commands, options, settings and
 * names. They start nothing when they are used. */
#include <string.h>

#include "cli/cli.h"
#include "config/settings.h"

/* ---- words: each writes names with a blank behind each ------------------------------------- */

static void word(dh_str *out, const char *name)
{
    dh_str_printf(out, "%s ", name);
}

static void command_words(dh_str *out)
{
    size_t n;
    const dh_command *const *commands = dh_commands(&n);
    for (size_t i = 0; i < n; i++) word(out, commands[i]->name);
}

static void topic_words(dh_str *out)
{
    command_words(out);
    word(out, "job");
    dh_cli_list_words("settings", out);
}

static void list_words(dh_str *out)
{
    dh_cli_list_words(NULL, out);
}

static void shell_words(dh_str *out)
{
    dh_str_printf(out, "bash zsh ");
}

/* Options, arguments of commands, and settings whose values are names. */
typedef struct names_of {
    const char *of;
    const char *list; /* of `dhelix list`; NULL: by `words` */
    void (*words)(dh_str *out);
    bool files; /* or files */
} names_of;

static const names_of by_option[] = {
    {.of = "cluster", .list = "clusters"},      {.of = "like", .list = "clusters"},
    {.of = "strategies", .list = "strategies"}, {.of = "schedules", .list = "schedules"},
    {.of = "policy", .list = "policies"},       {.of = NULL}};
static const names_of by_command[] = {{.of = "help", .words = topic_words},
                                      {.of = "list", .words = list_words},
                                      {.of = "validate", .list = "tables"},
                                      {.of = "completion", .words = shell_words},
                                      {.of = "simulate", .list = "jobs", .files = true},
                                      {.of = "plan", .list = "jobs", .files = true},
                                      {.of = "check", .list = "jobs", .files = true},
                                      {.of = "tune", .list = "jobs", .files = true},
                                      {.of = NULL}};
static const names_of by_setting[] = {{.of = "strategy", .list = "strategies"},
                                      {.of = "parallel.schedule", .list = "schedules"},
                                      {.of = "overlap.policy", .list = "policies"},
                                      {.of = "model", .list = "models"},
                                      {.of = NULL}};

static void words_of(const names_of *names, dh_str *out)
{
    if (names->words)
        names->words(out);
    else
        dh_cli_list_words(names->list, out);
}

static const names_of *find_names(const names_of *table, const char *of)
{
    for (; table->of; table++)
        if (strcmp(table->of, of) == 0) return table;
    return NULL;
}

/* False where files, or any text, may stand. */
static bool find_words(const names_of *table, const char *of, dh_str *out)
{
    const names_of *names = find_names(table, of);
    if (names) words_of(names, out);
    return names != NULL;
}

static bool option_words(const dh_cli_option *o, dh_str *out)
{
    for (size_t i = 0; o->kind == DH_CLI_ENUM && o->names[i]; i++) word(out, o->names[i]);
    return o->kind == DH_CLI_ENUM || find_words(by_option, o->name, out);
}

static bool value_words(const dh_setting *s, dh_str *out)
{
    if (s->type == DH_SET_BOOL) dh_str_printf(out, "true false ");
    for (size_t i = 0; dh_setting_has_names(s) && s->names[i]; i++) word(out, s->names[i]);
    return s->type == DH_SET_BOOL || dh_setting_has_names(s) || find_words(by_setting, s->key, out);
}

/* Settings of which the values are known: a branch of a shell's `case` each. */
static void print_values(const char *before, const char *behind, dh_str *out)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    for (size_t i = 0; i < n; i++) {
        dh_str values = DH_STR_INIT;
        if (value_words(&settings[i], &values) && values.text)
            dh_str_printf(out, "        %s) %s%s%s ;;\n", settings[i].key, before, values.text,
                          behind);
        out->failed |= values.failed;
        dh_str_fini(&values);
    }
}

/* ---- bash --------------------------------------------------------------------------------- */

static void bash_options(const dh_command *c, dh_str *out)
{
    const dh_cli_option *o;
    dh_str_printf(out, "        %s) words='", c->name);
    for (size_t i = 0; (o = dh_cli_option_at(c, i)) != NULL; i++)
        dh_str_printf(out, "--%s ", o->name);
    dh_str_printf(out, "' ;;\n");
}

static void bash_option_values(const dh_command *c, dh_str *out)
{
    const dh_cli_option *o;
    for (size_t i = 0; (o = dh_cli_option_at(c, i)) != NULL; i++) {
        dh_str values = DH_STR_INIT;
        if (option_words(o, &values) && values.text)
            dh_str_printf(out, "        %s:--%s) words='%s' ;;\n", c->name, o->name, values.text);
        out->failed |= values.failed;
        dh_str_fini(&values);
    }
}

/* "=" is a word of its own for bash, so `--set a=b` is four words. */
static void print_bash(dh_str *out)
{
    size_t n;
    const dh_command *const *commands = dh_commands(&n);
    dh_str_printf(out, "# Completes dhelix in bash; `dhelix completion bash` printed it.\n"
                       "_dhelix()\n{\n"
                       "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                       "    local command=${COMP_WORDS[1]} words= files=\n"
                       "    if [ \"$cur\" = = ]; then cur=; prev='='; fi\n"
                       "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words='");
    command_words(out);
    dh_str_printf(
        out, "--help --version'\n"
             "    elif [ \"$prev\" = = ]; then\n"
             "        local key=${COMP_WORDS[COMP_CWORD-2]}\n"
             "        [ \"${COMP_WORDS[COMP_CWORD]}\" != = ] || key=${COMP_WORDS[COMP_CWORD-1]}\n"
             "        case $key in\n");
    print_values("words='", "'", out);
    dh_str_printf(out, "        esac\n"
                       "    elif [ \"$prev\" = --set ]; then\n"
                       "        compopt -o nospace\n        words='");
    size_t n_settings;
    const dh_setting *settings = dh_settings(&n_settings);
    for (size_t i = 0; i < n_settings; i++) dh_str_printf(out, "%s= ", settings[i].key);
    dh_str_printf(out,
                  "'\n    elif [ \"${cur#-}\" != \"$cur\" ]; then\n        case $command in\n");
    for (size_t i = 0; i < n; i++) bash_options(commands[i], out);
    dh_str_printf(out, "        esac\n    else\n        case $command:$prev in\n");
    for (size_t i = 0; i < n; i++) bash_option_values(commands[i], out);
    for (const names_of *t = by_command; t->of; t++) {
        dh_str_printf(out, "        %s:*) words='", t->of);
        words_of(t, out);
        dh_str_printf(out, t->files ? "' files=yes ;;\n" : "' ;;\n");
    }
    dh_str_printf(out, "        esac\n    fi\n"
                       "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                       "    [ -z \"$files\" ] || COMPREPLY+=($(compgen -f -- \"$cur\"))\n}\n"
                       "complete -o default -F _dhelix dhelix\n");
}

/* ---- zsh ---------------------------------------------------------------------------------- */

/* Inside '...[...]': quotes, brackets and colons mean something to the shell. */
static void zsh_text(const char *text, dh_str *out)
{
    for (; *text; text++) {
        if (*text == '\'')
            dh_str_printf(out, "'\\''");
        else
            dh_str_printf(out, strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
    }
}

static void zsh_option(const dh_cli_option *o, dh_str *out)
{
    dh_str values = DH_STR_INIT;
    dh_str_printf(out, " \\\n            '%s--%s%s[", o->kind == DH_CLI_LIST ? "*" : "", o->name,
                  o->kind == DH_CLI_FLAG ? "" : "=");
    zsh_text(o->doc, out);
    dh_str_printf(out, "]");
    if (strcmp(o->name, "set") == 0)
        dh_str_printf(out, ":setting:_dhelix_settings");
    else if (option_words(o, &values) && values.text)
        dh_str_printf(out, ":value:(%s)", values.text);
    else if (o->kind != DH_CLI_FLAG)
        dh_str_printf(out, ":value:_files");
    dh_str_printf(out, "'");
    out->failed |= values.failed;
    dh_str_fini(&values);
}

static void zsh_command(const dh_command *c, dh_str *out)
{
    const dh_cli_option *o;
    const names_of *names = find_names(by_command, c->name);
    dh_str words = DH_STR_INIT;
    dh_str_printf(out, "    %s)\n        _arguments", c->name);
    for (size_t i = 0; (o = dh_cli_option_at(c, i)) != NULL; i++) zsh_option(o, out);
    if (names) words_of(names, &words);
    if (names && names->files)
        dh_str_printf(out, " \\\n            '*:job:_dhelix_%s' ;;\n", names->list);
    else if (words.text)
        dh_str_printf(out, " \\\n            '*:name:(%s)' ;;\n", words.text);
    else
        dh_str_printf(out, " \\\n            '*:file:_files' ;;\n");
    out->failed |= words.failed;
    dh_str_fini(&words);
}

static void print_zsh(dh_str *out)
{
    size_t n;
    const dh_command *const *commands = dh_commands(&n);
    dh_str_printf(out, "#compdef dhelix\n"
                       "# Completes dhelix in zsh; `dhelix completion zsh` printed it.\n"
                       "_dhelix_settings()\n{\n"
                       "    local -a keys values\n    keys=(");
    dh_cli_list_words("settings", out);
    dh_str_printf(out, ")\n"
                       "    if compset -P '*='; then\n"
                       "        case ${IPREFIX%%=} in\n");
    print_values("values=(", ")", out);
    dh_str_printf(out, "        esac\n        compadd -a values\n"
                       "    else\n        compadd -S = -a keys\n    fi\n}\n\n"
                       "_dhelix_jobs()\n{\n    _alternative 'jobs:job:(");
    dh_cli_list_words("jobs", out);
    dh_str_printf(out, ")' 'files:file:_files'\n}\n\n"
                       "_dhelix()\n{\n    local -a commands\n    commands=(\n");
    for (size_t i = 0; i < n; i++) {
        dh_str_printf(out, "        '%s:", commands[i]->name);
        zsh_text(commands[i]->doc, out);
        dh_str_printf(out, "'\n");
    }
    dh_str_printf(out, "    )\n"
                       "    if (( CURRENT == 2 )); then\n"
                       "        _describe command commands\n        return\n    fi\n"
                       "    shift words\n    (( CURRENT-- ))\n    case $words[1] in\n");
    for (size_t i = 0; i < n; i++) zsh_command(commands[i], out);
    dh_str_printf(out, "    esac\n}\n_dhelix \"$@\"\n");
}

/* ---- the command ---------------------------------------------------------------------------- */

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    (void)args;
    const char *shell = cli->args.at[0];
    dh_str out = DH_STR_INIT;
    if (strcmp(shell, "bash") == 0)
        print_bash(&out);
    else if (strcmp(shell, "zsh") == 0)
        print_zsh(&out);
    else
        return dh_cli_misuse(ctx, cli, "no completion for \"%s\": bash or zsh", shell);
    return dh_cli_print_str(ctx, &out);
}

const dh_command dh_command_completion = {
    .name = "completion",
    .doc = "print a script by which bash or zsh completes dhelix's command lines",
    .usage = "bash|zsh",
    .notes =
        "Installed with the program. By hand: `dhelix completion bash > "
        "~/.local/share/bash-completion/completions/dhelix`, or `dhelix completion zsh > _dhelix`\n"
        "in a folder of $fpath.\n",
    .text_only = true,
    .min_args = 1,
    .max_args = 1,
    .run = run};
