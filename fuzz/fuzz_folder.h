/* A folder for targets whose readers open files by name; it goes when the program ends. */
#ifndef DH_FUZZ_FOLDER_H
#define DH_FUZZ_FOLDER_H

#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* In memory where there is such a place: readers that write sync what they wrote. */
static char fuzz_folder_path[40];

static inline void fuzz_remove_folder(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dir_remove(&ctx, fuzz_folder_path);
}

/* Made by the first call. */
static inline const char *fuzz_folder(void)
{
    static bool made;
    if (!made) {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/dhelix-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        DH_CHECK(mkdtemp(fuzz_folder_path), "cannot create %s", fuzz_folder_path);
        atexit(fuzz_remove_folder);
        made = true;
    }
    return fuzz_folder_path;
}

/* A file of the folder with these bytes alone; its path, until the next call of the same slot. */
static inline const char *fuzz_put(int slot, const char *name, const void *data, size_t size)
{
    enum { SLOTS = 4 };
    static char paths[SLOTS][128];
    dh_ctx ctx = DH_CTX_INIT;
    char *path = paths[slot];
    DH_CHECK(slot < SLOTS, "slot %d", slot);
    snprintf(path, sizeof paths[slot], "%s/%s", fuzz_folder(), name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    DH_CHECK(fd >= 0 && dh_fd_write_all(&ctx, fd, path, data, size) == DH_OK, "%s", path);
    close(fd);
    return path;
}

#endif
