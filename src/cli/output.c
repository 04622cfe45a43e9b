/* Output to the terminal, and stops from the terminal, for all commands. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/temporary.h"
#include "cli/cli.h"

dh_status dh_cli_print(dh_ctx *ctx, const char *text, size_t n_bytes)
{
    if (n_bytes > 0 && fwrite(text, 1, n_bytes, stdout) != n_bytes)
        return dh_fail(ctx, DH_EIO, "cannot write to standard output: %s", strerror(errno));
    return DH_OK;
}

dh_status dh_cli_flush(dh_ctx *ctx)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot write to standard output: %s", strerror(errno));
}

/* A network file system reports a full disk when the file is closed. Lost buffers are known from
 * the stream alone, which does not keep the reason. */
dh_status dh_cli_end_output(dh_ctx *ctx)
{
    const bool lost = ferror(stdout);
    errno = 0;
    if (fclose(stdout) == 0 && !lost) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot write to standard output%s%s", errno ? ": " : "",
                   errno ? strerror(errno) : "");
}

void dh_cli_say(const char *fmt, ...)
{
    char line[4096];
    va_list args;
    va_start(args, fmt);
    dh_vmessage(line, sizeof line, fmt, args);
    va_end(args);
    fprintf(stderr, "dhelix: %s\n", line);
}

/* Lines of more than WIDEST are hard to follow, however wide the terminal is. */
int dh_cli_columns(void)
{
    enum { NARROWEST = 40, WIDEST = 160 };
    const int columns = dh_terminal_columns(STDOUT_FILENO);
    return DH_MIN(DH_MAX(columns, NARROWEST), WIDEST);
}

void dh_cli_paragraph(dh_str *out, dh_str *text, int indent)
{
    if (text->text) dh_str_wrap(out, text->text, indent, dh_cli_columns());
    out->failed |= text->failed;
    dh_str_fini(text);
}

dh_status dh_cli_print_str(dh_ctx *ctx, dh_str *text)
{
    dh_str_printable(text);
    dh_status st = text->failed ? dh_no_memory(ctx) : dh_cli_print(ctx, text->text, text->len);
    dh_str_fini(text);
    return st;
}

dh_status dh_cli_print_json(dh_ctx *ctx, json_t *document)
{
    dh_str text = DH_STR_INIT;
    dh_status st = dh_json_append(ctx, document, &text);
    if (st != DH_OK) dh_str_fini(&text);
    DH_TRY(st);
    dh_str_append(&text, "\n", 1);
    return dh_cli_print_str(ctx, &text);
}

/* Set by a signal, read by the loop that is to end; and what the first signal does. The only state
 * that is shared. */
static volatile sig_atomic_t stop_flag;
static enum {
    DIES,         /* as if there were no watch, but without what is half-written */
    ENDS,         /* exit code 130, with a message */
    ENDS_QUIETLY, /* the same; no line of progress stands on the terminal */
    IS_CAUGHT     /* sets stop_flag */
} reaction;       /* atomic */

void dh_cli_ask_to_stop(void)
{
    stop_flag = 1;
}

/* A terminal that goes away sends SIGHUP, unless nohup had it ignored: a signal that is
 * blocked would come all the same. Batch systems send SIGUSR1 ahead of the time limit. */
static void stop_signals(sigset_t *set)
{
    struct sigaction now;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
    if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(set, SIGHUP);
}

static void end_process(bool quiet)
{
    dh_temporary_drop_own();
    fprintf(stderr, "%sdhelix: error: interrupted\n", !quiet && isatty(STDERR_FILENO) ? "\n" : "");
    _exit(DH_CLI_INTERRUPTED);
}

/* The first signal ends the process, or asks to stop where signals are caught by then; after that
 * the second ends it as it would have. */
static void *watch_signals(void *unused)
{
    sigset_t set;
    int number;
    (void)unused;
    stop_signals(&set);
    if (sigwait(&set, &number) != 0) return NULL;
    const int now = __atomic_load_n(&reaction, __ATOMIC_ACQUIRE);
    if (now == ENDS || now == ENDS_QUIETLY) end_process(now == ENDS_QUIETLY);
    if (now == DIES) dh_temporary_drop_own();
    stop_flag = 1;
    if (now == IS_CAUGHT && sigwait(&set, &number) != 0) return NULL;
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    return NULL;
}

/* A thread of their own takes signals; all others block them. A handler that interrupts a computing
 * thread is not safe here. Its frame is written where that thread's stack pointer stands, and
 * generated GEMM code uses this register for other values. A handler therefore sometimes overwrote
 * the heap. */
static void watch(int how)
{
    static bool is_watched;
    sigset_t set, before;
    pthread_t thread;
    __atomic_store_n(&reaction, how, __ATOMIC_RELEASE);
    if (is_watched) return;
    is_watched = true;
    stop_signals(&set);
    if (pthread_sigmask(SIG_BLOCK, &set, &before) != 0) return;
    if (pthread_create(&thread, NULL, watch_signals, NULL) != 0)
        pthread_sigmask(SIG_SETMASK, &before, NULL); /* then a signal just ends the program */
    else
        pthread_detach(thread);
}

const volatile sig_atomic_t *dh_cli_catch_signals(void)
{
    watch(IS_CAUGHT);
    return &stop_flag;
}

const volatile sig_atomic_t *dh_cli_end_at_signals(bool quiet)
{
    watch(quiet ? ENDS_QUIETLY : ENDS);
    return &stop_flag;
}

void dh_cli_die_at_signals(void)
{
    watch(DIES);
}
