/* Progress on stderr. */
#include "train/progress.h"
#include "base/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A bar shorter than this says nothing. */
enum { SHORTEST_BAR = 8 };

/* What is over in less shows no count; a terminal is not written to more often. */
enum { COUNT_AFTER_NS = 1000000000, COUNT_EACH_NS = 100000000 };

void dh_progress_start(dh_progress *p, int64_t first, int64_t total, int64_t log_every, bool quiet)
{
    *p = (dh_progress){.quiet = quiet,
                       .bar = isatty(STDERR_FILENO),
                       .total = total,
                       .log_every = DH_MAX(log_every, 1),
                       .start_ns = dh_now_ns(),
                       .first = first};
    p->count_ns = p->start_ns + COUNT_AFTER_NS;
}

void dh_progress_anew(dh_progress *p, int64_t total)
{
    p->total = total;
    p->start_ns = dh_now_ns();
    p->first = 0;
}

/* A terminal that became narrower has broken the line over several. */
static void clear_line(dh_progress *p)
{
    if (!p->bar) return;
    const int columns = dh_terminal_columns(STDERR_FILENO);
    for (int row = 1; row <= (p->drawn - 1) / columns; row++) fputs("\033[A", stderr);
    fputs("\r\033[J", stderr);
    p->drawn = 0;
}

/* A bar of the room that the text leaves, which is cut where it has none itself. The last column
 * stays free: a character there wraps the line. */
static void draw_line(dh_progress *p, int64_t done, const char *text)
{
    enum { LONGEST = 28 };
    char bar[LONGEST + 1];
    clear_line(p);
    const int room = DH_MAX(dh_terminal_columns(STDERR_FILENO) - 1, 1);
    const int length = DH_MIN((int)strlen(text), room);
    const int width = DH_MIN(LONGEST, room - length - 3);
    if (width >= SHORTEST_BAR) {
        const int64_t filled = done * width / DH_MAX(p->total, 1);
        memset(bar, '-', (size_t)width);
        memset(bar, '#', (size_t)DH_MIN(filled, width));
        p->drawn = fprintf(stderr, "[%.*s] ", width, bar);
    }
    p->drawn += fprintf(stderr, "%.*s", length, text);
    fflush(stderr);
}

/* "  3:20 left", "  2.5 h left". Nothing before there is something to go by; in a log nothing of
 * less than a second. */
static void format_left(const dh_progress *p, int64_t step, dh_str *out)
{
    char time[32];
    if (step <= p->first) return;
    const double ns =
        (double)(dh_now_ns() - p->start_ns) / (double)(step - p->first) * (double)(p->total - step);
    if (!p->bar && ns < 1e9) return;
    if (ns < 3600e9)
        dh_str_printf(out, "  %d:%02d left", (int)(ns / 60e9), (int)(ns / 1e9) % 60);
    else
        dh_str_printf(out, "  %s left", dh_format_ns(time, sizeof time, ns));
}

/* Fields of a step, of which those that say least are left out first where room is short. */
enum { WITH_MS = 1, WITH_LR = 2, WITH_GRAD = 4, WITH_SPEED = 8, WITH_ALL = 15 };

static void format_step(const dh_progress *p, const dh_progress_line *line, int with, dh_str *out)
{
    dh_str_clear(out);
    dh_str_printf(out, "step %lld/%lld  loss %.4f", (long long)line->step, (long long)p->total,
                  line->loss);
    if (with & WITH_LR) dh_str_printf(out, "  lr %.2e", line->lr);
    if (with & WITH_GRAD) dh_str_printf(out, "  grad %.3f", line->grad_norm);
    if (with & WITH_SPEED) dh_str_printf(out, "  %.0f tok/s", line->tokens_per_s);
    if (with & WITH_MS) dh_str_printf(out, "  %.1f ms", line->step_ms);
    format_left(p, line->step, out);
}

static void draw_step(dh_progress *p, const dh_progress_line *line, dh_str *text)
{
    static const int less[] = {WITH_ALL, WITH_ALL - WITH_MS, WITH_GRAD | WITH_SPEED, WITH_SPEED, 0};
    const size_t room = (size_t)DH_MAX(dh_terminal_columns(STDERR_FILENO) - SHORTEST_BAR - 4, 0);
    for (size_t i = 0; i < DH_COUNTOF(less); i++) {
        format_step(p, line, less[i], text);
        if (text->len <= room) break;
    }
    draw_line(p, line->step, text->text ? text->text : "");
}

void dh_progress_step(dh_progress *p, const dh_progress_line *line)
{
    const bool last = line->step == p->total;
    dh_str text = DH_STR_INIT;
    if (p->quiet) return;
    if (!p->bar && !last && line->step % p->log_every != 0 && line->step != p->first + 1) return;
    if (p->bar) {
        draw_step(p, line, &text);
    } else {
        format_step(p, line, WITH_ALL, &text);
        fprintf(stderr, "%s\n", text.text ? text.text : "");
    }
    dh_str_fini(&text);
}

void dh_progress_count(dh_progress *p, int64_t done, const char *what)
{
    dh_str text = DH_STR_INIT;
    if (p->quiet || !p->bar) return;
    const int64_t now = dh_now_ns();
    const bool ends = done == p->total && p->drawn > 0; /* a line that stays says all */
    if (now < p->count_ns && !ends) return;
    p->count_ns = DH_MAX(p->count_ns, now + COUNT_EACH_NS);
    dh_str_printf(&text, "%lld/%lld %s", (long long)done, (long long)p->total, what);
    format_left(p, done, &text);
    draw_line(p, done, text.text ? text.text : "");
    dh_str_fini(&text);
}

void dh_progress_note(dh_progress *p, const char *fmt, ...)
{
    if (p->quiet) return;
    clear_line(p);
    va_list args;
    va_start(args, fmt);
    char line[1024];
    dh_vmessage(line, sizeof line, fmt, args);
    va_end(args);
    fprintf(stderr, "%s\n", line);
}

void dh_progress_end(dh_progress *p)
{
    if (!p->quiet && p->drawn > 0) fputc('\n', stderr);
    p->drawn = 0;
}

void dh_progress_clear(dh_progress *p)
{
    if (p->drawn == 0) return;
    clear_line(p);
    fflush(stderr);
}
