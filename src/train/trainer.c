/* The training loop: load, step, report, validate, checkpoint. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/stop.h"
#include "train/resolve.h"
#include "train/room.h"
#include "train/run.h"

/* ---- set-up ------------------------------------------------------------------------------ */

dh_session_spec dh_run_session(const dh_run *run)
{
    dh_session_spec spec = dh_train_session(run->job, run->recipe);
    spec.eval = spec.eval && run->val_data;
    spec.groups = run->groups;
    spec.n_groups = run->n_groups;
    return spec;
}

/* Of processes, whose machines may have other cores: `train.threads` is each one's own. */
static dh_status compare_threads(dh_ctx *ctx, const dh_run *run)
{
    const double n = run->n_threads;
    double sums[2] = {n, n * n};
    if (!run->saver.apart) return DH_OK;
    DH_TRY(dh_ranks_sum(ctx, &run->ranks, sums, 2));
    if (run->ranks.rank == 0 && sums[0] * sums[0] != sums[1] * (double)run->ranks.n)
        dh_log(DH_LOG_WARN,
               "ranks compute with different numbers of threads (rank 0 with %d, all together with "
               "%.0f): train.threads makes them alike, and the run one that can be repeated",
               run->n_threads, sums[0]);
    return DH_OK;
}

static dh_status create_session(dh_ctx *ctx, dh_run *run)
{
    dh_session_spec spec = dh_run_session(run);
    spec.comm = run->ranks.comm;
    spec.rank = run->ranks.rank;
    spec.local_rank = run->local_rank;
    spec.n_local_ranks = run->n_local_ranks;
    spec.turns = run->turns;
    dh_together_rank rank = {.all = run->together, .ranks = &run->ranks, .job = run->job};
    if (run->together) {
        spec.places = run->together->places;
        spec.built = dh_together_verify;
        spec.built_user = &rank;
    }
    run->n_micro = spec.recipe.n_micro;
    DH_TRY(spec.device->bind_rank(ctx, run->local_rank, run->n_local_ranks, run->job->threads,
                                  &run->n_threads));
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, dh_session_create(ctx, &spec, &run->session)));
    DH_TRY(compare_threads(ctx, run));
    if (!run->saver.apart) return DH_OK;
    const dh_room own = dh_room_of_rank(&spec, run->session->slab_bytes);
    return dh_ranks_room(ctx, &run->ranks, &own); /* the slab is reserved, and not touched yet */
}

/* Masters, moments, and where the run stands. */
static dh_status find_state(dh_ctx *ctx, dh_run *run)
{
    bool resumed;
    if (run->carried) return dh_run_take_up(ctx, run);
    DH_TRY(dh_run_resume(ctx, run, &resumed));
    return resumed ? DH_OK : dh_run_init_weights(ctx, run);
}

static dh_status set_up(dh_ctx *ctx, dh_run *run, dh_train_result *result)
{
    const dh_job *job = run->job;
    DH_TRY(create_session(ctx, run));
    DH_TRY(dh_saver_open(ctx, run));
    run->flops_per_token = dh_model_flops_per_token(&job->model, job->seq_len);
    run->step_tokens_per_s = calloc(DH_MEASURED_STEPS, sizeof *run->step_tokens_per_s);
    run->op_ns = calloc(DH_N_OP_TYPE, sizeof *run->op_ns);
    if (!run->step_tokens_per_s || !run->op_ns) return dh_no_memory(ctx);
    if (job->model.n_experts)
        DH_TRY(dh_load_record_create(ctx, &job->model, run->n_micro, &run->load));
    DH_TRY(dh_run_take_base(ctx, run));
    DH_TRY(dh_run_claim_folder(ctx, run));
    DH_TRY(find_state(ctx, run));
    result->resumed_at = run->step;
    result->from_memory = run->carried != NULL;
    run->is_set_up = true;
    return dh_ranks_agree(ctx, &run->ranks, dh_run_open_outputs(ctx, run));
}

static void tear_down(dh_run *run, dh_status st)
{
    dh_saver_close(run);
    dh_run_release_folder(run);
    if (st == DH_ECOMM && run->remains) dh_run_leave(run, run->remains);
    dh_session_destroy(run->session);
    free(run->step_tokens_per_s);
    free(run->op_ns);
    free(run->measured_ns);
    dh_vec_fini(&run->proved);
    dh_load_record_destroy(run->load);
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Samples of a step go to data-parallel ranks micro-batch by micro-batch, so that the
 * step as a whole sees the same ones whatever the mesh. */
static dh_step step_of(dh_run *run)
{
    const dh_job *job = run->job;
    const int64_t dp_rank = dh_mesh_coord(&run->mesh, run->ranks.rank).dp;
    return (dh_step){.step = run->step,
                     .first_sample =
                         run->left_out + run->step * job->global_batch + dp_rank * job->micro_batch,
                     .sample_stride = job->dp * job->micro_batch,
                     .seed = job->seed,
                     .lr = dh_job_lr(job, run->step),
                     .beta1 = job->beta1,
                     .beta2 = job->beta2,
                     .eps = job->eps,
                     .weight_decay = job->weight_decay,
                     .grad_clip = job->grad_clip,
                     .router_bias_rate = job->router_bias_rate,
                     .loss_rows = run->work.documents > 0 ? (double)run->work.tokens : 0,
                     .source = dh_run_source(run->train_data),
                     .capture = (dh_step_capture)job->capture,
                     .hook = run->fault ? dh_fault_at_instr : NULL,
                     .hook_user = run->fault,
                     .hold = run->saver.n_threads > 0 ? dh_saver_hold : NULL,
                     .hold_user = &run->saver};
}

/* Whether the last virtual stage of a copy of the model is on this rank's stage. */
static bool holds_head(const dh_run *run, int32_t copy)
{
    const dh_schedule *s = run->recipe->schedule;
    const int64_t pp = dh_mesh_coord(&run->mesh, run->ranks.rank).pp;
    return s ? s->rank_of[(copy + 1) * s->n_stages - 1] == (int32_t)pp : pp == run->mesh.pp - 1;
}

/* Every token's loss is counted by one rank: on the last stage, the first of its
 * tensor-parallel group. Evaluation goes through the first copy of the model, training through
 * all: *n_micro of a step's micro-batches are those of this rank. */
static bool counts_loss(const dh_run *run, bool training, int64_t *n_micro)
{
    const dh_schedule *s = run->recipe->schedule;
    bool holds = holds_head(run, 0);
    *n_micro = 1; /* as many on all ranks that count */
    for (int32_t copy = 0; training && s && s->n_copies > 1 && copy < s->n_copies; copy++) {
        if (copy == 0) *n_micro = 0;
        for (int32_t j = 0; holds_head(run, copy) && j < s->n_micro; j++)
            *n_micro += s->copy_of[j] == copy;
        holds |= holds_head(run, copy);
    }
    return holds && dh_mesh_coord(&run->mesh, run->ranks.rank).tp == 0;
}

static dh_status execute(dh_ctx *ctx, dh_run *run, const dh_step *step)
{
    if (run->session->switched) return dh_run_grouped_step(ctx, run, step);
    return dh_exec_run(ctx, run->session->train_exec, step);
}

/* And what it sends, by the count that links are paced by (comm.h). */
static dh_status execute_counted(dh_ctx *ctx, dh_run *run, const dh_step *step)
{
    const dh_comm *comm = run->ranks.comm;
    for (int e = 0; comm && e < DH_N_ENGINE; e++)
        run->sent_bytes[e] = -dh_comm_sent_bytes(comm, (dh_engine)e);
    DH_TRY(execute(ctx, run, step));
    for (int e = 0; comm && e < DH_N_ENGINE; e++)
        run->sent_bytes[e] += dh_comm_sent_bytes(comm, (dh_engine)e);
    return DH_OK;
}

/* The optimizer leaves weights alone when the gradient norm is not finite. A fused one without
 * clipping leaves those alone whose own gradients are not. So the same step can be run again with
 * every output checked. The first operator to produce a non-finite value is the one to name. */
static dh_status diagnose(dh_ctx *ctx, dh_run *run, const dh_step *step)
{
    dh_step again = *step;
    again.check_finite = true;
    dh_status st = execute(ctx, run, &again);
    if (st == DH_OK)
        st = dh_fail(ctx, DH_EDIVERGED,
                     "loss is %g and gradient norm %g, yet every operator's "
                     "output is finite: their sum overflowed",
                     run->loss, run->grad_norm);
    (void)st;
    dh_ctx_while(ctx, "training step %lld", (long long)run->step + 1);
    if (run->ranks.comm) dh_comm_abort(run->ranks.comm, ctx->message);
    return ctx->status;
}

void dh_run_add_operator_times(dh_run *run, const dh_program *p, dh_exec *exec)
{
    const dh_span *spans = dh_exec_spans(exec);
    for (size_t i = 0; i < p->instrs.n; i++)
        run->op_ns[dh_instr_op(p, &p->instrs.at[i])->type] +=
            (double)(spans[i].end_ns - spans[i].start_ns);
}

static int64_t n_expert_ranks(const dh_run *run)
{
    return dh_mesh_group_size(&run->mesh, dh_mesh_expert_group(&run->mesh));
}

static void report_experts(const dh_run *run, json_t *line)
{
    json_object_set_new(line, "aux_loss", json_real(run->aux_loss));
    json_object_set_new(line, "expert_load", json_real(run->expert_load));
    if (n_expert_ranks(run) > 1) json_object_set_new(line, "rank_load", json_real(run->rank_load));
}

/* Padding as a share of all tokens that were computed. */
static double padding_share(int64_t tokens, int64_t padding)
{
    return (double)padding / (double)(tokens + padding);
}

static void report_documents(const dh_step_work *work, json_t *line)
{
    json_object_set_new(line, "documents", json_integer(work->documents));
    json_object_set_new(line, "padding", json_real(padding_share(work->tokens, work->padding)));
}

/* Of rank 0, under the names that simulations have for it. */
static void report_links(const dh_run *run, json_t *object)
{
    json_object_set_new(object, "local_bytes", json_integer(run->sent_bytes[DH_ENGINE_LOCAL]));
    json_object_set_new(object, "cross_bytes", json_integer(run->sent_bytes[DH_ENGINE_CROSS]));
}

static dh_status report(dh_ctx *ctx, dh_run *run, const dh_step *step, double seconds)
{
    if (run->ranks.rank != 0) return DH_OK;
    const dh_job *job = run->job;
    double tokens = (double)run->work.tokens;
    double model_flops_per_s = run->work.flops / seconds;
    dh_progress_line line = {run->step,      run->loss,        step->lr,
                             run->grad_norm, tokens / seconds, seconds * 1e3};
    dh_progress_step(&run->progress, &line);
    json_t *object =
        json_pack("{sI sf sf sf sf sf sf sI}", "step", (json_int_t)run->step, "loss", run->loss,
                  "lr", step->lr, "grad_norm", run->grad_norm, "tokens_per_s", tokens / seconds,
                  "step_ms", seconds * 1e3, "model_flops_per_s", model_flops_per_s, "slab_bytes",
                  (json_int_t)run->session->slab_bytes);
    if (object && run->gemm_peak > 0)
        json_object_set_new(object, "peak_fraction", json_real(model_flops_per_s / run->gemm_peak));
    if (object && run->ranks.comm) report_links(run, object);
    if (object && run->work.documents > 0) report_documents(&run->work, object);
    if (object && job->model.n_experts) report_experts(run, object);
    if (object) dh_run_report_times(run, object);
    if (object && run->session->switched) dh_run_report_switch(run, object);
    DH_TRY(dh_metrics_write(ctx, &run->metrics, object));
    const dh_train_options *o = run->options;
    if (o->on_step) o->on_step(o->self, run->metrics.line.text, run->metrics.line.len - 1);
    return DH_OK;
}

static dh_status record_load(dh_ctx *ctx, dh_run *run)
{
    DH_TRY(dh_exec_choices(ctx, run->session->train_exec, dh_load_record_choices, run->load));
    return dh_load_record_end_step(ctx, &run->ranks, n_expert_ranks(run), run->load,
                                   &run->expert_load, &run->rank_load);
}

/* Share the facts that all ranks need after a step: the loss, and whether someone asked to stop. */
static dh_status share_step(dh_ctx *ctx, dh_run *run)
{
    double values[7] = {0, 0, dh_stop_asked(run->options->stop) ? 1 : 0};
    int64_t n_micro;
    dh_saver_tell(run, &values[5]);
    if (run->session->switched) {
        values[0] = run->switched.loss;
        values[1] = run->switched.rows;
        values[4] = 1; /* experts are not among what is switched */
    } else if (counts_loss(run, true, &n_micro)) {
        DH_TRY(dh_session_loss(ctx, run->session, &values[0], &values[1]));
        DH_TRY(dh_session_aux_loss(ctx, run->session, &values[3]));
        values[3] *= (double)n_micro;
        values[4] = (double)n_micro;
    }
    DH_TRY(dh_ranks_sum(ctx, &run->ranks, values, DH_COUNTOF(values)));
    dh_saver_hear(run, &values[5]);
    run->loss = values[1] > 0 ? values[0] / values[1] : 0;
    run->aux_loss = values[3] / values[4];
    run->stopping = values[2] > 0;
    if (run->load) DH_TRY(record_load(ctx, run));
    return dh_session_grad_norm(ctx, run->session, &run->grad_norm);
}

static dh_status train_step(dh_ctx *ctx, dh_run *run, bool *went_back)
{
    DH_TRY(dh_run_step_work(ctx, run, &run->work));
    dh_step step = step_of(run);
    int64_t start = dh_now_ns();
    dh_run_begin_step(run);
    run->in_step = true;
    DH_TRY(execute_counted(ctx, run, &step));
    DH_TRY(share_step(ctx, run));
    dh_run_end_step(run, dh_now_ns() - start);
    double seconds = (double)(dh_now_ns() - start) * 1e-9;
    DH_TRY(dh_run_judge_step(ctx, run, went_back));
    if (*went_back) return DH_OK;
    if (!isfinite(run->loss) || !isfinite(run->grad_norm)) return diagnose(ctx, run, &step);
    run->step++;
    run->in_step = false;
    if (run->n_measured > 0 && !run->session->switched) /* the first step warms caches up */
        dh_run_add_operator_times(run, run->session->train, run->session->train_exec);
    run->step_tokens_per_s[run->n_measured++ % DH_MEASURED_STEPS] =
        (double)run->work.tokens / seconds;
    run->all_tokens += run->work.tokens;
    run->all_documents += run->work.documents;
    run->all_padding += run->work.padding;
    DH_TRY(dh_run_time_step(ctx, run));
    return report(ctx, run, &step, seconds);
}

/* ---- validation ----------------------------------------------------------------------------- */

/* How many sequences validation reads: eval.batches batches of train.batch, or all whole
 * batches there are. It does not depend on the mesh or on train.micro_batch. */
static int64_t validation_sequences(const dh_run *run)
{
    const dh_job *job = run->job;
    const int64_t windows = dh_dataset_windows(run->val_data, job->seq_len);
    int64_t n =
        job->eval_batches > 0 ? DH_MIN(windows, job->eval_batches * job->global_batch) : windows;
    return n >= job->global_batch ? n - n % job->global_batch : n - n % job->micro_batch;
}

/* Whether some rank was asked to stop, as in share_step. */
static dh_status hear_stop(dh_ctx *ctx, dh_run *run)
{
    const volatile sig_atomic_t *stop = run->options->stop;
    double asked = dh_stop_asked(stop) ? 1 : 0;
    if (!stop || run->stopping) return DH_OK;
    DH_TRY(dh_ranks_sum(ctx, &run->ranks, &asked, 1));
    run->stopping = asked > 0;
    return DH_OK;
}

/* A validation that is cut short leaves no line of metrics: catch_up makes it again.
 *
 * Data-parallel ranks take every dp-th micro-batch; the losses are added up. As ranks may
 * need each other's experts, one without a micro-batch left takes the last one again, and
 * does not count it. */
static dh_status validate(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    const int64_t dp_rank = dh_mesh_coord(&run->mesh, run->ranks.rank).dp;
    const int64_t n_batches = validation_sequences(run) / job->micro_batch;
    dh_batch_source source = dh_run_source(run->val_data);
    double sums[2] = {0, 0};
    run->validation_cut = run->stopping;
    if (run->stopping) return DH_OK;
    if (run->session->gather) dh_saver_hold(&run->saver); /* it writes masters too */
    DH_TRY(dh_session_gather(ctx, run->session));
    for (int64_t first = 0; first < n_batches; first += job->dp) {
        double sum, rows;
        int64_t n_micro;
        const int64_t i = DH_MIN(first + dp_rank, n_batches - 1);
        DH_TRY(hear_stop(ctx, run));
        run->validation_cut = run->stopping;
        if (run->stopping) return DH_OK;
        DH_TRY(
            dh_session_eval_batch(ctx, run->session, &source, i * job->micro_batch, &sum, &rows));
        if (!counts_loss(run, false, &n_micro) || first + dp_rank >= n_batches) continue;
        sums[0] += sum;
        sums[1] += rows;
    }
    DH_TRY(dh_ranks_sum(ctx, &run->ranks, sums, 2));
    run->val_loss = sums[1] > 0 ? sums[0] / sums[1] : NAN;
    if (!isfinite(run->val_loss))
        return dh_fail(ctx, DH_EDIVERGED, "the validation loss after step %lld is %g",
                       (long long)run->step, run->val_loss);
    if (run->ranks.rank != 0) return DH_OK;
    dh_progress_note(&run->progress, "step %lld  validation loss %.4f over %lld sequences",
                     (long long)run->step, run->val_loss,
                     (long long)(n_batches * job->micro_batch));
    return dh_metrics_write(
        ctx, &run->metrics,
        json_pack("{sI sf}", "step", (json_int_t)run->step, "val_loss", run->val_loss));
}

static bool due(int64_t step, int64_t every, int64_t last)
{
    return every > 0 && (step % every == 0 || step == last);
}

static bool is_checkpoint_due(const dh_run *run)
{
    const dh_job *job = run->job;
    return due(run->step, job->checkpoint_every, job->checkpoint_last ? job->steps : 0);
}

/* The folder tells, whoever of the ranks are left. */
static dh_status find_saved(dh_ctx *ctx, const dh_run *run, uint8_t *saved)
{
    int64_t *steps;
    size_t n;
    bool told;
    DH_TRY(dh_metrics_find(ctx, run->job->out_dir, run->step, "loss", &told));
    if (!told && run->step > 0)
        dh_log(
            DH_LOG_WARN,
            "metrics.jsonl has no line of step %lld: a rank was lost that had a part of its loss",
            (long long)run->step);
    DH_TRY(dh_ckpt_list(ctx, run->job->out_dir, &steps, &n));
    for (size_t i = 0; i < n; i++) *saved |= steps[i] == run->step;
    free(steps);
    return DH_OK;
}

/* Make the validation that was due after the resumed step, if the earlier run ended before it. */
static dh_status catch_up_validation(dh_ctx *ctx, dh_run *run)
{
    bool found = false;
    dh_status st = DH_OK;
    if (!run->session->eval || !due(run->step, run->job->eval_every, run->job->steps)) return DH_OK;
    if (run->ranks.rank == 0)
        st = dh_metrics_find(ctx, run->job->out_dir, run->step, "val_loss", &found);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    uint8_t validated = found;
    DH_TRY(dh_ranks_broadcast(ctx, &run->ranks, &validated, sizeof validated));
    return validated ? DH_OK : validate(ctx, run);
}

/* Likewise, and of a run that lost ranks the checkpoint too. *saved: the run's newest checkpoint is
 * of that step. */
static dh_status catch_up(dh_ctx *ctx, dh_run *run, bool *saved)
{
    uint8_t found = false;
    dh_status st = DH_OK;
    *saved = true;
    if (run->step == 0) return DH_OK; /* nothing is due before the first step */
    DH_TRY(catch_up_validation(ctx, run));
    if (!run->carried) return DH_OK;
    if (run->ranks.rank == 0) st = find_saved(ctx, run, &found);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    DH_TRY(dh_ranks_broadcast(ctx, &run->ranks, &found, sizeof found));
    *saved = found;
    if (*saved || !is_checkpoint_due(run)) return DH_OK;
    *saved = true;
    return dh_run_save(ctx, run);
}

static dh_status loop(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    bool is_saved = true;
    if (run->options->on_start) run->options->on_start(run->options->self);
    ctx->stop = NULL; /* ranks agree when they stop, and what is saved is saved whole */
    DH_TRY(catch_up(ctx, run, &is_saved));
    int64_t saved = is_saved ? run->step : run->step - 1;
    dh_progress_start(&run->progress, run->step, job->steps, job->log_every,
                      run->options->quiet || run->ranks.rank != 0);
    while (run->step < job->steps && !run->stopping) {
        bool went_back;
        DH_TRY(train_step(ctx, run, &went_back));
        DH_TRY(dh_saver_check(ctx, run));
        if (went_back) {
            saved = run->step;
            continue;
        }
        if (run->session->eval && due(run->step, job->eval_every, job->steps))
            DH_TRY(validate(ctx, run));
        if (is_checkpoint_due(run)) {
            DH_TRY(dh_run_save(ctx, run));
            saved = run->step;
        }
    }
    dh_progress_end(&run->progress);
    const bool is_whole = run->step == job->steps;
    if (run->step > saved && (job->checkpoint_last || !is_whole)) DH_TRY(dh_run_save(ctx, run));
    DH_TRY(dh_run_finish_saving(ctx, run));
    if (run->load) DH_TRY(dh_load_record_gather(ctx, &run->ranks, run->load));
    if (run->step < job->steps || run->validation_cut)
        return dh_fail(ctx, DH_EINTERRUPTED,
                       "stopped after step %lld of %lld; the checkpoint is "
                       "%s, and the same command continues from it",
                       (long long)run->step, (long long)job->steps, run->checkpoint);
    return DH_OK;
}

/* ---- summary -------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Median over the steps of this run, except the first few, which warm up. */
static double median_tokens_per_s(dh_run *run)
{
    const size_t n_kept = DH_MIN(run->n_measured, (size_t)DH_MEASURED_STEPS);
    const size_t skip = n_kept < run->n_measured ? 0 : n_kept > 10 ? 3 : n_kept > 2 ? 1 : 0;
    const size_t n = n_kept - skip;
    if (n == 0) return 0;
    qsort(run->step_tokens_per_s + skip, n, sizeof(double), by_value);
    return run->step_tokens_per_s[skip + n / 2];
}

static json_t *operator_shares(const dh_run *run)
{
    json_t *shares = json_object();
    double total = 0;
    for (int i = 0; i < DH_N_OP_TYPE; i++) total += run->op_ns[i];
    for (int i = 0; shares && i < DH_N_OP_TYPE; i++)
        if (run->op_ns[i] > 0)
            json_object_set_new(shares, dh_op_info_of((dh_op_type)i)->name,
                                json_real(run->op_ns[i] / total));
    return shares;
}

static void summarize_communication(const dh_run *run, dh_train_result *result)
{
    const dh_timeline *t = &run->total_times;
    if (t->alone_ns == 0) return;
    result->hidden_share = dh_timeline_hidden_share(t);
    result->exposed_share = (double)t->exposed_ns / (double)t->span_ns;
}

static dh_status summarize(dh_ctx *ctx, dh_run *run, dh_train_result *result)
{
    result->primary = true;
    result->steps = run->step;
    result->loss = run->loss;
    result->val_loss = run->val_loss;
    result->slab_planned = run->session->slab_bytes;
    result->slab_peak = run->session->slab->peak;
    result->tokens_per_s = median_tokens_per_s(run);
    summarize_communication(run, result);
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s", run->checkpoint);
    json_t *object =
        json_pack("{sI sf sf sI sI si ss so}", "steps", (json_int_t)run->step, "loss", run->loss,
                  "tokens_per_s", result->tokens_per_s, "slab_planned_bytes",
                  (json_int_t)result->slab_planned, "slab_peak_bytes",
                  (json_int_t)result->slab_peak, "threads", run->n_threads, "checkpoint",
                  run->checkpoint, "operator_share", operator_shares(run));
    if (object && isfinite(run->val_loss))
        json_object_set_new(object, "val_loss", json_real(run->val_loss));
    if (object && run->gemm_peak > 0)
        json_object_set_new(object, "gemm_peak_flops_per_s", json_real(run->gemm_peak));
    if (object && run->all_documents > 0) {
        json_object_set_new(object, "documents", json_integer(run->all_documents));
        json_object_set_new(object, "padding",
                            json_real(padding_share(run->all_tokens, run->all_padding)));
    }
    if (object) dh_run_summarize_times(run, object);
    if (object && run->saver.n_saves > 0)
        json_object_set_new(object, "checkpoint_stall_ms",
                            json_real(dh_saver_stall_ns(&run->saver) * 1e-6));
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/summary.json", run->job->out_dir);
    if (path.failed) json_decref(object);
    dh_status st = path.failed ? dh_no_memory(ctx) : dh_json_write(ctx, path.text, object);
    dh_str_fini(&path);
    if (st != DH_OK || !run->load || run->load->n_steps == 0) return st;
    return dh_load_record_write(ctx, run->load, run->job->out_dir);
}

dh_status dh_run_train(dh_ctx *ctx, dh_run *run, dh_train_result *result)
{
    run->val_loss = NAN;
    *result = (dh_train_result){.val_loss = NAN, .hidden_share = NAN};
    dh_status st = set_up(ctx, run, result);
    if (st == DH_OK) {
        if (run->ranks.rank == 0) /* the others wait: their cores are like this rank's */
            run->gemm_peak =
                run->session->spec.device->gemm_peak(run->job->dtype) * (double)run->ranks.n;
        st = loop(ctx, run);
    }
    /* A run that was stopped while it read a checkpoint has nothing new to say. */
    if (run->is_set_up && run->ranks.rank == 0 && (st == DH_OK || st == DH_EINTERRUPTED)) {
        dh_ctx summary = DH_CTX_INIT;
        dh_status written = summarize(&summary, run, result);
        if (st == DH_OK && written != DH_OK) st = dh_fail(ctx, written, "%s", summary.message);
    }
    tear_down(run, st);
    return st;
}
