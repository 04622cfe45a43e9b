/* Processes that are asked for later: who they are, and whether they still run. */
#ifndef DH_BASE_PROCESS_H
#define DH_BASE_PROCESS_H

#include "base/base.h"

enum { DH_PROCESS_ID_BYTES = 65, DH_PROCESS_TEXT_BYTES = 512 };

typedef struct dh_process {
    char host[DH_PROCESS_ID_BYTES];
    char boot[DH_PROCESS_ID_BYTES];  /* boot id of the kernel, which containers share */
    char space[DH_PROCESS_ID_BYTES]; /* of process ids, which containers have their own of; "?": not
                                        known */
    long pid;
    unsigned long long started; /* in clock ticks since boot; 0: not known */
} dh_process;

typedef enum dh_process_state {
    DH_PROCESS_GONE,
    DH_PROCESS_RUNS,
    DH_PROCESS_ELSEWHERE /* on another machine, or its id says nothing here */
} dh_process_state;

/* One of this machine and of this process's ids. */
dh_process dh_process_here(long pid);
/* Whether both are of one kernel. */
bool dh_process_same_boot(const dh_process *a, const dh_process *b);
/* A process that nobody has waited for yet is gone; so is one whose id another process has. */
dh_process_state dh_process_ask(const dh_process *p);

/* Processes of this machine that pid has started and that still run.
 * in        visit: NULL to count them; its argument stopped: by a signal or a debugger
 * returns   their number; -1: it cannot be known */
int dh_process_each_child(long pid, void (*visit)(void *user, long child, bool stopped),
                          void *user);

/* Of a process that an MPI launcher has started, by its environment; -1: it is none. */
long dh_process_rank(long pid);

/* One line, without its end. */
void dh_process_print(const dh_process *p, char text[DH_PROCESS_TEXT_BYTES]);
/* returns   false where text is no such line */
bool dh_process_parse(const char *text, dh_process *p);

#endif
