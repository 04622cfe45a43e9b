/* Copies of the process, in each of which a call fails: made at the call, they run to their end
 * while the program waits. Each has a copy of the folder that is written to, under the same name.
 * nth.c says by which variables of the environment this is asked for. */
#ifndef COPIES_H
#define COPIES_H

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "tree.h"

/* The function behind ours, looked up at the first call. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

enum { COPY_SECONDS = 60, NO_PROCESS = 1999999999 };

static const char *disk;
static char kept[TREE_PATH_BYTES]; /* the folder meanwhile */
static int ask_fd, answer_fd;
static _Atomic int n_in_sigwait;

/* Threads that wait for signals make no calls: a copy can do without them. */
int sigwait(const sigset_t *set, int *number)
{
    NEXT(sigwait);
    atomic_fetch_add(&n_in_sigwait, 1);
    const int rc = real(set, number);
    atomic_fetch_sub(&n_in_sigwait, 1);
    return rc;
}

pid_t getpid(void)
{
    return NO_PROCESS;
}

/* One that has just begun does not wait yet, and one that has ended is not gone yet. */
static bool is_only_thread(void)
{
    for (int i = 0; i < 20; i++) {
        struct stat info;
        if (stat("/proc/self/task", &info) != 0) tree_give_up("examine", "/proc/self/task");
        if ((int)info.st_nlink - 2 == 1 + atomic_load(&n_in_sigwait)) return true;
        usleep(100);
    }
    return false;
}

/* The path of an open file, in the copy of the folder where it lies in that. */
static void path_in_copy(int fd, char path[TREE_PATH_BYTES])
{
    char link[64], is[TREE_PATH_BYTES];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, is, sizeof is - 1);
    if (n < 0) tree_give_up("name", link);
    is[n] = '\0';
    const size_t n_kept = strlen(kept);
    const bool in_folder =
        strncmp(is, kept, n_kept) == 0 && (is[n_kept] == '/' || is[n_kept] == '\0');
    snprintf(path, TREE_PATH_BYTES, "%s%s", in_folder ? disk : "", in_folder ? is + n_kept : is);
}

/* A file of its own at the same place, so that the position is not the program's. */
static void reopen(int fd)
{
    char path[TREE_PATH_BYTES];
    struct stat info;
    const int flags = fcntl(fd, F_GETFL), fd_flags = fcntl(fd, F_GETFD);
    if (flags < 0 || fstat(fd, &info) != 0) return;
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return;
    path_in_copy(fd, path);
    if (access(path, F_OK) != 0) return; /* it has no name any more */
    const int again = open(path, flags & ~(O_CREAT | O_EXCL | O_TRUNC));
    if (again < 0 || lseek(again, lseek(fd, 0, SEEK_CUR), SEEK_SET) < 0 ||
        dup3(again, fd, fd_flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
        tree_give_up("open", path);
    close(again);
}

static void begin_copy(void)
{
    close(ask_fd);
    close(answer_fd);
    for (int fd = 0; fd < 256; fd++) reopen(fd);
    alarm(COPY_SECONDS);
}

/* Says how it ended, and waits until that has been judged. */
static void ask(const char *call, const char *how)
{
    char answer;
    if (dprintf(ask_fd, "%s %s\n", call, how) < 0 || read(answer_fd, &answer, 1) != 1)
        tree_give_up("ask about", call);
}

/* True in the copy. The program finds the folder as it was, and its open files are those in it. */
static inline bool copies_make(const char *call)
{
    int status;
    char how[16];
    if (!is_only_thread()) {
        ask(call, "threads");
        return false;
    }
    if (rename(disk, kept) != 0) tree_give_up("rename", disk);
    tree_copy(kept, disk);
    unlink(getenv("DH_NTH_REPORT"));
    const pid_t copy = fork();
    if (copy == 0) {
        begin_copy();
        return true;
    }
    if (copy < 0 || waitpid(copy, &status, 0) != copy) tree_give_up("run a copy of", "the process");
    snprintf(how, sizeof how, "%d",
             WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    ask(call, how);
    tree_remove(disk);
    if (rename(kept, disk) != 0) tree_give_up("rename", kept);
    return false;
}

static inline void copies_begin(void)
{
    const char *to = getenv("DH_NTH_ASK"), *from = getenv("DH_NTH_ANSWER");
    disk = getenv("DH_NTH_DISK");
    if (!to || !from || !disk || !getenv("DH_NTH_REPORT")) tree_give_up("find names of", "files");
    snprintf(kept, sizeof kept, "%s.kept", disk);
    ask_fd = open(to, O_WRONLY | O_CLOEXEC);
    answer_fd = open(from, O_RDONLY | O_CLOEXEC);
    if (ask_fd < 0 || answer_fd < 0) tree_give_up("open", to);
}

#endif
