/* Metrics files. */
#include "train/metrics.h"
#include "base/json_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_METRICS_BYTES = 1 << 30 };

/* Length of the part of the text whose lines belong to steps up to last_step. A line
 * that does not parse was cut by a crash: it and what follows go. */
static size_t kept_length(const char *text, size_t n_bytes, int64_t last_step)
{
    size_t at = 0;
    while (at < n_bytes) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        if (!end) break;
        json_t *line = json_loadb(text + at, (size_t)(end - (text + at)), 0, NULL);
        json_t *step = line ? json_object_get(line, "step") : NULL;
        bool keep = step && json_integer_value(step) <= last_step;
        json_decref(line);
        if (!keep) break;
        at = (size_t)(end - text) + 1;
    }
    return at;
}

static dh_status prune(dh_ctx *ctx, const char *path, int64_t last_step)
{
    char *text;
    size_t n_bytes;
    if (!dh_path_exists(path)) return DH_OK;
    DH_TRY(dh_file_read(ctx, path, MAX_METRICS_BYTES, &text, &n_bytes));
    size_t keep = kept_length(text, n_bytes, last_step);
    dh_status st = keep < n_bytes ? dh_file_write_atomic(ctx, path, text, keep) : DH_OK;
    free(text);
    return st;
}

dh_status dh_metrics_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_metrics *m)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/metrics.jsonl", dir);
    if (path.failed) return dh_fail(ctx, DH_ENOMEM, "out of memory opening metrics");
    *m = (dh_metrics){.path = path.text};
    dh_status st = prune(ctx, path.text, last_step);
    if (st == DH_OK && !(m->file = fopen(path.text, "a")))
        st = dh_fail(ctx, DH_EIO, "cannot open %s: %s", path.text, strerror(errno));
    if (st != DH_OK) dh_metrics_close(m);
    return st;
}

dh_status dh_metrics_write(dh_ctx *ctx, dh_metrics *m, json_t *object)
{
    char *text = dh_json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) return dh_fail(ctx, DH_ENOMEM, "out of memory writing metrics");
    bool ok = fprintf(m->file, "%s\n", text) > 0 && fflush(m->file) == 0;
    free(text);
    return ok ? DH_OK : dh_fail(ctx, DH_EIO, "cannot write %s: %s", m->path, strerror(errno));
}

void dh_metrics_close(dh_metrics *m)
{
    if (m->file) fclose(m->file);
    free(m->path);
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
