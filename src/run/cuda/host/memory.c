/* Memory of the devices that the host plays, and its own that is pinned.
 *
 * Memory of devices lies in one range that is closed to everybody unless work of some stream is
 * running. Freed memory is not used again. New memory holds NaN patterns. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "run/cuda/host/inside.h"

enum { PAGE = 4096 };
static const size_t RANGE = (size_t)1 << 36;

typedef struct block {
    struct block *next;
    unsigned char *at;
    size_t n_bytes;
    int device; /* -1: pinned memory of the host */
} block;

static block *blocks;
static unsigned char *range;
static size_t range_used, range_gone; /* bytes used, and freed bytes at its begin */
static int n_running;                 /* work */
static int64_t allocations_to_failure, n_objects;

static void protect(int rights)
{
    if (range_used > range_gone)
        DH_CHECK(mprotect(range + range_gone, range_used - range_gone, rights) == 0,
                 "rights of memory stay as they are");
}

/* When all has been freed it stays closed: the longer the range, the longer opening takes. Not a
 * block by itself: what another device still does may reach it, and shall read zeros. */
static void forget_freed(void)
{
    for (const block *b = blocks; b; b = b->next)
        if (b->device >= 0) return;
    range_gone = range_used;
}

void host_open_memory(void)
{
    if (n_running++ > 0) return;
    forget_freed();
    protect(PROT_READ | PROT_WRITE);
}

void host_close_memory(void)
{
    if (--n_running == 0) protect(PROT_NONE);
}

static const block *block_of(const void *at, size_t n_bytes)
{
    const unsigned char *p = at;
    for (const block *b = blocks; b; b = b->next)
        if (p >= b->at && n_bytes <= b->n_bytes && (size_t)(p - b->at) <= b->n_bytes - n_bytes)
            return b;
    return NULL;
}

/* Device -1: pinned memory. */
bool host_lies_on(const void *at, size_t n_bytes, int where)
{
    pthread_mutex_lock(&host_lock);
    const block *b = block_of(at, n_bytes);
    const bool lies = b && b->device == where;
    pthread_mutex_unlock(&host_lock);
    return lies;
}

bool dh_host_on_device(const void *at, size_t n_bytes)
{
    return host_lies_on(at, n_bytes, host_device());
}

/* Whether this call is the one that is to fail. */
bool host_refuses_object(void)
{
    if (allocations_to_failure > 0 && --allocations_to_failure == 0) return true;
    n_objects++;
    return false;
}

void host_drop_object(void)
{
    n_objects--;
}

static void add_block(void *at, size_t n_bytes, int where)
{
    block *b = malloc(sizeof *b);
    DH_CHECK(b, "no memory for a note of memory");
    *b = (block){blocks, at, n_bytes, where};
    blocks = b;
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    const size_t room = (size + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&host_lock);
    if (!range) {
        void *at = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        DH_CHECK(at != MAP_FAILED, "no addresses for devices");
        range = at;
    }
    const bool refused = room > RANGE - range_used || host_refuses_object();
    if (!refused) {
        *devPtr = range + range_used;
        host_open_memory();
        mprotect(*devPtr, room, PROT_READ | PROT_WRITE);
        memset(*devPtr, 0xFF, size);
        range_used += room;
        host_close_memory();
        add_block(*devPtr, size, host_device());
    }
    pthread_mutex_unlock(&host_lock);
    return refused ? host_failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

static bool remove_block(void *at, bool pinned, size_t *n_bytes)
{
    block **b = &blocks;
    while (*b && (*b)->at != at) b = &(*b)->next;
    block *found = *b;
    if (!found || pinned != (found->device < 0)) return false;
    *n_bytes = found->n_bytes;
    *b = found->next;
    free(found);
    n_objects--;
    return true;
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    pthread_mutex_lock(&host_lock);
    const bool refused = host_refuses_object();
    void *at = refused ? NULL : malloc(size ? size : 1);
    if (at) {
        memset(at, 0xFF, size);
        add_block(at, size, -1);
        *pHost = at;
    }
    pthread_mutex_unlock(&host_lock);
    return at ? cudaSuccess : host_failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *ptr)
{
    size_t n_bytes;
    if (!ptr) return cudaSuccess;
    pthread_mutex_lock(&host_lock);
    const bool known = remove_block(ptr, true, &n_bytes);
    pthread_mutex_unlock(&host_lock);
    if (!known) return host_failed(cudaErrorInvalidValue);
    free(ptr);
    return cudaSuccess;
}

/* As CUDA does, once nothing is under way on the device. */
cudaError_t cudaFree(void *devPtr)
{
    size_t n_bytes;
    if (!devPtr) return cudaSuccess;
    pthread_mutex_lock(&host_lock);
    host_drain_device(host_device());
    const bool known = remove_block(devPtr, false, &n_bytes);
    if (known) madvise(devPtr, n_bytes, MADV_DONTNEED);
    pthread_mutex_unlock(&host_lock);
    return known ? cudaSuccess : host_failed(cudaErrorInvalidValue);
}

/* ---- for tests ------------------------------------------------------------------------------ */

void dh_host_fail_allocation(int64_t n)
{
    pthread_mutex_lock(&host_lock);
    allocations_to_failure = n;
    pthread_mutex_unlock(&host_lock);
}

int64_t dh_host_n_objects(void)
{
    pthread_mutex_lock(&host_lock);
    const int64_t n = n_objects;
    pthread_mutex_unlock(&host_lock);
    return n;
}
