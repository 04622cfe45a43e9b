/* Mapped files, and whether they are unchanged. */
#ifndef DH_DATA_STAMP_H
#define DH_DATA_STAMP_H

#include "base/base.h"

/* The state of a file when it was opened. A file put in its place by a rename is another file; the
 * old one stays mapped to its end. */
typedef struct dh_stamp {
    uint64_t device, inode;
    int64_t n_bytes, mtime_ns;
} dh_stamp;

/* errors    those of dh_map_open; DH_EIO a file that changes all the time */
dh_status dh_stamped_open(dh_ctx *ctx, const char *path, dh_map *map, dh_stamp *stamp);
/* Whether the whole mapped content is there. Call it before reading, since the kernel answers reads
 * past a file's new end with SIGBUS.
 * errors    DH_EIO it was cut short */
dh_status dh_stamp_check_whole(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* Whether nobody has written to it.
 * errors    DH_EIO it was cut short, or changed */
dh_status dh_stamp_check_same(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* Maps the first n_bytes of an open file, whatever its name is by then.
 * errors    DH_EIO */
dh_status dh_fd_map(dh_ctx *ctx, int fd, size_t n_bytes, const char *path, dh_map *map);

#endif
