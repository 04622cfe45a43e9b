/* Simulated steps as text. */
#include "cli/simulated.h"

#include <string.h>

#include "cli/cargo.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "describe/memory.h"
#include "plan/schedule.h"

enum { NAME_BYTES = 128 };

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* ---- one strategy as text ------------------------------------------------------------------- */

static void print_sources(const dh_sim *sim, dh_str *out)
{
    double total = 0;
    dh_str text = DH_STR_INIT;
    for (int k = 0; k < DH_N_PAIR_SOURCES; k++) total += sim->solo_ns_by[k];
    dh_str_printf(&text, "costs: %s;", sim->costs);
    const char *separator = "";
    for (int k = 0; k < DH_N_PAIR_SOURCES; k++) {
        if (sim->solo_ns_by[k] <= 0) continue;
        dh_str_printf(&text, "%s %.4g %% of the operators' time %s", separator,
                      percent(sim->solo_ns_by[k], total), dh_pair_source_name((dh_pair_source)k));
        separator = ",";
    }
    dh_cli_paragraph(out, &text, 2);
}

/* "  name                 text", with what does not fit below the text. */
static void print_line(const char *name, dh_str *text, dh_str *out)
{
    enum { COLUMN = 23 };
    dh_str_printf(out, "  %-*s", COLUMN - 2, name);
    dh_cli_paragraph(out, text, COLUMN);
}

static void print_rate(const char *name, double flops_per_s, double peak, const char *what,
                       dh_str *out)
{
    char rate[32];
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s TFLOP/s a device",
                  dh_format_number(rate, sizeof rate, flops_per_s * 1e-12, 4));
    if (peak > 0)
        dh_str_printf(&text, ", %.1f %% of %.4g", percent(flops_per_s, peak), peak * 1e-12);
    dh_str_printf(&text, " (%s)", what);
    print_line(name, &text, out);
}

static void print_communication(const dh_simulated_figures *f, dh_str *out)
{
    char hidden[32], exposed[32];
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s hidden, %s exposed: %.1f %% hidden",
                  dh_format_ns(hidden, sizeof hidden, f->hidden_ns),
                  dh_format_ns(exposed, sizeof exposed, f->exposed_ns), f->hidden_percent);
    for (int i = 0; i < DH_N_EXPOSURE; i++)
        if (f->exposed_by_ns[i] > 0)
            dh_str_printf(&text, "; %s %s", dh_exposure_name((dh_exposure)i),
                          dh_format_ns(hidden, sizeof hidden, f->exposed_by_ns[i]));
    print_line("communication", &text, out);
    dh_str_printf(&text, "%s idle, %s of it bubble (%.1f %% of the step), ",
                  dh_format_ns(hidden, sizeof hidden, f->idle_ns),
                  dh_format_ns(exposed, sizeof exposed, f->bubble_ns),
                  percent(f->bubble_ns * 1e-9, f->step_s));
    dh_str_printf(&text, "%s for partners that are late",
                  dh_format_ns(hidden, sizeof hidden, f->partners_ns));
    print_line("waiting", &text, out);
}

static void add_bytes(uint64_t n_bytes, dh_cli_table *table)
{
    char text[32];
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, (double)n_bytes));
}

static void add_stage(const dh_sim_rank *r, dh_cli_table *table)
{
    const dh_timeline *t = &r->times;
    const double ns[] = {(double)dh_timeline_compute_ns(t), (double)t->exposed_ns,
                         (double)t->idle_ns, (double)t->waits_ns[DH_WAITS_STAGES],
                         (double)t->hidden_ns};
    char text[32];
    dh_cli_table_cell(table, "%lld", (long long)r->stage);
    dh_cli_table_cell(table, "%lld", (long long)r->rank);
    for (size_t i = 0; i < DH_COUNTOF(ns); i++)
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, ns[i]));
    for (size_t i = 0; i < DH_N_MODEL_ROWS; i++)
        add_bytes(dh_memory_row_bytes(r->memory.persistent, i), table);
    add_bytes(r->memory.peak_activations + r->memory.peak_scratch, table);
    add_bytes(r->memory.peak_bytes, table);
}

/* The first rank of each stage, and those unlike it: slow ones and their partners. */
static bool is_shown(const dh_sim *sim, size_t k)
{
    const dh_sim_rank *r = &sim->ranks[k], *first = r;
    while (first > sim->ranks && first[-1].stage == r->stage) first--;
    const double own = (double)dh_timeline_compute_ns(&r->times);
    const double usual = (double)dh_timeline_compute_ns(&first->times);
    return r == first || own > 1.01 * usual || own < .99 * usual;
}

static void print_fit(const dh_simulated_list *list, const dh_simulated *s, dh_str *out)
{
    char peak[32], room[128];
    if (!list->cluster || dh_simulated_fits(s, list->cluster)) return;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "does not fit: %s of %s%s",
                  dh_format_bytes(peak, sizeof peak, (double)dh_simulated_needed_bytes(s)),
                  dh_cluster_room_text(list->cluster, room, sizeof room),
                  s->system ? ", as system" : "");
    dh_cli_paragraph(out, &text, 2);
}

/* Why stages with as many layers do not take as long each, where cores are the reason. */
static void print_sharing(const dh_sim *sim, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    if (sim->cores == 0) return;
    dh_str_printf(&text,
                  "%lld ranks share %lld core%s: while others of its core compute a rank takes "
                  "longer, so stages with as many layers differ by how often that is so",
                  (long long)sim->n_ranks, (long long)sim->cores, sim->cores == 1 ? "" : "s");
    dh_cli_paragraph(out, &text, 0);
}

static void print_system(const dh_simulated_list *list, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text,
                  "as system: the peak of %s, which keeps more tensors according to its traits "
                  "(dhelix list traits)",
                  list->job->system);
    dh_cli_paragraph(out, &text, 0);
}

static void print_stages(const dh_simulated_list *list, const dh_simulated *s, dh_str *out)
{
    const dh_sim *sim = s->sim;
    static const char *const headings[] = {"stage",     "rank",      "compute",     "exposed",
                                           "idle",      "bubble",    "hidden",      "parameters",
                                           "gradients", "optimizer", "activations", "peak"};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    if (s->system) dh_cli_table_column(&table, "as system", DH_CLI_COLUMN_RIGHT);
    for (size_t k = 0; k < sim->n_classes; k++) {
        if (!is_shown(sim, k)) continue;
        add_stage(&sim->ranks[k], &table);
        if (s->system) add_bytes(s->system[k].peak_bytes, &table);
    }
    dh_str_printf(out, "\n");
    dh_cli_table_end(&table, dh_cli_columns(), out);
    dh_str_wrap(out,
                "compute, exposed and idle make a step; compute is what it takes alone; "
                "activations are those at the peak",
                0, dh_cli_columns());
    if (s->system) print_system(list, out);
    print_sharing(sim, out);
}

static void print_one(const dh_simulated_list *list, const dh_simulated *s, dh_str *out)
{
    const dh_sim *sim = s->sim;
    const dh_simulated_figures f = dh_simulated_figures_of(sim);
    char text[32];
    print_sources(sim, out);
    dh_str_printf(out, "\n  %-20s %s\n", "step", dh_format_ns(text, sizeof text, f.step_s * 1e9));
    dh_str_printf(out, "  %-20s %s\n", "tokens/s",
                  dh_format_number(text, sizeof text, f.tokens_per_s, 6));
    print_rate("model FLOPs", f.model_flops_per_s, list->peak_flops_per_s,
               "MFU: 6 a parameter and token and causal attention, nothing recomputed", out);
    print_rate("hardware FLOPs", f.hardware_flops_per_s, list->peak_flops_per_s,
               "GEMMs and attention as executed, recomputation included", out);
    print_communication(&f, out);
    dh_cargo_print_means(&s->cargo, out);
    print_stages(list, s, out);
    print_fit(list, s, out);
}

/* ---- several side by side ------------------------------------------------------------------- */

static bool has_system(const dh_simulated_list *list)
{
    bool has = false;
    for (size_t i = 0; i < list->n; i++) has |= list->at[i].system != NULL;
    return has;
}

/* Whether the job leaves its strategy open. */
static bool is_open(const dh_simulated_list *list)
{
    return strcmp(list->job->strategy, "auto") == 0;
}

static bool is_by_schedule(const dh_simulated_list *list)
{
    return list->n_schedules > 0;
}

/* "dhelix", or "dhelix-w" where rows are named by their schedules. */
static const char *row_name(const dh_simulated_list *list, const dh_simulated *s)
{
    if (!is_by_schedule(list)) return s->strategy->name;
    return s->taken ? s->taken : s->schedule ? s->schedule : list->job->schedule;
}

/* "1f1b", "interleaved-1f1b x5": with as many virtual stages of a rank, where that is a choice. */
static const char *schedule_text(const dh_simulated *s, char *buf, size_t cap)
{
    const dh_schedule_row *row;
    dh_ctx quiet = DH_CTX_INIT;
    const bool known = dh_schedule_find(&quiet, s->taken, &row) == DH_OK;
    if (known && row->n_chunks > 0) return s->taken;
    snprintf(buf, cap, "%s x%lld", s->taken, (long long)s->virtual_stages);
    return buf;
}

static bool has_strategies(const dh_simulated_list *list)
{
    return !is_by_schedule(list) || list->n_strategies > 1;
}

/* Remarks on a row that no figure shows. */
static void add_remark(const dh_simulated_list *list, const dh_simulated *s, dh_cli_table *table)
{
    const dh_simulated *same = dh_simulated_same(list, s);
    dh_str text = DH_STR_INIT;
    if (s->as_given) dh_str_printf(&text, is_open(list) ? "baseline" : "as given");
    if (s->chosen) dh_str_printf(&text, "is %s", s->chosen);
    if (s->chosen && *s->job->job.layer_split)
        dh_str_printf(&text, ", layers %s", s->job->job.layer_split);
    if (list->cluster && !dh_simulated_fits(s, list->cluster))
        dh_str_printf(&text, "%sdoes not fit", text.len > 0 ? "; " : "");
    if (same) dh_str_printf(&text, "%ssame as %s", text.len > 0 ? "; " : "", row_name(list, same));
    if (same && is_by_schedule(list) && list->n_strategies > 1)
        dh_str_printf(&text, " with %s", same->strategy->name);
    dh_cli_table_cell(table, "%s", text.text ? text.text : "");
    dh_str_fini(&text);
}

static void add_row(const dh_simulated_list *list, const dh_simulated *s, double first_s,
                    dh_cli_table *table)
{
    char text[NAME_BYTES];
    if (!s->sim) return;
    const dh_simulated_figures f = dh_simulated_figures_of(s->sim);
    if (has_strategies(list)) dh_cli_table_cell(table, "%s", s->strategy->name);
    dh_cli_table_cell(table, "%s", schedule_text(s, text, sizeof text));
    dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, f.step_s * 1e9));
    dh_cli_table_cell(table, "%.3f", first_s / f.step_s);
    dh_cli_table_cell(table, "%s", dh_format_number(text, sizeof text, f.tokens_per_s, 6));
    dh_cli_table_cell(table, "%s",
                      dh_format_number(text, sizeof text, f.model_flops_per_s * 1e-12, 4));
    if (list->peak_flops_per_s > 0) {
        dh_cli_table_cell(table, "%.1f", percent(f.model_flops_per_s, list->peak_flops_per_s));
        dh_cli_table_cell(table, "%.1f", percent(f.hardware_flops_per_s, list->peak_flops_per_s));
    }
    dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, f.hidden_ns));
    dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, f.exposed_ns));
    dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, f.bubble_ns));
    add_bytes(f.peak_bytes, table);
    if (has_system(list)) add_bytes(dh_simulated_system_bytes(s), table);
    add_remark(list, s, table);
}

static void add_columns(const dh_simulated_list *list, dh_cli_table *table)
{
    static const char *const headings[] = {"step", "speed-up", "tokens/s", "TFLOP/s", "MFU",
                                           "HFU",  "hidden",   "exposed",  "bubble",  "memory"};
    if (has_strategies(list)) dh_cli_table_column(table, "strategy", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(table, "schedule", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        if (list->peak_flops_per_s > 0 || strcmp(headings[i] + 1, "FU") != 0)
            dh_cli_table_column(table, headings[i], DH_CLI_COLUMN_RIGHT);
    if (has_system(list)) dh_cli_table_column(table, "as system", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "", DH_CLI_COLUMN_LEFT);
}

static void print_table(const dh_simulated_list *list, double first_s, dh_str *out)
{
    dh_cli_table table;
    dh_cli_table_begin(&table);
    add_columns(list, &table);
    for (size_t i = 0; i < list->n; i++) add_row(list, &list->at[i], first_s, &table);
    dh_str_printf(out, "\n");
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

static bool same_refusal(const dh_simulated *a, const dh_simulated *b)
{
    return !a->sim && !b->sim && a->strategy == b->strategy && a->as_given == b->as_given &&
           strcmp(a->reason, b->reason) == 0;
}

/* A row that could not be, with all that could not for the same reason, at the first of them. */
static void print_refused(const dh_simulated_list *list, size_t first, dh_str *out)
{
    const dh_simulated *one = &list->at[first];
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < first; i++)
        if (same_refusal(&list->at[i], one)) return;
    for (size_t i = first; i < list->n; i++)
        if (same_refusal(&list->at[i], one))
            dh_str_printf(&text, "%s%s", i > first ? ", " : "", row_name(list, &list->at[i]));
    if (is_by_schedule(list) && list->n_strategies > 1)
        dh_str_printf(&text, " with %s", one->strategy->name);
    dh_str_printf(&text, "%s: %s", one->as_given && !is_open(list) ? ", as given" : "",
                  one->reason);
    dh_cli_paragraph(out, &text, 2);
}

/* Prints the row that speed-ups compare with. */
static void print_baseline(const dh_simulated_list *list, dh_str *out)
{
    const dh_simulated *first = dh_simulated_first(list);
    const char *why = !first->as_given ? ", since the job as given cannot be simulated"
                      : is_open(list)  ? ", since the job leaves its strategy open"
                                       : "";
    char name[NAME_BYTES];
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "speed-up: over %s%s with %s%s", *why ? "" : "the job as given, ",
                  first->strategy->name, schedule_text(first, name, sizeof name), why);
    dh_cli_paragraph(out, &text, 2);
}

static void print_rows(const dh_simulated_list *list, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    const dh_simulated *first = dh_simulated_first(list);
    if (first) {
        print_sources(first->sim, out);
        print_table(list, (double)first->sim->step_ns * 1e-9, out);
        print_baseline(list, out);
    }
    if (first && list->peak_flops_per_s > 0) {
        dh_str_printf(&text,
                      "TFLOP/s: model FLOPs of a device; MFU, HFU: model and executed FLOPs in %% "
                      "of %.4g TFLOP/s",
                      list->peak_flops_per_s * 1e-12);
        dh_cli_paragraph(out, &text, 2);
    }
    if (has_system(list)) print_system(list, out);
    for (size_t i = 0; i < list->n; i++)
        if (!list->at[i].sim) print_refused(list, i, out);
}

static void print_job(const dh_simulated_list *list, dh_str *out)
{
    const dh_job *j = list->job;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s%s%s: %lld ranks (dp %lld, tp %lld, cp %lld, pp %lld, ep %lld)",
                  j->model.name, list->cluster ? " on cluster " : " on this machine",
                  list->cluster ? list->cluster->name : "", (long long)j->ranks, (long long)j->dp,
                  (long long)j->tp, (long long)j->cp, (long long)j->pp, (long long)j->ep);
    dh_cli_paragraph(out, &text, 2);
    dh_str_printf(&text, "step: %lld sequences of %lld tokens in %lld micro-batches, %s%s%s",
                  (long long)j->global_batch, (long long)j->seq_len, (long long)dh_job_n_micro(j),
                  dh_precision_name(j->dtype, j->fp8), list->n_strategies == 1 ? ", strategy " : "",
                  list->n_strategies == 1 ? list->at[0].strategy->name : "");
    if (list->n == 1 && list->at[0].job && dh_job_splits(j))
        dh_str_printf(&text, ", layers of the stages %s", list->at[0].job->job.layer_split);
    dh_cli_paragraph(out, &text, 2);
}

/* The usual cause of much exposed communication, where the mesh has it. */
static void print_spanning(const dh_simulated_list *list, dh_str *out)
{
    const int64_t node = list->cluster ? (int64_t)list->cluster->node_devices : 0;
    dh_str text = DH_STR_INIT;
    if (node == 0 || list->job->tp <= node) return;
    dh_str_printf(&text,
                  "parallel.tp %lld spans nodes of %lld devices: what tensor parallelism exchanges "
                  "in every layer goes over the network; tp %lld would stay inside a node",
                  (long long)list->job->tp, (long long)node, (long long)node);
    dh_cli_paragraph(out, &text, 2);
}

void dh_nearest_print(const dh_step_facts *facts, dh_str *out)
{
    dh_ctx quiet = DH_CTX_INIT;
    dh_precedents found;
    dh_str text = DH_STR_INIT;
    if (dh_precedents_find(&quiet, facts, &found) != DH_OK) return;
    dh_precedents_print(&found, &text);
    dh_cli_paragraph(out, &text, 2);
}

void dh_simulated_print(const dh_simulated_list *list, dh_str *out)
{
    print_job(list, out);
    print_spanning(list, out);
    if (list->n == 1 && list->at[0].sim)
        print_one(list, &list->at[0], out);
    else
        print_rows(list, out);
    dh_step_facts facts;
    if (dh_simulated_facts(list, &facts)) dh_nearest_print(&facts, out);
}
