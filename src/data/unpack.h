/* Text files that are compressed: read as what they hold. */
#ifndef DH_DATA_UNPACK_H
#define DH_DATA_UNPACK_H

#include "base/base.h"

/* A file's name without ".gz" or ".zst": its length; that of the whole name where it has neither.
 */
size_t dh_unpacked_name(const char *path);
/* Where a mapped file is compressed by gzip or zstd (by its first bytes, several members or frames
 * one after another), map becomes what it holds: an unnamed file in $TMPDIR, else in /tmp, that is
 * gone when the map is closed. Other files stay as they are.
 * keep_dir: a folder that keeps what it held, so that the next time it is only mapped: a file of
 * the text, and one that says of which file (size and time) it is; made anew when that changed.
 * NULL or
 * "": nothing is kept.
 * errors    DH_EFORMAT damaged or cut short, with the place; DH_EIO no room; DH_ENOMEM. map then is
 *           as it was */
dh_status dh_unpack(dh_ctx *ctx, const char *path, const char *keep_dir, dh_map *map);

#endif
