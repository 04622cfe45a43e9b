/* Metrics files. */
#include "train/metrics.h"
#include "base/json_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_METRICS_BYTES = 1 << 30, MAX_NAMED = 10 };

/* ---- lines ---------------------------------------------------------------------------------- */

/* Not readable: no object with a step, such as a line that was cut, or in which a byte was changed.
 */
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

static void add_unreadable(dh_metrics_lines *lines, const char *line, size_t n_bytes)
{
    append_line(&lines->unreadable, line, n_bytes);
    if (lines->n_unreadable++ < MAX_NAMED)
        dh_str_printf(&lines->numbers, "%s%zu", lines->numbers.len ? ", " : "", lines->n);
    else if (lines->n_unreadable == MAX_NAMED + 1)
        dh_str_printf(&lines->numbers, ", ...");
}

dh_status dh_metrics_part(dh_ctx *ctx, const char *text, size_t n_bytes, int64_t last_step,
                          dh_metrics_lines *lines)
{
    for (size_t at = 0; at < n_bytes;) {
        int64_t step;
        bool readable;
        const char *line = text + at, *end = memchr(line, '\n', n_bytes - at);
        const size_t length = end ? (size_t)(end - line) : n_bytes - at;
        lines->n++;
        DH_TRY(read_step(ctx, line, length, &readable, &step));
        if (!readable)
            add_unreadable(lines, line, length);
        else if (step <= last_step)
            append_line(&lines->kept, line, length);
        at += length + 1;
    }
    if (lines->kept.failed || lines->unreadable.failed || lines->numbers.failed)
        return dh_fail(ctx, DH_ENOMEM, "out of memory reading metrics");
    return DH_OK;
}

void dh_metrics_lines_fini(dh_metrics_lines *lines)
{
    dh_str_fini(&lines->kept);
    dh_str_fini(&lines->unreadable);
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

dh_status dh_metrics_find(dh_ctx *ctx, const char *dir, int64_t step, const char *key, bool *found)
{
    char *text;
    size_t n_bytes;
    dh_str path = DH_STR_INIT;
    *found = false;
    dh_str_printf(&path, "%s/metrics.jsonl", dir);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory reading metrics")
                               : dh_file_read(ctx, path.text, MAX_METRICS_BYTES, &text, &n_bytes);
    dh_str_fini(&path);
    DH_TRY(st);
    st = find_line(ctx, text, n_bytes, step, key, found);
    free(text);
    return st;
}

/* ---- opening -------------------------------------------------------------------------------- */

static dh_status open_to_append(dh_ctx *ctx, const char *path, int *fd)
{
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644);
    if (*fd >= 0) return DH_OK;
    return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
}

static dh_status sync_file(dh_ctx *ctx, int fd, const char *path)
{
    if (fsync(fd) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot sync %s: %s", path, strerror(errno));
}

static dh_status append(dh_ctx *ctx, const char *path, const dh_str *text)
{
    int fd;
    DH_TRY(open_to_append(ctx, path, &fd));
    dh_status st = dh_fd_write_all(ctx, fd, path, text->text, text->len);
    if (st == DH_OK) st = sync_file(ctx, fd, path);
    close(fd);
    return st;
}

static dh_status keep_unreadable(dh_ctx *ctx, const char *dir, const char *path,
                                 const dh_metrics_lines *lines)
{
    dh_str aside = DH_STR_INIT;
    dh_str_printf(&aside, "%s/metrics.unreadable", dir);
    dh_status st = aside.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory reading metrics")
                                : append(ctx, aside.text, &lines->unreadable);
    if (st == DH_OK)
        dh_log(DH_LOG_WARN, "%s: %zu of %zu lines cannot be read (%s); they are kept in %s", path,
               lines->n_unreadable, lines->n, lines->numbers.text, aside.text);
    dh_str_fini(&aside);
    return st;
}

/* Lines that cannot be read are in their new place before they leave the old one. */
static dh_status prune(dh_ctx *ctx, const char *dir, const char *path, int64_t last_step)
{
    char *text;
    size_t n_bytes;
    dh_metrics_lines lines = {0};
    if (!dh_path_exists(path)) return DH_OK;
    DH_TRY(dh_file_read(ctx, path, MAX_METRICS_BYTES, &text, &n_bytes));
    dh_status st = dh_metrics_part(ctx, text, n_bytes, last_step, &lines);
    if (st == DH_OK && lines.n_unreadable > 0) st = keep_unreadable(ctx, dir, path, &lines);
    const bool same =
        lines.kept.len == n_bytes && (n_bytes == 0 || memcmp(lines.kept.text, text, n_bytes) == 0);
    if (st == DH_OK && !same) st = dh_file_write_atomic(ctx, path, lines.kept.text, lines.kept.len);
    dh_metrics_lines_fini(&lines);
    free(text);
    return st;
}

dh_status dh_metrics_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_metrics *m)
{
    int fd = -1;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/metrics.jsonl", dir);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory opening metrics")
                               : prune(ctx, dir, path.text, last_step);
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
    if (!whole) return dh_fail(ctx, DH_ENOMEM, "out of memory writing metrics");
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
    if (!text) return dh_fail(ctx, DH_ENOMEM, "out of memory writing %s", path);
    dh_status st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}
