/* Low-rank adapters as PEFT keeps them: adapter_config.json beside adapter_model.safetensors, whose
 * tensors are base_model.model. + the module's name + .lora_A.weight [rank, in] and .lora_B.weight
 * [out, rank]. Source: Hu et al. 2021 (arXiv 2106.09685); the format of huggingface/peft. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/c_locale.h"
#include "base/json_text.h"
#include "weights/checkpoint.h"
#include "weights_impl.h"

static const char prefix[] = "base_model.model.";
enum { MOST_CONFIG_BYTES = 1 << 24 };

/* ---- the weights they belong to -------------------------------------------------------------- */

static size_t bytes_of(const weight *t)
{
    size_t n = dh_st_dtype_bytes(t->dtype);
    for (int i = 0; i < t->ndim; i++) n *= (size_t)t->shape[i];
    return n;
}

static dh_status hash_data(dh_ctx *ctx, XXH3_state_t *state, const weight *t)
{
    unsigned char block[1 << 16];
    const size_t n_bytes = bytes_of(t);
    for (size_t at = 0, n; at < n_bytes; at += n) {
        n = DH_MIN(n_bytes - at, sizeof block);
        DH_TRY(dh_mapped_copy(ctx, t->file, block, t->data + at, n));
        XXH3_128bits_update(state, block, n);
    }
    return DH_OK;
}

static dh_status hash_those(dh_ctx *ctx, const dh_weights *w, bool of_adapters,
                            char text[DH_WEIGHTS_HASH_TEXT])
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return dh_no_memory(ctx);
    XXH3_128bits_reset(state);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < w->tensors.n; i++) {
        const weight *t = &w->tensors.at[i];
        if (dh_adapter_has(t->name) != of_adapters) continue;
        char head[512];
        const int n =
            snprintf(head, sizeof head, "%s %s %d", t->name, dh_st_dtype_name(t->dtype), t->ndim);
        XXH3_128bits_update(state, head, DH_MIN((size_t)n, sizeof head - 1));
        XXH3_128bits_update(state, t->shape, (size_t)t->ndim * sizeof *t->shape);
        st = hash_data(ctx, state, t);
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    snprintf(text, DH_WEIGHTS_HASH_TEXT, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return st;
}

dh_status dh_weights_hash(dh_ctx *ctx, const dh_weights *w, char text[DH_WEIGHTS_HASH_TEXT])
{
    return hash_those(ctx, w, false, text);
}

dh_status dh_adapter_hash(dh_ctx *ctx, const dh_weights *w, char text[DH_WEIGHTS_HASH_TEXT])
{
    return hash_those(ctx, w, true, text);
}

/* ---- reading the configuration --------------------------------------------------------------- */

/* Values that leave an adapter one of our kind: absent, null, false, an empty list or object. */
static bool says_nothing(const json_t *value)
{
    if (!value || json_is_null(value) || json_is_false(value)) return true;
    if (json_is_array(value)) return json_array_size(value) == 0;
    return json_is_object(value) && json_object_size(value) == 0;
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA take out of the base weights what the adapters begin with:
 * beside weights as they were published these adapters are of another model. */
static dh_status check_start(dh_ctx *ctx, const json_t *start)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal", "mica"};
    static const char *const changing[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    char name[64];
    if (!start || json_is_null(start) || json_is_boolean(start)) return DH_OK;
    snprintf(name, sizeof name, "%s", json_is_string(start) ? json_string_value(start) : "no text");
    dh_to_lower(name); /* as PEFT compares it */
    for (size_t i = 0; i < DH_COUNTOF(harmless); i++)
        if (strcmp(name, harmless[i]) == 0) return DH_OK;
    for (size_t i = 0; i < DH_COUNTOF(changing); i++)
        if (begins_with(name, changing[i]))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "\"init_lora_weights\" is \"%s\", which changes the base weights as "
                           "well: save the adapters with PEFT's "
                           "path_initial_model_for_weight_conversion",
                           name);
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "\"init_lora_weights\" is \"%s\", which is not known and may change the base "
                   "weights: true, false, gaussian, eva, orthogonal and mica are read",
                   name);
}

/* Keys that do not say what is computed, and those that are read. All others must say nothing. */
static bool is_harmless(const char *key)
{
    static const char *const keys[] = {"auto_mapping",
                                       "base_model_name_or_path",
                                       "base_model_class",
                                       "bias",
                                       "corda_config",
                                       "ensure_weight_tying",
                                       "eva_config",
                                       "fan_in_fan_out",
                                       "inference_mode",
                                       "init_lora_weights",
                                       "loftq_config",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "lora_ga_config",
                                       "megatron_config",
                                       "megatron_core",
                                       "parent_library",
                                       "peft_type",
                                       "peft_version",
                                       "qalora_group_size",
                                       "r",
                                       "revision",
                                       "runtime_config",
                                       "target_modules",
                                       "task_type"};
    for (size_t i = 0; i < DH_COUNTOF(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

static dh_status refuse_others(dh_ctx *ctx, const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "peft_type"));
    const char *bias = json_string_value(json_object_get(root, "bias"));
    const char *task = json_string_value(json_object_get(root, "task_type")), *key;
    json_t *value;
    if (!type || strcmp(type, "LORA") != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED, "\"peft_type\" is %s; only \"LORA\" is read",
                       type ? type : "not given");
    if (bias && strcmp(bias, "none") != 0)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "\"bias\" is \"%s\": biases cannot be trained together with adapters (right: \"none\")",
            bias);
    DH_TRY(check_start(ctx, json_object_get(root, "init_lora_weights")));
    if (task && strcmp(task, "CAUSAL_LM") != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"task_type\" is \"%.60s\"; only adapters of causal language models are "
                       "read (\"CAUSAL_LM\")",
                       task);
    json_object_foreach((json_t *)root, key, value)
    {
        if (!is_harmless(key) && !says_nothing(value))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "\"%.60s\" is given, which is another kind of adapter than those that "
                           "are computed: alpha / r times B A on linears of all layers alike",
                           key);
    }
    return DH_OK;
}

static bool is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n])) return true;
    return false;
}

/* Names of linears, or of their modules in every layer ("model.layers.0.self_attn.q_proj"), as PEFT
 * writes for "all-linear": their last parts, each once. Where a layer is left out its tensors are
 * missed when they are read. */
static dh_status add_target(dh_ctx *ctx, const char *module, dh_lora *lora)
{
    const char *dot = module ? strrchr(module, '.') : NULL, *name = dot ? dot + 1 : module;
    const size_t at = strlen(lora->targets);
    if (!name || !*name || strpbrk(module, "*+?()[]|\\^$, "))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"target_modules\" has \"%.60s\": only names of linears are read, as "
                       "\"q_proj\", or \"all-linear\"",
                       module ? module : "an entry that is not text");
    if (is_listed(lora->targets, name)) return DH_OK;
    if (at + strlen(name) + 2 > sizeof lora->targets)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"target_modules\" is too long: the names of its linears do not fit");
    snprintf(lora->targets + at, sizeof lora->targets - at, "%s%s", at ? "," : "", name);
    return DH_OK;
}

static dh_status read_targets(dh_ctx *ctx, const json_t *targets, dh_lora *lora)
{
    if (json_is_string(targets)) return add_target(ctx, json_string_value(targets), lora);
    for (size_t i = 0; i < json_array_size(targets); i++)
        DH_TRY(add_target(ctx, json_string_value(json_array_get(targets, i)), lora));
    return *lora->targets
               ? DH_OK
               : dh_fail(ctx, DH_EFORMAT, "\"target_modules\" names no linear that is adapted");
}

static dh_status read_root(dh_ctx *ctx, const json_t *root, dh_lora *lora, dh_str *base)
{
    const json_t *r = json_object_get(root, "r"), *alpha = json_object_get(root, "lora_alpha");
    const char *name = json_string_value(json_object_get(root, "base_model_name_or_path"));
    DH_TRY(refuse_others(ctx, root));
    if (!json_is_integer(r) || json_integer_value(r) < 1)
        return dh_fail(ctx, DH_EFORMAT, "\"r\", the rank, must be a positive whole number");
    if (!json_is_number(alpha) || !(json_number_value(alpha) > 0))
        return dh_fail(ctx, DH_EFORMAT, "\"lora_alpha\" must be a positive number");
    *lora = (dh_lora){.rank = json_integer_value(r), .alpha = json_number_value(alpha)};
    if (name) dh_str_printf(base, "%s", name);
    if (base->failed) return dh_no_memory(ctx);
    return read_targets(ctx, json_object_get(root, "target_modules"), lora);
}

dh_status dh_adapter_read_config(dh_ctx *ctx, const char *folder, dh_lora *lora, dh_str *base)
{
    char *text = NULL;
    size_t n_bytes;
    json_t *root = NULL;
    json_error_t fault;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/" DH_ADAPTER_CONFIG, folder);
    dh_status st = path.failed ? dh_no_memory(ctx)
                               : dh_file_read(ctx, path.text, MOST_CONFIG_BYTES, &text, &n_bytes);
    if (st == DH_OK) st = dh_json_read(ctx, text, n_bytes, JSON_REJECT_DUPLICATES, &fault, &root);
    if (st == DH_OK)
        st = json_is_object(root) ? read_root(ctx, root, lora, base)
             : root               ? dh_fail(ctx, DH_EFORMAT, "it is no JSON object")
                    : dh_fail(ctx, DH_EFORMAT, "line %d, column %d: %s", fault.line, fault.column,
                              fault.text);
    if (st != DH_OK && path.text) dh_ctx_while(ctx, "reading %s", path.text);
    json_decref(root);
    free(text);
    dh_str_fini(&path);
    return st;
}

/* ---- opening one ----------------------------------------------------------------------------- */

static bool same_linears(const dh_model *model, const dh_lora *lora)
{
    dh_model other = *model;
    const char *name;
    bool same = lora->rank == model->lora.rank;
    other.lora = *lora;
    for (size_t i = 0; (name = dh_model_linear(model, i)); i++)
        same = same && dh_model_adapts(model, name) == dh_model_adapts(&other, name);
    return same && dh_model_lora_scale(model) == dh_model_lora_scale(&other);
}

static dh_status check_kind(dh_ctx *ctx, const char *folder, const dh_model *model)
{
    dh_lora lora;
    dh_str base = DH_STR_INIT;
    dh_status st = dh_adapter_read_config(ctx, folder, &lora, &base);
    dh_str_fini(&base);
    DH_TRY(st);
    if (same_linears(model, &lora)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "it has rank %lld, alpha %g and adapters of %s; the job's lora.rank, alpha and "
                   "targets are others",
                   (long long)lora.rank, lora.alpha, lora.targets);
}

dh_status dh_adapter_open(dh_ctx *ctx, const char *path, const dh_model *model, dh_weights **out)
{
    dh_ckpt *ckpt = NULL;
    dh_str file = DH_STR_INIT, folder = DH_STR_INIT;
    dh_status st = DH_OK;
    dh_str_printf(&folder, "%s/checkpoints", path);
    const bool run = !folder.failed && dh_path_exists(folder.text);
    if (run) st = dh_ckpt_open(ctx, NULL, path, false, &ckpt);
    dh_str_clear(&folder);
    dh_str_printf(&folder, "%s", ckpt ? dh_ckpt_path(ckpt) : path);
    dh_str_printf(&file, "%s/" DH_ADAPTER_FILE, folder.failed ? "" : folder.text);
    if (st == DH_OK && (file.failed || folder.failed)) st = dh_no_memory(ctx);
    if (st == DH_OK) st = check_kind(ctx, folder.text, model);
    if (st == DH_OK) st = dh_weights_open(ctx, file.text, out);
    dh_ckpt_close(ckpt);
    dh_str_fini(&file);
    dh_str_fini(&folder);
    return st;
}

/* ---- writing it ------------------------------------------------------------------------------ */

static json_t *targets_of(const dh_model *model)
{
    json_t *list = json_array();
    const char *name;
    for (size_t i = 0; (name = dh_model_linear(model, i)); i++)
        if (dh_model_adapts(model, name)) json_array_append_new(list, json_string(name));
    return list;
}

dh_status dh_adapter_print_config(dh_ctx *ctx, const dh_model *model, const char *base, char **text)
{
    const double alpha = dh_model_lora_scale(model) * (double)model->lora.rank;
    json_t *alpha_json = alpha < 1e15 && alpha == (double)(int64_t)alpha
                             ? json_integer((json_int_t)alpha)
                             : json_real(alpha);
    json_t *root = json_pack("{ss ss ss sI so sf so ss sb sb sb sb}", "peft_type", "LORA",
                             "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r",
                             (json_int_t)model->lora.rank, "lora_alpha", alpha_json, "lora_dropout",
                             0.0, "target_modules", targets_of(model), "bias", "none",
                             "fan_in_fan_out", model->family == DH_FAMILY_GPT2, "inference_mode", 1,
                             "use_rslora", 0, "use_dora", 0);
    if (!root) return dh_no_memory_while(ctx, "writing " DH_ADAPTER_CONFIG);
    return dh_json_text_exact(ctx, root, JSON_INDENT(2), text);
}

/* ---- merging --------------------------------------------------------------------------------- */

bool dh_adapter_has(const char *name)
{
    return strncmp(name, prefix, sizeof prefix - 1) == 0;
}

/* Whole models and their inner part are saved under names that differ by these. */
static const char *inner_name(const char *name)
{
    static const char *const outer[] = {"transformer.", "model."};
    for (size_t i = 0; i < DH_COUNTOF(outer); i++)
        if (strncmp(name, outer[i], strlen(outer[i])) == 0) return name + strlen(outer[i]);
    return name;
}

/* "...q_proj.lora_A.weight" of the tensor "...q_proj.weight"; NULL: it has none. */
static const weight *factor_of(const dh_weights *w, const char *name, char factor)
{
    char wanted[256];
    const char *inner = inner_name(name), *dot = strrchr(inner, '.');
    if (!dot || strcmp(dot, ".weight") != 0) return NULL;
    snprintf(wanted, sizeof wanted, "%.*s.lora_%c.weight", (int)(dot - inner), inner, factor);
    for (size_t i = 0; i < w->tensors.n; i++)
        if (dh_adapter_has(w->tensors.at[i].name) &&
            strcmp(inner_name(w->tensors.at[i].name + sizeof prefix - 1), wanted) == 0)
            return &w->tensors.at[i];
    return NULL;
}

/* dst [n_rows, n_cols] += scale left [n_rows, rank] right [rank, n_cols], where the left factor may
 * lie by columns. */
static void add_product(int64_t n_rows, int64_t n_cols, int64_t rank, float scale,
                        const float *left, const float *right, float *dst)
{
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < rank; k++) {
            const float factor = scale * left[i * rank + k];
            for (int64_t j = 0; j < n_cols; j++)
                dst[i * n_cols + j] += factor * right[k * n_cols + j];
        }
}

static dh_status read_factors(dh_ctx *ctx, const dh_weights *w, const weight *a, const weight *b,
                              bool turned, int64_t row0, int64_t n_rows, int64_t n_cols,
                              float *left, float *right)
{
    const int64_t rank = a->shape[0];
    /* Stored by columns, W is A^T B^T: rows are those of A's columns. */
    if (turned) {
        DH_TRY(dh_weights_read(ctx, w, a->name, 0, rank, row0, n_rows, true, left, rank));
        DH_TRY(dh_weights_read(ctx, w, b->name, 0, n_cols, 0, rank, true, right, n_cols));
    } else {
        DH_TRY(dh_weights_read(ctx, w, b->name, row0, n_rows, 0, rank, false, left, rank));
        DH_TRY(dh_weights_read(ctx, w, a->name, 0, rank, 0, n_cols, false, right, n_cols));
    }
    DH_TRY(dh_weights_check_finite(ctx, (turned ? a : b)->name, left, n_rows * rank));
    return dh_weights_check_finite(ctx, (turned ? b : a)->name, right, rank * n_cols);
}

dh_status dh_adapter_merge(dh_ctx *ctx, const dh_weights *w, const dh_model *model,
                           const char *name, int64_t row0, int64_t n_rows, int64_t n_cols,
                           float *dst)
{
    const weight *a = factor_of(w, name, 'A'), *b = factor_of(w, name, 'B');
    const int64_t rank = model->lora.rank;
    if (!a && !b) return DH_OK;
    if (!a || !b || a->ndim != 2 || b->ndim != 2 || a->shape[0] != rank || b->shape[1] != rank)
        return dh_fail(ctx, DH_EFORMAT, "the adapter of %s is no pair A [%lld, in], B [out, %lld]",
                       name, (long long)rank, (long long)rank);
    float *left = malloc((size_t)(n_rows * rank) * sizeof *left + 1);
    float *right = malloc((size_t)(rank * n_cols) * sizeof *right + 1);
    dh_status st = left && right ? DH_OK : dh_no_memory_while(ctx, "merging %s", name);
    if (st == DH_OK)
        st = read_factors(ctx, w, a, b, model->family == DH_FAMILY_GPT2, row0, n_rows, n_cols, left,
                          right);
    if (st == DH_OK)
        add_product(n_rows, n_cols, rank, (float)dh_model_lora_scale(model), left, right, dst);
    free(left);
    free(right);
    return st;
}
