/* Preloaded into a program under test: the power goes before its n-th call that changes a file,
 * and what the program did not sync is lost.
 *
 *   DH_CUT=MODEL:N        N counts from 1; 0 only counts
 *   DH_CUT_ROOT=FOLDER    the folder on the disk that loses; what is in it at the start is safe
 *   DH_CUT_STATE=FOLDER   empty, outside of it: the disk as it would be found
 *   DH_CUT_OUT=FOLDER     where the folder is put together again as the next start finds it
 *   DH_CUT_REPORT=FILE    at a normal end: "calls K"
 *
 * Two models, as a file system may do either. late: names, too, are as they were when their folder
 * was synced. early: names are as they are, but what is in a file is as it was when that was
 * synced, which is nothing for a file that never was. After a cut the exit code is 77. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "callers.h"

enum { CUT_EXIT_CODE = 77, PATH_BYTES = 4096 };

static const char *root, *state, *result;
static bool late;
static int64_t nth;
static _Atomic int64_t n_calls;
static _Atomic bool off = true;      /* before the start and after the end */
static _Thread_local bool own_calls; /* while the library itself works; other ranks go on */

/* The function behind ours, looked up at the first call. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "cut: cannot %s %s: %s\n", what, path, strerror(errno));
    _exit(99);
}

/* ---- what is on the disk -------------------------------------------------------------------- */

/* An inode number may come again with another file; its birth tells them apart. */
static void key_of(const char *path, char key[64], bool *is_dir)
{
    struct statx x;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &x) != 0)
        give_up("examine", path);
    snprintf(key, 64, "%llu-%llu-%u", (unsigned long long)x.stx_ino,
             (unsigned long long)x.stx_btime.tv_sec, x.stx_btime.tv_nsec);
    *is_dir = S_ISDIR(x.stx_mode);
}

static void copy_file(const char *from, const char *to)
{
    char part[1 << 14];
    size_t n;
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    if (!in || !out) give_up("copy to", to);
    while ((n = fread(part, 1, sizeof part, in)) > 0)
        if (fwrite(part, 1, n, out) != n) give_up("copy to", to);
    fclose(in);
    if (fclose(out) != 0) give_up("copy to", to);
}

static void sync_file(const char *path)
{
    char key[64], to[PATH_BYTES];
    bool is_dir;
    key_of(path, key, &is_dir);
    snprintf(to, sizeof to, "%s/%s", state, key);
    copy_file(path, to);
}

/* The names in a folder, and what they stand for. */
static void sync_folder(const char *path)
{
    char key[64], to[PATH_BYTES], at[PATH_BYTES];
    bool is_dir;
    key_of(path, key, &is_dir);
    snprintf(to, sizeof to, "%s/%s", state, key);
    FILE *out = fopen(to, "w");
    DIR *dir = opendir(path);
    if (!out || !dir) give_up("sync", path);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(at, sizeof at, "%s/%s", path, e->d_name);
        key_of(at, key, &is_dir);
        fprintf(out, "%c %s %s\n", is_dir ? 'd' : 'f', key, e->d_name);
    }
    closedir(dir);
    fclose(out);
}

/* A folder's names, and those of folders in it; with contents, files as well. */
static void sync_tree(const char *path, bool contents)
{
    char key[64], at[PATH_BYTES];
    bool is_dir;
    sync_folder(path);
    DIR *dir = opendir(path);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(at, sizeof at, "%s/%s", path, e->d_name);
        key_of(at, key, &is_dir);
        if (is_dir)
            sync_tree(at, contents);
        else if (contents)
            sync_file(at);
    }
    closedir(dir);
}

/* ---- as the next start finds it ------------------------------------------------------------- */

static void restore_file(const char *key, const char *to)
{
    char from[PATH_BYTES];
    snprintf(from, sizeof from, "%s/%s", state, key);
    if (access(from, F_OK) == 0) {
        copy_file(from, to);
        return;
    }
    FILE *empty = fopen(to, "w");
    if (!empty) give_up("create", to);
    fclose(empty);
}

static void restore_folder(const char *key, const char *to)
{
    char line[PATH_BYTES], from[PATH_BYTES], at[PATH_BYTES], child[64], name[256], type;
    snprintf(from, sizeof from, "%s/%s", state, key);
    if (mkdir(to, 0755) != 0) give_up("create", to);
    FILE *in = fopen(from, "r");
    while (in && fgets(line, sizeof line, in)) {
        if (sscanf(line, "%c %63s %255[^\n]", &type, child, name) != 3) give_up("read", from);
        snprintf(at, sizeof at, "%s/%s", to, name);
        if (type == 'd')
            restore_folder(child, at);
        else
            restore_file(child, at);
    }
    if (in) fclose(in);
}

static void cut(void)
{
    char key[64];
    bool is_dir;
    if (!late) sync_tree(root, false);
    key_of(root, key, &is_dir);
    restore_folder(key, result);
    _exit(CUT_EXIT_CODE);
}

/* ---- the calls ------------------------------------------------------------------------------ */

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("DH_CUT");
    root = getenv("DH_CUT_ROOT");
    state = getenv("DH_CUT_STATE");
    result = getenv("DH_CUT_OUT");
    if (!text || !root || !state || !result) return;
    unsetenv("LD_PRELOAD");
    callers_find();
    late = strncmp(text, "late:", 5) == 0;
    nth = strtoll(strchr(text, ':') + 1, NULL, 10);
    sync_tree(root, true);
    off = false;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("DH_CUT_REPORT");
    off = true;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "calls %lld\n", (long long)n_calls);
    fclose(f);
}

static void changes(const void *caller)
{
    if (off || own_calls || !callers_range_of(caller)) return;
    if (atomic_fetch_add(&n_calls, 1) + 1 != nth) return;
    off = true;
    cut();
}

/* name(parameters), called with arguments. */
#define PASS(type, name, parameters, arguments)                                                    \
    type name parameters                                                                           \
    {                                                                                              \
        NEXT(name);                                                                                \
        changes(__builtin_return_address(0));                                                      \
        return real arguments;                                                                     \
    }

PASS(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
PASS(int, ftruncate, (int fd, off_t n), (fd, n))
PASS(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
PASS(int, rename, (const char *from, const char *to), (from, to))
PASS(int, renameat2, (int from_fd, const char *from, int to_fd, const char *to, unsigned flags),
     (from_fd, from, to_fd, to, flags))
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode))
PASS(int, unlink, (const char *path), (path))
PASS(int, rmdir, (const char *path), (path))
PASS(int, mkstemp, (char *name), (name))
PASS(FILE *, fopen, (const char *path, const char *mode), (path, mode))
PASS(int, fflush, (FILE * f), (f))

ssize_t write(int fd, const void *from, size_t n)
{
    NEXT(write);
    if (fd > 2) changes(__builtin_return_address(0));
    return real(fd, from, n);
}

int open(const char *path, int flags, ...)
{
    NEXT(open);
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_CREAT) changes(__builtin_return_address(0));
    return real(path, flags, mode);
}

/* Outside the root nothing is lost, so that nothing has to be kept. */
static void note_sync(int fd)
{
    char link[64], path[PATH_BYTES], key[64];
    bool is_dir;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) give_up("name", link);
    path[n] = '\0';
    if (strncmp(path, root, strlen(root)) != 0 || access(path, F_OK) != 0) return;
    key_of(path, key, &is_dir);
    if (is_dir)
        sync_folder(path);
    else
        sync_file(path);
}

int fsync(int fd)
{
    NEXT(fsync);
    changes(__builtin_return_address(0));
    const int rc = real(fd);
    if (rc != 0 || off || own_calls || !root) return rc;
    own_calls = true;
    note_sync(fd);
    own_calls = false;
    return rc;
}
