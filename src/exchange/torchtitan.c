/* Meanings that keys of torchtitan's files have together. */
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "config/settings.h"
#include "dhelix/model.h"
#include "exchange/import.h"

#define PARALLELISM "parallelism."
#define AC "activation_checkpoint."

/* ---- model ------------------------------------------------------------------------------------- */

static const char *preset_of(importer *im)
{
    static const struct {
        const char *name, *flavor, *preset;
    } presets[] = {{"llama3", "8B", "llama3-8b"},         {"llama3", "8B_flex", "llama3-8b"},
                   {"llama3", "8B_varlen", "llama3-8b"},  {"llama3", "70B", "llama3-70b"},
                   {"llama3", "405B", "llama3.1-405b"},   {"llama2", "7B", "llama2-7b"},
                   {"qwen3", "0.6B", "qwen3-0.6b"},       {"qwen3", "8B", "qwen3-8b"},
                   {"qwen3", "30B-A3B", "qwen3-30b-a3b"}, {"qwen3", "235B-A22B", "qwen3-235b-a22b"},
                   {"llama4", "17bx16e", "llama4-scout"}, {"deepseek_v3", "671B", "deepseek-v3"},
                   {"gpt_oss", "120b", "gpt-oss-120b"}};
    for (size_t i = 0; i < DH_COUNTOF(presets); i++)
        if (im_is(im, "model.name", presets[i].name) &&
            im_is(im, "model.flavor", presets[i].flavor))
            return presets[i].preset;
    return NULL;
}

/* Returns the number of layers; 0: not known. */
static int64_t model(importer *im)
{
    const char *preset = preset_of(im), *other = im_given_model(im);
    dh_model shape;
    dh_ctx quiet = DH_CTX_INIT;
    if (!preset && !other) {
        im_fail(im, DH_EINVAL,
                "no preset has the shape of %s %s: --set model=... gives a preset or a config.json",
                im_text(im, "model.name", "the model"), im_text(im, "model.flavor", ""));
        return 0;
    }
    if (preset) {
        im_set(im, "model.preset", "%s", preset);
        im_fate(im, "model.flavor", DH_FATE_EXPRESSED,
                dh_arena_printf(im->arena, "model: %s", preset), NULL);
    }
    if (dh_model_from_preset(&quiet, other ? other : preset, &shape) != DH_OK) return 0;
    const int64_t seq = im_get_int(im, "train.seq_len", 0);
    if (seq > shape.max_seq) im_set(im, "model.max_seq", "%lld", (long long)seq);
    return shape.n_layers;
}

/* ---- mesh ---------------------------------------------------------------------------------------- */

static int64_t degree(importer *im, const char *name)
{
    const int64_t n = im_int(im, name, 1);
    if (n < 1 || n > 65536) im_fail(im, DH_EINVAL, "%s is %lld", name, (long long)n);
    return im->st == DH_OK ? n : 1;
}

static void experts(importer *im, int64_t tp)
{
    static const char etp[] = PARALLELISM "expert_tensor_parallel_degree";
    const int64_t ep = degree(im, PARALLELISM "expert_parallel_degree");
    const bool spread = ep > 1 && tp > 1 && im_int(im, etp, 1) == 1;
    if (ep == 1 || tp == 1) {
        im_fate(im, etp, DH_FATE_IDLE, NULL, ep == 1 ? "ep is 1" : "tp is 1");
    } else if (spread) { /* there ep counts the tensor-parallel ranks, here it does not */
        im_set(im, "parallel.expert_tp", "1");
        im_set(im, "parallel.ep", "%lld", (long long)DH_MAX(ep / tp, (int64_t)1));
    }
}

/* Returns the data-parallel ranks. */
static int64_t mesh(importer *im)
{
    const int64_t tp = degree(im, PARALLELISM "tensor_parallel_degree");
    const int64_t pp = degree(im, PARALLELISM "pipeline_parallel_degree");
    const int64_t cp = degree(im, PARALLELISM "context_parallel_degree");
    const int64_t replicas = degree(im, PARALLELISM "data_parallel_replicate_degree");
    int64_t shards = im_int(im, PARALLELISM "data_parallel_shard_degree", -1);
    if (shards < 1 && im->how->ranks == 0)
        im_fail(im, DH_EINVAL,
                "the number of devices is not in the file (data_parallel_shard_degree is %lld): "
                "--ranks N says it",
                (long long)shards);
    const int64_t share = tp * pp * cp * replicas;
    if (im->st != DH_OK) return 1;
    if (shards < 1) shards = DH_MAX(im->how->ranks / share, (int64_t)1);
    im_ranks(im, share * shards);
    const bool sharded = shards * cp > 1;
    im_set(im, "parallel.zero", sharded ? "3" : "0");
    if (replicas > 1 && shards > 1)
        im_fate(im, PARALLELISM "data_parallel_replicate_degree", DH_FATE_LOST, "parallel.dp",
                "replicas of shards: here shards lie over all data-parallel ranks");
    else if (replicas == 1)
        im_fate(im, PARALLELISM "data_parallel_replicate_degree", DH_FATE_IDLE, NULL,
                "it is so here");
    if (tp > 1) im_set(im, "parallel.sequence", "true");
    experts(im, tp);
    const char *policy = im_text(im, PARALLELISM "fsdp_reshard_after_forward", "default");
    if (sharded && (strcmp(policy, "never") == 0 || (pp > 1 && strcmp(policy, "default") == 0)))
        im_set(im, "parallel.reshard_after_forward", "false");
    if (cp == 1)
        im_fate(im, PARALLELISM "context_parallel_rotate_method", DH_FATE_IDLE, NULL, "cp is 1");
    else if (im_is(im, PARALLELISM "context_parallel_rotate_method", "alltoall"))
        im_fate(im, PARALLELISM "context_parallel_rotate_method", DH_FATE_LOST, NULL,
                "keys and values are passed on from rank to rank");
    return shards * replicas;
}

/* ---- pipeline ------------------------------------------------------------------------------------- */

static bool has_one_stage(const char *schedule)
{
    return strcmp(schedule, "1f1b") == 0 || strcmp(schedule, "gpipe") == 0;
}

/* As generate_llm_fqn_per_model_part of torchtitan: embedding and head count as layers. */
static void split(importer *im, int64_t layers, int64_t stages)
{
    const int64_t first = im_int(im, PARALLELISM "pipeline_parallel_first_stage_less_layers", 1);
    const int64_t last = im_int(im, PARALLELISM "pipeline_parallel_last_stage_less_layers", 1);
    const int64_t all = layers + first + last;
    dh_str text = DH_STR_INIT;
    if (layers < 1 || stages < 2 || stages > 4096 || first < 0 || last < 0) return;
    for (int64_t i = 0; i < stages; i++) {
        int64_t n = all / stages + (i < all % stages);
        if (i == 0) n -= first;
        if (i == stages - 1) n -= last;
        dh_str_printf(&text, "%s%lld", i ? "," : "", (long long)n);
    }
    if (!text.failed) im_set(im, "parallel.layer_split", "%s", text.text);
    dh_str_fini(&text);
}

static void pipeline(importer *im, int64_t layers)
{
    static const char each[] = PARALLELISM "pipeline_parallel_layers_per_stage",
                      name[] = PARALLELISM "pipeline_parallel_schedule";
    static const char *const of_pipelines[] = {
        name,
        each,
        PARALLELISM "pipeline_parallel_schedule_csv",
        PARALLELISM "pipeline_parallel_first_stage_less_layers",
        PARALLELISM "pipeline_parallel_last_stage_less_layers",
        PARALLELISM "pipeline_parallel_microbatch_size",
        PARALLELISM "pipeline_parallel_expert_parallel_overlap"};
    const int64_t pp = degree(im, PARALLELISM "pipeline_parallel_degree");
    if (pp == 1) {
        for (size_t i = 0; i < DH_COUNTOF(of_pipelines); i++)
            im_fate(im, of_pipelines[i], DH_FATE_IDLE, NULL, "pp is 1");
        return;
    }
    const char *said = im_text(im, name, "1F1B"),
               *known = dh_foreign_value("parallel.schedule", said);
    char schedule[64];
    snprintf(schedule, sizeof schedule, "%s", known ? known : said);
    if (!known) dh_to_lower(schedule);
    const int64_t stages_of_rank = has_one_stage(schedule) ? 1 : 2;
    int64_t stages = stages_of_rank * pp;
    if (im_has(im, each)) {
        const int64_t n = DH_MAX(im_int(im, each, 1), (int64_t)1);
        stages = (layers + im_int(im, PARALLELISM "pipeline_parallel_first_stage_less_layers", 1) +
                  im_int(im, PARALLELISM "pipeline_parallel_last_stage_less_layers", 1) + n - 1) /
                 n;
        if (stages % pp != 0)
            im_fail(im, DH_EINVAL, "%s %lld: %lld stages are no multiple of pp %lld", each,
                    (long long)n, (long long)stages, (long long)pp);
    }
    im_set(im, "parallel.schedule", "%s", schedule);
    im_fate(im, name, DH_FATE_EXPRESSED,
            dh_arena_printf(im->arena, "parallel.schedule: %s", schedule), NULL);
    const char *csv = im_text(im, PARALLELISM "pipeline_parallel_schedule_csv", "");
    if (*csv) im_set(im, "parallel.schedule", "%s", csv);
    const bool folded = strcmp(schedule, "zb-v") == 0 || strcmp(schedule, "dualpipev") == 0;
    if (!folded && stages > pp)
        im_set(im, "parallel.virtual_stages", "%lld", (long long)(stages / pp));
    split(im, layers, stages);
    if (strcmp(schedule, "dualpipev") == 0 && im_has(im, PARALLELISM "expert_parallel_degree") &&
        im_int(im, PARALLELISM "expert_parallel_degree", 1) > 1 &&
        !im_is(im, PARALLELISM "pipeline_parallel_expert_parallel_overlap", "false"))
        im_set(im, "strategy", "dualpipe");
    else
        im_fate(im, PARALLELISM "pipeline_parallel_expert_parallel_overlap", DH_FATE_IDLE, NULL,
                "without DualPipeV and experts");
}

/* ---- batch, memory, precision ------------------------------------------------------------------------ */

static void batch(importer *im, int64_t dp)
{
    const int64_t pp = degree(im, PARALLELISM "pipeline_parallel_degree");
    const int64_t local =
        im_int(im, "training.local_batch_size", im_int(im, "training.batch_size", 8));
    const int64_t global = im_int(im, "training.global_batch_size", -1);
    const int64_t micro =
        pp > 1 ? im_int(im, PARALLELISM "pipeline_parallel_microbatch_size", 1) : local;
    if (!im_has(im, "training.local_batch_size") && !im_has(im, "training.batch_size"))
        im_default(im, "training.local_batch_size", "8", DH_FATE_EXPRESSED, "train.micro_batch",
                   "torchtitan's default");
    if (!im_get(im, "train.seq_len")) {
        im_set(im, "train.seq_len", "2048");
        im_default(im, "training.seq_len", "2048", DH_FATE_EXPRESSED, "train.seq_len: 2048",
                   "torchtitan's default");
    }
    im_set(im, "train.batch", "%lld", (long long)(global > 0 ? global : local * dp));
    im_set(im, "train.micro_batch", "%lld", (long long)micro);
    if (im_has(im, "lr_scheduler.min_lr_factor"))
        im_set(im, "optimizer.min_lr", "%.6g",
               im_real(im, "lr_scheduler.min_lr_factor", 0) * im_real(im, "optimizer.lr", 8e-4));
    if (im_is(im, "lr_scheduler.decay_type", "linear") ||
        im_is(im, "lr_scheduler.decay_type", "cosine"))
        im_set(im, "optimizer.schedule", "%s", im_text(im, "lr_scheduler.decay_type", ""));
}

static void memory(importer *im)
{
    const char *mode = im_text(im, AC "mode", "selective");
    int64_t n;
    if (!im_has(im, AC "mode"))
        im_default(im, AC "mode", "selective", DH_FATE_EXPRESSED, "train.recompute: selective",
                   "torchtitan's default");
    if (strcmp(mode, "memory_budget") == 0) {
        im_fate(im, AC "mode", DH_FATE_LOST, NULL, "train.recompute has no budget");
        return;
    }
    im_fate(im, AC "memory_budget", DH_FATE_IDLE, NULL, "without mode memory_budget");
    im_set(im, "train.recompute", "%s", mode);
    im_fate(im, AC "mode", DH_FATE_EXPRESSED,
            dh_arena_printf(im->arena, "train.recompute: %s", mode), NULL);
    if (strcmp(mode, "selective") != 0)
        im_fate(im, AC "selective_ac_option", DH_FATE_IDLE, NULL, "without mode selective");
    else if (dh_parse_i64(im_text(im, AC "selective_ac_option", "2"), &n))
        im_has(im, AC "selective_ac_option")
            ? im_fate(im, AC "selective_ac_option", DH_FATE_LOST, NULL,
                      "every n-th layer: selective is by operator, of all layers")
            : im_default(im, AC "selective_ac_option", "2", DH_FATE_LOST, NULL,
                         "torchtitan's default, every second layer: selective is by operator");
}

static const char *float8(importer *im, const char *key)
{
    char name[96];
    snprintf(name, sizeof name, "quantize.linear.float8.%s", key);
    if (im_has(im, name)) return im_text(im, name, "");
    snprintf(name, sizeof name, "float8.%s", key);
    return im_text(im, name, "");
}

static void precision(importer *im)
{
    static const char *const sections[] = {"quantize.linear.float8.", "float8.",
                                           "quantize.grouped_mm.float8.", "quantize.linear.mx.",
                                           "quantize.grouped_mm.mx."};
    const char *converters = im_text(im, "model.converters", "");
    const bool float8_on = strstr(converters, "float8") != NULL;
    im_set(im, "train.dtype",
           im_is(im, "training.mixed_precision_param", "float32") ? "f32" : "bf16");
    for (size_t i = 0; i < im->flags.n; i++)
        for (size_t k = 0; k < DH_COUNTOF(sections); k++) {
            im_flag *f = &im->flags.at[i];
            if (strncmp(f->name, sections[k], strlen(sections[k])) != 0 || f->off) continue;
            f->given.here = NULL;
            f->given.fate = k < 2 || !strstr(converters, k == 2 ? "grouped_mm.float8" : "mx")
                                ? DH_FATE_IDLE
                                : DH_FATE_LOST;
            f->given.note = f->given.fate == DH_FATE_IDLE && !float8_on
                                ? "its converter is not in model.converters"
                                : f->row->note;
        }
    if (float8_on) {
        const bool rows = strncmp(float8(im, "recipe_name"), "rowwise", 7) == 0;
        im_set(im, "train.fp8", rows ? "e4m3" : "hybrid");
        im_fate(im, "model.converters", DH_FATE_EXPRESSED,
                rows ? "train.fp8: e4m3" : "train.fp8: hybrid", NULL);
        if (dh_is_same_word(float8(im, "enable_fsdp_float8_all_gather"), "true"))
            im_fate(im,
                    im_has(im, "float8.enable_fsdp_float8_all_gather")
                        ? "float8.enable_fsdp_float8_all_gather"
                        : "quantize.linear.float8.enable_fsdp_float8_all_gather",
                    DH_FATE_LOST, NULL, "parameters are gathered in bf16");
    } else if (strstr(converters, "mx")) {
        im_fate(im, "model.converters", DH_FATE_LOST, NULL,
                "scales are those of rows and columns, not of blocks");
    }
}

static void compiled(importer *im, int64_t tp)
{
    static const char async[] = PARALLELISM "enable_async_tensor_parallel",
                      older[] = "experimental.enable_async_tensor_parallel";
    const char *components = im_text(im, "compile.components", "model loss");
    const bool enabled =
        im_is(im, "compile.enable", "true") || im_is(im, "training.compile", "true");
    const bool layers = enabled && strstr(components, "model");
    const bool rings = im_is(im, async, "true") || im_is(im, older, "true");
    im->system = "torchtitan";
    if (!layers) im_trait(im, "eager");
    const char *here = layers ? "system: torchtitan" : "system: torchtitan+eager";
    im_fate(im, "compile.enable", DH_FATE_EXPRESSED, here, NULL);
    im_fate(im, "training.compile", DH_FATE_EXPRESSED, here, NULL);
    im_fate(im, "compile.components", enabled ? DH_FATE_EXPRESSED : DH_FATE_IDLE,
            enabled ? here : NULL, enabled ? NULL : "without compile.enable");
    if (!im_has(im, "compile.enable") && !im_has(im, "training.compile"))
        im_default(im, "compile.enable", "false", DH_FATE_EXPRESSED, here, "torchtitan's default");
    if (rings && enabled && tp > 1) im_set(im, "strategy", "intra-batch");
    for (int i = 0; i < 2; i++) {
        const char *why = !rings ? "it is so here" : tp == 1 ? "tp is 1" : "without compile.enable";
        if (!(rings && enabled && tp > 1)) im_fate(im, i ? older : async, DH_FATE_IDLE, NULL, why);
    }
    if (im_is(im, PARALLELISM "disable_loss_parallel", "true") && tp > 1)
        im_fate(im, PARALLELISM "disable_loss_parallel", DH_FATE_LOST, NULL,
                "tensor-parallel ranks have a part of the logits each");
    else
        im_fate(im, PARALLELISM "disable_loss_parallel", DH_FATE_IDLE, NULL, "it is so here");
}

void im_torchtitan(importer *im)
{
    const int64_t layers = model(im);
    const int64_t dp = mesh(im);
    if (im->st != DH_OK) return;
    pipeline(im, layers);
    batch(im, dp);
    memory(im);
    precision(im);
    compiled(im, degree(im, PARALLELISM "tensor_parallel_degree"));
    if (im_is(im, "debug.moe_force_load_balance", "false"))
        im_fate(im, "debug.moe_force_load_balance", DH_FATE_IDLE, NULL, "it is so here");
}
