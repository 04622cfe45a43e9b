/* One run, one folder. */
#ifndef DH_TRAIN_LOCK_H
#define DH_TRAIN_LOCK_H

#include "base/base.h"

/* A folder held by this process; zeroed: none. */
typedef struct dh_folder_lock {
    int fd;
    char *path;     /* the lock's file; NULL: nothing is held */
    bool by_record; /* the file system has no locks */
} dh_folder_lock;

/* Locks an existing folder. A lock of a dead process is taken over.
 * errors    DH_EINVAL another run holds it: names its host and process; DH_EIO, DH_EPERM */
dh_status dh_folder_claim(dh_ctx *ctx, const char *dir, dh_folder_lock *lock);
/* Whether the folder is still there under its name, and still this process's. */
bool dh_folder_is_held(const dh_folder_lock *lock);
/* Rename DIR to the first free name DIR.1, DIR.2, ..., unless a run holds it. */
dh_status dh_folder_set_aside(dh_ctx *ctx, const char *dir);
void dh_folder_release(dh_folder_lock *lock);

#endif
