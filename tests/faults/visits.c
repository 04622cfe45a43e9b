/* Preloaded beside the other library into a program that serves pages: who asks, and who ends it,
 * without a network between.
 *
 *   DH_VISITS="/ /page old>new"   what is asked for, one after the other; a>b: before the next, the
 *                                 entry a of the folder becomes b, which is moved away
 *   DH_NTH_DISK=FOLDER            the last answer lies in its file "answer"
 *
 * Behind the last visit the program is sent SIGINT. A thread that does nothing keeps nth.c from
 * making copies: these have no thread that waits for signals, and the files of their folder have
 * changed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, PAUSE_US = 1000, TOKEN_BYTES = 16 };

static const char *next_visit;
static char page[256]; /* that is asked for */
static char token[2 * TOKEN_BYTES + 1];
static bool is_at_the_door, has_answer; /* of who asks for it */

static void in_folder(const char *name, size_t n, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%.*s", getenv("DH_NTH_DISK"), (int)n, name);
}

static void *do_nothing(void *unused)
{
    while (true) pause();
    return unused;
}

/* All signals blocked: those are for the program's threads. */
__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, NULL, do_nothing, NULL) != 0) abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end_program(void)
{
    static bool is_over;
    if (!is_over) kill((pid_t)syscall(SYS_getpid), SIGINT); /* nth.c has another number for it */
    is_over = true;
}

/* ---- visits ---------------------------------------------------------------------------------- */

static void move_over(const char *word, size_t n)
{
    char from[PATH_BYTES], to[PATH_BYTES], away[PATH_BYTES + 8];
    const char *arrow = memchr(word, '>', n);
    in_folder(word, (size_t)(arrow - word), from);
    in_folder(arrow + 1, n - (size_t)(arrow + 1 - word), to);
    snprintf(away, sizeof away, "%s.away", to);
    if (rename(to, away) != 0 || rename(from, to) != 0) abort();
}

/* The next page that is asked for; false behind the last. */
static bool find_page(void)
{
    if (!next_visit) next_visit = getenv("DH_VISITS");
    while (next_visit && *(next_visit += strspn(next_visit, " "))) {
        const char *word = next_visit;
        const size_t n = strcspn(word, " ");
        next_visit += n;
        if (!memchr(word, '>', n)) {
            snprintf(page, sizeof page, "%.*s", (int)n, word);
            return true;
        }
        move_over(word, n);
    }
    return false;
}

/* The next visitor comes when the one before has gone. The first two descriptors are the server's
 * own: the listener, and what wakes it when a page is drawn; then come its clients. */
int poll(struct pollfd *fds, nfds_t n, int wait_ms)
{
    static const struct timespec at_once, pause = {.tv_nsec = PAUSE_US * 1000};
    const struct timespec *patience = n > 2 ? &pause : &at_once;
    const int n_ready = (int)syscall(SYS_ppoll, fds, n, patience, NULL, 0);
    if (n_ready != 0 || n > 2) return n_ready;
    if (find_page()) {
        is_at_the_door = true;
        fds[0].revents = POLLIN;
        return 1;
    }
    end_program();
    usleep(PAUSE_US); /* until the thread has seen it */
    return 0;
}

/* The address has a token: the only bytes in this number that the server draws. */
ssize_t getrandom(void *to, size_t n, unsigned flags)
{
    const ssize_t got = syscall(SYS_getrandom, to, n, flags);
    for (size_t i = 0; n == TOKEN_BYTES && i < n; i++)
        snprintf(token + 2 * i, 3, "%02x", ((unsigned char *)to)[i]);
    return got;
}

static int open_answer(int flags)
{
    char path[PATH_BYTES];
    in_folder("answer", strlen("answer"), path);
    return open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
}

int accept4(int fd, struct sockaddr *from, socklen_t *n, int flags)
{
    if (!is_at_the_door) {
        errno = EAGAIN;
        return -1;
    }
    is_at_the_door = false;
    has_answer = false;
    close(open_answer(O_TRUNC));
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

ssize_t recv(int fd, void *to, size_t n, int flags)
{
    if (has_answer) return 0;
    return snprintf(to, n, "GET /%s%s HTTP/1.1\r\nHost: localhost\r\n\r\n", token, page);
}

ssize_t send(int fd, const void *from, size_t n, int flags)
{
    const int answer = open_answer(O_APPEND);
    const ssize_t sent = write(answer, from, n);
    close(answer);
    return sent;
}

int shutdown(int fd, int how)
{
    has_answer = true;
    return 0;
}
