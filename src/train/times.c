/* Where the time of steps went: metrics, summary, trace files. */
#include "train/run.h"

static const dh_span *spans_of(const dh_run *run)
{
    return dh_exec_spans(run->session->train_exec);
}

static dh_status write_trace(dh_ctx *ctx, const dh_run *run)
{
    DH_TRY(dh_dir_create(ctx, run->job->out_dir)); /* this rank's machine may have its own */
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/trace-rank%lld.json", run->job->out_dir, (long long)run->ranks.rank);
    dh_status st = path.failed ? dh_no_memory(ctx)
                               : dh_trace_write(ctx, path.text, run->session->train, spans_of(run));
    dh_str_fini(&path);
    return st;
}

/* One rank has nothing to hide, and rank 0 speaks for the others. */
static bool counts_times(const dh_run *run)
{
    return run->ranks.rank == 0 && run->ranks.n > 1;
}

/* Own times of the training program's instructions, by the profile that the run rests on: asked for
 * once a program. */
static dh_status read_profile(dh_ctx *ctx, dh_run *run)
{
    const dh_program *program = run->session->train;
    if (!run->profile || run->measured_of == program) return DH_OK;
    free(run->measured_ns);
    run->measured_of = NULL;
    run->measured_ns = calloc(program->instrs.n + 1, sizeof *run->measured_ns);
    if (!run->measured_ns) return dh_no_memory(ctx);
    DH_TRY(dh_timeline_measured(ctx, program, run->recipe->costs, run->measured_ns));
    run->measured_of = program;
    return DH_OK;
}

dh_status dh_run_time_step(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    if (job->trace_step > 0 && run->step == DH_MIN(job->trace_step, job->steps))
        DH_TRY(dh_ranks_agree(ctx, &run->ranks, write_trace(ctx, run)));
    if (!counts_times(run)) return DH_OK;
    if (!run->session->switched) DH_TRY(read_profile(ctx, run));
    if (!run->session->switched)
        DH_TRY(dh_timeline_observe(ctx, run->session->train, spans_of(run), run->measured_ns,
                                   &run->times));
    if (run->n_measured > 1) /* the first step warms up */
        dh_timeline_add(&run->total_times, &run->times);
    return DH_OK;
}

static void set_ms(json_t *object, const char *key, int64_t ns)
{
    json_object_set_new(object, key, json_real((double)ns * 1e-6));
}

static void set_times(json_t *object, const dh_timeline *t)
{
    for (int e = 0; e < DH_N_ENGINE; e++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms", dh_engine_name((dh_engine)e));
        set_ms(object, key, e == DH_ENGINE_COMPUTE ? dh_timeline_compute_ns(t) : t->busy_ns[e]);
    }
    set_ms(object, "alone_ms", t->alone_ns);
    set_ms(object, "hidden_ms", t->hidden_ns);
    set_ms(object, "exposed_ms", t->exposed_ns);
    for (int i = 0; i < DH_N_WAITING; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms", dh_waiting_name((dh_waiting)i));
        set_ms(object, key, t->waits_ns[i]);
    }
}

void dh_run_report_times(const dh_run *run, json_t *line)
{
    if (counts_times(run)) set_times(line, &run->times);
}

void dh_run_summarize_times(const dh_run *run, json_t *summary)
{
    dh_times_summarize(&run->total_times, summary);
}

void dh_times_summarize(const dh_timeline *t, json_t *summary)
{
    json_t *times = t->span_ns > 0 ? json_object() : NULL;
    json_t *causes = times ? json_object() : NULL;
    if (!causes) {
        json_decref(times);
        return;
    }
    set_ms(times, "span_ms", t->span_ns);
    set_times(times, t);
    set_ms(times, "idle_ms", t->idle_ns);
    for (int i = 0; i < DH_N_EXPOSURE; i++)
        set_ms(causes, dh_exposure_name((dh_exposure)i), t->exposed_by_ns[i]);
    json_object_set_new(times, "exposed_by_ms", causes);
    json_object_set_new(summary, "times", times);
    json_object_set_new(summary, "hidden_share", json_real(dh_timeline_hidden_share(t)));
}
