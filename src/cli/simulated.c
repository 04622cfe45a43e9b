/* Every figure is of one training step. Times of several ranks are means over all ranks of the
 * mesh, each rank that was simulated counting for those that it stands for. */
#include "cli/simulated.h"

#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"

/* ---- figures ------------------------------------------------------------------------------- */

typedef struct figures {
    double step_s, tokens_per_s;
    double model_flops_per_s, hardware_flops_per_s;               /* of a device */
    double compute_ns, hidden_ns, exposed_ns, idle_ns, bubble_ns; /* of a rank, on average */
    double exposed_by_ns[DH_N_EXPOSURE];
    double partners_ns;  /* of idle_ns, as bubble_ns is */
    uint64_t peak_bytes; /* most of any rank */
} figures;

static figures figures_of(const dh_sim *sim)
{
    figures f = {.step_s = (double)sim->step_ns * 1e-9};
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        const double share = (double)r->n_ranks / (double)sim->n_ranks;
        f.compute_ns += share * (double)r->times.busy_ns[DH_ENGINE_COMPUTE];
        f.hidden_ns += share * (double)r->times.hidden_ns;
        f.exposed_ns += share * (double)r->times.exposed_ns;
        f.idle_ns += share * (double)r->times.idle_ns;
        f.bubble_ns += share * (double)r->times.waits_ns[DH_WAITS_STAGES];
        f.partners_ns += share * (double)r->times.waits_ns[DH_WAITS_PARTNERS];
        for (int i = 0; i < DH_N_EXPOSURE; i++)
            f.exposed_by_ns[i] += share * (double)r->times.exposed_by_ns[i];
        f.peak_bytes = DH_MAX(f.peak_bytes, r->memory.peak_bytes);
    }
    const double device_s = f.step_s * (double)sim->n_ranks;
    if (device_s <= 0) return f;
    f.tokens_per_s = (double)sim->tokens / f.step_s;
    f.model_flops_per_s = sim->model_flops / device_s;
    f.hardware_flops_per_s = sim->hardware_flops / device_s;
    return f;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static double hidden_percent(const figures *f)
{
    return percent(f->hidden_ns, f->hidden_ns + f->exposed_ns);
}

/* Memory as people ask for it: parameters with their copies in compute precision. */
static const struct {
    const char *key;
    dh_buffer_kind first, last;
} memory_rows[] = {{"parameters", DH_BUF_MASTER, DH_BUF_COPY},
                   {"gradients", DH_BUF_GRAD, DH_BUF_GRAD},
                   {"optimizer", DH_BUF_ADAM_M, DH_BUF_ADAM_V}};
enum { N_MEMORY_ROWS = DH_COUNTOF(memory_rows) };

static uint64_t row_bytes(const dh_sim_memory *m, size_t row)
{
    uint64_t sum = 0;
    for (int k = (int)memory_rows[row].first; k <= (int)memory_rows[row].last; k++)
        sum += m->persistent[k];
    return sum;
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

static void print_communication(const figures *f, dh_str *out)
{
    char hidden[32], exposed[32];
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s hidden, %s exposed: %.1f %% hidden",
                  dh_format_ns(hidden, sizeof hidden, f->hidden_ns),
                  dh_format_ns(exposed, sizeof exposed, f->exposed_ns), hidden_percent(f));
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

static void add_stage(const dh_sim_rank *r, dh_cli_table *table)
{
    const double ns[] = {(double)r->times.busy_ns[DH_ENGINE_COMPUTE], (double)r->times.exposed_ns,
                         (double)r->times.idle_ns, (double)r->times.waits_ns[DH_WAITS_STAGES],
                         (double)r->times.hidden_ns};
    char text[32];
    dh_cli_table_cell(table, "%lld", (long long)r->stage);
    dh_cli_table_cell(table, "%lld", (long long)r->rank);
    for (size_t i = 0; i < DH_COUNTOF(ns); i++)
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, ns[i]));
    for (size_t i = 0; i < N_MEMORY_ROWS; i++)
        dh_cli_table_cell(table, "%s",
                          dh_format_bytes(text, sizeof text, (double)row_bytes(&r->memory, i)));
    dh_cli_table_cell(
        table, "%s",
        dh_format_bytes(text, sizeof text,
                        (double)(r->memory.peak_activations + r->memory.peak_scratch)));
    dh_cli_table_cell(table, "%s",
                      dh_format_bytes(text, sizeof text, (double)r->memory.peak_bytes));
}

/* The first rank of each stage, and those unlike it: slow ones and their partners. */
static bool is_shown(const dh_sim *sim, size_t k)
{
    const dh_sim_rank *r = &sim->ranks[k], *first = r;
    while (first > sim->ranks && first[-1].stage == r->stage) first--;
    const double own = (double)r->times.busy_ns[DH_ENGINE_COMPUTE];
    const double usual = (double)first->times.busy_ns[DH_ENGINE_COMPUTE];
    return r == first || own > 1.01 * usual || own < .99 * usual;
}

static bool fits(const dh_simulated_list *list, const figures *f)
{
    return !list->cluster || (double)f->peak_bytes <= list->cluster->memory_bytes;
}

static void print_fit(const dh_simulated_list *list, const figures *f, dh_str *out)
{
    char peak[32], room[32];
    if (fits(list, f)) return;
    dh_str_printf(out, "does not fit: %s of %s\n",
                  dh_format_bytes(peak, sizeof peak, (double)f->peak_bytes),
                  dh_format_bytes(room, sizeof room, list->cluster->memory_bytes));
}

static void print_stages(const dh_sim *sim, dh_str *out)
{
    static const char *const headings[] = {"stage",     "rank",      "compute",     "exposed",
                                           "idle",      "bubble",    "hidden",      "parameters",
                                           "gradients", "optimizer", "activations", "peak"};
    dh_cli_table table;
    dh_cli_table_begin(&table);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (size_t k = 0; k < sim->n_classes; k++)
        if (is_shown(sim, k)) add_stage(&sim->ranks[k], &table);
    dh_str_printf(out, "\n");
    dh_cli_table_end(&table, dh_cli_columns(), out);
    dh_str_wrap(out, "compute, exposed and idle make a step; activations are those at the peak", 0,
                dh_cli_columns());
}

static void print_one(const dh_simulated_list *list, const dh_simulated *s, dh_str *out)
{
    const dh_sim *sim = s->sim;
    const figures f = figures_of(sim);
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
    print_stages(sim, out);
    print_fit(list, &f, out);
}

/* ---- several side by side ------------------------------------------------------------------- */

static void add_row(const dh_simulated_list *list, const dh_simulated *s, double first_s,
                    dh_cli_table *table)
{
    char text[32];
    if (!s->sim) return;
    const figures f = figures_of(s->sim);
    dh_cli_table_cell(table, "%s", s->strategy->name);
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
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, (double)f.peak_bytes));
    dh_cli_table_cell(table, "%s", fits(list, &f) ? "" : "does not fit");
}

static void add_columns(const dh_simulated_list *list, dh_cli_table *table)
{
    static const char *const headings[] = {"step", "speed-up", "tokens/s", "TFLOP/s", "MFU",
                                           "HFU",  "hidden",   "exposed",  "bubble",  "memory"};
    dh_cli_table_column(table, "strategy", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        if (list->peak_flops_per_s > 0 || strcmp(headings[i] + 1, "FU") != 0)
            dh_cli_table_column(table, headings[i], DH_CLI_COLUMN_RIGHT);
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

static void print_rows(const dh_simulated_list *list, dh_str *out)
{
    double first_s = 0;
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < list->n && first_s <= 0; i++) {
        if (!list->at[i].sim) continue;
        first_s = (double)list->at[i].sim->step_ns * 1e-9;
        print_sources(list->at[i].sim, out);
    }
    print_table(list, first_s, out);
    if (list->peak_flops_per_s > 0) {
        dh_str_printf(&text,
                      "TFLOP/s: model FLOPs of a device; MFU, HFU: model and executed FLOPs in %% "
                      "of %.4g TFLOP/s",
                      list->peak_flops_per_s * 1e-12);
        dh_cli_paragraph(out, &text, 2);
    }
    for (size_t i = 0; i < list->n; i++) {
        if (list->at[i].sim) continue;
        dh_str_printf(&text, "%s: %s", list->at[i].strategy->name, list->at[i].reason);
        dh_cli_paragraph(out, &text, 2);
    }
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
                  dh_dtype_name(j->dtype), list->n == 1 ? ", strategy " : "",
                  list->n == 1 ? list->at[0].strategy->name : "");
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

void dh_simulated_print(const dh_simulated_list *list, dh_str *out)
{
    print_job(list, out);
    print_spanning(list, out);
    if (list->n == 1 && list->at[0].sim)
        print_one(list, &list->at[0], out);
    else
        print_rows(list, out);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static void set_ms(json_t *object, const char *key, double ns)
{
    json_object_set_new(object, key, json_real(ns * 1e-6));
}

static json_t *stage_json(const dh_sim_rank *r)
{
    const dh_sim_memory *m = &r->memory;
    json_t *memory = json_object();
    for (size_t i = 0; memory && i < N_MEMORY_ROWS; i++)
        json_object_set_new(memory, memory_rows[i].key, json_integer((json_int_t)row_bytes(m, i)));
    json_t *stage =
        json_pack("{sI sI sI so sI sI sf sI}", "stage", (json_int_t)r->stage, "rank",
                  (json_int_t)r->rank, "ranks", (json_int_t)r->n_ranks, "memory_bytes", memory,
                  "peak_activation_bytes", (json_int_t)(m->peak_activations + m->peak_scratch),
                  "peak_bytes", (json_int_t)m->peak_bytes, "peak_ms", (double)m->peak_ns * 1e-6,
                  "instructions", (json_int_t)r->program->instrs.n);
    if (!stage) return NULL;
    if (m->slab_bytes > 0)
        json_object_set_new(stage, "planned_bytes", json_integer((json_int_t)m->slab_bytes));
    set_ms(stage, "compute_ms", (double)r->times.busy_ns[DH_ENGINE_COMPUTE]);
    set_ms(stage, "local_ms", (double)r->times.busy_ns[DH_ENGINE_LOCAL]);
    set_ms(stage, "cross_ms", (double)r->times.busy_ns[DH_ENGINE_CROSS]);
    set_ms(stage, "hidden_ms", (double)r->times.hidden_ns);
    set_ms(stage, "exposed_ms", (double)r->times.exposed_ns);
    set_ms(stage, "idle_ms", (double)r->times.idle_ns);
    set_ms(stage, "bubble_ms", (double)r->times.waits_ns[DH_WAITS_STAGES]);
    set_ms(stage, "partners_ms", (double)r->times.waits_ns[DH_WAITS_PARTNERS]);
    return stage;
}

static json_t *causes_json(const figures *f)
{
    json_t *causes = json_object();
    for (int i = 0; causes && i < DH_N_EXPOSURE; i++)
        set_ms(causes, dh_exposure_name((dh_exposure)i), f->exposed_by_ns[i]);
    return causes;
}

static json_t *sources_json(const dh_sim *sim)
{
    json_t *sources = json_object();
    for (int k = 0; sources && k < DH_N_PAIR_SOURCES; k++)
        set_ms(sources, dh_pair_source_name((dh_pair_source)k), sim->solo_ns_by[k]);
    return sources;
}

static void set_rates(const dh_simulated_list *list, const figures *f, json_t *object)
{
    json_object_set_new(object, "model_tflops_per_device", json_real(f->model_flops_per_s * 1e-12));
    json_object_set_new(object, "hardware_tflops_per_device",
                        json_real(f->hardware_flops_per_s * 1e-12));
    if (list->peak_flops_per_s <= 0) return;
    json_object_set_new(object, "mfu", json_real(f->model_flops_per_s / list->peak_flops_per_s));
    json_object_set_new(object, "hardware_utilisation",
                        json_real(f->hardware_flops_per_s / list->peak_flops_per_s));
}

static json_t *one_json(const dh_simulated_list *list, const dh_simulated *s)
{
    if (!s->sim) return json_pack("{ss ss}", "strategy", s->strategy->name, "reason", s->reason);
    const figures f = figures_of(s->sim);
    json_t *stages = json_array();
    for (size_t k = 0; stages && k < s->sim->n_classes; k++)
        json_array_append_new(stages, stage_json(&s->sim->ranks[k]));
    json_t *one = json_pack(
        "{ss sf sf sf sf sf so sf sI so so}", "strategy", s->strategy->name, "step_ms",
        f.step_s * 1e3, "tokens_per_s", f.tokens_per_s, "hidden_share", hidden_percent(&f) / 100,
        "bubble_ms", f.bubble_ns * 1e-6, "partners_ms", f.partners_ns * 1e-6, "exposed_by_ms",
        causes_json(&f), "idle_ms", f.idle_ns * 1e-6, "peak_bytes", (json_int_t)f.peak_bytes,
        "solo_ms_by_source", sources_json(s->sim), "stages", stages);
    if (!one) return NULL;
    set_ms(one, "compute_ms", f.compute_ns);
    set_ms(one, "hidden_ms", f.hidden_ns);
    set_ms(one, "exposed_ms", f.exposed_ns);
    json_object_set_new(one, "traffic", dh_cargo_means_json(&s->cargo));
    set_rates(list, &f, one);
    if (list->cluster)
        json_object_set_new(one, "fits",
                            json_boolean((double)f.peak_bytes <= list->cluster->memory_bytes));
    return one;
}

json_t *dh_simulated_json(const dh_simulated_list *list)
{
    const dh_job *j = list->job;
    json_t *strategies = json_array();
    for (size_t i = 0; strategies && i < list->n; i++)
        json_array_append_new(strategies, one_json(list, &list->at[i]));
    json_t *document =
        json_pack("{ss sI sI sI sI so}", "model", j->model.name, "ranks", (json_int_t)j->ranks,
                  "tokens_per_step", (json_int_t)(j->global_batch * j->seq_len), "micro_batches",
                  (json_int_t)dh_job_n_micro(j), "parameters",
                  (json_int_t)dh_model_n_params(&j->model), "strategies", strategies);
    if (!document) return NULL;
    if (list->cluster) json_object_set_new(document, "cluster", json_string(list->cluster->name));
    if (list->peak_flops_per_s > 0)
        json_object_set_new(document, "peak_tflops_per_device",
                            json_real(list->peak_flops_per_s * 1e-12));
    return document;
}
