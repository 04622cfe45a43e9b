/* YAML and --set text to assignments: which setting, which text, where it stood.
 *
 * The document is composed by libyaml, then walked. A mapping whose dotted path is a section is
 * entered. A path that is a setting takes a scalar or a sequence of scalars. No value is judged
 * here, only whether there is one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "config/yaml.h"
#include "settings.h"

typedef struct reader {
    dh_ctx *ctx;
    dh_job *job;        /* its arena takes all strings */
    const char *origin; /* file name, or "--set key=value" */
    bool is_file;
    dh_yaml yaml; /* while with_document() calls `use` */
    dh_assignments *list;
    size_t n_before; /* assignments in the list that came before this text */
} reader;

static bool is_plain(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_empty(const yaml_node_t *node)
{
    return is_plain(node) && node->data.scalar.length == 0;
}

static bool is_null_word(const char *text)
{
    return strcmp(text, "null") == 0 || strcmp(text, "~") == 0;
}

static dh_status scalar_text(const reader *r, const yaml_node_t *node, char **text)
{
    const char *value;
    DH_TRY(dh_yaml_scalar(&r->yaml, node, &value));
    char *copy = dh_arena_strdup(r->job->arena, value);
    if (!copy) return dh_no_memory(r->ctx);
    *text = copy;
    return DH_OK;
}

/* ---- assignments --------------------------------------------------------------------- */

static bool is_model_source(const dh_assignment *a)
{
    return a->setting->type == DH_SET_MODEL;
}

/* In one text a setting, or the model's source, stands once. */
static dh_status check_once(const reader *r, const dh_assignment *a)
{
    for (size_t i = r->n_before; i < r->list->n; i++) {
        const dh_assignment *b = &r->list->at[i];
        if (a->setting == b->setting)
            return dh_fail(r->ctx, DH_EFORMAT, "%s: set twice; first at %s", a->where, b->where);
        if (is_model_source(a) && is_model_source(b))
            return dh_fail(r->ctx, DH_EFORMAT,
                           "%s: the model comes either from a preset or from a config; first at %s",
                           a->where, b->where);
    }
    return DH_OK;
}

/* A whole new model drops what earlier texts said about it. */
static void drop_model_settings(dh_assignments *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->n; i++)
        if (strncmp(list->at[i].setting->key, "model", 5) != 0) list->at[kept++] = list->at[i];
    list->n = kept;
}

static dh_status add(reader *r, const dh_assignment *a)
{
    DH_TRY(check_once(r, a));
    if (strcmp(a->setting->key, "model") == 0 && !r->is_file) {
        drop_model_settings(r->list);
        r->n_before = DH_MIN(r->n_before, r->list->n);
    }
    return dh_vec_push(r->list, *a) ? DH_OK : dh_no_memory(r->ctx);
}

/* null: the default. Settings of the model have none of their own. */
static dh_status apply_null(const reader *r, dh_assignment *a)
{
    char *text = dh_arena_strdup(r->job->arena, a->setting->fallback ? a->setting->fallback : "");
    if (!text) return dh_no_memory(r->ctx);
    a->items[0] = text;
    return DH_OK;
}

static dh_status read_items(const reader *r, const yaml_node_t *node, dh_assignment *a)
{
    if (node->type == YAML_SCALAR_NODE) {
        a->n = 1;
        if (!(a->items = DH_NEW_N(r->job->arena, char *, 1))) return dh_no_memory(r->ctx);
        return scalar_text(r, node, &a->items[0]);
    }
    const yaml_node_item_t *first = node->data.sequence.items.start;
    a->is_list = true;
    a->n = (size_t)(node->data.sequence.items.top - first);
    if (!(a->items = DH_NEW_N(r->job->arena, char *, a->n + 1))) return dh_no_memory(r->ctx);
    for (size_t i = 0; i < a->n; i++)
        DH_TRY(scalar_text(r, dh_yaml_node(&r->yaml, first[i]), &a->items[i]));
    return DH_OK;
}

/* ---- mappings that are values -------------------------------------------------------------- */

static dh_status flow_value(const reader *r, const yaml_node_t *node, dh_str *out)
{
    char *text;
    if (node->type != YAML_SEQUENCE_NODE) {
        DH_TRY(scalar_text(r, node, &text));
        dh_str_printf(out, "%s", text);
        return DH_OK;
    }
    const yaml_node_item_t *item = node->data.sequence.items.start;
    dh_str_printf(out, "[");
    for (; item < node->data.sequence.items.top; item++) {
        DH_TRY(scalar_text(r, dh_yaml_node(&r->yaml, *item), &text));
        dh_str_printf(out, "%s%s", item > node->data.sequence.items.start ? ", " : "", text);
    }
    dh_str_printf(out, "]");
    return DH_OK;
}

/* {key: value, key: [value, ...]}. Commas between brackets of a value, which YAML reads as those
 * of its own sequence, are put back by this. */
static dh_status flow_text(const reader *r, const yaml_node_t *node, dh_str *out)
{
    const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
    dh_str_printf(out, "{");
    for (; pair < node->data.mapping.pairs.top; pair++) {
        char *key;
        DH_TRY(scalar_text(r, dh_yaml_node(&r->yaml, pair->key), &key));
        dh_str_printf(out, "%s%s: ", pair > node->data.mapping.pairs.start ? ", " : "", key);
        DH_TRY(flow_value(r, dh_yaml_node(&r->yaml, pair->value), out));
    }
    dh_str_printf(out, "}");
    return DH_OK;
}

static dh_status read_flow_text(const reader *r, const yaml_node_t *node, dh_assignment *a)
{
    dh_str text = DH_STR_INIT;
    dh_status st = flow_text(r, node, &text);
    a->n = 1;
    a->items = DH_NEW_N(r->job->arena, char *, 1);
    if (st == DH_OK && a->items && !text.failed)
        a->items[0] = dh_arena_strdup(r->job->arena, text.text);
    dh_str_fini(&text);
    if (st != DH_OK) return st;
    return a->items && a->items[0] ? DH_OK : dh_no_memory(r->ctx);
}

/* origin "--set k=v" says the key already. */
static char *describe_place(const reader *r, const yaml_node_t *node, const dh_setting *s)
{
    char at[256];
    dh_yaml_place(&r->yaml, node, at, sizeof at);
    return r->is_file ? dh_arena_printf(r->job->arena, "%s: %s", at, s->key)
                      : dh_arena_strdup(r->job->arena, at);
}

static dh_status read_setting(reader *r, const dh_setting *s, const yaml_node_t *node)
{
    dh_assignment a = {.setting = s, .from_file = r->is_file};
    if (!(a.where = describe_place(r, node, s))) return dh_no_memory(r->ctx);
    if (node->type == YAML_MAPPING_NODE && s->type == DH_SET_FLOW) {
        DH_TRY(read_flow_text(r, node, &a));
        return add(r, &a);
    }
    if (node->type == YAML_MAPPING_NODE)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: a mapping stands where a value is expected",
                       a.where);
    if (is_empty(node))
        return dh_fail(r->ctx, DH_EFORMAT, "%s: the value is missing (null means the default)",
                       a.where);
    DH_TRY(read_items(r, node, &a));
    if (is_plain(node) && is_null_word(a.items[0])) {
        if (!s->fallback) return DH_OK;
        DH_TRY(apply_null(r, &a));
    }
    return add(r, &a);
}

/* ---- mappings ------------------------------------------------------------------------------ */

static dh_status unknown_key(const reader *r, const char *where, const char *path)
{
    dh_str hint = DH_STR_INIT;
    dh_setting_suggest(path, &hint);
    dh_fail(r->ctx, DH_EINVAL, "%s: unknown setting \"%.80s\"; %s", where, path,
            hint.text ? hint.text : "");
    dh_str_fini(&hint);
    return DH_EINVAL;
}

/* The value of the dotted key `path`: a section's mapping or a setting's value. Sections nest at
 * most three deep, so an alias to an outer mapping ends in an unknown key. */
static dh_status read_value(void *self, const char *path, const yaml_node_t *key,
                            const yaml_node_t *node)
{
    reader *r = self;
    char at[256];
    bool section = dh_setting_is_section(path);
    const dh_setting *s = dh_setting_find(path);
    if (section && node->type == YAML_MAPPING_NODE)
        return dh_yaml_each(&r->yaml, path, node, read_value, r);
    if (section && is_empty(node)) return DH_OK; /* all its keys commented out */
    if (s) return read_setting(r, s, node);
    if (!section) return unknown_key(r, dh_yaml_place(&r->yaml, key, at, sizeof at), path);
    return dh_fail(r->ctx, DH_EFORMAT, "%s: \"%s\" is a section: it takes a mapping, not %s",
                   dh_yaml_place(&r->yaml, node, at, sizeof at), path, dh_yaml_kind(node));
}

/* ---- documents ------------------------------------------------------------------------------ */

/* Run `use` on the root of the only document of the text (NULL when empty). */
static dh_status with_document(reader *r, const char *text, size_t n_bytes, const char *path,
                               dh_status (*use)(reader *, const char *path, const yaml_node_t *))
{
    DH_TRY(dh_yaml_open(r->ctx, r->origin, r->is_file, text, n_bytes, &r->yaml));
    dh_status st = use(r, path, dh_yaml_root(&r->yaml));
    dh_yaml_close(&r->yaml);
    return st;
}

static dh_status read_root(reader *r, const char *path, const yaml_node_t *root)
{
    char at[256];
    if (!root || is_empty(root)) return DH_OK;
    if (root->type != YAML_MAPPING_NODE)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: a job file is a mapping of settings, not %s",
                       dh_yaml_place(&r->yaml, root, at, sizeof at), dh_yaml_kind(root));
    return dh_yaml_each(&r->yaml, path, root, read_value, r);
}

dh_status dh_job_read_yaml(dh_ctx *ctx, dh_job *job, const char *text, size_t n_bytes,
                           const char *file_name, dh_assignments *list)
{
    reader r = {.ctx = ctx,
                .job = job,
                .origin = file_name,
                .is_file = true,
                .list = list,
                .n_before = list->n};
    return with_document(&r, text, n_bytes, "", read_root);
}

/* ---- overrides ------------------------------------------------------------------------------ */

static dh_status read_flow(reader *r, const char *path, const yaml_node_t *root)
{
    return root ? read_value(r, path, root, root) : DH_OK;
}

/* The text after "=", taken as it is: no quoting rules between shell and job. */
static dh_status read_bare(reader *r, const char *path, const char *value)
{
    const dh_setting *s = dh_setting_find(path);
    if (!s && dh_setting_is_section(path))
        return dh_fail(r->ctx, DH_EINVAL,
                       "%s: \"%s\" is a section: give %s.<key>=value or %s={key: value}", r->origin,
                       path, path, path);
    if (!s) return unknown_key(r, r->origin, path);
    dh_assignment a = {.setting = s, .n = 1};
    a.where = dh_arena_strdup(r->job->arena, r->origin);
    a.items = DH_NEW_N(r->job->arena, char *, 1);
    if (!a.where || !a.items) return dh_no_memory(r->ctx);
    a.items[0] = dh_arena_strdup(r->job->arena, value);
    if (!a.items[0]) return dh_no_memory(r->ctx);
    if (is_null_word(value)) {
        if (!s->fallback) return DH_OK;
        DH_TRY(apply_null(r, &a));
    }
    return add(r, &a);
}

/* A value in [ ] or { } is YAML, anything else is taken as it stands. */
dh_status dh_job_read_override(dh_ctx *ctx, dh_job *job, const char *key_value,
                               dh_assignments *list)
{
    const char *equal = strchr(key_value, '=');
    char *origin = dh_arena_printf(job->arena, "--set %s", key_value);
    if (!origin) return dh_no_memory(ctx);
    if (!equal || equal == key_value)
        return dh_fail(ctx, DH_EINVAL, "%s: must be section.key=value", origin);
    char *key = dh_arena_printf(job->arena, "%.*s", (int)DH_MIN(equal - key_value, 200), key_value);
    if (!key) return dh_no_memory(ctx);
    reader r = {.ctx = ctx, .job = job, .origin = origin, .list = list, .n_before = list->n};
    const char *value = equal + 1;
    if (*value == '[' || *value == '{')
        return with_document(&r, value, strlen(value), key, read_flow);
    return read_bare(&r, key, value);
}
