/* gzip (RFC 1952) by zlib, zstd (RFC 8878) by its library. What comes out goes to an unnamed file
 * and is mapped like any other: texts may be larger than memory, and the kernel knows what to drop.
 */
#include "data/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { CHUNK = 1 << 18 };

typedef struct unpacking {
    dh_ctx *ctx;
    const char *path;
    const dh_map *from;
    size_t at; /* bytes read */
    int fd;    /* of the unnamed file */
    size_t n_bytes;
    unsigned char *chunk; /* [CHUNK] */
} unpacking;

static dh_status damaged(const unpacking *u, const char *format, const char *what)
{
    return dh_fail(u->ctx, DH_EFORMAT, "%s: byte %zu of the %s file: %s", u->path, u->at, format,
                   what);
}

static dh_status no_memory(const unpacking *u)
{
    return dh_fail(u->ctx, DH_ENOMEM, "out of memory unpacking %s", u->path);
}

static dh_status put(unpacking *u, size_t n)
{
    u->n_bytes += n;
    const dh_status st = dh_fd_write_all(u->ctx, u->fd, "a temporary file", u->chunk, n);
    return st == DH_OK ? DH_OK : dh_ctx_while(u->ctx, "unpacking %s", u->path);
}

/* ---- gzip ----------------------------------------------------------------------------------- */

static dh_status inflate_all(unpacking *u, z_stream *z)
{
    const dh_map *from = u->from;
    int end = Z_OK;
    bool full = false; /* there may be more to come without further input */
    while (u->at < from->n_bytes || z->avail_in > 0 || full) {
        if (z->avail_in == 0) {
            z->next_in = (z_const Bytef *)from->at + u->at;
            z->avail_in = (uInt)DH_MIN(from->n_bytes - u->at, (size_t)1 << 30);
            u->at += z->avail_in;
        }
        /* the next member */
        if (end == Z_STREAM_END && inflateReset(z) != Z_OK) return no_memory(u);
        z->next_out = u->chunk;
        z->avail_out = CHUNK;
        end = inflate(z, Z_NO_FLUSH);
        if (end == Z_MEM_ERROR) return no_memory(u);
        if (end != Z_OK && end != Z_STREAM_END && end != Z_BUF_ERROR) {
            u->at -= z->avail_in;
            return damaged(u, "gzip", z->msg ? z->msg : "damaged");
        }
        full = z->avail_out == 0 && end != Z_STREAM_END;
        DH_TRY(put(u, CHUNK - z->avail_out));
    }
    return end == Z_STREAM_END ? DH_OK : damaged(u, "gzip", "it ends in the middle of the data");
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

static dh_status unzstd_all(unpacking *u, ZSTD_DCtx *z)
{
    ZSTD_inBuffer in = {u->from->at, u->from->n_bytes, 0};
    size_t left = 1;
    bool full = false; /* there may be more to come without further input */
    while (in.pos < in.size || full) {
        ZSTD_outBuffer out = {u->chunk, CHUNK, 0};
        left = ZSTD_decompressStream(z, &out, &in);
        u->at = in.pos;
        if (ZSTD_isError(left)) {
            if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation) return no_memory(u);
            return damaged(u, "zstd", ZSTD_getErrorName(left));
        }
        full = out.pos == out.size && left != 0;
        DH_TRY(put(u, out.pos));
    }
    return left == 0 ? DH_OK : damaged(u, "zstd", "it ends in the middle of the data");
}

static dh_status unzstd(unpacking *u)
{
    ZSTD_DCtx *z = ZSTD_createDCtx();
    if (!z) return no_memory(u);
    const dh_status st = unzstd_all(u, z);
    ZSTD_freeDCtx(z);
    return st;
}

/* ---- the file ------------------------------------------------------------------------------- */

static const struct {
    const char *suffix, *magic;
    dh_status (*unpack)(unpacking *u);
} formats[] = {{".gz", "\x1f\x8b", gunzip}, {".zst", "\x28\xb5\x2f\xfd", unzstd}};

size_t dh_unpacked_name(const char *path)
{
    const size_t n = strlen(path);
    for (size_t i = 0; i < DH_COUNTOF(formats); i++) {
        const size_t m = strlen(formats[i].suffix);
        if (n > m && strcmp(path + n - m, formats[i].suffix) == 0) return n - m;
    }
    return n;
}

static dh_status open_unnamed(unpacking *u)
{
    const char *dir = getenv("TMPDIR");
    char name[4096];
    if (!dir || !*dir) dir = "/tmp";
    u->fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (u->fd >= 0) return DH_OK;
    /* file systems without unnamed files */
    if (snprintf(name, sizeof name, "%s/dhelix-XXXXXX", dir) < (int)sizeof name)
        u->fd = mkostemp(name, O_CLOEXEC);
    if (u->fd < 0)
        return dh_fail(u->ctx, DH_EIO, "cannot make a file in %s to unpack %s: %s", dir, u->path,
                       strerror(errno));
    unlink(name);
    return DH_OK;
}

static dh_status map_unnamed(const unpacking *u, dh_map *map)
{
    void *at = NULL;
    if (u->n_bytes > 0) {
        at = mmap(NULL, u->n_bytes, PROT_READ, MAP_PRIVATE, u->fd, 0);
        if (at == MAP_FAILED)
            return dh_fail(u->ctx, DH_EIO, "cannot map what %s holds: %s", u->path,
                           strerror(errno));
    }
    dh_map_close(map);
    *map = (dh_map){at, u->n_bytes};
    return DH_OK;
}

/* ---- what is kept --------------------------------------------------------------------------- */

typedef struct kept {
    dh_str text, note; /* paths: the text, and of what it is */
    dh_str temporary;  /* of the text while it is written */
    dh_str source;     /* the note, but for the text's size */
} kept;

static void kept_fini(kept *k)
{
    dh_str_fini(&k->text);
    dh_str_fini(&k->note);
    dh_str_fini(&k->temporary);
    dh_str_fini(&k->source);
}

/* One text for each source, by its path: one that changed takes the place of the old. */
static dh_status name_kept(dh_ctx *ctx, const char *path, const char *dir, kept *k)
{
    char real[PATH_MAX];
    struct stat info;
    const char *full = realpath(path, real) ? real : path, *slash = strrchr(path, '/');
    if (stat(path, &info) != 0) return dh_fail(ctx, DH_EIO, "cannot stat %s", path);
    dh_str_printf(&k->text, "%s/%.100s-%016llx.text", dir, slash ? slash + 1 : path,
                  (unsigned long long)XXH3_64bits(full, strlen(full)));
    dh_str_printf(&k->note, "%s.of", k->text.text ? k->text.text : "");
    dh_str_printf(&k->temporary, "%s.tmp-%ld", k->text.text ? k->text.text : "", (long)getpid());
    dh_str_printf(&k->source, "unpacked 1\nsource %lld bytes, %lld.%09ld s\n",
                  (long long)info.st_size, (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    if (k->text.failed || k->note.failed || k->temporary.failed || k->source.failed)
        return dh_fail(ctx, DH_ENOMEM, "out of memory for a path in %s", dir);
    return DH_OK;
}

static void note_text(const kept *k, size_t n_bytes, dh_str *out)
{
    dh_str_printf(out, "%stext %zu bytes\n", k->source.text, n_bytes);
}

/* Whether the text is there, whole and of this source; maps it. */
static bool take_kept(const kept *k, dh_map *map)
{
    dh_ctx unreadable = DH_CTX_INIT;
    dh_map text = {0};
    dh_str want = DH_STR_INIT;
    char *note = NULL;
    size_t n;
    bool same = dh_path_exists(k->note.text) && dh_path_exists(k->text.text) &&
                dh_file_read(&unreadable, k->note.text, 4096, &note, &n) == DH_OK &&
                dh_map_open(&unreadable, k->text.text, &text) == DH_OK;
    if (same) note_text(k, text.n_bytes, &want);
    same = same && !want.failed && strcmp(want.text, note) == 0;
    if (same) {
        dh_map_close(map);
        *map = text;
    } else {
        dh_map_close(&text);
    }
    dh_str_fini(&want);
    free(note);
    return same;
}

/* The text under its name, then the note: a text without its note counts for nothing. */
static dh_status keep(unpacking *u, const kept *k)
{
    dh_str note = DH_STR_INIT;
    note_text(k, u->n_bytes, &note);
    dh_status st = note.failed ? no_memory(u) : DH_OK;
    unlink(k->note.text);
    if (st == DH_OK && (fsync(u->fd) != 0 || rename(k->temporary.text, k->text.text) != 0))
        st = dh_fail(u->ctx, DH_EIO, "cannot keep %s: %s", k->text.text, strerror(errno));
    if (st == DH_OK) st = dh_file_write_atomic(u->ctx, k->note.text, note.text, note.len);
    dh_str_fini(&note);
    return st;
}

static dh_status open_temporary(unpacking *u, const char *dir, const kept *k)
{
    DH_TRY(dh_dir_create(u->ctx, dir));
    u->fd = open(k->temporary.text, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (u->fd >= 0) return DH_OK;
    return dh_fail(u->ctx, DH_EIO, "cannot make %s to unpack %s: %s", k->temporary.text, u->path,
                   strerror(errno));
}

/* ---- either way ----------------------------------------------------------------------------- */

static dh_status unpack_kept(dh_ctx *ctx, const char *path, const char *dir, dh_map *map,
                             dh_status (*unpack)(unpacking *u))
{
    kept k = {.text = DH_STR_INIT};
    unpacking u = {.ctx = ctx, .path = path, .from = map, .fd = -1};
    dh_status st = name_kept(ctx, path, dir, &k);
    if (st == DH_OK && !take_kept(&k, map)) {
        u.chunk = malloc(CHUNK);
        st = u.chunk ? open_temporary(&u, dir, &k) : no_memory(&u);
        if (st == DH_OK) st = unpack(&u);
        if (st == DH_OK) st = keep(&u, &k);
        if (st == DH_OK) st = map_unnamed(&u, map);
        if (st != DH_OK && u.fd >= 0) unlink(k.temporary.text);
        if (u.fd >= 0) close(u.fd);
        free(u.chunk);
    }
    kept_fini(&k);
    return st;
}

static dh_status unpack_by(dh_ctx *ctx, const char *path, dh_map *map,
                           dh_status (*unpack)(unpacking *u))
{
    unpacking u = {.ctx = ctx, .path = path, .from = map, .fd = -1, .chunk = malloc(CHUNK)};
    dh_status st = u.chunk ? open_unnamed(&u) : no_memory(&u);
    if (st == DH_OK) st = unpack(&u);
    if (st == DH_OK) st = map_unnamed(&u, map);
    if (u.fd >= 0) close(u.fd);
    free(u.chunk);
    return st;
}

dh_status dh_unpack(dh_ctx *ctx, const char *path, const char *keep_dir, dh_map *map)
{
    for (size_t i = 0; i < DH_COUNTOF(formats); i++) {
        const size_t n = strlen(formats[i].magic);
        if (map->n_bytes < n || memcmp(map->at, formats[i].magic, n) != 0) continue;
        return keep_dir && *keep_dir ? unpack_kept(ctx, path, keep_dir, map, formats[i].unpack)
                                     : unpack_by(ctx, path, map, formats[i].unpack);
    }
    const size_t n = dh_unpacked_name(path);
    if (!path[n] || map->n_bytes == 0) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s is not compressed as its name says: rename it without %s",
                   path, path + n);
}
