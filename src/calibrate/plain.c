/* Output of nccl-tests without what loggers and pages made of it.
 *
 *   {"time":"10:00","msg":"#  Rank  0 ..."}   a line in JSON, or a document with lines in it: the
 *                                             text of "msg", since that has the table's heading
 *   ESC[36m#  Rank&nbsp;&nbsp;0               colours, blanks of pages, Markdown's "\_" */
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "calibrate/nccl.h"

/* ---- JSON around lines ---------------------------------------------------------------------- */

enum { MAX_KEY = 64 };

/* The key under which a table's heading is. */
static bool find_key(json_t *at, const char *key, char *found)
{
    const char *name;
    json_t *member;
    size_t i;
    if (json_is_string(at)) {
        if (!strstr(json_string_value(at), NCCL_HEADING)) return false;
        snprintf(found, MAX_KEY, "%s", key);
        return true;
    }
    json_object_foreach(at, name, member) if (find_key(member, name, found)) return true;
    json_array_foreach(at, i, member) if (find_key(member, key, found)) return true;
    return false;
}

/* Appends all texts under a key as lines. Loki pairs each with its time, a number as text. */
static void append_texts(json_t *at, const char *key, const char *wanted, dh_str *out)
{
    const char *name;
    json_t *member;
    size_t i;
    const char *text = json_is_string(at) && strcmp(key, wanted) == 0 ? json_string_value(at) : "";
    size_t n = strlen(text);
    if (strspn(text, "0123456789") < n) {
        while (n > 0 && strchr("\r\n", text[n - 1])) n--;
        dh_str_append(out, text, n);
        dh_str_append(out, "\n", 1);
    }
    json_object_foreach(at, name, member) append_texts(member, name, wanted, out);
    json_array_foreach(at, i, member) append_texts(member, key, wanted, out);
}

/* out       *root: NULL where the line has no object */
static dh_status read_object(const measured_file *f, const char *line, size_t n, json_t **root)
{
    const char *from = memchr(line, '{', n);
    *root = NULL;
    while (n > 0 && line[n - 1] != '}') n--;
    if (!from || n == 0) return DH_OK;
    return dh_json_read(f->ctx, from, (size_t)(line + n - from), 0, NULL, root);
}

static dh_status find_key_of_lines(const measured_file *f, char *key)
{
    const char *at = f->text;
    while (!*key && (at = strstr(at, NCCL_HEADING)) != NULL) {
        json_t *root;
        const char *line = at;
        while (line > f->text && line[-1] != '\n') line--;
        at += strcspn(at, "\n");
        DH_TRY(read_object(f, line, (size_t)(at - line), &root));
        if (root) find_key(root, "", key);
        json_decref(root);
    }
    return DH_OK;
}

static dh_status unwrap_lines(const measured_file *f, dh_str *text)
{
    char key[MAX_KEY] = "";
    DH_TRY(find_key_of_lines(f, key));
    for (const char *at = f->text; *key && at < f->text + f->n_bytes;) {
        json_t *root;
        const size_t n = strcspn(at, "\n"), before = text->len;
        DH_TRY(read_object(f, at, n, &root));
        if (root) append_texts(root, "", key, text);
        json_decref(root);
        if (text->len == before) { /* lines keep their numbers */
            dh_str_append(text, at, n);
            dh_str_append(text, "\n", 1);
        }
        at += n + (at[n] != '\0');
    }
    return DH_OK;
}

dh_status nccl_unwrap(const measured_file *f, dh_str *text)
{
    json_t *root = NULL;
    char key[MAX_KEY];
    const char first = f->text[strspn(f->text, " \t\r\n")];
    if (first == '{' || first == '[')
        DH_TRY(dh_json_read(f->ctx, f->text, f->n_bytes, 0, NULL, &root));
    if (root && find_key(root, "", key)) append_texts(root, "", key, text);
    const dh_status st = root ? DH_OK : unwrap_lines(f, text);
    json_decref(root);
    return st == DH_OK && text->failed ? measured_no_memory(f) : st;
}

/* ---- characters ----------------------------------------------------------------------------- */

/* '\0': left out. */
static const struct {
    const char *written;
    char meant;
} marks[] = {
    {"\xC2\xA0", ' '},     {"\xE1\x9A\x80", ' '},  {"\xE2\x80\xAF", ' '},  {"\xE2\x81\x9F", ' '},
    {"\xE3\x80\x80", ' '}, {"\xE2\x81\xA0", '\0'}, {"\xEF\xBB\xBF", '\0'}, {"&nbsp;", ' '},
    {"&#160;", ' '},       {"&lt;", '<'},          {"&gt;", '>'},          {"&amp;", '&'},
    {"&quot;", '"'},       {"&#34;", '"'},         {"&#39;", '\''},        {"&#35;", '#'},
    {"&#95;", '_'},        {"\\n", ' '},           {"\\r", ' '},           {"\\t", ' '}};

/* Bytes of a colour, "ESC [ 3 6 m", also as syslog and others write it; 0: none. */
static size_t colour_at(const char *at, size_t n)
{
    static const char *const begins[] = {"\x1b[", "^[[", "#033[", "\\033[", "\\x1b[", "\\u001b["};
    for (size_t k = 0; k < DH_COUNTOF(begins); k++) {
        size_t i = strlen(begins[k]);
        if (i > n || strncmp(at, begins[k], i) != 0) continue;
        while (i < n && !(at[i] >= '@' && at[i] <= '~')) i++;
        return DH_MIN(i + 1, n);
    }
    return 0;
}

/* Bytes of a page's tag, "<td>"; mpirun's "<stdout>" is none. */
static size_t tag_at(const char *at, size_t n)
{
    size_t i = 1 + (n > 1 && at[1] == '/');
    if (*at != '<' || i >= n || !(at[i] >= 'a' && at[i] <= 'z') || strncmp(at, "<std", 4) == 0)
        return 0;
    while (i < n && at[i] != '>' && at[i] != '<') i++;
    return i < n && at[i] == '>' ? i + 1 : 0;
}

/* Bytes that mean another character, or none; 0: the first is as it is written. They are a colour, a
 * tag, one of U+2000 to U+200F (blanks, and characters of no width), one of `marks`, or a sign with
 * Markdown's backslash. */
static size_t mark_at(const char *at, size_t n, char *meant)
{
    size_t n_mark = colour_at(at, n);
    *meant = '\0';
    if (n_mark > 0) return n_mark;
    *meant = ' ';
    if ((n_mark = tag_at(at, n)) > 0) return n_mark;
    if (n > 2 && strncmp(at, "\xE2\x80", 2) == 0 && (unsigned char)at[2] < 0x90) {
        *meant = (unsigned char)at[2] < 0x8B ? ' ' : '\0';
        return 3;
    }
    for (size_t i = 0; i < DH_COUNTOF(marks); i++) {
        n_mark = strlen(marks[i].written);
        if (n_mark > n || strncmp(at, marks[i].written, n_mark) != 0) continue;
        *meant = marks[i].meant;
        return n_mark;
    }
    *meant = n > 1 ? at[1] : '\0';
    return n > 1 && at[0] == '\\' && strchr("#_*[]()<>{}|`.+-!\\\"'", at[1]) ? 2 : 0;
}

size_t nccl_plain(char *line, size_t n_bytes)
{
    static const char firsts[] = "\x1b^#<&\\\xC2\xE1\xE2\xE3\xEF"; /* of all that mark_at knows */
    size_t n = 0;
    for (size_t i = 0, n_mark; i < n_bytes; i += n_mark) {
        char meant;
        n_mark = strchr(firsts, line[i]) ? mark_at(line + i, n_bytes - i, &meant) : 0;
        if (n_mark == 0) {
            n_mark = 1;
            meant = line[i];
        }
        if (meant != '\0') line[n++] = meant;
    }
    return n;
}
