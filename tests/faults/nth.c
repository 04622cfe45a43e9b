/* Preloaded into a program under test: the n-th call that the program makes of a kind fails.
 *
 *   DH_NTH=KIND:N          kind alloc, file or thread; N counts from 1; 0 only counts
 *   DH_NTH=KIND:path:P     the first call made from the functions that P stands for
 *   DH_NTH=KIND:each       every call, each in a copy of the process, which is made at the call and
 *                          runs to its end while the program waits
 *   DH_NTH=KIND:paths:K    the same for the first call of every K-th chain of functions that makes
 *                          one
 *   DH_NTH_DISK=FOLDER     with copies: all that is written lies in it, standard output and error,
 *                          too; every copy has a copy of it under the same name
 *   DH_NTH_ASK=FIFO        with copies: "N EXIT", or "path:P EXIT", when the one in which this call
 *   DH_NTH_ANSWER=FIFO     failed has ended; goes on when a byte is read here; EXIT is "threads"
 *                          for a call made beside other threads, which no copy has: none was made
 *   DH_NTH_REPORT=FILE     at the end: calls made, the call that failed, allocations never freed
 *
 * callers.h says whose calls count. What the program prints on standard error always arrives. Its
 * process number is one that no process has: what it leaves is that of a process that is gone. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "callers.h"
#include "copies.h"

/* ---- which call ---------------------------------------------------------------------------- */

typedef enum kind { ALLOC, FILES, THREAD, N_KINDS } kind;
static const char *const kind_names[N_KINDS] = {"alloc", "file", "thread"};

static kind armed = N_KINDS;
static enum { ONE, ONE_PATH, EACH, EACH_PATH, NO_MORE } which;
static int64_t nth, stride;
static uint64_t wanted_path;
static _Atomic int64_t n_calls;
static const char *struck_name, *struck_in;
static uintptr_t struck_at;

static atomic_flag busy = ATOMIC_FLAG_INIT;

static void lock(void)
{
    while (atomic_flag_test_and_set(&busy)) continue;
}

/* The functions that are being executed, wherever they lie in memory this time; never 0. */
static uint64_t path_here(void)
{
    enum { DEEPEST = 64 };
    void *at[DEEPEST];
    uint64_t path = 1;
    const int n = backtrace(at, DEEPEST);
    for (int i = 0; i < n; i++) {
        const callers_range *r = callers_range_of(at[i]);
        if (r) path = (path ^ ((uintptr_t)at[i] - r->base)) * 0x100000001B3u;
    }
    return path ? path : 1;
}

/* Whether it was never here before, and so many others were. */
static bool is_new(uint64_t path, int64_t every)
{
    enum { MOST = 1 << 15 };
    static uint64_t paths[MOST];
    static int64_t n_paths;
    lock();
    size_t i = path % MOST;
    while (paths[i] && paths[i] != path) i = (i + 1) % MOST;
    const bool new = !paths[i];
    paths[i] = path;
    const bool chosen = new &&n_paths % every == 0;
    n_paths += new;
    if (n_paths == MOST) tree_give_up("tell apart", "so many calls");
    atomic_flag_clear(&busy);
    return chosen;
}

/* Whether call n is one that is to fail in this process. */
static bool is_chosen(int64_t n)
{
    char call[32];
    if (which == NO_MORE || (which == ONE && n != nth)) return false;
    if (which == ONE) return true;
    const uint64_t path = which == EACH ? 0 : path_here();
    if (which == ONE_PATH) return path == wanted_path && is_new(path, 1);
    if (which == EACH_PATH && !is_new(path, stride)) return false;
    if (which == EACH)
        snprintf(call, sizeof call, "%lld", (long long)n);
    else
        snprintf(call, sizeof call, "path:%016llx", (unsigned long long)path);
    if (!copies_make(call)) return false;
    which = NO_MORE;
    return true;
}

/* Whether this call is to fail; sets errno. */
static bool strikes(kind k, const char *name, const void *caller, int error)
{
    if (armed != k) return false;
    const callers_range *r = callers_range_of(caller);
    if (!r || !is_chosen(atomic_fetch_add(&n_calls, 1) + 1)) return false;
    struck_name = name;
    struck_in = r->name;
    struck_at = (uintptr_t)caller - r->base;
    errno = error;
    return true;
}

#define STRIKES(kind, name, error) strikes(kind, name, __builtin_return_address(0), error)

/* ---- what is never freed ------------------------------------------------------------------- */

enum { SLOT_BITS = 17, N_SLOTS = 1 << SLOT_BITS };

static struct {
    void *at;
    const void *caller;
} * live; /* open addressing; mapped, so that noting takes no memory */
static int n_live;

static size_t slot_of(const void *at)
{
    return ((uintptr_t)at >> 4) * 0x9E3779B97F4A7C15u >> (64 - SLOT_BITS);
}

static void *note(void *at, const void *caller)
{
    if (!at || !live || !callers_range_of(caller)) return at;
    lock();
    size_t i = slot_of(at);
    if (++n_live == N_SLOTS) tree_give_up("note", "so many allocations");
    while (live[i].at) i = (i + 1) % N_SLOTS;
    live[i].at = at;
    live[i].caller = caller;
    atomic_flag_clear(&busy);
    return at;
}

/* Entries behind a freed one move up, so that no search ends early. */
static void close_gap(size_t gap)
{
    for (size_t i = (gap + 1) % N_SLOTS; live[i].at; i = (i + 1) % N_SLOTS) {
        const size_t home = slot_of(live[i].at);
        if ((i - home) % N_SLOTS < (i - gap) % N_SLOTS) continue;
        live[gap] = live[i];
        gap = i;
    }
    live[gap].at = NULL;
    n_live--;
}

static void forget(const void *at)
{
    if (!at || !live) return;
    lock();
    size_t i = slot_of(at);
    while (live[i].at && live[i].at != at) i = (i + 1) % N_SLOTS;
    if (live[i].at) close_gap(i);
    atomic_flag_clear(&busy);
}

/* ---- beginning and end --------------------------------------------------------------------- */

/* text: what follows the kind */
static void choose(const char *text)
{
    if (strcmp(text, "each") == 0)
        which = EACH;
    else if (strncmp(text, "paths:", 6) == 0)
        which = EACH_PATH;
    else if (strncmp(text, "path:", 5) == 0)
        which = ONE_PATH;
    if (which == ONE) nth = strtoll(text, NULL, 10);
    if (which == EACH_PATH) stride = strtoll(text + 6, NULL, 10);
    if (which == ONE_PATH) wanted_path = strtoull(text + 5, NULL, 16);
    if (which == EACH || which == EACH_PATH) copies_begin();
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("DH_NTH");
    const char *colon = text ? strchr(text, ':') : NULL;
    if (!colon) return;
    unsetenv("LD_PRELOAD"); /* children are not under test */
    callers_find();
    path_here(); /* the first takes memory */
    void *table = mmap(NULL, N_SLOTS * sizeof *live, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table != MAP_FAILED) live = table;
    choose(colon + 1);
    for (int k = 0; k < N_KINDS; k++)
        if (strncmp(text, kind_names[k], (size_t)(colon - text)) == 0) armed = (kind)k;
}

/* libyaml 0.2.5 loses what it has of a mapping when a stack of its own cannot grow. */
static bool is_lost_by_libyaml(const callers_range *by)
{
    return struck_in == by->name && strstr(by->name, "libyaml");
}

static void report_live(FILE *f)
{
    int n_seen = 0, n_lost = 0;
    for (size_t i = 0; n_seen < n_live; i++) {
        if (!live[i].at) continue;
        const callers_range *by = callers_range_of(live[i].caller);
        n_seen++;
        if (by && !is_lost_by_libyaml(by)) {
            fprintf(f, "at 0x%zx\n", (size_t)((uintptr_t)live[i].caller - by->base));
            n_lost++;
        }
    }
    fprintf(f, "live %d\n", n_lost);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("DH_NTH_REPORT");
    armed = N_KINDS;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "calls %lld\n", (long long)n_calls);
    fprintf(f, "struck %s %s 0x%zx\n", struck_name ? struck_name : "none",
            struck_in && *struck_in ? struck_in : "program", (size_t)struck_at);
    report_live(f);
    fclose(f);
}

/* ---- allocation ---------------------------------------------------------------------------- */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *at, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *at);

void *malloc(size_t n)
{
    if (STRIKES(ALLOC, "malloc", ENOMEM)) return NULL;
    return note(__libc_malloc(n), __builtin_return_address(0));
}

void *calloc(size_t n, size_t size)
{
    if (STRIKES(ALLOC, "calloc", ENOMEM)) return NULL;
    return note(__libc_calloc(n, size), __builtin_return_address(0));
}

void *realloc(void *at, size_t n)
{
    if (STRIKES(ALLOC, "realloc", ENOMEM)) return NULL;
    forget(at); /* first: another thread may get the address as soon as it is free */
    void *moved = __libc_realloc(at, n);
    note(moved || n == 0 ? moved : at, __builtin_return_address(0));
    return moved;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    if (STRIKES(ALLOC, "aligned_alloc", ENOMEM)) return NULL;
    return note(__libc_memalign(alignment, n), __builtin_return_address(0));
}

static char *copy_text(const char *text, size_t n, const void *caller)
{
    char *copy = __libc_malloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return note(copy, caller);
}

char *strdup(const char *text)
{
    if (STRIKES(ALLOC, "strdup", ENOMEM)) return NULL;
    return copy_text(text, strlen(text), __builtin_return_address(0));
}

char *strndup(const char *text, size_t n)
{
    if (STRIKES(ALLOC, "strndup", ENOMEM)) return NULL;
    return copy_text(text, strnlen(text, n), __builtin_return_address(0));
}

void free(void *at)
{
    forget(at);
    __libc_free(at);
}

/* ---- files and threads --------------------------------------------------------------------- */

/* name(parameters), called with arguments: fails with error, else passes on. */
#define PASS(type, name, parameters, arguments, error, failure)                                    \
    type name parameters                                                                           \
    {                                                                                              \
        NEXT(name);                                                                                \
        return STRIKES(FILES, #name, error) ? (failure) : real arguments;                          \
    }

PASS(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), EIO, -1)
PASS(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), ENOSPC, -1)
PASS(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), ENOSPC, -1)
PASS(int, fsync, (int fd), (fd), EIO, -1)
PASS(int, ftruncate, (int fd, off_t n), (fd, n), ENOSPC, -1)
PASS(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), ENOSPC, -1)
PASS(int, rename, (const char *from, const char *to), (from, to), EIO, -1)
PASS(int, renameat2, (int from_fd, const char *from, int to_fd, const char *to, unsigned flags),
     (from_fd, from, to_fd, to, flags), EIO, -1)
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode), ENOSPC, -1)
PASS(int, unlink, (const char *path), (path), EIO, -1)
PASS(int, rmdir, (const char *path), (path), EIO, -1)
PASS(int, mkstemp, (char *name), (name), ENOSPC, -1)
PASS(int, fchmod, (int fd, mode_t mode), (fd, mode), EIO, -1)
PASS(int, stat, (const char *path, struct stat *info), (path, info), EIO, -1)
PASS(int, lstat, (const char *path, struct stat *info), (path, info), EIO, -1)
PASS(int, fstat, (int fd, struct stat *info), (fd, info), EIO, -1)
PASS(DIR *, opendir, (const char *path), (path), EIO, NULL)
PASS(struct dirent *, readdir, (DIR * dir), (dir), EIO, NULL)
PASS(FILE *, fopen, (const char *path, const char *mode), (path, mode), EIO, NULL)
PASS(size_t, fread, (void *to, size_t size, size_t n, FILE *f), (to, size, n, f), EIO, 0)
PASS(char *, realpath, (const char *path, char *resolved), (path, resolved), EIO, NULL)
PASS(void *, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t offset),
     (at, n, protection, flags, fd, offset), ENOMEM, MAP_FAILED)

int open(const char *path, int flags, ...)
{
    NEXT(open);
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (STRIKES(FILES, "open", flags & O_CREAT ? ENOSPC : EIO)) return -1;
    return real(path, flags, mode);
}

int close(int fd)
{
    NEXT(close);
    const bool fails = STRIKES(FILES, "close", EIO);
    const int rc = real(fd);
    if (fails) errno = EIO; /* the descriptor is gone all the same */
    return fails ? -1 : rc;
}

size_t fwrite(const void *from, size_t size, size_t n, FILE *f)
{
    NEXT(fwrite);
    return f != stderr && STRIKES(FILES, "fwrite", ENOSPC) ? 0 : real(from, size, n, f);
}

int fflush(FILE *f)
{
    NEXT(fflush);
    return f != stderr && STRIKES(FILES, "fflush", ENOSPC) ? EOF : real(f);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    NEXT(pthread_create);
    return STRIKES(THREAD, "pthread_create", EAGAIN) ? EAGAIN
                                                     : real(thread, attributes, run, argument);
}
