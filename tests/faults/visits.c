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
#include <unistd.h>

enum { PATH_BYTES = 4096, PAUSE_US = 1000 };

static const char *next_visit;
static char page[256]; /* that is asked for */

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

int poll(struct pollfd *fds, nfds_t n, int wait_ms)
{
    if (find_page()) return 1;
    end_program();
    usleep(PAUSE_US); /* until the thread has seen it */
    return 0;
}

static int open_answer(int flags)
{
    char path[PATH_BYTES];
    in_folder("answer", strlen("answer"), path);
    return open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
}

int accept4(int fd, struct sockaddr *from, socklen_t *n, int flags)
{
    close(open_answer(O_TRUNC));
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

ssize_t recv(int fd, void *to, size_t n, int flags)
{
    return snprintf(to, n, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", page);
}

ssize_t send(int fd, const void *from, size_t n, int flags)
{
    const int answer = open_answer(O_APPEND);
    const ssize_t sent = write(answer, from, n);
    close(answer);
    return sent;
}
