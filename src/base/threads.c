#include "base/base.h"

#include <pthread.h>
#include <sched.h>

void dh_work_together(size_t n, void *(*work)(void *), void *user)
{
    pthread_t threads[DH_MOST_THREADS];
    size_t n_others = 0;
    DH_CHECK(n <= DH_MOST_THREADS);
    while (n_others + 1 < n && pthread_create(&threads[n_others], NULL, work, user) == 0)
        n_others++;
    work(user);
    for (size_t i = 0; i < n_others; i++) pthread_join(threads[i], NULL);
}

int64_t dh_own_processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}
