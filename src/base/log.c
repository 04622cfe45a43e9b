/* Logging to stderr, assertions, time. */
#include "base/printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};
static _Thread_local int log_rank = -1;

static int initial_level(void)
{
    const char *env = getenv("DHELIX_LOG");
    for (size_t i = 0; env && i < DH_COUNTOF(level_names); i++)
        if (strcmp(env, level_names[i]) == 0) return (int)i;
    return DH_LOG_INFO;
}

/* -1: not read from the environment yet. Relaxed: a level is only a filter. */
static _Atomic int log_level = -1;

dh_log_level dh_log_get_level(void)
{
    int level = log_level;
    if (level < 0) log_level = level = initial_level();
    return (dh_log_level)level;
}

void dh_log_set_level(dh_log_level level)
{
    log_level = (int)level;
}

void dh_log_set_rank(int rank)
{
    log_rank = rank;
}

void dh_log(dh_log_level level, const char *fmt, ...)
{
    if (level > dh_log_get_level()) return;
    char line[4096];
    int n = log_rank >= 0
                ? snprintf(line, sizeof line, "dhelix[%d]: %s: ", log_rank, level_names[level])
                : snprintf(line, sizeof line, "dhelix: %s: ", level_names[level]);
    va_list args;
    va_start(args, fmt);
    dh_vmessage(line + n, sizeof line - (size_t)n, fmt, args);
    va_end(args);
    fprintf(stderr, "%s\n", line); /* one call: lines of several ranks do not mix */
}

void dh_panic(const char *file, int line, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    dh_vmessage(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "dhelix: bug at %s:%d: %s\n", file, line, text);
    abort();
}

const char *dh_version(void)
{
    return DH_VERSION;
}

int64_t dh_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void dh_sleep_until_ns(int64_t deadline_ns)
{
    struct timespec ts = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR) continue;
}
