/* The job's model: a preset or config.json, changed key by key.
 *
 * Keys that follow others (head_dim follows width / n_heads, ...) are derived
 * only where the source had that relation and the key itself is not given. */
#include "settings.h"

#include "base/base.h"
#include "model_names.h"

#include <string.h>

static const dh_assignment *last_of(const dh_assignments *list, const char *key)
{
    for (size_t i = list->n; i-- > 0;)
        if (strcmp(list->at[i].setting->key, key) == 0) return &list->at[i];
    return NULL;
}

static bool given(const dh_assignments *list, const char *key)
{
    return last_of(list, key) != NULL;
}

/* ---- where it comes from ------------------------------------------------------------- */

static const dh_assignment *model_source(const dh_assignments *list)
{
    for (size_t i = list->n; i-- > 0;)
        if (list->at[i].setting->type == DH_SET_MODEL) return &list->at[i];
    return NULL;
}

static bool is_preset(const char *name)
{
    size_t n;
    const dh_model_preset *presets = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(presets[i].name, name) == 0) return true;
    return false;
}

/* "owner/name", as Hugging Face's hub has it. */
static bool is_hub_name(const char *text)
{
    const char *slash = strchr(text, '/');
    return slash && slash > text && *text != '.' && slash[1] && !strchr(slash + 1, '/') &&
           !strstr(text, ".json");
}

static dh_status no_hub(dh_ctx *ctx, const char *text)
{
    enum { MOST = 512 };
    const char *names[MOST];
    size_t n;
    const dh_model_preset *presets = dh_model_presets(&n);
    for (size_t i = 0; i < n && i < MOST; i++) names[i] = presets[i].name;
    const char *near = dh_foreign_model(strchr(text, '/') + 1, names, DH_MIN(n, (size_t)MOST));
    return dh_fail(ctx, DH_EMISSING,
                   "there is no folder %s, and models are not downloaded: give the path of a "
                   "downloaded folder, or a preset (dhelix list models)%s%s",
                   text, near ? ": " : "", near ? near : "");
}

/* A preset's name wins; else a text with a slash, or one that exists, is a path. */
static dh_status load_source(dh_ctx *ctx, dh_job *job, const dh_assignment *source,
                             const char *base_dir)
{
    const char *text = source->items[0], *key = source->setting->key;
    if (source->is_list || !*text)
        return dh_fail(ctx, DH_EINVAL, "%s: must be the name of a preset or a path", source->where);
    char *path = dh_job_join_path(job, source->from_file ? base_dir : NULL, text);
    char *name = dh_arena_strdup(job->arena, text);
    if (!path || !name) return dh_no_memory(ctx);
    bool from_path = strcmp(key, "model.config") == 0;
    if (strcmp(key, "model") == 0 && !is_preset(text))
        from_path = strchr(text, '/') || dh_path_exists(path);
    if (from_path && is_hub_name(text) && !dh_path_exists(path)) return no_hub(ctx, text);
    job->model_spec = from_path ? path : name;
    dh_status st = from_path ? dh_model_from_config_file(ctx, path, &job->model)
                             : dh_model_from_preset(ctx, text, &job->model);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "loading the model of %s", source->where);
}

/* Without a source the family gives the frame and the sizes must be told. */
static dh_status start_from_family(dh_ctx *ctx, dh_job *job, const dh_assignments *list)
{
    static const char *const needed[] = {"model.n_layers", "model.width", "model.n_heads"};
    const dh_assignment *family = last_of(list, "model.family");
    if (!family)
        return dh_fail(ctx, DH_EINVAL,
                       "model is missing: give a preset (`dhelix list models`), the path of a "
                       "config.json, or model.family with its sizes");
    DH_TRY(dh_setting_store(ctx, job, family, NULL));
    dh_model_init(&job->model, job->model.family);
    for (size_t i = 0; i < DH_COUNTOF(needed); i++)
        if (!given(list, needed[i]))
            return dh_fail(ctx, DH_EINVAL,
                           "%s is missing: it must be given where the model has "
                           "neither preset nor config",
                           needed[i]);
    if (job->model.family != DH_FAMILY_GPT2 && !given(list, "model.ffn_width"))
        return dh_fail(ctx, DH_EINVAL,
                       "model.ffn_width is missing for the %s family: only gpt2 has a default",
                       dh_family_names[job->model.family]);
    job->model.max_seq = 1024; /* GPT-2's */
    if (job->model.family == DH_FAMILY_MIXTRAL) {
        job->model.n_experts = 8; /* Mixtral 8x7B's */
        job->model.top_k = 2;
    }
    if (job->model.family == DH_FAMILY_QWEN3_MOE) {
        job->model.n_experts = 128; /* Qwen3 30B A3B's */
        job->model.top_k = 8;
    }
    if (job->model.family == DH_FAMILY_GPT_OSS) {
        job->model.n_experts = 128; /* gpt-oss-120b's */
        job->model.top_k = 4;
    }
    if (job->model.family == DH_FAMILY_LLAMA4) {
        job->model.n_experts = 16; /* Llama 4 Scout's */
        job->model.top_k = 1;
    }
    if (job->model.family == DH_FAMILY_PHIMOE) {
        job->model.n_experts = 16; /* Phi-3.5-MoE's */
        job->model.top_k = 2;
    }
    if (job->model.family == DH_FAMILY_DEEPSEEK3) {
        job->model.n_experts = 256; /* DeepSeek V3's */
        job->model.top_k = 8;
        job->model.n_groups = 8;
        job->model.top_groups = 4;
        job->model.router_scale = 2.5;
        job->model.q_lora = 1536;
        job->model.kv_lora = 512;
        job->model.head_dim = 192;
        job->model.rope_dim = 64;
        job->model.v_dim = 128;
    }
    return DH_OK;
}

/* ---- changes ---------------------------------------------------------------------------- */

static dh_status apply_changes(dh_ctx *ctx, dh_job *job, const dh_assignments *list)
{
    dh_family family = job->model.family;
    for (size_t i = 0; i < list->n; i++) {
        const dh_assignment *a = &list->at[i];
        if (!dh_setting_in_model(a->setting)) continue;
        if (a->setting->families && !(a->setting->families >> family & 1u))
            return dh_fail(ctx, DH_EINVAL, "%s: %s does not apply to the %s family", a->where,
                           a->setting->key, dh_family_names[family]);
        DH_TRY(dh_setting_store(ctx, job, a, NULL));
        if (job->model.family != family)
            return dh_fail(
                ctx, DH_EINVAL,
                "%s: the model's source is of the %s family; its family cannot be changed",
                a->where, dh_family_names[family]);
    }
    return DH_OK;
}

static dh_status derive(dh_ctx *ctx, dh_model *m, const dh_model *source,
                        const dh_assignments *list)
{
    if (!given(list, "model.n_kv_heads") && source->n_kv_heads == source->n_heads)
        m->n_kv_heads = m->n_heads;
    if (!given(list, "model.ffn_width") && m->family == DH_FAMILY_GPT2 &&
        source->ffn_width == 4 * source->width)
        m->ffn_width = 4 * m->width;
    if (m->kv_lora) return DH_OK; /* heads are as wide as they are, whatever the width */
    if (given(list, "model.head_dim") || source->head_dim * source->n_heads != source->width)
        return DH_OK;
    if (m->width % m->n_heads)
        return dh_fail(ctx, DH_EINVAL,
                       "model.n_heads %lld does not divide model.width %lld: change one, or give "
                       "model.head_dim (not in the gpt2 family)",
                       (long long)m->n_heads, (long long)m->width);
    m->head_dim = m->width / m->n_heads;
    return DH_OK;
}

/* vocab 0 stays open until the tokenizer is known. */
static dh_status validate_open(dh_ctx *ctx, const dh_model *model)
{
    dh_model m = *model;
    if (!m.vocab) m.vocab = 1;
    return dh_model_validate(ctx, &m);
}

/* Complete the model, and check rules that concern no single line of the file. */
static dh_status complete(dh_ctx *ctx, dh_job *job, const dh_model *source,
                          const dh_assignments *list)
{
    DH_TRY(derive(ctx, &job->model, source, list));
    if (!*job->model.name) memcpy(job->model.name, "custom", sizeof "custom");
    return validate_open(ctx, &job->model);
}

/* Times of stages are all that is known of the model then. */
static dh_status check_no_model(dh_ctx *ctx, const dh_assignments *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const dh_assignment *a = &list->at[i];
        if (a->setting->type == DH_SET_MODEL || dh_setting_in_model(a->setting))
            return dh_fail(ctx, DH_EINVAL,
                           "%s: the job has stages.forward_ms, times instead of a model: give one "
                           "of the two",
                           a->where);
    }
    return DH_OK;
}

dh_status dh_job_resolve_model(dh_ctx *ctx, dh_job *job, const dh_assignments *list,
                               const char *file_name, const char *base_dir)
{
    const dh_assignment *source = model_source(list);
    if (dh_job_has_stage_times(job)) return check_no_model(ctx, list);
    if (source)
        DH_TRY(load_source(ctx, job, source, base_dir));
    else if (start_from_family(ctx, job, list) != DH_OK)
        return dh_ctx_while(ctx, "reading the job %s", file_name);
    dh_model start = job->model;
    DH_TRY(apply_changes(ctx, job, list));
    if (complete(ctx, job, &start, list) != DH_OK)
        return dh_ctx_while(ctx, "checking the job %s", file_name);
    return DH_OK;
}

dh_status dh_job_change_model(dh_ctx *ctx, dh_job *job, const dh_assignments *list)
{
    const dh_model before = job->model;
    DH_TRY(apply_changes(ctx, job, list));
    return complete(ctx, job, &before, list);
}
