/* Folders and patterns -> files. */
#include "data/expand.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static dh_status no_memory(dh_ctx *ctx, const char *name)
{
    return dh_no_memory_while(ctx, "listing %s", name);
}

void dh_path_list_fini(dh_path_list *list)
{
    for (size_t i = 0; i < list->paths.n; i++) free(list->paths.at[i]);
    dh_vec_fini(&list->paths);
}

bool dh_path_list_push(dh_path_list *list, char *path)
{
    if (path && dh_vec_push(&list->paths, path)) return true;
    free(path);
    return false;
}

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The index of Megatron's tokens, which the .bin beside it stands for. */
static bool is_index(const char *path)
{
    const size_t n = strlen(path);
    if (n < 4 || strcmp(path + n - 4, ".idx") != 0) return false;
    dh_str bin = DH_STR_INIT;
    dh_str_append(&bin, path, n - 4);
    dh_str_append(&bin, ".bin", 4);
    const bool there = !bin.failed && is_file(bin.text);
    dh_str_fini(&bin);
    return there;
}

static bool add_if_file(dh_path_list *list, char *path)
{
    if (path && is_file(path) && !is_index(path)) return dh_path_list_push(list, path);
    const bool ok = path != NULL;
    free(path);
    return ok;
}

static char *joined(const char *folder, const char *name)
{
    dh_str path = DH_STR_INIT;
    const size_t n = strlen(folder);
    dh_str_printf(&path, n && folder[n - 1] == '/' ? "%s%s" : "%s/%s", folder, name);
    if (!path.failed) return path.text;
    dh_str_fini(&path);
    return NULL;
}

static int by_bytes(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

static dh_status add_folder(dh_ctx *ctx, const char *name, dh_path_list *list)
{
    DIR *dir = opendir(name);
    if (!dir)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", name, strerror(errno));
    bool ok = true;
    for (const struct dirent *e; ok && (e = readdir(dir));)
        if (e->d_name[0] != '.') ok = add_if_file(list, joined(name, e->d_name));
    closedir(dir);
    return ok ? DH_OK : no_memory(ctx, name);
}

static dh_status add_pattern(dh_ctx *ctx, const char *name, dh_path_list *list)
{
    glob_t found;
    const int failed = glob(name, GLOB_NOSORT, NULL, &found);
    if (failed == GLOB_NOSPACE) return no_memory(ctx, name);
    bool ok = true;
    for (size_t i = 0; failed == 0 && ok && i < found.gl_pathc; i++)
        ok = add_if_file(list, strdup(found.gl_pathv[i]));
    if (failed == 0) globfree(&found);
    return ok ? DH_OK : no_memory(ctx, name);
}

dh_status dh_data_expand(dh_ctx *ctx, const char *name, dh_path_list *list)
{
    const size_t before = list->paths.n;
    const bool folder = is_folder(name);
    if (!folder && (!strpbrk(name, "*?[") || is_file(name)))
        return dh_path_list_push(list, strdup(name)) ? DH_OK : no_memory(ctx, name);
    DH_TRY(folder ? add_folder(ctx, name, list) : add_pattern(ctx, name, list));
    const size_t n = list->paths.n - before;
    if (n == 0)
        return dh_fail(ctx, DH_EMISSING, folder ? "folder %s has no file" : "no file matches %s",
                       name);
    qsort(list->paths.at + before, n, sizeof *list->paths.at, by_bytes);
    return DH_OK;
}
