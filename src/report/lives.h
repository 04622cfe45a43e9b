/* When a program's buffers are alive: what the files that measure memory over a step share. */
#ifndef DH_REPORT_LIVES_H
#define DH_REPORT_LIVES_H

#include "base/live.h"
#include "program/program.h"

/* The buffer whose storage a buffer has. */
uint32_t dh_lives_storage(const dh_program *program, uint32_t buffer);
/* Times from the start of the first instruction that touches a storage to the end of the last.
 * out       lives [buffers]; the start of a buffer that nothing touches is after its end */
void dh_lives_find(const dh_program *program, const dh_span *spans, dh_span *lives);
/* Of transient buffers that have a life; `of` (NULL: all) says which count.
 * out       changes [2 * buffers]
 * returns   how many */
size_t dh_lives_changes(const dh_program *program, const dh_span *lives, const bool *of,
                        dh_live_point *changes);

#endif
