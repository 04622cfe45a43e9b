/* Progress on stderr. */
#include "train/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void dh_progress_start(dh_progress *p, int64_t first, int64_t total, int64_t log_every, bool quiet)
{
    *p = (dh_progress){.quiet = quiet,
                       .bar = isatty(STDERR_FILENO),
                       .total = total,
                       .log_every = DH_MAX(log_every, 1),
                       .start_ns = dh_now_ns(),
                       .first = first};
}

static void clear_line(const dh_progress *p)
{
    if (p->bar) fputs("\r\033[K", stderr);
}

static void print_bar(const dh_progress *p, int64_t step)
{
    enum { WIDTH = 28 };
    char bar[WIDTH + 1];
    int filled = (int)(step * WIDTH / DH_MAX(p->total, 1));
    memset(bar, '-', WIDTH);
    memset(bar, '#', (size_t)DH_MIN(filled, WIDTH));
    bar[WIDTH] = '\0';
    fprintf(stderr, "[%s] ", bar);
}

static void print_left(const dh_progress *p, int64_t step)
{
    double seconds = (double)(dh_now_ns() - p->start_ns) * 1e-9;
    if (step <= p->first) return;
    double left = seconds / (double)(step - p->first) * (double)(p->total - step);
    fprintf(stderr, "  %d:%02d left", (int)(left / 60), (int)left % 60);
}

void dh_progress_step(dh_progress *p, const dh_progress_line *line)
{
    bool last = line->step == p->total;
    if (p->quiet) return;
    if (!p->bar && !last && line->step % p->log_every != 0 && line->step != p->first + 1) return;
    clear_line(p);
    if (p->bar) print_bar(p, line->step);
    fprintf(stderr, "step %lld/%lld  loss %.4f  lr %.2e  grad %.3f  %.0f tok/s  %.1f ms",
            (long long)line->step, (long long)p->total, line->loss, line->lr, line->grad_norm,
            line->tokens_per_s, line->step_ms);
    if (p->bar)
        print_left(p, line->step);
    else
        fputc('\n', stderr);
    fflush(stderr);
}

void dh_progress_count(dh_progress *p, int64_t done, const char *what)
{
    if (p->quiet || !p->bar) return;
    clear_line(p);
    print_bar(p, done);
    fprintf(stderr, "%lld/%lld %s", (long long)done, (long long)p->total, what);
    print_left(p, done);
    fflush(stderr);
}

void dh_progress_note(dh_progress *p, const char *fmt, ...)
{
    if (p->quiet) return;
    clear_line(p);
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

void dh_progress_end(dh_progress *p)
{
    if (!p->quiet && p->bar) fputc('\n', stderr);
}
