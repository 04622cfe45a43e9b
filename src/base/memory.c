/* Total and available memory, from the kernel's figures: of the machine, of the process' control
 * groups, and of its own limits. A missing file means that there is no such limit. */
#include "base/memory.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- small files ---------------------------------------------------------------------------- */

static FILE *open_under(const char *root, const char *path)
{
    dh_str full = DH_STR_INIT;
    dh_str_printf(&full, "%s%s", root, path);
    FILE *f = full.failed ? NULL : fopen(full.text, "re");
    dh_str_fini(&full);
    return f;
}

/* The number after the word `name` at the start of a line; without a name that of the first line.
 * -1: there is none ("max", no such file). */
static double number_in(const char *root, const char *path, const char *name)
{
    char *line = NULL;
    size_t cap = 0;
    const size_t n = strlen(name);
    double value = -1;
    FILE *f = open_under(root, path);
    while (f && value < 0 && getline(&line, &cap, f) > 0) {
        if (strncmp(line, name, n) != 0) continue;
        const char *at = line + n + strspn(line + n, ": \t");
        if (isdigit((unsigned char)*at)) value = (double)strtoull(at, NULL, 10);
        if (n == 0) break;
    }
    if (f) fclose(f);
    free(line);
    return value;
}

/* The least of all limits so far. */
typedef struct limits {
    double least; /* 0: none is known */
    bool whole;   /* nothing counts as used */
} limits;

static void at_most(limits *l, double bytes)
{
    bytes = DH_MAX(bytes, 1);
    if (l->least == 0 || bytes < l->least) l->least = bytes;
}

/* ---- control groups ------------------------------------------------------------------------- */

typedef struct hierarchy {
    const char *type, *controller; /* the mount's; controller: NULL where there is only one mount */
    const char *limit, *used, *inactive, *active; /* files of a group, words of its memory.stat */
} hierarchy;

static const hierarchy version_1 = {"cgroup",
                                    "memory",
                                    "memory.limit_in_bytes",
                                    "memory.usage_in_bytes",
                                    "total_inactive_file",
                                    "total_active_file"};
static const hierarchy version_2 = {"cgroup2",       NULL,         "memory.max", "memory.current",
                                    "inactive_file", "active_file"};

static double group_number(const char *root, const char *group, const char *file, const char *name)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", group, file);
    const double value = path.failed ? -1 : number_in(root, path.text, name);
    dh_str_fini(&path);
    return value;
}

/* Memory of cached files counts as used, and is given back on demand. */
static void limit_by_group(const char *root, const hierarchy *h, const char *group, limits *l)
{
    const double limit = group_number(root, group, h->limit, "");
    if (limit < 0) return;
    if (l->whole) {
        at_most(l, limit);
        return;
    }
    const double used = group_number(root, group, h->used, "");
    const double inactive = group_number(root, group, "memory.stat", h->inactive);
    const double active = group_number(root, group, "memory.stat", h->active);
    const double files = DH_MAX(inactive, 0) + DH_MAX(active, 0);
    at_most(l, limit - DH_MAX(DH_MAX(used, 0) - files, 0));
}

/* A group and those above it, up to where the hierarchy is mounted. */
static void limit_by_groups(const char *root, const hierarchy *h, char *group, size_t n_mount,
                            limits *l)
{
    for (;;) {
        limit_by_group(root, h, group, l);
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < n_mount) return;
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n])) return true;
    return false;
}

/* A line of mountinfo: "id parent device ROOT PLACE options ... - TYPE source OPTIONS". */
static bool is_mount_of(char *line, const hierarchy *h, char **in_hierarchy, char **place)
{
    char *fields = strstr(line, " - "), *rest, *options;
    if (!fields) return false;
    *fields = '\0';
    const char *type = strtok_r(fields + 3, " \n", &rest);
    if (!type || strcmp(type, h->type) != 0) return false;
    strtok_r(NULL, " \n", &rest);
    options = strtok_r(NULL, " \n", &rest);
    if (h->controller && !(options && has_word(options, h->controller))) return false;
    strtok_r(line, " ", &rest);
    for (int i = 0; i < 2; i++) strtok_r(NULL, " ", &rest);
    *in_hierarchy = strtok_r(NULL, " ", &rest);
    *place = strtok_r(NULL, " ", &rest);
    return *in_hierarchy && *place;
}

/* `path` of the process in the hierarchy; where only a part of this is mounted, from there on. */
static void limit_in_mount(const char *root, const hierarchy *h, const char *path,
                           const char *in_hierarchy, const char *place, limits *l)
{
    const size_t n = strcmp(in_hierarchy, "/") == 0 ? 0 : strlen(in_hierarchy);
    const bool inside = strncmp(path, in_hierarchy, n) == 0 && (path[n] == '/' || path[n] == '\0');
    dh_str group = DH_STR_INIT;
    dh_str_printf(&group, "%s%s", place, inside && strcmp(path + n, "/") != 0 ? path + n : "");
    if (!group.failed) limit_by_groups(root, h, group.text, strlen(place), l);
    dh_str_fini(&group);
}

static void limit_in_hierarchy(const char *root, const hierarchy *h, const char *path, limits *l)
{
    char *line = NULL, *in_hierarchy, *place;
    size_t cap = 0;
    FILE *f = open_under(root, "/proc/self/mountinfo");
    while (f && getline(&line, &cap, f) > 0)
        if (is_mount_of(line, h, &in_hierarchy, &place))
            limit_in_mount(root, h, path, in_hierarchy, place, l);
    if (f) fclose(f);
    free(line);
}

/* Lines "number:controllers:path"; version 2 has none of the middle. */
static void limit_by_hierarchies(const char *root, limits *l)
{
    char *line = NULL;
    size_t cap = 0;
    FILE *f = open_under(root, "/proc/self/cgroup");
    while (f && getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        if (!controllers[1])
            limit_in_hierarchy(root, &version_2, path, l);
        else if (has_word(controllers + 1, version_1.controller))
            limit_in_hierarchy(root, &version_1, path, l);
    }
    if (f) fclose(f);
    free(line);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static double machine_under(const char *root, bool whole)
{
    limits l = {.whole = whole};
    const double kib = number_in(root, "/proc/meminfo", whole ? "MemTotal" : "MemAvailable");
    if (kib >= 0) at_most(&l, kib * 1024);
    limit_by_hierarchies(root, &l);
    return l.least;
}

double dh_memory_available_under(const char *root)
{
    return machine_under(root, false);
}

double dh_memory_total_under(const char *root)
{
    return machine_under(root, true);
}

static void limit_by_own(int resource, const char *used, limits *l)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const double kib = l->whole ? 0 : number_in("", "/proc/self/status", used);
    at_most(l, (double)limit.rlim_cur - DH_MAX(kib, 0) * 1024);
}

static double of_process(bool whole)
{
    limits l = {.least = machine_under("", whole), .whole = whole};
    limit_by_own(RLIMIT_AS, "VmSize", &l);
    limit_by_own(RLIMIT_DATA, "VmData", &l);
    return l.least;
}

double dh_memory_available(void)
{
    const char *check = getenv("DHELIX_MEMORY_CHECK");
    return check && strcmp(check, "off") == 0 ? 0 : of_process(false);
}

double dh_memory_total(void)
{
    return of_process(true);
}

dh_status dh_memory_check(dh_ctx *ctx, double n_bytes, const char *what)
{
    const double available = dh_memory_available();
    char needed[32], left[32];
    if (available == 0 || n_bytes <= available) return DH_OK;
    return dh_fail(ctx, DH_ENOMEM, "%s needs %s of memory, and %s are free", what,
                   dh_format_bytes(needed, sizeof needed, n_bytes),
                   dh_format_bytes(left, sizeof left, available));
}
