/* Lists of passes as text: "split(parts=2), ring-gemm(both)".
 *
 * An argument is name=value, or a value alone for the parameter in its place; a flag is switched on
 * by its name alone. An omitted argument has its default, and is not printed. With "auto" costs
 * choose, where a parameter has choices. */
#include "graph/pass.h"

#include <stdlib.h>
#include <string.h>

typedef struct span {
    const char *at;
    size_t n;
} span;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

static span trimmed(const char *begin, const char *end)
{
    while (begin < end && is_blank(*begin)) begin++;
    while (begin < end && is_blank(end[-1])) end--;
    return (span){begin, (size_t)(end - begin)};
}

static bool is_word(span s, const char *word)
{
    return strlen(word) == s.n && memcmp(word, s.at, s.n) == 0;
}

/* The text before the next comma outside brackets; *at moves after it, to NULL at the end. */
static span next_part(const char **at, const char *end)
{
    const char *begin = *at, *p = begin;
    for (int depth = 0; p < end && (depth > 0 || *p != ','); p++)
        depth += (*p == '(') - (*p == ')');
    *at = p < end ? p + 1 : NULL;
    return trimmed(begin, p);
}

/* ---- arguments ----------------------------------------------------------------------------- */

static size_t n_params(const dh_pass *pass)
{
    size_t n = 0;
    while (n < DH_MAX_PASS_PARAMS && pass->params[n].name) n++;
    return n;
}

void dh_pass_param_describe(const dh_pass_param *p, dh_str *out)
{
    if (p->kind == DH_PASS_INT)
        dh_str_printf(out, "%s%lld to %lld", p->choices ? "auto, " : "", (long long)p->min,
                      (long long)p->max);
    else if (p->kind == DH_PASS_FLAG)
        dh_str_printf(out, "true, false");
    for (size_t i = 0; p->kind == DH_PASS_WORD && p->words[i]; i++)
        dh_str_printf(out, "%s%s", i ? ", " : "", p->words[i]);
}

static dh_status bad_value(dh_ctx *ctx, const dh_pass *pass, const dh_pass_param *p, span value)
{
    dh_str valid = DH_STR_INIT;
    dh_pass_param_describe(p, &valid);
    dh_fail(ctx, DH_EINVAL, "pass %s: %s is \"%.*s\"; it can be %s", pass->name, p->name,
            (int)DH_MIN(value.n, (size_t)80), value.at, valid.text ? valid.text : "");
    dh_str_fini(&valid);
    return DH_EINVAL;
}

static bool parse_int(span s, int64_t *value)
{
    char text[24], *end;
    if (s.n == 0 || s.n >= sizeof text) return false;
    memcpy(text, s.at, s.n);
    text[s.n] = '\0';
    *value = strtoll(text, &end, 10);
    return *end == '\0';
}

static bool parse_value(const dh_pass_param *p, span s, int64_t *value)
{
    if (p->choices && is_word(s, "auto")) {
        *value = 0;
        return true;
    }
    if (p->kind == DH_PASS_INT) return parse_int(s, value) && *value >= p->min && *value <= p->max;
    if (p->kind == DH_PASS_FLAG) {
        *value = is_word(s, "true");
        return *value || is_word(s, "false");
    }
    for (*value = 0; p->words[*value]; ++*value)
        if (is_word(s, p->words[*value])) return true;
    return false;
}

static dh_status no_param(dh_ctx *ctx, const dh_pass *pass, span name)
{
    dh_str valid = DH_STR_INIT;
    for (size_t k = 0; k < n_params(pass); k++)
        dh_str_printf(&valid, "%s%s", k ? ", " : "", pass->params[k].name);
    dh_fail(ctx, DH_EINVAL, "pass %s: there is no parameter for \"%.*s\"; it has %s", pass->name,
            (int)DH_MIN(name.n, (size_t)80), name.at, valid.text ? valid.text : "none");
    dh_str_fini(&valid);
    return DH_EINVAL;
}

/* Argument number `place`. */
static dh_status parse_arg(dh_ctx *ctx, dh_pass_use *use, size_t place, span arg)
{
    const dh_pass *pass = use->pass;
    const char *equals = memchr(arg.at, '=', arg.n);
    const span name = equals ? trimmed(arg.at, equals) : arg;
    const span value = equals ? trimmed(equals + 1, arg.at + arg.n) : arg;
    size_t k = 0;
    while (k < n_params(pass) && !is_word(name, pass->params[k].name)) k++;
    const bool named = k < n_params(pass);
    if (named && !equals && pass->params[k].kind == DH_PASS_FLAG) {
        use->args[k] = 1;
        return DH_OK;
    }
    if (equals ? !named : place >= n_params(pass)) return no_param(ctx, pass, name);
    if (!equals) k = place;
    if (parse_value(&pass->params[k], value, &use->args[k])) return DH_OK;
    return bad_value(ctx, pass, &pass->params[k], value);
}

static dh_status parse_use(dh_ctx *ctx, span text, dh_pass_use *use)
{
    char name[80];
    const char *open = memchr(text.at, '(', text.n), *end = text.at + text.n;
    const span head = trimmed(text.at, open ? open : end);
    if (open && end[-1] != ')')
        return dh_fail(ctx, DH_EINVAL, "pass \"%.*s\": a bracket is not closed at its end",
                       (int)DH_MIN(text.n, (size_t)80), text.at);
    const size_t n = DH_MIN(head.n, sizeof name - 1);
    memcpy(name, head.at, n);
    name[n] = '\0';
    *use = (dh_pass_use){.pass = NULL};
    DH_TRY(dh_pass_find(ctx, name, &use->pass));
    for (size_t k = 0; k < n_params(use->pass); k++) use->args[k] = use->pass->params[k].fallback;
    if (!open) return DH_OK;
    const char *at = open + 1;
    if (trimmed(at, end - 1).n == 0) return DH_OK;
    for (size_t place = 0; at; place++) DH_TRY(parse_arg(ctx, use, place, next_part(&at, end - 1)));
    return DH_OK;
}

/* ---- entry --------------------------------------------------------------------------------- */

static dh_status append(dh_ctx *ctx, const dh_pass_use *use, dh_pass_list *list)
{
    if (list->n == DH_MAX_PASSES)
        return dh_fail(ctx, DH_EINVAL, "pass %s: a strategy has no more than %d passes",
                       use->pass->name, DH_MAX_PASSES);
    list->at[list->n++] = *use;
    return DH_OK;
}

dh_status dh_pass_list_append(dh_ctx *ctx, const dh_pass_list *more, dh_pass_list *list)
{
    for (int64_t i = 0; i < more->n; i++) DH_TRY(append(ctx, &more->at[i], list));
    return DH_OK;
}

dh_status dh_pass_list_read(dh_ctx *ctx, const char *text, size_t n, dh_pass_list *list)
{
    const char *at = text, *end = text + n;
    if (trimmed(at, end).n == 0) return DH_OK;
    while (at) {
        dh_pass_use use;
        DH_TRY(parse_use(ctx, next_part(&at, end), &use));
        DH_TRY(append(ctx, &use, list));
    }
    return DH_OK;
}

dh_status dh_pass_list_parse(dh_ctx *ctx, const char *text, dh_pass_list *list)
{
    *list = (dh_pass_list){.n = 0};
    DH_TRY(dh_pass_list_read(ctx, text, strlen(text), list));
    return dh_pass_list_check(ctx, list);
}

void dh_pass_param_put(const dh_pass_param *p, int64_t value, dh_str *out)
{
    if (p->choices && value == 0)
        dh_str_printf(out, "auto");
    else if (p->kind == DH_PASS_INT)
        dh_str_printf(out, "%lld", (long long)value);
    else
        dh_str_printf(out, "%s",
                      p->kind == DH_PASS_WORD ? p->words[value]
                      : value                 ? "true"
                                              : "false");
}

static void print_arg(const dh_pass_param *p, int64_t value, dh_str *out)
{
    dh_str_printf(out, "%s", p->name);
    if (p->kind == DH_PASS_FLAG && value) return;
    dh_str_printf(out, "=");
    dh_pass_param_put(p, value, out);
}

void dh_pass_use_print(const dh_pass_use *use, dh_str *out)
{
    const char *before = "(";
    dh_str_printf(out, "%s", use->pass->name);
    for (size_t k = 0; k < n_params(use->pass); k++) {
        if (use->args[k] == use->pass->params[k].fallback) continue;
        dh_str_printf(out, "%s", before);
        print_arg(&use->pass->params[k], use->args[k], out);
        before = ", ";
    }
    if (*before == ',') dh_str_printf(out, ")");
}

void dh_pass_list_print(const dh_pass_list *list, dh_str *out)
{
    for (int64_t i = 0; i < list->n; i++) {
        if (i) dh_str_printf(out, ", ");
        dh_pass_use_print(&list->at[i], out);
    }
}
