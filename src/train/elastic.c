/* The mesh that remains when ranks are lost. A data-parallel rank is one of several alike, and the
 * others can do its work. A rank of tensor, context or pipeline parallelism has unique data. The
 * remaining ranks then need another mesh, and the state from a checkpoint, which is of no mesh.
 *
 * Which meshes a job can have is not known here: each is tried as any job is. */
#include "train/elastic.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/stop.h"
#include "train/resolve.h"
#include "weights/checkpoint.h"

enum { DP, TP, CP, PP, EP, N_DEGREES };

static const char *const names[N_DEGREES] = {"parallel.dp", "parallel.tp", "parallel.cp",
                                             "parallel.pp", "parallel.ep"};

typedef struct shrinking {
    const dh_job *job;
    const dh_shrink_options *options;
    int64_t was[N_DEGREES];
    bool prepares; /* jobs can be resolved here */
    dh_shrunk *found;
    int64_t n_refused; /* ranks of the first mesh that was refused; 0: none was */
    dh_ctx refusal;
    const dh_ctx *like; /* of who asks: what is tried heeds its flag */
} shrinking;

/* ---- one mesh -------------------------------------------------------------------------------- */

static dh_status resolve(dh_ctx *ctx, const shrinking *s, const dh_job *job, dh_resolved **resolved)
{
    static char profile[] = "auto"; /* unmeasured operators are estimated for now */
    const dh_resolve_options how = {.tokenizer = s->options->tokenizer, .quiet = true};
    dh_job known = *job;
    if (strcmp(job->profile, "measure") == 0) known.profile = profile;
    return dh_job_resolve(ctx, &known, &how, resolved);
}

static dh_status check_memory(dh_ctx *ctx, const shrinking *s, int64_t n_ranks,
                              uint64_t bytes_of_rank)
{
    char needed[32], there[32];
    const double n_bytes = (double)bytes_of_rank * (double)n_ranks;
    if (s->options->memory_bytes <= 0 || n_bytes <= s->options->memory_bytes) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "they need %s of memory, and the machine has %s",
                   dh_format_bytes(needed, sizeof needed, n_bytes),
                   dh_format_bytes(there, sizeof there, s->options->memory_bytes));
}

/* The programs of all its ranks, as training is going to have them. */
static dh_status prepare(dh_ctx *ctx, const shrinking *s, const dh_job *job)
{
    dh_resolved *resolved = NULL;
    dh_mesh_footprint programs;
    DH_TRY(resolve(ctx, s, job, &resolved));
    const dh_session_spec spec = dh_train_session(&resolved->job, &resolved->recipe);
    dh_status st = dh_session_verify_mesh(ctx, &spec, &programs);
    if (st == DH_OK) st = check_memory(ctx, s, job->ranks, programs.slab_bytes);
    dh_resolved_destroy(resolved);
    return st;
}

static dh_status try_mesh(dh_ctx *ctx, const shrinking *s, const int64_t degrees[N_DEGREES],
                          dh_job *job)
{
    *job = *s->job;
    job->dp = degrees[DP];
    job->tp = degrees[TP];
    job->cp = degrees[CP];
    job->pp = degrees[PP];
    job->ep = degrees[EP];
    job->ranks = job->dp * job->tp * job->cp * job->pp;
    job->elastic_min_ranks = 1; /* judged at the end */
    job->nodes = 0;
    if (s->job->ranks_per_node > 0 && job->ranks % s->job->ranks_per_node != 0)
        job->ranks_per_node = 0;
    DH_TRY(dh_job_check(ctx, job));
    job->elastic_min_ranks = s->job->elastic_min_ranks;
    return s->prepares ? prepare(ctx, s, job) : DH_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int n_changes(const shrinking *s, const int64_t degrees[N_DEGREES])
{
    int n = 0;
    for (int i = 0; i < N_DEGREES; i++) n += degrees[i] != s->was[i];
    return n;
}

static void describe(const shrinking *s, const int64_t degrees[N_DEGREES])
{
    dh_shrunk *f = s->found;
    size_t n = (size_t)snprintf(f->text, sizeof f->text, "%lld of %lld ranks",
                                (long long)f->job.ranks, (long long)s->job->ranks);
    const char *before = " (";
    f->other_mesh = false;
    for (int i = 0; i < N_DEGREES; i++) {
        if (degrees[i] == s->was[i]) continue;
        n += (size_t)snprintf(f->text + n, sizeof f->text - n, "%s%s=%lld", before, names[i],
                              (long long)degrees[i]);
        f->other_mesh |= i != DP;
        before = " ";
    }
    n += (size_t)snprintf(f->text + n, sizeof f->text - n, "), the most that it can have%s",
                          f->other_mesh ? " by the fewest changes of its mesh" : "");
    if (s->n_refused > f->job.ranks)
        snprintf(f->text + n, sizeof f->text - n, " (not %lld: %s)", (long long)s->n_refused,
                 s->refusal.message);
}

static bool try_degrees(shrinking *s, const int64_t degrees[N_DEGREES])
{
    dh_ctx why = dh_ctx_like(s->like);
    if (try_mesh(&why, s, degrees, &s->found->job) == DH_OK) {
        describe(s, degrees);
        return true;
    }
    if (s->n_refused == 0) {
        s->n_refused = degrees[DP] * degrees[TP] * degrees[CP] * degrees[PP];
        s->refusal = why;
    }
    return false;
}

/* The next smaller divisor of n; 0 behind 1. */
static int64_t next_divisor(int64_t n, int64_t d)
{
    do d--;
    while (d > 0 && n % d != 0);
    return d;
}

/* With so many ranks, by so many changes. */
static bool find_mesh(shrinking *s, int64_t n, int changes)
{
    const int64_t *was = s->was;
    int64_t d[N_DEGREES];
    for (d[TP] = was[TP]; d[TP] > 0; d[TP] = next_divisor(was[TP], d[TP]))
        for (d[CP] = was[CP]; d[CP] > 0; d[CP] = next_divisor(was[CP], d[CP]))
            for (d[PP] = was[PP]; d[PP] > 0; d[PP] = next_divisor(was[PP], d[PP])) {
                const int64_t others = d[TP] * d[CP] * d[PP];
                d[DP] = n / others;
                for (d[EP] = was[EP]; n % others == 0 && d[EP] > 0;
                     d[EP] = next_divisor(was[EP], d[EP]))
                    if (d[DP] % d[EP] == 0 && n_changes(s, d) == changes && try_degrees(s, d))
                        return true;
            }
    return false;
}

static bool find_any(shrinking *s, int64_t n_left)
{
    for (int64_t n = n_left; n > 0 && !dh_stop_asked(s->like->stop); n--)
        for (int changes = 1; changes <= N_DEGREES; changes++)
            if (find_mesh(s, n, changes)) return true;
    return false;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static bool can_prepare(const shrinking *s)
{
    dh_ctx why = dh_ctx_like(s->like);
    dh_resolved *resolved = NULL;
    if (!dh_device_find(s->job->device) || resolve(&why, s, s->job, &resolved) != DH_OK)
        return false;
    dh_resolved_destroy(resolved);
    return true;
}

dh_status dh_job_shrink(dh_ctx *ctx, const dh_job *job, int64_t n_left,
                        const dh_shrink_options *options, dh_shrunk *shrunk)
{
    shrinking s = {.job = job,
                   .options = options,
                   .was = {job->dp, job->tp, job->cp, job->pp, job->ep},
                   .found = shrunk,
                   .refusal = DH_CTX_INIT,
                   .like = ctx};
    if (n_left < 1) return dh_fail(ctx, DH_EINVAL, "no rank is left");
    s.prepares = can_prepare(&s);
    const bool found = find_any(&s, n_left);
    DH_TRY(dh_heed_stop(ctx, "a mesh for the ranks that are left was looked for"));
    if (!found)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld ranks are left, and no mesh of them has degrees that divide the "
                       "former ones: with %lld ranks, %s",
                       (long long)n_left, (long long)s.n_refused, s.refusal.message);
    if (shrunk->job.ranks >= job->elastic_min_ranks) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "it could go on over %s, but elastic.min_ranks is %lld",
                   shrunk->text, (long long)job->elastic_min_ranks);
}

dh_status dh_shrunk_state(dh_ctx *ctx, const dh_shrunk *shrunk, char *text, size_t cap)
{
    dh_ckpt *ckpt;
    dh_ctx why = dh_ctx_like(ctx);
    const dh_job *job = &shrunk->job;
    const dh_status st = dh_ckpt_find_latest(&why, job->out_dir, false, &ckpt);
    if (st == DH_OK) {
        snprintf(text, cap, "step %lld of its newest checkpoint",
                 (long long)dh_ckpt_get_state(ckpt)->step);
        dh_ckpt_close(ckpt);
        return DH_OK;
    }
    if (st == DH_EMISSING && shrunk->other_mesh)
        return dh_fail(ctx, DH_EMISSING,
                       "another mesh takes the state from a checkpoint, and %s has none yet "
                       "(checkpoint.every is %lld)",
                       job->out_dir, (long long)job->checkpoint_every);
    if (st != DH_EMISSING) return dh_fail(ctx, st, "%s", why.message);
    snprintf(text, cap, "its beginning, without a checkpoint yet");
    return DH_OK;
}
