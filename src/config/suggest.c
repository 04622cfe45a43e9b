/* Suggestions: what was meant by a word that is no setting, or no value of one. */
#include "settings.h"

#include "flags.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/c_locale.h"

enum { MOST_SETTINGS = 512, WORD_BYTES = 96 };

static const dh_setting *all_settings(size_t *n)
{
    const dh_setting *settings = dh_settings(n);
    DH_CHECK(*n <= MOST_SETTINGS, "%zu settings", *n);
    return settings;
}

/* ---- near ones ----------------------------------------------------------------------- */

/* A typing error in the last part, within its section. */
static const char *near_in_section(const char *key)
{
    size_t n_settings, n = 0;
    const dh_setting *settings = all_settings(&n_settings);
    const char *names[MOST_SETTINGS];
    for (size_t i = 0; i < n_settings; i++)
        if (dh_setting_same_section(settings[i].key, key))
            names[n++] = dh_setting_last_part(settings[i].key);
    const char *near = dh_nearest(dh_setting_last_part(key), names, n);
    for (size_t i = 0; near && i < n_settings; i++)
        if (dh_setting_same_section(settings[i].key, key) &&
            dh_setting_last_part(settings[i].key) == near)
            return settings[i].key;
    return NULL;
}

/* The right name in the wrong place. */
static const char *same_name_elsewhere(const char *key)
{
    size_t n_settings;
    const dh_setting *settings = all_settings(&n_settings);
    for (size_t i = 0; i < n_settings; i++)
        if (strcmp(dh_setting_last_part(settings[i].key), dh_setting_last_part(key)) == 0 ||
            dh_setting_has_alias(&settings[i], dh_setting_last_part(key)))
            return settings[i].key;
    return NULL;
}

/* A typing error in the name of a section ("optimiser"); an index into settings,
 * whose key begins with the section meant, or -1. */
static int near_section(const char *key)
{
    size_t n_settings;
    const dh_setting *settings = all_settings(&n_settings);
    char names[MOST_SETTINGS][24];
    const char *at[MOST_SETTINGS];
    for (size_t i = 0; i < n_settings; i++) {
        snprintf(names[i], sizeof names[i], "%.*s", (int)strcspn(settings[i].key, "."),
                 settings[i].key);
        at[i] = names[i];
    }
    const char *near = strchr(key, '.') ? NULL : dh_nearest(key, at, n_settings);
    for (size_t i = 0; near && i < n_settings; i++)
        if (at[i] == near) return (int)i;
    return -1;
}

/* A typing error anywhere in the key. */
static const char *near_anywhere(const char *key)
{
    size_t n_settings;
    const dh_setting *settings = all_settings(&n_settings);
    const char *names[MOST_SETTINGS];
    for (size_t i = 0; i < n_settings; i++) names[i] = settings[i].key;
    return dh_nearest(key, names, n_settings);
}

/* ---- words of others ------------------------------------------------------------------ */

/* Words of other projects that are neither aliases nor flags (flags.h): for a setting, or for a value
 * of one. */
static const struct {
    const char *of; /* setting of which it is a value; NULL: it is a key, or the last part of one */
    const char *word; /* in any case; "-" and "_" of values do not count */
    const char *here;
} foreign[] = {
    {NULL, "vpp", "parallel.virtual_stages"},
    {NULL, "vp", "parallel.virtual_stages"},
    {NULL, "virtual_pipeline_model_parallel_size", "parallel.virtual_stages"},
    {NULL, "etp", "parallel.expert_tp"},
    {NULL, "fsdp", "parallel.zero: 3"},
    {NULL, "zero1", "parallel.zero: 1 (0 for zero1: false)"},
    {NULL, "precision", "train.dtype"},
    {NULL, "mixed_precision", "train.dtype"},
    {NULL, "gradient_accumulation_steps", "train.batch and train.micro_batch"},
    {NULL, "activation_checkpoint", "train.recompute"},
    {NULL, "optimizer", "the optimizer is AdamW (optimizer.lr, ...)"},
    {NULL, "optimizer.name", "the optimizer is AdamW (optimizer.lr, ...)"},
    {NULL, "optimizer.type", "the optimizer is AdamW (optimizer.lr, ...)"},
    {NULL, "sgd", "the optimizer is AdamW (optimizer.lr, ...)"},
    {NULL, "adam", "the optimizer is AdamW (optimizer.lr, ...)"},
    {NULL, "max_seq_len", "train.seq_len"},
    {"train.dtype", "fp8", "train.fp8: hybrid, with train.dtype: bf16"},
    {"train.dtype", "float8", "train.fp8: hybrid, with train.dtype: bf16"},
    {"train.dtype", "fp16", "bf16 (float16 is not trained)"},
    {"train.dtype", "float16", "bf16 (float16 is not trained)"},
    {"train.dtype", "half", "bf16 (float16 is not trained)"},
    {"train.dtype", "bfloat16", "bf16"},
    {"train.dtype", "fp32", "f32"},
    {"train.dtype", "float32", "f32"},
    {"parallel.schedule", "interleaved", "interleaved-1f1b"},
    {"parallel.schedule", "interleaved1f1b", "interleaved-1f1b"},
    {"parallel.schedule", "vpp", "interleaved-1f1b"},
    {"parallel.schedule", "loopedbfs", "looped-bfs"},
    {"parallel.schedule", "interleavedzerobubble", "interleaved-zb"},
    {"parallel.schedule", "zbvzerobubble", "zb-v"},
    {"parallel.schedule", "dual-pipe-v", "dualpipev"},
    {"parallel.schedule", "zero-bubble", "zb-h1"},
    {"parallel.schedule", "chimera", "bidirectional"},
    {"parallel.schedule", "pipedream", "1f1b"},
    {"strategy", "none", "sequential"},
    {"strategy", "off", "sequential"},
    {"strategy", "megatron", "sequential, with system: megatron-core"},
    {"strategy", "megatron-lm", "sequential, with system: megatron-core"},
    {"strategy", "megascale", "intra-batch, with system: megascale"},
    {"strategy", "async-tp", "intra-batch"},
    {"strategy", "tp-comm-overlap", "intra-batch"},
    {"strategy", "deepseek", "dualpipe"},
    {"system", "megatron", "megatron-core"},
    {"system", "megatron-lm", "megatron-core"},
    {"system", "mcore", "megatron-core"},
    {"system", "pytorch", "torchtitan"},
    {"system", "fsdp", "torchtitan"},
    {"system", "llm-foundry", "composer"},
    {"model", "llama-3.1-8b", "llama3-8b (the same shape)"},
    {"model", "llama-3.1-70b", "llama3-70b (the same shape)"},
    {"model", "llama-3.3-70b", "llama3-70b (the same shape)"},
};

/* NULL: nobody calls a setting so. A name of a setting's own is not looked for. */
static const char *foreign_name(const char *key)
{
    for (size_t i = 0; i < DH_COUNTOF(foreign); i++)
        if (!foreign[i].of && (dh_is_same_word(key, foreign[i].word) ||
                               dh_is_same_word(dh_setting_last_part(key), foreign[i].word)))
            return foreign[i].here;
    return NULL;
}

/* The same for flags (flags.h). */
static const char *flag_name(const char *key)
{
    dh_project project;
    const dh_flag *flag = dh_flag_by_word(key, &project);
    return flag ? flag->here : NULL;
}

/* Letters, digits and dots in lower case: "Llama-3.1_8B" as "llama3.18b". */
static void plain_word(const char *text, char *buf, size_t cap)
{
    size_t n = 0;
    for (; *text && n + 1 < cap; text++)
        if (*text != '-' && *text != '_' && *text != ' ') buf[n++] = *text;
    buf[n] = '\0';
    dh_to_lower(buf);
}

static bool is_value(const char *plain, const char *word)
{
    static const char pytorch[] = "schedule"; /* ScheduleInterleaved1F1B */
    char own[WORD_BYTES];
    plain_word(word, own, sizeof own);
    if (strcmp(plain, own) == 0) return true;
    return strncmp(plain, pytorch, strlen(pytorch)) == 0 &&
           strcmp(plain + strlen(pytorch), own) == 0;
}

const char *dh_foreign_value(const char *setting, const char *word)
{
    char plain[WORD_BYTES];
    plain_word(word, plain, sizeof plain);
    for (size_t i = 0; i < DH_COUNTOF(foreign); i++)
        if (foreign[i].of && strcmp(foreign[i].of, setting) == 0 &&
            is_value(plain, foreign[i].word))
            return foreign[i].here;
    return NULL;
}

const char *dh_foreign_word(const char *word, const char **setting)
{
    *setting = NULL;
    const char *here = foreign_name(word);
    for (size_t i = 0; i < DH_COUNTOF(foreign) && !here; i++) {
        if (!foreign[i].of) continue;
        here = dh_foreign_value(foreign[i].of, word);
        *setting = here ? foreign[i].of : NULL;
    }
    return here ? here : flag_name(word);
}

/* Whether a name, as a hub has it, says more than a preset's: "Qwen2.5-7B-Instruct". */
static size_t within(const char *plain, const char *name)
{
    char own[WORD_BYTES];
    plain_word(name, own, sizeof own);
    return strstr(plain, own) ? strlen(own) : 0;
}

const char *dh_foreign_model(const char *name, const char *const *presets, size_t n)
{
    char plain[WORD_BYTES];
    const char *best = NULL;
    size_t most = 0;
    plain_word(name, plain, sizeof plain);
    for (size_t i = 0; i < DH_COUNTOF(foreign); i++)
        if (foreign[i].of && strcmp(foreign[i].of, "model") == 0 && within(plain, foreign[i].word))
            return foreign[i].here;
    for (size_t i = 0; i < n; i++) {
        const size_t length = within(plain, presets[i]);
        if (length > most) best = presets[i];
        most = DH_MAX(most, length);
    }
    return best ? best : dh_nearest(name, presets, n);
}

/* ---- what is said --------------------------------------------------------------------- */

static void list_section(const char *key, dh_str *out)
{
    size_t n_settings;
    const dh_setting *settings = all_settings(&n_settings);
    const char *sep = "valid are ";
    for (size_t i = 0; i < n_settings; i++)
        if (dh_setting_same_section(settings[i].key, key)) {
            dh_str_printf(out, "%s%s", sep, settings[i].key);
            sep = ", ";
        }
    if (*sep == 'v') dh_str_printf(out, "`dhelix train --help` lists all settings");
}

void dh_setting_suggest(const char *key, dh_str *out)
{
    size_t n_settings;
    const dh_setting *settings = all_settings(&n_settings);
    const int section = near_section(key);
    const char *elsewhere = same_name_elsewhere(key), *word = foreign_name(key);
    const char *other = word || elsewhere ? word : flag_name(key);
    const char *near = elsewhere && !strchr(key, '.') ? elsewhere : near_in_section(key);
    if (other) {
        dh_str_printf(out, "here: %s", other);
        return;
    }
    if (!near && section >= 0) {
        const char *name = settings[section].key;
        dh_str_printf(out, "did you mean \"%.*s\"?", (int)strcspn(name, "."), name);
        return;
    }
    if (!near) near = elsewhere;
    if (!near) near = near_anywhere(key);
    if (!near) {
        list_section(key, out);
        return;
    }
    dh_str_printf(out, "did you mean \"%s\"", near);
    for (size_t i = 0; i < n_settings; i++) /* of one name in several sections */
        if (near == elsewhere && settings[i].key != near &&
            strcmp(dh_setting_last_part(settings[i].key), dh_setting_last_part(near)) == 0)
            dh_str_printf(out, " or \"%s\"", settings[i].key);
    dh_str_printf(out, "?");
}
