/* Options: parsed, documented and freed by their tables. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/json_text.h"
#include "cli/cli.h"

const char *const dh_cli_level_names[] = {"error", "warn", "info", "debug", "trace", NULL};

static const dh_cli_option common_options[] = {
    /* first: a command that has text only is without it */
    {.name = "json",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(dh_cli, json),
     .doc = "results as JSON on standard output"},
    {.name = "quiet",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(dh_cli, quiet),
     .doc = "no progress and no notices"},
    {.name = "log-level",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(dh_cli, log_level),
     .names = dh_cli_level_names,
     .doc = "messages on standard error up to this level (default: info, or DHELIX_LOG)"},
    {.name = "help",
     .letter = 'h',
     .kind = DH_CLI_FLAG,
     .offset = offsetof(dh_cli, help),
     .doc = "show this text"},
};
static const dh_cli_option set_option = {
    .name = "set",
    .kind = DH_CLI_LIST,
    .offset = offsetof(dh_cli, set),
    .value = "KEY=VALUE",
    .doc = "change a setting of the job; may be repeated (`dhelix help job` lists them)"};

const char *const dh_cli_dtype_names[] = {"f32", "bf16", NULL};
_Static_assert(DH_F32 == 0 && DH_BF16 == 1, "dtype options are stored as indices of names");

/* ---- finding ------------------------------------------------------------------------------ */

/* An option of the command, and the struct it fills. */
typedef struct target {
    const dh_cli_option *option;
    void *base;
} target;

/* Every option of the command in turn; false after the last. */
static bool option_at(dh_cli *cli, void *args, size_t i, target *t)
{
    const dh_command *c = cli->command;
    if (i < c->n_options) {
        *t = (target){&c->options[i], args};
        return true;
    }
    i -= c->n_options;
    if ((c->job || c->set) && i-- == 0) {
        *t = (target){&set_option, cli};
        return true;
    }
    if (c->text_only) i++; /* --json is the first of the common ones */
    if (i >= DH_COUNTOF(common_options)) return false;
    *t = (target){&common_options[i], cli};
    return true;
}

/* Is this word the option? *value: what stands behind its "=", else NULL. */
static bool matches(const dh_cli_option *o, const char *word, const char **value)
{
    *value = NULL;
    if (word[1] != '-') return word[1] == o->letter && word[2] == '\0';
    size_t n = strlen(o->name);
    if (strncmp(word + 2, o->name, n) != 0) return false;
    if (word[2 + n] == '=') *value = word + 2 + n + 1;
    return *value || word[2 + n] == '\0';
}

static dh_status unknown_option(dh_ctx *ctx, dh_cli *cli, void *args, const char *word)
{
    enum { MAX = 64 };
    if (word[1] != '-')
        return dh_cli_misuse(ctx, cli, "unknown option %s; dhelix %s --help lists the options",
                             word, cli->command->name);
    word += 2;
    const char *names[MAX];
    size_t n = 0;
    target t;
    for (size_t i = 0; n < MAX && option_at(cli, args, i, &t); i++) names[n++] = t.option->name;
    char bare[64];
    snprintf(bare, sizeof bare, "%.*s", (int)DH_MIN(strcspn(word, "="), sizeof bare - 1), word);
    const char *near = dh_nearest(bare, names, n);
    if (near) return dh_cli_misuse(ctx, cli, "unknown option --%s; did you mean --%s?", bare, near);
    return dh_cli_misuse(ctx, cli, "unknown option --%s; dhelix %s --help lists the options", bare,
                         cli->command->name);
}

/* ---- storing ------------------------------------------------------------------------------- */

static dh_status push(dh_ctx *ctx, dh_cli_list *list, const char *text)
{
    const char **at = realloc(list->at, (list->n + 1) * sizeof *at);
    if (!at) return dh_no_memory(ctx);
    list->at = at;
    list->at[list->n++] = text;
    return DH_OK;
}

static dh_status out_of_range(dh_ctx *ctx, dh_cli *cli, const dh_cli_option *o, const char *text,
                              const char *what)
{
    if (o->max < DH_CLI_ANY)
        return dh_cli_misuse(ctx, cli, "--%s %s: it must be %s from %.10g to %.10g", o->name, text,
                             what, o->min, o->max);
    return dh_cli_misuse(ctx, cli, "--%s %s: it must be %s, %.10g or more", o->name, text, what,
                         o->min);
}

static dh_status store_int(dh_ctx *ctx, dh_cli *cli, const target *t, const char *text)
{
    int64_t value;
    if (!dh_parse_i64(text, &value) || (double)value < t->option->min ||
        (double)value > t->option->max)
        return out_of_range(ctx, cli, t->option, text, "a whole number");
    *(int64_t *)((char *)t->base + t->option->offset) = value;
    return DH_OK;
}

static dh_status store_real(dh_ctx *ctx, dh_cli *cli, const target *t, const char *text)
{
    double value;
    if (!dh_parse_f64(text, &value) || !(value >= t->option->min && value <= t->option->max))
        return out_of_range(ctx, cli, t->option, text, "a number");
    *(double *)((char *)t->base + t->option->offset) = value;
    return DH_OK;
}

static void append_names(dh_str *out, const char *const *names, const char *between)
{
    for (size_t i = 0; names[i]; i++) dh_str_printf(out, "%s%s", i ? between : "", names[i]);
}

static dh_status store_enum(dh_ctx *ctx, dh_cli *cli, const target *t, const char *text)
{
    const char *const *names = t->option->names;
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *(int *)((char *)t->base + t->option->offset) = i;
            return DH_OK;
        }
    dh_str valid = DH_STR_INIT;
    append_names(&valid, names, ", ");
    dh_status st = dh_cli_misuse(ctx, cli, "--%s %s: it must be one of %s", t->option->name, text,
                                 valid.text ? valid.text : "?");
    dh_str_fini(&valid);
    return st;
}

static dh_status store_text(dh_ctx *ctx, dh_cli *cli, const target *t, const char *text)
{
    *(const char **)((char *)t->base + t->option->offset) = text;
    return DH_OK;
}

static dh_status store_list(dh_ctx *ctx, dh_cli *cli, const target *t, const char *text)
{
    return push(ctx, (dh_cli_list *)((char *)t->base + t->option->offset), text);
}

static dh_status (*const stores[])(dh_ctx *, dh_cli *, const target *, const char *) = {
    [DH_CLI_FLAG] = NULL,       [DH_CLI_TEXT] = store_text, [DH_CLI_INT] = store_int,
    [DH_CLI_REAL] = store_real, [DH_CLI_ENUM] = store_enum, [DH_CLI_LIST] = store_list,
    [DH_CLI_TAIL] = store_list};
_Static_assert(DH_COUNTOF(stores) == DH_N_CLI_KIND, "a row per kind");

/* ---- parsing -------------------------------------------------------------------------------- */

/* A word with a blank in its name is an argument: another program's command line, for `import`. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && strcspn(word, " \n") >= strcspn(word, "=");
}

/* The option at argv[*at], with its value; *at is left at the last word used. */
static dh_status parse_option(dh_ctx *ctx, dh_cli *cli, int argc, char **argv, int *at, void *args)
{
    const char *word = argv[*at], *value;
    target t;
    for (size_t i = 0;; i++) {
        if (!option_at(cli, args, i, &t)) return unknown_option(ctx, cli, args, word);
        if (matches(t.option, word, &value)) break;
    }
    if (t.option->kind == DH_CLI_FLAG) {
        if (value) return dh_cli_misuse(ctx, cli, "--%s takes no value", t.option->name);
        *(bool *)((char *)t.base + t.option->offset) = true;
        return DH_OK;
    }
    if (!value) {
        if (*at + 1 >= argc)
            return dh_cli_misuse(ctx, cli, "--%s needs a value: --%s %s", t.option->name,
                                 t.option->name, t.option->value ? t.option->value : "NAME");
        value = argv[++*at];
    }
    DH_TRY(stores[t.option->kind](ctx, cli, &t, value));
    while (t.option->kind == DH_CLI_TAIL && *at + 1 < argc && !is_option(argv[*at + 1]))
        DH_TRY(store_list(ctx, cli, &t, argv[++*at]));
    return DH_OK;
}

static dh_status check_args(dh_ctx *ctx, dh_cli *cli)
{
    const dh_command *c = cli->command;
    if (cli->args.n < c->min_args)
        return dh_cli_misuse(ctx, cli, "%s is missing: dhelix %s %s",
                             c->min_args == 1 ? "an argument" : "arguments: at least one", c->name,
                             c->usage);
    if (cli->args.n > c->max_args)
        return dh_cli_misuse(ctx, cli, "unexpected argument \"%s\": dhelix %s %s",
                             cli->args.at[c->max_args], c->name, c->usage);
    size_t at;
    for (size_t i = 0; cli->json && i < cli->args.n; i++) /* which the result names */
        if (!dh_json_can_hold(cli->args.at[i], &at))
            return dh_cli_misuse(ctx, cli, "argument %zu is not UTF-8 (byte %zu), as JSON is",
                                 i + 1, at + 1);
    return DH_OK;
}

dh_status dh_cli_parse(dh_ctx *ctx, dh_cli *cli, int argc, char **argv, void *args)
{
    bool options_end = false;
    for (int at = 0; at < argc; at++) {
        if (!options_end && strcmp(argv[at], "--") == 0)
            options_end = true;
        else if (!options_end && is_option(argv[at]))
            DH_TRY(parse_option(ctx, cli, argc, argv, &at, args));
        else
            DH_TRY(push(ctx, &cli->args, argv[at]));
        if (cli->help) return DH_OK; /* whatever else is wrong */
    }
    DH_TRY(check_args(ctx, cli));
    cli->options = args;
    return dh_cli_check_outputs(ctx, cli);
}

void dh_cli_fini(dh_cli *cli, void *args)
{
    target t;
    for (size_t i = 0; cli->command && option_at(cli, args, i, &t); i++)
        if (t.option->kind == DH_CLI_LIST || t.option->kind == DH_CLI_TAIL)
            free(((dh_cli_list *)((char *)t.base + t.option->offset))->at);
    free(cli->args.at);
}

dh_status dh_cli_misuse(dh_ctx *ctx, dh_cli *cli, const char *fmt, ...)
{
    char text[1024];
    va_list list;
    va_start(list, fmt);
    dh_vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    cli->usage = true;
    return dh_fail(ctx, DH_EINVAL, "%s", text);
}

/* ---- help ----------------------------------------------------------------------------------- */

static void print_option(const dh_cli_option *o, dh_str *out)
{
    enum { COLUMN = 26 };
    size_t start = out->len;
    if (o->letter)
        dh_str_printf(out, "  -%c, --%s ", o->letter, o->name);
    else
        dh_str_printf(out, "  --%s ", o->name);
    if (o->kind == DH_CLI_ENUM)
        append_names(out, o->names, "|");
    else if (o->value)
        dh_str_printf(out, "%s", o->value);
    int used = (int)(out->len - start);
    if (used + 1 > COLUMN) {
        dh_str_printf(out, "\n");
        used = 0;
    }
    dh_str_printf(out, "%*s", COLUMN - used, "");
    dh_str_wrap(out, o->doc, COLUMN, dh_cli_columns());
}

const dh_cli_option *dh_cli_option_at(const dh_command *command, size_t i)
{
    dh_cli cli = {.command = command};
    target t;
    return option_at(&cli, NULL, i, &t) ? t.option : NULL;
}

/* Paragraphs, between which a line is empty; single ends of lines are where the source has them. */
static void print_notes(const char *notes, dh_str *out)
{
    while (*notes) {
        const char *end = strstr(notes, "\n\n");
        const size_t n = end ? (size_t)(end - notes) : strlen(notes);
        dh_str paragraph = DH_STR_INIT;
        dh_str_append(&paragraph, notes, n);
        for (size_t i = 0; i < paragraph.len; i++)
            if (paragraph.text[i] == '\n') paragraph.text[i] = ' ';
        dh_str_append(out, "\n", 1);
        dh_cli_paragraph(out, &paragraph, 0);
        notes += n + (end ? 2 : 0);
    }
}

void dh_cli_print_help(const dh_command *command, dh_str *out)
{
    const dh_cli_option *option;
    dh_str title = DH_STR_INIT;
    dh_str_printf(&title, "dhelix %s: %s", command->name, command->doc);
    dh_cli_paragraph(out, &title, 4);
    dh_str_printf(out, "\nusage: dhelix %s %s%s[options]\n\n", command->name, command->usage,
                  *command->usage ? " " : "");
    for (size_t i = 0; (option = dh_cli_option_at(command, i)) != NULL; i++)
        print_option(option, out);
    if (command->notes) print_notes(command->notes, out);
    if (command->job)
        print_notes("`dhelix help job` explains every setting of a job file, `dhelix help "
                    "train.steps` one of them, `dhelix help train.` those of a section.",
                    out);
}
