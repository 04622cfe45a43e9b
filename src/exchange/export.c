/* Export: a job's model, mesh, schedule, recomputation and overlap as flags of Megatron-LM or keys of
 * torchtitan and NeMo. Settings without one are named. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "config/settings.h"
#include "config/sharing.h"
#include "exchange/export.h"

typedef struct exporter {
    dh_ctx *ctx;
    dh_exported *out;
    const dh_job *job;
    dh_project project;
    bool failed;
} exporter;

/* ---- saying ------------------------------------------------------------------------------------- */

static void line(exporter *e, const char *text)
{
    const char *copy = dh_arena_strdup(e->out->arena, text);
    if (!copy || !dh_vec_push(&e->out->lines, copy)) e->failed = true;
}

/* The flag is one of the table's. value: NULL: none */
static void flag(exporter *e, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void flag(exporter *e, const char *name, const char *fmt, ...)
{
    char value[1024], text[1152];
    va_list list;
    DH_CHECK(dh_flag_find(e->project, name), "no flag %s", name);
    va_start(list, fmt);
    dh_vsnprintf(value, sizeof value, fmt, list);
    va_end(list);
    if (e->project == DH_PROJECT_MEGATRON)
        dh_snprintf(text, sizeof text, "%s%s%s", name, *value ? " " : "", value);
    else
        dh_snprintf(text, sizeof text, "%s = %s", name, value);
    line(e, text);
}

static void whole(exporter *e, const char *name, int64_t value)
{
    flag(e, name, "%lld", (long long)value);
}

static void real(exporter *e, const char *name, double value)
{
    flag(e, name, "%.10g", value);
}

static void missing(exporter *e, const char *key, const char *note)
{
    dh_str value = DH_STR_INIT;
    const dh_setting *s = dh_setting_find(key);
    DH_CHECK(s, "no setting %s", key);
    dh_setting_text(e->job, s, &value);
    const dh_given g = {.name = key,
                        .value = dh_arena_strdup(e->out->arena, value.text ? value.text : ""),
                        .note = note,
                        .fate = DH_FATE_LOST};
    if (value.failed || !g.value || !dh_vec_push(&e->out->missing, g)) e->failed = true;
    dh_str_fini(&value);
}

/* Whether the job has another value than the default. */
static bool differs(const exporter *e, const char *key)
{
    const dh_setting *s = dh_setting_find(key);
    dh_str value = DH_STR_INIT;
    if (!s || !s->fallback) return false;
    dh_setting_text(e->job, s, &value);
    const bool differs = strcmp(value.text ? value.text : "", s->fallback) != 0;
    dh_str_fini(&value);
    return differs;
}

/* Settings of step time that neither project has. */
static void missing_of_both(exporter *e)
{
    static const struct {
        const char *key, *note;
    } list[] = {{"overlap.policy", "an order of co-executed operators"},
                {"overlap.barriers", "an order of co-executed operators"},
                {"parallel.max_activations", "of schedule zb-auto"},
                {"parallel.regather", "parameters are gathered for each micro-batch"},
                {"optimizer.post_validation", "the optimizer waits for the norm of all gradients"},
                {"optimizer.fuse", "the optimizer follows the reduction of all gradients"},
                {"parallel.gpu_comm_sms", "processors of communication are NCCL's"},
                {"switch.groups", "all sequences have one mesh"},
                {"lora.rank", "all weights are trained"}};
    for (size_t i = 0; i < DH_COUNTOF(list); i++)
        if (differs(e, list[i].key)) missing(e, list[i].key, list[i].note);
}

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static bool has_trait(const dh_job *job, const char *trait)
{
    const size_t n = strlen(trait);
    for (const char *p = strstr(job->system, trait); p; p = strstr(p + 1, trait))
        if (p > job->system && p[-1] == '+' && (!p[n] || p[n] == '+')) return true;
    return false;
}

/* ---- Megatron-LM ------------------------------------------------------------------------------------ */

static void megatron_experts(exporter *e)
{
    const dh_model *m = &e->job->model;
    if (!m->n_experts) return;
    whole(e, "--num-experts", m->n_experts);
    whole(e, "--moe-router-topk", m->top_k);
    whole(e, "--moe-ffn-hidden-size", m->ffn_width);
    flag(e, "--moe-token-dispatcher-type", "alltoall");
    flag(e, "--moe-grouped-gemm", "%s", "");
    if (m->router_aux_coef > 0) real(e, "--moe-aux-loss-coeff", m->router_aux_coef);
    if (m->dense_first > 0)
        flag(e, "--moe-layer-freq", "([0]*%lld+[1]*%lld)", (long long)m->dense_first,
             (long long)(m->n_layers - m->dense_first));
    if (e->job->moe_mode == DH_MOE_CAPACITY)
        real(e, "--moe-expert-capacity-factor", e->job->moe_capacity);
}

static bool is_known_family(dh_family family)
{
    return family == DH_FAMILY_GPT2 || family == DH_FAMILY_LLAMA || family == DH_FAMILY_MISTRAL ||
           family == DH_FAMILY_MIXTRAL || family == DH_FAMILY_QWEN2 || family == DH_FAMILY_QWEN3 ||
           family == DH_FAMILY_QWEN3_MOE;
}

static void megatron_model(exporter *e)
{
    const dh_model *m = &e->job->model;
    const bool gpt2 = m->family == DH_FAMILY_GPT2;
    if (!is_known_family(m->family)) {
        missing(e, "model.family", "its layers are flags of their own: give the model by hand");
        return;
    }
    whole(e, "--num-layers", m->n_layers);
    whole(e, "--hidden-size", m->width);
    whole(e, "--num-attention-heads", m->n_heads);
    if (m->n_kv_heads != m->n_heads) {
        flag(e, "--group-query-attention", "%s", "");
        whole(e, "--num-query-groups", m->n_kv_heads);
    }
    if (m->head_dim * m->n_heads != m->width) whole(e, "--kv-channels", m->head_dim);
    whole(e, "--ffn-hidden-size", m->n_experts && m->dense_width ? m->dense_width : m->ffn_width);
    whole(e, "--max-position-embeddings", m->max_seq);
    whole(e, "--padded-vocab-size", m->vocab);
    if (!gpt2) {
        flag(e, "--swiglu", "%s", "");
        flag(e, "--normalization", "RMSNorm");
        flag(e, "--position-embedding-type", "rope");
        whole(e, "--rotary-base", (int64_t)m->rope.theta);
    }
    if (!gpt2 || !m->bias) flag(e, "--disable-bias-linear", "%s", "");
    if (!m->tied_head) flag(e, "--untie-embeddings-and-output-weights", "%s", "");
    if (m->family == DH_FAMILY_QWEN2) flag(e, "--add-qkv-bias", "%s", "");
    if (m->family == DH_FAMILY_QWEN3 || m->family == DH_FAMILY_QWEN3_MOE)
        flag(e, "--qk-layernorm", "%s", "");
    real(e, "--init-method-std", m->init_std);
    real(e, "--norm-epsilon", m->norm_eps);
    real(e, "--hidden-dropout", e->job->dropout);
    real(e, "--attention-dropout", 0);
    megatron_experts(e);
}

/* Numbers of "15,16,-1,*"; false: it has others than numbers. */
static bool split_numbers(const char *text, int64_t *at, size_t cap, size_t *n)
{
    char one[32];
    for (*n = 0; *text; text += strcspn(text, ","), text += *text == ',') {
        snprintf(one, sizeof one, "%.*s", (int)DH_MIN(strcspn(text, ","), sizeof one - 1), text);
        if (*n == cap || !dh_parse_i64(one, &at[*n]) || at[*n] < 0) return false;
        ++*n;
    }
    return *n > 0;
}

static void megatron_layout(exporter *e, const int64_t *layers, size_t n)
{
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < n; i++) {
        dh_str_printf(&text, "%s%s", i ? "|" : "", i ? "" : "E");
        if (layers[i] == 1)
            dh_str_printf(&text, "t");
        else if (layers[i] > 1)
            dh_str_printf(&text, "t*%lld", (long long)layers[i]);
    }
    dh_str_printf(&text, "L");
    if (text.failed)
        e->failed = true;
    else
        flag(e, "--pipeline-model-parallel-layout", "\"%s\"", text.text);
    dh_str_fini(&text);
}

static void megatron_split(exporter *e)
{
    enum { MOST = 1024 };
    const char *split = e->job->layer_split;
    int64_t layers[MOST];
    size_t n;
    if (!*split || is(split, "*") || e->job->pp == 1) return;
    const bool first = strncmp(split, "-1,", 3) == 0;
    if (is(split, "-1,*,-1") || is(split, "-1,*") || is(split, "*,-1")) {
        if (first) flag(e, "--account-for-embedding-in-pipeline-split", "%s", "");
        if (!is(split, "-1,*")) flag(e, "--account-for-loss-in-pipeline-split", "%s", "");
    } else if (split_numbers(split, layers, MOST, &n)) {
        megatron_layout(e, layers, n);
    } else {
        char a[32] = "", b[32] = "";
        const char *star = strchr(split, '*');
        if (star > split) snprintf(a, sizeof a, "%.*s", (int)(strcspn(split, ",")), split);
        if (star && star[1] == ',') snprintf(b, sizeof b, "%s", star + 2);
        int64_t x = 0, y = 0;
        if (star && (!*a || (dh_parse_i64(a, &x) && x > 0)) &&
            (!*b || (dh_parse_i64(b, &y) && y > 0)) && e->job->vpp == 1) {
            if (*a) whole(e, "--decoder-first-pipeline-num-layers", x);
            if (*b) whole(e, "--decoder-last-pipeline-num-layers", y);
        } else {
            missing(e, "parallel.layer_split",
                    "a split that only dhelix writes so: say the numbers");
        }
    }
}

static void megatron_schedule(exporter *e)
{
    const dh_job *job = e->job;
    const char *const alone = "Megatron-LM combines micro-batches of models with experts alone";
    const bool combined = is(job->schedule, "combined-1f1b");
    const bool pairs = is(job->strategy, "combined-1f1b");
    if ((combined || pairs) && job->model.n_experts) {
        flag(e, "--overlap-moe-expert-parallel-comm", "%s", "");
        flag(e, "--delay-wgrad-compute", "%s", "");
    } else {
        if (combined) missing(e, "parallel.schedule", alone);
        if (pairs) missing(e, "strategy", alone);
    }
    if ((combined || pairs) && job->model.n_experts && job->pp > 1 && job->vpp == 1)
        missing(e, "parallel.virtual_stages", "Megatron-LM combines stages where it is above 1");
    if (job->pp > 1 && job->vpp > 1 && !*job->layer_split)
        whole(e, "--num-virtual-stages-per-pipeline-rank", job->vpp);
    if (job->pp > 1 && !combined && !is(job->schedule, "1f1b") &&
        !is(job->schedule, "interleaved-1f1b"))
        missing(e, "parallel.schedule",
                "Megatron-LM has 1F1B, with virtual stages or not, and combined 1F1B");
    megatron_split(e);
    if (is(job->strategy, "intra-batch") || is(job->strategy, "intra-batch-bidirectional") ||
        is(job->strategy, "flux"))
        flag(e, "--tp-comm-overlap", "%s", "");
    else if (!is(job->strategy, "sequential") && !pairs)
        missing(e, "strategy", "Megatron-LM has none like it");
    if (is(job->strategy, "flux") || is(job->strategy, "intra-batch-bidirectional"))
        missing(e, "strategy", "user buffers (--tp-comm-overlap) are the nearest");
    if (has_trait(job, "waiting-transfers") && job->pp > 1 && job->vpp > 1)
        flag(e, "--no-overlap-p2p-communication", "%s", "");
}

static void megatron_mesh(exporter *e)
{
    const dh_job *job = e->job;
    const bool spread = job->model.n_experts && job->expert_tp == 1 && job->tp > 1;
    const dh_sharing s = dh_sharing_of_job(job);
    whole(e, "--tensor-model-parallel-size", job->tp);
    whole(e, "--pipeline-model-parallel-size", job->pp);
    whole(e, "--context-parallel-size", job->cp);
    if (job->model.n_experts)
        whole(e, "--expert-model-parallel-size", job->ep * (spread ? job->tp : 1));
    if (spread) whole(e, "--expert-tensor-parallel-size", 1);
    if (s.sequence == DH_SEQUENCE_SPLIT && job->tp > 1) flag(e, "--sequence-parallel", "%s", "");
    if (s.moments && !s.gradients) flag(e, "--use-distributed-optimizer", "%s", "");
    if (s.gradients) {
        flag(e, "--use-megatron-fsdp", "%s", "");
        flag(e, "--data-parallel-sharding-strategy", "%s",
             s.parameters ? "optim_grads_params" : "optim_grads");
    }
    if (s.parameters && s.reshard != DH_GATHERED_NOTHING)
        missing(e, "parallel.reshard_after_forward", "Megatron-FSDP gathers again in the backward");
    if (!has_trait(job, "reduced-last")) flag(e, "--overlap-grad-reduce", "%s", "");
    if (s.gather == DH_GATHER_FORWARD || s.parameters) flag(e, "--overlap-param-gather", "%s", "");
    if (differs(e, "parallel.bucket_mb"))
        flag(e, "--ddp-bucket-size", "%.0f",
             job->bucket_mb / (has_trait(job, "half-gradients") ? 2e-6 : 4e-6));
    if (s.parameters && differs(e, "parallel.prefetch"))
        missing(e, "parallel.prefetch", "blocks ahead are Megatron-FSDP's choice");
}

static void megatron_rest(exporter *e)
{
    const dh_job *job = e->job;
    whole(e, "--micro-batch-size", job->micro_batch);
    whole(e, "--global-batch-size", job->global_batch);
    whole(e, "--seq-length", job->seq_len);
    if (job->dtype == DH_BF16) flag(e, "--bf16", "%s", "");
    if (job->fp8)
        flag(e, "--fp8-format", "%s", differs(e, "train.fp8") && job->fp8 == 1 ? "e4m3" : "hybrid");
    if (has_trait(job, "half-gradients")) flag(e, "--grad-reduce-in-bf16", "%s", "");
    if (has_trait(job, "captured")) flag(e, "--cuda-graph-impl", "transformer_engine");
    if (job->recompute == DH_RECOMPUTE_FULL) {
        flag(e, "--recompute-granularity", "full");
        flag(e, "--recompute-method", "uniform");
        whole(e, "--recompute-num-layers", 1);
    } else if (job->recompute == DH_RECOMPUTE_ATTENTION) {
        flag(e, "--recompute-granularity", "selective");
        flag(e, "--recompute-modules", "core_attn");
    } else if (job->recompute == DH_RECOMPUTE_SELECTIVE) {
        flag(e, "--recompute-granularity", "selective");
        flag(e, "--recompute-modules", "%s",
             job->model.n_experts ? "core_attn layernorm moe_act" : "core_attn layernorm mlp");
        missing(e, "train.recompute", "norms and activations: these modules are the nearest");
    }
}

/* A command line: torchrun for a node, and a line for each flag. */
static void megatron_text(exporter *e)
{
    const dh_job *job = e->job;
    dh_str *out = &e->out->text;
    const int64_t per_node = job->ranks_per_node > 0 ? job->ranks_per_node : job->ranks;
    const int64_t nodes = DH_MAX(job->ranks / DH_MAX(per_node, (int64_t)1), (int64_t)1);
    const int64_t gpus = nodes == 1 && job->ranks > 8 && job->ranks % 8 == 0 ? 8 : per_node;
    dh_str_printf(out, "torchrun --nproc_per_node %lld --nnodes %lld pretrain_gpt.py",
                  (long long)gpus, (long long)(job->ranks / DH_MAX(gpus, (int64_t)1)));
    for (size_t i = 0; i < e->out->lines.n; i++)
        dh_str_printf(out, " \\\n    %s", e->out->lines.at[i]);
    dh_str_printf(out, "\n");
}

static void megatron(exporter *e)
{
    megatron_mesh(e);
    megatron_schedule(e);
    megatron_rest(e);
    megatron_model(e);
    missing_of_both(e);
    megatron_text(e);
}

/* ---- torchtitan ----------------------------------------------------------------------------------------- */

#define PARALLELISM "parallelism."

static void torchtitan_model(exporter *e)
{
    static const struct {
        const char *preset, *name, *flavor;
    } models[] = {{"llama3-8b", "llama3", "8B"},
                  {"llama3-70b", "llama3", "70B"},
                  {"llama3.1-405b", "llama3", "405B"},
                  {"qwen3-0.6b", "qwen3", "0.6B"},
                  {"qwen3-8b", "qwen3", "8B"},
                  {"deepseek-v3", "deepseek_v3", "671B"},
                  {"qwen3-30b-a3b", "qwen3", "30B-A3B"},
                  {"llama4-scout", "llama4", "17bx16e"},
                  {"qwen3-235b-a22b", "qwen3", "235B-A22B"},
                  {"gpt-oss-120b", "gpt_oss", "120b"}};
    const char *spec = e->job->model_spec ? e->job->model_spec : "";
    for (size_t i = 0; i < DH_COUNTOF(models); i++)
        if (is(models[i].preset, spec)) {
            flag(e, "model.name", "\"%s\"", models[i].name);
            flag(e, "model.flavor", "\"%s\"", models[i].flavor);
            if (e->job->fp8) flag(e, "model.converters", "[\"quantize.linear.float8\"]");
            return;
        }
    missing(e, "model.family", "no flavor of torchtitan has this shape: give the model by hand");
    if (e->job->fp8) flag(e, "model.converters", "[\"quantize.linear.float8\"]");
}

static const char *torch_schedule(const char *name)
{
    static const char *const names[][2] = {{"1f1b", "1F1B"},
                                           {"interleaved-1f1b", "Interleaved1F1B"},
                                           {"gpipe", "GPipe"},
                                           {"looped-bfs", "LoopedBFS"},
                                           {"interleaved-zb", "InterleavedZeroBubble"},
                                           {"zb-v", "ZBVZeroBubble"},
                                           {"dualpipev", "DualPipeV"}};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (is(names[i][0], name)) return names[i][1];
    return NULL;
}

/* torchtitan counts embedding and head as layers of the first and the last stage. */
static void torchtitan_split(exporter *e, int64_t stages)
{
    enum { MOST = 1024 };
    const dh_job *job = e->job;
    int64_t layers[MOST], less[2] = {0, 0};
    size_t n;
    const int64_t even = job->model.n_layers / stages;
    if (split_numbers(job->layer_split, layers, MOST, &n) && (int64_t)n == stages && n > 1) {
        for (int64_t first = 0; first < 4; first++)
            for (int64_t last = 0; last < 4; last++) {
                const int64_t all = job->model.n_layers + first + last;
                bool same = true;
                for (int64_t i = 0; i < stages; i++)
                    same = same && layers[i] == all / stages + (i < all % stages) -
                                                    (i == 0 ? first : 0) -
                                                    (i == stages - 1 ? last : 0);
                if (!same) continue;
                whole(e, PARALLELISM "pipeline_parallel_first_stage_less_layers", first);
                whole(e, PARALLELISM "pipeline_parallel_last_stage_less_layers", last);
                return;
            }
        missing(e, "parallel.layer_split",
                "layers of stages are even but for the first and the last");
        return;
    }
    if (*job->layer_split && !is(job->layer_split, "*"))
        missing(e, "parallel.layer_split", "say the layers of each stage as numbers");
    if (even * stages != job->model.n_layers && !*job->layer_split)
        missing(e, "parallel.layer_split", "layers do not divide");
    whole(e, PARALLELISM "pipeline_parallel_first_stage_less_layers", less[0]);
    whole(e, PARALLELISM "pipeline_parallel_last_stage_less_layers", less[1]);
}

static void torchtitan_pipeline(exporter *e)
{
    const dh_job *job = e->job;
    const char *name = torch_schedule(job->schedule);
    const bool folded = is(job->schedule, "zb-v") || is(job->schedule, "dualpipev");
    const int64_t stages = job->pp * (folded ? 2 : DH_MAX(job->vpp, (int64_t)1));
    whole(e, PARALLELISM "pipeline_parallel_degree", job->pp);
    if (job->pp == 1) return;
    if (name)
        flag(e, PARALLELISM "pipeline_parallel_schedule", "\"%s\"", name);
    else
        missing(e, "parallel.schedule",
                "`dhelix plan --schedule-csv FILE` writes it for pipeline_parallel_schedule_csv");
    whole(e, PARALLELISM "pipeline_parallel_microbatch_size", job->micro_batch);
    torchtitan_split(e, stages);
    if (stages > 2 * job->pp)
        whole(e, PARALLELISM "pipeline_parallel_layers_per_stage",
              (job->model.n_layers + stages - 1) / stages);
}

static void torchtitan_mesh(exporter *e)
{
    const dh_job *job = e->job;
    const dh_sharing s = dh_sharing_of_job(job);
    whole(e, PARALLELISM "data_parallel_replicate_degree", s.parameters ? 1 : job->dp);
    whole(e, PARALLELISM "data_parallel_shard_degree", s.parameters ? job->dp : 1);
    whole(e, PARALLELISM "tensor_parallel_degree", job->tp);
    whole(e, PARALLELISM "context_parallel_degree", job->cp);
    if (dh_sharing_steps_shards(&s))
        missing(e, "parallel.zero", "torchtitan shards all (fully_shard), or nothing");
    if (s.parameters)
        flag(e, PARALLELISM "fsdp_reshard_after_forward",
             s.reshard == DH_GATHERED_WHOLE ? "\"never\"" : "\"always\"");
    if (s.parameters && job->reshard > 0)
        missing(e, "parallel.reshard_after_forward", "true or false");
    if (s.parameters && differs(e, "parallel.prefetch"))
        missing(e, "parallel.prefetch", "fully_shard gathers one block ahead");
    if (job->model.n_experts) {
        const bool spread = job->tp > 1 && job->expert_tp == 1;
        whole(e, PARALLELISM "expert_parallel_degree", job->ep * (spread ? job->tp : 1));
        whole(e, PARALLELISM "expert_tensor_parallel_degree", spread || job->ep == 1 ? 1 : job->tp);
    }
    if (s.sequence == DH_SEQUENCE_WHOLE && job->tp > 1)
        missing(e, "parallel.sequence", "torchtitan splits tokens between the linears");
    const bool rings = is(job->strategy, "intra-batch");
    if (rings) flag(e, PARALLELISM "enable_async_tensor_parallel", "true");
    if (is(job->strategy, "dualpipe"))
        flag(e, PARALLELISM "pipeline_parallel_expert_parallel_overlap", "true");
    else if (!rings && !is(job->strategy, "sequential"))
        missing(e, "strategy", "torchtitan has none like it");
    if (differs(e, "parallel.bucket_mb") && !s.parameters)
        missing(e, "parallel.bucket_mb", "torchtitan's buckets are DDP's");
}

static void torchtitan_rest(exporter *e)
{
    const dh_job *job = e->job;
    static const char *const modes[] = {"none", "selective", "full", "none"};
    const int64_t replicas = DH_MAX(job->dp, (int64_t)1);
    const int64_t local = job->pp > 1 ? job->global_batch / replicas : job->micro_batch;
    whole(e, "training.local_batch_size", local);
    whole(e, "training.global_batch_size", job->global_batch);
    whole(e, "training.seq_len", job->seq_len);
    if (job->dtype == DH_F32) flag(e, "training.mixed_precision_param", "\"float32\"");
    flag(e, "activation_checkpoint.mode", "\"%s\"", modes[job->recompute]);
    if (job->recompute == DH_RECOMPUTE_SELECTIVE)
        flag(e, "activation_checkpoint.selective_ac_option", "\"op\"");
    flag(e, "compile.enable", "%s", has_trait(job, "eager") ? "false" : "true");
    if (job->fp8)
        flag(e, "quantize.linear.float8.recipe_name", "\"%s\"",
             job->fp8 == 1 ? "rowwise" : "tensorwise");
}

/* Length of "parallelism" in "parallelism.tensor_parallel_degree = 8". */
static size_t table_length(const char *line)
{
    size_t n = 0;
    for (size_t i = 0; line[i] && line[i] != ' '; i++)
        if (line[i] == '.') n = i;
    return n;
}

static bool same_table(const char *a, const char *b)
{
    const size_t n = table_length(a);
    return n == table_length(b) && strncmp(a, b, n) == 0;
}

/* Keys by their tables, as they come. */
static void torchtitan_text(exporter *e)
{
    dh_str *out = &e->out->text;
    const char *const *lines = e->out->lines.at;
    for (size_t i = 0; i < e->out->lines.n; i++) {
        const size_t n = table_length(lines[i]);
        bool is_first = true;
        for (size_t k = 0; k < i; k++) is_first = is_first && !same_table(lines[k], lines[i]);
        if (!is_first) continue;
        dh_str_printf(out, "%s[%.*s]\n", out->len ? "\n" : "", (int)n, lines[i]);
        for (size_t k = i; k < e->out->lines.n; k++)
            if (same_table(lines[k], lines[i])) dh_str_printf(out, "%s\n", lines[k] + n + 1);
    }
}

static void torchtitan(exporter *e)
{
    torchtitan_model(e);
    torchtitan_rest(e);
    torchtitan_mesh(e);
    torchtitan_pipeline(e);
    missing_of_both(e);
    torchtitan_text(e);
}

/* ---- either ------------------------------------------------------------------------------------------------- */

dh_status dh_export(dh_ctx *ctx, dh_project project, const dh_job *job, dh_exported *exported)
{
    dh_exported out = {.arena = dh_arena_create()};
    if (!out.arena) return dh_no_memory(ctx);
    const bool nemo = project == DH_PROJECT_NEMO;
    exporter e = {
        .ctx = ctx, .out = &out, .job = job, .project = nemo ? DH_PROJECT_MEGATRON : project};
    if (project == DH_PROJECT_TORCHTITAN)
        torchtitan(&e);
    else
        megatron(&e);
    if (nemo && job->zero == 2) missing(&e, "parallel.zero", "fsdp shards all: it is the nearest");
    if (nemo && !e.failed) e.failed = !dh_export_nemo(&out, job);
    if (e.failed || out.text.failed) {
        dh_exported_free(&out);
        return dh_no_memory(ctx);
    }
    *exported = out;
    return DH_OK;
}

void dh_exported_free(dh_exported *exported)
{
    dh_vec_fini(&exported->lines);
    dh_vec_fini(&exported->missing);
    dh_str_fini(&exported->text);
    dh_arena_destroy(exported->arena);
    exported->arena = NULL;
}
