/* Loss spikes: the band of recent steps, and the way back from a step that leaves it.
 *
 * Going back follows PaLM (Chowdhery et al. 2022, section 5.1): continue from a checkpoint before
 * the spike and leave out the data between. */
#include "train/spikes.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/json_text.h"
#include "base/stop.h"
#include "train/run.h"
#include "weights/checkpoint.h"

/* ---- the band ------------------------------------------------------------------------------- */

/* TUNING: values that hardly differ make a band this wide at least, as a part of their median. */
static const double LEAST_SPREAD = 0.01;

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

double dh_band_limit(const dh_band *band, int64_t window, double deviations)
{
    double sorted[DH_SPIKE_MAX_WINDOW], spread = 0;
    if (band->n_seen < window) return INFINITY;
    memcpy(sorted, band->at, (size_t)window * sizeof *sorted);
    qsort(sorted, (size_t)window, sizeof *sorted, by_value);
    const double median = (sorted[(window - 1) / 2] + sorted[window / 2]) / 2;
    for (int64_t i = 0; i < window; i++) spread += fabs(sorted[i] - median) / (double)window;
    return median + deviations * fmax(spread, LEAST_SPREAD * fabs(median));
}

void dh_band_add(dh_band *band, int64_t window, double value)
{
    band->at[band->n_seen++ % window] = value;
}

/* ---- in a checkpoint ------------------------------------------------------------------------- */

/* Oldest first. */
static json_t *band_json(const dh_band *band, int64_t window)
{
    json_t *values = json_array();
    const int64_t n = DH_MIN(band->n_seen, window);
    for (int64_t i = band->n_seen - n; values && i < band->n_seen; i++)
        if (json_array_append_new(values, json_real(band->at[i % window])) != 0) {
            json_decref(values);
            return NULL;
        }
    return values;
}

dh_status dh_spikes_print(dh_ctx *ctx, const dh_spikes *spikes, int64_t window, char **text)
{
    json_t *object = json_pack("{s:I, s:o, s:o}", "went_back", (json_int_t)spikes->n_back, "loss",
                               band_json(&spikes->loss, window), "grad_norm",
                               band_json(&spikes->grad_norm, window));
    *text = dh_json_text(object, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    return *text ? DH_OK : dh_no_memory(ctx);
}

static bool read_band(const json_t *values, int64_t window, dh_band *band)
{
    *band = (dh_band){.n_seen = 0};
    if (!json_is_array(values)) return false;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        if (!json_is_number(value)) return false;
        dh_band_add(band, window, json_number_value(value));
    }
    return true;
}

dh_status dh_spikes_parse(dh_ctx *ctx, const char *text, size_t n_bytes, int64_t window,
                          dh_spikes *spikes)
{
    json_t *object;
    DH_TRY(dh_json_read(ctx, text, n_bytes, 0, NULL, &object));
    const json_t *n_back = json_object_get(object, "went_back");
    const bool ok = json_is_integer(n_back) && json_integer_value(n_back) >= 0 &&
                    read_band(json_object_get(object, "loss"), window, &spikes->loss) &&
                    read_band(json_object_get(object, "grad_norm"), window, &spikes->grad_norm);
    spikes->n_back = ok ? json_integer_value(n_back) : 0;
    json_decref(object);
    return ok ? DH_OK
              : dh_fail(ctx, DH_EFORMAT,
                        "not the bands of recent losses: went_back and lists of numbers loss and "
                        "grad_norm are wanted");
}

/* ---- a step outside -------------------------------------------------------------------------- */

/* The value that left its band, as rank 0 sees it: all ranks act alike. */
typedef struct spike {
    int32_t left, by_loss; /* whether something left its band, and whether the loss did */
    double value, limit;
} spike;

static bool leaves(double value, double limit)
{
    return !isfinite(value) || value > limit;
}

static spike judge(const dh_run *run)
{
    const dh_job *job = run->job;
    const dh_spikes *s = &run->spikes;
    const double loss = dh_band_limit(&s->loss, job->spike_window, job->spike_deviations);
    const double norm = dh_band_limit(&s->grad_norm, job->spike_window, job->spike_deviations);
    if (leaves(run->loss, loss)) return (spike){true, true, run->loss, loss};
    return (spike){leaves(run->grad_norm, norm), false, run->grad_norm, norm};
}

static void describe(const dh_run *run, const spike *s, char *text, size_t cap)
{
    const char *what = s->by_loss ? "loss" : "gradient norm";
    const int64_t step = run->step + 1;
    if (!isfinite(s->value))
        dh_snprintf(text, cap, "step %" PRId64 ": the %s is %g", step, what, s->value);
    else
        dh_snprintf(text, cap,
                    "step %" PRId64 ": the %s is %.4g, outside the band of the %" PRId64
                    " steps before it, which ends at %.4g",
                    step, what, s->value, run->job->spike_window, s->limit);
}

/* A loss is that of the weights before its step. A checkpoint of just those weights may hold the
 * cause of a high loss. It is set aside in favour of an older one, if there is one. */
static dh_status set_suspect_aside(dh_ctx *ctx, const dh_run *run, const spike *s)
{
    dh_status st = DH_OK;
    if (run->ranks.rank == 0 && s->by_loss)
        st = dh_ckpt_set_aside(ctx, run->job->out_dir, run->step);
    return dh_ranks_agree(ctx, &run->ranks, st);
}

static dh_status stop(dh_ctx *ctx, const dh_run *run, const char *what, const char *why)
{
    return dh_fail(ctx, DH_EDIVERGED,
                   "%s; %s. The same command continues from the newest checkpoint. Change "
                   "optimizer.lr, optimizer.grad_clip or spike.deviations, or set "
                   "spike.action=back, which leaves out the data of the spike",
                   what, why);
}

/* Remove the measured values and written lines of steps that are undone. */
static dh_status forget_undone(dh_ctx *ctx, dh_run *run, int64_t n_undone, const spike *s)
{
    run->n_measured -= DH_MIN(run->n_measured, (size_t)n_undone);
    if (run->ranks.rank != 0) return DH_OK;
    dh_metrics_close(&run->metrics);
    DH_TRY(dh_run_open_metrics(ctx, run));
    json_t *line =
        json_pack("{s:I, s:I, s:I, s:s}", "step", (json_int_t)run->step, "went_back",
                  (json_int_t)run->spikes.n_back, "left_out_samples", (json_int_t)run->left_out,
                  "left_band", s->by_loss ? "loss" : "grad_norm");
    return dh_metrics_write(ctx, &run->metrics, line);
}

/* A request to stop is heeded meanwhile, as on continuing a run: all ranks then end, and the same
 * command goes back anew. After it they agree again when they stop. */
static dh_status read_back(dh_ctx *ctx, dh_run *run, bool *resumed)
{
    const volatile sig_atomic_t *own = dh_stop_by(ctx, run->options->stop);
    run->is_set_up = false; /* until all of the checkpoint is there */
    const dh_status st = dh_run_resume(ctx, run, resumed);
    ctx->stop = own;
    if (st == DH_EINTERRUPTED) return dh_ctx_while(ctx, "going back from a spike");
    run->is_set_up = st == DH_OK && *resumed;
    return st;
}

static dh_status go_back(dh_ctx *ctx, dh_run *run, const spike *s, const char *what)
{
    const int64_t batch = run->job->global_batch, done = run->step;
    const int64_t next_sample = (done + 1) * batch + run->left_out;
    const int64_t n_back = run->spikes.n_back + 1;
    bool resumed;
    DH_TRY(read_back(ctx, run, &resumed));
    run->in_step = false;
    if (!resumed) return stop(ctx, run, what, "there is no checkpoint yet to go back to");
    run->spikes.n_back = n_back;
    run->left_out = next_sample - run->step * batch;
    if (run->ranks.rank == 0)
        dh_log(DH_LOG_WARN,
               "%s; back to step %" PRId64 " without the %" PRId64 " sequences since then", what,
               run->step, (done + 1 - run->step) * batch);
    return dh_ranks_agree(ctx, &run->ranks, forget_undone(ctx, run, done - run->step, s));
}

dh_status dh_run_judge_step(dh_ctx *ctx, dh_run *run, bool *went_back)
{
    const dh_job *job = run->job;
    char what[200];
    *went_back = false;
    if (job->spike_action == DH_SPIKE_OFF) return DH_OK;
    spike s = judge(run);
    DH_TRY(dh_ranks_broadcast(ctx, &run->ranks, &s, sizeof s));
    if (!s.left) {
        dh_band_add(&run->spikes.loss, job->spike_window, run->loss);
        dh_band_add(&run->spikes.grad_norm, job->spike_window, run->grad_norm);
        return DH_OK;
    }
    if (job->spike_action == DH_SPIKE_STOP && !isfinite(s.value)) return DH_OK; /* diagnosed */
    describe(run, &s, what, sizeof what);
    DH_TRY(dh_run_finish_saving(ctx, run)); /* which may be what is set aside, or gone back to */
    DH_TRY(set_suspect_aside(ctx, run, &s));
    if (job->spike_action == DH_SPIKE_STOP) return stop(ctx, run, what, "the run stops as asked");
    if (run->spikes.n_back >= job->spike_most)
        return stop(ctx, run, what, "the run has gone back as often as spike.most allows");
    *went_back = true;
    return go_back(ctx, run, &s, what);
}
