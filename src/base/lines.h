/* Lines of a file, one after the other, in memory that does not depend on its length. */
#ifndef DH_BASE_LINES_H
#define DH_BASE_LINES_H

#include "base/base.h"

enum { DH_LINE_MAX_BYTES = 1 << 20 };

typedef struct dh_lines {
    int fd;
    const char *path; /* borrowed */
    char *buffer;
    size_t at, n;   /* bytes of the buffer: handed out, present */
    int64_t offset; /* in the file, of what follows the line handed out */
    bool ended;     /* the file has nothing after the buffer */
} dh_lines;

/* A line without its end. One longer than DH_LINE_MAX_BYTES comes in pieces. */
typedef struct dh_line {
    const char *at; /* NULL: there are no more */
    size_t n;
    bool whole; /* its end is there */
    bool last;  /* nothing follows */
} dh_line;

/* errors    DH_EINVAL not a regular file; DH_EMISSING, DH_EPERM, DH_EIO, DH_ENOMEM */
dh_status dh_lines_open(dh_ctx *ctx, const char *path, dh_lines *lines);
/* Holds until the next call.
 * errors    DH_EIO */
dh_status dh_lines_next(dh_ctx *ctx, dh_lines *lines, dh_line *line);
void dh_lines_close(dh_lines *lines);

#endif
