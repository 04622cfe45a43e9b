#include "base/mapped.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

bool dh_copy_mapped(void *to, const void *from, size_t n_bytes)
{
    const pid_t self = getpid();
    for (size_t done = 0; done < n_bytes;) {
        const struct iovec out = {(char *)to + done, n_bytes - done};
        const struct iovec in = {(void *)((uintptr_t)from + done), n_bytes - done};
        const ssize_t n = process_vm_readv(self, &out, 1, &in, 1, 0);
        if (n < 0 && errno != EFAULT) {
            memcpy(out.iov_base, in.iov_base, in.iov_len);
            return true;
        }
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* A share of the memory that ranks of one machine can all take. */
static size_t most_owned(void)
{
    enum { ALWAYS = 64 << 20, SHARE = 16 };
    return DH_MAX((size_t)ALWAYS, (size_t)(dh_memory_available() / SHARE));
}

bool dh_map_own(dh_map *map)
{
    if (map->n_bytes == 0 || map->n_bytes > most_owned()) return true;
    void *at = mmap(NULL, map->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return true;
    dh_map own = {at, map->n_bytes};
    const bool ok = dh_copy_mapped(at, map->at, map->n_bytes);
    if (ok) {
        const dh_map file = *map;
        *map = own;
        own = file;
    }
    dh_map_close(&own);
    return ok;
}

/* ---- files ---------------------------------------------------------------------------------- */

dh_status dh_mapped_open(dh_ctx *ctx, const char *path, dh_mapped *file)
{
    *file = (dh_mapped){.path = path};
    return dh_stamped_open(ctx, path, &file->map, &file->stamp);
}

dh_reading dh_mapped_begin(const dh_mapped *file)
{
    dh_reading r = {file, -1};
    struct stat info;
    if (!file->path) return r;
    r.fd = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (r.fd < 0) return r;
    const dh_stamp *was = &file->stamp;
    if (fstat(r.fd, &info) == 0 && (uint64_t)info.st_dev == was->device &&
        (uint64_t)info.st_ino == was->inode)
        return r;
    close(r.fd);
    r.fd = -1;
    return r;
}

/* The end of the file comes first where it was cut. */
static bool read_row(int fd, char *to, size_t at, size_t n_bytes)
{
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = pread(fd, to + done, n_bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool copy_row(const dh_reading *r, char *to, const unsigned char *from, size_t n_bytes)
{
    if (!r->file->path) {
        memcpy(to, from, n_bytes);
        return true;
    }
    return r->fd >= 0 ? read_row(r->fd, to, (size_t)(from - r->file->map.at), n_bytes)
                      : dh_copy_mapped(to, from, n_bytes);
}

dh_status dh_mapped_rows(dh_ctx *ctx, const dh_reading *r, void *to, const unsigned char *from,
                         size_t n_rows, size_t row_bytes, size_t stride)
{
    const bool joined = stride == row_bytes;
    const size_t n = joined ? 1 : n_rows, part = joined ? n_rows * row_bytes : row_bytes;
    for (size_t i = 0; i < n && part > 0; i++) {
        if (copy_row(r, (char *)to + i * part, from + i * stride, part)) continue;
        DH_TRY(dh_stamp_check_whole(ctx, r->file->path, &r->file->stamp));
        return dh_fail(ctx, DH_EIO, "%s could not be read as far as it was when it was opened",
                       r->file->path);
    }
    return DH_OK;
}

dh_status dh_mapped_end(dh_ctx *ctx, dh_reading *r, dh_status st)
{
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
    if (st != DH_OK || !r->file->path) return st;
    return dh_stamp_check_whole(ctx, r->file->path, &r->file->stamp);
}

dh_status dh_mapped_copy(dh_ctx *ctx, const dh_mapped *file, void *to, const unsigned char *from,
                         size_t n_bytes)
{
    dh_reading r = dh_mapped_begin(file);
    return dh_mapped_end(ctx, &r, dh_mapped_rows(ctx, &r, to, from, 1, n_bytes, n_bytes));
}
