/* Faults on purpose, for tests of what happens when a rank fails. */
#ifndef DH_TRAIN_FAULT_H
#define DH_TRAIN_FAULT_H

#include "dhelix/comm.h"

typedef enum dh_fault_kind {
    DH_FAULT_NONE,
    DH_FAULT_KILL,  /* the rank's process gets SIGKILL, with all ranks that live in it */
    DH_FAULT_DELAY, /* the rank comes late by delay_ms */
    DH_FAULT_DROP   /* the rank goes on as if it had made the call */
} dh_fault_kind;

/* What one rank does at its seq-th communication call, counted from 1. */
typedef struct dh_fault {
    dh_fault_kind kind;
    int64_t rank, seq, delay_ms;
} dh_fault;

/* From "kill:RANK:SEQ", "delay:RANK:SEQ:MS" or "drop:RANK:SEQ"; NULL or "" is no fault.
 * errors: DH_EINVAL names what is wrong */
dh_status dh_fault_parse(dh_ctx *ctx, const char *text, dh_fault *fault);
/* A dh_comm_hook; user is a dh_fault that outlives the world. */
dh_comm_action dh_fault_hook(void *user, int rank, int64_t seq, dh_comm_kind kind);

#endif
