/* Lines of a file through one buffer. */
#include "base/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static dh_status open_regular(dh_ctx *ctx, const char *path, int *fd)
{
    struct stat info;
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would wait for its writer */
    if (*fd < 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return DH_OK;
    close(*fd);
    return dh_fail(ctx, DH_EINVAL, "%s is not a regular file", path);
}

dh_status dh_lines_open(dh_ctx *ctx, const char *path, dh_lines *lines)
{
    int fd;
    DH_TRY(open_regular(ctx, path, &fd));
    *lines = (dh_lines){.fd = fd, .path = path, .buffer = malloc(DH_LINE_MAX_BYTES)};
    if (lines->buffer) return DH_OK;
    dh_lines_close(lines);
    return dh_no_memory_while(ctx, "reading %s", path);
}

/* More behind what is there, which moves to the front. */
static dh_status fill(dh_ctx *ctx, dh_lines *l)
{
    l->n -= l->at;
    memmove(l->buffer, l->buffer + l->at, l->n);
    l->at = 0;
    while (!l->ended && l->n < DH_LINE_MAX_BYTES) {
        const ssize_t n = read(l->fd, l->buffer + l->n, DH_LINE_MAX_BYTES - l->n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return dh_fail(ctx, DH_EIO, "cannot read %s: %s", l->path, strerror(errno));
        l->ended = n == 0;
        l->n += (size_t)n;
    }
    return DH_OK;
}

static const char *find_end(const dh_lines *l)
{
    return l->n > l->at ? memchr(l->buffer + l->at, '\n', l->n - l->at) : NULL;
}

dh_status dh_lines_next(dh_ctx *ctx, dh_lines *l, dh_line *line)
{
    const char *end = find_end(l);
    if (!end && !l->ended) {
        DH_TRY(fill(ctx, l));
        end = find_end(l);
    }
    const char *at = l->buffer + l->at;
    *line = (dh_line){.at = l->n > l->at ? at : NULL, .whole = end};
    if (!line->at) return DH_OK;
    line->n = end ? (size_t)(end - at) : l->n - l->at;
    const size_t taken = line->n + (end ? 1 : 0);
    l->at += taken;
    l->offset += (int64_t)taken;
    line->last = l->ended && l->at == l->n;
    return DH_OK;
}

void dh_lines_close(dh_lines *lines)
{
    close(lines->fd);
    free(lines->buffer);
}
