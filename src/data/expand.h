/* What a job's list of data names: files, folders, patterns. */
#ifndef DH_DATA_EXPAND_H
#define DH_DATA_EXPAND_H

#include "base/base.h"

typedef struct dh_path_list {
    DH_VEC(char *) paths; /* owned */
} dh_path_list;

/* The files behind a name, in the order of their bytes, so that it is the same everywhere: all of a
 * folder but hidden ones and subfolders, what matches a pattern (*, ?, [...]) of which there is no
 * file by that name, else the name itself. Of X.bin and X.idx one.
 * out       appended; caller frees with dh_path_list_fini, also after a failure
 * errors    DH_EMISSING a folder or pattern without a file; DH_EIO; DH_ENOMEM */
dh_status dh_data_expand(dh_ctx *ctx, const char *name, dh_path_list *list);
void dh_path_list_fini(dh_path_list *list);

#endif
