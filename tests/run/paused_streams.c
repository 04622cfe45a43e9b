/* The host's streams with pauses where they look at a counter: between two looks others may go on,
 * which otherwise happens once in millions. */
#include "base/base.h"

#include <sched.h>
#include <stdatomic.h>

/* Mostly none, else a short one or the turn of another thread. */
static void pause_now_and_then(void)
{
    static _Thread_local uint64_t n;
    const uint64_t drawn = dh_mix64(n++) % 64;
    if (drawn == 0) sched_yield();
    for (volatile int i = 0; drawn < 8 && i < 100; i++) continue;
}

#undef atomic_load
#define atomic_load(at) (pause_now_and_then(), atomic_load_explicit(at, memory_order_seq_cst))
#include "run/exec/host_streams.c" // NOLINT(bugprone-suspicious-include): its names are static
