/* The strategies and how each orders two strands. */
#include "dhelix/strategy.h"

#include <string.h>

/* One strand after the other. */
static void sequential(dh_strand f, dh_strand b, unsigned char *from_b)
{
    memset(from_b, 0, f.n);
    memset(from_b + f.n, 1, b.n);
}

/* Operators of the two strands alternate, whatever they are. */
static void round_robin(dh_strand f, dh_strand b, unsigned char *from_b)
{
    size_t i = 0, j = 0;
    while (i + j < f.n + b.n) {
        bool back = i == f.n || (j < b.n && j < i);
        from_b[i + j] = back;
        *(back ? &j : &i) += 1;
    }
}

/* List scheduling: time is simulated; of the two next operators the one that can start
 * first is issued, an operator of a link before one of the core when both can, since
 * it needs nobody's attention once it runs. Within a strand an operator starts after
 * the one before it: true of most, and what keeps the estimate simple. */
static void list_schedule(dh_strand f, dh_strand b, unsigned char *from_b)
{
    const dh_strand strands[2] = {f, b};
    size_t next[2] = {0, 0};
    int64_t ready[2] = {0, 0}, left[2] = {0, 0}, free_at[3] = {0, 0, 0};
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < strands[s].n; i++) left[s] += strands[s].ops[i].ns;
    for (size_t k = 0; k < f.n + b.n; k++) {
        int64_t start[2];
        for (int s = 0; s < 2; s++) {
            if (next[s] == strands[s].n) {
                start[s] = INT64_MAX;
                continue;
            }
            start[s] = DH_MAX(ready[s], free_at[strands[s].ops[next[s]].stream]);
        }
        int pick = start[1] < start[0];
        if (start[0] == start[1]) {
            bool link0 = f.ops[next[0]].stream != 0, link1 = b.ops[next[1]].stream != 0;
            pick = link0 == link1 ? left[1] > left[0] : link1;
        }
        const dh_op_cost *op = &strands[pick].ops[next[pick]++];
        ready[pick] = free_at[op->stream] = start[pick] + op->ns;
        left[pick] -= op->ns;
        from_b[k] = (unsigned char)pick;
    }
}

/* ---- rows -------------------------------------------------------------------------------------
 */

static const dh_strategy strategies[] = {
    {"sequential", "one strand: forwards and backwards never share a slot's time (Megatron-LM)",
     NULL, sequential},
    {"round-robin",
     "two strands on a folded model, operators alternate (Wavelet+ of DHelix, arXiv 2411.15871, "
     "6.1)",
     "dhelix-w", round_robin},
    {"list",
     "two strands on a folded model, each operator issued where it can start first by estimated "
     "times (list scheduling; Graham 1969)",
     "dhelix-w", list_schedule},
};

const dh_strategy *dh_strategies(size_t *n)
{
    *n = DH_COUNTOF(strategies);
    return strategies;
}

dh_status dh_strategy_find(dh_ctx *ctx, const char *name, const dh_strategy **strategy)
{
    const char *names[DH_COUNTOF(strategies)];
    for (size_t i = 0; i < DH_COUNTOF(strategies); i++) {
        names[i] = strategies[i].name;
        if (strcmp(names[i], name) != 0) continue;
        *strategy = &strategies[i];
        return DH_OK;
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(names));
    return dh_fail(ctx, DH_EMISSING, "no strategy is called %s%s%s; dhelix list strategies has all",
                   name, near ? "; did you mean " : "", near ? near : "");
}
