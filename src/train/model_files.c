/* Further files of a model folder, apart from weights and tokenizer, that a conversion keeps. They
 * say which tokens begin and end a text, how texts are drawn, and templates of conversations.
 * Training does not use them. Without them other programs would not stop at the right token. */
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/stop.h"
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

/* Takes the document. */
static dh_status write_config(dh_ctx *ctx, json_t *config, const char *path)
{
    char *text;
    DH_TRY(dh_json_text_exact(ctx, config, JSON_INDENT(2), &text));
    dh_status st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}

/* An id as Transformers' config classes take it: a whole number or null, of eos_token_id a list too.
 * 2.0 becomes 2. Steals nothing; out: a new reference, NULL where it is none. */
static json_t *id_of(const json_t *value)
{
    if (json_is_integer(value) || json_is_null(value)) return json_deep_copy(value);
    const double real = json_is_real(value) ? json_real_value(value) : 0.5;
    return real == floor(real) && fabs(real) < 1e15 ? json_integer((json_int_t)real) : NULL;
}

static json_t *ids_of(const json_t *value)
{
    size_t i;
    json_t *one, *list = json_array();
    json_array_foreach((json_t *)value, i, one)
    {
        json_t *id = json_is_null(one) ? NULL : id_of(one);
        if (id && json_array_append_new(list, id) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

static dh_status read_ids(dh_ctx *ctx, const char *key, const json_t *value, const char *path,
                          json_t **ids)
{
    const bool several = strcmp(key, "eos_token_id") == 0;
    *ids = several && json_is_array(value) ? ids_of(value) : id_of(value);
    if (*ids) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: \"%s\" must be a whole number or null%s", path, key,
                   several ? ", or a list of whole numbers" : "");
}

/* Keys of `from` into `to`, which is written back if it had not all of them. Takes both. */
static dh_status merge(dh_ctx *ctx, const char *from_path, json_t *from, const char *path,
                       json_t *to)
{
    int n_new = 0, failed = 0;
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < DH_COUNTOF(kept_keys); i++) {
        const json_t *value = json_object_get(from, kept_keys[i]);
        json_t *ids = NULL;
        if (!value) continue;
        st = read_ids(ctx, kept_keys[i], value, from_path, &ids);
        if (st != DH_OK || json_equal(ids, json_object_get(to, kept_keys[i]))) {
            json_decref(ids);
            continue;
        }
        failed |= json_object_set_new(to, kept_keys[i], ids);
        n_new++;
    }
    json_decref(from);
    if (st == DH_OK && n_new > 0 && !failed) return write_config(ctx, to, path);
    json_decref(to);
    if (st == DH_OK && failed) return dh_no_memory_while(ctx, "writing %s", path);
    return st;
}

static dh_status keep_ids(dh_ctx *ctx, const char *from_dir, const char *to_dir)
{
    dh_str from = DH_STR_INIT, to = DH_STR_INIT;
    json_t *source = NULL, *target = NULL;
    dh_str_printf(&from, "%s/config.json", from_dir);
    dh_str_printf(&to, "%s/config.json", to_dir);
    dh_status st = from.failed || to.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && dh_path_exists(from.text)) {
        st = read_config(ctx, from.text, &source);
        if (st == DH_OK) st = read_config(ctx, to.text, &target);
        if (st == DH_OK)
            st = merge(ctx, from.text, source, to.text, target);
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
    if (!copy) return dh_no_memory(ctx);
    const char *from_dir = dh_path_is_dir(weights) ? weights : dirname(copy);
    dh_status st = keep_ids(ctx, from_dir, to_dir);
    for (size_t i = 0; st == DH_OK && i < DH_COUNTOF(kept_files); i++)
        st = dh_file_copy_into(ctx, from_dir, kept_files[i], to_dir, n_files);
    free(copy);
    return st;
}

/* Ids of the tokenizer into config, where it names none. All that config names then are put into
 * generation. */
static dh_status add_ids(dh_ctx *ctx, const dh_tokenizer *tok, int64_t vocab, json_t *config,
                         json_t *generation)
{
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {{"bos_token_id", dh_tokenizer_bos(tok)}, {"eos_token_id", dh_tokenizer_eos(tok)}};
    int failed = 0;
    for (size_t i = 0; i < DH_COUNTOF(ids); i++) {
        const bool has = ids[i].id >= 0 && ids[i].id < vocab;
        if (!json_object_get(config, ids[i].key))
            failed |= json_object_set_new(config, ids[i].key,
                                          has ? json_integer(ids[i].id) : json_null());
        json_t *id = json_object_get(config, ids[i].key);
        if (!json_is_null(id)) failed |= json_object_set(generation, ids[i].key, id);
    }
    return failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status write_ids(dh_ctx *ctx, const dh_tokenizer *tok, int64_t vocab,
                           const char *config_path, const char *generation_path)
{
    json_t *config;
    DH_TRY(read_config(ctx, config_path, &config));
    json_t *generation = json_object();
    dh_status st = generation ? add_ids(ctx, tok, vocab, config, generation) : dh_no_memory(ctx);
    if (st == DH_OK) st = write_config(ctx, json_incref(config), config_path);
    if (st == DH_OK && json_object_size(generation) > 0 && !dh_path_exists(generation_path))
        st = write_config(ctx, json_incref(generation), generation_path);
    json_decref(config);
    json_decref(generation);
    return st;
}

dh_status dh_model_add_ids(dh_ctx *ctx, const char *spec, int64_t vocab, const char *dir)
{
    dh_tokenizer *tok;
    dh_ctx unread = dh_ctx_like(ctx);
    const dh_status loaded = dh_tokenizer_load(&unread, spec, &tok);
    if (loaded == DH_EUNSUPPORTED) return DH_OK; /* its files are kept for others */
    if (loaded != DH_OK) return dh_fail(ctx, loaded, "%s", unread.message);
    dh_str config = DH_STR_INIT, generation = DH_STR_INIT;
    dh_str_printf(&config, "%s/config.json", dir);
    dh_str_printf(&generation, "%s/generation_config.json", dir);
    dh_status st = config.failed || generation.failed
                       ? dh_no_memory(ctx)
                       : write_ids(ctx, tok, vocab, config.text, generation.text);
    dh_str_fini(&config);
    dh_str_fini(&generation);
    dh_tokenizer_destroy(tok);
    return st;
}
