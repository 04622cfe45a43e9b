/* How much memory the orders of a job's slots may take: overlap.memory, left to the device.
 *
 * A second strand's activations exist at the same time as the first one's. With more memory the two
 * get further apart, and more communication is hidden. So the default limit is all that a device
 * has left after everything else and its reserve. Whole steps are simulated: one without a limit,
 * and where that does not fit, one that holds least, whose rest of the device becomes the limit.
 *
 * The memory of a device is its description's, never what is free at the moment. The same job on
 * the same device therefore gets the same orders. */
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/recipe.h"
#include "train/room.h"
#include "train/simulation.h"

/* ---- a device's memory ------------------------------------------------------------------------ */

/* That one rank may take; 0: not known. */
static double room_of(const dh_resolved *r)
{
    const dh_device *device = dh_device_find(r->job.device);
    if (r->cluster || r->room_bytes > 0) return r->room_bytes;
    return device && device->slab_is_host ? dh_room_planned(&r->job, r->recipe.mesh.ranks_per_node)
                                          : 0;
}

/* ---- steps ------------------------------------------------------------------------------------ */

/* Of a rank that needs most. Planned slabs count where they will be there; on a cluster, what is
 * alive at once, as the job's system keeps it. */
static dh_status most_of(dh_ctx *ctx, const dh_resolved *r, const dh_sim *sim, uint64_t *most)
{
    dh_system_memory *of_system;
    DH_TRY(dh_train_system_memory(ctx, &r->job, sim, &of_system));
    *most = 0;
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_memory *m = &sim->ranks[k].memory;
        const uint64_t own = r->cluster ? m->peak_bytes : DH_MAX(m->peak_bytes, m->slab_bytes);
        *most = DH_MAX(*most, of_system ? of_system[k].peak_bytes : own);
    }
    return DH_OK;
}

/* A step whose orders keep to a limit. Where ranks share cores only its time would change. */
static dh_status try_limit(dh_ctx *ctx, const dh_resolved *job, double blocks, double bytes,
                           double room, dh_limit_point *point)
{
    const dh_train_simulation how = {.sim.sums = true};
    dh_resolved r = *job;
    dh_sim *sim;
    r.recipe.ordering.options.memory_blocks = blocks;
    r.recipe.ordering.options.memory_bytes = bytes;
    DH_TRY(dh_train_simulate(ctx, &r, &how, &sim));
    *point = (dh_limit_point){.blocks = blocks, .bytes = bytes, .step_ns = sim->step_ns};
    const dh_status st = most_of(ctx, &r, sim, &point->peak_bytes);
    point->fits = room <= 0 || (double)point->peak_bytes <= room;
    dh_sim_destroy(sim);
    return st;
}

/* ---- the limit -------------------------------------------------------------------------------- */

/* TUNING: several slots of a rank hold what their orders may at once. Halves come to what fits. */
enum { MOST_HALVES = 6 };

static dh_status find_limit(dh_ctx *ctx, const dh_resolved *r, double room, double *bytes)
{
    dh_limit_point p;
    *bytes = INFINITY;
    DH_TRY(try_limit(ctx, r, INFINITY, INFINITY, room, &p));
    if (p.fits) return DH_OK;
    DH_TRY(try_limit(ctx, r, INFINITY, 0, room, &p));
    *bytes = DH_MAX(room - (double)p.peak_bytes, 0);
    for (int i = 0; *bytes > 0; i++, *bytes /= 2) {
        if (i == MOST_HALVES) *bytes = 0;
        DH_TRY(try_limit(ctx, r, INFINITY, *bytes, room, &p));
        if (p.fits) break;
    }
    return DH_OK;
}

static dh_status keep_usual(dh_ctx *ctx, dh_resolved *r, const char *why)
{
    char blocks[32];
    r->recipe.ordering.options.memory_blocks = DH_ORDER_BLOCKS;
    return dh_resolved_note(ctx, r, "overlap.memory",
                            dh_format_number(blocks, sizeof blocks, DH_ORDER_BLOCKS, 2), "%s", why);
}

static dh_status note_limit(dh_ctx *ctx, dh_resolved *r, double room, double bytes)
{
    char left[32], all[32];
    dh_format_bytes(all, sizeof all, room);
    dh_format_bytes(left, sizeof left, bytes);
    if (bytes >= 1e18)
        return dh_resolved_note(ctx, r, "overlap.memory", "no limit",
                                "the fastest orders fit in the %s that a device has for a step",
                                all);
    return dh_resolved_note(ctx, r, "overlap.memory", left,
                            "left of the %s that a device has for a step after everything else",
                            all);
}

/* Where no step can be simulated, whoever comes to it next says why. */
dh_status dh_resolved_order_memory(dh_ctx *ctx, dh_resolved *r)
{
    double bytes;
    const double room = room_of(r);
    dh_ctx own = dh_ctx_like(ctx);
    if (r->job.overlap_memory > 0 || !r->recipe.ordering.policy->limits) return DH_OK;
    if (r->job.ranks == 1) { /* nothing to hide */
        r->recipe.ordering.options.memory_blocks = DH_ORDER_BLOCKS;
        return DH_OK;
    }
    if (r->job.packing == DH_PACKING_GROUP)
        return keep_usual(ctx, r, "several meshes share a device: data.packing=group");
    if (room <= 0) return keep_usual(ctx, r, "the memory of a device is not known");
    const dh_status st = find_limit(&own, r, room, &bytes);
    if (st == DH_ENOMEM || st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", own.message);
    if (st != DH_OK) return keep_usual(ctx, r, "its step cannot be simulated");
    r->recipe.ordering.options.memory_bytes = bytes;
    return note_limit(ctx, r, room, bytes);
}

/* ---- the frontier ----------------------------------------------------------------------------- */

static const double tried_blocks[] = {1e-3, .5, 1, 1.5, 2, 3, 5, 8, INFINITY};

static int by_memory(const void *x, const void *y)
{
    const dh_limit_point *a = x, *b = y;
    if (a->peak_bytes != b->peak_bytes) return a->peak_bytes < b->peak_bytes ? -1 : 1;
    if (a->step_ns != b->step_ns) return a->step_ns < b->step_ns ? -1 : 1;
    return (int)b->own - (int)a->own;
}

/* Of points that need no less, those which are faster. The job's own stays. */
static void keep_frontier(dh_memory_frontier *f)
{
    size_t n = 0;
    int64_t best_ns = INT64_MAX;
    qsort(f->at, f->n, sizeof *f->at, by_memory);
    for (size_t i = 0; i < f->n; i++) {
        if (f->at[i].step_ns >= best_ns && !f->at[i].own) continue;
        best_ns = DH_MIN(best_ns, f->at[i].step_ns);
        f->at[n++] = f->at[i];
    }
    f->n = n;
}

dh_status dh_resolved_memory_frontier(dh_ctx *ctx, const dh_resolved *r, dh_memory_frontier *f)
{
    const dh_order_options *o = &r->recipe.ordering.options;
    _Static_assert(DH_COUNTOF(tried_blocks) + 1 <= DH_MOST_LIMIT_POINTS, "one more: the job's");
    *f = (dh_memory_frontier){.room_bytes = room_of(r)};
    if (r->job.ranks == 1 || !r->recipe.ordering.policy->limits ||
        r->job.packing == DH_PACKING_GROUP)
        return DH_OK;
    DH_TRY(try_limit(ctx, r, o->memory_blocks, o->memory_bytes, f->room_bytes, &f->at[f->n]));
    f->at[f->n++].own = true;
    for (size_t i = 0; i < DH_COUNTOF(tried_blocks); i++)
        DH_TRY(try_limit(ctx, r, tried_blocks[i], INFINITY, f->room_bytes, &f->at[f->n++]));
    keep_frontier(f);
    return DH_OK;
}
