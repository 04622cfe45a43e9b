/* dhelix plot: figures for papers from whatever dhelix has written, and from jobs. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/figured.h"

typedef struct plot_args {
    const char *svg, *figures, *cluster;
    int64_t ranks;
    bool pdf;
} plot_args;

static const plot_args defaults = {.svg = "figures"};

static const dh_cli_option options[] = {
    {.name = "svg",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(plot_args, svg),
     .value = "FOLDER|FILE.svg",
     .doc = "write each figure as FOLDER/NAME.svg and its numbers as FOLDER/NAME.csv; or, where "
            "there is one figure, FILE.svg and FILE.csv (default: figures)"},
    {.name = "pdf",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(plot_args, pdf),
     .doc = "also NAME.pdf, by the program rsvg-convert of librsvg"},
    {.name = "figures",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(plot_args, figures),
     .value = "A,B",
     .doc =
         "only the figures of these names: loss, learning-rate, gradient-norm, "
         "tokens-per-second, load-balancing-loss, time, timeline, layer, schedule, plan, memory, "
         "pairs, table, validation"},
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(plot_args, cluster),
     .value = "NAME|FILE",
     .doc = "hardware on which jobs are simulated and published tables predicted: a name of dhelix "
            "list clusters or a file; without it, this machine as the job describes it, and the "
            "tables' own"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(plot_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .doc = "draw the traces of at most N ranks of a source, spread evenly; default: 64, and of a "
            "job the "
            "first rank of each pipeline stage"},
};

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const plot_args *a = args;
    dh_cluster *cluster = NULL;
    if (a->cluster) DH_TRY(dh_cluster_find(ctx, a->cluster, &cluster));
    const dh_figures_options how = {.cluster = cluster,
                                    .overrides = cli->set.at,
                                    .n_overrides = cli->set.n,
                                    .figures = a->figures,
                                    .max_ranks = a->ranks};
    const dh_status st = dh_cli_draw(ctx, cli, cli->args.at, &how, a->svg, a->pdf);
    dh_cluster_destroy(cluster);
    return st;
}

const dh_command dh_command_plot = {
    .name = "plot",
    .doc = "draw figures for papers as SVG, with their numbers as CSV",
    .usage = "SOURCE...",
    .notes =
        "SOURCE is one of these:\n"
        "  run folder        what training, or simulate --out, wrote: curves, shares of time,\n"
        "                    timeline, schedule, memory, pairs, table\n"
        "  one of its files  a trace (also one of report --traces), metrics.jsonl, summary.json,\n"
        "                    profile.json, oef.csv or table.json\n"
        "  JSON document     what `simulate --json` (with --strategies or --table) and `tune\n"
        "                    --json` print: steps as bars, and where their time went\n"
        "  job               FILE.yaml, or a name of `dhelix list jobs`: a simulated step on\n"
        "                    --cluster, the schedule, and pairs of a layer's operators\n"
        "  published table   a name of `dhelix list tables`: predicted and published\n"
        "\n"
        "Several sources share the curves and the shares of time; other figures have the source's\n"
        "number in their names. For a figure that is not drawn, the command says why. It fails "
        "where\n"
        "nothing is drawn, or where no source has a figure that --figures names.\n",
    .set = true,
    .min_args = 1,
    .max_args = DH_REPORT_MAX_RUNS,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(plot_args),
    .defaults = &defaults,
    .run = run};
