/* Settings against each other: derive what was left open, then check that sizes
 * divide. Every message names the setting to change and what would be right. */
#include "dhelix/job.h"

#include "base/base.h"
#include "base/needs.h"
#include "config/groups.h"
#include "config/mesh.h"
#include "config/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))
#define SEQ_LEN_AUTO_MAX 1024 /* GPT-2's and nanoGPT's; longer ones are asked for */

/* ---- ranks and topology --------------------------------------------------------------- */

dh_status dh_job_derive_ranks(dh_ctx *ctx, dh_job *job)
{
    dh_mesh m;
    /* Also bounds the product, whatever dp is. */
    DH_TRY(dh_mesh_init(ctx, job->dp ? job->dp : job->ep, job->tp, job->pp, job->cp, job->ep, 0, 0,
                        &m));
    int64_t others = job->tp * job->pp * job->cp;
    if (!job->dp && job->ranks && job->ranks % others)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld ranks are not a multiple of parallel.tp %lld * pp %lld * cp %lld = "
                       "%lld: use %lld ranks or smaller degrees",
                       LL(job->ranks), LL(job->tp), LL(job->pp), LL(job->cp), LL(others),
                       LL((job->ranks / others + 1) * others));
    if (!job->dp) job->dp = job->ranks ? job->ranks / others : 1;
    if (!job->ranks) job->ranks = job->dp * others;
    if (job->dp * others != job->ranks)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.dp %lld * tp %lld * pp %lld * cp %lld = %lld, but there are %lld "
                       "ranks: leave parallel.dp out (parallel.dp=null), or use %lld ranks",
                       LL(job->dp), LL(job->tp), LL(job->pp), LL(job->cp), LL(job->dp * others),
                       LL(job->ranks), LL(job->dp * others));
    DH_TRY(dh_mesh_from_job(ctx, job, &m));
    job->nodes = m.nodes;
    job->ranks_per_node = m.ranks_per_node;
    return DH_OK;
}

/* ---- batch and sequence ------------------------------------------------------------------ */

static dh_status bad_batch(dh_ctx *ctx, const dh_job *job, int64_t unit, const char *what)
{
    int64_t below = job->global_batch / unit * unit;
    char values[64];
    if (below)
        snprintf(values, sizeof values, "%lld or %lld", LL(below), LL(below + unit));
    else
        snprintf(values, sizeof values, "%lld", LL(unit));
    return dh_fail(ctx, DH_EINVAL, "train.batch %lld is not a multiple of %s = %lld: %s would be",
                   LL(job->global_batch), what, LL(unit), values);
}

static dh_status derive_batch(dh_ctx *ctx, dh_job *job)
{
    char what[96];
    if (job->global_batch % job->dp) return bad_batch(ctx, job, job->dp, "parallel.dp");
    if (!job->micro_batch) job->micro_batch = job->pp > 1 ? 1 : job->global_batch / job->dp;
    snprintf(what, sizeof what, "parallel.dp %lld * train.micro_batch %lld", LL(job->dp),
             LL(job->micro_batch));
    int64_t unit = job->dp * job->micro_batch; /* below 2^24 * 2^30 */
    return job->global_batch % unit ? bad_batch(ctx, job, unit, what) : DH_OK;
}

static dh_status bad_seq(dh_ctx *ctx, const dh_job *job, int64_t unit, const char *what)
{
    int64_t below = job->seq_len / unit * unit;
    return dh_fail(ctx, DH_EINVAL,
                   "train.seq_len %lld is not a multiple of %s = %lld: %lld would be",
                   LL(job->seq_len), what, LL(unit), LL(below ? below : unit));
}

static dh_status derive_seq_len(dh_ctx *ctx, dh_job *job)
{
    if (!job->seq_len) job->seq_len = DH_MIN(job->model.max_seq, SEQ_LEN_AUTO_MAX);
    if (job->seq_len > job->model.max_seq)
        return dh_fail(ctx, DH_EINVAL,
                       "train.seq_len %lld is longer than model.max_seq %lld: shorten it or raise "
                       "model.max_seq",
                       LL(job->seq_len), LL(job->model.max_seq));
    /* Causal work is balanced by giving each rank one early and one late piece. */
    bool split = job->sequence_parallel && job->tp > 1;
    const int64_t chunks = dh_model_cp_chunks(&job->model);
    if (job->cp > 1 && job->seq_len % (chunks * job->cp))
        return bad_seq(ctx, job, chunks * job->cp, chunks > 1 ? "2 * parallel.cp" : "parallel.cp");
    if (split && job->seq_len / job->cp % job->tp)
        return bad_seq(ctx, job, job->cp > 1 ? job->cp * job->tp * 2 : job->tp,
                       job->cp > 1 ? "2 * parallel.cp * tp (sequence parallel)"
                                   : "parallel.tp (sequence parallel)");
    return DH_OK;
}

static dh_status check_linear(dh_ctx *ctx, const dh_job *job)
{
    if (job->cp > 1 && job->model.softmax_every > 0 && job->cp_linear != DH_CP_LINEAR_LASP2)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "parallel.cp_linear is lasp1, which hands states on along consecutive shares of a "
            "sequence; with model.softmax_every %lld ranks have an early and a late chunk: "
            "lasp2 would be right",
            LL(job->model.softmax_every));
    if (job->cp_linear == DH_CP_LINEAR_LASP2 || job->model.attention == DH_ATTENTION_LINEAR)
        return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "parallel.cp_linear is lasp1, but model.attention is softmax, which has no "
                   "states to hand on: leave it out, or give model.attention=linear");
}

static dh_status check_packing(dh_ctx *ctx, const dh_job *job)
{
    const dh_packing packing = job->packing;
    const bool chat = job->format == DH_FORMAT_CHAT;
    if (dh_job_has_rows(job) && job->model.attention == DH_ATTENTION_LINEAR)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "%s with model.attention linear: its sums run over all of a sequence, and "
                       "documents side by side would see each other; %s would be right",
                       packing != DH_PACKING_NONE ? "data.packing" : "data.format chat",
                       packing != DH_PACKING_NONE ? "none" : "text");
    if (chat && job->model.n_experts > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "data.format chat with experts (model.n_experts %lld): the padding after a "
                       "conversation would take their rows and count in the load-balancing loss. "
                       "Give a model without experts, or data.format=text",
                       LL(job->model.n_experts));
    if (packing == DH_PACKING_GROUP && chat)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "data.packing group with data.format chat: conversations are not grouped by "
                       "length; pack or none would be right");
    if (packing == DH_PACKING_GROUP && job->model.lora.rank > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "data.packing group with adapters (lora.rank): weights that are not trained "
                       "do not move between meshes; pack or none would be right");
    if (packing != DH_PACKING_NONE && job->model.n_experts > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "data.packing %s with experts (model.n_experts %lld): the padding of a "
                       "row would take their rows and count in the load-balancing loss; none would "
                       "be right",
                       packing == DH_PACKING_PACK ? "pack" : "group", LL(job->model.n_experts));
    return DH_OK;
}

/* ---- model over ranks ------------------------------------------------------------------------ */

/* Largest divisor of n that is at most limit. */
static int64_t divisor_at_most(int64_t n, int64_t limit)
{
    int64_t d = DH_MIN(n, limit);
    while (n % d) d--;
    return d;
}

/* A rank has key and value heads of its own, or one that a run of ranks has. */
static dh_status check_key_heads(dh_ctx *ctx, const dh_job *job)
{
    const dh_model *m = &job->model;
    const bool repeats = m->n_kv_heads < job->tp;
    if (m->n_kv_heads % job->tp && (!repeats || job->tp % m->n_kv_heads))
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.tp %lld does not divide model.n_kv_heads %lld, nor is it a "
                       "multiple of it: parallel.tp %lld would be right",
                       LL(job->tp), LL(m->n_kv_heads), LL(divisor_at_most(m->n_kv_heads, job->tp)));
    if (repeats && m->qk_norm_all)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.tp %lld with model.n_kv_heads %lld: norms of all keys together, "
                       "which this family has, would count heads that several ranks have several "
                       "times; parallel.tp %lld would be right",
                       LL(job->tp), LL(m->n_kv_heads), LL(divisor_at_most(m->n_kv_heads, job->tp)));
    if (repeats && m->lora.rank > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.tp %lld with model.n_kv_heads %lld: adapters (lora.rank %lld) of "
                       "keys and values that several ranks have are not supported; parallel.tp "
                       "%lld would be right",
                       LL(job->tp), LL(m->n_kv_heads), LL(m->lora.rank),
                       LL(divisor_at_most(m->n_kv_heads, job->tp)));
    return DH_OK;
}

static dh_status check_tensor_parallel(dh_ctx *ctx, const dh_job *job)
{
    const dh_model *m = &job->model;
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {
        {"n_heads", m->n_heads}, {"ffn_width", m->ffn_width}, {"dense_width", m->dense_width}};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++)
        if (sizes[i].size % job->tp)
            return dh_fail(ctx, DH_EINVAL,
                           "parallel.tp %lld does not divide model.%s %lld: parallel.tp %lld would",
                           LL(job->tp), sizes[i].name, LL(sizes[i].size),
                           LL(divisor_at_most(sizes[i].size, job->tp)));
    DH_TRY(check_key_heads(ctx, job));
    int64_t shard = (m->vocab + job->tp - 1) / job->tp;
    if (m->vocab && (job->tp - 1) * shard >= m->vocab)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.tp %lld leaves no vocabulary rows for the last rank: model.vocab "
                       "is %lld, in shards of %lld. Give a smaller parallel.tp",
                       LL(job->tp), LL(m->vocab), LL(shard));
    return DH_OK;
}

/* "4,4,3,3": as even as possible, the longer chunks first. */
static void even_split(int64_t layers, int64_t chunks, char *buf, size_t cap)
{
    size_t len = 0;
    buf[0] = '\0';
    for (int64_t i = 0; i < chunks && len + 24 < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%s%lld", i ? "," : "",
                                LL(layers / chunks + (i < layers % chunks)));
}

/* Folded schedules have two chunks a rank whatever virtual_stages says. */
static bool has_chunks(const dh_job *job, int64_t count)
{
    return count == job->pp * job->vpp || (job->vpp == 1 && count == 2 * job->pp);
}

static dh_status check_layer_split(dh_ctx *ctx, const dh_job *job, int64_t chunks)
{
    int64_t count = 0, sum = 0;
    /* dh_layer_split sees, by the schedule */
    if (dh_job_splits(job) || strpbrk(job->layer_split, "*-")) return DH_OK;
    for (const char *p = job->layer_split; *p; count++) {
        char *end;
        int64_t layers = strtoll(p, &end, 10);
        if (end == p || layers < 0 || layers > job->model.n_layers || (*end && *end != ','))
            return dh_fail(ctx, DH_EINVAL,
                           "parallel.layer_split \"%.80s\": every entry is a number of layers "
                           "between 0 and model.n_layers %lld",
                           job->layer_split, LL(job->model.n_layers));
        sum += layers;
        p = *end ? end + 1 : end;
    }
    if (!has_chunks(job, count))
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.layer_split has %lld entries; parallel.pp %lld * virtual_stages "
                       "%lld needs %lld",
                       LL(count), LL(job->pp), LL(job->vpp), LL(chunks));
    if (sum != job->model.n_layers)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.layer_split adds up to %lld layers; model.n_layers is %lld",
                       LL(sum), LL(job->model.n_layers));
    return DH_OK;
}

static dh_status check_pipeline(dh_ctx *ctx, const dh_job *job)
{
    int64_t chunks = job->pp * job->vpp, layers = job->model.n_layers;
    if (*job->layer_split) return check_layer_split(ctx, job, chunks);
    if (layers % chunks == 0) return DH_OK;
    if (chunks > layers)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.pp %lld * virtual_stages %lld = %lld chunks, but the model has "
                       "only %lld layers: at most that many chunks",
                       LL(job->pp), LL(job->vpp), LL(chunks), LL(layers));
    char split[256];
    even_split(layers, chunks, split, sizeof split);
    return dh_fail(ctx, DH_EINVAL,
                   "model.n_layers %lld does not divide into parallel.pp %lld * virtual_stages "
                   "%lld: give parallel.layer_split, such as %s, or * for as even as can be",
                   LL(layers), LL(job->pp), LL(job->vpp), split);
}

/* A list and its factor come together. */
static dh_status check_slow(dh_ctx *ctx, const char *key, const char *factor_key, bool named,
                            double factor)
{
    if (named && factor == 1)
        return dh_fail(
            ctx, DH_EINVAL,
            "%s is given without %s, which says how many times as long they take: give both", key,
            factor_key);
    if (!named && factor != 1)
        return dh_fail(ctx, DH_EINVAL, "%s is %g, but nothing is slow: give %s", factor_key, factor,
                       key);
    return DH_OK;
}

static dh_status check_slowness(dh_ctx *ctx, const dh_job *job)
{
    DH_TRY(check_slow(ctx, "slow.ranks", "slow.factor", *job->slow_ranks, job->slow_factor));
    return check_slow(ctx, *job->slow_nodes ? "slow.nodes" : "slow.links", "slow.link_factor",
                      *job->slow_links || *job->slow_nodes, job->slow_link_factor);
}

/* Whole experts on tensor-parallel ranks, which send the rows of their own tokens. */
static dh_status check_expert_tp(dh_ctx *ctx, const dh_job *job)
{
    if (job->expert_tp == 0 || job->expert_tp == job->tp || !job->model.n_experts) return DH_OK;
    if (job->expert_tp != 1)
        return dh_fail(
            ctx, DH_EINVAL,
            "parallel.expert_tp %lld is neither 1 nor parallel.tp %lld: an expert lies on "
            "one rank, or in columns on all that share a layer",
            LL(job->expert_tp), LL(job->tp));
    if (!job->sequence_parallel)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.expert_tp=1 needs parallel.sequence=true: without it every "
                       "tensor-parallel rank has all rows, and no share to send");
    if (job->model.n_experts % (job->ep * job->tp))
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.ep %lld * parallel.tp %lld does not divide model.n_experts %lld, "
                       "and parallel.expert_tp=1 gives each of these ranks as many experts: change "
                       "a degree, or leave parallel.expert_tp out",
                       LL(job->ep), LL(job->tp), LL(job->model.n_experts));
    return DH_OK;
}

static dh_status check_experts(dh_ctx *ctx, const dh_job *job)
{
    DH_TRY(check_expert_tp(ctx, job));
    if (job->ep == 1) return DH_OK;
    if (!job->model.n_experts)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.ep is %lld, but the model has no experts: leave it at 1",
                       LL(job->ep));
    if (job->model.n_experts % job->ep)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.ep %lld does not divide model.n_experts %lld: parallel.ep %lld "
                       "would",
                       LL(job->ep), LL(job->model.n_experts),
                       LL(divisor_at_most(job->model.n_experts, job->ep)));
    return DH_OK;
}

static dh_status check_fuse(dh_ctx *ctx, const dh_job *job)
{
    if (dh_fuse_pieces(job->fuse) == 0) return DH_OK;
    if (job->zero != 1 && job->zero != 2)
        return dh_fail(
            ctx, DH_EINVAL,
            "optimizer.fuse steps by shards as they are reduced, which parallel.zero %lld "
            "does not have: 1 or 2 would do, or optimizer.fuse off",
            LL(job->zero));
    if (job->post_validation)
        return dh_fail(
            ctx, DH_EINVAL,
            "optimizer.fuse and optimizer.post_validation are two ways of stepping before "
            "the norm of all gradients is known: one of them");
    if (job->gradient_sync == DH_GRADIENT_SYNC_EVERY)
        return dh_fail(ctx, DH_EINVAL,
                       "optimizer.fuse updates parameters as soon as their gradients are reduced, "
                       "and parallel.gradient_sync=every reduces after each micro-batch: give "
                       "parallel.gradient_sync=last, or optimizer.fuse=off");
    return DH_OK;
}

static dh_status check_router_bias(dh_ctx *ctx, const dh_job *job)
{
    if (job->router_bias_rate == 0 || job->model.n_groups > 0) return DH_OK;
    return dh_fail(
        ctx, DH_EINVAL,
        "optimizer.router_bias_rate moves biases of routers, which only models of the deepseek_v3 "
        "family have: leave it at 0; model.router_aux_coef balances the experts of other families");
}

static dh_status check_schedule(dh_ctx *ctx, const dh_job *job)
{
    DH_TRY(check_fuse(ctx, job));
    if (job->post_validation && job->pp == 1)
        return dh_fail(ctx, DH_EINVAL,
                       "optimizer.post_validation is for pipelines, whose stages complete their "
                       "gradients at different times: with parallel.pp 1 leave it out");
    if (job->spike_action == DH_SPIKE_BACK && job->checkpoint_every == 0)
        return dh_fail(ctx, DH_EINVAL,
                       "spike.action=back has no checkpoints to go back to: give checkpoint.every");
    if (job->elastic_min_ranks > job->ranks && job->elastic_action == DH_ELASTIC_CONTINUE)
        return dh_fail(
            ctx, DH_EINVAL,
            "elastic.min_ranks %lld: the run begins with %lld ranks, and has no more later",
            LL(job->elastic_min_ranks), LL(job->ranks));
    if (job->min_lr > job->lr)
        return dh_fail(ctx, DH_EINVAL,
                       "optimizer.min_lr %g is above optimizer.lr %g: give at most optimizer.lr",
                       job->min_lr, job->lr);
    if (job->decay_steps && job->decay_steps < job->warmup_steps)
        return dh_fail(ctx, DH_EINVAL,
                       "optimizer.decay_steps %lld ends before optimizer.warmup_steps %lld: both "
                       "count from the first step, so give at least %lld",
                       LL(job->decay_steps), LL(job->warmup_steps), LL(job->warmup_steps));
    return DH_OK;
}

/* ---- times instead of a model --------------------------------------------------------------- */

bool dh_job_has_stage_times(const dh_job *job)
{
    for (int i = 0; i < DH_N_STAGE_WORK; i++)
        if (job->stage_ms[i] && *job->stage_ms[i]) return true;
    return false;
}

/* Settings that would cut a model, although there is none, are refused. */
static dh_status check_stage_times(dh_ctx *ctx, dh_job *job)
{
    static const char *const keys[] = {"forward_ms", "input_ms", "weight_ms"};
    for (int i = 0; i < DH_N_STAGE_WORK; i++)
        if (!*job->stage_ms[i])
            return dh_fail(ctx, DH_EINVAL,
                           "stages.%s is missing: forward_ms, input_ms and weight_ms are given "
                           "together",
                           keys[i]);
    if (job->tp > 1 || job->cp > 1 || job->ep > 1 || *job->layer_split)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.tp, cp, ep and layer_split divide a model, and stages.forward_ms "
                       "takes the place of a model: leave them out");
    return derive_batch(ctx, job);
}

static dh_status check_lora(dh_ctx *ctx, const dh_job *job)
{
    if (job->model.lora.rank == 0 && job->lora_init_from && *job->lora_init_from)
        return dh_fail(
            ctx, DH_EINVAL,
            "lora.init_from is given, but lora.rank is 0: give the rank of its adapters");
    return DH_OK;
}

/* Products are rounded from bf16, and adapters' are narrower than 8 bits gain by. */
static dh_status check_fp8(dh_ctx *ctx, const dh_job *job)
{
    if (job->fp8 == DH_FP8_OFF) return DH_OK;
    if (job->dtype != DH_BF16)
        return dh_fail(ctx, DH_EINVAL,
                       "train.fp8 rounds operands of bf16, and train.dtype is %s: give "
                       "train.dtype=bf16, or train.fp8=off",
                       dh_dtype_name(job->dtype));
    if (job->model.lora.rank == 0) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "train.fp8 with adapters (lora.rank %lld), whose narrow matrix multiplications "
                   "have no kernels of 8 bits: train.fp8=off would be right",
                   LL(job->model.lora.rank));
}

/* Whole gradients that stay anyway would be sent more often for nothing. */
static dh_status check_gradient_sync(dh_ctx *ctx, const dh_job *job)
{
    if (job->gradient_sync != DH_GRADIENT_SYNC_EVERY || job->zero >= 2) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "parallel.gradient_sync=every keeps shards of gradients alone, and with "
                   "parallel.zero=%lld every rank keeps whole ones: take zero 2 or 3, or "
                   "gradient_sync last",
                   (long long)job->zero);
}

static dh_status check_regather(dh_ctx *ctx, const dh_job *job)
{
    if (job->regather == DH_REGATHER_MICRO || job->zero >= 3) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "parallel.regather=stage is about parameters that are gathered as they are "
                   "used, and with parallel.zero=%lld every rank keeps them: take zero 3, or "
                   "leave it out",
                   (long long)job->zero);
}

/* ---- entry ---------------------------------------------------------------------------------- */

/* A setting that is derived where it is 0, and the value that was derived for it. */
typedef struct derivable {
    int64_t *value, *derived;
} derivable;

enum { N_DERIVABLE = 6 };

static void list_derivable(dh_job *job, derivable list[N_DERIVABLE])
{
    dh_job_derived *d = &job->derived;
    const derivable all[N_DERIVABLE] = {
        {&job->ranks, &d->ranks},
        {&job->dp, &d->dp},
        {&job->nodes, &d->nodes},
        {&job->ranks_per_node, &d->ranks_per_node},
        {&job->micro_batch, &d->micro_batch},
        {&job->seq_len, &d->seq_len},
    };
    memcpy(list, all, sizeof all);
}

void dh_job_is_given(dh_job *job, const void *field)
{
    derivable list[N_DERIVABLE];
    list_derivable(job, list);
    for (size_t i = 0; i < N_DERIVABLE; i++)
        if (list[i].value == field) *list[i].derived = 0;
    job->derived.stale = true;
}

static dh_status check_all(dh_ctx *ctx, dh_job *job)
{
    DH_TRY(dh_job_derive_ranks(ctx, job));
    if (dh_job_has_stage_times(job)) return check_stage_times(ctx, job);
    DH_TRY(check_tensor_parallel(ctx, job));
    DH_TRY(check_pipeline(ctx, job));
    DH_TRY(check_experts(ctx, job));
    DH_TRY(check_slowness(ctx, job));
    DH_TRY(check_lora(ctx, job));
    DH_TRY(check_router_bias(ctx, job));
    DH_TRY(check_fp8(ctx, job));
    DH_TRY(check_gradient_sync(ctx, job));
    DH_TRY(check_regather(ctx, job));
    DH_TRY(derive_batch(ctx, job));
    DH_TRY(derive_seq_len(ctx, job));
    DH_TRY(check_packing(ctx, job));
    DH_TRY(check_linear(ctx, job));
    DH_TRY(check_schedule(ctx, job));
    return dh_job_check_groups(ctx, job);
}

bool dh_job_splits(const dh_job *job)
{
    return strcmp(job->layer_split, "auto") == 0;
}

dh_status dh_job_check(dh_ctx *ctx, dh_job *job)
{
    DH_NEEDS(ctx, job);
    derivable list[N_DERIVABLE];
    bool open[N_DERIVABLE];
    list_derivable(job, list);
    for (size_t i = 0; i < N_DERIVABLE; i++) {
        if (*list[i].value != *list[i].derived) *list[i].derived = 0; /* changed since */
        if (job->derived.stale && *list[i].derived > 0) *list[i].value = 0;
        open[i] = *list[i].value == 0;
    }
    const dh_status st = check_all(ctx, job);
    for (size_t i = 0; i < N_DERIVABLE; i++)
        if (open[i]) *list[i].derived = *list[i].value;
    job->derived.stale = st != DH_OK && job->derived.stale;
    return st;
}

bool dh_job_has_rows(const dh_job *job)
{
    return job->packing != DH_PACKING_NONE || job->format == DH_FORMAT_CHAT;
}

int64_t dh_job_n_micro(const dh_job *job)
{
    return job->global_batch / (job->dp * job->micro_batch);
}
