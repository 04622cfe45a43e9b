/* A caller's request to stop. Its flag is in the context of the call (dh_ctx.stop), and a signal's
 * handler or any thread sets it.
 *
 * Every loop that may take longer than a second calls dh_heed_stop in steps of some milliseconds.
 * Such steps are slots of a schedule, buffers of a file or events of a simulation. A call costs a
 * load. A function that gives other threads contexts of their own, or tries something in one, makes
 * them with dh_ctx_like. Nothing is tried again, or in another way, after DH_EINTERRUPTED. */
#ifndef DH_BASE_STOP_H
#define DH_BASE_STOP_H

#include "dhelix/status.h"

/* stop: NULL is never set */
static inline bool dh_stop_asked(const volatile sig_atomic_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* in        what: the end of the message "stopped while <what>"
 * errors    DH_EINTERRUPTED, once the context's flag is set */
static inline dh_status dh_heed_stop(dh_ctx *ctx, const char *what)
{
    if (!ctx || !dh_stop_asked(ctx->stop)) return DH_OK;
    return dh_fail(ctx, DH_EINTERRUPTED, "stopped while %s", what);
}

/* Without a failure, and with the flag of another. */
static inline dh_ctx dh_ctx_like(const dh_ctx *ctx)
{
    dh_ctx like = DH_CTX_INIT;
    like.stop = ctx ? ctx->stop : NULL;
    return like;
}

/* The flag that a call's options name, where they do, is the context's during the call. Returns
 * what is to be put back. */
static inline const volatile sig_atomic_t *dh_stop_by(dh_ctx *ctx,
                                                      const volatile sig_atomic_t *stop)
{
    const volatile sig_atomic_t *own = ctx->stop;
    if (stop) ctx->stop = stop;
    return own;
}

#endif
