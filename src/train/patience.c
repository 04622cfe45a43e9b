/* How long ranks wait for each other where the job does not say: long while they set up, save
 * and validate, in proportion to the steps once some are known. */
#include <stdio.h>

#include "base/c_locale.h"
#include "train/run.h"

/* TUNING: 20 steps are far more than the delay of a rank with a busy neighbour. A minute is more
 * than a stalled disk or a suspended process takes, with steps of milliseconds. Not measured: too
 * long costs idle machines, too short a run that would have gone on. */
enum { LONG_S = 600, SHORT_S = 60, STEPS = 20 };

static const int64_t second_ns = INT64_C(1000000000);

const char dh_patience_reason[] = "no step is under way; parallel.timeout_s sets another limit";

int64_t dh_job_patience_ns(const dh_job *job)
{
    return job->timeout_s > 0 ? (int64_t)(job->timeout_s * 1e9) : LONG_S * second_ns;
}

int64_t dh_step_patience_ns(int64_t slowest_ns, char *why, size_t cap)
{
    dh_snprintf(why, cap,
                "%d times the slowest step, %.3g s, and at least %d; parallel.timeout_s "
                "sets another limit",
                STEPS, (double)slowest_ns * 1e-9, SHORT_S);
    return DH_MAX(SHORT_S * second_ns, STEPS * slowest_ns);
}

/* Slowest steps of ranks differ a little, and so their patience; the shortest one tells. */
void dh_run_begin_step(const dh_run *run)
{
    char why[160];
    if (!run->ranks.comm || run->job->timeout_s > 0 || run->slowest_step_ns == 0) return;
    const int64_t ns = dh_step_patience_ns(run->slowest_step_ns, why, sizeof why);
    dh_comm_set_timeout(run->ranks.comm, ns, why);
}

void dh_run_end_step(dh_run *run, int64_t step_ns)
{
    run->slowest_step_ns = DH_MAX(run->slowest_step_ns, step_ns);
    if (!run->ranks.comm || run->job->timeout_s > 0) return;
    dh_comm_set_timeout(run->ranks.comm, dh_job_patience_ns(run->job), dh_patience_reason);
}
