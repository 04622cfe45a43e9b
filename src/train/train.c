/* Training a job: what its ranks share, prepared before they start. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/needs.h"
#include "base/stop.h"
#include "train/elastic.h"
#include "train/inputs.h"
#include "train/launch.h"
#include "train/link_sms.h"
#include "train/profiling.h"
#include "train/recipe.h"
#include "train/room.h"
#include "train/run.h"

typedef struct training {
    const dh_job *job; /* as it was given */
    dh_run shared;     /* job, recipe, tokenizer, datasets */
    dh_resolved *resolved;
    dh_mesh_footprint programs; /* of all ranks; of threads once they have them */
    dh_together together;       /* of ranks that are threads */
    dh_save_board board;
    dh_remains *remains; /* [job->ranks], of ranks that are threads and go on; NULL */
    dh_train_result result;
} training;

/* How a start of the run has ended. */
typedef struct ending {
    bool goes_on;       /* ranks were lost, and the run goes on without them: */
    dh_job left;        /* as this job */
    dh_carried carried; /* with this state, or none */
} ending;

/* ---- preparing --------------------------------------------------------------------------- */

/* What ranks need beside their slabs, by the first one's program. Libraries in which a rank runs out
 * of memory may end the process, so what cannot do is refused before ranks begin. Stages differ in
 * their slabs: what ranks need exactly is checked once they have their programs. */
static dh_status check_first_rank(dh_ctx *ctx, const dh_session_spec *spec, const dh_job *job)
{
    dh_program_spec first = dh_session_program_spec(spec, DH_MODE_TRAIN);
    dh_program *program;
    first.rank = 0;
    DH_TRY(dh_program_build(ctx, &first, &program));
    const dh_mesh_footprint programs = {.program_bytes = dh_program_bytes(program)};
    dh_program_destroy(program);
    dh_room room = dh_room_of(job, &programs);
    room.at_least = true;
    return dh_room_check(ctx, &room);
}

/* Before any rank starts: that all of them together cannot wait for ever. Threads show it once they
 * have their programs (together.h). Processes build those of all ranks here, and tell each other
 * later what they need on a machine. */
static dh_status verify_mesh(dh_ctx *ctx, training *t)
{
    const dh_run *run = &t->shared;
    const dh_session_spec spec = dh_run_session(run);
    if (dh_launched_ranks() > 0)
        return run->job->ranks > 1 ? dh_session_verify_mesh(ctx, &spec, &t->programs) : DH_OK;
    const dh_room least = dh_room_least(run->job);
    if (spec.device->slab_is_host) DH_TRY(dh_room_check(ctx, &least));
    if (spec.device->slab_is_host && run->job->ranks > 1)
        DH_TRY(check_first_rank(ctx, &spec, run->job));
    return run->job->ranks > 1 ? dh_together_init(ctx, run->job->ranks, &t->together) : DH_OK;
}

/* `profile: measure`. The vocabulary, which the sizes of operators depend on, may be the
 * tokenizer's. */
static dh_status complete_profile(dh_ctx *ctx, const training *t)
{
    const dh_run *run = &t->shared;
    const dh_profile_options how = {.quiet = run->options->quiet, .stop = ctx->stop};
    dh_job known = *t->job;
    if (strcmp(t->job->profile, "measure") != 0) return DH_OK;
    DH_TRY(dh_job_vocab(ctx, t->job, run->tokenizer, &known.model.vocab));
    return dh_profile_complete(ctx, &known, &how);
}

static dh_status heed_stop(dh_ctx *ctx)
{
    if (!dh_stop_asked(ctx->stop)) return DH_OK;
    return dh_fail(ctx, DH_EINTERRUPTED, "stopped before the run's steps began");
}

static dh_status prepare(dh_ctx *ctx, training *t)
{
    dh_run *run = &t->shared;
    DH_TRY(dh_run_open_tokenizer(ctx, run));
    DH_TRY(heed_stop(ctx));
    DH_TRY(complete_profile(ctx, t));
    const dh_resolve_options how = {.tokenizer = run->tokenizer, .quiet = run->options->quiet};
    DH_TRY(dh_job_resolve(ctx, t->job, &how, &t->resolved));
    DH_TRY(dh_strategy_runs(ctx, t->resolved->recipe.strategy));
    run->job = &t->resolved->job;
    run->recipe = &t->resolved->recipe;
    run->profile = t->resolved->profile;
    run->groups = t->resolved->group_recipes;
    run->n_groups = t->resolved->n_groups;
    DH_TRY(heed_stop(ctx));
    DH_TRY(dh_run_open_data(ctx, run));
    DH_TRY(verify_mesh(ctx, t));
    return heed_stop(ctx);
}

/* A stream must hold the same number on all ranks. */
static dh_status hold_processors(dh_ctx *ctx, const training *t, dh_launch *launch)
{
    const dh_link_choice *choice = t->resolved->links;
    dh_str text = DH_STR_INIT;
    if (!choice || !choice->held || choice->given)
        return DH_OK; /* given: since dh_launch_prepare */
    for (int s = 0; s < DH_N_STREAM; s++) launch->link_sms[s] = choice->sms.of[s];
    dh_link_choice_print(choice, &text);
    if (!text.failed && text.text) {
        if (!launch->quiet)
            dh_log(DH_LOG_INFO, "communicators hold of %d processors: %s", choice->sms.processors,
                   text.text);
        if (dh_launched_ranks() > 0)
            dh_str_printf(&launch->facts, "processors of communicators: %s\n", text.text);
    }
    const bool failed = text.failed;
    dh_str_fini(&text);
    return failed ? dh_no_memory(ctx) : DH_OK;
}

static void data_fact(const char *name, const dh_dataset *data, uint64_t hash, dh_str *out)
{
    dh_str_printf(out, "%s: %lld tokens, hash %016llx\n", name, (long long)dh_dataset_tokens(data),
                  (unsigned long long)hash);
}

/* Facts from files that each process reads by itself. With different times of operators ranks would
 * order their calls differently, and wait for each other. */
static dh_status add_facts(dh_ctx *ctx, const training *t, dh_str *out)
{
    const dh_run *run = &t->shared;
    dh_str_printf(out, "--fresh: %s\n", run->options->fresh ? "true" : "false");
    data_fact("training data", run->train_data, run->data_hash, out);
    if (run->val_data) {
        uint64_t hash;
        DH_TRY(dh_dataset_hash(ctx, run->val_data, &hash));
        data_fact("validation data", run->val_data, hash, out);
    }
    if (run->tokenizer)
        dh_str_printf(out, "tokenizer: fingerprint %016llx\n",
                      (unsigned long long)dh_tokenizer_fingerprint(run->tokenizer));
    dh_str_printf(out, "times of operators: %s, %016llx (the same with profile=none)\n",
                  run->recipe->costs->name, (unsigned long long)run->recipe->costs->id);
    dh_str_printf(out, "programs: %llu instructions, digest %016llx\n",
                  (unsigned long long)t->programs.n_instrs, (unsigned long long)t->programs.digest);
    return DH_OK;
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
    run.turns = &launch->turns;
    run.together = t->together.n > 0 ? &t->together : NULL;
    run.saver.board = &t->board;
    run.saver.apart = dh_launch_apart(launch);
    if (t->remains && !run.saver.apart) run.remains = &t->remains[place->ranks.rank];
    if (launch->fault.at_instr && place->ranks.rank == launch->fault.rank)
        run.fault = &launch->fault;
    if (run.ranks.rank == 0 && run.ranks.n > 1 && !launch->quiet)
        dh_log(DH_LOG_INFO, "operators are ordered by %s", run.recipe->costs->name);
    dh_status st = dh_run_train(ctx, &run, &result);
    if (run.ranks.rank == 0 && (st == DH_OK || st == DH_EINTERRUPTED)) t->result = result;
    return st;
}

/* Other systems are known by what their operators take; nothing here executes as they do. */
static dh_status check_system(dh_ctx *ctx, const dh_job *job)
{
    dh_system system;
    DH_TRY(dh_system_read(ctx, job->system, &system));
    if (system.traits == 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "system=%s is only simulated (dhelix simulate --cluster); training runs this "
                   "program itself: leave system out, or give system=dhelix",
                   job->system);
}

/* ---- going on without ranks ------------------------------------------------------------- */

/* The state from which the run goes on, for a message: the state in memory, if it is complete
 * there; else the state on disk, and why. */
static dh_status find_state(dh_ctx *ctx, const training *t, const bool *lost, const dh_shrunk *left,
                            dh_carried *carried, dh_str *from)
{
    char stored[96];
    dh_ctx why = DH_CTX_INIT;
    if (t->remains && dh_carry(&why, t->shared.job, t->remains, lost, carried) == DH_OK) {
        dh_str_printf(from, "step %lld, by what the ranks that are left have in memory",
                      (long long)carried->step);
        return DH_OK;
    }
    DH_TRY(dh_shrunk_state(ctx, left, stored, sizeof stored));
    dh_str_printf(from, "%s, since %s", stored, why.message);
    return DH_OK;
}

/* Memory for all ranks together, once ended ranks have freed theirs; 0: not known. */
static double memory_bytes(const training *t)
{
    const dh_device *device = dh_device_find(t->job->device);
    const double available = dh_memory_available();
    if (!device || !device->slab_is_host || available == 0) return 0;
    return available + (double)t->programs.slab_bytes * (double)t->job->ranks;
}

static dh_status find_going_on(dh_ctx *ctx, const training *t, const dh_launch *launch, ending *end,
                               dh_str *how)
{
    dh_shrunk left;
    const dh_shrink_options options = {.tokenizer = t->shared.tokenizer,
                                       .memory_bytes = memory_bytes(t)};
    DH_TRY(dh_job_shrink(ctx, t->job, t->job->ranks - launch->n_lost, &options, &left));
    dh_str_printf(how, "over %s, from ", left.text);
    DH_TRY(find_state(ctx, t, launch->lost, &left, &end->carried, how));
    end->left = left.job;
    return how->failed ? dh_no_memory(ctx) : DH_OK;
}

/* Whether the run, which ended for want of ranks, goes on without them; ctx then is as new. */
static void try_going_on(dh_ctx *ctx, const training *t, const dh_launch *launch, ending *end)
{
    dh_ctx why = dh_ctx_like(ctx);
    dh_str how = DH_STR_INIT;
    if (ctx->status != DH_ECOMM || launch->n_lost == 0 ||
        t->job->elastic_action != DH_ELASTIC_CONTINUE)
        return;
    const dh_ctx lost = *ctx;
    end->goes_on = find_going_on(&why, t, launch, end, &how) == DH_OK;
    dh_ctx_reset(ctx);
    if (end->goes_on)
        dh_log(DH_LOG_WARN, "%s; the run goes on %s", lost.message, how.text);
    else
        dh_fail(ctx, why.status == DH_EINTERRUPTED ? DH_EINTERRUPTED : DH_ECOMM,
                "%s; the run does not go on: %s", lost.message, why.message);
    if (!end->goes_on) dh_carried_fini(&end->carried);
    dh_str_fini(&how);
}

/* Where ranks leave what they have, and who of them was lost. */
static dh_status prepare_loss(dh_ctx *ctx, training *t, dh_launch *launch)
{
    const size_t n = (size_t)t->job->ranks;
    if (t->job->elastic_action != DH_ELASTIC_CONTINUE || n == 1) return DH_OK;
    t->remains = calloc(n, sizeof *t->remains);
    launch->lost = calloc(n, sizeof *launch->lost);
    return t->remains && launch->lost ? DH_OK : dh_no_memory(ctx);
}

static void drop(training *t, dh_launch *launch)
{
    for (int64_t r = 0; t->remains && r < t->job->ranks; r++) dh_remains_fini(&t->remains[r]);
    free(t->remains);
    free(launch->lost);
    dh_together_fini(&t->together);
    dh_dataset_close(t->shared.train_data);
    dh_dataset_close(t->shared.val_data);
    dh_tokenizer_destroy(t->shared.tokenizer);
    dh_resolved_destroy(t->resolved);
    dh_save_board_fini(&t->board);
}

/* One start of the run, from the state that is carried on, where there is one. */
static dh_status train_over(dh_ctx *ctx, const dh_job *job, const dh_train_options *options,
                            int n_before, dh_carried *carried, dh_train_result *result, ending *end)
{
    training t = {.job = job, .shared = {.job = job, .options = options, .carried = carried}};
    dh_launch launch;
    *end = (ending){.goes_on = false};
    dh_save_board_init(&t.board);
    dh_status st = dh_launch_prepare(ctx, job, options->quiet, &launch);
    launch.work = train_rank;
    launch.user = &t;
    launch.n_before = n_before;
    if (st == DH_OK) st = prepare_loss(ctx, &t, &launch);
    if (st == DH_OK) st = prepare(ctx, &t);
    if (st == DH_OK) st = hold_processors(ctx, &t, &launch);
    launch.job = t.shared.job; /* derived settings are compared too */
    if (st == DH_OK && dh_launched_ranks() > 0) st = add_facts(ctx, &t, &launch.facts);
    if (st == DH_OK) st = dh_launch_run(ctx, &launch);
    if (t.together.n > 0) t.programs = t.together.programs;
    *result = t.result;
    if (st != DH_OK) try_going_on(ctx, &t, &launch, end);
    drop(&t, &launch);
    return st;
}

static dh_status train(dh_ctx *ctx, const dh_job *job, const dh_train_options *options,
                       dh_train_result *result)
{
    ending end;
    dh_job now;
    dh_train_result unasked;
    dh_train_options how = *options;
    if (!result) result = &unasked;
    DH_TRY(check_system(ctx, job));
    DH_TRY(dh_model_check_computed(ctx, &job->model));
    DH_TRY(dh_run_check_inputs(ctx, job, options->fresh));
    dh_status st = train_over(ctx, job, &how, 0, NULL, result, &end);
    for (int n_before = 1; end.goes_on; n_before++) {
        dh_carried carried = end.carried;
        now = end.left;
        how.fresh = false; /* a run that it began anew goes on */
        st =
            train_over(ctx, &now, &how, n_before, carried.image.at ? &carried : NULL, result, &end);
        dh_carried_fini(&carried);
    }
    return st;
}

dh_status dh_train(dh_ctx *ctx, const dh_job *job, const dh_train_options *options,
                   dh_train_result *result)
{
    DH_NEEDS(ctx, job);
    DH_OR_DEFAULTS(dh_train_options, options);
    const volatile sig_atomic_t *own = dh_stop_by(ctx, options->stop);
    dh_train_options how = *options;
    how.stop = ctx->stop;
    const dh_status st = train(ctx, job, &how, result);
    ctx->stop = own;
    return st;
}
