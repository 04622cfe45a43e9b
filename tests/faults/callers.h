/* Whose calls count: those of the program itself, and of the libraries whose failures it has to
 * pass on. Calls of libgomp, oneDNN, MPI and the C++ library do not: they end the process when
 * memory or threads are short, whatever their caller does. */
#ifndef CALLERS_H
#define CALLERS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CALLERS_MAX = 16 };

typedef struct callers_range {
    uintptr_t begin, end, base;
    const char *name; /* of the library; "" of the program */
} callers_range;

static callers_range callers[CALLERS_MAX];
static int n_callers;

static inline bool callers_count(const char *name)
{
    static const char *const libraries[] = {"libjansson", "libyaml", "libpcre2", "libxxhash"};
    if (!*name) return true; /* the program */
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (strstr(name, libraries[i])) return true;
    return false;
}

static inline int callers_note(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    (void)user;
    for (int i = 0; callers_count(info->dlpi_name) && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD || !(h->p_flags & PF_X) || n_callers == CALLERS_MAX) continue;
        const uintptr_t begin = info->dlpi_addr + h->p_vaddr;
        callers[n_callers++] =
            (callers_range){begin, begin + h->p_memsz, info->dlpi_addr, info->dlpi_name};
    }
    return 0;
}

static inline void callers_find(void)
{
    dl_iterate_phdr(callers_note, NULL);
}

/* The range that an address lies in, NULL: a caller that does not count. */
static inline const callers_range *callers_range_of(const void *caller)
{
    for (int i = 0; i < n_callers; i++)
        if ((uintptr_t)caller >= callers[i].begin && (uintptr_t)caller < callers[i].end)
            return &callers[i];
    return NULL;
}

#endif
