/* Commands and conditions of a shell script, carried out without running a program. */
#include <stdio.h>
#include <string.h>

#include "config/flags.h"
#include "exchange/shell.h"

typedef enum truth { TRUTH_NO, TRUTH_YES, TRUTH_UNKNOWN } truth;

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
    *n = sh_name_length(t);
    if (!*n) return 0;
    *adds = t[*n] == '+' && t[*n + 1] == '=';
    return *adds ? *n + 2 : t[*n] == '=' ? *n + 1 : 0;
}

static dh_status read_array(shell *s, sh_words *values)
{
    s->at++;
    for (;;) {
        blanks(s, true);
        if (s->text[s->at] == ')') break;
        if (!s->text[s->at] || sh_ends_word(s->text[s->at]))
            return sh_refuse(s, "an array that does not end");
        DH_TRY(sh_read_word(s, values));
    }
    s->at++;
    return DH_OK;
}

static dh_status store(shell *s, const char *name, size_t n, bool adds, bool is_array,
                       const sh_words *values)
{
    sh_variable *v = sh_find_or_add(s, name, n);
    if (!v && s->variables.n == SH_MOST_VARIABLES) return sh_refuse(s, "more than 4096 variables");
    if (!v) return sh_no_memory(s);
    if (is_array) {
        if (!adds) v->values.n = 0;
        for (size_t i = 0; i < values->n; i++)
            if (!dh_vec_push(&v->values, values->at[i])) return sh_no_memory(s);
        return DH_OK;
    }
    dh_str text = DH_STR_INIT;
    if (adds && v->values.n) dh_str_printf(&text, "%s", v->values.at[0]);
    for (size_t i = 0; i < values->n; i++)
        dh_str_printf(&text, "%s%s", i ? " " : "", values->at[i]);
    v->values.n = 0;
    const dh_status st = text.failed ? sh_no_memory(s)
                                     : sh_push(s, &v->values, text.text ? text.text : "", text.len);
    dh_str_fini(&text);
    return st;
}

static dh_status assign(shell *s, size_t skip, size_t n, bool adds, bool live)
{
    const char *name = s->text + s->at;
    sh_words values = {0};
    s->at += skip;
    const bool is_array = s->text[s->at] == '(';
    dh_status st = is_array ? read_array(s, &values) : sh_read_word(s, &values);
    if (st == DH_OK && live) st = store(s, name, n, adds, is_array, &values);
    dh_vec_fini(&values);
    return st;
}

static size_t n_flags(const sh_words *command)
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

/* Words that hold a command of their own: of eval, `bash -c "..."`, `srun ... "..."`. */
static dh_status run_text(shell *s, const char *text)
{
    char stop;
    const char *outer = s->text;
    const size_t at = s->at;
    const int first = s->first_line;
    if (++s->depth > 8) return sh_refuse(s, "commands inside each other");
    s->first_line = sh_line_of(s);
    s->text = text;
    s->at = 0;
    const dh_status st = sh_run_all(s, true, "", &stop);
    s->text = outer;
    s->at = at;
    s->first_line = first;
    s->depth--;
    return st;
}

static dh_status keep(shell *s, sh_words *command)
{
    const size_t n = n_flags(command);
    for (size_t i = 0; i < command->n; i++)
        if (strchr(command->at[i], ' ') && strstr(command->at[i], "--") && n == 0)
            DH_TRY(run_text(s, command->at[i]));
    if (n > 0 && s->most > 0)
        sh_note(s, n > s->most
                       ? "of the commands with flags of Megatron-LM those before are not read"
                       : "this command has fewer flags of Megatron-LM: it is not read");
    if (n <= s->most) return DH_OK;
    s->most = n;
    s->best.n = 0;
    for (size_t i = 0; i < command->n; i++)
        if (!dh_vec_push(&s->best, command->at[i])) return sh_no_memory(s);
    s->best_place = dh_arena_printf(s->arena, "%s:%d", s->origin, sh_line_of(s));
    return s->best_place ? DH_OK : sh_no_memory(s);
}

static bool declares(const sh_words *command)
{
    static const char *const names[] = {"export", "local", "declare", "readonly", "typeset"};
    for (size_t i = 0; command->n && i < DH_COUNTOF(names); i++)
        if (strcmp(command->at[0], names[i]) == 0) return true;
    return false;
}

static dh_status redirection(shell *s)
{
    sh_words target = {0};
    if (strncmp(s->text + s->at, "<<", 2) == 0 && s->text[s->at + 2] != '<')
        return sh_refuse(s, "here-documents are not read");
    s->at += strspn(s->text + s->at, "<>&|");
    blanks(s, false);
    const dh_status st = sh_read_word(s, &target);
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
    sh_words command = {0};
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
            st = sh_refuse(s, command.n ? "functions are not read" : "subshells are not read");
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
            st = sh_read_word(s, &command);
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
static truth test(const sh_words *w)
{
    if (w->n > 0 && strcmp(w->at[0], "!") == 0) {
        const sh_words rest = {.at = w->at + 1, .n = w->n - 1};
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
    sh_words w = {0};
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
            st = sh_refuse(s, "a condition that does not end");
        } else if (ends || joins) {
            *result = both(*result, op, test(&w));
            w.n = 0;
            op = *t;
            s->at += two || joins ? 2 : 1;
            if (ends) break;
        } else if (sh_ends_word(*t)) {
            st = sh_push(s, &w, t, 1);
            s->at++;
        } else {
            st = sh_read_word(s, &w);
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
    return strncmp(s->text + s->at, name, n) == 0 && sh_ends_word(s->text[s->at + n]);
}

static dh_status expect(shell *s, const char *name)
{
    s->at += strspn(s->text + s->at, "; \t\n");
    blanks(s, true);
    if (!is_keyword(s, name)) return sh_refuse(s, "an `if` without its `then`");
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
            sh_note(s, "the condition depends on what is not in the script: taken as false");
        DH_TRY(expect(s, "then"));
        const bool takes = live && !done && t == TRUTH_YES;
        DH_TRY(sh_run_all(s, takes, "fi", &stop));
        done = done || takes;
    }
    if (stop == 'e') DH_TRY(sh_run_all(s, live && !done, "fi", &stop));
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

dh_status sh_run_all(shell *s, bool live, const char *until, char *stop)
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
                return sh_refuse(
                    s, "loops, `case`, groups and functions are not read: give the command "
                       "line itself");
        truth t;
        if (is_keyword(s, "if")) {
            s->at += 2;
            if (++s->depth > 32) return sh_refuse(s, "conditions inside each other");
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
    return *until ? sh_refuse(s, "an `if` without its `fi`") : DH_OK;
}
