/* Training a job: what its ranks share, prepared before they start. */
#include <string.h>

#include "train/launch.h"
#include "train/run.h"

typedef struct training {
    dh_run shared; /* job, schedule, costs, ordering, tokenizer, datasets */
    dh_ordering ordering;
    dh_mesh_footprint programs; /* of all ranks */
    dh_train_result result;
} training;

/* ---- schedule ------------------------------------------------------------------------------ */

static bool is_file(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".csv") == 0;
}

/* A row of the table, or a file in PyTorch's notation. */
dh_status dh_train_schedule(dh_ctx *ctx, const dh_job *job, dh_schedule **schedule)
{
    *schedule = NULL;
    if (is_file(job->schedule)) return dh_schedule_read_csv(ctx, job->schedule, schedule);
    const dh_schedule_row *row;
    const dh_strategy *strategy;
    DH_TRY(dh_strategy_find(ctx, job->strategy, &strategy));
    DH_TRY(dh_schedule_find(ctx, job->schedule, &row));
    /* A strategy of two strands brings the schedule that pairs them, unless the job
     * names one that does. */
    if (strategy->schedule && !row->pairs) DH_TRY(dh_schedule_find(ctx, strategy->schedule, &row));
    if (job->pp == 1 && row->n_chunks != 2) return DH_OK; /* one stage has one order */
    const dh_schedule_spec spec = {.n_ranks = (int32_t)job->pp,
                                   .n_micro = (int32_t)dh_job_n_micro(job),
                                   .n_chunks = (int32_t)job->vpp};
    return dh_schedule_generate(ctx, row, &spec, schedule);
}

/* ---- preparing --------------------------------------------------------------------------- */

/* Before any rank starts: that all of them together cannot wait for ever. */
static dh_status verify_mesh(dh_ctx *ctx, const dh_run *run, dh_mesh_footprint *programs)
{
    if (run->job->ranks == 1) return DH_OK;
    dh_session_spec spec;
    DH_TRY(dh_train_plan(ctx, run->job, &spec));
    spec.recipe.schedule = run->schedule;
    spec.recipe.costs = run->costs;
    spec.recipe.ordering = *run->ordering;
    spec.eval = spec.eval && run->val_data;
    return dh_session_verify_mesh(ctx, &spec, programs);
}

/* `profile: measure`. The vocabulary, which the sizes of operators depend on, may be the
 * tokenizer's. */
static dh_status complete_profile(dh_ctx *ctx, const dh_run *run)
{
    const dh_profile_options how = {.quiet = run->options->quiet, .stop = run->options->stop};
    dh_tokenizer *tokenizer;
    if (strcmp(run->job->profile, "measure") != 0) return DH_OK;
    DH_TRY(dh_train_tokenizer(ctx, run->job, &tokenizer));
    dh_tokenizer_destroy(tokenizer);
    return dh_profile_complete(ctx, run->job, &how);
}

static dh_status prepare(dh_ctx *ctx, training *t)
{
    dh_run *run = &t->shared;
    DH_TRY(complete_profile(ctx, run));
    DH_TRY(dh_train_choose(ctx, run->job, run->options->quiet));
    DH_TRY(dh_run_open_data(ctx, run)); /* may decide the vocabulary */
    DH_TRY(dh_train_schedule(ctx, run->job, &run->schedule));
    DH_TRY(dh_train_costs(ctx, run->job, &run->costs));
    DH_TRY(dh_train_ordering(ctx, run->job, &t->ordering));
    t->ordering.cache = dh_order_cache_create(); /* without one, each program has its own */
    run->ordering = &t->ordering;
    return verify_mesh(ctx, run, &t->programs);
}

static void data_fact(const char *name, const dh_dataset *data, dh_str *out)
{
    if (data)
        dh_str_printf(out, "%s: %lld tokens, hash %016llx\n", name,
                      (long long)dh_dataset_tokens(data),
                      (unsigned long long)dh_dataset_hash(data));
}

/* What follows from files that each process reads by itself. By different times of operators
 * ranks would order their calls differently, and wait for each other. */
static void add_facts(const training *t, dh_str *out)
{
    const dh_run *run = &t->shared;
    dh_str_printf(out, "--fresh: %s\n", run->options->fresh ? "true" : "false");
    data_fact("training data", run->train_data, out);
    data_fact("validation data", run->val_data, out);
    if (run->tokenizer)
        dh_str_printf(out, "tokenizer: fingerprint %016llx\n",
                      (unsigned long long)dh_tokenizer_fingerprint(run->tokenizer));
    dh_str_printf(out, "times of operators: %s, %016llx (the same with profile=none)\n",
                  run->costs->name, (unsigned long long)run->costs->id);
    dh_str_printf(out, "programs: %llu instructions, digest %016llx\n",
                  (unsigned long long)t->programs.n_instrs, (unsigned long long)t->programs.digest);
}

/* ---- entry ------------------------------------------------------------------------------- */

static dh_status train_rank(dh_ctx *ctx, dh_launch *launch, const dh_place *place)
{
    training *t = launch->user;
    dh_run run = t->shared;
    dh_train_result result = {.primary = false};
    run.mesh = launch->mesh;
    run.ranks = place->ranks;
    run.local_rank = place->local_rank;
    run.n_local_ranks = place->n_local_ranks;
    if (launch->fault.at_instr && place->ranks.rank == launch->fault.rank)
        run.fault = &launch->fault;
    if (run.ranks.rank == 0 && run.ranks.n > 1 && !launch->quiet)
        dh_log(DH_LOG_INFO, "operators are ordered by %s", run.costs->name);
    dh_status st = dh_run_train(ctx, &run, &result);
    if (run.ranks.rank == 0 && (st == DH_OK || st == DH_EINTERRUPTED)) t->result = result;
    return st;
}

dh_status dh_train(dh_ctx *ctx, dh_job *job, const dh_train_options *options,
                   dh_train_result *result)
{
    training t = {.shared = {.job = job, .options = options}};
    dh_launch launch;
    dh_status st = dh_launch_prepare(ctx, job, options->quiet, &launch);
    launch.work = train_rank;
    launch.user = &t;
    if (st == DH_OK) st = prepare(ctx, &t);
    if (st == DH_OK && dh_launched_ranks() > 0) add_facts(&t, &launch.facts);
    if (st == DH_OK) st = dh_launch_run(ctx, &launch);
    *result = t.result;
    dh_dataset_close(t.shared.train_data);
    dh_dataset_close(t.shared.val_data);
    dh_tokenizer_destroy(t.shared.tokenizer);
    dh_schedule_destroy(t.shared.schedule);
    dh_order_cache_destroy(t.ordering.cache);
    return st;
}
