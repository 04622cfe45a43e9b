/* dhelix plan: what a job's operators would be run beside, without running them. */
#include <stdlib.h>
#include <string.h>

#include "cli/cargo.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "describe/layer.h"
#include "describe/order.h"
#include "strategy/written.h"
#include "train/link_sms.h"
#include "train/simulation.h"

typedef struct plan_args {
    int64_t ranks;
    bool explain;
    const char *policy, *cluster, *export, *layers, *write;
} plan_args;

static const dh_cli_option options[] = {
    {.name = "cluster",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(plan_args, cluster),
     .value = "NAME|FILE",
     .doc = "times of this hardware: a name of dhelix list clusters or a file; without it, this "
            "machine's"},
    {.name = "explain",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(plan_args, explain),
     .doc = "the paired timeline of a layer by the job's policy: every operator, what stays "
            "exposed and why; in which slots of a simulated step gradients and parameters travel, "
            "and during what; what more memory for orders would gain; and how many processors of a "
            "device communicators hold"},
    {.name = "export",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(plan_args, export),
     .value = "json",
     .doc = "the policy's order for other programs to follow: operators by module path, their "
            "times, pairs and reasons, as docs/reference/plan-export.md describes"},
    {.name = "layers",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(plan_args, layers),
     .value = "F,B",
     .doc = "numbers, from 0, of the layers whose forward and backward are paired; default: two "
            "layers of the most frequent kind"},
    {.name = "policy",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(plan_args, policy),
     .value = "NAME",
     .doc = "explain, export or write this policy's order instead (`dhelix list policies`)"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(plan_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "ranks of the run; the same as --set ranks=N"},
    {.name = "write",
     .kind = DH_CLI_TEXT,
     .writes = true,
     .offset = offsetof(plan_args, write),
     .value = "FILE",
     .doc = "write the policy's order, an operator a line. --set overlap.policy=FILE issues layers "
            "by it, also after its lines were moved"},
};

/* ---- policies side by side ------------------------------------------------------------------ */

static double real_of(const json_t *row, const char *key)
{
    return json_real_value(json_object_get(row, key));
}

static void print_table(const dh_layer_plan *l, json_t *rows, dh_str *out)
{
    static const char *const headings[] = {"a slot us", "speed-up", "exposed us", "hidden"};
    size_t i;
    json_t *row;
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "policy", DH_CLI_COLUMN_LEFT);
    for (size_t k = 0; k < DH_COUNTOF(headings); k++)
        dh_cli_table_column(&table, headings[k], DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_LEFT);
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "policy"));
        dh_cli_table_cell(&table, "%s", name);
        dh_cli_table_cell(&table, "%.1f", real_of(row, "slot_us"));
        dh_cli_table_cell(&table, "%.2fx", real_of(row, "speed_up"));
        dh_cli_table_cell(&table, "%.1f", real_of(row, "exposed_us"));
        dh_cli_table_cell(&table, "%.1f%%", 100 * real_of(row, "hidden"));
        dh_cli_table_cell(&table, "%s",
                          strcmp(name, l->ordering.policy->name) == 0 ? "<- the job's" : "");
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* Why auto has not the shortest of all orders, where that is so. */
static void explain_auto(const dh_layer_plan *l, json_t *rows, dh_str *out)
{
    size_t i;
    json_t *row;
    double own_us = 0, best_us = 0;
    dh_str text = DH_STR_INIT;
    json_array_foreach(rows, i, row)
    {
        const double us = real_of(row, "slot_us");
        if (i == 0 || us < best_us) best_us = us;
        if (strcmp(json_string_value(json_object_get(row, "policy")), "auto") == 0) own_us = us;
    }
    if (own_us <= best_us * (1 + 1e-6)) return;
    if (own_us <= DH_ORDER_ENOUGH * dh_slot_bound(l->slot) / 1e3)
        dh_str_printf(
            &text,
            "auto stops at the first order that is within %.0f %% of the bound; a shorter "
            "one gains %.1f %%",
            100 * (DH_ORDER_ENOUGH - 1), 100 * (own_us / best_us - 1));
    else
        dh_str_printf(&text, "auto leaves out orders that keep more in memory than overlap.memory "
                             "allows, where another does not");
    dh_cli_paragraph(out, &text, 0);
}

static void print_layer(const dh_model *m, int64_t layer, const char *end, dh_str *out)
{
    const unsigned kind = dh_model_layer_kind(m, layer);
    dh_str_printf(out, "layer %lld", (long long)layer);
    if (kind) dh_str_printf(out, ", a %s%s", dh_layer_kind_name(kind), end);
}

/* Which layers, where they are not all alike. */
static void print_pair(const dh_layer_plan *l, dh_str *out)
{
    const dh_model *m = l->model;
    if (dh_model_kinds(m, 0, m->n_layers).n == 1) {
        dh_str_printf(out, "one layer's forward during another's backward");
        return;
    }
    dh_str_printf(out, "forward of ");
    print_layer(m, l->layer[0], ",", out);
    dh_str_printf(out, " during the backward of ");
    print_layer(m, l->layer[1], "", out);
    dh_str_printf(out, " (--layers F,B pairs others)");
}

static void print_rows(const dh_layer_plan *l, json_t *rows, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    print_pair(l, &text);
    dh_str_printf(&text, ", on rank 0; times: %s", l->costs->name);
    dh_cli_paragraph(out, &text, 2);
    dh_str_printf(out, "bound %.1f us (the busiest stream)\n\n", dh_slot_bound(l->slot) / 1e3);
    print_table(l, rows, out);
    explain_auto(l, rows, out);
}

/* How much of a step is gained or lost: no more digits than say something. */
static const char *percent_of(char *buf, size_t cap, double longer, double shorter)
{
    const double percent = 100 * (longer / shorter - 1);
    if (percent >= 0.01) return dh_format_number(buf, cap, percent, 2);
    snprintf(buf, cap, "under 0.01");
    return buf;
}

static void print_gain(double own, const dh_beside_other *o, const char *advice, dh_str *text)
{
    char percent[32];
    const double other = (double)o->step_ns;
    if (o->gain == DH_GAIN_SLOWER)
        dh_str_printf(text, ": %s %% slower. %s would be faster here",
                      percent_of(percent, sizeof percent, own, other), advice);
    else if (o->gain == DH_GAIN_UNSURE)
        dh_str_printf(text, ": %s %% faster, less than predictions are wrong by: it may be slower",
                      percent_of(percent, sizeof percent, other, own));
    else if (o->gain == DH_GAIN_NONE)
        dh_str_printf(text, ": as long");
}

/* Nothing is slower than without hiding unless it was said beforehand. */
static void print_beside(const dh_resolved *job, const dh_beside *b, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    if (!b->sequential.known && !b->plain.known) return;
    const double own = (double)b->own_ns;
    char took[32], other[32], advice[sizeof b->settings + 32];
    dh_str_printf(&text, "a step with strategy %s is predicted to take %s", job->job.strategy,
                  dh_format_ns(took, sizeof took, own));
    if (b->sequential.known) {
        dh_str_printf(&text, ", with sequential %s",
                      dh_format_ns(other, sizeof other, (double)b->sequential.step_ns));
        print_gain(own, &b->sequential, "--set strategy=sequential", &text);
    }
    if (b->plain.known) {
        dh_str_printf(&text, "%s without %s%s %s", b->sequential.known ? ";" : ",", b->settings,
                      b->sequential.known ? " in sequential" : "",
                      dh_format_ns(other, sizeof other, (double)b->plain.step_ns));
        snprintf(advice, sizeof advice, "A job without %s", b->settings);
        print_gain(own, &b->plain, advice, &text);
    }
    dh_str_printf(&text, ". Error of predictions: %s %s, %s",
                  dh_format_number(took, sizeof took, 100 * b->error, 2), b->error_unit,
                  b->error_source);
    dh_str_printf(out, "\n");
    dh_cli_paragraph(out, &text, 0);
}

/* Prints the sequences of passes that a strategy with a search has tried. */
static void print_rewrites(const dh_rewrites *r, dh_str *out)
{
    dh_cli_table table;
    char bytes[32];
    dh_str_printf(out, "\n");
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "rewrites of a layer", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(&table, "forward and backward us", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "keeps", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < r->n; i++) {
        dh_str name = DH_STR_INIT;
        dh_rewrites_print(&r->at[i].passes, &name);
        dh_cli_table_cell(&table, "%s", name.text ? name.text : "");
        dh_cli_table_cell(&table, "%.1f", r->at[i].layer_ns * 1e-3);
        dh_cli_table_cell(&table, "%s", dh_format_bytes(bytes, sizeof bytes, r->at[i].kept_bytes));
        dh_cli_table_cell(&table, "%s",
                          i == r->best     ? "<- the job's"
                          : !r->at[i].fits ? "does not fit"
                                           : "");
        dh_str_fini(&name);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* And of its optimizer. */
static void print_fusions(const dh_fusions *f, dh_str *out)
{
    dh_cli_table table;
    char bytes[32];
    dh_str_printf(out, "\n");
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "optimizer.fuse", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(&table, "step ms", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "memory", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_N_FUSIONS; i++) {
        const dh_fusion *one = &f->at[i];
        if (one->pieces)
            dh_cli_table_cell(&table, "%lld", (long long)one->pieces);
        else
            dh_cli_table_cell(&table, "off");
        dh_cli_table_cell(&table, "%.3f", (double)one->step_ns * 1e-6);
        dh_cli_table_cell(&table, "%s",
                          dh_format_bytes(bytes, sizeof bytes, (double)one->peak_bytes));
        dh_cli_table_cell(&table, "%s",
                          i == f->best ? "<- the job's"
                          : !one->fits ? "does not fit"
                                       : "");
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* ---- memory of orders ----------------------------------------------------------------------- */

static void print_limit(const dh_limit_point *p, dh_cli_table *table)
{
    char text[32];
    if (p->bytes < 1e18)
        dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, p->bytes));
    else if (p->blocks < 0.01)
        dh_cli_table_cell(table, "least");
    else if (p->blocks < 1e6)
        dh_cli_table_cell(table, "%s", dh_format_number(text, sizeof text, p->blocks, 2));
    else
        dh_cli_table_cell(table, "no limit");
}

static void print_points(const dh_memory_frontier *f, dh_str *out)
{
    dh_cli_table table;
    char text[32];
    const dh_limit_point *least = &f->at[0];
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "overlap.memory", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "memory", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "more", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "step", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "faster", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < f->n; i++) {
        const dh_limit_point *p = &f->at[i];
        const double more = (double)p->peak_bytes / (double)least->peak_bytes;
        const double faster = (double)least->step_ns / (double)p->step_ns;
        print_limit(p, &table);
        dh_cli_table_cell(&table, "%s", dh_format_bytes(text, sizeof text, (double)p->peak_bytes));
        dh_cli_table_cell(&table, "%.1f %%", 100 * (more - 1));
        dh_cli_table_cell(&table, p->step_ns < 10000000000 ? "%.2f ms" : "%.0f ms",
                          (double)p->step_ns * 1e-6);
        dh_cli_table_cell(&table, "%.1f %%", 100 * (faster - 1));
        dh_cli_table_cell(&table, "%s", p->own ? "<- the job's" : !p->fits ? "does not fit" : "");
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* Prints the gain of more memory. */
static dh_status print_frontier(dh_ctx *ctx, const dh_resolved *job, dh_str *out)
{
    char room[32];
    dh_memory_frontier f;
    dh_str text = DH_STR_INIT;
    DH_TRY(dh_resolved_memory_frontier(ctx, job, &f));
    if (f.n == 0) return DH_OK;
    dh_str_printf(&text, "memory of orders against time, compared with the first row");
    if (f.room_bytes > 0)
        dh_str_printf(&text, "; a device has %s for a step",
                      dh_format_bytes(room, sizeof room, f.room_bytes));
    dh_str_printf(out, "\n");
    dh_cli_paragraph(out, &text, 0);
    print_points(&f, out);
    return DH_OK;
}

/* ---- processors of communicators ------------------------------------------------------------- */

/* Numbers that were tried, with their steps, each once. */
static void print_tried(const dh_link_choice *c, int stream, dh_str *out)
{
    const char *between = "";
    for (size_t i = 0; i < c->n_tried; i++) {
        const dh_link_sms_tried *t = &c->tried[i];
        if ((int)t->stream != stream) continue;
        dh_str_printf(out, "%s%d: %.4g", between, t->sms, (double)t->step_ns * 1e-6);
        between = ", ";
    }
}

static void print_streams(const dh_link_choice *c, dh_str *out)
{
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "stream", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "best", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "full with", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(&table, "groups", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "tried, steps in ms", DH_CLI_COLUMN_TEXT);
    for (int k = 0; k < DH_N_STREAM; k++) {
        dh_str groups = DH_STR_INIT, tried = DH_STR_INIT;
        if (!c->groups[k]) continue;
        dh_link_groups_print(c->groups[k], &groups);
        print_tried(c, k, &tried);
        dh_cli_table_cell(&table, "%s", dh_stream_name((dh_stream)k));
        dh_cli_table_cell(&table, "%d", c->sms.of[k]);
        dh_cli_table_cell(&table, "%d", c->sms.full[dh_stream_engine((dh_stream)k)]);
        dh_cli_table_cell(&table, "%s", groups.text ? groups.text : "");
        dh_cli_table_cell(&table, "%s", tried.text ? tried.text : "");
        dh_str_fini(&groups);
        dh_str_fini(&tried);
    }
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* Prints the processors of a device that communicators hold, and why. */
static dh_status print_links(dh_ctx *ctx, const dh_resolved *job, dh_str *out)
{
    dh_link_choice c;
    dh_str text = DH_STR_INIT;
    DH_TRY(dh_resolved_link_sms(ctx, job, &c));
    if (!c.known) return DH_OK;
    if (c.held)
        dh_str_printf(
            &text,
            "communicators hold %d of %d processors (%s), and GEMMs are planned for the "
            "others: %.1f ms a step; %.1f ms with none held, %.1f ms with as many as fill "
            "every link",
            dh_link_sms_held(&c.sms), c.sms.processors,
            c.given ? "parallel.gpu_comm_sms" : "by simulated steps", (double)c.step_ns * 1e-6,
            (double)c.none_ns * 1e-6, (double)c.full_ns * 1e-6);
    else
        dh_str_printf(&text,
                      "communicators hold no processors: %.1f ms a step. If they held the best "
                      "number of those below, %d of %d, and GEMMs were planned for the others, a "
                      "step would take %.1f ms%s",
                      (double)c.step_ns * 1e-6, dh_link_sms_held(&c.sms), c.sms.processors,
                      (double)c.held_ns * 1e-6,
                      c.held_ns < c.none_ns ? ": parallel.gpu_comm_search=true takes them" : "");
    dh_str_printf(out, "\n");
    dh_cli_paragraph(out, &text, 0);
    print_streams(&c, out);
    return DH_OK;
}

/* ---- a layer and the step ------------------------------------------------------------------- */

/* Both shares by one definition (docs/explain/hidden-time.md), and why they differ. */
static dh_status print_shares(dh_ctx *ctx, const dh_layer_plan *l, const dh_sim *sim, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    dh_slot_timing t = {0};
    const dh_timeline step = dh_train_mean_times(sim);
    DH_TRY(dh_slot_time(ctx, l->slot, l->order, &t));
    if (t.communication_ns <= 0) return DH_OK;
    dh_str_printf(&text,
                  "hidden: %.1f %% of this layer's communication, %.1f %% of all in the simulated "
                  "step. A slot of the step has all layers of its stage, ordered together. Slots "
                  "with one strand hide little: those of first forwards and last backwards. "
                  "Transfers between stages, gradients and parameters count in the step alone",
                  100 * (1 - t.exposed_ns / t.communication_ns),
                  100 * dh_timeline_hidden_share(&step));
    dh_str_printf(out, "\n");
    dh_cli_paragraph(out, &text, 0);
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status explain(dh_ctx *ctx, const dh_resolved *job, const dh_sim *sim, dh_layer_plan *l,
                         dh_str *out)
{
    if (job->rewrites) print_rewrites(job->rewrites, out);
    if (job->fusions) print_fusions(job->fusions, out);
    dh_str_printf(out, "\n");
    DH_TRY(dh_slot_order(ctx, l->slot, l->ordering.policy, &l->ordering.options, l->order));
    DH_TRY(dh_slot_draw(ctx, l->slot, l->order, l->ordering.policy->name, out));
    DH_TRY(print_shares(ctx, l, sim, out));
    dh_str_printf(out, "\n");
    DH_TRY(dh_cargo_print_slots(ctx, sim, out));
    DH_TRY(print_frontier(ctx, job, out));
    return print_links(ctx, job, out);
}

/* sim: NULL where nothing is to be explained. */
static dh_status report_text(dh_ctx *ctx, const dh_resolved *job, const dh_sim *sim,
                             dh_layer_plan *l)
{
    dh_str out = DH_STR_INIT;
    dh_beside beside;
    json_t *rows = json_array();
    dh_status st = dh_layer_plan_compare(ctx, l, rows);
    if (st == DH_OK) print_rows(l, rows, &out);
    if (st == DH_OK) st = dh_resolved_beside(ctx, job, &beside);
    if (st == DH_OK) print_beside(job, &beside, &out);
    if (st == DH_OK && sim) st = explain(ctx, job, sim, l, &out);
    json_decref(rows);
    if (st == DH_OK) return dh_cli_print_str(ctx, &out);
    dh_str_fini(&out);
    return st;
}

static dh_status report_json(dh_ctx *ctx, const dh_resolved *job, const dh_sim *sim,
                             dh_layer_plan *l)
{
    json_t *document;
    DH_TRY(dh_layer_plan_json(ctx, job, sim, l, &document));
    return dh_cli_print_json(ctx, document);
}

static dh_status export_order(dh_ctx *ctx, const dh_resolved *job, dh_layer_plan *l)
{
    json_t *document;
    DH_TRY(dh_order_json(ctx, job, l, &document));
    return dh_cli_print_json(ctx, document);
}

static dh_status write_order(dh_ctx *ctx, const plan_args *a, const dh_resolved *job,
                             dh_layer_plan *l)
{
    dh_str out = DH_STR_INIT, about = DH_STR_INIT;
    dh_str_printf(&about, "order of policy %s for a layer of %s, %s; overlap.policy: FILE takes it",
                  l->ordering.policy->name, job->job.model.name, l->costs->name);
    DH_TRY(dh_slot_order(ctx, l->slot, l->ordering.policy, &l->ordering.options, l->order));
    dh_status st = dh_written_order_print(ctx, l->slot, l->order, l->layer,
                                          about.text ? about.text : "", &out);
    if (st == DH_OK && (out.failed || about.failed)) st = dh_no_memory(ctx);
    if (st == DH_OK) st = dh_file_write_atomic(ctx, a->write, out.text, out.len);
    dh_str_fini(&about);
    dh_str_fini(&out);
    return st;
}

static dh_status report(dh_ctx *ctx, const dh_cli *cli, const plan_args *a, const dh_resolved *job,
                        dh_layer_plan *l)
{
    const dh_train_simulation plain = {0};
    dh_sim *sim = NULL;
    if (a->write) DH_TRY(write_order(ctx, a, job, l));
    if (a->export) return export_order(ctx, job, l);
    if (a->explain) DH_TRY(dh_train_simulate(ctx, job, &plain, &sim));
    const dh_status st = cli->json ? report_json(ctx, job, sim, l) : report_text(ctx, job, sim, l);
    dh_sim_destroy(sim);
    return st;
}

/* Both numbers of "F,B"; false: there are none. */
static bool read_layers(const char *text, int64_t layers[2])
{
    char *end;
    for (int s = 0; s < 2; s++) {
        layers[s] = strtoll(text, &end, 10);
        if (end == text || *end != (s == 0 ? ',' : '\0')) return false;
        text = end + 1;
    }
    return true;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const plan_args *a = args;
    int64_t layers[2];
    dh_cluster *cluster = NULL;
    dh_job *job;
    dh_resolved *resolved = NULL;
    dh_layer_plan l = {0};
    if (a->export && strcmp(a->export, "json") != 0)
        return dh_cli_misuse(ctx, cli, "--export %s: orders are exported as json", a->export);
    if (a->layers && !read_layers(a->layers, layers))
        return dh_cli_misuse(ctx, cli, "--layers %s: two numbers of layers, such as 0,3",
                             a->layers);
    if (a->export && a->explain)
        return dh_cli_misuse(ctx, cli,
                             "--export says all that --explain does of the order: one of "
                             "them");
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks, &job));
    dh_status st = a->cluster ? dh_cluster_find(ctx, a->cluster, &cluster) : DH_OK;
    const dh_resolve_options how = {.cluster = cluster, .quiet = true};
    if (st == DH_OK) st = dh_job_resolve(ctx, job, &how, &resolved);
    if (st == DH_OK)
        st = dh_layer_plan_open(ctx, resolved, a->policy, a->layers ? layers : NULL, &l);
    if (st == DH_OK) st = report(ctx, cli, a, resolved, &l);
    dh_layer_plan_close(&l);
    dh_resolved_destroy(resolved);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_plan = {
    .name = "plan",
    .doc = "show the order of every policy: operators that run at the same time, and exposed "
           "communication",
    .usage = "JOB",
    .notes =
        "Times are those of the named cluster. Without one they come from a profile that fits\n"
        "the job (`dhelix profile`), else from estimates. A slot's time is what one more pair\n"
        "of layers adds. The speed-up is over one strand after the other.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(plan_args),
    .run = run,
};
