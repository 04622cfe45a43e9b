/* Status codes and the error context every fallible call takes.
 *
 * A function that can fail returns dh_status and takes a dh_ctx first. The
 * function that detects a fault writes the message (what was wrong, where,
 * what would be right); callers only propagate, or add where it happened with
 * dh_ctx_while(). Out-parameters are set only on DH_OK. */
#ifndef DHELIX_STATUS_H
#define DHELIX_STATUS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dhelix/export.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_STATUS_LIST(X)                                                                          \
    X(DH_OK, "success")                                                                            \
    X(DH_EINVAL, "invalid input")                                                                  \
    X(DH_EFORMAT, "malformed file")                                                                \
    X(DH_EIO, "input/output error")                                                                \
    X(DH_EPERM, "not permitted")                                                                   \
    X(DH_ENOMEM, "out of memory")                                                                  \
    X(DH_EMISSING, "not found")                                                                    \
    X(DH_EUNSUPPORTED, "unsupported")                                                              \
    X(DH_EDIVERGED, "training diverged")                                                           \
    X(DH_EVERIFY, "program verification failed")                                                   \
    X(DH_ECOMM, "communication failed")                                                            \
    X(DH_EINTERRUPTED, "interrupted")                                                              \
    X(DH_EINTERNAL, "internal error")

typedef enum dh_status {
#define X(code, text) code,
    DH_STATUS_LIST(X)
#undef X
        DH_N_STATUS
} dh_status;

/* The library's version, "1.2.3". */
DH_API const char *dh_version(void);

/* Name ("DH_EIO") and one-line meaning of a code; never NULL. */
DH_API const char *dh_status_name(dh_status status);
DH_API const char *dh_status_text(dh_status status);

#define DH_CTX_MESSAGE_BYTES 2048

/* Error context: first detector wins. Not shared between threads; each rank
 * owns one. Initialise with DH_CTX_INIT or dh_ctx_reset(). */
typedef struct dh_ctx {
    dh_status status; /* first failure, DH_OK if none */
    int rank;         /* rank that owns the context; -1: no ranks */
    /* When it becomes non-zero, calls that take long end with DH_EINTERRUPTED. A signal handler or
     * any thread may set it. NULL: none; dh_ctx_reset keeps it. */
    const volatile sig_atomic_t *stop;
    char message[DH_CTX_MESSAGE_BYTES]; /* "" when status is DH_OK */
} dh_ctx;

#define DH_CTX_INIT                                                                                \
    {                                                                                              \
        .status = DH_OK, .rank = -1                                                                \
    }

DH_API void dh_ctx_reset(dh_ctx *ctx);

/* Of a system call that failed: DH_EPERM (EACCES, EPERM), DH_ENOMEM, else DH_EIO. */
DH_API dh_status dh_status_of_errno(int error);

/* Record a failure and return its code. A message already recorded is kept. */
DH_API dh_status dh_fail(dh_ctx *ctx, dh_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__
/* Static analysis reads one file at a time: tell it that a failure is never DH_OK. */
#define dh_fail(ctx, code, ...) (dh_fail((ctx), (code), __VA_ARGS__), (code))
#endif

/* Record that memory could not be had, with what is free for this process. Every allocation that
 * fails ends here, and callers hand DH_ENOMEM on. */
DH_API dh_status dh_no_memory(dh_ctx *ctx);
/* The same, while something is done: dh_no_memory_while(ctx, "reading %s", path). */
DH_API dh_status dh_no_memory_while(dh_ctx *ctx, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__
#define dh_no_memory(ctx) (dh_no_memory(ctx), DH_ENOMEM)
#define dh_no_memory_while(...) (dh_no_memory_while(__VA_ARGS__), DH_ENOMEM)
#endif

/* Put "while <text>: " in front of the recorded message; returns ctx->status,
 * so that `return dh_ctx_while(ctx, "reading %s", path);` reads well. */
DH_API dh_status dh_ctx_while(dh_ctx *ctx, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__
#define dh_ctx_while(...) (dh_ctx_while(__VA_ARGS__), DH_EINTERNAL)
#endif

/* Propagate a failure where nothing is held that needs undoing. */
#define DH_TRY(call)                                                                               \
    do {                                                                                           \
        dh_status dh_try_status_ = (call);                                                         \
        if (dh_try_status_ != DH_OK) return dh_try_status_;                                        \
    } while (0)

/* Propagate through a cleanup label; needs `dh_status st` in scope. */
#define DH_TRY_GOTO(call, label)                                                                   \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st != DH_OK) goto label;                                                               \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
