/* Faults injected into system calls; see faults.c. */
#ifndef FAULTS_H
#define FAULTS_H

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_FAIL, /* the n-th call that takes space or syncs fails with ENOSPC */
    FAULT_KILL, /* the process ends before the n-th call that changes anything */
    FAULT_SHORT /* as KILL, but a write in question is done by half first */
} fault_kind;

#define FAULT_EXIT_CODE 77

/* Arm for the n-th call from now (1: the next). */
void fault_arm(fault_kind kind, int n);
/* Disarm; 1 when the fault came. */
int fault_disarm(void);
/* From now on the file system knows plain renames only: what renameat2 is asked for beyond them fails
 * with this error. 0: it knows all. */
void fault_plain_renames(int error);

#endif
