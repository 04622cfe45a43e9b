/* One line a step: on a terminal always the same one, within its width, with a bar where there is
 * room; plain lines elsewhere. */
#ifndef DH_TRAIN_PROGRESS_H
#define DH_TRAIN_PROGRESS_H

#include "base/base.h"

typedef struct dh_progress {
    bool quiet, bar; /* bar: stderr is a terminal */
    int64_t total, log_every;
    int64_t start_ns, first; /* for the remaining time */
    int64_t count_ns;        /* no count is drawn before */
    int drawn;               /* characters of the line that stands on the terminal */
} dh_progress;

typedef struct dh_progress_line {
    int64_t step; /* done, 1-based */
    double loss, lr, grad_norm, tokens_per_s, step_ms;
} dh_progress_line;

void dh_progress_start(dh_progress *p, int64_t first, int64_t total, int64_t log_every, bool quiet);
void dh_progress_step(dh_progress *p, const dh_progress_line *line);
/* `done` of total things; on a terminal only, from the first second on, a few times a second. */
void dh_progress_count(dh_progress *p, int64_t done, const char *what);
/* Other things are counted from now on, in the same line. */
void dh_progress_anew(dh_progress *p, int64_t total);
/* A line of its own above the bar. */
void dh_progress_note(dh_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The bar stays, what follows begins a line of its own; or it goes, where a result follows. */
void dh_progress_end(dh_progress *p);
void dh_progress_clear(dh_progress *p);

#endif
