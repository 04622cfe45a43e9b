/* The tables everything is made of: a list is a JSON array of flat objects with the same keys. */
#include "describe/lists.h"

#include <math.h>
#include <string.h>

#include "base/json_text.h"
#include "config/flags.h"
#include "config/settings.h"
#include "config/shipped.h"
#include "costs/cluster.h"
#include "costs/system.h"
#include "plan/schedule.h"
#include "run/comm/comm.h"
#include "run/exec/exec.h"
#include "strategy/strategy.h"
#include "validate/validate.h"

/* ---- the lists: NULL when out of memory ------------------------------------------------------ */

static void add_named(json_t *rows, const char *name, const char *doc)
{
    json_array_append_new(rows, json_pack("{ss ss}", "name", name, "doc", doc));
}

static json_t *list_models(void)
{
    size_t n;
    const dh_model_preset *presets = dh_model_presets(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) {
        const dh_model *m = &presets[i].model;
        json_array_append_new(
            rows, json_pack("{ss sI sI sI sI sI ss}", "name", presets[i].name, "parameters",
                            (json_int_t)dh_model_n_params(m), "layers", (json_int_t)m->n_layers,
                            "width", (json_int_t)m->width, "vocab", (json_int_t)m->vocab, "max_seq",
                            (json_int_t)m->max_seq, "doc", presets[i].doc));
    }
    return rows;
}

static bool runs(const dh_device *device, dh_op_type type)
{
    return dh_op_info_of(type)->resource != DH_RES_COMPUTE || device->has_kernel(type);
}

/* Devices with a kernel for the operator, comma-separated; those that tell of parts of its output
 * are marked. Loading and communication are the executor's, on all of them. */
static void kernel_names(dh_op_type type, dh_str *out)
{
    size_t n;
    const dh_device *const *devices = dh_devices(&n);
    for (size_t i = 0; i < n; i++)
        if (runs(devices[i], type))
            dh_str_printf(out, "%s%s%s", out->len ? "," : "", devices[i]->name,
                          devices[i]->tells_parts(type) ? "(parts)" : "");
    if (!out->len) dh_str_printf(out, "none");
}

static void operand_names(const dh_operand_info *operands, int n, dh_str *out)
{
    for (int i = 0; i < n; i++)
        dh_str_printf(out, "%s%s%s%s%s", i ? " " : "", operands[i].name,
                      operands[i].optional ? "?" : "", operands[i].accumulate ? "+" : "",
                      operands[i].update ? "&" : "");
}

static const char *const resource_names[] = {
    [DH_RES_HOST] = "host", [DH_RES_COMPUTE] = "compute", [DH_RES_COMM] = "link"};

static json_t *op_row(dh_op_type type)
{
    const dh_op_info *info = dh_op_info_of(type);
    dh_str in = DH_STR_INIT, out = DH_STR_INIT, kernels = DH_STR_INIT;
    operand_names(info->in, info->n_in, &in);
    operand_names(info->out, info->n_out, &out);
    kernel_names(type, &kernels);
    return json_pack("{ss ss so so so ss}", "name", info->name, "resource",
                     resource_names[info->resource], "kernels", dh_json_of_text(&kernels), "in",
                     dh_json_of_text(&in), "out", dh_json_of_text(&out), "doc", info->doc);
}

static json_t *list_ops(void)
{
    json_t *rows = json_array();
    for (int i = 0; i < DH_N_OP_TYPE; i++) json_array_append_new(rows, op_row((dh_op_type)i));
    return rows;
}

/* A column a device: a missing kernel is a visible gap. */
static json_t *list_kernels(void)
{
    size_t n;
    const dh_device *const *devices = dh_devices(&n);
    json_t *rows = json_array();
    for (int i = 0; i < DH_N_OP_TYPE; i++) {
        json_t *row = json_pack("{ss}", "operator", dh_op_info_of((dh_op_type)i)->name);
        for (size_t b = 0; row && b < n; b++)
            json_object_set_new(row, devices[b]->name,
                                json_boolean(runs(devices[b], (dh_op_type)i)));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *list_groups(void)
{
    json_t *rows = json_array();
    for (int i = 0; i < DH_N_GROUPS; i++)
        add_named(rows, dh_group_name((dh_group_kind)i), dh_group_doc((dh_group_kind)i));
    return rows;
}

static json_t *list_worlds(void)
{
    size_t n;
    const dh_comm_ops *worlds = dh_comm_table(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) add_named(rows, worlds[i].name, worlds[i].doc);
    return rows;
}

static json_t *list_devices(void)
{
    size_t n;
    const dh_device *const *devices = dh_devices(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) add_named(rows, devices[i]->name, devices[i]->doc);
    return rows;
}

static json_t *schedule_row(const dh_schedule_row *r)
{
    return json_pack("{ss ss sb sb ss}", "name", r->name, "placement",
                     dh_placement_name(r->placement), "pairs", r->pairs, "split_backward",
                     r->split_backward, "doc", r->doc);
}

static json_t *list_placements(void)
{
    json_t *rows = json_array();
    for (int i = 0; i < DH_N_PLACEMENTS; i++)
        add_named(rows, dh_placement_name((dh_placement)i), dh_placement_doc((dh_placement)i));
    return rows;
}

static json_t *list_schedules(void)
{
    size_t n;
    const dh_schedule_row *const *schedules = dh_schedule_rows(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(rows, schedule_row(schedules[i]));
    return rows;
}

/* "ways: forth, both" */
static json_t *params_json(const dh_pass *pass)
{
    dh_str text = DH_STR_INIT;
    for (int k = 0; k < DH_MAX_PASS_PARAMS && pass->params[k].name; k++) {
        dh_str_printf(&text, "%s%s: ", k ? "; " : "", pass->params[k].name);
        dh_pass_param_describe(&pass->params[k], &text);
    }
    if (!text.len) dh_str_printf(&text, "-");
    return dh_json_of_text(&text);
}

static json_t *list_passes(void)
{
    size_t n;
    const dh_pass *const *passes = dh_passes(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(rows,
                              json_pack("{ss ss ss so ss}", "name", passes[i]->name, "place",
                                        dh_pass_place_name(passes[i]->place), "of",
                                        passes[i]->of_job ? "the job" : "a strategy", "parameters",
                                        params_json(passes[i]), "doc", passes[i]->doc));
    return rows;
}

static json_t *strategy_row(const dh_strategy *s)
{
    dh_str passes = DH_STR_INIT;
    dh_pass_list_print(&s->passes, &passes);
    if (!passes.len) dh_str_printf(&passes, "-");
    return json_pack("{ss so ss ss ss}", "name", s->name, "passes", dh_json_of_text(&passes),
                     "schedule", s->schedule ? s->schedule : "-", "order", s->policy, "doc",
                     s->doc);
}

static json_t *list_strategies(void)
{
    size_t n;
    const dh_strategy *strategies = dh_strategies(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(rows, strategy_row(&strategies[i]));
    return rows;
}

static json_t *list_policies(void)
{
    size_t n;
    const dh_order_policy *policies = dh_order_policies(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) add_named(rows, policies[i].name, policies[i].doc);
    return rows;
}

static json_t *cluster_row(const dh_cluster *c)
{
    return json_pack("{ss sI sf sf sf sf ss}", "name", c->name, "devices",
                     (json_int_t)c->node_devices, "bf16_tflops", c->bf16_flops_per_s * 1e-12,
                     "memory_gb", c->memory_bytes * 1e-9, "local_gb_per_s",
                     c->local.bytes_per_s * 1e-9, "network_gb_per_s", c->network.bytes_per_s * 1e-9,
                     "doc", c->doc);
}

static json_t *list_clusters(void)
{
    json_t *rows = json_array();
    const char *name;
    for (size_t i = 0; (name = dh_cluster_name(i)); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_cluster *cluster;
        dh_status st = dh_cluster_find(&ctx, name, &cluster);
        DH_CHECK(st == DH_OK || st == DH_ENOMEM, "%s", ctx.message);
        if (st != DH_OK) {
            json_decref(rows);
            return NULL;
        }
        json_array_append_new(rows, cluster_row(cluster));
        dh_cluster_destroy(cluster);
    }
    return rows;
}

static json_t *list_cluster_settings(void)
{
    json_t *rows = json_array();
    dh_cluster_key s;
    for (size_t i = 0; dh_cluster_key_at(i, &s); i++)
        json_array_append_new(rows,
                              json_pack("{ss ss ss}", "key", s.key, "unit", s.unit, "doc", s.doc));
    return rows;
}

/* "Megatron-LM before ...: scores, reduced-last (Narayanan ...)" */
static json_t *system_doc(const dh_system *system)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s", system->doc);
    const char *before = ": ";
    for (int i = 0; i < DH_N_TRAIT; i++) {
        if (!dh_system_has(system, (dh_trait)i)) continue;
        dh_str_printf(&text, "%s%s", before, dh_trait_name((dh_trait)i));
        before = ", ";
    }
    if (system->host_ns > 0)
        dh_str_printf(&text, "%shost %g us a kernel", before, system->host_ns * 1e-3);
    if (*system->source) dh_str_printf(&text, " (%s)", system->source);
    return dh_json_of_text(&text);
}

static json_t *list_systems(void)
{
    size_t n;
    const dh_system *systems = dh_systems(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            rows, json_pack("{ss so}", "name", systems[i].name, "doc", system_doc(&systems[i])));
    return rows;
}

/* The setting here, then "; " and what there is to say. */
static json_t *flag_doc(const dh_flag *flag)
{
    const char *here = flag->here ? flag->here : "", *note = flag->note ? flag->note : "";
    return json_sprintf("%s%s%s", here, *here && *note ? "; " : "", note);
}

static json_t *list_flags(void)
{
    json_t *rows = json_array();
    for (int p = 0; p < DH_N_PROJECTS; p++) {
        size_t n;
        const dh_flag *flags = dh_flags((dh_project)p, &n);
        for (size_t i = 0; i < n; i++)
            json_array_append_new(rows,
                                  json_pack("{ss ss ss ss so}", "name", flags[i].name, "project",
                                            dh_project_names[p], "section", flags[i].section,
                                            "effect", flags[i].effect, "doc", flag_doc(&flags[i])));
    }
    return rows;
}

static json_t *list_traits(void)
{
    json_t *rows = json_array();
    for (int i = 0; i < DH_N_TRAIT; i++)
        add_named(rows, dh_trait_name((dh_trait)i), dh_trait_doc((dh_trait)i));
    return rows;
}

static json_t *list_tables(void)
{
    size_t n;
    const dh_validation_table *tables = dh_validation_tables(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(rows, json_pack("{ss ss ss ss}", "name", tables[i].name, "paper",
                                              tables[i].paper ? tables[i].paper : "", "file",
                                              tables[i].file, "doc", tables[i].doc));
    return rows;
}

/* "dp 8, tp 4": sizes above 1. */
static json_t *mesh_of(const dh_job *j)
{
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"dp", j->dp}, {"tp", j->tp}, {"pp", j->pp}, {"cp", j->cp}, {"ep", j->ep}};
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++)
        if (sizes[i].size > 1)
            dh_str_printf(&text, "%s%s %lld", text.len ? ", " : "", sizes[i].name,
                          (long long)sizes[i].size);
    if (!text.len) dh_str_printf(&text, "-");
    return dh_json_of_text(&text);
}

/* Words with ", " between them, each once. */
static void add_word(dh_str *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list->text; at; at = strstr(at, ", ")) {
        at += *at == ',' ? 2 : 0;
        if (strncmp(at, word, n) == 0 && (!at[n] || at[n] == ',')) return;
    }
    dh_str_printf(list, "%s%s", list->len ? ", " : "", word);
}

static json_t *job_row(const char *name, const dh_job *job)
{
    size_t n;
    dh_str clusters = DH_STR_INIT, tables = DH_STR_INIT;
    const dh_validation_job *uses = dh_validation_jobs(&n);
    for (size_t i = 0; i < n; i++) {
        if (!dh_validation_job_is(&uses[i], name)) continue;
        if (uses[i].cluster) add_word(&clusters, uses[i].cluster);
        add_word(&tables, uses[i].table);
    }
    if (!clusters.len) dh_str_printf(&clusters, "-");
    return json_pack("{ss ss sI so ss so so}", "name", name, "model",
                     *job->model.name ? job->model.name : "-", "devices", (json_int_t)job->ranks,
                     "mesh", mesh_of(job), "system", job->system, "clusters",
                     dh_json_of_text(&clusters), "tables", dh_json_of_text(&tables));
}

static json_t *list_jobs(void)
{
    size_t n;
    const dh_embedded *jobs = dh_shipped_jobs(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_job *job;
        dh_status st = dh_job_parse(&ctx, (const char *)jobs[i].text, jobs[i].n_bytes, jobs[i].name,
                                    NULL, NULL, 0, &job);
        DH_CHECK(st == DH_OK || st == DH_ENOMEM, "%s", ctx.message);
        if (st != DH_OK) {
            json_decref(rows);
            return NULL;
        }
        json_array_append_new(rows, job_row(jobs[i].name, job));
        dh_job_destroy(job);
    }
    return rows;
}

static json_t *setting_row(const dh_setting *s)
{
    dh_str valid = DH_STR_INIT;
    dh_setting_describe(s, &valid);
    return json_pack("{ss ss so ss}", "key", s->key, "default", s->fallback ? s->fallback : "",
                     "values", dh_json_of_text(&valid), "doc", s->help);
}

static json_t *list_settings(void)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(rows, setting_row(&settings[i]));
    return rows;
}

static const dh_list lists[] = {
    {"models", "built-in models, for the setting `model`", list_models},
    {"ops", "operators: what they occupy, read and write, and which devices have them", list_ops},
    {"kernels", "operators by device", list_kernels},
    {"devices", "hardware on which programs run", list_devices},
    {"worlds", "how the ranks of a run communicate", list_worlds},
    {"groups", "ranks that meet in a collective, as programs and messages name them", list_groups},
    {"schedules", "orders of micro-batches over pipeline stages, for `parallel.schedule`",
     list_schedules},
    {"placements", "which stages a rank holds, as schedules name them", list_placements},
    {"passes", "rewrites of operator graphs, of which strategies are made", list_passes},
    {"strategies", "ways to hide communication, for the setting `strategy`", list_strategies},
    {"policies", "orders of co-executed operators, for the setting `overlap.policy`",
     list_policies},
    {"clusters", "hardware that jobs can be simulated on, for --cluster", list_clusters},
    {"cluster-settings", "keys of a cluster file (clusters/README.md)", list_cluster_settings},
    {"systems", "software that jobs can be simulated as, for the setting `system`", list_systems},
    {"traits", "differences between systems and dhelix", list_traits},
    {"jobs", "jobs whose times were published, for a JOB of any command", list_jobs},
    {"tables", "published measurements, for dhelix validate", list_tables},
    {"settings", "settings of a job file", list_settings},
    {"flags", "flags of Megatron-LM, torchtitan and NeMo, with their settings here", list_flags},
};

const dh_list *dh_lists(size_t *n)
{
    *n = DH_COUNTOF(lists);
    return lists;
}

json_t *dh_list_names(void)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < DH_COUNTOF(lists); i++) add_named(rows, lists[i].name, lists[i].doc);
    return rows;
}

const dh_list *dh_list_find(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(lists); i++)
        if (strcmp(name, lists[i].name) == 0) return &lists[i];
    return NULL;
}

json_t *dh_lists_json(void)
{
    json_t *document = json_object();
    for (size_t i = 0; i < DH_COUNTOF(lists); i++)
        if (json_object_set_new(document, lists[i].name, lists[i].make()) != 0) {
            json_decref(document);
            return NULL;
        }
    return document;
}
