/* Strings and arrays that grow. */
#ifndef DHELIX_GROWABLE_H
#define DHELIX_GROWABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "dhelix/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- growable string ----------------------------------------------------------- */

typedef struct dh_str {
    char *text; /* always terminated once non-NULL */
    size_t len, cap;
    bool failed; /* an append ran out of memory; text is what fitted */
} dh_str;

#define DH_STR_INIT                                                                                \
    {                                                                                              \
        0                                                                                          \
    }

DH_API void dh_str_fini(dh_str *s);
DH_API void dh_str_clear(dh_str *s);
DH_API void dh_str_append(dh_str *s, const char *text, size_t n_bytes);
DH_API void dh_str_printf(dh_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- growable array: dh_vec_push(ctx-less, returns false when out of memory) ------ */

#define DH_VEC(type)                                                                               \
    struct {                                                                                       \
        type *at;                                                                                  \
        size_t n, cap;                                                                             \
    }
DH_API bool dh_vec_grow(void **at, size_t *cap, size_t need, size_t item_bytes);
#define dh_vec_reserve(v, need)                                                                    \
    ((need) <= (v)->cap || dh_vec_grow((void **)&(v)->at, &(v)->cap, (need), sizeof(*(v)->at)))
#define dh_vec_push(v, ...)                                                                        \
    (dh_vec_reserve((v), (v)->n + 1) ? ((v)->at[(v)->n++] = (__VA_ARGS__), true) : false)
#define dh_vec_fini(v)                                                                             \
    do {                                                                                           \
        free((v)->at);                                                                             \
        (v)->at = NULL;                                                                            \
        (v)->n = (v)->cap = 0;                                                                     \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
