/* dhelix calibrate: a cluster file from measurements of one's own machines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "describe/calibrated.h"

typedef struct calibrate_args {
    const char *like, *out;
    int64_t devices;
} calibrate_args;

static const dh_cli_option options[] = {
    {.name = "like",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(calibrate_args, like),
     .value = "NAME|FILE",
     .doc = "cluster of the same hardware (`dhelix list clusters`); it gives the values that were "
            "not measured"},
    {.name = "out",
     .letter = 'o',
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(calibrate_args, out),
     .value = "FILE.yaml",
     .doc = "write the cluster, for simulate, plan and tune --cluster FILE.yaml"},
    {.name = "devices",
     .kind = DH_CLI_INT,
     .offset = offsetof(calibrate_args, devices),
     .value = "N",
     .min = 1,
     .max = 1024,
     .doc = "devices of a node; default: those of --like"},
};

/* ---- as text -------------------------------------------------------------------------------- */

static void add_error(const dh_calibration_error *e, dh_cli_table *table)
{
    if (e->n > 0)
        dh_cli_table_cell(table, "%.1f%%", 100 * e->mean);
    else
        dh_cli_table_cell(table, "-");
}

/* A note for a constant at the end of its range. It names the rate of which the constant is a
 * share: that of a link, or of the device. */
static const char *at_bound(const char *key)
{
    if (strncmp(key, "local.", 6) == 0)
        return ", at the end of its range: see local.gb_per_s of --like";
    if (strncmp(key, "network.", 8) == 0)
        return ", at the end of its range: see network.gb_per_s of --like";
    return ", at the end of its range: see the peak of --like";
}

static void print_constants(const dh_calibration *f, dh_str *out)
{
    static const char *const headings[] = {"was", "is", "unit"};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "constant", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], i < 2 ? DH_CLI_COLUMN_RIGHT : DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_TEXT);
    for (size_t i = 0; i < f->n_constants; i++) {
        const dh_calibration_constant *c = &f->constants[i];
        dh_cli_table_cell(&table, "%s", c->key);
        dh_cli_table_cell(&table, "%.4g", c->base);
        dh_cli_table_cell(&table, "%.4g", c->value);
        dh_cli_table_cell(&table, "%s", c->unit);
        dh_cli_table_cell(&table, "%s%s", c->why,
                          c->at_bound               ? at_bound(c->key)
                          : c->fitted || c->follows ? ""
                                                    : ": kept");
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void print_oefs(const dh_calibration *f, dh_str *out)
{
    static const char *const headings[] = {"was", "is", "a quarter below", "above", "pairs"};
    dh_cli_table table;
    if (f->n_oefs == 0) return;
    dh_str_printf(out, "\n");
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "overlap effectiveness", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (size_t i = 0; i < f->n_oefs; i++) {
        const dh_calibration_oef *o = &f->oefs[i];
        dh_cli_table_cell(&table, "%s, %s", dh_cluster_class_name(o->classes[0]),
                          dh_cluster_class_name(o->classes[1]));
        const double values[] = {o->base, o->value, o->quarter, o->three_quarters};
        for (size_t k = 0; k < DH_COUNTOF(values); k++)
            dh_cli_table_cell(&table, "%.2f", values[k]);
        dh_cli_table_cell(&table, "%zu", o->n);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static void add_worst(const dh_calibration_group *g, dh_cli_table *table)
{
    const char *slash = strrchr(g->worst->file, '/');
    const char *file = slash ? slash + 1 : g->worst->file;
    dh_cli_table_cell(table, "%+.1f%%", 100 * g->worst_error);
    if (g->worst->line > 0)
        dh_cli_table_cell(table, "%s:%d", file, g->worst->line);
    else
        dh_cli_table_cell(table, "%s", file);
}

static void print_groups(const dh_calibration *f, dh_str *out)
{
    static const char *const headings[] = {"rows", "error", "left out", "error", "before", "worst"};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "measured", DH_CLI_COLUMN_TEXT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "at", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < f->n_groups; i++) {
        const dh_calibration_group *g = &f->groups[i];
        dh_cli_table_cell(&table, "%s", g->name);
        dh_cli_table_cell(&table, "%zu", g->used.n);
        add_error(&g->used, &table);
        dh_cli_table_cell(&table, "%zu", g->held.n);
        add_error(&g->held, &table);
        add_error(&g->base, &table);
        add_worst(g, &table);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
    dh_str_wrap(out,
                "error: mean of |predicted / measured - 1|; rows left out have no part in the fit; "
                "before: of all rows, by the cluster of --like",
                0, dh_cli_columns());
}

static dh_status print_text(dh_ctx *ctx, const dh_calibrated *c, const calibrate_args *a)
{
    dh_str out = DH_STR_INIT, line = DH_STR_INIT;
    dh_str_printf(&out, "%zu measurements, a node of %.0f devices\n\n",
                  dh_measured_count(&c->measured), c->fit.cluster.node_devices);
    print_constants(&c->fit, &out);
    print_oefs(&c->fit, &out);
    if (c->fit.n_groups > 0) {
        dh_str_append(&out, "\n", 1);
        print_groups(&c->fit, &out);
    }
    for (size_t i = 0; i < c->measured.notes.n; i++) {
        dh_str_printf(&line, "%s", c->measured.notes.at[i]);
        dh_cli_paragraph(&out, &line, 2);
    }
    dh_str_printf(&out, a->out ? "cluster  %s\n" : "--out FILE.yaml writes the cluster\n", a->out);
    return dh_cli_print_str(ctx, &out);
}

/* ---- the command ---------------------------------------------------------------------------- */

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const calibrate_args *a = args;
    const dh_describe_calibrate_options how = {
        .like = a->like, .out = a->out, .devices = a->devices};
    dh_calibrated calibrated;
    if (!a->like)
        return dh_cli_misuse(ctx, cli,
                             "--like NAME is missing: the cluster of `dhelix list clusters` that "
                             "has the hardware that was measured");
    dh_status st = dh_calibrated_make(ctx, cli->args.at, cli->args.n, &how, &calibrated);
    if (st == DH_OK)
        st = cli->json ? dh_cli_print_json(ctx, dh_calibrated_json(&calibrated, &how))
                       : print_text(ctx, &calibrated, a);
    dh_calibrated_fini(&calibrated);
    return st;
}

const dh_command dh_command_calibrate = {
    .name = "calibrate",
    .doc = "fit a cluster file to measurements of your own machines",
    .usage = "FILE...",
    .notes =
        "A FILE is what nccl-tests printed (all_reduce_perf, all_gather_perf, "
        "reduce_scatter_perf,\n"
        "alltoall_perf, sendrecv_perf; named after its test), a sweep of GEMMs as CSV with "
        "headings\n"
        "m,n,k,dtype,time_us or m,n,k,dtype,tflops (batch may be there), or a PyTorch profiler "
        "trace\n"
        "of a rank (record_shapes=True): GEMMs, norms and attention by the median of each size,\n"
        "collectives by their shortest occurrence in all ranks' traces. A profile of `dhelix "
        "profile`\n"
        "gives the times of its operators alone, and overlap effectiveness: for each two classes\n"
        "the median of its pairs. A file's form is found by its contents.\n\n"
        "Constants are fitted to two thirds of the rows, and both errors are shown: of those, and "
        "of\n"
        "the rows left out. Constants that the measurements do not determine stay as in --like.\n",
    .min_args = 1,
    .max_args = 4096,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(calibrate_args),
    .run = run};
