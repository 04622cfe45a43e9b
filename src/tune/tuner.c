/* Data of one thread of a search: costs with a memory, and parts that its configurations share. */
#include <stdlib.h>

#include "train/recipe.h"
#include "tune/tuner.h"

/* Shared parts are keyed by their costs' address, so equal costs are one object. */
static const dh_costs *known_costs(const tuner *t, const dh_system_job *heeded)
{
    for (int k = 0; k < 2 * DH_N_TUNE_RECOMPUTE; k++) {
        const int whole = k / DH_N_TUNE_RECOMPUTE, recompute = k % DH_N_TUNE_RECOMPUTE;
        if (t->costs_by[whole][recompute] &&
            dh_system_jobs_equal(&t->heeded[whole][recompute], heeded))
            return t->costs_by[whole][recompute];
    }
    return NULL;
}

static dh_status make_costs(dh_ctx *ctx, tuner *t, dh_sequence sequence, dh_recompute recompute)
{
    dh_job *with = DH_NEW(t->arena, dh_job);
    const dh_costs **costs = &t->costs_by[sequence][recompute];
    dh_system system;
    dh_system_job said;
    if (!with) return dh_no_memory(ctx);
    *with = *t->job;
    with->recompute = recompute;
    with->sequence_parallel = sequence == DH_SEQUENCE_SPLIT;
    DH_TRY(dh_job_system(ctx, with, &system, &said));
    said = dh_system_heeds(&system, &said, t->options->cluster);
    const dh_costs *known = known_costs(t, &said);
    if (!known) {
        DH_TRY(dh_job_cluster_costs(ctx, t->arena, with, t->options->cluster, &known));
        known = tune_memo_init(&t->memo[sequence][recompute], t->group, known);
    }
    t->heeded[sequence][recompute] = said;
    *costs = known;
    return DH_OK;
}

/* Of each recomputation, and of split and whole tokens, since a system's operators may take another
 * time with them; ours do not. */
static dh_status find_costs(dh_ctx *ctx, tuner *t)
{
    for (int s = DH_SEQUENCE_SPLIT; s <= DH_SEQUENCE_WHOLE; s++)
        for (int i = 0; i < DH_N_TUNE_RECOMPUTE; i++)
            DH_TRY(make_costs(ctx, t, (dh_sequence)s, (dh_recompute)i));
    t->costs = t->costs_by[dh_sharing_of_job(t->job).sequence][t->job->recompute];
    return DH_OK;
}

dh_status tune_tuner_init(dh_ctx *ctx, tuner *t, dh_job *job)
{
    *t = (tuner){.job = job,
                 .options = t->options,
                 .own = t->own,
                 .own_split = t->own_split,
                 .splits = t->splits,
                 .searches_splits = t->searches_splits,
                 .strategy_wanted = t->strategy_wanted,
                 .schedule_wanted = t->schedule_wanted,
                 .zeros = t->zeros,
                 .buckets = t->buckets,
                 .sequences = t->sequences,
                 .fusions = t->fusions,
                 .posts = t->posts,
                 .own_sequence = t->own_sequence,
                 .memory_bytes = t->memory_bytes,
                 .shared = t->shared,
                 .arena = dh_arena_create(),
                 .group = dh_arena_create()};
    if (!t->arena || !t->group) return dh_no_memory(ctx);
    return t->options->cluster ? find_costs(ctx, t) : DH_OK;
}

static void empty(dh_table *table)
{
    dh_table_fini(table);
    *table = (dh_table){0};
}

static void give_up(tuner *t)
{
    empty(&t->decided);
    empty(&t->blocks);
    empty(&t->times);
    for (size_t i = 0; i < t->all_blocks.n; i++) tune_blocks_fini(t->all_blocks.at[i]);
    t->all_blocks.n = 0;
    dh_arena_destroy(t->group);
}

dh_status tune_forget(dh_ctx *ctx, tuner *t)
{
    give_up(t);
    t->group = dh_arena_create();
    for (int s = DH_SEQUENCE_SPLIT; s <= DH_SEQUENCE_WHOLE; s++)
        for (int i = 0; i < DH_N_TUNE_RECOMPUTE; i++) tune_memo_forget(&t->memo[s][i], t->group);
    return t->group ? DH_OK : dh_no_memory(ctx);
}

dh_status tune_begin_anew(dh_ctx *ctx, tuner *t)
{
    empty(&t->outlines);
    empty(&t->programs);
    return tune_forget(ctx, t);
}

void tune_tuner_fini(tuner *t)
{
    give_up(t);
    dh_table_fini(&t->outlines);
    dh_table_fini(&t->programs);
    for (int s = DH_SEQUENCE_SPLIT; s <= DH_SEQUENCE_WHOLE; s++)
        for (int i = 0; i < DH_N_TUNE_RECOMPUTE; i++) dh_table_fini(&t->memo[s][i].times);
    dh_vec_fini(&t->all_blocks);
    free(t->scratch);
    dh_vec_fini(&t->comms);
    dh_arena_destroy(t->arena);
}
