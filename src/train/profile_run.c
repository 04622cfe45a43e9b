/* Measuring a job's operators on its ranks and links: a program with probes, run a few
 * times. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/launch.h"
#include "train/profile.h"
#include "train/profiling.h"
#include "train/recipe.h"
#include "train/run.h"

/* TUNING: the median of 11 varies by a percent or two on a quiet machine; 3 are the fewest
 * that have a middle. */
enum { SAMPLES = 11, LEAST_SAMPLES = 3 };
static const double most_seconds = 60;

/* TUNING: rounds of samples, where times show that something else uses the machine. Of each
 * operator and pair the quietest round counts. */
enum { MOST_ROUNDS = 4 };

typedef struct measuring {
    dh_job job;           /* its vocabulary known */
    dh_run shared;        /* job, tokenizer, dataset */
    dh_probe_job *probes; /* [n_probes]: with the operators of every strategy */
    size_t n_probes;
    const dh_profile_options *options;
    bool wanted;              /* by this process; the ranks of all measure if one does */
    bool stores;              /* rank 0, before the others go on */
    dh_profile *profile;      /* facts; filled by rank 0 */
    bool done;                /* it was */
    dh_profile_doubts doubts; /* on rank 0: of all rounds together */
} measuring;

/* One rank at work. */
typedef struct rank_work {
    measuring *m;
    const dh_ranks *ranks;
    const dh_probe_job *probe; /* the one at hand */
    dh_session *session;
    dh_progress progress;
    int64_t *ns;   /* [sample][probe][2] */
    size_t n, cap; /* samples */
    int round;     /* of them, from 0 */
} rank_work;

/* ---- sampling ------------------------------------------------------------------------------ */

static dh_status create_session(dh_ctx *ctx, rank_work *w)
{
    dh_session_spec spec = w->probe->spec;
    spec.comm = w->ranks->comm;
    spec.rank = w->ranks->rank;
    dh_status st = dh_session_create(ctx, &spec, &w->session);
    if (st == DH_OK) st = dh_session_init_params(ctx, w->session, w->m->shared.job->seed);
    return dh_ranks_agree(ctx, w->ranks, st);
}

static size_t n_values(const rank_work *w)
{
    return 2 * w->session->train->probes.n;
}

/* Time from an operator's own start: two of a pair may start some microseconds apart. */
static void take(rank_work *w, const dh_span *spans)
{
    const dh_program *p = w->session->train;
    int64_t *ns = w->ns + w->n++ * n_values(w);
    for (size_t i = 0; i < p->probes.n; i++)
        for (int k = 0; k < 2; k++) {
            const uint32_t instr = p->probes.at[i].instr[k];
            *ns++ = instr == DH_NONE ? 0 : spans[instr].end_ns - spans[instr].start_ns;
        }
}

typedef enum verdict { GO_ON, ENOUGH, STOPPED } verdict;

static verdict judge(const dh_ctx *ctx, const rank_work *w, int64_t start_ns)
{
    const dh_profile_options *o = w->m->options;
    const double seconds = (o->seconds > 0 ? o->seconds : most_seconds) / (double)w->m->n_probes;
    if (dh_stop_asked(ctx->stop)) return STOPPED;
    if (w->n == w->cap) return ENOUGH;
    const bool late = (double)(dh_now_ns() - start_ns) * 1e-9 > seconds;
    return late && w->n >= LEAST_SAMPLES ? ENOUGH : GO_ON;
}

/* The first run warms up. Rank 0 decides for all how many there are. */
static dh_status sample(dh_ctx *ctx, rank_work *w)
{
    const dh_job *job = w->m->shared.job;
    const int64_t start_ns = dh_now_ns();
    /* A learning rate of 0: the weights stay what they are. */
    const dh_step step = {
        .first_sample =
            dh_mesh_coord(&w->session->spec.recipe.mesh, w->ranks->rank).dp * job->micro_batch,
        .sample_stride = job->dp * job->micro_batch,
        .seed = job->seed,
        .beta1 = job->beta1,
        .beta2 = job->beta2,
        .eps = job->eps,
        /* A step ahead of the norm is measured where it is right, as it mostly is. */
        .grad_clip = job->post_validation || dh_fuse_pieces(job->fuse) > 0 ? 0 : job->grad_clip,
        .even_experts = true,
        .source = dh_run_source(w->m->shared.train_data)};
    DH_TRY(dh_exec_run(ctx, w->session->train_exec, &step));
    for (unsigned char said = GO_ON; said == GO_ON;) {
        DH_TRY(dh_exec_run(ctx, w->session->train_exec, &step));
        take(w, dh_exec_spans(w->session->train_exec));
        dh_progress_count(&w->progress, (int64_t)w->n, "samples of every operator and pair");
        said = (unsigned char)judge(ctx, w, start_ns);
        DH_TRY(dh_ranks_broadcast(ctx, w->ranks, &said, sizeof said));
        if (said == STOPPED)
            return dh_fail(ctx, DH_EINTERRUPTED, "stopped after %zu samples; no profile is written",
                           w->n);
    }
    return DH_OK;
}

/* ---- gathering ----------------------------------------------------------------------------- */

/* [sample][value] to [value][sample]. Caller frees; NULL: out of memory. */
static int64_t *transposed(const rank_work *w)
{
    const size_t n = n_values(w);
    int64_t *out = malloc((n * w->n + 1) * sizeof *out);
    for (size_t s = 0; out && s < w->n; s++)
        for (size_t v = 0; v < n; v++) out[v * w->n + s] = w->ns[s * n + v];
    return out;
}

/* Everybody's samples, rank after rank; counts [ranks]. Caller frees *all. */
static dh_status gather(dh_ctx *ctx, const rank_work *w, const int64_t *own, int64_t *counts,
                        int64_t **all)
{
    int64_t mine = (int64_t)(n_values(w) * w->n), total = 0;
    counts[w->ranks->rank] = mine;
    if (w->ranks->control)
        DH_TRY(dh_comm_all_gather(ctx, w->ranks->control, &mine, counts, 1, DH_I64));
    for (int64_t r = 0; r < w->ranks->n; r++) total += counts[r];
    *all = malloc((size_t)(total + 1) * sizeof **all);
    if (!*all) return dh_no_memory(ctx);
    if (w->ranks->control)
        return dh_comm_all_gatherv(ctx, w->ranks->control, own, *all, counts, DH_I64);
    memcpy(*all, own, (size_t)total * sizeof **all);
    return DH_OK;
}

/* The program of a rank is known to all: only times had to travel. */
static dh_status reduce(dh_ctx *ctx, const rank_work *w, const int64_t *counts, const int64_t *all,
                        dh_program **programs, dh_rank_samples *samples, dh_profile *into)
{
    for (int64_t r = 0; r < w->ranks->n; r++, all += counts[r - 1]) {
        dh_session_spec spec = w->probe->spec;
        spec.rank = r;
        DH_TRY(dh_session_program(ctx, &spec, DH_MODE_TRAIN, 0, &programs[r]));
        samples[r] = (dh_rank_samples){programs[r], all, r};
        if (counts[r] != (int64_t)(2 * programs[r]->probes.n * w->n))
            return dh_fail(ctx, DH_EINTERNAL, "rank %lld measured %lld times, not %zu",
                           (long long)r, (long long)counts[r], 2 * programs[r]->probes.n * w->n);
    }
    DH_TRY(dh_profile_reduce(ctx, samples, (size_t)w->ranks->n, w->n, into));
    return dh_profile_overheads(ctx, w->session->train, dh_exec_spans(w->session->train_exec),
                                into);
}

static dh_status make_profile(dh_ctx *ctx, const rank_work *w, const int64_t *counts,
                              const int64_t *all, dh_profile *into)
{
    const size_t n = (size_t)w->ranks->n;
    dh_program **programs = calloc(n, sizeof(dh_program *));
    dh_rank_samples *samples = calloc(n, sizeof *samples);
    dh_status st = programs && samples ? reduce(ctx, w, counts, all, programs, samples, into)
                                       : dh_no_memory(ctx);
    for (size_t r = 0; programs && r < n; r++) dh_program_destroy(programs[r]);
    free(programs);
    free(samples);
    return st;
}

/* Of one probe job, to what is known of it from earlier rounds. */
static dh_status add_round(dh_ctx *ctx, const rank_work *w, const int64_t *counts,
                           const int64_t *all)
{
    dh_profile *own = NULL;
    dh_status st = DH_OK;
    if (w->round > 0) st = dh_profile_create(ctx, "measured", &own);
    if (st == DH_OK) st = make_profile(ctx, w, counts, all, own ? own : w->m->profile);
    if (st == DH_OK && own) st = dh_profile_keep_quieter(ctx, w->m->profile, own);
    dh_profile_destroy(own);
    w->m->done = st == DH_OK;
    return st;
}

/* Samples of one probe job into the profile. */
static dh_status gather_profile(dh_ctx *ctx, rank_work *w)
{
    int64_t *own = transposed(w), *all = NULL;
    int64_t *counts = calloc((size_t)w->ranks->n, sizeof *counts);
    dh_status st = own && counts ? gather(ctx, w, own, counts, &all) : dh_no_memory(ctx);
    if (st == DH_OK && w->ranks->rank == 0) st = add_round(ctx, w, counts, all);
    free(own);
    free(all);
    free(counts);
    return dh_ranks_agree(ctx, w->ranks, st);
}

/* ---- ranks --------------------------------------------------------------------------------- */

/* Once more, while the times show other load. Rank 0 has them all, and decides. */
static dh_status measure_rounds(dh_ctx *ctx, rank_work *w)
{
    unsigned char again = 1;
    for (w->round = 0; again; w->round++) {
        w->n = 0;
        DH_TRY(sample(ctx, w));
        DH_TRY(gather_profile(ctx, w));
        if (w->ranks->rank == 0) w->m->doubts = dh_profile_doubt(w->m->profile);
        again =
            w->round + 1 < MOST_ROUNDS && w->ranks->rank == 0 && dh_profile_is_noisy(w->m->doubts);
        DH_TRY(dh_ranks_broadcast(ctx, w->ranks, &again, sizeof again));
    }
    return DH_OK;
}

static dh_status measure_probe_job(dh_ctx *ctx, rank_work *w)
{
    const measuring *m = w->m;
    dh_status st = create_session(ctx, w);
    if (st == DH_OK) {
        w->ns = malloc(w->cap * (n_values(w) + 1) * sizeof *w->ns);
        st = dh_ranks_agree(ctx, w->ranks, w->ns ? DH_OK : dh_no_memory(ctx));
    }
    dh_progress_start(&w->progress, 0, (int64_t)w->cap, 0,
                      m->options->quiet || w->ranks->rank != 0);
    if (st == DH_OK) st = measure_rounds(ctx, w);
    dh_progress_end(&w->progress);
    free(w->ns);
    w->ns = NULL;
    dh_session_destroy(w->session);
    w->session = NULL;
    return st;
}

static dh_status store(dh_ctx *ctx, const measuring *m)
{
    dh_str path = DH_STR_INIT;
    dh_status st = dh_profile_place(ctx, m->shared.job, m->profile, &path);
    if (st == DH_OK) st = dh_profile_store(ctx, m->profile, path.text);
    dh_str_fini(&path);
    return st;
}

/* Given up: what cannot be is not used (dh_profile_repair), but more may be wrong. */
static void tell_doubts(const measuring *m)
{
    if (m->options->quiet || !dh_profile_is_noisy(m->doubts)) return;
    dh_log(DH_LOG_WARN,
           "profile: after %d rounds %zu of %zu pairs still take less than alone or more than one "
           "after the other: something else uses this machine. These pairs are not used; measure "
           "again once it is idle",
           (int)MOST_ROUNDS, m->doubts.n_doubtful, m->doubts.n_pairs);
}

static dh_status measure_rank(dh_ctx *ctx, dh_launch *launch, const dh_place *place)
{
    measuring *m = launch->user;
    rank_work w = {.m = m, .ranks = &place->ranks};
    int n_threads;
    double wanted = m->wanted;
    DH_TRY(dh_ranks_sum(ctx, &place->ranks, &wanted, 1));
    if (wanted == 0) return DH_OK;
    w.cap = m->options->samples > 0 ? (size_t)m->options->samples : SAMPLES;
    DH_TRY(m->probes[0].spec.device->bind_rank(ctx, place->local_rank, place->n_local_ranks,
                                               launch->job->threads, &n_threads));
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < m->n_probes; i++) {
        w.probe = &m->probes[i];
        st = measure_probe_job(ctx, &w);
    }
    if (st == DH_OK && w.ranks->rank == 0) tell_doubts(m);
    if (st != DH_OK || !m->stores) return st;
    return dh_ranks_agree(ctx, w.ranks, w.ranks->rank == 0 ? store(ctx, m) : DH_OK);
}

/* ---- entry --------------------------------------------------------------------------------- */

static dh_status add_probe_job(dh_ctx *ctx, measuring *m, const dh_job *job,
                               const dh_pass_list *passes)
{
    dh_probe_job *probe = &m->probes[m->n_probes++];
    DH_TRY(dh_probe_job_init(ctx, job, passes, probe));
    return m->job.ranks > 1 ? dh_session_verify_mesh(ctx, &probe->spec, NULL) : DH_OK;
}

static dh_status prepare(dh_ctx *ctx, measuring *m)
{
    dh_probe_lists lists;
    dh_job jobs[DH_MOST_PROBE_JOBS];
    DH_TRY(dh_profile_of_job(ctx, &m->job, "measured", &m->profile));
    DH_TRY(dh_run_open_tokenizer(ctx, &m->shared));
    DH_TRY(dh_job_vocab(ctx, &m->job, m->shared.tokenizer, &m->job.model.vocab));
    DH_TRY(dh_run_open_train(ctx, &m->shared));
    DH_TRY(dh_probe_lists_find(ctx, &m->job, true, &lists));
    const int n_jobs = dh_probe_jobs(&m->job, jobs);
    m->probes = calloc(lists.n * DH_MOST_PROBE_JOBS + 1, sizeof *m->probes);
    dh_status st = m->probes ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < lists.n; i++)
        for (int k = 0; st == DH_OK && k < n_jobs; k++)
            st = add_probe_job(ctx, m, &jobs[k], &lists.at[i]);
    dh_vec_fini(&lists);
    return st;
}

static dh_status measure(dh_ctx *ctx, measuring *m)
{
    dh_launch launch;
    const volatile sig_atomic_t *own_stop = dh_stop_by(ctx, m->options->stop);
    m->shared.job = &m->job;
    dh_status st = dh_launch_prepare(ctx, &m->job, m->options->quiet, &launch);
    launch.work = measure_rank;
    launch.user = m;
    if (st == DH_OK) st = prepare(ctx, m);
    if (st == DH_OK) st = dh_launch_run(ctx, &launch);
    dh_dataset_close(m->shared.train_data);
    dh_tokenizer_destroy(m->shared.tokenizer);
    for (size_t i = 0; i < m->n_probes; i++) dh_probe_job_fini(&m->probes[i]);
    free(m->probes);
    if (st != DH_OK || !m->done) {
        dh_profile_destroy(m->profile);
        m->profile = NULL;
    }
    ctx->stop = own_stop;
    return st;
}

dh_status dh_profile_measure(dh_ctx *ctx, const dh_job *job, const dh_profile_options *options,
                             dh_profile **profile)
{
    const dh_train_options quiet = {.quiet = options->quiet};
    measuring m = {.job = *job, .shared = {.options = &quiet}, .options = options, .wanted = true};
    dh_status st = measure(ctx, &m);
    if (st == DH_OK) *profile = m.profile;
    return st;
}

/* Ranks that are the process's own thread are bound to cores, which training begins without,
 * and by which profiles are found. */
dh_status dh_profile_complete(dh_ctx *ctx, const dh_job *job, const dh_profile_options *options)
{
    const dh_train_options quiet = {.quiet = options->quiet};
    measuring m = {.job = *job, .shared = {.options = &quiet}, .options = options, .stores = true};
    bool complete = false;
    cpu_set_t cores;
    DH_TRY(dh_profile_is_complete(ctx, job, &complete));
    m.wanted = !complete;
    if (complete && dh_launched_ranks() == 0) return DH_OK;
    const bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
    dh_status st = measure(ctx, &m);
    if (known) sched_setaffinity(0, sizeof cores, &cores);
    dh_profile_destroy(m.profile);
    return st;
}
