/* Metrics files. */
#include "train/metrics.h"
#include "base/json_text.h"
#include "base/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_NAMED = 10,
    TAIL_BYTES = 16 << 20, /* in which the lines of a run's last step are looked for */
    PART_BYTES = 1 << 20   /* written at once */
};

/* ---- lines ---------------------------------------------------------------------------------- */

/* Not readable: no object with a step, such as a line that was cut, or in which a byte was
 * changed. */
static dh_status read_step(dh_ctx *ctx, const char *line, size_t n_bytes, bool *readable,
                           int64_t *step)
{
    json_t *object;
    DH_TRY(dh_json_read(ctx, line, n_bytes, 0, NULL, &object));
    const json_t *value = object ? json_object_get(object, "step") : NULL;
    *readable = json_is_integer(value);
    *step = json_integer_value(value);
    json_decref(object);
    return DH_OK;
}

static void append_line(dh_str *to, const char *line, size_t n_bytes)
{
    dh_str_append(to, line, n_bytes);
    dh_str_append(to, "\n", 1);
}

static void number_unreadable(dh_metrics_lines *lines)
{
    if (lines->n_unreadable++ < MAX_NAMED)
        dh_str_printf(&lines->numbers, "%s%zu", lines->numbers.len ? ", " : "", lines->n);
    else if (lines->n_unreadable == MAX_NAMED + 1)
        dh_str_printf(&lines->numbers, ", ...");
}

/* Receiver of lines that are read: keep gets those up to the last step, leave gets invalid ones. */
typedef struct taker {
    int64_t last_step;
    dh_status (*keep)(dh_ctx *ctx, struct taker *t, const dh_lines *from, const dh_line *line);
    dh_status (*leave)(dh_ctx *ctx, struct taker *t, const dh_line *line);
} taker;

static dh_status take(dh_ctx *ctx, const dh_lines *from, const dh_line *line,
                      dh_metrics_lines *lines, taker *t)
{
    int64_t step;
    bool readable;
    lines->n++;
    DH_TRY(read_step(ctx, line->at, line->n, &readable, &step));
    if (!readable) {
        number_unreadable(lines);
        return t->leave ? t->leave(ctx, t, line) : DH_OK;
    }
    return step <= t->last_step && t->keep ? t->keep(ctx, t, from, line) : DH_OK;
}

static dh_status take_all(dh_ctx *ctx, const char *path, dh_metrics_lines *lines, taker *t)
{
    dh_lines from;
    dh_line line;
    DH_TRY(dh_lines_open(ctx, path, &from));
    dh_status st = dh_lines_next(ctx, &from, &line);
    while (st == DH_OK && line.at) {
        st = take(ctx, &from, &line, lines, t);
        if (st == DH_OK) st = dh_lines_next(ctx, &from, &line);
    }
    dh_lines_close(&from);
    if (st == DH_OK && lines->numbers.failed) st = dh_no_memory(ctx);
    return st;
}

dh_status dh_metrics_count(dh_ctx *ctx, const char *path, dh_metrics_lines *lines)
{
    taker t = {.last_step = INT64_MAX};
    return take_all(ctx, path, lines, &t);
}

void dh_metrics_lines_fini(dh_metrics_lines *lines)
{
    dh_str_fini(&lines->numbers);
}

/* ---- looking for one ------------------------------------------------------------------------ */

static dh_status is_line(dh_ctx *ctx, const char *line, size_t n_bytes, int64_t step,
                         const char *key, bool *is)
{
    json_t *object;
    DH_TRY(dh_json_read(ctx, line, n_bytes, 0, NULL, &object));
    const json_t *of = object ? json_object_get(object, "step") : NULL;
    *is = json_is_integer(of) && json_integer_value(of) == step && json_object_get(object, key);
    json_decref(object);
    return DH_OK;
}

/* From the end, where late steps are. */
static dh_status find_line(dh_ctx *ctx, const char *text, size_t n_bytes, int64_t step,
                           const char *key, bool *found)
{
    *found = false;
    for (size_t end = n_bytes; end > 0 && !*found;) {
        const char *before = memrchr(text, '\n', end - 1);
        const size_t begin = before ? (size_t)(before - text) + 1 : 0;
        DH_TRY(is_line(ctx, text + begin, end - begin, step, key, found));
        end = begin;
    }
    return DH_OK;
}

/* The last bytes of a file; caller frees. */
static dh_status read_tail(dh_ctx *ctx, const char *path, char **text, size_t *n_bytes)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
    dh_status st = DH_OK;
    ssize_t n = -1;
    char *tail = malloc(TAIL_BYTES);
    if (!tail)
        st = dh_no_memory_while(ctx, "reading %s", path);
    else if (fstat(fd, &info) != 0 ||
             (n = pread(fd, tail, TAIL_BYTES, DH_MAX(info.st_size - TAIL_BYTES, 0))) < 0)
        st = dh_fail(ctx, DH_EIO, "cannot read %s: %s", path, strerror(errno));
    close(fd);
    if (st == DH_OK) {
        *text = tail;
        *n_bytes = (size_t)n;
    } else {
        free(tail);
    }
    return st;
}

dh_status dh_metrics_find(dh_ctx *ctx, const char *dir, int64_t step, const char *key, bool *found)
{
    char *text = NULL;
    size_t n_bytes = 0;
    dh_str path = DH_STR_INIT;
    *found = false;
    dh_str_printf(&path, "%s/metrics.jsonl", dir);
    dh_status st = path.failed ? dh_no_memory(ctx) : read_tail(ctx, path.text, &text, &n_bytes);
    dh_str_fini(&path);
    DH_TRY(st);
    st = find_line(ctx, text, n_bytes, step, key, found);
    free(text);
    return st;
}

/* ---- opening -------------------------------------------------------------------------------- */

static dh_status open_to_append(dh_ctx *ctx, const char *path, int *fd)
{
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (*fd >= 0) return DH_OK;
    return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
}

static dh_status sync_file(dh_ctx *ctx, int fd, const char *path)
{
    if (fsync(fd) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot sync %s: %s", path, strerror(errno));
}

/* A file that is read through before a run goes on. */
typedef struct pruning {
    taker take;
    const char *path, *aside; /* metrics.jsonl, metrics.unreadable */
    int64_t kept;             /* bytes at its begin in which every line is kept */
    bool scattered;           /* lines after them are kept too, or one lacks its end */
    int aside_fd;             /* -1: nothing is to be kept aside */
    int out_fd;               /* the file in its place */
    dh_str out;               /* text that is not written yet */
} pruning;

static dh_status measure(dh_ctx *ctx, taker *t, const dh_lines *from, const dh_line *line)
{
    pruning *p = (pruning *)t;
    const int64_t begin = from->offset - (int64_t)line->n - 1;
    if (line->whole && begin == p->kept)
        p->kept = from->offset;
    else
        p->scattered = true;
    return DH_OK;
}

static dh_status keep_aside(dh_ctx *ctx, taker *t, const dh_line *line)
{
    pruning *p = (pruning *)t;
    if (p->aside_fd < 0) DH_TRY(open_to_append(ctx, p->aside, &p->aside_fd));
    DH_TRY(dh_fd_write_all(ctx, p->aside_fd, p->aside, line->at, line->n));
    return dh_fd_write_all(ctx, p->aside_fd, p->aside, "\n", 1);
}

static dh_status flush(dh_ctx *ctx, pruning *p)
{
    if (p->out.failed) return dh_no_memory_while(ctx, "writing %s", p->path);
    if (p->out.len) DH_TRY(dh_fd_write_all(ctx, p->out_fd, p->path, p->out.text, p->out.len));
    dh_str_clear(&p->out);
    return DH_OK;
}

static dh_status copy(dh_ctx *ctx, taker *t, const dh_lines *from, const dh_line *line)
{
    pruning *p = (pruning *)t;
    (void)from;
    append_line(&p->out, line->at, line->n);
    return p->out.failed || p->out.len >= PART_BYTES ? flush(ctx, p) : DH_OK;
}

static dh_status write_kept(dh_ctx *ctx, pruning *p)
{
    dh_temporary t;
    dh_metrics_lines lines = {0};
    DH_TRY(dh_temporary_file(ctx, p->path, &t));
    p->take = (taker){.last_step = p->take.last_step, .keep = copy};
    p->out_fd = t.fd;
    dh_status st = take_all(ctx, p->path, &lines, &p->take);
    if (st == DH_OK) st = flush(ctx, p);
    if (st == DH_OK) st = dh_temporary_commit(ctx, &t, p->path);
    if (st != DH_OK) dh_temporary_drop(&t);
    dh_metrics_lines_fini(&lines);
    dh_str_fini(&p->out);
    return st;
}

/* Cut the file after the kept lines. */
static dh_status cut(dh_ctx *ctx, const pruning *p)
{
    struct stat info;
    const int fd = open(p->path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", p->path,
                       strerror(errno));
    dh_status st = DH_OK;
    if (fstat(fd, &info) != 0 || (info.st_size > p->kept && ftruncate(fd, p->kept) != 0))
        st = dh_fail(ctx, DH_EIO, "cannot shorten %s: %s", p->path, strerror(errno));
    close(fd);
    return st;
}

/* Lines that cannot be read are in their new place before they leave the old one. */
static dh_status prune_to(dh_ctx *ctx, pruning *p, dh_metrics_lines *lines)
{
    dh_status st = take_all(ctx, p->path, lines, &p->take);
    if (p->aside_fd >= 0) {
        if (st == DH_OK) st = sync_file(ctx, p->aside_fd, p->aside);
        close(p->aside_fd);
    }
    DH_TRY(st);
    if (lines->n_unreadable > 0)
        dh_log(DH_LOG_WARN, "%s: %zu of %zu lines cannot be read (%s); they are kept in %s",
               p->path, lines->n_unreadable, lines->n, lines->numbers.text, p->aside);
    return p->scattered ? write_kept(ctx, p) : cut(ctx, p);
}

static dh_status prune(dh_ctx *ctx, const char *dir, const char *path, int64_t last_step)
{
    dh_metrics_lines lines = {0};
    dh_str aside = DH_STR_INIT;
    dh_str_printf(&aside, "%s/metrics.unreadable", dir);
    pruning p = {.take = {last_step, measure, keep_aside},
                 .path = path,
                 .aside = aside.text,
                 .aside_fd = -1,
                 .out = DH_STR_INIT};
    dh_status st = aside.failed ? dh_no_memory(ctx) : prune_to(ctx, &p, &lines);
    dh_metrics_lines_fini(&lines);
    dh_str_fini(&aside);
    return st;
}

/* To the first free name metrics.N.jsonl. */
static dh_status move_aside(dh_ctx *ctx, const char *dir, const char *path)
{
    struct stat info;
    dh_str to = DH_STR_INIT;
    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return DH_OK;
    for (int i = 1; to.len == 0 || dh_path_exists(to.text); i++) {
        dh_str_clear(&to);
        dh_str_printf(&to, "%s/metrics.%d.jsonl", dir, i);
        if (to.failed) return dh_no_memory(ctx);
    }
    dh_status st = DH_OK;
    if (rename(path, to.text) != 0)
        st = dh_fail(ctx, DH_EIO, "cannot rename %s to %s: %s", path, to.text, strerror(errno));
    else
        dh_log(DH_LOG_INFO, "the run begins anew, without a checkpoint; what was measured is in %s",
               to.text);
    dh_str_fini(&to);
    return st;
}

/* Whatever an earlier start of the run wrote. */
static dh_status make_ready(dh_ctx *ctx, const char *dir, const char *path, int64_t last_step)
{
    if (last_step == 0) return move_aside(ctx, dir, path);
    if (dh_path_exists(path)) return prune(ctx, dir, path, last_step);
    dh_log(DH_LOG_WARN, "%s is not there: what was measured up to step %lld is lost", path,
           (long long)last_step);
    return DH_OK;
}

dh_status dh_metrics_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_metrics *m)
{
    int fd = -1;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/metrics.jsonl", dir);
    dh_status st = path.failed ? dh_no_memory(ctx) : make_ready(ctx, dir, path.text, last_step);
    if (st == DH_OK) st = open_to_append(ctx, path.text, &fd);
    if (st == DH_OK) st = dh_dir_sync(ctx, dir);
    if (st == DH_OK) {
        *m = (dh_metrics){.fd = fd, .path = path.text};
        return DH_OK;
    }
    if (fd >= 0) close(fd);
    dh_str_fini(&path);
    return st;
}

/* ---- writing -------------------------------------------------------------------------------- */

dh_status dh_metrics_write(dh_ctx *ctx, dh_metrics *m, json_t *object)
{
    const dh_status told =
        m->events.path && object ? dh_tensorboard_write(ctx, &m->events, object) : DH_OK;
    char *text = dh_json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    dh_str_clear(&m->line);
    if (text) append_line(&m->line, text, strlen(text));
    const bool whole = text && !m->line.failed;
    free(text);
    if (!whole) return dh_no_memory(ctx);
    DH_TRY(dh_fd_write_all(ctx, m->fd, m->path, m->line.text, m->line.len));
    return told;
}

dh_status dh_metrics_sync(dh_ctx *ctx, const dh_metrics *m)
{
    return sync_file(ctx, m->fd, m->path);
}

void dh_metrics_close(dh_metrics *m)
{
    if (m->path) close(m->fd);
    free(m->path);
    dh_tensorboard_close(&m->events);
    dh_str_fini(&m->line);
    *m = (dh_metrics){0};
}

dh_status dh_json_write(dh_ctx *ctx, const char *path, json_t *object)
{
    char *text = dh_json_text(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (!text) return dh_no_memory_while(ctx, "writing %s", path);
    dh_status st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}
