/* Reading files through maps that another program may cut short meanwhile.
 *
 * A page behind a file's new end cannot be read, and the kernel answers with SIGBUS, which ends the
 * process. That is the host program's signal, so the library has no handler for it. The kernel
 * itself, asked to copy such a page, only says so. A copy of a page takes it a microsecond.
 *
 * The rule for every map of a file: its bytes are copied before they are used, and the file's
 * length is looked at afterwards. The one exception is a text that is larger than dh_map_own
 * copies. */
#ifndef DH_BASE_MAPPED_H
#define DH_BASE_MAPPED_H

#include "base/stamp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* memcpy from a map. False: the file has been cut short, and what is in `to` is of no use. Where
 * the kernel does not let a process ask (a filter of system calls), it is a plain memcpy. */
bool dh_copy_mapped(void *to, const void *from, size_t n_bytes);
/* Turns the map of a file into a copy in memory, which no other program can cut. A file is copied
 * if it has at most 64 MiB or a sixteenth of the free memory; a larger one stays mapped. False: the
 * file has been cut short. */
bool dh_map_own(dh_map *map);

/* A map with what its file was when it was opened. */
typedef struct dh_mapped {
    dh_map map;
    dh_stamp stamp;
    const char *path; /* borrowed; NULL: memory of the process, which nobody cuts */
} dh_mapped;

/* errors    those of dh_stamped_open */
dh_status dh_mapped_open(dh_ctx *ctx, const char *path, dh_mapped *file);
/* Reading such a map: begin, any number of rows, end. Copies are used only after the end.
 * Begin opens the file anew: reading it costs less than having the kernel look through the map.
 * Where its name is another file's by now, the map is copied from. */
typedef struct dh_reading {
    const dh_mapped *file;
    int fd; /* -1: from the map */
} dh_reading;
dh_reading dh_mapped_begin(const dh_mapped *file);
/* n_rows times row_bytes, `stride` bytes apart in the map, packed into `to`.
 * errors    DH_EIO the file was cut short */
dh_status dh_mapped_rows(dh_ctx *ctx, const dh_reading *r, void *to, const unsigned char *from,
                         size_t n_rows, size_t row_bytes, size_t stride);
/* Whether all that was mapped is still there; st: what came before.
 * errors    st; DH_EIO the file was cut short */
dh_status dh_mapped_end(dh_ctx *ctx, dh_reading *r, dh_status st);
/* All three, for one stretch. */
dh_status dh_mapped_copy(dh_ctx *ctx, const dh_mapped *file, void *to, const unsigned char *from,
                         size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
