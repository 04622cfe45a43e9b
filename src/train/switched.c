/* Steps over several meshes, simulated (switched.h). */
#include "train/switched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/groups.h"
#include "program/reshard.h"
#include "sim/sim.h"
#include "train/run.h"
#include "train/simulation.h"
#include "train/switch.h"

/* ---- documents ------------------------------------------------------------------------------- */

enum { MAX_LENGTHS_BYTES = 1 << 28 };

typedef DH_VEC(int64_t) length_list;

static dh_status add_length(dh_ctx *ctx, const char *path, const char *text, size_t line,
                            length_list *list)
{
    int64_t n;
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "\r\n"), text);
    if (!*word) return DH_OK;
    if (!dh_parse_i64(word, &n) || n < 0)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s:%zu: \"%s\": a document's number of tokens is wanted, one a line", path,
                       line, word);
    return dh_vec_push(list, n) ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory for lengths");
}

static dh_status read_lengths(dh_ctx *ctx, const char *path, length_list *list)
{
    char *text;
    size_t n_bytes, line = 1;
    DH_TRY(dh_file_read(ctx, path, MAX_LENGTHS_BYTES, &text, &n_bytes));
    dh_status st = DH_OK;
    for (const char *at = text; st == DH_OK && at < text + n_bytes; line++) {
        st = add_length(ctx, path, at, line, list);
        at += strcspn(at, "\n");
        at += at < text + n_bytes;
    }
    free(text);
    return st;
}

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
                                dh_dataset **ds)
{
    length_list list = {0};
    if (!path) return open_data(ctx, job, ds);
    dh_status st = read_lengths(ctx, path, &list);
    if (st == DH_OK)
        st = dh_dataset_of_lengths(ctx, list.at, list.n, job->job.seq_len, job->job.seed, ds);
    dh_vec_fini(&list);
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
                               int64_t *ns, uint64_t *peak, uint64_t *persistent)
{
    dh_sim *sim;
    DH_TRY(dh_simulate(ctx, recipe, recipe->costs, options, &sim));
    *ns = sim->step_ns;
    *peak = *persistent = 0;
    for (size_t k = 0; k < sim->n_classes; k++) {
        *peak = DH_MAX(*peak, sim->ranks[k].memory.peak_bytes);
        *persistent = DH_MAX(*persistent, sim->ranks[k].program->persistent_bytes);
    }
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
    DH_TRY(
        simulate_part(ctx, &r, &options, &pass->ns[1], &pass->peak_bytes, &pass->persistent_bytes));
    pass->ns[0] = pass->ns[1];
    return DH_OK;
}

dh_status dh_switched_pass_of(dh_ctx *ctx, const dh_recipe *recipe, bool at_home,
                              double row_pairs_twice, int64_t cores, dh_switched_pass *pass)
{
    dh_recipe r = *recipe;
    see_documents(row_pairs_twice, &r);
    pass->rows = r.mesh.dp * r.micro_batch * r.n_micro;
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        const dh_sim_options options = {
            .part = DH_PART_GRADS, .goes_on = goes_on != 0, .lean = !at_home, .cores = cores};
        uint64_t peak, persistent;
        DH_TRY(simulate_part(ctx, &r, &options, &pass->ns[goes_on], &peak, &persistent));
        pass->peak_bytes = goes_on ? DH_MAX(pass->peak_bytes, peak) : peak;
        pass->persistent_bytes = at_home ? 0 : persistent;
    }
    return DH_OK;
}

dh_status dh_switched_update_of(dh_ctx *ctx, const dh_recipe *home, int64_t cores, int64_t *ns,
                                uint64_t *bytes)
{
    const dh_sim_options options = {.part = DH_PART_UPDATE, .cores = cores};
    uint64_t peak;
    return simulate_part(ctx, home, &options, ns, &peak, bytes);
}

double dh_switched_rows_ns(const dh_switched_pass *pass, double rows)
{
    const double n = ceil(rows / (double)pass->rows);
    return n > 0 ? (double)pass->ns[0] + (n - 1) * (double)pass->ns[1] : 0;
}

/* ---- moves ----------------------------------------------------------------------------------- */

static dh_status simulate_move(dh_ctx *ctx, const dh_reshard *r, const dh_costs *costs,
                               int64_t cores, int64_t *ns)
{
    const dh_sim_options options = {.cores = cores};
    dh_program **programs = calloc((size_t)r->n_ranks, sizeof(dh_program *));
    dh_sim *sim = NULL;
    dh_status st =
        programs ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory simulating a switch of meshes");
    for (int64_t i = 0; st == DH_OK && i < r->n_ranks; i++)
        st = dh_reshard_program(ctx, r, i, 0, NULL, &programs[i]);
    if (st == DH_OK)
        st = dh_simulate_programs(ctx, (const dh_program *const *)programs, (size_t)r->n_ranks,
                                  costs, &options, &sim);
    if (st == DH_OK) *ns = sim->step_ns;
    dh_sim_destroy(sim);
    for (int64_t i = 0; programs && i < r->n_ranks; i++) dh_program_destroy(programs[i]);
    free(programs);
    return st;
}

/* back: gradients, which are added; else parameters. */
static dh_status price_move(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away, bool back,
                            int64_t cores, int64_t *ns, int64_t *bytes)
{
    dh_reshard r;
    dh_reshard_sum sum;
    DH_TRY(dh_switch_plan(ctx, home, away, back, &r));
    r.adds = back;
    dh_status st = dh_reshard_sum_up(ctx, &r, DH_RESHARD_EVEN_WIRES, &sum);
    if (st == DH_OK) {
        *bytes = sum.local_bytes + sum.cross_bytes;
        st = simulate_move(ctx, &r, home->costs, cores, ns);
    }
    dh_reshard_fini(&r);
    return st;
}

dh_status dh_switched_moves_of(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away,
                               int64_t cores, dh_switched_moves *moves)
{
    DH_TRY(price_move(ctx, home, away, false, cores, &moves->params_ns, &moves->params_bytes));
    return price_move(ctx, home, away, true, cores, &moves->grads_ns, &moves->grads_bytes);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static dh_status price_group(dh_ctx *ctx, const dh_recipe *home, dh_switched *s,
                             dh_switched_group *g)
{
    const double rows = DH_MAX(g->load.rows, 1e-9);
    g->at_home = dh_recipes_lie_alike(&g->job->recipe, home);
    DH_TRY(dh_switched_pass_of(ctx, &g->job->recipe, g->at_home, g->load.pairs_twice / rows,
                               s->cores, &g->pass));
    if (!g->at_home) DH_TRY(dh_switched_moves_of(ctx, home, &g->job->recipe, s->cores, &g->moves));
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
    for (size_t i = 0; i < s->n; i++) DH_TRY(price_group(ctx, &job->recipe, s, &s->groups[i]));
    return price_packed(ctx, job, s);
}
