#include "config/shipped.h"

#include <string.h>

extern const dh_embedded dh_shipped_files[];
extern const size_t dh_shipped_files_n;

#define FOLDER "validation/jobs/"
#define EXTENSION ".yaml"

const dh_embedded *dh_shipped_jobs(size_t *n)
{
    *n = dh_shipped_files_n;
    return dh_shipped_files;
}

const dh_embedded *dh_shipped_job_find(const char *name)
{
    const size_t n_folder = strlen(FOLDER), n_extension = strlen(EXTENSION);
    size_t n = strlen(name);
    if (strncmp(name, FOLDER, n_folder) == 0 && n > n_folder + n_extension &&
        strcmp(name + n - n_extension, EXTENSION) == 0) {
        name += n_folder;
        n -= n_folder + n_extension;
    }
    for (size_t i = 0; i < dh_shipped_files_n; i++)
        if (strncmp(dh_shipped_files[i].name, name, n) == 0 && !dh_shipped_files[i].name[n])
            return &dh_shipped_files[i];
    return NULL;
}
