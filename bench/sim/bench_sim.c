/* What simulating large meshes takes: Llama 3.1 405B at 131,072 tokens, TP 8, CP 16, PP 16 on an
 * H100 cluster. One CSV line a case, the fastest of three runs; one process each, so that the
 * memory is its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "costs/cluster.h"
#include "dhelix/cluster.h"
#include "program/recipe.h"
#include "sim/simulate.h"

typedef struct bench_case {
    int64_t dp;
    int32_t n_micro;
    const char *strategy;
    dh_sim_slow slow; /* factor 0: none */
} bench_case;

static const bench_case cases[] = {
    {8, 32, "sequential", {.rank = 0}},
    {8, 32, "dhelix", {.rank = 0}},
    {8, 128, "sequential", {.rank = 0}},
    {8, 32, "sequential", {.rank = 5000, .factor = {1.3, 1, 1}}},
    {512, 32, "sequential", {.rank = 0}},
    {512, 32, "dhelix", {.rank = 0}},
};

typedef struct job {
    dh_arena *arena;
    dh_cluster *cluster;
    dh_schedule *schedule;
    dh_recipe recipe;
    const dh_costs *costs;
} job;

static dh_status prepare(dh_ctx *ctx, const bench_case *c, job *j)
{
    const dh_schedule_row *row;
    const dh_schedule_spec wanted = {.n_ranks = 16, .n_micro = c->n_micro};
    dh_model model;
    j->arena = dh_arena_create();
    if (!j->arena) return dh_fail(ctx, DH_ENOMEM, "out of memory");
    DH_TRY(dh_model_from_preset(ctx, "llama3.1-405b", &model));
    DH_TRY(dh_cluster_find(ctx, "h100", &j->cluster));
    DH_TRY(dh_cluster_costs(ctx, j->arena, j->cluster, &j->costs));
    j->recipe = (dh_recipe){
        .model = model,
        .dtype = DH_BF16,
        .costs = j->costs,
        .sharing = dh_sharing_of(1),
        .recompute = DH_RECOMPUTE_KIND_SELECTIVE,
        .micro_batch = 1,
        .seq = 131072,
        .n_micro = c->n_micro,
    };
    DH_TRY(dh_cluster_mesh(ctx, j->cluster, c->dp, 8, 16, 16, 1, &j->recipe.mesh));
    DH_TRY(dh_strategy_find(ctx, c->strategy, &j->recipe.strategy));
    const char *schedule = j->recipe.strategy->schedule;
    DH_TRY(dh_schedule_find(ctx, schedule ? schedule : "1f1b", &row));
    DH_TRY(dh_schedule_generate(ctx, row, &wanted, &j->schedule));
    j->recipe.schedule = j->schedule;
    return DH_OK;
}

static dh_status measure(dh_ctx *ctx, const bench_case *c, job *j)
{
    const dh_sim_options options = {.slow = &c->slow, .n_slow = c->slow.factor[0] > 0};
    double best = 0;
    for (int k = 0; k < 3; k++) {
        dh_sim *sim;
        const int64_t start = dh_now_ns();
        DH_TRY(dh_simulate(ctx, &j->recipe, j->costs, &options, &sim));
        const double s = (double)(dh_now_ns() - start) * 1e-9;
        best = k == 0 || s < best ? s : best;
        struct rusage use;
        getrusage(RUSAGE_SELF, &use);
        if (k == 2)
            printf("%lld,%s,%d,%s,%zu,%llu,%.3f,%.3f,%.0f\n", (long long)sim->n_ranks, c->strategy,
                   c->n_micro, options.n_slow ? "one" : "none", sim->n_classes,
                   (unsigned long long)sim->n_instrs, (double)sim->step_ns * 1e-9, best,
                   (double)use.ru_maxrss / 1024);
        dh_sim_destroy(sim);
    }
    return DH_OK;
}

static int run(const bench_case *c)
{
    dh_ctx ctx = DH_CTX_INIT;
    job j = {0};
    dh_status st = prepare(&ctx, c, &j);
    if (st == DH_OK) st = measure(&ctx, c, &j);
    if (st != DH_OK) fprintf(stderr, "bench_sim: %s\n", ctx.message);
    dh_schedule_destroy(j.schedule);
    dh_cluster_destroy(j.cluster);
    dh_arena_destroy(j.arena);
    return st != DH_OK;
}

int main(void)
{
    printf("ranks,strategy,micro_batches,slow,simulated,instructions,step_s,seconds,max_rss_mib\n");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            const int failed = run(&cases[i]);
            fflush(stdout);
            _exit(failed);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) return 1;
    }
    return 0;
}
