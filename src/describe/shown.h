/* The line of progress of simulated steps, on a terminal. */
#ifndef DH_DESCRIBE_SHOWN_H
#define DH_DESCRIBE_SHOWN_H

#include "sim/simulate.h"
#include "train/progress.h"

/* Of several steps the line says how many are done and which one is simulated now. Of a single one
 * it says how much is built or executed. It does not move in memory: its watch points to it. */
typedef struct dh_shown {
    dh_progress progress;
    dh_sim_watch watch; /* for dh_sim_options */
    bool single, executes;
    int64_t n_done;
    char what[128];
} dh_shown;

/* in        wanted: as the command line has it (--quiet) */
void dh_shown_start(dh_shown *s, bool wanted, bool single);
/* The next of n steps; n_done are done. */
void dh_shown_next(dh_shown *s, size_t n_done, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Takes the line away. */
void dh_shown_end(dh_shown *s);

#endif
