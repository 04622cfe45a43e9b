/* Which cores a rank's threads run on. The process's own cpuset (taskset, cgroups,
 * mpirun --bind-to) is respected: only cores in it are handed out. */
#include "base/base.h"
#include "run/cpu/kernels.h"

#include <errno.h>
#include <execinfo.h>
#include <hwloc.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Topology with the process's cpuset; false when hwloc cannot tell. */
static bool load_topology(hwloc_topology_t *topology, hwloc_bitmap_t *allowed)
{
    if (hwloc_topology_init(topology) != 0) return false;
    if (hwloc_topology_load(*topology) != 0) goto err_topology;
    *allowed = hwloc_bitmap_alloc();
    if (!*allowed) goto err_topology;
    if (hwloc_get_cpubind(*topology, *allowed, HWLOC_CPUBIND_PROCESS) == 0) return true;
    hwloc_bitmap_free(*allowed);
err_topology:
    hwloc_topology_destroy(*topology);
    return false;
}

static void unload_topology(hwloc_topology_t topology, hwloc_bitmap_t allowed)
{
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
}

/* Cores with at least one allowed hardware thread. */
static int count_cores(hwloc_topology_t topology, hwloc_const_bitmap_t allowed)
{
    int n = 0;
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
        if (hwloc_bitmap_intersects(core->cpuset, allowed)) n++;
    return n;
}

/* Allowed hardware threads of the i-th allowed core. */
static void core_cpuset(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, int i,
                        hwloc_bitmap_t cpuset)
{
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
        if (hwloc_bitmap_intersects(core->cpuset, allowed) && i-- == 0) break;
    if (core) hwloc_bitmap_and(cpuset, core->cpuset, allowed);
}

int dh_k_cores_allowed(void)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    if (!load_topology(&topology, &allowed)) return omp_get_num_procs();
    const int n = count_cores(topology, allowed);
    unload_topology(topology, allowed);
    return n > 0 ? n : omp_get_num_procs();
}

/* Core of thread t of the team: the share's cores in turn. A team smaller than the share
 * may use all of it: other processes on the machine decide which core is free. */
static void team_cpuset(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, int first_core,
                        int n_cores, int n_threads, int thread, hwloc_bitmap_t cpuset)
{
    if (n_threads >= n_cores) {
        core_cpuset(topology, allowed, first_core + thread % n_cores, cpuset);
        return;
    }
    hwloc_bitmap_t core = hwloc_bitmap_alloc();
    for (int i = 0; core && i < n_cores; i++) {
        core_cpuset(topology, allowed, first_core + i, core);
        hwloc_bitmap_or(cpuset, cpuset, core);
    }
    hwloc_bitmap_free(core);
}

static void bind_team(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, int first_core,
                      int n_cores, int n_threads)
{
    int refused = 0;
#pragma omp parallel num_threads(n_threads) reduction(+ : refused)
    {
        hwloc_bitmap_t cpuset = hwloc_bitmap_alloc();
        if (cpuset) {
            team_cpuset(topology, allowed, first_core, n_cores, n_threads, omp_get_thread_num(),
                        cpuset);
            if (hwloc_set_cpubind(topology, cpuset, HWLOC_CPUBIND_THREAD) != 0) refused++;
            hwloc_bitmap_free(cpuset);
        }
    }
    if (refused)
        dh_log(DH_LOG_WARN, "%d of %d threads could not be bound to cores: %s", refused, n_threads,
               strerror(errno));
}

static void *wait_for_lock(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

/* Whether n more threads can be started at once: they are, and end. An error number, or 0. */
static int try_threads(size_t n)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = calloc(n, sizeof *threads);
    size_t n_started = 0;
    int code = threads ? 0 : ENOMEM;
    pthread_mutex_lock(&lock);
    while (code == 0 && n_started < n) {
        code = pthread_create(&threads[n_started], NULL, wait_for_lock, &lock);
        n_started += code == 0;
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n_started; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&lock);
    free(threads);
    return code;
}

/* OpenMP ends the process where it cannot start its threads: they are tried before. They end by
 * pthread_exit, for which the C library loads an unwinder, or aborts: a backtrace loads it now. */
static dh_status try_team(dh_ctx *ctx, int n_threads)
{
    void *at[1];
    const int code = try_threads((size_t)n_threads);
    if (code == 0 && backtrace(at, 1) > 0) return DH_OK;
    return dh_fail(ctx, DH_ENOMEM,
                   "cannot start the threads of a rank, %d: %s; let it have fewer (train.threads, "
                   "OMP_NUM_THREADS), or raise the limit (ulimit -v, ulimit -u)",
                   n_threads, strerror(code ? code : ENOMEM));
}

static void log_cores(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, int first_core,
                      int n_cores, int n_threads)
{
    char text[256] = "";
    if (dh_log_get_level() < DH_LOG_DEBUG) return;
    hwloc_bitmap_t share = hwloc_bitmap_alloc(), core = hwloc_bitmap_alloc();
    for (int i = 0; share && core && i < n_cores; i++) {
        core_cpuset(topology, allowed, first_core + i, core);
        hwloc_bitmap_or(share, share, core);
    }
    if (share) hwloc_bitmap_list_snprintf(text, sizeof text, share);
    dh_log(DH_LOG_DEBUG, "%d threads on processors %s", n_threads, text);
    hwloc_bitmap_free(share);
    hwloc_bitmap_free(core);
}

int dh_k_fit_team(void)
{
    const int most = omp_get_thread_limit();
    if (omp_get_dynamic()) omp_set_dynamic(0);
    if (omp_get_max_threads() > most) omp_set_num_threads(most);
    return omp_get_max_threads();
}

/* The threads that a rank asks for, as far as there may be so many. */
static int team_of(int64_t wanted, int share)
{
    omp_set_num_threads(wanted ? (int)wanted : share);
    const int team = dh_k_fit_team();
    if (team < wanted)
        dh_log(DH_LOG_WARN, "OMP_THREAD_LIMIT is %d: a rank computes with %d threads, not %lld",
               omp_get_thread_limit(), team, (long long)wanted);
    return team;
}

dh_status dh_k_bind_rank(dh_ctx *ctx, int local_rank, int n_local_ranks, int64_t threads,
                         int *n_threads)
{
    if (n_local_ranks < 1 || local_rank < 0 || local_rank >= n_local_ranks)
        return dh_fail(ctx, DH_EINVAL, "local rank %d is not one of %d", local_rank, n_local_ranks);
    if (threads < 0 || threads > 4096)
        return dh_fail(ctx, DH_EINVAL, "%lld threads for a rank: 0 (one per core) to 4096",
                       (long long)threads);
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    const bool known = load_topology(&topology, &allowed);
    int n_cores = known ? count_cores(topology, allowed) : omp_get_num_procs();
    n_cores = DH_MAX(n_cores, 1);
    const int first = (int)((int64_t)local_rank * n_cores / n_local_ranks);
    const int last = (int)((int64_t)(local_rank + 1) * n_cores / n_local_ranks);
    const int share = DH_MAX(last - first, 1);
    const int team = team_of(threads, share);
    static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER; /* tried threads are then taken */
    pthread_mutex_lock(&starting);
    dh_status st = try_team(ctx, team);
    if (st == DH_OK) st = dh_gemm_get_ready(ctx);
    if (known && st == DH_OK) bind_team(topology, allowed, first, share, team);
    pthread_mutex_unlock(&starting);
    if (known) log_cores(topology, allowed, first, share, team);
    if (known) unload_topology(topology, allowed);
    *n_threads = team;
    return st;
}
