/* Step time and memory of one configuration, from pieces computed once for all that share
 * them.
 *
 * A step of many micro-batches repeats itself: beyond a few for each stage, every further
 * one adds the same. Schedules are timed for two such numbers, and the rest is a straight
 * line. */
#include <stdlib.h>
#include <string.h>

#include "dhelix/train.h"
#include "program/build.h"
#include "tune/tuner.h"

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory estimating a configuration");
}

/* ---- keys --------------------------------------------------------------------------------------
 */

typedef struct timetable_key {
    int64_t row, n_ranks, n_micro, n_chunks;
} timetable_key;

typedef struct blocks_key {
    uint64_t costs;
    int64_t tp, cp, ep, micro_batch, recompute, decompose;
} blocks_key;

typedef struct times_key {
    blocks_key blocks;
    uint64_t policy;
    int64_t barriers, wants;
} times_key;

typedef struct outline_key {
    uint64_t costs;
    int64_t tp, cp, ep, dp, pp, n_layers, embed, head, apart;
} outline_key;

void tune_tables_init(tuner *t)
{
    tune_table_init(&t->timetables, sizeof(timetable_key));
    tune_table_init(&t->blocks, sizeof(blocks_key));
    tune_table_init(&t->times, sizeof(times_key));
    tune_table_init(&t->outlines, sizeof(outline_key));
}

void tune_tables_fini(tuner *t)
{
    tune_table_fini(&t->timetables);
    tune_table_fini(&t->blocks);
    tune_table_fini(&t->times);
    tune_table_fini(&t->outlines);
    tune_table_fini(&t->memo.times);
    for (size_t i = 0; i < t->all_blocks.n; i++) tune_blocks_fini(t->all_blocks.at[i]);
    for (size_t i = 0; i < t->all_timetables.n; i++)
        dh_schedule_destroy((dh_schedule *)t->all_timetables.at[i]->schedule);
    dh_vec_fini(&t->all_blocks);
    dh_vec_fini(&t->all_timetables);
    free(t->scratch);
}

/* ---- one configuration
 * ---------------------------------------------------------------------------- */

typedef struct estimate {
    dh_ctx *ctx;
    tuner *t;
    const dh_tune_row *row;
    const dh_schedule_row *schedule;
    dh_session_spec session;
    dh_ordering ordering;
    dh_program_spec spec;
    int64_t n_micro;
    const tune_timetable *short_one, *long_one; /* the same where nothing is left out */
    tune_pieces pieces;
    tune_slot_cost *costs; /* by class of the long one */
    tune_rank_end *ends, *short_ends;
    const tune_outline **outlines; /* by rank */
} estimate;

/* Policies that search at length are estimated by one that comes close in no time. TUNING:
 * on Llama 3 70B its slots are longer by 0 to 2 % (tests/tune holds estimates against
 * simulations). */
static const struct {
    const char *policy, *by;
} stand_ins[] = {{"exact", "list"}, {"auto", "list"}};

static dh_status find_ordering(dh_ctx *ctx, const dh_ordering *given, dh_ordering *ordering)
{
    *ordering = *given;
    for (size_t i = 0; i < DH_COUNTOF(stand_ins); i++)
        if (strcmp(given->policy->name, stand_ins[i].policy) == 0)
            return dh_order_policy_find(ctx, stand_ins[i].by, &ordering->policy);
    return DH_OK;
}

static dh_status describe(estimate *e)
{
    dh_ctx *ctx = e->ctx;
    dh_job *job = e->t->job;
    const dh_cluster *cluster = e->t->options->cluster;
    dh_ordering ordering;
    size_t n;
    e->schedule = dh_schedule_rows(&n)[e->row->config.at[DH_TUNE_SCHEDULE]];
    /* as dh_train_schedule has it */
    if (job->pp == 1 && e->schedule->n_chunks != 2)
        DH_TRY(dh_schedule_find(ctx, "1f1b", &e->schedule));
    DH_TRY(dh_train_plan(ctx, job, &e->session));
    if (cluster)
        DH_TRY(dh_cluster_mesh(ctx, cluster, job->dp, job->tp, job->pp, job->cp, job->ep,
                               &e->session.mesh));
    DH_TRY(dh_train_ordering(ctx, job, &ordering));
    DH_TRY(find_ordering(ctx, &ordering, &e->ordering));
    e->session.costs = e->t->costs;
    e->session.ordering = &e->ordering;
    e->spec = dh_session_program_spec(&e->session, DH_MODE_TRAIN);
    if (cluster) e->spec.backend = NULL;
    e->n_micro = e->spec.n_micro;
    return DH_OK;
}

/* ---- schedules
 * -------------------------------------------------------------------------------------- */

static dh_status make_timetable(estimate *e, const timetable_key *key, tune_timetable **table)
{
    dh_ctx *ctx = e->ctx;
    const dh_schedule_spec spec = {.n_ranks = (int32_t)key->n_ranks,
                                   .n_micro = (int32_t)key->n_micro,
                                   .n_chunks = (int32_t)key->n_chunks};
    dh_schedule *schedule;
    DH_TRY(dh_schedule_generate(ctx, e->schedule, &spec, &schedule));
    dh_program_spec program = e->spec;
    program.n_micro = key->n_micro;
    int64_t *layers = calloc((size_t)schedule->n_stages, sizeof *layers);
    dh_status st = layers ? plan_check_schedule(ctx, &program, schedule) : no_memory(ctx);
    if (st == DH_OK)
        st = dh_layer_split(ctx, e->spec.model->n_layers, schedule->n_stages,
                            e->spec.layer_split ? e->spec.layer_split : "", layers);
    if (st == DH_OK) st = tune_timetable_make(ctx, e->t->arena, schedule, layers, table);
    if (st == DH_OK && !dh_vec_push(&e->t->all_timetables, *table)) st = no_memory(ctx);
    free(layers);
    if (st != DH_OK) dh_schedule_destroy(schedule);
    return st;
}

static dh_status find_timetable(estimate *e, int64_t n_micro, const tune_timetable **table)
{
    const timetable_key key = {e->row->config.at[DH_TUNE_SCHEDULE], e->spec.mesh.pp, n_micro,
                               e->row->config.at[DH_TUNE_STAGES]};
    void **place = tune_table_at(&e->t->timetables, e->t->arena, &key);
    tune_timetable *made = NULL;
    if (!place) return no_memory(e->ctx);
    if (!*place) {
        DH_TRY(make_timetable(e, &key, &made));
        *place = made;
    }
    *table = *place;
    return DH_OK;
}

/* TUNING: with 2p and 4p micro-batches the straight line through them is off by less than
 * 0.1 % for every row of the table (tests/tune). */
static dh_status find_timetables(estimate *e)
{
    const int64_t p = DH_MAX(e->spec.mesh.pp, (int64_t)2);
    const dh_schedule_spec spec = {.n_ranks = (int32_t)e->spec.mesh.pp,
                                   .n_micro = (int32_t)e->n_micro,
                                   .n_chunks = (int32_t)e->row->config.at[DH_TUNE_STAGES]};
    DH_TRY(dh_schedule_applicable(e->ctx, e->schedule, &spec));
    const bool whole = e->n_micro <= 4 * p;
    DH_TRY(find_timetable(e, whole ? e->n_micro : 4 * p, &e->long_one));
    e->short_one = e->long_one;
    return whole ? DH_OK : find_timetable(e, 2 * p, &e->short_one);
}

/* ---- pieces
 * ------------------------------------------------------------------------------------------- */

static blocks_key key_of_blocks(const estimate *e, dh_recompute_kind recompute)
{
    const dh_mesh *m = &e->spec.mesh;
    return (blocks_key){.costs = (uint64_t)(uintptr_t)e->spec.costs,
                        .tp = m->tp,
                        .cp = m->cp,
                        .ep = m->ep,
                        .micro_batch = e->spec.micro_batch,
                        .recompute = recompute,
                        .decompose = e->spec.strategy->decompose};
}

static dh_status find_blocks(estimate *e, dh_recompute_kind recompute, const tune_blocks **blocks)
{
    const blocks_key key = key_of_blocks(e, recompute);
    dh_program_spec spec = e->spec;
    spec.recompute = recompute;
    void **place = tune_table_at(&e->t->blocks, e->t->arena, &key);
    if (!place) return no_memory(e->ctx);
    if (!*place) {
        tune_blocks *made;
        DH_TRY(tune_blocks_make(e->ctx, e->t->arena, &spec, &made));
        *place = made;
        if (!dh_vec_push(&e->t->all_blocks, made)) {
            tune_blocks_fini(made);
            return no_memory(e->ctx);
        }
    }
    *blocks = *place;
    return DH_OK;
}

static dh_status find_times(estimate *e, const tune_times **times)
{
    const tune_wants wants = {e->schedule->split_backward, e->schedule->pairs};
    const times_key key = {.blocks = key_of_blocks(e, e->spec.recompute),
                           .policy = (uint64_t)(uintptr_t)e->ordering.policy,
                           .barriers = e->ordering.options.barriers,
                           .wants = wants.split | wants.pairs << 1};
    void **place = tune_table_at(&e->t->times, e->t->arena, &key);
    if (!place) return no_memory(e->ctx);
    if (!*place) {
        tune_times *made = DH_NEW(e->t->arena, tune_times);
        if (!made) return no_memory(e->ctx);
        DH_TRY(tune_times_make(e->ctx, &e->spec, e->pieces.blocks, wants, made));
        *place = made;
    }
    *times = *place;
    return DH_OK;
}

/* What a rank holds, over all its virtual stages. */
static tune_stage holding_of(const tune_timetable *t, int32_t rank)
{
    tune_stage all = {0};
    for (int32_t v = 0; v < t->schedule->n_stages; v++) {
        if (t->schedule->rank_of[v] != rank) continue;
        all.n_layers += t->types[t->type_of[v]].n_layers;
        all.embed |= t->types[t->type_of[v]].embed;
        all.head |= t->types[t->type_of[v]].head;
    }
    return all;
}

/* Embedding and head on different ranks, which matters where they are tied. */
static bool ends_apart(const tune_timetable *t)
{
    return t->schedule->rank_of[0] != t->schedule->rank_of[t->schedule->n_stages - 1];
}

static dh_status make_outline(estimate *e, int64_t rank, tune_outline **outline)
{
    dh_program_spec spec = e->spec;
    spec.schedule = e->long_one->schedule;
    spec.n_micro = spec.schedule->n_micro;
    spec.rank = dh_mesh_rank(&e->spec.mesh, (dh_coord){.pp = rank});
    return tune_outline_make(e->ctx, e->t->arena, &spec, outline);
}

/* Ranks that hold as many layers share an outline, however many virtual stages these are:
 * buckets differ, in the bytes that fill them up and in how many transfers they make. */
static dh_status find_outline(estimate *e, int32_t rank, const tune_outline **outline)
{
    const dh_mesh *m = &e->spec.mesh;
    const tune_stage holds = holding_of(e->long_one, rank);
    const outline_key key = {.costs = (uint64_t)(uintptr_t)e->spec.costs,
                             .tp = m->tp,
                             .cp = m->cp,
                             .ep = m->ep,
                             .dp = m->dp,
                             .pp = m->pp,
                             .n_layers = holds.n_layers,
                             .embed = holds.embed,
                             .head = holds.head,
                             .apart = ends_apart(e->long_one)};
    void **place = tune_table_at(&e->t->outlines, e->t->arena, &key);
    tune_outline *made;
    if (!place) return no_memory(e->ctx);
    if (!*place) {
        DH_TRY(make_outline(e, rank, &made));
        *place = made;
    }
    *outline = *place;
    return DH_OK;
}

static dh_status find_outlines(estimate *e)
{
    const int32_t *like = e->long_one->like;
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        if (like[r] < r)
            e->outlines[r] = e->outlines[like[r]];
        else
            DH_TRY(find_outline(e, r, &e->outlines[r]));
    }
    return DH_OK;
}

/* One message from stage to stage. */
static dh_status find_transfer(estimate *e)
{
    const dh_program_spec *s = &e->spec;
    dh_graph *g;
    e->pieces.transfer = (tune_transfer){0};
    if (s->mesh.pp == 1) return DH_OK;
    DH_TRY(dh_graph_build_link(e->ctx, true, s->micro_batch * (s->seq / s->mesh.cp) / s->mesh.tp,
                               s->model->width, s->dtype, s->model->n_experts, &g));
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_cost_op at = {g, &g->ops.at[i], &s->mesh, 0};
        e->pieces.transfer.ns +=
            s->costs->solo(s->costs->self, &at).ns + s->costs->event_ns + s->costs->launch_ns;
        e->pieces.transfer.shared |= e->pieces.blocks->streams >> dh_cost_stream(&at) & 1;
    }
    dh_graph_destroy(g);
    return DH_OK;
}

/* ---- putting it together
 * ----------------------------------------------------------------------------- */

static dh_status reserve(estimate *e)
{
    tuner *t = e->t;
    const size_t n_ranks = (size_t)e->long_one->n_ranks;
    const size_t n = (size_t)DH_MAX(e->long_one->n_slots, e->short_one->n_slots) + 1;
    const size_t n_classes = (size_t)DH_MAX(e->long_one->n_classes, e->short_one->n_classes);
    const size_t bytes = n * sizeof(double) + n_classes * sizeof(tune_slot_cost) +
                         n_ranks * (2 * sizeof(tune_rank_end) + sizeof(tune_outline *));
    if (bytes > t->n_scratch) {
        double *more = realloc(t->scratch, 2 * bytes);
        if (!more) return no_memory(e->ctx);
        t->scratch = more;
        t->n_scratch = 2 * bytes;
    }
    e->costs = (tune_slot_cost *)(t->scratch + n);
    e->ends = (tune_rank_end *)(e->costs + n_classes);
    e->short_ends = e->ends + n_ranks;
    e->outlines = (const tune_outline **)(e->short_ends + n_ranks);
    return DH_OK;
}

/* Micro-batches left out, in units of the difference between the two timetables. */
static double left_out(const estimate *e)
{
    const double n_long = (double)e->long_one->schedule->n_micro;
    const double n_short = (double)e->short_one->schedule->n_micro;
    return n_long > n_short ? ((double)e->n_micro - n_long) / (n_long - n_short) : 0;
}

static void run_one(estimate *e, const tune_timetable *table, tune_rank_end *ends)
{
    for (int32_t c = 0; c < table->n_classes; c++)
        e->costs[c] = tune_slot_cost_of(&e->pieces, table, &table->classes[c]);
    tune_timetable_run(table, e->costs, e->pieces.transfer, e->t->scratch, ends);
}

static void run_schedule(estimate *e)
{
    const double k = left_out(e);
    if (k > 0) run_one(e, e->short_one, e->short_ends);
    run_one(e, e->long_one, e->ends);
    for (int32_t r = 0; k > 0 && r < e->long_one->n_ranks; r++) {
        tune_rank_end *end = &e->ends[r];
        const tune_rank_end *before = &e->short_ends[r];
        end->end_ns += k * (end->end_ns - before->end_ns);
        end->busy_ns += k * (end->busy_ns - before->busy_ns);
        end->peak_bytes += k * (end->peak_bytes - before->peak_bytes);
    }
}

static void find_peak(const estimate *e, dh_tune_memory *memory)
{
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        const tune_outline *o = e->outlines[r];
        const uint64_t activations = (uint64_t)e->ends[r].peak_bytes;
        if (o->persistent + activations <= memory->peak_bytes) continue;
        *memory = (dh_tune_memory){.stage = r,
                                   .parameters = o->parameters,
                                   .gradients = o->gradients,
                                   .optimizer = o->optimizer,
                                   .activations = activations,
                                   .peak_bytes = o->persistent + activations};
    }
}

/* Reductions still under way when the last backward has ended: the k-th of K can begin when
 * as much of that backward is done. */
static double exposed_reductions(const estimate *e, int32_t rank)
{
    const tune_outline *o = e->outlines[rank];
    const dh_schedule *s = e->long_one->schedule;
    double window = 0, at = 0;
    for (int32_t v = 0; v < s->n_stages; v++)
        if (s->rank_of[v] == rank)
            window += tune_backward_ns(&e->pieces, &e->long_one->types[e->long_one->type_of[v]]);
    for (size_t k = 0; k < o->n_reductions; k++)
        at = DH_MAX(at, window * (double)(k + 1) / (double)o->n_reductions) + o->reduction_ns[k];
    return o->n_reductions ? at - window : 0;
}

static void count_parts(const estimate *e, int32_t rank, double parts[DH_N_TUNE_PART])
{
    const double k = left_out(e);
    const tune_timetable *tables[] = {e->long_one, e->short_one};
    const double weights[] = {1 + k, -k};
    for (int i = 0; i < (k > 0 ? 2 : 1); i++)
        for (int32_t c = 0; c < tables[i]->n_classes; c++) {
            const tune_class *cls = &tables[i]->classes[c];
            const int32_t n = tables[i]->counts[rank * tables[i]->n_classes + c];
            if (n > 0)
                tune_slot_parts(&e->pieces, tables[i], cls,
                                tune_slot_cost_of(&e->pieces, tables[i], cls).ns, n * weights[i],
                                parts);
        }
}

static void find_step(const estimate *e, dh_tune_row *row)
{
    double latest = 0, exposed = 0, optimizer = 0;
    int32_t last = 0;
    for (int32_t r = 0; r < e->long_one->n_ranks; r++) {
        const double behind = exposed_reductions(e, r);
        optimizer = DH_MAX(optimizer, e->outlines[r]->optimizer_ns);
        if (e->ends[r].end_ns + behind <= latest) continue;
        latest = e->ends[r].end_ns + behind;
        exposed = behind;
        last = r;
    }
    row->step_ns = latest + optimizer;
    memset(row->part_ns, 0, sizeof row->part_ns);
    count_parts(e, last, row->part_ns);
    row->part_ns[DH_TUNE_PART_DP] = exposed;
    row->part_ns[DH_TUNE_PART_OPTIMIZER] = optimizer;
    row->part_ns[DH_TUNE_PART_BUBBLE] = e->ends[last].end_ns - e->ends[last].busy_ns;
}

static dh_status find_pieces(estimate *e)
{
    e->pieces.launch_ns = e->spec.costs->launch_ns;
    DH_TRY(find_blocks(e, e->spec.recompute, &e->pieces.blocks));
    DH_TRY(find_blocks(e, DH_RECOMPUTE_KIND_NONE, &e->pieces.plain));
    DH_TRY(find_timetables(e));
    DH_TRY(reserve(e));
    return find_outlines(e);
}

dh_status tune_estimate(dh_ctx *ctx, tuner *t, dh_tune_row *row)
{
    static const tune_times no_times;
    estimate e = {.ctx = ctx, .t = t, .row = row};
    DH_TRY(describe(&e));
    DH_TRY(find_pieces(&e));
    e.pieces.times = &no_times; /* memory first: most configurations end here */
    run_schedule(&e);
    row->memory = (dh_tune_memory){0};
    find_peak(&e, &row->memory);
    row->fits = (double)row->memory.peak_bytes <= t->memory_bytes;
    row->step_ns = 0;
    if (!row->fits) return DH_OK;
    DH_TRY(find_transfer(&e));
    DH_TRY(find_times(&e, &e.pieces.times));
    run_schedule(&e);
    find_step(&e, row);
    return DH_OK;
}
