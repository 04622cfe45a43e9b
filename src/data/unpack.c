/* gzip (RFC 1952) by zlib, zstd (RFC 8878) by its library. What comes out goes to an unnamed file
 * and is mapped like any other: texts may be larger than memory, and the kernel knows what to drop.
 */
#include "data/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
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

dh_status dh_unpack(dh_ctx *ctx, const char *path, dh_map *map)
{
    for (size_t i = 0; i < DH_COUNTOF(formats); i++) {
        const size_t n = strlen(formats[i].magic);
        if (map->n_bytes >= n && memcmp(map->at, formats[i].magic, n) == 0)
            return unpack_by(ctx, path, map, formats[i].unpack);
    }
    const size_t n = dh_unpacked_name(path);
    if (!path[n] || map->n_bytes == 0) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s is not compressed as its name says: rename it without %s",
                   path, path + n);
}
