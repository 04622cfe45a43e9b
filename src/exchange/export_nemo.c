/* Export to NeMo: Megatron-LM's flags as keys of a NeMo YAML file. Most are the flag's name with _ for
 * -; the others stand in a table (facts of NeMo's megatron_gpt_config.yaml, as config/nemo.def). */
#include <stdio.h>
#include <string.h>

#include "exchange/export.h"

/* key: below "model", or with the mapping around it; value: instead of the flag's own. */
static const struct {
    const char *flag, *key, *value;
} keys[] = {
    {"--bf16", "trainer.precision", "bf16"},
    {"--use-distributed-optimizer", "model.optim.name", "mcore_distributed_optim"},
    {"--overlap-grad-reduce", "model.optim.overlap_grad_sync", "true"},
    {"--overlap-param-gather", "model.optim.overlap_param_sync", "true"},
    {"--num-virtual-stages-per-pipeline-rank", "virtual_pipeline_model_parallel_size", NULL},
    {"--decoder-first-pipeline-num-layers", "num_layers_in_first_pipeline_stage", NULL},
    {"--decoder-last-pipeline-num-layers", "num_layers_in_last_pipeline_stage", NULL},
    {"--no-overlap-p2p-communication", "overlap_p2p_comm", "false"},
    {"--tp-comm-overlap", "ub_tp_comm_overlap", "true"},
    {"--seq-length", "encoder_seq_length", NULL},
    {"--swiglu", "activation", "fast-swiglu"},
    {"--disable-bias-linear", "bias", "false"},
    {"--untie-embeddings-and-output-weights", "share_embeddings_and_output_weights", "false"},
    {"--norm-epsilon", "layernorm_epsilon", NULL},
    {"--padded-vocab-size", "override_vocab_size", NULL},
    {"--num-experts", "num_moe_experts", NULL},
    {"--recompute-granularity", "activations_checkpoint_granularity", NULL},
    {"--recompute-method", "activations_checkpoint_method", NULL},
    {"--recompute-num-layers", "activations_checkpoint_num_layers", NULL},
    {"--grad-reduce-in-bf16", "grad_reduce_in_fp32", "false"},
    {"--fp8-format", "fp8", NULL},
};

/* Said by other keys: the number of groups, the optimizer's bucket, fsdp. */
static const char *const left_out[] = {"--group-query-attention", "--ddp-bucket-size",
                                       "--use-megatron-fsdp", "--data-parallel-sharding-strategy"};

static bool is_left_out(const char *flag)
{
    for (size_t i = 0; i < DH_COUNTOF(left_out); i++)
        if (strcmp(flag, left_out[i]) == 0) return true;
    return false;
}

/* "--moe-router-topk" as "model.moe_router_topk". */
static const char *key_of(dh_arena *arena, const char *flag, const char **value)
{
    for (size_t i = 0; i < DH_COUNTOF(keys); i++) {
        if (strcmp(keys[i].flag, flag) != 0) continue;
        if (keys[i].value) *value = keys[i].value;
        return strchr(keys[i].key, '.') ? keys[i].key
                                        : dh_arena_printf(arena, "model.%s", keys[i].key);
    }
    char *key = dh_arena_printf(arena, "model.%s", flag + 2);
    for (char *c = key; c && *c; c++)
        if (*c == '-') *c = '_';
    return key;
}

/* A flag's value as YAML writes it: several words are a list. */
static const char *yaml_of(dh_arena *arena, const char *value)
{
    dh_str text = DH_STR_INIT;
    if (strcmp(value, "RMSNorm") == 0) return "rmsnorm";
    if (value[0] == '"' || !strchr(value, ' ')) return value;
    for (const char *at = value; *at; at += strcspn(at, " "), at += *at == ' ')
        dh_str_printf(&text, "%s%.*s", at == value ? "[" : ", ", (int)strcspn(at, " "), at);
    dh_str_printf(&text, "]");
    const char *list = text.failed ? NULL : dh_arena_strdup(arena, text.text);
    dh_str_fini(&text);
    return list;
}

static bool add(dh_exported *out, const char *key, const char *value)
{
    const char *text = key && value ? dh_arena_printf(out->arena, "%s: %s", key, value) : NULL;
    return text && dh_vec_push(&out->lines, text);
}

static bool add_flag(dh_exported *out, const char *line)
{
    const char *blank = strchr(line, ' '), *value = blank ? blank + 1 : "true";
    const char *flag = dh_arena_printf(out->arena, "%.*s", (int)strcspn(line, " "), line);
    if (!flag) return false;
    if (is_left_out(flag)) return true;
    const char *key = key_of(out->arena, flag, &value);
    return add(out, key, yaml_of(out->arena, value));
}

/* Keys that follow from the job itself. Megatron-LM's flags say these otherwise, or not at all. */
static bool add_job(dh_exported *out, const dh_job *job)
{
    const int64_t per_node = job->ranks_per_node > 0 ? job->ranks_per_node
                             : job->ranks % 8 == 0   ? 8
                                                     : job->ranks;
    bool ok = add(out, "trainer.num_nodes",
                  dh_arena_printf(out->arena, "%lld", (long long)(job->ranks / per_node))) &&
              add(out, "trainer.devices", dh_arena_printf(out->arena, "%lld", (long long)per_node));
    if (job->pp > 1 && job->vpp > 1 && !strstr(job->system, "waiting-transfers"))
        ok = ok && add(out, "model.overlap_p2p_comm", "true"); /* NeMo's default is false */
    if (job->dtype == DH_F32) ok = ok && add(out, "trainer.precision", "32");
    /* Launcher's files have it, by which importing knows their kernels. */
    if (strstr(job->system, "second-flash")) ok = ok && add(out, "model.mcore_gpt", "true");
    if (job->zero != 1) ok = ok && add(out, "model.optim.name", "fused_adam");
    if (job->zero >= 2) ok = ok && add(out, "model.fsdp", "true");
    const bool given = job->bucket_mb > 0; /* else they are NeMo's own */
    return ok && (!given || add(out, "model.optim.bucket_cap_mb",
                                dh_arena_printf(out->arena, "%.10g", job->bucket_mb)));
}

/* Length of the mapping's name around a key: "model.optim" of "model.optim.name: x". */
static size_t mapping_of(const char *line)
{
    size_t n = 0;
    for (size_t i = 0; line[i] && line[i] != ':'; i++)
        if (line[i] == '.') n = i;
    return n;
}

static void print_mapping(dh_exported *out, const char *name, int indent)
{
    const size_t n = strlen(name);
    dh_str_printf(&out->text, "%*s%s:\n", indent, "",
                  strrchr(name, '.') ? strrchr(name, '.') + 1 : name);
    for (size_t i = 0; i < out->lines.n; i++) {
        const char *line = out->lines.at[i];
        if (mapping_of(line) == n && strncmp(line, name, n) == 0)
            dh_str_printf(&out->text, "%*s%s\n", indent + 2, "", line + n + 1);
    }
}

bool dh_export_nemo(dh_exported *out, const dh_job *job)
{
    const size_t n = out->lines.n;
    bool ok = add_job(out, job);
    for (size_t i = 0; i < n && ok; i++) ok = add_flag(out, out->lines.at[i]);
    if (!ok) return false;
    memmove(out->lines.at, out->lines.at + n, (out->lines.n - n) * sizeof *out->lines.at);
    out->lines.n -= n;
    dh_str_clear(&out->text);
    print_mapping(out, "trainer", 0);
    print_mapping(out, "model", 0);
    print_mapping(out, "model.optim", 2);
    return true;
}
