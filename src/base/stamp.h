/* Files that are mapped, and whether they still are what was mapped. */
#ifndef DH_BASE_STAMP_H
#define DH_BASE_STAMP_H

#include "base/base.h"

/* A file when it was opened. One that was replaced by a rename is another file: whoever has the old
 * one mapped reads it to the end. */
typedef struct dh_stamp {
    uint64_t device, inode;
    int64_t n_bytes, mtime_ns;
} dh_stamp;

/* False: there is no such file. */
bool dh_stamp_take(const char *path, dh_stamp *s);
/* errors    those of dh_map_open; DH_EIO a file that changes all the time */
dh_status dh_stamped_open(dh_ctx *ctx, const char *path, dh_map *map, dh_stamp *stamp);
/* Whether all that was mapped is there. Asked after bytes were copied (base/mapped.h): the kernel
 * shows zeros between a file's new end and the end of that page. errors    DH_EIO it was cut short
 */
dh_status dh_stamp_check_whole(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* Whether nobody has written to it. errors    DH_EIO it was cut short, or changed */
dh_status dh_stamp_check_same(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* The first n_bytes of an open file, whatever its name is by then. errors    DH_EIO */
dh_status dh_fd_map(dh_ctx *ctx, int fd, size_t n_bytes, const char *path, dh_map *map);

#endif
