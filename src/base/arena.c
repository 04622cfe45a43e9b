/* Arena: chunks of growing size, freed together. Under address sanitizer each
 * allocation is its own malloc, so overruns are seen. */
#include "base/base.h"
#include "base/c_locale.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define SEPARATE_MALLOCS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SEPARATE_MALLOCS 1
#endif
#endif
#ifndef SEPARATE_MALLOCS
#define SEPARATE_MALLOCS 0
#endif

enum { ALIGN = 64, FIRST_CHUNK = 16 << 10, MAX_CHUNK = 4 << 20 };

typedef struct chunk {
    struct chunk *next;
    size_t used, cap; /* payload bytes; payload starts at ALIGN */
} chunk;

struct dh_arena {
    chunk *head;
    size_t next_cap;
    bool is_shared;
    pthread_mutex_t lock; /* of a shared one */
};

dh_arena *dh_arena_create(void)
{
    dh_arena *arena = calloc(1, sizeof *arena);
    if (arena) arena->next_cap = FIRST_CHUNK;
    return arena;
}

dh_arena *dh_arena_create_shared(void)
{
    dh_arena *arena = dh_arena_create();
    if (!arena) return NULL;
    arena->is_shared = true;
    pthread_mutex_init(&arena->lock, NULL);
    return arena;
}

void dh_arena_destroy(dh_arena *arena)
{
    if (!arena) return;
    for (chunk *c = arena->head; c;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    if (arena->is_shared) pthread_mutex_destroy(&arena->lock);
    free(arena);
}

static chunk *chunk_push(dh_arena *arena, size_t cap)
{
    chunk *c = aligned_alloc(ALIGN, ALIGN + cap);
    if (!c) return NULL;
    *c = (chunk){.next = arena->head, .cap = cap};
    arena->head = c;
    return c;
}

static void *take(dh_arena *arena, size_t need)
{
    chunk *c = arena->head;
    if (SEPARATE_MALLOCS || !c || c->cap - c->used < need) {
        size_t cap = SEPARATE_MALLOCS ? need : DH_MAX(need, arena->next_cap);
        c = chunk_push(arena, cap);
        if (!c) return NULL;
        if (arena->next_cap < MAX_CHUNK) arena->next_cap *= 2;
    }
    void *at = (char *)c + ALIGN + c->used;
    c->used += need;
    return at;
}

void *dh_arena_alloc(dh_arena *arena, size_t size_bytes)
{
    if (size_bytes > SIZE_MAX / 2) return NULL;
    size_t need = (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (need == 0) need = ALIGN;
    if (arena->is_shared) pthread_mutex_lock(&arena->lock);
    void *at = take(arena, need);
    if (arena->is_shared) pthread_mutex_unlock(&arena->lock);
    return at ? memset(at, 0, size_bytes) : NULL;
}

void *dh_arena_alloc_n(dh_arena *arena, size_t n, size_t size_bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total)) return NULL;
    return dh_arena_alloc(arena, total);
}

char *dh_arena_strdup(dh_arena *arena, const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = dh_arena_alloc(arena, n);
    if (copy) memcpy(copy, text, n);
    return copy;
}

char *dh_arena_printf(dh_arena *arena, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = dh_vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = n < 0 ? NULL : dh_arena_alloc(arena, (size_t)n + 1);
    if (text) dh_vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}
