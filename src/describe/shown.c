/* Simulated steps on a terminal. */
#include "describe/shown.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/printable.h"

static void tell_single(dh_shown *s, bool executes, uint64_t done, uint64_t n)
{
    if (executes != s->executes) dh_progress_anew(&s->progress, (int64_t)n);
    s->executes = executes;
    s->progress.total = (int64_t)n;
    dh_progress_count(&s->progress, (int64_t)done,
                      executes ? "instructions simulated" : "programs built");
}

static void tell(void *user, bool executes, uint64_t done, uint64_t n)
{
    dh_shown *s = user;
    if (s->single)
        tell_single(s, executes, done, n);
    else
        dh_progress_count(&s->progress, s->n_done, s->what);
}

void dh_shown_start(dh_shown *s, bool wanted, bool single)
{
    *s = (dh_shown){.watch = {tell, s}, .single = single};
    dh_progress_start(&s->progress, 0, 1, 1, !wanted);
}

void dh_shown_next(dh_shown *s, size_t n_done, size_t n, const char *fmt, ...)
{
    va_list args;
    const int length = snprintf(s->what, sizeof s->what, "simulated, now ");
    va_start(args, fmt);
    dh_vmessage(s->what + length, sizeof s->what - (size_t)length, fmt, args);
    va_end(args);
    s->n_done = (int64_t)n_done;
    s->progress.total = (int64_t)n;
    if (!s->single) dh_progress_count(&s->progress, s->n_done, s->what);
}

void dh_shown_end(dh_shown *s)
{
    dh_progress_clear(&s->progress);
}
