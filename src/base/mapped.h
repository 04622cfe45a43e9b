/* Reading files through maps that another program may cut short meanwhile.
 *
 * A page behind a file's new end cannot be read, and the kernel answers with SIGBUS, which ends the
 * process. That is the host program's signal, so the library has no handler for it. The kernel
 * itself, asked to copy such a page, only says so. A copy of a page takes it a microsecond. */
#ifndef DH_BASE_MAPPED_H
#define DH_BASE_MAPPED_H

#include "base/base.h"

/* memcpy from a map. False: the file has been cut short, and what is in `to` is of no use. Where
 * the kernel does not let a process ask (a filter of system calls), it is a plain memcpy. */
bool dh_copy_mapped(void *to, const void *from, size_t n_bytes);
/* A map of a file of up to 64 MiB becomes a copy in memory, which nobody cuts; a larger one stays.
 * False: the file has been cut short. */
bool dh_map_own(dh_map *map);

#endif
