/* The text that nccl-tests print: comments say which test ran on which ranks, rows have a size and
 * a time. Several outputs may follow each other in one file.
 *
 *   # Rank  0 Group  0 Pid  4242 on  node1 device  0 [0x1b] NVIDIA H100 80GB HBM3
 *   #       size         count      type   redop    root     time   algbw   busbw #wrong ...
 *   #        (B)    (elements)                               (us)  (GB/s)  (GB/s)
 *       33554432       8388608     float     sum      -1    230.9  145.35  254.36      0 ...
 *
 * Sizes are of the whole vector, as cluster.h counts them, in every test. The first time of a row
 * is that out of place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/measured.h"

enum { MAX_WORDS = 24, MAX_WORD = 64 };

static const struct {
    const char *name, *other; /* of the program, with _perf behind it; elsewhere */
    dh_op_type type;
} tests[] = {
    {"all_reduce", "allreduce", DH_OP_ALL_REDUCE},
    {"all_gather", "allgather", DH_OP_ALL_GATHER},
    {"reduce_scatter", "reducescatter", DH_OP_REDUCE_SCATTER},
    {"alltoall", "all_to_all", DH_OP_ALL_TO_ALL},
    {"sendrecv", "send_recv", DH_OP_RING_EXCHANGE},
};

typedef DH_VEC(const char *) host_list;

typedef struct reader {
    const measured_file *file;
    int32_t line;
    int test;                 /* of `tests`; -1: not said */
    int64_t all_ranks, ranks; /* those of group 0, which is timed beside the others */
    host_list all_hosts, hosts;
    bool told;                      /* why rows are left out */
    int size_at, time_at, wrong_at; /* words of a row; size_at -1: no heading yet */
} reader;

typedef struct words {
    char at[MAX_WORDS][MAX_WORD];
    int n;
} words;

static void split(const char *line, size_t n_bytes, words *w)
{
    w->n = 0;
    for (size_t i = 0; i < n_bytes && w->n < MAX_WORDS;) {
        while (i < n_bytes && strchr(" \t\r", line[i])) i++;
        const size_t from = i;
        while (i < n_bytes && !strchr(" \t\r", line[i])) i++;
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

/* ---- which test ----------------------------------------------------------------------------- */

/* The test that a text names; -1: none. */
static int test_of(const char *text, const char *behind)
{
    char name[64];
    for (size_t i = 0; i < DH_COUNTOF(tests); i++) {
        snprintf(name, sizeof name, "%s%s", tests[i].name, behind);
        if (strstr(text, name)) return (int)i;
        snprintf(name, sizeof name, "%s%s", tests[i].other, behind);
        if (strstr(text, name)) return (int)i;
    }
    return -1;
}

static int test_of_path(const char *path)
{
    const char *slash = strrchr(path, '/');
    return test_of(slash ? slash + 1 : path, "");
}

static dh_status unknown_test(const reader *r)
{
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: which collective was measured is not said: name the file after its "
                   "test, as all_reduce_8gpus.txt (all_reduce, all_gather, reduce_scatter, "
                   "alltoall, sendrecv), or keep the line of the command, ./all_reduce_perf ...",
                   r->file->path, r->line);
}

/* ---- comments ------------------------------------------------------------------------------- */

static dh_status add_host(const reader *r, const char *host, host_list *hosts)
{
    for (size_t i = 0; i < hosts->n; i++)
        if (strcmp(hosts->at[i], host) == 0) return DH_OK;
    const char *copy = dh_arena_strdup(r->file->m->arena, host);
    return copy && dh_vec_push(hosts, copy) ? DH_OK : measured_no_memory(r->file);
}

/* "Rank 0 Group 0 Pid 1 on HOST device ..."; older ones have no group. */
static dh_status read_rank(reader *r, const words *w)
{
    const int on = find_word(w, "on"), group = find_word(w, "Group");
    if (on < 0 || on + 1 >= w->n)
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: \"# Rank N Pid P on HOST device D\" is wanted", r->file->path,
                       r->line);
    r->all_ranks++;
    DH_TRY(add_host(r, w->at[on + 1], &r->all_hosts));
    if (group >= 0 && group + 1 < w->n && strcmp(w->at[group + 1], "0") != 0) return DH_OK;
    r->ranks++;
    return add_host(r, w->at[on + 1], &r->hosts);
}

static void begin_output(reader *r)
{
    r->all_ranks = r->ranks = 0;
    r->all_hosts.n = r->hosts.n = 0;
    r->size_at = -1;
    r->told = false;
}

static bool read_heading(reader *r, const words *w)
{
    const int size = find_word(w, "size"), time = find_word(w, "time");
    if (size < 0 || time < 0 || find_word(w, "algbw") < 0) return false;
    r->size_at = size;
    r->time_at = time;
    r->wrong_at = find_word(w, "#wrong");
    if (r->wrong_at < 0) r->wrong_at = find_word(w, "error");
    return true;
}

static dh_status read_comment(reader *r, const char *line, size_t n_bytes)
{
    words w;
    split(line, n_bytes, &w);
    if (w.n == 0 || read_heading(r, &w)) return DH_OK;
    if (strcmp(w.at[0], "nThread") == 0) begin_output(r);
    if (strcmp(w.at[0], "Rank") == 0) return read_rank(r, &w);
    return DH_OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static dh_status check_ranks(const reader *r)
{
    const int64_t nodes = (int64_t)r->hosts.n;
    if (r->ranks < 2)
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: %lld ranks before this row; lines \"# Rank N Pid P on HOST device "
                       "D\" of two or more are wanted, as the test prints them at its start",
                       r->file->path, r->line, (long long)r->ranks);
    if (r->ranks % nodes == 0) return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: %lld ranks lie unevenly on %lld nodes; as many on each are wanted",
                   r->file->path, r->line, (long long)r->ranks, (long long)nodes);
}

static dh_status check_right(const reader *r, const words *w)
{
    double wrong;
    if (r->wrong_at < 0 || r->wrong_at >= w->n || !dh_parse_f64(w->at[r->wrong_at], &wrong) ||
        wrong == 0)
        return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: %s wrong values in the result: a measurement of a sound machine is "
                   "wanted",
                   r->file->path, r->line, w->at[r->wrong_at]);
}

/* Between nodes a row tells what all devices of a node get at once, or nothing that the model has.
 */
static const char *why_not(const reader *r)
{
    const int64_t per_node = r->all_ranks / (int64_t)r->all_hosts.n;
    if (r->hosts.n == 1) return NULL;
    if (per_node < r->file->m->node_devices)
        return "a node has more devices than took part, which share its network: measure with all "
               "of them (or say --devices N)";
    if (tests[r->test].type == DH_OP_RING_EXCHANGE && r->ranks > (int64_t)r->hosts.n)
        return "the ring of sendrecv_perf leaves a node from one device alone: measure pairs of "
               "nodes, NCCL_TESTS_SPLIT=\"MOD DEVICES_OF_A_NODE\"";
    return NULL;
}

static dh_status add_row(reader *r, double bytes, double us)
{
    const char *why = why_not(r);
    if (!why)
        return measured_add_collective(r->file, r->line, tests[r->test].type, r->ranks,
                                       (int64_t)r->hosts.n, bytes, us * 1e3);
    if (r->told) return DH_OK;
    r->told = true;
    return measured_note(r->file, "rows from line %d on are left out: %s", r->line, why);
}

static dh_status read_row(reader *r, const words *w)
{
    double bytes, us;
    if (r->size_at < 0)
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: a row before its heading \"# size count type ... time algbw\"",
                       r->file->path, r->line);
    if (w->n <= r->time_at || !dh_parse_f64(w->at[r->size_at], &bytes) ||
        !dh_parse_f64(w->at[r->time_at], &us) || !(bytes == 0 || measured_is_number(bytes)) ||
        !measured_is_number(us * 1e3))
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: a size in bytes as word %d and a time in us above 0 as word %d are "
                       "wanted",
                       r->file->path, r->line, r->size_at + 1, r->time_at + 1);
    if (bytes == 0) return DH_OK; /* fewer bytes than ranks */
    if (r->test < 0) return unknown_test(r);
    DH_TRY(check_ranks(r));
    DH_TRY(check_right(r, w));
    return add_row(r, bytes, us);
}

/* Rows begin with a number; what else stands in the file are the words of launchers. */
static dh_status read_line(reader *r, const char *line, size_t n_bytes)
{
    char text[512];
    words w;
    double number;
    snprintf(text, sizeof text, "%.*s", (int)DH_MIN(n_bytes, sizeof text - 1), line);
    const int named = test_of(text, "_perf");
    if (named >= 0) r->test = named;
    const size_t blank = strspn(text, " \t");
    if (text[blank] == '#') return read_comment(r, line + blank + 1, n_bytes - blank - 1);
    split(line, n_bytes, &w);
    return w.n > 0 && dh_parse_f64(w.at[0], &number) ? read_row(r, &w) : DH_OK;
}

dh_status measured_read_nccl(const measured_file *file)
{
    reader r = {.file = file, .test = test_of_path(file->path), .size_at = -1};
    dh_status st = DH_OK;
    const char *end = file->text + file->n_bytes;
    for (const char *at = file->text; st == DH_OK && at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        r.line++;
        st = read_line(&r, at, (size_t)(stop - at));
        at = stop + 1;
    }
    dh_vec_fini(&r.all_hosts);
    dh_vec_fini(&r.hosts);
    return st;
}
