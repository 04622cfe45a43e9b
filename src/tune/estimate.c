/* Step time and memory of one configuration, from what is computed once for all that share
 * it.
 *
 * A step of many micro-batches repeats itself: beyond a few for each stage, every further
 * one adds the same. Schedules are timed for two such numbers, and the rest is a straight
 * line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/recipe.h"
#include "tune/estimate.h"

/* Sums of many terms in another order. */
#define ROUNDING 1e-9

/* ---- one configuration -------------------------------------------------------------------- */

/* Policies that search at length are estimated by one that comes close in no time. TUNING:
 * simulated steps of Llama 3 70B on 128 A100 are 2 to 4 % longer by list than by auto. Barriers
 * cost more than that, and only policies that plan pairs have them: 7 % of that step. */
static const struct {
    const char *policy, *by, *by_with_barriers;
} stand_ins[] = {{"exact", "list", "dp"}, {"auto", "list", "list"}};

static dh_status use_stand_in(dh_ctx *ctx, dh_ordering *ordering)
{
    for (size_t i = 0; i < DH_COUNTOF(stand_ins); i++)
        if (strcmp(ordering->policy->name, stand_ins[i].policy) == 0)
            return dh_order_policy_find(
                ctx, ordering->options.barriers ? stand_ins[i].by_with_barriers : stand_ins[i].by,
                &ordering->policy);
    return DH_OK;
}

/* Fill the recipe with the configuration's values, except its strategy. Mesh and micro-batch are
 * there already. */
static dh_status describe(estimate *e)
{
    dh_ctx *ctx = e->ctx;
    const tuner *t = e->t;
    const int64_t *at = e->row->config.at;
    dh_recipe *r = &e->spec.recipe;
    tune_system system;
    size_t n;
    dh_job shared = *t->job;
    tune_share_out(&e->row->config, &shared);
    dh_recipe_share_out(&shared, r);
    r->fuse = dh_fuse_pieces(shared.fuse);
    r->post_validation = shared.post_validation;
    if (tune_split_text(&e->row->config)) r->layer_split = tune_split_text(&e->row->config);
    if (at[DH_TUNE_CP_LINEAR] >= 0) r->linear_ring = at[DH_TUNE_CP_LINEAR] == DH_CP_LINEAR_LASP1;
    e->schedule = dh_schedule_rows(&n)[at[DH_TUNE_SCHEDULE]];
    /* as dh_job_schedule has it */
    if (r->mesh.pp == 1 && !dh_schedule_orders_one_stage(e->schedule))
        DH_TRY(dh_schedule_find(ctx, "1f1b", &e->schedule));
    DH_TRY(tune_system_of(ctx, t, at[DH_TUNE_RECOMPUTE], &system));
    r->recompute = dh_recipe_recompute(&system.row, (dh_recompute_kind)at[DH_TUNE_RECOMPUTE]);
    const dh_costs *by = t->costs_by[r->sharing.sequence][at[DH_TUNE_RECOMPUTE]];
    if (by) r->costs = by;
    return DH_OK;
}

static dh_status use_strategy(estimate *e)
{
    size_t n;
    dh_recipe *r = &e->spec.recipe;
    const dh_strategy *strategy = &dh_strategies(&n)[e->row->config.at[DH_TUNE_STRATEGY]];
    dh_job own = *e->t->job;
    own.schedule = (char *)(uintptr_t)e->schedule->name; /* only read */
    DH_TRY(dh_recipe_use(e->ctx, &own, strategy, r));
    DH_TRY(use_stand_in(e->ctx, &r->ordering));
    return tune_decide(e);
}

/* ---- basis -------------------------------------------------------------------------------- */

/* Time that computation loses during a transfer. A transfer that would not progress then waits. */
static double lost_ns(const estimate *e, const dh_cost_op *transfer, double ns)
{
    const tune_speeds speeds = tune_speeds_beside(
        e->spec.recipe.costs, e->basis.blocks->at[e->basis.blocks->most].graph, true, transfer);
    return speeds.comm > 0 ? ns / speeds.comm * (1 - speeds.own) : 0;
}

/* One message from stage to stage. */
static dh_status find_transfer(estimate *e)
{
    const dh_recipe *s = &e->spec.recipe;
    dh_graph *g;
    e->basis.transfer = (tune_transfer){.one_link = s->one_link_stream};
    if (s->mesh.pp == 1) return DH_OK;
    DH_TRY(dh_graph_build_link(e->ctx, true, DH_GROUP_PP, dh_recipe_stream_rows(s), s->model.width,
                               s->dtype, s->model.n_experts, &g));
    tune_transfer *t = &e->basis.transfer;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_cost_op at = {g, &g->ops.at[i], &s->mesh, 0};
        const double ns = s->costs->solo(s->costs->self, &at).ns;
        t->slows += lost_ns(e, &at, ns);
        t->ns += ns + s->costs->event_ns + s->costs->launch_ns;
    }
    if (t->ns > 0) t->slows /= t->ns;
    dh_graph_destroy(g);
    return DH_OK;
}

/* ---- putting it together -------------------------------------------------------------------- */

static dh_status reserve(estimate *e)
{
    tuner *t = e->t;
    const size_t n_ranks = (size_t)e->long_one->n_ranks;
    const size_t n = (size_t)DH_MAX(e->long_one->n_slots, e->short_one->n_slots) + 1;
    const size_t n_classes = (size_t)DH_MAX(e->long_one->n_classes, e->short_one->n_classes);
    const size_t n_stages = (size_t)e->long_one->schedule->n_stages;
    const size_t n_types = (size_t)DH_MAX(e->long_one->n_types, e->short_one->n_types);
    const size_t bytes =
        n * sizeof(double) + n_classes * sizeof(tune_slot_cost) + n_types * sizeof(tune_held) +
        n_stages * sizeof(tune_behind) +
        n_ranks * (2 * sizeof(tune_rank_end) + 2 * sizeof(double) + sizeof(tune_outline *));
    if (bytes > t->n_scratch) {
        double *more = realloc(t->scratch, 2 * bytes);
        if (!more) return dh_no_memory(e->ctx);
        t->scratch = more;
        t->n_scratch = 2 * bytes;
    }
    e->costs = (tune_slot_cost *)(t->scratch + n);
    e->held = (tune_held *)(e->costs + n_classes);
    e->behind = (tune_behind *)(e->held + n_types);
    e->ends = (tune_rank_end *)(e->behind + n_stages);
    e->short_ends = e->ends + n_ranks;
    e->heads = (double *)(e->short_ends + n_ranks);
    e->tails = e->heads + n_ranks;
    e->outlines = (const tune_outline **)(e->tails + n_ranks);
    return DH_OK;
}

/* Micro-batches left out, in units of the difference between the two timetables. */
static double left_out(const estimate *e)
{
    const double n_long = (double)e->long_one->schedule->n_micro;
    const double n_short = (double)e->short_one->schedule->n_micro;
    return n_long > n_short ? ((double)e->spec.recipe.n_micro - n_long) / (n_long - n_short) : 0;
}

/* A head's gradients are made in its forward, unless a strategy orders its operators. Where those of
 * every micro-batch are reduced they are whole until the backward; one micro-batch's are among
 * what the outline counts. */
static double head_bytes(const estimate *e, const tune_timetable *table)
{
    const dh_ordering *by = &e->spec.recipe.ordering;
    const bool orders = by->policy->order || by->options.barriers;
    return orders
               ? 0
               : (double)e->outlines[table->schedule->rank_of[table->schedule->n_stages - 1]]->head;
}

static void peaks_of_one(estimate *e, const tune_timetable *table, tune_rank_end *ends)
{
    const int32_t last = table->schedule->rank_of[table->schedule->n_stages - 1];
    const double head = head_bytes(e, table);
    for (int32_t c = 0; c < table->n_classes; c++)
        e->costs[c] = tune_slot_cost_of(&e->basis, table, &table->classes[c]);
    for (int32_t k = 0; k < table->n_types; k++)
        e->held[k] = tune_held_of(e->basis.blocks, &table->types[k]);
    for (int32_t k = 0; k < table->n_types; k++)
        if (table->types[k].head) e->held[k].whole_bytes += head;
    for (int32_t r = 0; r < table->n_ranks; r++)
        ends[r].peak_bytes =
            DH_MAX(tune_moments_peak(table, r, e->costs, e->held) - (r == last ? head : 0), 0.0);
}

/* Without times, which most configurations do not get to. */
static void find_peaks(estimate *e)
{
    const double k = left_out(e);
    if (k > 0) peaks_of_one(e, e->short_one, e->short_ends);
    peaks_of_one(e, e->long_one, e->ends);
    for (int32_t r = 0; k > 0 && r < e->long_one->n_ranks; r++)
        e->ends[r].peak_bytes += k * (e->ends[r].peak_bytes - e->short_ends[r].peak_bytes);
}

/* A slot without anything beside it. floors: tune_slot_floor_ns, else what it takes. */
static double alone_ns(const estimate *e, dh_pipe_kind kind, int32_t type, bool floors)
{
    const tune_class c = {.kind = (int32_t)kind, .f = -1, .type = type};
    return floors ? tune_slot_floor_ns(e->basis.blocks, e->long_one, &c)
                  : tune_slot_cost_of(&e->basis, e->long_one, &c).ns;
}

/* A rank begins when a micro-batch has gone through the stages before its first one. With whole
 * backwards, the last one goes on through these stages after the rank's last slot. These slots
 * have no partners: those of the forwards have not begun, those of the backwards have ended.
 * Transfers come on top. */
static void find_ends_of_pipe(estimate *e, bool floors)
{
    const tune_timetable *t = e->long_one;
    const dh_schedule *s = t->schedule;
    const bool whole = s->n_copies == 1 && !e->schedule->split_backward;
    double f_ns = 0, b_ns = 0;
    int32_t known = -1; /* type of these: stages that are alike follow each other */
    for (int32_t r = 0; r < t->n_ranks; r++) e->heads[r] = e->tails[r] = INFINITY;
    for (int32_t c = 0; c < s->n_copies; c++) {
        double head = 0, tail = 0;
        for (int32_t v = 0; v < s->n_stages; v++) {
            const int32_t r = s->rank_of[c * s->n_stages + v];
            if (t->type_of[v] != known) {
                known = t->type_of[v];
                f_ns = alone_ns(e, DH_PIPE_F, known, floors);
                b_ns = whole ? alone_ns(e, DH_PIPE_B, known, floors) : 0;
            }
            e->heads[r] = DH_MIN(e->heads[r], head);
            e->tails[r] = DH_MIN(e->tails[r], tail);
            head += f_ns;
            tail += b_ns;
        }
    }
}

/* Least time of a rank's slots by floors of classes, without any wait between them. */
static double least_of_rank(const tune_timetable *t, int32_t rank, const tune_slot_cost *costs)
{
    double ns = 0;
    const int32_t *counts = &t->counts[(ptrdiff_t)rank * t->n_classes];
    for (int32_t c = 0; c < t->n_classes; c++) ns += counts[c] * costs[c].ns;
    return ns;
}

static void floors_of_one(estimate *e, const tune_timetable *table, tune_rank_end *ends)
{
    for (int32_t c = 0; c < table->n_classes; c++)
        e->costs[c].ns = tune_slot_floor_ns(e->basis.blocks, table, &table->classes[c]);
    for (int32_t r = 0; r < table->n_ranks; r++)
        ends[r].busy_ns = least_of_rank(table, r, e->costs);
}

/* No estimate of the configuration's step is below this, whatever its order of operators. Each rank
 * runs the operators of its slots, between the pipeline's head and tail, and the optimizer.
 */
static double least_step_ns(estimate *e)
{
    const bool ahead = dh_recipe_is_post_validated(&e->spec.recipe);
    const double k = left_out(e);
    double most = 0, optimizer = 0;
    if (k > 0) floors_of_one(e, e->short_one, e->short_ends);
    floors_of_one(e, e->long_one, e->ends);
    find_ends_of_pipe(e, true);
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        const double own = e->outlines[r]->optimizer_ns;
        double ns = e->heads[r] + e->ends[r].busy_ns;
        if (k > 0) ns += k * (e->ends[r].busy_ns - e->short_ends[r].busy_ns);
        most = DH_MAX(most, ns + DH_MAX(e->tails[r], ahead ? own : 0));
        optimizer = DH_MAX(optimizer, own);
    }
    return ahead ? most : most + optimizer;
}

static dh_status run_one(estimate *e, const tune_timetable *table, tune_rank_end *ends)
{
    for (int32_t c = 0; c < table->n_classes; c++) {
        tune_slot_cost *cost = &e->costs[c];
        *cost = tune_slot_cost_of(&e->basis, table, &table->classes[c]);
        DH_TRY(tune_reductions_beside(e, table, &table->classes[c], cost));
    }
    for (int32_t v = 0; v < table->schedule->n_stages; v++)
        e->behind[v] = tune_reductions_behind(e, table, v);
    tune_timetable_run(table, e->costs, e->basis.transfer, e->behind, e->t->scratch, ends);
    return DH_OK;
}

static dh_status run_schedule(estimate *e)
{
    const double k = left_out(e);
    double latest = 0;
    if (k > 0) DH_TRY(run_one(e, e->short_one, e->short_ends));
    DH_TRY(run_one(e, e->long_one, e->ends));
    if (k > 0) find_ends_of_pipe(e, false);
    for (int32_t r = 0; k > 0 && r < e->long_one->n_ranks; r++) {
        tune_rank_end *end = &e->ends[r];
        const tune_rank_end *before = &e->short_ends[r];
        end->end_ns += k * (end->end_ns - before->end_ns);
        end->busy_ns += k * (end->busy_ns - before->busy_ns);
        /* a straight line may be off */
        end->end_ns = DH_MAX(end->end_ns, e->heads[r] + end->busy_ns);
        latest = DH_MAX(latest, e->heads[r] + end->busy_ns + e->tails[r]);
    }
    tune_rank_end *last = &e->ends[e->long_one->schedule->rank_of[0]];
    last->end_ns = DH_MAX(last->end_ns, latest);
    return DH_OK;
}

/* Activations at the time when all whole gradients that do not persist exist. They are the most at
 * any time. But if all forwards come before the first backward, one micro-batch's are gone
 * then. */
static uint64_t beside_gradients(const estimate *e, int32_t rank, uint64_t activations)
{
    const int64_t n = e->spec.recipe.n_micro, in_flight = e->spec.recipe.mesh.pp - rank;
    return n > 1 && n <= in_flight ? activations - activations / (uint64_t)n : activations;
}

/* The share of one micro-batch in the activations that exist at once. */
static uint64_t of_one_micro(const estimate *e, int32_t rank, uint64_t activations)
{
    const int64_t in_flight = DH_MAX(e->spec.recipe.mesh.pp - rank, 1);
    return activations / (uint64_t)DH_MIN(e->spec.recipe.n_micro, in_flight);
}

static void find_peak(const estimate *e, dh_tune_memory *memory)
{
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        const tune_outline *o = e->outlines[r];
        const uint64_t all = DH_MAX((uint64_t)e->ends[r].peak_bytes, o->kept);
        uint64_t activations = beside_gradients(e, r, all), gradients = o->transient;
        gradients += o->reduced - DH_MIN(o->reduced, activations);
        gradients += o->last_pair - DH_MIN(o->last_pair, of_one_micro(e, r, all));
        if (all > activations + gradients) activations = all, gradients = 0;
        const uint64_t peak = o->persistent + activations + gradients;
        if (peak <= memory->peak_bytes) continue;
        *memory = (dh_tune_memory){.stage = r,
                                   .parameters = o->parameters,
                                   .gradients = o->gradients + gradients,
                                   .optimizer = o->optimizer,
                                   .activations = activations,
                                   .peak_bytes = peak};
    }
}

static dh_status count_items(const estimate *e, int32_t rank, double items[DH_N_TUNE_ITEM])
{
    const double k = left_out(e);
    const tune_timetable *tables[] = {e->long_one, e->short_one};
    const double weights[] = {1 + k, -k};
    for (int i = 0; i < (k > 0 ? 2 : 1); i++)
        for (int32_t c = 0; c < tables[i]->n_classes; c++) {
            const tune_class *cls = &tables[i]->classes[c];
            const double n = weights[i] * tables[i]->counts[rank * tables[i]->n_classes + c];
            if (n == 0) continue;
            tune_slot_cost cost = tune_slot_cost_of(&e->basis, tables[i], cls);
            tune_slot_items(&e->basis, tables[i], cls, cost.ns, n, items);
            if (i == 0) /* run last, so its costs are known */
                cost.delay_ns = e->costs[c].delay_ns;
            else
                DH_TRY(tune_reductions_beside(e, tables[i], cls, &cost));
            items[DH_TUNE_ITEM_DP] += n * cost.delay_ns;
        }
    return DH_OK;
}

/* A step begins on all ranks when the norm of the last one's gradients is there; with
 * post-validation on each when its own are. */
static dh_status find_step(const estimate *e, dh_tune_row *row)
{
    const bool ahead = dh_recipe_is_post_validated(&e->spec.recipe);
    double latest = 0, exposed = 0, optimizer = 0, most = 0, first;
    int32_t last = 0;
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        double behind = e->ends[r].left_ns;
        if (e->long_one->schedule->n_copies > 1) DH_TRY(tune_reductions_of_copies(e, r, &behind));
        const double own = e->outlines[r]->optimizer_ns;
        most = DH_MAX(most, own);
        if (e->ends[r].end_ns + behind + (ahead ? own : 0) <= latest) continue;
        latest = e->ends[r].end_ns + behind + (ahead ? own : 0);
        exposed = behind;
        optimizer = own;
        last = r;
    }
    if (!ahead) optimizer = most;
    DH_TRY(tune_first_gathers_delay(e, &first));
    row->step_ns = first + (ahead ? latest : latest + optimizer);
    memset(row->item_ns, 0, sizeof row->item_ns);
    DH_TRY(count_items(e, last, row->item_ns));
    row->item_ns[DH_TUNE_ITEM_DP] += first + exposed;
    row->item_ns[DH_TUNE_ITEM_OPTIMIZER] = optimizer;
    row->item_ns[DH_TUNE_ITEM_BUBBLE] = e->ends[last].end_ns - e->ends[last].busy_ns;
    return DH_OK;
}

static dh_status find_blocks(estimate *e)
{
    e->basis.launch_ns = e->spec.recipe.costs->launch_ns;
    DH_TRY(tune_find_blocks(e, e->spec.recipe.recompute, &e->basis.blocks));
    return tune_find_blocks(e, DH_RECOMPUTE_KIND_NONE, &e->basis.plain);
}

static dh_status find_schedule(estimate *e)
{
    DH_TRY(tune_find_timetables(e));
    DH_TRY(reserve(e));
    return tune_find_outlines(e);
}

/* ---- schedules that are placed by times ------------------------------------------------------ */

/* The same configuration with 1F1B, which has the same stages. */
static dh_status find_twin(const estimate *e, dh_tune_row *row, estimate *twin)
{
    size_t n, i = 0;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    *twin = *e;
    *row = *e->row;
    DH_TRY(dh_schedule_find(e->ctx, "1f1b", &twin->schedule));
    while (rows[i] != twin->schedule) i++;
    row->config.at[DH_TUNE_SCHEDULE] = (int64_t)i;
    twin->row = row;
    return find_schedule(twin);
}

/* Each rank has at some time a forward beside what persists. */
static double least_bytes(estimate *twin)
{
    const tune_timetable *t = twin->long_one;
    double most = 0;
    for (int32_t r = 0; r < t->n_ranks; r++) {
        const tune_class f = {.kind = DH_PIPE_F, .f = -1, .type = t->type_of[r]};
        most = DH_MAX(most, (double)twin->outlines[r]->persistent +
                                tune_slot_cost_of(&twin->basis, t, &f).peak_bytes);
    }
    return most;
}

/* The rank that has most to do, once the first micro-batch has come to it. */
static double least_ns(const estimate *twin)
{
    const tune_timetable *t = twin->long_one;
    const double n_micro = (double)twin->spec.recipe.n_micro;
    double most = 0, head = 0, backward = 0, ns[DH_N_PIPE_KINDS] = {0};
    for (int32_t r = 0; r < t->n_ranks; r++) {
        if (r == 0 || t->type_of[r] != t->type_of[r - 1]) {
            for (int kind = 0; kind < DH_N_PIPE_KINDS; kind++)
                ns[kind] = alone_ns(twin, (dh_pipe_kind)kind, t->type_of[r], !twin->basis.times);
            backward = DH_MIN(ns[DH_PIPE_B], ns[DH_PIPE_I] + ns[DH_PIPE_W]);
        }
        most = DH_MAX(most, head + n_micro * (ns[DH_PIPE_F] + backward));
        head += ns[DH_PIPE_F];
    }
    return most * (1 - ROUNDING);
}

/* ---- work alone ------------------------------------------------------------------------------ */

/* The configuration without the dimensions on which least work does not depend. */
static dh_tune_config without_order(const dh_tune_config *config)
{
    static const dh_tune_dim dims[] = {DH_TUNE_SCHEDULE, DH_TUNE_STAGES, DH_TUNE_STRATEGY,
                                       DH_TUNE_ZERO,     DH_TUNE_BUCKET, DH_TUNE_FUSE,
                                       DH_TUNE_POST,     DH_TUNE_SPLIT};
    dh_tune_config of = *config;
    for (size_t i = 0; i < DH_COUNTOF(dims); i++) of.at[dims[i]] = 0;
    return of;
}

/* The same for many configurations in a row, which come in the order of space.c. */
static dh_status find_least(const estimate *e, double *ns)
{
    tune_least *known = &e->t->least;
    const dh_tune_config of = without_order(&e->row->config);
    if (known->ns == 0 || memcmp(&known->of, &of, sizeof of) != 0) {
        estimate plain = *e;
        const dh_strategy *sequential;
        const tune_blocks *blocks;
        dh_job one = *e->t->job; /* has one strand, which these are not about */
        one.overlap_local = one.overlap_cross = one.overlap_comm_comm = true;
        DH_TRY(dh_strategy_find(e->ctx, "sequential", &sequential));
        DH_TRY(dh_recipe_use(e->ctx, &one, sequential, &plain.spec.recipe));
        DH_TRY(tune_find_blocks(&plain, plain.spec.recipe.recompute, &blocks));
        *known = (tune_least){of, tune_least_ns(blocks, &plain.spec.recipe)};
    }
    *ns = known->ns;
    return DH_OK;
}

/* Before anything that goes by the strategy, which takes nearly all of the time. */
static dh_status look_at_work(const estimate *e, const tune_limits *limits, dh_tune_row *row,
                              tune_outcome *outcome)
{
    double least_ns = 0;
    *outcome = TUNE_ESTIMATED;
    if (limits->worth_ns > 0) DH_TRY(find_least(e, &least_ns));
    if (least_ns <= limits->worth_ns) return DH_OK;
    row->step_ns = least_ns;
    *outcome = TUNE_BEHIND;
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static bool is_placed(const dh_schedule_row *row)
{
    return row->planned && row->placement == DH_PLACE_LINEAR;
}

/* A row that is placed by a search of its own takes as long as hundreds of others. It is left out
 * if the configuration cannot be one of the best, however well it is placed. */
static dh_status bound(const estimate *e, const tune_limits *limits, dh_tune_row *row,
                       tune_outcome *outcome)
{
    dh_tune_row stand_in;
    estimate twin;
    DH_TRY(find_twin(e, &stand_in, &twin));
    row->memory = (dh_tune_memory){.peak_bytes = (uint64_t)least_bytes(&twin)};
    row->fits = (double)row->memory.peak_bytes <= e->t->memory_bytes;
    row->step_ns = least_ns(&twin);
    if (limits->defer) {
        *outcome = TUNE_DEFERRED;
        return DH_OK;
    }
    if (row->fits ? row->step_ns > limits->step_ns
                  : (double)row->memory.peak_bytes >= limits->bytes) {
        *outcome = TUNE_LEFT_OUT;
        return DH_OK;
    }
    if (!row->fits || isinf(limits->step_ns)) return DH_OK;
    twin.schedule = e->schedule; /* that of split backwards */
    DH_TRY(tune_find_times(&twin, &twin.basis.times));
    if (least_ns(&twin) > limits->step_ns) *outcome = TUNE_LEFT_OUT;
    return DH_OK;
}

/* Estimate a configuration that was not left out. */
static dh_status estimate_schedule(estimate *e, const tune_limits *limits, dh_tune_row *row,
                                   tune_outcome *outcome)
{
    DH_TRY(find_schedule(e));
    find_peaks(e); /* memory first: most configurations end here */
    row->memory = (dh_tune_memory){0};
    find_peak(e, &row->memory);
    row->fits = (double)row->memory.peak_bytes <= e->t->memory_bytes;
    row->step_ns = 0;
    if (!row->fits) return DH_OK;
    if (least_step_ns(e) * (1 - ROUNDING) > limits->step_ns) {
        *outcome = TUNE_BOUNDED;
        return DH_OK;
    }
    DH_TRY(find_transfer(e));
    DH_TRY(tune_find_times(e, &e->basis.times));
    DH_TRY(run_schedule(e));
    return find_step(e, row);
}

dh_status tune_estimate(dh_ctx *ctx, tuner *t, const tune_limits *limits, dh_tune_row *row,
                        tune_outcome *outcome)
{
    estimate e = {.ctx = ctx, .t = t, .row = row, .spec = {.recipe = t->recipe}};
    DH_TRY(describe(&e));
    DH_TRY(look_at_work(&e, limits, row, outcome));
    if (*outcome == TUNE_BEHIND) return DH_OK;
    DH_TRY(use_strategy(&e));
    DH_TRY(find_blocks(&e));
    if (is_placed(e.schedule)) DH_TRY(bound(&e, limits, row, outcome));
    return *outcome == TUNE_ESTIMATED ? estimate_schedule(&e, limits, row, outcome) : DH_OK;
}
