/* Text files as they are, or what they hold where they are compressed by gzip or zstd. */
#ifndef DH_DATA_UNPACK_H
#define DH_DATA_UNPACK_H

#include <signal.h>

#include "base/stamp.h"

/* Limits of the content of a compressed file. Up to DH_UNPACK_FREE bytes are accepted in any
 * case. Beyond that the content may be at most DH_UNPACK_RATIO times the bytes read. Room is
 * kept free on the target file system: 1 GiB, or a twentieth of a smaller one. */
#define DH_UNPACK_FREE ((size_t)64 << 20)
enum { DH_UNPACK_RATIO = 300 };

typedef struct dh_text_file {
    dh_map map;
    bool unpacked;    /* nobody else writes to what is mapped */
    dh_stamp stamp;   /* of a file that is mapped as it is */
    bool is_hashed;   /* with keep_dir, of an unpacked text: */
    uint64_t hash[2]; /* XXH3, 128 bits */
} dh_text_file;

/* Length of a file's name without its ending ".gz" or ".zst", if it has one. */
size_t dh_unpacked_name(const char *path);
/* Opens a text file. A file compressed by gzip or zstd (by its first bytes) is unpacked to an
 * unnamed file in $TMPDIR, else in /tmp, that is gone when the map is closed. Other files are
 * mapped.
 *   members, frames       several one after another are one text
 *   bytes after members   gzip: zeros do not count, others are left out with a warning, like gzip
 *   bytes after frames    zstd: refused, as zstd does
 * in        keep_dir: a folder, created where it is missing, that keeps the text, so that it is
 *           only mapped the next time. The kept file names its own hash, and length and hash of the
 *           whole compressed file; they are compared each time. NULL or "": nothing is kept
 *           most_bytes: of what comes out; 0: as much as the other limits allow
 * errors    DH_EFORMAT damaged or cut short, with the place, or beyond a limit; DH_EIO no room, or
 *           written to meanwhile; DH_ENOMEM; DH_EINTERRUPTED; those of dh_map_open */
dh_status dh_text_file_open(dh_ctx *ctx, const char *path, const char *keep_dir, size_t most_bytes,
                            dh_text_file *f);
/* errors    DH_EIO: another program has written to it since it was opened */
dh_status dh_text_file_check(dh_ctx *ctx, const char *path, const dh_text_file *f);
void dh_text_file_close(dh_text_file *f);
/* XXH3 of 64 or 128 bits of bytes of a map, which are copied out of it. False: the file was cut
 * short, or there is no memory. */
bool dh_map_hash64(const void *at, size_t n_bytes, uint64_t *hash);
bool dh_map_hash128(const void *at, size_t n_bytes, uint64_t hash[2]);
/* The hash of the text. */
void dh_text_file_hash(const dh_text_file *f, uint64_t hash[2]);

#endif
