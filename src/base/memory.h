/* How much memory this process may have, and still have. */
#ifndef DH_BASE_MEMORY_H
#define DH_BASE_MEMORY_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that may still be allocated and used without moving anything to disk. It is the least of:
 *   - the machine's available memory (MemAvailable);
 *   - the rest of each control group (v1 and v2, and those above it);
 *   - the rest of RLIMIT_AS and RLIMIT_DATA.
 * At least 1. 0: nothing is known, or DHELIX_MEMORY_CHECK in the environment is "off" (for users
 * with swap).
 * cost      a few reads of small files: some 0.1 ms; any thread */
double dh_memory_available(void);
/* The same by files under a folder instead of / (root/proc/meminfo and so on), without the limits
 * of this process: for tests. */
double dh_memory_available_under(const char *root);
/* Bytes that this process may have with nothing else on the machine: the least of MemTotal, each
 * control group's limit, RLIMIT_AS and RLIMIT_DATA. It does not change while the machine runs, so
 * that plans may rest on it. 0: nothing is known. */
double dh_memory_total(void);
/* The same by files under a folder, without the limits of this process: for tests. */
double dh_memory_total_under(const char *root);
/* Refuse what needs more than there is, before it is allocated.
 * what      in the message: "WHAT needs 3 GiB of memory, and 2 GiB are free"
 * errors    DH_ENOMEM */
dh_status dh_memory_check(dh_ctx *ctx, double n_bytes, const char *what);

#ifdef __cplusplus
}
#endif
#endif
