/* The strategies: one row each. */
#include "strategy/strategy.h"

#include <string.h>

#include "plan/schedule.h"

const char dh_passes_searched[] = "";

static const dh_strategy strategies[] = {
    {"sequential", "one strand: forwards and backwards never share a slot's time (Megatron-LM)", "",
     NULL, "sequential", false},
    {"wavelet+",
     "two strands on a folded model, operators alternate (Wavelet+ of DHelix, arXiv 2411.15871, "
     "6.1)",
     "", "dhelix-w", "round-robin", false},
    {"dhelix-paper",
     "two strands on a folded model, segments paired by equation 2 over all topological orders, "
     "weight gradients moved, a barrier between pairs (DHelix, arXiv 2411.15871, 4.2)",
     "", "dhelix-w", "exact", true},
    {"dhelix",
     "two strands on a folded model, in the order whose streams finish first: pairing plans and "
     "list schedules compared; events instead of barriers",
     "", "dhelix-w", "auto", false},
    {"intra-batch",
     "one strand, collectives of tensor parallelism as rings beside parts of their GEMMs "
     "(MegaScale, arXiv 2402.15627, 3.2)",
     "ring-gemm", NULL, "sequential", false},
    {"intra-batch-bidirectional",
     "intra-batch with rings both ways at once (looped CollectiveEinsum; Wang et al., ASPLOS 2023)",
     "ring-gemm(both)", NULL, "sequential", false},
    {"flux",
     "one strand, GEMMs that wait for the rows of an all-gather chunk by chunk, their own first, "
     "and "
     "whose rows leave for the rank that sums them as they are made; chunks chosen by costs (Flux, "
     "arXiv 2406.06858)",
     "part-wise(auto, scatter, fused)", NULL, "sequential", false},
    {"t3",
     "simulated only: one strand, steps of a reduce-scatter that hardware triggers as it sees the "
     "rows of the GEMM before it, added in memory (T3, arXiv 2401.16677)",
     "track-trigger", NULL, "sequential", false},
    {"domino",
     "one strand, the samples of a micro-batch in parts whose collectives and GEMMs take turns, "
     "over layers too (Domino, arXiv 2409.15241)",
     "domino", NULL, "list", false},
    {"dualpipe",
     "two strands on a V-shaped placement, attention, dispatch, MLP and combine of one beside the "
     "other's in a fixed plan (DeepSeek-V3, arXiv 2412.19437, 3.2.1)",
     "", "dualpipev", "dualpipe", false},
    {"combined-1f1b",
     "1F1B with two strands in a slot, attention and MLP of one beside the other's in a fixed "
     "order "
     "(Megatron-Core, combined_1f1b)",
     "", "combined-1f1b", "combined-1f1b", false},
    {"stp",
     "two strands on a V-shaped placement, attention and MLP of a forward and of an unsplit "
     "backward "
     "take turns (STP, arXiv 2510.27257)",
     "", "stp", "stp", false},
    {"dhelix-rings", "dhelix with the rings of intra-batch inside its pairs", "ring-gemm",
     "dhelix-w", "auto", false},
    {"round-robin", "operators of co-executed slots alternate, on the job's own schedule", "", NULL,
     "round-robin", false},
    {"list", "list scheduling of co-executed slots, on the job's own schedule (Graham 1969)", "",
     NULL, "list", false},
    {"centauri",
     "one strand, collectives that span nodes in a stage on every node and one across, in chunks, "
     "weight gradients where the critical path leaves room; what is cut is chosen by costs "
     "(Centauri, ASPLOS 2024)",
     "two-stage(auto, auto), part-wise(auto, cut=auto)", NULL, "critical-path", false},
    {"coconet",
     "one strand, layers rewritten by the sequence of split, reorder, fuse and part-wise that a "
     "search finds shortest (CoCoNet, arXiv 2105.05720)",
     dh_passes_searched, NULL, "sequential", false},
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
    const dh_schedule_row *schedule;
    dh_ctx quiet = DH_CTX_INIT;
    if (dh_schedule_find(&quiet, name, &schedule) == DH_OK)
        return dh_fail(ctx, DH_EMISSING,
                       "%s is a schedule, not a strategy: parallel.schedule=%s, with any strategy",
                       name, name);
    return dh_fail(ctx, DH_EMISSING, "no strategy is called %s%s%s; dhelix list strategies has all",
                   name, near ? "; did you mean " : "", near ? near : "");
}

static const dh_strategy *own_or_first(const dh_strategy *strategy)
{
    return strategy ? strategy : strategies;
}

dh_status dh_strategy_passes(dh_ctx *ctx, const dh_strategy *strategy, dh_pass_list *passes)
{
    strategy = own_or_first(strategy);
    dh_status st = dh_pass_list_parse(ctx, strategy->passes, passes);
    return st == DH_OK ? st : dh_ctx_while(ctx, "reading strategy %s", strategy->name);
}

dh_status dh_strategy_runs(dh_ctx *ctx, const dh_strategy *strategy)
{
    dh_pass_list list;
    DH_TRY(dh_strategy_passes(ctx, strategy, &list));
    for (int64_t i = 0; i < list.n; i++)
        if (list.at[i].pass->simulated)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "strategy %s is simulated only: %s, which pass %s stands for; `dhelix "
                           "simulate JOB --cluster NAME` has its times",
                           own_or_first(strategy)->name, list.at[i].pass->simulated,
                           list.at[i].pass->name);
    return DH_OK;
}

dh_status dh_strategy_ordering(dh_ctx *ctx, const dh_strategy *strategy, dh_ordering *ordering)
{
    strategy = own_or_first(strategy);
    *ordering = (dh_ordering){.options = DH_ORDER_OPTIONS_INIT};
    ordering->options.barriers = strategy->barriers;
    return dh_order_policy_find(ctx, strategy->policy, &ordering->policy);
}
