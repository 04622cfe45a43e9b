/* Services without domain words: arena, files, logging, assertions, time, counter-based random
 * bits; growable strings and arrays come with them. */
#ifndef DH_BASE_BASE_H
#define DH_BASE_BASE_H

#include "dhelix/growable.h"
#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- assertions: our bugs, never user input -------------------------------- */

void dh_panic(const char *file, int line, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

/* DH_CHECK stays in release builds; DH_ASSERT only without NDEBUG. */
#define DH_CHECK(cond, ...)                                                                        \
    do {                                                                                           \
        if (!(cond)) dh_panic(__FILE__, __LINE__, #cond ": " __VA_ARGS__);                         \
    } while (0)
#ifdef NDEBUG
#define DH_ASSERT(cond, ...) ((void)0)
#else
#define DH_ASSERT(cond, ...) DH_CHECK(cond, __VA_ARGS__)
#endif

#define DH_COUNTOF(array) (sizeof(array) / sizeof((array)[0]))
#define DH_MIN(a, b) ((a) < (b) ? (a) : (b))
#define DH_MAX(a, b) ((a) > (b) ? (a) : (b))

#define DH_NONE UINT32_MAX /* a number of something: none */

/* ---- logging: stderr, "dhelix[rank]: level: text" ---------------------------- */

typedef enum dh_log_level {
    DH_LOG_ERROR,
    DH_LOG_WARN,
    DH_LOG_INFO,
    DH_LOG_DEBUG,
    DH_LOG_TRACE
} dh_log_level;

/* Initial level: DHELIX_LOG=error|warn|info|debug|trace, default info. */
void dh_log_set_level(dh_log_level level);
dh_log_level dh_log_get_level(void);
/* Rank shown in the prefix of this thread's lines; -1 shows none. */
void dh_log_set_rank(int rank);
void dh_log(dh_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- arena: one per phase; destroying the phase destroys the arena ------------- */

typedef struct dh_arena dh_arena;

dh_arena *dh_arena_create(void); /* NULL when out of memory */
/* One that several threads allocate from at once. */
dh_arena *dh_arena_create_shared(void);
void dh_arena_destroy(dh_arena *arena);
/* Zeroed, 64-byte aligned; NULL when out of memory. Freed with the arena.
 * Built with address sanitizer, every allocation is a malloc of its own. */
void *dh_arena_alloc(dh_arena *arena, size_t size_bytes);
/* n * size_bytes with overflow check. */
void *dh_arena_alloc_n(dh_arena *arena, size_t n, size_t size_bytes);
char *dh_arena_strdup(dh_arena *arena, const char *text);
char *dh_arena_printf(dh_arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define DH_NEW(arena, type) ((type *)dh_arena_alloc((arena), sizeof(type)))
#define DH_NEW_N(arena, type, n) ((type *)dh_arena_alloc_n((arena), (size_t)(n), sizeof(type)))

/* ---- threads ------------------------------------------------------------------------ */

enum { DH_MOST_THREADS = 64 };

/* Calls work(user) on n threads at once, of which this is one, and returns when all have; on fewer
 * where they cannot be started. n: DH_MOST_THREADS at most. */
void dh_work_together(size_t n, void *(*work)(void *), void *user);
/* Processors that this process may use; 0: not known. */
int64_t dh_own_processors(void);

/* ---- time -------------------------------------------------------------------------- */

int64_t dh_now_ns(void); /* monotonic */
void dh_sleep_until_ns(int64_t deadline_ns);

/* ---- files -------------------------------------------------------------------------- */

/* Read-only memory map of a whole file; an empty file gives n_bytes 0, at NULL.
 * errors    DH_EINVAL not a regular file (a FIFO does not block); DH_EPERM; DH_EIO */
typedef struct dh_map {
    const unsigned char *at;
    size_t n_bytes;
} dh_map;
dh_status dh_map_open(dh_ctx *ctx, const char *path, dh_map *map);
void dh_map_close(dh_map *map);

/* Whole small file as terminated text (caller frees); refuses above max_bytes. */
dh_status dh_file_read(dh_ctx *ctx, const char *path, size_t max_bytes, char **text,
                       size_t *n_bytes);
/* Write to a temporary file, fsync, rename: the old content or the new, never half. A symbolic link
 * at path is replaced, not followed. */
dh_status dh_file_write_atomic(dh_ctx *ctx, const char *path, const void *data, size_t n_bytes);
/* DIR/NAME likewise. errors: DH_ENOMEM also where the text lacks memory */
dh_status dh_file_write_in(dh_ctx *ctx, const char *dir, const char *name, const dh_str *text);
/* write(2) all bytes, retrying; the error names the path. */
dh_status dh_fd_write_all(dh_ctx *ctx, int fd, const char *path, const void *data, size_t n_bytes);
dh_status dh_dir_create(dh_ctx *ctx, const char *path); /* with parents, synced; existing is fine */
dh_status dh_dir_remove(dh_ctx *ctx, const char *path); /* recursive; missing is fine */
dh_status dh_dir_sync(dh_ctx *ctx, const char *path);   /* fsync the folder itself */
dh_status dh_parent_sync(dh_ctx *ctx, const char *path); /* fsync the folder that path lies in */
bool dh_path_exists(const char *path);
bool dh_path_is_dir(const char *path);
typedef enum dh_lock_answer {
    DH_LOCK_TAKEN,
    DH_LOCK_HELD, /* by another open file, here or on another host */
    DH_LOCK_NONE  /* the file system has no locks for such a file: any other error */
} dh_lock_answer;
/* flock without waiting; ends with the descriptor. */
dh_lock_answer dh_fd_lock(int fd, bool shared);

/* ---- temporary files and folders: every name that is written before it is renamed ----------- */

/* STEM.tmp-<16 hexadecimal digits, drawn>: new (never opened if it exists, no link followed) and
 * locked while its maker lives. */
typedef struct dh_temporary {
    char *path; /* NULL: none, or already in place */
    int fd;     /* a file: open for reading and writing; a folder: to sync and lock it; -1: none */
} dh_temporary;
#define DH_TEMPORARY_NONE ((dh_temporary){NULL, -1})
#define DH_TEMPORARY_END ".tmp-0123456789abcdef" /* the ending of a name, with its length */

/* out       *t: end with dh_temporary_commit or dh_temporary_drop
 * errors    DH_ENOMEM, DH_EPERM, DH_EIO: t untouched */
dh_status dh_temporary_file(dh_ctx *ctx, const char *stem, dh_temporary *t);
dh_status dh_temporary_dir(dh_ctx *ctx, const char *stem, dh_temporary *t);
/* fsync it, rename it to path (of a folder: absent or empty), sync the folder path lies in.
 * errors    *t stays, to be dropped, unless only the last sync failed */
dh_status dh_temporary_commit(dh_ctx *ctx, dh_temporary *t, const char *path);
/* Removes what has not been put in place; *t is DH_TEMPORARY_NONE afterwards. */
void dh_temporary_drop(dh_temporary *t);
/* Whether a name (without its folder) is one of these. */
bool dh_temporary_is_name(const char *name);
/* Remove the temporary files and folders right in dir whose makers are gone. */
void dh_dir_drop_leftovers(const char *dir);

/* ---- text ------------------------------------------------------------------------------ */

/* Nearest of n names to word (edit distance), or NULL if none is near enough to
 * be a likely typing error. */
const char *dh_nearest(const char *word, const char *const *names, size_t n);
/* Appends bytes in base64 (RFC 4648). */
void dh_append_base64(const void *bytes, size_t n_bytes, dh_str *out);
/* "1.50 GiB", "12.3 ms" or "11 min", "70.6 B" (thousand millions), "942 PFLOP": into a caller's
 * buffer, returns it. */
const char *dh_format_bytes(char *buf, size_t cap, double n_bytes);
const char *dh_format_ns(char *buf, size_t cap, double ns);
const char *dh_format_count(char *buf, size_t cap, double n);
const char *dh_format_flop(char *buf, size_t cap, double flop);
/* As %.<digits>g, but a large number is written out: 106000, not 1.06e+05. */
const char *dh_format_number(char *buf, size_t cap, double value, int digits);
/* Breaks text into lines of up to width columns, and ends the last line. The first line begins at
 * column indent; all later ones are indented. */
void dh_str_wrap(dh_str *out, const char *text, int indent, int width);
/* Columns that a line may have on this descriptor: of the terminal, elsewhere COLUMNS of the
 * environment or 80. */
int dh_terminal_columns(int fd);
/* Whole-string numbers; false on anything else (trailing text, overflow, empty). */
bool dh_parse_i64(const char *text, int64_t *value);
bool dh_parse_f64(const char *text, double *value);

/* ---- random bits: Philox4x32-10 (Salmon et al. 2011), a pure function ------------------- */

typedef struct dh_philox_key {
    uint32_t k[2];
} dh_philox_key;

static inline void dh_philox4x32(dh_philox_key key, const uint32_t ctr[4], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Uniform in [0, 1) with 24 bits. */
static inline float dh_u32_to_unit(uint32_t bits)
{
    return (float)(bits >> 8) * (1.0f / 16777216.0f);
}

/* splitmix64: mixes a seed and stream numbers into independent keys. */
uint64_t dh_mix64(uint64_t x);

#ifdef __cplusplus
}
#endif
#endif
