/* Orders of slots: timelines worked by hand; every policy on real layers with random times
 * gives an order that runs; the best is at least as good as the others. */
#include "dh_test.h"

#include "program/program.h"
#include "program/program_spec.h"
#include "strategy/slot.h"
#include "strategy/strategy.h"

/* ---- slots by hand --------------------------------------------------------------------------- */

/* Costs by operator: op->step counts as nanoseconds of a hand-made operator. */
static dh_op_time hand_solo(const void *self, const dh_cost_op *op)
{
    return (dh_op_time){op->op->step, DH_PAIR_MEASURED};
}

static dh_op_rates full_speed(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){1, 1, DH_PAIR_MEASURED};
}

static dh_op_rates half_speed(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){.5, .5, DH_PAIR_MEASURED};
}

enum { COMPUTE, LOCAL, CROSS };

/* Forward: transfer of 10, then computation of 20 on it. Backward: computation of 30, then a
 * transfer of 5 of its result. */
typedef struct hand_slot {
    dh_op ops[4];
    dh_slot_op f[2], b[2], last[4];
    dh_graph graph;
    dh_mesh mesh;
    dh_costs costs;
    dh_slot slot;
} hand_slot;

static const uint32_t first[] = {0};

static void make(hand_slot *h,
                 dh_op_rates (*beside)(const void *, const dh_cost_op *, const dh_cost_op *))
{
    static const int ns[] = {10, 20, 30, 5}, stream[] = {LOCAL, COMPUTE, COMPUTE, LOCAL};
    dh_ctx ctx = DH_CTX_INIT;
    memset(h, 0, sizeof *h);
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 2, 1, 1, 1, 0, 0, &h->mesh));
    h->costs = (dh_costs){.name = "hand", .solo = hand_solo, .beside = beside};
    for (int i = 0; i < 4; i++) {
        h->ops[i] = (dh_op){.type = stream[i] ? DH_OP_ALL_GATHER : DH_OP_LINEAR,
                            .group = DH_GROUP_TP,
                            .step = ns[i]};
        dh_slot_op *op = i < 2 ? &h->f[i] : &h->b[i - 2];
        *op = (dh_slot_op){.at = {.graph = &h->graph, .op = &h->ops[i], .mesh = &h->mesh},
                           .ns = ns[i],
                           .stream = stream[i]};
        if (i % 2) {
            op->preds = first;
            op->n_preds = 1;
        }
    }
    h->slot = (dh_slot){.costs = &h->costs};
    h->slot.strand[0] = (dh_slot_strand){.ops = h->f, .n = 2, .n_blocks = 1};
    h->slot.strand[1] = (dh_slot_strand){.ops = h->b, .n = 2, .n_blocks = 1};
}

static dh_slot_timing time_order(const dh_slot *slot, const dh_slot_pick *order)
{
    dh_ctx ctx = DH_CTX_INIT;
    static double start[8], end[8];
    dh_slot_timing t = {.start_ns = start, .end_ns = end};
    assert_ok(&ctx, dh_slot_time(&ctx, slot, order, &t));
    return t;
}

static void a_transfer_hides_behind_the_other_strand(void **state)
{
    hand_slot h;
    make(&h, full_speed);
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {0, 1, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    const dh_slot_timing t = time_order(&h.slot, order);
    /* 0-10 F transfer; 0-30 B computes; 30-50 F computes; 30-35 B transfer */
    assert_true(t.makespan_ns == 50 && t.exposed_ns == 0);
    assert_true(t.start_ns[2] == 30 && t.end_ns[3] == 35);
    assert_true(t.busy_ns[0] == 50 && t.busy_ns[1] == 15);
    assert_true(dh_slot_bound(&h.slot) == 50);
}

/* An order is known again, with what it takes; how operators run beside each other is asked for
 * once. */
static void an_order_that_comes_again_is_not_timed(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {0, 1, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    dh_slot_pick other[] = {
        {0, 1, false, false}, {0, 0, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    hand_slot h;
    slot_trials trials = {0};
    slot_rates rates;
    double makespan_ns;
    make(&h, half_speed);
    const dh_slot_timing t = time_order(&h.slot, order);
    slot_tried *first_time = slot_trial_of(&trials, &h.slot, order);
    assert_non_null(first_time);
    assert_ok(&ctx, slot_time_trial(&ctx, &h.slot, first_time));
    assert_true(first_time->period_ns == t.period_ns && first_time->makespan_ns == t.makespan_ns);
    assert_ok(&ctx, dh_slot_makespan(&ctx, &h.slot, order, &makespan_ns));
    assert_true(makespan_ns == t.makespan_ns);
    assert_ptr_equal(slot_trial_of(&trials, &h.slot, order), first_time);
    assert_int_equal(trials.n, 1);
    slot_tried *second = slot_trial_of(&trials, &h.slot, other);
    assert_true(second != NULL && !second->timed);
    other[0].barrier = true;
    assert_non_null(slot_trial_of(&trials, &h.slot, other));
    assert_int_equal(trials.n, 3);
    assert_true(slot_rates_init(&rates, &h.slot));
    h.slot.rates = &rates;
    assert_true(time_order(&h.slot, order).period_ns == t.period_ns);
    h.costs.beside = full_speed; /* nobody asks */
    assert_true(time_order(&h.slot, order).makespan_ns == t.makespan_ns);
    slot_rates_fini(&rates);
    slot_trials_fini(&trials);
}

/* Of a gather of 10 over two ranks in 4 parts the third is there after 5. */
static void a_reader_begins_with_its_part(void **state)
{
    static const uint32_t third[] = {2};
    hand_slot h;
    make(&h, full_speed);
    h.ops[0].parts = 4;
    h.f[1].pred_parts = third;
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {1, 0, false, false}, {0, 1, false, false}, {1, 1, false, false}};
    dh_slot_timing t = time_order(&h.slot, order);
    assert_true(t.start_ns[1] == 5 && t.end_ns[0] == 10 && t.end_ns[1] == 25);
    /* before the transfer is launched nothing of it is done */
    h.costs.launch_ns = 1;
    h.costs.event_ns = 2;
    t = time_order(&h.slot, order);
    assert_true(t.start_ns[1] == 6 && t.end_ns[0] == 11 && t.end_ns[1] == 29);
    /* at half speed beside a computation that is under way */
    make(&h, half_speed);
    h.ops[0].parts = 4;
    h.f[1].pred_parts = third;
    const dh_slot_pick behind[] = {
        {0, 0, false, false}, {0, 1, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    t = time_order(&h.slot, behind);
    assert_true(t.end_ns[0] == 20 && t.end_ns[1] == 40 && t.start_ns[2] == 40);
}

static void one_after_the_other_exposes_all(void **state)
{
    hand_slot h;
    make(&h, full_speed);
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {1, 0, false, false}, {0, 1, false, false}, {1, 1, false, false}};
    const dh_slot_timing t = time_order(&h.slot, order);
    /* 0-10, 10-30, 30-60, 60-65; the next slot's forward transfer hides under nothing but
     * its own wait: 60-65 is on the same stream */
    assert_true(t.makespan_ns == 65 && t.exposed_ns == 15);
}

static void barriers_alone_serialize(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    hand_slot h;
    make(&h, full_speed);
    h.f[1].n_preds = 0; /* of the forward, both run at once where nothing forbids it */
    const dh_order_policy *policy;
    dh_order_options options = DH_ORDER_OPTIONS_INIT;
    dh_slot_pick order[4];
    assert_ok(&ctx, dh_order_policy_find(&ctx, "sequential", &policy));
    assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, policy, &options, order));
    assert_true(time_order(&h.slot, order).makespan_ns == 55);
    options.barriers = true;
    assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, policy, &options, order));
    assert_true(time_order(&h.slot, order).makespan_ns == 65);
}

/* Wavelet's turns: a round is an operator of each strand, and these run together. */
static void barriers_of_turns_are_between_rounds(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    hand_slot h;
    make(&h, full_speed);
    const dh_order_policy *policy;
    dh_order_options options = DH_ORDER_OPTIONS_INIT;
    dh_slot_pick order[4];
    options.barriers = true;
    assert_ok(&ctx, dh_order_policy_find(&ctx, "round-robin", &policy));
    assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, policy, &options, order));
    for (uint32_t i = 0; i < DH_COUNTOF(order); i++) {
        assert_true(order[i].strand == i % 2 && order[i].op == i / 2);
        assert_true(order[i].barrier == (i % 2 == 0));
    }
}

static void a_barrier_waits_for_everything(void **state)
{
    hand_slot h;
    make(&h, full_speed);
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {0, 1, false, false}, {1, 0, true, false}, {1, 1, true, false}};
    const dh_slot_timing t = time_order(&h.slot, order);
    assert_true(t.start_ns[2] == 30 && t.start_ns[3] == 50 && t.makespan_ns == 55);
}

static void operators_beside_each_other_slow_down(void **state)
{
    hand_slot h;
    make(&h, half_speed);
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {0, 1, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    const dh_slot_timing t = time_order(&h.slot, order);
    /* 0-20 both at half speed: transfer done, 20 of 30 computed left; 20-40; then 5 and 20
     * together at half speed: 40-50, and 15 left: 50-65 */
    assert_true(t.end_ns[0] == 20 && t.end_ns[1] == 40 && t.end_ns[3] == 50);
    assert_true(t.makespan_ns == 65);
}

static dh_op_rates computing_loses(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){-.5, 1, DH_PAIR_MEASURED};
}

static dh_op_rates neither_progresses(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    return (dh_op_rates){0, -.5, DH_PAIR_MEASURED};
}

static void what_an_operator_loses_is_made_good_afterwards(void **state)
{
    hand_slot h;
    const dh_slot_pick order[] = {
        {0, 0, false, false}, {0, 1, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    make(&h, computing_loses);
    dh_slot_timing t = time_order(&h.slot, order);
    /* 0-10 the forward's transfer, the backward loses 5: 10-45; 45-50 its transfer, the
     * forward loses 2.5 of 20 */
    assert_true(t.end_ns[0] == 10 && t.end_ns[1] == 45 && t.end_ns[3] == 50);
    assert_true(t.makespan_ns == 72.5);
    make(&h, neither_progresses);
    t = time_order(&h.slot, order);
    /* computing goes first: 0-30, then 30-40 the transfer; 40-60, then 60-65 */
    assert_true(t.end_ns[1] == 30 && t.end_ns[0] == 40 && t.end_ns[2] == 60 && t.end_ns[3] == 65);
}

/* The forward's first operator makes a tensor of 10 bytes for later and one of 4 for its second;
 * the backward reads 8 bytes from before in its first and 3 in both; its second works with 2. */
static void memory_counts_what_is_alive(void **state)
{
    static const dh_slot_tensor f[] = {{10, false, true}, {4, false, false}};
    static const dh_slot_tensor b[] = {{8, true, false}, {3, true, false}};
    static const uint32_t both[] = {0, 1};
    static const dh_slot_pick f_first[] = {
        {0, 0, false, false}, {1, 0, false, false}, {0, 1, false, false}, {1, 1, false, false}};
    static const dh_slot_pick b_first[] = {
        {0, 1, false, false}, {1, 1, false, false}, {0, 0, false, false}, {1, 0, false, false}};
    static const dh_slot_pick mixed[] = {
        {0, 1, false, false}, {0, 0, false, false}, {1, 0, false, false}, {1, 1, false, false}};
    hand_slot h;
    make(&h, full_speed);
    for (int i = 0; i < 2; i++) {
        h.slot.strand[i].tensors = i ? b : f;
        h.slot.strand[i].n_tensors = 2;
        dh_slot_op *ops = i ? h.b : h.f;
        ops[0].uses = both;
        ops[0].n_uses = 2;
        ops[1].uses = both + 1;
        ops[1].n_uses = 1;
    }
    h.b[1].work_bytes = 2;
    assert_true(dh_slot_peak(&h.slot, f_first) == 11 + 14);
    assert_true(dh_slot_peak(&h.slot, b_first) == 14);
    assert_true(dh_slot_peak(&h.slot, mixed) == 3 + 14);
    assert_true(dh_slot_one_strand_peak(&h.slot) == 14);

    /* The transfer is urgent and would go first; memory lets the backward go before. */
    dh_ctx ctx = DH_CTX_INIT;
    dh_order_options options = DH_ORDER_OPTIONS_INIT;
    const dh_order_policy *list;
    dh_slot_pick order[4];
    assert_ok(&ctx, dh_order_policy_find(&ctx, "list", &list));
    options.memory_blocks = 100;
    assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, list, &options, order));
    assert_true(dh_slot_peak(&h.slot, order) == 25);
    options.memory_blocks = .4; /* of 14: room for the forward once 8 bytes are released */
    assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, list, &options, order));
    assert_true(dh_slot_peak(&h.slot, order) > 14 && dh_slot_peak(&h.slot, order) <= 19);
    assert_true(order[0].strand == 1 && order[1].strand == 0);
    options.memory_blocks = 0;
    assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, list, &options, order));
    assert_true(dh_slot_peak(&h.slot, order) == 14);
}

static void an_order_that_waits_for_ever_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    hand_slot h;
    make(&h, full_speed);
    const dh_slot_pick order[] = {
        {1, 0, false, false}, {0, 0, true, false}, {0, 1, false, false}, {1, 1, false, false}};
    dh_slot_timing t = {0};
    assert_fails(&ctx, dh_slot_time(&ctx, &h.slot, order, &t), DH_EINVAL, "waits for ever");
}

/* Sums into one gradient: the backward's operator comes after the forward's whatever the
 * policy says. */
static void orders_are_put_right(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    hand_slot h;
    make(&h, full_speed);
    h.b[0].after_f = 2;
    size_t n;
    const dh_order_policy *policies = dh_order_policies(&n);
    const dh_order_options options = DH_ORDER_OPTIONS_INIT;
    for (size_t i = 0; i < n; i++) {
        dh_slot_pick order[4];
        assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, &policies[i], &options, order));
        const dh_slot_timing t = time_order(&h.slot, order);
        assert_true(t.makespan_ns == 65);
    }
}

/* Two computations of 30 one after the other, each followed by a reduction of 20. */
static void make_reductions(hand_slot *h, double room, bool slow)
{
    static const uint32_t needs[] = {0, 1};
    make(h, slow ? half_speed : full_speed);
    for (uint32_t i = 0; i < 4; i++) {
        h->ops[i].step = i < 2 ? 30 : 20;
        h->last[i] = (dh_slot_op){.at = {.graph = &h->graph, .op = &h->ops[i], .mesh = &h->mesh},
                                  .ns = h->ops[i].step,
                                  .stream = i < 2 ? DH_STREAM_COMPUTE : DH_STREAM_LOCAL_DATA,
                                  .reduces = i >= 2,
                                  .preds = &needs[i / 3],
                                  .n_preds = i > 0};
    }
    h->slot.strand[0].n = 0;
    h->slot.strand[1] = (dh_slot_strand){.ops = h->last, .n = 4, .n_blocks = 1};
    h->slot.rest.room = room;
}

/* Beside a computation a reduction costs it half its speed, or nothing; behind it time at the end
 * of the step, of which there may be enough. Where ranks could judge differently only the rule
 * counts. */
static void reductions_go_where_the_step_has_room(void **state)
{
    static const struct {
        double room;
        bool slow, by_rule;
        double start[2], period;
    } rows[] = {{5, true, false, {60, 80}, 60},
                {5, false, false, {30, 60}, 60},
                {.1, false, false, {30, 60}, 74},
                {.1, false, true, {60, 80}, 94},
                {0, true, false, {30, 80}, 80}};
    dh_ctx ctx = DH_CTX_INIT;
    const dh_order_options options = DH_ORDER_OPTIONS_INIT;
    size_t n;
    const dh_order_policy *policies = dh_order_policies(&n);
    for (size_t k = 0; k < DH_COUNTOF(rows); k++)
        for (size_t i = 0; i < n; i++) {
            hand_slot h;
            dh_slot_pick order[4];
            double start[2];
            make_reductions(&h, rows[k].room, rows[k].slow);
            h.slot.rest.by_rule = rows[k].by_rule;
            assert_ok(&ctx, dh_slot_order(&ctx, &h.slot, &policies[i], &options, order));
            const dh_slot_timing t = time_order(&h.slot, order);
            for (int p = 0; p < 4; p++)
                if (order[p].op >= 2) start[order[p].op - 2] = t.start_ns[p];
            assert_true(start[0] == rows[k].start[0] && start[1] == rows[k].start[1]);
            assert_true(fabs(t.period_ns - rows[k].period) < 1e-9);
        }
}

/* ---- weight gradients by critical path ------------------------------------------------------- */

typedef struct backward_op {
    int ns, stream;
    bool wgrad, reduces;
    int pred; /* -1: none */
} backward_op;

/* A backward of one layer, in the order of a strand; all communicate and compute at full speed. */
static double time_backward(const backward_op *list, uint32_t n, const char *policy)
{
    static const uint32_t ids[] = {0, 1, 2, 3};
    dh_ctx ctx = DH_CTX_INIT;
    dh_slot_op b[4];
    dh_op ops[4];
    dh_slot_pick order[4];
    dh_graph graph = {0};
    dh_mesh mesh;
    const dh_order_policy *row;
    const dh_order_options options = DH_ORDER_OPTIONS_INIT;
    const dh_costs costs = {.name = "hand", .solo = hand_solo, .beside = full_speed};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 2, 1, 1, 1, 0, 0, &mesh));
    for (uint32_t i = 0; i < n; i++) {
        ops[i] = (dh_op){.type = list[i].stream ? DH_OP_ALL_REDUCE : DH_OP_LINEAR_DGRAD,
                         .group = DH_GROUP_TP,
                         .step = list[i].ns};
        b[i] = (dh_slot_op){.at = {.graph = &graph, .op = &ops[i], .mesh = &mesh},
                            .ns = list[i].ns,
                            .stream = (dh_stream)list[i].stream,
                            .wgrad = list[i].wgrad,
                            .reduces = list[i].reduces,
                            .preds = list[i].pred < 0 ? NULL : &ids[list[i].pred],
                            .n_preds = list[i].pred >= 0};
    }
    const dh_slot slot = {.costs = &costs, .strand = {[1] = {.ops = b, .n = n, .n_blocks = 1}}};
    assert_ok(&ctx, dh_order_policy_find(&ctx, policy, &row));
    assert_ok(&ctx, dh_slot_order(&ctx, &slot, row, &options, order));
    return time_order(&slot, order).makespan_ns;
}

/* Behind the input gradient whose transfer it then covers; in front of one that nobody waits for,
 * where its own reduction is what ends last. */
static void weight_gradients_go_by_the_critical_path(void **state)
{
    static const backward_op covers[] = {{10, COMPUTE, true, false, -1},
                                         {10, COMPUTE, false, false, -1},
                                         {10, LOCAL, false, false, 1},
                                         {10, COMPUTE, false, false, 2}};
    static const backward_op reduced[] = {{10, COMPUTE, false, false, -1},
                                          {10, COMPUTE, false, false, 0},
                                          {10, COMPUTE, true, false, -1},
                                          {30, DH_STREAM_LOCAL_DATA, true, true, 2}};
    assert_true(time_backward(covers, 4, "sequential") == 40);
    assert_true(time_backward(covers, 4, "critical-path") == 30);
    assert_true(time_backward(reduced, 4, "sequential") == 60);
    assert_true(time_backward(reduced, 4, "critical-path") == 50);
}

/* ---- real layers ---------------------------------------------------------------------------- */

/* Times drawn by operator, shares lost beside each other by pair. */
typedef struct drawn {
    uint64_t seed;
    double slow; /* most a pair loses */
} drawn;

/* Number of an operator in its graph, from 1: addresses would differ from run to run. */
static uint64_t number_of(const dh_cost_op *op)
{
    return (uint64_t)(op->op - op->graph->ops.at) + 1;
}

static double draw(uint64_t seed, uint64_t a, uint64_t b)
{
    return (double)(dh_mix64(seed ^ dh_mix64(a) ^ b * 3) >> 11) / 9007199254740992.0;
}

static dh_op_time drawn_solo(const void *self, const dh_cost_op *op)
{
    const drawn *d = self;
    return (dh_op_time){1000 * pow(10, 2 * draw(d->seed, number_of(op), 0)), DH_PAIR_MODELLED};
}

static dh_op_rates drawn_beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const drawn *d = self;
    return (dh_op_rates){1 - d->slow * draw(d->seed, number_of(a), number_of(b)),
                         1 - d->slow * draw(d->seed, number_of(b), number_of(a)), DH_PAIR_MODELLED};
}

static void check_order(const dh_slot *slot, const dh_slot_pick *order)
{
    const uint32_t n[2] = {slot->strand[0].n, slot->strand[1].n};
    bool *done[2] = {calloc(n[0] + 1, 1), calloc(n[1] + 1, 1)};
    for (uint32_t i = 0; i < n[0] + n[1]; i++) {
        const int s = order[i].strand;
        assert_true(order[i].op < n[s] && !done[s][order[i].op]);
        const dh_slot_op *op = &slot->strand[s].ops[order[i].op];
        for (uint32_t k = 0; k < op->n_preds; k++) assert_true(done[s][op->preds[k]]);
        done[s][order[i].op] = true;
    }
    free(done[0]);
    free(done[1]);
}

/* Every tensor's first and last use looked up anew, and bytes summed at every place. */
static uint64_t recount(const dh_slot *slot, const dh_slot_pick *order)
{
    const uint32_t n = slot->strand[0].n + slot->strand[1].n;
    uint64_t *alive = calloc(n + 1, sizeof *alive), most = 0;
    for (uint8_t s = 0; s < 2; s++)
        for (uint32_t k = 0; k < slot->strand[s].n_tensors; k++) {
            const dh_slot_tensor *t = &slot->strand[s].tensors[k];
            uint32_t first_use = n, end = 0;
            for (uint32_t i = 0; i < n; i++) {
                const dh_slot_op *op = &slot->strand[order[i].strand].ops[order[i].op];
                for (uint32_t u = 0; order[i].strand == s && u < op->n_uses; u++) {
                    if (op->uses[u] != k) continue;
                    first_use = first_use < i ? first_use : i;
                    end = i + 1;
                }
            }
            if (end == 0) continue;
            for (uint32_t i = t->before ? 0 : first_use; i < (t->beyond ? n : end); i++)
                alive[i] += t->n_bytes;
        }
    for (uint32_t i = 0; i < n; i++) {
        const dh_slot_op *op = &slot->strand[order[i].strand].ops[order[i].op];
        const uint64_t now = alive[i] + op->work_bytes;
        most = most > now ? most : now;
    }
    free(alive);
    return most;
}

static void check_layer(const dh_graph *g, const dh_mesh *mesh, uint64_t *seed, int turns)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n;
    const dh_order_policy *policies = dh_order_policies(&n);
    for (int turn = 0; turn < turns; turn++) {
        const drawn d = {test_rand(seed), turn % 2 ? 0.3 : 0};
        const dh_costs costs = {
            .name = "drawn", .solo = drawn_solo, .beside = drawn_beside, .self = &d};
        dh_arena *arena = dh_arena_create();
        dh_slot *slot;
        assert_ok(&ctx, dh_slot_of_graphs(&ctx, arena, &costs, mesh, 0, g, g, &slot));
        const uint32_t n_ops = slot->strand[0].n + slot->strand[1].n;
        dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, n_ops);
        double least = INFINITY;
        for (size_t i = 0; i < n; i++) {
            dh_order_options options = DH_ORDER_OPTIONS_INIT;
            dh_slot_timing t = {0};
            assert_ok(&ctx, dh_slot_order(&ctx, slot, &policies[i], &options, order));
            check_order(slot, order);
            assert_true(recount(slot, order) == dh_slot_peak(slot, order));
            assert_ok(&ctx, dh_slot_time(&ctx, slot, order, &t));
            assert_true(t.makespan_ns >= dh_slot_bound(slot) * (1 - 1e-9));
            if (strcmp(policies[i].name, "auto") == 0)
                assert_true(t.period_ns <= least * 1.011); /* within 1 % of the bound it stops */
            least = fmin(least, t.period_ns);
        }
        dh_arena_destroy(arena);
    }
}

/* Time that operators of two strands spend beside each other although the switches forbid it. */
static double forbidden_ns(const dh_slot *slot, const dh_slot_pick *order, const dh_slot_timing *t,
                           const dh_pair_options *may)
{
    const uint32_t n = slot->strand[0].n + slot->strand[1].n;
    double ns = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            if (order[i].strand != 0 || order[k].strand != 1) continue;
            const dh_stream f = slot->strand[0].ops[order[i].op].stream;
            const dh_stream b = slot->strand[1].ops[order[k].op].stream;
            const double from = fmax(t->start_ns[i], t->start_ns[k]);
            const double to = fmin(t->end_ns[i], t->end_ns[k]);
            if (!dh_pair_may_overlap(may, dh_stream_engine(f), dh_stream_engine(b)))
                ns += fmax(to - from, 0);
        }
    return ns;
}

static void assert_wgrad_stays(const dh_slot *slot, const dh_slot_pick *order)
{
    const dh_slot_strand *b = &slot->strand[1];
    uint32_t place[4096];
    assert_true(b->n < DH_COUNTOF(place));
    for (uint32_t i = 0; i < slot->strand[0].n + b->n; i++)
        if (order[i].strand == 1) place[order[i].op] = i;
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_true(!(b->ops[i].wgrad || b->ops[k].wgrad) || place[k] < place[i]);
}

static void check_switches(const dh_graph *g, const dh_mesh *mesh)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n;
    double most_ns = 0;
    const dh_order_policy *policies = dh_order_policies(&n);
    const drawn d = {7, 0.1};
    const dh_costs costs = {
        .name = "drawn", .solo = drawn_solo, .beside = drawn_beside, .self = &d};
    dh_arena *arena = dh_arena_create();
    dh_slot *slot;
    assert_ok(&ctx, dh_slot_of_graphs(&ctx, arena, &costs, mesh, 0, g, g, &slot));
    const uint32_t n_ops = slot->strand[0].n + slot->strand[1].n;
    dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, n_ops);
    dh_slot_timing t = {.start_ns = DH_NEW_N(arena, double, n_ops),
                        .end_ns = DH_NEW_N(arena, double, n_ops)};
    for (size_t i = 0; i < n; i++) {
        dh_order_options all = DH_ORDER_OPTIONS_INIT, local = all, none = all;
        local.pairing.overlap_local = local.pairing.move_wgrad = false;
        none.pairing.overlap_local = none.pairing.overlap_cross = none.pairing.overlap_comm_comm =
            false;
        const dh_order_options *kept[] = {&local, &none};
        if (!policies[i].order) continue;
        assert_ok(&ctx, dh_slot_order(&ctx, slot, &policies[i], &all, order));
        assert_ok(&ctx, dh_slot_time(&ctx, slot, order, &t));
        most_ns = fmax(most_ns, forbidden_ns(slot, order, &t, &none.pairing));
        for (size_t k = 0; k < DH_COUNTOF(kept); k++) {
            assert_ok(&ctx, dh_slot_order(&ctx, slot, &policies[i], kept[k], order));
            check_order(slot, order);
            assert_ok(&ctx, dh_slot_time(&ctx, slot, order, &t));
            assert_true(forbidden_ns(slot, order, &t, &kept[k]->pairing) < 1);
            if (!kept[k]->pairing.move_wgrad) assert_wgrad_stays(slot, order);
        }
    }
    assert_true(most_ns > 1000); /* else nothing was forbidden */
    dh_arena_destroy(arena);
}

static double period_of(const dh_slot *slot, const char *policy, dh_slot_pick *order)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_order_policy *row;
    const dh_order_options options = DH_ORDER_OPTIONS_INIT;
    dh_slot_timing t = {0};
    assert_ok(&ctx, dh_order_policy_find(&ctx, policy, &row));
    assert_ok(&ctx, dh_slot_order(&ctx, slot, row, &options, order));
    assert_ok(&ctx, dh_slot_time(&ctx, slot, order, &t));
    return t.period_ns;
}

/* A strand without a partner keeps its order where lists find no shorter one. */
static void check_one_strand(const dh_graph *g, const dh_mesh *mesh, uint64_t *seed, int turns)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int turn = 0; turn < turns; turn++) {
        const drawn d = {test_rand(seed), turn % 2 ? 0.3 : 0};
        const dh_costs costs = {
            .name = "drawn", .solo = drawn_solo, .beside = drawn_beside, .self = &d};
        for (int strand = 0; strand < 2; strand++) {
            dh_arena *arena = dh_arena_create();
            dh_slot *slot;
            assert_ok(&ctx, dh_slot_of_graphs(&ctx, arena, &costs, mesh, 0, strand ? NULL : g,
                                              strand ? g : NULL, &slot));
            dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, slot->strand[strand].n + 1);
            const double own = period_of(slot, "sequential", order);
            assert_true(period_of(slot, "list", order) <= own * (1 + 1e-5));
            dh_arena_destroy(arena);
        }
    }
}

/* The layer's forward, and its backward with weight gradients where they are or after all others. */
static dh_slot *slot_given(dh_arena *arena, const dh_graph *g, const dh_costs *costs,
                           const dh_mesh *mesh, bool later)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_slot_item *items[2] = {DH_NEW_N(arena, dh_slot_item, g->ops.n),
                              DH_NEW_N(arena, dh_slot_item, g->ops.n)};
    dh_slot_items strands[2] = {{items[0], 0}, {items[1], 0}};
    for (int turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < g->ops.n; i++) {
            const dh_phase phase = g->ops.at[i].phase;
            const int s = phase != DH_PHASE_F;
            if ((later && phase == DH_PHASE_W) == turn)
                items[s][strands[s].n++] = (dh_slot_item){.graph = g, .op = i};
        }
    dh_slot *slot;
    assert_ok(&ctx, dh_slot_build(&ctx, arena, costs, mesh, 0, strands, &slot));
    return slot;
}

static double period_with(const dh_slot *slot, const char *policy, const dh_order_options *options,
                          dh_slot_pick *order)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_order_policy *row;
    dh_slot_timing t = {0};
    assert_ok(&ctx, dh_order_policy_find(&ctx, policy, &row));
    assert_ok(&ctx, dh_slot_order(&ctx, slot, row, options, order));
    check_order(slot, order);
    assert_ok(&ctx, dh_slot_time(&ctx, slot, order, &t));
    return t.period_ns;
}

/* A pass that gives weight gradients last lets list scheduling find nothing that `auto` misses. */
static void check_given_orders(const dh_graph *g, const dh_mesh *mesh, uint64_t *seed, int turns)
{
    for (int turn = 0; turn < turns; turn++) {
        const drawn d = {test_rand(seed), turn % 2 ? 0.3 : 0};
        const dh_costs costs = {
            .name = "drawn", .solo = drawn_solo, .beside = drawn_beside, .self = &d};
        dh_arena *arena = dh_arena_create();
        dh_order_options options = DH_ORDER_OPTIONS_INIT;
        options.memory_blocks = 1000;
        const dh_slot *given = slot_given(arena, g, &costs, mesh, false);
        const dh_slot *later = slot_given(arena, g, &costs, mesh, true);
        dh_slot_pick *order = DH_NEW_N(arena, dh_slot_pick, g->ops.n);
        const double least = fmin(period_with(later, "list", &options, order),
                                  period_with(later, "sequential", &options, order));
        const double stops = DH_ORDER_ENOUGH * dh_slot_bound(given);
        const double own = period_with(given, "auto", &options, order);
        assert_true(own <= fmax(least, stops) * (1 + 2e-6));
        dh_arena_destroy(arena);
    }
}

static void policies_order_real_layers(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny", "mixtral-tiny"};
    uint64_t seed = test_seed("policies_order_real_layers");
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(presets); i++) {
        dh_model model;
        assert_ok(&ctx, dh_model_from_preset(&ctx, presets[i], &model));
        if (model.vocab == 0) model.vocab = 65;
        dh_program_spec spec = {
            .recipe = {.model = model, .micro_batch = 1, .seq = 32, .n_micro = 1}};
        assert_ok(&ctx, dh_mesh_init(&ctx, 1, 2, 1, 2, 1, 0, 0, &spec.recipe.mesh));
        dh_program *p;
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
        for (size_t k = 0; k < p->graphs.n; k++)
            if (p->graphs.at[k]->kind == DH_BLOCK_LAYER)
                check_layer(p->graphs.at[k], &p->mesh, &seed, 2);
        for (size_t k = 0; k < p->graphs.n; k++)
            if (p->graphs.at[k]->kind == DH_BLOCK_LAYER) check_switches(p->graphs.at[k], &p->mesh);
        for (size_t k = 0; k < p->graphs.n; k++)
            if (p->graphs.at[k]->kind == DH_BLOCK_LAYER)
                check_one_strand(p->graphs.at[k], &p->mesh, &seed, 4);
        for (size_t k = 0; k < p->graphs.n; k++)
            if (p->graphs.at[k]->kind == DH_BLOCK_LAYER)
                check_given_orders(p->graphs.at[k], &p->mesh, &seed, 8);
        dh_program_destroy(p);
    }
}

/* ---- published orders ----------------------------------------------------------------------- */

/* Names of what is issued on the compute stream, or on the others, as far as `names` has them. */
static void issued(const dh_slot *slot, const dh_slot_pick *order, bool computing,
                   const char *names, char *text, size_t cap)
{
    size_t len = 0;
    for (uint32_t i = 0; i < slot->strand[0].n + slot->strand[1].n; i++) {
        const dh_slot_op *op = &slot->strand[order[i].strand].ops[order[i].op];
        if ((op->stream == DH_STREAM_COMPUTE) != computing) continue;
        char word[64];
        snprintf(word, sizeof word, "%s%s ", order[i].barrier ? "/" : "",
                 op->at.graph->tensors.at[op->at.op->out[0]].name);
        const char *bare = word + order[i].barrier;
        const char *at = strstr(names, bare);
        if (!at || (at != names && at[-1] != ' ')) continue;
        len += (size_t)snprintf(text + len, cap - len, "%s", word);
    }
    text[len] = 0;
}

/* What the authors draw of a layer of experts: GEMMs and exchanges in their order, a stroke before
 * what begins a round. */
static void check_fixed_orders(const dh_slot *slot, dh_slot_pick *order)
{
    static const char gemms[] = "qkv proj logits h y dg drouted d.fc2.w d.fc1.w dn2 do dn1 "
                                "d.router.w d.proj.w d.qkv.w ";
    static const char exchanges[] = "routed y.own dy drouted.own ";
    static const struct {
        const char *policy, *computed, *sent;
        bool barriers;
    } cases[] = {
        {"combined-1f1b",
         "qkv proj logits dg drouted d.fc2.w d.fc1.w h y dn2 dn2 dn2 do dn1 d.router.w d.proj.w "
         "d.qkv.w ",
         "dy routed drouted.own y.own ", false},
        {"dualpipe",
         "qkv proj logits dg drouted d.fc2.w d.fc1.w h y dn2 dn2 dn2 do dn1 d.router.w d.proj.w "
         "d.qkv.w ",
         "dy /routed /drouted.own /y.own ", true},
        {"stp",
         "qkv proj logits dg d.fc2.w drouted d.fc1.w h y dn2 dn2 dn2 d.router.w do d.proj.w dn1 "
         "d.qkv.w ",
         "dy routed drouted.own y.own ", false},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const dh_order_policy *policy;
        dh_order_options options = DH_ORDER_OPTIONS_INIT;
        options.barriers = cases[i].barriers;
        char text[512];
        assert_ok(&ctx, dh_order_policy_find(&ctx, cases[i].policy, &policy));
        assert_ok(&ctx, dh_slot_order(&ctx, slot, policy, &options, order));
        issued(slot, order, true, gemms, text, sizeof text);
        assert_string_equal(text, cases[i].computed);
        issued(slot, order, false, exchanges, text, sizeof text);
        assert_string_equal(text, cases[i].sent);
    }
}

static void fixed_orders_are_the_published_ones(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program_spec spec = {
        .recipe = {.micro_batch = 1, .seq = 32, .n_micro = 1, .moe_capacity = 2}};
    assert_ok(&ctx, dh_model_from_preset(&ctx, "mixtral-tiny", &spec.recipe.model));
    if (spec.recipe.model.vocab == 0) spec.recipe.model.vocab = 65;
    assert_ok(&ctx, dh_mesh_init(&ctx, 2, 1, 1, 1, 2, 0, 0, &spec.recipe.mesh));
    dh_program *p;
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    const dh_graph *layer = NULL;
    for (size_t k = 0; k < p->graphs.n; k++)
        if (p->graphs.at[k]->kind == DH_BLOCK_LAYER) layer = p->graphs.at[k];
    const drawn d = {1, 0};
    const dh_costs costs = {
        .name = "drawn", .solo = drawn_solo, .beside = drawn_beside, .self = &d};
    dh_arena *arena = dh_arena_create();
    dh_slot *slot;
    assert_ok(&ctx, dh_slot_of_graphs(&ctx, arena, &costs, &p->mesh, 0, layer, layer, &slot));
    check_fixed_orders(slot, DH_NEW_N(arena, dh_slot_pick, slot->strand[0].n + slot->strand[1].n));
    dh_arena_destroy(arena);
    dh_program_destroy(p);
}

/* ---- the cache ------------------------------------------------------------------------------ */

static void orders_are_remembered(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    hand_slot h, other;
    make(&h, full_speed);
    make(&other, full_speed);
    other.costs = h.costs;
    other.slot.costs = &h.costs;
    other.f[1].ns = 21;
    const dh_order_policy *policy;
    const dh_order_options options = DH_ORDER_OPTIONS_INIT;
    assert_ok(&ctx, dh_order_policy_find(&ctx, "list", &policy));
    dh_order_cache *cache = dh_order_cache_create();
    const dh_slot_pick *a, *b, *c;
    assert_ok(&ctx, dh_order_cache_get(&ctx, cache, &h.slot, policy, &options, &a));
    assert_ok(&ctx, dh_order_cache_get(&ctx, cache, &h.slot, policy, &options, &b));
    assert_ok(&ctx, dh_order_cache_get(&ctx, cache, &other.slot, policy, &options, &c));
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    dh_order_cache_destroy(cache);
}

static void names_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_order_policy *policy;
    const dh_strategy *strategy;
    assert_fails(&ctx, dh_order_policy_find(&ctx, "exakt", &policy), DH_EMISSING, "mean exact");
    assert_fails(&ctx, dh_strategy_find(&ctx, "dhelx", &strategy), DH_EMISSING, "mean dhelix");
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    for (size_t i = 0; i < n; i++) {
        dh_ordering ordering;
        assert_ok(&ctx, dh_strategy_ordering(&ctx, &rows[i], &ordering));
    }
}

/* ---- strategies as text ---------------------------------------------------------------------- */

static void assert_passes(const dh_strategy *s, const char *wanted)
{
    dh_str text = DH_STR_INIT;
    dh_pass_list_print(&s->passes, &text);
    assert_string_equal(text.text ? text.text : "", wanted);
    dh_str_fini(&text);
}

static void test_read(void **state)
{
    static const struct {
        const char *text, *passes, *schedule, *policy;
        bool barriers;
    } cases[] = {
        {"ring-gemm", "ring-gemm", NULL, "sequential", false},
        {"ring-gemm(both)+dhelix", "ring-gemm(ways=both)", "dhelix-w", "auto", false},
        {"dhelix+ring-gemm", "ring-gemm", "dhelix-w", "auto", false},
        {"ring-gemm+wavelet+", "ring-gemm", "dhelix-w", "round-robin", false},
        {"wavelet++ring-gemm", "ring-gemm", "dhelix-w", "round-robin", false},
        {"ring-gemm+dhelix-paper", "ring-gemm", "dhelix-w", "exact", true},
        {"{passes: [ring-gemm(ways=both)]}", "ring-gemm(ways=both)", NULL, "sequential", false},
        {"{passes: ring-gemm, order: list}", "ring-gemm", NULL, "list", false},
        {"{schedule: dhelix-w}", "", "dhelix-w", "auto", false},
        {"{schedule: zb-h1}", "", "zb-h1", "sequential", false},
        {"split+reorder(regather=false)+fuse(4)+part-wise",
         "split, reorder(regather=false), fuse(parts=4), part-wise", NULL, "sequential", false},
        {"two-stage+flux", "two-stage, part-wise(parts=auto, scatter, fused)", NULL, "sequential",
         false},
        {"{order: dp, barriers: full, schedule: dhelix-w, passes: []}", "", "dhelix-w", "dp", true},
    };
    dh_arena *arena = dh_arena_create();
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_strategy *s;
        assert_ok(&ctx, dh_strategy_read(&ctx, arena, cases[i].text, &s));
        assert_string_equal(s->name, cases[i].text);
        assert_passes(s, cases[i].passes);
        assert_string_equal(s->policy, cases[i].policy);
        assert_string_equal(s->schedule ? s->schedule : "",
                            cases[i].schedule ? cases[i].schedule : "");
        assert_int_equal(s->barriers, cases[i].barriers);
    }
    dh_arena_destroy(arena);
}

/* What the rows have in code is what their text says. */
static void test_rows_read_as_themselves(void **state)
{
    static const struct {
        const char *name, *passes;
    } cases[] = {{"sequential", ""},
                 {"intra-batch", "ring-gemm"},
                 {"intra-batch-bidirectional", "ring-gemm(both)"},
                 {"flux", "part-wise(auto, scatter, fused)"},
                 {"t3", "track-trigger"},
                 {"domino", "domino"},
                 {"dhelix-rings", "ring-gemm"},
                 {"centauri", "two-stage(auto, auto), part-wise(auto, cut=auto)"},
                 {"coconet", ""}};
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    dh_arena *arena = dh_arena_create();
    (void)state;
    for (size_t i = 0; i < n; i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_strategy *s;
        assert_ok(&ctx, dh_strategy_read(&ctx, arena, rows[i].name, &s));
        assert_ptr_equal(s, &rows[i]);
        assert_ok(&ctx, dh_pass_list_check(&ctx, &s->passes));
        assert_int_equal(s->searches, strcmp(s->name, "coconet") == 0);
    }
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_strategy *s;
        dh_pass_list passes;
        assert_ok(&ctx, dh_strategy_find(&ctx, cases[i].name, &s));
        assert_ok(&ctx, dh_pass_list_parse(&ctx, cases[i].passes, &passes));
        assert_true(dh_pass_list_equal(&s->passes, &passes));
    }
    dh_arena_destroy(arena);
}

static void test_read_refused(void **state)
{
    static const struct {
        const char *text, *part;
        dh_status status;
    } cases[] = {
        {"dhelx", "did you mean dhelix", DH_EMISSING},
        {"ring-gem+dhelix", "did you mean ring-gemm", DH_EMISSING},
        {"ring-gemm+dhelx", "called dhelx; did you mean dhelix", DH_EMISSING},
        {"ring-gemm(sideways)", "it can be forth, both", DH_EINVAL},
        {"dhelix+list", "names two strategies", DH_EINVAL},
        {"ring-gemm++dhelix", "missing or too long", DH_EINVAL},
        {"ring-gemm+intra-batch", "stands twice", DH_EINVAL},
        {"split+reorder+fuse+part-wise+flux", "no more than 4 passes", DH_EINVAL},
        {"{passes: [split, reorder, fuse, part-wise, domino]}", "no more than 4 passes", DH_EINVAL},
        {"{passes: [ring-gemm, ring-gemm(both)]}", "stands twice", DH_EINVAL},
        {"{passes: [recompute]}", "follows from the job's settings", DH_EINVAL},
        {"{pases: [ring-gemm]}", "did you mean passes", DH_EMISSING},
        {"{schedule: dhelix}", "not a schedule: strategy=dhelix, which brings schedule dhelix-w",
         DH_EMISSING},
        {"{schedule: gpip}", "did you mean \"gpipe\"", DH_EMISSING},
        {"{order: lst}", "did you mean", DH_EMISSING},
        {"{barriers: some}", "it can be full, events", DH_EINVAL},
        {"{order: list, order: auto}", "said twice", DH_EINVAL},
        {"{order}", "is not key: value", DH_EINVAL},
        {"{}", "is not key: value", DH_EINVAL},
        {"{order: list", "not closed", DH_EINVAL},
        {"{order: }", "missing or too long", DH_EINVAL},
    };
    dh_arena *arena = dh_arena_create();
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_strategy *s;
        assert_fails(&ctx, dh_strategy_read(&ctx, arena, cases[i].text, &s), cases[i].status,
                     cases[i].part);
    }
    dh_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_order_that_comes_again_is_not_timed),
        cmocka_unit_test(a_transfer_hides_behind_the_other_strand),
        cmocka_unit_test(a_reader_begins_with_its_part),
        cmocka_unit_test(one_after_the_other_exposes_all),
        cmocka_unit_test(barriers_alone_serialize),
        cmocka_unit_test(barriers_of_turns_are_between_rounds),
        cmocka_unit_test(a_barrier_waits_for_everything),
        cmocka_unit_test(operators_beside_each_other_slow_down),
        cmocka_unit_test(what_an_operator_loses_is_made_good_afterwards),
        cmocka_unit_test(memory_counts_what_is_alive),
        cmocka_unit_test(an_order_that_waits_for_ever_is_refused),
        cmocka_unit_test(orders_are_put_right),
        cmocka_unit_test(reductions_go_where_the_step_has_room),
        cmocka_unit_test(weight_gradients_go_by_the_critical_path),
        cmocka_unit_test(policies_order_real_layers),
        cmocka_unit_test(fixed_orders_are_the_published_ones),
        cmocka_unit_test(orders_are_remembered),
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_rows_read_as_themselves),
        cmocka_unit_test(test_read_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
