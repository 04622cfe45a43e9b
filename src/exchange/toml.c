/* TOML, as configuration files of trainers have it: tables, dotted keys and inline tables; strings,
 * numbers, booleans and arrays. Dates and arrays of tables are refused. Values become texts: of an
 * array its elements with a blank between. */
#include <string.h>

#include "exchange/source.h"

typedef struct toml {
    dh_ctx *ctx;
    const char *origin;
    dh_source *source;
    const char *text;
    const char *at;
    dh_str table; /* "model", or "quantize.linear" */
    int depth;
} toml;

static int line_of(const toml *t)
{
    int line = 1;
    for (const char *p = t->text; p < t->at; p++) line += *p == '\n';
    return line;
}

static dh_status refuse(toml *t, const char *what)
{
    return dh_fail(t->ctx, DH_EFORMAT, "%s:%d: %s", t->origin, line_of(t), what);
}

static dh_status no_memory(toml *t)
{
    return dh_no_memory_while(t->ctx, "reading %s", t->origin);
}

static void blanks(toml *t, bool lines)
{
    for (;; t->at++) {
        if (*t->at == '#') t->at += strcspn(t->at, "\n");
        if (*t->at != ' ' && *t->at != '\t' && *t->at != '\r' && !(lines && *t->at == '\n')) return;
    }
}

static bool is_bare(char c)
{
    return (dh_is_letter(c) || dh_is_digit(c)) || c == '_' || c == '-';
}

/* \n, \", \\ and others; \u stays as it is written. */
static dh_status escape(toml *t, dh_str *out)
{
    static const char from[] = "btnfr\"\\/", to[] = "\b\t\n\f\r\"\\/";
    const char *found = t->at[1] ? strchr(from, t->at[1]) : NULL;
    if (!found && t->at[1] != 'u' && t->at[1] != 'U') return refuse(t, "an escape that TOML lacks");
    dh_str_append(out, found ? &to[found - from] : t->at, found ? 1 : 2);
    t->at += 2;
    return DH_OK;
}

static dh_status string(toml *t, dh_str *out)
{
    const char quote = *t->at, triple[4] = {quote, quote, quote, 0};
    const bool is_long = strncmp(t->at, triple, 3) == 0;
    t->at += is_long ? 3 : 1;
    if (is_long && *t->at == '\n') t->at++;
    while (is_long ? strncmp(t->at, triple, 3) != 0 : *t->at != quote) {
        if (!*t->at || (!is_long && *t->at == '\n')) return refuse(t, "a string that does not end");
        if (*t->at == '\\' && quote == '"') {
            DH_TRY(escape(t, out));
        } else {
            dh_str_append(out, t->at, 1);
            t->at++;
        }
    }
    t->at += is_long ? 3 : 1;
    return DH_OK;
}

/* a.b."c d" behind what the text has, with a dot between. */
static dh_status key(toml *t, dh_str *out)
{
    for (;;) {
        blanks(t, false);
        if (out->len) dh_str_append(out, ".", 1);
        if (*t->at == '"' || *t->at == '\'') {
            DH_TRY(string(t, out));
        } else {
            const char *start = t->at;
            while (is_bare(*t->at)) t->at++;
            if (t->at == start) return refuse(t, "a key is missing");
            dh_str_append(out, start, (size_t)(t->at - start));
        }
        blanks(t, false);
        if (*t->at != '.') return DH_OK;
        t->at++;
    }
}

static dh_status say(toml *t, const dh_str *name, const dh_str *value)
{
    dh_source *s = t->source;
    const dh_said said = {.name = dh_arena_strdup(s->arena, name->text ? name->text : ""),
                          .value = dh_arena_strdup(s->arena, value->text ? value->text : ""),
                          .place = dh_arena_printf(s->arena, "%s:%d", t->origin, line_of(t))};
    if (name->failed || value->failed || !said.name || !said.value || !said.place)
        return no_memory(t);
    for (size_t i = 0; i < s->said.n; i++)
        if (strcmp(s->said.at[i].name, said.name) == 0)
            return refuse(t, "a key that is there already");
    return dh_vec_push(&s->said, said) ? DH_OK : no_memory(t);
}

static dh_status value(toml *t, const dh_str *name, dh_str *out);

static dh_status array(toml *t, const dh_str *name, dh_str *out)
{
    t->at++;
    for (bool first = true;; first = false) {
        blanks(t, true);
        if (*t->at == ']') break;
        if (!first && *t->at != ',') return refuse(t, "a comma is missing in an array");
        if (!first) t->at++;
        blanks(t, true);
        if (*t->at == ']') break;
        if (!first) dh_str_append(out, " ", 1);
        DH_TRY(value(t, name, out));
    }
    t->at++;
    return DH_OK;
}

static dh_status pair(toml *t, const dh_str *table);

static dh_status inline_table(toml *t, const dh_str *name)
{
    t->at++;
    for (bool first = true;; first = false) {
        blanks(t, false);
        if (*t->at == '}') break;
        if (!first && *t->at != ',') return refuse(t, "a comma is missing between keys");
        if (!first) t->at++;
        DH_TRY(pair(t, name));
    }
    t->at++;
    return DH_OK;
}

/* A number, without "_", or true or false. */
static dh_status plain(toml *t, dh_str *out)
{
    const char *start = t->at;
    for (; is_bare(*t->at) || *t->at == '+' || *t->at == '.' || *t->at == ':'; t->at++) {
        if (*t->at == ':') return refuse(t, "dates and times are not read");
        if (*t->at != '_') dh_str_append(out, t->at, 1);
    }
    return t->at > start ? DH_OK : refuse(t, "a value is missing");
}

static dh_status value(toml *t, const dh_str *name, dh_str *out)
{
    if (++t->depth > 32) return refuse(t, "values inside each other");
    dh_status st;
    if (*t->at == '"' || *t->at == '\'')
        st = string(t, out);
    else if (*t->at == '[')
        st = array(t, name, out);
    else if (*t->at == '{')
        st = inline_table(t, name);
    else
        st = plain(t, out);
    t->depth--;
    return st;
}

static dh_status pair(toml *t, const dh_str *table)
{
    dh_str name = DH_STR_INIT, text = DH_STR_INIT;
    if (table->len) dh_str_append(&name, table->text, table->len);
    dh_status st = key(t, &name);
    if (st == DH_OK && *t->at != '=') st = refuse(t, "a key without its =");
    if (st == DH_OK) {
        t->at++;
        blanks(t, false);
        const bool is_table = *t->at == '{';
        st = value(t, &name, &text);
        if (st == DH_OK && !is_table) st = say(t, &name, &text);
    }
    dh_str_fini(&name);
    dh_str_fini(&text);
    return st;
}

static dh_status header(toml *t)
{
    t->at++;
    if (*t->at == '[') return refuse(t, "arrays of tables are not read");
    dh_str_clear(&t->table);
    DH_TRY(key(t, &t->table));
    if (*t->at != ']') return refuse(t, "a table's name without its ]");
    t->at++;
    return DH_OK;
}

dh_status dh_toml_read(dh_ctx *ctx, const char *origin, const char *text, dh_source *source)
{
    toml t = {.ctx = ctx,
              .origin = origin,
              .source = source,
              .text = text,
              .at = text,
              .table = DH_STR_INIT};
    dh_status st = DH_OK;
    for (blanks(&t, true); st == DH_OK && *t.at; blanks(&t, true)) {
        st = *t.at == '[' ? header(&t) : pair(&t, &t.table);
        if (st != DH_OK) break;
        blanks(&t, false);
        if (*t.at && *t.at != '\n') st = refuse(&t, "what follows the value is no comment");
    }
    if (st == DH_OK && t.table.failed) st = no_memory(&t);
    dh_str_fini(&t.table);
    return st;
}
