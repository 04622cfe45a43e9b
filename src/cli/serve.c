/* HTTP/1.1, as much as one page needs: GET and HEAD, one request a connection.
 *
 *   /TOKEN/          a frame that asks for the version every two seconds and loads the page again
 *                    when it differs, scrolled to where it was
 *   /TOKEN/version   a number that differs when a file of the run does
 *   /TOKEN/page      the report
 *
 * Bound to 127.0.0.1 alone, which every user of the machine and every site that a browser here
 * shows can reach. TOKEN is drawn at random, so only who knows the printed address is answered.
 *
 * One thread serves all connections by poll(), and no client makes another one wait. Sockets do not
 * block, heads and answers have deadlines, and of too many connections the oldest is closed.
 * The page is drawn by a second thread, as it may take long. No file of the run is opened by a name
 * that a client gave. */
#include "cli/serve.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/http_head.h"
#include "report/html/page.h"

enum {
    MAX_CLIENTS = 64,
    MAX_ACCEPTED = 16, /* in one round */
    TEXT_BYTES = 8192, /* of a head; of an answer without the page */
    TOKEN_BYTES = 16,
    TOKEN_DIGITS = 2 * TOKEN_BYTES,
    WAIT_MS = 300, /* how often the loop looks for a signal and for deadlines */
    HEAD_S = 5,
    ANSWER_S = 300,
    GOODBYE_S = 2
};

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
    "    const version = await (await fetch('version', {cache: 'no-store'})).text();\n"
    "    note.textContent = '';\n"
    "    if (version !== known) {\n"
    "      const at = known === null ? 0 : page.contentWindow.scrollY;\n"
    "      page.onload = () => page.contentWindow.scrollTo(0, at);\n"
    "      page.src = 'page?' + version;\n"
    "      known = version;\n"
    "    }\n"
    "  } catch (e) { note.textContent = 'no longer served'; }\n"
    "  setTimeout(look, 2000);\n"
    "}\n"
    "look();\n"
    "</script></body></html>\n";

/* A report that is drawn. The server and every client that it is sent to use it. */
typedef struct page {
    dh_str text;
    size_t n_users;
} page;

typedef enum client_state {
    READING, /* the head */
    WAITING, /* for the page to be drawn */
    ANSWERING,
    LEAVING /* all is sent; what the client sends is dropped until it closes */
} client_state;

typedef struct client {
    int fd;
    client_state state;
    bool bodiless; /* HEAD */
    int64_t opened_ns, deadline_ns;
    uint64_t wanted;       /* WAITING: version of the page */
    char text[TEXT_BYTES]; /* READING: the head so far; ANSWERING: head and short body */
    size_t n_text;
    page *page; /* ANSWERING: comes after text; NULL: nothing does */
    size_t sent;
} client;

/* Belongs to the thread that draws until is_done. */
typedef struct drawing {
    const dh_serving *is;
    uint64_t version; /* version of the run before it was read */
    page *page;
    dh_ctx ctx;
    dh_status status;
    pthread_t thread;
    int wake_fd;
    bool is_done; /* atomic */
} drawing;

typedef struct server {
    const dh_serving *is;
    int fd;
    int wake[2]; /* a pipe; a byte comes when a page is drawn */
    char token[TOKEN_DIGITS + 1];
    bool is_full;     /* no descriptor is left for another client: none is accepted in this round */
    uint64_t drawn;   /* version of the page below */
    page *page;       /* NULL: none yet */
    drawing *drawing; /* NULL: none is under way */
    size_t n_clients;
    client clients[MAX_CLIENTS];
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

static void release(page *p)
{
    if (!p || --p->n_users > 0) return;
    dh_str_fini(&p->text);
    free(p);
}

static void *draw(void *arg)
{
    drawing *d = arg;
    d->status = dh_html_page(&d->ctx, &d->is->run, 1, &d->is->how, &d->page->text);
    const int wake_fd = d->wake_fd;
    __atomic_store_n(&d->is_done, true, __ATOMIC_RELEASE);
    if (write(wake_fd, "", 1) != 1) return NULL; /* seen when the loop looks next */
    return NULL;
}

static drawing *create_drawing(const server *s)
{
    drawing *d = calloc(1, sizeof *d);
    page *p = calloc(1, sizeof *p);
    if (!d || !p) {
        free(d);
        free(p);
        return NULL;
    }
    p->n_users = 1;
    *d = (drawing){.is = s->is,
                   .version = version_of(s->is->run),
                   .page = p,
                   .ctx = DH_CTX_INIT,
                   .wake_fd = s->wake[1]};
    return d;
}

static void destroy_drawing(drawing *d)
{
    release(d->page);
    free(d);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void set_state(client *c, client_state state, int64_t seconds)
{
    c->state = state;
    c->deadline_ns = dh_now_ns() + seconds * 1000000000;
}

/* The page, or a short body where p is NULL. */
static void answer_with(client *c, dh_http_status status, const char *type, const char *body,
                        page *p)
{
    const size_t n = p ? p->text.len : strlen(body);
    const int n_text = snprintf(
        c->text, sizeof c->text,
        "HTTP/1.1 %s\r\nContent-Type: %s; charset=utf-8\r\nContent-Length: %zu\r\n%s"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
        "Connection: close\r\n\r\n%s",
        dh_http_status_line(status), type, n,
        status == DH_HTTP_NOT_ALLOWED ? "Allow: GET, HEAD\r\n" : "", p || c->bodiless ? "" : body);
    DH_CHECK(n_text > 0 && (size_t)n_text < sizeof c->text, "an answer of %d bytes", n_text);
    c->n_text = (size_t)n_text;
    c->sent = 0;
    c->page = c->bodiless ? NULL : p;
    if (c->page) c->page->n_users++;
    set_state(c, ANSWERING, ANSWER_S);
}

static void answer(client *c, dh_http_status status, const char *text)
{
    answer_with(c, status, "text/plain", text, NULL);
}

static void answer_version(const server *s, client *c)
{
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)version_of(s->is->run));
    answer(c, DH_HTTP_OK, text);
}

/* Answers with the reason while nothing can be drawn; the frame goes on asking. */
static void answer_waiting(server *s, uint64_t version, page *p, const char *why)
{
    for (size_t i = 0; i < s->n_clients; i++) {
        client *c = &s->clients[i];
        if (c->state == WAITING && c->wanted == version)
            answer_with(c, DH_HTTP_OK, p ? "text/html" : "text/plain", why, p);
    }
}

/* For all who wait: the run as it is now is as new as each of them wants. */
static void begin_drawing(server *s)
{
    drawing *d = create_drawing(s);
    for (size_t i = 0; i < s->n_clients; i++) s->clients[i].wanted = d ? d->version : 0;
    if (d && pthread_create(&d->thread, NULL, draw, d) == 0) {
        s->drawing = d;
        return;
    }
    answer_waiting(s, d ? d->version : 0, NULL, "no memory or thread is left to draw the page\n");
    if (d) destroy_drawing(d);
}

static void answer_page(server *s, client *c)
{
    const uint64_t version = version_of(s->is->run);
    if (s->page && s->drawn == version) {
        answer_with(c, DH_HTTP_OK, "text/html", "", s->page);
        return;
    }
    c->state = WAITING;
    c->deadline_ns = INT64_MAX;
    c->wanted = version;
    if (!s->drawing) begin_drawing(s);
}

static void take_drawn(server *s)
{
    char bytes[64];
    drawing *d = s->drawing;
    bool more = false;
    if (!d || !__atomic_load_n(&d->is_done, __ATOMIC_ACQUIRE)) return;
    pthread_join(d->thread, NULL);
    while (read(s->wake[0], bytes, sizeof bytes) > 0) {}
    s->drawing = NULL;
    if (d->status == DH_OK) {
        release(s->page);
        s->page = d->page;
        s->page->n_users++;
        s->drawn = d->version; /* of a failure: whoever asks again is not given the old page */
    }
    answer_waiting(s, d->version, d->status == DH_OK ? d->page : NULL, d->ctx.message);
    destroy_drawing(d);
    for (size_t i = 0; i < s->n_clients; i++) more |= s->clients[i].state == WAITING;
    if (more) begin_drawing(s);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* The path after "/TOKEN/"; NULL where the token differs. The time of the comparison does not tell
 * where they differ. */
static const char *below_token(const server *s, const dh_http_head *head)
{
    const size_t n = TOKEN_DIGITS;
    unsigned differs = 0;
    if (head->n_path < n + 2) return NULL;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)s->token[i] ^ (unsigned char)head->path[1 + i];
    return differs || head->path[n + 1] != '/' ? NULL : head->path + n + 2;
}

static void answer_request(server *s, client *c, size_t n_head)
{
    dh_http_head head;
    const dh_http_status status = dh_http_read(c->text, n_head, &head);
    if (status == DH_HTTP_FORBIDDEN) {
        answer(c, status, "only for this machine's own name\n");
        return;
    }
    if (status != DH_HTTP_OK) {
        answer(c, status, "this is no request of HTTP/1.1 with one Host line\n");
        return;
    }
    c->bodiless = dh_http_is(&head, "HEAD");
    const char *name = below_token(s, &head);
    const size_t n = name ? head.n_path - (size_t)(name - head.path) : 0;
    if (!name)
        answer(c, DH_HTTP_NOT_FOUND,
               "the address is the one that dhelix printed, token included\n");
    else if (!c->bodiless && !dh_http_is(&head, "GET"))
        answer(c, DH_HTTP_NOT_ALLOWED, "GET and HEAD alone\n");
    else if (n == 0)
        answer_with(c, DH_HTTP_OK, "text/html", frame, NULL);
    else if (n == strlen("version") && memcmp(name, "version", n) == 0)
        answer_version(s, c);
    else if (n == strlen("page") && memcmp(name, "page", n) == 0)
        answer_page(s, c);
    else
        answer(c, DH_HTTP_NOT_FOUND, "there is TOKEN/, TOKEN/version and TOKEN/page\n");
}

/* ---- clients: each function does what can be done at once, and says if the client stays
 * -------- */

static bool would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static bool send_answer(client *c)
{
    while (true) {
        const bool in_text = c->sent < c->n_text;
        const char *from = in_text ? c->text + c->sent : c->page ? c->page->text.text : NULL;
        const size_t end = in_text ? c->n_text : c->n_text + (c->page ? c->page->text.len : 0);
        if (c->sent == end) break;
        if (!in_text) from += c->sent - c->n_text;
        const ssize_t sent = send(c->fd, from, end - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) return would_block();
        c->sent += (size_t)sent;
        if (!in_text) break; /* others come first */
    }
    if (c->sent < c->n_text + (c->page ? c->page->text.len : 0)) return true;
    /* Closed at once, what the client still sends would take the answer from it (RST). */
    shutdown(c->fd, SHUT_WR);
    set_state(c, LEAVING, GOODBYE_S);
    return true;
}

static bool read_head(server *s, client *c)
{
    const ssize_t got = recv(c->fd, c->text + c->n_text, sizeof c->text - c->n_text, MSG_DONTWAIT);
    if (got < 0) return would_block();
    if (got == 0) return false;
    c->n_text += (size_t)got;
    const char *end = memmem(c->text, c->n_text, "\r\n\r\n", 4);
    if (end)
        answer_request(s, c, (size_t)(end - c->text) + 4);
    else if (c->n_text == sizeof c->text)
        answer(c, DH_HTTP_TOO_LARGE, "the head of a request has 8 KiB at most\n");
    return c->state != ANSWERING || send_answer(c);
}

static bool drop_input(client *c)
{
    char bytes[4096];
    const ssize_t got = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return got > 0 || (got < 0 && would_block());
}

static bool go_on(server *s, client *c, short events)
{
    if (dh_now_ns() > c->deadline_ns) return false;
    if (events == 0) return true;
    switch (c->state) {
    case READING:
        return read_head(s, c);
    case WAITING:
        return false; /* it asked for no event: the client is gone */
    case ANSWERING:
        return send_answer(c);
    case LEAVING:
        return drop_input(c);
    }
    return false;
}

static void close_client(server *s, size_t i)
{
    client *c = &s->clients[i];
    close(c->fd);
    release(c->page);
    *c = s->clients[--s->n_clients];
}

/* The oldest of those without a request under way, or else the oldest. */
static void close_oldest(server *s)
{
    size_t oldest = 0;
    for (size_t i = 1; i < s->n_clients; i++) {
        const client *a = &s->clients[i], *b = &s->clients[oldest];
        const bool a_asks = a->state == WAITING || a->state == ANSWERING;
        const bool b_asks = b->state == WAITING || b->state == ANSWERING;
        if (a_asks != b_asks ? b_asks : a->opened_ns < b->opened_ns) oldest = i;
    }
    close_client(s, oldest);
}

/* False where none is waiting. */
static bool accept_one(server *s)
{
    const int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == ECONNABORTED || errno == EINTR) return true;
        if (would_block()) return false;
        s->is_full = s->n_clients == 0; /* else the oldest makes room for the next try */
        if (s->n_clients > 0) close_oldest(s);
        return false;
    }
    if (s->n_clients == MAX_CLIENTS) close_oldest(s);
    client *c = &s->clients[s->n_clients++];
    *c = (client){.fd = fd, .opened_ns = dh_now_ns()};
    set_state(c, READING, HEAD_S);
    if (!read_head(s, c)) close_client(s, s->n_clients - 1);
    return true;
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* tests/faults/visits.c takes the first two for what they are. */
enum { LISTENER, WAKE, FIRST_CLIENT, MAX_POLLED = FIRST_CLIENT + MAX_CLIENTS };

static void serve_round(server *s)
{
    struct pollfd polled[MAX_POLLED];
    const size_t n = s->n_clients;
    polled[LISTENER] = (struct pollfd){.fd = s->is_full ? -1 : s->fd, .events = POLLIN};
    polled[WAKE] = (struct pollfd){.fd = s->wake[0], .events = POLLIN};
    for (size_t i = 0; i < n; i++) {
        const client_state state = s->clients[i].state;
        const short events = state == WAITING ? 0 : state == ANSWERING ? POLLOUT : POLLIN;
        polled[FIRST_CLIENT + i] = (struct pollfd){.fd = s->clients[i].fd, .events = events};
    }
    s->is_full = false;
    const bool some = poll(polled, FIRST_CLIENT + n, WAIT_MS) > 0;
    for (size_t i = n; i-- > 0;) /* the last takes the place of one that is closed */
        if (!go_on(s, &s->clients[i], some ? polled[FIRST_CLIENT + i].revents : 0))
            close_client(s, i);
    take_drawn(s);
    for (int i = 0; some && polled[LISTENER].revents && i < MAX_ACCEPTED; i++)
        if (!accept_one(s)) break;
}

static dh_status listen_at(dh_ctx *ctx, server *s, int64_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)*port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    const int yes = 1;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd >= 0) setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&at, n) != 0 || listen(s->fd, SOMAXCONN) != 0 ||
        getsockname(s->fd, (struct sockaddr *)&at, &n) != 0)
        return dh_fail(ctx, DH_EIO, "cannot serve on port %lld of 127.0.0.1: %s", (long long)*port,
                       strerror(errno));
    *port = ntohs(at.sin_port);
    return DH_OK;
}

static dh_status draw_token(dh_ctx *ctx, server *s)
{
    unsigned char bits[TOKEN_BYTES];
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return dh_fail(ctx, DH_EIO, "cannot draw a token for the address: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bits; i++) snprintf(s->token + 2 * i, 3, "%02x", bits[i]);
    return DH_OK;
}

static dh_status say_where(dh_ctx *ctx, const server *s, int64_t port)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%shttp://127.0.0.1:%lld/%s/", s->is->quiet ? "" : "live        ",
                  (long long)port, s->token);
    if (!s->is->quiet) dh_str_printf(&text, "  %s, until Ctrl-C", s->is->run);
    dh_str_printf(&text, "\n");
    return dh_cli_print_str(ctx, &text);
}

static dh_status open_server(dh_ctx *ctx, server *s)
{
    int64_t port = s->is->port;
    if (pipe2(s->wake, O_CLOEXEC | O_NONBLOCK) != 0)
        return dh_fail(ctx, DH_EIO, "cannot make a pipe: %s", strerror(errno));
    DH_TRY(draw_token(ctx, s));
    DH_TRY(listen_at(ctx, s, &port));
    return say_where(ctx, s, port);
}

static void close_server(server *s)
{
    while (s->n_clients > 0) close_client(s, s->n_clients - 1);
    release(s->page);
    if (s->fd >= 0) close(s->fd);
    for (int i = 0; i < 2; i++)
        if (s->wake[i] >= 0) close(s->wake[i]);
    free(s);
}

dh_status dh_cli_serve(dh_ctx *ctx, const dh_serving *serving)
{
    struct stat info;
    if (stat(serving->run, &info) != 0 || !S_ISDIR(info.st_mode))
        return dh_fail(ctx, DH_EIO, "%s is not a folder: name a run's, which may be empty yet",
                       serving->run);
    server *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    s->is = serving;
    s->fd = s->wake[0] = s->wake[1] = -1;
    const volatile sig_atomic_t *stop = dh_cli_catch_signals();
    dh_status st = open_server(ctx, s);
    fflush(stdout);
    while (st == DH_OK && !*stop) serve_round(s);
    if (s->drawing) _exit(EXIT_SUCCESS); /* its thread may take long, and writes no file */
    close_server(s);
    return st;
}
