/* A job's settings to the fields of its recipe. */
#include "train/recipe.h"
#include "strategy/written.h"

#include <string.h>

#include "program/stage_costs.h"
#include "train/load.h"

_Static_assert((int)DH_RECOMPUTE_SELECTIVE == (int)DH_RECOMPUTE_KIND_SELECTIVE &&
                   (int)DH_RECOMPUTE_FULL == (int)DH_RECOMPUTE_KIND_FULL &&
                   (int)DH_RECOMPUTE_ATTENTION == (int)DH_RECOMPUTE_KIND_ATTENTION,
               "the job's setting names the pass's kinds");

/* ---- sizes -------------------------------------------------------------------------------- */

/* Differences of the system's programs from ours; all else is in the times of its operators. */
static void use_system(const dh_system *system, dh_recipe *recipe)
{
    if (dh_system_has(system, DH_TRAIT_WHOLE_LOGITS)) recipe->head_chunk_bytes = INT64_MAX / 4;
    if (dh_system_has(system, DH_TRAIT_HALF_GRADIENTS)) recipe->grad_dtype = recipe->dtype;
    recipe->one_link_stream = dh_system_has(system, DH_TRAIT_ORDERED_TRANSFERS);
    recipe->by_matrix = dh_system_has(system, DH_TRAIT_MATRIX_COLLECTIVES);
    recipe->recompute = dh_recipe_recompute(system, recipe->recompute);
}

dh_recompute_kind dh_recipe_recompute(const dh_system *system, dh_recompute_kind recompute)
{
    const bool whole = dh_system_has(system, DH_TRAIT_WHOLE_FORWARD);
    return whole && recompute == DH_RECOMPUTE_KIND_FULL ? DH_RECOMPUTE_KIND_FORWARD : recompute;
}

/* The more ranks reduce together, the more steps a ring has, and the less a rank sends in each.
 * Buckets therefore grow with the group, by Megatron-Core's million gradients a rank. Small groups
 * have PyTorch's size. */
static int64_t bucket_bytes(const dh_job *job)
{
    const int64_t bytes_per_rank = 4000000;
    if (job->bucket_mb > 0) return (int64_t)(job->bucket_mb * 1e6);
    return DH_MAX((int64_t)DH_BUCKET_BYTES, job->dp * job->cp * bytes_per_rank);
}

void dh_recipe_share_out(const dh_job *job, dh_recipe *recipe)
{
    recipe->sharing = dh_sharing_of_job(job);
    recipe->grad_dtype = job->grad_dtype == DH_GRAD_DTYPE_COMPUTE ? job->dtype : DH_F32;
    recipe->bucket_bytes = bucket_bytes(job);
}

static bool fuses_gelu(const dh_job *job, const dh_device *device)
{
    return job->fuse_gelu == DH_FUSE_GELU_AUTO ? device->info.fuses_gelu
                                               : job->fuse_gelu == DH_FUSE_GELU_ON;
}

dh_status dh_recipe_of_job(dh_ctx *ctx, const dh_job *job, dh_recipe *recipe)
{
    dh_mesh mesh;
    dh_system system;
    const dh_device *device;
    DH_TRY(dh_system_read(ctx, job->system, &system));
    DH_TRY(dh_mesh_from_job(ctx, job, &mesh));
    DH_TRY(dh_device_get(ctx, job->device, &device));
    *recipe = (dh_recipe){
        .model = job->model,
        .dtype = job->dtype,
        .mesh = mesh,
        .micro_batch = job->micro_batch,
        .seq = job->seq_len,
        .n_micro = dh_job_n_micro(job),
        .global_tokens = job->global_batch * job->seq_len,
        .dropout = job->dropout,
        .documents = dh_job_has_rows(job),
        .linear_ring = job->cp_linear == DH_CP_LINEAR_LASP1,
        .float_kv_grads = job->cp > 1 && job->cp_grad_dtype == DH_CP_GRAD_FLOAT32,
        .fp8 = job->fp8,
        .fuse_gelu = fuses_gelu(job, device),
        .moe_mode = job->moe_mode,
        .moe_dispatch = job->moe_dispatch,
        .expert_rows = job->expert_rows,
        .moe_capacity = job->moe_capacity,
        .layer_split = dh_job_splits(job) ? "*" : job->layer_split,
        .post_validation = job->post_validation,
        .fuse = dh_fuse_pieces(job->fuse),
        .clips = job->grad_clip > 0,
        .balances_routers = job->router_bias_rate > 0,
        .recompute = (dh_recompute_kind)job->recompute,
        .backend = &device->info,
    };
    dh_recipe_share_out(job, recipe);
    use_system(&system, recipe);
    return DH_OK;
}

dh_status dh_job_system(dh_ctx *ctx, const dh_job *job, dh_system *system, dh_system_job *said)
{
    *said = (dh_system_job){.sequence = dh_sharing_of_job(job).sequence,
                            .scores_again = job->recompute == DH_RECOMPUTE_ATTENTION,
                            .selective = job->recompute == DH_RECOMPUTE_SELECTIVE,
                            .fp8 = job->fp8 != DH_FP8_OFF,
                            .n_micro = dh_job_n_micro(job)};
    return dh_system_read(ctx, job->system, system);
}

dh_status dh_job_cluster_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job,
                               const dh_cluster *cluster, const dh_costs **costs)
{
    dh_system system;
    dh_system_job said;
    if (job->fp8 != DH_FP8_OFF && cluster->fp8_flops_per_s == 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "train.fp8 is set, but devices of cluster %s have no matrix multiplications "
                       "in 8 bits (device.tflops.fp8): train.fp8=off would be right",
                       cluster->name);
    DH_TRY(dh_job_system(ctx, job, &system, &said));
    DH_TRY(dh_system_costs(ctx, arena, &system, &said, cluster, costs));
    return dh_job_load_costs(ctx, arena, job, *costs, costs);
}

dh_status dh_recipe_place(dh_ctx *ctx, const dh_cluster *cluster, dh_recipe *recipe)
{
    const dh_mesh m = recipe->mesh;
    recipe->backend = NULL;
    DH_TRY(dh_cluster_mesh(ctx, cluster, m.dp, m.tp, m.pp, m.cp, m.ep, &recipe->mesh));
    recipe->mesh.whole_experts = m.whole_experts;
    recipe->mesh.kv_ranks = m.kv_ranks;
    recipe->mesh.share_ranks = m.share_ranks;
    return DH_OK;
}

dh_session_spec dh_train_session(const dh_job *job, const dh_recipe *recipe)
{
    return (dh_session_spec){.recipe = *recipe,
                             .device = dh_device_find(job->device),
                             .train = true,
                             .eval = job->eval_every > 0,
                             .overlaps = job->switch_overlap};
}

/* ---- strategy ------------------------------------------------------------------------------- */

static void set_switches(const dh_job *job, dh_order_options *o)
{
    o->pairing.overlap_local = job->overlap_local;
    o->pairing.overlap_cross = job->overlap_cross;
    o->pairing.overlap_comm_comm = job->overlap_comm_comm;
    o->pairing.move_wgrad = job->overlap_wgrad;
    /* auto: no limit, until a whole step has shown what a device has left (order_memory.c) */
    o->memory_blocks = job->overlap_memory > 0 ? job->overlap_memory : INFINITY;
    if (job->overlap_barriers != DH_BARRIERS_AUTO)
        o->barriers = job->overlap_barriers == DH_BARRIERS_FULL;
}

/* Whether slots of the job have two strands with the strategy. A schedule from a file is looked at
 * where it is read. */
static bool has_two_strands(const dh_job *job, const dh_strategy *strategy,
                            const dh_order_policy *policy)
{
    const dh_schedule_row *row;
    dh_ctx quiet = DH_CTX_INIT;
    if (!policy->order) return false;
    return strategy->schedule || dh_job_schedule_file(job) ||
           (dh_schedule_find(&quiet, job->schedule, &row) == DH_OK && row->pairs);
}

int64_t dh_usual_layer(const dh_model *m)
{
    const dh_layer_kinds kinds = dh_model_kinds(m, 0, m->n_layers);
    int most = 0;
    for (int k = 1; k < kinds.n; k++)
        if (kinds.count[k] > kinds.count[most]) most = k;
    return kinds.layer[most];
}

bool dh_job_order_file(const dh_job *job)
{
    return strpbrk(job->overlap_policy, "/.") != NULL;
}

static dh_status find_policy(dh_ctx *ctx, const dh_job *job, const dh_recipe *recipe,
                             dh_ordering *ordering)
{
    if (strcmp(job->overlap_policy, "auto") == 0) return DH_OK;
    if (!dh_job_order_file(job))
        return dh_order_policy_find(ctx, job->overlap_policy, &ordering->policy);
    ordering->options.written = recipe->ordering.options.written;
    ordering->policy = dh_written_policy();
    if (ordering->options.written) return DH_OK;
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "overlap.policy is a file, %.200s, which is the order of one job: a search needs a "
        "policy (dhelix list policies), as --set overlap.policy=auto",
        job->overlap_policy);
}

dh_status dh_recipe_use(dh_ctx *ctx, const dh_job *job, const dh_strategy *strategy,
                        dh_recipe *recipe)
{
    dh_ordering ordering;
    const bool all = job->overlap_local && job->overlap_cross && job->overlap_comm_comm;
    DH_TRY(dh_strategy_ordering(ctx, strategy, &ordering));
    DH_TRY(find_policy(ctx, job, recipe, &ordering));
    set_switches(job, &ordering.options);
    if (!all && !has_two_strands(job, strategy, ordering.policy))
        return dh_fail(ctx, DH_EINVAL,
                       "overlap.local, cross and comm_comm say what may run during another strand, "
                       "and strategy %s has one strand with schedule %s and order policy %s: "
                       "leave them at true, or take a strategy of two strands, as dhelix",
                       strategy->name, job->schedule, ordering.policy->name);
    ordering.cache = recipe->ordering.cache;
    recipe->strategy = strategy;
    recipe->ordering = ordering;
    return DH_OK;
}

/* ---- schedule ------------------------------------------------------------------------------- */

bool dh_job_schedule_file(const dh_job *job)
{
    const size_t n = strlen(job->schedule);
    return n > 4 && strcmp(job->schedule + n - 4, ".csv") == 0;
}

/* Only a row that is planned goes by its stages' times; others refuse the job's settings for it. */
static dh_status check_planned(dh_ctx *ctx, const dh_job *job, const dh_schedule_row *row)
{
    if (row->planned || (job->max_activations == 0 && job->wgrad_share == 0)) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "parallel.%s is for schedules that are placed by times, and %s has its order by "
                   "construction: leave it out, or take parallel.schedule=zb-auto",
                   job->max_activations ? "max_activations" : "wgrad_share", row->name);
}

static dh_schedule_spec spec_of(const dh_job *job, int64_t n_micro)
{
    return (dh_schedule_spec){.n_ranks = (int32_t)job->pp,
                              .n_micro = (int32_t)n_micro,
                              .n_chunks = (int32_t)job->vpp,
                              .max_activations = (int32_t)job->max_activations,
                              .wgrad_permille = (int32_t)(job->wgrad_share * 1000 + .5)};
}

dh_status dh_job_schedule_row(dh_ctx *ctx, const dh_job *job, int64_t n_micro,
                              const dh_schedule_row **row, dh_schedule_spec *spec)
{
    DH_TRY(dh_schedule_named(ctx, job->schedule, row));
    DH_TRY(check_planned(ctx, job, *row));
    *spec = spec_of(job, n_micro);
    return DH_OK;
}

static dh_status generate(dh_ctx *ctx, dh_arena *arena, const dh_job *job,
                          const dh_schedule_row *row, const dh_recipe *recipe, int64_t n_micro,
                          dh_schedule **schedule)
{
    dh_stage_costs stages;
    dh_system system;
    dh_schedule_spec spec = spec_of(job, n_micro);
    DH_TRY(dh_system_read(ctx, job->system, &system));
    /* Every rank's optimizer of ours waits for the norm of all gradients. */
    spec.meet = !dh_system_has(&system, DH_TRAIT_OVERLAPPING_STEPS);
    if (row->planned && recipe && recipe->costs) {
        DH_TRY(dh_stage_costs_find(ctx, arena, recipe, spec.n_ranks, &stages));
        spec.costs = &stages.costs;
        if (spec.wgrad_permille == 0) spec.wgrad_permille = stages.wgrad_permille;
    }
    return dh_schedule_generate(ctx, row, &spec, schedule);
}

dh_status dh_job_schedule(dh_ctx *ctx, const dh_job *job, const dh_strategy *strategy,
                          const dh_recipe *recipe, int64_t n_micro, dh_schedule **schedule)
{
    const dh_schedule_row *row;
    *schedule = NULL;
    if (dh_job_schedule_file(job)) return dh_schedule_read_csv(ctx, job->schedule, schedule);
    DH_TRY(dh_schedule_named(ctx, job->schedule, &row));
    /* A strategy of two strands brings the schedule that pairs them, unless the job
     * names one that does. */
    if (strategy->schedule && !row->pairs) DH_TRY(dh_schedule_find(ctx, strategy->schedule, &row));
    DH_TRY(check_planned(ctx, job, row));
    if (job->pp == 1 && !dh_schedule_orders_one_stage(row)) return DH_OK;
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    const dh_status st = generate(ctx, arena, job, row, recipe, n_micro, schedule);
    dh_arena_destroy(arena);
    return st;
}
