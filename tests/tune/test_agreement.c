/* One slot, asked four times: a layer's forward beside a layer's backward on two ranks of tensor
 * parallelism takes the same time by the pairing plan, the order's clock, the simulation and
 * tune's estimate, with pairs of operators that lose beside each other; and a layer the same
 * bytes by the slot's tensors, the program's lower bound, the simulation and tune's blocks. The
 * last backward of a step, with its reductions of gradients in pieces, by the clock and the
 * simulation: plans and estimates have reductions behind the pairs. */
#include "dh_test.h"

#include "base/live.h"
#include "sim/simulate.h"
#include "tune/tuner.h"

/* ---- costs as if measured: whole ns, in parts too, so that nothing has to be rounded ------- */

/* By name: the same whatever other operators there are. */
static const tune_system no_system; /* our own program alone */

static uint64_t op_number(const dh_cost_op *op)
{
    uint64_t number = 0;
    for (const char *c = dh_op_info_of(op->op->type)->name; *c; c++)
        number = dh_mix64(number ^ (unsigned char)*c);
    return number;
}

static int64_t solo_ns(const dh_cost_op *op)
{
    if (op->graph->kind != DH_BLOCK_LAYER) return 0; /* what surrounds the layers takes no time */
    return 1024 + 64 * (int64_t)(dh_mix64(op_number(op) + op->op->phase) % 140);
}

static dh_op_time measured_alone(const void *self, const dh_cost_op *op)
{
    (void)self;
    return (dh_op_time){(double)solo_ns(op), DH_PAIR_MEASURED};
}

/* The shorter is slowed down; the longer gets something done meanwhile, or loses. */
static dh_op_rates measured_together(int64_t shorter, int64_t longer, uint64_t mixed)
{
    const int64_t first = shorter + shorter * (int64_t)(mixed % 50) / 100;
    const int64_t share = mixed % 5 == 0 ? -first / 8 : first * (int64_t)(20 + mixed % 60) / 100;
    const int64_t last = first + longer - DH_MIN(share, longer);
    return dh_rates_from_times((double)shorter, (double)longer, (double)first, (double)last,
                               DH_PAIR_MEASURED);
}

static dh_op_rates measured_beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self;
    const int64_t ns_a = solo_ns(a), ns_b = solo_ns(b);
    if (ns_a == 0 || ns_b == 0) return (dh_op_rates){1, 1, DH_PAIR_MEASURED};
    const uint64_t mixed = dh_mix64(op_number(a) + op_number(b));
    if (ns_a <= ns_b) return measured_together(ns_a, ns_b, mixed);
    const dh_op_rates r = measured_together(ns_b, ns_a, mixed);
    return (dh_op_rates){r.b, r.a, r.source};
}

static const dh_costs measured = {
    .name = "measured", .solo = measured_alone, .beside = measured_beside};

/* ---- the pairing plan's order of a slot -------------------------------------------------------
 */

/* What the plan and the order's clock say of a layer beside a layer. */
typedef struct seen {
    int64_t plan_ns;
    double order_ns;
    int n_slots, n_losing;
} seen;
static seen at_hand;

typedef struct side {
    dh_pair_op ops[DH_PAIR_MAX_OPS];
    uint32_t op[DH_PAIR_MAX_OPS];
    int32_t preds[DH_PAIR_MAX_OPS * 16];
    int32_t n;
} side;
static side sides[2];

static void fill_side(side *s, const dh_slot_strand *strand)
{
    int32_t number[DH_PAIR_MAX_OPS], used = 0;
    s->n = 0;
    assert_true(strand->n <= DH_PAIR_MAX_OPS);
    for (uint32_t i = 0; i < strand->n; i++) {
        const dh_slot_op *from = &strand->ops[i];
        if (from->reduces) continue;
        dh_pair_op *op = &s->ops[s->n];
        *op = (dh_pair_op){.name = "op",
                           .engine = dh_stream_engine((dh_stream)from->stream),
                           .solo_ns = (int64_t)from->ns,
                           .preds = s->preds + used,
                           .n_preds = (int32_t)from->n_preds};
        assert_true(used + op->n_preds <= (int32_t)DH_COUNTOF(s->preds));
        for (uint32_t k = 0; k < from->n_preds; k++) s->preds[used++] = number[from->preds[k]];
        number[i] = s->n;
        s->op[s->n++] = i;
    }
}

static dh_pair_plan *plan_slot(const dh_slot *slot)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_pair_policy *policy;
    dh_pair_plan *plan;
    dh_pair_options options = DH_PAIR_OPTIONS_INIT;
    options.max_segment = 1;
    for (int s = 0; s < 2; s++) fill_side(&sides[s], &slot->strand[s]);
    const size_t n_b = (size_t)sides[1].n;
    dh_pair_time *together = calloc((size_t)sides[0].n * n_b + 1, sizeof *together);
    assert_non_null(together);
    for (int32_t f = 0; f < sides[0].n; f++)
        for (int32_t b = 0; b < sides[1].n; b++)
            together[(size_t)f * n_b + (size_t)b] =
                dh_costs_together(slot->costs, &slot->strand[0].ops[sides[0].op[f]].at,
                                  &slot->strand[1].ops[sides[1].op[b]].at);
    const dh_pair_problem problem = {
        .f = {sides[0].ops, sides[0].n}, .b = {sides[1].ops, sides[1].n}, .together = together};
    assert_ok(&ctx, dh_pair_policy_find(&ctx, "round-robin", &policy));
    assert_ok(&ctx, dh_pair_plan_make(&ctx, policy, &problem, &options, &plan));
    free(together);
    return plan;
}

/* A strand alone goes on one by one in a plan, so in the order too. */
static uint32_t order_round(const dh_pair_round *round, dh_slot_pick *order)
{
    uint32_t n = 0;
    const bool alone = round->n_f == 0 || round->n_b == 0;
    for (int32_t i = 0; i < round->n_f; i++)
        order[n++] = (dh_slot_pick){
            .op = sides[0].op[round->f_ops[i]], .strand = 0, .barrier = i == 0 || alone};
    for (int32_t i = 0; i < round->n_b; i++)
        order[n++] =
            (dh_slot_pick){.op = sides[1].op[round->b_ops[i]], .strand = 1, .barrier = alone};
    return n;
}

static int losing(const dh_slot *slot, const dh_pair_plan *plan)
{
    int n = 0;
    for (int32_t i = 0; i < plan->n_rounds; i++) {
        const dh_pair_round *round = &plan->rounds[i];
        if (round->n_f == 0 || round->n_b == 0) continue;
        const dh_slot_op *f = &slot->strand[0].ops[sides[0].op[round->f_ops[0]]];
        const dh_slot_op *b = &slot->strand[1].ops[sides[1].op[round->b_ops[0]]];
        if (f->stream == b->stream) continue;
        const dh_op_rates r = measured_beside(NULL, &f->at, &b->at);
        n += r.a < 0 || r.b < 0;
    }
    return n;
}

static bool is_layer_beside_layer(const dh_slot *slot)
{
    for (int s = 0; s < 2; s++)
        if (slot->strand[s].n_blocks != 1 || slot->strand[s].n == 0 ||
            slot->strand[s].ops[0].at.graph->kind != DH_BLOCK_LAYER)
            return false;
    return true;
}

static void note(dh_ctx *ctx, const dh_slot *slot, const dh_pair_plan *plan,
                 const dh_slot_pick *order)
{
    dh_slot_timing timing = {0};
    assert_ok(ctx, dh_slot_time(ctx, slot, order, &timing));
    if (at_hand.n_slots++ > 0) assert_int_equal(at_hand.plan_ns, plan->makespan_ns);
    at_hand.plan_ns = plan->makespan_ns;
    at_hand.order_ns = timing.makespan_ns;
    at_hand.n_losing = losing(slot, plan);
}

static dh_status as_planned(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                            dh_slot_pick *order)
{
    (void)options;
    uint32_t n = 0;
    dh_pair_plan *plan = plan_slot(slot);
    for (int32_t i = 0; i < plan->n_rounds; i++) n += order_round(&plan->rounds[i], order + n);
    for (uint8_t s = 0; s < 2; s++) /* reductions, which no plan knows */
        for (uint32_t i = 0; i < slot->strand[s].n; i++)
            if (slot->strand[s].ops[i].reduces) order[n++] = (dh_slot_pick){.op = i, .strand = s};
    if (is_layer_beside_layer(slot)) note(ctx, slot, plan, order);
    dh_pair_plan_destroy(plan);
    return DH_OK;
}

static const dh_order_policy planned = {
    .name = "as planned", .doc = "steps of a plan", .order = as_planned};

/* ---- an order with parts ----------------------------------------------------------------------
 */

/* The order's time if every wait for a part were one for all of it. */
static double time_without_parts(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order)
{
    static dh_slot_op ops[2][DH_PAIR_MAX_OPS * 4];
    dh_slot whole = *slot;
    dh_slot_timing timing = {0};
    for (int s = 0; s < 2; s++) {
        assert_true(slot->strand[s].n <= DH_COUNTOF(ops[s]));
        for (uint32_t i = 0; i < slot->strand[s].n; i++) {
            ops[s][i] = slot->strand[s].ops[i];
            ops[s][i].pred_parts = NULL;
        }
        whole.strand[s].ops = ops[s];
    }
    assert_ok(ctx, dh_slot_time(ctx, &whole, order, &timing));
    return timing.makespan_ns;
}

/* Strand after strand, and nothing of the slots around it beside it. */
static dh_status in_turn(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                         dh_slot_pick *order)
{
    (void)options;
    uint32_t n = 0;
    for (uint8_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < slot->strand[s].n; i++, n++)
            order[n] = (dh_slot_pick){.op = i, .strand = s, .barrier = n == 0};
    if (!is_layer_beside_layer(slot)) return DH_OK;
    dh_slot_timing timing = {0};
    assert_ok(ctx, dh_slot_time(ctx, slot, order, &timing));
    at_hand.n_slots++;
    at_hand.order_ns = timing.makespan_ns;
    at_hand.plan_ns = llround(time_without_parts(ctx, slot, order));
    return DH_OK;
}

static const dh_order_policy turns = {
    .name = "in turn", .doc = "strands in turn", .order = in_turn};

/* ---- jobs: a layer a stage ------------------------------------------------------------------ */

typedef struct job {
    dh_schedule *schedule;
    dh_program_spec spec;
} job;

static void job_init(job *j, const char *schedule, int32_t pp, int32_t dp, int32_t n_micro,
                     const dh_order_policy *policy)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    const dh_schedule_row *row;
    const dh_schedule_spec wanted = {.n_ranks = pp, .n_micro = n_micro};
    memset(j, 0, sizeof *j);
    assert_ok(&ctx, dh_model_from_preset(&ctx, "llama-tiny", &model));
    assert_ok(&ctx, dh_schedule_find(&ctx, schedule, &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &wanted, &j->schedule));
    model.n_layers = j->schedule->n_stages;
    j->spec.recipe = (dh_recipe){
        .model = model,
        .dtype = DH_BF16,
        .schedule = j->schedule,
        .ordering = {.policy = policy, .options = DH_ORDER_OPTIONS_INIT},
        .costs = &measured,
        .micro_batch = 1,
        .seq = 32,
        .n_micro = n_micro,
        .global_tokens = 64,
    };
    j->spec.recipe.ordering.options.barriers = true;
    assert_ok(&ctx, dh_mesh_init(&ctx, dp, 2, pp, 1, 1, 0, 0, &j->spec.recipe.mesh));
}

static dh_sim *simulate(const job *j)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_sim *sim;
    assert_ok(&ctx,
              dh_simulate(&ctx, &j->spec.recipe, j->spec.recipe.costs, &(dh_sim_options){0}, &sim));
    return sim;
}

static const dh_sim_rank *rank_of_stage(const dh_sim *sim, int64_t stage)
{
    for (size_t i = 0; i < sim->n_classes; i++)
        if (sim->ranks[i].stage == stage) return &sim->ranks[i];
    fail_msg("no rank of stage %lld", (long long)stage);
    return NULL;
}

/* ---- time ----------------------------------------------------------------------------------- */

static bool is_of(const dh_program *p, const dh_instr *i, const dh_pipe_action *a)
{
    const bool forward = dh_instr_op(p, i)->phase == DH_PHASE_F;
    return dh_instr_graph(p, i)->kind == DH_BLOCK_LAYER &&
           p->blocks.at[i->block].layer == a->stage && i->mb == a->micro &&
           forward == (a->kind == DH_PIPE_F);
}

static int64_t slot_ns(const dh_sim_rank *r, const dh_pipe_slot *slot)
{
    int64_t start = INT64_MAX, end = 0;
    for (size_t i = 0; i < r->program->instrs.n; i++) {
        const dh_instr *instr = &r->program->instrs.at[i];
        if (!is_of(r->program, instr, &slot->action[0]) &&
            !is_of(r->program, instr, &slot->action[1]))
            continue;
        start = DH_MIN(start, r->spans[i].start_ns);
        end = DH_MAX(end, r->spans[i].end_ns);
    }
    return end - start;
}

/* How many pairs of a rank take this time: others may wait for another stage, or have one end of a
 * transfer among their operators, and so another plan. */
static int n_slots_of_time(const job *j, const dh_sim *sim, int32_t stage, double ns)
{
    int n = 0;
    const dh_schedule *s = j->schedule;
    for (int32_t i = s->first_slot[stage]; i < s->first_slot[stage + 1]; i++)
        if (s->slots[i].n_actions == 2)
            n += fabs((double)slot_ns(rank_of_stage(sim, stage), &s->slots[i]) - ns) < 1;
    return n;
}

static void a_slot_takes_the_same_time_by_all_four(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    job j;
    tune_times times = {.known = {0}};
    tune_blocks *blocks;
    at_hand = (seen){0};
    job_init(&j, "dhelix-w", 2, 1, 8, &planned);
    dh_sim *sim = simulate(&j);
    assert_true(at_hand.n_slots > 0 && at_hand.n_losing > 0);
    assert_int_equal(llround(at_hand.order_ns * 1000), at_hand.plan_ns * 1000);
    assert_true(n_slots_of_time(&j, sim, 1, (double)at_hand.plan_ns) > 1);

    const int before = at_hand.n_slots;
    dh_arena *arena = dh_arena_create();
    assert_ok(&ctx, tune_blocks_make(&ctx, arena, &j.spec, &no_system, NULL, &blocks));
    assert_ok(&ctx, tune_times_make(&ctx, &j.spec, blocks, (tune_wants){.pairs = true}, &times));
    assert_true(at_hand.n_slots > before);
    assert_int_equal(llround(times.fb[0][0].one * 1000), at_hand.plan_ns * 1000);
    print_message("%lld ns, %d pairs that lose\n", (long long)at_hand.plan_ns, at_hand.n_losing);
    tune_blocks_fini(blocks);
    dh_arena_destroy(arena);
    dh_sim_destroy(sim);
    dh_schedule_destroy(j.schedule);
}

/* ---- a backward with reductions ---------------------------------------------------------------
 */

/* Times that halve without rounding: two transfers of one link have half of it each. What
 * surrounds the layers takes none, so that the whole slot begins at once. */
static dh_op_time halving_alone(const void *self, const dh_cost_op *op)
{
    (void)self;
    const dh_block_kind kind = op->graph->kind;
    const uint64_t mixed = dh_mix64((uint64_t)op->op->type * 8 + op->op->phase);
    const bool counts = kind == DH_BLOCK_LAYER || kind == DH_BLOCK_GRADS;
    return (dh_op_time){counts ? (double)(1024 * (1 + mixed % 9)) : 0, DH_PAIR_MEASURED};
}

static dh_op_rates halving_beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self;
    if (dh_cost_engine(a) == dh_cost_engine(b)) return (dh_op_rates){.5, .5, DH_PAIR_MEASURED};
    return (dh_op_rates){1, 1, DH_PAIR_MEASURED};
}

static const dh_costs halving = {
    .name = "halving", .solo = halving_alone, .beside = halving_beside};

/* What the clock says of the slot that has reductions. */
typedef struct last_backward {
    double ns, strand_ns;
    int n_slots, n_reductions;
} last_backward;
static last_backward last_seen;

static dh_status by_list(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                         dh_slot_pick *order)
{
    const dh_order_policy *list;
    dh_slot_timing timing = {0};
    int n = 0;
    assert_ok(ctx, dh_order_policy_find(ctx, "list", &list));
    assert_ok(ctx, dh_slot_order(ctx, slot, list, options, order));
    for (uint32_t i = 0; i < slot->strand[1].n; i++) n += slot->strand[1].ops[i].reduces;
    if (n == 0) return DH_OK;
    assert_ok(ctx, dh_slot_time(ctx, slot, order, &timing));
    last_seen = (last_backward){timing.makespan_ns, timing.period_ns, last_seen.n_slots + 1, n};
    return DH_OK;
}

static const dh_order_policy watched = {.name = "watched", .doc = "list's", .order = by_list};

/* Of the operators that are in the slot: what of the backward, with reductions or without. */
static double backward_ns(const dh_sim_rank *r, bool reductions, int *n_reductions)
{
    int64_t start = INT64_MAX, end = 0;
    *n_reductions = 0;
    for (size_t i = 0; i < r->program->instrs.n; i++) {
        const dh_instr *instr = &r->program->instrs.at[i];
        const dh_phase phase = dh_instr_op(r->program, instr)->phase;
        const bool reduces = dh_instr_graph(r->program, instr)->kind == DH_BLOCK_GRADS;
        *n_reductions += reduces;
        if (phase == DH_PHASE_F || phase == DH_PHASE_OPT || (reduces && !reductions)) continue;
        start = DH_MIN(start, r->spans[i].start_ns);
        end = DH_MAX(end, r->spans[i].end_ns);
    }
    return (double)(end - start);
}

static void a_backward_with_reductions_takes_the_same_time(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        job j;
        int n;
        last_seen = (last_backward){0};
        job_init(&j, "1f1b", 1, 2, 1, &watched);
        j.spec.recipe.costs = &halving;
        j.spec.recipe.ordering.options.barriers = false;
        j.spec.recipe.bucket_bytes = variant & 1 ? 20000 : 0;
        j.spec.recipe.sharing = dh_sharing_of(variant & 2 ? 1 : 0);
        j.spec.recipe.model.n_layers = 3;
        dh_sim *sim = simulate(&j);
        const dh_sim_rank *r = rank_of_stage(sim, 0);
        assert_true(last_seen.n_slots > 0);
        assert_int_equal(llround(last_seen.ns), llround(backward_ns(r, true, &n)));
        assert_int_equal(n, last_seen.n_reductions);
        assert_int_equal(llround(last_seen.strand_ns), llround(backward_ns(r, false, &n)));
        assert_true(last_seen.strand_ns < last_seen.ns && n > 1);
        print_message("%.0f ns with %d reductions, %.0f ns without\n", last_seen.ns, n,
                      last_seen.strand_ns);
        dh_sim_destroy(sim);
        dh_schedule_destroy(j.schedule);
    }
}

/* Rows of gathers and of products are used as they come, which is not when all of them are there.
 */
static void parts_are_there_at_the_same_time_by_all(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    job j;
    tune_times times = {.known = {0}};
    tune_blocks *blocks;
    static const char *const strategies[] = {"part-wise+dhelix", "part-wise+dhelix",
                                             "part-wise(scatter)+dhelix"};
    for (size_t i = 0; i < DH_COUNTOF(strategies); i++) {
        dh_arena *arena = dh_arena_create();
        at_hand = (seen){0};
        job_init(&j, "dhelix-w", 2, 1, 8, &turns);
        j.spec.recipe.sharing.sequence = i == 1 ? DH_SEQUENCE_WHOLE : DH_SEQUENCE_SPLIT;
        assert_ok(&ctx, dh_strategy_read(&ctx, arena, strategies[i], &j.spec.recipe.strategy));
        dh_sim *sim = simulate(&j);
        assert_true(at_hand.n_slots > 0);
        print_message("%.0f ns, %lld without parts\n", at_hand.order_ns,
                      (long long)at_hand.plan_ns);
        assert_true(fabs(at_hand.order_ns - (double)at_hand.plan_ns) > 1);
        assert_true(n_slots_of_time(&j, sim, 1, at_hand.order_ns) > 1);

        times.known = (tune_wants){0};
        assert_ok(&ctx, tune_blocks_make(&ctx, arena, &j.spec, &no_system, NULL, &blocks));
        assert_ok(&ctx,
                  tune_times_make(&ctx, &j.spec, blocks, (tune_wants){.pairs = true}, &times));
        assert_int_equal(llround(times.fb[0][0].one * 1000), llround(at_hand.order_ns * 1000));
        tune_blocks_fini(blocks);
        dh_arena_destroy(arena);
        dh_sim_destroy(sim);
        dh_schedule_destroy(j.schedule);
    }
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* The slot's tensors as the walk has them; of one block a tensor's number is the graph's. */
static void describe_strand(const dh_slot_strand *strand, const dh_graph *g,
                            dh_live_storage *storages)
{
    for (uint32_t t = 0; t < strand->n_tensors; t++) {
        const dh_slot_tensor *x = &strand->tensors[t];
        if (x->n_bytes > 0) assert_int_equal(x->n_bytes, dh_tensor_bytes(&g->tensors.at[t]));
        storages[t] =
            (dh_live_storage){.n_bytes = x->n_bytes, .alive = x->before, .outlasts = x->beyond};
    }
    for (uint32_t i = 0; i < strand->n; i++)
        for (uint32_t k = 0; k < strand->ops[i].n_uses; k++)
            storages[strand->ops[i].uses[k]].n_uses++;
}

static void work_in_place(dh_live *live, const dh_slot_op *at)
{
    const dh_graph *g = at->at.graph;
    const int k = dh_op_info_of(at->at.op->type)->inplace;
    const uint32_t in = k < 0 ? DH_NONE : at->at.op->in[k], out = at->at.op->out[0];
    if (in == DH_NONE || out == DH_NONE) return;
    if (g->tensors.at[in].base != DH_NONE || g->tensors.at[out].base != DH_NONE) return;
    if (g->tensors.at[in].kind == DH_TENSOR_ACT && dh_live_can_hand_on(live, in, out))
        dh_live_hand_on(live, in, out);
}

static uint64_t strand_peak(const dh_slot_strand *strand, const dh_graph *g, bool in_place)
{
    dh_live live;
    dh_live_storage *storages = calloc((size_t)strand->n_tensors + 1, sizeof *storages);
    assert_non_null(storages);
    describe_strand(strand, g, storages);
    dh_live_begin(&live, storages, strand->n_tensors);
    uint64_t most = live.n_bytes;
    for (uint32_t i = 0; i < strand->n; i++) {
        const dh_slot_op *op = &strand->ops[i];
        if (in_place) work_in_place(&live, op);
        most = DH_MAX(most, dh_live_with(&live, op->uses, op->n_uses));
        dh_live_use(&live, op->uses, op->n_uses);
    }
    free(storages);
    return most;
}

/* An order's memory knows nothing of work in place; but for that it is the walk's. */
static uint64_t slot_bytes(const job *j, const dh_graph *f, const dh_graph *b)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_slot *slot;
    dh_arena *arena = dh_arena_create();
    assert_ok(&ctx,
              dh_slot_of_graphs(&ctx, arena, &measured, &j->spec.recipe.mesh, 0, f, b, &slot));
    const dh_slot_strand *strand = &slot->strand[f ? 0 : 1];
    const dh_graph *g = f ? f : b;
    assert_int_equal(dh_slot_one_strand_peak(slot), strand_peak(strand, g, false));
    const uint64_t n_bytes = strand_peak(strand, g, true);
    dh_arena_destroy(arena);
    return n_bytes;
}

/* Of the micro-batch's inputs that a layer reads: all layers share them, so no slot counts them. */
static uint64_t input_bytes(const dh_graph *g)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].kind == DH_TENSOR_INPUT && g->tensors.at[i].base == DH_NONE)
            n_bytes += (uint64_t)dh_tensor_bytes(&g->tensors.at[i]);
    return n_bytes;
}

/* One micro-batch on a stage in the middle: a forward, then a backward, operator by operator, of
 * which the backward takes more. */
static void a_layer_takes_the_same_bytes_by_all_four(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    job j;
    tune_blocks *blocks;
    const dh_order_policy *sequential;
    assert_ok(&ctx, dh_order_policy_find(&ctx, "sequential", &sequential));
    job_init(&j, "1f1b", 4, 1, 1, sequential);
    dh_arena *arena = dh_arena_create();
    assert_ok(&ctx, tune_blocks_make(&ctx, arena, &j.spec, &no_system, NULL, &blocks));
    const tune_block *layer = &blocks->at[TUNE_LAYER];
    const uint64_t f_bytes = slot_bytes(&j, layer->graph, NULL);
    const uint64_t b_bytes = slot_bytes(&j, NULL, layer->graph);
    const uint64_t most = b_bytes + input_bytes(layer->graph);
    print_message("forward %llu bytes, backward %llu\n", (unsigned long long)f_bytes,
                  (unsigned long long)most);
    assert_true((double)f_bytes == layer->lives.f_peak && (double)most == layer->lives.b_peak);

    dh_sim *sim = simulate(&j);
    const dh_sim_rank *r = rank_of_stage(sim, 1);
    assert_true(f_bytes < b_bytes);
    assert_int_equal(r->program->live_bytes - r->program->persistent_bytes, most);
    assert_int_equal(r->memory.peak_bytes - r->program->persistent_bytes, most);
    dh_sim_destroy(sim);
    tune_blocks_fini(blocks);
    dh_arena_destroy(arena);
    dh_schedule_destroy(j.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_takes_the_same_time_by_all_four),
        cmocka_unit_test(a_backward_with_reductions_takes_the_same_time),
        cmocka_unit_test(parts_are_there_at_the_same_time_by_all),
        cmocka_unit_test(a_layer_takes_the_same_bytes_by_all_four),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
