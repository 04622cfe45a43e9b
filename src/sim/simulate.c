/* A simulation from end to end: which ranks, their programs, execution, accounts. */
#include "sim/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program/program_spec.h"
#include "program/ranks.h"
#include "sim/sim.h"

/* The parts of a simulation, while they are put together. */
typedef struct build {
    dh_ctx *ctx;
    const dh_recipe *recipe; /* NULL: programs are given, one for each rank */
    const dh_program *const *given;
    const dh_costs *costs;
    const dh_sim_options *options;
    dh_mesh mesh;
    dh_sim *sim;
    dh_sim_nodes nodes;
    dh_sim_nodes beside; /* n 0: nothing runs beside */
    dh_sim_node *node;   /* by node, those beside behind the others */
    DH_VEC(dh_program *) owned;
    DH_VEC(uint64_t) keys;      /* of owned programs */
    dh_sim_op_costs **op_costs; /* by program */
    size_t n_op_costs;
} build;

/* ---- ranks and their programs --------------------------------------------------------------- */

static dh_status check_slow(const build *b)
{
    for (size_t i = 0; i < b->options->n_slow; i++) {
        const dh_sim_slow *s = &b->options->slow[i];
        if (s->rank < 0 || s->rank >= b->mesh.ranks)
            return dh_fail(b->ctx, DH_EINVAL, "slow rank %lld: there are ranks 0 to %lld",
                           (long long)s->rank, (long long)b->mesh.ranks - 1);
        for (int k = 0; k < DH_N_ENGINE; k++)
            if (!(s->factor[k] >= 0) || isinf(s->factor[k]))
                return dh_fail(b->ctx, DH_EINVAL,
                               "slow rank %lld: %g times as long is no time; give a factor above 0",
                               (long long)s->rank, s->factor[k]);
    }
    return DH_OK;
}

/* Ranks of one key have programs alike (classes.c of program). */
static uint64_t key_of(const build *b, int64_t rank, bool every_rank)
{
    if (every_rank) return (uint64_t)rank;
    return dh_rank_key(b->recipe, rank);
}

static dh_status build_program(build *b, uint64_t key, int64_t rank)
{
    const dh_program_spec spec = {.recipe = *b->recipe,
                                  .rank = rank,
                                  .part = b->options->part,
                                  .goes_on = b->options->goes_on,
                                  .lean = b->options->lean,
                                  .unplaced = !b->options->placed};
    dh_program *p;
    if (!dh_vec_reserve(&b->owned, b->owned.n + 1) || !dh_vec_push(&b->keys, key))
        return dh_no_memory(b->ctx);
    DH_TRY(dh_program_build(b->ctx, &spec, &p));
    b->owned.at[b->owned.n++] = p;
    return DH_OK;
}

static dh_status find_program(build *b, uint32_t node, bool every_rank, const dh_program **program)
{
    const int64_t rank = dh_sim_node_rank(&b->nodes, node);
    if (b->given) {
        *program = b->given[rank];
        return DH_OK;
    }
    const uint64_t key = key_of(b, rank, every_rank);
    size_t i = 0;
    while (i < b->owned.n && b->keys.at[i] != key) i++;
    if (i == b->owned.n) DH_TRY(build_program(b, key, rank));
    *program = b->owned.at[i];
    return DH_OK;
}

static dh_status find_programs(build *b, bool every_rank)
{
    b->sim->ranks = DH_NEW_N(b->sim->arena, dh_sim_rank, b->nodes.n);
    if (!b->sim->ranks) return dh_no_memory(b->ctx);
    b->sim->n_classes = b->nodes.n;
    const dh_sim_watch *watch = b->options->watch;
    for (uint32_t k = 0; k < b->nodes.n; k++) {
        dh_sim_rank *r = &b->sim->ranks[k];
        if (watch) watch->tell(watch->user, false, k, b->nodes.n);
        r->rank = dh_sim_node_rank(&b->nodes, k);
        r->n_ranks = dh_sim_node_n_ranks(&b->nodes, k);
        r->stage = dh_mesh_coord(&b->mesh, r->rank).pp;
        DH_TRY(find_program(b, k, every_rank, &r->program));
    }
    return DH_OK;
}

static bool has_ring(const dh_graph *g)
{
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == DH_OP_RING_ATTN) return true;
    return false;
}

/* Whether all context-parallel ranks have the costs of the first. */
static bool cp_alike(const build *b)
{
    for (size_t i = 0; i < b->owned.n; i++)
        for (size_t g = 0; g < b->owned.at[i]->graphs.n; g++) {
            const dh_graph *graph = b->owned.at[i]->graphs.at[g];
            if (!has_ring(graph)) continue;
            for (int64_t cp = 1; cp < b->mesh.cp; cp++)
                if (!dh_sim_cp_costs_equal(b->costs, &b->mesh, graph, 0, cp)) return false;
            return true; /* layers are alike */
        }
    return true;
}

/* Tensor-parallel ranks with as many rows of the vocabulary as the first. */
static int64_t n_full_shards(const build *b)
{
    int64_t begin, rows;
    dh_vocab_shard(b->recipe->model.vocab, (dh_shard){.tp = b->mesh.tp}, &begin, &rows);
    return b->recipe->model.vocab / rows;
}

static bool is_exact(const build *b)
{
    const dh_sim_collapse how = b->options->collapse;
    return how == DH_SIM_LIKE || (how == DH_SIM_AUTO && b->mesh.ranks <= DH_SIM_MAX_LIKE);
}

static dh_status split_ranks(build *b, const dh_sim_split splits[DH_N_MESH_AXES], bool every)
{
    DH_TRY(dh_sim_nodes_init(b->ctx, b->sim->arena, &b->mesh, splits, b->options, &b->nodes));
    return find_programs(b, every);
}

static bool shares_cores(const build *b)
{
    return b->options->cores > 0 && b->options->cores < b->mesh.ranks;
}

/* Where operators work on stages of groups, an axis that nodes cut is one class or many
 * (collapse.c): many where coordinates stand apart, and only the ranks' count is lost. */
static void keep_stages(build *b, dh_sim_split splits[DH_N_MESH_AXES])
{
    const int64_t sizes[] = {b->mesh.tp, b->mesh.cp, b->mesh.ep, b->mesh.edp};
    const bool in_stages =
        dh_recipe_in_stages(b->recipe) || b->recipe->moe_dispatch == DH_DISPATCH_NODE;
    for (int axis = 0; in_stages && axis < DH_MESH_PP; axis++) {
        const int64_t run = dh_mesh_run_on_node(&b->mesh, axis);
        const bool whole = splits[axis].n_alike == sizes[axis] && !splits[axis].first_apart;
        if (run == 1 || run == sizes[axis] || (whole && b->options->n_slow == 0)) continue;
        splits[axis].n_alike = 0;
    }
}

/* With the distributed optimizer vectors count on the first rank of those that sum
 * gradients, else on the first that have other experts. */
static dh_status choose_ranks(build *b)
{
    const dh_mesh *m = &b->mesh;
    const dh_sim_split none[DH_N_MESH_AXES] = {{0}};
    if (b->given || b->options->collapse == DH_SIM_EVERY || !dh_mesh_nodes_alike(m) ||
        shares_cores(b))
        return split_ranks(b, none, true);
    const bool exact = is_exact(b), sharded = b->recipe->sharing.moments;
    const int64_t tp_alike = exact && m->kv_ranks > 1 ? 0 : n_full_shards(b);
    dh_sim_split splits[DH_N_MESH_AXES] = {[DH_MESH_TP] = {tp_alike, exact},
                                           [DH_MESH_CP] = {m->cp, exact && sharded},
                                           [DH_MESH_EP] = {m->ep, exact},
                                           [DH_MESH_EDP] = {m->edp, exact && sharded}};
    keep_stages(b, splits);
    DH_TRY(split_ranks(b, splits, false));
    if (cp_alike(b)) return DH_OK;
    splits[DH_MESH_CP].n_alike = 0;
    return split_ranks(b, splits, false);
}

/* ---- execution ------------------------------------------------------------------------------ */

static dh_status costs_of(build *b, const dh_program *program, dh_sim_op_costs **costs)
{
    for (size_t i = 0; i < b->n_op_costs; i++) {
        *costs = b->op_costs[i];
        if ((*costs)->program == program) return DH_OK;
    }
    *costs = DH_NEW(b->sim->arena, dh_sim_op_costs);
    if (!*costs) return dh_no_memory(b->ctx);
    b->op_costs[b->n_op_costs++] = *costs;
    return dh_sim_op_costs_init(b->ctx, *costs, b->costs, program);
}

static int64_t core_of(const build *b, uint32_t node)
{
    const int64_t rank = b->sim->ranks[node].rank;
    return shares_cores(b) ? rank * b->options->cores / b->mesh.ranks : rank;
}

/* Every rank is a node where cores are shared, and neighbours share one. */
static void find_mates(const build *b, uint32_t k, dh_sim_node *n)
{
    n->mate0 = k;
    n->mates_end = k + 1;
    while (n->mate0 > 0 && core_of(b, n->mate0 - 1) == core_of(b, k)) n->mate0--;
    while (n->mates_end < b->nodes.n && core_of(b, n->mates_end) == core_of(b, k)) n->mates_end++;
}

static dh_status prepare_node(build *b, uint32_t k)
{
    dh_sim_rank *r = &b->sim->ranks[k];
    dh_sim_node *n = &b->node[k];
    for (int e = 0; e < DH_N_ENGINE; e++) n->factor[e] = 1;
    n->beside = DH_NONE;
    find_mates(b, k, n);
    for (size_t i = 0; i < b->options->n_slow; i++) {
        const dh_sim_slow *slow = &b->options->slow[i];
        for (int e = 0; slow->rank == r->rank && e < DH_N_ENGINE; e++)
            n->factor[e] *= slow->factor[e] > 0 ? slow->factor[e] : 1;
    }
    r->spans = n->spans = DH_NEW_N(b->sim->arena, dh_span, dh_program_n_spans(r->program) + 1);
    if (!n->spans) return dh_no_memory(b->ctx);
    return costs_of(b, r->program, &n->costs);
}

/* ---- what runs beside ---- */

/* Every rank by itself: who sends what to whom differs. */
static dh_status find_beside(build *b)
{
    const dh_sim_split none[DH_N_MESH_AXES] = {{0}};
    const dh_sim_options plain = {.collapse = DH_SIM_EVERY};
    if (!b->options->beside) return DH_OK;
    const dh_mesh *mesh = &b->options->beside[0]->mesh;
    for (int64_t i = 0; i < b->mesh.ranks; i++)
        if (b->options->beside[i]->rank != i || mesh->ranks != b->mesh.ranks)
            return dh_fail(b->ctx, DH_EINVAL,
                           "programs that run together must have the same ranks: there are %lld",
                           (long long)b->mesh.ranks);
    return dh_sim_nodes_init(b->ctx, b->sim->arena, mesh, none, &plain, &b->beside);
}

/* Ranks for which another one stands have their program alone: all meet in its messages. */
static dh_status prepare_beside(build *b, uint32_t k)
{
    const dh_program *p = b->options->beside[dh_sim_node_rank(&b->beside, k)];
    const uint32_t own = b->nodes.n + k;
    dh_sim_node *n = &b->node[own];
    *n = (dh_sim_node){.mate0 = own, .mates_end = own + 1, .beside = DH_NONE};
    for (int e = 0; e < DH_N_ENGINE; e++) n->factor[e] = 1;
    for (uint32_t i = 0; i < b->nodes.n; i++) {
        if (b->sim->ranks[i].rank != p->rank) continue;
        n->beside = i;
        b->node[i].beside = own;
    }
    n->spans = DH_NEW_N(b->sim->arena, dh_span, dh_program_n_spans(p) + 1);
    return n->spans ? costs_of(b, p, &n->costs) : dh_no_memory(b->ctx);
}

static void account_beside(build *b)
{
    for (uint32_t k = 0; k < b->beside.n; k++) {
        const dh_sim_node *n = &b->node[b->nodes.n + k];
        for (size_t i = 0; i < n->costs->program->instrs.n; i++)
            b->sim->beside_ns = DH_MAX(b->sim->beside_ns, n->spans[i].end_ns);
    }
}

static dh_status execute(build *b)
{
    DH_TRY(find_beside(b));
    const uint32_t n = b->nodes.n + b->beside.n;
    const dh_sim_nodes *const sides[2] = {&b->nodes, b->beside.n ? &b->beside : NULL};
    b->node = DH_NEW_N(b->sim->arena, dh_sim_node, n);
    b->op_costs = DH_NEW_N(b->sim->arena, dh_sim_op_costs *, n);
    if (!b->node || !b->op_costs) return dh_no_memory(b->ctx);
    for (uint32_t k = 0; k < b->nodes.n; k++) DH_TRY(prepare_node(b, k));
    for (uint32_t k = 0; k < b->beside.n; k++) DH_TRY(prepare_beside(b, k));
    DH_TRY(dh_sim_run(b->ctx, sides, b->options->watch, b->node));
    account_beside(b);
    return DH_OK;
}

/* ---- accounts ------------------------------------------------------------------------------- */

/* FLOPs and own times of all a rank executes. */
static dh_status add_work(build *b, const dh_sim_node *node, dh_sim_rank *r)
{
    const dh_program *p = r->program;
    const dh_sim_op_costs *costs = node->costs;
    double solo_ns[DH_N_PAIR_SOURCES] = {0};
    double *alone_ns = DH_NEW_N(b->sim->arena, double, p->instrs.n + 1);
    if (!alone_ns) return dh_no_memory(b->ctx);
    r->alone_ns = alone_ns;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        const dh_op_time *solo = &costs->solo[costs->instrs[i].kind];
        solo_ns[solo->source] += solo->ns;
        alone_ns[i] = solo->ns * node->factor[dh_stream_engine((dh_stream)instr->stream)];
        if (dh_op_multiplies(op->type)) r->flops += dh_op_flops(dh_instr_graph(p, instr), op);
    }
    for (int k = 0; k < DH_N_PAIR_SOURCES; k++)
        b->sim->solo_ns_by[k] += solo_ns[k] * (double)r->n_ranks;
    b->sim->hardware_flops += r->flops * (double)r->n_ranks;
    return DH_OK;
}

static void count_tokens(const dh_recipe *r, const dh_mesh *mesh, dh_sim *sim)
{
    sim->tokens = r->micro_batch * r->n_micro * mesh->dp * r->seq;
    sim->model_flops = dh_model_flops_per_token(&r->model, r->seq) * (double)sim->tokens;
}

static dh_status account(build *b)
{
    dh_sim *sim = b->sim;
    for (uint32_t k = 0; k < b->nodes.n; k++) {
        dh_sim_rank *r = &sim->ranks[k];
        DH_TRY(dh_sim_memory_of(b->ctx, sim->arena, r));
        DH_TRY(add_work(b, &b->node[k], r));
        /* Ranks of one core slow each other down too: what that takes, the step shows. */
        DH_TRY(sim->cores > 0
                   ? dh_timeline_observe(b->ctx, r->program, r->spans, r->alone_ns, &r->times)
                   : dh_timeline_reduce(b->ctx, r->program, r->spans, r->alone_ns, &r->times));
        for (size_t i = 0; i < r->program->instrs.n; i++)
            sim->step_ns = DH_MAX(sim->step_ns, r->spans[i].end_ns);
        r->n_instrs = r->program->instrs.n;
        sim->n_instrs += r->n_instrs;
    }
    if (b->recipe) count_tokens(b->recipe, &b->mesh, sim);
    return DH_OK;
}

/* ---- entries -------------------------------------------------------------------------------- */

static dh_status simulate(build *b)
{
    b->sim->arena = dh_arena_create();
    if (!b->sim->arena) return dh_no_memory(b->ctx);
    b->sim->n_ranks = b->mesh.ranks;
    b->sim->cores = shares_cores(b) ? b->options->cores : 0;
    b->sim->costs = dh_arena_strdup(b->sim->arena, b->costs->name);
    if (!b->sim->costs) return dh_no_memory(b->ctx);
    DH_TRY(check_slow(b));
    DH_TRY(choose_ranks(b));
    DH_TRY(execute(b));
    return account(b);
}

/* A schedule that repeats itself after a period can run so that two are needed. */
enum { MOST_PERIODS = 2 };

/* The step is one with n_left_out micro-batches more, where it repeats itself. */
static dh_status lengthen(build *b, dh_schedule_phase phase, int64_t n_left_out)
{
    dh_sim *shorter = NULL;
    for (int32_t k = 1; k <= MOST_PERIODS && !shorter; k++) {
        const dh_schedule_phase several = {k * phase.period, k * phase.step};
        DH_TRY(dh_sim_without_period(b->ctx, b->sim, b->node, several, &shorter));
        if (shorter) dh_sim_lengthen(b->sim, shorter, n_left_out / several.period);
    }
    return DH_OK;
}

static dh_status run(build *b, dh_schedule_phase phase, int64_t n_left_out, dh_sim **sim)
{
    b->sim = calloc(1, sizeof *b->sim);
    if (!b->sim) return dh_no_memory(b->ctx);
    dh_status st = simulate(b);
    if (st == DH_OK && n_left_out > 0) st = lengthen(b, phase, n_left_out);
    b->sim->programs = b->owned.at;
    b->sim->n_programs = b->owned.n;
    for (size_t i = 0; i < b->n_op_costs; i++) dh_sim_op_costs_fini(b->op_costs[i]);
    dh_vec_fini(&b->keys);
    if (st == DH_OK)
        *sim = b->sim;
    else
        dh_sim_destroy(b->sim);
    return st;
}

/* As a step with micro-batches left out of the steady phase. *sim NULL: it has none, or does not
 * repeat itself. */
static dh_status simulate_fewer(const build *whole, dh_schedule_phase phase, int64_t n_left_out,
                                dh_sim **sim)
{
    dh_recipe recipe = *whole->recipe;
    dh_schedule *shorter = NULL;
    build b = *whole;
    *sim = NULL;
    if (recipe.schedule) {
        DH_TRY(dh_schedule_shorten(b.ctx, recipe.schedule, (int32_t)n_left_out, &shorter));
        if (!shorter) return DH_OK;
        recipe.schedule = shorter;
    }
    recipe.n_micro -= n_left_out;
    b.recipe = &recipe;
    const dh_status st = run(&b, phase, n_left_out, sim);
    dh_schedule_destroy(shorter);
    if (st == DH_OK && (*sim)->shorter) {
        count_tokens(whole->recipe, &b.mesh, *sim);
    } else if (st == DH_OK) {
        dh_sim_destroy(*sim);
        *sim = NULL;
    }
    return st;
}

/* Cores that ranks share are left out: their accounts are no sums (dh_timeline_observe). */
static dh_schedule_phase steady_phase(const build *b)
{
    const dh_sim_options *o = b->options;
    const dh_schedule_phase none = {0, 0}, of_one_stage = {1, 1};
    if (!o->sums || o->placed || o->beside || o->part != DH_PART_STEP || o->goes_on ||
        shares_cores(b))
        return none;
    return b->recipe->schedule ? dh_schedule_steady(b->recipe->schedule) : of_one_stage;
}

/* TUNING: micro-batches until a pipeline repeats itself, and for its end. Most schedules need no
 * more; where they do, twice as many are tried. */
static int64_t first_kept(const build *b, dh_schedule_phase phase)
{
    return 4 * b->mesh.pp + 2 * (int64_t)phase.period + 2;
}

static dh_status simulate_steady(const build *b, dh_sim **sim)
{
    const dh_schedule_phase phase = steady_phase(b);
    const int64_t n = b->recipe->n_micro, both = (int64_t)MOST_PERIODS * phase.period;
    *sim = NULL;
    if (phase.period == 0) return DH_OK;
    for (int64_t kept = first_kept(b, phase); 3 * kept <= 2 * n && !*sim; kept *= 2)
        DH_TRY(simulate_fewer(b, phase, (n - kept) / both * both, sim));
    return DH_OK;
}

/* All programs share the orders that one of them found. */
dh_status dh_simulate(dh_ctx *ctx, const dh_recipe *recipe, const dh_costs *costs,
                      const dh_sim_options *options, dh_sim **sim)
{
    dh_recipe own = *recipe;
    dh_order_cache *cache = NULL;
    if (own.mesh.ranks == 0) DH_TRY(dh_mesh_init(ctx, 1, 1, 1, 1, 1, 1, 1, &own.mesh));
    build b = {.ctx = ctx, .recipe = &own, .costs = costs, .options = options, .mesh = own.mesh};
    DH_TRY(dh_recipe_ordering(ctx, recipe, &own.ordering));
    if (!own.ordering.cache) own.ordering.cache = cache = dh_order_cache_create();
    dh_sim *made = NULL;
    dh_status st = own.ordering.cache ? simulate_steady(&b, &made) : dh_no_memory(b.ctx);
    if (st == DH_OK && !made) st = run(&b, (dh_schedule_phase){0, 0}, 0, &made);
    if (st == DH_OK) *sim = made;
    dh_order_cache_destroy(cache);
    return st;
}

dh_status dh_simulate_programs(dh_ctx *ctx, const dh_program *const *programs, size_t n,
                               const dh_costs *costs, const dh_sim_options *options, dh_sim **sim)
{
    for (size_t i = 0; i < n; i++)
        if (programs[i]->rank != (int64_t)i || programs[i]->mesh.ranks != (int64_t)n)
            return dh_fail(ctx, DH_EINVAL,
                           "program %zu of %zu is that of rank %lld of %lld; all ranks of one mesh "
                           "are wanted, in order",
                           i, n, (long long)programs[i]->rank, (long long)programs[i]->mesh.ranks);
    if (n == 0) return dh_fail(ctx, DH_EINVAL, "no programs to simulate");
    build b = {.ctx = ctx,
               .given = programs,
               .costs = costs,
               .options = options,
               .mesh = programs[0]->mesh};
    return run(&b, (dh_schedule_phase){0, 0}, 0, sim);
}

void dh_sim_destroy(dh_sim *sim)
{
    if (!sim) return;
    dh_sim_destroy(sim->shorter);
    for (size_t i = 0; i < sim->n_programs; i++) dh_program_destroy(sim->programs[i]);
    free(sim->programs);
    dh_arena_destroy(sim->arena);
    free(sim);
}
