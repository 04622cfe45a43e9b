/* Words of a shell script: quotes, variables, arithmetic, and what they expand to. */
#include <stdio.h>
#include <string.h>

#include "exchange/shell.h"

/* Bytes of expanded words, each with WORD_BYTES for its place: variables may double at every line. */
enum { MOST_EXPANDED = 16 << 20, WORD_BYTES = 16 };

/* ---- places and memory -------------------------------------------------------------------- */

int sh_line_of(const shell *s)
{
    int line = s->first_line;
    for (size_t i = 0; i < s->at && s->text[i]; i++) line += s->text[i] == '\n';
    return line;
}

dh_status sh_refuse(shell *s, const char *what)
{
    return dh_fail(s->ctx, DH_EFORMAT, "%s:%d: %s", s->origin, sh_line_of(s), what);
}

dh_status sh_no_memory(shell *s)
{
    return dh_no_memory_while(s->ctx, "reading %s", s->origin);
}

static dh_status expand(shell *s, size_t n)
{
    if (n > MOST_EXPANDED - *s->expanded)
        return sh_refuse(s, "the expanded words take more than 16 MiB");
    *s->expanded += n;
    return DH_OK;
}

dh_status sh_push(shell *s, sh_words *list, const char *text, size_t n)
{
    DH_TRY(expand(s, n + WORD_BYTES));
    char *copy = DH_NEW_N(s->arena, char, n + 1);
    if (!copy) return sh_no_memory(s);
    if (n) memcpy(copy, text, n);
    return dh_vec_push(list, copy) ? DH_OK : sh_no_memory(s);
}

void sh_note(shell *s, const char *what)
{
    const char *text = dh_arena_printf(s->arena, "line %d: %s", sh_line_of(s), what);
    if (!text || !dh_vec_push(&s->source->notes, text)) s->failed = true;
}

/* ---- variables ------------------------------------------------------------------------------ */

size_t sh_name_length(const char *text)
{
    size_t n = 0;
    if (!dh_is_letter(text[0]) && text[0] != '_') return 0;
    while ((dh_is_letter(text[n]) || dh_is_digit(text[n])) || text[n] == '_') n++;
    return n;
}

static sh_variable *find(shell *s, const char *name, size_t n)
{
    for (size_t i = 0; i < s->variables.n; i++)
        if (strncmp(s->variables.at[i].name, name, n) == 0 && !s->variables.at[i].name[n])
            return &s->variables.at[i];
    return NULL;
}

sh_variable *sh_find_or_add(shell *s, const char *name, size_t n)
{
    sh_variable *v = find(s, name, n);
    if (v || s->variables.n == SH_MOST_VARIABLES) return v;
    char *copy = DH_NEW_N(s->arena, char, n + 1);
    if (!copy) return NULL;
    memcpy(copy, name, n);
    return dh_vec_push(&s->variables, (sh_variable){.name = copy})
               ? &s->variables.at[s->variables.n - 1]
               : NULL;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* Arithmetic expansion: numbers, variables, + - * / % and parentheses. */
typedef struct sum {
    shell *shell;
    const char *at;
    bool known;
    int depth;
} sum;

static int64_t add(sum *m);

static void skip_blanks(sum *m)
{
    while (*m->at && strchr(" \t\r\n", *m->at)) m->at++;
}

static int64_t named(sum *m)
{
    const bool braces = *m->at == '{';
    if (braces) m->at++;
    const size_t n = sh_name_length(m->at);
    const sh_variable *v = n ? find(m->shell, m->at, n) : NULL;
    int64_t value = 0;
    m->at += n;
    if (!n || !v || v->values.n != 1 || !dh_parse_i64(v->values.at[0], &value)) m->known = false;
    if (braces && *m->at++ != '}') m->known = false;
    return value;
}

static int64_t unary(sum *m)
{
    int64_t value = 0;
    skip_blanks(m);
    if (m->depth > 32) m->known = false;
    if (!m->known || !*m->at) return m->known = false, 0;
    if (*m->at == '(') {
        m->at++, m->depth++;
        value = add(m);
        m->depth--;
        if (*m->at != ')') return m->known = false, 0;
        m->at++;
    } else if (*m->at == '-') {
        m->at++, m->depth++;
        value = -unary(m);
        m->depth--;
    } else if (dh_is_digit(*m->at)) {
        for (; dh_is_digit(*m->at); m->at++)
            if (value < INT64_MAX / 10 - 10) value = value * 10 + (*m->at - '0');
    } else {
        if (*m->at == '$') m->at++;
        value = named(m);
    }
    skip_blanks(m);
    return value;
}

static int64_t multiply(sum *m)
{
    int64_t value = unary(m);
    while (m->known && *m->at && strchr("*/%", *m->at)) {
        const char op = *m->at++;
        const int64_t other = unary(m);
        int64_t times = 0;
        if ((op != '*' && other == 0) ||
            (op == '*' && __builtin_mul_overflow(value, other, &times)))
            return m->known = false, 0;
        value = op == '*' ? times : op == '/' ? value / other : value % other;
    }
    return value;
}

static int64_t add(sum *m)
{
    int64_t value = multiply(m);
    while (m->known && (*m->at == '+' || *m->at == '-')) {
        const bool minus = *m->at++ == '-';
        const int64_t other = multiply(m);
        if (minus ? __builtin_sub_overflow(value, other, &value)
                  : __builtin_add_overflow(value, other, &value))
            m->known = false;
    }
    return value;
}

static bool calculate(shell *s, const char *text, int64_t *value)
{
    sum m = {.shell = s, .at = text, .known = true};
    *value = add(&m);
    return m.known && !*m.at;
}

/* ---- expansion -------------------------------------------------------------------------------- */

/* A word as it grows: blanks of what is expanded outside of quotes end a field of it. */
typedef struct word {
    dh_str text;
    bool is_there; /* also when it is empty, as "" is */
    sh_words *fields;
} word;

static dh_status end_field(shell *s, word *w)
{
    if (!w->is_there) return DH_OK;
    const dh_status st = w->text.failed
                             ? sh_no_memory(s)
                             : sh_push(s, w->fields, w->text.text ? w->text.text : "", w->text.len);
    dh_str_clear(&w->text);
    w->is_there = false;
    return st;
}

static dh_status put(shell *s, word *w, const char *text, size_t n, bool quoted)
{
    DH_TRY(expand(s, n));
    if (quoted) {
        dh_str_append(&w->text, text, n);
        w->is_there = true;
        return DH_OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (strchr(" \t\n", text[i])) {
            DH_TRY(end_field(s, w));
            continue;
        }
        dh_str_append(&w->text, &text[i], 1);
        w->is_there = true;
    }
    return DH_OK;
}

static dh_status put_values(shell *s, word *w, const sh_variable *v, bool quoted)
{
    for (size_t i = 0; i < v->values.n; i++) {
        if (i) DH_TRY(end_field(s, w));
        DH_TRY(put(s, w, v->values.at[i], strlen(v->values.at[i]), quoted));
    }
    return DH_OK;
}

/* Index behind the bracket that closes the one before `at`; 0: none. */
static size_t closing(const char *text, size_t at, char open, char close)
{
    int depth = 1;
    for (; text[at]; at++) {
        if (text[at] == '\\' && text[at + 1]) {
            at++;
            continue;
        }
        depth += (text[at] == open) - (text[at] == close);
        if (depth == 0) return at + 1;
    }
    return 0;
}

/* The text between two places as words of its own, joined by blanks. */
static dh_status expand_part(shell *s, size_t from, size_t to, word *w, bool quoted)
{
    DH_TRY(expand(s, to - from));
    char *part = DH_NEW_N(s->arena, char, to - from + 1);
    sh_words fields = {0};
    if (!part) return sh_no_memory(s);
    memcpy(part, s->text + from, to - from);
    shell inner = *s;
    inner.text = part;
    inner.at = 0;
    inner.depth++;
    dh_status st = s->depth > 16 ? sh_refuse(s, "expansions inside each other") : DH_OK;
    for (size_t i = 0; st == DH_OK && part[inner.at]; i++) {
        const size_t before = inner.at;
        while (part[inner.at] && strchr(" \t\n", part[inner.at])) inner.at++;
        if (inner.at > before && i) st = put(s, w, " ", 1, quoted);
        fields.n = 0;
        if (st == DH_OK && part[inner.at]) st = sh_read_word(&inner, &fields);
        if (st == DH_OK && inner.at == before) inner.at++; /* a mark of the shell's */
        for (size_t k = 0; st == DH_OK && k < fields.n; k++) {
            if (k) st = put(s, w, " ", 1, quoted);
            if (st == DH_OK) st = put(s, w, fields.at[k], strlen(fields.at[k]), quoted);
        }
    }
    dh_vec_fini(&fields);
    return st;
}

static dh_status put_unknown(shell *s, word *w, size_t from, size_t to)
{
    if (s->in_test) {
        w->is_there = true;
        return DH_OK;
    }
    dh_str_append(&w->text, s->text + from, to - from);
    w->is_there = true;
    return DH_OK;
}

/* ${NAME}, ${NAME[@]}, ${NAME:-word}, ${NAME:=word}, ${#NAME[@]} and others, which stay as they are. */
static dh_status braces(shell *s, word *w, bool quoted)
{
    const size_t from = s->at, end = closing(s->text, from + 2, '{', '}');
    if (!end) return sh_refuse(s, "a ${ without its }");
    const char *name = s->text + from + 2;
    size_t n = sh_name_length(name);
    if (!n) n = strspn(name, "0123456789");
    const sh_variable *v = find(s, name, n);
    size_t rest = from + 2 + n;
    s->at = end;
    if (strncmp(s->text + rest, "[@]", 3) == 0 || strncmp(s->text + rest, "[*]", 3) == 0) rest += 3;
    if (n && rest == end - 1) {
        if (v) return put_values(s, w, v, quoted);
        return s->text[rest - 1] == ']' ? DH_OK : put_unknown(s, w, from, end);
    }
    const bool colon = s->text[rest] == ':';
    if (colon) rest++;
    if (n && (s->text[rest] == '-' || s->text[rest] == '=')) {
        if (v && !(colon && v->values.n == 1 && !v->values.at[0][0]))
            return put_values(s, w, v, quoted);
        return expand_part(s, rest + 1, end - 1, w, quoted);
    }
    return put_unknown(s, w, from, end);
}

static dh_status dollar(shell *s, word *w, bool quoted)
{
    const char *t = s->text + s->at;
    const size_t from = s->at;
    char number[32];
    if (strncmp(t, "$((", 3) == 0) {
        const size_t end = closing(s->text, from + 3, '(', ')');
        int64_t value;
        if (!end || s->text[end] != ')') return sh_refuse(s, "a $(( without its ))");
        char *inside = DH_NEW_N(s->arena, char, end - 1 - (from + 3) + 1);
        if (!inside) return sh_no_memory(s);
        memcpy(inside, t + 3, end - 1 - (from + 3));
        s->at = end + 1;
        if (!calculate(s, inside, &value)) return put_unknown(s, w, from, s->at);
        snprintf(number, sizeof number, "%lld", (long long)value);
        return put(s, w, number, strlen(number), quoted);
    }
    if (t[1] == '(') {
        const size_t end = closing(s->text, from + 2, '(', ')');
        if (!end) return sh_refuse(s, "a $( without its )");
        s->at = end;
        return put_unknown(s, w, from, end);
    }
    if (t[1] == '{') return braces(s, w, quoted);
    size_t n = sh_name_length(t + 1);
    if (!n && t[1] && (dh_is_digit(t[1]) || strchr("@*#?$!-", t[1]))) n = 1;
    s->at += 1 + n;
    if (!n) return put(s, w, "$", 1, true);
    const sh_variable *v = find(s, t + 1, n);
    if (v) return v->values.n ? put(s, w, v->values.at[0], strlen(v->values.at[0]), quoted) : DH_OK;
    return put_unknown(s, w, from, s->at);
}

static dh_status double_quotes(shell *s, word *w)
{
    w->is_there = true;
    for (s->at++; s->text[s->at] != '"';) {
        const char *t = s->text + s->at;
        if (!*t) return sh_refuse(s, "a quote that does not end");
        if (*t == '$') {
            DH_TRY(dollar(s, w, true));
        } else if (*t == '\\' && t[1] && strchr("$`\"\\\n", t[1])) {
            if (t[1] != '\n') dh_str_append(&w->text, t + 1, 1);
            s->at += 2;
        } else {
            dh_str_append(&w->text, t, 1);
            s->at++;
        }
    }
    s->at++;
    return DH_OK;
}

bool sh_ends_word(char c)
{
    return !c || strchr(" \t\n;&|<>()", c) != NULL;
}

static dh_status word_part(shell *s, word *w)
{
    const char *t = s->text + s->at;
    if (*t == '"') return double_quotes(s, w);
    if (*t == '$') return dollar(s, w, false);
    if (*t == '\'') {
        const char *end = strchr(t + 1, '\'');
        if (!end) return sh_refuse(s, "a quote that does not end");
        s->at += (size_t)(end - t) + 1;
        return put(s, w, t + 1, (size_t)(end - t) - 1, true);
    }
    if (*t == '`') {
        const char *end = strchr(t + 1, '`');
        if (!end) return sh_refuse(s, "a ` that does not end");
        const size_t from = s->at;
        s->at += (size_t)(end - t) + 1;
        return put_unknown(s, w, from, s->at);
    }
    const size_t escaped = *t == '\\' && t[1];
    s->at += 1 + escaped;
    return escaped && t[1] == '\n' ? DH_OK : put(s, w, t + escaped, 1, true);
}

dh_status sh_read_word(shell *s, sh_words *fields)
{
    word w = {.text = DH_STR_INIT, .fields = fields};
    dh_status st = DH_OK;
    while (st == DH_OK && !sh_ends_word(s->text[s->at])) st = word_part(s, &w);
    if (st == DH_OK) st = end_field(s, &w);
    dh_str_fini(&w.text);
    return st;
}
