/* The head of one HTTP/1 request, as little of it as `report --serve` needs. */
#ifndef DH_CLI_HTTP_HEAD_H
#define DH_CLI_HTTP_HEAD_H

#include "base/base.h"

typedef enum dh_http_status {
    DH_HTTP_OK = 200,
    DH_HTTP_BAD = 400,
    DH_HTTP_FORBIDDEN = 403,
    DH_HTTP_NOT_FOUND = 404,
    DH_HTTP_NOT_ALLOWED = 405,
    DH_HTTP_TOO_LARGE = 431,
    DH_HTTP_VERSION = 505
} dh_http_status;

typedef struct dh_http_head {
    const char *method; /* both point into the head that was read */
    size_t n_method;
    const char *path; /* begins with '/'; no query; escapes (%41) stay as they are */
    size_t n_path;
} dh_http_head;

/* "404 Not Found" */
const char *dh_http_status_line(dh_http_status status);
/* Whether the method is this one. */
bool dh_http_is(const dh_http_head *head, const char *method);

/* Read a head of n bytes, the empty line at its end included.
 * returns   DH_HTTP_OK: *head is set. DH_HTTP_BAD: malformed, or not exactly one Host line.
 *           DH_HTTP_FORBIDDEN: it names another host than 127.0.0.1 or localhost, as the page of a
 *           foreign site does whose name was bound to this address. DH_HTTP_VERSION: not HTTP/1. */
dh_http_status dh_http_read(const char *text, size_t n, dh_http_head *head);

#endif
