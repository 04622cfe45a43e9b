#include "base/mapped.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

bool dh_copy_mapped(void *to, const void *from, size_t n_bytes)
{
    const pid_t self = getpid();
    for (size_t done = 0; done < n_bytes;) {
        const struct iovec out = {(char *)to + done, n_bytes - done};
        const struct iovec in = {(void *)((uintptr_t)from + done), n_bytes - done};
        const ssize_t n = process_vm_readv(self, &out, 1, &in, 1, 0);
        if (n < 0 && errno != EFAULT) {
            memcpy(out.iov_base, in.iov_base, in.iov_len);
            return true;
        }
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

bool dh_map_own(dh_map *map)
{
    enum { MOST_BYTES = 64 << 20 };
    if (map->n_bytes == 0 || map->n_bytes > MOST_BYTES) return true;
    void *at = mmap(NULL, map->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return true;
    dh_map own = {at, map->n_bytes};
    const bool ok = dh_copy_mapped(at, map->at, map->n_bytes);
    if (ok) {
        const dh_map file = *map;
        *map = own;
        own = file;
    }
    dh_map_close(&own);
    return ok;
}
