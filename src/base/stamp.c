/* The inode, length and time of a file when it was mapped. */
#include "base/stamp.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_TRIES = 100 };

static dh_stamp stamp_of(const struct stat *info)
{
    return (dh_stamp){(uint64_t)info->st_dev,
                      (uint64_t)info->st_ino,
                      (uint64_t)info->st_nlink,
                      (int64_t)info->st_size,
                      (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec,
                      (int64_t)info->st_ctim.tv_sec * 1000000000 + info->st_ctim.tv_nsec};
}

bool dh_stamp_take(const char *path, dh_stamp *s)
{
    struct stat info;
    if (stat(path, &info) != 0) return false;
    *s = stamp_of(&info);
    return true;
}

bool dh_stamp_take_fd(int fd, dh_stamp *s)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return false;
    *s = stamp_of(&info);
    return true;
}

void dh_stamp_settle(int fd)
{
    (void)lseek(fd, 0, SEEK_HOLE);
    (void)lseek(fd, 0, SEEK_SET);
}

static bool is_file(const dh_stamp *a, const dh_stamp *b)
{
    return a->device == b->device && a->inode == b->inode;
}

static bool is_same(const dh_stamp *a, const dh_stamp *b)
{
    return is_file(a, b) && a->n_bytes == b->n_bytes && a->mtime_ns == b->mtime_ns;
}

bool dh_stamp_untouched(const dh_stamp *was, const dh_stamp *now)
{
    return is_same(was, now) && (was->n_links != now->n_links || was->ctime_ns == now->ctime_ns);
}

/* Mapped between two equal stamps. */
dh_status dh_stamped_open(dh_ctx *ctx, const char *path, dh_map *map, dh_stamp *stamp)
{
    dh_stamp after;
    for (int i = 0; i < N_TRIES; i++) {
        const bool before = dh_stamp_take(path, stamp);
        DH_TRY(dh_map_open(ctx, path, map));
        if (before && dh_stamp_take(path, &after) && is_same(stamp, &after) &&
            (size_t)stamp->n_bytes == map->n_bytes)
            return DH_OK;
        dh_map_close(map);
    }
    return dh_fail(ctx, DH_EIO, "%s changes all the time: another program writes to it", path);
}

dh_status dh_stamp_check_whole(dh_ctx *ctx, const char *path, const dh_stamp *stamp)
{
    dh_stamp now;
    if (!dh_stamp_take(path, &now) || !is_file(&now, stamp) || now.n_bytes >= stamp->n_bytes)
        return DH_OK;
    return dh_fail(ctx, DH_EIO,
                   "%s was cut short by another program while it was read: it had %lld bytes, and "
                   "has %lld",
                   path, (long long)stamp->n_bytes, (long long)now.n_bytes);
}

static dh_status check(dh_ctx *ctx, const char *path, const dh_stamp *stamp,
                       bool (*holds)(const dh_stamp *was, const dh_stamp *now))
{
    dh_stamp now;
    DH_TRY(dh_stamp_check_whole(ctx, path, stamp));
    if (!dh_stamp_take(path, &now) || !is_file(&now, stamp) || holds(stamp, &now)) return DH_OK;
    return dh_fail(ctx, DH_EIO, "another program wrote to %s while it was read", path);
}

dh_status dh_stamp_check_same(dh_ctx *ctx, const char *path, const dh_stamp *stamp)
{
    return check(ctx, path, stamp, is_same);
}

dh_status dh_stamp_check_untouched(dh_ctx *ctx, const char *path, const dh_stamp *stamp)
{
    return check(ctx, path, stamp, dh_stamp_untouched);
}

dh_status dh_fd_map(dh_ctx *ctx, int fd, size_t n_bytes, const char *path, dh_map *map)
{
    void *at = NULL;
    if (n_bytes > 0) {
        at = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED)
            return dh_fail(ctx, dh_status_of_errno(errno), "cannot map %s: %s", path,
                           strerror(errno));
    }
    *map = (dh_map){at, n_bytes};
    return DH_OK;
}
