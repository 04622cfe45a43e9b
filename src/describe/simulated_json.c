/* Simulated steps as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include "describe/memory.h"
#include "describe/simulated.h"

/* ---- figures ------------------------------------------------------------------------------- */

dh_simulated_figures dh_simulated_figures_of(const dh_sim *sim)
{
    dh_simulated_figures f = {.step_s = (double)sim->step_ns * 1e-9};
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        const double share = (double)r->n_ranks / (double)sim->n_ranks;
        f.compute_ns += share * (double)dh_timeline_compute_ns(&r->times);
        f.hidden_ns += share * (double)r->times.hidden_ns;
        f.exposed_ns += share * (double)r->times.exposed_ns;
        f.idle_ns += share * (double)r->times.idle_ns;
        f.bubble_ns += share * (double)r->times.waits_ns[DH_WAITS_STAGES];
        f.partners_ns += share * (double)r->times.waits_ns[DH_WAITS_PARTNERS];
        for (int i = 0; i < DH_N_EXPOSURE; i++)
            f.exposed_by_ns[i] += share * (double)r->times.exposed_by_ns[i];
        f.peak_bytes = DH_MAX(f.peak_bytes, r->memory.peak_bytes);
    }
    const double communication_ns = f.hidden_ns + f.exposed_ns;
    f.hidden_percent = communication_ns > 0 ? 100 * f.hidden_ns / communication_ns : 0;
    const double device_s = f.step_s * (double)sim->n_ranks;
    if (device_s <= 0) return f;
    f.tokens_per_s = (double)sim->tokens / f.step_s;
    f.model_flops_per_s = sim->model_flops / device_s;
    f.hardware_flops_per_s = sim->hardware_flops / device_s;
    return f;
}

const dh_simulated *dh_simulated_same(const dh_simulated_list *list, const dh_simulated *one)
{
    for (const dh_simulated *s = list->at; one->sim && s < one; s++)
        if (s->sim && s->sim->n_classes == one->sim->n_classes && s->digest == one->digest)
            return s;
    return NULL;
}

const dh_simulated *dh_simulated_first(const dh_simulated_list *list)
{
    for (const dh_simulated *s = list->at; s < list->at + list->n; s++)
        if (s->sim) return s;
    return NULL;
}

uint64_t dh_simulated_system_bytes(const dh_simulated *one)
{
    uint64_t most = 0;
    for (size_t k = 0; one->system && k < one->sim->n_classes; k++)
        most = DH_MAX(most, one->system[k].peak_bytes);
    return most;
}

uint64_t dh_simulated_needed_bytes(const dh_simulated *one)
{
    return one->system ? dh_simulated_system_bytes(one)
                       : dh_simulated_figures_of(one->sim).peak_bytes;
}

bool dh_simulated_fits(const dh_simulated *one, const dh_cluster *cluster)
{
    return (double)dh_simulated_needed_bytes(one) <= dh_cluster_usable_bytes(cluster);
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
    for (size_t i = 0; memory && i < DH_N_MODEL_ROWS; i++)
        json_object_set_new(memory, dh_memory_rows[i].key,
                            json_integer((json_int_t)dh_memory_row_bytes(m->persistent, i)));
    char digest[17];
    snprintf(digest, sizeof digest, "%016" PRIx64, dh_program_digest(r->program));
    json_t *stage =
        json_pack("{sI sI sI so sI sI sf sI ss}", "stage", (json_int_t)r->stage, "rank",
                  (json_int_t)r->rank, "ranks", (json_int_t)r->n_ranks, "memory_bytes", memory,
                  "peak_activation_bytes", (json_int_t)(m->peak_activations + m->peak_scratch),
                  "peak_bytes", (json_int_t)m->peak_bytes, "peak_ms", (double)m->peak_ns * 1e-6,
                  "instructions", (json_int_t)r->n_instrs, "program_digest", digest);
    if (!stage) return NULL;
    if (m->slab_bytes > 0)
        json_object_set_new(stage, "planned_bytes", json_integer((json_int_t)m->slab_bytes));
    set_ms(stage, "compute_ms", (double)dh_timeline_compute_ns(&r->times));
    set_ms(stage, "local_ms", (double)r->times.busy_ns[DH_ENGINE_LOCAL]);
    set_ms(stage, "cross_ms", (double)r->times.busy_ns[DH_ENGINE_CROSS]);
    set_ms(stage, "hidden_ms", (double)r->times.hidden_ns);
    set_ms(stage, "exposed_ms", (double)r->times.exposed_ns);
    set_ms(stage, "idle_ms", (double)r->times.idle_ns);
    set_ms(stage, "bubble_ms", (double)r->times.waits_ns[DH_WAITS_STAGES]);
    set_ms(stage, "partners_ms", (double)r->times.waits_ns[DH_WAITS_PARTNERS]);
    return stage;
}

static json_t *system_json(const dh_system_memory *m)
{
    return json_pack("{sI sI sI sI sf}", "states_bytes", (json_int_t)m->states_bytes,
                     "layer_states_bytes", (json_int_t)m->layer_states_bytes, "layers_kept_bytes",
                     (json_int_t)m->layers_kept_bytes, "peak_bytes", (json_int_t)m->peak_bytes,
                     "peak_ms", (double)m->peak_ns * 1e-6);
}

static json_t *causes_json(const dh_simulated_figures *f)
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

static void set_rates(const dh_simulated_list *list, const dh_simulated_figures *f, json_t *object)
{
    json_object_set_new(object, "model_tflops_per_device", json_real(f->model_flops_per_s * 1e-12));
    json_object_set_new(object, "hardware_tflops_per_device",
                        json_real(f->hardware_flops_per_s * 1e-12));
    if (list->peak_flops_per_s <= 0) return;
    json_object_set_new(object, "mfu", json_real(f->model_flops_per_s / list->peak_flops_per_s));
    json_object_set_new(object, "hardware_utilisation",
                        json_real(f->hardware_flops_per_s / list->peak_flops_per_s));
}

static json_t *figures_json(const dh_simulated_list *list, const dh_simulated *s)
{
    const dh_simulated_figures f = dh_simulated_figures_of(s->sim);
    json_t *stages = json_array();
    for (size_t k = 0; stages && k < s->sim->n_classes; k++) {
        json_t *stage = stage_json(&s->sim->ranks[k]);
        if (stage && s->system)
            json_object_set_new(stage, "system_memory", system_json(&s->system[k]));
        json_array_append_new(stages, stage);
    }
    json_t *one = json_pack("{ss sf sf sf sf sf so sf sI so so}", "strategy", s->strategy->name,
                            "step_ms", f.step_s * 1e3, "tokens_per_s", f.tokens_per_s,
                            "hidden_share", f.hidden_percent / 100, "bubble_ms", f.bubble_ns * 1e-6,
                            "partners_ms", f.partners_ns * 1e-6, "exposed_by_ms", causes_json(&f),
                            "idle_ms", f.idle_ns * 1e-6, "peak_bytes", (json_int_t)f.peak_bytes,
                            "solo_ms_by_source", sources_json(s->sim), "stages", stages);
    if (!one) return NULL;
    set_ms(one, "compute_ms", f.compute_ns);
    set_ms(one, "hidden_ms", f.hidden_ns);
    set_ms(one, "exposed_ms", f.exposed_ns);
    json_object_set_new(one, "traffic", dh_cargo_means_json(&s->cargo));
    set_rates(list, &f, one);
    if (s->sim->shorter)
        json_object_set_new(one, "simulated_micro_batches",
                            json_integer((json_int_t)s->sim->ranks[0].program->n_micro));
    if (s->system)
        json_object_set_new(one, "system_peak_bytes",
                            json_integer((json_int_t)dh_simulated_system_bytes(s)));
    if (list->cluster) {
        const double usable = dh_cluster_usable_bytes(list->cluster);
        json_object_set_new(one, "usable_bytes", json_integer((json_int_t)usable));
        json_object_set_new(one, "fits", json_boolean(dh_simulated_fits(s, list->cluster)));
    }
    return one;
}

static json_t *one_json(const dh_simulated_list *list, const dh_simulated *s)
{
    const dh_simulated *same = dh_simulated_same(list, s);
    json_t *one = s->sim ? figures_json(list, s)
                         : json_pack("{ss ss}", "strategy", s->strategy->name, "reason", s->reason);
    if (one && same) {
        json_object_set_new(one, "same_as", json_string(same->strategy->name));
        json_object_set_new(one, "same_as_schedule", json_string(same->taken));
    }
    if (one && s->as_given) json_object_set_new(one, "as_given", json_true());
    if (one && (s->taken || s->schedule))
        json_object_set_new(one, "schedule", json_string(s->taken ? s->taken : s->schedule));
    if (!one || !s->sim) return one;
    if (s->chosen) json_object_set_new(one, "chosen", json_string(s->chosen));
    json_object_set_new(one, "layer_split", json_string(s->job->job.layer_split));
    json_object_set_new(one, "virtual_stages", json_integer((json_int_t)s->virtual_stages));
    json_object_set_new(
        one, "speed_up",
        json_real((double)dh_simulated_first(list)->sim->step_ns / (double)s->sim->step_ns));
    return one;
}

void dh_nearest_json(const dh_step_facts *facts, json_t *document)
{
    dh_ctx quiet = DH_CTX_INIT;
    dh_precedents found;
    if (dh_precedents_find(&quiet, facts, &found) == DH_OK)
        json_object_set_new(document, "nearest", dh_precedents_json(&found));
}

bool dh_resolved_facts(const dh_resolved *job, dh_step_facts *facts)
{
    if (!job->cluster) return false;
    dh_step_facts_of(&job->job, job->cluster, facts);
    if (*facts->schedule && job->schedule) dh_step_facts_take(facts->schedule, job->schedule->name);
    return true;
}

bool dh_simulated_facts(const dh_simulated_list *list, dh_step_facts *facts)
{
    const dh_simulated *first = dh_simulated_first(list);
    if (!first || !dh_resolved_facts(first->job, facts)) return false;
    dh_step_facts_take(facts->strategy, first->chosen ? first->chosen : first->strategy->name);
    return true;
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
    json_object_set_new(document, "system", json_string(j->system));
    if (list->peak_flops_per_s > 0)
        json_object_set_new(document, "peak_tflops_per_device",
                            json_real(list->peak_flops_per_s * 1e-12));
    dh_step_facts facts;
    if (dh_simulated_facts(list, &facts)) dh_nearest_json(&facts, document);
    return document;
}
