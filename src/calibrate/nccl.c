/* The text that nccl-tests and rccl-tests print: comments say which test ran on which ranks, rows
 * have a size and a time. Several outputs may follow each other in one file.
 *
 *   # Rank  0 Group  0 Pid  4242 on  node1 device  0 [0x1b] NVIDIA H100 80GB HBM3
 *   #       size         count      type   redop    root     time   algbw   busbw #wrong ...
 *   #        (B)    (elements)                               (us)  (GB/s)  (GB/s)
 *       33554432       8388608     float     sum      -1    230.9  145.35  254.36      0 ...
 *
 * The first time of a row is that out of place. Launchers put words in front of lines, and copies
 * lose the "#": a line is known by its words. All other lines are skipped. Lines in JSON and what
 * pages do to characters are undone before (plain.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/nccl.h"

enum { MAX_WORDS = 32, MAX_WORD = 64 };

typedef struct words {
    char at[MAX_WORDS][MAX_WORD];
    int n;
} words;

typedef struct reader {
    nccl_output output;
    int path_test;        /* test that the file's name says */
    bool names_tests;     /* an output in it says its test */
    bool named, has_rows; /* the present output says it; has had rows since */
    bool is_over;         /* it has had rows: ranks or a heading begin the next */
    bool several;         /* the last name was one of several */
    int32_t name_line;    /* of the last name; 0: none */
    int64_t n_processes;  /* that the next output's launcher was given; 0: not said */
    int32_t line;
    words heading; /* n 0: none yet */
    int n_before;  /* words of another's before the heading, and so before each row */
} reader;

static void split(const char *line, size_t n_bytes, words *w)
{
    static const char between[] = " \t\r|,\"'`{}";
    w->n = 0;
    for (size_t i = 0; i < n_bytes && w->n < MAX_WORDS;) {
        while (i < n_bytes && strchr(between, line[i])) i++;
        const size_t from = i;
        while (i < n_bytes && !strchr(between, line[i])) i++;
        if (i > from)
            snprintf(w->at[w->n++], MAX_WORD, "%.*s", (int)DH_MIN(i - from, (size_t)MAX_WORD - 1),
                     line + from);
    }
}

static int find_word(const words *w, const char *word)
{
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->at[i], word) == 0) return i;
    return -1;
}

static bool number_after(const words *w, const char *word, int64_t *value)
{
    const int at = find_word(w, word);
    return at >= 0 && at + 1 < w->n && dh_parse_i64(w->at[at + 1], value);
}

/* ---- prefixes ------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Bytes that a launcher put in front of a line; 0: none. Known are mpirun --tag-output
 * "[1,0]<stdout>:", Intel MPI "[0] ", srun --label "0: ", and "host: " of pdsh and pods. A time and
 * the "> " of quoted text are skipped too. */
static size_t prefix_of(const char *at, size_t n)
{
    size_t i = 0;
    if (n == 0) return 0;
    if (*at == '>') return 1;
    while (i < n && strchr(" \t", at[i])) i++;
    if (i > 0) return i;
    if (*at == '[') {
        while (i < n && at[i] != ']') i++;
        if (i == n) return 0;
        i++;
        if (i < n && at[i] == '<')
            while (i < n && at[i] != ':') i++;
        return DH_MIN(i + (i < n && at[i] == ':'), n);
    }
    while (i < n && (is_letter(at[i]) || is_digit(at[i]) || strchr("._-+", at[i]))) i++;
    const bool is_time = i >= 2 && i < n && at[i] == ':' && n - i >= 6 && at[i + 3] == ':';
    if (is_time) /* 2026-07-10T10:00:00.000Z */
        while (i < n && !strchr(" \t#", at[i])) i++;
    else if (i > 0 && i < n && at[i] == ':')
        i++;
    else
        i = i == 10 && n > 14 && at[4] == '-' && at[7] == '-' && at[13] == ':' ? 10 : 0;
    return i;
}

/* ---- which test ----------------------------------------------------------------------------- */

/* The test of the output that follows. It is not known
 *   - after several tests, in a line or in lines below each other as in a listing of a folder,
 *   - after words on another test than the last one that ran. */
static void read_name(reader *r, const char *line)
{
    nccl_names names;
    nccl_find_names(line, &names);
    if (names.n_processes > 0) r->n_processes = names.n_processes;
    if (!names.one) return;
    const bool same = strcmp(r->output.test_name, names.test) == 0;
    if (!names.runs) {
        r->named = r->named && (same || r->has_rows);
        return;
    }
    const bool ends = strstr(line, "test concluded") != NULL; /* newer ones say it there too */
    const bool listed = r->name_line > 0 && r->line == r->name_line + 1 && (r->several || !same);
    r->several = names.several || listed;
    r->name_line = ends ? 0 : r->line;
    nccl_name(&r->output, names.test, strlen(names.test));
    r->names_tests = true;
    r->named = !ends && !r->several;
    r->has_rows = false; /* a new output begins */
}

/* The test that a file's name says, between other words. */
static int test_of_path(const char *path)
{
    static const char *const names[] = {
        "all_reduce",    "allreduce", "all_gather", "allgather", "reduce_scatter",
        "reducescatter", "alltoall",  "all_to_all", "sendrecv",  "send_recv"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        const char *at = strstr(name, names[i]);
        const size_t n = strlen(names[i]);
        if (at && (at == name || !is_letter(at[-1])) && !is_letter(at[n]))
            return nccl_test_of(names[i], n);
    }
    return NCCL_UNNAMED;
}

/* A table belongs to the name before it. Where outputs of a file are named, one without a name is
 * not that of the last. */
static void settle_test(reader *r)
{
    if (r->named) return;
    r->output.test = r->names_tests ? NCCL_UNNAMED : r->path_test;
    if (r->output.test >= 0)
        snprintf(r->output.test_name, sizeof r->output.test_name, "the collective of its name");
}

/* ---- comments ------------------------------------------------------------------------------- */

static void begin_output(reader *r)
{
    nccl_begin(&r->output);
    r->heading.n = 0;
    if (r->has_rows) r->named = false;
    r->has_rows = r->is_over = false;
}

/* "nThread 1 nGpus 8 minBytes ...". */
static void begin_run(reader *r, const words *w)
{
    int64_t threads, devices;
    begin_output(r);
    r->output.n_processes = r->n_processes;
    r->n_processes = 0;
    if (number_after(w, "nThread", &threads) && number_after(w, "nGpus", &devices) && threads > 0 &&
        devices > 0 && __builtin_mul_overflow(threads, devices, &r->output.each))
        r->output.each = 0;
}

/* "Rank 0 Group 0 Pid 1 on HOST device 0 ..."; older ones have no group. */
static dh_status read_rank(reader *r, const words *w)
{
    const measured_file *f = r->output.file;
    nccl_rank rank = {.device = -1, .id = ""};
    const int on = find_word(w, "on"), device = find_word(w, "device");
    if (on < 0 || on + 1 >= w->n || !number_after(w, "Rank", &rank.number))
        return dh_fail(f->ctx, DH_EFORMAT, "%s:%d: \"# Rank N Pid P on HOST device D\" is wanted",
                       f->path, r->line);
    if (r->is_over) begin_output(r);
    if (!number_after(w, "device", &rank.device)) rank.device = rank.number;
    number_after(w, "Group", &rank.group);
    number_after(w, "Pid", &rank.pid);
    if (device >= 0 && device + 2 < w->n && *w->at[device + 2] == '[')
        rank.id = dh_arena_strdup(f->m->arena, w->at[device + 2]);
    rank.host = dh_arena_strdup(f->m->arena, w->at[on + 1]);
    return rank.id && rank.host && dh_vec_push(&r->output.ranks, rank) ? DH_OK
                                                                       : measured_no_memory(f);
}

/* Also of option -C, which times the host: its rows are refused. */
static bool is_heading(const words *w)
{
    return w->n > 4 && strcmp(w->at[0], "size") == 0 && find_word(w, "algbw") > 0 &&
           (find_word(w, "time") > 0 || find_word(w, "cputime") > 0);
}

/* Without units, "time (us)", what option -T adds, and a logger's "pod=a". */
static dh_status begin_table(reader *r, const words *w)
{
    const measured_file *f = r->output.file;
    const int stamp = find_word(w, "timestamp");
    if (r->is_over) begin_output(r);
    r->heading.n = 0;
    for (int i = 0; i < (stamp > 0 ? stamp : w->n); i++)
        if (*w->at[i] != '(' && !strchr(w->at[i], '='))
            memcpy(r->heading.at[r->heading.n++], w->at[i], MAX_WORD);
    if (find_word(&r->heading, "time") > 0) return DH_OK;
    return dh_fail(f->ctx, DH_EFORMAT,
                   "%s:%d: \"cputime\" is the time that the host takes to start a collective: a "
                   "measurement without option -C is wanted",
                   f->path, r->line);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static dh_status check_right(const reader *r, const words *w, int shift)
{
    double wrong;
    int at = find_word(&r->heading, "#wrong");
    if (at < 0) at = find_word(&r->heading, "error");
    if (at < shift || !dh_parse_f64(w->at[at - shift], &wrong) || wrong == 0) return DH_OK;
    return dh_fail(r->output.file->ctx, DH_EFORMAT,
                   "%s:%d: %s wrong values in the result: a measurement of a sound machine is "
                   "wanted",
                   r->output.file->path, r->line, w->at[at - shift]);
}

/* Of the last digit of a number's text; with a power of ten, that of nccl-tests' two digits. */
static double unit_of(const char *text)
{
    double unit = 1;
    const char *point = strchr(text, '.');
    if (strpbrk(text, "eE")) return 0.01;
    for (const char *at = point ? point + 1 : ""; is_digit(*at); at++) unit /= 10;
    return unit;
}

/* A row has no words for the columns that nccl-tests leaves blank (redop, root). Columns are
 * therefore counted from the end. */
static dh_status read_row(reader *r, words *w)
{
    double number;
    const measured_file *f = r->output.file;
    nccl_row row = {.line = r->line};
    if (r->heading.n == 0)
        return dh_fail(f->ctx, DH_EFORMAT,
                       "%s:%d: a row before its heading \"# size count type ... time algbw\"",
                       f->path, r->line);
    while (w->n > 3 && strcmp(w->at[w->n - 1], "N/A") != 0 &&
           !dh_parse_f64(w->at[w->n - 1], &number))
        w->n--; /* the date and time that option -T adds */
    const int shift = r->heading.n - w->n;
    const int time = find_word(&r->heading, "time") - shift;
    const int algbw = find_word(&r->heading, "algbw") - shift;
    const int busbw = find_word(&r->heading, "busbw") - shift;
    if (shift < 0 || time < 3 || algbw < time || !dh_parse_f64(w->at[0], &row.bytes) ||
        !dh_parse_f64(w->at[time], &row.us) || !(row.bytes == 0 || measured_is_number(row.bytes)) ||
        !measured_is_time(row.us * 1e3) || !dh_parse_f64(w->at[algbw], &row.algbw) ||
        (busbw > time && !dh_parse_f64(w->at[busbw], &row.busbw)))
        return dh_fail(f->ctx, DH_EFORMAT,
                       "%s:%d: a row as the heading has it is wanted: a size in bytes first, and a "
                       "time in us above 0, algbw and busbw in its %d last words",
                       f->path, r->line, r->heading.n - find_word(&r->heading, "time"));
    row.algbw_unit = unit_of(w->at[algbw]);
    if (busbw > time) row.busbw_unit = unit_of(w->at[busbw]);
    r->has_rows = r->is_over = true;
    if (row.bytes == 0) return DH_OK; /* fewer bytes than ranks */
    DH_TRY(check_right(r, w, shift));
    settle_test(r);
    return nccl_add(&r->output, &row);
}

/* Begins with a size and a count, or is cut within them. */
static bool is_row(const words *w)
{
    double number;
    if (w->n == 0 || !is_digit(w->at[0][0]) || !dh_parse_f64(w->at[0], &number)) return false;
    return w->n == 1 || dh_parse_f64(w->at[1], &number);
}

/* For lines before any heading: a size, a count, a type and three figures. */
static bool is_whole_row(const words *w)
{
    double number;
    const char *last = w->at[w->n - 1];
    return w->n >= 6 && (strcmp(last, "N/A") == 0 || dh_parse_f64(last, &number));
}

/* "...", in brackets or not: people write it for lines that they left out. */
static bool is_dots(const char *word)
{
    static const char ellipsis[] = "\xE2\x80\xA6";
    word += strspn(word, "[(<#");
    size_t n = strspn(word, ".");
    if (n < 2) n = strncmp(word, ellipsis, sizeof ellipsis - 1) == 0 ? sizeof ellipsis - 1 : 0;
    return n > 0 && word[n + strspn(word + n, "])>")] == '\0';
}

/* ---- lines ---------------------------------------------------------------------------------- */

static dh_status read_words(reader *r, words *w, bool is_comment)
{
    int64_t number;
    if (w->n == 0) return DH_OK;
    if (is_heading(w)) return begin_table(r, w);
    if (r->heading.n == 0 && r->output.ranks.n > 0 && is_dots(w->at[0])) r->output.cut = r->line;
    if (strcmp(w->at[0], "nThread") == 0)
        begin_run(r, w);
    else if (strcmp(w->at[0], "Rank") == 0 && w->n > 1 && dh_parse_i64(w->at[1], &number))
        return read_rank(r, w);
    else if (!is_comment && is_row(w) && (r->heading.n > 0 || is_whole_row(w)))
        return read_row(r, w);
    return DH_OK;
}

static const char *without_prefixes(const char *line)
{
    for (size_t skip; (skip = prefix_of(line, strlen(line))) > 0;) line += skip;
    return line;
}

/* Without the prefixes that are known; not of a row. */
static void strip_known(const char **line, size_t *n_bytes)
{
    words w;
    size_t skip;
    split(*line, *n_bytes, &w);
    while (!is_row(&w) && !(w.n > 0 && is_dots(w.at[0])) &&
           (skip = prefix_of(*line, *n_bytes)) > 0) {
        *line += skip;
        *n_bytes -= skip;
        split(*line, *n_bytes, &w);
    }
}

static bool is_known_comment(const words *w)
{
    return is_heading(w) ||
           (w->n > 0 && (strcmp(w->at[0], "Rank") == 0 || strcmp(w->at[0], "nThread") == 0));
}

/* A comment after words of any logger: "2026-07-10 10:00:00 - INFO - #  Rank  0 ...". These words
 * are counted at the heading, and a row has as many. */
static bool find_comment(reader *r, const char *text, const char **line, size_t *n_bytes)
{
    enum { MOST_SIGNS = 4 }; /* a logger's own before that of the comment */
    words before, w = {.n = 0};
    const char *end = *line + *n_bytes, *at = memchr(*line, '#', *n_bytes);
    const bool begins = at == *line;
    for (int i = 0; at && i < MOST_SIGNS; i++) {
        split(at + 1, (size_t)(end - at) - 1, &w);
        if (is_known_comment(&w)) break;
        at = memchr(at + 1, '#', (size_t)(end - at) - 1);
    }
    if (!at || !is_known_comment(&w)) return begins && r->n_before == 0;
    const bool known = strspn(*line, "#") >= (size_t)(at - *line); /* prefixes that rows lose too */
    split(text, (size_t)(at - text), &before);
    if (is_heading(&w)) r->n_before = known ? 0 : before.n;
    *line = at;
    *n_bytes = (size_t)(end - at);
    return true;
}

static void drop_words(words *w, int n)
{
    if (n <= 0 || n >= w->n) return;
    for (int i = n; i < w->n; i++) memcpy(w->at[i - n], w->at[i], MAX_WORD);
    w->n -= n;
}

static dh_status read_line(reader *r, const char *line, size_t n_bytes)
{
    char text[1024];
    words w;
    n_bytes = DH_MIN(n_bytes, sizeof text - 1);
    memcpy(text, line, n_bytes);
    n_bytes = nccl_plain(text, n_bytes);
    text[n_bytes] = '\0';
    read_name(r, without_prefixes(text));
    line = text;
    strip_known(&line, &n_bytes);
    const bool is_comment = find_comment(r, text, &line, &n_bytes);
    while (n_bytes > 0 && *line == '#') {
        line++;
        n_bytes--;
    }
    if (!is_comment && r->n_before > 0) { /* from its beginning: a prefix may look like a row */
        split(text, strlen(text), &w);
        drop_words(&w, r->n_before);
    } else {
        split(line, n_bytes, &w);
    }
    return read_words(r, &w, is_comment);
}

dh_status measured_read_nccl(const measured_file *file)
{
    reader r = {.output = {.file = file, .test = NCCL_UNNAMED},
                .path_test = test_of_path(file->path)};
    dh_str text = DH_STR_INIT;
    dh_status st = nccl_unwrap(file, &text);
    const char *at = text.len ? text.text : file->text;
    const char *end = text.len ? text.text + text.len : file->text + file->n_bytes;
    while (st == DH_OK && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        r.line++;
        st = read_line(&r, at, (size_t)(stop - at));
        at = stop + 1;
    }
    nccl_fini(&r.output);
    dh_str_fini(&text);
    return st;
}
