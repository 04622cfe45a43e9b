/* Shell scripts that start Megatron-LM: the part of the language that such scripts need, carried out
 * without running a program.
 *
 * A word is expanded while it is read. Commands are kept as their words; the one with most flags of
 * Megatron-LM is what the script is about. A variable without a value stays as its name ("$DATA"), so
 * that a flag does not lose its value; in conditions it is empty, as in a shell. */
#include <stdio.h>
#include <string.h>

#include "config/flags.h"
#include "exchange/source.h"

/* Bytes of expanded words, each with WORD_BYTES for its place: variables may double at every line. */
enum { MOST_EXPANDED = 16 << 20, WORD_BYTES = 16, MOST_VARIABLES = 4096 };

typedef DH_VEC(const char *) words;

typedef struct variable {
    const char *name;
    words values; /* one, or those of an array */
} variable;

typedef struct shell {
    dh_ctx *ctx;
    const char *origin;
    dh_arena *arena;
    dh_source *source;
    const char *text;
    size_t at;
    int first_line; /* of the text, in the file */
    int depth;
    bool in_test, failed;
    size_t *expanded; /* shared with the shells of parts */
    DH_VEC(variable) variables;
    words best; /* command with most flags */
    size_t most;
    const char *best_place;
} shell;

typedef enum truth { TRUTH_NO, TRUTH_YES, TRUTH_UNKNOWN } truth;

/* ---- places and memory -------------------------------------------------------------------- */

static int line_of(const shell *s)
{
    int line = s->first_line;
    for (size_t i = 0; i < s->at && s->text[i]; i++) line += s->text[i] == '\n';
    return line;
}

static dh_status refuse(shell *s, const char *what)
{
    return dh_fail(s->ctx, DH_EFORMAT, "%s:%d: %s", s->origin, line_of(s), what);
}

static dh_status no_memory(shell *s)
{
    return dh_fail(s->ctx, DH_ENOMEM, "out of memory reading %s", s->origin);
}

static dh_status expand(shell *s, size_t n)
{
    if (n > MOST_EXPANDED - *s->expanded)
        return refuse(s, "the expanded words take more than 16 MiB");
    *s->expanded += n;
    return DH_OK;
}

static dh_status push(shell *s, words *list, const char *text, size_t n)
{
    DH_TRY(expand(s, n + WORD_BYTES));
    char *copy = DH_NEW_N(s->arena, char, n + 1);
    if (!copy) return no_memory(s);
    if (n) memcpy(copy, text, n);
    return dh_vec_push(list, copy) ? DH_OK : no_memory(s);
}

static void note(shell *s, const char *what)
{
    const char *text = dh_arena_printf(s->arena, "line %d: %s", line_of(s), what);
    if (!text || !dh_vec_push(&s->source->notes, text)) s->failed = true;
}

/* ---- variables ------------------------------------------------------------------------------ */

static size_t name_length(const char *text)
{
    size_t n = 0;
    if (!dh_is_letter(text[0]) && text[0] != '_') return 0;
    while ((dh_is_letter(text[n]) || dh_is_digit(text[n])) || text[n] == '_') n++;
    return n;
}

static variable *find(shell *s, const char *name, size_t n)
{
    for (size_t i = 0; i < s->variables.n; i++)
        if (strncmp(s->variables.at[i].name, name, n) == 0 && !s->variables.at[i].name[n])
            return &s->variables.at[i];
    return NULL;
}

static variable *find_or_add(shell *s, const char *name, size_t n)
{
    variable *v = find(s, name, n);
    if (v || s->variables.n == MOST_VARIABLES) return v;
    char *copy = DH_NEW_N(s->arena, char, n + 1);
    if (!copy) return NULL;
    memcpy(copy, name, n);
    return dh_vec_push(&s->variables, (variable){.name = copy})
               ? &s->variables.at[s->variables.n - 1]
               : NULL;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* In $(( )): numbers, variables, + - * / % and parentheses. */
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
    const size_t n = name_length(m->at);
    const variable *v = n ? find(m->shell, m->at, n) : NULL;
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
    words *fields;
} word;

static dh_status end_field(shell *s, word *w)
{
    if (!w->is_there) return DH_OK;
    const dh_status st = w->text.failed
                             ? no_memory(s)
                             : push(s, w->fields, w->text.text ? w->text.text : "", w->text.len);
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

static dh_status put_values(shell *s, word *w, const variable *v, bool quoted)
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

static dh_status read_word(shell *s, words *fields);

/* The text between two places as words of its own, joined by blanks. */
static dh_status expand_part(shell *s, size_t from, size_t to, word *w, bool quoted)
{
    DH_TRY(expand(s, to - from));
    char *part = DH_NEW_N(s->arena, char, to - from + 1);
    words fields = {0};
    if (!part) return no_memory(s);
    memcpy(part, s->text + from, to - from);
    shell inner = *s;
    inner.text = part;
    inner.at = 0;
    inner.depth++;
    dh_status st = s->depth > 16 ? refuse(s, "expansions inside each other") : DH_OK;
    for (size_t i = 0; st == DH_OK && part[inner.at]; i++) {
        const size_t before = inner.at;
        while (part[inner.at] && strchr(" \t\n", part[inner.at])) inner.at++;
        if (inner.at > before && i) st = put(s, w, " ", 1, quoted);
        fields.n = 0;
        if (st == DH_OK && part[inner.at]) st = read_word(&inner, &fields);
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
    if (!end) return refuse(s, "a ${ without its }");
    const char *name = s->text + from + 2;
    size_t n = name_length(name);
    if (!n) n = strspn(name, "0123456789");
    const variable *v = find(s, name, n);
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
        if (!end || s->text[end] != ')') return refuse(s, "a $(( without its ))");
        char *inside = DH_NEW_N(s->arena, char, end - 1 - (from + 3) + 1);
        if (!inside) return no_memory(s);
        memcpy(inside, t + 3, end - 1 - (from + 3));
        s->at = end + 1;
        if (!calculate(s, inside, &value)) return put_unknown(s, w, from, s->at);
        snprintf(number, sizeof number, "%lld", (long long)value);
        return put(s, w, number, strlen(number), quoted);
    }
    if (t[1] == '(') {
        const size_t end = closing(s->text, from + 2, '(', ')');
        if (!end) return refuse(s, "a $( without its )");
        s->at = end;
        return put_unknown(s, w, from, end);
    }
    if (t[1] == '{') return braces(s, w, quoted);
    size_t n = name_length(t + 1);
    if (!n && t[1] && (dh_is_digit(t[1]) || strchr("@*#?$!-", t[1]))) n = 1;
    s->at += 1 + n;
    if (!n) return put(s, w, "$", 1, true);
    const variable *v = find(s, t + 1, n);
    if (v) return v->values.n ? put(s, w, v->values.at[0], strlen(v->values.at[0]), quoted) : DH_OK;
    return put_unknown(s, w, from, s->at);
}

static dh_status double_quotes(shell *s, word *w)
{
    w->is_there = true;
    for (s->at++; s->text[s->at] != '"';) {
        const char *t = s->text + s->at;
        if (!*t) return refuse(s, "a quote that does not end");
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

static bool ends_word(char c)
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
        if (!end) return refuse(s, "a quote that does not end");
        s->at += (size_t)(end - t) + 1;
        return put(s, w, t + 1, (size_t)(end - t) - 1, true);
    }
    if (*t == '`') {
        const char *end = strchr(t + 1, '`');
        if (!end) return refuse(s, "a ` that does not end");
        const size_t from = s->at;
        s->at += (size_t)(end - t) + 1;
        return put_unknown(s, w, from, s->at);
    }
    const size_t escaped = *t == '\\' && t[1];
    s->at += 1 + escaped;
    return escaped && t[1] == '\n' ? DH_OK : put(s, w, t + escaped, 1, true);
}

static dh_status read_word(shell *s, words *fields)
{
    word w = {.text = DH_STR_INIT, .fields = fields};
    dh_status st = DH_OK;
    while (st == DH_OK && !ends_word(s->text[s->at])) st = word_part(s, &w);
    if (st == DH_OK) st = end_field(s, &w);
    dh_str_fini(&w.text);
    return st;
}

/* ---- commands ----------------------------------------------------------------------------------- */

static void blanks(shell *s, bool lines)
{
    for (;; s->at++) {
        const char *t = s->text + s->at;
        if (*t == '\\' && t[1] == '\n')
            s->at++;
        else if (*t == '#' && (s->at == 0 || strchr(" \t\n;(", t[-1])))
            s->at += strcspn(t, "\n") - 1;
        else if (!(*t == ' ' || *t == '\t' || *t == '\r' || (lines && *t == '\n')) || !*t)
            return;
    }
}

/* NAME= or NAME+= at this place; 0: none. */
static size_t assignment(const char *t, size_t *n, bool *adds)
{
    *n = name_length(t);
    if (!*n) return 0;
    *adds = t[*n] == '+' && t[*n + 1] == '=';
    return *adds ? *n + 2 : t[*n] == '=' ? *n + 1 : 0;
}

static dh_status read_array(shell *s, words *values)
{
    s->at++;
    for (;;) {
        blanks(s, true);
        if (s->text[s->at] == ')') break;
        if (!s->text[s->at] || ends_word(s->text[s->at]))
            return refuse(s, "an array that does not end");
        DH_TRY(read_word(s, values));
    }
    s->at++;
    return DH_OK;
}

static dh_status store(shell *s, const char *name, size_t n, bool adds, bool is_array,
                       const words *values)
{
    variable *v = find_or_add(s, name, n);
    if (!v && s->variables.n == MOST_VARIABLES) return refuse(s, "more than 4096 variables");
    if (!v) return no_memory(s);
    if (is_array) {
        if (!adds) v->values.n = 0;
        for (size_t i = 0; i < values->n; i++)
            if (!dh_vec_push(&v->values, values->at[i])) return no_memory(s);
        return DH_OK;
    }
    dh_str text = DH_STR_INIT;
    if (adds && v->values.n) dh_str_printf(&text, "%s", v->values.at[0]);
    for (size_t i = 0; i < values->n; i++)
        dh_str_printf(&text, "%s%s", i ? " " : "", values->at[i]);
    v->values.n = 0;
    const dh_status st =
        text.failed ? no_memory(s) : push(s, &v->values, text.text ? text.text : "", text.len);
    dh_str_fini(&text);
    return st;
}

static dh_status assign(shell *s, size_t skip, size_t n, bool adds, bool live)
{
    const char *name = s->text + s->at;
    words values = {0};
    s->at += skip;
    const bool is_array = s->text[s->at] == '(';
    dh_status st = is_array ? read_array(s, &values) : read_word(s, &values);
    if (st == DH_OK && live) st = store(s, name, n, adds, is_array, &values);
    dh_vec_fini(&values);
    return st;
}

static size_t n_flags(const words *command)
{
    size_t n = 0;
    char name[128];
    for (size_t i = 0; i < command->n; i++) {
        snprintf(name, sizeof name, "%.*s",
                 (int)DH_MIN(strcspn(command->at[i], "="), sizeof name - 1), command->at[i]);
        n += strncmp(name, "--", 2) == 0 && dh_flag_find(DH_PROJECT_MEGATRON, name) != NULL;
    }
    return n;
}

static dh_status run_all(shell *s, bool live, const char *until, char *stop);

/* Words that hold a command of their own: of eval, `bash -c "..."`, `srun ... "..."`. */
static dh_status run_text(shell *s, const char *text)
{
    char stop;
    const char *outer = s->text;
    const size_t at = s->at;
    const int first = s->first_line;
    if (++s->depth > 8) return refuse(s, "commands inside each other");
    s->first_line = line_of(s);
    s->text = text;
    s->at = 0;
    const dh_status st = run_all(s, true, "", &stop);
    s->text = outer;
    s->at = at;
    s->first_line = first;
    s->depth--;
    return st;
}

static dh_status keep(shell *s, words *command)
{
    const size_t n = n_flags(command);
    for (size_t i = 0; i < command->n; i++)
        if (strchr(command->at[i], ' ') && strstr(command->at[i], "--") && n == 0)
            DH_TRY(run_text(s, command->at[i]));
    if (n > 0 && s->most > 0)
        note(s, n > s->most ? "of the commands with flags of Megatron-LM those before are not read"
                            : "this command has fewer flags of Megatron-LM: it is not read");
    if (n <= s->most) return DH_OK;
    s->most = n;
    s->best.n = 0;
    for (size_t i = 0; i < command->n; i++)
        if (!dh_vec_push(&s->best, command->at[i])) return no_memory(s);
    s->best_place = dh_arena_printf(s->arena, "%s:%d", s->origin, line_of(s));
    return s->best_place ? DH_OK : no_memory(s);
}

static bool declares(const words *command)
{
    static const char *const names[] = {"export", "local", "declare", "readonly", "typeset"};
    for (size_t i = 0; command->n && i < DH_COUNTOF(names); i++)
        if (strcmp(command->at[0], names[i]) == 0) return true;
    return false;
}

static dh_status redirection(shell *s)
{
    words target = {0};
    if (strncmp(s->text + s->at, "<<", 2) == 0 && s->text[s->at + 2] != '<')
        return refuse(s, "here-documents are not read");
    s->at += strspn(s->text + s->at, "<>&|");
    blanks(s, false);
    const dh_status st = read_word(s, &target);
    dh_vec_fini(&target);
    return st;
}

/* A line that begins with a flag goes on with the command before, as texts with a flag a line do. */
static bool goes_on(const char *end)
{
    if (*end != '\n') return false;
    end += strspn(end, " \t\r\n");
    return end[0] == '-' && end[1] == '-' && dh_is_letter(end[2]);
}

/* To the end of a simple command, which is left as the next character. */
static dh_status simple(shell *s, bool live)
{
    words command = {0};
    dh_status st = DH_OK;
    for (;;) {
        blanks(s, false);
        const char *t = s->text + s->at;
        size_t n = 0;
        bool adds = false;
        if (goes_on(t)) {
            s->at += strspn(t, " \t\r\n");
            continue;
        }
        if (!*t || strchr("\n;|)", *t)) break;
        if (*t == '&' && t[1] != '>') break;
        if (*t == '(') {
            st = refuse(s, command.n ? "functions are not read" : "subshells are not read");
            break;
        }
        const size_t skip = command.n == 0 || declares(&command) ? assignment(t, &n, &adds) : 0;
        const bool number = dh_is_digit(*t) && (t[1] == '<' || t[1] == '>');
        if (number) s->at++;
        if (number || strchr("<>&", *t))
            st = redirection(s);
        else if (skip)
            st = assign(s, skip, n, adds, live);
        else
            st = read_word(s, &command);
        if (st != DH_OK) break;
    }
    if (st == DH_OK && live) st = keep(s, &command);
    dh_vec_fini(&command);
    return st;
}

/* ---- conditions --------------------------------------------------------------------------------- */

static bool is_unknown(const char *text)
{
    return strstr(text, "$(") || strchr(text, '`');
}

static truth compare(const char *a, const char *op, const char *b)
{
    int64_t x, y;
    if (is_unknown(a) || is_unknown(b)) return TRUTH_UNKNOWN;
    if (strcmp(op, "=") == 0 || strcmp(op, "==") == 0) return strcmp(a, b) == 0;
    if (strcmp(op, "!=") == 0) return strcmp(a, b) != 0;
    if (!dh_parse_i64(a, &x) || !dh_parse_i64(b, &y)) return TRUTH_UNKNOWN;
    if (strcmp(op, "-eq") == 0) return x == y;
    if (strcmp(op, "-ne") == 0) return x != y;
    if (strcmp(op, "-lt") == 0) return x < y;
    if (strcmp(op, "-le") == 0) return x <= y;
    if (strcmp(op, "-gt") == 0) return x > y;
    if (strcmp(op, "-ge") == 0) return x >= y;
    return TRUTH_UNKNOWN;
}

/* The words between brackets. */
static truth test(const words *w)
{
    if (w->n > 0 && strcmp(w->at[0], "!") == 0) {
        const words rest = {.at = w->at + 1, .n = w->n - 1};
        const truth t = test(&rest);
        return t == TRUTH_UNKNOWN ? t : !t;
    }
    if (w->n == 1) return is_unknown(w->at[0]) ? TRUTH_UNKNOWN : w->at[0][0] != '\0';
    if (w->n == 2 && is_unknown(w->at[1])) return TRUTH_UNKNOWN;
    if (w->n == 2 && strcmp(w->at[0], "-n") == 0) return w->at[1][0] != '\0';
    if (w->n == 2 && strcmp(w->at[0], "-z") == 0) return w->at[1][0] == '\0';
    if (w->n == 2 && strlen(w->at[0]) == 2 && strchr("fderswx", w->at[0][1])) return TRUTH_YES;
    return w->n == 3 ? compare(w->at[0], w->at[1], w->at[2]) : TRUTH_UNKNOWN;
}

/* The first alone where there is no op. */
static truth both(truth a, char op, truth b)
{
    if (!op) return b;
    const truth decides = op == '|' ? TRUTH_YES : TRUTH_NO;
    if (a == decides || b == decides) return decides;
    return a == TRUTH_UNKNOWN || b == TRUTH_UNKNOWN ? TRUTH_UNKNOWN : b;
}

/* Inside [[ ]] and [ ], where <, > and so on are words. */
static dh_status read_test(shell *s, truth *result)
{
    const bool two = s->text[s->at + 1] == '[';
    words w = {0};
    dh_status st = DH_OK;
    char op = 0;
    s->at += two ? 2 : 1;
    s->in_test = true;
    for (*result = TRUTH_NO; st == DH_OK;) {
        blanks(s, true);
        const char *t = s->text + s->at;
        const bool ends = two ? strncmp(t, "]]", 2) == 0 : *t == ']';
        const bool joins = strncmp(t, "&&", 2) == 0 || strncmp(t, "||", 2) == 0;
        if (!*t) {
            st = refuse(s, "a condition that does not end");
        } else if (ends || joins) {
            *result = both(*result, op, test(&w));
            w.n = 0;
            op = *t;
            s->at += two || joins ? 2 : 1;
            if (ends) break;
        } else if (ends_word(*t)) {
            st = push(s, &w, t, 1);
            s->at++;
        } else {
            st = read_word(s, &w);
        }
    }
    s->in_test = false;
    dh_vec_fini(&w);
    return st;
}

/* Up to `then`: tests joined by && and ||, from left to right. */
static dh_status condition(shell *s, truth *result)
{
    bool negate = false;
    truth value = TRUTH_UNKNOWN, next;
    char op = 0;
    for (;;) {
        blanks(s, true);
        const char *t = s->text + s->at;
        if (*t == '!' && t[1] == ' ') {
            negate = true;
            s->at++;
            continue;
        }
        if (*t == '[') {
            DH_TRY(read_test(s, &next));
        } else {
            next = TRUTH_UNKNOWN;
            DH_TRY(simple(s, false));
        }
        if (negate && next != TRUTH_UNKNOWN) next = !next;
        negate = false;
        value = both(value, op, next);
        blanks(s, false);
        t = s->text + s->at;
        op = strncmp(t, "&&", 2) == 0 || strncmp(t, "||", 2) == 0 ? *t : 0;
        if (!op) break;
        s->at += 2;
    }
    *result = value;
    return DH_OK;
}

/* ---- lists of commands ---------------------------------------------------------------------------- */

static bool is_keyword(const shell *s, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(s->text + s->at, name, n) == 0 && ends_word(s->text[s->at + n]);
}

static dh_status expect(shell *s, const char *name)
{
    s->at += strspn(s->text + s->at, "; \t\n");
    blanks(s, true);
    if (!is_keyword(s, name)) return refuse(s, "an `if` without its `then`");
    s->at += strlen(name);
    return DH_OK;
}

static dh_status branch(shell *s, bool live)
{
    bool done = false; /* a branch was taken */
    char stop = 'i';
    while (stop == 'i') {
        truth t = TRUTH_UNKNOWN;
        DH_TRY(condition(s, &t));
        if (t == TRUTH_UNKNOWN && live && !done)
            note(s, "the condition depends on what is not in the script: taken as false");
        DH_TRY(expect(s, "then"));
        const bool takes = live && !done && t == TRUTH_YES;
        DH_TRY(run_all(s, takes, "fi", &stop));
        done = done || takes;
    }
    if (stop == 'e') DH_TRY(run_all(s, live && !done, "fi", &stop));
    return DH_OK;
}

/* Behind a keyword; 'i': elif, 'e': else, 'f': fi. */
static bool ends_branch(shell *s, char *stop)
{
    static const struct {
        const char *name;
        char stop;
    } ends[] = {{"elif", 'i'}, {"else", 'e'}, {"fi", 'f'}};
    for (size_t i = 0; i < DH_COUNTOF(ends); i++) {
        if (!is_keyword(s, ends[i].name)) continue;
        s->at += strlen(ends[i].name);
        *stop = ends[i].stop;
        return true;
    }
    return false;
}

static dh_status run_all(shell *s, bool live, const char *until, char *stop)
{
    static const char *const unread[] = {"for",    "while",    "until", "case",
                                         "select", "function", "{"};
    for (*stop = 0;;) {
        s->at += strspn(s->text + s->at, ";&|)");
        blanks(s, true);
        if (!s->text[s->at]) break;
        if (strchr(";&|)", s->text[s->at])) continue;
        if (*until && ends_branch(s, stop)) return DH_OK;
        for (size_t i = 0; i < DH_COUNTOF(unread); i++)
            if (is_keyword(s, unread[i]))
                return refuse(s,
                              "loops, `case`, groups and functions are not read: give the command "
                              "line itself");
        truth t;
        if (is_keyword(s, "if")) {
            s->at += 2;
            if (++s->depth > 32) return refuse(s, "conditions inside each other");
            DH_TRY(branch(s, live));
            s->depth--;
        } else if (s->text[s->at] == '[') { /* [ ... ] && command: taken where it is true */
            DH_TRY(read_test(s, &t));
            blanks(s, false);
            const char *join = s->text + s->at;
            const bool either = strncmp(join, "||", 2) == 0;
            if (!either && strncmp(join, "&&", 2) != 0) continue;
            s->at += 2;
            DH_TRY(simple(s, live && t == (either ? TRUTH_NO : TRUTH_YES)));
        } else {
            DH_TRY(simple(s, live));
        }
    }
    return *until ? refuse(s, "an `if` without its `fi`") : DH_OK;
}

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
               : no_memory(s);
}

static dh_status join(shell *s, size_t from, size_t to, const char **value)
{
    dh_str text = DH_STR_INIT;
    for (size_t i = from; i < to; i++)
        dh_str_printf(&text, "%s%s", i > from ? " " : "", s->best.at[i]);
    *value = text.failed ? NULL : dh_arena_strdup(s->arena, text.text ? text.text : "");
    dh_str_fini(&text);
    return *value ? DH_OK : no_memory(s);
}

static dh_status say_flag(shell *s, size_t *at)
{
    const char *text = s->best.at[*at], *equals = strchr(text, '='), *value = NULL;
    const size_t n = strcspn(text, "=");
    char *name = DH_NEW_N(s->arena, char, n + 1);
    if (!name) return no_memory(s);
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
        if (!text || !dh_vec_push(&s->source->notes, text)) return no_memory(s);
    }
    return DH_OK;
}

static dh_status define(shell *s, dh_defines defines)
{
    for (size_t i = 0; i < defines.n; i++) {
        const char *text = defines.at[i], *equals = strchr(text, '=');
        if (!equals || equals == text)
            return dh_fail(s->ctx, DH_EINVAL, "\"%s\" is not NAME=VALUE", text);
        variable *v = find_or_add(s, text, (size_t)(equals - text));
        if (!v) return no_memory(s);
        v->values.n = 0;
        DH_TRY(push(s, &v->values, equals + 1, strlen(equals + 1)));
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
    if (st == DH_OK) st = run_all(&s, true, "", &stop);
    if (st == DH_OK && s.failed) st = no_memory(&s);
    if (st == DH_OK && s.most == 0)
        st = dh_fail(ctx, DH_EFORMAT, "%s: no command has a flag of Megatron-LM", origin);
    if (st == DH_OK) st = say_all(&s);
    if (st == DH_OK && s.failed) st = no_memory(&s);
    for (size_t i = 0; i < s.variables.n; i++) dh_vec_fini(&s.variables.at[i].values);
    dh_vec_fini(&s.variables);
    dh_vec_fini(&s.best);
    return st;
}
