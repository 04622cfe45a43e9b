/* Which files of a folder are tokenizers that are not read (unread.h). Messages name them, and
 * conversions keep them. */
#include "data/unread.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

bool dh_unread_tokenizer(const char *name)
{
    const char *dot = strrchr(name, '.');
    const bool tekken = strncmp(name, "tekken", 6) == 0 && dot && strcmp(dot, ".json") == 0;
    return tekken || strcmp(name, "tiktoken.model") == 0 ||
           (dot && dot > name && strcmp(dot, ".tiktoken") == 0);
}

void dh_unread_tokenizer_in(const char *folder, char name[DH_UNREAD_NAME])
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    *name = '\0';
    while (dir && (entry = readdir(dir)))
        if (dh_unread_tokenizer(entry->d_name) && (!*name || strcmp(entry->d_name, name) < 0))
            snprintf(name, DH_UNREAD_NAME, "%s", entry->d_name);
    if (dir) closedir(dir);
}
