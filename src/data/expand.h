/* Entries of a job's list of data: files, folders, patterns. */
#ifndef DH_DATA_EXPAND_H
#define DH_DATA_EXPAND_H

#include "base/base.h"

typedef struct dh_path_list {
    DH_VEC(char *) paths; /* owned */
} dh_path_list;

/* The files of a name, sorted by bytes, so that the order is the same everywhere.
 *   folder    all files in it except hidden ones and subfolders
 *   pattern   (*, ?, [...]) its matches, unless a file has that very name
 *   other     the name itself
 * X.bin and X.idx count as one file.
 * out       appended; caller frees with dh_path_list_fini, also after a failure
 * errors    DH_EMISSING a folder or pattern without a file; DH_EIO; DH_ENOMEM */
dh_status dh_data_expand(dh_ctx *ctx, const char *name, dh_path_list *list);
/* Takes the path, which malloc gave, also where it fails. false: out of memory, or path is NULL */
bool dh_path_list_push(dh_path_list *list, char *path);
void dh_path_list_fini(dh_path_list *list);

#endif
