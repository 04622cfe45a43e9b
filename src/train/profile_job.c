/* The subject of a profile of a job: its operators, and the facts their times depend on. */
#include "train/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "strategy/rewrites.h"
#include "train/rank.h"
#include "train/recipe.h"

/* ---- a small job with every operator ------------------------------------------------------- */

/* The job's schedule with the fewest micro-batches that it accepts; a file has its own number. */
static dh_status smallest_schedule(dh_ctx *ctx, const dh_job *job, const dh_strategy *strategy,
                                   dh_schedule **schedule)
{
    const int64_t most = DH_MAX(dh_job_n_micro(job), 2);
    for (int64_t n = 2; n < most; n++) {
        dh_ctx attempt = DH_CTX_INIT;
        if (dh_job_schedule(&attempt, job, strategy, NULL, n, schedule) == DH_OK) return DH_OK;
    }
    return dh_job_schedule(ctx, job, strategy, NULL, most, schedule);
}

static bool is_auto(const dh_job *job)
{
    return strcmp(job->strategy, "auto") == 0;
}

/* The job's strategy; where that is to be chosen yet, the first one. */
static dh_status own_strategy(dh_ctx *ctx, const dh_job *job, const dh_strategy **strategy)
{
    size_t n;
    *strategy = dh_strategies(&n);
    return is_auto(job) ? DH_OK : dh_strategy_read(ctx, job->arena, job->strategy, strategy);
}

static dh_status add_once(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_pass_list *list,
                          dh_probe_lists *lists)
{
    const dh_pass_list passes = dh_pass_list_reduced(graphs, list);
    for (size_t i = 0; i < lists->n; i++)
        if (dh_pass_list_equal(&lists->at[i], &passes)) return DH_OK;
    return dh_vec_push(lists, passes) ? DH_OK : dh_no_memory(ctx);
}

/* With every choice of what costs are to choose: that takes all of their operators. */
static dh_status add_choices(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_pass_list *list,
                             dh_probe_lists *lists)
{
    dh_pass_list said = dh_pass_list_reduced(graphs, list);
    int64_t *arg;
    const dh_pass_param *param;
    if (!dh_pass_list_open(&said, &arg, &param)) return add_once(ctx, graphs, &said, lists);
    for (const int64_t *choice = param->choices; *choice; choice++) {
        dh_pass_list one = said;
        int64_t *arg_of_one;
        dh_pass_list_open(&one, &arg_of_one, &param);
        *arg_of_one = *choice;
        DH_TRY(add_choices(ctx, graphs, &one, lists)); // NOLINT(misc-no-recursion): 16 deep
    }
    return DH_OK;
}

/* All that the strategy may come to. */
static dh_status add_strategy(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_strategy *strategy,
                              dh_probe_lists *lists)
{
    dh_rewrites all;
    DH_TRY(add_choices(ctx, graphs, &strategy->passes, lists));
    if (!strategy->searches) return DH_OK;
    dh_rewrites_list(graphs, &all);
    for (size_t i = 0; i < all.n; i++) DH_TRY(add_once(ctx, graphs, &all.at[i].passes, lists));
    return DH_OK;
}

/* A strategy that is only simulated has nothing to measure. */
static dh_status add_row(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_strategy *row,
                         dh_probe_lists *lists)
{
    dh_ctx attempt = DH_CTX_INIT;
    const dh_status st = dh_strategy_runs(&attempt, row);
    return st == DH_EUNSUPPORTED ? DH_OK : add_strategy(ctx, graphs, row, lists);
}

dh_status dh_probe_lists_find(dh_ctx *ctx, const dh_job *job, bool all, dh_probe_lists *lists)
{
    const dh_strategy *own;
    dh_program_spec spec = {.mode = DH_MODE_TRAIN};
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    *lists = (dh_probe_lists){0};
    DH_TRY(own_strategy(ctx, job, &own));
    if (all) DH_TRY(dh_strategy_runs(ctx, own));
    DH_TRY(dh_recipe_of_job(ctx, job, &spec.recipe));
    const dh_graph_spec graphs = dh_program_graph_spec(&spec);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && (all || is_auto(job)) && i < n; i++)
        st = add_row(ctx, &graphs, &rows[i], lists);
    if (st == DH_OK) st = add_strategy(ctx, &graphs, own, lists);
    if (st != DH_OK) dh_vec_fini(lists);
    return st;
}

int dh_probe_jobs(const dh_job *job, dh_job jobs[DH_MOST_PROBE_JOBS])
{
    dh_ctx attempt = DH_CTX_INIT;
    dh_program_spec spec = {.mode = DH_MODE_TRAIN};
    dh_group_stages stages;
    jobs[0] = *job;
    if (dh_recipe_of_job(&attempt, job, &spec.recipe) != DH_OK) return 1; /* told elsewhere */
    const dh_graph_spec graphs = dh_program_graph_spec(&spec);
    int n = 1;
    if (job->moe_dispatch == DH_DISPATCH_AUTO) {
        jobs[0].moe_dispatch = DH_DISPATCH_FLAT;
        if (!dh_mesh_dispatch_stages(&graphs.mesh, &stages)) {
            jobs[n] = jobs[0];
            jobs[n++].moe_dispatch = DH_DISPATCH_NODE;
        }
    }
    if (job->expert_rows != DH_TP_ROWS_AUTO) return n;
    for (int i = 0; i < n; i++) jobs[i].expert_rows = DH_TP_ROWS_WHOLE;
    if (dh_tp_rows_obstacle(&graphs)) return n;
    for (int i = 0; i < n; i++) {
        jobs[n + i] = jobs[i];
        jobs[n + i].expert_rows = DH_TP_ROWS_SHARED;
    }
    return 2 * n;
}

/* On every virtual stage a layer of each kind: models have at most two, of which every second layer
 * is then one. */
static void sample_layers(int64_t n_stages, dh_model *m)
{
    const int n_kinds = dh_model_kinds(m, 0, m->n_layers).n;
    DH_CHECK(n_kinds <= 2, "a model has layers of %d kinds", n_kinds);
    if (n_kinds == 2 && m->n_experts > 0) {
        m->dense_first = 0;
        m->moe_every = 2;
    }
    if (n_kinds == 2 && m->softmax_every > 0) m->softmax_every = 2;
    if (n_kinds == 2 && m->window > 0) {
        m->window_from = 0;
        m->window_every = 2;
    }
    m->n_layers = n_kinds * n_stages;
}

/* Graphs as the passes make them, one strand after the other, since probes come behind the step. */
dh_status dh_probe_job_init(dh_ctx *ctx, const dh_job *job, const dh_pass_list *passes,
                            dh_probe_job *probe)
{
    dh_recipe r;
    const dh_strategy *own;
    size_t n;
    *probe = (dh_probe_job){.schedule = NULL};
    DH_TRY(own_strategy(ctx, job, &own));
    DH_TRY(dh_recipe_of_job(ctx, job, &r));
    const char *why;
    DH_TRY(dh_recipe_dispatch(ctx, job->arena, &r, &why)); /* auto, without a strategy: flat */
    DH_TRY(dh_job_estimates(ctx, job->arena, job, &r.costs));
    DH_TRY(dh_strategy_with(ctx, job->arena, dh_strategies(&n), passes, &r.strategy));
    DH_TRY(smallest_schedule(ctx, job, own, &probe->schedule));
    r.schedule = probe->schedule;
    r.layer_split = NULL;
    sample_layers(probe->schedule ? probe->schedule->n_stages : 1, &r.model);
    r.n_micro = probe->schedule ? probe->schedule->n_micro : 2;
    probe->spec = dh_train_session(job, &r);
    probe->spec.eval = false;
    probe->spec.probes = true;
    return DH_OK;
}

void dh_probe_job_fini(dh_probe_job *probe)
{
    dh_schedule_destroy(probe->schedule);
    *probe = (dh_probe_job){.schedule = NULL};
}

dh_status dh_stage_programs_build(dh_ctx *ctx, const dh_probe_job *probe,
                                  dh_stage_programs *programs)
{
    const int64_t n = probe->spec.recipe.mesh.pp;
    *programs = (dh_stage_programs){.at = calloc((size_t)n, sizeof(dh_program *))};
    if (!programs->at) return dh_no_memory(ctx);
    for (int64_t stage = 0; stage < n; stage++) {
        dh_session_spec spec = probe->spec;
        spec.rank = dh_mesh_rank(&spec.recipe.mesh, (dh_coord){.pp = stage});
        dh_status st = dh_session_program(ctx, &spec, DH_MODE_TRAIN, 0, &programs->at[stage]);
        if (st != DH_OK) {
            dh_stage_programs_fini(programs);
            return st;
        }
        programs->n++;
    }
    return DH_OK;
}

void dh_stage_programs_fini(dh_stage_programs *programs)
{
    for (size_t i = 0; i < programs->n; i++) dh_program_destroy(programs->at[i]);
    free(programs->at);
    *programs = (dh_stage_programs){0};
}

/* ---- estimates ----------------------------------------------------------------------------- */

dh_status dh_job_estimates(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs **costs)
{
    const double threads = job->threads > 0 ? (double)job->threads : 1.0;
    dh_cost_model m = {.flops_per_s = (job->dtype == DH_F32 ? 250e9 : 450e9) * threads};
    const dh_link *links[DH_N_ENGINE] = {
        [DH_ENGINE_LOCAL] = &job->link_local, [DH_ENGINE_CROSS] = &job->link_cross};
    for (int i = 0; i < DH_N_ENGINE; i++) {
        if (!links[i]) continue;
        m.link_bytes_per_s[i] = links[i]->gbps * 1e9 / 8;
        m.link_latency_ns[i] = links[i]->latency_us * 1e3;
    }
    *costs = dh_costs_estimated(arena, &m);
    return *costs ? DH_OK : dh_no_memory(ctx);
}

/* ---- facts --------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 256 };

/* "model name : ..." of the first processor, where the kernel says one. */
static void cpu_name(char *text)
{
    char line[TEXT_BYTES];
    snprintf(text, TEXT_BYTES, "not named");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value) continue;
        value += strspn(value, ": \t");
        snprintf(text, TEXT_BYTES, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file) fclose(file);
}

static void processors(char *text)
{
    const int64_t n = dh_own_processors();
    if (n > 0)
        snprintf(text, TEXT_BYTES, "%lld", (long long)n);
    else
        snprintf(text, TEXT_BYTES, "not known");
}

static void link_text(const dh_link *link, char *text)
{
    if (link->gbps > 0 || link->latency_us > 0)
        dh_snprintf(text, TEXT_BYTES, "paced at %g Gbit/s + %g us", link->gbps, link->latency_us);
    else
        snprintf(text, TEXT_BYTES, "not paced");
}

/* Where a device communicates by itself, times depend on who does it. */
static void gpu_comm_text(const dh_job *job, char *text)
{
    static const char *const names[] = {[DH_GPU_COMM_AUTO] = "auto",
                                        [DH_GPU_COMM_NCCL] = "nccl",
                                        [DH_GPU_COMM_DEVICE] = "device",
                                        [DH_GPU_COMM_HOST] = "host"};
    if (job->gpu_comm_sms > 0)
        snprintf(text, TEXT_BYTES, "%s, %lld processors", names[job->gpu_comm],
                 (long long)job->gpu_comm_sms);
    else
        snprintf(text, TEXT_BYTES, "%s, no processors held", names[job->gpu_comm]);
}

static void ranks_text(const dh_job *job, char *text)
{
    static const char *const waits[] = {[DH_MPI_WAIT_YIELD] = "yield",
                                        [DH_MPI_WAIT_SLEEP] = "sleep",
                                        [DH_MPI_WAIT_BLOCK] = "block"};
    if (dh_launched_ranks() > 0)
        snprintf(text, TEXT_BYTES, "%lld processes (mpi, %s)", (long long)job->ranks,
                 waits[job->mpi_wait]);
    else
        snprintf(text, TEXT_BYTES, "%lld threads of a process", (long long)job->ranks);
}

typedef struct fact_list {
    dh_ctx *ctx;
    dh_profile *profile;
    dh_status st;
} fact_list;

static void add(fact_list *list, const char *name, const char *value)
{
    if (list->st == DH_OK) list->st = dh_profile_add_fact(list->ctx, list->profile, name, value);
}

static void add_number(fact_list *list, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add(list, name, text);
}

static void add_machine(fact_list *list, const dh_job *job)
{
    const dh_device *device = dh_device_find(job->device);
    char text[TEXT_BYTES];
    cpu_name(text);
    add(list, "machine.cpu", text);
    processors(text);
    add(list, "machine.processors", text);
    add(list, "dhelix", dh_version());
    add(list, "backend", device->describe(text, sizeof text));
    ranks_text(job, text);
    add(list, "ranks", text);
    gpu_comm_text(job, text);
    if (device->links) add(list, "parallel.gpu_comm", text);
    link_text(&job->link_local, text);
    add(list, "links.local", text);
    link_text(&job->link_cross, text);
    add(list, "links.cross", text);
}

/* Shapes are in the keys of operators. */
dh_status dh_profile_of_job(dh_ctx *ctx, const dh_job *job, const char *name, dh_profile **profile)
{
    fact_list list = {.ctx = ctx};
    DH_TRY(dh_profile_create(ctx, name, &list.profile));
    add_machine(&list, job);
    if (job->threads > 0)
        add_number(&list, "train.threads", job->threads);
    else
        add(&list, "train.threads", "auto");
    add(&list, "train.dtype", dh_dtype_name(job->dtype));
    add_number(&list, "parallel.dp", job->dp);
    add_number(&list, "parallel.tp", job->tp);
    add_number(&list, "parallel.pp", job->pp);
    add_number(&list, "parallel.cp", job->cp);
    add_number(&list, "parallel.ep", job->ep);
    add_number(&list, "topology.ranks_per_node", job->ranks_per_node);
    if (list.st == DH_OK)
        *profile = list.profile;
    else
        dh_profile_destroy(list.profile);
    return list.st;
}
