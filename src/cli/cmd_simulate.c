/* dhelix simulate: a job's training step on a cluster, without the cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/simulated.h"
#include "dhelix/train.h"

typedef struct simulate_args {
    const char *cluster, *strategies, *trace, *out;
    dh_cli_list slow, slow_links, slow_nodes;
    int64_t ranks;
    double peak_tflops;
    bool every_rank, placed;
} simulate_args;

static const dh_cli_option options[] = {
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(simulate_args, cluster),
     .value = "NAME|FILE",
     .doc = "hardware to simulate: a name of dhelix list clusters or a file; without it, this "
            "machine as the job describes it"},
    {.name = "strategies",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(simulate_args, strategies),
     .value = "all|A,B",
     .doc = "compare these strategies, or all, instead of showing the job's"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(simulate_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "ranks of the run; the same as --set ranks=N"},
    {.name = "peak",
     .kind = DH_CLI_REAL,
     .offset = offsetof(simulate_args, peak_tflops),
     .value = "TFLOPS",
     .min = 1e-3,
     .max = 1e6,
     .doc = "a device's peak, for utilisation; the cluster's where it is not given"},
    {.name = "slow",
     .kind = DH_CLI_LIST,
     .offset = offsetof(simulate_args, slow),
     .value = "RANK:FACTOR",
     .doc = "this rank takes FACTOR times as long for its computation; may be repeated"},
    {.name = "slow-link",
     .kind = DH_CLI_LIST,
     .offset = offsetof(simulate_args, slow_links),
     .value = "RANK:FACTOR",
     .doc = "communication of this rank takes FACTOR times as long; may be repeated"},
    {.name = "slow-node",
     .kind = DH_CLI_LIST,
     .offset = offsetof(simulate_args, slow_nodes),
     .value = "NODE:FACTOR",
     .doc = "communication of this node with others takes FACTOR times as long; may be repeated"},
    {.name = "trace",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(simulate_args, trace),
     .value = "FILE",
     .doc = "write rank 0's step as a Chrome trace"},
    {.name = "out",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(simulate_args, out),
     .value = "DIR",
     .doc = "write what a run would leave there: job.yaml, summary.json and a trace of each "
            "simulated rank; with several strategies a folder each"},
    {.name = "placed",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(simulate_args, placed),
     .doc = "also find a place for every buffer: the memory planned (--json), as dhelix check "
            "has it; slower"},
    {.name = "every-rank",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(simulate_args, every_rank),
     .doc = "simulate every rank by itself, not one for all that have the same timeline"},
};

/* ---- slow ranks -------------------------------------------------------------------------- */

typedef struct slow_lists {
    DH_VEC(dh_sim_slow) ranks;
    DH_VEC(dh_slow_node) nodes;
} slow_lists;

/* "3:1.3": who, and how many times as long it takes. */
static dh_status parse_slow(dh_ctx *ctx, dh_cli *cli, const char *option, const char *what,
                            const char *text, dh_slow_node *slow)
{
    char who[32];
    const size_t n = strcspn(text, ":");
    snprintf(who, sizeof who, "%.*s", (int)DH_MIN(n, sizeof who - 1), text);
    if (text[n] == ':' && dh_parse_i64(who, &slow->node) &&
        dh_parse_f64(text + n + 1, &slow->factor) && slow->factor > 0)
        return DH_OK;
    return dh_cli_misuse(ctx, cli, "--%s %s: a %s and a factor above 0 are wanted, as in 3:1.3",
                         option, text, what);
}

static dh_status add_ranks(dh_ctx *ctx, dh_cli *cli, const dh_cli_list *texts, bool link,
                           slow_lists *slow)
{
    for (size_t i = 0; i < texts->n; i++) {
        dh_slow_node who = {0};
        dh_sim_slow rank = {0};
        DH_TRY(parse_slow(ctx, cli, link ? "slow-link" : "slow", "rank", texts->at[i], &who));
        rank.rank = who.node;
        for (int e = 0; e < DH_N_ENGINE; e++)
            if (link == dh_engine_is_link((dh_engine)e)) rank.factor[e] = who.factor;
        if (!dh_vec_push(&slow->ranks, rank))
            return dh_fail(ctx, DH_ENOMEM, "out of memory reading options");
    }
    return DH_OK;
}

static dh_status list_slow(dh_ctx *ctx, dh_cli *cli, const simulate_args *a, slow_lists *slow)
{
    DH_TRY(add_ranks(ctx, cli, &a->slow, false, slow));
    DH_TRY(add_ranks(ctx, cli, &a->slow_links, true, slow));
    for (size_t i = 0; i < a->slow_nodes.n; i++) {
        dh_slow_node node = {0};
        DH_TRY(parse_slow(ctx, cli, "slow-node", "node", a->slow_nodes.at[i], &node));
        if (!dh_vec_push(&slow->nodes, node))
            return dh_fail(ctx, DH_ENOMEM, "out of memory reading options");
    }
    return DH_OK;
}

/* ---- strategies ----------------------------------------------------------------------------- */

static dh_status add_strategy(dh_ctx *ctx, const dh_job *job, const char *name, size_t n_name,
                              dh_simulated_list *list)
{
    const dh_strategy *strategy;
    const char *text = dh_arena_printf(job->arena, "%.*s", (int)n_name, name);
    if (!text) return dh_fail(ctx, DH_ENOMEM, "out of memory listing strategies");
    DH_TRY(dh_strategy_read(ctx, job->arena, text, &strategy));
    list->at[list->n++] = (dh_simulated){.strategy = strategy};
    return DH_OK;
}

/* Up to the next comma outside brackets. */
static size_t name_length(const char *names)
{
    size_t n = 0;
    for (int depth = 0; names[n] && (depth > 0 || names[n] != ','); n++)
        depth += (strchr("({[", names[n]) != NULL) - (strchr(")}]", names[n]) != NULL);
    return n;
}

static dh_status list_strategies(dh_ctx *ctx, const simulate_args *a, const dh_job *job,
                                 dh_simulated_list *list)
{
    size_t n_all, n_named = 1;
    const dh_strategy *all = dh_strategies(&n_all);
    const char *names = a->strategies ? a->strategies : job->strategy;
    if (strcmp(names, "auto") == 0) names = "all";
    for (const char *c = names; *c; c++) n_named += *c == ',';
    list->at = calloc(DH_MAX(n_all, n_named), sizeof *list->at);
    if (!list->at) return dh_fail(ctx, DH_ENOMEM, "out of memory listing strategies");
    if (strcmp(names, "all") == 0) {
        for (size_t i = 0; i < n_all; i++)
            list->at[list->n++] = (dh_simulated){.strategy = &all[i]};
        return DH_OK;
    }
    for (;;) {
        const size_t n = name_length(names);
        DH_TRY(add_strategy(ctx, job, names, n, list));
        if (!names[n]) return DH_OK;
        names += n + 1;
    }
}

/* What one strategy cannot do is said in its row, unless it is the only one. */
static dh_status simulate_one(dh_ctx *ctx, const dh_resolved *open, const dh_train_simulation *how,
                              const dh_simulated_list *list, dh_simulated *one)
{
    dh_status st = dh_resolved_vary(ctx, open, one->strategy, &one->job);
    if (st == DH_OK) st = dh_train_simulate(ctx, one->job, how, &one->sim);
    if (st == DH_OK) st = dh_cargo_means_of(ctx, one->sim, one->job->recipe.costs, &one->cargo);
    if (st == DH_OK || list->n == 1 || st == DH_ENOMEM) return st;
    snprintf(one->reason, sizeof one->reason, "%s", ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

static dh_status write_folder(dh_ctx *ctx, const simulate_args *a, const dh_simulated_list *list,
                              const dh_simulated *one)
{
    dh_str dir = DH_STR_INIT;
    dh_str_printf(&dir, list->n > 1 ? "%s/%s" : "%s", a->out, one->strategy->name);
    dh_status st = dir.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory writing a run folder")
                              : dh_train_write_simulated(ctx, &one->job->job, one->sim, dir.text);
    dh_str_fini(&dir);
    return st;
}

static dh_status write_files(dh_ctx *ctx, const simulate_args *a, const dh_simulated_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const dh_simulated *one = &list->at[i];
        if (!one->sim) continue;
        if (a->out) DH_TRY(write_folder(ctx, a, list, one));
        if (a->trace)
            DH_TRY(dh_trace_write(ctx, a->trace, one->sim->ranks[0].program,
                                  one->sim->ranks[0].spans));
    }
    return DH_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

static double peak_of(const simulate_args *a, const dh_job *job, const dh_cluster *cluster)
{
    if (a->peak_tflops > 0) return a->peak_tflops * 1e12;
    if (!cluster) return 0;
    return job->dtype == DH_F32 ? cluster->f32_flops_per_s : cluster->bf16_flops_per_s;
}

static dh_status simulate_all(dh_ctx *ctx, const dh_resolved *open, const dh_train_simulation *how,
                              dh_simulated_list *list)
{
    dh_status st = DH_OK;
    list->job = &open->job;
    for (size_t i = 0; st == DH_OK && i < list->n; i++)
        st = simulate_one(ctx, open, how, list, &list->at[i]);
    return st;
}

static dh_status report(dh_ctx *ctx, const dh_cli *cli, const simulate_args *a,
                        const dh_simulated_list *list)
{
    DH_TRY(write_files(ctx, a, list));
    if (cli->json) return dh_cli_print_json(ctx, dh_simulated_json(list));
    dh_str out = DH_STR_INIT;
    dh_simulated_print(list, &out);
    return dh_cli_print_str(ctx, &out);
}

/* What this machine could never hold is meant for another one. A bound from below: weights and
 * moments in float32, once over all ranks. */
static dh_status check_here(dh_ctx *ctx, const dh_job *job)
{
    enum { LEAST_BYTES = 12 }; /* of a parameter */
    char need[32], room[32];
    const double bytes = LEAST_BYTES * (double)dh_model_n_params(&job->model);
    const double here = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    if (bytes <= here) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s cannot run on this machine: its weights and moments alone take %s of %s; "
                   "name the hardware to simulate with --cluster (dhelix list clusters)",
                   job->model.name, dh_format_bytes(need, sizeof need, bytes),
                   dh_format_bytes(room, sizeof room, here));
}

static dh_status simulate(dh_ctx *ctx, dh_cli *cli, const simulate_args *a, const dh_job *job)
{
    slow_lists slow = {0};
    dh_cluster *cluster = NULL;
    dh_simulated_list list = {.n = 0};
    dh_resolved *open = NULL;
    dh_status st = list_slow(ctx, cli, a, &slow);
    if (st == DH_OK) st = list_strategies(ctx, a, job, &list);
    if (st == DH_OK && list.n > 1 && a->trace)
        st = dh_cli_misuse(ctx, cli, "--trace is of one strategy; --out gives each its folder");
    if (st == DH_OK)
        st = a->cluster ? dh_cluster_find(ctx, a->cluster, &cluster) : check_here(ctx, job);
    dh_train_simulation how = {.sim = {.collapse = a->every_rank ? DH_SIM_EVERY : DH_SIM_AUTO,
                                       .placed = a->placed || a->out || a->trace,
                                       .slow = slow.ranks.at,
                                       .n_slow = slow.ranks.n},
                               .slow_nodes = slow.nodes.at,
                               .n_slow_nodes = slow.nodes.n};
    const dh_resolve_options any = {.cluster = cluster, .open = true};
    list.cluster = cluster;
    list.peak_flops_per_s = peak_of(a, job, cluster);
    if (st == DH_OK) st = dh_job_resolve(ctx, job, &any, &open);
    if (st == DH_OK) st = simulate_all(ctx, open, &how, &list);
    if (st == DH_OK) st = report(ctx, cli, a, &list);
    for (size_t i = 0; i < list.n; i++) {
        dh_sim_destroy(list.at[i].sim);
        dh_resolved_destroy(list.at[i].job);
    }
    free(list.at);
    dh_resolved_destroy(open);
    dh_cluster_destroy(cluster);
    dh_vec_fini(&slow.ranks);
    dh_vec_fini(&slow.nodes);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const simulate_args *a = args;
    dh_job *job;
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks, &job));
    dh_status st = simulate(ctx, cli, a, job);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_simulate = {
    .name = "simulate",
    .doc = "say how long a training step of a job takes on a cluster, and why",
    .usage = "JOB",
    .notes =
        "The programs are those that dhelix train would run, executed on what operators take on\n"
        "the cluster. Times of a step are means over all ranks; a stage's are those of its first\n"
        "rank, and of those that differ from it by more than 1 %. Hidden: communication beside\n"
        "which its rank computed. Exposed: beside which it did not. Bubble: the rank stood still,\n"
        "waiting for other stages. Slow ranks and links can also stand in the job file (slow.*).\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(simulate_args),
    .run = run};
