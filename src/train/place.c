/* The cores on which a rank computes. Ranks that may use the same processors of the same machine
 * divide them. The job's declaration of nodes does not matter here, nor do host names: containers
 * and network namespaces of one machine have several of them. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/rank.h"

/* One a boot of a kernel, so the same in all containers of a machine. */
static void machine_id(char *id, size_t cap)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = file ? fread(id, 1, cap - 1, file) : 0;
    if (file) fclose(file);
    id[n] = '\0';
    if (n == 0 && gethostname(id, cap) == 0) id[cap - 1] = '\0';
}

uint64_t dh_machine_key(void)
{
    char id[256] = "";
    uint64_t key = 0;
    machine_id(id, sizeof id);
    for (const char *c = id; *c; c++) key = dh_mix64(key ^ (unsigned char)*c);
    return key;
}

/* Equal for processes that may use the same processors of the same machine. */
static uint64_t processors_key(void)
{
    enum { MAX_PROCESSORS = 8192 };
    uint64_t mask[MAX_PROCESSORS / 64] = {0}, key = dh_machine_key();
    /* A kernel that refuses leaves zeros: all of the machine. */
    (void)sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask);
    for (size_t i = 0; i < DH_COUNTOF(mask); i++) key = dh_mix64(key ^ mask[i]);
    return key;
}

dh_status dh_ranks_place(dh_ctx *ctx, const dh_ranks *ranks, int *local_rank, int *n_local_ranks)
{
    *local_rank = 0;
    *n_local_ranks = 1;
    if (!ranks->control) return DH_OK;
    uint64_t mine = processors_key();
    uint64_t *keys = calloc((size_t)ranks->n, sizeof *keys);
    if (!keys) return dh_no_memory(ctx);
    keys[ranks->rank] = mine;
    dh_status st =
        dh_comm_all_gather(ctx, ranks->control, &mine, keys, (int64_t)sizeof mine, DH_U8);
    *n_local_ranks = 0;
    for (int64_t r = 0; st == DH_OK && r < ranks->n; r++) {
        if (keys[r] != mine) continue;
        *local_rank += r < ranks->rank;
        *n_local_ranks += 1;
    }
    free(keys);
    return st;
}
