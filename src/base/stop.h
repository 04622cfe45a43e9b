/* The flag by which a caller asks what runs to stop. A signal's handler, or any thread, sets it. */
#ifndef DH_BASE_STOP_H
#define DH_BASE_STOP_H

#include <signal.h>
#include <stdbool.h>

/* stop: NULL is never set */
static inline bool dh_stop_asked(const volatile sig_atomic_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

#endif
