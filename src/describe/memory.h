/* Persistent memory as people ask for it: parameters with their copies in compute precision. */
#ifndef DH_DESCRIBE_MEMORY_H
#define DH_DESCRIBE_MEMORY_H

#include "program/program.h"

enum { DH_N_MEMORY_ROWS = 5, DH_N_MODEL_ROWS = 3 }; /* all; those of the model alone, in front */

typedef struct dh_memory_row {
    const char *name, *key; /* in text, in JSON */
    dh_buffer_kind first, last;
} dh_memory_row;

extern const dh_memory_row dh_memory_rows[DH_N_MEMORY_ROWS];

/* Of bytes by kind of buffer. */
uint64_t dh_memory_row_bytes(const uint64_t persistent[DH_BUF_ACT], size_t row);

#endif
