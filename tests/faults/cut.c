/* Preloaded into a program under test: what would be found if the power went before its n-th call
 * that changes a file, or at its end, and what the program had not synced were lost. For every n of
 * one run.
 *
 *   DH_CUT_ROOT=FOLDER    the folder on the disk that loses; what is in it at the start is safe
 *   DH_CUT_STATE=FOLDER   empty, outside of it: what has been synced
 *   DH_CUT_OUT=FOLDER     N.late and N.early in it: the folder as the next start finds it
 *   DH_CUT_REPORT=FILE    at the end: "calls K"
 *
 * Two models, as a file system may do either. late: names, too, are as they were when their folder
 * was synced. early: names are as they are, but what is in a file is as it was when that was
 * synced, which is nothing for a file that never was. The process number is one that no process
 * has: what is found is that of a process that is gone. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include "callers.h"
#include "tree.h"

enum { NO_PROCESS = 1999999999, KEY_BYTES = 64 };

static const char *root, *state, *found;
static int64_t n_calls;
static bool on; /* between the start and the end */

/* Changes are made one at a time, so that ranks do not change what is being looked at; taken
 * again where the library itself works. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* The function behind ours, looked up at the first call. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

pid_t getpid(void)
{
    return NO_PROCESS;
}

/* ---- what has been synced ------------------------------------------------------------------- */

/* The file in the state that stands for a file or folder. An inode number may come again with
 * another file; its birth tells them apart. */
static void key_of(const char *path, char key[KEY_BYTES])
{
    struct statx x;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &x) != 0)
        tree_give_up("examine", path);
    snprintf(key, KEY_BYTES, "%llu-%llu-%u", (unsigned long long)x.stx_ino,
             (unsigned long long)x.stx_btime.tv_sec, x.stx_btime.tv_nsec);
}

static void state_path(const char *key, char path[TREE_PATH_BYTES])
{
    snprintf(path, TREE_PATH_BYTES, "%s/%s", state, key);
}

static void sync_file(const char *path)
{
    char key[KEY_BYTES], to[TREE_PATH_BYTES];
    key_of(path, key);
    state_path(key, to);
    tree_copy_file(path, to);
}

/* The names in a folder, and what they stand for. */
static void sync_folder(const char *path)
{
    char key[KEY_BYTES], to[TREE_PATH_BYTES], at[TREE_PATH_BYTES];
    bool is_dir;
    key_of(path, key);
    state_path(key, to);
    FILE *out = fopen(to, "w");
    if (!out) tree_give_up("sync", path);
    DIR *dir = tree_open(path);
    while (tree_next(dir, path, at, &is_dir)) {
        key_of(at, key);
        fprintf(out, "%c %s %s\n", is_dir ? 'd' : 'f', key, strrchr(at, '/') + 1);
    }
    closedir(dir);
    if (fclose(out) != 0) tree_give_up("sync", path);
}

static void sync_tree(const char *path)
{
    char at[TREE_PATH_BYTES];
    bool is_dir;
    sync_folder(path);
    DIR *dir = tree_open(path);
    while (tree_next(dir, path, at, &is_dir)) {
        if (is_dir)
            sync_tree(at);
        else
            sync_file(at);
    }
    closedir(dir);
}

/* ---- as the next start finds it ------------------------------------------------------------- */

static void find_file(const char *key, const char *to)
{
    char from[TREE_PATH_BYTES];
    state_path(key, from);
    if (access(from, F_OK) == 0) {
        tree_copy_file(from, to);
        return;
    }
    FILE *empty = fopen(to, "w");
    if (!empty) tree_give_up("create", to);
    fclose(empty);
}

static void find_late(const char *key, const char *to)
{
    char line[TREE_PATH_BYTES], from[TREE_PATH_BYTES], at[TREE_PATH_BYTES];
    char child[KEY_BYTES], name[256], type;
    state_path(key, from);
    tree_make(to);
    FILE *in = fopen(from, "r");
    while (in && fgets(line, sizeof line, in)) {
        if (sscanf(line, "%c %63s %255[^\n]", &type, child, name) != 3) tree_give_up("read", from);
        snprintf(at, sizeof at, "%s/%s", to, name);
        if (type == 'd')
            find_late(child, at);
        else
            find_file(child, at);
    }
    if (in) fclose(in);
}

static void find_early(const char *path, const char *to)
{
    char at[TREE_PATH_BYTES], there[TREE_PATH_BYTES], key[KEY_BYTES];
    bool is_dir;
    tree_make(to);
    DIR *dir = tree_open(path);
    while (tree_next(dir, path, at, &is_dir)) {
        snprintf(there, sizeof there, "%s%s", to, at + strlen(path));
        key_of(at, key);
        if (is_dir)
            find_early(at, there);
        else
            find_file(key, there);
    }
    closedir(dir);
}

static void cut(int64_t n)
{
    char key[KEY_BYTES], to[TREE_PATH_BYTES];
    key_of(root, key);
    snprintf(to, sizeof to, "%s/%lld.late", found, (long long)n);
    find_late(key, to);
    snprintf(to, sizeof to, "%s/%lld.early", found, (long long)n);
    find_early(root, to);
}

/* ---- the calls ------------------------------------------------------------------------------ */

__attribute__((constructor)) static void begin(void)
{
    root = getenv("DH_CUT_ROOT");
    state = getenv("DH_CUT_STATE");
    found = getenv("DH_CUT_OUT");
    if (!root || !state || !found) return;
    unsetenv("LD_PRELOAD");
    callers_find();
    sync_tree(root);
    on = true;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("DH_CUT_REPORT");
    if (on) cut(++n_calls); /* what it leaves when it has ended */
    on = false;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "calls %lld\n", (long long)n_calls);
    fclose(f);
}

static void changes(const void *caller)
{
    if (on && callers_range_of(caller)) cut(++n_calls);
}

/* name(parameters), called with arguments. */
#define PASS(type, name, parameters, arguments)                                                    \
    type name parameters                                                                           \
    {                                                                                              \
        NEXT(name);                                                                                \
        pthread_mutex_lock(&lock);                                                                 \
        changes(__builtin_return_address(0));                                                      \
        type result = real arguments;                                                              \
        pthread_mutex_unlock(&lock);                                                               \
        return result;                                                                             \
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
    if (fd <= 2) return real(fd, from, n);
    pthread_mutex_lock(&lock);
    changes(__builtin_return_address(0));
    const ssize_t result = real(fd, from, n);
    pthread_mutex_unlock(&lock);
    return result;
}

int open(const char *path, int flags, ...)
{
    NEXT(open);
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    pthread_mutex_lock(&lock);
    if (flags & O_CREAT) changes(__builtin_return_address(0));
    const int fd = real(path, flags, mode);
    pthread_mutex_unlock(&lock);
    return fd;
}

/* Outside the root nothing is lost, so that nothing has to be kept. */
static void note_sync(int fd)
{
    char link[64], path[TREE_PATH_BYTES];
    struct stat info;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) tree_give_up("name", link);
    path[n] = '\0';
    if (strncmp(path, root, strlen(root)) != 0 || stat(path, &info) != 0) return;
    if (S_ISDIR(info.st_mode))
        sync_folder(path);
    else
        sync_file(path);
}

int fsync(int fd)
{
    NEXT(fsync);
    pthread_mutex_lock(&lock);
    changes(__builtin_return_address(0));
    const int rc = real(fd);
    if (rc == 0 && on) note_sync(fd);
    pthread_mutex_unlock(&lock);
    return rc;
}
