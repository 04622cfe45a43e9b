/* dhelix simulate: a job's training step on a cluster, without the cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/grid.h"
#include "cli/resharded.h"
#include "cli/simulated.h"
#include "cli/stage_times.h"
#include "cli/switched.h"

typedef struct simulate_args {
    const char *cluster, *strategies, *schedules, *trace, *out, *lengths;
    dh_cli_list slow, slow_links, slow_nodes, table, reshard_to;
    int64_t ranks;
    double peak_tflops, chunk_mb;
    int show;    /* dh_grid_figure */
    int reshard; /* dh_resharded_names */
    bool every_rank, placed, csv;
} simulate_args;

static const char *const figure_names[] = {
#define X(id, name, key, form, doc) name,
    DH_GRID_FIGURE_LIST(X)
#undef X
        NULL};

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
     .doc = "compare these strategies, or all, with the job as given, which is the first row. Each "
            "has the schedule and virtual stages that it needs, else the job's. auto: the strategy "
            "that strategy: auto chooses"},
    {.name = "schedules",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(simulate_args, schedules),
     .value = "all|A,B",
     .doc = "compare these pipeline schedules (dhelix list schedules), with every strategy asked "
            "for, and with the job as given; a schedule that does not apply says why"},
    {.name = "table",
     .kind = DH_CLI_TAIL,
     .offset = offsetof(simulate_args, table),
     .value = "KEY=V1,V2 [KEY=W1,W2]",
     .doc = "a step with every value of one setting, or a matrix of two settings. With --out the "
            "folder gets table.json and table.csv, which dhelix report draws"},
    {.name = "show",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(simulate_args, show),
     .names = figure_names,
     .doc = "what the matrix of --table shows (default: step); JSON and CSV have all"},
    {.name = "csv",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(simulate_args, csv),
     .doc = "the table of --table as CSV on standard output"},
    {.name = "reshard-to",
     .kind = DH_CLI_TAIL,
     .offset = offsetof(simulate_args, reshard_to),
     .value = "KEY=VALUE [KEY=VALUE]",
     .doc = "instead of a step: time, bytes and memory to move the job's parameters to the layout "
            "of the job with these settings, on the same ranks; a row for each rule that chooses "
            "the senders"},
    {.name = "reshard",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(simulate_args, reshard),
     .names = dh_resharded_names,
     .doc = "what moves: parameters as forward and backward read them (default), summed gradients, "
            "or all states that last between steps (masters, copies, moments)"},
    {.name = "reshard-chunk",
     .kind = DH_CLI_REAL,
     .offset = offsetof(simulate_args, chunk_mb),
     .value = "MB",
     .min = 1e-3,
     .max = 1e6,
     .doc = "largest amount that a rank sends or receives at once; without it, everything (one "
            "message to each "
            "other rank)"},
    {.name = "lengths",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(simulate_args, lengths),
     .value = "FILE",
     .doc = "with data.packing group: lengths of documents in place of those of the job's data. "
            "FILE has the number of tokens of one document per line, or a histogram (length and "
            "count, or low, high and count)"},
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
     .writes = true,
     .offset = offsetof(simulate_args, trace),
     .value = "FILE",
     .doc = "write rank 0's step as a Chrome trace"},
    {.name = "out",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(simulate_args, out),
     .value = "DIR",
     .doc = "write what a run would leave there: job.yaml, profile.json, summary.json and a trace "
            "of each simulated rank; with several strategies a folder each"},
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
        if (!dh_vec_push(&slow->ranks, rank)) return dh_no_memory(ctx);
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
        if (!dh_vec_push(&slow->nodes, node)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* ---- results -------------------------------------------------------------------------------- */

static dh_status write_traces(dh_ctx *ctx, const char *path, const dh_simulated_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const dh_sim *sim = list->at[i].sim;
        if (sim) DH_TRY(dh_trace_write(ctx, path, sim->ranks[0].program, sim->ranks[0].spans));
    }
    return DH_OK;
}

static dh_status report(dh_ctx *ctx, const dh_cli *cli, const simulate_args *a,
                        const dh_simulated_list *list)
{
    if (a->out) DH_TRY(dh_simulated_write(ctx, list, a->out));
    if (a->trace) DH_TRY(write_traces(ctx, a->trace, list));
    if (cli->json) return dh_cli_print_json(ctx, dh_simulated_json(list));
    dh_str out = DH_STR_INIT;
    dh_simulated_print(list, &out);
    return dh_cli_print_str(ctx, &out);
}

/* How to simulate; borrows cluster and lists. */
static dh_simulated_how how_of(const dh_cli *cli, const simulate_args *a, const dh_cluster *cluster,
                               const slow_lists *slow)
{
    const bool placed = a->placed || a->out || a->trace;
    return (dh_simulated_how){
        .cluster = cluster,
        .progress = !cli->quiet,
        .peak_flops_per_s = a->peak_tflops * 1e12,
        .simulation = {.sim = {.collapse = a->every_rank ? DH_SIM_EVERY : DH_SIM_AUTO,
                               .placed = placed,
                               .sums = !placed,
                               .slow = slow->ranks.at,
                               .n_slow = slow->ranks.n},
                       .slow_nodes = slow->nodes.at,
                       .n_slow_nodes = slow->nodes.n}};
}

static bool is_plain(const simulate_args *a)
{
    return !a->strategies && !a->schedules && !a->trace && !a->out && !a->placed &&
           !a->every_rank && a->slow.n + a->slow_links.n + a->slow_nodes.n == 0;
}

/* ---- documents by length --------------------------------------------------------------------- */

static dh_status report_switched(dh_ctx *ctx, const dh_cli *cli, const dh_switched *s,
                                 const dh_resolved *job, const char *reading)
{
    dh_str out = DH_STR_INIT;
    json_t *json = cli->json ? dh_switched_json(s, job) : NULL;
    if (json) json_object_set_new(json, "lengths", json_string(reading));
    if (cli->json) return dh_cli_print_json(ctx, json);
    dh_str_printf(&out, "lengths: %s\n", reading);
    dh_switched_print(s, job, &out);
    return dh_cli_print_str(ctx, &out);
}

static dh_status simulate_switched(dh_ctx *ctx, dh_cli *cli, const simulate_args *a,
                                   const dh_simulated_how *how, const dh_job *job)
{
    const dh_resolve_options open = {.cluster = how->cluster, .quiet = true};
    dh_resolved *resolved;
    dh_dataset *ds = NULL;
    dh_switched switched;
    char reading[DH_READING_BYTES];
    if (!is_plain(a) || a->peak_tflops > 0)
        return dh_cli_misuse(ctx, cli,
                             "the job has data.packing group, a step of several programs: of the "
                             "options --cluster, --ranks, --lengths, --set and --json apply");
    DH_TRY(dh_job_resolve(ctx, job, &open, &resolved));
    dh_status st = dh_switched_documents(ctx, resolved, a->lengths, reading, &ds);
    if (st == DH_OK) st = dh_switched_simulate(ctx, resolved, ds, &switched);
    if (st == DH_OK) st = report_switched(ctx, cli, &switched, resolved, reading);
    dh_dataset_close(ds);
    dh_resolved_destroy(resolved);
    return st;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Options that are of a model's programs. */
static dh_status check_timed(dh_ctx *ctx, dh_cli *cli, const simulate_args *a)
{
    if (is_plain(a)) return DH_OK;
    return dh_cli_misuse(ctx, cli,
                         "the job has stages.forward_ms, times instead of a model: no option but "
                         "--cluster, --set, --ranks and --json applies, and no cluster changes "
                         "these times");
}

static dh_status simulate_timed(dh_ctx *ctx, dh_cli *cli, const simulate_args *a, const dh_job *job)
{
    dh_stage_times times;
    dh_str out = DH_STR_INIT;
    DH_TRY(check_timed(ctx, cli, a));
    dh_status st = dh_stage_times_find(ctx, job, &times);
    if (st == DH_OK && cli->json) {
        st = dh_cli_print_json(ctx, dh_stage_times_json(&times));
    } else if (st == DH_OK) {
        dh_stage_times_print(&times, &out);
        st = dh_cli_print_str(ctx, &out);
    }
    dh_stage_times_fini(&times);
    return st;
}

static dh_status simulate_rows(dh_ctx *ctx, dh_cli *cli, const simulate_args *a,
                               const dh_simulated_how *how)
{
    dh_job *job;
    dh_simulated_list list = {.n = 0};
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks, &job));
    const bool timed = dh_job_has_stage_times(job), grouped = job->packing == DH_PACKING_GROUP;
    if (timed || grouped) {
        const dh_status done =
            timed ? simulate_timed(ctx, cli, a, job) : simulate_switched(ctx, cli, a, how, job);
        dh_job_destroy(job);
        return done;
    }
    if (a->lengths) {
        dh_job_destroy(job);
        return dh_cli_misuse(ctx, cli, "--lengths is of a job with data.packing group");
    }
    dh_status st = dh_simulated_open(ctx, job, a->strategies, a->schedules, &list);
    if (st == DH_OK && list.n > 1 && a->trace)
        st = dh_cli_misuse(ctx, cli,
                           "--trace is of one strategy and schedule; --out gives each its folder");
    if (st == DH_OK) st = dh_simulated_run(ctx, job, how, &list);
    if (st == DH_OK) st = report(ctx, cli, a, &list);
    dh_simulated_fini(&list);
    dh_job_destroy(job);
    return st;
}

static dh_status report_table(dh_ctx *ctx, const dh_cli *cli, const simulate_args *a,
                              const dh_grid *grid)
{
    dh_str out = DH_STR_INIT;
    dh_status st = DH_OK;
    if (a->out) DH_TRY(dh_grid_write(ctx, grid, a->out));
    if (cli->json) return dh_cli_print_json(ctx, dh_grid_json(grid));
    if (a->csv)
        dh_grid_csv(grid, &out);
    else
        st = dh_grid_print(ctx, grid, (dh_grid_figure)a->show, &out);
    if (st == DH_OK) return dh_cli_print_str(ctx, &out);
    dh_str_fini(&out);
    return st;
}

static dh_status simulate_table(dh_ctx *ctx, dh_cli *cli, const simulate_args *a,
                                const dh_simulated_how *how)
{
    dh_cli_overrides overrides;
    dh_grid grid = {.n = 0};
    if (a->strategies || a->schedules || a->trace)
        return dh_cli_misuse(ctx, cli,
                             "--table has no --strategies, --schedules or --trace: name strategy "
                             "or parallel.schedule as one of its settings");
    DH_TRY(dh_cli_overrides_init(ctx, cli, a->ranks, &overrides));
    dh_status st = dh_grid_open(ctx, a->table.at, a->table.n, &grid);
    if (st == DH_EINVAL) cli->usage = true;
    if (st == DH_OK) st = dh_grid_run(ctx, cli->args.at[0], overrides.at, overrides.n, how, &grid);
    if (st == DH_OK) st = report_table(ctx, cli, a, &grid);
    dh_grid_fini(&grid);
    dh_cli_overrides_fini(&overrides);
    return st;
}

/* ---- reshards -------------------------------------------------------------------------------- */

/* The job with --set, and with further settings behind them. */
static dh_status resolve_with(dh_ctx *ctx, const dh_cli *cli, const simulate_args *a,
                              const dh_cli_list *more, const dh_cluster *cluster, dh_job **job,
                              dh_resolved **resolved)
{
    dh_cli_overrides overrides;
    const dh_resolve_options how = {.cluster = cluster, .quiet = true};
    dh_cli both = *cli;
    both.set = (dh_cli_list){calloc(cli->set.n + more->n + 1, sizeof *both.set.at), 0};
    if (!both.set.at) return dh_no_memory(ctx);
    for (size_t i = 0; i < cli->set.n; i++) both.set.at[both.set.n++] = cli->set.at[i];
    for (size_t i = 0; i < more->n; i++) both.set.at[both.set.n++] = more->at[i];
    dh_status st = dh_cli_overrides_init(ctx, &both, a->ranks, &overrides);
    if (st == DH_OK) {
        st = dh_job_load(ctx, cli->args.at[0], overrides.at, overrides.n, job);
        if (st == DH_OK) st = dh_job_resolve(ctx, *job, &how, resolved);
        dh_cli_overrides_fini(&overrides);
    }
    free(both.set.at);
    return st;
}

static dh_status report_reshard(dh_ctx *ctx, const dh_cli *cli, const dh_resharded *r)
{
    dh_str out = DH_STR_INIT;
    if (cli->json) return dh_cli_print_json(ctx, dh_resharded_json(r));
    dh_resharded_print(r, &out);
    return dh_cli_print_str(ctx, &out);
}

static dh_status simulate_reshard(dh_ctx *ctx, dh_cli *cli, const simulate_args *a,
                                  const dh_cluster *cluster)
{
    const dh_cli_list none = {0};
    dh_job *jobs[2] = {NULL};
    dh_resolved *sides[2] = {NULL};
    dh_resharded r;
    if (a->strategies || a->schedules || a->table.n > 0 || a->trace || a->out || a->placed ||
        a->every_rank || a->peak_tflops > 0 || a->slow.n + a->slow_links.n + a->slow_nodes.n > 0)
        return dh_cli_misuse(ctx, cli,
                             "--reshard-to is of no step: of the other options --cluster, --ranks, "
                             "--set and --json apply");
    dh_status st = resolve_with(ctx, cli, a, &none, cluster, &jobs[0], &sides[0]);
    if (st == DH_OK) {
        st = resolve_with(ctx, cli, a, &a->reshard_to, cluster, &jobs[1], &sides[1]);
        if (st != DH_OK) dh_ctx_while(ctx, "reading the job with --reshard-to");
    }
    if (st == DH_OK)
        st = dh_resharded_make(ctx, sides[0], sides[1], a->reshard, (int64_t)(a->chunk_mb * 1e6),
                               &r);
    if (st == DH_OK) st = report_reshard(ctx, cli, &r);
    for (int k = 0; k < 2; k++) {
        dh_resolved_destroy(sides[k]);
        dh_job_destroy(jobs[k]);
    }
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const simulate_args *a = args;
    slow_lists slow = {0};
    dh_cluster *cluster = NULL;
    if (a->csv && (a->table.n == 0 || cli->json))
        return dh_cli_misuse(
            ctx, cli,
            "--csv prints the table of --table: give it with --table, and without --json");
    if (a->reshard_to.n == 0 && (a->reshard || a->chunk_mb > 0))
        return dh_cli_misuse(
            ctx, cli, "--reshard and --reshard-chunk are details of --reshard-to: give that too");
    dh_status st = list_slow(ctx, cli, a, &slow);
    if (st == DH_OK && a->cluster) st = dh_cluster_find(ctx, a->cluster, &cluster);
    const dh_simulated_how how = how_of(cli, a, cluster, &slow);
    if (st == DH_OK && a->reshard_to.n > 0)
        st = simulate_reshard(ctx, cli, a, cluster);
    else if (st == DH_OK)
        st = a->table.n > 0 ? simulate_table(ctx, cli, a, &how) : simulate_rows(ctx, cli, a, &how);
    dh_cluster_destroy(cluster);
    dh_vec_fini(&slow.ranks);
    dh_vec_fini(&slow.nodes);
    return st;
}

const dh_command dh_command_simulate = {
    .name = "simulate",
    .doc = "say how long a training step of a job takes on a cluster, and why",
    .usage = "JOB",
    .notes =
        "The programs are those that dhelix train would run. They are executed on the times\n"
        "that operators take on the cluster. Times of a step are means over all ranks. Times\n"
        "of a stage are those of its first rank, and of ranks that differ from it by more\n"
        "than 1 %.\n"
        "\n"
        "Hidden: communication's own time that does not make the step longer. Exposed: the\n"
        "time by which communication makes the step longer. Bubble: the rank waits for other\n"
        "stages. As system: memory as the system that the job names would need it.\n"
        "\n"
        "Slow ranks and links can also stand in the job file (slow.*). A job may have times\n"
        "of stages instead of a model (stages.*). Its schedule is then run against the clock,\n"
        "and the output shows what it leaves idle.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(simulate_args),
    .run = run};
