/* The weights that a run begins with. They are new, or come from train.init_from or lora.init_from.
 * A run with adapters also has weights that stay as they are. Ranks that are processes read the
 * files by themselves, each on its machine. They first compare the files' contents: with another
 * file under the same path a rank would train another model than the others. */
#include <stdio.h>

#include "train/run.h"
#include "train/trained.h"

typedef struct source {
    const char *setting, *path;
    bool adapters;
} source;

static bool is_given(const char *path)
{
    return path && *path;
}

/* A process has one rank; threads have one file. */
static dh_status check_alike(dh_ctx *ctx, const dh_run *run, const source *from, const char *hash)
{
    char fact[128];
    snprintf(fact, sizeof fact, "%s: weights with hash %s\n", from->setting, hash);
    return dh_ranks_alike(ctx, &run->ranks, fact);
}

/* On all ranks, or on none. hash: where ranks are processes */
static dh_status open_alike(dh_ctx *ctx, const dh_run *run, const source *from, dh_weights **out,
                            char hash[DH_WEIGHTS_HASH_TEXT])
{
    *out = NULL;
    dh_status st = from->adapters ? dh_adapter_open(ctx, from->path, &run->job->model, out)
                                  : dh_weights_open(ctx, from->path, out);
    if (st == DH_OK)
        st = dh_weights_fit(ctx, *out, &run->job->model,
                            from->adapters ? DH_FIT_ADAPTERS : DH_FIT_BASE);
    if (st == DH_OK && run->saver.apart)
        st = from->adapters ? dh_adapter_hash(ctx, *out, hash) : dh_weights_hash(ctx, *out, hash);
    st = dh_ranks_agree(ctx, &run->ranks, st);
    if (st == DH_OK && run->saver.apart) st = check_alike(ctx, run, from, hash);
    if (st != DH_OK) {
        dh_weights_close(*out);
        *out = NULL;
    }
    return st;
}

static dh_status while_loading(dh_ctx *ctx, dh_status st, const source *from)
{
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "loading %s %s", from->setting, from->path);
}

/* ---- weights that are trained ---------------------------------------------------------------- */

static dh_status load_trained(dh_ctx *ctx, dh_run *run, const source *from)
{
    char hash[DH_WEIGHTS_HASH_TEXT];
    dh_weights *weights;
    dh_status st = open_alike(ctx, run, from, &weights, hash);
    if (st == DH_OK)
        st = from->adapters ? dh_session_load_adapters(ctx, run->session, weights)
                            : dh_session_load_params(ctx, run->session, weights);
    dh_weights_close(weights);
    return while_loading(ctx, st, from);
}

static dh_status init_new(dh_ctx *ctx, dh_run *run)
{
    const uint64_t seed = run->job->seed;
    return run->job->model.lora.rank > 0 ? dh_session_init_adapters(ctx, run->session, seed)
                                         : dh_session_init_params(ctx, run->session, seed);
}

dh_status dh_run_init_weights(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    const source trained = job->model.lora.rank > 0
                               ? (source){"lora.init_from", job->lora_init_from, true}
                               : (source){"train.init_from", job->init_from, false};
    return dh_ranks_agree(ctx, &run->ranks,
                          is_given(trained.path) ? load_trained(ctx, run, &trained)
                                                 : init_new(ctx, run));
}

/* ---- weights beside adapters ----------------------------------------------------------------- */

static dh_status load_base(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    const source base = {"train.init_from", job->init_from, false};
    dh_weights *weights;
    if (!is_given(base.path))
        return dh_fail(
            ctx, DH_EINVAL,
            "lora.rank %lld trains adapters of existing weights: name them by train.init_from",
            (long long)job->model.lora.rank);
    dh_status st = open_alike(ctx, run, &base, &weights, run->base_hash);
    if (st == DH_OK) st = dh_session_load_base(ctx, run->session, weights);
    if (st == DH_OK && !run->saver.apart && run->ranks.rank == 0)
        st = dh_weights_hash(ctx, weights, run->base_hash);
    dh_weights_close(weights);
    run->base_path = job->init_from;
    return while_loading(ctx, st, &base);
}

dh_status dh_run_take_base(dh_ctx *ctx, dh_run *run)
{
    if (run->job->model.lora.rank == 0) return DH_OK;
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, load_base(ctx, run)));
    return dh_ranks_broadcast(ctx, &run->ranks, run->base_hash, sizeof run->base_hash);
}
