// The GPU that the host plays, in programs that have no other way to be told of it: one, with the
// fault that DHELIX_PLAY names.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "run/cuda/host/host.h"
#include "run/cuda/host/matrices.h"

namespace
{

// Kernels and allocations of a run's first step, behind those that make it ready.
enum { SOME_KERNEL = 60, SOME_ALLOCATION = 6 };
const int64_t FOR_EVER_NS = INT64_C(3600) * 1000 * 1000 * 1000;

__attribute__((constructor)) void plant()
{
    const char *fault = std::getenv("DHELIX_PLAY");
    dh_host_set_devices(1); // which ranks share
    if (!fault || !*fault) return;
    if (std::strcmp(fault, "no-gpu") == 0)
        dh_host_set_devices(0);
    else if (std::strcmp(fault, "old-driver") == 0)
        dh_host_age_driver();
    else if (std::strcmp(fault, "launch-error") == 0)
        dh_host_fail_kernel(SOME_KERNEL);
    else if (std::strcmp(fault, "hang") == 0)
        dh_host_delay_kernel(SOME_KERNEL, FOR_EVER_NS);
    else if (std::strcmp(fault, "no-memory") == 0)
        dh_host_fail_allocation(SOME_ALLOCATION);
    else if (std::strcmp(fault, "wrong") == 0)
        dh_host_twist_mma(DH_TWIST_A);
    else {
        std::fprintf(stderr, "DHELIX_PLAY=%s: no fault is called so\n", fault);
        std::exit(2);
    }
}

} // namespace
