/* What a model folder holds beside weights and tokenizer, and is kept when it is converted: which
 * tokens begin and end a text, how texts are drawn, templates of conversations. Nothing of it
 * means anything to training; without it others would not stop at the right token. */
#include <libgen.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "train/trained.h"

static const char *const kept_files[] = {"generation_config.json", "special_tokens_map.json",
                                         "added_tokens.json", "chat_template.jinja",
                                         "chat_template.json"};
static const char *const kept_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

enum { MOST_CONFIG_BYTES = 1 << 24 };

static dh_status read_config(dh_ctx *ctx, const char *path, json_t **config)
{
    char *text;
    size_t n;
    json_error_t error;
    DH_TRY(dh_file_read(ctx, path, MOST_CONFIG_BYTES, &text, &n));
    dh_status st = dh_json_read(ctx, text, n, 0, &error, config);
    if (st == DH_OK && !*config)
        st = dh_fail(ctx, DH_EFORMAT, "%s, line %d: %s", path, error.line, error.text);
    free(text);
    return st;
}

/* Keys of `from` into `to`, which is written back if it had not all of them. Takes both. */
static dh_status merge(dh_ctx *ctx, json_t *from, json_t *to, const char *path)
{
    int n_new = 0, failed = 0;
    for (size_t i = 0; i < DH_COUNTOF(kept_keys); i++) {
        json_t *value = json_object_get(from, kept_keys[i]);
        if (!value || json_equal(value, json_object_get(to, kept_keys[i]))) continue;
        failed |= json_object_set(to, kept_keys[i], value);
        n_new++;
    }
    json_decref(from);
    if (n_new == 0 || failed) {
        json_decref(to);
        return failed ? dh_fail(ctx, DH_ENOMEM, "out of memory writing %s", path) : DH_OK;
    }
    char *text;
    DH_TRY(dh_json_text_exact(ctx, to, JSON_INDENT(2), &text));
    dh_status st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}

static dh_status keep_ids(dh_ctx *ctx, const char *from_dir, const char *to_dir)
{
    dh_str from = DH_STR_INIT, to = DH_STR_INIT;
    json_t *source = NULL, *target = NULL;
    dh_str_printf(&from, "%s/config.json", from_dir);
    dh_str_printf(&to, "%s/config.json", to_dir);
    dh_status st =
        from.failed || to.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory for a path") : DH_OK;
    if (st == DH_OK && dh_path_exists(from.text)) {
        st = read_config(ctx, from.text, &source);
        if (st == DH_OK) st = read_config(ctx, to.text, &target);
        if (st == DH_OK)
            st = merge(ctx, source, target, to.text);
        else
            json_decref(source);
    }
    dh_str_fini(&from);
    dh_str_fini(&to);
    return st;
}

bool dh_model_owns_file(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(kept_files); i++)
        if (strcmp(name, kept_files[i]) == 0) return true;
    return dh_tokenizer_owns_file(name);
}

dh_status dh_model_keep_files(dh_ctx *ctx, const char *weights, const char *to_dir, size_t *n_files)
{
    char *copy = strdup(weights);
    if (!copy) return dh_fail(ctx, DH_ENOMEM, "out of memory for a path");
    const char *from_dir = dh_path_is_dir(weights) ? weights : dirname(copy);
    dh_status st = keep_ids(ctx, from_dir, to_dir);
    for (size_t i = 0; st == DH_OK && i < DH_COUNTOF(kept_files); i++)
        st = dh_file_copy_into(ctx, from_dir, kept_files[i], to_dir, n_files);
    free(copy);
    return st;
}
