/* Steps over several meshes, simulated (switched.h). */
#include "train/switched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/groups.h"
#include "data/lengths.h"
#include "program/reshard.h"
#include "sim/sim.h"
#include "train/run.h"
#include "train/simulation.h"
#include "train/switch.h"

/* ---- documents ------------------------------------------------------------------------------- */

static dh_status open_data(dh_ctx *ctx, const dh_resolved *job, dh_dataset **ds)
{
    const dh_train_options plain = {.quiet = true};
    dh_run run = {.job = &job->job, .options = &plain};
    DH_TRY(dh_run_open_tokenizer(ctx, &run));
    const dh_status st = dh_run_open_train(ctx, &run);
    dh_tokenizer_destroy(run.tokenizer);
    if (st == DH_OK)
        *ds = run.train_data;
    else
        dh_dataset_close(run.train_data);
    return st;
}

dh_status dh_switched_documents(dh_ctx *ctx, const dh_resolved *job, const char *path,
                                char reading[DH_READING_BYTES], dh_dataset **ds)
{
    dh_lengths lengths;
    if (!path) {
        snprintf(reading, DH_READING_BYTES, "the job's data");
        return open_data(ctx, job, ds);
    }
    dh_status st = dh_lengths_read(ctx, path, &lengths);
    if (st == DH_OK)
        st = dh_dataset_of_lengths(ctx, lengths.of.at, lengths.of.n, job->job.seq_len,
                                   job->job.seed, ds);
    if (st == DH_OK) dh_lengths_describe(&lengths, reading, DH_READING_BYTES);
    dh_lengths_fini(&lengths);
    return st;
}

/* ---- what a step has of each group ----------------------------------------------------------- */

enum { MOST_STEPS = 64 };

static int64_t rows_passes(int64_t rows, int64_t of_pass)
{
    return (rows + of_pass - 1) / of_pass;
}

void dh_switched_count(const dh_pack *rows, double share, dh_switched_load *load)
{
    double pairs_twice = 0;
    for (size_t i = 0; i < rows->pieces.n; i++) {
        const double n = rows->pieces.at[i].n;
        pairs_twice += n * (n + 1);
    }
    load->docs += share * (double)rows->pieces.n;
    load->tokens += share * (double)rows->n_targets;
    load->rows += share * (double)dh_pack_rows(rows);
    load->pairs_twice += share * pairs_twice;
}

static void count_step(const dh_length_groups *groups, double share, dh_switched *s)
{
    for (size_t i = 0; i < s->n; i++) {
        dh_switched_group *g = &s->groups[i];
        dh_switched_count(&groups->rows[i], share, &g->load);
        g->passes += share * (double)rows_passes(dh_pack_rows(&groups->rows[i]), g->pass.rows);
    }
}

/* An epoch's steps, but no more than MOST_STEPS. */
static dh_status count_steps(dh_ctx *ctx, const dh_job *job, const dh_dataset *ds, dh_switched *s)
{
    int64_t max_len[DH_MAX_SWITCH_GROUPS];
    const int64_t n_rows = dh_dataset_windows(ds, job->seq_len);
    s->n_steps = DH_MAX(1, DH_MIN(n_rows / job->global_batch, MOST_STEPS));
    for (size_t i = 0; i < s->n; i++) {
        max_len[i] = s->groups[i].job->recipe.seq;
        const dh_recipe *r = &s->groups[i].job->recipe;
        s->groups[i].pass.rows = r->mesh.dp * r->micro_batch * r->n_micro;
    }
    for (int64_t step = 0; step < s->n_steps; step++) {
        dh_length_groups groups;
        const dh_status st = dh_length_groups_make(ctx, ds, step * job->global_batch,
                                                   job->global_batch, max_len, s->n, &groups);
        if (st == DH_OK) count_step(&groups, 1.0 / (double)s->n_steps, s);
        dh_length_groups_fini(&groups);
        DH_TRY(st);
    }
    for (size_t i = 0; i < s->n; i++) s->tokens += s->groups[i].load.tokens;
    return DH_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A rank's bytes in its slab for each part, most of all programs (switch.c draws where). */
typedef struct rank_room {
    uint64_t home, places[2], messages, transient;
} rank_room;

/* NULL: nobody asks. */
typedef struct room {
    rank_room *at; /* [n] by rank */
    int64_t n;
    int place; /* place of the simulated group, if it is away from home */
} room;

/* Of passes: ranks of one stage are alike. */
static void take_transient(const dh_sim *sim, const dh_mesh *mesh, room *in)
{
    for (size_t k = 0; in && k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        const uint64_t n_bytes = r->memory.peak_bytes - r->program->persistent_bytes;
        for (int64_t i = 0; i < in->n; i++)
            if (dh_mesh_coord(mesh, i).pp == r->stage)
                in->at[i].transient = DH_MAX(in->at[i].transient, n_bytes);
    }
}

/* Take the room of moves between the home and the layout right after it. */
static void take_layouts(const dh_reshard *r, bool back, room *in)
{
    for (int64_t i = 0; in && i < in->n; i++) {
        const uint64_t home = r->holdings[back][i].end;
        uint64_t *place = &in->at[i].places[in->place];
        in->at[i].home = home;
        *place = DH_MAX(*place, r->holdings[!back][i].end - home);
    }
}

static void take_messages(const dh_sim *sim, room *in)
{
    for (size_t k = 0; in && k < sim->n_classes; k++) {
        const dh_sim_memory *m = &sim->ranks[k].memory;
        uint64_t *messages = &in->at[sim->ranks[k].rank].messages;
        *messages = DH_MAX(*messages, m->peak_activations + m->peak_scratch);
    }
}

/* With all of it at once, on the rank with most. */
static uint64_t most_room(const room *in)
{
    uint64_t most = 0;
    for (int64_t i = 0; i < in->n; i++) {
        const rank_room *r = &in->at[i];
        most = DH_MAX(most, r->home + r->places[0] + r->places[1] + r->messages + r->transient);
    }
    return most;
}

/* ---- programs -------------------------------------------------------------------------------- */

/* Attention in a row of documents sees as many keys as in one document with this window:
 * w (w + 1) + 2 w (T - w) pairs twice. */
static int64_t window_of(double pairs_twice, int64_t seq)
{
    const double b = 2.0 * (double)seq + 1, root = b * b - 4 * pairs_twice;
    if (pairs_twice <= 0 || root <= 0) return 0;
    return DH_MAX(1, (int64_t)((b - sqrt(root)) / 2 + 0.5));
}

static void see_documents(double row_pairs_twice, dh_recipe *r)
{
    const int64_t window = window_of(row_pairs_twice, r->seq);
    if (window == 0 || window >= r->seq) return;
    if (r->model.window > 0 && r->model.window <= window) return;
    r->model.window = window;
    r->model.window_from = r->model.window_every = 0;
}

static dh_status simulate_part(dh_ctx *ctx, const dh_recipe *recipe, const dh_sim_options *options,
                               room *in, int64_t *ns, uint64_t *peak, uint64_t *persistent)
{
    dh_sim *sim;
    DH_TRY(dh_simulate(ctx, recipe, recipe->costs, options, &sim));
    *ns = sim->step_ns;
    *peak = *persistent = 0;
    for (size_t k = 0; k < sim->n_classes; k++) {
        *peak = DH_MAX(*peak, sim->ranks[k].memory.peak_bytes);
        *persistent = DH_MAX(*persistent, sim->ranks[k].program->persistent_bytes);
    }
    take_transient(sim, &recipe->mesh, in);
    dh_sim_destroy(sim);
    return DH_OK;
}

dh_status dh_switched_first_of(dh_ctx *ctx, const dh_recipe *recipe, double row_pairs_twice,
                               int64_t cores, dh_switched_pass *pass)
{
    const dh_sim_options options = {
        .part = DH_PART_GRADS, .goes_on = true, .lean = true, .cores = cores};
    dh_recipe r = *recipe;
    see_documents(row_pairs_twice, &r);
    pass->rows = r.mesh.dp * r.micro_batch * r.n_micro;
    DH_TRY(simulate_part(ctx, &r, &options, NULL, &pass->ns[1], &pass->peak_bytes,
                         &pass->persistent_bytes));
    pass->ns[0] = pass->ns[1];
    return DH_OK;
}

static dh_status price_pass(dh_ctx *ctx, const dh_recipe *recipe, bool at_home,
                            double row_pairs_twice, int64_t cores, room *in, dh_switched_pass *pass)
{
    dh_recipe r = *recipe;
    see_documents(row_pairs_twice, &r);
    pass->rows = r.mesh.dp * r.micro_batch * r.n_micro;
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        const dh_sim_options options = {
            .part = DH_PART_GRADS, .goes_on = goes_on != 0, .lean = !at_home, .cores = cores};
        uint64_t peak, persistent;
        DH_TRY(simulate_part(ctx, &r, &options, in, &pass->ns[goes_on], &peak, &persistent));
        pass->peak_bytes = goes_on ? DH_MAX(pass->peak_bytes, peak) : peak;
        pass->persistent_bytes = at_home ? 0 : persistent;
    }
    return DH_OK;
}

dh_status dh_switched_pass_of(dh_ctx *ctx, const dh_recipe *recipe, bool at_home,
                              double row_pairs_twice, int64_t cores, dh_switched_pass *pass)
{
    return price_pass(ctx, recipe, at_home, row_pairs_twice, cores, NULL, pass);
}

dh_status dh_switched_update_of(dh_ctx *ctx, const dh_recipe *home, int64_t cores, int64_t *ns,
                                uint64_t *bytes)
{
    const dh_sim_options options = {.part = DH_PART_UPDATE, .cores = cores};
    uint64_t peak;
    return simulate_part(ctx, home, &options, NULL, ns, &peak, bytes);
}

double dh_switched_rows_ns(const dh_switched_pass *pass, double rows)
{
    const double n = ceil(rows / (double)pass->rows);
    return n > 0 ? (double)pass->ns[0] + (n - 1) * (double)pass->ns[1] : 0;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Programs of all ranks that move parameters, or (back) gradients, which are added. */
typedef struct move {
    dh_reshard reshard;
    dh_program **programs; /* [ranks] */
} move;

static void move_fini(move *m)
{
    for (int64_t i = 0; m->programs && i < m->reshard.n_ranks; i++)
        dh_program_destroy(m->programs[i]);
    free(m->programs);
    dh_reshard_fini(&m->reshard);
}

/* Free with move_fini, also after a failure. */
static dh_status move_make(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool back,
                           bool beside, move *m)
{
    *m = (move){.programs = NULL};
    dh_reshard *r = &m->reshard;
    DH_TRY(dh_switch_plan(ctx, home, away, back, beside, 0, r));
    r->adds = back;
    m->programs = calloc((size_t)r->n_ranks, sizeof(dh_program *));
    if (!m->programs) return dh_no_memory(ctx);
    for (int64_t i = 0; i < r->n_ranks; i++)
        DH_TRY(dh_reshard_program(ctx, r, i, 0, NULL, &m->programs[i]));
    return DH_OK;
}

static dh_status price_move(dh_ctx *ctx, const dh_costs *costs, const move *m, int64_t cores,
                            room *in, int64_t *ns, int64_t *bytes)
{
    const dh_sim_options options = {.cores = cores};
    dh_reshard_sum sum;
    dh_sim *sim;
    DH_TRY(dh_reshard_sum_up(ctx, &m->reshard, DH_RESHARD_EVEN_WIRES, &sum));
    *bytes = sum.local_bytes + sum.cross_bytes;
    DH_TRY(dh_simulate_programs(ctx, (const dh_program *const *)m->programs,
                                (size_t)m->reshard.n_ranks, costs, &options, &sim));
    *ns = sim->step_ns;
    take_messages(sim, in);
    dh_sim_destroy(sim);
    return DH_OK;
}

static dh_status price_moves(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool beside,
                             int64_t cores, room *in, dh_switched_moves *moves)
{
    dh_status st = DH_OK;
    for (int back = 0; st == DH_OK && back < 2; back++) {
        move m;
        st = move_make(ctx, home, away, back != 0, beside, &m);
        if (st == DH_OK) take_layouts(&m.reshard, back != 0, in);
        if (st == DH_OK)
            st = price_move(ctx, home->costs, &m, cores, in,
                            back ? &moves->grads_ns : &moves->params_ns,
                            back ? &moves->grads_bytes : &moves->params_bytes);
        move_fini(&m);
    }
    return st;
}

dh_status dh_switched_moves_of(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away,
                               bool beside, int64_t cores, dh_switched_moves *moves)
{
    return price_moves(ctx, home, away, beside, cores, NULL, moves);
}

/* ---- moves beside passes --------------------------------------------------------------------- */

/* Passes and a move at the same time.
 *   slower     factor on the passes' time meanwhile
 *   needs_ns   work of the passes, by their times alone, that is over when the move is; 0: either
 *              stands while the other runs */
typedef struct overlap {
    double slower, needs_ns;
} overlap;

/* From one pass beside the move, by when either ended and by what they take alone: the other one
 * went on by itself. */
static overlap overlap_of(double pass_ns, double move_ns, double pass_end, double move_end)
{
    const overlap none = {0, 0};
    if (move_end <= pass_end) {
        const double done = pass_ns - (pass_end - move_end);
        return done > 0 ? (overlap){move_end / done, done} : none;
    }
    const double left = (move_end - pass_end) / move_ns;
    return left < 1 ? (overlap){pass_end / pass_ns, pass_ns / (1 - left)} : none;
}

/* Of passes that take so long alone, beside moves one after another: how much sooner all are done
 * than in turn. */
static double hidden_by(double passes_ns, const overlap *beside, const double *move_ns, size_t n)
{
    double hidden = 0;
    for (size_t i = 0; i < n; i++) {
        const double over = DH_MIN(passes_ns, beside[i].needs_ns);
        if (over <= 0) continue;
        hidden += over / beside[i].needs_ns * move_ns[i] - over * (beside[i].slower - 1);
        passes_ns -= over;
    }
    return hidden;
}

static dh_status overlap_with(dh_ctx *ctx, const dh_switched *s, const dh_switched_group *passes,
                              const dh_recipe *home, const dh_switched_group *away, bool back,
                              overlap *o)
{
    const double move_ns = (double)(back ? away->moves.grads_ns : away->moves.params_ns);
    dh_recipe r = passes->job->recipe;
    move m;
    see_documents(passes->load.pairs_twice / DH_MAX(passes->load.rows, 1e-9), &r);
    dh_status st = move_make(ctx, home, &away->job->recipe, back, true, &m);
    const dh_sim_options options = {.part = DH_PART_GRADS,
                                    .goes_on = true,
                                    .lean = !passes->at_home,
                                    .beside = (const dh_program *const *)m.programs,
                                    .cores = s->cores};
    dh_sim *sim = NULL;
    if (st == DH_OK) st = dh_simulate(ctx, &r, r.costs, &options, &sim);
    if (st == DH_OK)
        *o = overlap_of((double)passes->pass.ns[1], move_ns, (double)sim->step_ns,
                        (double)sim->beside_ns);
    dh_sim_destroy(sim);
    move_fini(&m);
    return st;
}

/* Computation of a group alone in a step with documents of it; most steps have some. */
static double passes_ns(const dh_switched_group *g)
{
    const double more = DH_MAX(g->passes - 1, 0);
    return (double)g->pass.ns[0] + more * (double)g->pass.ns[1];
}

/* Groups by when a step computes them: the last one at home, then the others; a step without
 * documents of one goes past it. */
static size_t order_groups(dh_switched *s, dh_switched_group **order)
{
    size_t n = 0;
    for (int away = 0; away < 2; away++)
        for (size_t i = 0; i < s->n; i++) {
            dh_switched_group *g = &s->groups[i];
            if (g->passes <= 0 || g->at_home == (away != 0)) continue;
            if (!away) n = 0;
            order[n++] = g;
        }
    return n;
}

/* Parameters of the next group and gradients of the one before, beside a group's passes. */
static dh_status hide_beside(dh_ctx *ctx, dh_switched *s, const dh_recipe *home,
                             dh_switched_group *const *order, size_t i, size_t n)
{
    const dh_switched_group *g = order[i];
    overlap beside[2];
    double ns[2];
    size_t n_moves = 0;
    if (i > 0 && !order[i - 1]->at_home) {
        ns[n_moves] = (double)order[i - 1]->moves.grads_ns;
        DH_TRY(overlap_with(ctx, s, g, home, order[i - 1], true, &beside[n_moves++]));
    }
    if (i + 1 < n) {
        ns[n_moves] = (double)order[i + 1]->moves.params_ns;
        DH_TRY(overlap_with(ctx, s, g, home, order[i + 1], false, &beside[n_moves++]));
    }
    double alone = passes_ns(g), often = DH_MIN(1, g->passes);
    for (size_t k = 0; k < s->n && g->at_home; k++) /* all at home are computed meanwhile */
        if (s->groups[k].at_home && &s->groups[k] != g && s->groups[k].passes > 0)
            alone += s->groups[k].passes * (double)s->groups[k].pass.ns[1];
    if (i + 1 < n) often = DH_MIN(often, order[i + 1]->passes);
    s->hidden_ns += often * DH_MAX(hidden_by(alone, beside, ns, n_moves), 0);
    return DH_OK;
}

static dh_status hide_moves(dh_ctx *ctx, const dh_recipe *home, dh_switched *s)
{
    dh_switched_group *order[DH_MAX_SWITCH_GROUPS];
    const size_t n = order_groups(s, order);
    for (size_t i = 0; i < n && n > 1; i++) DH_TRY(hide_beside(ctx, s, home, order, i, n));
    s->step_ns -= s->hidden_ns;
    return DH_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static dh_status price_group(dh_ctx *ctx, const dh_resolved *job, dh_switched *s,
                             dh_switched_group *g, room *in)
{
    const double rows = DH_MAX(g->load.rows, 1e-9);
    const dh_recipe *home = &job->recipe;
    g->at_home = dh_recipes_lie_alike(&g->job->recipe, home);
    DH_TRY(price_pass(ctx, &g->job->recipe, g->at_home, g->load.pairs_twice / rows, s->cores, in,
                      &g->pass));
    if (!g->at_home) {
        in->place = !in->place; /* neighbours lie apart */
        DH_TRY(price_moves(ctx, home, &g->job->recipe, job->job.switch_overlap, s->cores, in,
                           &g->moves));
    }
    s->peak_bytes = DH_MAX(s->peak_bytes, g->pass.peak_bytes + (g->at_home ? 0 : s->home_bytes));
    if (g->passes <= 0) return DH_OK;
    const double last = DH_MIN(1, g->passes); /* of few documents not every step has some */
    g->ns = last * (double)(g->pass.ns[0] + g->moves.params_ns + g->moves.grads_ns) +
            (g->passes - last) * (double)g->pass.ns[1];
    s->step_ns += g->ns;
    return DH_OK;
}

/* All rows of a step over the last group's mesh. */
static dh_status price_packed(dh_ctx *ctx, const dh_resolved *job, dh_switched *s)
{
    const dh_recipe *r = &s->groups[s->n - 1].job->recipe;
    const double rows = (double)job->job.global_batch;
    dh_switched_pass pass = {0};
    int64_t update_ns;
    uint64_t bytes;
    double pairs = 0;
    for (size_t i = 0; i < s->n; i++) pairs += s->groups[i].load.pairs_twice;
    DH_TRY(dh_switched_pass_of(ctx, r, true, pairs / rows, s->cores, &pass));
    DH_TRY(dh_switched_update_of(ctx, r, s->cores, &update_ns, &bytes));
    s->packed_ns = dh_switched_rows_ns(&pass, rows) + (double)update_ns;
    s->packed_bytes = pass.peak_bytes;
    return DH_OK;
}

dh_status dh_switched_simulate(dh_ctx *ctx, const dh_resolved *job, const dh_dataset *ds,
                               dh_switched *s)
{
    *s = (dh_switched){.n = job->n_groups, .cores = dh_train_cores(job)};
    for (size_t i = 0; i < s->n; i++) s->groups[i].job = job->groups[i];
    DH_TRY(count_steps(ctx, &job->job, ds, s));
    DH_TRY(dh_switched_update_of(ctx, &job->recipe, s->cores, &s->update_ns, &s->home_bytes));
    s->peak_bytes = s->home_bytes;
    s->step_ns = (double)s->update_ns;
    room in = {.n = job->recipe.mesh.ranks, .place = 1};
    in.at = calloc((size_t)in.n, sizeof *in.at);
    dh_status st = in.at ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < s->n; i++)
        st = price_group(ctx, job, s, &s->groups[i], &in);
    if (job->job.switch_overlap && st == DH_OK) {
        s->peak_bytes = DH_MAX(s->peak_bytes, most_room(&in));
        st = hide_moves(ctx, &job->recipe, s);
    }
    free(in.at);
    DH_TRY(st);
    return price_packed(ctx, job, s);
}
