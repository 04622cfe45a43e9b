/* State that is carried on in memory when a run loses ranks. See carry.h.
 *
 * A step changes masters and moments in place. A rank that fails within one may therefore have them
 * of the step before, of the step, or some of either; the executor tells which. All see a failure
 * at their next communication. Of ranks that wait for the same sums, either nobody has begun to
 * update, or the lost one was needed last, and all are through. But the norm of all gradients may
 * have reached only some. The run therefore takes the latest step whose holders lack nothing.
 *
 * A lost rank may take the loss of its samples along, after the others have updated by its
 * gradients. If others hold an earlier step as well, that is taken. Else the step counts without a
 * line in the metrics, unless its loss is to be judged (spike.action). */
#include "train/carry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/run.h"

/* ---- leaving -------------------------------------------------------------------------------- */

/* Of a step that was under way. The optimizer leaves all as it is where the norm is not finite. */
static void set_step_within(const dh_run *run, dh_remains *left)
{
    dh_ctx ctx = DH_CTX_INIT;
    double norm;
    switch (dh_exec_updated(run->session->train_exec)) {
    case DH_UPDATED_NONE:
        break;
    case DH_UPDATED_SOME:
        left->step = -1;
        break;
    case DH_UPDATED_ALL:
        if (dh_session_grad_norm(&ctx, run->session, &norm) != DH_OK)
            left->step = -1;
        else if (isfinite(norm))
            left->step++;
        left->counted = left->step == run->step;
        break;
    }
}

void dh_run_leave(dh_run *run, dh_remains *left)
{
    *left = (dh_remains){.session = run->session,
                         .step = run->is_set_up ? run->step : -1,
                         .counted = true,
                         .left_out = run->left_out,
                         .spikes = run->spikes};
    snprintf(left->checkpoint, sizeof left->checkpoint, "%s", run->checkpoint);
    if (run->session && run->is_set_up && run->in_step) set_step_within(run, left);
    if (run->session) dh_session_end_programs(run->session);
    run->session = NULL;
}

void dh_remains_fini(dh_remains *remains)
{
    dh_session_destroy(remains->session);
    *remains = (dh_remains){.session = NULL};
}

/* ---- which step ------------------------------------------------------------------------------ */

typedef struct choice {
    const dh_remains *remains;
    const bool *lost;
    int64_t n;
    bool *has; /* [n] ranks that are left and have the state of the step */
} choice;

/* The latest step of a rank that is left; -1: there is none. */
static int64_t latest(const choice *c, bool counted)
{
    int64_t step = -1;
    for (int64_t r = 0; r < c->n; r++)
        if (!c->lost[r] && c->remains[r].counted == counted)
            step = DH_MAX(step, c->remains[r].step);
    return step;
}

/* Whether those that have the step's state have all of it. */
static dh_status try_step(dh_ctx *ctx, choice *c, int64_t step)
{
    for (int64_t r = 0; r < c->n; r++) {
        if (!c->remains[r].session)
            return dh_fail(ctx, DH_EMISSING, "rank %lld was not set up", (long long)r);
        c->has[r] = !c->lost[r] && c->remains[r].step == step;
    }
    for (int64_t r = 0; r < c->n; r++)
        if (!c->has[r])
            DH_TRY(dh_share_check(ctx, dh_session_layout(c->remains[r].session), c->has));
    return DH_OK;
}

static dh_status choose_step(dh_ctx *ctx, const dh_job *job, choice *c, int64_t *step)
{
    const int64_t uncounted = latest(c, false);
    dh_ctx why = DH_CTX_INIT;
    *step = latest(c, true);
    if (*step < 0 && uncounted < 0)
        return dh_fail(ctx, DH_EMISSING,
                       "the remaining ranks do not hold the complete state of any step: they "
                       "were being set up, or were inside the optimizer");
    dh_status st = *step >= 0 ? try_step(&why, c, *step) : DH_EMISSING;
    if (st == DH_OK || uncounted < 0)
        return st == DH_OK ? DH_OK : dh_fail(ctx, st, "%s", why.message);
    if (job->spike_action != DH_SPIKE_OFF)
        return dh_fail(
            ctx, DH_EMISSING,
            "spike.action must judge the loss of step %lld, and a lost rank had a part of it",
            (long long)uncounted);
    *step = uncounted;
    return try_step(ctx, c, uncounted);
}

/* ---- putting it together --------------------------------------------------------------------- */

static dh_status store_rank(dh_ctx *ctx, const dh_session *session, const bool *has,
                            dh_st_writer *writer)
{
    dh_share share = {0};
    dh_status st = dh_share_find(ctx, dh_session_layout(session), has, &share);
    for (size_t s = 0; st == DH_OK && s < DH_SAVE_SECTIONS; s++)
        st = dh_share_store(ctx, session, &share, NULL, writer, dh_save_sections[s].prefix,
                            dh_save_sections[s].kind);
    dh_vec_fini(&share);
    return st;
}

/* The writer sees to it that no byte is missing. */
static dh_status store_all(dh_ctx *ctx, const dh_job *job, const choice *c, const char *path)
{
    dh_st_writer *writer;
    DH_TRY(dh_st_writer_create(ctx, &writer));
    dh_status st = DH_OK;
    for (size_t s = 0; st == DH_OK && s < DH_SAVE_SECTIONS; s++)
        st = dh_save_declare(ctx, &job->model, &dh_save_sections[s], writer);
    if (st == DH_OK) st = dh_st_writer_start(ctx, writer, path, DH_ST_CREATE);
    for (int64_t r = 0; st == DH_OK && r < c->n; r++)
        if (c->has[r]) st = store_rank(ctx, c->remains[r].session, c->has, writer);
    if (st == DH_OK) st = dh_st_writer_finish(ctx, writer);
    dh_st_writer_destroy(writer);
    return st;
}

static dh_status check_room(dh_ctx *ctx, const dh_model *model)
{
    const double needed = 3 * (double)sizeof(float) * (double)dh_model_n_trained(model);
    const double available = dh_memory_available();
    char image[32], free_bytes[32];
    if (available == 0 || needed <= available) return DH_OK;
    return dh_fail(ctx, DH_ENOMEM, "the state in memory would take another %s, and %s are free",
                   dh_format_bytes(image, sizeof image, needed),
                   dh_format_bytes(free_bytes, sizeof free_bytes, available));
}

/* The file has no name, and lives as long as its map. */
static dh_status make_image(dh_ctx *ctx, const dh_job *job, const choice *c, dh_map *image)
{
    char path[40];
    DH_TRY(check_room(ctx, &job->model));
    const int fd = memfd_create("dhelix-state", MFD_CLOEXEC);
    if (fd < 0) return dh_fail(ctx, DH_ENOMEM, "there is no memory for it");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    dh_status st = store_all(ctx, job, c, path);
    if (st == DH_OK) st = dh_map_open(ctx, path, image);
    close(fd);
    return st;
}

dh_status dh_carry(dh_ctx *ctx, const dh_job *job, const dh_remains *remains, const bool *lost,
                   dh_carried *carried)
{
    choice c = {remains, lost, job->ranks, calloc((size_t)job->ranks, sizeof(bool))};
    *carried = (dh_carried){.step = -1};
    if (!c.has) return dh_fail(ctx, DH_ENOMEM, "there is no memory for it");
    dh_status st = choose_step(ctx, job, &c, &carried->step);
    if (st == DH_OK) st = make_image(ctx, job, &c, &carried->image);
    for (int64_t r = 0; st == DH_OK && r < c.n; r++) {
        if (!c.has[r] || carried->counted) continue;
        carried->counted = remains[r].counted;
        carried->left_out = remains[r].left_out;
        carried->spikes = remains[r].spikes;
        snprintf(carried->checkpoint, sizeof carried->checkpoint, "%s", remains[r].checkpoint);
    }
    free(c.has);
    return st;
}

void dh_carried_fini(dh_carried *carried)
{
    dh_map_close(&carried->image);
    *carried = (dh_carried){.step = -1};
}

/* ---- taking it up ---------------------------------------------------------------------------- */

static dh_status load(dh_ctx *ctx, dh_run *run)
{
    const dh_map *image = &run->carried->image;
    dh_weights *weights;
    DH_TRY(dh_weights_parse(ctx, image->at, image->n_bytes, "the state in memory", &weights));
    dh_status st = DH_OK;
    for (size_t s = 0; st == DH_OK && s < DH_SAVE_SECTIONS; s++)
        st = dh_session_load_kind(ctx, run->session, weights, dh_save_sections[s].prefix,
                                  dh_save_sections[s].kind);
    dh_weights_close(weights);
    return st;
}

dh_status dh_run_take_up(dh_ctx *ctx, dh_run *run)
{
    const dh_carried *carried = run->carried;
    run->step = carried->step;
    run->left_out = carried->left_out;
    run->spikes = carried->spikes;
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s", carried->checkpoint);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, load(ctx, run)));
    if (run->ranks.rank == 0) dh_carried_fini(run->carried); /* all have taken what is theirs */
    return DH_OK;
}
