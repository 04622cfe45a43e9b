/* Folders as wholes. What cannot be done ends the program: it would be judged by this. */
#ifndef TREE_H
#define TREE_H

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TREE_PATH_BYTES = 4096, TREE_EXIT_CODE = 99 };

static inline void tree_give_up(const char *what, const char *path)
{
    fprintf(stderr, "fault library: cannot %s %s: %s\n", what, path, strerror(errno));
    _exit(TREE_EXIT_CODE);
}

static inline void tree_copy_file(const char *from, const char *to)
{
    char part[1 << 14];
    struct stat info;
    size_t n;
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    if (!in || !out || stat(from, &info) != 0) tree_give_up("copy to", to);
    while ((n = fread(part, 1, sizeof part, in)) > 0)
        if (fwrite(part, 1, n, out) != n) tree_give_up("copy to", to);
    fclose(in);
    if (fclose(out) != 0 || chmod(to, info.st_mode) != 0) tree_give_up("copy to", to);
}

/* The next entry of a folder, and its path; false after the last. */
static inline bool tree_next(DIR *dir, const char *path, char at[TREE_PATH_BYTES], bool *is_dir)
{
    struct dirent *e;
    do e = readdir(dir);
    while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0));
    if (!e) return false;
    struct stat info;
    snprintf(at, TREE_PATH_BYTES, "%s/%s", path, e->d_name);
    if (lstat(at, &info) != 0) tree_give_up("examine", at);
    *is_dir = S_ISDIR(info.st_mode);
    return true;
}

static inline DIR *tree_open(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) tree_give_up("list", path);
    return dir;
}

static inline void tree_make(const char *path)
{
    if (mkdir(path, 0755) != 0) tree_give_up("create", path);
}

static inline void tree_copy(const char *from, const char *to)
{
    char at[TREE_PATH_BYTES], there[TREE_PATH_BYTES];
    bool is_dir;
    tree_make(to);
    DIR *dir = tree_open(from);
    while (tree_next(dir, from, at, &is_dir)) {
        snprintf(there, sizeof there, "%s%s", to, at + strlen(from));
        if (is_dir)
            tree_copy(at, there);
        else
            tree_copy_file(at, there);
    }
    closedir(dir);
}

static inline void tree_remove(const char *path)
{
    char at[TREE_PATH_BYTES];
    bool is_dir;
    DIR *dir = tree_open(path);
    while (tree_next(dir, path, at, &is_dir)) {
        if (is_dir)
            tree_remove(at);
        else if (unlink(at) != 0)
            tree_give_up("remove", at);
    }
    closedir(dir);
    if (rmdir(path) != 0) tree_give_up("remove", path);
}

#endif
