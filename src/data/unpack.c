/* gzip (RFC 1952) by zlib, zstd (RFC 8878) by its library. The text goes to a file without a name,
 * which is mapped like any other. Texts may therefore be larger than memory, and the kernel can
 * drop their pages.
 *
 * A kept text is one file, put in place whole by a rename: the text, then a record of its source.
 * The same bytes are unpacked and hashed, from a copy. A text is therefore never kept under the
 * name of other bytes, even if somebody writes to the source or to the folder. */
#include "data/unpack.h"
#include "base/mapped.h"
#include "base/memory.h"
#include "base/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { CHUNK = 1 << 18 };

typedef struct unpacking {
    dh_ctx *ctx;
    const char *path, *dir; /* dir: where the text goes */
    const char *program;    /* that unpacks such files */
    int from, to;           /* open files; -1: none */
    dh_stamp was;           /* the source when it was opened */
    size_t at, n_in;        /* bytes read; of them in `in` */
    size_t n_bytes;         /* of text */
    size_t most_bytes;
    XXH3_state_t *source, *text;
    unsigned char *in, *out; /* [CHUNK] */
} unpacking;

static dh_status no_memory(const unpacking *u)
{
    return dh_no_memory_while(u->ctx, "unpacking %s", u->path);
}

/* ---- what goes in --------------------------------------------------------------------------- */

static dh_status fail_reading(const unpacking *u)
{
    return dh_fail(u->ctx, dh_status_of_errno(errno), "cannot read %s: %s", u->path,
                   strerror(errno));
}

/* n_in: 0 at the end. */
static dh_status fill(unpacking *u)
{
    ssize_t n;
    if (dh_stop_asked(u->ctx->stop))
        return dh_fail(u->ctx, DH_EINTERRUPTED, "stopped while %s was unpacked", u->path);
    while ((n = pread(u->from, u->in, CHUNK, (off_t)u->at)) < 0 && errno == EINTR) {}
    if (n < 0) return fail_reading(u);
    u->n_in = (size_t)n;
    u->at += u->n_in;
    XXH3_128bits_update(u->source, u->in, u->n_in);
    return DH_OK;
}

static dh_status fill_to_end(unpacking *u)
{
    do DH_TRY(fill(u));
    while (u->n_in > 0);
    return DH_OK;
}

/* ---- what comes out ------------------------------------------------------------------------- */

/* Files of such file systems lie in memory. */
static bool is_memory(int fd)
{
    struct statfs info;
    return fstatfs(fd, &info) == 0 &&
           (info.f_type == TMPFS_MAGIC || (unsigned long)info.f_type == RAMFS_MAGIC);
}

static dh_status check_room(const unpacking *u)
{
    struct statvfs info;
    char so_far[32], left[32];
    if (fstatvfs(u->to, &info) != 0) return DH_OK;
    const double block = (double)info.f_frsize, available = dh_memory_available();
    const double kept_free = DH_MIN((double)info.f_blocks * block / 20, 1 << 30);
    double room = (double)info.f_bavail * block;
    if (available > 0 && is_memory(u->to)) room = DH_MIN(room, available);
    if (room > kept_free) return DH_OK;
    return dh_fail(u->ctx, DH_EIO, "no room in %s to unpack %s: %s of text so far, and %s are left",
                   u->dir, u->path, dh_format_bytes(so_far, sizeof so_far, (double)u->n_bytes),
                   dh_format_bytes(left, sizeof left, room));
}

static dh_status check_ratio(const unpacking *u)
{
    char text[32], source[32];
    if (u->n_bytes / DH_UNPACK_RATIO <= u->at) return DH_OK;
    return dh_fail(u->ctx, DH_EFORMAT,
                   "%s holds more than %d times its bytes (%s of text so far, from %s): where that "
                   "is right, unpack it first (%s)",
                   u->path, DH_UNPACK_RATIO, dh_format_bytes(text, sizeof text, (double)u->n_bytes),
                   dh_format_bytes(source, sizeof source, (double)u->at), u->program);
}

static dh_status put(unpacking *u, size_t n)
{
    const bool beyond = u->n_bytes / DH_UNPACK_FREE != (u->n_bytes + n) / DH_UNPACK_FREE;
    u->n_bytes += n;
    if (u->n_bytes > u->most_bytes)
        return dh_fail(u->ctx, DH_EFORMAT, "%s holds more than the %zu bytes allowed", u->path,
                       u->most_bytes);
    if (beyond) {
        DH_TRY(check_ratio(u));
        DH_TRY(check_room(u));
    }
    XXH3_128bits_update(u->text, u->out, n);
    const dh_status st = dh_fd_write_all(u->ctx, u->to, "a temporary file", u->out, n);
    return st == DH_OK ? DH_OK : dh_ctx_while(u->ctx, "unpacking %s", u->path);
}

/* ---- gzip ----------------------------------------------------------------------------------- */

static dh_status damaged(const unpacking *u, const char *format, size_t at, const char *what)
{
    return dh_fail(u->ctx, DH_EFORMAT, "%s: byte %zu of the %s file: %s", u->path, at, format,
                   what);
}

/* After a member: zeros are passed over. *more: another member may begin. */
static dh_status next_member(unpacking *u, z_stream *z, bool *more)
{
    enum { FIRST_OF_MEMBER = 0x1f };
    while (z->avail_in > 0 && *z->next_in == 0) {
        z->next_in++;
        z->avail_in--;
    }
    *more = z->avail_in > 0;
    if (!*more) return DH_OK;
    if (*z->next_in == FIRST_OF_MEMBER) return inflateReset(z) == Z_OK ? DH_OK : no_memory(u);
    dh_log(DH_LOG_WARN, "%s: from byte %zu on it is not gzip's, and is left out", u->path,
           u->at - z->avail_in);
    *more = false;
    return fill_to_end(u);
}

static dh_status inflate_some(unpacking *u, z_stream *z, int *end)
{
    do {
        z->next_out = u->out;
        z->avail_out = CHUNK;
        *end = inflate(z, Z_NO_FLUSH);
        if (*end == Z_MEM_ERROR) return no_memory(u);
        if (*end != Z_OK && *end != Z_STREAM_END && *end != Z_BUF_ERROR)
            return damaged(u, "gzip", u->at - z->avail_in, z->msg ? z->msg : "damaged");
        DH_TRY(put(u, CHUNK - z->avail_out));
    } while (z->avail_out == 0 && *end != Z_STREAM_END); /* more may come without further input */
    return DH_OK;
}

static dh_status inflate_all(unpacking *u, z_stream *z)
{
    int end = Z_OK;
    for (bool more = true;;) {
        if (z->avail_in == 0) {
            DH_TRY(fill(u));
            z->next_in = u->in;
            z->avail_in = (uInt)u->n_in;
            if (u->n_in == 0) break;
        }
        if (end == Z_STREAM_END) {
            DH_TRY(next_member(u, z, &more));
            if (u->n_in == 0) break;
            if (!more) continue;
        }
        DH_TRY(inflate_some(u, z, &end));
    }
    return end == Z_STREAM_END ? DH_OK
                               : damaged(u, "gzip", u->at, "it ends in the middle of the data");
}

static dh_status gunzip(unpacking *u)
{
    z_stream z = {.avail_in = 0};
    if (inflateInit2(&z, 15 + 16) != Z_OK) return no_memory(u); /* 16: with gzip's header */
    const dh_status st = inflate_all(u, &z);
    inflateEnd(&z);
    return st;
}

/* ---- zstd ----------------------------------------------------------------------------------- */

static dh_status unzstd_some(unpacking *u, ZSTD_DCtx *z, size_t *left)
{
    ZSTD_inBuffer in = {u->in, u->n_in, 0};
    bool full = false; /* there may be more to come without further input */
    while (in.pos < in.size || full) {
        ZSTD_outBuffer out = {u->out, CHUNK, 0};
        *left = ZSTD_decompressStream(z, &out, &in);
        if (ZSTD_isError(*left)) {
            if (ZSTD_getErrorCode(*left) == ZSTD_error_memory_allocation) return no_memory(u);
            return damaged(u, "zstd", u->at - (in.size - in.pos), ZSTD_getErrorName(*left));
        }
        full = out.pos == out.size && *left != 0;
        DH_TRY(put(u, out.pos));
    }
    return DH_OK;
}

static dh_status unzstd(unpacking *u)
{
    size_t left = 1;
    ZSTD_DCtx *z = ZSTD_createDCtx();
    dh_status st = z ? DH_OK : no_memory(u);
    do {
        if (st == DH_OK) st = fill(u);
        if (st == DH_OK) st = unzstd_some(u, z, &left);
    } while (st == DH_OK && u->n_in > 0);
    ZSTD_freeDCtx(z);
    if (st != DH_OK || left == 0) return st;
    return damaged(u, "zstd", u->at, "it ends in the middle of the data");
}

/* ---- the formats ---------------------------------------------------------------------------- */

typedef struct unpacker {
    const char *suffix, *magic, *program;
    dh_status (*unpack)(unpacking *u);
} unpacker;

static const unpacker formats[] = {{".gz", "\x1f\x8b", "gunzip", gunzip},
                                   {".zst", "\x28\xb5\x2f\xfd", "unzstd", unzstd}};

size_t dh_unpacked_name(const char *path)
{
    const size_t n = strlen(path);
    for (size_t i = 0; i < DH_COUNTOF(formats); i++) {
        const size_t m = strlen(formats[i].suffix);
        if (n > m && strcmp(path + n - m, formats[i].suffix) == 0) return n - m;
    }
    return n;
}

static const unpacker *format_of(const unsigned char *head, size_t n_head)
{
    for (size_t i = 0; i < DH_COUNTOF(formats); i++) {
        const size_t n = strlen(formats[i].magic);
        if (n_head >= n && memcmp(head, formats[i].magic, n) == 0) return &formats[i];
    }
    return NULL;
}

/* ---- unpacking once ------------------------------------------------------------------------- */

static bool same_hash(XXH128_hash_t a, const uint64_t b[2])
{
    return a.low64 == b[0] && a.high64 == b[1];
}

/* Whether the bytes read are those of the source as it was opened. The stamp tells, and the hash
 * where it is known. */
static dh_status check_source(const unpacking *u, const uint64_t *hash)
{
    dh_stamp is;
    if (!dh_stamp_take_fd(u->from, &is)) return fail_reading(u);
    if (dh_stamp_untouched(&u->was, &is) &&
        (!hash || same_hash(XXH3_128bits_digest(u->source), hash)))
        return DH_OK;
    return dh_fail(u->ctx, DH_EIO, "another program wrote to %s while it was read", u->path);
}

/* Into the file u->to; of a source that has changed meanwhile the error says so, whatever was found
 * in it. */
static dh_status unpack(unpacking *u, const unpacker *format, const uint64_t *source)
{
    u->program = format->program;
    u->at = 0;
    XXH3_128bits_reset(u->source);
    XXH3_128bits_reset(u->text);
    const dh_status st = format->unpack(u);
    if (st != DH_EFORMAT) return st == DH_OK ? check_source(u, source) : st;
    dh_ctx other = dh_ctx_like(u->ctx), *own = u->ctx;
    u->ctx = &other;
    const bool same = fill_to_end(u) == DH_OK && check_source(u, source) == DH_OK;
    u->ctx = own;
    if (other.status == DH_EINTERRUPTED) return dh_fail(own, other.status, "%s", other.message);
    return same ? st : dh_ctx_while(own, "reading what another program wrote to meanwhile");
}

/* ---- hashes of maps ------------------------------------------------------------------------- */

static void set_hash(uint64_t to[2], XXH128_hash_t hash)
{
    to[0] = hash.low64;
    to[1] = hash.high64;
}

typedef XXH_errorcode (*feed_fn)(XXH3_state_t *state, const void *bytes, size_t n);

static bool feed(XXH3_state_t *state, feed_fn fn, const unsigned char *at, size_t n_bytes)
{
    unsigned char block[1 << 16];
    for (size_t done = 0, n; done < n_bytes; done += n) {
        n = DH_MIN(n_bytes - done, sizeof block);
        if (!dh_copy_mapped(block, at + done, n) || fn(state, block, n) != XXH_OK) return false;
    }
    return true;
}

static bool hash_map(const void *at, size_t n_bytes, bool wide, uint64_t hash[2])
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return false;
    if (wide)
        XXH3_128bits_reset(state);
    else
        XXH3_64bits_reset(state);
    const bool ok = feed(state, wide ? XXH3_128bits_update : XXH3_64bits_update, at, n_bytes);
    if (wide)
        set_hash(hash, XXH3_128bits_digest(state));
    else
        hash[0] = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return ok;
}

bool dh_map_hash64(const void *at, size_t n_bytes, uint64_t *hash)
{
    return hash_map(at, n_bytes, false, hash);
}

bool dh_map_hash128(const void *at, size_t n_bytes, uint64_t hash[2])
{
    return hash_map(at, n_bytes, true, hash);
}

/* ---- nothing is kept ------------------------------------------------------------------------ */

static dh_status open_unnamed(unpacking *u)
{
    char name[4096];
    u->dir = getenv("TMPDIR");
    if (!u->dir || !*u->dir) u->dir = "/tmp";
    u->to = open(u->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (u->to >= 0) return DH_OK;
    /* file systems without unnamed files */
    if (snprintf(name, sizeof name, "%s/dhelix-XXXXXX", u->dir) < (int)sizeof name)
        u->to = mkostemp(name, O_CLOEXEC);
    if (u->to < 0)
        return dh_fail(u->ctx, DH_EIO, "cannot make a file in %s to unpack %s: %s", u->dir, u->path,
                       strerror(errno));
    unlink(name);
    return DH_OK;
}

static dh_status unpack_once(unpacking *u, const unpacker *format, dh_text_file *f)
{
    dh_status st = open_unnamed(u);
    if (st == DH_OK) st = unpack(u, format, NULL);
    if (st == DH_OK) st = dh_fd_map(u->ctx, u->to, u->n_bytes, u->path, &f->map);
    if (u->to >= 0) close(u->to);
    return st;
}

/* ---- what is kept --------------------------------------------------------------------------- */

/* The record after the text. Of 8-byte fields only, so that the bytes are the same everywhere. */
typedef struct note {
    char magic[8];
    uint64_t source_bytes, source_hash[2];
    uint64_t text_bytes, text_hash[2];
} note;

static const char note_magic[8] = {'D', 'H', 'T', 'E', 'X', 'T', '\0', 2};

static dh_status note_source(unpacking *u, note *n)
{
    *n = (note){.source_bytes = 0};
    memcpy(n->magic, note_magic, sizeof note_magic);
    XXH3_128bits_reset(u->source);
    DH_TRY(fill_to_end(u));
    n->source_bytes = u->at;
    set_hash(n->source_hash, XXH3_128bits_digest(u->source));
    return DH_OK;
}

/* One text for each source, by its path: one that changed takes the place of the old. */
static dh_status name_kept(dh_ctx *ctx, const char *path, const char *dir, dh_str *kept)
{
    char real[PATH_MAX];
    const char *full = realpath(path, real) ? real : path, *slash = strrchr(path, '/');
    dh_str_printf(kept, "%s/%.100s-%016llx.text", dir, slash ? slash + 1 : path,
                  (unsigned long long)XXH3_64bits(full, strlen(full)));
    return kept->failed ? dh_no_memory(ctx) : DH_OK;
}

/* Whether an open file is a text of this source, whole; maps it. */
static bool take_text(int fd, const char *path, const note *source, dh_text_file *f)
{
    dh_ctx unreadable = DH_CTX_INIT;
    struct stat info;
    note n;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < (off_t)sizeof n)
        return false;
    const size_t n_text = (size_t)info.st_size - sizeof n;
    if (pread(fd, &n, sizeof n, (off_t)n_text) != (ssize_t)sizeof n ||
        memcmp(&n, source, offsetof(note, text_bytes)) != 0 || n.text_bytes != n_text ||
        dh_fd_map(&unreadable, fd, n_text, path, &f->map) != DH_OK)
        return false;
    f->is_hashed = true;
    memcpy(f->hash, n.text_hash, sizeof f->hash);
    uint64_t found[2];
    if (dh_map_hash128(f->map.at, n_text, found) && memcmp(found, f->hash, sizeof found) == 0)
        return true;
    dh_map_close(&f->map);
    return false;
}

static bool take_kept(const char *path, const note *source, dh_text_file *f)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    const bool taken = take_text(fd, path, source, f);
    close(fd);
    if (!taken) dh_log(DH_LOG_INFO, "%s is out of date or damaged: unpacking again", path);
    return taken;
}

/* The note after the text, then both under the name. */
static dh_status keep(unpacking *u, const note *source, const char *path, dh_temporary *t,
                      dh_text_file *f)
{
    note n = *source;
    n.text_bytes = u->n_bytes;
    set_hash(n.text_hash, XXH3_128bits_digest(u->text));
    DH_TRY(dh_fd_write_all(u->ctx, t->fd, t->path, &n, sizeof n));
    if (!take_text(t->fd, t->path, source, f))
        return dh_fail(u->ctx, DH_EIO, "%s does not hold what was written to it", t->path);
    return dh_temporary_commit(u->ctx, t, path);
}

static dh_status make_kept(unpacking *u, const unpacker *format, const note *source,
                           const char *path, dh_text_file *f)
{
    dh_temporary t = DH_TEMPORARY_NONE;
    dh_status st = dh_dir_create(u->ctx, u->dir);
    if (st == DH_OK) st = dh_temporary_file(u->ctx, path, &t);
    u->to = t.fd;
    if (st == DH_OK) st = unpack(u, format, source->source_hash);
    if (st == DH_OK) st = keep(u, source, path, &t, f);
    if (st != DH_OK) dh_map_close(&f->map);
    dh_temporary_drop(&t);
    return st;
}

static dh_status unpack_kept(unpacking *u, const unpacker *format, const char *dir, dh_text_file *f)
{
    dh_str path = DH_STR_INIT;
    note source;
    u->dir = dir;
    dh_status st = name_kept(u->ctx, u->path, dir, &path);
    if (st == DH_OK) st = note_source(u, &source);
    if (st == DH_OK && !take_kept(path.text, &source, f))
        st = make_kept(u, format, &source, path.text, f);
    dh_str_fini(&path);
    return st;
}

/* ---- either way ----------------------------------------------------------------------------- */

static dh_status unpack_by(unpacking *u, const unpacker *format, const char *keep_dir,
                           dh_text_file *f)
{
    u->in = malloc(CHUNK);
    u->out = malloc(CHUNK);
    u->source = XXH3_createState();
    u->text = XXH3_createState();
    f->unpacked = true;
    dh_status st;
    if (!u->in || !u->out || !u->source || !u->text)
        st = no_memory(u);
    else
        st =
            keep_dir && *keep_dir ? unpack_kept(u, format, keep_dir, f) : unpack_once(u, format, f);
    XXH3_freeState(u->source);
    XXH3_freeState(u->text);
    free(u->in);
    free(u->out);
    return st;
}

static dh_status open_source(unpacking *u, unsigned char head[8], size_t *n_head)
{
    struct stat info;
    u->from = open(u->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would wait */
    if (u->from < 0)
        return dh_fail(u->ctx, dh_status_of_errno(errno), "cannot open %s: %s", u->path,
                       strerror(errno));
    if (fstat(u->from, &info) != 0 || !dh_stamp_take_fd(u->from, &u->was)) return fail_reading(u);
    if (!S_ISREG(info.st_mode))
        return dh_fail(u->ctx, DH_EINVAL, "%s is not a regular file", u->path);
    dh_stamp_settle(u->from);
    const ssize_t n = pread(u->from, head, 8, 0);
    *n_head = n > 0 ? (size_t)n : 0;
    return n < 0 ? fail_reading(u) : DH_OK;
}

/* A download that was broken off, or an image of a disk: what was never written reads as zeros. */
static dh_status refuse_holes(const unpacking *u)
{
    enum { MOST = 64 << 20 };
    struct stat info;
    int64_t missing = 0;
    if (fstat(u->from, &info) != 0) return DH_OK; /* mapping it says why */
    for (off_t at = 0; at < info.st_size && missing <= MOST;) {
        const off_t hole = lseek(u->from, at, SEEK_HOLE);
        if (hole < 0 || hole >= info.st_size) break;
        at = lseek(u->from, hole, SEEK_DATA);
        if (at < 0) at = info.st_size;
        missing += at - hole;
    }
    if (missing <= MOST) return DH_OK;
    return dh_fail(
        u->ctx, DH_EFORMAT,
        "%s was not written as a whole: of its %lld bytes at least %lld are holes, which "
        "read as zeros; copy or download it again",
        u->path, (long long)info.st_size, (long long)missing);
}

static dh_status map_plain(dh_ctx *ctx, const unpacking *u, size_t n_head, dh_text_file *f)
{
    const char *path = u->path;
    const size_t n = dh_unpacked_name(path);
    DH_TRY(refuse_holes(u));
    if (path[n] && n_head > 0)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s is not compressed as its name says: rename it without %s", path,
                       path + n);
    f->stamp = u->was;
    return dh_fd_map(ctx, u->from, (size_t)u->was.n_bytes, path, &f->map);
}

dh_status dh_text_file_open(dh_ctx *ctx, const char *path, const char *keep_dir, size_t most_bytes,
                            dh_text_file *f)
{
    unpacking u = {.ctx = ctx,
                   .path = path,
                   .most_bytes = most_bytes ? most_bytes : SIZE_MAX,
                   .from = -1,
                   .to = -1};
    unsigned char head[8];
    size_t n_head = 0;
    *f = (dh_text_file){.unpacked = false};
    dh_status st = open_source(&u, head, &n_head);
    const unpacker *format = st == DH_OK ? format_of(head, n_head) : NULL;
    if (format)
        st = unpack_by(&u, format, keep_dir, f);
    else if (st == DH_OK)
        st = map_plain(ctx, &u, n_head, f);
    if (u.from >= 0) close(u.from);
    return st;
}

dh_status dh_text_file_check(dh_ctx *ctx, const char *path, const dh_text_file *f)
{
    return f->unpacked ? DH_OK : dh_stamp_check_untouched(ctx, path, &f->stamp);
}

void dh_text_file_close(dh_text_file *f)
{
    dh_map_close(&f->map);
}

void dh_text_file_hash(const dh_text_file *f, uint64_t hash[2])
{
    if (f->is_hashed)
        memcpy(hash, f->hash, sizeof f->hash);
    else
        set_hash(hash, XXH3_128bits(f->map.at, f->map.n_bytes));
}
