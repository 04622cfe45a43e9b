/* dhelix report: a run, or several, as a page. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/figured.h"
#include "cli/serve.h"
#include "dhelix/report.h"

typedef struct report_args {
    const char *out, *traces, *baseline, *svg;
    int64_t ranks, port;
    bool serve, pdf;
} report_args;

static const dh_cli_option options[] = {
    {.name = "out",
     .letter = 'o',
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(report_args, out),
     .value = "FILE.html",
     .doc = "output file; default: RUN/report.html, or ./report.html for several runs"},
    {.name = "baseline",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(report_args, baseline),
     .value = "RUN",
     .doc = "the run with which others are compared, one of those given (default: the first whose "
            "strategy is sequential, else the first)"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(report_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .doc = "draw the traces of at most N ranks of a run, spread evenly; default: 64"},
    {.name = "serve",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(report_args, serve),
     .doc = "serve the page instead of writing a file, and redraw it during the run. The address "
            "belongs to this machine and contains a secret token"},
    {.name = "port",
     .kind = DH_CLI_INT,
     .offset = offsetof(report_args, port),
     .value = "N",
     .min = 1,
     .max = 65535,
     .doc = "with --serve: the port; default: any free one"},
    {.name = "svg",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(report_args, svg),
     .value = "FOLDER",
     .doc = "write no page, but each of its figures as FOLDER/NAME.svg, and the numbers that it "
            "shows as FOLDER/NAME.csv"},
    {.name = "pdf",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(report_args, pdf),
     .doc = "with --svg: also FOLDER/NAME.pdf, by the program rsvg-convert of librsvg"},
    {.name = "traces",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(report_args, traces),
     .value = "FILE.json",
     .doc = "write no page, but one file with the traces of a run's ranks, for Perfetto and for "
            "tools around PyTorch's profiler"},
};

/* A folder's name without the slashes at its end. */
static int trimmed(const char *run)
{
    size_t n = strlen(run);
    while (n > 1 && run[n - 1] == '/') n--;
    return (int)n;
}

static dh_status say(dh_ctx *ctx, const dh_cli *cli, const char *path)
{
    struct stat info;
    char size[32];
    dh_str text = DH_STR_INIT;
    if (cli->json)
        return dh_cli_print_json(
            ctx, json_pack("{ss sI}", "out", path, "runs", (json_int_t)cli->args.n));
    if (cli->quiet || stat(path, &info) != 0) return DH_OK;
    dh_str_printf(&text, "report      %s (%s)\n", path,
                  dh_format_bytes(size, sizeof size, (double)info.st_size));
    return dh_cli_print_str(ctx, &text);
}

static dh_status write_report(dh_ctx *ctx, const dh_cli *cli, const report_args *a,
                              const char **runs)
{
    const dh_report_options how = {.max_ranks = a->ranks, .baseline = a->baseline};
    dh_str path = DH_STR_INIT;
    if (a->out)
        dh_str_printf(&path, "%s", a->out);
    else
        dh_str_printf(&path, "%s/report.html", cli->args.n == 1 ? runs[0] : ".");
    dh_status st =
        path.failed ? dh_no_memory(ctx) : dh_report_write(ctx, runs, cli->args.n, &how, path.text);
    if (st == DH_OK) st = say(ctx, cli, path.text);
    dh_str_fini(&path);
    return st;
}

static dh_status join_traces(dh_ctx *ctx, dh_cli *cli, const report_args *a)
{
    if (cli->args.n > 1 || a->out || a->svg || a->ranks || a->baseline)
        return dh_cli_misuse(ctx, cli,
                             "--traces joins the traces of one run: without --out, "
                             "--svg, --ranks and other runs");
    DH_TRY(dh_report_traces(ctx, cli->args.at[0], a->traces));
    return say(ctx, cli, a->traces);
}

static dh_status write_figures(dh_ctx *ctx, const dh_cli *cli, const report_args *a,
                               const char **runs)
{
    const dh_figures_options how = {.max_ranks = a->ranks};
    return dh_cli_draw(ctx, cli, runs, &how, a->svg, a->pdf);
}

static dh_status serve(dh_ctx *ctx, dh_cli *cli, const report_args *a)
{
    if (cli->args.n > 1 || a->out || a->svg || a->traces || a->baseline || cli->json)
        return dh_cli_misuse(ctx, cli,
                             "--serve shows one run: without --out, --svg, --traces, --json and "
                             "other runs");
    const dh_serving serving = {.run = cli->args.at[0],
                                .port = a->port,
                                .quiet = cli->quiet,
                                .how = {.max_ranks = a->ranks}};
    return dh_cli_serve(ctx, &serving);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const report_args *a = args;
    if (a->port && !a->serve) return dh_cli_misuse(ctx, cli, "--port is for --serve");
    if (a->serve) return serve(ctx, cli, a);
    if (a->traces) return join_traces(ctx, cli, a);
    if (a->svg && (a->out || a->baseline))
        return dh_cli_misuse(ctx, cli,
                             "--svg writes figures, and no page: without --out and --baseline");
    if (a->pdf && !a->svg) return dh_cli_misuse(ctx, cli, "--pdf is for --svg");
    const char *runs[DH_REPORT_MAX_RUNS];
    dh_arena *names = dh_arena_create();
    dh_status st = names ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < cli->args.n; i++) {
        const char *word = cli->args.at[i];
        runs[i] = dh_arena_printf(names, "%.*s", trimmed(word), word);
        if (!runs[i]) st = dh_no_memory(ctx);
    }
    report_args own = *a;
    if (st == DH_OK && a->baseline &&
        !(own.baseline = dh_arena_printf(names, "%.*s", trimmed(a->baseline), a->baseline)))
        st = dh_no_memory(ctx);
    if (st == DH_OK)
        st = own.svg ? write_figures(ctx, cli, &own, runs) : write_report(ctx, cli, &own, runs);
    dh_arena_destroy(names);
    return st;
}

const dh_command dh_command_report = {
    .name = "report",
    .doc = "draw a run, or several side by side, as one HTML file",
    .usage = "RUN...",
    .notes =
        "RUN is a run folder: what training or simulation wrote. The page needs no network and no\n"
        "server.\n"
        "\n"
        "It shows losses (metrics.jsonl), where the time went (summary.json), pairs of operators\n"
        "(profile.json or oef.csv) and simulated steps (table.json, from `dhelix simulate --table\n"
        "--out`). Runs with a trace (`--set trace.step=N`) also show the timeline of a step, the\n"
        "two strands of a layer, the pipeline schedule and memory. For anything that is missing,\n"
        "the page says how to get it.\n"
        "\n"
        "--svg writes these figures as files for papers. Several runs share the curves and the\n"
        "shares of time; other figures have the run's number in their names. `dhelix plot` draws\n"
        "them from other sources, too.\n",
    .min_args = 1,
    .max_args = DH_REPORT_MAX_RUNS,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(report_args),
    .run = run};
