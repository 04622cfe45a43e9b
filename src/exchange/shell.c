/* Shell scripts that start Megatron-LM. The part of the language that such scripts need is carried
 * out without running a program. The result is the flags of their main command. */
#include <string.h>

#include "config/flags.h"
#include "exchange/shell.h"

/* ---- from words to flags ---------------------------------------------------------------------------- */

static bool is_flag(const char *text)
{
    return text[0] == '-' && text[1] == '-' && dh_is_letter(text[2]);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void note_launcher(shell *s, const char *name, const char *value)
{
    const char *text = dh_arena_printf(
        s->arena, "The launcher's %s is \"%s\", not a number: --ranks N or --define gives it.",
        name, value);
    if (!text || !dh_vec_push(&s->source->notes, text)) s->failed = true;
}

/* Of torchrun, torch.distributed.launch and srun. */
static void launcher(shell *s, size_t n)
{
    static const struct {
        const char *name;
        char what; /* ranks of a node, nodes, all ranks */
    } names[] = {{"--nproc_per_node", 'p'}, {"--nproc-per-node", 'p'}, {"--ntasks-per-node", 'p'},
                 {"--gpus-per-node", 'p'},  {"--num_gpus", 'p'},       {"--nnodes", 'n'},
                 {"--nodes", 'n'},          {"--num_nodes", 'n'},      {"-N", 'n'}};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < DH_COUNTOF(names); k++) {
            const char *at = s->best.at[i];
            const size_t length = strlen(names[k].name);
            int64_t value;
            if (strncmp(at, names[k].name, length) != 0 || (at[length] && at[length] != '='))
                continue;
            const char *given = at[length] ? at + length + 1 : i + 1 < n ? s->best.at[i + 1] : "";
            if (dh_parse_i64(given, &value) && value > 0 && value < INT32_MAX)
                *(names[k].what == 'p' ? &s->source->per_node : &s->source->nodes) = value;
            else
                note_launcher(s, names[k].name, given);
        }
}

static dh_status say(shell *s, const char *name, const char *value)
{
    return dh_vec_push(&s->source->said,
                       (dh_said){.name = name, .value = value, .place = s->best_place})
               ? DH_OK
               : sh_no_memory(s);
}

static dh_status join(shell *s, size_t from, size_t to, const char **value)
{
    dh_str text = DH_STR_INIT;
    for (size_t i = from; i < to; i++)
        dh_str_printf(&text, "%s%s", i > from ? " " : "", s->best.at[i]);
    *value = text.failed ? NULL : dh_arena_strdup(s->arena, text.text ? text.text : "");
    dh_str_fini(&text);
    return *value ? DH_OK : sh_no_memory(s);
}

static dh_status say_flag(shell *s, size_t *at)
{
    const char *text = s->best.at[*at], *equals = strchr(text, '='), *value = NULL;
    const size_t n = strcspn(text, "=");
    char *name = DH_NEW_N(s->arena, char, n + 1);
    if (!name) return sh_no_memory(s);
    memcpy(name, text, n);
    const dh_flag *flag = dh_flag_find(DH_PROJECT_MEGATRON, name);
    size_t end = *at + 1;
    if (equals) {
        value = equals + 1;
    } else if (flag && flag->kind == DH_FLAG_VALUE) {
        if (end >= s->best.n || is_flag(s->best.at[end]))
            return dh_fail(s->ctx, DH_EINVAL, "%s: %s has no value", s->best_place, name);
        end++;
    } else if (!flag || flag->kind == DH_FLAG_LIST) {
        while (end < s->best.n && !is_flag(s->best.at[end])) end++;
    }
    if (!value && end > *at + 1) DH_TRY(join(s, *at + 1, end, &value));
    *at = end;
    return say(s, name, value);
}

static dh_status say_all(shell *s)
{
    size_t at = 0;
    for (size_t i = 0; i < s->best.n; i++)
        if (ends_with(s->best.at[i], ".py")) at = i + 1;
    if (at == 0) /* a module, or the arguments alone */
        while (at < s->best.n && !dh_flag_find(DH_PROJECT_MEGATRON, s->best.at[at])) at++;
    launcher(s, at);
    while (at < s->best.n) {
        if (is_flag(s->best.at[at])) {
            DH_TRY(say_flag(s, &at));
            continue;
        }
        if (s->best.at[at][0] != '$')
            return dh_fail(s->ctx, DH_EINVAL, "%s: \"%s\" belongs to no flag", s->best_place,
                           s->best.at[at]);
        const char *text =
            dh_arena_printf(s->arena, "%s has no value in the script", s->best.at[at++]);
        if (!text || !dh_vec_push(&s->source->notes, text)) return sh_no_memory(s);
    }
    return DH_OK;
}

static dh_status define(shell *s, dh_defines defines)
{
    for (size_t i = 0; i < defines.n; i++) {
        const char *text = defines.at[i], *equals = strchr(text, '=');
        if (!equals || equals == text)
            return dh_fail(s->ctx, DH_EINVAL, "\"%s\" is not NAME=VALUE", text);
        sh_variable *v = sh_find_or_add(s, text, (size_t)(equals - text));
        if (!v) return sh_no_memory(s);
        v->values.n = 0;
        DH_TRY(sh_push(s, &v->values, equals + 1, strlen(equals + 1)));
    }
    return DH_OK;
}

dh_status dh_shell_read(dh_ctx *ctx, const char *origin, const char *text, dh_defines defines,
                        dh_source *source)
{
    size_t expanded = 0;
    shell s = {.ctx = ctx,
               .expanded = &expanded,
               .origin = origin,
               .arena = source->arena,
               .source = source,
               .text = text,
               .first_line = 1};
    char stop;
    dh_status st = define(&s, defines);
    if (st == DH_OK) st = sh_run_all(&s, true, "", &stop);
    if (st == DH_OK && s.failed) st = sh_no_memory(&s);
    if (st == DH_OK && s.most == 0)
        st = dh_fail(
            ctx, DH_EFORMAT,
            "%s: no command has a flag of Megatron-LM, such as --num-layers (`dhelix list flags` "
            "has all)",
            origin);
    if (st == DH_OK) st = say_all(&s);
    if (st == DH_OK && s.failed) st = sh_no_memory(&s);
    for (size_t i = 0; i < s.variables.n; i++) dh_vec_fini(&s.variables.at[i].values);
    dh_vec_fini(&s.variables);
    dh_vec_fini(&s.best);
    return st;
}
