/* Files: maps, atomic replacement, folders. Every failure names path and cause. */
#include "base/base.h"
#include "base/mapped.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

dh_status dh_map_open(dh_ctx *ctx, const char *path, dh_map *map)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would wait for its writer */
    if (fd < 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
    dh_status st = DH_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        st = dh_fail(ctx, DH_EIO, "cannot stat %s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        st = dh_fail(ctx, DH_EINVAL, "%s is not a regular file", path);
    } else if (info.st_size == 0) {
        *map = (dh_map){0};
    } else {
        void *at = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED)
            st = dh_fail(ctx, DH_EIO, "cannot map %s: %s", path, strerror(errno));
        else
            *map = (dh_map){at, (size_t)info.st_size};
    }
    close(fd);
    return st;
}

void dh_map_close(dh_map *map)
{
    if (map->at) munmap((void *)(uintptr_t)map->at, map->n_bytes);
    *map = (dh_map){0};
}

dh_status dh_file_read(dh_ctx *ctx, const char *path, size_t max_bytes, char **text,
                       size_t *n_bytes)
{
    dh_map map = {0};
    DH_TRY(dh_map_open(ctx, path, &map));
    dh_status st = DH_OK;
    char *copy = NULL;
    if (map.n_bytes > max_bytes)
        st = dh_fail(ctx, DH_EINVAL, "%s has %zu bytes, more than the %zu allowed", path,
                     map.n_bytes, max_bytes);
    else if (!(copy = malloc(map.n_bytes + 1)))
        st = dh_no_memory_while(ctx, "reading %s", path);
    else if (!dh_copy_mapped(copy, map.at, map.n_bytes))
        st = dh_fail(ctx, DH_EIO, "%s was cut short by another program while it was being read",
                     path);
    if (st == DH_OK) {
        copy[map.n_bytes] = '\0';
        *text = copy;
        *n_bytes = map.n_bytes;
    }
    dh_map_close(&map);
    return st;
}

dh_status dh_fd_write_all(dh_ctx *ctx, int fd, const char *path, const void *data, size_t n_bytes)
{
    const char *at = data;
    while (n_bytes > 0) {
        ssize_t n = write(fd, at, DH_MIN(n_bytes, (size_t)1 << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return dh_fail(ctx, DH_EIO, "cannot write %s: %s", path, strerror(errno));
        at += n;
        n_bytes -= (size_t)n;
    }
    return DH_OK;
}

/* The folder part of a path, "." when there is none. Caller frees. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

dh_status dh_parent_sync(dh_ctx *ctx, const char *path)
{
    char *parent = parent_of(path);
    if (!parent) return dh_no_memory_while(ctx, "writing %s", path);
    const dh_status st = dh_dir_sync(ctx, parent);
    free(parent);
    return st;
}

dh_status dh_file_write_atomic(dh_ctx *ctx, const char *path, const void *data, size_t n_bytes)
{
    dh_temporary t;
    DH_TRY(dh_temporary_file(ctx, path, &t));
    dh_status st = dh_fd_write_all(ctx, t.fd, t.path, data, n_bytes);
    if (st == DH_OK) st = dh_temporary_commit(ctx, &t, path);
    if (st != DH_OK) dh_temporary_drop(&t);
    return st;
}

dh_status dh_file_write_in(dh_ctx *ctx, const char *dir, const char *name, const dh_str *text)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", dir, name);
    const dh_status st = path.failed || text->failed
                             ? dh_no_memory(ctx)
                             : dh_file_write_atomic(ctx, path.text, text->text, text->len);
    dh_str_fini(&path);
    return st;
}

/* Syncs the folder that holds the new one. Otherwise a power cut could remove the new folder, with
 * everything that was synced inside it. */
static dh_status create_one(dh_ctx *ctx, const char *path)
{
    if (mkdir(path, 0755) != 0) {
        if (errno == EEXIST && dh_path_is_dir(path)) return DH_OK;
        if (errno == EEXIST)
            return dh_fail(ctx, DH_EIO, "cannot create folder %s: it is a file", path);
        return dh_fail(ctx, DH_EIO, "cannot create folder %s: %s", path, strerror(errno));
    }
    return dh_parent_sync(ctx, path);
}

dh_status dh_dir_create(dh_ctx *ctx, const char *path)
{
    char *copy = strdup(path);
    if (!copy) return dh_no_memory(ctx);
    dh_status st = DH_OK;
    for (char *p = copy + 1; st == DH_OK; p++) {
        if (*p != '/' && *p != '\0') continue;
        char kept = *p;
        *p = '\0';
        st = create_one(ctx, copy);
        *p = kept;
        if (kept == '\0') break;
    }
    free(copy);
    return st;
}

dh_status dh_dir_remove(dh_ctx *ctx, const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) return DH_OK;
    if (!S_ISDIR(info.st_mode)) {
        if (unlink(path) != 0 && errno != ENOENT)
            return dh_fail(ctx, DH_EIO, "cannot remove %s: %s", path, strerror(errno));
        return DH_OK;
    }
    DIR *dir = opendir(path);
    if (!dir) return dh_fail(ctx, DH_EIO, "cannot open folder %s: %s", path, strerror(errno));
    dh_status st = DH_OK;
    for (struct dirent *e; st == DH_OK && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        dh_str sub = DH_STR_INIT;
        dh_str_printf(&sub, "%s/%s", path, e->d_name);
        st = sub.failed ? dh_no_memory(ctx) : dh_dir_remove(ctx, sub.text);
        dh_str_fini(&sub);
    }
    closedir(dir);
    if (st == DH_OK && rmdir(path) != 0 && errno != ENOENT)
        st = dh_fail(ctx, DH_EIO, "cannot remove folder %s: %s", path, strerror(errno));
    return st;
}

dh_status dh_dir_sync(dh_ctx *ctx, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return dh_fail(ctx, DH_EIO, "cannot open folder %s: %s", path, strerror(errno));
    dh_status st = DH_OK;
    /* EINVAL: a file system that cannot sync folders; nothing more can be done there. */
    if (fsync(fd) != 0 && errno != EINVAL)
        st = dh_fail(ctx, DH_EIO, "cannot sync folder %s: %s", path, strerror(errno));
    close(fd);
    return st;
}

dh_lock_answer dh_fd_lock(int fd, bool shared)
{
    while (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        return errno == EWOULDBLOCK ? DH_LOCK_HELD : DH_LOCK_NONE;
    }
    return DH_LOCK_TAKEN;
}

bool dh_path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool dh_path_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}
