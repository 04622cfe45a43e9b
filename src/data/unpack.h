/* Text files as they are, or what they hold where they are compressed by gzip or zstd. */
#ifndef DH_DATA_UNPACK_H
#define DH_DATA_UNPACK_H

#include "data/stamp.h"

/* Limits of what a compressed file may hold. Up to DH_UNPACK_FREE bytes are taken as they come;
 * beyond them at most DH_UNPACK_RATIO times what was read for them, and room is kept free where
 * they are put: 1 GiB, or a twentieth of a file system that is smaller. */
#define DH_UNPACK_FREE ((size_t)64 << 20)
enum { DH_UNPACK_RATIO = 300 };

typedef struct dh_text_file {
    dh_map map;
    bool unpacked;    /* nobody else writes to what is mapped */
    dh_stamp stamp;   /* of a file that is mapped as it is */
    bool is_hashed;   /* with keep_dir, of an unpacked text: */
    uint64_t hash[2]; /* XXH3, 128 bits */
} dh_text_file;

/* A file's name without ".gz" or ".zst": its length; that of the whole name where it has neither.
 */
size_t dh_unpacked_name(const char *path);
/* A file that is compressed by gzip or zstd (by its first bytes) is unpacked: several members or
 * frames one after another are one text; zeros after gzip's members do not count, and what else
 * is no member there is left out with a warning, as gzip does; after zstd's frames it is refused,
 * as zstd does. The text goes to an unnamed file in $TMPDIR, else in /tmp, that is gone when the
 * map is closed. Other files are mapped.
 * keep_dir: a folder, created where it is missing, that keeps the text, so that the next time it is
 * only mapped. The kept file names the length and the hash of all of the compressed file that it
 * was made from and its own hash; both are compared each time. NULL or "": nothing is kept.
 * errors    DH_EFORMAT damaged or cut short, with the place, or beyond a limit; DH_EIO no room, or
 *           written to meanwhile; DH_ENOMEM; those of dh_map_open */
dh_status dh_text_file_open(dh_ctx *ctx, const char *path, const char *keep_dir, dh_text_file *f);
/* errors    DH_EIO: another program has written to it since it was opened */
dh_status dh_text_file_check(dh_ctx *ctx, const char *path, const dh_text_file *f);
void dh_text_file_close(dh_text_file *f);
/* The hash of the text. */
void dh_text_file_hash(const dh_text_file *f, uint64_t hash[2]);

#endif
