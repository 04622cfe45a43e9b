/* A job's predicted step beside that of plainer ones: in strategy sequential, and without the
 * settings that hide communication. A gain within the error of predictions is no promise. */
#include <stdio.h>
#include <string.h>

#include "train/simulation.h"

/* TUNING: mean errors of what was predicted beside what was measured. */
typedef struct error_row {
    double error;
    const char *unit; /* of 100 times the error */
    const char *source;
} error_row;
static const error_row on_cluster = {
    0.043, "points",
    "the mean error of speed-ups on a cluster (dhelix validate dhelix-context-speedups)"};
static const error_row on_profile = {
    0.051, "%",
    "the mean error of steps by a profile, compared with measured ones (bench/overlap)"};
static const error_row on_estimates = {
    0.051, "%",
    "the mean error of steps by a profile: by estimates, as here, it may be more (dhelix "
    "profile measures)"};

static const error_row *error_of(const dh_resolved *job)
{
    if (job->cluster) return &on_cluster;
    return strcmp(job->recipe.costs->name, "estimates") == 0 ? &on_estimates : &on_profile;
}

const char *dh_gain_name(dh_gain gain)
{
    static const char *const names[] = {[DH_GAIN_FASTER] = "faster",
                                        [DH_GAIN_UNSURE] = "may be slower",
                                        [DH_GAIN_NONE] = "as long",
                                        [DH_GAIN_SLOWER] = "slower"};
    return names[gain];
}

dh_gain dh_gain_of(int64_t own_ns, int64_t other_ns, double error)
{
    if (own_ns == other_ns) return DH_GAIN_NONE;
    if (own_ns > other_ns) return DH_GAIN_SLOWER;
    return (double)other_ns > (1 + error) * (double)own_ns ? DH_GAIN_FASTER : DH_GAIN_UNSURE;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static dh_status step_of(dh_ctx *ctx, const dh_resolved *job, int64_t *step_ns)
{
    const dh_train_simulation how = {.sim.sums = true};
    dh_sim *sim;
    DH_TRY(dh_train_simulate(ctx, job, &how, &sim));
    *step_ns = sim->step_ns;
    dh_sim_destroy(sim);
    return DH_OK;
}

static dh_status step_of_job(dh_ctx *ctx, const dh_job *job, const dh_resolved *from,
                             int64_t *step_ns)
{
    const dh_resolve_options how = {
        .cluster = from->cluster, .room_bytes = from->room_bytes, .quiet = true};
    dh_resolved *other;
    DH_TRY(dh_job_resolve(ctx, job, &how, &other));
    const dh_status st = step_of(ctx, other, step_ns);
    dh_resolved_destroy(other);
    return st;
}

/* ---- plainer jobs ---------------------------------------------------------------------------- */

static bool is_sequential(const dh_job *job)
{
    size_t n;
    return strcmp(job->strategy, dh_strategies(&n)[0].name) == 0 &&
           strcmp(job->overlap_policy, "auto") == 0;
}

/* Takes out what hides communication and is no strategy, and names it. */
static bool leave_out(const dh_resolved *from, dh_job *job, char *named, size_t cap)
{
    static char one_copy[] = "1f1b";
    const dh_schedule *schedule = from->schedule;
    dh_str text = DH_STR_INIT;
    if (schedule && schedule->n_copies > 1 && strcmp(schedule->name, job->schedule) == 0) {
        dh_str_printf(&text, ", parallel.schedule=%s", job->schedule);
        job->schedule = one_copy;
    }
    if (job->post_validation) {
        dh_str_printf(&text, ", optimizer.post_validation=true");
        job->post_validation = false;
    }
    if (dh_fuse_pieces(job->fuse) > 0) {
        dh_str_printf(&text, ", optimizer.fuse=%lld", (long long)dh_fuse_pieces(job->fuse));
        job->fuse = DH_FUSE_OFF;
    }
    if (job->cp > 1 && job->cp_linear == DH_CP_LINEAR_LASP1) {
        dh_str_printf(&text, ", parallel.cp_linear=lasp1");
        job->cp_linear = DH_CP_LINEAR_LASP2;
    }
    snprintf(named, cap, "%s", text.text ? text.text + 2 : "");
    dh_str_fini(&text);
    return named[0] != '\0';
}

/* A job that cannot be had is not compared with. */
static dh_status compare(dh_ctx *ctx, const dh_resolved *resolved, const dh_job *plainer,
                         dh_beside *b, dh_beside_other *other)
{
    const dh_status st = step_of_job(ctx, plainer, resolved, &other->step_ns);
    other->known = st == DH_OK;
    if (other->known) other->gain = dh_gain_of(b->own_ns, other->step_ns, b->error);
    if (st != DH_EINVAL && st != DH_EUNSUPPORTED) return st;
    dh_log(DH_LOG_DEBUG, "not beside a plainer job: %s", ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

dh_status dh_resolved_beside(dh_ctx *ctx, const dh_resolved *resolved, dh_beside *b)
{
    size_t n;
    char first[32], policy[] = "auto";
    dh_job sequential = resolved->job;
    *b = (dh_beside){.own_ns = 0};
    snprintf(first, sizeof first, "%s", dh_strategies(&n)[0].name);
    sequential.strategy = first;
    sequential.overlap_policy = policy;
    dh_job plain = sequential;
    const bool has_strategy = !is_sequential(&resolved->job);
    const bool has_settings = leave_out(resolved, &plain, b->settings, sizeof b->settings);
    if (resolved->job.ranks == 1 || (!has_strategy && !has_settings)) return DH_OK;
    b->error = error_of(resolved)->error;
    b->error_unit = error_of(resolved)->unit;
    b->error_source = error_of(resolved)->source;
    DH_TRY(step_of(ctx, resolved, &b->own_ns));
    if (has_strategy) DH_TRY(compare(ctx, resolved, &sequential, b, &b->sequential));
    return has_settings ? compare(ctx, resolved, &plain, b, &b->plain) : DH_OK;
}
