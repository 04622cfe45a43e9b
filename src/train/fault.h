/* Faults on purpose, for tests of what happens when a rank fails. */
#ifndef DH_TRAIN_FAULT_H
#define DH_TRAIN_FAULT_H

#include <stdatomic.h>

#include "run/exec/exec.h"

typedef enum dh_fault_kind {
    DH_FAULT_NONE,
    DH_FAULT_KILL,  /* the rank's process gets SIGKILL, with all ranks that live in it */
    DH_FAULT_HANG,  /* the rank does nothing more until the run has failed without it */
    DH_FAULT_LEAVE, /* the rank's thread does nothing more, and the others know it at once */
    DH_FAULT_DELAY, /* the rank comes late by delay_ms, unless the run has failed without it */
    DH_FAULT_DROP   /* the rank goes on as if it had made the call */
} dh_fault_kind;

/* A fault of one rank at its at-th communication call, or before the at-th instruction of its
 * training steps. Both are counted from 1 over all steps and streams. */
typedef struct dh_fault {
    dh_fault_kind kind;
    int64_t rank, at, delay_ms;
    bool at_instr;
    _Atomic int64_t n_instrs; /* begun so far */
    dh_comm *comm;            /* the rank's, once it is attached */
} dh_fault;

/* Parses "kill:RANK:AT", "hang:RANK:AT", "leave:RANK:AT", "delay:RANK:AT:MS" or "drop:RANK:CALL".
 * AT is the number of a call, or with an i before it of an instruction: "kill:1:i250". NULL or ""
 * is no fault. A list with commas has one fault for each start of a run that continues without its
 * lost ranks. The fault of start n_before, from 0, is taken.
 * errors    DH_EINVAL names the wrong part */
dh_status dh_fault_parse(dh_ctx *ctx, const char *text, int n_before, dh_fault *fault);
/* A dh_comm_hook and a dh_instr_hook; user is a dh_fault that outlives the world. The
 * second is for the steps of the fault's rank only. */
dh_comm_action dh_fault_at_call(void *user, int rank, int64_t seq, dh_comm_kind kind);
dh_status dh_fault_at_instr(dh_ctx *ctx, void *user);

#endif
