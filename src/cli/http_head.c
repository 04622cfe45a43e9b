/* Strict where clients may differ in what they mean: lines end with CR LF, no other control
 * characters, no continued lines, no blanks before a colon, exactly one Host line. */
#include "cli/http_head.h"

#include <string.h>
#include <strings.h>

typedef struct span {
    const char *at;
    size_t n;
} span;

const char *dh_http_status_line(dh_http_status status)
{
    switch (status) {
    case DH_HTTP_OK:
        return "200 OK";
    case DH_HTTP_BAD:
        return "400 Bad Request";
    case DH_HTTP_FORBIDDEN:
        return "403 Forbidden";
    case DH_HTTP_NOT_FOUND:
        return "404 Not Found";
    case DH_HTTP_NOT_ALLOWED:
        return "405 Method Not Allowed";
    case DH_HTTP_TOO_LARGE:
        return "431 Request Header Fields Too Large";
    case DH_HTTP_VERSION:
        return "505 HTTP Version Not Supported";
    }
    return "500 Internal Server Error";
}

static bool is_word(span s, const char *word)
{
    return s.n == strlen(word) && strncasecmp(s.at, word, s.n) == 0;
}

bool dh_http_is(const dh_http_head *head, const char *method)
{
    return head->n_method == strlen(method) && memcmp(head->method, method, head->n_method) == 0;
}

/* CR and LF only as pairs; no other control characters than tabs. */
static bool is_text(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\r'   ? i + 1 == n || text[i + 1] != '\n'
            : c == '\n' ? i == 0 || text[i - 1] != '\r'
                        : (c < 32 && c != '\t') || c == 127)
            return false;
    }
    return true;
}

/* Splits *rest at the first `mark`: *before gets the text in front of it, *rest the text after
 * it. */
static bool cut(span *rest, char mark, span *before)
{
    const char *at = memchr(rest->at, mark, rest->n);
    if (!at) return false;
    *before = (span){rest->at, (size_t)(at - rest->at)};
    *rest = (span){at + 1, rest->n - before->n - 1};
    return true;
}

static span trimmed(span s)
{
    while (s.n > 0 && (*s.at == ' ' || *s.at == '\t')) s.at++, s.n--;
    while (s.n > 0 && (s.at[s.n - 1] == ' ' || s.at[s.n - 1] == '\t')) s.n--;
    return s;
}

/* NAME or NAME:PORT. A tunnel may give the port another number. */
static bool is_this_machine(span host)
{
    span name = host;
    if (cut(&host, ':', &name))
        for (size_t i = 0; i < host.n; i++)
            if (host.at[i] < '0' || host.at[i] > '9') return false;
    return is_word(name, "127.0.0.1") || is_word(name, "localhost");
}

/* The Host line's value, of the lines after the first. */
static bool find_host(span lines, span *host)
{
    int n_hosts = 0;
    for (span line, name; lines.n > 2; lines.at++, lines.n--) {
        if (!cut(&lines, '\r', &line) || !cut(&line, ':', &name) || name.n == 0) return false;
        if (memchr(name.at, ' ', name.n) || memchr(name.at, '\t', name.n)) return false;
        if (!is_word(name, "host")) continue;
        *host = trimmed(line);
        n_hosts++;
    }
    return n_hosts == 1;
}

/* PATH?QUERY or http://HOST/PATH?QUERY */
static dh_http_status read_target(span target, dh_http_head *head)
{
    static const char scheme[] = "http://";
    const size_t n_scheme = sizeof scheme - 1;
    span path;
    if (target.n > n_scheme && strncasecmp(target.at, scheme, n_scheme) == 0) {
        target = (span){target.at + n_scheme, target.n - n_scheme};
        const char *slash = memchr(target.at, '/', target.n);
        if (!slash) return DH_HTTP_BAD;
        const span host = {target.at, (size_t)(slash - target.at)};
        if (!is_this_machine(host)) return DH_HTTP_FORBIDDEN;
        target = (span){slash, target.n - host.n};
    }
    if (target.n == 0 || *target.at != '/') return DH_HTTP_BAD;
    if (!cut(&target, '?', &path)) path = target;
    head->path = path.at;
    head->n_path = path.n;
    return DH_HTTP_OK;
}

dh_http_status dh_http_read(const char *text, size_t n, dh_http_head *head)
{
    span lines = {text, n}, line, method, target, host;
    if (!is_text(text, n) || !cut(&lines, '\r', &line)) return DH_HTTP_BAD;
    lines.at++, lines.n--; /* LF */
    if (!cut(&line, ' ', &method) || !cut(&line, ' ', &target) || method.n == 0) return DH_HTTP_BAD;
    if (line.n != strlen("HTTP/1.1") || memcmp(line.at, "HTTP/", 5) != 0) return DH_HTTP_BAD;
    if (memcmp(line.at, "HTTP/1.", 7) != 0) return DH_HTTP_VERSION;
    if (!find_host(lines, &host)) return DH_HTTP_BAD;
    if (!is_this_machine(host)) return DH_HTTP_FORBIDDEN;
    head->method = method.at;
    head->n_method = method.n;
    return read_target(target, head);
}
