/* Permutations without memory. */
#ifndef DH_DATA_PERMUTE_H
#define DH_DATA_PERMUTE_H

#include "base/base.h"

/* A permutation of [0, n): a Feistel network on the next even number of bits. It is applied again
 * while its result leaves the range. It covers at most 4 n values, so this takes fewer than 4 times
 * on average. Bijective for any round function. */
static inline uint64_t dh_permute(uint64_t key, uint64_t n, uint64_t x)
{
    enum { ROUNDS = 6 };
    unsigned half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = left ^ (dh_mix64(key ^ dh_mix64(right << 8 | round)) & mask);
            left = right;
            right = mixed;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}

#endif
