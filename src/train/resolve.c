/* A job, resolved once: what it leaves open is filled in, and said. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "config/groups.h"
#include "program/rewrites.h"
#include "strategy/written.h"
#include "train/recipe.h"

enum { TEXT_BYTES = 512 };

/* ---- what was derived ----------------------------------------------------------------------- */

static dh_status add_note(dh_ctx *ctx, dh_resolved *r, const char *name, const char *value,
                          const char *why)
{
    const dh_derived line = {name, dh_arena_strdup(r->arena, value),
                             dh_arena_strdup(r->arena, why)};
    const bool ok = line.value && line.why && r->n_derived < DH_MAX_DERIVED;
    if (ok) r->derived[r->n_derived++] = line;
    return ok ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_resolved_note(dh_ctx *ctx, dh_resolved *r, const char *name, const char *value,
                           const char *why, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, why);
    dh_vsnprintf(text, sizeof text, why, args);
    va_end(args);
    return add_note(ctx, r, name, value, text);
}

static dh_status note_number(dh_ctx *ctx, dh_resolved *r, const char *name, int64_t value,
                             const char *why)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return add_note(ctx, r, name, text, why);
}

/* ---- without a strategy --------------------------------------------------------------------- */

/* plans: to be shared; NULL: a new memo */
static dh_resolved *create(dh_ctx *ctx, const dh_job *job, const dh_cluster *cluster,
                           double room_bytes, dh_pair_memo *plans)
{
    dh_resolved *r = calloc(1, sizeof *r);
    if (r) r->plans = plans ? dh_pair_memo_share(plans) : dh_pair_memo_create();
    if (r && r->plans && (r->arena = dh_arena_create())) {
        r->job = *job;
        r->cluster = cluster;
        r->room_bytes = room_bytes <= 0 && cluster ? dh_cluster_usable_bytes(cluster) : room_bytes;
        return r;
    }
    if (r) dh_pair_memo_destroy(r->plans);
    free(r);
    dh_no_memory(ctx);
    return NULL;
}

void dh_resolved_destroy(dh_resolved *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n_groups; i++) dh_resolved_destroy(r->groups[i]);
    dh_schedule_destroy(r->schedule);
    dh_profile_destroy(r->profile);
    dh_order_cache_destroy(r->recipe.ordering.cache);
    dh_pair_memo_destroy(r->plans);
    dh_arena_destroy(r->arena);
    dh_arena_destroy(r->strategies);
    free(r);
}

static dh_status find_vocab(dh_ctx *ctx, dh_resolved *r, const dh_tokenizer *tokenizer)
{
    char why[TEXT_BYTES];
    if (r->job.model.vocab > 0) return DH_OK;
    DH_TRY(dh_job_vocab(ctx, &r->job, tokenizer, &r->job.model.vocab));
    snprintf(why, sizeof why, "tokens of data.tokenizer=%s, since model.vocab=auto",
             r->job.tokenizer);
    return note_number(ctx, r, "vocabulary", r->job.model.vocab, why);
}

static dh_status find_sizes(dh_ctx *ctx, dh_resolved *r)
{
    const dh_job *job = &r->job;
    char why[TEXT_BYTES];
    DH_TRY(dh_recipe_of_job(ctx, job, &r->recipe));
    DH_TRY(dh_model_validate(ctx, &r->recipe.model));
    if (r->cluster) DH_TRY(dh_recipe_place(ctx, r->cluster, &r->recipe));
    snprintf(why, sizeof why,
             "train.batch %" PRId64 " / (parallel.dp %" PRId64 " * train.micro_batch %" PRId64 ")",
             job->global_batch, job->dp, job->micro_batch);
    DH_TRY(note_number(ctx, r, "micro-batches", r->recipe.n_micro, why));
    snprintf(why, sizeof why, "%" PRId64 " ranks, %" PRId64 " a node%s%s", r->recipe.mesh.ranks,
             r->recipe.mesh.ranks_per_node, r->cluster ? " of cluster " : "",
             r->cluster ? r->cluster->name : "");
    return note_number(ctx, r, "nodes", r->recipe.mesh.nodes, why);
}

/* ---- with one -------------------------------------------------------------------------------- */

static dh_status find_ordering(dh_ctx *ctx, dh_resolved *r, const dh_strategy *strategy)
{
    const dh_job *job = &r->job;
    dh_ordering *o = &r->recipe.ordering;
    if (dh_job_order_file(job))
        DH_TRY(dh_written_order_read(ctx, r->arena, job->overlap_policy, &o->options.written));
    DH_TRY(dh_recipe_use(ctx, job, strategy, &r->recipe));
    o->options.plans = r->plans;
    o->cache = dh_order_cache_create();
    if (!o->cache) return dh_no_memory(ctx);
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): dh_recipe_use has set the policy
    DH_TRY(dh_resolved_note(ctx, r, "order policy", o->policy->name, "%s",
                            strcmp(job->overlap_policy, "auto") == 0 ? "the strategy's"
                            : o->options.written                     ? job->overlap_policy
                                                                     : "overlap.policy"));
    return dh_resolved_note(
        ctx, r, "between pairs", o->options.barriers ? "barriers" : "events", "%s",
        job->overlap_barriers == DH_BARRIERS_AUTO ? "the strategy's" : "overlap.barriers");
}

static dh_status find_schedule(dh_ctx *ctx, dh_resolved *r)
{
    const dh_strategy *strategy = r->recipe.strategy;
    DH_TRY(dh_job_schedule(ctx, &r->job, strategy, &r->recipe, r->recipe.n_micro, &r->schedule));
    r->recipe.schedule = r->schedule;
    if (!r->schedule)
        return dh_resolved_note(ctx, r, "schedule", "1f1b", "one stage has one order");
    if (strategy->schedule && strcmp(r->schedule->name, strategy->schedule) == 0 &&
        strcmp(r->job.schedule, strategy->schedule) != 0)
        return dh_resolved_note(ctx, r, "schedule", r->schedule->name,
                                "the strategy's: parallel.schedule=%s makes no pairs",
                                r->job.schedule);
    return dh_resolved_note(ctx, r, "schedule", r->schedule->name, "parallel.schedule");
}

/* A profile is one for the operators that the strategy has. */
static dh_status find_costs(dh_ctx *ctx, dh_resolved *r)
{
    const dh_costs **costs = &r->recipe.costs;
    if (r->cluster)
        DH_TRY(dh_job_cluster_costs(ctx, r->arena, &r->job, r->cluster, costs));
    else
        DH_TRY(dh_job_costs(ctx, r->arena, &r->job, costs, &r->profile));
    return dh_resolved_note(ctx, r, "costs", (*costs)->name, "%s%s",
                            r->cluster ? "of the cluster's devices and links" : "profile=",
                            r->cluster ? "" : r->job.profile);
}

static dh_status note_rewrites(dh_ctx *ctx, dh_resolved *r, const dh_rewrites *found)
{
    const dh_rewrites_tried *best = &found->at[found->best];
    dh_str name = DH_STR_INIT;
    dh_rewrites_print(&best->passes, &name);
    const dh_status st = dh_resolved_note(
        ctx, r, "rewrites", name.text ? name.text : "",
        "of %zu sequences the shortest layer%s, %.1f us forward and backward; %.1f us without",
        found->n, r->cluster ? " that fits" : "", best->layer_ns * 1e-3,
        found->at[0].layer_ns * 1e-3);
    dh_str_fini(&name);
    return st;
}

static dh_status note_passes(dh_ctx *ctx, dh_resolved *r, const char *why)
{
    dh_str passes = DH_STR_INIT;
    dh_pass_list_print(&r->recipe.strategy->passes, &passes);
    const dh_status st = add_note(ctx, r, "passes", passes.text ? passes.text : "", why);
    dh_str_fini(&passes);
    return st;
}

static dh_status note_dispatch(dh_ctx *ctx, dh_resolved *r, const char *why)
{
    const bool node = r->recipe.moe_dispatch == DH_DISPATCH_NODE;
    const bool shared = r->recipe.expert_rows == DH_TP_ROWS_SHARED;
    return add_note(ctx, r, "dispatch",
                    node ? (shared ? "node, shared rows" : "node")
                         : (shared ? "flat, shared rows" : "flat"),
                    why);
}

static dh_status layer_graph(dh_ctx *ctx, const dh_recipe *recipe, int64_t layer, dh_graph **graph)
{
    const dh_mesh *m = &recipe->mesh;
    const dh_graph_rank first = {
        .shard = {.tp = m->tp, .ep = m->ep, .whole_experts = m->whole_experts}};
    dh_graph_spec spec = dh_recipe_graphs(recipe);
    spec.build.layer = layer;
    return dh_graph_make(ctx, &spec, DH_BLOCK_LAYER, first, NULL, graph);
}

/* An order from a file, against the layers that it is of. */
static dh_status check_order(dh_ctx *ctx, dh_resolved *r)
{
    const dh_written_order *order = r->recipe.ordering.options.written;
    const dh_model *model = &r->recipe.model;
    dh_graph *graphs[2] = {NULL, NULL};
    dh_slot *slot;
    dh_status st = DH_OK;
    if (!order) return DH_OK;
    for (int s = 0; st == DH_OK && s < 2; s++) {
        const int64_t layer = order->layer[s] < 0 ? dh_usual_layer(model) : order->layer[s];
        if (layer >= model->n_layers)
            st = dh_fail(ctx, DH_EINVAL, "%s: there is no layer %lld: they are 0 to %lld",
                         order->path, (long long)layer, (long long)model->n_layers - 1);
        else
            st = layer_graph(ctx, &r->recipe, layer, &graphs[s]);
    }
    if (st == DH_OK)
        st = dh_slot_of_graphs(ctx, r->arena, r->recipe.costs, &r->recipe.mesh, 0, graphs[0],
                               graphs[1], &slot);
    if (st == DH_OK) st = dh_written_order_check(ctx, order, slot);
    dh_graph_destroy(graphs[0]);
    dh_graph_destroy(graphs[1]);
    return st;
}

/* Let costs make the choices that the strategy leaves open. */
static dh_status decide(dh_ctx *ctx, dh_resolved *r)
{
    dh_decided d;
    r->recipe.moe_dispatch = r->job.moe_dispatch;
    r->recipe.expert_rows = r->job.expert_rows;
    DH_TRY(dh_recipe_decide(ctx, r->arena, &r->recipe, r->cluster ? r->room_bytes : 0, &d));
    r->rewrites = d.rewrites;
    if (d.rewrites) DH_TRY(note_rewrites(ctx, r, d.rewrites));
    if (d.passes_why) DH_TRY(note_passes(ctx, r, d.passes_why));
    return d.dispatch_why ? note_dispatch(ctx, r, d.dispatch_why) : DH_OK;
}

static dh_status use(dh_ctx *ctx, dh_resolved *r, const dh_strategy *strategy)
{
    r->job.strategy = dh_arena_strdup(r->arena, strategy->name);
    if (!r->job.strategy) return dh_no_memory(ctx);
    DH_TRY(find_ordering(ctx, r, strategy));
    DH_TRY(find_costs(ctx, r));
    DH_TRY(decide(ctx, r));
    DH_TRY(check_order(ctx, r));
    DH_TRY(find_schedule(ctx, r));
    DH_TRY(dh_resolved_hold(ctx, r));
    DH_TRY(dh_resolved_order_memory(ctx, r));
    DH_TRY(dh_resolved_split(ctx, r));
    return strategy->searches ? dh_resolved_fuse(ctx, r) : DH_OK;
}

/* Copy the lines that hold for every strategy; a strategy's own lines come with it. */
static dh_status copy_notes(dh_ctx *ctx, dh_resolved *r, const dh_resolved *from)
{
    for (size_t i = 0; i < from->n_common; i++)
        DH_TRY(
            add_note(ctx, r, from->derived[i].name, from->derived[i].value, from->derived[i].why));
    r->n_common = from->n_common;
    return DH_OK;
}

dh_status dh_resolved_vary(dh_ctx *ctx, const dh_resolved *from, const dh_strategy *strategy,
                           dh_resolved **varied)
{
    dh_resolved *r = create(ctx, &from->job, from->cluster, from->room_bytes, from->plans);
    if (!r) return ctx->status;
    r->recipe = from->recipe;
    r->recipe.ordering = (dh_ordering){.cache = NULL};
    dh_status st = copy_notes(ctx, r, from);
    if (st == DH_OK) st = use(ctx, r, strategy);
    if (st == DH_OK)
        *varied = r;
    else
        dh_resolved_destroy(r);
    return st;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status resolve_strategy(dh_ctx *ctx, const dh_resolved *open, bool quiet,
                                  dh_resolved **resolved)
{
    const dh_strategy *strategy;
    if (strcmp(open->job.strategy, "auto") == 0)
        return dh_resolved_choose(ctx, open, quiet, resolved);
    DH_TRY(dh_strategy_read(ctx, open->job.arena, open->job.strategy, &strategy));
    return dh_resolved_vary(ctx, open, strategy, resolved);
}

static dh_status check_model(dh_ctx *ctx, const dh_job *job)
{
    if (!dh_job_has_stage_times(job)) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "stages.forward_ms gives times instead of a model: only `dhelix simulate` takes "
                   "that; give model for anything else");
}

/* The jobs of its groups, once all else is known. */
static dh_status resolve_groups(dh_ctx *ctx, const dh_resolve_options *options, dh_resolved *r)
{
    const size_t n = r->job.packing == DH_PACKING_GROUP ? dh_job_n_groups(&r->job) : 0;
    if (n == 0) return DH_OK;
    r->groups = DH_NEW_N(r->arena, dh_resolved *, n);
    r->group_recipes = DH_NEW_N(r->arena, dh_recipe, n);
    if (!r->groups || !r->group_recipes) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++, r->n_groups++) {
        dh_job of;
        DH_TRY(dh_job_group(ctx, &r->job, i, &of));
        dh_resolved *made = NULL;
        if (dh_job_resolve(ctx, &of, options, &made) != DH_OK || !made)
            return dh_ctx_while(ctx, "resolving the group of documents up to %" PRId64, of.seq_len);
        r->groups[i] = made;
        r->group_recipes[i] = made->recipe;
    }
    return DH_OK;
}

dh_status dh_job_resolve(dh_ctx *ctx, const dh_job *job, const dh_resolve_options *options,
                         dh_resolved **resolved)
{
    DH_TRY(check_model(ctx, job));
    dh_resolved *open = create(ctx, job, options->cluster, options->room_bytes, NULL),
                *whole = NULL;
    if (!open) return ctx->status;
    dh_status st = find_vocab(ctx, open, options->tokenizer);
    if (st == DH_OK) st = find_sizes(ctx, open);
    open->n_common = open->n_derived;
    if (st == DH_OK && options->open) {
        *resolved = open;
        return DH_OK;
    }
    if (st == DH_OK) st = resolve_strategy(ctx, open, options->quiet, &whole);
    dh_resolved_destroy(open);
    if (st == DH_OK && whole) st = resolve_groups(ctx, options, whole);
    if (st == DH_OK)
        *resolved = whole;
    else
        dh_resolved_destroy(whole);
    return st;
}
