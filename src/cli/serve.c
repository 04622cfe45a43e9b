/* HTTP/1.1, as much as one page needs: GET, a connection a request, one at a time.
 *
 *   /          a frame that asks for the version every two seconds and loads the page again when it
 *              differs, scrolled to where it was
 *   /version   a number that differs when a file of the run does
 *   /page      the report
 *
 * Bound to 127.0.0.1 alone; requests under another host's name are refused, so that no site of
 * elsewhere can have a browser here read the run. */
#include "cli/serve.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

enum { REQUEST_BYTES = 8192, WAIT_MS = 300, PATIENCE_S = 5, PAGE_BYTES = 1 << 30 };

static const char frame[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; connect-src "
    "'self'; "
    "frame-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
    "<title>dhelix, live</title><style>html,body,iframe{margin:0;width:100%;height:100%;border:0;"
    "display:block}p{position:fixed;right:1em;bottom:0;font:12px sans-serif;opacity:.7}</style>"
    "</head><body><iframe title=\"report\"></iframe><p role=\"status\"></p><script>\n"
    "const page = document.querySelector('iframe'), note = document.querySelector('p');\n"
    "let known = null;\n"
    "async function look() {\n"
    "  try {\n"
    "    const version = await (await fetch('/version', {cache: 'no-store'})).text();\n"
    "    note.textContent = '';\n"
    "    if (version !== known) {\n"
    "      const at = known === null ? 0 : page.contentWindow.scrollY;\n"
    "      page.onload = () => page.contentWindow.scrollTo(0, at);\n"
    "      page.src = '/page?' + version;\n"
    "      known = version;\n"
    "    }\n"
    "  } catch (e) { note.textContent = 'no longer served'; }\n"
    "  setTimeout(look, 2000);\n"
    "}\n"
    "look();\n"
    "</script></body></html>\n";

typedef struct server {
    const dh_serving *is;
    int fd;
    uint64_t drawn; /* version of the page below */
    char *page;     /* NULL: none yet */
    size_t n_bytes;
} server;

/* ---- the run -------------------------------------------------------------------------------- */

static uint64_t version_of(const char *run)
{
    uint64_t version = 1;
    struct stat info;
    DIR *dir = opendir(run);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (strcmp(e->d_name, "report.html") == 0 ||
            fstatat(dirfd(dir), e->d_name, &info, 0) != 0 || !S_ISREG(info.st_mode))
            continue;
        const uint64_t ns =
            (uint64_t)info.st_mtim.tv_sec * 1000000000 + (uint64_t)info.st_mtim.tv_nsec;
        version += dh_mix64(ns ^ dh_mix64((uint64_t)info.st_size ^ (uint64_t)info.st_ino << 40));
    }
    if (dir) closedir(dir);
    return version;
}

static dh_status draw_to(dh_ctx *ctx, server *s, const char *path)
{
    char *page;
    size_t n_bytes;
    DH_TRY(dh_report_write(ctx, &s->is->run, 1, &s->is->how, path));
    DH_TRY(dh_file_read(ctx, path, PAGE_BYTES, &page, &n_bytes));
    free(s->page);
    s->page = page;
    s->n_bytes = n_bytes;
    return DH_OK;
}

/* The page as the run is now. */
static dh_status draw(dh_ctx *ctx, server *s)
{
    const uint64_t version = version_of(s->is->run);
    const char *folder = getenv("TMPDIR");
    char dir[4096], path[4200];
    if (s->page && version == s->drawn) return DH_OK;
    snprintf(dir, sizeof dir, "%s/dhelix-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp(dir)) return dh_fail(ctx, DH_EIO, "cannot make %s: %s", dir, strerror(errno));
    snprintf(path, sizeof path, "%s/report.html", dir);
    const dh_status st = draw_to(ctx, s, path);
    unlink(path);
    rmdir(dir);
    if (st == DH_OK) s->drawn = version; /* else whoever asks again is not given the old one */
    return st;
}

/* ---- answers -------------------------------------------------------------------------------- */

static void send_all(int fd, const char *at, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0) return; /* who asked has gone */
        at += sent;
        n -= (size_t)sent;
    }
}

static void answer(int fd, const char *status, const char *type, const char *body, size_t n)
{
    char head[512];
    const int length = snprintf(head, sizeof head,
                                "HTTP/1.1 %s\r\nContent-Type: %s; charset=utf-8\r\n"
                                "Content-Length: %zu\r\nCache-Control: no-store\r\n"
                                "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
                                status, type, n);
    send_all(fd, head, (size_t)length);
    send_all(fd, body, n);
}

static void answer_text(int fd, const char *status, const char *text)
{
    answer(fd, status, "text/plain", text, strlen(text));
}

static void answer_version(int fd, const server *s)
{
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)version_of(s->is->run));
    answer_text(fd, "200 OK", text);
}

/* What cannot be drawn yet says why; the frame goes on asking. */
static void answer_page(int fd, server *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (draw(&ctx, s) == DH_OK)
        answer(fd, "200 OK", "text/html", s->page, s->n_bytes);
    else
        answer_text(fd, "200 OK", ctx.message);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Up to the empty line; false where none comes. */
static bool read_request(int fd, char request[REQUEST_BYTES])
{
    size_t n = 0;
    while (n + 1 < REQUEST_BYTES) {
        const ssize_t got = recv(fd, request + n, REQUEST_BYTES - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        request[n] = '\0';
        if (strstr(request, "\r\n\r\n")) return true;
    }
    return false;
}

static bool is_for_us(const char *request)
{
    static const char *const names[] = {"127.0.0.1", "localhost"};
    const char *line = strcasestr(request, "\r\nhost:");
    if (!line) return false;
    line += strlen("\r\nhost:");
    line += strspn(line, " \t");
    const size_t n = strcspn(line, ": \t\r");
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (strlen(names[i]) == n && strncasecmp(line, names[i], n) == 0) return true;
    return false;
}

static bool asks_for(const char *request, const char *path)
{
    const size_t n = strlen(path);
    return strncmp(request, "GET ", 4) == 0 && strncmp(request + 4, path, n) == 0 &&
           (request[4 + n] == ' ' || request[4 + n] == '?');
}

static void serve_one(server *s, int fd)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    char request[REQUEST_BYTES];
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!read_request(fd, request)) return;
    if (!is_for_us(request))
        answer_text(fd, "403 Forbidden", "only for this machine's own name\n");
    else if (asks_for(request, "/"))
        answer(fd, "200 OK", "text/html", frame, sizeof frame - 1);
    else if (asks_for(request, "/version"))
        answer_version(fd, s);
    else if (asks_for(request, "/page"))
        answer_page(fd, s);
    else
        answer_text(fd, "404 Not Found", "there is /, /page and /version\n");
}

/* ---- the socket ----------------------------------------------------------------------------- */

static dh_status listen_at(dh_ctx *ctx, server *s, int64_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)*port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    const int yes = 1;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd >= 0) setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&at, n) != 0 || listen(s->fd, 16) != 0 ||
        getsockname(s->fd, (struct sockaddr *)&at, &n) != 0)
        return dh_fail(ctx, DH_EIO, "cannot serve on port %lld of 127.0.0.1: %s", (long long)*port,
                       strerror(errno));
    *port = ntohs(at.sin_port);
    return DH_OK;
}

static dh_status say_where(dh_ctx *ctx, const dh_serving *is, int64_t port)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text,
                  is->quiet ? "http://127.0.0.1:%lld/\n" : "live        http://127.0.0.1:%lld/",
                  (long long)port);
    if (!is->quiet) dh_str_printf(&text, "  %s, until Ctrl-C\n", is->run);
    return dh_cli_print_str(ctx, &text);
}

static void serve_until(server *s, const volatile sig_atomic_t *stop)
{
    struct pollfd wait = {.fd = s->fd, .events = POLLIN};
    while (!*stop) {
        if (poll(&wait, 1, WAIT_MS) <= 0) continue;
        const int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        serve_one(s, fd);
        close(fd);
    }
}

dh_status dh_cli_serve(dh_ctx *ctx, const dh_serving *serving)
{
    server s = {.is = serving, .fd = -1};
    struct stat info;
    int64_t port = serving->port;
    if (stat(serving->run, &info) != 0 || !S_ISDIR(info.st_mode))
        return dh_fail(ctx, DH_EIO, "%s is not a folder: name a run's, which may be empty yet",
                       serving->run);
    const volatile sig_atomic_t *stop = dh_cli_catch_signals();
    dh_status st = listen_at(ctx, &s, &port);
    if (st == DH_OK) st = say_where(ctx, serving, port);
    fflush(stdout);
    if (st == DH_OK) serve_until(&s, stop);
    if (s.fd >= 0) close(s.fd);
    free(s.page);
    return st;
}
