/* Files that are mapped, and whether they still are what was mapped. */
#ifndef DH_BASE_STAMP_H
#define DH_BASE_STAMP_H

#include "base/base.h"

/* A file when it was opened. One that was replaced by a rename is another file: whoever has the old
 * one mapped reads it to the end. The change time (ctime) cannot be set by a program, but it also
 * moves with links and attributes. Linux from 6.13 on gives each change after a stat a time of its
 * own; earlier kernels do not tell changes within one tick apart. */
typedef struct dh_stamp {
    uint64_t device, inode, n_links;
    int64_t n_bytes, mtime_ns, ctime_ns;
} dh_stamp;

/* False: there is no such file. */
bool dh_stamp_take(const char *path, dh_stamp *s);
bool dh_stamp_take_fd(int fd, dh_stamp *s);
/* Returns once no call that writes to the file is under way. A write sets the times when it begins,
 * so a stamp that is taken in its middle does not show it. Local file systems (ext4, tmpfs, btrfs)
 * hold the file's lock in both calls; elsewhere this does nothing. */
void dh_stamp_settle(int fd);
/* Whether nobody has written to a file of short use, even by a program that sets the time back.
 * Links that come or go meanwhile are no writing. */
bool dh_stamp_untouched(const dh_stamp *was, const dh_stamp *now);
/* errors    those of dh_map_open; DH_EIO a file that changes all the time */
dh_status dh_stamped_open(dh_ctx *ctx, const char *path, dh_map *map, dh_stamp *stamp);
/* Whether all that was mapped is there. Callers ask after they have copied bytes (base/mapped.h),
 * because the kernel shows zeros between a file's new end and the end of that page.
 * errors    DH_EIO it was cut short */
dh_status dh_stamp_check_whole(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* Whether nobody has written to a file that is in use for hours, by its time of modification. Its
 * attributes may change meanwhile.
 * errors    DH_EIO it was cut short, or changed */
dh_status dh_stamp_check_same(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* The same by dh_stamp_untouched. */
dh_status dh_stamp_check_untouched(dh_ctx *ctx, const char *path, const dh_stamp *stamp);
/* The first n_bytes of an open file, whatever its name is by then.
 * errors    DH_EIO */
dh_status dh_fd_map(dh_ctx *ctx, int fd, size_t n_bytes, const char *path, dh_map *map);

#endif
