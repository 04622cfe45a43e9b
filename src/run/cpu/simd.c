/* Chooses the table of inner loops for this machine. */
#include "run/cpu/simd.h"
#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

extern const dh_simd dh_simd_base;
#if defined(__x86_64__)
extern const dh_simd dh_simd_avx2, dh_simd_avx512;
#endif

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

/* Best first. */
static const struct candidate {
    const dh_simd *table;
    bool (*supported)(void);
} candidates[] = {
#if defined(__x86_64__)
    {&dh_simd_avx512, has_avx512},
    {&dh_simd_avx2, has_avx2},
#endif
    {&dh_simd_base, always},
};

/* Set once by the first dh_simd_get(); every thread would store the same value. */
static _Atomic(const dh_simd *) chosen;

/* The named table, or the best one for NULL and unknown names. */
static const dh_simd *find(const char *name, bool exact)
{
    for (size_t i = 0; i < DH_COUNTOF(candidates); i++)
        if (candidates[i].supported() && name && strcmp(name, candidates[i].table->name) == 0)
            return candidates[i].table;
    if (exact) return NULL;
    for (size_t i = 0; i < DH_COUNTOF(candidates); i++)
        if (candidates[i].supported()) return candidates[i].table;
    return &dh_simd_base;
}

const dh_simd *dh_simd_get(void)
{
    const dh_simd *table = atomic_load_explicit(&chosen, memory_order_acquire);
    if (table) return table;
    table = find(getenv("DHELIX_CPU_ISA"), false);
    atomic_store_explicit(&chosen, table, memory_order_release);
    return table;
}

const dh_simd *dh_simd_force(const char *name)
{
    const dh_simd *table = find(name, name != NULL);
    if (table) atomic_store_explicit(&chosen, table, memory_order_release);
    return table;
}
