/* The strategies: one row each. */
#include "strategy/strategy.h"

#include <string.h>

#include "config/settings.h"

static const dh_strategy strategies[] = {
    {"sequential", "one strand: a slot holds a forward or a backward, not both (Megatron-LM)",
     DH_NO_PASSES, NULL, "sequential", false, false},
    {"wavelet+",
     "two strands on a folded model; their operators alternate (Wavelet+ of DHelix, arXiv "
     "2411.15871, 6.1)",
     DH_NO_PASSES, "dhelix-w", "round-robin", false, false},
    {"dhelix-paper",
     "two strands on a folded model; segments are paired by equation 2 over all topological "
     "orders, weight gradients are moved, and a barrier stands between pairs (DHelix, arXiv "
     "2411.15871, 4.2)",
     DH_NO_PASSES, "dhelix-w", "exact", true, false},
    {"dhelix",
     "two strands on a folded model; the fastest order among pairing plans and list schedules, "
     "with events instead of barriers",
     DH_NO_PASSES, "dhelix-w", "auto", false, false},
    {"intra-batch",
     "one strand; collectives of tensor parallelism become rings that run during parts of their "
     "GEMMs (MegaScale, arXiv 2402.15627, 3.2)",
     DH_PASSES(1, DH_PASS_USE(ring_gemm, DH_RING_FORTH)), NULL, "sequential", false, false},
    {"intra-batch-bidirectional",
     "intra-batch with rings in both directions at once (looped CollectiveEinsum; Wang et al., "
     "ASPLOS 2023)",
     DH_PASSES(1, DH_PASS_USE(ring_gemm, DH_RING_BOTH)), NULL, "sequential", false, false},
    {"flux",
     "one strand; a GEMM starts with the rank's own rows, takes other rows as the all-gather "
     "brings them, and sends each chunk of its result to the rank that sums it; costs choose the "
     "chunks (Flux, arXiv 2406.06858)",
     DH_PASSES(1, DH_PASS_USE(part_wise, DH_BY_COSTS, true, true, DH_CUT_ALL)), NULL, "sequential",
     false, false},
    {"t3",
     "simulated only: one strand; hardware starts a step of a reduce-scatter when it has seen the "
     "rows of the GEMM before it, and memory adds them (T3, arXiv 2401.16677)",
     DH_PASSES(1, DH_PASS_USE(track_trigger, 0)), NULL, "sequential", false, false},
    {"domino",
     "one strand; the samples of a micro-batch go through the layers in parts, whose collectives "
     "and GEMMs take turns (Domino, arXiv 2409.15241)",
     DH_PASSES(1, DH_PASS_USE(domino, 2, 1)), NULL, "list", false, false},
    {"dualpipe",
     "two strands on a V-shaped placement; attention, dispatch, MLP and combine of one run during "
     "those of the other, in a fixed order (DeepSeek-V3, arXiv 2412.19437, 3.2.1)",
     DH_NO_PASSES, "dualpipev", "dualpipe", false, false},
    {"combined-1f1b",
     "1F1B with two strands in a slot; attention and MLP of one run during those of the other, in "
     "a fixed order (Megatron-Core, combined_1f1b)",
     DH_NO_PASSES, "combined-1f1b", "combined-1f1b", false, false},
    {"stp",
     "two strands on a V-shaped placement; attention and MLP of a forward and of an unsplit "
     "backward take turns (STP, arXiv 2510.27257)",
     DH_NO_PASSES, "stp", "stp", false, false},
    {"dhelix-rings", "dhelix with the rings of intra-batch inside its pairs",
     DH_PASSES(1, DH_PASS_USE(ring_gemm, DH_RING_FORTH)), "dhelix-w", "auto", false, false},
    {"round-robin", "operators of co-executed slots alternate, on the job's own schedule",
     DH_NO_PASSES, NULL, "round-robin", false, false},
    {"list", "list scheduling of co-executed slots, on the job's own schedule (Graham 1969)",
     DH_NO_PASSES, NULL, "list", false, false},
    {"centauri",
     "one strand; a collective that spans nodes runs as a stage inside every node and a stage "
     "across nodes, in chunks; weight gradients go where the critical path leaves room; costs "
     "choose what is cut (Centauri, ASPLOS 2024)",
     DH_PASSES(2, DH_PASS_USE(two_stage, DH_STAGES_AUTO, DH_BY_COSTS),
               DH_PASS_USE(part_wise, DH_BY_COSTS, false, false, DH_CUT_AUTO)),
     NULL, "critical-path", false, false},
    {"coconet",
     "one strand; a search finds the sequence of split, reorder, fuse and part-wise with the "
     "shortest layer (CoCoNet, arXiv 2105.05720)",
     DH_NO_PASSES, NULL, "sequential", false, true},
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
    const char *here = dh_foreign_value("strategy", name);
    const char *near = here ? here : dh_nearest(name, names, DH_COUNTOF(names));
    const dh_schedule_row *schedule;
    dh_ctx quiet = DH_CTX_INIT;
    if (dh_schedule_find(&quiet, name, &schedule) == DH_OK)
        return dh_fail(ctx, DH_EMISSING,
                       "%s is a schedule, not a strategy: parallel.schedule=%s, with any strategy",
                       name, name);
    return dh_fail(ctx, DH_EMISSING, "no strategy is called %s%s%s; dhelix list strategies has all",
                   name, near ? "; did you mean " : "", near ? near : "");
}

dh_status dh_schedule_named(dh_ctx *ctx, const char *name, const dh_schedule_row **row)
{
    dh_ctx quiet = DH_CTX_INIT;
    const char *here = dh_foreign_value("parallel.schedule", name);
    if (dh_schedule_find(&quiet, name, row) == DH_OK) return DH_OK;
    for (size_t i = 0; i < DH_COUNTOF(strategies); i++) {
        const dh_strategy *s = &strategies[i];
        if (strcmp(s->name, name) != 0) continue;
        return dh_fail(ctx, DH_EMISSING, "%s is a strategy, not a schedule: strategy=%s%s%s", name,
                       name, s->schedule ? ", which brings schedule " : ", with any schedule",
                       s->schedule ? s->schedule : "");
    }
    if (!here) return dh_schedule_find(ctx, name, row);
    return dh_fail(ctx, DH_EMISSING,
                   "no schedule \"%.80s\"; did you mean \"%s\"?; `dhelix list schedules` has all",
                   name, here);
}

static const dh_strategy *own_or_first(const dh_strategy *strategy)
{
    return strategy ? strategy : strategies;
}

dh_status dh_strategy_with(dh_ctx *ctx, dh_arena *arena, const dh_strategy *strategy,
                           const dh_pass_list *passes, const dh_strategy **with)
{
    dh_strategy *own = DH_NEW(arena, dh_strategy);
    if (!own) return dh_no_memory(ctx);
    *own = *strategy;
    own->passes = *passes;
    own->searches = false;
    *with = own;
    return DH_OK;
}

dh_status dh_strategy_runs(dh_ctx *ctx, const dh_strategy *strategy)
{
    strategy = own_or_first(strategy);
    for (int64_t i = 0; i < strategy->passes.n; i++) {
        const dh_pass *pass = strategy->passes.at[i].pass;
        if (pass->simulated)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "strategy %s is simulated only: %s, which pass %s stands for; `dhelix "
                           "simulate JOB --cluster NAME` has its times",
                           strategy->name, pass->simulated, pass->name);
    }
    return DH_OK;
}

dh_status dh_strategy_ordering(dh_ctx *ctx, const dh_strategy *strategy, dh_ordering *ordering)
{
    strategy = own_or_first(strategy);
    *ordering = (dh_ordering){.options = DH_ORDER_OPTIONS_INIT};
    ordering->options.barriers = strategy->barriers;
    return dh_order_policy_find(ctx, strategy->policy, &ordering->policy);
}
