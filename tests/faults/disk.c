/* Preloaded into a program under test: a disk that is slow, or fails. Only files and folders under
 * a folder "checkpoints" are on it.
 *
 *   DH_DISK_SLOW_MS=N           every fsync takes so long
 *   DH_DISK_FAIL=CALL:N:once    the N-th call fails with EIO; CALL is write or fsync; N from 1
 *   DH_DISK_FAIL=CALL:N:on      so do all that follow it
 *   DH_DISK_REPORT=FILE         at the end: how many calls failed */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_long n_calls, n_failed;

static bool on_the_disk(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return strstr(path, "/checkpoints") != NULL;
}

/* Whether this call fails. */
static bool fails(const char *call, int fd)
{
    const char *what = getenv("DH_DISK_FAIL");
    const size_t length = strlen(call);
    if (!what || strncmp(what, call, length) != 0 || what[length] != ':' || !on_the_disk(fd))
        return false;
    char *end;
    const long wanted = strtol(what + length + 1, &end, 10), n = atomic_fetch_add(&n_calls, 1) + 1;
    if (n != wanted && !(n > wanted && strcmp(end, ":on") == 0)) return false;
    atomic_fetch_add(&n_failed, 1);
    errno = EIO;
    return true;
}

static void wait_as_long(int fd)
{
    const char *ms = getenv("DH_DISK_SLOW_MS");
    if (!ms || !on_the_disk(fd)) return;
    const long n = strtol(ms, NULL, 10);
    nanosleep(&(struct timespec){n / 1000, n % 1000 * 1000000}, NULL);
}

#define NEXT(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n)
{
    NEXT(write);
    return fails("write", fd) ? -1 : real(fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    NEXT(pwrite);
    return fails("write", fd) ? -1 : real(fd, data, n, at);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    NEXT(pwrite64);
    return fails("write", fd) ? -1 : real(fd, data, n, at);
}

int fsync(int fd)
{
    NEXT(fsync);
    wait_as_long(fd);
    return fails("fsync", fd) ? -1 : real(fd);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("DH_DISK_REPORT");
    FILE *out = path ? fopen(path, "w") : NULL;
    if (!out) return;
    fprintf(out, "%ld\n", atomic_load(&n_failed));
    fclose(out);
}
