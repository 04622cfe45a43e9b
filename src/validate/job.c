/* Shipped jobs, simulated by what `dhelix simulate` calls. */
#include "validate/job.h"

#include "base/c_locale.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config/shipped.h"

/* NULL: none, its times are its own. */
static const char *cluster_of(const dh_validation *v, const dh_shipped_job *job)
{
    return v->cluster && job->cluster ? v->cluster : job->cluster;
}

static size_t n_sets(const dh_shipped_job *job)
{
    size_t n = 0;
    while (n < DH_SHIPPED_SETS && job->set[n]) n++;
    return n;
}

dh_status dh_shipped_set(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job, const char *fmt, ...)
{
    char text[96];
    const size_t n = n_sets(job);
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    DH_CHECK(n < DH_SHIPPED_SETS, "%s is one setting too many", text);
    job->set[n] = dh_arena_strdup(v->arena, text);
    return job->set[n] ? DH_OK : dh_no_memory(ctx);
}

bool dh_shipped_is_there(const char *file)
{
    return dh_shipped_job_find(file) != NULL;
}

dh_status dh_shipped_words(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job, const char *words)
{
    if (!words) return dh_no_memory(ctx);
    for (const char *at = words + strspn(words, " "); *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " "), first = n_sets(job);
        DH_CHECK(first < DH_SHIPPED_SETS);
        job->set[first] = dh_arena_printf(v->arena, "%.*s", (int)n, at);
        if (!job->set[first]) return dh_no_memory(ctx);
        at += n;
    }
    return DH_OK;
}

const char *dh_shipped_command(const dh_validation *v, const dh_shipped_job *job)
{
    const char *cluster = cluster_of(v, job);
    const char *text =
        dh_arena_printf(v->arena, "dhelix simulate validation/jobs/%s.yaml%s%s", job->file,
                        cluster ? " --cluster " : "", cluster ? cluster : "");
    for (size_t i = 0; text && i < n_sets(job); i++)
        text = dh_arena_printf(v->arena, "%s --set %s", text, job->set[i]);
    return text;
}

/* ---- simulating ----------------------------------------------------------------------------- */

static dh_status parse(dh_ctx *ctx, const dh_shipped_job *job, dh_job **parsed)
{
    const dh_embedded *f = dh_shipped_job_find(job->file);
    if (f)
        return dh_job_parse(ctx, (const char *)f->text, f->n_bytes, f->name, NULL, job->set,
                            n_sets(job), parsed);
    return dh_fail(ctx, DH_EMISSING, "no job of published tables is called %s", job->file);
}

dh_status dh_shipped_read(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                          dh_shipped_run *run)
{
    *run = (dh_shipped_run){.job = NULL};
    DH_TRY(parse(ctx, job, &run->job));
    if (!job->cluster) return DH_OK;
    return dh_validation_cluster(ctx, v, job->cluster, &run->cluster);
}

dh_status dh_shipped_simulate(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                              dh_shipped_run *run)
{
    DH_TRY(dh_shipped_read(ctx, v, job, run));
    if (v->lists) return dh_fail(ctx, DH_EUNSUPPORTED, "jobs are listed");
    const dh_resolve_options how = {.cluster = run->cluster, .quiet = true};
    DH_TRY(dh_job_resolve(ctx, run->job, &how, &run->resolved));
    return dh_train_simulate(ctx, run->resolved, &(dh_train_simulation){.sim.sums = true},
                             &run->sim);
}

void dh_shipped_fini(dh_shipped_run *run)
{
    dh_sim_destroy(run->sim);
    dh_resolved_destroy(run->resolved);
    dh_cluster_destroy(run->cluster);
    dh_job_destroy(run->job);
}

/* ---- its step -------------------------------------------------------------------------------- */

static double peak_of(const dh_shipped_run *run)
{
    return run->job->dtype == DH_BF16 ? run->cluster->bf16_flops_per_s
                                      : run->cluster->f32_flops_per_s;
}

/* Of a rank's computation: forward and backward from end to end, and what the optimizer does. */
static double span_ns(const dh_sim_rank *r)
{
    int64_t first = INT64_MAX, last = 0, optimizer = 0;
    for (size_t i = 0; i < r->program->instrs.n; i++) {
        const dh_op *op = dh_instr_op(r->program, &r->program->instrs.at[i]);
        const dh_span *span = &r->spans[i];
        if (dh_op_info_of(op->type)->resource != DH_RES_COMPUTE) continue;
        if (op->phase == DH_PHASE_OPT) {
            optimizer += span->end_ns - span->met_ns;
            continue;
        }
        first = DH_MIN(first, span->met_ns);
        last = DH_MAX(last, span->end_ns);
    }
    return (double)(last - DH_MIN(first, last) + optimizer);
}

static double period_ns(const dh_sim *sim)
{
    double longest = 0;
    for (size_t k = 0; k < sim->n_classes; k++) {
        double ns = span_ns(&sim->ranks[k]);
        const double shorter = sim->shorter ? span_ns(&sim->shorter->ranks[k]) : ns;
        dh_sim_extend(sim, &shorter, 1, &ns);
        longest = DH_MAX(longest, ns);
    }
    return longest;
}

static dh_status measure_shares(dh_ctx *ctx, const dh_sim *sim, dh_shipped_step *step)
{
    const dh_timeline *times = &sim->ranks[0].times;
    step->hidden_share = dh_timeline_hidden_share(times);
    if (times->alone_ns > 0)
        step->slowdown_share =
            (double)times->exposed_by_ns[DH_EXPOSED_SLOWDOWN] / (double)times->alone_ns;
    return dh_step_parts(ctx, sim, step->shares);
}

static dh_status measure_memory(dh_ctx *ctx, const dh_shipped_run *run, dh_shipped_step *step)
{
    dh_system_memory *each;
    DH_TRY(dh_train_system_memory(ctx, run->job, run->sim, &each));
    for (size_t k = 0; each && k < run->sim->n_classes; k++)
        step->memory_bytes = DH_MAX(step->memory_bytes, (double)each[k].peak_bytes);
    if (each) step->first_stage = each[0];
    return DH_OK;
}

dh_status dh_shipped_measure(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                             dh_shipped_step *step)
{
    dh_shipped_run run;
    dh_status st = dh_shipped_simulate(ctx, v, job, &run);
    if (st == DH_OK) {
        *step = (dh_shipped_step){.ns = (double)run.sim->step_ns,
                                  .period_ns = period_ns(run.sim),
                                  .devices = (double)run.sim->n_ranks,
                                  .peak_flops_per_s = peak_of(&run),
                                  .model_flops = dh_megatron_model_flops(run.job),
                                  .causal_flops = run.sim->model_flops,
                                  .hardware_flops = dh_megatron_hardware_flops(run.job),
                                  .device_bytes = run.cluster->memory_bytes,
                                  .n_params = (double)dh_model_n_params(&run.job->model)};
        st = measure_memory(ctx, &run, step);
        if (st == DH_OK) st = measure_shares(ctx, run.sim, step);
    }
    dh_shipped_fini(&run);
    return st;
}

dh_status dh_shipped_name_row(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job,
                              double step_ns)
{
    dh_validation_row *row = &v->rows[v->n_rows - 1];
    row->command = dh_shipped_command(v, job);
    row->step_ns = step_ns;
    if (!row->command) return dh_no_memory(ctx);
    dh_shipped_run run;
    const dh_status st = dh_shipped_read(ctx, v, job, &run);
    if (st == DH_OK && run.cluster) dh_step_facts_of(run.job, run.cluster, &row->facts);
    dh_shipped_fini(&run);
    return st;
}

/* ---- FLOPs ----------------------------------------------------------------------------------- */

/* A token's multiplications in a layer: its matrices, and scores with all tokens, made and used. */
static double matrices(const dh_model *m)
{
    const double width = (double)m->width;
    return 2 * width * (double)((m->n_heads + m->n_kv_heads) * m->head_dim) +
           width * (double)m->ffn_width * (m->act == DH_ACT_GELU_TANH ? 2 : 3);
}

static double scores(const dh_job *job)
{
    return 2 * (double)job->seq_len * (double)(job->model.n_heads * job->model.head_dim);
}

/* Matrices and scores so many times, the head three times. */
static double flops_of(const dh_job *job, double matrix_times, double score_times)
{
    const dh_model *m = &job->model;
    const double tokens = (double)(job->global_batch * job->seq_len);
    const double layer = matrix_times * matrices(m) + score_times * scores(job);
    return 2 * tokens * (layer * (double)m->n_layers + 3 * (double)(m->width * m->vocab));
}

double dh_megatron_model_flops(const dh_job *job)
{
    return flops_of(job, 3, 3);
}

/* A full recomputation is once more. With that of attention the paper counts scores six times
 * (72 B L s h^2 (1 + s/3h + ...)), which is kept here since its HFU is. */
double dh_megatron_hardware_flops(const dh_job *job)
{
    const double full = job->recompute == DH_RECOMPUTE_FULL;
    return flops_of(job, 3 + full, 3 + full + 3 * (job->recompute == DH_RECOMPUTE_ATTENTION));
}
