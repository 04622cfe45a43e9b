/* Status names and the error context. */
#include "base/memory.h"
#include "base/printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *text;
} statuses[DH_N_STATUS] = {
#define X(code, text) [code] = {#code, text},
    DH_STATUS_LIST(X)
#undef X
};

const char *dh_status_name(dh_status status)
{
    return (unsigned)status < DH_N_STATUS ? statuses[status].name : "DH_?";
}

const char *dh_status_text(dh_status status)
{
    return (unsigned)status < DH_N_STATUS ? statuses[status].text : "unknown status";
}

dh_status dh_status_of_errno(int error)
{
    if (error == EACCES || error == EPERM) return DH_EPERM;
    return error == ENOMEM ? DH_ENOMEM : DH_EIO;
}

void dh_ctx_reset(dh_ctx *ctx)
{
    ctx->status = DH_OK;
    ctx->message[0] = '\0';
}

/* Parentheses in definitions: the name itself, not the macro static analysis sees. */
dh_status(dh_fail)(dh_ctx *ctx, dh_status status, const char *fmt, ...)
{
    if (!ctx || ctx->status != DH_OK) return ctx ? ctx->status : status;
    ctx->status = status;
    va_list args;
    va_start(args, fmt);
    dh_vmessage(ctx->message, sizeof ctx->message, fmt, args);
    va_end(args);
    return status;
}

static dh_status no_memory(dh_ctx *ctx, const char *doing)
{
    char left[32];
    const double available = dh_memory_available();
    const char *space = *doing ? " " : "";
    if (available == 0) return dh_fail(ctx, DH_ENOMEM, "out of memory%s%s", space, doing);
    return dh_fail(ctx, DH_ENOMEM, "out of memory%s%s: %s are free", space, doing,
                   dh_format_bytes(left, sizeof left, available));
}

dh_status(dh_no_memory)(dh_ctx *ctx)
{
    return no_memory(ctx, "");
}

dh_status(dh_no_memory_while)(dh_ctx *ctx, const char *fmt, ...)
{
    char doing[DH_CTX_MESSAGE_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    dh_vmessage(doing, sizeof doing, fmt, args);
    va_end(args);
    return no_memory(ctx, doing);
}

dh_status(dh_ctx_while)(dh_ctx *ctx, const char *fmt, ...)
{
    if (!ctx || ctx->status == DH_OK) return DH_OK;
    char where[DH_CTX_MESSAGE_BYTES / 4];
    va_list args;
    va_start(args, fmt);
    dh_vmessage(where, sizeof where, fmt, args);
    va_end(args);
    char old[sizeof ctx->message - sizeof where - 16]; /* 16: "while ", ": " and the end */
    snprintf(old, sizeof old, "%.*s", (int)sizeof old - 1, ctx->message);
    snprintf(ctx->message, sizeof ctx->message, "while %s: %s", where, old);
    dh_printable(ctx->message, sizeof ctx->message);
    return ctx->status;
}
