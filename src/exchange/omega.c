/* YAML files of NeMo: every plain value with the keys around it, and OmegaConf's ${...}. */
#include <stdio.h>
#include <string.h>

#include "config/yaml.h"
#include "exchange/source.h"

typedef struct reader {
    const dh_yaml *yaml;
    dh_ctx *ctx;
    dh_source *source;
} reader;

static dh_status say(reader *r, const char *path, const yaml_node_t *at, const char *text)
{
    char place[512];
    dh_arena *arena = r->source->arena;
    const dh_said said = {
        .name = dh_arena_strdup(arena, path),
        .value = dh_arena_strdup(arena, text),
        .place = dh_arena_strdup(arena, dh_yaml_place(r->yaml, at, place, sizeof place))};
    if (!said.name || !said.value || !said.place) return dh_no_memory(r->ctx);
    return dh_vec_push(&r->source->said, said) ? DH_OK : dh_no_memory(r->ctx);
}

static dh_status visit(void *self, const char *path, const yaml_node_t *key,
                       const yaml_node_t *value);

/* Plain values of a sequence, with a blank between; mappings in it as if they stood there. */
static dh_status sequence(reader *r, const char *path, const yaml_node_t *node)
{
    dh_str text = DH_STR_INIT;
    const yaml_node_item_t *item = node->data.sequence.items.start;
    dh_status st = DH_OK;
    for (; st == DH_OK && item < node->data.sequence.items.top; item++) {
        const yaml_node_t *value = dh_yaml_node(r->yaml, *item);
        const char *one = "[]";
        if (value->type == YAML_SCALAR_NODE) st = dh_yaml_scalar(r->yaml, value, &one);
        if (value->type == YAML_MAPPING_NODE) {
            st = dh_yaml_each(r->yaml, path, value, visit, r);
            continue;
        }
        if (st == DH_OK) dh_str_printf(&text, "%s%s", text.len ? " " : "", one);
    }
    if (st == DH_OK && text.failed) st = dh_no_memory(r->ctx);
    if (st == DH_OK) st = say(r, path, node, text.text ? text.text : "");
    dh_str_fini(&text);
    return st;
}

static dh_status visit(void *self, const char *path, const yaml_node_t *key,
                       const yaml_node_t *value)
{
    reader *r = self;
    const char *text;
    (void)key;
    if (value->type == YAML_MAPPING_NODE) return dh_yaml_each(r->yaml, path, value, visit, r);
    if (value->type == YAML_SEQUENCE_NODE) return sequence(r, path, value);
    DH_TRY(dh_yaml_scalar(r->yaml, value, &text));
    return say(r, path, key, text);
}

/* ---- ${...} ------------------------------------------------------------------------------------ */

/* Whether a path ends with the other one: "model.hidden_size" with "training.model.hidden_size",
 * whose first key is the file's place among others. */
static bool is_path(const char *path, const char *wanted)
{
    const size_t n = strlen(path), m = strlen(wanted);
    return strcmp(path, wanted) == 0 ||
           (m > n && strcmp(wanted + m - n, path) == 0 && wanted[m - n - 1] == '.');
}

/* ".hidden_size" of "model.ffn_hidden_size": "model.hidden_size" */
static const char *look_up(const dh_source *s, const char *from, const char *name)
{
    char path[256];
    const char *dot = strrchr(from, '.');
    if (*name == '.' && dot)
        snprintf(path, sizeof path, "%.*s%s", (int)(dot - from), from, name);
    else
        snprintf(path, sizeof path, "%s", name + (*name == '.'));
    for (size_t i = 0; i < s->said.n; i++)
        if (is_path(s->said.at[i].name, path)) return s->said.at[i].value;
    return NULL;
}

/* The value of a text that is one ${...}, or a number; NULL: not known. */
static const char *resolve(dh_source *s, const char *from, const char *text, int depth)
{
    char inside[256], one[256];
    int64_t product = 1, factor;
    const size_t n = strlen(text);
    if (n < 3 || text[0] != '$' || text[1] != '{' || text[n - 1] != '}') return text;
    if (depth > 8 || n >= sizeof inside) return NULL;
    snprintf(inside, sizeof inside, "%.*s", (int)(n - 3), text + 2);
    if (strncmp(inside, "multiply:", 9) != 0) {
        const char *value = strpbrk(inside, ":${") ? NULL : look_up(s, from, inside);
        return value ? resolve(s, from, value, depth + 1) : NULL;
    }
    for (const char *p = inside + 9; *p; p += strcspn(p, ","), p += *p == ',') {
        p += strspn(p, " ");
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ", "), p);
        const char *value = resolve(s, from, one, depth + 1);
        if (!value || !dh_parse_i64(value, &factor) ||
            __builtin_mul_overflow(product, factor, &product))
            return NULL;
    }
    return dh_arena_printf(s->arena, "%lld", (long long)product);
}

dh_status dh_omega_read(dh_ctx *ctx, const char *origin, const char *text, size_t n_bytes,
                        dh_source *source)
{
    dh_yaml yaml;
    DH_TRY(dh_yaml_open(ctx, origin, true, text, n_bytes, &yaml));
    reader r = {.yaml = &yaml, .ctx = ctx, .source = source};
    const yaml_node_t *root = dh_yaml_root(&yaml);
    dh_status st = DH_OK;
    if (!root || root->type != YAML_MAPPING_NODE)
        st = dh_fail(ctx, DH_EFORMAT, "%s: a mapping is wanted", origin);
    if (st == DH_OK) st = dh_yaml_each(&yaml, "", root, visit, &r);
    dh_yaml_close(&yaml);
    for (size_t i = 0; st == DH_OK && i < source->said.n; i++) {
        dh_said *said = &source->said.at[i];
        const char *value = resolve(source, said->name, said->value, 0);
        if (value) said->value = value;
    }
    return st;
}
