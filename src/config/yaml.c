/* YAML texts, composed by libyaml. Texts that it would read slowly are refused before. It goes over
 * all open collections at every token, so deep nesting takes time squared. Nothing here nests
 * deeply. */
#include "config/yaml.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

enum { MAX_DEPTH = 32 };

static dh_status no_memory(dh_ctx *ctx, const char *origin)
{
    return dh_no_memory_while(ctx, "reading %s", origin);
}

/* ---- depth ----------------------------------------------------------------------------------- */

/* +1 where a collection opens, -1 where one closes. */
static int step_of(yaml_event_type_t type)
{
    const bool opens = type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT;
    const bool closes = type == YAML_SEQUENCE_END_EVENT || type == YAML_MAPPING_END_EVENT;
    return opens - closes;
}

/* A text that cannot be parsed is found again when it is composed, and reported then. */
static dh_status walk(dh_ctx *ctx, yaml_parser_t *parser, const char *origin)
{
    yaml_event_t event;
    for (int depth = 0; yaml_parser_parse(parser, &event);) {
        const bool last = event.type == YAML_STREAM_END_EVENT || event.type == YAML_NO_EVENT;
        const yaml_mark_t mark = event.start_mark;
        depth += step_of(event.type);
        yaml_event_delete(&event);
        if (depth > MAX_DEPTH)
            return dh_fail(ctx, DH_EFORMAT,
                           "%.200s:%zu:%zu: more than %d collections inside each other", origin,
                           mark.line + 1, mark.column + 1, MAX_DEPTH);
        if (last) break;
    }
    return DH_OK;
}

static bool parser_init(yaml_parser_t *parser, const char *text, size_t n_bytes)
{
    if (!yaml_parser_initialize(parser)) return false;
    yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(parser, (const unsigned char *)text, n_bytes);
    return true;
}

static dh_status check_depth(dh_ctx *ctx, const char *origin, const char *text, size_t n_bytes)
{
    yaml_parser_t parser;
    if (!parser_init(&parser, text, n_bytes)) return no_memory(ctx, origin);
    dh_status st = walk(ctx, &parser, origin);
    yaml_parser_delete(&parser);
    return st;
}

/* ---- documents ------------------------------------------------------------------------------ */

/* The byte at a mark, which counts lines and characters of UTF-8. */
static char character_at(const dh_yaml *y, yaml_mark_t mark)
{
    size_t at = 0;
    for (size_t line = 0; line < mark.line && at < y->n_bytes; at++) line += y->text[at] == '\n';
    for (size_t column = 0; at < y->n_bytes; at++) {
        if (((unsigned char)y->text[at] & 0xc0) == 0x80) continue;
        if (column++ == mark.column) return y->text[at];
    }
    return '\0';
}

/* libyaml names every problem except a lack of memory, which is not always its error either. */
static dh_status parser_failure(const dh_yaml *y, const yaml_parser_t *parser)
{
    const char *problem = parser->problem;
    if (parser->error == YAML_MEMORY_ERROR || !problem) return no_memory(y->ctx, y->origin);
    if (!y->is_file) return dh_fail(y->ctx, DH_EFORMAT, "%.200s: %s", y->origin, problem);
    if (parser->error == YAML_READER_ERROR)
        return dh_fail(y->ctx, DH_EFORMAT, "%.200s: byte %zu: %s", y->origin,
                       parser->problem_offset, problem);
    if (strstr(problem, "cannot start any token"))
        return dh_fail(y->ctx, DH_EFORMAT, "%.200s:%zu:%zu: %s", y->origin,
                       parser->problem_mark.line + 1, parser->problem_mark.column + 1,
                       character_at(y, parser->problem_mark) == '\t'
                           ? "a tab: lines are indented by blanks"
                           : "@, ` or % begins a text here: put it in quotes");
    return dh_fail(y->ctx, DH_EFORMAT, "%.200s:%zu:%zu: %s%s%s", y->origin,
                   parser->problem_mark.line + 1, parser->problem_mark.column + 1, problem,
                   parser->context ? ", " : "", parser->context ? parser->context : "");
}

/* Another document may follow, or the end. */
static dh_status check_only(const dh_yaml *y, yaml_parser_t *parser)
{
    yaml_document_t rest;
    if (!yaml_parser_load(parser, &rest)) return parser_failure(y, parser);
    const bool more = yaml_document_get_root_node(&rest) != NULL;
    yaml_document_delete(&rest);
    if (!more) return DH_OK;
    return dh_fail(y->ctx, DH_EFORMAT, "%.200s: holds more than one YAML document", y->origin);
}

dh_status dh_yaml_open(dh_ctx *ctx, const char *origin, bool is_file, const char *text,
                       size_t n_bytes, dh_yaml *yaml)
{
    yaml_parser_t parser;
    *yaml = (dh_yaml){
        .ctx = ctx, .origin = origin, .is_file = is_file, .text = text, .n_bytes = n_bytes};
    DH_TRY(check_depth(ctx, origin, text, n_bytes));
    if (!parser_init(&parser, text, n_bytes)) return no_memory(ctx, origin);
    dh_status st = DH_OK;
    if (!yaml_parser_load(&parser, &yaml->doc)) {
        st = parser_failure(yaml, &parser);
    } else if (dh_yaml_root(yaml)) {
        st = check_only(yaml, &parser);
        if (st != DH_OK) dh_yaml_close(yaml);
    }
    yaml_parser_delete(&parser);
    return st;
}

void dh_yaml_close(dh_yaml *yaml)
{
    yaml_document_delete(&yaml->doc);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* libyaml's getters change nothing, although they take a document that could be changed. */
static yaml_document_t *document_of(const dh_yaml *yaml)
{
    return (yaml_document_t *)(uintptr_t)&yaml->doc;
}

const yaml_node_t *dh_yaml_root(const dh_yaml *yaml)
{
    return yaml_document_get_root_node(document_of(yaml));
}

const yaml_node_t *dh_yaml_node(const dh_yaml *yaml, int id)
{
    return yaml_document_get_node(document_of(yaml), id);
}

const char *dh_yaml_place(const dh_yaml *yaml, const yaml_node_t *node, char *buf, size_t cap)
{
    if (yaml->is_file)
        snprintf(buf, cap, "%.200s:%zu:%zu", yaml->origin, node->start_mark.line + 1,
                 node->start_mark.column + 1);
    else
        snprintf(buf, cap, "%.200s", yaml->origin);
    return buf;
}

const char *dh_yaml_kind(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE    ? "a mapping"
           : node->type == YAML_SEQUENCE_NODE ? "a sequence"
                                              : "a plain value";
}

dh_status dh_yaml_scalar(const dh_yaml *yaml, const yaml_node_t *node, const char **text)
{
    char at[256];
    if (node->type != YAML_SCALAR_NODE)
        return dh_fail(yaml->ctx, DH_EFORMAT, "%s: %s stands where a plain value is expected",
                       dh_yaml_place(yaml, node, at, sizeof at), dh_yaml_kind(node));
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != node->data.scalar.length)
        return dh_fail(yaml->ctx, DH_EFORMAT, "%s: the text contains a NUL byte",
                       dh_yaml_place(yaml, node, at, sizeof at));
    *text = value;
    return DH_OK;
}

/* ---- mappings -------------------------------------------------------------------------------- */

/* All keys before this one are plain values. */
static dh_status check_once(const dh_yaml *y, const yaml_node_t *mapping,
                            const yaml_node_pair_t *pair, const char *key)
{
    char at[256], first[256];
    for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < pair; p++) {
        const yaml_node_t *other = dh_yaml_node(y, p->key), *node = dh_yaml_node(y, pair->key);
        if (strcmp((const char *)other->data.scalar.value, key) != 0) continue;
        return dh_fail(y->ctx, DH_EFORMAT, "%s: \"%.80s\" is set twice; first at %s",
                       dh_yaml_place(y, node, at, sizeof at), key,
                       dh_yaml_place(y, other, first, sizeof first));
    }
    return DH_OK;
}

dh_status dh_yaml_each(const dh_yaml *yaml, const char *path, const yaml_node_t *mapping,
                       dh_yaml_visit *visit, void *self)
{
    dh_str full = DH_STR_INIT;
    dh_status st = DH_OK;
    const yaml_node_pair_t *p = mapping->data.mapping.pairs.start;
    for (; st == DH_OK && p < mapping->data.mapping.pairs.top; p++) {
        const char *key;
        const yaml_node_t *node = dh_yaml_node(yaml, p->key);
        st = dh_yaml_scalar(yaml, node, &key);
        if (st == DH_OK) st = check_once(yaml, mapping, p, key);
        if (st != DH_OK) break;
        dh_str_clear(&full);
        dh_str_printf(&full, "%s%s%s", path, *path ? "." : "", key);
        st = full.failed ? no_memory(yaml->ctx, yaml->origin)
                         : visit(self, full.text, node, dh_yaml_node(yaml, p->value));
    }
    dh_str_fini(&full);
    return st;
}
