/* Jobs of the DHelix paper, simulated.
 *
 * What the paper does not say is taken so: micro-batches of one sequence, the distributed optimizer
 * (25 billion parameters would not fit otherwise), no recomputation, blockwise attention, Llama 3's
 * vocabulary and eight key/value heads (widths are Llama 3's too), GPT-2's vocabulary padded. */
#include "validate/dhelix_job.h"
#include "program/recipe.h"

#include <stdio.h>
#include <string.h>

static void llama(dh_model *m)
{
    m->family = DH_FAMILY_LLAMA;
    m->n_kv_heads = DH_MIN(m->n_heads, 8);
    m->vocab = 128256;
    m->norm = DH_NORM_RMS;
    m->act = DH_ACT_SWIGLU;
    m->rope.theta = 1e4;
}

static void gpt(dh_model *m)
{
    m->family = DH_FAMILY_GPT2;
    m->n_kv_heads = m->n_heads;
    m->vocab = 51200;
    m->norm = DH_NORM_LAYER;
    m->act = DH_ACT_GELU_TANH;
    m->bias = true;
}

dh_status dh_paper_model(dh_ctx *ctx, dh_arena *arena, const char *name, dh_model *model)
{
    dh_published t;
    const int64_t head_dim = 128;
    DH_TRY(dh_published_read(ctx, arena, "dhelix_tables3_4_5_models", &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *row;
        dh_model m = {.head_dim = head_dim, .max_seq = 1 << 17, .norm_eps = 1e-5, .init_std = .02};
        DH_TRY(dh_published_text(ctx, &t, i, "model", &row));
        if (strcmp(row, name) != 0) continue;
        DH_TRY(dh_published_int(ctx, &t, i, "hidden", &m.width));
        DH_TRY(dh_published_int(ctx, &t, i, "ffn", &m.ffn_width));
        DH_TRY(dh_published_int(ctx, &t, i, "layers", &m.n_layers));
        m.n_heads = m.width / head_dim;
        (strncmp(name, "Llama", 5) == 0 ? llama : gpt)(&m);
        snprintf(m.name, sizeof m.name, "%.40s", name);
        *model = m;
        return DH_OK;
    }
    return dh_fail(ctx, DH_EMISSING, "%s has no model %s", t.file, name);
}

/* ---- Megatron-LM's ways ------------------------------------------------------------------- */

static double exchange_factor(const dh_paper_costs *c, const dh_cost_op *op)
{
    const bool gradient = op->graph->tensors.at[op->op->in[0]].dtype == DH_F32;
    const double cp = (double)c->cp;
    return c->kv_repeats * (gradient ? (cp - 1) / cp / 2 : 1);
}

static dh_op_time megatron_solo(const void *self, const dh_cost_op *op)
{
    const dh_paper_costs *c = self;
    dh_op_time t = c->cluster->solo(c->cluster->self, op);
    if (op->op->type == DH_OP_RING_EXCHANGE && op->op->group == DH_GROUP_CP)
        t.ns *= exchange_factor(c, op);
    return t;
}

static bool communicates(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

/* Of one backward: a reduction of input gradients beside a weight gradient, an input gathered again
 * beside an input gradient. */
static bool is_across_gradients(const dh_op *a, const dh_op *b)
{
    return a->group == DH_GROUP_TP && a->phase != DH_PHASE_F && b->phase != DH_PHASE_F &&
           a->phase != b->phase;
}

static bool is_transfer(const dh_op *op)
{
    return op->type == DH_OP_SEND || op->type == DH_OP_RECV;
}

/* Whether computation b stands still while communication a runs. */
static bool is_waited_for(const dh_paper_costs *c, const dh_op *a, const dh_op *b)
{
    return communicates(a) && !communicates(b) &&
           (is_across_gradients(a, b) || (c->waits_for_transfers && is_transfer(a)));
}

static dh_op_rates megatron_beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const dh_paper_costs *c = self;
    if (is_waited_for(c, a->op, b->op)) return (dh_op_rates){1, 0, DH_PAIR_MODELLED};
    if (is_waited_for(c, b->op, a->op)) return (dh_op_rates){0, 1, DH_PAIR_MODELLED};
    return c->cluster->beside(c->cluster->self, a, b);
}

dh_status dh_paper_megatron_costs(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                                  const dh_paper_job *job, bool waits_for_transfers,
                                  dh_paper_costs *costs)
{
    dh_paper_costs c = {.waits_for_transfers = waits_for_transfers,
                        .kv_repeats = (double)job->model.n_heads / (double)job->model.n_kv_heads,
                        .cp = job->cp};
    DH_TRY(dh_cluster_costs(ctx, arena, cluster, &c.cluster));
    c.costs = *c.cluster;
    c.costs.solo = megatron_solo;
    c.costs.beside = megatron_beside;
    *costs = c;
    costs->costs.self = costs;
    return DH_OK;
}

/* ---- simulation -------------------------------------------------------------------------- */

/* Micro-batches from which on each batch of PERIOD more adds the same time, as steady phases of
 * one-forward-one-backward and of the W-shape do. TUNING: with 4 and 8 the W-shape on two stages is
 * off by 1 %, with 8 and 12 no job is off by a millionth (tests/validate). */
enum { SHORT = 8, PERIOD = 4 };

static dh_status schedule_of(dh_ctx *ctx, const dh_recipe *recipe, dh_schedule **schedule)
{
    const dh_schedule_row *row;
    const char *own = recipe->strategy->schedule;
    const dh_schedule_spec sizes = {.n_ranks = (int32_t)recipe->mesh.pp,
                                    .n_micro = (int32_t)recipe->n_micro};
    DH_TRY(dh_schedule_find(ctx, own ? own : "1f1b", &row));
    return dh_schedule_generate(ctx, row, &sizes, schedule);
}

static dh_status simulate(dh_ctx *ctx, const dh_recipe *job, int64_t n_micro,
                          const dh_paper_question *question, double *ns)
{
    dh_schedule *schedule;
    dh_sim *sim;
    dh_recipe recipe = *job;
    recipe.n_micro = n_micro;
    DH_TRY(schedule_of(ctx, &recipe, &schedule));
    recipe.schedule = schedule;
    dh_status st = dh_simulate(ctx, &recipe, recipe.costs, &(dh_sim_options){0}, &sim);
    if (st == DH_OK) {
        st = question->ask(ctx, sim, ns);
        dh_sim_destroy(sim);
    }
    dh_schedule_destroy(schedule);
    return st;
}

/* From two short steps, which share the orders found, to a long one. */
static dh_status extrapolate(dh_ctx *ctx, const dh_recipe *job, const dh_paper_question *question,
                             double *ns)
{
    double shorter[DH_PAPER_ANSWERS], longer[DH_PAPER_ANSWERS];
    dh_recipe recipe = *job;
    recipe.ordering.cache = dh_order_cache_create();
    if (!recipe.ordering.cache) return dh_fail(ctx, DH_ENOMEM, "out of memory validating");
    dh_status st = simulate(ctx, &recipe, SHORT, question, shorter);
    if (st == DH_OK) st = simulate(ctx, &recipe, SHORT + PERIOD, question, longer);
    dh_order_cache_destroy(recipe.ordering.cache);
    if (st != DH_OK) return st;
    const double periods = (double)(job->n_micro - SHORT) / PERIOD;
    for (int i = 0; i < question->n; i++) ns[i] = shorter[i] + (longer[i] - shorter[i]) * periods;
    return DH_OK;
}

dh_status dh_paper_simulate(dh_ctx *ctx, const dh_cluster *cluster, const dh_costs *costs,
                            const dh_paper_job *job, const dh_paper_question *question, double *ns)
{
    dh_recipe recipe = {.model = job->model,
                        .dtype = DH_BF16,
                        .costs = costs,
                        .micro_batch = 1,
                        .seq = job->seq,
                        .n_micro = job->global_batch / job->dp,
                        .zero1 = true};
    DH_TRY(dh_strategy_find(ctx, job->strategy, &recipe.strategy));
    DH_TRY(dh_cluster_mesh(ctx, cluster, job->dp, job->tp, job->pp, job->cp, 1, &recipe.mesh));
    if (job->whole || recipe.n_micro <= SHORT + PERIOD)
        return simulate(ctx, &recipe, recipe.n_micro, question, ns);
    return extrapolate(ctx, &recipe, question, ns);
}

static dh_status ask_step(dh_ctx *ctx, const dh_sim *sim, double *ns)
{
    (void)ctx;
    ns[0] = (double)sim->step_ns;
    return DH_OK;
}

const dh_paper_question dh_paper_step = {1, ask_step};

double dh_paper_flops(const dh_paper_job *job)
{
    const dh_model *m = &job->model;
    const double tokens = (double)(job->global_batch * job->seq);
    const double matrices =
        (double)m->width * (double)(m->n_heads * m->head_dim) * 2 +
        (double)m->width * (double)(m->n_kv_heads * m->head_dim) * 2 +
        (double)m->width * (double)m->ffn_width * (m->act == DH_ACT_SWIGLU ? 3 : 2);
    const double scores = 2 * (double)job->seq * (double)m->width;
    return 6 * tokens *
           ((matrices + scores) * (double)m->n_layers + (double)m->vocab * (double)m->width);
}
