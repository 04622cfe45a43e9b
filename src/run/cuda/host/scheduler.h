/* Between fibres.cc, which says who runs next, and warpgroups.cc, whose copies arrive meanwhile. */
#ifndef DH_RUN_CUDA_HOST_SCHEDULER_H
#define DH_RUN_CUDA_HOST_SCHEDULER_H

#include <cstddef>
#include <cstdint>

/* n_bytes of the shared memory that the launch asked for, from this byte on; they have to be there.
 */
void *dh_host_launched_at(size_t byte, size_t n_bytes);
/* The running fibre waits until ready(at, value). */
void dh_host_await(bool (*ready)(const void *at, unsigned value), const void *at, unsigned value);
uint64_t dh_host_draw();

/* Ends one of the tensor copies under way, which one is drawn; false: there is none. */
bool dh_host_end_a_copy(uint64_t drawn);
void dh_host_check_block_end();

#endif
