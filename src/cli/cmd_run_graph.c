/* dhelix run-graph: a program written in the graph's text form, run on real ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "config/settings.h"
#include "costs/cluster.h"
#include "train/graph_run.h"

typedef struct run_graph_args {
    const char *inputs, *out, *expect, *passes, *cluster;
    dh_cli_list keep;
    int64_t ranks;
    double tolerance;
} run_graph_args;

#define AT(field) .offset = offsetof(run_graph_args, field)

static const dh_cli_option options[] = {
    {.name = "inputs",
     .kind = DH_CLI_TEXT,
     AT(inputs),
     .value = "FILE",
     .doc = "safetensors file with the program's inputs"},
    {.name = "out",
     .kind = DH_CLI_TEXT,
     .writes = true,
     AT(out),
     .value = "FILE",
     .doc =
         "safetensors file for the results: NAME if all ranks have the same value, else NAME@RANK"},
    {.name = "expect",
     .kind = DH_CLI_TEXT,
     AT(expect),
     .value = "FILE",
     .doc = "safetensors file with the expected results; a difference above the tolerance is a "
            "failure"},
    {.name = "tolerance",
     .kind = DH_CLI_REAL,
     AT(tolerance),
     .value = "X",
     .max = DH_CLI_ANY,
     .doc = "largest allowed difference from the expected results (default: 0, the same bits)"},
    {.name = "passes",
     .kind = DH_CLI_TEXT,
     AT(passes),
     .value = "LIST|auto",
     .doc = "rewrite the program first, by passes as \"split, reorder\" (`dhelix list passes`); "
            "auto: by the sequence of passes with the shortest program; auto(sharded): the same, "
            "and moments may stay on the rank that updates them"},
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     AT(cluster),
     .value = "NAME|FILE",
     .doc = "with --passes auto: operator times of this hardware (`dhelix list clusters`); "
            "default: estimates, with links.* as set"},
    {.name = "keep",
     .kind = DH_CLI_LIST,
     AT(keep),
     .value = "NAME",
     .doc = "also return this value, although an operator reads it; may be repeated"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     AT(ranks),
     .value = "N",
     .min = 1,
     .max = 4096,
     .doc = "ranks; without settings of parallel.* the same as --set parallel.tp=N"},
};

/* ---- ranks --------------------------------------------------------------------------------- */

static dh_status set(dh_ctx *ctx, dh_job *job, const char *assignment, bool *arranged)
{
    char key[80];
    const char *equals = strchr(assignment, '=');
    if (!equals || (size_t)(equals - assignment) >= sizeof key)
        return dh_fail(ctx, DH_EINVAL, "--set %s: KEY=VALUE is wanted", assignment);
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = '\0';
    *arranged |= strncmp(key, "parallel.", strlen("parallel.")) == 0;
    if (dh_job_set(ctx, job, key, equals + 1) == DH_OK) return DH_OK;
    return dh_ctx_while(ctx, "reading --set %s", assignment);
}

/* A job of which only ranks, links and constants are used: there is no model. */
static dh_status make_job(dh_ctx *ctx, const dh_cli *cli, int64_t ranks, dh_job **job)
{
    char text[32];
    bool arranged = false;
    dh_status st = DH_OK;
    DH_TRY(dh_job_create(ctx, job));
    for (size_t i = 0; st == DH_OK && i < cli->set.n; i++)
        st = set(ctx, *job, cli->set.at[i], &arranged);
    snprintf(text, sizeof text, "%lld", (long long)ranks);
    if (st == DH_OK && ranks > 0)
        st = dh_job_set(ctx, *job, arranged ? "ranks" : "parallel.tp", text);
    if (st == DH_OK) st = dh_job_derive_ranks(ctx, *job);
    if (st != DH_OK) dh_job_destroy(*job);
    return st;
}

/* ---- what came of it ----------------------------------------------------------------------- */

typedef struct compared {
    double difference;
    int64_t n; /* ranks compared; 0: the file has no such tensor */
} compared;

static dh_status compare(dh_ctx *ctx, const run_graph_args *a, const dh_graph_run *run,
                         const dh_safetensors *expected, compared *list, bool *fits)
{
    int64_t n = 0;
    *fits = true;
    for (size_t i = 0; i < run->ios.n; i++) {
        if (!run->ios.at[i].out) continue;
        DH_TRY(dh_graph_run_compare(ctx, run, i, expected, &list[i].difference, &list[i].n));
        *fits = *fits && list[i].difference <= a->tolerance;
        n += list[i].n;
    }
    return n > 0 ? DH_OK
                 : dh_fail(ctx, DH_EMISSING, "%s has none of the program's outputs", a->expect);
}

static const dh_tensor *tensor_of(const dh_graph_run *run, size_t io)
{
    return &run->text->graph->tensors.at[run->ios.at[io].tensor];
}

static void shape_of(const dh_tensor *t, char *buf, size_t cap)
{
    dh_shape_text(buf, cap, t->ndim, t->shape);
}

static void add_row(dh_cli_table *table, const dh_graph_run *run, size_t i, const compared *c)
{
    char shape[96];
    const dh_tensor *t = tensor_of(run, i);
    shape_of(t, shape, sizeof shape);
    dh_cli_table_cell(table, "%s", t->name);
    dh_cli_table_cell(table, "%s %s", dh_dtype_name(t->dtype), shape);
    dh_cli_table_cell(table, "%s",
                      run->mesh.ranks == 1        ? "one rank"
                      : dh_graph_run_same(run, i) ? "the same on all"
                                                  : "by rank");
    if (!c)
        dh_cli_table_cell(table, "%s", "");
    else if (c->n == 0)
        dh_cli_table_cell(table, "not in the file");
    else if (c->difference == 0)
        dh_cli_table_cell(table, "same values");
    else
        dh_cli_table_cell(table, "off by %.3g at most", c->difference);
}

/* Which sequence a search chose. */
static void print_search(const dh_graph_run *run, dh_str *out)
{
    const dh_rewrites *r = run->rewrites;
    if (!r) return;
    const double ns = r->at[r->best].layer_ns, before = r->at[0].layer_ns;
    dh_str_printf(out, "rewritten by ");
    dh_rewrites_print(&r->at[r->best].passes, out);
    dh_str_printf(out, ": %.1f us by %s, %.1f as written (%.1f %% less), of %zu programs\n",
                  ns * 1e-3, run->costs, before * 1e-3,
                  before > 0 ? 100 * (before - ns) / before : 0, r->n);
}

static dh_status print_text(dh_ctx *ctx, const dh_graph_run *run, const compared *list)
{
    dh_str out = DH_STR_INIT;
    dh_cli_table table;
    const dh_program *p = run->programs[0];
    dh_str_printf(&out, "%s: %zu operators on %lld ranks, verified; %.3f ms, %llu bytes a rank\n",
                  run->text->file, p->instrs.n, (long long)run->mesh.ranks,
                  (double)run->step_ns * 1e-6, (unsigned long long)p->slab_bytes);
    print_search(run, &out);
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "output", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "of each rank", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "ranks", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, list ? "compared with the expected result" : "",
                        DH_CLI_COLUMN_TEXT);
    for (size_t i = 0; i < run->ios.n; i++)
        if (run->ios.at[i].out) add_row(&table, run, i, list ? &list[i] : NULL);
    dh_cli_table_end(&table, dh_cli_columns(), &out);
    return dh_cli_print_str(ctx, &out);
}

static json_t *output_json(const dh_graph_run *run, size_t i, const compared *c)
{
    const dh_tensor *t = tensor_of(run, i);
    json_t *shape = json_array();
    for (int a = 0; a < t->ndim; a++) json_array_append_new(shape, json_integer(t->shape[a]));
    json_t *o = json_pack("{s:s, s:s, s:o, s:b}", "name", t->name, "dtype", dh_dtype_name(t->dtype),
                          "shape", shape, "same_on_all_ranks", dh_graph_run_same(run, i));
    if (o && c && c->n > 0) json_object_set_new(o, "difference", json_real(c->difference));
    return o;
}

static json_t *tried_json(const dh_rewrites_tried *tried)
{
    dh_str name = DH_STR_INIT;
    dh_pass_list_print(&tried->passes, &name);
    json_t *o =
        json_pack("{s:s, s:f}", "passes", name.text ? name.text : "", "us", tried->layer_ns * 1e-3);
    dh_str_fini(&name);
    return o;
}

static json_t *search_json(const dh_graph_run *run)
{
    const dh_rewrites *r = run->rewrites;
    json_t *tried = json_array();
    for (size_t i = 0; i < r->n; i++) json_array_append_new(tried, tried_json(&r->at[i]));
    return json_pack("{s:s, s:o, s:o}", "costs", run->costs, "chosen", tried_json(&r->at[r->best]),
                     "tried", tried);
}

static dh_status print_json(dh_ctx *ctx, const dh_graph_run *run, const compared *list)
{
    json_t *outputs = json_array();
    for (size_t i = 0; i < run->ios.n; i++)
        if (run->ios.at[i].out)
            json_array_append_new(outputs, output_json(run, i, list ? &list[i] : NULL));
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:f, s:I, s:o}", "file", run->text->file, "ranks",
                  (json_int_t)run->mesh.ranks, "operators", (json_int_t)run->programs[0]->instrs.n,
                  "ms", (double)run->step_ns * 1e-6, "slab_bytes",
                  (json_int_t)run->programs[0]->slab_bytes, "outputs", outputs);
    if (o && run->rewrites) json_object_set_new(o, "rewrites", search_json(run));
    return dh_cli_print_json(ctx, o);
}

static dh_status tell(dh_ctx *ctx, const dh_cli *cli, const dh_graph_run *run, const compared *list)
{
    return cli->json ? print_json(ctx, run, list) : print_text(ctx, run, list);
}

static dh_status finish(dh_ctx *ctx, const dh_cli *cli, const run_graph_args *a,
                        const dh_graph_run *run, const dh_safetensors *expected)
{
    bool fits = true;
    compared *list = calloc(run->ios.n + 1, sizeof *list);
    if (!list) return dh_no_memory(ctx);
    dh_status st = a->out ? dh_graph_run_write(ctx, run, a->out) : DH_OK;
    if (st == DH_OK && expected) st = compare(ctx, a, run, expected, list, &fits);
    if (st == DH_OK) st = tell(ctx, cli, run, expected ? list : NULL);
    for (size_t i = 0; st == DH_OK && !fits && i < run->ios.n; i++)
        if (run->ios.at[i].out && list[i].difference > a->tolerance)
            st = dh_fail(ctx, DH_EINVAL, "output %s is off by %.3g from %s; --tolerance is %.3g",
                         tensor_of(run, i)->name, list[i].difference, a->expect, a->tolerance);
    free(list);
    return st;
}

/* ---- the command --------------------------------------------------------------------------- */

static dh_status open_file(dh_ctx *ctx, const char *path, dh_safetensors **file)
{
    *file = NULL;
    return path ? dh_st_open(ctx, path, file) : DH_OK;
}

/* The passes that rewrite the program, or the search that chooses them. */
static dh_status read_passes(dh_ctx *ctx, const run_graph_args *a, dh_graph_run_options *how)
{
    const char *text = a->passes ? a->passes : "";
    if (strcmp(text, "auto") == 0)
        how->search = DH_GRAPH_SEARCH;
    else if (strcmp(text, "auto(sharded)") == 0)
        how->search = DH_GRAPH_SEARCH_SHARDED;
    else if (strncmp(text, "auto", 4) == 0)
        return dh_fail(
            ctx, DH_EINVAL,
            "--passes %.40s: auto, auto(sharded) or passes of `dhelix list passes` would "
            "be right",
            text);
    else if (a->cluster)
        return dh_fail(ctx, DH_EINVAL, "--cluster has an effect only with --passes auto: add it");
    else
        return dh_pass_list_parse(ctx, text, &how->passes);
    return DH_OK;
}

static dh_status run_files(dh_ctx *ctx, const dh_cli *cli, const run_graph_args *a,
                           const dh_job *job, const dh_graph_text *text, const dh_costs *costs)
{
    dh_graph_run run = {.job = job};
    dh_safetensors *given = NULL, *expected = NULL;
    dh_graph_run_options how = {
        .keep = a->keep.at, .n_keep = a->keep.n, .costs = costs, .quiet = cli->quiet || cli->json};
    dh_status st = read_passes(ctx, a, &how);
    if (st == DH_OK) st = open_file(ctx, a->inputs, &given);
    if (st == DH_OK) st = open_file(ctx, a->expect, &expected);
    how.given = given;
    if (st == DH_OK) st = dh_graph_run_prepare(ctx, job, text, &how, &run);
    if (st == DH_OK) st = dh_graph_run_give(ctx, &run, given, a->inputs);
    if (st == DH_OK) st = dh_graph_run_start(ctx, &run);
    if (st == DH_OK && run.here) st = finish(ctx, cli, a, &run, expected);
    dh_st_close(given);
    dh_st_close(expected);
    dh_graph_run_fini(&run);
    return st;
}

static dh_status run_text(dh_ctx *ctx, const dh_cli *cli, const run_graph_args *a,
                          const dh_job *job, const dh_graph_text *text)
{
    dh_cluster *cluster = NULL;
    const dh_costs *costs = NULL;
    dh_arena *arena = dh_arena_create();
    dh_status st = arena ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK && a->cluster) st = dh_cluster_find(ctx, a->cluster, &cluster);
    if (st == DH_OK && cluster) st = dh_cluster_costs(ctx, arena, cluster, &costs);
    if (st == DH_OK) st = run_files(ctx, cli, a, job, text, costs);
    dh_cluster_destroy(cluster);
    dh_arena_destroy(arena);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const run_graph_args *a = args;
    dh_graph_text text;
    dh_job *job;
    DH_TRY(make_job(ctx, cli, a->ranks, &job));
    dh_status st = dh_graph_text_read(ctx, cli->args.at[0], &text);
    if (st == DH_OK) st = run_text(ctx, cli, a, job, &text);
    dh_graph_text_fini(&text);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_run_graph = {
    .name = "run-graph",
    .doc = "run a program of computation and collectives, written as graph text, on ranks",
    .usage = "FILE",
    .notes =
        "FILE is a graph in the text form of `dhelix check JOB --print graph`; `dhelix list ops`\n"
        "has the operators. Every rank runs it once, from top to bottom. A collective names its\n"
        "group ({group=tp}). The program is verified like any other: no deadlock, no race.\n"
        "\n"
        "Inputs are the tensors that the program reads before it writes them: kinds param, input,\n"
        "state and range, and the ends x_in and dx_out. Results are the tensors that it writes:\n"
        "kinds param, grad, state and range, the other ends, and activations that no operator\n"
        "reads.\n"
        "\n"
        "In the file of inputs, NAME is that tensor for all ranks. It has the tensor's shape, or\n"
        "one axis is as many times longer as a group (world, tp, dp, cp, pp) has ranks; each rank\n"
        "then gets its part. NAME@RANK is the tensor of one rank and takes precedence.\n"
        "\n"
        "--passes auto tries sequences of split, reorder, fuse and part-wise (CoCoNet's tuner)\n"
        "and runs the shortest program, by the clock that also plans orders. Results keep their\n"
        "bits on all ranks, with one exception: where part-wise splits a GEMM, its last bits may\n"
        "differ. With auto(sharded) an optimizer's moments may stay on the rank that updates\n"
        "them. That rank then returns only its own rows.\n"
        "\n"
        "These settings have an effect: parallel.*, topology.*, links.*, device, train.seed\n"
        "(dropout), train.threads and optimizer.* (adamw, clip). Under mpirun each process is a\n"
        "rank.\n",
    .set = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(run_graph_args),
    .run = run};
