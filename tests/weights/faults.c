/* Linked with --wrap=<call>: every call of the code under test comes here. */
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static fault_kind armed;
static int calls_left;

static int plain_renames;

void fault_plain_renames(int error)
{
    plain_renames = error;
}

void fault_arm(fault_kind kind, int n)
{
    armed = kind;
    calls_left = n;
}

int fault_disarm(void)
{
    int came = armed != FAULT_NONE && calls_left <= 0;
    armed = FAULT_NONE;
    return came;
}

/* Is it this call's turn? Undoing calls (unlink, rmdir) can end the process, not fail. */
static bool due(bool can_fail)
{
    if (armed == FAULT_NONE || (armed == FAULT_FAIL && !can_fail)) return false;
    return --calls_left == 0;
}

static bool strikes(bool can_fail)
{
    if (!due(can_fail)) return false;
    if (armed != FAULT_FAIL) _exit(FAULT_EXIT_CODE);
    errno = ENOSPC;
    return true;
}

int __real_open(const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
int __real_fallocate(int fd, int mode, off_t at, off_t n);
int __real_ftruncate(int fd, off_t n);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int __real_mkdir(const char *path, mode_t mode);
int __real_unlink(const char *path);
int __real_rmdir(const char *path);

int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *data, size_t n);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
int __wrap_fallocate(int fd, int mode, off_t at, off_t n);
int __wrap_ftruncate(int fd, off_t n);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_unlink(const char *path);
int __wrap_rmdir(const char *path);

int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
        if (strikes(true)) return -1;
    }
    return __real_open(path, flags, mode);
}

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    if (fd <= 2) return __real_write(fd, data, n); /* the test's own output */
    if (armed == FAULT_SHORT && calls_left == 1) (void)!__real_write(fd, data, n / 2);
    return strikes(true) ? -1 : __real_write(fd, data, n);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at)
{
    if (armed == FAULT_SHORT && calls_left == 1) (void)!__real_pwrite(fd, data, n / 2, at);
    return strikes(true) ? -1 : __real_pwrite(fd, data, n, at);
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t n)
{
    return strikes(true) ? -1 : __real_fallocate(fd, mode, at, n);
}

int __wrap_ftruncate(int fd, off_t n)
{
    return strikes(true) ? -1 : __real_ftruncate(fd, n);
}

int __wrap_fsync(int fd)
{
    return strikes(true) ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    return strikes(true) ? -1 : __real_rename(from, to);
}

int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (strikes(true)) return -1;
    if (!flags || !plain_renames) return __real_renameat2(from_fd, from, to_fd, to, flags);
    errno = plain_renames;
    return -1;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return strikes(true) ? -1 : __real_mkdir(path, mode);
}

int __wrap_unlink(const char *path)
{
    (void)strikes(false);
    return __real_unlink(path);
}

int __wrap_rmdir(const char *path)
{
    (void)strikes(false);
    return __real_rmdir(path);
}
