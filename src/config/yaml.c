/* What libyaml reads slowly is refused before it is composed: it goes over all open collections
 * at every token, so that deep nesting takes time squared. Nothing here nests deeply. */
#include "dhelix/yaml_text.h"

#include <yaml.h>

enum { MAX_DEPTH = 32 };

/* +1 where a collection opens, -1 where one closes. */
static int step_of(yaml_event_type_t type)
{
    const bool opens = type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT;
    const bool closes = type == YAML_SEQUENCE_END_EVENT || type == YAML_MAPPING_END_EVENT;
    return opens - closes;
}

/* What cannot be parsed is for the reader to report: it knows how. */
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

dh_status dh_yaml_check_depth(dh_ctx *ctx, const char *origin, const void *text, size_t n_bytes)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return dh_fail(ctx, DH_ENOMEM, "out of memory reading %.200s", origin);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, text, n_bytes);
    dh_status st = walk(ctx, &parser, origin);
    yaml_parser_delete(&parser);
    return st;
}
