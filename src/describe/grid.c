/* Every cell is a job of its own, read anew with the cell's values. Settings that the file leaves
 * open are derived from these values. Values that do not go together are refused as in any job. */
#include "describe/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "describe/shown.h"

/* ---- what is varied ------------------------------------------------------------------------- */

static dh_status add_value(dh_ctx *ctx, dh_grid *g, const char *setting, const char *text, size_t n,
                           dh_grid_axis *axis)
{
    if (n == 0)
        return dh_fail(ctx, DH_EINVAL, "--table %s: a value is empty; KEY=V1,V2 is wanted",
                       setting);
    axis->values[axis->n] = dh_arena_printf(g->arena, "%.*s", (int)n, text);
    return axis->values[axis->n++] ? DH_OK : dh_no_memory(ctx);
}

static dh_status read_axis(dh_ctx *ctx, dh_grid *g, const char *setting)
{
    const char *equal = strchr(setting, '=');
    dh_grid_axis *axis = &g->axes[g->n_axes++];
    if (!equal || equal == setting)
        return dh_fail(ctx, DH_EINVAL, "--table %s: KEY=V1,V2 is wanted, as parallel.tp=1,2,4",
                       setting);
    const char *texts = equal + 1;
    axis->key = dh_arena_printf(g->arena, "%.*s", (int)(equal - setting), setting);
    axis->values = DH_NEW_N(g->arena, const char *, strlen(texts) + 1);
    if (!axis->key || !axis->values) return dh_no_memory(ctx);
    for (;;) {
        const size_t n = dh_simulated_word(texts);
        DH_TRY(add_value(ctx, g, setting, texts, n, axis));
        if (!texts[n]) return DH_OK;
        texts += n + 1;
    }
}

dh_status dh_grid_open(dh_ctx *ctx, const char *const *settings, size_t n, dh_grid *grid)
{
    *grid = (dh_grid){.arena = dh_arena_create(), .n = 1};
    if (!grid->arena) return dh_no_memory(ctx);
    if (n == 0 || n > DH_COUNTOF(grid->axes))
        return dh_fail(ctx, DH_EINVAL, "--table: one or two settings are wanted, not %zu", n);
    for (size_t i = 0; i < n; i++) {
        DH_TRY(read_axis(ctx, grid, settings[i]));
        grid->n *= grid->axes[i].n;
    }
    if (n == 2 && strcmp(grid->axes[0].key, grid->axes[1].key) == 0)
        return dh_fail(ctx, DH_EINVAL, "--table: %s stands twice; give its values in one list",
                       grid->axes[0].key);
    if (grid->n > DH_GRID_MOST)
        return dh_fail(ctx, DH_EINVAL, "--table: %zu cells; at most %d", grid->n, DH_GRID_MOST);
    grid->cells = DH_NEW_N(grid->arena, dh_grid_cell, grid->n);
    return grid->cells ? DH_OK : dh_no_memory(ctx);
}

void dh_grid_fini(dh_grid *grid)
{
    dh_arena_destroy(grid->arena);
    *grid = (dh_grid){.n = 0};
}

const char *dh_grid_value(const dh_grid *grid, size_t cell, size_t axis)
{
    const size_t n_inner = grid->n_axes == 2 ? grid->axes[1].n : 1;
    return grid->axes[axis].values[axis == 0 ? cell / n_inner : cell % n_inner];
}

/* ---- a cell --------------------------------------------------------------------------------- */

static void take_figures(const dh_sim *sim, double peak, dh_grid_cell *cell)
{
    const dh_simulated_figures f = dh_simulated_figures_of(sim);
    const double at[DH_N_GRID_FIGURE] = {[DH_GRID_STEP] = f.step_s * 1e3,
                                         [DH_GRID_TOKENS] = f.tokens_per_s,
                                         [DH_GRID_TFLOPS] = f.model_flops_per_s * 1e-12,
                                         [DH_GRID_MFU] =
                                             peak > 0 ? f.model_flops_per_s / peak : (double)NAN,
                                         [DH_GRID_HIDDEN] = f.hidden_percent / 100,
                                         [DH_GRID_EXPOSED] = f.exposed_ns * 1e-6,
                                         [DH_GRID_BUBBLE] = f.bubble_ns * 1e-6,
                                         [DH_GRID_MEMORY] = (double)f.peak_bytes};
    memcpy(cell->at, at, sizeof at);
}

static dh_status simulate_job(dh_ctx *ctx, dh_grid *g, const dh_job *job,
                              const dh_simulated_how *how, dh_grid_cell *cell)
{
    const dh_resolve_options any = {.cluster = how->cluster, .quiet = true};
    dh_resolved *resolved;
    dh_sim *sim = NULL;
    DH_TRY(dh_simulated_check_here(ctx, job, how->cluster));
    DH_TRY(dh_job_resolve(ctx, job, &any, &resolved));
    dh_status st = dh_train_simulate(ctx, resolved, &how->simulation, &sim);
    if (st == DH_OK) {
        take_figures(sim, dh_simulated_peak(how, job), cell);
        cell->ranks = sim->n_ranks;
        dh_simulated one = {.sim = sim};
        st = dh_train_system_memory(ctx, &resolved->job, sim, &one.system);
        cell->fits = st == DH_OK && (!how->cluster || dh_simulated_fits(&one, how->cluster));
        cell->strategy = dh_arena_strdup(g->arena, resolved->job.strategy);
        if (st == DH_OK && !cell->strategy) st = dh_no_memory(ctx);
        if (st == DH_OK && how->cluster && dh_grid_best(g) == cell) {
            if (!g->facts) g->facts = DH_NEW(g->arena, dh_step_facts);
            if (g->facts) dh_resolved_facts(resolved, g->facts);
            if (!g->facts) st = dh_no_memory(ctx);
        }
    }
    dh_sim_destroy(sim);
    dh_resolved_destroy(resolved);
    return st;
}

/* overrides [n + axes]: the last are the cell's. */
static dh_status simulate_cell(dh_ctx *ctx, dh_grid *g, const char *path, const char **overrides,
                               size_t n, const dh_simulated_how *how, size_t at)
{
    dh_job *job;
    for (size_t i = 0; i < g->n_axes; i++) {
        overrides[n + i] =
            dh_arena_printf(g->arena, "%s=%s", g->axes[i].key, dh_grid_value(g, at, i));
        if (!overrides[n + i]) return dh_no_memory(ctx);
    }
    dh_status st = dh_job_load(ctx, path, overrides, n + g->n_axes, &job);
    if (st == DH_OK) {
        st = simulate_job(ctx, g, job, how, &g->cells[at]);
        dh_job_destroy(job);
    }
    if (st == DH_OK || st == DH_ENOMEM || st == DH_EIO || st == DH_EINTERRUPTED) return st;
    g->cells[at].reason = dh_arena_strdup(g->arena, ctx->message);
    dh_ctx_reset(ctx);
    return g->cells[at].reason ? DH_OK : dh_no_memory(ctx);
}

/* ---- all ------------------------------------------------------------------------------------ */

/* An error of the job itself is reported once, not in every cell. */
static dh_status check_job(dh_ctx *ctx, const char *path, const char *const *overrides, size_t n,
                           dh_grid *g)
{
    dh_job *job;
    dh_str value = DH_STR_INIT;
    DH_TRY(dh_job_load(ctx, path, overrides, n, &job));
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < g->n_axes; i++)
        st = dh_job_get(ctx, job, g->axes[i].key, &value);
    if (st == DH_OK && !(g->model = dh_arena_strdup(g->arena, job->model.name)))
        st = dh_no_memory(ctx);
    dh_str_fini(&value);
    dh_job_destroy(job);
    return st;
}

/* overrides [n + axes]. */
static dh_status simulate_cells(dh_ctx *ctx, dh_grid *g, const char *path, const char **overrides,
                                size_t n, const dh_simulated_how *how)
{
    dh_shown shown;
    dh_simulated_how watched = *how;
    dh_status st = DH_OK;
    dh_shown_start(&shown, how->progress, false);
    watched.simulation.sim.watch = &shown.watch;
    for (size_t i = 0; st == DH_OK && i < g->n; i++) {
        const bool two = g->n_axes == 2;
        dh_shown_next(&shown, i, g->n, "%s=%s%s%s%s%s", g->axes[0].key, dh_grid_value(g, i, 0),
                      two ? " " : "", two ? g->axes[1].key : "", two ? "=" : "",
                      two ? dh_grid_value(g, i, 1) : "");
        st = simulate_cell(ctx, g, path, overrides, n, &watched, i);
    }
    dh_shown_end(&shown);
    return st;
}

static dh_status check_any(dh_ctx *ctx, const dh_grid *g)
{
    for (size_t i = 0; i < g->n; i++)
        if (!g->cells[i].reason) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "no cell of the table can be simulated; the first: %s",
                   g->cells[0].reason);
}

dh_status dh_grid_run(dh_ctx *ctx, const char *path, const char *const *overrides, size_t n,
                      const dh_simulated_how *how, dh_grid *grid)
{
    const char **all = calloc(n + DH_COUNTOF(grid->axes), sizeof *all);
    dh_status st = all ? check_job(ctx, path, overrides, n, grid) : dh_no_memory(ctx);
    if (st == DH_OK && how->cluster &&
        !(grid->cluster = dh_arena_strdup(grid->arena, how->cluster->name)))
        st = dh_no_memory(ctx);
    for (size_t i = 0; all && i < n; i++) all[i] = overrides[i];
    if (st == DH_OK) st = simulate_cells(ctx, grid, path, all, n, how);
    free(all);
    return st == DH_OK ? check_any(ctx, grid) : st;
}

const dh_grid_cell *dh_grid_best(const dh_grid *grid)
{
    const dh_grid_cell *best = NULL;
    for (size_t i = 0; i < grid->n; i++) {
        const dh_grid_cell *c = &grid->cells[i];
        if (c->reason || !c->fits) continue;
        if (!best || c->at[DH_GRID_STEP] < best->at[DH_GRID_STEP]) best = c;
    }
    return best;
}
