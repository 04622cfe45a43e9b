/* In how many pieces the optimizer is fused with sums and gathers: optimizer.fuse, left to a
 * strategy that searches.
 *
 * CoCoNet's autotuner (Jangda et al., ASPLOS 2022, arXiv 2105.05720, 5) tries the fused optimizer
 * beside other sequences of rewrites. Here it belongs to no layer: what it gains is at the end of
 * the step, beside the last backward's sums. So whole steps are simulated, one a choice, with the
 * layer's rewrites found before. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "train/recipe.h"
#include "train/simulation.h"

/* The choices of `auto`, the plain optimizer first. */
static const dh_fuse choices[DH_N_FUSIONS] = {DH_FUSE_OFF, DH_FUSE_1, DH_FUSE_2, DH_FUSE_4,
                                              DH_FUSE_8};

static bool is_open(const dh_resolved *r)
{
    const dh_recipe *recipe = &r->recipe;
    return r->job.fuse == DH_FUSE_AUTO && dh_sharing_steps_shards(&recipe->sharing) &&
           recipe->mesh.dp * recipe->mesh.cp > 1 && !recipe->post_validation &&
           recipe->sharing.gradient_sync == DH_GRADIENT_SYNC_LAST &&
           r->job.packing != DH_PACKING_GROUP;
}

static dh_status try_one(dh_ctx *ctx, dh_resolved *r, dh_fusion *tried)
{
    dh_train_trial trial;
    r->recipe.fuse = tried->pieces;
    DH_TRY(dh_train_try(ctx, r, &trial));
    tried->step_ns = trial.step_ns;
    tried->peak_bytes = trial.peak_bytes;
    tried->fits = trial.fits;
    return DH_OK;
}

/* The shorter of the fusions that fit; if none fits, the plain optimizer. */
static bool is_better(const dh_fusion *a, const dh_fusion *b)
{
    if (!a->fits) return false;
    return !b->fits || a->step_ns < b->step_ns;
}

static dh_status note(dh_ctx *ctx, dh_resolved *r, const dh_fusions *f)
{
    const dh_fusion *best = &f->at[f->best];
    char pieces[32];
    snprintf(pieces, sizeof pieces, "%" PRId64, best->pieces);
    return dh_resolved_note(ctx, r, "optimizer.fuse", best->pieces ? pieces : "off",
                            "the shortest simulated step%s, %.3f ms; %.3f ms off",
                            r->cluster ? " that fits" : "", (double)best->step_ns * 1e-6,
                            (double)f->at[0].step_ns * 1e-6);
}

dh_status dh_resolved_fuse(dh_ctx *ctx, dh_resolved *r)
{
    if (!is_open(r)) return DH_OK;
    dh_fusions *f = DH_NEW(r->arena, dh_fusions);
    if (!f) return dh_no_memory(ctx);
    for (size_t i = 0; i < DH_N_FUSIONS; i++) {
        f->at[i].pieces = dh_fuse_pieces(choices[i]);
        DH_TRY(try_one(ctx, r, &f->at[i]));
        if (is_better(&f->at[i], &f->at[f->best])) f->best = i;
    }
    r->recipe.fuse = f->at[f->best].pieces;
    r->fusions = f;
    return note(ctx, r, f);
}
