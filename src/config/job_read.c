/* YAML and --set text to assignments: which setting, which text, where it stood.
 *
 * The document is composed by libyaml, then walked: a mapping whose dotted path
 * is a section is entered, a path that is a setting takes a scalar or a sequence
 * of scalars. No value is judged here but "is there one". */
#include "settings.h"

#include "dhelix/yaml_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    dh_ctx *ctx;
    dh_job *job;         /* its arena takes all strings */
    yaml_document_t doc; /* while with_document() calls `use` */
    const char *origin;  /* file name, or "--set key=value" */
    bool is_file;
    dh_assignments *list;
    size_t n_before; /* assignments in the list that came before this text */
} reader;

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory reading the job");
}

/* "job.yaml:3:7" (1-based), or "--set key=value". */
/* libyaml's getter changes nothing but takes the document as if it did. */
static yaml_node_t *node_at(const reader *r, int id)
{
    return yaml_document_get_node((yaml_document_t *)(uintptr_t)&r->doc, id);
}

static const char *place(const reader *r, const yaml_node_t *node, char *buf, size_t cap)
{
    if (r->is_file)
        snprintf(buf, cap, "%.200s:%zu:%zu", r->origin, node->start_mark.line + 1,
                 node->start_mark.column + 1);
    else
        snprintf(buf, cap, "%.200s", r->origin);
    return buf;
}

static const char *node_kind(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE    ? "a mapping"
           : node->type == YAML_SEQUENCE_NODE ? "a sequence"
                                              : "a plain value";
}

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
    char at[256];
    if (node->type != YAML_SCALAR_NODE)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: %s stands where a plain value is expected",
                       place(r, node, at, sizeof at), node_kind(node));
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != node->data.scalar.length)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: the text contains a NUL byte",
                       place(r, node, at, sizeof at));
    char *copy = dh_arena_strdup(r->job->arena, value);
    if (!copy) return no_memory(r->ctx);
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
    return dh_vec_push(r->list, *a) ? DH_OK : no_memory(r->ctx);
}

/* null: the default. Settings of the model have none of their own. */
static dh_status apply_null(const reader *r, dh_assignment *a)
{
    char *text = dh_arena_strdup(r->job->arena, a->setting->fallback ? a->setting->fallback : "");
    if (!text) return no_memory(r->ctx);
    a->items[0] = text;
    return DH_OK;
}

static dh_status read_items(const reader *r, const yaml_node_t *node, dh_assignment *a)
{
    if (node->type == YAML_SCALAR_NODE) {
        a->n = 1;
        if (!(a->items = DH_NEW_N(r->job->arena, char *, 1))) return no_memory(r->ctx);
        return scalar_text(r, node, &a->items[0]);
    }
    const yaml_node_item_t *first = node->data.sequence.items.start;
    a->is_list = true;
    a->n = (size_t)(node->data.sequence.items.top - first);
    if (!(a->items = DH_NEW_N(r->job->arena, char *, a->n + 1))) return no_memory(r->ctx);
    for (size_t i = 0; i < a->n; i++) DH_TRY(scalar_text(r, node_at(r, first[i]), &a->items[i]));
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
        DH_TRY(scalar_text(r, node_at(r, *item), &text));
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
        DH_TRY(scalar_text(r, node_at(r, pair->key), &key));
        dh_str_printf(out, "%s%s: ", pair > node->data.mapping.pairs.start ? ", " : "", key);
        DH_TRY(flow_value(r, node_at(r, pair->value), out));
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
    return a->items && a->items[0] ? DH_OK : no_memory(r->ctx);
}

/* origin "--set k=v" says the key already. */
static char *describe_place(const reader *r, const yaml_node_t *node, const dh_setting *s)
{
    char at[256];
    place(r, node, at, sizeof at);
    return r->is_file ? dh_arena_printf(r->job->arena, "%s: %s", at, s->key)
                      : dh_arena_strdup(r->job->arena, at);
}

static dh_status read_setting(reader *r, const dh_setting *s, const yaml_node_t *node)
{
    dh_assignment a = {.setting = s, .from_file = r->is_file};
    if (!(a.where = describe_place(r, node, s))) return no_memory(r->ctx);
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

static dh_status unknown_key(const reader *r, const yaml_node_t *node, const char *path)
{
    char at[256];
    dh_str hint = DH_STR_INIT;
    dh_setting_suggest(path, &hint);
    dh_fail(r->ctx, DH_EINVAL, "%s: unknown setting \"%.80s\"; %s", place(r, node, at, sizeof at),
            path, hint.text ? hint.text : "");
    dh_str_fini(&hint);
    return DH_EINVAL;
}

static dh_status check_key_once(const reader *r, const yaml_node_t *mapping,
                                const yaml_node_pair_t *pair, const char *key)
{
    char at[256], first[256];
    const yaml_node_pair_t *p = mapping->data.mapping.pairs.start;
    for (; p < pair; p++) {
        const yaml_node_t *other = node_at(r, p->key);
        if (strcmp((const char *)other->data.scalar.value, key) != 0) continue;
        const yaml_node_t *node = node_at(r, pair->key);
        return dh_fail(r->ctx, DH_EFORMAT, "%s: \"%.80s\" is set twice; first at %s",
                       place(r, node, at, sizeof at), key, place(r, other, first, sizeof first));
    }
    return DH_OK;
}

static dh_status read_mapping(reader *r, const char *path, const yaml_node_t *mapping);

/* The value of the dotted key `path`: a section's mapping or a setting's value. */
static dh_status read_value(reader *r, const char *path, const yaml_node_t *key_node,
                            const yaml_node_t *node)
{
    char at[256];
    bool section = dh_setting_is_section(path);
    const dh_setting *s = dh_setting_find(path);
    if (section && node->type == YAML_MAPPING_NODE) return read_mapping(r, path, node);
    if (section && is_empty(node)) return DH_OK; /* all its keys commented out */
    if (s) return read_setting(r, s, node);
    if (!section) return unknown_key(r, key_node, path);
    return dh_fail(r->ctx, DH_EFORMAT, "%s: \"%s\" is a section: it takes a mapping, not %s",
                   place(r, node, at, sizeof at), path, node_kind(node));
}

/* Sections nest at most three deep, so an alias to an outer mapping ends in an
 * unknown key. */
static dh_status read_mapping(reader *r, const char *path, const yaml_node_t *mapping)
{
    const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
    for (; pair < mapping->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key_node = node_at(r, pair->key);
        char *key;
        DH_TRY(scalar_text(r, key_node, &key));
        DH_TRY(check_key_once(r, mapping, pair, key));
        char *full = *path ? dh_arena_printf(r->job->arena, "%s.%s", path, key) : key;
        if (!full) return no_memory(r->ctx);
        DH_TRY(read_value(r, full, key_node, node_at(r, pair->value)));
    }
    return DH_OK;
}

/* ---- documents ------------------------------------------------------------------------------ */

static dh_status yaml_failure(dh_ctx *ctx, const yaml_parser_t *parser, const char *origin,
                              bool is_file)
{
    const char *problem = parser->problem ? parser->problem : "cannot be read";
    if (parser->error == YAML_MEMORY_ERROR) return no_memory(ctx);
    if (!is_file) return dh_fail(ctx, DH_EFORMAT, "%s: %s", origin, problem);
    if (parser->error == YAML_READER_ERROR)
        return dh_fail(ctx, DH_EFORMAT, "%s: byte %zu: %s", origin, parser->problem_offset,
                       problem);
    return dh_fail(ctx, DH_EFORMAT, "%s:%zu:%zu: %s%s%s", origin, parser->problem_mark.line + 1,
                   parser->problem_mark.column + 1, problem, parser->context ? ", " : "",
                   parser->context ? parser->context : "");
}

/* Run `use` on the root of the only document of the text (NULL when empty). */
static dh_status with_document(reader *r, const char *text, size_t n_bytes, const char *path,
                               dh_status (*use)(reader *, const char *path, const yaml_node_t *))
{
    yaml_parser_t parser;
    yaml_document_t rest;
    DH_TRY(dh_yaml_check_depth(r->ctx, r->origin, text, n_bytes));
    if (!yaml_parser_initialize(&parser)) return no_memory(r->ctx);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n_bytes);
    dh_status st;
    if (!yaml_parser_load(&parser, &r->doc)) {
        st = yaml_failure(r->ctx, &parser, r->origin, r->is_file);
        goto err_parser;
    }
    const yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    if (root) {
        if (!yaml_parser_load(&parser, &rest)) {
            st = yaml_failure(r->ctx, &parser, r->origin, r->is_file);
            goto err_document;
        }
        bool more = yaml_document_get_root_node(&rest) != NULL;
        yaml_document_delete(&rest);
        if (more) {
            st = dh_fail(r->ctx, DH_EFORMAT, "%s: holds more than one YAML document", r->origin);
            goto err_document;
        }
    }
    st = use(r, path, root);
err_document:
    yaml_document_delete(&r->doc);
err_parser:
    yaml_parser_delete(&parser);
    return st;
}

static dh_status read_root(reader *r, const char *path, const yaml_node_t *root)
{
    char at[256];
    if (!root || is_empty(root)) return DH_OK;
    if (root->type != YAML_MAPPING_NODE)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: a job file is a mapping of settings, not %s",
                       place(r, root, at, sizeof at), node_kind(root));
    return read_mapping(r, path, root);
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
    if (!s) {
        yaml_node_t nowhere = {0};
        return unknown_key(r, &nowhere, path);
    }
    dh_assignment a = {.setting = s, .n = 1};
    a.where = dh_arena_strdup(r->job->arena, r->origin);
    a.items = DH_NEW_N(r->job->arena, char *, 1);
    if (!a.where || !a.items) return no_memory(r->ctx);
    a.items[0] = dh_arena_strdup(r->job->arena, value);
    if (!a.items[0]) return no_memory(r->ctx);
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
    if (!origin) return no_memory(ctx);
    if (!equal || equal == key_value)
        return dh_fail(ctx, DH_EINVAL, "%s: must be section.key=value", origin);
    char *key = dh_arena_printf(job->arena, "%.*s", (int)DH_MIN(equal - key_value, 200), key_value);
    if (!key) return no_memory(ctx);
    reader r = {.ctx = ctx, .job = job, .origin = origin, .list = list, .n_before = list->n};
    const char *value = equal + 1;
    if (*value == '[' || *value == '{')
        return with_document(&r, value, strlen(value), key, read_flow);
    return read_bare(&r, key, value);
}
