/* Files and folders under names of their own, until a rename puts them in place.
 *
 * A name is drawn at random and must not exist (O_EXCL, mkdir). Two writers therefore never share
 * one, whatever their process ids are. A symbolic link that somebody else put there is not followed.
 * The maker holds a lock (flock) on what it made. The lock ends with the process, so a file or
 * folder that can be locked was left by a process that is gone. This holds between containers that
 * share a folder, where a process id says nothing. */
#include "base/temporary.h"
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char mark[] = ".tmp-";
enum {
    MARK_BYTES = sizeof mark - 1,
    N_DIGITS = 16,             /* hexadecimal, drawn */
    N_TRIES = 100,             /* names that exist already */
    STALE_S = 2 * 24 * 60 * 60 /* without locks: nobody writes one file for so long */
};

/* ---- making --------------------------------------------------------------------------------- */

static uint64_t draw(void)
{
    static uint64_t n_drawn;
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) == (ssize_t)sizeof bits) return bits;
    const uint64_t n = __atomic_add_fetch(&n_drawn, 1, __ATOMIC_RELAXED); /* early in a boot */
    return dh_mix64((uint64_t)dh_now_ns() ^ dh_mix64((uint64_t)getpid() ^ dh_mix64(n)));
}

static int make(const char *path, bool is_dir)
{
    if (!is_dir) return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (mkdir(path, 0755) != 0) return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Threads that are between a name and its lock, and whether the process ends. Whoever ends it looks
 * for locked names once there are none of the first, and after that no name is made. */
static int n_making;   /* atomic; in the child of a fork it may count threads of its parent */
static bool is_ending; /* atomic */

static void begin_making(void)
{
    __atomic_add_fetch(&n_making, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&is_ending, __ATOMIC_SEQ_CST)) return;
    __atomic_sub_fetch(&n_making, 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static void end_making(void)
{
    __atomic_sub_fetch(&n_making, 1, __ATOMIC_SEQ_CST);
}

static void end_all_making(void)
{
    enum { N_WAITS = 2000, WAIT_NS = 1000000 };
    __atomic_store_n(&is_ending, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < N_WAITS && __atomic_load_n(&n_making, __ATOMIC_SEQ_CST) > 0; i++)
        dh_sleep_until_ns(dh_now_ns() + WAIT_NS);
}

/* False where somebody who looked for leftovers took it before it was locked. */
static bool lock_own(int fd)
{
    struct stat info;
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR) {}
    return fstat(fd, &info) != 0 || info.st_nlink > 0; /* where locks are missing: its age */
}

static dh_status create(dh_ctx *ctx, const char *stem, bool is_dir, dh_temporary *t)
{
    dh_str path = DH_STR_INIT;
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; i < N_TRIES && fd < 0 && errno == EEXIST; i++) {
        dh_str_clear(&path);
        dh_str_printf(&path, "%s%s%016llx", stem, mark, (unsigned long long)draw());
        if (path.failed) break;
        begin_making();
        fd = make(path.text, is_dir);
        if (fd >= 0 && !lock_own(fd)) {
            close(fd);
            fd = -1;
            errno = EEXIST;
        }
        end_making();
    }
    if (fd >= 0) {
        *t = (dh_temporary){path.text, fd};
        return DH_OK;
    }
    const dh_status st = path.failed ? dh_no_memory_while(ctx, "writing %s", stem)
                                     : dh_fail(ctx, dh_status_of_errno(errno),
                                               "cannot create %s: %s", path.text, strerror(errno));
    dh_str_fini(&path);
    return st;
}

dh_status dh_temporary_file(dh_ctx *ctx, const char *stem, dh_temporary *t)
{
    return create(ctx, stem, false, t);
}

dh_status dh_temporary_dir(dh_ctx *ctx, const char *stem, dh_temporary *t)
{
    return create(ctx, stem, true, t);
}

/* ---- ending --------------------------------------------------------------------------------- */

static void forget(dh_temporary *t)
{
    if (t->fd >= 0) close(t->fd);
    free(t->path);
    *t = DH_TEMPORARY_NONE;
}

dh_status dh_temporary_commit(dh_ctx *ctx, dh_temporary *t, const char *path)
{
    if (fsync(t->fd) != 0 && errno != EINVAL) /* EINVAL: folders of some file systems */
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot sync %s: %s", t->path,
                       strerror(errno));
    if (rename(t->path, path) != 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot rename %s to %s: %s", t->path, path,
                       strerror(errno));
    forget(t);
    return dh_parent_sync(ctx, path);
}

void dh_temporary_drop(dh_temporary *t)
{
    dh_ctx undo = DH_CTX_INIT;
    if (t->path && dh_dir_remove(&undo, t->path) != DH_OK) dh_log(DH_LOG_WARN, "%s", undo.message);
    forget(t);
}

/* ---- what was left -------------------------------------------------------------------------- */

bool dh_temporary_is_name(const char *name)
{
    const size_t n = strlen(name);
    if (n < MARK_BYTES + N_DIGITS) return false;
    const char *at = name + n - N_DIGITS;
    return strncmp(at - MARK_BYTES, mark, MARK_BYTES) == 0 &&
           strspn(at, "0123456789abcdef") == N_DIGITS;
}

/* Locks a file or folder whose maker is gone; -1: in use. The lock is held until the removal. A
 * maker that has not locked its file yet then finds it locked. Network file systems only lock a
 * file that is open for writing. */
static int take_left(int dir_fd, const char *name)
{
    struct stat info;
    int fd = openat(dir_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && (errno == EISDIR || errno == EACCES))
        fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const dh_lock_answer lock = fd < 0 ? DH_LOCK_TAKEN : dh_fd_lock(fd, false);
    if (lock == DH_LOCK_TAKEN) return fd;
    const bool stale =
        lock == DH_LOCK_NONE && fstat(fd, &info) == 0 && time(NULL) - info.st_mtime > STALE_S;
    if (stale) return fd;
    close(fd);
    return -1;
}

void dh_dir_drop_leftovers(const char *dir)
{
    DIR *entries = opendir(dir);
    if (!entries) return; /* a real fault shows in whatever uses the folder next */
    for (struct dirent *e; (e = readdir(entries));) {
        const int fd = dh_temporary_is_name(e->d_name) ? take_left(dirfd(entries), e->d_name) : -1;
        if (fd < 0) continue;
        dh_temporary left = {.fd = fd};
        dh_str path = DH_STR_INIT;
        dh_str_printf(&path, "%s/%s", dir, e->d_name);
        if (!path.failed)
            dh_log(DH_LOG_INFO, "removing %s, left by a process that is gone", path.text);
        left.path = path.text; /* NULL: it stays */
        dh_temporary_drop(&left);
    }
    closedir(entries);
}

/* ---- when the process ends ------------------------------------------------------------------ */

/* Whether its maker holds the lock. The maker is this process, which has the file open. Readers do
 * not keep a file open that somebody else is making. */
static bool is_held(const char *path)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    const bool held = dh_fd_lock(fd, true) == DH_LOCK_HELD;
    close(fd);
    return held;
}

/* Threads that go on may put files into a folder while it is emptied. */
static void drop_path(const char *path)
{
    enum { N_TIMES = 10 };
    dh_ctx ctx = DH_CTX_INIT;
    for (int i = 0; i < N_TIMES; i++) {
        dh_ctx_reset(&ctx);
        if (dh_dir_remove(&ctx, path) == DH_OK) return;
    }
    dh_log(DH_LOG_WARN, "%s", ctx.message);
}

void dh_temporary_drop_own(void)
{
    char path[PATH_MAX];
    end_all_making();
    DIR *open_files = opendir("/proc/self/fd");
    for (struct dirent *e; open_files && (e = readdir(open_files));) {
        const ssize_t n = readlinkat(dirfd(open_files), e->d_name, path, sizeof path - 1);
        path[n > 0 ? n : 0] = '\0';
        const char *slash = strrchr(path, '/');
        if (slash && dh_temporary_is_name(slash + 1) && is_held(path)) drop_path(path);
    }
    if (open_files) closedir(open_files);
}
